//! Signs as they come and go: each raised by its evidence once, none by a healthy GPU, none without bound.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use gmodel::gpu_health::{
    CATALOGUE_VERSION, CatalogueOverrides, ReadFailure, SignOverride, compare_siblings,
};

fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(1_700_000_000 + secs)
}

/// A GPU in full health under load.
fn healthy() -> GpuReading {
    GpuReading {
        temperature_c: Some(60),
        slowdown_c: Some(87),
        memory_temperature_c: Some(70),
        memory_max_c: Some(95),
        power_mw: Some(600_000),
        busy_percent: Some(90),
        slow_reasons: Some(slow_reason::POWER_CAP),
        power_slowed_ms: Some(0),
        heat_slowed_ms: Some(0),
        ecc_corrected: Some(2),
        ecc_uncorrected: Some(0),
        ecc_uncorrected_ever: Some(3),
        sram_uncorrected_ever: Some(0),
        sram_worn: Some(false),
        rows_remapped: Some(1),
        remap_pending: Some(false),
        remap_failed: Some(false),
        nvlink_count: 18,
        nvlink_errors: Some(40),
        nvlinks_up_expected: Some(18),
        pcie_gen: Some(5),
        pcie_gen_max: Some(5),
        pcie_width: Some(16),
        pcie_width_max: Some(16),
        pcie_replays: Some(5),
        fabric: Some(FabricHealth::Ready),
        recovery: Some(RecoveryAdvice::None),
        ..GpuReading::default()
    }
}

fn silent(kind: ReadFailureKind) -> GpuReading {
    GpuReading {
        fault: Some(ReadFailure {
            kind,
            text: "no answer".to_owned(),
        }),
        ..GpuReading::default()
    }
}

fn raised(changes: &[SignChange]) -> Vec<&str> {
    let names = changes.iter().filter_map(|change| match change {
        SignChange::Raised(sign) => Some(sign.name.as_str()),
        _ => None,
    });
    names.collect()
}

/// A reading that shows this state and nothing else.
fn shows(state: SignState) -> Option<GpuReading> {
    let mut reading = healthy();
    match state {
        SignState::Lost => return Some(silent(ReadFailureKind::Lost)),
        SignState::Hangs => return Some(silent(ReadFailureKind::Hangs)),
        SignState::Missing => return Some(silent(ReadFailureKind::Missing)),
        SignState::Error => return Some(silent(ReadFailureKind::Error)),
        SignState::SramWorn => reading.sram_worn = Some(true),
        SignState::RemapPending => reading.remap_pending = Some(true),
        SignState::RemapFailed => reading.remap_failed = Some(true),
        SignState::RetirementPending => reading.retirement_pending = Some(true),
        SignState::PagesRetired => reading.pages_retired = Some(60),
        SignState::NvlinkDown => reading.nvlinks_down = vec![4, 7],
        SignState::PcieWidth => reading.pcie_width = Some(8),
        SignState::PcieGeneration => reading.pcie_gen = Some(3),
        SignState::Hot => reading.temperature_c = Some(88),
        SignState::MemoryHot => reading.memory_temperature_c = Some(95),
        SignState::PowerBrake => {
            reading.slow_reasons = Some(slow_reason::POWER_BRAKE | slow_reason::HARDWARE)
        }
        SignState::FabricNotReady => reading.fabric = Some(FabricHealth::InProgress),
        SignState::FabricFailed => reading.fabric = Some(FabricHealth::Failed),
        SignState::FabricUnhealthy => reading.fabric = Some(FabricHealth::Unhealthy),
        SignState::AdviceReset => reading.recovery = Some(RecoveryAdvice::Reset),
        SignState::AdviceReboot => reading.recovery = Some(RecoveryAdvice::Reboot),
        SignState::AdviceDrain => reading.recovery = Some(RecoveryAdvice::DrainP2p),
        SignState::AdviceDrainAndReset => reading.recovery = Some(RecoveryAdvice::DrainAndReset),
        SignState::CountMismatch | SignState::DriverMismatch => return None,
    }
    Some(reading)
}

