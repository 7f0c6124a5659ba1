//! `sbcast`: a file of this machine to each node of a job, as its user. Source: sbcast(1).
//!
//! A step of one task a node reads the file as its input. The task writes beside the target, compares the checksum, and only then
//! gives the file its name: whatever is killed, no part of a file stands under the target's name.

use crate::sent_file::{SourceFile, target};
use crate::step;
use crate::step_gathering::own_name;
use clap::{Arg, ArgAction, Command};
use gcli::pages::ManPage;
use gcli::{Failure, Outcome, command_line};
use gmodel::byte_text;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

const EXAMPLES: &str = "\
Examples:
  sbcast model.pt /tmp/model.pt            inside a job: to /tmp of each of its nodes
  sbcast -j 17 -f -p code.tar /dev/shm/c   to the nodes of job 17, over what is there, with its times and mode

The file is written beside the target and renamed when all of it has come: a reader of the target sees the whole file or none.
Without --force a file that is there is left alone. In a job with a private /tmp that /tmp is meant. A file system that all
nodes share needs no sbcast.";

/// Options of sbcast that only say how bytes travel there.
const OF_TRANSPORT: [(&str, &str); 5] = [
    ("compress", "bytes travel as they are"),
    ("fanout", "each node has a stream of its own"),
    ("size", "blocks are as large as the connection takes"),
    (
        "timeout",
        "a connection that breaks is made again for a minute",
    ),
    ("treewidth", "each node has a stream of its own"),
];

fn command() -> Command {
    let flag = |name: &'static str, short| {
        Arg::new(name)
            .long(name)
            .short(short)
            .action(ArgAction::SetTrue)
    };
    let transport = |name: &'static str, short: Option<char>| {
        let arg = Arg::new(name).long(name).hide(true).num_args(1);
        let arg = short.into_iter().fold(arg, Arg::short);
        match name {
            "compress" => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("lz4"),
            _ => arg,
        }
    };
    Command::new("sbcast")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Copy a file to each node of a job")
        .after_help(EXAMPLES)
        .args_override_self(true)
        .arg(flag("force", 'f').help("Replace a file that is there"))
        .arg(flag("preserve", 'p').help("Keep mode and time of the last change. Else the mode is the file's without what umask takes"))
        .arg(Arg::new("jobid").long("jobid").short('j').value_name("JOB").help("The job, instead of the one around"))
        .arg(flag("verbose", 'v').action(ArgAction::Count).help("Say what is sent"))
        .arg(flag("quiet", 'Q').hide(true))
        .arg(Arg::new("send-libs").long("send-libs").num_args(0..=1).require_equals(true).default_missing_value("yes").hide(true))
        .arg(Arg::new("exclude").long("exclude").hide(true))
        .arg(transport("compress", Some('C')))
        .arg(transport("fanout", Some('F')))
        .arg(transport("size", Some('s')))
        .arg(transport("timeout", Some('t')))
        .arg(transport("treewidth", None))
        .arg(Arg::new("SOURCE").required(true).help("The file here"))
        .arg(Arg::new("DEST").required(true).help("Its name on the nodes; below this directory if it does not begin with /"))
}

/// The man page.
pub fn page() -> ManPage {
    ManPage {
        command: command(),
        section: "1",
        exit_status: "1 also when a node did not take the file; the others have it.",
        see_also: "grun(1), gsub(1), gpupool(7)",
    }
}

/// `sbcast` itself.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Outcome {
    let mut words = words.into_iter();
    let program = words.next().unwrap_or_default();
    let text = |word: OsString| OsString::from(byte_text::from_bytes(word.as_bytes()));
    let words = std::iter::once(program.clone()).chain(words.map(text));
    let args = command_line::parse_explained(command(), words, |_| None)?;
    if args.contains_id("exclude")
        || args
            .get_one::<String>("send-libs")
            .is_some_and(|it| it != "no")
    {
        return Err(Failure::usage(
            "--send-libs: libraries of a program are not looked up. Send them by sbcast each, or an archive",
        ));
    }
    let own = own_name();
    for (name, why) in OF_TRANSPORT {
        if args.contains_id(name) {
            eprintln!("{own}: --{name} changes nothing here: {why}");
        }
    }
    let job = args.get_one::<String>("jobid");
    if let Some(step) = job.filter(|job| job.contains('.')) {
        return Err(Failure::usage(format_args!(
            "-j {step}: a file goes to all nodes of a job. Name the job alone"
        )));
    }
    if job.is_none() && step::own_job().is_err() {
        return Err(Failure::usage(
            "which job's nodes? Call it inside a job, or name a running one with -j",
        ));
    }
    let value = |name| args.get_one::<String>(name).map_or("", String::as_str);
    let file = SourceFile::open(value("SOURCE"), args.get_flag("preserve"))?;
    let target = target(value("DEST"))?;
    if args.get_count("verbose") > 0 {
        eprintln!(
            "{own}: {} bytes to {target}, SHA-256 {}",
            file.bytes, file.sum
        );
    }
    nix::unistd::dup2_stdin(&file.file)
        .map_err(|errno| Failure::new(format_args!("cannot read the file as input: {errno}")))?;
    let step = file.step(job.map(String::as_str), target, args.get_flag("force"));
    step::start(std::iter::once(program).chain(step), |_| None)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_sound() {
        super::command().debug_assert();
    }
}
