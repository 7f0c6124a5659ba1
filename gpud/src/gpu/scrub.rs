//! Scrubs the memory of GPUs between tenants, where a partition asks for it: writes zeros after a run and reads all of the memory back.
//! A GPU without a proven scrub gets no job, and is tried again. How the program is run is `check_program`.

use crate::gpu::check_program;
use crate::site::Site;
use anyhow::{Result, bail};
use gmodel::RunId;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A GPU that did not come clean is tried again so often.
const AGAIN_AFTER: Duration = Duration::from_secs(15);

/// Scrubs the GPUs of a run that ended; a GPU that is not scrubbed gets no job. The outcome, for the run's log.
/// Blocking, and safe to repeat.
pub fn after_run(site: &Site, run: RunId, gpus: &[String]) -> String {
    let Some(watch) = &site.gpu_watch else {
        return String::new();
    };
    let begun = Instant::now();
    let one = |uuid: &String| match watch.is_clean(uuid) {
        true => scrub(site, uuid),
        // What is left on it has to go first.
        false => bail!("something was left on it"),
    };
    let outcomes: Vec<Result<String>> = std::thread::scope(|threads| {
        let all: Vec<_> = gpus
            .iter()
            .map(|uuid| threads.spawn(|| one(uuid)))
            .collect();
        all.into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("its thread ended")))
            .collect()
    });
    let mut words = Vec::new();
    for (uuid, outcome) in gpus.iter().zip(outcomes) {
        match outcome {
            Ok(found) => words.push(found),
            Err(e) => {
                let why = format!("after run {run}, its memory was not scrubbed: {e:#}");
                watch.not_scrubbed(uuid, &why, &site.gpus);
                words.push(format!(
                    "GPU {uuid} is not given out: its memory was not scrubbed: {e:#}"
                ));
            }
        }
    }
    format!(
        "GPU memory scrubbed: {}; in {:.1} s",
        words.join("; "),
        begun.elapsed().as_secs_f64()
    )
}

/// Begins to scrub what waits for it, each on a thread.
pub fn again(site: &Arc<Site>) {
    let Some(watch) = &site.gpu_watch else { return };
    for uuid in watch.to_scrub(&site.spool) {
        let mut tries = site.scrub_tries.lock().expect("no holder panics");
        let must_wait = |ended: &Option<Instant>| ended.is_none_or(|at| at.elapsed() < AGAIN_AFTER);
        if tries.get(&uuid).is_some_and(must_wait) {
            continue;
        }
        tries.insert(uuid.clone(), None);
        let site = Arc::clone(site);
        std::thread::spawn(move || try_again(&site, &uuid));
    }
}

fn try_again(site: &Site, uuid: &str) {
    let Some(watch) = &site.gpu_watch else { return };
    match scrub(site, uuid) {
        Ok(words) => {
            tracing::info!("GPU {uuid}: its memory is scrubbed: {words}");
            watch.scrubbed(uuid, &site.gpus);
        }
        Err(e) => tracing::warn!("GPU {uuid}: its memory was not scrubbed: {e:#}"),
    }
    site.scrub_tries
        .lock()
        .expect("no holder panics")
        .insert(uuid.to_owned(), Some(Instant::now()));
}

fn scrub(site: &Site, uuid: &str) -> Result<String> {
    match check_program::scrub(site, uuid)? {
        Ok(results) => match results.iter().find(|result| result.check == "scrub") {
            Some(result) if result.passed == Some(true) => Ok(result.text.clone()),
            Some(result) => bail!("{}", result.text),
            None => bail!("gcheck does not say what came of it"),
        },
        Err(trouble) => bail!("gcheck {trouble}"),
    }
}
