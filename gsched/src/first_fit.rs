//! One pass: jobs by priority, each on the first nodes that fit; who waits gets one reason.
//!
//! The first job of a partition that lacks resources keeps a reservation at the earliest time it can
//! start; later jobs may pass it only where they do not delay it (EASY backfill, Lifka 1995). Jobs of one
//! shape are tried once a pass.

use crate::demand::{Demand, Lack, MemDemand, NodeDemand};
use crate::plan::{Plan, Start, WorkBudget};
use crate::snapshot::{PendingJob, SchedNode, Snapshot};
use gmodel::config::{Partition, PartitionState};
use gmodel::constraint::Constraint;
use gmodel::hostlist::natural_order;
use gmodel::run::{Allocation, NodeShare};
use gmodel::{JobId, JobSpec, NodeId, Reason, ReasonCode, Request, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Decides which pending jobs start now, and why the others wait.
pub fn plan(snapshot: &Snapshot, budget: WorkBudget) -> Plan {
    let mut pass = Pass::new(snapshot, budget);
    for (job, partition) in in_order(snapshot) {
        let reason = match partition {
            Some(at) => pass.consider(job, at),
            None => Some(no_partition(job)),
        };
        if let Some(reason) = reason.filter(|reason| *reason != job.reason) {
            match &job.positions {
                None => pass.plan.reasons.push((job.id, reason)),
                Some(_) => pass.plan.array_reasons.push((job.id, reason)),
            }
        }
        if pass.is_spent() {
            pass.plan.cut_short = true;
            break;
        }
    }
    pass.plan
}

/// Priority as listings show it: larger goes first. Tier, then nice.
pub fn priority(partition: Option<&Partition>, nice: i32) -> u64 {
    let tier = u64::from(partition.map_or(0, |p| p.priority_tier));
    let nice = (i64::from(i32::MAX) - i64::from(nice)) as u64;
    (tier << 33) | nice
}

fn in_order(snapshot: &Snapshot) -> Vec<(&PendingJob, Option<usize>)> {
    let config = &snapshot.config;
    let by_name: BTreeMap<&str, usize> =
        config.partitions.iter().enumerate().map(|(at, p)| (p.name.as_str(), at)).collect();
    let mut jobs: Vec<_> = snapshot
        .pending
        .iter()
        .map(|job| (job, by_name.get(job.spec.partition.as_str()).copied()))
        .collect();
    jobs.sort_by_cached_key(|(job, at)| {
        let priority = priority(at.map(|at| &config.partitions[at]), job.nice);
        (std::cmp::Reverse(priority), job.submitted, job.id)
    });
    jobs
}

fn no_partition(job: &PendingJob) -> Reason {
    let text = format!("partition {:?} is not in the configuration", job.spec.partition);
    Reason::new(ReasonCode::PartitionConfig, text)
}

/// Jobs that ask for the same on the same terms: what one cannot get, the others cannot either.
type ShapeKey<'a> = (usize, &'a Request, Option<u32>);

struct Pass<'a> {
    snapshot: &'a Snapshot,
    nodes: Vec<SchedNode>,
    /// Positions in `nodes`, by partition.
    members: Vec<Vec<usize>>,
    /// Earliest start of the first job that waits for resources, by partition.
    reserved: Vec<Option<Reservation>>,
    refused: BTreeMap<ShapeKey<'a>, Reason>,
    /// The one of `refused` that was asked for last.
    last_refused: Option<(&'a Arc<JobSpec>, Option<u32>, Reason)>,
    /// A job of the partition waits for resources already: those after it wait for their turn too.
    has_first: Vec<bool>,
    /// Way of serving and node of the array task just started: the node it filled further is the best for
    /// the next task too, as long as that fits.
    again: Option<(usize, usize)>,
    /// What was started in this pass, with its end: who waits may be waiting for one of these.
    started: Vec<Ending>,
    probes_left: u64,
    starts_left: usize,
    plan: Plan,
}

/// When a share must be free, and which.
type Ending = (Timestamp, NodeShare);

struct Reservation {
    job: JobId,
    at: Timestamp,
    nodes: BTreeSet<NodeId>,
}

