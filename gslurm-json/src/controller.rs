//! What the controller says of itself and of shares and licences: `sdiag`, `scontrol ping`, `scontrol show licenses` and `sshare`.

use super::datum::{Datum, Field, blank, empty, list, none, number, records, text, whole, zero};
use super::document::{number_value, time};
use gmodel::Instant;
use gwire::api::{ClusterInfo, LicenceRow, ShareRow};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What of `GET /v1/diag` is shown under Slurm's names.
#[derive(Debug, Default, Deserialize)]
pub struct Diagnosis {
    pub time: Option<Instant>,
    pub uptime_secs: i64,
    /// By state.
    pub jobs: BTreeMap<String, u64>,
    pub starts: u64,
    /// Of the core; `pass` is the scheduler's.
    pub times: BTreeMap<String, CommandTimes>,
    /// By route.
    pub requests: BTreeMap<String, CommandTimes>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct CommandTimes {
    pub count: u64,
    pub mean_us: u64,
    pub max_us: u64,
}

impl CommandTimes {
    /// Microseconds.
    pub fn total(&self) -> u64 {
        self.count.saturating_mul(self.mean_us)
    }
}

fn pass(diagnosis: &Diagnosis) -> CommandTimes {
    diagnosis.times.get("pass").copied().unwrap_or_default()
}

fn now(diagnosis: &Diagnosis) -> Option<Instant> {
    diagnosis.time
}

fn since(diagnosis: &Diagnosis) -> Option<Instant> {
    let at = diagnosis.time?;
    Some(Instant(at.0.plus_secs(-diagnosis.uptime_secs)))
}

fn jobs<'a>(diagnosis: &Diagnosis, state: &str) -> Datum<'a> {
    whole(diagnosis.jobs.get(state).copied().unwrap_or_default())
}

/// Requests by their names: they have no numbers here.
fn requests(diagnosis: &Diagnosis) -> Datum<'_> {
    let one = |(name, times): (&String, &CommandTimes)| {
        json!({"type_id": 0, "message_type": name, "count": times.count, "queued": 0, "dropped": 0, "cycle_last": 0, "cycle_max": 0,
            "total_time": times.total(), "average_time": number_value(Some(times.mean_us))})
    };
    let all = diagnosis
        .requests
        .iter()
        .filter(|(_, times)| times.count > 0);
    Datum::Value(Value::Array(all.map(one).collect()))
}

pub const STATISTICS: &[Field<Diagnosis>] = &[
    ("req_time", |row| time(now(row))),
    ("req_time_start", |row| time(since(row))),
    zero("server_thread_count"),
    zero("agent_queue_size"),
    zero("agent_count"),
    zero("agent_thread_count"),
    zero("dbd_agent_queue_size"),
    zero("gettimeofday_latency"),
    ("schedule_cycle_max", |row| whole(pass(row).max_us)),
    zero("schedule_cycle_last"),
    ("schedule_cycle_sum", |row| whole(pass(row).total())),
    ("schedule_cycle_total", |row| whole(pass(row).count)),
    ("schedule_cycle_mean", |row| whole(pass(row).mean_us)),
    zero("schedule_cycle_mean_depth"),
    ("schedule_cycle_per_minute", |row| {
        let minutes = u64::try_from(row.uptime_secs / 60).unwrap_or(0).max(1);
        whole(pass(row).count / minutes)
    }),
    zero("schedule_cycle_depth"),
    ("schedule_exit", |_| {
        Datum::Value(
            json!({"end_job_queue": 0, "default_queue_depth": 0, "max_job_start": 0, "max_rpc_cnt": 0, "max_sched_time": 0, "licenses": 0}),
        )
    }),
    ("schedule_queue_length", |row| jobs(row, "PENDING")),
    ("jobs_submitted", |row| {
        whole(
            row.requests
                .get("POST /v1/jobs")
                .map_or(0, |times| times.count),
        )
    }),
    ("jobs_started", |row| whole(row.starts)),
    zero("jobs_completed"),
    zero("jobs_canceled"),
    zero("jobs_failed"),
    ("jobs_pending", |row| jobs(row, "PENDING")),
    ("jobs_running", |row| jobs(row, "RUNNING")),
    ("job_states_ts", |row| time(now(row))),
    zero("bf_backfilled_jobs"),
    zero("bf_last_backfilled_jobs"),
    zero("bf_backfilled_het_jobs"),
    zero("bf_cycle_counter"),
    zero("bf_cycle_mean"),
    zero("bf_depth_mean"),
    zero("bf_depth_mean_try"),
    zero("bf_cycle_sum"),
    zero("bf_cycle_last"),
    zero("bf_cycle_max"),
    ("bf_exit", |_| {
        Datum::Value(
            json!({"end_job_queue": 0, "bf_max_job_start": 0, "bf_max_job_test": 0, "bf_max_time": 0, "bf_node_space_size": 0, "state_changed": 0}),
        )
    }),
    zero("bf_last_depth"),
    zero("bf_last_depth_try"),
    zero("bf_depth_sum"),
    zero("bf_depth_try_sum"),
    zero("bf_queue_len"),
    zero("bf_queue_len_mean"),
    zero("bf_queue_len_sum"),
    zero("bf_table_size"),
    zero("bf_table_size_sum"),
    zero("bf_table_size_mean"),
    none("bf_when_last_cycle"),
    ("bf_active", |_| Datum::Flag(false)),
    ("rpcs_by_message_type", requests),
    empty("rpcs_by_user"),
    empty("pending_rpcs"),
    empty("pending_rpcs_by_hostlist"),
];

