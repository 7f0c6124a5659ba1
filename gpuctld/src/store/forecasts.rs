//! Forecast starts and what became of them, with a connection of their own: the core's commits never wait for more than a
//! few rows. Owns the table `forecasts`; reads of `runs` what they took.

use super::open::open_second_writer;
use gmodel::{JobId, Timestamp};
use gpolicy::run_lengths::{RunLengths, RunOwner};
use gsched::calibration::{Interval, OpenForecast, Outcome, Plans, ToldStart};
use rusqlite::{Connection, Row, params};
use std::collections::BTreeSet;
use std::path::Path;

/// Outcomes that are kept.
const KEPT: u32 = 20_000;
/// Runs of late that are learned from.
const RUNS: u32 = 5_000;
/// Rows written in one transaction.
const ROWS: usize = 200;

/// Of the database.
pub type StoreResult<T> = rusqlite::Result<T>;

/// The table of forecasts.
pub struct ForecastStore {
    db: Connection,
}

impl ForecastStore {
    /// # Errors
    /// The database's.
    pub fn open(database: &Path) -> rusqlite::Result<Self> {
        Ok(Self {
            db: open_second_writer(database)?,
        })
    }

    /// # Errors
    /// The database's.
    pub fn say(&mut self, open: &[OpenForecast]) -> rusqlite::Result<()> {
        const SQL: &str = "INSERT OR REPLACE INTO forecasts (job, age, partition, at_ms, expected_ms, at_limits_ms, earliest_ms, latest_ms, sampled)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        for some in open.chunks(ROWS) {
            let turn = self.db.transaction()?;
            for OpenForecast {
                job,
                partition,
                said,
                sampled,
            } in some
            {
                let interval = said
                    .interval
                    .map(|interval| (interval.earliest.0, interval.latest.0))
                    .unzip();
                let Plans {
                    expected,
                    at_limits,
                } = said.plans;
                let values = params![
                    job.0,
                    said.age,
                    partition,
                    said.at.0,
                    expected.0,
                    at_limits.0,
                    interval.0,
                    interval.1,
                    sampled
                ];
                turn.prepare_cached(SQL)?.execute(values)?;
            }
            turn.commit()?;
        }
        Ok(())
    }

    /// # Errors
    /// The database's.
    pub fn close(
        &mut self,
        outcomes: &[Outcome],
        forgotten: &BTreeSet<JobId>,
    ) -> rusqlite::Result<()> {
        for some in outcomes.chunks(ROWS) {
            let turn = self.db.transaction()?;
            for one in some {
                turn.prepare_cached(
                    "UPDATE forecasts SET ended_ms = ?3, started = ?4 WHERE job = ?1 AND age = ?2",
                )?
                .execute(params![
                    one.job.0,
                    one.said.age,
                    one.ended.0,
                    one.started
                ])?;
            }
            turn.commit()?;
        }
        for job in forgotten {
            self.db
                .prepare_cached("DELETE FROM forecasts WHERE job = ?1 AND ended_ms IS NULL")?
                .execute([job.0])?;
        }
        Ok(())
    }

    /// Those that are known, in the order in which they came.
    ///
    /// # Errors
    /// The database's.
    pub fn outcomes(&self) -> rusqlite::Result<Vec<Outcome>> {
        const SQL: &str = "SELECT job, age, partition, at_ms, expected_ms, at_limits_ms, earliest_ms, latest_ms, sampled, ended_ms, started
            FROM forecasts WHERE ended_ms IS NOT NULL ORDER BY ended_ms, job, age";
        let outcome = |row: &Row<'_>| {
            let OpenForecast {
                job,
                partition,
                said,
                sampled,
            } = line(row)?;
            Ok(Outcome {
                job,
                partition,
                said,
                sampled,
                ended: Timestamp(row.get(9)?),
                started: row.get(10)?,
            })
        };
        self.db.prepare(SQL)?.query_map([], outcome)?.collect()
    }

    /// # Errors
    /// The database's.
    pub fn open_forecasts(&self) -> rusqlite::Result<Vec<OpenForecast>> {
        const SQL: &str = "SELECT job, age, partition, at_ms, expected_ms, at_limits_ms, earliest_ms, latest_ms, sampled
            FROM forecasts WHERE ended_ms IS NULL ORDER BY job, age";
        self.db.prepare(SQL)?.query_map([], line)?.collect()
    }

    /// Lengths of recent runs that ended by themselves, at their limit, or by cancellation.
    ///
    /// # Errors
    /// The database's.
    pub fn run_lengths(&self) -> rusqlite::Result<RunLengths> {
        const SQL: &str = "SELECT account, user, partition, limit_secs, start_ms, end_ms FROM (
                SELECT r.account, r.user, r.partition, json_extract(j.doc, '$.limit_secs') AS limit_secs, r.start_ms, r.end_ms
                FROM runs r JOIN jobs j ON j.id = r.job
                WHERE r.end_ms IS NOT NULL AND r.start_ms IS NOT NULL
                  AND r.state IN ('COMPLETED', 'FAILED', 'TIMEOUT', 'DEADLINE', 'CANCELLED', 'OUT_OF_MEMORY')
                ORDER BY r.end_ms DESC LIMIT ?1)
            ORDER BY end_ms";
        let mut lengths = RunLengths::default();
        let mut statement = self.db.prepare(SQL)?;
        let mut rows = statement.query([RUNS])?;
        while let Some(row) = rows.next()? {
            let (account, user, partition): (String, String, String) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            let (start, end): (i64, i64) = (row.get(4)?, row.get(5)?);
            let whose = RunOwner {
                account: &account,
                user: &user,
                partition: &partition,
            };
            lengths.note(whose, row.get(3)?, (end - start) / 1000);
        }
        Ok(lengths)
    }

    /// Removes what is older than what is kept.
    ///
    /// # Errors
    /// The database's.
    pub fn prune(&self) -> rusqlite::Result<()> {
        const SQL: &str = "DELETE FROM forecasts WHERE ended_ms < (
            SELECT ended_ms FROM forecasts WHERE ended_ms IS NOT NULL ORDER BY ended_ms DESC LIMIT 1 OFFSET ?1)";
        self.db.execute(SQL, [KEPT])?;
        Ok(())
    }
}

