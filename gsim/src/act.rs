//! People and misfortune at work on the cluster, and the caretaker of the calm at the end.

use crate::cluster::{Cluster, root};
use crate::gpu_watch;
use crate::machine::Machine;
use crate::scenario::{ALLOCATION, ActKind, SubmissionAct};
use crate::sim_event::SimEvent;
use gcore::ctl::{Actor, AllocationEnd, Array, Command, Job, JobChange, PolicyChange, Target};
use gmodel::array_spec::ArraySpec;
use gmodel::dependency::Dependency;
use gmodel::gpu_request::GpuRequest;
use gmodel::job::{GpuScope, JobSpec};
use gmodel::policy::{Account, GpuAmounts, Limits, Policy, Qos, Reservation, ReservedPart};
use gmodel::{ExitCode, JobId, NodeId, ReasonCode};
use std::collections::BTreeSet;

/// Pause of the caretaker, milliseconds.
const CARE_MILLIS: i64 = 30_000;

impl Cluster {
    pub fn act(&mut self, what: ActKind) {
        match what {
            ActKind::CrashAtCommit { .. } => {}
            ActKind::ResetConnection { machine } => self.cut_machine(machine),
            ActKind::Partition { machine, millis } => {
                self.machines[machine].partitioned_until = self.now + millis;
                self.cut_machine(machine);
            }
            ActKind::CrashDaemon { machine, millis } => {
                self.daemon_crashes(machine);
                self.after(millis, SimEvent::DaemonStarts { machine });
            }
            ActKind::LoseSpool { machine, millis } => {
                self.daemon_crashes(machine);
                self.lose_spool(machine);
                self.after(millis, SimEvent::DaemonStarts { machine });
            }
            ActKind::Reboot {
                machine,
                millis,
                new_disk,
            } => {
                self.daemon_crashes(machine);
                self.machines[machine].power_off();
                if new_disk {
                    self.lose_spool(machine);
                }
                self.after(millis, SimEvent::PowerOn { machine });
            }
            ActKind::KillSupervisor { machine, pick } => self.kill_supervisor(machine, pick),
            ActKind::LoseGpu { machine, millis } => {
                gpu_watch::lose_gpu(self, machine);
                self.after(millis, SimEvent::GpuReturns { machine });
            }
            ActKind::BreakStarts {
                machine,
                millis,
                prolog,
            } => {
                self.machines[machine].broken_until = (self.now + millis, prolog);
            }
            ActKind::JumpClock { millis } => self.controller.clock_off += millis,
            ActKind::CrashController { millis } => self.controller_crashes(millis, false),
            ActKind::Backup => {
                if self.controller.up {
                    self.controller.backup = Some(self.controller.store.clone());
                }
            }
            ActKind::Restore { millis } => self.controller_crashes(millis, true),
            ActKind::Gpu(what) => gpu_watch::act(self, what),
            person => self.person(person),
        }
    }

    fn cut_machine(&mut self, machine: usize) {
        let daemon = self.machines[machine].daemon.as_ref();
        if let Some(connection) = daemon.and_then(|daemon| daemon.connection) {
            self.cut(connection, false);
        }
    }

    fn lose_spool(&mut self, machine: usize) {
        let one = &mut self.machines[machine];
        one.spool = crate::machine::Spool::default();
        one.gpus.lose_spool();
        let node = one.id;
        self.truth.lost_measures(node);
        one.spool_number += 1;
    }

    fn person(&mut self, what: ActKind) {
        match what {
            ActKind::Submit(submission) => {
                let spec = Box::new(self.spec(&submission));
                let client_key = Some(format!("key-{}", self.requests.len()));
                let command = match self.others(&submission, &spec) {
                    others if others.is_empty() => Command::Submit { spec, client_key },
                    others => Command::SubmitParts {
                        specs: std::iter::once(*spec).chain(others).collect(),
                        client_key,
                    },
                };
                self.ask(actor(submission.user), command);
            }
            ActKind::Edit { edit } => {
                let change = self.edit(edit);
                self.ask(root(), Command::Policy { change });
            }
            ActKind::DrainBy { machine, millis } => {
                let deadline = self.controller.now(self.now + millis);
                self.ask(
                    root(),
                    Command::NodeDrainBy {
                        node: node_of(machine),
                        reason: "a fan".into(),
                        deadline,
                    },
                );
            }
            ActKind::Drain { machine } => self.ask(
                root(),
                Command::NodeDrain {
                    node: node_of(machine),
                    reason: "a fan".into(),
                },
            ),
            ActKind::Resume { machine } => self.ask(
                root(),
                Command::NodeResume {
                    node: node_of(machine),
                },
            ),
            of_job => self.change_job(of_job),
        }
    }

