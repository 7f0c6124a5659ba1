//! The GPUs of a simulated node: its boards, the real health machine over them, what of it is on the disk, and a check of each of its
//! decisions against what is really so.

use crate::board::{Board, Cure, Disturbance, Illness, QUIET_LOOK_MILLIS};
use crate::prng::Prng;
use gcore::node::gpu_health::{
    HealthAction, HealthInput, LocalOrder, NodeHealth, RepairMeans, SeenGpu,
};
use gmodel::gpu_health::{
    Catalogue, GpuEvent, GpuHealth, ReadFailure, ReadFailureKind, RepairStage,
};
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use gmodel::node::GpuInfo;
use gmodel::{RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// `gpu_watch_secs` where something is going on, as gpud has it by default.
pub const LOOK_MILLIS: i64 = 10_000;
/// Looks come at the short interval for so long after something happened.
const ALERT_MILLIS: i64 = 1_200_000;
/// gpud writes counters that merely ran on so seldom.
const STORE_EVERY_MILLIS: i64 = 60_000;
/// A well GPU may be out of service for so long, counted while its daemon looks, before somebody has to return it.
const WELL_BOUND_SECS: i64 = 6 * 3600;
/// What has to last begins anew after ten minutes without a look, by the node's clock. The record on the disk may be a minute older
/// than the last look.
const ROW_SECS: std::ops::RangeInclusive<i64> = 0..=540;

/// What a health machine did, over a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthTally {
    pub looks: u64,
    /// How often boards fell ill, and how often each other thing happened to healthy ones.
    pub illnesses: BTreeMap<Illness, u64>,
    pub disturbances: BTreeMap<Disturbance, u64>,
    /// GPUs that left service, by what was really wrong; those with a sign that a wrong driver showed; well ones.
    pub right: BTreeMap<Illness, LeaveTimes>,
    pub by_false_sign: u64,
    pub wrong: u64,
    /// Sick GPUs that were not out of service within their bound.
    pub missed: u64,
    pub runs_ended: u64,
    pub resets: u64,
    pub boots: u64,
    pub burn_ins: u64,
    pub returned: u64,
    pub by_operator: u64,
}

/// From an illness to the moment in which no job gets the GPU any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaveTimes {
    pub count: u64,
    pub sum_millis: i64,
    pub longest_millis: i64,
}

impl HealthTally {
    /// A GPU left service.
    fn leaves(&mut self, board: &Board, now: i64) {
        match board.illness {
            Some(illness) => {
                let times = self.right.entry(illness).or_default();
                let took = now - board.ill_since;
                times.count += 1;
                times.sum_millis += took;
                times.longest_millis = times.longest_millis.max(took);
            }
            None => self.by_false_sign += 1,
        }
    }

    pub fn add(&mut self, other: &HealthTally) {
        for (illness, count) in &other.illnesses {
            *self.illnesses.entry(*illness).or_default() += count;
        }
        for (what, count) in &other.disturbances {
            *self.disturbances.entry(*what).or_default() += count;
        }
        for (illness, times) in &other.right {
            let sum = self.right.entry(*illness).or_default();
            sum.count += times.count;
            sum.sum_millis += times.sum_millis;
            sum.longest_millis = sum.longest_millis.max(times.longest_millis);
        }
        for (sum, one) in [
            (&mut self.looks, other.looks),
            (&mut self.by_false_sign, other.by_false_sign),
            (&mut self.wrong, other.wrong),
            (&mut self.missed, other.missed),
            (&mut self.runs_ended, other.runs_ended),
            (&mut self.resets, other.resets),
            (&mut self.boots, other.boots),
            (&mut self.burn_ins, other.burn_ins),
            (&mut self.returned, other.returned),
            (&mut self.by_operator, other.by_operator),
        ] {
            *sum += one;
        }
    }
}

