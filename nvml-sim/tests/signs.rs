//! From a fault of the simulated driver to the sign in the catalogue: the library, gpupool's NVML threads and the pure step in one.

mod simulated;

use std::collections::BTreeMap;
use std::time::Duration;

use gcore::node::gpu_health::{
    GpuWatch, Repair, RepairContext, RepairOutcome, RepairPolicy, RepairStep, SignChange, verdict,
};
use gmodel::Timestamp;
use gmodel::gpu_health::{Action, Catalogue, RepairStage, SignState, compare_siblings};
use gsys::nvml::{GpuHealth, NvmlWorker};
use nvidia_ml_sim::State;
use simulated::{SimulatedHost, eventually};

const SOON: Duration = Duration::from_secs(20);
const GPUS: usize = 8;

/// A node's watch over its GPUs, with a clock that the test moves.
struct Watches {
    worker: NvmlWorker,
    catalogue: Catalogue,
    watches: BTreeMap<String, GpuWatch>,
    now_secs: i64,
}

impl Watches {
    fn over(host: &SimulatedHost) -> Watches {
        let worker = NvmlWorker::start(Some(host.library())).unwrap();
        worker.discover(SOON).unwrap();
        let last = host.uuid(GPUS - 1);
        eventually("events are watched", || worker.is_watching(&last));
        let mut watches = Watches {
            worker,
            catalogue: Catalogue::built_in(),
            watches: BTreeMap::new(),
            now_secs: 1_700_000_000,
        };
        assert_eq!(watches.look(0), [], "a fresh host shows no sign");
        watches
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_secs(self.now_secs)
    }

    /// Takes a reading so many seconds later; UUID and name of each sign that was raised.
    fn look(&mut self, later_secs: i64) -> Vec<(String, String)> {
        self.now_secs += later_secs;
        let mut health = self.worker.read_health(SOON).unwrap();
        let mut readings: Vec<_> = health
            .iter_mut()
            .map(|gpu| ("h100", &mut gpu.reading))
            .collect();
        compare_siblings(&mut readings);
        let now = self.now();
        let mut raised = Vec::new();
        for GpuHealth { uuid, reading, .. } in health {
            let uuid = uuid.expect("all were discovered");
            let watch = self.watches.entry(uuid.clone()).or_default();
            raised.extend(names(&uuid, watch.read(&self.catalogue, &reading, now)));
        }
        raised
    }

    /// Takes the events that have come.
    fn listen(&mut self) -> Vec<(String, String)> {
        let now = self.now();
        let mut raised = Vec::new();
        for event in self.worker.next_events(Duration::from_millis(15)) {
            let watch = self.watches.entry(event.uuid.clone()).or_default();
            let changes = watch.event(&self.catalogue, event.kind, event.count, event.source, now);
            raised.extend(names(&event.uuid, changes));
        }
        raised
    }

    fn standing(&self, uuid: &str) -> Vec<String> {
        let watch = &self.watches[uuid];
        watch.standing().map(|sign| sign.name.clone()).collect()
    }
}

fn names(uuid: &str, changes: Vec<SignChange>) -> Vec<(String, String)> {
    let raised = changes.into_iter().filter_map(|change| match change {
        SignChange::Raised(sign) => Some((uuid.to_owned(), sign.name)),
        _ => None,
    });
    raised.collect()
}

#[test]
fn each_injected_fault_raises_its_sign_on_its_gpu_and_on_no_other() {
    let cases: &[(&str, &[&str])] = &[
        ("lost", &["lost"]),
        ("missing", &["missing"]),
        ("error 999", &["error"]),
        ("ecc 1", &["ecc-uncorrected"]),
        ("ecc-sram 1", &["ecc-uncorrected"]),
        ("ecc-corrected 5000", &["ecc-corrected"]),
        ("sram-threshold", &["sram-worn"]),
        ("remap-pending", &["remap-pending", "rows-remapped"]),
        ("remap-failed", &["remap-failed"]),
        ("nvlink-down 4", &["nvlink-down"]),
        ("nvlink-errors 50000", &["nvlink-errors"]),
        ("pcie 8", &["pcie-width"]),
        ("hot 95", &["hot"]),
        ("throttle power-brake", &["power-brake"]),
        ("fabric not-started", &["fabric-not-ready"]),
        ("fabric failed", &["fabric-failed"]),
        ("fabric unhealthy", &["fabric-unhealthy"]),
        ("recovery reset", &["advice-reset"]),
        ("recovery reboot", &["advice-reboot"]),
        ("recovery drain-p2p", &["advice-drain"]),
        ("recovery drain-and-reset", &["advice-drain-and-reset"]),
        ("xid 79", &["xid-79"]),
        ("xid 13 10000", &["xid-application"]),
        ("xid 4711", &["xid-other"]),
    ];
    for (fault, expected) in cases {
        let host = SimulatedHost::with(&[("h100", GPUS)]);
        let mut watches = Watches::over(&host);
        host.inject(3, fault);
        let mut raised = watches.look(10);
        raised.extend(watches.look(400));
        eventually(fault, || {
            raised.extend(watches.listen());
            raised.len() >= expected.len()
        });
        raised.sort();
        raised.dedup();
        let wanted: Vec<(String, String)> = expected
            .iter()
            .map(|name| (host.uuid(3), (*name).to_owned()))
            .collect();
        assert_eq!(raised, wanted, "{fault}");
    }
}

