//! The daemon's conversation with the supervisor of one run, and what was said on it. Decides nothing.

use crate::clock::wall_clock;
use crate::input::DaemonInput;
use crate::run::supervisor::Supervisor;
use crate::site::Site;
use anyhow::Result;
use gmodel::launch_order::LaunchOrder;
use gmodel::run::{EndCause, NumberedSignal, RunEnd, StopCause};
use gmodel::supervise::{StepOrder, StepOutput, SupervisorCommand, SupervisorReport};
use gmodel::{RunId, Timestamp};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

/// After the grace of a stop, or of the time limit: a supervisor that has not ended the run by then is asked whether it lives.
const ACT_PATIENCE: Duration = Duration::from_secs(20);

/// What a supervisor was told, and when.
#[derive(Clone, Copy, Debug, Default)]
struct SupervisorOrders {
    /// When it was told to stop, and the seconds that the job has.
    stop: Option<(Instant, u32)>,
    /// Since when the job runs, and its time limit.
    limit: Option<(Instant, u32)>,
    /// After the limit.
    kill_grace_secs: u32,
    heard: Option<Instant>,
}

impl SupervisorOrders {
    fn overdue(&self, now: Instant) -> Option<RunEnd> {
        let passed = |since: Instant, secs: u32| {
            now >= since + Duration::from_secs(secs.into()) + ACT_PATIENCE
        };
        let end = |cause, what: &str| RunEnd {
            cause,
            text: format!("{what}; its supervisor (gstepd) stood still, and gpud killed the run"),
            ..RunEnd::default()
        };
        if self.heard.is_some_and(|heard| now < heard + ACT_PATIENCE) {
            None
        } else if self.stop.is_some_and(|(said, secs)| passed(said, secs)) {
            Some(end(EndCause::Stopped, "stopped"))
        } else {
            let (since, limit_secs) = self.limit?;
            passed(since, limit_secs.saturating_add(self.kill_grace_secs)).then(|| {
                end(
                    EndCause::TimeLimit,
                    &format!("the time limit of {limit_secs} s was reached"),
                )
            })
        }
    }
}

/// The daemon's end of a conversation, with what was said on it: repeating costs nothing and says nothing.
#[derive(Debug)]
pub struct StepLink {
    pub connection: u64,
    sender: mpsc::UnboundedSender<SupervisorCommand>,
    /// For waiting for its end.
    pub process: Option<OwnedFd>,
    went: bool,
    limit: Option<Option<u32>>,
    suspended: Option<bool>,
    stop: Option<(StopCause, u32)>,
    /// When that was said.
    stop_said: Option<Instant>,
    /// Since when the job runs, by the monotonic clock and by the wall clock.
    runs: Option<(Instant, Timestamp)>,
    /// It answered when it was asked whether it lives.
    heard: Option<Instant>,
    signalled: u32,
}

impl StepLink {
    /// Begins to listen; what the supervisor says comes as [`DaemonInput::Step`], its silence as [`DaemonInput::StepGone`].
    pub fn open(
        run: RunId,
        connection: u64,
        supervisor: Supervisor,
        daemon: mpsc::Sender<DaemonInput>,
    ) -> Result<Self> {
        let Supervisor {
            stream,
            process,
            suspended,
        } = supervisor;
        let stream = tokio::net::UnixStream::from_std(stream)?;
        let (sender, queue) = mpsc::unbounded_channel();
        tokio::spawn(converse(run, connection, stream, queue, daemon));
        Ok(Self {
            connection,
            sender,
            process,
            went: false,
            limit: None,
            suspended,
            stop: None,
            stop_said: None,
            runs: None,
            heard: None,
            signalled: 0,
        })
    }

