//! The columns of accounting: sacct's field names, widths and values. Source: sacct(1).

use crate::efficiency::gpu_percent;
use crate::usage_report::percent;
use gcli::column_format::{FormatError, Spec, parse_percent_names};
use gcli::local_time::TimeFormat;
use gmodel::duration::sacct_time;
use gmodel::size::exact_size;
use gmodel::suggest::did_you_mean;
use gmodel::{Instant, JobState};
use gwire::api::RunRow;

/// What a column shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunColumn {
    Account,
    AllocCpus,
    AllocTres,
    Attempt,
    Class,
    Comment,
    ConsumedEnergy,
    ConsumedEnergyRaw,
    CpuEff,
    CpuTime,
    CpuTimeRaw,
    Elapsed,
    ElapsedRaw,
    End,
    ExitCode,
    GpuEff,
    GpuIdle,
    GpuMaxMem,
    GpuMaxPower,
    Gpus,
    JobId,
    JobIdRaw,
    JobName,
    LostGpuSecs,
    MaxRss,
    MemEff,
    NCpus,
    NNodes,
    NodeList,
    Partition,
    Qos,
    Reason,
    ReqMem,
    ReqTres,
    Start,
    State,
    Submit,
    Tags,
    Timelimit,
    TimelimitRaw,
    TotalCpu,
    TresUsageInAve,
    TresUsageInMax,
    User,
    WorkDir,
}