#[test]
fn a_gpu_that_hangs_is_a_sign_of_its_own_and_the_others_are_read() {
    let host = SimulatedHost::with(&[("h100", GPUS)]);
    let mut watches = Watches::over(&host);
    host.inject(5, "hang");
    assert!(
        watches
            .worker
            .read_health(Duration::from_millis(500))
            .is_err()
    );
    assert_eq!(watches.look(10), []);
    assert_eq!(
        watches.look(60),
        [(host.uuid(5), "hangs".to_owned())],
        "one slow call is none"
    );
    host.inject(5, "clear");
    eventually("it is read again", || {
        watches.look(10);
        watches.worker.read_health(SOON).unwrap()[5]
            .reading
            .fault
            .is_none()
    });
    assert_eq!(
        watches.standing(&host.uuid(5)),
        ["hangs"],
        "it stands until the GPU is returned"
    );
}

#[test]
fn a_pcie_link_that_is_slow_under_load_is_seen_and_one_at_rest_is_not() {
    let host = SimulatedHost::with(&[("h100", GPUS)]);
    let mut watches = Watches::over(&host);
    host.inject(2, "pcie 16 3");
    assert_eq!(watches.look(1000), []);
    assert_eq!(watches.look(1000), [], "nothing runs there");
    host.edit(|state| state.set_reading(2, "util=95").unwrap());
    watches.look(10);
    assert_eq!(
        watches.look(400),
        [(host.uuid(2), "pcie-generation".to_owned())]
    );
}

#[test]
fn faults_at_random_for_a_day_leave_signs_on_exactly_the_sick_and_none_after_the_return() {
    let host = SimulatedHost::with(&[("h100", GPUS)]);
    let mut watches = Watches::over(&host);
    let faults = [
        "lost",
        "ecc 1",
        "remap-failed",
        "nvlink-down 2",
        "sram-threshold",
        "recovery reset",
        "pcie 4",
        "fabric failed",
    ];
    let mut dice = 0x2545_F491_4F6C_DD1Du64;
    let mut roll = |sides: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % sides
    };
    let mut sick: BTreeMap<String, bool> = BTreeMap::new();
    for _ in 0..144 {
        let slot = roll(GPUS as u64) as usize;
        let uuid = host.uuid(slot);
        if sick.remove(&uuid).is_some() {
            // Mended, tried by a burn-in, and returned.
            host.inject(slot, "clear");
            let health = watches.worker.read_health(SOON).unwrap();
            let returned = health
                .into_iter()
                .find(|gpu| gpu.uuid.as_ref() == Some(&uuid))
                .unwrap();
            watches.listen();
            watches
                .watches
                .insert(uuid, GpuWatch::accepting(&returned.reading));
        } else if roll(3) == 0 {
            host.inject(slot, faults[roll(faults.len() as u64) as usize]);
            sick.insert(uuid, true);
        }
        watches.look(200);
        watches.look(400);
        watches.listen();
        let out: Vec<&String> = watches
            .watches
            .iter()
            .filter(|(_, watch)| verdict(watch.standing()).is_some())
            .map(|(uuid, _)| uuid)
            .collect();
        assert_eq!(
            out,
            sick.keys().collect::<Vec<_>>(),
            "a quarantine takes the sick and never a healthy GPU"
        );
    }
    assert!(sick.len() < GPUS);
}

