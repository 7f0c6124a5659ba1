//! What happens between fork and exec. Only system calls on memory that was prepared before the fork: no allocation, no
//! lock, no destructor, because the daemon's other threads are not there to release anything.

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use super::error::{LaunchError, Report, Stage};
use super::spec::{Identity, LaunchSpec, OpenMode, Stdio, c_string, candidates, private_mounts};
use crate::caps;
use crate::cgroup::{JoinFds, c_path};
use crate::cpu::Affinity;
use crate::mount::PrivateMounts;
use crate::process::errno;

/// The spec in the form the kernel takes it.
pub(super) struct Plan<'a> {
    programs: Vec<CString>,
    argv: CStringArray,
    env: CStringArray,
    pid_slots: Vec<PidSlot>,
    cwd: CString,
    /// `None` when the daemon is not root: the child keeps its user.
    identity: Option<&'a Identity>,
    umask: u32,
    rlimits: Vec<(libc::__rlimit_resource_t, libc::rlimit)>,
    soft_limits: Vec<(libc::__rlimit_resource_t, u64)>,
    nice: i32,
    files: [(Stage, FileAt<'a>); 3],
    kept: Vec<RawFd>,
    controlling_terminal: bool,
    join: Option<&'a JoinFds>,
    affinity: Option<&'a Affinity>,
    mounts: Option<PrivateMounts>,
    confine_root: bool,
}

enum FileAt<'a> {
    Open(CString, i32),
    Fd(RawFd, std::marker::PhantomData<&'a ()>),
    SameAsStdout,
}

fn standard_files<'a>(spec: &'a LaunchSpec<'a>) -> Result<[(Stage, FileAt<'a>); 3], LaunchError> {
    let at = |stage, what, stdio| Ok((stage, without_nul(stage, what, file(stdio))?));
    Ok([
        at(Stage::Stdin, "the input file's path", &spec.stdin)?,
        at(Stage::Stdout, "the output file's path", &spec.stdout)?,
        at(Stage::Stderr, "the error file's path", &spec.stderr)?,
    ])
}

impl<'a> Plan<'a> {
    pub fn new(spec: &'a LaunchSpec<'a>) -> Result<Plan<'a>, LaunchError> {
        if spec.argv.is_empty() {
            return Err(LaunchError::user(
                Stage::Exec,
                libc::EINVAL,
                "no program was given".into(),
            ));
        }
        let pid_names = spec.pid_variables.iter();
        let pid_slots = pid_names.map(|name| PidSlot::new(name)).collect();
        let pid_slots: Vec<PidSlot> = without_nul(Stage::Exec, "the environment", pid_slots)?;
        let variables = spec
            .env
            .iter()
            .map(|(name, value)| variable(name, value))
            .collect();
        let mut env = CStringArray::new(without_nul(Stage::Exec, "the environment", variables)?);
        env.append(pid_slots.iter().map(PidSlot::text));
        let argv = spec.argv.iter().map(|word| c_string(word)).collect();
        Ok(Plan {
            programs: without_nul(
                Stage::Exec,
                "the program's path",
                candidates(spec).iter().map(|path| c_path(path)).collect(),
            )?,
            argv: CStringArray::new(without_nul(Stage::Exec, "an argument", argv)?),
            env,
            pid_slots,
            cwd: without_nul(
                Stage::Directory,
                "the working directory's path",
                c_path(&spec.cwd),
            )?,
            identity: identity(spec)?,
            umask: spec.umask & 0o777,
            rlimits: spec
                .rlimits
                .iter()
                .map(|l| (l.resource.number(), raw_rlimit(l.soft, l.hard)))
                .collect(),
            soft_limits: spec
                .soft_limits
                .iter()
                .map(|(resource, soft)| (resource.number(), *soft))
                .collect(),
            nice: spec.nice,
            files: standard_files(spec)?,
            kept: spec.kept.iter().map(AsRawFd::as_raw_fd).collect(),
            controlling_terminal: spec.controlling_terminal,
            join: spec.join,
            affinity: spec.affinity.as_ref(),
            mounts: private_mounts(spec).map_err(|e| {
                LaunchError::node(Stage::Mounts, "preparing the job's mount namespace", &e)
            })?,
            confine_root: spec.confine_root,
        })
    }
}

/// Text made ready for the kernel, for which it ends at the first NUL byte: one in the middle is the user's mistake.
fn without_nul<T>(stage: Stage, what: &str, made: io::Result<T>) -> Result<T, LaunchError> {
    let text = || format!("{what} holds a NUL byte, which no path, argument or variable can");
    made.map_err(|_| LaunchError::user(stage, libc::EINVAL, text()))
}

