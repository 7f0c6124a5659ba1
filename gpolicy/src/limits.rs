//! Hard limits in numbers: what a run holds, what its account or user holds already, and the reason when both exceed a limit.
//!
//! Owns the comparison and the words of each reason (Slurm's spelling). Which limits apply to a job is the
//! ledger's to know. Source: sacctmgr(1), "resource limits".

use gmodel::gpu_amounts::milli_text;
use gmodel::policy::{ALL_GPUS, GpuAmounts, JobLimits, Limits};
use gmodel::{Reason, ReasonCode, Timestamp};

/// Place of all GPUs together among the types.
pub const ALL: usize = 0;
/// More types than this in one run are kept on the heap.
const FEW_TYPES: usize = 4;
/// Thousandths of a GPU that its slices together may lack: seven of 142 are all of it.
pub const LOST_BY_SLICES: u64 = 6;

/// GPU types by number. 0 is all types together; the last one is for types without a name.
#[derive(Clone, Debug)]
pub struct GpuTypes {
    names: Vec<String>,
}

impl GpuTypes {
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut types = Self {
            names: vec![ALL_GPUS.to_owned()],
        };
        let mut last = "";
        for name in names {
            // Most GPUs are of the type of the one before.
            if last == name {
                continue;
            }
            last = name;
            if !types
                .names
                .iter()
                .any(|known| known.eq_ignore_ascii_case(name))
            {
                types.names.push(name.to_ascii_lowercase());
            }
        }
        types.names.push(String::new());
        types
    }
    pub fn len(&self) -> usize {
        self.names.len()
    }
    pub fn is_empty(&self) -> bool {
        false
    }
    /// Of a type that is not known the last number.
    pub fn number(&self, name: &str) -> usize {
        self.names
            .iter()
            .position(|known| known.eq_ignore_ascii_case(name))
            .unwrap_or(self.names.len() - 1)
    }
    /// `32 GPUs`, `0.5 GPUs`, `4 h100`.
    pub fn text(&self, number: usize, milli: u64) -> String {
        let count = milli_text(milli);
        match self.names[number].as_str() {
            ALL_GPUS | "" if milli == 1000 => format!("{count} GPU"),
            ALL_GPUS | "" => format!("{count} GPUs"),
            name => format!("{count} {name}"),
        }
    }
}

/// What one run holds, or one job would.
#[derive(Clone, Debug, Default)]
pub struct Holding {
    pub cpus: u64,
    pub nodes: u64,
    /// Thousandths of GPUs of all types.
    pub gpus: u64,
    few: [(usize, u64); FEW_TYPES],
    few_len: usize,
    more: Vec<(usize, u64)>,
    /// When it was placed.
    pub since: Timestamp,
    /// When it ends at the latest; `None`: no limit.
    pub until: Option<Timestamp>,
}

impl Holding {
    /// Without GPUs as yet.
    pub fn new(cpus: u64, nodes: u64, since: Timestamp, until: Option<Timestamp>) -> Self {
        Self {
            cpus,
            nodes,
            since,
            until,
            ..Self::default()
        }
    }

    /// Adds GPUs of a type, thousandths. [`ALL`] is a type that is not known.
    pub fn add_gpus(&mut self, number: usize, milli: u64) {
        self.gpus += milli;
        if number == ALL || milli == 0 {
            return;
        }
        let known = self.few[..self.few_len]
            .iter_mut()
            .chain(&mut self.more)
            .find(|(known, _)| *known == number);
        if let Some((_, held)) = known {
            *held += milli;
        } else if self.few_len < FEW_TYPES {
            self.few[self.few_len] = (number, milli);
            self.few_len += 1;
        } else {
            self.more.push((number, milli));
        }
    }

    /// Thousandths by type, for each type it has any of.
    pub fn by_type(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.few[..self.few_len].iter().chain(&self.more).copied()
    }

    /// All types together first, then each.
    pub fn each(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        std::iter::once((ALL, self.gpus)).chain(self.by_type())
    }

    pub fn of(&self, number: usize) -> u64 {
        self.each()
            .find(|(known, _)| *known == number)
            .map_or(0, |(_, milli)| milli)
    }

    /// Milliseconds of its life that lie between two times.
    pub fn millis_within(&self, from: Timestamp, to: Timestamp) -> u64 {
        let end = self.until.unwrap_or(to).min(to);
        end.since_millis(from) as u64
    }
}

/// What the runs hold together that count for one limit.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    pub jobs: u64,
    pub cpus: u64,
    pub nodes: u64,
    /// Thousandths, by number of the type.
    pub gpus: Vec<u64>,
    /// Thousandths of a GPU times milliseconds that the runs may still use by their limits.
    pub promised: u128,
    /// Runs with GPUs that have no limit.
    pub endless: u64,
}

