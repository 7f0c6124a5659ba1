//! Long listings: rows of `/v1` are made into Slurm's records while they come and while the client reads.
//!
//! Looking up groups may be slow, so the records are made on threads that may block; a client that stops reading holds none.

use axum::body::{Body, Bytes};
use gslurm_json::document::list_end;
use gwire::client::ListText;
use http_body_util::BodyExt;
use hyper::body::Frame;
use serde_json::Value;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Pieces of an answer that wait for the client.
const WAITING_PIECES: usize = 2;

/// Makes a record of a row's JSON.
pub(super) trait RowShape: Send + 'static {
    /// # Errors
    /// The row is not of its kind.
    fn put(&mut self, row: &[u8], out: &mut Vec<u8>) -> serde_json::Result<()>;
}

/// What is known of a listing under way.
struct Shaping<S> {
    text: ListText,
    shape: S,
    begun: bool,
}

impl<S: RowShape> Shaping<S> {
    /// The records of the rows that are whole by now.
    fn push(&mut self, piece: &[u8]) -> serde_json::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(piece.len() * 4);
        self.text.push(piece);
        while let Some(row) = self.text.next_row() {
            if self.begun {
                out.push(b',');
            }
            self.begun = true;
            self.shape.put(row, &mut out)?;
        }
        Ok(out)
    }
}

/// The listing `{"KEY":[...],TAIL}` of the rows of another.
pub(super) fn shaped<S: RowShape>(rows: Body, key: &str, tail: &Value, shape: S) -> Body {
    let (to, from) = mpsc::channel(WAITING_PIECES);
    let (head, end) = (format!("{{\"{key}\":["), list_end(tail));
    tokio::spawn(async move {
        let sent = send(rows, head, end, shape, &to).await;
        if let Err(error) = sent {
            tracing::warn!("a listing ended early: {error}");
            let _ = to.send(Err(error)).await; // the client may be gone
        }
    });
    Body::new(Pieces(from))
}

type Piece = Result<Bytes, io::Error>;

async fn send<S: RowShape>(
    mut rows: Body,
    head: String,
    end: String,
    shape: S,
    to: &mpsc::Sender<Piece>,
) -> io::Result<()> {
    let mut shaping = Shaping {
        text: ListText::default(),
        shape,
        begun: false,
    };
    if to.send(Ok(head.into())).await.is_err() {
        return Ok(());
    }
    while let Some(frame) = rows.frame().await {
        let Ok(piece) = frame.map_err(io::Error::other)?.into_data() else {
            continue;
        };
        let made = tokio::task::spawn_blocking(move || {
            let out = shaping.push(&piece);
            (shaping, out)
        });
        let (back, out) = made.await.map_err(io::Error::other)?;
        shaping = back;
        // An error here is the end of the client's connection.
        if to.send(Ok(out?.into())).await.is_err() {
            return Ok(());
        }
    }
    if !shaping.text.is_whole() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let _ = to.send(Ok(end.into())).await; // the client may be gone
    Ok(())
}

/// The body of an answer, from the task that makes it.
struct Pieces(mpsc::Receiver<Piece>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0
            .poll_recv(context)
            .map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
