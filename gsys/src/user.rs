//! Users and groups of the node's NSS. Tells "no such user" from "NSS does not answer": the first is an answer, the second an error
//! of the node.

use std::ffi::CString;
use std::io;
use std::path::PathBuf;

use nix::unistd;

/// An account of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub home: PathBuf,
    pub shell: PathBuf,
    /// All groups, the primary one included.
    pub groups: Vec<u32>,
}

impl User {
    /// By name; `None` when NSS says that there is no such user. Blocks as long as NSS does.
    pub fn by_name(name: &str) -> Result<Option<User>, UserError> {
        let found = unistd::User::from_name(name)
            .map_err(|e| UserError::new(format!("user {name:?}"), e))?;
        found.map(with_groups).transpose()
    }
}

/// The login name of a uid.
pub fn user_name(uid: u32) -> Result<Option<String>, UserError> {
    let found =
        unistd::User::from_uid(uid.into()).map_err(|e| UserError::new(format!("uid {uid}"), e))?;
    Ok(found.map(|user| user.name))
}

/// The effective uid of the caller is 0.
pub fn is_root() -> bool {
    unistd::geteuid().is_root()
}

/// NSS could not answer.
#[derive(Debug, thiserror::Error)]
#[error("asking NSS for {what}")]
pub struct UserError {
    what: String,
    source: io::Error,
}

impl UserError {
    fn new(what: String, e: nix::Error) -> UserError {
        UserError {
            what,
            source: e.into(),
        }
    }
}

fn with_groups(user: unistd::User) -> Result<User, UserError> {
    let what = || format!("the groups of {:?}", user.name);
    let name = CString::new(user.name.as_bytes())
        .map_err(|_| UserError::new(what(), nix::Error::EINVAL))?;
    let groups = unistd::getgrouplist(&name, user.gid).map_err(|e| UserError::new(what(), e))?;
    Ok(User {
        groups: groups.into_iter().map(|gid| gid.as_raw()).collect(),
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
        name: user.name,
        home: user.dir,
        shell: user.shell,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_a_made_up_name_is_not() {
        let root = User::by_name("root")
            .expect("NSS answers")
            .expect("root exists");
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert_eq!(user_name(0).expect("NSS answers").as_deref(), Some("root"));
        assert_eq!(
            User::by_name("no-such-user-of-gpupool").expect("NSS answers"),
            None
        );
    }
}
