//! What accounts and users have used: decayed for fair share, plain by calendar period for budgets. Exact in integers,
//! and a function of the runs alone: not of when it is computed, how often, or in which order runs are charged.
//!
//! Use is kept by half-life ("epoch"), each charge times 2^(part of the half-life that had gone by), and halved once for
//! each epoch when it is read. Decides nothing about runs. Words of slurm.conf(5): PriorityDecayHalfLife, raw usage.

use gmodel::policy::{FairShare, Period};
use gmodel::run::NodeShare;
use gmodel::time::{civil_from_days, days_from_civil};
use gmodel::{GpuSlot, NodeId, TimeZone, Timestamp};
use rows::Rows;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

mod rows;

/// Steps of a half-life: within one, all use weighs the same. A step is as many milliseconds as the half-life has seconds.
pub const STEPS: usize = 1000;
/// Use of so many half-lives ago counts nothing any more.
const KEPT_EPOCHS: i64 = 32;
/// Periods of each kind that are kept: the present one and the one before.
const KEPT_PERIODS: usize = 2;
/// Binary places of the weights.
const PLACES: u32 = 30;
const DAY_MILLIS: i64 = 86_400_000;
/// Thousandths of thousandths of GPUs times milliseconds in a thousandth of a GPU for a second.
const MICRO_MILLIS: u128 = 1_000_000;

const WEIGHTS: [u64; STEPS + 1] = weights();
const SUMS: [u64; STEPS + 1] = sums();

/// 2^(step/1000), by multiplying up the thousandth root of two.
const fn weights() -> [u64; STEPS + 1] {
    /// 2^(1/1000) with 62 binary places.
    const ROOT: u128 = 4_614_883_703_693_923_851;
    let mut all = [0; STEPS + 1];
    let mut power: u128 = 1 << 62;
    let mut step = 0;
    while step <= STEPS {
        let half = 1u128 << (61 - PLACES);
        all[step] = ((power + half) >> (62 - PLACES)) as u64;
        power = (power * ROOT + (1 << 61)) >> 62;
        step += 1;
    }
    all
}

const fn sums() -> [u64; STEPS + 1] {
    let mut all = [0; STEPS + 1];
    let mut step = 0;
    while step < STEPS {
        all[step + 1] = all[step] + WEIGHTS[step];
        step += 1;
    }
    all
}

/// The usage of all accounts and users. Rows of the store are its entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageBook {
    /// The entry of the empty user is the account's own.
    rows: Rows,
    /// The zone in which periods begin at midnight. Use that was charged before another zone was set stays where it was.
    zone: Arc<TimeZone>,
}

/// One row: of a user in an account, or (with the empty user) of the account without those below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageEntry {
    /// Of a user: weighted, decaying.
    #[serde(skip_serializing_if = "Decayed::is_empty")]
    pub decayed: Decayed,
    /// Of an account: plain, by kind of period, first day (days since 1970) and GPU type; thousandths of a GPU times
    /// milliseconds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub periods: BTreeMap<Period, BTreeMap<i64, BTreeMap<String, u128>>>,
}

/// Use that is forgotten with a half-life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decayed {
    /// That it was recorded with; 0 forgets nothing.
    half_life_secs: u32,
    /// By number of the half-life since 1970: weighted millionths of a GPU times milliseconds times weights.
    epochs: BTreeMap<i64, u128>,
}

/// What a run uses in each moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Millionths of a GPU of weight 1: GPUs, CPUs and memory, times the QOS's factor.
    pub weighted_micro: u64,
    /// Thousandths of GPUs by type.
    pub gpus: BTreeMap<String, u64>,
}

