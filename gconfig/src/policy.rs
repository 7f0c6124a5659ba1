//! `[account.NAME]`, `[qos.NAME]` and `[reservation.NAME]` tables, of the main file and of `policy.d`.
//!
//! Owns their keys and bounds. Whether names that they mention exist is [`crate::policy_check`]'s. Words of sacctmgr(1)
//! and of `scontrol create reservation`.

use crate::error::{Errors, Source};
use crate::limits::{job_limits, keys_with, limits, read as read_limits};
use crate::name::{NAMES, is_name, is_user};
use crate::section::{NamedTable, Section};
use gmodel::constraint::Constraint;
use gmodel::hostlist::Hostlist;
use gmodel::policy::{
    ALL_GPUS, Account, AccountUser, Budget, BudgetKind, Period, Policy, PreemptMode, Qos,
    ROOT_ACCOUNT, Repeat, Reservation, ReservedPart,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use toml::de::DeTable;

/// The tables that hold records.
pub const RECORD_TABLES: [&str; 3] = ["account", "qos", "reservation"];

const ACCOUNT_KEYS: [&str; 16] = [
    "parent",
    "description",
    "shares",
    "guaranteed",
    "limit",
    "lend_limit",
    "budget",
    "group",
    "per_user",
    "allow_qos",
    "default_qos",
    "coordinators",
    "users",
    "user",
    "users_only",
    "closed",
];
const USER_KEYS: [&str; 2] = ["shares", "default"];
const BUDGET_KEYS: [&str; 4] = ["kind", "gpu_hours", "period", "gpu_type"];
const QOS_KEYS: [&str; 13] = [
    "description",
    "priority",
    "usage_factor",
    "preempt",
    "preempt_mode",
    "min_run",
    "group",
    "per_user",
    "per_account",
    "per_job",
    "headroom",
    "outside_quota",
    "idle",
];
const RESERVATION_KEYS: [&str; 19] = [
    "start",
    "duration",
    "repeat",
    "nodes",
    "node_count",
    "gpus",
    "users",
    "accounts",
    "partition",
    "features",
    "maintenance",
    "flex",
    "ignore_running",
    "magnetic",
    "overlap",
    "purge_idle",
    "static_nodes",
    "release_jobs",
    "skip_until",
];

pub const PREEMPT_MODES: [(&str, PreemptMode); 4] = [
    ("off", PreemptMode::Off),
    ("requeue", PreemptMode::Requeue),
    ("cancel", PreemptMode::Cancel),
    ("suspend", PreemptMode::Suspend),
];
pub const BUDGET_KINDS: [(&str, BudgetKind); 2] = [
    ("guaranteed", BudgetKind::Guaranteed),
    ("cap", BudgetKind::Cap),
];
pub const PERIODS: [(&str, Period); 5] = [
    ("day", Period::Day),
    ("week", Period::Week),
    ("month", Period::Month),
    ("quarter", Period::Quarter),
    ("year", Period::Year),
];
pub const REPEATS: [(&str, Repeat); 6] = [
    ("once", Repeat::Once),
    ("hourly", Repeat::Hourly),
    ("daily", Repeat::Daily),
    ("weekday", Repeat::Weekday),
    ("weekend", Repeat::Weekend),
    ("weekly", Repeat::Weekly),
];

/// The word of a value, from a table of both.
pub fn word_of<T: PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words
        .iter()
        .find(|(_, known)| *known == value)
        .map_or("unknown", |(word, _)| word)
}

const MAX_DURATION_SECS: u32 = 366 * 86_400;

/// What kind of record a name names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKind {
    Account,
    Qos,
    Reservation,
    Partition,
}

impl RecordKind {
    /// As it is written in tables and messages.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::Qos => "qos",
            Self::Reservation => "reservation",
            Self::Partition => "partition",
        }
    }
}

/// A name that a record mentions, with its place.
pub struct Mention<'s> {
    /// The record that mentions it, if that is an account or the like.
    pub by: Option<(RecordKind, String)>,
    pub source: &'s Source,
    pub span: Range<usize>,
    pub kind: RecordKind,
    pub name: String,
}

