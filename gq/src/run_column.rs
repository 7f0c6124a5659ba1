//! The columns of accounting: sacct's field names, widths and values. Source: sacct(1).

use crate::run_format::{RunFormat, Units, cpu_time, kibibytes, large, mebibytes};
use crate::run_line::{AccountingRow, RunLine};
use crate::usage_report::percent;
use gcli::column_format::{FormatError, Spec, parse_percent_names};
use gmodel::duration::sacct_time;
use gmodel::job_key::JobText;
use gmodel::size::exact_size;
use gmodel::suggest::did_you_mean;
use gmodel::{ExitCode, Instant, JobState};
use gwire::api::{GpuUseRow, RunDetail, RunRowKey, StepOwn};
use std::borrow::Cow;
use std::sync::LazyLock;

/// What a column shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunColumn {
    AllocCpus,
    AllocNodes,
    AllocTres,
    Attempt,
    AveCpu,
    Cluster,
    Constraints,
    ConsumedEnergy,
    ConsumedEnergyRaw,
    CpuEff,
    CpuTime,
    CpuTimeRaw,
    DerivedExitCode,
    Elapsed,
    ElapsedRaw,
    Eligible,
    End,
    ExitCode,
    Gid,
    Group,
    GpuEff,
    GpuIdle,
    GpuMaxMem,
    GpuMaxPower,
    Gpus,
    Image,
    JobId,
    JobIdRaw,
    GpuEvents,
    GpuUuids,
    LostGpuSecs,
    MaxRss,
    MemEff,
    NCpus,
    NNodes,
    NodeList,
    NTasks,
    Planned,
    PlannedCpu,
    PlannedCpuRaw,
    Priority,
    ReqCpus,
    ReqMem,
    ReqNodes,
    ReqTres,
    Reservation,
    Restarts,
    Start,
    State,
    Submit,
    Suspended,
    Tags,
    Timelimit,
    TimelimitRaw,
    TotalCpu,
    TresUsageInAve,
    TresUsageInMax,
    TresUsageInTot,
    Uid,
    /// A text as it stands in the row.
    Text(RunRowKey),
    /// By sacct's name. Nothing here measures or keeps it: blank, as sacct leaves most of these for jobs.
    NotMeasured(&'static str),
}

