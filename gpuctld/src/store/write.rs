//! One commit: the batch's events, the blobs of its submissions, and each row it touched, once, from the state
//! after it. Rows of runs that already left the state are closed from the events.

use super::blob::{Blob, RecentBlobs};
use super::documents::{ArrayDocument, JobDocument, common_part};
use super::error::WriteFailure;
use super::granted_gpus::GrantedGpus;
use super::number::whole;
use super::spec_ids::SpecIds;
use super::{gpu_checks, gpu_history, gpu_use, usage_sums};
use gcore::ctl::state::{Array, Job, Outcome, Run};
use gcore::ctl::{Event, State};
use gmodel::billing::Billing;
use gmodel::gpu_use::GpuUseTotals;
use gmodel::run::{Allocation, NodeShare};
use gmodel::{ExitCode, JobId, JobSpec, NodeId, RunClass, RunId, Timestamp, TokenId, UserToken};
use gpolicy::usage::UsageBook;
use rusqlite::{Connection, params, params_from_iter};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

type Result<T> = std::result::Result<T, WriteFailure>;

const MILLIS_PER_DAY: i64 = 24 * 3600 * 1000;

/// What one commit writes: facts in order, and the blobs of the submissions among them.
#[derive(Debug, Default)]
pub struct Batch {
    pub events: Vec<Event>,
    pub blobs: Vec<Blob>,
    /// For events that carry no time of their own.
    pub now: Timestamp,
}

/// The writing connection, and what is known of the rows that it wrote.
#[derive(Debug)]
pub struct Writer {
    pub(super) db: Connection,
    specs: SpecIds,
    /// After the last batch, to see which nodes' orders changed.
    generations: BTreeMap<NodeId, u64>,
    blobs: RecentBlobs,
    /// As of the last commit, to see which rows changed.
    usage: Arc<UsageBook>,
    user_tokens: TokenRecords,
    billing: Arc<Billing>,
}

type TokenRecords = Arc<BTreeMap<TokenId, Arc<UserToken>>>;

impl Writer {
    /// `state`: as it was loaded.
    pub fn new(db: Connection, specs: SpecIds, state: &State) -> Self {
        Self {
            db,
            specs,
            generations: state.nodes.values().map(|n| (n.id, n.generation)).collect(),
            blobs: RecentBlobs::default(),
            usage: state.usage.clone(),
            user_tokens: state.tokens.users.clone(),
            billing: state.billing.clone(),
        }
    }

    /// Writes a batch in one transaction; returns the nodes with changed orders.
    ///
    /// # Errors
    /// Nothing of the batch is durable.
    pub fn write(&mut self, state: &State, batch: &Batch) -> Result<Vec<NodeId>> {
        let (usage, user_tokens) = (self.usage.clone(), self.user_tokens.clone());
        let billing = self.billing.clone();
        self.commit(state, batch).inspect_err(|_| {
            // What was noted as written is not. SQLite may have rolled back by itself.
            let _ = self.db.is_autocommit() || self.db.execute_batch("ROLLBACK").is_ok();
            self.blobs = RecentBlobs::default();
            (self.usage, self.user_tokens, self.billing) = (usage, user_tokens, billing);
        })
    }

