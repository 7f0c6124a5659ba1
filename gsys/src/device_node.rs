//! Device nodes of simulated GPUs: made under a major that no driver has, so that opening one says ENXIO when the fence
//! permits it and EPERM when it denies. Removes only character devices, never another file.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::cgroup::c_path;
use crate::device_fence::DeviceNumber;

/// A character major that no driver has registered now: from the range for experiments (240-254), else from above the
/// dynamic ranges. `avoid` are majors that other simulated drivers have taken.
pub fn unused_major(avoid: &[u32]) -> io::Result<u32> {
    let text = fs::read_to_string("/proc/devices")?;
    let taken: BTreeSet<u32> = crate::device_fence::char_majors(&text)
        .map(|(major, _)| major)
        .chain(avoid.iter().copied())
        .collect();
    let free = (240..=254)
        .chain(300..=383)
        .find(|major| !taken.contains(major));
    free.ok_or_else(|| {
        io::Error::other("every experimental character major is taken (240-254, 300-383)")
    })
}

/// Makes a character device node, readable and writable by all.
pub fn make_char_device(path: &Path, device: DeviceNumber) -> io::Result<()> {
    let c_path = c_path(path)?;
    let number = libc::makedev(device.major, device.minor);
    // SAFETY: a NUL-terminated path.
    if unsafe { libc::mknod(c_path.as_ptr(), libc::S_IFCHR | 0o666, number) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // The umask has cut the mode.
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o666))
}

/// The numbers of a character device node; `None` for any other file.
pub fn char_device(path: &Path) -> io::Result<Option<DeviceNumber>> {
    let meta = fs::symlink_metadata(path)?;
    let number = DeviceNumber {
        major: libc::major(meta.rdev()),
        minor: libc::minor(meta.rdev()),
    };
    Ok(meta.file_type().is_char_device().then_some(number))
}

/// Removes a character device node; an absent one is no error, another file is.
pub fn remove_char_device(path: &Path) -> io::Result<()> {
    match char_device(path) {
        Ok(Some(_)) => fs::remove_file(path),
        Ok(None) => Err(io::Error::other(format!(
            "{} is no character device, it is left alone",
            path.display()
        ))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}
