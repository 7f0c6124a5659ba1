//! Years of simulated GPU-days: a clean fleet raises no alarm, and a GPU that computes wrong is found within two complete gaps.

use crate::ctl::command::{Input, NodeReport};
use crate::ctl::event::Event;
use crate::ctl::tests::gpu_checks::{DAY, checked_pool, report, sum, terms};
use crate::ctl::tests::gpu_pool::GpuPool;
use gmodel::gpu_check::{CheckReport, CheckResult, Diagnostics};
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use gmodel::{NodeId, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// A generator of our own: the same seed is the same fleet.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
    /// About normal, in thousandths of the deviation: the sum of twelve uniform ones.
    fn normal_milli(&mut self) -> i64 {
        (0..12).map(|_| self.below(1001) as i64).sum::<i64>() - 6000
    }
}

/// What a GPU does wrong.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Wrong {
    /// Its sums, always.
    Sums,
    /// One sum in so many.
    SomeSums(u64),
    /// Its link carries half.
    Slow,
    Hangs,
}

/// A fleet with jobs, with GPUs that differ a little and noisy measurements.
struct Fleet {
    pool: GpuPool,
    chance: Chance,
    /// Thousandths of the fleet's speed that a GPU is faster.
    own_milli: BTreeMap<String, i64>,
    wrong: BTreeMap<String, Wrong>,
    /// Checks of it that came to their end since it does wrong.
    gaps: BTreeMap<String, u32>,
    /// Checks under way, and when they end.
    running: BTreeMap<(NodeId, u64), (Timestamp, GpuOrder)>,
    /// When runs end.
    ends: BTreeSet<(Timestamp, RunId)>,
    seen: BTreeSet<RunId>,
    yielded: u32,
    done: u32,
}

const TOOK_SECS: i64 = 180;

impl Fleet {
    fn new(seed: u64) -> Self {
        Self::with(seed, terms())
    }

    fn with(seed: u64, terms: Diagnostics) -> Self {
        let pool = checked_pool(
            10,
            8,
            Diagnostics {
                at_once: Some(4),
                ..terms
            },
        );
        let mut chance = Chance(seed);
        let own_milli = pool
            .nodes
            .iter()
            .flatten()
            .map(|gpu| (gpu.uuid.clone(), chance.normal_milli() * 10 / 1000))
            .collect();
        let none = (BTreeMap::new(), BTreeMap::new());
        Self {
            pool,
            chance,
            own_milli,
            wrong: none.0,
            gaps: none.1,
            running: BTreeMap::new(),
            ends: BTreeSet::new(),
            seen: BTreeSet::new(),
            yielded: 0,
            done: 0,
        }
    }

    fn result_of(&mut self, uuid: &str) -> CheckReport {
        let wrong = self.wrong.get(uuid).copied();
        let lies = match wrong {
            Some(Wrong::Hangs) => {
                return CheckReport {
                    trouble: "did not end within 300 s".into(),
                    ..CheckReport::default()
                };
            }
            Some(Wrong::Sums) => true,
            Some(Wrong::SomeSums(one_in)) => self.chance.below(one_in) == 0,
            _ => false,
        };
        let sum = if lies {
            sum(&format!("{:x}", self.chance.next()))
        } else {
            sum("77ab")
        };
        let mut number = |check: &str, unit: &str, usual: i64, noise_milli: i64| {
            let off = self.own_milli[uuid] + self.chance.normal_milli() * noise_milli / 1000;
            let value = usual + usual / 1000 * off;
            let value_micro = Some(if wrong == Some(Wrong::Slow) && unit == "GB/s" {
                value / 2
            } else {
                value
            });
            CheckResult {
                check: check.into(),
                value_micro,
                unit: unit.into(),
                ..CheckResult::default()
            }
        };
        let numbers = [
            number("pcie", "GB/s", 25_000_000, 15),
            number("nvlink", "GB/s", 370_000_000, 5),
            number("gemm", "s", 4_000_000, 40),
        ];
        let passed = CheckResult {
            check: "memory".into(),
            passed: Some(true),
            ..CheckResult::default()
        };
        report([sum, passed].into_iter().chain(numbers).collect())
    }

    /// Lets time pass, with a new job now and then.
    fn pass(&mut self, days: i64) {
        let until = self.pool.now.plus_secs(days * DAY);
        while self.pool.now < until {
            self.pool.wait(60 + self.chance.below(3540) as i64);
            self.follow_checks();
            while let Some((at, run)) = self
                .ends
                .first()
                .copied()
                .filter(|(at, _)| *at <= self.pool.now)
            {
                self.ends.remove(&(at, run));
                self.pool.end_run(run);
            }
            if self.pool.state.jobs.len() < 60 {
                self.pool.start(&(1 + self.chance.below(4)).to_string());
            }
            let new: Vec<RunId> = self
                .pool
                .state
                .runs
                .values()
                .map(|run| run.id)
                .filter(|run| !self.seen.contains(run))
                .collect();
            for run in new {
                self.seen.insert(run);
                self.ends.insert((
                    self.pool
                        .now
                        .plus_secs(600 + self.chance.below(10 * 3600) as i64),
                    run,
                ));
            }
        }
    }

