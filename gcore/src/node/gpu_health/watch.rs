//! From readings and events of one GPU to signs: thresholds, how long a state must last, when a sign is over, and how often
//! a lasting sign is repeated. Bounded: a storm of events raises a count, never a queue. Has no clock.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use gmodel::Timestamp;
use gmodel::gpu_health::{
    Action, Catalogue, EventSource, Evidence, FabricHealth, GpuEventKind, GpuReading,
    ReadFailureKind, RecoveryAdvice, Severity, SignCounter, SignKind, SignState, slow_reason,
};

/// The evidence of one GPU so far. Keep it over restarts: without it, uncorrected errors since the driver was loaded count as new.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuWatch {
    before: Option<Baseline>,
    tallies: BTreeMap<String, SignRecord>,
}

/// A sign that stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sign {
    /// Its name in the catalogue.
    pub name: String,
    pub severity: Severity,
    pub action: Action,
    pub let_finish: bool,
    /// Of the catalogue that raised it.
    pub catalogue_version: u32,
    /// What was seen, with its numbers: `Xid 79`, `links 4 and 7 are down`.
    pub evidence: String,
    /// How often, since `first`; at least 1.
    pub count: u64,
    pub first: Timestamp,
    pub last: Timestamp,
}

/// What became of a sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignChange {
    Raised(Sign),
    /// It stands already and came again; told after a minute, then two, four, up to an hour.
    #[serde(rename = "again")]
    Repeated(Sign),
    Over(Sign),
}

/// What all standing signs of a GPU call for together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthVerdict<'a> {
    /// The harshest.
    pub action: Action,
    /// The worst.
    pub severity: Severity,
    /// False as soon as one sign that takes the GPU out of service says so.
    pub let_finish: bool,
    /// The sign to name as the reason.
    pub sign: &'a Sign,
}

/// What standing signs call for; `None` where there is none, or none that asks for more than a note.
pub fn verdict<'a>(signs: impl IntoIterator<Item = &'a Sign>) -> Option<HealthVerdict<'a>> {
    let serious: Vec<&Sign> = signs
        .into_iter()
        .filter(|sign| sign.action > Action::Note)
        .collect();
    let rank = |sign: &&&Sign| {
        (
            sign.action,
            !sign.let_finish,
            sign.severity,
            std::cmp::Reverse(sign.first),
        )
    };
    let sign = *serious.iter().max_by_key(rank)?;
    Some(HealthVerdict {
        action: sign.action,
        severity: serious.iter().map(|sign| sign.severity).max()?,
        let_finish: serious.iter().all(|sign| sign.let_finish),
        sign,
    })
}

/// Counters at the reading before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Baseline {
    counters: BTreeMap<String, u64>,
    ecc_uncorrected_ever: Option<u64>,
    /// Counters that fell: how many readings have shown less than `counters` says. No time: clocks are set.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    fallen: BTreeMap<String, u32>,
    /// Links that were down when the GPU was accepted, and have not been up since: no cable leads there.
    links_never_up: Vec<u32>,
}

/// The evidence of one sign so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SignRecord {
    /// Counts in parts of the window: number of the part, and how many in it.
    parts: VecDeque<(i64, u64)>,
    /// What each source has counted since it was quiet.
    by_source: BTreeMap<EventSource, u64>,
    /// Since when the state lasts.
    since: Option<Timestamp>,
    last_seen: Timestamp,
    standing: Option<RaisedSign>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RaisedSign {
    sign: Sign,
    told_at: Timestamp,
    patience_secs: i64,
}

/// Evidence that comes in numbers.
struct Observation {
    source: EventSource,
    count: u64,
    text: String,
}

