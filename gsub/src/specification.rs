//! From chosen options to a `JobSpec`: every *done* option of the table is read here, each by its own parser.
//!
//! Owns defaults that are the client's to set (name, directories); never the cluster's.

use crate::choice::Choices;
use crate::environment::Export;
use crate::gpu_options::GpuOptions;
use crate::option_words::Given;
use crate::script::Work;
use gcli::{Failure, local_time};
use gmodel::array_spec::ArraySpec;
use gmodel::binding::GpuBind;
use gmodel::checkpoint::CheckpointSpec;
use gmodel::constraint::Constraint;
use gmodel::dependency::Dependency;
use gmodel::duration::{TimeLimit, squeue_time};
use gmodel::gpu_request::parse_gpu_mem;
use gmodel::hostlist::Hostlist;
use gmodel::job::{
    CommonSpec, Launch, LaunchContext, MemRequest, OpenMode, SoftLimit, Switches, VisibleDevices,
};
use gmodel::licence;
use gmodel::signal::SigSpec;
use gmodel::suggest::did_you_mean;
use gmodel::{JobSpec, Request, Timestamp, pattern, size};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Priority that a bare `--nice` gives up, as in Slurm.
const NICE_DEFAULT: i32 = 100;

/// How long a login shell may take to show its environment, without a word and at most.
const LOGIN_ENV_SECS: u32 = 30;
const MAX_LOGIN_ENV_SECS: u32 = 600;

/// What the submitting process is and where.
#[derive(Clone, Debug, Default)]
pub(crate) struct Submitter {
    pub work_dir: Option<String>,
    pub host: String,
    pub umask: u32,
    pub limits: Vec<SoftLimit>,
    pub now: Timestamp,
}

/// A submission as the options have it, and what the command is to do about it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Submission {
    pub spec: JobSpec,
    pub export: Export,
    pub wait: bool,
    pub dry_run: bool,
    /// The id alone, where sbatch would say more.
    pub parsable: bool,
    /// As `--clusters` names them.
    pub clusters: String,
}

impl Submission {
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
    let text = |given: Option<Given>| given.map(|given| given.text().to_owned());
    let gpus = GpuOptions::take(choices)?;
    per_gpu_without_gpus(&gpus, choices)?;
    let tasks_known = choices.has("ntasks") || gpus.ntasks.is_some();
    let name = text(choices.take("job-name")).unwrap_or_else(|| work.job_name.clone());
    let mut common = CommonSpec {
        partition: text(choices.take("partition")).unwrap_or_default(),
        account: text(choices.take("account")).unwrap_or_default(),
        qos: text(choices.take("qos")).unwrap_or_default(),
        comment: text(choices.take("comment")).unwrap_or_default(),
        tags: tags(choices.take_all("tag")),
        hold: choices.take_flag("hold"),
        array: parsed(choices.take("array"), ArraySpec::parse)?,
        time_limit_secs: parsed(choices.take("time"), TimeLimit::parse)?.map(limit_secs),
        nice: nice(choices.take("nice"))?,
        requeue: requeue(choices)?,
        no_kill: no_kill(choices.take("no-kill"))?,
        request: request(choices, &gpus)?,
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
    common.deadline = deadline(choices.take("deadline"), submitter.now)?;
    common.begin = parsed(choices.take("begin"), |text| {
        local_time::read(text, submitter.now)
    })?;
    let exported = choices.get("export").map(|given| given.text().to_owned());
    let mut export = parsed(choices.take("export"), Export::parse)?.unwrap_or_else(Export::all);
    // As srun reads it.
    exported
        .into_iter()
        .for_each(|text| export.set("SLURM_EXPORT_ENV", text));
    let mut launch = launch(choices, work, submitter)?;
    launch.around.login_env_secs =
        login_env(choices.take("get-user-env"))?.or(export.wants_login().then_some(LOGIN_ENV_SECS));
    common.later = choices
        .take_later()
        .iter()
        .map(|given| (given.option.name.to_owned(), given.text().to_owned()))
        .collect::<BTreeMap<_, _>>();
    // Of the command, or so anyway.
    for nothing_to_do in ["json", "quiet", "verbose", "ignore-pbs"] {
        choices.take(nothing_to_do);
    }
    parsed(choices.take("wait-all-nodes"), all_nodes)?;
    let spec = JobSpec {
        name,
        launch,
        common: common.into(),
    };
    let gpu_bind = parsed(choices.take("gpu-bind"), |text| {
        GpuBind::parse(text).map(|_| text.to_owned())
    })?;
    // Where grun finds it, as srun does; tasks counted by the GPU have one each.
    let gpu_bind = gpu_bind.or(gpus.bind);
    gpu_bind
        .into_iter()
        .for_each(|bind| export.set("SLURM_GPU_BIND", bind));
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
        export,
        wait: choices.take_flag("wait"),
        dry_run: choices.take_flag("dry-run"),
        parsable: choices.take_flag("parsable"),
        clusters: text(choices.take("clusters")).unwrap_or_default(),
    })
}

