//! One TOML for a simulation: the words of gpuctld.toml, of `partitions.d` and of `policy.d` as the controller reads them, and
//! gsim's own: `[[node]]`, `[simulation]`.
//!
//! Owns gsim's own words; all others are [`gconfig`]'s, so that a file means here what it means there. Never reads a file.

use crate::hardware::{MAX_GPUS, NodeShape};
use crate::trace_run::Runtime;
use gconfig::cluster::{self, KEYS as SITE_KEYS};
use gconfig::error::{Errors, Source};
use gconfig::partition::Partitions;
use gconfig::policy::Records;
use gconfig::policy_check;
use gconfig::scheduling::{self, SCHEDULER_KEYS};
use gconfig::section::Section;
use gcore::ctl::MAX_NODE_CPUS;
use gmodel::Timestamp;
use gmodel::config::{ClusterConfig, GpuSharing, Partition};
use gmodel::gpu_request::{GpuAmount, GpuKind, GpuRequest};
use gmodel::hostlist::Hostlist;
use std::path::Path;
use toml::de::DeTable;

const SIMULATION_KEYS: [&str; 5] = [
    "runtime",
    "kill_at_limit",
    "per_account_clusters",
    "marks_every",
    "begin",
];
const NODE_KEYS: [&str; 6] = ["names", "cpus", "mem", "gpus", "gpu_mem", "features"];
const RUNTIMES: [(&str, Runtime); 2] = [("limit", Runtime::Limit), ("actual", Runtime::Actual)];

/// What such a file says.
#[derive(Clone, Debug, Default)]
pub struct SiteFile {
    /// With partitions and records; what only processes on real nodes would notice is left out.
    pub config: ClusterConfig,
    /// None where the file has no partitions of its own.
    pub has_partitions: bool,
    pub nodes: Vec<(Hostlist, NodeShape)>,
    pub simulation: Simulation,
}

/// gsim's own words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulation {
    pub runtime: Option<Runtime>,
    pub kill_at_limit: Option<bool>,
    pub per_account_clusters: Option<bool>,
    pub marks_every_secs: Option<u32>,
    /// The date of the trace's second 0.
    pub begin: Option<Timestamp>,
}

impl SiteFile {
    /// Reads a text under the name of its file. The keys of `[scheduler]` and `[simulation]` may also stand at the top.
    ///
    /// # Errors
    /// Every mistake with its place.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut errors = Errors::default();
        let source = Source::new(Path::new(name), text, &mut errors);
        let table = source.parse(&mut errors);
        let own = ["node", "simulation", "switch"];
        let known: Vec<&str> = [&SITE_KEYS[..], &SCHEDULER_KEYS, &SIMULATION_KEYS, &own].concat();
        let top = Section::open(&source, &table, &known, "the file", &mut errors);
        let mut config = cluster::read(&top, &mut errors);
        scheduling::read_words(&top, &mut config.scheduler, &mut errors);
        let mut simulation = Simulation::default();
        simulation.read(&top, &mut errors);
        if let Some(table) = top.table("simulation", &mut errors) {
            let section = Section::open(
                &source,
                table,
                &SIMULATION_KEYS,
                "[simulation]",
                &mut errors,
            );
            simulation.read(&section, &mut errors);
        }
        let (mut partitions, mut records) = (Partitions::default(), Records::default());
        partitions.read(&source, &table, &mut records, &mut errors);
        records.read(&source, &table, &mut errors);
        let nodes = top.listed_tables("node", &mut errors).into_iter();
        let nodes: Vec<_> = nodes
            .filter_map(|(table, span)| node(&source, table, span, &mut errors))
            .collect();
        let has_partitions = top.has("partition");
        let partitions = partitions.finish().list;
        policy_check::check_one(&records, &partitions, &mut errors);
        config.partitions = partitions
            .into_iter()
            .map(|one| without_processes(one, &table))
            .collect();
        config.policy = records.policy;
        config
            .policy
            .qos
            .values_mut()
            .for_each(|qos| qos.idle = None);
        if errors.is_empty() {
            return Ok(Self {
                config,
                has_partitions,
                nodes,
                simulation,
            });
        }
        Err(errors
            .into_sorted()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n\n"))
    }
}

