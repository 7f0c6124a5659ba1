//! Random stories: whatever people, nodes and the clock do, the invariants hold and no job is lost.

use crate::ctl::tests::words::actor;
use crate::ctl::tests::world::World;
use crate::ctl::*;
use gmodel::checkpoint::CheckpointMark;
use gmodel::policy::PreemptMode;
use gmodel::run::{EndCause, RunEnd, RunPhase, RunReport};
use gmodel::{ExitCode, Fence, JobId, JobState, NodeId, RunId};
use gsched::{Plan, Preempt};
use proptest::prelude::*;

const USERS: [&str; 4] = ["alice", "bob", "carol", "root"];

const ACCOUNTS: [&str; 4] = ["", "lab", "vision", "nlp"];

/// Edits of the policy, which may or may not make sense when they are made.
const EDITS: [&str; 42] = [
    "account lab guaranteed=4 coordinators=bob",
    "account lab limit=3 queue=9",
    "account lab closed",
    "account lab gone",
    "account vision parent=lab guaranteed=2 users=alice,bob",
    "account vision parent=lab user_jobs=1 user_minute=3",
    "account vision guaranteed=h100:3 jobs=2",
    "account vision gone",
    "account nlp users=carol gpus=h100:2",
    "account nlp parent=vision default_qos=high",
    "user vision alice default jobs=1",
    "user vision alice gone",
    "qos high user_gpus=2 preempt=low max_time=90",
    "qos high gone",
    "qos low jobs=2",
    "qos normal user_queue=6 user_tasks=3",
    "qos normal",
    "reservation r nodes=n1 at=50 for=100 users=alice",
    "reservation r count=2 at=10 for=40 accounts=lab ignore_running",
    "reservation r gone",
    "reservation d gpus=4 at=5 for=30 users=bob daily",
    "licence matlab=2",
    "account lab guaranteed=6 lend=2",
    "account nlp guaranteed=4 budget=1",
    "account vision guaranteed=2 cap=1",
    "account vision parent=nlp guaranteed=h100:1 users=alice,bob,carol",
    "qos low headroom=h100:1",
    "qos high preempt=normal outside_quota",
    "reservation g gpus=h100:3 at=20 for=200 users=carol,alice flex",
    "reservation m nodes=n2 at=60 for=50 maintenance",
    "reservation p nodes=n1 at=5 for=300 users=alice,bob magnetic ignore_running",
    "reservation q nodes=n3 at=0 for=500 accounts=vision magnetic ignore_running purge=60",
    "reservation o nodes=n[1-2] at=20 for=100 users=carol overlap ignore_running",
    "reservation r count=1 at=0 for=900 users=alice purge=90 release_jobs ignore_running daily",
    "reservation r nodes=n2 at=0 for=600 users=alice,bob release_jobs ignore_running",
    "partition odd nodes=n1,n3",
    "partition odd nodes=n1-n3 tier=2 max_time=300",
    "partition odd nodes=n3 headroom=1 jobs=2",
    "partition odd nodes=n1,n3 preempt=off",
    "config backfill=1",
    "config backfill=100",
    "config backfill=all",
];

fn user_of() -> std::ops::Range<usize> {
    0..USERS.len()
}

