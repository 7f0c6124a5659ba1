//! The document around records: `meta`, errors, warnings, and times of now.

use crate::datum::{Datum, Field, RecordWriter, record, write_yaml};
use gmodel::{ExitCode, Instant, Timestamp};
use serde_json::{Value, json};
use std::io::{self, Write};

/// The release of Slurm that options, formats and keys follow.
pub const RELEASE: &str = "25.05.0";

/// Which of Slurm's data_parsers has these keys.
pub const DATA_PARSER: &str = "v0.0.43";

/// One write, about.
const PIECE_BYTES: usize = 64 << 10;

/// What a document says of where it is from.
#[derive(Clone, Debug)]
pub struct Meta<'a> {
    pub cluster: &'a str,
    /// As it was asked for: `v0.0.43`.
    pub data_parser: &'a str,
    /// The words of the command, or method and path of a request.
    pub command: Vec<String>,
    /// Where the question came from.
    pub source: &'a str,
    pub user: String,
    pub group: String,
}

impl Meta<'_> {
    /// `meta`, no errors, no warnings, and these times, all of now.
    pub fn tail(&self, times: &[&str], now: Timestamp) -> Value {
        let mut numbers = RELEASE.split('.');
        let mut number = || numbers.next().unwrap_or_default();
        let version = json!({"major": number(), "minor": number(), "micro": number()});
        let parser = format!("data_parser/{}", self.data_parser);
        let meta = json!({
            "plugin": {"type": "gpupool", "name": concat!("gpupool ", env!("CARGO_PKG_VERSION")), "data_parser": parser, "accounting_storage": ""},
            "client": {"source": self.source, "user": self.user, "group": self.group},
            "command": self.command,
            "slurm": {"version": version, "release": RELEASE, "cluster": self.cluster}
        });
        let mut tail = json!({"meta": meta, "errors": [], "warnings": []});
        let now = u64::try_from(now.secs()).ok();
        for key in times {
            tail[*key] = number_value(now);
        }
        tail
    }
}

/// A list of records under `key`, one written after the other, and `tail` behind them.
///
/// # Errors
/// Those of `out` and of the rows: the document then has no end.
pub fn write_list<R, E: From<io::Error>>(
    out: &mut impl Write,
    key: &str,
    table: &[Field<R>],
    rows: impl Iterator<Item = Result<R, E>>,
    tail: &Value,
) -> Result<(), E> {
    let mut writer = RecordWriter::of(table);
    let mut text = format!("{{\"{key}\":[").into_bytes();
    for (at, row) in rows.enumerate() {
        text.extend_from_slice(if at == 0 { b"" } else { b"," });
        writer.write(&mut text, &row?);
        if text.len() > PIECE_BYTES {
            out.write_all(&text)?;
            text.clear();
        }
    }
    text.extend_from_slice(list_end(tail).as_bytes());
    Ok(out.write_all(&text)?)
}

/// What follows the last record of a list.
pub fn list_end(tail: &Value) -> String {
    let tail = tail.to_string();
    format!("],{}\n", tail.strip_prefix('{').unwrap_or(&tail))
}

/// The same as YAML.
///
/// # Errors
/// As [`write_list`].
pub fn write_yaml_list<R, E: From<io::Error>>(
    out: &mut impl Write,
    key: &str,
    table: &[Field<R>],
    rows: impl Iterator<Item = Result<R, E>>,
    tail: &Value,
) -> Result<(), E> {
    write!(out, "---\n\"{key}\":")?;
    let mut is_empty = true;
    for row in rows {
        write!(out, "{}  - ", if is_empty { "\n" } else { "" })?;
        write_yaml(out, &record(table, &row?), 4)?;
        is_empty = false;
    }
    out.write_all(if is_empty { b" []\n" } else { b"" })?;
    Ok(write_yaml(out, tail, 0)?)
}

pub fn number_value(value: Option<u64>) -> Value {
    Datum::Number(value).into_value()
}

pub(crate) fn seconds(at: Option<Instant>) -> Option<u64> {
    at.map(|at| at.0.0.div_euclid(1000))
        .and_then(|secs| u64::try_from(secs).ok())
}

/// A moment; 0 is none.
pub(crate) fn time<'a>(at: Option<Instant>) -> Datum<'a> {
    Datum::Number(Some(seconds(at).unwrap_or(0)))
}

/// Minutes of a limit, begun ones too.
pub(crate) fn minutes<'a>(secs: Option<u32>) -> Datum<'a> {
    match secs {
        None | Some(u32::MAX) => Datum::Infinite,
        Some(secs) => Datum::Number(Some(u64::from(secs).div_ceil(60))),
    }
}

/// Of what is not over.
const PENDING: &str = r#"{"status":["PENDING"],"return_code":{"set":false,"infinite":false,"number":0},"signal":{"id":{"set":false,"infinite":false,"number":0},"name":""}}"#;

pub(crate) fn exit_code<'a>(exit: ExitCode, is_over: bool) -> Datum<'a> {
    if !is_over {
        return Datum::Json(PENDING);
    }
    let status = match (exit.signal, exit.code) {
        (0, 0) => "SUCCESS",
        (0, _) => "ERROR",
        _ => "SIGNALED",
    };
    let signal = (exit.signal > 0).then(|| u64::from(exit.signal));
    let name = signal.map_or(String::new(), |_| gmodel::signal::signal_word(exit.signal));
    Datum::Value(
        json!({"status": [status], "return_code": number_value(Some(exit.code.into())), "signal": {"id": number_value(signal), "name": name}}),
    )
}
