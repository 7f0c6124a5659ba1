//! Making a run ready on this node: user, cgroups, fence, private directories, prolog, supervisor. In that order, since
//! each is a reason not to go on. Blocking; whatever fails says whose fault it is. Cleaning up is `clean`'s work.

use crate::config::Isolation;
use crate::cpu_binding;
use crate::daemon::wall_clock;
use crate::gpu_share;
use crate::hook::{self, Kind};
use crate::imex::{self, Channel};
use crate::mig::{self, Own};
use crate::own_limits::{self, PidRoom};
use crate::site::{Site, cgroup_name};
use crate::spool::{log_line, private_dir};
use crate::step::{self, Supervisor};
use gmodel::launch_order::{LaunchOrder, OrderGpu};
use gmodel::run::{EndCause, LaunchFailureSubject, RunEnd};
use gmodel::supervise::{RunGpu, RunSetup};
use gmodel::{GpuPart, RunId, byte_text};
use gsys::cgroup::{CgroupRoot, Controller, Limits, RunCgroup};
use gsys::device_fence::{self, DeviceNumber, DeviceRule, FenceRules, NodeDevices};
use gsys::nvml::{GpuFacts, device_node};
use gsys::user::User;
use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// For a supervisor to be gone that a daemon before us had started and not released.
const SUPERVISOR_PATIENCE: Duration = Duration::from_secs(5);

/// Why a run cannot start here, and whose fault it is.
#[derive(Debug)]
pub struct Failure {
    pub cause: EndCause,
    pub text: String,
    /// Of the node's, as far as it is less than all of it.
    about: LaunchFailureSubject,
}

impl Failure {
    pub fn node(error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        let about = if own_limits::is_shortage(&error) {
            LaunchFailureSubject::Shortage
        } else {
            LaunchFailureSubject::Node
        };
        Self {
            about,
            ..Self::node_text(format!("{error:#}"))
        }
    }
    fn node_text(text: String) -> Self {
        Self {
            cause: EndCause::LaunchNode,
            text,
            about: LaunchFailureSubject::Node,
        }
    }
    /// About one GPU or slice: jobs on others may start.
    fn gpu(uuid: &str, text: String) -> Self {
        Self {
            about: LaunchFailureSubject::Gpu {
                uuid: uuid.to_owned(),
            },
            ..Self::node_text(text)
        }
    }
    /// About what the job or its partition chose: jobs without it may start.
    fn choice(name: &str, text: String) -> Self {
        Self {
            about: LaunchFailureSubject::Choice {
                name: name.to_owned(),
            },
            ..Self::node_text(text)
        }
    }
    fn user_unknown(text: String) -> Self {
        Self {
            about: LaunchFailureSubject::User,
            ..Self::node_text(text)
        }
    }
    fn user(text: String) -> Self {
        Self {
            cause: EndCause::LaunchUser,
            ..Self::node_text(text)
        }
    }
    /// Of what this daemon itself has too few of: no error of the node, as long as it may pass.
    pub fn is_shortage(&self) -> bool {
        self.about == LaunchFailureSubject::Shortage
    }
    pub fn end(self) -> RunEnd {
        let about_user = self.about == LaunchFailureSubject::User;
        RunEnd {
            cause: self.cause,
            text: self.text,
            about_user,
            about: self.about,
            ended: Some(wall_clock()),
            ..RunEnd::default()
        }
    }
}

/// Makes everything and returns a supervisor that waits for `go`. A shortage of this daemon's own is waited for.
pub fn prepare(site: &Site, run: RunId) -> Result<Supervisor, Failure> {
    own_limits::patiently(&format!("run {run}"), || make_ready(site, run))
}

