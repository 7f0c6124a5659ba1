//! A step that asks for parts of its job for itself, and its turn to get them: `--exact`, `--gpus`, `--mem` of grun.
//!
//! The controller says what is free and keeps no queue: a waiting grun asks again. Source: srun(1).

use crate::signal_wait::signal_within;
use crate::step_gathering::own_name;
use gcli::Failure;
use gmodel::ExitCode;
use gmodel::gpu_request::GpuRequest;
use gmodel::image_pull::ToldPull;
use gmodel::size::parse_bytes;
use gmodel::step_share::{GpuCountUnit, StepGpus, StepShareRequest};
use gwire::api::{StepEndRequest, StepHolder, StepReply, StepRequest, StepWaits};
use gwire::client::Client;
use nix::sys::signal::{SigSet, Signal};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Between two questions, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A wait for no other step is told after this.
const ANNOUNCE_AFTER: Duration = Duration::from_secs(1);
/// Between two looks for gruns that were killed and hold their parts still.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A grun that lives takes a connection at once; holders looked at, at a time.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);
const MAX_LOOKED_AT: usize = 64;

/// What the command line says of parts of the job.
#[derive(Debug, Default)]
pub(crate) struct ShareWords<'a> {
    pub exact: bool,
    pub overlap: bool,
    pub cpus_per_task: Option<u32>,
    pub mem: Option<&'a str>,
    pub mem_per_cpu: Option<&'a str>,
    pub mem_per_gpu: Option<&'a str>,
    pub gpus: Option<&'a str>,
    pub gpus_per_node: Option<&'a str>,
    pub gpus_per_task: Option<&'a str>,
    pub gres: Option<&'a str>,
}

impl ShareWords<'_> {
    /// What is asked for; `None`: the step shares all of its job. `of_job` is what the job's tasks were given.
    ///
    /// # Errors
    /// Numbers that are none, and what a step cannot choose.
    pub(crate) fn ask(&self, of_job: &TasksOfJob) -> Result<Option<StepShareRequest>, Failure> {
        let bytes = |flag: &str, text: Option<&str>| match text {
            None => Ok(0),
            Some(text) => parse_bytes(text)
                .map_err(|error| Failure::usage(format_args!("{flag} {text}: {error}"))),
        };
        let per_task = self.exact.then_some(of_job.gpus).flatten();
        let ask = StepShareRequest {
            cpus_per_task: if self.exact {
                self.cpus_per_task.unwrap_or(of_job.cpus).max(1)
            } else {
                0
            },
            mem_bytes: bytes("--mem", self.mem)?,
            mem_per_cpu_bytes: bytes("--mem-per-cpu", self.mem_per_cpu)?,
            mem_per_gpu_bytes: bytes("--mem-per-gpu", self.mem_per_gpu)?,
            gpus: self.gpus()?.or(per_task.map(|count| StepGpus {
                per: GpuCountUnit::Task,
                count,
                gpu_type: None,
            })),
            overlap: false,
        };
        Ok(
            (ask != StepShareRequest::default()).then_some(StepShareRequest {
                overlap: self.overlap,
                ..ask
            }),
        )
    }

    /// GPUs of the step's own, as far as the command line names some. That a step has none may be said in several ways.
    ///
    /// # Errors
    /// As [`ShareWords::ask`]; two numbers.
    pub(crate) fn gpus(&self) -> Result<Option<StepGpus>, Failure> {
        let read = |flag: &str,
                    text: Option<&str>,
                    per: GpuCountUnit|
         -> Result<Option<StepGpus>, Failure> {
            let Some(text) = text else { return Ok(None) };
            let said = |error: &dyn std::fmt::Display| {
                Failure::usage(format_args!("{flag} {text}: {error}"))
            };
            let ask = if flag == "--gres" {
                GpuRequest::parse_gres(text)
            } else {
                GpuRequest::parse(text)
            };
            StepGpus::of(per, &ask.map_err(|error| said(&error))?)
                .map(Some)
                .map_err(|why| said(&why))
        };
        let all = [
            read("--gpus-per-task", self.gpus_per_task, GpuCountUnit::Task)?,
            read("--gpus", self.gpus, GpuCountUnit::Step)?,
            read("--gpus-per-node", self.gpus_per_node, GpuCountUnit::Node)?,
            read("--gres", self.gres, GpuCountUnit::Node)?,
        ];
        // Of srun a zero takes back what the job's environment says of that option, and no more.
        let (none, mut some): (Vec<StepGpus>, Vec<StepGpus>) =
            all.into_iter().flatten().partition(|gpus| gpus.count == 0);
        if some.len() > 1 {
            return Err(Failure::usage(
                "--gpus, --gpus-per-node, --gpus-per-task and --gres each say how many GPUs the step has: give one of them",
            ));
        }
        Ok(some.pop().or(none.into_iter().next()))
    }
}