    fn commit(&mut self, state: &State, batch: &Batch) -> Result<Vec<NodeId>> {
        self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for blob in &batch.blobs {
            self.blobs.put(&self.db, blob, batch.now)?;
        }
        let mut touched = TouchedRows::default();
        // Unstored events have no number, so the stored ones are the last ones of the state's count.
        let stored = batch.events.iter().filter(|event| event.is_stored());
        let stored = stored.count() as u64;
        let mut seq = state
            .seq
            .0
            .checked_sub(stored)
            .expect("the state counts every stored event");
        for event in &batch.events {
            touched.add_event(state, event);
            if event.is_stored() {
                seq += 1;
                write_event(&self.db, seq, event, batch.now)?;
                if let Some(line) = event.of_gpu() {
                    gpu_history::write(&self.db, seq, &line)?;
                }
                gpu_checks::write(&self.db, seq, event)?;
            }
        }
        for id in &touched.arrays {
            if let Some(array) = state.arrays.get(*id) {
                self.write_array(array, touched.cancelled.get(id).copied(), batch.now)?;
            }
        }
        for id in &touched.jobs {
            // Gone when its run is closed late: its row is final already.
            if let Some(job) = state.jobs.get(*id) {
                self.write_job(job, batch.now)?;
            }
        }
        for (id, change) in &touched.runs {
            write_run(&self.db, state, *id, change)?;
        }
        write_nodes(&self.db, state, &touched, batch.now)?;
        if touched.policy {
            let doc = serde_json::to_vec(&state.own_policy)?;
            self.db
                .prepare_cached("INSERT OR REPLACE INTO policy (one, doc) VALUES (1, ?1)")?
                .execute([doc])?;
        }
        self.write_usage(state)?;
        self.write_user_tokens(state)?;
        self.write_billing(state)?;
        write_meta(&self.db, state)?;
        self.db.prepare_cached("COMMIT")?.execute([])?;
        let mut changed = changed_nodes(&mut self.generations, state);
        changed.extend(
            touched
                .nodes
                .iter()
                .filter(|node| !state.nodes.contains(**node)),
        ); // removed
        Ok(changed)
    }

    fn write_job(&mut self, job: &Job, now: Timestamp) -> Result<()> {
        let spec_id = self.write_spec(&job.spec)?;
        let over = job.state.is_final();
        let doc = serde_json::to_vec(&JobDocument::from_job(job))?;
        let spec = &*job.spec;
        self
        .db
        .prepare_cached(
            "INSERT INTO jobs (id, live, spec, array_id, array_index, user, account, partition, qos, name,
                state, submit_ms, start_ms, end_ms, attempt, limit_secs, exit, end_text, doc, script)
             VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20)
             ON CONFLICT (id) DO UPDATE SET live=?2, spec=?3, account=?7, partition=?8, qos=?9, name=?10,
                state=?11, start_ms=?13, end_ms=?14, attempt=?15, limit_secs=?16, exit=?17, end_text=?18, doc=?19",
        )?
        .execute(params![
            whole(job.id.0),
            !over,
            spec_id,
            job.task.map(|task| whole(task.array.0)),
            job.task.map(|task| task.index),
            spec.user.name,
            spec.account,
            spec.partition,
            spec.qos,
            spec.name,
            job.state.long(),
            job.submitted.0,
            job.past.started.map(|at| at.0),
            job.past.ended.filter(|_| over).map(|at| at.0),
            job.attempts,
            job.limit_secs,
            exit_text(job.past.exit),
            job.past.end_text,
            doc,
            spec.launch.script.sha(),
        ])?;
        if over {
            for blob in [&job.spec.launch.script, &job.spec.launch.environment] {
                self.blobs.touch(&self.db, blob, now)?;
            }
        }
        Ok(())
    }

    fn write_array(
        &mut self,
        array: &Array,
        cancelled: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<()> {
        let spec_id = self.write_spec(&array.spec)?;
        let over = array.is_over();
        let doc = serde_json::to_vec(&ArrayDocument::of(array))?;
        self
        .db
        .prepare_cached(
            "INSERT INTO arrays (id, live, spec, tasks, user, submit_ms, end_ms, doc, cancelled_ms, script)
             VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10)
             ON CONFLICT (id) DO UPDATE SET live=?2, spec=?3, end_ms=?7, doc=?8, cancelled_ms=coalesce(?9, cancelled_ms)",
        )?
        .execute(params![
            whole(array.id.0),
            !over,
            spec_id,
            array.len(),
            array.spec.user.name,
            array.submitted.0,
            array.ended.map(|at| at.0),
            doc,
            cancelled.map(|at| at.0),
            array.spec.launch.script.sha(),
        ])?;
        if over {
            for blob in [&array.spec.launch.script, &array.spec.launch.environment] {
                self.blobs.touch(&self.db, blob, now)?;
            }
        }
        Ok(())
    }

    /// The row of what a request has in common with others.
    fn write_spec(&mut self, spec: &JobSpec) -> Result<i64> {
        let (id, new) = self.specs.number(spec);
        // One that no job had any more was pruned, or was written in a batch that was rolled back.
        let known = || {
            self.db
                .prepare_cached("SELECT 1 FROM specs WHERE id = ?1")?
                .exists([id])
        };
        if new || !known()? {
            self
            .db
            .prepare_cached(
                "INSERT INTO specs (id, environment, work_dir, comment, tags, doc) VALUES (?1,?2,?3,?4,?5,?6)",
            )?
            .execute(params![
                id,
                spec.launch.environment.sha(),
                spec.launch.work_dir,
                spec.comment,
                tags_text(spec)?,
                serde_json::to_vec(&common_part(spec))?,
            ])?;
        }
        Ok(id)
    }

    /// The rows that differ from those of the last commit.
    fn write_usage(&mut self, state: &State) -> Result<()> {
        if Arc::ptr_eq(&self.usage, &state.usage) {
            return Ok(());
        }
        for (account, user, entry) in state.usage.changed_since(&self.usage) {
            self.db
                .prepare_cached(
                    "INSERT OR REPLACE INTO usage (account, user, doc) VALUES (?1,?2,?3)",
                )?
                .execute(params![account, user, serde_json::to_vec(entry)?])?;
        }
        self.usage = state.usage.clone();
        Ok(())
    }
}