impl Rate {
    /// Of a run with these shares. `gpu_type` knows the type of a node's GPU.
    pub fn of<'a>(
        shares: &[NodeShare],
        gpu_type: impl Fn(NodeId, GpuSlot) -> Option<&'a str>,
        config: &FairShare,
        usage_factor_milli: u32,
    ) -> Self {
        let type_of = |node, slot| gpu_type(node, slot).unwrap_or("");
        let weight = |node, slot| weight_of_type(config, type_of(node, slot));
        let mut rate = Self {
            weighted_micro: weighted_micro(shares, weight, config, usage_factor_milli),
            gpus: BTreeMap::new(),
        };
        for share in shares {
            for grant in &share.gpus.0 {
                let name = type_of(share.node, grant.slot).to_ascii_lowercase();
                *rate.gpus.entry(name).or_default() += u64::from(grant.part.milli());
            }
        }
        rate
    }
}

impl Rate {
    /// Of what a run held in all: thousandths of GPUs by type.
    pub fn of_amounts(
        cpus: u32,
        mem_bytes: u64,
        gpus: &BTreeMap<String, u64>,
        config: &FairShare,
        usage_factor_milli: u32,
    ) -> Self {
        let weighed = gpus
            .iter()
            .map(|(kind, milli)| u128::from(*milli) * u128::from(weight_of_type(config, kind)));
        let micro = weighed.sum::<u128>()
            + u128::from(cpus) * u128::from(config.cpu_weight_milli) * 1000
            + u128::from(mem_bytes) * u128::from(config.mem_gib_weight_milli) * 1000 / (1 << 30);
        Self {
            weighted_micro: with_factor(micro, usage_factor_milli),
            gpus: gpus.clone(),
        }
    }
}

fn with_factor(micro: u128, usage_factor_milli: u32) -> u64 {
    u64::try_from(micro * u128::from(usage_factor_milli) / 1000).unwrap_or(u64::MAX)
}

/// Millionths of a GPU of weight 1 that a run with these shares uses; `weight` knows a GPU's, in thousandths.
pub fn weighted_micro(
    shares: &[NodeShare],
    weight: impl Fn(NodeId, GpuSlot) -> u32,
    config: &FairShare,
    usage_factor_milli: u32,
) -> u64 {
    let (mut micro, mut mem_bytes) = (0u128, 0u128);
    for share in shares {
        micro += u128::from(share.cpus) * u128::from(config.cpu_weight_milli) * 1000;
        mem_bytes += u128::from(share.mem_bytes);
        for grant in &share.gpus.0 {
            micro += u128::from(grant.part.milli()) * u128::from(weight(share.node, grant.slot));
        }
    }
    micro += mem_bytes * u128::from(config.mem_gib_weight_milli) * 1000 / (1 << 30);
    with_factor(micro, usage_factor_milli)
}

/// Weight of a GPU type for fair share, thousandths.
pub fn weight_of_type(config: &FairShare, gpu_type: &str) -> u32 {
    let weights = &config.gpu_weights_milli;
    weights
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(gpu_type))
        .map_or(1000, |(_, weight)| *weight)
}

/// What is left of a use after so many thousandths of a half-life.
pub fn left_after(used: u64, thousandths: u32) -> u64 {
    let (halvings, step) = (thousandths / STEPS as u32, thousandths as usize % STEPS);
    let left = (u128::from(used) << PLACES) / u128::from(WEIGHTS[step]);
    left.checked_shr(halvings).unwrap_or(0) as u64
}

/// The moment at which use is read, with the half-life it falls in.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    now: Timestamp,
    half_life_secs: u32,
    epoch: i64,
    start: i64,
    /// Weighted milliseconds of the half-life so far.
    weighted: u128,
}

/// What a user's runs have used, to be read at any moment of the half-life in which they were added.
#[derive(Clone, Debug, Default)]
pub struct RunningUse {
    /// Millionths of a GPU that they use together.
    micro: u128,
    /// What they would have used of the half-life before they started.
    not_used: u128,
    /// In half-lives before, each once.
    before: Vec<(i64, u128)>,
}

/// What is left in a half-life of earlier use, with what runs used before it.
#[derive(Clone, Copy, Debug)]
pub struct WeightedUse {
    epoch: i64,
    sum: u128,
}

