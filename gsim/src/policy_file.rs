//! Policies as TOML: what `--policy` reads. Words are those of gpuctld.toml; `[simulation]` is gsim's own.
//!
//! Owns keys and bounds; never what a setting does, and never reads a file.

use crate::hardware::Hardware;
use crate::policy_words::{account, qos, read_fair_share, read_preempt, read_weights, replace};
use crate::toml_table::{Reader, read};
use crate::trace_run::{Runtime, Settings};
use gmodel::config::ClusterConfig;
use gmodel::policy::{Backfill, JobOrder, Placement, Policy, SchedulerConfig};

/// A policy to try.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyFile {
    pub name: String,
    pub scheduler: SchedulerConfig,
    pub accounts: Policy,
    pub settings: Settings,
    /// Every account has a cluster of its own.
    pub per_account_clusters: bool,
}

/// Policies that need no file, with what they are.
pub const NAMED: [(&str, &str); 6] = [
    ("default", "multifactor order, backfill with reservations for the first 100, nodes packed"),
    ("fifo", "submission order, nobody passes, best fit"),
    ("sjf", "shortest job first, nobody passes, best fit"),
    ("easy", "submission order, backfill with a reservation for the head (Lifka 1995), best fit"),
    ("conservative", "submission order, backfill with reservations for all (Mu'alem and Feitelson 2001), best fit"),
    ("sjf-easy", "shortest job first with EASY backfill, best fit"),
];

pub(crate) const PLACEMENTS: [(&str, Placement); 4] = [
    ("pack", Placement::Pack),
    ("spread", Placement::Spread),
    ("best-fit", Placement::BestFit),
    ("first-fit", Placement::FirstFit),
];
const ORDERS: [(&str, JobOrder); 3] =
    [("multifactor", JobOrder::Multifactor), ("fifo", JobOrder::Fifo), ("sjf", JobOrder::Sjf)];
const BACKFILLS: [(&str, Backfill); 3] =
    [("off", Backfill::Off), ("easy", Backfill::EASY), ("conservative", Backfill::All)];
const RUNTIMES: [(&str, Runtime); 2] = [("limit", Runtime::Limit), ("actual", Runtime::Actual)];

/// Keys of gpuctld.toml that a simulation has no use for.
const DAEMON_KEYS: [&str; 35] = [
    "cluster", "state_dir", "socket", "listen", "advertise", "min_free", "node_cert_days", "keep_scripts_days", "trace",
    "operators", "expect", "privacy", "default_account", "allow_root_jobs", "node_timeout_secs", "lost_node", "fence_program", "fence_timeout_secs",
    "idle_program", "idle_timeout_secs",
    "prepare_timeout_secs", "kill_grace_secs", "min_job_age_secs", "kill_invalid_depend", "time_zone", "mig", "mig_recut_secs", "diagnostics", "max_array_tasks", "max_pending_jobs", "submit_hook",
    // Traces name no licences and no topology; reservations are for days that are not the trace's.
    "licences", "price", "reservation", "switch",
];
/// Tables and keys of a policy, which stand in the same file as the partitions where a site likes.
const POLICY_KEYS: [&str; 15] = [
    "scheduler", "simulation", "priority", "fair_share", "preempt", "account", "qos", "order", "backfill", "placement",
    "consolidate", "runtime", "kill_at_limit", "per_account_clusters", "marks_every",
];

pub(crate) fn skip_rest_of_daemon(top: &Reader) {
    DAEMON_KEYS.iter().for_each(|key| {
        top.skip(key);
    });
}

pub(crate) fn skip_policy(top: &Reader) {
    POLICY_KEYS.iter().for_each(|key| {
        top.skip(key);
    });
}

