//! Which row of `specs` holds what a request in memory has in common with others. Requests are never changed in place,
//! so the addresses of the shared parts name it: the jobs of a user that differ in name and script have one row.

use gmodel::job::LaunchContext;
use gmodel::{CommonSpec, JobSpec};
use std::collections::HashMap;
use std::sync::Weak;

/// Sweeps for dead entries begin above this many.
const SWEEP_FLOOR: usize = 1024;

#[derive(Debug, Default)]
pub struct SpecIds {
    by_address: HashMap<(usize, usize), SpecRow>,
    /// The newest row.
    last: i64,
    sweep_above: usize,
}

/// Weak references keep the addresses from being given to other values.
#[derive(Debug)]
struct SpecRow {
    common: Weak<CommonSpec>,
    around: Weak<LaunchContext>,
    id: i64,
}

impl SpecIds {
    pub fn starting_after(last: i64) -> Self {
        Self {
            by_address: HashMap::new(),
            last,
            sweep_above: SWEEP_FLOOR,
        }
    }

    /// The row of a request and whether it is new and has to be written.
    pub fn number(&mut self, spec: &JobSpec) -> (i64, bool) {
        if let Some(known) = self.by_address.get(&addresses(spec)) {
            return (known.id, false);
        }
        self.last += 1;
        let id = self.last;
        self.remember(spec, id);
        (id, true)
    }

    pub fn remember(&mut self, spec: &JobSpec, id: i64) {
        let known = SpecRow {
            common: spec.common.downgrade(),
            around: spec.launch.around.downgrade(),
            id,
        };
        self.by_address.insert(addresses(spec), known);
        if self.by_address.len() > self.sweep_above.max(SWEEP_FLOOR) {
            self.by_address.retain(|_, known| {
                known.common.strong_count() > 0 && known.around.strong_count() > 0
            });
            self.sweep_above = self.by_address.len() * 2;
        }
    }
}

fn addresses(spec: &JobSpec) -> (usize, usize) {
    (spec.common.address(), spec.launch.around.address())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_differ_in_name_and_script_have_one_row_and_others_another() {
        let mut ids = SpecIds::starting_after(10);
        let spec = JobSpec::default();
        assert_eq!(ids.number(&spec), (11, true));
        let mut other = spec.clone();
        other.name = "other".into();
        other.launch.argv = vec!["--seed".into()];
        assert_eq!(ids.number(&other), (11, false));
        other.comment = "another".into();
        assert_eq!(ids.number(&other), (12, true));
        other.launch.work_dir = "/tmp".into();
        assert_eq!(ids.number(&other), (13, true));
        assert_eq!(ids.number(&spec), (11, false));
    }

    #[test]
    fn requests_that_left_memory_are_dropped() {
        let mut ids = SpecIds::starting_after(0);
        for _ in 0..10 * SWEEP_FLOOR {
            ids.number(&JobSpec::default());
        }
        assert!(
            ids.by_address.len() <= 2 * SWEEP_FLOOR,
            "{} entries",
            ids.by_address.len()
        );
    }
}