impl Meter {
    pub fn add(&mut self, held: &Holding, now: Timestamp, types: usize) {
        self.gpus.resize(types, 0);
        self.jobs += 1;
        self.cpus += held.cpus;
        self.nodes += held.nodes;
        for (number, milli) in held.each() {
            self.gpus[number] += milli;
        }
        match promise(held, now) {
            Some(promised) => self.promised += promised,
            None => self.endless += 1,
        }
    }

    pub fn remove(&mut self, held: &Holding, now: Timestamp) {
        self.jobs -= 1;
        self.cpus -= held.cpus;
        self.nodes -= held.nodes;
        for (number, milli) in held.each() {
            self.gpus[number] -= milli;
        }
        match promise(held, now) {
            Some(promised) => self.promised -= promised,
            None => self.endless -= 1,
        }
    }

    pub fn gpus_of(&self, number: usize) -> u64 {
        self.gpus.get(number).copied().unwrap_or(0)
    }
}

/// GPU time that a run may still use by its limit; `None` is without end.
fn promise(held: &Holding, now: Timestamp) -> Option<u128> {
    if held.gpus == 0 {
        return Some(0);
    }
    held.until
        .map(|until| u128::from(held.gpus) * until.since_millis(now) as u128)
}

/// Thousandths of a GPU times milliseconds in a GPU-hour.
pub const GPU_HOUR: u128 = 1000 * 3_600_000;

/// Limits with types as numbers.
#[derive(Clone, Debug, Default)]
pub struct Bound {
    jobs: Option<u32>,
    cpus: Option<u32>,
    nodes: Option<u32>,
    gpu_hours: Option<u64>,
    gpus: Vec<(usize, u64)>,
}

/// What a limit is on: it decides the reason's code and how its sentence begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Account,
    UserInAccount,
    Qos,
    UserInQos,
    AccountInQos,
    Partition,
    UserInPartition,
    AccountInPartition,
}

impl Bound {
    /// `None` when nothing is bounded.
    pub fn new(limits: &Limits, types: &GpuTypes) -> Option<Self> {
        Self::with_gpus(limits, None, types)
    }

    /// Two bounds on GPUs of one owner, of which both hold.
    pub fn with_gpus(limits: &Limits, also: Option<&GpuAmounts>, types: &GpuTypes) -> Option<Self> {
        let bound = Self {
            jobs: limits.running_jobs,
            cpus: limits.cpus,
            nodes: limits.nodes,
            gpu_hours: limits.running_gpu_hours,
            gpus: numbered(limits.gpus.as_ref(), types)
                .chain(numbered(also, types))
                .collect(),
        };
        let none = bound.jobs.is_none()
            && bound.cpus.is_none()
            && bound.nodes.is_none()
            && bound.gpu_hours.is_none();
        (!none || !bound.gpus.is_empty()).then_some(bound)
    }

    /// The first limit that `wanted` more would exceed.
    pub fn exceeded(
        &self,
        scope: Scope,
        subject: &dyn Fn() -> String,
        meter: Option<&Meter>,
        wanted: &Holding,
        now: Timestamp,
        types: &GpuTypes,
    ) -> Option<Reason> {
        let none = Meter::default();
        let held = meter.unwrap_or(&none);
        let over = self.over(held, wanted, now)?;
        let text = over.text(held, wanted, now, types);
        Some(Reason::new(
            scope.code(over),
            format!("{} {text}", subject()),
        ))
    }

    /// Which one that is, and how much it allows.
    pub fn over(&self, held: &Meter, wanted: &Holding, now: Timestamp) -> Option<ExceededBound> {
        if let Some(most) = self.jobs.map(u64::from).filter(|most| held.jobs >= *most) {
            return Some(ExceededBound::Jobs(most));
        }
        let is_over = |&&(number, most): &&(usize, u64)| {
            wanted.of(number) > 0 && held.gpus_of(number) + wanted.of(number) > most
        };
        if let Some((number, most)) = self.gpus.iter().find(is_over) {
            return Some(ExceededBound::Gpus(*number, *most));
        }
        if let Some(most) = self
            .cpus
            .map(u64::from)
            .filter(|most| held.cpus + wanted.cpus > *most)
        {
            return Some(ExceededBound::Cpus(most));
        }
        if let Some(most) = self
            .nodes
            .map(u64::from)
            .filter(|most| held.nodes + wanted.nodes > *most)
        {
            return Some(ExceededBound::Nodes(most));
        }
        let most = self.gpu_hours.filter(|_| wanted.gpus > 0)?;
        let adds = promise(wanted, now);
        let within = held.endless == 0
            && adds.is_some_and(|adds| held.promised + adds <= u128::from(most) * GPU_HOUR);
        (!within).then_some(ExceededBound::GpuHours(most))
    }
}

