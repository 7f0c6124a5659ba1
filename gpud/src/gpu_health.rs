//! The health of this node's GPUs over time: what each showed, which signs stand, and how far each is on its way out of service
//! and back. Kept in the spool by UUID, so that neither a restart nor a move returns a sick GPU. What signs there are and what
//! step is next is `gmodel::gpu_health`; who ends a run is the daemon.

use crate::gpu_record::{Around, EndRun, Obeyed, Record};
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
    gpus: BTreeMap<String, Record>,
    means: Means,
    /// The GPU for which a program of the site is to be started, and what for.
    to_run: Option<(String, RepairStage)>,
    /// Something happened since the book was written.
    unwritten: bool,
    written_at: Timestamp,
}

/// What the site gives this node to mend GPUs with.
#[derive(Clone, Debug, Default)]
pub struct Means {
    /// A program has the last word before a GPU is back.
    pub burn_in: bool,
    pub policy: RepairPolicy,
}

/// What the controller is told of a GPU's health besides its fault.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    pub notes: Vec<String>,
    pub wants: &'static str,
    pub standing: Option<Box<GpuHealthStatus>>,
}

/// What an administrator of the node asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Out of service, for this reason, until it is returned.
    Quarantine(String),
    /// Back, if it looks well.
    Return,
}

/// The book as it lies in the spool.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Kept {
    boot: String,
    gpus: BTreeMap<String, Record>,
}

