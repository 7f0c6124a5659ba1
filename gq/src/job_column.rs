//! The columns of the queue: squeue's letters and names, the keys each needs, and what it prints.
//!
//! One table says all of it; `gq -o`, `-O`, `-S` and the default listing read it. Source: squeue(1).

use crate::queue_row::{QueueRow, start};
use gcli::local_time::{self, TimeFormat};
use gmodel::duration::squeue_time;
use gmodel::job_key::JobText;
use gmodel::{Instant, JobId, JobPart, JobState, ReasonCode, Timestamp, hostlist};
use gslurm_json::value::job::{cpus_per_task, end_by_limit, group_of, restarts, time_limit, tres};
use gwire::api::JobRowKey;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::LazyLock;

/// What a column of the queue shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobColumn {
    ShownId,
    Id,
    ArrayId,
    ArrayIndex,
    /// Of a component of a job of unlike parts: the first one's id.
    Leader,
    Component,
    ComponentIds,
    Uid,
    Group,
    Gid,
    State,
    ShortState,
    Reason,
    NodelistOrReason,
    BatchHost,
    Nodes,
    Cpus,
    CpusPerTask,
    Tasks,
    Mem,
    Gpus,
    GpusPerNode,
    GpusPerJob,
    GpusPerTask,
    Tres,
    Elapsed,
    TimeLimit,
    TimeLeft,
    SubmitTime,
    StartTime,
    EndTime,
    EligibleTime,
    /// Since when its age counts: as long as it is eligible.
    AccrueTime,
    PendingTime,
    Restarts,
    Requeue,
    TimeMin,
    Priority,
    PriorityShare,
    Nice,
    Oversubscribe,
    Stderr,
    ExitCode,
    Tags,
    /// Leaf switches at most, and how long it waits for that.
    Switches,
    SwitchWait,
    Position,
    Deadline,
    LastMark,
    /// A text as it stands in the row.
    Text(JobRowKey),
    /// The same, and `(null)` where it is empty.
    TextOrNull(JobRowKey),
    /// What no job here asks for, by squeue's name: its formats are used as they are.
    Never(&'static str),
}

