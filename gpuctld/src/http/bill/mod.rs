//! `/v1/bill`: what accounts owe for a month, the runs and prices that it is made of, the close of a month, corrections.
//!
//! Owns the question and what of it a reader sees; what runs cost is `gpolicy::bill`'s, which runs there are the database's.

pub(crate) mod change;
mod rows;
pub(crate) mod runs;

use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::permission::{Caller, Visibility};
use crate::http::query::{QueryPairs, words};
use crate::store::reader::{BillQuestion, CarriedRun, StoredBill};
use axum::Json;
use axum::extract::State as Shared;
use gcore::ctl::State;
use gmodel::billing::{ClosedMonth, Correction};
use gmodel::suggest::did_you_mean;
use gmodel::{Instant, Month, Timestamp};
use gpolicy::bill::{BillLine, Tariff};
use gwire::api::{Bill, SCHEMA};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Groups at once: each is in each row.
const MAX_GROUPS: usize = 8;
/// What a bill can be grouped by, beside `tag:KEY`.
const GROUPS: [&str; 6] = ["account", "user", "partition", "qos", "gpu-type", "tags"];

/// A month's bill as far as it is known.
pub(crate) struct MonthBill {
    pub(crate) month: Month,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    pub(crate) tariff: Arc<Tariff>,
    pub(crate) lines: Vec<BillLine>,
    pub(crate) corrections: Vec<Correction>,
    pub(crate) carried: Vec<CarriedRun>,
    pub(crate) closed: Option<ClosedMonth>,
    pub(crate) now: Timestamp,
}