/// What of a bound would be exceeded, with what it allows: GPUs of a type by its number, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceededBound {
    Jobs(u64),
    Gpus(usize, u64),
    Cpus(u64),
    Nodes(u64),
    GpuHours(u64),
}

impl ExceededBound {
    /// The end of a sentence that begins with the limit's subject.
    fn text(self, held: &Meter, wanted: &Holding, now: Timestamp, types: &GpuTypes) -> String {
        let holds = |most: String, has: String, wants: String| {
            format!("may hold {most} and holds {has}; this job needs {wants}")
        };
        match self {
            Self::Jobs(most) => {
                let most = count(most, "job");
                format!("may run {most} at once and runs {}", held.jobs)
            }
            Self::Gpus(number, most) => holds(
                types.text(number, most),
                milli_text(held.gpus_of(number)),
                milli_text(wanted.of(number)),
            ),
            Self::Cpus(most) => holds(
                count(most, "CPU"),
                held.cpus.to_string(),
                wanted.cpus.to_string(),
            ),
            Self::Nodes(most) => holds(
                count(most, "node"),
                held.nodes.to_string(),
                wanted.nodes.to_string(),
            ),
            Self::GpuHours(most) => {
                let has = if held.endless > 0 {
                    "are without end".into()
                } else {
                    format!("add up to {}", hours_text(held.promised))
                };
                let adds = promise(wanted, now).map_or("has no time limit".into(), |adds| {
                    format!("adds {}", hours_text(adds))
                });
                format!(
                    "may run jobs whose time limits add up to {most} GPU-hours; they {has} and this job {adds}"
                )
            }
        }
    }
}

impl Scope {
    const fn code(self, what: ExceededBound) -> ReasonCode {
        use ExceededBound as B;
        use ReasonCode as R;
        match (self, what) {
            (Self::Account, B::Jobs(_)) => R::AssocGrpJobsLimit,
            (Self::Account, B::Gpus(..)) => R::AssocGrpGRES,
            (Self::Account, B::Cpus(_)) => R::AssocGrpCpuLimit,
            (Self::Account, B::Nodes(_)) => R::AssocGrpNodeLimit,
            (Self::Account | Self::UserInAccount, B::GpuHours(_)) => R::AssocGrpGRESRunMinutes,
            (Self::UserInAccount, B::Jobs(_)) => R::AssocMaxJobsLimit,
            (Self::UserInAccount, B::Gpus(..)) => R::AssocMaxGRESPerUser,
            (Self::UserInAccount, B::Cpus(_)) => R::AssocMaxCpuPerUser,
            (Self::UserInAccount, B::Nodes(_)) => R::AssocMaxNodePerUser,
            // A partition's limits are those of its own QOS in Slurm.
            (Self::Qos | Self::Partition, B::Jobs(_)) => R::QOSGrpJobsLimit,
            (Self::Qos | Self::Partition, B::Gpus(..)) => R::QOSGrpGRES,
            (Self::Qos | Self::Partition, B::Cpus(_)) => R::QOSGrpCpuLimit,
            (Self::Qos | Self::Partition, B::Nodes(_)) => R::QOSGrpNodeLimit,
            (Self::UserInQos | Self::UserInPartition, B::Jobs(_)) => R::QOSMaxJobsPerUserLimit,
            (Self::UserInQos | Self::UserInPartition, B::Gpus(..)) => R::QOSMaxGRESPerUser,
            (Self::UserInQos | Self::UserInPartition, B::Cpus(_)) => R::QOSMaxCpuPerUserLimit,
            (Self::UserInQos | Self::UserInPartition, B::Nodes(_)) => R::QOSMaxNodePerUserLimit,
            (Self::AccountInQos | Self::AccountInPartition, B::Jobs(_)) => R::MaxJobsPerAccount,
            (Self::AccountInQos | Self::AccountInPartition, B::Gpus(..)) => R::MaxGRESPerAccount,
            (Self::AccountInQos | Self::AccountInPartition, B::Cpus(_)) => R::MaxCpuPerAccount,
            (Self::AccountInQos | Self::AccountInPartition, B::Nodes(_)) => R::MaxNodePerAccount,
            (_, B::GpuHours(_)) => R::QOSGrpGRESRunMinutes,
        }
    }

