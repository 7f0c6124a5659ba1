//! A reservation in full, in the words of `scontrol show reservation`, and the table of `sinfo -T`.

use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gmodel::Instant;
use gmodel::duration::sacct_time;
use gmodel::hostlist::{self, Hostlist};
use gmodel::node::Role;
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
    let gpus: Vec<String> = row
        .gpus
        .iter()
        .flatten()
        .map(|(kind, count)| match kind.as_str() {
            "gpu" => format!("gres/gpu={count}"),
            kind => format!("gres/gpu:{kind}={count}"),
        })
        .collect();
    let cpus: u32 = nodes
        .iter()
        .filter(|node| held.contains(&node.name))
        .map(|node| node.cpus)
        .sum();
    let tres = if row.gpus.is_some() {
        gpus.join(",")
    } else {
        format!("cpu={cpus}")
    };
    let lines = [
        format!(
            "ReservationName={} StartTime={} EndTime={} Duration={}",
            row.name,
            moment(row.window_start.or(row.start), times),
            moment(row.window_end, times),
            sacct_time(row.duration_secs.into())
        ),
        format!(
            "Nodes={} NodeCnt={} CoreCnt={cpus} Features={} PartitionName={} Flags={}",
            node_list(row, nodes),
            row.node_count.unwrap_or(held.len() as u32),
            row.features.as_deref().unwrap_or("(null)"),
            row.partition.as_deref().unwrap_or("(null)"),
            flags(row).join(",")
        ),
        format!("TRES={tres}"),
        format!(
            "Users={} Groups=(null) Accounts={} Licenses=(null) State={} BurstBuffer=(null) Watts=n/a",
            names(&row.users),
            names(&row.accounts),
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
        .map(|row| row.name.chars().count())
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
        let (start, end) = (
            moment(row.window_start.or(row.start), times),
            moment(row.window_end, times),
        );
        line([
            &row.name,
            &row.state,
            &start,
            &end,
            &sacct_time(row.duration_secs.into()),
            &node_list(row, nodes),
        ])
    });
    heading.into_iter().chain(lines).collect()
}

fn moment(at: Option<Instant>, times: &TimeFormat) -> String {
    at.map_or("Unknown".to_owned(), |at| times.print(at.0))
}

fn node_list(row: &ReservationRow, nodes: &[NodeRow]) -> String {
    let mut held: Vec<String> = held(row, nodes).into_iter().collect();
    hostlist::sort_names(&mut held);
    if held.is_empty() {
        "(null)".to_owned()
    } else {
        hostlist::compress(held)
    }
}

/// The nodes it has whole.
fn held(row: &ReservationRow, nodes: &[NodeRow]) -> BTreeSet<String> {
    let of_partition = |node: &&NodeRow| {
        row.partition
            .as_ref()
            .is_none_or(|name| node.partitions.contains(name))
    };
    match row.nodes.as_deref() {
        None => BTreeSet::new(),
        Some("ALL") => nodes
            .iter()
            .filter(|node| node.role == Role::Compute)
            .filter(of_partition)
            .map(|node| node.name.clone())
            .collect(),
        Some(list) => Hostlist::parse(list)
            .map(|list| list.iter().map(str::to_owned).collect())
            .unwrap_or_default(),
    }
}

/// In scontrol's order.
fn flags(row: &ReservationRow) -> Vec<String> {
    let all = row.nodes.as_deref() == Some("ALL");
    let repeat = row.repeat.to_uppercase();
    let words = [
        (row.maintenance, "MAINT"),
        (row.flex, "FLEX"),
        (row.overlap, "OVERLAP"),
        (row.ignore_running, "IGNORE_JOBS"),
        (!["ONCE", ""].contains(&repeat.as_str()), repeat.as_str()),
        (row.nodes.is_some() && !row.chosen, "SPEC_NODES"),
        (all && row.partition.is_none(), "ALL_NODES"),
        (row.static_nodes, "STATIC"),
        (all && row.partition.is_some(), "PART_NODES"),
    ];
    let mut flags: Vec<String> = words
        .into_iter()
        .filter(|(is_set, _)| *is_set)
        .map(|(_, word)| word.to_owned())
        .collect();
    flags.extend(
        row.purge_idle_secs
            .map(|secs| format!("PURGE_COMP={}", sacct_time(secs.into()))),
    );
    let last = [
        (row.release_jobs, "NO_HOLD_JOBS_AFTER_END"),
        (row.magnetic, "MAGNETIC"),
    ];
    flags.extend(
        last.into_iter()
            .filter(|(is_set, _)| *is_set)
            .map(|(_, word)| word.to_owned()),
    );
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn row(name: &str) -> ReservationRow {
        ReservationRow {
            name: name.into(),
            duration_secs: 7200,
            repeat: "once".into(),
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
        let row = ReservationRow {
            repeat: "weekly".into(),
            nodes: Some("node2".into()),
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
            ..row("course")
        };
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
        let all = ReservationRow {
            nodes: Some("ALL".into()),
            partition: Some("main".into()),
            ..row("all")
        };
        let gpus = ReservationRow {
            gpus: Some([("gpu".to_owned(), 3.0), ("h100".to_owned(), 2.0)].into()),
            ..row("gpus")
        };
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
