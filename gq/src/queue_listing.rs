//! The queue as a table, by a format or as JSON, row by row while it arrives. Source: squeue(1).
//!
//! Owns the printing; which jobs, columns and order are meant the command line of `queue` says.

use crate::job_column::JobColumn;
use crate::job_filter;
use crate::job_format::{JobFormat, ListingForm, fill};
use crate::queue_row::QueueRow;
use gcli::answer::{list, print_json};
use gcli::local_time::{self, TimeFormat};
use gcli::slurm_words::Cause;
use gcli::table::{Column, Screen, TableWriter, Tint, stdout};
use gcli::{Failure, Outcome};
use gmodel::{Instant, JobState, RefusalKind};
use gwire::api::{JobQuery, JobRow, JobRowKey, StartRow};
use gwire::client::{Client, path_with_query};
use gwire::row;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

/// What squeue prints where gq has a form of its own.
pub struct SqueueForm {
    /// Columns of the listing.
    pub usual: &'static str,
    /// Columns of `--long`.
    pub long: &'static str,
    /// Columns of `--steps`.
    pub steps: &'static str,
    /// Columns of `--start`.
    pub start: &'static str,
    /// Prints the jobs of `--json`.
    pub json: fn(&mut Client, &JobQuery) -> Outcome,
}

/// What is listed and how.
pub(crate) struct QueueListing {
    pub query: JobQuery,
    pub shape: ListingForm,
    pub sort: Vec<(JobColumn, bool)>,
    pub header: bool,
    /// The one job that was asked for: that it is not there is an error.
    pub only_job: Option<String>,
    pub squeue: Option<&'static SqueueForm>,
    /// With the day and time before it, as `squeue -l` has them.
    pub dated: bool,
    /// A line for each partition of a waiting job.
    pub by_partition: bool,
    /// The tiers of partitions, which come before a priority in the order of such lines.
    pub tiers: BTreeMap<String, u32>,
    /// Licences of which a job asks for one at least; empty: any job.
    pub licences: Vec<String>,
    /// When waiting jobs are expected to start, and where; by their ids.
    pub starts: BTreeMap<u64, (Option<Instant>, String)>,
    pub noconvert: bool,
}

impl QueueListing {
    /// The waiting jobs alone, each with the start that is expected of it.
    pub(crate) fn expect_starts(&mut self, client: &mut Client) -> Result<(), Failure> {
        self.query.state = JobState::Pending.long().to_owned();
        let query = JobQuery {
            columns: String::new(),
            bare: false,
            ..self.query.clone()
        };
        let starts: Vec<StartRow> = list(client, &path_with_query("/v1/starts", &query))?;
        self.starts = starts
            .into_iter()
            .map(|job| (job.id, (job.expected.or(job.at_limits), job.nodelist)))
            .collect();
        Ok(())
    }

    /// Lines by partition, by priority: the planner looks at the partition's tier first.
    pub(crate) fn learn_tiers(&mut self, client: &mut Client) -> Result<(), Failure> {
        #[derive(serde::Deserialize)]
        struct Tier {
            name: String,
            priority_tier: u32,
        }
        if self.by_partition && self.sort.iter().any(|(column, _)| column.is_priority()) {
            let rows: Vec<Tier> = list(client, "/v1/partitions")?;
            let tiers = rows.into_iter().map(|row| (row.name, row.priority_tier));
            self.tiers = tiers.collect();
        }
        Ok(())
    }

    fn compare(&self, column: JobColumn, a: &QueueRow<'_>, b: &QueueRow<'_>) -> Ordering {
        let tier = |row: &QueueRow<'_>| self.tiers.get(&*row.partition);
        let by_tier = match column.is_priority() {
            true => tier(a).cmp(&tier(b)),
            false => Ordering::Equal,
        };
        by_tier.then_with(|| column.compare(a, b))
    }