/// One step; the numbers are reduced to what there is when it is taken.
#[derive(Clone, Debug)]
enum Step {
    Submit {
        user: usize,
        gpus: u32,
        nodes: u32,
        array: u32,
        options: u32,
        on: Option<String>,
    },
    Gang {
        user: usize,
        gpus: u32,
        others: Vec<u32>,
        options: usize,
    },
    Cancel {
        user: usize,
        job: u64,
    },
    Hold {
        user: usize,
        job: u64,
    },
    Release {
        user: usize,
        job: u64,
    },
    Requeue {
        user: usize,
        job: u64,
        held: bool,
    },
    StandStill {
        job: u64,
        goes_on: bool,
    },
    Update {
        user: usize,
        job: u64,
        limit: Option<u32>,
    },
    Resize {
        user: usize,
        job: u64,
        gpus: u32,
        partition: usize,
    },
    Depend {
        user: usize,
        job: u64,
        on: String,
    },
    Move {
        user: usize,
        job: u64,
        account: usize,
    },
    Preempt {
        run: usize,
        job: u64,
        mode: u8,
    },
    Mark {
        run: usize,
        number: u32,
    },
    Policy {
        by: usize,
        line: usize,
    },
    DrainBy {
        node: u32,
        secs: i64,
    },
    Plan,
    /// One run goes to its end on all its nodes, and what it leaves is given away at once.
    End {
        run: usize,
        code: u8,
    },
    Report {
        run: usize,
        member: usize,
        kind: u8,
    },
    Gone {
        node: u32,
    },
    Hello {
        node: u32,
        keep: u8,
        boot: u8,
    },
    Drain {
        node: u32,
    },
    Resume {
        node: u32,
    },
    Down {
        node: u32,
        fenced: bool,
    },
    Fenced {
        node: u32,
        well: bool,
        late: bool,
    },
    Fence {
        program: bool,
    },
    Wait {
        secs: i64,
    },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let user = 0..USERS.len();
    let job = 1u64..14;
    let node = 1u32..5;
    prop_oneof![
        12 => (0..3usize, 0u32..5, 1u32..3, 0u32..6, any::<u32>(), prop::option::weighted(0.4, dependency()))
            .prop_map(|(user, gpus, nodes, array, options, on)| Step::Submit { user, gpus, nodes, array, options, on }),
        3 => (user.clone(), 0u32..4, prop::collection::vec(0u32..4, 1..3), 0usize..12)
            .prop_map(|(user, gpus, others, options)| Step::Gang { user, gpus, others, options }),
        2 => (user.clone(), job.clone()).prop_map(|(user, job)| Step::Cancel { user, job }),
        1 => (user.clone(), job.clone()).prop_map(|(user, job)| Step::Hold { user, job }),
        1 => (user.clone(), job.clone()).prop_map(|(user, job)| Step::Release { user, job }),
        1 => (user.clone(), job.clone(), any::<bool>()).prop_map(|(user, job, held)| Step::Requeue { user, job, held }),
        2 => (job.clone(), any::<bool>()).prop_map(|(job, goes_on)| Step::StandStill { job, goes_on }),
        1 => (user.clone(), job.clone(), prop::option::of(1u32..500)).prop_map(|(user, job, limit)| Step::Update { user, job, limit }),
        1 => (user.clone(), job.clone(), 0u32..5, 0usize..4).prop_map(|(user, job, gpus, partition)| Step::Resize { user, job, gpus, partition }),
        2 => (user, job, dependency()).prop_map(|(user, job, on)| Step::Depend { user, job, on }),
        1 => (user_of(), 1u64..14, 0..ACCOUNTS.len()).prop_map(|(user, job, account)| Step::Move { user, job, account }),
        3 => (0usize..20, 1u64..14, 0u8..3).prop_map(|(run, job, mode)| Step::Preempt { run, job, mode }),
        1 => (0usize..20, 1u32..6).prop_map(|(run, number)| Step::Mark { run, number }),
        3 => (prop_oneof![1 => user_of(), 3 => Just(3usize)], 0..EDITS.len()).prop_map(|(by, line)| Step::Policy { by, line }),
        1 => (1u32..5, 0i64..100).prop_map(|(node, secs)| Step::DrainBy { node, secs }),
        10 => Just(Step::Plan),
        6 => (0usize..20, 0u8..2).prop_map(|(run, code)| Step::End { run, code }),
        16 => (0usize..20, 0usize..2, any::<u8>()).prop_map(|(run, member, kind)| Step::Report { run, member, kind }),
        1 => node.clone().prop_map(|node| Step::Gone { node }),
        2 => (node.clone(), any::<u8>(), 0u8..4).prop_map(|(node, keep, boot)| Step::Hello { node, keep, boot }),
        1 => node.clone().prop_map(|node| Step::Drain { node }),
        1 => node.clone().prop_map(|node| Step::Resume { node }),
        1 => (node.clone(), any::<bool>()).prop_map(|(node, fenced)| Step::Down { node, fenced }),
        2 => (node, any::<bool>(), any::<bool>()).prop_map(|(node, well, late)| Step::Fenced { node, well, late }),
        1 => any::<bool>().prop_map(|program| Step::Fence { program }),
        2 => (1i64..400).prop_map(|secs| Step::Wait { secs }),
        1 => Just(Step::Restart),
    ]
}

fn dependency() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(vec![
        "after",
        "afterany",
        "afterok",
        "afternotok",
        "aftercorr",
    ]);
    let one = prop_oneof![
        6 => (kind, 1u64..10).prop_map(|(kind, job)| format!("{kind}:{job}")),
        2 => (1u64..10, 0u32..3).prop_map(|(job, index)| format!("afterok:{job}_{index}")),
        1 => (1u64..10, 1u32..4).prop_map(|(job, mins)| format!("after:{job}+{mins}")),
        1 => Just("singleton".to_owned()),
    ];
    (prop::collection::vec(one, 1..3), any::<bool>())
        .prop_map(|(all, any)| all.join(if any { "?" } else { "," }))
}

