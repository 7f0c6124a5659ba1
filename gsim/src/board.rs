//! A simulated GPU: what is really wrong with it, and what its sensors say, which may be a lie. The health machine sees the reading and
//! the events only.

use crate::prng::Prng;
use gmodel::gpu_health::{
    EventSource, FabricHealth, GpuEvent, GpuEventKind, GpuReading, ReadFailure, ReadFailureKind,
    RecoveryAdvice, slow_reason,
};

/// The longest `gpu_watch_secs` that a site may have: between looks at a node where all is quiet.
pub const QUIET_LOOK_MILLIS: i64 = 60_000;

/// A fault of the board itself: the GPU has to leave service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Illness {
    /// Xid 48 with an uncorrected error in the counters.
    DoubleBit,
    /// Xid 64 and the flag: no spare row is left.
    RowFailure,
    /// Xid 74 and two links that are down.
    LinkDown,
    /// Xid 79, and the driver says that the GPU is lost.
    FallenOff,
    /// Lost for a look or two, then there again, over and over.
    Flapping,
    /// Xid 94 and a row remap that is pending; its job may finish.
    Contained,
    /// Xid 95.
    Uncontained,
    /// Xid 119 or 120 again and again, and calls that do not return.
    Firmware,
    /// The driver's word that SRAM has had too many errors.
    WornSram,
    /// Calls do not return.
    Hung,
    /// Above the temperature at which it slows down.
    Hot,
    /// Half of its PCIe lanes.
    Narrow,
    /// Not enumerated any more.
    Missing,
    /// One uncorrected error in the counters and no Xid: the driver's event was lost.
    QuietError,
}

/// What ends an illness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cure {
    Reset,
    Boot,
    /// An operator with a screwdriver.
    Hands,
}

impl Illness {
    /// Each with its name, what ends it, and the seconds of looks within which the GPU has to leave service or to ask for it.
    pub const ALL: [(Illness, &'static str, Cure, i64); 14] = [
        (Illness::DoubleBit, "double-bit error", Cure::Reset, 60),
        (Illness::RowFailure, "row failure", Cure::Hands, 60),
        (Illness::LinkDown, "NVLink down", Cure::Reset, 60),
        (Illness::FallenOff, "fallen off the bus", Cure::Boot, 60),
        (Illness::Flapping, "flapping", Cure::Boot, 900),
        (Illness::Contained, "contained error", Cure::Reset, 60),
        (Illness::Uncontained, "uncontained error", Cure::Reset, 60),
        (Illness::Firmware, "GSP failure", Cure::Reset, 60),
        (Illness::WornSram, "worn SRAM", Cure::Hands, 120),
        (Illness::Hung, "hung", Cure::Hands, 180),
        (Illness::Hot, "hot", Cure::Hands, 300),
        (Illness::Narrow, "half the PCIe lanes", Cure::Hands, 500),
        (Illness::Missing, "missing", Cure::Boot, 60),
        (
            Illness::QuietError,
            "error without an Xid",
            Cure::Reset,
            900,
        ),
    ];

    fn row(self) -> (Illness, &'static str, Cure, i64) {
        Self::ALL[self as usize]
    }

    pub fn word(self) -> &'static str {
        self.row().1
    }

    pub fn cure(self) -> Cure {
        self.row().2
    }

    pub fn bound_secs(self) -> i64 {
        self.row().3
    }

    fn xid(self) -> Option<u64> {
        match self {
            Illness::DoubleBit => Some(48),
            Illness::RowFailure => Some(64),
            Illness::LinkDown => Some(74),
            Illness::FallenOff => Some(79),
            Illness::Contained => Some(94),
            Illness::Uncontained => Some(95),
            Illness::Firmware => Some(119),
            _ => None,
        }
    }
}

/// Something that a healthy GPU shows for a while. No GPU may leave service for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disturbance {
    /// A user's program does something wrong, up to thousands of times: Xids 13, 31, 43, 45 and the like.
    ApplicationXids,
    /// Xids that are only noted: 63, 92, 121, 154, one that no catalogue names.
    HarmlessXids,
    CorrectedErrors,
    /// Hot for less than the sign's time.
    HeatSpike,
    /// A link is trained anew.
    LinkRetrain,
    /// Half of the PCIe lanes for a while under load.
    BusRetrain,
    /// One call or a few take too long.
    Stutter,
    /// The driver answers with an error for less than a minute.
    DriverErrors,
    /// The driver was loaded anew: counters since then begin at 0.
    CountersReset,
    /// All counters read 0, and then what they read before.
    CountersZero,
    /// Counters read a little less than before, and then more again.
    CountersBack,
    /// Counters read the highest number that there is: the driver's "no value".
    CountersSaturated,
    /// No counter is offered for a while.
    CountersGone,
    /// Sensors stand still.
    Stalled,
    /// 0 degrees, and limits of 0.
    TemperatureZero,
    /// Temperatures that no silicon reaches.
    TemperatureSaturated,
    /// Lanes, generations and retired pages read as "no value".
    WidthSaturated,
}

