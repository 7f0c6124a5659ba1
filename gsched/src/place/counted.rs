//! GPUs that a reservation holds by number: what is set apart, and what its jobs use of it. Data only.

use crate::cluster::node_state::Hold;
use crate::cluster::timeline::Count;
use gmodel::Timestamp;
use gmodel::policy::{ALL_GPUS, GpuAmounts};
use gpolicy::limits::LOST_BY_SLICES;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// One reservation of GPUs in a pass.
#[derive(Debug)]
pub(crate) struct GpuReservation {
    pub(crate) reservation: usize,
    /// What is set apart, by node; nothing while a job of the reservation looks for nodes.
    pub(crate) holds: Vec<(usize, Hold)>,
    pub(crate) is_lifted: bool,
    /// What its jobs hold or are promised, and a print of all of it.
    pub(crate) parts: Vec<ReservedShare>,
    pub(crate) print: u64,
    pub(crate) left: ReservationBalance,
    /// Its jobs may take more than is reserved.
    pub(crate) flex: bool,
}

/// What a job of the reservation has on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReservedShare {
    pub(crate) node: usize,
    pub(crate) gpu_type: String,
    pub(crate) milli: u64,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
}

/// What was lifted for a job.
pub(crate) struct LiftedHolds {
    pub(crate) at: usize,
    pub(crate) holds: Vec<(usize, Hold)>,
    /// The print of what its jobs had then.
    pub(crate) print: u64,
}

/// What is reserved, and how much of it the reservation's jobs use over time. Thousandths of GPUs.
#[derive(Debug)]
pub(crate) struct ReservationBalance {
    /// By type.
    pub(crate) named: BTreeMap<String, u64>,
    /// Beyond what is named: of any type.
    pub(crate) rest: u64,
    /// What is free of [`PLENTY`]: for each named type, for [`OTHERS`] together, and for all.
    pub(crate) unused: BTreeMap<String, Count>,
}

/// Types that are not named.
const OTHERS: &str = "";

const PLENTY: u32 = u32::MAX;

impl GpuReservation {
    pub(crate) fn add(&mut self, part: ReservedShare) {
        self.left.count(&part, true);
        self.print = self.print.wrapping_add(part.print());
        self.parts.push(part);
    }

    /// Takes back what was promised.
    pub(crate) fn remove(&mut self, part: &ReservedShare) {
        let Some(at) = self.parts.iter().rposition(|one| one == part) else {
            return;
        };
        self.parts.remove(at);
        self.left.count(part, false);
        self.print = self.print.wrapping_sub(part.print());
    }
}

impl ReservedShare {
    pub(crate) fn print(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

impl ReservationBalance {
    pub(crate) fn new(amounts: &GpuAmounts, now: Timestamp) -> Self {
        let named: BTreeMap<String, u64> = amounts
            .0
            .iter()
            .filter(|(kind, _)| *kind != ALL_GPUS)
            .map(|(kind, milli)| (kind.clone(), *milli))
            .collect();
        let rest = amounts
            .total()
            .unwrap_or(0)
            .saturating_sub(named.values().sum());
        let kinds = named.keys().map(String::as_str).chain([OTHERS, ALL_GPUS]);
        let unused = kinds
            .map(|kind| (kind.to_owned(), Count::new(now, PLENTY)))
            .collect();
        Self {
            named,
            rest,
            unused,
        }
    }

    pub(crate) fn key<'a>(&self, gpu_type: &'a str) -> &'a str {
        if gpu_type == ALL_GPUS || self.named.contains_key(gpu_type) {
            gpu_type
        } else {
            OTHERS
        }
    }

    /// `taken`: or given back.
    pub(crate) fn count(&mut self, part: &ReservedShare, taken: bool) {
        let milli = u32::try_from(part.milli).unwrap_or(PLENTY);
        for kind in [self.key(&part.gpu_type), ALL_GPUS] {
            match self.unused.get_mut(kind) {
                Some(count) if taken => count.take(part.from, part.to, milli),
                Some(count) => count.give(part.from, part.to, milli),
                None => {}
            }
        }
    }

    pub(crate) fn used(&self, kind: &str, at: Timestamp) -> u64 {
        self.unused.get(kind).map_or(0, |count| {
            u64::from(PLENTY - count.least(at, at.plus_millis(1)))
        })
    }

    /// What is unused of the part that may be of any type.
    pub(crate) fn rest_left(&self, at: Timestamp) -> u64 {
        let beyond = self
            .named
            .iter()
            .map(|(kind, milli)| self.used(kind, at).saturating_sub(*milli));
        self.rest
            .saturating_sub(beyond.sum::<u64>() + self.used(OTHERS, at))
    }

    /// What jobs may take of a type, or of all together, with nothing of it in use.
    pub(crate) fn most(&self, kind: &str) -> u64 {
        match kind {
            ALL_GPUS => self.rest + self.named.values().sum::<u64>(),
            kind => self.rest + self.named.get(kind).copied().unwrap_or(0),
        }
    }

    pub(crate) fn free(&self, kind: &str, at: Timestamp) -> u64 {
        match kind {
            ALL_GPUS => self.most(ALL_GPUS).saturating_sub(self.used(ALL_GPUS, at)),
            kind => {
                let named = self
                    .named
                    .get(kind)
                    .map_or(0, |milli| milli.saturating_sub(self.used(kind, at)));
                named + self.rest_left(at)
            }
        }
    }

    /// The least that is free of a kind in a time.
    pub(crate) fn least(&self, kind: &str, from: Timestamp, to: Timestamp) -> u64 {
        let changes = self.changes().filter(|at| from < *at && *at < to);
        changes
            .chain([from])
            .map(|at| self.free(kind, at))
            .min()
            .unwrap_or(0)
    }

    pub(crate) fn changes(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.unused.get(ALL_GPUS).into_iter().flat_map(Count::times)
    }

    /// Thousandths that its jobs do not use at a time, by kind: the named types first, then any type.
    pub(crate) fn missing(&self, at: Timestamp) -> Vec<(String, u64)> {
        // Seven slices of a GPU are all of it, though a seventh is no whole number of thousandths.
        let but_rounding =
            |short: u64, milli: u64| short.saturating_sub(milli / 1000 * LOST_BY_SLICES);
        let short =
            |kind: &str, milli: u64| but_rounding(milli.saturating_sub(self.used(kind, at)), milli);
        let of_types = self
            .named
            .iter()
            .map(|(kind, milli)| (kind.clone(), short(kind, *milli)));
        of_types
            .chain([(
                ALL_GPUS.to_owned(),
                but_rounding(self.rest_left(at), self.rest),
            )])
            .collect()
    }
}

/// The kinds that something is wanted of, with thousandths: all together, and each type that is known.
pub(crate) fn kinds(wanted: &BTreeMap<String, u64>) -> impl Iterator<Item = (&str, u64)> {
    let of_types = wanted
        .iter()
        .filter(|(kind, _)| *kind != ALL_GPUS)
        .map(|(kind, milli)| (kind.as_str(), *milli));
    std::iter::once((ALL_GPUS, wanted.values().sum()))
        .chain(of_types)
        .filter(|(_, milli)| *milli > 0)
}
