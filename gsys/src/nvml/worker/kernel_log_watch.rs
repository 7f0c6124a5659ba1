//! The thread that reads Xids from the kernel log: opens the log, opens it again after an error, and hands each Xid to the worker.

use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use gmodel::gpu_health::{EventSource, GpuEventKind};

use super::shared::{SharedState, lock};
use crate::nvml::GpuEvent;
use crate::nvml::kernel_log::KernelLog;

/// A kernel log that cannot be opened or read is tried again after this.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// What the thread does until the worker is dropped. The log is opened before this returns, so that no line after it is missed.
pub(super) fn begin(
    shared: &Arc<SharedState>,
    path: &Path,
    tell: impl Fn(Option<io::Error>) + Send + 'static,
) -> impl FnOnce() + Send + 'static {
    let (shared, path) = (Arc::downgrade(shared), path.to_owned());
    let mut log = KernelLog::open(&path);
    move || {
        let mut is_read = true;
        while shared.strong_count() > 0 {
            match log.and_then(|log| {
                if !is_read {
                    tell(None);
                }
                is_read = true;
                follow_log(&shared, log)
            }) {
                Ok(()) => return,
                Err(e) if is_read => tell(Some(e)),
                Err(_) => {}
            }
            is_read = false;
            thread::sleep(AGAIN_AFTER);
            log = KernelLog::open(&path);
        }
    }
}

/// Until the worker is dropped, or the log cannot be read any more.
fn follow_log(worker: &Weak<SharedState>, mut log: KernelLog) -> io::Result<()> {
    /// Lines between two looks; the kernel keeps the rest.
    const MOST_LINES: usize = 10_000;
    while let Some(shared) = worker.upgrade() {
        let xids = log.new_xids(MOST_LINES)?;
        for xid in xids {
            let known = lock(&shared.known);
            let gpu = known
                .iter()
                .find(|gpu| gpu.pci_bus_id.eq_ignore_ascii_case(&xid.pci_bus_id));
            let uuid = gpu.map(|gpu| gpu.uuid.clone());
            drop(known);
            if uuid.is_none() {
                shared.note_stray(&xid);
            }
            if let Some(uuid) = uuid {
                shared.push_event(GpuEvent {
                    uuid,
                    kind: GpuEventKind::Xid(xid.xid),
                    count: 1,
                    source: EventSource::KernelLog,
                });
            }
        }
        drop(shared);
        thread::sleep(Duration::from_millis(250));
    }
    Ok(())
}
