//! Accounts, QOS and reservations as TOML, in the form that `policy.d` and `gadm policy import` read.
//!
//! Owns the layout: what is a default is left out, names are sorted, so that two exports compare line by line.

use crate::policy::{BUDGET_KINDS, PERIODS, PREEMPT_MODES, REPEATS, hosts_text, word_of};
use crate::section::gpu_text;
use gmodel::Timestamp;
use gmodel::policy::{
    ALL_GPUS, Account, AccountUser, GpuAmounts, JobLimits, Limits, Policy, Qos, Repeat,
    Reservation, ReservedPart,
};
use std::fmt::{Display, Write};

/// The whole policy as one file. Reading it gives the same policy.
pub fn policy_text(policy: &Policy) -> String {
    let mut text = String::new();
    for account in policy.accounts.values() {
        account_text(&mut text, account);
    }
    for qos in policy.qos.values() {
        qos_text(&mut text, qos);
    }
    for reservation in policy.reservations.values() {
        reservation_text(&mut text, reservation);
    }
    text
}

/// One table, written key by key.
struct Table<'t>(&'t mut String);

impl<'t> Table<'t> {
    fn begin(text: &'t mut String, head: &str) -> Self {
        if !text.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{head}");
        Self(text)
    }
    fn raw(&mut self, key: &str, value: impl Display) {
        let _ = writeln!(self.0, "{key} = {value}");
    }
    fn text(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            self.raw(key, quoted(value));
        }
    }
    fn number<N: Display + PartialEq>(&mut self, key: &str, value: N, default: N) {
        if value != default {
            self.raw(key, value);
        }
    }
    fn flag(&mut self, key: &str, value: bool) {
        if value {
            self.raw(key, "true");
        }
    }
    fn texts<'a>(&mut self, key: &str, values: impl IntoIterator<Item = &'a String>) {
        let list: Vec<String> = values.into_iter().map(|value| quoted(value)).collect();
        if !list.is_empty() {
            self.raw(key, format_args!("[{}]", list.join(", ")));
        }
    }
    fn amounts(&mut self, key: &str, amounts: Option<&GpuAmounts>) {
        if let Some(amounts) = amounts {
            self.raw(key, amounts_text(amounts));
        }
    }
    fn limits(&mut self, limits: &Limits) {
        let counts = [
            ("running_jobs", limits.running_jobs.map(u64::from)),
            ("submitted_jobs", limits.submitted_jobs.map(u64::from)),
            ("cpus", limits.cpus.map(u64::from)),
            ("nodes", limits.nodes.map(u64::from)),
            ("running_gpu_hours", limits.running_gpu_hours),
            ("array_tasks", limits.array_tasks.map(u64::from)),
            (
                "submits_per_minute",
                limits.submits_per_minute.map(u64::from),
            ),
        ];
        for (key, count) in counts {
            if let Some(count) = count {
                self.raw(key, count);
            }
        }
        self.amounts("gpus", limits.gpus.as_ref());
    }
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A key of letters, digits, `_` and `-` stands bare.
fn key(name: &str) -> String {
    let bare = !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    if bare {
        name.to_owned()
    } else {
        format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

fn amounts_text(amounts: &GpuAmounts) -> String {
    match (amounts.0.len(), amounts.of(ALL_GPUS)) {
        (1, Some(all)) => gpu_text(all),
        (0, _) => "{}".into(),
        _ => {
            let parts: Vec<_> = amounts
                .0
                .iter()
                .map(|(name, milli)| format!("{} = {}", key(name), gpu_text(*milli)))
                .collect();
            format!("{{ {} }}", parts.join(", "))
        }
    }
}

/// Seconds in a form that is read back to the second.
fn time_text(secs: u32) -> String {
    quoted(&format!(
        "{}:{:02}:{:02}",
        secs / 3600,
        secs / 60 % 60,
        secs % 60
    ))
}

fn account_text(text: &mut String, account: &Account) {
    let name = key(&account.name);
    let mut table = Table::begin(text, &format!("[account.{name}]"));
    table.text("parent", account.parent.as_deref().unwrap_or_default());
    table.text("description", &account.description);
    table.number("shares", account.shares, 1);
    table.amounts("guaranteed", account.guaranteed.as_ref());
    table.amounts("limit", account.limit.as_ref());
    table.amounts("lend_limit", account.lend_limit.as_ref());
    table.texts("allow_qos", &account.allow_qos);
    table.text(
        "default_qos",
        account.default_qos.as_deref().unwrap_or_default(),
    );
    table.texts("coordinators", &account.coordinators);
    let plain = |entry: &AccountUser| *entry == AccountUser::default();
    table.texts(
        "users",
        account
            .users
            .iter()
            .filter(|(_, entry)| plain(entry))
            .map(|(user, _)| user),
    );
    table.flag("users_only", account.users_only);
    table.flag("closed", account.closed);
    for budget in &account.budgets {
        let mut table = Table::begin(text, &format!("[[account.{name}.budget]]"));
        table.raw("kind", quoted(word_of(&BUDGET_KINDS, budget.kind)));
        table.raw("gpu_hours", budget.gpu_hours);
        table.raw("period", quoted(word_of(&PERIODS, budget.period)));
        table.text("gpu_type", budget.gpu_type.as_deref().unwrap_or_default());
    }
    limits_text(text, &format!("account.{name}.group"), &account.group);
    limits_text(text, &format!("account.{name}.per_user"), &account.per_user);
    for (user, entry) in account.users.iter().filter(|(_, entry)| !plain(entry)) {
        let mut table = Table::begin(text, &format!("[account.{name}.user.{}]", key(user)));
        table.number("shares", entry.shares, 1);
        table.flag("default", entry.is_default);
        table.limits(&entry.limits);
    }
}

fn qos_text(text: &mut String, qos: &Qos) {
    let name = key(&qos.name);
    let mut table = Table::begin(text, &format!("[qos.{name}]"));
    table.text("description", &qos.description);
    table.number("priority", qos.priority, 0);
    if qos.usage_factor_milli != 1000 {
        table.raw("usage_factor", gpu_text(u64::from(qos.usage_factor_milli)));
    }
    table.texts("preempt", &qos.preempt);
    if let Some(mode) = qos.preempt_mode {
        table.raw("preempt_mode", quoted(word_of(&PREEMPT_MODES, mode)));
    }
    if qos.min_run_secs > 0 {
        table.raw("min_run", time_text(qos.min_run_secs));
    }
    table.amounts("headroom", qos.headroom.as_ref());
    table.flag("outside_quota", qos.outside_quota);
    if let Some(idle) = &qos.idle {
        let mut table = Table::begin(text, &format!("[qos.{name}.idle]"));
        table.raw("action", quoted(idle.action.word()));
        table.raw("warn_after", time_text(idle.warn_after_secs));
        table.raw("act_after", time_text(idle.act_after_secs));
        table.raw("grace", time_text(idle.grace_secs));
        table.raw("gpus_percent", idle.gpus_percent);
        table.raw("max_requeues", idle.max_requeues);
    }
    limits_text(text, &format!("qos.{name}.group"), &qos.group);
    limits_text(text, &format!("qos.{name}.per_user"), &qos.per_user);
    limits_text(text, &format!("qos.{name}.per_account"), &qos.per_account);
    let job = &qos.per_job;
    if *job != JobLimits::default() {
        let mut table = Table::begin(text, &format!("[qos.{name}.per_job]"));
        if let Some(secs) = job.time_secs {
            table.raw("max_time", time_text(secs));
        }
        for (key, count) in [("nodes", job.nodes), ("cpus", job.cpus)] {
            if let Some(count) = count {
                table.raw(key, count);
            }
        }
        table.amounts("gpus", job.gpus.as_ref());
        table.amounts("min_gpus", job.min_gpus.as_ref());
    }
}

fn reservation_text(text: &mut String, reservation: &Reservation) {
    let mut table = Table::begin(text, &format!("[reservation.{}]", key(&reservation.name)));
    // RFC 3339 to the millisecond: an edit through a file moves nothing.
    table.raw("start", moment_text(reservation.start));
    table.raw("duration", time_text(reservation.duration_secs));
    if reservation.repeat != Repeat::Once {
        table.raw("repeat", quoted(word_of(&REPEATS, reservation.repeat)));
    }
    match &reservation.what {
        ReservedPart::AllNodes => table.raw("nodes", quoted("ALL")),
        ReservedPart::Nodes(hosts) => table.raw("nodes", quoted(&hosts_text(hosts))),
        ReservedPart::NodeCount(count) => table.raw("node_count", count),
        ReservedPart::Gpus(amounts) => table.raw("gpus", amounts_text(amounts)),
    }
    table.texts("users", &reservation.users);
    table.texts("accounts", &reservation.accounts);
    table.text(
        "partition",
        reservation.partition.as_deref().unwrap_or_default(),
    );
    // Of nodes that were chosen their names stand here.
    if matches!(reservation.what, ReservedPart::NodeCount(_)) {
        table.text("features", &reservation.features);
    }
    table.flag("maintenance", reservation.maintenance);
    table.flag("flex", reservation.flex);
    table.flag("ignore_running", reservation.ignore_running);
    table.flag("magnetic", reservation.magnetic);
    table.flag("overlap", reservation.overlap);
    if let Some(secs) = reservation.purge_idle_secs {
        table.raw("purge_idle", time_text(secs));
    }
    table.flag("static_nodes", reservation.static_nodes);
    table.flag("release_jobs", reservation.release_jobs);
    if let Some(at) = reservation.skip_until {
        table.raw("skip_until", moment_text(at));
    }
}

fn moment_text(at: Timestamp) -> String {
    let whole = at.to_string();
    match at.0.rem_euclid(1000) {
        0 => whole,
        millis => format!("{}.{millis:03}Z", whole.trim_end_matches('Z')),
    }
}

fn limits_text(text: &mut String, name: &str, limits: &Limits) {
    if *limits != Limits::default() {
        Table::begin(text, &format!("[{name}]")).limits(limits);
    }
}
