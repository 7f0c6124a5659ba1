//! A reservation in full, in the words of `scontrol show reservation`, and the table of `sinfo -T`.

use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gmodel::Instant;
use gmodel::duration::sacct_time;
use gmodel::gpu_amounts::{ALL_GPUS, GpuAmounts, milli_text};
use gmodel::policy::ReservedPart;
use gslurm_json::value::reservation::{begin, flags, held, node_list};
use gwire::api::{NodeRow, ReservationRow};
use std::collections::BTreeSet;

/// The record, with an empty line behind it.
pub fn text(row: &ReservationRow, nodes: &[NodeRow], times: &TimeFormat) -> String {
    let held = held(row, nodes);
    let names = |names: &BTreeSet<String>| {
        if names.is_empty() {
            "(null)".to_owned()
        } else {
            names.iter().cloned().collect::<Vec<_>>().join(",")
        }
    };
    let one = &row.reservation;
    let cpus: u32 = nodes
        .iter()
        .filter(|node| held.contains(&node.name))
        .map(|node| node.cpus)
        .sum();
    let tres = match &one.what {
        ReservedPart::Gpus(gpus) => gpus_tres(gpus),
        _ => format!("cpu={cpus}"),
    };
    let node_count = match one.what {
        ReservedPart::NodeCount(count) => count,
        _ => held.len() as u32,
    };
    let null = |text: &str| if text.is_empty() { "(null)" } else { text }.to_owned();
    let lines = [
        format!(
            "ReservationName={} StartTime={} EndTime={} Duration={}",
            one.name,
            moment(begin(row), times),
            moment(row.window_end, times),
            sacct_time(one.duration_secs.into())
        ),
        format!(
            "Nodes={} NodeCnt={} CoreCnt={cpus} Features={} PartitionName={} Flags={}",
            node_list(row, nodes),
            node_count,
            null(&one.features),
            null(one.partition.as_deref().unwrap_or_default()),
            flags(one).join(",")
        ),
        format!("TRES={tres}"),
        format!(
            "Users={} Groups=(null) Accounts={} Licenses=(null) State={} BurstBuffer=(null) Watts=n/a",
            names(&one.users),
            names(&one.accounts),
            row.state
        ),
        "MaxStartDelay=(null)".to_owned(),
    ];
    format!(
        "{}\n\n",
        lines
            .map(|line| printable(&line).into_owned())
            .join("\n   ")
    )
}

/// A line for each, below a heading; of none it is said.
pub(crate) fn table(
    rows: &[ReservationRow],
    nodes: &[NodeRow],
    times: &TimeFormat,
    heading: bool,
) -> String {
    if rows.is_empty() {
        return "No reservations in the system\n".to_owned();
    }
    let width = rows
        .iter()
        .map(|row| row.reservation.name.chars().count())
        .chain([9])
        .max()
        .unwrap_or(9);
    let line = |[name, state, start, end, duration, nodes]: [&str; 6]| {
        printable(&format!(
            "{name:<width$}  {state:>8}  {start:>19}  {end:>19}  {duration:>11}  {nodes}"
        ))
        .into_owned()
            + "\n"
    };
    let heading = heading.then(|| {
        line([
            "RESV_NAME",
            "STATE",
            "START_TIME",
            "END_TIME",
            "DURATION",
            "NODELIST",
        ])
    });
    let lines = rows.iter().map(|row| {
        let (start, end) = (moment(begin(row), times), moment(row.window_end, times));
        line([
            &row.reservation.name,
            &row.state,
            &start,
            &end,
            &sacct_time(row.reservation.duration_secs.into()),
            &node_list(row, nodes),
        ])
    });
    heading.into_iter().chain(lines).collect()
}

fn gpus_tres(gpus: &GpuAmounts) -> String {
    let parts = gpus.0.iter().map(|(kind, milli)| match kind.as_str() {
        ALL_GPUS => format!("gres/gpu={}", milli_text(*milli)),
        kind => format!("gres/gpu:{kind}={}", milli_text(*milli)),
    });
    parts.collect::<Vec<_>>().join(",")
}