pub(crate) async fn bill(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<Bill>, ApiError> {
    let pairs = pairs.only(&["month", "account", "by"])?;
    let by = groups(&pairs)?;
    let state = site.core.view().await;
    let bill = month_bill(&site, &state, asked_month(&pairs, &state)?).await?;
    let seen = BillSight::of(&caller, &state, &pairs)?;
    let rows = rows::rows(&bill, &by, |user, account| seen.sees(&state, user, account));
    let total = rows.iter().map(|row| row.amount_micro);
    Ok(Json(Bill {
        schema: SCHEMA,
        cluster: site.app.config().cluster.name.clone(),
        month: bill.month,
        from: Some(Instant(bill.from)),
        to: Some(Instant(bill.to)),
        currency: bill.tariff.book().currency.clone(),
        closed: bill.closed.as_ref().map(|closed| Instant(closed.at)),
        until: (bill.now < bill.to).then_some(Instant(bill.now)),
        total_micro: total.fold(0, i64::saturating_add),
        by,
        rows,
    }))
}

/// The prices of a month, with the instants at which hours of the week begin and end.
pub(crate) async fn prices(
    _: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<serde_json::Value>, ApiError> {
    let pairs = pairs.only(&["month"])?;
    let state = site.core.view().await;
    let month = asked_month(&pairs, &state)?;
    let (question, stored) = question(&site, &state, month).await?;
    let tariff = match stored {
        Some(stored) => stored.tariff,
        None => tariff(&state, &question),
    };
    let millis = |list: Option<&[gmodel::policy::Price]>| {
        let list = list.into_iter().flatten();
        let rows = list.map(|price| {
            let mut row = json!(price);
            row["from_ms"] = json!(price.from.0);
            row
        });
        rows.collect::<Vec<_>>()
    };
    let book = tariff.book();
    let prices: serde_json::Map<_, _> = book
        .prices
        .iter()
        .map(|(kind, list)| (kind.clone(), json!(millis(Some(list)))))
        .collect();
    let charging = book.charging.iter().map(|rules| {
        json!({"from_ms": rules.from.0, "own": 100, "node-fault": rules.node_fault,
            "preempted": rules.preempted, "requeued": rules.requeued})
    });
    let default = gmodel::policy::price::Charging::default();
    let first = json!({"from_ms": 0, "own": 100, "node-fault": default.node_fault,
        "preempted": default.preempted, "requeued": default.requeued});
    let windows: serde_json::Map<_, _> = tariff
        .windows()
        .iter()
        .map(|(hours, windows)| {
            let spans: Vec<_> = windows.iter().map(|(a, b)| [a.0, b.0]).collect();
            (hours.clone(), json!(spans))
        })
        .collect();
    Ok(Json(json!({
        "schema": SCHEMA, "month": month, "from_ms": question.from.0, "to_ms": question.to.0, "currency": book.currency,
        "prices": prices, "charging": std::iter::once(first).chain(charging).collect::<Vec<_>>(), "windows": windows,
    })))
}

/// The month that is asked for; without one the present.
fn asked_month(pairs: &QueryPairs, state: &State) -> Result<Month, ApiError> {
    let present = Month::of(&state.config.time_zone, now());
    let month = match pairs.text("month") {
        "" => present,
        text => Month::parse(text).ok_or_else(|| {
            ApiError::invalid(format!("month = {text:?} is no month, as 2026-11"))
        })?,
    };
    if month > present {
        return Err(ApiError::invalid(format!(
            "{month} has not begun: there is no bill of it. The present month is {present}"
        )));
    }
    Ok(month)
}

fn groups(pairs: &QueryPairs) -> Result<Vec<String>, ApiError> {
    let by = words(pairs.text("by"));
    let is_known = |word: &str| {
        GROUPS.contains(&word) || word.strip_prefix("tag:").is_some_and(|key| !key.is_empty())
    };
    if let Some(odd) = by.iter().find(|word| !is_known(word)) {
        let guess = did_you_mean(odd, GROUPS);
        return Err(ApiError::invalid(format!(
            "a bill cannot be grouped by {odd:?}.{guess} Groups: {}, tag:KEY",
            GROUPS.join(", ")
        )));
    }
    if by.len() > MAX_GROUPS {
        return Err(ApiError::invalid(format!(
            "{} groups are too many for one bill: {MAX_GROUPS} at most",
            by.len()
        )));
    }
    Ok(match by.is_empty() {
        true => vec!["account".to_owned()],
        false => by,
    })
}

/// Whose lines a reader sees: as in reports; and coordinators those of their accounts.
#[derive(Clone)]
struct BillSight {
    sight: Visibility,
    /// Only of these; none: of all.
    accounts: BTreeSet<String>,
    coordinates: bool,
}

impl BillSight {
    fn of(caller: &Caller, state: &State, pairs: &QueryPairs) -> Result<Self, ApiError> {
        let accounts: BTreeSet<String> = words(pairs.text("account")).into_iter().collect();
        let known = &state.policy.accounts;
        let is_known = |name: &&String| {
            known.contains_key(*name)
                || **name == state.config.default_account
                || state.usage.knows_account(name)
        };
        if let Some(odd) = accounts.iter().find(|name| !is_known(name)) {
            let guess = did_you_mean(odd, known.keys().map(String::as_str));
            return Err(ApiError::not_found(format!(
                "there is no account {odd:?}, and none was charged under this name.{guess}"
            )));
        }
        Ok(Self {
            sight: Visibility::of(caller, state),
            accounts,
            // A token narrows its user to what it names.
            coordinates: caller.actor.token.is_none(),
        })
    }

    fn sees(&self, state: &State, user: &str, account: &str) -> bool {
        let asked = self.accounts.is_empty() || self.accounts.contains(account);
        asked
            && (self.sight.sees_named(user, account)
                || self.coordinates && state.policy.coordinates(&self.sight.user, account))
    }
}

fn tariff(state: &State, question: &BillQuestion) -> Tariff {
    let book = state.billing.prices(&state.config.scheduler.money);
    Tariff::new(book, &state.config.time_zone, question.from, question.to)
}

/// What to ask of the database about a month, and its stored bill where it is closed.
async fn question(
    site: &ApiContext,
    state: &State,
    month: Month,
) -> Result<(BillQuestion, Option<StoredBill>), ApiError> {
    let own = state.billing.closed.get(&month);
    let own = match own {
        Some(closed) => Some(stored(site, closed).await?),
        None => None,
    };
    let before = state.billing.closed.range(..month).next_back();
    let mut bounds = month.bounds(&state.config.time_zone);
    let before = match before {
        Some((last, closed)) => {
            let bill = stored(site, closed).await?;
            // Where that one ended, whatever `time_zone` is by now: no hour is billed twice, and none is left out.
            if last.next() == month {
                bounds.0 = bill.to;
            }
            Some((bill.to, bill.carried))
        }
        None => None,
    };
    let (from, to) = own.as_ref().map_or(bounds, |bill| (bill.from, bill.to));
    let question = BillQuestion {
        from,
        to,
        now: now(),
        before,
        own: own.as_ref().map(|bill| bill.carried.clone()),
    };
    Ok((question, own))
}

async fn stored(site: &ApiContext, closed: &ClosedMonth) -> Result<StoredBill, ApiError> {
    let blob = site.core.reader().blob(closed.bill).await?;
    let blob =
        blob.ok_or_else(|| ApiError::unavailable("the stored bill is not in the database"))?;
    let read = tokio::task::spawn_blocking(move || serde_json::from_slice(&blob)).await;
    let read = read.map_err(|_| ApiError::unavailable("reading the bill failed; this is a bug"))?;
    read.map_err(|error| ApiError::unavailable(format!("the stored bill cannot be read: {error}")))
}

/// The bill of a month: as stored, or made of the runs.
pub(crate) async fn month_bill(
    site: &ApiContext,
    state: &State,
    month: Month,
) -> Result<MonthBill, ApiError> {
    let _turn = site.app.bill_turn().await;
    let (question, own) = question(site, state, month).await?;
    let (from, to, now) = (question.from, question.to, question.now);
    if let Some(own) = own {
        return Ok(MonthBill {
            month,
            from,
            to,
            tariff: Arc::new(own.tariff),
            lines: own.lines,
            corrections: own.corrections,
            carried: own.carried,
            closed: state.billing.closed.get(&month).cloned(),
            now,
        });
    }
    let tariff = Arc::new(tariff(state, &question));
    let (lines, carried) = site.core.reader().bill(question, tariff.clone()).await?;
    let corrections = state.billing.corrections.iter();
    Ok(MonthBill {
        month,
        from,
        to,
        tariff,
        lines,
        corrections: corrections
            .filter(|one| one.month == month)
            .cloned()
            .collect(),
        carried,
        closed: None,
        now,
    })
}
