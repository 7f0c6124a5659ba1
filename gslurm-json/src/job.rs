//! A job of the queue: `squeue --json`, `scontrol show job --json`.

use super::datum::{
    Datum, Field, blank, empty, list, maybe, no, none, number, said, text, unset, whole, zero,
};
use super::document::{exit_code, minutes, number_value, seconds, time};
use super::run::RunCell;
use crate::value::job::gres_on;
use crate::value::job::{end_by_limit, group_of, restarts, tres};
use gmodel::duration::TimeLimit;
use gmodel::{JobPart, JobState, hostlist};
use gwire::api::{HeldRow, JobRow, JobRowKey, RunRow};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// A job with what several of its fields are made of.
pub struct JobCell {
    row: JobRow,
    cluster: Arc<str>,
    group: Arc<(u32, String)>,
    /// Its nodes.
    names: Vec<String>,
    resources: String,
}

/// The groups of users, each looked up once. The name service may be slow: not for a thread that serves sockets.
pub struct Groups {
    cluster: Arc<str>,
    known: HashMap<String, Arc<(u32, String)>>,
}

impl Groups {
    pub fn new(cluster: &str) -> Self {
        Self {
            cluster: cluster.into(),
            known: HashMap::new(),
        }
    }

    /// Looks up the group of a user.
    pub fn learn(&mut self, user: &str) -> Arc<(u32, String)> {
        if let Some(group) = self.known.get(user) {
            return group.clone();
        }
        let gid = group_of(user, false).parse().unwrap_or(0);
        let group = Arc::new((gid, group_of(user, true)));
        self.known.insert(user.to_owned(), group.clone());
        group
    }

    /// A job with what its record needs besides.
    pub fn cell(&mut self, row: JobRow) -> JobCell {
        let group = self.learn(&row.user);
        JobCell::of(row, self.cluster.clone(), group)
    }

    /// The same of a job of accounting.
    pub fn run(&mut self, row: RunRow) -> RunCell {
        let group = self.learn(&row.user);
        RunCell::of(row, self.cluster.clone(), group)
    }
}

impl JobCell {
    fn of(row: JobRow, cluster: Arc<str>, group: Arc<(u32, String)>) -> Self {
        Self {
            names: hostlist::expand(&row.nodelist, hostlist::MAX_HOSTS).unwrap_or_default(),
            resources: tres(row.cpus, row.mem_total_bytes, row.nodes, row.gpu_count),
            row,
            cluster,
            group,
        }
    }

    fn part(&self) -> Option<(u64, u32)> {
        JobPart::parse(&self.row.shown_id).map(|(leader, offset)| (leader.0, offset))
    }

    /// `gres/gpu:h100:4`, where its GPUs are asked for so.
    fn gpus_of(&self, per: &str) -> Datum<'_> {
        if self.row.gpus_per.as_deref() == Some(per) && !self.row.gpus.is_empty() {
            return said(format!("gres/gpu:{}", self.row.gpus));
        }
        text("")
    }

    fn memory_of(&self, per: &str) -> Datum<'_> {
        Datum::Number((self.row.mem_per == per).then_some(self.row.mem_bytes >> 20))
    }

    fn errors_to(&self) -> Datum<'_> {
        text(match self.row.stderr.is_empty() {
            true => &self.row.stdout,
            false => &self.row.stderr,
        })
    }

    fn throttle(&self) -> u64 {
        let tasks = self.row.array_tasks.as_deref();
        let cap = tasks.and_then(|tasks| tasks.split_once('%')?.1.parse().ok());
        cap.unwrap_or(0)
    }

    fn switches(&self) -> (u32, u64) {
        let Some(asked) = self.row.switches.as_deref() else {
            return (0, 0);
        };
        let (count, wait) = asked.split_once('@').unwrap_or((asked, ""));
        let wait = TimeLimit::parse(wait).ok().and_then(TimeLimit::secs);
        (count.parse().unwrap_or(0), wait.unwrap_or(0))
    }
}