impl<'a> Pass<'a> {
    fn new(snapshot: &'a Snapshot, budget: WorkBudget) -> Self {
        let members = snapshot
            .config
            .partitions
            .iter()
            .map(|partition| {
                let holds = |node: &SchedNode| partition.holds(&node.name, &node.features);
                (0..snapshot.nodes.len()).filter(|&at| holds(&snapshot.nodes[at])).collect()
            })
            .collect();
        Self {
            snapshot,
            nodes: snapshot.nodes.clone(),
            members,
            reserved: snapshot.config.partitions.iter().map(|_| None).collect(),
            refused: BTreeMap::new(),
            last_refused: None,
            has_first: vec![false; snapshot.config.partitions.len()],
            again: None,
            started: Vec::new(),
            probes_left: budget.node_probes,
            starts_left: budget.starts,
            plan: Plan { made_from: snapshot.seq, ..Plan::default() },
        }
    }

    fn is_spent(&self) -> bool {
        self.probes_left == 0 || self.starts_left == 0
    }

    /// Starts what can start of a job; the reason of what is left waiting.
    fn consider(&mut self, job: &'a PendingJob, partition: usize) -> Option<Reason> {
        let snapshot = self.snapshot;
        if let Some(reason) = standing_reason(job, &snapshot.config.partitions[partition], snapshot)
        {
            return Some(reason);
        }
        let key: ShapeKey = (partition, &job.spec.request, job.limit_secs);
        if job.avoid.is_empty() {
            // Equal jobs often share their request and stand behind each other.
            if let Some((spec, limit_secs, reason)) = &self.last_refused
                && Arc::ptr_eq(spec, &job.spec)
                && *limit_secs == job.limit_secs
            {
                return Some(reason.clone());
            }
            if let Some(reason) = self.refused.get(&key) {
                self.last_refused = Some((&job.spec, job.limit_secs, reason.clone()));
                return Some(reason.clone());
            }
        }
        let demands = Demand::all(&job.spec.request, &snapshot.config.partitions[partition]);
        let candidates = match self.candidates(job, partition) {
            Ok(candidates) => candidates,
            Err(reason) => return Some(reason),
        };
        self.again = None;
        let reason = match &job.positions {
            None => self.start_one(job, job.id, partition, &candidates, &demands).err(),
            Some(positions) => {
                let mut room = job.room.unwrap_or(u32::MAX);
                let mut left = None;
                for position in positions.iter() {
                    if room == 0 {
                        left = Some(array_limit());
                        break;
                    }
                    let id = JobId(job.id.0 + u64::from(position));
                    if let Err(reason) = self.start_one(job, id, partition, &candidates, &demands) {
                        left = Some(reason);
                        break;
                    }
                    room -= 1;
                    if self.is_spent() {
                        break;
                    }
                }
                left
            }
        };
        if let Some(reason) = &reason
            && job.avoid.is_empty()
            && reason.code != ReasonCode::JobArrayTaskLimit
        {
            // The next of this shape lack the same, and wait behind this one.
            let next = match reason.code {
                ReasonCode::Resources => behind_others(&demands.first().map_or(String::new(), describe)),
                _ => reason.clone(),
            };
            self.refused.insert(key, next);
        }
        reason
    }

    fn start_one(
        &mut self,
        job: &PendingJob,
        id: JobId,
        partition: usize,
        candidates: &[usize],
        demands: &[Demand],
    ) -> Result<(), Reason> {
        let ends = job.limit_secs.map(|secs| self.snapshot.now.plus_secs(i64::from(secs)));
        let open = |node: &SchedNode, reserved: &Option<Reservation>| match reserved {
            Some(r) if r.nodes.contains(&node.id) => ends.is_some_and(|end| end <= r.at),
            _ => true,
        };
        let again = self.again.take();
        let from = again.map_or(0, |(way, _)| way);
        for (way, demand) in demands.iter().enumerate().skip(from) {
            let same = again.filter(|(before, at)| {
                *before == way && demand.nodes.len() == 1 && demand.nodes[0].may_fit(&self.nodes[*at])
            });
            let near = same.map(|(_, at)| [at]);
            let pool = near.as_ref().map_or(candidates, |at| &at[..]);
            let fit = fit(&self.nodes, pool, demand, job, &mut self.probes_left, |node| {
                node.unavailable.is_none() && self.reserved.iter().all(|r| open(node, r))
            });
            if let Some(allocation) = fit {
                for share in &allocation {
                    // Snapshots list their nodes by id.
                    if let Ok(at) = self.nodes.binary_search_by_key(&share.node, |node| node.id) {
                        self.nodes[at].take(share);
                        self.again = Some((way, at));
                    }
                    if let Some(end) = ends {
                        self.started.push((end, share.clone()));
                    }
                }
                self.plan.starts.push(Start { job: id, allocation, class: None, limit_secs: None });
                self.starts_left = self.starts_left.saturating_sub(1);
                return Ok(());
            }
        }
        Err(self.why_not(job, id, partition, candidates, demands))
    }

