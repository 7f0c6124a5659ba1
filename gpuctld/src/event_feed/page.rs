//! Events in a row, told once in both forms and shared by all readers: each takes the pieces that it may see and wants.

use super::cursor::Cursor;
use gmodel::{JobId, Timestamp};
use gwire::api::{EventJob, EventKind, EventRow, SCHEMA};
use hyper::body::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

/// By which readers an event may be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audience {
    All,
    Operators,
    /// The readers of this job.
    Job {
        user: String,
        account: String,
        partition: String,
    },
}

/// An event as it is told.
#[derive(Clone, Debug)]
pub struct ToldEvent {
    pub kind: EventKind,
    pub row: EventRow,
    pub audience: Audience,
    pub at: Cursor,
}

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventForm {
    ServerSent,
    JsonLines,
}

/// Which events a reader wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Empty: all.
    pub kinds: BTreeSet<EventKind>,
    /// Empty: of all accounts, and those that are of no job.
    pub accounts: BTreeSet<String>,
    pub job: Option<WantedJob>,
}

/// A job, or an array with all its tasks, or a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedJob {
    pub id: JobId,
    pub index: Option<u32>,
}

impl Interest {
    pub fn has(&self, told: &ToldEvent) -> bool {
        let row = &told.row;
        (self.kinds.is_empty() || self.kinds.contains(&told.kind))
            && (self.accounts.is_empty() || self.accounts.contains(&row.job.account))
            && self.job.is_none_or(|job| job.is_of(&row.job))
    }
}

impl WantedJob {
    fn is_of(self, row: &EventJob) -> bool {
        let id = Some(self.id.0);
        match self.index {
            Some(index) => row.array_id == id && row.array_index.is_none_or(|own| own == index),
            None => row.job_id == id || row.array_id == id,
        }
    }
}

/// Kinds and families of kinds, with commas between.
///
/// # Errors
/// The word that is none.
pub fn kinds_of(text: &str) -> Result<BTreeSet<EventKind>, String> {
    let mut kinds = BTreeSet::new();
    for word in text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
    {
        let mut meant = EventKind::told()
            .filter(|kind| kind.name() == word || kind.family() == word)
            .peekable();
        if meant.peek().is_none() {
            return Err(word.to_owned());
        }
        kinds.extend(meant);
    }
    Ok(kinds)
}

/// Events in a row.
#[derive(Debug)]
pub struct EventPage {
    pub incarnation: u64,
    /// All events after this one and up to that one are here, but for what is told to no reader.
    pub after: u64,
    pub upto: u64,
    pub told: Vec<ToldEvent>,
    server_sent: Bytes,
    lines: Bytes,
    /// Where each event ends in the two texts.
    ends: Vec<(usize, usize)>,
}

impl EventPage {
    pub fn new(incarnation: u64, after: u64, upto: u64, told: Vec<ToldEvent>) -> Arc<Self> {
        let (mut server_sent, mut lines) = (Vec::new(), Vec::new());
        let mut ends = Vec::with_capacity(told.len());
        for event in &told {
            let json = serde_json::to_string(&event.row).expect("texts and numbers are JSON");
            write_server_sent(&mut server_sent, &event.row, &json);
            lines.extend_from_slice(json.as_bytes());
            lines.push(b'\n');
            ends.push((server_sent.len(), lines.len()));
        }
        Arc::new(Self {
            incarnation,
            after,
            upto,
            told,
            server_sent: server_sent.into(),
            lines: lines.into(),
            ends,
        })
    }

    /// Bytes that it takes, roughly.
    pub fn size(&self) -> usize {
        2 * (self.server_sent.len() + self.lines.len()) + 512
    }

    /// The text of those after `after` that are wanted, `most` of them at most; how many they are, and the place of the last one.
    pub fn take(
        &self,
        form: EventForm,
        after: Cursor,
        most: usize,
        mut wanted: impl FnMut(&ToldEvent) -> bool,
    ) -> (Bytes, usize, Option<Cursor>) {
        let text = match form {
            EventForm::ServerSent => &self.server_sent,
            EventForm::JsonLines => &self.lines,
        };
        let mut pieces: Vec<std::ops::Range<usize>> = Vec::new();
        let (mut count, mut last, mut start) = (0, None, 0);
        for (event, ends) in self.told.iter().zip(&self.ends) {
            let piece = match form {
                EventForm::ServerSent => start..ends.0,
                EventForm::JsonLines => start..ends.1,
            };
            start = piece.end;
            if event.at <= after || count == most || !wanted(event) {
                continue;
            }
            (count, last) = (count + 1, Some(event.at));
            match pieces.last_mut() {
                Some(before) if before.end == piece.start => before.end = piece.end,
                _ => pieces.push(piece),
            }
        }
        // A reader of all gets the shared text itself.
        let taken = match pieces.as_slice() {
            [] => Bytes::new(),
            [whole] => text.slice(whole.clone()),
            parts => parts
                .iter()
                .flat_map(|part| &text[part.clone()])
                .copied()
                .collect::<Vec<u8>>()
                .into(),
        };
        (taken, count, last)
    }
}

