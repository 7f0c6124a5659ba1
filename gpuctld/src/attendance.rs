//! Whether the clients of allocations are there: when each was last heard, in memory only. A client that is not heard for its partition's
//! `detached_time` is gone, and its allocation ends.
//!
//! A controller that starts knows of no client: each has the whole time from then.

use crate::core_thread::CoreHandle;
use gcore::ctl::{Actor, AllocationEnd, Command, Job, RefusalCode, State, Target};
use gmodel::JobId;
use gmodel::partition_list::names;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Between two looks at the clients.
const LOOK: Duration = Duration::from_millis(500);
/// No client is taken for gone within this time: between two of its questions there is a moment.
const LEAST: Duration = Duration::from_secs(2);

/// The clients of allocations. Cheap to clone.
#[derive(Clone, Default)]
pub struct Attendance {
    clients: Arc<Mutex<BTreeMap<JobId, ClientPresence>>>,
}

struct ClientPresence {
    /// Its questions that wait for their answer.
    open: u32,
    /// When the last of them ended, or the job became known.
    heard: Instant,
}

/// A question of a client while it waits for its answer.
pub struct OpenQuestion {
    attendance: Attendance,
    job: JobId,
}

impl Drop for OpenQuestion {
    fn drop(&mut self) {
        if let Some(client) = self.attendance.clients().get_mut(&self.job) {
            client.open = client.open.saturating_sub(1);
            client.heard = Instant::now();
        }
    }
}

impl Attendance {
    fn clients(&self) -> MutexGuard<'_, BTreeMap<JobId, ClientPresence>> {
        self.clients.lock().expect("no panic while held")
    }

    /// A client of this allocation should come.
    pub fn expect(&self, job: JobId) {
        self.clients()
            .entry(job)
            .or_insert_with(ClientPresence::now);
    }

    /// The client is there, for as long as this is held.
    pub fn attend(&self, job: JobId) -> OpenQuestion {
        let mut clients = self.clients();
        clients.entry(job).or_insert_with(ClientPresence::now).open += 1;
        OpenQuestion {
            attendance: self.clone(),
            job,
        }
    }

    /// How many clients of this allocation are there.
    pub fn present(&self, job: JobId) -> u32 {
        self.clients().get(&job).map_or(0, |client| client.open)
    }

    /// Allocations whose clients were not heard for so long.
    fn silent(&self, least: Duration) -> Vec<(JobId, Duration)> {
        let clients = self.clients();
        let silent = clients.iter().filter(|(_, client)| client.open == 0);
        silent
            .map(|(job, client)| (*job, client.heard.elapsed()))
            .filter(|(_, silent)| *silent >= least)
            .collect()
    }

    fn forget(&self, job: JobId) {
        self.clients().remove(&job);
    }
}

impl ClientPresence {
    fn now() -> Self {
        Self {
            open: 0,
            heard: Instant::now(),
        }
    }
}

/// Ends the allocations of clients that are gone, until we stop.
pub async fn run(core: CoreHandle, attendance: Attendance, mut stop: watch::Receiver<bool>) {
    core.view()
        .await
        .jobs
        .values()
        .filter(|job| is_attended(job))
        .for_each(|job| attendance.expect(job.id));
    while !*stop.borrow() {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => look(&core, &attendance).await,
            _ = stop.changed() => {}
        }
    }
}

pub(crate) async fn look(core: &CoreHandle, attendance: &Attendance) {
    let silent = attendance.silent(LEAST);
    if silent.is_empty() {
        return;
    }
    let state = core.view().await;
    for (id, silent) in silent {
        let Some(job) = state.jobs.get(id).filter(|job| is_attended(job)) else {
            attendance.forget(id);
            continue;
        };
        if silent >= detached_time(&state, job) {
            end(core, attendance, id).await;
        }
    }
}

/// The controller's own word. What cannot be said now is said at the next look.
async fn end(core: &CoreHandle, attendance: &Attendance, job: JobId) {
    let controller = Actor {
        user: "gpuctld".to_owned(),
        operator: true,
        ..Actor::default()
    };
    let command = Command::EndAllocation {
        target: Target::Job(job),
        end: AllocationEnd::ClientGone,
    };
    match core.command(controller, command).await {
        Err(refusal) if refusal.code == RefusalCode::Unavailable => {}
        _ => attendance.forget(job),
    }
}

fn is_attended(job: &Job) -> bool {
    job.spec.allocation && !job.spec.unattended && !job.state.is_final()
}

/// How long the allocation, and a step by stream, go on without a client. Of several partitions the longest.
pub(crate) fn detached_time(state: &State, job: &Job) -> Duration {
    let partitions = names(&job.spec.partition).filter_map(|name| state.config.partition(name));
    let secs = partitions.map(|partition| partition.detached_secs).max();
    Duration::from_secs(secs.unwrap_or_default().into()).max(LEAST)
}