/// Never returns: ends in the program, or in a report and exit code 127.
pub(super) fn run(plan: &Plan<'_>, report: RawFd) -> ! {
    let failed = match prepare(plan).and_then(|()| exec(plan)) {
        Ok(never) => match never {},
        Err(failed) => failed.bytes(),
    };
    // SAFETY: the buffer outlives the call; _exit runs no handler of the parent's.
    unsafe {
        libc::write(report, failed.as_ptr().cast(), failed.len());
        libc::_exit(127)
    }
}

fn prepare(plan: &Plan<'_>) -> Result<(), Report> {
    // SAFETY: setsid and prctl take no pointers.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_PDEATHSIG, 0, 0, 0, 0);
    }
    reset_signals();
    if let Some(join) = plan.join {
        join.join().map_err(|errno| report(Stage::Cgroup, errno))?;
    }
    // After the cgroup: entering a cpuset sets the affinity to all of it.
    if let Some(affinity) = plan.affinity {
        affinity
            .bind()
            .map_err(|errno| report(Stage::Affinity, errno))?;
    }
    reset_oom_score();
    if let Some(mounts) = &plan.mounts {
        mounts
            .enter()
            .map_err(|errno| report(Stage::Mounts, errno))?;
    }
    set_rlimits(&plan.rlimits);
    // SAFETY: nice takes an integer. Failing to lower niceness is no reason not to run.
    unsafe { libc::nice(plan.nice) };
    if plan.confine_root {
        caps::confine().map_err(|errno| report(Stage::Capabilities, errno))?;
    }
    become_user(plan)?;
    // SAFETY: umask takes an integer, chdir a NUL-terminated path.
    unsafe {
        libc::umask(plan.umask);
        if libc::chdir(plan.cwd.as_ptr()) != 0 {
            return Err(report(Stage::Directory, errno()));
        }
    }
    // Opening may wait for ever (a FIFO, a dead file server): from here on signals can end the process.
    unblock_signals();
    open_files(&plan.files)?;
    // SAFETY: ioctl with an integer argument on descriptor 0.
    if plan.controlling_terminal && unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } != 0 {
        return Err(report(Stage::Terminal, errno()));
    }
    close_others();
    for kept in &plan.kept {
        // SAFETY: fcntl on a descriptor that the caller holds open over the fork.
        if unsafe { libc::fcntl(*kept, libc::F_SETFD, 0) } != 0 {
            return Err(report(Stage::Exec, errno()));
        }
    }
    // SAFETY: getpid has no arguments and cannot fail.
    let pid = unsafe { libc::getpid() };
    plan.pid_slots.iter().for_each(|slot| slot.fill(pid as u32));
    set_soft_limits(&plan.soft_limits);
    Ok(())
}

/// Exec resets handlers, but ignored signals stay ignored over it: all go back to default. The bare system call, because
/// glibc hides 32 and 33 from its own, and a daemon started with them ignored would pass that on.
fn reset_signals() {
    const KERNEL_MASK_BYTES: usize = 8;
    // The kernel's struct sigaction: handler, flags, restorer, mask. Zeros are SIG_DFL with an empty mask.
    let default = [0u64; 4];
    for signal in 1..=64 {
        // SAFETY: the struct outlives the call; the kernel refuses the two signals that cannot be set.
        unsafe {
            let none = ptr::null_mut::<u64>();
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                none,
                KERNEL_MASK_BYTES,
            );
        }
    }
}

fn unblock_signals() {
    // SAFETY: sigemptyset fills the set before it is used.
    unsafe {
        let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

/// A daemon protected from the OOM killer would pass its protection on to the job.
fn reset_oom_score() {
    // SAFETY: static path and buffer. Best effort: without the file there is no protection either.
    unsafe {
        let fd = libc::open(
            c"/proc/self/oom_score_adj".as_ptr(),
            libc::O_WRONLY | libc::O_CLOEXEC,
        );
        if fd >= 0 {
            libc::write(fd, c"0".as_ptr().cast(), 1);
            libc::close(fd);
        }
    }
}

/// Best effort: a hard limit above the daemon's own is cut to it.
fn set_rlimits(rlimits: &[(libc::__rlimit_resource_t, libc::rlimit)]) {
    for (resource, wanted) in rlimits {
        // SAFETY: both structs outlive the calls.
        unsafe {
            if libc::setrlimit(*resource, wanted) != 0 {
                let mut own = libc::rlimit {
                    rlim_cur: 0,
                    rlim_max: 0,
                };
                libc::getrlimit(*resource, &mut own);
                let hard = wanted.rlim_max.min(own.rlim_max);
                let cut = libc::rlimit {
                    rlim_cur: wanted.rlim_cur.min(hard),
                    rlim_max: hard,
                };
                libc::setrlimit(*resource, &cut);
            }
        }
    }
}

/// A user may always lower a soft limit, and raise it as far as the hard one.
fn set_soft_limits(limits: &[(libc::__rlimit_resource_t, u64)]) {
    for (resource, soft) in limits {
        let mut own = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the struct outlives the calls.
        unsafe {
            if libc::getrlimit(*resource, &mut own) == 0 {
                own.rlim_cur = (*soft).min(own.rlim_max);
                libc::setrlimit(*resource, &own);
            }
        }
    }
}

/// The bare system calls: glibc's wrappers would signal the parent's other threads, which do not exist here.
fn become_user(plan: &Plan<'_>) -> Result<(), Report> {
    let Some(Identity { uid, gid, groups }) = plan.identity else {
        return Ok(());
    };
    // SAFETY: the group list outlives the call; the others take integers.
    let done = unsafe {
        libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0
            && libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid) == 0
            && libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid) == 0
    };
    if done {
        Ok(())
    } else {
        Err(report(Stage::Identity, errno()))
    }
}

