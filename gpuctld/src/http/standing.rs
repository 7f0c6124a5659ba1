//! `GET /v1/priorities` and `/v1/shares`: the order of the queue and the fair tree, with their arithmetic.
//!
//! Everything is computed by gsched from a picture of the state, as the planner would; nothing is kept.

use super::error::ApiError;
use super::filter::{JobFilter, job_query};
use super::permission::{Caller, Sight};
use super::query::{Pairs, words};
use super::row::{Row, View};
use super::{Site, now};
use axum::Json;
use axum::extract::State as Shared;
use gcore::ctl::{State, snapshot};
use gmodel::policy::PriorityWeights;
use gmodel::{Instant, JobId, JobSpec, RunClass, Timestamp};
use gsched::fair_tree::{FairTree, LevelFs, PPM, ShareNode};
use gsched::ledger::Ledger;
use gsched::priority::{Factors, Ordered, each_once, in_order};
use gwire::api::{
    FactorsRow, OutlookRow, PartitionPriorityRow, PriorityRow, PriorityWeightsRow, SCHEMA, ShareRow,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(super) async fn priorities(
    caller: Caller,
    Shared(site): Shared<Site>,
    pairs: Pairs,
) -> Result<Json<Value>, ApiError> {
    let query = job_query(pairs)?;
    let filter = JobFilter::new(&query)?;
    let state = site.core.view().await;
    let weights = weights_row(&state.config.scheduler.priority);
    let task = tokio::task::spawn_blocking(move || {
        priority_rows(&state, &Sight::of(&caller, &state), &filter, now())
    });
    let rows = task.await.map_err(|_| {
        ApiError::unavailable("the priorities could not be computed; this is a bug")
    })?;
    Ok(Json(
        json!({"schema": SCHEMA, "weights": weights, "jobs": rows}),
    ))
}

fn priority_rows(
    state: &State,
    sight: &Sight,
    filter: &JobFilter,
    now: Timestamp,
) -> Vec<PriorityRow> {
    let snapshot = snapshot(state, now);
    let ledger = Ledger::new(&snapshot);
    let all = in_order(&snapshot, &ledger);
    let key = |at: usize| {
        (
            snapshot.pending[at].id,
            snapshot.pending[at].positions.is_some(),
        )
    };
    let mut choices: BTreeMap<(JobId, bool), Vec<(u32, PartitionPriorityRow)>> = BTreeMap::new();
    let weights = &state.config.scheduler.priority;
    let is_first = |spec: &JobSpec| {
        !spec.partitions.is_empty() && spec.alternative.is_none_or(|(at, _)| at == 0)
    };
    for one in all
        .iter()
        .filter(|one| is_first(&snapshot.pending[one.at].spec))
    {
        let spec = &snapshot.pending[one.at].spec;
        choices.entry(key(one.at)).or_default().push((
            spec.choice(),
            partition_row(&spec.partition, &one.factors, weights),
        ));
    }
    let order = each_once(&snapshot, all);
    let places: BTreeMap<(JobId, bool), (usize, &Ordered)> = order
        .iter()
        .enumerate()
        .map(|(place, ordered)| (key(ordered.at), (place, ordered)))
        .collect();
    let mut rows: Vec<PriorityRow> = Vec::new();
    filter.each(View::new(state, now), sight, |row| {
        // A task of its own record may have the id of its array's first task: each has its line.
        let found = (JobId(row.id()), !matches!(row, Row::Job(_)));
        if let Some((place, ordered)) = places.get(&found).filter(|_| row.is_pending()) {
            let mut of_row = priority_row(&row, *place, ordered, weights);
            of_row.eligible = snapshot.pending[ordered.at].is_eligible(now);
            let mut parts = choices.remove(&found).unwrap_or_default();
            parts.sort_by_key(|(choice, _)| *choice);
            of_row.by_partition = parts.into_iter().map(|(_, part)| part).collect();
            rows.push(of_row);
        }
    });
    rows.sort_by_key(|row| row.position);
    rows
}

fn partition_row(
    partition: &str,
    factors: &Factors,
    weights: &PriorityWeights,
) -> PartitionPriorityRow {
    PartitionPriorityRow {
        partition: partition.to_owned(),
        priority: factors.priority,
        weighted: weighted_row(factors, weights),
        normalized: normalized_row(factors),
    }
}

fn priority_row(
    row: &Row,
    place: usize,
    ordered: &Ordered,
    weights: &PriorityWeights,
) -> PriorityRow {
    let spec = row.spec();
    PriorityRow {
        id: row.id(),
        shown_id: row.shown_id(),
        user: spec.user.name.clone(),
        account: spec.account.clone(),
        partition: spec.partition.clone(),
        qos: spec.qos.clone(),
        position: u32::try_from(place + 1).unwrap_or(u32::MAX),
        class: ordered.class.and_then(class_word).map(str::to_owned),
        priority: ordered.factors.priority,
        is_set: ordered.factors.set.is_some(),
        weighted: weighted_row(&ordered.factors, weights),
        normalized: normalized_row(&ordered.factors),
        eligible: false,
        by_partition: Vec::new(),
    }
}

fn weighted_row(factors: &Factors, weights: &PriorityWeights) -> FactorsRow {
    let weighted = factors.weighted(weights);
    FactorsRow {
        site: weighted.site as f64,
        age: weighted.age as f64,
        fair_share: weighted.fair_share as f64,
        size: weighted.size as f64,
        partition: weighted.partition as f64,
        qos: weighted.qos as f64,
        nice: weighted.nice,
    }
}

fn normalized_row(factors: &Factors) -> FactorsRow {
    let part = |ppm: u32| f64::from(ppm) / PPM as f64;
    FactorsRow {
        site: part(factors.site),
        age: part(factors.age),
        fair_share: part(factors.fair_share),
        size: part(factors.size),
        partition: part(factors.partition),
        qos: part(factors.qos),
        nice: i64::from(factors.nice),
    }
}

/// As the API shows a class.
pub(super) const fn class_word(class: RunClass) -> Option<&'static str> {
    match class {
        RunClass::Guaranteed => Some("guaranteed"),
        RunClass::Borrowed => Some("borrowed"),
        RunClass::Unknown => None,
    }
}

fn weights_row(weights: &PriorityWeights) -> PriorityWeightsRow {
    PriorityWeightsRow {
        site: weights.site,
        age: weights.age,
        fair_share: weights.fair_share,
        size: weights.size,
        partition: weights.partition,
        qos: weights.qos,
    }
}

const SHARE_KEYS: [&str; 3] = ["user", "account", "outlook"];

pub(super) async fn shares(
    caller: Caller,
    Shared(site): Shared<Site>,
    pairs: Pairs,
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
        let sight = Sight::of(&caller, &state);
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
    sight: &Sight,
    users: &[String],
    accounts: &[String],
    outlook: bool,
    now: Timestamp,
) -> Vec<ShareRow> {
    let snapshot = snapshot(state, now);
    let tree = FairTree::of(&snapshot);
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
    later: &gsched::fair_tree::Outlook,
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
