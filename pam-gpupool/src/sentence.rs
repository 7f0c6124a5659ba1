//! What a refused user is told: what stands against the login, and what would work.

use gmodel::RunId;
use gmodel::node_login::LoginAnswer;

/// Where gpud gave an answer.
pub fn of_refusal(answer: &LoginAnswer) -> String {
    match answer {
        LoginAnswer::NoJob { node } => format!(
            "you have no job on this node ({node}). Your jobs and their nodes: gq --me. Into job 17 from any machine of the cluster: \
             grun --jobid 17 --pty bash, or ssh gpupool-17 (gadm ssh-config)"
        ),
        LoginAnswer::SeveralJobs { node, runs } => {
            let jobs: Vec<String> = runs.iter().map(|run| run.job.to_string()).collect();
            format!(
                "you have jobs {} on this node ({node}), and none is chosen for you. {}",
                jobs.join(", "),
                runs.first().map_or_else(String::new, way_into)
            )
        }
        LoginAnswer::JobSuspended { node, run } => format!(
            "your job {} on this node ({node}) is suspended, and your session would be too. Log in when it runs again",
            run.job
        ),
        LoginAnswer::NotMoved { run, text } => format!(
            "this session could not be moved into your job {}: {text}. {}",
            run.job,
            way_into(run)
        ),
        LoginAnswer::Admitted { run } | LoginAnswer::Moved { run, .. } => {
            format!("your job is {}", run.job)
        }
    }
}

fn way_into(run: &RunId) -> String {
    let job = run.job;
    format!("Take grun --jobid {job} --pty bash, or ssh gpupool-{job} (gadm ssh-config)")
}

/// Where gpud gave none.
pub fn of_silence() -> String {
    "this node's gpud does not say whether you have a job here; until it does only root may log in. Try again in a minute, or take \
     another way into your job 17: grun --jobid 17 --pty bash"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::JobId;

    #[test]
    fn a_user_without_a_job_here_is_told_the_other_ways() {
        let text = of_refusal(&LoginAnswer::NoJob {
            node: "gpu01".into(),
        });
        for words in [
            "no job on this node (gpu01)",
            "grun --jobid",
            "ssh gpupool-17",
        ] {
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn several_jobs_are_named_and_a_way_into_the_newest() {
        let runs = [19, 17].map(|job| RunId::new(JobId(job), 1)).to_vec();
        let text = of_refusal(&LoginAnswer::SeveralJobs {
            node: "gpu01".into(),
            runs,
        });
        assert!(
            text.contains("jobs 19, 17 on") && text.contains("ssh gpupool-19"),
            "{text}"
        );
    }
}