/// What is followed of one GPU beside the machine.
#[derive(Clone, Copy, Debug, Default)]
struct Followed {
    is_out: bool,
    /// Since when it is not plainly in service, milliseconds.
    out_since: i64,
    /// Seconds of looks at which it was ill and in service, and asked for nothing; in a row, for a sign that has to last begins anew
    /// after each break.
    overdue_secs: i64,
    /// Seconds of looks at which it was well and out.
    well_out_secs: i64,
}

impl Followed {
    /// Counts a look of so many seconds; is the GPU well and out for too long?
    fn is_long_well_out(&mut self, is_well_out: bool, secs: i64) -> bool {
        self.well_out_secs = i64::from(is_well_out) * (self.well_out_secs + secs);
        self.well_out_secs > WELL_BOUND_SECS
    }
}

/// What a look, or an order, came to.
#[derive(Debug, Default)]
pub struct LookOutcome {
    /// Runs to be ended, each with the index of the GPU.
    pub ends: Vec<RunId>,
    /// Programs of the site to be started: the index of the GPU, and what for.
    pub programs: Vec<(usize, RepairStage)>,
    /// What the controller is told has changed.
    pub is_news: bool,
    pub violation: Option<String>,
}

#[derive(Debug)]
pub struct NodeGpus {
    pub boards: Vec<Board>,
    followed: Vec<Followed>,
    catalogue: Arc<Catalogue>,
    means: RepairMeans,
    /// What is on the disk.
    stored: NodeHealth,
    stored_at: i64,
    /// What the daemon has, and the GPUs that it has seen; none while there is no daemon.
    live: Option<(NodeHealth, BTreeSet<usize>)>,
    events: Vec<GpuEvent>,
    /// The driver answers no question about any GPU until then.
    pub silent_until: i64,
    /// How far the node's clock is off.
    clock_off: i64,
    alert_until: i64,
    looked_at: i64,
    /// The same by the node's clock.
    looked_by_clock: Timestamp,
    /// What the controller was told last.
    told: Vec<GpuInfo>,
    was_well: bool,
    chance: Prng,
    pub tally: HealthTally,
}

impl NodeGpus {
    pub fn new(
        name: &str,
        gpus: u16,
        catalogue: Arc<Catalogue>,
        means: RepairMeans,
        chance: Prng,
    ) -> Self {
        let board = |index: u32| Board::new(format!("GPU-{name}-{index}"), index);
        Self {
            boards: (0..u32::from(gpus)).map(board).collect(),
            followed: vec![Followed::default(); usize::from(gpus)],
            catalogue,
            means,
            stored: NodeHealth::default(),
            stored_at: 0,
            live: None,
            events: Vec::new(),
            silent_until: 0,
            clock_off: 0,
            alert_until: 0,
            looked_at: 0,
            looked_by_clock: Timestamp::default(),
            told: Vec::new(),
            was_well: true,
            chance,
            tally: HealthTally::default(),
        }
    }

    /// A daemon begins with what is on the disk.
    pub fn daemon_begins(&mut self, boot: String, now: i64) {
        let text = serde_json::to_vec(&self.stored).expect("the state is JSON");
        let mut health: NodeHealth = serde_json::from_slice(&text).expect("what was written");
        health.means = self.means.clone();
        let at = self.clock(now);
        let actions = health.handle(HealthInput::Began { boot }, at);
        drop(actions.expect("no order"));
        self.stored = health.clone();
        self.live = Some((health, BTreeSet::new()));
        (self.alert_until, self.was_well) = (now + ALERT_MILLIS, false);
    }

    pub fn clock_is_set(&mut self, millis: i64, now: i64) {
        self.clock_off += millis;
        let at = self.clock(now);
        if let Some((health, _)) = &mut self.live {
            let actions = health.handle(HealthInput::ClockSet, at);
            drop(actions.expect("no order"));
        }
    }

    pub fn daemon_ends(&mut self) {
        self.live = None;
    }

    /// The disk is lost, and with it what was known.
    pub fn lose_spool(&mut self) {
        self.stored = NodeHealth::default();
        self.live = None;
        for followed in &mut self.followed {
            followed.overdue_secs = 0;
        }
    }

