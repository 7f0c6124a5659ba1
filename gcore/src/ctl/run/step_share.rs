//! Step shares: the parts of a run that its steps hold exclusively; what is free of them, and where a step
//! fits. A step that does not fit yet waits at its grun, and nothing is reserved for it. Source: `--exact` in
//! srun(1).

use crate::ctl::command::{Refusal, StepAsk};
use crate::ctl::run::step_layout::usable;
use crate::ctl::state::{Run, State};
use gmodel::run::NodeShare;
use gmodel::size::rough_size;
use gmodel::step_share::{GpuCountUnit, StepGpus, StepHoldOnNode, StepShareRequest};
use gmodel::supervise::MAX_NODE_TASKS;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Most steps of one run with a share at a time.
const MAX_HOLDS: usize = 4096;
/// Most nodes named in a sentence.
const MAX_NAMED: usize = 3;

/// The answer to a step that asks for a share.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SharePlacement {
    /// Places of the allocation with the tasks of each, and the step's share there.
    Room {
        tasks: Vec<(usize, u32)>,
        parts: Vec<StepHoldOnNode>,
    },
    /// Other steps must end first; the text says what is missing.
    Waits(String),
}

/// A job's resources on one of its nodes, as positions in its share.
#[derive(Clone, Debug, Default)]
struct Room {
    cpus: Vec<u32>,
    /// GPUs of the requested type.
    gpus: Vec<u32>,
    mem_bytes: u64,
}

/// Finds room for a step that would run as `shared` without a share: for so many tasks, and on so many nodes
/// if there is room now or if the request says so.
///
/// # Errors
/// The job never has room for it, even without other steps.
pub(crate) fn find(
    state: &State,
    run: &Run,
    held: &[(String, u32)],
    ask: &StepAsk,
    share: &StepShareRequest,
    shared: &[(usize, u32)],
) -> Result<SharePlacement, Refusal> {
    let all: Vec<Room> = run
        .allocation
        .iter()
        .map(|part| Room::of(state, part, share))
        .collect();
    let mut free = all.clone();
    if !share.overlap {
        if run.step_holds.len() >= MAX_HOLDS {
            return Ok(SharePlacement::Waits(format!(
                "{MAX_HOLDS} steps of the job hold parts of it, and more cannot"
            )));
        }
        for part in run.step_holds.iter().flat_map(|hold| &hold.nodes) {
            free[part.place as usize].take(part);
        }
    }
    let (places, named) = usable(held, ask)?;
    let total = shared.iter().map(|(_, count)| *count).sum();
    let search = |nodes| Search {
        places: &places,
        named: named as usize,
        most_each: ask.ntasks_per_node.unwrap_or(MAX_NODE_TASKS),
        share,
        total,
        nodes,
    };
    let usual_nodes = Some(shared.len() as u32);
    // Without `--ntasks`, the job's own tasks on all its nodes.
    let is_fixed = ask.nodes.is_some() || ask.ntasks.is_none();
    let (spread, search) = (
        search(usual_nodes),
        search(usual_nodes.filter(|_| is_fixed)),
    );
    if let Some(tasks) = spread.among(&free).or_else(|| search.among(&free)) {
        let parts = tasks
            .iter()
            .map(|(place, count)| free[*place].part(*place, share, *count, tasks.len() as u32))
            .collect();
        return Ok(SharePlacement::Room { tasks, parts });
    }
    let what = search.wish();
    match search.among(&all) {
        Some(_) => Ok(SharePlacement::Waits(format!(
            "{what}: other steps have the rest; {}",
            search.said(held, &free, " has free")
        ))),
        None => Err(Refusal::invalid(format!(
            "{what}: more than the job has there; {}",
            search.said(held, &all, " has")
        ))),
    }
}

/// Whether the share holds anything.
pub(crate) fn holds(part: &StepHoldOnNode) -> bool {
    !part.cpus.is_empty() || !part.gpus.is_empty() || part.mem_bytes > 0
}

/// Violations: shares that their run does not hold, or that overlap.
pub(crate) fn check(state: &State, found: &mut Vec<String>) {
    for run in state.runs.values().filter(|run| !run.step_holds.is_empty()) {
        let mut seen = BTreeSet::new();
        for part in run.step_holds.iter().flat_map(|hold| &hold.nodes) {
            let has = run.allocation.get(part.place as usize);
            let has = |cpu: bool| {
                has.map_or(0, |share| {
                    if cpu {
                        share.cpus
                    } else {
                        share.gpus.0.len() as u32
                    }
                })
            };
            let units = part
                .cpus
                .iter()
                .map(|at| (true, *at))
                .chain(part.gpus.iter().map(|at| (false, *at)));
            for (cpu, at) in units {
                if at >= has(cpu) || !seen.insert((part.place, cpu, at)) {
                    found.push(format!(
                        "steps of run {} hold {} {at} of its node {} twice, or it has none",
                        run.id,
                        if cpu { "CPU" } else { "GPU" },
                        part.place
                    ));
                }
            }
        }
    }
}

