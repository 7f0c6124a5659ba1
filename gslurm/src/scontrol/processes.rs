//! `scontrol listpids` and `pidinfo`: the processes of jobs on this machine, by the cgroups that gpud puts them in. Source: scontrol(1).

use super::record;
use gcli::local_time::{self, TimeFormat};
use gcli::table::stdout;
use gcli::{Failure, Outcome};
use gmodel::JobId;
use gwire::client::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// What gpud names the cgroup of a run by, before the job and the run: `run_17-1`.
const RUN: &str = "run_";
const SUPERVISOR: &str = "sup";
const SCRIPT: &str = "batch";

/// Where a process of a job belongs.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    /// The directory above the run's: the node's name in a sandbox, whose nodes share a machine.
    above: String,
    job: JobId,
    /// A number, or `batch`.
    step: String,
}

impl Place {
    /// Read from `/proc/PID/cgroup`. `None`: it is of no job, or it is the supervisor of one.
    fn of(cgroups: &str) -> Option<Self> {
        let paths = cgroups
            .lines()
            .filter_map(|line| line.splitn(3, ':').nth(2));
        let mut places: Vec<Self> = paths.filter_map(Self::at).collect();
        let is_supervised = |line: &str| line.ends_with(&format!("/{SUPERVISOR}"));
        if cgroups.lines().any(is_supervised) {
            return None;
        }
        // Of several trees, some stop at the run.
        let deepest = places.iter().position(|place| place.step != SCRIPT);
        match deepest {
            Some(at) => Some(places.swap_remove(at)),
            None => places.pop(),
        }
    }

    fn at(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').collect();
        let run = parts.iter().position(|part| part.starts_with(RUN))?;
        let (job, number) = parts[run].strip_prefix(RUN)?.rsplit_once('-')?;
        number.parse::<u32>().ok()?;
        let step = parts[run..]
            .iter()
            .find_map(|part| part.strip_prefix("step_"));
        Some(Self {
            above: run
                .checked_sub(1)
                .map_or("", |above| parts[above])
                .to_owned(),
            job: job.parse().ok()?,
            step: step.unwrap_or(SCRIPT).to_owned(),
        })
    }
}

/// The processes of jobs here, by their pids.
fn all() -> Result<BTreeMap<u32, Place>, Failure> {
    let entries = std::fs::read_dir("/proc")
        .map_err(|error| Failure::new(format_args!("cannot read /proc: {error}")))?;
    let place = |name: &str| {
        let pid: u32 = name.parse().ok()?;
        // It may be gone by now.
        let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        Some((pid, Place::of(&cgroups)?))
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter_map(|name| place(&name)).collect())
}

/// `pidinfo 4711`: the job of a process, and how long it may go on.
pub(super) fn info(client: &mut Client, words: &[String]) -> Outcome {
    let [pid] = words else {
        return Err(Failure::usage("pidinfo of which process? pidinfo 4711"));
    };
    let number: u32 = pid
        .parse()
        .map_err(|_| Failure::usage(format_args!("{pid:?} is no process id")))?;
    let cgroups = std::fs::read_to_string(format!("/proc/{number}/cgroup"));
    let place = cgroups.ok().and_then(|text| Place::of(&text));
    let place = place.ok_or_else(|| {
        Failure::new(format_args!(
            "process {number} is of no job on this machine. pidinfo is for the node where it runs"
        ))
    })?;
    let rows = record::job_rows(client, &[place.job.to_string()])?;
    let row = rows.first();
    let end = row.and_then(|row| {
        let secs = row.time_limit_secs?;
        Some(row.start_time?.0.plus_secs(i64::from(secs)))
    });
    let mut out = stdout()?;
    match end {
        Some(end) => {
            let left = end.since_secs(local_time::now()).max(0);
            let end = TimeFormat::from_env().print(end);
            writeln!(out, "Slurm JobId={} ends at {end}", place.job)?;
            writeln!(out, "Job remaining time is {left} seconds")?;
        }
        None => writeln!(out, "Slurm JobId={} has no time limit", place.job)?,
    }
    out.flush()?;
    Ok(0)
}