    fn clock(&self, now: i64) -> Timestamp {
        Timestamp(now + self.clock_off)
    }

    /// A board fell ill or was disturbed: looks come at the short interval from now on.
    pub fn alert(&mut self, events: Vec<GpuEvent>, now: i64) {
        self.events.extend(events);
        self.alert_until = now + ALERT_MILLIS;
    }

    pub fn falls_ill(&mut self, gpu: usize, illness: Illness, now: i64) {
        let board = &mut self.boards[gpu];
        if board.illness.is_none() {
            *self.tally.illnesses.entry(illness).or_default() += 1;
            self.followed[gpu].overdue_secs = 0;
            let events = board.falls_ill(illness, now, &mut self.chance);
            self.alert(events, now);
        }
    }

    pub fn is_disturbed(&mut self, gpu: usize, what: Disturbance, now: i64) {
        *self.tally.disturbances.entry(what).or_default() += 1;
        let events = self.boards[gpu].is_disturbed(what, now, &mut self.chance);
        self.alert(events, now);
    }

    /// How long the site's program on a GPU takes, milliseconds, and how it ends. A reset or a boot may mend nothing.
    pub fn program(&mut self, gpu: usize, stage: RepairStage, now: i64) -> (i64, Option<String>) {
        let chance = &mut self.chance;
        let board = &mut self.boards[gpu];
        let fails = |what: &str| Some(format!("{what}: the GPU is in use"));
        match stage {
            RepairStage::Resetting => {
                let off = matches!(board.illness, Some(Illness::FallenOff | Illness::Missing));
                if off || chance.one_in(10) {
                    return (chance.range(1000, 20_000), fails("gpu_reset"));
                }
                let mends = board.illness.is_none_or(|ill| ill.cure() == Cure::Reset);
                if mends && !chance.one_in(5) {
                    board.is_cured(now);
                }
                board.restart();
                (chance.range(5000, 60_000), None)
            }
            RepairStage::Booting => {
                let failure = if chance.one_in(20) {
                    fails("node_reboot")
                } else {
                    None
                };
                (chance.range(1000, 10_000), failure)
            }
            _ => {
                let failure = board
                    .illness
                    .map(|_| "burn-in ended with 1: sums differ".into());
                (chance.range(20_000, 90_000), failure)
            }
        }
    }

    /// The node has booted.
    pub fn booted(&mut self, now: i64) {
        for board in &mut self.boards {
            let mends = board.illness.is_some_and(|ill| ill.cure() != Cure::Hands);
            if mends && !self.chance.one_in(5) {
                board.is_cured(now);
            }
            board.restart();
        }
    }

    /// GPUs for an operator: sick ones, and those that have been out of service for this long. Sick ones are mended.
    pub fn operators_round(&mut self, out_millis: i64, now: i64) -> Vec<String> {
        let mut to_return = Vec::new();
        for gpu in self.not_in_service() {
            if now - self.followed[gpu].out_since < out_millis {
                continue;
            }
            // The hands that mend a board reset it: sensors that lied are read anew.
            self.boards[gpu].is_cured(now);
            self.boards[gpu].restart();
            self.tally.by_operator += 1;
            to_return.push(self.boards[gpu].uuid.clone());
        }
        to_return
    }

    /// Nothing is going on, and no sign can come of a look.
    pub fn is_quiet(&self, now: i64) -> bool {
        self.was_well && self.alert_until <= now && self.events.is_empty()
    }

    /// When the next look is due, milliseconds from now.
    pub fn next_look(&self, now: i64) -> i64 {
        if self.is_quiet(now) {
            QUIET_LOOK_MILLIS
        } else {
            LOOK_MILLIS
        }
    }