/// A line of the table: column, letter of `-o` (blank for none), name of `-O`, title, keys of the API.
pub(crate) type JobColumnEntry = (JobColumn, char, &'static str, &'static str, &'static str);

/// All columns: those of the table, and texts of the request that it does not name.
pub(crate) static COLUMNS: LazyLock<Vec<JobColumnEntry>> = LazyLock::new(|| {
    let mut columns = TABLE.to_vec();
    for text in JobText::carried() {
        let column = JobColumn::TextOrNull(JobRowKey::of(text.key));
        if !columns.iter().any(|entry| entry.0 == column) {
            columns.push((
                column,
                ' ',
                text.key,
                text.title.unwrap_or_default(),
                text.key,
            ));
        }
    }
    columns
});

#[rustfmt::skip] // read as a table
const TABLE: &[JobColumnEntry] = &[
    (JobColumn::ShownId,          'i', "jobarrayid",   "JOBID",            "shown_id"),
    (JobColumn::Id,               'A', "jobid",        "JOBID",            ""),
    (JobColumn::ArrayId,          'F', "arrayjobid",   "ARRAY_JOB_ID",     "array_id"),
    (JobColumn::ArrayIndex,       'K', "arraytaskid",  "ARRAY_TASK_ID",    "array_index,array_tasks"),
    (JobColumn::Text(JobRowKey::name), 'j', "name",         "NAME",             "name"),
    (JobColumn::Text(JobRowKey::user), 'u', "username",     "USER",             "user"),
    (JobColumn::Uid,              'U', "userid",       "UID",              "uid"),
    (JobColumn::Text(JobRowKey::account), 'a', "account",      "ACCOUNT",          "account"),
    (JobColumn::Text(JobRowKey::partition), 'P', "partition",    "PARTITION",        "partition"),
    (JobColumn::Text(JobRowKey::qos), 'q', "qos",          "QOS",              "qos"),
    (JobColumn::State,            'T', "state",        "STATE",            "state"),
    (JobColumn::ShortState,       't', "statecompact", "ST",               "state"),
    (JobColumn::Reason,           'r', "reason",       "REASON",           "reason"),
    (JobColumn::NodelistOrReason, 'R', "reasonlist",   "NODELIST(REASON)", "nodelist,reason,state,pull"),
    (JobColumn::Text(JobRowKey::nodelist), 'N', "nodelist",     "NODELIST",         "nodelist"),
    (JobColumn::BatchHost,        'B', "batchhost",    "EXEC_HOST",        "nodelist"),
    (JobColumn::Text(JobRowKey::req_nodelist), 'n', "reqnodes",     "REQ_NODES",        "req_nodelist"),
    (JobColumn::Text(JobRowKey::exclude), 'x', "exc_nodes",    "EXC_NODES",        "exclude"),
    (JobColumn::Nodes,            'D', "numnodes",     "NODES",            "nodes"),
    (JobColumn::Cpus,             'C', "numcpus",      "CPUS",             "cpus"),
    (JobColumn::Tasks,            ' ', "numtasks",     "TASKS",            "ntasks"),
    (JobColumn::Mem,              'm', "minmemory",    "MIN_MEMORY",       "mem,mem_bytes"),
    (JobColumn::CpusPerTask,      'c', "mincpus",      "MIN_CPUS",         "cpus,ntasks"),
    (JobColumn::Gpus,             ' ', "gpus",         "GPUS",             "gpus,gpu_count"),
    (JobColumn::Group,            'g', "groupname",    "GROUP",            "user"),
    (JobColumn::Gid,              'G', "groupid",      "GROUP",            "user"),
    (JobColumn::GpusPerNode,      'b', "tres-per-node","TRES_PER_NODE",    "gpus,gpus_per,gpu_count,nodes"),
    (JobColumn::GpusPerJob,       ' ', "tres-per-job", "TRES_PER_JOB",     "gpus,gpus_per"),
    (JobColumn::GpusPerTask,      ' ', "tres-per-task","TRES_PER_TASK",    "gpus,gpus_per"),
    (JobColumn::Tres,             ' ', "tres-alloc",   "TRES_ALLOC",       "cpus,mem_total_bytes,nodes,gpu_count"),
    (JobColumn::Elapsed,          'M', "timeused",     "TIME",             "elapsed_secs"),
    (JobColumn::TimeLimit,        'l', "timelimit",    "TIME_LIMIT",       "time_limit_secs"),
    (JobColumn::TimeLeft,         'L', "timeleft",     "TIME_LEFT",        "time_limit_secs,elapsed_secs"),
    (JobColumn::SubmitTime,       'V', "submittime",   "SUBMIT_TIME",      "submit_time"),
    (JobColumn::StartTime,        'S', "starttime",    "START_TIME",       "start_time,eligible_time,submit_time,state"),
    (JobColumn::EndTime,          'e', "endtime",      "END_TIME",         "end_time,start_time,eligible_time,submit_time,state,time_limit_secs"),
    (JobColumn::EligibleTime,     ' ', "eligibletime", "ELIGIBLE_TIME",    "eligible_time"),
    (JobColumn::AccrueTime,       ' ', "accruetime",   "ACCRUE_TIME",      "eligible_time"),
    (JobColumn::Text(JobRowKey::submit_host), ' ', "allocnodes",   "ALLOC_NODES",      "submit_host"),
    (JobColumn::PendingTime,      ' ', "pendingtime",  "PENDING_TIME",     "submit_time,start_time"),
    (JobColumn::Restarts,         ' ', "restartcnt",   "RESTART_COUNT",    "attempts,state"),
    (JobColumn::Requeue,          ' ', "requeue",      "REQUEUE",          "requeue"),
    (JobColumn::TimeMin,          ' ', "mintime",      "MIN_TIME",         "time_min_secs"),
    (JobColumn::Priority,         'Q', "prioritylong", "PRIORITY",         "priority"),
    (JobColumn::PriorityShare,    'p', "priority",     "PRIORITY",         "priority"),
    (JobColumn::Nice,             'y', "nice",         "NICE",             "nice"),
    (JobColumn::Oversubscribe,    'h', "oversubscribe","OVER_SUBSCRIBE",   "exclusive"),
    (JobColumn::TextOrNull(JobRowKey::constraint), 'f', "feature",      "FEATURES",         "constraint"),
    (JobColumn::TextOrNull(JobRowKey::comment), 'k', "comment",      "COMMENT",          "comment"),
    (JobColumn::TextOrNull(JobRowKey::command), 'o', "command",      "COMMAND",          "command"),
    (JobColumn::Text(JobRowKey::work_dir), 'Z', "workdir",      "WORK_DIR",         "work_dir"),
    (JobColumn::Text(JobRowKey::stdout), ' ', "stdout",       "STDOUT",           "stdout"),
    (JobColumn::Stderr,           ' ', "stderr",       "STDERR",           "stderr"),
    (JobColumn::Text(JobRowKey::stdin), ' ', "stdin",        "STDIN",            "stdin"),
    (JobColumn::ExitCode,         ' ', "exit_code",    "EXIT_CODE",        "exit_code"),
    (JobColumn::Tags,             ' ', "tags",         "TAGS",             "tags"),
    (JobColumn::TextOrNull(JobRowKey::dependency), 'E', "dependency",   "DEPENDENCY",       "dependency"),
    (JobColumn::TextOrNull(JobRowKey::licences), 'W', "licenses",     "LICENSES",         "licences"),
    (JobColumn::TextOrNull(JobRowKey::reservation), 'v', "reservation",  "RESERVATION",      "reservation"),
    (JobColumn::TextOrNull(JobRowKey::prefer), ' ', "prefer",       "PREFER",           "prefer"),
    (JobColumn::Switches,         ' ', "reqswitch",    "REQ_SWITCH",       "switches"),
    (JobColumn::SwitchWait,       ' ', "wait4switch",  "WAIT4SWITCH",      "switches"),
    (JobColumn::Text(JobRowKey::class), ' ', "class",        "CLASS",            "class"),
    (JobColumn::Position,         ' ', "position",     "POSITION",         "position"),
    (JobColumn::Deadline,         ' ', "deadline",     "DEADLINE",         "deadline"),
    (JobColumn::TextOrNull(JobRowKey::checkpoint), ' ', "checkpoint",   "CHECKPOINT",       "checkpoint"),
    (JobColumn::LastMark,         ' ', "lastmark",     "LAST_MARK",        "last_mark"),
    (JobColumn::Never("mintmpdisk"),  'd', "mintmpdisk",   "MIN_TMP_DISK",     ""),
    (JobColumn::Never("sockets"),     'H', "sockets",      "SOCKETS_PER_NODE", ""),
    (JobColumn::Never("cores"),       'I', "cores",        "CORES_PER_SOCKET", ""),
    (JobColumn::Never("threads"),     'J', "threads",      "THREADS_PER_CORE", ""),
    (JobColumn::Never("contiguous"),  'O', "contiguous",   "CONTIGUOUS",       ""),
    (JobColumn::Never("wckey"),       'w', "wckey",        "WCKEY",            ""),
    (JobColumn::Never("corespec"),    'X', "corespec",     "CORE_SPEC",        ""),
    (JobColumn::Never("schednodes"),  'Y', "schednodes",   "SCHEDNODES",       ""),
    (JobColumn::Never("sct"),         'z', "sct",          "S:C:T",            ""),
    (JobColumn::Never("batchflag"),   ' ', "batchflag",    "BATCH_FLAG",       ""),
    (JobColumn::Never("burstbuffer"), ' ', "burstbuffer",  "BURST_BUFFER",     ""),
    (JobColumn::Never("container"),   ' ', "container",    "CONTAINER",        ""),
    (JobColumn::Never("cpufreq"),     ' ', "cpufreq",      "CPU_FREQ",         ""),
    (JobColumn::Never("mcslabel"),    ' ', "mcslabel",     "MCSLABEL",         ""),
    (JobColumn::Never("network"),     ' ', "network",      "NETWORK",          ""),
    (JobColumn::Never("ntperboard"),  ' ', "ntperboard",   "NTASKS_PER_BOARD", ""),
    (JobColumn::Never("ntpercore"),   ' ', "ntpercore",    "NTASKS_PER_CORE",  ""),
    (JobColumn::Never("ntpersocket"), ' ', "ntpersocket",  "NTASKS_PER_SOCKET", ""),
    (JobColumn::Never("profile"),     ' ', "profile",      "PROFILE",          ""),
    (JobColumn::Never("reboot"),      ' ', "reboot",       "REBOOT",           ""),
    (JobColumn::Never("selectjobinfo"), 's', "selectjobinfo", "SELECT_JOBINFO", ""),
    (JobColumn::Never("admin_comment"), ' ', "admin_comment", "ADMIN_COMMENT", ""),
    (JobColumn::Never("system_comment"), ' ', "system_comment", "SYSTEM_COMMENT", ""),
    (JobColumn::Never("boardspernode"), ' ', "boardspernode", "BOARDS_PER_NODE", ""),
    (JobColumn::Never("clusterfeature"), ' ', "clusterfeature", "CLUSTER_FEATURES", ""),
    (JobColumn::Never("cpus-per-tres"), ' ', "cpus-per-tres", "CPUS_PER_TRES",  ""),
    (JobColumn::Never("mem-per-tres"), ' ', "mem-per-tres", "MEM_PER_TRES",     ""),
    (JobColumn::Never("tres-bind"),   ' ', "tres-bind",    "TRES_BIND",        ""),
    (JobColumn::Never("tres-freq"),   ' ', "tres-freq",    "TRES_FREQ",        ""),
    (JobColumn::Never("tres-per-socket"), ' ', "tres-per-socket", "TRES_PER_SOCKET", ""),
    (JobColumn::Never("delayboot"),   ' ', "delayboot",    "DELAY_BOOT",       ""),
    (JobColumn::Leader,           ' ', "hetjobid",     "HET_JOB_ID",       "shown_id"),
    (JobColumn::Component,        ' ', "hetjoboffset", "HET_JOB_OFFSET",   "shown_id"),
    (JobColumn::ComponentIds,     ' ', "hetjobidset",  "HET_JOB_ID_SET",   "component_ids"),
    (JobColumn::Never("burstbufferstate"), ' ', "burstbufferstate", "BURST_BUFFER_STATE", ""),
    (JobColumn::Never("sperboard"),   ' ', "sperboard",    "SOCKETS_PER_BOARD", ""),
    (JobColumn::Never("originraw"),   ' ', "originraw",    "ORIGIN_RAW",       ""),
    (JobColumn::Never("siblingsactiveraw"), ' ', "siblingsactiveraw", "ACTIVE_SIBLINGS_RAW", ""),
    (JobColumn::Never("siblingsviable"), ' ', "siblingsviable", "VIABLE_SIBLINGS", ""),
    (JobColumn::Never("siblingsviableraw"), ' ', "siblingsviableraw", "VIALBLE_SIBLINGS_RAW", ""),
    (JobColumn::Never("lastschedeval"), ' ', "lastschedeval", "LAST_SCHED_EVAL", ""),
    (JobColumn::Never("origin"),      ' ', "origin",       "ORIGIN",           ""),
    (JobColumn::Never("siblingsactive"), ' ', "siblingsactive", "ACTIVE_SIBLINGS", ""),
    (JobColumn::Never("preempttime"), ' ', "preempttime",  "PREEMPT_TIME",     ""),
    (JobColumn::Never("allocsid"),    ' ', "allocsid",     "ALLOC_SID",        ""),
    (JobColumn::Never("resizetime"),  ' ', "resizetime",   "RESIZE_TIME",      ""),
];

/// Names of squeue for what no listing here tells, each with where it is to be had.
pub(crate) const INSTEAD: [(&str, &str); 8] = [
    ("associd", "accounts and users have names: account,username"),
    (
        "cluster",
        "there is one cluster: scontrol show config names it",
    ),
    (
        "derivedec",
        "it is accounting's: gacct -j JOB -o derivedexitcode",
    ),
    ("maxcpus", "a job has the CPUs that it asks for: numcpus"),
    (
        "maxnodes",
        "how many nodes it would take at most is in gq JOB: NumNodes; here numnodes",
    ),
    (
        "ntpernode",
        "how tasks lie on nodes is in gq --json JOB; here numtasks and numnodes",
    ),
    ("tres-per-step", "squeue -s and gq -s list steps"),
    ("resvport", "no ports are reserved for steps"),
];

/// The column of a letter of `-o`.
pub(crate) fn of_letter(letter: char) -> Option<JobColumn> {
    COLUMNS
        .iter()
        .find(|entry| entry.1 == letter && letter != ' ')
        .map(|entry| entry.0)
}

/// Keys of the API that the columns need, for its `columns`.
pub(crate) fn keys(columns: impl IntoIterator<Item = JobColumn>) -> String {
    let mut keys: Vec<&str> = vec!["id"];
    for key in columns
        .into_iter()
        .flat_map(|column| column.entry().4.split(','))
    {
        if !key.is_empty() && !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.join(",")
}

/// Letters and names for `--help`.
pub(crate) fn help() -> String {
    let lines = COLUMNS.iter().map(|(_, letter, name, title, _)| {
        let letter = if *letter == ' ' {
            "  ".to_owned()
        } else {
            format!("%{letter}")
        };
        format!("  {letter}  {name:<14} {title}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// `(Priority)`; what nearly all of a long queue waits for needs no text of its own.
fn in_brackets(reason: ReasonCode) -> Cow<'static, str> {
    match reason {
        ReasonCode::Priority => "(Priority)".into(),
        ReasonCode::Resources => "(Resources)".into(),
        other => format!("({other})").into(),
    }
}

/// Task numbers that a table shows of an array at most: as many characters as squeue does.
const MOST_TASKS: usize = 64;

/// `17_[1-3,5,...%4]` of a long list in brackets.
fn few_tasks(shown_id: Cow<'_, str>) -> Cow<'_, str> {
    let Some((job, tasks)) = shown_id
        .strip_suffix(']')
        .and_then(|rest| rest.split_once('['))
    else {
        return shown_id;
    };
    let (tasks, cap) = tasks.find('%').map_or((tasks, ""), |at| tasks.split_at(at));
    if tasks.len() <= MOST_TASKS {
        return shown_id;
    }
    let first = tasks
        .char_indices()
        .take_while(|(at, _)| *at <= MOST_TASKS)
        .filter(|(_, letter)| *letter == ',')
        .last();
    match first {
        Some((end, _)) => format!("{job}[{},...{cap}]", &tasks[..end]).into(),
        None => shown_id,
    }
}

impl JobColumn {
    pub(crate) fn is_priority(self) -> bool {
        matches!(self, Self::Priority | Self::PriorityShare)
    }

    fn entry(self) -> &'static JobColumnEntry {
        COLUMNS
            .iter()
            .find(|entry| entry.0 == self)
            .expect("every column is in the table")
    }

    pub(crate) fn title(self) -> &'static str {
        self.entry().3
    }

    /// What the column prints in a table, where one line is not to make all of them wide. Scripts get [`JobColumn::value`].
    pub(crate) fn cell<'r>(self, row: &'r QueueRow<'_>, times: &TimeFormat) -> Cow<'r, str> {
        let text = self.value(row, times);
        match self {
            Self::ShownId => few_tasks(text),
            _ => text,
        }
    }

    /// What the column prints for a job.
    pub(crate) fn value<'r>(self, row: &'r QueueRow<'_>, times: &TimeFormat) -> Cow<'r, str> {
        match self {
            Self::Text(key) => row.text(key).into(),
            Self::TextOrNull(key) => or_null(row.text(key)),
            Self::ShownId => Cow::Borrowed(&row.shown_id),
            Self::Id => row.id.to_string().into(),
            Self::ArrayId => row.array_id.unwrap_or(row.id).to_string().into(),
            Self::ArrayIndex => match (&row.array_index, &row.array_tasks) {
                (Some(index), _) => index.to_string().into(),
                (None, Some(tasks)) => Cow::Borrowed(tasks),
                (None, None) => "N/A".into(),
            },
            Self::Leader => part(row).map_or("N/A".into(), |(leader, _)| leader.to_string().into()),
            Self::Component => part(row).map_or("N/A".into(), |(_, at)| at.to_string().into()),
            Self::ComponentIds => row.component_ids.as_deref().unwrap_or("N/A").into(),
            Self::Uid => row.uid.to_string().into(),
            Self::State => row.state.long().into(),
            Self::ShortState => row.state.short().into(),
            Self::Reason => row.reason.to_string().into(),
            Self::NodelistOrReason if row.state == JobState::Pending => in_brackets(row.reason),
            Self::NodelistOrReason if !row.pull.is_empty() => format!("({})", row.pull).into(),
            Self::NodelistOrReason => Cow::Borrowed(&row.nodelist),
            Self::BatchHost => batch_host(&row.nodelist),
            Self::Nodes if row.nodes == 1 => "1".into(),
            Self::Nodes => row.nodes.to_string().into(),
            Self::Cpus => row.cpus.to_string().into(),
            Self::CpusPerTask => cpus_per_task(row.cpus, row.ntasks).to_string().into(),
            Self::Tasks => row.ntasks.to_string().into(),
            Self::Mem if row.mem.is_empty() => "0".into(),
            Self::Mem => Cow::Borrowed(&row.mem),
            Self::Gpus if row.gpus.is_empty() => "0".into(),
            Self::Gpus => all_gpus(&row.gpus, row.gpu_count),
            Self::GpusPerNode => match (row.gpus_per.as_deref(), row.nodes) {
                _ if row.gpus.is_empty() => "N/A".into(),
                (Some("node"), _) => format!("gres/gpu:{}", row.gpus).into(),
                // On one node they are all of the job's.
                (_, 1) => format!("gres/gpu:{}", all_gpus(&row.gpus, row.gpu_count)).into(),
                _ => "N/A".into(),
            },
            Self::GpusPerJob => gpus_by(row, "job").into(),
            Self::GpusPerTask => gpus_by(row, "task").into(),
            Self::Tres => tres(row.cpus, row.mem_total_bytes, row.nodes, row.gpu_count).into(),
            Self::Elapsed if row.elapsed_secs <= 0 => "0:00".into(),
            Self::Elapsed => squeue_time(row.elapsed_secs.max(0).cast_unsigned()).into(),
            Self::TimeLimit => time_limit(row.time_limit_secs).into(),
            Self::TimeLeft => time_left(row).into(),
            Self::SubmitTime => instant(row.submit_time, times),
            Self::StartTime => instant(start(row), times),
            Self::EndTime => instant(
                row.end_time
                    .or_else(|| end_by_limit(start(row), row.time_limit_secs)),
                times,
            ),
            Self::EligibleTime => instant(row.eligible_time, times),
            Self::AccrueTime => instant(
                row.eligible_time.filter(|at| at.0 <= local_time::now()),
                times,
            ),
            Self::Group | Self::Gid => group_of(&row.user, self == Self::Group).into(),
            Self::PendingTime => pending_secs(row, local_time::now()).to_string().into(),
            Self::Restarts => restarts(row.attempts, row.state).to_string().into(),
            Self::Requeue => if row.requeue { "1" } else { "0" }.into(),
            Self::TimeMin => row
                .time_min_secs
                .map_or("N/A".into(), |secs| squeue_time(secs.into()).into()),
            Self::Priority => row.priority.to_string().into(),
            Self::PriorityShare => {
                format!("{:.14}", row.priority as f64 / f64::from(u32::MAX)).into()
            }
            Self::Nice => row.nice.to_string().into(),
            Self::Oversubscribe => if row.exclusive { "NO" } else { "OK" }.into(),
            Self::Stderr => Cow::Borrowed(if row.stderr.is_empty() {
                &row.stdout
            } else {
                &row.stderr
            }),
            Self::ExitCode => row.exit_code.to_string().into(),
            Self::Tags => row.tags.join(",").into(),
            Self::Switches => switches(row).0.to_owned().into(),
            Self::SwitchWait => switches(row).1.to_owned().into(),
            Self::Position => row
                .position
                .map_or("N/A".into(), |position| position.to_string().into()),
            Self::Deadline => instant(row.deadline, times),
            Self::LastMark => instant(row.last_mark.as_ref().and_then(|mark| mark.at), times),
            Self::Never("batchflag") if row.allocation => "0".into(),
            Self::Never(name) => fixed_value(name).into(),
        }
    }

    /// Where a waiting job is expected to start, as far as a listing knows it.
    pub(crate) fn is_planned_nodes(self) -> bool {
        self == Self::Never("schednodes")
    }

    /// Order of two jobs by this column: numbers and times by value, text by its bytes.
    pub(crate) fn compare(self, a: &QueueRow<'_>, b: &QueueRow<'_>) -> Ordering {
        match self {
            // What waits of an array comes behind its tasks, as in squeue.
            Self::ShownId => place(a).cmp(&place(b)),
            Self::Id => a.id.cmp(&b.id),
            Self::ArrayId => a.array_id.unwrap_or(a.id).cmp(&b.array_id.unwrap_or(b.id)),
            Self::ArrayIndex => a.array_index.cmp(&b.array_index),
            Self::Leader | Self::Component => part(a).cmp(&part(b)),
            Self::ComponentIds => a.component_ids.cmp(&b.component_ids),
            Self::Uid => a.uid.cmp(&b.uid),
            Self::State | Self::ShortState => a.state.cmp(&b.state),
            Self::Nodes => a.nodes.cmp(&b.nodes),
            Self::Cpus => a.cpus.cmp(&b.cpus),
            Self::Tasks => a.ntasks.cmp(&b.ntasks),
            Self::Elapsed => a.elapsed_secs.cmp(&b.elapsed_secs),
            Self::TimeLimit => limit(a).cmp(&limit(b)),
            Self::TimeLeft => (limit(a) - a.elapsed_secs).cmp(&(limit(b) - b.elapsed_secs)),
            Self::SubmitTime => a.submit_time.cmp(&b.submit_time),
            Self::StartTime => start(a).cmp(&start(b)),
            Self::EndTime => a.end_time.cmp(&b.end_time),
            Self::EligibleTime => a.eligible_time.cmp(&b.eligible_time),
            column if column.is_priority() => a.priority.cmp(&b.priority),
            Self::Nice => a.nice.cmp(&b.nice),
            Self::Position => a
                .position
                .unwrap_or(u32::MAX)
                .cmp(&b.position.unwrap_or(u32::MAX)),
            Self::Deadline => a.deadline.cmp(&b.deadline),
            _ => self
                .value(a, &TimeFormat::Standard)
                .cmp(&self.value(b, &TimeFormat::Standard)),
        }
    }
}

/// What squeue prints of an option that no job here has.
fn fixed_value(name: &str) -> &'static str {
    match name {
        "mintmpdisk" | "contiguous" | "reboot" | "boardspernode" | "ntperboard" | "sperboard" => {
            "0"
        }
        "delayboot" => "0:00",
        "selectjobinfo" => "",
        "allocsid" => "0",
        "origin" | "originraw" | "siblingsactive" | "siblingsactiveraw" | "siblingsviable"
        | "siblingsviableraw" => "NA",
        "batchflag" => "1",
        "sockets" | "cores" | "threads" => "*",
        "sct" => "*:*:*",
        "profile" => "NotSet",
        "burstbuffer" | "burstbufferstate" | "container" | "mcslabel" => "(null)",
        "wckey" | "schednodes" | "network" | "admin_comment" | "system_comment"
        | "clusterfeature" => "(null)",
        _ => "N/A",
    }
}

/// Seconds between the submission and the start, or until now.
fn pending_secs(row: &QueueRow<'_>, now: Timestamp) -> i64 {
    let until = row.start_time.map_or(now, |at| at.0);
    row.submit_time
        .map_or(0, |at| until.since_secs(at.0).max(0))
}

/// First node of a host list, `n/a` of none.
fn batch_host(nodelist: &str) -> Cow<'_, str> {
    if nodelist.is_empty() {
        return "n/a".into();
    }
    if !nodelist.contains(['[', ',']) {
        return nodelist.into();
    }
    let names = hostlist::expand(nodelist, hostlist::MAX_HOSTS).unwrap_or_default();
    names.into_iter().next().map_or(nodelist.into(), Cow::Owned)
}

/// Seconds; the largest number for no limit.
fn limit(row: &QueueRow<'_>) -> i64 {
    row.time_limit_secs.unwrap_or(u32::MAX).into()
}

fn time_left(row: &QueueRow<'_>) -> String {
    match row.time_limit_secs {
        None | Some(u32::MAX) => "UNLIMITED".to_owned(),
        Some(secs) => squeue_time((i64::from(secs) - row.elapsed_secs).max(0).cast_unsigned()),
    }
}

fn instant(at: Option<Instant>, times: &TimeFormat) -> Cow<'static, str> {
    at.map_or("N/A".into(), |at| times.print(at.0).into())
}

fn or_null(text: &str) -> Cow<'_, str> {
    if text.is_empty() {
        "(null)".into()
    } else {
        text.into()
    }
}

