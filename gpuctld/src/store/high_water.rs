//! The high-water mark: a small file beside the database that says how far it has come. A database that was put back from
//! an older copy, or has lost its log, is behind it, and is not served as if all were well.
//!
//! Written at start, every few seconds while something changes, and at a clean stop; never says more than is on disk.

use crate::private_file::write_private;
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// File name in the state directory.
pub const HIGH_WATER: &str = "high-water";

/// How far a database has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HighWater {
    /// Given once to each new cluster; empty until schema 5.
    pub cluster_id: String,
    pub incarnation: u64,
    /// Number of the last event.
    pub seq: u64,
    pub next_job: u64,
}

impl HighWater {
    /// The mark of a state directory; none before there was one. One that cannot be understood is said and counts as none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(state_dir: &Path) -> std::io::Result<Option<Self>> {
        let path = state_dir.join(HIGH_WATER);
        let bytes = match std::fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let mark = serde_json::from_slice(&bytes);
        Ok(mark
            .inspect_err(|e| {
                tracing::error!(
                    "{} cannot be understood ({e}) and is made anew",
                    path.display()
                )
            })
            .ok())
    }

    /// What a database holds.
    pub fn of(db: &Connection) -> rusqlite::Result<Self> {
        let sql = "SELECT cluster_id, incarnation, seq, next_job FROM meta";
        db.query_row(sql, [], |row| {
            Ok(Self {
                cluster_id: row.get(0)?,
                incarnation: row.get(1)?,
                seq: row.get(2)?,
                next_job: row.get(3)?,
            })
        })
    }

    /// What a database holds that may be of schema 1 to 4.
    pub fn of_any_schema(db: &Connection, schema: u32) -> rusqlite::Result<Self> {
        if schema >= 5 {
            return Self::of(db);
        }
        db.query_row("SELECT incarnation, seq, next_job FROM meta", [], |row| {
            Ok(Self {
                cluster_id: String::new(),
                incarnation: row.get(0)?,
                seq: row.get(1)?,
                next_job: row.get(2)?,
            })
        })
    }

    /// Why a database cannot be what was last served here. A restore raises the incarnation, so what it brings is not behind.
    pub fn doubts(&self, found: &Self) -> Option<String> {
        let known = [&self.cluster_id, &found.cluster_id]
            .iter()
            .all(|id| !id.is_empty());
        if known && self.cluster_id != found.cluster_id {
            return Some("it is another cluster's".into());
        }
        if found.incarnation > self.incarnation {
            return None;
        }
        let behind = found.incarnation < self.incarnation
            || found.seq < self.seq
            || found.next_job < self.next_job;
        behind.then(|| {
            format!(
                "it ends with event {} and job id {}, and event {} and job id {} were committed here ({HIGH_WATER})",
                found.seq,
                found.next_job.saturating_sub(1),
                self.seq,
                self.next_job.saturating_sub(1)
            )
        })
    }

    /// Puts the mark in place, whole or not at all, and on disk.
    ///
    /// # Errors
    /// The disk's; the former mark stays.
    pub fn write(&self, state_dir: &Path) -> std::io::Result<()> {
        write_private(&state_dir.join(HIGH_WATER), &serde_json::to_vec(self)?)
    }
}

/// Writes the mark of a database. That it cannot is said, and is no reason to stop.
pub fn mark(db: &Connection, database: &Path) {
    let dir = database.parent().unwrap_or(Path::new("/"));
    let written = HighWater::of(db)
        .map_err(std::io::Error::other)
        .and_then(|mark| mark.write(dir));
    if let Err(e) = written {
        tracing::warn!("cannot write {}: {e}", dir.join(HIGH_WATER).display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(incarnation: u64, seq: u64, next_job: u64) -> HighWater {
        HighWater {
            cluster_id: "c1".into(),
            incarnation,
            seq,
            next_job,
        }
    }

    #[test]
    fn what_is_behind_or_anothers_is_doubted_and_what_a_restore_brought_is_not() {
        let noted = mark(2, 1000, 50);
        for (found, doubted) in [
            (mark(2, 1000, 50), false),
            (mark(2, 1400, 60), false),
            (mark(2, 999, 50), true),
            (mark(2, 1000, 49), true),
            (mark(1, 2000, 70), true),
            (mark(3, 10, 1_000_050), false),
            (
                HighWater {
                    cluster_id: String::new(),
                    ..mark(2, 1000, 50)
                },
                false,
            ),
            (
                HighWater {
                    cluster_id: "c2".into(),
                    ..mark(3, 5000, 500)
                },
                true,
            ),
        ] {
            assert_eq!(noted.doubts(&found).is_some(), doubted, "{found:?}");
        }
    }

    #[test]
    fn a_mark_comes_back_and_a_broken_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(HighWater::read(dir.path()).unwrap(), None);
        mark(1, 2, 3).write(dir.path()).unwrap();
        assert_eq!(HighWater::read(dir.path()).unwrap(), Some(mark(1, 2, 3)));
        std::fs::write(dir.path().join(HIGH_WATER), "{").unwrap();
        assert_eq!(HighWater::read(dir.path()).unwrap(), None);
    }
}
