//! Idle GPUs: which runs are warned and ended, as stories; and what never happens over random samples,
//! restarts and jumps of the clock.

use crate::ctl::tests::world::{World, check};
use crate::ctl::*;
use expect_test::expect;
use gmodel::gpu_use::{GpuUseTotals, UseSample};
use gmodel::idle::IdleReport;
use gmodel::run::StopCause;
use gmodel::{NodeId, RunId, Timestamp};
use proptest::prelude::*;

#[test]
fn an_idle_run_is_warned_once_and_goes_back_to_the_queue_with_time_for_its_checkpoint() {
    check(
        "node n1 h100:2
         partition main default idle=requeue
         config idle_program=yes
         submit user=alice gpus=2 time=6000 checkpoint=USR1@120
         plan
         n1 running 1-1
         n1 idle 1-1 149 149,149
         idle
         n1 idle 1-1 150 150,150
         idle
         told 1-1 number=1
         n1 idle 1-1 180 180,180
         told 1-1 no mail today
         idle
         restart
         n1 hello 1-1=running
         n1 idle 1-1 349 349,349
         n1 told
         n1 idle 1-1 350 350,350
         n1 told
         n1 idle 1-1 380 380,380
         n1 stopped 1-1
         show",
        expect![[r#"
            job 1
            1: its GPUs did nothing for 2:29
            1: its GPUs did nothing for 2:30; warned; it goes back to the queue when that is 5:50
            program: 1-1 idle for 100 s, requeue in 200 s
            1: its GPUs did nothing for 3:00; warned; it goes back to the queue when that is 5:50
            n1 is told: 1-1 Run
            n1 is told: 1-1 stop (Requeued)
            1 alice PENDING None: 
        "#]],
    );
}

#[test]
fn a_job_requeued_for_idleness_that_idles_again_is_held_in_the_end() {
    check(
        "node n1 h100:1
         partition main default idle=requeue requeues=1
         submit user=alice gpus=1 time=60000
         plan
         n1 running 1-1
         n1 idle 1-1 150 150
         n1 idle 1-1 350 350
         n1 stopped 1-1
         plan
         n1 running 1-2
         restart
         n1 hello 1-2=running
         n1 idle 1-2 150 150
         n1 idle 1-2 350 350
         n1 stopped 1-2
         plan
         show
         release 1 user=alice
         plan
         n1 running 1-3
         requeue 1 user=alice
         n1 stopped 1-3
         plan
         n1 running 1-4
         n1 idle 1-4 150 150
         n1 idle 1-4 350 350
         n1 stopped 1-4
         show",
        expect![[r#"
            job 1
            1 alice PENDING JobHeldUser: held by user:alice HELD user:alice (idle policy: its GPUs did nothing for 5:50, as in the run before)
            1 alice PENDING None: 
        "#]],
    );
    check(
        "node n1 h100:1
         partition main default idle=requeue requeues=0
         submit user=alice gpus=1 time=60000
         plan
         n1 running 1-1
         n1 idle 1-1 150 150
         n1 idle 1-1 350 350
         n1 stopped 1-1
         show",
        expect![[r#"
            job 1
            1 alice PENDING None:  HELD user:alice (idle policy: its GPUs did nothing for 5:50)
        "#]],
    );
}

#[test]
fn a_policy_that_reports_or_warns_ends_nothing_and_one_that_is_switched_on_warns_first() {
    check(
        "node n1 h100:1
         partition main default idle=report
         config idle_program=yes
         submit user=alice gpus=1 time=60000
         plan
         n1 running 1-1
         n1 idle 1-1 900 900
         idle
         n1 idle 1-1 1100 1100
         idle
         partition main default idle=warn
         n1 idle 1-1 2000 2000
         n1 idle 1-1 5000 5000
         n1 told
         idle
         partition main default idle=cancel
         n1 idle 1-1 5030 5030
         n1 told
         partition main default idle=report
         n1 idle 1-1 6000 6000
         partition main default idle=cancel
         n1 idle 1-1 6030 6030
         n1 stopped 1-1
         show",
        expect![[r#"
            job 1
            1: its GPUs did nothing for 15:00; it would have been warned, but the policy only reports
            1: its GPUs did nothing for 18:20; it would have been ended, but the policy only reports
            n1 is told: 1-1 Run
            1: its GPUs did nothing for 1:23:20; warned
            program: 1-1 idle for 1950 s
            n1 is told: 1-1 stop (Cancelled)
            1 alice CANCELLED 0:0 (idle policy) (its GPUs did nothing for 1:23:50)
        "#]],
    );
}

#[test]
fn a_run_that_works_again_is_warned_again_and_a_qos_or_an_operator_exempts() {
    check(
        "node n1 h100:4
         partition main default idle=cancel
         qos notebook idle=off
         submit user=alice gpus=1 time=60000
         submit user=alice gpus=1 time=60000 qos=notebook
         submit user=alice gpus=1 time=60000
         submit user=alice gpus=1 time=60000 requeue=no
         update 3 user=alice exempt=yes
         update 3 exempt=yes
         plan
         n1 running 1-1
         n1 running 2-1
         n1 running 3-1
         n1 running 4-1
         n1 idle 1-1 200 200
         n1 idle 2-1 200 200
         n1 idle 3-1 200 200
         n1 idle 4-1 200 200
         n1 idle 1-1 300
         n1 idle 1-1 700 400
         n1 idle 2-1 700 700
         n1 idle 3-1 700 700
         partition main default idle=requeue
         n1 idle 4-1 700 700
         n1 told
         idle
         update 3 exempt=no
         n1 idle 3-1 730 730
         n1 idle 1-1 899 599
         n1 told
         n1 idle 1-1 900 600
         n1 told",
        expect![[r#"
            job 1
            job 2
            job 3
            job 4
            refused: only operators may exempt a job from the idle policy, or take that back.
            n1 is told: 1-1 Run, 2-1 Run, 3-1 Run, 4-1 stop (Cancelled)
            1: its GPUs did nothing for 6:40; warned; it goes back to the queue when that is 10:00
            2: its GPUs did nothing for 11:40
            3: its GPUs did nothing for 11:40
            n1 is told: 1-1 Run, 2-1 Run, 3-1 Run, 4-1 stop (Cancelled)
            n1 is told: 1-1 stop (Requeued), 2-1 Run, 3-1 Run, 4-1 stop (Cancelled)
        "#]],
    );
}

#[test]
fn a_run_on_several_nodes_is_idle_when_all_say_so_of_late() {
    check(
        "node n1 h100:2
         node n2 h100:2
         partition main default idle=cancel
         submit user=alice gpn=2 nodes=2 time=60000
         plan
         n1 ready 1-1
         n2 ready 1-1
         n1 running 1-1
         n2 running 1-1
         n1 idle 1-1 1000 1000,1000
         idle
         n2 idle 1-1 1000 80
         idle
         n2 idle 1-1 1020 100,100
         idle
         wait 121
         n1 idle 1-1 1140 1140,1140
         idle
         n2 idle 1-1 1140 220,220
         idle
         restart
         n1 hello 1-1=running
         n2 hello 1-1=running
         n1 idle 1-1 1200 1200,1200
         n2 idle 1-1 1200 280,280
         n2 told
         partition main default idle=cancel percent=50
         n2 idle 1-1 1220
         n2 told",
        expect![[r#"
            job 1
            1: its GPUs did nothing for 1:40; warned; it is cancelled when that is 5:00
            1: its GPUs did nothing for 1:40; warned; it is cancelled when that is 5:00
            1: its GPUs did nothing for 3:40; warned; it is cancelled when that is 5:00
            n2 is told: 1-1 Run
            n2 is told: 1-1 stop (Cancelled)
        "#]],
    );
}

/// What happens to a run of two GPUs on a node, and what the node samples of it.
#[derive(Clone, Debug)]
enum Step {
    /// So many seconds later a sample: percent of each GPU, if it is told.
    Sample {
        secs: i64,
        busy: [Option<u32>; 2],
    },
    /// Samples at zero, one after the other.
    Zero {
        secs: i64,
        times: u32,
    },
    /// No node samples.
    Silence {
        secs: i64,
    },
    /// The controller's clock jumps.
    Jump {
        secs: i64,
    },
    Restart,
    StandStill,
    GoOn,
    Exempt {
        yes: bool,
    },
    Policy {
        word: &'static str,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let busy = prop_oneof![6 => Just(Some(0u32)), 1 => Just(Some(40)), 1 => Just(None)];
    prop_oneof![
        4 => (1i64..60, [busy.clone(), busy]).prop_map(|(secs, busy)| Step::Sample { secs, busy }),
        8 => (1i64..60, 1u32..12).prop_map(|(secs, times)| Step::Zero { secs, times }),
        1 => (30i64..400).prop_map(|secs| Step::Silence { secs }),
        1 => (-5000i64..5000).prop_map(|secs| Step::Jump { secs }),
        1 => Just(Step::Restart),
        1 => Just(Step::StandStill),
        2 => Just(Step::GoOn),
        1 => any::<bool>().prop_map(|yes| Step::Exempt { yes }),
        1 => prop::sample::select(vec!["off", "report", "warn", "requeue", "cancel"]).prop_map(|word| Step::Policy { word }),
    ]
}

/// The node: sums as gpud keeps them, and beside them the plain truth.
struct Node {
    now: i64,
    last: Option<[UseSample; 2]>,
    totals: [GpuUseTotals; 2],
    /// When a sample last showed use of either, when one was last missed for long, when the run last stood still.
    worked: i64,
    missed: i64,
    still: i64,
    suspended: bool,
}

const RUN: &str = "1-1";
const WARN: i64 = 100;
const ACT: i64 = 300;
const GRACE: i64 = 50;

impl Node {
    fn sample(&mut self, busy: [Option<u32>; 2]) -> IdleReport {
        let samples = busy.map(|busy_percent| UseSample {
            at: Timestamp::from_secs(self.now),
            busy_percent,
            ..UseSample::default()
        });
        if let Some(last) = &self.last {
            if self.now - last[0].at.secs() > 90 {
                self.missed = self.now;
            }
            for at in 0..2 {
                self.totals[at].add(&last[at], &samples[at], 1000);
            }
        }
        if busy != [Some(0); 2] {
            self.worked = self.now;
        }
        if self.suspended {
            self.still = self.now;
            self.totals.iter_mut().for_each(|gpu| gpu.idle_now_ms = 0);
        }
        self.last = Some(samples);
        let watched = self
            .totals
            .iter()
            .map(|gpu| gpu.sampled_ms / 1000)
            .min()
            .unwrap_or(0);
        let idle = self
            .totals
            .iter()
            .map(|gpu| gpu.idle_now_ms as u32 / 1000)
            .filter(|secs| *secs > 0);
        IdleReport {
            run: RUN.parse().unwrap(),
            watched_secs: watched as u32,
            idle_secs: idle.collect(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn only_what_was_idle_all_the_time_is_warned_and_only_what_was_warned_is_ended(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for line in ["node n1 h100:2", "partition main default idle=requeue", "submit user=alice gpus=2 time=900000", "plan", "n1 running 1-1"] {
            world.line(line);
        }
        let run: RunId = RUN.parse().unwrap();
        let mut node = Node { now: 0, last: None, totals: Default::default(), worked: 0, missed: 0, still: 0, suspended: false };
        let (mut exempt, mut action) = (false, "requeue");
        // Of the warning in force, by the node's clock.
        let (mut warned, mut ended): (Option<i64>, u32) = (None, 0);
        for step in steps {
            let samples: Vec<(i64, [Option<u32>; 2])> = match step {
                Step::Sample { secs, busy } => vec![(secs, busy)],
                Step::Zero { secs, times } => (0..times).map(|_| (secs, [Some(0); 2])).collect(),
                Step::Silence { secs } => { node.now += secs; world.wait(secs); vec![] }
                Step::Jump { secs } => { world.now = world.now.plus_secs(secs); vec![] }
                Step::Restart => { world.line("restart"); world.line("n1 hello 1-1=running"); vec![] }
                Step::StandStill => { world.line("suspend 1"); node.suspended = true; vec![] }
                Step::GoOn => { world.line("go-on 1"); node.suspended = false; vec![] }
                Step::Exempt { yes } => { exempt = yes; world.line(if yes { "update 1 exempt=yes" } else { "update 1 exempt=no" }); vec![] }
                Step::Policy { word } => { action = word; world.line(&format!("partition main default idle={word}")); vec![] }
            };
            for (secs, busy) in samples {
                node.now += secs;
                world.wait(secs);
                let report = node.sample(busy);
                let before = world.state.run(run).unwrap().clone();
                world.feed(Input::Node { node: NodeId(1), report: NodeReport::Idle { runs: vec![report] } }).unwrap();
                let after = world.state.run(run).unwrap();
                let warning = |run: &Run| run.idle.as_ref().and_then(|idle| idle.warned.clone());
                let idle_since = node.worked.max(node.missed).max(node.still);
                if warning(after) != warning(&before) && warning(after).is_some_and(|new| !new.noted) {
                    prop_assert!(!exempt && action != "off" && !node.suspended);
                    prop_assert!(node.now >= GRACE + WARN, "warned {} s after its start", node.now);
                    prop_assert!(node.now - idle_since >= WARN, "warned {} s after it worked", node.now - idle_since);
                    warned = warning(after).filter(|new| new.real).map(|_| node.now);
                }
                if let (None, Some(stop)) = (&before.stop, &after.stop) {
                    prop_assert!(!exempt && !node.suspended && matches!(action, "requeue" | "cancel"));
                    prop_assert_eq!(stop.why == StopCause::Requeued, action == "requeue");
                    prop_assert!(node.now - idle_since >= ACT && node.now >= GRACE + ACT);
                    let warned = warned.expect("warned before it was ended");
                    prop_assert!(warned > idle_since && node.now - warned >= ACT - WARN, "ended {} s after its warning", node.now - warned);
                    ended += 1;
                }
            }
        }
        prop_assert!(ended <= 1);
    }
}
