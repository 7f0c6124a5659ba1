//! What one step uses on this node, and may use: a cgroup of its own below the job's, which counts, holds its memory to what
//! the step asked for, and ends with all that is left in it. Without one, what its reaped tasks used. Never decides when a
//! step is over. Source: srun(1), `--mem`; Slurm's jobacct_gather.

use gmodel::run::Usage;
use gmodel::supervise::{RunSetup, StepOrder};
use gsys::cgroup::{JoinFds, StepCgroup, StepUsage};
use gsys::process::ReapedChild;

use crate::job_processes::JobProcesses;

/// One step, from the start of its first task.
#[derive(Default)]
pub struct StepAccount {
    cgroup: Option<StepCgroup>,
    limit_bytes: Option<u64>,
    /// All there is without a cgroup.
    reaped: Usage,
    /// Tasks that ended by a kill for want of memory.
    blamed: u64,
}

/// What an account came to.
pub struct StepTotals {
    pub usage: Usage,
    /// The tasks that the kernel killed for want of memory; mostly empty.
    pub text: String,
    /// Its own limit was reached: its kills are not its job's.
    pub is_own_limit: bool,
    /// Where something of it could not be removed yet.
    pub left: Option<StepCgroup>,
}

impl StepAccount {
    /// Makes the step's cgroup. Without a limit a step can do without one, and the text says why there is none.
    ///
    /// # Errors
    /// Its memory cannot be limited, as it should be.
    pub fn open(
        order: &StepOrder,
        setup: &RunSetup,
        processes: &JobProcesses,
    ) -> Result<(StepAccount, Option<String>), String> {
        let JobProcesses::Cgroup(run) = processes else {
            return Ok(Default::default());
        };
        // As for a job: where the kernel cannot, a limit holds only if the node promised it.
        let is_limited =
            order.mem_bytes > 0 && (setup.mem_limit_bytes.is_some() || run.limits_memory());
        let limit_bytes = is_limited.then_some(order.mem_bytes);
        match run.begin_step(&format!("step_{}", order.step), limit_bytes) {
            Ok(cgroup) => Ok((
                StepAccount {
                    cgroup: Some(cgroup),
                    limit_bytes,
                    ..StepAccount::default()
                },
                None,
            )),
            Err(e) if is_limited => Err(format!(
                "the memory of the step cannot be limited: {}",
                chain(&e)
            )),
            Err(e) => Ok((
                StepAccount::default(),
                Some(format!("is not measured: {}", chain(&e))),
            )),
        }
    }

    /// For a task to join by itself: the step's cgroup or the job's.
    pub fn join_fds(&self, processes: &JobProcesses) -> anyhow::Result<Option<JoinFds>> {
        match &self.cgroup {
            Some(cgroup) => Ok(Some(cgroup.join_fds()?)),
            None => processes.join_fds(),
        }
    }

    /// A task of it has ended.
    pub fn reaped(&mut self, child: &ReapedChild) {
        self.reaped.add(&Usage {
            cpu_user_micros: child.cpu_user_micros,
            cpu_system_micros: child.cpu_system_micros,
            peak_memory_bytes: child.max_rss_bytes,
            ..Usage::default()
        });
    }

    /// Whether a task that was killed by SIGKILL was so for want of memory: at most as many were as the kernel counts.
    pub fn blames_memory(&mut self) -> bool {
        let kills = self.measure().map_or(0, |used| used.usage.oom_kills);
        let is_one = kills > self.blamed;
        self.blamed += u64::from(is_one);
        is_one
    }

    /// SIGKILL to what is in it.
    pub fn kill(&self) {
        // What a kill fails on, the kill of the job's end finds.
        self.cgroup
            .iter()
            .filter(|_| !self.is_empty())
            .for_each(|cgroup| drop(cgroup.kill()));
    }

    /// Nothing of the step is left, as far as that is known.
    pub fn is_empty(&self) -> bool {
        self.cgroup
            .as_ref()
            .is_none_or(|cgroup| cgroup.is_empty().unwrap_or(true))
    }

    /// What of the job's kills for want of memory happened at this step's own limit.
    pub fn own_kills(&self) -> u64 {
        self.measure()
            .filter(|used| used.limit_reached)
            .map_or(0, |used| used.usage.oom_kills)
    }

    /// The use of it all; its cgroup goes.
    pub fn close(&mut self, step: u32, job_limit_bytes: Option<u64>) -> StepTotals {
        let used = self.measure();
        let is_own_limit = used.is_some_and(|used| used.limit_reached);
        let usage = used.map_or(self.reaped, |used| usage_of(&used));
        let limit = if is_own_limit {
            self.limit_bytes.map(|bytes| ("step", bytes))
        } else {
            job_limit_bytes.map(|bytes| ("job", bytes))
        };
        let text = if usage.oom_kills > 0 {
            out_of_memory_text(step, &usage, limit)
        } else {
            String::new()
        };
        let left = self.cgroup.take().filter(|cgroup| !cgroup.remove_left());
        StepTotals {
            usage,
            text,
            is_own_limit,
            left,
        }
    }

    fn measure(&self) -> Option<StepUsage> {
        self.cgroup.as_ref()?.usage().ok()
    }
}

fn usage_of(used: &StepUsage) -> Usage {
    Usage {
        cpu_user_micros: used.usage.cpu_user_micros,
        cpu_system_micros: used.usage.cpu_system_micros,
        peak_memory_bytes: used.usage.memory_peak_bytes,
        oom_kills: used.usage.oom_kills,
        ..Usage::default()
    }
}

fn out_of_memory_text(step: u32, usage: &Usage, limit: Option<(&str, u64)>) -> String {
    let (killed, peak_mib) = (usage.oom_kills, usage.peak_memory_bytes >> 20);
    let processes = if killed == 1 { "process" } else { "processes" };
    let ask = |whose: &str| {
        if whose == "step" {
            "--mem"
        } else {
            "--mem of gsub"
        }
    };
    let limit = limit.map_or(String::new(), |(whose, bytes)| {
        format!(
            ": the {whose} may have {} MiB on this node. Ask for more with {}",
            bytes >> 20,
            ask(whose)
        )
    });
    format!(
        "step {step}: Out Of Memory: the kernel killed {killed} {processes} of it, at a peak of {peak_mib} MiB{limit}"
    )
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_the_limit_that_was_reached_and_what_would_help() {
        let usage = Usage {
            oom_kills: 1,
            peak_memory_bytes: 64 << 20,
            ..Usage::default()
        };
        let text = |limit| out_of_memory_text(3, &usage, limit);
        assert_eq!(
            text(Some(("step", 64 << 20))),
            "step 3: Out Of Memory: the kernel killed 1 process of it, at a peak of 64 MiB: the step may have 64 MiB on this node. Ask for more with --mem"
        );
        assert!(
            text(Some(("job", 1 << 30))).ends_with(
                "the job may have 1024 MiB on this node. Ask for more with --mem of gsub"
            )
        );
        assert!(text(None).ends_with("at a peak of 64 MiB"));
    }
}
