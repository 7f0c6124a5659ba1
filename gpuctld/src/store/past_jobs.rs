//! Jobs of another batch system that are over, written into the database while no controller runs: rows of jobs and runs as this
//! controller's own have them once they left memory, and what they used.
//!
//! No event tells of them, for nothing here decided anything: a life begins with the rows it finds. Sums by the hour are made
//! after the next start, as those of runs from before there were sums.

use super::documents::{JobDocument, common_part};
use super::error::{WriteError, WriteFailure};
use super::high_water;
use super::load::{LoadError, load_usage};
use super::number::whole;
use super::open::{DATABASE, OpenError, StateLock, check_there, open_writer};
use gcore::ctl::Job;
use gcore::ctl::state::PastRuns;
use gimport::sacct::PastJob;
use gmodel::config::ClusterConfig;
use gmodel::gpu_request::GpuRequest;
use gmodel::job::{CommonSpec, Launch, LaunchContext, MemRequest, Request, UserRef};
use gmodel::{JobId, JobSpec, Reason};
use gpolicy::usage::{Rate, UsageBook};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Jobs of one transaction.
const BATCH: u32 = 10_000;
/// Numbers that stay free between jobs that are brought and the first of this controller, for those of the last days.
const FREE_IDS: u64 = 1_000_000;

/// Why jobs are not brought.
#[derive(Debug, thiserror::Error)]
pub enum PastJobsError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// What became of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    Brought,
    /// It was brought before.
    Known,
    /// Another job has its number.
    NumberTaken,
}

/// Writes jobs; nothing else may have the database meanwhile.
pub struct PastJobs<'c> {
    db: Connection,
    path: PathBuf,
    _lock: StateLock,
    config: &'c ClusterConfig,
    /// By their document.
    specs: BTreeMap<Vec<u8>, i64>,
    last_spec: i64,
    usage: UsageBook,
    /// As it is on disk.
    written: UsageBook,
    in_batch: u32,
    newest: u64,
}

impl<'c> PastJobs<'c> {
    /// Opens the database of a cluster that no controller serves.
    ///
    /// # Errors
    /// As [`super::Store::open`].
    pub fn open(state_dir: &Path, config: &'c ClusterConfig) -> Result<Self, PastJobsError> {
        let lock = StateLock::take(state_dir)?;
        let path = state_dir.join(DATABASE);
        check_there(&path)?;
        let db = open_writer(&path, &config.name)?;
        let sqlite = |error| OpenError::sqlite(&path, error);
        let last_spec: Option<i64> = db
            .query_row("SELECT max(id) FROM specs", [], |row| row.get(0))
            .map_err(sqlite)?;
        let mut usage = load_usage(&db).map_err(|error: LoadError| error.at(&path))?;
        usage.set_zone(config.time_zone.clone());
        Ok(Self {
            written: usage.clone(),
            usage,
            db,
            path,
            _lock: lock,
            config,
            specs: BTreeMap::new(),
            last_spec: last_spec.unwrap_or(0),
            in_batch: 0,
            newest: 0,
        })
    }

    /// Adds a job, unless it is there. What was added is durable after [`Self::finish`], and in parts before.
    ///
    /// # Errors
    /// The disk's.
    pub fn add(&mut self, job: &PastJob) -> Result<Arrival, PastJobsError> {
        let added = self.try_add(job);
        added.map_err(|source| self.failure(source))
    }

    /// Puts the first number of this controller's own jobs above those that were brought, and ends.
    ///
    /// # Errors
    /// The disk's.
    pub fn finish(mut self, first_id: Option<u64>) -> Result<u64, PastJobsError> {
        let ended = self.end(first_id);
        ended.map_err(|source| self.failure(source))
    }

    fn failure(&self, source: WriteFailure) -> PastJobsError {
        WriteError {
            path: self.path.display().to_string(),
            source,
        }
        .into()
    }

    fn try_add(&mut self, job: &PastJob) -> Result<Arrival, WriteFailure> {
        if self.in_batch == 0 {
            self.db.execute_batch("BEGIN IMMEDIATE")?;
        }
        self.in_batch += 1;
        if let Some(arrival) = self.is_there(job)? {
            return Ok(arrival);
        }
        self.newest = self.newest.max(job.id);
        let spec = spec_of(job);
        self.write_job(job, &spec)?;
        if job.started.is_some() {
            self.write_run(job, &spec)?;
            self.charge(job);
        }
        if self.in_batch >= BATCH {
            self.commit()?;
        }
        Ok(Arrival::Brought)
    }

