//! The columns of a job listing: the keys of `JobRow`, each written as JSON straight into a buffer.
//!
//! Owns which columns there are and their form; 100,000 rows are written without making a value of any.

use crate::http::job::row::{Row, View};
use crate::http::json_row::{Column, JsonWriter};
use gmodel::Instant;
use gmodel::job::GpuScope;
use gmodel::licence;
use gmodel::size::exact_size;

/// `write` puts the value of a row's key, or nothing and answers false.
pub(crate) type JobColumn = Column<fn(&Row, View, &mut JsonWriter) -> bool>;

macro_rules! column {
    ($key:literal, $write:expr) => {
        Column {
            key: $key,
            prefix: concat!(",\"", $key, "\":"),
            write: $write,
        }
    };
}

/// `id` is always sent and comes first.
pub(crate) const COLUMNS: &[JobColumn] = &[
    column!("shown_id", |row, _, out| put_shown_id(row, out)),
    column!("array_id", |row, _, out| out.some(row.array_id())),
    column!("array_index", |row, _, out| out.some(row.array_index())),
    column!("array_tasks", |row, _, out| out.some(row.array_tasks())),
    column!("name", |row, _, out| out.text(&row.spec().name)),
    column!("user", |row, _, out| out.text(&row.spec().user.name)),
    column!("uid", |row, _, out| out.number(row.spec().user.uid)),
    column!("account", |row, _, out| out.text(&row.spec().account)),
    column!("partition", |row, _, out| out.text(&row.spec().partition)),
    column!("qos", |row, _, out| out.text(&row.spec().qos)),
    column!("state", |row, _, out| out.text(row.state().long())),
    column!("reason", |row, view, out| out.quoted(row.reason_code(view))),
    column!("reason_text", |row, view, out| out
        .text_unless_empty(&row.reason_text(view))),
    column!("priority", |row, view, out| out.number(row.priority(view))),
    column!("position", |row, view, out| out
        .some(row.rank(view).map(|rank| rank.position))),
    column!("class", |row, view, out| out.some(row.class(view))),
    column!("nice", |row, _, out| out.number(row.nice())),
    column!("nodes", |row, view, out| out.number(row.nodes(view))),
    column!("nodelist", |row, view, out| out.text(&row.nodelist(view))),
    column!("cpus", |row, view, out| out.number(row.cpus(view))),
    column!("ntasks", |row, view, out| out.number(row.ntasks(view))),
    column!("mem", |row, view, out| out
        .text(&row.mem_bytes(view).map(exact_size).unwrap_or_default())),
    column!("mem_bytes", |row, view, out| out
        .number(row.mem_bytes(view).unwrap_or(0))),
    column!("mem_total_bytes", |row, view, out| out
        .number(row.mem_total_bytes(view))),
    column!("mem_per", |row, view, out| out.quoted(row.mem_per(view))),
    column!("gpus", |row, _, out| match &row.spec().request.gpus {
        Some(ask) if !ask.is_none() => out.value(&ask.to_string()),
        _ => out.text(""),
    }),
    column!("gpu_count", |row, view, out| match row.gpu_milli(view) {
        // As the general form writes it, and many times as fast.
        whole if whole % 1000 == 0 => {
            out.number(whole / 1000);
            out.raw(".0");
            true
        }
        milli => out.value(&(milli as f64 / 1000.0)),
    }),
    column!(
        "gpus_per",
        |row, _, out| match row.spec().request.gpu_scope {
            _ if row
                .spec()
                .request
                .gpus
                .as_ref()
                .is_none_or(|ask| ask.is_none()) =>
                false,
            GpuScope::Job => out.quoted("job"),
            GpuScope::Node => out.quoted("node"),
            GpuScope::Task => out.quoted("task"),
        }
    ),
    column!("gpus_held", |row, view, out| out
        .list_unless_empty(&row.gpus_held(view))),
    column!("held", |row, view, out| out
        .list_unless_empty(&row.held(view))),
    column!("gpu_uuids", |row, view, out| out
        .list_unless_empty(&row.gpu_uuids(view))),
    column!("gpu_events", |row, _, out| out
        .list_unless_empty(row.gpu_events())),
    column!("gpu_links", |row, view, out| out
        .list_unless_empty(&row.gpu_links(view))),
    column!("imex_channel", |row, view, out| out
        .some(row.run(view).and_then(|run| run.imex_channel))),
    column!("time_limit_secs", |row, view, out| out
        .some(row.limit_secs(view))),
    column!("elapsed_secs", |row, view, out| out
        .number(row.elapsed_secs(view))),
    column!("submit_time", |row, _, out| out
        .instant(Some(row.submitted()))),
    column!("eligible_time", |row, _, out| out
        .instant(row.known_eligible().map(|at| at.0))),
    column!("start_time", |row, _, out| out.instant(row.started())),
    column!("end_time", |row, _, out| out.instant(row.ended())),
    column!("exit_code", |row, _, out| out.value(&row.exit())),
    column!("end_text", |row, _, out| out
        .text_unless_empty(row.end_text())),
    column!("attempts", |row, _, out| out.number(row.attempts())),
    column!("work_dir", |row, _, out| out
        .text(&row.spec().launch.work_dir)),
    column!("command", |row, _, out| out.text(&row.command())),
    column!("stdout", |row, view, out| out.text(&row.stdout(view))),
    column!("stderr", |row, view, out| out.text(&row.stderr(view))),
    column!("stdin", |row, view, out| out.text(&row.stdin(view))),
    column!("comment", |row, _, out| out.text(&row.spec().comment)),
    column!("constraint", |row, _, out| out.text(
        row.spec().request.constraint.as_deref().unwrap_or_default()
    )),
    column!("req_nodelist", |row, _, out| out
        .hostlist(&row.spec().request.nodelist)),
    column!("exclude", |row, _, out| out
        .hostlist(&row.spec().request.exclude)),
    column!("exclusive", |row, _, out| out
        .value(&row.spec().request.exclusive)),
    column!("requeue", |row, view, out| {
        let usual = view
            .state
            .config
            .partitions_of(&row.spec().partition)
            .next()
            .is_none_or(|partition| partition.requeue);
        out.value(&row.spec().requeue.unwrap_or(usual))
    }),
    column!("dependency", |row, _, out| out
        .text_unless_empty(&row.dependency())),
    column!("licences", |row, _, out| out
        .text_unless_empty(&licence::text(&row.spec().licences))),
    column!("reservation", |row, _, out| out.some(row.reservation())),
    column!("prefer", |row, _, out| out
        .some(row.spec().request.prefer.as_ref())),
    column!("nvlink", |row, _, out| row.spec().request.nvlink
        && out.value(&true)),
    column!("switches", |row, _, out| out.some(row.switches())),
    column!("time_min_secs", |row, _, out| out
        .some(row.spec().time_min_secs)),
    column!("deadline", |row, _, out| out
        .some(row.spec().deadline.map(Instant))),
    column!("borrow", |row, _, out| out.some(row.spec().borrow)),
    column!("checkpoint", |row, _, out| out
        .some(row.spec().checkpoint.as_ref().map(ToString::to_string))),
    column!("last_mark", |row, _, out| out.some(row.last_mark())),
    column!("preempted_time", |row, _, out| out
        .some(row.preempted().map(Instant))),
    column!("preempted_for", |row, view, out| out
        .some(row.preempted_for(view))),
    column!("submit_host", |row, _, out| out
        .text(&row.spec().launch.submit_host)),
    column!("tags", |row, _, out| out.value(&row.spec().tags)),
    column!("holds", |row, _, out| {
        let mark = |mark: &gmodel::node::HoldMark| crate::http::node::list::mark_row(mark);
        out.list_unless_empty(&row.holds().iter().map(mark).collect::<Vec<_>>())
    }),
    column!("later", |row, _, out| !row.spec().later.is_empty()
        && out.value(&row.spec().later)),
    column!("mail_type", |row, _, out| out
        .some(row.spec().launch.mail_type.as_ref())),
    column!("mail_user", |row, _, out| out
        .some(row.spec().launch.mail_user.as_ref())),
    column!("idle", |row, view, out| out.some(row.idle(view))),
    column!("idle_exempt", |row, _, out| row.spec().idle_exempt
        && out.value(&true)),
];

/// Puts a row: with keys as `{"id":17,"name":"train",...}`, bare as `[17,"train",...]`.
pub(crate) fn write_row(
    row: &Row,
    view: View,
    columns: &[&JobColumn],
    bare: bool,
    out: &mut JsonWriter,
) {
    out.row(row.id(), columns, bare, |write, out| write(row, view, out));
}

/// Nearly all rows are jobs of their own or tasks: these are written without a text in between.
fn put_shown_id(row: &Row, out: &mut JsonWriter) -> bool {
    let alone = row.array_id().is_none();
    if !alone && row.array_index().is_none() {
        return out.text(&row.shown_id());
    }
    out.bytes.push(b'"');
    match (row.array_id(), row.array_index()) {
        (Some(array), Some(index)) => {
            out.number(array);
            out.bytes.push(b'_');
            out.number(index);
        }
        _ => {
            out.number(row.id());
        }
    }
    out.bytes.push(b'"');
    true
}
