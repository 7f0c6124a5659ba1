//! The pull of a run's image: what the process that pulls says, a JSON object a line, and what a node tells of it. Values only.

use crate::ids::RunId;
use crate::size::rough_size;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The longest line that is read of a process that pulls.
pub const MAX_PULL_LINE_BYTES: u64 = 8 << 10;
/// The most text of an error that is kept, characters.
pub const MAX_PULL_TEXT: usize = 600;

/// Which party has to do something about a container that cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerFault {
    /// A name that is none, a file that cannot be read, a wish that this runtime cannot fulfil.
    User,
    /// The registry does not answer, or breaks off.
    Registry,
    /// The disk is full, or a program is missing.
    Node,
}

/// How far a pull is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PullProgress {
    pub done_bytes: u64,
    /// 0: not known yet.
    pub all_bytes: u64,
    /// All is here, and becomes files.
    pub unpacks: bool,
}

impl PullProgress {
    pub fn percent(self) -> u64 {
        let part = u128::from(self.done_bytes.min(self.all_bytes)) * 100;
        (part / u128::from(self.all_bytes.max(1))) as u64
    }

    /// The same as its text, with the image's name.
    pub fn of_image(self, image: &str) -> String {
        match self.all_bytes {
            _ if self.unpacks => format!("unpacking {image}"),
            0 => format!("pulling {image}"),
            all => format!("pulling {image} {}% of {}", self.percent(), rough_size(all)),
        }
    }
}

impl fmt::Display for PullProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.all_bytes {
            _ if self.unpacks => f.write_str("unpacking its image"),
            0 => f.write_str("pulling its image"),
            all => write!(f, "pulling {}% of {}", self.percent(), rough_size(all)),
        }
    }
}

/// What a reader of lines was told of a pull, so that it hears of each tenth once.
#[derive(Clone, Copy, Debug, Default)]
pub struct ToldPull(Option<PullProgress>);

impl ToldPull {
    /// Whether this is worth a line; from then on it was told.
    pub fn is_news(&mut self, now: PullProgress) -> bool {
        let part = |one: PullProgress| (one.unpacks, one.all_bytes > 0, one.percent() / 10);
        let is_news = self.0.is_none_or(|before| part(before) != part(now));
        if is_news {
            self.0 = Some(now);
        }
        is_news
    }
}

/// One line of the process that pulls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullWord {
    Progress(PullProgress),
    /// The image is here. The last line, as the next.
    Done {
        /// `docker.io/library/ubuntu@sha256:...`, or a path.
        image: String,
    },
    Failed {
        fault: ContainerFault,
        text: String,
    },
}

/// What a node tells the controller of a pull, again and again while it lasts. Not news: what is lost is told again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullReport {
    pub run: RunId,
    #[serde(flatten)]
    pub progress: PullProgress,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenth_of_a_pull_is_a_line_and_no_more() {
        let mut told = ToldPull::default();
        let lines = (0..=1000).filter(|done| {
            told.is_news(PullProgress {
                done_bytes: *done,
                all_bytes: 1000,
                unpacks: false,
            })
        });
        assert_eq!(lines.count(), 11);
    }

    #[test]
    fn a_pull_is_told_in_percent_and_in_short() {
        let of = |done_bytes, all_bytes| {
            PullProgress {
                done_bytes,
                all_bytes,
                unpacks: false,
            }
            .to_string()
        };
        assert_eq!(of(0, 0), "pulling its image");
        let half = PullProgress {
            done_bytes: 5 << 20,
            all_bytes: 10 << 20,
            unpacks: false,
        };
        assert_eq!(half.of_image("ubuntu"), "pulling ubuntu 50% of 10M");
        assert_eq!(of(3_400_000_000, 5_476_083_302), "pulling 62% of 5.1G");
        assert_eq!(of(u64::MAX, u64::MAX), "pulling 100% of 16777216T");
        assert_eq!(of(9 << 20, 10 << 20), "pulling 90% of 10M");
        assert_eq!(of(0, 700 << 10), "pulling 0% of 700K");
    }
}