    /// What the controller is told of each GPU that the driver lists.
    pub fn infos(&self) -> Vec<GpuInfo> {
        let reports = self
            .live
            .as_ref()
            .map(|(health, _)| (health, health.reports()));
        let listed = |board: &&Board| board.illness != Some(Illness::Missing);
        let info = |board: &Board| {
            let report = reports.as_ref().and_then(|(_, all)| all.get(&board.uuid));
            let report = report.cloned().unwrap_or_default();
            GpuInfo {
                uuid: board.uuid.clone(),
                gpu_type: "h100".into(),
                index: board.index,
                minor: board.index,
                memory_mib: 81_920,
                mps: true,
                fault: reports
                    .as_ref()
                    .map_or_else(String::new, |(health, _)| health.fault(&board.uuid)),
                notes: report.notes,
                wants: report.wants.into(),
                standing: report.standing,
                ..GpuInfo::default()
            }
        };
        self.boards.iter().filter(listed).map(info).collect()
    }

    /// A look at all GPUs, with the events since the one before, and the steps then. `held`: the runs on each GPU, by index.
    pub fn look(
        &mut self,
        held: &BTreeMap<usize, BTreeSet<RunId>>,
        node_empty: bool,
        now: i64,
    ) -> LookOutcome {
        let at = self.clock(now);
        let Some((mut health, mut seen)) = self.live.take() else {
            return LookOutcome::default();
        };
        self.tally.looks += 1;
        let catalogue = &*Arc::clone(&self.catalogue);
        let events = self.take_events(now);
        self.know_boards(&health);
        let sweep = self.sweep(&mut seen, held, now);
        let listed = |board: &&Board| board.illness != Some(Illness::Missing);
        let discovered = self.boards.iter().filter(listed).map(|board| SeenGpu {
            uuid: &board.uuid,
            index: board.index,
            gpu_type: "h100",
        });
        let held_by_uuid = held
            .iter()
            .map(|(gpu, runs)| (self.boards[*gpu].uuid.clone(), runs.clone()))
            .collect();
        let inputs = [
            HealthInput::Events {
                catalogue,
                events: &events,
            },
            HealthInput::Swept { catalogue, sweep },
            HealthInput::Discovered {
                gpus: discovered.collect(),
            },
            HealthInput::Looked {
                held: &held_by_uuid,
                node_empty,
            },
        ];
        let answers = inputs.map(|input| health.handle(input, at).expect("no order"));
        let actions = answers.into_iter().flatten().collect();
        let mut outcome = LookOutcome::default();
        let is_well = health.all_well();
        self.live = Some((health, seen));
        self.carry_out(actions, held, now, &mut outcome);
        if !(is_well && self.was_well) || !self.boards.iter().all(|board| board.is_calm(now)) {
            self.follow(now, &mut outcome);
        }
        if !(is_well && self.was_well) || outcome.is_news {
            let infos = self.infos();
            outcome.is_news = infos != self.told;
            self.told = infos;
        }
        self.was_well = is_well;
        if now - self.stored_at >= STORE_EVERY_MILLIS {
            self.store(now);
        }
        (self.looked_at, self.looked_by_clock) = (now, at);
        outcome
    }

    /// Events since the look before. What is sick and goes on working raises its Xid again.
    fn take_events(&mut self, now: i64) -> Vec<GpuEvent> {
        let mut events = std::mem::take(&mut self.events);
        if now / LOOK_MILLIS % 30 == 0 {
            for board in &self.boards {
                events.extend(board.xid_of_illness(&mut self.chance));
            }
        }
        events
    }

    fn store(&mut self, now: i64) {
        if let Some((health, _)) = &self.live {
            self.stored.clone_from(health);
            self.stored_at = now;
        }
    }

