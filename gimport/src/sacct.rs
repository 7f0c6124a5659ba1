//! What sacct lists, as jobs that are over: `sacct -a -P -o ALL`, a line of names and a line for each job.
//!
//! Owns the columns and their forms. Steps are left out, and jobs that are not over yet. Source: sacct(1).

use crate::tres;
use gmodel::gpu_amounts::ALL_GPUS;
use gmodel::time::parse_rfc3339;
use gmodel::{ExitCode, JobState, TimeZone, Timestamp};
use std::collections::BTreeMap;

/// The most bytes of a line.
pub const MOST_LINE_BYTES: usize = 1 << 20;
/// The highest id of a job that is taken.
pub const MOST_ID: u64 = u32::MAX as u64;
/// The most bytes of a name or a list of nodes; what is longer is cut.
const MOST_TEXT_BYTES: usize = 4096;

/// The longest that a job may have run, and when the first may have ended: 2000-01-01.
const MOST_SECS: i64 = 3650 * 86_400;
const EARLIEST: Timestamp = Timestamp::from_secs(946_684_800);

/// A job that is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PastJob {
    pub id: u64,
    pub owner: PastOwner,
    pub name: String,
    pub state: JobState,
    pub exit: ExitCode,
    pub submitted: Timestamp,
    /// None where it never ran.
    pub started: Option<Timestamp>,
    pub ended: Timestamp,
    pub suspended_secs: u64,
    /// None is no limit, or none that is known.
    pub limit_secs: Option<u32>,
    pub held: PastShare,
}

/// The user and what the job named.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PastOwner {
    pub user: String,
    pub uid: u32,
    pub gid: u32,
    pub account: String,
    pub partition: String,
    pub qos: String,
    pub work_dir: String,
}

/// What it held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PastShare {
    pub nodes: u32,
    pub nodelist: String,
    pub cpus: u32,
    pub mem_bytes: u64,
    /// Thousandths by type; those of no type under `gpu`.
    pub gpus: BTreeMap<String, u64>,
    pub cpu_used_micros: u64,
}

/// What becomes of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PastLine {
    Job(Box<PastJob>),
    Step,
    /// It waits or runs.
    Unfinished,
}

/// Reads lines by the names in the first one.
#[derive(Debug)]
pub struct SacctReader {
    columns: BTreeMap<String, usize>,
    count: usize,
}

/// Columns without which a job is none.
const NEEDED: [&str; 6] = ["user", "account", "state", "submit", "start", "end"];

impl SacctReader {
    /// From the first line.
    ///
    /// # Errors
    /// Which column is missing.
    pub fn new(head: &str) -> Result<Self, String> {
        let names: Vec<String> = head
            .trim_end()
            .split('|')
            .map(str::to_ascii_lowercase)
            .collect();
        let columns: BTreeMap<String, usize> = names
            .iter()
            .enumerate()
            .map(|(at, name)| (name.clone(), at))
            .collect();
        let has = |name: &str| columns.contains_key(name);
        if let Some(missing) = NEEDED.iter().find(|name| !has(name)) {
            return Err(format!(
                "the first line has no column {missing}: sacct -a -P -S now-365days -o ALL prints all"
            ));
        }
        if !has("jobidraw") && !has("jobid") {
            return Err("the first line has no column JobIDRaw".to_owned());
        }
        if !has("alloctres") && !has("alloccpus") {
            return Err("the first line has no column AllocTRES".to_owned());
        }
        Ok(Self {
            count: names.len(),
            columns,
        })
    }

    /// One line; times without a zone are the zone's.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn line(&self, line: &str, zone: &TimeZone) -> Result<PastLine, String> {
        if line.len() > MOST_LINE_BYTES {
            return Err(format!(
                "it has {} bytes, {MOST_LINE_BYTES} are the most",
                line.len()
            ));
        }
        let cells: Vec<&str> = line.trim_end_matches(['\r', '\n']).split('|').collect();
        // With -p instead of -P there is a bar at the end of each line.
        if cells.len() != self.count {
            return Err(format!(
                "it has {} columns, the first line {}: a bar in a name?",
                cells.len(),
                self.count
            ));
        }
        let row = SacctRow {
            reader: self,
            cells: &cells,
        };
        let id = row
            .text("jobidraw")
            .or(row.text("jobid"))
            .unwrap_or_default();
        if id.contains('.') {
            return Ok(PastLine::Step);
        }
        let word = row
            .text("state")
            .unwrap_or_default()
            .split(' ')
            .next()
            .unwrap_or_default();
        let Some(state) = final_state(word) else {
            return match [
                "PENDING",
                "RUNNING",
                "SUSPENDED",
                "REQUEUED",
                "RESIZING",
                "COMPLETING",
            ]
            .contains(&word)
            {
                true => Ok(PastLine::Unfinished),
                false => Err(format!("{word:?} is no state of a job")),
            };
        };
        let id = id
            .parse::<u64>()
            .ok()
            .filter(|id| (1..=MOST_ID).contains(id));
        let id = id.ok_or_else(|| "JobIDRaw is no number".to_owned())?;
        row.job(id, state, zone)
            .map(|job| PastLine::Job(Box::new(job)))
    }
}