/// With its name, its width, and the keys of a row that it is made of.
type RunColumnEntry = (RunColumn, &'static str, usize, &'static [&'static str]);

/// All columns by their names: those of the table, and texts of the request that it does not name.
static COLUMNS: LazyLock<Vec<RunColumnEntry>> = LazyLock::new(|| {
    let mut columns = TABLE.to_vec();
    for text in JobText::carried() {
        let column = RunColumn::Text(RunRowKey::of(text.key));
        if !columns.iter().any(|entry| entry.0 == column) {
            columns.push((column, text.word, 14, std::slice::from_ref(&text.key)));
        }
    }
    columns.sort_by_key(|entry| entry.1.to_ascii_lowercase());
    columns
});

#[rustfmt::skip] // read as a table
const TABLE: &[RunColumnEntry] = &[
    (RunColumn::Text(RunRowKey::account),      "Account",      10, &["account"]),
    (RunColumn::NotMeasured("AdminComment"), "AdminComment", 19, &[]),
    (RunColumn::AllocCpus,    "AllocCPUS",    10, &["cpus"]),
    (RunColumn::AllocNodes,   "AllocNodes",   10, &["nodes", "start_time"]),
    (RunColumn::AllocTres,    "AllocTRES",    10, &["start_time", "cpus", "gpu_count", "mem_bytes", "nodes"]),
    (RunColumn::NotMeasured("AssocID"), "AssocID", 8, &[]),
    (RunColumn::Attempt,      "Attempt",       7, &["attempt"]),
    (RunColumn::AveCpu,       "AveCPU",       10, &["cpu_time_secs"]),
    (RunColumn::NotMeasured("AveCPUFreq"), "AveCPUFreq", 10, &[]),
    (RunColumn::NotMeasured("AveDiskRead"), "AveDiskRead", 14, &[]),
    (RunColumn::NotMeasured("AveDiskWrite"), "AveDiskWrite", 14, &[]),
    (RunColumn::NotMeasured("AvePages"), "AvePages", 10, &[]),
    (RunColumn::NotMeasured("AveRSS"), "AveRSS", 10, &[]),
    (RunColumn::NotMeasured("AveVMSize"), "AveVMSize", 10, &[]),
    (RunColumn::NotMeasured("BlockID"), "BlockID", 16, &[]),
    (RunColumn::Text(RunRowKey::class),        "Class",        10, &["class"]),
    (RunColumn::Cluster,      "Cluster",      10, &["detail"]),
    (RunColumn::Text(RunRowKey::comment),      "Comment",      14, &["comment"]),
    (RunColumn::Constraints,  "Constraints",  19, &["detail"]),
    (RunColumn::ConsumedEnergy, "ConsumedEnergy", 14, &["gpu_use"]),
    (RunColumn::ConsumedEnergyRaw, "ConsumedEnergyRaw", 17, &["gpu_use"]),
    (RunColumn::NotMeasured("Container"), "Container", 19, &[]),
    (RunColumn::CpuEff,       "CPUEff",        7, &["cpu_percent"]),
    (RunColumn::CpuTime,      "CPUTime",      10, &["elapsed_secs", "cpus"]),
    (RunColumn::CpuTimeRaw,   "CPUTimeRAW",   10, &["elapsed_secs", "cpus"]),
    (RunColumn::DerivedExitCode, "DerivedExitCode", 15, &["detail"]),
    (RunColumn::Elapsed,      "Elapsed",      10, &["elapsed_secs"]),
    (RunColumn::ElapsedRaw,   "ElapsedRaw",   10, &["elapsed_secs"]),
    (RunColumn::Eligible,     "Eligible",     19, &["detail"]),
    (RunColumn::End,          "End",          19, &["end_time"]),
    (RunColumn::ExitCode,     "ExitCode",      8, &["exit_code"]),
    (RunColumn::NotMeasured("Flags"), "Flags", 20, &[]),
    (RunColumn::Gid,          "GID",           6, &["detail"]),
    (RunColumn::GpuEff,       "GPUEff",        7, &["gpu_use"]),
    (RunColumn::GpuEvents,    "GPUEvents",    20, &["gpu_events"]),
    (RunColumn::GpuIdle,      "GPUIdle",      10, &["gpu_use"]),
    (RunColumn::GpuMaxMem,    "GPUMaxMem",    10, &["gpu_use"]),
    (RunColumn::GpuMaxPower,  "GPUMaxPower",  11, &["gpu_use"]),
    (RunColumn::Gpus,         "GPUs",         10, &["gpus"]),
    (RunColumn::GpuUuids,     "GPUUUIDs",     20, &["gpu_uuids"]),
    (RunColumn::Group, "Group", 9, &["detail"]),
    (RunColumn::Image,        "Image",        20, &["image"]),
    (RunColumn::JobId,        "JobID",        12, &[]),
    (RunColumn::JobIdRaw,     "JobIDRaw",     12, &[]),
    (RunColumn::Text(RunRowKey::name),      "JobName",      10, &["name"]),
    (RunColumn::NotMeasured("Layout"), "Layout", 9, &[]),
    (RunColumn::LostGpuSecs,  "LostGPUSecs",  11, &["lost_gpu_secs"]),
    (RunColumn::NotMeasured("MaxDiskRead"), "MaxDiskRead", 12, &[]),
    (RunColumn::NotMeasured("MaxDiskReadNode"), "MaxDiskReadNode", 15, &[]),
    (RunColumn::NotMeasured("MaxDiskReadTask"), "MaxDiskReadTask", 15, &[]),
    (RunColumn::NotMeasured("MaxDiskWrite"), "MaxDiskWrite", 12, &[]),
    (RunColumn::NotMeasured("MaxDiskWriteNode"), "MaxDiskWriteNode", 16, &[]),
    (RunColumn::NotMeasured("MaxDiskWriteTask"), "MaxDiskWriteTask", 16, &[]),
    (RunColumn::NotMeasured("MaxPages"), "MaxPages", 8, &[]),
    (RunColumn::NotMeasured("MaxPagesNode"), "MaxPagesNode", 12, &[]),
    (RunColumn::NotMeasured("MaxPagesTask"), "MaxPagesTask", 14, &[]),
    (RunColumn::MaxRss,       "MaxRSS",       10, &["peak_memory_bytes"]),
    (RunColumn::NotMeasured("MaxRSSNode"), "MaxRSSNode", 10, &[]),
    (RunColumn::NotMeasured("MaxRSSTask"), "MaxRSSTask", 10, &[]),
    (RunColumn::NotMeasured("MaxVMSize"), "MaxVMSize", 10, &[]),
    (RunColumn::NotMeasured("MaxVMSizeNode"), "MaxVMSizeNode", 14, &[]),
    (RunColumn::NotMeasured("MaxVMSizeTask"), "MaxVMSizeTask", 14, &[]),
    (RunColumn::NotMeasured("McsLabel"), "McsLabel", 10, &[]),
    (RunColumn::MemEff,       "MemEff",        7, &["mem_percent"]),
    (RunColumn::NotMeasured("MinCPU"), "MinCPU", 10, &[]),
    (RunColumn::NotMeasured("MinCPUNode"), "MinCPUNode", 10, &[]),
    (RunColumn::NotMeasured("MinCPUTask"), "MinCPUTask", 10, &[]),
    (RunColumn::NCpus,        "NCPUS",        10, &["cpus"]),
    (RunColumn::NNodes,       "NNodes",        8, &["nodes"]),
    (RunColumn::NodeList,     "NodeList",     15, &["nodelist"]),
    (RunColumn::NTasks,       "NTasks",        8, &[]),
    (RunColumn::Text(RunRowKey::partition),    "Partition",    10, &["partition"]),
    (RunColumn::Planned,      "Planned",      10, &["detail", "start_time"]),
    (RunColumn::PlannedCpu,   "PlannedCPU",   10, &["detail", "start_time", "cpus"]),
    (RunColumn::PlannedCpuRaw, "PlannedCPURAW", 13, &["detail", "start_time", "cpus"]),
    (RunColumn::Priority,     "Priority",     10, &["detail"]),
    (RunColumn::Text(RunRowKey::qos),          "QOS",          10, &["qos"]),
    (RunColumn::NotMeasured("QOSRAW"), "QOSRAW", 10, &[]),
    (RunColumn::Text(RunRowKey::end_text),       "Reason",       30, &["end_text"]),
    (RunColumn::NotMeasured("ReqCPUFreq"), "ReqCPUFreq", 10, &[]),
    (RunColumn::NotMeasured("ReqCPUFreqGov"), "ReqCPUFreqGov", 13, &[]),
    (RunColumn::NotMeasured("ReqCPUFreqMax"), "ReqCPUFreqMax", 13, &[]),
    (RunColumn::NotMeasured("ReqCPUFreqMin"), "ReqCPUFreqMin", 13, &[]),
    (RunColumn::ReqCpus,      "ReqCPUS",       8, &["detail"]),
    (RunColumn::ReqMem,       "ReqMem",       10, &["mem_bytes"]),
    (RunColumn::ReqNodes,     "ReqNodes",      8, &["detail"]),
    (RunColumn::ReqTres,      "ReqTRES",      10, &["detail", "cpus", "gpu_count", "mem_bytes", "nodes"]),
    (RunColumn::Reservation,  "Reservation",  20, &["detail"]),
    (RunColumn::NotMeasured("ReservationID"), "ReservationID", 13, &[]),
    (RunColumn::Restarts,     "Restarts",      8, &["attempt"]),
    (RunColumn::Start,        "Start",        19, &["start_time"]),
    (RunColumn::State,        "State",        10, &["state", "cancelled_by"]),
    (RunColumn::Submit,       "Submit",       19, &["submit_time"]),
    (RunColumn::NotMeasured("SubmitLine"), "SubmitLine", 20, &[]),
    (RunColumn::Suspended,    "Suspended",    10, &["suspended_secs"]),
    (RunColumn::NotMeasured("SystemComment"), "SystemComment", 19, &[]),
    (RunColumn::NotMeasured("SystemCPU"), "SystemCPU", 10, &[]),
    (RunColumn::Tags,         "Tags",         14, &["tags"]),
    (RunColumn::Timelimit,    "Timelimit",    10, &["time_limit_secs"]),
    (RunColumn::TimelimitRaw, "TimelimitRaw", 13, &["time_limit_secs"]),
    (RunColumn::TotalCpu,     "TotalCPU",     10, &["cpu_time_secs"]),
    (RunColumn::TresUsageInAve, "TRESUsageInAve", 14, &["cpu_time_secs", "gpu_use"]),
    (RunColumn::TresUsageInMax, "TRESUsageInMax", 14, &["gpu_use", "peak_memory_bytes"]),
    (RunColumn::NotMeasured("TRESUsageInMaxNode"), "TRESUsageInMaxNode", 19, &[]),
    (RunColumn::NotMeasured("TRESUsageInMaxTask"), "TRESUsageInMaxTask", 19, &[]),
    (RunColumn::NotMeasured("TRESUsageInMin"), "TRESUsageInMin", 19, &[]),
    (RunColumn::NotMeasured("TRESUsageInMinNode"), "TRESUsageInMinNode", 19, &[]),
    (RunColumn::NotMeasured("TRESUsageInMinTask"), "TRESUsageInMinTask", 19, &[]),
    (RunColumn::TresUsageInTot, "TRESUsageInTot", 14, &["cpu_time_secs", "gpu_use", "peak_memory_bytes"]),
    (RunColumn::NotMeasured("TRESUsageOutAve"), "TRESUsageOutAve", 19, &[]),
    (RunColumn::NotMeasured("TRESUsageOutMax"), "TRESUsageOutMax", 19, &[]),
    (RunColumn::NotMeasured("TRESUsageOutMaxNode"), "TRESUsageOutMaxNode", 19, &[]),
    (RunColumn::NotMeasured("TRESUsageOutMaxTask"), "TRESUsageOutMaxTask", 19, &[]),
    (RunColumn::NotMeasured("TRESUsageOutMin"), "TRESUsageOutMin", 19, &[]),
    (RunColumn::NotMeasured("TRESUsageOutMinNode"), "TRESUsageOutMinNode", 19, &[]),
    (RunColumn::NotMeasured("TRESUsageOutMinTask"), "TRESUsageOutMinTask", 19, &[]),
    (RunColumn::NotMeasured("TRESUsageOutTot"), "TRESUsageOutTot", 15, &[]),
    (RunColumn::Uid,          "UID",           6, &["detail"]),
    (RunColumn::Text(RunRowKey::user),         "User",          9, &["user"]),
    (RunColumn::NotMeasured("UserCPU"), "UserCPU", 10, &[]),
    (RunColumn::NotMeasured("WCKey"), "WCKey", 10, &[]),
    (RunColumn::NotMeasured("WCKeyID"), "WCKeyID", 8, &[]),
    (RunColumn::Text(RunRowKey::work_dir),      "WorkDir",      22, &["work_dir"]),
];

/// Columns when none are named, of `--brief` and of `--long`.
pub(crate) const USUAL: &str = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode";
pub(crate) const BRIEF: &str = "JobID,State,ExitCode";
/// Those of `sacct -l`. Source: sacct(1).
pub(crate) const SACCT_LONG: &str = "JobID,JobIDRaw,JobName,Partition,MaxVMSize,MaxVMSizeNode,MaxVMSizeTask,AveVMSize,MaxRSS,\
    MaxRSSNode,MaxRSSTask,AveRSS,MaxPages,MaxPagesNode,MaxPagesTask,AvePages,MinCPU,MinCPUNode,MinCPUTask,AveCPU,NTasks,AllocCPUS,\
    Elapsed,State,ExitCode,AveCPUFreq,ReqCPUFreqMin,ReqCPUFreqMax,ReqCPUFreqGov,ConsumedEnergy,MaxDiskRead,MaxDiskReadNode,\
    MaxDiskReadTask,AveDiskRead,MaxDiskWrite,MaxDiskWriteNode,MaxDiskWriteTask,AveDiskWrite,ReqTRES,AllocTRES";
pub(crate) const LONG: &str = "JobID,JobName,User,Account,Partition,QOS,State,ExitCode,Submit,Start,End,Elapsed,Timelimit,\
                               NNodes,NCPUS,GPUs,Class,ReqMem,MaxRSS,TotalCPU,GPUEff,GPUIdle,GPUMaxMem,ConsumedEnergy,NodeList";

/// Reads `-o`: `jobid,state%20`.
/// `ALL` is all of them.
pub(crate) fn read(text: &str) -> Result<Vec<(RunColumn, Spec)>, FormatError> {
    let all = || {
        COLUMNS
            .iter()
            .map(|entry| entry.1)
            .collect::<Vec<_>>()
            .join(",")
    };
    let all = text.trim().eq_ignore_ascii_case("ALL").then(all);
    let text = all.as_deref().unwrap_or(text);
    parse_percent_names(text, of_name, |column| {
        let left = matches!(column, RunColumn::JobId | RunColumn::JobIdRaw);
        Spec {
            width: Some(column.entry().2),
            right: !left,
            cut_mark: "+",
        }
    })
}

/// The keys of a row that these columns are made of, as they are asked for. The id as it is shown is always one of them: it
/// tells steps from jobs.
pub(crate) fn keys<'c>(
    columns: impl IntoIterator<Item = &'c (RunColumn, Spec)>,
) -> Vec<&'static str> {
    let mut keys = vec!["id", "shown_id"];
    for key in columns.into_iter().flat_map(|(column, _)| column.entry().3) {
        if !keys.contains(key) {
            keys.push(key);
        }
    }
    keys
}

