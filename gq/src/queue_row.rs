//! One line of the queue as `gq` reads it: the keys of `gwire::api::JobRow`, borrowed from the row's text.
//!
//! A queue of 100,000 jobs is formatted while it is read, so a row costs no allocation where none is needed.

use crate::bare_row::bare_row;
use gcli::local_time::now;
use gmodel::{ExitCode, Instant, JobState, ReasonCode, Timestamp};
use gwire::api::CheckpointMarkRow;
use serde::Deserialize;
use std::borrow::Cow;

/// A row of `GET /v1/jobs`. Keys that were not asked for have their defaults.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct QueueRow<'a> {
    pub id: u64,
    #[serde(borrow)]
    pub shown_id: Cow<'a, str>,
    pub array_id: Option<u64>,
    pub array_index: Option<u32>,
    #[serde(borrow)]
    pub array_tasks: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    #[serde(borrow)]
    pub user: Cow<'a, str>,
    pub uid: u32,
    #[serde(borrow)]
    pub account: Cow<'a, str>,
    #[serde(borrow)]
    pub partition: Cow<'a, str>,
    #[serde(borrow)]
    pub qos: Cow<'a, str>,
    pub state: JobState,
    pub reason: ReasonCode,
    #[serde(borrow)]
    pub reason_text: Cow<'a, str>,
    pub priority: u64,
    pub nice: i32,
    pub nodes: u32,
    #[serde(borrow)]
    pub nodelist: Cow<'a, str>,
    pub cpus: u32,
    pub ntasks: u32,
    #[serde(borrow)]
    pub mem: Cow<'a, str>,
    pub mem_bytes: u64,
    pub mem_total_bytes: u64,
    #[serde(borrow)]
    pub gpus: Cow<'a, str>,
    pub gpu_count: f64,
    pub time_limit_secs: Option<u32>,
    pub elapsed_secs: i64,
    pub submit_time: Option<Instant>,
    pub eligible_time: Option<Instant>,
    pub start_time: Option<Instant>,
    pub end_time: Option<Instant>,
    pub exit_code: ExitCode,
    #[serde(borrow)]
    pub work_dir: Cow<'a, str>,
    #[serde(borrow)]
    pub command: Cow<'a, str>,
    #[serde(borrow)]
    pub stdout: Cow<'a, str>,
    #[serde(borrow)]
    pub stderr: Cow<'a, str>,
    #[serde(borrow)]
    pub stdin: Cow<'a, str>,
    #[serde(borrow)]
    pub comment: Cow<'a, str>,
    #[serde(borrow)]
    pub constraint: Cow<'a, str>,
    #[serde(borrow)]
    pub req_nodelist: Cow<'a, str>,
    #[serde(borrow)]
    pub exclude: Cow<'a, str>,
    pub exclusive: bool,
    #[serde(borrow)]
    pub submit_host: Cow<'a, str>,
    pub tags: Vec<String>,
    #[serde(borrow)]
    pub dependency: Cow<'a, str>,
    #[serde(borrow)]
    pub licences: Cow<'a, str>,
    #[serde(borrow)]
    pub reservation: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub gpus_per: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub prefer: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub switches: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub class: Option<Cow<'a, str>>,
    pub position: Option<u32>,
    pub deadline: Option<Instant>,
    #[serde(borrow)]
    pub checkpoint: Option<Cow<'a, str>>,
    pub attempts: u32,
    pub requeue: bool,
    pub time_min_secs: Option<u32>,
    pub last_mark: Option<CheckpointMarkRow>,
}

bare_row! { QueueRow, Key:
    id shown_id array_id array_index array_tasks name user uid account partition qos state reason reason_text
    priority nice nodes nodelist cpus ntasks mem mem_bytes mem_total_bytes gpus gpu_count time_limit_secs elapsed_secs
    submit_time eligible_time start_time end_time exit_code work_dir command stdout stderr stdin comment
    constraint req_nodelist exclude exclusive submit_host tags dependency licences reservation class position deadline
    checkpoint attempts requeue time_min_secs last_mark prefer switches gpus_per
}

