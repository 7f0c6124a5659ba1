//! What rows of accounting are made of: for the keys of [`RunRow`] the columns of the database that they need.
//!
//! Owns reading rows of jobs that are named by id, and only as much of them as was asked for: the seven columns of a
//! usual listing cost a fifth of all. Which jobs a listing has is `accounting`'s.

use super::stored::{ReadResult, read};
use crate::store::gpu_use;
use gmodel::job_key::TEXTS;
use gmodel::{ExitCode, Instant, JobSpec, JobState, Timestamp};
use gwire::api::{GpuUseRow, RunRow, RunRowKey};
use rusqlite::types::FromSql;
use rusqlite::{Connection, Row};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A row of accounting by its job, and where attempts have a row each by its attempt; None of one without any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunKey {
    pub id: u64,
    pub attempt: Option<u32>,
}

/// Which keys of [`RunRow`] are read, and by which statement. The others have their defaults.
#[derive(Clone, Debug)]
pub struct RunFields {
    sql: String,
    /// Each with the places of its columns among those selected.
    fields: Vec<(&'static RunField, Vec<usize>)>,
    each_attempt: bool,
}

impl RunFields {
    /// These keys, or all. `each_attempt`: attempts have a row each, which says how that one ended, not how the job did.
    pub fn of(keys: Option<&[&str]>, each_attempt: bool) -> Self {
        let wanted = |field: &&RunField| {
            keys.is_none_or(|keys| field.keys.iter().any(|key| keys.contains(key)))
        };
        let mut selected: Vec<FieldSource> = Vec::new();
        let mut place = |source: &FieldSource| {
            selected
                .iter()
                .position(|known| known == source)
                .unwrap_or_else(|| {
                    selected.push(*source);
                    selected.len() - 1
                })
        };
        let places =
            |field: &'static RunField| (field, field.from.iter().map(&mut place).collect());
        let fields = FIELDS.iter().filter(wanted).map(places).collect();
        Self {
            sql: statement(&selected, each_attempt),
            fields,
            each_attempt,
        }
    }

