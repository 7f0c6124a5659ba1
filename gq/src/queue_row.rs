//! One line of the queue as `gq` reads it: a row of the API, borrowed from its text.

use gcli::local_time::now;
use gmodel::{Instant, JobState, Timestamp};
use gwire::api::JobRow;
use gwire::row::RowText;

/// A row of `GET /v1/jobs`. Keys that were not asked for have their defaults.
pub(crate) type QueueRow<'a> = JobRow<RowText<'a>>;

pub(crate) fn start(row: &QueueRow<'_>) -> Option<Instant> {
    shown_start(row.state, row.eligible_time, row.start_time, now())
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
    use gmodel::ReasonCode;
    use gwire::api::JobRowKey;
    use gwire::row::read;
    use std::borrow::Cow;

    #[test]
    fn a_row_without_escapes_is_borrowed() {
        let text = r#"{"id":7,"shown_id":"7","name":"run","user":"a\"b","state":"RUNNING","reason":"SomethingNew","newer":[1]}"#;
        let row: QueueRow = serde_json::from_str(text).unwrap();
        assert!(matches!(row.name.0, Cow::Borrowed("run")) && matches!(row.user.0, Cow::Owned(_)));
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
            read::<QueueRow>(bare.as_bytes(), &names.map(JobRowKey::of)).unwrap(),
        );
        assert_eq!(format!("{keyed:?}"), format!("{bare:?}"));
        for odd in ["[", "[]x", "[\"x\"]", "[{}]"] {
            assert!(
                read::<QueueRow>(odd.as_bytes(), &[JobRowKey::id]).is_err(),
                "{odd}"
            );
        }
        assert_eq!(
            read::<QueueRow>(b"[]", &[JobRowKey::id, JobRowKey::name])
                .unwrap()
                .id,
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
}
