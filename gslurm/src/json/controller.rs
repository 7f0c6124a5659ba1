//! What the controller says of itself and of shares and licences: `sdiag`, `scontrol ping`, `scontrol show licenses` and `sshare`.

use super::datum::{
    Datum, Field, blank, empty, list, none, number, record, records, text, whole, zero,
};
use super::{print_value, time};
use crate::sdiag::{CommandTimes, Diagnosis};
use crate::sshare::ShareLine;
use gcli::Outcome;
use gmodel::Instant;
use gwire::api::{ClusterInfo, LicenceRow};
use gwire::client::Client;
use serde_json::{Value, json};

/// `sdiag --json`.
pub(crate) fn print_diagnosis(client: &mut Client, diagnosis: &Diagnosis) -> Outcome {
    let cluster = super::cluster_name(client)?;
    print_value(&cluster, "statistics", record(STATISTICS, diagnosis))
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
            "total_time": times.total(), "average_time": super::number_value(Some(times.mean_us))})
    };
    let all = diagnosis
        .requests
        .iter()
        .filter(|(_, times)| times.count > 0);
    Datum::Value(Value::Array(all.map(one).collect()))
}

pub(super) const STATISTICS: &[Field<Diagnosis>] = &[
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

/// `scontrol ping --json`.
pub(crate) fn print_ping(client: &mut Client) -> Outcome {
    let asked = std::time::Instant::now();
    let cluster: ClusterInfo = client.get("/v1/cluster")?;
    let latency = u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX);
    let ping = json!([{"hostname": cluster.host, "pinged": "UP", "responding": true, "latency": latency, "mode": "primary", "primary": true}]);
    print_value(&cluster.name, "pings", ping)
}

/// `scontrol show licenses --json`.
pub(crate) fn print_licences(cluster: &str, rows: Vec<LicenceRow>) -> Outcome {
    super::print(
        cluster,
        "licenses",
        LICENCE,
        rows.into_iter(),
        &["last_update"],
    )
}

pub(super) const LICENCE: &[Field<LicenceRow>] = &[
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

/// `sshare --json`.
pub(crate) fn print_shares(client: &mut Client, lines: Vec<ShareLine>) -> Outcome {
    let cluster = super::cluster_name(client)?;
    let total: u32 = lines
        .iter()
        .filter(|line| line.share.depth == 1)
        .map(|line| line.share.raw_shares)
        .sum();
    let mut above: Vec<String> = Vec::new();
    let cells = lines.into_iter().map(|line| {
        let depth = line.share.depth as usize;
        above.truncate(depth);
        let parent = match &line.share.user {
            Some(_) => line.share.account.clone(),
            None => above.last().cloned().unwrap_or_default(),
        };
        if line.share.user.is_none() {
            above.push(line.share.account.clone());
        }
        ShareCell { line, parent }
    });
    let shares = records(SHARE, cells);
    let value = json!({"shares": shares, "total_shares": total});
    print_value(&cluster, "shares", value)
}

pub(super) struct ShareCell {
    pub line: ShareLine,
    pub parent: String,
}

pub(super) const SHARE: &[Field<ShareCell>] = &[
    zero("id"),
    ("cluster", |one| text(&one.line.cluster)),
    ("name", |one| {
        let share = &one.line.share;
        text(share.user.as_ref().unwrap_or(&share.account))
    }),
    ("parent", |one| text(&one.parent)),
    blank("partition"),
    ("shares_normalized", |one| {
        Datum::Fraction(Some(one.line.share.norm_shares))
    }),
    ("shares", |one| number(one.line.share.raw_shares)),
    empty("tres/run_seconds"),
    empty("tres/group_minutes"),
    empty("tres/usage"),
    ("effective_usage", |one| {
        Datum::Fraction(Some(one.line.share.effective_usage))
    }),
    ("usage_normalized", |one| {
        Datum::Fraction(Some(one.line.share.norm_usage))
    }),
    ("usage", |one| whole(one.line.share.raw_usage)),
    ("fairshare/factor", |one| {
        Datum::Fraction(one.line.share.fair_share)
    }),
    ("fairshare/level", |one| match one.line.share.level_fs {
        None => Datum::Infinite,
        some => Datum::Fraction(some),
    }),
    ("type", |one| {
        let is_user = one.line.share.user.is_some();
        list([if is_user { "USER" } else { "ASSOCIATION" }])
    }),
];

#[cfg(test)]
pub(super) fn line(share: gwire::api::ShareRow) -> ShareCell {
    ShareCell {
        line: ShareLine::of(share),
        parent: String::new(),
    }
}
