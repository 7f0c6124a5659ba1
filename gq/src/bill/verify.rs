//! `gacct bill verify`: the bill once more, of nothing but the exported runs and prices. `etc/verify-bill.py` does the same.
//!
//! Written apart from the controller's way on purpose: each run by itself, piece by piece.

use super::BillQuery;
use gcli::printable::printable;
use gcli::table::stdout;
use gcli::{Failure, Outcome};
use gmodel::policy::money_text;
use gwire::api::{Bill, BillRow};
use gwire::client::{Client, path_with_query};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};

const BY: &str = "account,user,partition,qos,tags";
const UNIT: i128 = 3_600_000 * 1000 * 100;
/// Differences that are printed.
const SHOWN: usize = 20;

/// Account, user, partition, QOS and tags; resource; when its list begins; rate; hundredths; ending; open.
type LineKey = (Vec<String>, String, Option<i64>, u64, u8, String, bool);

#[derive(Deserialize)]
struct Tariff {
    from_ms: i64,
    to_ms: i64,
    prices: BTreeMap<String, Vec<Rate>>,
    charging: Vec<BTreeMap<String, i64>>,
    windows: BTreeMap<String, Vec<(i64, i64)>>,
}

#[derive(Deserialize)]
struct Rate {
    from_ms: i64,
    micro_per_hour: u64,
    #[serde(default)]
    per_slice: bool,
    #[serde(default)]
    when: BTreeMap<String, Value>,
}

/// A run as a row of the CSV has it.
struct Run {
    group: Vec<String>,
    ending: String,
    open: bool,
    start: i64,
    end: i64,
    billed: i64,
    held: Vec<HeldAmount>,
}

/// Type, part, thousandths of GPUs, pieces.
#[derive(Deserialize)]
struct HeldAmount(String, String, i64, i64);

pub(super) fn run(client: &mut Client, query: BillQuery) -> Outcome {
    let of_month = BillQuery {
        month: query.month.clone(),
        ..BillQuery::default()
    };
    let tariff: Tariff = client.get(&path_with_query("/v1/bill/prices", &of_month))?;
    let by = BillQuery {
        by: Some(BY.to_owned()),
        ..query
    };
    let bill: Bill = client.get(&path_with_query("/v1/bill", &by))?;
    let runs = BillQuery { by: None, ..by };
    // A line at a time: they may be millions.
    let lines = BufReader::new(client.open(&path_with_query("/v1/bill/runs", &runs))?).lines();
    let (count, computed) = compute(lines, &tariff)?;
    let mut billed = BTreeMap::new();
    let lines = bill.rows.iter().filter(|row| row.reason.is_empty());
    lines.for_each(|row| *billed.entry(key(row)).or_insert(0) += row.amount_micro);
    // A run goes on while this looks: what is open differs by the seconds between.
    let is_open = |key: &LineKey| key.6;
    let mut out = stdout()?;
    let keys = billed
        .keys()
        .chain(computed.keys().filter(|key| !billed.contains_key(*key)));
    let mut differences = 0;
    for key in keys.filter(|key| !is_open(key)) {
        let (is, should) = (
            billed.get(key).copied().unwrap_or(0),
            computed.get(key).copied().unwrap_or(0),
        );
        if is != should {
            differences += 1;
            if differences <= SHOWN {
                writeln!(
                    out,
                    "{} {}: the bill has {}, its runs give {}",
                    printable(&key.0.join(" ")),
                    key.1,
                    money_text(is, 2),
                    money_text(should, 2)
                )?;
            }
        }
    }
    let sum: i64 = computed.values().sum();
    writeln!(
        out,
        "{}: {count} runs give {} lines and {} {} without corrections; {} lines differ",
        bill.month,
        computed.len(),
        money_text(sum, 2),
        printable(&bill.currency),
        differences
    )?;
    out.flush()?;
    Ok(u8::from(differences > 0))
}

fn key(row: &BillRow) -> LineKey {
    (
        row.group.clone(),
        row.resource.clone(),
        row.list.map(|at| at.0.0),
        row.rate_micro,
        row.percent,
        row.ending.word().to_owned(),
        row.open,
    )
}

