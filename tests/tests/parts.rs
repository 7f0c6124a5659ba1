//! Jobs of unlike parts: one submission, one start on nodes of several kinds, one end.

use gmodel::JobState::{Cancelled, Completed, Failed, Pending, Running};
use gpupool_tests::pool::{Pool, programs};

#[test]
fn the_script_of_the_first_component_starts_steps_in_the_others_and_ends_all() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    let out = pool.work.join("out.txt");
    let script = pool.work.join("parts.sh");
    let text = format!(
        "#!/bin/sh
#SBATCH --gpus-per-node 2 -J whole -o {}
#SBATCH hetjob
#SBATCH --gpus-per-node 2 -n 1
echo $SLURM_HET_SIZE $SLURM_JOB_ID $SLURM_JOB_ID_HET_GROUP_0 $SLURM_JOB_ID_HET_GROUP_1
echo here $SLURM_JOB_NODELIST $SLURM_JOB_NODELIST_HET_GROUP_0
echo there $SLURM_JOB_NODELIST_HET_GROUP_1
{grun} --het-group 1 sh -c 'echo step in $SLURM_JOB_ID on $SLURMD_NODENAME with $SLURM_GPUS_ON_NODE'
{grun} --het-group 2 true
exit 3
",
        out.display(),
        grun = programs().join("grun").display()
    );
    std::fs::write(&script, text).unwrap();
    let id = pool.gsub(&[script.to_str().unwrap()]);
    pool.wait_state(id, Failed);
    let second = pool.wait_state(id + 1, Failed);
    assert_eq!(
        (second.shown_id, second.name),
        (format!("{id}+1"), "whole".into())
    );
    let said = std::fs::read_to_string(&out).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], format!("2 {id} {id} {}", id + 1), "{said}");
    let (here, there) = (&lines[1]["here ".len()..], &lines[2]["there ".len()..]);
    assert_eq!(here.split(' ').next(), here.split(' ').nth(1), "{said}");
    assert_eq!(
        lines[3],
        format!("step in {} on {there} with 2", id + 1),
        "{said}"
    );
    assert!(
        said.contains("this job has 2 components, numbered from 0"),
        "{said}"
    );

    let listed = pool.run(
        "gacct",
        &[
            "-j",
            &id.to_string(),
            "-n",
            "-X",
            "-o",
            "JobID,State,ExitCode",
        ],
    );
    for offset in 0..2 {
        let line = format!("{id}+{offset}");
        assert!(listed.out.contains(&line), "{listed:?}");
    }
    let one = pool.run(
        "gacct",
        &["-j", &format!("{id}+1"), "-n", "-X", "-o", "JobID"],
    );
    assert_eq!(one.out.trim(), format!("{id}+1"));
}

#[test]
fn no_component_starts_before_all_can_and_a_cancel_of_one_is_of_all() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    let busy = pool.gsub(&["--gpus", "2", "--wrap", "sleep 600"]);
    pool.wait_state(busy, Running);
    let words = ["--gpus", "2", ":", "--gpus", "2", "--wrap", "sleep 600"];
    let id = pool.gsub(&words);
    pool.wait_state(id, Pending);
    let first = pool.find_job(&format!("{id}+0")).expect("it waits");
    assert_eq!((first.id, first.shown_id), (id, format!("{id}+0")));
    let why = pool.run("gq", &["--why", &id.to_string()]);
    assert!(why.out.contains("component 1:"), "{why:?}");
    pool.run("gdel", &[&busy.to_string()]);
    pool.wait_state(id, Running);
    pool.wait_state(id + 1, Running);
    let listed = pool.run("gq", &["-h", "-o", "%i %T"]);
    let mut lines: Vec<&str> = listed.out.lines().collect();
    lines.retain(|line| line.ends_with("RUNNING"));
    lines.sort_unstable();
    assert_eq!(
        lines,
        [format!("{id}+0 RUNNING"), format!("{id}+1 RUNNING")],
        "{listed:?}"
    );
    // A component's node that dies of kill -9 keeps its run; the cancel reaches it all the same.
    pool.run("gdel", &[&format!("{id}+1")]);
    pool.wait_state(id, Cancelled);
    pool.wait_state(id + 1, Cancelled);

    let quick = pool.gsub(&["--gpus", "1", ":", "-n", "2", "--", "true"]);
    pool.wait_state(quick, Completed);
    pool.wait_state(quick + 1, Completed);
    pool.run("gsub", &["--gpus", "1", ":", "--gpus", "9", "--", "true"])
        .fails_with(1, "component 1:");
    pool.run(
        "gsub",
        &["--gpus", "1", ":", "--array", "0-3", "--", "true"],
    )
    .fails_with(1, "component 1: --array does not go with");
}