/// Fields of sacct and sstat for what is not told here, each with what is.
const INSTEAD: [(&str, &str); 2] = [
    ("DBIndex", "JobIDRaw is the number of a record"),
    (
        "Pids",
        "scontrol listpids and ps on the node tell processes",
    ),
];

/// Those of sstat, as it lists them.
const OF_STEPS: [&str; 42] = [
    "AveCPU",
    "AveCPUFreq",
    "AveDiskRead",
    "AveDiskWrite",
    "AvePages",
    "AveRSS",
    "AveVMSize",
    "ConsumedEnergy",
    "ConsumedEnergyRaw",
    "JobID",
    "MaxDiskRead",
    "MaxDiskReadNode",
    "MaxDiskReadTask",
    "MaxDiskWrite",
    "MaxDiskWriteNode",
    "MaxDiskWriteTask",
    "MaxPages",
    "MaxPagesNode",
    "MaxPagesTask",
    "MaxRSS",
    "MaxRSSNode",
    "MaxRSSTask",
    "MaxVMSize",
    "MaxVMSizeNode",
    "MaxVMSizeTask",
    "MinCPU",
    "MinCPUNode",
    "MinCPUTask",
    "NodeList",
    "NTasks",
    "ReqCPUFreq",
    "ReqCPUFreqMin",
    "ReqCPUFreqMax",
    "ReqCPUFreqGov",
    "TRESUsageInAve",
    "TRESUsageInMax",
    "TRESUsageInMaxNode",
    "TRESUsageInMaxTask",
    "TRESUsageInMin",
    "TRESUsageInMinNode",
    "TRESUsageInMinTask",
    "TRESUsageInTot",
];

