//! The health of this node's GPUs over time: the last reading, the standing signs and the repair of each GPU. Kept in the spool by
//! UUID, so that neither a restart nor a move returns a sick GPU. The signs and the steps of repair are `gmodel::gpu_health`; the
//! daemon ends runs.

use crate::gpu::record::{AnsweredOrder, EndRun, GpuRecord, StepConditions};
use anyhow::{Context, Result};
use gmodel::gpu_health::{
    Catalogue, GpuHealthStatus, GpuReading, RepairPolicy, RepairStage, SignChange, verdict,
};
use gmodel::gpu_order::{GpuOrder, GpuOrderDone};
use gmodel::{RunId, Timestamp};
use gsys::durable_file::write_atomic;
use gsys::nvml::{GpuEvent, GpuFacts, GpuHealth};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// In the spool.
pub const BOOK_FILE: &str = "gpu-health.json";
/// Counters that merely ran on are written so seldom.
const WRITE_EVERY_SECS: i64 = 60;
/// GPUs that are gone and were healthy are forgotten beyond so many.
const MAX_RECORDS: usize = 256;

/// Every GPU that this node has seen, by UUID.
#[derive(Debug)]
pub struct HealthBook {
    path: PathBuf,
    boot: String,
    gpus: BTreeMap<String, GpuRecord>,
    means: RepairMeans,
    /// The GPU for which a program of the site is to be started, and what for.
    to_run: Option<(String, RepairStage)>,
    /// Something happened since the book was written.
    unwritten: bool,
    written_at: Timestamp,
}

/// What the site gives this node to mend GPUs with.
#[derive(Clone, Debug, Default)]
pub struct RepairMeans {
    /// A program has the last word before a GPU is back.
    pub burn_in: bool,
    pub policy: RepairPolicy,
}

/// What the controller is told of a GPU's health besides its fault.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HealthReport {
    pub notes: Vec<String>,
    pub wants: &'static str,
    pub standing: Option<Box<GpuHealthStatus>>,
}

/// What an administrator of the node asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LocalOrder {
    /// Out of service, for this reason, until it is returned.
    Quarantine(String),
    /// Back, if it looks well.
    Return,
}

/// The book as it lies in the spool.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredBook {
    boot: String,
    gpus: BTreeMap<String, GpuRecord>,
}

impl HealthBook {
    /// Reads what is known from before. After a boot, signs that a reset or a boot mends are looked at anew.
    pub fn open(spool_dir: &Path, boot: String, means: RepairMeans, now: Timestamp) -> Self {
        let path = spool_dir.join(BOOK_FILE);
        let kept = read(&path).unwrap_or_else(|e| {
            tracing::error!("what was known of the health of GPUs is lost: {e:#}");
            StoredBook::default()
        });
        let is_boot = kept.boot != boot && !kept.boot.is_empty();
        let mut book = Self {
            path,
            gpus: kept.gpus,
            means,
            to_run: None,
            unwritten: kept.boot != boot,
            boot,
            written_at: now,
        };
        for (uuid, record) in &mut book.gpus {
            record.daemon_began(is_boot, now);
            if !record.fault().is_empty() {
                tracing::warn!("GPU {uuid} stays out of service: {}", record.fault());
            }
        }
        book
    }

    /// Puts what keeps a GPU out of service into its facts: it outlasts what discovery sees.
    pub fn apply(&self, facts: &mut [GpuFacts]) {
        for gpu in facts {
            if let Some(record) = self
                .gpus
                .get(&gpu.uuid)
                .filter(|record| !record.fault().is_empty())
            {
                gpu.fault = Some(record.fault());
            }
        }
    }

    /// What else the controller is told, of those GPUs of which there is something to tell.
    pub fn shown(&self) -> BTreeMap<String, HealthReport> {
        let shown = |record: &GpuRecord| HealthReport {
            notes: record.notes(),
            wants: record.wants(),
            standing: record.standing(),
        };
        let all = self
            .gpus
            .iter()
            .map(|(uuid, record)| (uuid.clone(), shown(record)));
        all.filter(|(_, shown)| *shown != HealthReport::default())
            .collect()
    }

