//! Steps: what grun asks for and says at the end, and what listings show of them.

use gmodel::container::ContainerSpec;
use gmodel::image_pull::PullProgress;
use gmodel::job::{SoftLimit, few_limits};
use gmodel::parallel::ParallelSpec;
use gmodel::run::Usage;
use gmodel::step_share::StepShareRequest;
use gmodel::supervise::{StepHelper, TerminalSize};
use gmodel::{ExitCode, Instant, JobState};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Tasks to start in a running job. The nodes connect to `connect` with `key` and stream what the
/// tasks write (`gmodel::supervise::StepOutput`).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepRequest {
    pub argv: Vec<String>,
    /// More programs, each with the ranks behind the one before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<StepProgram>,
    /// `NAME=value` of the calling process.
    pub environment: Vec<String>,
    pub work_dir: String,
    /// In which its tasks run; those of a node share it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<ContainerSpec>>,
    /// For listings; empty: the program's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ntasks: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ntasks_per_node: Option<u32>,
    /// Nodes of the job that the step must be on, as a host list.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nodelist: String,
    /// Nodes that it must not be on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub exclude: String,
    /// Begin with this node of the job, counted from 0.
    pub relative: u32,
    /// Ranks that a node gets before it is the next node's turn; 0: as many as it takes.
    pub plane: u32,
    #[serde(flatten)]
    pub limits: StepLimits,
    /// A part of gstepd in the place of `argv`, which then is a name only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helper: Option<StepHelper>,
    /// What it is to have for itself; without it the step shares all of its job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<StepShareRequest>,
    #[serde(flatten)]
    pub callback: StepCallback,
    /// The first task gets a terminal of this size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// How its ranks find each other.
    #[serde(skip_serializing_if = "ParallelSpec::is_default")]
    pub parallel: ParallelSpec,
    /// The step's part in other components of the job, each with the ranks behind the one before. Callback, terminal, `parallel` and
    /// helper are those of the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<ComponentStep>,
}

/// The part of a step in another component of its job of unlike parts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ComponentStep {
    /// The component's own id.
    pub job: String,
    pub request: StepRequest,
}

/// How long a step runs, how much its processes may have, and whether CPUs bound their number.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepLimits {
    /// It ends after this time, as its client has it; for listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit_secs: Option<u32>,
    /// Soft limits of its tasks; empty: those of the job.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "few_limits")]
    pub rlimits: Vec<SoftLimit>,
    /// More tasks than its nodes have CPUs of the job.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub overcommit: bool,
}

/// Where a grun inside the job waits for the nodes of its step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepCallback {
    /// `ADDRESS:PORT`, numeric. Empty: grun opens a stream to each node of the step.
    pub connect: String,
    /// The secret by which the nodes prove themselves there.
    pub key: String,
    /// SHA-256 of the certificate that grun shows there, in hexadecimal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate: String,
}

/// One of the programs of a step behind the first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepProgram {
    pub argv: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ntasks: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ntasks_per_node: Option<u32>,
}

/// Of `GET /v1/jobs/{id}/steps/{step}/stream`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamQuery {
    /// A node of the step.
    pub node: String,
    /// Only a copy of the output, beside the client of the step.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub watch: bool,
}

/// Of `POST /v1/outputs/{file}`, by which a node hands over the output of a run that is over: so many bytes follow on the connection, and
/// [`OUTPUT_KEPT`] is the answer to the last one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UploadQuery {
    pub bytes: u64,
}

/// The controller has an output on its disk.
pub const OUTPUT_KEPT: &str = "kept\n";

/// Of `GET /v1/jobs/{id}/output`, whose connection becomes a stream of `gmodel::output_stream`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputQuery {
    /// The file of its errors.
    pub stderr: bool,
    /// The client has this file (`DEVICE.INODE`) up to the position; empty: it has nothing.
    pub file: String,
    pub position: u64,
    /// Only the last lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<u64>,
    /// Goes on at the end of the file.
    pub follow: bool,
}

/// Of `POST /v1/streams/{stream}`, by a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamAnswer {
    /// Why there is no stream; empty: the connection becomes it.
    pub error: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepReply {
    pub schema: u32,
    pub step: u32,
    /// Nodes of the step in order, with the global ranks on each; behind the first component's are those of the next.
    pub nodes: Vec<StepNodeRow>,
    /// The step in other components of the job.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<ComponentStepRow>,
    /// No step was started: what it asked for itself, others have. To be asked again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<StepWaits>,
}

/// A step in one of its jobs: a component, or the only one.
#[derive(Clone, Debug)]
pub struct StepOfJob<'a> {
    pub job: &'a str,
    pub step: u32,
    /// Places of its nodes among the whole step's.
    pub nodes: Range<u32>,
    pub rows: &'a [StepNodeRow],
}

impl StepReply {
    /// The step in each of its jobs, the first of which is `job`.
    pub fn parts<'a>(&'a self, job: &'a str) -> impl Iterator<Item = StepOfJob<'a>> {
        let first = (job, self.step, 0);
        let others = self.components.iter();
        let others = others.map(|other| (other.job.as_str(), other.step, other.first_node));
        let all = self.nodes.len() as u32;
        let ends = self.components.iter().map(|other| other.first_node);
        let ends = ends.chain(std::iter::once(all));
        std::iter::once(first)
            .chain(others)
            .zip(ends)
            .map(move |((job, step, begin), end)| {
                let end = end.min(all);
                let nodes = begin.min(end)..end;
                let rows = &self.nodes[nodes.start as usize..nodes.end as usize];
                StepOfJob {
                    job,
                    step,
                    nodes,
                    rows,
                }
            })
    }
}

/// A step's number in another component of its job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ComponentStepRow {
    pub job: String,
    pub step: u32,
    /// Place of its first node among the step's.
    pub first_node: u32,
}

/// Why a step has to wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepWaits {
    pub reason: String,
    /// The job's nodes bring its image: how far that is, in numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pull: Option<PullProgress>,
    /// The steps that hold parts of the job, with the addresses of their gruns.
    pub holders: Vec<StepHolder>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepHolder {
    pub step: u32,
    pub connect: String,
}

/// How a step ended, as its grun says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepEndRequest {
    pub exit_code: ExitCode,
    /// What all of it used, as its nodes measured; missing where they did not, or could not be heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<Usage>,
}

/// One step of a job: its batch script, or what a grun started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepRow {
    pub job: u64,
    /// `17.batch`, `98_5.0`.
    pub shown_id: String,
    /// `batch`, or the program.
    pub name: String,
    pub user: String,
    pub account: String,
    pub partition: String,
    pub qos: String,
    pub state: JobState,
    pub exit_code: ExitCode,
    pub ntasks: u32,
    pub nodes: u32,
    pub nodelist: String,
    pub start_time: Option<Instant>,
    /// Missing while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Instant>,
    pub elapsed_secs: i64,
    /// Missing where it has none of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit_secs: Option<u32>,
    /// CPU time, user and system; missing where it was not measured. Of the batch script: all of the run that is no other step's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_time_secs: Option<f64>,
    /// The most memory its tasks had together on a node; of the batch script: its run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// What it had for itself; missing where it shared all of its job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own: Option<StepOwn>,
}

/// Parts of its job that a step has for itself, over all its nodes; 0: shared with other steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepOwn {
    pub cpus: u32,
    pub gpus: u32,
    pub mem_bytes: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepNodeRow {
    pub name: String,
    pub ranks: Vec<u32>,
}
