//! Faults, repair and return of the GPUs of one node, look by look.

use super::*;
use gmodel::gpu_health::{EventSource, GpuEventKind, ReadFailure, ReadFailureKind};

struct WatchedNode {
    health: NodeHealth,
    now: Timestamp,
}

impl WatchedNode {
    fn new() -> Self {
        let mut node = Self {
            health: NodeHealth::default(),
            now: Timestamp::from_secs(1_000_000),
        };
        node.restart("boot-1");
        node.look(&[]);
        node
    }

    fn take(&mut self, input: HealthInput<'_>) -> Vec<HealthAction> {
        self.health.handle(input, self.now).unwrap()
    }

    /// A daemon that has what is on the disk.
    fn restart(&mut self, boot: &str) {
        let means = self.health.means.clone();
        let stored = serde_json::to_vec(&self.health).unwrap();
        self.health = serde_json::from_slice(&stored).unwrap();
        self.health.means = means;
        self.take(HealthInput::Began { boot: boot.into() });
    }

    /// A sweep over eight GPUs of which these are silent, ten seconds after the one before, and the steps then.
    fn look(&mut self, lost: &[u32]) -> Vec<HealthAction> {
        self.look_at(lost, ReadFailureKind::Lost)
    }

    fn look_at(&mut self, silent: &[u32], kind: ReadFailureKind) -> Vec<HealthAction> {
        self.now = self.now.plus_secs(10);
        let fault = |index| {
            silent.contains(&index).then(|| ReadFailure {
                kind,
                text: "GPU is lost".into(),
            })
        };
        let sweep = (0..8)
            .map(|index| GpuHealth {
                index,
                uuid: Some(uuid(index)),
                reading: GpuReading {
                    fault: fault(index),
                    ..GpuReading::default()
                },
            })
            .collect();
        let catalogue = &Catalogue::built_in();
        self.take(HealthInput::Swept { catalogue, sweep });
        self.step(&[])
    }

    /// The next step of each GPU, with runs on some.
    fn step(&mut self, held: &[(u32, &[&str])]) -> Vec<HealthAction> {
        let runs = |runs: &[&str]| runs.iter().map(|run| run.parse().unwrap()).collect();
        let held = held
            .iter()
            .map(|(index, names)| (uuid(*index), runs(names)))
            .collect();
        self.take(HealthInput::Looked {
            held: &held,
            node_empty: held.is_empty(),
        })
    }

    /// The runs that end for an Xid.
    fn xid(&mut self, index: u32, xid: u64, held: &[(u32, &[&str])]) -> Vec<(RunId, String)> {
        let events = &[GpuEvent {
            uuid: uuid(index),
            kind: GpuEventKind::Xid(xid),
            count: 1,
            source: EventSource::EventSet,
        }];
        let catalogue = &Catalogue::built_in();
        self.take(HealthInput::Events { catalogue, events });
        ends(self.step(held))
    }

    fn order(&mut self, index: u32, order: LocalOrder) -> Result<Vec<HealthAction>, String> {
        let ordered = HealthInput::Ordered {
            uuid: &uuid(index),
            order,
        };
        self.health.handle(ordered, self.now)
    }

    fn discover(&mut self, indexes: &[u32]) {
        let uuids: Vec<(u32, String)> = indexes.iter().map(|at| (*at, uuid(*at))).collect();
        let seen = uuids.iter().map(|(index, uuid)| SeenGpu {
            uuid,
            index: *index,
            gpu_type: "h100",
        });
        self.take(HealthInput::Discovered {
            gpus: seen.collect(),
        });
    }

    fn out(&self) -> Vec<u32> {
        (0..8)
            .filter(|index| !self.health.fault(&uuid(*index)).is_empty())
            .collect()
    }
}

fn ends(actions: Vec<HealthAction>) -> Vec<(RunId, String)> {
    let ends = actions.into_iter().filter_map(|action| match action {
        HealthAction::EndRun { run, why } => Some((run, why)),
        _ => None,
    });
    ends.collect()
}

fn programs(actions: Vec<HealthAction>) -> Vec<(String, RepairStage)> {
    let programs = actions.into_iter().filter_map(|action| match action {
        HealthAction::StartProgram { uuid, stage } => Some((uuid, stage)),
        _ => None,
    });
    programs.collect()
}

fn uuid(index: u32) -> String {
    format!("GPU-{index}")
}

#[test]
fn a_job_whose_gpu_is_sick_is_ended_or_may_finish_as_the_sign_says() {
    let mut node = WatchedNode::new();
    let ended = node.xid(3, 79, &[(3, &["17-1"]), (4, &["18-1"])]);
    assert_eq!(
        ended,
        [(
            "17-1".parse().unwrap(),
            "GPU GPU-3 (index 3): Xid 79: the GPU has fallen off the bus".into()
        )]
    );
    // Asking again is the same word; a run that may finish is left alone.
    assert_eq!(
        ends(node.step(&[(3, &["17-1", "18-1"])])).len(),
        2,
        "all who hold a slice of it"
    );
    assert!(node.xid(4, 94, &[(4, &["18-1"])]).is_empty());
    // The second sign on the same GPU says that its job has to end now.
    assert_eq!(node.xid(4, 48, &[(4, &["18-1"])]).len(), 1);
    assert_eq!(node.out(), [3, 4]);
}

