//! Frames between gstepd and grun: what the tasks of a step write and how they end, and what they read. Pure.

use crate::exit_code::ExitCode;
use crate::run::Usage;
use crate::supervise::TerminalSize;

/// gstepd to grun, over the one TLS connection that gstepd opens per step and node: `Hello`, then what the tasks do.
/// Over a stream the same without `Hello`.
/// When grun closes the connection, gstepd ends the step's tasks; when the last task has ended, gstepd closes it.
///
/// ```text
/// frame:  length u32 | kind u8 | body         numbers big-endian; the length counts kind and body
/// H  step u32, node index u32, key            S  rank u32, pid u32
/// O  rank u32, bytes of its stdout            E  rank u32, bytes of its stderr
/// X  rank u32, code u8, signal u8, text       R  text
/// T  bytes of input taken u32                 M  where the ranks meet: HOST:PORT   (of the first node; grun tells all nodes)
/// L  ranks, u32 each
/// U  CPU user u64, system u64 (microseconds), peak of memory u64 (bytes), OOM kills u64, text
/// K  signal u8                                (grun to gstepd)
/// I  rank u32, bytes for its stdin            (grun to gstepd; no bytes: its end; rank 2^32-1: every task)
/// W  rows u16, columns u16                    (grun to gstepd)
/// M  HOST:PORT                                (grun to gstepd)
/// P  is last u8, keys and values of PMI       (both ways: what is new on a node at a fence, and on all other nodes)
/// A  rank u32, why it ends the step
/// N  text
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutput {
    /// The first frame. A peer that does not say the key is none of ours.
    Hello {
        step: u32,
        node_index: u32,
        key: String,
    },
    Started {
        rank: u32,
        pid: u32,
    },
    Output {
        rank: u32,
        stream: StepStream,
        bytes: Vec<u8>,
    },
    /// All output of the task came before. The text says why it could not be started, or was killed; else it is empty.
    Ended {
        rank: u32,
        exit: ExitCode,
        text: String,
    },
    /// No task of the step was started here.
    Refused {
        text: String,
    },
    /// So much of the input has reached every task that it is for, or will never: as much more may be sent.
    Taken {
        bytes: u32,
    },
    /// Where the ranks of all nodes meet, by the first node; empty: it has no port for them.
    Meeting {
        address: String,
    },
    /// The tasks of this node; the first frame to a client that only watches.
    Layout {
        ranks: Vec<u32>,
    },
    /// A piece of what the ranks here have put since the last fence, and wait there.
    Fence {
        is_last: bool,
        piece: Vec<u8>,
    },
    /// For the server of the ranks of another node of the step, at this position.
    Direct {
        node: u32,
        bytes: Vec<u8>,
    },
    /// The step cannot go on because of this rank.
    Aborted {
        rank: u32,
        text: String,
    },
    /// What the node does before the tasks become their programs: a line for the client's user.
    News {
        text: String,
    },
    /// Nothing of the step is left here: what all of it used together. Where the kernel killed some of it for want of memory
    /// the text says so. Not sent by older releases, nor without a measurement.
    Used {
        usage: Usage,
        text: String,
    },
    /// From a newer gstepd.
    Unknown,
}

/// grun to gstepd, in frames of the same form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepInput {
    /// To every process of the step's tasks.
    Signal {
        signal: u8,
    },
    /// More input, for all tasks or for one task while the rest get none; no bytes are its end.
    Stdin {
        rank: Option<u32>,
        bytes: Vec<u8>,
    },
    /// The client's terminal has another size.
    Resize(TerminalSize),
    /// What the first node said as [`StepOutput::Meeting`].
    Meeting {
        address: String,
    },
    /// A piece of what the ranks of the other nodes have put; the last one opens the fence.
    Fence {
        is_last: bool,
        piece: Vec<u8>,
    },
    /// From the server of the ranks of another node.
    Direct {
        node: u32,
        bytes: Vec<u8>,
    },
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepStream {
    Stdout,
    Stderr,
}

/// Longest frame either side takes, without its length: output is cut into pieces far below this.
pub const MAX_STEP_FRAME_BYTES: usize = 256 << 10;

/// Bytes of input that may be on their way to the tasks of one node, not yet told as taken.
pub const STEP_INPUT_WINDOW_BYTES: usize = 256 << 10;
/// In place of a rank: all of them.
const EVERY_RANK: u32 = u32::MAX;

