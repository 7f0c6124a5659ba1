//! GPU shares: which parts may lie side by side, and that a late plan cannot break the rule.

use crate::ctl::tests::world::{World, check as show};
use crate::ctl::{Input, check, snapshot};
use expect_test::expect;
use gmodel::GpuPart;

#[test]
fn equal_parts_of_one_user_share_a_gpu_and_another_user_waits_until_it_is_empty() {
    show(
        "partition parts default sharing=mps
         node n1 h100:1 mps
         submit user=alice gpus=0.5
         submit user=alice gpus=0.5
         submit user=bob gpus=0.5
         plan
         show
         n1 running 1-1
         n1 exits 1-1 0
         n1 clean 1-1 0
         plan
         show
         n1 running 2-1
         n1 exits 2-1 0
         n1 clean 2-1 0
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "parts" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "parts" has no default: the limit is 1-00:00:00
            job 3
              note: no --time given and partition "parts" has no default: the limit is 1-00:00:00
            1 alice RUNNING 1-1 on n1[0]
            2 alice RUNNING 2-1 on n1[0]
            3 bob PENDING Resources: needs 0.5 of one GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 62 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z
            1 alice COMPLETED 0:0
            2 alice RUNNING 2-1 on n1[0]
            3 bob PENDING Resources: needs 0.5 of one GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 256G of memory; 1 GPU of n1 with room for it holds shares of another user, or of another size or kind; room is expected by 1970-01-13T13:46:40Z
            1 alice COMPLETED 0:0
            2 alice COMPLETED 0:0
            3 bob RUNNING 3-1 on n1[0]
        "#]],
    );
}

#[test]
fn no_share_by_mps_is_promised_where_no_node_has_it() {
    show(
        "partition parts default sharing=mps
         partition loose sharing=uncapped
         partition whole
         node n1 h100:2
         submit user=alice gpus=0.5
         submit user=alice gpus=0.5 partition=loose
         update 1 by=alice partition=whole",
        expect![[r#"
            refused: 0.5 of one GPU and 1 CPU on one node: 0 of the 2 GPUs in partition "parts" can be shared; their nodes have no MPS to do it with (gnodes NODE says why). Ask for whole GPUs.
            job 1
              note: no --time given and partition "loose" has no default: the limit is 1-00:00:00
            refused: --gpus 0.5: partition "whole" gives GPUs whole (gpu_sharing = "off"). Ask for whole GPUs, or name a partition that shares them: "parts", "loose".
        "#]],
    );
}

/// A plan is checked again when it comes: by then the GPU may be another user's, or be left without MPS.
#[test]
fn a_start_that_would_put_two_users_on_one_gpu_is_dropped() {
    let mut world = World::new();
    let lines = [
        "partition parts default sharing=mps",
        "node n1 h100:1 mps",
        "submit user=alice gpus=0.5",
        "submit user=bob gpus=0.5",
    ];
    lines.iter().for_each(|line| world.line(line));
    let mut planned = gsched::plan(
        &snapshot(&world.state, world.now),
        gsched::WorkBudget::default(),
    );
    assert_eq!(
        planned.starts.len(),
        1,
        "the scheduler itself starts one of them"
    );
    let mut other = planned.starts[0].clone();
    other.job = gmodel::JobId(3 - other.job.0);
    let GpuPart::Share { tenant, .. } = &mut other.allocation[0].gpus.0[0].part else {
        panic!("{other:?}")
    };
    assert!(matches!(tenant, Some(1001 | 1002)));
    *tenant = tenant.map(|uid| 2003 - uid);
    planned.starts.push(other);
    world.feed(Input::Plan { plan: planned }).unwrap();
    let running = world.state.runs.values().count();
    assert_eq!((running, check(&world.state).len()), (1, 0));
}