/// What `gsub` gave each task of the job.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TasksOfJob {
    pub cpus: u32,
    /// Whole GPUs, or slices; `None`: it was not said by the task.
    pub gpus: Option<u32>,
}

/// How a grun waits for its turn.
#[derive(Clone, Copy)]
pub(crate) struct TurnRules {
    pub quiet: bool,
    /// It gives up then.
    pub immediate: Option<Duration>,
}

/// Starts the step, as soon as what it asks for is free. `signals` are blocked; one that ends programs ends the waiting.
///
/// # Errors
/// The controller's refusal; the signal, as an exit code.
pub(crate) fn start(
    client: &mut Client,
    job: &str,
    request: &StepRequest,
    signals: &SigSet,
    rules: TurnRules,
) -> Result<StepReply, Failure> {
    let path = format!("/v1/jobs/{job}/steps");
    let (mut pause, mut looked): (Duration, Option<Instant>) = (FIRST_PAUSE, None);
    let (begun, mut is_told) = (Instant::now(), rules.quiet);
    let mut told_pull = ToldPull::default();
    loop {
        let waits = match client.post::<_, StepReply>(&path, request) {
            Ok(StepReply {
                waits: Some(waits), ..
            }) => waits,
            Ok(step) => return Ok(step),
            // A controller that is away now will be back; then it says whether our turn has come.
            Err(error) if looked.is_some() && error.is_unreachable() => StepWaits::default(),
            Err(error) => return Err(error.into()),
        };
        if rules.immediate.is_some_and(|most| begun.elapsed() >= most) {
            return Err(Failure::new(format_args!(
                "the step would wait, and --immediate forbids it: {}",
                waits.reason
            )));
        }
        // Nodes are prepared in a moment, usually.
        let is_news = !waits.holders.is_empty() || begun.elapsed() >= ANNOUNCE_AFTER;
        if let Some(progress) = waits.pull.filter(|_| !rules.quiet) {
            if told_pull.is_news(progress) {
                eprintln!("{}: {}", own_name(), waits.reason);
            }
        } else if is_news && !std::mem::replace(&mut is_told, true) {
            eprintln!("{}: waiting: {}", own_name(), waits.reason);
        }
        if looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            looked = Some(Instant::now());
            end_deserted(client, job, &waits.holders, &request.callback.connect);
        }
        if let Some(signal) = signal_within(signals, pause) {
            return Err(Failure::silent(128 + signal));
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Reports the end of steps of killed gruns: their ports refuse connections. A step at the port of this grun is its
/// own, left by an answer that was lost.
fn end_deserted(client: &mut Client, job: &str, holders: &[StepHolder], own: &str) {
    for holder in holders
        .iter()
        .take(MAX_LOOKED_AT)
        .filter(|holder| !holder.connect.is_empty())
        .filter(|holder| holder.connect == own || is_gone(&holder.connect, own))
    {
        let end = StepEndRequest {
            exit_code: ExitCode::killed(Signal::SIGKILL as u8),
            used: None,
        };
        // If it cannot be said now, the next look will.
        let _ = client.post_repeatable::<_, serde_json::Value>(
            &format!("/v1/jobs/{job}/steps/{}/end", holder.step),
            &end,
        );
    }
}

/// Whether the port refuses connections. A loopback address says nothing of a grun on another machine.
fn is_gone(connect: &str, own: &str) -> bool {
    let loopback = |address: &SocketAddr| address.ip().is_loopback();
    let (Ok(address), Ok(own)) = (connect.parse::<SocketAddr>(), own.parse::<SocketAddr>()) else {
        return false;
    };
    let is_told = !loopback(&address) || loopback(&own);
    is_told
        && TcpStream::connect_timeout(&address, LOOK_PATIENCE)
            .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_JOB: TasksOfJob = TasksOfJob {
        cpus: 4,
        gpus: None,
    };

    fn ask(words: &ShareWords<'_>) -> StepShareRequest {
        words.ask(&OF_JOB).unwrap().unwrap_or_default()
    }

    #[test]
    fn a_step_has_for_itself_what_it_names() {
        assert_eq!(ShareWords::default().ask(&OF_JOB).unwrap(), None);
        let exact = ShareWords {
            exact: true,
            ..ShareWords::default()
        };
        assert_eq!((ask(&exact).cpus_per_task, ask(&exact).gpus), (4, None));
        let own = ShareWords {
            cpus_per_task: Some(1),
            mem: Some("2G"),
            mem_per_cpu: Some("512M"),
            ..exact
        };
        let own = ask(&own);
        assert_eq!(
            (own.cpus_per_task, own.mem_bytes, own.mem_per_cpu_bytes),
            (1, 2 << 30, 512 << 20)
        );
        let gres = ask(&ShareWords {
            gres: Some("gpu:h100:2"),
            ..ShareWords::default()
        });
        assert_eq!(
            (gres.cpus_per_task, gres.gpus),
            (
                0,
                Some(StepGpus {
                    per: GpuCountUnit::Node,
                    count: 2,
                    gpu_type: Some("h100".into())
                })
            )
        );
        let none = ask(&ShareWords {
            gres: Some("none"),
            ..ShareWords::default()
        });
        assert_eq!(none.gpus.map(|gpus| gpus.count), Some(0));
        let over = |words: ShareWords<'_>| {
            words
                .ask(&OF_JOB)
                .unwrap()
                .map(|ask| (ask.overlap, ask.mem_bytes))
        };
        assert_eq!(
            over(ShareWords {
                overlap: true,
                ..ShareWords::default()
            }),
            None,
            "it shares all of its job anyway"
        );
        assert_eq!(
            over(ShareWords {
                overlap: true,
                mem: Some("1G"),
                ..ShareWords::default()
            }),
            Some((true, 1 << 30))
        );
    }

    #[test]
    fn where_the_jobs_tasks_have_gpus_each_those_of_an_exact_step_do_unless_it_says_otherwise() {
        let of_job = TasksOfJob {
            cpus: 1,
            gpus: Some(2),
        };
        let per = |words: ShareWords<'_>| {
            words
                .ask(&of_job)
                .unwrap()
                .and_then(|ask| ask.gpus)
                .map(|gpus| (gpus.per, gpus.count))
        };
        assert_eq!(
            per(ShareWords {
                exact: true,
                ..ShareWords::default()
            }),
            Some((GpuCountUnit::Task, 2))
        );
        assert_eq!(
            per(ShareWords {
                exact: true,
                gpus: Some("1"),
                ..ShareWords::default()
            }),
            Some((GpuCountUnit::Step, 1))
        );
        assert_eq!(per(ShareWords::default()), None);
    }

    #[test]
    fn what_a_step_cannot_choose_is_refused_with_the_option() {
        let refusal = |words: ShareWords<'_>| words.ask(&OF_JOB).unwrap_err().text;
        assert!(
            refusal(ShareWords {
                gpus: Some("h100:1|a100:1"),
                ..ShareWords::default()
            })
            .starts_with("--gpus h100:1|a100:1: a step takes GPUs")
        );
        assert!(
            refusal(ShareWords {
                mem: Some("many"),
                ..ShareWords::default()
            })
            .starts_with("--mem many: ")
        );
        assert!(
            refusal(ShareWords {
                gres: Some("gpu:1"),
                gpus: Some("1"),
                ..ShareWords::default()
            })
            .ends_with("give one of them")
        );
        let own = |words: ShareWords<'_>| words.gpus().unwrap().map(|gpus| (gpus.per, gpus.count));
        assert_eq!(
            own(ShareWords {
                gpus: Some("2"),
                gpus_per_node: Some("0"),
                ..ShareWords::default()
            }),
            Some((GpuCountUnit::Step, 2))
        );
        assert_eq!(
            own(ShareWords {
                gpus_per_task: Some("1"),
                gpus_per_node: Some("0"),
                gres: Some("none"),
                ..ShareWords::default()
            }),
            Some((GpuCountUnit::Task, 1))
        );
        let none = ShareWords {
            gres: Some("none"),
            gpus_per_task: Some("0"),
            ..ShareWords::default()
        };
        assert_eq!(none.gpus().unwrap().map(|gpus| gpus.count), Some(0));
        assert!(
            refusal(ShareWords {
                gres: Some("fpga:1"),
                ..ShareWords::default()
            })
            .starts_with("--gres fpga:1: ")
        );
    }

    #[test]
    fn a_grun_is_gone_when_its_port_is_closed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap().to_string();
        assert!(!is_gone(&there, "127.0.0.1:1"));
        drop(listener);
        assert!(is_gone(&there, "127.0.0.1:1"));
        assert!(
            !is_gone(&there, "10.0.0.7:1"),
            "that is another machine's loopback"
        );
        assert!(!is_gone("nowhere", "127.0.0.1:1"));
    }

    #[test]
    fn a_signal_ends_the_waiting_and_time_does_not() {
        // Signals are the thread's own here: other tests do not see them.
        let signals: SigSet = [Signal::SIGUSR2, Signal::SIGHUP].into_iter().collect();
        signals.thread_block().unwrap();
        assert_eq!(signal_within(&signals, Duration::from_millis(1)), None);
        for (signal, ends) in [
            (Signal::SIGUSR2, None),
            (Signal::SIGHUP, Some(Signal::SIGHUP as u8)),
        ] {
            nix::sys::signal::raise(signal).unwrap();
            assert_eq!(signal_within(&signals, Duration::from_secs(5)), ends);
        }
    }
}
