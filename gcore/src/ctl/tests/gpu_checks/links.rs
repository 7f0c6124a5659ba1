//! Checks of the link between two idle GPUs.

use crate::ctl::check;
use crate::ctl::command::{Input, NodeReport};
use crate::ctl::tests::gpu_checks::{DAY, IDLE_AFTER, checked_pool, report, sum, terms};
use crate::ctl::tests::gpu_pool::GpuPool;
use gmodel::RunId;
use gmodel::gpu_check::{BUILTIN, CheckProgram, CheckResult, Diagnostics};
use gmodel::gpu_order::{GpuAction, GpuOrderDone};

/// GB/s to the GPU that was named as the peer, where one was; nothing else.
fn ways(pool: &mut GpuPool, gb_s: impl Fn(&str, &str) -> i64) -> Vec<(String, String)> {
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
fn islands(nodes: u32, gpus: u32, island: u32) -> GpuPool {
    let program = CheckProgram {
        program: BUILTIN.into(),
        ..terms().program
    };
    let mut pool = checked_pool(nodes, gpus, Diagnostics { program, ..terms() });
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
    pool.start("1");
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
    pool.start("2");
    assert!(pool.checks().is_empty());
    assert_eq!(check(&pool.state), []);
    let gone: Vec<RunId> = pool.state.runs.values().map(|run| run.id).collect();
    pool.end_run(gone[0]);
    // Of two GPUs one may be held: the other is checked alone.
    pool.start("1");
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

    // With two GPUs only, the slow end is unknown: the outlier is recorded, and checked again at its time.
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
