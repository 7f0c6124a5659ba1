//! From chosen options to a `JobSpec`: every *done* option of the table is read here, each by its own parser.
//!
//! Owns defaults that are the client's to set (name, directories); never the cluster's.

use crate::choice::Choices;
use crate::container_words;
use crate::environment::Export;
use crate::gpu_options::GpuOptions;
use crate::launch_context::{self, LOGIN_ENV_SECS, Submitter, login_env};
use crate::option_value::{filled, limit_secs, parsed, unnamed, yes_or_no};
use crate::option_words::GivenOption;
use crate::resources::{per_gpu_without_gpus, request};
use crate::script::Work;
use gcli::slurm_words::Cause;
use gcli::{Failure, local_time};
use gmodel::array_spec::ArraySpec;
use gmodel::binding::GpuBind;
use gmodel::checkpoint::CheckpointSpec;
use gmodel::dependency::Dependency;
use gmodel::duration::{TimeLimit, squeue_time};
use gmodel::job::CommonSpec;
use gmodel::job_key::TEXTS;
use gmodel::licence;
use gmodel::parallel::{RENDEZVOUS_VARIABLE, Rendezvous};
use gmodel::task_distribution::TaskDistribution;
use gmodel::{JobSpec, RefusalKind, Request, Timestamp};
use std::collections::BTreeMap;

/// Priority that a bare `--nice` gives up, as in Slurm.
const NICE_DEFAULT: i32 = 100;

/// A submission as the options have it, and what the command is to do about it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Submission {
    pub spec: JobSpec,
    /// The other components of a job of unlike parts.
    pub others: Vec<JobSpec>,
    pub export: Export,
    pub wait: bool,
    pub dry_run: bool,
    /// The id alone, where sbatch would say more.
    pub parsable: bool,
    /// As `--clusters` names them.
    pub clusters: String,
}

/// What the first component decides for all.
const OF_WHOLE: [&str; 16] = [
    "borrow",
    "chdir",
    "checkpoint",
    "error",
    "export",
    "hold",
    "input",
    "mail-type",
    "mail-user",
    "nice",
    "no-kill",
    "open-mode",
    "output",
    "priority",
    "requeue",
    "signal",
];

/// The components of a job as they are read, in their order.
#[derive(Default)]
pub(crate) struct ReadParts {
    pub whole: Option<Submission>,
    /// What script and command line say of the first.
    first: Vec<GivenOption>,
}

impl ReadParts {
    /// Adds a component of which script and command line say this. What is to be told: options of a later one that are the
    /// whole job's, and differ from the first's.
    pub fn add(&mut self, said: Vec<GivenOption>, mut part: Submission) -> Vec<String> {
        let Some(whole) = &mut self.whole else {
            (self.whole, self.first) = (Some(part), said);
            return Vec::new();
        };
        let at = 1 + whole.others.len();
        let is_of_whole = |given: &&GivenOption| {
            let name = given.option.name;
            let says_it =
                |other: &GivenOption| other.option.name == name && other.value == given.value;
            (OF_WHOLE.contains(&name) || container_words::has(name))
                && !self.first.iter().any(says_it)
        };
        let note = |given: &GivenOption| {
            format!(
                "component {at}: {} is of the whole job, and counts with the first component only",
                given.option.flag()
            )
        };
        let notes = said.iter().filter(is_of_whole).map(note).collect();
        if !said.iter().any(|given| given.option.name == "job-name") {
            // It has the first component's.
            part.spec.name.clear();
        }
        whole.add_part(part);
        notes
    }
}

impl Submission {
    /// The next component of a job of unlike parts. What the command is to do counts wherever it was said.
    pub(crate) fn add_part(&mut self, part: Self) {
        self.others.push(part.spec);
        self.wait |= part.wait;
        self.dry_run |= part.dry_run;
        self.parsable |= part.parsable;
        if self.clusters.is_empty() {
            self.clusters = part.clusters;
        }
    }

    /// Where no output file is named, the one that sbatch writes.
    pub(crate) fn name_output_as_sbatch(&mut self) {
        let usual = if self.spec.array.is_some() {
            "slurm-%A_%a.out"
        } else {
            "slurm-%j.out"
        };
        if self.spec.launch.stdout.is_empty() {
            usual.clone_into(&mut self.spec.launch.stdout);
        }
    }
}

