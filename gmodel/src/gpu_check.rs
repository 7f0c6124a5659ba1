//! Checks of GPUs in idle gaps: what a site asks for, what the program that checks one GPU says, and what is kept of it. Pure
//! data with its bounds; when a GPU is checked and which result is an outlier is gcore's, running the program gpud's.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Results of one check of one GPU.
pub const MAX_RESULTS: usize = 32;
/// Longest name, version, class or unit, bytes.
pub const MAX_WORD_BYTES: usize = 64;
/// Longest checksum, bytes.
pub const MAX_SUM_BYTES: usize = 128;
/// Longest sentence, bytes.
pub const MAX_TEXT_BYTES: usize = 300;
/// `program` of a site that has gpupool's own run, which lies beside each node's daemon.
pub const BUILTIN: &str = "builtin";
/// The check that every program stands for itself: whether it came to its end.
pub const PROGRAM: &str = "program";

/// `[diagnostics]` of gpuctld.toml.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Diagnostics {
    pub program: CheckProgram,
    /// A GPU is checked when it has been idle for so long.
    pub idle_after_secs: u32,
    /// And its newest result is so old.
    pub every_secs: u32,
    /// Checks under way in the whole pool; `None`: as many as a tenth of its nodes, one at least.
    pub at_once: Option<u32>,
    /// Nothing is compared with fewer results of one kind.
    pub min_fleet: u32,
    /// Robust z, in thousandths, from which a number is an outlier.
    pub threshold_milli: u32,
    /// Least spread that is believed, in thousandths of the median.
    pub floor_milli: u32,
}

impl Default for Diagnostics {
    fn default() -> Self {
        Self {
            program: CheckProgram::default(),
            idle_after_secs: 600,
            every_secs: 86_400,
            at_once: None,
            min_fleet: 5,
            threshold_milli: 6000,
            floor_milli: 20,
        }
    }
}

/// What a node is to run on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckProgram {
    /// Absolute path on the node, or [`BUILTIN`].
    pub program: String,
    /// The user it runs as; empty: as gpud.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Which checks it is asked for, in its own words; none: all it has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<String>,
    pub timeout_secs: u32,
    /// UUID of another idle GPU of the node, to which the way is measured too.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub peer: String,
}

/// One thing that a program found. A checksum, a number, a verdict, or several of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckResult {
    pub check: String,
    /// Results of other versions are not compared with it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// And those of other classes neither: where boards of one type are built in unlike, as behind other PCIe switches.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub class: String,
    /// UUID of the GPU at the other end, of what is measured between two. Results are compared whatever it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub peer: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sum: String,
    /// In millionths of `unit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_micro: Option<i64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// What the program itself makes of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed: Option<bool>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
}

impl CheckResult {
    /// Whether the program came to its end, and why not.
    pub fn of_program(trouble: &str) -> Self {
        Self {
            check: PROGRAM.into(),
            passed: Some(trouble.is_empty()),
            text: trouble.into(),
            ..Self::default()
        }
    }

    /// Within the bounds, and about something.
    pub fn is_sound(&self) -> bool {
        let words = [
            &self.check,
            &self.version,
            &self.class,
            &self.unit,
            &self.peer,
        ];
        let says_something =
            !self.sum.is_empty() || self.value_micro.is_some() || self.passed.is_some();
        !self.check.is_empty()
            && words.iter().all(|word| {
                word.len() <= MAX_WORD_BYTES
                    && word.chars().all(|c| c.is_ascii_graphic() || c == ' ')
            })
            && self.sum.len() <= MAX_SUM_BYTES
            && self.sum.chars().all(|c| c.is_ascii_graphic())
            && self.text.len() <= MAX_TEXT_BYTES
            && says_something
    }

    /// Which way a number is worse.
    pub fn worse(&self) -> WorseDirection {
        match self.unit.as_str() {
            unit if unit.ends_with("/s") || unit.ends_with("FLOPS") => WorseDirection::Lower,
            "s" | "ms" | "us" | "ns" => WorseDirection::Higher,
            _ => WorseDirection::Either,
        }
    }

