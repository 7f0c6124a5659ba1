//! The launch order of a run for one of its nodes, from the published state and the stored blobs.
//!
//! Built on the connection's own task, off the core thread. A run without a possible order is reported as a
//! failed launch, so that it never waits for an order that does not come.

use crate::launch_texts;
use crate::store::reader::Reader;
use gcore::ctl::state::{Node, Run, State};
use gcore::ctl::{checkpoint_of, imex_channel};
use gmodel::checkpoint::CheckpointMark;
use gmodel::launch_order::{ArrayTask, LaunchOrder, OrderGpu, OrderNode, OrderPart};
use gmodel::run::{EndCause, NodeShare, RunEnd, RunPhase, RunReport};
use gmodel::{BlobId, JobId, JobSpec, NodeId, RunId};

const DEFAULT_OUTPUT: &str = "gsub-%j.out";
const DEFAULT_ARRAY_OUTPUT: &str = "gsub-%A_%a.out";
const DEFAULT_INPUT: &str = "/dev/null";

/// An order, or what to report of a run that has none.
pub type OrderOrEnd = Result<LaunchOrder, RunReport>;

/// Orders for some runs of a node, in the order asked for. Runs that left the state are left out.
pub async fn build(
    state: &State,
    node: NodeId,
    runs: &[RunId],
    reader: &Reader,
) -> Vec<OrderOrEnd> {
    let mut orders = Vec::with_capacity(runs.len());
    for run in runs.iter().filter_map(|run| state.runs.get(*run)) {
        let Some(job) = state.jobs.get(run.id.job) else {
            continue;
        };
        let launch = &job.spec.launch;
        let ids = vec![launch.script, launch.environment];
        let texts = match reader.blobs(ids).await {
            Ok(blobs) => texts(launch, blobs),
            Err(e) => Err(format!("{:#}", anyhow::Error::from(e))),
        };
        orders.push(match texts {
            Ok((script, environment, arguments)) => {
                let order = order_without_texts(state, node, run, &job.spec);
                let environment = bound(environment, &job.spec);
                let argv = arguments.unwrap_or_else(|| job.spec.launch.argv.clone());
                Ok(LaunchOrder {
                    script,
                    environment,
                    argv,
                    ..order
                })
            }
            Err(text) => Err(failed(run.id, text)),
        });
    }
    orders
}

/// The environment with the job's binding of GPUs, which may have changed since its submission.
fn bound(mut environment: Vec<String>, spec: &JobSpec) -> Vec<String> {
    if let Some(how) = spec.tres_bind.strip_prefix("gres/gpu:") {
        environment.retain(|line| !line.starts_with("SLURM_GPU_BIND="));
        environment.push(format!("SLURM_GPU_BIND={how}"));
    }
    environment
}

/// The report of a run that cannot be launched for a reason on the controller's side.
pub fn failed(run: RunId, text: String) -> RunReport {
    let end = RunEnd {
        cause: EndCause::LaunchUser,
        text,
        ..RunEnd::default()
    };
    RunReport::new(run, RunPhase::Clean(end.into()))
}

