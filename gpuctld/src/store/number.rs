//! Figures of the core as SQLite's integers.

/// SQLite's integers have a sign. A larger value is a bug: it is cut, a wrong figure in one row, and the
/// controller goes on.
pub(super) fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or_else(|_| {
        tracing::error!(
            value,
            "a figure is beyond what the database can hold and is cut; this is a bug"
        );
        i64::MAX
    })
}
