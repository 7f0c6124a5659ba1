//! GPUs that a run holds and does not use: the node's report, the site's idle policy, the run's idle spells.
//! Counts seconds of samples, so no clock can jump. A missing sample is not idleness. Warnings are gcore's.

use crate::ids::RunId;
use crate::record::{Key, Kind};
use crate::{record, words};
use serde::{Deserialize, Serialize};

/// Longest time that any of it may be, seconds.
const MAX_SECS: u32 = 30 * 86_400;

record! {
    /// The idle policy: `[partition.NAME.idle]`, or a QOS's own in its place.
    #[derive(Copy)]
    pub struct IdlePolicy {
        /// What is done about a run with idle GPUs.
        action: IdleAction = IdleAction::Off, Key::new(Kind::Word(IdleAction::WORDS)).needed();
        /// Idle so long, a run is warned, seconds.
        warn_after_secs: u32 = 1800, Key::duration(1, MAX_SECS).in_toml("warn_after");
        /// Idle so long, it is ended; never sooner after its warning than the two differ.
        act_after_secs: u32 = 3600, Key::duration(1, MAX_SECS).in_toml("act_after");
        /// So long after its start nothing counts: data are loaded, programs compiled.
        grace_secs: u32 = 600, Key::duration(0, MAX_SECS).in_toml("grace");
        /// So many of its GPUs have to be idle at the same time: one of [`LEVELS`].
        gpus_percent: u32 = 100, Key::count(1, 100);
        /// Requeued so often in a row and idle again, a job goes back to the queue and is held there.
        max_requeues: u32 = 2, Key::count(0, 1000);
    }
}

/// How far a policy goes; each includes what stands before it, but the last two are alternatives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleAction {
    /// Its runs are exempt.
    #[default]
    Off,
    /// What would have been done is noted in the job's record.
    Report,
    Warn,
    /// Asked for a checkpoint, ended, back to the queue.
    Requeue,
    Cancel,
}

words!(IdleAction {
    Off = "off",
    Report = "report",
    Warn = "warn",
    Requeue = "requeue",
    Cancel = "cancel",
});

impl IdleAction {
    /// Runs are ended by it.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Requeue | Self::Cancel)
    }
}

/// Shares of a run's GPUs, percent: for each, the spells in which so many GPUs were idle together are kept.
pub const LEVELS: [u32; 4] = [25, 50, 75, 100];

/// What one node tells of one run, as of a sample just taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleReport {
    pub run: RunId,
    /// Seconds of the run that lie between samples, of the GPU that was sampled least.
    pub watched_secs: u32,
    /// For each of its GPUs here that shows no use: for how long by now, seconds. Others, and those that tell nothing, are absent.
    pub idle_secs: Vec<u32>,
}

/// How long, for each of [`LEVELS`], that part of a run's GPUs has been idle together, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleLevels(pub [u32; LEVELS.len()]);

impl IdleLevels {
    /// Of `gpus` GPUs, of which those that are idle are given.
    pub fn of(gpus: usize, mut idle_secs: Vec<u32>) -> Self {
        idle_secs.sort_unstable_by(|a, b| b.cmp(a));
        Self(LEVELS.map(|percent| {
            let wanted = (gpus * percent as usize).div_ceil(100);
            wanted
                .checked_sub(1)
                .and_then(|last| idle_secs.get(last).copied())
                .unwrap_or(0)
        }))
    }

    /// For a part of the GPUs, percent; what lies between two levels counts as the upper one.
    pub fn secs(&self, percent: u32) -> u32 {
        LEVELS
            .iter()
            .zip(self.0)
            .find(|(level, _)| **level >= percent)
            .map_or(0, |(_, secs)| secs)
    }

    /// None counts for longer than this.
    #[must_use]
    pub fn at_most(self, secs: u32) -> Self {
        Self(self.0.map(|idle| idle.min(secs)))
    }
}

/// A time in which part of a run's GPUs did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IdleSpell {
    /// At least this part of its GPUs, percent: one of [`LEVELS`].
    pub percent: u32,
    /// Seconds of the run, as far as it was watched, before it began.
    pub from_secs: u32,
    pub secs: u32,
}

