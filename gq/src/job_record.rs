//! One job in full, in the layout of `scontrol show job`, and why it waits.
//!
//! Scripts read `Key=value` pairs from it: keys that Slurm has keep Slurm's names and values. Ours follow.

use crate::queue_row::shown_start;
use gcli::local_time::{TimeFormat, now};
use gcli::printable::printable;
use gmodel::duration::sacct_time;
use gmodel::job_key::JobText;
use gmodel::size::exact_size;
use gmodel::{ExitCode, Instant, JobPart, hostlist};
use gslurm_json::value::job::{
    count, cpus_per_task, end_by_limit, gpus_on, gres_on, group_of, restarts, time_limit, tres,
};
use gwire::api::{HeldRow, JobRow, JobRowKey};
use std::collections::BTreeMap;
use std::fmt::{Display, Write};

/// The record, several lines and a blank one.
pub fn text(job: &JobRow, times: &TimeFormat) -> String {
    with_details(job, times, None)
}

/// The same with what `scontrol show job -d` adds: the highest exit code of its steps, and what it holds of each node.
pub fn with_details(
    job: &JobRow,
    times: &TimeFormat,
    derived_exit_code: Option<ExitCode>,
) -> String {
    let mut record = Record {
        text: String::new(),
        line_empty: true,
    };
    identity(&mut record, job);
    state(&mut record, job, times, derived_exit_code);
    nodes(&mut record, job);
    if derived_exit_code.is_some() && !job.held.is_empty() {
        held(&mut record, job);
    }
    request(&mut record, job);
    gpus(&mut record, job);
    files(&mut record, job);
    ours(&mut record, job, times);
    let mut text = record.text;
    text.truncate(text.trim_end().len());
    text.push_str("\n\n");
    text
}

/// What a job that does not wait has to say: where it runs, or how it ended.
pub(crate) fn ended(job: &JobRow, times: &TimeFormat) -> String {
    let mut text = format!("job {}: {}", printable(&job.shown_id), job.state.long());
    if job.state.is_final() {
        let _ = writeln!(text, " with exit code {}", job.exit_code);
        if !job.end_text.is_empty() {
            let _ = writeln!(text, "  {}", printable(&times.in_text(&job.end_text)));
        }
        return text;
    }
    let since = job
        .start_time
        .map(|at| format!(" since {}", times.print(at.0)))
        .unwrap_or_default();
    let _ = writeln!(text, " on {}{since}", printable(&job.nodelist));
    if let Some(other) = &job.preempted_for {
        let _ = writeln!(text, "  gives way to job {}", printable(other));
    }
    text
}

struct Record {
    text: String,
    line_empty: bool,
}

impl Record {
    fn put(&mut self, key: &str, value: impl Display) -> &mut Self {
        if !self.line_empty {
            self.text.push(' ');
        }
        let _ = write!(self.text, "{key}={}", printable(&value.to_string()));
        self.line_empty = false;
        self
    }

    fn end(&mut self) {
        self.text.push_str("\n   ");
        self.line_empty = true;
    }

    fn line(&mut self, key: &str, value: impl Display) {
        self.put(key, value).end();
    }
}

fn identity(record: &mut Record, job: &JobRow) {
    record.put("JobId", job.id);
    if let Some(array) = job.array_id {
        record.put("ArrayJobId", array);
        match (&job.array_index, &job.array_tasks) {
            (Some(index), _) => record.put("ArrayTaskId", index),
            (None, Some(tasks)) => record.put("ArrayTaskId", tasks),
            (None, None) => record,
        };
        if let Some((_, most)) = job
            .array_tasks
            .as_deref()
            .and_then(|tasks| tasks.split_once('%'))
        {
            record.put("ArrayTaskThrottle", most);
        }
    }
    if let Some((leader, offset)) = JobPart::parse(&job.shown_id) {
        record.put("HetJobId", leader).put("HetJobOffset", offset);
    }
    record.line("JobName", &job.name);
    if let Some(ids) = &job.component_ids {
        record.line("HetJobIdSet", ids);
    }
    record.put("UserId", format_args!("{}({})", job.user, job.uid));
    record
        .put(
            "GroupId",
            format_args!(
                "{}({})",
                group_of(&job.user, true),
                group_of(&job.user, false)
            ),
        )
        .put("MCS_label", "N/A")
        .end();
    record
        .put("Priority", job.priority)
        .put("Nice", job.nice)
        .put("Account", &job.account)
        .put("QOS", &job.qos)
        .end();
}

