use crate::plan::{Plan, WorkBudget};
use crate::tests::world::world;
fn planned(text: &str) -> Plan {
    crate::plan(&world(text), WorkBudget::default())
}

fn shown(plan: &Plan) -> String {
    let ids = |what: &str, ids: Vec<String>| format!("{what} {}", ids.join(" "));
    let starts = ids(
        "starts",
        plan.starts
            .iter()
            .map(|start| start.job.to_string())
            .collect(),
    );
    let resumes = ids(
        "resumes",
        plan.resumes.iter().map(|run| run.to_string()).collect(),
    );
    let suspends = ids(
        "suspends",
        plan.preempts
            .iter()
            .map(|one| format!("{} {:?}", one.run, one.mode))
            .collect(),
    );
    format!("{starts}; {resumes}; {suspends}")
}

/// A node of 64 CPUs; low is suspended for high.
const POOL: &str = "node n1 h100:2
     qos high preempts=low
     qos low mode=suspend";

#[test]
fn a_job_without_gpus_has_the_cpus_of_one_that_is_frozen_and_one_with_gpus_does_not() {
    let run = "run 1 b bob 2 on=n1 ago=90 qos=low cpus=40";
    let plan = planned(&format!("{POOL}\n{run}\njob 10 a ann 0 qos=high cpus=30"));
    assert_eq!(shown(&plan), "starts ; resumes ; suspends 1-1 Suspend");
    assert_eq!(
        plan.preempts[0].lost_gpu_secs, 0,
        "what stands still loses nothing"
    );
    let plan = planned(&format!("{POOL}\n{run}\njob 10 a ann 1 qos=high cpus=30"));
    assert_eq!(shown(&plan), "starts ; resumes ; suspends ");
    let plan = planned(&format!("{POOL}\n{run}\njob 10 a ann 0 qos=high cpus=65"));
    assert_eq!(
        shown(&plan),
        "starts ; resumes ; suspends ",
        "more than the node has"
    );
}

#[test]
fn it_starts_once_they_are_free_and_its_victim_waits_until_it_is_done() {
    let frozen = "run 1 b bob 2 on=n1 ago=90 qos=low cpus=40 frozen=10";
    let plan = planned(&format!(
        "{POOL}\n{frozen}\njob 10 a ann 0 qos=high cpus=30"
    ));
    assert_eq!(shown(&plan), "starts 10; resumes ; suspends ");
    let runs = "run 10 a ann 0 on=n1 ago=5 qos=high cpus=30";
    assert_eq!(
        shown(&planned(&format!("{POOL}\n{frozen}\n{runs}"))),
        "starts ; resumes ; suspends "
    );
    assert_eq!(
        shown(&planned(&format!("{POOL}\n{frozen}"))),
        "starts ; resumes 1-1; suspends "
    );
}

#[test]
fn what_was_frozen_for_nothing_goes_on() {
    // Job 10 is held meanwhile; a job after it may have what is free beside.
    let frozen = "run 1 b bob 2 on=n1 ago=90 qos=low cpus=40 frozen=10";
    let plan = planned(&format!(
        "{POOL}\n{frozen}\njob 10 a ann 0 qos=high cpus=30 held"
    ));
    assert_eq!(shown(&plan), "starts ; resumes 1-1; suspends ");
}

#[test]
fn smaller_jobs_do_not_keep_a_frozen_run_from_its_cpus() {
    let frozen = "run 1 b bob 2 on=n1 ago=90 qos=low cpus=40 frozen=10";
    let other = "run 2 c eve 0 on=n1 ago=5 cpus=30 limit=600";
    let plan = planned(&format!(
        "{POOL}\n{frozen}\n{other}\njob 11 c eve 0 cpus=20 limit=60"
    ));
    assert_eq!(
        shown(&plan),
        "starts ; resumes ; suspends ",
        "34 are free, and kept for run 1"
    );
    let plan = planned(&format!(
        "{POOL}\n{frozen}\njob 11 c eve 0 cpus=24\njob 12 c eve 0 cpus=1"
    ));
    assert_eq!(shown(&plan), "starts 11; resumes 1-1; suspends ");
}

#[test]
fn it_resumes_though_preemption_is_switched_off_meanwhile() {
    let plan = planned(
        "node n1 h100:2\nrun 1 b bob 2 on=n1 ago=90 cpus=40 frozen=10\njob 11 c eve 0 cpus=30",
    );
    assert_eq!(shown(&plan), "starts ; resumes 1-1; suspends ");
}

#[test]
fn a_suspended_run_keeps_its_licences_and_no_run_is_suspended_for_them() {
    let pool = format!("licence matlab 2\n{POOL}");
    let run = "run 1 b bob 2 on=n1 ago=90 qos=low cpus=40 licence=matlab:2";
    let plan = planned(&format!(
        "{pool}\n{run}\njob 10 a ann 0 qos=high cpus=30 licence=matlab:1"
    ));
    assert_eq!(
        shown(&plan),
        "starts ; resumes ; suspends ",
        "its CPUs alone would not start the job"
    );
    let plan = planned(&format!(
        "{pool}\n{run} frozen=10\njob 10 a ann 0 qos=high cpus=30 licence=matlab:1"
    ));
    assert_eq!(shown(&plan), "starts ; resumes 1-1; suspends ");
    assert_eq!(
        &*plan.reasons[0].1.text,
        "needs 1 of licence \"matlab\"; 0 of 2 are free for as long"
    );
}

#[test]
fn a_frozen_run_with_licences_goes_on_without_asking_for_them_again() {
    let frozen = "run 1 b bob 2 on=n1 ago=90 qos=low cpus=40 licence=matlab:2 frozen=10";
    let other = "run 2 c eve 0 on=n1 ago=5 cpus=10 licence=matlab:1 limit=600";
    let plan = planned(&format!(
        "licence matlab 3\n{POOL}\n{frozen}\n{other}\njob 11 c eve 0 cpus=1 licence=matlab:1"
    ));
    assert_eq!(shown(&plan), "starts ; resumes 1-1; suspends ");
}
