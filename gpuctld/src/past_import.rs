//! `gpuctld import-jobs`: what sacct listed, into the database of a controller that does not run.
//!
//! Reads the file line by line; a line that is no job is told and left out.

use crate::config::Config;
use crate::store::{Arrival, PastJobs};
use anyhow::Context;
use gimport::sacct::{MOST_LINE_BYTES, PastLine, SacctReader};
use std::fmt::Write;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// The most lines of which it is told what is wrong.
const MOST_TOLD: usize = 20;

#[derive(Default)]
struct ImportCount {
    brought: u64,
    known: u64,
    number_taken: u64,
    unfinished: u64,
    /// Lines that are no job, and the first of them.
    broken: u64,
    told: Vec<String>,
}

/// Brings the jobs of a file; what came of it.
///
/// # Errors
/// A controller runs, the file is none of sacct's, the disk says no. What was brought stays, and the next call goes on.
pub fn run(config: &Config, from: &Path, first_id: Option<u64>) -> anyhow::Result<String> {
    let cannot = || format!("cannot read {}", from.display());
    let file = File::open(from).with_context(cannot)?;
    let mut lines = BufReader::new(file);
    let head = next_line(&mut lines)
        .with_context(cannot)?
        .unwrap_or_default();
    let reader =
        SacctReader::new(&head).map_err(|why| anyhow::anyhow!("{}: {why}", from.display()))?;
    let mut jobs = PastJobs::open(&config.state_dir, &config.cluster)?;
    let mut count = ImportCount::default();
    let mut number = 1_u64;
    while let Some(line) = next_line(&mut lines).with_context(cannot)? {
        number += 1;
        match reader.line(&line, &config.cluster.time_zone) {
            Ok(PastLine::Job(job)) => match jobs.add(&job)? {
                Arrival::Brought => count.brought += 1,
                Arrival::Known => count.known += 1,
                Arrival::NumberTaken => {
                    count.number_taken += 1;
                    count.tell(
                        number,
                        &format!("job {} of {} is another job here", job.id, job.owner.user),
                    );
                }
            },
            Ok(PastLine::Step) => {}
            Ok(PastLine::Unfinished) => count.unfinished += 1,
            Err(why) => {
                count.broken += 1;
                count.tell(number, &why);
            }
        }
    }
    let next = jobs.finish(first_id)?;
    Ok(count.text(next))
}

impl ImportCount {
    fn tell(&mut self, number: u64, why: &str) {
        if self.told.len() < MOST_TOLD {
            self.told.push(format!("line {number}: {why}"));
        }
    }

    fn text(&self, next: u64) -> String {
        let mut text = format!(
            "{} jobs are brought; the first of this cluster's own will be {next} or later",
            self.brought
        );
        for (count, what) in [
            (self.known, "were there already"),
            (self.unfinished, "are not over and are left out"),
            (
                self.number_taken,
                "have the number of another job and are left out",
            ),
            (self.broken, "lines are left out"),
        ] {
            if count > 0 {
                let _ = write!(text, "\n{count} {what}");
            }
        }
        for line in &self.told {
            let _ = write!(text, "\n  {line}");
        }
        text
    }
}

/// What of a line is beyond the bound is a line of its own, which its columns give away.
fn next_line(from: &mut impl BufRead) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    let read = from
        .by_ref()
        .take(MOST_LINE_BYTES as u64 + 2)
        .read_until(b'\n', &mut line)?;
    Ok((read > 0).then(|| String::from_utf8_lossy(&line).into_owned()))
}