impl PolicyFile {
    /// A policy that needs no file.
    pub fn named(name: &str) -> Option<Self> {
        let textbook =
            |order, backfill| SchedulerConfig { order, backfill, placement: Placement::BestFit, ..SchedulerConfig::default() };
        let scheduler = match name {
            "default" => SchedulerConfig::default(),
            "fifo" => textbook(JobOrder::Fifo, Backfill::Off),
            "sjf" => textbook(JobOrder::Sjf, Backfill::Off),
            "easy" => textbook(JobOrder::Fifo, Backfill::EASY),
            "conservative" => textbook(JobOrder::Fifo, Backfill::All),
            "sjf-easy" => textbook(JobOrder::Sjf, Backfill::EASY),
            _ => return None,
        };
        Some(Self { name: name.to_owned(), scheduler, ..Self::default() })
    }

    /// Reads a policy. The keys of `[scheduler]` and `[simulation]` may also stand at the top.
    ///
    /// # Errors
    /// Every mistake, a line each.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        read(text, |top| {
            let mut policy = Self { name: name.to_owned(), ..Self::default() };
            for table in [top, &top.table("scheduler"), &top.table("simulation")] {
                policy.read_words(table);
            }
            read_weights(&top.table("priority"), &mut policy.scheduler.priority);
            read_fair_share(&top.table("fair_share"), &mut policy.scheduler.fair_share);
            read_preempt(&top.table("preempt"), &mut policy.scheduler.preempt);
            let accounts = top.tables("account").into_iter().map(|(name, table)| (name.to_owned(), account(name, &table)));
            policy.accounts.accounts = accounts.collect();
            let qos = top.tables("qos").into_iter().map(|(name, table)| (name.to_owned(), qos(name, &table)));
            policy.accounts.qos = qos.collect();
            skip_rest_of_daemon(top);
            ["partition", "node"].iter().for_each(|key| {
                top.skip(key);
            });
            policy
        })
    }

    fn read_words(&mut self, table: &Reader) {
        let set = &mut self.scheduler;
        replace(&mut set.order, table.word("order", &ORDERS));
        replace(&mut set.placement, table.word("placement", &PLACEMENTS));
        let backfill = match table.as_integer("backfill") {
            Some(0) => Some(Backfill::Off),
            Some(_) => table.number("backfill", 10_000_000).map(Backfill::First),
            None => table.word("backfill", &BACKFILLS),
        };
        replace(&mut set.backfill, backfill);
        replace(&mut set.consolidate, table.boolean("consolidate"));
        replace(&mut self.settings.runtime, table.word("runtime", &RUNTIMES));
        replace(&mut self.settings.kill_at_limit, table.boolean("kill_at_limit"));
        replace(&mut self.per_account_clusters, table.boolean("per_account_clusters"));
        let marks = table.time_secs("marks_every").map(|secs| secs.map(|secs| i64::from(secs.max(1)) * 1000));
        replace(&mut self.settings.marks_every_ms, marks);
    }

    /// What the core is to decide by, over the partitions of the hardware.
    pub fn config(&self, hardware: &Hardware) -> ClusterConfig {
        ClusterConfig {
            name: "gsim".into(),
            partitions: hardware.partitions.clone(),
            min_job_age_secs: 0,
            max_pending_jobs: u32::MAX,
            scheduler: self.scheduler.clone(),
            policy: self.accounts.clone(),
            ..ClusterConfig::default()
        }
    }

    /// One line: what the policy is.
    pub fn describe(&self) -> String {
        let set = &self.scheduler;
        let backfill = match set.backfill {
            Backfill::Off | Backfill::First(0) => "no backfill".to_owned(),
            Backfill::First(1) => "EASY backfill".to_owned(),
            Backfill::First(first) => format!("backfill with reservations for the first {first}"),
            Backfill::All => "conservative backfill".to_owned(),
        };
        let runtime = if self.settings.runtime == Runtime::Limit { "time limits" } else { "actual run times" };
        let (order, placement) = (word(&ORDERS, set.order), word(&PLACEMENTS, set.placement));
        let mut text = format!("{}: {order} order, {backfill}, {placement} placement, by {runtime}", self.name);
        if self.per_account_clusters {
            text.push_str(", a cluster for each account");
        }
        if !self.accounts.accounts.is_empty() {
            text.push_str(&format!(", {} accounts", self.accounts.accounts.len()));
        }
        text
    }
}