impl Simulation {
    fn read(&mut self, section: &Section, errors: &mut Errors) {
        self.runtime = section.word("runtime", &RUNTIMES, errors).or(self.runtime);
        self.kill_at_limit = section
            .boolean("kill_at_limit", errors)
            .or(self.kill_at_limit);
        self.per_account_clusters = section
            .boolean("per_account_clusters", errors)
            .or(self.per_account_clusters);
        self.marks_every_secs = section
            .secs("marks_every", 1..=366 * 86_400, errors)
            .or(self.marks_every_secs);
        self.begin = section.moment("begin", errors).or(self.begin);
    }
}

/// Processes on real nodes, what is watched there, and GPUs that are cut mean nothing in a trace: its slices are parts of GPUs,
/// and without a word it gets those that it had.
fn without_processes(partition: Partition, file: &DeTable<'_>) -> Partition {
    let written = file.get("partition").and_then(|all| {
        all.get_ref()
            .as_table()?
            .get(&*partition.name)?
            .get_ref()
            .as_table()
    });
    let shares = written.is_some_and(|table| table.contains_key("gpu_sharing"));
    let none = Partition::default();
    Partition {
        gpu_sharing: if shares {
            partition.gpu_sharing
        } else {
            GpuSharing::Uncapped
        },
        prolog: none.prolog,
        epilog: none.epilog,
        private_tmp: none.private_tmp,
        gpu_scrub: none.gpu_scrub,
        visible_devices: none.visible_devices,
        submit_from_jobs: none.submit_from_jobs,
        detached_secs: none.detached_secs,
        idle: none.idle,
        diagnostics: none.diagnostics,
        mig: none.mig,
        slices_for_memory: none.slices_for_memory,
        ..partition
    }
}

/// A `[[node]]`: its names, and what each of them has.
fn node(
    source: &Source,
    table: &DeTable<'_>,
    span: std::ops::Range<usize>,
    errors: &mut Errors,
) -> Option<(Hostlist, NodeShape)> {
    let section = Section::open(source, table, &NODE_KEYS, "[[node]]", errors);
    let (gpu_type, gpus) = gpus(&section, errors);
    let shape = NodeShape {
        gpus,
        gpu_type,
        gpu_mem_mib: section.size("gpu_mem", errors).unwrap_or(0) >> 20,
        cpus: section
            .number("cpus", 1..=MAX_NODE_CPUS, errors)
            .unwrap_or_else(|| gpus.max(1)),
        mem_bytes: section.size("mem", errors).unwrap_or(512 << 30),
        features: section.texts("features", errors).unwrap_or_default(),
    };
    if !section.has("names") {
        errors.add(
            source,
            span,
            "a [[node]] needs names",
            "as names = \"gpu[01-16]\"",
        );
    }
    Some((section.hosts("names", errors)?, shape))
}

/// `gpus = "h100:8"`, or a number.
fn gpus(section: &Section, errors: &mut Errors) -> (String, u32) {
    if section.is_number("gpus") {
        return (
            String::new(),
            section.number("gpus", 0..=MAX_GPUS, errors).unwrap_or(0),
        );
    }
    let Some(text) = section.text("gpus", errors) else {
        return Default::default();
    };
    let one = GpuRequest::parse(&text)
        .ok()
        .and_then(|ask| <[_; 1]>::try_from(ask.alternatives).ok());
    match one.map(|[one]| (one.kind, one.amount)) {
        Some((GpuKind::Any, GpuAmount::Whole(count))) if count <= MAX_GPUS => {
            (String::new(), count)
        }
        Some((GpuKind::Type(name), GpuAmount::Whole(count))) if count <= MAX_GPUS => (name, count),
        _ => {
            let hint = format!("as \"h100:8\": whole GPUs of one type, up to {MAX_GPUS}");
            errors.add(
                section.source,
                section.span("gpus"),
                format!("gpus = {text:?} is no equipment of a node"),
                hint,
            );
            Default::default()
        }
    }
}