    /// How the sentence begins.
    pub fn subject(self, account: &str, user: &str, qos: &str, partition: &str) -> String {
        match self {
            Self::Account => format!("account {account}"),
            Self::UserInAccount => format!("user {user} in account {account}"),
            Self::Qos => format!("QOS {qos}"),
            Self::UserInQos => format!("user {user} in QOS {qos}"),
            Self::AccountInQos => format!("account {account} in QOS {qos}"),
            Self::Partition => format!("partition {partition}"),
            Self::UserInPartition => format!("user {user} in partition {partition}"),
            Self::AccountInPartition => format!("account {account} in partition {partition}"),
        }
    }
}

/// What a QOS allows one job.
pub fn job_exceeds(
    limits: &JobLimits,
    qos: &str,
    wanted: &Holding,
    limit_secs: Option<u32>,
    types: &GpuTypes,
) -> Option<Reason> {
    let reason = |code, text: String| Some(Reason::new(code, format!("QOS {qos} allows {text}")));
    if let Some(most) = limits
        .time_secs
        .filter(|most| limit_secs.is_none_or(|secs| secs > *most))
    {
        let asked = limit_secs.map_or("has no time limit".into(), |secs| {
            format!("asks for {}", secs_text(secs))
        });
        let text = format!("{} a job; this job {asked}", secs_text(most));
        return reason(ReasonCode::QOSMaxWallDurationPerJobLimit, text);
    }
    for (number, most) in numbered(limits.gpus.as_ref(), types) {
        if wanted.of(number) > most {
            let (most, needs) = (types.text(number, most), milli_text(wanted.of(number)));
            let text = format!("{most} a job; this job needs {needs}");
            return reason(ReasonCode::QOSMaxGRESPerJob, text);
        }
    }
    for (number, least) in numbered(limits.min_gpus.as_ref(), types) {
        if wanted.of(number) < least {
            let (least, asks) = (types.text(number, least), milli_text(wanted.of(number)));
            let text = format!("jobs of {least} at least; this job asks for {asks}");
            return reason(ReasonCode::QOSMinGRES, text);
        }
    }
    let nodes = (
        limits.nodes,
        wanted.nodes,
        "node",
        ReasonCode::QOSMaxNodePerJobLimit,
    );
    let cpus = (
        limits.cpus,
        wanted.cpus,
        "CPU",
        ReasonCode::QOSMaxCpuPerJobLimit,
    );
    for (most, wants, name, code) in [nodes, cpus] {
        if let Some(most) = most.map(u64::from).filter(|most| wants > *most) {
            return reason(
                code,
                format!("{} a job; this job needs {wants}", count(most, name)),
            );
        }
    }
    None
}

fn numbered(amounts: Option<&GpuAmounts>, types: &GpuTypes) -> impl Iterator<Item = (usize, u64)> {
    let amounts = amounts.into_iter().flat_map(|amounts| &amounts.0);
    amounts.map(|(name, milli)| (types.number(name), *milli))
}

/// `1 node`, `2 nodes`.
pub fn count(number: u64, name: &str) -> String {
    format!("{number} {name}{}", if number == 1 { "" } else { "s" })
}

/// GPU time in hours, to the thousandth.
pub fn hours_text(gpu_time: u128) -> String {
    milli_text(u64::try_from(gpu_time * 1000 / GPU_HOUR).unwrap_or(u64::MAX))
}

/// A duration as people say it: `90 s`, `30 min`, `24 h`.
pub fn secs_text(secs: u32) -> String {
    match secs {
        secs if secs >= 3600 && secs % 3600 == 0 => format!("{} h", secs / 3600),
        secs if secs >= 60 && secs % 60 == 0 => format!("{} min", secs / 60),
        secs => format!("{secs} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_asks_beyond_a_qos_has_the_code_of_what_it_is() {
        let limits = JobLimits {
            time_secs: Some(600),
            cpus: Some(8),
            nodes: Some(2),
            ..JobLimits::default()
        };
        let told = |cpus: u64, nodes: u64, secs: u32| {
            let wanted = Holding::new(cpus, nodes, Timestamp::default(), None);
            job_exceeds(&limits, "q", &wanted, Some(secs), &GpuTypes::new([]))
                .map(|reason| (reason.code, reason.text.to_string()))
        };
        assert_eq!(told(8, 2, 600), None);
        let all = [told(9, 2, 600), told(8, 3, 600), told(8, 2, 660)];
        let wrong = [
            (
                ReasonCode::QOSMaxCpuPerJobLimit,
                "QOS q allows 8 CPUs a job; this job needs 9",
            ),
            (
                ReasonCode::QOSMaxNodePerJobLimit,
                "QOS q allows 2 nodes a job; this job needs 3",
            ),
            (
                ReasonCode::QOSMaxWallDurationPerJobLimit,
                "QOS q allows 10 min a job; this job asks for 11 min",
            ),
        ];
        assert_eq!(all, wrong.map(|(code, text)| Some((code, text.to_owned()))));
    }
}
