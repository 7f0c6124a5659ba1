//! Limits that hold at submission: jobs in the queue, tasks of an array, submissions a minute, and requests that no room
//! could ever satisfy.
//!
//! What only has to wait is accepted: the planner counts what runs. Who has how many jobs is counted as they come and go.
//! Source: sacctmgr(1), MaxSubmitJobs and its kin.

use super::command::Refusal;
use super::state::State;
use gmodel::config::Partition;
use gmodel::gpu_request::GpuAmount;
use gmodel::partition_list::is_among;
use gmodel::policy::{GpuAmounts, Limits};
use gmodel::{JobSpec, RefusalKind, Timestamp};
use gsched::Demand;
use gsched::limits::{Bound, GpuTypes, Holding, Scope, job_exceeds};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Scopes whose submissions of the last minute are remembered; more, and the oldest are forgotten.
const MAX_MINUTES: usize = 4096;
/// Submissions a minute that are remembered of one scope, whatever its limit.
const MAX_SUBMITS: usize = 10_000;
const MINUTE_MILLIS: i64 = 60_000;

/// Jobs that are not over, array tasks one by one, by account, user, QOS and partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<Arc<str>, u64>);

/// When somebody's last submissions were. A memo of the controller that runs: a restart forgets a minute.
#[derive(Clone, Debug, Default)]
pub struct Minutes(BTreeMap<String, VecDeque<Timestamp>>);

impl Tally {
    fn key(spec: &JobSpec) -> String {
        [&*spec.account, &spec.user.name, &spec.qos, &spec.partition].join("\0")
    }

    pub(super) fn add(&mut self, spec: &JobSpec, jobs: u64) {
        if jobs > 0 {
            let key = Self::key(spec);
            match self.0.get_mut(&*key) {
                Some(count) => *count += jobs,
                None => drop(self.0.insert(key.into(), jobs)),
            }
        }
    }

    pub(super) fn remove(&mut self, spec: &JobSpec, jobs: u64) {
        let key = Self::key(spec);
        if let Some(count) = self.0.get_mut(&*key) {
            *count -= jobs;
            if *count == 0 {
                self.0.remove(&*key);
            }
        }
    }

    /// Jobs of those that match: account, user, QOS, partition.
    pub fn count(&self, matches: impl Fn([&str; 4]) -> bool) -> u64 {
        let parts = |key: &'_ Arc<str>| -> bool {
            let mut parts = key.split('\0');
            matches(std::array::from_fn(|_| parts.next().unwrap_or("")))
        };
        self.0
            .iter()
            .filter(|(key, _)| parts(key))
            .map(|(_, count)| count)
            .sum()
    }
}

/// Whose limits, and whose jobs count against them.
struct Held<'a> {
    scope: Scope,
    /// Of an account above the job's own: its name.
    account: &'a str,
    limits: &'a Limits,
    /// GPUs of an account beside its group limits.
    also: Option<&'a GpuAmounts>,
}

