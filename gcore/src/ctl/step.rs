//! Steps: tasks started inside an allocation by `grun`. The core counts them and lays out their ranks;
//! the order itself travels outside the desired state, for a step belongs to the grun that waits for it.

use super::command::{Actor, Refusal, Reply, StepAsk, StepNode, Target};
use super::event::Event;
use super::handle::Tx;
use super::node_words::bounded_usage;
use super::state::State;
use super::step_share;
use super::targets::{Found, find, shown};
use gmodel::hostlist::Hostlist;
use gmodel::run::{NodeShare, Usage};
use gmodel::step_share::StepHold;
use gmodel::supervise::MAX_NODE_TASKS;
use gmodel::{ExitCode, JobId};
use std::collections::BTreeSet;

/// Tasks one step may have. Their ranks are lists of 4 bytes each in memory, of at most 6 in a frame: no bound above it is needed there.
pub const MAX_STEP_TASKS: u32 = 65_536;

pub(super) fn start(
    tx: &mut Tx,
    actor: &Actor,
    target: Target,
    ask: StepAsk,
) -> Result<Reply, Refusal> {
    let not_running = || {
        Refusal::conflict(format!(
            "job {} is not running: steps need its allocation.",
            shown(&target)
        ))
    };
    let id = job_of(tx.state, actor, &target)?.ok_or_else(not_running)?;
    let live = tx.state.jobs.get(id).and_then(|job| job.live_run());
    let run = live
        .and_then(|run| tx.state.runs.get(run))
        .ok_or_else(not_running)?;
    // A script may be quicker than the reports of its nodes: they hold the step until they have started.
    if run.stop.is_some() || run.outcome.is_some() || run.go.is_none() {
        return Err(not_running());
    }
    let name_of = |share: &NodeShare| {
        tx.state
            .nodes
            .get(share.node)
            .map_or(String::new(), |node| node.name.clone())
    };
    let held: Vec<(String, u32)> = run
        .allocation
        .iter()
        .map(|share| (name_of(share), share.tasks))
        .collect();
    let shared = layout(&held, &ask)?;
    enough_cpus(&run.allocation, &shared, &ask)?;
    let (tasks, parts) = match &ask.share {
        None => (shared, Vec::new()),
        Some(share) => match step_share::find(tx.state, run, &held, &ask, share, &shared)? {
            step_share::Found::Room { tasks, parts } => (tasks, parts),
            step_share::Found::Waits(text) => {
                return Ok(Reply::StepWaits {
                    text,
                    holders: run.step_holds.clone(),
                });
            }
        },
    };
    let counts: Vec<u32> = tasks.iter().map(|(_, count)| *count).collect();
    let layout: Vec<StepNode> = tasks
        .iter()
        .zip(deal(&counts, ask.cyclic))
        .enumerate()
        .map(|(at, ((place, _), ranks))| StepNode {
            node: run.allocation[*place].node,
            name: held[*place].0.clone(),
            ranks,
            own: parts.get(at).cloned(),
        })
        .collect();
    let places: Vec<u32> = tasks.iter().map(|(place, _)| *place as u32).collect();
    let the_first = places.iter().copied().eq(0..places.len() as u32);
    let (run, step, nodes) = (run.id, run.steps, places.len() as u32);
    let name = ask.name.chars().take(255).collect();
    let places = if the_first { Vec::new() } else { places };
    let holds = parts.iter().any(step_share::holds)
        && ask.share.as_ref().is_some_and(|share| !share.overlap);
    let hold = holds.then_some(StepHold {
        step,
        connect: ask.connect,
        nodes: parts,
    });
    tx.emit(Event::StepStarted {
        run,
        step,
        name,
        tasks: counts.iter().sum(),
        nodes,
        places,
        hold,
        at: tx.now,
    });
    Ok(Reply::Step { run, step, layout })
}

pub(super) fn end(
    tx: &mut Tx,
    actor: &Actor,
    target: Target,
    step: u32,
    exit: ExitCode,
    used: Option<Usage>,
) -> Result<Reply, Refusal> {
    let id = job_of(tx.state, actor, &target)?
        .ok_or_else(|| Refusal::conflict(format!("job {} is not running.", shown(&target))))?;
    let run = tx
        .state
        .jobs
        .get(id)
        .and_then(|job| job.live_run())
        .and_then(|run| tx.state.runs.get(run));
    let Some(run) = run.filter(|run| step < run.steps) else {
        return Err(Refusal::conflict(format!(
            "job {} has no step {step}.",
            shown(&target)
        )));
    };
    let run = run.id;
    let used = used.map(bounded_usage);
    tx.emit(Event::StepEnded {
        run,
        step,
        exit,
        used,
        at: tx.now,
    });
    Ok(Reply::Done)
}

/// The job whose allocation is meant. An array's first task has the array's own number, and arrays run no steps.
fn job_of(state: &State, actor: &Actor, target: &Target) -> Result<Option<JobId>, Refusal> {
    Ok(match find(state, actor, target)? {
        Found::Job(id) | Found::Array(id) => Some(id),
        Found::Untouched { .. } | Found::Over => None,
    })
}

/// Places in the allocation with the tasks of each: the job's own layout when nothing is asked, else even blocks.
fn layout(held: &[(String, u32)], ask: &StepAsk) -> Result<Vec<(usize, u32)>, Refusal> {
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

/// Nothing is laid out before the sum is known to be within its bounds: a list of ranks is as long as its number.
fn check_counts(tasks: &[(usize, u32)], ask: &StepAsk) -> Result<(), Refusal> {
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

/// A task has a CPU of its job, unless the request says that it need not: `-n 99` is a slip more often than a wish. A step with CPUs
/// of its own is counted where those are given. Source: `--overcommit` in srun(1).
fn enough_cpus(
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

/// Places of the nodes that a step may be on, those it must be on first, and how many the latter are.
pub(super) fn usable(held: &[(String, u32)], ask: &StepAsk) -> Result<(Vec<usize>, u32), Refusal> {
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

/// The ranks on each node: one node after the other, or round and round.
fn deal(counts: &[u32], cyclic: bool) -> Vec<Vec<u32>> {
    let mut ranks: Vec<Vec<u32>> = vec![Vec::new(); counts.len()];
    let mut at = 0;
    for rank in 0..counts.iter().sum() {
        while ranks[at].len() == counts[at] as usize {
            at = (at + 1) % counts.len();
        }
        ranks[at].push(rank);
        at = if cyclic { (at + 1) % counts.len() } else { at };
    }
    ranks
}

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
        assert_eq!(
            deal(&[3, 1, 2], false),
            [vec![0, 1, 2], vec![3], vec![4, 5]]
        );
        assert_eq!(deal(&[3, 1, 2], true), [vec![0, 3, 5], vec![1], vec![2, 4]]);
        assert_eq!(deal(&[], true), Vec::<Vec<u32>>::new());
    }
}
