//! `POST /v1/reload/dry-run`: what the changed files would do, and to which jobs, asked of the real core and scheduler.
//!
//! Nothing is kept: two copies of the state, one with the new configuration, are planned and compared.

use crate::config::Config;
use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::app::restart_note;
use crate::http::error::ApiError;
use crate::http::permission::Caller;
use crate::http::policy::check::{beyond_the_pool, unheard_of};
use crate::http::policy::text::{changes, record_changes};
use axum::Json;
use axum::extract::State as Shared;
use gcore::ctl::{
    Input, Run, State, handle, policy_faults, set_until_reload, snapshot, unknown_accounts,
};
use gmodel::config::ClusterConfig;
use gmodel::{JobId, JobSpec, Reason, RunClass, RunId, Timestamp};
use gsched::{Plan, WorkBudget};
use gwire::api::{ChangeReply, SCHEMA};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Jobs that are named; of the rest there is a count.
const MAX_NAMED: usize = 50;

pub(crate) async fn reload_dry_run(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
) -> Result<Json<ChangeReply>, ApiError> {
    caller.must_administer("reload")?;
    let new = site.app.read_config(&site.core).await?;
    let old = site.app.config();
    let mut notes: Vec<String> = Config::restart_needed(&old, &new)
        .iter()
        .map(|key| restart_note(key))
        .collect();
    let merged = Config::reloaded(&old, &new);
    let state = site.core.view().await;
    let task = tokio::task::spawn_blocking(move || compare(&state, merged.cluster, now()));
    notes.extend(
        task.await
            .map_err(|_| ApiError::unavailable("the dry run failed; this is a bug"))??,
    );
    if notes.is_empty() {
        notes.push("nothing would change".to_owned());
    }
    Ok(Json(ChangeReply {
        schema: SCHEMA,
        notes,
    }))
}

fn compare(state: &State, config: ClusterConfig, now: Timestamp) -> Result<Vec<String>, ApiError> {
    let new_in_files = changes(&state.config.policy, &config.policy);
    let before = PolicyOutcome::of(state.clone(), now);
    let mut copy = state.clone();
    handle(
        &mut copy,
        &mut Vec::new(),
        Input::Reload {
            config: Arc::new(config),
        },
        now,
    )?;
    let mut notes = changed_settings(&state.config, &copy.config);
    notes.extend(set_until_reload(&state));
    // In force are the files over what gadm made.
    for change in changes(&state.policy, &copy.policy) {
        let over_gadms = change
            .strip_suffix(" is changed")
            .is_some_and(|record| new_in_files.contains(&format!("{record} is added")));
        notes.push(if over_gadms {
            format!("{change}: what gadm made of it counts no more")
        } else {
            change
        });
    }
    let known = policy_faults(state);
    notes.extend(
        policy_faults(&copy)
            .into_iter()
            .filter(|fault| !known.contains(fault)),
    );
    notes.extend(unknown_accounts(&copy));
    notes.extend(stranded(state, &copy));
    notes.extend(orphaned(state, &copy));
    notes.extend(out_of_sense(state, &copy));
    let after = PolicyOutcome::of(copy, now);
    let mut jobs = before.differences(&after, state);
    let more = jobs.len().saturating_sub(MAX_NAMED);
    jobs.truncate(MAX_NAMED);
    notes.extend(jobs);
    if more > 0 {
        notes.push(format!("and {more} more jobs"));
    }
    Ok(notes)
}