/// The healthy reading with this counter so much higher.
fn risen(counted: SignCounter, by: u64) -> GpuReading {
    let mut reading = healthy();
    let counter = match counted {
        SignCounter::EccUncorrected => &mut reading.ecc_uncorrected,
        SignCounter::EccCorrected => &mut reading.ecc_corrected,
        SignCounter::NvlinkErrors => &mut reading.nvlink_errors,
        SignCounter::PcieReplays => &mut reading.pcie_replays,
        SignCounter::HeatSlowed => &mut reading.heat_slowed_ms,
        SignCounter::PowerSlowed => &mut reading.power_slowed_ms,
        SignCounter::RowsRemapped => &mut reading.rows_remapped,
    };
    *counter = counter.map(|value| value + by);
    reading
}

#[test]
fn each_sign_is_raised_by_its_evidence_once_and_by_nothing_else() {
    let catalogue = Catalogue::built_in();
    for (name, kind) in &catalogue.signs {
        let mut watch = GpuWatch::default();
        assert_eq!(watch.read(&catalogue, &healthy(), at(0)), []);
        let mut seen = Vec::new();
        let mut now = 10;
        let show = |watch: &mut GpuWatch, now: i64| match &kind.evidence {
            Evidence::Xid(numbers) => watch.event(
                &catalogue,
                GpuEventKind::Xid(numbers[0]),
                1,
                EventSource::EventSet,
                at(now),
            ),
            Evidence::OtherXid => watch.event(
                &catalogue,
                GpuEventKind::Xid(9999),
                1,
                EventSource::EventSet,
                at(now),
            ),
            Evidence::Counter(counted) => {
                watch.read(&catalogue, &risen(*counted, kind.threshold), at(now))
            }
            Evidence::State(state) => match shows(*state) {
                Some(reading) => watch.read(&catalogue, &reading, at(now)),
                None => watch.state(&catalogue, *state, Some("as told".to_owned()), at(now)),
            },
        };
        for _ in 0..(kind.holds_secs / 20 + 2) {
            seen.extend(show(&mut watch, now));
            now += 20;
        }
        assert_eq!(raised(&seen), [name.as_str()], "{name}");
        let SignChange::Raised(sign) = &seen[0] else {
            panic!("{seen:?}")
        };
        assert_eq!(
            (sign.severity, sign.action, sign.catalogue_version),
            (kind.severity, kind.action, CATALOGUE_VERSION)
        );
        assert!(!sign.evidence.is_empty() && sign.count >= 1, "{sign:?}");
        assert_eq!(watch.standing().count(), 1, "{name}");
    }
}

#[test]
fn a_state_must_last_and_begins_again_after_a_gap() {
    let catalogue = Catalogue::built_in();
    let mut watch = GpuWatch::default();
    let narrow = shows(SignState::PcieWidth).unwrap();
    assert_eq!(watch.read(&catalogue, &narrow, at(0)), []);
    assert_eq!(watch.read(&catalogue, &narrow, at(299)), []);
    assert_eq!(watch.read(&catalogue, &healthy(), at(300)), []);
    assert_eq!(watch.read(&catalogue, &narrow, at(310)), []);
    assert_eq!(watch.read(&catalogue, &narrow, at(600)), []);
    let changes = watch.read(&catalogue, &narrow, at(610));
    assert_eq!(raised(&changes), ["pcie-width"]);
    assert!(
        matches!(&changes[0], SignChange::Raised(sign) if sign.first == at(310) && sign.evidence == "8 of 16 PCIe lanes")
    );
}

