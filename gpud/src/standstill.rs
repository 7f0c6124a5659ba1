//! Runs whose supervisor stands still (stopped by a signal, or held by the kernel): it keeps no limit and hears of no stop, so gpud ends
//! the run in its place. A supervisor that answers is left alone, however slow it is.

use crate::daemon::{Happening, recorded_end};
use crate::live_use;
use crate::site::Site;
use crate::step::Place;
use gmodel::RunId;
use gmodel::run::RunEnd;

/// `end` is what is recorded where the supervisor does not answer. Blocking.
pub fn look(site: &Site, run: RunId, end: RunEnd) -> Happening {
    let place = Place::of(&site.spool, run);
    if place.first_words().is_some() {
        return Happening::SupervisorActs { run };
    }
    tracing::warn!(%run, "{}", end.text);
    let usage = live_use::read(site, run)
        .map(|used| used.all)
        .unwrap_or_default();
    place.kill();
    if let Ok(Some(cgroup)) = site.cgroup_of(run)
        && let Err(e) = cgroup.kill_supervisor()
    {
        tracing::error!(%run, "killing its supervisor: {e}");
    }
    let end = recorded_end(site, run, RunEnd { usage, ..end });
    Happening::Supervisor {
        run,
        outcome: Err(Box::new(end)),
    }
}
