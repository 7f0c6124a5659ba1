//! What a story prints: the queue, the nodes, the policy, idle runs.

use crate::ctl::tests::world::World;
use crate::ctl::*;
use std::collections::BTreeSet;
use std::fmt::Write;

impl World {
    /// `1 alice RUNNING 1-1 on n1[0,1]`
    pub(super) fn queue(&self) -> String {
        let mut out = String::new();
        for array in self
            .state
            .arrays
            .values()
            .filter(|array| !array.pending.is_empty())
        {
            let (user, reason) = (&array.spec.user.name, &array.reason);
            if !array.together().is_empty() {
                let tasks = array.tasks.text_of(&array.together());
                writeln!(
                    out,
                    "{}_[{tasks}] {user} PENDING {}: {}",
                    array.id, reason.code, reason.text
                )
                .unwrap();
            }
            for one in &array.apart {
                let tasks = array.tasks.text_of(&one.positions);
                let holds: Vec<_> = one
                    .holds
                    .iter()
                    .map(|mark| format!(" {} ({})", mark.owner, mark.reason))
                    .collect();
                writeln!(
                    out,
                    "{}_[{tasks}] {user} PENDING, HELD{}",
                    array.id,
                    holds.concat()
                )
                .unwrap();
            }
        }
        for job in self.state.jobs.values() {
            write!(
                out,
                "{} {} {}",
                job.shown_id(),
                job.spec.user.name,
                job.state
            )
            .unwrap();
            if job.state == gmodel::JobState::Pending {
                write!(out, " {}: {}", job.reason.code, job.reason.text).unwrap();
            } else if job.state.is_final() {
                write!(out, " {}", job.past.exit).unwrap();
                let words = [
                    &job.past.end_text,
                    job.past.cancelled_by.as_ref().unwrap_or(&job.past.end_text),
                ];
                let words: BTreeSet<_> =
                    words.into_iter().filter(|word| !word.is_empty()).collect();
                words
                    .iter()
                    .for_each(|word| write!(out, " ({word})").unwrap());
            }
            if job.spec.waits_in_several() || !job.spec.partitions.is_empty() {
                write!(out, " in {}", job.spec.partition).unwrap();
            }
            if let Some(run) = job.live_run().and_then(|run| self.state.run(run)) {
                let places = run.allocation.iter().map(|share| {
                    let slots: Vec<_> = share.gpus.slots().map(|slot| slot.0.to_string()).collect();
                    format!("{}[{}]", self.name(share.node), slots.join(","))
                });
                write!(
                    out,
                    " {} on {}",
                    run.id,
                    places.collect::<Vec<_>>().join(" ")
                )
                .unwrap();
            }
            if let Some(mark) = &job.past.last_mark {
                write!(out, " MARK {} {}", mark.number, mark.note).unwrap();
            }
            for mark in &job.holds {
                write!(out, " HELD {} ({})", mark.owner, mark.reason).unwrap();
            }
            out.push('\n');
        }
        out
    }

    /// What people are told of idle jobs, and which calls of the program are due.
    pub(super) fn idle_table(&self) -> String {
        let mut out = String::new();
        for job in self.state.jobs.values() {
            if let Some(words) = idle_words(&self.state, job) {
                writeln!(out, "{}: {words}", job.id).unwrap();
            }
        }
        for order in idle_orders(&self.state) {
            let next = order.next.map_or(String::new(), |(action, secs)| {
                format!(", {} in {secs} s", action.word())
            });
            writeln!(
                out,
                "program: {} idle for {} s{next}",
                order.run, order.idle_secs
            )
            .unwrap();
        }
        out
    }

    pub(super) fn node_table(&self) -> String {
        let mut out = String::new();
        for node in self.state.nodes.values() {
            let free = self.state.free_on(node);
            let gpus = free
                .gpu_milli
                .iter()
                .filter(|milli| **milli == 1000)
                .count();
            let view = self.state.node_view(node);
            write!(
                out,
                "{} {view} {gpus} GPUs {} CPUs free",
                node.name, free.cpus
            )
            .unwrap();
            if let Some(words) = fence_words(node) {
                write!(out, " LOST: {words}").unwrap();
            }
            for mark in &node.drains {
                write!(out, " DRAINED {} ({})", mark.owner, mark.reason).unwrap();
            }
            if !node.strikes.is_empty() {
                write!(out, " {} strikes", node.strikes.len()).unwrap();
            }
            out.push('\n');
        }
        out
    }

    pub(super) fn policy_table(&self) -> String {
        let mut out = String::new();
        let policy = &self.state.policy;
        for account in policy.accounts.values() {
            let users: Vec<String> = account
                .users
                .iter()
                .map(|(name, user)| format!("{name}{}", if user.is_default { "*" } else { "" }))
                .collect();
            let parent = account.parent.as_deref().unwrap_or("root");
            let closed = if account.closed { " closed" } else { "" };
            writeln!(
                out,
                "account {} below {parent}: {}{closed}",
                account.name,
                users.join(",")
            )
            .unwrap();
        }
        for qos in policy.qos.keys() {
            writeln!(out, "qos {qos}").unwrap();
        }
        for one in policy.reservations.values() {
            let what = serde_json::to_string(&one.what).unwrap();
            let skipped = one
                .skip_until
                .map_or(String::new(), |at| format!(" skipped until {at}"));
            writeln!(
                out,
                "reservation {} by {} at {}: {what}{skipped}",
                one.name, one.created_by, one.start
            )
            .unwrap();
        }
        out
    }
}
