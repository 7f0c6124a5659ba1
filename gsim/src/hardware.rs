//! The machines of a simulated cluster: from a CSV of nodes, from TOML, or sized to what a trace asks for.
//!
//! Owns what the nodes have and which partitions there are; never what runs on them, and never reads a file.

use crate::csv_rows::rows;
use crate::trace::{Trace, TraceJob};
use csv::StringRecord;
use gcore::ctl::{MAX_NODE_CPUS, MAX_NODE_GPUS, MAX_NODE_MEM_BYTES};
use gmodel::config::{GpuSharing, Partition};
use gmodel::duration::squeue_time;
use gmodel::node::{GpuInfo, Inventory};
use gmodel::size::rough_size;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Nodes of one cluster at most.
pub const MAX_NODES: usize = 100_000;
/// GPUs of one node at most.
pub const MAX_GPUS: u32 = MAX_NODE_GPUS as u32;
/// GPUs of a node where nothing says how many.
pub const GPUS_PER_NODE: u32 = 8;
/// Part of the time that a sized cluster would be busy.
pub const LOAD: f64 = 0.9;
/// CPUs and memory of a node of which a CSV does not say them.
const PLENTY_CPUS: u32 = MAX_NODE_CPUS;
const PLENTY_MEM: u64 = MAX_NODE_MEM_BYTES;
/// Memory of nodes where nothing asks for any.
const MEM_BYTES: u64 = 512 << 30;

/// Nodes and partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    pub nodes: Vec<HollowNode>,
    pub partitions: Vec<Partition>,
    /// What was assumed, for the reader of the results.
    pub notes: Vec<String>,
}

/// What a sized cluster is to be like.
#[derive(Clone, Debug)]
pub struct ClusterSizing {
    /// Part of the time that it would be busy.
    pub load: f64,
    /// The time over which the work comes in.
    pub span_ms: i64,
    /// `None`: [`GPUS_PER_NODE`], or more where a job needs them.
    pub gpus_per_node: Option<u32>,
    pub cpus_per_node: Option<u32>,
}

impl ClusterSizing {
    /// A cluster for this trace, busy for [`LOAD`] of the time.
    pub fn of(trace: &Trace) -> Self {
        let longest = trace
            .jobs
            .iter()
            .filter_map(|job| job.run_ms)
            .max()
            .unwrap_or(0);
        let span_ms = if trace.span_ms() > 0 {
            trace.span_ms()
        } else {
            longest
        };
        Self {
            load: LOAD,
            span_ms,
            gpus_per_node: None,
            cpus_per_node: None,
        }
    }

    /// What one part of a cluster does at its load, in milliseconds.
    fn capacity(&self) -> f64 {
        self.load * self.span_ms.max(1) as f64
    }

    /// Nodes with so many parts `each` that do this work.
    fn nodes_for(&self, work: f64, each: u64) -> u64 {
        ((work / self.capacity() / each as f64).ceil() as u64).max(1)
    }
}

/// A machine that only says that it runs something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HollowNode {
    pub name: String,
    pub shape: NodeShape,
    /// What the real node reported, of a controller's own trace.
    pub reported: Option<Arc<Inventory>>,
}

impl HollowNode {
    pub fn new(name: impl Into<String>, shape: NodeShape) -> Self {
        Self {
            name: name.into(),
            shape,
            reported: None,
        }
    }

    /// What the node's daemon would report.
    pub fn inventory(&self) -> Inventory {
        self.reported
            .as_deref()
            .cloned()
            .unwrap_or_else(|| self.shape.inventory(&self.name))
    }
}

/// What a node has.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeShape {
    pub gpus: u32,
    /// Lower case; empty: `gpu`.
    pub gpu_type: String,
    pub gpu_mem_mib: u64,
    pub cpus: u32,
    pub mem_bytes: u64,
    pub features: Vec<String>,
}

