//! The health of a node's GPUs: signs, repair and the record of each GPU, by UUID. Takes readings, events and orders with their
//! times; says which run ends, which program of the site starts, and what has to be on the disk. No file, no clock.
//!
//! ```text
//!   reading, event --> watch (signs) --> record: verdict --> repair (next step) --> HealthAction
//! ```

pub mod record;
pub mod repair;
pub mod watch;

pub use record::{AnsweredOrder, GpuRecord};
pub use repair::{Repair, RepairAttempt, RepairContext, RepairOutcome, RepairPolicy, RepairStep};
pub use watch::{GpuWatch, HealthVerdict, Sign, SignChange, verdict};

use gmodel::gpu_health::{
    Catalogue, GpuEvent, GpuHealth, GpuHealthStatus, GpuReading, RepairStage, Severity,
    compare_siblings,
};
use gmodel::gpu_order::{GpuOrder, GpuOrderDone};
use gmodel::{RunId, Timestamp};
use record::StepConditions;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// GPUs that are gone and were healthy are forgotten beyond so many.
const MAX_RECORDS: usize = 256;

/// Every GPU that this node has seen, by UUID. The daemon keeps it in its spool, so that neither a restart nor a move returns a
/// sick GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeHealth {
    boot: String,
    gpus: BTreeMap<String, GpuRecord>,
    /// The site's configuration: not kept.
    #[serde(skip)]
    pub means: RepairMeans,
}

/// What the site gives this node to mend GPUs with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

/// A GPU as discovery sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenGpu<'a> {
    pub uuid: &'a str,
    pub index: u32,
    /// Empty where the GPU does not answer.
    pub gpu_type: &'a str,
}

