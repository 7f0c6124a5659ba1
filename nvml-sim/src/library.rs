//! The one library per loaded copy: how often it was initialised, the state last read, which handles it gave out, event sets.
//! Reads the state again when the file has changed. Its lock is never held while a simulated call hangs.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_void};
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as DRIVER_NOT_LOADED,
    nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND as FUNCTION_NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH as LIB_RM_VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT,
    nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_t,
};

use crate::STATE_VARIABLE;
use crate::clients;
use crate::state::{
    ComputeInstance, Counters, DriverState, Event, EventKind, Gpu, GpuInstance, State,
};
use crate::state_dir::{STATE_FILE, state_file};
use crate::state_watch::StateWatch;

/// An `nvmlReturn_t`; as an error never `NVML_SUCCESS`.
pub type Code = nvmlReturn_t;

/// How often a hanging or waiting call looks at the state again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Handles are small numbers above this, so that a null or a stray pointer is not one.
const FIRST_HANDLE: usize = 0x4E00_0000;

struct Library {
    users: u32,
    /// A process with an initialised library holds the GPUs open.
    held_open: Option<fs::File>,
    path: PathBuf,
    seen: Option<FileMark>,
    state: Result<Arc<State>, Code>,
    /// What is behind each handle ever given out: a handle stays with its GPU when indices move.
    handles: Vec<HandleTarget>,
    event_sets: BTreeMap<usize, EventSet>,
    next_event_set: usize,
    gpm_samples: BTreeMap<usize, Option<GpmReading>>,
    next_gpm_sample: usize,
}

/// What a handle means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandleTarget {
    /// By UUID.
    Gpu(String),
    /// A MIG device, by its UUID.
    MigDevice(String),
    /// By the GPU's UUID and the instance's id.
    GpuInstance(String, u32),
    ComputeInstance(String, u32, u32),
}

/// A MIG device in its GPU.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub instance: &'a GpuInstance,
    pub compute: &'a ComputeInstance,
}

/// One look at the counters that GPM compares two of.
#[derive(Clone, Debug)]
pub struct GpmReading {
    pub unix_ms: u64,
    pub counters: Counters,
    /// Of the GPU or the GPU instance that was asked.
    pub sm_percent: u32,
    pub memory_percent: u32,
}

struct EventSet {
    /// `nvmlEventType*` bits by UUID.
    wanted: BTreeMap<String, u64>,
    /// The first event not yet looked at.
    cursor: u64,
}

/// What tells one content of the state file from the next.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileMark {
    inode: u64,
    modified: (i64, i64),
    size: u64,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library {
    users: 0,
    held_open: None,
    path: PathBuf::new(),
    seen: None,
    state: Err(UNINITIALIZED),
    handles: Vec::new(),
    event_sets: BTreeMap::new(),
    next_event_set: FIRST_HANDLE,
    gpm_samples: BTreeMap::new(),
    next_gpm_sample: FIRST_HANDLE,
});

static CALLS: AtomicU64 = AtomicU64::new(0);