    /// Nodes of the partition that the request allows, or the reason why there are none.
    fn candidates(&self, job: &PendingJob, partition: usize) -> Result<Vec<usize>, Reason> {
        let request = &job.spec.request;
        let constraint = match request.constraint.as_deref().map(Constraint::parse).transpose() {
            Ok(constraint) => constraint,
            Err(error) => return Err(Reason::new(ReasonCode::BadConstraints, error.to_string())),
        };
        let allowed = |node: &SchedNode| {
            request.exclude.as_ref().is_none_or(|list| !list.contains(&node.name))
                && constraint.as_ref().is_none_or(|wanted| {
                    wanted.eval(&node.features.iter().map(String::as_str).collect())
                })
        };
        let mut found: Vec<usize> = self.members[partition]
            .iter()
            .copied()
            .filter(|&at| allowed(&self.nodes[at]))
            .collect();
        // Nodes this job failed on come last.
        found.sort_by_key(|&at| job.avoid.contains(&self.nodes[at].id));
        Ok(found)
    }

    fn why_not(
        &mut self,
        job: &PendingJob,
        id: JobId,
        partition: usize,
        candidates: &[usize],
        demands: &[Demand],
    ) -> Reason {
        let name = &self.snapshot.config.partitions[partition].name;
        if let Some(reason) = self.never(job, name, candidates, demands) {
            return reason;
        }
        let free = demands.iter().any(|demand| {
            fit(&self.nodes, candidates, demand, job, &mut self.probes_left, |node| {
                node.unavailable.is_none()
            })
            .is_some()
        });
        if free {
            let ahead = self.reserved.iter().flatten().map(|r| r.job.to_string());
            let text = format!("what it needs is kept for job {}", first(ahead));
            return Reason::new(ReasonCode::Priority, text);
        }
        let needs = demands.first().map_or(String::new(), describe);
        if std::mem::replace(&mut self.has_first[partition], true) {
            return behind_others(&needs);
        }
        let mut text = format!("needs {needs}; {}", self.what_is_free(candidates));
        if let Some((at, nodes)) = self.earliest(job, candidates, demands) {
            text.push_str(&format!("; room is expected by {at}"));
            self.reserved[partition] = Some(Reservation { job: id, at, nodes });
        }
        Reason::new(ReasonCode::Resources, text)
    }

    /// The reason of a job that would not fit even if nothing else ran.
    fn never(
        &self,
        job: &PendingJob,
        partition: &str,
        candidates: &[usize],
        demands: &[Demand],
    ) -> Option<Reason> {
        if let Some(list) = &job.spec.request.nodelist {
            let known = |name: &&str| candidates.iter().any(|&at| self.nodes[at].name == **name);
            if let Some(missing) = list.iter().find(|name| !known(name)) {
                let text = format!("node {missing:?} is none that partition {partition:?} can give it");
                return Some(Reason::new(ReasonCode::BadConstraints, text));
            }
        }
        let fits_empty = |up_only: bool| {
            demands.iter().any(|demand| {
                let usable = |at: &&usize| !up_only || self.nodes[**at].unavailable.is_none();
                let named = named_nodes(job, &self.nodes, candidates);
                let have: Vec<_> = candidates.iter().filter(usable).collect();
                let named_fit = named.iter().all(|at| have.contains(&at));
                named_fit
                    && demand.nodes.iter().enumerate().all(|(at, wanted)| {
                        let good = have
                            .iter()
                            .filter(|node| wanted.fits_empty(&self.nodes[***node]).is_ok())
                            .count();
                        good > at
                    })
            })
        };
        if fits_empty(true) {
            return None;
        }
        if fits_empty(false) {
            let down: Vec<String> = candidates
                .iter()
                .map(|&at| &self.nodes[at])
                .filter_map(|n| n.unavailable.as_ref().map(|why| format!("{}: {why}", n.name)))
                .take(4)
                .collect();
            let text = format!("nodes it needs are not available ({})", down.join(", "));
            return Some(Reason::new(ReasonCode::ReqNodeNotAvail, text));
        }
        let needs = demands.first().map_or(String::new(), describe);
        let text = format!("needs {needs}; partition {partition:?} has no such nodes");
        let code = if job.spec.request.constraint.is_some() && candidates.is_empty() {
            ReasonCode::BadConstraints
        } else {
            ReasonCode::PartitionConfig
        };
        Some(Reason::new(code, text))
    }