/// How many runs, and the amounts by line.
fn compute(
    lines: impl Iterator<Item = io::Result<String>>,
    tariff: &Tariff,
) -> Result<(usize, BTreeMap<LineKey, i64>), Failure> {
    let mut cuts: Vec<i64> = tariff
        .prices
        .values()
        .flatten()
        .map(|price| price.from_ms)
        .collect();
    cuts.extend(
        tariff
            .charging
            .iter()
            .filter_map(|rules| rules.get("from_ms")),
    );
    cuts.extend(
        tariff
            .windows
            .values()
            .flatten()
            .flat_map(|(a, b)| [*a, *b]),
    );
    cuts.retain(|at| tariff.from_ms < *at && *at < tariff.to_ms);
    cuts.extend([tariff.from_ms, tariff.to_ms]);
    cuts.sort_unstable();
    cuts.dedup();
    let mut sums = BTreeMap::<LineKey, i128>::new();
    let mut count = 0;
    for line in lines.skip(1) {
        let line = line?;
        let run = read_run(&line).ok_or_else(|| {
            Failure::new(format_args!("a run that is no row: {}", printable(&line)))
        })?;
        count += 1;
        for piece in cuts.windows(2) {
            let millis = run.part(piece[0], piece[1]);
            if millis != 0 {
                run.held
                    .iter()
                    .for_each(|held| tariff.add(&run, held, piece[0], millis, &mut sums));
            }
        }
    }
    let amounts = sums.into_iter().map(|(key, sum)| {
        let whole = sum * i128::from(key.3) * i128::from(key.4);
        let half = if whole < 0 { -UNIT / 2 } else { UNIT / 2 };
        (
            key,
            i64::try_from((whole + half) / UNIT).unwrap_or(i64::MAX),
        )
    });
    Ok((count, amounts.collect()))
}

impl Tariff {
    fn add(
        &self,
        run: &Run,
        held: &HeldAmount,
        at: i64,
        millis: i64,
        sums: &mut BTreeMap<LineKey, i128>,
    ) {
        let HeldAmount(kind, part, milli, pieces) = held;
        let list = self.prices.get(kind);
        let from = list
            .and_then(|list| list.iter().rev().find(|price| price.from_ms <= at))
            .map(|price| price.from_ms);
        let price = list
            .into_iter()
            .flatten()
            .find(|price| Some(price.from_ms) == from && self.holds(price, run, part, at));
        if price.is_none() && ["cpu", "memory"].contains(&kind.as_str()) {
            return;
        }
        let resource = match part.as_str() {
            "" => kind.clone(),
            part => format!("{kind}/{part}"),
        };
        let rules = self
            .charging
            .iter()
            .rev()
            .find(|rules| rules.get("from_ms").is_some_and(|from| *from <= at));
        let percent = rules
            .and_then(|rules| rules.get(&run.ending))
            .copied()
            .unwrap_or(100);
        let key = (
            run.group.clone(),
            resource,
            price.map(|price| price.from_ms),
            price.map_or(0, |price| price.micro_per_hour),
            u8::try_from(percent).unwrap_or(100),
            run.ending.clone(),
            run.open,
        );
        let count = if price.is_some_and(|price| price.per_slice) {
            pieces * 1000
        } else {
            *milli
        };
        *sums.entry(key).or_default() += i128::from(count) * i128::from(millis);
    }

    fn holds(&self, price: &Rate, run: &Run, part: &str, at: i64) -> bool {
        let is = |key: &str, is: &str| price.when.get(key).is_none_or(|asked| asked == is);
        let hours = price.when.get("hours").and_then(Value::as_str);
        is("mig", part)
            && (!price.when.contains_key("share") || part == "share")
            && is("partition", &run.group[2])
            && is("qos", &run.group[3])
            && hours.is_none_or(|hours| {
                let windows = self.windows.get(hours).into_iter().flatten();
                windows.into_iter().any(|(a, b)| *a <= at && at < *b)
            })
    }
}

impl Run {
    fn part(&self, from: i64, to: i64) -> i64 {
        let until = |at: i64| match self.end - self.start {
            0 if at > self.start => self.billed,
            0 => 0,
            length => {
                let passed = at.clamp(self.start, self.end) - self.start;
                (i128::from(self.billed) * i128::from(passed)).div_euclid(i128::from(length)) as i64
            }
        };
        until(to) - until(from)
    }
}

fn read_run(line: &str) -> Option<Run> {
    let cells = cells(line);
    let [
        _,
        _,
        account,
        user,
        partition,
        qos,
        tags,
        ending,
        open,
        start,
        end,
        billed,
        held,
    ] = &cells[..]
    else {
        return None;
    };
    let tags: Vec<String> = serde_json::from_str(tags).ok()?;
    Some(Run {
        group: vec![
            account.clone(),
            user.clone(),
            partition.clone(),
            qos.clone(),
            tags.join(","),
        ],
        ending: ending.clone(),
        open: open == "1",
        start: start.parse().ok()?,
        end: end.parse().ok()?,
        billed: billed.parse().ok()?,
        held: serde_json::from_str(held).ok()?,
    })
}

/// The cells of a line; those in quotes may have commas.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell)),
            other => cell.push(other),
        }
    }
    cells.push(cell);
    cells
}
