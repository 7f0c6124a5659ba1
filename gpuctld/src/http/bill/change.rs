//! `POST /v1/bill/close` and `/v1/bill/correct`: by operators.

use super::month_bill;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::control::odd;
use crate::http::permission::Caller;
use crate::store::reader::StoredBill;
use axum::Json;
use axum::extract::State as Shared;
use axum::extract::rejection::JsonRejection;
use gcore::ctl::{BillChange, Command, Reply};
use gmodel::policy::money_text;
use gwire::api::{BillClose, BillCorrection, ChangeReply, SCHEMA};

/// Largest stored bill, bytes.
const MAX_BILL_BYTES: usize = 512 << 20;

pub(crate) async fn close(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: Result<Json<BillClose>, JsonRejection>,
) -> Result<Json<ChangeReply>, ApiError> {
    let Json(BillClose { month }) = body?;
    caller.must_administer("closing a month")?;
    let state = site.core.view().await;
    let bill = month_bill(&site, &state, month).await?;
    let amounts = bill.lines.iter().map(|line| line.amount_micro);
    let corrected = bill.corrections.iter().map(|one| one.amount_micro);
    let total_micro = amounts.chain(corrected).fold(0, i64::saturating_add);
    let (lines, corrections) = (bill.lines.len(), bill.corrections.len());
    let stored = StoredBill {
        month,
        from: bill.from,
        to: bill.to,
        tariff: (*bill.tariff).clone(),
        lines: bill.lines,
        corrections: bill.corrections,
        carried: bill.carried,
    };
    let text = tokio::task::spawn_blocking(move || serde_json::to_vec(&stored)).await;
    let text = text.map_err(|_| ApiError::unavailable("writing the bill failed; this is a bug"))?;
    let text = text.map_err(|error| ApiError::unavailable(format!("the bill: {error}")))?;
    if text.len() > MAX_BILL_BYTES {
        return Err(ApiError::invalid(format!(
            "the bill of {month} has {lines} lines and takes more than {MAX_BILL_BYTES} bytes, which is the most. Fewer different \
             tags make fewer lines"
        )));
    }
    let change = BillChange::Close {
        month,
        bill: gmodel::BlobId::default(),
        lines: u32::try_from(lines).unwrap_or(u32::MAX),
        total_micro,
        corrections: u32::try_from(corrections).unwrap_or(u32::MAX),
    };
    site.core.close_bill(caller.actor, change, text).await?;
    let currency = &state.config.scheduler.money.currency;
    Ok(done(format!(
        "{month} is closed: {lines} lines and {corrections} corrections, {} {currency} in all",
        money_text(total_micro, 2)
    )))
}

pub(crate) async fn correct(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: Result<Json<BillCorrection>, JsonRejection>,
) -> Result<Json<ChangeReply>, ApiError> {
    let Json(asked) = body?;
    caller.must_administer("a correction of a bill")?;
    let text = format!(
        "{} for {}",
        money_text(asked.amount_micro, 2),
        asked.account
    );
    let change = BillChange::Correct {
        account: asked.account,
        amount_micro: asked.amount_micro,
        reason: asked.reason,
    };
    match site
        .core
        .command(caller.actor, Command::Bill { change })
        .await?
    {
        Reply::Done => {}
        other => return Err(odd(&other)),
    }
    let state = site.core.view().await;
    let last = state.billing.corrections.last();
    let month = last.map_or(String::new(), |one| one.month.to_string());
    Ok(done(format!("{text} is a line of the bill of {month}")))
}

fn done(note: String) -> Json<ChangeReply> {
    Json(ChangeReply {
        schema: SCHEMA,
        notes: vec![note.trim().to_owned()],
    })
}
