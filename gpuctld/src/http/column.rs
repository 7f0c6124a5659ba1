//! The columns of a job listing: the keys of `JobRow`, each written as JSON straight into a buffer.
//!
//! Owns which columns there are and their form; 100,000 rows are written without making a value of any.

use super::error::ApiError;
use super::query::list;
use super::row::{Row, View};
use gmodel::size::exact_size;
use gmodel::suggest::did_you_mean;
use gmodel::{Instant, Timestamp};
use serde::Serialize;
use std::io::Write;

/// One key of `JobRow`. `write` puts the value, or nothing and answers false.
pub(super) struct Column {
    pub(super) key: &'static str,
    write: fn(&Row, View, &mut Json) -> bool,
}

/// `id` is always sent and comes first.
pub(super) const COLUMNS: &[Column] = &[
    column("shown_id", |row, _, out| out.text(&row.shown_id())),
    column("array_id", |row, _, out| out.some(row.array_id())),
    column("array_index", |row, _, out| out.some(row.array_index())),
    column("array_tasks", |row, _, out| out.some(row.array_tasks())),
    column("name", |row, _, out| out.text(&row.spec().name)),
    column("user", |row, _, out| out.text(&row.spec().user.name)),
    column("uid", |row, _, out| out.number(row.spec().user.uid)),
    column("account", |row, _, out| out.text(&row.spec().account)),
    column("partition", |row, _, out| out.text(&row.spec().partition)),
    column("qos", |row, _, out| out.text(&row.spec().qos)),
    column("state", |row, _, out| out.text(row.state().long())),
    column("reason", |row, view, out| out.quoted(row.reason_code(view))),
    column("reason_text", |row, _, out| out.text_unless_empty(row.reason_text())),
    column("priority", |row, view, out| out.number(row.priority(view))),
    column("nice", |row, _, out| out.number(row.nice())),
    column("nodes", |row, view, out| out.number(row.nodes(view))),
    column("nodelist", |row, view, out| out.text(&row.nodelist(view))),
    column("cpus", |row, view, out| out.number(row.cpus(view))),
    column("ntasks", |row, view, out| out.number(row.ntasks(view))),
    column("mem", |row, view, out| out.text(&row.mem_bytes(view).map(exact_size).unwrap_or_default())),
    column("mem_bytes", |row, view, out| out.number(row.mem_bytes(view).unwrap_or(0))),
    column("gpus", |row, _, out| match &row.spec().request.gpus {
        Some(ask) if !ask.is_none() => out.value(&ask.to_string()),
        _ => out.text(""),
    }),
    column("gpu_count", |row, view, out| out.value(&(row.gpu_milli(view) as f64 / 1000.0))),
    column("gpus_held", |row, view, out| out.list_unless_empty(&row.gpus_held(view))),
    column("time_limit_secs", |row, _, out| out.some(row.limit_secs())),
    column("elapsed_secs", |row, view, out| out.number(row.elapsed_secs(view))),
    column("submit_time", |row, _, out| out.instant(Some(row.submitted()))),
    column("eligible_time", |row, _, out| out.instant(Some(row.eligible()))),
    column("start_time", |row, _, out| out.instant(row.started())),
    column("end_time", |row, _, out| out.instant(row.ended())),
    column("exit_code", |row, _, out| out.value(&row.exit())),
    column("end_text", |row, _, out| out.text_unless_empty(row.end_text())),
    column("attempts", |row, _, out| out.number(row.attempts())),
    column("work_dir", |row, _, out| out.text(&row.spec().launch.work_dir)),
    column("command", |row, _, out| out.text(&row.command())),
    column("stdout", |row, view, out| out.text(&row.stdout(view))),
    column("stderr", |row, view, out| out.text(&row.stderr(view))),
    column("stdin", |row, view, out| out.text(&row.stdin(view))),
    column("comment", |row, _, out| out.text(&row.spec().comment)),
    column("constraint", |row, _, out| out.text(row.spec().request.constraint.as_deref().unwrap_or_default())),
    column("req_nodelist", |row, _, out| out.hostlist(&row.spec().request.nodelist)),
    column("exclude", |row, _, out| out.hostlist(&row.spec().request.exclude)),
    column("exclusive", |row, _, out| out.value(&row.spec().request.exclusive)),
    column("requeue", |row, view, out| {
        let usual = view.state.config.partition(&row.spec().partition).is_none_or(|partition| partition.requeue);
        out.value(&row.spec().requeue.unwrap_or(usual))
    }),
    column("submit_host", |row, _, out| out.text(&row.spec().launch.submit_host)),
    column("tags", |row, _, out| out.value(&row.spec().tags)),
    column("holds", |row, _, out| {
        let mark = |mark: &gmodel::node::Mark| super::nodes::mark_row(mark);
        out.list_unless_empty(&row.holds().iter().map(mark).collect::<Vec<_>>())
    }),
    column("later", |row, _, out| !row.spec().later.is_empty() && out.value(&row.spec().later)),
    column("mail_type", |row, _, out| out.some(row.spec().launch.mail_type.as_ref())),
    column("mail_user", |row, _, out| out.some(row.spec().launch.mail_user.as_ref())),
];

