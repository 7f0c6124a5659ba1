//! One step over several components of a job of unlike parts: `grun --het-group 0,1`, and `:` between programs in such a job, or
//! outside of one. Source: srun(1) on heterogeneous steps.

use crate::allocation::take_immediate;
use crate::allocation::words::{AllocationWords, take_apart};
use crate::environment;
use crate::multi_prog::rank_list;
use crate::option_words::GivenOption;
use crate::step::{self, StepWork};
use crate::step_args::StepArgs;
use crate::step_input::InputRanks;
use crate::step_nodes::CallbackListener;
use crate::step_output::{StepFiles, StepJob};
use crate::step_programs::{SEPARATOR, no_command};
use crate::step_variables;
use crate::step_words::WordsInJob;
use crate::target_job::TargetJob;
use gcli::Failure;
use gwire::api::{ComponentStep, StepReply, StepRequest};
use std::time::Duration;

/// The part of a step in one component.
pub(crate) struct StepPart {
    pub args: StepArgs,
    pub job: TargetJob,
}

/// Components by their numbers, in the order of their ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Components(pub Vec<u32>);

impl Components {
    /// `1`, `0,2-3`.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let numbers = rank_list(text);
        numbers
            .map(Self)
            .ok_or("components are numbers from 0: 1, or 0,2-3")
    }
}

/// Whether grun stands in a job of unlike parts.
fn are_around() -> bool {
    environment::own("SLURM_HET_SIZE").is_some()
}

/// The words of each component, which `:` separates behind the program of the one before.
///
/// # Errors
/// A side of `:` without a command; values that are missing.
fn split(mut first: AllocationWords) -> Result<Vec<AllocationWords>, Failure> {
    let command_line = step::own_options();
    let words = std::mem::take(&mut first.command);
    let mut sides = words.split(|word| word == SEPARATOR);
    first.command = sides.next().unwrap_or_default().to_vec();
    let others = sides.map(|side| take_apart(side, &command_line));
    let parts: Vec<_> = std::iter::once(Ok(first))
        .chain(others)
        .collect::<Result<_, _>>()?;
    match parts.len() > 1 && parts.iter().any(|part| part.command.is_empty()) {
        true => Err(no_command()),
        false => Ok(parts),
    }
}

/// What the command line says of the step in each component.
pub(crate) struct PartsInJob {
    pub parts: Vec<StepArgs>,
    /// What is said of options of which nothing comes.
    pub notes: Vec<String>,
}

/// The parts of a step in a job: several only in a job of unlike parts. `variables` are options that each of them has.
///
/// # Errors
/// Words that grun has not.
pub(crate) fn in_job(
    program: &[String],
    apart: AllocationWords,
    variables: &[String],
) -> Result<PartsInJob, Failure> {
    let sides = match are_around() {
        true => split(apart)?,
        false => vec![apart],
    };
    let is_one = sides.len() == 1;
    let program = [program, variables].concat();
    let (mut parts, mut notes) = (Vec::new(), Vec::new());
    for (side, at) in sides.into_iter().zip(0..) {
        let words = WordsInJob::of(&program, side)?;
        notes.extend(words.notes);
        let mut args = step::read(words.step)?;
        args.immediate = words.immediate;
        let numbers = match args.het_group.take() {
            Some(named) => named.0.into_iter().map(Some).collect(),
            None if is_one => vec![None],
            None => vec![Some(at)],
        };
        parts.extend(numbers.into_iter().map(|number| StepArgs {
            het_group: number.map(|number| Components(vec![number])),
            ..args.clone()
        }));
    }
    agree(&mut parts)?;
    Ok(PartsInJob { parts, notes })
}

/// What grun asks for outside of a job.
pub(crate) struct PartsOfNewJob {
    /// What asks for each component.
    pub asked: Vec<Vec<GivenOption>>,
    pub parts: Vec<StepArgs>,
    pub immediate: Option<Duration>,
}

