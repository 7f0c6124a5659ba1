//! Words `key=value` as sacctmgr and scontrol take them, as changes for the API.
//!
//! Owns the forms of values; the spellings are in the records' tables of keys.

use gcli::{Failure, local_time};
use gmodel::Instant;
use gmodel::duration::TimeLimit;
use gmodel::record::{self, Key, Kind, Record};
use gmodel::size::parse_bytes;
use gmodel::suggest::did_you_mean;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    /// A name; `none` is none.
    Name,
    Count,
    /// A number with decimals.
    Decimal,
    /// `32`, `h100:16,gpu:32`.
    Gpus,
    /// Names with commas between.
    Names,
    Flag,
    /// A length of time in Slurm's forms, in seconds.
    Secs,
    /// The same, or no limit.
    Limit,
    /// `512M`; a bare number is MiB.
    Size,
    /// A moment in local time.
    Moment,
}

/// A spelling of a key in commands.
pub(super) struct Word {
    pub(super) spelling: String,
    /// The key of the API that it sets; `table.key` for one of a table.
    pub(super) api: String,
    pub(super) form: Form,
}

impl Word {
    pub(super) fn new(spelling: &str, api: &str, form: Form) -> Self {
        Self {
            spelling: spelling.to_owned(),
            api: api.to_owned(),
            form,
        }
    }
}

/// The words of a record: each key that commands may set with its spellings, by the record's table.
pub(super) fn words_of<R: Record>() -> Vec<Word> {
    let default = R::default();
    let mut words = Vec::new();
    for key in R::KEYS.iter().filter(|key| key.is_editable()) {
        let (below, path) = match key.kind {
            Kind::Flat(part) => (part.iter().collect(), None),
            Kind::Table(_) | Kind::WholeTable(_) => (key.below(), Some(key)),
            Kind::Tables(_) | Kind::Users(_) => continue,
            _ => {
                let is_clear = default.get(key) == Some(record::Value::Unset);
                push_spellings(&mut words, key, None, &[], is_clear);
                continue;
            }
        };
        for one in below {
            push_spellings(&mut words, one, path, key.spellings, false);
        }
    }
    words
}