struct Search<'a> {
    places: &'a [usize],
    /// The first so many places are required.
    named: usize,
    most_each: u32,
    share: &'a StepShareRequest,
    total: u32,
    nodes: Option<u32>,
}

impl Search<'_> {
    fn among(&self, rooms: &[Room]) -> Option<Vec<(usize, u32)>> {
        match (self.nodes, &self.share.gpus) {
            // GPUs of the whole step are dealt evenly over its nodes.
            (None, Some(gpus)) if gpus.per == GpuCountUnit::Step && gpus.count > 0 => {
                let most = self.total.min(self.places.len() as u32);
                (1..=most)
                    .filter(|nodes| gpus.count % nodes == 0)
                    .find_map(|nodes| self.on(rooms, Some(nodes)))
            }
            (nodes, _) => self.on(rooms, nodes),
        }
    }

    /// Tasks on so many nodes, or as few as do; nodes with the most room first.
    fn on(&self, rooms: &[Room], nodes: Option<u32>) -> Option<Vec<(usize, u32)>> {
        let room = |place: usize| {
            rooms[place]
                .tasks(self.share, nodes.unwrap_or(1))
                .min(self.most_each)
        };
        let mut places: Vec<(usize, u32)> = self
            .places
            .iter()
            .map(|place| (*place, room(*place)))
            .collect();
        places
            .get_mut(self.named..)?
            .sort_by_key(|(_, tasks)| Reverse(*tasks));
        let enough = |count: &usize| {
            places[..*count]
                .iter()
                .map(|(_, tasks)| u64::from(*tasks))
                .sum::<u64>()
                >= self.total.into()
        };
        let count = match nodes {
            Some(nodes) => Some(nodes as usize)
                .filter(|count| *count <= places.len())
                .filter(enough)?,
            None => fewest(&places, self.total).map(|count| count.max(self.named))?,
        };
        places.truncate(count);
        if places.iter().any(|(_, tasks)| *tasks == 0) {
            return None;
        }
        places.sort_unstable();
        Some(dealt(&places, self.total))
    }

    /// `node1 has 3 CPUs; node2 has 1 CPU`: the first nodes with their room.
    fn said(&self, held: &[(String, u32)], rooms: &[Room], has: &str) -> String {
        let said = self
            .places
            .iter()
            .take(MAX_NAMED)
            .map(|place| format!("{}{has} {}", held[*place].0, rooms[*place].said(self.share)));
        let more = if self.places.len() > MAX_NAMED {
            "; ..."
        } else {
            ""
        };
        format!("{}{more}", said.collect::<Vec<_>>().join("; "))
    }

    /// The request in words.
    fn wish(&self) -> String {
        let share = self.share;
        let mut parts = Vec::new();
        if share.cpus_per_task > 0 {
            parts.push(format!("{} each", plural(share.cpus_per_task, "CPU")));
        }
        if let Some(gpus) = &share.gpus {
            let per = match gpus.per {
                GpuCountUnit::Step => "",
                GpuCountUnit::Node => " a node",
                GpuCountUnit::Task => " each",
            };
            parts.push(format!("{}{per}", plural(gpus.count, &unit(gpus))));
        }
        if share.mem_bytes > 0 {
            parts.push(format!("{} a node", rough_size(share.mem_bytes)));
        }
        if share.mem_per_cpu_bytes > 0 {
            parts.push(format!("{} a CPU", rough_size(share.mem_per_cpu_bytes)));
        }
        if share.mem_per_gpu_bytes > 0 {
            parts.push(format!("{} a GPU", rough_size(share.mem_per_gpu_bytes)));
        }
        let on = self.nodes.map_or(String::new(), |nodes| {
            format!(" on {}", plural(nodes, "node"))
        });
        format!(
            "{}{on} with {}",
            plural(self.total, "task"),
            parts.join(", ")
        )
    }
}

impl Room {
    fn of(state: &State, part: &NodeShare, share: &StepShareRequest) -> Self {
        let wanted = share
            .gpus
            .as_ref()
            .and_then(|gpus| gpus.gpu_type.as_deref());
        let node = state.node(part.node);
        let is_of_type = |name: &str, slot| {
            let known = node.and_then(|node| node.gpus.iter().find(|gpu| gpu.slot == slot));
            known.is_some_and(|gpu| gpu.info.gpu_type.eq_ignore_ascii_case(name))
        };
        let gpus = (0..)
            .zip(&part.gpus.0)
            .filter(|(_, grant)| wanted.is_none_or(|name| is_of_type(name, grant.slot)));
        Self {
            cpus: (0..part.cpus).collect(),
            gpus: gpus.map(|(at, _)| at).collect(),
            // Without a figure there is no bound.
            mem_bytes: if part.mem_bytes == 0 {
                u64::MAX
            } else {
                part.mem_bytes
            },
        }
    }

