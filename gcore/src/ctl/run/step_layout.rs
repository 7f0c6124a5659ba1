//! Where the tasks of a step run: its nodes among those of its job, and the ranks on each.

use crate::ctl::command::{Refusal, StepAsk};
use gmodel::hostlist::Hostlist;
use gmodel::run::NodeShare;
use gmodel::supervise::MAX_NODE_TASKS;
use std::collections::BTreeSet;

/// Places in the allocation with the tasks of each: the job's own layout without a request, else even blocks.
pub(crate) fn layout(held: &[(String, u32)], ask: &StepAsk) -> Result<Vec<(usize, u32)>, Refusal> {
    let (places, named) = usable(held, ask)?;
    let most = places.len() as u32;
    let by_tasks = ask
        .ntasks
        .map(|tasks| tasks.div_ceil(ask.ntasks_per_node.unwrap_or(1).max(1)));
    let wanted = ask
        .nodes
        .or(named.checked_sub(1).map(|_| named))
        .unwrap_or_else(|| by_tasks.unwrap_or(most).clamp(1, most));
    if wanted < named.max(1) || wanted > most {
        let left = if ask.relative > 0 {
            "--relative and --exclude"
        } else {
            "--exclude"
        };
        let of = if most < held.len() as u32 {
            format!(" and {most} are left after {left}")
        } else {
            String::new()
        };
        return Err(match wanted < named {
            true => Refusal::invalid(format!(
                "-N {wanted}: --nodelist names {named} nodes. Leave -N out."
            )),
            false => Refusal::invalid(format!(
                "-N {wanted}: the job holds {} node(s){of}.",
                held.len()
            )),
        });
    }
    let mut places: Vec<usize> = places.into_iter().take(wanted as usize).collect();
    places.sort_unstable();
    let most_each = ask
        .ntasks_per_node
        .unwrap_or(MAX_NODE_TASKS)
        .min(MAX_NODE_TASKS);
    let room = most_each.saturating_mul(wanted).min(MAX_STEP_TASKS);
    let Some(total) = ask.ntasks else {
        let own = |place: usize| ask.ntasks_per_node.unwrap_or(held[place].1).max(1);
        let tasks: Vec<(usize, u32)> = places
            .into_iter()
            .map(|place| (place, own(place)))
            .collect();
        check_counts(&tasks, ask)?;
        return Ok(tasks);
    };
    if total < wanted || total > room {
        return Err(Refusal::invalid(format!(
            "-n {total} on {wanted} node(s): ask for {wanted} to {room} tasks."
        )));
    }
    let each = |at: usize| total / wanted + u32::from((at as u32) < total % wanted);
    Ok(places
        .into_iter()
        .enumerate()
        .map(|(at, place)| (place, each(at)))
        .collect())
}

/// The sum is checked before any rank is laid out: a list of ranks is as long as its number.
pub(crate) fn check_counts(tasks: &[(usize, u32)], ask: &StepAsk) -> Result<(), Refusal> {
    let total: u64 = tasks.iter().map(|(_, count)| u64::from(*count)).sum();
    let most = tasks.iter().map(|(_, count)| *count).max().unwrap_or(0);
    if total <= u64::from(MAX_STEP_TASKS) && most <= MAX_NODE_TASKS {
        return Ok(());
    }
    let (nodes, each) = (
        tasks.len() as u32,
        (MAX_STEP_TASKS / tasks.len() as u32).min(MAX_NODE_TASKS),
    );
    Err(Refusal::invalid(match ask.ntasks_per_node {
        Some(asked) => format!(
            "--ntasks-per-node {asked} on {nodes} node(s): {total} tasks, and a step has at most {MAX_STEP_TASKS}, {MAX_NODE_TASKS} of them on a node. Ask for 1 to {each} on each."
        ),
        None => format!(
            "the job has {total} tasks here, up to {most} on a node, and a step has at most {MAX_STEP_TASKS}, {MAX_NODE_TASKS} of them on a node. Say how many with -n."
        ),
    }))
}

/// Refuses more tasks than CPUs of the job, without `--overcommit`: `-n 99` is mostly a typing error. A step
/// with exclusive CPUs is counted where those are given. Source: `--overcommit` in srun(1).
pub(crate) fn enough_cpus(
    allocation: &[NodeShare],
    tasks: &[(usize, u32)],
    ask: &StepAsk,
) -> Result<(), Refusal> {
    let total: u64 = tasks.iter().map(|(_, count)| u64::from(*count)).sum();
    let room: u64 = tasks
        .iter()
        .map(|(place, _)| {
            allocation
                .get(*place)
                .map_or(0, |share| u64::from(share.cpus.max(share.tasks)))
        })
        .sum();
    if total <= room
        || ask.overcommit
        || ask
            .share
            .as_ref()
            .is_some_and(|share| share.cpus_per_task > 0)
    {
        return Ok(());
    }
    Err(Refusal::invalid(format!(
        "More processors requested than permitted: {total} tasks, and the job has {room} CPUs on the {} node(s) of the step. \
         Ask for {room} tasks or fewer, or say --overcommit.",
        tasks.len()
    )))
}