/// A window is counted in so many parts: the sum is right to a part's length.
const PARTS: i64 = 12;
/// Two sources tell of one event within this time.
const SOURCES_APART_SECS: i64 = 90;
const FIRST_PATIENCE_SECS: i64 = 60;
const MOST_PATIENCE_SECS: i64 = 3600;
/// Under less load than this a PCIe link may rest.
const BUSY_PERCENT: u32 = 30;
/// A counter that fell is believed after so many readings, ten minutes of them: a sensor that lies is back before that.
const FALLEN_READINGS: u32 = 60;
/// A state that is seen again after longer than this began anew: nobody looked meanwhile, or the clock was set.
const UNSEEN_SECS: i64 = 600;
/// Silicon is not hotter than this: a sensor that says so lies.
const MOST_CELSIUS: u32 = 150;
/// No PCIe link has more lanes or a higher generation.
const MOST_PCIE: u32 = 32;
/// In [`Baseline::fallen`], beside the words of the counters.
const ECC_EVER: &str = "ecc-uncorrected-ever";

impl GpuWatch {
    /// A watch that takes the GPU as it is: nothing that `reading` shows counts as new, no sign stands. For a GPU that is put
    /// into service, after its burn-in.
    pub fn accepting(reading: &GpuReading) -> GpuWatch {
        let mut before = Baseline {
            links_never_up: reading.nvlinks_down.clone(),
            ..Baseline::default()
        };
        before.take(reading);
        GpuWatch {
            before: Some(before),
            tallies: BTreeMap::new(),
        }
    }

    /// Takes one reading. A GPU that is silent shows nothing but its silence, and no sign is over meanwhile.
    pub fn read(
        &mut self,
        catalogue: &Catalogue,
        reading: &GpuReading,
        now: Timestamp,
    ) -> Vec<SignChange> {
        let mut changes = Vec::new();
        let silent = reading.fault.as_ref().map(|fault| fault.kind);
        let mut before = self.before.take();
        let mut never_up = match &before {
            Some(before) => before.links_never_up.clone(),
            None => first_links_down(reading),
        };
        for (name, kind) in &catalogue.signs {
            match &kind.evidence {
                Evidence::State(state) => {
                    if silent.is_some() && !tells_silence(*state) {
                        continue;
                    }
                    let seen = state_seen(*state, reading, kind, &never_up);
                    changes.extend(self.state_of(catalogue, name, kind, seen, now));
                }
                Evidence::Counter(counted) if silent.is_none() => {
                    let rise = rise(before.as_ref(), *counted, reading);
                    if rise > 0 {
                        let seen = Observation {
                            source: EventSource::Reading,
                            count: rise,
                            text: counted_text(*counted, rise),
                        };
                        changes.extend(self.count(catalogue, name, kind, seen, now));
                    }
                }
                Evidence::Counter(_) | Evidence::Xid(_) | Evidence::OtherXid => {}
            }
        }
        if silent.is_none() {
            never_up.retain(|link| reading.nvlinks_down.contains(link));
            let taken = before.get_or_insert_default();
            taken.links_never_up = never_up;
            taken.take(reading);
            changes.extend(self.over(catalogue, now));
        }
        self.before = before;
        changes
    }

    /// Takes events of one kind, `count` of them.
    pub fn event(
        &mut self,
        catalogue: &Catalogue,
        kind: GpuEventKind,
        count: u64,
        source: EventSource,
        now: Timestamp,
    ) -> Vec<SignChange> {
        let counted = |wanted: SignCounter| {
            let mut signs = catalogue.signs.iter();
            signs
                .find(|(_, kind)| kind.evidence == Evidence::Counter(wanted))
                .map(|(name, kind)| (name.as_str(), kind))
        };
        let (found, text) = match kind {
            GpuEventKind::Xid(number) => (catalogue.by_xid(number), format!("Xid {number}")),
            GpuEventKind::EccUncorrected => (
                counted(SignCounter::EccUncorrected),
                counted_text(SignCounter::EccUncorrected, count),
            ),
            GpuEventKind::EccCorrected => (
                counted(SignCounter::EccCorrected),
                counted_text(SignCounter::EccCorrected, count),
            ),
            GpuEventKind::Lost => {
                let text = "the driver says that it is lost".to_owned();
                return self.state(catalogue, SignState::Lost, Some(text), now);
            }
            GpuEventKind::MigConfigChange | GpuEventKind::Unknown => return Vec::new(),
        };
        let Some((name, sign)) = found else {
            return Vec::new();
        };
        self.count(
            catalogue,
            name,
            sign,
            Observation {
                source,
                count,
                text,
            },
            now,
        )
        .into_iter()
        .collect()
    }

