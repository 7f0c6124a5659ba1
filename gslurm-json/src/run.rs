//! A job of accounting: `sacct --json`. Steps are part of their jobs.

use super::datum::{
    Datum, Field, blank, empty, list, maybe, no, number, records, text, unset, whole, zero,
};
use super::document::{exit_code, minutes, seconds};
use crate::value::job::restarts;
use gmodel::{Instant, JobState};
use gwire::api::{RunDetail, RunRow, StepRow};
use serde_json::{Value, json};
use std::sync::Arc;

pub struct RunCell {
    row: RunRow,
    detail: RunDetail,
    cluster: Arc<str>,
    group: Arc<(u32, String)>,
}

impl RunCell {
    pub fn of(row: RunRow, cluster: Arc<str>, group: Arc<(u32, String)>) -> Self {
        let detail = row.detail.as_deref().cloned().unwrap_or_default();
        Self {
            row,
            detail,
            cluster,
            group,
        }
    }

    fn waits(&self) -> bool {
        self.row.state == JobState::Pending
    }

    fn association(&self) -> Datum<'_> {
        Datum::Value(
            json!({"account": self.row.account, "cluster": &*self.cluster, "partition": "", "user": self.row.user, "id": 0}),
        )
    }

    fn held(&self) -> Datum<'_> {
        let row = &self.row;
        match self.waits() {
            true => list([] as [Value; 0]),
            false => resources(row.cpus, row.mem_bytes, row.nodes, row.gpu_count),
        }
    }

    fn asked(&self) -> Datum<'_> {
        let one = &self.detail;
        resources(one.req_cpus, one.req_mem_bytes, one.req_nodes, one.req_gpus)
    }
}

pub const RUN: &[Field<RunCell>] = &[
    ("account", |job| text(&job.row.account)),
    blank("comment/administrator"),
    ("comment/job", |job| text(&job.row.comment)),
    ("comment/system", |job| text(&job.row.end_text)),
    ("allocation_nodes", |job| {
        whole(if job.waits() { 0 } else { job.row.nodes })
    }),
    ("array/job_id", |job| whole(job.row.array_id.unwrap_or(0))),
    zero("array/limits/max/running/tasks"),
    ("array/task_id", |job| {
        Datum::Number(job.row.array_index.map(u64::from))
    }),
    ("array/task", |job| maybe(&job.row.array_tasks)),
    ("association", RunCell::association),
    blank("block"),
    ("cluster", |job| text(&job.cluster)),
    ("constraints", |job| text(&job.detail.constraint)),
    ("container", |job| maybe(&job.row.image)),
    ("derived_exit_code", |job| {
        exit_code(job.detail.derived_exit_code, job.row.state.is_final())
    }),
    ("time/elapsed", |job| whole(job.row.elapsed_secs.max(0))),
    ("time/eligible", |job| moment(job.detail.eligible_time)),
    ("time/end", |job| moment(job.row.end_time)),
    ("time/planned", |job| {
        let waited = seconds(job.row.start_time)
            .zip(seconds(job.detail.eligible_time))
            .map(|(start, eligible)| start.saturating_sub(eligible));
        Datum::Number(waited)
    }),
    ("time/start", |job| moment(job.row.start_time)),
    ("time/submission", |job| moment(job.row.submit_time)),
    ("time/suspended", |job| whole(job.row.suspended_secs)),
    zero("time/system/seconds"),
    zero("time/system/microseconds"),
    ("time/limit", |job| minutes(job.row.time_limit_secs)),
    ("time/total/seconds", |job| {
        whole(micros(job.row.cpu_time_secs) / 1_000_000)
    }),
    ("time/total/microseconds", |job| {
        whole(micros(job.row.cpu_time_secs) % 1_000_000)
    }),
    zero("time/user/seconds"),
    zero("time/user/microseconds"),
    ("exit_code", |job| {
        exit_code(job.row.exit_code, job.row.state.is_final())
    }),
    blank("extra"),
    blank("failed_node"),
    empty("flags"),
    ("group", |job| text(&job.group.1)),
    zero("het/job_id"),
    unset("het/job_offset"),
    ("job_id", |job| whole(job.row.id)),
    ("name", |job| text(&job.row.name)),
    blank("licenses"),
    blank("mcs/label"),
    ("nodes", |job| {
        text(match job.row.nodelist.is_empty() {
            true => "None assigned",
            false => &job.row.nodelist,
        })
    }),
    ("partition", |job| text(&job.row.partition)),
    no("hold"),
    ("priority", |job| {
        let priority = job.detail.priority.map(|priority| priority.max(0));
        Datum::Number(priority.and_then(|priority| u64::try_from(priority).ok()))
    }),
    ("qos", |job| text(&job.row.qos)),
    ("qosreq", |job| text(&job.row.qos)),
    ("required/CPUs", |job| whole(job.detail.req_cpus)),
    unset("required/memory_per_cpu"),
    ("required/memory_per_node", |job| {
        number((job.detail.req_mem_bytes / u64::from(job.detail.req_nodes.max(1))) >> 20)
    }),
    ("kill_request_user", |job| maybe(&job.row.cancelled_by)),
    ("restart_cnt", |job| {
        whole(restarts(job.row.attempt, job.row.state))
    }),
    zero("reservation/id"),
    ("reservation/name", |job| text(&job.detail.reservation)),
    ("reservation/requested", |job| text(&job.detail.reservation)),
    blank("script"),
    zero("segment_size"),
    blank("stdin_expanded"),
    blank("stdout_expanded"),
    blank("stderr_expanded"),
    blank("stdout"),
    blank("stderr"),
    blank("stdin"),
    ("state/current", |job| list([job.row.state.long()])),
    ("state/reason", |job| text(&job.row.end_text)),
    ("steps", |job| {
        Datum::Value(records(STEP, job.row.steps.iter().cloned()))
    }),
    blank("submit_line"),
    ("tres/allocated", RunCell::held),
    ("tres/requested", RunCell::asked),
    blank("used_gres"),
    ("user", |job| text(&job.row.user)),
    ("wckey", |_| Datum::Value(json!({"wckey": "", "flags": []}))),
    ("working_directory", |job| text(&job.row.work_dir)),
];