fn make_ready(site: &Site, run: RunId) -> Result<Supervisor, Failure> {
    let dir = site.spool.run_dir(run);
    let order = site.spool.order(run).map_err(Failure::node)?;
    if !site.unfit.is_empty() {
        return Err(Failure::node_text(site.unfit.clone()));
    }
    let shortage = site.spool.shortage();
    if !shortage.is_empty() {
        return Err(Failure::node_text(shortage));
    }
    let user = resolve_user(&order, site.config.isolation)?;
    // Until the run is known by its setup no GPU is cut.
    let uncut =
        (!order.gpus.is_empty()).then(|| site.gpus.cutting.read().expect("no holder panics"));
    let gpus = own_gpus(site, &order)?;
    end_checks(site, run, &gpus)?;
    let of_shares =
        gpu_share::enter(site, run, &order, &gpus, user.uid).map_err(|e| of_gpus(&order, e))?;
    let channel = imex::find(site, &order).map_err(Failure::node)?;
    let (cgroup, cpus) = match &site.cgroups {
        Some(root) => {
            let (cgroup, cpus) = fenced_cgroup(site, root, run, &order, (&gpus, channel.as_ref()))?;
            (Some(cgroup), cpus)
        }
        None => (None, Vec::new()),
    };
    let mut setup = setup(site, run, &order, &user, &gpus, cpus);
    setup.environment.extend(of_shares);
    if let Some(channel) = &channel {
        setup.environment.extend(channel.variables());
        setup.imex_device = channel.made();
    }
    for (gpu, wanted) in setup.gpus.iter_mut().zip(&order.gpus) {
        gpu.share_milli = if let GpuPart::Share { milli, .. } = wanted.part {
            milli
        } else {
            0
        };
    }
    if order.private_tmp {
        make_private_dirs(site, run, &order, &mut setup)?;
    }
    site.spool.write_setup(run, &setup).map_err(Failure::node)?;
    drop(uncut);
    if let Some(channel) = &channel {
        log_line(
            &dir,
            wall_clock(),
            &channel.make(&user).map_err(Failure::node)?,
        );
    } else if let Some(number) = order.imex_channel {
        log_line(
            &dir,
            wall_clock(),
            &format!("no IMEX channel {number}: this node's driver offers none"),
        );
    }
    if !order.prolog.is_empty() {
        let ran = hook::run(site, run, Kind::Prolog, &order, &setup);
        ran.map_err(|e| Failure {
            cause: EndCause::PrologFailed,
            ..Failure::node(e)
        })?;
    }
    // Left by a supervisor that died before it was ready.
    step::Place::of(&site.spool, run)
        .remove_sockets()
        .map_err(Failure::node)?;
    step::start(&site.stand_by, &dir, cgroup.as_ref()).map_err(Failure::node)
}

/// The name counts; the number the controller knows must be the same here.
fn resolve_user(order: &LaunchOrder, isolation: Isolation) -> Result<User, Failure> {
    let wanted = &order.user;
    let user = User::by_name(&wanted.name)
        .map_err(Failure::node)?
        .ok_or_else(|| {
            Failure::user_unknown(format!(
                "user {:?} does not exist on this node (uid {} elsewhere)",
                wanted.name, wanted.uid
            ))
        })?;
    if user.uid != wanted.uid {
        let text = format!(
            "user {:?} is uid {} on this node and uid {} where the job was submitted",
            user.name, user.uid, wanted.uid
        );
        return Err(Failure::user_unknown(text));
    }
    if user.uid == 0 && !order.allow_root {
        return Err(Failure::user(
            "jobs of root are refused; set allow_root_jobs in gpuctld.toml to allow them".into(),
        ));
    }
    let own = nix::unistd::geteuid().as_raw();
    if own != 0 && own != user.uid {
        let text = format!(
            "this node's daemon runs without root (isolation = {:?}) as uid {own}, and cannot start a job of {:?}",
            isolation.name(),
            user.name
        );
        return Err(Failure::user(text));
    }
    in_its_group(user, wanted.gid, own == 0)
}

/// As the group that the submitting process was of: `sg`, `newgrp` and setgid directories mean it so. It must be one of the user's
/// here, too; a daemon without root starts jobs as its own group.
fn in_its_group(user: User, gid: u32, may_choose: bool) -> Result<User, Failure> {
    match () {
        () if !may_choose || gid == user.gid => Ok(user),
        () if user.groups.contains(&gid) => Ok(User { gid, ..user }),
        () => {
            let text = format!(
                "the job was submitted as group {gid}, and user {:?} is not in that group on this node (its own is {})",
                user.name, user.gid
            );
            Err(Failure::user(text))
        }
    }
}