impl Clock {
    pub fn new(now: Timestamp, half_life_secs: u32) -> Self {
        let (epoch, start) = epoch_of(now.0, half_life_secs);
        Self {
            now,
            half_life_secs,
            epoch,
            start,
            weighted: weighted_millis(now.0 - start, half_life_secs),
        }
    }
}

impl Clock {
    /// Whether runs that were added by another are to be read by this: it is as late or later in the same half-life.
    pub fn goes_on_from(&self, before: &Self) -> bool {
        (self.half_life_secs, self.epoch) == (before.half_life_secs, before.epoch)
            && self.now >= before.now
    }

    pub fn is_after(&self, time: Timestamp) -> bool {
        self.now > time
    }

    /// Weighted milliseconds of the half-life until a time.
    fn weighted_until(&self, time: Timestamp) -> u128 {
        weighted_millis((time.0 - self.start).max(0), self.half_life_secs)
    }

    /// The half-lives from a time on before this one, each with its weighted milliseconds.
    fn each_before(&self, from: Timestamp, tell: impl FnMut(i64, u128)) {
        if from.0 < self.start {
            each_epoch(from, Timestamp(self.start), self.half_life_secs, tell);
        }
    }

    /// Whether nothing has decayed since another reading: what is left of use stays the same within a step of its half-life.
    pub fn is_in_step_of(&self, other: &Self) -> bool {
        let step = |clock: &Self| {
            clock
                .now
                .0
                .checked_div_euclid(i64::from(clock.half_life_secs))
        };
        (self.half_life_secs, step(self)) == (other.half_life_secs, step(other))
    }

    /// Use that was recorded with another half-life falls at every moment.
    pub fn has_half_life_of(&self, used: &Decayed) -> bool {
        used.half_life_secs == self.half_life_secs
    }
}

impl RunningUse {
    /// Adds a run that uses `micro` millionths of a GPU since it started.
    pub fn add(&mut self, clock: &Clock, micro: u64, started: Timestamp) {
        if started >= clock.now {
            return;
        }
        self.micro += u128::from(micro);
        self.not_used += u128::from(micro) * clock.weighted_until(started);
        clock.each_before(started, |epoch, weighted| {
            let used = u128::from(micro) * weighted;
            match self.before.iter_mut().find(|(known, _)| *known == epoch) {
                Some((_, before)) => *before += used,
                None => self.before.push((epoch, used)),
            }
        });
    }

    /// Takes a run away that was added in the same half-life.
    pub fn remove(&mut self, clock: &Clock, micro: u64, started: Timestamp) {
        self.micro -= u128::from(micro);
        self.not_used -= u128::from(micro) * clock.weighted_until(started);
        clock.each_before(started, |epoch, weighted| {
            let known = self.before.iter_mut().find(|(known, _)| *known == epoch);
            known
                .into_iter()
                .for_each(|(_, before)| *before -= u128::from(micro) * weighted);
        });
        self.before.retain(|(_, used)| *used > 0);
    }

    pub fn is_empty(&self) -> bool {
        self.micro == 0 && self.before.is_empty()
    }
}

impl UsageBook {
    /// Charges a run, or a part of one. Parts that follow each other charge exactly as the whole.
    pub fn charge(
        &mut self,
        account: &str,
        user: &str,
        rate: &Rate,
        from: Timestamp,
        to: Timestamp,
        half_life_secs: u32,
    ) {
        if to <= from {
            return;
        }
        self.rows.entry(account, user).decayed.charge(
            rate.weighted_micro,
            from,
            to,
            half_life_secs,
        );
        if rate.gpus.is_empty() {
            return;
        }
        self.rows
            .entry(account, "")
            .charge_periods(&self.zone, &rate.gpus, from, to);
    }

    /// A row from the store.
    pub fn insert(&mut self, account: &str, user: &str, entry: UsageEntry) {
        *self.rows.entry(account, user) = entry;
    }

    /// All rows, by account and user.
    pub fn rows(&self) -> impl Iterator<Item = (&str, &str, &UsageEntry)> {
        self.rows
            .iter()
            .map(|row| (&*row.account, &*row.user, &*row.entry))
    }

