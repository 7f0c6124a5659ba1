//! `squeue --json`, `sacct --json` and `scontrol show job --json`, as programs for Slurm read them.
//!
//! Owns the keys and how a missing value is written; a key for which gpupool has no value is left out. Source: what Slurm's
//! data_parser v0.0.43 (25.05) writes.

use gcli::answer::list;
use gcli::table::stdout;
use gcli::{Outcome, slurm_name};
use gmodel::{ExitCode, Instant, JobPart, JobState, hostlist};
use gq::job_record::gres_on;
use gq::job_value::{end_by_limit, group_of, restarts, tres};
use gwire::api::{ClusterInfo, HeldRow, JobRow, RunQuery, RunRow, StepRow};
use gwire::client::{Client, path_with_query};
use serde_json::{Map, Value, json};
use std::io::Write;

/// `squeue --json`.
pub(crate) fn print_jobs(client: &mut Client, rows: &[JobRow]) -> Outcome {
    let cluster = client.get::<ClusterInfo>("/v1/cluster")?.name;
    print(&cluster, rows.iter().map(|row| job(row, &cluster)))
}

/// `sacct --json`: steps are part of their jobs.
pub(crate) fn runs(client: &mut Client, query: &RunQuery) -> Outcome {
    let cluster = client.get::<ClusterInfo>("/v1/cluster")?.name;
    let query = RunQuery {
        columns: String::new(),
        bare: false,
        steps: true,
        detail: true,
        ..query.clone()
    };
    let rows: Vec<RunRow> = list(client, &path_with_query("/v1/runs", &query))?;
    print(&cluster, rows.iter().map(|row| run(row, &cluster)))
}

/// One object, a job at a time.
fn print(cluster: &str, jobs: impl Iterator<Item = Value>) -> Outcome {
    let mut out = stdout()?;
    let release = slurm_name::VERSION.split(' ').nth(1).unwrap_or_default();
    let mut numbers = release.split('.');
    let mut number = || numbers.next().unwrap_or_default();
    let version = json!({"major": number(), "minor": number(), "micro": number()});
    let meta = json!({
        "plugin": {"type": "gpupool", "name": concat!("gpupool ", env!("CARGO_PKG_VERSION")), "data_parser": "data_parser/v0.0.43"},
        "slurm": {"version": version, "release": release, "cluster": cluster}
    });
    write!(out, "{{\"meta\":{meta},\"jobs\":[")?;
    for (at, job) in jobs.enumerate() {
        write!(out, "{}{job}", if at == 0 { "" } else { "," })?;
    }
    out.write_all(b"],\"warnings\":[],\"errors\":[]}\n")?;
    out.flush()?;
    Ok(0)
}

fn number(value: Option<u64>) -> Value {
    json!({"set": value.is_some(), "infinite": false, "number": value.unwrap_or(0)})
}

/// Minutes of a limit, begun ones too.
fn minutes(secs: Option<u32>) -> Value {
    match secs {
        None | Some(u32::MAX) => json!({"set": false, "infinite": true, "number": 0}),
        Some(secs) => number(Some(u64::from(secs).div_ceil(60))),
    }
}

fn seconds(at: Option<Instant>) -> Option<u64> {
    at.map(|at| at.0.0.div_euclid(1000))
        .and_then(|secs| u64::try_from(secs).ok())
}

fn time(at: Option<Instant>) -> Value {
    number(seconds(at).or(Some(0)))
}

fn exit_code(exit: ExitCode, is_over: bool) -> Value {
    let status = match (is_over, exit.signal, exit.code) {
        (false, ..) => "PENDING",
        (_, 0, 0) => "SUCCESS",
        (_, 0, _) => "ERROR",
        _ => "SIGNALED",
    };
    let signal = (exit.signal > 0).then(|| u64::from(exit.signal));
    let name = signal.map_or(String::new(), |_| gmodel::signal::signal_word(exit.signal));
    json!({"status": [status], "return_code": number(is_over.then(|| u64::from(exit.code))), "signal": {"id": number(signal), "name": name}})
}

