//! The daemon's conversations with the supervisors of runs, and the runs that it finds in the spool when it starts.

use super::{Daemon, RETRY_AFTER};
use crate::clock::wall_clock;
use crate::gpu::check_program;
use crate::gpu::share::CGROUP_PREFIX;
use crate::hook::program::{HookKind, cgroup_name as hook_cgroup_name};
use crate::input::DaemonInput;
use crate::run::cpu_binding;
use crate::run::end::{look_after, supervisor_lost};
use crate::run::step_link::StepLink;
use crate::run::supervisor::{Supervisor, SupervisorAddress};
use crate::site::{Site, cgroup_name};
use crate::spool::StoredRun;
use gcore::node::{NodeInput, SpooledRun};
use gmodel::RunId;
use gmodel::run::{RunEnd, StopCause};
use gmodel::supervise::SupervisorReport;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Daemon {
    pub(super) fn with_step(&mut self, run: RunId, say: impl FnOnce(&mut StepLink)) {
        if let Some(step) = self.work.get_mut(&run).and_then(|work| work.step.as_mut()) {
            say(step);
        }
    }

    pub(super) fn has_step(&self, run: RunId) -> bool {
        self.work.get(&run).is_some_and(|work| work.step.is_some())
    }

    pub(super) fn speaks(&self, run: RunId, connection: u64) -> bool {
        let step = self.work.get(&run).and_then(|work| work.step.as_ref());
        step.is_some_and(|step| step.connection == connection)
    }

    pub(super) fn converse(&mut self, run: RunId, supervisor: Supervisor) {
        self.steps_opened += 1;
        match StepLink::open(run, self.steps_opened, supervisor, self.sender.clone()) {
            Ok(step) => self.work.entry(run).or_default().step = Some(step),
            Err(e) => {
                tracing::error!(%run, "talking to gstepd: {e:#}");
                self.supervisor_fell_silent(run);
            }
        }
    }

    pub(super) fn listen(&mut self, run: RunId, words: SupervisorReport) {
        match words {
            SupervisorReport::Ready { .. } => match self.site.spool.mark_ready(run) {
                Ok(()) => {
                    self.feed(NodeInput::Prepared { run });
                }
                // Without the mark a restart would start the run again: it must not be released.
                Err(e) => tracing::error!(%run, "{e:#}; the run stays unreleased"),
            },
            SupervisorReport::Running { started, .. } => {
                self.with_step(run, |step| step.runs_since(started));
                self.feed(NodeInput::Started { run, started });
                self.follow_use(run);
            }
            SupervisorReport::Mark { mark } => {
                self.feed(NodeInput::Marked { run, mark });
            }
            SupervisorReport::Ended { end } => self.measure(run, end),
            SupervisorReport::StepSignalled
            | SupervisorReport::Attached
            | SupervisorReport::NotAttached { .. }
            | SupervisorReport::Unknown => {}
        }
    }

    /// The use of its GPUs counts from now.
    pub(super) fn follow_use(&self, run: RunId) {
        let Some(watch) = &self.site.gpu_watch else {
            return;
        };
        let begin = move |site: &Site| {
            let (Some(watch), gpus) = (&site.gpu_watch, gpus_of(site, run)) else {
                return;
            };
            if !gpus.is_empty() {
                watch.run_began(run, &site.spool.run_dir(run), &gpus);
                site.job_files.follow(site);
            }
        };
        if watch.has_fresh_sample() {
            return begin(&self.site);
        }
        let site = Arc::clone(&self.site);
        tokio::task::spawn_blocking(move || begin(&site));
    }

    pub(super) fn suspend(&mut self, run: RunId, suspended: bool) {
        let mut news = false;
        if !suspended {
            choose_cpus_again(&self.site, run);
        }
        self.with_step(run, |step| news = step.suspend(suspended));
        if let Some(watch) = self.site.gpu_watch.as_ref().filter(|_| news) {
            watch.run_suspended(run, suspended);
        }
    }

    /// The end of a run with GPUs carries the use of its GPUs. Each call into NVML has a deadline, so the end is not lost.
    pub(super) fn measure(&mut self, run: RunId, end: RunEnd) {
        let Some(watch) = self
            .site
            .gpu_watch
            .as_ref()
            .filter(|watch| watch.follows(run))
        else {
            return self.ended_by_itself(run, end);
        };
        if watch.has_fresh_sample() {
            watch.run_ended(run, &self.site.spool.run_dir(run));
            return self.ended_by_itself(run, end);
        }
        let (site, sender) = (Arc::clone(&self.site), self.sender.clone());
        tokio::task::spawn_blocking(move || {
            if let Some(watch) = &site.gpu_watch {
                watch.run_ended(run, &site.spool.run_dir(run));
            }
            let _ = sender.blocking_send(DaemonInput::Measured {
                run,
                end: Box::new(end),
            });
        });
    }

    /// Its supervisor has said so, and all marks before.
    pub(super) fn ended_by_itself(&mut self, run: RunId, end: RunEnd) {
        let end = self.site.spool.explained(run, end);
        self.feed(NodeInput::Ended { run, end });
    }

    pub(super) fn ended(&mut self, run: RunId, end: RunEnd) {
        // A supervisor that was killed may have acknowledged a mark and not reported it.
        self.read_mark(run);
        self.feed(NodeInput::Ended { run, end });
    }

    pub(super) fn read_mark(&mut self, run: RunId) {
        if let Some(mark) = self.site.spool.mark(run) {
            self.feed(NodeInput::Marked { run, mark });
        }
    }

    /// The connection closed before the end of the run: the supervisor is looked for, and without it the run is killed.
    pub(super) fn supervisor_fell_silent(&mut self, run: RunId) {
        if let Some(step) = self.work.get_mut(&run).and_then(|work| work.step.take()) {
            self.work.entry(run).or_default().process = step.process;
        }
        self.begin_work(run, |site, run, _| DaemonInput::Supervisor {
            run,
            outcome: look_after(site, run),
        });
    }

    pub(super) fn end_at_once(&mut self, runs: &[RunId], why: StopCause, grace_secs: u32) {
        for run in runs {
            self.with_step(*run, |step| step.stop(why, grace_secs));
        }
    }

    pub(super) fn adopt(&mut self) -> anyhow::Result<()> {
        let site = Arc::clone(&self.site);
        // Before a run is made ready on the GPUs of these checks.
        site.cgroups.iter().for_each(check_program::end_orphans);
        let mut found = Vec::new();
        for (run, record) in site.spool.scan()? {
            let what = match record {
                StoredRun::Ended { end, clean } => SpooledRun::Ended { end: *end, clean },
                StoredRun::Order => SpooledRun::Accepted,
                StoredRun::Supervised => self.find_supervisor(run)?,
            };
            tracing::info!(%run, "found in the spool: {what:?}");
            found.push((run, what));
        }
        remove_unknown_cgroups(&site, &found);
        let (life, fence) = (site.spool.life().clone(), site.spool.fence());
        let runs: Vec<RunId> = found.iter().map(|(run, _)| *run).collect();
        self.feed(NodeInput::Scanned {
            life,
            fence,
            runs: found,
        });
        runs.into_iter().for_each(|run| self.read_mark(run));
        Ok(())
    }

    /// How far a run with a supervisor is, as the supervisor or the record says.
    pub(super) fn find_supervisor(&mut self, run: RunId) -> anyhow::Result<SpooledRun> {
        let site = Arc::clone(&self.site);
        let spool = &site.spool;
        let place = SupervisorAddress::of(spool, run);
        let Some(supervisor) = place.find() else {
            return Ok(match spool.end(run)? {
                Some(end) => SpooledRun::Ended { end, clean: false },
                // It was about to be started when the daemon died, and was never ready: nothing was released.
                None if !spool.was_ready(run) => SpooledRun::Accepted,
                None => SpooledRun::Ended {
                    end: supervisor_lost(&site, run),
                    clean: false,
                },
            });
        };
        let said = place.first_words();
        self.converse(run, supervisor);
        Ok(match said {
            Some(SupervisorReport::Running { started, .. }) => SpooledRun::Running { started },
            Some(SupervisorReport::Ended { end }) => SpooledRun::Ended {
                end: spool.end(run)?.unwrap_or(end),
                clean: false,
            },
            _ => {
                spool.mark_ready(run)?;
                SpooledRun::Ready
            }
        })
    }
}

