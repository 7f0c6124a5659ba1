//! `--json` and `--yaml` under Slurm's names, as programs for Slurm read them: all keys of Slurm's data_parser v0.0.43 (25.05).
//!
//! Owns the document around the records. A key of which gpupool knows nothing has the value that Slurm gives what is not set.

pub(crate) mod controller;
pub(crate) mod datum;
pub(crate) mod job;
pub(crate) mod node;
pub(crate) mod partition;
pub(crate) mod reservation;
pub(crate) mod run;
#[cfg(test)]
pub(crate) mod shape_tests;
pub(crate) mod step;

use datum::{Field, record, write, write_yaml};
use gcli::table::stdout;
use gcli::{Failure, Outcome, local_time, slurm_name};
use gmodel::{ExitCode, Instant};
use nix::unistd::{Gid, Group, Uid, User};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write;
use std::sync::OnceLock;

/// What the command line asked for.
#[derive(Debug, Default)]
struct JsonRequest {
    yaml: bool,
    command: Vec<String>,
}

static ASKED: OnceLock<JsonRequest> = OnceLock::new();

/// Keeps what `meta` tells of the command line, before the words of it are read.
pub(crate) fn remember(words: &[OsString], yaml: bool) {
    let command = words.iter().map(|word| word.to_string_lossy().into_owned());
    let _ = ASKED.set(JsonRequest {
        yaml,
        command: command.collect(),
    });
}

/// A document with a list of records under `key`, one written after the other, and `more` behind them.
pub(crate) fn print<R>(
    cluster: &str,
    key: &str,
    table: &[Field<R>],
    rows: impl Iterator<Item = R>,
    more: &[&str],
) -> Outcome {
    let asked = ASKED.get_or_init(JsonRequest::default);
    let tail = tail(cluster, asked, more);
    let mut out = stdout()?;
    if asked.yaml {
        write!(out, "---\n\"{key}\":")?;
        let mut is_empty = true;
        for row in rows {
            write!(out, "{}  - ", if is_empty { "\n" } else { "" })?;
            write_yaml(&mut out, &record(table, &row), 4)?;
            is_empty = false;
        }
        out.write_all(if is_empty { b" []\n" } else { b"" })?;
        write_yaml(&mut out, &tail, 0)?;
    } else {
        write!(out, "{{\"{key}\":[")?;
        for (at, row) in rows.enumerate() {
            out.write_all(if at == 0 { b"" } else { b"," })?;
            write(&mut out, table, &row)?;
        }
        let tail = tail.to_string();
        writeln!(out, "],{}", tail.strip_prefix('{').unwrap_or(&tail))?;
    }
    out.flush()?;
    Ok(0)
}

/// A document of one value under `key`.
pub(crate) fn print_value(cluster: &str, key: &str, value: Value) -> Outcome {
    let asked = ASKED.get_or_init(JsonRequest::default);
    let mut whole = tail(cluster, asked, &[]);
    whole[key] = value;
    let mut out = stdout()?;
    match asked.yaml {
        true => {
            out.write_all(b"---\n")?;
            write_yaml(&mut out, &whole, 0)?;
        }
        false => writeln!(out, "{whole}")?,
    }
    out.flush()?;
    Ok(0)
}

/// `meta`, no errors, no warnings, and these times, all of now.
fn tail(cluster: &str, asked: &JsonRequest, times: &[&str]) -> Value {
    let release = slurm_name::VERSION.split(' ').nth(1).unwrap_or_default();
    let mut numbers = release.split('.');
    let mut number = || numbers.next().unwrap_or_default();
    let version = json!({"major": number(), "minor": number(), "micro": number()});
    let meta = json!({
        "plugin": {"type": "gpupool", "name": concat!("gpupool ", env!("CARGO_PKG_VERSION")), "data_parser": "data_parser/v0.0.43", "accounting_storage": ""},
        "client": {"source": "", "user": own_user(), "group": own_group()},
        "command": asked.command,
        "slurm": {"version": version, "release": release, "cluster": cluster}
    });
    let mut tail = json!({"meta": meta, "errors": [], "warnings": []});
    let now = u64::try_from(local_time::now().secs()).ok();
    for key in times {
        tail[*key] = number_value(now);
    }
    tail
}

fn own_user() -> String {
    let user = User::from_uid(Uid::current()).ok().flatten();
    user.map_or_else(|| Uid::current().to_string(), |user| user.name)
}

fn own_group() -> String {
    let group = Group::from_gid(Gid::current()).ok().flatten();
    group.map_or_else(|| Gid::current().to_string(), |group| group.name)
}

pub(crate) fn number_value(value: Option<u64>) -> Value {
    datum::Datum::Number(value).into_value()
}

fn seconds(at: Option<Instant>) -> Option<u64> {
    at.map(|at| at.0.0.div_euclid(1000))
        .and_then(|secs| u64::try_from(secs).ok())
}

/// A moment; 0 is none.
fn time<'a>(at: Option<Instant>) -> datum::Datum<'a> {
    datum::Datum::Number(Some(seconds(at).unwrap_or(0)))
}

/// Minutes of a limit, begun ones too.
fn minutes<'a>(secs: Option<u32>) -> datum::Datum<'a> {
    match secs {
        None | Some(u32::MAX) => datum::Datum::Infinite,
        Some(secs) => datum::Datum::Number(Some(u64::from(secs).div_ceil(60))),
    }
}

fn exit_code<'a>(exit: ExitCode, is_over: bool) -> datum::Datum<'a> {
    let status = match (is_over, exit.signal, exit.code) {
        (false, ..) => "PENDING",
        (_, 0, 0) => "SUCCESS",
        (_, 0, _) => "ERROR",
        _ => "SIGNALED",
    };
    let signal = (exit.signal > 0).then(|| u64::from(exit.signal));
    let name = signal.map_or(String::new(), |_| gmodel::signal::signal_word(exit.signal));
    let code = is_over.then(|| u64::from(exit.code));
    datum::Datum::Value(
        json!({"status": [status], "return_code": number_value(code), "signal": {"id": number_value(signal), "name": name}}),
    )
}

/// What is asked of the cluster for all documents.
pub(crate) fn cluster_name(client: &mut gwire::client::Client) -> Result<String, Failure> {
    Ok(client.get::<gwire::api::ClusterInfo>("/v1/cluster")?.name)
}
