//! Outputs of ended runs on their way from the spool to the controller. A file stays until the controller has it on its disk, and a little
//! longer for readers that were on their way; what killed this daemon meanwhile is found in the directory by the next.

use crate::run::stream::{request, send};
use crate::site::Site;
use anyhow::{Context, Result, bail};
use gmodel::job_output::SpooledFile;
use gwire::api::{OUTPUT_KEPT, STREAM_UPGRADE, UploadQuery};
use gwire::client::path_with_query;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::StatusCode;
use hyper::header::{CONNECTION, UPGRADE};
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};

/// Before what could not be sent is tried again.
const PAUSE: Duration = Duration::from_secs(5);
/// A reader that the controller sent here before it had the output finds it for so long.
const LINGER: Duration = Duration::from_secs(30);
/// The controller has the bytes on its disk within this.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// Bounds of what a node keeps for a controller that does not take it; the oldest goes first.
const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
const MAX_BYTES: u64 = 8 << 30;
const MAX_REFUSAL_BYTES: usize = 4096;

/// Sends what is there, for ever.
pub async fn keep(site: Arc<Site>) {
    let mut kept = BTreeMap::new();
    loop {
        let is_done = send_all(&site, &mut kept).await;
        tokio::select! {
            () = site.outputs.notified() => {}
            () = tokio::time::sleep(PAUSE), if !is_done => {}
        }
    }
}

struct EndedOutput {
    file: SpooledFile,
    path: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

/// True when the spool holds no output of an ended run any more. `kept`: since when the controller has each.
async fn send_all(site: &Arc<Site>, kept: &mut BTreeMap<SpooledFile, Instant>) -> bool {
    let listing = Arc::clone(site);
    let ended = match tokio::task::spawn_blocking(move || ended_outputs(&listing)).await {
        Ok(Ok(ended)) => ended,
        Ok(Err(e)) => {
            tracing::warn!("outputs in the spool: {e:#}");
            return false;
        }
        Err(_) => return false,
    };
    kept.retain(|file, _| ended.iter().any(|output| output.file == *file));
    let mut is_done = true;
    for output in ended {
        let file = output.file;
        match kept.get(&file) {
            Some(since) if since.elapsed() >= LINGER => {
                if let Err(e) = fs::remove_file(&output.path) {
                    tracing::warn!("removing the output {file}: {e}");
                    is_done = false;
                }
            }
            Some(_) => is_done = false,
            None => {
                is_done = false;
                match send_output(site, &output).await {
                    Ok(()) => drop(kept.insert(file, Instant::now())),
                    Err(e) => tracing::info!("output {file}: {e:#}; it is tried again"),
                }
            }
        }
    }
    is_done
}

/// The outputs that no supervisor writes any more, the oldest first; removes what is beyond the bounds. Blocking.
fn ended_outputs(site: &Site) -> Result<Vec<EndedOutput>> {
    let mut ended = Vec::new();
    for entry in fs::read_dir(site.spool.outputs_dir())? {
        let entry = entry?;
        let Some(file) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let SpooledFile { run, .. } = file;
        if site.spool.end(run)?.is_none() && site.spool.has(run) {
            continue;
        }
        let found = entry.metadata()?;
        ended.push(EndedOutput {
            file,
            path: entry.path(),
            bytes: found.len(),
            modified: found.modified()?,
        });
    }
    ended.sort_by_key(|output| (output.modified, output.file));
    let mut bytes: u64 = ended.iter().map(|output| output.bytes).sum();
    ended.retain(|output| {
        let age = output.modified.elapsed().unwrap_or_default();
        let is_within = bytes <= MAX_BYTES && age <= MAX_AGE;
        if !is_within && fs::remove_file(&output.path).is_ok() {
            bytes -= output.bytes;
            tracing::warn!(
                "output {} was never taken by the controller, and is removed",
                output.file
            );
        }
        is_within
    });
    Ok(ended)
}

async fn send_output(site: &Site, output: &EndedOutput) -> Result<()> {
    let mut file = tokio::fs::File::open(&output.path)
        .await?
        .take(output.bytes);
    let query = UploadQuery {
        bytes: output.bytes,
    };
    let path = path_with_query(&format!("/v1/outputs/{}", output.file), &query);
    let asks = request(&path)
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, STREAM_UPGRADE)
        .body(Empty::new())?;
    let answer = send(site, asks).await?;
    match answer.status() {
        StatusCode::SWITCHING_PROTOCOLS => {}
        // It came there by an earlier connection.
        StatusCode::OK => return Ok(()),
        status => {
            let body = Limited::new(answer.into_body(), MAX_REFUSAL_BYTES)
                .collect()
                .await;
            let text = body.map(|body| body.to_bytes()).unwrap_or_default();
            bail!("{status}: {}", String::from_utf8_lossy(&text));
        }
    }
    let mut stream = TokioIo::new(hyper::upgrade::on(answer).await?);
    copy(&mut file, &mut stream).await?;
    stream.flush().await?;
    let mut said = String::new();
    let mut answer = (&mut stream).take(MAX_REFUSAL_BYTES as u64);
    let answered = answer.read_to_string(&mut said);
    tokio::time::timeout(ANSWER_PATIENCE, answered)
        .await
        .context("the controller does not say whether it has the output")??;
    if said != OUTPUT_KEPT {
        bail!("the controller answered {said:?}");
    }
    Ok(())
}
