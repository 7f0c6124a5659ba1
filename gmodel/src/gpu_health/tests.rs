//! Signs as they come and go: each raised by its evidence once, none by a healthy GPU, none without bound.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::time::Timestamp;

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
fn the_catalogue_names_sources_and_each_xid_once() {
    let catalogue = Catalogue::built_in();
    assert_eq!(
        Catalogue::with(&CatalogueOverrides::default()),
        Ok(catalogue.clone())
    );
    for (name, kind) in &catalogue.signs {
        assert!(
            !kind.source.is_empty() && !kind.meaning.is_empty(),
            "{name}"
        );
        assert_eq!(
            kind.evidence.to_string().parse(),
            Ok(kind.evidence.clone()),
            "{name}"
        );
        assert!(
            kind.action > Action::Note || kind.clears_secs > 0,
            "{name}: a note must end by itself"
        );
        let ends = !kind.let_finish && kind.action > Action::Note;
        assert!(
            !ends || kind.action >= Action::EndJob,
            "{name}: its job is to end and its action does not say so"
        );
    }
    let (name, kind) = catalogue.by_xid(79).unwrap();
    assert_eq!((name, kind.action), ("xid-79", Action::Reboot));
    assert_eq!(catalogue.by_xid(120).unwrap().0, "xid-119");
    assert_eq!(catalogue.by_xid(4711).unwrap().0, "xid-other");
    for (state, word) in SignState::ALL {
        let named = catalogue
            .signs
            .values()
            .any(|kind| kind.evidence == Evidence::State(*state));
        assert!(named, "no sign has {word} as evidence");
    }
}

/// The page for administrators is written from the data: `UPDATE_EXPECT=1 cargo test -p gmodel the_page` writes it anew.
#[test]
fn the_page_of_signs_is_the_catalogue() {
    let catalogue = Catalogue::built_in();
    let mut page = format!(
        "{HEAD}\nCatalogue version {CATALOGUE_VERSION}, {} signs.\n\n",
        catalogue.signs.len()
    );
    page +=
        "| sign | raised by | severity | action | meaning | source |\n|---|---|---|---|---|---|\n";
    for (name, kind) in &catalogue.signs {
        page += &format!(
            "| `{name}` | {} | {} | {} | {} | {} |\n",
            raised_by(kind),
            kind.severity,
            action_text(kind),
            kind.meaning,
            kind.source
        );
    }
    expect_test::expect_file!["../../../docs/gpu-health.md"].assert_eq(&page);
}

fn raised_by(kind: &SignKind) -> String {
    let lasting = if kind.holds_secs > 0 {
        format!(" for {} s", kind.holds_secs)
    } else {
        String::new()
    };
    match &kind.evidence {
        Evidence::Counter(SignCounter::HeatSlowed | SignCounter::PowerSlowed) => {
            format!(
                "{}, {} s within {} s",
                kind.evidence,
                kind.threshold / 1000,
                kind.window_secs
            )
        }
        Evidence::Counter(_) => format!(
            "{}, {} within {} s",
            kind.evidence, kind.threshold, kind.window_secs
        ),
        Evidence::State(SignState::PagesRetired) => {
            format!("{}, {} or more", kind.evidence, kind.threshold)
        }
        evidence => format!("{}{lasting}", evidence.to_string().replace(',', ", ")),
    }
}

fn action_text(kind: &SignKind) -> String {
    match kind.action {
        Action::Note => "note".to_owned(),
        action if kind.let_finish => format!("{action}; its job may finish"),
        action => format!("{action}; its job is ended"),
    }
}

const HEAD: &str = "# Signs of sick GPUs

What gpupool looks for, and what it does about one GPU that shows it; the others on the node go on working. Signs come from NVML's event set, from
readings of every GPU, and from the kernel log. `gnodes --health` shows how each GPU stands, why, and what comes next; `gadm gpu history UUID` what
became of it, in whichever node it was. A GPU that was out of service when it left one node is out of service in the next. What shows no sign, wrong
results and slow links, is looked for in idle gaps: `docs/gpu-checks.md`.

What is certainly sick (a sign of severity `critical` or `fatal`) leaves the pool at once: no job is given a GPU that may compute wrong results,
whatever else is going on. Everything else that happens by itself waits for the controller's word: the quarantine for a milder sign (state `suspect`;
jobs may get the GPU meanwhile), a reset, a boot. In a healthy pool that word comes within milliseconds. It does not come while the pool's one breaker
is open: nothing automatic takes more than a node or a tenth of a partition within an hour, whatever the causes, a GPU counting as its part of its
node, and GPUs that went at once count as well. Then `gnodes --health`, `gadm diag`, the log and `/metrics` (`gpupool_breaker_open`) say so; an hour after
something went, more may. What people order is not counted and not held back.

