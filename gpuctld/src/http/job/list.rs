//! `GET /v1/jobs`: the queue, in squeue's order, written piece by piece while the client reads.
//!
//! A listing holds the state it was made from and the ids of its rows; 100,000 rows are never JSON all at once, and
//! a client that stops reading costs no thread. Order: partition, state, priority (squeue's `--sort=P,t,-p`).

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::column::{COLUMNS, JobColumn, write_row};
use crate::http::job::filter::{JobFilter, expanded, job_query};
use crate::http::job::rank::Ranks;
use crate::http::job::row::{Row, RowKey, View};
use crate::http::json_row::{JsonWriter, chosen};
use crate::http::permission::{Caller, Visibility};
use crate::http::query::{QueryPairs, words};
use axum::body::{Body, Bytes};
use axum::extract::State as Shared;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use gcore::ctl::State;
use gmodel::{JobId, JobState, Timestamp};
use gwire::api::JobQuery;
use hyper::body::Frame;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// One piece of an answer, about.
const PIECE_BYTES: usize = 64 << 10;
/// Queues of this length are sorted off the threads that serve sockets.
const SORTED_INLINE: usize = 4_000;
/// The newest finished jobs of a listing; their nodes are looked up.
const MAX_PAST_ROWS: usize = 5_000;

pub(crate) async fn list(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    mut pairs: QueryPairs,
) -> Result<Response, ApiError> {
    let page = Page::take(&mut pairs)?;
    let query = job_query(pairs)?;
    let listing = Listing::prepare(&query, page)?;
    let bare = query.bare;
    let state = site.core.view().await;
    let now = crate::core_thread::now();
    let ranks = site.app.ranks.ranks_of(&state, now);
    let rows = if state.jobs.len() + state.arrays.len() <= SORTED_INLINE {
        listing.rows(&caller, &state, ranks.as_deref(), now)?
    } else {
        let (state, caller, ranks) = (state.clone(), caller.clone(), ranks.clone());
        let rows = tokio::task::spawn_blocking(move || {
            listing.rows(&caller, &state, ranks.as_deref(), now)
        });
        rows.await
            .map_err(|_| ApiError::unavailable("the listing could not be made"))??
    };
    let past_nodes = past_nodes(&site, &rows, now).await?;
    let (columns, total) = (rows.columns, rows.total);
    let rows = rows.keys.into_iter();
    let body = ListBody {
        state,
        now,
        ranks,
        rows,
        columns,
        bare,
        total,
        past_nodes,
        begun: false,
        ended: false,
    };
    Ok(([(CONTENT_TYPE, "application/json")], Body::new(body)).into_response())
}

/// Where jobs were that hold nothing any more: their last runs are in the database only.
async fn past_nodes(
    site: &ApiContext,
    rows: &Rows,
    now: Timestamp,
) -> Result<BTreeMap<JobId, String>, ApiError> {
    let mut ids = rows.past.clone();
    if ids.is_empty() || !rows.columns.iter().any(|column| column.key == "nodelist") {
        return Ok(BTreeMap::new());
    }
    ids.sort_unstable_by_key(|id| Reverse(*id));
    ids.truncate(MAX_PAST_ROWS);
    let runs = site.core.reader().last_runs(ids, now).await?;
    Ok(runs
        .into_iter()
        .map(|run| (JobId(run.id), run.nodelist))
        .collect())
}

/// Which rows of a long listing are meant; where it is named, the answer says how many there are in all.
#[derive(Clone, Copy)]
struct Page {
    offset: usize,
    limit: Option<usize>,
    /// By the time of submission, the newest first, instead of squeue's order.
    newest: bool,
}

impl Page {
    fn take(pairs: &mut QueryPairs) -> Result<Self, ApiError> {
        Ok(Self {
            offset: pairs.take_number("offset")?.unwrap_or(0) as usize,
            limit: pairs.take_number("limit")?.map(|limit| limit as usize),
            newest: pairs.take_flag("newest")?,
        })
    }

    /// Its part of all rows, in order.
    fn of<T>(self, mut rows: Vec<T>) -> Vec<T> {
        rows.drain(..self.offset.min(rows.len()));
        rows.truncate(self.limit.unwrap_or(usize::MAX));
        rows
    }
}

/// A checked question.
struct Listing {
    page: Page,
    filter: JobFilter,
    expand: bool,
    columns: Vec<&'static JobColumn>,
}

struct Rows {
    keys: Vec<RowKey>,
    /// Jobs among them that hold nothing any more.
    past: Vec<JobId>,
    columns: Vec<&'static JobColumn>,
    /// All that are meant, where a part was asked for.
    total: Option<usize>,
}

