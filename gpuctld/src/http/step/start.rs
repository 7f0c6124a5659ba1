//! `POST /v1/jobs/{id}/steps` and `.../steps/N/end`: tasks of a step inside a running job, for `grun`.
//!
//! The core counts the step and lays out its ranks; each of its nodes gets an order over its own connection. Output of the
//! tasks goes from the nodes straight to grun, never through here.

use crate::attendance::detached_time;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::control::{confine, odd};
use crate::http::job::name::{job_name, targets};
use crate::http::peer::ForwarderAddress;
use crate::http::permission::Caller;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, Path, State as Shared};
use gcore::ctl::{Command, ProgramAsk, Reply, StartedStep, StepAsk, StepNode, StepPart, Target};
use gmodel::ExitCode;
use gmodel::container::ContainerSpec;
use gmodel::hostlist::Hostlist;
use gmodel::image_pull::PullProgress;
use gmodel::job_part::MOST_PARTS;
use gmodel::parallel::{MAX_MAPPING_BYTES, MpiType, ParallelSpec, process_mapping};
use gmodel::step_share::StepHold;
use gmodel::supervise::{ProgramOfRanks, StepHelper, StepOrder};
use gwire::api::{
    ChangeReply, ComponentStepRow, MAX_ARGUMENT_BYTES, MAX_ENVIRONMENT_BYTES, SCHEMA, StepCallback,
    StepEndRequest, StepHolder, StepNodeRow, StepProgram, StepReply, StepRequest, StepWaits,
};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

/// Longest secret of a step, bytes.
const MAX_KEY_BYTES: usize = 256;
/// Behind the first of a step.
const MAX_PROGRAMS: usize = 127;
/// Longest name of a GPU type that a step may ask for, bytes.
const MAX_TYPE_BYTES: usize = 64;

pub(crate) async fn start(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(id): Path<String>,
    from: Option<Extension<ForwarderAddress>>,
    body: Result<Json<StepRequest>, JsonRejection>,
) -> Result<Json<StepReply>, ApiError> {
    let Json(request) = body?;
    check_components(&request)?;
    let from = from.map(|Extension(ForwarderAddress(address))| address);
    check_address(&site, &request.callback.connect, from)?;
    let parts = parts_of(&id, &request)?;
    let targets: Vec<Target> = parts.iter().map(|part| part.target.clone()).collect();
    confine(&site, &caller, &targets).await?;
    let command = Command::StartStep { parts };
    let laid = match site.core.command(caller.actor.clone(), command).await? {
        Reply::Step { parts } => parts,
        Reply::StepWaits {
            text,
            pull,
            holders,
        } => return Ok(Json(waits(text, pull, holders))),
        other => return Err(odd(&other)),
    };
    if let Err(why) = send_orders(&site, &request, &laid).await {
        // What it was given is free again. Tasks that did start end with their grun.
        for (target, part) in targets.into_iter().zip(&laid) {
            let end = Command::EndStep {
                target,
                step: part.step,
                exit: ExitCode::exited(1),
                used: None,
            };
            let _ = site.core.command(caller.actor.clone(), end).await;
        }
        let step = laid.first().map_or(0, |part| part.step);
        let text = format!("step {step} of job {id} was not started: {why}");
        return Err(ApiError::unavailable(text));
    }
    Ok(Json(started(&request, laid)))
}

/// The part of the step in each job, the request's own first.
fn parts_of(id: &str, request: &StepRequest) -> Result<Vec<StepPart>, ApiError> {
    let others = request.components.iter();
    let others = others.map(|other| (other.job.as_str(), &other.request));
    let part = |(job, asked): (&str, &StepRequest)| {
        let [target @ (Target::Job(_) | Target::Task { .. })] = &targets(&[job_name(job)?])?[..]
        else {
            return Err(ApiError::invalid(format!(
                "{job} names several tasks; a step runs in one job"
            )));
        };
        Ok(StepPart {
            target: target.clone(),
            ask: StepAsk {
                connect: request.callback.connect.clone(),
                ..step_ask(asked)?
            },
        })
    };
    std::iter::once((id, request))
        .chain(others)
        .map(part)
        .collect()
}

fn started(request: &StepRequest, laid: Vec<StartedStep>) -> StepReply {
    let mut reply = StepReply {
        schema: SCHEMA,
        ..StepReply::default()
    };
    for (at, part) in laid.into_iter().enumerate() {
        match at.checked_sub(1) {
            None => reply.step = part.step,
            Some(other) => reply.components.push(ComponentStepRow {
                job: request.components[other].job.clone(),
                step: part.step,
                first_node: reply.nodes.len() as u32,
            }),
        }
        let rows = part.layout.into_iter().map(|node| StepNodeRow {
            name: node.name,
            ranks: node.ranks,
        });
        reply.nodes.extend(rows);
    }
    reply
}

