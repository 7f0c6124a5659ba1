//! `GET /v1/jobs/{id}/steps/{step}/stream`: a client's stream to a step, relayed between its connection and one that the job's node
//! opens by `POST /v1/streams/{stream}`. Bytes pass through unread, a few kilobytes at a time: who reads slowly holds up the writer at
//! the other end, and nothing else.

use crate::http::app::{ApiContext, StreamSource};
use crate::http::error::ApiError;
use crate::http::job::control::{confine, own_id};
use crate::http::job::name::{job_name, targets};
use crate::http::peer::CertificateHolder;
use crate::http::permission::{Caller, must_own};
use axum::body::Body;
use axum::extract::{Extension, Path, Query, Request, State as Shared};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use gcore::ctl::Target;
use gcore::ctl::state::State;
use gmodel::{NodeId, RunId};
use gwire::api::{STREAM_UPGRADE, StreamAnswer, StreamQuery};
use gwire::min_rate::RateSwitch;
use gwire::permits::{NoPermit, Permit, PermitPool};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::io::copy_bidirectional_with_sizes;

/// The node has to open its end within this.
const NODE_PATIENCE: Duration = Duration::from_secs(10);
/// Kept of each direction of a stream.
const RELAY_BYTES: usize = 16 << 10;

pub(crate) async fn open(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path((id, step)): Path<(String, u32)>,
    Query(query): Query<StreamQuery>,
    Extension(switch): Extension<RateSwitch>,
    Extension(permits): Extension<PermitPool<u32>>,
    mut request: Request,
) -> Result<Response<Body>, ApiError> {
    let client = upgraded(&mut request)?;
    let [target @ (Target::Job(_) | Target::Task { .. })] = &targets(&[job_name(&id)?])?[..] else {
        return Err(ApiError::invalid(format!(
            "{id} names several tasks; a step is of one job"
        )));
    };
    confine(&site, &caller, std::slice::from_ref(target)).await?;
    let state = site.core.view().await;
    let (run, node) = run_on(&state, &caller, target, &id, &query.node)?;
    drop(state);
    let asked = AskedStream {
        run,
        node,
        source: StreamSource::Step {
            step,
            watch: query.watch,
        },
        words: format!("{}: step {step} of job {id}", query.node),
    };
    let ends = ClientEnd {
        client,
        switch,
        permits,
    };
    relay(&site, &caller, asked, ends).await
}

/// What a client asks for, and of which node.
pub(crate) struct AskedStream {
    pub(crate) run: RunId,
    pub(crate) node: NodeId,
    pub(crate) source: StreamSource,
    /// For errors.
    pub(crate) words: String,
}

/// The client's connection.
pub(crate) struct ClientEnd {
    pub(crate) client: OnUpgrade,
    pub(crate) switch: RateSwitch,
    pub(crate) permits: PermitPool<u32>,
}

/// Connects a client with what it asks for, once the node has opened its end.
///
/// # Errors
/// The user has too many streams; the node does not answer, or says no.
async fn relay(
    site: &ApiContext,
    caller: &Caller,
    asked: AskedStream,
    end: ClientEnd,
) -> Result<Response<Body>, ApiError> {
    let permit = end.permit(caller)?;
    let node = node_end(site, asked).await?;
    end.switch.turn_off();
    tokio::spawn(async move {
        let _permit = permit;
        // Either end may go before its answer is read.
        if let (Ok(client), Ok(node)) = (end.client.await, node.await) {
            copy_both(&mut TokioIo::new(client), node).await;
        }
    });
    Ok(switching())
}

impl ClientEnd {
    /// # Errors
    /// The user has too many streams.
    pub(crate) fn permit(&self, caller: &Caller) -> Result<Permit<u32>, ApiError> {
        let Caller { actor, .. } = caller;
        let taken = self.permits.take(actor.uid, actor.operator, 1);
        taken.map_err(|none| ApiError::limit(permit_words(none)))
    }
}

