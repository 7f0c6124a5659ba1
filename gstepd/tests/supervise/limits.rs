//! Resource limits of the submission in the job: soft ones, cut to the node's hard ones, without any mistake of the node.

use gmodel::ExitCode;
use gmodel::job::{LimitName, SoftLimit};
use gmodel::run::EndCause;
use gmodel::supervise::SupervisorCommand;
use gsys::launch::Resource;

use super::bench::{Bench, wait_for};
use super::grun::Grun;

fn limit(name: LimitName, soft: u64) -> SoftLimit {
    SoftLimit {
        name,
        soft: Some(soft),
    }
}

#[test]
fn the_submissions_soft_limits_hold_in_the_job_and_its_steps() {
    let script = "ulimit -Sn; ulimit -Hn; ulimit -Sc; ulimit -Sl; touch ready; exec sleep 600";
    let Some(mut bench) = Bench::isolated(script) else {
        return;
    };
    let own = |resource: Resource| resource.current().unwrap();
    bench.order.rlimits = vec![
        limit(LimitName::Nofile, 77),
        limit(LimitName::Core, 0),
        // The node's stays, as RDMA needs it.
        limit(LimitName::Memlock, 4096),
    ];
    let mut link = bench.start_and_go();
    bench.file_when("ready", |_| true);
    let memlock = match own(Resource::Memlock).soft {
        u64::MAX => "unlimited".to_owned(),
        bytes => (bytes / 1024).to_string(),
    };
    assert_eq!(
        bench.file("out"),
        format!("77\n{}\n0\n{memlock}\n", own(Resource::Nofile).hard)
    );
    let grun = Grun::listen();
    link.send(&SupervisorCommand::Step {
        step: Box::new(grun.order(0, 1, "ulimit -Sn")),
    });
    assert_eq!(grun.accept().collect().stdout[&0], "77\n");
    link.stop(15);
    link.end();
}

#[test]
fn a_limit_above_the_nodes_is_cut_and_said_in_the_log() {
    let Some(mut bench) = Bench::isolated("ulimit -Sn") else {
        return;
    };
    let hard = Resource::Nofile.current().unwrap().hard;
    bench.order.rlimits = vec![limit(LimitName::Nofile, hard + 5)];
    assert_eq!(bench.run_to_end().exit, ExitCode::SUCCESS);
    assert_eq!(bench.file("out"), format!("{hard}\n"));
    let wanted = format!(
        "cut to this node's hard limits: NOFILE {} to {hard}",
        hard + 5
    );
    wait_for("a line in the log", || {
        std::fs::read_to_string(bench.run_dir().join("log"))
            .unwrap()
            .contains(&wanted)
            .then_some(())
    });
}

#[test]
fn limits_that_leave_no_room_are_never_the_nodes_mistake() {
    for limits in [
        vec![limit(LimitName::Nofile, 0), limit(LimitName::Nproc, 0)],
        vec![
            limit(LimitName::As, 0),
            limit(LimitName::Stack, 0),
            limit(LimitName::Data, 0),
        ],
        vec![limit(LimitName::Fsize, 0)],
    ] {
        let Some(mut bench) = Bench::isolated("echo x") else {
            return;
        };
        bench.order.rlimits.clone_from(&limits);
        let end = bench.run_to_end();
        assert_ne!(end.cause, EndCause::LaunchNode, "{limits:?}: {}", end.text);
        assert_ne!(end.exit, ExitCode::SUCCESS, "{limits:?}");
    }
}