fn of_name(name: &str) -> Result<RunColumn, String> {
    // Their names until Slurm 21.08.
    const BEFORE: [(&str, &str); 5] = [
        ("reserved", "Planned"),
        ("resvcpu", "PlannedCPU"),
        ("resvcpuraw", "PlannedCPURAW"),
        ("allocgres", "AllocTRES"),
        ("reqgres", "ReqTRES"),
    ];
    let name = BEFORE
        .iter()
        .find(|(before, _)| name.eq_ignore_ascii_case(before))
        .map_or(name, |(_, now)| now);
    let found = COLUMNS
        .iter()
        .find(|entry| entry.1.eq_ignore_ascii_case(name))
        .map(|entry| entry.0);
    if let Some((_, instead)) = INSTEAD
        .iter()
        .find(|(known, _)| name.eq_ignore_ascii_case(known))
    {
        return Err(format!("Invalid field requested: {name:?}. {instead}"));
    }
    found.ok_or_else(|| {
        let hint = did_you_mean(name, COLUMNS.iter().map(|entry| entry.1));
        format!("Invalid field requested: {name:?}.{hint} gacct -e lists them")
    })
}

/// The names, four to a line, as `sacct --helpformat` prints them, or sstat those of steps.
pub(crate) fn names(of_steps: bool) -> String {
    let names: Vec<&str> = if of_steps {
        OF_STEPS.to_vec()
    } else {
        COLUMNS.iter().map(|entry| entry.1).collect()
    };
    let lines = names.chunks(4).map(|names| {
        names
            .iter()
            .map(|name| format!("{name:<19} "))
            .collect::<String>()
    });
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}

