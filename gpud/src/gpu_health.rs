//! The health of this node's GPUs over time: what each showed, which signs stand, and how far each is on its way out of service
//! and back. Kept in the spool by UUID, so that neither a restart nor a move returns a sick GPU. What signs there are and what
//! step is next is `gmodel::gpu_health`; who ends a run is the daemon.

use anyhow::{Context, Result};
use gmodel::gpu_health::{
    Catalogue, Change, Ended, GpuWatch, Reading, Repair, RepairPolicy, Stage, Step, Surroundings, verdict,
};
use gmodel::{RunId, Timestamp};
use gsys::durable_file::write_atomic;
use gsys::nvml::{GpuEvent, GpuFacts, GpuHealth};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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
    /// A program of the site has the last word before a GPU is back.
    has_burn_in: bool,
    /// The GPU whose burn-in is to be started.
    to_burn_in: Option<String>,
    /// Something happened since the book was written.
    unwritten: bool,
    written_at: Timestamp,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// As last seen, for people.
    pub index: u32,
    pub gpu_type: String,
    pub watch: GpuWatch,
    pub repair: Repair,
    /// Why it is out of service, as the pool shows it; empty while it is in service.
    pub reason: String,
    /// The sign that `reason` is about.
    sign: String,
    /// What a run left on it. Over when it is seen clean.
    pub unclean: String,
    /// The newest reading that was one.
    #[serde(skip)]
    pub reading: Option<Reading>,
}

