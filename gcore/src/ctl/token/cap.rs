//! The caps of a token: jobs in the queue, and GPU-time that its jobs used or may still use by their limits.
//!
//! Owns the sum and each decision by it. A job counts with its whole limit from its submission on, and with what it used once a run of it
//! is over. So the cap holds whenever jobs start, and nothing has to be decided while they run.

use crate::ctl::apply::used_by;
use crate::ctl::command::{Actor, Refusal};
use crate::ctl::job::partition_nodes::members;
use crate::ctl::owner::TOKEN;
use crate::ctl::state::{Array, EntryId, Job, Outcome, Run, State};
use gmodel::config::Partition;
use gmodel::gpu_request::GpuAmount;
use gmodel::mig::most_milli;
use gmodel::node::HoldMark;
use gmodel::user_token::GPU_SECOND;
use gmodel::{JobSpec, ReasonCode, RefusalKind, Timestamp, TokenId, UserToken};
use gpolicy::feasibility::demand::Demand;
use std::sync::Arc;

/// Slurm has no such limit; the name is this project's.
const JOBS_LIMIT: &str = "TokenJobsLimit";

/// What stands against the caps of a token. GPU-time in thousandths of a GPU times milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUse {
    /// In the queue and running; array tasks one by one.
    pub jobs: u64,
    /// Charged by runs that are over.
    pub gpu_used: u128,
    /// What jobs in the queue and running may still use by their limits.
    pub gpu_promised: u128,
}

/// What stands against the caps of a token now.
pub fn token_use(state: &State, id: TokenId, now: Timestamp) -> TokenUse {
    let charged = state
        .tokens
        .users
        .get(&id)
        .map_or(0, |token| token.gpu_used);
    let mut sum = TokenUse {
        gpu_used: u128::from(charged),
        ..TokenUse::default()
    };
    for entry in state.index.of_token.get(&id).into_iter().flatten() {
        match *entry {
            EntryId::Job(id) => {
                let job = state.jobs.get(id);
                sum.jobs += 1;
                sum.gpu_promised += job.map_or(0, |job| of_job(state, job, now));
            }
            EntryId::Array(id) => {
                let array = state.arrays.get(id);
                let tasks = array.map_or(0, |array| array.pending.len());
                let each = |array: &Array| asked(state, &array.spec, array.limit_secs);
                sum.jobs += tasks;
                sum.gpu_promised += u128::from(tasks) * array.map_or(0, each);
            }
        }
    }
    sum
}

/// The token, if it may be used.
///
/// # Errors
/// It ended while the request was under way.
fn live(state: &State, id: TokenId, now: Timestamp) -> Result<&UserToken, Refusal> {
    let token = state
        .tokens
        .users
        .get(&id)
        .filter(|token| token.is_live(now));
    token.map(|token| &**token).ok_or_else(|| {
        Refusal::denied(format!(
            "token {id} has expired or was revoked. Make another: gq token new"
        ))
    })
}

/// Fills in the one account and the one partition of a token for a job that names none.
pub(crate) fn fill_in(state: &State, spec: &mut JobSpec) {
    let Some(token) = spec.token.and_then(|id| state.tokens.users.get(&id)) else {
        return;
    };
    let only = |names: &std::collections::BTreeSet<String>| {
        names.first().filter(|_| names.len() == 1).cloned()
    };
    if spec.account.is_empty() {
        spec.account = only(&token.accounts).unwrap_or_default();
    }
    if spec.partition.is_empty() {
        spec.partition = only(&token.partitions).unwrap_or_default();
    }
}

/// Refuses a job outside of the lists of the actor's token.
pub(crate) fn check_reach(
    state: &State,
    actor: &Actor,
    spec: &JobSpec,
    shown: &str,
) -> Result<(), Refusal> {
    let token = actor.token.and_then(|id| state.tokens.users.get(&id));
    let Some(token) = token.filter(|token| !token.reaches(spec)) else {
        return Ok(());
    };
    Err(Refusal::denied(format!(
        "token {} is for {}; {shown} is of account {} in partition {}. Use another token.",
        token.id,
        token.confines().unwrap_or_default(),
        spec.account,
        spec.partition
    )))
}

