//! `gq --why`: what stands in the way of a waiting job, a line each, and what would start it.

use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gwire::api::{StartInterval, WhyRow};
use std::fmt::Write;

/// The answer for people. Instants in its sentences are in the machine's time zone.
pub(crate) fn text(job: &WhyRow, times: &TimeFormat) -> String {
    let mut text = format!("job {}: PENDING ({})\n", printable(&job.shown_id), job.reason);
    let say = |told: &str| times.in_text(&printable(told));
    if job.starts_now {
        let _ = writeln!(text, "  nothing stands in its way: it starts with the next pass of the scheduler");
    }
    for blocker in &job.blockers {
        let what = if blocker.text.is_empty() { blocker.code.to_string() } else { format!("{}: {}", blocker.code, say(&blocker.text)) };
        let until = blocker.until.map(|at| format!("; until {} at the latest", times.print(at.0))).unwrap_or_default();
        let _ = writeln!(text, "  {what}{until}");
    }
    if job.blockers.is_empty() && !job.starts_now && !job.reason_text.is_empty() {
        let _ = writeln!(text, "  {}", say(&job.reason_text));
    }
    for hold in &job.holds {
        let why = if hold.reason.is_empty() { String::new() } else { format!(": {}", printable(&hold.reason)) };
        let _ = writeln!(text, "  held by {} since {}{why}", printable(&hold.owner), times.print(hold.since.0));
    }
    match job.ahead {
        0 => {}
        1 => text.push_str("  1 job of its partition is ahead\n"),
        many => {
            let _ = writeln!(text, "  {many} jobs of its partition are ahead");
        }
    }
    if let Some(start) = job.expected_start {
        let place = if job.expected_nodes.is_empty() { String::new() } else { format!(" on {}", printable(&job.expected_nodes)) };
        let _ = writeln!(text, "  starts by {}{place}, if nobody more urgent comes", times.print(start.0));
    }
    if let Some(StartInterval { earliest: Some(earliest), latest: Some(latest), record }) = &job.interval {
        let _ = writeln!(text, "  nine times in ten between {} and {}", times.print(earliest.0), times.print(latest.0));
        if let Some(record) = record.text() {
            let _ = writeln!(text, "  {}", printable(&record));
        }
    }
    for (place, change) in job.changes.iter().enumerate() {
        let when = match change.start {
            _ if change.now => "at once".to_owned(),
            Some(at) => format!("by {}", times.print(at.0)),
            None => continue,
        };
        let words = if place == 0 { "it would start" } else { "or" };
        let _ = writeln!(text, "  {words} {when} with {}", printable(&change.option));
    }
    text
}
