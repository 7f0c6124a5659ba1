//! `gadm export-trace`: the jobs that are over as the CSV that `gsim run --trace` reads, and the cluster beside it.
//!
//! Asks the controller page by page and writes as it reads: memory holds one page and each name once. Columns are those of
//! gsim's README; names are numbered unless they are to be kept.

mod cluster;
mod pseudonyms;

use gcli::local_time::{self, TimeFormat};
use gcli::table::stdout;
use gcli::{Failure, Outcome};
use gmodel::{Instant, Timestamp};
use gwire::api::{TracePage, TraceQuery, TraceRow};
use gwire::client::{Client, path_with_query};
use pseudonyms::Pseudonyms;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Which jobs, and where to.
#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    /// Jobs submitted since, as 2027-01-09 or now-30days (the first on record)
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Jobs submitted before (now)
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// File for the jobs; - is stdout
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// File for nodes and partitions as they are now, which gsim run --cluster reads
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Keep the names of users, accounts, partitions, QOS and nodes; else they are numbered: user1, account1. A policy file
    /// with accounts needs them
    #[arg(long)]
    names: bool,
}

const HEADER: &str = "job_id,user,account,submit_s,run_s,time_limit_s,nodes,gpus,gpu_type,cpus,mem_mb,state,partition,qos,wait_s,\
                      start_s,end_s,attempts";

pub(crate) fn run(client: &mut Client, args: &ExportArgs) -> Outcome {
    let mut query = query(args)?;
    let mut names = Pseudonyms::new(args.names);
    if let Some(path) = &args.cluster {
        let (text, notes) = cluster::toml(client, &mut names)?;
        std::fs::write(path, text).map_err(|error| cannot_write(path, &error))?;
        notes.iter().for_each(|note| say(note));
    }
    let mut file: Option<TraceFile> = None;
    loop {
        let page: TracePage =
            client
                .get(&path_with_query("/v1/trace", &query))
                .map_err(|error| {
                    let failure = Failure::from(error);
                    if file.is_some() {
                        failure.context("the trace is not whole")
                    } else {
                        failure
                    }
                })?;
        for row in &page.trace {
            let file = match &mut file {
                Some(file) => file,
                none => none.insert(TraceFile::create(&args.output, row)?),
            };
            file.write(row, &mut names)
                .map_err(|error| cannot_write(&args.output, &error))?;
        }
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    let file = file.ok_or_else(|| Failure::new(nothing(&query)))?;
    let summary = file
        .finish(args.names)
        .map_err(|error| cannot_write(&args.output, &error))?;
    say(&summary);
    Ok(0)
}

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "gadm: {text}");
}

fn query(args: &ExportArgs) -> Result<TraceQuery, Failure> {
    let now = local_time::now();
    Ok(TraceQuery {
        from: local_time::past_option("from", args.from.as_deref(), now)?,
        to: local_time::past_option("to", args.to.as_deref(), now)?,
        ..TraceQuery::default()
    })
}

fn nothing(query: &TraceQuery) -> String {
    let times = TimeFormat::from_env();
    let mut text = "no job is over".to_owned();
    if query.from.is_some() || query.to.is_some() {
        text.push_str(" that was submitted");
    }
    for (word, at) in [("since", query.from), ("before", query.to)] {
        if let Some(at) = at {
            let _ = write!(text, " {word} {}", times.print(at.0));
        }
    }
    text + ": there is nothing to export"
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    // A reader of stdout that went away (`| head`) is no failure, as everywhere.
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::silent(0);
    }
    Failure::new(format_args!("cannot write {}: {error}", path.display()))
}

/// The file while it is written.
struct TraceFile {
    out: Box<dyn Write>,
    /// Instant of the first submission: second 0.
    begin: Timestamp,
    jobs: u64,
    never_ran: u64,
    last: Timestamp,
}

impl TraceFile {
    /// Begins the file only when there is something for it.
    fn create(path: &Path, first: &TraceRow) -> Result<Self, Failure> {
        let mut out: Box<dyn Write> = if path == Path::new("-") {
            Box::new(stdout()?)
        } else {
            Box::new(BufWriter::new(
                File::create(path).map_err(|error| cannot_write(path, &error))?,
            ))
        };
        writeln!(out, "{HEADER}").map_err(|error| cannot_write(path, &error))?;
        let begin = first.submit_time.map_or(Timestamp(0), |at| at.0);
        Ok(Self {
            out,
            begin,
            jobs: 0,
            never_ran: 0,
            last: begin,
        })
    }

    fn write(&mut self, row: &TraceRow, names: &mut Pseudonyms) -> io::Result<()> {
        self.jobs += 1;
        self.never_ran += u64::from(row.start_time.is_none());
        self.last = self.last.max(row.submit_time.map_or(self.begin, |at| at.0));
        writeln!(self.out, "{}", line(row, self.begin, names))
    }

    /// What was written, in a line.
    fn finish(mut self, kept: bool) -> io::Result<String> {
        self.out.flush()?;
        let times = TimeFormat::from_env();
        let (from, to) = (times.print(self.begin), times.print(self.last));
        let mut text = format!("{} jobs, submitted {from} to {to}", self.jobs);
        if self.never_ran > 0 {
            let _ = write!(
                text,
                "; {} of them never ran and have no run_s",
                self.never_ran
            );
        }
        text.push_str(if kept {
            ""
        } else {
            "; names are numbered (--names keeps them)"
        });
        Ok(text)
    }
}

