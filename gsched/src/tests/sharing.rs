//! Shares under MPS: equal parts of one user on a GPU, and no more than the whole, whatever comes and goes.

use super::kept::{end, enter};
use super::{check, picture};
use crate::{Engine, Snapshot, WorkBudget};
use expect_test::expect;
use gmodel::{GpuPart, NodeId};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[test]
fn equal_shares_of_one_user_stand_on_one_gpu_and_others_wait_with_the_reason() {
    check(
        "partition main sharing=mps
         node n1 h100:1 mps
         job gpus=0.5 uid=1
         job gpus=0.5 uid=2
         job gpus=0.25 uid=1
         job gpus=0.5 uid=1",
        expect![[r#"
            10 starts on n1[0:500]x1
            40 starts on n1[0:500]x1
            20 waits: Resources: needs 0.5 of one GPU, 1 CPU and 1G of memory on one node; most is free on n1: 0 GPUs, 63 CPUs and 511G of memory; 1 GPU of n1 with room for it holds shares of another user, or of another size or kind
            30 waits: Priority: needs 0.25 of one GPU, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
        "#]],
    );
}

#[test]
fn without_a_cap_anybody_shares_with_anybody_but_not_with_capped_shares() {
    check(
        "partition main sharing=mps
         partition loose sharing=uncapped
         node n1 h100:2 mps
         job gpus=0.5 uid=1 partition=loose
         job gpus=0.5 uid=2 partition=loose
         job gpus=0.2 uid=1
         job gpus=0.2 uid=3",
        expect![[r#"
            10 starts on n1[0:500]x1
            20 starts on n1[0:500]x1
            30 starts on n1[1:200]x1
            40 waits: Resources: needs 0.2 of one GPU, 1 CPU and 1G of memory on one node; most is free on n1: 0 GPUs, 61 CPUs and 509G of memory; 1 GPU of n1 with room for it holds shares of another user, or of another size or kind
        "#]],
    );
}

#[test]
fn capped_shares_go_only_where_mps_is_and_memory_is_the_shares_own() {
    check(
        "partition main sharing=mps
         node n1 h100:8
         node n2 a100:8 mps
         node n3 h100:1 mps
         job gpus=0.5
         job gpus=0.5 gpu_mem=40000
         job gpus=0.25 gpu_mem=40000",
        expect![[r#"
            10 starts on n2[0:500]x1
            20 starts on n3[0:500]x1
            30 waits: PartitionConfig: needs 0.25 of one GPU with 39.1G, 1 CPU and 1G of memory on one node; partition "main" has no such nodes
        "#]],
    );
}

#[test]
fn where_sharing_is_off_jobs_that_wait_for_a_share_are_told_so() {
    check(
        "partition main
         node n1 h100:1 mps
         job gpus=0.5",
        expect![[r#"
            10 waits: PartitionConfig: asks for part of a GPU; partition "main" gives GPUs whole (gpu_sharing = "off")
        "#]],
    );
}

/// Of all that is held of each GPU: no more than the whole, and only what may stand side by side.
fn holds_the_rule(snapshot: &Snapshot) -> Result<(), TestCaseError> {
    let mut held: BTreeMap<(NodeId, u16), Vec<&GpuPart>> = BTreeMap::new();
    for share in snapshot.running.iter().flat_map(|run| &run.shares) {
        for grant in &share.gpus.0 {
            held.entry((share.node, grant.slot.0))
                .or_default()
                .push(&grant.part);
        }
    }
    for (at, parts) in held {
        let milli: u32 = parts.iter().map(|part| part.of_slot_milli()).sum();
        prop_assert!(milli <= 1000, "{at:?} is given out {milli} thousandths");
        for (one, part) in parts.iter().enumerate() {
            prop_assert!(
                parts[..one].iter().all(|other| part.goes_beside(other)),
                "{at:?}: {parts:?}"
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// One engine over many passes, runs ending in any order between them: two users, three sizes, both ways of sharing, and
    /// whole GPUs in between.
    #[test]
    fn never_more_than_the_whole_and_never_two_users_under_mps(
        asks in prop::collection::vec((0usize..4, 1u32..4, 0usize..3, prop::option::of(1u32..400)), 4..40),
        ends in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let mut text = String::from("partition main sharing=mps\npartition loose sharing=uncapped\nnode n1 h100:2 mps\nnode n2 a100:2\n");
        for (size, uid, place, secs) in asks {
            let gpus = ["0.5", "0.25", "0.333", "1"][size];
            let partition = ["main", "main", "loose"][place];
            let time = secs.map_or_else(String::new, |secs| format!(" time={secs}"));
            text += &format!("job gpus={gpus} uid={uid} user=u{uid} partition={partition}{time}\n");
        }
        let mut snapshot = picture(&text);
        let mut engine = Engine::default();
        for which in ends.into_iter().map(Some).chain([None]) {
            let planned = engine.plan(&snapshot, WorkBudget::default());
            enter(&mut snapshot, &planned);
            holds_the_rule(&snapshot)?;
            if let Some(which) = which.filter(|_| !snapshot.running.is_empty()) {
                let at = which.index(snapshot.running.len());
                end(&mut snapshot, at);
                snapshot.now = snapshot.now.plus_secs(20);
            }
        }
        // Without other load every job gets its turn: the rule starves none.
        for _ in 0..snapshot.pending.len() + snapshot.running.len() {
            while !snapshot.running.is_empty() {
                end(&mut snapshot, 0);
            }
            let planned = engine.plan(&snapshot, WorkBudget::default());
            enter(&mut snapshot, &planned);
            holds_the_rule(&snapshot)?;
        }
        prop_assert!(snapshot.pending.is_empty(), "{:?}", snapshot.pending);
    }
}
