//! `[diagnostics]`: how GPUs are checked in idle gaps. Without it they are not.
//!
//! Owns its keys, defaults and bounds; the program is on the nodes, which look whether they may run it.

use crate::error::Errors;
use crate::name::NAMES;
use crate::section::Section;
use gmodel::gpu_check::{BUILTIN, CheckProgram, Diagnostics, MAX_WORD_BYTES};

const KEYS: [&str; 10] = [
    "program",
    "user",
    "checks",
    "timeout_secs",
    "idle_after",
    "every",
    "at_once",
    "min_fleet",
    "threshold",
    "floor_percent",
];
/// Kinds of checks that a program may be asked for.
const MAX_CHECKS: usize = 32;
const DAY_SECS: u32 = 86_400;

pub fn read(file: &Section, errors: &mut Errors) -> Option<Diagnostics> {
    let table = file.table("diagnostics", errors)?;
    let section = Section::open(file.source, table, &KEYS, "[diagnostics]", errors);
    let usual = Diagnostics::default();
    if !section.has("program") {
        errors.add(
            file.source,
            file.span("diagnostics"),
            "[diagnostics] has no program",
            "it is what checks one GPU: \"builtin\", or a path on the nodes",
        );
    }
    let program = program(&section, errors).unwrap_or_default();
    let timeout_secs = section
        .number("timeout_secs", 1..=DAY_SECS, errors)
        .unwrap_or(600);
    let idle_after_secs = section
        .secs("idle_after", 0..=7 * DAY_SECS, errors)
        .unwrap_or(usual.idle_after_secs);
    let every_secs = section
        .secs("every", 1..=365 * DAY_SECS, errors)
        .unwrap_or(usual.every_secs);
    Some(Diagnostics {
        program: CheckProgram {
            program,
            user: section.user("user", errors).unwrap_or_default(),
            checks: checks(&section, errors),
            timeout_secs,
            peer: String::new(),
        },
        idle_after_secs,
        every_secs,
        at_once: section.number("at_once", 1..=100_000, errors),
        min_fleet: section
            .number("min_fleet", 3..=100_000, errors)
            .unwrap_or(usual.min_fleet),
        threshold_milli: section
            .milli("threshold", 1000..=1_000_000, errors)
            .map_or(usual.threshold_milli, |milli| milli as u32),
        floor_milli: section
            .milli("floor_percent", 0..=100_000, errors)
            .map_or(usual.floor_milli, |milli| (milli / 100) as u32),
    })
}

/// gpupool's own, or a path.
fn program(section: &Section, errors: &mut Errors) -> Option<String> {
    let text = section.text("program", errors)?;
    if text == BUILTIN || text.starts_with('/') && !text.contains('\0') {
        return Some(text);
    }
    let message = format!("program = {text:?} is neither \"{BUILTIN}\" nor an absolute path");
    errors.add(
        section.source,
        section.span("program"),
        message,
        "begin it with /",
    );
    None
}

fn checks(section: &Section, errors: &mut Errors) -> Vec<String> {
    let names = section.names("checks", errors).unwrap_or_default();
    for (name, span) in &names {
        if name.len() > MAX_WORD_BYTES
            || !name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        {
            errors.add(
                section.source,
                span.clone(),
                format!("{name:?} is no name of a check"),
                NAMES,
            );
        }
    }
    if names.len() > MAX_CHECKS {
        let message = format!("checks has {} names, {MAX_CHECKS} are allowed", names.len());
        errors.add(
            section.source,
            section.span("checks"),
            message,
            "leave it out: the program does all it has",
        );
    }
    names.into_iter().map(|(name, _)| name).collect()
}
