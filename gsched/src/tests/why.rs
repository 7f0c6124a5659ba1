//! `--why` as text and as properties: what it proposes starts the job, and each blocker alone is not the whole of it.

use super::{NOW, picture};
use crate::{forecast, why};
use expect_test::{Expect, expect};
use gmodel::policy::Qos;
use gmodel::{JobId, NodeId, Reason, ReasonCode};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

pub(super) fn check(text: &str, job: u64, expect: Expect) {
    let snapshot = picture(text);
    let why = why(&snapshot, JobId(job)).unwrap();
    let mut out = format!("{} ahead\n", why.ahead);
    for blocker in &why.blockers {
        let until = blocker
            .until
            .map_or(String::new(), |at| format!(" (until {at})"));
        writeln!(out, "{}: {}{until}", blocker.code, blocker.text).unwrap();
    }
    if let Some(told) = &why.forecast {
        let start = told
            .start
            .map_or("never by what is known".into(), |at| at.to_string());
        writeln!(
            out,
            "expected {start} on {:?}",
            told.nodes.iter().map(|node| node.0).collect::<Vec<_>>()
        )
        .unwrap();
    }
    for change in &why.changes {
        writeln!(out, "{}: {}", change.option, change.starts).unwrap();
    }
    expect.assert_eq(&out);
}

