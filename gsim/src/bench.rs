//! A large cluster at work: how much the controller does in ten minutes of a busy day.

use crate::act::actor;
use crate::cluster::Cluster;
use crate::fuzz::Summary;
use crate::scenario::{Act, ActKind, Scenario};
use gcore::ctl::Command;
use gmodel::array_spec::ArraySpec;
use gmodel::gpu_request::GpuRequest;
use gmodel::job::JobSpec;

/// Agents with eight GPUs each run arrays of one-GPU tasks for so many simulated seconds.
pub fn busy_day(agents: u16, tasks: u32, secs: i64) -> Result<Summary, String> {
    let acts = vec![Act {
        at: 0,
        what: ActKind::Backup,
    }];
    let scenario = Scenario {
        acts,
        calm_from: secs * 1000,
        ..Scenario::new(1, agents, 8)
    };
    let mut cluster = Cluster::new(scenario);
    cluster.run_until(5000);
    let mut spec = JobSpec {
        name: "sweep".into(),
        ..JobSpec::default()
    };
    spec.time_limit_secs = Some(600);
    spec.launch.work_dir = "/".into();
    spec.array = Some(
        ArraySpec::parse(&format!("0-{}", tasks.saturating_sub(1))).map_err(|e| e.to_string())?,
    );
    spec.request.gpus = Some(GpuRequest::whole(1));
    let submit = Command::Submit {
        spec: Box::new(spec),
        client_key: Some("sweep".into()),
    };
    cluster.ask(actor(0), submit);
    cluster.run_until(secs * 1000);
    match cluster.violation {
        Some(violation) => Err(violation),
        None => Ok(Summary {
            happenings: cluster.happenings,
            commits: cluster.controller.commits,
            runs_placed: cluster.truth.runs_placed,
            jobs_over: cluster.truth.jobs_over,
            jobs: tasks as usize,
            simulated_secs: secs,
            ..Summary::default()
        }),
    }
}