/// A key, alone or in a table, with the spellings that name it. A word that is clear by default can be taken away.
fn push_spellings(
    words: &mut Vec<Word>,
    key: &'static Key,
    table: Option<&Key>,
    spellings: &[(&'static str, &str)],
    is_clear: bool,
) {
    let form = match key.kind {
        Kind::Count { .. } => Form::Count,
        Kind::Decimal { .. } => Form::Decimal,
        Kind::Gpus => Form::Gpus,
        Kind::Names(_) => Form::Names,
        Kind::Flag => Form::Flag,
        Kind::Duration { .. } => Form::Secs,
        Kind::TimeLimit => Form::Limit,
        Kind::Size => Form::Size,
        Kind::Moment => Form::Moment,
        Kind::Name(_) | Kind::Hosts => Form::Name,
        Kind::Word(_) if is_clear => Form::Name,
        _ => Form::Text,
    };
    let (name, api) = match table {
        Some(table) => (
            format!("{}.{}", table.name, key.name),
            format!("{}.{}", table.json, key.json),
        ),
        None => (key.name.to_owned(), key.json.to_owned()),
    };
    let meant = spellings.iter().filter(|(_, meant)| *meant == key.name);
    let more = key.spellings.iter().chain(meant).map(|(word, _)| *word);
    words.push(Word::new(&name, &api, form));
    words.extend(more.map(|word| Word::new(word, &api, form)));
}

/// Reads changes. A later word of the same key wins; what `+=` and `-=` name is taken together.
///
/// # Errors
/// The first word that is no change, with a guess.
pub(super) fn read(
    words: &[String],
    keys: &[Word],
    what: &str,
) -> Result<BTreeMap<String, Value>, Failure> {
    let mut change = BTreeMap::new();
    for word in words {
        let Some((name, value)) = word.split_once('=') else {
            return Err(Failure::usage(format_args!(
                "{word:?} is no KEY=VALUE. Keys of {what}: {}",
                known(keys)
            )));
        };
        let (name, sign) = match name.strip_suffix(['+', '-']) {
            Some(bare) => (bare, name.chars().last()),
            None => (name, None),
        };
        let Word { api, form, .. } = find(name, keys, what)?;
        let left;
        let value = match form {
            Form::Gpus => {
                let (gpus, others) = split_tres(word, value, api, keys)?;
                others
                    .iter()
                    .for_each(|(key, bound)| put(&mut change, key, bound.clone()));
                if gpus.is_empty() && !others.is_empty() {
                    continue;
                }
                left = gpus;
                left.as_str()
            }
            _ => value,
        };
        let mut value = read_value(word, name, value, *form)?;
        if form == &Form::Names && value.is_null() {
            value = json!([]);
        }
        let key = match sign {
            Some(_) if *form != Form::Names => {
                return Err(Failure::usage(format_args!(
                    "{word}: only lists of names take += and -="
                )));
            }
            Some(sign) => format!("{sign}{api}"),
            None => api.clone(),
        };
        match (change.get_mut(&key), value) {
            (Some(Value::Array(known)), Value::Array(more)) if sign.is_some() => known.extend(more),
            (_, value) => put(&mut change, &key, value),
        }
    }
    Ok(change)
}

/// sacctmgr bounds all it counts with one word, `GrpTRES=cpu=64,gres/gpu=8`; here CPUs and nodes have keys of their own. What of
/// the value is about GPUs, and those keys with their bounds. `gres/gpu=-1` takes a bound away.
fn split_tres(
    word: &str,
    value: &str,
    api: &str,
    keys: &[Word],
) -> Result<(String, Vec<(String, Value)>), Failure> {
    let wrong = |why: String| Failure::usage(format_args!("{word}: {why}"));
    let table = if api == "limit" {
        Some("group")
    } else {
        api.strip_suffix(".gpus")
    };
    let (mut gpus, mut others, mut none) = (Vec::new(), Vec::new(), false);
    for part in value.split(',').map(str::trim) {
        let Some((name, count)) = part.split_once('=') else {
            gpus.push(part);
            continue;
        };
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "cpu" | "node" => {
                // A user's are in no table.
                let key = if api == "gpus" {
                    Some(format!("{name}s"))
                } else {
                    table.map(|table| format!("{table}.{name}s"))
                };
                let key = key.filter(|key| keys.iter().any(|known| known.api == *key));
                let key =
                    key.ok_or_else(|| wrong(format!("{name} is not bounded so here, GPUs are")))?;
                others.push((key, read_value(word, &name, count, Form::Count)?));
            }
            "mem" | "billing" | "energy" | "vmem" | "pages" => {
                return Err(wrong(format!(
                    "{name} is not bounded here; GPUs, CPUs and nodes are"
                )));
            }
            other if other.contains('/') && !other.starts_with("gres/gpu") => {
                return Err(wrong(format!(
                    "{other} is not bounded here; GPUs, CPUs and nodes are"
                )));
            }
            _ if count == "-1" => none = true,
            _ => gpus.push(part),
        }
    }
    let gpus = if gpus.is_empty() && none {
        "none".to_owned()
    } else {
        gpus.join(",")
    };
    Ok((gpus, others))
}

/// A key by any of its spellings: letter case, `_` and `-` do not count.
fn find<'k>(name: &str, keys: &'k [Word], what: &str) -> Result<&'k Word, Failure> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['_', '-'], "");
    let wanted = plain(name);
    keys.iter()
        .find(|word| plain(&word.spelling) == wanted)
        .ok_or_else(|| {
            if what == "accounts" && wanted == "budget" {
                return Failure::usage(format_args!(
                    "{name}= is of quotas: gadm quota set ACCOUNT {name}=guaranteed:10000/month"
                ));
            }
            let guess = did_you_mean(
                &name.to_ascii_lowercase(),
                keys.iter().map(|word| &*word.spelling),
            );
            // Read by `gadm quota` itself.
            let budget = if what == "quotas" { ", budget" } else { "" };
            Failure::usage(format_args!(
                "{name}= cannot be set for {what}.{guess} Keys: {}{budget}",
                known(keys)
            ))
        })
}

fn known(keys: &[Word]) -> String {
    let mut apis: Vec<&str> = Vec::new();
    let first = keys.iter().filter(|word| {
        let new = !apis.contains(&&*word.api);
        apis.push(&word.api);
        new
    });
    let first = first.map(|word| &*word.spelling);
    first.collect::<Vec<_>>().join(", ")
}

