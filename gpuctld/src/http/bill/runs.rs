//! `GET /v1/bill/runs`: the runs of a bill as CSV, which `verify-bill.py` reads.

use super::{BillSight, asked_month, question};
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::permission::Caller;
use crate::http::query::QueryPairs;
use crate::http::row_pieces::{RowBody, RowPieces};
use crate::store::reader::{BilledRun, CSV_HEAD};
use axum::body::{Body, Bytes};
use axum::extract::State as Shared;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

/// Runs of one piece of the answer: some tens of KiB.
const PIECE_RUNS: usize = 512;

pub(crate) async fn runs(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Response, ApiError> {
    let pairs = pairs.only(&["month", "account"])?;
    let state = site.core.view().await;
    let month = asked_month(&pairs, &state)?;
    let seen = BillSight::of(&caller, &state, &pairs)?;
    let _turn = site.app.bill_turn().await;
    let (question, _) = question(&site, &state, month).await?;
    let seen = move |user: &str, account: &str| seen.sees(&state, user, account);
    let runs = site.core.reader().billed_runs(question, seen).await?;
    let list = BilledRunList {
        site: site.clone(),
        runs: runs.into_iter(),
        begun: false,
    };
    let body = Body::new(RowBody::begin(list).await?);
    Ok(([(CONTENT_TYPE, "text/csv; charset=utf-8")], body).into_response())
}

/// The runs that are still to come.
struct BilledRunList {
    site: ApiContext,
    runs: std::vec::IntoIter<BilledRun>,
    begun: bool,
}

impl RowPieces for BilledRunList {
    async fn next_piece(&mut self) -> Result<Option<Bytes>, ApiError> {
        if !std::mem::replace(&mut self.begun, true) {
            return Ok(Some(Bytes::from_static(CSV_HEAD.as_bytes())));
        }
        let runs: Vec<BilledRun> = self.runs.by_ref().take(PIECE_RUNS).collect();
        if runs.is_empty() {
            return Ok(None);
        }
        let text = self.site.core.reader().billed_lines(runs).await?;
        Ok(Some(text.into()))
    }
}
