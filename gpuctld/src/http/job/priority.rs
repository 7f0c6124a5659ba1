//! `GET /v1/priorities`: the order of the queue, with its arithmetic.
//!
//! Everything is computed by gsched from a picture of the state, as the planner would; nothing is kept.

use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::filter::{JobFilter, job_query};
use crate::http::job::rank::class_word;
use crate::http::job::row::{Row, View};
use crate::http::permission::{Caller, Visibility};
use crate::http::query::QueryPairs;
use axum::Json;
use axum::extract::State as Shared;
use gcore::ctl::{State, snapshot};
use gmodel::policy::PriorityWeights;
use gmodel::{JobId, JobSpec, Timestamp};
use gpolicy::fair_tree::PPM;
use gpolicy::priority::Factors;
use gsched::ledger::Ledger;
use gsched::queue_order::{OrderedJob, each_once, in_order};
use gwire::api::{FactorsRow, PartitionPriorityRow, PriorityRow, PriorityWeightsRow, SCHEMA};
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(crate) async fn priorities(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<Value>, ApiError> {
    let query = job_query(pairs)?;
    let filter = JobFilter::new(&query)?;
    let state = site.core.view().await;
    let weights = weights_row(&state.config.scheduler.priority);
    let task = tokio::task::spawn_blocking(move || {
        priority_rows(&state, &Visibility::of(&caller, &state), &filter, now())
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
    sight: &Visibility,
    filter: &JobFilter,
    now: Timestamp,
) -> Vec<PriorityRow> {
    let snapshot = snapshot(state, now);
    let ledger = Ledger::new(&snapshot);
    let all = in_order(&snapshot, &ledger);
    let key = |at: usize| {
        (
            snapshot.pending[at].id,
            snapshot.pending[at].particulars.positions.is_some(),
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
    let places: BTreeMap<(JobId, bool), (usize, &OrderedJob)> = order
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
    ordered: &OrderedJob,
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