    /// What discovery sees is this node's, looked at or not.
    pub fn meet(&mut self, facts: &[GpuFacts]) {
        for (uuid, record) in &mut self.gpus {
            record.absent = facts.iter().all(|gpu| gpu.uuid != *uuid);
        }
        for gpu in facts {
            let record = self.gpus.entry(gpu.uuid.clone()).or_default();
            record.index = gpu.index;
            // One that does not answer tells no type.
            if !gpu.gpu_type.is_empty() {
                record.gpu_type.clone_from(&gpu.gpu_type);
            }
        }
    }

    /// Whether it was ever this node's.
    pub fn knows(&self, uuid: &str) -> bool {
        self.gpus.contains_key(uuid)
    }

    /// A GPU has answered since this daemon began.
    pub fn has_readings(&self) -> bool {
        self.gpus.values().any(|record| record.reading.is_some())
    }

    /// Takes a reading of all GPUs. When all of several GPUs fall silent at once, the driver is to blame: discovery reports it, and
    /// no GPU gets a sign.
    pub fn read(
        &mut self,
        catalogue: &Catalogue,
        sweep: Vec<GpuHealth>,
        facts: &[GpuFacts],
        now: Timestamp,
    ) {
        if sweep.len() > 1 && sweep.iter().all(|gpu| gpu.reading.fault.is_some()) {
            return;
        }
        let type_of = |uuid: &Option<String>| {
            facts
                .iter()
                .find(|gpu| Some(&gpu.uuid) == uuid.as_ref())
                .map_or("", |gpu| gpu.gpu_type.as_str())
        };
        let mut sweep = sweep;
        let mut readings: Vec<(&str, &mut GpuReading)> = sweep
            .iter_mut()
            .map(|gpu| (type_of(&gpu.uuid), &mut gpu.reading))
            .collect();
        gmodel::gpu_health::compare_siblings(&mut readings);
        for gpu in sweep {
            let Some(uuid) = &gpu.uuid else { continue };
            let gpu_type = type_of(&gpu.uuid).to_owned();
            let record = self.gpus.entry(uuid.clone()).or_default();
            record.index = gpu.index;
            if !gpu_type.is_empty() {
                record.gpu_type = gpu_type;
            }
            let changes = record.watch.read(catalogue, &gpu.reading, now);
            record.reading = Some(gpu.reading).filter(|reading| reading.fault.is_none());
            self.unwritten |= !changes.is_empty();
            changes.iter().for_each(|change| tell(uuid, record, change));
        }
        self.forget_strangers(facts);
    }

    /// Takes what befell GPUs.
    pub fn events(&mut self, catalogue: &Catalogue, events: &[GpuEvent], now: Timestamp) {
        for event in events {
            let record = self.gpus.entry(event.uuid.clone()).or_default();
            let changes = record
                .watch
                .event(catalogue, event.kind, event.count, event.source, now);
            self.unwritten |= !changes.is_empty();
            changes
                .iter()
                .for_each(|change| tell(&event.uuid, record, change));
        }
    }

    /// Records what a run left on a GPU; empty where the GPU is clean.
    pub fn left_on(&mut self, uuid: &str, what: String, now: Timestamp) {
        let record = self.gpus.entry(uuid.to_owned()).or_default();
        record.unclean_at = now;
        if record.unclean != what {
            match what.is_empty() {
                true => tracing::info!("GPU {uuid} is clean now"),
                false => tracing::error!("GPU {uuid} is not given out: {what}"),
            }
            record.unscrubbed &= !what.is_empty();
            record.unclean = what;
            self.unwritten = true;
        }
    }

    /// A run left this, and its memory is to be overwritten before the GPU is given out.
    pub fn unscrubbed(&mut self, uuid: &str, what: String, now: Timestamp) {
        self.left_on(uuid, what, now);
        let record = self.gpus.entry(uuid.to_owned()).or_default();
        self.unwritten |= !record.unscrubbed;
        record.unscrubbed = true;
    }

    /// What a run left on it; empty for nothing. And whether its memory is to be overwritten.
    pub fn left(&self, uuid: &str) -> (&str, bool) {
        self.gpus.get(uuid).map_or(("", false), |record| {
            (record.unclean.as_str(), record.unscrubbed)
        })
    }

    /// When something was last seen on it that a run left.
    pub fn left_at(&self, uuid: &str) -> Timestamp {
        self.gpus
            .get(uuid)
            .map_or(Timestamp::default(), |record| record.unclean_at)
    }

