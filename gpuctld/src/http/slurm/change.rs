//! What is done to jobs and nodes that there are: cancelling, signals, updates, draining.

use super::error::SlurmError;
use super::question::Query;
use super::request::{Parts, RestRequest};
use axum::http::StatusCode;
use gmodel::RefusalKind;
use gmodel::signal::parse_signal;
use gwire::api::{
    CancelRequest, ChangeReply, EachResult, ErrorBody, JobQuery, NodeRequest, OneResult,
    TargetsRequest, UpdateRequest,
};
use gwire::client::escape;
use serde_json::{Map, Value, json};

/// SIGKILL, which ends a job whatever it does.
const KILL: u8 = 9;

/// `DELETE job/{job_id}?signal=&flags=`.
pub(super) async fn cancel(
    asked: &RestRequest,
    id: &str,
    query: &mut Query,
) -> Result<Parts, SlurmError> {
    let (signal, flags) = (query.take("signal"), query.take("flags"));
    let request = CancelRequest {
        jobs: vec![id.to_owned()],
        ..cancel_request(&signal, flags.split(','))?
    };
    let done: EachResult = asked.v1.post("/v1/jobs/cancel", &request).await?;
    match done.results.iter().find(|result| !result.ok) {
        Some(refused) if refused.about == RefusalKind::JobOver => {
            query.notes.push(refused.error.clone());
            Ok(vec![("status", statuses(&done.results))])
        }
        Some(refused) => Err(refusal(refused)),
        None => Ok(vec![("status", statuses(&done.results))]),
    }
}

/// Without a signal, or with KILL, the job is cancelled; else it gets the signal.
fn cancel_request<'f>(
    signal: &str,
    flags: impl Iterator<Item = &'f str>,
) -> Result<CancelRequest, SlurmError> {
    let mut request = CancelRequest::default();
    if !signal.is_empty() {
        let number = parse_signal(signal)
            .map_err(|why| SlurmError::unreadable(format!("signal: {why}")).of("signal"))?;
        request.signal = Some(number).filter(|number| *number != KILL);
    }
    for flag in flags.filter(|flag| !flag.is_empty()) {
        match flag {
            "BATCH_JOB" => request.batch_only = request.signal.is_some(),
            "FULL_JOB" => request.full = request.signal.is_some(),
            "VERBOSE" | "ARRAY_TASK" | "HURRY" | "NO_SIBLING_JOBS" => {}
            other => {
                let other: String = other.chars().take(40).collect();
                let text = format!("flags: {other:?} is not done here; BATCH_JOB and FULL_JOB are");
                return Err(SlurmError::not_done(text).of("flags"));
            }
        }
    }
    Ok(request)
}

/// `DELETE jobs/`: by ids, or all that a filter means.
pub(super) async fn cancel_several(
    asked: &RestRequest,
    query: &mut Query,
) -> Result<Parts, SlurmError> {
    let body = asked.json()?;
    let fields = body.as_object().ok_or_else(|| {
        SlurmError::unreadable("the body has to be an object that says which jobs").of("body")
    })?;
    let text = |key: &str| text_of(fields.get(key));
    let list = |key: &str| match fields.get(key) {
        Some(Value::Array(list)) => list.iter().map(|one| text_of(Some(one))).collect(),
        other => Vec::from_iter(Some(text_of(other)).filter(|text| !text.is_empty())),
    };
    let filter = JobQuery {
        user: text("user_name"),
        account: text("account"),
        partition: text("partition"),
        qos: text("qos"),
        name: text("job_name"),
        reservation: text("reservation"),
        state: list("job_state").join(","),
        nodelist: text("nodes"),
        ..JobQuery::default()
    };
    for key in ["user_id", "wckey"] {
        if !text(key).is_empty() {
            let text =
                format!("{key} chooses no jobs here. Name user_name, account, partition or jobs");
            return Err(SlurmError::not_done(text).of(key));
        }
    }
    let flags = list("flags");
    let request = CancelRequest {
        jobs: list("jobs"),
        filter: (filter != JobQuery::default()).then_some(filter),
        ..cancel_request(&text("signal"), flags.iter().map(String::as_str))?
    };
    let done: EachResult = asked.v1.post("/v1/jobs/cancel", &request).await?;
    let refused = done.results.iter().filter(|result| !result.ok);
    query
        .notes
        .extend(refused.map(|result| result.error.clone()));
    Ok(vec![("status", statuses(&done.results))])
}

fn text_of(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(fields)) => match fields.get("set") {
            Some(Value::Bool(true)) => text_of(fields.get("number")),
            _ => String::new(),
        },
        Some(other) => other.to_string(),
    }
}

fn refusal(result: &OneResult) -> SlurmError {
    let body = ErrorBody {
        error: result.error.clone(),
        about: result.about,
        ..ErrorBody::default()
    };
    SlurmError::from_v1(StatusCode::CONFLICT, body).of(result.job.clone())
}

fn statuses(results: &[OneResult]) -> Value {
    let one = |result: &OneResult| {
        let (code, error) = match result.ok {
            true => (0, "No error".to_owned()),
            false => {
                let refused = refusal(result);
                (refused.number, refused.error)
            }
        };
        let number = result
            .job
            .split(['_', '+'])
            .next()
            .and_then(|id| id.parse().ok());
        json!({"error": {"string": error, "code": code, "message": result.error}, "step_id": result.job,
            "job_id": gslurm_json::document::number_value(number), "federation": {"sibling": ""}})
    };
    results.iter().map(one).collect()
}

