//! Traces of real jobs as CSV: user, request, submission, run time. The columns are those of
//! `shared/data/README.md` and of `gadm export-trace`.
//!
//! Owns names, units and bounds of the columns; every bad row is reported with its line. It never decides where a job
//! runs, and never reads a file.

use crate::csv_rows::rows;
use csv::StringRecord;
use gcore::ctl::DEFAULT_LIMIT_SECS;
use gmodel::JobSpec;
use gmodel::duration::squeue_time;
use gmodel::hostlist::MAX_HOSTS;
use gmodel::suggest::closest;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Rows that are read at most.
pub const MAX_ROWS: usize = 5_000_000;
/// Bytes that a packed file may unpack to.
pub const MAX_TEXT_BYTES: usize = 1 << 30;
/// Mistakes that are listed; the others are counted.
const MAX_ERRORS: usize = 20;

/// The jobs of a trace in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    pub jobs: Vec<TraceJob>,
    /// Columns that are not ours, each with the one that may be meant.
    pub passed_over: Vec<String>,
    /// What was assumed, for the reader of the results.
    pub notes: Vec<String>,
}

/// The time limit that stands in for one the source does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLimit {
    /// Seconds, the same for each job.
    Secs(u32),
    /// How long the job runs: no real scheduler knows it.
    Truth,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceJob {
    /// Id in the source, or the row's number.
    pub id: Arc<str>,
    /// Empty where the source has none, as the other names.
    pub user: Arc<str>,
    pub account: Arc<str>,
    pub partition: Arc<str>,
    pub qos: Arc<str>,
    /// Milliseconds since the begin of the trace.
    pub submit_ms: i64,
    /// How long it ran; `None` where the source does not say (it never ran).
    pub run_ms: Option<i64>,
    /// The limit its user asked for.
    pub limit_ms: Option<i64>,
    /// 1 where the source does not say.
    pub nodes: u32,
    pub says_nodes: bool,
    /// Thousandths of GPUs of the whole job: whole ones, or a share of one.
    pub gpu_milli: u64,
    /// Any of these types will do; empty: any type.
    pub gpu_types: Vec<Arc<str>>,
    /// Thousandths of CPUs of the whole job; 0 where the source has none.
    pub cpu_milli: u64,
    /// MiB on each node; 0 where the source has none.
    pub mem_mib: u64,
    /// Of a controller's own trace: all that was asked for, in place of what follows from the columns. Its times count from the
    /// begin of the trace.
    pub asked: Option<Arc<JobSpec>>,
}

/// What is wrong with a trace: all of it, by line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceErrors {
    /// Line, counted from 1, and what is wrong with it.
    pub errors: Vec<(usize, String)>,
    /// How many more there are.
    pub more: usize,
}

