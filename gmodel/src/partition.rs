//! A partition: a queue over a set of nodes, with its limits, defaults and policies. Source of the words: slurm.conf(5).

use crate::gpu_amounts::GpuAmounts;
use crate::hostlist::{Hostlist, compress};
use crate::idle::IdlePolicy;
use crate::job::{MemRequest, VisibleDevices};
use crate::policy::{Limits, Placement, Policy, PreemptMode};
use crate::record::{Access, Field, Key, Kind, NameOf, Record, Value};
use crate::{record, words};
use serde::{Deserialize, Serialize};

/// Whether users may submit from compute nodes where a job of theirs runs. Root there is each of these users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", from = "SubmitFromJobsText")]
pub enum SubmitFromJobs {
    No,
    /// To the partitions in which they have a job there.
    #[default]
    SamePartition,
    Yes,
}

words!(SubmitFromJobs {
    No = "no",
    SamePartition = "same-partition",
    Yes = "yes",
});

/// As a trace has it: older traces have true or false.
#[derive(Deserialize)]
#[serde(untagged)]
enum SubmitFromJobsText {
    Switch(bool),
    Word(String),
}

impl From<SubmitFromJobsText> for SubmitFromJobs {
    fn from(written: SubmitFromJobsText) -> Self {
        match written {
            SubmitFromJobsText::Switch(true) => Self::Yes,
            SubmitFromJobsText::Switch(false) => Self::No,
            SubmitFromJobsText::Word(word) => match word.as_str() {
                "yes" => Self::Yes,
                "same_partition" => Self::SamePartition,
                _ => Self::No,
            },
        }
    }
}

