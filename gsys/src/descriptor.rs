//! Open files that one process hands to another over a unix socket, with a message (SCM_RIGHTS of unix(7)). Messages keep
//! their bounds on a socket of [`pair`]. Decides nothing about files or receivers.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
    sendmsg, socketpair,
};

/// Most open files in one message.
pub const MAX_DESCRIPTORS: usize = 4;

/// A message as it came: its length in the caller's buffer, and its open files, which close on exec.
#[derive(Debug)]
pub struct ReceivedMessage {
    /// 0 when the other end is gone.
    pub length: usize,
    pub descriptors: Vec<OwnedFd>,
}

/// Two connected sockets that carry whole messages (SOCK_SEQPACKET), and close on exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?)
}

/// Sends a message that is not empty, with copies of these open files. EPIPE when the other end is gone.
pub fn send(socket: impl AsFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let carried = if raw.is_empty() {
        &rights[..0]
    } else {
        &rights[..]
    };
    sendmsg::<()>(
        socket.as_fd().as_raw_fd(),
        &[IoSlice::new(message)],
        carried,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(())
}

/// Waits for the next message. One that is longer than the buffer, or brings more open files than are taken, is refused with
/// `InvalidData`, and what came with it is closed.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<ReceivedMessage> {
    let mut room = nix::cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let mut slices = [IoSliceMut::new(buffer)];
    let received = recvmsg::<()>(
        socket.as_fd().as_raw_fd(),
        &mut slices,
        Some(&mut room),
        MsgFlags::MSG_CMSG_CLOEXEC,
    );
    let message = match received {
        // The receiver went away without having read everything.
        Err(nix::Error::ECONNRESET) => {
            return Ok(ReceivedMessage {
                length: 0,
                descriptors: Vec::new(),
            });
        }
        message => message?,
    };
    let cut = message
        .flags
        .intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
    let mut descriptors = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = part {
            // SAFETY: the kernel has just made these descriptors for this process, and nothing else names one.
            descriptors.extend(
                raw.into_iter()
                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
            );
        }
    }
    match cut {
        true => Err(io::ErrorKind::InvalidData.into()),
        false => Ok(ReceivedMessage {
            length: message.bytes,
            descriptors,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    #[test]
    fn an_open_file_goes_with_its_message() {
        let (here, there) = pair().expect("pair");
        let mut file = tempfile();
        file.write_all(b"words").expect("write");
        send(&here, b"take", &[file.as_fd()]).expect("send");
        drop(file);
        send(&here, b"nothing with it", &[]).expect("send");
        let mut buffer = [0; 64];
        let first = receive(&there, &mut buffer).expect("receive");
        assert_eq!(
            (&buffer[..first.length], first.descriptors.len()),
            (&b"take"[..], 1)
        );
        let mut copy = File::from(first.descriptors.into_iter().next().expect("one"));
        let mut text = String::new();
        copy.rewind()
            .and_then(|()| copy.read_to_string(&mut text))
            .expect("read");
        assert_eq!(text, "words");
        let second = receive(&there, &mut buffer).expect("receive");
        assert_eq!((second.length, second.descriptors.len()), (15, 0));
        drop(here);
        assert_eq!(receive(&there, &mut buffer).expect("end").length, 0);
    }

    #[test]
    fn what_is_too_long_is_refused_and_a_socket_that_is_gone_says_so() {
        let (here, there) = pair().expect("pair");
        send(&here, &[1; 65], &[]).expect("send");
        assert_eq!(
            receive(&there, &mut [0; 64]).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        drop(there);
        assert_eq!(
            send(&here, b"x", &[]).unwrap_err().raw_os_error(),
            Some(libc::EPIPE)
        );
    }

    fn tempfile() -> File {
        // SAFETY: a static name; the descriptor is new and nothing else names it.
        unsafe { File::from_raw_fd(libc::memfd_create(c"words".as_ptr(), libc::MFD_CLOEXEC)) }
    }
}
