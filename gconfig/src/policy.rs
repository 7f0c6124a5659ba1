//! `[account.NAME]`, `[qos.NAME]` and `[reservation.NAME]` tables, of the main file and of `policy.d`.
//!
//! Owns what must hold between keys of one record; the keys are gmodel's tables. Whether names that they mention exist is [`crate::policy_check`]'s. Words of sacctmgr(1)
//! and of `scontrol create reservation`.

use crate::error::{Errors, Source};
use crate::name::{NAMES, is_name};
use crate::record::{MentionedName, RecordReader, names};
use crate::section::{NamedTable, Section};
use gmodel::constraint::Constraint;
use gmodel::gpu_amounts::milli_text;
use gmodel::policy::{
    ALL_GPUS, Account, JobLimits, Policy, Qos, ROOT_ACCOUNT, Reservation, ReservedPart,
};
use gmodel::record::{NameOf, Record};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use toml::de::DeTable;

/// The tables that hold records.
pub const RECORD_TABLES: [&str; 3] = ["account", "qos", "reservation"];

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

    /// Opens a record's table and reads its keys. Names that it mentions must be there when all is read.
    pub(crate) fn read_record<R: Record>(
        &mut self,
        section: &Section,
        source: &'s Source,
        errors: &mut Errors,
    ) -> R {
        let mut reader = RecordReader::new(errors);
        let read = reader.read(section, &R::keys());
        for MentionedName { of, name, span } in reader.mentioned {
            let kind = match of {
                NameOf::Account if name == ROOT_ACCOUNT && section.has("parent") => continue,
                NameOf::Account => RecordKind::Account,
                NameOf::Qos => RecordKind::Qos,
                NameOf::Partition => RecordKind::Partition,
                NameOf::User | NameOf::Other => continue,
            };
            self.mention(source, span, kind, &name);
        }
        R::of_table(read)
    }

    fn account(&mut self, source: &'s Source, table: &NamedTable, errors: &mut Errors) -> Account {
        let name = table.name;
        let section = open::<Account>(source, table, RecordKind::Account, errors);
        for key in ["parent", "guaranteed"] {
            let span = if section.has(key) {
                section.span(key)
            } else {
                table.span.clone()
            };
            self.account_spans
                .insert((name.to_owned(), key), (source, span));
        }
        let mut account: Account = self.read_record(&section, source, errors);
        name.clone_into(&mut account.name);
        account.parent = account.parent.filter(|parent| parent != ROOT_ACCOUNT);
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
        let section = open::<Qos>(source, table, RecordKind::Qos, errors);
        let mut qos: Qos = self.read_record(&section, source, errors);
        table.name.clone_into(&mut qos.name);
        if qos.preempt.contains(table.name) {
            errors.add(
                source,
                section.span("preempt"),
                format!("qos {:?} preempts itself", table.name),
                "leave it out",
            );
        }
        if let Some(policy) = &qos.idle {
            crate::idle::check(&section, policy, errors);
        }
        job_bounds(&section, &qos.per_job, errors);
        qos
    }

    fn read_reservation(
        &mut self,
        source: &'s Source,
        table: &NamedTable,
        errors: &mut Errors,
    ) -> Reservation {
        let name = table.name;
        let what = format!("[reservation.{name}]");
        let section = open::<Reservation>(source, table, RecordKind::Reservation, errors);
        RecordReader::new(errors).must_have(&section, &what, &Reservation::keys(), &table.span);
        let mut reservation: Reservation = self.read_record(&section, source, errors);
        name.clone_into(&mut reservation.name);
        reservation.created_by = source.path.display().to_string();
        reserved_part(&section, table, &reservation, errors);
        one_way(&section, "users", &reservation.users, errors);
        one_way(&section, "accounts", &reservation.accounts, errors);
        features(&section, &reservation.features, errors);
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

/// The table of a record, with its unknown keys reported.
fn open<'a, R: Record>(
    source: &'a Source,
    table: &NamedTable<'a>,
    kind: RecordKind,
    errors: &mut Errors,
) -> Section<'a> {
    let what = format!("[{}.{}]", kind.word(), table.name);
    Section::open(source, table.table, &names(&R::keys()), &what, errors)
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
fn features(section: &Section, text: &str, errors: &mut Errors) {
    if text.is_empty() {
        return;
    }
    if let Err(error) = Constraint::parse(text) {
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
}

/// A list of a reservation names users and accounts that may use it, or with a minus those that may not.
fn one_way(section: &Section, key: &str, names: &BTreeSet<String>, errors: &mut Errors) {
    let barred = names.iter().filter(|name| name.starts_with('-')).count();
    if barred > 0 && barred < names.len() || names.contains("-") {
        errors.add(
            section.source,
            section.span(key),
            format!("{key} names some and bars others"),
            "names alone, or names with a minus alone",
        );
    }
}

/// One key says what is reserved, and that is something.
fn reserved_part(
    section: &Section,
    table: &NamedTable,
    reservation: &Reservation,
    errors: &mut Errors,
) {
    let keys = ReservedPart::KEYS.iter().map(|key| key.name);
    let given: Vec<&str> = keys.filter(|key| section.has(key)).collect();
    let (span, text, hint) = match given[..] {
        ["gpus"] => match &reservation.what {
            ReservedPart::Gpus(amounts) if amounts.amount(ALL_GPUS) == 0 => (
                section.span("gpus"),
                format!("[reservation.{}] reserves no GPU", table.name),
                "write a number, or numbers by type",
            ),
            _ => return,
        },
        [_] => return,
        [] => (
            table.span.clone(),
            format!("[reservation.{}] reserves nothing", table.name),
            "name nodes, node_count or gpus",
        ),
        [_, second, ..] => (
            section.span(second),
            "nodes, node_count and gpus name what is reserved in different ways".to_owned(),
            "keep one of them",
        ),
    };
    errors.add(section.source, span, text, hint);
}

/// A job must be able to keep within both bounds.
fn job_bounds(section: &Section, bounds: &JobLimits, errors: &mut Errors) {
    let Some((kind, least, most)) = bounds.asks_beyond_its_bound() else {
        return;
    };
    let text = format!(
        "min_gpus {kind} is {}, more than gpus with {}: no job could be submitted",
        milli_text(least),
        milli_text(most)
    );
    let span = section.below("per_job").map(|below| below.span("min_gpus"));
    errors.add(
        section.source,
        span.unwrap_or_default(),
        text,
        "make it gpus or less",
    );
}

fn within_limit(section: &Section, account: &Account, errors: &mut Errors) {
    if let Some((gpu_type, least, most)) = account.guaranteed_beyond_limit() {
        let text = format!(
            "guaranteed {gpu_type} is {}, more than the limit {}",
            milli_text(least),
            milli_text(most)
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
