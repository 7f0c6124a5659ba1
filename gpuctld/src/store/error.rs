//! Failures of reads and writes of the database, and what each asks of an administrator.

use rusqlite::ErrorCode;

/// A write that did not become durable. Nothing of its batch may be answered.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to {path}")]
pub struct WriteError {
    pub(super) path: String,
    #[source]
    pub(super) source: WriteFailure,
}

/// What a file that turned out damaged asks of an administrator.
pub const DAMAGED: &str = "the database is damaged: its disk gave back other bytes than were written. Keep the file, and restore the newest backup (backups are made with gadm backup)";

impl WriteError {
    /// There was no room on the disk: the same batch may be written again.
    pub fn is_full(&self) -> bool {
        self.code() == Some(ErrorCode::DiskFull)
    }
    /// The file is not what was written to it.
    pub fn is_damage(&self) -> bool {
        self.code().is_some_and(is_damage)
    }
    fn code(&self) -> Option<ErrorCode> {
        match &self.source {
            WriteFailure::Sqlite(error) => error.sqlite_error_code(),
            WriteFailure::Record(_) => None,
        }
    }
}

pub(super) fn is_damage(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
}

#[derive(Debug, thiserror::Error)]
pub(super) enum WriteFailure {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error("a record cannot be put into JSON")]
    Record(#[from] serde_json::Error),
}

impl WriteError {
    /// The database or its disk failed; else a record could not be written as it was, which is a bug.
    pub fn is_of_disk(&self) -> bool {
        matches!(
            self.source,
            WriteFailure::Sqlite(rusqlite::Error::SqliteFailure(..))
        )
    }
}

/// The database did not answer a question.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}")]
pub struct ReadError {
    pub(super) path: String,
    #[source]
    pub(super) source: ReadFailure,
}

#[derive(Debug, thiserror::Error)]
pub enum ReadFailure {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error("a stored record is not what this release writes")]
    Record(#[from] serde_json::Error),
    /// The question itself was wrong.
    #[error("{0}")]
    Question(String),
}

impl ReadError {
    /// The text for the client, when the question was wrong.
    pub fn question(&self) -> Option<&str> {
        match &self.source {
            ReadFailure::Question(text) => Some(text),
            _ => None,
        }
    }
}