impl Writer {
    /// The rows that differ from those of the last commit: equal records are the same in memory.
    fn write_user_tokens(&mut self, state: &State) -> Result<()> {
        if Arc::ptr_eq(&self.user_tokens, &state.tokens.users) {
            return Ok(());
        }
        for (id, token) in &*state.tokens.users {
            let known = self.user_tokens.get(id);
            if known.is_some_and(|known| Arc::ptr_eq(known, token)) {
                continue;
            }
            self.db
                .prepare_cached("INSERT OR REPLACE INTO user_tokens (id, doc) VALUES (?1,?2)")?
                .execute(params![id.0, serde_json::to_vec(token)?])?;
        }
        for id in self.user_tokens.keys() {
            if !state.tokens.users.contains_key(id) {
                self.db
                    .prepare_cached("DELETE FROM user_tokens WHERE id=?1")?
                    .execute([id.0])?;
            }
        }
        self.user_tokens = state.tokens.users.clone();
        Ok(())
    }
}

impl Writer {
    fn write_billing(&mut self, state: &State) -> Result<()> {
        if Arc::ptr_eq(&self.billing, &state.billing) {
            return Ok(());
        }
        self.db
            .prepare_cached("INSERT OR REPLACE INTO billing (one, doc) VALUES (1, ?1)")?
            .execute([serde_json::to_vec(&*state.billing)?])?;
        for (month, closed) in &state.billing.closed {
            if !self.billing.closed.contains_key(month) {
                self.db
                    .prepare_cached("INSERT INTO bill_months (month, bill) VALUES (?1, ?2)")?
                    .execute(params![month.to_string(), closed.bill.sha()])?;
            }
        }
        self.billing = state.billing.clone();
        Ok(())
    }
}

/// Rows to write, each once, and what only the events know.
#[derive(Default)]
struct TouchedRows {
    jobs: BTreeSet<JobId>,
    arrays: BTreeSet<JobId>,
    runs: BTreeMap<RunId, RunChange>,
    nodes: BTreeSet<NodeId>,
    /// Hash, and whether it is there after the batch.
    tokens: BTreeMap<String, bool>,
    automatic_drains: BTreeSet<(Timestamp, NodeId)>,
    /// Accounts, QOS and reservations.
    policy: bool,
    /// Arrays of which untouched tasks were cancelled, and when.
    cancelled: BTreeMap<JobId, Timestamp>,
}

/// The start of a run.
struct PlacedRun {
    allocation: Allocation,
    /// Of a job that waited in several partitions, the one of its placement.
    partition: Option<String>,
    at: Timestamp,
}

#[derive(Default)]
struct RunChange {
    placed: Option<PlacedRun>,
    outcome: Option<Outcome>,
}