/// Places of the nodes that a step may be on, required nodes first, and the number of required ones.
pub(crate) fn usable(held: &[(String, u32)], ask: &StepAsk) -> Result<(Vec<usize>, u32), Refusal> {
    // Sets: a list may name one node 65,536 times.
    let names = |list: &Option<Hostlist>| -> BTreeSet<String> {
        list.iter()
            .flat_map(Hostlist::iter)
            .map(str::to_owned)
            .collect()
    };
    let (must, out) = (names(&ask.nodelist), names(&ask.exclude));
    if let Some(stranger) = must
        .iter()
        .find(|name| out.contains(*name) || held.iter().all(|(known, _)| known != *name))
    {
        let all: Vec<&str> = held.iter().map(|(name, _)| name.as_str()).collect();
        let text = format!(
            "--nodelist: {stranger:?} is not a node of the job, or is excluded. It holds {}.",
            gmodel::hostlist::compress(&all)
        );
        return Err(Refusal::invalid(text));
    }
    let (first, rest): (Vec<usize>, Vec<usize>) = (ask.relative as usize..held.len())
        .filter(|place| !out.contains(&held[*place].0))
        .partition(|place| must.contains(&held[*place].0));
    let named = first.len() as u32;
    match first.is_empty() && rest.is_empty() {
        true => Err(Refusal::invalid(
            "--relative or --exclude leaves no node of the job.",
        )),
        false => Ok(([first, rest].concat(), named)),
    }
}

/// The ranks on each node. A node gets `plane` of them before it is the next node's turn; with 0 as many as it takes.
pub(crate) fn deal(counts: &[u32], plane: u32) -> Vec<Vec<u32>> {
    let mut ranks: Vec<Vec<u32>> = vec![Vec::new(); counts.len()];
    let (mut at, mut in_turn) = (0, 0);
    for rank in 0..counts.iter().sum() {
        while ranks[at].len() == counts[at] as usize || (plane > 0 && in_turn == plane) {
            (at, in_turn) = ((at + 1) % counts.len(), 0);
        }
        ranks[at].push(rank);
        in_turn += 1;
    }
    ranks
}

