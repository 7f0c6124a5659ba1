//! A least data rate for the other end of a connection: a request's body must come, an answer must be read.
//!
//! A slow peer gets its time, at the least rate; a peer that stands still does not hold memory and a permit for ever.

use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// The least rate of a body and of an answer, bytes a second: a modem's.
const LEAST_RATE: u64 = 16 << 10;
/// Before the least rate counts.
const GRACE: Duration = Duration::from_secs(15);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request's body that fails below the least rate.
pub struct MinRateBody<B> {
    body: B,
    begun: Instant,
    bytes: u64,
    late: Pin<Box<Sleep>>,
}

impl<B> MinRateBody<B> {
    pub fn new(body: B) -> Self {
        let begun = Instant::now();
        Self {
            body,
            begun,
            bytes: 0,
            late: Box::pin(sleep_until(begun + GRACE)),
        }
    }
}

impl<B> Body for MinRateBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                this.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(end) => Poll::Ready(end.map(|frame| frame.map_err(Into::into))),
            Poll::Pending => {
                let due =
                    this.begun + GRACE + Duration::from_millis(this.bytes * 1000 / LEAST_RATE);
                if this.late.deadline() != due {
                    this.late.as_mut().reset(due);
                }
                ready!(this.late.as_mut().poll(cx));
                let text = format!(
                    "of the request's body {} bytes came in {} s, and no more: it was not waited for longer",
                    this.bytes,
                    this.begun.elapsed().as_secs()
                );
                Poll::Ready(Some(Err(text.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Ends the least rate of a connection: what follows is no answer but a stream, whose reader may stand still.
#[derive(Clone, Debug, Default)]
pub struct RateSwitch(Arc<AtomicBool>);

impl RateSwitch {
    pub fn turn_off(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_off(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection that fails when its other end reads below the least rate.
pub struct MinRateStream<S> {
    stream: S,
    switch: RateSwitch,
    /// How long writing may still stand still; what is taken earns some of it back.
    grace: Duration,
    blocked: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<S> MinRateStream<S> {
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            switch: RateSwitch::default(),
            grace: GRACE,
            blocked: None,
        }
    }

    pub fn switch(&self) -> RateSwitch {
        self.switch.clone()
    }

    fn taken(&mut self, bytes: usize) {
        if let Some((since, _)) = self.blocked.take() {
            self.grace = self.grace.saturating_sub(since.elapsed());
        }
        let earned = Duration::from_millis(bytes as u64 * 1000 / LEAST_RATE);
        self.grace = (self.grace + earned).min(GRACE);
    }

    fn waits(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.switch.is_off() {
            return Poll::Pending;
        }
        let grace = self.grace;
        let (_, late) = self.blocked.get_or_insert_with(|| {
            let now = Instant::now();
            (now, Box::pin(sleep_until(now + grace)))
        });
        ready!(late.as_mut().poll(cx));
        Poll::Ready(io::Error::new(
            ErrorKind::TimedOut,
            "the other end reads nothing",
        ))
    }

    fn minded(
        &mut self,
        cx: &mut Context<'_>,
        done: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match done {
            Poll::Ready(done) => {
                self.taken(*done.as_ref().unwrap_or(&0));
                Poll::Ready(done)
            }
            Poll::Pending => self.waits(cx).map(Err),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MinRateStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MinRateStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.minded(cx, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.minded(cx, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(cx).map_ok(|()| 0);
        self.minded(cx, done).map_ok(drop)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(cx).map_ok(|()| 0);
        self.minded(cx, done).map_ok(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn an_end_that_reads_nothing_is_dropped_and_a_slow_one_is_not() {
        let (near, _far) = tokio::io::duplex(1000);
        let begun = Instant::now();
        let error = MinRateStream::new(near)
            .write_all(&[0; 2000])
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind(), begun.elapsed()),
            (ErrorKind::TimedOut, GRACE)
        );

        let (near, mut far) = tokio::io::duplex(20_000);
        let reading = tokio::spawn(async move {
            let mut piece = vec![0; 20_000];
            while far.read_exact(&mut piece).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let mut near = MinRateStream::new(near);
        near.write_all(&vec![0; 4_000_000]).await.unwrap();
        drop(near);
        reading.await.unwrap();
        assert!(begun.elapsed() > Duration::from_secs(200));
    }

    /// Gives a piece every so often, and then nothing more.
    struct Slow(usize, usize, Duration, Pin<Box<Sleep>>);

    impl Body for Slow {
        type Data = Bytes;
        type Error = BoxError;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            if self.0 == 0 {
                return Poll::Pending;
            }
            ready!(self.3.as_mut().poll(cx));
            let next = Instant::now() + self.2;
            self.3.as_mut().reset(next);
            self.0 -= 1;
            Poll::Ready(Some(Ok(Frame::data(vec![0; self.1].into()))))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_coming_ends_and_a_slow_one_is_read_to_its_end() {
        for (pieces, bytes, secs) in [(0, 0, 15), (1, 160 << 10, 25), (60, 32 << 10, 135)] {
            let slow = Slow(
                pieces,
                bytes,
                Duration::from_secs(1),
                Box::pin(sleep_until(Instant::now())),
            );
            let mut body = MinRateBody::new(slow);
            let (begun, mut came) = (Instant::now(), 0);
            let error = loop {
                match std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))
                    .await
                    .unwrap()
                {
                    Ok(frame) => came += frame.data_ref().unwrap().len(),
                    Err(error) => break error.to_string(),
                }
            };
            assert_eq!(
                (came, begun.elapsed().as_secs()),
                (pieces * bytes, secs),
                "{error}"
            );
        }
    }
}
