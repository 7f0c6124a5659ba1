//! Policies: those with a name, and what `--policy` takes of a [`SiteFile`].
//!
//! Never what a setting does, and never reads a file.

use crate::hardware::Hardware;
use crate::site_file::SiteFile;
use crate::trace_run::{Runtime, Settings};
use gmodel::TimeZone;
use gmodel::config::ClusterConfig;
use gmodel::policy::{Backfill, JobOrder, Placement, Policy, SchedulerConfig};
use std::path::Path;
use std::sync::Arc;

/// A policy to try.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyFile {
    pub name: String,
    pub scheduler: SchedulerConfig,
    pub accounts: Policy,
    pub settings: Settings,
    /// Every account has a cluster of its own.
    pub per_account_clusters: bool,
    /// The calendar of budget periods and recurring reservations.
    pub time_zone: Arc<TimeZone>,
    /// Reservations that were left out, since nothing says on which days the trace is.
    pub dateless: usize,
}

/// Policies that need no file, with what they are.
pub const NAMED: [(&str, &str); 6] = [
    (
        "default",
        "multifactor order, backfill with a reservation for the head of each partition, nodes packed",
    ),
    ("fifo", "submission order, no passing, best fit"),
    ("sjf", "shortest job first, no passing, best fit"),
    (
        "easy",
        "submission order, backfill with a reservation for the head (Lifka 1995), best fit",
    ),
    (
        "conservative",
        "submission order, backfill with reservations for all (Mu'alem and Feitelson 2001), best fit",
    ),
    (
        "sjf-easy",
        "shortest job first with EASY backfill, best fit",
    ),
];

const ORDERS: [(&str, JobOrder); 3] = gconfig::scheduling::ORDERS;

impl PolicyFile {
    /// A policy that needs no file.
    pub fn named(name: &str) -> Option<Self> {
        let textbook = |order, backfill| SchedulerConfig {
            order,
            backfill,
            placement: Placement::BestFit,
            ..SchedulerConfig::default()
        };
        let scheduler = match name {
            "default" => SchedulerConfig::default(),
            "fifo" => textbook(JobOrder::Fifo, Backfill::Off),
            "sjf" => textbook(JobOrder::Sjf, Backfill::Off),
            "easy" => textbook(JobOrder::Fifo, Backfill::EASY),
            "conservative" => textbook(JobOrder::Fifo, Backfill::All),
            "sjf-easy" => textbook(JobOrder::Sjf, Backfill::EASY),
            _ => return None,
        };
        Some(Self {
            name: name.to_owned(),
            scheduler,
            ..Self::default()
        })
    }

    /// Reads a policy, under the name of its file. The keys of `[scheduler]` and `[simulation]` may also stand at the top.
    ///
    /// # Errors
    /// Every mistake with its place.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let SiteFile {
            config, simulation, ..
        } = SiteFile::parse(name, text)?;
        let default = Settings::default();
        let mut policy = Self {
            name: Path::new(name).file_stem().map_or_else(
                || name.to_owned(),
                |stem| stem.to_string_lossy().into_owned(),
            ),
            scheduler: config.scheduler,
            accounts: config.policy,
            time_zone: config.time_zone,
            settings: Settings {
                runtime: simulation.runtime.unwrap_or(default.runtime),
                kill_at_limit: simulation.kill_at_limit.unwrap_or(default.kill_at_limit),
                marks_every_ms: simulation
                    .marks_every_secs
                    .map(|secs| i64::from(secs) * 1000),
                begin: simulation.begin,
                ..default
            },
            per_account_clusters: simulation.per_account_clusters.unwrap_or(false),
            dateless: 0,
        };
        if policy.settings.begin.is_none() {
            // They are for days that are not the trace's.
            policy.dateless = std::mem::take(&mut policy.accounts.reservations).len();
        }
        Ok(policy)
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
            time_zone: self.time_zone.clone(),
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
        let runtime = if self.settings.runtime == Runtime::Limit {
            "time limits"
        } else {
            "actual run times"
        };
        let (order, placement) = (word(&ORDERS, set.order), set.placement.word());
        let mut text = format!(
            "{}: {order} order, {backfill}, {placement} placement, by {runtime}",
            self.name
        );
        if self.per_account_clusters {
            text.push_str(", a cluster for each account");
        }
        if !self.accounts.accounts.is_empty() {
            text.push_str(&format!(", {} accounts", self.accounts.accounts.len()));
        }
        if let Some(begin) = self.settings.begin {
            text.push_str(&format!(", from {begin} on"));
        }
        if self.dateless > 0 {
            text.push_str(&format!(
                ", {} reservations left out for want of begin under [simulation]",
                self.dateless
            ));
        }
        text
    }
}

