//! How long the scheduler takes for what the Speed table promises: passes over long queues, filling idle nodes, arrays of
//! a million tasks, verdicts. Each row stands beside a naive pass over the same cluster and queue, and beside fixed work
//! of the same minute; it has no clock of its own.

use crate::prng::Prng;
use crate::test_bed::{
    NAIVE_JOBS, TestBed, borrowing, busy, fill, gang, gang_never, guaranteed, kept_idle, limited,
    naive_pass, nothing, queue_of_100, reclaim, why_limited, why_the_last,
};
use gcore::ctl::{Mirror, snapshot};
use gmodel::policy::Backfill;
use gsched::Engine;
use serde::Serialize;

/// Nanoseconds since some moment.
pub type Clock<'a> = &'a mut dyn FnMut() -> u64;

/// One measured row.
#[derive(Clone, Debug, Serialize)]
pub struct BenchRow {
    pub name: String,
    pub what: String,
    /// What the table promises; `None` where it promises nothing.
    pub promised_ms: Option<f64>,
    /// Median of the rounds: snapshot and plan together, and the snapshot alone.
    pub median_ms: f64,
    pub snapshot_ms: f64,
    /// The same again at once, with what the engine keeps from pass to pass.
    pub warm_ms: f64,
    pub least_ms: f64,
    pub most_ms: f64,
    pub rounds: usize,
    /// The naive pass over the first jobs, times how many more there are; `None` where it means nothing.
    pub naive_ms: Option<f64>,
    /// The fixed work just before and just after.
    pub floor_ms: (f64, f64),
    /// What the pass decided, to see that it was not idle.
    pub decided: String,
}

impl BenchRow {
    pub fn kept(&self) -> Option<bool> {
        self.promised_ms.map(|promised| self.median_ms <= promised)
    }
    /// The machine did not do the same work in the same time before and after.
    pub fn noisy(&self) -> bool {
        let (before, after) = self.floor_ms;
        before.max(after) > 1.5 * before.min(after)
    }
}

/// A row to measure.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    pub name: &'static str,
    pub what: &'static str,
    pub promised_ms: Option<f64>,
    rounds: usize,
    run: fn() -> TestBed,
    /// How the next round differs, before it is timed.
    between: fn(&mut TestBed),
    /// Rounds follow each other as passes of a daemon do; otherwise each begins with nothing kept.
    warm: bool,
}

const BUSY: &str =
    "10,000 pending (1-8 GPUs, 1-4 nodes, 10 min to 24 h), 1,024 nodes of 8 GPUs all busy";

/// All rows, in the order of the table.
pub const BENCHES: [Bench; 17] = [
    row(
        "pass-k1",
        BUSY,
        Some(50.0),
        9,
        || busy(1024, 10_000, Backfill::EASY),
        nothing,
    ),
    row(
        "pass-k100",
        BUSY,
        Some(150.0),
        9,
        || busy(1024, 10_000, Backfill::First(100)),
        nothing,
    ),
    row(
        "pass-all",
        BUSY,
        Some(5000.0),
        3,
        || busy(1024, 10_000, Backfill::All),
        nothing,
    ),
    row(
        "pass-quotas",
        "the first but one of 8 accounts with unequal shares, each guaranteed a sixteenth: half of what runs is borrowed",
        Some(150.0),
        9,
        borrowing,
        nothing,
    ),
    row(
        "pass-headroom",
        "the same 10,000 without accounts where 16 nodes are idle, and as many GPUs are kept so for urgent work",
        Some(150.0),
        9,
        kept_idle,
        nothing,
    ),
    row(
        "fill",
        "filling 1,024 idle nodes with 1,024 jobs of 8 GPUs",
        Some(50.0),
        9,
        fill,
        nothing,
    ),
    row(
        "long-queue",
        "100,000 pending of 2,000 shapes, 10,000 nodes of 8 GPUs all busy: all considered",
        Some(1000.0),
        5,
        || busy(10_000, 100_000, Backfill::First(100)),
        nothing,
    ),
    Bench {
        warm: true,
        ..row(
            "next-start",
            "the same, after one job ends: the next start is decided, as gpuctld's planner does",
            Some(5.0),
            9,
            || busy(10_000, 100_000, Backfill::First(100)),
            TestBed::end_one,
        )
    },
    Bench {
        warm: true,
        ..row(
            "next-limited",
            "the same with 8 accounts, limits, QOS and a maintenance window",
            Some(5.0),
            9,
            limited,
            TestBed::end_one,
        )
    },
    Bench {
        warm: true,
        ..row(
            "next-quotas",
            "the same with 8 accounts whose runs hold what they are guaranteed, all GPUs together",
            Some(5.0),
            9,
            guaranteed,
            TestBed::end_one,
        )
    },
    row(
        "arrays",
        "1,000,000 array tasks in 100 arrays, 1,024 nodes all busy",
        None,
        9,
        || queue_of_100(10_000),
        nothing,
    ),
    row(
        "jobs-100",
        "the same with 100 jobs instead of arrays",
        None,
        9,
        || queue_of_100(0),
        nothing,
    ),
    row(
        "gang",
        "a gang of 512 nodes where 511 are free: the verdict",
        Some(100.0),
        9,
        gang,
        nothing,
    ),
    row(
        "gang-never",
        "a gang of 512 nodes on 511: refused when it is submitted",
        Some(100.0),
        9,
        gang_never,
        nothing,
    ),
    row(
        "reclaim",
        "one GPU reclaimed on a full cluster of 500 nodes of 8 GPUs",
        Some(50.0),
        9,
        reclaim,
        nothing,
    ),
    row(
        "why",
        "gq --why of the last of 10,000 pending on 1,024 nodes of 8 GPUs all busy",
        None,
        9,
        why_the_last,
        nothing,
    ),
    row(
        "why-limited",
        "the same where 16 accounts may hold 256 GPUs and run 20 jobs each",
        None,
        9,
        why_limited,
        nothing,
    ),
];

