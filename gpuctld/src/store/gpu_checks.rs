//! What checks of GPUs in idle gaps came to: a row for each, by UUID, written in the commit of its event. Owns the table
//! `gpu_checks`; of each GPU the newest are kept, and what is judged by is in the rows of the nodes.

use super::error::WriteFailure;
use super::number::whole;
use gcore::ctl::Event;
use rusqlite::{Connection, params};

/// Rows of one GPU.
const KEPT: u32 = 400;

/// Writes what an event says of a check. One that gave way found nothing.
pub fn write(db: &Connection, seq: u64, event: &Event) -> Result<(), WriteFailure> {
    let Event::GpuChecked {
        node,
        uuid,
        gave_way_to: None,
        report,
        at,
        ..
    } = event
    else {
        return Ok(());
    };
    let report = serde_json::to_string(report)?;
    db.prepare_cached(
        "INSERT INTO gpu_checks (uuid, at_ms, seq, node, report) VALUES (?1,?2,?3,?4,?5)",
    )?
    .execute(params![uuid, at.0, whole(seq), node.0, report])?;
    db.prepare_cached(
        "DELETE FROM gpu_checks WHERE uuid = ?1 AND seq <= (SELECT seq FROM gpu_checks WHERE uuid = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute(params![uuid, KEPT])?;
    Ok(())
}
