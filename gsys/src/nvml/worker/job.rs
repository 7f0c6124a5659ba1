//! The call that one thread of a worker is in, as other threads see it: since when, at which GPU, whether its time is up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::shared::{SharedState, lock};
use crate::nvml::error::NvmlError;

/// What a thread is doing, as others may see it.
pub struct Job {
    call: Mutex<Option<Call>>,
    /// The GPU being asked; negative: none.
    index: AtomicI64,
    /// The GPU at which the thread was given up.
    abandoned_at: Mutex<Option<u32>>,
}

/// A call into NVML that has not returned.
#[derive(Clone)]
pub struct Call {
    doing: &'static str,
    since: Instant,
    /// The GPU being asked now.
    pub index: Option<u32>,
    /// The GPU being asked when its time was up, once it was.
    pub overdue_at: Option<Option<u32>>,
}

impl Call {
    pub fn stuck(&self) -> NvmlError {
        NvmlError::Stuck {
            doing: self.doing,
            for_secs: self.since.elapsed().as_secs_f64(),
            index: self.index,
        }
    }
}

impl Default for Job {
    fn default() -> Job {
        Job {
            call: Mutex::new(None),
            index: AtomicI64::new(-1),
            abandoned_at: Mutex::new(None),
        }
    }
}

impl Job {
    pub fn begin(&self, doing: &'static str) {
        let call = Call {
            doing,
            since: Instant::now(),
            index: None,
            overdue_at: None,
        };
        *lock(&self.call) = Some(call);
    }

    pub fn call_under_way(&self) -> Option<Call> {
        let call = lock(&self.call).clone()?;
        Some(Call {
            index: self.index(),
            ..call
        })
    }

    pub fn mark_overdue(&self, index: Option<u32>) {
        if let Some(call) = lock(&self.call).as_mut() {
            call.overdue_at = Some(index);
        }
    }

    pub fn index(&self) -> Option<u32> {
        u32::try_from(self.index.load(Ordering::SeqCst)).ok()
    }

    /// Gives the thread up and the GPU with it; false where the call came back in the meantime.
    pub fn abandon(&self, index: u32, shared: &SharedState) -> bool {
        let call = lock(&self.call);
        if call.is_none() {
            return false;
        }
        *lock(&self.abandoned_at) = Some(index);
        lock(&shared.held).insert(index, Instant::now());
        shared.abandoned.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Marks the call as returned, which frees the GPU that held it. True where a caller may still wait for the answer.
    pub fn finish(&self, shared: &SharedState) -> bool {
        self.index.store(-1, Ordering::SeqCst);
        let mut call = lock(&self.call);
        *call = None;
        let Some(index) = lock(&self.abandoned_at).take() else {
            return true;
        };
        lock(&shared.held).remove(&index);
        shared.abandoned.fetch_sub(1, Ordering::SeqCst);
        false
    }
}

/// Through which a source says which GPU it is about to ask, and hears which to leave alone.
pub struct Progress {
    pub(super) job: Arc<Job>,
    pub(super) held: BTreeMap<u32, Instant>,
}

impl Progress {
    /// To be called before each GPU; an error: leave it alone, for this reason.
    pub fn begin(&self, index: u32) -> Result<(), String> {
        if let Some(since) = self.held.get(&index) {
            return Err(format!(
                "calls about it have not returned for {} s",
                since.elapsed().as_secs()
            ));
        }
        self.job.index.store(index.into(), Ordering::SeqCst);
        Ok(())
    }

    /// To be called when the work on single GPUs is done.
    pub fn end(&self) {
        self.job.index.store(-1, Ordering::SeqCst);
    }
}