impl fmt::Display for TraceErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (line, text)) in self.errors.iter().enumerate() {
            let end = if at > 0 { "\n" } else { "" };
            write!(f, "{end}line {line}: {text}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for TraceErrors {}

impl Trace {
    /// Reads the text of a trace.
    ///
    /// # Errors
    /// All rows that cannot be used, with the reasons.
    pub fn parse(text: &str) -> Result<Self, TraceErrors> {
        let mut rows = rows(text);
        let Some((first, header)) = rows.next() else {
            return Err(one(1, "the file is empty".into()));
        };
        let columns = header
            .and_then(|header| Columns::read(&header))
            .map_err(|text| one(first, text))?;
        let mut names = Names::default();
        let mut jobs = Vec::new();
        let mut errors = TraceErrors {
            errors: Vec::new(),
            more: 0,
        };
        for (line, row) in rows {
            if jobs.len() >= MAX_ROWS {
                return Err(one(
                    line,
                    format!("more than {MAX_ROWS} rows, which is the most that is read"),
                ));
            }
            match row.and_then(|row| columns.row(&row, jobs.len() + 1, &mut names)) {
                Ok(job) => jobs.push(job),
                Err(text) if errors.errors.len() < MAX_ERRORS => errors.errors.push((line, text)),
                Err(_) => errors.more += 1,
            }
        }
        if !errors.errors.is_empty() {
            return Err(errors);
        }
        if jobs.is_empty() {
            return Err(one(first, "the file has a header and no rows".into()));
        }
        Ok(Self {
            jobs,
            passed_over: columns.passed_over,
            notes: Vec::new(),
        })
    }

    /// A word on jobs without a time limit, where there are any.
    pub fn unlimited(&self) -> Option<String> {
        let count = self
            .jobs
            .iter()
            .filter(|job| job.limit_ms.is_none() && job.run_ms.is_some())
            .count();
        let day = squeue_time(u64::from(DEFAULT_LIMIT_SECS));
        (count > 0).then(|| format!("{count} jobs name no time limit: the controller gives each its partition's, or {day} (--no-limit)"))
    }

    /// Gives a time limit to each job that has none.
    pub fn limit(&mut self, by: NoLimit) {
        let mut count = 0;
        for job in self
            .jobs
            .iter_mut()
            .filter(|job| job.limit_ms.is_none() && job.run_ms.is_some())
        {
            job.limit_ms = match by {
                NoLimit::Secs(secs) => Some(i64::from(secs) * 1000),
                NoLimit::Truth => job.run_ms,
            };
            count += 1;
        }
        if count == 0 {
            self.notes
                .push("every job names a time limit: --no-limit changes nothing".into());
        } else {
            self.notes.push(match by {
                NoLimit::Secs(secs) => format!("{count} jobs name no time limit: each asks for {} (--no-limit)", squeue_time(u64::from(secs))),
                NoLimit::Truth => format!("{count} jobs name no time limit: the scheduler is told how long each runs, which no real one knows (--no-limit truth)"),
            });
        }
    }

    /// Milliseconds from the first to the last submission.
    pub fn span_ms(&self) -> i64 {
        let first = self.jobs.iter().map(|job| job.submit_ms).min().unwrap_or(0);
        let last = self.jobs.iter().map(|job| job.submit_ms).max().unwrap_or(0);
        last - first
    }

    pub fn has_gpus(&self) -> bool {
        self.jobs.iter().any(|job| job.gpu_milli > 0)
    }
}

impl TraceJob {
    /// GPUs of the whole job, a share counted as one.
    pub fn gpus(&self) -> u64 {
        self.gpu_milli.div_ceil(1000)
    }
    /// Its number of nodes; without one in the source, as many as its GPUs fill of nodes with so many GPUs.
    pub fn nodes_among(&self, largest_gpus: u64) -> u32 {
        if self.says_nodes || largest_gpus == 0 {
            return self.nodes;
        }
        self.nodes
            .max(u32::try_from(self.gpus().div_ceil(largest_gpus)).unwrap_or(u32::MAX))
    }
    /// CPUs of the whole job, whole ones.
    pub fn cpus(&self) -> u64 {
        self.cpu_milli.div_ceil(1000)
    }
}

fn one(line: usize, text: String) -> TraceErrors {
    TraceErrors {
        errors: vec![(line, text)],
        more: 0,
    }
}

const COLUMNS: [&str; 15] = [
    "job_id",
    "user",
    "account",
    "submit_s",
    "run_s",
    "time_limit_s",
    "nodes",
    "gpus",
    "gpu_type",
    "cpus",
    "mem_mb",
    "state",
    "partition",
    "qos",
    "wait_s",
];

/// Longest time that is believed, seconds: three hundred years.
const MAX_SECS: f64 = 1e10;

/// One field of a row, with the name of its column.
#[derive(Clone, Copy)]
struct Field<'a> {
    column: &'static str,
    text: &'a str,
}

/// Where each column is, by its place in [`COLUMNS`].
struct Columns {
    at: [Option<usize>; 15],
    count: usize,
    passed_over: Vec<String>,
}

impl Columns {
    /// Columns that are not ours are passed over.
    fn read(header: &StringRecord) -> Result<Self, String> {
        let fields: Vec<&str> = header.iter().map(str::trim).collect();
        let at = COLUMNS.map(|name| fields.iter().position(|field| *field == name));
        if let Some(name) = COLUMNS
            .iter()
            .find(|name| fields.iter().filter(|field| field == name).count() > 1)
        {
            return Err(format!("column {name:?} is there twice"));
        }
        for needed in ["submit_s", "run_s"] {
            if !fields.contains(&needed) {
                return Err(format!(
                    "no column {needed:?}; a trace has the columns {}",
                    COLUMNS.join(",")
                ));
            }
        }
        // Of those that are there none is meant by another.
        let free = || {
            COLUMNS
                .iter()
                .zip(at)
                .filter(|(_, place)| place.is_none())
                .map(|(name, _)| *name)
        };
        let others = fields
            .iter()
            .copied()
            .filter(|field| !COLUMNS.contains(field));
        let guess = |name: &str| {
            closest(name, free()).map_or(String::new(), |near| format!(" (did you mean {near:?}?)"))
        };
        let passed_over = others
            .take(MAX_ERRORS)
            .map(|name| format!("{name:.60?}{}", guess(name)))
            .collect();
        Ok(Self {
            at,
            count: fields.len(),
            passed_over,
        })
    }

