//! Steps: tasks started inside an allocation by `grun`. The controller counts them and lays out their ranks;
//! the order itself travels outside the desired state, for a step belongs to its grun.

use crate::ctl::command::{
    Actor, Refusal, Reply, StartedStep, StepAsk, StepNode, StepPart, Target,
};
use crate::ctl::event::Event;
use crate::ctl::job::targets::{TargetRecord, find, shown};
use crate::ctl::node::bounds::bounded_usage;
use crate::ctl::run::image_pull::slowest_pull;
use crate::ctl::run::step_layout::{deal, enough_cpus, layout};
use crate::ctl::run::{step_programs, step_share};
use crate::ctl::state::{Member, Run, State};
use crate::ctl::tx::Tx;
use gmodel::run::{NodeShare, Usage};
use gmodel::step_share::{StepHold, StepHoldOnNode};
use gmodel::{ExitCode, JobId, RunId};
use std::collections::BTreeSet;

/// The run whose allocation a step may start in.
fn startable_run<'a>(state: &'a State, actor: &Actor, target: &Target) -> Result<&'a Run, Refusal> {
    let not_running = || {
        Refusal::conflict(format!(
            "job {} is not running: steps need its allocation.",
            shown(target)
        ))
    };
    let id = job_of(state, actor, target)?.ok_or_else(not_running)?;
    let live = state.job(id).and_then(|job| job.live_run());
    let run = live.and_then(|run| state.run(run));
    run.filter(|run| run.stop.is_none() && run.outcome.is_none())
        .ok_or_else(not_running)
}

/// What a part of a step gets, before it is recorded.
struct PlannedPart {
    run: RunId,
    /// Places in the run with the tasks there.
    tasks: Vec<(usize, u32)>,
    /// Nodes with the part's own ranks, from 0.
    layout: Vec<StepNode>,
    first_ranks: Vec<u32>,
    hold: Option<StepHold>,
    limit_secs: Option<u32>,
}

/// Starts all parts of a step or none.
pub(crate) fn start(tx: &mut Tx, actor: &Actor, parts: Vec<StepPart>) -> Result<Reply, Refusal> {
    one_job(tx.state, actor, &parts)?;
    let mut planned = Vec::with_capacity(parts.len());
    for StepPart { target, ask } in &parts {
        match plan(tx.state, actor, target, ask)? {
            Ok(part) => planned.push(part),
            Err(waits) => return Ok(waits),
        }
    }
    let mut first_rank = 0;
    let mut started = Vec::with_capacity(parts.len());
    for (part, StepPart { ask, .. }) in planned.into_iter().zip(parts) {
        let tasks: u32 = part.tasks.iter().map(|(_, count)| count).sum();
        started.push(record(tx, part, ask.name, first_rank));
        first_rank += tasks;
    }
    Ok(Reply::Step { parts: started })
}

