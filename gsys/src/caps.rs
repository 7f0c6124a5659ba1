//! Capabilities taken from jobs of uid 0, so that root inside a job is not root over the node: it cannot take its fence off,
//! leave its cgroup, mount, trace, load modules or make device nodes. Source: capabilities(7).

use crate::process::errno;

/// SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, SYS_BOOT, MKNOD, NET_ADMIN, PERFMON, BPF: their kernel numbers.
pub const DENIED_TO_ROOT_JOBS: [u32; 9] = [16, 17, 19, 21, 22, 27, 12, 38, 39];

/// Takes these capabilities from the bounding, inheritable, permitted, effective and ambient sets of the calling thread; exec cannot
/// bring any back. Async-signal-safe; returns errno.
pub(crate) fn confine() -> Result<(), i32> {
    for cap in DENIED_TO_ROOT_JOBS {
        // SAFETY: prctl with integer arguments. EINVAL: this kernel does not know the capability, so no process has it.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, cap, 0, 0, 0) } != 0
            && errno() != libc::EINVAL
        {
            return Err(errno());
        }
    }
    // SAFETY: prctl with integer arguments. EINVAL: a kernel before 4.3 has no ambient set.
    if unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        )
    } != 0
        && errno() != libc::EINVAL
    {
        return Err(errno());
    }
    drop_held()
}

/// struct __user_cap_header_struct, version 3.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// struct __user_cap_data_struct; version 3 takes two, for capabilities 0-31 and 32-63.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn drop_held() -> Result<(), i32> {
    const VERSION_3: u32 = 0x2008_0522;
    let mut header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let mut sets = [Sets::default(); 2];
    // SAFETY: the header and two data structs, as version 3 has it, outlive both calls.
    unsafe {
        if libc::syscall(libc::SYS_capget, &mut header, sets.as_mut_ptr()) != 0 {
            return Err(errno());
        }
        for cap in DENIED_TO_ROOT_JOBS {
            let bit = !(1u32 << (cap % 32));
            let set = &mut sets[(cap / 32) as usize];
            set.effective &= bit;
            set.permitted &= bit;
        }
        // What is inheritable would come back at exec of a root process, whatever the bounding set says.
        sets.iter_mut().for_each(|set| set.inheritable = 0);
        match libc::syscall(libc::SYS_capset, &mut header, sets.as_ptr()) {
            0 => Ok(()),
            _ => Err(errno()),
        }
    }
}