    fn read(&self, row: &Row<'_>, id: u64, now: Timestamp) -> ReadResult<RunRow> {
        let mut run = RunRow {
            id,
            ..RunRow::default()
        };
        for (field, at) in &self.fields {
            let cells = FieldCells { row, at, now };
            match field.read {
                FieldReader::Text(key) => run.set_text(key, cells.text(0)?),
                FieldReader::Computed(read) => read(&cells, &mut run)?,
            }
        }
        Ok(run)
    }
}

/// The rows of these keys, in their order; None where there is no such job.
pub fn rows(
    db: &Connection,
    keys: &[RunKey],
    fields: &RunFields,
    now: Timestamp,
) -> ReadResult<Vec<Option<RunRow>>> {
    let mut statement = db.prepare_cached(&fields.sql)?;
    let mut all = Vec::with_capacity(keys.len());
    for key in keys {
        let mut found = match fields.each_attempt {
            true => statement.query((key.id, key.attempt))?,
            false => statement.query([key.id])?,
        };
        all.push(
            found
                .next()?
                .map(|row| fields.read(row, key.id, now))
                .transpose()?,
        );
    }
    Ok(all)
}

fn statement(selected: &[FieldSource], each_attempt: bool) -> String {
    let mut columns: Vec<String> = selected
        .iter()
        .map(|source| source.sql(each_attempt))
        .collect();
    if columns.is_empty() {
        columns.push("1".into());
    }
    let specs = selected.iter().any(|source| {
        matches!(
            source,
            FieldSource::Spec(_) | FieldSource::SpecText(_) | FieldSource::Part(_)
        )
    });
    let runs = each_attempt
        || selected
            .iter()
            .any(|source| matches!(source, FieldSource::Run(_)));
    format!(
        "SELECT {} FROM jobs j{}{} WHERE j.id = ?1",
        columns.join(", "),
        if specs {
            " CROSS JOIN specs s ON s.id = j.spec"
        } else {
            ""
        },
        match (runs, each_attempt) {
            (false, _) => "",
            (true, false) => " LEFT JOIN runs r ON r.job = j.id AND r.attempt = j.attempt",
            (true, true) => " LEFT JOIN runs r ON r.job = j.id AND r.attempt = ?2",
        }
    )
}

/// A number of a request's part; nothing is parsed of the many requests without one.
pub fn part_sql(specs: &str, key: &str) -> String {
    format!(
        "iif(instr({specs}.doc, CAST('\"part\":{{' AS BLOB)) > 0, json_extract(CAST({specs}.doc AS TEXT), '$.part.{key}'), NULL)"
    )
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldSource {
    Job(&'static str),
    Spec(&'static str),
    /// A text of the request that has no column of its own.
    SpecText(&'static str),
    /// Of a component of a job of unlike parts.
    Part(&'static str),
    Run(&'static str),
    /// How it went: of the job, or of the attempt where each has a row.
    Course(&'static str),
    /// The document of a cancelled job.
    Cancelled,
}

impl FieldSource {
    fn sql(self, each_attempt: bool) -> String {
        match self {
            Self::Job(column) => format!("j.{column}"),
            Self::Spec(column) => format!("s.{column}"),
            Self::SpecText(key) => format!("json_extract(CAST(s.doc AS TEXT), '$.{key}')"),
            Self::Part(key) => part_sql("s", key),
            Self::Run(column) => format!("r.{column}"),
            Self::Course(column) if each_attempt => {
                format!("iif(r.attempt IS NULL, j.{column}, r.{column})")
            }
            Self::Course(column) => format!("j.{column}"),
            Self::Cancelled => "iif(j.state = 'CANCELLED', j.doc, NULL)".to_owned(),
        }
    }
}

/// Keys of a row that are made of the same columns.
#[derive(Debug)]
struct RunField {
    keys: Vec<&'static str>,
    from: Vec<FieldSource>,
    read: FieldReader,
}

#[derive(Debug)]
enum FieldReader {
    /// As it stands in the column; empty for none.
    Text(RunRowKey),
    Computed(fn(&FieldCells<'_>, &mut RunRow) -> ReadResult<()>),
}

impl RunField {
    fn text(key: RunRowKey, from: FieldSource) -> Self {
        Self {
            keys: vec![key.name()],
            from: vec![from],
            read: FieldReader::Text(key),
        }
    }
}

/// What was selected for one field.
struct FieldCells<'r> {
    row: &'r Row<'r>,
    at: &'r [usize],
    now: Timestamp,
}

impl FieldCells<'_> {
    fn get<T: FromSql>(&self, position: usize) -> rusqlite::Result<T> {
        self.row.get(self.at[position])
    }

    /// Empty for none.
    fn text(&self, position: usize) -> rusqlite::Result<&str> {
        Ok(self
            .row
            .get_ref(self.at[position])?
            .as_str()
            .unwrap_or_default())
    }

    fn instant(&self, position: usize) -> rusqlite::Result<Option<Instant>> {
        Ok(self
            .get::<Option<i64>>(position)?
            .map(|ms| Instant(Timestamp(ms))))
    }

    /// Milliseconds in which it stood still; of one that runs, until now. From [`SPAN`].
    fn stood_still_ms(&self) -> rusqlite::Result<i64> {
        let (before, since): (Option<i64>, Option<i64>) = (self.get(2)?, self.get(3)?);
        let now = since
            .map(|since| Ok::<_, rusqlite::Error>((self.until()?.0 - since).max(0)))
            .transpose()?;
        Ok(before.unwrap_or(0) + now.unwrap_or(0))
    }

    fn until(&self) -> rusqlite::Result<Timestamp> {
        Ok(self.get::<Option<i64>>(1)?.map_or(self.now, Timestamp))
    }

    /// Seconds from start to end without those in which it stood still. From [`SPAN`].
    fn elapsed_secs(&self) -> rusqlite::Result<i64> {
        let Some(start) = self.get(0)? else {
            return Ok(0);
        };
        Ok(self
            .until()?
            .plus_millis(-self.stood_still_ms()?)
            .since_secs(Timestamp(start))
            .max(0))
    }
}

impl FieldCells<'_> {
    /// Texts as JSON; none where there is no value.
    fn list(&self, position: usize) -> ReadResult<Vec<String>> {
        let text: Option<String> = self.get(position)?;
        Ok(text
            .map(|text| serde_json::from_str(&text))
            .transpose()?
            .unwrap_or_default())
    }
}

/// What a document of a cancelled job says of it.
#[derive(Deserialize)]
struct CancelledDocument {
    #[serde(default)]
    cancelled_by: Option<String>,
}

/// From when to when, and the time in between in which it stood still.
const SPAN: [FieldSource; 4] = [
    FieldSource::Course("start_ms"),
    FieldSource::Course("end_ms"),
    FieldSource::Run("suspended_ms"),
    FieldSource::Run("suspended_since_ms"),
];

macro_rules! field {
    ($($key:literal)+, [$($from:expr),+], $read:expr) => {
        RunField { keys: vec![$($key),+], from: vec![$($from),+], read: FieldReader::Computed($read) }
    };
}

use FieldSource::{Course, Job, Part, Run, Spec};

/// Where each key of a row comes from: texts without a column of their own lie in the document of the request.
static FIELDS: LazyLock<Vec<RunField>> = LazyLock::new(|| {
    let mut fields = run_fields();
    for text in TEXTS {
        if !fields.iter().any(|field| field.keys.contains(&text.key)) {
            let from = FieldSource::SpecText(text.key);
            fields.push(RunField::text(RunRowKey::of(text.key), from));
        }
    }
    fields
});

/// The row of a job that has not run, with what its request says.
pub fn requested(spec: &JobSpec) -> RunRow {
    let mut row = RunRow {
        name: spec.name.clone(),
        user: spec.user.name.clone(),
        work_dir: spec.launch.work_dir.clone(),
        tags: spec.tags.clone(),
        ..RunRow::default()
    };
    for text in TEXTS {
        row.set_text(RunRowKey::of(text.key), (text.of)(spec));
    }
    row
}

#[rustfmt::skip] // read as a table
fn run_fields() -> Vec<RunField> {
    vec![
        field!("shown_id" "array_id" "array_index", [Job("array_id"), Job("array_index"), Part("leader"), Part("offset")], |cells, run| {
            (run.array_id, run.array_index) = (cells.get(0)?, cells.get(1)?);
            let part: (Option<u64>, Option<u32>) = (cells.get(2)?, cells.get(3)?);
            run.shown_id = match (run.array_id, run.array_index, part) {
                (Some(array), Some(index), _) => format!("{array}_{index}"),
                (_, _, (Some(leader), Some(offset))) => format!("{leader}+{offset}"),
                _ => run.id.to_string(),
            };
            Ok(())
        }),
        field!("attempt", [Course("attempt")], |cells, run| { run.attempt = cells.get(0)?; Ok(()) }),
        RunField::text(RunRowKey::name, Job("name")),
        RunField::text(RunRowKey::user, Job("user")),
        RunField::text(RunRowKey::account, Job("account")),
        RunField::text(RunRowKey::partition, Job("partition")),
        RunField::text(RunRowKey::qos, Job("qos")),
        field!("state", [Course("state")], |cells, run| {
            run.state = JobState::parse(cells.text(0)?).unwrap_or(JobState::Unknown);
            Ok(())
        }),
        // A job that goes on after an earlier attempt has not ended yet.
        field!("exit_code", [Course("exit"), Course("state")], |cells, run| {
            let is_over = JobState::parse(cells.text(1)?).is_none_or(JobState::is_final);
            run.exit_code = cells.text(0)?.parse().ok().filter(|_| is_over).unwrap_or(ExitCode::SUCCESS);
            Ok(())
        }),
        RunField::text(RunRowKey::end_text, Course("end_text")),
        field!("submit_time", [Job("submit_ms")], |cells, run| { run.submit_time = cells.instant(0)?; Ok(()) }),
        field!("start_time", [Course("start_ms")], |cells, run| { run.start_time = cells.instant(0)?; Ok(()) }),
        field!("end_time", [Course("end_ms")], |cells, run| { run.end_time = cells.instant(0)?; Ok(()) }),
        field!("elapsed_secs", [SPAN[0], SPAN[1], SPAN[2], SPAN[3]], |cells, run| { run.elapsed_secs = cells.elapsed_secs()?; Ok(()) }),
        field!("suspended_secs", [SPAN[0], SPAN[1], SPAN[2], SPAN[3]], |cells, run| {
            run.suspended_secs = cells.stood_still_ms()? / 1000;
            Ok(())
        }),
        field!("time_limit_secs", [Job("limit_secs")], |cells, run| { run.time_limit_secs = cells.get(0)?; Ok(()) }),
        field!("nodes", [Run("nodes")], |cells, run| { run.nodes = cells.get::<Option<u32>>(0)?.unwrap_or(0); Ok(()) }),
        RunField::text(RunRowKey::nodelist, Run("nodelist")),
        field!("cpus", [Run("cpus")], |cells, run| { run.cpus = cells.get::<Option<u32>>(0)?.unwrap_or(0); Ok(()) }),
        field!("mem_bytes", [Run("mem_bytes")], |cells, run| { run.mem_bytes = cells.get::<Option<u64>>(0)?.unwrap_or(0); Ok(()) }),
        field!("gpus" "gpu_count", [Run("gpus")], |cells, run| {
            let gpus: BTreeMap<String, u64> = match cells.text(0)? {
                "" | "{}" => return Ok(()),
                text => serde_json::from_str(text)?,
            };
            (run.gpu_count, run.gpus) = (gpus.values().sum::<u64>() as f64 / 1000.0, gpus_text(&gpus));
            Ok(())
        }),
        field!("cpu_time_secs", [Run("cpu_micros")], |cells, run| { run.cpu_time_secs = cpu_time_secs(cells.get(0)?); Ok(()) }),
        field!("peak_memory_bytes", [Run("peak_bytes")], |cells, run| {
            run.peak_memory_bytes = cells.get::<Option<u64>>(0)?.unwrap_or(0);
            Ok(())
        }),
        field!("cpu_percent", [SPAN[0], SPAN[1], SPAN[2], SPAN[3], Run("cpu_micros"), Run("cpus")], |cells, run| {
            let cpus: Option<u32> = cells.get(5)?;
            run.cpu_percent = percent(cpu_time_secs(cells.get(4)?), cells.elapsed_secs()? as f64 * f64::from(cpus.unwrap_or(0)));
            Ok(())
        }),
        field!("mem_percent", [Run("peak_bytes"), Run("nodes"), Run("mem_bytes")], |cells, run| {
            let number = |position| Ok::<_, rusqlite::Error>(cells.get::<Option<u64>>(position)?.unwrap_or(0) as f64);
            // The peak is that of the node with the most.
            run.mem_percent = percent(number(0)? * number(1)?, number(2)?);
            Ok(())
        }),
        RunField::text(RunRowKey::work_dir, Spec("work_dir")),
        RunField::text(RunRowKey::comment, Spec("comment")),
        field!("tags", [Spec("tags")], |cells, run| {
            run.tags = match cells.text(0)? {
                "" | "[]" => return Ok(()),
                text => serde_json::from_str(text)?,
            };
            Ok(())
        }),
        field!("class", [Run("class")], |cells, run| { run.class = cells.get(0)?; Ok(()) }),
        field!("lost_gpu_secs", [Run("lost_gpu_secs")], |cells, run| { run.lost_gpu_secs = cells.get::<Option<u64>>(0)?.unwrap_or(0); Ok(()) }),
        // One after the other: nothing else needs them.
        field!("gpu_use", [Run("gpu_sampled_ms"), Run("gpu_idle_ms"), Run("gpu_busy_percent_ms"), Run("gpu_busy_told_ms"), Run("gpu_memory_percent_ms"),
            Run("gpu_memory_told_ms"), Run("gpu_memory_peak_bytes"), Run("gpu_power_peak_mw"), Run("gpu_temperature_peak_c"), Run("gpu_energy_mj"),
            Run("gpu_nvlink_kib"), Run("gpu_pcie_kib"), Run("gpu_slowed_ms")], |cells, run| {
            run.gpu_use = gpu_use::read(cells.row, cells.at[0])?.as_ref().map(GpuUseRow::from);
            Ok(())
        }),
        field!("gpu_uuids", [Run("gpu_uuids")], |cells, run| { run.gpu_uuids = cells.list(0)?; Ok(()) }),
        field!("gpu_events", [Run("gpu_events")], |cells, run| { run.gpu_events = cells.list(0)?; Ok(()) }),
        field!("image", [Run("image")], |cells, run| { run.image = cells.get(0)?; Ok(()) }),
        field!("cancelled_by", [FieldSource::Cancelled], |cells, run| {
            let document: Option<Vec<u8>> = cells.get(0)?;
            run.cancelled_by = document.map(|document| read::<CancelledDocument>(&document)).transpose()?.and_then(|cancelled| cancelled.cancelled_by);
            Ok(())
        }),
    ]
}

fn cpu_time_secs(micros: Option<i64>) -> f64 {
    micros.unwrap_or(0) as f64 / 1e6
}

/// None where nothing is known to have been used.
fn percent(used: f64, held: f64) -> Option<f64> {
    (used > 0.0 && held > 0.0).then(|| used / held * 100.0)
}

/// `a100:2,h100:0.5`.
fn gpus_text(gpus: &BTreeMap<String, u64>) -> String {
    let parts: Vec<String> = gpus
        .iter()
        .map(|(gpu_type, milli)| match milli % 1000 {
            0 => format!("{gpu_type}:{}", milli / 1000),
            _ => format!("{gpu_type}:{}", *milli as f64 / 1000.0),
        })
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Not read from a job's row, but from its steps and its request.
    const ELSEWHERE: [&str; 4] = ["id", "array_tasks", "steps", "detail"];

    #[test]
    fn every_key_of_a_row_is_read_from_somewhere() {
        let full: RunRow = RunRow {
            array_id: Some(1),
            array_index: Some(1),
            time_limit_secs: Some(1),
            cpu_percent: Some(1.0),
            mem_percent: Some(1.0),
            class: Some("borrowed".into()),
            tres_bind: "x".into(),
            gpu_use: Some(GpuUseRow::default()),
            gpu_uuids: vec!["node1:GPU-1".into()],
            gpu_events: vec!["x".into()],
            image: Some("x".into()),
            cancelled_by: Some("root".into()),
            ..RunRow::default()
        };
        let row = serde_json::to_value(&full).unwrap();
        let keys: BTreeSet<&str> = row
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .filter(|key| !ELSEWHERE.contains(key))
            .collect();
        assert_eq!(
            FIELDS
                .iter()
                .flat_map(|field| &field.keys)
                .copied()
                .collect::<BTreeSet<&str>>(),
            keys
        );
        let columns = gpu_use::COLUMNS.map(|column| format!("r.gpu_{column}"));
        let read: Vec<String> = FIELDS
            .iter()
            .find(|field| field.keys == ["gpu_use"])
            .unwrap()
            .from
            .iter()
            .map(|source| source.sql(false))
            .collect();
        assert_eq!(read, columns);
    }

    #[test]
    fn a_listing_looks_only_where_its_columns_are() {
        let sql = |keys: &[&str]| RunFields::of(Some(keys), false).sql;
        assert_eq!(sql(&["name"]), "SELECT j.name FROM jobs j WHERE j.id = ?1");
        assert_eq!(
            sql(&["state", "cpus"]),
            "SELECT j.state, r.cpus FROM jobs j LEFT JOIN runs r ON r.job = j.id AND r.attempt = j.attempt WHERE j.id = ?1"
        );
        assert!(!sql(&["comment"]).contains("runs") && sql(&["comment"]).contains("specs"));
        assert_eq!(sql(&[]), "SELECT 1 FROM jobs j WHERE j.id = ?1");
    }
}
