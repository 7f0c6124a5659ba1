//! Partitions and nodes as sinfo lists them: nodes of a partition that print alike share a line.

use crate::node_column::{Group, NodeColumn, NodeFormat, state_rank};
use gcli::column_format::Piece;
use gcli::local_time::TimeFormat;
use gwire::api::{NodeRow, PartitionRow};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Default of `sinfo`, `-s` and `-R`; the partition's column grows with its names.
pub(crate) const USUAL: &str = "%9P %.5a %.10l %.6D %.6t %N";
pub(crate) const LONG: &str = "%9P %.5a %.10l %.6D %.11T %.5c %.8m %20G %N";
pub(crate) const SUMMARY: &str = "%9P %.5a %.10l %.16F %N";
pub(crate) const REASONS: &str = "%20E %9u %19H %N";
pub(crate) const BY_NODE: &str = "%9N %.6D %.9P %6t";
pub(crate) const BY_NODE_LONG: &str = "%9N %.6D %.9P %.11T %.5c %.8m %20G %E";
pub(crate) const REASONS_LONG: &str = "%20E %12U %19H %6t %N";

/// The lines of a listing, header first if wanted.
pub(crate) fn lines(
    format: &NodeFormat,
    partitions: &[PartitionRow],
    nodes: &[NodeRow],
    by_node: bool,
    sort: &[(NodeColumn, bool)],
    header: bool,
    times: &TimeFormat,
) -> Vec<String> {
    let mut lines = Vec::new();
    if header {
        lines.push(line(format, |column| column.title().to_owned()));
    }
    let mut all: Vec<Group> = match by_node {
        true => partitions
            .iter()
            .flat_map(|partition| groups(format, partition, nodes, true, times))
            .collect(),
        false => merged(
            format,
            partitions
                .iter()
                .flat_map(|partition| groups(format, partition, nodes, false, times)),
            times,
        ),
    };
    if by_node {
        let places: BTreeMap<&str, usize> = nodes
            .iter()
            .enumerate()
            .map(|(at, node)| (node.name.as_str(), at))
            .collect();
        all.sort_by_key(|group| {
            group
                .nodes
                .first()
                .and_then(|node| places.get(node.name.as_str()))
        });
    }
    all.sort_by(|a, b| {
        let by_key = sort.iter().map(|(column, descending)| {
            let order = column.compare(a, b, times);
            if *descending { order.reverse() } else { order }
        });
        by_key.fold(Ordering::Equal, Ordering::then)
    });
    lines.extend(
        all.iter()
            .map(|group| line(format, |column| column.value(group, times))),
    );
    lines
}

/// Where nothing that is printed tells partitions apart, their nodes share lines, each node once: `sinfo -o '%t %D'` counts nodes.
fn merged<'a>(
    format: &NodeFormat,
    all: impl Iterator<Item = Group<'a>>,
    times: &TimeFormat,
) -> Vec<Group<'a>> {
    let of_group: Vec<NodeColumn> = columns(format)
        .filter(|column| column.tells_apart() || column.is_partitions())
        .collect();
    let mut known: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    let mut merged: Vec<Group> = Vec::new();
    for group in all {
        let key = of_group
            .iter()
            .map(|column| column.value(&group, times))
            .collect();
        match known.get(&key) {
            None => {
                known.insert(key, merged.len());
                merged.push(group);
            }
            Some(at) => {
                let there: BTreeSet<&str> = merged[*at]
                    .nodes
                    .iter()
                    .map(|node| node.name.as_str())
                    .collect();
                let more: Vec<&NodeRow> = group
                    .nodes
                    .into_iter()
                    .filter(|node| !there.contains(node.name.as_str()))
                    .collect();
                merged[*at].nodes.extend(more);
            }
        }
    }
    merged
}

fn columns(format: &NodeFormat) -> impl Iterator<Item = NodeColumn> + '_ {
    format.iter().filter_map(|piece| match piece {
        Piece::Field(column, _) => Some(*column),
        Piece::Text(_) => None,
    })
}

/// Widens columns of node and partition names to what they hold.
pub(crate) fn fit(
    mut format: NodeFormat,
    partitions: &[PartitionRow],
    nodes: &[NodeRow],
) -> NodeFormat {
    let longest = |names: &mut dyn Iterator<Item = usize>| names.max().unwrap_or(0);
    let partition = longest(&mut partitions.iter().map(|partition| partition.name.len() + 1));
    let node = longest(&mut nodes.iter().map(|node| node.name.len()));
    for piece in &mut format {
        if let Piece::Field(column, spec) = piece {
            let least = match column {
                NodeColumn::Partition => partition,
                NodeColumn::Nodelist => node,
                _ => 0,
            };
            spec.width = spec.width.map(|width| width.max(least));
        }
    }
    format
}

fn line(format: &NodeFormat, text: impl Fn(NodeColumn) -> String) -> String {
    let mut line = String::new();
    for piece in format {
        match piece {
            Piece::Text(text) => line.push_str(text),
            Piece::Field(column, spec) => spec.fill(&text(*column), &mut line),
        }
    }
    line
}

/// A partition's nodes, those that print alike together; trouble first. A partition without any, or without any that is
/// asked for, has one empty group where the line names partitions: sinfo prints `0 n/a`.
fn groups<'a>(
    format: &NodeFormat,
    partition: &'a PartitionRow,
    nodes: &'a [NodeRow],
    by_node: bool,
    times: &TimeFormat,
) -> Vec<Group<'a>> {
    let apart: Vec<NodeColumn> = columns(format)
        .filter(|column| column.tells_apart())
        .collect();
    let mut groups: Vec<(Vec<String>, Group<'a>)> = Vec::new();
    for node in nodes
        .iter()
        .filter(|node| node.partitions.contains(&partition.name))
    {
        let key: Vec<String> = if by_node {
            vec![node.name.clone()]
        } else {
            apart
                .iter()
                .map(|column| column.of_node(node, times))
                .collect()
        };
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.nodes.push(node),
            None => groups.push((
                key,
                Group {
                    partition,
                    nodes: vec![node],
                },
            )),
        }
    }
    if !by_node {
        groups.sort_by_key(|(_, group)| state_rank(&group.nodes[0].state));
    }
    let names_it = || {
        columns(format)
            .any(|column| matches!(column, NodeColumn::Partition | NodeColumn::PartitionName))
    };
    if groups.is_empty() && !by_node && names_it() {
        return vec![Group {
            partition,
            nodes: Vec::new(),
        }];
    }
    groups.into_iter().map(|(_, group)| group).collect()
}