impl Listing {
    fn prepare(query: &JobQuery, page: Page) -> Result<Self, ApiError> {
        let columns = chosen(&COLUMNS, &words(&query.columns))?;
        Ok(Self {
            page,
            filter: JobFilter::new(query)?,
            expand: query.expand,
            columns,
        })
    }

    fn rows(
        self,
        caller: &Caller,
        state: &State,
        ranks: Option<&Ranks>,
        now: Timestamp,
    ) -> Result<Rows, ApiError> {
        self.filter.nodes_exist(state)?;
        let view = View {
            ranks,
            ..View::new(state, now)
        };
        let sight = Visibility::of(caller, state);
        let mut found = Vec::new();
        self.filter.each(view, &sight, |row| found.push(row));
        if self.expand {
            found = expanded(found)?;
        }
        let total = self.page.limit.map(|_| found.len());
        let shown = self.page.of(match self.page.newest {
            true => newest_first(found),
            false => in_order(view, found),
        });
        let past = shown
            .iter()
            .filter(|row| row.is_past(view))
            .filter_map(|row| match row {
                Row::Job(job) => Some(job.id),
                _ => None,
            });
        let past = past.collect();
        Ok(Rows {
            keys: shown.iter().map(Row::key).collect(),
            past,
            columns: self.columns,
            total,
        })
    }
}

/// The order of squeue: partition by name, state, priority from high to low, then the time of submission.
fn in_order<'s>(view: View, rows: Vec<Row<'s>>) -> Vec<Row<'s>> {
    let mut names: Vec<&str> = view
        .state
        .config
        .partitions
        .iter()
        .map(|p| p.name.as_str())
        .collect();
    names.sort_unstable();
    let place = |row: &Row| {
        let first = row.spec().partition.split(',').next().unwrap_or_default();
        names.binary_search(&first).unwrap_or(names.len())
    };
    let mut keyed: Vec<_> = rows
        .into_iter()
        .map(|row| {
            let order = (
                place(&row),
                state_order(row.state()),
                Reverse(row.priority(view)),
                row.submitted(),
                row.id(),
            );
            (order, row)
        })
        .collect();
    keyed.sort_by(|(one, _), (other, _)| one.cmp(other)); // made of a few runs that are in order: the stable sort finds them
    keyed.into_iter().map(|(_, row)| row).collect()
}

fn newest_first(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by_key(|row| (Reverse(row.submitted()), Reverse(row.id())));
    rows
}

/// Waiting, running, ending, over.
fn state_order(state: JobState) -> u8 {
    state as u8
}

/// The body of a listing. Each poll makes one piece.
struct ListBody {
    state: Arc<State>,
    now: Timestamp,
    ranks: Option<Arc<Ranks>>,
    rows: std::vec::IntoIter<RowKey>,
    columns: Vec<&'static JobColumn>,
    /// Rows as lists.
    bare: bool,
    total: Option<usize>,
    past_nodes: BTreeMap<JobId, String>,
    begun: bool,
    ended: bool,
}

impl ListBody {
    fn next_piece(&mut self) -> Bytes {
        let mut out = JsonWriter {
            bytes: Vec::with_capacity(PIECE_BYTES + 4096),
        };
        let view = View {
            past_nodes: Some(&self.past_nodes),
            ranks: self.ranks.as_deref(),
            ..View::new(&self.state, self.now)
        };
        if !self.begun {
            out.raw("{\"schema\":1,\"jobs\":[");
        }
        while out.bytes.len() < PIECE_BYTES {
            let Some(key) = self.rows.next() else {
                out.raw("]");
                if let Some(total) = self.total {
                    out.raw(&format!(",\"total\":{total}"));
                }
                out.raw("}\n");
                self.ended = true;
                break;
            };
            let Some(row) = key.row(view.state) else {
                continue;
            };
            if self.begun {
                out.raw(",");
            }
            self.begun = true;
            write_row(&row, view, &self.columns, self.bare, &mut out);
        }
        Bytes::from(out.bytes)
    }
}

impl hyper::body::Body for ListBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(self.next_piece()))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

/// Rows as one body, for the answers about a single job.
pub(crate) fn json_rows(view: View, rows: &[Row], columns: &[&JobColumn]) -> Vec<u8> {
    let mut out = JsonWriter::default();
    for (position, row) in rows.iter().enumerate() {
        out.raw(if position == 0 { "[" } else { "," });
        write_row(row, view, columns, false, &mut out);
    }
    out.raw(if rows.is_empty() { "[]" } else { "]" });
    out.bytes
}