    /// Says that a state is seen, with what was seen of it, or that it is not. For states of the node, which no reading tells.
    pub fn state(
        &mut self,
        catalogue: &Catalogue,
        state: SignState,
        seen: Option<String>,
        now: Timestamp,
    ) -> Vec<SignChange> {
        let signs = catalogue.signs.iter();
        let wanted: Vec<_> = signs
            .filter(|(_, kind)| kind.evidence == Evidence::State(state))
            .collect();
        let mut changes = Vec::new();
        for (name, kind) in wanted {
            changes.extend(self.state_of(catalogue, name, kind, seen.clone(), now));
        }
        if seen.is_none() {
            changes.extend(self.over(catalogue, now));
        }
        changes
    }

    /// Counters were read, and later readings are compared with them.
    pub fn has_baseline(&self) -> bool {
        self.before.is_some()
    }

    /// What was seen of states so far does not count to how long they last. Signs that stand go on standing.
    pub(super) fn begin_states_anew(&mut self) {
        for tally in self.tallies.values_mut() {
            if tally.standing.is_none() {
                tally.since = None;
            }
        }
    }

    /// Signs that stand, in the order of their names.
    pub fn standing(&self) -> impl Iterator<Item = &Sign> {
        self.tallies
            .values()
            .filter_map(|tally| Some(&tally.standing.as_ref()?.sign))
    }

    fn tally(&mut self, name: &str, now: Timestamp) -> &mut SignRecord {
        self.tallies
            .entry(name.to_owned())
            .or_insert_with(|| SignRecord {
                parts: VecDeque::new(),
                by_source: BTreeMap::new(),
                since: None,
                last_seen: now,
                standing: None,
            })
    }

    fn count(
        &mut self,
        catalogue: &Catalogue,
        name: &str,
        kind: &SignKind,
        seen: Observation,
        now: Timestamp,
    ) -> Option<SignChange> {
        let tally = self.tally(name, now);
        let fresh = tally.fresh(seen.source, seen.count, now);
        tally.last_seen = now;
        if fresh == 0 {
            return None;
        }
        let part_millis = (kind.window_secs as i64).saturating_mul(1000) / PARTS;
        let part = now.0.div_euclid(part_millis.max(1));
        match tally.parts.back_mut() {
            // A clock that went back counts into the newest part.
            Some((newest, sum)) if *newest >= part => *sum = sum.saturating_add(fresh),
            _ => tally.parts.push_back((part, fresh)),
        }
        while tally
            .parts
            .front()
            .is_some_and(|(oldest, _)| *oldest <= part - PARTS)
        {
            tally.parts.pop_front();
        }
        let sum = tally
            .parts
            .iter()
            .fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
        if tally.standing.is_some() {
            return tally.again(fresh, now);
        }
        (sum >= kind.threshold).then(|| tally.raise(catalogue, name, kind, seen.text, sum, now))
    }

    fn state_of(
        &mut self,
        catalogue: &Catalogue,
        name: &str,
        kind: &SignKind,
        seen: Option<String>,
        now: Timestamp,
    ) -> Option<SignChange> {
        let Some(text) = seen else {
            // What did not last long enough has to begin again.
            if let Some(tally) = self.tallies.get_mut(name) {
                tally.since = None;
                if tally.standing.is_none() && tally.parts.is_empty() {
                    self.tallies.remove(name);
                }
            }
            return None;
        };
        let tally = self.tally(name, now);
        if now < tally.last_seen || now.since_secs(tally.last_seen) > UNSEEN_SECS {
            tally.since = None;
        }
        tally.last_seen = now;
        let since = *tally.since.get_or_insert(now);
        if let Some(standing) = &mut tally.standing {
            standing.sign.last = now;
            standing.sign.evidence = text;
            return None;
        }
        let lasted = now.since_secs(since) >= kind.holds_secs as i64;
        lasted.then(|| tally.raise(catalogue, name, kind, text, 1, now))
    }