/// What it holds of each node; empty of a job that waits.
fn held(job: &JobCell) -> Datum<'_> {
    let row = &job.row;
    if row.held.is_empty() {
        return Datum::Json("{}");
    }
    let node = |(index, held): (usize, &HeldRow)| {
        let mib = held.mem_bytes >> 20;
        json!({"index": index, "name": held.node, "cpus": {"count": held.cpus, "used": held.cpus},
            "memory": {"used": mib, "allocated": mib}, "sockets": []})
    };
    let all: Vec<Value> = row.held.iter().enumerate().map(node).collect();
    let nodes = json!({"count": row.held.len(), "select_type": ["AVAILABLE"], "list": row.nodelist, "whole": row.exclusive, "allocation": all});
    Datum::Value(
        json!({"select_type": ["CPU", "MEMORY"], "nodes": nodes, "cpus": row.cpus, "threads_per_core": number_value(Some(1))}),
    )
}

/// What the fields are made of, to be asked for: an older controller need not know any other key.
pub const COLUMNS: &[JobRowKey] = &[
    JobRowKey::id,
    JobRowKey::shown_id,
    JobRowKey::array_id,
    JobRowKey::array_index,
    JobRowKey::array_tasks,
    JobRowKey::component_ids,
    JobRowKey::name,
    JobRowKey::user,
    JobRowKey::uid,
    JobRowKey::account,
    JobRowKey::partition,
    JobRowKey::qos,
    JobRowKey::state,
    JobRowKey::reason,
    JobRowKey::reason_text,
    JobRowKey::priority,
    JobRowKey::nice,
    JobRowKey::nodes,
    JobRowKey::nodelist,
    JobRowKey::cpus,
    JobRowKey::ntasks,
    JobRowKey::mem_bytes,
    JobRowKey::mem_total_bytes,
    JobRowKey::mem_per,
    JobRowKey::gpus,
    JobRowKey::gpu_count,
    JobRowKey::gpus_per,
    JobRowKey::gpus_held,
    JobRowKey::held,
    JobRowKey::image,
    JobRowKey::time_limit_secs,
    JobRowKey::submit_time,
    JobRowKey::eligible_time,
    JobRowKey::start_time,
    JobRowKey::end_time,
    JobRowKey::exit_code,
    JobRowKey::end_text,
    JobRowKey::attempts,
    JobRowKey::work_dir,
    JobRowKey::command,
    JobRowKey::stdout,
    JobRowKey::stderr,
    JobRowKey::stdin,
    JobRowKey::comment,
    JobRowKey::constraint,
    JobRowKey::req_nodelist,
    JobRowKey::exclude,
    JobRowKey::exclusive,
    JobRowKey::requeue,
    JobRowKey::dependency,
    JobRowKey::licences,
    JobRowKey::reservation,
    JobRowKey::prefer,
    JobRowKey::switches,
    JobRowKey::time_min_secs,
    JobRowKey::deadline,
    JobRowKey::preempted_time,
    JobRowKey::submit_host,
    JobRowKey::holds,
    JobRowKey::mail_type,
    JobRowKey::mail_user,
    JobRowKey::allocation,
];