impl RunColumn {
    fn entry(self) -> &'static RunColumnEntry {
        COLUMNS
            .iter()
            .find(|entry| entry.0 == self)
            .expect("every column is in the table")
    }

    pub(crate) fn title(self) -> &'static str {
        self.entry().1
    }

    /// What a step asked for, and held unless for itself, is its job's affair.
    fn is_of_job_alone(self) -> bool {
        matches!(
            self,
            Self::Timelimit
                | Self::TimelimitRaw
                | Self::ReqMem
                | Self::ReqTres
                | Self::AllocTres
                | Self::Gpus
                | Self::DerivedExitCode
                | Self::Uid
                | Self::Gid
                | Self::Group
        )
    }

    /// What the column prints.
    pub(crate) fn value<'r>(self, line: &'r RunLine<'_>, format: &RunFormat) -> Cow<'r, str> {
        let (run, own) = (&line.row, line.step.and_then(|step| step.own));
        let secs = run.elapsed_secs.max(0).cast_unsigned();
        let (units, used) = (format.units, run.gpu_use.as_ref());
        let at = |instant: Option<Instant>| {
            instant.map_or("Unknown".to_owned(), |at| format.times.print(at.0))
        };
        let detail =
            |text: fn(&RunDetail) -> String| run.detail.as_deref().map(text).unwrap_or_default();
        let gpus = |text: fn(&GpuUseRow) -> String| used.map(text).unwrap_or_default();
        let planned =
            |text: &dyn Fn(u64) -> String| planned_secs(run).map(text).unwrap_or_default();
        let text = match self {
            Self::AllocTres if own.is_some() => {
                own.map_or(String::new(), |own| own_tres(own, run.nodes, units))
            }
            _ if line.is_step() && self.is_of_job_alone() => return "".into(),
            Self::Text(key) => return run.text(key).into(),
            Self::Gpus if run.gpus.is_empty() => return "0".into(),
            Self::Gpus => return Cow::Borrowed(&run.gpus),
            Self::JobId => return Cow::Borrowed(&run.shown_id),
            Self::NodeList if run.nodelist.is_empty() => return "None assigned".into(),
            Self::NodeList => return Cow::Borrowed(&run.nodelist),
            Self::NotMeasured(_) => return "".into(),
            Self::NTasks => line
                .ntasks()
                .map_or(String::new(), |tasks| tasks.to_string()),
            Self::Group => {
                return run
                    .detail
                    .as_ref()
                    .map_or("".into(), |detail| format.group(detail.gid).into());
            }
            Self::State => return state(run, format),
            Self::AllocCpus | Self::NCpus => run.cpus.to_string(),
            // Before it ran, what it would have.
            Self::AllocNodes if run.start_time.is_none() => "0".to_owned(),
            Self::AllocNodes | Self::NNodes => run.nodes.to_string(),
            Self::AllocTres if run.start_time.is_none() => String::new(),
            Self::ReqTres if run.nodes == 0 => {
                run.detail.as_deref().map_or(String::new(), |detail| {
                    tres(
                        detail.req_cpus,
                        detail.req_gpus,
                        units.size(detail.req_mem_bytes, exact_size),
                        detail.req_nodes,
                    )
                })
            }
            Self::AllocTres | Self::ReqTres => tres(
                run.cpus,
                run.gpu_count,
                units.size(run.mem_bytes, exact_size),
                run.nodes,
            ),
            Self::Attempt => run.attempt.to_string(),
            // Of a step's tasks.
            Self::AveCpu => line.ntasks().map_or(String::new(), |tasks| {
                sacct_time((run.cpu_time_secs.max(0.0) / f64::from(tasks.max(1))) as u64)
            }),
            Self::Cluster => detail(|detail| detail.cluster.clone()),
            Self::Constraints => detail(|detail| detail.constraint.clone()),
            Self::ConsumedEnergy => gpus(|used| large(used.energy_joules)),
            Self::ConsumedEnergyRaw => gpus(|used| used.energy_joules.to_string()),
            Self::CpuEff => percent(run.cpu_percent).unwrap_or_default(),
            Self::CpuTime => sacct_time(secs * u64::from(run.cpus)),
            Self::CpuTimeRaw => (secs * u64::from(run.cpus)).to_string(),
            Self::DerivedExitCode => detail(|detail| detail.derived_exit_code.to_string()),
            Self::Elapsed => sacct_time(secs),
            Self::ElapsedRaw => secs.to_string(),
            Self::Eligible => at(run.detail.as_ref().and_then(|detail| detail.eligible_time)),
            Self::End => at(run.end_time),
            // As in sacct a job that was ended from outside has none of its own: its script's is the batch step's.
            Self::ExitCode if !line.is_step() && is_ended(run.state) => {
                ExitCode::SUCCESS.to_string()
            }
            Self::ExitCode => run.exit_code.to_string(),
            Self::Gid => detail(|detail| detail.gid.to_string()),
            Self::GpuEff => percent(used.and_then(|used| used.busy_percent)).unwrap_or_default(),
            Self::GpuIdle => gpus(|used| sacct_time(used.idle_secs)),
            Self::GpuMaxMem => used.map_or(String::new(), |used| {
                units.size(used.memory_peak_bytes, mebibytes)
            }),
            Self::GpuMaxPower => gpus(|used| format!("{:.0}W", used.power_peak_watts)),
            // `17.0` of a step.
            Self::JobIdRaw => match run.shown_id.split_once('.') {
                Some((_, step)) => format!("{}.{step}", run.id),
                None => run.id.to_string(),
            },
            Self::GpuEvents => run.gpu_events.join("; "),
            Self::GpuUuids => run.gpu_uuids.join(","),
            Self::Image => run.image.as_deref().unwrap_or_default().to_owned(),
            Self::LostGpuSecs => run.lost_gpu_secs.to_string(),
            Self::MaxRss if run.peak_memory_bytes == 0 => String::new(),
            Self::MaxRss => units.size(run.peak_memory_bytes, kibibytes),
            Self::MemEff => percent(run.mem_percent).unwrap_or_default(),
            Self::Planned => planned(&sacct_time),
            Self::PlannedCpu => planned(&|secs| sacct_time(secs * u64::from(run.cpus))),
            Self::PlannedCpuRaw => planned(&|secs| (secs * u64::from(run.cpus)).to_string()),
            Self::Priority => detail(|detail| {
                detail
                    .priority
                    .map(|priority| priority.to_string())
                    .unwrap_or_default()
            }),
            Self::ReqCpus => detail(|detail| detail.req_cpus.to_string()),
            Self::ReqMem => units.size(run.mem_bytes, exact_size),
            Self::ReqNodes => detail(|detail| detail.req_nodes.to_string()),
            Self::Reservation => detail(|detail| detail.reservation.clone()),
            Self::Restarts => run.attempt.saturating_sub(1).to_string(),
            Self::Start => at(run.start_time),
            Self::Submit => at(run.submit_time),
            Self::Suspended => sacct_time(run.suspended_secs.max(0).cast_unsigned()),
            Self::Tags => run.tags.join(","),
            Self::Timelimit => limit(run, sacct_time),
            Self::TimelimitRaw => limit(run, |secs| (secs / 60).to_string()),
            Self::TotalCpu => cpu_time(run.cpu_time_secs),
            Self::TresUsageInAve => usage(run, line.ntasks().unwrap_or(1)),
            Self::TresUsageInTot => usage(run, 1),
            Self::TresUsageInMax => usage_peak(run, units),
            Self::Uid => detail(|detail| detail.uid.to_string()),
        };
        text.into()
    }
}

