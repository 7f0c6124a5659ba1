//! A job that may start in any of several partitions: `--partition a,b`. It waits in all of them and runs in one.
//!
//! While it waits `partition` is the list; from its start on `partition` is the one, and `partitions` keeps the list for
//! when it is started again. Never says which is better: the scheduler does. Source: sbatch(1), `--partition`.

use crate::config::{ClusterConfig, Partition};
use crate::job::CommonSpec;

/// Most partitions that one job may name.
pub const MAX_PARTITIONS: usize = 16;

/// The partitions of a list, in its order.
pub fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(|name| !name.is_empty())
}

/// Whether a partition is one of a list.
pub fn is_among(list: &str, name: &str) -> bool {
    names(list).any(|one| one == name)
}

impl CommonSpec {
    /// It waits in several partitions.
    pub fn waits_in_several(&self) -> bool {
        self.partition.contains(',')
    }

    /// From now on it is in one of the partitions that it waits in.
    pub fn settle_in(&mut self, name: &str) {
        if self.waits_in_several() {
            self.partitions = std::mem::replace(&mut self.partition, name.to_owned());
        }
    }

    /// It waits again in all that it named.
    pub fn unsettle(&mut self) {
        if !self.partitions.is_empty() {
            self.partition = std::mem::take(&mut self.partitions);
        }
    }

    /// The place of its one partition in its list, and of its one constraint among alternatives; 0 where there is one only.
    pub fn choice(&self) -> u32 {
        let place = names(&self.partitions)
            .position(|name| name == self.partition)
            .map_or(0, |at| at as u32);
        self.alternative.map_or(place, |(at, of)| place * of + at)
    }

    /// How many choices there are.
    pub fn choices(&self) -> usize {
        names(&self.partitions).count().max(1) * self.alternative.map_or(1, |(_, of)| of as usize)
    }
}

impl ClusterConfig {
    /// The partitions of a list that there are, in its order.
    pub fn partitions_of<'a>(&'a self, list: &'a str) -> impl Iterator<Item = &'a Partition> {
        names(list).filter_map(|name| self.partition(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_settles_in_one_of_its_partitions_and_waits_in_all_of_them_again() {
        let mut spec = CommonSpec {
            partition: "a,b".into(),
            ..CommonSpec::default()
        };
        assert!(
            spec.waits_in_several()
                && is_among(&spec.partition, "b")
                && !is_among(&spec.partition, "a,b")
        );
        spec.settle_in("b");
        assert_eq!(
            (&*spec.partition, &*spec.partitions, spec.choice()),
            ("b", "a,b", 1)
        );
        spec.unsettle();
        assert_eq!(
            (&*spec.partition, &*spec.partitions, spec.choice()),
            ("a,b", "", 0)
        );
    }

    #[test]
    fn a_job_of_one_partition_stays_as_it_is() {
        let mut spec = CommonSpec {
            partition: "a".into(),
            ..CommonSpec::default()
        };
        let before = spec.clone();
        spec.settle_in("a");
        spec.unsettle();
        assert_eq!(spec, before);
    }
}