const fn row(
    name: &'static str,
    what: &'static str,
    promised_ms: Option<f64>,
    rounds: usize,
    run: fn() -> TestBed,
    between: fn(&mut TestBed),
) -> Bench {
    Bench {
        name,
        what,
        promised_ms,
        rounds,
        run,
        between,
        warm: false,
    }
}

impl Bench {
    /// Measures it. The clock is asked around passes and the fixed work only.
    pub fn measure(&self, clock: Clock) -> BenchRow {
        let mut bed = (self.run)();
        bed.quick = self.warm;
        let mut times = Vec::new();
        let (mut snapshots, mut again) = (Vec::new(), Vec::new());
        let mut decided = String::new();
        let floor_before = floor(clock);
        for _ in 0..self.rounds {
            (self.between)(&mut bed);
            if !self.warm {
                bed.engine = Engine::default();
                bed.mirror = Mirror::default();
            }
            let (whole, picture, words) = bed.round(clock);
            times.push(whole);
            snapshots.push(picture);
            decided = words;
            again.push(bed.round(clock).0);
        }
        let naive_ms = bed.naive.then(|| {
            let picture = snapshot(&bed.state, bed.now);
            let begun = clock();
            std::hint::black_box(naive_pass(&picture, NAIVE_JOBS));
            let all =
                picture.pending.len() as f64 / picture.pending.len().clamp(1, NAIVE_JOBS) as f64;
            (millis(clock() - begun) * all).round()
        });
        let floor_after = floor(clock);
        times.sort_unstable();
        snapshots.sort_unstable();
        again.sort_unstable();
        BenchRow {
            name: self.name.into(),
            what: self.what.into(),
            promised_ms: self.promised_ms,
            median_ms: millis(times[times.len() / 2]),
            snapshot_ms: millis(snapshots[snapshots.len() / 2]),
            warm_ms: millis(again[again.len() / 2]),
            least_ms: millis(times[0]),
            most_ms: millis(times[times.len() - 1]),
            rounds: self.rounds,
            naive_ms,
            floor_ms: (floor_before, floor_after),
            decided,
        }
    }
}

fn millis(nanos: u64) -> f64 {
    (nanos as f64 / 1e3).round() / 1e3
}

/// Fixed work: 64 MiB copied and a million numbers sorted, milliseconds.
fn floor(clock: Clock) -> f64 {
    let mut prng = Prng::new(1, 1);
    let mut numbers: Vec<u64> = (0..1_000_000).map(|_| prng.draw()).collect();
    let bytes = vec![7u8; 64 << 20];
    let begun = clock();
    std::hint::black_box(bytes.clone());
    numbers.sort_unstable();
    std::hint::black_box(&numbers);
    millis(clock() - begun)
}

/// The rows as a table.
pub fn table(rows: &[BenchRow]) -> String {
    let mut lines: Vec<Vec<String>> = vec![
        [
            "row",
            "promised ms",
            "median ms",
            "least",
            "most",
            "snapshot",
            "warm",
            "naive ms",
            "floor ms",
            "kept",
            "",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for row in rows {
        let optional = |value: Option<f64>| value.map_or_else(|| "-".into(), |ms| format!("{ms}"));
        let kept = row
            .kept()
            .map_or("-", |kept| if kept { "yes" } else { "NO" });
        lines.push(vec![
            row.name.clone(),
            optional(row.promised_ms),
            format!("{:.3}", row.median_ms),
            format!("{:.3}", row.least_ms),
            format!("{:.3}", row.most_ms),
            format!("{:.3}", row.snapshot_ms),
            format!("{:.3}", row.warm_ms),
            row.naive_ms
                .map_or_else(|| "-".into(), |ms| format!("{ms:.1}")),
            format!("{:.1}/{:.1}", row.floor_ms.0, row.floor_ms.1),
            kept.into(),
            if row.noisy() {
                "noisy".into()
            } else {
                String::new()
            },
        ]);
    }
    let mut text = crate::measures::aligned(&lines);
    text.push('\n');
    for row in rows {
        text.push_str(&format!("{}: {}; {}\n", row.name, row.what, row.decided));
    }
    text.push_str(
        "median: snapshot and plan of one pass over everything, by an engine that knows nothing yet (next-start: one that\n\
         ran before); warm: the same pass again; naive: each job looks at every node (100 jobs, scaled);\n\
         floor: 64 MiB copied and 1,000,000 numbers sorted, just before and after; noisy: these differ by more than 1.5\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_that_is_not_kept_is_shown() {
        let mut time = 0;
        let mut clock = || {
            time += 60_000_000;
            time
        };
        let row = row("x", "y", Some(50.0), 1, gang_never, nothing).measure(&mut clock);
        assert_eq!(
            (row.kept(), row.median_ms, row.noisy()),
            (Some(false), 60.0, false)
        );
        assert!(table(&[row]).contains("NO"));
    }
}