#[test]
fn a_sign_that_clears_is_over_and_one_that_does_not_stands_until_the_gpu_is_accepted() {
    let catalogue = Catalogue::built_in();
    let mut watch = GpuWatch::default();
    watch.read(&catalogue, &shows(SignState::RemapPending).unwrap(), at(0));
    watch.read(&catalogue, &shows(SignState::SramWorn).unwrap(), at(10));
    assert_eq!(watch.standing().count(), 2);
    assert_eq!(watch.read(&catalogue, &healthy(), at(299)), []);
    let changes = watch.read(&catalogue, &healthy(), at(310));
    assert!(
        matches!(&changes[..], [SignChange::Over(sign)] if sign.name == "remap-pending"),
        "{changes:?}"
    );
    watch.read(&catalogue, &healthy(), at(1_000_000));
    assert_eq!(
        watch
            .standing()
            .map(|sign| sign.name.as_str())
            .collect::<Vec<_>>(),
        ["sram-worn"]
    );
    watch = GpuWatch::accepting(&healthy());
    assert_eq!(watch.read(&catalogue, &healthy(), at(1_000_010)), []);
    assert_eq!(watch.standing().count(), 0);
}

#[test]
fn a_silent_gpu_shows_its_silence_only_and_nothing_is_over_meanwhile() {
    let catalogue = Catalogue::built_in();
    let mut watch = GpuWatch::default();
    watch.read(&catalogue, &shows(SignState::Hot).unwrap(), at(0));
    watch.read(&catalogue, &shows(SignState::Hot).unwrap(), at(120));
    assert_eq!(
        raised(&watch.read(&catalogue, &silent(ReadFailureKind::Lost), at(130))),
        ["lost"]
    );
    assert_eq!(
        watch.read(&catalogue, &silent(ReadFailureKind::Lost), at(90_000)),
        []
    );
    assert_eq!(
        watch
            .standing()
            .map(|sign| sign.name.as_str())
            .collect::<Vec<_>>(),
        ["hot", "lost"]
    );
}

#[test]
fn the_same_event_from_the_event_set_and_the_kernel_log_counts_once() {
    let catalogue = Catalogue::built_in();
    let mut watch = GpuWatch::default();
    let xid = GpuEventKind::Xid(48);
    assert_eq!(
        raised(&watch.event(&catalogue, xid, 1, EventSource::EventSet, at(0))),
        ["xid-48"]
    );
    assert_eq!(
        watch.event(&catalogue, xid, 1, EventSource::KernelLog, at(1)),
        []
    );
    assert_eq!(watch.standing().next().unwrap().count, 1);
    watch.event(&catalogue, xid, 1, EventSource::KernelLog, at(2));
    assert_eq!(
        watch.standing().next().unwrap().count,
        2,
        "the log tells of one more"
    );
    // Long after, either source alone is believed.
    watch.event(&catalogue, xid, 1, EventSource::EventSet, at(5000));
    assert_eq!(watch.standing().next().unwrap().count, 3);
    // The ECC counter that rises with the event is the same error.
    watch.read(&catalogue, &healthy(), at(6000));
    watch.event(
        &catalogue,
        GpuEventKind::EccUncorrected,
        2,
        EventSource::EventSet,
        at(6001),
    );
    watch.read(&catalogue, &risen(SignCounter::EccUncorrected, 2), at(6010));
    let ecc = watch
        .standing()
        .find(|sign| sign.name == "ecc-uncorrected")
        .unwrap();
    assert_eq!(ecc.count, 2);
}

#[test]
fn counters_that_begin_anew_are_not_taken_for_a_rise_of_what_is_gone() {
    let catalogue = Catalogue::built_in();
    let mut watch = GpuWatch::default();
    let mut reading = healthy();
    reading.nvlink_errors = Some(9_999_999);
    assert_eq!(
        watch.read(&catalogue, &reading, at(0)),
        [],
        "what was before the first look is not news"
    );
    reading.nvlink_errors = Some(3);
    assert_eq!(watch.read(&catalogue, &reading, at(10)), [], "a reset");
    // At the first reading, uncorrected errors since the driver was loaded count as new.
    let mut sick = healthy();
    sick.ecc_uncorrected = Some(2);
    let mut fresh = GpuWatch::default();
    assert_eq!(
        raised(&fresh.read(&catalogue, &sick, at(0))),
        ["ecc-uncorrected"]
    );
    assert_eq!(
        GpuWatch::accepting(&sick).read(&catalogue, &sick, at(0)),
        []
    );
}

