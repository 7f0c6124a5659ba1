//! A job: what its user asked for, and the states it passes through.
//!
//! `JobSpec` is the request as accepted; the script, its environment and stdin are blobs named by
//! their SHA-256 and never appear here.

use crate::array_spec::ArraySpec;
use crate::blob_id::BlobId;
use crate::checkpoint::CheckpointSpec;
use crate::container::ContainerSpec;
use crate::dependency::Dependency;
use crate::gpu_request::GpuRequest;
use crate::hostlist::Hostlist;
use crate::ids::TokenId;
use crate::job_part::JobPart;
use crate::own_keys::{self, OwnKeys};
use crate::shared::Shared;
use crate::signal::SigSpec;
use crate::time::Timestamp;
use serde::de::MapAccess;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// The user a job runs as. Names are the identity; the numbers are checked on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UserRef {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

impl UserRef {
    /// Whether a user of this name and uid is this one: a name is given again when its first user has left.
    pub fn is(&self, name: &str, uid: u32) -> bool {
        let unknown = self.uid == 0 && self.name != "root";
        self.name == name && (self.uid == uid || unknown)
    }
}

/// A submission, complete: defaults of the partition are filled in by the controller.
///
/// What each job has for itself stands here and in [`Launch`]; the rest is the same for most jobs of a user and stands
/// once in memory. Both read, and are written in JSON, as one: `spec.partition` is `spec.common.partition`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct JobSpec {
    pub name: String,
    pub launch: Launch,
    #[serde(flatten)]
    pub common: Shared<CommonSpec>,
}

/// What a job's request may have in common with others.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct CommonSpec {
    /// Set by the controller from the kernel's word, never by the client.
    pub user: UserRef,
    /// Empty means the cluster's default. While the job waits in several: their names, `a,b`.
    pub partition: String,
    /// Of a job that named several, once `partition` is the one of its run: all of them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub partitions: String,
    /// Only in what the scheduler looks at: `request.constraint` is one of so many alternatives, counted from 0.
    #[serde(skip)]
    pub alternative: Option<(u32, u32)>,
    /// Empty means the user's default.
    pub account: String,
    pub qos: String,
    pub request: Request,
    /// It has no script: its nodes hold steps only, until its client ends it. It never goes back to the queue once it was granted.
    #[serde(skip_serializing_if = "is_false")]
    pub allocation: bool,
    /// The client of the allocation does not stay: it ends by its limit, or when it is told to.
    #[serde(skip_serializing_if = "is_false")]
    pub unattended: bool,
    /// Set by the controller: a component of a job of unlike parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<JobPart>,
    /// Set by the controller: the token that it was submitted with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenId>,
    /// Seconds; `None` is the partition's default (and `u32::MAX` is UNLIMITED).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit_secs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begin: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<ArraySpec>,
    #[serde(skip_serializing_if = "is_zero")]
    pub nice: i32,
    #[serde(skip_serializing_if = "is_false")]
    pub hold: bool,
    /// May the job be started again after a node failure? `None` is the partition's word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requeue: Option<bool>,
    /// Keep a multi-node run alive when a member is lost.
    #[serde(skip_serializing_if = "is_false")]
    pub no_kill: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dependency: Option<Dependency>,
    /// Cancel the job when its dependency can never be met; `None`: it stays, shown as such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kill_on_invalid_dep: Option<bool>,
    /// Licences held while it runs, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub licences: BTreeMap<String, u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// How it is told to write a checkpoint before it must go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointSpec>,
    /// May it start on GPUs lent by others? `None`: if it may be requeued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub borrow: Option<bool>,
    /// Set by an operator in place of the computed priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// The site's own factor of the priority, thousandths up to 1000. Set by the submission hook or an operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site_factor_milli: Option<u32>,
    /// `--time-min`: backfill may shorten the limit down to this to start the job earlier, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_min_secs: Option<u32>,
    /// `--deadline`: dropped when it cannot end by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// No idle policy touches it: an operator's word.
    #[serde(skip_serializing_if = "is_false")]
    pub idle_exempt: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// `--tres-bind`: which GPUs each task of a step has.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tres_bind: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Options of the *later* class that the script asked for: stored and shown, not acted on.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub later: BTreeMap<String, String>,
}

impl JobSpec {
    /// Whether it runs a script: an allocation, and a component behind the first, hold nodes for steps only.
    pub fn has_script(&self) -> bool {
        !self.allocation && self.part.is_none_or(JobPart::is_leader)
    }
}

impl<'de> OwnKeys<'de> for JobSpec {
    const KEYS: &'static [&'static str] = &["name", "launch"];
    type Common = CommonSpec;
    fn read<A: MapAccess<'de>>(&mut self, key: usize, map: &mut A) -> Result<(), A::Error> {
        match key {
            0 => self.name = map.next_value()?,
            _ => self.launch = map.next_value()?,
        }
        Ok(())
    }
    fn set_common(&mut self, common: CommonSpec) {
        self.common = common.into();
    }
}

