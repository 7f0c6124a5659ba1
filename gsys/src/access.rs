//! Access for one user besides the owner, by a POSIX ACL: for a directory that a user's processes have to enter and may not
//! change. Source: acl(5), and linux/posix_acl_xattr.h for the attribute's layout.

use std::io;
use std::path::Path;

use crate::cgroup::c_path;

const VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;
// Kinds of entries.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The owner keeps all rights, this user may list and enter, and no other user has any right. Fails where the file system has no ACLs.
pub fn let_enter(dir: &Path, uid: u32) -> io::Result<()> {
    let entries = [
        (OWNER, 7, NO_ID),
        (USER, 5, uid),
        (GROUP, 0, NO_ID),
        (MASK, 5, NO_ID),
        (OTHER, 0, NO_ID),
    ];
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        value.extend(u16::to_le_bytes(tag));
        value.extend(u16::to_le_bytes(rights));
        value.extend(u32::to_le_bytes(id));
    }
    let path = c_path(dir)?;
    // SAFETY: both strings end with a zero, and the value is as long as is told.
    let outcome = unsafe {
        libc::setxattr(
            path.as_ptr(),
            c"system.posix_acl_access".as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    match outcome {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    #[test]
    fn one_user_enters_and_changes_nothing_and_another_does_not_enter() {
        if !crate::user::is_root() {
            eprintln!("NOT RUN: to be other users needs root");
            return;
        }
        let dir = std::env::temp_dir().join(format!("gsys-access-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o711)).unwrap();
        let closed = dir.join("closed");
        fs::create_dir(&closed).unwrap();
        let_enter(&closed, 12_001).unwrap();
        let does = |uid: u32, words: &[&str]| {
            let mut command = Command::new(words[0]);
            command
                .args(&words[1..])
                .uid(uid)
                .gid(uid)
                .current_dir("/")
                .stderr(Stdio::null());
            command.stdout(Stdio::null()).status().unwrap().success()
        };
        let path = closed.to_str().unwrap();
        assert!(does(12_001, &["ls", path]));
        assert!(!does(12_001, &["mkdir", &format!("{path}/own")]));
        assert!(!does(12_001, &["chmod", "777", path]));
        assert!(!does(12_002, &["ls", path]));
        fs::remove_dir_all(&dir).unwrap();
    }
}
