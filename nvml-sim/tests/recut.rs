//! Cutting GPUs anew step by step on the simulated driver, with the daemon killed between any two steps and jobs on instances.

mod simulated;

use std::collections::BTreeSet;
use std::time::Duration;

use gsys::nvml::{
    Change, MigLayout, NvmlError, NvmlWorker, RecutError, Refusal, WantedCut, WantedPart, next_step,
};
use simulated::SimulatedHost;

const SOON: Duration = Duration::from_secs(20);

fn parts(text: &str) -> WantedCut {
    let part = |part: &str| {
        let (profile, start) = part.split_once('@').unwrap();
        WantedPart {
            profile: profile.to_owned(),
            start: start.parse().unwrap(),
        }
    };
    match text {
        "whole" => WantedCut::Whole,
        "none" => WantedCut::Parts(Vec::new()),
        text => WantedCut::Parts(text.split(' ').map(part).collect()),
    }
}

/// As gpud would see it after a start.
struct Node {
    worker: NvmlWorker,
    uuid: String,
}

impl Node {
    fn start(host: &SimulatedHost) -> Node {
        Node {
            worker: NvmlWorker::start(Some(host.library())).unwrap(),
            uuid: host.uuid(0),
        }
    }

    fn layout(&self) -> MigLayout {
        let inventory = self.worker.discover(SOON).unwrap();
        inventory.gpus[0].mig.clone().unwrap()
    }

    /// Instances with a process in them.
    fn busy(&self) -> BTreeSet<u32> {
        let sample = self.worker.sample_use(SOON).unwrap();
        sample[0]
            .processes
            .iter()
            .filter_map(|process| process.gpu_instance_id)
            .collect()
    }

    /// Takes at most so many steps; how many it took.
    fn cut(&self, wanted: &WantedCut, most: usize) -> Result<usize, RecutError> {
        for taken in 0..most {
            let layout = self.layout();
            let busy = self.busy();
            let Some(step) = next_step(&layout, wanted, &busy)? else {
                return Ok(taken);
            };
            self.worker
                .change(&self.uuid, step.clone(), SOON)
                .unwrap_or_else(|error| panic!("{step:?}: {error}"));
        }
        Ok(most)
    }
}

fn stands(layout: &MigLayout) -> Vec<String> {
    let mut parts: Vec<String> = layout
        .instances
        .iter()
        .map(|part| {
            format!(
                "{}@{}{}",
                part.profile,
                part.start,
                if part.devices.len() == 1 { "" } else { "?" }
            )
        })
        .collect();
    parts.sort();
    parts
}

const CUTS: [&str; 7] = [
    "whole",
    "none",
    "3g.40gb@0 3g.40gb@4",
    "4g.40gb@0 2g.20gb@4 1g.10gb@6",
    "1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 1g.10gb@4 1g.10gb@5 1g.10gb@6",
    "3g.40gb@0 1g.20gb@4 1g.20gb@6",
    "7g.80gb@0",
];

#[test]
fn killed_after_any_step_the_next_start_goes_on_to_the_same_cut() {
    for from in CUTS {
        for to in CUTS {
            let host = SimulatedHost::with(&[("h100", 1)]);
            Node::start(&host).cut(&parts(from), 100).unwrap();
            let wanted = parts(to);
            let mut kills = 0;
            // One step in each life.
            while Node::start(&host).cut(&wanted, 1).unwrap() == 1 {
                kills += 1;
                assert!(kills < 60, "{from} to {to} does not end");
            }
            let layout = Node::start(&host).layout();
            let mut expected: Vec<&str> = if to.contains('@') {
                to.split(' ').collect()
            } else {
                Vec::new()
            };
            expected.sort();
            assert_eq!(stands(&layout), expected, "{from} to {to}");
            assert_eq!(layout.enabled, to != "whole");
        }
    }
}

#[test]
fn another_wish_in_the_middle_is_met_too() {
    let host = SimulatedHost::with(&[("h100", 1)]);
    let mut dice = 7u64;
    for round in 0..60 {
        dice = dice
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let wanted = parts(CUTS[(dice >> 33) as usize % CUTS.len()]);
        let steps = (dice >> 40) as usize % 9;
        Node::start(&host)
            .cut(&wanted, steps)
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    let node = Node::start(&host);
    node.cut(&parts("7g.80gb@0"), 100).unwrap();
    assert_eq!(stands(&node.layout()), ["7g.80gb@0"]);
}

#[test]
fn a_busy_instance_is_never_touched_whatever_is_wished() {
    for wished in CUTS {
        let host = SimulatedHost::with(&[("h100", 1)]);
        let node = Node::start(&host);
        node.cut(&parts("3g.40gb@0 1g.10gb@4 1g.10gb@5"), 100)
            .unwrap();
        host.inject(0, "process 4242 2048 1 0");
        let before = node.layout().instances[0].clone();
        let outcome = node.cut(&parts(wished), 100);
        let after = node.layout();
        assert_eq!(
            after.instances.iter().find(|part| part.id == 1),
            Some(&before),
            "{wished}"
        );
        let keeps = wished.contains("3g.40gb@0");
        assert_eq!(outcome.is_ok(), keeps, "{wished}: {outcome:?}");
        if let Err(error) = outcome {
            assert_eq!(
                error,
                RecutError::Busy {
                    gpu_instance_id: 1,
                    profile: "3g.40gb".to_owned()
                }
            );
        } else {
            assert_eq!(stands(&after), {
                let mut parts: Vec<&str> = wished.split(' ').collect();
                parts.sort();
                parts
            });
        }
        // The driver would have refused as well.
        let forced = node.worker.change(
            &node.uuid,
            Change::DestroyInstance { gpu_instance_id: 1 },
            SOON,
        );
        assert!(
            matches!(
                forced,
                Err(NvmlError::Refused {
                    refusal: Refusal::InUse,
                    ..
                })
            ),
            "{forced:?}"
        );
    }
}

#[test]
fn an_impossible_wish_changes_nothing_and_says_why() {
    let host = SimulatedHost::with(&[("h100", 1)]);
    let node = Node::start(&host);
    node.cut(&parts("4g.40gb@0"), 100).unwrap();
    let said = |wished: &str| node.cut(&parts(wished), 100).unwrap_err().to_string();
    assert!(said("5g.50gb@0").contains("there are 1g.10gb, 1g.10gb+me"));
    assert!(said("3g.40gb@2").contains("it can at [0, 4]"));
    assert!(said("4g.40gb@0 1g.10gb@3").contains("overlap"));
    assert_eq!(stands(&node.layout()), ["4g.40gb@0"]);
}
