//! The queue as gtop keeps it: a line for each job, read from the controller's listing. Owns what of a job is shown and searched.

use gcli::Failure;
use gcli::printable::printable;
use gmodel::duration::squeue_time;
use gmodel::{JobState, ReasonCode};
use gwire::api::{JobQuery, JobRow, JobRowKey};
use gwire::client::{Client, path_with_query};
use gwire::row::{self, RowText};

/// Keys that are asked for; the rows are bare.
const KEYS: [JobRowKey; 12] = [
    JobRowKey::id,
    JobRowKey::shown_id,
    JobRowKey::name,
    JobRowKey::user,
    JobRowKey::account,
    JobRowKey::partition,
    JobRowKey::state,
    JobRowKey::reason,
    JobRowKey::nodes,
    JobRowKey::nodelist,
    JobRowKey::gpu_count,
    JobRowKey::elapsed_secs,
];

/// A job, or the waiting tasks of an array. Texts are safe to print.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JobLine {
    /// `17`, `98_5`, `98_[7-9]`.
    pub shown_id: String,
    pub name: String,
    pub user: String,
    pub account: String,
    pub partition: String,
    pub state: JobState,
    pub elapsed: String,
    pub gpus: String,
    /// Its nodes, or why it waits.
    pub place: String,
}

impl JobLine {
    fn of(row: &JobRow<RowText<'_>>) -> Self {
        let text = |text: &str| printable(text).into_owned();
        let waits = row.state == JobState::Pending;
        Self {
            shown_id: text(&row.shown_id),
            name: text(&row.name),
            user: text(&row.user),
            account: text(&row.account),
            partition: text(&row.partition),
            state: row.state,
            elapsed: match waits {
                true => String::new(),
                false => squeue_time(u64::try_from(row.elapsed_secs).unwrap_or_default()),
            },
            gpus: match row.gpu_count {
                0.0 => String::new(),
                count => format!("{}", (count * 1000.0).round() / 1000.0),
            },
            place: match (waits, row.reason) {
                (true, ReasonCode::None) => String::new(),
                (true, reason) => format!("({reason})"),
                (false, _) => text(&row.nodelist),
            },
        }
    }

    /// The id that a question takes: of waiting tasks the first one's.
    pub fn asked_id(&self) -> String {
        match self.shown_id.split_once("_[") {
            Some((array, tasks)) => {
                let end = tasks.find(|c: char| !c.is_ascii_digit());
                format!("{array}_{}", &tasks[..end.unwrap_or(tasks.len())])
            }
            None => self.shown_id.clone(),
        }
    }

    /// The id that gdel takes: of waiting tasks theirs, without how many may run at once.
    pub fn cancelled_id(&self) -> String {
        match self.shown_id.split_once('%') {
            Some((tasks, _)) => format!("{tasks}]"),
            None => self.shown_id.clone(),
        }
    }

    /// Whether a word stands in what is shown of it, in letters of any size.
    pub fn has(&self, lower_word: &str) -> bool {
        let texts = [
            &self.shown_id,
            &self.name,
            &self.user,
            &self.account,
            &self.partition,
            &self.place,
        ];
        texts
            .iter()
            .any(|text| text.to_lowercase().contains(lower_word))
            || self.state.long().to_lowercase().starts_with(lower_word)
    }
}

/// The queue: of one user, or of all.
///
/// # Errors
/// As the controller's answer.
pub(crate) fn read(client: &mut Client, user: &str) -> Result<Vec<JobLine>, Failure> {
    let names: Vec<&str> = KEYS.iter().map(|key| key.name()).collect();
    let query = JobQuery {
        user: user.to_owned(),
        columns: names.join(","),
        bare: true,
        ..JobQuery::default()
    };
    let mut rows = client.rows(&path_with_query("/v1/jobs", &query))?;
    let mut lines = Vec::new();
    while let Some(text) = rows.next_row()? {
        let row: JobRow<RowText<'_>> = row::read(text, &KEYS)
            .map_err(|error| Failure::new(format_args!("a row of the queue: {error}")))?;
        lines.push(JobLine::of(&row));
    }
    Ok(lines)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn line(shown_id: &str, state: JobState) -> JobLine {
        JobLine {
            shown_id: shown_id.to_owned(),
            name: format!("train-{shown_id}"),
            user: "ann".to_owned(),
            account: "vision".to_owned(),
            partition: "main".to_owned(),
            state,
            elapsed: "1:00".to_owned(),
            gpus: "4".to_owned(),
            place: match state {
                JobState::Pending => "(Resources)".to_owned(),
                _ => "node1".to_owned(),
            },
        }
    }

    #[test]
    fn a_hostile_name_is_safe_to_print() {
        let row = JobRow {
            shown_id: RowText::from("7"),
            name: RowText::from("a\x1b[2J\nb"),
            state: JobState::Running,
            elapsed_secs: -1,
            gpu_count: 0.25,
            ..JobRow::default()
        };
        let line = JobLine::of(&row);
        assert_eq!(line.name, "a?[2J?b");
        assert_eq!(
            (line.gpus.as_str(), line.elapsed.as_str()),
            ("0.25", "0:00")
        );
    }

    #[test]
    fn words_are_found_in_what_is_shown() {
        let job = line("98_[7-9]", JobState::Pending);
        for word in ["98", "train", "ann", "vis", "resour", "pend"] {
            assert!(job.has(word), "{word}");
        }
        assert!(!job.has("running"));
    }

    #[test]
    fn a_command_gets_the_id_that_is_meant() {
        let ids = |shown| {
            let job = line(shown, JobState::Pending);
            format!("{} {}", job.asked_id(), job.cancelled_id())
        };
        assert_eq!(ids("17"), "17 17");
        assert_eq!(ids("98_5"), "98_5 98_5");
        assert_eq!(ids("98_[7-9,12]"), "98_7 98_[7-9,12]");
        assert_eq!(ids("98_[7-9%2]"), "98_7 98_[7-9]");
    }
}
