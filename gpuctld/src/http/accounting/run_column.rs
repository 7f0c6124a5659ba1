//! The columns of the accounting listing: the keys of `RunRow`, each written as JSON straight into a buffer.
//!
//! Owns which columns there are and their form; the form is that of the whole row's JSON.

use crate::http::json_row::{Column, JsonWriter};
use gmodel::{ExitCode, Instant, JobState};
use gwire::api::{GpuUseRow, RunDetail, RunRow, StepRow};

/// `write` puts the value of a row's key, or nothing and answers false.
pub(crate) type RunColumn = Column<fn(&RunRow, &mut JsonWriter) -> bool>;

macro_rules! columns {
    ($($key:ident)*) => {
        &[$(Column {
            key: stringify!($key),
            prefix: concat!(",\"", stringify!($key), "\":"),
            write: |row, out| row.$key.put(out),
        }),*]
    };
}

/// `id` is always sent and comes first.
pub(crate) const COLUMNS: &[RunColumn] = columns! {
    shown_id attempt array_id array_index array_tasks name user account partition qos state exit_code end_text submit_time
    start_time end_time elapsed_secs suspended_secs time_limit_secs nodes nodelist cpus mem_bytes gpus gpu_count cpu_time_secs
    peak_memory_bytes cpu_percent mem_percent work_dir comment tags class lost_gpu_secs gpu_use gpu_uuids gpu_events cancelled_by steps detail
};

/// A value as JSON; false where a row has none.
trait ColumnValue {
    fn put(&self, out: &mut JsonWriter) -> bool;
}

impl ColumnValue for String {
    fn put(&self, out: &mut JsonWriter) -> bool {
        out.text(self)
    }
}

impl ColumnValue for JobState {
    fn put(&self, out: &mut JsonWriter) -> bool {
        out.text(self.long())
    }
}

impl ColumnValue for Option<Instant> {
    fn put(&self, out: &mut JsonWriter) -> bool {
        out.instant(self.map(|at| at.0))
    }
}

macro_rules! put {
    ($how:ident: $($kind:ty)*) => {
        $(impl ColumnValue for $kind {
            fn put(&self, out: &mut JsonWriter) -> bool {
                put!(@$how self out)
            }
        })*
    };
    (@number $value:ident $out:ident) => { $out.number(*$value) };
    (@value $value:ident $out:ident) => { $out.value($value) };
    (@some $value:ident $out:ident) => { $out.some($value.as_ref()) };
}
put! { number: u32 u64 i64 }
put! { value: f64 ExitCode Vec<String> }
put! { some: Option<u32> Option<u64> Option<f64> Option<String> Option<GpuUseRow> Option<Box<RunDetail>> }

impl ColumnValue for Vec<StepRow> {
    fn put(&self, out: &mut JsonWriter) -> bool {
        out.list_unless_empty(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn rows() -> [RunRow; 2] {
        let at = Some(Instant(gmodel::Timestamp::from_secs(1_795_165_527)));
        let full = RunRow {
            id: 7,
            shown_id: "5_2".into(),
            array_id: Some(5),
            array_index: Some(2),
            array_tasks: Some("2-4".into()),
            name: "a \"b\"\n".into(),
            state: JobState::OutOfMemory,
            submit_time: at,
            start_time: at,
            end_time: at,
            elapsed_secs: -1,
            time_limit_secs: Some(60),
            gpu_count: 0.5,
            cpu_percent: Some(12.5),
            mem_percent: Some(1.0),
            tags: vec!["x".into()],
            class: Some("borrowed".into()),
            gpu_use: Some(GpuUseRow::default()),
            gpu_uuids: vec!["x".into()],
            gpu_events: vec!["x".into()],
            cancelled_by: Some("root".into()),
            steps: vec![StepRow::default()],
            detail: Some(Box::default()),
            ..RunRow::default()
        };
        [RunRow::default(), full]
    }

    #[test]
    fn columns_are_what_the_whole_row_has_under_these_keys() {
        let all: Vec<&RunColumn> = COLUMNS.iter().collect();
        for row in rows() {
            let mut out = JsonWriter::default();
            out.row(row.id, &all, false, |write, out| write(&row, out));
            let whole = serde_json::to_value(&row).unwrap();
            assert_eq!(serde_json::from_slice::<Value>(&out.bytes).unwrap(), whole);
            let mut bare = JsonWriter::default();
            bare.row(row.id, &all, true, |write, out| write(&row, out));
            let keys = ["id"]
                .into_iter()
                .chain(COLUMNS.iter().map(|column| column.key));
            let values: Vec<Value> = keys
                .map(|key| whole.get(key).cloned().unwrap_or(Value::Null))
                .collect();
            assert_eq!(
                serde_json::from_slice::<Value>(&bare.bytes).unwrap(),
                Value::Array(values)
            );
        }
    }
}