impl NodeShape {
    /// What the node's daemon would report.
    pub fn inventory(&self, name: &str) -> Inventory {
        let kind = if self.gpu_type.is_empty() {
            "gpu"
        } else {
            &self.gpu_type
        };
        let gpu = |index: u32| GpuInfo {
            uuid: format!("GPU-{name}-{index}"),
            gpu_type: kind.to_owned(),
            index,
            minor: index,
            memory_mib: if self.gpu_mem_mib > 0 {
                self.gpu_mem_mib
            } else {
                80 << 10
            },
            ..GpuInfo::default()
        };
        Inventory {
            cpus: self.cpus,
            mem_bytes: self.mem_bytes,
            gpus: (0..self.gpus).map(gpu).collect(),
            features: self.features.clone(),
            declared: true,
            ..Inventory::default()
        }
    }
}

impl fmt::Display for NodeShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gpus > 0 {
            let kind = if self.gpu_type.is_empty() {
                "GPUs"
            } else {
                &self.gpu_type
            };
            write!(f, "{} {kind}, ", self.gpus)?;
        }
        write!(f, "{} CPUs, {}", self.cpus, rough_size(self.mem_bytes))
    }
}

impl Hardware {
    pub fn gpus(&self) -> u64 {
        self.nodes
            .iter()
            .map(|node| u64::from(node.shape.gpus))
            .sum()
    }
    pub fn cpus(&self) -> u64 {
        self.nodes
            .iter()
            .map(|node| u64::from(node.shape.cpus))
            .sum()
    }

    /// One line: how many nodes of which shapes.
    pub fn describe(&self) -> String {
        let mut shapes: BTreeMap<&NodeShape, usize> = BTreeMap::new();
        for node in &self.nodes {
            *shapes.entry(&node.shape).or_default() += 1;
        }
        let mut list: Vec<_> = shapes.into_iter().collect();
        list.sort_by_key(|(shape, count)| (std::cmp::Reverse(*count), (*shape).clone()));
        let mut parts: Vec<String> = list
            .iter()
            .take(4)
            .map(|(shape, count)| format!("{count} of {shape}"))
            .collect();
        if list.len() > 4 {
            parts.push(format!("{} other shapes", list.len() - 4));
        }
        let (nodes, gpus) = (self.nodes.len(), self.gpus());
        format!(
            "{nodes} nodes, {gpus} GPUs, {} CPUs ({})",
            self.cpus(),
            parts.join("; ")
        )
    }

    /// Whether its GPUs are of a type that jobs can ask for.
    pub fn names_types(&self) -> bool {
        self.nodes
            .iter()
            .any(|node| !node.shape.gpu_type.is_empty())
    }

    /// So many equal nodes, and one partition over them.
    pub fn uniform(count: u32, shape: &NodeShape) -> Self {
        let width = count.to_string().len();
        let nodes = (1..=count)
            .map(|at| HollowNode::new(format!("n{at:0width$}"), shape.clone()))
            .collect();
        Self {
            nodes,
            partitions: vec![main_partition()],
            notes: Vec::new(),
        }
    }

    /// A cluster on which the trace would keep the GPUs (of jobs without GPUs: the CPUs) busy for `load` of the time
    /// between its first and last submission, and on which its largest job fits.
    ///
    /// # Errors
    /// That takes more than [`MAX_NODES`].
    pub fn sized(jobs: &[&TraceJob], wish: &ClusterSizing) -> Result<Self, String> {
        let groups = groups(jobs, wish);
        let count: u64 = groups
            .iter()
            .map(|group| group.count)
            .fold(0, u64::saturating_add);
        let load = wish.load;
        if count > MAX_NODES as u64 {
            let span = squeue_time(wish.span_ms.max(0) as u64 / 1000);
            return Err(format!(
                "no --cluster: to be busy for {load} of the {span} between its first and last submission the trace needs {count} nodes, and {MAX_NODES} are the most. Say --nodes or --cluster"
            ));
        }
        let nodes = groups
            .iter()
            .flat_map(|group| named(group.prefix, group.count as u32, &group.shape))
            .collect();
        let mut notes = vec![format!(
            "no --cluster: sized so that the trace would keep it busy for {load} of its time"
        )];
        notes.extend(groups.iter().find_map(|group| group.large_nodes(wish)));
        Ok(Self {
            nodes,
            partitions: vec![main_partition()],
            notes,
        })
    }

