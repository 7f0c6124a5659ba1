//! Records as Slurm's data_parser writes them: a table of fields for each kind, their values, and the writing of both.
//!
//! A key is a path: `time/start` and `time/end` stand in one object. Tables keep the keys of an object together.

use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::io::{self, Write};

/// The value of a field.
pub enum Datum<'a> {
    Text(Cow<'a, str>),
    Whole(i64),
    Flag(bool),
    /// `{"set": true, "infinite": false, "number": 17}`.
    Number(Option<u64>),
    Infinite,
    /// As `Number`, of a fraction.
    Fraction(Option<f64>),
    /// A list, or an object that no path leads into.
    Value(Value),
}

/// A key with its value in a record `R`.
pub type Field<R> = (&'static str, for<'a> fn(&'a R) -> Datum<'a>);

pub fn text(text: &str) -> Datum<'_> {
    Datum::Text(text.into())
}

pub fn said<'a>(text: String) -> Datum<'a> {
    Datum::Text(text.into())
}

pub fn maybe(text: &Option<String>) -> Datum<'_> {
    Datum::Text(text.as_deref().unwrap_or_default().into())
}

pub fn whole<'a>(number: impl TryInto<i64>) -> Datum<'a> {
    Datum::Whole(number.try_into().unwrap_or(i64::MAX))
}

pub fn number<'a>(number: impl Into<u64>) -> Datum<'a> {
    Datum::Number(Some(number.into()))
}

pub fn list<'a>(words: impl IntoIterator<Item = impl Into<Value>>) -> Datum<'a> {
    Datum::Value(Value::Array(words.into_iter().map(Into::into).collect()))
}

// What Slurm has and gpupool has not, as Slurm writes it where it is not set.

pub const fn blank<R>(key: &'static str) -> Field<R> {
    (key, |_| Datum::Text(Cow::Borrowed("")))
}

pub const fn unset<R>(key: &'static str) -> Field<R> {
    (key, |_| Datum::Number(None))
}

pub const fn infinite<R>(key: &'static str) -> Field<R> {
    (key, |_| Datum::Infinite)
}

pub const fn zero<R>(key: &'static str) -> Field<R> {
    (key, |_| Datum::Whole(0))
}

/// Set, and 0.
pub const fn none<R>(key: &'static str) -> Field<R> {
    (key, |_| Datum::Number(Some(0)))
}

pub const fn empty<R>(key: &'static str) -> Field<R> {
    (key, |_| Datum::Value(Value::Array(Vec::new())))
}

pub const fn no<R>(key: &'static str) -> Field<R> {
    (key, |_| Datum::Flag(false))
}

impl Datum<'_> {
    fn write(self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Datum::Text(text) => serde_json::to_writer(out, text.as_ref()).map_err(Into::into),
            Datum::Whole(number) => write!(out, "{number}"),
            Datum::Flag(flag) => write!(out, "{flag}"),
            Datum::Number(Some(number)) => write!(
                out,
                "{{\"set\":true,\"infinite\":false,\"number\":{number}}}"
            ),
            Datum::Number(None) => {
                out.write_all(b"{\"set\":false,\"infinite\":false,\"number\":0}")
            }
            Datum::Infinite => out.write_all(b"{\"set\":false,\"infinite\":true,\"number\":0}"),
            other => serde_json::to_writer(out, &other.into_value()).map_err(Into::into),
        }
    }

    pub fn into_value(self) -> Value {
        match self {
            Datum::Text(text) => Value::String(text.into_owned()),
            Datum::Whole(number) => number.into(),
            Datum::Flag(flag) => flag.into(),
            Datum::Number(number) => {
                json!({"set": number.is_some(), "infinite": false, "number": number.unwrap_or(0)})
            }
            Datum::Infinite => json!({"set": false, "infinite": true, "number": 0}),
            Datum::Fraction(number) => {
                json!({"set": number.is_some(), "infinite": false, "number": number.unwrap_or(0.0)})
            }
            Datum::Value(value) => value,
        }
    }
}

