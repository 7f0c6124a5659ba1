//! What the supervisor and the PMIx server of a step say to each other, in frames: a length of four bytes, a letter, the rest. The server
//! is the user's own process, so anything may come from it. Pure.

use gmodel::parallel::MAX_EXCHANGE_PIECE_BYTES;
use serde::{Deserialize, Serialize};

/// The order with the names of all nodes; every other frame is far shorter.
pub const MAX_FRAME_BYTES: usize = 4 << 20;

/// The step, for its server on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmixOrder {
    pub name: String,
    /// The user's alone.
    pub dir: String,
    /// Files of the ranks go there too.
    pub has_rank_dir: bool,
    pub uid: u32,
    pub gid: u32,
    pub nodes: Vec<String>,
    pub node: u32,
    /// Which ranks are where, as `process_mapping` says it.
    pub mapping: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PmixMessage {
    /// To the server, first of all.
    Start(PmixOrder),
    /// The variables of the task at this position, with a NUL behind each.
    Variables { local: u32, bytes: Vec<u8> },
    /// The task has ended: to the server. It answers the same once it has said what follows from it.
    Left { local: u32 },
    /// A piece of a fence: to the server those of other nodes.
    Fence { is_last: bool, piece: Vec<u8> },
    /// To, or from, the server of another node.
    Direct { node: u32, bytes: Vec<u8> },
    /// On the stderr of the task.
    Tell { local: u32, text: String },
    /// The step is to end because of the task.
    Abort { local: u32, text: String },
}

impl PmixMessage {
    pub fn frame(&self) -> Vec<u8> {
        let numbered = |number: &u32, rest: &[u8]| [&number.to_be_bytes(), rest].concat();
        let (kind, body) = match self {
            Self::Start(order) => (b'S', serde_json::to_vec(order).unwrap_or_default()),
            Self::Variables { local, bytes } => (b'V', numbered(local, bytes)),
            Self::Left { local } => (b'L', numbered(local, &[])),
            Self::Fence { is_last, piece } => (b'F', [&[u8::from(*is_last)], &piece[..]].concat()),
            Self::Direct { node, bytes } => (b'D', numbered(node, bytes)),
            Self::Tell { local, text } => (b'T', numbered(local, text.as_bytes())),
            Self::Abort { local, text } => (b'A', numbered(local, text.as_bytes())),
        };
        let mut frame = ((body.len() + 1) as u32).to_be_bytes().to_vec();
        frame.push(kind);
        frame.extend(body);
        frame
    }

    /// The first message of `buffer` and its length; `None` while it is not whole.
    ///
    /// # Errors
    /// Bytes that are none.
    pub fn read(buffer: &[u8]) -> Result<Option<(Self, usize)>, &'static str> {
        let Some((length, rest)) = buffer.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length == 0 || length > MAX_FRAME_BYTES {
            return Err("a message of a wrong length");
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = Self::of_body(body[0], &body[1..]).ok_or("a message of no known form")?;
        Ok(Some((message, 4 + length)))
    }

    fn of_body(kind: u8, body: &[u8]) -> Option<Self> {
        if kind == b'S' {
            return Some(Self::Start(serde_json::from_slice(body).ok()?));
        }
        if kind == b'F' {
            let (is_last, piece) = body.split_first()?;
            let piece = bounded(piece)?;
            return Some(Self::Fence {
                is_last: *is_last != 0,
                piece,
            });
        }
        let (number, rest) = body.split_first_chunk::<4>()?;
        let number = u32::from_be_bytes(*number);
        let text = || bounded(rest).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Some(match kind {
            b'V' => Self::Variables {
                local: number,
                bytes: bounded(rest)?,
            },
            b'L' => Self::Left { local: number },
            b'D' => Self::Direct {
                node: number,
                bytes: bounded(rest)?,
            },
            b'T' => Self::Tell {
                local: number,
                text: text()?,
            },
            b'A' => Self::Abort {
                local: number,
                text: text()?,
            },
            _ => return None,
        })
    }
}

fn bounded(bytes: &[u8]) -> Option<Vec<u8>> {
    (bytes.len() <= MAX_EXCHANGE_PIECE_BYTES).then(|| bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_read_back_from_a_stream_in_any_pieces() {
        let order = PmixOrder {
            name: "17.0".into(),
            dir: "/d".into(),
            has_rank_dir: true,
            uid: 5,
            gid: 6,
            nodes: vec!["n1".into(), "n2".into()],
            node: 1,
            mapping: "(vector,(0,2,2))".into(),
        };
        for message in [
            PmixMessage::Start(order),
            PmixMessage::Variables {
                local: 1,
                bytes: b"A=b\0".to_vec(),
            },
            PmixMessage::Left { local: 2 },
            PmixMessage::Fence {
                is_last: true,
                piece: vec![0; 9],
            },
            PmixMessage::Direct {
                node: 1,
                bytes: vec![7],
            },
            PmixMessage::Tell {
                local: 0,
                text: "no".into(),
            },
            PmixMessage::Abort {
                local: 3,
                text: "end".into(),
            },
        ] {
            let frame = message.frame();
            for cut in 0..frame.len() {
                assert_eq!(PmixMessage::read(&frame[..cut]), Ok(None));
            }
            assert_eq!(PmixMessage::read(&frame), Ok(Some((message, frame.len()))));
        }
        let long = PmixMessage::Direct {
            node: 0,
            bytes: vec![0; MAX_EXCHANGE_PIECE_BYTES + 1],
        };
        assert!(PmixMessage::read(&long.frame()).is_err());
        assert!(PmixMessage::read(&[0, 0, 0, 0]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_refused_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(Some((_, used))) = PmixMessage::read(&bytes) {
                prop_assert!(used > 4 && used <= bytes.len());
            }
        }
    }
}