/// One job as a line of the trace.
fn line(row: &TraceRow, begin: Timestamp, names: &mut Pseudonyms) -> String {
    // A trace knows neither begin times nor dependencies: such a job comes when it could have run.
    let submit = row.eligible_time.or(row.submit_time).map(|at| at.0);
    let since = |from: Option<Timestamp>, to: Option<Instant>| match (from, to) {
        (Some(from), Some(to)) => secs(to.0.since_millis(from).max(0)),
        _ => String::new(),
    };
    let at = |at: Option<Instant>| since(Some(begin), at);
    let fields = [
        row.id.to_string(),
        names.user(&row.user),
        names.account(&row.account),
        at(submit.map(Instant)),
        since(
            row.start_time.map(|at| at.0.plus_secs(row.suspended_secs)),
            row.end_time,
        ),
        row.time_limit_secs
            .map(|secs| secs.to_string())
            .unwrap_or_default(),
        row.nodes.to_string(),
        gpus(row),
        row.gpu_types.join("|"),
        row.cpus.to_string(),
        row.mem_bytes.div_ceil(1 << 20).to_string(),
        row.state.long().to_owned(),
        names.partition(&row.partition),
        names.qos(&row.qos),
        since(submit, row.first_start_time),
        at(row.start_time),
        at(row.end_time),
        row.attempts.to_string(),
    ];
    fields.map(quoted).join(",")
}

/// Whole GPUs, or a part of one: more parts than one GPU has, or on several nodes, are given as whole ones.
fn gpus(row: &TraceRow) -> String {
    let parts = row.gpus.fract() != 0.0 && (row.gpus > 1.0 || row.nodes > 1);
    if parts { row.gpus.ceil() } else { row.gpus }.to_string()
}

/// Seconds with the thousandths that there are.
fn secs(millis: i64) -> String {
    match (millis / 1000, millis % 1000) {
        (secs, 0) => secs.to_string(),
        (secs, millis) => format!("{secs}.{millis:03}"),
    }
}

fn quoted(field: String) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use gmodel::JobState;

    fn row() -> TraceRow {
        let at = |secs: i64| Some(Instant(Timestamp(1_000_000 + secs * 1000 + 250)));
        TraceRow {
            id: 17,
            user: "ada".into(),
            account: "vision".into(),
            partition: "train".into(),
            qos: "high, \"urgent\"".into(),
            state: JobState::Completed,
            attempts: 2,
            submit_time: at(10),
            eligible_time: None,
            first_start_time: at(70),
            start_time: at(500),
            end_time: at(810),
            suspended_secs: 10,
            time_limit_secs: Some(3600),
            nodes: 2,
            cpus: 64,
            mem_bytes: (1 << 30) + 1,
            gpus: 16.0,
            gpu_types: vec!["h100".into(), "a100".into()],
        }
    }

    #[test]
    fn a_job_is_a_line_with_its_units_and_its_names_only_where_they_are_kept() {
        let begin = Timestamp(1_000_000);
        expect![["17,ada,vision,10.250,300,3600,2,16,h100|a100,64,1025,COMPLETED,train,\"high, \"\"urgent\"\"\",60,500.250,810.250,2"]]
            .assert_eq(&line(&row(), begin, &mut Pseudonyms::new(true)));
        let mut numbered = Pseudonyms::new(false);
        expect![["17,user1,account1,10.250,300,3600,2,16,h100|a100,64,1025,COMPLETED,partition1,qos1,60,500.250,810.250,2"]]
            .assert_eq(&line(&row(), begin, &mut numbered));
        let other = TraceRow {
            user: "lise".into(),
            ..row()
        };
        assert!(line(&other, begin, &mut numbered).starts_with("17,user2,account1,"));
    }

    #[test]
    fn a_job_comes_when_it_could_have_run_and_one_that_never_ran_has_no_times() {
        let begin = Timestamp(1_000_000);
        let mut names = Pseudonyms::new(true);
        let waited = TraceRow {
            eligible_time: Some(Instant(Timestamp(1_060_250))),
            ..row()
        };
        assert!(line(&waited, begin, &mut names).starts_with("17,ada,vision,60.250,300,"));
        let never = TraceRow {
            first_start_time: None,
            start_time: None,
            end_time: None,
            qos: String::new(),
            ..row()
        };
        assert!(
            line(&never, begin, &mut names)
                .ends_with(",10.250,,3600,2,16,h100|a100,64,1025,COMPLETED,train,,,,,2")
        );
    }

    #[test]
    fn parts_of_gpus_are_as_a_trace_may_have_them() {
        let gpus = |gpus: f64, nodes: u32| gpus_of(gpus, nodes);
        assert_eq!(
            [
                gpus(0.5, 1),
                gpus(1.0, 1),
                gpus(1.5, 1),
                gpus(0.5, 2),
                gpus(16.0, 2)
            ],
            ["0.5", "1", "2", "1", "16"]
        );
    }

    fn gpus_of(gpus: f64, nodes: u32) -> String {
        super::gpus(&TraceRow {
            gpus,
            nodes,
            ..row()
        })
    }
}