/// The GPUs and slices of the order, by UUID, as this node knows them now.
fn own_gpus(site: &Site, order: &LaunchOrder) -> Result<Vec<Own>, Failure> {
    let here = site.gpus.current();
    let find = |wanted: &OrderGpu| {
        let uuid = &wanted.uuid;
        let own = mig::find(&here.facts, uuid);
        let own = own.ok_or_else(|| {
            Failure::gpu(uuid, format!("GPU {uuid} is not in this node any more"))
        })?;
        let profile = if let GpuPart::Mig { profile, .. } = &wanted.part {
            profile.as_str()
        } else {
            ""
        };
        match &own.gpu.fault {
            Some(fault) => Err(Failure::gpu(uuid, format!("GPU {uuid}: {fault}"))),
            None if own.profile != profile => {
                let (has, asked) = (
                    if own.profile.is_empty() {
                        "a whole GPU"
                    } else {
                        &own.profile
                    },
                    if profile.is_empty() { "whole" } else { profile },
                );
                Err(Failure::gpu(
                    uuid,
                    format!("GPU {uuid} was given out as {asked} and is {has}"),
                ))
            }
            None if own.slice.is_none() && own.gpu.mig_enabled => {
                Err(Failure::gpu(uuid, format!("GPU {uuid} is cut by MIG")))
            }
            None => Ok(own),
        }
    };
    order.gpus.iter().map(find).collect()
}

/// What went wrong with the sharing of GPUs is about shares where the run has one, else about its GPU, where that is the only one.
fn of_gpus(order: &LaunchOrder, error: anyhow::Error) -> Failure {
    let is_share = order
        .gpus
        .iter()
        .any(|gpu| matches!(gpu.part, GpuPart::Share { .. }));
    let failure = Failure::node(error);
    match &order.gpus[..] {
        _ if failure.about == LaunchFailureSubject::Shortage => failure,
        _ if is_share => Failure::choice("shares of GPUs", failure.text),
        [gpu] => Failure::gpu(&gpu.uuid, failure.text),
        _ => failure,
    }
}

/// A check of one of its GPUs ends for it, and it waits for that.
fn end_checks(site: &Site, run: RunId, gpus: &[Own]) -> Result<(), Failure> {
    let boards = gpus.iter().map(|own| own.gpu.uuid.as_str());
    if let Some(took) = site
        .checks
        .give_way(boards, &format!("run {run} was given the GPU"))
        .map_err(Failure::node)?
    {
        log_line(
            &site.spool.run_dir(run),
            wall_clock(),
            &format!("a check of its GPUs gave way, in {} ms", took.as_millis()),
        );
    }
    Ok(())
}

/// Limits and fence stand before any process is in the cgroup. No fence, no start.
fn fenced_cgroup(
    site: &Site,
    root: &CgroupRoot,
    run: RunId,
    order: &LaunchOrder,
    (gpus, channel): (&[Own], Option<&Channel>),
) -> Result<(RunCgroup, Vec<u32>), Failure> {
    // What an earlier attempt left holds no process of a user, and at most a supervisor of the daemon before us, which was never
    // told to go; a fence must not be put beside an older one.
    if site.spool.run_dir(run).join("fence.json").exists()
        && let Some(stale) = site.cgroup_of(run).map_err(Failure::node)?
    {
        stale
            .remove_with_supervisor(SUPERVISOR_PATIENCE)
            .map_err(Failure::node)?;
    }
    let mut rules = fence_rules(site, gpus)?;
    rules
        .allow
        .extend(channel.map(|channel| DeviceRule::from(channel.device)));
    // Kept before the cgroup is made: its file says that there may be one.
    crate::audit::remember(&site.spool.run_dir(run), &rules).map_err(Failure::node)?;
    let (name, limits) = (cgroup_name(run), limits(site, root, order));
    let (cgroup, cpus) = match &site.cpus {
        Some(binding) => {
            let wish = cpu_binding::wish(order, gpus.iter().map(|own| &own.gpu));
            let (cgroup, share) = binding
                .create(site, root, &name, &wish, limits)
                .map_err(Failure::node)?;
            log_line(
                &site.spool.run_dir(run),
                wall_clock(),
                &cpu_binding::words(&share),
            );
            (cgroup, share.cpus)
        }
        None => (
            RunCgroup::create(root, &name, &limits).map_err(Failure::node)?,
            Vec::new(),
        ),
    };
    device_fence::attach_run(&cgroup, &rules).map_err(Failure::node)?;
    Ok((cgroup, cpus))
}

