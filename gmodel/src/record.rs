//! One table for each record of the policy: its keys, each with type, bounds, spellings and meaning.
//!
//! Owns what a key is, never what it does. The reader and the writer of the TOML, the JSON of the API, the words of `gadm` and
//! `sacctmgr`, and the test of the man page walk these tables. [`record!`](crate::record!) makes a record's struct and its table.

use crate::gpu_amounts::{GpuAmounts, milli_text};
use crate::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// One key of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Of the struct that holds it.
    pub field: &'static str,
    /// In TOML, and in commands.
    pub name: &'static str,
    /// In the JSON of the API; times have their unit there.
    pub json: &'static str,
    pub kind: Kind,
    /// More spellings in commands, Slurm's among them. Of a table each with the key in it that is meant.
    pub spellings: &'static [(&'static str, &'static str)],
    pub access: Access,
    /// A record without it is none, and no command takes it away.
    pub is_needed: bool,
    /// The JSON leaves it out where it is not set; other keys are null there.
    pub is_sparse: bool,
    /// The doc comment of its field.
    pub help: &'static str,
}

/// May change a key, beside the files of the administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Operators, and coordinators of an account above.
    Operators,
    /// Coordinators of the account, too.
    Coordinators,
    /// The files of the administrator alone: what root runs, and how GPUs are kept apart.
    Files,
    /// No edit of the record: the controller sets it, or it has edits of its own.
    Fixed,
}

/// Names that a text or a list holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameOf {
    User,
    Account,
    Qos,
    Partition,
    /// Not a record: a constraint, a repeat.
    Other,
}

