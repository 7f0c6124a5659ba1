//! The thread that watches this node's GPUs: a look at everything every few seconds, events at once, the next step of each GPU's
//! repair. Tells the daemon which runs have to end; decides by `health`.

use crate::clock::wall_clock;
use crate::gpu::watch::{GpuWatch, RESET_LIMIT, lock};
use crate::gpu::{mig, scrub, share};
use crate::hook::site_program::SiteProgram;
use crate::input::DaemonInput;
use crate::site::Site;
use crate::spool::run_log::log_line;
use anyhow::Result;
use gcore::node::gpu_health::HealthInput;
use gmodel::RunId;
use gmodel::gpu_health::RepairStage;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Orders of administrators and changes of the catalogue are seen so soon.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// For the site's program on a GPU that is to go back into service.
const BURN_IN_LIMIT: Duration = Duration::from_secs(900);
/// For NVML to be closed before a reset: the thread that waits for events looks up every second.
const CLOSE_WITHIN: Duration = Duration::from_secs(15);
/// A run that is to end and has not is told again.
const END_AGAIN: Duration = Duration::from_secs(10);

impl GpuWatch {
    /// Next steps on every GPU's way; the runs that have to end.
    fn act(&self, site: &Site) -> BTreeSet<RunId> {
        // Holders matter only where a GPU is sick.
        let well = lock(&self.health).health().all_well();
        let held = if well {
            BTreeMap::new()
        } else {
            mig::holders(&site.spool)
        };
        let node_empty = well || site.spool.live().is_empty();
        let mut health = lock(&self.health);
        let looked = HealthInput::Looked {
            held: &held,
            node_empty,
        };
        let mut to_end = health.handle(looked, wall_clock()).unwrap_or_default();
        self.looked
            .fetch_or(health.health().has_readings(), Ordering::Relaxed);
        health.write(wall_clock());
        drop(health);
        to_end.extend(share::look(site));
        site.job_files.follow(site);
        for (run, why) in &to_end {
            match site.spool.mark_gpu_failed(*run, why) {
                Ok(true) => log_line(
                    &site.spool.run_dir(*run),
                    wall_clock(),
                    &format!("ends, for a GPU of it failed: {why}"),
                ),
                Ok(false) => {}
                Err(e) => tracing::error!(%run, "{e:#}"),
            }
        }
        to_end.into_iter().map(|(run, _)| run).collect()
    }
}

/// Starts the thread. Does nothing on a node without GPU watch.
pub fn start(site: Arc<Site>, daemon: mpsc::Sender<DaemonInput>) -> Result<()> {
    if site.gpu_watch.is_some() {
        std::thread::Builder::new()
            .name("gpus".into())
            .spawn(move || keep(&site, &daemon))?;
    }
    Ok(())
}

/// Runs the site's program for the GPU that is due, on a thread of its own.
fn run_program(site: &Arc<Site>) {
    let Some((uuid, stage)) = site
        .gpu_watch
        .as_ref()
        .and_then(|watch| lock(&watch.health).take_program())
    else {
        return;
    };
    let site = Arc::clone(site);
    std::thread::spawn(move || {
        let Some(watch) = &site.gpu_watch else { return };
        let config = &site.config;
        let (kind, path, time_limit) = match stage {
            RepairStage::Resetting => ("gpu_reset", &config.gpu_reset, RESET_LIMIT),
            RepairStage::Booting => ("node_reboot", &config.node_reboot, RESET_LIMIT),
            _ => ("gpu_burn_in", &config.gpu_burn_in, BURN_IN_LIMIT),
        };
        let Some(path) = path else { return };
        tracing::info!("GPU {uuid}: {} begins", path.display());
        let program = SiteProgram {
            kind,
            path,
            node_name: &site.name,
            gpu_uuid: &uuid,
            dir: &watch.orders,
            cgroups: site.cgroups.as_ref(),
            time_limit,
        };
        let freed = site.checks.give_way([uuid.as_str()], "the GPU is repaired");
        let outcome = freed.and_then(|_| {
            let _closed = (stage == RepairStage::Resetting)
                .then(|| watch.reader.worker.close(CLOSE_WITHIN))
                .transpose();
            if let Err(e) = &_closed {
                tracing::warn!(
                    "GPU {uuid}: gpud itself may be what its driver refuses the reset for: {e}"
                );
            }
            program.run()
        });
        let mut health = lock(&watch.health);
        let ended = HealthInput::ProgramEnded {
            uuid: &uuid,
            outcome: outcome.map_err(|e| format!("{e:#}")),
        };
        health.take(ended, wall_clock());
        health.write(wall_clock());
    });
}

/// Logs new Xids of unknown addresses. True where there are some.
fn log_strays(watch: &GpuWatch, strays: &mut Vec<String>) -> bool {
    let now_stray = watch.strays();
    let is_news = now_stray != *strays;
    now_stray
        .iter()
        .filter(|words| !strays.contains(words))
        .for_each(|words| tracing::warn!("{words}"));
    *strays = now_stray;
    is_news
}

fn keep(site: &Arc<Site>, daemon: &mpsc::Sender<DaemonInput>) {
    let Some(watch) = &site.gpu_watch else { return };
    let mut due = Instant::now();
    let mut strays: Vec<String> = Vec::new();
    let mut told: BTreeMap<RunId, Instant> = BTreeMap::new();
    while !daemon.is_closed() {
        let wait = due
            .saturating_duration_since(Instant::now())
            .min(LOOK_EVERY);
        let events = watch.reader.worker.next_events(wait);
        let begun = Instant::now();
        watch.take_events(&events);
        watch.note_for_runs(&events, &site.spool);
        lock(&watch.catalogue).refresh();
        let ordered = watch.take_orders();
        let mut news = false;
        if begun >= due || ordered {
            news = watch.sweep(&site.gpus, &site.spool);
            due = begun + watch.every;
            let runs = watch.idle_runs();
            if !runs.is_empty()
                && daemon
                    .blocking_send(DaemonInput::GpusIdle { runs })
                    .is_err()
            {
                return;
            }
        }
        let runs = watch.act(site);
        run_program(site);
        scrub::again(site);
        // What the steps changed is told at once, and not with the next discovery.
        news |= watch.show(&site.gpus);
        news |= log_strays(watch, &mut strays);
        told.retain(|run, at| runs.contains(run) && at.elapsed() < END_AGAIN);
        let fresh: Vec<RunId> = runs
            .into_iter()
            .filter(|run| !told.contains_key(run))
            .collect();
        told.extend(fresh.iter().map(|run| (*run, begun)));
        if !fresh.is_empty()
            && daemon
                .blocking_send(DaemonInput::GpusFailed { runs: fresh })
                .is_err()
        {
            return;
        }
        if news && daemon.blocking_send(DaemonInput::InventoryChanged).is_err() {
            return;
        }
        // Ten thousand Xids a second are ten looks.
        if !events.is_empty() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
