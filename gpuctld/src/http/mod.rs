//! The REST API under `/v1/` and `/metrics`, as `gwire::api` describes it: the same for commands and others.
//!
//! Owns routes, who may ask what, filters and the shape of answers. It changes nothing by itself: reading is done
//! on the published view, everything else is a command to the core. Sockets and TLS belong to the listener.

use crate::config::Config;
use gmodel::NodeId;
use gmodel::node::Role;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};

/// Who is at the other end, inserted by the listener as an extension of every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    pub gid: u32,
    /// Name of the uid; `#UID` when the controller's host does not know it.
    pub user: String,
    /// The machine whose daemon forwards the request, by its certificate.
    pub via: Option<(NodeId, Role)>,
    /// Came over the controller's own unix socket.
    pub local: bool,
}