impl TouchedRows {
    fn add_event(&mut self, state: &State, event: &Event) {
        let rows = event.touched();
        self.jobs.extend(rows.job);
        self.arrays.extend(rows.array);
        self.nodes.extend(rows.node);
        self.policy |= rows.policy;
        self.automatic_drains.extend(event.automatic_drain());
        if let (Some(job), true) = (rows.job, rows.array_of_job) {
            self.arrays.extend(
                state
                    .jobs
                    .get(job)
                    .and_then(|job| job.task)
                    .map(|task| task.array),
            );
        }
        if let Some(run) = rows.run {
            self.runs.entry(run).or_default();
        }
        match event {
            Event::RunPlaced {
                run,
                allocation,
                partition,
                at,
                ..
            } => {
                self.runs.entry(*run).or_default().placed = Some(PlacedRun {
                    allocation: allocation.clone(),
                    partition: partition.clone(),
                    at: *at,
                });
            }
            Event::RunEnded { run, outcome, .. } => {
                self.runs.entry(*run).or_default().outcome = Some(outcome.clone());
            }
            // A new time limit is in the run's row too.
            Event::JobUpdated { job, .. } => {
                if let Some(run) = state.jobs.get(*job).and_then(Job::live_run) {
                    self.runs.entry(run).or_default();
                }
            }
            Event::TasksCancelled { array, at, .. } => {
                self.cancelled.insert(*array, *at);
            }
            Event::TokenMinted { token } => {
                self.tokens.insert(token.hash.clone(), true);
            }
            Event::TokenSpent { hash, .. } => {
                self.tokens.insert(hash.clone(), false);
            }
            _ => {}
        }
    }
}

/// The history keeps no request (it has a row of its own) and no configuration (the TOML is its source).
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum ShortEvent<'a> {
    JobSubmitted {
        id: JobId,
        limit_secs: Option<u32>,
        at: Timestamp,
        client_key: Option<&'a str>,
    },
    Configured {
        at: Timestamp,
    },
}

fn write_event(db: &Connection, seq: u64, event: &Event, now: Timestamp) -> Result<()> {
    let doc = match event {
        Event::JobSubmitted {
            id,
            spec: _,
            limit_secs,
            at,
            client_key,
        } => serde_json::to_vec(&ShortEvent::JobSubmitted {
            id: *id,
            limit_secs: *limit_secs,
            at: *at,
            client_key: client_key.as_deref(),
        })?,
        Event::Configured { at, .. } => serde_json::to_vec(&ShortEvent::Configured { at: *at })?,
        other => serde_json::to_vec(other)?,
    };
    let rows = event.touched();
    let node = match event {
        Event::RunReported { node, .. } | Event::RunForfeited { node, .. } => Some(*node),
        _ => rows.node,
    };
    let job = rows.run.map(|run| run.job).or(rows.job).or(rows.array);
    db.prepare_cached(
        "INSERT INTO events (seq, at, kind, job, attempt, node, doc) VALUES (?1,?2,?3,?4,?5,?6,?7)",
    )?
    .execute(params![
        whole(seq),
        now.0,
        kind_of(&doc),
        job.map(|job| whole(job.0)),
        rows.run.map(|run| run.attempt),
        node.map(|node| node.0),
        doc,
    ])?;
    Ok(())
}

/// The tag, which serde writes first: `{"event":"job_held",...`.
fn kind_of(doc: &[u8]) -> &str {
    doc.strip_prefix(br#"{"event":""#)
        .and_then(|rest| std::str::from_utf8(&rest[..rest.iter().position(|c| *c == b'"')?]).ok())
        .unwrap_or("unknown")
}

fn write_run(db: &Connection, state: &State, id: RunId, change: &RunChange) -> Result<()> {
    if let (Some(placed), Some(job)) = (&change.placed, state.jobs.get(id.job)) {
        insert_run(db, state, id, &job.spec, placed)?;
    }
    match state.runs.get(id) {
        Some(run) => update_run(db, id, run.outcome.as_ref(), Some(run)),
        None => update_run(db, id, change.outcome.as_ref(), None),
    }
}

fn insert_run(
    db: &Connection,
    state: &State,
    id: RunId,
    spec: &JobSpec,
    placed: &PlacedRun,
) -> Result<()> {
    let PlacedRun {
        allocation,
        partition,
        at,
    } = placed;
    let partition = partition.as_ref().unwrap_or(&spec.partition);
    let held = GrantedGpus::of(state, allocation);
    let sum =
        |of: fn(&NodeShare) -> u64| whole(allocation.iter().map(of).fold(0, u64::saturating_add));
    let cpus = sum(|share| u64::from(share.cpus));
    let mem_bytes = sum(|share| share.mem_bytes);
    db.prepare_cached(
        "INSERT INTO runs (job, attempt, live, user, account, partition, qos, name, tags, state, placed_ms,
            cpus, mem_bytes, gpus, nodes, nodelist, exit, end_text, cpu_micros, peak_bytes, gpu_uuids, gpu_parts)
         VALUES (?1,?2,1,?3,?4,?5,?6,?7,?8,'RUNNING',?9,?10,?11,?12,?13,?14,'0:0','',0,0,?15,?16)",
    )?
    .execute(params![
        whole(id.job.0),
        id.attempt,
        spec.user.name,
        spec.account,
        partition,
        spec.qos,
        spec.name,
        tags_text(spec)?,
        at.0,
        cpus,
        mem_bytes,
        serde_json::to_string(&held.by_type)?,
        allocation.len(),
        gmodel::hostlist::compress(held.nodes.iter().copied()),
        held.uuids_text()?,
        held.parts_text()?,
    ])?;
    Ok(())
}