impl HealthBook {
    /// Reads what is known from before. After a boot, signs that a reset or a boot mends are looked at anew.
    pub fn open(spool_dir: &Path, boot: String, means: Means, now: Timestamp) -> Self {
        let path = spool_dir.join(BOOK_FILE);
        let kept = read(&path).unwrap_or_else(|e| {
            tracing::error!("what was known of the health of GPUs is lost: {e:#}");
            Kept::default()
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
    pub fn shown(&self) -> BTreeMap<String, Shown> {
        let shown = |record: &Record| Shown {
            notes: record.notes(),
            wants: record.wants(),
            standing: record.standing(),
        };
        let all = self
            .gpus
            .iter()
            .map(|(uuid, record)| (uuid.clone(), shown(record)));
        all.filter(|(_, shown)| *shown != Shown::default())
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

    /// Takes a sweep over all GPUs. When all of several fall silent at once it is the driver's trouble and no GPU's: discovery
    /// says so, and nothing is held against them.
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

    /// What a run left on these GPUs, or nothing where they are clean.
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

    /// Why slices are not given out though nothing is wrong with their GPUs, by UUID.
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
            record.obeyed = Some(Obeyed {
                incarnation,
                number: order.number,
                error: error.clone(),
            });
            self.unwritten = true;
        }
        GpuOrderDone::new(order, error)
    }

    /// An administrator's word.
    pub fn obey(&mut self, uuid: &str, order: Order, now: Timestamp) -> Result<()> {
        let record = self
            .gpus
            .get_mut(uuid)
            .with_context(|| format!("this node has never seen GPU {uuid}"))?;
        tracing::warn!("GPU {uuid}: an administrator's order: {order:?}");
        self.unwritten = true;
        match order {
            Order::Quarantine(why) => record.hold(why, now),
            Order::Return => record.release(now),
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
        let busy = |record: &Record| {
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
            let around = Around {
                held: holders.clone().next(),
                node_empty,
                by_look: !self.means.burn_in,
                other_under_way,
            };
            if let Some(end) = record.step(uuid, around, &self.means.policy, now) {
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
        let kept = Kept {
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

fn tell(uuid: &str, record: &Record, change: &SignChange) {
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

fn read(path: &Path) -> Result<Kept> {
    match std::fs::read(path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Kept::default()),
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
pub fn records(spool_dir: &Path) -> Result<BTreeMap<String, Record>> {
    Ok(read(&spool_dir.join(BOOK_FILE))?.gpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::gpu_health::{EventSource, GpuEventKind, ReadFailure, ReadFailureKind};

    struct Node {
        dir: PathBuf,
        book: HealthBook,
        now: Timestamp,
    }

    impl Node {
        fn new(name: &str) -> Self {
            let dir =
                std::env::temp_dir().join(format!("gpud-health-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let now = Timestamp::from_secs(1_000_000);
            let mut node = Self {
                book: HealthBook::open(&dir, "boot-1".into(), Means::default(), now),
                dir,
                now,
            };
            node.look(&[]);
            node
        }

        fn restart(&mut self, boot: &str) {
            self.book.write(self.now);
            self.book = HealthBook::open(&self.dir, boot.into(), self.book.means.clone(), self.now);
        }

        /// A sweep over eight GPUs of which these are silent, ten seconds after the one before, and the steps then.
        fn look(&mut self, lost: &[u32]) -> Vec<EndRun> {
            self.now = self.now.plus_secs(10);
            let fault = |index| {
                lost.contains(&index).then(|| ReadFailure {
                    kind: ReadFailureKind::Lost,
                    text: "GPU is lost".into(),
                })
            };
            let reading = |index| GpuReading {
                fault: fault(index),
                ..GpuReading::default()
            };
            let sweep = (0..8)
                .map(|index| GpuHealth {
                    index,
                    uuid: Some(uuid(index)),
                    reading: reading(index),
                })
                .collect();
            self.book.read(&Catalogue::built_in(), sweep, &[], self.now);
            self.book.step(&BTreeMap::new(), true, self.now)
        }

        fn xid(&mut self, index: u32, xid: u64, held: &[(u32, &str)]) -> Vec<EndRun> {
            let event = GpuEvent {
                uuid: uuid(index),
                kind: GpuEventKind::Xid(xid),
                count: 1,
                source: EventSource::EventSet,
            };
            self.book.events(&Catalogue::built_in(), &[event], self.now);
            let held = held
                .iter()
                .map(|(index, run)| (uuid(*index), BTreeSet::from([run.parse().unwrap()])))
                .collect();
            self.book.step(&held, held.is_empty(), self.now)
        }

        fn out(&self) -> Vec<u32> {
            let mut facts: Vec<GpuFacts> = (0..8)
                .map(|index| GpuFacts {
                    index,
                    uuid: uuid(index),
                    ..GpuFacts::default()
                })
                .collect();
            self.book.apply(&mut facts);
            facts
                .iter()
                .filter(|gpu| gpu.fault.is_some())
                .map(|gpu| gpu.index)
                .collect()
        }
    }

    impl Drop for Node {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }

    fn uuid(index: u32) -> String {
        format!("GPU-{index}")
    }

    #[test]
    fn a_job_whose_gpu_is_sick_is_ended_or_may_finish_as_the_sign_says() {
        let mut node = Node::new("ends");
        let ends = node.xid(3, 79, &[(3, "17-1"), (4, "18-1")]);
        assert_eq!(
            ends,
            [EndRun {
                run: "17-1".parse().unwrap(),
                why: "GPU GPU-3 (index 3): Xid 79: the GPU has fallen off the bus".into()
            }]
        );
        // Asking again is the same word; a run that may finish is left alone.
        let both = BTreeSet::from(["17-1".parse().unwrap(), "18-1".parse().unwrap()]);
        assert_eq!(
            node.book
                .step(&BTreeMap::from([(uuid(3), both)]), false, node.now)
                .len(),
            2,
            "all who hold a slice of it"
        );
        assert!(node.xid(4, 94, &[(4, "18-1")]).is_empty());
        // The second sign on the same GPU says that its job has to end now.
        assert_eq!(node.xid(4, 48, &[(4, "18-1")]).len(), 1);
        assert_eq!(node.out(), [3, 4]);
    }

    #[test]
    fn a_restart_returns_nothing_and_a_boot_what_a_boot_mends() {
        let mut node = Node::new("restart");
        node.xid(3, 79, &[]);
        node.book
            .obey(&uuid(5), Order::Quarantine("smells".into()), node.now)
            .unwrap();
        node.look(&[]);
        node.restart("boot-1");
        node.look(&[]);
        assert_eq!(node.out(), [3, 5]);
        node.restart("boot-2");
        assert_eq!(node.out(), [3, 5], "not before it was looked at");
        node.look(&[3]);
        assert_eq!(node.out(), [3, 5], "the boot did not help");
        node.restart("boot-3");
        node.look(&[]);
        assert_eq!(node.out(), [5], "an administrator's word stands");
        node.book.obey(&uuid(5), Order::Return, node.now).unwrap();
        node.look(&[]);
        assert!(node.out().is_empty());
    }

    #[test]
    fn all_gpus_silent_at_once_are_the_drivers_trouble_and_seven_are_not() {
        let mut node = Node::new("silent");
        for _ in 0..30 {
            node.look(&[0, 1, 2, 3, 4, 5, 6, 7]);
        }
        assert!(node.out().is_empty());
        node.look(&[0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(node.out().len(), 7);
    }

    #[test]
    fn a_gpu_that_discovery_saw_can_be_ordered_out_before_it_was_looked_at() {
        let mut node = Node::new("met");
        let (new, stranger) = (uuid(9), uuid(10));
        assert!(!node.book.knows(&new));
        node.book.meet(&[GpuFacts {
            index: 9,
            uuid: new.clone(),
            gpu_type: "h100".into(),
            ..GpuFacts::default()
        }]);
        assert!(
            !node.book.shown().contains_key(&new) && node.book.all_well(),
            "nothing is wrong with it"
        );
        node.book
            .obey(&new, Order::Quarantine("smells".into()), node.now)
            .unwrap();
        assert_eq!(node.book.gpus[&new].fault(), "quarantined: smells");
        let refused = node
            .book
            .obey(&stranger, Order::Return, node.now)
            .unwrap_err();
        assert_eq!(refused.to_string(), "this node has never seen GPU GPU-10");
    }

    #[test]
    fn a_gpu_that_is_missing_keeps_no_other_waiting_and_a_step_that_waits_for_another_says_so() {
        let mut node = Node::new("missing");
        node.book.means.policy = RepairPolicy {
            max_resets: 2,
            max_boots: 1,
            first_pause_secs: 1,
            ..RepairPolicy::default()
        };
        node.xid(2, 79, &[]);
        node.xid(3, 48, &[]);
        let told = |node: &Node, index: u32| {
            (
                node.book.shown()[&uuid(index)].wants,
                node.book.shown()[&uuid(index)]
                    .standing
                    .clone()
                    .unwrap()
                    .next,
            )
        };
        assert_eq!(told(&node, 2).0, "boot");
        assert_eq!(
            told(&node, 3),
            (
                "",
                "the next step, after that of another GPU of its node".to_owned()
            )
        );
        let there: Vec<GpuFacts> = (0..8)
            .filter(|index| *index != 2)
            .map(|index| GpuFacts {
                index,
                uuid: uuid(index),
                ..GpuFacts::default()
            })
            .collect();
        node.book.meet(&there);
        node.look(&[]);
        assert_eq!((told(&node, 2).0, told(&node, 3).0), ("", "reset"));
    }

    #[test]
    fn a_gpu_that_is_returned_and_still_sick_goes_out_again() {
        let mut node = Node::new("again");
        node.look(&[2]);
        assert_eq!(node.out(), [2]);
        node.book.obey(&uuid(2), Order::Return, node.now).unwrap();
        node.look(&[2]);
        assert_eq!(node.out(), [2]);
        node.book.obey(&uuid(2), Order::Return, node.now).unwrap();
        node.look(&[]);
        assert!(node.out().is_empty());
        node.book.left_on(
            &uuid(6),
            "after run 1-1, processes 7 are still on it".into(),
            node.now,
        );
        assert_eq!(node.out(), [6]);
        node.restart("boot-1");
        assert_eq!(node.out(), [6], "what a run left is remembered");
    }

    #[test]
    fn the_sites_program_has_the_last_word_one_gpu_at_a_time() {
        let mut node = Node::new("burn-in");
        node.book.means.burn_in = true;
        node.look(&[1, 2]);
        for index in [1, 2] {
            node.book
                .obey(&uuid(index), Order::Return, node.now)
                .unwrap();
        }
        node.look(&[]);
        assert_eq!(
            (node.book.take_program(), node.book.take_program()),
            (Some((uuid(1), RepairStage::BurningIn)), None)
        );
        node.look(&[]);
        assert_eq!((node.book.take_program(), node.out()), (None, vec![1, 2]));
        node.book.program_ended(&uuid(1), Ok(()), node.now);
        node.look(&[]);
        assert_eq!(
            (node.book.take_program(), node.out()),
            (Some((uuid(2), RepairStage::BurningIn)), vec![2])
        );
        node.book.program_ended(
            &uuid(2),
            Err(anyhow::anyhow!("burn-in ended with 1: sums differ")),
            node.now,
        );
        for _ in 0..100 {
            node.look(&[]);
        }
        assert_eq!(
            (node.book.take_program(), node.out()),
            (None, vec![2]),
            "it waits for an administrator"
        );
        assert_eq!(
            node.book.gpus[&uuid(2)].fault(),
            "burn-in ended with 1: sums differ"
        );
    }

    #[test]
    fn a_book_that_cannot_be_read_does_not_keep_the_node_from_starting() {
        let mut node = Node::new("spoilt");
        std::fs::write(node.dir.join(BOOK_FILE), "{half").unwrap();
        node.book = HealthBook::open(&node.dir, "boot-1".into(), Means::default(), node.now);
        node.look(&[1]);
        assert_eq!(node.out(), [1]);
    }
}