/// # Errors
/// Words that grun has not.
pub(crate) fn of_new_job(
    program: &[String],
    apart: AllocationWords,
    variables: &[String],
) -> Result<PartsOfNewJob, Failure> {
    let (mut asked, mut parts, mut first_immediate) = (Vec::new(), Vec::new(), None);
    for side in split(apart)? {
        let (immediate, own) = take_immediate(side.own)?;
        first_immediate = first_immediate.or(immediate);
        let dashes = ["--".to_owned()];
        let words = [program, variables, &own, &dashes, &side.command].concat();
        let args = step::read(words)?;
        if args.het_group.is_some() {
            return Err(Failure::usage(
                "--het-group names components of a job, and grun does not run in one. grun A-OPTIONS A : B-OPTIONS B asks for a job with two",
            ));
        }
        asked.push([step_variables::of_job(environment::own)?, side.job].concat());
        parts.push(args);
    }
    agree(&mut parts)?;
    Ok(PartsOfNewJob {
        asked,
        parts,
        immediate: first_immediate,
    })
}

/// The first part carries what is the whole step's.
fn agree(parts: &mut [StepArgs]) -> Result<(), Failure> {
    let Some((first, others)) = parts.split_first_mut() else {
        return Ok(());
    };
    for other in others {
        let unlike = [
            ("--pty", other.pty && !first.pty),
            ("--mpi", other.mpi.is_some() && other.mpi != first.mpi),
            (
                "--rendezvous",
                other.rendezvous.is_some() && other.rendezvous != first.rendezvous,
            ),
            (
                "--input",
                other.input.ranks() != InputRanks::All && other.input != first.input,
            ),
        ];
        if let Some((option, _)) = unlike.iter().find(|(_, is_unlike)| *is_unlike) {
            return Err(Failure::usage(format_args!(
                "{option} is the whole step's: give it before the first program"
            )));
        }
        first.label |= other.label;
        first.unbuffered |= other.unbuffered;
        first.quiet |= other.quiet;
        if other.kill_on_bad_exit.is_some() {
            first.kill_on_bad_exit.clone_from(&other.kill_on_bad_exit);
        }
        let waits = [first.wait, other.wait];
        first.wait = waits
            .into_iter()
            .filter(|secs| *secs > 0)
            .min()
            .unwrap_or(0);
        let times = [first.time, other.time];
        first.time = times
            .into_iter()
            .flatten()
            .min_by_key(|time| time.secs().unwrap_or(u64::MAX));
    }
    Ok(())
}

/// The components of a new job, of which the first is described by `variables`.
///
/// # Errors
/// The controller told of fewer components than were asked for.
pub(crate) fn jobs_of(first: TargetJob, parts: Vec<StepArgs>) -> Result<Vec<StepPart>, Failure> {
    let id = |at: usize| {
        let id = first.variables.get(&format!("SLURM_JOB_ID_HET_GROUP_{at}"));
        id.cloned().ok_or_else(|| {
            Failure::new(format_args!(
                "the controller did not say which job component {at} is"
            ))
        })
    };
    let ids = (1..parts.len()).map(id).collect::<Result<Vec<_>, _>>()?;
    let others = ids.into_iter().map(TargetJob::elsewhere);
    let jobs = std::iter::once(first).chain(others);
    let part = |(job, args)| StepPart { args, job };
    Ok(jobs.zip(parts).map(part).collect())
}

/// The request of the first part, with the other components' in it.
///
/// # Errors
/// As [`step::request`].
pub(crate) fn request(
    parts: &mut [StepPart],
    works: Vec<StepWork>,
    listener: Option<&CallbackListener>,
) -> Result<StepRequest, Failure> {
    let mut requests = Vec::new();
    for (at, (part, work)) in parts.iter_mut().zip(works).enumerate() {
        let listener = listener.filter(|_| at == 0);
        requests.push(step::request(&mut part.args, &part.job, work, listener)?);
    }
    let mut whole = requests.remove(0);
    let others = parts.iter().skip(1).zip(requests);
    let component = |(part, request): (&StepPart, StepRequest)| ComponentStep {
        job: part.job.id.clone(),
        request,
    };
    whole.components = others.map(component).collect();
    Ok(whole)
}