/// Bytes that are no frame: the connection cannot be read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a step frame of {length} bytes and kind {kind}: frames are 1 to {MAX_STEP_FRAME_BYTES} bytes of a known form"
)]
pub struct BadFrame {
    pub length: usize,
    pub kind: u8,
}

impl StepOutput {
    pub fn frame(&self) -> Vec<u8> {
        let number = |n: &u32| n.to_be_bytes();
        match self {
            Self::Hello {
                step,
                node_index,
                key,
            } => frame(b'H', &[&number(step), &number(node_index), key.as_bytes()]),
            Self::Started { rank, pid } => frame(b'S', &[&number(rank), &number(pid)]),
            Self::Output {
                rank,
                stream: StepStream::Stdout,
                bytes,
            } => frame(b'O', &[&number(rank), bytes]),
            Self::Output {
                rank,
                stream: StepStream::Stderr,
                bytes,
            } => frame(b'E', &[&number(rank), bytes]),
            Self::Ended { rank, exit, text } => frame(
                b'X',
                &[&number(rank), &[exit.code, exit.signal], text.as_bytes()],
            ),
            Self::Refused { text } => frame(b'R', &[text.as_bytes()]),
            Self::Taken { bytes } => frame(b'T', &[&number(bytes)]),
            Self::Meeting { address } => frame(b'M', &[address.as_bytes()]),
            Self::Layout { ranks } => {
                let ranks: Vec<u8> = ranks.iter().flat_map(|rank| rank.to_be_bytes()).collect();
                frame(b'L', &[&ranks])
            }
            Self::Fence { is_last, piece } => frame(b'P', &[&[u8::from(*is_last)], piece]),
            Self::Direct { node, bytes } => frame(b'D', &[&node.to_be_bytes(), bytes]),
            Self::Aborted { rank, text } => frame(b'A', &[&number(rank), text.as_bytes()]),
            Self::News { text } => frame(b'N', &[text.as_bytes()]),
            Self::Used { usage, text } => {
                let numbers = [
                    usage.cpu_user_micros,
                    usage.cpu_system_micros,
                    usage.peak_memory_bytes,
                    usage.oom_kills,
                ];
                frame(
                    b'U',
                    &[&numbers.map(u64::to_be_bytes).concat(), text.as_bytes()],
                )
            }
            Self::Unknown => frame(0, &[]),
        }
    }

    /// The first frame of `buffer` and its length with the header; `None` while it is not whole.
    pub fn read(buffer: &[u8]) -> Result<Option<(Self, usize)>, BadFrame> {
        read_first(buffer, Self::of_frame)
    }

    fn of_frame(kind: u8, body: &[u8]) -> Option<Self> {
        Some(match kind {
            b'R' => Self::Refused {
                text: text_of(body),
            },
            b'N' => Self::News {
                text: text_of(body),
            },
            b'M' => Self::Meeting {
                address: text_of(body),
            },
            b'P' => body.split_first().map(|(is_last, piece)| Self::Fence {
                is_last: *is_last != 0,
                piece: piece.to_vec(),
            })?,
            b'D' => split_number(body).map(|(node, bytes)| Self::Direct {
                node,
                bytes: bytes.to_vec(),
            })?,
            b'U' => Self::used(body)?,
            b'L' => match body.as_chunks() {
                (ranks, []) => Self::Layout {
                    ranks: ranks.iter().map(|rank| u32::from_be_bytes(*rank)).collect(),
                },
                _ => return None,
            },
            b'H' | b'A' | b'S' | b'O' | b'E' | b'X' | b'T' => Self::from_body(kind, body)?,
            _ => Self::Unknown,
        })
    }

