//! Checks in idle gaps: when a GPU is checked and when not, that a check gives way, what takes a GPU out; and over years of
//! simulated GPU-days, that a clean fleet raises no alarm and that what computes wrong is found within two complete gaps.

mod fleets;
mod links;

use crate::ctl::command::{Input, NodeReport, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::state::Node;
use crate::ctl::tests::gpu_pool::{GpuPool, h100s};
use crate::ctl::{check, desired};
use gmodel::NodeId;
use gmodel::config::{ClusterConfig, Partition};
use gmodel::gpu_check::{CheckProgram, CheckReport, CheckResult, Diagnostics};
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use std::sync::Arc;

const IDLE_AFTER: i64 = 600;
const DAY: i64 = 86_400;

fn terms() -> Diagnostics {
    let program = CheckProgram {
        program: "/usr/libexec/check".into(),
        timeout_secs: 300,
        ..CheckProgram::default()
    };
    Diagnostics {
        program,
        ..Diagnostics::default()
    }
}

fn sum(sum: &str) -> CheckResult {
    CheckResult {
        check: "arith".into(),
        version: "1".into(),
        sum: sum.into(),
        ..CheckResult::default()
    }
}

fn report(results: Vec<CheckResult>) -> CheckReport {
    CheckReport {
        results,
        took_ms: 90_000,
        ..CheckReport::default()
    }
}

/// Nodes of so many GPUs that are checked on these terms.
fn checked_pool(nodes: u32, gpus: u32, terms: Diagnostics) -> GpuPool {
    let main = Partition {
        name: "main".into(),
        is_default: true,
        ..Partition::default()
    };
    let config = ClusterConfig {
        partitions: vec![main],
        diagnostics: Some(terms),
        ..ClusterConfig::default()
    };
    let nodes = (1..=nodes).map(|node| h100s(node, gpus)).collect();
    let mut pool = GpuPool::new(config, nodes, Vec::new());
    pool.check_one_in = 32;
    pool
}

impl GpuPool {
    fn orders(&self) -> Vec<(NodeId, GpuOrder)> {
        let of = |node: &Node| {
            desired(&self.state, node.id)
                .gpus
                .into_iter()
                .map(|order| (node.id, order))
                .collect::<Vec<_>>()
        };
        self.state.nodes.values().flat_map(of).collect()
    }

    fn checks(&self) -> Vec<String> {
        let orders = self.orders().into_iter();
        orders
            .filter(|(_, order)| matches!(order.what, GpuAction::Check(_)))
            .map(|(_, order)| order.uuid)
            .collect()
    }

    fn answer(&mut self, node: NodeId, order: &GpuOrder, report: CheckReport) {
        let done = GpuOrderDone {
            check: Some(Box::new(report)),
            ..GpuOrderDone::new(order, "")
        };
        self.tell(node, NodeReport::GpuOrders { done: vec![done] });
    }

    /// Every check that is open ends with these results.
    fn all_end(&mut self, results: impl Fn(&str) -> CheckReport) {
        for (node, order) in self.orders() {
            match order.what {
                GpuAction::Check(_) => self.answer(node, &order, results(&order.uuid)),
                // Nodes obey at once.
                _ => {
                    let done = vec![GpuOrderDone::new(&order, "")];
                    self.tell(node, NodeReport::GpuOrders { done });
                }
            }
        }
    }

    /// Each GPU is checked once and says so; after a day.
    fn round(&mut self, results: impl Fn(&str) -> CheckReport) {
        for _ in 0..DAY / 300 {
            self.wait(300);
            self.all_end(&results);
        }
    }

    /// A job that starts at once where there is room.
    fn start(&mut self, gpus: &str) {
        self.submit(gpus);
        self.pass();
    }

    /// UUIDs that checks took out, with why.
    fn taken_out(&self) -> Vec<(String, String)> {
        let out = |event: &Event| match event {
            Event::GpuOrdered {
                uuid,
                what: GpuAction::Quarantine { reason },
                by,
                ..
            } if by == crate::ctl::owner::CHECKS => Some((uuid.clone(), reason.clone())),
            _ => None,
        };
        self.events.iter().filter_map(out).collect()
    }
}

const CHECK: GpuAction = GpuAction::Check(CheckProgram {
    program: String::new(),
    user: String::new(),
    checks: Vec::new(),
    timeout_secs: 0,
    peer: String::new(),
});

#[test]
fn a_gpu_is_checked_when_it_was_idle_long_enough_and_not_again_before_its_time() {
    let mut pool = checked_pool(1, 2, terms());
    pool.wait(IDLE_AFTER - 1);
    assert!(pool.checks().is_empty());
    pool.wait(16);
    assert_eq!(pool.checks(), ["GPU-1-0"], "one a node at a time");
    let program = terms().program;
    assert_eq!(pool.orders()[0].1.what, GpuAction::Check(program));
    pool.wait(3600);
    assert_eq!(
        pool.checks(),
        ["GPU-1-0"],
        "it stands until the node answers"
    );
    pool.all_end(|_| report(vec![sum("a")]));
    pool.wait(301);
    assert_eq!(pool.checks(), ["GPU-1-1"]);
    pool.all_end(|_| report(vec![sum("a")]));
    pool.wait(DAY - 2 * 3600);
    assert!(pool.checks().is_empty());
    pool.wait(2 * 3600);
    assert_eq!(pool.checks(), ["GPU-1-0"]);
}

#[test]
fn what_is_held_out_of_service_or_cut_is_not_checked_nor_where_a_partition_says_no() {
    let mut pool = checked_pool(1, 5, terms());
    pool.start("1");
    pool.nodes[0][1].fault = "Xid 48".into();
    pool.nodes[0][2].divided = true;
    pool.nodes[0][3].wants = "quarantine".into();
    pool.tell_gpus(1);
    // What waits for a word gets it, and until it is answered the node is left alone.
    pool.wait(IDLE_AFTER + 300);
    assert!(pool.checks().is_empty());
    pool.nodes[0][3].fault = "hot".into();
    pool.nodes[0][3].wants = String::new();
    pool.tell_gpus(1);
    pool.all_end(|_| CheckReport::default());
    pool.wait(300);
    assert_eq!(pool.checks(), ["GPU-1-4"]);
    let mut config = (*pool.state.config).clone();
    config.partitions[0].diagnostics = false;
    let mut off = checked_pool(1, 1, terms());
    off.feed(Input::Configure {
        config: Arc::new(config),
    })
    .unwrap();
    off.wait(DAY);
    assert!(off.checks().is_empty());
}

#[test]
fn a_check_gives_way_to_a_job_and_idleness_counts_anew() {
    let mut pool = checked_pool(1, 1, terms());
    pool.wait(IDLE_AFTER + 15);
    let (node, order) = pool.orders().remove(0);
    let before = desired(&pool.state, node).fence;
    pool.start("1");
    let told = desired(&pool.state, node);
    assert!(
        told.gpus.is_empty() && told.runs.len() == 1 && told.fence > before,
        "{told:?}"
    );
    // The node answers late: the order is closed.
    pool.answer(node, &order, report(vec![sum("late")]));
    assert!(pool.state.node(node).unwrap().gpus[0].checks.is_none());
    let run = pool.state.runs.values().next().unwrap().id;
    pool.wait(DAY);
    pool.end_run(run);
    pool.wait(IDLE_AFTER - 1);
    assert!(pool.checks().is_empty(), "idle from the end of the job");
    pool.wait(300);
    assert_eq!(pool.checks(), ["GPU-1-0"]);
    assert_eq!(check(&pool.state), []);
}

#[test]
fn the_pool_checks_so_many_at_once_and_a_node_that_is_away_takes_no_room() {
    let mut pool = checked_pool(
        4,
        1,
        Diagnostics {
            at_once: Some(2),
            ..terms()
        },
    );
    pool.wait(IDLE_AFTER + 15);
    assert_eq!(pool.checks(), ["GPU-1-0", "GPU-2-0"]);
    pool.feed(Input::Node {
        node: NodeId(1),
        report: NodeReport::Gone,
    })
    .unwrap();
    pool.wait(299);
    assert_eq!(pool.checks().len(), 3);
}

#[test]
fn one_that_computes_otherwise_is_checked_again_soon_and_then_goes_out_with_its_evidence() {
    let mut pool = checked_pool(1, 8, terms());
    let wrong = |uuid: &str| report(vec![sum(if uuid == "GPU-1-5" { "9f3a" } else { "77ab" })]);
    pool.round(wrong);
    let out = pool.taken_out();
    assert_eq!(out.len(), 1, "{out:?}");
    assert_eq!(
        out[0],
        (
            "GPU-1-5".to_owned(),
            "check arith, the second time: checksum 9f3a; 7 of 8 GPUs of type h100 have 77ab"
                .to_owned()
        )
    );
    assert_eq!(pool.history("GPU-1-5")[..3], ["odd", "odd", "ordered"]);
    let counted = pool
        .events
        .iter()
        .filter_map(Event::of_gpu)
        .filter(|line| line.automatic)
        .count();
    assert_eq!(counted, 1, "the breaker counts it");
    // Out, returned by a person, and wrong again: it needs two outliers anew.
    pool.nodes[0][5].fault = "quarantined".into();
    pool.tell_gpus(1);
    pool.order("GPU-1-5", GpuAction::Return).unwrap();
    pool.all_end(wrong);
    pool.nodes[0][5].fault = String::new();
    pool.tell_gpus(1);
    assert_eq!(pool.taken_out().len(), 1);
    pool.round(wrong);
    pool.round(wrong);
    assert_eq!(pool.taken_out().len(), 2);
}

#[test]
fn the_first_to_be_checked_is_judged_when_the_others_are_known() {
    let mut pool = checked_pool(1, 8, terms());
    pool.round(|uuid| report(vec![sum(if uuid == "GPU-1-0" { "9f3a" } else { "77ab" })]));
    assert_eq!(
        pool.taken_out()
            .iter()
            .map(|(uuid, _)| uuid.as_str())
            .collect::<Vec<_>>(),
        ["GPU-1-0"]
    );
}

#[test]
fn once_is_chance_and_a_program_that_fails_everywhere_or_cannot_be_run_takes_nothing_out() {
    let mut pool = checked_pool(1, 8, terms());
    let once = std::cell::Cell::new(true);
    pool.round(|uuid| {
        let slow = uuid == "GPU-1-7" && once.replace(uuid != "GPU-1-7");
        let value_micro = Some(if slow { 12_000_000 } else { 25_000_000 });
        report(vec![CheckResult {
            check: "pcie".into(),
            value_micro,
            unit: "GB/s".into(),
            ..CheckResult::default()
        }])
    });
    assert!(!once.get());
    assert_eq!(pool.history("GPU-1-7"), ["odd"]);
    let crash = |_: &str| CheckReport {
        trouble: "ended by signal 11".into(),
        ..CheckReport::default()
    };
    (0..3).for_each(|_| pool.round(crash));
    (0..3).for_each(|_| pool.round(|_| CheckReport::stopped("/usr/libexec/check: no such file")));
    assert!(pool.taken_out().is_empty(), "{:?}", pool.taken_out());
    // What hangs on one GPU only is that one's.
    (0..2).for_each(|_| pool.round(|_| report(vec![])));
    (0..2).for_each(|_| {
        pool.round(|uuid| {
            if uuid == "GPU-1-2" {
                CheckReport {
                    trouble: "did not end within 300 s".into(),
                    ..CheckReport::default()
                }
            } else {
                report(vec![])
            }
        })
    });
    let out = pool.taken_out();
    assert!(
        out.len() == 1
            && out[0].0 == "GPU-1-2"
            && out[0].1.contains("did not end within 300 s; 7 of 8"),
        "{out:?}"
    );
}

#[test]
fn a_driver_that_changes_all_sums_takes_nothing_out_and_a_witness_is_asked_before_a_gpu_goes() {
    let mut pool = checked_pool(4, 8, terms());
    pool.round(|_| report(vec![sum("old")]));
    // The first that is checked afterwards differs from thirty-one others, as often as it is asked.
    (0..2).for_each(|_| pool.round(|_| report(vec![sum("new")])));
    assert!(pool.taken_out().is_empty(), "{:?}", pool.taken_out());
    let odd = pool
        .events
        .iter()
        .filter(|event| matches!(event, Event::GpuJudged { .. }))
        .count();
    assert!((1..20).contains(&odd), "{odd}");
    pool.round(|_| report(vec![sum("new")]));
    pool.round(|uuid| report(vec![sum(if uuid == "GPU-2-2" { "9f3a" } else { "new" })]));
    assert_eq!(pool.taken_out().len(), 1);
}

#[test]
fn the_breaker_holds_back_what_checks_find_and_further_checks() {
    let mut pool = checked_pool(
        2,
        8,
        Diagnostics {
            every_secs: 1200,
            ..terms()
        },
    );
    for _ in 0..40 {
        pool.wait(300);
        pool.all_end(|_| report(vec![sum("77ab")]));
    }
    // As much as may go within an hour went.
    let mark = gmodel::node::HoldMark {
        owner: "system".into(),
        reason: "launch errors".into(),
        since: pool.now,
    };
    crate::ctl::apply(
        &mut pool.state,
        &Event::NodeDrained {
            node: NodeId(2),
            mark,
            automatic: true,
        },
    );
    crate::ctl::apply(
        &mut pool.state,
        &Event::NodeResumed {
            node: NodeId(2),
            owner: None,
            by: "root".into(),
            at: pool.now,
        },
    );
    for _ in 0..2 {
        pool.all_end(|_| report(vec![sum("77ab")]));
        pool.order("GPU-1-3", CHECK).unwrap();
        pool.all_end(|_| report(vec![sum("9f3a")]));
        pool.now = pool.now.plus_secs(1);
        pool.order("GPU-1-4", CHECK).unwrap();
        pool.all_end(|_| report(vec![sum("77ab")]));
    }
    assert_eq!(pool.history("GPU-1-3"), ["odd", "odd", "stopped"]);
    pool.wait(3500);
    assert!(pool.taken_out().is_empty() && pool.checks().is_empty());
    pool.wait(400);
    assert_eq!(pool.taken_out().len(), 1);
    pool.all_end(|_| report(vec![sum("77ab")]));
    pool.wait(600);
    assert!(
        !pool.checks().is_empty(),
        "and the others are checked again"
    );
}

#[test]
fn operators_ask_for_a_check_and_hear_why_not() {
    let mut pool = checked_pool(1, 3, terms());
    let text = |refused: Result<Reply, Refusal>| refused.unwrap_err().text;
    pool.start("1");
    assert!(text(pool.order("GPU-1-0", CHECK)).contains("a job holds GPU GPU-1-0 of n1"));
    pool.nodes[0][1].divided = true;
    pool.nodes[0][2].fault = "Xid 48".into();
    pool.tell_gpus(1);
    assert!(text(pool.order("GPU-1-1", CHECK)).contains("cut by MIG"));
    pool.order("GPU-1-2", CHECK).unwrap();
    assert_eq!(
        pool.checks(),
        ["GPU-1-2"],
        "one that is out of service may be checked"
    );
    assert!(text(pool.order("GPU-1-2", CHECK)).contains("under way"));
    let mut config = (*pool.state.config).clone();
    config.diagnostics = None;
    pool.feed(Input::Configure {
        config: Arc::new(config),
    })
    .unwrap();
    assert!(text(pool.order("GPU-1-2", CHECK)).contains("no [diagnostics]"));
}