    fn change_job(&mut self, what: ActKind) {
        match what {
            ActKind::Cancel { pick } => self.ask_about(pick, true, |job| Command::Cancel {
                targets: vec![job],
                signal: None,
            }),
            ActKind::Hold { pick, operator } => {
                self.ask_about(pick, operator, |job| Command::Hold {
                    targets: vec![job],
                    reason: "because".into(),
                    for_owner: false,
                });
            }
            ActKind::Release { pick, operator } => self.ask_about(pick, operator, |job| {
                Command::Release { targets: vec![job] }
            }),
            ActKind::Requeue { pick } => {
                self.ask_about(pick, true, |job| Command::Requeue {
                    targets: vec![job],
                    hold: pick.is_multiple_of(5),
                });
            }
            ActKind::Suspend { pick } => {
                self.ask_about(pick, true, |job| Command::Suspend { targets: vec![job] })
            }
            ActKind::EndAllocation { pick, gone } => {
                let end = match gone {
                    true => AllocationEnd::ClientGone,
                    false => AllocationEnd::Done(ExitCode::exited((pick % 3) as u8)),
                };
                self.ask_about(pick, gone, |target| Command::EndAllocation { target, end });
            }
            ActKind::GoOn { pick } => {
                self.ask_about(pick, true, |job| Command::Resume { targets: vec![job] })
            }
            ActKind::ChangeLimit { pick, limit_secs } => {
                let change = JobChange {
                    limit_secs: Some(Some(limit_secs)),
                    ..JobChange::default()
                };
                self.ask_about(pick, true, |target| Command::Update { target, change });
            }
            ActKind::Depend { pick, on } => {
                let Some(on) = self.picked(on) else { return };
                let dependency = Dependency::parse(&format!("afterany:{on}")).ok();
                let change = JobChange {
                    dependency: Some(dependency),
                    ..JobChange::default()
                };
                self.ask_about(pick, true, |target| Command::Update { target, change });
            }
            misfortune => unreachable!("{misfortune:?} is no person's act"),
        }
    }

    /// One of the jobs submitted so far, whatever became of it.
    fn picked(&self, pick: usize) -> Option<JobId> {
        let known = self.truth.submissions();
        (!known.is_empty()).then(|| known[pick % known.len()])
    }

    /// An operator, or the job's owner, asks for something about it.
    fn ask_about(&mut self, pick: usize, operator: bool, command: impl FnOnce(Target) -> Command) {
        if let Some(id) = self.picked(pick) {
            let who = if operator { root() } else { self.owner_of(id) };
            self.ask(who, command(Target::Job(id)));
        }
    }

    fn owner_of(&self, id: JobId) -> Actor {
        self.controller.store.job(id).map_or(actor(0), |job| Actor {
            user: job.spec.user.name.clone(),
            uid: job.spec.user.uid,
            gid: job.spec.user.gid,
            ..Actor::default()
        })
    }

    /// The other components of every fifth job that can have some: smaller, and one of them without GPUs.
    fn others(&self, submission: &SubmissionAct, spec: &JobSpec) -> Vec<JobSpec> {
        let has_none = spec.array.is_some()
            || spec.reservation.is_some()
            || spec.waits_in_several()
            || (21..=23).contains(&submission.option);
        if has_none || !self.requests.len().is_multiple_of(5) {
            return Vec::new();
        }
        let mut one = JobSpec {
            name: "part".into(),
            ..JobSpec::default()
        };
        one.launch = spec.launch.clone();
        let mut other = one.clone();
        one.request.gpus = Some(GpuRequest::whole(1));
        other.request.cpus_per_task = Some(2);
        match submission.gpus % 2 {
            0 => vec![one],
            _ => vec![other, one],
        }
    }

