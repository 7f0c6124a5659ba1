//! Makes a run ready on this node: user, cgroups, fence, private directories, image, prolog, supervisor, in that order: each can stop the
//! start. Blocking; a failure names the user or the node as its cause. Cleaning up is `clean`'s work.

use crate::clock::wall_clock;
use crate::config::{Config, Isolation};
use crate::gpu::driver_files;
use crate::gpu::fence::fence_rules;
use crate::gpu::imex::{self, Channel};
use crate::gpu::mig::{self, GrantedGpu};
use crate::gpu::share;
use crate::hook::prolog;
use crate::own_limits::{self, PidRoom};
use crate::run::cpu_binding;
use crate::run::failure::Failure;
use crate::run::fence_audit;
use crate::run::image_pull::{self, TellPull};
use crate::run::supervisor::{self, Supervisor, SupervisorAddress};
use crate::site::{Site, cgroup_name};
use crate::spool::file::private_dir;
use crate::spool::run_log::log_line;
use gmodel::launch_order::{LaunchOrder, OrderGpu};
use gmodel::run::LaunchFailureSubject;
use gmodel::supervise::{ContainerPlaces, MeetingSetup, RunGpu, RunSetup};
use gmodel::{GpuPart, RunId, byte_text};
use gsys::cgroup::{CgroupRoot, Controller, Limits, RunCgroup};
use gsys::device_fence::{self, DeviceRule};
use gsys::nvml::{GpuFacts, device_node};
use gsys::user::User;
use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// For a supervisor to be gone that an earlier daemon had started and not released.
const SUPERVISOR_PATIENCE: Duration = Duration::from_secs(5);

/// Makes everything and returns a supervisor that waits for `go`. A shortage of this daemon's own is waited for.
pub fn prepare(site: &Site, run: RunId, tell: TellPull<'_>) -> Result<Supervisor, Failure> {
    own_limits::patiently(&format!("run {run}"), || make_ready(site, run, tell))
}

fn make_ready(site: &Site, run: RunId, tell: TellPull<'_>) -> Result<Supervisor, Failure> {
    let dir = site.spool.run_dir(run);
    let order = site.spool.order(run).map_err(Failure::node)?;
    let unfit = [site.unfit.clone(), site.spool.shortage()];
    if let Some(text) = unfit.into_iter().find(|text| !text.is_empty()) {
        return Err(Failure::node_text(text));
    }
    let user = resolve_user(&order, site.config.isolation)?;
    // Until the run is known by its setup no GPU is cut.
    let uncut =
        (!order.gpus.is_empty()).then(|| site.gpus.cutting.read().expect("no holder panics"));
    let gpus = own_gpus(site, &order)?;
    end_checks(site, run, &gpus)?;
    let of_shares =
        share::enter(site, run, &order, &gpus, user.uid).map_err(|e| of_gpus(&order, e))?;
    let channel = imex::find(site, &order).map_err(Failure::node)?;
    let (cgroup, cpus) = match &site.cgroups {
        Some(root) => {
            let devices = RunDevices {
                gpus: &gpus,
                channel: channel.as_ref(),
            };
            let (cgroup, cpus) = fenced_cgroup(site, root, run, &order, devices)?;
            (Some(cgroup), cpus)
        }
        None => (None, Vec::new()),
    };
    let mut setup = setup(site, run, &order, &user, &gpus, cpus);
    setup.environment.extend(of_shares);
    if let Some(channel) = &channel {
        setup.environment.extend(channel.variables());
        setup.imex_device = channel.made();
        setup.containers.driver.devices.push(channel.place());
    }
    for (gpu, wanted) in setup.gpus.iter_mut().zip(&order.gpus) {
        if let GpuPart::Share { milli, .. } = wanted.part {
            gpu.share_milli = milli;
        }
    }
    if order.private_tmp {
        make_private_dirs(site, run, &order, &mut setup)?;
    }
    site.spool.write_setup(run, &setup).map_err(Failure::node)?;
    drop(uncut);
    let made = match (&channel, order.imex_channel) {
        (Some(channel), _) => channel.make(&user).map_err(Failure::node)?,
        (None, Some(number)) => no_channel(number),
        (None, None) => String::new(),
    };
    if !made.is_empty() {
        log_line(&dir, wall_clock(), &made);
    }
    image_pull::pull(site, run, &order, tell)?;
    prolog::run(site, run, &order, &setup)?;
    // Left by a supervisor that died before it was ready.
    SupervisorAddress::of(&site.spool, run)
        .remove_sockets()
        .map_err(Failure::node)?;
    supervisor::start(&site.stand_by, &dir, cgroup.as_ref()).map_err(Failure::node)
}