    /// Signs without evidence for long enough, and those that the catalogue has no more.
    fn over(&mut self, catalogue: &Catalogue, now: Timestamp) -> Vec<SignChange> {
        let mut changes = Vec::new();
        self.tallies.retain(|name, tally| {
            let quiet_secs = now.since_secs(tally.last_seen);
            let kind = catalogue.signs.get(name);
            let ended = match kind {
                None => true,
                Some(kind) if tally.standing.is_some() => {
                    kind.clears_secs > 0 && quiet_secs >= kind.clears_secs as i64
                }
                Some(kind) => tally.since.is_none() && quiet_secs >= kind.window_secs as i64,
            };
            if ended && let Some(standing) = &tally.standing {
                changes.push(SignChange::Over(standing.sign.clone()));
            }
            !ended
        });
        changes
    }
}

impl Baseline {
    /// Keeps what a reading shows. A counter that it does not tell stays as it was; one that fell stays until that is believed.
    fn take(&mut self, reading: &GpuReading) {
        for (counted, word) in SignCounter::ALL {
            if let Some(new) = counter(*counted, reading) {
                let old = self.counters.get(*word).copied();
                if self.believes(word, old, new) {
                    match self.counters.get_mut(*word) {
                        Some(kept) => *kept = new,
                        None => drop(self.counters.insert((*word).to_owned(), new)),
                    }
                }
            }
        }
        if let Some(new) = told(reading.ecc_uncorrected_ever)
            && self.believes(ECC_EVER, self.ecc_uncorrected_ever, new)
        {
            self.ecc_uncorrected_ever = Some(new);
        }
    }

    /// Whether what a counter shows is the new base.
    fn believes(&mut self, word: &str, old: Option<u64>, new: u64) -> bool {
        let believed = old.is_none_or(|old| new >= old) || self.has_fallen(word);
        if believed {
            self.fallen.remove(word);
        } else {
            *self.fallen.entry(word.to_owned()).or_default() += 1;
        }
        believed
    }

    /// The counter did begin anew: it has been low for long.
    fn has_fallen(&self, word: &str) -> bool {
        self.fallen
            .get(word)
            .is_some_and(|readings| *readings >= FALLEN_READINGS)
    }
}

/// By how much a counter rose since the reading before. One that fell begins anew once that is believed, as at a first reading.
fn rise(before: Option<&Baseline>, counted: SignCounter, reading: &GpuReading) -> u64 {
    let new = counter(counted, reading);
    // At a first reading, errors since the driver was loaded count as new; other counters may be years old.
    let at_first = match counted {
        SignCounter::EccUncorrected => new.unwrap_or(0),
        _ => 0,
    };
    let Some(before) = before else {
        return at_first;
    };
    let risen = match (before.counters.get(counted.word()), new) {
        (Some(old), Some(new)) if new >= *old => new - old,
        (Some(_), Some(_)) if before.has_fallen(counted.word()) => at_first,
        _ => 0,
    };
    // The sum over the board's life never begins anew.
    let ever = before
        .ecc_uncorrected_ever
        .zip(told(reading.ecc_uncorrected_ever));
    match (counted, ever) {
        (SignCounter::EccUncorrected, Some((old, new))) => risen.max(new.saturating_sub(old)),
        _ => risen,
    }
}

impl SignRecord {
    /// How many of `count` no other source has told of.
    fn fresh(&mut self, source: EventSource, count: u64, now: Timestamp) -> u64 {
        if now.since_secs(self.last_seen) > SOURCES_APART_SECS {
            self.by_source.clear();
        }
        let most = self.by_source.values().copied().max().unwrap_or(0);
        let own = self.by_source.entry(source).or_insert(0);
        *own = own.saturating_add(count);
        own.saturating_sub(most)
    }

    fn raise(
        &mut self,
        catalogue: &Catalogue,
        name: &str,
        kind: &SignKind,
        evidence: String,
        count: u64,
        now: Timestamp,
    ) -> SignChange {
        let sign = Sign {
            name: name.to_owned(),
            severity: kind.severity,
            action: kind.action,
            let_finish: kind.let_finish,
            catalogue_version: catalogue.version,
            evidence,
            count,
            first: self.since.unwrap_or(now),
            last: now,
        };
        self.standing = Some(RaisedSign {
            sign: sign.clone(),
            told_at: now,
            patience_secs: FIRST_PATIENCE_SECS,
        });
        SignChange::Raised(sign)
    }