/// `run` is the run as the state has it; none when it is closed.
fn update_run(
    db: &Connection,
    id: RunId,
    outcome: Option<&Outcome>,
    run: Option<&Run>,
) -> Result<()> {
    let doc = run.map(serde_json::to_vec).transpose()?;
    let class = run.and_then(|run| run.class).and_then(class_word);
    let Some(outcome) = outcome else {
        let started = run.and_then(|run| run.started).map(|at| at.0);
        let stood_still = run.map(|run| run.suspended_millis);
        let since = run
            .and_then(|run| run.suspension.as_ref())
            .map(|suspension| suspension.since.0);
        db.prepare_cached(
            "UPDATE runs SET live=?3, start_ms=coalesce(?4, start_ms), doc=?5, class=coalesce(?6, class),
                suspended_ms=coalesce(?7, suspended_ms), suspended_since_ms=?8
             WHERE job=?1 AND attempt=?2",
        )?
        .execute(params![whole(id.job.0), id.attempt, run.is_some(), started, doc, class, stood_still, since])?;
        return Ok(());
    };
    let started = outcome
        .started
        .or(run.and_then(|run| run.started))
        .map(|at| at.0);
    let counted = usage_sums::counted(db, id)?;
    db.prepare_cached(
        "UPDATE runs SET live=?3, state=?4, start_ms=coalesce(?5, start_ms), end_ms=?6, exit=?7, end_text=?8,
            cpu_micros=?9, peak_bytes=?10, doc=?11, class=coalesce(?12, class), lost_gpu_secs=?13,
            suspended_ms=coalesce(?14, suspended_ms + max(?6 - coalesce(suspended_since_ms, ?6), 0)), suspended_since_ms=NULL,
            unheld_ms=?15, gpu_events=?16, image=?17
         WHERE job=?1 AND attempt=?2",
    )?
    .execute(params![
        whole(id.job.0),
        id.attempt,
        run.is_some(),
        outcome.state.long(),
        started,
        outcome.ended.0,
        exit_text(outcome.exit),
        outcome.text,
        whole(outcome.usage.cpu_user_micros.saturating_add(outcome.usage.cpu_system_micros)),
        whole(outcome.usage.peak_memory_bytes),
        doc,
        class,
        whole(outcome.lost_gpu_secs),
        run.map(|run| run.suspended_by(outcome.ended)),
        outcome.unheld_millis,
        (!outcome.gpu_events.is_empty()).then(|| serde_json::to_string(&outcome.gpu_events)).transpose()?,
        (!outcome.image.is_empty()).then_some(&outcome.image),
    ])?;
    write_gpu_use(db, id, &outcome.usage.gpu)?;
    write_idle_spells(db, id, outcome)?;
    Ok(usage_sums::recount(db, id, counted)?)
}

fn write_idle_spells(db: &Connection, id: RunId, outcome: &Outcome) -> Result<()> {
    if !outcome.idle_spells.is_empty() {
        let spells = serde_json::to_string(&outcome.idle_spells)?;
        db.prepare_cached("UPDATE runs SET idle_spells=?3 WHERE job=?1 AND attempt=?2")?
            .execute((whole(id.job.0), id.attempt, spells))?;
    }
    Ok(())
}