    fn sweep(
        &mut self,
        seen: &mut BTreeSet<usize>,
        held: &BTreeMap<usize, BTreeSet<RunId>>,
        now: i64,
    ) -> Vec<GpuHealth> {
        let silence = |kind| ReadFailure {
            kind,
            text: "no answer".into(),
        };
        let mut sweep = Vec::with_capacity(self.boards.len());
        for (at, board) in self.boards.iter_mut().enumerate() {
            // The driver comes back to one GPU after the other.
            if self.silent_until + 2000 * at as i64 > now {
                sweep.push(GpuHealth {
                    uuid: Some(board.uuid.clone()),
                    ..GpuHealth::silent(board.index, silence(ReadFailureKind::Hangs))
                });
                continue;
            }
            let busy = held.contains_key(&at) || (now / 3_600_000 + at as i64) % 3 == 0;
            let reading = board.reading(now, busy);
            if reading.is_some() {
                seen.insert(at);
            } else if !seen.contains(&at) {
                continue;
            }
            let reading = reading.unwrap_or_else(|| {
                GpuHealth::silent(board.index, silence(ReadFailureKind::Missing)).reading
            });
            sweep.push(GpuHealth {
                index: board.index,
                uuid: Some(board.uuid.clone()),
                reading,
            });
        }
        sweep
    }

    fn carry_out(
        &mut self,
        actions: Vec<HealthAction>,
        held: &BTreeMap<usize, BTreeSet<RunId>>,
        now: i64,
        outcome: &mut LookOutcome,
    ) {
        for action in actions {
            match action {
                HealthAction::Store => {
                    self.store(now);
                    outcome.is_news = true;
                }
                HealthAction::EndRun { run, why } => {
                    let mut holds = held.iter().filter(|(_, runs)| runs.contains(&run));
                    let silent_alone = self.is_silent_alone(now);
                    if !silent_alone
                        && !holds.any(|(gpu, _)| self.boards[*gpu].may_leave(&why, now))
                    {
                        let text = format!("{run} is ended for a GPU that is well: {why}");
                        outcome.violation.get_or_insert(text);
                    }
                    outcome.ends.push(run);
                }
                HealthAction::StartProgram { uuid, stage } => {
                    let count = match stage {
                        RepairStage::Resetting => &mut self.tally.resets,
                        RepairStage::Booting => &mut self.tally.boots,
                        _ => &mut self.tally.burn_ins,
                    };
                    *count += 1;
                    outcome.programs.push((self.index_of(&uuid), stage));
                }
                HealthAction::Log { .. } => {}
            }
        }
    }

    /// The driver is or was silent on a node with one GPU: no other GPU tells that the driver is at fault, so the GPU may leave service.
    fn is_silent_alone(&self, now: i64) -> bool {
        self.boards.len() == 1 && self.silent_until > 0 && self.silent_until + 120_000 > now
    }

    /// Counters reach the disk once a minute, and a repair begins them anew: any reading may be the first.
    fn know_boards(&mut self, health: &NodeHealth) {
        for board in &mut self.boards {
            let record = health.gpus().get(&board.uuid);
            board.is_known = record.is_some_and(|record| record.watch.has_baseline());
        }
    }

    fn index_of(&self, uuid: &str) -> usize {
        let position = self.boards.iter().position(|board| board.uuid == uuid);
        position.expect("a GPU of this node")
    }

