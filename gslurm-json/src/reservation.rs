//! A reservation: `scontrol show reservation --json`.

use super::datum::{Datum, Field, blank, empty, list, maybe, number, said, text, whole, zero};
use super::document::time;
use crate::value::reservation::{begin, flags, held, node_list};
use gmodel::policy::ReservedPart;
use gwire::api::{NodeRow, ReservationRow};

pub struct ReservationCell {
    row: ReservationRow,
    nodes: String,
    count: usize,
    cpus: u32,
}

impl ReservationCell {
    pub fn of(row: ReservationRow, nodes: &[NodeRow]) -> Self {
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

pub const RESERVATION: &[Field<ReservationCell>] = &[
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
