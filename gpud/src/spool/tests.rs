//! The spool over restarts, reboots and power cuts.

use super::*;
use std::os::unix::fs::FileExt;

const NOW: Timestamp = Timestamp(1_000);

struct Scratch(PathBuf);
impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("gpud-spool-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Self(dir)
    }
}
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(text: &str) -> RunId {
    text.parse().unwrap()
}
fn fence(generation: u64) -> Fence {
    Fence {
        incarnation: 3,
        generation,
    }
}

#[test]
fn fence_and_spool_id_survive_and_a_second_daemon_is_refused() {
    let scratch = Scratch::new("fence");
    let spool = Spool::open(&scratch.0, NOW).unwrap();
    for generation in 1..6 {
        spool.write_fence(fence(generation)).unwrap();
    }
    let life = spool.life().clone();
    assert!(
        Spool::open(&scratch.0, NOW)
            .unwrap_err()
            .to_string()
            .contains("another gpud")
    );
    drop(spool);
    let again = Spool::open(&scratch.0, NOW).unwrap();
    assert_eq!((again.fence(), again.life()), (fence(5), &life));
}

#[test]
fn a_torn_slot_leaves_the_fence_before_it() {
    let scratch = Scratch::new("torn");
    let spool = Spool::open(&scratch.0, NOW).unwrap();
    spool.write_fence(fence(1)).unwrap();
    spool.write_fence(fence(2)).unwrap();
    spool
        .fence
        .lock()
        .unwrap()
        .file
        .write_all_at(br#"{"incarnation":9"#, 0)
        .unwrap();
    drop(spool);
    assert_eq!(Spool::open(&scratch.0, NOW).unwrap().fence(), fence(1));
}

#[test]
fn a_run_directory_says_how_far_the_run_came() {
    let scratch = Scratch::new("scan");
    let spool = Spool::open(&scratch.0, NOW).unwrap();
    for id in ["1-1", "2-1", "3-1", "4-1"] {
        spool.accept(run(id), &LaunchOrder::default()).unwrap();
    }
    fs::create_dir(scratch.0.join("runs/5-1")).unwrap();
    spool.write_setup(run("2-1"), &RunSetup::default()).unwrap();
    for id in ["3-1", "4-1"] {
        spool.write_end(run(id), RunEnd::default()).unwrap();
    }
    spool.mark_clean(run("4-1")).unwrap();
    let ended = |clean| StoredRun::Ended {
        end: Box::default(),
        clean,
    };
    let expected = [
        (run("1-1"), StoredRun::Order),
        (run("2-1"), StoredRun::Supervised),
        (run("3-1"), ended(false)),
        (run("4-1"), ended(true)),
    ];
    assert_eq!(spool.scan().unwrap(), BTreeMap::from(expected));
    assert!(!scratch.0.join("runs/5-1").exists(), "never accepted");
    spool.forget(run("4-1")).unwrap();
    spool.forget(run("4-1")).unwrap();
    assert_eq!(spool.scan().unwrap().len(), 3);
}

#[test]
fn what_is_kept_of_a_run_has_no_texts_and_goes_with_it() {
    let scratch = Scratch::new("known");
    let spool = Spool::open(&scratch.0, NOW).unwrap();
    let id = run("1-1");
    let order = LaunchOrder {
        job_name: "train".into(),
        script: "secret".into(),
        environment: vec!["A=b".into()],
        ..LaunchOrder::default()
    };
    spool.accept(id, &order).unwrap();
    spool
        .write_setup(
            id,
            &RunSetup {
                node_name: "n1".into(),
                ..RunSetup::default()
            },
        )
        .unwrap();
    let kept = spool.order(id).unwrap();
    assert_eq!(
        (
            kept.job_name.as_str(),
            kept.script.as_str(),
            kept.environment.len()
        ),
        ("train", "", 0)
    );
    // A daemon that begins reads the same from the files, in which the texts are.
    drop(spool);
    let spool = Spool::open(&scratch.0, NOW).unwrap();
    assert_eq!(*spool.order(id).unwrap(), *kept);
    assert_eq!(spool.setup(id).unwrap().unwrap().node_name, "n1");
    assert!(
        fs::read_to_string(scratch.0.join("runs/1-1/order.json"))
            .unwrap()
            .contains("secret")
    );
    spool.log(id, NOW, "accepted");
    spool.forget(id).unwrap();
    assert!(
        spool.known().is_empty() && spool.order(id).is_err() && spool.setup(id).unwrap().is_none()
    );
}

#[test]
fn a_directory_that_is_used_again_is_a_new_run() {
    let scratch = Scratch::new("again");
    let spool = Spool::open(&scratch.0, NOW).unwrap();
    let (first, second) = (run("1-1"), run("2-1"));
    let order = |name: &str| LaunchOrder {
        job_name: name.into(),
        ..LaunchOrder::default()
    };
    spool.accept(first, &order("first")).unwrap();
    spool.write_setup(first, &RunSetup::default()).unwrap();
    spool.mark_ready(first).unwrap();
    spool.mark_ready(first).unwrap();
    assert!(spool.was_ready(first));
    spool.write_end(first, RunEnd::default()).unwrap();
    spool.mark_clean(first).unwrap();
    spool.forget(first).unwrap();
    spool.accept(second, &order("second")).unwrap();
    assert_eq!(
        spool.scan().unwrap(),
        BTreeMap::from([(second, StoredRun::Order)])
    );
    assert!(
        !spool.was_ready(second)
            && spool.setup(second).unwrap().is_none()
            && spool.end(second).unwrap().is_none()
    );
    assert_eq!(spool.order(second).unwrap().job_name, "second");
    // Accepted again, while there is a spare one: the run keeps its directory.
    spool.accept(first, &order("first")).unwrap();
    spool.forget(first).unwrap();
    spool.mark_ready(second).unwrap();
    spool.accept(second, &order("again")).unwrap();
    assert!(spool.was_ready(second) && spool.order(second).unwrap().job_name == "again");
    drop(spool);
    let spool = Spool::open(&scratch.0, NOW).unwrap();
    assert_eq!(
        spool.scan().unwrap(),
        BTreeMap::from([(second, StoredRun::Order)]),
        "spare ones are no runs"
    );
    assert_eq!(fs::read_dir(spool.runs_dir()).unwrap().count(), 1);
}

#[test]
fn runs_of_an_earlier_boot_are_ended_when_the_spool_is_opened() {
    let scratch = Scratch::new("boot");
    let spool = Spool::open(&scratch.0, NOW).unwrap();
    spool.accept(run("1-1"), &LaunchOrder::default()).unwrap();
    let path = scratch.0.join("life.json");
    let life = StoredLife {
        boot: "yesterday".into(),
        spool: spool.life().spool.clone(),
    };
    fs::write(&path, serde_json::to_vec(&life).unwrap()).unwrap();
    drop(spool);
    let spool = Spool::open(&scratch.0, NOW).unwrap();
    assert_eq!(
        spool.end(run("1-1")).unwrap().unwrap().cause,
        EndCause::NodeRebooted
    );
    assert_eq!(spool.life().spool, life.spool);
}

#[test]
fn an_end_whose_name_was_undone_by_a_power_cut_counts_and_a_half_written_one_does_not() {
    let scratch = Scratch::new("room");
    let spool = Spool::open(&scratch.0, NOW).unwrap();
    let room = scratch.0.join("runs/1-1/exit.json.room");
    spool.accept(run("1-1"), &LaunchOrder::default()).unwrap();
    let end = RunEnd {
        cause: EndCause::TimeLimit,
        ..RunEnd::default()
    };
    let text = serde_json::to_string(&end).unwrap();
    for unfinished in [
        "",
        "{",
        "\0\0\0\0",
        &text[..text.len() - 1],
        &format!("{text}\0\0"),
    ] {
        fs::write(&room, unfinished).unwrap();
        assert_eq!(spool.end(run("1-1")).unwrap(), None, "{unfinished:?}");
    }
    fs::write(&room, &text).unwrap();
    assert_eq!(spool.end(run("1-1")).unwrap(), Some(end.clone()));
    assert_eq!(
        spool.scan().unwrap()[&run("1-1")],
        StoredRun::Ended {
            end: Box::new(end),
            clean: false
        }
    );
}

#[test]
fn the_first_end_counts_and_a_broken_fence_explains_it() {
    let scratch = Scratch::new("end");
    let spool = Spool::open(&scratch.0, NOW).unwrap();
    spool.accept(run("1-1"), &LaunchOrder::default()).unwrap();
    let lost = RunEnd {
        cause: EndCause::SupervisorLost,
        ..RunEnd::default()
    };
    spool.write_end(run("1-1"), lost.clone()).unwrap();
    assert_eq!(
        spool.write_end(run("1-1"), RunEnd::default()).unwrap(),
        lost
    );
    fs::write(scratch.0.join("runs/1-1/exit.json"), "{").unwrap();
    assert_eq!(
        spool.end(run("1-1")).unwrap().unwrap().cause,
        EndCause::SpoolLost
    );
    spool.mark_fence_broken(run("1-1"), "changed").unwrap();
    assert_eq!(
        spool.end(run("1-1")).unwrap().unwrap().cause,
        EndCause::FenceBroken
    );
}

#[test]
fn a_log_is_read_back_bounded() {
    let scratch = Scratch::new("log");
    let spool = Spool::open(&scratch.0, NOW).unwrap();
    assert!(
        spool
            .read_log(run("1-1"))
            .unwrap_err()
            .to_string()
            .contains("no record of run 1-1")
    );
    spool.accept(run("1-1"), &LaunchOrder::default()).unwrap();
    for n in 0..5000 {
        spool.log(run("1-1"), NOW, &format!("line {n} {}", "x".repeat(40)));
    }
    let text = spool.read_log(run("1-1")).unwrap();
    assert!(
        text.len() <= LOG_READ_BYTES && text.ends_with(&format!("line 4999 {}\n", "x".repeat(40)))
    );
    assert!(text.starts_with("1970-01-01T00:00:01Z line "));
}

#[test]
fn logs_outlive_their_runs() {
    let scratch = Scratch::new("old-logs");
    let spool = Spool::open(&scratch.0, NOW).unwrap();
    spool.accept(run("1-1"), &LaunchOrder::default()).unwrap();
    spool.log(run("1-1"), NOW, "accepted");
    spool.forget(run("1-1")).unwrap();
    assert_eq!(
        spool.read_log(run("1-1")).unwrap(),
        "1970-01-01T00:00:01Z accepted\n"
    );
    // Of a run in the same directory, only that.
    spool.accept(run("2-1"), &LaunchOrder::default()).unwrap();
    spool.log(run("2-1"), NOW, "another");
    assert_eq!(
        spool.read_log(run("2-1")).unwrap(),
        "1970-01-01T00:00:01Z another\n"
    );
    spool.forget(run("2-1")).unwrap();
    drop(spool);
    let spool = Spool::open(&scratch.0, NOW).unwrap();
    assert_eq!(
        spool.read_log(run("1-1")).unwrap(),
        "1970-01-01T00:00:01Z accepted\n"
    );
    assert_eq!(
        spool.read_log(run("2-1")).unwrap(),
        "1970-01-01T00:00:01Z another\n"
    );
    assert_eq!(
        fs::read_dir(scratch.0.join("logs")).unwrap().count(),
        1,
        "no file for each run"
    );
}