fn word<T: PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, known)| *known == value).map_or("?", |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::policy::GpuAmounts;

    #[test]
    fn a_policy_is_read_with_its_tables_or_flat() {
        let tables = "[scheduler]\norder = \"fifo\"\nbackfill = \"easy\"\nplacement = \"best-fit\"\n\
                      [simulation]\nruntime = \"actual\"\nper_account_clusters = true\n";
        let flat = "order = \"fifo\"\nbackfill = 1\nplacement = \"best-fit\"\nruntime = \"actual\"\nper_account_clusters = true\n";
        let policy = PolicyFile::parse("x", tables).unwrap();
        assert_eq!(policy, PolicyFile::parse("x", flat).unwrap());
        assert_eq!(
            policy.describe(),
            "x: fifo order, EASY backfill, best-fit placement, by actual run times, a cluster for each account"
        );
        let rest = "listen = \"x\"\n[priority]\nage = 5\nmax_age = \"2-0\"\n[account.vision]\nguaranteed = 64\n\
                    limit = { h100 = 32 }\n[qos.high]\npreempt = [\"low\"]\n[partition.train]\nnodes = \"a\"\n";
        let policy = PolicyFile::parse("x", rest).unwrap();
        assert_eq!((policy.scheduler.priority.age, policy.scheduler.priority.max_age_secs), (5, 172_800));
        assert_eq!(policy.accounts.accounts["vision"].guaranteed, Some(GpuAmounts::all(64)));
        assert_eq!(policy.accounts.accounts["vision"].limit.as_ref().unwrap().of("h100"), Some(32_000));
        assert!(policy.accounts.qos["high"].preempt.contains("low"));
    }

    #[test]
    fn the_named_policies_are_all_there() {
        for (name, _) in NAMED {
            assert_eq!(PolicyFile::named(name).unwrap().name, name);
        }
        assert_eq!(PolicyFile::named("lifo"), None);
    }

    #[test]
    fn the_sample_configuration_of_the_daemon_is_a_policy() {
        let daemon = PolicyFile::parse("gpuctld.toml", include_str!("../../etc/gpuctld.toml")).unwrap();
        assert_eq!(daemon.scheduler, SchedulerConfig::default());
        let accounts = PolicyFile::parse("x", include_str!("../../etc/policy.d/accounts.toml")).unwrap().accounts.accounts;
        assert_eq!(accounts["physics"].guaranteed.as_ref().unwrap().of("h100"), Some(16_000));
        assert_eq!((accounts["physics"].budgets.len(), accounts["physics"].budgets[0].gpu_hours), (1, 10_000));
        assert_eq!((accounts["chemistry"].per_user.running_jobs, accounts["chemistry"].users["lise"].shares), (Some(20), 2));
        let qos = PolicyFile::parse("x", include_str!("../../etc/policy.d/qos.toml")).unwrap().accounts.qos;
        assert_eq!((qos["urgent"].usage_factor_milli, qos["urgent"].per_job.time_secs), (2000, Some(14_400)));
        assert_eq!((qos["scavenger"].min_run_secs, qos["scavenger"].outside_quota), (600, true));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let wrong = |text: &str| PolicyFile::parse("x", text).unwrap_err();
        assert_eq!(
            wrong("[scheduler]\nbackfill = \"eazy\"\n"),
            "line 2: backfill = \"eazy\": one of off, easy, conservative is allowed. Did you mean \"easy\"?"
        );
        assert_eq!(wrong("oder = \"fifo\"\n"), "line 1: unknown key \"oder\". Did you mean \"order\"?");
        assert_eq!(wrong("backfill = -3\n"), "line 1: backfill = -3: 0 to 10000000 is allowed");
        assert!(wrong("[account.a]\nguaranteed = \"lots\"\n").contains("guaranteed is of type string"));
    }
}