fn word<T: PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words
        .iter()
        .find(|(_, known)| *known == value)
        .map_or("?", |(word, _)| word)
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
                    limit = { h100 = 32 }\n[qos.high]\npreempt = [\"low\"]\n[qos.low]\n[partition.train]\nnodes = \"a\"\n";
        let policy = PolicyFile::parse("x", rest).unwrap();
        assert_eq!(
            (
                policy.scheduler.priority.age,
                policy.scheduler.priority.max_age_secs
            ),
            (5, 172_800)
        );
        assert_eq!(
            policy.accounts.accounts["vision"].guaranteed,
            Some(GpuAmounts::all(64))
        );
        assert_eq!(
            policy.accounts.accounts["vision"]
                .limit
                .as_ref()
                .unwrap()
                .of("h100"),
            Some(32_000)
        );
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
        let daemon =
            PolicyFile::parse("gpuctld.toml", include_str!("../../etc/gpuctld.toml")).unwrap();
        assert_eq!(daemon.scheduler, SchedulerConfig::default());
        let accounts = PolicyFile::parse("x", include_str!("../../etc/policy.d/accounts.toml"))
            .unwrap()
            .accounts
            .accounts;
        assert_eq!(
            accounts["physics"].guaranteed.as_ref().unwrap().of("h100"),
            Some(16_000)
        );
        assert_eq!(
            (
                accounts["physics"].budgets.len(),
                accounts["physics"].budgets[0].gpu_hours
            ),
            (1, 10_000)
        );
        assert_eq!(
            (
                accounts["chemistry"].per_user.running_jobs,
                accounts["chemistry"].users["lise"].shares
            ),
            (Some(20), 2)
        );
        let qos = PolicyFile::parse("x", include_str!("../../etc/policy.d/qos.toml"))
            .unwrap()
            .accounts
            .qos;
        assert_eq!(
            (
                qos["urgent"].usage_factor_milli,
                qos["urgent"].per_job.time_secs
            ),
            (2000, Some(14_400))
        );
        assert_eq!(
            (
                qos["scavenger"].min_run_secs,
                qos["scavenger"].outside_quota
            ),
            (600, true)
        );
    }

    #[test]
    fn what_is_wrong_is_said_as_the_controller_says_it() {
        let wrong = |text: &str| PolicyFile::parse("site.toml", text).unwrap_err();
        assert_eq!(
            wrong("[scheduler]\nbackfill = \"eazy\"\n"),
            "error: backfill = \"eazy\" is unknown\n --> site.toml:2:12\n  |\n2 | backfill = \"eazy\"\n  |            ^^^^^^ did you mean \"easy\"?"
        );
        let all = wrong(
            "oder = \"fifo\"\nbackfill = -3\n[simulation]\nrun_time = 1\n[account.a]\nguaranteed = \"lots\"\n",
        );
        for said in [
            "did you mean \"order\"?",
            "backfill",
            "did you mean \"runtime\"?",
            "guaranteed",
        ] {
            assert!(all.contains(said), "{said}: {all}");
        }
        assert_eq!(all.matches("error: ").count(), 4, "{all}");
        // What does not go together: of QOS the file has none, so that they may be in another.
        let all = wrong(
            "[account.a]\nparent = \"b\"\ndefault_qos = \"high\"\n[account.b]\nparent = \"a\"\n[account.lab]\nguaranteed = 4\n\
                         [account.c]\nparent = \"lab\"\nguaranteed = 8\n[account.d]\nparent = \"lap\"\n",
        );
        for said in [
            "account \"a\" is below itself",
            "the accounts below \"lab\" are guaranteed 8 GPUs together (c 8) and it has 4",
            "did you mean \"lab\"?",
        ] {
            assert!(all.contains(said), "{said}: {all}");
        }
        assert_eq!(all.matches("error: ").count(), 3, "{all}");
    }

    #[test]
    fn days_are_those_of_the_sites_clock_and_without_a_date_reservations_are_left_out() {
        let site = "time_zone = \"Europe/Berlin\"\n[reservation.night]\nnodes = \"ALL\"\nstart = 2026-01-05T22:00:00\nduration = \"8:00:00\"\nrepeat = \"daily\"\n";
        let dated = PolicyFile::parse(
            "x",
            &format!("{site}[simulation]\nbegin = \"2026-01-05T00:00\"\n"),
        )
        .unwrap();
        assert_eq!(
            dated.settings.begin.unwrap().to_string(),
            "2026-01-04T23:00:00Z"
        );
        assert_eq!(
            dated.accounts.reservations["night"].start.to_string(),
            "2026-01-05T21:00:00Z"
        );
        assert!(dated.describe().ends_with(", from 2026-01-04T23:00:00Z on"));
        let without = PolicyFile::parse("x", site).unwrap();
        assert!(without.accounts.reservations.is_empty());
        assert!(
            without
                .describe()
                .ends_with("1 reservations left out for want of begin under [simulation]")
        );
    }
}
