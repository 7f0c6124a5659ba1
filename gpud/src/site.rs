//! What all parts of the daemon share: configuration, identity, spool, cgroups, GPUs. Made once at the start.

use crate::clock::wall_clock;
use crate::config::{self, Config, Isolation};
use crate::gpu::check_book::GpuChecks;
use crate::gpu::job_files::JobFiles;
use crate::gpu::table::GpuTable;
use crate::gpu::watch::GpuWatch;
use crate::own_limits::PidRoom;
use crate::run::cpu_binding::CpuBinding;
use crate::run::stand_by::StandBy;
use crate::spool::Spool;
use gmodel::RunId;
use gmodel::node::Role;
use gsys::cgroup::{CgroupError, CgroupRoot, Controller, RunCgroup};
use nix::sys::statvfs::{FsFlags, statvfs};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;
use tokio::sync::Notify;

/// One node daemon.
#[derive(Debug)]
pub struct Site {
    pub config: Config,
    pub name: String,
    pub role: Role,
    pub spool: Spool,
    /// `None` without isolation, or when there are no usable cgroups (the node is unfit then).
    pub cgroups: Option<CgroupRoot>,
    /// `None` where CPUs are shared by weight.
    pub cpus: Option<CpuBinding>,
    pub gpus: Arc<GpuTable>,
    /// `None` on login nodes and where GPUs are not looked for.
    pub gpu_watch: Option<GpuWatch>,
    pub job_files: JobFiles,
    /// Runs that have left their shares of GPUs and are not clean yet. Its holder may change shares.
    pub left_shares: Mutex<BTreeSet<RunId>>,
    /// Of GPUs in idle gaps.
    pub checks: GpuChecks,
    /// Scrubs of GPUs that did not come clean, by UUID: when the last one ended; `None` while one is under way.
    pub scrub_tries: Mutex<BTreeMap<String, Option<Instant>>>,
    /// Runs with processes that do not die, and the text about these.
    pub hung: Mutex<BTreeMap<RunId, String>>,
    /// Told at the end of a run: its output may be in the spool.
    pub outputs: Notify,
    /// Pulls of images under way, by run; true: it is to end.
    pub pulls: Mutex<BTreeMap<RunId, bool>>,
    /// Where supervisors come from.
    pub stand_by: StandBy,
    /// Why this node can start nothing: found when the daemon started, stands until it ends. Empty when it can.
    pub unfit: String,
    /// The directory of the runs' sockets is memory, and programs can be executed there; see [`holds_programs`].
    pub short_scripts_in_marks_dir: bool,
    /// Where other nodes reach this one, as soon as that was asked; see `prepare`.
    pub address: OnceLock<Option<IpAddr>>,
    /// Whether the node's name can be resolved, once a name server has said so.
    pub name_resolves: Arc<OnceLock<bool>>,
}

impl Site {
    /// Notes which processes of a killed run are left; `None`: none any more. News is said in the run's log.
    pub fn note_hung(&self, run: RunId, text: Option<String>) {
        let mut hung = self.hung.lock().expect("no holder panics");
        match text {
            None => drop(hung.remove(&run)),
            Some(text) if hung.get(&run) != Some(&text) => {
                self.spool.log(run, wall_clock(), &text);
                hung.insert(run, text);
            }
            Some(_) => {}
        }
    }

    /// Ends the pull of a run's image, and says whether there is one.
    pub fn end_pull(&self, run: RunId) -> bool {
        let mut pulls = self.pulls.lock().expect("no holder panics");
        pulls.get_mut(&run).map(|ends| *ends = true).is_some()
    }

    /// The run's cgroups when they exist.
    pub fn cgroup_of(&self, run: RunId) -> Result<Option<RunCgroup>, CgroupError> {
        let Some(root) = &self.cgroups else {
            return Ok(None);
        };
        match RunCgroup::open(root, &cgroup_name(run)) {
            Ok(cgroup) => Ok(Some(cgroup)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// The CPUs to give to runs, where the site wants each to have its own; and why that cannot be had.
pub fn open_cpus(config: &Config, cgroups: Option<&CgroupRoot>) -> (Option<CpuBinding>, String) {
    let Some(root) = cgroups.filter(|_| config.cpu_binding == config::CpuBindingMode::Cpuset)
    else {
        return (None, String::new());
    };
    match CpuBinding::open(root, &config.cpu_dir, config.cpus) {
        Ok(binding) => (Some(binding), String::new()),
        Err(e) => (None, format!("{e:#}")),
    }
}

/// Makes gpupool's cgroups and proves the fence. Does nothing without isolation.
pub fn open_isolation(config: &Config) -> (Option<CgroupRoot>, String) {
    if config.isolation == Isolation::None {
        return (None, String::new());
    }
    if !gsys::user::is_root() {
        return (None, "isolation = \"fence\" needs root; set isolation = \"none\" for a workstation of one's own".into());
    }
    let root = match CgroupRoot::open(&config.cgroup_tag) {
        Ok(root) => root,
        Err(e) => return (None, format!("{:#}", anyhow::Error::from(e))),
    };
    if let Some(room) = PidRoom::of_machine().filter(|_| root.supports(Controller::Pids))
        && let Err(e) = root.limit_pids(room.all)
    {
        tracing::warn!("jobs together may take all process numbers of the machine: {e}");
    }
    match gsys::device_fence::self_test(&root) {
        Ok(()) => (Some(root), String::new()),
        Err(e) => (Some(root), format!("{:#}", anyhow::Error::from(e))),
    }
}

/// Whether the directory is memory, and the scripts of runs can be executed there: distributions differ about `/run`.
pub fn holds_programs(dir: &Path) -> bool {
    gsys::mount::is_tmpfs(dir).unwrap_or(false)
        && statvfs(dir).is_ok_and(|fs| !fs.flags().contains(FsFlags::ST_NOEXEC))
}

/// Asks once, on a thread of its own: a name server may take long, and is no part of starting a job.
pub fn look_up_name(name: String, resolves: Arc<OnceLock<bool>>) {
    std::thread::spawn(move || {
        let found = (name.as_str(), 0).to_socket_addrs();
        let _ = resolves.set(found.is_ok_and(|mut addresses| addresses.next().is_some()));
    });
}

pub fn cgroup_name(run: RunId) -> String {
    format!("run_{run}")
}