/// Everything but script, environment and arguments.
pub(crate) fn order_without_texts(
    state: &State,
    node: NodeId,
    run: &Run,
    spec: &JobSpec,
) -> LaunchOrder {
    let config = &state.config;
    let partition = config
        .partition(&spec.partition)
        .cloned()
        .unwrap_or_default();
    let node_index = run
        .allocation
        .iter()
        .position(|share| share.node == node)
        .unwrap_or(0);
    let share = run.allocation.get(node_index);
    let launch = &spec.launch;
    let (gpus, gpu_rails) = share.map_or((Vec::new(), Vec::new()), |share| {
        order_gpus(state, state.nodes.get(node), share)
    });
    let or = |text: &str, default: &str| {
        if text.is_empty() {
            default.to_owned()
        } else {
            text.to_owned()
        }
    };
    let default_output = if spec.array.is_some() {
        DEFAULT_ARRAY_OUTPUT
    } else {
        DEFAULT_OUTPUT
    };
    LaunchOrder {
        run: Some(run.id),
        job_name: spec.name.clone(),
        user: spec.user.clone(),
        account: spec.account.clone(),
        qos: spec.qos.clone(),
        partition: spec.partition.clone(),
        cluster: config.name.clone(),
        array: array_task(state, run, spec),
        nodes: run
            .allocation
            .iter()
            .map(|share| order_node(state, share))
            .collect(),
        node_index: u32::try_from(node_index).unwrap_or(0),
        switches: switches_above(state, node),
        ntasks: run.allocation.iter().map(|share| share.tasks).sum(),
        ntasks_asked: spec.request.ntasks > 1 || spec.request.ntasks_per_node.is_some(),
        // As Slurm has it, SLURM_CPUS_PER_TASK is there where it was asked for: with --cpus-per-gpu a task has others.
        cpus_per_task: spec.request.cpus_per_task.unwrap_or(0),
        cpus: share.map_or(0, |share| share.cpus),
        mem_bytes: share.map_or(0, |share| share.mem_bytes),
        mem_ask: partition.mem_ask(spec.request.mem, spec.request.has_gpus()),
        gpus,
        gpu_rails,
        visible_devices: launch
            .visible_devices
            .or(partition.visible_devices)
            .unwrap_or(config.visible_devices),
        imex_channel: imex_channel(state, run, node),
        allocation: !spec.has_script(),
        parts: parts_of(state, run, spec),
        login_env_secs: launch.login_env_secs,
        work_dir: launch.work_dir.clone(),
        container: launch.container.clone(),
        submit_dir: launch.submit_dir.clone(),
        submit_host: launch.submit_host.clone(),
        stdout: or(&launch.stdout, default_output),
        stderr: launch.stderr.clone(),
        stdin: or(&launch.stdin, DEFAULT_INPUT),
        open_mode: launch.open_mode,
        umask: launch.umask,
        rlimits: launch.rlimits.clone(),
        limit_secs: state.enforced_limit_secs(run),
        kill_grace_secs: config.kill_grace_secs,
        signal: launch.signal,
        checkpoint: checkpoint_of(state, spec).cloned(),
        last_mark: state
            .jobs
            .get(run.id.job)
            .and_then(|job| job.past.last_mark.as_deref())
            .map(mark_text),
        private_tmp: partition.private_tmp,
        prolog: partition.prolog,
        epilog: partition.epilog,
        scrub_gpus: partition.gpu_scrub,
        allow_root: config.allow_root_jobs,
        output: Some(config.output),
        restarts: state.jobs.get(run.id.job).map(gcore::ctl::Job::restarts),
        made_at: state.newest_fence(),
        ..LaunchOrder::default()
    }
}

/// The components of a job of unlike parts, all of which are placed.
fn parts_of(state: &State, run: &Run, spec: &JobSpec) -> Vec<OrderPart> {
    let Some(part) = spec.part else {
        return Vec::new();
    };
    let of = |id: JobId| {
        let job = state.jobs.get(id)?;
        let live = match id == run.id.job {
            true => run,
            false => state.runs.get(job.live_run()?)?,
        };
        let name = |share: &NodeShare| Some(state.nodes.get(share.node)?.name.clone());
        Some(OrderPart {
            job: id,
            nodes: live.allocation.iter().filter_map(name).collect(),
            ntasks: live.allocation.iter().map(|share| share.tasks).sum(),
            cpus_per_node: live.allocation.iter().map(|share| share.cpus).collect(),
            partition: job.spec.partition.clone(),
        })
    };
    part.jobs().filter_map(of).collect()
}

/// `3 epoch 40`, as the next attempt sees it.
fn mark_text(mark: &CheckpointMark) -> String {
    format!("{} {}", mark.number, mark.note)
        .trim_end()
        .to_owned()
}

fn array_task(state: &State, run: &Run, spec: &JobSpec) -> Option<ArrayTask> {
    let task = state.jobs.get(run.id.job)?.task?;
    let tasks = spec.array.as_ref()?;
    let (min, max) = tasks.bounds();
    Some(ArrayTask {
        array: task.array,
        index: task.index,
        count: tasks.len(),
        min,
        max,
        step: tasks.step(),
    })
}

fn switches_above(state: &State, node: NodeId) -> Vec<String> {
    let above = state
        .nodes
        .get(node)
        .map(|node| state.config.scheduler.topology.switches_above(&node.name));
    above
        .unwrap_or_default()
        .into_iter()
        .map(str::to_owned)
        .collect()
}

