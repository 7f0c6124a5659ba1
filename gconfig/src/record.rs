//! Reads a record from its table in a file, key by key as its table of keys in gmodel says.
//!
//! Owns the ways from TOML to each kind of key. What must hold between keys is checked by the readers of the records.

use crate::error::Errors;
use crate::name::is_user;
use crate::section::{NamedTable, Section};
use gmodel::hostlist::Hostlist;
use gmodel::policy::AccountUser;
use gmodel::record::{Key, Kind, NameOf, Record, Table, Value};
use std::collections::BTreeMap;
use std::ops::Range;

/// Tables of users with settings, beside the list under the key of their kind.
pub(crate) const USER_TABLES: &str = "user";

/// A name that a record mentions, with its place.
pub(crate) struct MentionedName {
    pub(crate) of: NameOf,
    pub(crate) name: String,
    pub(crate) span: Range<usize>,
}

/// The keys of a record in files.
pub(crate) fn names(keys: &[&'static Key]) -> Vec<&'static str> {
    let name = |key: &&'static Key| {
        let tables = matches!(key.kind, Kind::Users(_)).then_some(USER_TABLES);
        [key.name].into_iter().chain(tables)
    };
    let in_files = keys.iter().filter(|key| key.is_in_files());
    in_files.flat_map(name).collect()
}

/// Reads tables of keys.
pub(crate) struct RecordReader<'e> {
    pub(crate) errors: &'e mut Errors,
    pub(crate) mentioned: Vec<MentionedName>,
}

impl<'e> RecordReader<'e> {
    pub(crate) fn new(errors: &'e mut Errors) -> Self {
        Self {
            errors,
            mentioned: Vec::new(),
        }
    }

