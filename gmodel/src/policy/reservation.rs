//! Advance reservations: what is set apart, for which users and accounts, and when. Source of the words: scontrol(1).

use crate::gpu_amounts::GpuAmounts;
use crate::hostlist::{Hostlist, compress};
use crate::record::{Access, Key, Kind, NameOf, Record, Value};
use crate::time::Timestamp;
use crate::time_zone::TimeZone;
use crate::{record, words};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

record! {
    /// An advance reservation: resources set apart for users and accounts, for a time.
    pub struct Reservation {
        /// What jobs and commands call it.
        name: String = String::new(), Key::new(Kind::Text).by(Access::Fixed);
        /// Of its first window.
        start: Timestamp = Timestamp::default(), Key::new(Kind::Moment).needed().spelled(&[("starttime", "")]);
        /// Seconds of each window.
        duration_secs: u32 = 0, Key::duration(60, super::MAX_DURATION_SECS).in_toml("duration").needed();
        /// How often its windows come.
        repeat: Repeat = Repeat::Once, Key::new(Kind::Word(Repeat::WORDS));
        /// The users and accounts (and accounts below them) that may use it; `-bob` may not. Names with a minus alone: all but these.
        /// With users and accounts a job must be of one of each. All empty: no job may (maintenance).
        users: BTreeSet<String> = BTreeSet::new(), Key::new(Kind::Names(NameOf::User)).spelled(&[("user", "")]);
        /// The accounts of the same.
        accounts: BTreeSet<String> = BTreeSet::new(), Key::new(Kind::Names(NameOf::Account)).spelled(&[("account", "")]);
        /// Where its nodes are chosen, or of which they are.
        partition: Option<String> = None, Key::new(Kind::Name(NameOf::Partition)).spelled(&[("partitionname", "")]);
        /// Features of the nodes that a count of nodes chooses among, as `--constraint` has them; empty: all.
        features: String = String::new(), Key::new(Kind::Name(NameOf::Other)).sparse();
        /// MAINT: shown as such; its nodes are not counted as available.
        maintenance: bool = false, Key::new(Kind::Flag);
        /// FLEX: its jobs may begin before it and end after it.
        flex: bool = false, Key::new(Kind::Flag);
        /// IGNORE_JOBS: it may be made over jobs that run into it.
        ignore_running: bool = false, Key::new(Kind::Flag);
        /// MAGNETIC: jobs that it is for may use its nodes without naming it.
        magnetic: bool = false, Key::new(Kind::Flag);
        /// OVERLAP: it may be made over others, and has their nodes in its windows.
        overlap: bool = false, Key::new(Kind::Flag);
        /// PURGE_COMP: a window ends once no job of it ran or waited for so long, seconds.
        purge_idle_secs: Option<u32> = None, Key::duration(60, super::MAX_DURATION_SECS).in_toml("purge_idle").sparse()
            .spelled(&[("purgecomp", "")]);
        /// STATIC_ALLOC: nodes that were chosen by their number are not replaced when they go down.
        static_nodes: bool = false, Key::new(Kind::Flag);
        /// REPLACE_DOWN: nodes that were chosen by their number are replaced when they go down, as they are without it.
        replace_down: bool = false, Key::new(Kind::Flag).sparse();
        /// REPLACE: nodes that were chosen by their number are replaced when they go down, or when a job of it takes them.
        replace: bool = false, Key::new(Kind::Flag).sparse();
        /// NO_HOLD_JOBS_AFTER: jobs that wait for it when it goes wait on without it.
        release_jobs: bool = false, Key::new(Kind::Flag);
        /// Windows that end by then do not come.
        skip_until: Option<Timestamp> = None, Key::new(Kind::Moment).sparse();
        /// Its nodes were chosen by their number, and one that goes down is replaced.
        is_chosen: bool = false, Key::new(Kind::Flag).named("chosen").by(Access::Fixed);
        /// The user that made it, or its file.
        created_by: String = String::new(), Key::new(Kind::Text).by(Access::Fixed);
    }
    flat {
        /// What is set apart.
        what: ReservedPart;
    }
    plain {
        /// With `purge_idle_secs`: since when its present window is idle.
        idle_since: Option<Timestamp>;
        /// What recurring windows are counted in, where that is not UTC: the configuration's, put in by whoever merges both.
        #[serde(skip)]
        zone: Option<Arc<TimeZone>>;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeat {
    #[default]
    Once,
    Hourly,
    Daily,
    /// Monday to Friday.
    Weekday,
    /// Saturday and Sunday.
    Weekend,
    Weekly,
}

words!(Repeat {
    Once = "once",
    Hourly = "hourly",
    Daily = "daily",
    Weekday = "weekday",
    Weekend = "weekend",
    Weekly = "weekly",
});

impl Repeat {
    /// Seconds from one to the next by the clock, the least; `None`: it comes once.
    pub const fn every_secs(self) -> Option<u32> {
        match self {
            Self::Once => None,
            Self::Hourly => Some(3_600),
            Self::Daily | Self::Weekday | Self::Weekend => Some(86_400),
            Self::Weekly => Some(7 * 86_400),
        }
    }
}

impl Reservation {
    /// Draws jobs that may use it onto its nodes without being named by them.
    pub fn draws(&self) -> bool {
        self.magnetic && !matches!(self.what, ReservedPart::Gpus(_))
    }
}

/// The users and accounts of a reservation as text: `ada, vision`, `all but bob`, `ada, bob in lab`; empty for maintenance.
pub fn reserved_for(users: &BTreeSet<String>, accounts: &BTreeSet<String>) -> String {
    let listed = |names: &BTreeSet<String>| {
        let barred: Vec<&str> = names
            .iter()
            .filter_map(|name| name.strip_prefix('-'))
            .collect();
        match barred.is_empty() {
            true => names
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", "),
            false => format!("all but {}", barred.join(", ")),
        }
    };
    match (users.is_empty(), accounts.is_empty()) {
        (_, true) => listed(users),
        (true, false) => listed(accounts),
        (false, false) => format!("{} in {}", listed(users), listed(accounts)),
    }
}

/// What a reservation sets apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReservedPart {
    AllNodes,
    /// These, whole.
    Nodes(Hostlist),
    /// So many whole nodes of the partition (or of all), chosen when it is made and written as `Nodes`.
    NodeCount(u32),
    /// So many GPUs, thousandths by type, wherever they are.
    Gpus(GpuAmounts),
}

