//! Containers of jobs and steps: what a task does, as the user, between its start by the supervisor and the user's program.
//!
//! The supervisor starts each task of a container as `gstepd --container ORDER -- COMMAND`: in the job's cgroup and fence, with nothing of
//! root's. The first task of a container brings the image in, and has a runtime make the container. Every task joins its namespaces and
//! becomes the program. So whatever an image holds is never touched by root, and whatever a runtime gets wrong is the user's alone.
//!
//! ```text
//! SPOOL/images/UID/   0700, the user's    images that are pulled and unpacked
//! SPOOL/boxes/17-1/   0700, the user's    the containers of one run: step-0, batch, name-NAME
//! ```
//! Source: pyxis for what the options mean; the OCI runtime specification.

mod bundle;
mod image;
mod join;
mod order;
mod program;
mod set_up;
mod store;

pub use join::run;
pub use order::{contain, contain_batch, step_order, user_dir};
pub use set_up::create;

use std::fmt;

/// Why there is no container. The text is for the user.
#[derive(Debug)]
pub struct ContainerError {
    pub cause: ContainerFault,
    pub text: String,
}

/// Which party has to do something about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerFault {
    /// A name that is none, a file that cannot be read, a wish that this runtime cannot fulfil.
    User,
    /// The registry does not answer, or breaks off.
    Registry,
    /// The disk is full, or a program is missing.
    Node,
}

impl ContainerError {
    pub fn user(text: impl fmt::Display) -> Self {
        Self {
            cause: ContainerFault::User,
            text: text.to_string(),
        }
    }

    pub fn registry(text: impl fmt::Display) -> Self {
        Self {
            cause: ContainerFault::Registry,
            text: text.to_string(),
        }
    }

    pub fn node(text: impl fmt::Display) -> Self {
        Self {
            cause: ContainerFault::Node,
            text: text.to_string(),
        }
    }

    /// Of a file of the node's own.
    pub fn of_file<'a, E: fmt::Display>(
        doing: &'a str,
        path: &'a std::path::Path,
    ) -> impl Fn(E) -> Self + 'a {
        move |e| Self::node(format_args!("{doing} {}: {e}", path.display()))
    }
}

impl fmt::Display for ContainerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