type Entry = (RunColumn, &'static str, usize);

#[rustfmt::skip] // read as a table
const COLUMNS: &[Entry] = &[
    (RunColumn::Account,      "Account",      10),
    (RunColumn::AllocCpus,    "AllocCPUS",    10),
    (RunColumn::AllocTres,    "AllocTRES",    10),
    (RunColumn::Attempt,      "Attempt",       7),
    (RunColumn::Class,        "Class",        10),
    (RunColumn::Comment,      "Comment",      14),
    (RunColumn::ConsumedEnergy, "ConsumedEnergy", 14),
    (RunColumn::ConsumedEnergyRaw, "ConsumedEnergyRaw", 17),
    (RunColumn::CpuEff,       "CPUEff",        7),
    (RunColumn::CpuTime,      "CPUTime",      10),
    (RunColumn::CpuTimeRaw,   "CPUTimeRAW",   10),
    (RunColumn::Elapsed,      "Elapsed",      10),
    (RunColumn::ElapsedRaw,   "ElapsedRaw",   10),
    (RunColumn::End,          "End",          19),
    (RunColumn::ExitCode,     "ExitCode",      8),
    (RunColumn::GpuEff,       "GPUEff",        7),
    (RunColumn::GpuIdle,      "GPUIdle",      10),
    (RunColumn::GpuMaxMem,    "GPUMaxMem",    10),
    (RunColumn::GpuMaxPower,  "GPUMaxPower",  11),
    (RunColumn::Gpus,         "GPUs",         10),
    (RunColumn::JobId,        "JobID",        12),
    (RunColumn::JobIdRaw,     "JobIDRaw",     12),
    (RunColumn::JobName,      "JobName",      10),
    (RunColumn::LostGpuSecs,  "LostGPUSecs",  11),
    (RunColumn::MaxRss,       "MaxRSS",       10),
    (RunColumn::MemEff,       "MemEff",        7),
    (RunColumn::NCpus,        "NCPUS",        10),
    (RunColumn::NNodes,       "NNodes",        8),
    (RunColumn::NodeList,     "NodeList",     15),
    (RunColumn::Partition,    "Partition",    10),
    (RunColumn::Qos,          "QOS",          10),
    (RunColumn::Reason,       "Reason",       30),
    (RunColumn::ReqMem,       "ReqMem",       10),
    (RunColumn::ReqTres,      "ReqTRES",      10),
    (RunColumn::Start,        "Start",        19),
    (RunColumn::State,        "State",        10),
    (RunColumn::Submit,       "Submit",       19),
    (RunColumn::Tags,         "Tags",         14),
    (RunColumn::Timelimit,    "Timelimit",    10),
    (RunColumn::TimelimitRaw, "TimelimitRaw", 13),
    (RunColumn::TotalCpu,     "TotalCPU",     10),
    (RunColumn::TresUsageInAve, "TRESUsageInAve", 14),
    (RunColumn::TresUsageInMax, "TRESUsageInMax", 14),
    (RunColumn::User,         "User",          9),
    (RunColumn::WorkDir,      "WorkDir",      22),
];

/// Columns when none are named, and of `--long`.
pub(crate) const USUAL: &str = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode";
pub(crate) const LONG: &str = "JobID,JobName,User,Account,Partition,QOS,State,ExitCode,Submit,Start,End,Elapsed,Timelimit,\
                               NNodes,NCPUS,GPUs,Class,ReqMem,MaxRSS,TotalCPU,GPUEff,GPUIdle,GPUMaxMem,ConsumedEnergy,NodeList";

/// Reads `-o`: `jobid,state%20`.
pub(crate) fn read(text: &str) -> Result<Vec<(RunColumn, Spec)>, FormatError> {
    parse_percent_names(text, of_name, |column| {
        let left = matches!(column, RunColumn::JobId | RunColumn::JobIdRaw);
        Spec { width: Some(column.entry().2), right: !left, cut_mark: "+" }
    })
}

fn of_name(name: &str) -> Result<RunColumn, String> {
    let found = COLUMNS.iter().find(|entry| entry.1.eq_ignore_ascii_case(name)).map(|entry| entry.0);
    found.ok_or_else(|| {
        let hint = did_you_mean(name, COLUMNS.iter().map(|entry| entry.1));
        format!("Invalid field requested: {name:?}.{hint} gacct -e lists them")
    })
}

/// The names, four to a line, as `sacct --helpformat` prints them.
pub(crate) fn names() -> String {
    let lines = COLUMNS.chunks(4).map(|names| names.iter().map(|entry| format!("{:<19} ", entry.1)).collect::<String>());
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}

impl RunColumn {
    fn entry(self) -> &'static Entry {
        COLUMNS.iter().find(|entry| entry.0 == self).expect("every column is in the table")
    }

    pub(crate) fn title(self) -> &'static str {
        self.entry().1
    }

    /// What the column prints.
    pub(crate) fn text(self, run: &RunRow, times: &TimeFormat) -> String {
        let secs = run.elapsed_secs.max(0).cast_unsigned();
        let used = run.gpu_use.as_ref();
        let at = |instant: Option<Instant>| instant.map_or("Unknown".to_owned(), |at| times.print(at.0));
        match self {
            Self::Account => run.account.clone(),
            Self::AllocCpus | Self::NCpus => run.cpus.to_string(),
            Self::AllocTres if run.state == JobState::Pending => String::new(),
            Self::AllocTres | Self::ReqTres => tres(run),
            Self::Attempt => run.attempt.to_string(),
            Self::Class => run.class.clone().unwrap_or_default(),
            Self::Comment => run.comment.clone(),
            Self::ConsumedEnergy => used.map_or(String::new(), |used| large(used.energy_joules)),
            Self::ConsumedEnergyRaw => used.map_or(String::new(), |used| used.energy_joules.to_string()),
            Self::CpuEff => percent(run.cpu_percent).unwrap_or_default(),
            Self::CpuTime => sacct_time(secs * u64::from(run.cpus)),
            Self::CpuTimeRaw => (secs * u64::from(run.cpus)).to_string(),
            Self::Elapsed => sacct_time(secs),
            Self::ElapsedRaw => secs.to_string(),
            Self::End => at(run.end_time),
            Self::ExitCode => run.exit_code.to_string(),
            Self::GpuEff => percent(gpu_percent(run)).unwrap_or_default(),
            Self::GpuIdle => used.map_or(String::new(), |used| sacct_time(used.idle_secs)),
            Self::GpuMaxMem => used.map_or(String::new(), |used| mebibytes(used.memory_peak_bytes)),
            Self::GpuMaxPower => used.map_or(String::new(), |used| format!("{:.0}W", used.power_peak_watts)),
            Self::Gpus if run.gpus.is_empty() => "0".to_owned(),
            Self::Gpus => run.gpus.clone(),
            Self::JobId => run.shown_id.clone(),
            Self::JobIdRaw => run.id.to_string(),
            Self::JobName => run.name.clone(),
            Self::LostGpuSecs => run.lost_gpu_secs.to_string(),
            Self::MaxRss if run.peak_memory_bytes == 0 => String::new(),
            Self::MaxRss => format!("{}K", run.peak_memory_bytes.div_ceil(1024)),
            Self::MemEff => percent(run.mem_percent).unwrap_or_default(),
            Self::NNodes => run.nodes.to_string(),
            Self::NodeList if run.nodelist.is_empty() => "None assigned".to_owned(),
            Self::NodeList => run.nodelist.clone(),
            Self::Partition => run.partition.clone(),
            Self::Qos => run.qos.clone(),
            Self::Reason => run.end_text.clone(),
            Self::ReqMem => exact_size(run.mem_bytes),
            Self::Start => at(run.start_time),
            Self::State => run.state.long().to_owned(),
            Self::Submit => at(run.submit_time),
            Self::Tags => run.tags.join(","),
            Self::Timelimit => limit(run, sacct_time),
            Self::TimelimitRaw => limit(run, |secs| (secs / 60).to_string()),
            Self::TotalCpu => cpu_time(run.cpu_time_secs),
            Self::TresUsageInAve => usage_mean(run),
            Self::TresUsageInMax => usage_peak(run),
            Self::User => run.user.clone(),
            Self::WorkDir => run.work_dir.clone(),
        }
    }
}

