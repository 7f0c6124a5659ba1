//! Why a job waits, as data: everything that stands in its way with the numbers, and the smallest change of its request
//! that would start it now, or else soonest.
//!
//! Looked at when its turn comes in a pass, beside what those before it were given. Decides nothing.

use crate::forecast::job_starts::Forecast;
use crate::job::job_class::ShapeId;
use crate::job::reason;
use crate::ledger::Take;
use crate::pass::{Engine, Pass, Wait};
use crate::place::search::{Ask, Picked};
use crate::plan::WorkBudget;
use crate::snapshot::{PendingJob, Snapshot};
use crate::why::change::{self, Change, Tried};
use gmodel::gpu_request::{GpuAlternative, GpuAmount, GpuRequest};
use gmodel::{JobId, Reason, ReasonCode, Timestamp};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The whole answer to `gq --why`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    pub job: JobId,
    /// Of its partitions the one that this is about, where it waits in several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The others, as it names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<Elsewhere>,
    /// Of a job that takes one kind of GPUs or another (`l4:8|h100:4`) the kind that this is about: where the least stands in its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternative: Option<String>,
    /// The others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Alternative>,
    /// It would start in the next pass; then there are no blockers.
    pub starts_now: bool,
    /// Jobs of its partition whose turn is before its own.
    pub ahead: u32,
    /// All that stands in its way; each must go before it starts.
    pub blockers: Vec<Blocker>,
    /// Why its account's guarantee would not carry it, with the numbers: it waits for what others leave idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrows: Option<String>,
    /// When it would start as it is.
    pub forecast: Option<Forecast>,
    /// Changes of the request that would start it now, the smallest first; where there are none, the one that would
    /// start it soonest.
    pub changes: Vec<Change>,
}

/// What stands in a job's way in another of its partitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    pub partition: String,
    /// Of several kinds of GPUs the one that is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternative: Option<String>,
    /// Jobs there whose turn is before its own.
    pub ahead: u32,
    pub blockers: Vec<Blocker>,
}

/// What stands in the way of a job that would take such GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    /// `h100:4`.
    pub gpus: String,
    pub blockers: Vec<Blocker>,
}

/// One thing in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocker {
    pub code: ReasonCode,
    /// For people, with the numbers.
    pub text: String,
    /// Of what is short on the node that comes nearest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<Nearest>,
    /// When it goes away by itself, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// From when on runs may be ended for it that are in its way, if they must run for so long first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_preempt_from: Option<Timestamp>,
    /// From when on GPUs are cut by MIG, or made whole, to make room for it: that takes seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_from: Option<Timestamp>,
}

/// The node that comes nearest to what a job needs of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nearest {
    pub node: String,
    /// Nodes that have room for a part now, and how many parts there are.
    pub nodes_free: u32,
    pub nodes_needed: u32,
    /// Of the kinds that would do, whole ones.
    pub gpus_free: u32,
    pub gpus_needed: u32,
    pub cpus_free: u32,
    pub cpus_needed: u32,
    pub mem_free_bytes: u64,
    pub mem_needed_bytes: u64,
    /// When more becomes free there, by the time limits of what runs.
    pub next_change: Option<Timestamp>,
}

/// Changes that are told.
const MOST_CHANGES: usize = 6;
/// Changes that are tried in a whole pass.
const MOST_PROOFS: usize = 32;

/// Of one entry of the queue: without what its changes come to in a whole pass.
struct Here {
    why: Why,
    help: Option<change::Found>,
}

/// Why a job waits; `None` when it is not among the pending. An array by its own id: its next task.
pub fn why(snapshot: &Snapshot, job: JobId) -> Option<Why> {
    Engine::default().why(
        snapshot,
        job,
        WorkBudget {
            node_probes: u64::MAX,
            starts: usize::MAX,
        },
    )
}

impl Engine {
    /// As [`why`], with a bound.
    pub fn why(&mut self, snapshot: &Snapshot, job: JobId, budget: WorkBudget) -> Option<Why> {
        let mut found = self.why_now(snapshot, job, budget)?;
        if !found.starts_now {
            found.forecast = self
                .forecast(snapshot, &BTreeSet::from([job]), budget)
                .pop();
        }
        Some(found)
    }