/// A step of a job in accounting.
pub const STEP: &[Field<StepRow>] = &[
    ("time/elapsed", |step| whole(step.elapsed_secs.max(0))),
    ("time/end", |step| super::document::time(step.end_time)),
    ("time/start", |step| super::document::time(step.start_time)),
    zero("time/suspended"),
    zero("time/system/seconds"),
    zero("time/system/microseconds"),
    unset("time/limit"),
    ("time/total/seconds", |step| {
        whole(micros(step.cpu_time_secs.unwrap_or(0.0)) / 1_000_000)
    }),
    ("time/total/microseconds", |step| {
        whole(micros(step.cpu_time_secs.unwrap_or(0.0)) % 1_000_000)
    }),
    zero("time/user/seconds"),
    zero("time/user/microseconds"),
    ("exit_code", |step| {
        exit_code(step.exit_code, step.end_time.is_some())
    }),
    ("nodes/count", |step| whole(step.nodes)),
    ("nodes/range", |step| text(&step.nodelist)),
    ("nodes/list", |step| {
        let names = gmodel::hostlist::expand(&step.nodelist, gmodel::hostlist::MAX_HOSTS);
        list(names.unwrap_or_default())
    }),
    ("tasks/count", |step| whole(step.ntasks)),
    blank("pid"),
    unset("CPU/requested_frequency/min"),
    unset("CPU/requested_frequency/max"),
    empty("CPU/governor"),
    blank("kill_request_user"),
    ("state", |step| list([step.state.long()])),
    zero("statistics/CPU/actual_frequency"),
    unset("statistics/energy/consumed"),
    ("step/id", |step| text(&step.shown_id)),
    ("step/name", |step| text(&step.name)),
    blank("step/stderr"),
    blank("step/stdin"),
    blank("step/stdout"),
    blank("step/stderr_expanded"),
    blank("step/stdin_expanded"),
    blank("step/stdout_expanded"),
    ("task/distribution", |_| text("Unknown")),
    ("tres/requested/max", peak),
    empty("tres/requested/min"),
    empty("tres/requested/average"),
    ("tres/requested/total", peak),
    ("tres/consumed/max", peak),
    empty("tres/consumed/min"),
    empty("tres/consumed/average"),
    ("tres/consumed/total", peak),
    ("tres/allocated", |step| {
        let own = step.own.unwrap_or_default();
        resources(own.cpus, own.mem_bytes, step.nodes, own.gpus.into())
    }),
];

