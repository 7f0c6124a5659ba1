//! What is started for a job on its batch node: the script or the command, with its environment, directory and files.
//! Turns order and setup into a launch; never waits for it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use gmodel::launch_order::LaunchOrder;
use gmodel::pattern::{self, DEFAULT_ARRAY_OUTPUT, DEFAULT_OUTPUT, PatternContext, PatternError};
use gmodel::supervise::RunSetup;
use gmodel::{Timestamp, byte_text, job};
use gsys::cgroup::JoinFds;
use gsys::launch::{Bind, Identity, LaunchSpec, OpenMode, Stdio};

use crate::environment;
use crate::resource_limits::JobLimits;

/// The launch of the batch process. `script` is the script's copy, if there is a script; `started` is told to the job.
pub fn launch_spec<'a>(
    order: &LaunchOrder,
    setup: &RunSetup,
    limits: &JobLimits,
    script: Option<&Path>,
    join: Option<&'a JoinFds>,
    started: Timestamp,
) -> Result<LaunchSpec<'a>, PatternError> {
    let mut argv: Vec<OsString> = script
        .iter()
        .map(|path| path.as_os_str().to_owned())
        .collect();
    argv.extend(order.argv.iter().map(|word| os_string(word)));
    let mut spec = LaunchSpec::new(argv, identity(setup));
    spec.called = script.map(|_| "the job's script");
    spec.env = split_variables(environment::batch(order, setup, started));
    spec.pid_variables = environment::PID_NAMES.map(OsString::from).to_vec();
    set_limits(&mut spec, limits);
    spec.cwd = PathBuf::from(os_string(&order.work_dir));
    spec.umask = order.umask;
    spec.join = join;
    spec.confine_root = setup.restrict_root;
    spec.binds = binds(setup);
    let files = StandardFiles::of(order, &setup.node_name)?;
    let mode = output_mode(order);
    if let Some(path) = files.stdin {
        spec.stdin = Stdio::Open {
            path,
            mode: OpenMode::Read,
        };
    }
    spec.stderr = match files.stderr.filter(|path| *path != files.stdout) {
        Some(path) => Stdio::Open { path, mode },
        None => Stdio::SameAsStdout,
    };
    spec.stdout = Stdio::Open {
        path: files.stdout,
        mode,
    };
    Ok(spec)
}

/// The launch of a `--checkpoint` command: as the batch process, with its output appended to the job's.
pub fn checkpoint_spec<'a>(
    command: &str,
    order: &LaunchOrder,
    setup: &RunSetup,
    limits: &JobLimits,
    join: Option<&'a JoinFds>,
    started: Timestamp,
) -> Result<LaunchSpec<'a>, PatternError> {
    let mut spec = launch_spec(order, setup, limits, None, join, started)?;
    spec.argv = ["/bin/sh", "-c", command].map(OsString::from).to_vec();
    spec.stdin = Stdio::Null;
    for file in [&mut spec.stdout, &mut spec.stderr] {
        if let Stdio::Open { mode, .. } = file {
            *mode = OpenMode::Append;
        }
    }
    Ok(spec)
}

pub fn set_limits(spec: &mut LaunchSpec<'_>, limits: &JobLimits) {
    spec.rlimits.clone_from(&limits.session);
    spec.soft_limits.clone_from(&limits.soft);
}

pub fn identity(setup: &RunSetup) -> Identity {
    Identity {
        uid: setup.uid,
        gid: setup.gid,
        groups: setup.groups.clone(),
    }
}

/// Private directories of the job.
pub fn binds(setup: &RunSetup) -> Vec<Bind> {
    Bind::of_private_dirs(&setup.private_shm, &setup.private_tmp)
}

/// `NAME=value` lines as pairs.
pub fn split_variables(lines: Vec<String>) -> Vec<(OsString, OsString)> {
    lines
        .iter()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (os_string(name), os_string(value)))
        .collect()
}

/// The bytes that a text of the order stands for, which need not be UTF-8.
pub fn os_string(text: &str) -> OsString {
    OsString::from_vec(byte_text::to_bytes(text).into_owned())
}

/// Paths after the patterns, relative to the working directory.
#[derive(Debug, PartialEq, Eq)]
struct StandardFiles {
    stdin: Option<PathBuf>,
    stdout: PathBuf,
    stderr: Option<PathBuf>,
}

impl StandardFiles {
    fn of(order: &LaunchOrder, node_name: &str) -> Result<StandardFiles, PatternError> {
        let context = PatternContext {
            job_id: order.run.map_or(0, |run| run.job.0),
            array: order.array.as_ref().map(|task| (task.array.0, task.index)),
            job_name: &order.job_name,
            user_name: &order.user.name,
            node_name,
            node_index: order.node_index,
            step: None,
            task: 0,
        };
        let default = if order.array.is_some() {
            DEFAULT_ARRAY_OUTPUT
        } else {
            DEFAULT_OUTPUT
        };
        let stdout = if order.stdout.is_empty() {
            default
        } else {
            &order.stdout
        };
        let optional = |text: &str| match text {
            "" => Ok(None),
            text => {
                pattern::expand(text, &context).map(|path| Some(PathBuf::from(os_string(&path))))
            }
        };
        Ok(StandardFiles {
            stdin: optional(&order.stdin)?,
            stdout: os_string(&pattern::expand(stdout, &context)?).into(),
            stderr: optional(&order.stderr)?,
        })
    }
}

/// A job started again goes on in its file, unless it was asked otherwise.
fn output_mode(order: &LaunchOrder) -> OpenMode {
    let first = order.restarts() == 0;
    match order.open_mode {
        Some(job::OpenMode::Append) => OpenMode::Append,
        Some(job::OpenMode::Truncate) => OpenMode::Truncate,
        None if first => OpenMode::Truncate,
        None => OpenMode::Append,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::launch_order::ArrayTask;
    use gmodel::{JobId, RunId};

    #[test]
    fn output_goes_to_the_default_files_unless_named() {
        let mut order = LaunchOrder {
            run: Some(RunId::new(JobId(171), 1)),
            ..LaunchOrder::default()
        };
        let files = |order: &LaunchOrder| StandardFiles::of(order, "n1").unwrap();
        assert_eq!(files(&order).stdout, Path::new("gsub-171.out"));
        order.array = Some(ArrayTask {
            array: JobId(169),
            index: 2,
            ..ArrayTask::default()
        });
        assert_eq!(files(&order).stdout, Path::new("gsub-169_2.out"));
        order.stdout = "out/%A/%a.%N".into();
        order.stderr = "/dev/null".into();
        let named = files(&order);
        assert_eq!(
            (named.stdout.to_str(), named.stderr.as_deref()),
            (Some("out/169/2.n1"), Some(Path::new("/dev/null")))
        );
        assert_eq!(named.stdin, None);
    }

    #[test]
    fn a_second_attempt_appends_unless_told_to_truncate() {
        let mut order = LaunchOrder {
            run: Some(RunId::new(JobId(1), 1)),
            ..LaunchOrder::default()
        };
        assert_eq!(output_mode(&order), OpenMode::Truncate);
        order.run = Some(RunId::new(JobId(1), 2));
        assert_eq!(output_mode(&order), OpenMode::Append);
        order.open_mode = Some(job::OpenMode::Truncate);
        assert_eq!(output_mode(&order), OpenMode::Truncate);
    }
}