    fn again(&mut self, fresh: u64, now: Timestamp) -> Option<SignChange> {
        let standing = self.standing.as_mut()?;
        standing.sign.count = standing.sign.count.saturating_add(fresh);
        standing.sign.last = now;
        if now.since_secs(standing.told_at) < standing.patience_secs {
            return None;
        }
        standing.told_at = now;
        standing.patience_secs = (standing.patience_secs * 2).min(MOST_PATIENCE_SECS);
        Some(SignChange::Repeated(standing.sign.clone()))
    }
}

/// Links that are down at the first look, as far as no sibling says that they should be up.
fn first_links_down(reading: &GpuReading) -> Vec<u32> {
    let missing = reading
        .nvlinks_up_expected
        .is_some_and(|expected| reading.nvlinks_up() < expected);
    if missing {
        Vec::new()
    } else {
        reading.nvlinks_down.clone()
    }
}

/// A counter's value, where it is one: the highest number of its width is the driver's "no value".
fn told(value: Option<u64>) -> Option<u64> {
    value.filter(|value| *value != u64::MAX && *value != u64::from(u32::MAX))
}

fn counter(counted: SignCounter, reading: &GpuReading) -> Option<u64> {
    told(match counted {
        SignCounter::EccUncorrected => reading.ecc_uncorrected,
        SignCounter::EccCorrected => reading.ecc_corrected,
        SignCounter::NvlinkErrors => reading.nvlink_errors,
        SignCounter::PcieReplays => reading.pcie_replays,
        SignCounter::HeatSlowed => reading.heat_slowed_ms,
        SignCounter::PowerSlowed => reading.power_slowed_ms,
        SignCounter::RowsRemapped => reading.rows_remapped,
    })
}

/// A temperature or its limit, where silicon can have it.
fn celsius(value: Option<u32>) -> Option<u32> {
    value.filter(|value| (1..=MOST_CELSIUS).contains(value))
}

/// Lanes or a generation of PCIe, with the most that there could be, where a link can have them.
fn below_most(now: Option<u32>, most: Option<u32>) -> Option<(u32, u32)> {
    let is_one = |value: &u32| (1..=MOST_PCIE).contains(value);
    let (now, most) = (now.filter(is_one)?, most.filter(is_one)?);
    (now < most).then_some((now, most))
}

fn counted_text(counted: SignCounter, rise: u64) -> String {
    let s = if rise == 1 { "" } else { "s" };
    match counted {
        SignCounter::EccUncorrected => format!("{rise} uncorrected ECC error{s}"),
        SignCounter::EccCorrected => format!("{rise} corrected ECC error{s}"),
        SignCounter::NvlinkErrors => format!("{rise} error{s} on its NVLinks"),
        SignCounter::PcieReplays => format!("{rise} replay{s} on its PCIe link"),
        SignCounter::HeatSlowed => format!("slowed down for heat for {} s", rise / 1000),
        SignCounter::PowerSlowed => format!("slowed down for lack of power for {} s", rise / 1000),
        SignCounter::RowsRemapped => format!("{rise} row{s} of memory replaced"),
    }
}

fn tells_silence(state: SignState) -> bool {
    matches!(
        state,
        SignState::Lost | SignState::Hangs | SignState::Missing | SignState::Error
    )
}

