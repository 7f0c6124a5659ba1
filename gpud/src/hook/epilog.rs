//! The epilog of a run, after its job: one that fails is logged, and the run's share of the node is free all the same.

use crate::clock::wall_clock;
use crate::hook::program::{self, HookKind};
use crate::site::Site;
use gmodel::RunId;

/// Only where the run came as far as its prolog. Blocking.
pub fn run(site: &Site, run: RunId) {
    let (Ok(order), Ok(Some(setup))) = (site.spool.order(run), site.spool.setup(run)) else {
        return;
    };
    if order.epilog.is_empty() {
        return;
    }
    if let Err(e) = program::run(site, run, HookKind::Epilog, &order, &setup) {
        site.spool.log(run, wall_clock(), &format!("{e:#}"));
    }
}
