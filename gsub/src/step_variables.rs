//! Variables that are read where srun reads them: each is an option of a step that is called without it. Source: INPUT ENVIRONMENT
//! VARIABLES in srun(1).

use crate::option_words::{GivenOption, Origin, read};
use gcli::Failure;

/// Variables and options of a step; of two for one option the later counts.
const OF_STEP: [(&str, StepOption); 20] = [
    ("SLURM_STDINMODE", StepOption::Value("input")),
    ("SRUN_INPUT", StepOption::Value("input")),
    ("SLURM_STDOUTMODE", StepOption::Value("output")),
    ("SRUN_OUTPUT", StepOption::Value("output")),
    ("SLURM_STDERRMODE", StepOption::Value("error")),
    ("SRUN_ERROR", StepOption::Value("error")),
    ("SLURM_OPEN_MODE", StepOption::Value("open-mode")),
    ("SLURM_WORKING_DIR", StepOption::Value("chdir")),
    ("SLURM_LABELIO", StepOption::Flag("label")),
    ("SLURM_UNBUFFEREDIO", StepOption::Flag("unbuffered")),
    ("SLURM_DISABLE_STATUS", StepOption::Flag("disable-status")),
    ("SLURM_EXACT", StepOption::Flag("exact")),
    ("SLURM_OVERLAP", StepOption::Flag("overlap")),
    ("SLURM_WAIT", StepOption::Value("wait")),
    ("SLURM_KILL_BAD_EXIT", StepOption::Value("kill-on-bad-exit")),
    ("SLURM_TASK_PROLOG", StepOption::Value("task-prolog")),
    ("SLURM_TASK_EPILOG", StepOption::Value("task-epilog")),
    ("SLURM_BCAST", StepOption::Value("bcast")),
    ("SLURM_DEBUG", StepOption::Count("verbose")),
    ("SRUN_DEBUG", StepOption::Count("verbose")),
];

/// Variables and options of the job that a step outside of one asks for: inside of a job they describe that job.
const OF_JOB: [(&str, &str); 6] = [
    ("SLURM_NPROCS", "ntasks"),
    ("SLURM_NTASKS", "ntasks"),
    ("SLURM_NNODES", "nodes"),
    ("SLURM_NTASKS_PER_NODE", "ntasks-per-node"),
    ("SLURM_JOB_NAME", "job-name"),
    ("SRUN_CPUS_PER_TASK", "cpus-per-task"),
];

/// Whether it is a variable of a step, which its tasks see as well.
pub(crate) fn has(name: &str) -> bool {
    OF_STEP.iter().any(|(known, _)| *known == name)
}

#[derive(Clone, Copy)]
enum StepOption {
    Value(&'static str),
    /// On with any value but 0 and no.
    Flag(&'static str),
    /// So many times.
    Count(&'static str),
}

/// What the variables say of a step, as words that go before those of its command line. Set and empty is as unset.
pub(crate) fn of_step(variable: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let word = |(name, option): (&str, StepOption)| {
        let value = variable(name).filter(|value| !value.is_empty())?;
        match option {
            StepOption::Value(option) => Some(format!("--{option}={value}")),
            StepOption::Flag(_) if ["0", "no"].contains(&value.as_str()) => None,
            StepOption::Flag(option) => Some(format!("--{option}")),
            // srun knows no more than that.
            StepOption::Count(_) if !value.starts_with(|first| ('1'..='9').contains(&first)) => {
                None
            }
            StepOption::Count(option) => Some(format!("--{option}")),
        }
    };
    OF_STEP.into_iter().filter_map(word).collect()
}

/// What they say of a job that a step asks for, below what the command line says.
///
/// # Errors
/// A value that cannot be.
pub(crate) fn of_job(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<GivenOption>, Failure> {
    let mut given = Vec::new();
    for (name, option) in OF_JOB {
        if let Some(value) = variable(name).filter(|value| !value.is_empty()) {
            let words = [format!("--{option}={value}")];
            given.extend(read(&words, &Origin::Environment(name.to_owned()))?.0);
        }
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_options_of_a_step() {
        let set = |pairs: &'static [(&str, &str)]| {
            move |name: &str| {
                let pair = pairs.iter().find(|(known, _)| *known == name);
                pair.map(|(_, value)| (*value).to_owned())
            }
        };
        let words = of_step(set(&[
            ("SLURM_STDOUTMODE", "a"),
            ("SRUN_OUTPUT", "b"),
            ("SLURM_LABELIO", "1"),
            ("SLURM_UNBUFFEREDIO", "0"),
            ("SLURM_DEBUG", "2"),
            ("SRUN_DEBUG", "0"),
            ("SLURM_WAIT", ""),
        ]));
        assert_eq!(words.join(" "), "--output=a --output=b --label --verbose");
        let given = of_job(set(&[("SLURM_NPROCS", "5"), ("SLURM_NNODES", "1-2")])).unwrap();
        let given: Vec<String> = given
            .iter()
            .map(|given| format!("{}={}", given.option.name, given.text()))
            .collect();
        assert_eq!(given.join(" "), "ntasks=5 nodes=1-2");
    }

    #[test]
    fn every_variable_is_an_option_that_there_is() {
        let command = crate::step_args::command();
        for (name, option) in OF_STEP {
            let (StepOption::Value(option) | StepOption::Flag(option) | StepOption::Count(option)) =
                option;
            let is_there = command
                .get_arguments()
                .any(|arg| arg.get_long() == Some(option));
            assert!(is_there, "{name}: {option}");
        }
        for (name, option) in OF_JOB {
            assert!(
                of_job(|known| (known == name).then(|| "1".to_owned())).is_ok(),
                "{option}"
            );
        }
    }
}