/// Spells that are kept of one run at one level: the longest.
const MAX_SPELLS: usize = 8;

/// The spells that end when idleness goes from `before`, of a run watched for so long then, to `now`. A spell of fewer GPUs that is
/// one of more is not told twice.
pub fn ended_spells(before: IdleLevels, watched_secs: u32, now: IdleLevels) -> Vec<IdleSpell> {
    let mut ended: Vec<IdleSpell> = Vec::new();
    for (at, percent) in LEVELS.iter().enumerate().rev() {
        let secs = before.0[at];
        if now.0[at] < secs && ended.last().is_none_or(|last| last.secs != secs) {
            ended.push(IdleSpell {
                percent: *percent,
                from_secs: watched_secs.saturating_sub(secs),
                secs,
            });
        }
    }
    ended
}

/// Adds spells to those kept of a run, in the order of their beginnings; of each level the longest stay.
pub fn keep_spells(kept: &mut Vec<IdleSpell>, new: &[IdleSpell]) {
    for spell in new {
        kept.push(*spell);
        let same = || {
            kept.iter()
                .enumerate()
                .filter(|(_, one)| one.percent == spell.percent)
        };
        if same().count() > MAX_SPELLS {
            let shortest = same().min_by_key(|(_, one)| one.secs).map(|(at, _)| at);
            shortest.map(|at| kept.remove(at));
        }
    }
    kept.sort_by_key(|spell| (spell.from_secs, spell.percent));
}

/// What a policy would have made of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleVerdict {
    /// Seconds of the run, as far as it was watched, after which it would have been warned.
    pub warned_secs: Option<u32>,
    /// And ended.
    pub ended_secs: Option<u32>,
}

impl IdlePolicy {
    /// Idle seconds that count of a run watched for so long: none of the grace.
    pub fn counted_secs(&self, idle: IdleLevels, watched_secs: u32) -> u32 {
        idle.secs(self.gpus_percent)
            .min(watched_secs.saturating_sub(self.grace_secs))
    }

    /// Idle seconds at which a run is ended that was warned at so many.
    pub fn ends_at_secs(&self, warned_secs: u32) -> u32 {
        self.act_after_secs.max(
            warned_secs.saturating_add(self.act_after_secs.saturating_sub(self.warn_after_secs)),
        )
    }