    /// So many nodes like those of a sized cluster. That cluster itself is not made: it may be far larger.
    pub fn uniform_for(jobs: &[&TraceJob], wish: &ClusterSizing, count: u32) -> Self {
        let groups = groups(jobs, wish);
        let shape = groups
            .first()
            .map_or_else(|| no_jobs(wish), |group| group.shape.with(wish));
        let notes = groups
            .first()
            .filter(|_| wish.gpus_per_node.is_none())
            .and_then(|group| group.large_nodes(wish))
            .into_iter()
            .collect();
        Self {
            notes,
            ..Self::uniform(count, &shape)
        }
    }

    /// What a node has that no file describes: as in a sized cluster.
    pub fn unknown_shape(jobs: &[&TraceJob], wish: &ClusterSizing) -> NodeShape {
        groups(jobs, wish)
            .first()
            .map_or_else(|| no_jobs(wish), |group| group.shape.with(wish))
    }

    /// The nodes of a CSV with the columns node, cpus, mem_mb, gpus, gpu_type. A node without CPUs or memory in the file has
    /// plenty.
    ///
    /// # Errors
    /// The first row that cannot be used, with its line.
    pub fn from_csv(text: &str) -> Result<Self, String> {
        let mut rows = rows(text);
        let (_, header) = rows.next().ok_or("line 1: the file is empty")?;
        let header = header?;
        let at = ["node", "cpus", "mem_mb", "gpus", "gpu_type"]
            .map(|name| header.iter().position(|field| field.trim() == name));
        if let [None, ..] = at {
            return Err("line 1: no column \"node\"; a list of nodes has the columns node,cpus,mem_mb,gpus,gpu_type".into());
        }
        let mut nodes: Vec<HollowNode> = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for (line, row) in rows {
            let node = row
                .and_then(|row| csv_node(&row, header.len(), &at))
                .map_err(|text| format!("line {line}: {text}"))?;
            if !seen.insert(node.name.clone()) {
                return Err(format!("line {line}: node {:?} is there twice", node.name));
            }
            if nodes.len() >= MAX_NODES {
                return Err(format!("line {line}: more than {MAX_NODES} nodes"));
            }
            nodes.push(node);
        }
        if nodes.is_empty() {
            return Err("the file has a header and no nodes".into());
        }
        let unsaid =
            |test: fn(&NodeShape) -> bool| nodes.iter().filter(|node| test(&node.shape)).count();
        let note = |what: &str, count: usize| {
            (count > 0).then(|| {
                format!("{count} nodes without {what} in the file: it limits no job there")
            })
        };
        let notes = [
            note("cpus", unsaid(|node| node.cpus == PLENTY_CPUS)),
            note("mem_mb", unsaid(|node| node.mem_bytes == PLENTY_MEM)),
        ];
        let notes = notes.into_iter().flatten().collect();
        Ok(Self {
            nodes,
            partitions: vec![main_partition()],
            notes,
        })
    }
}

/// Whether a text is a CSV of nodes.
pub fn is_node_csv(text: &str) -> bool {
    rows(text)
        .next()
        .and_then(|(_, header)| header.ok())
        .is_some_and(|header| header.len() > 1 && header.iter().any(|field| field.trim() == "node"))
}

fn csv_node(
    fields: &StringRecord,
    count: usize,
    at: &[Option<usize>; 5],
) -> Result<HollowNode, String> {
    if fields.len() != count {
        return Err(format!(
            "{} fields, and the header has {count}",
            fields.len()
        ));
    }
    let field = |column: usize| at[column].map_or("", |at| fields[at].trim());
    let number = |column: usize, name: &str, most: u64| -> Result<Option<u64>, String> {
        let text = field(column);
        if text.is_empty() {
            return Ok(None);
        }
        let number: f64 = text
            .parse()
            .map_err(|_| format!("{name} is {text:?}, which is no number"))?;
        if !(0.0..=most as f64).contains(&number) {
            return Err(format!("{name} is {text:?}; 0 to {most} is allowed"));
        }
        Ok(Some(number as u64))
    };
    let name = field(0);
    if name.is_empty() || name.len() > 200 {
        return Err("a node has a name of up to 200 bytes".into());
    }
    let shape = NodeShape {
        cpus: number(1, "cpus", u64::from(MAX_NODE_CPUS))?.map_or(PLENTY_CPUS, |cpus| cpus as u32),
        mem_bytes: number(2, "mem_mb", MAX_NODE_MEM_BYTES >> 20)?
            .map_or(PLENTY_MEM, |mib| mib << 20),
        gpus: number(3, "gpus", u64::from(MAX_GPUS))?.unwrap_or(0) as u32,
        gpu_type: field(4).to_ascii_lowercase(),
        ..NodeShape::default()
    };
    Ok(HollowNode::new(name, shape))
}