/// All three are opened above 2 first, so that opening one never overwrites a descriptor that another is made from.
fn open_files(files: &[(Stage, FileAt<'_>); 3]) -> Result<(), Report> {
    let mut opened = [-1; 3];
    for (slot, (stage, file)) in opened.iter_mut().zip(files) {
        *slot = match file {
            FileAt::SameAsStdout => continue,
            // SAFETY: a NUL-terminated path; the mode is given since O_CREAT may be set.
            FileAt::Open(path, flags) => unsafe {
                libc::open(path.as_ptr(), *flags, 0o666 as libc::c_uint)
            },
            FileAt::Fd(fd, _) => *fd,
        };
        if *slot < 0 {
            return Err(report(*stage, errno()));
        }
        // SAFETY: fcntl on an open descriptor.
        *slot = unsafe { libc::fcntl(*slot, libc::F_DUPFD_CLOEXEC, 3) };
        if *slot < 0 {
            return Err(report(*stage, errno()));
        }
    }
    // Two names of one file, as in `-o out -e ./out`: two open files of it would write over each other.
    if matches!(files[2].1, FileAt::Open(..)) && opened[1] >= 0 && same_file(opened[1], opened[2]) {
        opened[2] = opened[1];
    }
    for (target, (stage, _)) in files.iter().enumerate() {
        let source = if opened[target] < 0 {
            opened[1]
        } else {
            opened[target]
        };
        // SAFETY: dup2 between open descriptors; source is above 2, so close-on-exec is cleared.
        if unsafe { libc::dup2(source, target as i32) } < 0 {
            return Err(report(*stage, errno()));
        }
    }
    Ok(())
}

/// Async-signal-safe.
fn same_file(one: i32, other: i32) -> bool {
    let id = |fd: i32| {
        let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: fstat fills the struct where it returns 0, and only then it is read.
        (unsafe { libc::fstat(fd, status.as_mut_ptr()) } == 0)
            .then(|| unsafe { status.assume_init() })
            .map(|status| (status.st_dev, status.st_ino))
    };
    id(one).is_some_and(|one| Some(one) == id(other))
}

/// Marks everything above 2 close-on-exec: the report's pipe must stay open until then.
fn close_others() {
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    // SAFETY: integers only. Kernels before 5.11 do not know it and get the loop.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, CLOSE_RANGE_CLOEXEC) == 0 {
            return;
        }
        let mut own = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut own);
        for fd in 3..own.rlim_max.min(1 << 20) as i32 {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
}

/// As execvpe: goes on past what is not there or may not be run, and reports the most telling error.
fn exec(plan: &Plan<'_>) -> Result<std::convert::Infallible, Report> {
    let mut worst = report(Stage::Exec, libc::ENOENT);
    for program in &plan.programs {
        // SAFETY: the path and both arrays are NUL-terminated and outlive the call, which returns only on failure.
        unsafe {
            libc::execve(
                program.as_ptr(),
                plan.argv.pointers.as_ptr(),
                plan.env.pointers.as_ptr(),
            )
        };
        let errno = errno();
        match errno {
            libc::ENOENT | libc::ENOTDIR | libc::EACCES => {
                let first_line = script_line(program);
                if errno == libc::EACCES || first_line[0] != 0 {
                    worst = Report {
                        stage: Stage::Exec,
                        errno,
                        first_line,
                    };
                }
            }
            _ => return Err(report(Stage::Exec, errno)),
        }
    }
    Err(worst)
}

/// The beginning of a script, read as the user; zeros for anything else.
fn script_line(program: &CStr) -> [u8; Report::LINE] {
    let mut line = [0u8; Report::LINE];
    // SAFETY: a NUL-terminated path and a buffer of the given length. NONBLOCK, since the path may be a FIFO.
    let is_script = unsafe {
        let fd = libc::open(
            program.as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK,
        );
        fd >= 0
            && libc::read(fd, line.as_mut_ptr().cast(), line.len()) > 2
            && line.starts_with(b"#!")
    };
    // A file without the execute bit fails for that, whatever its first line says.
    // SAFETY: as above.
    let may_run = unsafe {
        libc::faccessat(
            libc::AT_FDCWD,
            program.as_ptr(),
            libc::X_OK,
            libc::AT_EACCESS,
        ) == 0
    };
    if is_script && may_run {
        line
    } else {
        [0; Report::LINE]
    }
}

fn report(stage: Stage, errno: i32) -> Report {
    Report {
        stage,
        errno,
        first_line: [0; Report::LINE],
    }
}

fn identity<'a>(spec: &'a LaunchSpec<'_>) -> Result<Option<&'a Identity>, LaunchError> {
    let id = &spec.identity;
    // SAFETY: geteuid has no arguments and cannot fail.
    let own = unsafe { libc::geteuid() };
    match own {
        0 => Ok(Some(id)),
        _ if own == id.uid => Ok(None),
        _ => {
            let doing = format!("becoming uid {} from uid {own}, which is not root", id.uid);
            Err(LaunchError::node(
                Stage::Identity,
                &doing,
                &io::Error::from_raw_os_error(libc::EPERM),
            ))
        }
    }
}

fn file<'a>(stdio: &Stdio<'a>) -> io::Result<FileAt<'a>> {
    let common = libc::O_CLOEXEC | libc::O_NOCTTY;
    Ok(match stdio {
        Stdio::Null => FileAt::Open(c"/dev/null".into(), common | libc::O_RDWR),
        Stdio::Fd(fd) => FileAt::Fd(fd.as_raw_fd(), std::marker::PhantomData),
        Stdio::SameAsStdout => FileAt::SameAsStdout,
        Stdio::Open { path, mode } => {
            let flags = match mode {
                OpenMode::Read => libc::O_RDONLY,
                OpenMode::Append => libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND,
                OpenMode::Truncate => libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC,
            };
            FileAt::Open(c_path(path)?, common | flags)
        }
    })
}

