//! Scripts and environments, by their SHA-256: the table `blobs`, written once for many jobs.

use super::error::WriteFailure;
use gmodel::{BlobId, Timestamp};
use rusqlite::{Connection, params};
use std::collections::HashMap;

const MILLIS_PER_DAY: i64 = 24 * 3600 * 1000;
/// Blobs with a row that is known to be of today; above this the memory starts anew.
const KNOWN_BLOBS: usize = 4096;

/// A script or an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    pub sha: [u8; 32],
    pub data: Vec<u8>,
}

impl Blob {
    pub fn id(&self) -> BlobId {
        BlobId::of_sha(self.sha)
    }
}

/// Blobs written or renewed lately: a user's environment is the same for a thousand jobs.
#[derive(Debug, Default)]
pub struct RecentBlobs {
    /// Day of the row's `last_use`.
    days: HashMap<[u8; 32], i64>,
}

impl RecentBlobs {
    pub fn put(
        &mut self,
        db: &Connection,
        blob: &Blob,
        now: Timestamp,
    ) -> Result<(), WriteFailure> {
        let day = now.0.div_euclid(MILLIS_PER_DAY);
        if self.is_known(blob.sha, day) {
            return Ok(());
        }
        db.prepare_cached(
            "INSERT INTO blobs (sha, last_use, data) VALUES (?1,?2,?3)
             ON CONFLICT (sha) DO UPDATE SET last_use=?2",
        )?
        .execute(params![blob.sha, day, blob.data])?;
        Ok(())
    }

    /// A blob is removed some time after its last use; the end of a job is one.
    pub fn touch(
        &mut self,
        db: &Connection,
        id: &BlobId,
        now: Timestamp,
    ) -> Result<(), WriteFailure> {
        let day = now.0.div_euclid(MILLIS_PER_DAY);
        let Some(sha) = id.sha() else { return Ok(()) };
        if !self.is_known(sha, day) {
            db.prepare_cached("UPDATE blobs SET last_use=?2 WHERE sha=?1 AND last_use<?2")?
                .execute(params![sha, day])?;
        }
        Ok(())
    }

    fn is_known(&mut self, sha: [u8; 32], day: i64) -> bool {
        if self.days.get(&sha) == Some(&day) {
            return true;
        }
        if self.days.len() >= KNOWN_BLOBS {
            self.days.clear();
        }
        self.days.insert(sha, day);
        false
    }
}