    /// The same without the forecast.
    pub fn why_now(&mut self, snapshot: &Snapshot, job: JobId, budget: WorkBudget) -> Option<Why> {
        let entry = snapshot.pending.iter().find(|one| one.id == job)?;
        let is_array = entry.positions.is_some();
        let entries = || {
            snapshot
                .pending
                .iter()
                .filter(|one| one.id == job && one.positions.is_some() == is_array)
        };
        let mut told: Vec<(u32, Here)> = entries()
            .filter_map(|entry| {
                Some((
                    entry.spec.choice(),
                    self.why_here(snapshot, entry, Tried::Singles, budget)?,
                ))
            })
            .collect();
        // First of all where it would start, then where the least stands in its way and there are such nodes at all, then as it names them.
        let is_vain = |here: &Here| {
            here.why
                .blockers
                .iter()
                .any(|blocker| blocker.code == ReasonCode::BadConstraints)
        };
        told.sort_by_key(|(choice, here)| (here.why.blockers.len(), is_vain(here), *choice));
        let first = told.first().map(|(choice, _)| *choice);
        let mut rest = told.into_iter().map(|(_, here)| here);
        let Here {
            why: mut found,
            help,
        } = rest.next()?;
        // Of each partition the alternative that is nearest.
        let mut told_of: BTreeSet<String> = found.partition.clone().into_iter().collect();
        found.elsewhere = rest
            .filter_map(|Here { why, .. }| {
                Some(Elsewhere {
                    partition: why.partition?,
                    alternative: why.alternative,
                    ahead: why.ahead,
                    blockers: why.blockers,
                })
            })
            .filter(|other| told_of.insert(other.partition.clone()))
            .collect();
        let mut proofs = MOST_PROOFS;
        let mut again = help;
        while let Some(help) = again.take() {
            let are_pairs = help.are_pairs;
            found.changes = self.proved(
                snapshot,
                help.now,
                (job, found.partition.as_deref()),
                &mut proofs,
                budget,
            );
            if found.changes.is_empty() && are_pairs {
                found.changes.extend(help.later);
            } else if found.changes.is_empty() {
                // Those that seemed to start it by themselves do not.
                let entry = entries().find(|entry| Some(entry.spec.choice()) == first);
                again = entry
                    .and_then(|entry| self.why_here(snapshot, entry, Tried::Pairs, budget))
                    .and_then(|here| here.help);
            }
        }
        Some(found)
    }

    /// Of each kind the least change with which a pass starts the job, the least first: what jobs there are has a say in
    /// where the others go, so a change counts when the pass with it starts the job.
    fn proved(
        &mut self,
        snapshot: &Snapshot,
        kinds: Vec<Vec<Change>>,
        entry: (JobId, Option<&str>),
        proofs: &mut usize,
        budget: WorkBudget,
    ) -> Vec<Change> {
        let mut found = vec![false; kinds.len()];
        let mut all: Vec<(usize, Change)> = kinds
            .into_iter()
            .enumerate()
            .flat_map(|(kind, changes)| changes.into_iter().map(move |change| (kind, change)))
            .collect();
        all.sort_by_key(|(_, change)| change.loss_milli);
        let mut proved = Vec::new();
        for (kind, change) in all {
            if found[kind] {
                continue;
            }
            if proved.len() == MOST_CHANGES || *proofs == 0 {
                break;
            }
            *proofs -= 1;
            found[kind] = self.starts_with(snapshot, &change.edit, entry, budget);
            proved.extend(found[kind].then_some(change));
        }
        proved
    }

    /// What stands in the way of one entry of the queue, when its turn comes, and what would help.
    fn why_here(
        &mut self,
        snapshot: &Snapshot,
        entry: &PendingJob,
        tried: Tried,
        budget: WorkBudget,
    ) -> Option<Here> {
        let mut found = None;
        let mut ahead = 0;
        let partition = &entry.spec.partition;
        self.walk(snapshot, budget, None, &mut |pass, one, place| {
            if one.id == entry.id
                && one.spec.choice() == entry.spec.choice()
                && one.spec.partition == *partition
            {
                found = Some(pass.explain(one, place, tried, ahead));
                return false;
            }
            ahead += u32::from(one.spec.partition == *partition);
            true
        });
        found
    }
}