/// The keys of some objects in one.
fn merged(parts: impl IntoIterator<Item = Value>) -> Value {
    let maps = parts.into_iter().filter_map(|part| {
        if let Value::Object(map) = part {
            Some(map)
        } else {
            None
        }
    });
    Value::Object(maps.flatten().collect::<Map<String, Value>>())
}

fn job(row: &JobRow, cluster: &str) -> Value {
    let (waits, is_over) = (row.state == JobState::Pending, row.state.is_final());
    let limit_end = || end_by_limit(row.start_time, row.time_limit_secs);
    let mib = |bytes: u64| number(Some(bytes >> 20));
    let names = hostlist::expand(&row.nodelist, hostlist::MAX_HOSTS).unwrap_or_default();
    let throttle = row
        .array_tasks
        .as_deref()
        .and_then(|tasks| tasks.split_once('%')?.1.parse().ok());
    let resources = tres(row.cpus, row.mem_total_bytes, row.nodes, row.gpu_count);
    let of_gpus = |per: &str| {
        if row.gpus_per.as_deref() == Some(per) && !row.gpus.is_empty() {
            format!("gres/gpu:{}", row.gpus)
        } else {
            String::new()
        }
    };
    let gid = group_of(&row.user, false).parse::<u32>().unwrap_or(0);
    let part = JobPart::parse(&row.shown_id);
    let identity = json!({
        "job_id": row.id, "name": row.name, "user_id": row.uid, "user_name": row.user, "group_id": gid, "group_name": group_of(&row.user, true),
        "account": row.account, "partition": row.partition, "qos": row.qos, "cluster": cluster, "comment": row.comment, "allocating_node": row.submit_host,
        "array_job_id": number(Some(row.array_id.unwrap_or(0))), "array_task_id": number(row.array_index.map(u64::from)),
        "array_task_string": row.array_tasks.as_deref().unwrap_or_default().split('%').next(), "array_max_tasks": number(Some(throttle.unwrap_or(0))),
        "het_job_id": number(Some(part.map_or(0, |(leader, _)| leader.0))), "het_job_id_set": row.component_ids.as_deref().unwrap_or_default(),
        "het_job_offset": number(Some(part.map_or(0, |(_, offset)| u64::from(offset)))), "batch_flag": true
    });
    let state = json!({
        "job_state": [row.state.long()], "state_reason": row.reason, "state_description": row.reason_text, "priority": number(Some(row.priority)),
        "hold": !row.holds.is_empty(), "nice": row.nice, "dependency": row.dependency, "requeue": row.requeue, "restart_cnt": restarts(row.attempts, row.state),
        "exit_code": exit_code(row.exit_code, is_over), "time_limit": minutes(row.time_limit_secs), "time_minimum": number(Some(u64::from(row.time_min_secs.unwrap_or(0)) / 60)),
        "submit_time": time(row.submit_time), "eligible_time": time(row.eligible_time), "start_time": time(row.start_time),
        "end_time": time(row.end_time.or_else(limit_end)), "deadline": time(row.deadline), "preempt_time": time(row.preempted_time)
    });
    let request = json!({
        "nodes": row.nodelist, "node_count": number(Some(row.nodes.into())), "cpus": number(Some(row.cpus.into())), "tasks": number(Some(row.ntasks.into())),
        "cpus_per_task": number(Some(u64::from(row.cpus / row.ntasks.max(1)).max(1))), "memory_per_node": if row.mem_per == "node" { mib(row.mem_bytes) } else { number(None) },
        "memory_per_cpu": if row.mem_per == "cpu" { mib(row.mem_bytes) } else { number(None) }, "tres_per_job": of_gpus("job"), "tres_per_node": of_gpus("node"),
        "tres_per_task": of_gpus("task"), "tres_req_str": resources, "tres_alloc_str": if waits { "" } else { &resources }, "features": row.constraint,
        "prefer": row.prefer.as_deref().unwrap_or_default(), "required_nodes": row.req_nodelist, "excluded_nodes": row.exclude, "licenses": row.licences,
        "resv_name": row.reservation.as_deref().unwrap_or_default(), "shared": if row.exclusive { json!(["none"]) } else { json!([]) },
        "batch_host": names.first().map_or("", String::as_str), "gres_detail": names.iter().map(|name| gres_on(row, name)).collect::<Vec<_>>(),
        "job_resources": held(row)
    });
    let files = json!({
        "command": row.command, "current_working_directory": row.work_dir, "standard_output": row.stdout, "standard_input": row.stdin,
        "standard_error": if row.stderr.is_empty() { &row.stdout } else { &row.stderr }, "stdout_expanded": row.stdout, "stdin_expanded": row.stdin,
        "stderr_expanded": if row.stderr.is_empty() { &row.stdout } else { &row.stderr }, "mail_user": row.mail_user.as_deref().unwrap_or_default()
    });
    merged([identity, state, request, files])
}

