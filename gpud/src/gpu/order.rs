//! Orders for GPUs: the controller's, each carried out once however often it comes, and those of this node's administrators
//! (`gpud gpu`), which lie in the spool until they are obeyed.

use crate::clock::wall_clock;
use crate::gpu::health::{self, HealthBook};
use crate::gpu::mig_cut;
use crate::gpu::watch::{CLEAN_LOOK_EVERY, GpuWatch, ORDERS_DIR, lock};
use crate::site::Site;
use anyhow::{Context, Result};
use gcore::node::gpu_health::{HealthInput, LocalOrder};
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Between two tries where the disk refuses an answer.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// For GPUs to be looked at for the first time after the daemon's start: an order that comes sooner waits so long.
const FIRST_LOOK_WITHIN: Duration = Duration::from_secs(20);

impl GpuWatch {
    /// Carries out the controller's orders, each once however often it comes; the answers, which are on disk. Empty where
    /// the disk failed: the orders come again. Blocking.
    pub fn carry_out(
        &self,
        incarnation: u64,
        orders: &[GpuOrder],
        site: &Site,
    ) -> Vec<GpuOrderDone> {
        let _one_at_a_time = lock(&self.carrying_out);
        let mut done = Vec::new();
        for order in orders {
            let known = lock(&self.health).health().answered(incarnation, order);
            done.push(known.unwrap_or_else(|| {
                self.wait_for_first_look(order);
                // Seconds, in which nothing of the health may wait.
                let cut = match &order.what {
                    GpuAction::Cut { profiles } => self.cut(site, &order.uuid, profiles),
                    _ => Ok(()),
                };
                let mut health = lock(&self.health);
                let outcome = match &order.what {
                    GpuAction::Quarantine { reason } => obey(
                        &mut health,
                        &order.uuid,
                        LocalOrder::Quarantine(reason.clone()),
                    ),
                    GpuAction::Return => obey(&mut health, &order.uuid, LocalOrder::Return),
                    GpuAction::Repair => health
                        .handle(
                            HealthInput::Permitted {
                                uuid: &order.uuid,
                                node_empty: site.spool.live().is_empty(),
                            },
                            wall_clock(),
                        )
                        .map(drop),
                    GpuAction::Cut { .. } => cut,
                    GpuAction::Check(_) => Err(anyhow::anyhow!("a check is begun elsewhere")),
                    GpuAction::Unknown => Err(anyhow::anyhow!(
                        "gpud {} does not know this order",
                        env!("CARGO_PKG_VERSION")
                    )),
                };
                let error = outcome.err().map_or_else(String::new, |e| format!("{e:#}"));
                answer(&mut health, incarnation, order, error)
            }));
        }
        let written = lock(&self.health).write(wall_clock());
        self.ordered.store(true, Ordering::Relaxed);
        self.show(&site.gpus);
        if !written {
            std::thread::sleep(LOOK_EVERY);
            done.clear();
        }
        done
    }

    /// A driver may be slower than the controller's first order, and only a look finds the step of a repair that waits. Blocking.
    fn wait_for_first_look(&self, order: &GpuOrder) {
        let needs_look = order.what == GpuAction::Repair;
        let too_soon = || {
            !self.looked.load(Ordering::Relaxed)
                && (needs_look || !lock(&self.health).health().gpus().contains_key(&order.uuid))
        };
        while too_soon() && self.opened.elapsed() < FIRST_LOOK_WITHIN {
            std::thread::sleep(CLEAN_LOOK_EVERY);
        }
    }

    /// Writes down that a check begins; the answer where that was written before: its daemon or its node ended during it.
    pub fn check_begins(&self, incarnation: u64, order: &GpuOrder) -> Result<Option<GpuOrderDone>> {
        let mut health = lock(&self.health);
        if let Some(done) = health.health().answered(incarnation, order) {
            return Ok(Some(done));
        }
        let error = "gpud or its node ended during the check";
        answer(&mut health, incarnation, order, error.to_owned());
        anyhow::ensure!(health.write(wall_clock()), "the spool cannot be written");
        Ok(None)
    }

    /// Cuts a GPU by MIG, and discovers the result before the order is answered.
    fn cut(&self, site: &Site, uuid: &str, profiles: &[String]) -> Result<()> {
        site.checks.give_way([uuid], "the GPU is cut by MIG")?;
        let outcome = mig_cut::cut(site, self.nvml(), uuid, profiles);
        self.discover(&site.gpus);
        outcome
    }

    /// What administrators ordered since; the order is gone once it is obeyed. True when there was one.
    pub(super) fn take_orders(&self) -> bool {
        let mut taken = self.ordered.swap(false, Ordering::Relaxed);
        let Ok(entries) = std::fs::read_dir(&self.orders) else {
            return taken;
        };
        for path in entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
        {
            let Some(uuid) = path.file_stem().and_then(|stem| stem.to_str()) else {
                continue;
            };
            let order = std::fs::read(&path)
                .map_err(anyhow::Error::from)
                .and_then(|bytes| Ok(serde_json::from_slice::<LocalOrder>(&bytes)?));
            match order {
                Ok(order) => {
                    if let Err(e) = obey(&mut lock(&self.health), uuid, order) {
                        tracing::warn!("{e:#}");
                    }
                }
                Err(e) => tracing::error!("{}: {e:#}", path.display()),
            }
            lock(&self.health).write(wall_clock());
            let _ = std::fs::remove_file(&path);
            taken = true;
        }
        taken
    }
}

fn obey(health: &mut HealthBook, uuid: &str, order: LocalOrder) -> Result<()> {
    let ordered = HealthInput::Ordered { uuid, order };
    health.handle(ordered, wall_clock()).map(drop)
}

/// The answer to an order, which stands once the book is written.
fn answer(
    health: &mut HealthBook,
    incarnation: u64,
    order: &GpuOrder,
    error: String,
) -> GpuOrderDone {
    let done = GpuOrderDone::new(order, error.clone());
    let answered = HealthInput::Answered {
        incarnation,
        order,
        error,
    };
    health.take(answered, wall_clock());
    done
}

/// Leaves an order for the daemon of this node. `gpu`: UUID, its beginning, or the driver's index.
pub fn leave(spool_dir: &Path, gpu: &str, order: &LocalOrder) -> Result<String> {
    let uuid = find(spool_dir, gpu)?;
    let dir = spool_dir.join(ORDERS_DIR);
    let path = dir.join(format!("{uuid}.json"));
    let bytes = serde_json::to_vec(order)?;
    gsys::durable_file::write_atomic(&path, &bytes)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(uuid)
}

fn find(spool_dir: &Path, gpu: &str) -> Result<String> {
    let records = health::records(spool_dir)?;
    let is_it = |uuid: &str, index: u32| {
        gpu.parse() == Ok(index) || (!gpu.is_empty() && uuid.starts_with(gpu))
    };
    let found: Vec<&String> = records
        .iter()
        .filter(|(uuid, record)| is_it(uuid, record.index))
        .map(|(uuid, _)| uuid)
        .collect();
    match found[..] {
        [uuid] => Ok(uuid.clone()),
        [] => anyhow::bail!(
            "no GPU {gpu:?} here; gpud gpu list shows the {} that were seen on this node",
            records.len()
        ),
        _ => anyhow::bail!(
            "{gpu:?} means {} GPUs of this node; name the UUID, as gpud gpu list shows it",
            found.len()
        ),
    }
}