/// Refuses a submission that a token does not cover: one request, or those of all components.
pub(crate) fn check_submission<'a>(
    state: &State,
    actor: &Actor,
    asked_for: impl Iterator<Item = (&'a JobSpec, Option<u32>)> + Clone,
    now: Timestamp,
) -> Result<(), Refusal> {
    let Some(id) = actor.token else {
        return Ok(());
    };
    let token = live(state, id, now)?;
    let (mut jobs, mut gpu) = (0, 0);
    for (spec, limit_secs) in asked_for {
        check_reach(state, actor, spec, "this job")?;
        if spec.allocation {
            return Err(Refusal::denied(
                "with a token there are no allocations: an allocation lives by its client's connection. Submit a script that waits, or \
                 log in and use grun",
            ));
        }
        check_limit(state, token, spec, limit_secs)?;
        let tasks = spec.array.as_ref().map_or(1, |array| array.len());
        jobs += u64::from(tasks);
        gpu += u128::from(tasks) * asked(state, spec, limit_secs);
    }
    check_room(state, token, jobs, gpu, now)
}

/// Without a limit nothing bounds what a job may use.
fn check_limit(
    state: &State,
    token: &UserToken,
    spec: &JobSpec,
    limit_secs: Option<u32>,
) -> Result<(), Refusal> {
    if token.gpu_secs.is_none() || limit_secs.is_some() || milli_of(state, spec) == 0 {
        return Ok(());
    }
    Err(over_hours(format!(
        "token {} has a cap of GPU-hours, and a job without a time limit fits no cap. Give it a --time.",
        token.id
    )))
}

/// Refuses the return of jobs that are over to the queue beyond the caps of their token.
pub(crate) fn check_return<'a>(
    state: &State,
    returning: impl Iterator<Item = (&'a JobSpec, Option<u32>, u64)>,
    now: Timestamp,
) -> Result<(), Refusal> {
    let (mut jobs, mut gpu, mut of) = (0, 0, None);
    for (spec, limit_secs, count) in returning {
        let Some(token) = spec.token.and_then(|id| state.tokens.users.get(&id)) else {
            continue;
        };
        of = Some(token);
        jobs += count;
        gpu += u128::from(count) * asked(state, spec, limit_secs);
    }
    of.map_or(Ok(()), |token| check_room(state, token, jobs, gpu, now))
}

/// A job as a change would leave it, or so many untouched tasks of an array.
pub(crate) struct ChangedRecord {
    pub id: EntryId,
    pub tasks: u64,
    pub spec: JobSpec,
    pub limit_secs: Option<u32>,
}

/// Refuses a change by which jobs of a token may use more than its cap has left.
pub(crate) fn check_change(
    state: &State,
    changed: impl Iterator<Item = ChangedRecord>,
    now: Timestamp,
) -> Result<(), Refusal> {
    let mut of = None;
    let (mut before, mut after) = (0u128, 0u128);
    for one in changed {
        let ChangedRecord {
            id,
            tasks,
            spec,
            limit_secs,
        } = one;
        let Some(token) = spec.token.and_then(|id| state.tokens.users.get(&id)) else {
            return Ok(());
        };
        check_limit(state, token, &spec, limit_secs)?;
        of = Some(token);
        if let EntryId::Job(id) = id
            && let Some(job) = state.jobs.get(id)
        {
            if job.state.is_final() {
                continue;
            }
            before += of_job(state, job, now);
            let job = Job {
                spec: Arc::new(spec),
                limit_secs,
                ..job.clone()
            };
            let run = job.live_run().and_then(|id| state.run(id));
            after += match run.filter(|run| run.outcome.is_none()) {
                Some(run) => {
                    let limit_secs = limit_secs.map(|secs| secs + over_secs(state, &job.spec));
                    of_run(run, limit_secs, now)
                }
                None => of_job(state, &job, now),
            };
        } else if let Some(array) = state.arrays.get(id.id()) {
            let tasks = u128::from(tasks);
            before += tasks * asked(state, &array.spec, array.limit_secs);
            after += tasks * asked(state, &spec, limit_secs);
        }
    }
    match of.filter(|_| after > before) {
        Some(token) => check_room(state, token, 0, after - before, now),
        None => Ok(()),
    }
}

