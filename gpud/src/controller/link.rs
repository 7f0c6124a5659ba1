//! The connection to the controller: dialled from here, kept alive by pings, dialled again with a growing pause.
//!
//! Two tasks a connection. Channels: frames that came go to the daemon (bounded, so a flood waits in the kernel), frames to
//! send come from it. Decides nothing; the daemon answers `Up` with the hello.

use crate::clock::wall_clock;
use crate::controller::identity::{Identity, dial};
use crate::input::DaemonInput;
use gmodel::Timestamp;
use gwire::frame::{self, FrameReader};
use gwire::node_protocol::{ALPN_NODE, HEARTBEAT_SECS, ToController, ToNode};
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// After a refusal that will not go away by itself.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// Frames waiting to be sent; a controller that reads slower than this is disconnected.
pub const SEND_QUEUE: usize = 1024;
const HEARTBEAT: Duration = Duration::from_secs(HEARTBEAT_SECS);
const SILENCE: Duration = Duration::from_secs(3 * HEARTBEAT_SECS);

/// The controller's address, and the directory of the certificate: read again for each connection, since the daemon renews it.
#[derive(Clone, Debug)]
pub struct Dial {
    pub controller: String,
    pub state_dir: PathBuf,
}

/// Keeps the node connected until the daemon is gone. `connection` numbers tell frames of an old connection from new ones.
pub async fn keep(to: Dial, daemon: mpsc::Sender<DaemonInput>) {
    let mut pause = FIRST_PAUSE;
    for connection in 1u64.. {
        let (began, outcome) = (Instant::now(), once(&to, connection, &daemon).await);
        if daemon
            .send(DaemonInput::LinkDown { connection })
            .await
            .is_err()
        {
            return;
        }
        // A connection that held for a while was fine: its end is no reason to be slow.
        if began.elapsed() > SILENCE {
            pause = FIRST_PAUSE;
        }
        let wait = match outcome {
            ConnectionEnd::Lost(text) => {
                tracing::warn!(
                    "no connection to the controller: {text}; again in {} ms",
                    pause.as_millis()
                );
                pause
            }
            ConnectionEnd::Refused {
                text,
                permanent: true,
            } => {
                tracing::error!("the controller refuses this node: {text}");
                REFUSED_PAUSE
            }
            ConnectionEnd::Refused {
                text,
                permanent: false,
            } => {
                tracing::warn!("the controller ended the connection: {text}");
                pause
            }
        };
        tokio::time::sleep(with_jitter(wait)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

enum ConnectionEnd {
    Lost(String),
    Refused { text: String, permanent: bool },
}

async fn once(to: &Dial, connection: u64, daemon: &mpsc::Sender<DaemonInput>) -> ConnectionEnd {
    let connect = async {
        let tls = Identity::load(&to.state_dir)?.tls(ALPN_NODE)?;
        dial(&to.controller, tls).await
    };
    match connect.await {
        Ok(stream) => {
            let (read, write) = tokio::io::split(stream);
            converse(read, write, connection, daemon).await
        }
        Err(e) => ConnectionEnd::Lost(format!("{e:#}")),
    }
}

/// Speaks the protocol over any stream until it ends.
async fn converse<R, W>(
    read: R,
    write: W,
    connection: u64,
    daemon: &mpsc::Sender<DaemonInput>,
) -> ConnectionEnd
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (sender, queue) = mpsc::channel(SEND_QUEUE);
    if daemon
        .send(DaemonInput::LinkUp { connection, sender })
        .await
        .is_err()
    {
        return ConnectionEnd::Lost("the daemon ends".into());
    }
    let mut writer = tokio::spawn(write_frames(write, queue));
    let ended = tokio::select! {
        ended = read_frames(read, connection, daemon) => ended,
        written = &mut writer => ConnectionEnd::Lost(written.unwrap_or_else(|e| e.to_string())),
    };
    writer.abort();
    ended
}

/// A TLS alert comes after the handshake seemed done: the controller refused this node's certificate.
fn explained(text: String) -> String {
    if !text.contains("received fatal alert") {
        return text;
    }
    format!(
        "{text}. The controller does not accept this node's certificate: another cluster's CA made it, or it has expired. \
         `gpud join` with a new token from `gadm token node` mends that"
    )
}

async fn read_frames<R: AsyncRead + Unpin>(
    read: R,
    connection: u64,
    daemon: &mpsc::Sender<DaemonInput>,
) -> ConnectionEnd {
    let mut frames = FrameReader::new(read);
    loop {
        let frame = match timeout(SILENCE, frames.next::<ToNode>()).await {
            Err(_) => {
                return ConnectionEnd::Lost(format!(
                    "the controller was silent for {} s",
                    SILENCE.as_secs()
                ));
            }
            Ok(Err(e)) => {
                return ConnectionEnd::Lost(explained(format!("{:#}", anyhow::Error::from(e))));
            }
            Ok(Ok(None)) => {
                return ConnectionEnd::Lost("the controller closed the connection".into());
            }
            Ok(Ok(Some(frame))) => frame,
        };
        match frame {
            ToNode::Ping | ToNode::Unknown => {}
            ToNode::Refused { text, permanent } => {
                return ConnectionEnd::Refused { text, permanent };
            }
            frame => {
                if daemon
                    .send(DaemonInput::Frame { connection, frame })
                    .await
                    .is_err()
                {
                    return ConnectionEnd::Lost("the daemon ends".into());
                }
            }
        }
    }
}

/// Sends what is queued, in one write where several wait, and a ping when nothing was sent for a while.
async fn write_frames<W: AsyncWrite + Unpin>(
    mut write: W,
    mut queue: mpsc::Receiver<ToController>,
) -> String {
    let mut next_ping = Instant::now() + HEARTBEAT;
    loop {
        let first = match timeout_at(next_ping, queue.recv()).await {
            Err(_) => ToController::Ping,
            Ok(None) => return "the daemon closed the connection".into(),
            Ok(Some(frame)) => frame,
        };
        let mut bytes = match frame::encode(&first) {
            Ok(bytes) => bytes,
            Err(e) => return e.to_string(),
        };
        while let Ok(more) = queue.try_recv() {
            match frame::encode(&more) {
                Ok(more) => bytes.extend(more),
                Err(e) => return e.to_string(),
            }
        }
        let sent = timeout(SILENCE, async {
            write.write_all(&bytes).await?;
            write.flush().await
        });
        match sent.await {
            Err(_) => return "the controller takes nothing".into(),
            Ok(Err(e)) => return e.to_string(),
            Ok(Ok(())) => next_ping = Instant::now() + HEARTBEAT,
        }
    }
}

/// 50 to 100 % of it, so that a thousand nodes do not return in step. The clock's low bits are random enough for that.
fn with_jitter(pause: Duration) -> Duration {
    let Timestamp(now) = wall_clock();
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.subsec_nanos());
    let mix = (now as u64 ^ u64::from(nanos) ^ u64::from(std::process::id()))
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        >> 33;
    pause / 2 + pause.mul_f64((mix % 1000) as f64 / 2000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_is_not_accepted_is_said_in_words() {
        let text = explained("the connection failed: received fatal alert: DecryptError".into());
        assert!(
            text.contains("DecryptError. The controller does not accept")
                && text.contains("gpud join"),
            "{text}"
        );
        assert_eq!(
            explained("connecting to ctl:7117".into()),
            "connecting to ctl:7117"
        );
    }
}
