//! Which check results differ from the results of other GPUs of the kind: checksums by majority, numbers by a
//! robust z from median and MAD. Pure, in integers. Never acts: an outlier is checked again first.
//!
//! Sources: MAD times 1.4826 estimates the deviation of normal values (Rousseeuw and Croux 1993, Alternatives
//! to the Median Absolute Deviation); the z from it (Iglewicz and Hoaglin 1993, How to Detect and Handle
//! Outliers), with a threshold far above their 3.5, since a fleet is checked every day. Cores that sometimes
//! compute wrong and raise no error: Hochschild et al. 2021, Cores that don't count; Dixit et al. 2021, Silent
//! Data Corruptions at Scale.

use gmodel::gpu_check::{CheckResult, Diagnostics, PROGRAM, WorseDirection, micro_text};
use std::collections::BTreeMap;

/// At most this part of a kind are outliers: more of them are another kind or another version.
const MOST_PARTS: usize = 5;

/// The newest result of one GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample<'a> {
    pub result: &'a CheckResult,
    /// The GPU's own checksum before that.
    pub before: &'a str,
}

/// Why each sample is an outlier, in the order of the samples; `None`: it is not. All samples are of one
/// check, version and class, and of one GPU type, which the text names.
pub(crate) fn judge(
    samples: &[Sample<'_>],
    kind: &str,
    terms: &Diagnostics,
) -> Vec<Option<String>> {
    let fleet = samples.len() >= terms.min_fleet.max(2) as usize;
    let sums = by_majority(samples, kind, fleet);
    let values = by_median(samples, kind, fleet, terms);
    let verdicts = by_verdict(samples, kind, fleet);
    let merged = sums.into_iter().zip(values).zip(verdicts);
    merged
        .map(|((sum, value), verdict)| verdict.or(sum).or(value))
        .collect()
}

fn most(samples: usize) -> usize {
    (samples / MOST_PARTS).max(1)
}

/// The checksum of most samples is right. Without a fleet a GPU is compared with itself.
fn by_majority(samples: &[Sample<'_>], kind: &str, fleet: bool) -> Vec<Option<String>> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for sample in samples
        .iter()
        .filter(|sample| !sample.result.sum.is_empty())
    {
        *counts.entry(&sample.result.sum).or_default() += 1;
    }
    let all: usize = counts.values().sum();
    let top = counts
        .iter()
        .max_by_key(|(_, count)| **count)
        .map(|(sum, count)| (*sum, *count));
    let majority = top.filter(|(_, count)| fleet && all - count <= most(all) && 2 * count > all);
    samples
        .iter()
        .map(|Sample { result, before }| match majority {
            _ if result.sum.is_empty() => None,
            Some((right, count)) => (result.sum != right).then(|| {
                format!(
                    "checksum {}; {count} of {all} GPUs of type {kind} have {right}",
                    result.sum
                )
            }),
            None if fleet || before.is_empty() || *before == result.sum => None,
            None => Some(format!(
                "checksum {}; the time before it was {before}",
                result.sum
            )),
        })
        .collect()
}

/// The distance of a number from the median, in units of the kind's own variation.
fn by_median(
    samples: &[Sample<'_>],
    kind: &str,
    fleet: bool,
    terms: &Diagnostics,
) -> Vec<Option<String>> {
    let mut values: Vec<i64> = samples
        .iter()
        .filter_map(|sample| sample.result.value_micro)
        .collect();
    let nobody = || vec![None; samples.len()];
    if !fleet || values.len() < terms.min_fleet as usize {
        return nobody();
    }
    let count = values.len();
    let median = middle(&mut values);
    let mut deviations: Vec<i64> = values
        .iter()
        .map(|value| value.saturating_sub(median).saturating_abs())
        .collect();
    let spread = i128::from(middle(&mut deviations)) * 14_826 / 10_000;
    let floor = i128::from(median.saturating_abs()) * i128::from(terms.floor_milli) / 1000;
    let spread = spread.max(floor).max(1);
    let found = samples.iter().map(|Sample { result, .. }| {
        let off = i128::from(result.value_micro?) - i128::from(median);
        let z_milli = off * 1000 / spread;
        let threshold = i128::from(terms.threshold_milli);
        let odd = match result.worse() {
            WorseDirection::Lower => z_milli <= -threshold,
            WorseDirection::Higher => z_milli >= threshold,
            WorseDirection::Either => z_milli.abs() >= threshold,
        };
        let text = |micro: i64| {
            format!("{} {}", micro_text(micro), result.unit)
                .trim_end()
                .to_owned()
        };
        let z = micro_text(i64::try_from(z_milli * 1000).unwrap_or(i64::MAX));
        odd.then(|| {
            format!(
                "{}; the median of {count} GPUs of type {kind} is {} (z {z})",
                text(off_value(result)),
                text(median)
            )
        })
    });
    let found: Vec<Option<String>> = found.collect();
    if found.iter().flatten().count() > most(count) {
        nobody()
    } else {
        found
    }
}

fn off_value(result: &CheckResult) -> i64 {
    result.value_micro.unwrap_or_default()
}

/// The program's own verdict counts unless most GPUs fail: then the program is at fault. A hang counts only if
/// the program ends on other GPUs.
fn by_verdict(samples: &[Sample<'_>], kind: &str, fleet: bool) -> Vec<Option<String>> {
    let told = samples
        .iter()
        .filter(|sample| sample.result.passed.is_some())
        .count();
    let failed = samples
        .iter()
        .filter(|sample| sample.result.passed == Some(false))
        .count();
    let alone = failed <= most(told);
    samples
        .iter()
        .map(|Sample { result, .. }| {
            let counts = match result.check == PROGRAM {
                true => fleet && alone,
                false => !fleet || alone,
            };
            (counts && result.passed == Some(false)).then(|| {
                let said = if result.text.is_empty() {
                    "failed"
                } else {
                    &result.text
                };
                format!(
                    "{said}; {} of {told} GPUs of type {kind} passed",
                    told - failed
                )
            })
        })
        .collect()
}

/// The median; of an even number the lower of the two in the middle.
fn middle(values: &mut [i64]) -> i64 {
    let at = (values.len() - 1) / 2;
    *values.select_nth_unstable(at).1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Diagnostics {
        Diagnostics::default()
    }

    fn sum(sum: &str) -> CheckResult {
        CheckResult {
            check: "arith".into(),
            sum: sum.into(),
            ..CheckResult::default()
        }
    }

    fn speed(micro: i64, unit: &str) -> CheckResult {
        CheckResult {
            check: "pcie".into(),
            value_micro: Some(micro),
            unit: unit.into(),
            ..CheckResult::default()
        }
    }

    fn verdict(check: &str, passed: bool) -> CheckResult {
        CheckResult {
            check: check.into(),
            passed: Some(passed),
            ..CheckResult::default()
        }
    }

    /// Indices of the outliers.
    fn odd(results: &[CheckResult]) -> Vec<usize> {
        let samples: Vec<Sample> = results
            .iter()
            .map(|result| Sample { result, before: "" })
            .collect();
        let judged = judge(&samples, "h100", &terms());
        judged
            .iter()
            .enumerate()
            .filter_map(|(at, odd)| odd.as_ref().map(|_| at))
            .collect()
    }

    #[test]
    fn one_that_computes_otherwise_than_most_is_an_outlier_and_the_evidence_has_both() {
        let mut results = vec![sum("77ab"); 24];
        assert_eq!(odd(&results), [0; 0]);
        results[7] = sum("9f3a");
        assert_eq!(odd(&results), [7]);
        let samples: Vec<Sample> = results
            .iter()
            .map(|result| Sample { result, before: "" })
            .collect();
        let words = judge(&samples, "h100", &terms()).remove(7).unwrap();
        assert_eq!(words, "checksum 9f3a; 23 of 24 GPUs of type h100 have 77ab");
    }

    #[test]
    fn where_many_differ_it_is_not_the_gpus_and_too_few_are_not_compared() {
        let halves: Vec<CheckResult> = (0..24)
            .map(|at| sum(if at % 3 == 0 { "new" } else { "old" }))
            .collect();
        assert_eq!(odd(&halves), [0; 0]);
        assert_eq!(
            odd(&[sum("a"), sum("a"), sum("a"), sum("b")]),
            [0; 0],
            "four are no fleet"
        );
        assert_eq!(
            odd(&[sum("a"), sum("a"), sum("a"), sum("a"), sum("b")]),
            [4]
        );
    }

    #[test]
    fn a_gpu_without_a_fleet_is_compared_with_itself() {
        let (same, other) = (sum("a"), sum("b"));
        let one = |result: &CheckResult, before: &str| {
            judge(&[Sample { result, before }], "h100", &terms()).remove(0)
        };
        assert_eq!(one(&same, "a"), None);
        assert_eq!(one(&same, ""), None);
        assert_eq!(
            one(&other, "a").unwrap(),
            "checksum b; the time before it was a"
        );
    }

    #[test]
    fn a_straggler_is_an_outlier_on_the_bad_side_only() {
        let fleet = |unit: &str, own: i64| {
            let mut all: Vec<CheckResult> = (0..20)
                .map(|at| speed(25_000_000 + 20_000 * at, unit))
                .collect();
            all.push(speed(own, unit));
            odd(&all)
        };
        assert_eq!(fleet("GB/s", 12_500_000), [20]);
        assert_eq!(fleet("GB/s", 50_000_000), [0; 0], "faster is no fault");
        assert_eq!(fleet("ms", 50_000_000), [20]);
        assert_eq!(fleet("ms", 12_500_000), [0; 0]);
        assert_eq!(fleet("", 12_500_000), [20]);
        // A spread of two hundredths of the median is assumed at least: the bound is six times that.
        assert_eq!(fleet("GB/s", 22_600_000), [0; 0]);
        assert_eq!(fleet("GB/s", 21_900_000), [20]);
    }

    #[test]
    fn a_fleet_of_two_speeds_has_no_stragglers_and_extremes_do_not_overflow() {
        let halves: Vec<CheckResult> = (0..20)
            .map(|at| speed(if at < 14 { 25_000_000 } else { 12_500_000 }, "GB/s"))
            .collect();
        assert_eq!(odd(&halves), [0; 0]);
        let wild: Vec<CheckResult> = [i64::MAX, i64::MIN, 0, 0, 0, 0, 0, 0, 0, 0]
            .into_iter()
            .map(|micro| speed(micro, ""))
            .collect();
        assert_eq!(odd(&wild), [0, 1]);
    }

    #[test]
    fn a_verdict_counts_unless_most_have_it_and_a_hang_only_beside_others_that_end() {
        assert_eq!(odd(&[verdict("memory", false)]), [0]);
        assert_eq!(
            odd(&vec![verdict("memory", false); 8]),
            [0; 0],
            "a program that fails everywhere"
        );
        assert_eq!(odd(&[verdict(PROGRAM, false)]), [0; 0]);
        let mut ends = vec![verdict(PROGRAM, true); 8];
        ends.push(verdict(PROGRAM, false));
        assert_eq!(odd(&ends), [8]);
    }
}