    /// Faults of slices on sound GPUs, by UUID.
    pub fn faults_of_slices(&self) -> BTreeMap<String, String> {
        let of_slices = self
            .gpus
            .iter()
            .filter(|(uuid, _)| uuid.starts_with("MIG-"));
        of_slices
            .map(|(uuid, record)| (uuid.clone(), record.fault()))
            .filter(|(_, fault)| !fault.is_empty())
            .collect()
    }

    /// GPUs on which a run left something.
    pub fn unclean(&self) -> Vec<String> {
        let unclean = self
            .gpus
            .iter()
            .filter(|(_, record)| !record.unclean.is_empty());
        unclean.map(|(uuid, _)| uuid.clone()).collect()
    }

    /// The answer to an order of the controller that was carried out before, or that came late.
    pub fn answered(&self, incarnation: u64, order: &GpuOrder) -> Option<GpuOrderDone> {
        let obeyed = self.gpus.get(&order.uuid)?.obeyed.as_ref()?;
        let error = match (incarnation, order.number).cmp(&(obeyed.incarnation, obeyed.number)) {
            std::cmp::Ordering::Greater => return None,
            std::cmp::Ordering::Equal => obeyed.error.clone(),
            std::cmp::Ordering::Less => format!("order {} came after it", obeyed.number),
        };
        Some(GpuOrderDone::new(order, error))
    }

    /// An order of the controller was carried out, or could not be: the answer, which stands once the book is written.
    pub fn carried_out(
        &mut self,
        incarnation: u64,
        order: &GpuOrder,
        outcome: Result<()>,
    ) -> GpuOrderDone {
        let error = outcome.err().map_or_else(String::new, |e| format!("{e:#}"));
        if let Some(record) = self.gpus.get_mut(&order.uuid) {
            record.obeyed = Some(AnsweredOrder {
                incarnation,
                number: order.number,
                error: error.clone(),
            });
            self.unwritten = true;
        }
        GpuOrderDone::new(order, error)
    }

    /// An administrator's word.
    pub fn obey(&mut self, uuid: &str, order: LocalOrder, now: Timestamp) -> Result<()> {
        let record = self
            .gpus
            .get_mut(uuid)
            .with_context(|| format!("this node has never seen GPU {uuid}"))?;
        tracing::warn!("GPU {uuid}: an administrator's order: {order:?}");
        self.unwritten = true;
        match order {
            LocalOrder::Quarantine(why) => record.hold(why, now),
            LocalOrder::Return => record.release(now),
        }
        Ok(())
    }

    /// The controller allows the step that the GPU waits for. `node_empty`: no run is on the node, with GPUs or without.
    pub fn permit(&mut self, uuid: &str, node_empty: bool, now: Timestamp) -> Result<()> {
        anyhow::ensure!(
            self.under_way().is_none_or(|one| one == uuid),
            "a step is under way on another GPU of this node"
        );
        let record = self
            .gpus
            .get_mut(uuid)
            .with_context(|| format!("this node has never seen GPU {uuid}"))?;
        anyhow::ensure!(
            record.wants() != "boot" || node_empty,
            "the node is not booted: a run is on it"
        );
        record.permitted(uuid, &self.means.policy, now)?;
        if matches!(
            record.repair.stage,
            RepairStage::Resetting | RepairStage::Booting
        ) {
            self.to_run = Some((uuid.to_owned(), record.repair.stage));
        }
        self.unwritten = true;
        Ok(())
    }

    /// The GPU on which a step is under way.
    fn under_way(&self) -> Option<&str> {
        let busy = |record: &GpuRecord| {
            matches!(
                record.repair.stage,
                RepairStage::BurningIn | RepairStage::Resetting | RepairStage::Booting
            )
        };
        self.gpus
            .iter()
            .find(|(_, record)| busy(record))
            .map(|(uuid, _)| uuid.as_str())
    }

    /// No sign stands that takes a GPU out, and none is out.
    pub fn all_well(&self) -> bool {
        self.gpus
            .values()
            .all(|record| record.fault().is_empty() && verdict(record.watch.standing()).is_none())
    }