    fn is_there(&self, job: &PastJob) -> Result<Option<Arrival>, WriteFailure> {
        let sql = "SELECT user, submit_ms FROM jobs WHERE id = ?1";
        let found = self
            .db
            .prepare_cached(sql)?
            .query_row([whole(job.id)], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))
            });
        if let Some((user, submitted)) = found.optional()? {
            let is_same = user == job.owner.user && submitted == job.submitted.0;
            return Ok(Some(if is_same {
                Arrival::Known
            } else {
                Arrival::NumberTaken
            }));
        }
        // Numbers of tasks without rows of their own are their array's.
        let sql = "SELECT id + tasks > ?1 FROM arrays WHERE id <= ?1 ORDER BY id DESC LIMIT 1";
        let of_array = self
            .db
            .prepare_cached(sql)?
            .query_row([whole(job.id)], |row| row.get(0));
        Ok(of_array
            .optional()?
            .filter(|is_in: &bool| *is_in)
            .map(|_| Arrival::NumberTaken))
    }

    fn write_job(&mut self, job: &PastJob, spec: &Arc<JobSpec>) -> Result<(), WriteFailure> {
        let spec_id = self.spec_row(spec)?;
        let attempts = u32::from(job.started.is_some());
        let past = PastRuns {
            started: job.started,
            ended: Some(job.ended),
            exit: job.exit,
            ..PastRuns::default()
        };
        let record = Job {
            id: JobId(job.id),
            spec: spec.clone(),
            task: None,
            state: job.state,
            reason: Reason::default(),
            nomination: None,
            submitted: job.submitted,
            eligible: job.submitted,
            holds: Vec::new(),
            attempts,
            skipped_attempts: 0,
            live: None,
            limit_secs: job.limit_secs,
            nice: 0,
            client_key: None,
            waits: None,
            past: past.into(),
        };
        let doc = serde_json::to_vec(&JobDocument::from_job(&record))?;
        self.db
            .prepare_cached(
                "INSERT INTO jobs (id, live, spec, user, account, partition, qos, name, state, submit_ms, start_ms, end_ms, attempt,
                    limit_secs, exit, end_text, doc) VALUES (?1,0,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,'',?15)",
            )?
            .execute(params![
                whole(job.id),
                spec_id,
                spec.user.name,
                spec.account,
                spec.partition,
                spec.qos,
                spec.name,
                job.state.long(),
                job.submitted.0,
                job.started.map(|at| at.0),
                job.ended.0,
                attempts,
                job.limit_secs,
                job.exit.to_string(),
                doc,
            ])?;
        Ok(())
    }

    fn spec_row(&mut self, spec: &JobSpec) -> Result<i64, WriteFailure> {
        let doc = serde_json::to_vec(&common_part(spec))?;
        if let Some(id) = self.specs.get(&doc) {
            return Ok(*id);
        }
        self.last_spec += 1;
        let sql = "INSERT INTO specs (id, work_dir, comment, tags, doc) VALUES (?1,?2,'','[]',?3)";
        let row = params![self.last_spec, spec.launch.work_dir, doc];
        self.db.prepare_cached(sql)?.execute(row)?;
        self.specs.insert(doc, self.last_spec);
        Ok(self.last_spec)
    }

    fn write_run(&self, job: &PastJob, spec: &JobSpec) -> Result<(), WriteFailure> {
        let held = &job.held;
        self.db
            .prepare_cached(
                "INSERT INTO runs (job, attempt, live, user, account, partition, qos, name, tags, state, placed_ms, start_ms, end_ms,
                    cpus, mem_bytes, gpus, nodes, nodelist, exit, end_text, cpu_micros, peak_bytes, suspended_ms)
                 VALUES (?1,1,0,?2,?3,?4,?5,?6,'[]',?7,?8,?8,?9,?10,?11,?12,?13,?14,?15,'',?16,0,?17)",
            )?
            .execute(params![
                whole(job.id),
                spec.user.name,
                spec.account,
                spec.partition,
                spec.qos,
                spec.name,
                job.state.long(),
                job.started.map(|at| at.0),
                job.ended.0,
                held.cpus,
                whole(held.mem_bytes),
                serde_json::to_string(&held.gpus)?,
                held.nodes,
                held.nodelist,
                job.exit.to_string(),
                whole(held.cpu_used_micros),
                suspended_ms(job),
            ])?;
        Ok(())
    }

    /// As the core charges a run at its end.
    fn charge(&mut self, job: &PastJob) {
        let Some(started) = job.started else {
            return;
        };
        let qos = self.config.policy.qos.get(&job.owner.qos);
        let factor = qos.map_or(1000, |qos| qos.usage_factor_milli);
        let fair_share = &self.config.scheduler.fair_share;
        let held = &job.held;
        let rate = Rate::of_amounts(held.cpus, held.mem_bytes, &held.gpus, fair_share, factor);
        let from = started.plus_millis(suspended_ms(job)).min(job.ended);
        let (account, user) = (&job.owner.account, &job.owner.user);
        self.usage.charge(
            account,
            user,
            &rate,
            from,
            job.ended,
            fair_share.half_life_secs,
        );
    }

    fn commit(&mut self) -> Result<(), WriteFailure> {
        for (account, user, entry) in self.usage.changed_since(&self.written) {
            let sql = "INSERT OR REPLACE INTO usage (account, user, doc) VALUES (?1,?2,?3)";
            let doc = serde_json::to_vec(entry)?;
            self.db
                .prepare_cached(sql)?
                .execute(params![account, user, doc])?;
        }
        let sql = "UPDATE meta SET next_job = max(next_job, ?1)";
        self.db
            .prepare_cached(sql)?
            .execute([whole(self.newest + 1)])?;
        self.db.execute_batch("COMMIT")?;
        self.written = self.usage.clone();
        self.in_batch = 0;
        Ok(())
    }

    fn end(&mut self, first_id: Option<u64>) -> Result<u64, WriteFailure> {
        if self.in_batch == 0 {
            self.db.execute_batch("BEGIN IMMEDIATE")?;
        }
        // A job that was submitted here has an event.
        let is_new = !self
            .db
            .prepare("SELECT 1 FROM events WHERE job IS NOT NULL LIMIT 1")?
            .exists([])?;
        let free = if is_new && self.newest > 0 {
            FREE_IDS
        } else {
            0
        };
        let next = first_id.unwrap_or(0).max(self.newest + 1 + free);
        let sql = "UPDATE meta SET next_job = max(next_job, ?1)";
        self.db.execute(sql, [whole(next)])?;
        self.commit()?;
        let next = self
            .db
            .query_row("SELECT next_job FROM meta", [], |row| row.get::<_, u64>(0))?;
        self.db
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        high_water::mark(&self.db, &self.path);
        Ok(next)
    }
}

