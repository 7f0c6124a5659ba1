//! Limits at submission: jobs in the queue, tasks of an array, submissions a minute, and requests that exceed
//! a limit by themselves.
//!
//! What only has to wait is accepted: the planner enforces limits on running jobs. Queue counts are kept as
//! jobs come and go.
//! Source: sacctmgr(1), MaxSubmitJobs and its kin.

use crate::ctl::command::Refusal;
use crate::ctl::state::{Run, State, Tally};
use gmodel::config::Partition;
use gmodel::gpu_request::GpuAmount;
use gmodel::partition_list::is_among;
use gmodel::policy::{GpuAmounts, JobLimits, Limits};
use gmodel::{JobSpec, RefusalKind, Timestamp};
use gpolicy::feasibility::demand::Demand;
use gpolicy::limits::{Bound, GpuTypes, Holding, Scope, job_exceeds};
use std::collections::BTreeMap;

/// A scope with limits, and the jobs that count against it.
pub(crate) struct LimitScope<'a> {
    pub scope: Scope,
    /// The name of an account above the job's own.
    pub account: &'a str,
    pub limits: &'a Limits,
    /// GPU caps of an account beside its group limits.
    pub also: Option<&'a GpuAmounts>,
}

/// All scopes with limits for a job in a partition.
pub(crate) fn held<'a>(
    state: &'a State,
    spec: &'a JobSpec,
    partition: &'a Partition,
) -> Vec<LimitScope<'a>> {
    let mut all = Vec::new();
    for account in state.policy.lineage(&spec.account) {
        let name = &*account.name;
        all.push(LimitScope {
            scope: Scope::Account,
            account: name,
            limits: &account.group,
            also: account.limit.as_ref(),
        });
        let own = account
            .users
            .get(&spec.user.name)
            .map(|user| &user.limits)
            .filter(|own| **own != Limits::default());
        let limits = own.unwrap_or(&account.per_user);
        all.push(LimitScope {
            scope: Scope::UserInAccount,
            account: name,
            limits,
            also: None,
        });
    }
    let mut three = |scopes: [Scope; 3], limits: [&'a Limits; 3]| {
        for (scope, limits) in scopes.into_iter().zip(limits) {
            all.push(LimitScope {
                scope,
                account: &spec.account,
                limits,
                also: None,
            });
        }
    };
    if let Some(qos) = state.policy.qos.get(&spec.qos) {
        let scopes = [Scope::Qos, Scope::UserInQos, Scope::AccountInQos];
        three(scopes, [&qos.group, &qos.per_user, &qos.per_account]);
    }
    let scopes = [
        Scope::Partition,
        Scope::UserInPartition,
        Scope::AccountInPartition,
    ];
    three(
        scopes,
        [
            &partition.group,
            &partition.per_user,
            &partition.per_account,
        ],
    );
    all.retain(|held| *held.limits != Limits::default() || held.also.is_some());
    all
}