#[test]
fn a_counter_that_fell_for_good_begins_anew_without_a_sign() {
    let catalogue = Catalogue::built_in();
    let mut watch = GpuWatch::default();
    let mut reading = healthy();
    for (look, errors) in [(0, 40_002)]
        .into_iter()
        .chain((1..200).map(|look| (look, 40_000)))
    {
        reading.nvlink_errors = Some(errors);
        let changes = watch.read(&catalogue, &reading, at(10 * look));
        assert_eq!(changes, [], "look {look}");
    }
    reading.nvlink_errors = Some(9_999_999);
    let changes = watch.read(&catalogue, &reading, at(2000));
    assert_eq!(raised(&changes), ["nvlink-errors"]);
}

#[test]
fn links_without_a_cable_are_no_sign_and_a_link_that_siblings_have_is() {
    let catalogue = Catalogue::built_in();
    let mut alone = healthy();
    (alone.nvlinks_up_expected, alone.nvlinks_down) = (None, vec![12, 13, 14, 15, 16, 17]);
    let mut watch = GpuWatch::default();
    for secs in [0, 60, 120] {
        assert_eq!(
            watch.read(&catalogue, &alone, at(secs)),
            [],
            "six places without a cable"
        );
    }
    alone.nvlinks_down.push(3);
    watch.read(&catalogue, &alone, at(180));
    let changes = watch.read(&catalogue, &alone, at(240));
    assert!(
        matches!(&changes[..], [SignChange::Raised(sign)] if sign.evidence == "NVLink 3 is down"),
        "{changes:?}"
    );
    // A GPU with siblings that have more links up was not wired that way.
    let mut odd = healthy();
    odd.nvlinks_down = vec![5];
    let mut watch = GpuWatch::default();
    watch.read(&catalogue, &odd, at(0));
    assert_eq!(
        raised(&watch.read(&catalogue, &odd, at(60))),
        ["nvlink-down"]
    );
}

#[test]
fn a_gpu_without_a_bridge_beside_two_that_have_one_is_no_sign() {
    let catalogue = Catalogue::built_in();
    let board = |down: &[u32]| GpuReading {
        nvlink_count: 4,
        nvlinks_down: down.to_vec(),
        nvlinks_up_expected: None,
        ..healthy()
    };
    let mut readings = [board(&[]), board(&[]), board(&[0, 1, 2, 3])];
    let mut watches = [
        GpuWatch::default(),
        GpuWatch::default(),
        GpuWatch::default(),
    ];
    for secs in [0, 100, 200] {
        let [one, two, three] = &mut readings;
        compare_siblings(&mut [("a100", one), ("a100", two), ("a100", three)]);
        for (watch, reading) in watches.iter_mut().zip(&readings) {
            assert_eq!(watch.read(&catalogue, reading, at(secs)), []);
        }
    }
}

#[test]
fn a_resting_pcie_link_is_no_sign() {
    let catalogue = Catalogue::built_in();
    let mut watch = GpuWatch::default();
    let mut idle = healthy();
    (idle.busy_percent, idle.pcie_gen) = (Some(0), Some(1));
    for secs in 0..100 {
        assert_eq!(watch.read(&catalogue, &idle, at(secs * 60)), []);
    }
    idle.busy_percent = None; // MIG mode
    assert_eq!(watch.read(&catalogue, &idle, at(60_000)), []);
}