/// `billing=2,cpu=2,gres/gpu=1,mem=300M,node=1`, sorted as sacct sorts it.
fn tres(cpus: u32, gpus: f64, mem: String, nodes: u32) -> String {
    let gpus = if gpus > 0.0 {
        format!(",gres/gpu={gpus}")
    } else {
        String::new()
    };
    format!("billing={cpus},cpu={cpus}{gpus},mem={mem},node={nodes}")
}

/// `cpu=1,gres/gpu=1,mem=2G,node=1`: what a step has for itself.
fn own_tres(own: StepOwn, nodes: u32, units: Units) -> String {
    let mut parts: Vec<String> = [("cpu", own.cpus), ("gres/gpu", own.gpus)]
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name}={count}"))
        .collect();
    if own.mem_bytes > 0 {
        parts.push(format!("mem={}", units.size(own.mem_bytes, exact_size)));
    }
    parts.push(format!("node={nodes}"));
    parts.join(",")
}

/// `cpu=00:30:00,energy=1800000,gres/gpuutil=37`, as sacct names what was used, of CPU time one task's part; empty before the end.
fn usage(run: &AccountingRow, tasks: u32) -> String {
    if run.cpu_time_secs <= 0.0 && run.gpu_use.is_none() {
        return String::new();
    }
    let mut text = format!(
        "cpu={}",
        sacct_time((run.cpu_time_secs.max(0.0) / f64::from(tasks.max(1))).round() as u64)
    );
    if let Some(used) = &run.gpu_use {
        text.push_str(&format!(",energy={}", used.energy_joules));
        if let Some(percent) = used.busy_percent {
            text.push_str(&format!(",gres/gpuutil={percent:.0}"));
        }
    }
    text
}