/// The hold of a job that goes back to the queue and fits the cap of its token no more: what the run that ends now used is charged, and the
/// next may use as much as its limit says.
pub(crate) fn hold_on_return(
    state: &State,
    run: &Run,
    outcome: &Outcome,
    now: Timestamp,
) -> Option<HoldMark> {
    let job = state.job(run.id.job)?;
    outcome.requeue?;
    let token = state.tokens.users.get(&job.spec.token?)?;
    let cap = cap_of(token)?;
    let held = token_use(state, token.id, now);
    let others = held.gpu_promised.saturating_sub(of_job(state, job, now));
    let used = held.gpu_used + u128::from(used_by(run, outcome));
    let again = asked(state, &job.spec, job.limit_secs);
    if again == 0 || used + others + again <= cap {
        return None;
    }
    let mut text = sentence(token, used, others, again);
    if let Some(other) = &outcome.hold {
        text = format!("{text}; {}", other.reason);
    }
    Some(HoldMark {
        owner: TOKEN.into(),
        reason: text,
        since: now,
    })
}

/// Refuses the release of a job that its token's cap holds as long as it does not fit.
pub(crate) fn check_release(state: &State, job: &Job, now: Timestamp) -> Result<(), Refusal> {
    let token = job.spec.token.and_then(|id| state.tokens.users.get(&id));
    let Some(token) = token else {
        return Ok(());
    };
    let again = asked(state, &job.spec, job.limit_secs);
    check_room(state, token, 0, again, now)
}

/// Is it out of the queue because its token's cap has no room for it?
fn is_capped(holds: &[HoldMark]) -> bool {
    holds.iter().any(|mark| mark.owner == TOKEN)
}

fn check_room(
    state: &State,
    token: &UserToken,
    jobs: u64,
    gpu: u128,
    now: Timestamp,
) -> Result<(), Refusal> {
    let held = token_use(state, token.id, now);
    if jobs > 0 && held.jobs + jobs > u64::from(token.jobs) {
        let text = format!(
            "token {} may have {} jobs in the queue and running; there are {}, and this would be {jobs} more. Wait until some have ended, \
             or use another token.",
            token.id, token.jobs, held.jobs
        );
        return Err(Refusal::limit(text)
            .about(RefusalKind::PolicyLimit)
            .naming(JOBS_LIMIT));
    }
    match cap_of(token) {
        Some(cap) if gpu > 0 && held.gpu_used + held.gpu_promised + gpu > cap => {
            let said = sentence(token, held.gpu_used, held.gpu_promised, gpu);
            Err(over_hours(format!(
                "{said}. Give it a shorter --time, wait until jobs have ended before their limits, or use another token."
            )))
        }
        _ => Ok(()),
    }
}

fn over_hours(text: String) -> Refusal {
    Refusal::limit(text)
        .about(RefusalKind::PolicyLimit)
        .naming(ReasonCode::TokenGpuHoursLimit.to_string())
}

fn cap_of(token: &UserToken) -> Option<u128> {
    Some(u128::from(token.gpu_secs?) * u128::from(GPU_SECOND))
}

/// `token 1f00a2b3 has 10 GPU-hours: 3 are used, 4 promised to jobs by their limits, and this would be 8 more`.
fn sentence(token: &UserToken, used: u128, promised: u128, more: u128) -> String {
    format!(
        "token {} has {} GPU-hours: {} are used, {} promised to jobs by their limits, and this would be {} more",
        token.id,
        hours(cap_of(token).unwrap_or_default()),
        hours(used),
        hours(promised),
        hours(more)
    )
}