pub(crate) fn main_partition() -> Partition {
    // Traces have parts of GPUs of several users on one.
    Partition {
        name: "main".into(),
        is_default: true,
        gpu_sharing: GpuSharing::Uncapped,
        ..Partition::default()
    }
}

fn named(prefix: &str, count: u32, shape: &NodeShape) -> impl Iterator<Item = HollowNode> {
    let width = count.to_string().len();
    (1..=count).map(move |at| HollowNode::new(format!("{prefix}{at:0width$}"), shape.clone()))
}

/// Nodes that are alike.
struct NodeGroup {
    prefix: &'static str,
    count: u64,
    shape: NodeShape,
}

impl NodeGroup {
    /// That a job made the nodes larger than they were to be.
    fn large_nodes(&self, wish: &ClusterSizing) -> Option<String> {
        let NodeShape { gpus, cpus, .. } = self.shape;
        let asked_gpus = wish.gpus_per_node.unwrap_or(GPUS_PER_NODE);
        let large = |what: &str, has: u32, asked: u32| {
            format!("nodes of {has} {what}, not {asked}: a job asks for so many on one node")
        };
        if gpus > asked_gpus {
            return Some(large("GPUs", gpus, asked_gpus));
        }
        wish.cpus_per_node
            .filter(|asked| cpus > *asked)
            .map(|asked| large("CPUs", cpus, asked))
    }
}

/// The nodes for jobs with GPUs, and those for jobs without.
fn groups(jobs: &[&TraceJob], wish: &ClusterSizing) -> Vec<NodeGroup> {
    let (on_gpus, on_cpus): (Vec<_>, Vec<_>) = jobs
        .iter()
        .filter(|job| job.run_ms.is_some())
        .partition(|job| job.gpu_milli > 0);
    let mut groups = Vec::new();
    if !on_gpus.is_empty() {
        groups.push(gpu_nodes(&on_gpus, wish));
    }
    if !on_cpus.is_empty() {
        groups.push(cpu_nodes(&on_cpus, wish));
    }
    groups
}

fn gpu_nodes(jobs: &[&TraceJob], wish: &ClusterSizing) -> NodeGroup {
    let wanted = u64::from(wish.gpus_per_node.unwrap_or(GPUS_PER_NODE));
    // A job that does not say its nodes takes as many as its GPUs fill.
    let gpus = wanted.max(most(jobs, |job| {
        if job.says_nodes {
            job.gpus().div_ceil(u64::from(job.nodes))
        } else {
            1
        }
    }));
    let gpus = gpus.min(u64::from(MAX_GPUS));
    let held = work(jobs, |job| job.gpu_milli as f64 / 1000.0);
    let widest = most(jobs, |job| u64::from(job.nodes_among(gpus)));
    let count = wish.nodes_for(held, gpus).max(widest);
    let shape = NodeShape {
        gpus: gpus as u32,
        ..shape(jobs, count, wish.capacity(), gpus, wish.cpus_per_node)
    };
    NodeGroup {
        prefix: "g",
        count,
        shape,
    }
}

fn cpu_nodes(jobs: &[&TraceJob], wish: &ClusterSizing) -> NodeGroup {
    let cpus = u64::from(wish.cpus_per_node.unwrap_or(1)).max(most(jobs, cpus_each));
    let held = work(jobs, |job| job.cpus().max(u64::from(job.nodes)) as f64);
    let widest = most(jobs, |job| u64::from(job.nodes));
    let count = wish.nodes_for(held, cpus).max(widest);
    let shape = NodeShape {
        cpus: cpus as u32,
        ..shape(jobs, count, wish.capacity(), cpus, None)
    };
    NodeGroup {
        prefix: "c",
        count,
        shape,
    }
}