/// The records read so far, with their places.
#[derive(Default)]
pub struct Records<'s> {
    pub policy: Policy,
    /// Where each record was first written: `path:line`.
    pub places: BTreeMap<(RecordKind, String), String>,
    pub mentions: Vec<Mention<'s>>,
    /// The record that is being read.
    pub current: Option<(RecordKind, String)>,
    /// Where reservations say what becomes of them by themselves, or of their jobs when they go: files do not go.
    pub passing: Vec<(&'s Source, Range<usize>, &'static str)>,
    /// Places of keys of accounts, for what is checked over several of them.
    pub account_spans: BTreeMap<(String, &'static str), (&'s Source, Range<usize>)>,
}

impl<'s> Records<'s> {
    /// Reads the records of one file.
    pub fn read(&mut self, source: &'s Source, file: &DeTable<'_>, errors: &mut Errors) {
        let file = Section::open(source, file, &every_key(file), "", errors);
        for table in file.named_tables("account", errors) {
            self.begin(RecordKind::Account, source, &table, errors);
            let account = self.account(source, &table, errors);
            self.policy.accounts.insert(table.name.to_owned(), account);
        }
        for table in file.named_tables("qos", errors) {
            self.begin(RecordKind::Qos, source, &table, errors);
            let qos = self.qos(source, &table, errors);
            self.policy.qos.insert(table.name.to_owned(), qos);
        }
        for table in file.named_tables("reservation", errors) {
            self.begin(RecordKind::Reservation, source, &table, errors);
            let reservation = self.read_reservation(source, &table, errors);
            self.policy
                .reservations
                .insert(table.name.to_owned(), reservation);
        }
    }

    fn begin(
        &mut self,
        kind: RecordKind,
        source: &Source,
        table: &NamedTable,
        errors: &mut Errors,
    ) {
        let (name, word) = (table.name, kind.word());
        if !is_name(name) {
            errors.add(
                source,
                table.span.clone(),
                format!("{word} {name:?} has no valid name"),
                NAMES,
            );
        }
        if kind == RecordKind::Account && name == ROOT_ACCOUNT {
            let hint = "accounts without a parent are directly below it";
            errors.add(
                source,
                table.span.clone(),
                "the account root is there by itself",
                hint,
            );
        }
        let key = (kind, name.to_owned());
        self.current = Some(key.clone());
        if let Some(first) = self.places.get(&key) {
            errors.add(
                source,
                table.span.clone(),
                format!("{word} {name:?} is there twice"),
                format!("first in {first}"),
            );
        } else {
            self.places.insert(key, source.place(table.span.start));
        }
    }

    fn mention(&mut self, source: &'s Source, span: Range<usize>, kind: RecordKind, name: &str) {
        self.mentions.push(Mention {
            by: self.current.clone(),
            source,
            span,
            kind,
            name: name.to_owned(),
        });
    }

    /// Names under a key, which must be there when all is read.
    pub fn mentioned(
        &mut self,
        source: &'s Source,
        section: &Section,
        key: &str,
        kind: RecordKind,
        errors: &mut Errors,
    ) -> Vec<String> {
        let names = section.names(key, errors).unwrap_or_default();
        for (name, span) in &names {
            self.mention(source, span.clone(), kind, name);
        }
        names.into_iter().map(|(name, _)| name).collect()
    }

    /// One name under a key.
    pub fn mentioned_one(
        &mut self,
        source: &'s Source,
        section: &Section,
        key: &str,
        kind: RecordKind,
        errors: &mut Errors,
    ) -> Option<String> {
        let name = section.text(key, errors)?;
        self.mention(source, section.span(key), kind, &name);
        Some(name)
    }

    fn account(&mut self, source: &'s Source, table: &NamedTable, errors: &mut Errors) -> Account {
        let name = table.name;
        let holder = format!("account.{name}");
        let section = Section::open(
            source,
            table.table,
            &ACCOUNT_KEYS,
            &format!("[{holder}]"),
            errors,
        );
        for key in ["parent", "guaranteed"] {
            let span = if section.has(key) {
                section.span(key)
            } else {
                table.span.clone()
            };
            self.account_spans
                .insert((name.to_owned(), key), (source, span));
        }
        let parent = section
            .text("parent", errors)
            .filter(|parent| parent != ROOT_ACCOUNT);
        if let Some(parent) = &parent {
            self.mention(source, section.span("parent"), RecordKind::Account, parent);
        }
        let account = Account {
            name: name.to_owned(),
            parent,
            description: section.text("description", errors).unwrap_or_default(),
            shares: section.number("shares", 0..=1_000_000, errors).unwrap_or(1),
            guaranteed: section.amounts("guaranteed", errors),
            limit: section.amounts("limit", errors),
            lend_limit: section.amounts("lend_limit", errors),
            budgets: budgets(&section, name, errors),
            group: limits(&section, &holder, "group", errors),
            per_user: limits(&section, &holder, "per_user", errors),
            allow_qos: self.mentioned(source, &section, "allow_qos", RecordKind::Qos, errors),
            default_qos: self.mentioned_one(
                source,
                &section,
                "default_qos",
                RecordKind::Qos,
                errors,
            ),
            coordinators: section.user_names("coordinators", errors),
            users: users(&section, name, errors),
            users_only: section.boolean("users_only", errors).unwrap_or(false),
            closed: section.boolean("closed", errors).unwrap_or(false),
        };
        within_limit(&section, &account, errors);
        default_among_allowed(
            &section,
            &account.allow_qos,
            account.default_qos.as_deref(),
            errors,
        );
        account
    }