/// Writes a record as JSON, without a tree of it.
pub fn write<R>(out: &mut impl Write, table: &[Field<R>], row: &R) -> io::Result<()> {
    let mut open: Vec<&str> = Vec::new();
    let mut is_first = true;
    out.write_all(b"{")?;
    for (path, value) in table {
        let (above, key) = path
            .rsplit_once('/')
            .map_or((None, *path), |(above, key)| (Some(above), key));
        let above: Vec<&str> = above
            .map(|above| above.split('/').collect())
            .unwrap_or_default();
        let same = open
            .iter()
            .zip(&above)
            .take_while(|(one, other)| one == other)
            .count();
        for _ in open.drain(same..) {
            out.write_all(b"}")?;
            is_first = false;
        }
        for part in &above[same..] {
            write!(out, "{}\"{part}\":{{", if is_first { "" } else { "," })?;
            open.push(part);
            is_first = true;
        }
        write!(out, "{}\"{key}\":", if is_first { "" } else { "," })?;
        value(row).write(out)?;
        is_first = false;
    }
    for _ in open {
        out.write_all(b"}")?;
    }
    out.write_all(b"}")
}

/// A record as a tree, for YAML and as a part of others.
pub fn record<R>(table: &[Field<R>], row: &R) -> Value {
    let mut whole = Map::new();
    for (path, value) in table {
        put(&mut whole, path, value(row).into_value());
    }
    Value::Object(whole)
}

fn put(object: &mut Map<String, Value>, path: &str, value: Value) {
    let Some((first, rest)) = path.split_once('/') else {
        object.insert(path.to_owned(), value);
        return;
    };
    let inner = object.entry(first).or_insert_with(|| json!({}));
    if let Value::Object(inner) = inner {
        put(inner, rest, value);
    }
}

pub fn records<R>(table: &[Field<R>], rows: impl IntoIterator<Item = R>) -> Value {
    Value::Array(rows.into_iter().map(|row| record(table, &row)).collect())
}

/// Writes a value as YAML, so far to the right.
pub fn write_yaml(out: &mut impl Write, value: &Value, indent: usize) -> io::Result<()> {
    let is_block = |value: &Value| match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (at, (key, value)) in map.iter().enumerate() {
                let margin = if at == 0 { 0 } else { indent };
                write!(out, "{:margin$}{}:", "", Value::from(key.as_str()))?;
                match value {
                    Value::Array(_) | Value::Object(_) if is_block(value) => {
                        write!(out, "\n{:1$}", "", indent + 2)?;
                        write_yaml(out, value, indent + 2)?;
                    }
                    value => writeln!(out, " {value}")?,
                }
            }
            Ok(())
        }
        Value::Array(list) if !list.is_empty() => {
            for (at, value) in list.iter().enumerate() {
                let margin = if at == 0 { 0 } else { indent };
                write!(out, "{:margin$}- ", "")?;
                write_yaml(out, value, indent + 2)?;
            }
            Ok(())
        }
        value => writeln!(out, "{value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Field<u32>] = &[
        ("id", |row| whole(*row)),
        blank("name"),
        ("time/start", |row| number(*row)),
        unset("time/limit/hard"),
        infinite("time/limit/soft"),
        no("hold"),
        ("share", |_| Datum::Fraction(Some(0.5))),
        ("flags", |_| list(["A", "B"])),
    ];

    #[test]
    fn a_path_leads_into_objects_and_both_ways_of_writing_say_the_same() {
        let mut out = Vec::new();
        write(&mut out, TABLE, &17).unwrap();
        let read: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(read, record(TABLE, &17));
        let start = json!({"set": true, "infinite": false, "number": 17});
        assert_eq!((&read["time"]["start"], &read["id"]), (&start, &json!(17)));
        assert_eq!(read["time"]["limit"]["soft"]["infinite"], json!(true));
        assert_eq!(read["flags"], json!(["A", "B"]));
    }

    #[test]
    fn yaml_is_in_blocks_with_quoted_texts() {
        let mut out = Vec::new();
        let value = json!({"jobs": [{"id": 1, "name": "a: \"b\"", "flags": ["X"], "held": {}}, {"id": 2}], "errors": []});
        write_yaml(&mut out, &value, 0).unwrap();
        let text = String::from_utf8(out).unwrap();
        expect_test::expect![[r#"
            "errors": []
            "jobs":
              - "flags":
                  - "X"
                "held": {}
                "id": 1
                "name": "a: \"b\""
              - "id": 2
        "#]]
        .assert_eq(&text);
    }
}
