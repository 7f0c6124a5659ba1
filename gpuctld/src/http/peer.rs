//! The other end of a connection, as the listener saw it: extensions of a request. The listener inserts them; [`super::permission`]
//! reads them.

use crate::pki::NodeIdentity;
use gmodel::node::Role;
use gmodel::{NodeId, UserToken};
use std::net::IpAddr;
use std::sync::Arc;

/// The user at the other end, inserted by the listener as an extension of every request. Requests without one
/// can only join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    pub gid: u32,
    /// Name of the uid; empty when the machine it came from does not know it, or when the request is the node
    /// daemon's own.
    pub user: String,
    /// The machine that forwards the request, by its certificate.
    pub via: Option<(NodeId, Role)>,
    /// That machine's certificate, and the cluster, say that operators may administer from there.
    pub admin: bool,
    /// Came over the controller's own unix socket.
    pub local: bool,
    /// This host's name service has the same name, uid and group; else it knows neither the name nor the uid.
    pub known: bool,
    /// What vouches for the user: the request has the scopes and limits of this token.
    pub token: Option<Arc<UserToken>>,
}

/// The machine at the other end of a connection with a node's certificate, inserted by the listener.
#[derive(Clone, Debug)]
pub struct CertificateHolder {
    pub identity: NodeIdentity,
    pub address: String,
}

/// The address of the machine that forwards a request, as the controller sees it.
#[derive(Clone, Copy, Debug)]
pub struct ForwarderAddress(pub IpAddr);