fn line(row: &Row<'_>) -> rusqlite::Result<OpenForecast> {
    let (earliest, latest): (Option<i64>, Option<i64>) = (row.get(6)?, row.get(7)?);
    let interval = earliest.zip(latest).map(|(earliest, latest)| Interval {
        earliest: Timestamp(earliest),
        latest: Timestamp(latest),
    });
    let plans = Plans {
        expected: Timestamp(row.get(4)?),
        at_limits: Timestamp(row.get(5)?),
    };
    let said = ToldStart {
        age: row.get(1)?,
        at: Timestamp(row.get(3)?),
        plans,
        interval,
    };
    Ok(OpenForecast {
        job: JobId(row.get(0)?),
        partition: row.get(2)?,
        said,
        sampled: row.get(8)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forecasts_are_there_after_a_restart_with_what_came_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = crate::store::Store::open_or_make(dir.path()).unwrap();
        let path = store.path().to_owned();
        let at = Timestamp::from_secs;
        let line = |job, age, interval| OpenForecast {
            job: JobId(job),
            partition: "p".into(),
            said: ToldStart {
                age,
                at: at(100),
                plans: Plans {
                    expected: at(200),
                    at_limits: at(400),
                },
                interval,
            },
            sampled: job == 1,
        };
        let interval = Some(Interval {
            earliest: at(150),
            latest: at(300),
        });
        let lines = [
            line(1, 0, interval),
            line(1, 1, None),
            line(2, 0, interval),
            line(3, 0, None),
            line(4, 0, interval),
        ];
        let mut forecasts = ForecastStore::open(&path).unwrap();
        forecasts.say(&lines).unwrap();
        let outcome = |line: &OpenForecast, ended, started| Outcome {
            job: line.job,
            partition: line.partition.clone(),
            said: line.said,
            sampled: line.sampled,
            ended: at(ended),
            started,
        };
        let outcomes = [
            outcome(&lines[2], 170, false),
            outcome(&lines[0], 180, true),
            outcome(&lines[1], 180, true),
        ];
        forecasts
            .close(&outcomes, &BTreeSet::from([JobId(3)]))
            .unwrap();
        drop(forecasts);
        let again = ForecastStore::open(&path).unwrap();
        assert_eq!(again.outcomes().unwrap(), outcomes);
        assert_eq!(again.open_forecasts().unwrap(), lines[4..]);
        again.prune().unwrap();
        assert_eq!(again.outcomes().unwrap().len(), 3);
    }
}
