//! `gq --why`: what stands in the way of a waiting job, a line each, and what would start it.

use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gwire::api::{BlockerRow, StartInterval, WhyRow};
use std::fmt::Write;

/// Tasks of an array that are over, together: how they ended.
pub(crate) fn ended(job: &WhyRow, times: &TimeFormat) -> String {
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
pub(crate) fn text(job: &WhyRow, times: &TimeFormat) -> String {
    let mut text = format!(
        "job {}: PENDING ({})\n",
        printable(&job.shown_id),
        job.reason
    );
    let say = |told: &str| times.in_text(&printable(told));
    if job.starts_now {
        let _ = writeln!(
            text,
            "  nothing stands in its way: it starts with the next pass of the scheduler"
        );
    }
    let line = |blocker: &BlockerRow| {
        let what = if blocker.text.is_empty() {
            blocker.code.to_string()
        } else {
            format!("{}: {}", blocker.code, say(&blocker.text))
        };
        let until = blocker
            .until
            .map(|at| format!("; until {} at the latest", times.print(at.0)))
            .unwrap_or_default();
        let from = blocker.may_preempt_from.map(|at| {
            format!(
                "; from {} on runs may be preempted for it: their protected time ends then",
                times.print(at.0)
            )
        });
        let cut = blocker.cut_from.map(|at| {
            format!(
                "; GPUs are cut for it from {} on, which takes seconds",
                times.print(at.0)
            )
        });
        format!(
            "{what}{until}{}{}\n",
            from.unwrap_or_default(),
            cut.unwrap_or_default()
        )
    };
    let there = job
        .partition
        .as_ref()
        .map(|name| format!("in {}: ", printable(name)))
        .unwrap_or_default();
    let of = |gpus: Option<&String>| {
        gpus.map(|gpus| format!("for {}: ", printable(gpus)))
            .unwrap_or_default()
    };
    let mut tell = |place: &str, blockers: &[BlockerRow]| {
        blockers
            .iter()
            .for_each(|blocker| text.push_str(&format!("  {place}{}", line(blocker))))
    };
    tell(
        &format!("{there}{}", of(job.alternative.as_ref())),
        &job.blockers,
    );
    job.alternatives.iter().for_each(|other| {
        tell(
            &format!("{there}{}", of(Some(&other.gpus))),
            &other.blockers,
        )
    });
    for other in &job.elsewhere {
        tell(
            &format!(
                "in {}: {}",
                printable(&other.partition),
                of(other.alternative.as_ref())
            ),
            &other.blockers,
        );
    }
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
    let elsewhere = job.elsewhere.iter().map(|other| {
        (
            format!("partition {}", printable(&other.partition)),
            other.ahead,
        )
    });
    let here = job
        .partition
        .as_ref()
        .map_or("its partition".to_owned(), |name| {
            format!("partition {}", printable(name))
        });
    for (partition, ahead) in std::iter::once((here, job.ahead)).chain(elsewhere) {
        let _ = match ahead {
            0 => Ok(()),
            1 => writeln!(text, "  1 job of {partition} is ahead"),
            many => writeln!(text, "  {many} jobs of {partition} are ahead"),
        };
    }
    if let Some(start) = job.expected_start {
        let place = if job.expected_nodes.is_empty() {
            String::new()
        } else {
            format!(" on {}", printable(&job.expected_nodes))
        };
        let place = job
            .expected_partition
            .as_ref()
            .map_or(place.clone(), |name| {
                format!("{place} in {}", printable(name))
            });
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
    text
}