fn state(
    record: &mut Record,
    job: &JobRow,
    times: &TimeFormat,
    derived_exit_code: Option<ExitCode>,
) {
    record
        .put("JobState", job.state)
        .put("Reason", job.reason)
        .put("Dependency", or_null(&job.dependency))
        .end();
    record
        .put("Requeue", u8::from(job.requeue))
        .put("Restarts", restarts(job.attempts, job.state))
        .put("BatchFlag", u8::from(!job.allocation))
        .put("Reboot", 0);
    record.put("ExitCode", job.exit_code).end();
    if let Some(derived) = derived_exit_code {
        record.line("DerivedExitCode", derived);
    }
    let limit = match job.time_limit_secs {
        None | Some(u32::MAX) => time_limit(None),
        Some(secs) => sacct_time(secs.into()),
    };
    record
        .put(
            "RunTime",
            sacct_time(job.elapsed_secs.max(0).cast_unsigned()),
        )
        .put("TimeLimit", limit);
    record
        .put(
            "TimeMin",
            job.time_min_secs
                .map_or("N/A".to_owned(), |secs| sacct_time(secs.into())),
        )
        .end();
    let at =
        |instant: Option<Instant>| instant.map_or("Unknown".to_owned(), |at| times.print(at.0));
    record
        .put("SubmitTime", at(job.submit_time))
        .put("EligibleTime", at(job.eligible_time))
        .end();
    // A job that was cancelled while it waited started, as Slurm has it, when it ended.
    let start = shown_start(job.state, job.eligible_time, job.start_time, now())
        .or(job.end_time.filter(|_| job.state.is_final()));
    record.put("StartTime", at(start)).put(
        "EndTime",
        at(job
            .end_time
            .or_else(|| end_by_limit(start, job.time_limit_secs))),
    );
    record
        .put(
            "Deadline",
            job.deadline
                .map_or("N/A".to_owned(), |at| times.print(at.0)),
        )
        .end();
}

/// Where it may run and where it does, and how much that is.
fn nodes(record: &mut Record, job: &JobRow) {
    record
        .put("Partition", &job.partition)
        .put("AllocNode", &job.submit_host)
        .end();
    record
        .put("ReqNodeList", or_null(&job.req_nodelist))
        .put("ExcNodeList", or_null(&job.exclude))
        .end();
    record.line("NodeList", &job.nodelist);
    if let Some(first) = hostlist::expand(&job.nodelist, hostlist::MAX_HOSTS)
        .ok()
        .and_then(|names| names.into_iter().next())
    {
        record.line("BatchHost", first);
    }
    record
        .put("NumNodes", job.nodes)
        .put("NumCPUs", job.cpus)
        .put("NumTasks", job.ntasks);
    record
        .put("CPUs/Task", cpus_per_task(job.cpus, job.ntasks))
        .put("ReqB:S:C:T", "0:0:*:*")
        .end();
    record.line(
        "TRES",
        tres(job.cpus, job.mem_total_bytes, job.nodes, job.gpu_count),
    );
}

