//! The policy in force: the configuration's files over what `gadm` made.

use gmodel::config::{ClusterConfig, Partition};
use gmodel::policy::Reservation;
use gmodel::record::Record;
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

/// The partitions in force: the files' with the keys that were set of them, and those that were made.
pub(crate) fn partitions(own: &Policy, config: &ClusterConfig) -> Vec<Partition> {
    let (mut all, mut made) = (config.of_files().to_vec(), Vec::new());
    for set in own.partitions.values() {
        let file = all.iter_mut().find(|one| one.name == set.partition.name);
        match (file, &set.file) {
            (Some(file), Some(_)) => {
                for key in set.set_keys(file, true) {
                    if let Some(value) = set.partition.get(key) {
                        file.set(key, value);
                    }
                }
            }
            (None, None) => made.push(set.partition.clone()),
            // The file that has it, or had it, counts.
            _ => {}
        }
    }
    // The only partition of the files is the default without a word.
    if let ([only], false) = (&mut all[..], made.is_empty()) {
        only.is_default = true;
    }
    all.extend(made);
    all
}

/// Recurring windows follow the site's time zone.
pub(crate) fn zoned(one: &mut Reservation, config: &ClusterConfig) {
    one.zone = (*config.time_zone != TimeZone::default()).then(|| config.time_zone.clone());
}