/// What it holds of each node; empty of a job that waits.
fn held(row: &JobRow) -> Value {
    if row.held.is_empty() {
        return json!({});
    }
    let node = |(index, held): (usize, &HeldRow)| {
        let mib = held.mem_bytes >> 20;
        json!({"index": index, "name": held.node, "cpus": {"count": held.cpus, "used": held.cpus}, "memory": {"used": mib, "allocated": mib}})
    };
    let all: Vec<Value> = row.held.iter().enumerate().map(node).collect();
    json!({"cpus": row.cpus, "nodes": {"count": row.held.len(), "list": row.nodelist, "whole": row.exclusive, "allocation": all}})
}

fn run(row: &RunRow, cluster: &str) -> Value {
    let detail = row.detail.clone().unwrap_or_default();
    let (waits, is_over) = (row.state == JobState::Pending, row.state.is_final());
    let limit = minutes(row.time_limit_secs);
    let held = if waits {
        json!([])
    } else {
        resources(row.cpus, row.mem_bytes, row.nodes, row.gpu_count)
    };
    let identity = json!({
        "job_id": row.id, "name": row.name, "user": row.user, "group": group_of(&row.user, true), "account": row.account, "partition": row.partition,
        "qos": row.qos, "cluster": cluster, "working_directory": row.work_dir, "constraints": detail.constraint,
        "comment": {"job": row.comment, "administrator": "", "system": row.end_text}, "reservation": {"name": detail.reservation},
        "array": {"job_id": row.array_id.unwrap_or(0), "task_id": number(row.array_index.map(u64::from)), "task": row.array_tasks.as_deref().unwrap_or_default()},
        "het": {"job_id": 0, "job_offset": number(None)}
    });
    let end = json!({
        "state": {"current": [row.state.long()], "reason": row.end_text}, "exit_code": exit_code(row.exit_code, is_over),
        "derived_exit_code": exit_code(detail.derived_exit_code, is_over), "kill_request_user": row.cancelled_by.as_deref().unwrap_or_default(),
        "restart_cnt": restarts(row.attempt, row.state), "priority": number(detail.priority.and_then(|priority| u64::try_from(priority).ok())),
        "time": merged([times(row.start_time, row.end_time, row.elapsed_secs, row.cpu_time_secs), json!({"submission": seconds(row.submit_time).unwrap_or(0),
            "eligible": seconds(detail.eligible_time).unwrap_or(0), "suspended": row.suspended_secs, "limit": limit})])
    });
    let request = json!({
        "nodes": if row.nodelist.is_empty() { "None assigned" } else { &row.nodelist }, "allocation_nodes": if waits { 0 } else { row.nodes },
        "required": {"CPUs": detail.req_cpus, "memory_per_node": number(Some((detail.req_mem_bytes / u64::from(detail.req_nodes.max(1))) >> 20)), "memory_per_cpu": number(None)},
        "tres": {"allocated": held, "requested": resources(detail.req_cpus, detail.req_mem_bytes, detail.req_nodes, detail.req_gpus)},
        "steps": row.steps.iter().map(step).collect::<Vec<_>>()
    });
    merged([identity, end, request])
}

fn step(row: &StepRow) -> Value {
    let is_over = row.end_time.is_some();
    let peak = row.peak_memory_bytes.unwrap_or(0);
    json!({
        "step": {"id": row.shown_id, "name": row.name}, "state": [row.state.long()], "exit_code": exit_code(row.exit_code, is_over),
        "nodes": {"count": row.nodes, "range": row.nodelist}, "tasks": {"count": row.ntasks},
        "time": times(row.start_time, row.end_time, row.elapsed_secs, row.cpu_time_secs.unwrap_or(0.0)),
        "tres": {"requested": {"max": [{"type": "mem", "name": "", "id": 2, "count": peak}], "total": [{"type": "mem", "name": "", "id": 2, "count": peak}]}}
    })
}