    /// The rows that are not as they were in `before`, by account and user.
    pub fn changed_since<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = (&'a str, &'a str, &'a UsageEntry)> {
        self.rows
            .changed_since(&before.rows)
            .map(|row| (&*row.account, &*row.user, &*row.entry))
    }

    /// Of each user with usage: account, user, and what is left of it.
    pub fn users(&self) -> impl Iterator<Item = (&str, &str, &Decayed)> {
        self.rows()
            .filter(|(_, user, _)| !user.is_empty())
            .map(|(account, user, entry)| (account, user, &entry.decayed))
    }

    /// How many of those there are.
    pub fn user_count(&self) -> usize {
        self.rows.users
    }

    /// The rows of users that are not as they were before.
    pub fn users_since<'a>(
        &'a self,
        before: Option<&'a Self>,
    ) -> impl Iterator<Item = (&'a str, &'a str, &'a Arc<UsageEntry>)> {
        let empty = const { &Rows::new() };
        let changed = self
            .rows
            .changed_since(before.map_or(empty, |before| &before.rows));
        changed
            .filter(|row| !row.user.is_empty())
            .map(|row| (&*row.account, &*row.user, &row.entry))
    }

    /// Whether anything was ever charged to an account: then it is closed, not deleted.
    pub fn knows_account(&self, account: &str) -> bool {
        self.rows
            .first_from(account, "")
            .is_some_and(|row| &*row.account == account)
    }

    /// From now on periods begin at midnight there.
    pub fn set_zone(&mut self, zone: Arc<TimeZone>) {
        self.zone = zone;
    }

    pub fn zone(&self) -> &Arc<TimeZone> {
        &self.zone
    }

    /// Beginning and end of the period that holds a time.
    pub fn period_bounds(&self, period: Period, at: Timestamp) -> (Timestamp, Timestamp) {
        period_bounds(&self.zone, period, at)
    }

    /// GPU use charged to an account itself in the period that holds `now`, thousandths of a GPU times milliseconds;
    /// of one type (lower case) or of all.
    pub fn in_period(
        &self,
        account: &str,
        period: Period,
        now: Timestamp,
        gpu_type: Option<&str>,
    ) -> u128 {
        let Some(entry) = self.rows.get(account, "") else {
            return 0;
        };
        let day = period_days(&self.zone, period, now).0;
        let Some(types) = entry.periods.get(&period).and_then(|all| all.get(&day)) else {
            return 0;
        };
        match gpu_type {
            Some(name) => types.get(name).copied().unwrap_or(0),
            None => types.values().sum(),
        }
    }
}

impl UsageEntry {
    fn charge_periods(
        &mut self,
        zone: &TimeZone,
        gpus: &BTreeMap<String, u64>,
        from: Timestamp,
        to: Timestamp,
    ) {
        for period in [
            Period::Day,
            Period::Week,
            Period::Month,
            Period::Quarter,
            Period::Year,
        ] {
            let kept = self.periods.entry(period).or_default();
            let mut at = from;
            while at < to {
                let (day, next) = period_days(zone, period, at);
                // A day that begins with an hour that is skipped begins where the clock goes on.
                let end = to
                    .min(zone.at_local(next.saturating_mul(DAY_MILLIS)))
                    .max(at.plus_millis(1));
                let types = kept.entry(day).or_default();
                for (name, milli) in gpus {
                    *types.entry(name.clone()).or_default() +=
                        u128::from(*milli) * end.since_millis(at) as u128;
                }
                at = end;
            }
            while kept.len() > KEPT_PERIODS {
                kept.pop_first();
            }
        }
    }
}

impl Decayed {
    pub fn is_empty(&self) -> bool {
        self.epochs.is_empty()
    }

