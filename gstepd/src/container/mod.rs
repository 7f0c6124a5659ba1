//! Containers of jobs and steps: what a task does, as the user, between its start by the supervisor and the user's program.
//!
//! The supervisor starts each task of a container as `gstepd --container ORDER -- COMMAND`: in the job's cgroup and fence, with nothing of
//! root's. The first task of a container brings the image in, and has a runtime make the container. Every task joins its namespaces and
//! becomes the program.
//! The image of a whole job is brought in before the job starts (`pull`). So whatever an image holds is never touched by root, and whatever a runtime gets wrong is the user's alone.
//!
//! ```text
//! SPOOL/images/UID/   0700, the user's    images that are pulled and unpacked
//! SPOOL/boxes/17-1/   0700, the user's    the containers of one run: step-0, batch, name-NAME; pulled.json
//! ```
//! Source: pyxis for what the options mean; the OCI runtime specification.

mod bundle;
mod cache;
mod foreign;
mod gpus;
mod image;
mod join;
mod news;
mod order;
mod program;
mod pull;
mod set_up;
mod sif;
mod store;
mod yaml;

pub use join::{NO_CONTAINER, run};
pub use news::{ContainerNews, note_image};
pub use order::{contain, contain_batch, step_order, user_dir};
pub use pull::{pull, start as start_pull};
pub use set_up::create;

use gmodel::image_pull::ContainerFault;
use std::fmt;

/// Why there is no container. The text is for the user.
#[derive(Debug)]
pub struct ContainerError {
    pub cause: ContainerFault,
    pub text: String,
}

impl ContainerError {
    fn new(cause: ContainerFault, text: impl fmt::Display) -> Self {
        let text = text.to_string();
        Self { cause, text }
    }

    pub fn user(text: impl fmt::Display) -> Self {
        Self::new(ContainerFault::User, text)
    }

    pub fn registry(text: impl fmt::Display) -> Self {
        Self::new(ContainerFault::Registry, text)
    }

    pub fn node(text: impl fmt::Display) -> Self {
        Self::new(ContainerFault::Node, text)
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
