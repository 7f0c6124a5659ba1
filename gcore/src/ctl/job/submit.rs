//! A submission: checked against partition and nodes, completed with defaults, recorded.
//!
//! A request that can never run is refused with what would work; a request that must wait is queued.

use crate::ctl::apply::{memos, spread};
use crate::ctl::command::{Actor, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::job::completion::complete_in;
use crate::ctl::job::dependency::readiness::{kills, never};
use crate::ctl::job::dependency::resolve::DependentJob;
use crate::ctl::job::dependency::resolve::resolve;
use crate::ctl::job::dependency::settle::cancel_hopeless;
use crate::ctl::job::feasibility::as_asked;
use crate::ctl::job::partition::no_default;
use crate::ctl::job::request_bounds::{check_numbers, check_texts, check_user};
use crate::ctl::job::{partition_list, parts, parts_fit, request_size};
use crate::ctl::state::{ClientKey, EntryId, OpenDependency, State};
use crate::ctl::token::cap;
use crate::ctl::tx::Tx;
use gmodel::partition_list::names;
use gmodel::{JobId, JobSpec, Timestamp, UserRef};

pub(crate) fn handle(
    tx: &mut Tx,
    actor: &Actor,
    spec: JobSpec,
    client_key: Option<String>,
) -> Result<Reply, Refusal> {
    if let Some(reply) = reply_of_key(tx.state, actor, client_key.as_deref())? {
        return Ok(reply);
    }
    let mut notes = Vec::new();
    let (spec, limit_secs) = complete(tx.state, actor, spec, &mut notes, tx.now)?;
    let asked = as_asked(&spec.request);
    // With several partitions the widest decided: what is enough in each is not known.
    let one = |_: &&str| !(asked.nodes_any && spec.waits_in_several());
    for partition in names(&spec.partition).filter(one) {
        memos::note_fit(tx.state, partition, &asked, spec.request.nodes_min);
    }
    let id = JobId(tx.state.next_job);
    let waits = open_dependency(tx, id, &spec, &mut notes)?;
    let entry = if spec.array.is_some() {
        EntryId::Array(id)
    } else {
        EntryId::Job(id)
    };
    let spec = memos::share_spec(tx.state, spec);
    let noted = spec.clone();
    tx.emit(Event::JobSubmitted {
        id,
        spec,
        limit_secs,
        at: tx.now,
        client_key,
    });
    memos::note_submission(tx.state, &noted, tx.now);
    record_waits(tx, entry, waits);
    Ok(Reply::Submitted {
        id,
        notes,
        repeated: false,
    })
}

/// A job of unlike parts: one job for each component, all in one commit.
pub(crate) fn handle_parts(
    tx: &mut Tx,
    actor: &Actor,
    specs: Vec<JobSpec>,
    client_key: Option<String>,
) -> Result<Reply, Refusal> {
    if let Some(reply) = reply_of_key(tx.state, actor, client_key.as_deref())? {
        return Ok(reply);
    }
    let mut notes = Vec::new();
    let leader = JobId(tx.state.next_job);
    let done = complete_parts(tx.state, actor, specs, &mut notes, tx.now)?;
    let waits = match done.first() {
        Some((spec, _)) => open_dependency(tx, leader, spec, &mut notes)?,
        None => None,
    };
    for (id, (spec, limit_secs)) in (leader.0..).map(JobId).zip(done) {
        let asked = as_asked(&spec.request);
        memos::note_fit(tx.state, &spec.partition, &asked, spec.request.nodes_min);
        let spec = memos::share_spec(tx.state, spec);
        if id == leader {
            memos::note_submission(tx.state, &spec, tx.now);
        }
        tx.emit(Event::JobSubmitted {
            id,
            spec,
            limit_secs,
            at: tx.now,
            client_key: client_key.clone().filter(|_| id == leader),
        });
    }
    record_waits(tx, EntryId::Job(leader), waits);
    Ok(Reply::Submitted {
        id: leader,
        notes,
        repeated: false,
    })
}

/// The components with their defaults, checked as far as possible without recording them.
pub fn complete_parts(
    state: &State,
    actor: &Actor,
    mut specs: Vec<JobSpec>,
    notes: &mut Vec<String>,
    now: Timestamp,
) -> Result<Vec<(JobSpec, Option<u32>)>, Refusal> {
    let leader = JobId(state.next_job);
    parts::conform(leader, &mut specs)?;
    let mut done: Vec<(JobSpec, Option<u32>)> = Vec::with_capacity(specs.len());
    for (at, spec) in specs.into_iter().enumerate() {
        let mut own = Vec::new();
        let (mut spec, mut limit_secs) = complete(state, actor, spec, &mut own, now)
            .map_err(|refusal| parts::about(at, refusal))?;
        parts::check(at, &spec)?;
        if let Some((first, first_limit_secs)) = done.first() {
            parts::check_beside(at, first, &spec)?;
            limit_secs = *first_limit_secs;
            spec.time_limit_secs = first.time_limit_secs;
            spec.requeue = first.requeue;
        }
        notes.extend(
            own.into_iter()
                .map(|note| format!("component {at}: {note}")),
        );
        done.push((spec, limit_secs));
    }
    parts_fit::check(state, leader, &done, now)?;
    let all = done.iter().map(|(spec, limit_secs)| (spec, *limit_secs));
    cap::check_submission(state, actor, all, now)?;
    Ok(done)
}

/// The open conditions of a submission's dependency. A condition that can never be met is no error, since the
/// other job may have failed a moment ago: the job is cancelled if that was requested, as if it had been there
/// first.
fn open_dependency(
    tx: &Tx,
    id: JobId,
    spec: &JobSpec,
    notes: &mut Vec<String>,
) -> Result<Option<Box<OpenDependency>>, Refusal> {
    let Some(dependency) = &spec.dependency else {
        return Ok(None);
    };
    let asker = DependentJob {
        id,
        spec,
        task: None,
    };
    let waits = resolve(tx.state, &tx.past, tx.now, dependency, asker)?;
    if let Some(why) = waits.as_deref().and_then(never) {
        let so = if kills(tx.state, spec) {
            "it is cancelled"
        } else {
            "it never starts"
        };
        notes.push(format!("--dependency {dependency}: {why}, so {so}"));
    }
    Ok(waits)
}

/// A submission with its defaults, checked as far as possible without recording it.
pub fn complete(
    state: &State,
    actor: &Actor,
    mut spec: JobSpec,
    notes: &mut Vec<String>,
    now: Timestamp,
) -> Result<(JobSpec, Option<u32>), Refusal> {
    let config = &state.config;
    spec.user = UserRef {
        name: actor.user.clone(),
        uid: actor.uid,
        gid: actor.gid,
    };
    spec.token = actor.token;
    cap::fill_in(state, &mut spec);
    // Slurm's priority 0 is a hold, for owners as well.
    spec.hold |= spec.priority.take_if(|priority| *priority == 0).is_some();
    if spec.allocation {
        if spec.array.is_some() {
            return Err(Refusal::invalid(
                "an allocation is one job: an array has a script for its tasks. Submit it with gsub",
            ));
        }
        spec.requeue = Some(false);
    }
    check_user(config, actor)?;
    check_texts(&spec)?;
    request_size::check(state, &spec)?;
    check_numbers(state, &spec)?;
    spread(&mut spec.request);
    if spec.partition.is_empty() {
        let default = config
            .default_partition()
            .ok_or_else(|| no_default(config))?;
        spec.partition = default.name.clone();
    }
    let done = if spec.waits_in_several() {
        partition_list::complete(state, actor, spec, notes, now)?
    } else {
        let limit_secs = complete_in(state, actor, &mut spec, notes, now)?;
        (spec, limit_secs)
    };
    cap::check_submission(state, actor, std::iter::once((&done.0, done.1)), now)?;
    Ok(done)
}

/// What the first submission with this key was told.
fn reply_of_key(state: &State, actor: &Actor, key: Option<&str>) -> Result<Option<Reply>, Refusal> {
    let Some(key) = key else { return Ok(None) };
    if key.is_empty() || key.len() > 128 {
        return Err(Refusal::invalid("a client key has 1 to 128 characters"));
    }
    let key = ClientKey {
        uid: actor.uid,
        key: key.into(),
    };
    let known = state.index.client_keys.get(&key);
    Ok(known.map(|id| Reply::Submitted {
        id: *id,
        notes: Vec::new(),
        repeated: true,
    }))
}

/// Records what an entry waits for, and cancels it where that can never be.
fn record_waits(tx: &mut Tx, entry: EntryId, waits: Option<Box<OpenDependency>>) {
    if waits.is_some() {
        tx.emit(Event::WaitsChanged {
            entry,
            waits,
            at: tx.now,
        });
        cancel_hopeless(tx, entry);
    }
}