record! {
    /// One partition: a queue over a set of nodes, with limits and defaults.
    pub struct Partition {
        /// What jobs and commands call it.
        name: String = String::new(), Key::new(Kind::Text).by(Access::Fixed);
        /// The partition of jobs that name none.
        is_default: bool = false, Key::new(Kind::Flag).named("default").by(Access::Files);
        /// Whether it takes submissions and starts jobs.
        state: PartitionState = PartitionState::Up, Key::new(Kind::Word(PartitionState::WORDS));
        /// Seconds; `None` is unlimited.
        max_time_secs: Option<u32> = None, Key::new(Kind::TimeLimit).in_toml("max_time");
        /// Seconds of jobs that say nothing.
        default_time_secs: Option<u32> = None, Key::new(Kind::TimeLimit).in_toml("default_time");
        /// Seconds a run may go over its limit.
        over_time_secs: u32 = 0, Key::duration(0, u32::MAX).in_toml("over_time");
        /// Nodes of one job.
        max_nodes: Option<u32> = None, Key::count(1, 1_000_000);
        /// Jobs of a higher tier come first.
        priority_tier: u32 = 1, Key::count(0, 65_533);
        /// Empty allows all.
        allow_accounts: Vec<String> = Vec::new(), Key::new(Kind::Names(NameOf::Other));
        /// Empty allows all.
        allow_users: Vec<String> = Vec::new(), Key::new(Kind::Names(NameOf::User));
        /// Groups of users, as the controller's host knows them; a user in one of them may submit. Empty allows all.
        allow_groups: Vec<String> = Vec::new(), Key::new(Kind::Names(NameOf::Other));
        /// CPUs for each GPU of jobs that say nothing.
        cpus_per_gpu: Option<u32> = None, Key::count(1, 65_536);
        /// Memory for each CPU of jobs that say nothing.
        mem_per_cpu_bytes: Option<u64> = None, Key::new(Kind::Size).in_toml("mem_per_cpu");
        /// Memory for each GPU of jobs that say nothing.
        mem_per_gpu_bytes: Option<u64> = None, Key::new(Kind::Size).in_toml("mem_per_gpu");
        /// A private /tmp and /dev/shm for each job.
        private_tmp: bool = false, Key::new(Kind::Flag).by(Access::Files);
        /// Path of a program run as root on each node before a run; empty for none.
        prolog: String = String::new(), Key::new(Kind::Path).by(Access::Files);
        /// The same after a run.
        epilog: String = String::new(), Key::new(Kind::Path).by(Access::Files);
        /// What jobs do after a node failure when they do not say.
        requeue: bool = true, Key::new(Kind::Flag);
        /// Seconds without word of its client after which an allocation ends; 0: two seconds.
        detached_secs: u32 = 60, Key::duration(0, 604_800).in_toml("detached_time");
        /// The shell of salloc runs on the first node of its allocation.
        interactive_step: bool = false, Key::new(Kind::Flag).by(Access::Files);
        /// Whether users may submit from compute nodes where a job of theirs runs.
        submit_from_jobs: SubmitFromJobs = SubmitFromJobs::default(), Key::new(Kind::FlagOr("same-partition")).by(Access::Files);
        /// PriorityJobFactor: the partition's part of the multifactor priority.
        priority_factor: u32 = 0, Key::count(0, 65_533).spelled(&[("priority_job_factor", "")]);
        /// How runs here are preempted; `Off`: never.
        preempt_mode: PreemptMode = PreemptMode::Requeue, Key::new(Kind::Word(PreemptMode::WORDS));
        /// Where it differs from the cluster's.
        placement: Option<Placement> = None, Key::new(Kind::Word(Placement::WORDS));
        /// Of all jobs of the partition together.
        group: Limits = Limits::default(), Key::new(Kind::Table(Limits::KEYS));
        /// Of each user's jobs in it.
        per_user: Limits = Limits::default(), Key::new(Kind::Table(Limits::KEYS));
        /// Of each account's jobs in it.
        per_account: Limits = Limits::default(), Key::new(Kind::Table(Limits::KEYS));
        /// Idle GPUs kept for jobs of QOS that may use headroom, and for guaranteed demand.
        headroom: Option<GpuAmounts> = None, Key::new(Kind::Gpus);
        /// Empty allows all.
        allow_qos: Vec<String> = Vec::new(), Key::new(Kind::Names(NameOf::Qos));
        /// Accounts that may not use it, where `allow_accounts` is empty.
        deny_accounts: Vec<String> = Vec::new(), Key::new(Kind::Names(NameOf::Other));
        /// QOS that its jobs may not have, where `allow_qos` is empty.
        deny_qos: Vec<String> = Vec::new(), Key::new(Kind::Names(NameOf::Qos));
        /// QOS of jobs that name none.
        default_qos: Option<String> = None, Key::new(Kind::Name(NameOf::Qos));
        /// How its GPUs are cut by MIG.
        mig: MigCuts = MigCuts::Fixed, Key::new(Kind::Word(MigCuts::WORDS)).by(Access::Files);
        /// One GPU asked for by `--gpu-mem` may be a MIG slice with memory enough.
        slices_for_memory: bool = false, Key::new(Kind::Flag).by(Access::Files);
        /// Whether a part of a GPU may be asked for.
        gpu_sharing: GpuSharing = GpuSharing::Off, Key::new(Kind::Word(GpuSharing::WORDS)).by(Access::Files);
        /// Zeros over the memory of a run's GPUs before they are given to another.
        gpu_scrub: bool = false, Key::new(Kind::Flag).by(Access::Files);
        /// How a job's GPUs are named to CUDA; `None`: as the cluster says.
        #[serde(skip_serializing_if = "Option::is_none")]
        visible_devices: Option<VisibleDevices> = None, Key::new(Kind::Word(VISIBLE_DEVICES)).by(Access::Files);
        /// Its GPUs are checked in idle gaps where the cluster has that.
        diagnostics: bool = true, Key::new(Kind::Flag).by(Access::Files);
        /// The idle policy for its runs; `None`: none.
        #[serde(skip_serializing_if = "Option::is_none")]
        idle: Option<IdlePolicy> = None, Key::new(Kind::WholeTable(IdlePolicy::KEYS)).by(Access::Files);
    }
    flat {
        /// The nodes it holds.
        nodes: NodeSelection;
    }
}

