//! Records of the policy as the JSON of the API, by their tables of keys in gmodel.
//!
//! Owns the JSON of each kind of key, both ways. GPUs are numbers by type, in which `gpu` is all types together.

use gmodel::Instant;
use gmodel::hostlist::Hostlist;
use gmodel::policy::{ALL_GPUS, AccountUser, GpuAmounts};
use gmodel::record::{self, Key, Kind, Record, Table};
use gmodel::suggest::did_you_mean;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Most GPUs of a type.
const MOST_GPUS: u32 = 1_000_000;

/// Of a field that is a record: `#[serde(with = "crate::record_json")]`.
///
/// # Errors
/// Of the serializer.
pub fn serialize<R: Record, S: Serializer>(record: &R, to: S) -> Result<S::Ok, S::Error> {
    write(record).serialize(to)
}

/// The same back. A client leaves out what a controller of another release writes otherwise.
///
/// # Errors
/// There is no object.
pub fn deserialize<'de, R: Record, D: Deserializer<'de>>(from: D) -> Result<R, D::Error> {
    Ok(read(&Map::deserialize(from)?).0)
}

/// All keys of a record.
pub fn write<R: Record>(record: &R) -> Map<String, Value> {
    object(&record.table())
}

fn object(table: &Table) -> Map<String, Value> {
    let one = |(key, value): &(&'static Key, record::Value)| {
        let is_unset =
            *value == record::Value::Unset || *value == record::Value::Text(String::new());
        let is_shown = !(key.is_sparse && is_unset);
        is_shown.then(|| (key.json.to_owned(), value_json(key.kind, value)))
    };
    table.iter().filter_map(one).collect()
}

fn value_json(kind: Kind, value: &record::Value) -> Value {
    match value {
        record::Value::Unset => Value::Null,
        record::Value::Text(text) => json!(text),
        record::Value::Names(names) => json!(names),
        record::Value::Number(milli) if matches!(kind, Kind::Decimal { .. }) => {
            json!(*milli as f64 / 1000.0)
        }
        record::Value::Number(number) => json!(number),
        record::Value::Gpus(gpus) => json!(gpus_json(gpus)),
        record::Value::Flag(flag) => json!(flag),
        record::Value::Moment(at) => json!(Instant(*at)),
        record::Value::Table(table) => Value::Object(object(table)),
        record::Value::Tables(tables) => tables
            .iter()
            .map(|one| Value::Object(object(one)))
            .collect(),
        record::Value::Users(users) => users
            .iter()
            .map(|(name, user)| (name.clone(), Value::Object(object(user))))
            .collect(),
    }
}

/// GPUs by type, as numbers.
pub fn gpus_json(gpus: &GpuAmounts) -> BTreeMap<String, f64> {
    let by_type = gpus.0.iter();
    by_type
        .map(|(gpu_type, milli)| (gpu_type.clone(), *milli as f64 / 1000.0))
        .collect()
}

/// A record of what can be read, and the first thing that cannot. What is missing or null is as by default.
pub fn read<R: Record>(object: &Map<String, Value>) -> (R, Option<String>) {
    let mut fault = None;
    let table = table_of(object, &R::keys(), &mut fault);
    (R::of_table(table), fault)
}

