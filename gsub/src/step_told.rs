//! What is said of a step besides its tasks' output: with `--verbose` where it runs and how each task ended. Under Slurm's name in
//! srun's lines, which programs read. Source: srun(1).

use gcli::local_time::{self, TimeFormat};
use gcli::slurm_name;
use gmodel::ExitCode;
use gmodel::hostlist::compress;
use gwire::api::{StepNodeRow, StepReply};

/// As the user called it: programs that call srun look for lines that begin so.
pub(crate) fn own_name() -> &'static str {
    slurm_name::of(std::env::args_os().next()).unwrap_or("grun")
}

/// Names a step and says how much is told of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepSpeech {
    /// `17.0`
    pub step_id: String,
    pub is_verbose: bool,
    /// Nothing besides errors.
    pub is_quiet: bool,
    /// Of `--disable-status`.
    pub tells_interrupts: bool,
}

impl StepSpeech {
    /// How a task ended, which is else told of failures only.
    pub fn ended(&self, node: &str, rank: u32, exit: ExitCode) {
        if !self.is_verbose || !is_srun() {
            return;
        }
        let (name, id) = (own_name(), &self.step_id);
        let status = i32::from(exit.code) << 8 | i32::from(exit.signal);
        eprintln!(
            "{name}: Received task exit notification for 1 task of StepId={id} (status=0x{status:04x})."
        );
        if status == 0 {
            eprintln!("{name}: {node}: task {rank}: Completed");
        }
    }

    /// An interrupt was passed on to the tasks.
    pub fn interrupted(&self) {
        let name = own_name();
        match self.tells_interrupts {
            true => eprintln!("{name}: sending Ctrl-C to StepId={}", self.step_id),
            false => eprintln!("{name}: interrupt (one more within 1 sec to abort)"),
        }
    }

    /// Its own time limit ends it: the words that programs look for in its output.
    pub fn time_is_up(&self, nodes: &[StepNodeRow]) {
        if is_srun() {
            let node = nodes.first().map_or("?", |node| node.name.as_str());
            let now = TimeFormat::from_env().print(local_time::now());
            eprintln!(
                "{}: error: *** STEP {} ON {node} CANCELLED AT {now} DUE TO TIME LIMIT ***",
                own_name(),
                self.step_id
            );
        }
    }
}

/// Where its tasks are.
pub(crate) fn say_where(job: &str, step: &StepReply, variable: impl Fn(&str) -> Option<String>) {
    let name = own_name();
    if !is_srun() {
        eprintln!(
            "{name}: step {} of job {}: {}",
            step.step,
            job,
            placed(step)
        );
        return;
    }
    let of_job = |end: &str| variable(&format!("SLURM_{end}")).unwrap_or_default();
    eprintln!(
        "{name}: jobid {}: nodes({}):`{}', cpu counts: {}",
        job,
        of_job("JOB_NUM_NODES"),
        of_job("JOB_NODELIST"),
        of_job("JOB_CPUS_PER_NODE")
    );
    for node in step.nodes.iter().filter(|node| !node.ranks.is_empty()) {
        eprintln!(
            "{name}: launching StepId={}.{} on host {}, {} tasks: {}",
            job,
            step.step,
            node.name,
            node.ranks.len(),
            ranks(&node.ranks)
        );
    }
}

fn is_srun() -> bool {
    slurm_name::is_one(Some(own_name()))
}

/// `0`, `[0-3,8]`
fn ranks(ranks: &[u32]) -> String {
    let names: Vec<String> = ranks.iter().map(u32::to_string).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    compress(&names)
}

/// `node1 has tasks 0-1, node2 has task 2`
fn placed(step: &StepReply) -> String {
    let one = |node: &StepNodeRow| {
        let ranks: Vec<String> = node.ranks.iter().map(u32::to_string).collect();
        format!(
            "{} has task{} {}",
            node.name,
            if ranks.len() == 1 { "" } else { "s" },
            ranks.join(",")
        )
    };
    step.nodes.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_says_where_its_tasks_are() {
        let node = |name: &str, ranks: &[u32]| StepNodeRow {
            name: name.into(),
            ranks: ranks.to_vec(),
        };
        let step = StepReply {
            nodes: vec![node("n1", &[0, 1]), node("n2", &[2])],
            ..StepReply::default()
        };
        assert_eq!(placed(&step), "n1 has tasks 0,1; n2 has task 2");
        assert_eq!(ranks(&[3]), "3");
        assert_eq!(ranks(&[0, 1, 2, 5]), "[0-2,5]");
    }
}
