//! `grun -n1 A : -n4 B`: several programs in one step, each with the ranks behind the one before. Source: srun(1) on heterogeneous
//! steps.

use clap::Parser;
use gcli::Failure;
use gwire::api::StepProgram;

/// Between two programs.
pub(crate) const SEPARATOR: &str = ":";

/// What a program behind the first may say of its own.
#[derive(Parser)]
#[command(name = "grun", disable_help_flag = true, disable_version_flag = true)]
struct ProgramArgs {
    #[arg(short = 'N', long)]
    nodes: Option<u32>,
    #[arg(short = 'n', long)]
    ntasks: Option<u32>,
    #[arg(long, alias = "tasks-per-node")]
    ntasks_per_node: Option<u32>,
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

/// Of `:` behind the program of a job.
pub(crate) const LATE_SEPARATOR: &str = "\":\" stands between the options of a job's parts, before the script or command, as in: gsub --gpus 8 : --cpus-per-task 16 train.sh";

/// Takes the programs behind the first out of a command.
///
/// # Errors
/// A program without a command, or with options that are the whole step's.
pub(crate) fn take_others(command: &mut Vec<String>) -> Result<Vec<StepProgram>, Failure> {
    let mut parts = command.split(|word| word == SEPARATOR);
    let first = parts.next().unwrap_or_default().to_vec();
    let others = parts.map(program).collect::<Result<_, _>>()?;
    if first.is_empty() {
        return Err(no_command());
    }
    *command = first;
    Ok(others)
}

fn program(words: &[String]) -> Result<StepProgram, Failure> {
    let words = std::iter::once("grun").chain(words.iter().map(String::as_str));
    let args = ProgramArgs::try_parse_from(words.clone()).map_err(|error| {
        let is_missing = error.kind() == clap::error::ErrorKind::MissingRequiredArgument;
        let option = words.clone().find(|word| word.starts_with('-')).unwrap_or_default();
        match is_missing {
            true => no_command(),
            false => Failure::usage(format_args!(
                "{option}: behind \":\" a program has -N, -n and --ntasks-per-node of its own. The other options are the step's: give them before the first program"
            )),
        }
    })?;
    Ok(StepProgram {
        argv: args.command,
        nodes: args.nodes,
        ntasks: args.ntasks,
        ntasks_per_node: args.ntasks_per_node,
    })
}

pub(crate) fn no_command() -> Failure {
    Failure::usage(
        "on each side of \":\" a command is needed, as in: grun -n1 ./master : -n4 ./worker",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Result<String, String> {
        let mut command: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let others = take_others(&mut command).map_err(|failure| failure.text)?;
        let show = |other: &StepProgram| {
            format!(
                "{:?} on {:?}: {}",
                other.ntasks,
                other.nodes,
                other.argv.join(" ")
            )
        };
        let others: Vec<String> = others.iter().map(show).collect();
        Ok(format!("{} | {}", command.join(" "), others.join(" | ")))
    }

    #[test]
    fn programs_are_split_at_their_colons() {
        assert_eq!(
            split("./a x : -n4 ./b -n 3 : -N2 --ntasks 5 -- c").unwrap(),
            "./a x | Some(4) on None: ./b -n 3 | Some(5) on Some(2): c"
        );
        assert_eq!(split("echo a:b").unwrap(), "echo a:b | ");
    }

    #[test]
    fn options_of_the_whole_step_behind_a_colon_are_refused() {
        let refused = split("a : --gpus 2 b").unwrap_err();
        assert!(
            refused.starts_with("--gpus: behind \":\" a program has -N, -n"),
            "{refused}"
        );
        for text in ["a :", ": a", "a : : b", "a : -n2"] {
            assert!(
                split(text).unwrap_err().starts_with("on each side of"),
                "{text}"
            );
        }
    }
}
