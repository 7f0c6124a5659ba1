//! The end of a run that its supervisor did not record: what is left of the run is killed, then the end is put on record.

use crate::clock::wall_clock;
use crate::run::clean;
use crate::run::supervisor::{Supervisor, SupervisorAddress};
use crate::site::Site;
use gmodel::RunId;
use gmodel::run::{EndCause, RunEnd};

/// The supervisor of a run, or the run's end: its own, or `SupervisorLost` once everything of it is killed.
pub fn look_after(site: &Site, run: RunId) -> Result<Supervisor, Box<RunEnd>> {
    SupervisorAddress::of(&site.spool, run)
        .find()
        .ok_or_else(|| Box::new(supervisor_lost(site, run)))
}

pub fn supervisor_lost(site: &Site, run: RunId) -> RunEnd {
    let text = "the run's supervisor (gstepd) died; its processes were killed".to_owned();
    recorded_end(
        site,
        run,
        RunEnd {
            cause: EndCause::SupervisorLost,
            text,
            ..RunEnd::default()
        },
    )
}

/// Puts an end on record that no supervisor will write, after killing what may be left; the supervisor's own counts.
pub fn recorded_end(site: &Site, run: RunId, mut end: RunEnd) -> RunEnd {
    if let Err(e) = clean::kill_orphans(site, run) {
        tracing::error!(%run, "killing what is left: {e:#}");
    }
    end.ended = end.ended.or(Some(wall_clock()));
    match site.spool.write_end(run, end.clone()) {
        Ok(counts) => counts,
        Err(e) => {
            tracing::error!(%run, "{e:#}");
            end
        }
    }
}