fn moment(at: Option<Instant>, times: &TimeFormat) -> String {
    at.map_or("Unknown".to_owned(), |at| times.print(at.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use gmodel::node::Role;
    use gmodel::policy::{Repeat, Reservation};

    fn row(name: &str) -> ReservationRow {
        shown(Reservation {
            name: name.into(),
            duration_secs: 7200,
            ..Reservation::default()
        })
    }

    fn shown(reservation: Reservation) -> ReservationRow {
        ReservationRow {
            reservation,
            state: "ACTIVE".into(),
            ..ReservationRow::default()
        }
    }

    fn nodes() -> Vec<NodeRow> {
        let node = |name: &str| NodeRow {
            name: name.into(),
            cpus: 4,
            partitions: vec!["main".into()],
            ..NodeRow::default()
        };
        vec![
            node("node10"),
            node("node2"),
            NodeRow {
                role: Role::Login,
                ..node("login")
            },
        ]
    }

    #[test]
    fn a_reservation_is_shown_as_scontrol_shows_it() {
        let row = shown(Reservation {
            repeat: Repeat::Weekly,
            what: ReservedPart::Nodes("node2".parse().unwrap()),
            users: BTreeSet::from(["ada".to_owned()]),
            accounts: BTreeSet::from(["vision".to_owned()]),
            maintenance: true,
            flex: true,
            overlap: true,
            ignore_running: true,
            static_nodes: true,
            purge_idle_secs: Some(300),
            release_jobs: true,
            magnetic: true,
            ..row("course").reservation
        });
        // Its flags are those of a real Slurm 22.05.8, in its order.
        expect![[r#"
            ReservationName=course StartTime=Unknown EndTime=Unknown Duration=02:00:00
               Nodes=node2 NodeCnt=1 CoreCnt=4 Features=(null) PartitionName=(null) Flags=MAINT,FLEX,OVERLAP,IGNORE_JOBS,WEEKLY,SPEC_NODES,STATIC,PURGE_COMP=00:05:00,NO_HOLD_JOBS_AFTER_END,MAGNETIC
               TRES=cpu=4
               Users=ada Groups=(null) Accounts=vision Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a
               MaxStartDelay=(null)

        "#]]
        .assert_eq(&text(&row, &nodes(), &TimeFormat::Standard));
    }

    #[test]
    fn all_nodes_are_named_and_gpus_by_number_have_none() {
        let all = shown(Reservation {
            what: ReservedPart::AllNodes,
            partition: Some("main".into()),
            ..row("all").reservation
        });
        let amounts = [("gpu".to_owned(), 3000), ("h100".to_owned(), 2000)];
        let gpus = shown(Reservation {
            what: ReservedPart::Gpus(GpuAmounts(amounts.into())),
            ..row("gpus").reservation
        });
        let texts = [&all, &gpus]
            .map(|row| text(row, &nodes(), &TimeFormat::Standard))
            .concat();
        expect![[r#"
            ReservationName=all StartTime=Unknown EndTime=Unknown Duration=02:00:00
               Nodes=node[2,10] NodeCnt=2 CoreCnt=8 Features=(null) PartitionName=main Flags=SPEC_NODES,PART_NODES
               TRES=cpu=8
               Users=(null) Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a
               MaxStartDelay=(null)

            ReservationName=gpus StartTime=Unknown EndTime=Unknown Duration=02:00:00
               Nodes=(null) NodeCnt=0 CoreCnt=0 Features=(null) PartitionName=(null) Flags=
               TRES=gres/gpu=3,gres/gpu:h100=2
               Users=(null) Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a
               MaxStartDelay=(null)

        "#]]
        .assert_eq(&texts);
        expect![[r#"
            RESV_NAME     STATE           START_TIME             END_TIME     DURATION  NODELIST
            all          ACTIVE              Unknown              Unknown     02:00:00  node[2,10]
            gpus         ACTIVE              Unknown              Unknown     02:00:00  (null)
        "#]]
        .assert_eq(&table(&[all, gpus], &nodes(), &TimeFormat::Standard, true));
        assert_eq!(
            table(&[], &nodes(), &TimeFormat::Standard, true),
            "No reservations in the system\n"
        );
    }
}