    fn take(&mut self, part: &StepHoldOnNode) {
        self.cpus.retain(|at| !part.cpus.contains(at));
        self.gpus.retain(|at| !part.gpus.contains(at));
        self.mem_bytes = self.mem_bytes.saturating_sub(part.mem_bytes);
    }

    /// How many tasks of the step fit, if it is on so many nodes.
    fn tasks(&self, share: &StepShareRequest, nodes: u32) -> u32 {
        let each = share.cpus_per_task as usize;
        let Some(mem_bytes) = self.mem_bytes.checked_sub(share.mem_bytes) else {
            return 0;
        };
        let by_cpus = self.cpus.len().checked_div(each);
        let has = self.gpus.len() as u32;
        let (gpus_each, gpus_here) = share.gpus.as_ref().map_or((0, 0), |gpus| match gpus.per {
            GpuCountUnit::Task => (gpus.count, 0),
            GpuCountUnit::Node => (0, gpus.count),
            GpuCountUnit::Step => (0, gpus.count / nodes),
        });
        let of = |bytes: u64, count: u64| bytes.saturating_mul(count);
        let Some(mem_bytes) = mem_bytes.checked_sub(of(share.mem_per_gpu_bytes, gpus_here.into()))
        else {
            return 0;
        };
        let mem_each = of(share.mem_per_cpu_bytes, each as u64)
            .saturating_add(of(share.mem_per_gpu_bytes, gpus_each.into()));
        let by_mem = mem_bytes.checked_div(mem_each);
        let by_gpus = match share.gpus.as_ref().map(|gpus| (gpus.per, gpus.count)) {
            Some((GpuCountUnit::Task, count)) => has.checked_div(count),
            Some((GpuCountUnit::Node, count)) if count > has => Some(0),
            Some((GpuCountUnit::Step, count)) if count % nodes != 0 || count / nodes > has => {
                Some(0)
            }
            _ => None,
        };
        let most = u64::from(MAX_NODE_TASKS);
        let all = [
            by_cpus.map(|count| count as u64),
            by_mem,
            by_gpus.map(u64::from),
        ];
        all.into_iter().flatten().fold(most, u64::min) as u32
    }

    /// The part for so many tasks, of a step on so many nodes.
    fn part(
        &self,
        place: usize,
        share: &StepShareRequest,
        tasks: u32,
        nodes: u32,
    ) -> StepHoldOnNode {
        let cpus = tasks.saturating_mul(share.cpus_per_task);
        let gpus = share.gpus.as_ref().map_or(0, |gpus| match gpus.per {
            GpuCountUnit::Task => gpus.count.saturating_mul(tasks),
            GpuCountUnit::Node => gpus.count,
            GpuCountUnit::Step => gpus.count / nodes,
        });
        let first = |all: &[u32], count: u32| all.iter().copied().take(count as usize).collect();
        StepHoldOnNode {
            place: place as u32,
            cpus: first(&self.cpus, cpus),
            mem_bytes: [
                (share.mem_per_cpu_bytes, cpus),
                (share.mem_per_gpu_bytes, gpus),
            ]
            .into_iter()
            .fold(share.mem_bytes, |sum, (bytes, count)| {
                sum.saturating_add(bytes.saturating_mul(count.into()))
            }),
            gpus: first(&self.gpus, gpus),
        }
    }

    /// Free resources, in the words of the request.
    fn said(&self, share: &StepShareRequest) -> String {
        let mut parts = Vec::new();
        if share.cpus_per_task > 0 {
            parts.push(plural(self.cpus.len() as u32, "CPU"));
        }
        if let Some(gpus) = &share.gpus {
            parts.push(plural(self.gpus.len() as u32, &unit(gpus)));
        }
        if share.mem_bytes > 0 || share.mem_per_cpu_bytes > 0 || share.mem_per_gpu_bytes > 0 {
            parts.push(rough_size(self.mem_bytes));
        }
        parts.join(", ")
    }
}

fn plural(count: u32, unit: &str) -> String {
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

fn unit(gpus: &StepGpus) -> String {
    gpus.gpu_type
        .as_ref()
        .map_or("GPU".to_owned(), |name| format!("{name} GPU"))
}

/// How many of the first places have room for all tasks.
fn fewest(places: &[(usize, u32)], total: u32) -> Option<usize> {
    let mut left = u64::from(total);
    let last = places.iter().position(|(_, tasks)| {
        left = left.saturating_sub((*tasks).into());
        left == 0
    });
    last.map(|at| at + 1)
}

/// One task for each place, then cyclic where there is room.
fn dealt(room: &[(usize, u32)], total: u32) -> Vec<(usize, u32)> {
    let mut tasks: Vec<(usize, u32)> = room.iter().map(|(place, _)| (*place, 0)).collect();
    let mut left = total;
    while left > 0 {
        for (given, (_, most)) in tasks.iter_mut().zip(room) {
            if given.1 < *most && left > 0 {
                given.1 += 1;
                left -= 1;
            }
        }
    }
    tasks
}