/// `gres/gpumem=40960M,mem=1024K`.
fn usage_peak(run: &AccountingRow, units: Units) -> String {
    let gpu = run.gpu_use.map(|used| {
        format!(
            "gres/gpumem={}",
            units.size(used.memory_peak_bytes, mebibytes)
        )
    });
    let mem = (run.peak_memory_bytes > 0)
        .then(|| format!("mem={}", units.size(run.peak_memory_bytes, kibibytes)));
    gpu.into_iter().chain(mem).collect::<Vec<_>>().join(",")
}

/// Not by itself.
fn is_ended(state: JobState) -> bool {
    matches!(
        state,
        JobState::Cancelled | JobState::Preempted | JobState::Timeout | JobState::Deadline
    )
}

/// `CANCELLED by 1000`, as sacct has it; with the name of a user that this machine does not know.
fn state(run: &AccountingRow, format: &RunFormat) -> Cow<'static, str> {
    match run
        .cancelled_by
        .as_deref()
        .filter(|by| run.state == JobState::Cancelled && *by != "system")
    {
        Some(by) => format!("CANCELLED by {}", format.uid(by)).into(),
        None => run.state.long().into(),
    }
}

/// How long it waited from when it might have started.
fn planned_secs(run: &AccountingRow) -> Option<u64> {
    let eligible = run.detail.as_ref()?.eligible_time?;
    Some(
        run.start_time?
            .0
            .since_secs(eligible.0)
            .max(0)
            .cast_unsigned(),
    )
}