impl Pass<'_> {
    fn explain(
        &mut self,
        job: &PendingJob,
        partition: Option<usize>,
        tried: Tried,
        ahead: u32,
    ) -> Here {
        let mut blockers = self.blockers(job, partition);
        let mut alternatives = match partition {
            Some(partition) if !blockers.is_empty() => self.by_alternative(job, partition),
            _ => Vec::new(),
        };
        let mut alternative = None;
        if !alternatives.is_empty() {
            let first = alternatives.remove(0);
            (alternative, blockers) = (Some(first.gpus), first.blockers);
        }
        if let (Some(partition), Some(room)) = (
            partition,
            blockers
                .iter_mut()
                .find(|blocker| blocker.nearest.is_some()),
        ) {
            let shape = self.shape_of(job, partition);
            let from = self.may_preempt_from(job, shape);
            room.may_preempt_from =
                from.filter(|from| room.until.is_none_or(|until| *from < until));
        }
        for blocker in &mut blockers {
            let late = job
                .spec
                .deadline
                .filter(|_| blocker.until.is_some_and(|until| !job.ends_in_time(until)));
            late.iter().for_each(|deadline| {
                blocker
                    .text
                    .push_str(&format!("; that is too late for its deadline {deadline}"))
            });
        }
        let help = partition
            .filter(|_| !blockers.is_empty())
            .map(|partition| change::find(self, job, partition, tried));
        if let (Some(partition), [room]) = (partition, &mut blockers[..])
            && (room.nearest.is_some() || room.code == ReasonCode::Resources)
        {
            room.cut_from = self.cut_from(job, partition, room.until);
        }
        let partition = job.partition_of_several();
        let starts_now = blockers.is_empty();
        // Who does not borrow is told so by what is in the way.
        let is_told = starts_now
            || blockers
                .iter()
                .any(|blocker| blocker.code == ReasonCode::Quota);
        let borrows = if is_told {
            None
        } else {
            self.ledger.borrows(job).map(|short| short.text)
        };
        let (elsewhere, forecast, changes) = (Vec::new(), None, Vec::new());
        let why = Why {
            job: job.id,
            partition,
            elsewhere,
            alternative,
            alternatives,
            starts_now,
            ahead,
            blockers,
            borrows,
            forecast,
            changes,
        };
        Here { why, help }
    }

    /// Of a job that takes one kind of GPUs or another, what stands in the way of each: of those that there are the fewest first.
    fn by_alternative(&mut self, job: &PendingJob, partition: usize) -> Vec<Alternative> {
        let several = job
            .spec
            .request
            .gpus
            .as_ref()
            .filter(|ask| ask.alternatives.len() > 1);
        let kinds = several.into_iter().flat_map(|ask| &ask.alternatives);
        let alone = |gpus: &GpuAlternative| {
            let mut spec = (*job.spec).clone();
            spec.request.gpus = Some(GpuRequest {
                alternatives: vec![gpus.clone()],
            });
            PendingJob {
                spec: Arc::new(spec),
                ..job.clone()
            }
        };
        let mut all: Vec<Alternative> = kinds
            .map(|gpus| Alternative {
                gpus: gpus.to_string(),
                blockers: self.blockers(&alone(gpus), Some(partition)),
            })
            .collect();
        if all.iter().any(|one| one.blockers.is_empty()) {
            return Vec::new();
        }
        let is_vain = |one: &Alternative| {
            one.blockers.iter().any(|blocker| {
                matches!(
                    blocker.code,
                    ReasonCode::PartitionConfig | ReasonCode::BadConstraints
                )
            })
        };
        all.sort_by_key(|one| (is_vain(one), one.blockers.len()));
        all
    }

    /// Everything that must go before a job starts, at this point of a pass.
    pub(crate) fn blockers(&mut self, job: &PendingJob, partition: Option<usize>) -> Vec<Blocker> {
        let Some(partition) = partition else {
            return vec![Blocker::of(reason::no_partition(job))];
        };
        let policy = &self.snapshot.config.partitions[partition];
        let mut found: Vec<Blocker> = reason::all_standing(job, policy, self.snapshot)
            .into_iter()
            .map(Blocker::of)
            .collect();
        for blocker in &mut found {
            blocker.until = (blocker.code == ReasonCode::BeginTime).then_some(job.earliest());
        }
        let shape = self.shape_of(job, partition);
        if let Some(never) = &self.shape(shape).never {
            found.push(Blocker::of(never.clone()));
            return found;
        }
        let owed = self.ledger.lift_owed(job);
        let not_admitted = self.not_admitted(job, shape);
        let is_outside = not_admitted.is_some() && self.is_admitted_later(job, shape);
        if let Some(reason) = not_admitted {
            let later = if is_outside {
                self.earliest(job, shape)
            } else {
                None
            };
            found.push(Blocker {
                until: later.map(|found| found.at),
                ..Blocker::of(reason)
            });
        }
        let secs = self.secs_now(job, shape);
        found.extend(self.limit_blockers(job, shape));
        let lifted = self.lift_counted(shape);
        // Room and licences that are kept for itself in another partition are not in its way.
        let own = self.lift_own(job);
        let ways = (0..self.shape(shape).ways.len()).collect();
        let reserved = self
            .reserved_ways(shape, ways, job.spec.time_min_secs.unwrap_or(secs))
            .map(drop);
        for told in [reserved, self.licences_now(job, secs)] {
            match told {
                Err(Wait::Short(reason) | Wait::Limit(reason)) => found.push(Blocker::of(reason)),
                Err(Wait::Room) | Ok(()) => {}
            }
        }
        // Outside of the window of its reservation there is none for it, whatever is free.
        let has_room = is_outside || self.has_room(job, shape);
        if !has_room {
            found.push(self.room_blocker(job, shape));
        } else if found.is_empty() && self.must_not_pass(partition) {
            let text =
                "jobs before it in the partition wait, and none may pass them (backfill is off)";
            found.push(Blocker::of(Reason::new(ReasonCode::Priority, text)));
        }
        if has_room && !self.unlimited {
            for reason in self.limits_there(job, shape, secs) {
                if found.iter().all(|known| known.code != reason.code) {
                    found.push(Blocker::of(reason));
                }
            }
        }
        if has_room
            && (!self.kept_nodes.is_empty()
                || !self.kept_idle_on.is_empty()
                || self.is_counted(shape))
        {
            found.extend(
                self.kept_there(job, shape, secs, false)
                    .filter(|kept| found.iter().all(|known| known.code != kept.code)),
            );
            if found.is_empty() {
                // On some nodes limits are in the way, and what is kept on all others.
                found.extend(self.kept_there(job, shape, secs, true));
            }
        }
        self.hold_own(job, own);
        self.hold_again(lifted);
        owed.into_iter()
            .for_each(|owed| self.ledger.owe_again(owed));
        found
    }

    /// The whole nodes that are kept idle, where only those have room; the reservation by number, where they hold more than it has.
    /// `with_limits`: or what else no nodes are free of together.
    fn kept_there(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        secs: u32,
        with_limits: bool,
    ) -> Option<Blocker> {
        let mut kept = None;
        for way in 0..self.shape(shape).ways.len() {
            // Limits are told besides.
            let check = |pass: &Pass, take: &Take, picked: &Picked| {
                if with_limits {
                    return pass.check_on(job, shape, (take, way, secs), picked);
                }
                let class = pass.ledger.class_with(job, take);
                pass.kept_on(job, shape, (take, way, secs), picked, class)
                    .map_or(Ok(class), Err)
            };
            match self.find_by(job, shape, way, secs, &check) {
                Ok(Some(_)) => return None,
                Err(reason)
                    if with_limits
                        || matches!(
                            reason.code,
                            ReasonCode::Headroom | ReasonCode::Reservation
                        ) =>
                {
                    kept = kept.or(Some(Blocker::of(reason)))
                }
                _ => {}
            }
        }
        kept
    }

    /// Limits that stand against the way with the fewest of them.
    pub(crate) fn limit_blockers(&self, job: &PendingJob, shape: ShapeId) -> Vec<Blocker> {
        let of_way = |way: &crate::job::job_class::Way| {
            let reasons = self.ledger.blockers(job, &way.take).into_iter();
            reasons
                .filter(|reason| reason.code != ReasonCode::Licenses)
                .collect::<Vec<_>>()
        };
        if self.unlimited {
            return Vec::new();
        }
        let fewest = self
            .shape(shape)
            .ways
            .iter()
            .map(of_way)
            .min_by_key(Vec::len)
            .unwrap_or_default();
        fewest.into_iter().map(Blocker::of).collect()
    }

    /// Limits on what it would get, where that is more than the request says: types left open, whole nodes. The fewest of
    /// any choice.
    fn limits_there(&mut self, job: &PendingJob, shape: ShapeId, secs: u32) -> Vec<Reason> {
        let now = self.snapshot.now;
        let end = crate::cluster::nodes::end_after(now, Some(secs));
        let types = self.gpu_types(shape);
        let of_types = types
            .iter()
            .map(|kind| Some(self.nodes_of_type(shape, kind)));
        let choices: Vec<_> = std::iter::once(None).chain(of_types).collect();
        let mut fewest: Option<Vec<Reason>> = None;
        for way in 0..self.shape(shape).ways.len() {
            let smaller: Vec<_> = self
                .smaller_nodes(shape, way)
                .into_iter()
                .map(Some)
                .collect();
            for only in choices.iter().chain(&smaller) {
                let pick = |search: &mut crate::place::search::Search, ask: &Ask| {
                    search.pick(
                        &Ask {
                            only: only.as_ref(),
                            ..*ask
                        },
                        way,
                        now,
                        end,
                    )
                };
                let Some(picked) = self.search(job, shape, pick) else {
                    continue;
                };
                let take = self.take_of(shape, way, &picked, secs);
                let mut against = self.ledger.blockers(job, &take);
                against.retain(|reason| reason.code != ReasonCode::Licenses);
                if fewest
                    .as_ref()
                    .is_none_or(|fewest| against.len() < fewest.len())
                {
                    fewest = Some(against);
                }
            }
        }
        fewest.unwrap_or_default()
    }

    /// Whether nodes have room for a job now; limits and licences left aside.
    pub(crate) fn has_room(&mut self, job: &PendingJob, shape: ShapeId) -> bool {
        let now = self.snapshot.now;
        let end = crate::cluster::nodes::end_after(now, Some(self.secs_now(job, shape)));
        let shortest = job
            .spec
            .time_min_secs
            .map(|secs| crate::cluster::nodes::end_after(now, Some(secs)));
        let ways = self.shape(shape).ways.len();
        (0..ways).any(|way| {
            self.search(job, shape, |search, ask| {
                search.pick(ask, way, now, shortest.unwrap_or(end))
            })
            .is_some()
        })
    }

    /// What is short, or for whom it is kept.
    fn room_blocker(&mut self, job: &PendingJob, shape: ShapeId) -> Blocker {
        let limit = self.secs_now(job, shape);
        let refused = &mut self.of_pass(shape).refused_secs;
        *refused = Some(refused.map_or(limit, |secs| secs.min(limit)));
        let nearest = self.nearest(shape);
        let earliest = self.earliest(job, shape).map(|found| found.at);
        if let Some(kept) = self.kept(shape) {
            return Blocker {
                until: earliest,
                nearest,
                ..Blocker::of(kept)
            };
        }
        let behind = self.shape(shape).behind.text.clone();
        let needs = behind.strip_suffix(reason::BEHIND).unwrap_or(&behind);
        let others = crate::job::sharing::others_room(
            self.shape(shape),
            self.snapshot,
            &self.engine.cluster,
        );
        let text = match &nearest {
            Some(near) => format!("{needs}; {}{others}", near.text(self.counts_slices(shape))),
            None => format!("{needs}; no node is available"),
        };
        Blocker {
            nearest,
            until: earliest,
            ..Blocker::of(Reason::new(ReasonCode::Resources, text))
        }
    }

    /// What is short of a job's GPUs are slices of them.
    fn counts_slices(&self, shape: ShapeId) -> bool {
        let asked = self.shape(shape).spec.request.gpus.as_ref();
        asked.is_some_and(|ask| {
            ask.alternatives
                .iter()
                .all(|one| matches!(one.amount, GpuAmount::Mig { .. }))
        })
    }

    fn nearest(&self, shape: ShapeId) -> Option<Nearest> {
        let of = self.shape(shape);
        let cluster = &self.engine.cluster;
        let now = self.snapshot.now;
        let way = of.ways.first()?;
        let soon = now.plus_millis(1);
        let near = |at: usize| {
            let track = &cluster.nodes[at];
            let need = of.need(0, 0, track.make)?;
            let free = cluster.room(at).profile.free_at(now);
            // How far it is from having enough, in thousandths of each need.
            let part = |has: u64, wants: u64| {
                (u128::from(has.min(wants)) * 1000)
                    .checked_div(u128::from(wants))
                    .unwrap_or(1000)
            };
            let whole = u64::from(need.whole());
            let gpus = u64::from(free.gpus_in(need.groups));
            let parts = [
                part(gpus, whole),
                part(u64::from(free.cpus), u64::from(need.cpus)),
                part(free.mem_bytes, need.mem_bytes),
            ];
            let lack = parts.into_iter().min().unwrap_or(0);
            // Of those that are as near, where more comes first.
            let next = cluster
                .room(at)
                .next_change(now)
                .unwrap_or(Timestamp(i64::MAX));
            Some((lack, gpus, Reverse(next), Reverse(at)))
        };
        let fits = |at: &usize| {
            of.need(0, 0, cluster.nodes[*at].make)
                .is_some_and(|need| cluster.fits(*at, need, now, soon))
        };
        let nodes = of.in_question();
        // Of the nodes that it names, and must have, those that are in the way.
        let named = of
            .named
            .iter()
            .copied()
            .filter(|at| nodes.contains(*at) && !fits(at))
            .filter_map(near)
            .max();
        let (.., Reverse(at)) = named.or_else(|| nodes.ones().filter_map(near).max())?;
        let track = &cluster.nodes[at];
        let need = of.need(0, 0, track.make)?;
        let free = cluster.room(at).profile.free_at(now);
        Some(Nearest {
            node: self.snapshot.nodes[at].name.clone(),
            nodes_free: nodes.ones().filter(fits).count() as u32,
            nodes_needed: way.nodes,
            gpus_free: free.gpus_in(need.groups),
            gpus_needed: u32::from(need.whole()),
            cpus_free: free.cpus,
            cpus_needed: need.cpus,
            mem_free_bytes: free.mem_bytes,
            mem_needed_bytes: need.mem_bytes,
            next_change: cluster.room(at).next_change(now),
        })
    }
}