fn limits(site: &Site, root: &CgroupRoot, order: &LaunchOrder) -> Limits {
    Limits {
        memory_bytes: mem_limit(site, root, order),
        cpu_set: None,
        mem_set: Vec::new(),
        cpu_millis: root
            .supports(Controller::Cpu)
            .then_some(u64::from(order.cpus.max(1)) * 1000),
        pids_max: root.supports(Controller::Pids).then(|| {
            PidRoom::of_machine().map_or(site.config.pids_max, |room| {
                room.one.min(site.config.pids_max)
            })
        }),
    }
}

/// What the job's memory is held to. Declared memory may not be there: what a job asked for, or its partition gives by CPU or
/// GPU, holds all the same, where the kernel can; its share of the node, which nobody chose, does not.
fn mem_limit(site: &Site, root: &CgroupRoot, order: &LaunchOrder) -> Option<u64> {
    let declared = site.config.mem_bytes.is_some();
    let holds = order.mem_bytes > 0
        && (!declared || (!order.mem_ask.is_default() && root.supports(Controller::Memory)));
    holds.then_some(order.mem_bytes)
}

pub(crate) fn fence_rules(site: &Site, own: &[Own]) -> Result<FenceRules, Failure> {
    let here = site.gpus.current();
    let mut devices =
        NodeDevices::detect(here.nodes.values().cloned().collect()).map_err(Failure::node)?;
    devices.control.extend(
        here.control
            .iter()
            .filter(|control| !devices.control.contains(control))
            .copied()
            .collect::<Vec<_>>(),
    );
    let device = |own: &Own| {
        let gpu = &own.gpu;
        let path = device_node(&site.config.dev_dir, gpu);
        let found = here.nodes.get(&gpu.uuid).map(|node| node.device);
        found.ok_or_else(|| {
            Failure::gpu(
                &gpu.uuid,
                format!(
                    "GPU {}: its device file {} is missing",
                    gpu.uuid,
                    path.display()
                ),
            )
        })
    };
    let mut owned: Vec<DeviceNumber> = own.iter().map(device).collect::<Result<_, _>>()?;
    owned.sort_unstable();
    owned.dedup();
    let caps = own
        .iter()
        .map(|own| mig::caps(site, own))
        .collect::<anyhow::Result<Vec<_>>>()
        .map_err(Failure::node)?
        .concat();
    // A slice leads to its part of the GPU by its capabilities alone; the render nodes lead to all of it.
    let divided: Vec<DeviceNumber> = own
        .iter()
        .filter(|own| own.slice.is_some())
        .map(device)
        .collect::<Result<_, _>>()?;
    let mut deny = site.config.devices.deny_extra.clone();
    for gpu in devices
        .gpus
        .iter_mut()
        .filter(|gpu| divided.contains(&gpu.device))
    {
        deny.extend(gpu.render.drain(..).map(DeviceRule::from));
    }
    Ok(devices.rules_for_run(&owned, &caps, &deny, site.config.devices.default_deny))
}

fn setup(
    site: &Site,
    run: RunId,
    order: &LaunchOrder,
    user: &User,
    gpus: &[Own],
    cpus: Vec<u32>,
) -> RunSetup {
    let numbers = cuda_indexes(site, gpus);
    let gpu = |(own, cuda_index): (&Own, Option<u32>)| RunGpu {
        cuda_index,
        near_cpus: near_cpus(site, &own.gpu),
        ..own.setup(
            device_node(&site.config.dev_dir, &own.gpu)
                .display()
                .to_string(),
        )
    };
    RunSetup {
        cgroup_tag: site
            .cgroups
            .as_ref()
            .map_or_else(String::new, |root| root.rel().display().to_string()),
        cgroup_name: cgroup_name(run),
        node_name: site.name.clone(),
        uid: user.uid,
        gid: user.gid,
        groups: user.groups.clone(),
        home: byte_text::from_bytes(user.home.as_os_str().as_bytes()),
        shell: byte_text::from_bytes(user.shell.as_os_str().as_bytes()),
        cpus,
        mem_limit_bytes: site
            .cgroups
            .as_ref()
            .and_then(|root| mem_limit(site, root, order)),
        gpus: gpus.iter().zip(numbers).map(gpu).collect(),
        private_tmp: String::new(),
        private_shm: String::new(),
        marks_dir: site.config.marks_dir().display().to_string(),
        short_scripts_in_marks_dir: site.short_scripts_in_marks_dir,
        pam_service: site.config.pam_service.clone(),
        restrict_root: user.uid == 0 && site.cgroups.is_some(),
        environment: node_environment(site),
        imex_device: String::new(),
    }
}