/// The controller answers, so it is up. `took`: until its answer came.
pub fn pings(cluster: &ClusterInfo, took: Duration) -> Value {
    let latency = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    json!([{"hostname": cluster.host, "pinged": "UP", "responding": true, "latency": latency, "mode": "primary", "primary": true}])
}

/// A licence: `scontrol show licenses --json`.
pub const LICENCE: &[Field<LicenceRow>] = &[
    ("LicenseName", |row| text(&row.name)),
    ("Total", |row| whole(row.total)),
    ("Used", |row| whole(row.used)),
    ("Free", |row| whole(row.free)),
    ("Remote", |_| Datum::Flag(false)),
    zero("Reserved"),
    zero("LastConsumed"),
    zero("LastDeficit"),
    zero("LastUpdate"),
];

/// The fair tree: `sshare --json`.
pub fn shares(rows: Vec<ShareRow>, cluster: &str) -> Value {
    let top = rows.iter().filter(|row| row.depth == 1);
    let total: u32 = top.map(|row| row.raw_shares).sum();
    let cluster: Arc<str> = cluster.into();
    let mut above: Vec<String> = Vec::new();
    let cells = rows.into_iter().map(|share| {
        above.truncate(share.depth as usize);
        let parent = match &share.user {
            Some(_) => share.account.clone(),
            None => above.last().cloned().unwrap_or_default(),
        };
        if share.user.is_none() {
            above.push(share.account.clone());
        }
        ShareCell {
            share,
            parent,
            cluster: cluster.clone(),
        }
    });
    json!({"shares": records(SHARE, cells), "total_shares": total})
}

pub struct ShareCell {
    pub share: ShareRow,
    pub parent: String,
    pub cluster: Arc<str>,
}

pub const SHARE: &[Field<ShareCell>] = &[
    zero("id"),
    ("cluster", |one| text(&one.cluster)),
    ("name", |one| {
        let share = &one.share;
        text(share.user.as_ref().unwrap_or(&share.account))
    }),
    ("parent", |one| text(&one.parent)),
    blank("partition"),
    ("shares_normalized", |one| {
        Datum::Fraction(Some(one.share.norm_shares))
    }),
    ("shares", |one| number(one.share.raw_shares)),
    empty("tres/run_seconds"),
    empty("tres/group_minutes"),
    empty("tres/usage"),
    ("effective_usage", |one| {
        Datum::Fraction(Some(one.share.effective_usage))
    }),
    ("usage_normalized", |one| {
        Datum::Fraction(Some(one.share.norm_usage))
    }),
    ("usage", |one| whole(one.share.raw_usage)),
    ("fairshare/factor", |one| {
        Datum::Fraction(one.share.fair_share)
    }),
    ("fairshare/level", |one| match one.share.level_fs {
        None => Datum::Infinite,
        some => Datum::Fraction(some),
    }),
    ("type", |one| {
        let is_user = one.share.user.is_some();
        list([if is_user { "USER" } else { "ASSOCIATION" }])
    }),
];