    fn used(body: &[u8]) -> Option<Self> {
        let (numbers, text) = body.split_first_chunk::<32>()?;
        let mut numbers = numbers.chunks_exact(8).map(|bytes| {
            bytes
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte))
        });
        let mut next = || numbers.next();
        let usage = Usage {
            cpu_user_micros: next()?,
            cpu_system_micros: next()?,
            peak_memory_bytes: next()?,
            oom_kills: next()?,
            ..Usage::default()
        };
        Some(Self::Used {
            usage,
            text: text_of(text),
        })
    }

    fn from_body(kind: u8, body: &[u8]) -> Option<Self> {
        let (first, rest) = split_number(body)?;
        Some(match kind {
            b'H' => {
                let (node_index, key) = split_number(rest)?;
                Self::Hello {
                    step: first,
                    node_index,
                    key: text_of(key),
                }
            }
            b'T' => Self::Taken { bytes: first },
            b'A' => Self::Aborted {
                rank: first,
                text: text_of(rest),
            },
            b'S' => Self::Started {
                rank: first,
                pid: split_number(rest)?.0,
            },
            b'X' => {
                let ([code, signal], text) = rest.split_first_chunk::<2>()?;
                Self::Ended {
                    rank: first,
                    exit: ExitCode {
                        code: *code,
                        signal: *signal,
                    },
                    text: text_of(text),
                }
            }
            b'E' => Self::Output {
                rank: first,
                stream: StepStream::Stderr,
                bytes: rest.to_vec(),
            },
            _ => Self::Output {
                rank: first,
                stream: StepStream::Stdout,
                bytes: rest.to_vec(),
            },
        })
    }
}

impl StepInput {
    pub fn frame(&self) -> Vec<u8> {
        match self {
            Self::Signal { signal } => frame(b'K', &[&[*signal]]),
            Self::Stdin { rank, bytes } => {
                frame(b'I', &[&rank.unwrap_or(EVERY_RANK).to_be_bytes(), bytes])
            }
            Self::Resize(TerminalSize { rows, columns }) => {
                frame(b'W', &[&rows.to_be_bytes(), &columns.to_be_bytes()])
            }
            Self::Meeting { address } => frame(b'M', &[address.as_bytes()]),
            Self::Fence { is_last, piece } => frame(b'P', &[&[u8::from(*is_last)], piece]),
            Self::Direct { node, bytes } => frame(b'D', &[&node.to_be_bytes(), bytes]),
            Self::Unknown => frame(0, &[]),
        }
    }

    /// As [`StepOutput::read`].
    pub fn read(buffer: &[u8]) -> Result<Option<(Self, usize)>, BadFrame> {
        read_first(buffer, Self::of_frame)
    }

    fn of_frame(kind: u8, body: &[u8]) -> Option<Self> {
        Some(match (kind, body) {
            (b'K', [signal]) => Self::Signal { signal: *signal },
            (b'W', [a, b, c, d]) => Self::Resize(TerminalSize {
                rows: u16::from_be_bytes([*a, *b]),
                columns: u16::from_be_bytes([*c, *d]),
            }),
            (b'K' | b'W', _) => return None,
            (b'M', _) => Self::Meeting {
                address: text_of(body),
            },
            (b'P', [is_last, piece @ ..]) => Self::Fence {
                is_last: *is_last != 0,
                piece: piece.to_vec(),
            },
            (b'P', _) => return None,
            (b'D', _) => {
                let (node, bytes) = split_number(body)?;
                Self::Direct {
                    node,
                    bytes: bytes.to_vec(),
                }
            }
            (b'I', _) => {
                let (rank, bytes) = split_number(body)?;
                Self::Stdin {
                    rank: Some(rank).filter(|rank| *rank != EVERY_RANK),
                    bytes: bytes.to_vec(),
                }
            }
            _ => Self::Unknown,
        })
    }
}

/// The first frame of `buffer`; `of_frame` makes of its kind and body what it means, or has no meaning for them.
fn read_first<T>(
    buffer: &[u8],
    of_frame: impl Fn(u8, &[u8]) -> Option<T>,
) -> Result<Option<(T, usize)>, BadFrame> {
    let Some((kind, body, used)) = split_frame(buffer)? else {
        return Ok(None);
    };
    let length = body.len() + 1;
    let meaning = of_frame(kind, body).ok_or(BadFrame { length, kind })?;
    Ok(Some((meaning, used)))
}

fn frame(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length = 1 + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut bytes = Vec::with_capacity(4 + length);
    bytes.extend_from_slice(&(length as u32).to_be_bytes());
    bytes.push(kind);
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

/// A frame in a buffer: kind, body, and its length with the header.
type Frame<'a> = (u8, &'a [u8], usize);

