//! What a job would get by each of the ranked kinds of GPUs that it names: whether it starts at once or ever, and the price.
//!
//! Asked of the real core and scheduler on copies, as a dry run is; prices are those of the TOML at this moment.

use gcore::ctl::{Actor, Command, Input, Reply, State, handle, snapshot};
use gmodel::gpu_request::{GpuAmount, GpuRequest};
use gmodel::{JobSpec, Timestamp};
use gpolicy::bill::{BillBook, BilledKind, BilledTime, HeldResource, SHARE, Tariff, amount_micro};
use gpolicy::priority::gpus_asked;
use gsched::WorkBudget;
use gwire::api::AlternativeRow;

const MILLIS_PER_HOUR: i128 = 3_600_000;
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
        let (price_per_hour, cost) = costs(state, &alone, now).unzip();
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
            cost: cost.flatten(),
        }
    });
    rows.filter(|row| several || row.price_per_hour.is_some())
        .collect()
}

/// `; h100:4 would wait (34.00 an hour), a100:8 would start at once (20.00 an hour)`; of what is refused alone, why.
pub(crate) fn in_words(rows: &[AlternativeRow]) -> String {
    let price = |row: &AlternativeRow| {
        let hour = row.price_per_hour?;
        let whole = row
            .cost
            .map(|cost| format!(", {cost:.2} for its time limit"));
        Some(format!("{hour:.2} an hour{}", whole.unwrap_or_default()))
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

/// What all its GPUs cost an hour now, and for its time limit, in the site's currency; `None` where any type will do or no price holds.
fn costs(state: &State, spec: &JobSpec, now: Timestamp) -> Option<(f64, Option<f64>)> {
    let (gpu_type, milli) = gpus_asked(&spec.request);
    let asked = spec.request.gpus.as_ref()?.alternatives.first()?;
    let (part, pieces) = match &asked.amount {
        GpuAmount::Whole(_) => (String::new(), milli / 1000),
        GpuAmount::Share { .. } => (SHARE.to_owned(), 1),
        GpuAmount::Mig { profile, count } => (profile.clone(), u64::from(*count)),
    };
    let held = HeldResource {
        kind: gpu_type?.to_owned(),
        part,
        milli,
        pieces,
    };
    let kind = BilledKind {
        partition: match spec.partition.as_str() {
            "" => state.config.default_partition()?.name.clone(),
            name => name.to_owned(),
        },
        qos: spec.qos.clone(),
        held: vec![held],
        ..BilledKind::default()
    };
    let book = state.billing.prices(&state.config.scheduler.money);
    let lines = |millis: i64| {
        let end = now.plus_millis(millis);
        let tariff = Tariff::new(book.clone(), &state.config.time_zone, now, end);
        let mut bill = BillBook::new(&tariff);
        let number = bill.kind(kind.clone());
        let time = BilledTime {
            start: now,
            end,
            millis,
        };
        bill.add(number, &time);
        bill.lines()
    };
    let present = lines(1).into_iter().find(|line| line.list.is_some())?;
    let hour = amount_micro(
        i128::from(present.rated_milli_ms) * MILLIS_PER_HOUR,
        present.rate_micro,
        100,
    );
    let whole = spec.time_limit_secs.map(|secs| {
        let lines = lines((i64::from(secs) * 1000).max(1));
        lines
            .iter()
            .map(|line| line.amount_micro as f64 / 1e6)
            .sum()
    });
    Some((hour as f64 / 1e6, whole))
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