impl<'de> Deserialize<'de> for JobSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        own_keys::deserialize(from)
    }
}

impl<'de> OwnKeys<'de> for Launch {
    const KEYS: &'static [&'static str] = &["script", "argv", "command"];
    type Common = LaunchContext;
    fn read<A: MapAccess<'de>>(&mut self, key: usize, map: &mut A) -> Result<(), A::Error> {
        match key {
            0 => self.script = map.next_value()?,
            1 => self.argv = map.next_value()?,
            _ => self.command = map.next_value()?,
        }
        Ok(())
    }
    fn set_common(&mut self, around: LaunchContext) {
        self.around = around.into();
    }
}

impl<'de> Deserialize<'de> for Launch {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        own_keys::deserialize(from)
    }
}

impl Deref for JobSpec {
    type Target = CommonSpec;
    fn deref(&self) -> &CommonSpec {
        &self.common
    }
}

impl DerefMut for JobSpec {
    fn deref_mut(&mut self) -> &mut CommonSpec {
        &mut self.common
    }
}

impl From<CommonSpec> for JobSpec {
    fn from(common: CommonSpec) -> Self {
        Self {
            common: common.into(),
            ..Self::default()
        }
    }
}

impl Deref for Launch {
    type Target = LaunchContext;
    fn deref(&self) -> &LaunchContext {
        &self.around
    }
}

impl DerefMut for Launch {
    fn deref_mut(&mut self) -> &mut LaunchContext {
        &mut self.around
    }
}

impl From<LaunchContext> for Launch {
    fn from(around: LaunchContext) -> Self {
        Self {
            around: around.into(),
            ..Self::default()
        }
    }
}

/// Resources as asked for, in the user's terms.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// Nodes at least and at most; equal for a plain `--nodes N`.
    pub nodes_min: u32,
    pub nodes_max: u32,
    /// The request names no number of nodes: as few as the tasks need. The controller writes their number above.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nodes_any: bool,
    pub ntasks: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ntasks_per_node: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus_per_task: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus_per_gpu: Option<u32>,
    /// CPUs on each node, at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mincpus: Option<u32>,
    /// CPUs for one task on each node, however many run there.
    #[serde(skip_serializing_if = "is_false")]
    pub overcommit: bool,
    #[serde(skip_serializing_if = "MemRequest::is_default")]
    pub mem: MemRequest,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuRequest>,
    pub gpu_scope: GpuScope,
    /// Any GPU whose nominal memory is at least this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_mem_mib: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    pub exclusive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodelist: Option<Hostlist>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclude: Option<Hostlist>,
    /// Expression over node features, as `--constraint` takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
    /// Features to have if they can be had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefer: Option<String>,
    /// All GPUs of a node within one NVLink island.
    #[serde(skip_serializing_if = "is_false")]
    pub nvlink: bool,
    /// `--switches`: leaf switches at most, and the seconds to wait for that (`None`: as long as it takes).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switches: Option<Switches>,
}

impl Request {
    /// How many of its tasks count CPUs, of so many on so many nodes.
    pub fn tasks_with_cpus(&self, tasks: u32, nodes: u32) -> u32 {
        match self.overcommit {
            true => tasks.min(nodes),
            false => tasks,
        }
    }
}

/// `--switches COUNT[@TIME]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Switches {
    pub most: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_secs: Option<u32>,
}

impl Switches {
    /// Until when a job waits for them that may start since some time; `None`: for ever.
    pub fn waits_until(&self, since: Timestamp) -> Option<Timestamp> {
        self.wait_secs.map(|secs| since.plus_secs(i64::from(secs)))
    }
}

impl Default for Request {
    fn default() -> Self {
        Self {
            nodes_min: 1,
            nodes_max: 1,
            nodes_any: false,
            ntasks: 1,
            ntasks_per_node: None,
            cpus_per_task: None,
            cpus_per_gpu: None,
            mincpus: None,
            overcommit: false,
            mem: MemRequest::Default,
            gpus: None,
            gpu_scope: GpuScope::Job,
            gpu_mem_mib: None,
            exclusive: false,
            nodelist: None,
            exclude: None,
            constraint: None,
            prefer: None,
            nvlink: false,
            switches: None,
        }
    }
}

/// What a GPU count is per.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuScope {
    /// `--gpus`: the whole job.
    #[default]
    Job,
    /// `--gpus-per-node`, `--gres gpu:n`.
    Node,
    /// `--gpus-per-task`.
    Task,
}

/// Memory as asked for; bytes. `PerNode(0)` is all of the node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemRequest {
    #[default]
    Default,
    PerNode(u64),
    PerCpu(u64),
    PerGpu(u64),
}