/// The first frame, once it is whole; a frame that is too long is refused by its header.
fn split_frame(buffer: &[u8]) -> Result<Option<Frame<'_>>, BadFrame> {
    let Some((length, rest)) = split_number(buffer) else {
        return Ok(None);
    };
    let (length, kind) = (length as usize, rest.first().copied().unwrap_or(0));
    if length == 0 || length > MAX_STEP_FRAME_BYTES {
        return Err(BadFrame { length, kind });
    }
    Ok(rest.get(1..length).map(|body| (kind, body, 4 + length)))
}

fn split_number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*number), rest))
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> Vec<StepOutput> {
        vec![
            StepOutput::Hello {
                step: 3,
                node_index: 1,
                key: "secret".into(),
            },
            StepOutput::Started {
                rank: 2,
                pid: 4_000_000,
            },
            StepOutput::Output {
                rank: 2,
                stream: StepStream::Stdout,
                bytes: b"a\n\0\xff".to_vec(),
            },
            StepOutput::Output {
                rank: 0,
                stream: StepStream::Stderr,
                bytes: Vec::new(),
            },
            StepOutput::Ended {
                rank: 2,
                exit: ExitCode::killed(9),
                text: String::new(),
            },
            StepOutput::Ended {
                rank: 1,
                exit: ExitCode::exited(127),
                text: "program x: not found".into(),
            },
            StepOutput::Refused {
                text: "ended".into(),
            },
            StepOutput::Taken { bytes: 70_000 },
            StepOutput::Meeting {
                address: "node1:28100".into(),
            },
            StepOutput::Layout {
                ranks: vec![0, 7, 65_535],
            },
            StepOutput::Direct {
                node: 1,
                bytes: b"q".to_vec(),
            },
            StepOutput::Fence {
                is_last: true,
                piece: b"\0\xff".to_vec(),
            },
            StepOutput::Aborted {
                rank: 3,
                text: "left".into(),
            },
            StepOutput::Used {
                usage: Usage {
                    cpu_user_micros: 1 << 40,
                    cpu_system_micros: 7,
                    peak_memory_bytes: u64::MAX,
                    oom_kills: 1,
                    ..Usage::default()
                },
                text: "killed".into(),
            },
        ]
    }

    #[test]
    fn frames_read_back_from_a_stream_in_any_pieces() {
        let stream: Vec<u8> = frames().iter().flat_map(StepOutput::frame).collect();
        let mut read = Vec::new();
        let mut at = 0;
        for end in 0..=stream.len() {
            while let Some((output, used)) = StepOutput::read(&stream[at..end]).unwrap() {
                read.push(output);
                at += used;
            }
        }
        assert_eq!(read, frames());
        assert_eq!(at, stream.len());
        let signal = StepInput::Signal { signal: 15 };
        assert_eq!(StepInput::read(&signal.frame()), Ok(Some((signal, 6))));
        let size = TerminalSize {
            rows: 50,
            columns: 300,
        };
        let text = b"text\0\xff".to_vec();
        for input in [
            StepInput::Stdin {
                rank: None,
                bytes: text,
            },
            StepInput::Stdin {
                rank: Some(7),
                bytes: Vec::new(),
            },
            StepInput::Resize(size),
            StepInput::Direct {
                node: 0,
                bytes: Vec::new(),
            },
            StepInput::Fence {
                is_last: false,
                piece: b"a=b".to_vec(),
            },
        ] {
            let frame = input.frame();
            assert_eq!(StepInput::read(&frame), Ok(Some((input, frame.len()))));
        }
    }

    #[test]
    fn a_length_that_no_frame_has_is_refused_before_it_arrives() {
        assert_eq!(
            StepOutput::read(&[0, 0, 0, 0]),
            Err(BadFrame { length: 0, kind: 0 })
        );
        let long = (MAX_STEP_FRAME_BYTES as u32 + 1).to_be_bytes();
        assert!(StepOutput::read(&long).is_err() && StepInput::read(&long).is_err());
        assert!(
            StepOutput::read(&[0, 0, 0, 3, b'X', 0, 0]).is_err(),
            "too short for its kind"
        );
        assert!(StepOutput::read(&[0, 0, 0, 3, b'U', 0, 0]).is_err());
        assert_eq!(
            StepOutput::read(&[0, 0, 0, 2, b'?', 9]),
            Ok(Some((StepOutput::Unknown, 6))),
            "newer"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_refused_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some((_, used))) = StepOutput::read(&bytes) {
                prop_assert!(used <= bytes.len());
            }
            let _ = StepInput::read(&bytes);
        }
    }
}