impl LimitScope<'_> {
    fn subject(&self, spec: &JobSpec) -> String {
        self.scope
            .subject(self.account, &spec.user.name, &spec.qos, &spec.partition)
    }

    /// Slurm's name for the limit on queued jobs of such a scope. For a partition it is the limit of its own
    /// QOS.
    const fn submit_limit(&self) -> &'static str {
        match self.scope {
            Scope::Account => "AssocGrpSubmitJobsLimit",
            Scope::UserInAccount => "AssocMaxSubmitJobLimit",
            Scope::Qos | Scope::Partition => "QOSGrpSubmitJobsLimit",
            Scope::UserInQos | Scope::UserInPartition => "QOSMaxSubmitJobPerUserLimit",
            Scope::AccountInQos | Scope::AccountInPartition => "MaxSubmitJobsPerAccount",
        }
    }

    /// Jobs that count against the scope and are not over.
    fn jobs(&self, state: &State, spec: &JobSpec) -> u64 {
        state
            .index
            .tally
            .count(|subject| self.counts(state, spec, subject))
    }

    /// Whether jobs of this account, user, QOS and partition count against it.
    fn counts(
        &self,
        state: &State,
        spec: &JobSpec,
        [account, user, qos, partition]: [&str; 4],
    ) -> bool {
        let below = || {
            account == self.account
                || state
                    .policy
                    .lineage(account)
                    .iter()
                    .any(|above| above.name == self.account)
        };
        let (same_user, same_qos) = (user == spec.user.name, qos == spec.qos);
        // A job in several partitions counts in each.
        let (same_account, same_partition) = (
            account == spec.account,
            is_among(partition, &spec.partition),
        );
        match self.scope {
            Scope::Account => below(),
            Scope::UserInAccount => same_user && below(),
            Scope::Qos => same_qos,
            Scope::UserInQos => same_qos && same_user,
            Scope::AccountInQos => same_qos && same_account,
            Scope::Partition => same_partition,
            Scope::UserInPartition => same_partition && same_user,
            Scope::AccountInPartition => same_partition && same_account,
        }
    }
}

/// Refuses to move jobs to a scope beyond its limit on queued jobs.
pub(crate) fn check_move(
    state: &State,
    old: &JobSpec,
    new: &JobSpec,
    partition: &Partition,
    tasks: u64,
) -> Result<(), Refusal> {
    let was = [&*old.account, &*old.user.name, &*old.qos, &*old.partition];
    for held in held(state, new, partition)
        .iter()
        .filter(|held| !held.counts(state, new, was))
    {
        queue_has_room(state, held, new, tasks)?;
    }
    Ok(())
}

/// Refuses to requeue finished jobs beyond a limit on queued jobs.
pub(crate) fn check_return(state: &State, spec: &JobSpec, tasks: u64) -> Result<(), Refusal> {
    let Some(partition) = state.config.partitions_of(&spec.partition).next() else {
        return Ok(());
    };
    held(state, spec, partition)
        .iter()
        .try_for_each(|held| queue_has_room(state, held, spec, tasks))
}

fn queue_has_room(
    state: &State,
    held: &LimitScope,
    spec: &JobSpec,
    tasks: u64,
) -> Result<(), Refusal> {
    let Some(most) = held.limits.submitted_jobs else {
        return Ok(());
    };
    let have = held.jobs(state, spec);
    if have + tasks <= u64::from(most) {
        return Ok(());
    }
    let text = format!(
        "{} may have {most} jobs in the queue and running; there are {have}, and this would be {tasks} more. Wait until \
         some have ended.",
        held.subject(spec)
    );
    Err(Refusal::limit(text)
        .about(RefusalKind::PolicyLimit)
        .naming(held.submit_limit()))
}

/// Refuses a submission beyond a limit on queued jobs, array tasks or submissions a minute.
pub(crate) fn check_queue(
    state: &State,
    spec: &JobSpec,
    partition: &Partition,
    now: Timestamp,
) -> Result<(), Refusal> {
    let parts = spec.part.map_or(1, |part| part.size);
    let tasks = spec.array.as_ref().map_or(parts, |array| array.len());
    for held in held(state, spec, partition) {
        let subject = held.subject(spec);
        let limit = |text: String| {
            Err(Refusal::limit(text)
                .about(RefusalKind::PolicyLimit)
                .naming(held.submit_limit()))
        };
        if let Some(most) = held
            .limits
            .array_tasks
            .filter(|most| spec.array.is_some() && tasks > *most)
        {
            return limit(format!(
                "{subject} may submit arrays of {most} tasks; this one has {tasks}. Split it."
            ));
        }
        queue_has_room(state, &held, spec, u64::from(tasks))?;
        if let Some(most) = held.limits.submits_per_minute
            && let Some(wait_secs) = state.memo.minutes.wait_secs(&subject, most, now)
        {
            let often = if most == 1 {
                "once".to_owned()
            } else {
                format!("{most} times")
            };
            return limit(format!(
                "{subject} may submit {often} in a minute and has done so. Try again in {wait_secs} s; an array \
                 counts once."
            ));
        }
    }
    Ok(())
}