const fn column(key: &'static str, write: fn(&Row, View, &mut Json) -> bool) -> Column {
    Column { key, write }
}

/// The columns asked for, in their order; all for none.
///
/// # Errors
/// Naming the first key that is no column.
pub(super) fn chosen(keys: &[String]) -> Result<Vec<&'static Column>, ApiError> {
    if keys.is_empty() {
        return Ok(COLUMNS.iter().collect());
    }
    let find = |key: &String| {
        COLUMNS.iter().find(|column| column.key == key).ok_or_else(|| {
            let names: Vec<&str> = COLUMNS.iter().map(|column| column.key).collect();
            let guess = did_you_mean(key, names.iter().copied());
            ApiError::invalid(format!("there is no column {key:?}.{guess} Columns: id, {}", list(&names)))
        })
    };
    keys.iter().filter(|key| *key != "id").map(find).collect()
}

/// `{"id":17,"name":"train",...}`
pub(super) fn write_row(row: &Row, view: View, columns: &[&Column], out: &mut Json) {
    out.raw("{\"id\":");
    out.number(row.id());
    for column in columns {
        let before = out.bytes.len();
        out.raw(",\"");
        out.raw(column.key);
        out.raw("\":");
        if !(column.write)(row, view, out) {
            out.bytes.truncate(before);
        }
    }
    out.raw("}");
}

/// A buffer of JSON text. The writers answer whether there was a value.
#[derive(Default)]
pub(super) struct Json {
    pub(super) bytes: Vec<u8>,
}

impl Json {
    pub(super) fn raw(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn text(&mut self, text: &str) -> bool {
        let plain = text.bytes().all(|b| b >= 0x20 && b != b'"' && b != b'\\');
        if !plain {
            return self.value(text);
        }
        self.bytes.push(b'"');
        self.raw(text);
        self.bytes.push(b'"');
        true
    }

    fn text_unless_empty(&mut self, text: &str) -> bool {
        !text.is_empty() && self.text(text)
    }

    fn number(&mut self, number: impl std::fmt::Display) -> bool {
        write!(self.bytes, "{number}").expect("a Vec takes every write");
        true
    }

    /// A word that needs no escapes.
    fn quoted(&mut self, word: impl std::fmt::Display) -> bool {
        write!(self.bytes, "\"{word}\"").expect("a Vec takes every write");
        true
    }

    fn instant(&mut self, at: Option<Timestamp>) -> bool {
        match at {
            Some(at) => self.quoted(at),
            None => self.value(&None::<Instant>),
        }
    }

    fn hostlist(&mut self, list: &Option<gmodel::hostlist::Hostlist>) -> bool {
        match list {
            Some(list) => self.value(list),
            None => self.text(""),
        }
    }

    fn some<T: Serialize>(&mut self, value: Option<T>) -> bool {
        value.is_some_and(|value| self.value(&value))
    }

    fn list_unless_empty<T: Serialize>(&mut self, list: &[T]) -> bool {
        !list.is_empty() && self.value(list)
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> bool {
        serde_json::to_writer(&mut self.bytes, value).expect("these values have no maps with odd keys");
        true
    }
}