/// Gives each node of the step its part.
///
/// # Errors
/// The first node that did not take it, and why.
async fn send_orders(
    site: &ApiContext,
    request: &StepRequest,
    laid: &[StartedStep],
) -> Result<(), String> {
    let state = site.core.view().await;
    let job = laid.first().and_then(|part| state.jobs.get(part.run.job));
    let detached = job.map_or(Duration::ZERO, |job| detached_time(&state, job));
    let layout: Vec<&StepNode> = laid.iter().flat_map(|part| &part.layout).collect();
    let mut parallel = parallel(request, state.config.mpi_default, &layout);
    drop(state);
    let first = laid.first().filter(|_| laid.len() > 1);
    parallel.known_as = first.map(|part| (part.run.job.0, part.step));
    let requests = request.components.iter().map(|other| &other.request);
    let mut position = 0;
    for (part, asked) in laid.iter().zip(std::iter::once(request).chain(requests)) {
        for node in &part.layout {
            let order = StepOrder {
                detached_secs: detached.as_secs() as u32,
                parallel: parallel.clone(),
                connect: request.callback.connect.clone(),
                key: request.callback.key.clone(),
                certificate: request.callback.certificate.clone(),
                terminal: request.terminal,
                helper: request.helper,
                ..order(asked, part, &layout, position)
            };
            position += 1;
            let sent = site.app.links.start_step(node.node, part.run, order).await;
            sent.map_err(|why| format!("{} did not take its part: {why}", node.name))?;
        }
    }
    Ok(())
}

/// What the ranks of all nodes are told alike.
fn parallel(request: &StepRequest, default: MpiType, layout: &[&StepNode]) -> ParallelSpec {
    let mpi = request.parallel.mpi.unwrap_or(default);
    let ranks = || layout.iter().map(|node| node.ranks.as_slice());
    ParallelSpec {
        rendezvous: request.parallel.rendezvous,
        address: String::new(),
        mpi: Some(mpi),
        process_mapping: match mpi {
            MpiType::None => String::new(),
            MpiType::Pmi2 => process_mapping(ranks(), MAX_MAPPING_BYTES),
            MpiType::Pmix => process_mapping(ranks(), usize::MAX),
        },
        known_as: None,
    }
}

fn step_ask(request: &StepRequest) -> Result<StepAsk, ApiError> {
    let program = request.argv[0].rsplit('/').next().unwrap_or_default();
    let name = if request.name.is_empty() {
        program
    } else {
        &request.name
    }
    .to_owned();
    Ok(StepAsk {
        name,
        nodes: request.nodes,
        ntasks: request.ntasks,
        ntasks_per_node: request.ntasks_per_node,
        nodelist: hosts("--nodelist", &request.nodelist)?,
        exclude: hosts("--exclude", &request.exclude)?,
        relative: request.relative,
        plane: request.plane,
        overcommit: request.limits.overcommit,
        limit_secs: request.limits.time_limit_secs,
        share: request.share.clone(),
        programs: request.programs.iter().map(program_ask).collect(),
        connect: request.callback.connect.clone(),
    })
}

fn program_ask(program: &StepProgram) -> ProgramAsk {
    ProgramAsk {
        nodes: program.nodes,
        ntasks: program.ntasks,
        ntasks_per_node: program.ntasks_per_node,
    }
}

fn waits(reason: String, pull: Option<PullProgress>, holders: Vec<StepHold>) -> StepReply {
    let holders = holders
        .into_iter()
        .map(|hold| StepHolder {
            step: hold.step,
            connect: hold.connect,
        })
        .collect();
    StepReply {
        schema: SCHEMA,
        waits: Some(StepWaits {
            reason,
            pull,
            holders,
        }),
        ..StepReply::default()
    }
}

/// A step is over, as its grun says.
pub(crate) async fn end(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path((id, step)): Path<(String, u32)>,
    body: Result<Json<StepEndRequest>, JsonRejection>,
) -> Result<Json<ChangeReply>, ApiError> {
    let Json(request) = body?;
    let [target @ (Target::Job(_) | Target::Task { .. })] = &targets(&[job_name(&id)?])?[..] else {
        return Err(ApiError::invalid(format!(
            "{id} names several tasks; a step is of one job"
        )));
    };
    confine(&site, &caller, std::slice::from_ref(target)).await?;
    site.core
        .command(
            caller.actor,
            Command::EndStep {
                target: target.clone(),
                step,
                exit: request.exit_code,
                used: request.used,
            },
        )
        .await?;
    Ok(Json(ChangeReply {
        schema: SCHEMA,
        notes: Vec::new(),
    }))
}