fn phase(kind: u8) -> RunPhase {
    let causes = [
        EndCause::Exited,
        EndCause::Stopped,
        EndCause::TimeLimit,
        EndCause::OutOfMemory,
        EndCause::LaunchUser,
        EndCause::LaunchNode,
        EndCause::PrologFailed,
        EndCause::SupervisorLost,
    ];
    let cause = causes[usize::from(kind / 8) % causes.len()];
    let exit = ExitCode::exited(kind % 3);
    let end = RunEnd {
        cause,
        exit,
        text: "so".into(),
        ..RunEnd::default()
    };
    match kind % 8 {
        0 => RunPhase::Accepted,
        1 | 2 => RunPhase::Ready,
        3 | 4 => RunPhase::Running {
            started: gmodel::Timestamp::from_secs(5),
        },
        5 => RunPhase::Ended(end.into()),
        _ => RunPhase::Clean(end.into()),
    }
}

fn run_at(world: &World, at: usize) -> Option<RunId> {
    let runs: Vec<RunId> = world.state.runs.keys().collect();
    (!runs.is_empty()).then(|| runs[at % runs.len()])
}

fn take(world: &mut World, step: Step, ledger: &mut Vec<(JobId, u32)>) {
    // Every third time some tasks of an array.
    let state = &world.state;
    let targets = |job: u64| {
        let array = state
            .array_of(JobId(job))
            .map(|(array, position)| (array.id, position, array.tasks.clone()));
        match array.filter(|_| job.is_multiple_of(3)) {
            Some((array, position, tasks)) => {
                let some = gmodel::array_spec::RangeSet::from_iter(
                    (0..tasks.len()).filter(|at| at % 3 != position % 3),
                );
                vec![
                    tasks
                        .at(&some)
                        .map_or(Target::Job(array), |indices| Target::Tasks {
                            array,
                            indices,
                        }),
                ]
            }
            None => vec![Target::Job(JobId(job))],
        }
    };
    let command = |user: usize, command| Input::Command {
        actor: actor(USERS[user]),
        command,
    };
    let input = match step {
        Step::Submit {
            user,
            gpus,
            nodes,
            array,
            options,
            on,
        } => {
            let mut line = format!("submit user={} nodes={nodes} time=100", USERS[user]);
            if gpus > 0 {
                line.push_str(&format!(" gpn={gpus}"));
            }
            if array > 0 {
                line.push_str(&format!(" array=0-{array}%2"));
            }
            for (bit, word) in [
                " held",
                " no_kill",
                " exclusive",
                " begin=50",
                " requeue=no",
                " kill=yes",
                " deadline=400",
                " time_min=30",
            ]
            .iter()
            .enumerate()
            {
                if (options >> (2 * bit)) & 3 == 3 {
                    line.push_str(word);
                }
            }
            let extra = [
                " partition=odd",
                " qos=low",
                " mem=300G",
                " cpus=20",
                " any",
                " qos=normal",
                " account=nlp",
                " partition=main,odd",
                " partition=odd,main",
                " account=vision",
                " account=lab",
                " qos=high",
                " reservation=r",
                " licences=matlab",
                " checkpoint=USR1@20",
                " borrow=no",
            ];
            if let Some(word) = extra.get((options >> 20) as usize % 25) {
                line.push_str(word);
            }
            if let Some(on) = on {
                line.push_str(&format!(" dep={on}"));
            }
            let before = world.state.next_job;
            world.line(&line);
            if world.state.next_job > before {
                ledger.push((JobId(before), (world.state.next_job - before) as u32));
            }
            return;
        }
        Step::Gang {
            user,
            gpus,
            others,
            options,
        } => {
            let option = [
                "held",
                "no_kill",
                "requeue=no",
                "qos=low",
                "qos=high",
                "account=lab",
                "account=nlp",
                "licences=matlab",
                "dep=afterok:2",
                "nodes=2",
                "deadline=400",
                "begin=50",
            ][options];
            let on = |at: usize| if at % 2 == 0 { "main" } else { "odd" };
            let mut line = format!("gang user={} time=100 gpn={gpus} {option}", USERS[user]);
            for (at, gpus) in others.into_iter().enumerate() {
                line.push_str(&format!(" : gpn={gpus} partition={}", on(at + options)));
            }
            let before = world.state.next_job;
            world.line(&line);
            let new = world.state.next_job - before;
            ledger.extend((0..new).map(|at| (JobId(before + at), 1)));
            return;
        }
        Step::Cancel { user, job } => command(
            user,
            Command::Cancel {
                targets: targets(job),
                signal: None,
            },
        ),
        Step::Hold { user, job } => command(
            user,
            Command::Hold {
                targets: targets(job),
                reason: "r".into(),
                for_owner: false,
            },
        ),
        Step::Release { user, job } => command(
            user,
            Command::Release {
                targets: targets(job),
            },
        ),
        Step::StandStill { job, goes_on } => {
            let targets = targets(job);
            command(
                3,
                if goes_on {
                    Command::Resume { targets }
                } else {
                    Command::Suspend { targets }
                },
            )
        }
        Step::Requeue { user, job, held } => command(
            user,
            Command::Requeue {
                targets: targets(job),
                hold: held,
            },
        ),
        Step::Update { user, job, limit } => {
            let change = JobChange {
                limit_secs: Some(limit),
                nice: Some(3),
                ..JobChange::default()
            };
            command(
                user,
                Command::Update {
                    target: Target::Job(JobId(job)),
                    change,
                },
            )
        }
        Step::Resize {
            user,
            job,
            gpus,
            partition,
        } => {
            let partition = ["main", "odd", "main,odd", "odd,main"][partition].to_owned();
            let mut change = JobChange {
                partition: Some(partition),
                ..JobChange::default()
            };
            if gpus > 0 {
                change
                    .request
                    .set("gpus_per_node", &gpus.to_string())
                    .unwrap();
            }
            command(
                user,
                Command::Update {
                    target: Target::Job(JobId(job)),
                    change,
                },
            )
        }
        Step::Depend { user, job, on } => {
            let change = JobChange {
                dependency: Some(Some(on.parse().unwrap())),
                ..JobChange::default()
            };
            command(
                user,
                Command::Update {
                    target: Target::Job(JobId(job)),
                    change,
                },
            )
        }
        Step::Move { user, job, account } => {
            let change = JobChange {
                account: Some(ACCOUNTS[account].into()),
                ..JobChange::default()
            };
            command(
                user,
                Command::Update {
                    target: Target::Job(JobId(job)),
                    change,
                },
            )
        }
        Step::Preempt { run, job, mode } => {
            let Some(run) = run_at(world, run) else {
                return;
            };
            let mode = [
                PreemptMode::Cancel,
                PreemptMode::Requeue,
                PreemptMode::Suspend,
            ][usize::from(mode)];
            let preempt = Preempt {
                run,
                for_job: JobId(job),
                mode,
                lost_gpu_secs: 7,
                why: "because".into(),
                heirs: Vec::new(),
                for_borrower: false,
            };
            let plan = Plan {
                made_from: world.state.seq,
                preempts: vec![preempt],
                ..Plan::default()
            };
            Input::Plan { plan }
        }
        Step::Mark { run, number } => {
            let Some(run) = run_at(world, run) else {
                return;
            };
            let node = world.state.run(run).unwrap().members[0].node;
            let mark = Some(CheckpointMark {
                number,
                at: world.now,
                note: "n".into(),
            });
            let runs = vec![RunReport {
                run,
                phase: RunPhase::Accepted,
                mark,
                sent: None,
            }];
            Input::Node {
                node,
                report: NodeReport::Runs { runs },
            }
        }
        Step::Policy { by, line } => {
            world.line(&format!("{} by={}", EDITS[line], USERS[by]));
            return;
        }
        Step::DrainBy { node, secs } => {
            let deadline = world.now.plus_secs(secs);
            command(
                3,
                Command::NodeDrainBy {
                    node: NodeId(node),
                    reason: "r".into(),
                    deadline,
                },
            )
        }
        Step::Plan => {
            world.plan();
            return;
        }
        Step::End { run, code } => {
            let Some(run) = run_at(world, run) else {
                return;
            };
            let nodes: Vec<NodeId> = world
                .state
                .run(run)
                .unwrap()
                .members
                .iter()
                .map(|member| member.node)
                .collect();
            let end = RunEnd {
                exit: ExitCode::exited(code),
                ended: Some(world.now),
                ..RunEnd::default()
            };
            for node in nodes {
                let runs = vec![RunReport::new(run, RunPhase::Clean(end.clone().into()))];
                let _ = world.feed(Input::Node {
                    node,
                    report: NodeReport::Runs { runs },
                });
            }
            world.quick_plan();
            return;
        }
        Step::Report { run, member, kind } => {
            let Some(run) = run_at(world, run) else {
                return;
            };
            let members = &world.state.run(run).unwrap().members;
            let node = members[member % members.len()].node;
            Input::Node {
                node,
                report: NodeReport::Runs {
                    runs: vec![RunReport::new(run, phase(kind))],
                },
            }
        }
        Step::Gone { node } => Input::Node {
            node: NodeId(node),
            report: NodeReport::Gone,
        },
        Step::Hello { node, keep, boot } => {
            let held: Vec<RunId> = world
                .state
                .node(NodeId(node))
                .unwrap()
                .runs
                .iter()
                .copied()
                .collect();
            let kept = held
                .into_iter()
                .enumerate()
                .filter(|(at, _)| (keep >> (at % 8)) & 1 == 1);
            let runs =
                kept.map(|(at, run)| RunReport::new(run, phase(keep.wrapping_mul(at as u8 + 7))));
            let runs: Vec<_> = runs.collect();
            world.line(&format!("n{node} hello boot=b{boot}"));
            let fence = Fence {
                incarnation: 1,
                generation: 1,
            };
            world.hello(NodeId(node), fence, runs);
            return;
        }
        Step::Drain { node } => command(
            3,
            Command::NodeDrain {
                node: NodeId(node),
                reason: "r".into(),
            },
        ),
        Step::Resume { node } => command(3, Command::NodeResume { node: NodeId(node) }),
        Step::Down { node, fenced } => command(
            3,
            Command::NodeDown {
                node: NodeId(node),
                reason: "r".into(),
                fenced,
            },
        ),
        Step::Fenced { node, well, late } => {
            let number = world
                .state
                .node(NodeId(node))
                .and_then(|node| node.fencing.as_ref())
                .map_or(0, |f| f.number);
            let number = number.saturating_sub(u64::from(late));
            Input::Fenced {
                node: NodeId(node),
                number,
                failure: (!well).then(|| "no".into()),
            }
        }
        Step::Fence { program } => {
            world.line(if program {
                "config fence=yes"
            } else {
                "config fence=no"
            });
            return;
        }
        Step::Wait { secs } => {
            world.wait(secs);
            return;
        }
        Step::Restart => {
            world.line("restart");
            return;
        }
    };
    let _ = world.feed(input);
}