`gpu_reset` and `node_reboot` in gpud.toml name the programs that do it; without them a GPU that calls for it waits for `gadm gpu return`. A node boots
only when no run is on it, and takes no work from the moment it may. Each step is written down before it is begun: a gpud that is killed during one
does not take it twice.

Actions, mildest first: `note` into the GPU's history; `quarantine`: no new job gets it; `end_job`: and the job that holds it is ended and requeued
elsewhere; `reset`: and the GPU is reset when nothing runs on it; `reboot`: and it stays out until the node has booted, which is done when nothing
runs there; `replace`: it is marked, and no reset brings it back. A GPU comes back into service only after a burn-in. Steps are taken one at a time
on a node, each pause twice as long as the one before; what two resets in a day (or a boot, where the site allows boots) do not mend is marked.
A reset or boot that could not be done, since its program failed, marks nothing: the GPU waits for an administrator, with the program's words as its reason. A GPU
that is missing keeps none of the others waiting; it is booted for by hand, or `gadm gpu forget` says that it is gone for good.

A site changes an entry, adds one, or switches one off in TOML; what is not named stays:

    [sign.xid-63]
    action = \"quarantine\"        # note quarantine end_job reset reboot replace
    let_finish = true            # its job may finish first

    [sign.our-page-faults]       # a new one needs evidence and action
    evidence = \"xid 31\"
    action = \"quarantine\"
    threshold = 50               # so many
    window_secs = 600            # within this time
    # states: holds_secs = how long it must last, clears_secs = over after so long without it (0: stands until returned)

    [sign.pcie-width]
    off = true

An Xid that an entry of the site's own names is evidence of that one only.
An Xid that comes by the event set and in the kernel log counts once. A storm raises a count: a sign that stands is told again after 1, 2, 4
and so on up to 60 minutes.
";

const SITE: &str = r#"
[sign.xid-63]
severity = "warning"

[sign.xid-79]
action = "replace"
let_finish = true

[sign.pcie-width]
off = true

[sign.our-page-faults]
evidence = "xid 31"
action = "quarantine"
threshold = 50
window_secs = 600
meaning = "so many page faults are no single program's"
"#;

#[test]
fn a_site_changes_adds_and_switches_off_signs_in_toml() {
    let overrides: CatalogueOverrides = toml::from_str(SITE).unwrap();
    let catalogue = Catalogue::with(&overrides).unwrap();
    assert_eq!(catalogue.signs["xid-63"].severity, Severity::Warning);
    assert_eq!(
        catalogue.signs["xid-63"].action,
        Action::Note,
        "what is not named stays"
    );
    assert_eq!(
        (
            catalogue.signs["xid-79"].action,
            catalogue.signs["xid-79"].let_finish
        ),
        (Action::Replace, true)
    );
    assert!(!catalogue.signs.contains_key("pcie-width"));
    assert_eq!(
        (
            catalogue.by_xid(31).unwrap().0,
            catalogue.by_xid(13).unwrap().0
        ),
        ("our-page-faults", "xid-application")
    );
    let mut watch = GpuWatch::default();
    for count in 0..49 {
        assert_eq!(
            watch.event(
                &catalogue,
                GpuEventKind::Xid(31),
                1,
                EventSource::EventSet,
                at(count * 10)
            ),
            []
        );
    }
    assert_eq!(
        raised(&watch.event(
            &catalogue,
            GpuEventKind::Xid(31),
            1,
            EventSource::EventSet,
            at(490)
        )),
        ["our-page-faults"]
    );
}

#[test]
fn mistakes_in_the_overrides_are_all_told_with_sign_and_key() {
    let wrong = r#"
[sign.xid-97]
action = "reset"

[sign.hot]
threshold = 0
holds_secs = 99999999

[sign.mine]
evidence = "xid 48"
action = "note"

[sign.mine-too]
evidence = "xid 48"
action = "reset"
"#;
    let errors = Catalogue::with(&toml::from_str(wrong).unwrap()).unwrap_err();
    let told: Vec<(&str, &str)> = errors
        .iter()
        .map(|error| (error.sign.as_str(), error.key))
        .collect();
    assert_eq!(
        told,
        [
            ("hot", "holds_secs"),
            ("hot", "threshold"),
            ("xid-97", "evidence"),
            ("mine-too", "evidence")
        ]
    );
    assert!(
        errors[2].to_string().contains("did you mean \"xid-79\"?"),
        "{}",
        errors[2]
    );
    assert!(errors[3].problem.contains("\"mine\""), "{}", errors[3]);
    let unknown = |text: &str| {
        toml::from_str::<CatalogueOverrides>(text)
            .unwrap_err()
            .to_string()
    };
    assert!(unknown("[sign.hot]\nevidence = \"hoot\"").contains("did you mean \"hot\"?"));
    assert!(unknown("[sign.hot]\nacton = \"note\"").contains("unknown field `acton`"));
    assert!(unknown("[sign.hot]\naction = \"explode\"").contains("unknown variant `explode`"));
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