impl Disturbance {
    /// Each with its name and the seconds that it lasts at most.
    pub const ALL: [(Disturbance, &'static str, i64); 17] = [
        (Disturbance::ApplicationXids, "application Xids", 0),
        (Disturbance::HarmlessXids, "harmless Xids", 0),
        (Disturbance::CorrectedErrors, "corrected ECC errors", 0),
        (Disturbance::HeatSpike, "heat spike", 100),
        (Disturbance::LinkRetrain, "NVLink retrained", 25),
        (Disturbance::BusRetrain, "PCIe retrained", 250),
        (Disturbance::Stutter, "NVML timeout", 25),
        (Disturbance::DriverErrors, "NVML errors", 50),
        (Disturbance::CountersReset, "driver reloaded", 0),
        (Disturbance::CountersZero, "counters read 0", 500),
        (Disturbance::CountersBack, "counters go back", 500),
        (Disturbance::CountersSaturated, "counters saturated", 900),
        (Disturbance::CountersGone, "counters gone", 900),
        (Disturbance::Stalled, "sensors stall", 3600),
        (Disturbance::TemperatureZero, "0 degrees", 3600),
        (Disturbance::TemperatureSaturated, "impossible heat", 3600),
        (Disturbance::WidthSaturated, "widths saturated", 3600),
    ];

    pub fn word(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    fn lasts_secs(self) -> i64 {
        Self::ALL[self as usize].2
    }
}

/// Something that happens to the GPUs of one node, or of the whole pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuAct {
    FallsIll {
        machine: usize,
        gpu: usize,
        illness: Illness,
    },
    Disturbed {
        machine: usize,
        gpu: usize,
        what: Disturbance,
    },
    /// The same on each GPU of the node: a storm of the driver.
    AllDisturbed { machine: usize, what: Disturbance },
    /// The driver answers no question about any GPU.
    DriverSilent { machine: usize, millis: i64 },
    /// The node's clock is set.
    ClockStep { machine: usize, millis: i64 },
    /// A new driver shows half of the PCIe lanes on one GPU in so many of the pool.
    FalseSigns { one_in: usize, millis: i64 },
    /// Operators mend what is sick, and return what waits for them.
    Round,
}

/// A user's fault, by the Xid.
const APPLICATION_XIDS: [u64; 10] = [13, 31, 43, 45, 8, 32, 66, 69, 137, 141];
const HARMLESS_XIDS: [u64; 7] = [63, 92, 93, 121, 154, 161, 4711];

#[derive(Clone, Debug)]
pub struct Board {
    pub uuid: String,
    pub index: u32,
    pub illness: Option<Illness>,
    /// Since when it is ill, milliseconds.
    pub ill_since: i64,
    /// When the last illness ended.
    pub ill_until: i64,
    /// A wrong driver shows half of its lanes until then: it is well.
    pub false_sign_until: i64,
    disturbance: Option<(Disturbance, i64)>,
    /// What stalled sensors say.
    stalled: Option<Box<GpuReading>>,
    corrected: u64,
    uncorrected: u64,
    uncorrected_ever: u64,
    rows: u64,
    remap_pending: bool,
    /// The node's record has a reading of it. A sensor that lies from its first reading on cannot be told from one that is right.
    pub is_known: bool,
}

impl Board {
    pub fn new(uuid: String, index: u32) -> Self {
        Self {
            uuid,
            index,
            illness: None,
            ill_since: 0,
            ill_until: i64::MIN / 2,
            false_sign_until: i64::MIN / 2,
            disturbance: None,
            stalled: None,
            corrected: 2,
            uncorrected: 0,
            uncorrected_ever: 3,
            rows: 1,
            remap_pending: false,
            is_known: false,
        }
    }

    /// Nothing is wrong with it and its sensors tell the truth.
    pub fn is_calm(&self, now: i64) -> bool {
        self.illness.is_none() && self.false_sign_until <= now && self.is_truthful(now)
    }

    /// Its sensors tell the truth.
    pub fn is_truthful(&self, now: i64) -> bool {
        self.disturbance.is_none_or(|(_, until)| until <= now)
    }

    /// It may leave service now for this reason, by what is really so. A daemon that was down hears later of an illness that is over.
    pub fn may_leave(&self, reason: &str, now: i64) -> bool {
        let near = |until: i64| until > now - 7_200_000;
        let by_driver = near(self.false_sign_until) && reason.contains("pcie-width");
        self.illness.is_some() || near(self.ill_until) || by_driver
    }

