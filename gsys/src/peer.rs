//! The process at the other end of a unix socket, as the kernel tells (SO_PEERCRED). Nothing a client says about itself counts.

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{getsockopt, sockopt};

/// The process that connected, as it was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

/// Credentials of the peer of a connected unix socket, taken by the kernel at connect (or socketpair) time.
pub fn peer_of(socket: impl AsFd) -> io::Result<Peer> {
    let credentials = getsockopt(&socket, sockopt::PeerCredentials)?;
    Ok(Peer {
        pid: credentials.pid(),
        uid: credentials.uid(),
        gid: credentials.gid(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_of_an_own_socket_pair_is_the_caller() {
        let (one, _other) = UnixStream::pair().expect("socketpair");
        let peer = peer_of(&one).expect("peer credentials");
        assert_eq!(peer.pid, std::process::id() as i32);
        assert_eq!(peer.uid, nix::unistd::geteuid().as_raw());
    }
}