/// A controller from before steps of several components starts the first alone.
///
/// # Errors
/// It did so.
pub(crate) fn check_started(request: &StepRequest, step: &StepReply) -> Result<(), Failure> {
    match step.components.len() == request.components.len() {
        true => Ok(()),
        false => Err(Failure::new(format_args!(
            "the controller started {} of {} components of the step: it is older than grun. Start a step in each component, \
             with --het-group, until it is upgraded",
            step.components.len() + 1,
            request.components.len() + 1
        ))),
    }
}

/// The files that each part names for its tasks.
///
/// # Errors
/// A pattern or a file that cannot be.
pub(crate) fn open_files(parts: &[StepPart], step: &StepReply) -> Result<StepFiles, Failure> {
    let mut files = StepFiles::default();
    let dir = std::env::current_dir().unwrap_or_default();
    for (place, StepPart { args, job }) in step.parts(&parts[0].job.id).zip(parts) {
        files.add(
            args.output.as_deref(),
            args.error.as_deref(),
            args.open_mode.starts_with('a'),
            &dir,
            &StepJob::from_env(&job.id, |name| job.variable(name)),
            &place,
        )?;
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> AllocationWords {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        take_apart(&words, &step::own_options()).unwrap()
    }

    fn of_new(text: &str) -> Result<PartsOfNewJob, String> {
        of_new_job(&["grun".to_owned()], words(text), &[]).map_err(|failure| failure.text)
    }

    #[test]
    fn each_side_of_a_colon_asks_for_a_component_and_has_a_program() {
        let new = of_new("--gpus 2 -l ./a -x : -n4 -o b-%t ./b : -K -W 9 ./c").unwrap();
        let names = |asked: &Vec<GivenOption>| {
            let names = asked.iter().map(|given| given.option.name);
            names.collect::<Vec<_>>()
        };
        let asked: Vec<_> = new.asked.iter().map(names).collect();
        assert_eq!(asked, [vec!["gpus"], vec!["ntasks"], vec![]]);
        let commands: Vec<String> = new
            .parts
            .iter()
            .map(|part| part.command.join(" "))
            .collect();
        assert_eq!(commands, ["./a -x", "./b", "./c"]);
        let outputs: Vec<_> = new
            .parts
            .iter()
            .map(|part| part.output.as_deref())
            .collect();
        assert_eq!(outputs, [None, Some("b-%t"), None], "each has its own");
        let first = &new.parts[0];
        assert!(first.label && first.kill_on_bad_exit.is_some() && first.wait == 9);
    }

    #[test]
    fn what_is_the_whole_steps_is_said_before_the_first_program() {
        for (text, why) in [
            ("a : --pty b", "--pty is the whole step's"),
            ("--mpi=pmix a : --mpi=pmi2 b", "--mpi is the whole step's"),
            ("a : -i 3 b", "--input is the whole step's"),
            ("a :", "on each side of"),
            ("--het-group 1 a", "--het-group names components of a job"),
        ] {
            let refused = of_new(text).err().unwrap_or_default();
            assert!(refused.starts_with(why), "{text}: {refused}");
        }
        assert!(of_new("--mpi=pmix a : --mpi=pmix b").is_ok());
    }

    #[test]
    fn components_are_numbers_and_ranges() {
        assert_eq!(Components::parse("0,2-3").unwrap().0, [0, 2, 3]);
        for text in ["", "x", "3-2", "0,", "0-99999999"] {
            assert!(Components::parse(text).is_err(), "{text}");
        }
    }
}
