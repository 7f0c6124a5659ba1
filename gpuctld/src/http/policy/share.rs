//! `GET /v1/shares`: the fair tree, with its arithmetic.
//!
//! Everything is computed by gsched from a picture of the state, as the planner would; nothing is kept.

use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::permission::{Caller, Visibility};
use crate::http::query::{QueryPairs, words};
use axum::Json;
use axum::extract::State as Shared;
use gcore::ctl::{State, snapshot};
use gmodel::{Instant, Timestamp};
use gpolicy::fair_tree::{FairTree, LevelFs, PPM, ShareNode};
use gwire::api::{OutlookRow, SCHEMA, ShareRow};
use serde_json::{Value, json};

const SHARE_KEYS: [&str; 3] = ["user", "account", "outlook"];

pub(crate) async fn shares(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<Value>, ApiError> {
    let pairs = pairs.only(&SHARE_KEYS)?;
    let (users, accounts, outlook) = (
        words(pairs.text("user")),
        words(pairs.text("account")),
        pairs.flag("outlook")?,
    );
    let state = site.core.view().await;
    let half_life_secs = state.config.scheduler.fair_share.half_life_secs;
    let task = tokio::task::spawn_blocking(move || {
        let sight = Visibility::of(&caller, &state);
        share_rows(&state, &sight, &users, &accounts, outlook, now())
    });
    let rows = task
        .await
        .map_err(|_| ApiError::unavailable("the shares could not be computed; this is a bug"))?;
    Ok(Json(
        json!({"schema": SCHEMA, "half_life_secs": half_life_secs, "shares": rows}),
    ))
}

fn share_rows(
    state: &State,
    sight: &Visibility,
    users: &[String],
    accounts: &[String],
    outlook: bool,
    now: Timestamp,
) -> Vec<ShareRow> {
    let snapshot = snapshot(state, now);
    let tree = FairTree::of(snapshot.usage_input(), &snapshot.pending);
    let half_life_secs = i64::from(state.config.scheduler.fair_share.half_life_secs);
    let chosen = |node: &ShareNode| {
        let by_user = users.is_empty()
            || node
                .user
                .is_none_or(|user| users.iter().any(|name| name == user));
        let by_account = accounts.is_empty() || accounts.iter().any(|name| name == node.account);
        by_user
            && by_account
            && node
                .user
                .is_none_or(|user| sight.sees_named(user, node.account))
    };
    let lines = tree.lines();
    // An account is of interest to a user only where they are in it.
    let with_users: Vec<&str> = lines
        .iter()
        .filter(|(_, node)| node.user.is_some() && chosen(node))
        .map(|(_, node)| node.account)
        .collect();
    let shown = lines.iter().filter(|(_, node)| {
        chosen(node)
            && (users.is_empty() || node.user.is_some() || with_users.contains(&node.account))
    });
    shown
        .map(|(depth, node)| {
            let mut row = share_row(*depth, node);
            if let Some(user) = node.user.filter(|_| outlook) {
                let later = tree.outlook(node.account, user);
                row.outlook = later
                    .iter()
                    .map(|later| outlook_row(later, now, half_life_secs))
                    .collect();
            }
            row
        })
        .collect()
}

fn share_row(depth: usize, node: &ShareNode) -> ShareRow {
    let part = |ppm: u64| ppm as f64 / PPM as f64;
    ShareRow {
        depth: u32::try_from(depth).unwrap_or(u32::MAX),
        account: node.account.to_owned(),
        user: node.user.map(str::to_owned),
        raw_shares: node.shares,
        norm_shares: part(node.norm_shares),
        raw_usage: node.usage / 1000,
        norm_usage: part(node.norm_usage),
        effective_usage: part(node.effective_usage),
        level_fs: level_fs(node.level_fs),
        rank: node.user.map(|_| node.rank),
        fair_share: node.user.map(|_| part(u64::from(node.factor))),
        outlook: Vec::new(),
    }
}

fn level_fs(level: LevelFs) -> Option<f64> {
    level.ppm().map(|ppm| ppm as f64 / PPM as f64)
}

fn outlook_row(
    later: &gpolicy::fair_tree::Outlook,
    now: Timestamp,
    half_life_secs: i64,
) -> OutlookRow {
    let after_secs = i64::from(later.after_half_lives_milli) * half_life_secs / 1000;
    OutlookRow {
        at: Some(Instant(now.plus_secs(after_secs))),
        raw_usage: later.usage / 1000,
        level_fs: level_fs(later.level_fs),
        fair_share: f64::from(later.factor) / PPM as f64,
    }
}