fn final_state(word: &str) -> Option<JobState> {
    Some(match word {
        "COMPLETED" => JobState::Completed,
        "FAILED" | "BOOT_FAIL" | "LAUNCH_FAILED" => JobState::Failed,
        "CANCELLED" | "REVOKED" => JobState::Cancelled,
        "TIMEOUT" => JobState::Timeout,
        "DEADLINE" => JobState::Deadline,
        "NODE_FAIL" => JobState::NodeFail,
        "OUT_OF_MEMORY" => JobState::OutOfMemory,
        "PREEMPTED" => JobState::Preempted,
        _ => return None,
    })
}

struct SacctRow<'r> {
    reader: &'r SacctReader,
    cells: &'r [&'r str],
}

impl SacctRow<'_> {
    fn text(&self, column: &str) -> Option<&str> {
        let at = self.reader.columns.get(column)?;
        Some(self.cells[*at].trim()).filter(|text| !text.is_empty())
    }

    fn owned(&self, column: &str) -> String {
        let text = self.text(column).unwrap_or_default();
        let end = text
            .char_indices()
            .map(|(at, _)| at)
            .take_while(|at| *at <= MOST_TEXT_BYTES)
            .last();
        match text.len() > MOST_TEXT_BYTES {
            true => text[..end.unwrap_or(0)].to_owned(),
            false => text.to_owned(),
        }
    }

    fn number(&self, column: &str) -> Option<u64> {
        self.text(column)?.parse().ok()
    }

    fn small(&self, column: &str) -> u32 {
        self.number(column)
            .and_then(|number| u32::try_from(number).ok())
            .unwrap_or(0)
    }

    fn job(&self, id: u64, state: JobState, zone: &TimeZone) -> Result<PastJob, String> {
        let time = |column: &str| self.time(column, zone);
        let submitted = time("submit")?.ok_or("Submit is unknown")?;
        let ended = time("end")?.ok_or("End is unknown")?;
        let started = time("start")?.filter(|start| *start <= ended);
        if self.text("user").is_none() {
            return Err("it has no user".to_owned());
        }
        let lasted_secs = started.map_or(0, |start| ended.since_secs(start));
        if lasted_secs > MOST_SECS || ended < EARLIEST {
            return Err("it ended before 2000, or ran for more than 3650 days".to_owned());
        }
        let exit = self.text("exitcode").and_then(|text| text.parse().ok());
        Ok(PastJob {
            id,
            owner: self.owner(),
            name: self.owned("jobname"),
            state,
            exit: exit.unwrap_or_default(),
            submitted: submitted.min(started.unwrap_or(ended)),
            started,
            ended,
            suspended_secs: self.text("suspended").and_then(clock_secs).unwrap_or(0),
            limit_secs: self.limit_secs(),
            held: self.share()?,
        })
    }

    fn owner(&self) -> PastOwner {
        let named =
            |column: &str, none: &str| self.text(column).unwrap_or(none).to_ascii_lowercase();
        PastOwner {
            user: self.owned("user"),
            uid: self.small("uid"),
            gid: self.small("gid"),
            account: named("account", "default"),
            partition: self.owned("partition"),
            qos: named("qos", "normal"),
            work_dir: self.owned("workdir"),
        }
    }

    /// `TimelimitRaw` is minutes.
    fn limit_secs(&self) -> Option<u32> {
        let minutes = self
            .number("timelimitraw")
            .and_then(|minutes| minutes.checked_mul(60));
        let text = || self.text("timelimit").and_then(clock_secs);
        minutes
            .or_else(text)
            .and_then(|secs| u32::try_from(secs).ok())
    }

    fn share(&self) -> Result<PastShare, String> {
        let text = self.text("alloctres").unwrap_or_default();
        let list = tres::amounts(text).ok_or_else(|| format!("AllocTRES {text:?} is no list"))?;
        let mut gpus = list.gpus.map(|gpus| gpus.0).unwrap_or_default();
        // Of several types the sum is there, too.
        let typed: u64 = gpus
            .iter()
            .filter(|(kind, _)| *kind != ALL_GPUS)
            .map(|(_, milli)| milli)
            .sum();
        match gpus.remove(ALL_GPUS) {
            Some(all) if all > typed => {
                gpus.insert(ALL_GPUS.to_owned(), all - typed);
            }
            _ => {}
        }
        let nodelist = self.owned("nodelist");
        let nodelist = if nodelist == "None assigned" {
            String::new()
        } else {
            nodelist
        };
        Ok(PastShare {
            nodes: list
                .nodes
                .unwrap_or_else(|| self.small("allocnodes").max(self.small("nnodes"))),
            nodelist,
            cpus: list.cpus.unwrap_or_else(|| self.small("alloccpus")),
            mem_bytes: list.mem_bytes.unwrap_or(0),
            gpus,
            cpu_used_micros: self.text("totalcpu").and_then(clock_micros).unwrap_or(0),
        })
    }

    /// Local time, or seconds since 1970 where SLURM_TIME_FORMAT=%s was set.
    fn time(&self, column: &str, zone: &TimeZone) -> Result<Option<Timestamp>, String> {
        let Some(text) = self.text(column) else {
            return Ok(None);
        };
        if ["Unknown", "None", "N/A"].contains(&text) {
            return Ok(None);
        }
        if let Ok(secs) = text.parse::<u32>() {
            return Ok((secs > 0).then(|| Timestamp::from_secs(i64::from(secs))));
        }
        let local = parse_rfc3339(&format!("{text}Z"))
            .ok_or_else(|| format!("{column} {text:?} is no time"))?;
        Ok(Some(zone.at_local(local.0)))
    }
}