    /// Takes every GPU the next step on its way. `held`: which runs hold a GPU, or slices of it. What a healthy pool can wait for waits for the
    /// controller's word; a GPU that is certainly sick goes at once.
    pub fn step(
        &mut self,
        held: &BTreeMap<String, BTreeSet<RunId>>,
        node_empty: bool,
        now: Timestamp,
    ) -> Vec<EndRun> {
        let mut to_end = Vec::new();
        let mut under_way = self.under_way().map(str::to_owned);
        for (uuid, record) in &mut self.gpus {
            let before = (record.repair.clone(), record.reason.clone());
            let other_under_way = under_way.as_ref().is_some_and(|one| one != uuid);
            let holders = held.get(uuid).into_iter().flatten().copied();
            let around = StepConditions {
                held: holders.clone().next(),
                node_empty,
                by_look: !self.means.burn_in,
                other_under_way,
            };
            if let Some(end) = record.take_repair_steps(uuid, around, &self.means.policy, now) {
                to_end.extend(holders.map(|run| EndRun {
                    run,
                    why: end.why.clone(),
                }));
            }
            let began = record.repair.stage == RepairStage::BurningIn
                && before.0.stage != RepairStage::BurningIn;
            if began {
                self.to_run = Some((uuid.clone(), RepairStage::BurningIn));
            }
            // One step on a node at a time, and one that waits for the controller's word.
            if began || matches!(record.wants(), "reset" | "boot") {
                under_way = Some(uuid.clone());
            }
            self.unwritten |= before != (record.repair.clone(), record.reason.clone());
        }
        to_end
    }

    /// The GPU for which a program of the site is to be run now, said once.
    pub fn take_program(&mut self) -> Option<(String, RepairStage)> {
        self.to_run.take()
    }

    /// How the site's program ended on a GPU.
    pub fn program_ended(&mut self, uuid: &str, outcome: Result<()>, now: Timestamp) {
        if let Some(record) = self.gpus.get_mut(uuid) {
            self.unwritten = true;
            record.ended(uuid, outcome, now);
        }
    }

    /// Writes the book, at once when something happened. False: what happened is not on disk.
    pub fn write(&mut self, now: Timestamp) -> bool {
        let due = self.unwritten || now.since_secs(self.written_at).abs() >= WRITE_EVERY_SECS;
        if !due {
            return true;
        }
        let kept = StoredBook {
            boot: self.boot.clone(),
            gpus: self.gpus.clone(),
        };
        let written = serde_json::to_vec(&kept).map_err(anyhow::Error::from);
        match written.and_then(|bytes| Ok(write_atomic(&self.path, &bytes)?)) {
            Ok(()) => (self.unwritten, self.written_at) = (false, now),
            Err(e) => tracing::error!("writing {}: {e:#}", self.path.display()),
        }
        !self.unwritten
    }

    /// A healthy GPU that was taken out of the machine is no more this node's.
    fn forget_strangers(&mut self, facts: &[GpuFacts]) {
        if self.gpus.len() > MAX_RECORDS {
            let here = |uuid: &String| facts.iter().any(|gpu| gpu.uuid == *uuid);
            self.gpus
                .retain(|uuid, record| here(uuid) || !record.fault().is_empty());
        }
    }
}

fn tell(uuid: &str, record: &GpuRecord, change: &SignChange) {
    let index = record.index;
    match change {
        SignChange::Raised(sign) if sign.action > gmodel::gpu_health::Action::Note => {
            tracing::error!(
                "GPU {uuid} (index {index}): {} {}: {}, calls for {}",
                sign.severity,
                sign.name,
                sign.evidence,
                sign.action
            );
        }
        SignChange::Raised(sign) => tracing::warn!(
            "GPU {uuid} (index {index}): {} {}: {}, noted",
            sign.severity,
            sign.name,
            sign.evidence
        ),
        SignChange::Repeated(sign) => {
            tracing::warn!(
                "GPU {uuid} (index {index}): {} again: {}, {} times since {}",
                sign.name,
                sign.evidence,
                sign.count,
                sign.first
            );
        }
        SignChange::Over(sign) => tracing::info!(
            "GPU {uuid} (index {index}): {} is over, {} times since {}",
            sign.name,
            sign.count,
            sign.first
        ),
    }
}

fn read(path: &Path) -> Result<StoredBook> {
    match std::fs::read(path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(StoredBook::default()),
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
    Ok(read(&spool_dir.join(BOOK_FILE))?.gpus)
}

#[cfg(test)]
mod tests;
