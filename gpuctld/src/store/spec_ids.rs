//! Which row of `specs` holds a request that is in memory. Requests are never changed in place, so the address
//! of the shared value names it; tasks of an array share their array's row that way.

use gmodel::JobSpec;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Sweeps for dead entries begin above this many.
const SWEEP_FLOOR: usize = 1024;

#[derive(Debug, Default)]
pub struct SpecIds {
    by_address: HashMap<usize, (Weak<JobSpec>, i64)>,
    /// The newest row.
    last: i64,
    sweep_above: usize,
}

impl SpecIds {
    pub fn starting_after(last: i64) -> Self {
        Self { by_address: HashMap::new(), last, sweep_above: SWEEP_FLOOR }
    }

    /// The row of a request and whether it is new and has to be written.
    pub fn number(&mut self, spec: &Arc<JobSpec>) -> (i64, bool) {
        // A weak reference keeps the address from being given to another value.
        if let Some((_, id)) = self.by_address.get(&address(spec)) {
            return (*id, false);
        }
        self.last += 1;
        let id = self.last;
        self.remember(spec, id);
        (id, true)
    }

    pub fn remember(&mut self, spec: &Arc<JobSpec>, id: i64) {
        self.by_address.insert(address(spec), (Arc::downgrade(spec), id));
        if self.by_address.len() > self.sweep_above.max(SWEEP_FLOOR) {
            self.by_address.retain(|_, (spec, _)| spec.strong_count() > 0);
            self.sweep_above = self.by_address.len() * 2;
        }
    }
}

fn address(spec: &Arc<JobSpec>) -> usize {
    Arc::as_ptr(spec).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_request_has_one_row_and_a_changed_one_another() {
        let mut ids = SpecIds::starting_after(10);
        let spec = Arc::new(JobSpec::default());
        assert_eq!(ids.number(&spec), (11, true));
        let mut of_task = spec.clone();
        assert_eq!(ids.number(&of_task), (11, false));
        Arc::make_mut(&mut of_task).name = "other".into();
        assert_eq!(ids.number(&of_task), (12, true));
        assert_eq!(ids.number(&spec), (11, false));
    }

    #[test]
    fn requests_that_left_memory_are_dropped() {
        let mut ids = SpecIds::starting_after(0);
        for _ in 0..10 * SWEEP_FLOOR {
            ids.number(&Arc::new(JobSpec::default()));
        }
        assert!(ids.by_address.len() <= 2 * SWEEP_FLOOR, "{} entries", ids.by_address.len());
    }
}
