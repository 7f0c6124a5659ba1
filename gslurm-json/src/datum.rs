//! Records as Slurm's data_parser writes them: a table of fields for each kind, their values, and the writing of both.
//!
//! A key is a path: `time/start` and `time/end` stand in one object. Tables keep the keys of an object together.

use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::io::{self, Write};

const UNSET: &str = r#"{"set":false,"infinite":false,"number":0}"#;
const UNSET_FRACTION: &str = r#"{"infinite":false,"number":0.0,"set":false}"#;
const INFINITE: &str = r#"{"set":false,"infinite":true,"number":0}"#;
const NONE: &str = r#"{"set":true,"infinite":false,"number":0}"#;

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
    /// The same as JSON, which is written as it stands.
    Json(&'static str),
    /// The same again, of a field that has this value in every record.
    Same(&'static str),
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
    (key, |_| Datum::Same("\"\""))
}

pub const fn unset<R>(key: &'static str) -> Field<R> {
    (key, |_| Datum::Same(UNSET))
}

pub const fn infinite<R>(key: &'static str) -> Field<R> {
    (key, |_| Datum::Same(INFINITE))
}

pub const fn zero<R>(key: &'static str) -> Field<R> {
    (key, |_| Datum::Same("0"))
}

/// Set, and 0.
pub const fn none<R>(key: &'static str) -> Field<R> {
    (key, |_| Datum::Same(NONE))
}

pub const fn empty<R>(key: &'static str) -> Field<R> {
    (key, |_| Datum::Same("[]"))
}

pub const fn no<R>(key: &'static str) -> Field<R> {
    (key, |_| Datum::Same("false"))
}

impl Datum<'_> {
    fn write(self, out: &mut Vec<u8>) {
        match self {
            Datum::Json(json) | Datum::Same(json) => out.extend_from_slice(json.as_bytes()),
            Datum::Text(text) => put_text(out, &text),
            Datum::Whole(number) => put_json(out, &number),
            Datum::Flag(flag) => put_json(out, &flag),
            Datum::Number(Some(number)) => {
                out.extend_from_slice(br#"{"set":true,"infinite":false,"number":"#);
                put_json(out, &number);
                out.push(b'}');
            }
            Datum::Fraction(Some(number)) => {
                out.extend_from_slice(br#"{"infinite":false,"number":"#);
                put_json(out, &number);
                out.extend_from_slice(br#","set":true}"#);
            }
            Datum::Number(None) => out.extend_from_slice(UNSET.as_bytes()),
            Datum::Infinite => out.extend_from_slice(INFINITE.as_bytes()),
            Datum::Fraction(None) => out.extend_from_slice(UNSET_FRACTION.as_bytes()),
            Datum::Value(value) => put_json(out, &value),
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
            Datum::Json(json) | Datum::Same(json) => {
                serde_json::from_str(json).expect("a constant of these tables")
            }
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    // Without an early end the loop is done many bytes at a time.
    let odd = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    if text.bytes().fold(false, |found, byte| found | odd(byte)) {
        return put_json(out, text);
    }
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

fn put_json<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("a Vec takes every write, and keys are texts");
}

/// A table made ready for many records: what stands before each value is put together once, and with it, at the first
/// record, what is the same in all.
pub struct RecordWriter<R> {
    fields: Vec<(String, ValueOf<R>)>,
    end: String,
    merged: bool,
}

/// Gives a field's value.
type ValueOf<R> = for<'a> fn(&'a R) -> Datum<'a>;

impl<R> RecordWriter<R> {
    pub fn of(table: &[Field<R>]) -> Self {
        let mut open: Vec<&str> = Vec::new();
        let mut before = "{".to_owned();
        let mut fields = Vec::with_capacity(table.len());
        for (path, value) in table {
            let mut above: Vec<&str> = path.split('/').collect();
            let key = above.pop().unwrap_or_default();
            let pairs = open.iter().zip(&above);
            let same = pairs.take_while(|(one, other)| one == other).count();
            before.extend(open.drain(same..).map(|_| '}'));
            let mut comma = if fields.is_empty() { "" } else { "," };
            for part in &above[same..] {
                before.push_str(&format!("{comma}\"{part}\":{{"));
                comma = "";
                open.push(part);
            }
            before.push_str(&format!("{comma}\"{key}\":"));
            fields.push((std::mem::take(&mut before), *value));
        }
        let end = "}".repeat(open.len() + 1);
        Self {
            end: before + &end,
            fields,
            merged: false,
        }
    }

    fn merge(&mut self, row: &R) {
        let mut text = String::new();
        let mut kept = Vec::new();
        for (before, value) in self.fields.drain(..) {
            text.push_str(&before);
            match value(row) {
                Datum::Same(json) => text.push_str(json),
                _ => kept.push((std::mem::take(&mut text), value)),
            }
        }
        self.fields = kept;
        self.end.insert_str(0, &text);
        self.merged = true;
    }

    /// Writes a record as JSON, without a tree of it.
    pub fn write(&mut self, out: &mut Vec<u8>, row: &R) {
        if !self.merged {
            self.merge(row);
        }
        for (before, value) in &self.fields {
            out.extend_from_slice(before.as_bytes());
            value(row).write(out);
        }
        out.extend_from_slice(self.end.as_bytes());
    }
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
        ("share", |row| Datum::Fraction((*row > 4).then_some(0.5))),
        ("state", |row| match row {
            4 => Datum::Json("\"none\""),
            _ => text("a \"b\"\n\u{7f}\u{e9}"),
        }),
        ("flags", |_| list(["A", "B"])),
        blank("last"),
    ];

    #[test]
    fn a_path_leads_into_objects_and_both_ways_of_writing_say_the_same() {
        let mut writer = RecordWriter::of(TABLE);
        for row in [4, 17] {
            let mut out = Vec::new();
            writer.write(&mut out, &row);
            let read: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!(read, record(TABLE, &row));
        }
        let read = record(TABLE, &17);
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