/// What operators made of a partition at run time, beside the administrator's files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadePartition {
    pub partition: Partition,
    /// The partition as its file had it then. `None`: no file had it, and it is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<Box<Partition>>,
    /// The user that did so last.
    pub by: String,
}

impl MadePartition {
    /// The keys that were set of a partition that a file has: those that count, while the file (`now`) says of them what it said
    /// then, or those that count no more.
    pub fn set_keys(&self, now: &Partition, count: bool) -> Vec<&'static Key> {
        let Some(file) = &self.file else {
            return Vec::new();
        };
        let mut keys = self.partition.differences(file);
        keys.retain(|key| key.is_editable() && (file.get(key) == now.get(key)) == count);
        keys
    }
}

const VISIBLE_DEVICES: &[&str] = &[VisibleDevices::WORDS[0].0, VisibleDevices::WORDS[1].0];

impl Field for VisibleDevices {
    fn value(&self) -> Value {
        let mut words = Self::WORDS.iter();
        let word = words.find(|(_, known)| known == self);
        Value::Text(word.map_or("", |(word, _)| *word).to_owned())
    }
    fn of_value(value: Value) -> Option<Self> {
        let mut words = Self::WORDS.iter();
        words
            .find(|(word, _)| value == Value::Text((*word).to_owned()))
            .map(|(_, known)| *known)
    }
}

impl Partition {
    /// The memory that is asked for, with what the partition gives where the request says nothing: for each GPU of one
    /// that has some, else for each CPU. `Default` leaves it to the node.
    pub fn mem_ask(&self, asked: MemRequest, has_gpus: bool) -> MemRequest {
        let by_gpu = self
            .mem_per_gpu_bytes
            .filter(|_| has_gpus)
            .map(MemRequest::PerGpu);
        match asked {
            MemRequest::Default => by_gpu
                .or(self.mem_per_cpu_bytes.map(MemRequest::PerCpu))
                .unwrap_or_default(),
            asked => asked,
        }
    }
}

/// What `--gpus 0.5` gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuSharing {
    /// A refusal.
    #[default]
    Off,
    /// A part that CUDA MPS holds the job to, on a GPU that holds equal parts of the same user at most.
    Mps,
    /// A place on a GPU that runs of all users may share: no bound holds a run to its share.
    Uncapped,
}

words!(GpuSharing {
    Off = "off",
    Mps = "mps",
    Uncapped = "uncapped",
});

/// How GPUs are cut by MIG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigCuts {
    /// They are as the nodes report them: cut by hand, or by a layout of the configuration.
    #[default]
    Fixed,
    /// Empty GPUs are cut anew as the queue needs it.
    Planned,
}

words!(MigCuts {
    Fixed = "fixed",
    Planned = "planned",
});

/// Which nodes a partition holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeSelection {
    #[default]
    All,
    Names(Hostlist),
    /// Nodes that have all of these features.
    Features(Vec<String>),
}

/// One of two keys says which.
impl Record for NodeSelection {
    const KEYS: &'static [Key] = &[
        Key::new(Kind::Hosts).of_field("nodes", "These nodes, or ALL."),
        Key::new(Kind::Names(NameOf::Other))
            .of_field("features", "Nodes that have all of these features."),
    ];

    fn get(&self, key: &Key) -> Option<Value> {
        Some(match (key.field, self) {
            ("nodes", Self::All) => Value::Text("ALL".to_owned()),
            ("nodes", Self::Names(hosts)) => Value::Text(compress(hosts.iter())),
            ("features", Self::Features(features)) => Value::Names(features.clone()),
            ("nodes" | "features", _) => Value::Unset,
            _ => return None,
        })
    }

    /// A host list that is none is left as it was: its readers look for that.
    fn set(&mut self, _: &Key, value: Value) -> bool {
        match value {
            Value::Names(features) => *self = Self::Features(features),
            Value::Text(hosts) if hosts.eq_ignore_ascii_case("ALL") => *self = Self::All,
            Value::Text(hosts) => {
                if let Ok(hosts) = Hostlist::parse(&hosts) {
                    *self = Self::Names(hosts);
                }
            }
            _ => {}
        }
        true
    }
}