/// Calls into this library so far.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// To be called first by every function: counts it, and refuses those that the simulated driver does not know.
pub fn admit(function: &str) -> Result<(), Code> {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let library = library();
    match &library.state {
        Ok(state) if !state.driver.withheld_functions.is_empty() => {
            let mut withheld = state.driver.withheld_functions.iter();
            if withheld.any(|name| name == function) {
                return Err(FUNCTION_NOT_FOUND);
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// One user more, if the driver answers.
pub fn initialise() -> Result<(), Code> {
    {
        let mut library = library();
        if library.users == 0 {
            library.path = state_path();
            library.seen = None;
        }
    }
    readable_state()?;
    let mut library = library();
    library.users += 1;
    if library.users == 1 {
        let file = state_file(&library.path);
        library.held_open = file.parent().and_then(|dir| clients::hold_open(dir).ok());
    }
    Ok(())
}

/// One user less.
pub fn shut_down() -> Result<(), Code> {
    let mut library = library();
    library.users = library.users.checked_sub(1).ok_or(UNINITIALIZED)?;
    if library.users == 0 {
        library.event_sets.clear();
        library.gpm_samples.clear();
        library.held_open = None;
    }
    Ok(())
}

/// The state as it is now, for a caller that initialised the library; hangs where the state says so.
pub fn state() -> Result<Arc<State>, Code> {
    if library().users == 0 {
        return Err(UNINITIALIZED);
    }
    readable_state()
}

/// Where the state file is.
pub fn directory() -> PathBuf {
    let file = state_file(&library().path);
    file.parent().map(Path::to_owned).unwrap_or_default()
}

/// Positions of the GPUs that NVML enumerates, in the order of its indices.
pub fn enumerated(state: &State) -> impl Iterator<Item = &Gpu> {
    state.gpus.iter().filter(|gpu| !gpu.faults.missing)
}

/// Answers a question about the GPU behind `handle`, or says that it is lost, or does not return. MIG devices have no answer.
pub fn ask<T>(
    handle: usize,
    question: impl FnOnce(&State, &Gpu) -> Result<T, Code>,
) -> Result<T, Code> {
    match named(handle)? {
        HandleTarget::Gpu(uuid) => answerable(|gpu| gpu.uuid == uuid, question),
        _ => Err(NOT_SUPPORTED),
    }
}

/// The same for questions that a MIG device answers for itself.
pub fn ask_device<T>(
    handle: usize,
    question: impl FnOnce(&State, &Gpu, Option<Part<'_>>) -> Result<T, Code>,
) -> Result<T, Code> {
    match named(handle)? {
        HandleTarget::Gpu(uuid) => answerable(
            |gpu| gpu.uuid == uuid,
            |state, gpu| question(state, gpu, None),
        ),
        HandleTarget::MigDevice(uuid) => answerable(
            |gpu| part_of(gpu, &uuid).is_some(),
            |state, gpu| question(state, gpu, part_of(gpu, &uuid)),
        )
        .map_err(|code| if code == GPU_IS_LOST { NOT_FOUND } else { code }),
        HandleTarget::GpuInstance(..) | HandleTarget::ComputeInstance(..) => Err(INVALID_ARGUMENT),
    }
}

/// The same for a GPU instance, while it exists.
pub fn ask_instance<T>(
    handle: usize,
    question: impl FnOnce(&Gpu, &GpuInstance) -> Result<T, Code>,
) -> Result<T, Code> {
    let HandleTarget::GpuInstance(uuid, id) = named(handle)? else {
        return Err(INVALID_ARGUMENT);
    };
    answerable(
        |gpu| gpu.uuid == uuid,
        |_, gpu| {
            let mut instances = gpu.mig_instances.iter();
            let instance = instances.find(|instance| instance.id == id);
            question(gpu, instance.ok_or(NOT_FOUND)?)
        },
    )
}

/// The MIG device with this UUID, where it is one of this GPU.
pub fn part_of<'a>(gpu: &'a Gpu, mig_uuid: &str) -> Option<Part<'a>> {
    parts(gpu).find(|part| part.compute.uuid == mig_uuid)
}

/// The MIG devices of a GPU, in the order of their indices.
pub fn parts(gpu: &Gpu) -> impl Iterator<Item = Part<'_>> {
    let enabled = gpu.mig_instances.iter().filter(|_| gpu.mig_enabled);
    enabled.flat_map(|instance| {
        instance
            .compute
            .iter()
            .map(move |compute| Part { instance, compute })
    })
}

fn answerable<T>(
    is_it: impl Fn(&Gpu) -> bool,
    question: impl FnOnce(&State, &Gpu) -> Result<T, Code>,
) -> Result<T, Code> {
    let mut slept = false;
    loop {
        let state = state()?;
        let gpu = state
            .gpus
            .iter()
            .find(|gpu| is_it(gpu))
            .ok_or(GPU_IS_LOST)?;
        if gpu.faults.hang {
            thread::sleep(LOOK_AGAIN);
            continue;
        }
        if gpu.faults.slow_ms > 0 && !slept {
            thread::sleep(Duration::from_millis(gpu.faults.slow_ms));
            slept = true;
            continue;
        }
        if gpu.faults.lost || gpu.faults.missing {
            return Err(GPU_IS_LOST);
        }
        if gpu.faults.error_code != 0 {
            return Err(gpu.faults.error_code);
        }
        return question(&state, gpu);
    }
}

/// The handle of the GPU with this UUID: always the same one.
pub fn handle_of(uuid: &str) -> usize {
    handle_for(HandleTarget::Gpu(uuid.to_owned()))
}

/// The handle for anything that can have one: always the same one.
pub fn handle_for(named: HandleTarget) -> usize {
    let mut library = library();
    let position = library
        .handles
        .iter()
        .position(|known| *known == named)
        .unwrap_or_else(|| {
            library.handles.push(named);
            library.handles.len() - 1
        });
    FIRST_HANDLE + position
}

/// What is behind a handle, whatever its condition.
pub fn named(handle: usize) -> Result<HandleTarget, Code> {
    let position = handle.checked_sub(FIRST_HANDLE).ok_or(INVALID_ARGUMENT)?;
    library()
        .handles
        .get(position)
        .cloned()
        .ok_or(INVALID_ARGUMENT)
}

/// Changes one GPU in the state file from inside the library, for the calls that set something.
pub fn change<T>(
    handle: usize,
    change: impl FnOnce(&mut Gpu) -> Result<T, Code>,
) -> Result<T, Code> {
    let uuid = ask(handle, |_, gpu| Ok(gpu.uuid.clone()))?;
    change_gpu(&uuid, None, change)
}

/// The same by UUID; `event` is what the driver tells when it worked.
pub fn change_gpu<T>(
    uuid: &str,
    event: Option<EventKind>,
    change: impl FnOnce(&mut Gpu) -> Result<T, Code>,
) -> Result<T, Code> {
    let file = state_file(&library().path);
    let dir = file.parent().ok_or(UNKNOWN)?;
    let outcome = State::edit(dir, |state| {
        let mut gpus = state.gpus.iter_mut();
        let gpu = gpus.find(|gpu| gpu.uuid == uuid).ok_or(GPU_IS_LOST)?;
        if gpu.faults.lost || gpu.faults.missing {
            return Err(GPU_IS_LOST);
        }
        let answer = change(gpu)?;
        if let Some(event) = event {
            state.push_event(uuid, event);
        }
        Ok(answer)
    });
    outcome.unwrap_or_else(|error| Err(complain(&error)))
}

/// Room for one GPM reading.
pub fn allocate_gpm_sample() -> Result<usize, Code> {
    state()?;
    let mut library = library();
    let handle = library.next_gpm_sample;
    library.next_gpm_sample += 1;
    library.gpm_samples.insert(handle, None);
    Ok(handle)
}

pub fn free_gpm_sample(sample: usize) -> Result<(), Code> {
    let freed = library().gpm_samples.remove(&sample);
    freed.map(|_| ()).ok_or(INVALID_ARGUMENT)
}

pub fn keep_gpm_reading(sample: usize, reading: GpmReading) -> Result<(), Code> {
    let mut library = library();
    let kept = library.gpm_samples.get_mut(&sample);
    *kept.ok_or(INVALID_ARGUMENT)? = Some(reading);
    Ok(())
}

/// What was kept in a sample; none was read into it yet: the caller's error.
pub fn gpm_reading(sample: usize) -> Result<GpmReading, Code> {
    let library = library();
    let kept = library.gpm_samples.get(&sample).ok_or(INVALID_ARGUMENT)?;
    kept.clone().ok_or(INVALID_ARGUMENT)
}

/// A new event set, for events from now on.
pub fn create_event_set() -> Result<usize, Code> {
    let cursor = state()?.next_event;
    let mut library = library();
    let handle = library.next_event_set;
    library.next_event_set += 1;
    library.event_sets.insert(
        handle,
        EventSet {
            wanted: BTreeMap::new(),
            cursor,
        },
    );
    Ok(handle)
}

/// Adds event types of one GPU to a set.
pub fn register_events(set: usize, handle: usize, types: u64) -> Result<(), Code> {
    let uuid = ask(handle, |_, gpu| Ok(gpu.uuid.clone()))?;
    let mut library = library();
    let set = library.event_sets.get_mut(&set).ok_or(INVALID_ARGUMENT)?;
    *set.wanted.entry(uuid).or_default() |= types;
    Ok(())
}

pub fn free_event_set(set: usize) -> Result<(), Code> {
    library()
        .event_sets
        .remove(&set)
        .map(|_| ())
        .ok_or(INVALID_ARGUMENT)
}

/// The next event of a set, or `TIMEOUT` when none came.
pub fn wait_for_event(set: usize, timeout: Duration) -> Result<Event, Code> {
    let deadline = Instant::now() + timeout;
    let watch = StateWatch::of(&state_file(&library().path), LOOK_AGAIN);
    loop {
        watch.begin_to_look();
        let state = state()?;
        if let Some(event) = take_event(&state, set)? {
            return Ok(event);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(TIMEOUT);
        }
        watch.wait(left);
    }
}

/// The `nvmlEventType*` bit of an event.
pub fn event_type(kind: EventKind) -> u64 {
    use nvml_wrapper_sys::bindings::{
        nvmlEventMigConfigChange, nvmlEventTypeDoubleBitEccError, nvmlEventTypeSingleBitEccError,
        nvmlEventTypeXidCriticalError,
    };
    u64::from(match kind {
        EventKind::Xid(_) => nvmlEventTypeXidCriticalError,
        EventKind::SingleBitEcc => nvmlEventTypeSingleBitEccError,
        EventKind::DoubleBitEcc => nvmlEventTypeDoubleBitEccError,
        EventKind::MigConfigChange => nvmlEventMigConfigChange,
    })
}

fn take_event(state: &State, set: usize) -> Result<Option<Event>, Code> {
    let mut library = library();
    let set = library.event_sets.get_mut(&set).ok_or(INVALID_ARGUMENT)?;
    if state.next_event < set.cursor {
        // The state was made anew: all its events are news.
        set.cursor = 0;
    }
    let unseen = &state.events[state.events.partition_point(|event| event.seq < set.cursor)..];
    let wanted = unseen.iter().find(|event| {
        set.wanted
            .get(&event.uuid)
            .is_some_and(|types| types & event_type(event.kind) != 0)
    });
    set.cursor = wanted.map_or(state.next_event, |event| event.seq + 1);
    Ok(wanted.cloned())
}

/// The state once nothing hangs and the driver is there.
fn readable_state() -> Result<Arc<State>, Code> {
    loop {
        let state = library().refresh()?;
        if state.hang {
            thread::sleep(LOOK_AGAIN);
            continue;
        }
        return match state.driver.state {
            DriverState::Loaded => Ok(state),
            DriverState::NotLoaded => Err(DRIVER_NOT_LOADED),
            DriverState::Mismatch => Err(LIB_RM_VERSION_MISMATCH),
        };
    }
}

impl Library {
    fn refresh(&mut self) -> Result<Arc<State>, Code> {
        // Nearly always the path is the directory; each call of NVML comes by here.
        let mark = FileMark::of(&self.path.join(STATE_FILE))
            .or_else(|| FileMark::of(&state_file(&self.path)));
        if mark.is_none() || mark != self.seen {
            self.state = State::read(&self.path).map(Arc::new).map_err(|error| {
                // Once per content of the file, and on every look where there is none: init is refused then anyway.
                if mark.is_some() {
                    complain(&error)
                } else {
                    DRIVER_NOT_LOADED
                }
            });
            self.seen = mark;
        }
        self.state.clone()
    }
}

impl FileMark {
    fn of(path: &Path) -> Option<FileMark> {
        let data = fs::metadata(path).ok()?;
        Some(FileMark {
            inode: data.ino(),
            modified: (data.mtime(), data.mtime_nsec()),
            size: data.len(),
        })
    }
}

/// A panic elsewhere must not take the library with it: its data are valid between any two statements.
fn library() -> MutexGuard<'static, Library> {
    LIBRARY
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Prints what is wrong with the state; NVML has no error for it.
fn complain(error: &dyn std::error::Error) -> Code {
    let cause = error
        .source()
        .map(|source| format!(": {source}"))
        .unwrap_or_default();
    let _ = writeln!(std::io::stderr(), "nvml-sim: {error}{cause}");
    UNKNOWN
}

fn state_path() -> PathBuf {
    match std::env::var_os(STATE_VARIABLE) {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => own_directory().unwrap_or_default(),
    }
}

/// The directory of the file this library was loaded from, as it was named to the loader.
fn own_directory() -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let here = own_directory as *const c_void;
    // SAFETY: `here` is an address inside this library and `info` a live Dl_info that dladdr fills.
    let found = unsafe { libc::dladdr(here, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: after success dli_fname is the loader's NUL-terminated name of this library, which lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(
        Path::new(OsStr::from_bytes(name.to_bytes()))
            .parent()?
            .to_owned(),
    )
}
