//! The history of a job: its stored events, the newest within bounds.

use super::stored::{ReadResult, bytes};
use gmodel::{JobId, NodeId, RunId, Timestamp};
use rusqlite::Connection;

/// Lines of history given out for one job, and what they may take, bytes: the newest.
const HISTORY_LINES: u32 = 10_000;
const HISTORY_BYTES: usize = 4 << 20;

/// One line of a job's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryLine {
    pub seq: u64,
    pub at: Timestamp,
    /// Name of the event: `job_submitted`.
    pub kind: String,
    pub run: Option<RunId>,
    pub node: Option<NodeId>,
    /// The event as JSON.
    pub doc: String,
}

/// The events of a job, the oldest first.
pub struct History {
    pub lines: Vec<HistoryLine>,
    /// There is more, older than these.
    pub is_cut: bool,
}

pub fn history(db: &Connection, job: JobId) -> ReadResult<History> {
    // Events of the array before a task had a record of its own are events of the task.
    const SQL: &str = "SELECT seq, at, kind, job, attempt, node, doc FROM events
        WHERE job IN (?1, (SELECT array_id FROM jobs WHERE id = ?1)) ORDER BY seq DESC LIMIT ?2";
    let mut statement = db.prepare_cached(SQL)?;
    let newest = statement.query_map((job.0, HISTORY_LINES), |row| {
        let attempt: Option<u32> = row.get(4)?;
        let job = JobId(row.get(3)?);
        Ok(HistoryLine {
            seq: row.get(0)?,
            at: Timestamp(row.get(1)?),
            kind: row.get(2)?,
            run: attempt
                .filter(|attempt| *attempt > 0)
                .map(|attempt| RunId::new(job, attempt)),
            node: row.get::<_, Option<u32>>(5)?.map(NodeId),
            doc: String::from_utf8_lossy(&bytes(row, 6)?).into_owned(),
        })
    })?;
    let (mut lines, mut bytes) = (Vec::new(), 0);
    let mut is_cut = false;
    for line in newest {
        let line = line?;
        bytes += line.doc.len();
        is_cut = bytes > HISTORY_BYTES || lines.len() + 1 == HISTORY_LINES as usize;
        if is_cut {
            break;
        }
        lines.push(line);
    }
    lines.reverse();
    // The first task has the array's id: its runs are not another task's.
    lines.retain(|line| line.run.is_none_or(|run| run.job == job));
    Ok(History { lines, is_cut })
}