/// CUDA's number of each GPU of a run, by PCI address: behind a fence it counts the run's own, else the node's. Slices have none, and
/// none is sure beside slices that the run can open. An MPS server has the one GPU, which its clients see as number 0.
fn cuda_indexes(site: &Site, gpus: &[Own]) -> Vec<Option<u32>> {
    let here = site.gpus.current();
    let counted: Vec<&GpuFacts> = match site.cgroups {
        Some(_) => gpus.iter().map(|own| &own.gpu).collect(),
        None => here.facts.iter().collect(),
    };
    if gpus.iter().any(|own| own.slice.is_some()) || counted.iter().any(|gpu| gpu.mig_enabled) {
        return vec![None; gpus.len()];
    }
    let addresses: BTreeSet<String> = counted
        .iter()
        .map(|gpu| gpu.pci_bus_id.to_ascii_uppercase())
        .collect();
    let number = |own: &Own| {
        addresses
            .iter()
            .position(|address| own.gpu.pci_bus_id.eq_ignore_ascii_case(address))
    };
    gpus.iter()
        .map(|own| number(own).and_then(|number| u32::try_from(number).ok()))
        .collect()
}

/// The processors nearest to a GPU: those of its memory node; where that is not told, those that the driver names.
fn near_cpus(site: &Site, gpu: &GpuFacts) -> Vec<(u32, u32)> {
    match (gpu.numa_node, &site.cpus) {
        (Some(node), Some(binding)) => binding
            .topology()
            .cpus_of(node)
            .into_iter()
            .map(|cpu| (cpu, cpu))
            .collect(),
        _ => gpu.near_cpus.clone(),
    }
}

/// The site's lines, after the address at which other nodes reach this one: `grun` listens there.
fn node_environment(site: &Site) -> Vec<String> {
    // Asked once: a name server is no part of starting a job.
    let address = site
        .address
        .get_or_init(|| own_address(&site.config.controller));
    let address = address.map(|ip| format!("SLURM_LAUNCH_NODE_IPADDR={ip}"));
    address
        .into_iter()
        .chain(site.config.environment.iter().cloned())
        .collect()
}

/// Our address on the way to the controller. Connecting a datagram socket asks the routing table and sends nothing.
fn own_address(controller: &str) -> Option<IpAddr> {
    let to = controller.to_socket_addrs().ok()?.next()?;
    let from: IpAddr = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((from, 0)).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// World-writable with the sticky bit, in a parent that only root can pass.
fn make_private_dirs(
    site: &Site,
    run: RunId,
    order: &LaunchOrder,
    setup: &mut RunSetup,
) -> Result<(), Failure> {
    if !gsys::user::is_root() {
        return Err(Failure::choice(
            "private_tmp",
            "private_tmp needs a daemon that runs as root".into(),
        ));
    }
    let parent = site.spool.private_dir(run);
    private_dir(&parent).map_err(Failure::node)?;
    let (tmp, shm) = (parent.join("tmp"), parent.join("shm"));
    for dir in [&tmp, &shm] {
        private_dir(dir).map_err(Failure::node)?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o1777)).map_err(Failure::node)?;
    }
    gsys::mount::unmount(&shm).map_err(Failure::node)?;
    let room = if order.mem_bytes > 0 {
        order.mem_bytes
    } else {
        1 << 30
    };
    gsys::mount::mount_tmpfs(&shm, room).map_err(Failure::node)?;
    setup.private_tmp = tmp.display().to_string();
    setup.private_shm = shm.display().to_string();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_runs_as_the_group_it_was_submitted_as_where_that_is_its_users() {
        let ada = User {
            name: "ada".into(),
            uid: 1000,
            gid: 1000,
            home: "/home/ada".into(),
            shell: "/bin/sh".into(),
            groups: vec![1000, 2000],
        };
        let gid = |gid, root| {
            in_its_group(ada.clone(), gid, root)
                .map(|user| user.gid)
                .map_err(|failure| (failure.cause, failure.text))
        };
        assert_eq!(
            (gid(1000, true), gid(2000, true), gid(2000, false)),
            (Ok(1000), Ok(2000), Ok(1000))
        );
        let (cause, text) = gid(3000, true).unwrap_err();
        assert_eq!(cause, EndCause::LaunchUser);
        assert!(text.contains("submitted as group 3000, and user \"ada\" is not in that group on this node (its own is 1000)"), "{text}");
    }
}