    fn row(
        &self,
        fields: &StringRecord,
        number: usize,
        names: &mut Names,
    ) -> Result<TraceJob, String> {
        if fields.len() != self.count {
            return Err(format!(
                "{} fields, and the header has {}",
                fields.len(),
                self.count
            ));
        }
        let field = |column: &'static str| {
            let at = COLUMNS
                .iter()
                .position(|known| *known == column)
                .and_then(|at| self.at[at]);
            let text = at.map_or("", |at| fields[at].trim());
            Field { column, text }
        };
        let mut name = |of: &'static str| names.get(field(of));
        let (id, user, account) = (name("job_id")?, name("user")?, name("account")?);
        let (partition, qos) = (name("partition")?, name("qos")?);
        let gpu_types = gpu_types(field("gpu_type").text, names)?;
        let nodes = whole(field("nodes"), MAX_HOSTS as u32)?;
        let job = TraceJob {
            id: if id.is_empty() {
                names.get(Field {
                    column: "job_id",
                    text: &number.to_string(),
                })?
            } else {
                id
            },
            user,
            account,
            partition,
            qos,
            submit_ms: thousandths(field("submit_s"), MAX_SECS)?.ok_or("submit_s is empty")? as i64,
            run_ms: thousandths(field("run_s"), MAX_SECS)?.map(|ms| ms as i64),
            limit_ms: thousandths(field("time_limit_s"), MAX_SECS)?.map(|ms| ms as i64),
            nodes: nodes.unwrap_or(1),
            says_nodes: nodes.is_some(),
            gpu_milli: thousandths(field("gpus"), 1e5)?.unwrap_or(0),
            gpu_types,
            cpu_milli: thousandths(field("cpus"), 1e7)?.unwrap_or(0),
            mem_mib: thousandths(field("mem_mb"), 1e9)?
                .unwrap_or(0)
                .div_ceil(1000),
            asked: None,
        };
        check(&job)?;
        Ok(job)
    }
}

/// `h100|a100`: types of which any will do.
fn gpu_types(text: &str, names: &mut Names) -> Result<Vec<Arc<str>>, String> {
    let kinds = text.split('|').filter(|kind| !kind.is_empty());
    let name = |kind: &str| {
        names.get(Field {
            column: "gpu_type",
            text: &kind.to_ascii_lowercase(),
        })
    };
    kinds.map(name).collect()
}

fn check(job: &TraceJob) -> Result<(), String> {
    if job.nodes == 0 {
        return Err("nodes is 0; a job has one at least".into());
    }
    if job.gpu_milli > 1000 && !job.gpu_milli.is_multiple_of(1000) {
        return Err(format!(
            "gpus is {}: whole GPUs, or a part of one",
            job.gpu_milli as f64 / 1000.0
        ));
    }
    if !job.gpu_milli.is_multiple_of(1000) && job.nodes > 1 {
        return Err(format!("a part of a GPU on {} nodes", job.nodes));
    }
    Ok(())
}

