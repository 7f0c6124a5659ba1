//! Checks in idle gaps: when a GPU is checked and when not, that a check gives way, what takes a GPU out; and over years of
//! simulated GPU-days, that a clean fleet raises no alarm and that what computes wrong is found within two complete gaps.

use super::super::command::{Actor, Command, Input, NodeReport, Refusal, Reply};
use super::super::event::Event;
use super::super::state::{Node, State};
use super::super::{check, desired, handle, next_deadline, snapshot};
use gmodel::config::{ClusterConfig, Partition};
use gmodel::gpu_check::{BUILTIN, CheckProgram, CheckReport, CheckResult, Diagnostics};
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use gmodel::gpu_request::GpuRequest;
use gmodel::node::{GpuInfo, Inventory};
use gmodel::run::{RunEnd, RunPhase, RunReport};
use gmodel::{Fence, JobSpec, NodeId, NodeLife, RunId, Timestamp};
use gsched::WorkBudget;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const IDLE_AFTER: i64 = 600;
const DAY: i64 = 86_400;

struct Pool {
    state: State,
    now: Timestamp,
    events: Vec<Event>,
    nodes: Vec<Vec<GpuInfo>>,
    waits: u32,
}

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

impl Pool {
    fn new(nodes: u32, gpus: u32, terms: Diagnostics) -> Self {
        let mut state = State {
            next_job: 1,
            ..State::default()
        };
        let main = Partition {
            name: "main".into(),
            is_default: true,
            ..Partition::default()
        };
        state.config = Arc::new(ClusterConfig {
            partitions: vec![main],
            diagnostics: Some(terms),
            ..ClusterConfig::default()
        });
        let gpu = |node: u32, index: u32| GpuInfo {
            uuid: format!("GPU-{node}-{index}"),
            gpu_type: "h100".into(),
            index,
            ..GpuInfo::default()
        };
        let infos = (1..=nodes)
            .map(|node| (0..gpus).map(|index| gpu(node, index)).collect())
            .collect();
        let mut pool = Self {
            state,
            now: Timestamp::from_secs(1_000_000),
            events: Vec::new(),
            nodes: infos,
            waits: 0,
        };
        pool.feed(Input::Started).unwrap();
        for id in 1..=nodes {
            let node = Node {
                id: NodeId(id),
                name: format!("n{id:02}"),
                ..Node::default()
            };
            pool.state.node_names.insert(node.name.clone(), node.id);
            pool.state.nodes.insert(node.id, node);
            let inventory = pool.inventory(id);
            let hello = NodeReport::Hello {
                life: NodeLife::default(),
                fence: Fence::default(),
                inventory,
                runs: Vec::new(),
            };
            pool.feed(Input::Node {
                node: NodeId(id),
                report: hello,
            })
            .unwrap();
        }
        pool.events.clear();
        pool
    }

    fn inventory(&self, node: u32) -> Inventory {
        Inventory {
            cpus: 64,
            mem_bytes: 1 << 40,
            gpus: self.nodes[node as usize - 1].clone(),
            ..Inventory::default()
        }
    }

    fn feed(&mut self, input: Input) -> Result<Reply, Refusal> {
        handle(&mut self.state, &mut self.events, input, self.now)
    }

    fn tell_gpus(&mut self, node: u32) {
        let report = NodeReport::Inventory {
            inventory: self.inventory(node),
        };
        self.feed(Input::Node {
            node: NodeId(node),
            report,
        })
        .unwrap();
    }