fn hosts(option: &str, text: &str) -> Result<Option<Hostlist>, ApiError> {
    let some = (!text.is_empty())
        .then(|| Hostlist::parse(text))
        .transpose();
    some.map_err(|error| ApiError::invalid(format!("{option}: {error}")))
}

fn check_container(spec: Option<&ContainerSpec>) -> Result<(), ApiError> {
    spec.map_or(Ok(()), ContainerSpec::check)
        .map_err(ApiError::invalid)
}

/// Each part of a step by itself; the size of the request bounds all of them.
fn check_components(request: &StepRequest) -> Result<(), ApiError> {
    check(request)?;
    if request.components.len() >= MOST_PARTS {
        return Err(ApiError::limit(format!(
            "a step in {} components; {MOST_PARTS} are the most",
            request.components.len() + 1
        )));
    }
    for other in &request.components {
        let asked = &other.request;
        if !asked.components.is_empty() || asked.callback != StepCallback::default() {
            return Err(ApiError::invalid(
                "the part of a step in another component has no components and no callback of its own",
            ));
        }
        check(asked)?;
    }
    Ok(())
}

fn check(request: &StepRequest) -> Result<(), ApiError> {
    check_programs(request)?;
    if request.helper == Some(StepHelper::Unknown) {
        return Err(ApiError::invalid(
            "this controller's release does not know what the step is to run",
        ));
    }
    let bytes = |texts: &[String]| texts.iter().map(|text| text.len() + 1).sum::<usize>();
    let arguments = argvs(request).map(|argv| bytes(argv)).sum();
    for (what, is, most) in [
        ("arguments", arguments, MAX_ARGUMENT_BYTES),
        (
            "environment",
            bytes(&request.environment),
            MAX_ENVIRONMENT_BYTES,
        ),
    ] {
        if is > most {
            return Err(ApiError::limit(format!(
                "the {what} of the step have {is} bytes; {most} are the most"
            )));
        }
    }
    if argvs(request)
        .flatten()
        .chain(&request.environment)
        .any(|text| text.contains('\0'))
    {
        return Err(ApiError::invalid(
            "an argument or variable has a NUL byte in it",
        ));
    }
    check_container(request.container.as_deref())?;
    check_way_back(request)?;
    let type_bytes = request
        .share
        .iter()
        .filter_map(|share| share.gpus.as_ref()?.gpu_type.as_ref())
        .map(String::len)
        .max();
    if type_bytes > Some(MAX_TYPE_BYTES) {
        return Err(ApiError::invalid(format!(
            "the GPU type of the step has more than {MAX_TYPE_BYTES} bytes"
        )));
    }
    Ok(())
}

/// How the nodes reach grun: by a connection with a secret and a certificate, or by streams of its own.
fn check_way_back(request: &StepRequest) -> Result<(), ApiError> {
    let is_stream = request.callback.connect.is_empty();
    if !is_stream && request.callback.connect.parse::<SocketAddr>().is_err() {
        return Err(ApiError::invalid(format!(
            "connect = {:?} is not ADDRESS:PORT, numeric",
            request.callback.connect
        )));
    }
    if request.terminal.is_some() && !is_stream {
        return Err(ApiError::invalid(
            "a terminal needs a stream: give no connect",
        ));
    }
    if !is_stream && request.callback.key.is_empty() || request.callback.key.len() > MAX_KEY_BYTES {
        return Err(ApiError::invalid(format!(
            "key has to have 1 to {MAX_KEY_BYTES} bytes"
        )));
    }
    if !is_stream && !gwire::step_tls::is_pin(&request.callback.certificate) {
        return Err(ApiError::invalid(
            "certificate has to be a SHA-256 in hexadecimal",
        ));
    }
    Ok(())
}

/// The command of each program.
fn argvs(request: &StepRequest) -> impl Iterator<Item = &Vec<String>> {
    let more = request.programs.iter().map(|program| &program.argv);
    std::iter::once(&request.argv).chain(more)
}

fn check_programs(request: &StepRequest) -> Result<(), ApiError> {
    if request.programs.len() > MAX_PROGRAMS {
        return Err(ApiError::limit(format!(
            "{} programs in one step; {MAX_PROGRAMS} are the most. --multi-prog reads more from a file",
            request.programs.len() + 1
        )));
    }
    if argvs(request).any(|argv| argv.first().is_none_or(String::is_empty)) {
        return Err(ApiError::invalid("there is no command to run"));
    }
    match request.share.is_some() && !request.programs.is_empty() {
        true => Err(ApiError::invalid(
            "a step of several programs shares its job: it has no part of its own",
        )),
        false => Ok(()),
    }
}