/// Slurm's partition states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartitionState {
    /// Takes submissions and starts jobs.
    #[default]
    Up,
    /// Takes submissions, starts nothing.
    Down,
    /// Takes no submissions, starts what is queued.
    Drain,
    /// Neither.
    Inactive,
}

words!(PartitionState {
    Up = "UP",
    Down = "DOWN",
    Drain = "DRAIN",
    Inactive = "INACTIVE",
});

impl Partition {
    /// Whether jobs charged to an account may run here: the partition lists no account, or this one, or one above it.
    pub fn takes_account(&self, policy: &Policy, account: &str) -> bool {
        let is_in =
            |list: &[String]| policy.is_among(account, |name| list.iter().any(|one| one == name));
        match self.allow_accounts.is_empty() {
            true => !is_in(&self.deny_accounts),
            false => is_in(&self.allow_accounts),
        }
    }

    /// The accounts that may use it: `ada, bob`, `all but eve`.
    pub fn accounts_text(&self) -> String {
        listed(&self.allow_accounts, &self.deny_accounts)
    }

    /// The QOS that its jobs may have, in the same way.
    pub fn qos_text(&self) -> String {
        listed(&self.allow_qos, &self.deny_qos)
    }

    pub fn is_open_to_user(&self, user: &str) -> bool {
        is_named(&self.allow_users, user)
    }

    pub fn is_open_to_qos(&self, qos: &str) -> bool {
        match self.allow_qos.is_empty() {
            true => !self.deny_qos.iter().any(|one| one == qos),
            false => is_named(&self.allow_qos, qos),
        }
    }

    pub fn holds(&self, node_name: &str, features: &[String]) -> bool {
        match &self.nodes {
            NodeSelection::All => true,
            NodeSelection::Names(names) => names.contains(node_name),
            NodeSelection::Features(wanted) => wanted.iter().all(|f| features.contains(f)),
        }
    }
}

fn listed(allowed: &[String], denied: &[String]) -> String {
    match allowed.is_empty() {
        true => format!("all but {}", denied.join(", ")),
        false => allowed.join(", "),
    }
}

/// A list of none allows all.
fn is_named(allowed: &[String], name: &str) -> bool {
    allowed.is_empty() || allowed.iter().any(|one| one == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_gives_memory_by_gpu_else_by_cpu_and_only_where_nothing_was_asked() {
        let partition = |mem_per_cpu_bytes, mem_per_gpu_bytes| Partition {
            mem_per_cpu_bytes,
            mem_per_gpu_bytes,
            ..Partition::default()
        };
        let both = partition(Some(1), Some(8));
        assert_eq!(
            (
                both.mem_ask(MemRequest::Default, true),
                both.mem_ask(MemRequest::Default, false)
            ),
            (MemRequest::PerGpu(8), MemRequest::PerCpu(1))
        );
        assert_eq!(
            both.mem_ask(MemRequest::PerNode(3), true),
            MemRequest::PerNode(3)
        );
        assert_eq!(
            partition(None, Some(8)).mem_ask(MemRequest::Default, false),
            MemRequest::Default,
            "the node's share"
        );
        assert_eq!(
            partition(Some(1), None).mem_ask(MemRequest::Default, true),
            MemRequest::PerCpu(1)
        );
    }

    #[test]
    fn what_is_denied_stays_out_unless_a_list_says_which_may_come() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
        let partition = Partition {
            deny_accounts: names(&["lab"]),
            deny_qos: names(&["low"]),
            ..Partition::default()
        };
        let policy = Policy::default();
        assert!(
            !partition.takes_account(&policy, "lab") && partition.takes_account(&policy, "ada")
        );
        assert!(!partition.is_open_to_qos("low") && partition.is_open_to_qos("high"));
        assert_eq!(partition.qos_text(), "all but low");
        let open = Partition {
            allow_qos: names(&["low"]),
            ..partition
        };
        assert!(open.is_open_to_qos("low") && !open.is_open_to_qos("high"));
    }
}