    fn open(
        &mut self,
        section: &Section,
        table: &toml::de::DeTable<'_>,
        what: &str,
        keys: &[&'static Key],
    ) -> Table {
        let section = Section::open(section.source, table, &names(keys), what, self.errors);
        self.read(&section, keys)
    }

    /// The keys that are there and can be read.
    pub(crate) fn read(&mut self, section: &Section, keys: &[&'static Key]) -> Table {
        let keys = keys.iter().filter(|key| key.is_in_files());
        keys.filter_map(|key| Some((*key, self.value(section, key)?)))
            .collect()
    }

    fn value(&mut self, section: &Section, key: &'static Key) -> Option<Value> {
        let (name, errors) = (key.name, &mut *self.errors);
        let number = |number: u32| Value::Number(u64::from(number));
        Some(match key.kind {
            Kind::Text => Value::Text(section.text(name, errors)?),
            Kind::Name(of) => {
                let text = section.text(name, errors)?;
                self.mention(of, &text, section.span(name));
                Value::Text(text)
            }
            Kind::Names(NameOf::User) => {
                Value::Names(section.user_names(name, errors).into_iter().collect())
            }
            Kind::Names(of) => {
                let names = section.names(name, errors)?;
                for (name, span) in &names {
                    self.mention(of, name, span.clone());
                }
                Value::Names(names.into_iter().map(|(name, _)| name).collect())
            }
            Kind::Hosts => hosts(section, name, errors)?,
            Kind::Count { least, most } => number(section.number(name, least..=most, errors)?),
            Kind::Decimal { most } => {
                Value::Number(section.milli(name, 0..=u64::from(most), errors)?)
            }
            Kind::Gpus => Value::Gpus(section.amounts(name, errors)?),
            Kind::GpuType => Value::Text(section.gpu_type(name, errors)?),
            Kind::Flag => Value::Flag(section.boolean(name, errors)?),
            Kind::FlagOr(word) => {
                let words = [(word, word)];
                let read = section.boolean_or_word(name, "yes", "no", &words, errors)?;
                Value::Text(read.to_owned())
            }
            Kind::Size => Value::Number(section.size(name, errors)?),
            Kind::Path => {
                let path = section.path(name, true, errors)?;
                Value::Text(path.to_string_lossy().into_owned())
            }
            Kind::Duration { least, most } => number(section.secs(name, least..=most, errors)?),
            Kind::TimeLimit => section.limit(name, errors)?.map_or(Value::Unset, number),
            Kind::Moment => Value::Moment(section.moment(name, errors)?),
            Kind::Word(words) => {
                let words: Vec<(&str, &str)> = words.iter().map(|word| (*word, *word)).collect();
                Value::Text(section.word(name, &words, errors)?.to_owned())
            }
            Kind::Table(_) | Kind::WholeTable(_) => {
                let table = section.table(name, errors)?;
                let what = section.head(name);
                Value::Table(self.open(section, table, &what, &key.below()))
            }
            Kind::Tables(_) => Value::Tables(self.tables(section, key)),
            Kind::Users(_) => Value::Users(self.users(section, key)),
            Kind::Flat(_) => return None,
        })
    }

    fn mention(&mut self, of: NameOf, name: &str, span: Range<usize>) {
        // A reservation bars accounts by a minus.
        let name = match of {
            NameOf::Account => name.strip_prefix('-').unwrap_or(name),
            _ => name,
        };
        self.mentioned.push(MentionedName {
            of,
            name: name.to_owned(),
            span,
        });
    }

    /// Reports the needed keys that are not there.
    pub(crate) fn must_have(
        &mut self,
        section: &Section,
        what: &str,
        keys: &[&'static Key],
        span: &Range<usize>,
    ) {
        let needed = || keys.iter().filter(|key| key.is_needed).map(|key| key.name);
        let all: Vec<&str> = needed().collect();
        let hint = match all.split_last() {
            Some((last, [])) => format!("{last} is needed"),
            Some((last, rest)) => format!("{} and {last} are needed", rest.join(", ")),
            None => return,
        };
        for key in needed().filter(|key| !section.has(key)) {
            let text = format!("{what} has no {key}");
            self.errors
                .add(section.source, span.clone(), text, hint.clone());
        }
    }

    /// The tables of a list, those that have all that is needed.
    fn tables(&mut self, section: &Section, key: &'static Key) -> Vec<Table> {
        let (keys, what) = (key.below(), format!("[{}]", section.head(key.name)));
        let mut tables: Vec<Table> = Vec::new();
        for (table, span) in section.listed_tables(key.name, self.errors) {
            let one = Section::open(section.source, table, &names(&keys), &what, self.errors);
            self.must_have(&one, &what, &keys, &span);
            let read = self.read(&one, &keys);
            let is_there = |key: &&'static Key| read.iter().any(|(known, _)| known == key);
            if !keys.iter().filter(|key| key.is_needed).all(is_there) {
                continue;
            }
            if tables.iter().any(|other| same_but_counts(other, &read)) {
                self.errors.add(
                    section.source,
                    span,
                    format!("{what} has the kind and period of another"),
                    "keep one of them",
                );
            }
            tables.push(read);
        }
        tables
    }

    /// `users = ["ada"]`, and `[account.NAME.user.ada]` where a user has settings.
    fn users(&mut self, section: &Section, key: &'static Key) -> BTreeMap<String, Table> {
        let plain = section.user_names(key.name, self.errors).into_iter();
        let default = AccountUser::default().table();
        let mut users: BTreeMap<_, _> = plain.map(|name| (name, default.clone())).collect();
        for NamedTable { name, span, table } in section.named_tables(USER_TABLES, self.errors) {
            if !is_user(name) {
                let text = format!("{name:?} is no name of a user");
                self.errors
                    .add(section.source, span, text, "as the system knows it");
            }
            let what = section.head(&format!("{USER_TABLES}.{name}"));
            let entry = self.open(section, table, &what, &key.below());
            users.insert(name.to_owned(), entry);
        }
        users
    }
}

/// A host list, or `ALL`.
fn hosts(section: &Section, key: &str, errors: &mut Errors) -> Option<Value> {
    let text = section.texts(key, errors)?.join(",");
    let read = Hostlist::parse(&text);
    if let (false, Err(error)) = (text.eq_ignore_ascii_case("ALL"), read) {
        let hint = "as \"node[01-16]\" or \"ALL\"";
        let text = format!("{key}: {error}");
        errors.add(section.source, section.span(key), text, hint);
        return None;
    }
    Some(Value::Text(text))
}

fn same_but_counts(one: &Table, other: &Table) -> bool {
    let named = |table: &Table| -> Table {
        let is_count = |key: &Key| matches!(key.kind, Kind::Count { .. });
        let keys = table.iter().filter(|(key, _)| !is_count(key));
        keys.cloned().collect()
    };
    named(one) == named(other)
}