/// Every acknowledged job is there, in one form: waiting, live, over, or forgotten with its whole age gone.
fn none_is_lost(world: &World, ledger: &[(JobId, u32)]) {
    for (first, count) in ledger {
        for id in (first.0..first.0 + u64::from(*count)).map(JobId) {
            let in_jobs = world.state.jobs.contains(id);
            let in_array = world.state.array_of(id).is_some_and(|(array, at)| {
                array.pending.contains(at) || array.cancelled.contains(at)
            });
            assert!(in_jobs || in_array, "job {id} is lost");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_the_invariants_hold_and_no_job_is_lost(steps in prop::collection::vec(step(), 1..100)) {
        let mut world = World::new();
        world.line("config age=1000000");
        world.line("partition odd nodes=n1,n3");
        for node in ["node n1 h100:4", "node n2 h100:4", "node n3 h100:2 8c", "node n4 absent"] {
            world.line(node);
        }
        let mut ledger = Vec::new();
        for step in steps {
            take(&mut world, step, &mut ledger);
            none_is_lost(&world, &ledger);
        }
        calm_ends_everything(&mut world);
    }
}

/// All nodes come back with nothing, holds are lifted, everything is cancelled: all is over and free.
fn calm_ends_everything(world: &mut World) {
    for node in 1..=4 {
        world.line(&format!("n{node} hello boot=calm"));
    }
    let open: Vec<Target> = world
        .state
        .jobs
        .keys()
        .chain(world.state.arrays.keys())
        .map(Target::Job)
        .collect();
    world
        .feed(Input::Command {
            actor: actor("root"),
            command: Command::Cancel {
                targets: open,
                signal: None,
            },
        })
        .unwrap();
    assert!(
        world.state.runs.is_empty(),
        "runs are left: {:?}",
        world.state.runs
    );
    for job in world.state.jobs.values() {
        assert!(job.state.is_final(), "job {} is {}", job.id, job.state);
        assert_ne!(job.state, JobState::Unknown);
    }
    for node in world.state.nodes.values() {
        assert_eq!(
            world.state.free_on(node).runs,
            0,
            "{} is not free",
            node.name
        );
    }
}
