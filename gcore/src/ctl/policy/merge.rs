//! The policy in force: the configuration's files over what `gadm` made.

use gmodel::config::ClusterConfig;
use gmodel::policy::Reservation;
use gmodel::{Policy, TimeZone};
use std::sync::Arc;

/// The policy in force: the files' records replace the database's of the same name.
pub(crate) fn merged(own: &Policy, config: &ClusterConfig) -> Arc<Policy> {
    let files = &config.policy;
    let mut all = own.clone();
    all.accounts.extend(files.accounts.clone());
    all.qos.extend(files.qos.clone());
    all.reservations.extend(files.reservations.clone());
    for one in all.reservations.values_mut() {
        zoned(one, config);
    }
    Arc::new(all)
}

/// Recurring windows follow the site's time zone.
pub(crate) fn zoned(one: &mut Reservation, config: &ClusterConfig) {
    one.zone = (*config.time_zone != TimeZone::default()).then(|| config.time_zone.clone());
}