/// Reads all options that are acted on.
///
/// # Errors
/// The first value that cannot be, with where it was given.
pub(crate) fn build(
    choices: &mut Choices,
    work: &Work,
    submitter: &Submitter,
) -> Result<Submission, Failure> {
    let text = |given: Option<GivenOption>| given.map(|given| given.text().to_owned());
    let gpus = GpuOptions::take(choices)?;
    per_gpu_without_gpus(&gpus, choices)?;
    let tasks_known = choices.has("ntasks") || gpus.ntasks.is_some();
    let name = text(choices.take("job-name")).unwrap_or_else(|| work.job_name.clone());
    let mut export = export(choices, submitter)?;
    tell_options(choices, &mut export);
    let mut common = common(choices, &gpus, submitter.now)?;
    let mut launch = launch_context::launch(choices, work, submitter)?;
    launch.around.login_env_secs =
        login_env(choices.take("get-user-env"))?.or(export.wants_login().then_some(LOGIN_ENV_SECS));
    common.later = choices
        .take_unused()
        .iter()
        .map(|given| (given.option.name.to_owned(), given.text().to_owned()))
        .collect::<BTreeMap<_, _>>();
    // Of the command, or so anyway.
    for nothing_to_do in ["json", "quiet", "verbose", "ignore-pbs"] {
        choices.take(nothing_to_do);
    }
    parsed(choices.take("wait-all-nodes"), all_nodes)?;
    let mut spec = JobSpec {
        name,
        launch,
        common: common.into(),
    };
    for key in TEXTS {
        *(key.field)(&mut spec) = text(choices.take(key.key)).unwrap_or_default();
    }
    spec.common.tres_bind = tell_grun(choices, gpus.bind, &mut export)?;
    let tasks = tasks_known.then(|| ("NTASKS", spec.request.ntasks.to_string()));
    for (word, value) in asked_variables(&spec.request)
        .chain(gpus.given)
        .chain(tasks)
    {
        export.set(&format!("SLURM_{word}"), value.clone());
        export.set(&format!("GSUB_{word}"), value);
    }
    Ok(Submission {
        spec,
        others: Vec::new(),
        export,
        wait: choices.take_flag("wait"),
        dry_run: choices.take_flag("dry-run"),
        parsable: choices.take_flag("parsable"),
        clusters: text(choices.take("clusters")).unwrap_or_default(),
    })
}

/// What all tasks of an array share, but for its texts and what is not acted on.
fn common(choices: &mut Choices, gpus: &GpuOptions, now: Timestamp) -> Result<CommonSpec, Failure> {
    let mut common = CommonSpec {
        tags: tags(choices.take_all("tag")),
        hold: choices.take_flag("hold"),
        array: parsed(choices.take("array"), ArraySpec::parse)?,
        time_limit_secs: parsed(choices.take("time"), TimeLimit::parse)?.map(limit_secs),
        nice: nice(choices.take("nice"))?,
        requeue: requeue(choices)?,
        no_kill: no_kill(choices.take("no-kill"))?,
        request: request(choices, gpus)?,
        dependency: parsed(filled(choices.take("dependency")), |text| {
            unnamed("--dependency", Dependency::parse(text))
        })?,
        kill_on_invalid_dep: parsed(choices.take("kill-on-invalid-dep"), yes_or_no)?,
        licences: parsed(filled(choices.take("licenses")), |text| {
            unnamed("--licenses", licence::parse(text))
        })?
        .unwrap_or_default(),
        reservation: parsed(filled(choices.take("reservation")), one_reservation)?,
        borrow: borrow(choices),
        checkpoint: parsed(choices.take("checkpoint"), |text| {
            unnamed("--checkpoint", CheckpointSpec::parse(text))
        })?,
        priority: parsed(choices.take("priority"), priority)?,
        ..CommonSpec::default()
    };
    common.time_min_secs = time_min(choices.take("time-min"), common.time_limit_secs)?;
    common.deadline = deadline(choices.take("deadline"), now)?;
    let begin = choices.take("begin");
    common.begin = parsed(begin.clone(), |text| local_time::read(text, now))?;
    if let (Some(given), Some(at), Some(end)) = (begin, common.begin, common.deadline)
        && at >= end
    {
        let failure = given.fail(format_args!(
            "it would begin at {at}, when its --deadline {end} has come"
        ));
        let line = "Incompatible begin and deadline time specification";
        return Err(failure.because(Cause::Said(line.to_owned())));
    }
    Ok(common)
}