fn write_gpu_use(db: &Connection, id: RunId, totals: &GpuUseTotals) -> Result<()> {
    if totals.is_empty() {
        return Ok(());
    }
    static UPDATE: LazyLock<String> = LazyLock::new(|| {
        let places = gpu_use::COLUMNS
            .iter()
            .enumerate()
            .map(|(at, name)| format!("gpu_{name}=?{}", at + 3));
        let places: Vec<String> = places.collect();
        format!(
            "UPDATE runs SET {} WHERE job=?1 AND attempt=?2",
            places.join(", ")
        )
    });
    let run = [Some(id.job.0.cast_signed()), Some(id.attempt.into())];
    db.prepare_cached(&UPDATE)?.execute(params_from_iter(
        run.into_iter().chain(gpu_use::values(totals)),
    ))?;
    Ok(())
}

/// As the API and reports have it.
const fn class_word(class: RunClass) -> Option<&'static str> {
    match class {
        RunClass::Guaranteed => Some("guaranteed"),
        RunClass::Borrowed => Some("borrowed"),
        RunClass::Unknown => None,
    }
}

fn write_nodes(
    db: &Connection,
    state: &State,
    touched: &TouchedRows,
    now: Timestamp,
) -> Result<()> {
    for id in &touched.nodes {
        let Some(node) = state.nodes.get(*id) else {
            db.prepare_cached("UPDATE nodes SET removed_ms=?2 WHERE id=?1")?
                .execute((id.0, now.0))?;
            continue;
        };
        let mut node = node.clone();
        node.runs.clear(); // the runs' own rows say so
        db.prepare_cached(
            "INSERT INTO nodes (id, name, doc) VALUES (?1,?2,?3)
             ON CONFLICT (id) DO UPDATE SET name=?2, doc=?3",
        )?
        .execute(params![id.0, node.name, serde_json::to_vec(&node)?])?;
    }
    for (at, node) in &touched.automatic_drains {
        db.prepare_cached("INSERT OR IGNORE INTO automatic_drains (at, node) VALUES (?1,?2)")?
            .execute((at.0, node.0))?;
        db.prepare_cached("DELETE FROM automatic_drains WHERE at < ?1")?
            .execute([now.0 - MILLIS_PER_DAY])?;
    }
    for (hash, kept) in &touched.tokens {
        match state.tokens.joins.get(hash).filter(|_| *kept) {
            Some(token) => db
                .prepare_cached("INSERT OR REPLACE INTO tokens (hash, doc) VALUES (?1,?2)")?
                .execute(params![hash, serde_json::to_vec(token)?])?,
            None => db
                .prepare_cached("DELETE FROM tokens WHERE hash=?1")?
                .execute([hash])?,
        };
    }
    Ok(())
}

/// Every change of what a node should run raises its generation: comparing them all finds each change, whatever
/// event made it, in microseconds for a thousand nodes. They are not stored: after a restart they go on from the
/// number of the last event.
fn changed_nodes(known: &mut BTreeMap<NodeId, u64>, state: &State) -> Vec<NodeId> {
    let mut changed = Vec::new();
    for node in state.nodes.values() {
        if known.insert(node.id, node.generation) != Some(node.generation) {
            changed.push(node.id);
        }
    }
    changed
}

fn write_meta(db: &Connection, state: &State) -> Result<()> {
    let adoption = state
        .adoption
        .as_ref()
        .map(serde_json::to_vec)
        .transpose()?;
    db.prepare_cached("UPDATE meta SET release=?1, incarnation=?2, next_job=?3, next_node=?4, seq=?5, adoption=?6")?
        .execute((
            env!("CARGO_PKG_VERSION"),
            whole(state.incarnation),
            whole(state.next_job),
            state.next_node,
            whole(state.seq.0),
            adoption,
        ))?;
    Ok(())
}

fn exit_text(exit: ExitCode) -> String {
    exit.to_string()
}

fn tags_text(spec: &JobSpec) -> Result<String> {
    Ok(serde_json::to_string(&spec.tags)?)
}
