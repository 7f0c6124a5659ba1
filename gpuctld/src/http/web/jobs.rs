//! The pages of jobs in tables. Each asks for as many rows as it shows, however long the queue is.

use super::page::{Visitor, show_time};
use crate::core_thread::now;
use crate::http::inside::{Inside, InsideError};
use axum::extract::Query;
use axum::response::Response;
use gmodel::JobState;
use gweb::{Group, JobSection, JobsPage, Place, jobs_page};
use gwire::api::{JobRow, StartRow};
use gwire::client::path_with_query;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rows of a table that is one of several, and of one that stands alone.
const FEW_ROWS: u64 = 25;
const ROWS: u64 = 100;
/// What a table shows of a job.
const COLUMNS: &str = "shown_id,name,user,partition,state,reason,reason_text,pull,position,nodelist,nodes,gpus,gpu_count,time_limit_secs,\
     elapsed_secs,submit_time,eligible_time,end_time,exit_code,idle";
/// With more jobs in the queue than this a forecast takes longer than a list may.
const MOST_FOR_STARTS: u64 = 500;

/// What narrows a list. What is not known is left out, as for any page.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Narrowing {
    user: String,
    show: String,
    partition: String,
    node: String,
    account: String,
    /// The first row that is shown.
    from: String,
}

/// The visitor's own jobs.
pub(super) async fn overview(visitor: Visitor) -> Response {
    let own = Narrowing {
        user: visitor.user.clone(),
        ..Narrowing::default()
    };
    show(&visitor, &own).await
}

pub(super) async fn list(visitor: Visitor, Query(narrowing): Query<Narrowing>) -> Response {
    show(&visitor, &narrowing).await
}

async fn show(visitor: &Visitor, narrowing: &Narrowing) -> Response {
    let only = Group::parse(&narrowing.show);
    let offset = narrowing.from.parse().unwrap_or(0);
    let mut sections = Vec::new();
    for group in Group::ALL {
        let part = match only {
            Some(only) if only != group => continue,
            Some(_) => ListPart {
                offset,
                limit: ROWS,
            },
            None => ListPart {
                offset: 0,
                limit: FEW_ROWS,
            },
        };
        match section(visitor.inside(), narrowing, group, part).await {
            Ok(section) => sections.push(section),
            Err(error) => return visitor.refused(&error),
        }
    }
    let starts = starts(visitor.inside(), &sections).await;
    let page = JobsPage {
        user: narrowing.user.trim(),
        me: &visitor.user,
        partition: narrowing.partition.trim(),
        node: narrowing.node.trim(),
        account: narrowing.account.trim(),
        only,
        sections,
        starts,
        now: now(),
        show_time: &show_time,
    };
    visitor.ok("Jobs", Place::Jobs, &jobs_page(&page))
}

/// So many rows behind so many others.
#[derive(Clone, Copy)]
struct ListPart {
    offset: u64,
    limit: u64,
}

#[derive(Deserialize)]
pub(super) struct JobPart {
    pub(super) jobs: Vec<JobRow>,
    total: u64,
}

/// `GET /v1/jobs` for one part of a group.
#[derive(Serialize)]
struct PartQuery<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    user: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    partition: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    nodelist: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    account: &'a str,
    state: String,
    columns: &'a str,
    offset: u64,
    limit: u64,
    /// What is over is looked for by its time.
    newest: bool,
}

async fn section(
    inside: &Inside,
    narrowing: &Narrowing,
    group: Group,
    part: ListPart,
) -> Result<JobSection, InsideError> {
    let query = PartQuery {
        user: narrowing.user.trim(),
        partition: narrowing.partition.trim(),
        nodelist: narrowing.node.trim(),
        account: narrowing.account.trim(),
        state: group.states(),
        columns: COLUMNS,
        offset: part.offset,
        limit: part.limit,
        newest: group == Group::Ended,
    };
    let ListPart { offset, limit } = part;
    let part: JobPart = inside.get(&path_with_query("/v1/jobs", &query)).await?;
    Ok(JobSection {
        group,
        jobs: part.jobs,
        total: part.total,
        offset,
        limit,
    })
}

#[derive(Deserialize)]
struct Starts {
    jobs: Vec<StartRow>,
}

/// When those that wait are expected to start; nothing where that would take long.
async fn starts(inside: &Inside, sections: &[JobSection]) -> BTreeMap<String, StartRow> {
    let waiting = sections
        .iter()
        .filter(|section| section.group == Group::Waiting);
    let ids: Vec<&str> = waiting
        .flat_map(|section| &section.jobs)
        .filter(|job| job.state == JobState::Pending)
        .map(|job| job.shown_id.as_str())
        .collect();
    if ids.is_empty() || !is_short(inside).await {
        return BTreeMap::new();
    }
    let query = [("job", ids.join(","))];
    let path = path_with_query("/v1/starts", &BTreeMap::from(query));
    let asked = inside.get::<Starts>(&path).await;
    // A list without forecasts is better than none.
    let rows = asked.map_or_else(|_| Vec::new(), |starts| starts.jobs);
    rows.into_iter()
        .map(|row| (row.shown_id.clone(), row))
        .collect()
}

async fn is_short(inside: &Inside) -> bool {
    let path = "/v1/jobs?state=PENDING&columns=id&limit=0";
    let part = inside.get::<JobPart>(path).await;
    part.is_ok_and(|part| part.total <= MOST_FOR_STARTS)
}
