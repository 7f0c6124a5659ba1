//! The columns of a job listing: the keys of `JobRow`, each written as JSON straight into a buffer.
//!
//! Owns which columns there are and their form; 100,000 rows are written without making a value of any.

use crate::http::job::row::{Row, View};
use crate::http::json_row::{Column, JsonWriter};
use gmodel::job::GpuScope;
use gmodel::job_key::{JobText, TEXTS};
use gmodel::licence;
use gmodel::size::exact_size;
use gmodel::{Instant, JobPart};
use gwire::api::JobRowKey;
use std::sync::LazyLock;

pub(crate) type JobColumn = Column<JobCell>;

/// How the value of a key is written.
pub(crate) enum JobCell {
    /// Puts the value, or nothing and answers false.
    Computed(ComputedCell),
    /// A text of the request as it is.
    Text(&'static JobText),
}

type ComputedCell = fn(&Row, View, &mut JsonWriter) -> bool;

/// `id` is always sent and comes first.
pub(crate) static COLUMNS: LazyLock<Vec<JobColumn>> = LazyLock::new(|| {
    let cell = |key: JobRowKey| {
        let text = TEXTS.iter().find(|text| text.key == key.name());
        let computed = || CELLS.iter().find(|(known, _)| *known == key);
        text.map(JobCell::Text)
            .or_else(|| Some(JobCell::Computed(computed()?.1)))
    };
    let column = |key: &JobRowKey| {
        Some(Column {
            key: key.name(),
            prefix: key.prefix(),
            write: cell(*key)?,
        })
    };
    JobRowKey::ALL.iter().filter_map(column).collect()
});

const CELLS: &[(JobRowKey, ComputedCell)] = &[
    (JobRowKey::shown_id, |row, _, out| put_shown_id(row, out)),
    (JobRowKey::array_id, |row, _, out| out.some(row.array_id())),
    (JobRowKey::array_index, |row, _, out| {
        out.some(row.array_index())
    }),
    (JobRowKey::array_tasks, |row, _, out| {
        out.some(row.array_tasks())
    }),
    (JobRowKey::component_ids, |row, _, out| {
        out.some(row.spec().part.map(JobPart::ids))
    }),
    (JobRowKey::name, |row, _, out| out.text(&row.spec().name)),
    (JobRowKey::user, |row, _, out| {
        out.text(&row.spec().user.name)
    }),
    (JobRowKey::uid, |row, _, out| {
        out.number(row.spec().user.uid)
    }),
    (JobRowKey::state, |row, _, out| out.text(row.state().long())),
    (JobRowKey::reason, |row, view, out| {
        out.quoted(row.reason_code(view))
    }),
    (JobRowKey::reason_text, |row, view, out| {
        out.text_unless_empty(&row.reason_text(view))
    }),
    (JobRowKey::pull, |row, view, out| {
        out.text_unless_empty(&row.pull(view).unwrap_or_default())
    }),
    (JobRowKey::priority, |row, view, out| {
        out.number(row.priority(view))
    }),
    (JobRowKey::position, |row, view, out| {
        out.some(row.rank(view).map(|rank| rank.position))
    }),
    (JobRowKey::class, |row, view, out| out.some(row.class(view))),
    (JobRowKey::nice, |row, _, out| out.number(row.nice())),
    (JobRowKey::nodes, |row, view, out| {
        out.number(row.nodes(view))
    }),
    (JobRowKey::nodelist, |row, view, out| {
        out.text(&row.nodelist(view))
    }),
    (JobRowKey::cpus, |row, view, out| out.number(row.cpus(view))),
    (JobRowKey::ntasks, |row, view, out| {
        out.number(row.ntasks(view))
    }),
    (JobRowKey::mem, |row, view, out| {
        out.text(&row.mem_bytes(view).map(exact_size).unwrap_or_default())
    }),
    (JobRowKey::mem_bytes, |row, view, out| {
        out.number(row.mem_bytes(view).unwrap_or(0))
    }),
    (JobRowKey::mem_total_bytes, |row, view, out| {
        out.number(row.mem_total_bytes(view))
    }),
    (JobRowKey::mem_per, |row, view, out| {
        out.quoted(row.mem_per(view))
    }),
    (JobRowKey::gpus, |row, _, out| {
        match &row.spec().request.gpus {
            Some(ask) if !ask.is_none() => out.value(&ask.to_string()),
            _ => out.text(""),
        }
    }),
    (JobRowKey::gpu_count, |row, view, out| {
        match row.gpu_milli(view) {
            // As the general form writes it, and many times as fast.
            whole if whole % 1000 == 0 => {
                out.number(whole / 1000);
                out.raw(".0");
                true
            }
            milli => out.value(&(milli as f64 / 1000.0)),
        }
    }),
    (JobRowKey::gpus_per, |row, _, out| {
        match row.spec().request.gpu_scope {
            _ if row
                .spec()
                .request
                .gpus
                .as_ref()
                .is_none_or(|ask| ask.is_none()) =>
            {
                false
            }
            GpuScope::Job => out.quoted("job"),
            GpuScope::Node => out.quoted("node"),
            GpuScope::Task => out.quoted("task"),
        }
    }),
    (JobRowKey::gpus_held, |row, view, out| {
        out.list_unless_empty(&row.gpus_held(view))
    }),
    (JobRowKey::held, |row, view, out| {
        out.list_unless_empty(&row.held(view))
    }),
    (JobRowKey::gpu_uuids, |row, view, out| {
        out.list_unless_empty(&row.gpu_uuids(view))
    }),
    (JobRowKey::gpu_events, |row, _, out| {
        out.list_unless_empty(row.gpu_events())
    }),
    (JobRowKey::image, |row, _, out| {
        out.text_unless_empty(row.image())
    }),
    (JobRowKey::gpu_links, |row, view, out| {
        out.list_unless_empty(&row.gpu_links(view))
    }),
    (JobRowKey::imex_channel, |row, view, out| {
        out.some(row.run(view).and_then(|run| run.imex_channel))
    }),
    (JobRowKey::time_limit_secs, |row, view, out| {
        out.some(row.limit_secs(view))
    }),
    (JobRowKey::elapsed_secs, |row, view, out| {
        out.number(row.elapsed_secs(view))
    }),
    (JobRowKey::submit_time, |row, _, out| {
        out.instant(Some(row.submitted()))
    }),
    (JobRowKey::eligible_time, |row, _, out| {
        out.instant(row.known_eligible().map(|at| at.0))
    }),
    (JobRowKey::start_time, |row, _, out| {
        out.instant(row.started())
    }),
    (JobRowKey::end_time, |row, _, out| out.instant(row.ended())),
    (JobRowKey::exit_code, |row, _, out| out.value(&row.exit())),
    (JobRowKey::end_text, |row, _, out| {
        out.text_unless_empty(row.end_text())
    }),
    (JobRowKey::attempts, |row, _, out| {
        out.number(row.attempts())
    }),
    (JobRowKey::work_dir, |row, _, out| {
        out.text(&row.spec().launch.work_dir)
    }),
    (JobRowKey::command, |row, _, out| out.text(&row.command())),
    (JobRowKey::stdout, |row, view, out| {
        out.text(&row.stdout(view))
    }),
    (JobRowKey::stderr, |row, view, out| {
        out.text(&row.stderr(view))
    }),
    (JobRowKey::stdin, |row, view, out| {
        out.text(&row.stdin(view))
    }),
    (JobRowKey::constraint, |row, _, out| {
        out.text(row.spec().request.constraint.as_deref().unwrap_or_default())
    }),
    (JobRowKey::req_nodelist, |row, _, out| {
        out.hostlist(&row.spec().request.nodelist)
    }),
    (JobRowKey::exclude, |row, _, out| {
        out.hostlist(&row.spec().request.exclude)
    }),
    (JobRowKey::exclusive, |row, _, out| {
        out.value(&row.spec().request.exclusive)
    }),
    (JobRowKey::requeue, |row, view, out| {
        let usual = view
            .state
            .config
            .partitions_of(&row.spec().partition)
            .next()
            .is_none_or(|partition| partition.requeue);
        out.value(&row.spec().requeue.unwrap_or(usual))
    }),
    (JobRowKey::dependency, |row, _, out| {
        out.text_unless_empty(&row.dependency())
    }),
    (JobRowKey::licences, |row, _, out| {
        out.text_unless_empty(&licence::text(&row.spec().licences))
    }),
    (JobRowKey::token, |row, _, out| {
        out.some(row.spec().token.map(|token| token.to_string()))
    }),
    (JobRowKey::reservation, |row, _, out| {
        out.some(row.reservation())
    }),
    (JobRowKey::prefer, |row, _, out| {
        out.some(row.spec().request.prefer.as_ref())
    }),
    (JobRowKey::nvlink, |row, _, out| {
        row.spec().request.nvlink && out.value(&true)
    }),
    (JobRowKey::switches, |row, _, out| out.some(row.switches())),
    (JobRowKey::time_min_secs, |row, _, out| {
        out.some(row.spec().time_min_secs)
    }),
    (JobRowKey::deadline, |row, _, out| {
        out.some(row.spec().deadline.map(Instant))
    }),
    (JobRowKey::borrow, |row, _, out| out.some(row.spec().borrow)),
    (JobRowKey::checkpoint, |row, _, out| {
        out.some(row.spec().checkpoint.as_ref().map(ToString::to_string))
    }),
    (JobRowKey::last_mark, |row, _, out| {
        out.some(row.last_mark())
    }),
    (JobRowKey::preempted_time, |row, _, out| {
        out.some(row.preempted().map(Instant))
    }),
    (JobRowKey::preempted_for, |row, view, out| {
        out.some(row.preempted_for(view))
    }),
    (JobRowKey::submit_host, |row, _, out| {
        out.text(&row.spec().launch.submit_host)
    }),
    (JobRowKey::tags, |row, _, out| out.value(&row.spec().tags)),
    (JobRowKey::holds, |row, _, out| {
        let mark = |mark: &gmodel::node::HoldMark| crate::http::node::list::mark_row(mark);
        out.list_unless_empty(&row.holds().iter().map(mark).collect::<Vec<_>>())
    }),
    (JobRowKey::later, |row, _, out| {
        !row.spec().later.is_empty() && out.value(&row.spec().later)
    }),
    (JobRowKey::mail_type, |row, _, out| {
        out.some(row.spec().launch.mail_type.as_ref())
    }),
    (JobRowKey::mail_user, |row, _, out| {
        out.some(row.spec().launch.mail_user.as_ref())
    }),
    (JobRowKey::idle, |row, view, out| out.some(row.idle(view))),
    (JobRowKey::idle_exempt, |row, _, out| {
        row.spec().idle_exempt && out.value(&true)
    }),
    (JobRowKey::allocation, |row, _, out| {
        row.spec().allocation && out.value(&true)
    }),
];

/// Puts a row: with keys as `{"id":17,"name":"train",...}`, bare as `[17,"train",...]`.
pub(crate) fn write_row(
    row: &Row,
    view: View,
    columns: &[&JobColumn],
    bare: bool,
    out: &mut JsonWriter,
) {
    out.row(row.id(), columns, bare, |cell, out| match cell {
        JobCell::Computed(put) => put(row, view, out),
        JobCell::Text(text) => out.text((text.of)(row.spec())),
    });
}

/// Nearly all rows are jobs of their own or tasks: these are written without a text in between.
fn put_shown_id(row: &Row, out: &mut JsonWriter) -> bool {
    let alone = row.array_id().is_none();
    let is_part = row.spec().part.is_some();
    if is_part || (!alone && row.array_index().is_none()) {
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
