//! Removing a directory with all that users put there. Owns no path: it goes by descriptors, follows no link and enters no mount, and
//! takes the same stack and the same few descriptors for a tree of any depth and width.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::{Dir, OwningIter, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2, renameat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Directories that are open at once, each by two descriptors. What is deeper is moved up first.
const OPEN_LEVELS: usize = 16;
/// Longest name that an error quotes.
const QUOTED_BYTES: usize = 64;

const DIRECTORY: OFlag = OFlag::O_DIRECTORY
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// Removes what is at `path`: a file, a link, or a directory with all that is below. What is gone is no error; a file system that
/// is mounted below is one, and stays as it is. The processes that write there have to be gone.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::EINVAL.into());
    };
    let above = if above.as_os_str().is_empty() {
        Path::new(".")
    } else {
        above
    };
    let above = match open(
        above,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    ) {
        Err(Errno::ENOENT) => return Ok(()),
        above => above?,
    };
    let name = CString::new(name.as_bytes())?;
    let mut moved = 0;
    // Another pass for what the last one moved up.
    while !remove_one(&above, &name, None)? {
        let top = match open_below(&above, &name) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
            top => top?,
        };
        if empty(&top, &mut moved)? == 0 {
            return Err(failure("removing", &name, Errno::ENOTEMPTY));
        }
    }
    Ok(())
}

struct DirLevel {
    name: CString,
    dir: OwnedFd,
    entries: OwningIter,
}

impl DirLevel {
    fn enter(dir: OwnedFd, name: CString) -> io::Result<DirLevel> {
        // A description of its own: the place in the listing belongs to it.
        let entries = Dir::from_fd(open_below(&dir, c".")?)?.into_iter();
        Ok(DirLevel { name, dir, entries })
    }
}

