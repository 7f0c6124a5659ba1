//! Advance reservations: what is set apart, for which users and accounts, and when. Source of the words: scontrol(1).

use crate::gpu_amounts::GpuAmounts;
use crate::hostlist::Hostlist;
use crate::time::Timestamp;
use crate::time_zone::TimeZone;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// An advance reservation: resources set apart for users and accounts, for a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reservation {
    pub name: String,
    pub start: Timestamp,
    /// Seconds of each window.
    pub duration_secs: u32,
    pub repeat: Repeat,
    pub what: ReservedPart,
    /// The users and accounts (and accounts below them) that may use it; `-bob` may not. Names with a minus alone: all but these.
    /// With users and accounts a job must be of one of each. All empty: no job may (maintenance).
    pub users: BTreeSet<String>,
    pub accounts: BTreeSet<String>,
    pub partition: Option<String>,
    /// Features of the nodes that a count of nodes chooses among, as `--constraint` has them; empty: all.
    pub features: String,
    /// MAINT: shown as such; its nodes are not counted as available.
    pub maintenance: bool,
    /// FLEX: its jobs may begin before it and end after it.
    pub flex: bool,
    /// IGNORE_JOBS: it may be made over jobs that run into it.
    pub ignore_running: bool,
    /// MAGNETIC: jobs that it is for may use its nodes without naming it.
    pub magnetic: bool,
    /// OVERLAP: it may be made over others, and has their nodes in its windows.
    pub overlap: bool,
    /// PURGE_COMP: a window ends once no job of it ran or waited for so long, seconds.
    pub purge_idle_secs: Option<u32>,
    /// STATIC_ALLOC: nodes that were chosen by their number are not replaced when they go down.
    pub static_nodes: bool,
    /// NO_HOLD_JOBS_AFTER: jobs that wait for it when it goes wait on without it.
    pub release_jobs: bool,
    /// Windows that end by then do not come.
    pub skip_until: Option<Timestamp>,
    /// Its nodes were chosen by their number, and one that goes down is replaced.
    pub is_chosen: bool,
    /// With `purge_idle_secs`: since when its present window is idle.
    pub idle_since: Option<Timestamp>,
    pub created_by: String,
    /// What recurring windows are counted in, where that is not UTC: the configuration's, put in by whoever merges both.
    #[serde(skip)]
    pub zone: Option<Arc<TimeZone>>,
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
