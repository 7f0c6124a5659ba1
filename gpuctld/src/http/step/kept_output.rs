//! `POST /v1/outputs/{file}`: the first node of a run hands over the run's output. And the way back: outputs that are kept here, to clients.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::peer::CertificateHolder;
use crate::http::step::stream::{switching, upgraded};
use axum::body::Body;
use axum::extract::{Extension, Path as Named, Query, Request, State as Shared};
use axum::http::Response;
use gmodel::job_output::SpooledFile;
use gmodel::output_stream::{self, FileIdentity, OutputFrame, OutputOrder, PIECE_BYTES};
use gmodel::{NodeId, RunId, hostlist};
use gwire::api::{OUTPUT_KEPT, UploadQuery};
use gwire::min_rate::RateSwitch;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

/// A node that sends nothing for so long is not waited for.
const READ_PATIENCE: Duration = Duration::from_secs(30);
/// Runs of a job that are looked through for one.
const MAX_RUNS: u32 = 10_000;

pub(crate) async fn upload(
    Shared(site): Shared<ApiContext>,
    Named(name): Named<String>,
    Query(query): Query<UploadQuery>,
    holder: Option<Extension<CertificateHolder>>,
    Extension(switch): Extension<RateSwitch>,
    mut request: Request,
) -> Result<Response<Body>, ApiError> {
    let denied = || ApiError::denied("an output is brought by the first node of its run");
    let node = holder.ok_or_else(denied)?.0.identity.node;
    let file: SpooledFile = name
        .parse()
        .map_err(|e| ApiError::invalid(format!("{name:?}: {e}")))?;
    if !is_first_node(&site, node, file.run).await? {
        return Err(denied());
    }
    if site.app.kept.path(file).exists() {
        return Ok(Response::default());
    }
    let config = site.app.config();
    let most = config.cluster.output.max_bytes;
    if query.bytes > most {
        let text = format!(
            "{} bytes; of an output {most} are kept (output_max)",
            query.bytes
        );
        return Err(ApiError::too_large(text));
    }
    let free = nix::sys::statvfs::statvfs(&config.state_dir)
        .map_or(u64::MAX, |fs| fs.blocks_available() * fs.fragment_size());
    if free < config.min_free_bytes.saturating_add(query.bytes) {
        return Err(ApiError::unavailable(
            "the controller's disk is full (min_free)",
        ));
    }
    let permit = site.app.kept.permit(node).ok_or_else(|| {
        ApiError::unavailable("outputs of this node, or of many others, are being received")
    })?;
    let end = upgraded(&mut request)?;
    switch.turn_off();
    tokio::spawn(async move {
        if let Err(e) = receive(&site, file, query.bytes, end).await {
            tracing::info!("output {file} from node {node}: {e}");
        }
        drop(permit);
    });
    Ok(switching())
}

/// Whether the run's batch process was on this node.
async fn is_first_node(site: &ApiContext, node: NodeId, run: RunId) -> Result<bool, ApiError> {
    let state = site.core.view().await;
    if let Some(known) = state.runs.get(run) {
        return Ok(known
            .allocation
            .first()
            .is_some_and(|share| share.node == node));
    }
    let name = state.nodes.get(node).map(|node| node.name.clone());
    drop(state);
    let runs = site.core.reader().nodes_of_runs(run.job, MAX_RUNS).await?;
    let nodes = runs
        .into_iter()
        .find(|(attempt, _)| *attempt == run.attempt);
    let first = nodes.and_then(|(_, nodes)| {
        let names = hostlist::expand(&nodes, hostlist::MAX_HOSTS).ok()?;
        names.into_iter().next()
    });
    Ok(first.is_some() && first == name.map(|name| name.to_string()))
}

/// All of it to the disk, then the word that it is there.
async fn receive(
    site: &ApiContext,
    file: SpooledFile,
    bytes: u64,
    end: OnUpgrade,
) -> io::Result<()> {
    let mut node = TokioIo::new(end.await.map_err(io::Error::other)?);
    let kept = site.app.kept.clone();
    let mut part = blocking(move || kept.begin(file)).await?;
    part.file = match copy_bytes(&mut node, part.file.try_clone()?, bytes).await {
        Ok(written) => written,
        Err(e) => {
            let _ = tokio::fs::remove_file(part.path()).await;
            return Err(e);
        }
    };
    let (kept, bounds) = (site.app.kept.clone(), site.app.config().output_bounds());
    blocking(move || kept.keep(part, file, bounds)).await?;
    node.write_all(OUTPUT_KEPT.as_bytes()).await?;
    node.shutdown().await
}