/// Removes what is below `top`, down to [`OPEN_LEVELS`]; what is deeper becomes an entry of `top`. How many entries went or moved.
fn empty(top: &OwnedFd, moved: &mut u64) -> io::Result<u64> {
    let mut done = 0;
    let mut levels = vec![DirLevel::enter(top.try_clone()?, CString::default())?];
    loop {
        let depth = levels.len();
        let Some(level) = levels.last_mut() else {
            return Ok(done);
        };
        let Some(entry) = level.entries.next().transpose()? else {
            let left = levels.pop();
            if let (Some(left), Some(level)) = (left, levels.last()) {
                // What was not seen in it keeps it until the next pass.
                done += u64::from(remove_one(&level.dir, &left.name, Some(Type::Directory))?);
            }
            continue;
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if remove_one(&level.dir, name, entry.file_type())? {
            done += 1;
        } else if depth < OPEN_LEVELS {
            let (name, dir) = (name.to_owned(), open_below(&level.dir, name)?);
            levels.push(DirLevel::enter(dir, name)?);
        } else {
            move_up(&level.dir, name, top, moved)?;
            done += 1;
        }
    }
}

/// False: it is a directory that is not empty.
fn remove_one(dir: &OwnedFd, name: &CStr, is: Option<Type>) -> io::Result<bool> {
    let as_file = match is {
        Some(Type::Directory) => Err(Errno::EISDIR),
        _ => unlinkat(dir, name, UnlinkatFlags::NoRemoveDir),
    };
    // POSIX says EPERM of a directory.
    let removed = match as_file {
        Err(Errno::EISDIR | Errno::EPERM) => match unlinkat(dir, name, UnlinkatFlags::RemoveDir) {
            Err(Errno::ENOTDIR) if as_file == Err(Errno::EPERM) => as_file,
            Err(Errno::ENOTDIR) => unlinkat(dir, name, UnlinkatFlags::NoRemoveDir),
            removed => removed,
        },
        removed => removed,
    };
    match removed {
        Ok(()) | Err(Errno::ENOENT) => Ok(true),
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(false),
        Err(Errno::EBUSY) => Err(failure("a file system is mounted at", name, Errno::EBUSY)),
        Err(e) => Err(failure("removing", name, e)),
    }
}

fn move_up(dir: &OwnedFd, name: &CStr, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    loop {
        let free = CString::new(format!(".removed-{moved}"))?;
        *moved += 1;
        match renameat(dir, name, top, free.as_c_str()) {
            // An entry of that name is there; an empty directory would have been replaced.
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            Err(e) => return Err(failure("moving", name, e)),
        }
    }
}

/// The directory of that name, on the same mount. A link is refused.
fn open_below(dir: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_NO_XDEV
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let opened = match openat2(
        dir,
        name,
        OpenHow::new()
            .flags(OFlag::O_RDONLY | DIRECTORY)
            .resolve(resolve),
    ) {
        // Before Linux 5.6, and in containers that do not know it. A subvolume of btrfs is taken for a mount there.
        Err(Errno::ENOSYS | Errno::EPERM) => {
            let opened = openat(dir, name, OFlag::O_RDONLY | DIRECTORY, Mode::empty())
                .map_err(|e| failure("opening", name, e))?;
            match fstat(opened.as_fd())?.st_dev == fstat(dir.as_fd())?.st_dev {
                true => Ok(opened),
                false => Err(Errno::EXDEV),
            }
        }
        opened => opened,
    };
    opened.map_err(|e| match e {
        Errno::EXDEV => failure("a file system is mounted at", name, e),
        e => failure("opening", name, e),
    })
}

/// The kind stays: callers look for it.
fn failure(verb: &str, name: &CStr, errno: Errno) -> io::Error {
    if errno == Errno::ENOENT {
        return errno.into();
    }
    let name = name.to_bytes();
    let shown = String::from_utf8_lossy(&name[..name.len().min(QUOTED_BYTES)]);
    io::Error::new(
        io::Error::from(errno).kind(),
        format!("{verb} {shown:?}: {errno}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            // Memory where there is some: tens of thousands of directories take seconds on a disk.
            let above = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
            let dirs = above
                .map(|above| above.join(format!("gsys-removal-{}-{name}", std::process::id())));
            Self(
                dirs.into_iter()
                    .find(|dir| fs::create_dir(dir).is_ok())
                    .unwrap(),
            )
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = remove_tree(&self.0);
        }
    }

    /// `depth` directories in one another, with a file in each.
    fn nest(above: &Path, depth: u32) {
        let mut dir = open(above, OFlag::O_RDONLY | DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..depth {
            nix::sys::stat::mkdirat(&dir, c"d", Mode::S_IRWXU).unwrap();
            openat(&dir, c"f", OFlag::O_WRONLY | OFlag::O_CREAT, Mode::S_IRUSR).unwrap();
            dir = openat(&dir, c"d", OFlag::O_RDONLY | DIRECTORY, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn directories_nested_deeper_than_any_stack_go_with_few_descriptors() {
        let scratch = Scratch::new("deep");
        let tree = scratch.0.join("tmp");
        for wide in ["a", "b"] {
            fs::create_dir_all(tree.join(wide)).unwrap();
            nest(&tree.join(wide), 45_000);
        }
        // Left by a removal that was killed, or made by a user with the same names.
        fs::create_dir_all(tree.join(".removed-0/x")).unwrap();
        fs::write(tree.join(".removed-1"), "").unwrap();
        let small = std::thread::Builder::new().stack_size(64 << 10);
        small
            .spawn(move || remove_tree(&tree).unwrap())
            .unwrap()
            .join()
            .unwrap();
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let scratch = Scratch::new("links");
        let (tree, other) = (scratch.0.join("tmp"), scratch.0.join("other"));
        fs::create_dir_all(tree.join("below")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("kept"), "").unwrap();
        for link in [
            tree.join("link"),
            tree.join("below/link"),
            scratch.0.join("link"),
        ] {
            std::os::unix::fs::symlink(&other, link).unwrap();
        }
        remove_tree(&tree).unwrap();
        remove_tree(&scratch.0.join("link")).unwrap();
        remove_tree(&tree).unwrap();
        remove_tree(&tree.join("gone/too")).unwrap();
        assert!(other.join("kept").exists() && !tree.exists() && !scratch.0.join("link").exists());
    }

    #[test]
    fn a_mounted_file_system_stays_and_is_named() {
        if !crate::user::is_root() {
            return println!("NOT RUN: without root nothing is mounted");
        }
        let scratch = Scratch::new("mount");
        let (tree, point) = (scratch.0.join("tmp"), scratch.0.join("tmp/a/point"));
        fs::create_dir_all(&point).unwrap();
        crate::mount::mount_tmpfs(&point, 1 << 20).unwrap();
        fs::write(point.join("kept"), "").unwrap();
        let refused = remove_tree(&tree).unwrap_err().to_string();
        let kept = point.join("kept").exists();
        crate::mount::unmount(&point).unwrap();
        assert!(
            kept && refused.contains("mounted at \"point\""),
            "{refused}"
        );
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }
}
