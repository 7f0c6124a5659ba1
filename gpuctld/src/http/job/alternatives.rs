//! What a job would get by each of the ranked kinds of GPUs that it names: whether it starts at once or ever, and the price.
//!
//! Asked of the real core and scheduler on copies, as a dry run is; prices are those of the TOML at this moment.

use gcore::ctl::{Actor, Command, Input, Reply, State, handle, snapshot};
use gmodel::gpu_request::GpuRequest;
use gmodel::{JobSpec, Timestamp};
use gpolicy::priority::gpus_asked;
use gsched::WorkBudget;
use gwire::api::AlternativeRow;

/// More are not tried one by one.
const MOST: usize = 8;

/// One row for each alternative of a request in its order; none where there is no choice and no price.
pub(crate) fn rows(
    state: &State,
    actor: &Actor,
    spec: &JobSpec,
    starts_now: bool,
    now: Timestamp,
) -> Vec<AlternativeRow> {
    let all = spec.request.gpus.iter().flat_map(|ask| &ask.alternatives);
    let several = all.clone().count() > 1;
    let rows = all.take(MOST).map(|alternative| {
        let mut alone = spec.clone();
        alone.request.gpus = Some(GpuRequest {
            alternatives: vec![alternative.clone()],
        });
        let price_per_hour = price_per_hour(state, &alone, now);
        let (starts_now, never) = match several {
            true => would_start(state, actor, alone, now)
                .map_or_else(|why| (false, Some(why)), |starts| (starts, None)),
            false => (starts_now, None),
        };
        AlternativeRow {
            gpus: alternative.to_string(),
            starts_now,
            never,
            price_per_hour,
        }
    });
    rows.filter(|row| several || row.price_per_hour.is_some())
        .collect()
}

/// `; h100:4 would wait (34.00 an hour), a100:8 would start at once (20.00 an hour)`; of what is refused alone, why.
pub(crate) fn in_words(rows: &[AlternativeRow]) -> String {
    let price = |row: &AlternativeRow| {
        row.price_per_hour
            .map(|price| format!("{price:.2} an hour"))
    };
    match rows {
        [] => String::new(),
        [only] => price(only)
            .map(|price| format!("; its GPUs cost {price}"))
            .unwrap_or_default(),
        several => {
            let words = several.iter().map(|row| {
                let when = if row.starts_now {
                    "would start at once"
                } else {
                    "would wait"
                };
                let price = price(row)
                    .map(|price| format!(" ({price})"))
                    .unwrap_or_default();
                match &row.never {
                    Some(why) => format!(
                        "{} can never start: {}",
                        row.gpus,
                        why.trim_end_matches('.')
                    ),
                    None => format!("{} {when}{price}", row.gpus),
                }
            });
            format!("; {}", words.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Of all its GPUs in the site's currency; `None` where any type will do or the type has no price.
fn price_per_hour(state: &State, spec: &JobSpec, now: Timestamp) -> Option<f64> {
    let (gpu_type, milli) = gpus_asked(&spec.request);
    let price = state.billing.prices(&state.config.scheduler.money);
    let price = price.price_at(gpu_type?, now)?;
    Some(milli as f64 / 1000.0 * price.micro_per_hour as f64 / 1e6)
}

/// # Errors
/// It would be refused: why.
fn would_start(
    state: &State,
    actor: &Actor,
    spec: JobSpec,
    now: Timestamp,
) -> Result<bool, String> {
    let mut copy = state.clone();
    let command = Command::Submit {
        spec: Box::new(spec),
        client_key: None,
    };
    let reply = handle(
        &mut copy,
        &mut Vec::new(),
        Input::Command {
            actor: actor.clone(),
            command,
        },
        now,
    );
    let Reply::Submitted { id, .. } = reply.map_err(|refusal| refusal.text)? else {
        return Ok(false);
    };
    let plan = gsched::plan(&snapshot(&copy, now), WorkBudget::default());
    let tasks = copy
        .arrays
        .get(id)
        .map_or(1, |array| u64::from(array.len()));
    Ok(plan
        .starts
        .iter()
        .any(|start| (id.0..id.0 + tasks).contains(&start.job.0)))
}
