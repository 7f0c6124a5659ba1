//! `squeue` and `scancel` against canned answers of the API. The wanted lines are those that Slurm 22.05.8 printed for the same
//! jobs.

#[path = "../../gq/tests/canned/queue.rs"]
mod canned;
#[path = "../../gq/tests/canned/two_partitions.rs"]
mod two_partitions;

use canned::answer;
use expect_test::expect;
use gcli::fake_controller::FakeController;

const GSLURM: &str = env!("CARGO_BIN_EXE_gslurm");

#[test]
fn under_the_name_squeue_the_listing_is_squeues_to_the_blank() {
    let controller = FakeController::start(answer);
    // Marked where lines begin: their blanks count.
    let lines = |words: &[&str]| {
        controller
            .run_as("squeue", GSLURM, words)
            .text()
            .lines()
            .map(|line| format!("|{line}\n"))
            .collect::<String>()
    };
    expect![[r#"
        |             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)
        |                97      main      dep     root PD       0:00      1 (Dependency)
        |              98_5      main      arr     root PD       0:00      1 (JobArrayTaskLimit)
        |               119      main     wrap     root PD       0:00      1 (PartitionTimeLimit)
        |                95      main      run     root  R       0:14      1 node2
        |              98_1      main      arr     root  R       0:14      1 node2
    "#]]
    .assert_eq(&lines(&[]));
    expect![[r#"
        |                97      main      dep     root  PENDING       0:00     10:00      1 (Dependency)
    "#]].assert_eq(&lines(&["-l", "-h", "-j", "97"]));
    assert_eq!(
        lines(&["-h", "-j", "97", "-o", "%i %T"]),
        "|97 PENDING\n",
        "a format is a format"
    );
    assert!(
        controller
            .run_as("squeue", GSLURM, &["--version"])
            .stdout
            .starts_with("slurm 25.05.0 ")
    );
}

#[test]
fn under_the_name_scancel_jobs_that_are_over_are_no_failure() {
    let controller = FakeController::start(answer);
    assert_eq!(controller.run_as("scancel", GSLURM, &["999999"]).text(), "");
    assert_eq!(
        controller
            .run_as("scancel", GSLURM, &["-s", "KILL", "999999"])
            .text(),
        ""
    );
    expect![[r#"
        stderr: scancel: Terminating job 999999
        stderr: scancel: error: Kill job error on job id 999999: Invalid job id specified
        stderr: scancel: error: there is no job 999999
    "#]]
    .assert_eq(
        &controller
            .run_as("scancel", GSLURM, &["-v", "999999"])
            .text(),
    );
    expect![[r#"
        stderr: scancel: error: Kill job error on job id 999999: Invalid job id specified
        stderr: scancel: error: there is no job 999999
        exit: Some(1)
    "#]]
    .assert_eq(
        &controller
            .run_as("scancel", GSLURM, &["-s", "USR1", "999999"])
            .text(),
    );
    expect![[r#"
        stderr: scancel: Signal 10 to full job 95
        stderr: scancel: Signal 10 to full job 98_5
    "#]]
    .assert_eq(
        &controller
            .run_as("scancel", GSLURM, &["-v", "-f", "-s", "USR1", "95", "98_5"])
            .text(),
    );
    expect![[r#"
        stderr: scancel: error: No job identification provided
        stderr: scancel: error: which jobs? Name them (gdel 17 98_5), or choose them with -u, --me, -n, -p, -t, -A, -q, -R or -w
        exit: Some(1)
    "#]].assert_eq(&controller.run_as("scancel", GSLURM, &[]).text());
}

#[test]
fn ids_and_states_alone_are_listed_as_squeue_does() {
    let controller = FakeController::start(answer);
    let text = |words: &[&str]| controller.run_as("squeue", GSLURM, words).text();
    let listed = "             JOBID ST\n                97 PD\n                95  R\n";
    assert_eq!(text(&["--only-job-state", "-j", "97,95"]), listed);
    assert_eq!(
        text(&["-h", "--only-job-state", "--jobs", "95", "-o", "%T"]),
        "RUNNING\n"
    );
    assert_eq!(
        text(&["-h", "--only-job-state", "-j", "999999"]),
        "",
        "a job that is not there is no error"
    );
    let refused = controller.run_as("squeue", GSLURM, &["--only-job-state", "-u", "ada"]);
    assert!(
        refused.exit == Some(1) && refused.stderr.contains("narrowed by -j and -t alone"),
        "{}",
        refused.stderr
    );
}

#[test]
fn what_is_asked_of_whom_is_said_when_that_is_wanted() {
    let controller = FakeController::start(answer);
    let ran = controller.run_as("squeue", GSLURM, &["-v", "-h", "-j", "95", "-o", "%i"]);
    assert!(
        ran.stdout.starts_with("-----------------------------\n")
            && ran.stdout.contains("\niterate      = (null)\n")
            && ran.stdout.contains("\nverbose      = 1\n")
            && ran.stdout.ends_with("-----\n\n95\n"),
        "{}",
        ran.stdout
    );
    assert_eq!(ran.exit, Some(0));
    assert!(
        ran.stderr.starts_with("squeue: GET /v1/jobs?")
            && ran.stderr.contains(" of the controller at /"),
        "{}",
        ran.stderr
    );
    for name in ["squeue", "scancel", "sprio"] {
        let usage = controller.run_as(name, GSLURM, &["--usage"]);
        assert!(
            usage.exit == Some(0) && usage.stdout.starts_with(&format!("Usage: {name} [-")),
            "{usage:?}"
        );
        let help = controller.run_as(name, GSLURM, &["--help"]);
        let first = format!("Usage: {name} [OPTIONS]");
        assert!(
            help.exit == Some(0)
                && help.stdout.starts_with(&first)
                && help.stdout.contains("\nHelp options:\n"),
            "{help:?}"
        );
    }
}

#[test]
fn under_slurms_names_its_first_line_says_that_no_controller_answers() {
    let controller = FakeController::start(answer);
    std::fs::write(
        controller.config(),
        "socket = \"/nonexistent/gpuctld.sock\"\n",
    )
    .unwrap();
    for (name, words, first) in [
        (
            "squeue",
            &["-h"][..],
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
        ),
        (
            "scancel",
            &["17"],
            "scancel: error: Kill job error on job id 17: Unable to contact slurm controller (connect failure)\n",
        ),
    ] {
        let ran = controller.run_as(name, GSLURM, words);
        assert!(
            ran.exit == Some(1) && ran.stderr.starts_with(first),
            "{}",
            ran.stderr
        );
        assert!(
            ran.stderr.contains(&format!(
                "\n{name}: error: no controller answers at /nonexistent/gpuctld.sock"
            )),
            "ours comes after it: {}",
            ran.stderr
        );
    }
}

#[test]
fn scancel_says_at_length_that_a_job_is_over_and_is_content_with_it() {
    let controller = FakeController::start(two_partitions::answer);
    let said = |words: &[&str]| controller.run_as("scancel", GSLURM, words).text();
    assert_eq!(said(&["9"]), "");
    expect![[r#"
        stderr: scancel: Terminating job 9
        stderr: scancel: error: Kill job error on job id 9: Job/step already completing or completed
        stderr: scancel: error: job 9 is over
    "#]]
    .assert_eq(&said(&["-v", "9"]));
}

#[test]
fn squeue_lists_a_job_in_each_of_its_partitions_and_by_its_licences() {
    let controller = FakeController::start(two_partitions::answer);
    let lines = |words: &[&str]| controller.run_as("squeue", GSLURM, words).text();
    assert_eq!(lines(&["-h", "-o", "%i %P"]), "7 train,debug\n8 debug\n");
    assert_eq!(
        lines(&["-h", "-P", "-o", "%i %P"]),
        "7 train\n7 debug\n8 debug\n"
    );
    assert_eq!(
        lines(&["-h", "-P", "-S", "P,-i", "-o", "%i %P"]),
        "8 debug\n7 debug\n7 train\n"
    );
    assert_eq!(
        lines(&["-h", "-P", "-S", "-p,i", "-o", "%i %P"]),
        "7 debug\n8 debug\n7 train\n",
        "by the tier of the partition first"
    );
    assert_eq!(
        lines(&["-h", "-P", "-p", "debug", "-o", "%i %P"]),
        "7 debug\n8 debug\n"
    );
    assert_eq!(lines(&["-h", "-L", "idl", "-o", "%i"]), "7\n");
    assert_eq!(lines(&["-h", "-L", "matlab:2,nosuch", "-o", "%i"]), "");
}

/// Slurm knows a job for five minutes after its end: squeue then lists nothing, and fails only later.
#[test]
fn squeue_of_a_job_that_is_over_is_an_error_once_it_is_forgotten() {
    let controller = FakeController::start(two_partitions::answer);
    let text = |words: &[&str]| controller.run_as("squeue", GSLURM, words).text();
    assert_eq!(text(&["-h", "-j", "9"]), "");
    assert_eq!(text(&["-j", "9", "-o", "%i %T"]), "JOBID STATE\n");
    let gone = "stderr: slurm_load_jobs error: Invalid job id specified\nstderr: squeue: error: job 10 is not in the queue. Finished jobs: gq 10, or gacct -j 10\nexit: Some(1)\n";
    assert_eq!(text(&["-j", "10"]), gone);
}

#[test]
fn squeues_long_listing_says_when_it_is() {
    let controller = FakeController::start(two_partitions::answer);
    let text = controller.run_as("squeue", GSLURM, &["-l"]).text();
    let (day, rest) = text.split_once('\n').unwrap();
    assert!(
        day.len() == 24
            && day.split(':').count() == 3
            && rest.trim_start().starts_with("JOBID PARTITION"),
        "{text}"
    );
    assert!(
        !controller
            .run_as("squeue", GSLURM, &["-l", "-h"])
            .text()
            .contains(day.split_once(' ').unwrap().0)
    );
}