    /// It falls ill; the events that the driver raises.
    pub fn falls_ill(&mut self, illness: Illness, now: i64, chance: &mut Prng) -> Vec<GpuEvent> {
        if self.illness.is_some() {
            return Vec::new();
        }
        (self.illness, self.ill_since) = (Some(illness), now);
        let memory = matches!(
            illness,
            Illness::DoubleBit | Illness::Uncontained | Illness::Contained | Illness::QuietError
        );
        if memory {
            self.uncorrected += 1;
            self.uncorrected_ever += 1;
            self.rows += 1;
            self.remap_pending = illness != Illness::QuietError;
        }
        self.xid_of_illness(chance)
    }

    /// The Xid of the illness, which a sick GPU raises again and again.
    pub fn xid_of_illness(&self, chance: &mut Prng) -> Vec<GpuEvent> {
        let xid = self.illness.and_then(Illness::xid);
        let storm = self.illness == Some(Illness::Firmware);
        let count = if storm { chance.range(1, 20_000) } else { 1 };
        xid.map_or_else(Vec::new, |xid| {
            let xid = xid + u64::from(storm && chance.one_in(2));
            self.told_by_both(xid, count as u64, chance)
        })
    }

    /// An Xid comes by the event set, by the kernel log, or by both.
    pub fn told_by_both(&self, xid: u64, count: u64, chance: &mut Prng) -> Vec<GpuEvent> {
        let event = |source| GpuEvent {
            uuid: self.uuid.clone(),
            kind: GpuEventKind::Xid(xid),
            count,
            source,
        };
        match chance.below(4) {
            0 => vec![event(EventSource::EventSet)],
            1 => vec![event(EventSource::KernelLog)],
            _ => vec![event(EventSource::EventSet), event(EventSource::KernelLog)],
        }
    }