fn export(choices: &mut Choices, submitter: &Submitter) -> Result<Export, Failure> {
    let exported = choices.get("export").map(|given| given.text().to_owned());
    let usual = || match submitter.outside {
        true => Export::login(),
        false => Export::all(),
    };
    let mut export = parsed(choices.take("export"), Export::parse)?.unwrap_or_else(usual);
    // As srun reads it.
    exported
        .into_iter()
        .for_each(|text| export.set("SLURM_EXPORT_ENV", text));
    Ok(export)
}

/// What sbatch itself puts into the job's environment of the options it was given. Source: OUTPUT ENVIRONMENT VARIABLES in sbatch(1).
fn asked_variables(request: &Request) -> impl Iterator<Item = (&'static str, String)> {
    let counts = [
        ("NTASKS_PER_NODE", request.ntasks_per_node),
        ("CPUS_PER_GPU", request.cpus_per_gpu),
        ("OVERCOMMIT", request.overcommit.then_some(1)),
    ];
    counts
        .into_iter()
        .filter_map(|(word, count)| Some((word, count?.to_string())))
}

/// Options as they were given, where sbatch tells the job of them. Source: OUTPUT ENVIRONMENT VARIABLES in sbatch(1).
fn tell_options(choices: &Choices, export: &mut Export) {
    let told = [
        ("dependency", "SLURM_JOB_DEPENDENCY"),
        ("hint", "SLURM_HINT"),
        ("licenses", "SLURM_JOB_LICENSES"),
        ("ntasks-per-core", "SLURM_NTASKS_PER_CORE"),
        ("ntasks-per-socket", "SLURM_NTASKS_PER_SOCKET"),
        ("oom-kill-step", "SLURM_OOMKILLSTEP"),
        ("segment", "SLURM_JOB_SEGMENT_SIZE"),
        ("threads-per-core", "SLURM_THREADS_PER_CORE"),
    ];
    for (option, variable) in told {
        let given = choices.get(option).map(GivenOption::text);
        if let Some(value) = given.filter(|value| !value.is_empty()) {
            export.set(variable, value.to_owned());
        }
    }
}

fn all_nodes(text: &str) -> Result<(), String> {
    match text {
        "1" => Ok(()),
        _ => Err(format!(
            "{text:?}: a job always begins when all its nodes are ready. Write 1, or leave it out"
        )),
    }
}

fn one_reservation(text: &str) -> Result<String, String> {
    match text.trim() {
        name if name.contains(',') => Err(format!(
            "{name:?} names several; a job runs in one. gadm reservation list shows them"
        )),
        name => Ok(name.to_owned()),
    }
}

fn borrow(choices: &mut Choices) -> Option<bool> {
    if choices.take_flag("no-borrow") {
        return Some(false);
    }
    choices.take_flag("borrow").then_some(true)
}

fn priority(text: &str) -> Result<u32, String> {
    if text.eq_ignore_ascii_case("TOP") {
        return Err("TOP is not offered. Write a number above what gq --prio shows".to_owned());
    }
    text.parse()
        .map_err(|_| format!("{text:?} is not a whole number from 0 to {}", u32::MAX))
}

/// Seconds; no more than the limit that it may be shortened from.
fn time_min(given: Option<GivenOption>, limit: Option<u32>) -> Result<Option<u32>, Failure> {
    let Some(given) = given else { return Ok(None) };
    let least = TimeLimit::parse(given.text()).map_err(|error| given.fail(error))?;
    let Some(secs) = least.secs().and_then(|secs| u32::try_from(secs).ok()) else {
        return Err(given.fail("the least limit cannot be unlimited"));
    };
    if let Some(limit) = limit.filter(|limit| *limit < secs) {
        let (least, most) = (squeue_time(secs.into()), squeue_time(limit.into()));
        let failure = given.fail(format_args!(
            "{least} is more than the time limit {most}. Make it less"
        ));
        return Err(failure.because(about(RefusalKind::TimeMin)));
    }
    Ok(Some(secs))
}

