//! The device fence of a run: which device nodes its processes may open or make. On v2 and hybrid a
//! `BPF_PROG_TYPE_CGROUP_DEVICE` program on the bare bpf(2), never a bpf_link (it vanishes with the daemon); on
//! pure v1 `devices.allow`/`devices.deny`. Fails closed: no fence, no start. Source: include/uapi/linux/bpf.h.

mod bpf;
mod fence;
mod probe;
mod rules;
mod v1;

use std::path::Path;

use crate::cgroup::RunCgroup;

pub use fence::{Fence, FenceError, FenceTag};

pub use probe::self_test;
pub(crate) use rules::char_majors;
pub use rules::{DeviceNumber, DeviceRule, FenceRules, GpuNode, NodeDevices, char_major};

/// Puts the fence on a cgroup directory (see [`RunCgroup::fence_dir`]) that has no fence of gpupool yet. The fence outlives the caller
/// and goes with the cgroup.
pub fn attach(cgroup_dir: &Path, rules: &FenceRules) -> Result<Fence, FenceError> {
    match kind_of(cgroup_dir)? {
        FenceKind::Bpf => {
            let dir = bpf::open_dir(cgroup_dir)?;
            let loaded = bpf::kept(bpf::program_of(rules))?;
            bpf::attach(&dir, &loaded.program, None)
                .map_err(|e| FenceError::at("attaching a program to", cgroup_dir, e))?;
            // Read back: a fence that the kernel does not list is no fence.
            match bpf::attached(&dir, cgroup_dir)?.contains(&loaded.fence.program_id) {
                true => Ok(loaded.fence),
                false => Err(FenceError::Changed {
                    path: cgroup_dir.to_owned(),
                    found: 0,
                }),
            }
        }
        FenceKind::V1 => v1::write(cgroup_dir, rules),
    }
}

/// Swaps the fence `old` of a cgroup for a new one, atomically on v2: at no moment is the cgroup without a fence.
pub fn replace(cgroup_dir: &Path, old: &Fence, rules: &FenceRules) -> Result<Fence, FenceError> {
    match kind_of(cgroup_dir)? {
        FenceKind::Bpf => {
            let dir = bpf::open_dir(cgroup_dir)?;
            let current = bpf::program_by_id(old.program_id).map_err(|_| FenceError::Changed {
                path: cgroup_dir.to_owned(),
                found: 0,
            })?;
            let program = bpf::load(&bpf::program_of(rules))?;
            bpf::attach(&dir, &program, Some(&current))
                .map_err(|e| FenceError::at("replacing the program of", cgroup_dir, e))?;
            bpf::info(&program)
        }
        FenceKind::V1 => v1::rewrite(cgroup_dir, rules),
    }
}

/// The fences attached to exactly this cgroup (not those of its parents), gpupool's and others.
pub fn query(cgroup_dir: &Path) -> Result<Vec<Fence>, FenceError> {
    match kind_of(cgroup_dir)? {
        FenceKind::Bpf => bpf::query(cgroup_dir),
        FenceKind::V1 => Ok(vec![v1::read(cgroup_dir)?]),
    }
}

/// Checks that the cgroup still carries exactly the fence of these rules, from nothing but the rules: usable after a restart
/// of the caller. A fence that another program has put beside it can only deny more, and is let be.
pub fn audit(cgroup_dir: &Path, rules: &FenceRules) -> Result<Fence, FenceError> {
    let expected = expected_tag(cgroup_dir, rules)?;
    let attached = query(cgroup_dir)?;
    let found = attached.len();
    attached
        .into_iter()
        .find(|fence| fence.tag == expected)
        .ok_or(FenceError::Changed {
            path: cgroup_dir.to_owned(),
            found,
        })
}

/// The tag that a fence of these rules has on this kernel (its hash has changed between kernels, so the kernel is asked).
pub fn expected_tag(cgroup_dir: &Path, rules: &FenceRules) -> Result<FenceTag, FenceError> {
    match kind_of(cgroup_dir)? {
        FenceKind::Bpf => Ok(bpf::info(&bpf::load(&bpf::program_of(rules))?)?.tag),
        FenceKind::V1 => Ok(v1::tag(&v1::lines(rules))),
    }
}

/// [`attach`] to the `job` cgroup of a run.
pub fn attach_run(run: &RunCgroup, rules: &FenceRules) -> Result<Fence, FenceError> {
    attach(&run.fence_dir()?, rules)
}

/// [`audit`] of the `job` cgroup of a run.
pub fn audit_run(run: &RunCgroup, rules: &FenceRules) -> Result<Fence, FenceError> {
    audit(&run.fence_dir()?, rules)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FenceKind {
    Bpf,
    V1,
}

/// By the file system the directory is in, so that a fence is never written where it has no effect.
fn kind_of(dir: &Path) -> Result<FenceKind, FenceError> {
    let magic = nix::sys::statfs::statfs(dir)
        .map_err(|e| FenceError::at("opening", dir, e.into()))?
        .filesystem_type();
    match magic {
        nix::sys::statfs::CGROUP2_SUPER_MAGIC => Ok(FenceKind::Bpf),
        nix::sys::statfs::CGROUP_SUPER_MAGIC if dir.join("devices.deny").exists() => {
            Ok(FenceKind::V1)
        }
        _ => Err(FenceError::NoTree(dir.to_owned())),
    }
}