    fn spec(&self, submission: &SubmissionAct) -> JobSpec {
        let SubmissionAct {
            gpus,
            nodes,
            tasks,
            cap,
            limit_secs,
            option,
            ..
        } = *submission;
        let mut spec = JobSpec {
            name: "job".into(),
            ..JobSpec::default()
        };
        spec.launch.work_dir = "/".into();
        spec.time_limit_secs = Some(limit_secs);
        if tasks > 0 {
            let cap = if cap > 0 {
                format!("%{cap}")
            } else {
                String::new()
            };
            spec.array = ArraySpec::parse(&format!("0-{}{cap}", tasks - 1)).ok();
        }
        let request = &mut spec.request;
        request.nodes_min = nodes.min(u32::from(self.scenario.machines));
        request.nodes_max = request.nodes_min;
        request.gpu_scope = GpuScope::Node;
        request.gpus = Some(GpuRequest::whole(gpus.min(u32::from(self.scenario.gpus))));
        let now = self.controller.now(self.now);
        match option {
            0 => spec.hold = true,
            1 => spec.no_kill = true,
            2 => spec.request.exclusive = true,
            3 => spec.begin = Some(now.plus_secs(60)),
            4 => spec.partition = "once".into(),
            // It waits in both, and may be started again only in one.
            5 => spec.partition = "once,main".into(),
            6 => spec.requeue = Some(false),
            7 | 8 => spec.dependency = self.dependency("afterok", limit_secs),
            9 => spec.dependency = self.dependency("afternotok", limit_secs),
            10 => spec.dependency = self.dependency("aftercorr", limit_secs),
            11 => spec.dependency = self.dependency("after", limit_secs),
            12 => spec.dependency = Dependency::parse("singleton").ok(),
            13..=15 => spec.account = "lab".into(),
            16 | 17 => spec.account = "vision".into(),
            18 => spec.deadline = Some(now.plus_secs(i64::from(limit_secs) + 100)),
            19 => spec.checkpoint = "USR1@20".parse().ok(),
            20 => spec.reservation = Some("course".into()),
            21..=23 => {
                // Parts of a GPU, in several sizes; they wait for their own kind.
                spec.partition = if option == 23 { "loose" } else { "parts" }.into();
                let part = ["0.5", "0.25", "0.3", "0.5"][gpus as usize % 4];
                spec.request.gpus = GpuRequest::parse(part).ok();
            }
            ALLOCATION => spec.allocation = true,
            _ => {}
        }
        spec
    }

    /// A dependency on a known job. One that can never be met is cancelled half of the time.
    fn dependency(&self, kind: &str, pick: u32) -> Option<Dependency> {
        let known = self.truth.submissions();
        let id = known.get(pick as usize % known.len().max(1))?;
        Dependency::parse(&format!("{kind}:{id}")).ok()
    }

    /// Accounts with guarantees that come and go, limits, a reservation.
    fn edit(&self, edit: u8) -> PolicyChange {
        let all = u64::from(self.scenario.machines) * u64::from(self.scenario.gpus);
        let account = |name: &str, guaranteed: Option<u64>, limit: Option<u64>| {
            let amounts = |gpus: Option<u64>| gpus.map(GpuAmounts::all);
            let (guaranteed, limit) = (amounts(guaranteed), amounts(limit));
            let account = Account {
                name: name.into(),
                guaranteed,
                limit,
                ..Account::default()
            };
            PolicyChange::Account {
                account: Box::new(account),
            }
        };
        let normal = |per_user: Limits| PolicyChange::Qos {
            qos: Box::new(Qos {
                name: "normal".into(),
                per_user,
                ..Qos::default()
            }),
        };
        match edit {
            0 | 1 => account("lab", Some(all.div_ceil(2)), None),
            2 => account("lab", None, None),
            3 => account("vision", Some(1), None),
            4 => account("vision", None, Some(2)),
            5 => normal(Limits {
                running_jobs: Some(2),
                ..Limits::default()
            }),
            6 => normal(Limits {
                submitted_jobs: Some(20),
                ..Limits::default()
            }),
            7 => {
                let reservation = Reservation {
                    name: "course".into(),
                    start: self.controller.now(self.now).plus_secs(20),
                    duration_secs: 60,
                    what: ReservedPart::NodeCount(1),
                    users: BTreeSet::from(["user0".to_owned()]),
                    ignore_running: true,
                    ..Reservation::default()
                };
                PolicyChange::Reservation {
                    reservation: Box::new(reservation),
                }
            }
            _ => PolicyChange::ReservationRemoved {
                name: "course".into(),
                force: false,
            },
        }
    }