/// Most tasks of one step. Ranks take 4 bytes each in memory, at most 6 in a frame, so no later bound is
/// needed.
pub const MAX_STEP_TASKS: u32 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> Vec<(String, u32)> {
        [("n1", 3), ("n2", 1), ("n3", 1)]
            .map(|(name, tasks)| (name.to_owned(), tasks))
            .to_vec()
    }

    fn ask(text: &str) -> StepAsk {
        let mut ask = StepAsk::default();
        for word in text.split_whitespace() {
            let (name, value) = word.split_once('=').unwrap();
            match name {
                "N" => ask.nodes = Some(value.parse().unwrap()),
                "n" => ask.ntasks = Some(value.parse().unwrap()),
                "each" => ask.ntasks_per_node = Some(value.parse().unwrap()),
                "r" => ask.relative = value.parse().unwrap(),
                "w" => ask.nodelist = Some(Hostlist::parse(value).unwrap()),
                _ => ask.exclude = Some(Hostlist::parse(value).unwrap()),
            }
        }
        ask
    }

    fn check(text: &str, want: &str) {
        let held = held();
        let seen = match layout(&held, &ask(text)) {
            Ok(tasks) => tasks
                .iter()
                .map(|(place, count)| format!("{}:{count}", held[*place].0))
                .collect::<Vec<_>>()
                .join(" "),
            Err(refusal) => refusal.text,
        };
        assert_eq!(seen, want, "{text}");
    }

    #[test]
    fn tasks_are_dealt_in_blocks_over_the_nodes_asked_for() {
        check("", "n1:3 n2:1 n3:1");
        check("n=1", "n1:1");
        check("n=7", "n1:3 n2:2 n3:2");
        check("N=1 n=3", "n1:3");
        check("N=1", "n1:3");
        check("each=2", "n1:2 n2:2 n3:2");
        check("N=2 each=1", "n1:1 n2:1");
        check("n=4 each=2", "n1:2 n2:2");
    }

    #[test]
    fn a_step_is_on_the_nodes_it_names_and_not_on_those_it_excludes() {
        check("w=n2", "n2:1");
        check("w=n3 N=1 n=1", "n3:1");
        check("w=n3 N=2 n=2", "n1:1 n3:1");
        check("w=n[2-3] n=4", "n2:2 n3:2");
        check("x=n1", "n2:1 n3:1");
        check("x=n1 n=1", "n2:1");
        check("r=1", "n2:1 n3:1");
        check("r=1 n=1", "n2:1");
        check("r=1 w=n3", "n3:1");
    }

    #[test]
    fn what_the_allocation_has_no_room_for_is_refused() {
        check("N=4", "-N 4: the job holds 3 node(s).");
        check(
            "N=3 x=n1",
            "-N 3: the job holds 3 node(s) and 2 are left after --exclude.",
        );
        check("N=2 n=1", "-n 1 on 2 node(s): ask for 2 to 2048 tasks.");
        check("N=2 n=5 each=2", "-n 5 on 2 node(s): ask for 2 to 4 tasks.");
        check("N=0", "-N 0: the job holds 3 node(s).");
        check(
            "w=n[1-2] N=1",
            "-N 1: --nodelist names 2 nodes. Leave -N out.",
        );
        check(
            "w=n9",
            "--nodelist: \"n9\" is not a node of the job, or is excluded. It holds n[1-3].",
        );
        check(
            "x=n[1-3]",
            "--relative or --exclude leaves no node of the job.",
        );
        check("r=3", "--relative or --exclude leaves no node of the job.");
        check(
            "r=1 N=3",
            "-N 3: the job holds 3 node(s) and 2 are left after --relative and --exclude.",
        );
    }

    #[test]
    fn a_step_of_too_many_tasks_is_refused_however_it_asks_for_them() {
        let most =
            "and a step has at most 65536, 1024 of them on a node. Ask for 1 to 1024 on each.";
        check(
            "each=4294967295",
            &format!("--ntasks-per-node 4294967295 on 3 node(s): 12884901885 tasks, {most}"),
        );
        check(
            "N=1 each=60000000",
            &format!("--ntasks-per-node 60000000 on 1 node(s): 60000000 tasks, {most}"),
        );
        check(
            "n=4294967295 each=4294967295",
            "-n 4294967295 on 1 node(s): ask for 1 to 1024 tasks.",
        );
        check("n=3073", "-n 3073 on 3 node(s): ask for 3 to 3072 tasks.");
        check("N=1 each=1024", "n1:1024");
        let of_job = |tasks: u32, nodes: usize| {
            let held = vec![("n1".to_owned(), tasks); nodes];
            layout(&held, &StepAsk::default())
                .map(|tasks| tasks.len())
                .map_err(|refusal| refusal.text)
        };
        assert_eq!(of_job(1024, 64), Ok(64));
        assert!(
            of_job(1024, 65)
                .unwrap_err()
                .starts_with("the job has 66560 tasks here, up to 1024 on a node")
        );
        assert!(
            of_job(u32::MAX, 1)
                .unwrap_err()
                .ends_with("Say how many with -n.")
        );
    }

    #[test]
    fn more_tasks_than_cpus_are_refused_unless_that_is_wished() {
        let share = |cpus, tasks| NodeShare {
            node: gmodel::NodeId(1),
            cpus,
            mem_bytes: 0,
            gpus: Default::default(),
            tasks,
        };
        let allocation = [share(2, 3), share(1, 1)];
        let refusal = |tasks: &[(usize, u32)], ask: &StepAsk| {
            enough_cpus(&allocation, tasks, ask)
                .err()
                .map(|refusal| refusal.text)
        };
        assert_eq!(
            refusal(&[(0, 3), (1, 1)], &ask("")),
            None,
            "as many as the job's own tasks"
        );
        let text = refusal(&[(0, 50), (1, 49)], &ask("")).unwrap();
        assert!(text.starts_with("More processors requested than permitted: 99 tasks, and the job has 4 CPUs on the 2 node(s)"), "{text}");
        assert_eq!(
            refusal(
                &[(0, 99)],
                &StepAsk {
                    overcommit: true,
                    ..ask("")
                }
            ),
            None
        );
        let own = gmodel::step_share::StepShareRequest {
            cpus_per_task: 1,
            ..Default::default()
        };
        assert_eq!(
            refusal(
                &[(0, 99)],
                &StepAsk {
                    share: Some(own),
                    ..ask("")
                }
            ),
            None,
            "said where CPUs are given"
        );
    }

    #[test]
    fn ranks_fill_the_nodes_or_go_round_them() {
        assert_eq!(deal(&[3, 1, 2], 0), [vec![0, 1, 2], vec![3], vec![4, 5]]);
        assert_eq!(deal(&[3, 1, 2], 1), [vec![0, 3, 5], vec![1], vec![2, 4]]);
        assert_eq!(deal(&[5, 3], 2), [vec![0, 1, 4, 5, 7], vec![2, 3, 6]]);
        assert_eq!(deal(&[], 1), Vec::<Vec<u32>>::new());
    }
}