/// Why the controller would refuse it.
fn about(about: RefusalKind) -> Cause {
    Cause::Refused {
        about,
        subject: String::new(),
    }
}

fn deadline(given: Option<GivenOption>, now: Timestamp) -> Result<Option<Timestamp>, Failure> {
    let Some(given) = given else { return Ok(None) };
    let at = local_time::read(given.text(), now)
        .map_err(|why| given.fail(why.replacen("begin time", "time", 1)))?;
    if at <= now {
        let failure = given.fail(format_args!("{} has passed", given.text()));
        return Err(failure.because(about(RefusalKind::TimeLimit)));
    }
    Ok(Some(at))
}

fn tags(given: Vec<GivenOption>) -> Vec<String> {
    let mut tags = Vec::new();
    for tag in given
        .iter()
        .flat_map(|given| given.text().split(','))
        .map(str::trim)
        .filter(|tag| !tag.is_empty())
    {
        if !tags.iter().any(|known| known == tag) {
            tags.push(tag.to_owned());
        }
    }
    tags
}

fn nice(given: Option<GivenOption>) -> Result<i32, Failure> {
    let Some(given) = given else { return Ok(0) };
    match &given.value {
        None => Ok(NICE_DEFAULT),
        Some(text) => text
            .parse()
            .map_err(|_| given.fail(format_args!("{text:?} is not a whole number"))),
    }
}

fn requeue(choices: &mut Choices) -> Result<Option<bool>, Failure> {
    if choices.take_flag("no-requeue") {
        return Ok(Some(false));
    }
    match choices.take("requeue") {
        None => Ok(None),
        // As a variable it may have any value: that it is set is what counts.
        Some(given) if given.value.is_none() || given.origin.rank() == 1 => Ok(Some(true)),
        Some(given) => Err(given.fail(format_args!(
            "there is no mode {:?} here. Write --requeue alone",
            given.text()
        ))),
    }
}

fn no_kill(given: Option<GivenOption>) -> Result<bool, Failure> {
    match given {
        None => Ok(false),
        Some(given) if given.text() == "off" => Ok(false),
        // As a variable it may have any other value: that it is set is what counts.
        Some(given) if given.value.is_none() || given.origin.rank() == 1 => Ok(true),
        Some(given) => Err(given.fail(format_args!(
            "{:?} is not known here. Write --no-kill, or --no-kill=off",
            given.text()
        ))),
    }
}

/// What is for the tasks stands in the environment, where grun looks for it as srun does. Answers how GPUs are bound to tasks,
/// as --tres-bind would say it.
fn tell_grun(
    choices: &mut Choices,
    of_gpus: Option<String>,
    export: &mut Export,
) -> Result<String, Failure> {
    let gpu_bind = parsed(choices.take("gpu-bind"), |text| {
        GpuBind::parse(text).map(|_| text.to_owned())
    })?;
    let rendezvous = parsed(choices.take("rendezvous"), |text| {
        Rendezvous::parse(text).map(|_| text.to_owned())
    })?;
    let distribution = parsed(choices.take("distribution"), |text| {
        TaskDistribution::parse(text).map(|_| text.to_owned())
    })?;
    let tres_bind = gpu_bind.as_ref().map_or(String::new(), |how| {
        let how = how
            .replace("map_gpu:", "map:")
            .replace("mask_gpu:", "mask:");
        format!("gres/gpu:{how}")
    });
    // Tasks counted by the GPU have one each.
    let told = [
        ("SLURM_DISTRIBUTION", distribution),
        ("SLURM_GPU_BIND", gpu_bind.or(of_gpus)),
        (RENDEZVOUS_VARIABLE, rendezvous),
    ];
    for (name, value) in told {
        value.into_iter().for_each(|value| export.set(name, value));
    }
    Ok(tres_bind)
}

#[cfg(test)]
mod tests;