/// `listpids [17[.0] [NODE]]`.
pub(super) fn list(words: &[String]) -> Outcome {
    let (named, node) = match words {
        [] => ("*", None),
        [job] => (job.as_str(), None),
        [job, node] => (job.as_str(), Some(node.as_str())),
        _ => return Err(Failure::usage("listpids of what? listpids 17, or 17.0")),
    };
    let (job, step) = match named.split_once('.') {
        _ if named == "*" => (None, None),
        Some((job, step)) => (Some(job), Some(step)),
        None => (Some(named), None),
    };
    let job: Option<JobId> = job.map(str::parse).transpose().map_err(|_| {
        Failure::usage(format_args!(
            "{named:?} is no job and no step. Write 17, or 17.0"
        ))
    })?;
    let mut found = all()?;
    found.retain(|_, place| {
        job.is_none_or(|job| job == place.job)
            && step.is_none_or(|step| step == place.step)
            && node.is_none_or(|node| node == place.above || place.above.starts_with("gpupool"))
    });
    if found.is_empty() {
        let here = nix::unistd::gethostname().unwrap_or_default();
        let here = node.map_or_else(|| here.to_string_lossy().into_owned(), str::to_owned);
        return Err(Failure::new(match (job, step) {
            (Some(job), Some(step)) => {
                format!("StepId={job}.{step} does not exist on node {here}.")
            }
            (Some(job), None) => format!("There are no steps for job {job} on node {here}."),
            (None, _) => "No job steps exist on this node.".to_owned(),
        }));
    }
    let mut out = stdout()?;
    let mut line = |[pid, job, step, local, global]: [&str; 5]| {
        writeln!(out, "{pid:<8} {job:<8} {step:<8} {local:<7} {global:<8}")
    };
    line(["PID", "JOBID", "STEPID", "LOCALID", "GLOBALID"])?;
    let pids: BTreeSet<u32> = found.keys().copied().collect();
    for (pid, place) in &found {
        let [local, global] = task(*pid, &pids, &place.step);
        let [pid, job] = [pid.to_string(), place.job.to_string()];
        line([&pid, &job, &place.step, &local, &global])?;
    }
    out.flush()?;
    Ok(0)
}

/// The ranks of a task on its node and in its step. What a task has started has none, nor has a process of another user,
/// whose environment cannot be read.
fn task(pid: u32, all: &BTreeSet<u32>, step: &str) -> [String; 2] {
    let none = || ["-", "-"].map(str::to_owned);
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}"));
    let stat = read("stat").unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    // The name of the program, which may hold anything, ends with the last bracket.
    let behind = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let parent = behind.split(' ').nth(1).and_then(|text| text.parse().ok());
    if parent.is_none_or(|parent: u32| all.contains(&parent)) {
        return none();
    }
    if step == SCRIPT {
        return ["0", "0"].map(str::to_owned);
    }
    let environment = read("environ").unwrap_or_default();
    let value = |name: &str| {
        let mut entries = environment.split(|byte| *byte == 0);
        let entry = entries.find_map(|entry| entry.strip_prefix(name.as_bytes()));
        entry.map(|text| String::from_utf8_lossy(text).into_owned())
    };
    match (value("SLURM_LOCALID="), value("SLURM_PROCID=")) {
        (Some(local), Some(global)) => [local, global],
        _ => none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_belongs_to_the_step_or_the_script_that_its_cgroups_name() {
        let told = |text: &str| {
            Place::of(text).map(|place| format!("{} {} {}", place.above, place.job, place.step))
        };
        let hybrid = "8:pids:/gpupool-3/node1/run_80-1\n4:memory:/gpupool-3/node1/run_80-1/step_0\n0::/gpupool-3/node1/run_80-1/job/step_0\n";
        assert_eq!(told(hybrid).as_deref(), Some("node1 80 0"));
        let script = "0::/gpupool/run_98-2/job\n";
        assert_eq!(told(script).as_deref(), Some("gpupool 98 batch"));
        for other in [
            "0::/gpupool/run_98-2/sup\n",
            "0::/system.slice/run_x.service\n",
            "0::/user.slice\n",
            "",
        ] {
            assert_eq!(told(other), None, "{other}");
        }
    }
}