impl NodeShape {
    /// With what was asked for, whatever the jobs need.
    fn with(&self, wish: &ClusterSizing) -> Self {
        let gpus = wish.gpus_per_node.unwrap_or(self.gpus);
        let cpus = wish.cpus_per_node.unwrap_or(self.cpus.max(gpus)).max(1);
        Self {
            gpus,
            cpus,
            ..self.clone()
        }
    }
}

fn no_jobs(wish: &ClusterSizing) -> NodeShape {
    NodeShape {
        mem_bytes: MEM_BYTES,
        ..NodeShape::default()
    }
    .with(wish)
}

/// CPUs and memory with which they do not stand in the way of the rest.
fn shape(
    jobs: &[&TraceJob],
    count: u64,
    capacity: f64,
    least_cpus: u64,
    cpus: Option<u32>,
) -> NodeShape {
    let each = |needed: f64| (needed / capacity / count as f64).ceil() as u64;
    let by_load = each(work(jobs, |job| job.cpus() as f64));
    let cpus = cpus
        .map_or(by_load, u64::from)
        .max(most(jobs, cpus_each))
        .max(least_cpus);
    let mem_mib = each(work(jobs, |job| {
        (job.mem_mib * u64::from(job.nodes)) as f64
    }))
    .max(most(jobs, |job| job.mem_mib));
    NodeShape {
        cpus: cpus.min(u64::from(MAX_NODE_CPUS)) as u32,
        mem_bytes: (mem_mib << 20).clamp(MEM_BYTES, MAX_NODE_MEM_BYTES),
        ..NodeShape::default()
    }
}

fn cpus_each(job: &TraceJob) -> u64 {
    job.cpus().div_ceil(u64::from(job.nodes)).max(1)
}

fn most(jobs: &[&TraceJob], of: impl Fn(&TraceJob) -> u64) -> u64 {
    jobs.iter().map(|job| of(job)).max().unwrap_or(0)
}

