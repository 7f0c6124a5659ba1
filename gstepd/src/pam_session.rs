//! The run's PAM session: opened before the run is ready, closed after its end is on record. What its modules set of the
//! supervisor is meant for the job: variables and limits are handed on, and the supervisor keeps its own limits.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use anyhow::Context;
use gmodel::byte_text;
use gsys::launch::{Resource, Rlimit};
use gsys::pam::Session;

/// Open until it is closed or dropped.
pub struct PamSession {
    service: String,
    user: String,
    session: Option<Session>,
    variables: Vec<(String, String)>,
    limits: Vec<Rlimit>,
}

impl PamSession {
    /// Modules may block; gpud gives up on a supervisor that does not get ready.
    pub fn open(service: &str, user: &str) -> anyhow::Result<PamSession> {
        let own = limits_in_force();
        let opened =
            Session::open(service, user).with_context(|| format!("PAM service {service:?}"))?;
        let session = opened
            .with_context(|| format!("PAM service {service:?}: this node has no libpam.so.0"))?;
        let limits = limits_in_force();
        own.iter().for_each(take_back);
        let text = |(name, value): (OsString, OsString)| {
            (
                byte_text::from_bytes(name.as_bytes()),
                byte_text::from_bytes(value.as_bytes()),
            )
        };
        let variables = session.environment().into_iter().map(text).collect();
        Ok(PamSession {
            service: service.into(),
            user: user.into(),
            session: Some(session),
            variables,
            limits,
        })
    }

    /// `NAME=value` to be set over the submission's. What the user brought along stays, PATH above all, but for what names
    /// things of the session itself: on the login node it named others.
    pub fn environment(&self, submission: &[String]) -> Vec<String> {
        let brought = |name: &str| {
            submission
                .iter()
                .any(|line| line.split_once('=').is_some_and(|(n, _)| n == name))
        };
        let set = self
            .variables
            .iter()
            .filter(|(name, _)| names_the_session(name) || !brought(name));
        set.map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// As the modules set the limits, for the job.
    pub fn limits(&self) -> &[Rlimit] {
        &self.limits
    }

    /// Closing twice does nothing.
    pub fn close(&mut self) -> anyhow::Result<()> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        session
            .close(&self.user)
            .with_context(|| format!("PAM service {:?}", self.service))
    }
}

impl Drop for PamSession {
    fn drop(&mut self) {
        // A caller that needs the error closes the session before.
        let _ = self.close();
    }
}

fn names_the_session(name: &str) -> bool {
    name.starts_with("XDG_") || matches!(name, "KRB5CCNAME" | "DBUS_SESSION_BUS_ADDRESS")
}

/// pam_limits means the job: a file size or a number of descriptors of a user's must not end its supervisor. Raising a hard
/// limit again takes CAP_SYS_RESOURCE, which containers lack; there the supervisor has the user's hard ones.
fn take_back(own: &Rlimit) {
    let of_session = own.resource.current().map_or(own.hard, |limit| limit.hard);
    let _ = own.set().or_else(|_| {
        Rlimit {
            hard: of_session,
            ..*own
        }
        .set()
    });
}

fn limits_in_force() -> Vec<Rlimit> {
    Resource::ALL
        .into_iter()
        .filter_map(|resource| resource.current().ok())
        .collect()
}
