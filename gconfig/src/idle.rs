//! `[partition.NAME.idle]` and `[qos.NAME.idle]`: what is done about runs with idle GPUs.
//!
//! Owns what of their keys has to fit together; what they do is gcore's affair.

use crate::error::Errors;
use crate::section::Section;
use gmodel::idle::{IdlePolicy, LEVELS};

/// Reports what does not go together in the table below a section, as it was read.
pub(crate) fn check(section: &Section, policy: &IdlePolicy, errors: &mut Errors) {
    let Some(table) = section.below("idle") else {
        return;
    };
    if !table.has("action") {
        let hint = "write action = \"report\" to see first what it would do, or \"off\"";
        let text = format!("{} has no action", section.head("idle"));
        errors.add(section.source, section.span("idle"), text, hint);
    }
    if let Err((key, wrong, hint)) = sense(policy) {
        let span = if table.has(key) {
            table.span(key)
        } else {
            section.span("idle")
        };
        errors.add(section.source, span, wrong, hint);
    }
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