#[test]
fn two_faults_on_one_gpu_call_for_the_harsher() {
    let catalogue = Catalogue::built_in();
    let mut watch = GpuWatch::default();
    assert!(verdict(watch.standing()).is_none());
    watch.event(
        &catalogue,
        GpuEventKind::Xid(13),
        5,
        EventSource::EventSet,
        at(0),
    );
    assert!(
        verdict(watch.standing()).is_none(),
        "a note takes nothing out of service"
    );
    watch.event(
        &catalogue,
        GpuEventKind::Xid(94),
        1,
        EventSource::EventSet,
        at(1),
    );
    let first = verdict(watch.standing()).unwrap();
    assert_eq!(
        (first.action, first.let_finish, first.sign.name.as_str()),
        (Action::Reset, true, "xid-94")
    );
    watch.read(&catalogue, &shows(SignState::RemapFailed).unwrap(), at(2));
    watch.event(
        &catalogue,
        GpuEventKind::Xid(95),
        1,
        EventSource::EventSet,
        at(3),
    );
    let both = verdict(watch.standing()).unwrap();
    assert_eq!(
        (both.action, both.let_finish, both.sign.name.as_str()),
        (Action::Replace, false, "remap-failed")
    );
}

#[test]
fn a_watch_and_its_signs_survive_being_written_down() {
    let catalogue = Catalogue::built_in();
    let mut watch = GpuWatch::default();
    watch.read(&catalogue, &healthy(), at(0));
    watch.event(
        &catalogue,
        GpuEventKind::Xid(79),
        3,
        EventSource::EventSet,
        at(1),
    );
    watch.read(&catalogue, &shows(SignState::NvlinkDown).unwrap(), at(2));
    let text = serde_json::to_string(&watch).unwrap();
    assert_eq!(serde_json::from_str::<GpuWatch>(&text).unwrap(), watch);
    assert_eq!(
        serde_json::from_str::<GpuWatch>("{}").unwrap(),
        GpuWatch::default()
    );
}

#[test]
fn a_sites_own_sign_is_raised_at_its_threshold_and_not_before() {
    let page_faults = SignOverride {
        evidence: Some(Evidence::Xid(vec![31])),
        action: Some(Action::Quarantine),
        threshold: Some(50),
        window_secs: Some(600),
        ..SignOverride::default()
    };
    let sign = BTreeMap::from([("our-page-faults".to_owned(), page_faults)]);
    let catalogue = Catalogue::with(&CatalogueOverrides { sign }).unwrap();
    let (xid, source) = (GpuEventKind::Xid(31), EventSource::EventSet);
    let mut watch = GpuWatch::default();
    for count in 0..49 {
        let changes = watch.event(&catalogue, xid, 1, source, at(count * 10));
        assert_eq!(changes, []);
    }
    assert_eq!(
        raised(&watch.event(&catalogue, xid, 1, source, at(490))),
        ["our-page-faults"]
    );
}

/// Looks every ten seconds, at these readings; the signs that are raised.
fn raised_by(watch: &mut GpuWatch, readings: &[(GpuReading, i64)]) -> Vec<String> {
    let catalogue = Catalogue::built_in();
    let (mut now, mut signs) = (0, Vec::new());
    for (reading, times) in readings {
        for _ in 0..*times {
            now += 10;
            let changes = watch.read(&catalogue, reading, at(now));
            signs.extend(raised(&changes).into_iter().map(str::to_owned));
        }
    }
    signs
}

#[test]
fn a_counter_that_falls_and_comes_back_lied_and_one_that_stays_low_began_anew() {
    let with = |uncorrected, ever| GpuReading {
        ecc_uncorrected: Some(uncorrected),
        ecc_uncorrected_ever: ever,
        ..healthy()
    };
    for ever in [None, Some(7)] {
        let (old, zero) = (with(5, ever), with(0, ever.map(|_| 0)));
        let mut watch = GpuWatch::accepting(&old);
        let lies = [
            (zero, 30),
            (old.clone(), 2),
            (with(3, ever.map(|_| 4)), 3),
            (old.clone(), 2),
        ];
        assert_eq!(raised_by(&mut watch, &lies), [""; 0], "{ever:?}");
        let error = [(with(6, ever.map(|ever| ever + 1)), 1)];
        assert_eq!(raised_by(&mut watch, &error), ["ecc-uncorrected"]);
    }
    // The driver was loaded, and an error came after that.
    let mut watch = GpuWatch::accepting(&with(5, None));
    assert_eq!(
        raised_by(&mut watch, &[(with(1, None), 100)]),
        ["ecc-uncorrected"]
    );
    let mut watch = GpuWatch::accepting(&with(5, None));
    assert_eq!(raised_by(&mut watch, &[(with(0, None), 100)]), [""; 0]);
}

