//! The controller itself: reload, backup, restore, how it is doing, whether its state holds together.

use crate::sandbox;
use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gcli::table::stdout;
use gcli::{Failure, Outcome};
use gwire::api::{BackupRequest, ChangeReply};
use gwire::client::Client;
use serde_json::Value;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of listings.
#[derive(clap::Args)]
pub struct JsonArgs {
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

/// Options of `gadm reload`.
#[derive(clap::Args, Default)]
pub struct ReloadArgs {
    /// Say what the changed files would do to which jobs, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// One line of JSON
    #[arg(long, requires = "dry_run")]
    json: bool,
}

/// Options of `gadm backup`.
#[derive(clap::Args)]
pub struct BackupArgs {
    /// File on the controller's host; it must not exist
    #[arg(value_name = "FILE")]
    path: PathBuf,
}

/// Options of `gadm restore`.
#[derive(clap::Args)]
pub struct RestoreArgs {
    /// A file written by gadm backup
    #[arg(value_name = "FILE")]
    path: PathBuf,
    /// The controller's configuration; without it that of the sandbox around, else /etc/gpupool/gpuctld.toml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Notes of a change that was made.
pub fn say_notes(done: &ChangeReply) {
    for note in &done.notes {
        let _ = gcli::failure::note("gadm", printable(note));
    }
}

pub fn reload(client: &mut Client, args: &ReloadArgs) -> Outcome {
    if args.dry_run {
        let done: ChangeReply =
            client.post_repeatable("/v1/reload/dry-run", &BackupRequest::default())?;
        let (mut out, times) = (stdout()?, TimeFormat::from_env());
        if args.json {
            writeln!(
                out,
                "{}",
                serde_json::to_string(&done).map_err(Failure::new)?
            )?;
        }
        for note in done.notes.iter().filter(|_| !args.json) {
            writeln!(out, "{}", times.in_text(&printable(note)))?;
        }
        out.flush()?;
        return Ok(0);
    }
    say_notes(&client.post_repeatable("/v1/reload", &BackupRequest::default())?);
    Ok(0)
}

pub fn backup(client: &mut Client, args: &BackupArgs) -> Outcome {
    let path = std::path::absolute(&args.path)
        .map_err(|error| Failure::new(format_args!("{}: {error}", args.path.display())))?;
    let path = path
        .into_os_string()
        .into_string()
        .map_err(|path| Failure::usage(format_args!("{} is not UTF-8", path.display())))?;
    // Asked twice the second would find the first one's file.
    say_notes(&client.post("/v1/backup", &BackupRequest { path })?);
    Ok(0)
}

/// Becomes `gpuctld restore`: only that may open the database.
pub fn restore(args: &RestoreArgs) -> Outcome {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|gadm| Some(gadm.parent()?.join("gpuctld")))
        .filter(|path| path.exists());
    let program = beside.unwrap_or_else(|| PathBuf::from("gpuctld"));
    let mut command = Command::new(&program);
    command.arg("restore");
    if let Some(config) = args.config.clone().or_else(sandbox::controller_config) {
        command.arg("--config").arg(config);
    }
    command.arg("--from").arg(absolute(&args.path));
    let error = command.exec();
    Err(Failure::new(format_args!(
        "cannot run {}: {error}. Restore on the controller's host",
        program.display()
    )))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

pub fn config(client: &mut Client) -> Outcome {
    let mut out = stdout()?;
    let value: Value = client.get("/v1/config")?;
    writeln!(out, "{value}")?;
    out.flush()?;
    Ok(0)
}

pub fn diag(client: &mut Client, args: &JsonArgs) -> Outcome {
    let value: Value = client.get("/v1/diag")?;
    let mut out = stdout()?;
    if args.json {
        writeln!(out, "{value}")?;
    } else {
        out.write_all(outline(&value).as_bytes())?;
    }
    out.flush()?;
    Ok(0)
}

pub fn check(client: &mut Client, args: &JsonArgs) -> Outcome {
    let value: Value = client.get("/v1/check")?;
    let violations = value["violations"].as_array().cloned().unwrap_or_default();
    let mut out = stdout()?;
    if args.json {
        writeln!(out, "{value}")?;
    } else {
        let count = |what: &str| value["checked"][what].as_u64().unwrap_or_default();
        for violation in &violations {
            writeln!(out, "{}", printable(violation.as_str().unwrap_or_default()))?;
        }
        for note in value["notes"].as_array().into_iter().flatten() {
            writeln!(
                out,
                "note: {}",
                printable(note.as_str().unwrap_or_default())
            )?;
        }
        let found = match violations.len() {
            0 => "nothing wrong".to_owned(),
            1 => "1 contradiction".to_owned(),
            count => format!("{count} contradictions"),
        };
        writeln!(
            out,
            "{found} in {} jobs, {} runs, {} nodes",
            count("jobs"),
            count("runs"),
            count("nodes")
        )?;
    }
    out.flush()?;
    Ok(u8::from(!violations.is_empty()))
}

/// JSON for people: a key a line, what is inside of it indented, lists of plain values in one line.
fn outline(value: &Value) -> String {
    let mut text = String::new();
    if let Value::Object(object) = value {
        for (key, value) in object.iter().filter(|(key, _)| *key != "schema") {
            add(key, value, 0, &mut text);
        }
    }
    text
}

fn add(key: &str, value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(object) => {
            text.push_str(&format!("{indent}{key}:\n"));
            object
                .iter()
                .for_each(|(key, value)| add(key, value, depth + 1, text));
        }
        Value::Array(list)
            if list
                .iter()
                .any(|value| value.is_object() || value.is_array()) =>
        {
            text.push_str(&format!("{indent}{key}:\n"));
            list.iter()
                .enumerate()
                .for_each(|(at, value)| add(&at.to_string(), value, depth + 1, text));
        }
        Value::Array(list) => {
            let words: Vec<String> = list.iter().map(plain).collect();
            text.push_str(&format!("{indent}{key}: {}\n", words.join(", ")));
        }
        value => text.push_str(&format!("{indent}{key}: {}\n", plain(value))),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text).into_owned(),
        Value::Null => "none".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn diagnosis_is_printed_for_people() {
        let value = serde_json::json!({"schema": 1, "jobs": {"PENDING": 3}, "nodes": ["n1", "n2"], "passes": [{"ms": 1.5}], "up": null});
        expect![[r#"
            jobs:
              PENDING: 3
            nodes: n1, n2
            passes:
              0:
                ms: 1.5
            up: none
        "#]]
        .assert_eq(&outline(&value));
    }
}
