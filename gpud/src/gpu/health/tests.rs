//! Faults, repair and return of the GPUs of one node, look by look.

use super::*;
use gmodel::gpu_health::{EventSource, GpuEventKind, ReadFailure, ReadFailureKind};

struct BookNode {
    dir: PathBuf,
    book: HealthBook,
    now: Timestamp,
}

impl BookNode {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("gpud-health-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let now = Timestamp::from_secs(1_000_000);
        let mut node = Self {
            book: HealthBook::open(&dir, "boot-1".into(), RepairMeans::default(), now),
            dir,
            now,
        };
        node.look(&[]);
        node
    }

    fn restart(&mut self, boot: &str) {
        self.book.write(self.now);
        self.book = HealthBook::open(&self.dir, boot.into(), self.book.means.clone(), self.now);
    }

    /// A sweep over eight GPUs of which these are silent, ten seconds after the one before, and the steps then.
    fn look(&mut self, lost: &[u32]) -> Vec<EndRun> {
        self.now = self.now.plus_secs(10);
        let fault = |index| {
            lost.contains(&index).then(|| ReadFailure {
                kind: ReadFailureKind::Lost,
                text: "GPU is lost".into(),
            })
        };
        let reading = |index| GpuReading {
            fault: fault(index),
            ..GpuReading::default()
        };
        let sweep = (0..8)
            .map(|index| GpuHealth {
                index,
                uuid: Some(uuid(index)),
                reading: reading(index),
            })
            .collect();
        self.book.read(&Catalogue::built_in(), sweep, &[], self.now);
        self.book.step(&BTreeMap::new(), true, self.now)
    }

    fn xid(&mut self, index: u32, xid: u64, held: &[(u32, &str)]) -> Vec<EndRun> {
        let event = GpuEvent {
            uuid: uuid(index),
            kind: GpuEventKind::Xid(xid),
            count: 1,
            source: EventSource::EventSet,
        };
        self.book.events(&Catalogue::built_in(), &[event], self.now);
        let held = held
            .iter()
            .map(|(index, run)| (uuid(*index), BTreeSet::from([run.parse().unwrap()])))
            .collect();
        self.book.step(&held, held.is_empty(), self.now)
    }

    fn out(&self) -> Vec<u32> {
        let mut facts: Vec<GpuFacts> = (0..8)
            .map(|index| GpuFacts {
                index,
                uuid: uuid(index),
                ..GpuFacts::default()
            })
            .collect();
        self.book.apply(&mut facts);
        facts
            .iter()
            .filter(|gpu| gpu.fault.is_some())
            .map(|gpu| gpu.index)
            .collect()
    }
}