    /// The first of the spells that is long enough counts.
    pub fn judge(&self, spells: &[IdleSpell]) -> IdleVerdict {
        let first = |after_secs: u32| {
            let of_level = spells
                .iter()
                .filter(|spell| spell.percent >= self.gpus_percent);
            let begun = of_level.map(|spell| {
                (
                    spell.from_secs.max(self.grace_secs),
                    spell.from_secs.saturating_add(spell.secs),
                )
            });
            let reached = begun
                .map(|(from, to)| (from.saturating_add(after_secs), to))
                .filter(|(at, to)| at <= to);
            reached.map(|(at, _)| at).min()
        };
        IdleVerdict {
            warned_secs: first(self.warn_after_secs),
            ended_secs: first(self.act_after_secs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policy() -> IdlePolicy {
        IdlePolicy {
            action: IdleAction::Cancel,
            warn_after_secs: 100,
            act_after_secs: 300,
            grace_secs: 50,
            ..IdlePolicy::default()
        }
    }

    #[test]
    fn a_part_of_the_gpus_is_idle_as_long_as_the_last_that_it_takes() {
        let levels = IdleLevels::of(4, vec![10, 300, 200]);
        assert_eq!(levels, IdleLevels([300, 200, 10, 0]));
        assert_eq!(
            (
                levels.secs(100),
                levels.secs(75),
                levels.secs(60),
                levels.secs(1)
            ),
            (0, 10, 10, 300)
        );
        assert_eq!(IdleLevels::of(1, vec![7]), IdleLevels([7; 4]));
        assert_eq!(
            IdleLevels::of(0, Vec::new()),
            IdleLevels::default(),
            "a run without GPUs is not idle"
        );
        assert_eq!(
            IdleLevels::of(3, vec![5, 5]),
            IdleLevels([5, 5, 0, 0]),
            "half of three are two"
        );
    }

    #[test]
    fn the_time_of_the_grace_does_not_count_and_a_warning_leaves_its_time() {
        let idle = |secs| IdleLevels([secs; 4]);
        assert_eq!(policy().counted_secs(idle(40), 40), 0);
        assert_eq!(policy().counted_secs(idle(140), 140), 90);
        assert_eq!(policy().counted_secs(idle(140), 900), 140);
        assert_eq!(
            (policy().ends_at_secs(100), policy().ends_at_secs(5000)),
            (300, 5200),
            "idle long before the policy was there"
        );
    }

    #[test]
    fn spells_are_judged_by_the_first_that_is_long_enough() {
        let spell = |percent, from_secs, secs| IdleSpell {
            percent,
            from_secs,
            secs,
        };
        assert_eq!(
            policy().judge(&[spell(100, 0, 140)]),
            IdleVerdict::default(),
            "90 s after the grace"
        );
        let spells = [
            spell(100, 0, 155),
            spell(50, 0, 4000),
            spell(100, 1000, 300),
        ];
        assert_eq!(
            policy().judge(&spells),
            IdleVerdict {
                warned_secs: Some(150),
                ended_secs: Some(1300)
            }
        );
        let half = IdlePolicy {
            gpus_percent: 50,
            ..policy()
        };
        assert_eq!(
            half.judge(&spells),
            IdleVerdict {
                warned_secs: Some(150),
                ended_secs: Some(350)
            }
        );
    }

    #[test]
    fn a_spell_of_all_gpus_is_told_once_and_one_of_fewer_that_began_before_too() {
        let spell = |percent, from_secs, secs| IdleSpell {
            percent,
            from_secs,
            secs,
        };
        let none = IdleLevels::default();
        assert_eq!(
            ended_spells(IdleLevels([60; 4]), 100, none),
            [spell(100, 40, 60)]
        );
        assert_eq!(
            ended_spells(IdleLevels([90, 90, 60, 60]), 100, none),
            [spell(100, 40, 60), spell(50, 10, 90)]
        );
        assert_eq!(
            ended_spells(
                IdleLevels([90, 90, 60, 60]),
                100,
                IdleLevels([95, 95, 0, 0])
            ),
            [spell(100, 40, 60)]
        );
        assert_eq!(
            ended_spells(IdleLevels([60; 4]), 100, IdleLevels([70; 4])),
            []
        );
    }

    #[test]
    fn of_many_spells_the_longest_stay() {
        let mut kept = Vec::new();
        for at in 0..20 {
            keep_spells(
                &mut kept,
                &[IdleSpell {
                    percent: 100,
                    from_secs: at * 100,
                    secs: 10 + at,
                }],
            );
        }
        assert_eq!(kept.len(), MAX_SPELLS);
        assert_eq!((kept[0].from_secs, kept[MAX_SPELLS - 1].secs), (1200, 29));
    }

    proptest! {
        /// A verdict over the spells of a run is the same as counting second by second.
        #[test]
        fn a_verdict_is_what_a_watch_second_by_second_would_have_found(
            busy in proptest::collection::vec(proptest::bool::weighted(0.02), 1..400),
            warn in 1u32..60, more in 1u32..60, grace in 0u32..100,
        ) {
            let policy = IdlePolicy { warn_after_secs: warn, act_after_secs: warn + more, grace_secs: grace, ..policy() };
            let (mut idle, mut levels, mut spells) = (0, IdleLevels::default(), Vec::new());
            let (mut warned, mut ended) = (None, None);
            for (watched, busy) in (1u32..).zip(&busy) {
                idle = if *busy { 0 } else { idle + 1 };
                let now = IdleLevels([idle; 4]);
                spells.extend(ended_spells(levels, watched - 1, now));
                levels = now;
                let counted = policy.counted_secs(now, watched);
                if counted >= warn { warned = warned.or(Some(watched)); }
                if counted >= warn + more { ended = ended.or(Some(watched)); }
            }
            spells.extend(ended_spells(levels, busy.len() as u32, IdleLevels::default()));
            prop_assert_eq!(policy.judge(&spells), IdleVerdict { warned_secs: warned, ended_secs: ended });
        }
    }
}