fn times(start: Option<Instant>, end: Option<Instant>, elapsed_secs: i64, cpu_secs: f64) -> Value {
    let micros = (cpu_secs.max(0.0) * 1e6) as u64;
    let total = json!({"seconds": micros / 1_000_000, "microseconds": micros % 1_000_000});
    json!({"start": seconds(start).unwrap_or(0), "end": seconds(end).unwrap_or(0), "elapsed": elapsed_secs.max(0), "total": total})
}

/// As Slurm's accounting numbers them.
fn resources(cpus: u32, mem_bytes: u64, nodes: u32, gpus: f64) -> Value {
    let one = |kind: &str, name: &str, id: u32, count: f64| json!({"type": kind, "name": name, "id": id, "count": if count.fract() == 0.0 { json!(count as u64) } else { json!(count) }});
    let mut all = vec![
        one("cpu", "", 1, cpus.into()),
        one("mem", "", 2, (mem_bytes >> 20) as f64),
        one("node", "", 4, nodes.into()),
        one("billing", "", 5, cpus.into()),
    ];
    all.extend((gpus > 0.0).then(|| one("gres", "gpu", 1001, gpus)));
    Value::Array(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::{ReasonCode, Timestamp};

    #[test]
    fn a_running_job_has_slurms_keys() {
        let row = JobRow {
            id: 17,
            name: "train-0".into(),
            user: "root".into(),
            state: JobState::Running,
            reason: ReasonCode::None,
            nodelist: "n[1-2]".into(),
            nodes: 2,
            cpus: 8,
            ntasks: 2,
            mem_per: "node".into(),
            mem_bytes: 4 << 30,
            mem_total_bytes: 8 << 30,
            gpus: "h100:2".into(),
            gpus_per: Some("node".into()),
            gpu_count: 4.0,
            gpus_held: vec!["n1:h100:0-1".into(), "n2:h100:2-3".into()],
            held: ["n1", "n2"]
                .map(|node| HeldRow {
                    node: node.into(),
                    cpus: 4,
                    mem_bytes: 4 << 30,
                })
                .into(),
            time_limit_secs: Some(90),
            start_time: Some(Instant(Timestamp::from_secs(100))),
            command: "/home/ada/x.sh".into(),
            work_dir: "/home/ada".into(),
            stdout: "/home/ada/o".into(),
            attempts: 1,
            ..JobRow::default()
        };
        let job = job(&row, "c");
        assert_eq!(
            (&job["job_id"], &job["job_state"][0], &job["command"]),
            (&json!(17), &json!("RUNNING"), &json!("/home/ada/x.sh"))
        );
        assert_eq!(
            job["start_time"],
            json!({"set": true, "infinite": false, "number": 100})
        );
        assert_eq!(
            (&job["time_limit"]["number"], &job["end_time"]["number"]),
            (&json!(2), &json!(190))
        );
        assert_eq!(
            job["job_resources"]["nodes"]["allocation"][1],
            json!({"index": 1, "name": "n2", "cpus": {"count": 4, "used": 4}, "memory": {"used": 4096, "allocated": 4096}})
        );
        assert_eq!(
            job["gres_detail"],
            json!(["gpu:h100:2(IDX:0-1)", "gpu:h100:2(IDX:2-3)"])
        );
        assert_eq!(
            (&job["tres_per_node"], &job["tres_alloc_str"]),
            (
                &json!("gres/gpu:h100:2"),
                &json!("cpu=8,mem=8G,node=2,billing=8,gres/gpu=4")
            )
        );
        assert_eq!(
            (
                &job["batch_host"],
                &job["standard_error"],
                &job["exit_code"]["status"][0]
            ),
            (&json!("n1"), &json!("/home/ada/o"), &json!("PENDING"))
        );
    }

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
        let run = run(&row, "c");
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