fn suspended_ms(job: &PastJob) -> i64 {
    i64::try_from(job.suspended_secs)
        .unwrap_or(i64::MAX / 1000)
        .saturating_mul(1000)
}

/// What it asked for is taken to be what it held.
fn spec_of(job: &PastJob) -> Arc<JobSpec> {
    let (owner, held) = (&job.owner, &job.held);
    let nodes = held.nodes.max(1);
    let gpus = held.gpus.iter().next().filter(|_| held.gpus.len() == 1);
    let gpus = gpus.and_then(|(kind, milli)| {
        let count = milli / 1000;
        let text = match kind.as_str() {
            gmodel::gpu_amounts::ALL_GPUS => count.to_string(),
            kind => format!("{kind}:{count}"),
        };
        GpuRequest::parse(&text).ok()
    });
    let common = CommonSpec {
        user: UserRef {
            name: owner.user.clone(),
            uid: owner.uid,
            gid: owner.gid,
        },
        partition: owner.partition.clone(),
        account: owner.account.clone(),
        qos: owner.qos.clone(),
        request: Request {
            nodes_min: nodes,
            nodes_max: nodes,
            ntasks: nodes,
            cpus_per_task: Some((held.cpus / nodes).max(1)),
            mem: MemRequest::PerNode(held.mem_bytes / u64::from(nodes)),
            gpus,
            ..Request::default()
        },
        time_limit_secs: job.limit_secs,
        ..CommonSpec::default()
    };
    let around = LaunchContext {
        work_dir: owner.work_dir.clone(),
        ..LaunchContext::default()
    };
    Arc::new(JobSpec {
        name: job.name.clone(),
        launch: Launch {
            around: around.into(),
            ..Launch::default()
        },
        common: common.into(),
    })
}
