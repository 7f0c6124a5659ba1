//! `[mig.NAME]` tables: how GPUs of some nodes are to be cut by MIG.
//!
//! Owns their keys. Whether profiles fit on one board is not known here: the node refuses those that do not.

use crate::error::Errors;
use crate::name::{NAMES, is_name};
use crate::section::{NamedTable, Section};
use gmodel::config::MigLayout;
use gmodel::gpu_request::is_mig_profile;
use gmodel::mig::MAX_INSTANCES;

const KEYS: [&str; 4] = ["nodes", "gpu_type", "gpus", "layout"];

/// In the order of the file: the first that names a GPU counts.
pub fn read(section: &Section, errors: &mut Errors) -> Vec<MigLayout> {
    let tables = section.named_tables("mig", errors);
    tables
        .into_iter()
        .map(|table| layout(section, &table, errors))
        .collect()
}

fn layout(
    file: &Section,
    NamedTable { name, span, table }: &NamedTable,
    errors: &mut Errors,
) -> MigLayout {
    if !is_name(name) {
        errors.add(
            file.source,
            span.clone(),
            format!("[mig.{name}] has no valid name"),
            NAMES,
        );
    }
    let section = Section::open(file.source, table, &KEYS, &format!("[mig.{name}]"), errors);
    for key in ["nodes", "layout"] {
        if !section.has(key) {
            errors.add(
                file.source,
                span.clone(),
                format!("[mig.{name}] has no {key}"),
                "it says which GPUs are cut, and into what",
            );
        }
    }
    let layout: Vec<String> = section
        .texts("layout", errors)
        .unwrap_or_default()
        .iter()
        .map(|one| one.to_ascii_lowercase())
        .collect();
    if let Some(odd) = layout.iter().find(|one| !is_mig_profile(one)) {
        let message = format!("{odd:?} is no MIG profile");
        errors.add(
            file.source,
            section.span("layout"),
            message,
            "as in [\"3g.40gb\", \"3g.40gb\"]; none: the GPUs are not cut",
        );
    }
    if layout.len() > MAX_INSTANCES {
        let message = format!(
            "layout has {} instances, one GPU has {MAX_INSTANCES} at most",
            layout.len()
        );
        errors.add(
            file.source,
            section.span("layout"),
            message,
            "it is the layout of each GPU",
        );
    }
    MigLayout {
        name: (*name).to_owned(),
        nodes: section.hosts("nodes", errors).unwrap_or_default(),
        gpu_type: section.gpu_type("gpu_type", errors),
        gpus: section.number("gpus", 1..=64, errors),
        layout,
    }
}
