//! What the threads of a worker know together: GPUs as last read, GPUs that hold a call, events that wait to be fetched.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use gmodel::gpu_health::{EventSource, GpuEventKind, ReadFailure, ReadFailureKind};

use crate::nvml::facts::{GpuFacts, Inventory};
use crate::nvml::kernel_log::KernelXid;
use crate::nvml::usage::GpuUse;
use crate::nvml::{GpuEvent, GpuHealth};

/// Distinct events kept for a caller that does not fetch them; repetitions of one only raise its count.
pub const MAX_WAITING_EVENTS: usize = 1024;

/// What all threads of a worker know.
#[derive(Default)]
pub struct SharedState {
    /// GPUs as last read, faulty ones as last read well.
    pub known: Mutex<Vec<GpuFacts>>,
    /// Every GPU ever discovered, with the index it was last seen at.
    pub ever_seen: Mutex<BTreeMap<String, u32>>,
    /// Indices of GPUs at which a call does not return, and since when.
    pub held: Mutex<BTreeMap<u32, Instant>>,
    pub abandoned: AtomicU64,
    /// Rises when the driver was found gone: each thread must open the library again.
    pub reopened: AtomicU64,
    /// Sources that are open, on whatever thread; and how many want none to be.
    pub open: Arc<AtomicU64>,
    pub closed: AtomicU64,
    pub watched: Mutex<BTreeSet<String>>,
    pub events: Mutex<VecDeque<GpuEvent>>,
    pub event_came: Condvar,
    pub dropped_events: AtomicU64,
    /// Xids of addresses at which no GPU is known, the newest last.
    pub strays: Mutex<VecDeque<String>>,
}

/// A GPU that gives no answer, and where its UUID is to be put.
pub struct SilentGpu<'a> {
    pub index: u32,
    pub silence: &'a ReadFailure,
    pub uuid: &'a mut Option<String>,
}

impl<'a> SilentGpu<'a> {
    /// `None` where the GPU answered.
    pub fn of_health(health: &'a mut GpuHealth) -> Option<Self> {
        Some(SilentGpu {
            index: health.index,
            silence: health.reading.fault.as_ref()?,
            uuid: &mut health.uuid,
        })
    }

    /// `None` where the GPU answered.
    pub fn of_use(sample: &'a mut GpuUse) -> Option<Self> {
        Some(SilentGpu {
            index: sample.index,
            silence: sample.fault.as_ref()?,
            uuid: &mut sample.uuid,
        })
    }
}

impl SharedState {
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst) > 0
    }

    pub fn note_stray(&self, xid: &KernelXid) {
        const MOST: usize = 8;
        let text: String = xid.text.chars().take(120).collect();
        let words = format!(
            "Xid {} at PCI {}, where no GPU is known: {text}",
            xid.xid, xid.pci_bus_id
        );
        let mut strays = lock(&self.strays);
        if !strays.contains(&words) {
            strays.push_back(words);
            let over = strays.len().saturating_sub(MOST);
            strays.drain(..over);
        }
    }

    pub fn push_event(&self, event: GpuEvent) {
        let mut events = lock(&self.events);
        let full = events.len() >= MAX_WAITING_EVENTS;
        match events.iter_mut().find(|waiting| {
            (&waiting.uuid, waiting.kind, waiting.source) == (&event.uuid, event.kind, event.source)
        }) {
            Some(waiting) => waiting.count += event.count,
            None if full => {
                self.dropped_events
                    .fetch_add(event.count, Ordering::Relaxed);
            }
            None => events.push_back(event),
        }
        self.event_came.notify_all();
    }

    /// Puts the remembered facts in place of GPUs that do not answer, and tells of each that just fell silent.
    pub fn remember(&self, inventory: &mut Inventory) {
        let mut known = lock(&self.known);
        let present: BTreeSet<String> = inventory.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let silent = std::mem::take(&mut inventory.unreadable);
        for gpu in silent {
            match known
                .iter()
                .find(|old| old.index == gpu.index && !present.contains(&old.uuid))
            {
                Some(old) => {
                    if old.fault.is_none() && gpu.kind == ReadFailureKind::Lost {
                        self.push_event(GpuEvent {
                            uuid: old.uuid.clone(),
                            kind: GpuEventKind::Lost,
                            count: 1,
                            source: EventSource::Reading,
                        });
                    }
                    inventory.gpus.push(GpuFacts {
                        fault: Some(gpu.fault),
                        ..old.clone()
                    });
                }
                None => inventory.unreadable.push(gpu),
            }
        }
        inventory.gpus.sort_by_key(|gpu| gpu.index);
        *known = inventory.gpus.clone();
        let seen = inventory
            .gpus
            .iter()
            .map(|gpu| (gpu.uuid.clone(), gpu.index));
        lock(&self.ever_seen).extend(seen);
    }

    /// The UUID that was last seen at an index which gives no answer now, for each such index. Tells of each GPU that just
    /// fell silent.
    pub fn name_silent<'a>(&self, silent: impl Iterator<Item = SilentGpu<'a>>) {
        let mut known = lock(&self.known);
        for SilentGpu {
            index,
            silence,
            uuid,
        } in silent
        {
            let Some(old) = known.iter_mut().find(|old| old.index == index) else {
                continue;
            };
            *uuid = Some(old.uuid.clone());
            if old.fault.is_none() {
                old.fault = Some(silence.text.clone());
                if silence.kind == ReadFailureKind::Lost {
                    self.push_event(GpuEvent {
                        uuid: old.uuid.clone(),
                        kind: GpuEventKind::Lost,
                        count: 1,
                        source: EventSource::Reading,
                    });
                }
            }
        }
    }

    /// A reading for each GPU that was discovered once and is not enumerated any more.
    pub fn add_missing(&self, readings: &mut Vec<GpuHealth>) {
        let present: BTreeSet<String> = readings
            .iter()
            .filter_map(|health| health.uuid.clone())
            .collect();
        for (uuid, &index) in lock(&self.ever_seen).iter() {
            if !present.contains(uuid) {
                let silence = ReadFailure {
                    kind: ReadFailureKind::Missing,
                    text: "the driver does not list it any more".to_owned(),
                };
                readings.push(GpuHealth {
                    uuid: Some(uuid.clone()),
                    ..GpuHealth::silent(index, silence)
                });
            }
        }
    }

    pub fn healthy(&self) -> BTreeSet<String> {
        lock(&self.known)
            .iter()
            .filter(|gpu| gpu.fault.is_none())
            .map(|gpu| gpu.uuid.clone())
            .collect()
    }
}

/// A panic of another thread leaves these data whole: each is changed in one statement.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
