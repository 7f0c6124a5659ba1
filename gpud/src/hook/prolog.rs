//! The prolog of a run, before its job starts: a prolog that fails starts nothing.

use crate::hook::program::{self, HookKind};
use crate::run::failure::Failure;
use crate::site::Site;
use gmodel::RunId;
use gmodel::launch_order::LaunchOrder;
use gmodel::run::EndCause;
use gmodel::supervise::RunSetup;

/// Returns when the prolog has ended well, or there is none. Blocking.
pub fn run(site: &Site, run: RunId, order: &LaunchOrder, setup: &RunSetup) -> Result<(), Failure> {
    if order.prolog.is_empty() {
        return Ok(());
    }
    program::run(site, run, HookKind::Prolog, order, setup).map_err(|e| Failure {
        cause: EndCause::PrologFailed,
        ..Failure::node(e)
    })
}

/// Waits for a prolog that an earlier daemon began, and begins none. Blocking.
pub fn finish(site: &Site, run: RunId) {
    program::finish(site, run, HookKind::Prolog);
}
