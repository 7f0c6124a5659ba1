//! Calls the site's `idle_program` for each run that was warned for not using its GPUs, so that its owner hears of it: by mail, or
//! however the site likes. Decides nothing: who is warned is in the state ([`gcore::ctl::idle_orders`]). A controller that was
//! killed in the middle of a call makes it again; a call that failed is not repeated, and noted in the job's record.

use crate::config::SiteProgram;
use crate::core_thread::CoreHandle;
use crate::http::App;
use crate::site_program;
use gcore::ctl::{IdleOrder, State, idle_orders};
use gmodel::{RunId, hostlist};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Between two looks at the state: small beside any time that a run may be idle.
const LOOK: Duration = Duration::from_millis(500);
/// Calls at once.
const CALLS: usize = 8;

struct Called {
    run: RunId,
    number: u64,
    failure: Option<String>,
}

/// Runs until we stop; calls under way are ended then, and made again by the next controller.
pub async fn run(core: CoreHandle, app: Arc<App>, mut stop: watch::Receiver<bool>) {
    let mut calls = JoinSet::new();
    let mut under_way: Vec<u64> = Vec::new();
    let mut seen = None;
    while !*stop.borrow() {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            Some(Ok(Called { run, number, failure })) = calls.join_next() => {
                // Refused when we are stopping or swamped: the order stands, and is carried out once more.
                let _ = core.idle_told(run, number, failure).await;
                under_way.retain(|one| *one != number);
                seen = None;
            }
            _ = stop.changed() => continue, // told to stop, or nobody is left who could
        }
        let Some(program) = app.config().idle.clone() else { continue };
        let version = core.version();
        if seen == Some(version) {
            continue;
        }
        seen = Some(version);
        let state = core.view().await;
        for order in idle_orders(&state).into_iter().filter(|order| !under_way.contains(&order.number)).collect::<Vec<_>>() {
            if under_way.len() >= CALLS {
                break;
            }
            let Some(environment) = environment(&state, &order) else { continue };
            under_way.push(order.number);
            calls.spawn(call(program.clone(), order, environment));
        }
    }
}

async fn call(program: SiteProgram, order: IdleOrder, environment: Vec<(&'static str, String)>) -> Called {
    let IdleOrder { run, number, .. } = order;
    let failure = site_program::call("idle_program", &program, &run.job.to_string(), &environment).await.err();
    if let Some(why) = &failure {
        tracing::warn!(%run, "its owner may not know that its GPUs stand idle: {why}");
    }
    Called { run, number, failure }
}

/// What the program may tell.
fn environment(state: &State, order: &IdleOrder) -> Option<Vec<(&'static str, String)>> {
    let (job, run) = (state.jobs.get(order.run.job)?, state.runs.get(order.run)?);
    let spec = &job.spec;
    let gpus: usize = run.allocation.iter().map(|share| share.gpus.0.len()).sum();
    let names = run.allocation.iter().filter_map(|share| Some(state.nodes.get(share.node)?.name.as_str()));
    let (action, secs) = order.next.map_or(("warn", String::new()), |(action, secs)| (action.word(), secs.to_string()));
    let mail_user = spec.launch.mail_user.clone().unwrap_or_else(|| spec.user.name.clone());
    Some(vec![
        ("GPUPOOL_JOB_ID", job.shown_id()),
        ("GPUPOOL_JOB_NAME", spec.name.clone()),
        ("GPUPOOL_USER", spec.user.name.clone()),
        ("GPUPOOL_ACCOUNT", spec.account.clone()),
        ("GPUPOOL_PARTITION", spec.partition.clone()),
        ("GPUPOOL_QOS", spec.qos.clone()),
        ("GPUPOOL_NODES", hostlist::compress(names)),
        ("GPUPOOL_GPUS", gpus.to_string()),
        ("GPUPOOL_IDLE_SECS", order.idle_secs.to_string()),
        ("GPUPOOL_ACTION", action.to_owned()),
        ("GPUPOOL_ACTION_SECS", secs),
        // As the job asked for with --mail-type and --mail-user: whether to mail is the program's affair.
        ("GPUPOOL_MAIL_TYPE", spec.launch.mail_type.clone().unwrap_or_default()),
        ("GPUPOOL_MAIL_USER", mail_user),
    ])
}