    fn what_is_free(&self, candidates: &[usize]) -> String {
        let most = candidates
            .iter()
            .map(|&at| &self.nodes[at])
            .filter(|node| node.unavailable.is_none())
            .map(|node| {
                let gpus = node.free_gpu_milli.iter().filter(|free| **free == 1000).count();
                (gpus, node.free_cpus, node.free_mem_bytes, &node.name)
            })
            .max();
        match most {
            Some((gpus, cpus, mem, name)) => {
                let mem = gmodel::size::rough_size(mem);
                format!("most is free on {name}: {gpus} GPUs, {cpus} CPUs and {mem} of memory")
            }
            None => "no node is available".into(),
        }
    }

    /// When, by the time limits of what runs, the job could start, and on which nodes.
    fn earliest(
        &mut self,
        job: &PendingJob,
        candidates: &[usize],
        demands: &[Demand],
    ) -> Option<(Timestamp, BTreeSet<NodeId>)> {
        let demand = demands.first()?;
        let running = self.snapshot.running.iter().filter_map(|run| Some((run.ends_by?, run)));
        let mut ends: Vec<(Timestamp, &NodeShare)> =
            running.flat_map(|(end, run)| run.shares.iter().map(move |share| (end, share))).collect();
        ends.extend(self.started.iter().map(|(end, share)| (*end, share)));
        ends.sort_by_key(|(end, _)| *end);
        let at_of: BTreeMap<NodeId, usize> =
            self.nodes.iter().enumerate().map(|(at, node)| (node.id, at)).collect();
        let mut after = |count: usize| {
            let mut nodes = self.nodes.clone();
            for (_, share) in &ends[..count] {
                if let Some(at) = at_of.get(&share.node) {
                    nodes[*at].give(share);
                }
            }
            fit(&nodes, candidates, demand, job, &mut self.probes_left, |node| {
                node.unavailable.is_none()
            })
        };
        // More ends never make it worse, so the first count that fits is found by halving.
        let mut fits = after(ends.len())?;
        let (mut low, mut high) = (0, ends.len());
        while low < high {
            let middle = (low + high) / 2;
            match after(middle) {
                Some(allocation) => {
                    fits = allocation;
                    high = middle;
                }
                None => low = middle + 1,
            }
        }
        let at = ends.get(high.checked_sub(1)?)?.0.max(self.snapshot.now);
        Some((at, fits.iter().map(|share| share.node).collect()))
    }
}

/// The reason of a job with this owner's hold on it.
pub fn held_by(owner: &str) -> Reason {
    let code = if owner.starts_with("user:") {
        ReasonCode::JobHeldUser
    } else if owner == "system" {
        ReasonCode::JobHoldMaxRequeue
    } else {
        ReasonCode::JobHeldAdmin
    };
    Reason::new(code, format!("held by {owner}"))
}