impl Drop for BookNode {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn uuid(index: u32) -> String {
    format!("GPU-{index}")
}

#[test]
fn a_job_whose_gpu_is_sick_is_ended_or_may_finish_as_the_sign_says() {
    let mut node = BookNode::new("ends");
    let ends = node.xid(3, 79, &[(3, "17-1"), (4, "18-1")]);
    assert_eq!(
        ends,
        [EndRun {
            run: "17-1".parse().unwrap(),
            why: "GPU GPU-3 (index 3): Xid 79: the GPU has fallen off the bus".into()
        }]
    );
    // Asking again is the same word; a run that may finish is left alone.
    let both = BTreeSet::from(["17-1".parse().unwrap(), "18-1".parse().unwrap()]);
    assert_eq!(
        node.book
            .step(&BTreeMap::from([(uuid(3), both)]), false, node.now)
            .len(),
        2,
        "all who hold a slice of it"
    );
    assert!(node.xid(4, 94, &[(4, "18-1")]).is_empty());
    // The second sign on the same GPU says that its job has to end now.
    assert_eq!(node.xid(4, 48, &[(4, "18-1")]).len(), 1);
    assert_eq!(node.out(), [3, 4]);
}

#[test]
fn a_restart_returns_nothing_and_a_boot_what_a_boot_mends() {
    let mut node = BookNode::new("restart");
    node.xid(3, 79, &[]);
    node.book
        .obey(&uuid(5), LocalOrder::Quarantine("smells".into()), node.now)
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
    node.book
        .obey(&uuid(5), LocalOrder::Return, node.now)
        .unwrap();
    node.look(&[]);
    assert!(node.out().is_empty());
}

#[test]
fn all_gpus_silent_at_once_are_the_drivers_trouble_and_seven_are_not() {
    let mut node = BookNode::new("silent");
    for _ in 0..30 {
        node.look(&[0, 1, 2, 3, 4, 5, 6, 7]);
    }
    assert!(node.out().is_empty());
    node.look(&[0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(node.out().len(), 7);
}

#[test]
fn a_gpu_that_discovery_saw_can_be_ordered_out_before_it_was_looked_at() {
    let mut node = BookNode::new("met");
    let (new, stranger) = (uuid(9), uuid(10));
    assert!(!node.book.knows(&new));
    node.book.meet(&[GpuFacts {
        index: 9,
        uuid: new.clone(),
        gpu_type: "h100".into(),
        ..GpuFacts::default()
    }]);
    assert!(
        !node.book.shown().contains_key(&new) && node.book.all_well(),
        "nothing is wrong with it"
    );
    node.book
        .obey(&new, LocalOrder::Quarantine("smells".into()), node.now)
        .unwrap();
    assert_eq!(node.book.gpus[&new].fault(), "quarantined: smells");
    let refused = node
        .book
        .obey(&stranger, LocalOrder::Return, node.now)
        .unwrap_err();
    assert_eq!(refused.to_string(), "this node has never seen GPU GPU-10");
}

#[test]
fn a_gpu_that_is_missing_keeps_no_other_waiting_and_a_step_that_waits_for_another_says_so() {
    let mut node = BookNode::new("missing");
    node.book.means.policy = RepairPolicy {
        max_resets: 2,
        max_boots: 1,
        first_pause_secs: 1,
        ..RepairPolicy::default()
    };
    node.xid(2, 79, &[]);
    node.xid(3, 48, &[]);
    let told = |node: &BookNode, index: u32| {
        (
            node.book.shown()[&uuid(index)].wants,
            node.book.shown()[&uuid(index)]
                .standing
                .clone()
                .unwrap()
                .next,
        )
    };
    assert_eq!(told(&node, 2).0, "boot");
    assert_eq!(
        told(&node, 3),
        (
            "",
            "the next step, after that of another GPU of its node".to_owned()
        )
    );
    let there: Vec<GpuFacts> = (0..8)
        .filter(|index| *index != 2)
        .map(|index| GpuFacts {
            index,
            uuid: uuid(index),
            ..GpuFacts::default()
        })
        .collect();
    node.book.meet(&there);
    node.look(&[]);
    assert_eq!((told(&node, 2).0, told(&node, 3).0), ("", "reset"));
}

#[test]
fn a_gpu_that_is_returned_and_still_sick_goes_out_again() {
    let mut node = BookNode::new("again");
    node.look(&[2]);
    assert_eq!(node.out(), [2]);
    node.book
        .obey(&uuid(2), LocalOrder::Return, node.now)
        .unwrap();
    node.look(&[2]);
    assert_eq!(node.out(), [2]);
    node.book
        .obey(&uuid(2), LocalOrder::Return, node.now)
        .unwrap();
    node.look(&[]);
    assert!(node.out().is_empty());
    node.book.left_on(
        &uuid(6),
        "after run 1-1, processes 7 are still on it".into(),
        node.now,
    );
    assert_eq!(node.out(), [6]);
    node.restart("boot-1");
    assert_eq!(node.out(), [6], "what a run left is remembered");
}

#[test]
fn the_sites_program_has_the_last_word_one_gpu_at_a_time() {
    let mut node = BookNode::new("burn-in");
    node.book.means.burn_in = true;
    node.look(&[1, 2]);
    for index in [1, 2] {
        node.book
            .obey(&uuid(index), LocalOrder::Return, node.now)
            .unwrap();
    }
    node.look(&[]);
    assert_eq!(
        (node.book.take_program(), node.book.take_program()),
        (Some((uuid(1), RepairStage::BurningIn)), None)
    );
    node.look(&[]);
    assert_eq!((node.book.take_program(), node.out()), (None, vec![1, 2]));
    node.book.program_ended(&uuid(1), Ok(()), node.now);
    node.look(&[]);
    assert_eq!(
        (node.book.take_program(), node.out()),
        (Some((uuid(2), RepairStage::BurningIn)), vec![2])
    );
    node.book.program_ended(
        &uuid(2),
        Err(anyhow::anyhow!("burn-in ended with 1: sums differ")),
        node.now,
    );
    for _ in 0..100 {
        node.look(&[]);
    }
    assert_eq!(
        (node.book.take_program(), node.out()),
        (None, vec![2]),
        "it waits for an administrator"
    );
    assert_eq!(
        node.book.gpus[&uuid(2)].fault(),
        "burn-in ended with 1: sums differ"
    );
}

#[test]
fn a_book_that_cannot_be_read_does_not_keep_the_node_from_starting() {
    let mut node = BookNode::new("spoilt");
    std::fs::write(node.dir.join(BOOK_FILE), "{half").unwrap();
    node.book = HealthBook::open(&node.dir, "boot-1".into(), RepairMeans::default(), node.now);
    node.look(&[1]);
    assert_eq!(node.out(), [1]);
}