/// `1-02:03:04`, `02:03:04`, `03:04`.
fn clock_secs(text: &str) -> Option<u64> {
    clock_micros(text).map(|micros| micros / 1_000_000)
}

/// The same with a fraction of a second, `03:04.125`.
fn clock_micros(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let (days, clock) = whole.split_once('-').unwrap_or(("0", whole));
    let mut secs = 0_u64;
    for field in clock.split(':') {
        secs = secs
            .checked_mul(60)?
            .checked_add(field.parse::<u32>().ok()?.into())?;
    }
    let part: u64 = format!("{part}000000").get(..6)?.parse().ok()?;
    let days: u64 = days.parse::<u32>().ok()?.into();
    Some((days * 86_400 + secs).checked_mul(1_000_000)? + part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "JobID|JobIDRaw|JobName|User|UID|Account|Partition|QOS|State|ExitCode|Submit|Start|End|Suspended|TimelimitRaw|AllocTRES|NodeList|TotalCPU";

    fn read(line: &str) -> Result<PastLine, String> {
        SacctReader::new(HEAD)
            .unwrap()
            .line(line, &TimeZone::default())
    }

    #[test]
    fn a_line_is_a_job_with_what_it_held() {
        let line = "7_2|9|train|ada|1000|Vision|gpu|Normal|CANCELLED by 1000|0:15|2026-01-02T03:00:00|2026-01-02T03:04:05|2026-01-02T04:04:05|00:10:00|120|\
                    billing=8,cpu=8,gres/gpu:h100=2,gres/gpu=3,mem=64G,node=1|gpu[01]|1-00:00:01.500";
        let PastLine::Job(job) = read(line).unwrap() else {
            panic!("a job")
        };
        assert_eq!(
            (
                job.id,
                job.owner.account.as_str(),
                job.owner.qos.as_str(),
                job.state
            ),
            (9, "vision", "normal", JobState::Cancelled)
        );
        assert_eq!(
            (
                job.ended.0 - job.started.unwrap().0,
                job.suspended_secs,
                job.limit_secs
            ),
            (3_600_000, 600, Some(7200))
        );
        assert_eq!(
            job.held.gpus,
            BTreeMap::from([("gpu".into(), 1000), ("h100".into(), 2000)])
        );
        assert_eq!(
            (job.held.cpus, job.held.mem_bytes, job.held.cpu_used_micros),
            (8, 64 << 30, 86_401_500_000)
        );
    }

    #[test]
    fn steps_and_jobs_under_way_are_left_out_and_broken_lines_said() {
        let line = |id: &str, state: &str, end: &str| {
            format!(
                "{id}|{id}|n|ada|1|a|p|q|{state}|0:0|2026-01-02T03:00:00|Unknown|{end}|||cpu=1|None assigned|"
            )
        };
        assert_eq!(
            read(&line("9.batch", "COMPLETED", "Unknown")),
            Ok(PastLine::Step)
        );
        assert_eq!(
            read(&line("9", "RUNNING", "Unknown")),
            Ok(PastLine::Unfinished)
        );
        assert!(read(&line("9", "CANCELLED", "2026-01-02T03:00:01")).is_ok());
        for (line, why) in [
            (line("9", "COMPLETED", "Unknown"), "End is unknown"),
            (
                line("9", "COMPLETED", "yesterday"),
                "end \"yesterday\" is no time",
            ),
            (
                line("x", "COMPLETED", "2026-01-02T03:00:01"),
                "JobIDRaw is no number",
            ),
            (
                line("9", "SINGING", "2026-01-02T03:00:01"),
                "\"SINGING\" is no state of a job",
            ),
            (
                "9|9".into(),
                "it has 2 columns, the first line 18: a bar in a name?",
            ),
        ] {
            assert_eq!(read(&line).unwrap_err(), why);
        }
        assert!(
            SacctReader::new("JobID|User")
                .unwrap_err()
                .starts_with("the first line has no column account")
        );
    }
}