/// Several parts are in different components of one job.
fn one_job(state: &State, actor: &Actor, parts: &[StepPart]) -> Result<(), Refusal> {
    if parts.len() < 2 {
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    let mut leaders = BTreeSet::new();
    for part in parts {
        let job = job_of(state, actor, &part.target)?.and_then(|id| state.job(id));
        leaders.insert(job.and_then(|job| job.spec.part).map(|part| part.leader));
        if !seen.insert(job.map(|job| job.id)) {
            return Err(Refusal::invalid(format!(
                "a step is once in each component, and {} is named twice.",
                shown(&part.target)
            )));
        }
    }
    match leaders.len() == 1 && !leaders.contains(&None) {
        true => Ok(()),
        false => Err(Refusal::invalid(
            "a step over several jobs needs components of one job of unlike parts.",
        )),
    }
}

/// The part of a step in one job; or why it waits.
fn plan(
    state: &State,
    actor: &Actor,
    target: &Target,
    ask: &StepAsk,
) -> Result<Result<PlannedPart, Reply>, Refusal> {
    let run = startable_run(state, actor, target)?;
    // A script may start a step before its nodes have reported: they hold the step until they have started.
    if run.go.is_none() {
        return Ok(Err(nodes_prepare(state, run)));
    }
    let held = held_tasks(state, run);
    let programs = step_programs::of(&held, ask)?;
    let shared = match &programs {
        None => layout(&held, ask)?,
        Some(laid) => laid.tasks(),
    };
    enough_cpus(&run.allocation, &shared, ask)?;
    let (tasks, parts) = match &ask.share {
        None => (shared, Vec::new()),
        Some(share) => match step_share::find(state, run, &held, ask, share, &shared)? {
            step_share::SharePlacement::Room { tasks, parts } => (tasks, parts),
            step_share::SharePlacement::Waits(text) => {
                return Ok(Err(waits_for_steps(run, text)));
            }
        },
    };
    // A grun outside of the job may be quicker than the nodes, and its stream needs their supervisors.
    let mut members = tasks.iter().map(|(place, _)| &run.members[*place]);
    if ask.connect.is_empty() && !members.all(Member::is_ready) {
        return Ok(Err(nodes_prepare(state, run)));
    }
    let counts: Vec<u32> = tasks.iter().map(|(_, count)| *count).collect();
    let (ranks, first_ranks) = match programs {
        None => (deal(&counts, ask.plane), Vec::new()),
        Some(laid) => (laid.places.into_values().collect(), laid.first_ranks),
    };
    let places = tasks.iter().map(|(place, _)| *place).zip(ranks);
    Ok(Ok(PlannedPart {
        run: run.id,
        layout: step_nodes(run, &held, places.collect(), &parts),
        first_ranks,
        hold: hold_of(run.steps, ask, parts),
        limit_secs: ask.limit_secs,
        tasks,
    }))
}

/// Counts the part in its run; its ranks begin with `first_rank`.
fn record(tx: &mut Tx, part: PlannedPart, name: String, first_rank: u32) -> StartedStep {
    let step = tx.run(part.run).map_or(0, |run| run.steps);
    tx.emit(Event::StepStarted {
        run: part.run,
        step,
        name: name.chars().take(255).collect(),
        tasks: part.tasks.iter().map(|(_, count)| count).sum(),
        nodes: part.tasks.len() as u32,
        places: places_unless_first(&part.tasks),
        hold: part.hold,
        limit_secs: part.limit_secs,
        at: tx.now,
    });
    let mut started = StartedStep {
        run: part.run,
        step,
        layout: part.layout,
        first_ranks: part.first_ranks,
    };
    let ranks = started.layout.iter_mut().flat_map(|node| &mut node.ranks);
    for rank in ranks.chain(&mut started.first_ranks) {
        *rank += first_rank;
    }
    started
}

/// Places in the run with their ranks, and what the step has for itself there, if anything.
fn step_nodes(
    run: &Run,
    held: &[(String, u32)],
    places: Vec<(usize, Vec<u32>)>,
    parts: &[StepHoldOnNode],
) -> Vec<StepNode> {
    let node = |(at, (place, ranks)): (usize, (usize, Vec<u32>))| StepNode {
        node: run.allocation[place].node,
        name: held[place].0.clone(),
        ranks,
        own: parts.get(at).cloned(),
    };
    places.into_iter().enumerate().map(node).collect()
}

/// What the step keeps others from.
fn hold_of(step: u32, ask: &StepAsk, parts: Vec<StepHoldOnNode>) -> Option<StepHold> {
    let is_alone = ask.share.as_ref().is_some_and(|share| !share.overlap);
    let holds = is_alone && parts.iter().any(step_share::holds);
    holds.then_some(StepHold {
        step,
        connect: ask.connect.clone(),
        nodes: parts,
    })
}

fn waits_for_steps(run: &Run, text: String) -> Reply {
    Reply::StepWaits {
        text,
        pull: None,
        holders: run.step_holds.clone(),
    }
}

fn nodes_prepare(state: &State, run: &Run) -> Reply {
    let job = state.job(run.id.job);
    let asked = job.and_then(|job| job.spec.launch.around.container.as_deref());
    let pulled = slowest_pull(state, run.id).zip(asked);
    let (text, pull) = match pulled.and_then(|(of, asked)| Some((of.1, asked, state.node(of.0)?))) {
        Some((pull, asked, node)) => {
            let words = pull.progress.of_image(&asked.image);
            (format!("{words} on {}", node.name), Some(pull.progress))
        }
        None => ("the nodes of the job are being prepared".to_owned(), None),
    };
    Reply::StepWaits {
        text,
        pull,
        holders: Vec::new(),
    }
}

/// Places of the step's nodes in the run; empty where these are the run's first.
fn places_unless_first(tasks: &[(usize, u32)]) -> Vec<u32> {
    let places = tasks.iter().map(|(place, _)| *place as u32);
    match places.clone().eq(0..tasks.len() as u32) {
        true => Vec::new(),
        false => places.collect(),
    }
}

/// The nodes of a run by name, with its tasks on each.
fn held_tasks(state: &State, run: &Run) -> Vec<(String, u32)> {
    let name_of = |share: &NodeShare| {
        state
            .node(share.node)
            .map_or(String::new(), |node| node.name.clone())
    };
    run.allocation
        .iter()
        .map(|share| (name_of(share), share.tasks))
        .collect()
}

pub(crate) fn end(
    tx: &mut Tx,
    actor: &Actor,
    target: Target,
    step: u32,
    exit: ExitCode,
    used: Option<Usage>,
) -> Result<Reply, Refusal> {
    let id = job_of(tx.state, actor, &target)?
        .ok_or_else(|| Refusal::conflict(format!("job {} is not running.", shown(&target))))?;
    let run = tx
        .job(id)
        .and_then(|job| job.live_run())
        .and_then(|run| tx.run(run));
    let Some(run) = run.filter(|run| step < run.steps) else {
        return Err(Refusal::conflict(format!(
            "job {} has no step {step}.",
            shown(&target)
        )));
    };
    let run = run.id;
    let used = used.map(bounded_usage);
    tx.emit(Event::StepEnded {
        run,
        step,
        exit,
        used,
        at: tx.now,
    });
    Ok(Reply::Done)
}

/// The job named by the target. An array's first task has the array's id, and arrays run no steps.
fn job_of(state: &State, actor: &Actor, target: &Target) -> Result<Option<JobId>, Refusal> {
    Ok(match find(state, actor, target)? {
        TargetRecord::Job(id) | TargetRecord::Array(id) => Some(id),
        TargetRecord::Untouched { .. } | TargetRecord::Over => None,
    })
}