    /// Compares the state of each GPU with what is really so.
    fn follow(&mut self, now: i64, outcome: &mut LookOutcome) {
        let Some((health, _)) = &self.live else {
            return;
        };
        let passed_secs = ((now - self.looked_at) / 1000).clamp(0, 60);
        let unseen_secs = self.clock(now).since_secs(self.looked_by_clock);
        let in_row = self.silent_until + 20_000 < now && ROW_SECS.contains(&unseen_secs);
        let silent_alone = self.is_silent_alone(now);
        for (board, followed) in self.boards.iter_mut().zip(&mut self.followed) {
            let Some(record) = health.gpus().get(&board.uuid) else {
                continue;
            };
            let held = record.repair.held_by_admin.is_some();
            let out = record.repair.stage != RepairStage::InService;
            let suspect = !out && record.wants() == "quarantine";
            let leaves = out && !followed.is_out;
            let returns = !out && followed.is_out;
            let mut wrong = None;
            let may_leave = held || silent_alone || board.may_leave(&record.reason, now);
            if (leaves || suspect) && !may_leave {
                self.tally.wrong += 1;
                wrong = Some(format!("is well, and is drained: {}", record.reason));
            }
            if leaves {
                self.tally.leaves(board, now);
            }
            let long_ill = board.illness.filter(|_| board.ill_since < now - 600_000);
            if let Some(illness) = long_ill.filter(|_| returns && self.means.burn_in) {
                let text = format!("is sick ({}), and is back in service", illness.word());
                wrong.get_or_insert(text);
            }
            if returns {
                self.tally.returned += 1;
                board.ill_until = i64::MIN / 2;
            }
            if !followed.is_out && !suspect {
                followed.out_since = now;
            }
            followed.is_out = out;
            // A GPU that discovery does not list is not in the node's inventory.
            let stays = board.illness.filter(|_| !out && !suspect && !record.absent);
            if !in_row || !board.is_truthful(now) {
                followed.overdue_secs = 0;
            } else if let Some(illness) = stays {
                followed.overdue_secs += passed_secs.min((now - board.ill_since) / 1000);
                if followed.overdue_secs > illness.bound_secs() {
                    self.tally.missed += 1;
                    let text = format!("is sick ({}), and stays in service", illness.word());
                    wrong.get_or_insert(text);
                }
            }
            let is_well_out = out && !held && board.is_calm(now);
            if followed.is_long_well_out(is_well_out, passed_secs) {
                let text = format!("is well, and does not come back: {}", record.fault());
                wrong.get_or_insert(text);
            }
            let text = wrong.map(|text| format!("{}: {text}", board.uuid));
            outcome.violation = outcome.violation.take().or(text);
        }
    }

    /// Carries out an order of the controller, once however often it comes.
    pub fn order(
        &mut self,
        incarnation: u64,
        order: &GpuOrder,
        node_empty: bool,
        now: i64,
        outcome: &mut LookOutcome,
    ) -> Option<GpuOrderDone> {
        let at = self.clock(now);
        let (health, _) = self.live.as_mut()?;
        if let Some(done) = health.answered(incarnation, order) {
            return Some(done);
        }
        let uuid = order.uuid.as_str();
        let ordered = |order| HealthInput::Ordered { uuid, order };
        let carried_out = match &order.what {
            GpuAction::Quarantine { reason } => {
                health.handle(ordered(LocalOrder::Quarantine(reason.clone())), at)
            }
            GpuAction::Return => health.handle(ordered(LocalOrder::Return), at),
            GpuAction::Repair => health.handle(HealthInput::Permitted { uuid, node_empty }, at),
            other => Err(format!("{other:?} is not simulated")),
        };
        let (mut actions, error) = match carried_out {
            Ok(actions) => (actions, String::new()),
            Err(error) => (Vec::new(), error),
        };
        let answered = HealthInput::Answered {
            incarnation,
            order,
            error: error.clone(),
        };
        actions.extend(health.handle(answered, at).expect("no order for a GPU"));
        self.carry_out(actions, &BTreeMap::new(), now, outcome);
        self.was_well = false;
        Some(GpuOrderDone::new(order, error))
    }

    /// The site's program ended on a GPU.
    pub fn program_ended(&mut self, gpu: usize, failure: Option<String>, now: i64) {
        let at = self.clock(now);
        let ended = HealthInput::ProgramEnded {
            uuid: &self.boards[gpu].uuid,
            outcome: failure.map_or(Ok(()), Err),
        };
        if let Some((health, _)) = &mut self.live {
            drop(health.handle(ended, at));
            self.was_well = false;
            self.store(now);
        }
    }

    /// GPUs that are out of service or ask for it, well or not.
    pub fn not_in_service(&self) -> Vec<usize> {
        let Some((health, _)) = &self.live else {
            return Vec::new();
        };
        let is_out = |board: &Board| {
            let record = health.gpus().get(&board.uuid);
            record.is_some_and(|record| !record.fault().is_empty() || !record.wants().is_empty())
        };
        (0..self.boards.len())
            .filter(|gpu| is_out(&self.boards[*gpu]))
            .collect()
    }
}