fn variable(name: &std::ffi::OsStr, value: &std::ffi::OsStr) -> io::Result<CString> {
    let bytes = [name.as_bytes(), b"=", value.as_bytes()].concat();
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn raw_rlimit(soft: u64, hard: u64) -> libc::rlimit {
    libc::rlimit {
        rlim_cur: soft.min(hard),
        rlim_max: hard,
    }
}

/// Strings, and the NULL-terminated array of pointers to the strings that execve takes.
struct CStringArray {
    pointers: Vec<*const libc::c_char>,
    /// Owns what `pointers` leads to; a CString's bytes do not move when the Vec does.
    _strings: Vec<CString>,
}

impl CStringArray {
    fn new(strings: Vec<CString>) -> CStringArray {
        let pointers = strings
            .iter()
            .map(|s| s.as_ptr())
            .chain([ptr::null()])
            .collect();
        CStringArray {
            pointers,
            _strings: strings,
        }
    }

    /// Adds borrowed strings, which have to live as long as this array is used.
    fn append(&mut self, strings: impl Iterator<Item = *const libc::c_char>) {
        self.pointers.pop();
        self.pointers.extend(strings.chain([ptr::null()]));
    }
}

/// `NAME=` and room for a process's number, which is not known before the fork.
struct PidSlot {
    /// Zeros from `digits_at` on.
    bytes: Box<[Cell<u8>]>,
    digits_at: usize,
}

impl PidSlot {
    /// Digits of the largest u32, and the NUL.
    const ROOM: usize = 11;

    fn new(name: &std::ffi::OsStr) -> io::Result<PidSlot> {
        let mut bytes = variable(name, std::ffi::OsStr::new(""))?.into_bytes();
        let digits_at = bytes.len();
        bytes.resize(digits_at + PidSlot::ROOM, 0);
        Ok(PidSlot {
            bytes: bytes.into_iter().map(Cell::new).collect(),
            digits_at,
        })
    }

    fn text(&self) -> *const libc::c_char {
        self.bytes.as_ptr().cast()
    }

    /// Async-signal-safe; for the child's own copy.
    fn fill(&self, pid: u32) {
        let mut digits = [0u8; PidSlot::ROOM - 1];
        let mut left = pid;
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        for (cell, digit) in self.bytes[self.digits_at..].iter().zip(&digits[first..]) {
            cell.set(*digit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_written_behind_its_name() {
        for pid in [0, 7, 4_194_304, u32::MAX] {
            let slot = PidSlot::new("GSUB_TASK_PID".as_ref()).expect("a name");
            slot.fill(pid);
            // SAFETY: the slot ends with a NUL and outlives the text.
            let text = unsafe { CStr::from_ptr(slot.text()) };
            assert_eq!(text.to_str().expect("text"), format!("GSUB_TASK_PID={pid}"));
        }
        assert!(PidSlot::new("A\0B".as_ref()).is_err());
    }
}
