//! Two thousand hours of GPUs that fall ill and of sensors that lie: what is sick leaves service, and nothing else.

use gcore::node::gpu_health::RepairMeans;
use gmodel::gpu_health::{Action, Catalogue, CatalogueOverrides, SignOverride};
use gsim::board::{Board, Disturbance, Illness};
use gsim::health::HealthTrial;
use gsim::node_gpus::NodeGpus;
use gsim::prng::Prng;
use std::collections::BTreeMap;
use std::sync::Arc;

fn small_pool() -> HealthTrial {
    HealthTrial {
        hours_between_acts: 4,
        ..HealthTrial::new(7, 2000, 16)
    }
}

#[test]
fn no_healthy_gpu_is_drained_and_no_sick_one_stays() {
    let result = small_pool().run(false);
    assert_eq!(result.violation, None);
    let tally = &result.tally;
    assert_eq!((tally.wrong, tally.missed), (0, 0));
    assert!(result.gpu_hours >= 1_990, "{}", result.gpu_hours);
    // Each kind of fault was met, and each kind of illness had a GPU leave.
    for (illness, word, ..) in Illness::ALL {
        assert!(tally.right.contains_key(&illness), "no {word}");
    }
    for (what, word, _) in Disturbance::ALL {
        assert!(tally.disturbances.contains_key(&what), "no {word}");
    }
    assert!(tally.by_false_sign > 0 && result.stopped > 0 && result.most_lost <= result.bound);
    assert!(tally.returned > 50 && tally.resets > 10, "{tally:?}");
}

#[test]
fn a_catalogue_that_drains_for_a_users_fault_is_noticed() {
    let drain = SignOverride {
        action: Some(Action::Quarantine),
        ..SignOverride::default()
    };
    let sign = BTreeMap::from([("xid-application".to_owned(), drain)]);
    let catalogue = Catalogue::with(&CatalogueOverrides { sign }).unwrap();
    let result = HealthTrial {
        catalogue: Arc::new(catalogue),
        ..small_pool()
    }
    .run(false);
    let violation = result.violation.expect("a wrong drain");
    assert!(
        violation.contains("is well, and is drained: Xid "),
        "{violation}"
    );
}

#[test]
fn a_catalogue_that_overlooks_a_sick_gpu_is_noticed() {
    let off = SignOverride {
        off: true,
        ..SignOverride::default()
    };
    let sign = ["hot", "pcie-width", "sram-worn"];
    let sign = sign.map(|name| (name.to_owned(), off.clone())).into();
    let catalogue = Catalogue::with(&CatalogueOverrides { sign }).unwrap();
    let result = HealthTrial {
        catalogue: Arc::new(catalogue),
        ..small_pool()
    }
    .run(false);
    assert!(result.tally.missed > 0, "{:?}", result.violation);
}

#[test]
fn a_sign_that_has_to_last_has_its_whole_time_after_a_long_boot() {
    let (catalogue, chance) = (Arc::new(Catalogue::built_in()), Prng::new(1, 8));
    let mut gpus = NodeGpus::new("n1", 2, catalogue, RepairMeans::default(), chance);
    let look = |gpus: &mut NodeGpus, from: i64, to: i64| {
        for secs in (from..=to).step_by(10) {
            let outcome = gpus.look(&BTreeMap::new(), true, 1000 * secs);
            assert_eq!(outcome.violation, None, "at {secs} s");
        }
    };
    gpus.daemon_begins("first".into(), 0);
    look(&mut gpus, 0, 60);
    gpus.falls_ill(0, Illness::Narrow, 65_000);
    look(&mut gpus, 70, 240);
    // It is seen for 170 s, not for ten minutes and more, and for 300 s.
    gpus.daemon_ends();
    gpus.booted(1_100_000);
    gpus.daemon_begins("second".into(), 1_100_000);
    look(&mut gpus, 1100, 1400);
    assert_eq!((gpus.tally.wrong, gpus.tally.missed), (0, 0));
    assert_eq!(gpus.infos()[0].wants, "quarantine");
}

#[test]
fn lies_in_a_row_last_no_longer_than_one() {
    let mut chance = Prng::new(1, 8);
    let mut board = Board::new("GPU-n1-0".into(), 0);
    let mut lied_secs = 0;
    for secs in 0..20_000 {
        board.is_disturbed(Disturbance::CountersZero, 1000 * secs, &mut chance);
        let lies = !board.is_truthful(1000 * secs);
        lied_secs = i64::from(lies) * (lied_secs + 1);
        assert!(lied_secs <= 500, "for {lied_secs} s");
    }
}