/// Refuses a request that exceeds a limit by itself, and so could never start.
pub(crate) fn check_request(
    state: &State,
    spec: &JobSpec,
    partition: &Partition,
    limit_secs: Option<u32>,
    now: Timestamp,
) -> Result<(), Refusal> {
    let all = held(state, spec, partition);
    let per_job = state
        .policy
        .qos
        .get(&spec.qos)
        .map(|qos| &qos.per_job)
        .filter(|limits| **limits != Default::default());
    if all.is_empty() && per_job.is_none() {
        return Ok(());
    }
    let demands = Demand::all(&spec.request, partition);
    let types = gpu_types(&all, per_job, &demands);
    let mut first = None;
    for demand in &demands {
        let wanted = holding(demand, limit_secs, now, &types);
        let against =
            per_job.and_then(|limits| job_exceeds(limits, &spec.qos, &wanted, limit_secs, &types));
        let against = against.or_else(|| {
            all.iter().find_map(|held| {
                let bound = Bound::with_gpus(held.limits, held.also, &types)?;
                bound.exceeded(
                    held.scope,
                    &|| held.subject(spec),
                    None,
                    &wanted,
                    now,
                    &types,
                )
            })
        });
        match against {
            None => return Ok(()),
            Some(reason) => first = first.or(Some(reason)),
        }
    }
    match first {
        Some(reason) => {
            let text = format!(
                "{}, so it could never start ({}).",
                reason.text, reason.code
            );
            Err(Refusal::limit(text)
                .about(RefusalKind::PolicyLimit)
                .naming(reason.code.to_string()))
        }
        None => Ok(()),
    }
}

/// The GPU types that the limits and the request name.
fn gpu_types(all: &[LimitScope], per_job: Option<&JobLimits>, demands: &[Demand]) -> GpuTypes {
    let amounts = all
        .iter()
        .flat_map(|held| held.limits.gpus.iter().chain(held.also));
    let amounts = amounts.chain(
        per_job
            .iter()
            .flat_map(|limits| limits.gpus.iter().chain(&limits.min_gpus)),
    );
    let asked = demands
        .iter()
        .flat_map(|demand| &demand.nodes)
        .filter_map(|node| node.gpus.gpu_type.as_deref());
    GpuTypes::new(
        amounts
            .flat_map(|amounts| amounts.0.keys().map(String::as_str))
            .chain(asked),
    )
}

fn holding(demand: &Demand, limit_secs: Option<u32>, now: Timestamp, types: &GpuTypes) -> Holding {
    let cpus = demand.nodes.iter().map(|node| u64::from(node.cpus)).sum();
    let until = limit_secs.map(|secs| now.plus_secs(i64::from(secs)));
    let mut wanted = Holding::new(cpus, demand.nodes.len() as u64, now, until);
    for gpus in demand.nodes.iter().map(|node| &node.gpus) {
        let milli = match &gpus.amount {
            GpuAmount::Whole(count) | GpuAmount::Mig { count, .. } => {
                u64::from(*count) * u64::from(gpus.least_milli())
            }
            GpuAmount::Share { milli } => u64::from(*milli),
        };
        let number = gpus
            .gpu_type
            .as_deref()
            .map_or(gpolicy::limits::ALL, |name| types.number(name));
        wanted.add_gpus(number, milli);
    }
    wanted
}

/// A limit with its usage, from the running jobs.
struct LimitUsage {
    limits: Limits,
    also: GpuAmounts,
    jobs: u32,
    cpus: u32,
    nodes: u32,
    /// Thousandths by type, and of all, with the newest placement among the runs that hold some.
    gpus: BTreeMap<String, (u64, Timestamp)>,
    newest: Timestamp,
}

