//! `gacct bill`: what accounts owe for a month, as a table, CSV, JSON or a page to print; and the check of it.

mod page;
mod verify;

use gcli::Outcome;
use gcli::answer::print_json;
use gcli::printable::printable;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gmodel::policy::money_text;
use gmodel::policy::price::Ending;
use gwire::api::{Bill, BillRow};
use gwire::client::{Client, path_with_query};
use serde::Serialize;
use std::io::Write;

/// Thousandths times milliseconds of an hour of one GPU.
const HOUR: i128 = 3_600_000_000;

/// What formulas begin with; also the wide forms of Asian keyboards.
const FORMULA: [char; 8] = ['=', '+', '-', '@', '＝', '＋', '－', '＠'];

/// Options of `gacct bill`.
#[derive(clap::Args)]
pub(crate) struct BillArgs {
    #[command(subcommand)]
    sub: Option<BillCommand>,
    /// The month, as 2026-11; without it the present one
    #[arg(long, value_name = "MONTH", global = true)]
    month: Option<String>,
    /// Only these accounts
    #[arg(short = 'A', long, value_name = "LIST", global = true)]
    account: Option<String>,
    /// Groups: account, user, partition, qos, gpu-type, tags, tag:KEY
    #[arg(long, value_name = "LIST", default_value = "account")]
    by: String,
    /// Comma-separated values
    #[arg(long, group = "form")]
    csv: bool,
    /// One line of JSON
    #[arg(long, group = "form")]
    json: bool,
    /// A page to print, in one file
    #[arg(long, group = "form")]
    html: bool,
    /// The runs that the bill is made of, as CSV
    #[arg(long, group = "form")]
    runs: bool,
    /// The prices of the month, as JSON
    #[arg(long, group = "form")]
    prices: bool,
}

#[derive(clap::Subcommand)]
enum BillCommand {
    /// Compute the bill again from its runs and prices
    Verify,
}

#[derive(Default, Serialize)]
struct BillQuery {
    #[serde(skip_serializing_if = "Option::is_none")]
    month: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
}

pub(crate) fn run(client: &mut Client, args: &BillArgs) -> Outcome {
    let query = BillQuery {
        month: args.month.clone(),
        account: args.account.clone(),
        by: None,
    };
    if let Some(BillCommand::Verify) = args.sub {
        return verify::run(client, query);
    }
    if args.runs {
        return print_text(client, &path_with_query("/v1/bill/runs", &query));
    }
    if args.prices {
        let of_month = BillQuery {
            account: None,
            ..query
        };
        return print_json(client, &path_with_query("/v1/bill/prices", &of_month));
    }
    let by = Some(args.by.clone());
    let path = path_with_query("/v1/bill", &BillQuery { by, ..query });
    if args.json {
        return print_json(client, &path);
    }
    let bill: Bill = client.get(&path)?;
    let mut out = stdout()?;
    if args.csv {
        out.write_all(csv(&bill).as_bytes())?;
    } else if args.html {
        out.write_all(page::page(&bill).as_bytes())?;
    } else {
        return table(&bill, out);
    }
    out.flush()?;
    Ok(0)
}

fn print_text(client: &mut Client, path: &str) -> Outcome {
    let mut out = stdout()?;
    std::io::copy(&mut client.open(path)?, &mut out)?;
    out.flush()?;
    Ok(0)
}

/// Hours of GPUs, CPUs or GiB, to a third of a second.
fn hours(milli_ms: i64) -> String {
    let parts = (i128::from(milli_ms) * 10_000 + HOUR / 2).div_euclid(HOUR) * 100;
    money_text(i64::try_from(parts).unwrap_or(i64::MAX), 4)
}

/// What the rate is for.
const fn unit(row: &BillRow) -> &'static str {
    if row.per_slice { "slice-h" } else { "h" }
}

/// In words what is odd about a row.
fn note(row: &BillRow) -> String {
    let mut notes = Vec::new();
    match row.ending {
        Ending::Own => {}
        Ending::NodeFault => notes.push("lost to a fault of its node".to_owned()),
        Ending::Preempted => notes.push("preempted".to_owned()),
        Ending::Requeued => notes.push("requeued".to_owned()),
    }
    if row.ending != Ending::Own && row.percent != 100 {
        notes.push(match row.percent {
            0 => "free".to_owned(),
            percent => format!("charged {percent}%"),
        });
    }
    if row.open {
        notes.push("still running".to_owned());
    }
    if row.list.is_none() && row.reason.is_empty() {
        notes.push("no price".to_owned());
    }
    if !row.reason.is_empty() {
        notes.push(format!("correction: {}", printable(&row.reason)));
    }
    notes.join(", ")
}

/// `closed`, or how far it goes.
fn status(bill: &Bill) -> String {
    match (&bill.closed, &bill.until) {
        (Some(at), _) => format!("closed on {}", at.0),
        (None, Some(until)) => format!("open, counted up to {}", until.0),
        (None, None) => "open: the month is over and not closed".to_owned(),
    }
}

