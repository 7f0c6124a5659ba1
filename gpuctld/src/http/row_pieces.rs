//! An answer on its way, made piece by piece while the client reads.
//!
//! A client that stops reading costs no thread and no lock of the database: what is kept is what the next piece is made of.

use crate::http::error::ApiError;
use axum::body::Bytes;
use hyper::body::Frame;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::task::JoinHandle;

/// What is still to come of an answer.
pub(crate) trait RowPieces: Send + 'static {
    /// The next piece; None behind the last.
    fn next_piece(&mut self) -> impl Future<Output = Result<Option<Bytes>, ApiError>> + Send;
}

type NextPiece<P> = (P, Result<Option<Bytes>, ApiError>);

/// The body of the answer. The next piece is made while one is sent.
pub(crate) struct RowBody<P> {
    first: Option<Bytes>,
    next: Option<JoinHandle<NextPiece<P>>>,
}

impl<P: RowPieces> RowBody<P> {
    /// With its first piece, so that what goes wrong at once is an answer of its own.
    ///
    /// # Errors
    /// The database does not answer.
    pub(crate) async fn begin(mut pieces: P) -> Result<Self, ApiError> {
        let first = pieces.next_piece().await?;
        Ok(Self {
            first,
            next: Some(make_next(pieces)),
        })
    }
}

fn make_next<P: RowPieces>(mut pieces: P) -> JoinHandle<NextPiece<P>> {
    tokio::spawn(async move {
        let piece = pieces.next_piece().await;
        (pieces, piece)
    })
}

impl<P: RowPieces> hyper::body::Body for RowBody<P> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(next) = &mut self.next else {
            return Poll::Ready(None);
        };
        let made = ready!(Pin::new(next).poll(context));
        self.next = None;
        Poll::Ready(match made {
            Ok((pieces, Ok(Some(piece)))) => {
                self.next = Some(make_next(pieces));
                Some(Ok(Frame::data(piece)))
            }
            Ok((_, Ok(None))) => None,
            // The client sees an answer that is cut off, and says so.
            Ok((_, Err(error))) => Some(Err(io::Error::other(error.to_string()))),
            Err(error) => Some(Err(io::Error::other(error))),
        })
    }
}

impl<P> Drop for RowBody<P> {
    fn drop(&mut self) {
        if let Some(next) = &self.next {
            next.abort();
        }
    }
}
