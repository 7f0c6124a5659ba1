//! A step under way: `scontrol show step --json`.

use super::datum::{Datum, Field, blank, infinite, list, said, text, unset, whole, zero};
use super::document::time;
use gwire::api::StepRow;
use std::sync::Arc;

pub struct StepCell {
    pub row: StepRow,
    pub cluster: Arc<str>,
}

impl StepCell {
    fn tres(&self) -> Datum<'_> {
        match self.row.own {
            None => text(""),
            Some(own) => said(crate::value::job::tres(
                own.cpus,
                own.mem_bytes,
                self.row.nodes,
                own.gpus.into(),
            )),
        }
    }
}

pub const STEP: &[Field<StepCell>] = &[
    zero("array/job_id"),
    zero("array/task_id"),
    ("cluster", |step| text(&step.cluster)),
    blank("container"),
    blank("container_id"),
    unset("cpu/frequency/min"),
    unset("cpu/frequency/max"),
    unset("cpu/frequency/governor"),
    blank("tres/per/cpu"),
    blank("tres/per/memory"),
    blank("tres/per/step"),
    blank("tres/per/node"),
    blank("tres/per/socket"),
    blank("tres/per/task"),
    ("tres/allocation", StepCell::tres),
    blank("tres/binding"),
    blank("tres/frequency"),
    ("name", |step| text(&step.row.name)),
    blank("network"),
    ("nodes", |step| text(&step.row.nodelist)),
    ("number_cpus", |step| {
        whole(step.row.own.map_or(0, |own| own.cpus))
    }),
    ("number_tasks", |step| whole(step.row.ntasks)),
    ("partition", |step| text(&step.row.partition)),
    blank("reserved_ports"),
    ("time/running", |step| {
        Datum::Number(u64::try_from(step.row.elapsed_secs).ok())
    }),
    ("time/start", |step| time(step.row.start_time)),
    infinite("time/limit"),
    blank("srun/host"),
    zero("srun/pid"),
    ("state", |step| list([step.row.state.long()])),
    ("id", |step| text(&step.row.shown_id)),
    blank("stderr"),
    blank("stdin"),
    blank("stdout"),
    blank("stdin_expanded"),
    blank("stdout_expanded"),
    blank("stderr_expanded"),
    blank("submit_line"),
    ("task/distribution", |_| text("Unknown")),
    ("user", |step| text(&step.row.user)),
];
