//! Runs with a supervisor that does not act (stopped by a signal, or stuck in the kernel): it enforces no limit and no stop, so gpud ends
//! the run in its place. A supervisor that answers is left alone, however slow it is.

use crate::input::DaemonInput;
use crate::run::end::recorded_end;
use crate::run::live_use;
use crate::run::supervisor::SupervisorAddress;
use crate::site::Site;
use gmodel::RunId;
use gmodel::run::RunEnd;

/// `end` is what is recorded where the supervisor does not answer. Blocking.
pub fn look(site: &Site, run: RunId, end: RunEnd) -> DaemonInput {
    let address = SupervisorAddress::of(&site.spool, run);
    if address.first_words().is_some() {
        return DaemonInput::SupervisorActs { run };
    }
    tracing::warn!(%run, "{}", end.text);
    let usage = live_use::read(site, run)
        .map(|used| used.all)
        .unwrap_or_default();
    address.kill();
    if let Ok(Some(cgroup)) = site.cgroup_of(run)
        && let Err(e) = cgroup.kill_supervisor()
    {
        tracing::error!(%run, "killing its supervisor: {e}");
    }
    let end = recorded_end(site, run, RunEnd { usage, ..end });
    DaemonInput::Supervisor {
        run,
        outcome: Err(Box::new(end)),
    }
}