    fn qos(&mut self, source: &'s Source, table: &NamedTable, errors: &mut Errors) -> Qos {
        let holder = format!("qos.{}", table.name);
        let section = Section::open(
            source,
            table.table,
            &QOS_KEYS,
            &format!("[{holder}]"),
            errors,
        );
        let factor = section
            .milli("usage_factor", 0..=1_000_000, errors)
            .and_then(|milli| u32::try_from(milli).ok());
        let preempt: BTreeSet<String> = self
            .mentioned(source, &section, "preempt", RecordKind::Qos, errors)
            .into_iter()
            .collect();
        if preempt.contains(table.name) {
            errors.add(
                source,
                section.span("preempt"),
                format!("qos {:?} preempts itself", table.name),
                "leave it out",
            );
        }
        Qos {
            name: table.name.to_owned(),
            description: section.text("description", errors).unwrap_or_default(),
            priority: section
                .number("priority", 0..=1_000_000_000, errors)
                .unwrap_or(0),
            usage_factor_milli: factor.unwrap_or(1000),
            preempt,
            preempt_mode: section.word("preempt_mode", &PREEMPT_MODES, errors),
            min_run_secs: section
                .secs("min_run", 0..=MAX_DURATION_SECS, errors)
                .unwrap_or(0),
            group: limits(&section, &holder, "group", errors),
            per_user: limits(&section, &holder, "per_user", errors),
            per_account: limits(&section, &holder, "per_account", errors),
            per_job: job_limits(&section, &holder, "per_job", errors),
            headroom: section.amounts("headroom", errors),
            outside_quota: section.boolean("outside_quota", errors).unwrap_or(false),
            idle: crate::idle::idle(&section, &holder, errors),
        }
    }

    fn read_reservation(
        &mut self,
        source: &'s Source,
        table: &NamedTable,
        errors: &mut Errors,
    ) -> Reservation {
        let name = table.name;
        let what = format!("[reservation.{name}]");
        let section = Section::open(source, table.table, &RESERVATION_KEYS, &what, errors);
        for key in ["start", "duration"].iter().filter(|key| !section.has(key)) {
            errors.add(
                source,
                table.span.clone(),
                format!("{what} has no {key}"),
                "start and duration are needed",
            );
        }
        let accounts = section.names("accounts", errors).unwrap_or_default();
        for (account, span) in &accounts {
            self.mention(
                source,
                span.clone(),
                RecordKind::Account,
                account.strip_prefix('-').unwrap_or(account),
            );
        }
        let accounts: BTreeSet<String> = accounts.into_iter().map(|(account, _)| account).collect();
        let reservation = Reservation {
            name: name.to_owned(),
            start: section.moment("start", errors).unwrap_or_default(),
            duration_secs: section
                .secs("duration", 60..=MAX_DURATION_SECS, errors)
                .unwrap_or(0),
            repeat: section.word("repeat", &REPEATS, errors).unwrap_or_default(),
            what: reserved_part(&section, table, errors),
            users: one_way(
                &section,
                "users",
                section.user_names("users", errors),
                errors,
            ),
            accounts: one_way(&section, "accounts", accounts, errors),
            partition: self.mentioned_one(
                source,
                &section,
                "partition",
                RecordKind::Partition,
                errors,
            ),
            features: features(&section, errors),
            maintenance: section.boolean("maintenance", errors).unwrap_or(false),
            flex: section.boolean("flex", errors).unwrap_or(false),
            ignore_running: section.boolean("ignore_running", errors).unwrap_or(false),
            magnetic: section.boolean("magnetic", errors).unwrap_or(false),
            overlap: section.boolean("overlap", errors).unwrap_or(false),
            purge_idle_secs: section.secs("purge_idle", 60..=MAX_DURATION_SECS, errors),
            static_nodes: section.boolean("static_nodes", errors).unwrap_or(false),
            release_jobs: section.boolean("release_jobs", errors).unwrap_or(false),
            skip_until: section.moment("skip_until", errors),
            created_by: source.path.display().to_string(),
            ..Reservation::default()
        };
        for key in ["purge_idle", "release_jobs"]
            .into_iter()
            .filter(|key| section.has(key))
        {
            self.passing.push((source, section.span(key), key));
        }
        let of_gpus = matches!(reservation.what, ReservedPart::Gpus(_));
        for (key, _) in [
            ("magnetic", reservation.magnetic),
            ("overlap", reservation.overlap),
        ]
        .iter()
        .filter(|(_, is_set)| of_gpus && *is_set)
        {
            errors.add(
                source,
                section.span(key),
                format!("{what} is of GPUs by number, which cannot be {key}"),
                "name nodes or node_count",
            );
        }
        if reservation
            .repeat
            .every_secs()
            .is_some_and(|secs| reservation.duration_secs > secs)
        {
            let text = format!("{what} lasts longer than until it comes again");
            errors.add(
                source,
                section.span("duration"),
                text,
                "at most an hour, a day or a week, as it comes",
            );
        }
        reservation
    }
}