/// Something that happened to the node's GPUs.
#[derive(Clone, Debug)]
pub enum HealthInput<'a> {
    /// First input of a daemon. After a boot, signs that a reset or a boot mends are looked at anew.
    Began { boot: String },
    /// The node's clock jumped: how long a state lasts cannot be told by it.
    ClockSet,
    /// What discovery sees is this node's, looked at or not.
    Discovered { gpus: Vec<SeenGpu<'a>> },
    /// A reading of all GPUs. When all of several GPUs fall silent at once, the driver is to blame, and no GPU gets a sign.
    Swept {
        catalogue: &'a Catalogue,
        sweep: Vec<GpuHealth>,
    },
    Events {
        catalogue: &'a Catalogue,
        events: &'a [GpuEvent],
    },
    /// What a run left on a GPU; empty where the GPU is clean. `to_scrub`: its memory is to be overwritten before it is given out.
    Left {
        uuid: &'a str,
        what: String,
        to_scrub: bool,
    },
    /// An administrator's word.
    Ordered { uuid: &'a str, order: LocalOrder },
    /// The controller allows the step that the GPU waits for. `node_empty`: no run is on the node, with GPUs or without.
    Permitted { uuid: &'a str, node_empty: bool },
    /// An order of the controller was carried out, or could not be: `error`.
    Answered {
        incarnation: u64,
        order: &'a GpuOrder,
        error: String,
    },
    /// How the site's program ended on a GPU.
    ProgramEnded {
        uuid: &'a str,
        outcome: Result<(), String>,
    },
    /// The next step of every GPU is due. `held`: which runs hold a GPU, or slices of it. What a healthy pool can wait for waits
    /// for the controller's word; a GPU that is certainly sick goes at once.
    Looked {
        held: &'a BTreeMap<String, BTreeSet<RunId>>,
        node_empty: bool,
    },
}

/// What the daemon has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthAction {
    /// Write the health to the disk, before anything else is done or told.
    Store,
    /// The run ends, for a GPU of it failed. Said at each look until the run holds the GPU no more.
    EndRun {
        run: RunId,
        why: String,
    },
    /// Start the site's program of this stage on the GPU. Said once.
    StartProgram {
        uuid: String,
        stage: RepairStage,
    },
    Log {
        severity: Severity,
        text: String,
    },
}

impl NodeHealth {
    /// Takes one input.
    ///
    /// # Errors
    /// An order that cannot be carried out, with the reason; nothing changed.
    pub fn handle(
        &mut self,
        input: HealthInput<'_>,
        now: Timestamp,
    ) -> Result<Vec<HealthAction>, String> {
        let mut out = Vec::new();
        match input {
            HealthInput::Began { boot } => self.began(boot, now, &mut out),
            HealthInput::ClockSet => self.begin_states_anew(),
            HealthInput::Discovered { gpus } => self.discovered(&gpus),
            HealthInput::Swept { catalogue, sweep } => {
                self.swept(catalogue, sweep, now, &mut out);
            }
            HealthInput::Events { catalogue, events } => {
                for event in events {
                    let record = self.gpus.entry(event.uuid.clone()).or_default();
                    let watch = &mut record.watch;
                    let changes =
                        watch.event(catalogue, event.kind, event.count, event.source, now);
                    tell(&event.uuid, record, &changes, &mut out);
                }
            }
            HealthInput::Left {
                uuid,
                what,
                to_scrub,
            } => self.left_on(uuid, what, to_scrub, now, &mut out),
            HealthInput::Ordered { uuid, order } => self.ordered(uuid, order, now, &mut out)?,
            HealthInput::Permitted { uuid, node_empty } => {
                self.permitted(uuid, node_empty, now, &mut out)?;
            }
            HealthInput::Answered {
                incarnation,
                order,
                error,
            } => {
                if let Some(record) = self.gpus.get_mut(&order.uuid) {
                    record.obeyed = Some(AnsweredOrder {
                        incarnation,
                        number: order.number,
                        error,
                    });
                    out.push(HealthAction::Store);
                }
            }
            HealthInput::ProgramEnded { uuid, outcome } => {
                if let Some(record) = self.gpus.get_mut(uuid) {
                    out.push(HealthAction::Store);
                    out.extend(record.ended(uuid, outcome, now));
                }
            }
            HealthInput::Looked { held, node_empty } => {
                self.looked(held, node_empty, now, &mut out);
            }
        }
        Ok(out)
    }

    fn began(&mut self, boot: String, now: Timestamp, out: &mut Vec<HealthAction>) {
        let is_boot = self.boot != boot && !self.boot.is_empty();
        if self.boot != boot {
            out.push(HealthAction::Store);
        }
        self.boot = boot;
        for (uuid, record) in &mut self.gpus {
            record.daemon_began(uuid, is_boot, now);
            if !record.fault().is_empty() {
                let text = format!("GPU {uuid} stays out of service: {}", record.fault());
                out.push(HealthAction::Log {
                    severity: Severity::Warning,
                    text,
                });
            }
        }
    }

    fn discovered(&mut self, seen: &[SeenGpu<'_>]) {
        for (uuid, record) in &mut self.gpus {
            record.absent = seen.iter().all(|gpu| gpu.uuid != *uuid);
        }
        for gpu in seen {
            let record = self.gpus.entry(gpu.uuid.to_owned()).or_default();
            record.index = gpu.index;
            // One that does not answer tells no type.
            if !gpu.gpu_type.is_empty() {
                gpu.gpu_type.clone_into(&mut record.gpu_type);
            }
        }
    }

    fn begin_states_anew(&mut self) {
        let records = self.gpus.values_mut();
        records.for_each(|record| record.watch.begin_states_anew());
    }

    fn swept(
        &mut self,
        catalogue: &Catalogue,
        mut sweep: Vec<GpuHealth>,
        now: Timestamp,
        out: &mut Vec<HealthAction>,
    ) {
        if sweep.len() > 1 && sweep.iter().all(|gpu| gpu.reading.fault.is_some()) {
            // A GPU that fell silent before the others, and answers after them, was not silent by itself.
            self.begin_states_anew();
            return;
        }
        let type_of = |uuid: &Option<String>| {
            let record = uuid.as_ref().and_then(|uuid| self.gpus.get(uuid));
            record.map_or("", |record| record.gpu_type.as_str())
        };
        let mut readings: Vec<(&str, &mut GpuReading)> = sweep
            .iter_mut()
            .map(|gpu| (type_of(&gpu.uuid), &mut gpu.reading))
            .collect();
        compare_siblings(&mut readings);
        for gpu in sweep {
            let Some(uuid) = gpu.uuid else { continue };
            let record = self.gpus.entry(uuid.clone()).or_default();
            record.index = gpu.index;
            let changes = record.watch.read(catalogue, &gpu.reading, now);
            record.reading = Some(gpu.reading).filter(|reading| reading.fault.is_none());
            tell(&uuid, record, &changes, out);
        }
        // A healthy GPU that was taken out of the machine is no more this node's.
        if self.gpus.len() > MAX_RECORDS {
            self.gpus
                .retain(|_, record| !record.absent || !record.fault().is_empty());
        }
    }

    fn left_on(
        &mut self,
        uuid: &str,
        what: String,
        to_scrub: bool,
        now: Timestamp,
        out: &mut Vec<HealthAction>,
    ) {
        let record = self.gpus.entry(uuid.to_owned()).or_default();
        record.unclean_at = now;
        if record.unclean != what {
            let (severity, text) = match what.is_empty() {
                true => (Severity::Info, format!("GPU {uuid} is clean now")),
                false => (
                    Severity::Critical,
                    format!("GPU {uuid} is not given out: {what}"),
                ),
            };
            record.unscrubbed &= !what.is_empty();
            record.unclean = what;
            out.extend([HealthAction::Store, HealthAction::Log { severity, text }]);
        }
        if to_scrub && !record.unscrubbed {
            record.unscrubbed = true;
            out.push(HealthAction::Store);
        }
    }

    fn ordered(
        &mut self,
        uuid: &str,
        order: LocalOrder,
        now: Timestamp,
        out: &mut Vec<HealthAction>,
    ) -> Result<(), String> {
        let record = self.gpus.get_mut(uuid).ok_or_else(|| never_seen(uuid))?;
        let text = format!("GPU {uuid}: an administrator's order: {order:?}");
        let severity = Severity::Warning;
        out.extend([HealthAction::Store, HealthAction::Log { severity, text }]);
        match order {
            LocalOrder::Quarantine(why) => record.hold(why, now),
            LocalOrder::Return => record.release(now),
        }
        Ok(())
    }

    fn permitted(
        &mut self,
        uuid: &str,
        node_empty: bool,
        now: Timestamp,
        out: &mut Vec<HealthAction>,
    ) -> Result<(), String> {
        if self.under_way().is_some_and(|one| one != uuid) {
            return Err("a step is under way on another GPU of this node".to_owned());
        }
        let record = self.gpus.get_mut(uuid).ok_or_else(|| never_seen(uuid))?;
        if record.wants() == "boot" && !node_empty {
            return Err("the node is not booted: a run is on it".to_owned());
        }
        let line = record.permitted(uuid, &self.means.policy, now)?;
        out.extend([HealthAction::Store, line]);
        let stage = record.repair.stage;
        if matches!(stage, RepairStage::Resetting | RepairStage::Booting) {
            let uuid = uuid.to_owned();
            out.push(HealthAction::StartProgram { uuid, stage });
        }
        Ok(())
    }

    fn looked(
        &mut self,
        held: &BTreeMap<String, BTreeSet<RunId>>,
        node_empty: bool,
        now: Timestamp,
        out: &mut Vec<HealthAction>,
    ) {
        let mut under_way = self.under_way().map(str::to_owned);
        for (uuid, record) in &mut self.gpus {
            let before = (record.repair.clone(), record.reason.clone());
            let around = StepConditions {
                held: held.get(uuid),
                node_empty,
                by_look: !self.means.burn_in,
                other_under_way: under_way.as_ref().is_some_and(|one| one != uuid),
            };
            record.take_repair_steps(uuid, around, &self.means.policy, now, out);
            let stage = record.repair.stage;
            let began = stage == RepairStage::BurningIn && before.0.stage != stage;
            if began {
                let uuid = uuid.clone();
                out.push(HealthAction::StartProgram { uuid, stage });
            }
            // One step on a node at a time, and one that waits for the controller's word.
            if began || matches!(record.wants(), "reset" | "boot") {
                under_way = Some(uuid.clone());
            }
            if before.0 != record.repair || before.1 != record.reason {
                out.push(HealthAction::Store);
            }
        }
    }

    /// The GPU on which a step is under way.
    fn under_way(&self) -> Option<&str> {
        let busy = |record: &GpuRecord| {
            matches!(
                record.repair.stage,
                RepairStage::BurningIn | RepairStage::Resetting | RepairStage::Booting
            )
        };
        let mut gpus = self.gpus.iter();
        gpus.find(|(_, record)| busy(record))
            .map(|(uuid, _)| uuid.as_str())
    }

    /// The GPUs of this node, by UUID.
    pub fn gpus(&self) -> &BTreeMap<String, GpuRecord> {
        &self.gpus
    }

    /// Why no job gets the GPU; empty when it is in service.
    pub fn fault(&self, uuid: &str) -> String {
        self.gpus
            .get(uuid)
            .map_or_else(String::new, GpuRecord::fault)
    }

    /// What else the controller is told, of the GPUs of which there is something to tell.
    pub fn reports(&self) -> BTreeMap<String, HealthReport> {
        let report = |record: &GpuRecord| HealthReport {
            notes: record.notes(),
            wants: record.wants(),
            standing: record.standing(),
        };
        let all = self
            .gpus
            .iter()
            .map(|(uuid, record)| (uuid.clone(), report(record)));
        all.filter(|(_, report)| *report != HealthReport::default())
            .collect()
    }

    /// A GPU has answered since this daemon began.
    pub fn has_readings(&self) -> bool {
        self.gpus.values().any(|record| record.reading.is_some())
    }

    /// No sign stands that takes a GPU out, and none is out.
    pub fn all_well(&self) -> bool {
        self.gpus
            .values()
            .all(|record| record.fault().is_empty() && verdict(record.watch.standing()).is_none())
    }

    /// The answer to an order of the controller that was carried out before, or that came late.
    pub fn answered(&self, incarnation: u64, order: &GpuOrder) -> Option<GpuOrderDone> {
        let obeyed = self.gpus.get(&order.uuid)?.obeyed.as_ref()?;
        let error = match (incarnation, order.number).cmp(&(obeyed.incarnation, obeyed.number)) {
            Ordering::Greater => return None,
            Ordering::Equal => obeyed.error.clone(),
            Ordering::Less => format!("order {} came after it", obeyed.number),
        };
        Some(GpuOrderDone::new(order, error))
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

    /// GPUs on which a run left something.
    pub fn unclean(&self) -> Vec<String> {
        let unclean = self
            .gpus
            .iter()
            .filter(|(_, record)| !record.unclean.is_empty());
        unclean.map(|(uuid, _)| uuid.clone()).collect()
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
}

fn tell(uuid: &str, record: &GpuRecord, changes: &[SignChange], out: &mut Vec<HealthAction>) {
    if !changes.is_empty() {
        out.push(HealthAction::Store);
    }
    out.extend(changes.iter().map(|change| record.sign_line(uuid, change)));
}

fn never_seen(uuid: &str) -> String {
    format!("this node has never seen GPU {uuid}")
}

#[cfg(test)]
mod tests;