/// What is seen of a state, where it is so.
fn state_seen(
    state: SignState,
    reading: &GpuReading,
    kind: &SignKind,
    links_never_up: &[u32],
) -> Option<String> {
    let silence = |wanted: ReadFailureKind| {
        reading
            .fault
            .as_ref()
            .filter(|fault| fault.kind == wanted)
            .map(|fault| fault.text.clone())
    };
    let when = |is_so: bool, text: &str| is_so.then(|| text.to_owned());
    let flag = |flag: Option<bool>, text: &str| when(flag == Some(true), text);
    let advice =
        |wanted: RecoveryAdvice| when(reading.recovery == Some(wanted), "the driver's own advice");
    let slow = |bit: u64| {
        reading
            .slow_reasons
            .is_some_and(|reasons| reasons & bit != 0)
    };
    match state {
        SignState::Lost => silence(ReadFailureKind::Lost),
        SignState::Hangs => silence(ReadFailureKind::Hangs),
        SignState::Missing => silence(ReadFailureKind::Missing),
        SignState::Error => silence(ReadFailureKind::Error),
        SignState::SramWorn => flag(reading.sram_worn, "the SRAM error threshold is exceeded"),
        SignState::RemapPending => flag(reading.remap_pending, "a row remap is pending"),
        SignState::RemapFailed => flag(reading.remap_failed, "a row remap failed"),
        SignState::RetirementPending => {
            flag(reading.retirement_pending, "a page retirement is pending")
        }
        SignState::PagesRetired => {
            let pages = told(reading.pages_retired).filter(|&pages| pages >= kind.threshold)?;
            Some(format!("{pages} pages are retired"))
        }
        SignState::NvlinkDown => links_seen_down(reading, links_never_up),
        SignState::PcieWidth => {
            let (now, most) = below_most(reading.pcie_width, reading.pcie_width_max)?;
            Some(format!("{now} of {most} PCIe lanes"))
        }
        SignState::PcieGeneration => {
            let (now, most) = below_most(reading.pcie_gen, reading.pcie_gen_max)?;
            let busy = reading.busy_percent? >= BUSY_PERCENT;
            busy.then(|| format!("PCIe generation {now} of {most} under load"))
        }
        SignState::Hot => {
            let now = celsius(reading.temperature_c);
            let limit = celsius(reading.slowdown_c).filter(|limit| now >= Some(*limit));
            let celsius = now.unwrap_or_default();
            match limit {
                Some(limit) => Some(format!("{celsius} C, slows down from {limit} C on")),
                None => when(
                    slow(slow_reason::HARDWARE_THERMAL),
                    &format!("{celsius} C, slowed down by its hardware"),
                ),
            }
        }
        SignState::MemoryHot => {
            let now = celsius(reading.memory_temperature_c)?;
            let most = celsius(reading.memory_max_c)?;
            (now >= most).then(|| format!("memory at {now} C, at most {most} C"))
        }
        SignState::PowerBrake => when(
            slow(slow_reason::POWER_BRAKE),
            "slowed down by the power supply",
        ),
        SignState::FabricNotReady => match reading.fabric? {
            FabricHealth::NotStarted => {
                Some("its registration with the fabric has not begun".to_owned())
            }
            FabricHealth::InProgress => Some("its registration with the fabric goes on".to_owned()),
            _ => None,
        },
        SignState::FabricFailed => when(
            reading.fabric == Some(FabricHealth::Failed),
            "its registration with the fabric failed",
        ),
        SignState::FabricUnhealthy => when(
            reading.fabric == Some(FabricHealth::Unhealthy),
            "its fabric is degraded",
        ),
        SignState::AdviceReset => advice(RecoveryAdvice::Reset),
        SignState::AdviceReboot => advice(RecoveryAdvice::Reboot),
        SignState::AdviceDrain => advice(RecoveryAdvice::DrainP2p),
        SignState::AdviceDrainAndReset => advice(RecoveryAdvice::DrainAndReset),
        // Of the node: `GpuWatch::state` is told of them.
        SignState::CountMismatch | SignState::DriverMismatch => None,
    }
}

fn links_seen_down(reading: &GpuReading, links_never_up: &[u32]) -> Option<String> {
    let down: Vec<String> = reading
        .nvlinks_down
        .iter()
        .filter(|link| !links_never_up.contains(link))
        .map(u32::to_string)
        .collect();
    match down.len() {
        0 => None,
        1 => Some(format!("NVLink {} is down", down[0])),
        _ => Some(format!("NVLinks {} are down", down.join(", "))),
    }
}

#[cfg(test)]
mod tests;
