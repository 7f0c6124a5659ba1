//! The history page by page, with what the database knows of the jobs and nodes in it.
//!
//! Owns which numbers there are; what is public of an event is `event_feed`'s.

use super::mail_events::task_states;
use super::stored::{ReadResult, bytes, stored_array};
use gmodel::{JobId, NodeId, Timestamp};
use rusqlite::{Connection, OptionalExtension};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Which events there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventBounds {
    /// Of the database: after a restore its events have other numbers.
    pub incarnation: u64,
    /// All events from here on are there.
    pub oldest: u64,
    pub newest: u64,
}

/// An event as it is stored.
#[derive(Clone, Debug)]
pub struct StoredEvent {
    pub seq: u64,
    pub at: Timestamp,
    /// `job_submitted`.
    pub kind: String,
    pub job: Option<JobId>,
    pub doc: Vec<u8>,
}

/// A job's owner, account and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFacts {
    pub id: JobId,
    pub user: String,
    pub account: String,
    pub partition: String,
    pub qos: String,
    pub name: String,
    /// Of a task: its array, and its index in it.
    pub task: Option<(JobId, u32)>,
}

/// An array as it is now.
#[derive(Clone, Debug)]
pub struct ArrayFacts {
    pub job: JobFacts,
    /// When its last task was over.
    pub ended: Option<Timestamp>,
    /// The indices of its tasks, by position.
    pub tasks: gmodel::array_spec::ArraySpec,
}

/// What the events of a page are about. Asked within one state of the database.
pub struct EventLookup<'a> {
    db: &'a Connection,
    jobs: RefCell<HashMap<JobId, Option<Arc<JobFacts>>>>,
    arrays: RefCell<HashMap<JobId, Option<Arc<ArrayFacts>>>>,
    nodes: RefCell<HashMap<NodeId, Arc<str>>>,
}

impl EventLookup<'_> {
    /// None: it was removed.
    pub fn job(&self, id: JobId) -> ReadResult<Option<Arc<JobFacts>>> {
        if let Some(known) = self.jobs.borrow().get(&id) {
            return Ok(known.clone());
        }
        let sql = "SELECT user, account, partition, qos, name, array_id, array_index FROM jobs WHERE id = ?1";
        let mut statement = self.db.prepare_cached(sql)?;
        let facts = statement
            .query_row([id.0], |row| {
                let array: Option<u64> = row.get(5)?;
                let index: Option<u32> = row.get(6)?;
                Ok(Arc::new(JobFacts {
                    id,
                    user: row.get(0)?,
                    account: row.get(1)?,
                    partition: row.get(2)?,
                    qos: row.get(3)?,
                    name: row.get(4)?,
                    task: array.map(JobId).zip(index),
                }))
            })
            .optional()?;
        self.jobs.borrow_mut().insert(id, facts.clone());
        Ok(facts)
    }

    pub fn array(&self, id: JobId) -> ReadResult<Option<Arc<ArrayFacts>>> {
        if let Some(known) = self.arrays.borrow().get(&id) {
            return Ok(known.clone());
        }
        let facts = stored_array(self.db, id)?.map(|array| {
            let spec = &array.spec;
            Arc::new(ArrayFacts {
                job: JobFacts {
                    id,
                    user: spec.user.name.clone(),
                    account: spec.account.clone(),
                    partition: spec.partition.clone(),
                    qos: spec.qos.clone(),
                    name: spec.name.clone(),
                    task: None,
                },
                ended: array.ended,
                tasks: array.tasks.clone(),
            })
        });
        self.arrays.borrow_mut().insert(id, facts.clone());
        Ok(facts)
    }

    /// How many tasks of an array there are in each state.
    pub fn task_states(&self, array: JobId) -> ReadResult<BTreeMap<String, u64>> {
        task_states(self.db, array)
    }

    /// `node number 7` where its row is gone.
    pub fn node(&self, id: NodeId) -> ReadResult<Arc<str>> {
        if let Some(known) = self.nodes.borrow().get(&id) {
            return Ok(known.clone());
        }
        let mut statement = self
            .db
            .prepare_cached("SELECT name FROM nodes WHERE id = ?1")?;
        let name: Option<String> = statement.query_row([id.0], |row| row.get(0)).optional()?;
        let name: Arc<str> = name.unwrap_or_else(|| format!("node number {id}")).into();
        self.nodes.borrow_mut().insert(id, name.clone());
        Ok(name)
    }
}

pub fn lookup(db: &Connection) -> EventLookup<'_> {
    EventLookup {
        db,
        jobs: RefCell::default(),
        arrays: RefCell::default(),
        nodes: RefCell::default(),
    }
}

pub fn bounds(db: &Connection) -> ReadResult<EventBounds> {
    let mut statement = db.prepare_cached("SELECT incarnation, seq, pruned_before_ms FROM meta")?;
    let (incarnation, newest, pruned): (u64, u64, i64) =
        statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let oldest = first_at(db, newest, Timestamp(pruned))?;
    Ok(EventBounds {
        incarnation,
        oldest,
        newest,
    })
}

/// The number of the first event from `at` on; the next one where there is none.
pub fn first_at(db: &Connection, newest: u64, at: Timestamp) -> ReadResult<u64> {
    let mut statement =
        db.prepare_cached("SELECT seq, at FROM events WHERE seq >= ?1 ORDER BY seq LIMIT 1")?;
    let mut from = |seq: u64| {
        let found = statement.query_row([seq], |row| Ok((row.get(0)?, row.get(1)?)));
        found.optional()
    };
    let Some((mut low, _)): Option<(u64, i64)> = from(0)? else {
        return Ok(newest + 1);
    };
    let mut high = newest + 1;
    while low < high {
        let middle = low + (high - low) / 2;
        match from(middle)? {
            Some((seq, time)) if time < at.0 => low = seq + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// The events of these kinds after `after`, and up to which number that is, going through so many events at most.
pub fn page(
    db: &Connection,
    kinds: &str,
    after: u64,
    most: u64,
) -> ReadResult<(Vec<StoredEvent>, EventBounds)> {
    let mut statement = db.prepare_cached("SELECT incarnation, seq FROM meta")?;
    let (incarnation, newest): (u64, u64) =
        statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let upto = newest.min(after.saturating_add(most)).max(after);
    let sql = format!(
        "SELECT seq, at, kind, job, doc FROM events WHERE seq > ?1 AND seq <= ?2 AND kind IN ({kinds}) ORDER BY seq"
    );
    let mut statement = db.prepare_cached(&sql)?;
    let events = statement.query_map((after, upto), |row| {
        Ok(StoredEvent {
            seq: row.get(0)?,
            at: Timestamp(row.get(1)?),
            kind: row.get(2)?,
            job: row.get::<_, Option<u64>>(3)?.map(JobId),
            doc: bytes(row, 4)?,
        })
    })?;
    let bounds = EventBounds {
        incarnation,
        oldest: after + 1,
        newest: upto,
    };
    Ok((events.collect::<rusqlite::Result<_>>()?, bounds))
}
