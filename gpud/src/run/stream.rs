//! A client's stream to a step of a run here: from the supervisor's socket to a connection that this node opens to the controller.
//! Bytes pass through unread.

use crate::controller::identity::{CONTROLLER_NAME, Identity, dial};
use crate::run::output::{self, OutputRequest};
use crate::run::supervisor::SupervisorAddress;
use crate::site::Site;
use anyhow::{Context, Result, bail};
use gmodel::RunId;
use gmodel::supervise::{SupervisorCommand, SupervisorReport};
use gwire::api::{STREAM_UPGRADE, StreamAnswer};
use gwire::client::path_with_query;
use gwire::node_protocol::ALPN_HTTP;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::header::{CONNECTION, HOST, UPGRADE};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::Instant;

/// The order of a step may still be on its way to the supervisor.
const STEP_PATIENCE: Duration = Duration::from_secs(3);
/// Time that a supervisor has to answer beyond that.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
const STEP_PAUSE: Duration = Duration::from_millis(10);
/// Kept of each direction.
const RELAY_BYTES: usize = 16 << 10;
/// A supervisor says how its run stands before it answers.
const MAX_LINES: usize = 16;

/// Connects the client that waits at the controller under this name with the step, or tells the client why not. Returns when the
/// stream is over.
///
/// # Errors
/// The controller cannot be reached, or no client waits.
pub async fn open(site: &Site, stream: &str, run: RunId, order: &SupervisorCommand) -> Result<()> {
    let source = visit(site, run, order).await;
    connect(site, stream, source).await
}

/// As [`open`], with a reader of a job's output.
///
/// # Errors
/// As there.
pub async fn open_output(site: &Site, stream: &str, request: OutputRequest) -> Result<()> {
    match output::read(site, request).await {
        Ok((socket, reader)) => {
            let done = connect(site, stream, Ok(socket)).await;
            reader.end().await;
            done
        }
        Err(e) => connect::<UnixStream>(site, stream, Err(e)).await,
    }
}

/// Carries the bytes between a source here and the client, or says why there is no source.
async fn connect<T: AsyncRead + AsyncWrite + Unpin>(
    site: &Site,
    stream: &str,
    source: Result<T>,
) -> Result<()> {
    let path = format!("/v1/streams/{stream}");
    let mut source = match source {
        Ok(source) => source,
        Err(e) => {
            let error = format!("{e:#}");
            let request = request(&path_with_query(&path, &StreamAnswer { error }));
            send(site, request.body(Empty::new())?).await?;
            return Ok(());
        }
    };
    let request = request(&path)
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, STREAM_UPGRADE)
        .body(Empty::new())?;
    let answer = send(site, request).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        bail!("the controller answered {}", answer.status());
    }
    let mut client = TokioIo::new(hyper::upgrade::on(answer).await?);
    copy_bidirectional_with_sizes(&mut source, &mut client, RELAY_BYTES, RELAY_BYTES).await?;
    Ok(())
}

pub(super) fn request(path: &str) -> hyper::http::request::Builder {
    Request::post(path).header(HOST, CONTROLLER_NAME)
}

pub(super) async fn send(
    site: &Site,
    request: Request<Empty<Bytes>>,
) -> Result<hyper::Response<hyper::body::Incoming>> {
    let tls = Identity::load(&site.config.state_dir)?.tls(ALPN_HTTP)?;
    let connection = dial(&site.config.controller, tls).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(connection)).await?;
    tokio::spawn(connection.with_upgrades());
    Ok(sender.send_request(request).await?)
}

/// Sends the tasks of a step a signal, or ends the step. Returns when its supervisor has done it.
///
/// # Errors
/// There is no such step here, or its supervisor does not answer.
pub async fn signal_step(site: &Site, run: RunId, step: u32, signal: Option<u8>) -> Result<()> {
    let order = SupervisorCommand::SignalStep { step, signal };
    visit(site, run, &order).await.map(drop)
}

/// A connection with the supervisor for one order about a step, which it has obeyed.
async fn visit(
    site: &Site,
    run: RunId,
    order: &SupervisorCommand,
) -> Result<BufReader<UnixStream>> {
    let deadline = Instant::now() + STEP_PATIENCE;
    let address = SupervisorAddress::of(&site.spool, run);
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    loop {
        let socket = address
            .connect()
            .with_context(|| format!("run {run} has no supervisor here"))?;
        let mut socket = BufReader::new(UnixStream::from_std(socket)?);
        socket.write_all(&line).await?;
        let answered = tokio::time::timeout_at(deadline + ANSWER_PATIENCE, answer(&mut socket));
        match answered.await.context("its supervisor does not answer")?? {
            SupervisorReport::NotAttached { is_early: true, .. } if Instant::now() < deadline => {
                tokio::time::sleep(STEP_PAUSE).await;
            }
            SupervisorReport::NotAttached { text, .. } => bail!("{text}"),
            _ => return Ok(socket),
        }
    }
}

/// What the supervisor answers, behind how its run stands.
async fn answer(socket: &mut BufReader<UnixStream>) -> Result<SupervisorReport> {
    for _ in 0..MAX_LINES {
        let mut line = String::new();
        if socket.read_line(&mut line).await? == 0 {
            bail!("its supervisor closed the connection");
        }
        let report = serde_json::from_str(&line).context("its supervisor's answer")?;
        if matches!(
            report,
            SupervisorReport::Attached
                | SupervisorReport::StepSignalled
                | SupervisorReport::NotAttached { .. }
        ) {
            return Ok(report);
        }
    }
    bail!("its supervisor, of an older release, knows no such order")
}