/// What the jobs hold, times milliseconds.
fn work(jobs: &[&TraceJob], of: impl Fn(&TraceJob) -> f64) -> f64 {
    jobs.iter()
        .map(|job| of(job) * job.run_ms.unwrap_or(0) as f64)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_sized_to_the_load_of_the_trace() {
        let row = |submit: u32, gpus: u32, nodes: u32| format!("{submit},3600,{nodes},{gpus}\n");
        // 60 GPUs for an hour each over 5 hours are 12 GPUs at all times.
        let mut text = "submit_s,run_s,nodes,gpus\n".to_owned();
        (0..59).for_each(|_| text.push_str(&row(0, 1, 1)));
        text.push_str(&row(18_000, 1, 1));
        let sized = |text: &str, gpus_per_node| {
            let trace = Trace::parse(text).unwrap();
            let wish = ClusterSizing {
                gpus_per_node,
                ..ClusterSizing::of(&trace)
            };
            Hardware::sized(&trace.jobs.iter().collect::<Vec<_>>(), &wish).unwrap()
        };
        assert_eq!(
            (sized(&text, None).nodes.len(), sized(&text, None).gpus()),
            (2, 16)
        );
        assert_eq!(sized(&text, Some(1)).gpus(), 14);
        // The largest job fits whatever the load is.
        text.push_str(&row(18_000, 48, 3));
        let sized = sized(&text, None);
        assert_eq!((sized.nodes.len(), sized.gpus()), (3, 48));
        assert!(
            sized
                .describe()
                .starts_with("3 nodes, 48 GPUs, 48 CPUs (3 of 16 GPUs, 16 CPUs, 512"),
            "{}",
            sized.describe()
        );
    }

    #[test]
    fn a_cluster_that_is_given_is_not_sized_as_well() {
        // One job that runs for three years, another a second later: busy for 0.9 of a second they need 105 million nodes.
        let trace = Trace::parse("submit_s,run_s,gpus\n0,94608000,8\n1,10,1\n").unwrap();
        let jobs: Vec<_> = trace.jobs.iter().collect();
        let given = Hardware::uniform_for(&jobs, &ClusterSizing::of(&trace), 1000);
        assert_eq!(
            (given.nodes.len(), given.gpus(), given.notes.len()),
            (1000, 8000, 0)
        );
        let error = Hardware::sized(&jobs, &ClusterSizing::of(&trace)).unwrap_err();
        assert!(error.contains("of the 0:01 between its first and last submission the trace needs 105120002 nodes, and 100000 are the most"), "{error}");
    }

    #[test]
    fn nodes_are_larger_than_usual_only_where_a_job_says_so() {
        let note = |row: &str, gpus_per_node: Option<u32>| {
            let trace = Trace::parse(&format!("submit_s,run_s,nodes,gpus,cpus\n{row}\n")).unwrap();
            let jobs: Vec<_> = trace.jobs.iter().collect();
            let wish = ClusterSizing {
                gpus_per_node,
                ..ClusterSizing::of(&trace)
            };
            let (given, sized) = (
                Hardware::uniform_for(&jobs, &wish, 78),
                Hardware::sized(&jobs, &wish).unwrap(),
            );
            (
                given.nodes[0].shape.gpus,
                given.notes.concat(),
                sized.nodes[0].shape.gpus,
                sized.nodes.len(),
            )
        };
        assert_eq!(
            note("0,100,,32,", None),
            (8, String::new(), 8, 5),
            "a job of 32 GPUs that does not say its nodes takes four of eight"
        );
        assert_eq!(
            note("0,100,1,32,", None),
            (
                32,
                "nodes of 32 GPUs, not 8: a job asks for so many on one node".into(),
                32,
                2
            )
        );
        assert_eq!(
            note("0,100,1,32,", Some(4)),
            (4, String::new(), 32, 2),
            "so many were asked for"
        );
    }

    #[test]
    fn jobs_without_gpus_get_nodes_of_their_own() {
        let text = "submit_s,run_s,nodes,gpus,cpus,mem_mb\n0,100,1,0,32,600000\n0,100,2,0,24,1000\n100,100,1,1,4,1000\n";
        let trace = Trace::parse(text).unwrap();
        let sized = Hardware::sized(
            &trace.jobs.iter().collect::<Vec<_>>(),
            &ClusterSizing::of(&trace),
        )
        .unwrap();
        let cpu_nodes: Vec<_> = sized
            .nodes
            .iter()
            .filter(|node| node.shape.gpus == 0)
            .collect();
        assert_eq!((cpu_nodes.len(), cpu_nodes[0].shape.cpus), (2, 32));
        assert!(cpu_nodes[0].shape.mem_bytes >= 600_000 << 20);
        assert_eq!((sized.gpus(), sized.nodes.len()), (8, 3));
    }

    #[test]
    fn nodes_are_read_from_csv() {
        let text = "node,cpus,mem_mb,gpus,gpu_type\na,96,393216,8,G2\nb,32,262144,0,\n";
        assert!(
            is_node_csv(text)
                && !is_node_csv("[[node]]\nnames = \"a,b\"")
                && !is_node_csv("submit_s,run_s")
        );
        let hardware = Hardware::from_csv(text).unwrap();
        assert_eq!(
            (hardware.nodes.len(), hardware.gpus(), hardware.cpus()),
            (2, 8, 128)
        );
        let inventory = hardware.nodes[0].shape.inventory("a");
        assert_eq!(
            (
                inventory.gpus.len(),
                &*inventory.gpus[7].uuid,
                &*inventory.gpus[0].gpu_type
            ),
            (8, "GPU-a-7", "g2")
        );
        let marked = "\u{feff}gpu_type,gpus,node\r\nA100,4,c\r\n";
        assert!(is_node_csv("\u{feff}node,gpus\n") && is_node_csv(marked));
        assert_eq!(
            Hardware::from_csv(marked).unwrap().nodes[0].shape.gpu_type,
            "a100",
            "as spreadsheets write it"
        );
        for (bad, expected) in [
            (
                "node,cpus\na,many\n",
                "line 2: cpus is \"many\", which is no number",
            ),
            ("node,cpus\na,1\na,1\n", "line 3: node \"a\" is there twice"),
            ("node,cpus\na\n", "line 2: 1 fields, and the header has 2"),
            (
                "node,gpus\na,2000\n",
                "line 2: gpus is \"2000\"; 0 to 512 is allowed",
            ),
            ("node,cpus\n", "the file has a header and no nodes"),
        ] {
            assert_eq!(Hardware::from_csv(bad).unwrap_err(), expected);
        }
    }
}
