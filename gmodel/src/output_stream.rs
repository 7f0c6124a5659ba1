//! A job's output on its way to a client: what a node is asked for, and the frames that it answers with. A connection that breaks is
//! made again from the position that the client has. Pure: files and connections are the callers'.
//!
//! ```text
//! frame:  length u32 | kind u8 | body         numbers big-endian; the length counts kind and body
//! F  device u64, inode u64, position u64      a file was opened; its bytes from the position follow
//! D  bytes                                    more of it
//! M                                           there is no such file yet
//! E                                           its end was reached; the last frame
//! R  text                                     it cannot be read; the last frame
//! ```

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The most bytes of one `D` frame.
pub const PIECE_BYTES: usize = 64 << 10;
/// The longest frame, without its length.
const MAX_FRAME_BYTES: usize = 1 + PIECE_BYTES;

/// How far back lines are counted.
const MAX_TAIL_BYTES: u64 = 256 << 20;

/// Tells a file from another one that has its path now. Written `DEVICE.INODE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    pub device: u64,
    pub inode: u64,
}

impl FileIdentity {
    /// No device has this number.
    const SPOOLED: u64 = u64::MAX;

    /// Names the output of an attempt of a job, wherever it is kept.
    pub fn of_attempt(attempt: u32) -> Self {
        Self {
            device: Self::SPOOLED,
            inode: attempt.into(),
        }
    }

    /// Where it names such an output.
    pub fn attempt(self) -> Option<u32> {
        (self.device == Self::SPOOLED)
            .then(|| u32::try_from(self.inode).ok())
            .flatten()
    }
}

/// What of a file is to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputOrder {
    /// Absolute, as [`crate::byte_text`].
    pub path: String,
    /// Of a run whose output is in the spool: the file of its errors.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stderr: bool,
    /// `path` is the spool's file of this attempt, whose name may go while it is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The client has the bytes of this file up to the position. `None`: it has nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<FileIdentity>,
    pub position: u64,
    /// Of a client that has nothing: only so many lines before the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail_lines: Option<u64>,
    /// Goes on at the end of the file, and waits for one that is not there.
    pub follow: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputFrame {
    File {
        file: FileIdentity,
        position: u64,
    },
    Data(Vec<u8>),
    Missing,
    End,
    Refused(String),
    /// From a newer node.
    Unknown,
}

/// Bytes that are no frame: the connection cannot be read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an output frame of {length} bytes and kind {kind}")]
pub struct BadOutputFrame {
    pub length: usize,
    pub kind: u8,
}

impl OutputFrame {
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::File { file, position } => {
                let numbers = [file.device, file.inode, *position];
                frame(b'F', &numbers.map(u64::to_be_bytes).concat())
            }
            Self::Data(bytes) => frame(b'D', bytes),
            Self::Missing => frame(b'M', &[]),
            Self::End => frame(b'E', &[]),
            Self::Refused(text) => frame(b'R', text.as_bytes()),
            Self::Unknown => Vec::new(),
        }
    }

    /// The first frame of `buffer` and its length; `None` while it is not whole.
    ///
    /// # Errors
    /// The bytes are no frame.
    pub fn read(buffer: &[u8]) -> Result<Option<(Self, usize)>, BadOutputFrame> {
        let Some((length, rest)) = buffer.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        let kind = rest.first().copied().unwrap_or(0);
        let bad = BadOutputFrame { length, kind };
        if length == 0 || length > MAX_FRAME_BYTES {
            return Err(bad);
        }
        let Some(body) = rest.get(1..length) else {
            return Ok(None);
        };
        let frame = match kind {
            b'F' => {
                let (numbers, []) = body.as_chunks::<8>() else {
                    return Err(bad);
                };
                let [device, inode, position] = numbers else {
                    return Err(bad);
                };
                Self::File {
                    file: FileIdentity {
                        device: u64::from_be_bytes(*device),
                        inode: u64::from_be_bytes(*inode),
                    },
                    position: u64::from_be_bytes(*position),
                }
            }
            b'D' => Self::Data(body.to_vec()),
            b'M' => Self::Missing,
            b'E' => Self::End,
            b'R' => Self::Refused(String::from_utf8_lossy(body).into_owned()),
            _ => Self::Unknown,
        };
        Ok(Some((frame, 4 + length)))
    }
}

/// Where the last lines of a file of `end` bytes begin. `read_at` fills a piece from a position.
///
/// # Errors
/// Those of `read_at`.
pub fn tail_position<E>(
    end: u64,
    lines: u64,
    mut read_at: impl FnMut(&mut [u8], u64) -> Result<(), E>,
) -> Result<u64, E> {
    let floor = end.saturating_sub(MAX_TAIL_BYTES);
    let (mut at, mut missing) = (end, lines);
    let mut piece = vec![0; PIECE_BYTES];
    if lines == 0 {
        return Ok(end);
    }
    while at > floor {
        let count = (at - floor).min(PIECE_BYTES as u64) as usize;
        read_at(&mut piece[..count], at - count as u64)?;
        for place in (0..count).rev() {
            let position = at - count as u64 + place as u64 + 1;
            // The line end that closes the file begins no line.
            if piece[place] == b'\n' && position < end {
                missing -= 1;
                if missing == 0 {
                    return Ok(position);
                }
            }
        }
        at -= count as u64;
    }
    Ok(floor)
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = (1 + body.len() as u32).to_be_bytes().to_vec();
    bytes.push(kind);
    bytes.extend_from_slice(body);
    bytes
}

impl fmt::Display for FileIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.device, self.inode)
    }
}

/// No `DEVICE.INODE`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a file is named DEVICE.INODE")]
pub struct BadFileIdentity;

impl FromStr for FileIdentity {
    type Err = BadFileIdentity;
    fn from_str(text: &str) -> Result<Self, BadFileIdentity> {
        let (device, inode) = text.split_once('.').ok_or(BadFileIdentity)?;
        let number = |text: &str| text.parse().map_err(|_| BadFileIdentity);
        Ok(Self {
            device: number(device)?,
            inode: number(inode)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_read_back_in_any_pieces_and_a_file_by_its_text() {
        let file = FileIdentity {
            device: 1 << 40,
            inode: u64::MAX,
        };
        let frames = [
            OutputFrame::File { file, position: 7 },
            OutputFrame::Data(vec![0xff; PIECE_BYTES]),
            OutputFrame::Missing,
            OutputFrame::Refused("no".into()),
            OutputFrame::End,
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(OutputFrame::bytes).collect();
        let (mut read, mut at) = (Vec::new(), 0);
        for end in 0..=bytes.len() {
            while let Some((frame, used)) = OutputFrame::read(&bytes[at..end]).unwrap() {
                read.push(frame);
                at += used;
            }
        }
        assert_eq!(read, frames);
        assert_eq!(file.to_string().parse(), Ok(file));
        assert_eq!("7".parse::<FileIdentity>(), Err(BadFileIdentity));
    }

    #[test]
    fn bytes_that_are_no_frame_are_refused() {
        assert!(OutputFrame::read(b"GET / HTTP/1.1").is_err());
        assert!(OutputFrame::read(&[0, 0, 0, 0]).is_err());
        assert!(OutputFrame::read(&[0, 0, 0, 3, b'F', 0, 0]).is_err());
        assert_eq!(
            OutputFrame::read(&[0, 0, 0, 1, b'?']),
            Ok(Some((OutputFrame::Unknown, 5))),
            "newer"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_refused_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some((_, used))) = OutputFrame::read(&bytes) {
                prop_assert!(used <= bytes.len());
            }
        }
    }
}
