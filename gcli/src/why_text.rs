//! `gq --why`: what stands in the way of a waiting job, a line each, and what would start it. The page of the controller shows the same lines.

use crate::local_time::TimeFormat;
use crate::printable::printable;
use gwire::api::{BlockerRow, StartInterval, WhyRow};
use std::fmt::Write;

/// Tasks of an array that are over, together: how they ended.
pub fn ended(job: &WhyRow, times: &TimeFormat) -> String {
    let why = if job.end_text.is_empty() {
        String::new()
    } else {
        format!(": {}", times.in_text(&printable(&job.end_text)))
    };
    format!(
        "job {}: {}{why}\n",
        printable(&job.shown_id),
        job.state.long()
    )
}

/// The answer for people. Instants in its sentences are in the machine's time zone.
pub fn text(job: &WhyRow, times: &TimeFormat) -> String {
    let mut text = format!(
        "job {}: PENDING ({})\n",
        printable(&job.shown_id),
        job.reason
    );
    if job.starts_now {
        text.push_str(
            "  nothing stands in its way: it starts with the next pass of the scheduler\n",
        );
    }
    blockers(&mut text, job, times);
    let say = |told: &str| times.in_text(&printable(told));
    if let Some(borrows) = &job.borrows {
        let _ = writeln!(text, "  it would start on borrowed GPUs: {}", say(borrows));
    }
    if job.blockers.is_empty()
        && job.holds.is_empty()
        && !job.starts_now
        && !job.reason_text.is_empty()
    {
        let _ = writeln!(text, "  {}", say(&job.reason_text));
    }
    for hold in &job.holds {
        let why = if hold.reason.is_empty() {
            String::new()
        } else {
            format!(": {}", printable(&hold.reason))
        };
        let _ = writeln!(
            text,
            "  held by {} since {}{why}",
            printable(&hold.owner),
            times.print(hold.since.0)
        );
    }
    jobs_ahead(&mut text, job);
    expected_start(&mut text, job, times);
    changes(&mut text, job, times);
    text
}

/// What stands in its way here, with other GPUs, and in its other partitions.
fn blockers(text: &mut String, job: &WhyRow, times: &TimeFormat) {
    let with_gpus = |gpus: Option<&String>| {
        gpus.map(|gpus| format!("for {}: ", printable(gpus)))
            .unwrap_or_default()
    };
    let mut tell = |place: &str, gpus: Option<&String>, blockers: &[BlockerRow]| {
        for blocker in blockers {
            let line = blocker_text(blocker, times);
            let _ = writeln!(text, "  {place}{}{line}", with_gpus(gpus));
        }
    };
    let here = job
        .partition
        .as_ref()
        .map(|name| format!("in {}: ", printable(name)))
        .unwrap_or_default();
    tell(&here, job.alternative.as_ref(), &job.blockers);
    for other in &job.alternatives {
        tell(&here, Some(&other.gpus), &other.blockers);
    }
    for other in &job.elsewhere {
        let there = format!("in {}: ", printable(&other.partition));
        tell(&there, other.alternative.as_ref(), &other.blockers);
    }
}

fn blocker_text(blocker: &BlockerRow, times: &TimeFormat) -> String {
    let mut text = blocker.code.to_string();
    if !blocker.text.is_empty() {
        let _ = write!(text, ": {}", times.in_text(&printable(&blocker.text)));
    }
    if let Some(at) = blocker.until {
        let _ = write!(text, "; until {} at the latest", times.print(at.0));
    }
    if let Some(at) = blocker.may_preempt_from {
        let _ = write!(
            text,
            "; from {} on runs may be preempted for it: their protected time ends then",
            times.print(at.0)
        );
    }
    if let Some(at) = blocker.cut_from {
        let _ = write!(
            text,
            "; GPUs are cut for it from {} on, which takes seconds",
            times.print(at.0)
        );
    }
    text
}

/// How many jobs come before it, in each of its partitions.
fn jobs_ahead(text: &mut String, job: &WhyRow) {
    let partition = |name: &str| format!("partition {}", printable(name));
    let here = job
        .partition
        .as_ref()
        .map_or("its partition".to_owned(), |name| partition(name));
    let elsewhere = job
        .elsewhere
        .iter()
        .map(|other| (partition(&other.partition), other.ahead));
    for (partition, ahead) in std::iter::once((here, job.ahead)).chain(elsewhere) {
        let _ = match ahead {
            0 => Ok(()),
            1 => writeln!(text, "  1 job of {partition} is ahead"),
            many => writeln!(text, "  {many} jobs of {partition} are ahead"),
        };
    }
}

/// When and where it starts by the forecast, and how well forecasts of such jobs held.
fn expected_start(text: &mut String, job: &WhyRow, times: &TimeFormat) {
    if let Some(start) = job.expected_start {
        let mut place = String::new();
        if !job.expected_nodes.is_empty() {
            let _ = write!(place, " on {}", printable(&job.expected_nodes));
        }
        if let Some(name) = &job.expected_partition {
            let _ = write!(place, " in {}", printable(name));
        }
        let _ = writeln!(
            text,
            "  starts by {}{place}, unless a more urgent job comes",
            times.print(start.0)
        );
    }
    if let Some(StartInterval {
        earliest: Some(earliest),
        latest: Some(latest),
        record,
    }) = &job.interval
    {
        let _ = writeln!(
            text,
            "  nine times in ten between {} and {}",
            times.print(earliest.0),
            times.print(latest.0)
        );
        if let Some(record) = record.text() {
            let _ = writeln!(text, "  {}", printable(&record));
        }
    }
}

/// Changes of the request that would start it.
fn changes(text: &mut String, job: &WhyRow, times: &TimeFormat) {
    for (place, change) in job.changes.iter().enumerate() {
        let when = match change.start {
            _ if change.now => "at once".to_owned(),
            Some(at) => format!("by {}", times.print(at.0)),
            None => continue,
        };
        let words = if place == 0 { "it would start" } else { "or" };
        // A change that is no option of gsub is made to the pending job, or to the array of a task.
        let array = job.shown_id.split('_').next().unwrap_or_default();
        let with = if change.option.starts_with("--") {
            String::new()
        } else {
            format!("gadm job update {} ", printable(array))
        };
        let _ = writeln!(
            text,
            "  {words} {when} with {with}{}",
            printable(&change.option)
        );
    }
}
