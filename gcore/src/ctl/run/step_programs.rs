//! Steps of several programs (`grun A : B`): the ranks of each, one program's behind another's, and where they are.
//! Source: srun(1) on heterogeneous steps.

use crate::ctl::command::{ProgramAsk, Refusal, StepAsk};
use crate::ctl::run::step_layout::{check_counts, deal, layout, usable};
use gmodel::hostlist::{Hostlist, compress};
use std::collections::BTreeMap;

/// Ranks by place in the allocation, and the first rank of each program behind the first.
pub(crate) struct ProgramLayout {
    pub places: BTreeMap<usize, Vec<u32>>,
    pub first_ranks: Vec<u32>,
}

impl ProgramLayout {
    /// Tasks by place.
    pub fn tasks(&self) -> Vec<(usize, u32)> {
        let count = |(place, ranks): (&usize, &Vec<u32>)| (*place, ranks.len() as u32);
        self.places.iter().map(count).collect()
    }
}

/// `None` for a step of one program.
pub(crate) fn of(held: &[(String, u32)], ask: &StepAsk) -> Result<Option<ProgramLayout>, Refusal> {
    match ask.programs.is_empty() {
        true => Ok(None),
        false => lay(held, ask).map(Some),
    }
}

/// A program that says -N or --ntasks-per-node has nodes of its own while there are any; another one takes the job's next tasks.
fn lay(held: &[(String, u32)], ask: &StepAsk) -> Result<ProgramLayout, Refusal> {
    let first = ProgramAsk {
        nodes: ask.nodes,
        ntasks: ask.ntasks,
        ntasks_per_node: ask.ntasks_per_node,
    };
    let mut laid = ProgramLayout {
        places: BTreeMap::new(),
        first_ranks: Vec::new(),
    };
    let mut next = 0;
    for (at, program) in std::iter::once(&first).chain(&ask.programs).enumerate() {
        let own = StepAsk {
            nodes: program.nodes,
            ntasks: program.ntasks,
            ntasks_per_node: program.ntasks_per_node,
            programs: Vec::new(),
            ..ask.clone()
        };
        let tasks = match program.nodes.or(program.ntasks_per_node) {
            Some(_) => on_own_nodes(held, &own, &laid)?,
            None => on_next_tasks(held, &own, &laid)?,
        };
        check_counts(&tasks, &own)?;
        let counts: Vec<u32> = tasks.iter().map(|(_, count)| *count).collect();
        if at > 0 {
            laid.first_ranks.push(next);
        }
        for ((place, _), ranks) in tasks.iter().zip(deal(&counts, ask.plane)) {
            let all = laid.places.entry(*place).or_default();
            all.extend(ranks.iter().map(|rank| rank + next));
        }
        next += counts.iter().sum::<u32>();
        check_counts(&laid.tasks(), ask)?;
    }
    Ok(laid)
}

/// On nodes without tasks of the programs before; on all where too few are left.
fn on_own_nodes(
    held: &[(String, u32)],
    own: &StepAsk,
    laid: &ProgramLayout,
) -> Result<Vec<(usize, u32)>, Refusal> {
    let excluded = own.exclude.iter().flat_map(Hostlist::iter);
    let taken = laid.places.keys().map(|place| held[*place].0.as_str());
    let names: Vec<&str> = excluded.chain(taken).collect();
    let apart = StepAsk {
        exclude: Hostlist::parse(&compress(&names)).ok(),
        ..own.clone()
    };
    layout(held, &apart).or_else(|_| layout(held, own))
}

/// On the job's tasks behind those of the programs before; tasks beyond the job's go evenly over its nodes.
fn on_next_tasks(
    held: &[(String, u32)],
    own: &StepAsk,
    laid: &ProgramLayout,
) -> Result<Vec<(usize, u32)>, Refusal> {
    let (mut places, _) = usable(held, own)?;
    places.sort_unstable();
    let all: u64 = places.iter().map(|place| u64::from(held[*place].1)).sum();
    let mut left = own.ntasks.unwrap_or(all.min(u64::from(u32::MAX)) as u32);
    if left == 0 {
        return Err(Refusal::invalid("-n 0: a program has a task at least."));
    }
    let mut tasks: BTreeMap<usize, u32> = BTreeMap::new();
    for place in &places {
        let used = laid.places.get(place).map_or(0, |ranks| ranks.len() as u32);
        let count = held[*place].1.saturating_sub(used).min(left);
        left -= count;
        tasks.insert(*place, count);
    }
    let nodes = places.len() as u32;
    for (at, place) in (0..).zip(&places) {
        *tasks.entry(*place).or_default() += left / nodes + u32::from(at < left % nodes);
    }
    Ok(tasks.into_iter().filter(|(_, count)| *count > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(text: &str) -> ProgramAsk {
        let mut ask = ProgramAsk::default();
        for word in text.split_whitespace() {
            let (name, value) = word.split_once('=').unwrap();
            let value = Some(value.parse().unwrap());
            match name {
                "N" => ask.nodes = value,
                "n" => ask.ntasks = value,
                _ => ask.ntasks_per_node = value,
            }
        }
        ask
    }

    /// Programs, apart by colons, in a job of three, one and one tasks on three nodes.
    #[track_caller]
    fn check(programs: &str, want: &str) {
        let held = [("n1", 3), ("n2", 1), ("n3", 1)].map(|(name, tasks)| (name.to_owned(), tasks));
        let mut programs = programs.split(':').map(program);
        let first = programs.next().unwrap();
        let ask = StepAsk {
            nodes: first.nodes,
            ntasks: first.ntasks,
            ntasks_per_node: first.ntasks_per_node,
            programs: programs.collect(),
            ..StepAsk::default()
        };
        let said = match lay(&held, &ask) {
            Err(refusal) => refusal.text,
            Ok(laid) => {
                let on =
                    |(place, ranks): (&usize, &Vec<u32>)| format!("{}:{ranks:?}", held[*place].0);
                let places: Vec<String> = laid.places.iter().map(on).collect();
                format!("{} from {:?}", places.join(" "), laid.first_ranks)
            }
        };
        assert_eq!(said, want);
    }

    #[test]
    fn programs_take_the_tasks_of_the_job_one_behind_the_other() {
        check("n=1:n=4", "n1:[0, 1, 2] n2:[3] n3:[4] from [1]");
        check("n=2:n=2:n=1", "n1:[0, 1, 2] n2:[3] n3:[4] from [2, 4]");
        check("n=5:n=2", "n1:[0, 1, 2, 5] n2:[3, 6] n3:[4] from [5]");
        check("n=1:n=0", "-n 0: a program has a task at least.");
    }

    #[test]
    fn programs_that_say_their_nodes_have_nodes_of_their_own() {
        check("N=1 n=1:N=1 n=4", "n1:[0] n2:[1, 2, 3, 4] from [1]");
        check("N=2 n=2:N=1 each=2", "n1:[0] n2:[1] n3:[2, 3] from [2]");
        check("N=2 n=2:N=2 n=2", "n1:[0, 2] n2:[1, 3] from [2]");
        check("N=1 n=1:N=4 n=4", "-N 4: the job holds 3 node(s).");
        check(
            "n=3072:n=1",
            "the job has 3072 tasks here, up to 1026 on a node, and a step has at most 65536, 1024 of them on a node. Say how many with -n.",
        );
    }
}