/// `--get-user-env`, `=10`, `=10L`, `=L`: the seconds that reading may take.
fn login_env(given: Option<Given>) -> Result<Option<u32>, Failure> {
    let Some(given) = given else { return Ok(None) };
    let text = given.text();
    if text.ends_with(['S', 's']) {
        return Err(given.fail(format_args!("{text:?}: an su without a login reads nothing of the user's. Write L, or leave the letter out")));
    }
    match text.strip_suffix(['L', 'l']).unwrap_or(text) {
        "" => Ok(Some(LOGIN_ENV_SECS)),
        secs => match secs.parse() {
            Ok(secs @ 1..=MAX_LOGIN_ENV_SECS) => Ok(Some(secs)),
            _ => Err(given.fail(format_args!(
                "{text:?} is not a number of seconds from 1 to {MAX_LOGIN_ENV_SECS}"
            ))),
        },
    }
}

/// What sbatch itself puts into the job's environment of the options it was given. Source: OUTPUT ENVIRONMENT VARIABLES in sbatch(1).
fn asked_variables(request: &Request) -> impl Iterator<Item = (&'static str, String)> {
    let counts = [
        ("NTASKS_PER_NODE", request.ntasks_per_node),
        ("CPUS_PER_GPU", request.cpus_per_gpu),
    ];
    counts
        .into_iter()
        .filter_map(|(word, count)| Some((word, count?.to_string())))
}

