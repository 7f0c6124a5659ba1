//! `[expect.NAME]` tables: what nodes should have. Owns their keys; differences are shown by `gnodes --diff` and stop nothing.

use crate::error::Errors;
use crate::name::{NAMES, is_name};
use crate::section::{NamedTable, Section};
use gmodel::expected_hardware::ExpectedHardware;

const KEYS: [&str; 5] = ["nodes", "gpus", "cpus", "memory", "driver"];

/// In the order of the file: the first that names a node counts.
pub fn read(section: &Section, errors: &mut Errors) -> Vec<ExpectedHardware> {
    let tables = section.named_tables("expect", errors);
    tables
        .into_iter()
        .map(|table| expected(section, &table, errors))
        .collect()
}

fn expected(
    file: &Section,
    NamedTable { name, span, table }: &NamedTable,
    errors: &mut Errors,
) -> ExpectedHardware {
    if !is_name(name) {
        errors.add(
            file.source,
            span.clone(),
            format!("[expect.{name}] has no valid name"),
            NAMES,
        );
    }
    let section = Section::open(
        file.source,
        table,
        &KEYS,
        &format!("[expect.{name}]"),
        errors,
    );
    if !section.has("nodes") {
        errors.add(
            file.source,
            span.clone(),
            format!("[expect.{name}] has no nodes"),
            "it says which nodes should have it",
        );
    }
    ExpectedHardware {
        name: (*name).to_owned(),
        nodes: section.hosts("nodes", errors).unwrap_or_default(),
        gpus: section.amounts("gpus", errors),
        cpus: section.number("cpus", 1..=65_536, errors),
        mem_bytes: section.size("memory", errors),
        driver: section
            .names("driver", errors)
            .and_then(|names| names.into_iter().next())
            .map(|(name, _)| name),
    }
}