    /// Something happens that is no fault of the board; the events that the driver raises.
    pub fn is_disturbed(
        &mut self,
        what: Disturbance,
        now: i64,
        chance: &mut Prng,
    ) -> Vec<GpuEvent> {
        let secs = what.lasts_secs();
        // Lies in a row would last longer than any of them: a look sees the truth between them.
        let is_free = |(_, until)| until + QUIET_LOOK_MILLIS < now;
        if secs > 0 && self.disturbance.is_none_or(is_free) {
            self.stalled = None;
            self.disturbance = Some((what, now + 1000 * chance.range(1, secs)));
        }
        let times = [1, 3, 500, 20_000][chance.below(4)];
        match what {
            Disturbance::ApplicationXids => {
                self.told_by_both(APPLICATION_XIDS[chance.below(10)], times, chance)
            }
            Disturbance::HarmlessXids => {
                self.told_by_both(HARMLESS_XIDS[chance.below(7)], times, chance)
            }
            Disturbance::CorrectedErrors => {
                self.corrected += times;
                Vec::new()
            }
            Disturbance::CountersReset => {
                self.restart_counters();
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// The driver was loaded, or the GPU was reset: counters begin at 0, and a sensor that lied is read anew.
    pub fn restart(&mut self) {
        (self.disturbance, self.stalled) = (None, None);
        self.restart_counters();
    }

    fn restart_counters(&mut self) {
        (self.corrected, self.uncorrected) = (0, 0);
        self.remap_pending = false;
    }

    /// The illness is over; what was counted of it stays.
    pub fn is_cured(&mut self, now: i64) {
        if self.illness.take().is_some() {
            self.ill_until = now;
        }
        self.remap_pending = false;
    }

    /// All is well from now on, and the sensors tell the truth.
    pub fn calm(&mut self, now: i64) {
        self.is_cured(now);
        (self.disturbance, self.stalled) = (None, None);
        self.false_sign_until = self.false_sign_until.min(now);
    }

    /// What the driver says of it now; `None`: it does not list it.
    pub fn reading(&mut self, now: i64, busy: bool) -> Option<GpuReading> {
        if self.illness == Some(Illness::Missing) {
            return None;
        }
        let silence = match self.illness {
            Some(Illness::FallenOff) => Some(ReadFailureKind::Lost),
            // Ten seconds of every 100.
            Some(Illness::Flapping) => {
                ((now - self.ill_since) / 10_000 % 10 == 0).then_some(ReadFailureKind::Lost)
            }
            Some(Illness::Hung) => Some(ReadFailureKind::Hangs),
            Some(Illness::Firmware) => {
                (now - self.ill_since > 30_000).then_some(ReadFailureKind::Hangs)
            }
            _ => None,
        };
        let disturbed = self
            .disturbance
            .filter(|(_, until)| *until > now)
            .map(|(what, _)| what);
        let silence = silence.or(match disturbed {
            Some(Disturbance::Stutter) => Some(ReadFailureKind::Hangs),
            Some(Disturbance::DriverErrors) => Some(ReadFailureKind::Error),
            _ => None,
        });
        if let Some(kind) = silence {
            return Some(silent(kind));
        }
        let mut reading = self.honest(now, busy);
        match disturbed.filter(|_| self.is_known) {
            Some(Disturbance::Stalled) => {
                reading = *self.stalled.get_or_insert(Box::new(reading)).clone();
            }
            Some(lie) => disturb(&mut reading, lie),
            None => {}
        }
        Some(reading)
    }

    fn honest(&self, now: i64, busy: bool) -> GpuReading {
        let (minutes, ill) = (now / 60_000, |illness| self.illness == Some(illness));
        let narrow = ill(Illness::Narrow) || self.false_sign_until > now;
        GpuReading {
            temperature_c: Some(if ill(Illness::Hot) {
                92
            } else {
                40 + (minutes % 30) as u32
            }),
            slowdown_c: Some(87),
            memory_temperature_c: Some(50 + (minutes % 30) as u32),
            memory_max_c: Some(95),
            power_mw: Some(if busy { 600_000 } else { 90_000 }),
            busy_percent: Some(if busy { 90 } else { 0 }),
            slow_reasons: Some(if busy {
                slow_reason::POWER_CAP
            } else {
                slow_reason::IDLE
            }),
            power_slowed_ms: Some(minutes as u64 * 400),
            heat_slowed_ms: Some(minutes as u64 * 10),
            ecc_corrected: Some(self.corrected),
            ecc_uncorrected: Some(self.uncorrected),
            // Half of the boards tell no sum over their life.
            ecc_uncorrected_ever: self
                .index
                .is_multiple_of(2)
                .then_some(self.uncorrected_ever),
            sram_worn: Some(ill(Illness::WornSram)),
            rows_remapped: Some(self.rows),
            remap_pending: Some(self.remap_pending),
            remap_failed: Some(ill(Illness::RowFailure)),
            nvlink_count: 18,
            nvlinks_down: if ill(Illness::LinkDown) {
                vec![4, 7]
            } else {
                Vec::new()
            },
            nvlink_errors: Some(40_000 + minutes as u64),
            pcie_gen: Some(if busy { 5 } else { 1 }),
            pcie_gen_max: Some(5),
            pcie_width: Some(if narrow { 8 } else { 16 }),
            pcie_width_max: Some(16),
            pcie_replays: Some(15_000 + minutes as u64),
            fabric: Some(FabricHealth::Ready),
            recovery: Some(RecoveryAdvice::None),
            ..GpuReading::default()
        }
    }
}

fn silent(kind: ReadFailureKind) -> GpuReading {
    GpuReading {
        fault: Some(ReadFailure {
            kind,
            text: "no answer".to_owned(),
        }),
        ..GpuReading::default()
    }
}

/// What sensors show in a disturbance, and how they lie.
fn disturb(reading: &mut GpuReading, how: Disturbance) {
    let mut counters = |change: &dyn Fn(u64) -> Option<u64>| {
        for counter in [
            &mut reading.ecc_corrected,
            &mut reading.ecc_uncorrected,
            &mut reading.ecc_uncorrected_ever,
            &mut reading.rows_remapped,
            &mut reading.nvlink_errors,
            &mut reading.pcie_replays,
            &mut reading.heat_slowed_ms,
            &mut reading.power_slowed_ms,
        ] {
            *counter = counter.and_then(change);
        }
    };
    match how {
        Disturbance::CountersZero => counters(&|_| Some(0)),
        Disturbance::CountersBack => counters(&|value| Some(value - value.div_ceil(3))),
        Disturbance::CountersSaturated => counters(&|value| {
            Some(if value.is_multiple_of(2) {
                u64::MAX
            } else {
                u64::from(u32::MAX)
            })
        }),
        Disturbance::CountersGone => counters(&|_| None),
        Disturbance::HeatSpike => {
            (reading.temperature_c, reading.memory_temperature_c) = (Some(90), Some(96));
        }
        Disturbance::LinkRetrain => reading.nvlinks_down = vec![3],
        Disturbance::BusRetrain => {
            (reading.pcie_width, reading.pcie_gen) = (Some(8), Some(3));
        }
        Disturbance::TemperatureZero => {
            (reading.temperature_c, reading.memory_temperature_c) = (Some(0), Some(0));
            (reading.slowdown_c, reading.memory_max_c) = (Some(0), Some(0));
        }
        Disturbance::TemperatureSaturated => {
            (reading.temperature_c, reading.memory_temperature_c) = (Some(u32::MAX), Some(255));
        }
        Disturbance::WidthSaturated => {
            (reading.pcie_width_max, reading.pcie_gen_max) = (Some(u32::MAX), Some(u32::MAX));
            reading.pages_retired = Some(u64::MAX);
        }
        _ => {}
    }
}
