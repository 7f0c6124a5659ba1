//! `GET /v1/idle`: which runs the idle policies warn and end, or another policy would, now and over the last week; and the
//! GPU-hours that would have been had back. Asks the same arithmetic as the core (`gmodel::idle`); never acts.

use crate::config::idle_sense;
use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::permission::{Caller, Visibility};
use crate::http::query::{QueryPairs, words};
use crate::store::reader::IdleRun;
use axum::Json;
use axum::extract::State as Shared;
use gcore::ctl::{Run, State, idle_policy_of, idle_spells};
use gmodel::idle::{IdleAction, IdlePolicy, IdleSpell};
use gmodel::{Instant, JobSpec, Timestamp};
use gwire::api::{IdleReportAnswer, IdleRunRow, SCHEMA};
use std::ops::Range;

const KEYS: [&str; 10] = [
    "from",
    "to",
    "user",
    "account",
    "partition",
    "qos",
    "warn_after_secs",
    "act_after_secs",
    "grace_secs",
    "gpus_percent",
];
const WEEK_SECS: i64 = 7 * 86_400;

pub(crate) async fn report(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<IdleReportAnswer>, ApiError> {
    let pairs = pairs.only(&KEYS)?;
    let now = now();
    let to = pairs.instant("to")?.unwrap_or(now);
    let from = pairs.instant("from")?.unwrap_or(to.plus_secs(-WEEK_SECS));
    let asked = asked_policy(&pairs)?;
    let state = site.core.view().await;
    let sight = Visibility::of(&caller, &state);
    let wanted = |user: &str, account: &str, partition: &str, qos: &str| {
        let of = [
            ("user", user),
            ("account", account),
            ("partition", partition),
            ("qos", qos),
        ];
        let is_asked = |(key, value): (&str, &str)| {
            pairs.text(key).is_empty() || words(pairs.text(key)).iter().any(|word| word == value)
        };
        of.into_iter().all(is_asked) && sight.sees_named(user, account)
    };
    let mut runs: Vec<IdleRunRow> = Vec::new();
    if to >= now {
        runs.extend(state.runs.values().filter_map(|run| {
            let spec = &state.jobs.get(run.id.job)?.spec;
            wanted(&spec.user.name, &spec.account, &spec.partition, &spec.qos)
                .then(|| running(&state, run, asked.as_ref(), now))?
        }));
    }
    let past = site.core.reader().idle_runs(from, to).await?;
    let past = past
        .iter()
        .filter(|run| wanted(&run.user, &run.account, &run.partition, &run.qos));
    runs.extend(past.filter_map(|run| over(&state, run, asked.as_ref())));
    let ended = runs.iter().filter(|run| run.ended_secs.is_some()).count() as u64;
    let gpu_hours_back = rounded(runs.iter().map(|run| run.gpu_hours_back).sum());
    Ok(Json(IdleReportAnswer {
        schema: SCHEMA,
        from: Some(Instant(from)),
        to: Some(Instant(to)),
        policy: asked,
        warned: runs.len() as u64,
        runs,
        ended,
        gpu_hours_back,
    }))
}

/// The policy of the question; what it leaves open is as usual.
fn asked_policy(pairs: &QueryPairs) -> Result<Option<IdlePolicy>, ApiError> {
    let keys = &KEYS[6..];
    if keys.iter().all(|key| pairs.text(key).is_empty()) {
        return Ok(None);
    }
    let usual = IdlePolicy::default();
    let warn_after_secs = pairs.number("warn_after_secs")?;
    let act_after_secs = pairs.number("act_after_secs")?;
    let warn = warn_after_secs.unwrap_or_else(|| {
        usual
            .warn_after_secs
            .min(act_after_secs.unwrap_or(u32::MAX) / 2)
    });
    let policy = IdlePolicy {
        action: IdleAction::Cancel,
        warn_after_secs: warn,
        act_after_secs: act_after_secs
            .unwrap_or_else(|| usual.act_after_secs.max(warn.saturating_mul(2))),
        grace_secs: pairs.number("grace_secs")?.unwrap_or(usual.grace_secs),
        gpus_percent: pairs.number("gpus_percent")?.unwrap_or(usual.gpus_percent),
        max_requeues: usual.max_requeues,
    };
    idle_sense(&policy)
        .map_err(|(_, wrong, hint)| ApiError::invalid(format!("{wrong}: {hint}")))?;
    Ok(Some(policy))
}

/// The policy for runs of a QOS in a partition. A QOS that is exempt stays so.
fn policy_for(
    state: &State,
    qos: &str,
    partition: &str,
    asked: Option<&IdlePolicy>,
) -> Option<IdlePolicy> {
    let of_qos = state.policy.qos.get(qos).and_then(|qos| qos.idle);
    let in_force = of_qos.or_else(|| state.config.partition(partition)?.idle);
    let exempt = of_qos.is_some_and(|policy| policy.action == IdleAction::Off);
    let policy = asked
        .copied()
        .or(in_force)
        .filter(|policy| !exempt && policy.action != IdleAction::Off)?;
    // What becomes of a run is its own policy's word, where there is one.
    Some(IdlePolicy {
        action: in_force.map_or(policy.action, |own| own.action),
        ..policy
    })
}

fn running(
    state: &State,
    run: &Run,
    asked: Option<&IdlePolicy>,
    now: Timestamp,
) -> Option<IdleRunRow> {
    let job = state
        .jobs
        .get(run.id.job)
        .filter(|job| !job.spec.idle_exempt && run.outcome.is_none())?;
    let spec: &JobSpec = &job.spec;
    let policy = match asked {
        Some(_) => policy_for(state, &spec.qos, &spec.partition, asked)?,
        None => *idle_policy_of(state, job)?,
    };
    let started = run.started?;
    let milli = run.allocation.iter().map(|share| share.gpus.milli()).sum();
    let row = IdleRunRow {
        job: job.shown_id(),
        attempt: run.id.attempt,
        user: spec.user.name.clone(),
        account: spec.account.clone(),
        partition: spec.partition.clone(),
        qos: spec.qos.clone(),
        running: true,
        ..IdleRunRow::default()
    };
    judged(row, &policy, &idle_spells(state, run), started..now, milli)
}

fn over(state: &State, run: &IdleRun, asked: Option<&IdlePolicy>) -> Option<IdleRunRow> {
    let policy = policy_for(state, &run.qos, &run.partition, asked)?;
    let row = IdleRunRow {
        job: run.run.job.to_string(),
        attempt: run.run.attempt,
        user: run.user.clone(),
        account: run.account.clone(),
        partition: run.partition.clone(),
        qos: run.qos.clone(),
        end_time: Some(Instant(run.ended)),
        ..IdleRunRow::default()
    };
    judged(
        row,
        &policy,
        &run.spells,
        run.started..run.ended,
        run.gpus_milli,
    )
}

/// The row with what the policy makes of it; `None` for a run that it leaves alone.
fn judged(
    row: IdleRunRow,
    policy: &IdlePolicy,
    spells: &[IdleSpell],
    ran: Range<Timestamp>,
    milli: u64,
) -> Option<IdleRunRow> {
    let verdict = policy.judge(spells);
    let gpus = milli as f64 / 1000.0;
    let ran_secs = ran.end.since_millis(ran.start).max(0) as f64 / 1000.0;
    let back_secs = verdict
        .ended_secs
        .map_or(0.0, |at| (ran_secs - f64::from(at)).max(0.0));
    let of_level = spells
        .iter()
        .filter(|spell| spell.percent >= policy.gpus_percent);
    Some(IdleRunRow {
        gpus,
        start_time: Some(Instant(ran.start)),
        idle_secs: of_level.map(|spell| spell.secs).max().unwrap_or(0),
        warned_secs: verdict.warned_secs?,
        ended_secs: verdict.ended_secs,
        gpu_hours_back: rounded(gpus * back_secs / 3600.0),
        action: policy.action.word().to_owned(),
        ..row
    })
}

/// To thousandths; the sum of nothing is 0.0 and not -0.0.
fn rounded(hours: f64) -> f64 {
    (hours * 1000.0).round() / 1000.0 + 0.0
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_given_back_is_shown_without_a_sign() {
        assert_eq!(
            format!("{:.1}", super::rounded(std::iter::empty::<f64>().sum())),
            "0.0"
        );
    }
}