fn put(change: &mut BTreeMap<String, Value>, key: &str, value: Value) {
    match key.split_once('.') {
        Some((table, key)) => {
            let entry = change
                .entry(table.to_owned())
                .or_insert_with(|| Value::Object(Map::new()));
            entry[key] = value;
        }
        None => {
            change.insert(key.to_owned(), value);
        }
    }
}

fn read_value(word: &str, name: &str, value: &str, form: Form) -> Result<Value, Failure> {
    let wrong = |why: &str| Failure::usage(format_args!("{word}: {why}"));
    let clear = value.is_empty() || value == "-1" || value.eq_ignore_ascii_case("none");
    if clear && !matches!(form, Form::Text | Form::Flag) {
        return Ok(Value::Null);
    }
    Ok(match form {
        Form::Text => json!(value),
        Form::Name => json!(value),
        Form::Count => value
            .parse::<u32>()
            .map(Value::from)
            .map_err(|_| wrong("it is not a whole number, not negative"))?,
        Form::Decimal => {
            let number = value
                .parse::<f64>()
                .ok()
                .filter(|number| number.is_finite() && *number >= 0.0);
            json!(number.ok_or_else(|| wrong("it is not a number, not negative"))?)
        }
        Form::Gpus => gpus(value).map_err(|why| wrong(&why))?,
        Form::Names => json!(
            value
                .split(',')
                .map(str::trim)
                .filter(|name| !name.is_empty())
                .collect::<Vec<_>>()
        ),
        Form::Flag => match value.to_ascii_lowercase().as_str() {
            "1" | "yes" | "true" | "on" => json!(true),
            "0" | "no" | "false" | "off" => json!(false),
            _ => return Err(wrong("it is neither yes nor no")),
        },
        Form::Limit => json!(time_limit(name, value)?.secs()),
        Form::Size => json!(
            parse_bytes(value).map_err(|error| Failure::usage(format_args!("{name}: {error}")))?
        ),
        Form::Secs => {
            let limit = time_limit(name, value)?;
            json!(
                limit
                    .secs()
                    .ok_or_else(|| wrong("it cannot be unlimited"))?
            )
        }
        Form::Moment => {
            let at = local_time::read(value, local_time::now())
                .map_err(|why| Failure::usage(format_args!("{name}: {why}")))?;
            serde_json::to_value(Instant(at)).map_err(Failure::new)?
        }
    })
}

fn time_limit(name: &str, value: &str) -> Result<TimeLimit, Failure> {
    TimeLimit::parse(value).map_err(|error| Failure::usage(format_args!("{name}: {error}")))
}

