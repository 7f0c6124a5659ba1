//! The indexes of the state, kept in step with the records that they are made of.

use crate::ctl::job::deadline::last_start;
use crate::ctl::state::{Array, ClientKey, Dependent, Job, Node, Run, State, Waits};
use gmodel::{JobId, JobSpec, JobState, NodeId, RunId, Timestamp};

impl State {
    /// After a node's link or deadline changed.
    pub(crate) fn watch(&mut self, id: NodeId) {
        let node = self.nodes.get(id);
        if node.is_some_and(Node::has_deadline) {
            self.watched.insert(id);
        } else {
            self.watched.remove(&id);
        }
    }

    pub(crate) fn index_job(&mut self, job: &Job) {
        if let Some(key) = &job.client_key {
            let key = ClientKey {
                uid: job.spec.user.uid,
                key: key.clone(),
            };
            self.client_keys.insert(key, job.id);
        }
        if let (true, Some(ended)) = (job.state.is_final(), job.ended) {
            self.finished.insert((ended, job.id));
        }
        if !job.state.is_final() {
            self.tally.add(&job.spec, 1);
        }
        if job.state == JobState::Pending {
            self.index_waits(Dependent::Job(job.id), job.waits.as_deref());
            self.index_deadline(job.id, &job.spec, job.limit_secs);
            self.index_begin(job.id, job.submitted, job.eligible, &job.spec);
            self.index_tries(job);
        }
    }

    /// When a job that failed with its nodes is tried again, and when on nodes that failed to launch it.
    pub(crate) fn index_tries(&mut self, job: &Job) {
        self.not_yet.extend(job.tries().map(|at| (at, job.id)));
    }

    pub(crate) fn index_array(&mut self, array: &Array) {
        if let Some(key) = &array.client_key {
            let key = ClientKey {
                uid: array.spec.user.uid,
                key: key.clone(),
            };
            self.client_keys.insert(key, array.id);
        }
        self.index_waits(Dependent::Array(array.id), array.waits.as_deref());
        self.tally.add(&array.spec, array.pending.len());
        if !array.pending.is_empty() {
            self.index_deadline(array.id, &array.spec, array.limit_secs);
        }
        self.index_begin(array.id, array.submitted, array.eligible, &array.spec);
    }

    fn index_waits(&mut self, who: Dependent, waits: Option<&Waits>) {
        for wait in waits.into_iter().flat_map(|waits| &waits.on) {
            self.dependents.insert((wait.of, who));
            self.due.extend(wait.until.map(|at| (at, who.id())));
        }
    }

    /// When a pending job may start without any other event: it becomes eligible, or stops waiting for few
    /// switches.
    pub(crate) fn index_begin(
        &mut self,
        id: JobId,
        submitted: Timestamp,
        eligible: Timestamp,
        spec: &JobSpec,
    ) {
        let later = (eligible > submitted).then_some(eligible);
        let any_switches = spec
            .request
            .switches
            .and_then(|wanted| wanted.waits_until(eligible));
        self.not_yet
            .extend(later.into_iter().chain(any_switches).map(|at| (at, id)));
    }

    /// The latest time at which the job could begin and still end by its deadline.
    pub(crate) fn index_deadline(&mut self, id: JobId, spec: &JobSpec, limit_secs: Option<u32>) {
        self.due
            .extend(last_start(spec, limit_secs).map(|at| (at, id)));
    }

    /// Sets what of a dependency is not met, with the index that follows from it.
    pub(crate) fn set_waits(&mut self, who: Dependent, waits: Option<Box<Waits>>) {
        let slot = match who {
            Dependent::Job(id) => {
                &mut self
                    .jobs
                    .get_mut(id)
                    .expect("a dependant has its record")
                    .waits
            }
            Dependent::Array(id) => {
                &mut self
                    .arrays
                    .get_mut(id)
                    .expect("a dependant has its record")
                    .waits
            }
        };
        let before = std::mem::replace(slot, waits.clone());
        for wait in before.iter().flat_map(|waits| &waits.on) {
            self.dependents.remove(&(wait.of, who));
        }
        self.index_waits(who, waits.as_deref());
    }

    pub(crate) fn index_run(&mut self, run: &Run) {
        if run.go.is_none() && run.stop.is_none() && run.outcome.is_none() {
            self.preparing.insert((run.placed, run.id));
        }
        self.making_room.extend(
            run.stop
                .as_ref()
                .and_then(|stop| Some((stop.for_job?, run.id))),
        );
        self.index_idle_untold(run.id, run.is_idle_untold());
    }

    /// Keeps the index of runs for which the site's idle program is still to be called.
    pub(crate) fn index_idle_untold(&mut self, id: RunId, is_untold: bool) {
        match is_untold {
            true => self.idle_untold.insert(id),
            false => self.idle_untold.remove(&id),
        };
    }
}
