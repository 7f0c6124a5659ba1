//! `sbcast`: a file of this machine to each node of a job, as its user. Source: sbcast(1).
//!
//! A step of one task a node reads the file as its input. The task writes beside the target, compares the checksum, and only then
//! gives the file its name: whatever is killed, no part of a file stands under the target's name.

use crate::step;
use crate::step_gathering::own_name;
use crate::step_output::os_string;
use clap::{Arg, ArgAction, Command};
use gcli::pages::ManPage;
use gcli::{Failure, Outcome, command_line};
use gmodel::byte_text;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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

/// What each node runs: target, bytes, SHA-256, mode, `1` to replace, time of the last change or nothing.
const RECEIVE: &str = r#"PATH=/usr/bin:/bin:/usr/sbin:/sbin; export PATH
say() { echo "sbcast: error: $SLURMD_NODENAME: $*" >&2; exit 1; }
target=$1 bytes=$2 sum=$3 mode=$4 replace=$5 changed=$6 dir=${1%/*}/
[ ! -d "$target" ] || say "$target is a directory: name the file in it"
[ "$replace" = 1 ] || [ ! -e "$target" ] || say "$target is there already: --force replaces it"
part=${dir}.sbcast.$SLURM_JOB_ID.$SLURM_STEP_ID.$SLURM_PROCID.$$
trap 'exit 143' TERM INT HUP
umask 077; set -C; { true > "$part"; } 2> /dev/null || say "no file can be made in $dir"
trap 'rm -f "$part"' EXIT
head -c "$bytes" >> "$part" || say "$dir: not all was written"
[ "$(sha256sum < "$part")" = "$sum  -" ] || say "the file did not arrive whole, or was changed on its way: nothing is put in place"
chmod "$mode" "$part" && { [ -z "$changed" ] || touch -d "@$changed" "$part"; } && sync "$part" || say "$part: no mode, time or room for it"
case $replace in
1) mv -fT "$part" "$target" ;;
*) ln -T "$part" "$target" ;;
esac || say "$target was not put in place""#;

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
    let replace = if args.get_flag("force") { "1" } else { "" };
    let mut step: Vec<String> = job.iter().map(|job| format!("--jobid={job}")).collect();
    step.extend(OPTIONS.map(str::to_owned));
    step.extend(["/bin/sh", "-c", RECEIVE, "sbcast"].map(str::to_owned));
    step.extend([target, file.bytes.to_string(), file.sum, file.mode]);
    step.extend([replace.to_owned(), file.changed]);
    let step = step.iter().map(|word| os_string(word));
    step::main(std::iter::once(program).chain(step))
}

/// The step: a task on each node of the job, beside all others and with no part of its own.
const OPTIONS: [&str; 8] = [
    "--overlap",
    "--ntasks-per-node=1",
    "--overcommit",
    "--cpu-bind=none",
    "--gpu-bind=none",
    "--export=NONE",
    "--chdir=/",
    "--job-name=sbcast",
];

/// The file, from its first byte.
struct SourceFile {
    file: File,
    bytes: u64,
    sum: String,
    /// As chmod reads it.
    mode: String,
    /// As touch reads it behind an `@`; empty: it is not kept.
    changed: String,
}

impl SourceFile {
    fn open(name: &str, preserve: bool) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new(format_args!("{name}: {error}"));
        let mut file = File::open(os_string(name)).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() {
            return Err(Failure::new(format_args!("{name} is no regular file")));
        }
        let (bytes, sum) = digest(&mut file).map_err(failed)?;
        file.rewind().map_err(failed)?;
        let umask = match preserve {
            true => 0,
            false => own_umask(),
        };
        Ok(Self {
            file,
            bytes,
            sum,
            mode: format!("{:04o}", about.mode() & 0o777 & !umask),
            changed: match preserve {
                true => format!("{}.{:09}", about.mtime(), about.mtime_nsec()),
                false => String::new(),
            },
        })
    }
}

fn digest(file: &mut File) -> std::io::Result<(u64, String)> {
    let (mut sha, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; 256 << 10]);
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            let hex = sha
                .finalize()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            return Ok((bytes, hex));
        }
        sha.update(&piece[..count]);
        bytes += count as u64;
    }
}

fn own_umask() -> u32 {
    use nix::sys::stat::{Mode, umask};
    let own = umask(Mode::empty());
    umask(own);
    own.bits()
}

/// The target as an absolute path.
fn target(name: &str) -> Result<String, Failure> {
    if name.is_empty() || name.ends_with('/') {
        return Err(Failure::usage(format_args!(
            "{name:?} is no file's name: say under which name the nodes have it"
        )));
    }
    let own = std::env::current_dir()
        .map_err(|error| Failure::new(format_args!("cannot tell the directory: {error}")))?;
    let path = own.join(Path::new(&os_string(name)));
    Ok(byte_text::from_bytes(path.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_file_by_its_whole_name() {
        assert_eq!(target("/tmp/x").unwrap(), "/tmp/x");
        let here = std::env::current_dir().unwrap();
        assert_eq!(target("x").unwrap(), format!("{}/x", here.display()));
        assert!(target("").is_err() && target("/tmp/").is_err());
        command().debug_assert();
    }

    #[test]
    fn a_source_is_a_regular_file_and_its_digest_is_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "abc").unwrap();
        let file = SourceFile::open(path.to_str().unwrap(), true).unwrap();
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((file.bytes, file.sum.as_str()), (3, sum));
        assert!(SourceFile::open(dir.path().to_str().unwrap(), true).is_err());
        assert!(SourceFile::open("/dev/zero", false).is_err());
    }
}
