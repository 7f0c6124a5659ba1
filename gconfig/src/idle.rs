//! `[partition.NAME.idle]` and `[qos.NAME.idle]`: what is done about runs with idle GPUs.
//!
//! Owns their keys, bounds and what has to fit together; what they do is gcore's affair.

use crate::error::Errors;
use crate::section::Section;
use gmodel::idle::{IdleAction, IdlePolicy, LEVELS};

const KEYS: [&str; 6] = [
    "action",
    "warn_after",
    "act_after",
    "grace",
    "gpus_percent",
    "max_requeues",
];
/// Most times that a job goes back to the queue for idleness.
pub const MAX_REQUEUES: u32 = 1000;
/// Longest time that any of it may be, seconds.
pub const MAX_SECS: u32 = 30 * 86_400;

/// The table below one of `holder`, if it is there.
pub fn idle(section: &Section, holder: &str, errors: &mut Errors) -> Option<IdlePolicy> {
    let what = format!("[{holder}.idle]");
    let table = section.table("idle", errors)?;
    let table = Section::open(section.source, table, &KEYS, &what, errors);
    let usual = IdlePolicy::default();
    if !table.has("action") {
        let hint = "write action = \"report\" to see first what it would do, or \"off\"";
        errors.add(
            section.source,
            section.span("idle"),
            format!("{what} has no action"),
            hint,
        );
    }
    let mut secs = |key, least, usual| table.secs(key, least..=MAX_SECS, errors).unwrap_or(usual);
    let policy = IdlePolicy {
        warn_after_secs: secs("warn_after", 1, usual.warn_after_secs),
        act_after_secs: secs("act_after", 1, usual.act_after_secs),
        grace_secs: secs("grace", 0, usual.grace_secs),
        action: table
            .word("action", &IdleAction::ALL, errors)
            .unwrap_or_default(),
        gpus_percent: table
            .number("gpus_percent", 1..=100, errors)
            .unwrap_or(usual.gpus_percent),
        max_requeues: table
            .number("max_requeues", 0..=MAX_REQUEUES, errors)
            .unwrap_or(usual.max_requeues),
    };
    if let Err((key, wrong, hint)) = sense(&policy) {
        let span = if table.has(key) {
            table.span(key)
        } else {
            section.span("idle")
        };
        errors.add(section.source, span, wrong, hint);
    }
    Some(policy)
}

/// Whether a policy makes sense in itself.
///
/// # Errors
/// The key, what is wrong with it, and what would do.
pub fn sense(policy: &IdlePolicy) -> Result<(), (&'static str, String, &'static str)> {
    let IdlePolicy {
        warn_after_secs,
        act_after_secs,
        gpus_percent,
        ..
    } = policy;
    if !LEVELS.contains(gpus_percent) {
        return Err((
            "gpus_percent",
            format!("gpus_percent = {gpus_percent} is not followed"),
            "25, 50, 75 or 100",
        ));
    }
    if act_after_secs <= warn_after_secs {
        let wrong = format!(
            "act_after is {act_after_secs} s, and the warning comes after {warn_after_secs} s"
        );
        return Err((
            "act_after",
            wrong,
            "make it more than warn_after, so that there is time to do something about it",
        ));
    }
    Ok(())
}