/// What has to be done about a GPU's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndRun {
    pub run: RunId,
    pub why: String,
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
    pub fn open(spool_dir: &Path, boot: String, has_burn_in: bool, now: Timestamp) -> Self {
        let path = spool_dir.join(BOOK_FILE);
        let kept = read(&path).unwrap_or_else(|e| {
            tracing::error!("what was known of the health of GPUs is lost: {e:#}");
            Kept::default()
        });
        let (to_burn_in, gpus) = (None, kept.gpus);
        let mut book = Self { path, gpus, has_burn_in, to_burn_in, unwritten: kept.boot != boot, boot, written_at: now };
        if book.unwritten && !kept.boot.is_empty() {
            book.gpus.values_mut().for_each(|record| record.booted(now));
        }
        // A burn-in that ended with the daemon says nothing: it comes again.
        for record in book.gpus.values_mut().filter(|record| record.repair.stage == Stage::BurningIn) {
            record.repair.stage = Stage::Out;
        }
        for (uuid, record) in book.gpus.iter().filter(|(_, record)| !record.fault().is_empty()) {
            tracing::warn!("GPU {uuid} stays out of service: {}", record.fault());
        }
        book
    }

    /// Puts what keeps a GPU out of service into its facts: it outlasts what discovery sees.
    pub fn apply(&self, facts: &mut [GpuFacts]) {
        for gpu in facts {
            if let Some(record) = self.gpus.get(&gpu.uuid).filter(|record| !record.fault().is_empty()) {
                gpu.fault = Some(record.fault());
            }
        }
    }

    /// Takes a sweep over all GPUs. When all of several fall silent at once it is the driver's trouble and no GPU's: discovery
    /// says so, and nothing is held against them.
    pub fn read(&mut self, catalogue: &Catalogue, sweep: Vec<GpuHealth>, facts: &[GpuFacts], now: Timestamp) {
        if sweep.len() > 1 && sweep.iter().all(|gpu| gpu.reading.fault.is_some()) {
            return;
        }
        let type_of = |uuid: &Option<String>| facts.iter().find(|gpu| Some(&gpu.uuid) == uuid.as_ref()).map_or("", |gpu| gpu.gpu_type.as_str());
        let mut sweep = sweep;
        let mut readings: Vec<(&str, &mut Reading)> = sweep.iter_mut().map(|gpu| (type_of(&gpu.uuid), &mut gpu.reading)).collect();
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
            let changes = record.watch.event(catalogue, event.kind, event.count, event.source, now);
            self.unwritten |= !changes.is_empty();
            changes.iter().for_each(|change| tell(&event.uuid, record, change));
        }
    }

    /// What a run left on these GPUs, or nothing where they are clean.
    pub fn left_on(&mut self, uuid: &str, what: String) {
        let record = self.gpus.entry(uuid.to_owned()).or_default();
        if record.unclean != what {
            match what.is_empty() {
                true => tracing::info!("GPU {uuid} is clean now"),
                false => tracing::error!("GPU {uuid} is not given out: {what}"),
            }
            record.unclean = what;
            self.unwritten = true;
        }
    }

    /// GPUs on which a run left something.
    pub fn unclean(&self) -> Vec<String> {
        let unclean = self.gpus.iter().filter(|(_, record)| !record.unclean.is_empty());
        unclean.map(|(uuid, _)| uuid.clone()).collect()
    }

    /// An administrator's word.
    pub fn obey(&mut self, uuid: &str, order: Order, now: Timestamp) {
        let Some(record) = self.gpus.get_mut(uuid) else {
            return tracing::warn!("{order:?} for GPU {uuid}: this node has never seen it");
        };
        tracing::warn!("GPU {uuid}: an administrator's order: {order:?}");
        self.unwritten = true;
        match order {
            Order::Quarantine(why) => {
                record.reason = format!("quarantined by an administrator: {why}");
                record.repair.hold(why);
            }
            Order::Return => {
                record.repair.release(now);
                record.watch = record.reading.as_ref().map_or_else(GpuWatch::default, GpuWatch::accepting);
                record.unclean.clear();
            }
        }
    }

    /// No sign stands that takes a GPU out, and none is out.
    pub fn all_well(&self) -> bool {
        self.gpus.values().all(|record| record.fault().is_empty() && verdict(record.watch.standing()).is_none())
    }

    /// Takes every GPU the next step on its way. `held`: which run holds a GPU. The pool's breaker is the controller's: a sick
    /// GPU is reported whatever it says, and it is the controller that stops counting on faults.
    pub fn step(&mut self, held: &BTreeMap<String, RunId>, now: Timestamp) -> Vec<EndRun> {
        let policy = by_hand();
        let mut to_end = Vec::new();
        let mut burning = self.gpus.values().any(|record| record.repair.stage == Stage::BurningIn);
        for (uuid, record) in &mut self.gpus {
            let before = (record.repair.clone(), record.reason.clone());
            let by_look = !self.has_burn_in;
            let around = Around { held: held.get(uuid).copied(), node_empty: held.is_empty(), by_look, burning };
            to_end.extend(record.step(uuid, around, &policy, now));
            if !burning && record.repair.stage == Stage::BurningIn {
                burning = true;
                self.to_burn_in = Some(uuid.clone());
            }
            self.unwritten |= before != (record.repair.clone(), record.reason.clone());
        }
        to_end
    }

    /// The GPU on which the site's program is to be run now, said once.
    pub fn take_burn_in(&mut self) -> Option<String> {
        self.to_burn_in.take()
    }

    /// How the site's program ended on a GPU.
    pub fn burnt_in(&mut self, uuid: &str, outcome: Result<()>, now: Timestamp) {
        let Some(record) = self.gpus.get_mut(uuid) else { return };
        self.unwritten = true;
        match outcome {
            Ok(()) => {
                record.repair.end(Ended::BurnInPassed, now);
                record.back_in_service(uuid);
            }
            Err(e) => {
                record.repair.end(Ended::BurnInFailed, now);
                record.reason = format!("{e:#}");
                record.sign.clear();
                tracing::error!("GPU {uuid} stays out of service: {e:#}");
            }
        }
    }

    /// Writes the book, at once when something happened.
    pub fn write(&mut self, now: Timestamp) {
        let due = self.unwritten || now.since_secs(self.written_at).abs() >= WRITE_EVERY_SECS;
        if !due {
            return;
        }
        let kept = Kept { boot: self.boot.clone(), gpus: self.gpus.clone() };
        let written = serde_json::to_vec(&kept).map_err(anyhow::Error::from);
        match written.and_then(|bytes| Ok(write_atomic(&self.path, &bytes)?)) {
            Ok(()) => (self.unwritten, self.written_at) = (false, now),
            Err(e) => tracing::error!("writing {}: {e:#}", self.path.display()),
        }
    }

    /// A healthy GPU that was taken out of the machine is no more this node's.
    fn forget_strangers(&mut self, facts: &[GpuFacts]) {
        if self.gpus.len() > MAX_RECORDS {
            let here = |uuid: &String| facts.iter().any(|gpu| gpu.uuid == *uuid);
            self.gpus.retain(|uuid, record| here(uuid) || !record.fault().is_empty());
        }
    }
}

