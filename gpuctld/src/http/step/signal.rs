//! Steps among the names of `POST /v1/jobs/cancel`: `17.0`. Each node of the step is asked over its connection, and answers when the
//! step's supervisor has obeyed. Nothing of it is stored: the end of the step comes from its grun, as any.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::control::{confine, own_id};
use crate::http::job::name::{job_name, targets};
use crate::http::permission::{Caller, must_own};
use crate::store::reader::StoredStep;
use gcore::ctl::{Run, Target};
use gmodel::{NodeId, RefusalKind, RunId};
use gwire::api::{CancelRequest, OneResult};
use tokio::task::JoinSet;

/// Steps in one request.
const MAX_STEPS: usize = 1000;

/// Whether a name in a request means a step.
pub(crate) fn names_step(name: &str) -> bool {
    name.contains('.')
}

/// # Errors
/// What goes with jobs only, or too many steps.
pub(crate) fn check(request: &CancelRequest, steps: &[String]) -> Result<(), ApiError> {
    if steps.len() > MAX_STEPS {
        return Err(ApiError::limit(format!(
            "{} steps are named; {MAX_STEPS} are the most of one request",
            steps.len()
        )));
    }
    match steps.first() {
        Some(step) if request.filter.is_some() => Err(ApiError::invalid(format!(
            "{step} is a step, and filters choose jobs: name the steps alone"
        ))),
        Some(step) if request.batch_only || request.full => Err(ApiError::invalid(format!(
            "{step} is a step and has no script: leave out -b and -f"
        ))),
        _ => Ok(()),
    }
}

/// Sends each step the signal of the request, or ends it.
pub(crate) async fn each(
    site: &ApiContext,
    caller: &Caller,
    steps: &[String],
    signal: Option<u8>,
) -> Vec<OneResult> {
    let mut results = Vec::new();
    for name in steps {
        let done = one(site, caller, name, signal).await;
        results.push(OneResult {
            job: name.clone(),
            ok: done.is_ok(),
            ..done.err().map(result_of).unwrap_or_default()
        });
    }
    results
}

async fn one(
    site: &ApiContext,
    caller: &Caller,
    name: &str,
    signal: Option<u8>,
) -> Result<(), ApiError> {
    let (job, number) = read(name)?;
    let [target @ (Target::Job(_) | Target::Task { .. })] = &targets(&[job_name(job)?])?[..] else {
        return Err(ApiError::invalid(format!(
            "{job} names several tasks; a step is of one job"
        )));
    };
    confine(site, caller, std::slice::from_ref(target)).await?;
    let state = site.core.view().await;
    let found = own_id(&state, target).and_then(|id| state.jobs.get(id));
    let found = found.ok_or_else(|| ApiError::not_found(format!("job {job} is not running")))?;
    must_own(caller, &found.spec, job, "end of a step")?;
    let run = found.live_run().and_then(|id| state.runs.get(id)).cloned();
    drop(state);
    let run = run.ok_or_else(|| over(format!("job {job} is not running")))?;
    let stored = site.core.reader().steps(vec![run.id.job]).await?;
    let step = stored
        .iter()
        .flatten()
        .find(|step| step.attempt == run.id.attempt && step.number == number);
    let step =
        step.ok_or_else(|| ApiError::not_found(format!("job {job} has no step {number}")))?;
    if step.ended.is_some() {
        return Err(over(format!("step {name} is over")));
    }
    tell(site, &run, step, signal).await
}

/// Every node of the step is told, whatever the others answer.
async fn tell(
    site: &ApiContext,
    run: &Run,
    step: &StoredStep,
    signal: Option<u8>,
) -> Result<(), ApiError> {
    let (id, number): (RunId, u32) = (run.id, step.number);
    let mut answers = JoinSet::new();
    for node in nodes_of(run, step) {
        let app = site.app.clone();
        answers.spawn(async move { (node, app.links.signal_step(node, id, number, signal).await) });
    }
    let mut failed = Vec::new();
    while let Some(Ok((node, answer))) = answers.join_next().await {
        failed.extend(answer.err().map(|why| (node, why)));
    }
    if failed.is_empty() {
        return Ok(());
    }
    let state = site.core.view().await;
    let name = |node: NodeId| state.nodes.get(node).map_or("?", |node| &node.name);
    let mut words: Vec<String> = failed
        .iter()
        .map(|(node, why)| format!("{}: {why}", name(*node)))
        .collect();
    words.sort_unstable();
    Err(ApiError::conflict(format!(
        "step {number}: {}",
        words.join("; ")
    )))
}

/// `17.0`, `98_5.2`
fn read(name: &str) -> Result<(&str, u32), ApiError> {
    let wrong = || {
        let shown: String = name.chars().take(40).collect();
        ApiError::invalid(format!("{shown:?} names no step. Write 17.0 or 98_5.0"))
    };
    let (job, step) = name.split_once('.').ok_or_else(wrong)?;
    if step == "batch" {
        return Err(ApiError::invalid(format!(
            "{name} is the script of job {job}: gdel -b -s TERM {job} sends it a signal"
        )));
    }
    let is_number = step.bytes().all(|byte| byte.is_ascii_digit());
    let number = step.parse().ok().filter(|_| is_number);
    Ok((job, number.ok_or_else(wrong)?))
}

/// The nodes of a step: by place, or the first ones of its run.
fn nodes_of(run: &Run, step: &StoredStep) -> Vec<NodeId> {
    let all = run.allocation.iter().map(|share| share.node);
    match (step.places.is_empty(), step.nodes) {
        (true, 0) => all.collect(),
        (true, first) => all.take(first as usize).collect(),
        (false, _) => {
            let at = |place: &u32| run.allocation.get(*place as usize);
            let shares = step.places.iter().filter_map(at);
            shares.map(|share| share.node).collect()
        }
    }
}

fn over(text: String) -> ApiError {
    ApiError {
        about: RefusalKind::JobOver,
        ..ApiError::conflict(text)
    }
}

fn result_of(error: ApiError) -> OneResult {
    OneResult {
        code: error.code.to_owned(),
        error: error.text,
        about: error.about,
        ..OneResult::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_named_by_job_and_number() {
        let name = |text: &str| read(text).map(|(job, step)| (job.to_owned(), step));
        assert_eq!(name("17.0").unwrap(), ("17".to_owned(), 0));
        assert_eq!(name("98_5.12").unwrap(), ("98_5".to_owned(), 12));
        for wrong in ["17.", "17.x", "17.-1", "17.+1", "17.4294967296", "17.0.0"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
        let script = name("17.batch").unwrap_err().text;
        assert!(script.contains("gdel -b -s TERM 17"), "{script}");
    }
}