#[test]
fn a_job_that_names_its_node_is_told_of_that_one() {
    // n2 and n3 are empty, and no blockers.
    check(
        "node n1 h100:8
         node n2 h100:8
         node n3 h100:8
         running 1 n1 gpus=0-5 left=600
         job gpus=4 nodelist=n1 time=1000",
        10,
        expect![[r#"
            0 ahead
            Resources: needs 4 GPUs, 1 CPU and 1G of memory on one node; n1 comes nearest and has 2 of 4 GPUs free, more becomes free there at 1970-01-01T00:26:40Z (until 1970-01-01T00:26:40Z)
            expected 1970-01-01T00:26:40Z on [1]
            --nodelist=: 1970-01-01T00:16:40Z
            --gpus 2: 1970-01-01T00:16:40Z
        "#]],
    );
    check(
        "node n1 h100:8
         node n2 h100:8
         node n3 h100:8
         running 1 n1 gpus=0-5 left=600
         job gpus=8 nodes=2 nodelist=n1 time=1000",
        10,
        expect![[r#"
            0 ahead
            Resources: needs 4 GPUs, 1 CPU and 1G of memory on each of 2 nodes; n1 comes nearest and has 2 of 4 GPUs free, more becomes free there at 1970-01-01T00:26:40Z (until 1970-01-01T00:26:40Z)
            expected 1970-01-01T00:26:40Z on [1, 2]
            --nodelist=: 1970-01-01T00:16:40Z
            --gpus 4: 1970-01-01T00:16:40Z
        "#]],
    );
    let of_a_partition =
        picture("partition main down\n node n1 h100:8\n job gpus=4 nodelist=n1 time=1000");
    let blockers = why(&of_a_partition, JobId(10)).unwrap().blockers;
    assert_eq!(
        blockers[0].text,
        r#"partition "main" is DOWN: it takes jobs and starts none"#
    );
}

#[test]
fn the_numbers_of_the_nearest_node_and_the_smallest_change() {
    check(
        "node n1 h100:8
         node n2 h100:8
         running 1 n1 gpus=0 left=600
         running 2 n2 gpus=0-3 left=60
         job gpus=8 time=1000
         job gpus=8 time=1000
         job gpus=2 time=9000",
        20,
        expect![[r#"
            1 ahead
            Resources: needs 8 GPUs, 1 CPU and 1G of memory on one node; n1 comes nearest and has 7 of 8 GPUs free, more becomes free there at 1970-01-01T00:26:40Z (until 1970-01-01T00:26:40Z)
            expected 1970-01-01T00:26:40Z on [1]
            --gpus 7: 1970-01-01T00:16:40Z
        "#]],
    );
}

#[test]
fn a_shorter_limit_fits_before_a_reservation() {
    check(
        "node n1 h100:8
         running 1 n1 gpus=0-3 left=600
         job gpus=8 time=1000
         job gpus=4 time=6000",
        20,
        expect![[r#"
            1 ahead
            Priority: nodes it needs are planned for job 10 (until 1970-01-01T00:43:20Z)
            expected 1970-01-01T00:43:20Z on [1]
            --time 10: 1970-01-01T00:16:40Z
        "#]],
    );
}

#[test]
fn all_blockers_are_told() {
    check(
        "licence matlab 1
         node n1 h100:8
         running 1 n1 gpus=0-3 left=600
         job gpus=8 time=1000 begin=60 held=user:bob licences=matlab:2",
        10,
        expect![[r#"
            0 ahead
            JobHeldUser: held by user:bob
            BeginTime: not before 1970-01-01T00:17:40Z (until 1970-01-01T00:17:40Z)
            Licenses: needs 2 of licence "matlab", and there are 1
            Resources: needs 8 GPUs, 1 CPU and 1G of memory on one node; n1 comes nearest and has 4 of 8 GPUs free, more becomes free there at 1970-01-01T00:26:40Z
            expected never by what is known on []
        "#]],
    );
}

#[test]
fn of_a_job_that_names_its_nodes_only_those_are_spoken_of() {
    check(
        "node n1 h100:8
         node n2 h100:8
         running 1 n1 gpus=0 left=600
         job gpus=8 time=1000 nodelist=n1",
        10,
        expect![[r#"
            0 ahead
            Resources: needs 8 GPUs, 1 CPU and 1G of memory on one node; n1 comes nearest and has 7 of 8 GPUs free, more becomes free there at 1970-01-01T00:26:40Z (until 1970-01-01T00:26:40Z)
            expected 1970-01-01T00:26:40Z on [1]
            --gpus 7: 1970-01-01T00:16:40Z
            --nodelist=: 1970-01-01T00:16:40Z
        "#]],
    );
}

#[test]
fn of_nodes_as_near_the_one_where_more_comes_first_is_named() {
    check(
        "node n1 h100:4
         node n2 h100:4
         node n3 a100:4
         running 1 n1 gpus=0-3 left=600
         running 2 n2 gpus=0-3 left=300
         running 3 n3 gpus=0-3 left=100
         job gpus=h100:2 time=1000",
        10,
        expect![[r#"
            0 ahead
            Resources: needs 2 h100, 1 CPU and 1G of memory on one node; n2 comes nearest and has 0 of 2 GPUs free, more becomes free there at 1970-01-01T00:21:40Z (until 1970-01-01T00:21:40Z)
            expected 1970-01-01T00:21:40Z on [2]
            --gpus a100:2: 1970-01-01T00:18:20Z
        "#]],
    );
}

#[test]
fn a_job_of_a_later_reservation_is_told_its_start() {
    let queue = |job: &str| {
        format!(
            "reservation course gpus=4 user=alice from=100 secs=300 daily
             node n1 h100:8
             running 1 n1 gpus=0-5 left=150
             {job}"
        )
    };
    check(
        &queue("job gpus=2 user=alice reservation=course time=60"),
        10,
        expect![[r#"
        0 ahead
        Reservation: reservation "course" begins at 1970-01-01T00:18:20Z (until 1970-01-01T00:18:20Z)
        expected 1970-01-01T00:18:20Z on [1]
    "#]],
    );
    check(
        &queue("job gpus=3 user=alice reservation=course time=60"),
        10,
        expect![[r#"
        0 ahead
        Reservation: reservation "course" begins at 1970-01-01T00:18:20Z (until 1970-01-01T00:19:10Z)
        expected 1970-01-01T00:19:10Z on [1]
    "#]],
    );
    // Too large, too long, closed to its user.
    check(
        &queue("job gpus=5 user=alice reservation=course time=60"),
        10,
        expect![[r#"
        0 ahead
        Reservation: reservation "course" begins at 1970-01-01T00:18:20Z
        Reservation: needs 5 GPUs, and reservation "course" has 4 GPUs
        expected never by what is known on []
    "#]],
    );
    check(
        &queue("job gpus=2 user=alice reservation=course time=3000 time_min=301"),
        10,
        expect![[r#"
        0 ahead
        Reservation: asks for 301 s, and reservation "course" lasts 5 min
        Resources: needs 2 GPUs, 1 CPU and 1G of memory on one node; 1 of 1 such nodes have room, more becomes free there at 1970-01-01T00:18:20Z
        expected never by what is known on []
    "#]],
    );
    check(
        &queue("job gpus=2 user=bob reservation=course time=60"),
        10,
        expect![[r#"
        0 ahead
        Reservation: reservation "course" is not for user "bob" in account ""
        Resources: needs 2 GPUs, 1 CPU and 1G of memory on one node; 1 of 1 such nodes have room, more becomes free there at 1970-01-01T00:18:20Z (until 1970-01-01T00:18:20Z)
        expected never by what is known on []
    "#]],
    );
}

#[test]
fn a_job_that_would_end_after_its_deadline_has_no_start() {
    let mut snapshot = picture("node n1 h100:1\nrunning 1 n1 gpus=0 left=100\njob gpus=1 time=50");
    for (deadline, start) in [(None, Some(100)), (Some(150), Some(100)), (Some(149), None)] {
        std::sync::Arc::make_mut(&mut snapshot.pending[0].spec).deadline =
            deadline.map(|secs| NOW.plus_secs(secs));
        let told = crate::forecast(&snapshot, &BTreeSet::from([JobId(10)]));
        assert_eq!(
            (
                told[0].start.map(|at| at.since_secs(NOW)),
                told[0].nodes.len()
            ),
            (start, usize::from(start.is_some())),
            "{deadline:?}"
        );
    }
}

#[test]
fn a_job_expected_to_be_short_needs_its_whole_limit_beside_reservations() {
    let mut lengths = gpolicy::run_lengths::RunLengths::default();
    let whose = |user| gpolicy::run_lengths::RunOwner {
        account: "",
        user,
        partition: "main",
    };
    (0..8).for_each(|_| lengths.note(whose("ann"), Some(2000), 100));
    let expected = |reservation: &str, job: &str| {
        let picture = picture(&format!(
            "reservation r {reservation}\nnode n1 h100:8\nrunning 1 n1 gpus=0-7 left=50\n{job}"
        ));
        let told = forecast(
            &picture.clone().believed(&lengths),
            &picture.pending.iter().map(|job| job.id).collect(),
        );
        told.iter()
            .map(|one| one.start.map(|at| at.since_secs(NOW)))
            .collect::<Vec<_>>()
    };
    let job = "job gpus=8 user=ann time=2000";
    assert_eq!(expected("maint from=2050 secs=500", job), [Some(50)]);
    assert_eq!(
        expected("maint from=2049 secs=500", job),
        [Some(2549)],
        "a second is short"
    );
    assert_eq!(expected("maint from=60 secs=500", job), [Some(560)]);
    assert_eq!(
        expected("user=bob from=1000 secs=500 daily", job),
        [Some(1500)],
        "which comes again, but not so soon"
    );
    let short = "job gpus=8 user=ann time=900";
    assert_eq!(
        expected(
            "maint from=1000 secs=500",
            &format!("{job}\n{short}\n{job}")
        ),
        [Some(1500), Some(50), Some(1600)],
        "each by its own limit"
    );
    assert_eq!(
        expected(
            "maint from=1000 secs=500",
            &format!("{short}\n{job}\n{short}")
        ),
        [Some(50), Some(1500), Some(95)]
    );
    // Its own it ends with, and needs a minute of it.
    let inside = "job gpus=8 user=ann time=2000 reservation=r";
    assert_eq!(expected("user=ann from=100 secs=59 daily", inside), [None]);
    assert_eq!(
        expected("user=ann from=100 secs=60 daily", inside),
        [Some(100)]
    );
    assert_eq!(
        expected(
            "user=ann from=100 secs=160 daily",
            &format!("{inside}\n{inside}")
        ),
        [Some(100), Some(200)]
    );
    assert_eq!(
        expected(
            "user=ann from=100 secs=159 daily",
            &format!("{inside}\n{inside}")
        ),
        [Some(100), Some(86_500)],
        "100 s later it ends too soon"
    );
}

#[test]
fn a_job_expected_to_be_short_needs_its_whole_limit_beside_gpus_reserved_by_number() {
    let mut lengths = gpolicy::run_lengths::RunLengths::default();
    let whose = |user| gpolicy::run_lengths::RunOwner {
        account: "",
        user,
        partition: "main",
    };
    (0..8).for_each(|_| lengths.note(whose("ann"), Some(2000), 100));
    let expected = |text: &str| {
        let picture = picture(text);
        let told = forecast(
            &picture.clone().believed(&lengths),
            &picture.pending.iter().map(|job| job.id).collect(),
        );
        told.iter()
            .map(|one| one.start.map(|at| at.since_secs(NOW)))
            .collect::<Vec<_>>()
    };
    let one = |reserved: u32, from: u32, job: &str| {
        expected(&format!(
            "reservation r user=bob gpus={reserved} from={from} secs=500\nnode n1 h100:8\nrunning 1 n1 gpus=0-7 left=50\njob user=ann time=2000 {job}"
        ))
    };
    assert_eq!(one(8, 2050, "gpus=8"), [Some(50)]);
    assert_eq!(one(8, 2049, "gpus=8"), [Some(2549)], "a second is short");
    assert_eq!(
        (one(4, 1000, "gpus=4"), one(4, 1000, "gpus=5")),
        (vec![Some(50)], vec![Some(1500)]),
        "beside four that are set apart"
    );
    assert_eq!(
        (one(1, 1000, "exclusive"), one(1, 1000, "cpus=4")),
        (vec![Some(1500)], vec![Some(0)])
    );
    // On another node sooner; after the window where that is full for longer.
    let two = |left: u32| {
        expected(&format!(
            "reservation r user=bob gpus=8 from=1000 secs=500\nnode n1 h100:8\nnode n2 h100:9\nrunning 1 n1 gpus=0-7 left=50\nrunning 2 n2 gpus=0-8 left={left}
             job user=ann time=2000 gpus=8"
        ))
    };
    assert_eq!((two(700), two(3000)), (vec![Some(700)], vec![Some(1500)]));
    // Its own is for it.
    assert_eq!(
        expected(
            "reservation r user=ann gpus=8 from=100 secs=500\nnode n1 h100:8\njob user=ann time=2000 gpus=8 reservation=r"
        ),
        [Some(100)]
    );
}

#[test]
fn a_preemptor_is_forecast_for_the_end_of_its_victims() {
    let mut snapshot = picture(
        "node n1 h100:4
         running 1 n1 gpus=0-3 left=100000
         job gpus=4 time=50
         job gpus=4 time=50",
    );
    let qos = |name: &str, over: &[&str]| Qos {
        name: name.into(),
        preempt: over.iter().map(|name| (*name).to_owned()).collect(),
        ..Qos::default()
    };
    let all = [
        ("low".to_owned(), qos("low", &[])),
        ("high".to_owned(), qos("high", &["low"])),
    ];
    snapshot.policy = Arc::new(gmodel::Policy {
        qos: all.into(),
        ..gmodel::Policy::default()
    });
    snapshot
        .pending
        .iter_mut()
        .for_each(|job| Arc::make_mut(&mut job.spec).qos = "high".into());
    snapshot.running.iter_mut().for_each(|run| {
        let spec = Arc::make_mut(&mut run.spec);
        (spec.qos, spec.partition) = ("low".into(), "main".into());
    });
    let told = forecast(&snapshot, &BTreeSet::from([10, 20].map(JobId)));
    let starts: Vec<_> = told
        .iter()
        .map(|one| one.start.map(|at| at.since_secs(NOW)))
        .collect();
    // 30 s to be killed, and a little to enter the plan; then the first runs for its 50 s.
    assert_eq!(starts, [Some(40), Some(90)]);
    // The order is given: it is expected when that run leaves.
    snapshot.running[0].stops_by = Some(NOW.plus_secs(15));
    snapshot.running[0].victim_of = Some(JobId(10));
    let told = forecast(&snapshot, &BTreeSet::from([JobId(10)]));
    assert_eq!(told[0].start.map(|at| at.since_secs(NOW)), Some(15));
}

#[test]
fn a_job_that_may_preempt_later_is_told_from_when() {
    let told = |runs: &str| {
        let snapshot = super::world::world(&format!(
            "node n1 h100:4
             qos low min=600 mode=requeue
             qos off min=600 mode=off
             qos any mode=requeue
             qos high preempts=low,off,any
             {runs}
             job 10 a ann 4 qos=high limit=100"
        ));
        let why = why(&snapshot, JobId(10)).unwrap();
        let secs = |at: Option<gmodel::Timestamp>| at.map(|at| at.since_secs(super::world::NOW));
        if let Some(from) = secs(why.blockers[0].may_preempt_from) {
            let looked = secs(crate::preempt::protection::next_unprotected(&snapshot));
            assert!(
                looked.is_some_and(|at| at <= from),
                "nobody looks at it then: {looked:?}, {from}"
            );
        }
        (
            secs(why.blockers[0].may_preempt_from),
            secs(why.blockers[0].until),
            secs(why.forecast.unwrap().start),
        )
    };
    let low = "run 1 a bob 3 on=n1 qos=low ago=100 limit=7200";
    // Then 30 s to be killed, and a little to enter the plan.
    assert_eq!(told(low), (Some(500), Some(7100), Some(540)));
    assert_eq!(
        told(&format!(
            "{low}\nrun 2 a bob 1 on=n1 qos=low ago=50 limit=7200"
        )),
        (Some(550), Some(7150), Some(590)),
        "both must go"
    );
    assert_eq!(
        told(&format!(
            "{low}\nrun 2 a bob 1 on=n1 qos=any ago=50 limit=7200"
        )),
        (Some(500), Some(7150), Some(540))
    );
    assert_eq!(
        told(&format!(
            "{low}\nrun 2 a bob 1 on=n1 qos=off ago=50 limit=7200"
        )),
        (None, Some(7150), Some(7150)),
        "one is never ended for others"
    );
    assert_eq!(
        told("run 1 a bob 3 on=n1 qos=any ago=100 limit=7200"),
        (None, Some(7100), Some(40)),
        "it may be now"
    );
    assert_eq!(
        told("run 1 a bob 3 on=n1 qos=low ago=100 limit=550"),
        (None, Some(450), Some(450)),
        "it is over before"
    );
}

/// Runs preempted for an earlier job make room for that job only.
#[test]
fn runs_that_may_be_ended_later_go_for_one_only() {
    let snapshot = super::world::world(
        "node n1 h100:4
         qos low min=600 mode=requeue
         qos high preempts=low
         run 1 a bob 2 on=n1 qos=low ago=100 limit=7200
         run 2 a bob 2 on=n1 qos=low ago=0 limit=7200
         job 10 a ann 2 qos=high limit=1000
         job 11 a ann 2 qos=high limit=100
         job 12 a ann 2 qos=high limit=100
         job 13 a ann 2 limit=100",
    );
    let all = snapshot.pending.iter().map(|job| job.id).collect();
    let starts: Vec<_> = forecast(&snapshot, &all)
        .iter()
        .map(|one| one.start.map(|at| at.since_secs(super::world::NOW)))
        .collect();
    assert_eq!(
        starts,
        [540, 640, 740, 840].map(Some),
        "the second run for the second job, after which there is room for the others"
    );
}

#[test]
fn what_is_in_the_way_of_each_kind_of_gpus_is_told_by_itself() {
    let mut snapshot = picture(
        "node n1 l4:8\nnode n2 h100:8\nrunning 1 n1 gpus=0 left=600\njob gpus=l4:8|h100:4|a100:1 time=100",
    );
    Arc::make_mut(&mut snapshot.config).partitions[0].group.gpus =
        Some(super::world::amounts("h100:2"));
    let told = why(&snapshot, JobId(10)).unwrap();
    let codes =
        |blockers: &[crate::Blocker]| blockers.iter().map(|one| one.code).collect::<Vec<_>>();
    assert_eq!(
        (told.alternative.as_deref(), codes(&told.blockers)),
        (Some("l4:8"), vec![ReasonCode::Resources])
    );
    let others: Vec<_> = told
        .alternatives
        .iter()
        .map(|one| (&*one.gpus, codes(&one.blockers)))
        .collect();
    assert_eq!(
        others,
        [
            ("h100:4", vec![ReasonCode::QOSGrpGRES]),
            ("a100:1", vec![ReasonCode::PartitionConfig])
        ]
    );
    let one = picture("node n1 l4:8\nrunning 1 n1 gpus=0 left=600\njob gpus=l4:8 time=100");
    let told = why(&one, JobId(10)).unwrap();
    assert_eq!((told.alternative, told.alternatives.len()), (None, 0));
}

#[test]
fn forecasts_follow_the_queue() {
    let snapshot = picture(
        "node n1 h100:8
         running 1 n1 gpus=0-7 left=100
         job gpus=8 time=50
         job gpus=4 time=50
         job gpus=5 time=50
         job gpus=4 time=50 held=user:bob",
    );
    let told = forecast(&snapshot, &BTreeSet::from([20, 30, 40].map(JobId)));
    let starts: Vec<_> = told
        .iter()
        .map(|one| (one.job.0, one.start.map(|at| at.since_secs(NOW)), one.ahead))
        .collect();
    assert_eq!(
        starts,
        [(20, Some(150), 1), (30, Some(200), 2), (40, None, 3)]
    );
    assert_eq!(told[0].nodes, [NodeId(1)]);
}

#[test]
fn a_borrowing_job_is_told_what_its_guarantee_lacks() {
    let snapshot = super::world::world(
        "node n1 h100:6
         node n2 l4:8
         account lab g=8
         account a under=lab g=4
         account b under=lab
         run 1 a ann 2 on=n1
         run 2 b bob 4 on=n1
         job 10 a ann h100:5
         job 11 b bob h100:2
         job 12 b bob h100:3 noborrow
         job 13 a ann h100:2 held",
    );
    let borrows = |job| why(&snapshot, JobId(job)).unwrap().borrows;
    assert_eq!(
        borrows(10).unwrap(),
        "account a is guaranteed 4 GPUs, and this job needs 5"
    );
    assert_eq!(
        borrows(11).unwrap(),
        "account lab is guaranteed 8 GPUs, of which 8 are used or guaranteed to accounts below it, and this job needs 2"
    );
    assert_eq!(
        (borrows(12), borrows(13)),
        (None, None),
        "the one is told by what is in its way, the other stands on its guarantee"
    );
}

#[test]
fn a_job_of_any_type_is_told_of_a_type_with_enough_guarantee() {
    // All h100 of lab are a's; of l4 b may stand on two.
    let snapshot = super::world::world(
        "node n1 h100:4
         node n2 l4:8
         account lab g=h100:4,gpu:6
         account a under=lab g=h100:4
         account b under=lab g=2
         run 1 b bob 1 on=n2
         run 2 a ann 4 on=n1
         run 3 a ann 7 on=n2
         job 10 b bob 2
         job 11 b bob h100:2
         job 12 b bob 3",
    );
    let borrows = |job| why(&snapshot, JobId(job)).unwrap().borrows.unwrap();
    assert_eq!(
        borrows(10),
        "account b is guaranteed 2 GPUs and uses 1 of them, and this job needs 2"
    );
    assert_eq!(
        borrows(11),
        "account lab is guaranteed 4 h100, of which 4 are guaranteed to accounts below it, and this job needs 2"
    );
    assert_eq!(
        borrows(12),
        "account b is guaranteed 2 GPUs, and this job needs 3"
    );
}

#[test]
fn a_job_that_is_not_pending_has_no_explanation() {
    assert_eq!(why(&picture("node n1 h100:8"), JobId(10)), None);
    assert_eq!(Reason::default().code, ReasonCode::None);
}
