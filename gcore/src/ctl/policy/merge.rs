//! The policy in force: the configuration's files over what `gadm` made.

use gmodel::config::{ClusterConfig, Partition};
use gmodel::partition::MadePartition;
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

/// The partitions in force: the files' with the keys that were set of them and that no file says, and those that were made.
pub(crate) fn partitions(own: &Policy, config: &ClusterConfig) -> Vec<Partition> {
    let (mut all, mut made) = (config.of_files().to_vec(), Vec::new());
    for MadePartition {
        partition, keys, ..
    } in own.partitions.values()
    {
        let file = all.iter_mut().find(|one| one.name == partition.name);
        match (file, keys) {
            (Some(file), Some(keys)) => {
                let written = config.written_keys.get(&partition.name);
                let is_free = |key: &str| written.is_none_or(|keys| !keys.contains(key));
                let set = Partition::keys()
                    .into_iter()
                    .filter(|key| keys.contains(key.name));
                for key in set.filter(|key| is_free(key.name)) {
                    if let Some(value) = partition.get(key) {
                        file.set(key, value);
                    }
                }
            }
            (None, None) => made.push(partition.clone()),
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
