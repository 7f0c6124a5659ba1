//! `gnodes --health`: a line for each GPU: how it stands, since when, why, what was seen, what comes next.

use gcli::answer::print_json;
use gcli::local_time::TimeFormat;
use gcli::table::{Cell, Column, Screen, TableWriter, Tint, stdout};
use gcli::{Failure, Outcome};
use gmodel::gpu_health::Catalogue;
use gwire::api::{GpuHealthRow, GpuList, GpuQuery};
use gwire::client::{Client, path_with_query};
use std::io::Write;

/// Those of a UUID that tell GPUs of a pool apart.
const SHORT_UUID: usize = 12;

/// Prints the GPUs of these nodes; of all without a name.
pub(crate) fn print(client: &mut Client, names: &[String], header: bool, json: bool) -> Outcome {
    let path = path_with_query(
        "/v1/gpus",
        &GpuQuery {
            node: names.join(","),
        },
    );
    if json {
        return print_json(client, &path);
    }
    let list: GpuList = client.get(&path)?;
    let columns = vec![
        Column::whole("NODE"),
        Column::number("GPU"),
        Column::whole("TYPE"),
        Column::whole("UUID"),
        Column::whole("STATE"),
        Column::whole("SINCE"),
        Column::text("REASON"),
        Column::text("NEXT"),
    ];
    let times = TimeFormat::from_env();
    let mut table = TableWriter::new(stdout()?, columns, Screen::of_stdout(), header);
    for row in &list.gpus {
        table.row(line(row, &times))?;
    }
    table.finish()?;
    say_if_stopped(&list.gpus)?;
    Ok(0)
}

fn line(row: &GpuHealthRow, times: &TimeFormat) -> Vec<Cell> {
    vec![
        row.node.as_str().into(),
        row.index.to_string().into(),
        row.gpu_type.as_str().into(),
        short(&row.uuid).into(),
        Cell::tinted(row.state.as_str(), tint(&row.state)),
        row.since
            .map_or_else(|| "-".to_owned(), |since| times.print(since.0))
            .into(),
        reason(row).into(),
        next(row).into(),
    ]
}

/// `GPU-1a2b3c4d`: the beginning of a UUID, which gadm takes too.
fn short(uuid: &str) -> String {
    uuid.chars().take(SHORT_UUID).collect()
}

/// Why it is out, or what is noted; with the sign's name and what was seen where that says more.
fn reason(row: &GpuHealthRow) -> String {
    let mut words = match (row.reason.is_empty(), row.sign.is_empty()) {
        (false, _) => vec![row.reason.clone()],
        (true, false) => vec![sign_words(row)],
        (true, true) => Vec::new(),
    };
    words.extend(row.notes.iter().map(|note| format!("noted: {note}")));
    words.extend(odd_words(row));
    if !row.refused.is_empty() {
        words.push(format!(
            "the last order was not carried out: {}",
            row.refused
        ));
    }
    if words.is_empty() {
        "-".to_owned()
    } else {
        words.join("; ")
    }
}

/// The sign for which it is to go: a number of an Xid says nothing to people.
fn sign_words(row: &GpuHealthRow) -> String {
    match Catalogue::built_in()
        .signs
        .get(&row.sign)
        .filter(|_| row.sign.starts_with("xid"))
    {
        Some(kind) => format!("{}: {}", row.evidence, kind.meaning),
        None => format!("{}: {}", row.sign, row.evidence),
    }
}

/// What is out of line, in full; of a GPU that is out already only the names of what its reason does not say. gadm gpu history has all.
fn odd_words(row: &GpuHealthRow) -> Vec<String> {
    if row.reason.is_empty() {
        return row
            .odd
            .iter()
            .map(|odd| format!("out of line: {odd}"))
            .collect();
    }
    let names = row.odd.iter().filter_map(|odd| odd.split(':').next());
    let others: Vec<&str> = names.filter(|name| !row.reason.contains(name)).collect();
    if others.is_empty() {
        Vec::new()
    } else {
        vec![format!("also out of line: {}", others.join(", "))]
    }
}

fn next(row: &GpuHealthRow) -> String {
    let mut words = Vec::new();
    if row.stopped {
        words.push(format!("{}, when the pool's breaker allows it", row.next));
    } else if !row.next.is_empty() {
        words.push(row.next.clone());
    }
    if !row.ordered.is_empty() {
        words.push(format!("ordered: {}", row.ordered));
    }
    if words.is_empty() {
        "-".to_owned()
    } else {
        words.join("; ")
    }
}

fn tint(state: &str) -> Tint {
    match state {
        "ok" => Tint::Good,
        "moved" | "noted" | "suspect" | "resetting" | "booting" | "burning in" => Tint::Waiting,
        _ => Tint::Bad,
    }
}

/// Warns that the breaker has tripped: no GPU leaves service automatically until an operator acts, or for an hour.
fn say_if_stopped(rows: &[GpuHealthRow]) -> Result<(), Failure> {
    let stopped = rows.iter().filter(|row| row.stopped).count();
    if stopped > 0 {
        let gpus = if stopped == 1 {
            "1 GPU waits"
        } else {
            &format!("{stopped} GPUs wait")
        };
        writeln!(
            std::io::stderr(),
            "gnodes: the pool's breaker is open: {gpus}, for a node's worth of GPUs, or a tenth of a partition, went out of service by itself within an hour. \
             Look whether something else is wrong before more go; gadm gpu quarantine takes one out in spite of it"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_a_gpu_says_why_and_what_waits() {
        let suspect = GpuHealthRow {
            state: "suspect".into(),
            sign: "pcie-width".into(),
            evidence: "8 of 16 lanes".into(),
            next: "quarantine".into(),
            stopped: true,
            ..GpuHealthRow::default()
        };
        assert_eq!(reason(&suspect), "pcie-width: 8 of 16 lanes");
        assert_eq!(
            next(&suspect),
            "quarantine, when the pool's breaker allows it"
        );
        let xid = GpuHealthRow {
            sign: "xid-79".into(),
            evidence: "Xid 79".into(),
            ..GpuHealthRow::default()
        };
        assert_eq!(reason(&xid), "Xid 79: the GPU has fallen off the bus");
        let out = GpuHealthRow {
            reason: "Xid 79: gone".into(),
            sign: "xid-79".into(),
            ordered: "return".into(),
            ..GpuHealthRow::default()
        };
        assert_eq!(
            (reason(&out).as_str(), next(&out).as_str()),
            ("Xid 79: gone", "ordered: return")
        );
        let odd = GpuHealthRow {
            odd: vec!["check pcie: 12 GB/s".into()],
            ..GpuHealthRow::default()
        };
        assert_eq!(reason(&odd), "out of line: check pcie: 12 GB/s");
        let several = GpuHealthRow {
            reason: "quarantined: check arith.fp32, the second time: 1 of 768".into(),
            odd: vec![
                "check arith.fp32: 1 of 768".into(),
                "check arith.int: 3 of 768".into(),
            ],
            ..GpuHealthRow::default()
        };
        assert_eq!(
            reason(&several),
            "quarantined: check arith.fp32, the second time: 1 of 768; also out of line: check arith.int"
        );
        let well = GpuHealthRow::default();
        assert_eq!((reason(&well).as_str(), next(&well).as_str()), ("-", "-"));
    }
}