/// Reasons that do not depend on what is free.
fn standing_reason(job: &PendingJob, partition: &Partition, snapshot: &Snapshot) -> Option<Reason> {
    if let Some(owner) = job.held_by.as_deref() {
        return Some(held_by(owner));
    }
    if job.eligible > snapshot.now {
        let text = format!("not before {}", job.eligible);
        return Some(Reason::new(ReasonCode::BeginTime, text));
    }
    match partition.state {
        PartitionState::Down => return Some(ReasonCode::PartitionDown.into()),
        PartitionState::Inactive => return Some(ReasonCode::PartitionInactive.into()),
        PartitionState::Up | PartitionState::Drain => {}
    }
    if let (Some(most), Some(limit)) = (partition.max_time_secs, job.limit_secs)
        && limit > most
    {
        let text = format!("asks for {limit} s, partition {:?} allows {most} s", partition.name);
        return Some(Reason::new(ReasonCode::PartitionTimeLimit, text));
    }
    if let Some(most) = partition.max_nodes
        && job.spec.request.nodes_min > most
    {
        let text = format!("asks for {} nodes, the limit is {most}", job.spec.request.nodes_min);
        return Some(Reason::new(ReasonCode::PartitionNodeLimit, text));
    }
    (job.room == Some(0)).then(array_limit)
}

fn array_limit() -> Reason {
    let text = "as many tasks of the array run as it allows at once";
    Reason::new(ReasonCode::JobArrayTaskLimit, text)
}

/// Finds nodes for every part of a demand, or none at all.
///
/// Among the nodes that fit, the one that would be left with the fewest free GPUs is taken, so that
/// whole nodes stay open; jobs without GPUs keep away from nodes that have some.
fn fit(
    nodes: &[SchedNode],
    candidates: &[usize],
    demand: &Demand,
    job: &PendingJob,
    probes_left: &mut u64,
    open: impl Fn(&SchedNode) -> bool,
) -> Option<Allocation> {
    let named = named_nodes(job, nodes, candidates);
    if job.spec.request.nodelist.as_ref().is_some_and(|list| named.len() < list.len()) {
        return None;
    }
    let mut taken: BTreeSet<usize> = BTreeSet::new();
    let mut allocation = Vec::with_capacity(demand.nodes.len());
    for (at, wanted) in demand.nodes.iter().enumerate() {
        let pool: &[usize] = if at < named.len() { &named[at..=at] } else { candidates };
        let best = pool
            .iter()
            .filter(|at| !taken.contains(at) && open(&nodes[**at]))
            .filter_map(|&at| {
                *probes_left = probes_left.saturating_sub(1);
                wanted.may_fit(&nodes[at]).then(|| (badness(&nodes[at], wanted, job), at))
            })
            .min()?;
        taken.insert(best.1);
        allocation.push((best.1, wanted.share_on(&nodes[best.1]).ok()?));
    }
    // Ranks follow the nodes' names, as every script that takes the first host for its master expects.
    allocation.sort_by(|(a, _), (b, _)| natural_order(&nodes[*a].name, &nodes[*b].name));
    Some(allocation.into_iter().map(|(_, share)| share).collect())
}

fn named_nodes(job: &PendingJob, nodes: &[SchedNode], candidates: &[usize]) -> Vec<usize> {
    let Some(list) = &job.spec.request.nodelist else { return Vec::new() };
    list.iter()
        .filter_map(|name| candidates.iter().copied().find(|&at| nodes[at].name == name))
        .collect()
}

fn badness(node: &SchedNode, wanted: &NodeDemand, job: &PendingJob) -> (bool, usize) {
    let free = node.free_gpu_milli.iter().filter(|milli| **milli > 0).count();
    (job.avoid.contains(&node.id), free.saturating_sub(wanted.gpus.count() as usize))
}

/// The same words in every pass, so that a long queue does not change with each job that starts.
fn behind_others(needs: &str) -> Reason {
    let text = format!("needs {needs}; jobs of higher priority wait for such resources too");
    Reason::new(ReasonCode::Priority, text)
}

fn describe(demand: &Demand) -> String {
    let Some(first) = demand.nodes.first() else { return "nothing".into() };
    let plural = |count: u32| if count == 1 { "" } else { "s" };
    let (gpus, cpus) = (first.gpus.count(), first.cpus);
    let gpus = match &first.gpus.gpu_type {
        _ if gpus == 0 => None,
        None => Some(format!("{gpus} GPU{}", plural(gpus))),
        Some(kind) => Some(format!("{gpus} {kind}")),
    };
    let mem = match first.mem {
        MemDemand::Bytes(bytes) if bytes > 0 => {
            Some(format!("{} of memory", gmodel::size::rough_size(bytes)))
        }
        _ => None,
    };
    let mut parts: Vec<String> =
        gpus.into_iter().chain([format!("{cpus} CPU{}", plural(cpus))]).chain(mem).collect();
    let last = parts.pop().expect("CPUs are always named");
    let all = if parts.is_empty() { last } else { format!("{} and {last}", parts.join(", ")) };
    let whole = if first.exclusive { " with nothing else on it" } else { "" };
    match demand.nodes.len() {
        1 => format!("{all} on one node{whole}"),
        n => format!("{all} on each of {n} nodes{whole}"),
    }
}

