//! The node protocol: JSON frames over one long-lived mTLS connection that the node dials.
//!
//! ALPN `gpupool-node/1` on the controller's port; `http/1.1` on the same port is the REST API.
//! Name and role are the certificate's; nothing in a frame can change them.
//!
//! ```text
//! node                     controller
//!  | Hello (all runs) ------> |   committed, then
//!  | <---------- (TellOrders) |   after a restore: unknown runs are adopted, not killed
//!  | (Orders) --------------> |
//!  | <------------- Welcome   |
//!  | <------------- Orders    |   launch orders not yet sent on this connection, then Desired
//!  | Obeyed(fence) ---------> |   after the fence is durable on the node
//!  | Runs ------------------> |   a whole phase per run, again after every reconnect
//!  | Idle ------------------> |   every half a minute, of runs with sampled GPUs
//!  | Pulls -----------------> |   every few seconds of the pull of an image
//!  | Ping / Pong both ways    |   silence of 3 x heartbeat ends the connection
//! ```

use gmodel::gpu_order::GpuOrderDone;
use gmodel::idle::IdleReport;
use gmodel::image_pull::PullReport;
use gmodel::launch_order::LaunchOrder;
use gmodel::node::Inventory;
use gmodel::run::{DesiredState, RunReport, RunUse};
use gmodel::{Fence, NodeLife};
use serde::{Deserialize, Serialize};

/// DNS name in every controller's certificate: nodes, and clients that know its authority, check this one, whatever address they dial.
pub const SERVER_NAME: &str = "gpuctld.gpupool.internal";

/// ALPN protocol names on the controller's TLS port.
pub const ALPN_NODE: &[u8] = b"gpupool-node/1";
pub const ALPN_HTTP: &[u8] = b"http/1.1";
/// ALPN of a machine that has no certificate yet: one HTTP request, `POST /v1/join`.
pub const ALPN_JOIN: &[u8] = b"gpupool-join/1";
/// Version of the protocol below. A controller speaks this and the one before.
pub const PROTOCOL: u32 = 1;
/// Largest frame either side accepts, bytes.
pub const MAX_FRAME_BYTES: u32 = 16 << 20;
/// Seconds between pings in either direction when nothing else is sent.
pub const HEARTBEAT_SECS: u64 = 5;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "frame", rename_all = "snake_case")]
pub enum ToController {
    Hello(Hello),
    Runs {
        runs: Vec<RunReport>,
    },
    Inventory {
        inventory: Inventory,
    },
    Obeyed {
        fence: Fence,
    },
    /// How orders for GPUs ended; again whenever an order comes again.
    GpuOrders {
        done: Vec<GpuOrderDone>,
    },
    /// How long GPUs of its runs have been idle, as of a sample just taken. Not news: what is lost is told again.
    Idle {
        runs: Vec<IdleReport>,
    },
    /// How far the images of runs that it makes ready are, every few seconds of a pull. A controller of a release before ignores
    /// it, and gives such a run `prepare_timeout_secs` as any other.
    Pulls {
        runs: Vec<PullReport>,
    },
    Ping,
    /// Answer to `TellOrders`, in several frames where needed; `done` marks the last.
    Orders {
        orders: Vec<LaunchOrder>,
        done: bool,
    },
    /// Answer to `ReadLog`.
    Log {
        question: u64,
        text: String,
        error: String,
    },
    /// Answer to `ReadUse`.
    Use {
        question: u64,
        used: RunUse,
        error: String,
    },
    /// Answer to `SignalStep`.
    StepSignalled {
        question: u64,
        error: String,
    },
    /// From a newer node: ignored.
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hello {
    pub protocol: u32,
    pub release: String,
    pub life: NodeLife,
    /// The newest fence the node made durable.
    pub fence: Fence,
    pub inventory: Inventory,
    pub runs: Vec<RunReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "frame", rename_all = "snake_case")]
pub enum ToNode {
    Welcome {
        protocol: u32,
        release: String,
        cluster: String,
        heartbeat_secs: u64,
    },
    /// Orders come before the first `desired` that names their runs; each is sent once a connection.
    Orders {
        orders: Vec<LaunchOrder>,
        desired: DesiredState,
    },
    Ping,
    /// First of all to a node that obeyed another incarnation: the orders of runs the controller does not
    /// know, so that they can be adopted.
    TellOrders {
        runs: Vec<gmodel::RunId>,
    },
    /// `gq --log`: what the node did for a run.
    ReadLog {
        question: u64,
        run: gmodel::RunId,
    },
    /// `gacct --live`: what a run uses by now. A node of a release before does not answer.
    ReadUse {
        question: u64,
        run: gmodel::RunId,
    },
    /// Start tasks of a step in a run. Not durable and not repeated: grun waits at
    /// `step.connect` and hears from the node there.
    Step {
        run: gmodel::RunId,
        step: gmodel::supervise::StepOrder,
    },
    /// Connect the client that waits for this stream at the controller with a step of a run: the node opens it with
    /// `POST /v1/node/streams/STREAM`. Not durable and not repeated.
    OpenStream {
        stream: String,
        run: gmodel::RunId,
        step: u32,
        /// A copy of the output for a client that takes the stream from no other.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        watch: bool,
    },
    /// `gdel 17.0`: send the tasks of a step a signal, or end the step. Not durable. A node of a release before does not answer.
    SignalStep {
        question: u64,
        run: gmodel::RunId,
        step: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<u8>,
    },
    /// As `OpenStream`, with a reader of a job's output. The run may be long over. A node of a release before does not answer.
    OpenOutput {
        stream: String,
        run: gmodel::RunId,
        user: gmodel::job::UserRef,
        order: gmodel::output_stream::OutputOrder,
    },
    /// The connection ends; `text` says why, for the node's log and `gpud status`.
    Refused {
        text: String,
        permanent: bool,
    },
    #[serde(other)]
    Unknown,
}