    /// The policy as it is, without anything that could keep a job waiting.
    fn calm_policy(&self) -> Option<Policy> {
        let own = &self.controller.state.own_policy;
        let mut calm = own.clone();
        for account in calm.accounts.values_mut() {
            (account.guaranteed, account.limit) = (None, None);
        }
        calm.qos
            .values_mut()
            .for_each(|qos| qos.per_user = Limits::default());
        calm.reservations.clear();
        (calm != *own).then_some(calm)
    }

    /// Ends the faults: switches everything on, and starts the operators' work.
    pub fn calm(&mut self) {
        self.note(|| "-- calm".into());
        self.controller.crashes.clear();
        self.after(0, SimEvent::ControllerStarts { restore: false });
        for machine in 0..self.machines.len() {
            self.machines[machine].partitioned_until = 0;
            self.machines[machine].broken_until = (0, false);
            self.after(1, SimEvent::PowerOn { machine });
            self.after(2, SimEvent::DaemonStarts { machine });
        }
        gpu_watch::calm(self);
        self.after(10, SimEvent::Caretaker);
    }

    /// Resumes nodes and lifts the holds of the system and of operators, until nothing is left to do.
    pub fn caretake(&mut self) {
        self.after(CARE_MILLIS, SimEvent::Caretaker);
        gpu_watch::operators_round(self, CARE_MILLIS);
        let drained: Vec<NodeId> = self
            .controller
            .state
            .nodes
            .values()
            .filter(|node| !node.drains.is_empty())
            .map(|node| node.id)
            .collect();
        for node in drained {
            self.ask(root(), Command::NodeResume { node });
        }
        if let Some(policy) = self.calm_policy() {
            self.ask(
                root(),
                Command::Policy {
                    change: PolicyChange::All {
                        policy: Box::new(policy),
                    },
                },
            );
        }
        let state = &self.controller.state;
        let stopped = state.runs.values().filter(|run| {
            run.suspension
                .as_ref()
                .is_some_and(|one| one.for_job.is_none())
        });
        let asleep = stopped.map(|run| Target::Job(run.id.job)).collect();
        self.ask_for(asleep, |targets| Command::Resume { targets });
        let hopeless = self.entries(
            |job| !job.state.is_final() && is_hopeless(job.reason.code),
            |array| !array.pending.is_empty() && is_hopeless(array.reason.code),
        );
        self.ask_for(hopeless, |targets| Command::Cancel {
            targets,
            signal: None,
        });
        let kept = self.entries(|job| is_kept(&job.holds), is_any_kept);
        self.ask_for(kept, |targets| Command::Release { targets });
    }

    fn ask_for(&mut self, targets: Vec<Target>, command: impl FnOnce(Vec<Target>) -> Command) {
        if !targets.is_empty() {
            self.ask(root(), command(targets));
        }
    }

    /// The jobs, then the arrays of the queue that pass the tests.
    fn entries(&self, job: impl Fn(&Job) -> bool, array: impl Fn(&Array) -> bool) -> Vec<Target> {
        let state = &self.controller.state;
        let jobs = state.jobs.values().filter(|one| job(one));
        let jobs = jobs.map(|job| match job.task {
            Some(task) => Target::Task {
                array: task.array,
                index: task.index,
            },
            None => Target::Job(job.id),
        });
        let arrays = state.arrays.values().filter(|one| array(one));
        jobs.chain(arrays.map(|array| Target::Job(array.id)))
            .collect()
    }

    /// What has not come to rest of the node that a machine is.
    fn unrest_of(&self, machine: &Machine) -> Vec<String> {
        let state = &self.controller.state;
        let mut left = Vec::new();
        let Some(node) = state.nodes.get(machine.id) else {
            return left;
        };
        if !node.is_available() || !node.runs.is_empty() {
            left.push(format!(
                "{} is {:?} and lists {} runs",
                node.name,
                node.link,
                node.runs.len()
            ));
        }
        let fence = gcore::ctl::desired(state, machine.id).fence;
        let obeys = machine.daemon.as_ref().map(|daemon| daemon.state.fence);
        if obeys.is_none_or(|obeys| obeys > fence) {
            left.push(format!(
                "{} obeys {obeys:?}, it is told {fence:?}",
                node.name
            ));
        }
        left
    }