#[test]
fn after_faults_at_random_repair_converges_to_exactly_the_healthy_gpus() {
    let host = SimulatedHost::with(&[("h100", GPUS)]);
    let mut watches = Watches::over(&host);
    // Generous, so that only a GPU whose resets fail is given up.
    let policy = RepairPolicy {
        max_resets: 6,
        window_secs: 600,
        first_pause_secs: 1,
        ..RepairPolicy::default()
    };
    let mut repairs: Vec<Repair> = vec![Repair::default(); GPUS];
    // What a reset mends, and what it does not.
    let mended = [
        "ecc 1",
        "recovery reset",
        "fabric failed",
        "remap-pending",
        "lost",
    ];
    let lasting = ["remap-failed", "sram-threshold", "reset-fails"];
    let mut dice = 0x9E37_79B9_7F4A_7C15u64;
    let mut roll = |sides: usize| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice as usize % sides
    };
    for round in 0..260 {
        // First an hour of faults, then calm.
        if round < 60 && roll(4) == 0 {
            let kind = if roll(6) == 0 {
                &lasting[..]
            } else {
                &mended[..]
            };
            host.inject(roll(GPUS), kind[roll(kind.len())]);
        }
        watches.look(60);
        watches.listen();
        let now = watches.now();
        for slot in 0..GPUS {
            let uuid = host.uuid(slot);
            let other_under_way = (0..GPUS).any(|other| {
                other != slot
                    && matches!(
                        repairs[other].stage,
                        RepairStage::Resetting | RepairStage::Booting
                    )
            });
            let watch = &watches.watches[&uuid];
            let around = RepairContext {
                verdict: verdict(watch.standing()),
                held: false,
                node_empty: false,
                other_under_way,
                breaker_allows: true,
            };
            let step = repairs[slot].next(&around, &policy, now);
            repairs[slot].begin(step, &policy, now);
            match step {
                RepairStep::Reset => {
                    let done =
                        State::edit(host.dir.path(), |state| nvidia_ml_sim::reset(state, slot))
                            .unwrap()
                            .is_ok();
                    if done {
                        let health = watches.worker.read_health(SOON).unwrap();
                        let gpu = health
                            .into_iter()
                            .find(|gpu| gpu.uuid.as_ref() == Some(&uuid))
                            .unwrap();
                        watches.listen();
                        watches
                            .watches
                            .insert(uuid, GpuWatch::accepting(&gpu.reading));
                    }
                    repairs[slot].end(
                        if done {
                            RepairOutcome::Done
                        } else {
                            RepairOutcome::Failed
                        },
                        now,
                    );
                }
                RepairStep::BurnIn => repairs[slot].end(RepairOutcome::BurnInPassed, now),
                _ => {}
            }
        }
    }
    let state = host.state();
    for (slot, repair) in repairs.iter().enumerate() {
        let gpu = &state.gpus[slot];
        let sick = gpu.row_remap.failed
            || gpu.row_remap.pending
            || gpu.ecc.sram_threshold_exceeded
            || gpu.ecc.volatile_uncorrected > 0
            || gpu.fabric.status != 0
            || gpu.faults.lost
            || gpu.recovery_action != 0;
        assert_eq!(
            repair.in_service(),
            !sick,
            "gpu{slot}: {repair:?} {:?} {:?}",
            gpu.faults,
            watches.standing(&gpu.uuid)
        );
    }
    assert!(
        repairs.iter().any(Repair::in_service)
            && repairs
                .iter()
                .any(|repair| repair.stage == RepairStage::Marked),
        "both kinds were met"
    );
}

#[test]
fn signs_of_the_node_are_told_by_whoever_knows_what_it_should_have() {
    let host = SimulatedHost::with(&[("h100", GPUS)]);
    let watches = Watches::over(&host);
    let inventory = watches.worker.discover(SOON).unwrap();
    let mut node = GpuWatch::default();
    let mut say = |secs: i64, state, seen: Option<String>| {
        let now = Timestamp::from_secs(watches.now_secs + secs);
        names("node", node.state(&watches.catalogue, state, seen, now))
    };
    let other = (inventory.driver_version != "570.1")
        .then(|| format!("driver {}, 570.1 is configured", inventory.driver_version));
    assert_eq!(say(0, SignState::DriverMismatch, other.clone()), []);
    assert_eq!(
        say(60, SignState::DriverMismatch, other),
        [("node".to_owned(), "driver-version".to_owned())]
    );
    assert_eq!(say(70, SignState::CountMismatch, None), []);
    assert!(
        verdict(node.standing()).is_none(),
        "a mismatch is said, not acted on"
    );
    assert_eq!(watches.catalogue.signs["lost"].action, Action::Reboot);
}