impl Default for ReservedPart {
    fn default() -> Self {
        Self::NodeCount(0)
    }
}

/// One of three keys says what is reserved.
impl Record for ReservedPart {
    const KEYS: &'static [Key] = &[
        Key::new(Kind::Hosts).of_field("nodes", "These nodes, whole, or ALL."),
        Key::count(1, 1_000_000)
            .of_field("node_count", "So many whole nodes.")
            .spelled(&[("nodecnt", "")]),
        Key::new(Kind::Gpus)
            .of_field("gpus", "So many GPUs, wherever they are.")
            .spelled(&[("tres", "")]),
    ];

    fn get(&self, key: &Key) -> Option<Value> {
        Some(match (key.field, self) {
            ("nodes", Self::AllNodes) => Value::Text("ALL".to_owned()),
            ("nodes", Self::Nodes(hosts)) => Value::Text(compress(hosts.iter())),
            ("node_count", Self::NodeCount(count)) if *count > 0 => {
                Value::Number(u64::from(*count))
            }
            ("gpus", Self::Gpus(gpus)) => Value::Gpus(gpus.clone()),
            ("nodes" | "node_count" | "gpus", _) => Value::Unset,
            _ => return None,
        })
    }

    /// A host list that is none is left as it was: its readers look for that.
    fn set(&mut self, _: &Key, value: Value) -> bool {
        match value {
            Value::Text(hosts) if hosts.eq_ignore_ascii_case("ALL") => *self = Self::AllNodes,
            Value::Text(hosts) => {
                if let Ok(hosts) = Hostlist::parse(&hosts) {
                    *self = Self::Nodes(hosts);
                }
            }
            Value::Number(count) => {
                *self = Self::NodeCount(u32::try_from(count).unwrap_or(u32::MAX));
            }
            Value::Gpus(gpus) => *self = Self::Gpus(gpus),
            _ => {}
        }
        true
    }
}
