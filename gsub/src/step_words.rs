//! Words of srun that become other words of a step: options of jobs given to a step of one, ranges of nodes, an input file,
//! programs around each task. Starts nothing. Source: srun(1).

use crate::allocation::take_immediate;
use crate::allocation::words::{AllocationWords, is_also_steps};
use crate::resource_limits;
use crate::step_args::{StepArgs, command};
use crate::step_gathering::own_name;
use crate::step_input::InputWord;
use crate::step_output::os_string;
use crate::target_job::TargetJob;
use gcli::Failure;
use gmodel::duration::TimeLimit;
use gmodel::step_share::{GpuCountUnit, StepGpus};
use gmodel::task_distribution::TaskDistribution;
use gwire::api::StepLimits;
use std::fs::File;
use std::time::Duration;

/// What `gsub --distribution` told the job, and each step its tasks.
pub(crate) const DISTRIBUTION: &str = "SLURM_DISTRIBUTION";
const DISTRIBUTION_NOTE: &str =
    "--distribution says how ranks lie on nodes here; --cpu-bind says how they lie on cores";

/// The words of a step in a job.
pub(crate) struct WordsInJob {
    pub step: Vec<String>,
    pub immediate: Option<Duration>,
    /// What is said of options of which nothing comes.
    pub notes: Vec<String>,
}

impl WordsInJob {
    /// Options that ask for a job are the step's where grun has them.
    ///
    /// # Errors
    /// An `--immediate` without a number of seconds.
    pub fn of(program: &[String], apart: AllocationWords) -> Result<Self, Failure> {
        let (immediate, own) = take_immediate(apart.own)?;
        let mut step = [program, &own].concat();
        let mut notes = Vec::new();
        let own = command();
        for given in &apart.job {
            let name = given.option.name;
            match (given.note(), &given.value) {
                (Some(note), _) => notes.push(note),
                // It is among grun's own words already.
                _ if is_also_steps(name, &own) => {}
                (None, Some(value)) => step.push(format!("--{name}={value}")),
                (None, None) => step.push(format!("--{name}")),
            }
        }
        if !apart.command.is_empty() {
            step.push("--".to_owned());
            step.extend(apart.command);
        }
        Ok(Self {
            step,
            immediate,
            notes,
        })
    }
}

/// `-N 2`, or `-N 1-4`: as many as the job has.
pub(crate) fn nodes(args: &StepArgs, job: &TargetJob) -> Option<u32> {
    let (least, most) = args.nodes?;
    let has = job.variable("SLURM_JOB_NUM_NODES");
    let has = has.and_then(|text| text.parse().ok()).unwrap_or(most);
    Some(most.min(has).max(least))
}

/// Ranks that a node gets before it is the next node's turn, as the command line or the job has it.
///
/// # Errors
/// The job's variable is no such word.
pub(crate) fn plane(args: &StepArgs, job: &TargetJob) -> Result<u32, Failure> {
    let of_job = job.variable(DISTRIBUTION);
    let of_job = of_job
        .map(|text| TaskDistribution::parse(&text))
        .transpose();
    let of_job = of_job.map_err(|why| Failure::usage(format_args!("{DISTRIBUTION}: {why}")))?;
    if !args.quiet && args.distribution.is_some_and(|how| how.says_cores) {
        eprintln!("{}: {DISTRIBUTION_NOTE}", own_name());
    }
    Ok(args.distribution.or(of_job).map_or(0, |how| how.plane))
}

/// Its time, whether CPUs bound its tasks, and their limits: those of the job, where grun runs outside of it.
///
/// # Errors
/// A name of none.
pub(crate) fn limits(args: &StepArgs, job: &TargetJob) -> Result<StepLimits, Failure> {
    let own = resource_limits::own();
    let rlimits = match &args.propagate {
        Some(names) => resource_limits::named(&own, names)
            .map_err(|why| Failure::usage(format_args!("--propagate: {why}")))?,
        None if job.is_around => own,
        None => Vec::new(),
    };
    let time = args.time.and_then(TimeLimit::secs);
    Ok(StepLimits {
        time_limit_secs: time.and_then(|secs| u32::try_from(secs).ok()),
        rlimits,
        overcommit: args.overcommit || job.variable("SLURM_OVERCOMMIT").is_some(),
    })
}

/// The tasks that `--ntasks-per-gpu` makes of the GPUs of the step, or of its job.
///
/// # Errors
/// The GPUs cannot be counted.
pub(crate) fn tasks_by_gpus(
    args: &StepArgs,
    own: Option<&StepGpus>,
    job: &TargetJob,
) -> Result<Option<u32>, Failure> {
    let Some(each) = args.ntasks_per_gpu else {
        return Ok(args.ntasks);
    };
    let number = |name: &str| job.variable(name).and_then(|text| text.parse::<u32>().ok());
    let of_nodes = nodes(args, job).or_else(|| number("SLURM_JOB_NUM_NODES"));
    let gpus = match own {
        Some(gpus) if gpus.per == GpuCountUnit::Step => Some(gpus.count),
        Some(gpus) if gpus.per == GpuCountUnit::Node => {
            of_nodes.map(|nodes| gpus.count.saturating_mul(nodes))
        }
        Some(_) => None,
        None => number("SLURM_GPUS_ON_NODE")
            .zip(of_nodes)
            .map(|(each, nodes)| each * nodes),
    };
    gpus.map(|gpus| Some(gpus.saturating_mul(each)))
        .ok_or_else(|| {
            Failure::usage(
                "--ntasks-per-gpu: the GPUs of the step are not known as a number. Say --ntasks, or --gpus with it",
            )
        })
}