impl Blocker {
    fn of(reason: Reason) -> Self {
        Self {
            code: reason.code,
            text: reason.text.to_string(),
            nearest: None,
            until: None,
            may_preempt_from: None,
            cut_from: None,
        }
    }
}

impl Nearest {
    fn text(&self, of_slices: bool) -> String {
        let mut short = Vec::new();
        if self.gpus_free < self.gpus_needed {
            short.push(format!(
                "{} of {} {}",
                self.gpus_free,
                self.gpus_needed,
                if of_slices { "slices" } else { "GPUs" }
            ));
        }
        if self.cpus_free < self.cpus_needed {
            short.push(format!("{} of {} CPUs", self.cpus_free, self.cpus_needed));
        }
        if self.mem_free_bytes < self.mem_needed_bytes {
            let size = gmodel::size::rough_size;
            short.push(format!(
                "{} of {} of memory",
                size(self.mem_free_bytes),
                size(self.mem_needed_bytes)
            ));
        }
        let mut text = match short.is_empty() {
            true => format!(
                "{} of {} such nodes have room",
                self.nodes_free, self.nodes_needed
            ),
            false => format!(
                "{} comes nearest and has {} free",
                self.node,
                short.join(" and ")
            ),
        };
        if let Some(at) = self.next_change {
            text.push_str(&format!(", more becomes free there at {at}"));
        }
        text
    }
}