async fn copy_bytes(
    node: &mut TokioIo<Upgraded>,
    part: File,
    mut missing: u64,
) -> io::Result<File> {
    let mut part = tokio::fs::File::from_std(part);
    let mut piece = vec![0; PIECE_BYTES];
    while missing > 0 {
        let most = missing.min(PIECE_BYTES as u64) as usize;
        let read = tokio::time::timeout(READ_PATIENCE, node.read(&mut piece[..most]));
        let count = read.await.map_err(|_| io::ErrorKind::TimedOut)??;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        part.write_all(&piece[..count]).await?;
        missing -= count as u64;
    }
    part.flush().await?;
    Ok(part.into_std().await)
}

/// A part of what a client is sent: the output of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptPart {
    pub(crate) attempt: u32,
    pub(crate) from: PartStart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartStart {
    Position(u64),
    /// So many lines before the end.
    Tail(u64),
}

/// Which of the kept outputs of a job's runs come before what its node has to say. `last`: the job's newest run.
pub(crate) fn missing_parts(kept: &[u32], last: u32, order: &OutputOrder) -> Vec<KeptPart> {
    let has_last = kept.contains(&last);
    let whole = |attempt: &u32| KeptPart {
        attempt: *attempt,
        from: PartStart::Position(0),
    };
    let first = match (order.file.map(FileIdentity::attempt), order.tail_lines) {
        (Some(Some(had)), _) => had,
        // A client that reads a file of the job has had what came before.
        (Some(None), _) => last,
        (None, Some(lines)) => {
            let from = PartStart::Tail(lines);
            let last = KeptPart {
                attempt: last,
                from,
            };
            return has_last.then_some(last).into_iter().collect();
        }
        (None, None) => 0,
    };
    let wanted = kept
        .iter()
        .filter(|attempt| (first..=last).contains(*attempt));
    let mut parts: Vec<KeptPart> = wanted.map(whole).collect();
    if let (Some(part), Some(file)) = (parts.first_mut(), order.file)
        && file.attempt() == Some(part.attempt)
    {
        part.from = PartStart::Position(order.position);
    }
    parts
}

/// Writes outputs to a client as frames. One that was removed meanwhile is passed over.
pub(crate) async fn send_parts(
    stream: &mut TokioIo<Upgraded>,
    parts: Vec<(PathBuf, KeptPart)>,
) -> io::Result<()> {
    for (path, part) in parts {
        let opened = blocking(move || open_at(&path, part.from)).await;
        let (file, position) = match opened {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        let begun = OutputFrame::File {
            file: FileIdentity::of_attempt(part.attempt),
            position,
        };
        stream.write_all(&begun.bytes()).await?;
        let mut file = tokio::fs::File::from_std(file);
        file.seek(io::SeekFrom::Start(position)).await?;
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let count = file.read(&mut piece).await?;
            if count == 0 {
                break;
            }
            let data = OutputFrame::Data(piece[..count].to_vec());
            stream.write_all(&data.bytes()).await?;
        }
    }
    Ok(())
}

fn open_at(path: &Path, from: PartStart) -> io::Result<(File, u64)> {
    let file = File::open(path)?;
    let end = file.metadata()?.len();
    let position = match from {
        PartStart::Position(position) => position.min(end),
        PartStart::Tail(lines) => {
            output_stream::tail_position(end, lines, |piece, at| file.read_exact_at(piece, at))?
        }
    };
    Ok((file, position))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(kept: &[u32], last: u32, order: &OutputOrder) -> Vec<(u32, PartStart)> {
        let parts = missing_parts(kept, last, order);
        parts.iter().map(|part| (part.attempt, part.from)).collect()
    }

    #[test]
    fn a_client_gets_what_it_lacks_of_each_run_once() {
        use PartStart::{Position, Tail};
        let all = OutputOrder::default();
        assert_eq!(
            parts(&[1, 3], 3, &all),
            [(1, Position(0)), (3, Position(0))]
        );
        assert_eq!(
            parts(&[1, 2], 3, &all),
            [(1, Position(0)), (2, Position(0))],
            "3 runs"
        );
        let had = |attempt, position| OutputOrder {
            file: Some(FileIdentity::of_attempt(attempt)),
            position,
            ..OutputOrder::default()
        };
        assert_eq!(
            parts(&[1, 2, 3], 3, &had(2, 7)),
            [(2, Position(7)), (3, Position(0))]
        );
        assert_eq!(
            parts(&[1, 3], 3, &had(2, 7)),
            [(3, Position(0))],
            "2 is gone"
        );
        assert_eq!(parts(&[1, 2], 3, &had(3, 7)), []);
        let of_file = OutputOrder {
            file: Some(FileIdentity {
                device: 1,
                inode: 2,
            }),
            ..OutputOrder::default()
        };
        assert_eq!(parts(&[1], 2, &of_file), []);
        assert_eq!(parts(&[1, 2], 2, &of_file), [(2, Position(0))]);
        let tail = OutputOrder {
            tail_lines: Some(2),
            ..OutputOrder::default()
        };
        assert_eq!(parts(&[1, 2], 2, &tail), [(2, Tail(2))]);
        assert_eq!(parts(&[1], 2, &tail), [], "its node counts lines");
    }
}