/// What it asks of its nodes.
fn request(record: &mut Record, job: &JobRow) {
    let mem = if job.mem.is_empty() {
        exact_size(job.mem_bytes)
    } else {
        job.mem.clone()
    };
    record.put("MinCPUsNode", cpus_per_task(job.cpus, job.ntasks));
    match job.mem_per.as_str() {
        "cpu" => record.put("MinMemoryCPU", mem),
        "gpu" => record.put("MemPerTres", format_args!("gres/gpu:{mem}")),
        _ => record.put("MinMemoryNode", mem),
    };
    record.put("MinTmpDiskNode", 0).end();
    record
        .put("Features", or_null(&job.constraint))
        .put("DelayBoot", "00:00:00")
        .end();
    let others = match job.later.contains_key("oversubscribe") {
        _ if job.exclusive => "NO",
        true => "YES",
        false => "OK",
    };
    record.put("OverSubscribe", others).put("Contiguous", 0);
    record
        .put("Licenses", or_null(&job.licences))
        .put("Network", "(null)")
        .end();
    if !job.gpus.is_empty() {
        let key = match job.gpus_per.as_deref() {
            Some("job") => "TresPerJob",
            Some("task") => "TresPerTask",
            _ => "TresPerNode",
        };
        record.line(key, format_args!("gres/gpu:{}", job.gpus));
    }
    let places = [
        ("Reservation", &job.reservation),
        ("Switches", &job.switches),
        ("PreferredFeatures", &job.prefer),
    ];
    for (key, value) in places
        .iter()
        .filter_map(|(key, value)| Some((key, value.as_ref()?)))
    {
        record.line(key, value);
    }
    if !job.tres_bind.is_empty() {
        record.line("TresBind", &job.tres_bind);
    }
    if job.nvlink {
        record.line("NVLink", "YES");
    }
}

/// The GPUs that it holds, and what happened to them.
fn gpus(record: &mut Record, job: &JobRow) {
    for held in &job.gpus_held {
        record.line("GPUs", held);
    }
    for event in &job.gpu_events {
        record.line("GPUEvent", event);
    }
    if !job.gpu_links.is_empty() {
        record.line("GPULinks", job.gpu_links.join(","));
    }
    if let Some(channel) = job.imex_channel {
        record.line("IMEXChannel", channel);
    }
}

/// Nodes of which it holds the same, with how much. Which CPUs these are its nodes decide.
fn held(record: &mut Record, job: &JobRow) {
    let mut all: BTreeMap<&str, usize> = BTreeMap::new();
    for (kind, places) in job.held.iter().flat_map(|held| gpus_on(job, &held.node)) {
        *all.entry(kind).or_default() += count(places);
    }
    let all: Vec<String> = all
        .iter()
        .map(|(kind, count)| format!("gpu:{kind}:{count}"))
        .collect();
    record.line("JOB_GRES", or_null(&all.join(",")));
    let of_node = |held: &HeldRow| (held.mem_bytes >> 20, held.cpus, gres_on(job, &held.node));
    for alike in job.held.chunk_by(|one, next| of_node(one) == of_node(next)) {
        let (mem, _, gres) = of_node(&alike[0]);
        record.text.push_str("  ");
        record.put(
            "Nodes",
            hostlist::compress(alike.iter().map(|held| held.node.as_str())),
        );
        record
            .put("CPU_IDs", "N/A")
            .put("Mem", mem)
            .line("GRES", gres);
    }
}

fn files(record: &mut Record, job: &JobRow) {
    record.line("Command", or_null(&job.command));
    record.line("WorkDir", &job.work_dir);
    for text in JobText::carried() {
        let value = job.text(JobRowKey::of(text.key));
        if !value.is_empty() {
            record.line(text.word, value);
        }
    }
    if job.allocation {
        return; // srun and salloc write where they were called
    }
    record.line(
        "StdErr",
        if job.stderr.is_empty() {
            &job.stdout
        } else {
            &job.stderr
        },
    );
    record.line(
        "StdIn",
        if job.stdin.is_empty() {
            "/dev/null"
        } else {
            &job.stdin
        },
    );
    record.line("StdOut", &job.stdout);
}