/// The most memory of a step on a node, which is what its nodes measure.
fn peak(step: &StepRow) -> Datum<'_> {
    let count = step.peak_memory_bytes.unwrap_or(0);
    list([json!({"type": "mem", "name": "", "id": 2, "count": count})])
}

fn micros(secs: f64) -> u64 {
    (secs.max(0.0) * 1e6) as u64
}

fn moment<'a>(at: Option<Instant>) -> Datum<'a> {
    whole(seconds(at).unwrap_or(0))
}

/// As Slurm's accounting numbers them.
fn resources<'a>(cpus: u32, mem_bytes: u64, nodes: u32, gpus: f64) -> Datum<'a> {
    let count = |count: f64| match count.fract() == 0.0 {
        true => json!(count as u64),
        false => json!(count),
    };
    let one = |kind: &str, name: &str, id: u32, number: f64| json!({"type": kind, "name": name, "id": id, "count": count(number)});
    let mut all = vec![
        one("cpu", "", 1, cpus.into()),
        one("mem", "", 2, (mem_bytes >> 20) as f64),
        one("node", "", 4, nodes.into()),
        one("billing", "", 5, cpus.into()),
    ];
    all.extend((gpus > 0.0).then(|| one("gres", "gpu", 1001, gpus)));
    Datum::Value(Value::Array(all))
}

#[cfg(test)]
mod tests {
    use super::super::datum::record;
    use super::*;
    use crate::job::Groups;
    use gmodel::{ExitCode, Timestamp};

    #[test]
    fn a_job_that_is_over_has_the_keys_of_slurms_accounting() {
        let at = |secs| Some(Instant(Timestamp::from_secs(secs)));
        let (steps, exit_code) = (
            vec![StepRow {
                shown_id: "17.batch".into(),
                state: JobState::Failed,
                end_time: at(20),
                ..StepRow::default()
            }],
            ExitCode::killed(9),
        );
        let row = RunRow {
            id: 17,
            name: "train".into(),
            state: JobState::Failed,
            exit_code,
            start_time: at(10),
            end_time: at(20),
            elapsed_secs: 10,
            nodes: 1,
            cpus: 2,
            mem_bytes: 1 << 30,
            gpu_count: 0.5,
            cpu_time_secs: 3.25,
            attempt: 2,
            steps,
            ..RunRow::default()
        };
        let run = record(RUN, &Groups::new("c").run(row));
        assert_eq!(
            (
                &run["state"]["current"][0],
                &run["restart_cnt"],
                &run["nodes"]
            ),
            (&json!("FAILED"), &json!(1), &json!("None assigned"))
        );
        assert_eq!(
            run["exit_code"]["signal"],
            json!({"id": {"set": true, "infinite": false, "number": 9}, "name": "KILL"})
        );
        assert_eq!(
            run["time"]["total"],
            json!({"seconds": 3, "microseconds": 250_000})
        );
        assert_eq!(
            run["tres"]["allocated"][4],
            json!({"type": "gres", "name": "gpu", "id": 1001, "count": 0.5})
        );
        assert_eq!(
            (&run["steps"][0]["step"]["id"], &run["time"]["end"]),
            (&json!("17.batch"), &json!(20))
        );
    }
}