/// All limits a job stands under.
fn held<'a>(state: &'a State, spec: &'a JobSpec, partition: &'a Partition) -> Vec<Held<'a>> {
    let mut all = Vec::new();
    for account in state.policy.lineage(&spec.account) {
        let name = &*account.name;
        all.push(Held {
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
        all.push(Held {
            scope: Scope::UserInAccount,
            account: name,
            limits,
            also: None,
        });
    }
    let mut three = |scopes: [Scope; 3], limits: [&'a Limits; 3]| {
        for (scope, limits) in scopes.into_iter().zip(limits) {
            all.push(Held {
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

impl Held<'_> {
    fn subject(&self, spec: &JobSpec) -> String {
        self.scope
            .subject(self.account, &spec.user.name, &spec.qos, &spec.partition)
    }

    /// What Slurm calls the limit on jobs in the queue of such a scope. A partition's limits are those of its own QOS there.
    const fn submit_limit(&self) -> &'static str {
        match self.scope {
            Scope::Account => "AssocGrpSubmitJobsLimit",
            Scope::UserInAccount => "AssocMaxSubmitJobLimit",
            Scope::Qos | Scope::Partition => "QOSGrpSubmitJobsLimit",
            Scope::UserInQos | Scope::UserInPartition => "QOSMaxSubmitJobPerUserLimit",
            Scope::AccountInQos | Scope::AccountInPartition => "MaxSubmitJobsPerAccount",
        }
    }

    /// Jobs that count against it, not over yet.
    fn jobs(&self, state: &State, spec: &JobSpec) -> u64 {
        state.tally.count(|who| self.counts(state, spec, who))
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
        // Who waits in several partitions counts in each.
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

/// Refuses to move jobs to where they would be more than somebody may have queued.
pub(super) fn check_move(
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

/// Refuses to put jobs that were over back into the queue where they would be more than somebody may have there.
pub(super) fn check_return(state: &State, spec: &JobSpec, tasks: u64) -> Result<(), Refusal> {
    let Some(partition) = state.config.partitions_of(&spec.partition).next() else {
        return Ok(());
    };
    held(state, spec, partition)
        .iter()
        .try_for_each(|held| queue_has_room(state, held, spec, tasks))
}

fn queue_has_room(state: &State, held: &Held, spec: &JobSpec, tasks: u64) -> Result<(), Refusal> {
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

/// Refuses a submission that is beyond what somebody may have queued or submit at once.
pub(super) fn check_queue(
    state: &State,
    spec: &JobSpec,
    partition: &Partition,
    now: Timestamp,
) -> Result<(), Refusal> {
    let tasks = spec.array.as_ref().map_or(1, |array| array.len());
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
            && let Some(wait_secs) = state.minutes.wait_secs(&subject, most, now)
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

/// Refuses a request that is beyond a limit all by itself, and so could never start.
pub(super) fn check_request(
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
    let types = GpuTypes::new(
        amounts
            .flat_map(|amounts| amounts.0.keys().map(String::as_str))
            .chain(asked),
    );
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
            .map_or(gsched::limits::ALL, |name| types.number(name));
        wanted.add_gpus(number, milli);
    }
    wanted
}

impl Minutes {
    /// Seconds until another submission is allowed; `None`: now.
    fn wait_secs(&self, subject: &str, most: u32, now: Timestamp) -> Option<i64> {
        let most = (most as usize).min(MAX_SUBMITS);
        let submits = self.0.get(subject)?;
        let decisive = submits.iter().rev().nth(most.checked_sub(1)?)?;
        let open = decisive.plus_millis(MINUTE_MILLIS);
        (open > now).then(|| (open.since_millis(now) + 999) / 1000)
    }

    fn note(&mut self, subject: String, most: u32, now: Timestamp) {
        if self.0.len() >= MAX_MINUTES {
            self.0.retain(|_, submits| {
                submits
                    .back()
                    .is_some_and(|at| at.plus_millis(MINUTE_MILLIS) > now)
            });
            if self.0.len() >= MAX_MINUTES {
                self.0.pop_first();
            }
        }
        let submits = self.0.entry(subject).or_default();
        submits.push_back(now);
        while submits.len() > (most as usize).min(MAX_SUBMITS) {
            submits.pop_front();
        }
    }
}

/// Remembers an accepted submission where submissions a minute are limited.
pub(super) fn note_submission(state: &mut State, spec: &JobSpec, now: Timestamp) {
    let mut limited: BTreeMap<String, u32> = BTreeMap::new();
    for partition in state.config.partitions_of(&spec.partition) {
        let subject = |held: &Held| {
            held.scope
                .subject(held.account, &spec.user.name, &spec.qos, &partition.name)
        };
        let held = held(state, spec, partition);
        limited.extend(
            held.iter()
                .filter_map(|held| Some((subject(held), held.limits.submits_per_minute?))),
        );
    }
    for (subject, most) in limited {
        state.minutes.note(subject, most, now);
    }
}

/// What a limit bounds of what runs.
#[derive(Default)]
struct Running {
    jobs: u32,
    cpus: u32,
    nodes: u32,
    /// Thousandths by type, and of all, with when the newest run that holds some was placed: one that holds none is not held up.
    gpus: BTreeMap<String, (u64, Timestamp)>,
    newest: Timestamp,
}

/// What must never be: a limit that the newest run under it exceeds, unless the limit is newer.
fn check_running(state: &State, found: &mut Vec<String>) {
    let mut running: BTreeMap<String, (Limits, GpuAmounts, Running)> = BTreeMap::new();
    for run in state.runs.values().filter(|run| run.outcome.is_none()) {
        let Some(job) = state.jobs.get(run.id.job) else {
            continue;
        };
        let Some(partition) = state.config.partition(&job.spec.partition) else {
            continue;
        };
        for held in held(state, &job.spec, partition) {
            let also = held.also.cloned().unwrap_or_default();
            let entry = running.entry(held.subject(&job.spec));
            let (_, _, sum) =
                entry.or_insert_with(|| (held.limits.clone(), also, Running::default()));
            sum.jobs += 1;
            sum.newest = sum.newest.max(run.placed);
            for (share, _) in run
                .allocation
                .iter()
                .zip(&run.members)
                .filter(|(_, member)| !member.is_settled())
            {
                sum.cpus += share.cpus;
                sum.nodes += 1;
                for grant in &share.gpus.0 {
                    let gpu = state
                        .nodes
                        .get(share.node)
                        .and_then(|node| node.gpus.get(usize::from(grant.slot.0)));
                    let kind =
                        gpu.map_or(String::new(), |gpu| gpu.info.gpu_type.to_ascii_lowercase());
                    for kind in [kind, gmodel::policy::ALL_GPUS.to_owned()] {
                        let (milli, newest) = sum.gpus.entry(kind).or_default();
                        *milli += u64::from(grant.part.milli());
                        *newest = run.placed.max(*newest);
                    }
                }
            }
        }
    }
    for (subject, (limits, also, sum)) in running {
        if sum.newest <= state.policy_since.1 {
            continue;
        }
        let counts = [
            ("jobs", limits.running_jobs, sum.jobs),
            ("CPUs", limits.cpus, sum.cpus),
            ("nodes", limits.nodes, sum.nodes),
        ];
        for (what, most, has) in counts {
            if most.is_some_and(|most| has > most) {
                found.push(format!("{subject} may have {most:?} {what} and has {has}"));
            }
        }
        for (kind, most) in limits
            .gpus
            .iter()
            .chain([&also])
            .flat_map(|amounts| &amounts.0)
        {
            let (has, newest) = sum.gpus.get(kind).copied().unwrap_or_default();
            if has > *most && newest > state.policy_since.1 {
                found.push(format!(
                    "{subject} may hold {most} thousandths of {kind} and holds {has}"
                ));
            }
        }
    }
}

/// What must never be: counts that are not those of the records.
pub(super) fn check(state: &State, found: &mut Vec<String>) {
    let mut counted = Tally::default();
    for job in state.jobs.values().filter(|job| !job.state.is_final()) {
        counted.add(&job.spec, 1);
    }
    for array in state.arrays.values() {
        counted.add(&array.spec, array.pending.len());
    }
    check_running(state, found);
    if counted != state.tally {
        found.push(format!(
            "jobs are counted as {:?} and there are {counted:?}",
            state.tally
        ));
    }
}