/// The end that a node opens when it is asked.
///
/// # Errors
/// The node does not answer, or says no.
pub(crate) async fn node_end(site: &ApiContext, asked: AskedStream) -> Result<OnUpgrade, ApiError> {
    let AskedStream {
        run,
        node,
        source,
        words,
    } = asked;
    let (stream, end) = site
        .app
        .streams
        .wait(node)
        .map_err(|e| ApiError::unavailable(format!("/dev/urandom: {e}")))?;
    let asked = site.app.links.open_stream(node, run, source, stream).await;
    let not_opened = |why: String| ApiError::unavailable(format!("{words}: {why}"));
    asked.map_err(not_opened)?;
    match tokio::time::timeout(NODE_PATIENCE, end).await {
        Ok(Ok(Ok(node))) => Ok(node),
        Ok(Ok(Err(why))) => Err(ApiError::invalid(why)),
        Ok(Err(_)) | Err(_) => Err(not_opened(format!(
            "the node opened no stream within {} s",
            NODE_PATIENCE.as_secs()
        ))),
    }
}

/// Until both are over.
pub(crate) async fn copy_both(client: &mut TokioIo<Upgraded>, node: Upgraded) {
    let mut node = TokioIo::new(node);
    // An end that breaks ends the other, and that is all there is to say.
    let _ = copy_bidirectional_with_sizes(client, &mut node, RELAY_BYTES, RELAY_BYTES).await;
}

/// The node's end of a stream, or why it has none.
pub(crate) async fn answer(
    Shared(site): Shared<ApiContext>,
    Path(stream): Path<String>,
    holder: Option<Extension<CertificateHolder>>,
    Extension(switch): Extension<RateSwitch>,
    Query(answer): Query<StreamAnswer>,
    mut request: Request,
) -> Result<Response<Body>, ApiError> {
    let denied = || ApiError::denied("a stream is opened by the node that the controller asked");
    let node = holder.ok_or_else(denied)?.0.identity.node;
    if !answer.error.is_empty() {
        site.app.streams.meet(&stream, node, Err(answer.error))?;
        return Ok(Response::default());
    }
    let end = upgraded(&mut request)?;
    switch.turn_off();
    site.app.streams.meet(&stream, node, Ok(end))?;
    Ok(switching())
}

/// The connection behind a request that asks for a stream.
pub(crate) fn upgraded(request: &mut Request) -> Result<OnUpgrade, ApiError> {
    let asks = |headers: &HeaderMap| headers.get(UPGRADE).is_some_and(|it| it == STREAM_UPGRADE);
    if !asks(request.headers()) {
        return Err(ApiError::invalid(format!(
            "this answers requests with `Upgrade: {STREAM_UPGRADE}` only"
        )));
    }
    Ok(hyper::upgrade::on(request))
}

pub(crate) fn switching() -> Response<Body> {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(STREAM_UPGRADE));
    response
}

/// The run of a job, and the node of it with this name.
fn run_on(
    state: &State,
    caller: &Caller,
    target: &Target,
    shown: &str,
    node: &str,
) -> Result<(RunId, NodeId), ApiError> {
    let job = own_id(state, target).and_then(|id| state.jobs.get(id));
    let job = job.ok_or_else(|| ApiError::not_found(format!("job {shown} is not running")))?;
    must_own(caller, &job.spec, shown, "stream")?;
    let run = job.live_run().and_then(|id| state.runs.get(id));
    let run = run.ok_or_else(|| ApiError::conflict(format!("job {shown} is not running")))?;
    let node = state
        .node_by_name(node)
        .filter(|node| run.member(node.id).is_some());
    node.map(|node| (run.id, node.id))
        .ok_or_else(|| ApiError::invalid(format!("job {shown} does not run on that node")))
}

fn permit_words(none: NoPermit) -> String {
    match none {
        NoPermit::PerClient(most) => {
            format!("you have {most} streams open, as many as one user may. Close some")
        }
        NoPermit::All(most) => {
            format!("{most} streams of all users are open, and no more are taken. Try again later")
        }
    }
}
