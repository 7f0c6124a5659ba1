//! Planned starts: the first pending jobs of a partition get nodes and a time that later jobs may not delay.
//!
//! Sources: Lifka 1995 (EASY); Mu'alem and Feitelson 2001 (conservative backfill).

pub(crate) mod choices;
pub(crate) mod deferred;
pub(crate) mod earliest;
pub(crate) mod planned;
pub(crate) mod reserve;
