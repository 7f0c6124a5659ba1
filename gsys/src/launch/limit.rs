//! Resource limits of a process, under the names that sbatch propagates.

use std::io;
use std::ptr;

/// A resource limit; `u64::MAX` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlimit {
    pub resource: Resource,
    pub soft: u64,
    pub hard: u64,
}

/// The limits that sbatch propagates, under its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    As,
    Core,
    Cpu,
    Data,
    Fsize,
    Memlock,
    Nofile,
    Nproc,
    Rss,
    Stack,
}

impl Resource {
    pub const ALL: [Resource; 10] = [
        Resource::As,
        Resource::Core,
        Resource::Cpu,
        Resource::Data,
        Resource::Fsize,
        Resource::Memlock,
        Resource::Nofile,
        Resource::Nproc,
        Resource::Rss,
        Resource::Stack,
    ];

    /// sbatch's word: `AS`, `CORE`, `NOFILE`, ...
    pub fn name(self) -> &'static str {
        match self {
            Resource::As => "AS",
            Resource::Core => "CORE",
            Resource::Cpu => "CPU",
            Resource::Data => "DATA",
            Resource::Fsize => "FSIZE",
            Resource::Memlock => "MEMLOCK",
            Resource::Nofile => "NOFILE",
            Resource::Nproc => "NPROC",
            Resource::Rss => "RSS",
            Resource::Stack => "STACK",
        }
    }

    pub fn from_name(name: &str) -> Option<Resource> {
        Resource::ALL.into_iter().find(|r| r.name() == name)
    }

    pub(super) fn number(self) -> libc::__rlimit_resource_t {
        match self {
            Resource::As => libc::RLIMIT_AS,
            Resource::Core => libc::RLIMIT_CORE,
            Resource::Cpu => libc::RLIMIT_CPU,
            Resource::Data => libc::RLIMIT_DATA,
            Resource::Fsize => libc::RLIMIT_FSIZE,
            Resource::Memlock => libc::RLIMIT_MEMLOCK,
            Resource::Nofile => libc::RLIMIT_NOFILE,
            Resource::Nproc => libc::RLIMIT_NPROC,
            Resource::Rss => libc::RLIMIT_RSS,
            Resource::Stack => libc::RLIMIT_STACK,
        }
    }

    /// The caller's own limit: soft and hard.
    pub fn current(self) -> io::Result<Rlimit> {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: limit outlives the call.
        match unsafe { libc::getrlimit(self.number(), &mut limit) } {
            0 => Ok(Rlimit {
                resource: self,
                soft: limit.rlim_cur,
                hard: limit.rlim_max,
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Rlimit {
    /// Makes it the caller's own limit.
    pub fn set(&self) -> io::Result<()> {
        let limit = libc::rlimit {
            rlim_cur: self.soft.min(self.hard),
            rlim_max: self.hard,
        };
        // SAFETY: limit outlives the call.
        match unsafe { libc::setrlimit(self.resource.number(), &limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Makes it that of another process, which its children inherit.
    pub fn set_of(&self, pid: i32) -> io::Result<()> {
        let limit = libc::rlimit {
            rlim_cur: self.soft.min(self.hard),
            rlim_max: self.hard,
        };
        // SAFETY: limit outlives the call, and the old limit is not asked for.
        match unsafe { libc::prlimit(pid, self.resource.number(), &limit, ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