/// `billing=2,cpu=2,gres/gpu=1,mem=300M,node=1`, sorted as sacct sorts it.
fn tres(run: &RunRow) -> String {
    let gpus = if run.gpu_count > 0.0 { format!(",gres/gpu={}", run.gpu_count) } else { String::new() };
    format!("billing={0},cpu={0}{gpus},mem={1},node={2}", run.cpus, exact_size(run.mem_bytes), run.nodes)
}

/// `cpu=00:30:00,energy=1800000,gres/gpuutil=37`, as sacct names what was used; empty before the end.
fn usage_mean(run: &RunRow) -> String {
    if run.cpu_time_secs <= 0.0 && run.gpu_use.is_none() {
        return String::new();
    }
    let mut text = format!("cpu={}", sacct_time(run.cpu_time_secs.max(0.0).round() as u64));
    if let Some(used) = &run.gpu_use {
        text.push_str(&format!(",energy={}", used.energy_joules));
        if let Some(percent) = used.busy_percent {
            text.push_str(&format!(",gres/gpuutil={percent:.0}"));
        }
    }
    text
}

/// `gres/gpumem=40960M,mem=1024K`.
fn usage_peak(run: &RunRow) -> String {
    let gpu = run.gpu_use.map(|used| format!("gres/gpumem={}", mebibytes(used.memory_peak_bytes)));
    let mem = (run.peak_memory_bytes > 0).then(|| format!("mem={}K", run.peak_memory_bytes.div_ceil(1024)));
    gpu.into_iter().chain(mem).collect::<Vec<_>>().join(",")
}

fn mebibytes(bytes: u64) -> String {
    format!("{}M", bytes.div_ceil(1 << 20))
}

/// Joules as sacct shortens them: `1.80M`, `999`, `2K`.
fn large(number: u64) -> String {
    let (mut size, mut unit) = (number as f64, "");
    for next in ["K", "M", "G", "T"] {
        if size < 1000.0 {
            break;
        }
        (size, unit) = (size / 1000.0, next);
    }
    if size.fract() == 0.0 { format!("{size:.0}{unit}") } else { format!("{size:.2}{unit}") }
}

fn limit(run: &RunRow, print: impl Fn(u64) -> String) -> String {
    match run.time_limit_secs {
        None | Some(u32::MAX) => "UNLIMITED".to_owned(),
        Some(secs) => print(secs.into()),
    }
}

/// `01:02.345`, from an hour `01:02:03`.
fn cpu_time(secs: f64) -> String {
    let millis = (secs.max(0.0) * 1000.0).round() as u64;
    match millis / 1000 {
        secs if secs >= 3600 => sacct_time(secs),
        secs => format!("{:02}:{:02}.{:03}", secs / 60, secs % 60, millis % 1000),
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
        assert_eq!([0, 999, 2000, 1_804_000].map(large), ["0", "999", "2K", "1.80M"]);
    }

    #[test]
    fn field_names_are_read_in_any_case_and_refused_with_a_guess() {
        let columns = read("jobid,state%20,user%-5").unwrap();
        assert_eq!(columns.iter().map(|(column, _)| column.title()).collect::<Vec<_>>(), ["JobID", "State", "User"]);
        assert_eq!((columns[1].1.width, columns[1].1.right, columns[2].1.right), (Some(20), true, false));
        assert_eq!(
            read("nodlist").unwrap_err().to_string(),
            r#"Invalid field requested: "nodlist". Did you mean "NodeList"? gacct -e lists them"#
        );
    }

    proptest! {
        #[test]
        fn any_format_is_read_or_refused(text in "\\PC{0,40}|([a-zA-Z]{1,9}(%-?[0-9]{0,5})?,?){0,5}") {
            let _ = read(&text);
        }
    }
}