fn write_server_sent(text: &mut Vec<u8>, row: &EventRow, json: &str) {
    // JSON has no line breaks outside of its texts, and those are escaped.
    let parts = [
        "id: ",
        &row.id,
        "\nevent: ",
        &row.kind,
        "\ndata: ",
        json,
        "\n\n",
    ];
    parts
        .iter()
        .for_each(|part| text.extend_from_slice(part.as_bytes()));
}

/// A place for a reader to which nothing is to be told: it begins there again.
pub fn cursor_text(form: EventForm, id: String, seq: u64, now: Timestamp, more: bool) -> Bytes {
    // An id without data moves a browser's place and is no event.
    if form == EventForm::ServerSent && !more {
        return format!(": nothing new\nid: {id}\n\n").into();
    }
    let row = EventRow {
        schema: SCHEMA,
        id,
        seq,
        time: gmodel::Instant(now),
        kind: EventKind::Cursor.name().to_owned(),
        more,
        ..EventRow::default()
    };
    let json = serde_json::to_string(&row).expect("texts and numbers are JSON");
    match form {
        EventForm::JsonLines => (json + "\n").into(),
        EventForm::ServerSent => {
            let mut text = Vec::new();
            write_server_sent(&mut text, &row, &json);
            text.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(seq: u64, part: u8, kind: EventKind, account: &str) -> ToldEvent {
        let at = Cursor { seq, part };
        let row = EventRow {
            id: at.id(1),
            seq,
            kind: kind.name().to_owned(),
            job: EventJob {
                account: account.to_owned(),
                ..EventJob::default()
            },
            ..EventRow::default()
        };
        ToldEvent {
            kind,
            row,
            audience: Audience::All,
            at,
        }
    }

    fn page() -> Arc<EventPage> {
        let all = u8::MAX;
        let events = vec![
            told(3, all, EventKind::JobStarted, "nlp"),
            told(5, 0, EventKind::JobEnded, "vision"),
            told(5, all, EventKind::ArrayEnded, "vision"),
            told(9, all, EventKind::NodeDown, ""),
        ];
        EventPage::new(1, 2, 9, events)
    }

    fn ids(text: &[u8]) -> Vec<String> {
        let lines = std::str::from_utf8(text).unwrap().lines();
        lines
            .map(|line| serde_json::from_str::<EventRow>(line).unwrap().id)
            .collect()
    }

    #[test]
    fn a_reader_gets_what_it_wants_after_its_place_in_either_form() {
        let page = page();
        let of = |after, most, wanted: fn(&ToldEvent) -> bool| {
            let (text, count, last) = page.take(EventForm::JsonLines, after, most, wanted);
            assert_eq!(ids(&text).len(), count);
            (ids(&text), last)
        };
        let start = Cursor::whole(2);
        let (all, last) = of(start, 100, |_| true);
        assert_eq!(all, ["1-3", "1-5.0", "1-5", "1-9"]);
        assert_eq!(last, Some(Cursor::whole(9)));
        // Between the two parts of one event: the second is not lost.
        assert_eq!(
            of(Cursor { seq: 5, part: 0 }, 100, |_| true).0,
            ["1-5", "1-9"]
        );
        assert_eq!(
            of(start, 2, |_| true),
            (
                vec!["1-3".into(), "1-5.0".into()],
                Some(Cursor { seq: 5, part: 0 })
            )
        );
        let (some, _) = of(start, 100, |told| told.kind != EventKind::JobEnded);
        assert_eq!(some, ["1-3", "1-5", "1-9"]);
        assert_eq!(of(start, 100, |_| false), (vec![], None));
        let (text, ..) = page.take(EventForm::ServerSent, Cursor::whole(5), 9, |_| true);
        let text = std::str::from_utf8(&text).unwrap();
        assert!(
            text.starts_with("id: 1-9\nevent: node_down\ndata: {") && text.ends_with("}\n\n"),
            "{text}"
        );
    }

    #[test]
    fn an_interest_narrows_by_kind_account_and_job() {
        assert_eq!(
            kinds_of("job_ended,node").unwrap().len(),
            1 + EventKind::ALL
                .iter()
                .filter(|k| k.family() == "node")
                .count()
        );
        assert_eq!(kinds_of("job_endet"), Err("job_endet".to_owned()));
        assert_eq!(kinds_of(" , ").unwrap(), BTreeSet::new());
        let mut event = told(1, u8::MAX, EventKind::JobEnded, "nlp");
        (
            event.row.job.job_id,
            event.row.job.array_id,
            event.row.job.array_index,
        ) = (Some(103), Some(98), Some(5));
        let wants = |id, index| {
            Interest {
                job: Some(WantedJob {
                    id: JobId(id),
                    index,
                }),
                ..Interest::default()
            }
            .has(&event)
        };
        assert!(wants(98, None) && wants(98, Some(5)) && wants(103, None));
        assert!(!wants(98, Some(6)) && !wants(5, None));
        let of = |account: &str| Interest {
            accounts: [account.to_owned()].into(),
            ..Interest::default()
        };
        assert!(of("nlp").has(&event) && !of("vision").has(&event));
        assert!(!of("nlp").has(&told(1, 0, EventKind::NodeDown, "")));
    }
}
