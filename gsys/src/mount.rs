//! Mounts of a job's own: directories bound over /tmp and /dev/shm, and read-only cgroup trees for root jobs. Changes never
//! reach the node's mounts: the namespace is made a slave first, so the node's later mounts still reach the job.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;

use crate::cgroup::{c_path, read_proc};
use crate::process::errno;

/// A directory seen in the place of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    pub source: PathBuf,
    pub target: PathBuf,
}

impl Bind {
    /// A job's private directories, seen in the place of the node's; an empty source is none. A bind over the directory of the sources
    /// hides these, so that bind comes last.
    pub fn of_private_dirs(shm: &str, tmp: &str) -> Vec<Bind> {
        let asked = [(shm, "/dev/shm"), (tmp, "/tmp")];
        let asked = asked.into_iter().filter(|(source, _)| !source.is_empty());
        let mut binds: Vec<Bind> = asked
            .map(|(source, target)| Bind {
                source: source.into(),
                target: target.into(),
            })
            .collect();
        let is_below = |target: &Path| {
            [shm, tmp]
                .iter()
                .any(|one| Path::new(one).starts_with(target))
        };
        binds.sort_by_key(|bind| is_below(&bind.target));
        binds
    }
}

/// Prepared before the fork, entered in the child.
#[derive(Debug)]
pub(crate) struct PrivateMounts {
    binds: Vec<(CString, CString)>,
    read_only: Vec<CString>,
}

impl PrivateMounts {
    /// The binds, and every mounted cgroup tree read-only if asked.
    pub fn new(binds: &[Bind], cgroups_read_only: bool) -> io::Result<PrivateMounts> {
        let pair = |bind: &Bind| Ok((c_path(&bind.source)?, c_path(&bind.target)?));
        let trees = if cgroups_read_only {
            // And the tmpfs that holds the trees' directories on v1 and hybrid.
            let mounts = mountinfo()?;
            let trees = mount_points(&mounts, CGROUPS);
            let holders = tmpfs_above(&mounts, &trees);
            trees.into_iter().chain(holders).collect()
        } else {
            Vec::new()
        };
        Ok(PrivateMounts {
            binds: binds.iter().map(pair).collect::<io::Result<_>>()?,
            read_only: trees.iter().map(|p| c_path(p)).collect::<io::Result<_>>()?,
        })
    }

    /// Moves the caller into a mount namespace of its own and makes the mounts. Async-signal-safe; returns errno.
    pub fn enter(&self) -> Result<(), i32> {
        // SAFETY: unshare takes an integer.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            return Err(errno());
        }
        mount(None, c"/", libc::MS_SLAVE | libc::MS_REC)?;
        for (source, target) in &self.binds {
            mount(Some(source), target, libc::MS_BIND)?;
            mount(
                None,
                target,
                libc::MS_REMOUNT | libc::MS_BIND | libc::MS_NOSUID | libc::MS_NODEV,
            )?;
        }
        let sealed = libc::MS_REMOUNT
            | libc::MS_BIND
            | libc::MS_RDONLY
            | libc::MS_NOSUID
            | libc::MS_NODEV
            | libc::MS_NOEXEC;
        self.read_only
            .iter()
            .try_for_each(|target| mount(None, target, sealed))
    }
}

fn mount(
    source: Option<&CString>,
    target: &std::ffi::CStr,
    flags: libc::c_ulong,
) -> Result<(), i32> {
    let source = source.map_or(ptr::null(), |s| s.as_ptr());
    // SAFETY: source is null or NUL-terminated, target is NUL-terminated; type and data are not used with these flags.
    match unsafe { libc::mount(source, target.as_ptr(), ptr::null(), flags, ptr::null()) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

const CGROUPS: &[&str] = &["cgroup", "cgroup2"];

/// The tmpfs below /sys in which cgroup trees are mounted, if there is one.
fn tmpfs_above(mountinfo: &str, trees: &[PathBuf]) -> Vec<PathBuf> {
    let mut points = mount_points(mountinfo, &["tmpfs"]);
    points.retain(|point| {
        point.starts_with("/sys") && trees.iter().any(|tree| tree.parent() == Some(point))
    });
    points
}

fn mountinfo() -> io::Result<String> {
    read_proc(Path::new("/proc/self/mountinfo"))
}

fn mount_points(mountinfo: &str, types: &[&str]) -> Vec<PathBuf> {
    let line = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let wanted = types.contains(&right.split(' ').next()?);
        wanted.then(|| crate::cgroup::unescape_mount(left.split(' ').nth(4).unwrap_or("")))
    };
    mountinfo.lines().filter_map(line).collect()
}

/// Mounts a tmpfs of at most `size_bytes`, mode 1777, nosuid,nodev: a private /dev/shm for all steps of a job.
pub fn mount_tmpfs(target: &Path, size_bytes: u64) -> io::Result<()> {
    let options = CString::new(format!("mode=1777,size={size_bytes}")).map_err(io::Error::other)?;
    let target = c_path(target)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    // SAFETY: all strings are NUL-terminated and outlive the call.
    let done = unsafe {
        libc::mount(
            c"tmpfs".as_ptr(),
            target.as_ptr(),
            c"tmpfs".as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether what is in the directory is memory.
pub fn is_tmpfs(dir: &Path) -> io::Result<bool> {
    Ok(nix::sys::statfs::statfs(dir)?.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC)
}

/// Unmounts, even while processes still use it (then it goes with the last of them). A directory without a mount is no error.
pub fn unmount(target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: a NUL-terminated path.
    match unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) } {
        0 => Ok(()),
        _ if matches!(errno(), libc::EINVAL | libc::ENOENT) => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