    /// What a column prints, with what is expected in it.
    fn value<'r>(
        &self,
        column: JobColumn,
        row: &'r QueueRow<'_>,
        times: &TimeFormat,
    ) -> Cow<'r, str> {
        match (column, self.starts.get(&row.id)) {
            (JobColumn::Mem, _) if self.noconvert => format!("{}M", row.mem_bytes >> 20).into(),
            (JobColumn::StartTime, Some((Some(at), _))) => times.print(at.0).into(),
            (column, Some((_, nodes))) if column.is_planned_nodes() && !nodes.is_empty() => {
                nodes.clone().into()
            }
            _ => column.value(row, times),
        }
    }

    pub(crate) fn print(&self, client: &mut Client) -> Outcome {
        let path = path_with_query("/v1/jobs", &self.query);
        let count = match (&self.shape, self.squeue) {
            (ListingForm::Json, Some(form)) => {
                if let Some(job) = &self.only_job
                    && list::<JobRow>(client, &path)?.is_empty()
                    && !is_remembered(client, job)?
                {
                    return Err(not_in_queue(job));
                }
                return (form.json)(client, &self.query);
            }
            (ListingForm::Json, None) => return print_json(client, &path),
            (ListingForm::Table(columns), _) => self.print_table(client, &path, columns)?,
            (ListingForm::Format(pieces), _) => self.print_lines(client, &path, pieces)?,
        };
        if count == 0
            && let Some(user) = job_filter::unknown_user(&self.query.user)
        {
            return Err(Failure::new(format_args!(
                "no job of {user:?} is here, and there is no user of that name on this machine"
            )));
        }
        match &self.only_job {
            // squeue knows a job for a while after its end, and lists it no more.
            Some(job) if count == 0 && self.squeue.is_some() && is_remembered(client, job)? => {
                self.print_header()?;
                Ok(0)
            }
            Some(job) if count == 0 => Err(not_in_queue(job)),
            _ => Ok(0),
        }
    }

    fn print_header(&self) -> Result<(), Failure> {
        if let (ListingForm::Format(pieces), true) = (&self.shape, self.header) {
            let mut line = String::new();
            fill(pieces, &mut line, |column| column.title().into());
            std::io::stdout().write_all(line.as_bytes())?;
        }
        Ok(())
    }

    fn print_table(
        &self,
        client: &mut Client,
        path: &str,
        columns: &[JobColumn],
    ) -> Result<usize, Failure> {
        let layout = columns.iter().map(|column| table_column(*column)).collect();
        let mut table = TableWriter::new(stdout()?, layout, Screen::of_stdout(), self.header);
        let times = TimeFormat::from_env();
        let count = self.each_row(client, path, &mut |row| {
            let cell = |column: &JobColumn| {
                let coloured = matches!(column, JobColumn::State | JobColumn::ShortState);
                (
                    column.cell(row, &times),
                    if coloured {
                        tint(row.state)
                    } else {
                        Tint::Plain
                    },
                )
            };
            Ok(table.row_of(columns.iter().map(cell))?)
        })?;
        if count > 0 || self.only_job.is_none() {
            table.finish()?;
        }
        Ok(count)
    }

    fn print_lines(
        &self,
        client: &mut Client,
        path: &str,
        pieces: &JobFormat,
    ) -> Result<usize, Failure> {
        let times = TimeFormat::from_env();
        let mut out = stdout()?;
        let mut line = String::with_capacity(256);
        if self.dated {
            line.push_str(&local_time::banner(local_time::now()));
            line.push('\n');
        }
        if self.header {
            fill(pieces, &mut line, |column| column.title().into());
        }
        let count = self.each_row(client, path, &mut |row| {
            // The header goes out with the first row: an error comes without it.
            fill(pieces, &mut line, |column| self.value(column, row, &times));
            out.write_all(line.as_bytes())?;
            line.clear();
            Ok(())
        })?;
        if self.only_job.is_none() {
            out.write_all(line.as_bytes())?;
        }
        out.flush()?;
        Ok(count)
    }

    /// Calls back for what is listed of a row; returns how many lines there were.
    fn lines_of<'r>(
        &self,
        mut row: QueueRow<'r>,
        mut each: impl FnMut(&QueueRow<'r>) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        let is_meant = |licence: &str| {
            self.licences
                .iter()
                .any(|name| licence.split(':').next() == Some(name))
        };
        if !self.licences.is_empty() && !row.licences.split(',').any(is_meant) {
            return Ok(0);
        }
        if !self.by_partition || row.state != JobState::Pending {
            each(&row)?;
            return Ok(1);
        }
        let meant = |name: &str| {
            self.query.partition.is_empty()
                || self.query.partition.split(',').any(|one| one == name)
        };
        let partitions: Vec<String> = row
            .partition
            .split(',')
            .filter(|name| meant(name))
            .map(str::to_owned)
            .collect();
        for partition in &partitions {
            row.partition = partition.clone().into();
            each(&row)?;
        }
        Ok(partitions.len())
    }

    /// Calls back for each row, in the order asked for; returns how many there were.
    fn each_row(
        &self,
        client: &mut Client,
        path: &str,
        each: &mut dyn FnMut(&QueueRow<'_>) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        let keys: Vec<JobRowKey> = self.query.columns.split(',').map(JobRowKey::of).collect();
        let mut rows = client.rows(path)?;
        let mut texts = Vec::new();
        let mut count = 0;
        while let Some(text) = rows.next_row()? {
            if self.sort.is_empty() {
                count += self.lines_of(read_row(text, &keys)?, |row| each(row))?;
            } else {
                texts.push(text.to_vec());
            }
        }
        if self.sort.is_empty() {
            return Ok(count);
        }
        let mut sorted = Vec::with_capacity(texts.len());
        for text in &texts {
            self.lines_of(read_row(text, &keys)?, |row| {
                sorted.push(row.clone());
                Ok(())
            })?;
        }
        sorted.sort_by(|a, b| {
            let by_key = self.sort.iter().map(|(column, descending)| {
                let order = self.compare(*column, a, b);
                if *descending { order.reverse() } else { order }
            });
            by_key.fold(Ordering::Equal, Ordering::then)
        });
        sorted.iter().try_for_each(each)?;
        Ok(sorted.len())
    }
}