/// GPUs by type. sacctmgr's `gres/gpu=8` and `gres/gpu:h100=4` are understood.
///
/// # Errors
/// What cannot be read.
pub(super) fn gpus(text: &str) -> Result<Value, String> {
    let mut amounts = Map::new();
    for part in text.split(',').map(str::trim) {
        let part = part.strip_prefix("gres/").unwrap_or(part);
        let (name, count) = match part.rsplit_once(['=', ':']) {
            Some((name, count)) => (name.strip_prefix("gpu:").unwrap_or(name), count),
            None => ("gpu", part),
        };
        let count = count
            .parse::<f64>()
            .ok()
            .filter(|count| count.is_finite() && *count >= 0.0);
        let Some(count) = count.filter(|_| !name.is_empty()) else {
            return Err(format!(
                "{part:?} is no number of GPUs. Write 32, or h100:16,gpu:32 by type, where gpu is all types"
            ));
        };
        amounts.insert(name.to_ascii_lowercase(), json!(count));
    }
    Ok(Value::Object(amounts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> [Word; 8] {
        [
            ("shares", "shares", Form::Count),
            ("fairshare", "shares", Form::Count),
            ("grp_jobs", "group.running_jobs", Form::Count),
            ("guaranteed", "guaranteed", Form::Gpus),
            ("qos", "allow_qos", Form::Names),
            ("grp_tres", "limit", Form::Gpus),
            ("group.cpus", "group.cpus", Form::Count),
            ("min_tres", "per_job.min_gpus", Form::Gpus),
        ]
        .map(|(spelling, api, form)| Word::new(spelling, api, form))
    }

    fn change(words: &str) -> Result<String, String> {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let read = read(&words, &keys(), "accounts").map_err(|failure| failure.text)?;
        Ok(serde_json::to_string(&read).unwrap())
    }

    #[test]
    fn spellings_of_sacctmgr_become_keys_of_the_api() {
        assert_eq!(
            change("Fairshare=10 GrpJobs=5 qos+=fast,slow").unwrap(),
            r#"{"+allow_qos":["fast","slow"],"group":{"running_jobs":5},"shares":10}"#
        );
        assert_eq!(
            change("qos+=fast qos-=old qos+=slow,wide qos-=idle").unwrap(),
            r#"{"+allow_qos":["fast","slow","wide"],"-allow_qos":["old","idle"]}"#
        );
        assert_eq!(
            change("qos=fast qos=slow").unwrap(),
            r#"{"allow_qos":["slow"]}"#
        );
        assert_eq!(
            change("guaranteed=h100:16,gpu:32").unwrap(),
            r#"{"guaranteed":{"gpu":32.0,"h100":16.0}}"#
        );
        assert_eq!(
            change("guaranteed=gres/gpu=8,gres/gpu:A100=4").unwrap(),
            r#"{"guaranteed":{"a100":4.0,"gpu":8.0}}"#
        );
        assert_eq!(
            change("guaranteed=none GrpJobs=-1 qos=").unwrap(),
            r#"{"allow_qos":[],"group":{"running_jobs":null},"guaranteed":null}"#
        );
    }

    #[test]
    fn what_sacctmgr_counts_in_one_word_goes_to_the_keys_it_has_here() {
        assert_eq!(
            change("GrpTRES=cpu=64,gres/gpu=8,gres/gpu:h100=4").unwrap(),
            r#"{"group":{"cpus":64},"limit":{"gpu":8.0,"h100":4.0}}"#
        );
        assert_eq!(
            change("GrpTRES=cpu=64 shares=2").unwrap(),
            r#"{"group":{"cpus":64},"shares":2}"#
        );
        assert_eq!(
            change("GrpTRES=cpu=-1,gres/gpu=-1").unwrap(),
            r#"{"group":{"cpus":null},"limit":null}"#
        );
        assert_eq!(
            change("GrpTRES=gres/gpu=-1,gres/gpu:h100=4").unwrap(),
            r#"{"limit":{"h100":4.0}}"#
        );
        assert_eq!(
            change("GrpTRES=node=3").unwrap_err(),
            "GrpTRES=node=3: node is not bounded so here, GPUs are"
        );
        assert_eq!(
            change("MinTRES=cpu=3").unwrap_err(),
            "MinTRES=cpu=3: cpu is not bounded so here, GPUs are"
        );
        assert_eq!(
            change("GrpTRES=mem=64G").unwrap_err(),
            "GrpTRES=mem=64G: mem is not bounded here; GPUs, CPUs and nodes are"
        );
        assert_eq!(
            change("GrpTRES=license/matlab=2").unwrap_err(),
            "GrpTRES=license/matlab=2: license/matlab is not bounded here; GPUs, CPUs and nodes are"
        );
        assert_eq!(
            change("GrpTRES=cpu=x").unwrap_err(),
            "GrpTRES=cpu=x: it is not a whole number, not negative"
        );
    }

    #[test]
    fn what_cannot_be_read_is_said_with_what_can() {
        assert_eq!(
            change("share=3").unwrap_err(),
            r#"share= cannot be set for accounts. Did you mean "shares"? Keys: shares, grp_jobs, guaranteed, qos, grp_tres, group.cpus, min_tres"#
        );
        assert_eq!(
            change("shares=-2").unwrap_err(),
            "shares=-2: it is not a whole number, not negative"
        );
        assert_eq!(
            change("guaranteed=h100").unwrap_err(),
            r#"guaranteed=h100: "h100" is no number of GPUs. Write 32, or h100:16,gpu:32 by type, where gpu is all types"#
        );
        assert_eq!(
            change("shares+=3").unwrap_err(),
            "shares+=3: only lists of names take += and -="
        );
        assert_eq!(
            change("vision").unwrap_err(),
            r#""vision" is no KEY=VALUE. Keys of accounts: shares, grp_jobs, guaranteed, qos, grp_tres, group.cpus, min_tres"#
        );
    }
}
