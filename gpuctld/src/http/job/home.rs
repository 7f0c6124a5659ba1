//! `~` as the working directory of a submission: the user's home directory, which a client outside of the cluster does not know.
//!
//! Owns the name only: whether that directory is on the node is seen where the job runs.

use crate::http::error::ApiError;
use crate::http::permission::Caller;
use gmodel::JobSpec;
use gwire::api::HOME;
use nix::unistd::User;
use std::path::PathBuf;

/// Puts the home directory in the place of `~` in each request.
///
/// # Errors
/// This host's name service does not know the user's, or does not answer.
pub(crate) async fn resolve(
    caller: &Caller,
    spec: &mut JobSpec,
    others: &mut [JobSpec],
) -> Result<(), ApiError> {
    let asks = |spec: &JobSpec| below(&spec.launch.work_dir).is_some();
    if !asks(spec) && !others.iter().any(asks) {
        return Ok(());
    }
    let home = home_of(caller).await?;
    for spec in std::iter::once(spec).chain(others) {
        let dir = match below(&spec.launch.work_dir) {
            None => continue,
            Some("") => home.clone(),
            Some(rest) => format!("{home}/{rest}"),
        };
        spec.launch.around.work_dir = dir;
    }
    Ok(())
}

/// What stands behind `~`, without the `/` between.
fn below(work_dir: &str) -> Option<&str> {
    let rest = work_dir.strip_prefix(HOME)?;
    rest.strip_prefix('/').or(rest.is_empty().then_some(""))
}

async fn home_of(caller: &Caller) -> Result<String, ApiError> {
    let (name, uid) = (caller.actor.user.clone(), caller.actor.uid);
    let asked = name.clone();
    let found = tokio::task::spawn_blocking(move || User::from_name(&asked)).await;
    let found = found.map_err(|_| ApiError::unavailable("asking for the home directory failed"))?;
    let user = found.map_err(|error| {
        ApiError::unavailable(format!(
            "the controller's name service does not say where your home directory is: {error}"
        ))
    })?;
    let dir = user
        .filter(|user| user.uid.as_raw() == uid)
        .map(|user| user.dir);
    dir.map(PathBuf::into_os_string)
        .and_then(|dir| dir.into_string().ok())
        .filter(|dir| dir.starts_with('/'))
        .ok_or_else(|| {
            ApiError::invalid(format!(
                "the controller's host does not know the home directory of {name}: name the job's directory, as with --chdir /data/{name}"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_tilde_alone_or_before_a_slash_is_home() {
        assert_eq!(below("~"), Some(""));
        assert_eq!(below("~/a/b"), Some("a/b"));
        for other in ["/data", "~root", "", "a~", "./~"] {
            assert_eq!(below(other), None, "{other}");
        }
    }
}