/// Keys of Slurm's description with ours of an update, where the value is the same.
const CHANGES: [(&str, &str); 20] = [
    ("account", "account"),
    ("comment", "comment"),
    ("constraints", "constraint"),
    ("cpus_per_task", "cpus_per_task"),
    ("dependency", "dependency"),
    ("excluded_nodes", "exclude"),
    ("licenses", "licences"),
    ("name", "name"),
    ("nice", "nice"),
    ("nodes", "nodes"),
    ("partition", "partition"),
    ("priority", "priority"),
    ("qos", "qos"),
    ("requeue", "requeue"),
    ("required_nodes", "nodelist"),
    ("reservation", "reservation"),
    ("tasks", "ntasks"),
    ("tasks_per_node", "ntasks_per_node"),
    ("time_limit", "time_limit_secs"),
    ("time_minimum", "time_min_secs"),
];

/// `POST job/{job_id}`: changes what is named.
pub(super) async fn update(
    asked: &RestRequest,
    id: &str,
    query: &mut Query,
) -> Result<Parts, SlurmError> {
    let body = asked.json()?;
    let fields = body.as_object().ok_or_else(|| {
        SlurmError::unreadable("the body has to be an object with what changes").of("body")
    })?;
    let mut request = UpdateRequest {
        job: id.to_owned(),
        ..UpdateRequest::default()
    };
    for (key, value) in fields {
        if matches!(key.as_str(), "hold" | "job_id") || value.is_null() {
            continue;
        }
        let (ours, value) = change(key, value)?;
        request.change.insert(ours, value);
    }
    let hold = fields.get("hold").and_then(Value::as_bool);
    // With a hold alone there is nothing else to change.
    if !request.change.is_empty() || hold.is_none() {
        let reply: ChangeReply = asked.v1.post("/v1/jobs/update", &request).await?;
        query.notes.extend(reply.notes);
    }
    if let Some(hold) = hold {
        let path = if hold {
            "/v1/jobs/hold"
        } else {
            "/v1/jobs/release"
        };
        let request = TargetsRequest {
            jobs: vec![id.to_owned()],
            ..TargetsRequest::default()
        };
        let done: EachResult = asked.v1.post(path, &request).await?;
        if let Some(refused) = done.results.iter().find(|result| !result.ok) {
            return Err(refusal(refused));
        }
    }
    let number: Option<u64> = id.parse().ok();
    let done = json!({"job_id": number.unwrap_or(0), "step_id": id, "error": "No error", "error_code": 0, "why": ""});
    Ok(vec![("results", json!([done]))])
}

/// Our key with the value in its form.
fn change(key: &str, value: &Value) -> Result<(String, Value), SlurmError> {
    let Some((_, ours)) = CHANGES.iter().find(|(known, _)| *known == key) else {
        let known: Vec<&str> = CHANGES.iter().map(|(known, _)| *known).collect();
        let key: String = key.chars().take(80).collect();
        let text = format!(
            "{key:?} of a job cannot be changed so. Keys: hold, {}. gadm job update knows more",
            known.join(", ")
        );
        return Err(SlurmError::not_done(text).of(key));
    };
    let text = match value {
        Value::Array(list) => list
            .iter()
            .map(|one| text_of(Some(one)))
            .collect::<Vec<_>>()
            .join(","),
        other => text_of(Some(other)),
    };
    let is_infinite = value["infinite"] == json!(true);
    let number = || text.parse::<i64>().ok();
    let value = match key {
        "time_limit" if is_infinite => Value::Null,
        "time_limit" | "time_minimum" => json!(number().map(|minutes| minutes.saturating_mul(60))),
        "nice" | "priority" => json!(number()),
        "requeue" => value.clone(),
        _ => json!(text),
    };
    if value.is_null() && !is_infinite {
        let text = format!("{key}: a whole number is wanted");
        return Err(SlurmError::unreadable(text).of(key));
    }
    Ok(((*ours).to_owned(), value))
}

/// `POST node/{node_name}` with a state and a reason.
pub(super) async fn node(asked: &RestRequest, name: &str) -> Result<Parts, SlurmError> {
    let body = asked.json()?;
    let none = Map::new();
    let fields = body.as_object().unwrap_or(&none);
    let states: Vec<String> = match &body["state"] {
        Value::Array(list) => list.iter().map(|one| text_of(Some(one))).collect(),
        other => vec![text_of(Some(other))],
    };
    let other = fields.iter().find(|(key, value)| {
        !["state", "reason", "name", "reason_uid"].contains(&key.as_str()) && !value.is_null()
    });
    let act = match (other, &states[..]) {
        (Some((key, _)), _) => {
            let key: String = key.chars().take(80).collect();
            let text = format!(
                "{key:?} of a node is not changed so; state and reason are. A node's features and resources are in its own configuration"
            );
            return Err(SlurmError::not_done(text).of(key));
        }
        (_, [state]) => match state.to_ascii_uppercase().as_str() {
            "DRAIN" => "drain",
            "RESUME" | "UNDRAIN" | "IDLE" => "resume",
            "DOWN" => "down",
            _ => "",
        },
        _ => "",
    };
    if act.is_empty() {
        let text = format!("state {states:?} is not set so. DRAIN, RESUME and DOWN are");
        return Err(SlurmError::about(RefusalKind::NodeState, text).of("state"));
    }
    let request = NodeRequest {
        reason: text_of(fields.get("reason")),
        ..NodeRequest::default()
    };
    let path = format!("/v1/nodes/{}/{act}", escape(name));
    let _: Value = asked.v1.post(&path, &request).await?;
    Ok(Parts::new())
}

/// `GET reconfigure/`, which is a change all the same.
pub(super) async fn reconfigure(asked: &RestRequest) -> Result<Parts, SlurmError> {
    let _: Value = asked.v1.post("/v1/reload", &json!({})).await?;
    Ok(Parts::new())
}