/// Of a component of a job of unlike parts.
fn part(row: &QueueRow<'_>) -> Option<(JobId, u32)> {
    JobPart::parse(&row.shown_id)
}

/// A job by its number, a task by its array's and its own; what waits of an array together is the last of it.
fn place(row: &QueueRow<'_>) -> (u64, u64) {
    match row.shown_id.split_once('_') {
        Some((array, task)) => (
            array.parse().unwrap_or(row.id),
            task.parse().unwrap_or(u64::MAX),
        ),
        None => (row.id, 0),
    }
}

/// `1` and `5:00` of `1@5:00`: how many at most, and how long it waits for that; no time is as long as it takes.
fn switches<'r>(row: &'r QueueRow<'_>) -> (&'r str, &'r str) {
    match row.switches.as_deref() {
        None | Some("") => ("0", "0:00"),
        Some(asked) => asked.split_once('@').unwrap_or((asked, "UNLIMITED")),
    }
}

/// What was asked for by that: all of a job's, or a task's.
fn gpus_by(row: &QueueRow<'_>, scope: &str) -> String {
    match row.gpus_per.as_deref() {
        Some(per) if per == scope && !row.gpus.is_empty() => format!("gres/gpu:{}", row.gpus),
        _ => "N/A".to_owned(),
    }
}