/// An error that names its option itself, without the name: where the option was given says it.
fn unnamed<T, E: Display>(flag: &str, read: Result<T, E>) -> Result<T, String> {
    read.map_err(|error| {
        let text = error.to_string();
        text.strip_prefix(flag)
            .map(|rest| rest.trim_start().to_owned())
            .unwrap_or(text)
    })
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "y" => Ok(true),
        "no" | "n" => Ok(false),
        _ => Err(format!("{text:?} is neither yes nor no")),
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
fn time_min(given: Option<Given>, limit: Option<u32>) -> Result<Option<u32>, Failure> {
    let Some(given) = given else { return Ok(None) };
    let least = TimeLimit::parse(given.text()).map_err(|error| given.fail(error))?;
    let Some(secs) = least.secs().and_then(|secs| u32::try_from(secs).ok()) else {
        return Err(given.fail("the least limit cannot be unlimited"));
    };
    if let Some(limit) = limit.filter(|limit| *limit < secs) {
        let (least, most) = (squeue_time(secs.into()), squeue_time(limit.into()));
        return Err(given.fail(format_args!(
            "{least} is more than the time limit {most}. Make it less"
        )));
    }
    Ok(Some(secs))
}

fn deadline(given: Option<Given>, now: Timestamp) -> Result<Option<Timestamp>, Failure> {
    let Some(given) = given else { return Ok(None) };
    let at = local_time::read(given.text(), now)
        .map_err(|why| given.fail(why.replacen("begin time", "time", 1)))?;
    if at <= now {
        return Err(given.fail(format_args!("{} has passed", given.text())));
    }
    Ok(Some(at))
}

/// `1` or `1@30:00`; 0: any, as in Slurm.
fn switches(text: &str) -> Result<Option<Switches>, String> {
    if text == "0" {
        return Ok(None);
    }
    let (most, wait) = text
        .split_once('@')
        .map_or((text, None), |(most, wait)| (most, Some(wait)));
    let wait_secs = match wait {
        None => None,
        Some(wait) => {
            let limit = TimeLimit::parse(wait).map_err(|error| error.to_string())?;
            limit
                .secs()
                .map(|secs| u32::try_from(secs).unwrap_or(u32::MAX))
        }
    };
    Ok(Some(Switches {
        most: count(most)?,
        wait_secs,
    }))
}

/// The value of an option by its parser.
fn parsed<T, E: Display>(
    given: Option<Given>,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, Failure> {
    given
        .map(|given| parse(given.text()).map_err(|error| given.fail(error)))
        .transpose()
}

/// Not given, if empty: scripts have it so, from a variable.
fn filled(given: Option<Given>) -> Option<Given> {
    given.filter(|given| !given.text().trim().is_empty())
}

fn count(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(0) => Err("0 is too few: ask for at least 1".to_owned()),
        Ok(count) if !text.starts_with('+') => Ok(count),
        _ => Err(format!("{text:?} is not a whole number")),
    }
}

fn limit_secs(limit: TimeLimit) -> u32 {
    limit
        .secs()
        .map_or(u32::MAX, |secs| u32::try_from(secs).unwrap_or(u32::MAX - 1))
}

fn tags(given: Vec<Given>) -> Vec<String> {
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

fn nice(given: Option<Given>) -> Result<i32, Failure> {
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

fn no_kill(given: Option<Given>) -> Result<bool, Failure> {
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

/// What is asked of each GPU is refused where no GPU is asked for; `--gpus 0` and variables, which hold for many jobs, put it aside.
fn per_gpu_without_gpus(gpus: &GpuOptions, choices: &Choices) -> Result<(), Failure> {
    let of_gpus = ["gpu-mem", "cpus-per-gpu", "mem-per-gpu", "nvlink"];
    let odd = of_gpus.iter().find_map(|name| {
        choices
            .get(name)
            .filter(|given| given.origin.rank() != 1 && given.text() != "off")
    });
    match odd {
        Some(given) if !gpus.asked => Err(given.origin.fail(format_args!(
            "--{}: the job asks for no GPU. Add --gpus 1, or leave this out",
            given.option.name
        ))),
        _ => Ok(()),
    }
}

fn request(choices: &mut Choices, gpus: &GpuOptions) -> Result<Request, Failure> {
    let usual = Request::default();
    let nodes = parsed(choices.take("nodes"), node_range)?;
    let ntasks = parsed(choices.take("ntasks"), count)?;
    let ntasks_per_node = parsed(choices.take("ntasks-per-node"), count)?;
    gpus.agree_with(nodes, ntasks, ntasks_per_node)?;
    let nodes = gpus.nodes.map(|nodes| (nodes, nodes)).or(nodes);
    let (ntasks, ntasks_per_node) = (
        gpus.ntasks.or(ntasks),
        gpus.ntasks_per_node.or(ntasks_per_node),
    );
    let (nodes_min, nodes_max) = nodes.unwrap_or_else(|| {
        // So many tasks at so many a node say how many nodes.
        let needed = ntasks
            .zip(ntasks_per_node)
            .map_or(1, |(tasks, per_node)| tasks.div_ceil(per_node));
        (needed, needed)
    });
    let nodelist = parsed(filled(choices.take("nodelist")), nodes_named)?;
    if let (Some((_, most)), Some(named)) = (nodes, nodelist.as_ref().map(Hostlist::len))
        && named > most as usize
    {
        return Err(Failure::usage(format_args!(
            "--nodes {most} and --nodelist, which names {named}: take one of them back"
        )));
    }
    // As sbatch: a node without a task is none.
    let few = ntasks.filter(|few| {
        *few < nodes_min
            && nodes.is_some()
            && nodelist
                .as_ref()
                .is_none_or(|named| named.len() <= *few as usize)
    });
    let (nodes_min, nodes_max) = few.map_or((nodes_min, nodes_max), |few| (few, few));
    Ok(Request {
        nodes_min,
        nodes_max,
        nodes_any: nodes.is_none()
            && ntasks.is_some_and(|tasks| tasks > 1)
            && ntasks_per_node.is_none(),
        ntasks: ntasks.unwrap_or(usual.ntasks),
        ntasks_per_node,
        cpus_per_task: parsed(choices.take("cpus-per-task"), count)?,
        cpus_per_gpu: parsed(choices.take("cpus-per-gpu"), count)?,
        mem: memory(choices)?,
        gpus: gpus.ask.clone(),
        gpu_scope: gpus.scope,
        gpu_mem_mib: parsed(choices.take("gpu-mem"), parse_gpu_mem)?
            .map(|bytes| bytes.div_ceil(1 << 20)),
        exclusive: exclusive(choices.take("exclusive"))?,
        nodelist,
        exclude: parsed(filled(choices.take("exclude")), nodes_named)?,
        constraint: parsed(filled(choices.take("constraint")), |text| {
            Constraint::alternatives(text).map(|_| text.to_owned())
        })?,
        prefer: parsed(filled(choices.take("prefer")), |text| {
            Constraint::parse(text).map(|_| text.to_owned())
        })?,
        nvlink: nvlink(choices.take("nvlink"))?,
        switches: parsed(choices.take("switches"), switches)?.flatten(),
    })
}

/// `2` or `2-4`.
fn node_range(text: &str) -> Result<(u32, u32), String> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    let (least, most) = (count(least)?, count(most)?);
    if least > most {
        return Err(format!(
            "{text:?} has its larger number first. Write {most}-{least}"
        ));
    }
    Ok((least, most))
}

fn nodes_named(text: &str) -> Result<Hostlist, String> {
    if text.contains('/') {
        return Err(format!(
            "{text:?} looks like a file. Write the nodes themselves: node[01-03,7]"
        ));
    }
    Hostlist::parse(text).map_err(|error| error.to_string())
}

fn memory(choices: &mut Choices) -> Result<MemRequest, Failure> {
    if let Some(bytes) = parsed(choices.take("mem"), size::parse_bytes)? {
        return Ok(MemRequest::PerNode(bytes));
    }
    let some_bytes =
        |text: &str| match size::parse_bytes(text).map_err(|error| error.to_string())? {
            0 => Err("0 is too little. For all memory of a node write --mem=0".to_owned()),
            bytes => Ok(bytes),
        };
    if let Some(bytes) = parsed(choices.take("mem-per-cpu"), some_bytes)? {
        return Ok(MemRequest::PerCpu(bytes));
    }
    Ok(parsed(choices.take("mem-per-gpu"), some_bytes)?
        .map_or(MemRequest::Default, MemRequest::PerGpu))
}

fn exclusive(given: Option<Given>) -> Result<bool, Failure> {
    match given {
        None => Ok(false),
        Some(given) if given.value.is_none() => Ok(true),
        Some(given) if given.text() == "off" => Ok(false),
        Some(given) => Err(given.fail(format_args!(
            "{:?} is not known here: a node is shared with all or with none. Write --exclusive alone, or --exclusive=off",
            given.text()
        ))),
    }
}

fn nvlink(given: Option<Given>) -> Result<bool, Failure> {
    match given {
        None => Ok(false),
        Some(given) if given.value.is_none() => Ok(true),
        Some(given) if given.text() == "off" => Ok(false),
        Some(given) => Err(given.fail(format_args!(
            "{:?} is not known here. Write --nvlink, or --nvlink=off",
            given.text()
        ))),
    }
}

fn launch(choices: &mut Choices, work: &Work, submitter: &Submitter) -> Result<Launch, Failure> {
    let file = |choices: &mut Choices, name: &str| {
        let checked = |text: &str| match text {
            _ if text.eq_ignore_ascii_case("none") => Ok("/dev/null".to_owned()),
            _ => pattern::check(text).map(|()| text.to_owned()),
        };
        parsed(choices.take(name), checked).map(Option::unwrap_or_default)
    };
    let text = |given: Option<Given>| given.map(|given| given.text().to_owned());
    let work_dir = work_dir(choices.take("chdir"), submitter)?;
    let submit_dir = submitter
        .work_dir
        .clone()
        .filter(|dir| *dir != work_dir)
        .unwrap_or_default();
    let around = LaunchContext {
        work_dir,
        submit_dir,
        submit_host: submitter.host.clone(),
        stdout: file(choices, "output")?,
        stderr: file(choices, "error")?,
        stdin: file(choices, "input")?,
        open_mode: parsed(choices.take("open-mode"), open_mode)?,
        visible_devices: parsed(choices.take("visible-devices"), visible_devices)?,
        umask: submitter.umask,
        rlimits: submitter.limits.clone(),
        signal: parsed(choices.take("signal"), SigSpec::parse)?,
        mail_type: parsed(filled(choices.take("mail-type")), mail_type)?,
        mail_user: text(choices.take("mail-user")),
        ..LaunchContext::default()
    };
    Ok(Launch {
        argv: work.argv.clone(),
        command: work.command.clone(),
        ..around.into()
    })
}

fn work_dir(chdir: Option<Given>, submitter: &Submitter) -> Result<String, Failure> {
    let here = submitter.work_dir.as_deref();
    match (chdir, here) {
        (Some(given), _) if given.text().is_empty() => Err(given.fail("it names no directory")),
        (Some(given), _) if given.text().starts_with('/') => Ok(given.text().to_owned()),
        // `-D .` is where we are, not `/home/me/.`.
        (Some(given), Some(here)) => Ok(Path::new(here)
            .join(given.text())
            .components()
            .collect::<PathBuf>()
            .to_string_lossy()
            .into_owned()),
        (None, Some(here)) => Ok(here.to_owned()),
        (_, None) => Err(Failure::new(
            "the working directory no longer exists. Change to one that does, or use --chdir with an absolute path",
        )),
    }
}

/// The events of `--mail-type`, as sbatch(1) lists them.
fn mail_type(text: &str) -> Result<String, String> {
    const EVENTS: [&str; 13] = [
        "NONE",
        "BEGIN",
        "END",
        "FAIL",
        "REQUEUE",
        "ALL",
        "INVALID_DEPEND",
        "STAGE_OUT",
        "TIME_LIMIT",
        "TIME_LIMIT_90",
        "TIME_LIMIT_80",
        "TIME_LIMIT_50",
        "ARRAY_TASKS",
    ];
    let odd = text.split(',').find(|word| {
        !EVENTS
            .iter()
            .any(|event| event.eq_ignore_ascii_case(word.trim()))
    });
    match odd {
        None => Ok(text.to_owned()),
        Some(word) => Err(format!(
            "{word:?} is no event.{} Events are {}",
            did_you_mean(word, EVENTS),
            EVENTS.join(", ")
        )),
    }
}

fn visible_devices(text: &str) -> Result<VisibleDevices, String> {
    let known = VisibleDevices::WORDS
        .iter()
        .find(|(word, _)| word.eq_ignore_ascii_case(text));
    known
        .map(|(_, visible)| *visible)
        .ok_or_else(|| format!("{text:?} is neither index nor uuid"))
}

fn open_mode(text: &str) -> Result<OpenMode, String> {
    match text.to_ascii_lowercase().as_str() {
        "append" | "a" => Ok(OpenMode::Append),
        "truncate" | "t" => Ok(OpenMode::Truncate),
        _ => Err(format!("{text:?} is neither append nor truncate")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::option_words::{Origin, read};
    use expect_test::{Expect, expect};
    use gmodel::option_table::{OPTIONS, OptionStatus, OptionValue};

    fn submission(words: &[&str]) -> Result<Submission, Failure> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let mut choices = Choices::of(read(&words, &Origin::CommandLine)?.0)?;
        let submitter = Submitter {
            work_dir: Some("/home/me".into()),
            host: "login1".into(),
            umask: 0o22,
            limits: Vec::new(),
            now: Timestamp::from_secs(1_795_165_527),
        };
        let submission = build(&mut choices, &Work::wrapped("true"), &submitter)?;
        assert_eq!(choices.left(), [""; 0]);
        Ok(submission)
    }

    fn check(words: &str, want: Expect) {
        let words: Vec<&str> = words.split(' ').collect();
        want.assert_eq(&match submission(&words) {
            Ok(submission) => serde_json::to_string(&submission.spec.request).unwrap(),
            Err(failure) => format!("{}: {}", failure.exit, failure.text),
        });
    }

    /// A value for each option that takes one.
    fn sample(name: &str) -> &'static str {
        match name {
            "array" => "1-3",
            "begin" | "deadline" => "now+1hour",
            "checkpoint" => "USR1@120",
            "dependency" => "afterok:17",
            "kill-on-invalid-dep" => "yes",
            "mail-type" => "END,fail",
            "licenses" => "matlab:2",
            "switches" => "1@30:00",
            "export" => "NONE",
            "gpu-bind" => "closest",
            "gpu-mem" => "40G",
            "gres" => "gpu:2",
            "mem" | "mem-per-cpu" | "mem-per-gpu" => "2G",
            "nodelist" | "exclude" => "n[1-2]",
            "open-mode" => "append",
            "visible-devices" => "uuid",
            "signal" => "USR1@60",
            "chdir" => "/tmp",
            "job-name" | "account" | "partition" | "qos" | "comment" | "constraint" | "prefer"
            | "reservation" | "output" | "error" | "input" | "mail-user" | "tag" => "x",
            _ => "7",
        }
    }

    #[test]
    fn every_done_option_changes_the_submission() {
        let show = |submission: &Submission| {
            let Submission {
                spec,
                export,
                wait,
                dry_run,
                parsable,
                clusters,
            } = submission;
            format!("{spec:?} {export:?} {wait} {dry_run} {parsable} {clusters}")
        };
        let plain = show(&submission(&["--hold"]).unwrap());
        for option in OPTIONS
            .iter()
            .filter(|option| option.status == OptionStatus::Done)
        {
            // Read before there is a submission, or without effect on it by definition.
            if [
                "help",
                "version",
                "wrap",
                "json",
                "quiet",
                "verbose",
                "hold",
                "ignore-pbs",
                "wait-all-nodes",
            ]
            .contains(&option.name)
            {
                continue;
            }
            let word = match option.value {
                OptionValue::Required(_) => format!("--{}={}", option.name, sample(option.name)),
                _ => option.flag(),
            };
            // What is asked of each GPU is for jobs that say something of GPUs.
            let changed = submission(&["--hold", &word])
                .or_else(|_| submission(&["--hold", "--gpus=0", &word]))
                .or_else(|_| submission(&["--hold", "--gpus=1", &word]));
            let changed = show(&changed.unwrap());
            assert_ne!(changed, plain, "{word}");
        }
        assert_eq!(
            submission(&["--wckey=submitit"]).unwrap().spec.tags,
            ["submitit"],
            "every script of submitit has one"
        );
        check(
            "--wait-all-nodes=0",
            expect![[
                r#"2: --wait-all-nodes: "0": a job always begins when all its nodes are ready. Write 1, or leave it out"#
            ]],
        );
        assert!(
            submission(&["--hold"]).unwrap().spec.hold
                && !submission(&["--parsable"]).unwrap().spec.hold
        );
    }

    #[test]
    fn requests_are_kept_in_the_users_terms() {
        check(
            "-N2-4 -n 8 -c 4",
            expect![[
                r#"{"nodes_min":2,"nodes_max":4,"ntasks":8,"cpus_per_task":4,"gpu_scope":"job"}"#
            ]],
        );
        check(
            "-N2 -n1",
            expect![[r#"{"nodes_min":1,"nodes_max":1,"ntasks":1,"gpu_scope":"job"}"#]],
        );
        check(
            "-N4 -n2 -w n[1-4]",
            expect![[
                r#"{"nodes_min":4,"nodes_max":4,"ntasks":2,"gpu_scope":"job","nodelist":"n[1-4]"}"#
            ]],
        );
        check(
            "-n 8 --ntasks-per-node=3",
            expect![[
                r#"{"nodes_min":3,"nodes_max":3,"ntasks":8,"ntasks_per_node":3,"gpu_scope":"job"}"#
            ]],
        );
        check(
            "--gpus-per-task=h100:1 --mem-per-gpu=10G",
            expect![[
                r#"{"nodes_min":1,"nodes_max":1,"ntasks":1,"mem":{"per_gpu":10737418240},"gpus":"h100:1","gpu_scope":"task"}"#
            ]],
        );
        check(
            "--gres=gpu:a100:2 --mem=0 --exclusive",
            expect![[
                r#"{"nodes_min":1,"nodes_max":1,"ntasks":1,"mem":{"per_node":0},"gpus":"a100:2","gpu_scope":"node","exclusive":true}"#
            ]],
        );
        check(
            "-G 0",
            expect![[r#"{"nodes_min":1,"nodes_max":1,"ntasks":1,"gpu_scope":"job"}"#]],
        );
        check(
            "--gpus=8 --gpus-per-node=4 --gpus-per-task=2",
            expect![[
                r#"{"nodes_min":2,"nodes_max":2,"ntasks":4,"ntasks_per_node":2,"gpus":"4","gpu_scope":"node"}"#
            ]],
        );
        check(
            "-G 0 --mem-per-gpu=10G --cpus-per-gpu=4",
            expect![[
                r#"{"nodes_min":1,"nodes_max":1,"ntasks":1,"cpus_per_gpu":4,"mem":{"per_gpu":10737418240},"gpu_scope":"job"}"#
            ]],
        );
        check(
            "-w n[1-2] -x m1 -C a100&ib",
            expect![[
                r#"{"nodes_min":1,"nodes_max":1,"ntasks":1,"gpu_scope":"job","nodelist":"n[1-2]","exclude":"m1","constraint":"a100&ib"}"#
            ]],
        );
    }

    #[test]
    fn what_was_asked_for_is_in_the_jobs_environment_as_sbatch_has_it() {
        let variables = |words: &[&str]| {
            let mut all = submission(words).unwrap().export.select([]);
            all.retain(|line| line.starts_with("SLURM_"));
            all.join(" ")
        };
        assert_eq!(
            variables(&[
                "-N2",
                "--ntasks-per-node=4",
                "--mem-per-cpu=1G",
                "-G",
                "h100:8"
            ]),
            "SLURM_NTASKS_PER_NODE=4 SLURM_GPUS=h100:8"
        );
        assert_eq!(
            variables(&["--gres=gpu:2", "--cpus-per-gpu=3", "--mem-per-gpu=2G"]),
            "SLURM_CPUS_PER_GPU=3 SLURM_GPUS_PER_NODE=2"
        );
        assert_eq!(
            variables(&["-n2", "--gpus-per-task=1", "--mem=2G"]),
            "SLURM_GPUS_PER_TASK=1 SLURM_NTASKS=2"
        );
        assert_eq!(
            variables(&["-G2", "--ntasks-per-gpu=2"]),
            "SLURM_GPU_BIND=map_gpu:0*2,1*2 SLURM_GPUS=2 SLURM_NTASKS_PER_GPU=2 SLURM_NTASKS=4"
        );
        assert_eq!(
            variables(&["-G4", "--gpus-per-task=1"]),
            "SLURM_GPUS=4 SLURM_GPUS_PER_TASK=1 SLURM_NTASKS=4"
        );
        assert!(
            submission(&["-G1"])
                .unwrap()
                .export
                .select([])
                .contains(&"GSUB_GPUS=1".to_owned())
        );
    }

    #[test]
    fn the_environment_of_a_login_is_asked_for_as_sbatch_has_it() {
        let secs = |words: &[&str]| {
            submission(&[words, &["--hold"]].concat())
                .unwrap()
                .spec
                .launch
                .login_env_secs
        };
        assert_eq!(
            [
                secs(&[]),
                secs(&["--export=ALL"]),
                secs(&["--export=NIL"]),
                secs(&["--export=ALL,A=1"])
            ],
            [None; 4]
        );
        assert_eq!(
            [
                secs(&["--export=NONE"]),
                secs(&["--export=A"]),
                secs(&["--get-user-env"]),
                secs(&["--get-user-env=L"])
            ],
            [Some(30); 4]
        );
        assert_eq!(
            [
                secs(&["--get-user-env=10"]),
                secs(&["--export=NONE", "--get-user-env=10L"])
            ],
            [Some(10); 2]
        );
        check(
            "--get-user-env=5S",
            expect![[
                r#"2: --get-user-env: "5S": an su without a login reads nothing of the user's. Write L, or leave the letter out"#
            ]],
        );
        check(
            "--get-user-env=0",
            expect![[r#"2: --get-user-env: "0" is not a number of seconds from 1 to 600"#]],
        );
        let told = submission(&["--export=A,B=1"]).unwrap().export.select([]);
        assert!(
            told.contains(&"SLURM_EXPORT_ENV=A,B=1".to_owned()),
            "{told:?}"
        );
    }

    #[test]
    fn bad_values_name_their_option_and_what_would_work() {
        check(
            "-N 4-2",
            expect![[r#"2: --nodes: "4-2" has its larger number first. Write 2-4"#]],
        );
        check(
            "-n 0",
            expect!["2: --ntasks: 0 is too few: ask for at least 1"],
        );
        check(
            "-c x",
            expect![[r#"2: --cpus-per-task: "x" is not a whole number"#]],
        );
        check(
            "--mem 1.5G",
            expect![[
                r#"2: --mem: size "1.5G" has a fraction. Use the next smaller unit, as in 1536M for 1.5G"#
            ]],
        );
        check(
            "-w ./nodes",
            expect![[
                r#"2: --nodelist: "./nodes" looks like a file. Write the nodes themselves: node[01-03,7]"#
            ]],
        );
        check(
            "-w node[1-1000000000]",
            expect![
                "2: --nodelist: the host list names 1000000000 nodes and 131072 are the most. Use a smaller range"
            ],
        );
        check(
            "--exclusive=user",
            expect![[
                r#"2: --exclusive: "user" is not known here: a node is shared with all or with none. Write --exclusive alone, or --exclusive=off"#
            ]],
        );
        check(
            "--gpus=2 --nvlink=on",
            expect![[r#"2: --nvlink: "on" is not known here. Write --nvlink, or --nvlink=off"#]],
        );
        check(
            "--gpu-mem=40G",
            expect!["2: --gpu-mem: the job asks for no GPU. Add --gpus 1, or leave this out"],
        );
        check(
            "-N3 --gpus=8 --gpus-per-node=4",
            expect![
                "2: --gpus: 8 at --gpus-per-node 4 make 2 nodes, and --nodes asks for 3. Leave one of the three out"
            ],
        );
        check(
            "-n3 --gpus=8 --gpus-per-task=2",
            expect![
                "2: --gpus: 8 at --gpus-per-task 2 make 4 tasks, and --ntasks asks for 3. Leave one of the three out"
            ],
        );
        check(
            "--mail-type=END,FIAL",
            expect![[
                r#"2: --mail-type: "FIAL" is no event. Did you mean "FAIL"? Events are NONE, BEGIN, END, FAIL, REQUEUE, ALL, INVALID_DEPEND, STAGE_OUT, TIME_LIMIT, TIME_LIMIT_90, TIME_LIMIT_80, TIME_LIMIT_50, ARRAY_TASKS"#
            ]],
        );
        check(
            "--open-mode=w",
            expect![[r#"2: --open-mode: "w" is neither append nor truncate"#]],
        );
        check(
            "-t 1:xx",
            expect![[
                r#"2: --time: time limit "1:xx" is in none of the forms minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds or UNLIMITED. Try 90 (minutes) or 1:30:00"#
            ]],
        );
    }

    #[test]
    fn options_of_the_scheduler_are_read_early() {
        let spec = submission(&[
            "-d",
            "afterok:17?afterany:98_5",
            "-L",
            "matlab:2,ansys",
            "--time=60",
            "--time-min=10",
            "--switches=2",
            "--no-borrow",
        ])
        .unwrap()
        .spec;
        assert_eq!(
            spec.dependency.clone().unwrap().to_string(),
            "afterok:17?afterany:98_5"
        );
        assert_eq!(
            (
                spec.licences["matlab"],
                spec.licences["ansys"],
                spec.time_min_secs,
                spec.borrow
            ),
            (2, 1, Some(600), Some(false))
        );
        assert_eq!(
            spec.request.switches,
            Some(Switches {
                most: 2,
                wait_secs: None
            })
        );
        check(
            "-d afterok",
            expect![[
                r#"2: --dependency: "afterok": afterok names no job. Write afterok:17:18, after:17+10, aftercorr:98, singleton; `,` between conditions for all of them, `?` for any"#
            ]],
        );
        check(
            "-d afterok:1,after:2?afterany:3",
            expect![[
                r#"2: --dependency: "afterok:1,after:2?afterany:3": `,` and `?` cannot be mixed: all of the conditions, or any of them"#
            ]],
        );
        check(
            "-d aftrok:1",
            expect![[
                r#"2: --dependency: "aftrok:1": "aftrok" is no kind of dependency. Did you mean "afterok"? Write afterok:17:18, after:17+10, aftercorr:98, singleton; `,` between conditions for all of them, `?` for any"#
            ]],
        );
        check(
            "-L matlab:0",
            expect![[
                r#"2: --licenses: "matlab:0": counts go from 1 to 1000000. Write name:count with commas between, as in matlab:2,ansys"#
            ]],
        );
        check(
            "--time=10 --time-min=60",
            expect!["2: --time-min: 1:00:00 is more than the time limit 10:00. Make it less"],
        );
        check(
            "--deadline=2020-01-01",
            expect!["2: --deadline: 2020-01-01 has passed"],
        );
        check(
            "--deadline=someday",
            expect![[
                r#"2: --deadline: time "someday" is no time that can be read. Try now+1hour, 16:00, tomorrow, 2027-01-09 or 2027-01-09T06:00"#
            ]],
        );
        check(
            "--switches=1@x",
            expect![[
                r#"2: --switches: time limit "x" is in none of the forms minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds or UNLIMITED. Try 90 (minutes) or 1:30:00"#
            ]],
        );
        check(
            "--reservation=a,b",
            expect![[
                r#"2: --reservation: "a,b" names several; a job runs in one. gadm reservation list shows them"#
            ]],
        );
        check(
            "--priority=TOP",
            expect!["2: --priority: TOP is not offered. Write a number above what gq --prio shows"],
        );
        check(
            "--kill-on-invalid-dep=maybe",
            expect![[r#"2: --kill-on-invalid-dep: "maybe" is neither yes nor no"#]],
        );
        check(
            "--checkpoint=KILL@10",
            expect![[
                r#"2: --checkpoint: "KILL@10": KILL and STOP cannot be answered. Write SIGNAL@GRACE, as in USR1@120 (seconds) or USR1@10:00, or a command as in './save.sh@120'"#
            ]],
        );
        check(
            "--prefer=a&&b",
            expect![[
                r#"2: --prefer: constraint "a&&b": a feature is missing beside & or |. Try a100&ib or a100|h100"#
            ]],
        );
    }

    #[test]
    fn what_a_script_asks_for_is_put_aside_by_what_is_typed() {
        let plain = submission(&["--hold"]).unwrap();
        for typed in ["--exclusive=off", "--nvlink=off", "--switches=0"] {
            assert_eq!(
                submission(&["--hold", typed]).unwrap().spec,
                plain.spec,
                "{typed}"
            );
        }
    }

    #[test]
    fn empty_values_of_lists_are_as_if_not_given() {
        let plain = submission(&["--hold"]).unwrap();
        for option in [
            "constraint",
            "prefer",
            "nodelist",
            "exclude",
            "dependency",
            "licenses",
            "reservation",
            "mail-type",
            "gres",
        ] {
            assert_eq!(
                submission(&["--hold", &format!("--{option}=")])
                    .unwrap()
                    .spec,
                plain.spec,
                "{option}"
            );
        }
        assert_eq!(
            submission(&["-o", "none", "-e", "None"])
                .unwrap()
                .spec
                .launch
                .stdout,
            "/dev/null",
            "as sbatch reads it"
        );
    }

    #[test]
    fn times_and_directories_are_resolved_where_they_are_asked_for() {
        let spec = submission(&["-t", "30", "-b", "now+1hour", "-D", "run", "--nice"])
            .unwrap()
            .spec;
        assert_eq!(
            (
                spec.time_limit_secs,
                spec.launch.work_dir.as_str(),
                spec.nice
            ),
            (Some(1800), "/home/me/run", 100)
        );
        assert_eq!(spec.begin, Some(Timestamp::from_secs(1_795_165_527 + 3600)));
        assert_eq!(
            spec.launch.submit_dir, "/home/me",
            "where gsub was called, which --chdir does not change"
        );
        assert_eq!(
            submission(&["-D", "/home/me"])
                .unwrap()
                .spec
                .launch
                .submit_dir,
            "",
            "said once"
        );
        assert_eq!(
            submission(&["-t", "UNLIMITED"])
                .unwrap()
                .spec
                .time_limit_secs,
            Some(u32::MAX)
        );
        assert_eq!(
            submission(&["-D", "."]).unwrap().spec.launch.work_dir,
            "/home/me"
        );
        let lost = work_dir(None, &Submitter::default()).unwrap_err();
        assert!(lost.text.contains("no longer exists"), "{}", lost.text);
    }
}