    /// Adds `micro` millionths of a GPU from one time to another. With another half-life than before, what there is
    /// is first carried over.
    pub fn charge(&mut self, micro: u64, from: Timestamp, to: Timestamp, half_life_secs: u32) {
        if self.half_life_secs != half_life_secs {
            self.carry_over(to, half_life_secs);
        }
        each_epoch(from, to, half_life_secs, |epoch, weighted| {
            *self.epochs.entry(epoch).or_default() += u128::from(micro) * weighted;
        });
        if let Some(last) = self.epochs.last_key_value().map(|(epoch, _)| *epoch) {
            self.epochs = self.epochs.split_off(&(last - KEPT_EPOCHS));
        }
    }

    /// What is left of it at a time: thousandths of a GPU of weight 1 times seconds.
    pub fn at(&self, now: Timestamp, half_life_secs: u32) -> u64 {
        u64::try_from(self.micro_millis_at(now, half_life_secs) / MICRO_MILLIS).unwrap_or(u64::MAX)
    }

    /// What is left of this and of what runs have used since they began.
    pub fn with(&self, running: &RunningUse, clock: &Clock) -> u64 {
        self.with_known(running, clock, &mut None)
    }

    /// The same for a caller that keeps the result until one of these changes in more than the use of live runs.
    pub fn with_known(
        &self,
        running: &RunningUse,
        clock: &Clock,
        known: &mut Option<WeightedUse>,
    ) -> u64 {
        if self.half_life_secs != clock.half_life_secs {
            if running.is_empty() {
                return self.at(clock.now, clock.half_life_secs);
            }
            let mut carried = self.clone();
            carried.carry_over(clock.now, clock.half_life_secs);
            return carried.with(running, clock);
        }
        let before = match known {
            Some(known) if known.epoch == clock.epoch => known.sum,
            _ => {
                let sum = self.weighted_in(clock.epoch, &running.before);
                *known = Some(WeightedUse {
                    epoch: clock.epoch,
                    sum,
                });
                sum
            }
        };
        let present = running.micro * clock.weighted - running.not_used;
        // Both at once: 128 bits divide slowly.
        let one =
            u128::from(weight(clock.now.0 - clock.start, clock.half_life_secs)) * MICRO_MILLIS;
        u64::try_from((before + present) / one).unwrap_or(u64::MAX)
    }

    fn micro_millis_at(&self, now: Timestamp, half_life_secs: u32) -> u128 {
        if self.half_life_secs != half_life_secs {
            let mut carried = self.clone();
            carried.carry_over(self.latest(now), half_life_secs);
            return carried.micro_millis_at(now, half_life_secs);
        }
        let (epoch, start) = epoch_of(now.0, half_life_secs);
        self.weighted_in(epoch, &[]) / u128::from(weight(now.0 - start, half_life_secs))
    }

    /// What is left of it in a half-life, weighted, with more of some half-lives.
    fn weighted_in(&self, epoch: i64, more: &[(i64, u128)]) -> u128 {
        let halved = |from: i64, use_of: u128| match u32::try_from(epoch - from) {
            Ok(times) if i64::from(times) > KEPT_EPOCHS => 0,
            Ok(times) => use_of >> times,
            // Charged by a clock that has been set back since.
            Err(_) => use_of.saturating_mul(1 << (from - epoch).min(20)),
        };
        let more_of = |epoch: i64| {
            more.iter()
                .find(|(of, _)| *of == epoch)
                .map_or(0, |(_, more)| *more)
        };
        let own: u128 = self
            .epochs
            .iter()
            .map(|(epoch, used)| halved(*epoch, used + more_of(*epoch)))
            .sum();
        let others = more
            .iter()
            .filter(|(epoch, _)| !self.epochs.contains_key(epoch));
        own + others
            .map(|(epoch, used)| halved(*epoch, *used))
            .sum::<u128>()
    }

    /// The end of the newest half-life it was charged in, or `now` if that is earlier.
    fn latest(&self, now: Timestamp) -> Timestamp {
        let Some((epoch, _)) = self.epochs.last_key_value() else {
            return now;
        };
        let length = i64::from(self.half_life_secs).saturating_mul(STEPS as i64);
        if length == 0 {
            now
        } else {
            now.min(Timestamp((epoch + 1).saturating_mul(length)))
        }
    }

