//! A reservation: `scontrol show reservation --json`.

use super::datum::{Datum, Field, blank, empty, list, maybe, number, said, text, whole, zero};
use super::time;
use gcli::Outcome;
use gmodel::policy::ReservedPart;
use gq::reservation_record::{begin, flags, held, node_list};
use gwire::api::{NodeRow, ReservationRow};

pub(super) struct ReservationCell {
    row: ReservationRow,
    nodes: String,
    count: usize,
    cpus: u32,
}

/// `scontrol show reservation --json`.
pub(crate) fn print(cluster: &str, rows: Vec<ReservationRow>, nodes: &[NodeRow]) -> Outcome {
    let cells = rows.into_iter().map(|row| ReservationCell::of(row, nodes));
    super::print(
        cluster,
        "reservations",
        RESERVATION,
        cells,
        &["last_update"],
    )
}

impl ReservationCell {
    pub(super) fn of(row: ReservationRow, nodes: &[NodeRow]) -> Self {
        let held = held(&row, nodes);
        let is_held = |node: &&NodeRow| held.contains(&node.name);
        let listed = node_list(&row, nodes);
        Self {
            count: match row.reservation.what {
                ReservedPart::NodeCount(count) => count as usize,
                _ => held.len(),
            },
            nodes: if listed == "(null)" {
                String::new()
            } else {
                listed
            },
            cpus: nodes.iter().filter(is_held).map(|node| node.cpus).sum(),
            row,
        }
    }
}

pub(super) const RESERVATION: &[Field<ReservationCell>] = &[
    ("accounts", |one| {
        let names: Vec<_> = one.row.reservation.accounts.iter().cloned().collect();
        said(names.join(","))
    }),
    blank("burst_buffer"),
    ("core_count", |one| whole(one.cpus)),
    empty("core_specializations"),
    ("end_time", |one| time(one.row.window_end)),
    ("features", |one| text(&one.row.reservation.features)),
    ("flags", |one| list(flags(&one.row.reservation))),
    blank("groups"),
    blank("licenses"),
    zero("max_start_delay"),
    ("name", |one| text(&one.row.reservation.name)),
    ("node_count", |one| whole(one.count)),
    ("node_list", |one| text(&one.nodes)),
    ("partition", |one| maybe(&one.row.reservation.partition)),
    ("purge_completed/time", |one| {
        match one.row.reservation.purge_idle_secs {
            None => Datum::Number(None),
            Some(secs) => number(secs),
        }
    }),
    ("start_time", |one| time(begin(&one.row))),
    ("tres", |one| said(format!("cpu={}", one.cpus))),
    ("users", |one| {
        let names: Vec<_> = one.row.reservation.users.iter().cloned().collect();
        said(names.join(","))
    }),
];