fn check_address(site: &ApiContext, connect: &str, from: Option<IpAddr>) -> Result<(), ApiError> {
    let is_node = |address| {
        site.app
            .links
            .addresses()
            .values()
            .any(|node| *node == address)
    };
    check_target(connect, from, is_node)
}

/// Checks where nodes send a step's output: to the machine of grun, as the controller sees it, or to nodes. So no user points nodes at
/// other machines.
fn check_target(
    connect: &str,
    from: Option<IpAddr>,
    is_node: impl Fn(IpAddr) -> bool,
) -> Result<(), ApiError> {
    let Ok(asked) = connect.parse::<SocketAddr>() else {
        return Ok(());
    };
    let (asked, seen) = (
        asked.ip().to_canonical(),
        from.map(|from| from.to_canonical()),
    );
    // Without a machine in between grun is on the controller's own: an address of it can be bound.
    let is_own = || from.is_none() && UdpSocket::bind((asked, 0)).is_ok();
    if asked.is_loopback()
        || seen == Some(asked)
        || !asked.is_unspecified() && is_own()
        || is_node(asked)
    {
        return Ok(());
    }
    let here = seen.map_or(String::new(), |seen| format!(" ({seen})"));
    Err(ApiError::denied(format!(
        "connect = {connect:?}: a step's output goes to the machine that grun is on{here} or to a node of the cluster, and this is neither"
    )))
}

/// What the node at this position among the step's does in one part of it.
fn order(
    request: &StepRequest,
    part: &StartedStep,
    layout: &[&StepNode],
    position: usize,
) -> StepOrder {
    let programs = part.first_ranks.iter().zip(&request.programs);
    let programs = programs.map(|(first_rank, program)| ProgramOfRanks {
        first_rank: *first_rank,
        argv: program.argv.clone(),
    });
    let tasks = |node: &&StepNode| node.ranks.len() as u32;
    let own = layout[position].own.as_ref();
    let narrows_gpus = request
        .share
        .as_ref()
        .is_some_and(|share| share.gpus.is_some());
    StepOrder {
        step: part.step,
        argv: request.argv.clone(),
        programs: programs.collect(),
        environment: request.environment.clone(),
        work_dir: request.work_dir.clone(),
        container: request.container.clone(),
        ranks: layout[position].ranks.clone(),
        ntasks: layout.iter().map(tasks).sum(),
        nodes: layout.iter().map(|node| node.name.clone()).collect(),
        node_index: position as u32,
        node_tasks: layout.iter().map(tasks).collect(),
        rlimits: request.limits.rlimits.clone(),
        cpus_per_task: request
            .share
            .as_ref()
            .map_or(0, |share| share.cpus_per_task),
        cpus: own.map_or(Vec::new(), |own| own.cpus.clone()),
        gpus: own.filter(|_| narrows_gpus).map(|own| own.gpus.clone()),
        mem_bytes: own.map_or(0, |own| own.mem_bytes),
        ..StepOrder::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steps_output_goes_to_gruns_machine_or_to_a_node_only() {
        let (login, node) = ("10.0.0.5", "10.0.0.9");
        let allowed = |connect: &str, from: Option<&str>| {
            let from = from.map(|from| from.parse().unwrap());
            let is_node = |address: IpAddr| address == node.parse::<IpAddr>().unwrap();
            check_target(connect, from, is_node).is_ok()
        };
        assert!(allowed("10.0.0.5:4000", Some(login)));
        assert!(
            allowed("[::ffff:10.0.0.5]:4000", Some(login)),
            "the same address, written for IPv6"
        );
        assert!(allowed("10.0.0.9:4000", Some(login)), "a node");
        assert!(allowed("127.0.0.1:4000", Some(login)));
        assert!(
            allowed("no address", Some(login)),
            "gstepd refuses what is no address"
        );
        assert!(!allowed("10.0.0.6:4000", Some(login)), "another machine");
        assert!(!allowed("0.0.0.0:4000", Some(login)));
        assert!(
            !allowed("0.0.0.0:4000", None),
            "unspecified, though it can be bound"
        );
        assert!(
            !allowed("192.0.2.1:4000", None),
            "not an address of the controller's machine"
        );
        let text = check_target("10.0.0.6:4000", login.parse().ok(), |_| false)
            .unwrap_err()
            .text;
        assert!(
            text.contains("the machine that grun is on (10.0.0.5)"),
            "{text}"
        );
    }
}
