//! The history of each GPU by UUID, across moves: a line for each event that says something about one, written in its commit.
//! Owns the table `gpu_history`; what is worth a line is gcore's word.

use super::error::WriteFailure;
use gcore::ctl::GpuHistoryLine;
use rusqlite::{Connection, params};

/// Writes a line. `seq`: the number of the event that says it.
pub fn write(db: &Connection, seq: u64, line: &GpuHistoryLine) -> Result<(), WriteFailure> {
    let text = match line.kind {
        "appeared" => format!("{}{}", line.text, came_from(db, line)?),
        _ => line.text.clone(),
    };
    db.prepare_cached("INSERT INTO gpu_history (uuid, at_ms, seq, node, kind, text, automatic) VALUES (?1,?2,?3,?4,?5,?6,?7)")?
        .execute(params![line.uuid, line.at.0, seq, line.node.0, line.kind, text, line.automatic])?;
    Ok(())
}

/// `; before in node1`, when it was last seen in another node.
fn came_from(db: &Connection, line: &GpuHistoryLine) -> Result<String, WriteFailure> {
    let mut last = db.prepare_cached(
        "SELECT h.node, n.name FROM gpu_history h LEFT JOIN nodes n ON n.id = h.node WHERE h.uuid = ?1 ORDER BY h.seq DESC LIMIT 1",
    )?;
    let mut rows = last.query([&line.uuid])?;
    let Some(row) = rows.next()? else {
        return Ok(String::new());
    };
    let (node, name): (u32, Option<String>) = (row.get(0)?, row.get(1)?);
    let name = name.unwrap_or_else(|| format!("node number {node}"));
    Ok(if node == line.node.0 {
        String::new()
    } else {
        format!("; before in {name}")
    })
}