/// Partitions, and settings by their names in TOML.
fn changed_settings(old: &ClusterConfig, new: &ClusterConfig) -> Vec<String> {
    let named = |config: &ClusterConfig| -> BTreeMap<String, _> {
        let partitions = config.partitions.iter();
        partitions
            .map(|one| (one.name.clone(), one.clone()))
            .collect()
    };
    let mut notes = record_changes("partition", &named(old), &named(new));
    let (was, is) = (&old.scheduler, &new.scheduler);
    let keys = [
        (
            "default_account",
            old.default_account != new.default_account,
        ),
        ("operators", old.operators != new.operators),
        ("privacy", old.privacy != new.privacy),
        ("time_zone", old.time_zone != new.time_zone),
        (
            "allow_root_jobs",
            old.allow_root_jobs != new.allow_root_jobs,
        ),
        (
            "visible_devices",
            old.visible_devices != new.visible_devices,
        ),
        (
            "node_timeout_secs",
            old.node_timeout_secs != new.node_timeout_secs,
        ),
        ("lost_node", old.lost_node != new.lost_node),
        (
            "prepare_timeout_secs",
            old.prepare_timeout_secs != new.prepare_timeout_secs,
        ),
        (
            "kill_grace_secs",
            old.kill_grace_secs != new.kill_grace_secs,
        ),
        (
            "kill_invalid_depend",
            old.kill_invalid_depend != new.kill_invalid_depend,
        ),
        (
            "min_job_age_secs",
            old.min_job_age_secs != new.min_job_age_secs,
        ),
        (
            "max_array_tasks",
            old.max_array_tasks != new.max_array_tasks,
        ),
        (
            "max_pending_jobs",
            old.max_pending_jobs != new.max_pending_jobs,
        ),
        ("mig_recut_secs", old.mig_recut_secs != new.mig_recut_secs),
        ("[mig]", old.mig != new.mig),
        ("[expect]", old.expected != new.expected),
        ("[diagnostics]", old.diagnostics != new.diagnostics),
        (
            "[scheduler]",
            (was.order, was.backfill, was.placement, was.consolidate)
                != (is.order, is.backfill, is.placement, is.consolidate),
        ),
        ("[priority]", was.priority != is.priority),
        ("[fair_share]", was.fair_share != is.fair_share),
        ("[preempt]", was.preempt != is.preempt),
        ("[licences]", was.licences != is.licences),
        (
            "[[price]], [[charging]] and currency",
            was.money != is.money,
        ),
        ("topology.toml", was.topology != is.topology),
    ];
    notes.extend(
        keys.iter()
            .filter(|(_, differs)| *differs)
            .map(|(name, _)| format!("{name} is changed")),
    );
    notes
}

/// How many wait and run, by what their requests name.
fn live_jobs(old: &State, by: impl Fn(&JobSpec) -> &str) -> BTreeMap<&str, (u64, u64)> {
    let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for job in old.jobs.values().filter(|job| !job.state.is_final()) {
        let count = counts.entry(by(&job.spec)).or_default();
        if job.live.is_some() {
            count.1 += 1
        } else {
            count.0 += 1
        }
    }
    for array in old.arrays.values() {
        counts.entry(by(&array.spec)).or_default().0 += array.pending.len();
    }
    counts
}

/// Jobs that would lose their partition.
fn stranded(old: &State, new: &State) -> Vec<String> {
    let counts = live_jobs(old, |spec| &spec.partition);
    // A job in several partitions keeps the others.
    let is_gone = |list: &str| new.config.partitions_of(list).next().is_none();
    let gone = counts
        .iter()
        .filter(|(list, (waiting, running))| waiting + running > 0 && is_gone(list));
    gone.map(|(name, (waiting, running))| {
        let (waiting, running) = (jobs(*waiting, "waiting"), jobs(*running, "running"));
        format!("partition {name} would be gone: its {waiting} would not start, its {running} would go on")
    })
    .collect()
}

/// Jobs that would lose their account or QOS.
fn orphaned(old: &State, new: &State) -> Vec<String> {
    let (was, is) = (&old.policy, &new.policy);
    let gone = |kind: &str,
                loses: &str,
                by: fn(&JobSpec) -> &str,
                is_gone: &dyn Fn(&str) -> bool|
     -> Vec<String> {
        let counts = live_jobs(old, by).into_iter();
        let gone =
            counts.filter(|(name, (waiting, running))| waiting + running > 0 && is_gone(name));
        gone.map(|(name, (waiting, running))| {
            let (waiting, running) = (jobs(waiting, "waiting"), jobs(running, "running"));
            format!("{kind} {name} would be gone: its {waiting} and {running} would go on, without {loses} of its own")
        })
        .collect()
    };
    let account_is_gone =
        |name: &str| was.accounts.contains_key(name) && !is.accounts.contains_key(name);
    let qos_is_gone = |name: &str| was.qos.contains_key(name) && !is.qos.contains_key(name);
    let mut notes = gone(
        "account",
        "guarantee and limits",
        |spec| &spec.account,
        &account_is_gone,
    );
    notes.extend(gone(
        "QOS",
        "priority and limits",
        |spec| &spec.qos,
        &qos_is_gone,
    ));
    notes
}