#[test]
fn numbers_that_no_sensor_measures_are_no_reading() {
    let most = |highest| GpuReading {
        ecc_uncorrected: Some(highest),
        ecc_uncorrected_ever: Some(highest),
        nvlink_errors: Some(highest),
        pages_retired: Some(highest),
        temperature_c: Some(u32::MAX),
        memory_temperature_c: Some(255),
        pcie_width_max: Some(u32::MAX),
        pcie_gen_max: Some(u32::MAX),
        ..healthy()
    };
    let zero = GpuReading {
        temperature_c: Some(0),
        slowdown_c: Some(0),
        memory_temperature_c: Some(0),
        memory_max_c: Some(0),
        ..healthy()
    };
    let readings = [
        (healthy(), 2),
        (most(u64::MAX), 200),
        (healthy(), 2),
        (most(u64::from(u32::MAX)), 200),
        (zero, 200),
        (healthy(), 2),
    ];
    assert_eq!(raised_by(&mut GpuWatch::default(), &readings), [""; 0]);
}

#[test]
fn a_call_that_is_slow_once_is_no_sign_and_one_that_never_returns_is() {
    let slow = silent(ReadFailureKind::Hangs);
    let readings = [(healthy(), 2), (slow.clone(), 3), (healthy(), 2)];
    assert_eq!(raised_by(&mut GpuWatch::default(), &readings), [""; 0]);
    let readings = [(healthy(), 2), (slow, 7)];
    assert_eq!(raised_by(&mut GpuWatch::default(), &readings), ["hangs"]);
}

#[test]
fn a_clock_that_is_set_forward_makes_no_state_last() {
    let catalogue = Catalogue::built_in();
    let mut watch = GpuWatch::default();
    let hot = shows(SignState::Hot).unwrap();
    assert_eq!(watch.read(&catalogue, &hot, at(0)), []);
    assert_eq!(watch.read(&catalogue, &hot, at(7200)), []);
    assert_eq!(watch.read(&catalogue, &hot, at(-7200)), [], "set back");
    assert_eq!(watch.read(&catalogue, &hot, at(-7100)), []);
    assert_eq!(raised(&watch.read(&catalogue, &hot, at(-7080))), ["hot"]);
}

#[test]
fn a_link_that_has_all_its_lanes_again_is_a_sign_no_more() {
    let (catalogue, narrow) = (Catalogue::built_in(), shows(SignState::PcieWidth).unwrap());
    let mut watch = GpuWatch::default();
    assert_eq!(raised_by(&mut watch, &[(narrow, 40)]), ["pcie-width"]);
    assert_eq!(watch.read(&catalogue, &healthy(), at(999)), []);
    watch.read(&catalogue, &healthy(), at(1000));
    assert_eq!(watch.standing().count(), 0);
}

prop_compose! {
    /// What a GPU in health may show from one look to the next.
    fn step()(secs in 1i64..120, celsius in 25u32..87, memory in 25u32..95, busy in 0u32..=100, corrected in 0u64..3, replays in 0u64..20,
              errors in 0u64..50, power_ms in 0u64..60_000, resting in any::<bool>(), capped in any::<bool>(), misses in any::<bool>()) -> Step {
        Step { secs, celsius, memory, busy, corrected, replays, errors, power_ms, resting, capped, misses }
    }
}