/// What a GPU's next step depends on besides itself.
struct Around {
    held: Option<RunId>,
    node_empty: bool,
    /// No program of the site decides.
    by_look: bool,
    /// One at a time.
    burning: bool,
}

impl Record {
    /// Why no job gets it; empty when it is in service.
    pub fn fault(&self) -> String {
        match (self.repair.in_service(), self.unclean.is_empty()) {
            (true, true) => String::new(),
            (true, false) => format!("not clean: {}", self.unclean),
            (false, _) => self.reason.clone(),
        }
    }

    fn step(&mut self, uuid: &str, around: Around, policy: &RepairPolicy, now: Timestamp) -> Option<EndRun> {
        let Around { held, node_empty, by_look, burning } = around;
        // From quarantine to the end of its job, or from a look to service, is one walk.
        for _ in 0..4 {
            let signs: Vec<_> = self.watch.standing().cloned().collect();
            let verdict = verdict(&signs);
            if let Some(verdict) = verdict.filter(|verdict| self.sign != verdict.sign.name && self.repair.held_by_admin.is_none()) {
                self.reason = words(verdict.sign);
                self.sign.clone_from(&verdict.sign.name);
            }
            let around = Surroundings { verdict, held: held.is_some(), node_empty, other_under_way: false, breaker_allows: true };
            let step = self.repair.next(&around, policy, now);
            match step {
                Step::Quarantine => {
                    tracing::error!("GPU {uuid} (index {}) is out of service: {}", self.index, self.reason);
                    self.repair.begin(step, policy, now);
                }
                Step::EndJob => return held.map(|run| EndRun { run, why: format!("GPU {uuid} (index {}): {}", self.index, self.reason) }),
                Step::BurnIn if !by_look => {
                    if !burning && self.reading.is_some() {
                        self.repair.begin(step, policy, now);
                    }
                    return None;
                }
                Step::BurnIn => {
                    self.repair.begin(step, policy, now);
                    // No sign stands; the newest reading says whether it answers at all.
                    let well = self.reading.is_some();
                    self.repair.end(if well { Ended::BurnInPassed } else { Ended::BurnInFailed }, now);
                    if well {
                        self.back_in_service(uuid);
                    }
                }
                Step::MarkForReplacement => {
                    tracing::error!("GPU {uuid} (index {}) has to be replaced: {}", self.index, self.reason);
                    self.reason.push_str("; to be replaced");
                    self.repair.begin(step, policy, now);
                }
                Step::GiveUp => self.repair.begin(step, policy, now),
                Step::Nothing | Step::StoppedByBreaker | Step::Reset | Step::Boot | Step::WaitForAdmin => return None,
            }
        }
        None
    }

    fn back_in_service(&mut self, uuid: &str) {
        self.reason.clear();
        self.sign.clear();
        tracing::warn!("GPU {uuid} (index {}) is back in service", self.index);
    }

    /// What a boot mends is over until it is seen again; a hold and a worn board are not.
    fn booted(&mut self, now: Timestamp) {
        use gmodel::gpu_health::Action;
        let mended = |action: Action| matches!(action, Action::EndJob | Action::Reset | Action::Reboot);
        let signs: Vec<_> = self.watch.standing().cloned().collect();
        if self.repair.held_by_admin.is_none() && self.repair.stage != Stage::InService && verdict(&signs).is_some_and(|v| mended(v.action)) {
            self.repair.stage = Stage::Out;
            self.repair.since = now;
            self.watch = GpuWatch::default();
        }
    }
}