    pub fn go(&mut self) {
        if !std::mem::replace(&mut self.went, true) {
            self.say(SupervisorCommand::Go);
        }
    }
    pub fn limit(&mut self, limit_secs: Option<u32>) {
        if self.limit.replace(limit_secs) != Some(limit_secs) {
            self.say(SupervisorCommand::Limit { limit_secs });
        }
    }
    /// True when that is news.
    pub fn suspend(&mut self, suspended: bool) -> bool {
        let news = self.suspended.replace(suspended) != Some(suspended);
        if news {
            self.say(SupervisorCommand::Suspend { suspended });
        }
        news
    }
    pub fn stop(&mut self, why: StopCause, grace_secs: u32) {
        if self.stop.replace((why, grace_secs)) != Some((why, grace_secs)) {
            self.stop_said.get_or_insert_with(Instant::now);
            self.say(SupervisorCommand::Stop { why, grace_secs });
        }
    }
    /// `started`: the node's word, by a clock that may have been set since; it only says when the supervisor is asked.
    pub fn runs_since(&mut self, started: Timestamp) {
        let ran = Duration::from_millis(u64::try_from(wall_clock().0 - started.0).unwrap_or(0));
        let now = Instant::now();
        self.runs
            .get_or_insert((now.checked_sub(ran).unwrap_or(now), started));
    }
    pub fn heard_from(&mut self) {
        self.heard = Some(Instant::now());
    }
    /// The end to record of a run that its supervisor should have ended long ago; `None` while the supervisor still has time.
    pub fn overdue(&self, site: &Site, run: RunId) -> Option<RunEnd> {
        let order = site.spool.order(run).ok();
        let of_order = |value: &dyn Fn(&LaunchOrder) -> u32| order.as_deref().map_or(0, value);
        let checkpoint_secs = of_order(&|order| {
            order
                .checkpoint
                .as_ref()
                .map_or(0, |checkpoint| checkpoint.grace_secs)
        });
        let asked = SupervisorOrders {
            stop: self
                .stop
                .zip(self.stop_said)
                .map(|((_, grace_secs), said)| (said, grace_secs.saturating_add(checkpoint_secs))),
            limit: self
                .runs
                .zip(self.limit.flatten())
                .map(|((since, _), limit_secs)| (since, limit_secs)),
            kill_grace_secs: of_order(&|order| order.kill_grace_secs),
            heard: self.heard,
        };
        let end = asked.overdue(Instant::now())?;
        Some(RunEnd {
            started: self.runs.map(|(_, started)| started),
            ..end
        })
    }
    pub fn step(&mut self, step: StepOrder) {
        self.say(SupervisorCommand::Step {
            step: Box::new(step),
        });
    }
    pub fn signal(&mut self, signal: NumberedSignal) {
        if signal.number > self.signalled {
            self.signalled = signal.number;
            self.say(SupervisorCommand::Signal { signal });
        }
    }

    /// A supervisor that is gone says so by the end of its connection; nothing is lost with the words.
    fn say(&self, words: SupervisorCommand) {
        let _ = self.sender.send(words);
    }
}

/// Tells a waiting grun that none of its tasks starts here.
pub async fn refuse_step(order: StepOrder, text: String) {
    let Ok(address) = order.connect.parse::<std::net::SocketAddr>() else {
        return;
    };
    let hello = StepOutput::Hello {
        step: order.step,
        node_index: order.node_index,
        key: order.key,
    };
    let words = [hello.frame(), StepOutput::Refused { text }.frame()].concat();
    let say = async {
        let config = gwire::step_tls::client_config(&order.certificate)?;
        let stream = tokio::net::TcpStream::connect(address).await?;
        let grun = tokio_rustls::TlsConnector::from(config);
        let mut stream = grun.connect(gwire::step_tls::server_name(), stream).await?;
        stream.write_all(&words).await?;
        anyhow::Ok(stream.shutdown().await?)
    };
    // A grun that is gone needs no answer.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(5), say).await;
}

async fn converse(
    run: RunId,
    connection: u64,
    stream: tokio::net::UnixStream,
    mut queue: mpsc::UnboundedReceiver<SupervisorCommand>,
    daemon: mpsc::Sender<DaemonInput>,
) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    loop {
        tokio::select! {
            line = lines.next_line() => match line {
                Ok(Some(line)) => {
                    let Ok(words) = serde_json::from_str::<SupervisorReport>(&line) else { break };
                    let input = DaemonInput::Step { run, connection, words };
                    if daemon.send(input).await.is_err() {
                        return;
                    }
                }
                _ => break,
            },
            words = queue.recv() => {
                // The daemon has let go: closing tells the supervisor that its last word was heard.
                let Some(words) = words else { return };
                let mut lines = line_of(&words);
                // A limit and the word to go come together: one write wakes it once.
                while let Ok(more) = queue.try_recv() {
                    lines.extend(line_of(&more));
                }
                if write.write_all(&lines).await.is_err() {
                    break;
                }
            }
        }
    }
    let _ = daemon.send(DaemonInput::StepGone { run, connection }).await;
}

fn line_of(words: &SupervisorCommand) -> Vec<u8> {
    let mut line = serde_json::to_vec(words).expect("orders are plain data");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_is_given_its_grace_and_20_seconds_more() {
        let begun = Instant::now();
        let at = |secs: u64| begun + Duration::from_secs(secs);
        let cause = |asked: SupervisorOrders, secs| asked.overdue(at(secs)).map(|end| end.cause);
        let runs = SupervisorOrders {
            limit: Some((begun, 60)),
            kill_grace_secs: 5,
            ..SupervisorOrders::default()
        };
        assert_eq!(
            [84, 85].map(|secs| cause(runs, secs)),
            [None, Some(EndCause::TimeLimit)]
        );
        let stopped = SupervisorOrders {
            stop: Some((at(10), 30)),
            ..runs
        };
        assert_eq!(
            [59, 60].map(|secs| cause(stopped, secs)),
            [None, Some(EndCause::Stopped)]
        );
        assert_eq!(
            cause(
                SupervisorOrders {
                    heard: Some(at(60)),
                    ..stopped
                },
                79
            ),
            None,
            "it was slow"
        );
        assert_eq!(
            cause(SupervisorOrders::default(), 1 << 30),
            None,
            "no limit"
        );
    }
}