#[test]
fn a_restart_returns_nothing_and_a_boot_what_a_boot_mends() {
    let mut node = WatchedNode::new();
    node.xid(3, 79, &[]);
    node.order(5, LocalOrder::Quarantine("smells".into()))
        .unwrap();
    node.look(&[]);
    node.restart("boot-1");
    node.look(&[]);
    assert_eq!(node.out(), [3, 5]);
    node.restart("boot-2");
    assert_eq!(node.out(), [3, 5], "not before it was looked at");
    node.look(&[3]);
    assert_eq!(node.out(), [3, 5], "the boot did not help");
    node.restart("boot-3");
    node.look(&[]);
    assert_eq!(node.out(), [5], "an administrator's word stands");
    node.order(5, LocalOrder::Return).unwrap();
    node.look(&[]);
    assert!(node.out().is_empty());
}

#[test]
fn all_gpus_silent_at_once_are_the_drivers_trouble_and_seven_are_not() {
    let mut node = WatchedNode::new();
    for _ in 0..30 {
        node.look(&[0, 1, 2, 3, 4, 5, 6, 7]);
    }
    assert!(node.out().is_empty());
    node.look(&[0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(node.out().len(), 7);
}

#[test]
fn a_gpu_that_hangs_before_and_after_a_silent_driver_does_not_hang_by_itself() {
    let mut node = WatchedNode::new();
    node.look_at(&[4], ReadFailureKind::Hangs);
    for _ in 0..8 {
        node.look_at(&[0, 1, 2, 3, 4, 5, 6, 7], ReadFailureKind::Hangs);
    }
    node.look_at(&[4], ReadFailureKind::Hangs);
    node.look(&[]);
    assert!(node.out().is_empty());
    for _ in 0..7 {
        node.look_at(&[4], ReadFailureKind::Hangs);
    }
    assert_eq!(node.out(), [4]);
}

#[test]
fn a_gpu_that_discovery_saw_can_be_ordered_out_before_it_was_looked_at() {
    let mut node = WatchedNode::new();
    assert!(!node.health.gpus().contains_key(&uuid(9)));
    node.discover(&[9]);
    assert!(
        !node.health.reports().contains_key(&uuid(9)) && node.health.all_well(),
        "nothing is wrong with it"
    );
    node.order(9, LocalOrder::Quarantine("smells".into()))
        .unwrap();
    assert_eq!(node.health.fault(&uuid(9)), "quarantined: smells");
    assert_eq!(
        node.order(10, LocalOrder::Return).unwrap_err(),
        "this node has never seen GPU GPU-10"
    );
}

#[test]
fn a_gpu_that_is_missing_keeps_no_other_waiting_and_a_step_that_waits_for_another_says_so() {
    let mut node = WatchedNode::new();
    node.health.means.policy = RepairPolicy {
        max_resets: 2,
        max_boots: 1,
        first_pause_secs: 1,
        ..RepairPolicy::default()
    };
    node.xid(2, 79, &[]);
    node.xid(3, 48, &[]);
    let told = |node: &WatchedNode, index: u32| {
        let report = node.health.reports()[&uuid(index)].clone();
        (report.wants, report.standing.unwrap().next)
    };
    assert_eq!(told(&node, 2).0, "boot");
    assert_eq!(
        told(&node, 3),
        (
            "",
            "the next step, after that of another GPU of its node".to_owned()
        )
    );
    node.discover(&[0, 1, 3, 4, 5, 6, 7]);
    node.look(&[]);
    assert_eq!((told(&node, 2).0, told(&node, 3).0), ("", "reset"));
}

#[test]
fn a_gpu_that_is_returned_and_still_sick_goes_out_again() {
    let mut node = WatchedNode::new();
    node.look(&[2]);
    assert_eq!(node.out(), [2]);
    node.order(2, LocalOrder::Return).unwrap();
    node.look(&[2]);
    assert_eq!(node.out(), [2]);
    node.order(2, LocalOrder::Return).unwrap();
    node.look(&[]);
    assert!(node.out().is_empty());
    node.take(HealthInput::Left {
        uuid: &uuid(6),
        what: "after run 1-1, processes 7 are still on it".into(),
        to_scrub: false,
    });
    assert_eq!(node.out(), [6]);
    node.restart("boot-1");
    assert_eq!(node.out(), [6], "what a run left is remembered");
}

#[test]
fn the_sites_program_has_the_last_word_one_gpu_at_a_time() {
    let mut node = WatchedNode::new();
    node.health.means.burn_in = true;
    node.look(&[1, 2]);
    for index in [1, 2] {
        node.order(index, LocalOrder::Return).unwrap();
    }
    let burn_in = |index| vec![(uuid(index), RepairStage::BurningIn)];
    let ended = |node: &mut WatchedNode, index, outcome| {
        let uuid = &uuid(index);
        node.take(HealthInput::ProgramEnded { uuid, outcome });
    };
    assert_eq!(programs(node.look(&[])), burn_in(1));
    assert_eq!((programs(node.look(&[])), node.out()), (vec![], vec![1, 2]));
    ended(&mut node, 1, Ok(()));
    assert_eq!(
        (programs(node.look(&[])), node.out()),
        (burn_in(2), vec![2])
    );
    ended(
        &mut node,
        2,
        Err("burn-in ended with 1: sums differ".into()),
    );
    for _ in 0..100 {
        assert_eq!(
            programs(node.look(&[])),
            [],
            "it waits for an administrator"
        );
    }
    assert_eq!(node.out(), [2]);
    assert_eq!(
        node.health.fault(&uuid(2)),
        "burn-in ended with 1: sums differ"
    );
}