    /// Jobs and arrays that have not come to rest.
    fn unrest_of_queue(&self) -> Vec<String> {
        let (state, mut left) = (&self.controller.state, Vec::new());
        for job in state.jobs.values().filter(|job| !job.state.is_final()) {
            if job.spec.deadline.is_some() || is_hopeless(job.reason.code) {
                left.push(format!("job {} is to be cancelled", job.shown_id()));
            }
            // A job that depends on a held job rests too; circles are refused.
            // The first component's dependency is the whole job's.
            let leader = job.spec.part.and_then(|part| state.jobs.get(part.leader));
            let waits = leader.unwrap_or(job).waits.as_deref();
            let depends = depends(waits, job.reason.code);
            let held = !job.holds.is_empty() && !is_kept(&job.holds);
            let waits = job.state == gmodel::JobState::Pending && (held || depends);
            if !waits || job.reason.code == gmodel::ReasonCode::None {
                left.push(format!(
                    "job {} is {} ({})",
                    job.shown_id(),
                    job.state,
                    job.reason.code
                ));
            }
        }
        for array in state
            .arrays
            .values()
            .filter(|array| !array.pending.is_empty())
        {
            let depends = depends(array.waits.as_deref(), array.reason.code);
            let free = !array.not_held().is_empty()
                || is_any_kept(array)
                || array.spec.deadline.is_some()
                || is_hopeless(array.reason.code);
            if free && !depends || array.reason.code == gmodel::ReasonCode::None {
                left.push(format!(
                    "array {} has {} tasks waiting",
                    array.id,
                    array.pending.len()
                ));
            }
        }
        left
    }

    /// What has not come to rest: empty when all is well.
    pub fn unrest(&self) -> Vec<String> {
        if !self.controller.up {
            return vec!["the controller is down".into()];
        }
        let mut left = self.unrest_of_queue();
        let state = &self.controller.state;
        if self.fences_open > 0 {
            left.push("a node is about to be powered off".into());
        }
        left.extend(state.runs.keys().map(|run| format!("run {run} is left")));
        for machine in &self.machines {
            left.extend(machine.leftovers());
            left.extend(self.unrest_of(machine));
            let out = machine.gpus.not_in_service();
            left.extend(
                out.iter()
                    .map(|gpu| format!("GPU {gpu} of {} is out", machine.name)),
            );
        }
        left.extend(
            self.requests
                .iter()
                .filter(|r| !r.answered)
                .map(|r| format!("unanswered: {:?}", r.command)),
        );
        left
    }
}

/// Nodes are numbered from 1, in the order of the machines.
fn node_of(machine: usize) -> NodeId {
    NodeId(machine as u32 + 1)
}

pub fn actor(user: u8) -> Actor {
    let uid = 1000 + u32::from(user);
    Actor {
        user: format!("user{user}"),
        uid,
        gid: uid,
        ..Actor::default()
    }
}

/// Held by more than its owner: what operators and the controller hold is released in the end.
fn is_kept(holds: &[gmodel::node::HoldMark]) -> bool {
    holds.iter().any(|mark| !mark.owner.starts_with("user:"))
}

fn is_any_kept(array: &Array) -> bool {
    is_kept(&array.holds) || array.apart.iter().any(|one| is_kept(&one.holds))
}

/// Waits for what never comes: it is cancelled in the end.
fn is_hopeless(reason: ReasonCode) -> bool {
    matches!(
        reason,
        ReasonCode::DependencyNeverSatisfied | ReasonCode::ReservationDeleted
    )
}

/// Waits for others, and not only for a time to come, or in vain.
fn depends(waits: Option<&gcore::ctl::OpenDependency>, reason: ReasonCode) -> bool {
    reason == ReasonCode::Dependency
        && waits.is_some_and(|waits| {
            waits
                .on
                .iter()
                .all(|wait| wait.until.is_none() && wait.never.is_none())
        })
}