fn not_in_queue(job: &str) -> Failure {
    let failure = Failure::new(format_args!(
        "job {job} is not in the queue. Finished jobs: gq {job}, or gacct -j {job}"
    ));
    failure.because(Cause::Refused {
        about: RefusalKind::Job,
        subject: job.to_owned(),
    })
}

/// Whether the controller still has it in memory, over or not.
fn is_remembered(client: &mut Client, job: &str) -> Result<bool, Failure> {
    let query = JobQuery {
        job: job.to_owned(),
        state: "all".to_owned(),
        ..JobQuery::default()
    };
    Ok(client
        .rows(&path_with_query("/v1/jobs", &query))?
        .next_row()?
        .is_some())
}

fn read_row<'a>(text: &'a [u8], keys: &[JobRowKey]) -> Result<QueueRow<'a>, Failure> {
    row::read(text, keys)
        .map_err(|error| Failure::new(format_args!("a row of the queue cannot be read: {error}")))
}

fn table_column(column: JobColumn) -> Column {
    let title = match column {
        JobColumn::TimeLimit => "LIMIT",
        column => column.title(),
    };
    match column {
        JobColumn::ShownId | JobColumn::Elapsed | JobColumn::TimeLimit | JobColumn::Nodes => {
            Column::number(title)
        }
        JobColumn::State | JobColumn::ShortState => Column::whole(title),
        _ => Column::text(title),
    }
}

fn tint(state: JobState) -> Tint {
    match state {
        JobState::Running | JobState::Completing | JobState::Completed => Tint::Good,
        JobState::Pending | JobState::Suspended => Tint::Waiting,
        _ => Tint::Bad,
    }
}

/// Prints the listing again and again, until the command is ended.
pub(crate) fn repeat(
    client: &mut Client,
    listing: &QueueListing,
    secs: u64,
    clear: bool,
) -> Outcome {
    loop {
        let mut out = stdout()?;
        if clear {
            out.write_all(b"\x1b[H\x1b[2J\x1b[3J")?;
        }
        writeln!(out, "{}", local_time::banner(local_time::now()))?;
        out.flush()?;
        listing.print(client)?;
        if !clear {
            writeln!(out)?;
            out.flush()?;
        }
        std::thread::sleep(Duration::from_secs(secs));
    }
}
