//! Each record has the keys that Slurm's has, with values of the same kind: `shapes.txt` has them.

use super::datum::{Datum, Field};
use super::{controller, job, node, partition, reservation, run, step};
use gwire::api::{
    JobRow, LicenceRow, NodeRow, PartitionRow, ReservationRow, RunRow, ShareRow, StepRow,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

type Shape = BTreeMap<String, &'static str>;

fn kind(value: &Datum<'_>) -> &'static str {
    match value {
        Datum::Text(_) => "text",
        Datum::Whole(_) => "whole",
        Datum::Flag(_) => "flag",
        Datum::Number(_) | Datum::Infinite | Datum::Fraction(_) => "number",
        Datum::Value(value) => kind_of(value),
        Datum::Json(json) | Datum::Same(json) => kind_of(&serde_json::from_str(json).unwrap()),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => "list",
        Value::String(_) => "text",
        Value::Number(_) => "whole",
        Value::Bool(_) => "flag",
        Value::Object(map) if map.contains_key("infinite") => "number",
        _ => "object",
    }
}

fn shape<R>(table: &[Field<R>], row: &R) -> Shape {
    let mut known = Shape::new();
    for (path, value) in table {
        let twice = known.insert((*path).to_owned(), kind(&value(row)));
        assert_eq!(twice, None, "{path}");
    }
    known
}

/// The table has the keys and kinds of this section of `shapes.txt`, and objects of it are in one place.
pub fn check<R>(title: &str, table: &[Field<R>], row: &R) {
    let mut sections = include_str!("shapes.txt").split("\n[");
    let wanted = sections.find_map(|section| section.strip_prefix(title)?.strip_prefix("]\n"));
    let wanted = wanted.unwrap_or_else(|| panic!("no shape of {title}"));
    let wanted: BTreeMap<&str, &str> = wanted
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    let has = shape(table, row);
    let has: BTreeMap<&str, &str> = has
        .iter()
        .map(|(key, kind)| (key.as_str(), *kind))
        .collect();
    let differs: Vec<String> = has
        .keys()
        .chain(wanted.keys())
        .filter(|key| has.get(*key) != wanted.get(*key))
        .map(|key| format!("{key}: {:?}, Slurm {:?}", has.get(key), wanted.get(key)))
        .collect();
    assert!(differs.is_empty(), "{title}: {differs:#?}");
    // What is written in one go reads as the tree of it, so no object is opened twice.
    let mut out = Vec::new();
    super::datum::RecordWriter::of(table).write(&mut out, row);
    let read: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(read, super::datum::record(table, row), "{title}");
}

#[test]
fn records_have_the_keys_of_slurms_and_values_of_their_kinds() {
    let cluster: Arc<str> = "c".into();
    let cell = job::Groups::new("c").cell(JobRow::default());
    check("job", job::JOB, &cell);
    check(
        "run",
        run::RUN,
        &job::Groups::new("c").run(RunRow::default()),
    );
    check("run step", run::STEP, &StepRow::default());
    let of_node = NodeRow {
        partitions: vec!["main".to_owned()],
        ..NodeRow::default()
    };
    let main = PartitionRow {
        name: "main".to_owned(),
        ..PartitionRow::default()
    };
    check(
        "node",
        node::NODE,
        &node::NodeCell::of(of_node.clone(), cluster.clone()),
    );
    let alike = node::alike(vec![main.clone()], vec![of_node.clone()], &cluster);
    check("alike nodes", node::ALIKE, &alike[0]);
    let of_partition = partition::PartitionCell::of(main, &[of_node], cluster.clone());
    check("partition", partition::PARTITION, &of_partition);
    let reserved = reservation::ReservationCell::of(ReservationRow::default(), &[]);
    check("reservation", reservation::RESERVATION, &reserved);
    let of_step = step::StepCell {
        row: StepRow::default(),
        cluster,
    };
    check("step", step::STEP, &of_step);
    check("licence", controller::LICENCE, &LicenceRow::default());
    check(
        "statistics",
        controller::STATISTICS,
        &controller::Diagnosis::default(),
    );
    check(
        "share",
        controller::SHARE,
        &controller::ShareCell {
            share: ShareRow::default(),
            parent: String::new(),
            cluster: "c".into(),
        },
    );
}