impl QueueRow<'_> {
    pub fn start(&self) -> Option<Instant> {
        shown_start(self.state, self.eligible_time, self.start_time, now())
    }
}

/// When a job started; of one that waits for its time, as squeue has it, when it may.
pub(crate) fn shown_start(
    state: JobState,
    eligible: Option<Instant>,
    started: Option<Instant>,
    now: Timestamp,
) -> Option<Instant> {
    let may_later = eligible.filter(|eligible| state == JobState::Pending && eligible.0 > now);
    started.or(may_later)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bare_row::read;

    #[test]
    fn a_row_without_escapes_is_borrowed() {
        let text = r#"{"id":7,"shown_id":"7","name":"run","user":"a\"b","state":"RUNNING","reason":"SomethingNew","newer":[1]}"#;
        let row: QueueRow = serde_json::from_str(text).unwrap();
        assert!(matches!(row.name, Cow::Borrowed("run")) && matches!(row.user, Cow::Owned(_)));
        assert_eq!(
            (row.state, row.reason),
            (JobState::Running, ReasonCode::Unknown)
        );
    }

    #[test]
    fn a_row_is_the_same_with_its_keys_and_without() {
        let keyed = r#"{"id":7,"shown_id":"7","name":"a\"b","state":"RUNNING","position":3,"elapsed_secs":-1,"tags":["x"]}"#;
        let bare = r#"[7,"7","a\"b",{"newer":[1]},null,"RUNNING",null,3,null,-1,["x"]]"#;
        let names = [
            "id",
            "shown_id",
            "name",
            "newer",
            "user",
            "state",
            "class",
            "position",
            "start_time",
            "elapsed_secs",
            "tags",
        ];
        let (keyed, bare) = (
            read::<QueueRow>(keyed.as_bytes(), &[]).unwrap(),
            read::<QueueRow>(bare.as_bytes(), &names.map(Key::of)).unwrap(),
        );
        assert_eq!(format!("{keyed:?}"), format!("{bare:?}"));
        for odd in ["[", "[]x", "[\"x\"]", "[{}]"] {
            assert!(
                read::<QueueRow>(odd.as_bytes(), &[Key::id]).is_err(),
                "{odd}"
            );
        }
        assert_eq!(
            read::<QueueRow>(b"[]", &[Key::id, Key::name]).unwrap().id,
            0,
            "values that do not come have their defaults"
        );
    }

    #[test]
    fn a_job_that_may_not_start_yet_starts_when_it_may() {
        let [submitted, later] = [1, 9].map(|secs| Some(Instant(Timestamp::from_secs(secs))));
        let start = |state, eligible, started, now| {
            shown_start(state, eligible, started, Timestamp::from_secs(now))
        };
        assert_eq!(start(JobState::Pending, later, None, 5), later);
        assert_eq!(
            start(JobState::Pending, later, None, 9),
            None,
            "released or requeued then, and it waits still"
        );
        assert_eq!(start(JobState::Pending, submitted, None, 5), None);
        assert_eq!(start(JobState::Cancelled, later, None, 5), None);
        assert_eq!(start(JobState::Running, submitted, later, 5), later);
    }

    #[test]
    fn every_key_of_the_contract_fits() {
        let now = Instant(gmodel::Timestamp::from_secs(1));
        let full = gwire::api::JobRow {
            array_id: Some(1),
            array_index: Some(2),
            array_tasks: Some("3-4".into()),
            time_limit_secs: Some(5),
            submit_time: Some(now),
            eligible_time: Some(now),
            start_time: Some(now),
            end_time: Some(now),
            stdin: "/dev/null".into(),
            ..Default::default()
        };
        let text = serde_json::to_string(&full).unwrap();
        let row: QueueRow = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (row.array_index, row.stdin.as_ref(), row.end_time),
            (Some(2), "/dev/null", Some(now))
        );
    }
}
