use super::*;
use crate::snapshot::Snapshot;
use crate::tests::world::world;
use expect_test::{Expect, expect};

fn shown(snapshot: &Snapshot) -> String {
    let ledger = Ledger::new(snapshot);
    let line = |one: OrderedJob| {
        let job = &snapshot.pending[one.at];
        let class = one
            .class
            .map_or(String::new(), |class| format!(" {class:?}"));
        format!("{} {}{class}\n", job.id, one.factors.priority)
    };
    in_order(snapshot, &ledger).into_iter().map(line).collect()
}

fn check(text: &str, want: Expect) {
    want.assert_eq(&shown(&world(text)));
}

#[test]
fn without_a_policy_the_older_goes_first_and_nice_counts() {
    check(
        "node n1 h100:8
         job 1 a ann 1 ago=60
         job 2 a ann 1 ago=90
         job 3 a ann 1 ago=90 nice=5
         job 4 a ann 1 ago=604800
         job 5 a ann 1 ago=1209600
         job 6 a ann 1 nice=-7",
        expect![[r#"
            5 20000
            4 20000
            6 10007
            2 10001
            1 10000
            3 9996
        "#]],
    );
}

#[test]
fn the_tier_goes_before_everything() {
    check(
        "node n1 h100:8
         partition fast tier=2
         qos high priority=10
         job 1 a ann 1 qos=high
         job 2 a ann 1 partition=fast nice=1000",
        expect![[r#"
            2 9000
            1 20000
        "#]],
    );
}

#[test]
fn the_user_with_less_usage_goes_first() {
    check(
        "node n1 h100:8
         account a
         account b
         run 1 a ann 4 on=n1 ago=3600
         run 2 b bob 2 on=n1 ago=3600
         job 3 a ann 1
         job 4 a cat 1
         job 5 b bob 1",
        expect![[r#"
            5 10000
            4 6666
            3 3333
        "#]],
    );
}

#[test]
fn guaranteed_goes_before_borrowed_within_a_tier() {
    check(
        "node n1 h100:8
         partition fast tier=2
         account a g=4
         account b g=2
         qos high priority=1
         run 1 a ann 1 on=n1 class=g
         job 2 b bob 2 nice=100
         job 3 b bob 1 nice=50
         job 4 a ann 4 qos=high
         job 5 a ann 3 nice=200
         job 6 free eve 1 partition=fast
         job 7 a ann 1 nice=300 held",
        expect![[r#"
            6 10000 Borrowed
            3 9950 Guaranteed
            5 9800 Guaranteed
            4 20000 Borrowed
            2 9900 Borrowed
            7 9700
        "#]],
    );
}

#[test]
fn a_job_outside_of_quotas_goes_by_priority_among_borrowers() {
    check(
        "node n1 h100:8
         account a g=4
         qos scav outside
         job 1 a ann 1 qos=scav nice=50
         job 2 a ann 1 qos=scav nice=200
         job 3 b bob 1 nice=100
         job 4 a ann 1 nice=300",
        expect![[r#"
            4 9700 Guaranteed
            1 9950
            3 9900 Borrowed
            2 9800
        "#]],
    );
}

#[test]
fn tasks_of_an_array_take_the_guarantee_one_by_one() {
    check(
        "node n1 h100:8
         account a g=4
         job 1 a ann 1 tasks=3
         job 2 a ann 1 nice=1
         job 3 a ann 1 nice=2",
        expect![[r#"
            1 10000 Guaranteed
            2 9999 Guaranteed
            3 9998 Borrowed
        "#]],
    );
}

#[test]
fn a_job_that_may_not_start_has_no_class_and_queues_with_the_borrowers() {
    let mut snapshot = world(
        "node n1 h100:8
         account a g=4
         job 1 a ann 1 held
         job 2 a ann 1 nice=1
         job 3 a ann 1 nice=2
         job 4 a ann 1 nice=3
         job 5 b bob 1 nice=4",
    );
    snapshot.pending[2].eligible = snapshot.now.plus_secs(60);
    snapshot.pending[3].particulars.dependency = Some(gmodel::Reason::new(
        gmodel::ReasonCode::Dependency,
        "waits for job 9",
    ));
    expect![[r#"
        2 9999 Guaranteed
        1 10000
        3 9998
        4 9997
        5 9996 Borrowed
    "#]]
    .assert_eq(&shown(&snapshot));
}

#[test]
fn an_operators_priority_replaces_the_sum() {
    let mut snapshot = world("node n1 h100:8\n job 1 a ann 1\n job 2 a ann 1 nice=100");
    Arc::make_mut(&mut snapshot.pending[1].spec).priority = Some(20_000);
    expect![[r#"
        2 20000
        1 10000
    "#]]
    .assert_eq(&shown(&snapshot));
}

#[test]
fn the_sites_own_factor_counts_up_to_its_weight() {
    let mut snapshot = world("node n1 h100:8\n job 1 a ann 1\n job 2 a ann 1\n job 3 a ann 1");
    for (at, milli) in [(1, 500), (2, 7000)] {
        Arc::make_mut(&mut snapshot.pending[at].spec).site_factor_milli = Some(milli);
    }
    expect![[r#"
        3 11000
        2 10500
        1 10000
    "#]]
    .assert_eq(&shown(&snapshot));
}

#[test]
fn size_and_partition_have_their_factors() {
    let mut snapshot = world(
        "node n1 h100:8\n node n2 h100:8\n job 1 a ann 4 nodes=2\n job 2 a ann h100:4\n job 3 a ann 0",
    );
    let config = Arc::make_mut(&mut snapshot.config);
    config.scheduler.priority.size = 1000;
    config.partitions[0].priority_factor = 3;
    let parts = |snapshot: &Snapshot| {
        let order = in_order(snapshot, &Ledger::new(snapshot));
        let mut parts: Vec<_> = order.iter().map(|one| (one.at, one.factors)).collect();
        parts.sort_by_key(|(at, _)| *at);
        let weights = &snapshot.config.scheduler.priority;
        parts
            .iter()
            .map(|(_, one)| (one.size, one.weighted(weights).size, one.partition))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        parts(&snapshot),
        [
            (250_000, 250, 1_000_000),
            (250_000, 250, 1_000_000),
            (7_812, 7, 1_000_000)
        ]
    );
    Arc::make_mut(&mut snapshot.config)
        .scheduler
        .priority
        .favor_small = true;
    assert_eq!(parts(&snapshot)[0], (750_000, 750, 1_000_000));
}

/// 3g.40gb has three of seven compute slices and half of the memory: it is charged, and stands on a guarantee, as a half.
#[test]
fn a_slice_is_as_large_as_what_it_is_charged_with() {
    let mut snapshot =
        world("node n1 h100:3 cut=3g.40gb+4g.40gb\n job 1 a ann 3g.40gb:1\n job 2 a ann 1g.10gb:1");
    Arc::make_mut(&mut snapshot.config).scheduler.priority.size = 1000;
    let order = in_order(&snapshot, &Ledger::new(&snapshot));
    let size = |id: u64| {
        order
            .iter()
            .find(|one| snapshot.pending[one.at].id == JobId(id))
            .unwrap()
            .factors
            .size
    };
    assert_eq!(
        (size(1), size(2)),
        (125_000, 35_500),
        "of a slice that is nowhere its name says the least"
    );
}

#[test]
fn first_come_and_shortest_first_are_textbook() {
    let text = "node n1 h100:8
         account a g=4
         partition fast tier=2
         job 1 a ann 1 ago=10 limit=600
         job 2 b bob 1 ago=20 limit=60 nice=1000
         job 3 b bob 1 ago=20
         job 4 a ann 1 ago=5 limit=600 partition=fast";
    let mut snapshot = world(text);
    let mut ids = |order| {
        Arc::make_mut(&mut snapshot.config).scheduler.order = order;
        let ordered = in_order(&snapshot, &Ledger::new(&snapshot));
        ordered
            .iter()
            .map(|one| snapshot.pending[one.at].id.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(JobOrder::Fifo), [2, 3, 1, 4]);
    assert_eq!(ids(JobOrder::Sjf), [2, 1, 4, 3]);
}

#[test]
fn what_starts_keeps_the_number_of_its_place_in_line() {
    let snapshot = world(
        "node n1 h100:8
         qos high priority=10
         job 3 a ann 1 qos=high nice=7
         job 4 a ann 1 nice=500
         job 10 a ann 1 tasks=3 nice=-40
         job 20 a ann 9",
    );
    let order = in_order(&snapshot, &Ledger::new(&snapshot));
    let number = |id: u64| {
        order
            .iter()
            .find(|one| snapshot.pending[one.at].id == JobId(id))
            .unwrap()
            .factors
            .priority
    };
    let plan = crate::plan(&snapshot, crate::WorkBudget::default());
    let told = super::of_starts(&snapshot, &plan.starts);
    let want = [
        (3, number(3)),
        (4, number(4)),
        (10, number(10)),
        (11, number(10)),
        (12, number(10)),
    ];
    assert_eq!(told, want.map(|(id, number)| (JobId(id), number)));
    assert!(number(3) != number(4) && super::of_starts(&snapshot, &[]).is_empty());
}

#[test]
fn running_work_counts_and_a_run_in_the_book_counts_once() {
    let mut snapshot = world(
        "node n1 h100:8
         run 1 a ann 4 on=n1 ago=3600
         run 2 a bob 2 on=n1 ago=3600",
    );
    let used = |snapshot: &Snapshot, user: &str| {
        let tree = FairTree::of(snapshot.usage_input(), &[]);
        tree.lines()
            .iter()
            .find(|(_, node)| node.user == Some(user))
            .map(|(_, node)| node.usage)
    };
    let (ann, bob) = (
        used(&snapshot, "ann").unwrap(),
        used(&snapshot, "bob").unwrap(),
    );
    assert!(
        (14_400_000..14_600_000).contains(&ann),
        "4 GPUs and 4 CPUs for an hour: {ann}"
    );
    assert!(ann > bob && bob > ann / 2 - 100_000);
    snapshot.running[0].charged = true;
    assert_eq!(used(&snapshot, "ann"), None);
}
