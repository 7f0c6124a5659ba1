//! A step that gstepd itself runs in a job, and the bytes between it and here: for forwarded ports and for ssh. It ends with this grun.

use crate::step_gathering::forward_signals;
use crate::step_input::{self, InputRanks, Peer};
use crate::step_message::Message;
use crate::step_nodes::{StreamUse, open_streams};
use crate::step_turn::{self, TurnRules};
use gcli::printable::printable;
use gcli::{Failure, Outcome};
use gmodel::ExitCode;
use gmodel::run::Usage;
use gmodel::supervise::{StepHelper, StepInput, StepOutput, StepStream};
use gwire::api::{StepEndRequest, StepReply, StepRequest};
use gwire::client::Client;
use nix::sys::signal::{SigSet, Signal};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};

/// Messages in flight.
const CHANNEL: usize = 64;
/// After the end of its input, or a signal, the helper ends within this.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// Where it is to run.
pub(crate) struct HelperPlace {
    /// The job, by any of its names.
    pub job: String,
    /// One of the job's nodes; its first where none is named.
    pub node: Option<String>,
}

/// A step under way, with its one node.
pub(crate) struct HelperStep {
    client: Client,
    job: String,
    step: StepReply,
    peer: Arc<Peer>,
    sender: SyncSender<Message>,
    messages: Receiver<Message>,
}

impl HelperStep {
    /// # Errors
    /// The controller's refusal; the job's node cannot be reached.
    pub fn start(
        place: HelperPlace,
        helper: StepHelper,
        name: &str,
        signals: &SigSet,
    ) -> Result<Self, Failure> {
        let request = StepRequest {
            // What an older node would look for, and not find.
            argv: vec![format!("gpupool-{name}")],
            name: name.to_owned(),
            work_dir: "/".to_owned(),
            nodes: Some(1),
            ntasks: Some(1),
            nodelist: place.node.unwrap_or_default(),
            helper: Some(helper),
            ..StepRequest::default()
        };
        let mut client = gcli::connect_inside("grun")?;
        let turn = TurnRules {
            quiet: true,
            immediate: None,
        };
        let step = step_turn::start(&mut client, &place.job, &request, signals, turn)?;
        let (sender, messages) = mpsc::sync_channel(CHANNEL);
        let mut peers = open_streams(
            client.socket()?,
            &place.job,
            &step,
            StreamUse::Client,
            &sender,
        )?;
        let (_, peer) = peers
            .pop_first()
            .ok_or_else(|| Failure::new("the controller placed the step on no node"))?;
        Ok(Self {
            client,
            job: place.job,
            step,
            peer,
            sender,
            messages,
        })
    }

    /// The node that it runs on.
    pub fn node(&self) -> &str {
        self.step.nodes.first().map_or("", |node| &node.name)
    }

    /// Carries bytes both ways until the step is over or a signal comes; its exit code.
    ///
    /// # Errors
    /// The step was not started, or its node is lost; writing.
    pub fn carry(
        self,
        signals: SigSet,
        input: impl Read + Send + 'static,
        mut output: impl Write,
    ) -> Outcome {
        forward_signals(signals, self.sender.clone());
        let peer = Arc::clone(&self.peer);
        std::thread::spawn(move || step_input::forward(input, InputRanks::All, &[peer]));
        let mut end = HelperEnd::default();
        let outcome = self.gather(&mut output, &mut end);
        let code = outcome.as_ref().copied().unwrap_or(gcli::failure::FAILED);
        self.report_end(code, end.used);
        outcome
    }

    fn gather(&self, output: &mut impl Write, end: &mut HelperEnd) -> Outcome {
        while !end.is_over {
            let message = match end.until {
                None => self.messages.recv().ok(),
                Some(until) => {
                    let patience = until.saturating_duration_since(Instant::now());
                    self.messages.recv_timeout(patience).ok()
                }
            };
            let Some(message) = message else { break };
            match message {
                Message::From(_, output_of_task) => self.take(output_of_task, output, end)?,
                Message::Gone(_) => break,
                Message::Failed(_, text) => {
                    return Err(Failure::new(format_args!("{}", printable(&text))));
                }
                Message::Left(why) => return Err(Failure::new(why)),
                Message::Signal(signal) => {
                    if signal == Signal::SIGINT as u8 {
                        end.code = 0;
                    }
                    self.peer.send(&StepInput::Signal {
                        signal: Signal::SIGTERM as u8,
                    });
                    end.until.get_or_insert(Instant::now() + END_PATIENCE);
                    end.is_told = true;
                }
            }
        }
        Ok(end.code)
    }

    fn take(
        &self,
        said: StepOutput,
        output: &mut impl Write,
        end: &mut HelperEnd,
    ) -> Result<(), Failure> {
        match said {
            StepOutput::Output {
                stream: StepStream::Stdout,
                bytes,
                ..
            } => {
                let written = output.write_all(&bytes).and_then(|()| output.flush());
                if written.is_err() {
                    // The reader here is gone: so is the need for it.
                    self.peer.send(&StepInput::Signal {
                        signal: Signal::SIGTERM as u8,
                    });
                    end.until.get_or_insert(Instant::now() + END_PATIENCE);
                }
            }
            StepOutput::Output { bytes, .. } => {
                let text = String::from_utf8_lossy(&bytes);
                let lines = text.lines().map(printable);
                lines.for_each(|line| eprintln!("{}: {line}", self.node()));
            }
            StepOutput::Taken { bytes } => self.peer.taken(bytes),
            StepOutput::Ended { exit, text, .. } => {
                if !text.is_empty() {
                    eprintln!("{}: {}", self.node(), printable(&text));
                }
                if !end.is_told {
                    end.code = match exit.signal {
                        0 => exit.code,
                        signal => 128 + signal,
                    };
                }
                end.until = Some(Instant::now() + END_PATIENCE);
            }
            StepOutput::Refused { text } => {
                return Err(Failure::new(format_args!("{}", printable(&text))));
            }
            StepOutput::Used { usage, .. } => {
                end.used = Some(usage);
                end.is_over = true;
            }
            StepOutput::Hello { .. }
            | StepOutput::Started { .. }
            | StepOutput::News { .. }
            | StepOutput::Meeting { .. }
            | StepOutput::Layout { .. }
            | StepOutput::Fence { .. }
            | StepOutput::Direct { .. }
            | StepOutput::Aborted { .. }
            | StepOutput::Unknown => {}
        }
        Ok(())
    }

    fn report_end(self, code: u8, used: Option<Usage>) {
        let path = format!("/v1/jobs/{}/steps/{}/end", self.job, self.step.step);
        let end = StepEndRequest {
            exit_code: ExitCode::exited(code),
            used,
        };
        // The step ends with its job where the controller is away.
        let _ = self
            .client
            .wait_for(END_PATIENCE)
            .post_repeatable::<_, serde_json::Value>(&path, &end);
    }
}

/// How a helper ends.
#[derive(Default)]
struct HelperEnd {
    code: u8,
    used: Option<Usage>,
    is_over: bool,
    /// A signal from here ended it: its own exit code says nothing.
    is_told: bool,
    until: Option<Instant>,
}