impl Request {
    /// It asks for GPUs, whole or in part.
    pub fn has_gpus(&self) -> bool {
        self.gpus.as_ref().is_some_and(|ask| !ask.is_none())
    }
}

impl MemRequest {
    pub fn is_default(&self) -> bool {
        *self == Self::Default
    }
}

/// How to start the processes of a job. Its surroundings read as part of it, as a [`JobSpec`]'s common part does.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Launch {
    /// The script's text. Empty id when `argv` is a command (`gsub -- cmd args`).
    pub script: BlobId,
    /// Arguments after the script, or the command with its arguments. Once accepted, of long ones the beginning: all are in the blob.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// Path of the script as given, for display; empty for stdin or `--wrap`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    #[serde(flatten)]
    pub around: Shared<LaunchContext>,
}

/// Where a job was submitted and what it finds when it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct LaunchContext {
    /// Environment as `NAME=value` separated by NUL bytes.
    pub environment: BlobId,
    pub work_dir: String,
    /// Where the submission was made; empty: in `work_dir`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub submit_dir: String,
    pub submit_host: String,
    /// Patterns; empty means `gsub-%j.out`, for tasks of arrays `gsub-%A_%a.out`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stdout: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stderr: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stdin: String,
    /// Truncate output files instead of appending; `None`: truncate on the first run, append after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_mode: Option<OpenMode>,
    /// File mode mask of the submitting process.
    pub umask: u32,
    /// Soft limits of the submitting process, which go with the job as sbatch's `--propagate` has it by default.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "few_limits")]
    pub rlimits: Vec<SoftLimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<SigSpec>,
    /// The environment of a login on the node counts where `environment` says nothing, read there within so many seconds; `None`: no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login_env_secs: Option<u32>,
    /// `--visible-devices`; `None`: as partition or cluster say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visible_devices: Option<VisibleDevices>,
    /// In which the script runs, and each step of an allocation that names no other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<ContainerSpec>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mail_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mail_user: Option<String>,
}

/// `--open-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpenMode {
    Append,
    Truncate,
}

/// How `CUDA_VISIBLE_DEVICES` names a job's GPUs. MIG slices have no index, so theirs are always UUIDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VisibleDevices {
    /// Position among the GPUs that the job can open, in the order of their PCI addresses: `0,1`. Much code reads integers there.
    #[default]
    Index,
    Uuid,
}

impl VisibleDevices {
    pub const WORDS: [(&'static str, Self); 2] = [("index", Self::Index), ("uuid", Self::Uuid)];
}

/// A soft resource limit. Bytes, seconds, or a count, as setrlimit(2) has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SoftLimit {
    pub name: LimitName,
    /// `None` is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft: Option<u64>,
}

/// A resource limit by sbatch's word: `NOFILE` is `RLIMIT_NOFILE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LimitName {
    As,
    Core,
    Cpu,
    Data,
    Fsize,
    Memlock,
    Nofile,
    Nproc,
    Rss,
    Stack,
    /// From a newer gsub: passed over.
    #[serde(other)]
    Unknown,
}

/// More than any system has.
pub const MAX_RLIMITS: usize = 16;

/// A list that any client may send is bounded where it is read.
///
/// # Errors
/// More limits than there can be.
pub fn few_limits<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<SoftLimit>, D::Error> {
    let limits = Vec::<SoftLimit>::deserialize(from)?;
    match limits.len() {
        0..=MAX_RLIMITS => Ok(limits),
        many => Err(serde::de::Error::custom(format_args!(
            "{many} resource limits, and {MAX_RLIMITS} are the most"
        ))),
    }
}

fn is_false(value: &bool) -> bool {
    !*value
}
fn is_zero(value: &i32) -> bool {
    *value == 0
}

/// State of a job, in Slurm's words.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum JobState {
    #[default]
    Pending,
    /// Resources are given; processes are being prepared or run.
    Running,
    Suspended,
    /// The run is over; a node has not yet reported clean.
    Completing,
    Completed,
    Failed,
    Cancelled,
    Timeout,
    NodeFail,
    OutOfMemory,
    Preempted,
    /// It could not end by its deadline, or its deadline ended its run.
    Deadline,
    /// Of a run in accounting, never of a job: it was ended, and its job went back to the queue.
    Requeued,
    /// A state this release does not know, from a newer controller.
    #[serde(other)]
    Unknown,
}

impl JobState {
    pub const ALL: [Self; 13] = [
        Self::Pending,
        Self::Running,
        Self::Suspended,
        Self::Completing,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Timeout,
        Self::NodeFail,
        Self::OutOfMemory,
        Self::Preempted,
        Self::Deadline,
        Self::Requeued,
    ];

