//! `POST job/submit`: a description becomes options of sbatch, and these a submission to `/v1`.

use super::description::{Description, read};
use super::error::SlurmError;
use super::question::Query;
use super::request::{Parts, RestRequest};
use gmodel::RefusalKind;
use gsub::for_another::{RemoteWork, request};
use gwire::api::SubmitReply;
use serde_json::{Value, json};

/// Keys of the body.
const KEYS: [&str; 3] = ["script", "job", "jobs"];

/// `{"script": ..., "job": {...}}`, or `"jobs": [...]` for the components of a job of unlike parts.
pub(super) async fn submit(asked: &RestRequest, query: &mut Query) -> Result<Parts, SlurmError> {
    let body = asked.json()?;
    let fields = body.as_object().ok_or_else(|| {
        SlurmError::unreadable("the body has to be an object with script and job").of("body")
    })?;
    for key in fields.keys().filter(|key| !KEYS.contains(&key.as_str())) {
        let key: String = key.chars().take(80).collect();
        query.notes.push(format!(
            "{key:?} is no key of a submission, and changes nothing"
        ));
    }
    let (mut parts, given) = given(&body)?;
    query.notes.extend(
        parts
            .iter_mut()
            .flat_map(|part| std::mem::take(&mut part.notes)),
    );
    let words: Vec<Vec<String>> = parts.into_iter().map(|part| part.words).collect();
    let (submission, notes) = request(&words, &given)
        .map_err(|failure| SlurmError::about(RefusalKind::Other, failure.text).of("job"))?;
    query.notes.extend(notes);
    let reply: SubmitReply = asked.v1.post("/v1/jobs", &submission).await?;
    query.notes.extend(reply.notes);
    let id = reply.id;
    let result = json!({"job_id": id, "step_id": "batch", "error_code": 0, "error": "No error", "job_submit_user_msg": ""});
    Ok(vec![
        ("result", result),
        ("job_id", json!(id)),
        ("step_id", json!("batch")),
        ("job_submit_user_msg", json!("")),
    ])
}

/// The components, and what the first says for all.
fn given(body: &Value) -> Result<(Vec<Description>, RemoteWork), SlurmError> {
    let mut parts = match (&body["jobs"], &body["job"]) {
        (Value::Array(list), Value::Null) if !list.is_empty() => list
            .iter()
            .enumerate()
            .map(|(at, part)| read(part, &format!("jobs[{at}]")))
            .collect::<Result<Vec<_>, _>>()?,
        (Value::Null, Value::Null) | (Value::Array(_), _) => {
            let text =
                "either job, or jobs with at least one component, describes what is submitted";
            return Err(SlurmError::unreadable(text).of("job"));
        }
        (_, job) => vec![read(job, "job")?],
    };
    let first = &mut parts[0];
    let script = match body["script"].as_str() {
        Some(script) if !script.is_empty() => script.to_owned(),
        _ => std::mem::take(&mut first.script),
    };
    if script.is_empty() {
        let text = "there is no script. It stands beside job, or in it";
        return Err(SlurmError::about(RefusalKind::Other, text).of("script"));
    }
    if !first.work_dir.starts_with('/') {
        let text = format!(
            "current_working_directory is {:?}. Name the directory from / on: the request comes from none",
            first.work_dir.chars().take(80).collect::<String>()
        );
        return Err(SlurmError::unreadable(text).of("job/current_working_directory"));
    }
    let variables = std::mem::take(&mut first.variables);
    let host = nix::unistd::gethostname().unwrap_or_default();
    let given = RemoteWork {
        script,
        argv: std::mem::take(&mut first.argv),
        variables: variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
        work_dir: first.work_dir.clone(),
        host: host.to_string_lossy().into_owned(),
        now: crate::core_thread::now(),
    };
    Ok((parts, given))
}