impl LimitUsage {
    fn of(held: &LimitScope) -> Self {
        Self {
            limits: held.limits.clone(),
            also: held.also.cloned().unwrap_or_default(),
            jobs: 0,
            cpus: 0,
            nodes: 0,
            gpus: BTreeMap::new(),
            newest: Timestamp::default(),
        }
    }

    /// Counts what a run holds on nodes that it has not left.
    fn add(&mut self, state: &State, run: &Run) {
        // A component whose nodes are clean waits for the end of the other components and holds nothing.
        let is_held = !run.members.iter().all(|member| member.is_settled());
        self.jobs += u32::from(is_held);
        self.newest = self.newest.max(run.placed);
        let members = run.allocation.iter().zip(&run.members);
        for (share, _) in members.filter(|(_, member)| !member.is_settled()) {
            self.cpus += share.cpus;
            self.nodes += 1;
            let node = state.node(share.node);
            for grant in &share.gpus.0 {
                let gpu = node.and_then(|node| node.gpus.get(usize::from(grant.slot.0)));
                let kind = gpu.map_or(String::new(), |gpu| gpu.info.gpu_type.to_ascii_lowercase());
                for kind in [kind, gmodel::policy::ALL_GPUS.to_owned()] {
                    let (milli, newest) = self.gpus.entry(kind).or_default();
                    *milli += u64::from(grant.part.milli());
                    *newest = run.placed.max(*newest);
                }
            }
        }
    }

    /// What exceeds the limit, unless the limit is newer.
    fn check(&self, subject: &str, limit_since: Timestamp, found: &mut Vec<String>) {
        if self.newest <= limit_since {
            return;
        }
        let counts = [
            ("jobs", self.limits.running_jobs, self.jobs),
            ("CPUs", self.limits.cpus, self.cpus),
            ("nodes", self.limits.nodes, self.nodes),
        ];
        for (what, most, has) in counts {
            if most.is_some_and(|most| has > most) {
                found.push(format!("{subject} may have {most:?} {what} and has {has}"));
            }
        }
        let amounts = self.limits.gpus.iter().chain([&self.also]);
        for (kind, most) in amounts.flat_map(|amounts| &amounts.0) {
            let (has, newest) = self.gpus.get(kind).copied().unwrap_or_default();
            if has > *most && newest > limit_since {
                found.push(format!(
                    "{subject} may hold {most} thousandths of {kind} and holds {has}"
                ));
            }
        }
    }
}

/// Violation: a limit that the newest run under it exceeds, unless the limit is newer.
fn check_running(state: &State, found: &mut Vec<String>) {
    let mut running: BTreeMap<String, LimitUsage> = BTreeMap::new();
    for run in state.runs.values().filter(|run| run.outcome.is_none()) {
        let Some(job) = state.job(run.id.job) else {
            continue;
        };
        let Some(partition) = state.config.partition(&job.spec.partition) else {
            continue;
        };
        for held in held(state, &job.spec, partition) {
            let usage = running.entry(held.subject(&job.spec));
            usage
                .or_insert_with(|| LimitUsage::of(&held))
                .add(state, run);
        }
    }
    for (subject, usage) in running {
        usage.check(&subject, state.policy_since.1, found);
    }
}

/// Violation: counts that differ from the records.
pub(crate) fn check(state: &State, found: &mut Vec<String>) {
    let mut counted = Tally::default();
    for job in state.jobs.values().filter(|job| !job.state.is_final()) {
        counted.add(&job.spec, 1);
    }
    for array in state.arrays.values() {
        counted.add(&array.spec, array.pending.len());
    }
    check_running(state, found);
    if counted != state.index.tally {
        found.push(format!(
            "jobs are counted as {:?} and there are {counted:?}",
            state.index.tally
        ));
    }
}
