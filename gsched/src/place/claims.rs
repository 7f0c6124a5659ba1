//! What limits leave a job in a pass: which ways to serve it, which types of GPUs, in which class; and licences.
//!
//! The ledger says what stands against it; here is what follows for the search. Limits only fill within a pass.

use crate::cluster::nodes::{end_after, end_of};
use crate::cluster::timeline::Count;
use crate::headroom::{KeptNodes, When};
use crate::job::job_class::ShapeId;
use crate::ledger::Take;
use crate::pass::{Found, Pass, Wait};
use crate::place::search::{Ask, Picked, count, each};
use crate::snapshot::{PendingJob, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::config::Partition;
use gmodel::policy::{Account, Limits, PreemptMode, Qos};
use gmodel::{Reason, ReasonCode, RunClass, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Sizes of nodes that are tried for who takes them whole, of each kind.
const MOST_SIZES: usize = 8;

/// What is said to a job that would take so much of some nodes: its class, or why not.
pub(crate) type Check<'a> = &'a dyn Fn(&Pass, &Take, &Picked) -> Result<Option<RunClass>, Reason>;

impl Pass<'_> {
    /// For how long a job would hold its place from a time on: in its reservation no longer than the window.
    pub(crate) fn secs_from(&self, job: &PendingJob, shape: ShapeId, at: Timestamp) -> u32 {
        self.engine
            .windows
            .secs_from(self.shape(shape).claim, at, job.held_secs())
    }

    pub(crate) fn secs_now(&self, job: &PendingJob, shape: ShapeId) -> u32 {
        self.secs_from(job, shape, self.snapshot.now)
    }

    /// Ways that no limit stands against, as far as can be said before nodes are known.
    pub(crate) fn allowed_ways(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        secs: u32,
    ) -> Result<Vec<usize>, Wait> {
        let ways = 0..self.shape(shape).ways.len();
        if self.unlimited {
            return Ok(ways.collect());
        }
        let spec = &job.spec;
        let claim = || {
            let (account, user, qos) = (
                spec.account.clone(),
                spec.user.name.clone(),
                spec.qos.clone(),
            );
            (
                shape,
                account,
                user,
                qos,
                (spec.borrow, spec.requeue, job.preempted.is_some()),
                secs,
            )
        };
        if !self.limited.is_empty()
            && let Some(reason) = self.limited.get(&claim())
        {
            return Err(Wait::Limit(reason.clone()));
        }
        let mut allowed = Vec::new();
        let mut no = None;
        for way in ways {
            match self.check(job, &self.shape(shape).ways[way].take) {
                Ok(_) => allowed.push(way),
                Err(reason) => no = no.or(Some(reason)),
            }
        }
        match no {
            Some(reason) if allowed.is_empty() => {
                self.limited.insert(claim(), reason.clone());
                Err(Wait::Limit(reason))
            }
            _ => Ok(allowed),
        }
    }

    /// What limits say, and the class. Licences are for the timeline to judge.
    pub(crate) fn check(&self, job: &PendingJob, take: &Take) -> Result<Option<RunClass>, Reason> {
        if self.unlimited {
            return Ok(None);
        }
        match self.ledger.check(job, take) {
            Err(reason) if reason.code == ReasonCode::Licenses => {
                let others = self
                    .ledger
                    .blockers(job, take)
                    .into_iter()
                    .find(|other| other.code != ReasonCode::Licenses);
                others.map_or(Ok(None), Err)
            }
            said => said,
        }
    }

    /// As `check`, for nodes that are known: whole ones that are kept idle are not broken into.
    pub(crate) fn check_on(
        &self,
        job: &PendingJob,
        shape: ShapeId,
        (take, way, secs): (&Take, usize, u32),
        picked: &Picked,
    ) -> Result<Option<RunClass>, Reason> {
        let class = self.check(job, take)?;
        self.kept_on(job, shape, (take, way, secs), picked, class)
            .map_or(Ok(class), Err)
    }

    /// What of these nodes is kept from a job, whatever limits say: by its reservation, or idle for others.
    pub(crate) fn kept_on(
        &self,
        job: &PendingJob,
        shape: ShapeId,
        (take, way, secs): (&Take, usize, u32),
        picked: &Picked,
        class: Option<RunClass>,
    ) -> Option<Reason> {
        if let Some(short) = self.reserved_short(shape, &take.gpus, secs) {
            return Some(short);
        }
        let spares = self.ledger.spares_kept(job, class);
        for (keeper, nodes) in &self.kept_idle_on {
            let at = match spares {
                true => When::Now,
                false if self.ledger.is_left_by_others(job, *keeper) => When::Then,
                false => continue,
            };
            let there: Picked = each(picked)
                .filter(|(at, _)| nodes.contains(*at))
                .map(|(at, part)| (at..at + 1, part))
                .collect();
            let taken = self.take_of(shape, way, &there, secs).gpus;
            if let Some(kept) = self.ledger.kept_in(at, *keeper, &taken) {
                return Some(kept);
            }
        }
        let owed = if self.kept_nodes.is_empty() {
            Vec::new()
        } else {
            self.owed_nodes(job)
        };
        for kept in &self.kept_nodes {
            let is_idle = |at: usize| kept.nodes.contains(at) && self.is_idle(at);
            let is_idle_then = |at: usize| {
                kept.nodes.contains(at)
                    && !owed.contains(&at)
                    && (self.is_idle(at) || self.is_left(at))
            };
            let is_owed = owed.iter().any(|at| kept.nodes.contains(*at));
            let short = if spares {
                self.too_few_nodes(kept, picked, &is_idle)
            } else {
                None
            };
            let short = short.or_else(|| {
                if is_owed {
                    self.too_few_nodes(kept, picked, &is_idle_then)
                } else {
                    None
                }
            });
            if let Some(short) = short {
                return Some(short);
            }
        }
        None
    }

    /// Why some nodes may not be taken of those that a partition keeps whole.
    fn too_few_nodes(
        &self,
        kept: &KeptNodes,
        picked: &Picked,
        is_idle: &dyn Fn(usize) -> bool,
    ) -> Option<Reason> {
        let taken = each(picked).filter(|(at, _)| is_idle(*at)).count();
        let idle = kept.nodes.ones().filter(|at| is_idle(*at)).count();
        if taken == 0 || idle >= kept.most + taken {
            return None;
        }
        let name = &self.snapshot.config.partitions[kept.partition].name;
        let plural = |count: usize| if count == 1 { "node" } else { "nodes" };
        let text = format!(
            "partition {name} keeps {} whole {} idle for urgent work: {idle} {} idle and this job would take {taken}",
            kept.most,
            plural(kept.most),
            if idle == 1 { "is" } else { "are" }
        );
        Some(Reason::new(ReasonCode::Headroom, text))
    }

    /// Nodes of jobs before one for which others go, and which leave whole ones idle.
    fn owed_nodes(&self, job: &PendingJob) -> Vec<usize> {
        let owed = self.ledger.owed_to_others(job).filter(|owed| owed.spares);
        owed.flat_map(|owed| &owed.on)
            .filter_map(|node| self.engine.cluster.place(*node))
            .collect()
    }

    /// Whether all who have anything of a node are to leave it.
    fn is_left(&self, at: usize) -> bool {
        let goes = |run: RunId| {
            self.leaving.runs.contains(&run)
                || self
                    .preempts()
                    .any(|one| one.run == run && one.mode != PreemptMode::Suspend)
        };
        let is_new = self.plan.starts.iter().any(|start| {
            start
                .allocation
                .iter()
                .any(|share| share.node == self.engine.cluster.nodes[at].id)
        });
        !is_new && self.engine.cluster.held_on(at).all(|(run, ..)| goes(run))
    }

    /// Whether nobody has anything of a node now.
    fn is_idle(&self, at: usize) -> bool {
        self.is_idle_at(at, self.now)
    }

    /// The same at a time, by what runs and is reserved.
    pub(crate) fn is_idle_at(&self, at: usize, time: Timestamp) -> bool {
        let cluster = &self.engine.cluster;
        let make = &cluster.makes.list[cluster.nodes[at].make as usize];
        let free = cluster.room(at).profile.free_at(time);
        free.cpus == make.all.cpus && free.gpus == make.all.gpus
    }

    /// Without the whole nodes of partitions that keep such.
    pub(crate) fn nodes_not_whole(&self, shape: ShapeId, time: Timestamp) -> FixedBitSet {
        let mut nodes = self.shape(shape).candidates.up.clone();
        let is_kept = |at: usize| self.kept_nodes.iter().any(|kept| kept.nodes.contains(at));
        let whole: Vec<usize> = nodes
            .ones()
            .filter(|at| is_kept(*at) && self.is_idle_at(*at, time))
            .collect();
        whole.into_iter().for_each(|at| nodes.set(at, false));
        nodes
    }

    /// Those of no partition that keeps some idle.
    fn nodes_outside(&self, shape: ShapeId) -> FixedBitSet {
        let mut nodes = self.shape(shape).candidates.up.clone();
        self.kept_idle_on
            .iter()
            .for_each(|(_, kept)| nodes.difference_with(kept));
        nodes
    }

    /// For who needs several nodes, and would take too many of those that partitions keep idle: some of these, as many as may be, and
    /// others. `is_kept`: too much is, still.
    pub(crate) fn pick_beside_kept(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        (way, from, end): (usize, Timestamp, Timestamp),
        (liked, among): (&Picked, Option<&FixedBitSet>),
        is_kept: &dyn Fn(&Self, &Picked) -> bool,
    ) -> Option<Picked> {
        if count(liked) < 2 {
            return None;
        }
        let mut others = self.nodes_not_whole(shape, from);
        self.kept_idle_on
            .iter()
            .for_each(|(_, kept)| others.difference_with(kept));
        let kept: Vec<usize> = each(liked)
            .map(|(at, _)| at)
            .filter(|at| !others.contains(*at))
            .collect();
        among
            .into_iter()
            .for_each(|among| others.intersect_with(among));
        let (mut fewest, mut most) = (0, kept.len());
        while fewest < most {
            let some = (fewest + most) / 2;
            let mut only = others.clone();
            only.extend(kept[..some].iter().copied());
            match self.search(job, shape, |search, ask| {
                search.pick(
                    &Ask {
                        only: Some(&only),
                        ..*ask
                    },
                    way,
                    from,
                    end,
                )
            }) {
                None => fewest = some + 1,
                Some(picked) if is_kept(self, &picked) => most = some,
                found => return found,
            }
        }
        None
    }

    /// For who takes nodes whole: those with fewer GPUs, or CPUs, than the largest, without one size more each time.
    pub(crate) fn smaller_nodes(&self, shape: ShapeId, way: usize) -> Vec<FixedBitSet> {
        let of = self.shape(shape);
        if !of.ways[way].parts.iter().any(|part| part.demand.exclusive) {
            return Vec::new();
        }
        let cluster = &self.engine.cluster;
        let make = |at: usize| &cluster.makes.list[cluster.nodes[at].make as usize];
        let sizes: [&dyn Fn(usize) -> usize; 2] =
            [&|at| make(at).gpus, &|at| make(at).cpus as usize];
        let up = &of.candidates.up;
        let smaller = sizes.iter().flat_map(|size| {
            let all: BTreeSet<usize> = up.ones().map(size).collect();
            let below = all.into_iter().rev().skip(1).take(MOST_SIZES);
            below.map(|most| {
                up.ones()
                    .filter(|at| size(*at) <= most)
                    .collect::<FixedBitSet>()
            })
        });
        smaller.collect()
    }

    /// Nodes for a way, now: those liked best; of another type, or smaller ones, where a limit says no to theirs.
    pub(crate) fn find(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        way: usize,
        secs: u32,
    ) -> Found {
        self.find_by(job, shape, way, secs, &|pass, take, picked| {
            pass.check_on(job, shape, (take, way, secs), picked)
        })
    }

    /// The same, as `check` allows a job to take so much of some nodes.
    pub(crate) fn find_by(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        way: usize,
        secs: u32,
        check: Check,
    ) -> Found {
        let Some(bounds) = self.bounds(job) else {
            return self.find_among(job, shape, way, secs, None, check);
        };
        let mut found = Ok(None);
        for nodes in &bounds {
            found = self.find_among(job, shape, way, secs, Some(nodes), check);
            if matches!(found, Ok(Some(_))) {
                break;
            }
        }
        found
    }

    fn find_among(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        way: usize,
        secs: u32,
        nodes: Option<&FixedBitSet>,
        check: Check,
    ) -> Found {
        let now = self.now;
        let end = end_after(self.snapshot.now, Some(secs));
        let Some(picked) = self.search(job, shape, |search, ask| {
            search.pick(
                &Ask {
                    only: nodes,
                    ..*ask
                },
                way,
                now,
                end,
            )
        }) else {
            return Ok(None);
        };
        let take = self.take_of(shape, way, &picked, secs);
        let no = match check(self, &take, &picked) {
            Ok(class) => return Ok(Some((picked, take, class))),
            Err(reason) => reason,
        };
        let of_types = self
            .gpu_types(shape)
            .into_iter()
            .map(|kind| self.nodes_of_type(shape, &kind));
        let in_use = (!self.kept_nodes.is_empty()).then(|| self.nodes_not_whole(shape, now));
        let outside = (!self.kept_idle_on.is_empty()).then(|| self.nodes_outside(shape));
        let choices: Vec<FixedBitSet> = of_types
            .chain(in_use)
            .chain(outside)
            .chain(self.smaller_nodes(shape, way))
            .collect();
        for mut only in choices {
            nodes
                .into_iter()
                .for_each(|nodes| only.intersect_with(nodes));
            let found = self.search(job, shape, |search, ask| {
                search.pick(
                    &Ask {
                        only: Some(&only),
                        ..*ask
                    },
                    way,
                    now,
                    end,
                )
            });
            let Some(picked) = found else { continue };
            let take = self.take_of(shape, way, &picked, secs);
            if let Ok(class) = check(self, &take, &picked) {
                return Ok(Some((picked, take, class)));
            }
        }
        if no.code == ReasonCode::Headroom
            && !(self.kept_nodes.is_empty() && self.kept_idle_on.is_empty())
        {
            let said = |pass: &Self, picked: &Picked| {
                let take = pass.take_of(shape, way, picked, secs);
                check(pass, &take, picked).map(|class| (take, class))
            };
            let found = self.pick_beside_kept(
                job,
                shape,
                (way, now, end),
                (&picked, nodes),
                &|pass, picked| said(pass, picked).is_err(),
            );
            if let Some(picked) = found
                && let Ok((take, class)) = said(self, &picked)
            {
                return Ok(Some((picked, take, class)));
            }
        }
        Err(no)
    }

    /// What a job would take of these nodes.
    pub fn take_of(&self, shape: ShapeId, way: usize, picked: &Picked, secs: u32) -> Take {
        self.take_at(shape, way, picked, secs, self.snapshot.now)
    }

    /// The same from a time on.
    pub(crate) fn take_at(
        &self,
        shape: ShapeId,
        way: usize,
        picked: &Picked,
        secs: u32,
        from: Timestamp,
    ) -> Take {
        let of = self.shape(shape);
        if self.unlimited && !self.is_counted(shape) {
            return Take::default();
        }
        let mut take = Take {
            nodes: count(picked) as u32,
            ..Take::default()
        };
        for (at, part) in each(picked) {
            let track = &self.engine.cluster.nodes[at];
            let make = &self.engine.cluster.makes.list[track.make as usize];
            let Some(need) = of.need(way, part, track.make) else {
                continue;
            };
            take.cpus = take.cpus.saturating_add(need.cpus);
            let mut add = |group: usize, milli: u64| {
                if let Some(group) = make.groups.get(group).filter(|_| milli > 0) {
                    *take.gpus.entry(group.gpu_type.clone()).or_default() += milli;
                }
            };
            if need.milli > 0 {
                add(need.groups.trailing_zeros() as usize, u64::from(need.milli));
            } else if let Some(amount) =
                self.engine
                    .cluster
                    .room(at)
                    .amount(make, need, from, end_after(from, Some(secs)))
            {
                for (group, count) in amount
                    .gpus
                    .iter()
                    .enumerate()
                    .filter(|(_, count)| **count > 0)
                {
                    add(
                        group,
                        u64::from(*count) * u64::from(make.groups[group].part.milli()),
                    );
                }
            }
        }
        take
    }

    /// Types of GPUs on the nodes that may run a shape.
    pub(crate) fn gpu_types(&self, shape: ShapeId) -> BTreeSet<String> {
        let cluster = &self.engine.cluster;
        let makes: BTreeSet<u32> = self
            .shape(shape)
            .candidates
            .up
            .ones()
            .map(|at| cluster.nodes[at].make)
            .collect();
        let groups = makes
            .iter()
            .flat_map(|make| &cluster.makes.list[*make as usize].groups);
        groups.map(|group| group.gpu_type.clone()).collect()
    }

    /// Nodes that have no GPUs but of one type.
    pub(crate) fn nodes_of_type(&self, shape: ShapeId, kind: &str) -> FixedBitSet {
        let cluster = &self.engine.cluster;
        let mut nodes = self.shape(shape).candidates.up.clone();
        let of_type = |make: &u32| {
            cluster.makes.list[*make as usize]
                .groups
                .iter()
                .all(|group| group.gpu_type == kind)
        };
        let others: Vec<usize> = nodes
            .ones()
            .filter(|at| !of_type(&cluster.nodes[*at].make))
            .collect();
        others.into_iter().for_each(|at| nodes.set(at, false));
        nodes
    }

    /// How many more tasks of its array may start: all of its records count.
    pub(crate) fn array_room(&self, job: &PendingJob) -> u32 {
        let started = job
            .capped_array()
            .and_then(|array| self.in_arrays.get(&array));
        job.room.map_or(u32::MAX, |room| {
            room.saturating_sub(started.map_or(0, |tasks| tasks.len() as u32))
        })
    }

    pub(crate) fn licences_now(&self, job: &PendingJob, secs: u32) -> Result<(), Wait> {
        let now = self.snapshot.now;
        for (name, count) in &job.spec.licences {
            let free = self
                .licences
                .get(name)
                .map_or(0, |free| free.least(now, end_after(now, Some(secs))));
            if free < *count {
                let all = self
                    .snapshot
                    .config
                    .scheduler
                    .licences
                    .get(name)
                    .copied()
                    .unwrap_or(0);
                let text = match self.snapshot.config.scheduler.licences.get(name) {
                    None => format!("licence {name:?} is not in the configuration"),
                    Some(all) if count > all => {
                        format!("needs {count} of licence {name:?}, and there are {all}")
                    }
                    Some(all) => format!(
                        "needs {count} of licence {name:?}; {free} of {all} are free for as long"
                    ),
                };
                let reason = Reason::new(ReasonCode::Licenses, text);
                return Err(if *count > all {
                    Wait::Limit(reason)
                } else {
                    Wait::Short(reason)
                });
            }
        }
        Ok(())
    }
}

/// Whether nothing in the policy limits anybody.
pub(crate) fn is_unlimited(snapshot: &Snapshot) -> bool {
    let free = |limits: &Limits| *limits == Limits::default();
    let open = |one: &Partition| {
        free(&one.group) && free(&one.per_user) && free(&one.per_account) && one.headroom.is_none()
    };
    snapshot.policy.accounts.is_empty()
        && snapshot.policy.qos.is_empty()
        && snapshot.config.partitions.iter().all(open)
}

/// Whether any limit looks at how long a job may run.
pub(crate) fn minds_time(snapshot: &Snapshot) -> bool {
    let hours = |limits: &Limits| limits.running_gpu_hours.is_some();
    let of_account = |one: &Account| {
        hours(&one.group)
            || hours(&one.per_user)
            || !one.budgets.is_empty()
            || one.users.values().any(|user| hours(&user.limits))
    };
    let of_qos = |one: &Qos| {
        hours(&one.group)
            || hours(&one.per_user)
            || hours(&one.per_account)
            || one.per_job.time_secs.is_some()
    };
    let of_partition =
        |one: &Partition| hours(&one.group) || hours(&one.per_user) || hours(&one.per_account);
    snapshot.policy.accounts.values().any(of_account)
        || snapshot.policy.qos.values().any(of_qos)
        || snapshot.config.partitions.iter().any(of_partition)
}

/// What is free of each licence over time.
pub(crate) fn licences(snapshot: &Snapshot) -> BTreeMap<String, Count> {
    let all = &snapshot.config.scheduler.licences;
    let now = snapshot.now;
    let mut free: BTreeMap<String, Count> = all
        .iter()
        .map(|(name, all)| (name.clone(), Count::new(now, *all)))
        .collect();
    if all.is_empty() {
        return free;
    }
    for run in &snapshot.running {
        for (name, count) in &run.spec.licences {
            if let Some(free) = free.get_mut(name) {
                free.take(now, end_of(run).max(now.plus_secs(1)), *count);
            }
        }
    }
    free
}
