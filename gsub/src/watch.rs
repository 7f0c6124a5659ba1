//! `sattach`, and `grun --watch`: the output of a running step beside the client that began it. It takes the stream from no other and
//! sends nothing; with `--pty` it takes the terminal over, as `grun --reattach` does. Source: sattach(1).

use crate::step::{self, StepChannel};
use crate::step_gathering::StepGathering;
use crate::step_message::Message;
use crate::step_nodes::{StreamUse, open_streams};
use clap::{Arg, ArgAction, Command};
use gcli::pages::ManPage;
use gcli::{Failure, Outcome, command_line};
use gmodel::byte_text;
use gmodel::supervise::StepOutput;
use gwire::api::{StepNodeRow, StepReply};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// Time that the nodes have to say which tasks they run.
const LAYOUT_PATIENCE: Duration = Duration::from_secs(15);

const EXAMPLES: &str = "\
Examples:
  sattach 17.0                        what the tasks write from now on; Ctrl-C leaves, and the step goes on
  sattach -l --output-filter 3 17.0   the fourth task's stdout only, marked with its rank
  sattach --layout 17.0               which tasks are on which node
  sattach --pty 17.0                  take over the step's terminal; its client is told";

/// What of a step is shown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watch {
    pub label: bool,
    /// Only the task of this rank: of stdout, of stderr.
    pub only: [Option<u32>; 2],
    pub layout: bool,
}

fn command() -> Command {
    let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    let filter = |name: &'static str| {
        let rank = clap::value_parser!(u32);
        Arg::new(name)
            .long(name)
            .value_name("RANK")
            .value_parser(rank)
    };
    Command::new("sattach")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Show what a running step writes, beside the grun that began it")
        .after_help(EXAMPLES)
        .args_override_self(true)
        .arg(
            flag("label")
                .short('l')
                .help("Put the rank before each line"),
        )
        .arg(filter("output-filter").help("Stdout of this task only"))
        .arg(filter("error-filter").help("Stderr of this task only"))
        .arg(filter("input-filter").hide(true))
        .arg(flag("layout").help("Say which tasks are on which node, and end"))
        .arg(
            flag("pty")
                .conflicts_with_all(["label", "output-filter", "error-filter", "layout"])
                .help("Take over the terminal of the step's first task, as grun --reattach"),
        )
        .arg(
            flag("quiet")
                .short('Q')
                .help("Say nothing besides errors, as always"),
        )
        .arg(
            Arg::new("verbose")
                .short('v')
                .long("verbose")
                .action(ArgAction::Count)
                .hide(true),
        )
        .arg(
            Arg::new("STEP")
                .required(true)
                .help("A job and the number of its step: 17.0"),
        )
}

/// The man page.
pub fn page() -> ManPage {
    ManPage {
        command: command(),
        section: "1",
        exit_status: "Else the highest of the step's tasks, as grun has it.",
        see_also: "grun(1), gq(1), gpupool(7)",
    }
}

/// `sattach` itself.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Outcome {
    let mut words = words.into_iter();
    let program = words.next().unwrap_or_default();
    let all = std::iter::once(program.clone()).chain(words);
    let args = command_line::parse_explained(command(), all, |_| None)?;
    let shown: &String = args.get_one("STEP").expect("clap requires it");
    if args.contains_id("input-filter") {
        return Err(Failure::usage(
            "--input-filter: a client that only watches sends no input. `sattach --pty` takes over the step's terminal",
        ));
    }
    if args.get_flag("pty") {
        return step::main([program, "--reattach".into(), shown.into()]);
    }
    let only = |name| args.get_one::<u32>(name).copied();
    watch(
        shown,
        Watch {
            label: args.get_flag("label"),
            only: [only("output-filter"), only("error-filter")],
            layout: args.get_flag("layout"),
        },
    )
}

/// `grun`: what it says of a step that another grun began is here, all else in `step`.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn grun(words: impl IntoIterator<Item = OsString>) -> Outcome {
    let words: Vec<OsString> = words.into_iter().collect();
    let is_named = |word: &OsString| word.as_bytes().starts_with(b"--watch");
    if words.iter().any(is_named) {
        let texts = words
            .iter()
            .map(|word| byte_text::from_bytes(word.as_bytes()));
        // What it cannot read may be the job's.
        if let Ok(args) = step::read(texts.collect())
            && let Some(shown) = &args.watch
        {
            let label = args.label;
            return watch(
                shown,
                Watch {
                    label,
                    ..Watch::default()
                },
            );
        }
    }
    step::main(words)
}