fn order_node(state: &State, share: &NodeShare) -> OrderNode {
    OrderNode {
        name: state
            .nodes
            .get(share.node)
            .map_or(String::new(), |node| node.name.clone()),
        cpus: share.cpus,
        tasks: share.tasks,
        gpus: u32::try_from(share.gpus.len()).unwrap_or(u32::MAX),
    }
}

/// The GPUs of a share and the rail of each, in the order of their rails where all are on one: GPU k of a rank is then on the same rail
/// as GPU k of the others.
fn order_gpus(state: &State, node: Option<&Node>, share: &NodeShare) -> (Vec<OrderGpu>, Vec<u32>) {
    let known = |slot: gmodel::GpuSlot| node.and_then(|node| node.gpus.get(usize::from(slot.0)));
    let rails = node.and_then(|node| state.config.scheduler.topology.rails(&node.name));
    let mut gpus: Vec<(Option<u32>, OrderGpu)> = Vec::with_capacity(share.gpus.len());
    for (grant, known) in share
        .gpus
        .0
        .iter()
        .filter_map(|grant| Some((grant, known(grant.slot)?)))
    {
        let info = &known.info;
        let rail = rails
            .filter(|_| info.slice.is_none())
            .and_then(|rails| rails.of(info.index));
        gpus.push((
            rail,
            OrderGpu {
                slot: grant.slot,
                uuid: info.uuid.clone(),
                gpu_type: info.gpu_type.clone(),
                part: grant.part.clone(),
            },
        ));
    }
    let on_rails = gpus.iter().all(|(rail, _)| rail.is_some());
    if on_rails {
        gpus.sort_by_key(|(rail, _)| *rail);
    }
    let rails = gpus
        .iter()
        .filter(|_| on_rails)
        .filter_map(|(rail, _)| *rail)
        .collect();
    (gpus.into_iter().map(|(_, gpu)| gpu).collect(), rails)
}

/// Script, environment and, where they are long, arguments of a launch, from its blobs in that order.
fn texts(
    launch: &gmodel::job::Launch,
    blobs: Vec<Option<Vec<u8>>>,
) -> Result<(String, Vec<String>, Option<Vec<String>>), String> {
    let mut blobs = blobs.into_iter();
    let mut text = |id: &BlobId, what: &str| match blobs.next().flatten() {
        Some(bytes) => {
            String::from_utf8(bytes).map_err(|_| format!("the stored {what} is not text"))
        }
        None if *id == BlobId::default() => Ok(String::new()),
        None => Err(format!(
            "the stored {what} of the job is gone from the controller's database"
        )),
    };
    let script = text(&launch.script, "script")?;
    let environment = text(&launch.environment, "environment")?;
    let (environment, arguments) = launch_texts::unpacked(&environment);
    Ok((script, environment, arguments))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::job::{LaunchContext, LimitName, SoftLimit};
    use gmodel::{JobId, Timestamp};

    #[test]
    fn the_next_attempt_sees_the_last_mark_as_its_number_and_note() {
        let mark = |note: &str| CheckpointMark {
            number: 3,
            at: Timestamp(0),
            note: note.into(),
        };
        assert_eq!(mark_text(&mark("epoch 40")), "3 epoch 40");
        assert_eq!(mark_text(&mark("")), "3");
    }

    #[test]
    fn limits_and_directories_of_the_submission_reach_the_node() {
        let rlimits = vec![SoftLimit {
            name: LimitName::Nofile,
            soft: Some(1024),
        }];
        let launch = LaunchContext {
            work_dir: "/home/me/run".into(),
            submit_dir: "/home/me".into(),
            rlimits: rlimits.clone(),
            ..LaunchContext::default()
        };
        let run = Run::placed(
            RunId::new(JobId(7), 1),
            Vec::new(),
            Vec::new(),
            None,
            Timestamp(0),
        );
        let made = order_without_texts(
            &State::default(),
            NodeId(1),
            &run,
            &JobSpec {
                launch: launch.into(),
                ..JobSpec::default()
            },
        );
        assert_eq!(
            (made.work_dir.as_str(), made.submit_dir.as_str()),
            ("/home/me/run", "/home/me")
        );
        assert_eq!(made.rlimits, rlimits);
        assert_eq!(
            made.cpus_per_task, 0,
            "nobody asked: SLURM_CPUS_PER_TASK stays unset"
        );
    }
}
