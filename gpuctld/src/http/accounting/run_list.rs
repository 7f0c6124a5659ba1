//! `GET /v1/runs` on its way: the rows of an accounting listing, read and written piece by piece while the client reads.
//!
//! Holds the ids of the rows; what stands in them is in memory for one piece that is sent and one that is made
//! meanwhile. A client that stops reading costs no thread and no lock of the database.

use crate::http::accounting::run_column::{RunColumn, write};
use crate::http::accounting::run_row::{add_details, add_steps, detail, waiting_row};
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::rank::Ranks;
use crate::http::job::row::{RowKey, View};
use crate::http::json_row::JsonWriter;
use crate::http::permission::Visibility;
use crate::http::row_pieces::RowPieces;
use crate::store::reader::{FoundRuns, RunFields, RunKey};
use axum::body::Bytes;
use gcore::ctl::State;
use gmodel::Timestamp;
use gwire::api::RunRow;
use std::sync::Arc;

/// Rows of one piece: some tens of KiB of a usual listing.
const PIECE_ROWS: usize = 512;

/// What the rows of a listing show, within the visibility of the caller.
pub(crate) struct RunListOptions {
    pub(crate) columns: Vec<&'static RunColumn>,
    pub(crate) bare: bool,
    pub(crate) steps: bool,
    pub(crate) detail: bool,
    pub(crate) fields: Arc<RunFields>,
    pub(crate) sight: Visibility,
}

/// The state as it was when the listing was asked for.
#[derive(Clone)]
pub(crate) struct ViewMoment {
    pub(crate) state: Arc<State>,
    pub(crate) ranks: Option<Arc<Ranks>>,
    pub(crate) now: Timestamp,
}

impl ViewMoment {
    pub(crate) fn view(&self) -> View<'_> {
        View {
            ranks: self.ranks.as_deref(),
            ..View::new(&self.state, self.now)
        }
    }
}

/// A row that is to come.
enum RunEntry {
    Stored(RunKey),
    /// Of cancelled tasks: such rows are few.
    Cancelled(Box<RunRow>),
    Waiting(RowKey),
}

/// The rows that are still to come, in their order.
pub(crate) struct RunList {
    site: ApiContext,
    moment: ViewMoment,
    shown: RunListOptions,
    entries: std::vec::IntoIter<RunEntry>,
    begun: bool,
}

impl RunList {
    /// The newest `most` of what was found and of what waits (by id and attempt).
    pub(crate) fn new(
        site: ApiContext,
        moment: ViewMoment,
        shown: RunListOptions,
        found: FoundRuns,
        waiting: Vec<(RunKey, RowKey)>,
        most: usize,
    ) -> Self {
        let stored = found
            .runs
            .into_iter()
            .map(|key| (key, RunEntry::Stored(key)));
        let made = found.cancelled.into_iter().map(|row| {
            (
                RunKey {
                    id: row.id,
                    attempt: Some(row.attempt),
                },
                RunEntry::Cancelled(Box::new(row)),
            )
        });
        let waiting = waiting
            .into_iter()
            .map(|(key, row)| (key, RunEntry::Waiting(row)));
        let mut keyed: Vec<(RunKey, RunEntry)> = stored.chain(made).chain(waiting).collect();
        keyed.sort_by_key(|(key, _)| *key); // made of runs that are in order
        // One that began since the state was read is in the database already. The tasks of an array that wait together are none of
        // these: their line stands behind a task that may have begun.
        let is_one = |entry: &RunEntry| {
            matches!(entry, RunEntry::Waiting(RowKey::Job(_) | RowKey::Task(..)))
        };
        keyed.dedup_by(|later, kept| {
            let same = later.0.id == kept.0.id
                && matches!(kept.1, RunEntry::Stored(_))
                && is_one(&later.1);
            same && kept.0.attempt.is_none()
        });
        keyed.drain(..keyed.len().saturating_sub(most));
        let entries: Vec<RunEntry> = keyed.into_iter().map(|(_, entry)| entry).collect();
        Self {
            site,
            moment,
            shown,
            entries: entries.into_iter(),
            begun: false,
        }
    }

    async fn rows(&self, entries: Vec<RunEntry>) -> Result<Vec<RunRow>, ApiError> {
        let keys = entries.iter().filter_map(|entry| match entry {
            RunEntry::Stored(key) => Some(*key),
            _ => None,
        });
        let reader = self.site.core.reader();
        let stored = reader
            .run_rows(keys.collect(), self.shown.fields.clone(), self.moment.now)
            .await?;
        let view = self.moment.view();
        let mut stored = stored.into_iter();
        let rows = entries.into_iter().filter_map(|entry| match entry {
            RunEntry::Stored(_) => stored.next().flatten(),
            RunEntry::Cancelled(row) => Some(*row),
            RunEntry::Waiting(key) => {
                let row = key.row(view.state)?;
                Some(RunRow {
                    detail: self.shown.detail.then(|| detail(&row, view)),
                    ..waiting_row(&row, view)
                })
            }
        });
        let sight = &self.shown.sight;
        let mut rows: Vec<RunRow> = rows
            .filter(|row| sight.sees_named(&row.user, &row.account))
            .collect();
        if self.shown.steps || self.shown.detail {
            add_steps(&self.site, &mut rows, self.moment.now).await?;
        }
        if self.shown.detail {
            add_details(&self.site, &mut rows, view).await?;
        }
        Ok(rows)
    }
}

impl RowPieces for RunList {
    async fn next_piece(&mut self) -> Result<Option<Bytes>, ApiError> {
        let mut out = JsonWriter::default();
        if !self.begun {
            out.raw("{\"schema\":1,\"runs\":[");
        } else if self.entries.len() == 0 {
            return Ok(None);
        }
        let entries: Vec<RunEntry> = self.entries.by_ref().take(PIECE_ROWS).collect();
        for row in self.rows(entries).await? {
            if self.begun {
                out.raw(",");
            }
            self.begun = true;
            out.row(row.id, &self.shown.columns, self.shown.bare, |key, out| {
                write(*key, &row, out)
            });
        }
        self.begun = true;
        if self.entries.len() == 0 {
            out.raw("]}\n");
        }
        Ok(Some(Bytes::from(out.bytes)))
    }
}