/// Shows a step (`17.0`) until it is over.
///
/// # Errors
/// There is no such step under way, or no node of it can be reached.
pub(crate) fn watch(shown: &str, watch: Watch) -> Outcome {
    let (job, number) = shown
        .split_once('.')
        .and_then(|(job, step)| Some((job, step.parse::<u32>().ok()?)))
        .ok_or_else(|| {
            Failure::usage(format_args!(
                "{shown:?} is no step. Name a job and the number of its step, as gq --steps lists them: 17.0"
            ))
        })?;
    let mut client = gcli::connect_inside("grun")?;
    let row = step::step_under_way(&mut client, job, shown)?;
    let last = row.ntasks.saturating_sub(1);
    if let Some(rank) = watch.only.into_iter().flatten().find(|rank| *rank > last) {
        return Err(Failure::usage(format_args!(
            "task {rank} is not in step {shown}: its last task is {last}"
        )));
    }
    let nodes = gmodel::hostlist::expand(&row.nodelist, gmodel::hostlist::MAX_HOSTS)
        .map_err(|error| Failure::new(format_args!("the controller's list of steps: {error}")))?;
    // Its nodes say which tasks they have.
    let unknown = |name: String| StepNodeRow {
        name,
        ranks: vec![0],
    };
    let reply = StepReply {
        step: number,
        nodes: nodes.into_iter().map(unknown).collect(),
        ..StepReply::default()
    };
    let StepChannel { sender, messages } = StepChannel::new();
    let peers = open_streams(client.socket()?, job, &reply, StreamUse::Watch, &sender)?;
    drop(sender);
    if watch.layout {
        return print_layout(&reply, &messages);
    }
    let mut gathering = StepGathering::new(&reply, watch.label);
    gathering.width = last.to_string().len();
    gathering.only = watch.only;
    gathering.run(&messages, &peers)
}

/// As sattach has it.
fn print_layout(step: &StepReply, messages: &std::sync::mpsc::Receiver<Message>) -> Outcome {
    let deadline = Instant::now() + LAYOUT_PATIENCE;
    let mut tasks: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    while tasks.len() < step.nodes.len() {
        let name = |at: u32| &step.nodes[at as usize].name;
        match messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Message::From(at, StepOutput::Layout { ranks })) => drop(tasks.insert(at, ranks)),
            Ok(Message::Failed(at, text)) => {
                return Err(Failure::new(format_args!("{}: {text}", name(at))));
            }
            Ok(Message::Gone(at)) if !tasks.contains_key(&at) => {
                return Err(Failure::new(format_args!("{}: the step is over", name(at))));
            }
            Ok(_) => {}
            Err(_) => {
                let mut silent = (0..)
                    .zip(&step.nodes)
                    .filter(|(at, _)| !tasks.contains_key(at));
                let silent = silent.next().map_or("", |(_, node)| &node.name);
                return Err(Failure::new(format_args!(
                    "{silent} did not say in {} s which tasks it has",
                    LAYOUT_PATIENCE.as_secs()
                )));
            }
        }
    }
    let count: usize = tasks.values().map(Vec::len).sum();
    let names: Vec<&str> = step.nodes.iter().map(|node| node.name.as_str()).collect();
    let list = gmodel::hostlist::compress(&names);
    let mut out = gcli::table::stdout()?;
    writeln!(
        out,
        "Job step layout:\n\t{count} tasks, {} nodes ({list})\n",
        names.len()
    )?;
    for ((at, ranks), name) in tasks.iter().zip(names) {
        let shown: String = ranks.iter().map(|rank| format!("{rank} ")).collect();
        writeln!(
            out,
            "\tNode {at} ({name}), {} task(s): {shown}",
            ranks.len()
        )?;
    }
    out.flush()?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_sound() {
        super::command().debug_assert();
    }
}
