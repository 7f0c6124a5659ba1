//! The page of accounts: what it asks.

use super::page::{Visitor, show_time};
use crate::http::inside::{Inside, InsideError};
use axum::response::Response;
use gweb::{AccountStanding, AccountsPage, Place, accounts_page};
use gwire::api::{AccountRow, BudgetUse, DemandRow, ReportRow};
use serde_json::Value;

pub(super) async fn show(visitor: Visitor) -> Response {
    match content(visitor.inside()).await {
        Ok(content) => visitor.ok("Accounts", Place::Accounts, &content),
        Err(error) => visitor.refused(&error),
    }
}

async fn content(inside: &Inside) -> Result<gweb::Markup, InsideError> {
    let values: Vec<Value> = inside.list("/v1/accounts", "accounts").await?;
    let accounts: Vec<AccountStanding> = values.into_iter().filter_map(account).collect();
    let demand: Vec<DemandRow> = inside.list("/v1/demand", "demand").await?;
    let month: Vec<ReportRow> = inside.list("/v1/report?by=account", "rows").await?;
    Ok(accounts_page(&AccountsPage {
        accounts: &accounts,
        demand: &demand,
        month: &month,
        show_time: &show_time,
    }))
}

/// What is used of its budgets stands in them, and is no key of the record.
fn account(value: Value) -> Option<AccountStanding> {
    let budgets: Vec<BudgetUse> =
        serde_json::from_value(value["budgets"].clone()).unwrap_or_default();
    let row: AccountRow = serde_json::from_value(value).ok()?;
    Some(AccountStanding { row, budgets })
}