    /// Long form, as `squeue %T` prints it.
    pub const fn long(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Suspended => "SUSPENDED",
            Self::Completing => "COMPLETING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
            Self::Timeout => "TIMEOUT",
            Self::NodeFail => "NODE_FAIL",
            Self::OutOfMemory => "OUT_OF_MEMORY",
            Self::Preempted => "PREEMPTED",
            Self::Deadline => "DEADLINE",
            Self::Requeued => "REQUEUED",
            Self::Unknown => "UNKNOWN",
        }
    }

    /// Short form, as `squeue %t` prints it.
    pub const fn short(self) -> &'static str {
        match self {
            Self::Pending => "PD",
            Self::Running => "R",
            Self::Suspended => "S",
            Self::Completing => "CG",
            Self::Completed => "CD",
            Self::Failed => "F",
            Self::Cancelled => "CA",
            Self::Timeout => "TO",
            Self::NodeFail => "NF",
            Self::OutOfMemory => "OOM",
            Self::Preempted => "PR",
            Self::Deadline => "DL",
            Self::Requeued => "RQ",
            Self::Unknown => "?",
        }
    }

    /// Reads either form, in any case. No job is UNKNOWN: a filter of it lists none.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .chain([Self::Unknown])
            .find(|s| s.long().eq_ignore_ascii_case(text) || s.short().eq_ignore_ascii_case(text))
    }

    /// Over for good: the job will not run again.
    pub const fn is_final(self) -> bool {
        !matches!(
            self,
            Self::Pending | Self::Running | Self::Suspended | Self::Completing
        )
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.long())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_few_short_and_left_out_when_there_are_none() {
        let plain = serde_json::to_string(&Launch::default()).unwrap();
        assert!(
            !plain.contains("rlimits") && !plain.contains("submit_dir"),
            "{plain}"
        );
        let limits = |text: &str| {
            serde_json::from_str::<Launch>(&format!(r#"{{"rlimits":{text}}}"#))
                .map(|l| l.rlimits.clone())
        };
        let some = r#"[{"name":"NOFILE","soft":1024},{"name":"CORE"}]"#;
        let read = limits(some).unwrap();
        let expected = [(LimitName::Nofile, Some(1024)), (LimitName::Core, None)];
        assert_eq!(read, expected.map(|(name, soft)| SoftLimit { name, soft }));
        assert_eq!(serde_json::to_string(&read).unwrap(), some);
        assert_eq!(
            limits(r#"[{"name":"NEWER","soft":1}]"#).unwrap()[0].name,
            LimitName::Unknown
        );
        let list = |count| format!("[{}]", vec![r#"{"name":"CORE"}"#; count].join(","));
        assert_eq!(limits(&list(MAX_RLIMITS)).unwrap().len(), MAX_RLIMITS);
        let refused = limits(&list(MAX_RLIMITS + 1)).unwrap_err().to_string();
        assert!(
            refused.contains("17 resource limits, and 16 are the most"),
            "{refused}"
        );
    }

    #[test]
    fn a_request_is_one_object_whatever_is_shared_of_it() {
        let text = r#"{"newer":{"a":[1]},"partition":"main","name":"train","launch":{"umask":18,"argv":["--lr","1"],"work_dir":"/w","script":""},"user":{"name":"ada","uid":1,"gid":2}}"#;
        let spec: JobSpec = serde_json::from_str(text).unwrap();
        assert_eq!(
            (
                spec.name.as_str(),
                spec.partition.as_str(),
                spec.user.name.as_str()
            ),
            ("train", "main", "ada")
        );
        assert_eq!(
            (
                spec.launch.argv.len(),
                spec.launch.work_dir.as_str(),
                spec.launch.umask
            ),
            (2, "/w", 18)
        );
        let written = serde_json::to_value(&spec).unwrap();
        assert_eq!(
            (&written["launch"]["argv"][1], &written["partition"]),
            (&"1".into(), &"main".into())
        );
        assert_eq!(serde_json::from_value::<JobSpec>(written).unwrap(), spec);
        assert_eq!(
            serde_json::from_str::<JobSpec>("{}").unwrap(),
            JobSpec::default()
        );
        for odd in [
            r#"{"name":1}"#,
            r#"{"launch":{"umask":"x"}}"#,
            r#"{"launch":[]}"#,
            "[]",
            "7",
        ] {
            assert!(serde_json::from_str::<JobSpec>(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn states_are_read_in_both_forms() {
        for state in JobState::ALL {
            assert_eq!(JobState::parse(state.long()), Some(state));
            assert_eq!(JobState::parse(&state.short().to_lowercase()), Some(state));
            let json = serde_json::to_string(&state).unwrap();
            assert_eq!(json, format!("\"{}\"", state.long()));
        }
        assert_eq!(JobState::parse("XX"), None);
        assert_eq!(
            serde_json::from_str::<JobState>("\"NEWER\"").unwrap(),
            JobState::Unknown
        );
    }
}
