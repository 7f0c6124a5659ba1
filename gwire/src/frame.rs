//! Length-prefixed JSON frames: a big-endian u32 length, then one JSON object, for the node protocol.
//!
//! Owns the bound on what a peer may make us keep. Never allocates what a length announces: memory grows with the
//! bytes that came.

use crate::node_protocol::MAX_FRAME_BYTES;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes read at once, and what is kept between frames.
const CHUNK_BYTES: usize = 16 << 10;
const HEADER_BYTES: usize = 4;

/// Reads frames. [`FrameReader::next`] may be dropped half-way (in a `select!`) and called again: no byte is lost.
#[derive(Debug)]
pub struct FrameReader<R> {
    source: R,
    /// What came and was not given out yet, from the start of a frame.
    buffer: Vec<u8>,
    max_bytes: u32,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader that accepts frames of at most [`MAX_FRAME_BYTES`].
    pub fn new(source: R) -> Self {
        Self::with_limit(source, MAX_FRAME_BYTES)
    }

    /// A reader with a bound of its own, bytes.
    pub fn with_limit(source: R, max_bytes: u32) -> Self {
        Self {
            source,
            buffer: Vec::new(),
            max_bytes,
        }
    }

    /// The next frame, or `None` when the peer ended the stream between two frames.
    ///
    /// # Errors
    /// After any error the stream cannot be read on: the connection must be closed.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        loop {
            if let Some(end) = self.whole_frame()? {
                let frame = serde_json::from_slice(&self.buffer[HEADER_BYTES..end])
                    .map_err(FrameError::Json);
                self.buffer.drain(..end);
                if self.buffer.len() <= CHUNK_BYTES {
                    self.buffer.shrink_to(CHUNK_BYTES);
                }
                return frame.map(Some);
            }
            self.buffer.reserve(CHUNK_BYTES);
            if (&mut self.source)
                .take(CHUNK_BYTES as u64)
                .read_buf(&mut self.buffer)
                .await?
                == 0
            {
                return match self.buffer.len() {
                    0 => Ok(None),
                    had => Err(FrameError::Cut { had }),
                };
            }
        }
    }

    /// End of the first frame in the buffer once all of it is there.
    fn whole_frame(&self) -> Result<Option<usize>, FrameError> {
        let Some(header) = self.buffer.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let announced = u32::from_be_bytes(*header);
        if announced > self.max_bytes {
            return Err(FrameError::TooLarge {
                announced,
                max_bytes: self.max_bytes,
            });
        }
        let end = HEADER_BYTES + announced as usize;
        Ok((self.buffer.len() >= end).then_some(end))
    }
}

/// One frame as bytes, for a writer that batches.
///
/// # Errors
/// [`FrameError::TooLarge`] when the peer would refuse it.
pub fn encode<T: Serialize>(frame: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; HEADER_BYTES];
    serde_json::to_writer(&mut bytes, frame).map_err(FrameError::Json)?;
    let length = u32::try_from(bytes.len() - HEADER_BYTES).unwrap_or(u32::MAX);
    if length > MAX_FRAME_BYTES {
        return Err(FrameError::TooLarge {
            announced: length,
            max_bytes: MAX_FRAME_BYTES,
        });
    }
    bytes[..HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(bytes)
}

/// Sends one frame in one write and flushes it.
///
/// # Errors
/// As [`encode`], and those of the stream.
pub async fn write<W: AsyncWrite + Unpin, T: Serialize>(
    sink: &mut W,
    frame: &T,
) -> Result<(), FrameError> {
    sink.write_all(&encode(frame)?).await?;
    Ok(sink.flush().await?)
}

/// Why a stream of frames ends.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {announced} bytes was announced; the largest accepted is {max_bytes}")]
    TooLarge { announced: u32, max_bytes: u32 },
    #[error("the connection ended inside a frame, after {had} bytes of it")]
    Cut { had: usize },
    #[error("a frame is not the JSON expected")]
    Json(#[source] serde_json::Error),
    #[error("the connection failed")]
    Io(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_protocol::{Hello, ToController, ToNode};
    use proptest::prelude::*;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(future)
    }

    /// Gives at most `step` bytes a read, as a slow network would.
    struct Trickle<'a>(&'a [u8], usize);

    impl AsyncRead for Trickle<'_> {
        fn poll_read(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            buf: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            let n = self.1.min(self.0.len()).min(buf.remaining());
            let (now, later) = self.0.split_at(n);
            buf.put_slice(now);
            self.0 = later;
            std::task::Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_they_were_cut() {
        let hello = ToController::Hello(Hello {
            release: "0.1.0".into(),
            ..Hello::default()
        });
        let bytes = [
            encode(&hello).unwrap(),
            encode(&ToController::Ping).unwrap(),
        ]
        .concat();
        for step in [1, 3, bytes.len()] {
            block_on(async {
                let mut reader = FrameReader::new(Trickle(&bytes, step));
                assert_eq!(reader.next().await.unwrap(), Some(hello.clone()));
                assert_eq!(reader.next().await.unwrap(), Some(ToController::Ping));
                assert!(reader.next::<ToController>().await.unwrap().is_none());
            });
        }
    }

    #[test]
    fn an_announced_length_is_not_allocated() {
        block_on(async {
            let announced = (MAX_FRAME_BYTES).to_be_bytes();
            let mut reader = FrameReader::new(&announced[..]);
            assert!(matches!(
                reader.next::<ToNode>().await,
                Err(FrameError::Cut { had: 4 })
            ));
            assert!(
                reader.buffer.capacity() <= 4 * CHUNK_BYTES,
                "{} bytes kept",
                reader.buffer.capacity()
            );
        });
    }

    #[test]
    fn an_oversized_frame_is_refused_before_its_body_is_read() {
        block_on(async {
            let bytes = (MAX_FRAME_BYTES + 1).to_be_bytes();
            let error = FrameReader::new(&bytes[..])
                .next::<ToNode>()
                .await
                .unwrap_err();
            assert_eq!(
                error.to_string(),
                "a frame of 16777217 bytes was announced; the largest accepted is 16777216"
            );
        });
    }

    #[test]
    fn a_dropped_read_loses_nothing() {
        block_on(async {
            let (mut near, far) = tokio::io::duplex(64);
            let mut reader = FrameReader::new(far);
            let bytes = encode(&ToNode::Ping).unwrap();
            near.write_all(&bytes[..5]).await.unwrap();
            tokio::select! {
                biased;
                _ = reader.next::<ToNode>() => panic!("half a frame was given out"),
                () = tokio::task::yield_now() => {}
            }
            near.write_all(&bytes[5..]).await.unwrap();
            assert_eq!(reader.next::<ToNode>().await.unwrap(), Some(ToNode::Ping));
        });
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_read_and_never_kept(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            block_on(async {
                let mut reader = FrameReader::with_limit(&bytes[..], 2048);
                while let Ok(Some(_)) = reader.next::<ToNode>().await {}
                prop_assert!(reader.buffer.capacity() <= 4 * CHUNK_BYTES);
                Ok(())
            })?;
        }

        #[test]
        fn framed_garbage_is_no_frame(body in "[^{]{0,200}") {
            let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
            bytes.extend(body.as_bytes());
            let read = block_on(async { FrameReader::new(&bytes[..]).next::<ToNode>().await });
            prop_assert!(matches!(read, Err(FrameError::Json(_))));
        }
    }
}