/// A number in thousandths; `None` for an empty field.
fn thousandths(field: Field<'_>, most: f64) -> Result<Option<u64>, String> {
    let Field { column: name, text } = field;
    if text.is_empty() {
        return Ok(None);
    }
    let number: f64 = text
        .parse()
        .map_err(|_| format!("{name} is {}, which is no number", quoted(text)))?;
    if !(0.0..=most).contains(&number) {
        return Err(format!(
            "{name} is {}; 0 to {most} is allowed",
            quoted(text)
        ));
    }
    Ok(Some((number * 1000.0).round() as u64))
}

fn whole(field: Field<'_>, most: u32) -> Result<Option<u32>, String> {
    let Field { column: name, text } = field;
    match thousandths(field, f64::from(most))? {
        Some(milli) if !milli.is_multiple_of(1000) => Err(format!(
            "{name} is {}, which is no whole number",
            quoted(text)
        )),
        milli => Ok(milli.map(|milli| (milli / 1000) as u32)),
    }
}

fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(40).collect::<String>())
}

/// Each name once: a trace repeats few of them many times.
#[derive(Default)]
struct Names(BTreeMap<String, Arc<str>>);

impl Names {
    fn get(&mut self, field: Field<'_>) -> Result<Arc<str>, String> {
        let Field { column, text } = field;
        if let Some(known) = self.0.get(text) {
            return Ok(known.clone());
        }
        if text.len() > 200 || text.chars().any(char::is_control) {
            return Err(format!(
                "{column} has {} bytes; up to 200 printable ones are allowed",
                text.len()
            ));
        }
        let name: Arc<str> = text.into();
        // Ids are all different: no use in keeping them.
        if column != "job_id" {
            self.0.insert(text.to_owned(), name.clone());
        }
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "job_id,user,account,submit_s,run_s,time_limit_s,nodes,gpus,gpu_type,cpus,mem_mb,state,partition,qos,wait_s";

    #[test]
    fn a_row_is_read_with_its_units() {
        let text = format!(
            "{HEADER}\n9,ada,vision,0.25,60,3600,2,16,A100|h100,64,512000,,train,high,\n,,,7,,,,0.5,,3.152,,,,,\n"
        );
        let trace = Trace::parse(&text).unwrap();
        let job = &trace.jobs[0];
        assert_eq!(
            (
                &*job.id,
                &*job.user,
                &*job.account,
                &*job.partition,
                &*job.qos
            ),
            ("9", "ada", "vision", "train", "high")
        );
        assert_eq!(
            (job.submit_ms, job.run_ms, job.limit_ms),
            (250, Some(60_000), Some(3_600_000))
        );
        assert_eq!(
            (job.nodes, job.gpu_milli, job.cpu_milli, job.mem_mib),
            (2, 16_000, 64_000, 512_000)
        );
        assert_eq!(
            job.gpu_types.iter().map(|t| &**t).collect::<Vec<_>>(),
            ["a100", "h100"]
        );
        let second = &trace.jobs[1];
        assert_eq!(
            (&*second.id, second.nodes, second.run_ms, second.gpu_milli),
            ("2", 1, None, 500)
        );
        assert_eq!((second.gpus(), second.cpus()), (1, 4));
        assert_eq!(trace.span_ms(), 6750);
    }

    #[test]
    fn a_job_without_a_limit_is_given_one_as_asked() {
        let limits = |by: NoLimit| {
            let mut trace =
                Trace::parse("submit_s,run_s,time_limit_s\n0,60,\n0,60,90\n0,,\n").unwrap();
            let before = trace.unlimited().unwrap();
            assert!(before.starts_with("1 jobs name no time limit: the controller gives each its partition's, or 1-00:00:00"), "{before}");
            trace.limit(by);
            assert_eq!(trace.unlimited(), None);
            (
                trace
                    .jobs
                    .iter()
                    .map(|job| job.limit_ms)
                    .collect::<Vec<_>>(),
                trace.notes.concat(),
            )
        };
        let note = "1 jobs name no time limit: each asks for 1:00:00 (--no-limit)";
        assert_eq!(
            limits(NoLimit::Secs(3600)),
            (vec![Some(3_600_000), Some(90_000), None], note.into())
        );
        let note = "1 jobs name no time limit: the scheduler is told how long each runs, which no real one knows (--no-limit truth)";
        assert_eq!(
            limits(NoLimit::Truth),
            (vec![Some(60_000), Some(90_000), None], note.into())
        );
        let mut limited = Trace::parse("submit_s,run_s,time_limit_s\n0,60,90\n").unwrap();
        limited.limit(NoLimit::Secs(5));
        assert_eq!(
            (limited.unlimited(), limited.notes.concat()),
            (
                None,
                "every job names a time limit: --no-limit changes nothing".into()
            )
        );
    }

    #[test]
    fn columns_may_stand_in_any_order_and_others_are_passed_over() {
        let trace = Trace::parse("note,run_s,submit_s\n\"a, b\",5,1\n").unwrap();
        assert_eq!(
            (trace.jobs[0].submit_ms, trace.jobs[0].run_ms),
            (1000, Some(5000))
        );
        assert_eq!(trace.passed_over, ["\"note\""]);
        let trace = Trace::parse("job_id,submit_s,run_s,time_limit,gpu\n1,1,5,9,1\n").unwrap();
        assert_eq!(
            trace.passed_over,
            [
                "\"time_limit\" (did you mean \"time_limit_s\"?)",
                "\"gpu\" (did you mean \"gpus\"?)"
            ]
        );
        assert_eq!(trace.jobs[0].limit_ms, None);
    }

    #[test]
    fn a_column_that_is_there_twice_is_refused() {
        let error = Trace::parse("submit_s,run_s,gpus,gpus\n1,2,1,4\n").unwrap_err();
        assert_eq!(error.to_string(), "line 1: column \"gpus\" is there twice");
    }

    #[test]
    fn every_bad_row_is_named_with_its_line() {
        let rows = [
            (
                "x,,,soon,1,,,,,,,,,,",
                "line 2: submit_s is \"soon\", which is no number",
            ),
            (
                "x,,,-1,1,,,,,,,,,,",
                "line 2: submit_s is \"-1\"; 0 to 10000000000 is allowed",
            ),
            ("x,,,,1,,,,,,,,,,", "line 2: submit_s is empty"),
            (
                "x,,,1,NaN,,,,,,,,,,",
                "line 2: run_s is \"NaN\"; 0 to 10000000000 is allowed",
            ),
            (
                "x,,,1,1,,0,,,,,,,,",
                "line 2: nodes is 0; a job has one at least",
            ),
            (
                "x,,,1,1,,1.5,,,,,,,,",
                "line 2: nodes is \"1.5\", which is no whole number",
            ),
            (
                "x,,,1,1,,1,1.5,,,,,,,",
                "line 2: gpus is 1.5: whole GPUs, or a part of one",
            ),
            (
                "x,,,1,1,,2,0.5,,,,,,,",
                "line 2: a part of a GPU on 2 nodes",
            ),
            ("x,,,1,1", "line 2: 5 fields, and the header has 15"),
            (
                "x,\"y,,1,1,,,,,,,,,,",
                "line 2: a quotation mark is not closed",
            ),
        ];
        for (row, expected) in rows {
            let error = Trace::parse(&format!("{HEADER}\n{row}\n")).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        let many = format!("{HEADER}\n{}", "x,,,soon,1,,,,,,,,,,\n".repeat(25));
        let error = Trace::parse(&many).unwrap_err();
        assert_eq!((error.errors.len(), error.more), (20, 5));
        assert!(
            error
                .to_string()
                .ends_with("line 21: submit_s is \"soon\", which is no number\nand 5 more")
        );
    }

    #[test]
    fn a_file_that_is_no_trace_is_refused() {
        assert_eq!(
            Trace::parse("").unwrap_err().to_string(),
            "line 1: the file is empty"
        );
        assert!(
            Trace::parse("node,cpus\na,1\n")
                .unwrap_err()
                .to_string()
                .starts_with("line 1: no column \"submit_s\"")
        );
        assert!(
            Trace::parse(HEADER)
                .unwrap_err()
                .to_string()
                .contains("no rows")
        );
        let long = format!("{HEADER}\n1,{},,1,1,,,,,,,,,,", "u".repeat(201));
        assert!(
            Trace::parse(&long)
                .unwrap_err()
                .to_string()
                .contains("user has 201 bytes")
        );
    }
}