fn limit(run: &AccountingRow, print: impl Fn(u64) -> String) -> String {
    match run.time_limit_secs {
        None | Some(u32::MAX) => "UNLIMITED".to_owned(),
        Some(secs) => print(secs.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_of_cpus_are_printed_as_sacct_does() {
        assert_eq!(cpu_time(62.3456), "01:02.346");
        assert_eq!(cpu_time(3723.0), "01:02:03");
        assert_eq!(cpu_time(-1.0), "00:00.000");
    }

    #[test]
    fn energy_is_shortened_as_sacct_does() {
        assert_eq!(
            [0, 999, 2000, 1_804_000].map(large),
            ["0", "999", "2K", "1.80M"]
        );
    }

    #[test]
    fn field_names_are_read_in_any_case_and_refused_with_a_guess() {
        let columns = read("jobid,state%20,user%-5").unwrap();
        assert_eq!(
            columns
                .iter()
                .map(|(column, _)| column.title())
                .collect::<Vec<_>>(),
            ["JobID", "State", "User"]
        );
        assert_eq!(
            (columns[1].1.width, columns[1].1.right, columns[2].1.right),
            (Some(20), true, false)
        );
        assert_eq!(
            read("nodlist").unwrap_err().to_string(),
            r#"Invalid field requested: "nodlist". Did you mean "NodeList"? gacct -e lists them"#
        );
    }

    #[test]
    fn columns_name_keys_that_rows_have() {
        let all = read("all").unwrap();
        assert!(
            keys(&all)
                .iter()
                .all(|key| RunRowKey::of(key) != RunRowKey::other),
            "{:?}",
            keys(&all)
        );
        assert_eq!(
            keys(&read("state,jobid,state").unwrap()),
            ["id", "shown_id", "state", "cancelled_by"]
        );
    }

    #[test]
    fn sizes_are_shown_in_the_unit_asked_for() {
        let size = |unit: &str, bytes| Units::read(unit).unwrap().size(bytes, exact_size);
        assert_eq!(
            (
                size("g", 300 << 20),
                size("M", 300 << 20),
                size("K", 1 << 20)
            ),
            ("0.29G".into(), "300M".into(), "1024K".into())
        );
        assert_eq!(Units::default().size(300 << 20, exact_size), "300M");
        assert!(Units::read("X").unwrap_err().contains("K, M, G, T and P"));
    }

    #[test]
    fn a_cancelled_job_says_by_whom_as_sacct_does() {
        let by = |name: &str| {
            state(
                &AccountingRow {
                    state: JobState::Cancelled,
                    cancelled_by: Some(name.into()),
                    ..AccountingRow::default()
                },
                &RunFormat::default(),
            )
        };
        assert_eq!(
            (by("root"), by("system")),
            ("CANCELLED by 0".into(), "CANCELLED".into())
        );
        assert_eq!(
            by("nobody-of-that-name"),
            "CANCELLED by nobody-of-that-name"
        );
        let ended = AccountingRow {
            state: JobState::Completed,
            cancelled_by: Some("root".into()),
            ..AccountingRow::default()
        };
        assert_eq!(state(&ended, &RunFormat::default()), "COMPLETED");
    }

    #[test]
    fn fields_of_sacct_that_are_said_here_keep_their_names() {
        for name in [
            "DerivedExitCode",
            "AllocNodes",
            "Cluster",
            "Constraints",
            "Eligible",
            "GID",
            "Planned",
            "PlannedCPU",
            "Priority",
            "ReqCPUS",
            "ReqNodes",
            "Reservation",
            "Restarts",
            "UID",
            "reserved",
            "ResvCPU",
            "MaxVMSize",
            "Group",
            "UserCPU",
        ] {
            assert_eq!(read(name).unwrap().len(), 1, "{name}");
        }
        assert_eq!(read("all").unwrap().len(), COLUMNS.len());
        assert!(
            COLUMNS.is_sorted_by_key(|entry| entry.1.to_ascii_lowercase()),
            "as --helpformat lists them"
        );
    }

    proptest! {
        #[test]
        fn any_format_is_read_or_refused(text in "\\PC{0,40}|([a-zA-Z]{1,9}(%-?[0-9]{0,5})?,?){0,5}") {
            let _ = read(&text);
        }
    }
}