/// UUIDs of the run's GPUs here, and thousandths of each that it holds. A slice has a UUID of its own, and all of that.
fn gpus_of(site: &Site, run: RunId) -> BTreeMap<String, u32> {
    let setup = site.spool.setup(run).ok().flatten();
    setup.map_or_else(BTreeMap::new, |setup| {
        setup
            .gpus
            .iter()
            .map(|gpu| {
                (
                    gpu.uuid.clone(),
                    if gpu.share_milli == 0 {
                        1000
                    } else {
                        gpu.share_milli
                    },
                )
            })
            .collect()
    })
}

/// Before a run goes on: others may have its CPUs meanwhile.
fn choose_cpus_again(site: &Site, run: RunId) {
    let (Some(binding), Some(root), Ok(order)) = (&site.cpus, &site.cgroups, site.spool.order(run))
    else {
        return;
    };
    let own = gpus_of(site, run);
    let known = site.gpus.current();
    let near = known.facts.iter().filter(|gpu| own.contains_key(&gpu.uuid));
    let wish = cpu_binding::wish(&order, near);
    let text = match binding.choose_again(&site.spool, root, &cgroup_name(run), &wish) {
        Ok(None) => return,
        Ok(Some(cpus)) => format!("goes on with CPUs {}", gsys::cpu::list_text(&cpus)),
        Err(e) => format!("goes on: {e:#}"),
    };
    site.spool.log(run, wall_clock(), &text);
}

/// Cgroups of runs that are missing in the spool (it was lost), and of programs for GPUs that a crash left. Their processes are
/// killed now; a supervisor among these takes some seconds to leave.
fn remove_unknown_cgroups(site: &Arc<Site>, found: &[(RunId, SpooledRun)]) {
    let Some(root) = &site.cgroups else { return };
    let of_run = |run: RunId| {
        HookKind::ALL
            .map(|kind| hook_cgroup_name(kind, run))
            .into_iter()
            .chain([cgroup_name(run)])
    };
    let known: BTreeSet<String> = found.iter().flat_map(|(run, _)| of_run(*run)).collect();
    for name in root
        .runs()
        .unwrap_or_default()
        .into_iter()
        .filter(|name| !known.contains(name) && !name.starts_with(CGROUP_PREFIX))
    {
        tracing::warn!("cgroup {name} belongs to no run in the spool: its processes are killed");
        let site = Arc::clone(site);
        tokio::task::spawn_blocking(move || {
            let Some(root) = &site.cgroups else { return };
            let remove = || {
                let cgroup = gsys::cgroup::RunCgroup::open(root, &name)?;
                cgroup.kill()?;
                cgroup.wait_empty(Duration::from_secs(5))?;
                cgroup.remove()
            };
            let deadline = Instant::now() + Duration::from_secs(30);
            while let Err(e) = remove() {
                if Instant::now() > deadline {
                    return tracing::error!("{:#}", anyhow::Error::from(e));
                }
                std::thread::sleep(RETRY_AFTER);
            }
        });
    }
}