fn no_channel(number: u32) -> String {
    format!("no IMEX channel {number}: this node's driver offers none")
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
fn own_gpus(site: &Site, order: &LaunchOrder) -> Result<Vec<GrantedGpu>, Failure> {
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
fn end_checks(site: &Site, run: RunId, gpus: &[GrantedGpu]) -> Result<(), Failure> {
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

/// The devices that a run may open besides the ordinary ones.
struct RunDevices<'a> {
    gpus: &'a [GrantedGpu],
    channel: Option<&'a Channel>,
}

/// Limits and fence stand before any process is in the cgroup. No fence, no start.
fn fenced_cgroup(
    site: &Site,
    root: &CgroupRoot,
    run: RunId,
    order: &LaunchOrder,
    RunDevices { gpus, channel }: RunDevices,
) -> Result<(RunCgroup, Vec<u32>), Failure> {
    // The cgroup of an earlier attempt holds at most an unreleased supervisor and the pull of an image. A fence must not be put
    // beside an older one.
    if site.spool.run_dir(run).join("fence.json").exists()
        && let Some(stale) = site.cgroup_of(run).map_err(Failure::node)?
    {
        // An image was pulled in it.
        stale.kill().map_err(Failure::node)?;
        stale
            .remove_with_supervisor(SUPERVISOR_PATIENCE)
            .map_err(Failure::node)?;
    }
    let mut rules = fence_rules(site, gpus)?;
    rules
        .allow
        .extend(channel.map(|channel| DeviceRule::from(channel.device)));
    // Kept before the cgroup is made: its file says that there may be one.
    fence_audit::remember(&site.spool.run_dir(run), &rules).map_err(Failure::node)?;
    let (name, limits) = (cgroup_name(run), limits(site, root, order));
    let (cgroup, cpus) = match &site.cpus {
        Some(binding) => {
            let wish = cpu_binding::wish(order, gpus.iter().map(|own| &own.gpu));
            let (cgroup, share) = binding
                .create(&site.spool, root, &name, &wish, limits)
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

/// The memory limit of the job. Declared memory may not exist: a limit that the job asked for, or that its partition gives by CPU
/// or GPU, still holds where the kernel can enforce it; the default share of the node does not.
fn mem_limit(site: &Site, root: &CgroupRoot, order: &LaunchOrder) -> Option<u64> {
    let declared = site.config.mem_bytes.is_some();
    let holds = order.mem_bytes > 0
        && (!declared || (!order.mem_ask.is_default() && root.supports(Controller::Memory)));
    holds.then_some(order.mem_bytes)
}

fn setup(
    site: &Site,
    run: RunId,
    order: &LaunchOrder,
    user: &User,
    gpus: &[GrantedGpu],
    cpus: Vec<u32>,
) -> RunSetup {
    let numbers = cuda_indexes(site, gpus);
    let gpu = |(own, cuda_index): (&GrantedGpu, Option<u32>)| RunGpu {
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
        slurm_names: slurm_names(&site.config),
        containers: ContainerPlaces {
            boxes: site.spool.boxes_dir(run).display().to_string(),
            images: site.spool.images_dir(user.uid).display().to_string(),
            cache_bytes: site.config.image_cache_bytes,
            registry_timeout_secs: site.config.registry_timeout_secs,
            driver: driver_files::of_run(&site.config, gpus),
        },
        pam_service: site.config.pam_service.clone(),
        restrict_root: user.uid == 0 && site.cgroups.is_some(),
        environment: node_environment(site),
        imex_device: String::new(),
        meeting: MeetingSetup {
            host: meeting_host(site),
            ports: site.config.rendezvous_ports,
            ..MeetingSetup::default()
        },
    }
}

/// Empty where the directory is not there.
fn slurm_names(config: &Config) -> String {
    let dir = &config.slurm_names;
    match dir.is_dir() {
        true => dir.display().to_string(),
        false => String::new(),
    }
}

/// Where ranks on other nodes reach this one: by its name, as scripts have it, unless no name server knows it.
fn meeting_host(site: &Site) -> String {
    match (site.name_resolves.get(), site.address.get()) {
        (Some(true), _) | (_, None | Some(None)) => site.name.clone(),
        (_, Some(Some(address))) => address.to_string(),
    }
}

/// CUDA's number of each GPU of a run, by PCI address: behind a fence it counts the run's own, else the node's. Slices have none, and
/// none is sure beside slices that the run can open. An MPS server has the one GPU, which its clients see as number 0.
fn cuda_indexes(site: &Site, gpus: &[GrantedGpu]) -> Vec<Option<u32>> {
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
    let number = |own: &GrantedGpu| {
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

/// The address of this node on the route to the controller. Connecting a datagram socket asks the routing table and sends nothing.
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
    use gmodel::run::EndCause;

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
