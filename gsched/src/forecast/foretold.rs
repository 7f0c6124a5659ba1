//! What a forecast knows of limits over time. Data only.

use crate::backfill::planned::DeferredStart;
use crate::ledger::Take;
use crate::ledger::ahead::Ahead;
use gmodel::{JobId, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a plan that foretells knows of limits.
#[derive(Debug, Default)]
pub(crate) struct LimitForecast {
    pub(crate) ahead: Ahead,
    /// Starts that are planned, by their number in it.
    pub(crate) planned: BTreeMap<usize, PlannedJob>,
    /// And by their place among the reservations.
    pub(crate) numbers: BTreeMap<usize, usize>,
    /// Those that were taken back for a while, by their place.
    pub(crate) lifted: BTreeMap<usize, (usize, PlannedJob)>,
    /// Of whom it is to be seen whether they overtake others.
    pub(crate) fresh: VecDeque<usize>,
    /// How many were moved on.
    pub(crate) moved: usize,
    /// Some are being moved on.
    pub(crate) is_moving: bool,
    /// Who waits for a limit.
    pub(crate) put_off: BTreeSet<JobId>,
    /// Starts, now or planned, that take whole nodes that were idle, of which some are kept.
    pub(crate) breaks: BTreeSet<usize>,
    pub(crate) breaking: BTreeSet<(Timestamp, usize)>,
    /// When the job at hand waits only for more to be idle.
    pub(crate) waits: Vec<(Timestamp, Timestamp)>,
    /// Runs that go for some when they have run long enough, and of how many jobs it was looked for them.
    pub leave_later: BTreeSet<RunId>,
    pub looked_later: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedJob {
    pub(crate) want: DeferredStart,
    pub(crate) place: usize,
}

/// What a start takes of which nodes.
pub(crate) struct StartUsage {
    /// By partition that keeps GPUs idle: what it takes on the nodes of that.
    pub(crate) on_kept: Vec<Take>,
    pub(crate) all: Take,
    pub(crate) breaks: bool,
}

impl LimitForecast {
    pub(crate) fn note_breaks(&mut self, at: Timestamp, number: usize, breaks: bool) {
        if breaks {
            self.breaks.insert(number);
            self.breaking.insert((at, number));
        }
    }
}