/// What new and changed accounts and QOS say of GPUs that no node has, or guarantee beyond what there is.
fn out_of_sense(old: &State, new: &State) -> Vec<String> {
    let mut notes = Vec::new();
    let mut beyond = BTreeSet::new();
    for account in new.policy.accounts.values() {
        let was = old.policy.accounts.get(&account.name);
        notes.extend(
            unheard_of(new, was, account)
                .into_iter()
                .map(|note| format!("account {}: {note}", account.name)),
        );
        beyond.extend(beyond_the_pool(new, was, account));
    }
    for qos in new.policy.qos.values() {
        let was = old.policy.qos.get(&qos.name);
        notes.extend(
            unheard_of(new, was, qos)
                .into_iter()
                .map(|note| format!("QOS {}: {note}", qos.name)),
        );
    }
    notes.into_iter().chain(beyond).collect()
}

fn jobs(count: u64, what: &str) -> String {
    format!("{count} {what} job{}", if count == 1 { "" } else { "s" })
}

/// What a pass would make of the queue.
struct PolicyOutcome {
    state: State,
    plan: Plan,
    reasons: BTreeMap<JobId, Reason>,
    starts: BTreeMap<JobId, ()>,
}

impl PolicyOutcome {
    fn of(state: State, now: Timestamp) -> Self {
        let plan = gsched::plan(&snapshot(&state, now), WorkBudget::default());
        let reasons = plan
            .reasons
            .iter()
            .chain(&plan.array_reasons)
            .cloned()
            .collect();
        let starts = plan.starts.iter().map(|start| (start.job, ())).collect();
        Self {
            state,
            plan,
            reasons,
            starts,
        }
    }

    /// A waiting job's fate in words. A plan names only reasons that are new.
    fn fate(&self, job: JobId, reason: &Reason) -> String {
        if self.starts.contains_key(&job) {
            return "starts at once".to_owned();
        }
        let reason = self.reasons.get(&job).unwrap_or(reason);
        if reason.text.is_empty() {
            format!("waits ({})", reason.code)
        } else {
            format!("waits ({}: {})", reason.code, reason.text)
        }
    }

    fn class(&self, run: RunId) -> Option<RunClass> {
        let planned = self
            .plan
            .classes
            .iter()
            .find(|(id, _)| *id == run)
            .map(|(_, class)| *class);
        planned.or_else(|| self.state.runs.get(run)?.class)
    }

    fn run_changes(&self, after: &Self, run: &Run, of_job: &str) -> Vec<String> {
        let mut lines = Vec::new();
        let (was, is) = (self.class(run.id), after.class(run.id));
        if was != is && run.outcome.is_none() {
            let word = match is {
                Some(RunClass::Guaranteed) => "becomes guaranteed",
                Some(RunClass::Borrowed) => "becomes borrowed",
                _ => "has no class any more",
            };
            lines.push(format!("{of_job} {word}"));
        }
        let ended = |plan: &Plan| {
            let mut preempts = plan.preempts.iter();
            let of_run = preempts.find(|preempt| preempt.run == run.id);
            of_run.map(|preempt| preempt.why.clone())
        };
        if let (None, Some(why)) = (ended(&self.plan), ended(&after.plan)) {
            lines.push(format!("{of_job} would be preempted: {why}"));
        }
        lines
    }

    fn differences(&self, after: &Self, state: &State) -> Vec<String> {
        let mut lines = Vec::new();
        for job in state
            .jobs
            .values()
            .filter(|job| job.state == gmodel::JobState::Pending)
        {
            let (was, is) = (
                self.fate(job.id, &job.reason),
                after.fate(job.id, &job.reason),
            );
            if was != is {
                lines.push(format!(
                    "job {} of {}: {is}; now it {was}",
                    job.shown_id(),
                    job.spec.user.name
                ));
            }
        }
        for array in state
            .arrays
            .values()
            .filter(|array| !array.pending.is_empty())
        {
            let (was, is) = (
                self.fate(array.id, &array.reason),
                after.fate(array.id, &array.reason),
            );
            if was != is {
                lines.push(format!(
                    "array {} of {}: {is}; now it {was}",
                    array.id, array.spec.user.name
                ));
            }
        }
        for run in state.runs.values() {
            if let Some(job) = state.jobs.get(run.id.job) {
                let of_job = format!("job {} of {}", job.shown_id(), job.spec.user.name);
                lines.extend(self.run_changes(after, run, &of_job));
            }
        }
        lines
    }
}