fn ours(record: &mut Record, job: &JobRow, times: &TimeFormat) {
    if !job.reason_text.is_empty() {
        record.line("ReasonText", times.in_text(&job.reason_text));
    }
    if !job.pull.is_empty() {
        record.line("Image", &job.pull);
    } else if !job.image.is_empty() {
        record.line("Image", &job.image);
    }
    if !job.end_text.is_empty() {
        record.line("EndText", times.in_text(&job.end_text));
    }
    for hold in &job.holds {
        let why = if hold.reason.is_empty() {
            String::new()
        } else {
            format!(": {}", hold.reason)
        };
        record.line(
            "Hold",
            format_args!("{} since {}{why}", hold.owner, times.print(hold.since.0)),
        );
    }
    if let Some(position) = job.position {
        record.line("QueuePosition", position);
    }
    standing(record, job, times);
    if let Some(idle) = &job.idle {
        record.line("Idle", idle);
    }
    if job.idle_exempt {
        record.line("IdleExempt", "YES");
    }
    if !job.tags.is_empty() {
        record.line("Tags", job.tags.join(","));
    }
    if let Some(kinds) = &job.mail_type {
        record
            .put("MailUser", job.mail_user.as_deref().unwrap_or(&job.user))
            .put("MailType", kinds)
            .end();
    }
    for (option, value) in &job.later {
        record.line(
            "NotActedOn",
            format_args!(
                "--{option}{}{value}",
                if value.is_empty() { "" } else { "=" }
            ),
        );
    }
}

/// The class of its GPUs, guaranteed or borrowed, and its preempt mode.
fn standing(record: &mut Record, job: &JobRow, times: &TimeFormat) {
    if let Some(class) = &job.class {
        record.line("Class", class);
    }
    if let Some(borrow) = job.borrow {
        record.line("Borrow", if borrow { "YES" } else { "NO" });
    }
    if let Some(checkpoint) = &job.checkpoint {
        record.line("Checkpoint", checkpoint);
    }
    if let Some(mark) = &job.last_mark {
        let at = mark.at.map(|at| times.print(at.0)).unwrap_or_default();
        let note = if mark.note.is_empty() {
            String::new()
        } else {
            format!(": {}", mark.note)
        };
        record.line("LastMark", format_args!("{} at {at}{note}", mark.number));
    }
    if let Some(at) = job.preempted_time {
        record.put("PreemptTime", times.print(at.0));
        if let Some(count) = job.preemptions {
            record.put("Preemptions", count);
        }
        record.end();
    }
    if let Some(other) = &job.preempted_for {
        record.line("GivesWayTo", other);
    }
}

fn or_null(text: &str) -> &str {
    if text.is_empty() { "(null)" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_say_what_is_held_of_each_node_with_nodes_alike_on_one_line() {
        let held = |node: &str, cpus| HeldRow {
            node: node.to_owned(),
            cpus,
            mem_bytes: 300 << 20,
        };
        let job = JobRow {
            held: vec![held("n1", 4), held("n2", 4), held("n3", 4)],
            gpus_held: ["n1:h100:1-2", "n2:h100:1-2", "n3:a100:3g.40gb:0.4,1.0"]
                .map(str::to_owned)
                .into(),
            ..JobRow::default()
        };
        let times = TimeFormat::from_env();
        let told = with_details(&job, &times, Some(ExitCode::exited(3)));
        assert!(told.contains(
            "\n   JOB_GRES=gpu:a100:3g.40gb:2,gpu:h100:4\n     Nodes=n[1-2] CPU_IDs=N/A Mem=300 GRES=gpu:h100:2(IDX:1-2)\n     \
             Nodes=n3 CPU_IDs=N/A Mem=300 GRES=gpu:a100:3g.40gb:2(IDX:0.4,1.0)\n   MinCPUsNode="
        ), "{told}");
        assert!(
            told.contains("ExitCode=0:0\n   DerivedExitCode=3:0\n"),
            "{told}"
        );
        assert!(
            !text(&job, &times).contains("JOB_GRES"),
            "only where details are asked for"
        );
    }
}