/// The keys of a whole file belong to their own readers.
fn every_key<'t>(file: &'t DeTable<'_>) -> Vec<&'t str> {
    file.keys().map(|key| &**key.get_ref()).collect()
}

/// A file of `policy.d` holds records and nothing else.
pub fn refuse_other_keys(source: &Source, file: &DeTable<'_>, what: &str, errors: &mut Errors) {
    for key in file
        .keys()
        .filter(|key| !RECORD_TABLES.contains(&&**key.get_ref()))
    {
        let word: &str = key.get_ref();
        let hint = match gmodel::suggest::closest(word, RECORD_TABLES) {
            Some(near) => format!("did you mean [{near}.NAME]?"),
            None => format!("{what} hold only [account.NAME], [qos.NAME] and [reservation.NAME]"),
        };
        errors.add(
            source,
            key.span(),
            format!("{word:?} stands outside of a record"),
            hint,
        );
    }
}

/// Which nodes a count of them chooses among.
fn features(section: &Section, errors: &mut Errors) -> String {
    let Some(text) = section.text("features", errors) else {
        return String::new();
    };
    if let Err(error) = Constraint::parse(&text) {
        errors.add(
            section.source,
            section.span("features"),
            error.to_string(),
            "as gsub --constraint has them: a100&nvlink",
        );
    } else if !section.has("node_count") {
        errors.add(
            section.source,
            section.span("features"),
            "features choose among nodes where their number is reserved",
            "keep it beside node_count",
        );
    }
    text
}

/// A list of a reservation names users and accounts that may use it, or with a minus those that may not.
fn one_way(
    section: &Section,
    key: &str,
    names: BTreeSet<String>,
    errors: &mut Errors,
) -> BTreeSet<String> {
    let barred = names.iter().filter(|name| name.starts_with('-')).count();
    if barred > 0 && barred < names.len() || names.contains("-") {
        errors.add(
            section.source,
            section.span(key),
            format!("{key} names some and bars others"),
            "names alone, or names with a minus alone",
        );
    }
    names
}

/// `users = ["ada"]`, and `[account.NAME.user.ada]` where a user has settings.
fn users(section: &Section, account: &str, errors: &mut Errors) -> BTreeMap<String, AccountUser> {
    let plain = section.user_names("users", errors);
    let mut users: BTreeMap<_, _> = plain
        .into_iter()
        .map(|name| (name, AccountUser::default()))
        .collect();
    for table in section.named_tables("user", errors) {
        let NamedTable { name, span, table } = table;
        if !is_user(name) {
            errors.add(
                section.source,
                span,
                format!("{name:?} is no name of a user"),
                "as the system knows it",
            );
        }
        let what = format!("[account.{account}.user.{name}]");
        let user = Section::open(section.source, table, &keys_with(&USER_KEYS), &what, errors);
        let entry = AccountUser {
            shares: user.number("shares", 0..=1_000_000, errors).unwrap_or(1),
            limits: read_limits(&user, errors),
            is_default: user.boolean("default", errors).unwrap_or(false),
        };
        users.insert(name.to_owned(), entry);
    }
    users
}

