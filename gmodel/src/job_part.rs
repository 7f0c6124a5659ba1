//! A component of a job of unlike parts: a job of its own, which starts and ends with the other components.
//!
//! Components have ids in a row. The first one leads: its id means the whole. Written `17+1`.

use crate::ids::JobId;
use serde::{Deserialize, Serialize};

/// Most components of one job.
pub const MOST_PARTS: usize = 16;

/// Which component of which job of unlike parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobPart {
    /// The id of the first component.
    pub leader: JobId,
    /// Its place among the components, from 0.
    pub offset: u32,
    /// How many there are.
    pub size: u32,
}

impl JobPart {
    pub fn is_leader(self) -> bool {
        self.offset == 0
    }

    /// All components, the leader first.
    pub fn jobs(self) -> impl Iterator<Item = JobId> {
        (0..u64::from(self.size)).map(move |offset| JobId(self.leader.0 + offset))
    }

    /// The other components.
    pub fn others(self) -> impl Iterator<Item = JobId> {
        let own = JobId(self.leader.0 + u64::from(self.offset));
        self.jobs().filter(move |id| *id != own)
    }

    /// Ids of all components: `17-18`.
    pub fn ids(self) -> String {
        let last = self.leader.0 + u64::from(self.size).saturating_sub(1);
        format!("{}-{last}", self.leader)
    }

    /// `17+1`.
    pub fn shown(self) -> String {
        format!("{}+{}", self.leader, self.offset)
    }

    /// The leader and the offset of `17+1`.
    pub fn parse(text: &str) -> Option<(JobId, u32)> {
        let (leader, offset) = text.split_once('+')?;
        Some((leader.parse().ok()?, offset.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_is_shown_by_its_leader_and_its_place() {
        let part = JobPart {
            leader: JobId(17),
            offset: 1,
            size: 3,
        };
        assert_eq!((part.shown(), part.ids()), ("17+1".into(), "17-19".into()));
        assert_eq!(JobPart::parse(&part.shown()), Some((JobId(17), 1)));
        assert_eq!(JobPart::parse("17"), None);
        assert_eq!(JobPart::parse("17+"), None);
        assert_eq!(
            part.others().collect::<Vec<_>>(),
            [JobId(17), JobId(19)],
            "18 is its own"
        );
    }
}
