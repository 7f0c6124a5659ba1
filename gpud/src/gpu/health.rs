//! The driver of `gcore::node::gpu_health`: keeps its state in the spool and carries out what it says, except that the watch's thread
//! starts programs and the daemon ends runs. Decides nothing.

use anyhow::{Context, Result};
use gcore::node::gpu_health::{GpuRecord, HealthAction, HealthInput, NodeHealth, RepairMeans};
use gmodel::gpu_health::{RepairStage, Severity};
use gmodel::{RunId, Timestamp};
use gsys::durable_file::write_atomic;
use gsys::nvml::GpuFacts;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// In the spool.
pub const BOOK_FILE: &str = "gpu-health.json";
/// Counters that merely ran on are written so seldom.
const WRITE_EVERY_SECS: i64 = 60;

/// The health of this node's GPUs, and its file.
#[derive(Debug)]
pub struct HealthBook {
    path: PathBuf,
    health: NodeHealth,
    /// The GPU for which a program of the site is to be started, and what for.
    to_run: Option<(String, RepairStage)>,
    /// Something happened since the book was written.
    unwritten: bool,
    written_at: Timestamp,
}

impl HealthBook {
    /// Reads what is known from before.
    pub fn open(spool_dir: &Path, boot: String, means: RepairMeans, now: Timestamp) -> Self {
        let path = spool_dir.join(BOOK_FILE);
        let mut health = read(&path).unwrap_or_else(|e| {
            tracing::error!("what was known of the health of GPUs is lost: {e:#}");
            NodeHealth::default()
        });
        health.means = means;
        let mut book = Self {
            path,
            health,
            to_run: None,
            unwritten: false,
            written_at: now,
        };
        book.take(HealthInput::Began { boot }, now);
        book
    }

    pub fn health(&self) -> &NodeHealth {
        &self.health
    }

    /// Takes one input; the runs that have to end, and why. The error says why an order is not carried out.
    pub fn handle(
        &mut self,
        input: HealthInput<'_>,
        now: Timestamp,
    ) -> Result<Vec<(RunId, String)>> {
        let mut to_end = Vec::new();
        let actions = self.health.handle(input, now);
        for action in actions.map_err(anyhow::Error::msg)? {
            match action {
                HealthAction::Store => self.unwritten = true,
                HealthAction::EndRun { run, why } => to_end.push((run, why)),
                HealthAction::StartProgram { uuid, stage } => self.to_run = Some((uuid, stage)),
                HealthAction::Log { severity, text } => match severity {
                    Severity::Info => tracing::info!("{text}"),
                    Severity::Warning => tracing::warn!("{text}"),
                    Severity::Critical | Severity::Fatal => tracing::error!("{text}"),
                },
            }
        }
        Ok(to_end)
    }

    /// Takes an input that is no order: it is never refused and ends no run.
    pub fn take(&mut self, input: HealthInput<'_>, now: Timestamp) {
        if let Err(e) = self.handle(input, now) {
            tracing::error!("{e:#}");
        }
    }

    /// Puts what keeps a GPU out of service into its facts: it outlasts what discovery sees.
    pub fn apply(&self, facts: &mut [GpuFacts]) {
        for gpu in facts {
            let fault = self.health.fault(&gpu.uuid);
            if !fault.is_empty() {
                gpu.fault = Some(fault);
            }
        }
    }

    /// The GPU for which a program of the site is to be run now, said once.
    pub fn take_program(&mut self) -> Option<(String, RepairStage)> {
        self.to_run.take()
    }

    /// Writes the book, at once when something happened. False: what happened is not on disk.
    pub fn write(&mut self, now: Timestamp) -> bool {
        let due = self.unwritten || now.since_secs(self.written_at).abs() >= WRITE_EVERY_SECS;
        if !due {
            return true;
        }
        let bytes = serde_json::to_vec(&self.health).map_err(anyhow::Error::from);
        match bytes.and_then(|bytes| Ok(write_atomic(&self.path, &bytes)?)) {
            Ok(()) => (self.unwritten, self.written_at) = (false, now),
            Err(e) => tracing::error!("writing {}: {e:#}", self.path.display()),
        }
        !self.unwritten
    }
}

fn read(path: &Path) -> Result<NodeHealth> {
    match std::fs::read(path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(NodeHealth::default()),
        Err(e) => Err(e).with_context(|| format!("reading {}", path.display())),
    }
}

/// Prints what is known of each GPU, a line each, and the signs that stand below it.
pub fn list(spool_dir: &Path) -> Result<()> {
    for (uuid, record) in records(spool_dir)? {
        let fault = record.fault();
        println!(
            "{} {} {uuid} {}",
            record.index,
            record.gpu_type,
            if fault.is_empty() {
                "in service"
            } else {
                &fault
            }
        );
        for sign in record.watch.standing() {
            println!(
                "    {} {}: {}, {} times, {} to {}",
                sign.severity, sign.name, sign.evidence, sign.count, sign.first, sign.last
            );
        }
    }
    Ok(())
}

/// The GPUs of a node and what is known of each, as the book in its spool says: for the command.
pub fn records(spool_dir: &Path) -> Result<BTreeMap<String, GpuRecord>> {
    Ok(read(&spool_dir.join(BOOK_FILE))?.gpus().clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_outlasts_the_daemon_and_one_that_cannot_be_read_keeps_no_node_from_starting() {
        let dir = std::env::temp_dir().join(format!("gpud-health-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let now = Timestamp::from_secs(1_000_000);
        let open = || HealthBook::open(&dir, "boot-1".into(), RepairMeans::default(), now);
        let left = HealthInput::Left {
            uuid: "GPU-6",
            what: "after run 1-1, process 7 is still on it".into(),
            to_scrub: false,
        };
        let mut book = open();
        book.take(left, now);
        assert!(book.write(now));
        let mut facts = [GpuFacts {
            uuid: "GPU-6".into(),
            ..GpuFacts::default()
        }];
        open().apply(&mut facts);
        assert_eq!(
            facts[0].fault.as_deref(),
            Some("not clean: after run 1-1, process 7 is still on it")
        );
        std::fs::write(dir.join(BOOK_FILE), "{half").unwrap();
        assert_eq!(open().health().gpus().len(), 0);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_book_of_an_earlier_release_is_read() {
        let text = r#"{"boot":"b","gpus":{"GPU-1":{"index":1,"gpu_type":"h100","watch":{"before":{"counters":{"ecc-uncorrected":2},
            "ecc_uncorrected_ever":3,"links_never_up":[17]},"tallies":{"xid-48":{"parts":[[7,1]],"by_source":{"event_set":1},"since":null,
            "last_seen":1000,"standing":{"sign":{"name":"xid-48","severity":"critical","action":"reset","let_finish":false,
            "catalogue_version":1,"evidence":"Xid 48","count":1,"first":1000,"last":1000},"told_at":1000,"patience_secs":60}}}},
            "repair":{"stage":"out","since":1000,"attempts":[["reset",900]],"burn_in_failed":false,"held_by_admin":null},
            "reason":"Xid 48: an ECC error","sign":"xid-48","evidence":"Xid 48","unclean":"","unclean_at":0,
            "obeyed":{"incarnation":1,"number":7,"error":""}}}}"#;
        let health: NodeHealth = serde_json::from_str(text).unwrap();
        assert_eq!(health.fault("GPU-1"), "Xid 48: an ECC error");
        assert_eq!(health.gpus()["GPU-1"].watch.standing().count(), 1);
        assert_eq!(
            serde_json::to_value(&health).unwrap(),
            serde_json::from_str::<serde_json::Value>(text).unwrap()
        );
    }
}