pub const JOB: &[Field<JobCell>] = &[
    ("account", |job| text(&job.row.account)),
    none("accrue_time"),
    blank("admin_comment"),
    ("allocating_node", |job| text(&job.row.submit_host)),
    ("array_job_id", |job| number(job.row.array_id.unwrap_or(0))),
    ("array_task_id", |job| {
        Datum::Number(job.row.array_index.map(u64::from))
    }),
    ("array_max_tasks", |job| number(job.throttle())),
    ("array_task_string", |job| {
        let tasks = job.row.array_tasks.as_deref().unwrap_or_default();
        text(tasks.split('%').next().unwrap_or_default())
    }),
    zero("association_id"),
    blank("batch_features"),
    ("batch_flag", |job| Datum::Flag(!job.row.allocation)),
    ("batch_host", |job| {
        text(job.names.first().map_or("", String::as_str))
    }),
    empty("flags"),
    blank("burst_buffer"),
    blank("burst_buffer_state"),
    ("cluster", |job| text(&job.cluster)),
    blank("cluster_features"),
    ("command", |job| text(&job.row.command)),
    ("comment", |job| text(&job.row.comment)),
    ("container", |job| text(&job.row.image)),
    blank("container_id"),
    no("contiguous"),
    zero("core_spec"),
    ("thread_spec", |_| whole(32766)),
    unset("cores_per_socket"),
    ("billable_tres", |job| {
        let waits = job.row.state == JobState::Pending;
        Datum::Fraction((!waits).then_some(job.row.cpus.into()))
    }),
    ("cpus_per_task", |job| {
        number((job.row.cpus / job.row.ntasks.max(1)).max(1))
    }),
    unset("cpu_frequency_minimum"),
    unset("cpu_frequency_maximum"),
    unset("cpu_frequency_governor"),
    blank("cpus_per_tres"),
    blank("cron"),
    ("deadline", |job| time(job.row.deadline)),
    none("delay_boot"),
    ("dependency", |job| text(&job.row.dependency)),
    ("derived_exit_code", |job| {
        exit_code(gmodel::ExitCode::default(), job.row.state.is_final())
    }),
    ("eligible_time", |job| time(job.row.eligible_time)),
    ("end_time", |job| {
        let by_limit = || end_by_limit(job.row.start_time, job.row.time_limit_secs);
        time(job.row.end_time.or_else(by_limit))
    }),
    ("excluded_nodes", |job| text(&job.row.exclude)),
    ("exit_code", |job| {
        exit_code(job.row.exit_code, job.row.state.is_final())
    }),
    blank("extra"),
    blank("failed_node"),
    ("features", |job| text(&job.row.constraint)),
    blank("federation_origin"),
    blank("federation_siblings_active"),
    blank("federation_siblings_viable"),
    ("gres_detail", |job| {
        list(job.names.iter().map(|name| gres_on(&job.row, name)))
    }),
    ("group_id", |job| whole(job.group.0)),
    ("group_name", |job| text(&job.group.1)),
    ("het_job_id", |job| {
        number(job.part().map_or(0, |(leader, _)| leader))
    }),
    ("het_job_id_set", |job| maybe(&job.row.component_ids)),
    ("het_job_offset", |job| {
        number(job.part().map_or(0, |(_, offset)| offset))
    }),
    ("job_id", |job| whole(job.row.id)),
    ("job_resources", held),
    empty("job_size_str"),
    ("job_state", |job| list([job.row.state.long()])),
    none("last_sched_evaluation"),
    ("licenses", |job| text(&job.row.licences)),
    ("licenses_allocated", |job| {
        let waits = job.row.state == JobState::Pending;
        text(if waits { "" } else { &job.row.licences })
    }),
    ("mail_type", |job| {
        let kinds = job.row.mail_type.as_deref().unwrap_or_default();
        list(kinds.split(',').filter(|kind| !kind.is_empty()))
    }),
    ("mail_user", |job| maybe(&job.row.mail_user)),
    none("max_cpus"),
    none("max_nodes"),
    blank("mcs_label"),
    blank("memory_per_tres"),
    ("name", |job| text(&job.row.name)),
    blank("network"),
    ("nodes", |job| text(&job.row.nodelist)),
    ("nice", |job| whole(job.row.nice)),
    unset("tasks_per_core"),
    none("tasks_per_tres"),
    none("tasks_per_node"),
    unset("tasks_per_socket"),
    none("tasks_per_board"),
    ("cpus", |job| number(job.row.cpus)),
    ("node_count", |job| number(job.row.nodes)),
    ("tasks", |job| number(job.row.ntasks)),
    ("partition", |job| text(&job.row.partition)),
    ("prefer", |job| maybe(&job.row.prefer)),
    ("memory_per_cpu", |job| job.memory_of("cpu")),
    ("memory_per_node", |job| job.memory_of("node")),
    ("minimum_cpus_per_node", |_| number(1_u32)),
    none("minimum_tmp_disk_per_node"),
    ("preempt_time", |job| time(job.row.preempted_time)),
    none("preemptable_time"),
    none("pre_sus_time"),
    ("hold", |job| Datum::Flag(!job.row.holds.is_empty())),
    ("priority", |job| number(job.row.priority)),
    empty("priority_by_partition"),
    ("profile", |_| Datum::Json(r#"["NOT_SET"]"#)),
    ("qos", |job| text(&job.row.qos)),
    no("reboot"),
    ("required_nodes", |job| text(&job.row.req_nodelist)),
    ("required_switches", |job| whole(job.switches().0)),
    ("requeue", |job| Datum::Flag(job.row.requeue)),
    none("resize_time"),
    ("restart_cnt", |job| {
        whole(restarts(job.row.attempts, job.row.state))
    }),
    ("resv_name", |job| maybe(&job.row.reservation)),
    blank("scheduled_nodes"),
    zero("segment_size"),
    blank("selinux_context"),
    ("shared", |job| {
        Datum::Json(if job.row.exclusive {
            r#"["none"]"#
        } else {
            "[]"
        })
    }),
    zero("sockets_per_board"),
    unset("sockets_per_node"),
    ("start_time", |job| time(job.row.start_time)),
    ("state_description", |job| text(&job.row.reason_text)),
    ("state_reason", |job| said(job.row.reason.to_string())),
    ("standard_input", |job| text(&job.row.stdin)),
    ("standard_output", |job| text(&job.row.stdout)),
    ("standard_error", JobCell::errors_to),
    ("stdin_expanded", |job| text(&job.row.stdin)),
    ("stdout_expanded", |job| text(&job.row.stdout)),
    ("stderr_expanded", JobCell::errors_to),
    ("submit_time", |job| {
        Datum::Number(Some(seconds(job.row.submit_time).unwrap_or(0)))
    }),
    none("suspend_time"),
    ("system_comment", |job| text(&job.row.end_text)),
    ("time_limit", |job| minutes(job.row.time_limit_secs)),
    ("time_minimum", |job| {
        number(job.row.time_min_secs.unwrap_or(0) / 60)
    }),
    unset("threads_per_core"),
    blank("tres_bind"),
    blank("tres_freq"),
    ("tres_per_job", |job| job.gpus_of("job")),
    ("tres_per_node", |job| job.gpus_of("node")),
    blank("tres_per_socket"),
    ("tres_per_task", |job| job.gpus_of("task")),
    ("tres_req_str", |job| text(&job.resources)),
    ("tres_alloc_str", |job| {
        let waits = job.row.state == JobState::Pending;
        text(if waits { "" } else { &job.resources })
    }),
    ("user_id", |job| whole(job.row.uid)),
    ("user_name", |job| text(&job.row.user)),
    ("maximum_switch_wait_time", |job| whole(job.switches().1)),
    blank("wckey"),
    ("current_working_directory", |job| text(&job.row.work_dir)),
];

#[cfg(test)]
mod tests {
    use super::super::datum::record;
    use super::*;
    use gmodel::{Instant, ReasonCode, Timestamp};

    #[test]
    fn a_bare_row_of_the_columns_makes_the_same_record_as_the_whole_row() {
        let now = "2026-11-24T00:29:48Z";
        let mut whole = json!({"tags": ["x"], "held": [{"node": "n1", "cpus": 4, "mem_bytes": 1}], "later": {"a": "b"},
            "gpus_held": ["n1:h100:0-1"], "gpu_uuids": ["n1:x"], "gpu_events": ["e"], "gpu_links": ["n1:NV18"],
            "holds": [{"owner": "o", "reason": "r", "since": now}], "last_mark": {"number": 2}, "mem_per": "cpu",
            "state": "FAILED", "reason": "Priority", "exit_code": {"code": 3, "signal": 0}, "gpu_count": 2.0,
            "shown_id": "17+1", "nodelist": "n1", "gpus": "h100:2", "gpus_per": "node", "array_tasks": "7-9%2",
            "switches": "1@00:30:00", "mail_type": "END"});
        for (count, key) in JobRowKey::ALL.iter().enumerate() {
            let kinds = [json!(true), json!(now), json!(count + 2), json!(key.name())];
            let fits = |value: &&Value| {
                serde_json::from_value::<JobRow>(json!({key.name(): value})).is_ok()
            };
            if let Some(value) = kinds.iter().find(fits) {
                whole
                    .as_object_mut()
                    .unwrap()
                    .entry(key.name())
                    .or_insert(value.clone());
            }
        }
        let keyed: JobRow = serde_json::from_value(whole).unwrap();
        let put = |key: &JobRowKey| {
            let mut out = Vec::new();
            assert!(keyed.put(*key, &mut out).unwrap(), "{key:?} has no value");
            String::from_utf8(out).unwrap()
        };
        JobRowKey::ALL.iter().map(put).for_each(drop);
        let bare = format!(
            "[{}]",
            COLUMNS.iter().map(put).collect::<Vec<_>>().join(",")
        );
        let bare: JobRow = gwire::row::read(bare.as_bytes(), COLUMNS).unwrap();
        let mut groups = Groups::new("c");
        assert_eq!(
            record(JOB, &groups.cell(bare)),
            record(JOB, &groups.cell(keyed))
        );
    }

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
        let group = Arc::new((0, "root".to_owned()));
        let job = record(JOB, &JobCell::of(row, "c".into(), group));
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
            json!({"index": 1, "name": "n2", "cpus": {"count": 4, "used": 4}, "memory": {"used": 4096, "allocated": 4096}, "sockets": []})
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
}