/// GPUs on all nodes, with the type: `--gpus-per-node h100:8` on two nodes is `h100:16`. Ranked alternatives, shares
/// and slices stay as they were asked for.
fn all_gpus(asked: &str, count: f64) -> Cow<'_, str> {
    let (kind, number) = asked.rsplit_once(':').unwrap_or(("", asked));
    let Ok(number) = number.parse::<u64>() else {
        return Cow::Borrowed(asked);
    };
    if asked.contains('|') || kind.contains('.') || number as f64 == count {
        Cow::Borrowed(asked)
    } else if kind.is_empty() {
        format!("{count}").into()
    } else {
        format!("{kind}:{count}").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_over_all_nodes() {
        assert_eq!(all_gpus("h100:8", 16.0), "h100:16");
        assert_eq!(all_gpus("8", 16.0), "16");
        assert_eq!(all_gpus("h100:4", 4.0), "h100:4");
        assert_eq!(all_gpus("h100:4|a100:8", 4.0), "h100:4|a100:8");
        assert_eq!(all_gpus("0.5", 0.5), "0.5");
        assert_eq!(all_gpus("1g.10gb:2", 0.5), "1g.10gb:2");
    }

    use std::collections::BTreeSet;

    #[test]
    fn a_long_list_of_tasks_is_cut_at_a_comma() {
        let all: Vec<String> = (100..200).step_by(3).map(|task| task.to_string()).collect();
        let long =
            |end: &str| few_tasks(format!("17_[{}{end}]", all.join(",")).into()).into_owned();
        let shown = "17_[100,103,106,109,112,115,118,121,124,127,130,133,136,139,142,145,...";
        assert_eq!(long("%4"), format!("{shown}%4]"));
        assert_eq!(long(""), format!("{shown}]"));
        for short in ["17", "17_5", "17_[1-3,8%4]", "17_[0-999999]"] {
            assert_eq!(few_tasks(short.into()), short);
        }
    }

    #[test]
    fn letters_and_names_are_unique_and_all_columns_are_listed() {
        let letters: Vec<char> = COLUMNS
            .iter()
            .map(|entry| entry.1)
            .filter(|letter| *letter != ' ')
            .collect();
        assert_eq!(letters.iter().collect::<BTreeSet<_>>().len(), letters.len());
        let names: BTreeSet<_> = COLUMNS.iter().map(|entry| entry.2).collect();
        assert_eq!(names.len(), COLUMNS.len());
    }

    #[test]
    fn keys_exist_in_the_contract() {
        for key in keys(COLUMNS.iter().map(|entry| entry.0)).split(',') {
            assert_ne!(JobRowKey::of(key), JobRowKey::other, "{key}");
        }
    }

    #[test]
    fn groups_are_those_of_this_machine() {
        assert_eq!(
            (
                group_of("root", true).as_str(),
                group_of("root", false).as_str()
            ),
            ("root", "0")
        );
        assert_eq!(group_of("no such user", true), "N/A");
    }

    #[test]
    fn gpus_are_told_by_what_they_were_asked_for() {
        let row = |per: &'static str, nodes: u32, gpus: &'static str, gpu_count: f64| {
            let row = QueueRow {
                gpus_per: Some(per.into()),
                nodes,
                gpus: gpus.into(),
                gpu_count,
                ..QueueRow::default()
            };
            [
                JobColumn::GpusPerNode,
                JobColumn::GpusPerJob,
                JobColumn::GpusPerTask,
            ]
            .map(|column| column.value(&row, &TimeFormat::Standard).into_owned())
            .join(" ")
        };
        assert_eq!(row("node", 2, "h100:8", 16.0), "gres/gpu:h100:8 N/A N/A");
        assert_eq!(row("job", 2, "h100:16", 16.0), "N/A gres/gpu:h100:16 N/A");
        assert_eq!(row("job", 1, "2", 2.0), "gres/gpu:2 gres/gpu:2 N/A");
        assert_eq!(
            row("task", 1, "h100:1", 4.0),
            "gres/gpu:h100:4 N/A gres/gpu:h100:1"
        );
        assert_eq!(row("task", 2, "1", 4.0), "N/A N/A gres/gpu:1");
        assert_eq!(QueueRow::default().gpus_per, None);
    }

    #[test]
    fn tasks_come_in_the_order_of_their_array() {
        let row = |id: u64, shown: &'static str| QueueRow {
            id,
            shown_id: shown.into(),
            ..QueueRow::default()
        };
        let mut rows = [
            row(9, "9"),
            row(3, "3_[1-4,7%2]"),
            row(5, "3_2"),
            row(4, "3_1"),
            row(13, "3_10"),
            row(2, "2"),
        ];
        rows.sort_by(|a, b| JobColumn::ShownId.compare(a, b));
        assert_eq!(
            rows.map(|row| row.shown_id.0.into_owned()).join(" "),
            "2 3_1 3_2 3_10 3_[1-4,7%2] 9"
        );
    }

    #[test]
    fn switches_are_a_number_and_a_wait() {
        let of = |text: Option<&str>| {
            let row = QueueRow {
                switches: text.map(|text| text.to_owned().into()),
                ..QueueRow::default()
            };
            let (most, wait) = switches(&row);
            format!("{most} {wait}")
        };
        assert_eq!(
            [of(None), of(Some("2@5:00")), of(Some("1"))],
            ["0 0:00", "2 5:00", "1 UNLIMITED"]
        );
    }

    #[test]
    fn the_first_of_several_nodes_is_the_batch_host() {
        assert_eq!(batch_host("node[08-10],x"), "node08");
        assert_eq!(batch_host("node2"), "node2");
        assert_eq!(batch_host(""), "n/a");
    }
}