#[derive(Clone, Debug)]
struct Step {
    secs: i64,
    celsius: u32,
    memory: u32,
    busy: u32,
    corrected: u64,
    replays: u64,
    errors: u64,
    power_ms: u64,
    resting: bool,
    capped: bool,
    misses: bool,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_healthy_gpu_raises_no_sign(steps in proptest::collection::vec(step(), 1..200)) {
        let catalogue = Catalogue::built_in();
        let mut watch = GpuWatch::default();
        let (mut now, mut reading) = (0, healthy());
        for step in steps {
            now += step.secs;
            reading.temperature_c = Some(step.celsius);
            reading.memory_temperature_c = if step.misses { None } else { Some(step.memory) };
            reading.busy_percent = Some(step.busy);
            reading.pcie_gen = Some(if step.resting && step.busy < 30 { 1 } else { 5 });
            reading.slow_reasons = Some(if step.capped { slow_reason::POWER_CAP } else { 0 } | u64::from(step.busy == 0));
            reading.ecc_corrected = reading.ecc_corrected.map(|count| count + step.corrected);
            reading.pcie_replays = reading.pcie_replays.map(|count| count + step.replays);
            reading.nvlink_errors = reading.nvlink_errors.map(|count| count + step.errors);
            reading.power_slowed_ms = reading.power_slowed_ms.map(|count| count + step.power_ms);
            prop_assert_eq!(watch.read(&catalogue, &reading, at(now)), vec![]);
        }
    }

    #[test]
    fn a_storm_is_bounded_in_words_and_in_memory(
        bursts in proptest::collection::vec((0u64..200, 1u64..20_000, 0i64..5, any::<bool>()), 1..400),
    ) {
        let catalogue = Catalogue::built_in();
        let mut watch = GpuWatch::default();
        let mut now = 0;
        let mut words: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for (number, count, secs, from_log) in bursts {
            now += secs;
            let source = if from_log { EventSource::KernelLog } else { EventSource::EventSet };
            for change in watch.event(&catalogue, GpuEventKind::Xid(number), count, source, at(now)) {
                let (SignChange::Raised(sign) | SignChange::Repeated(sign) | SignChange::Over(sign)) = change;
                words.entry(sign.name).or_default().push(now);
            }
        }
        for (name, times) in words {
            // One when it is raised, then after 1, 2, 4 ... minutes.
            let span_minutes = (now / 60) as u64;
            let most = 2 + (span_minutes + 1).ilog2() as usize + (span_minutes / 60) as usize;
            prop_assert!(times.len() <= most, "{}: told {} times in {} s", name, times.len(), now);
        }
        let size = serde_json::to_string(&watch).unwrap().len();
        prop_assert!(size < 200_000, "{} bytes", size);
    }

    #[test]
    fn whatever_comes_a_sign_is_raised_once_until_it_is_over(
        steps in proptest::collection::vec((0usize..40, 1i64..400), 1..150),
    ) {
        let catalogue = Catalogue::built_in();
        let mut watch = GpuWatch::default();
        let mut standing: BTreeMap<String, u64> = BTreeMap::new();
        let mut now = 0;
        for (what, secs) in steps {
            now += secs;
            let changes = match SignState::ALL.get(what).and_then(|(state, _)| shows(*state)) {
                Some(reading) => watch.read(&catalogue, &reading, at(now)),
                None if what % 2 == 0 => watch.read(&catalogue, &healthy(), at(now)),
                None => watch.event(&catalogue, GpuEventKind::Xid(what as u64 * 4), 1, EventSource::EventSet, at(now)),
            };
            for change in changes {
                match change {
                    SignChange::Raised(sign) => prop_assert!(standing.insert(sign.name.clone(), sign.count).is_none(), "{} raised twice", sign.name),
                    SignChange::Repeated(sign) => prop_assert!(standing.contains_key(&sign.name)),
                    SignChange::Over(sign) => prop_assert!(standing.remove(&sign.name).is_some(), "{} was not raised", sign.name),
                }
            }
            let names: Vec<&str> = watch.standing().map(|sign| sign.name.as_str()).collect();
            prop_assert_eq!(names, standing.keys().map(String::as_str).collect::<Vec<_>>());
        }
    }
}