fn first(mut texts: impl Iterator<Item = String>) -> String {
    texts.next().unwrap_or_else(|| "ahead of it".into())
}

/// Why a request can never run in a partition as its nodes are now, with what would work; `None`
/// when it can. Used at submission (nodes that are down count: they come back).
pub fn impossible(
    request: &Request,
    partition: &Partition,
    nodes: &[SchedNode],
) -> Option<String> {
    let members: Vec<_> =
        nodes.iter().filter(|n| partition.holds(&n.name, &n.features)).collect();
    let demands = Demand::all(request, partition);
    let lacks: Vec<Lack> = demands.iter().filter_map(|d| lack_of(d, &members)).collect();
    if lacks.len() < demands.len() {
        return None;
    }
    let demand = demands.first()?;
    let wanted = demand.nodes.first()?;
    let name = &partition.name;
    let text = match lacks.into_iter().min()? {
        Lack::Kind => {
            "shares and slices of GPUs are not offered by this cluster; ask for whole GPUs".into()
        }
        Lack::Nodes => {
            let fitting = members.iter().filter(|node| wanted.fits_empty(node).is_ok()).count();
            format!(
                "{}: partition {name:?} has {fitting} such nodes. Ask for fewer --nodes.",
                describe(demand)
            )
        }
        Lack::Gpus => {
            let of_kind = |n: &&SchedNode| {
                n.gpus.iter().filter(|gpu| wanted.gpus.matches(&gpu.info)).count()
            };
            let most = members.iter().map(of_kind).max().unwrap_or(0);
            let kind = wanted.gpus.gpu_type.as_deref().unwrap_or("GPUs");
            let count = wanted.gpus.count();
            let ask = format!("{count} {kind} on one node");
            if most == 0 {
                let mut types: BTreeSet<&str> = BTreeSet::new();
                types.extend(members.iter().flat_map(|n| n.gpus.iter().map(|g| &*g.info.gpu_type)));
                let types: Vec<_> = types.into_iter().collect();
                let has = if types.is_empty() { "no GPUs".into() } else { types.join(", ") };
                format!("{ask}: partition {name:?} has none such (it has {has}).")
            } else {
                let nodes = (count as usize).div_ceil(most);
                let each = (count as usize).div_ceil(nodes);
                let of_type = wanted.gpus.gpu_type.as_ref().map_or(String::new(), |t| format!("{t}:"));
                format!(
                    "{ask}: the largest node in partition {name:?} has {most}. \
                     Try --nodes {nodes} --gpus-per-node {of_type}{each}."
                )
            }
        }
        Lack::Cpus => {
            let most = members.iter().map(|n| n.cpus).max().unwrap_or(0);
            format!(
                "{} CPUs on one node: the largest node in partition {name:?} has {most}. \
                 Ask for fewer, or for more --nodes.",
                wanted.cpus
            )
        }
        Lack::Memory => {
            let most = members.iter().map(|n| n.mem_bytes).max().unwrap_or(0);
            format!(
                "more memory on one node than any has: the largest in partition {name:?} has {}.",
                gmodel::size::rough_size(most)
            )
        }
    };
    Some(text)
}

fn lack_of(demand: &Demand, members: &[&SchedNode]) -> Option<Lack> {
    if members.is_empty() {
        return None;
    }
    demand.nodes.iter().enumerate().find_map(|(at, wanted)| {
        let fitting = members.iter().filter(|node| wanted.fits_empty(node).is_ok()).count();
        if fitting > 0 {
            return (fitting <= at).then_some(Lack::Nodes);
        }
        // What the node that comes closest lacks.
        members.iter().filter_map(|node| wanted.fits_empty(node).err()).max()
    })
}
