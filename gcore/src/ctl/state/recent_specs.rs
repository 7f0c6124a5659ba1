//! Recent requests: a thousand equal ones of a sweep are one in memory and one row; unlike ones share their
//! common parts. A memo of submission.

use gmodel::job::LaunchContext;
use gmodel::{CommonSpec, JobSpec, Shared};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most requests remembered of each kind; then the memory starts anew.
const MOST: usize = 1024;

/// Requests that later ones may share.
#[derive(Clone, Debug, Default)]
pub struct RecentSpecs {
    whole: BTreeSet<UniqueSpec>,
    common: BTreeSet<Shared<CommonSpec>>,
    around: BTreeSet<Shared<LaunchContext>>,
}

impl RecentSpecs {
    /// The request, with the parts that are in memory already.
    pub fn share(&mut self, mut spec: JobSpec) -> Arc<JobSpec> {
        spec.common = known(&mut self.common, spec.common);
        spec.launch.around = known(&mut self.around, spec.launch.around);
        known(&mut self.whole, UniqueSpec(Arc::new(spec))).0
    }
}

/// A request with common parts that are unique in memory: compared by their addresses.
#[derive(Clone, Debug)]
struct UniqueSpec(Arc<JobSpec>);

impl UniqueSpec {
    fn key(&self) -> impl Ord + '_ {
        let JobSpec {
            name,
            launch,
            common,
        } = &*self.0;
        (common.address(), launch.around.address(), name, launch)
    }
}

impl Ord for UniqueSpec {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for UniqueSpec {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for UniqueSpec {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for UniqueSpec {}

/// The equal known value, or this one from now on.
fn known<T: Ord + Clone>(late: &mut BTreeSet<T>, value: T) -> T {
    if let Some(known) = late.get(&value) {
        return known.clone();
    }
    if late.len() >= MOST {
        late.clear();
    }
    late.insert(value.clone());
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_requests_are_one_and_others_share_what_they_have_in_common() {
        let mut late = RecentSpecs::default();
        let spec = |name: &str, account: &str| {
            let mut spec = JobSpec {
                name: name.into(),
                ..JobSpec::default()
            };
            spec.account = account.into();
            spec.launch.work_dir = "/home/ada".into();
            spec
        };
        let first = late.share(spec("a", "lab"));
        assert!(Arc::ptr_eq(&first, &late.share(spec("a", "lab"))));
        let other_name = late.share(spec("b", "lab"));
        assert!(!Arc::ptr_eq(&first, &other_name) && first.common.is_same(&other_name.common));
        let other_account = late.share(spec("a", "physics"));
        assert!(!first.common.is_same(&other_account.common));
        assert!(first.launch.around.is_same(&other_account.launch.around));
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut late = RecentSpecs::default();
        for n in 0..10 * MOST {
            late.share(JobSpec {
                name: n.to_string(),
                ..JobSpec::default()
            });
        }
        assert!(late.whole.len() <= MOST);
    }
}
