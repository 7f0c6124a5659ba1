//! Which GPUs of a node a job gets, where they are joined unlike.

use super::{check, picture};
use crate::cluster::node_class::left_out;
use crate::{WorkBudget, plan};
use expect_test::expect;
use gmodel::gpu_link::GpuLink;
use gmodel::policy::GpuAmounts;
use std::sync::Arc;

#[test]
fn a_job_gets_gpus_of_one_island_and_leaves_the_other_whole() {
    check(
        "node n1 h100:8 island=4
         running 1 n1 gpus=0-1 left=60
         job gpus=3
         job gpus=1",
        expect![[r#"
            10 starts on n1[4,5,6]x1
            20 starts on n1[7]x1
        "#]],
    );
    check(
        "node n1 h100:8 island=4
         running 1 n1 gpus=0-1 left=60
         job gpus=2
         job gpus=4 nvlink",
        expect![[r#"
            10 starts on n1[2,3]x1
            20 starts on n1[4,5,6,7]x1
        "#]],
    );
}

#[test]
fn unlike_boards_of_one_node_are_not_mixed_where_one_kind_has_enough() {
    check(
        "node n1 l4:2 h100:4
         job gpus=3
         job gpus=2",
        expect![[r#"
            10 starts on n1[2,3,4]x1
            20 starts on n1[0,1]x1
        "#]],
    );
}

#[test]
fn a_gpu_with_a_link_down_is_taken_last() {
    let mut snapshot = picture(
        "node n1 h100:4
         job gpus=3
         job gpus=1",
    );
    let gpus = Arc::make_mut(&mut snapshot.nodes[0].gpus);
    for (at, gpu) in gpus.iter_mut().enumerate() {
        gpu.info.minor = 10 + at as u32;
        let links = |other: u32| GpuLink::Nvlink(if at == 1 || other == 1 { 17 } else { 18 });
        gpu.info.links = (0..4)
            .filter(|other| *other != at as u32)
            .map(|other| (10 + other, links(other)))
            .collect();
    }
    expect![[r#"
        10 starts on n1[0,2,3]x1
        20 starts on n1[1]x1
    "#]]
    .assert_eq(&super::story(
        &snapshot,
        &plan(&snapshot, WorkBudget::default()),
    ));
}

#[test]
fn limits_by_type_count_the_gpus_that_the_job_really_gets() {
    let mut snapshot = picture(
        "partition main
         node n1 l4:2 h100:4
         job gpus=3
         job gpus=2",
    );
    Arc::make_mut(&mut snapshot.config).partitions[0]
        .per_user
        .gpus = Some(GpuAmounts([("h100".to_owned(), 2000)].into()));
    expect![[r#"
        20 starts on n1[0,1]x1
        10 waits: QOSMaxGRESPerUser: user bob in partition main may hold 2 h100 and holds 0; this job needs 3
    "#]]
    .assert_eq(&super::story(&snapshot, &plan(&snapshot, WorkBudget::default())));
}

#[test]
fn sixteen_kinds_of_a_node_are_given_out_and_those_beyond_are_named() {
    let sixteen = (b'a'..=b'p')
        .map(|kind| format!("{}:1", char::from(kind)))
        .collect::<Vec<_>>()
        .join(" ");
    assert_eq!(
        left_out(&picture(&format!("node n1 {sixteen}")).nodes[0].gpus),
        []
    );
    check(
        &format!("node n1 {sixteen}\njob gpus=p:1\njob gpus=i:1\njob gpus=a:1\njob gpus=p:1"),
        expect![[r#"
        10 starts on n1[15]x1
        20 starts on n1[8]x1
        30 starts on n1[0]x1
        40 waits: Resources: needs 1 p, 1 CPU and 1G of memory on one node; most is free on n1: 0 GPUs, 61 CPUs and 509G of memory
    "#]],
    );
    let snapshot = picture(&format!("node n1 {sixteen} q:2 r:1"));
    assert_eq!(
        left_out(&snapshot.nodes[0].gpus),
        [("q".to_owned(), 2), ("r".to_owned(), 1)]
    );
}

const TWO_DOMAINS: &str = "switch leaf1 n[1-3]
     switch leaf2 n[4-5]
     node n1 h100:4 island=4 domain=a
     node n2 h100:4 island=4 domain=b
     node n3 h100:4 island=4 domain=b
     node n4 h100:4 island=4 domain=a
     node n5 h100:4 island=4 domain=a
     node n6 h100:4 island=4";

#[test]
fn a_job_of_several_nodes_stays_in_one_nvlink_domain_if_it_can() {
    check(
        &format!("{TWO_DOMAINS}\njob nodes=2 gpn=4\njob nodes=3 gpn=4\njob nodes=2 ntasks=2"),
        expect![[r#"
            10 starts on n2[0,1,2,3]x1 n3[0,1,2,3]x1
            20 starts on n1[0,1,2,3]x1 n4[0,1,2,3]x1 n5[0,1,2,3]x1
            30 starts on n4[]x1 n5[]x1
        "#]],
    );
}

#[test]
fn with_nvlink_it_waits_for_one_domain_and_never_gets_two() {
    check(
        &format!(
            "{TWO_DOMAINS}\nrunning 1 n4 gpus=0-3 left=60\nrunning 2 n2 gpus=0-3 left=90\njob nodes=3 gpn=4 nvlink\njob nodes=3 gpn=4\njob nodes=2 gpn=1 nvlink nodelist=n1,n3"
        ),
        expect![[r#"
            10 waits: Resources: needs 4 GPUs that NVLink joins, 1 CPU and 1G of memory on each of 3 nodes; most is free on n6: 4 GPUs, 64 CPUs and 512G of memory; room is expected by 1970-01-01T00:17:40Z
            20 waits: Priority: nodes it needs are planned for job 10
            30 waits: Priority: nodes it needs are planned for job 10
        "#]],
    );
}

#[test]
fn where_no_node_is_in_a_domain_nvlink_is_of_each_node() {
    check(
        "node n1 h100:4 island=4
         node n2 h100:4 island=4
         job nodes=2 gpn=4 nvlink",
        expect![[r#"
            10 starts on n1[0,1,2,3]x1 n2[0,1,2,3]x1
        "#]],
    );
}

#[test]
fn more_nodes_than_the_largest_domain_has_are_refused_with_its_size() {
    let snapshot = picture(&format!(
        "{TWO_DOMAINS}\njob nodes=4 gpn=4 nvlink\njob nodes=3 gpn=4 nvlink\njob nodes=4 gpn=4"
    ));
    let said: Vec<Option<String>> = snapshot
        .pending
        .iter()
        .map(|job| {
            gpolicy::feasibility::impossible::impossible(
                &job.spec.request,
                &snapshot.config.partitions[0],
                &snapshot.nodes,
            )
        })
        .collect();
    expect![[r#"
        [
            Some(
                "--nvlink on 4 nodes: the largest NVLink domain in partition \"main\" has 3. Ask for fewer, or leave out --nvlink.",
            ),
            None,
            None,
        ]
    "#]]
    .assert_debug_eq(&said);
}

#[test]
fn ranks_follow_the_switches_and_domains_and_names_within() {
    check(
        "switch leaf1 n[1,3]
         switch leaf2 n[2,4]
         node n1 64c
         node n2 64c
         node n3 64c
         node n4 64c
         job nodes=4 ntasks=4",
        expect![[r#"
            10 starts on n1[]x1 n3[]x1 n2[]x1 n4[]x1
        "#]],
    );
}

#[test]
fn a_job_of_several_nodes_gets_gpus_on_the_same_rails() {
    let two = "node n1 h100:8\nnode n2 h100:8\nrunning 1 n1 gpus=0-1 left=60\njob nodes=2 gpn=2";
    check(
        two,
        expect![[r#"
        10 starts on n1[2,3]x1 n2[0,1]x1
    "#]],
    );
    check(
        &format!("rails n[1-2] of=0,1,2,3,4,5,6,7\n{two}"),
        expect![[r#"
        10 starts on n1[2,3]x1 n2[2,3]x1
    "#]],
    );
    // Two GPUs share a NIC: rails are met by either of them.
    check(
        &format!("rails n[1-2] of=0,0,1,1,2,2,3,3\n{two}"),
        expect![[r#"
        10 starts on n1[2,3]x1 n2[2,3]x1
    "#]],
    );
    check(
        "rails n[1-2] of=0,1,2,3,4,5,6,7\nnode n1 h100:8\nnode n2 h100:8\nrunning 1 n1 gpus=0-1,5 left=60\nrunning 2 n2 gpus=2,3 left=60\njob nodes=2 gpn=3",
        expect![[r#"
        10 starts on n1[4,6,7]x1 n2[4,6,7]x1
    "#]],
    );
}

#[test]
fn rails_cost_no_island_no_start_and_nothing_where_there_are_none() {
    // Of n1 an island is left on the high rails, of n2 on the low ones: links within a node come first.
    let islands = "node n1 h100:8 island=4\nnode n2 h100:8 island=4\nrunning 1 n1 gpus=0-1 left=60\nrunning 2 n2 gpus=6-7 left=60\njob nodes=2 gpn=4";
    check(
        &format!("rails n[1-2] of=0,1,2,3,4,5,6,7\n{islands}"),
        expect![[r#"
        10 starts on n1[4,5,6,7]x1 n2[0,1,2,3]x1
    "#]],
    );
    // No rail is free on both.
    let apart = "node n1 h100:4\nnode n2 h100:4\nrunning 1 n1 gpus=0-1 left=60\nrunning 2 n2 gpus=2-3 left=60\njob nodes=2 gpn=2";
    check(
        &format!("rails n[1-2] of=0,1,2,3\n{apart}"),
        expect![[r#"
        10 starts on n1[2,3]x1 n2[0,1]x1
    "#]],
    );
    // One of the nodes is in no such fabric, and of the other not all GPUs are.
    check(
        &format!("rails n1 of=0,1,2,3\n{apart}"),
        expect![[r#"
        10 starts on n1[2,3]x1 n2[0,1]x1
    "#]],
    );
    check(
        "rails n[1-2] of=0,1\nnode n1 h100:4\nnode n2 h100:4\nrunning 1 n1 gpus=0 left=60\njob nodes=2 gpn=2",
        expect![[r#"
        10 starts on n1[1,2]x1 n2[0,1]x1
    "#]],
    );
}

#[test]
fn whatever_is_free_rails_are_shared_where_some_are_and_change_no_start() {
    for (one, other) in (0u32..256)
        .step_by(7)
        .flat_map(|one| (0u32..256).step_by(11).map(move |other| (one, other)))
    {
        let busy = |bits: u32| {
            (0..8)
                .filter(|slot| bits & (1 << slot) != 0)
                .map(|slot| slot.to_string())
                .collect::<Vec<_>>()
                .join(",")
        };
        let mut text = "node n1 h100:8\nnode n2 h100:8\n".to_owned();
        for (run, bits) in [(1, one), (2, other)]
            .into_iter()
            .filter(|(_, bits)| *bits != 0)
        {
            text += &format!("running {run} n{run} gpus={} left=60\n", busy(bits));
        }
        text += "job nodes=2 gpn=2 time=60\n";
        let starts = |text: &str| plan(&picture(text), WorkBudget::default()).starts;
        let (plain, railed) = (
            starts(&text),
            starts(&format!("rails n[1-2] of=0,1,2,3,4,5,6,7\n{text}")),
        );
        assert_eq!(plain.len(), railed.len(), "{text}");
        let Some(start) = railed.first() else {
            continue;
        };
        let slots = |at: usize| {
            start.allocation[at]
                .gpus
                .slots()
                .map(|slot| slot.0)
                .collect::<Vec<_>>()
        };
        if (one | other).count_zeros() - 24 >= 2 {
            assert_eq!(slots(0), slots(1), "{text}");
        }
        assert!(
            slots(0).iter().all(|slot| one & (1 << slot) == 0)
                && slots(1).iter().all(|slot| other & (1 << slot) == 0),
            "{text}"
        );
    }
}