/// gpud resets and boots nothing by itself; what calls for it waits out of service for an administrator, or for a boot.
fn by_hand() -> RepairPolicy {
    RepairPolicy { max_resets: 0, max_boots: 0, ..RepairPolicy::default() }
}

fn words(sign: &gmodel::gpu_health::Sign) -> String {
    match sign.name.starts_with("xid") {
        true => format!("{}: {}", sign.evidence, meaning(&sign.name)),
        false => format!("{}: {}", sign.name, sign.evidence),
    }
}

/// What the catalogue that gpupool brings says of a sign; a site's own sign is its name.
fn meaning(name: &str) -> String {
    Catalogue::built_in().signs.get(name).map_or_else(|| name.to_owned(), |kind| kind.meaning.clone())
}

fn tell(uuid: &str, record: &Record, change: &Change) {
    let index = record.index;
    match change {
        Change::Raised(sign) if sign.action > gmodel::gpu_health::Action::Note => {
            tracing::error!("GPU {uuid} (index {index}): {} {}: {}, calls for {}", sign.severity, sign.name, sign.evidence, sign.action);
        }
        Change::Raised(sign) => tracing::warn!("GPU {uuid} (index {index}): {} {}: {}, noted", sign.severity, sign.name, sign.evidence),
        Change::Again(sign) => {
            tracing::warn!("GPU {uuid} (index {index}): {} again: {}, {} times since {}", sign.name, sign.evidence, sign.count, sign.first);
        }
        Change::Over(sign) => tracing::info!("GPU {uuid} (index {index}): {} is over, {} times since {}", sign.name, sign.count, sign.first),
    }
}

fn read(path: &Path) -> Result<Kept> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Kept::default()),
        Err(e) => Err(e).with_context(|| format!("reading {}", path.display())),
    }
}

