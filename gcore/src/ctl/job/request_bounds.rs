//! Bounds on the texts and numbers of a request, and paths that its partition hides.

use crate::ctl::command::{Actor, Refusal};
use crate::ctl::state::State;
use gmodel::config::{ClusterConfig, Partition};
use gmodel::hostlist::MAX_HOSTS;
use gmodel::job_key::TEXTS;
use gmodel::{JobSpec, RefusalKind};

/// Bounds on the texts of a request, bytes.
pub(crate) const MAX_NAME_BYTES: usize = 255;

pub(crate) const MAX_TEXT_BYTES: usize = 4096;

/// Most nodes and tasks of a job.
pub(crate) const MAX_NODES: u32 = MAX_HOSTS as u32;

pub(crate) const MAX_TASKS: u32 = 1_000_000;

pub(crate) fn check_user(config: &ClusterConfig, actor: &Actor) -> Result<(), Refusal> {
    if actor.uid == 0 && !config.allow_root_jobs {
        return Err(Refusal::denied(
            "jobs of root are not accepted here: submit as an ordinary user. (`allow_root_jobs = true` in gpuctld.toml changes that.)",
        ));
    }
    Ok(())
}

pub(crate) fn check_texts(spec: &JobSpec) -> Result<(), Refusal> {
    let launch = &spec.launch;
    let name = [("job name", &spec.name, MAX_NAME_BYTES)];
    let texts = TEXTS
        .iter()
        .map(|text| (text.said, (text.of)(spec), text.max_bytes));
    let of_launch = [
        ("working directory", &launch.work_dir, MAX_TEXT_BYTES),
        ("output pattern", &launch.stdout, MAX_TEXT_BYTES),
        ("error pattern", &launch.stderr, MAX_TEXT_BYTES),
        ("input pattern", &launch.stdin, MAX_TEXT_BYTES),
        ("command", &launch.command, MAX_TEXT_BYTES),
        ("submit host", &launch.submit_host, MAX_NAME_BYTES),
    ];
    for (what, text, most) in name.into_iter().chain(texts).chain(of_launch) {
        if text.len() > most {
            return Err(Refusal::invalid(format!(
                "the {what} has {} bytes; {most} are allowed",
                text.len()
            )));
        }
        if text.contains(['\0', '\n']) {
            return Err(Refusal::invalid(format!(
                "the {what} holds a line break or NUL byte"
            )));
        }
    }
    if !launch.work_dir.starts_with('/') {
        let text = format!(
            "the working directory {:?} is not an absolute path",
            launch.work_dir
        );
        return Err(Refusal::invalid(text));
    }
    if spec.tags.len() > 32 || spec.tags.iter().any(|tag| tag.is_empty() || tag.len() > 64) {
        return Err(Refusal::invalid(
            "a job may have 32 tags of 1 to 64 characters",
        ));
    }
    Ok(())
}

pub(crate) fn check_counts(request: &gmodel::Request) -> Result<(), Refusal> {
    let per_node = request.ntasks_per_node.unwrap_or(1);
    if request.nodes_min == 0 || request.nodes_max < request.nodes_min {
        let (least, most) = (request.nodes_min, request.nodes_max);
        return Err(Refusal::invalid(format!(
            "--nodes {least}-{most}: ask for at least one, smaller first"
        ))
        .about(RefusalKind::NodeCount));
    }
    if request.nodes_max > MAX_NODES || request.ntasks > MAX_TASKS || per_node > MAX_TASKS {
        return Err(Refusal::invalid(format!(
            "a job may have {MAX_NODES} nodes and {MAX_TASKS} tasks at most"
        ))
        .about(if request.nodes_max > MAX_NODES {
            RefusalKind::TooManyNodes
        } else {
            RefusalKind::TaskCount
        }));
    }
    if request.ntasks == 0 || request.cpus_per_task == Some(0) || per_node == 0 {
        return Err(
            Refusal::invalid("tasks and CPUs are counted from 1").about(RefusalKind::TaskCount)
        );
    }
    Ok(())
}

pub(crate) fn check_numbers(state: &State, spec: &JobSpec) -> Result<(), Refusal> {
    check_counts(&spec.request)?;
    let config = &state.config;
    if let Some(array) = &spec.array
        && array.len() > config.max_array_tasks
    {
        return Err(Refusal::limit(format!(
            "the array has {} tasks; this cluster allows {}. Split it.",
            array.len(),
            config.max_array_tasks
        ))
        .about(RefusalKind::Array));
    }
    let records = state.jobs.len() + state.arrays.len();
    if records >= config.max_pending_jobs as usize {
        return Err(Refusal::limit(format!(
            "{records} jobs are in the queue, as many as this cluster allows. Try later, or \
             submit an array, which counts once."
        ))
        .about(RefusalKind::QueueFull));
    }
    Ok(())
}

/// With a private /tmp a job cannot see the shared one.
pub(crate) fn check_private_tmp(partition: &Partition, spec: &JobSpec) -> Result<(), Refusal> {
    let launch = &spec.launch;
    let paths = [
        ("working directory", &launch.work_dir),
        ("output file", &launch.stdout),
        ("error file", &launch.stderr),
        ("input file", &launch.stdin),
    ];
    let below = |path: &str, dir: &str| {
        path.strip_prefix(dir)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let hidden = |path: &str| {
        ["/tmp", "/dev/shm"]
            .into_iter()
            .find(|dir| below(path, dir))
    };
    if !partition.private_tmp {
        return Ok(());
    }
    match paths
        .iter()
        .find_map(|(what, path)| Some((what, path, hidden(path)?)))
    {
        Some((what, path, dir)) => Err(Refusal::invalid(format!(
            "the {what} {path} lies under {dir}, and jobs of partition {:?} have a {dir} of their \
             own that is gone with them. Submit from another directory.",
            partition.name
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_a_private_tmp_nothing_of_the_job_may_lie_in_the_shared_one() {
        let partition = Partition {
            name: "p".into(),
            private_tmp: true,
            ..Partition::default()
        };
        let refused = |work_dir: &str, stdout: &str| {
            let mut spec = JobSpec::default();
            spec.launch.work_dir = work_dir.into();
            spec.launch.stdout = stdout.into();
            check_private_tmp(&partition, &spec)
                .err()
                .map(|refusal| refusal.text)
        };
        assert!(
            refused("/tmp", "")
                .unwrap()
                .starts_with("the working directory /tmp lies under /tmp")
        );
        assert!(
            refused("/home/a", "/dev/shm/x")
                .unwrap()
                .contains("output file /dev/shm/x")
        );
        assert_eq!(refused("/home/a", "/tmpfs/x"), None);
        let shared = Partition {
            private_tmp: false,
            ..partition.clone()
        };
        let mut spec = JobSpec::default();
        spec.launch.work_dir = "/tmp/w".into();
        assert!(check_private_tmp(&shared, &spec).is_ok());
    }
}
