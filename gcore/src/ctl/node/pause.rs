//! Nodes with launch errors that may not be drained: for how long they take no new work.

use crate::ctl::state::{Node, Strike};
use gmodel::Timestamp;
use gmodel::run::LaunchFailureSubject;
use std::collections::BTreeSet;

/// Strikes that drain a node, and users or jobs they must come from.
pub const STRIKES: usize = 3;

pub const STRIKE_SOURCES: usize = 2;

/// How long a node with launch errors is paused, seconds: the first time, and at most.
pub(crate) const FIRST_PAUSE_SECS: i64 = 30;

pub(crate) const MAX_PAUSE_SECS: i64 = 600;

/// Whether strikes blame the node: so many, with so little in common. A hundred jobs of one user unknown to
/// the node may fail; all errors about one GPU, or about one choice of jobs or partitions, count once.
pub(crate) fn is_the_nodes(strikes: &[Strike]) -> bool {
    let users: BTreeSet<_> = strikes
        .iter()
        .filter(|s| {
            matches!(
                s.about,
                LaunchFailureSubject::Node | LaunchFailureSubject::User
            )
        })
        .map(|s| &s.user)
        .collect();
    let of_users = strikes
        .iter()
        .filter(|s| {
            matches!(
                s.about,
                LaunchFailureSubject::Node | LaunchFailureSubject::User
            )
        })
        .count();
    let plain = strikes
        .iter()
        .filter(|s| s.about == LaunchFailureSubject::Node);
    let parts: BTreeSet<_> = strikes
        .iter()
        .filter(|s| {
            !matches!(
                s.about,
                LaunchFailureSubject::Node | LaunchFailureSubject::User
            )
        })
        .map(|s| &s.about)
        .collect();
    let others = plain.clone().count() + parts.len();
    let jobs: BTreeSet<_> = strikes
        .iter()
        .filter(|s| s.about != LaunchFailureSubject::User)
        .map(|s| s.run.job)
        .collect();
    strikes.iter().any(|strike| strike.enough)
        || of_users >= STRIKES && users.len() >= STRIKE_SOURCES
        || others >= STRIKES && jobs.len() >= STRIKE_SOURCES
}

pub(crate) fn words(strikes: &[Strike]) -> String {
    let last = strikes.last().map_or("", |strike| &*strike.text);
    format!(
        "{} launch errors, the last: {last}",
        strikes.len().max(STRIKES)
    )
}

/// Until when a node with launch errors takes no new work, and why. Where the breaker allows it a drain takes
/// its place. A paused node comes back by itself.
pub fn paused(node: &Node, now: Timestamp) -> Option<(Timestamp, String)> {
    let last = node
        .strikes
        .last()
        .filter(|_| is_the_nodes(&node.strikes))?;
    let doublings = node.strikes.len().saturating_sub(STRIKES).min(8);
    let until = last
        .at
        .plus_secs((FIRST_PAUSE_SECS << doublings).min(MAX_PAUSE_SECS));
    (until > now).then(|| (until, words(&node.strikes)))
}
