//! What became of a GPU: its lines, oldest first, whichever node it was in.

use super::stored::ReadResult;
use crate::store::error::ReadFailure;
use gmodel::gpu_check::CheckReport;
use gmodel::{Instant, Timestamp};
use gwire::api::GpuHistoryRow;
use rusqlite::Connection;

/// Lines of one answer: the newest ones.
const MAX_LINES: u32 = 10_000;

/// By UUID or the beginning of one. What checks found stands among the rest.
pub fn lines(db: &Connection, gpu: &str) -> ReadResult<Vec<GpuHistoryRow>> {
    let Some(uuid) = uuid_of(db, gpu)? else {
        return Ok(Vec::new());
    };
    let mut statement = db.prepare_cached(
        "SELECT h.at_ms, coalesce(n.name, 'node number ' || h.node), h.kind, h.text FROM
             (SELECT at_ms, seq, node, kind, text FROM gpu_history WHERE uuid = ?1
              UNION ALL SELECT at_ms, seq, node, NULL, report FROM gpu_checks WHERE uuid = ?1) h
         LEFT JOIN nodes n ON n.id = h.node ORDER BY h.seq DESC LIMIT ?2",
    )?;
    let line = |row: &rusqlite::Row<'_>| {
        let at = Some(Instant(Timestamp(row.get(0)?)));
        let (kind, text): (Option<String>, String) = (row.get(2)?, row.get(3)?);
        let (kind, text) = match kind {
            Some(kind) => (kind, text),
            None => (
                "checked".to_owned(),
                serde_json::from_str::<CheckReport>(&text)
                    .unwrap_or_default()
                    .words(),
            ),
        };
        Ok(GpuHistoryRow {
            uuid: uuid.clone(),
            at,
            node: row.get(1)?,
            kind,
            text,
        })
    };
    let lines: rusqlite::Result<Vec<GpuHistoryRow>> =
        statement.query_map((&uuid, MAX_LINES), line)?.collect();
    Ok(lines?.into_iter().rev().collect())
}

/// The one that begins so. The bound above is the beginning with its last letter raised: an index does it.
fn uuid_of(db: &Connection, gpu: &str) -> ReadResult<Option<String>> {
    let Some((at, last)) = gpu.char_indices().last() else {
        return Ok(None);
    };
    let above = format!(
        "{}{}",
        &gpu[..at],
        char::from_u32(u32::from(last) + 1).unwrap_or(char::MAX)
    );
    let mut statement = db.prepare_cached(
        "SELECT DISTINCT uuid FROM gpu_history WHERE uuid >= ?1 AND uuid < ?2 LIMIT 3",
    )?;
    let found: rusqlite::Result<Vec<String>> = statement
        .query_map((gpu, above), |row| row.get(0))?
        .collect();
    let found = found?;
    match &found[..] {
        _ if found.iter().any(|uuid| uuid == gpu) => Ok(Some(gpu.to_owned())),
        [] => Ok(None),
        [uuid] => Ok(Some(uuid.clone())),
        _ => Err(ReadFailure::Question(format!(
            "{gpu:?} is the beginning of several UUIDs, {} among them. Write more of it",
            found.join(", ")
        ))),
    }
}
