//! What a pass refused one request it refuses all that ask for at least as much: nodes, amount of each, and time.
//!
//! Within a pass room only shrinks, so that holds for all later jobs. Looks at no nodes; decides nothing that a search
//! would not have found out. (Dominance, as in branch and bound: Ibaraki 1977.)

use crate::cluster::timeline::Need;
use crate::job::job_class::{JobClass, JobClassId};
use gmodel::Timestamp;
use gpolicy::reserved_nodes::Claim;
use std::sync::Arc;

/// Bounds that are kept; those that follow are searched for.
const MOST: usize = 64;

/// Refusals of the pass under way, by job class and seconds.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Nothing is kept in passes in which room may grow: by preemption, or by planned starts that are lifted.
    are_kept: bool,
    /// No room now.
    now: Vec<(JobClassId, u32)>,
    /// No room before a time, with the nodes that were asked for.
    before: Vec<(JobClassId, u32, u32, Timestamp)>,
}

impl Refusals {
    /// For a pass in which room only shrinks.
    pub fn kept() -> Self {
        Self {
            are_kept: true,
            ..Self::default()
        }
    }

    /// More room has come.
    pub fn forget(&mut self) {
        *self = Self {
            are_kept: self.are_kept,
            ..Self::default()
        };
    }

    pub fn refuse_now(&mut self, shape: JobClassId, secs: u32) {
        if self.are_kept && self.now.len() < MOST {
            self.now.push((shape, secs));
        }
    }

    /// A shape of so many nodes.
    pub fn refuse_before(&mut self, shape: JobClassId, nodes: u32, secs: u32, at: Timestamp) {
        if self.are_kept && self.before.len() < MOST {
            self.before.push((shape, secs, nodes, at));
        }
    }

    /// Whether a request for no more was refused.
    pub fn is_refused(&self, shapes: &[JobClass], shape: JobClassId, secs: u32) -> bool {
        let asks = &shapes[shape as usize];
        self.now
            .iter()
            .any(|(other, of)| *of <= secs && asks_no_more(&shapes[*other as usize], asks))
    }

    /// The latest time before which a request for no more was refused.
    pub fn not_before(
        &self,
        shapes: &[JobClass],
        shape: JobClassId,
        secs: u32,
    ) -> Option<Timestamp> {
        let asks = &shapes[shape as usize];
        let mut latest = None;
        let most = asks.ways.first().map_or(0, |way| way.nodes);
        for (other, of, nodes, at) in &self.before {
            let may = *of <= secs && *nodes <= most && latest.is_none_or(|latest| latest < *at);
            if may && asks_no_more(&shapes[*other as usize], asks) {
                latest = Some(*at);
            }
        }
        latest
    }
}

/// Whether wherever and whenever one has room, another has, too, that asks for no longer. Only of requests that any of their
/// nodes may serve, all alike.
fn asks_no_more(other: &JobClass, one: &JobClass) -> bool {
    let (Some(less), Some(more)) = (alike(other), alike(one)) else {
        return false;
    };
    let mut makes = less.iter().zip(more);
    Arc::ptr_eq(&other.candidates, &one.candidates)
        && other.ways[0].nodes <= one.ways[0].nodes
        && makes.all(|(less, more)| {
            more.is_none_or(|more| less.is_some_and(|less| is_within(&less, &more)))
        })
}

/// What it needs of each node, by make.
fn alike(shape: &JobClass) -> Option<&[Option<Need>]> {
    let [way] = &shape.ways[..] else { return None };
    let [part] = &way.parts[..] else { return None };
    let request = &shape.spec.request;
    let is_free = shape.claim == Claim::None
        && shape.named.is_empty()
        && request.switches.is_none()
        && !request.nvlink;
    (is_free && shape.spec.licences.is_empty()).then_some(&part.needs[..])
}

fn is_within(less: &Need, more: &Need) -> bool {
    let same_gpus = || {
        less.gpus <= more.gpus
            && (less.groups, less.one_group, more.milli) == (more.groups, more.one_group, 0)
    };
    less.milli == 0
        && less.cpus <= more.cpus
        && less.mem_bytes <= more.mem_bytes
        && (less.gpus == 0 || same_gpus())
}