    fn wait(&mut self, secs: i64) {
        let until = self.now.plus_secs(secs);
        while let Some(at) = next_deadline(&self.state).filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.feed(Input::Wake).unwrap();
            assert!(
                next_deadline(&self.state).is_none_or(|next| next > at),
                "a deadline that is met is over"
            );
        }
        self.now = until;
        self.waits += 1;
        if self.waits % 64 < 8 {
            assert_eq!(check(&self.state), []);
        }
    }

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
        self.feed(Input::Node {
            node,
            report: NodeReport::GpuOrders { done: vec![done] },
        })
        .unwrap();
    }

    /// Every check that is open ends with these results.
    fn all_end(&mut self, results: impl Fn(&str) -> CheckReport) {
        for (node, order) in self.orders() {
            match order.what {
                GpuAction::Check(_) => self.answer(node, &order, results(&order.uuid)),
                // Nodes obey at once.
                _ => self
                    .feed(Input::Node {
                        node,
                        report: NodeReport::GpuOrders {
                            done: vec![GpuOrderDone::new(&order, "")],
                        },
                    })
                    .map(drop)
                    .unwrap(),
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

    fn submit(&mut self, gpus: &str) {
        let mut spec = JobSpec {
            name: "j".into(),
            ..JobSpec::default()
        };
        spec.request.gpus = Some(GpuRequest::parse(gpus).unwrap());
        spec.request.ntasks = 1;
        spec.launch.work_dir = "/home/ann".into();
        spec.launch.argv = vec!["true".into()];
        let actor = Actor {
            user: "ann".into(),
            uid: 1000,
            ..Actor::default()
        };
        self.feed(Input::Command {
            actor,
            command: Command::Submit {
                spec: Box::new(spec),
                client_key: None,
            },
        })
        .unwrap();
        let plan = gsched::plan(&snapshot(&self.state, self.now), WorkBudget::default());
        self.feed(Input::Plan { plan }).unwrap();
    }

    fn end_run(&mut self, run: RunId) {
        let members: Vec<NodeId> = self
            .state
            .runs
            .get(run)
            .unwrap()
            .members
            .iter()
            .map(|member| member.node)
            .collect();
        for node in members {
            let runs = vec![RunReport::new(
                run,
                RunPhase::Clean(RunEnd::default().into()),
            )];
            self.feed(Input::Node {
                node,
                report: NodeReport::Runs { runs },
            })
            .unwrap();
        }
    }

    fn order(&mut self, uuid: &str, what: GpuAction) -> Result<Reply, Refusal> {
        let actor = Actor {
            user: "root".into(),
            operator: true,
            ..Actor::default()
        };
        self.feed(Input::Command {
            actor,
            command: Command::GpuOrder {
                node: NodeId(1),
                uuid: uuid.into(),
                what,
            },
        })
    }

    /// UUIDs that checks took out, with why.
    fn taken_out(&self) -> Vec<(String, String)> {
        let out = |event: &Event| match event {
            Event::GpuOrdered {
                uuid,
                what: GpuAction::Quarantine { reason },
                by,
                ..
            } if by == super::super::gpu_check::BY => Some((uuid.clone(), reason.clone())),
            _ => None,
        };
        self.events.iter().filter_map(out).collect()
    }

    fn history(&self, uuid: &str) -> Vec<&'static str> {
        self.events
            .iter()
            .filter_map(Event::of_gpu)
            .filter(|line| line.uuid == uuid)
            .map(|line| line.kind)
            .collect()
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
    let mut pool = Pool::new(1, 2, terms());
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
    let mut pool = Pool::new(1, 5, terms());
    pool.submit("1");
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
    let mut off = Pool::new(1, 1, terms());
    off.feed(Input::Configure {
        config: Arc::new(config),
    })
    .unwrap();
    off.wait(DAY);
    assert!(off.checks().is_empty());
}

#[test]
fn a_check_gives_way_to_a_job_and_idleness_counts_anew() {
    let mut pool = Pool::new(1, 1, terms());
    pool.wait(IDLE_AFTER + 15);
    let (node, order) = pool.orders().remove(0);
    let before = desired(&pool.state, node).fence;
    pool.submit("1");
    let told = desired(&pool.state, node);
    assert!(
        told.gpus.is_empty() && told.runs.len() == 1 && told.fence > before,
        "{told:?}"
    );
    // The node says late what came of it: nobody asks any more.
    pool.answer(node, &order, report(vec![sum("late")]));
    assert!(pool.state.nodes.get(node).unwrap().gpus[0].checks.is_none());
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
    let mut pool = Pool::new(
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
    let mut pool = Pool::new(1, 8, terms());
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
    let mut pool = Pool::new(1, 8, terms());
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
    let mut pool = Pool::new(1, 8, terms());
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
    let mut pool = Pool::new(4, 8, terms());
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
    let mut pool = Pool::new(
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
    super::super::apply(
        &mut pool.state,
        &Event::NodeDrained {
            node: NodeId(2),
            mark,
            automatic: true,
        },
    );
    super::super::apply(
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

/// GB/s to the GPU that was named as the peer, where one was; nothing else.
fn ways(pool: &mut Pool, gb_s: impl Fn(&str, &str) -> i64) -> Vec<(String, String)> {
    let mut measured = Vec::new();
    for (node, order) in pool.orders() {
        let GpuAction::Check(program) = &order.what else {
            pool.feed(Input::Node {
                node,
                report: NodeReport::GpuOrders {
                    done: vec![GpuOrderDone::new(&order, "")],
                },
            })
            .unwrap();
            continue;
        };
        let (uuid, peer) = (order.uuid.clone(), program.peer.clone());
        let value_micro = Some(gb_s(&uuid, &peer) * 1_000_000);
        let way = CheckResult {
            check: "copy.to-peer".into(),
            class: "NV18".into(),
            value_micro,
            unit: "GB/s".into(),
            peer: peer.clone(),
            ..CheckResult::default()
        };
        pool.answer(
            node,
            &order,
            report(if peer.is_empty() {
                vec![sum("a")]
            } else {
                vec![sum("a"), way]
            }),
        );
        measured.push((uuid, peer));
    }
    measured
}

/// Nodes of GPUs in islands of so many.
fn islands(nodes: u32, gpus: u32, island: u32) -> Pool {
    let program = CheckProgram {
        program: BUILTIN.into(),
        ..terms().program
    };
    let mut pool = Pool::new(nodes, gpus, Diagnostics { program, ..terms() });
    for node in 1..=nodes {
        pool.nodes[node as usize - 1]
            .iter_mut()
            .for_each(|gpu| gpu.nvlink_island = Some(gpu.index / island));
        pool.tell_gpus(node);
    }
    pool
}

#[test]
fn the_way_to_another_idle_gpu_of_the_island_is_measured_with_each_check_to_another_one_each_time()
{
    let mut pool = islands(1, 6, 3);
    pool.submit("1");
    pool.wait(IDLE_AFTER + 300);
    let mut measured = Vec::new();
    for _ in 0..3 * DAY / 300 {
        measured.extend(ways(&mut pool, |_, _| 400));
        pool.wait(300);
    }
    let of = |uuid: &str| {
        measured
            .iter()
            .filter(|(from, _)| from == uuid)
            .map(|(_, to)| to.as_str())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("GPU-1-3")[..2], ["GPU-1-4", "GPU-1-5"]);
    assert!(
        measured
            .iter()
            .all(|(from, to)| from != "GPU-1-0" && to != "GPU-1-0"),
        "a job holds it"
    );
    assert_eq!(
        of("GPU-1-1")[..2],
        ["GPU-1-2", "GPU-1-2"],
        "there is no other"
    );
    assert!(
        measured
            .iter()
            .all(|(from, to)| (from < &"GPU-1-3".to_owned()) == (to < &"GPU-1-3".to_owned())),
        "never out of the island"
    );
    assert!(pool.taken_out().is_empty());
}

#[test]
fn a_job_on_the_other_end_of_the_way_ends_the_check() {
    let mut pool = islands(1, 2, 2);
    pool.wait(IDLE_AFTER + 1);
    let (_, order) = pool.orders().remove(0);
    assert!(
        matches!(&order.what, GpuAction::Check(program) if order.uuid == "GPU-1-0" && program.peer == "GPU-1-1")
    );
    pool.submit("2");
    assert!(pool.checks().is_empty());
    assert_eq!(check(&pool.state), []);
    let gone: Vec<RunId> = pool.state.runs.values().map(|run| run.id).collect();
    pool.end_run(gone[0]);
    // Of two GPUs one may be held: the other is checked alone.
    pool.submit("1");
    pool.wait(IDLE_AFTER + 301);
    let held = pool.state.runs.values().next().unwrap().allocation[0]
        .gpus
        .slots()
        .next()
        .unwrap()
        .0;
    let (_, order) = pool.orders().remove(0);
    assert!(
        order.uuid == format!("GPU-1-{}", 1 - held)
            && matches!(&order.what, GpuAction::Check(program) if program.peer.is_empty()),
        "{order:?}"
    );
}

#[test]
fn a_gpu_with_a_slow_end_goes_out_and_never_the_one_at_the_other_end_nor_one_of_a_pair() {
    // All ways of GPU-2-1 are slow, from it and to it.
    let mut pool = islands(3, 4, 4);
    let slow = |from: &str, to: &str| {
        if [from, to].contains(&"GPU-2-1") {
            200
        } else {
            400
        }
    };
    for _ in 0..4 * DAY / 300 {
        pool.wait(300);
        ways(&mut pool, slow);
        if !pool.taken_out().is_empty() {
            pool.nodes[1][1].fault = "out".into();
            pool.tell_gpus(2);
        }
    }
    let out = pool.taken_out();
    assert_eq!(
        out.iter()
            .map(|(uuid, _)| uuid.as_str())
            .collect::<Vec<_>>(),
        ["GPU-2-1"],
        "{out:?}"
    );
    assert!(
        out[0]
            .1
            .contains("copy.to-peer, the second time: to GPU-2-"),
        "{out:?}"
    );

    // Of two that have only each other nobody can say which it is: it is said, and checked at its time.
    let mut pool = islands(5, 2, 2);
    let bridge = |from: &str, _: &str| if from.starts_with("GPU-2-") { 20 } else { 50 };
    let mut checks = 0;
    for _ in 0..6 * DAY / 300 {
        pool.wait(300);
        checks += ways(&mut pool, bridge)
            .iter()
            .filter(|(from, _)| from.starts_with("GPU-2-"))
            .count();
    }
    assert!(pool.taken_out().is_empty());
    assert!(pool.history("GPU-2-0").contains(&"odd"));
    assert!((10..=20).contains(&checks), "{checks} in six days");
}

#[test]
fn operators_ask_for_a_check_and_hear_why_not() {
    let mut pool = Pool::new(1, 3, terms());
    let text = |refused: Result<Reply, Refusal>| refused.unwrap_err().text;
    pool.submit("1");
    assert!(text(pool.order("GPU-1-0", CHECK)).contains("a job holds GPU GPU-1-0 of n01"));
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

/// A fleet with jobs on it, whose GPUs differ a little and whose measurements are noisy.
struct Fleet {
    pool: Pool,
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
        let pool = Pool::new(
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
                self.pool.submit(&(1 + self.chance.below(4)).to_string());
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