    /// What is left at `at` by the old half-life becomes a charge of that moment under the new one.
    fn carry_over(&mut self, at: Timestamp, half_life_secs: u32) {
        let at = self.latest(at);
        let left = self.micro_millis_at(at, self.half_life_secs);
        self.half_life_secs = half_life_secs;
        self.epochs.clear();
        if left > 0 {
            let (epoch, start) = epoch_of(at.0, half_life_secs);
            self.epochs.insert(
                epoch,
                left * u128::from(weight(at.0 - start, half_life_secs)),
            );
        }
    }
}

/// The half-lives of a time, each with its weighted milliseconds.
fn each_epoch(
    from: Timestamp,
    to: Timestamp,
    half_life_secs: u32,
    mut tell: impl FnMut(i64, u128),
) {
    let mut at = from.0;
    while at < to.0 {
        let (epoch, start) = epoch_of(at, half_life_secs);
        let end = match half_life_secs {
            0 => to.0,
            secs => to.0.min(start + i64::from(secs) * STEPS as i64),
        };
        tell(
            epoch,
            weighted_millis(end - start, half_life_secs)
                - weighted_millis(at - start, half_life_secs),
        );
        at = end;
    }
}

/// Number of the half-life that holds a time, and when it began.
fn epoch_of(millis: i64, half_life_secs: u32) -> (i64, i64) {
    if half_life_secs == 0 {
        return (0, 0);
    }
    let length = i64::from(half_life_secs) * STEPS as i64;
    let epoch = millis.div_euclid(length);
    (epoch, epoch * length)
}

/// Of use so long after the beginning of a half-life.
fn weight(offset_millis: i64, half_life_secs: u32) -> u64 {
    if half_life_secs == 0 {
        return WEIGHTS[0];
    }
    WEIGHTS[(offset_millis / i64::from(half_life_secs)).clamp(0, STEPS as i64) as usize]
}

/// The first milliseconds of a half-life, each times its weight.
fn weighted_millis(offset_millis: i64, half_life_secs: u32) -> u128 {
    if half_life_secs == 0 {
        // Of all time: offsets are since 1970.
        return u128::try_from(offset_millis).unwrap_or(0) * u128::from(WEIGHTS[0]);
    }
    let step_millis = i64::from(half_life_secs);
    let step = (offset_millis / step_millis) as usize;
    let rest = (offset_millis % step_millis) as u128;
    u128::from(SUMS[step]) * step_millis as u128 + rest * u128::from(WEIGHTS[step])
}

/// First day of the period that holds a time, and first day of the next, in days since 1970 on a calendar of the place.
pub fn period_days(zone: &TimeZone, period: Period, at: Timestamp) -> (i64, i64) {
    let day = zone.local_millis(at).div_euclid(DAY_MILLIS);
    let (year, month, _) = civil_from_days(day);
    let month_after = |first: u32, months: u32| {
        let month = first + months;
        if month > 12 {
            days_from_civil(year + 1, month - 12, 1)
        } else {
            days_from_civil(year, month, 1)
        }
    };
    match period {
        Period::Day => (day, day + 1),
        Period::Week => {
            // 1970-01-01 was a Thursday.
            let monday = day - (day + 3).rem_euclid(7);
            (monday, monday + 7)
        }
        Period::Month => (days_from_civil(year, month, 1), month_after(month, 1)),
        Period::Quarter => {
            let first = (month - 1) / 3 * 3 + 1;
            (days_from_civil(year, first, 1), month_after(first, 3))
        }
        Period::Year => (days_from_civil(year, 1, 1), days_from_civil(year + 1, 1, 1)),
    }
}

/// Beginning and end of the period that holds a time.
pub fn period_bounds(zone: &TimeZone, period: Period, at: Timestamp) -> (Timestamp, Timestamp) {
    let (first, next) = period_days(zone, period, at);
    (
        zone.at_local(first.saturating_mul(DAY_MILLIS)),
        zone.at_local(next.saturating_mul(DAY_MILLIS)),
    )
}

#[cfg(test)]
mod tests;