fn table_of(
    object: &Map<String, Value>,
    keys: &[&'static Key],
    fault: &mut Option<String>,
) -> Table {
    let mut table = Table::new();
    for key in keys {
        let Some(json) = object.get(key.json).filter(|json| !json.is_null()) else {
            continue;
        };
        match value_of(key, json, fault) {
            Ok(value) => table.push((key, value)),
            Err(why) => drop(fault.get_or_insert(why)),
        }
    }
    table
}

/// What a text, a number or a list holds that serde reads.
fn plain<T: DeserializeOwned>(json: &Value) -> Result<T, String> {
    serde_json::from_value(json.clone())
        .map_err(|error| format!("the change cannot be read: {error}"))
}

fn value_of(
    key: &'static Key,
    json: &Value,
    fault: &mut Option<String>,
) -> Result<record::Value, String> {
    Ok(match key.kind {
        Kind::Text | Kind::Path | Kind::FlagOr(_) => record::Value::Text(plain(json)?),
        Kind::Name(_) => record::Value::Text(plain::<String>(json)?.trim().to_owned()),
        Kind::Names(_) => record::Value::Names(plain(json)?),
        Kind::Hosts => {
            let hosts: String = plain(json)?;
            if !hosts.eq_ignore_ascii_case("ALL") && !hosts.is_empty() {
                Hostlist::parse(&hosts).map_err(|error| format!("{}: {error}", key.json))?;
            }
            record::Value::Text(hosts)
        }
        Kind::Count { least, most } if json.as_u64() > Some(u64::from(most)) => {
            return Err(format!(
                "{} = {json} is out of bounds: {least} to {most} is allowed",
                key.name
            ));
        }
        Kind::Count { .. } | Kind::Duration { .. } | Kind::TimeLimit => {
            record::Value::Number(u64::from(plain::<u32>(json)?))
        }
        Kind::Size => record::Value::Number(plain(json)?),
        Kind::Decimal { most } => {
            record::Value::Number(milli(key.json, plain(json)?, most / 1000)?)
        }
        Kind::Gpus => record::Value::Gpus(amounts(key.json, plain(json)?)?),
        Kind::GpuType => match plain::<String>(json)?.to_ascii_lowercase() {
            all if all == ALL_GPUS => record::Value::Unset,
            gpu_type => record::Value::Text(gpu_type),
        },
        Kind::Flag => record::Value::Flag(plain(json)?),
        Kind::Moment => record::Value::Moment(plain::<Instant>(json)?.0),
        Kind::Word(words) => match plain::<String>(json)?.as_str() {
            "" => record::Value::Unset,
            word => record::Value::Text(one_of(key.json, word, words)?.to_owned()),
        },
        Kind::Table(_) | Kind::WholeTable(_) => {
            record::Value::Table(table_of(&plain(json)?, &key.below(), fault))
        }
        Kind::Tables(_) => record::Value::Tables(tables_of(key, plain(json)?, fault)),
        Kind::Users(_) => {
            let users: BTreeMap<String, Map<String, Value>> = plain(json)?;
            let mut whole = |one: &Map<String, Value>| {
                let read: AccountUser = AccountUser::of_table(table_of(one, &key.below(), fault));
                read.table()
            };
            let users = users.iter().map(|(name, one)| (name.clone(), whole(one)));
            record::Value::Users(users.collect())
        }
        Kind::Flat(_) => record::Value::Unset,
    })
}

fn tables_of(
    key: &'static Key,
    list: Vec<Map<String, Value>>,
    fault: &mut Option<String>,
) -> Vec<Table> {
    let keys = key.below();
    let mut whole = |one: &Map<String, Value>| {
        for needed in keys.iter().filter(|key| key.is_needed) {
            if one.get(needed.json).is_none_or(Value::is_null) {
                fault.get_or_insert_with(|| format!("{}: one has no {}", key.json, needed.json));
            }
        }
        table_of(one, &keys, fault)
    };
    list.iter().map(&mut whole).collect()
}

fn amounts(key: &str, gpus: BTreeMap<String, f64>) -> Result<GpuAmounts, String> {
    let mut amounts = GpuAmounts::default();
    for (gpu_type, count) in gpus {
        let is_type = (1..=64).contains(&gpu_type.len())
            && gpu_type
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        if !is_type {
            return Err(format!(
                "{key}: {gpu_type:?} is no type of GPU, as h100, or gpu for all types"
            ));
        }
        let milli = milli(key, count, MOST_GPUS)?;
        amounts.0.insert(gpu_type.to_ascii_lowercase(), milli);
    }
    Ok(amounts)
}

fn milli(key: &str, number: f64, most: u32) -> Result<u64, String> {
    if !(0.0..=f64::from(most)).contains(&number) {
        return Err(format!(
            "{key} = {number} is out of bounds: 0 to {most} is allowed"
        ));
    }
    Ok((number * 1000.0).round() as u64)
}

fn one_of(key: &str, text: &str, words: &'static [&'static str]) -> Result<&'static str, String> {
    let mut known = words.iter();
    if let Some(word) = known.find(|word| word.eq_ignore_ascii_case(text)) {
        return Ok(word);
    }
    let guess = did_you_mean(text, words.iter().copied());
    Err(format!(
        "{text:?} is no {key}.{guess} There are: {}",
        words.join(", ")
    ))
}
