//! The columns of the accounting listing: the keys of `RunRow`, each written as JSON straight into a buffer.
//!
//! Owns which columns there are and their form; the form is that of the whole row's JSON.

use crate::http::json_row::{Column, JsonWriter};
use gwire::api::{RunRow, RunRowKey};
use std::sync::LazyLock;

/// Writes the value of a key.
pub(crate) type RunColumn = Column<RunRowKey>;

/// `id` is always sent and comes first.
pub(crate) static COLUMNS: LazyLock<Vec<RunColumn>> = LazyLock::new(|| {
    let keys = RunRowKey::ALL.iter().filter(|key| **key != RunRowKey::id);
    let column = |key: &RunRowKey| Column {
        key: key.name(),
        prefix: key.prefix(),
        write: *key,
    };
    keys.map(column).collect()
});

/// Puts the value of a row's key, or nothing and answers false.
pub(crate) fn write(key: RunRowKey, row: &RunRow, out: &mut JsonWriter) -> bool {
    row.put(key, &mut out.bytes)
        .expect("these values have no maps with odd keys")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::{Instant, JobState};
    use gwire::api::{GpuUseRow, StepRow};
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
            image: Some("x".into()),
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
            out.row(row.id, &all, false, |key, out| write(*key, &row, out));
            let whole = serde_json::to_value(&row).unwrap();
            assert_eq!(serde_json::from_slice::<Value>(&out.bytes).unwrap(), whole);
            let mut bare = JsonWriter::default();
            bare.row(row.id, &all, true, |key, out| write(*key, &row, out));
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