fn titles(bill: &Bill) -> Vec<&'static str> {
    let title = |word: &String| match word.as_str() {
        "account" => "ACCOUNT",
        "user" => "USER",
        "partition" => "PARTITION",
        "qos" => "QOS",
        "gpu-type" => "GPU_TYPE",
        "tags" => "TAGS",
        _ => "TAG",
    };
    bill.by.iter().map(title).collect()
}

fn rate(row: &BillRow) -> String {
    match row.list {
        None => String::new(),
        Some(_) => format!("{}/{}", money_text(row.rate_micro as i64, 2), unit(row)),
    }
}

fn table(bill: &Bill, mut out: impl Write) -> Outcome {
    writeln!(
        out,
        "Bill of {} for {}{}, {}",
        printable(&bill.cluster),
        bill.month,
        match bill.currency.as_str() {
            "" => String::new(),
            currency => format!(" in {currency}"),
        },
        status(bill)
    )?;
    let titles = titles(bill);
    let groups = titles.into_iter().map(Column::text);
    let columns = groups
        .chain([
            Column::text("RESOURCE"),
            Column::number("HOURS"),
            Column::number("RATE"),
            Column::number("AMOUNT"),
            Column::text("NOTE"),
        ])
        .collect();
    let mut table = TableWriter::new(out, columns, Screen::of_stdout(), true);
    for row in &bill.rows {
        let mut cells: Vec<String> = row.group.clone();
        cells.extend([
            row.resource.clone(),
            if row.resource.is_empty() {
                String::new()
            } else {
                hours(row.milli_ms)
            },
            rate(row),
            money_text(row.amount_micro, 2),
            note(row),
        ]);
        table.row(cells.into_iter().map(Into::into).collect())?;
    }
    let mut total = vec!["TOTAL".to_owned()];
    total.resize(bill.by.len().max(1) + 3, String::new());
    total.extend([money_text(bill.total_micro, 2), String::new()]);
    table.row(total.into_iter().map(Into::into).collect())?;
    table.finish()?;
    Ok(0)
}

fn csv(bill: &Bill) -> String {
    let heads: Vec<String> = bill.by.iter().map(|word| quoted(word)).collect();
    let mut text = heads.join(",");
    text.push_str(",resource,list,rate,per,percent,ending,open,hours,amount,currency,reason\n");
    for row in &bill.rows {
        let groups = row.group.iter().map(|cell| quoted(cell));
        let rest = [
            quoted(&row.resource),
            row.list.map_or(String::new(), |at| at.0.to_string()),
            money_text(row.rate_micro as i64, 2),
            unit(row).to_owned(),
            row.percent.to_string(),
            row.ending.word().to_owned(),
            row.open.to_string(),
            hours(row.milli_ms),
            money_text(row.amount_micro, 2),
            quoted(&bill.currency),
            quoted(&row.reason),
        ];
        let cells: Vec<String> = groups.chain(rest).collect();
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}

/// A cell of names. A spreadsheet computes what begins as a formula, also behind a semicolon, which some take for a comma; and the
/// text is others': it gets an apostrophe.
fn quoted(cell: &str) -> String {
    let cell = printable(cell);
    let mut text = String::with_capacity(cell.len() + 2);
    let mut begins = true;
    for c in cell.chars() {
        if begins && FORMULA.contains(&c) {
            text.push('\'');
        }
        begins = c == ';' || begins && c.is_whitespace();
        text.push(c);
    }
    match text.len() == cell.len() && !text.contains([',', ';', '"']) {
        true => text,
        false => format!("\"{}\"", text.replace('"', "\"\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_spreadsheet_would_compute_is_a_text() {
        assert_eq!(quoted("=HYPERLINK(\"x\")"), "\"'=HYPERLINK(\"\"x\"\")\"");
        assert_eq!(quoted("x;=1+1"), "\"x;'=1+1\"");
        assert_eq!(quoted("  -1"), "\"  '-1\"");
        assert_eq!(quoted("＝1"), "\"'＝1\"");
        assert_eq!(quoted("a=b-c"), "a=b-c");
        assert_eq!(quoted("vision"), "vision");
        assert_eq!(quoted("a,b"), "\"a,b\"");
    }

    #[test]
    fn a_table_of_others_words_stays_a_table() {
        let bill = Bill {
            by: vec!["account".into(), "tag:a\"b".into()],
            rows: vec![BillRow {
                group: vec!["vision".into(), "=1".into()],
                reason: "late, \"again\"".into(),
                ..BillRow::default()
            }],
            ..Bill::default()
        };
        let text = csv(&bill);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("account,\"tag:a\"\"b\",resource,"),
            "{text}"
        );
        assert!(lines[1].starts_with("vision,\"'=1\",,"), "{text}");
        assert!(lines[1].ends_with(",\"late, \"\"again\"\"\""), "{text}");
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn hours_are_rounded_to_four_digits() {
        assert_eq!(hours(3_600_000_000), "1.0000");
        assert_eq!(hours(1_000_000), "0.0003");
        assert_eq!(hours(-1_800_000_000), "-0.5000");
    }
}