/// Prints what is known of each GPU, a line each, and the signs that stand below it.
pub fn list(spool_dir: &Path) -> Result<()> {
    for (uuid, record) in records(spool_dir)? {
        let fault = record.fault();
        println!("{} {} {uuid} {}", record.index, record.gpu_type, if fault.is_empty() { "in service" } else { &fault });
        for sign in record.watch.standing() {
            println!("    {} {}: {}, {} times, {} to {}", sign.severity, sign.name, sign.evidence, sign.count, sign.first, sign.last);
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
    use gmodel::gpu_health::{EventSource, GpuEventKind, Silence, SilenceKind};

    struct Node {
        dir: PathBuf,
        book: HealthBook,
        now: Timestamp,
    }

    impl Node {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("gpud-health-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let now = Timestamp::from_secs(1_000_000);
            let mut node = Self { book: HealthBook::open(&dir, "boot-1".into(), false, now), dir, now };
            node.look(&[]);
            node
        }

        fn restart(&mut self, boot: &str) {
            self.book.write(self.now);
            self.book = HealthBook::open(&self.dir, boot.into(), false, self.now);
        }

        /// A sweep over eight GPUs of which these are silent, ten seconds after the one before, and the steps then.
        fn look(&mut self, lost: &[u32]) -> Vec<EndRun> {
            self.now = self.now.plus_secs(10);
            let fault = |index| lost.contains(&index).then(|| Silence { kind: SilenceKind::Lost, text: "GPU is lost".into() });
            let reading = |index| Reading { fault: fault(index), ..Reading::default() };
            let sweep = (0..8).map(|index| GpuHealth { index, uuid: Some(uuid(index)), reading: reading(index) }).collect();
            self.book.read(&Catalogue::built_in(), sweep, &[], self.now);
            self.book.step(&BTreeMap::new(), self.now)
        }

        fn xid(&mut self, index: u32, xid: u64, held: &[(u32, &str)]) -> Vec<EndRun> {
            let event = GpuEvent { uuid: uuid(index), kind: GpuEventKind::Xid(xid), count: 1, source: EventSource::EventSet };
            self.book.events(&Catalogue::built_in(), &[event], self.now);
            let held = held.iter().map(|(index, run)| (uuid(*index), run.parse().unwrap())).collect();
            self.book.step(&held, self.now)
        }

        fn out(&self) -> Vec<u32> {
            let mut facts: Vec<GpuFacts> = (0..8).map(|index| GpuFacts { index, uuid: uuid(index), ..GpuFacts::default() }).collect();
            self.book.apply(&mut facts);
            facts.iter().filter(|gpu| gpu.fault.is_some()).map(|gpu| gpu.index).collect()
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
        assert_eq!(ends, [EndRun { run: "17-1".parse().unwrap(), why: "GPU GPU-3 (index 3): Xid 79: the GPU has fallen off the bus".into() }]);
        // Asking again is the same word; a run that may finish is left alone.
        assert_eq!(node.book.step(&BTreeMap::from([(uuid(3), "17-1".parse().unwrap())]), node.now).len(), 1);
        assert!(node.xid(4, 94, &[(4, "18-1")]).is_empty());
        // The second sign on the same GPU says that its job has to end now.
        assert_eq!(node.xid(4, 48, &[(4, "18-1")]).len(), 1);
        assert_eq!(node.out(), [3, 4]);
    }

    #[test]
    fn a_restart_returns_nothing_and_a_boot_what_a_boot_mends() {
        let mut node = Node::new("restart");
        node.xid(3, 79, &[]);
        node.book.obey(&uuid(5), Order::Quarantine("smells".into()), node.now);
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
        node.book.obey(&uuid(5), Order::Return, node.now);
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
    fn a_gpu_that_is_returned_and_still_sick_goes_out_again() {
        let mut node = Node::new("again");
        node.look(&[2]);
        assert_eq!(node.out(), [2]);
        node.book.obey(&uuid(2), Order::Return, node.now);
        node.look(&[2]);
        assert_eq!(node.out(), [2]);
        node.book.obey(&uuid(2), Order::Return, node.now);
        node.look(&[]);
        assert!(node.out().is_empty());
        node.book.left_on(&uuid(6), "after run 1-1, processes 7 are still on it".into());
        assert_eq!(node.out(), [6]);
        node.restart("boot-1");
        assert_eq!(node.out(), [6], "what a run left is remembered");
    }

    #[test]
    fn the_sites_program_has_the_last_word_one_gpu_at_a_time() {
        let mut node = Node::new("burn-in");
        node.book.has_burn_in = true;
        node.look(&[1, 2]);
        for index in [1, 2] {
            node.book.obey(&uuid(index), Order::Return, node.now);
        }
        node.look(&[]);
        assert_eq!((node.book.take_burn_in(), node.book.take_burn_in()), (Some(uuid(1)), None));
        node.look(&[]);
        assert_eq!((node.book.take_burn_in(), node.out()), (None, vec![1, 2]));
        node.book.burnt_in(&uuid(1), Ok(()), node.now);
        node.look(&[]);
        assert_eq!((node.book.take_burn_in(), node.out()), (Some(uuid(2)), vec![2]));
        node.book.burnt_in(&uuid(2), Err(anyhow::anyhow!("burn-in ended with 1: sums differ")), node.now);
        for _ in 0..100 {
            node.look(&[]);
        }
        assert_eq!((node.book.take_burn_in(), node.out()), (None, vec![2]), "it waits for an administrator");
        assert_eq!(node.book.gpus[&uuid(2)].fault(), "burn-in ended with 1: sums differ");
    }

    #[test]
    fn a_book_that_cannot_be_read_does_not_keep_the_node_from_starting() {
        let mut node = Node::new("spoilt");
        std::fs::write(node.dir.join(BOOK_FILE), "{half").unwrap();
        node.book = HealthBook::open(&node.dir, "boot-1".into(), false, node.now);
        node.look(&[1]);
        assert_eq!(node.out(), [1]);
    }
}