    /// `25.3 GB/s`, `9f3a01c2`, `passed`; several with commas between them. `398 GB/s to GPU-1f..` of what is between two.
    pub fn words(&self) -> String {
        let to = if self.peer.is_empty() {
            String::new()
        } else {
            format!(" to {}", self.peer)
        };
        let number = self.value_micro.map(|micro| {
            format!("{} {}", micro_text(micro), self.unit)
                .trim_end()
                .to_owned()
                + &to
        });
        let sum = (!self.sum.is_empty()).then(|| self.sum.clone());
        let passed = self.passed.map(|passed| {
            if passed {
                "passed".to_owned()
            } else {
                "failed".to_owned()
            }
        });
        let text = (!self.text.is_empty()).then(|| self.text.clone());
        [number, sum, passed, text]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(", ")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorseDirection {
    Lower,
    Higher,
    Either,
}

/// A number of millionths with at most three digits behind the point.
pub fn micro_text(micro: i64) -> String {
    let sign = if micro < 0 { "-" } else { "" };
    let milli = micro.unsigned_abs().saturating_add(500) / 1000;
    let text = format!("{sign}{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// How an order to check a GPU ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckReport {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<CheckResult>,
    /// The program was run and did not come to its end: it crashed, hung, or wrote what is no result.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trouble: String,
    /// Nothing was found out: it gave way to a job, or could not be run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stopped: String,
    pub took_ms: u64,
}

impl CheckReport {
    pub fn stopped(why: impl Into<String>) -> Self {
        Self {
            stopped: clipped(&why.into()),
            ..Self::default()
        }
    }

    /// Bounds a report from an untrusted node, and adds the program's own result.
    pub fn sound(mut self) -> Self {
        self.results
            .retain(|result| result.is_sound() && result.check != PROGRAM);
        self.results.truncate(MAX_RESULTS);
        (self.trouble, self.stopped) = (clipped(&self.trouble), clipped(&self.stopped));
        if self.stopped.is_empty() {
            self.results.push(CheckResult::of_program(&self.trouble));
        }
        self
    }

    /// One line for a history.
    pub fn words(&self) -> String {
        let shown = |result: &CheckResult| format!("{} {}", result.check, result.words());
        let own = self
            .results
            .iter()
            .filter(|result| result.check != PROGRAM || result.passed == Some(false));
        let found: Vec<String> = own.map(shown).collect();
        let took = format!("{}.{} s", self.took_ms / 1000, self.took_ms % 1000 / 100);
        if !self.stopped.is_empty() {
            format!("not run to its end: {}", self.stopped)
        } else if found.is_empty() {
            format!("it ended, and found nothing, in {took}")
        } else {
            format!("{}; in {took}", found.join("; "))
        }
    }
}

/// As much of a sentence as is kept.
pub fn clipped(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// The record of a GPU's checks, by which it is judged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuChecks {
    /// When its program was last run, or could not be.
    pub tried: Timestamp,
    /// That time it came to results, or to none though it was run.
    pub told: bool,
    /// Why nothing was found out that time; empty when something was.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stopped: String,
    /// A failed check took the GPU out of service: nothing more follows until an operator returns it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ordered_out: bool,
    /// It is to go out and the breaker does not allow it: that was said.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub held_back: bool,
    /// The newest of each check.
    pub kept: Vec<GpuCheckRecord>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuCheckRecord {
    pub result: CheckResult,
    pub at: Timestamp,
    /// The checksum before it, of the same version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub before: String,
    /// Why it is an outlier; empty when it is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub odd: String,
    /// Outliers that count: of numbers one after the other, of checksums also with right ones between them.
    pub strikes: u32,
    /// The result that was the first of those.
    pub odd_since: Timestamp,
    /// Results in a row that are none.
    pub good: u32,
    /// The outlier before it was of the same way: the GPU at the other end may as well be to blame.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub same_way: bool,
}

/// So many outliers of one check make a GPU one that is not trusted.
pub const STRIKES: u32 = 2;
/// A wrong checksum is forgotten after so many right ones: what computes wrong does so now and then.
pub const FORGIVEN_AFTER: u32 = 30;

impl GpuChecks {
    /// Takes a report.
    pub fn take(&mut self, report: &CheckReport, at: Timestamp) {
        (self.tried, self.told) = (at, report.stopped.is_empty());
        self.stopped.clone_from(&report.stopped);
        for result in &report.results {
            let old = self
                .kept
                .iter()
                .position(|kept| kept.result.check == result.check)
                .map(|place| self.kept.remove(place));
            let mut kept = GpuCheckRecord {
                result: result.clone(),
                at,
                ..GpuCheckRecord::default()
            };
            if let Some(old) = old.filter(|old| old.result.version == result.version) {
                (kept.strikes, kept.odd_since, kept.good) =
                    (old.strikes, old.odd_since, old.good + 1);
                kept.same_way = !old.odd.is_empty()
                    && !old.result.peer.is_empty()
                    && old.result.peer == result.peer;
                kept.before = old.result.sum;
                let forgiven = if kept.result.sum.is_empty() {
                    1
                } else {
                    FORGIVEN_AFTER
                };
                if kept.good > forgiven {
                    kept.strikes = 0;
                }
            }
            if self.kept.len() < 2 * MAX_RESULTS {
                self.kept.push(kept);
            }
        }
        self.kept
            .sort_by(|a, b| a.result.check.cmp(&b.result.check));
    }

    /// Takes a judgement of the newest result of a check.
    pub fn judge(&mut self, check: &str, odd: &str) {
        let Some(kept) = self.kept.iter_mut().find(|kept| kept.result.check == check) else {
            return;
        };
        odd.clone_into(&mut kept.odd);
        if !odd.is_empty() {
            if kept.strikes == 0 {
                kept.odd_since = kept.at;
            }
            (kept.strikes, kept.good) = (kept.strikes + u32::from(!kept.same_way), 0);
        }
    }

    /// Nothing that was held against it counts any more: it was returned.
    pub fn forgive(&mut self) {
        (self.ordered_out, self.held_back) = (false, false);
        for kept in &mut self.kept {
            (kept.strikes, kept.odd) = (0, String::new());
        }
    }

    /// It was an outlier, and is to be checked again soon.
    pub fn is_suspect(&self) -> bool {
        self.suspicions().next().is_some()
    }

    /// All that it is suspected for are ways to other GPUs.
    pub fn only_ways_are_suspect(&self) -> bool {
        self.is_suspect() && self.suspicions().all(|kept| !kept.result.peer.is_empty())
    }

    fn suspicions(&self) -> impl Iterator<Item = &GpuCheckRecord> {
        self.kept
            .iter()
            .filter(|kept| !kept.odd.is_empty() && kept.strikes < STRIKES && !kept.same_way)
    }

    /// The way that was last measured from it.
    pub fn last_way(&self) -> Option<&GpuCheckRecord> {
        self.kept.iter().find(|kept| !kept.result.peer.is_empty())
    }

    /// The check of which it was an outlier too often to be chance, where nothing was done about it.
    pub fn condemned(&self) -> Option<&GpuCheckRecord> {
        self.kept
            .iter()
            .filter(|_| !self.ordered_out)
            .find(|kept| kept.strikes >= STRIKES && !kept.odd.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(check: &str, sum: &str) -> CheckResult {
        CheckResult {
            check: check.into(),
            sum: sum.into(),
            ..CheckResult::default()
        }
    }

    fn report(results: Vec<CheckResult>) -> CheckReport {
        CheckReport {
            results,
            ..CheckReport::default()
        }
        .sound()
    }

    #[test]
    fn what_is_out_of_bounds_or_says_nothing_is_dropped_and_the_program_speaks_for_itself() {
        let long = CheckResult {
            text: "x".repeat(MAX_TEXT_BYTES + 1),
            ..sum("a", "1")
        };
        let forged = CheckResult {
            passed: Some(false),
            check: PROGRAM.into(),
            ..CheckResult::default()
        };
        let silent = CheckResult {
            check: "b".into(),
            ..CheckResult::default()
        };
        let odd = sum("line\nbreak", "1");
        let many = (0..100).map(|at| sum(&format!("c{at}"), "1"));
        let sound = report(
            [long, forged, silent, odd]
                .into_iter()
                .chain(many)
                .collect(),
        );
        assert_eq!(sound.results.len(), MAX_RESULTS + 1);
        assert_eq!(sound.results.last(), Some(&CheckResult::of_program("")));
        assert_eq!(CheckReport::stopped("a job came").sound().results, []);
        let cut = CheckReport {
            trouble: "ü".repeat(MAX_TEXT_BYTES),
            ..CheckReport::default()
        }
        .sound();
        assert_eq!(cut.trouble.len(), MAX_TEXT_BYTES);
        assert_eq!(cut.results[0].passed, Some(false));
    }

    #[test]
    fn a_second_wrong_checksum_condemns_also_after_right_ones_and_a_number_only_in_a_row() {
        let mut checks = GpuChecks::default();
        let speed = CheckResult {
            check: "pcie".into(),
            value_micro: Some(1),
            unit: "GB/s".into(),
            ..CheckResult::default()
        };
        let mut round = |odd_sum: &str, odd_speed: &str| {
            checks.take(
                &report(vec![sum("arith", "1"), speed.clone()]),
                Timestamp(1),
            );
            [("arith", odd_sum), ("pcie", odd_speed)]
                .iter()
                .for_each(|(check, odd)| checks.judge(check, odd));
            (
                checks.condemned().map(|kept| kept.result.check.clone()),
                checks.is_suspect(),
            )
        };
        assert_eq!(round("", ""), (None, false));
        assert_eq!(round("", "slow"), (None, true));
        assert_eq!(round("", ""), (None, false));
        assert_eq!(round("", ""), (None, false));
        assert_eq!(round("wrong", "slow"), (None, true));
        assert_eq!(round("", ""), (None, false));
        assert_eq!(round("wrong", "").0.as_deref(), Some("arith"));
        checks.forgive();
        assert!(!checks.is_suspect() && checks.condemned().is_none());
    }

    #[test]
    fn a_slow_way_condemns_only_when_one_to_another_gpu_is_slow_too() {
        let way = |peer: &str| CheckResult {
            check: "copy.to-peer".into(),
            peer: peer.into(),
            value_micro: Some(1),
            unit: "GB/s".into(),
            ..CheckResult::default()
        };
        let verdicts = |ways: &[(&str, &str)]| {
            let mut checks = GpuChecks::default();
            let mut round = |(peer, odd): &(&str, &str)| {
                checks.take(&report(vec![way(peer)]), Timestamp(1));
                checks.judge("copy.to-peer", odd);
                (checks.is_suspect(), checks.condemned().is_some())
            };
            ways.iter().map(&mut round).collect::<Vec<_>>()
        };
        assert_eq!(
            verdicts(&[("b", "slow"), ("c", "slow")]),
            [(true, false), (false, true)]
        );
        assert_eq!(
            verdicts(&[("b", "slow"), ("c", ""), ("b", "slow")]),
            [(true, false), (false, false), (true, false)],
            "in a row"
        );
        assert_eq!(
            verdicts(&[("b", "slow"), ("b", "slow"), ("b", "slow")]),
            [(true, false), (false, false), (false, false)],
            "b may be to blame"
        );
        assert_eq!(
            verdicts(&[("b", "slow"), ("b", "slow"), ("c", "slow")]),
            [(true, false), (false, false), (false, true)]
        );
        assert_eq!(way("GPU-b").words(), "0 GB/s to GPU-b");
    }

    #[test]
    fn a_wrong_checksum_is_forgiven_after_enough_right_ones() {
        let mut checks = GpuChecks::default();
        let mut round = |odd: &str| {
            checks.take(&report(vec![sum("arith", "1")]), Timestamp(1));
            checks.judge("arith", odd);
            checks.condemned().is_some()
        };
        assert!(!round("wrong"));
        assert!((0..FORGIVEN_AFTER).all(|_| !round("")));
        assert!(!round("wrong"), "the one before was forgiven");
        assert!(round("wrong"));
    }

    #[test]
    fn results_in_words() {
        let result = CheckResult {
            check: "pcie".into(),
            value_micro: Some(25_340_400),
            unit: "GB/s".into(),
            passed: Some(true),
            ..CheckResult::default()
        };
        assert_eq!(result.words(), "25.34 GB/s, passed");
        assert_eq!(
            (micro_text(-1_500), micro_text(0), micro_text(999_999_500)),
            ("-0.002".into(), "0".into(), "1000".into())
        );
        let mut report = report(vec![result]);
        report.took_ms = 4_250;
        assert_eq!(report.words(), "pcie 25.34 GB/s, passed; in 4.2 s");
    }
}