/// What a key holds, and within which bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Name(NameOf),
    Names(NameOf),
    /// A host list, or `ALL`.
    Hosts,
    Count {
        least: u32,
        most: u32,
    },
    /// A number with up to three decimals, held in thousandths.
    Decimal {
        most: u32,
    },
    /// GPUs by type.
    Gpus,
    GpuType,
    Flag,
    /// Yes, no, or a word between.
    FlagOr(&'static str),
    /// Bytes.
    Size,
    /// Absolute; empty for none.
    Path,
    /// Seconds.
    Duration {
        least: u32,
        most: u32,
    },
    /// Seconds, or no limit.
    TimeLimit,
    Moment,
    /// One of some words.
    Word(&'static [&'static str]),
    Table(&'static [Key]),
    /// A table that is there with all its keys, or not at all.
    WholeTable(&'static [Key]),
    /// A list of tables.
    Tables(&'static [Key]),
    /// Tables by the names of users.
    Users(&'static [Key]),
    /// Keys of a part that stand among those of the record.
    Flat(&'static [Key]),
}

/// What a key is set to.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unset,
    Text(String),
    Names(Vec<String>),
    /// A count, seconds, bytes, or thousandths of a decimal number.
    Number(u64),
    Gpus(GpuAmounts),
    Flag(bool),
    Moment(Timestamp),
    Table(Table),
    Tables(Vec<Table>),
    Users(BTreeMap<String, Table>),
}

/// The keys of a record with their values, in the order of the record's table.
pub type Table = Vec<(&'static Key, Value)>;

impl Key {
    pub const fn new(kind: Kind) -> Self {
        Self {
            field: "",
            name: "",
            json: "",
            kind,
            spellings: &[],
            access: Access::Operators,
            is_needed: false,
            is_sparse: false,
            help: "",
        }
    }

    pub const fn count(least: u32, most: u32) -> Self {
        Self::new(Kind::Count { least, most })
    }

    pub const fn duration(least: u32, most: u32) -> Self {
        Self::new(Kind::Duration { least, most })
    }

    /// Called so in TOML and in JSON, other than its field.
    #[must_use]
    pub const fn named(mut self, name: &'static str) -> Self {
        (self.name, self.json) = (name, name);
        self
    }

    /// Called so in TOML.
    #[must_use]
    pub const fn in_toml(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// Called so in JSON.
    #[must_use]
    pub const fn in_json(mut self, name: &'static str) -> Self {
        self.json = name;
        self
    }

    #[must_use]
    pub const fn spelled(mut self, spellings: &'static [(&'static str, &'static str)]) -> Self {
        self.spellings = spellings;
        self
    }

    #[must_use]
    pub const fn by(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    #[must_use]
    pub const fn needed(mut self) -> Self {
        self.is_needed = true;
        self
    }

    #[must_use]
    pub const fn sparse(mut self) -> Self {
        self.is_sparse = true;
        self
    }

    /// Of a field; [`record!`](crate::record!) says of which.
    #[must_use]
    pub const fn of_field(mut self, field: &'static str, help: &'static str) -> Self {
        (self.field, self.help) = (field, help);
        if self.name.is_empty() {
            self.name = field;
        }
        if self.json.is_empty() {
            self.json = field;
        }
        self
    }

    /// An edit may set it.
    pub fn is_editable(&self) -> bool {
        !matches!(self.access, Access::Files | Access::Fixed)
    }

    /// Files of the administrator may have it.
    pub fn is_in_files(&self) -> bool {
        self.access != Access::Fixed || matches!(self.kind, Kind::Users(_))
    }

    /// Keys of the tables below it; none where it holds no tables.
    pub fn below(&self) -> Vec<&'static Key> {
        match self.kind {
            Kind::Table(keys) | Kind::WholeTable(keys) | Kind::Tables(keys) | Kind::Users(keys) => {
                flat(keys)
            }
            _ => Vec::new(),
        }
    }

    /// A value as people read it: `16`, `h100:16,gpu:32`, `ada,bob`; empty where it is not set.
    pub fn text(&self, value: &Value) -> String {
        match (self.kind, value) {
            (Kind::Decimal { .. }, Value::Number(milli)) => milli_text(*milli),
            (_, Value::Number(number)) => number.to_string(),
            (_, Value::Text(text)) => text.clone(),
            (_, Value::Names(names)) => names.join(","),
            (_, Value::Gpus(gpus)) => gpus.text(),
            (_, Value::Flag(flag)) => if *flag { "yes" } else { "no" }.to_owned(),
            (_, Value::Moment(at)) => at.to_string(),
            (_, Value::Table(table)) => table_text(table),
            (_, Value::Unset | Value::Tables(_) | Value::Users(_)) => String::new(),
        }
    }
}

/// `running_jobs=5,gpus=h100:8`: the keys that are set.
pub fn table_text(table: &Table) -> String {
    let set = table.iter().filter(|(_, value)| *value != Value::Unset);
    let parts: Vec<String> = set
        .map(|(key, value)| format!("{}={}", key.name, key.text(value)))
        .collect();
    parts.join(",")
}

/// A record with a table of its keys.
pub trait Record: Clone + Default + PartialEq + 'static {
    const KEYS: &'static [Key];

    /// `None`: the record has no such key.
    fn get(&self, key: &Key) -> Option<Value>;

    /// Sets a key; what the key cannot hold makes it what it is by default. False: the record has no such key.
    fn set(&mut self, key: &Key, value: Value) -> bool;

    /// Its keys, with those of its parts.
    fn keys() -> Vec<&'static Key> {
        flat(Self::KEYS)
    }

    fn table(&self) -> Table {
        let keys = Self::keys().into_iter();
        keys.filter_map(|key| Some((key, self.get(key)?))).collect()
    }

    /// The record that a table says; other keys are as by default.
    fn of_table(table: Table) -> Self {
        let mut record = Self::default();
        for (key, value) in table {
            record.set(key, value);
        }
        record
    }

    /// The keys in which two records differ.
    fn differences(&self, other: &Self) -> Vec<&'static Key> {
        let keys = Self::keys().into_iter();
        keys.filter(|key| self.get(key) != other.get(key)).collect()
    }
}

fn flat(keys: &'static [Key]) -> Vec<&'static Key> {
    let one = |key: &'static Key| match key.kind {
        Kind::Flat(keys) => flat(keys),
        _ => vec![key],
    };
    keys.iter().flat_map(one).collect()
}

/// The type of a field, as a value and back.
pub trait Field: Sized {
    fn value(&self) -> Value;

    /// `None`: it cannot hold that.
    fn of_value(value: Value) -> Option<Self>;
}

/// The ways between a type and one variant of [`Value`].
macro_rules! field {
    ($Type:ty, $Variant:ident, $to:expr, $from:expr) => {
        impl Field for $Type {
            fn value(&self) -> Value {
                Value::$Variant($to(self))
            }
            fn of_value(value: Value) -> Option<Self> {
                match value {
                    Value::$Variant(value) => $from(value),
                    _ => None,
                }
            }
        }
    };
}

field!(String, Text, String::clone, Some);
field!(bool, Flag, |flag: &bool| *flag, Some);
field!(u32, Number, |number: &u32| u64::from(*number), |number| {
    u32::try_from(number).ok()
});
field!(u64, Number, |number: &u64| *number, Some);
field!(GpuAmounts, Gpus, GpuAmounts::clone, Some);
field!(Timestamp, Moment, |at: &Timestamp| *at, Some);
field!(Vec<String>, Names, Vec::clone, Some);
field!(
    BTreeSet<String>,
    Names,
    |names: &BTreeSet<String>| names.iter().cloned().collect(),
    |names: Vec<String>| Some(names.into_iter().collect())
);

impl<T: Field> Field for Option<T> {
    fn value(&self) -> Value {
        self.as_ref().map_or(Value::Unset, Field::value)
    }
    fn of_value(value: Value) -> Option<Self> {
        match value {
            Value::Unset => Some(None),
            // No name at all is none.
            Value::Text(text) if text.is_empty() => Some(None),
            value => Some(Some(T::of_value(value)?)),
        }
    }
}

impl<R: Record> Field for Vec<R> {
    fn value(&self) -> Value {
        Value::Tables(self.iter().map(Record::table).collect())
    }
    fn of_value(value: Value) -> Option<Self> {
        match value {
            Value::Tables(tables) => Some(tables.into_iter().map(R::of_table).collect()),
            _ => None,
        }
    }
}

impl<R: Record> Field for BTreeMap<String, R> {
    fn value(&self) -> Value {
        let users = self.iter().map(|(name, one)| (name.clone(), one.table()));
        Value::Users(users.collect())
    }
    fn of_value(value: Value) -> Option<Self> {
        let Value::Users(users) = value else {
            return None;
        };
        let users = users.into_iter();
        Some(users.map(|(name, one)| (name, R::of_table(one))).collect())
    }
}

/// A record: `field: Type = default, KEY;` for each key, where the doc comment is the key's help. `flat` has fields that are
/// records themselves, with keys that stand among its own, and spellings of these; `plain` has fields without a key.
#[macro_export]
macro_rules! record {
    (
        $(#[$meta:meta])*
        pub struct $Record:ident {
            $( $(#[doc = $doc:literal])* $(#[serde($($serde:tt)*)])? $field:ident: $Type:ty = $default:expr, $key:expr; )*
        }
        $( flat { $( $(#[doc = $part_doc:literal])* $part:ident: $Part:ty $(, $spelled:expr)?; )* } )?
        $( plain { $( $(#[doc = $plain_doc:literal])* $(#[serde($($plain_serde:tt)*)])? $plain:ident: $Plain:ty; )* } )?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $Record {
            $( $(#[doc = $doc])* $(#[serde($($serde)*)])? pub $field: $Type, )*
            $( $( $(#[doc = $part_doc])* pub $part: $Part, )* )?
            $( $( $(#[doc = $plain_doc])* $(#[serde($($plain_serde)*)])? pub $plain: $Plain, )* )?
        }

        impl Default for $Record {
            fn default() -> Self {
                Self {
                    $( $field: $default, )*
                    $( $( $part: <$Part>::default(), )* )?
                    $( $( $plain: <$Plain>::default(), )* )?
                }
            }
        }

        impl $crate::record::Record for $Record {
            const KEYS: &'static [$crate::record::Key] = &[
                $( $key.of_field(stringify!($field), concat!($($doc),*)), )*
                $( $( $crate::record::Key::new($crate::record::Kind::Flat(<$Part as $crate::record::Record>::KEYS))
                    $( .spelled($spelled) )?, )* )?
            ];

            fn get(&self, key: &$crate::record::Key) -> Option<$crate::record::Value> {
                $( if key.field == stringify!($field) {
                    return Some($crate::record::Field::value(&self.$field));
                } )*
                $( $( if let Some(value) = $crate::record::Record::get(&self.$part, key) {
                    return Some(value);
                } )* )?
                None
            }

            fn set(&mut self, key: &$crate::record::Key, value: $crate::record::Value) -> bool {
                $( if key.field == stringify!($field) {
                    self.$field = $crate::record::Field::of_value(value).unwrap_or_else(|| $default);
                    return true;
                } )*
                $( $( if $crate::record::Record::get(&self.$part, key).is_some() {
                    return $crate::record::Record::set(&mut self.$part, key, value);
                } )* )?
                false
            }
        }

        impl $crate::record::Field for $Record {
            fn value(&self) -> $crate::record::Value {
                $crate::record::Value::Table($crate::record::Record::table(self))
            }
            fn of_value(value: $crate::record::Value) -> Option<Self> {
                match value {
                    $crate::record::Value::Table(table) => Some($crate::record::Record::of_table(table)),
                    _ => None,
                }
            }
        }
    };
}

/// The words of an enum, as TOML, JSON and commands write them; letter case does not count.
#[macro_export]
macro_rules! words {
    ($Type:ident { $($Variant:ident = $word:literal),* $(,)? }) => {
        impl $Type {
            /// As it is written, in the order of its variants.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// With its words.
            pub const ALL: &'static [(&'static str, Self)] = &[$(($word, Self::$Variant)),*];

            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$Variant => $word,)*
                }
            }

            pub fn of_word(word: &str) -> Option<Self> {
                let mut all = Self::ALL.iter();
                all.find(|(known, _)| known.eq_ignore_ascii_case(word)).map(|(_, one)| *one)
            }
        }

        impl $crate::record::Field for $Type {
            fn value(&self) -> $crate::record::Value {
                $crate::record::Value::Text(self.word().to_owned())
            }
            fn of_value(value: $crate::record::Value) -> Option<Self> {
                match value {
                    $crate::record::Value::Text(word) => Self::of_word(&word),
                    _ => None,
                }
            }
        }
    };
}