/// Makes the file stdin, if one was named.
///
/// # Errors
/// The file cannot be opened.
pub(crate) fn open_input(word: &InputWord) -> Result<(), Failure> {
    let InputWord::File(path) = word else {
        return Ok(());
    };
    let file = File::open(os_string(path))
        .map_err(|error| Failure::new(format_args!("--input {path}: {error}")))?;
    nix::unistd::dup2_stdin(&file)
        .map_err(|errno| Failure::new(format_args!("--input {path}: {errno}")))
}

/// Each task runs this: prolog or nothing, epilog or nothing, the program. The prolog's lines are data, never run.
const AROUND_TASK: &str = r#"prolog=$1 epilog=$2; shift 2
if [ -n "$prolog" ]; then
    said=$("$prolog") || { echo "$prolog ended with $?, and the task is not started" >&2; exit 1; }
    while IFS= read -r line; do
        case $line in
        "export "[A-Za-z_]*=*) line=${line#export }; export "${line%%=*}=${line#*=}" ;;
        "unset "[A-Za-z_]*) unset "${line#unset }" ;;
        "print "*) printf '%s\n' "${line#print }" ;;
        esac
    done <<END
$said
END
fi
[ -n "$epilog" ] || exec "$@"
"$@"; code=$?
"$epilog"; exit $code"#;

/// Puts `--task-prolog` and `--task-epilog` around the program. The step keeps the program's name.
///
/// # Errors
/// There are several programs.
pub(crate) fn put_around(args: &mut StepArgs, is_alone: bool) -> Result<(), Failure> {
    let (prolog, epilog) = (args.task_prolog.take(), args.task_epilog.take());
    if prolog.is_none() && epilog.is_none() {
        return Ok(());
    }
    if args.multi_prog || !is_alone {
        return Err(Failure::usage(
            "--task-prolog and --task-epilog go with one program: leave out --multi-prog and \":\"",
        ));
    }
    let program = args.command.first();
    let name = program
        .and_then(|path| path.rsplit('/').next())
        .unwrap_or_default();
    args.job_name.get_or_insert_with(|| name.to_owned());
    let around = ["/bin/sh", "-c", AROUND_TASK, "task"].map(str::to_owned);
    let around = around
        .into_iter()
        .chain([prolog, epilog].map(Option::unwrap_or_default));
    args.command = around.chain(args.command.drain(..)).collect();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::immediate;
    use crate::allocation::words::take_apart;

    fn in_job(words: &str) -> (String, Option<u64>, String) {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let apart = take_apart(&words, &command().arg(immediate())).unwrap();
        let words = WordsInJob::of(&["grun".to_owned()], apart).unwrap();
        let notes = words
            .notes
            .iter()
            .map(|note| note.split(' ').next().unwrap());
        (
            words.step.join(" "),
            words.immediate.map(|secs| secs.as_secs()),
            notes.collect::<Vec<_>>().join(" "),
        )
    }

    #[test]
    fn options_of_a_job_are_the_steps_where_it_has_them() {
        let same = |text: &str| (text.to_owned(), None, String::new());
        assert_eq!(
            in_job("-lN2 -n 4 -J x --gpus 1 true -N3"),
            same("grun -l -J x --nodes=2 --ntasks=4 --gpus=1 -- true -N3")
        );
        assert_eq!(
            in_job("--tres-per-task=cpu=2,gres/gpu:1 -K1 true"),
            same("grun --kill-on-bad-exit=1 --cpus-per-task=2 --gpus-per-task=1 -- true")
        );
        assert_eq!(
            in_job("--hint=nomultithread --network x -I5 -s true"),
            (
                "grun -- true".into(),
                Some(5),
                "--hint --network --oversubscribe".into()
            )
        );
    }

    #[test]
    fn a_prologs_lines_change_the_task_and_are_never_run() {
        let dir = tempfile::tempdir().unwrap();
        let program = |name: &str, text: &str| {
            use std::os::unix::fs::PermissionsExt;
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path.display().to_string()
        };
        let run = |prolog: &str, epilog: &str, script: &str| {
            let output = std::process::Command::new("/bin/sh")
                .args([
                    "-c",
                    AROUND_TASK,
                    "task",
                    prolog,
                    epilog,
                    "/bin/sh",
                    "-c",
                    script,
                ])
                .env("GONE", "1")
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            (text, output.status.code())
        };
        let prolog = program(
            "prolog",
            "echo 'export A=b c$(id)'; echo unset GONE; echo print hello; echo 'touch /nowhere; x'; echo 'export 1=2'",
        );
        let epilog = program("epilog", "echo after");
        assert_eq!(
            run(&prolog, &epilog, "echo \"$A-$GONE\"; exit 3"),
            ("hello\nb c$(id)-\nafter\n".into(), Some(3))
        );
        assert_eq!(run("", "", "echo it").0, "it\n");
        let bad = program("bad", "exit 4");
        assert_eq!(run(&bad, "", "echo it"), (String::new(), Some(1)));
    }
}
