//! Two thousand hours of GPUs that fall ill and of sensors that lie: what is sick leaves service, and nothing else.

use gmodel::gpu_health::{Action, Catalogue, CatalogueOverrides, SignOverride};
use gsim::board::{Disturbance, Illness};
use gsim::health::HealthTrial;
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
