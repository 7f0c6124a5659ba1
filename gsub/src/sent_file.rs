//! A file on its way to each node of a job, as a step beside all others: for `sbcast` and `srun --bcast`. Source: sbcast(1), srun(1).

use crate::step_output::os_string;
use gcli::Failure;
use gmodel::byte_text;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

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

/// `srun --bcast`: sends the program of a step to all nodes of its job, and has the step start it there. `dest` is its name there;
/// empty, or ending with `/`: one that is made for it, here or in that directory.
///
/// # Errors
/// The program is no file; a node did not take it.
pub(crate) fn send_program(dest: &str, job: &str, command: &mut [String]) -> Result<(), Failure> {
    let Some(program) = command.first_mut() else {
        return Ok(());
    };
    let target = match dest.is_empty() || dest.ends_with('/') {
        true => target(&format!("{dest}slurm_bcast_{}_{}", job, std::process::id()))?,
        false => target(dest)?,
    };
    let own = std::env::current_exe().map_err(|error| {
        Failure::new(format_args!("--bcast: cannot tell its own file: {error}"))
    })?;
    let file = found(program);
    let words = ["--force", "--jobid", job, "--", &file, &target];
    let sent = std::process::Command::new(own)
        .arg0("sbcast")
        .args(words.map(os_string))
        .stdin(std::process::Stdio::null())
        .status()?;
    if !sent.success() {
        return Err(Failure::new(format_args!(
            "--bcast: not all nodes took {target}"
        )));
    }
    *program = target;
    Ok(())
}

/// Where a program lies: by its path, or in a directory of `PATH`.
fn found(program: &str) -> String {
    let path = std::env::var_os("PATH").filter(|_| !program.contains('/'));
    let places = path.iter().flat_map(std::env::split_paths);
    let file = places
        .map(|dir| dir.join(os_string(program)))
        .find(|file| file.is_file());
    file.map_or(program.to_owned(), |file| {
        byte_text::from_bytes(file.as_os_str().as_bytes())
    })
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
pub(crate) struct SourceFile {
    pub file: File,
    pub bytes: u64,
    pub sum: String,
    /// As chmod reads it.
    mode: String,
    /// As touch reads it behind an `@`; empty: it is not kept.
    changed: String,
}

impl SourceFile {
    pub fn open(name: &str, preserve: bool) -> Result<Self, Failure> {
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

impl SourceFile {
    /// The words of the step that takes it on each node.
    pub fn step(&self, job: Option<&str>, target: String, replace: bool) -> Vec<OsString> {
        let replace = if replace { "1" } else { "" };
        let mut step: Vec<String> = job.iter().map(|job| format!("--jobid={job}")).collect();
        step.extend(OPTIONS.map(str::to_owned));
        step.extend(["/bin/sh", "-c", RECEIVE, "sbcast"].map(str::to_owned));
        step.extend([target, self.bytes.to_string()]);
        step.extend([self.sum.clone(), self.mode.clone()]);
        step.extend([replace.to_owned(), self.changed.clone()]);
        step.iter().map(|word| os_string(word)).collect()
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
pub(crate) fn target(name: &str) -> Result<String, Failure> {
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
    }

    #[test]
    fn a_program_without_a_path_is_looked_up() {
        assert!(found("sh").ends_with("/sh"));
        assert_eq!(
            (found("./sh").as_str(), found("nosuch-program").as_str()),
            ("./sh", "nosuch-program")
        );
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
