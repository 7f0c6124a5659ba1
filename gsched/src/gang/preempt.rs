//! Preemption for a gang: victims with which all of its components start, chosen for the whole.

use crate::gang::consider::start_members;
use crate::gang::members::{GangMember, leader_of, try_gang};
use crate::ledger::Take;
use crate::pass::Pass;
use crate::place::nominated_nodes::key;
use crate::preempt::nomination::{add_preempts, nominate};
use crate::preempt::what_if::{
    choose_victims, expect_back, nominate_usage, preempting_reason, without_runs,
};
use gmodel::{NodeId, Reason, RunClass, RunId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Where each component starts, and in which class.
type GangPlaces = Vec<(Arc<Vec<NodeId>>, Option<RunClass>)>;

/// Chooses victims for a gang that waits for nodes, where the policy allows it, and nominates their nodes for its components.
pub(crate) fn preempt_for_gang(pass: &mut Pass, members: &[GangMember]) -> Option<Reason> {
    let leader = leader_of(members)?;
    if let Some(reason) = keep_nomination(pass, members) {
        return Some(reason);
    }
    let usage_before = pass.preemption.usage_before?;
    let mut classes = Vec::new();
    for member in members {
        let take = first_take(pass, member)?;
        let class = pass.world.usage.check_but_idle(member.job, &take).ok()?;
        // Starts of this pass may have used up the guarantee.
        if usage_before.check_but_idle(member.job, &take).ok()? != class {
            return None;
        }
        classes.push(class);
    }
    let starts = |pass: &mut Pass, gone: &BTreeSet<RunId>| {
        let places = places_without(pass, members, gone)?;
        // A component that is owed its guarantee starts on it.
        let is_owed = |(place, owed): (&(_, Option<RunClass>), &Option<RunClass>)| {
            *owed != Some(RunClass::Guaranteed) || place.1 == *owed
        };
        places.iter().zip(&classes).all(is_owed).then_some(places)
    };
    let victims = choose_victims(pass, leader, &|pass, gone| starts(pass, gone).is_some())?;
    let gone = victims.iter().map(|victim| victim.run).collect();
    let places = starts(pass, &gone)?;
    if !pass.world.usage.claim(leader, &victims) {
        return None;
    }
    for (member, (nodes, _)) in members.iter().zip(places) {
        pass.preemption.freed.insert(key(member.job), nodes);
    }
    for victim in &victims {
        expect_back(pass, victim, pass.snapshot.now);
    }
    for (member, class) in members.iter().zip(classes) {
        let freed = if member.at == 0 { &victims[..] } else { &[] };
        nominate_usage(pass, member.job, member.job_class, class, freed);
    }
    let reason = preempting_reason(&victims);
    add_preempts(pass, leader, victims);
    nominate(pass, leader);
    Some(reason)
}

/// Keeps the nomination of a gang while its victims end, or while it waits for the end of other jobs' victims.
fn keep_nomination(pass: &mut Pass, members: &[GangMember]) -> Option<Reason> {
    let leader = leader_of(members)?;
    let reason = match pass.preemption.leaving.for_job(leader) {
        Some(_) => leader.reason.clone(),
        None => {
            let has_nodes = leader
                .particulars
                .nomination
                .as_ref()
                .is_some_and(|one| !one.nodes.is_empty());
            let waits = has_nodes
                && !pass.preemption.leaving.runs.is_empty()
                && places_without(pass, members, &BTreeSet::new()).is_some();
            if !waits {
                return None;
            }
            leader.reason.clone()
        }
    };
    for member in members {
        if pass.world.usage.is_nominated(member.job) {
            continue;
        }
        let take = first_take(pass, member)?;
        let class = pass.world.usage.check_but_idle(member.job, &take).ok();
        if leader.is_among(&pass.preemption.leaving.owed) {
            pass.world.usage.claim(member.job, &[]);
        }
        nominate_usage(pass, member.job, member.job_class, class.flatten(), &[]);
    }
    nominate(pass, leader);
    Some(reason)
}

fn first_take(pass: &Pass, member: &GangMember) -> Option<Take> {
    let alternatives = &pass.job_class(member.job_class).alternatives;
    alternatives.first().map(|one| one.take.clone())
}

/// Where the components start without some runs and without the runs that are ending already.
fn places_without(
    pass: &mut Pass,
    members: &[GangMember],
    gone: &BTreeSet<RunId>,
) -> Option<GangPlaces> {
    let tried: Result<(), Option<GangPlaces>> = try_gang(pass, members, |pass| {
        let before = pass.plan.starts.len();
        without_runs(pass, gone);
        start_members(pass, members).map_err(|_| None)?;
        let places = pass.plan.starts[before..].iter().map(|start| {
            let nodes = start.allocation.iter().map(|share| share.node).collect();
            (Arc::new(nodes), start.class)
        });
        // Nothing of it stays.
        Err(Some(places.collect()))
    });
    tried.err().flatten()
}