    fn follow_checks(&mut self) {
        let open: Vec<(NodeId, GpuOrder)> = self.pool.orders();
        let numbers: BTreeSet<(NodeId, u64)> = open
            .iter()
            .map(|(node, order)| (*node, order.number))
            .collect();
        let before = self.running.len();
        self.running.retain(|key, _| numbers.contains(key));
        self.yielded += (before - self.running.len()) as u32;
        for (node, order) in open {
            match order.what {
                GpuAction::Check(_) => {
                    let ends = self.pool.now.plus_secs(TOOK_SECS);
                    self.running
                        .entry((node, order.number))
                        .or_insert((ends, order));
                }
                _ => {
                    let done = vec![GpuOrderDone::new(&order, "")];
                    self.pool
                        .feed(Input::Node {
                            node,
                            report: NodeReport::GpuOrders { done },
                        })
                        .unwrap();
                    let gpu = self.pool.nodes[node.0 as usize - 1]
                        .iter_mut()
                        .find(|gpu| gpu.uuid == order.uuid)
                        .unwrap();
                    gpu.fault = "quarantined".into();
                    self.pool.tell_gpus(node.0);
                }
            }
        }
        let now = self.pool.now;
        let ended: Vec<((NodeId, u64), GpuOrder)> = self
            .running
            .iter()
            .filter(|(_, (at, _))| *at <= now)
            .map(|(key, (_, order))| (*key, order.clone()))
            .collect();
        for (key, order) in ended {
            self.running.remove(&key);
            self.done += 1;
            if self.wrong.contains_key(&order.uuid) {
                *self.gaps.entry(order.uuid.clone()).or_default() += 1;
            }
            let report = self.result_of(&order.uuid);
            self.pool.answer(key.0, &order, report);
        }
    }
}

#[test]
fn a_clean_fleet_raises_no_alarm_in_ten_thousand_gpu_days() {
    for seed in [11, 12] {
        let mut fleet = Fleet::new(seed);
        fleet.pass(125 / 2 + 1);
        let odd = fleet
            .pool
            .events
            .iter()
            .filter(|event| matches!(event, Event::GpuJudged { .. }))
            .count();
        println!(
            "seed {seed}: {} checks, {} gave way, {odd} looked odd once",
            fleet.done, fleet.yielded
        );
        assert!(
            fleet.pool.taken_out().is_empty(),
            "{:?}",
            fleet.pool.taken_out()
        );
        assert!(
            fleet.done > 4000 && fleet.yielded > 50,
            "it was tried: {} checks, {} gave way",
            fleet.done,
            fleet.yielded
        );
    }
}

#[test]
fn the_noise_is_there_and_a_tight_bound_would_cry_wolf() {
    let mut fleet = Fleet::with(
        11,
        Diagnostics {
            threshold_milli: 2000,
            floor_milli: 1,
            ..terms()
        },
    );
    fleet.pass(10);
    assert!(
        fleet
            .pool
            .events
            .iter()
            .any(|event| matches!(event, Event::GpuJudged { .. }))
    );
}

#[test]
fn what_computes_wrong_is_slow_or_hangs_is_found_within_two_complete_gaps() {
    for (seed, wrong) in [(21, Wrong::Sums), (22, Wrong::Slow), (23, Wrong::Hangs)] {
        let mut fleet = Fleet::new(seed);
        fleet.pass(4);
        let all: Vec<String> = fleet.own_milli.keys().cloned().collect();
        for at in 0..3 {
            let uuid = all[(fleet.chance.below(20) + 25 * at) as usize].clone();
            fleet.wrong.insert(uuid.clone(), wrong);
            let out = |fleet: &Fleet| {
                fleet
                    .pool
                    .taken_out()
                    .into_iter()
                    .any(|(out, _)| out == uuid)
            };
            let mut days = 0;
            while !out(&fleet) && days < 30 {
                fleet.pass(1);
                days += 1;
            }
            assert_eq!(fleet.gaps[&uuid], 2, "{wrong:?}");
        }
        assert_eq!(
            fleet.pool.taken_out().len(),
            3,
            "and nothing else goes: {:?}",
            fleet.pool.taken_out()
        );
    }
}

#[test]
fn what_computes_wrong_one_time_in_four_is_found_though_right_ones_lie_between() {
    let mut fleet = Fleet::new(31);
    fleet.pass(3);
    fleet.wrong.insert("GPU-3-4".into(), Wrong::SomeSums(4));
    fleet.pass(30);
    let out: Vec<String> = fleet
        .pool
        .taken_out()
        .into_iter()
        .map(|(uuid, _)| uuid)
        .collect();
    assert_eq!(out, ["GPU-3-4"]);
    println!("found after {} complete gaps", fleet.gaps["GPU-3-4"]);
}