/// GPU-hours to the hundredth, rounded up: what is told of a sum never hides a part of it.
fn hours(gpu: u128) -> String {
    let hundredths = gpu.div_ceil(u128::from(GPU_SECOND) * 36);
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What a job that is not over may still use.
fn of_job(state: &State, job: &Job, now: Timestamp) -> u128 {
    let run = job.live_run().and_then(|id| state.run(id));
    match run.map(|run| (run, run.outcome.as_ref())) {
        Some((run, None)) => of_run(run, state.enforced_limit_secs(run), now),
        // Charged already: it goes back to the queue, or is over.
        Some((_, Some(outcome))) => match (outcome.requeue, &outcome.hold) {
            (Some(_), Some(mark)) if mark.owner == TOKEN => 0,
            (Some(_), _) => asked(state, &job.spec, job.limit_secs),
            (None, _) => 0,
        },
        None if is_capped(&job.holds) => 0,
        None => asked(state, &job.spec, job.limit_secs),
    }
}

/// What a run may use from its start to its end. One that is past a limit that was lowered counts with the time it took.
fn of_run(run: &Run, limit_secs: Option<u32>, now: Timestamp) -> u128 {
    let milli: u64 = run.allocation.iter().map(|share| share.gpus.milli()).sum();
    let took = run.started.map_or(0, |at| now.since_millis(at));
    let took = u64::try_from(took).unwrap_or(0);
    let took = took.saturating_sub(run.suspended_by(now));
    let limit = u64::from(limit_secs.unwrap_or(u32::MAX)) * 1000;
    u128::from(milli) * u128::from(limit.max(took))
}

/// What one task of a request may use at most.
fn asked(state: &State, spec: &JobSpec, limit_secs: Option<u32>) -> u128 {
    let milli = milli_of(state, spec);
    let secs = limit_secs.map_or(u64::from(u32::MAX), |secs| {
        u64::from(secs) + u64::from(over_secs(state, spec))
    });
    u128::from(milli) * u128::from(secs) * 1000
}

/// The longest over-time of its partitions: its runs may go on for so long behind their limit.
fn over_secs(state: &State, spec: &JobSpec) -> u32 {
    let partitions = state.config.partitions_of(&spec.partition);
    partitions
        .map(|partition| partition.over_time_secs)
        .max()
        .unwrap_or(0)
}

/// Thousandths of GPUs that a run of this request can hold at most, whichever of its alternatives is taken.
fn milli_of(state: &State, spec: &JobSpec) -> u64 {
    let request = &spec.request;
    let wants = request.gpus.as_ref().is_some_and(|gpus| !gpus.is_none());
    if !wants && !request.exclusive {
        return 0;
    }
    let of_whole_node = if request.exclusive {
        let nodes = state.config.partitions_of(&spec.partition);
        let nodes = nodes.flat_map(|partition| members(state, partition));
        nodes.map(|node| node.gpus.len() as u64 * 1000).max()
    } else {
        None
    };
    let of_node = |amount: &GpuAmount| match amount {
        GpuAmount::Whole(count) => u64::from(*count) * 1000,
        GpuAmount::Mig { profile, count } => u64::from(*count) * u64::from(most_milli(profile)),
        GpuAmount::Share { milli } => u64::from(*milli),
    };
    let ways = Demand::all(request, &Partition::default());
    let of_way = |way: &Demand| -> u64 {
        let nodes = way.nodes.iter();
        nodes
            .map(|node| of_node(&node.gpus.amount).max(of_whole_node.unwrap_or(0)))
            .sum()
    };
    ways.iter().map(of_way).max().unwrap_or(0)
}

/// Violation: records of a token that its index lacks, or has though they are over.
pub(crate) fn check(state: &State, found: &mut Vec<String>) {
    let mut records =
        std::collections::BTreeMap::<TokenId, std::collections::BTreeSet<EntryId>>::new();
    let jobs = state.jobs.values().filter(|job| !job.state.is_final());
    let jobs = jobs.filter_map(|job| Some((job.spec.token?, EntryId::Job(job.id))));
    let is_there = |array: &&Array| !array.pending.is_empty();
    let arrays = state.arrays.values().filter(is_there);
    let arrays = arrays.filter_map(|array| Some((array.spec.token?, EntryId::Array(array.id))));
    for (token, id) in jobs.chain(arrays) {
        records.entry(token).or_default().insert(id);
    }
    if records != state.index.of_token {
        found.push(format!(
            "jobs of tokens are {records:?} and their index has {:?}",
            state.index.of_token
        ));
    }
}