fn budgets(section: &Section, account: &str, errors: &mut Errors) -> Vec<Budget> {
    let mut budgets: Vec<Budget> = Vec::new();
    for (table, span) in section.listed_tables("budget", errors) {
        let what = format!("[[account.{account}.budget]]");
        let budget = Section::open(section.source, table, &BUDGET_KEYS, &what, errors);
        for key in ["kind", "gpu_hours", "period"]
            .iter()
            .filter(|key| !budget.has(key))
        {
            let hint = "kind, gpu_hours and period are needed";
            errors.add(
                section.source,
                span.clone(),
                format!("{what} has no {key}"),
                hint,
            );
        }
        let kind = budget.word("kind", &BUDGET_KINDS, errors);
        let gpu_hours = budget.number("gpu_hours", 0..=u32::MAX, errors);
        let period = budget.word("period", &PERIODS, errors);
        let gpu_type = budget.gpu_type("gpu_type", errors);
        let (Some(kind), Some(gpu_hours), Some(period)) = (kind, gpu_hours, period) else {
            continue;
        };
        if budgets
            .iter()
            .any(|other| (other.kind, other.period, &other.gpu_type) == (kind, period, &gpu_type))
        {
            errors.add(
                section.source,
                span,
                format!("{what} has the kind and period of another"),
                "keep one of them",
            );
        }
        budgets.push(Budget {
            kind,
            gpu_hours: u64::from(gpu_hours),
            period,
            gpu_type,
        });
    }
    budgets
}

fn reserved_part(section: &Section, table: &NamedTable, errors: &mut Errors) -> ReservedPart {
    let given: Vec<&str> = ["nodes", "node_count", "gpus"]
        .into_iter()
        .filter(|key| section.has(key))
        .collect();
    match given[..] {
        ["nodes"] => {
            let all = section
                .texts("nodes", errors)
                .is_some_and(|texts| texts.join(",").eq_ignore_ascii_case("ALL"));
            if all {
                return ReservedPart::AllNodes;
            }
            section
                .hosts("nodes", errors)
                .map_or(ReservedPart::NodeCount(1), ReservedPart::Nodes)
        }
        ["node_count"] => ReservedPart::NodeCount(
            section
                .number("node_count", 1..=1_000_000, errors)
                .unwrap_or(1),
        ),
        [gpus] => {
            let amounts = section.amounts(gpus, errors);
            if amounts
                .as_ref()
                .is_some_and(|amounts| amounts.amount(ALL_GPUS) == 0)
            {
                let text = format!("[reservation.{}] reserves no GPU", table.name);
                errors.add(
                    section.source,
                    section.span(gpus),
                    text,
                    "write a number, or numbers by type",
                );
            }
            ReservedPart::Gpus(amounts.unwrap_or_default())
        }
        [] => {
            let text = format!("[reservation.{}] reserves nothing", table.name);
            errors.add(
                section.source,
                table.span.clone(),
                text,
                "name nodes, node_count or gpus",
            );
            ReservedPart::default()
        }
        [_, second, ..] => {
            let text = "nodes, node_count and gpus name what is reserved in different ways";
            errors.add(
                section.source,
                section.span(second),
                text,
                "keep one of them",
            );
            ReservedPart::default()
        }
    }
}

fn within_limit(section: &Section, account: &Account, errors: &mut Errors) {
    if let Some((gpu_type, least, most)) = account.guaranteed_beyond_limit() {
        let show = crate::section::gpu_text;
        let text = format!(
            "guaranteed {gpu_type} is {}, more than the limit {}",
            show(least),
            show(most)
        );
        errors.add(
            section.source,
            section.span("guaranteed"),
            text,
            "make it the limit or less",
        );
    }
}

/// The QOS of jobs that name none must be one they may have.
pub fn default_among_allowed(
    section: &Section,
    allowed: &[String],
    default: Option<&str>,
    errors: &mut Errors,
) {
    let Some(default) = default else { return };
    if !allowed.is_empty() && !allowed.iter().any(|qos| qos == default) {
        let text = format!("default_qos = {default:?} is not in allow_qos");
        errors.add(
            section.source,
            section.span("default_qos"),
            text,
            format!("allowed are {}", allowed.join(", ")),
        );
    }
}

/// A list of nodes as one text.
pub fn hosts_text(hosts: &Hostlist) -> String {
    gmodel::hostlist::compress(hosts.iter())
}
