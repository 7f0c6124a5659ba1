//! Job classes by request, worked out once for each and kept while policy and node classes stay.

use crate::cluster::node_class::NodeClass;
use crate::cluster::nodes::Cluster;
use crate::job::job_class::{Candidates, ClassFindings, JobAlternative, JobClass, JobClassId};
use crate::job::never_fits::never;
use crate::job::reason::behind_others;
use crate::snapshot::{BarredNode, PendingJob, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::constraint::Constraint;
use gmodel::gpu_request::{GpuAlternative, GpuKind};
use gmodel::hostlist::Hostlist;
use gmodel::policy::Placement;
use gmodel::{JobSpec, NodeId, Reason, ReasonCode};
use gpolicy::feasibility::demand::Demand;
use gpolicy::feasibility::share_request;
use gpolicy::reserved_nodes::{Claim, Windows};
use gpolicy::window;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All job classes seen, by number.
#[derive(Debug, Default)]
pub struct JobClasses {
    pub list: Vec<JobClass>,
    /// Classes about which the pass under way found out anything.
    looked_at: Vec<JobClassId>,
    by_key: BTreeMap<ClassKey, JobClassId>,
    /// By the address of the request, which is kept so that no other request gets the address.
    by_spec: BTreeMap<usize, (Arc<JobSpec>, JobClassId)>,
    last: Option<(Arc<JobSpec>, JobClassId)>,
    candidates: BTreeMap<CandidateKey, Result<Arc<Candidates>, Reason>>,
    /// Grows when all is forgotten: earlier numbers mean nothing then.
    era: u64,
}

/// Nodes that are no candidates at most, where a search may look at node states in place of nodes.
const FEW_OTHERS: usize = 64;

/// What the jobs of a class have in common.
#[derive(Debug)]
struct ClassKey {
    partition: usize,
    spec: Arc<JobSpec>,
    claim: Claim,
    barred: Vec<BarredNode>,
}

impl ClassKey {
    fn parts(&self) -> impl Ord + '_ {
        let spec = &self.spec;
        (
            self.partition,
            &spec.request,
            &spec.licences,
            &spec.reservation,
            self.claim,
            share_request::tenant(spec),
            &self.barred,
        )
    }
}

impl PartialEq for ClassKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ClassKey {}

impl PartialOrd for ClassKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ClassKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

/// The conditions of a request on nodes.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CandidateKey {
    partition: usize,
    constraint: Option<String>,
    exclude: Option<Hostlist>,
    own_reservation: Option<usize>,
    barred: Vec<NodeId>,
}

/// What job classes are made from.
#[derive(Clone, Copy)]
struct ClassContext<'a> {
    snapshot: &'a Snapshot,
    cluster: &'a Cluster,
    windows: &'a Windows,
}

impl ClassContext<'_> {
    fn key(&self, job: &PendingJob, partition: usize) -> ClassKey {
        ClassKey {
            partition,
            spec: job.spec.clone(),
            claim: self.windows.claim(&job.spec, &self.snapshot.policy),
            barred: job.particulars.barred.clone(),
        }
    }
}

impl JobClasses {
    /// Forgets everything: nodes, configuration or policy changed.
    pub fn clear(&mut self) {
        *self = Self {
            era: self.era + 1,
            ..Self::default()
        };
    }
    pub fn era(&self) -> u64 {
        self.era
    }

    /// Forgets what the last pass found out.
    pub fn begin_pass(&mut self, waiting: usize) {
        if self.by_spec.len() > 2 * waiting + 1000 || self.list.len() > 2 * waiting + 1000 {
            self.clear();
        }
        for job_class in self.looked_at.drain(..) {
            self.list[job_class as usize].pass = ClassFindings::default();
        }
    }

    /// The findings of the pass under way, to add to.
    pub(crate) fn of_pass(&mut self, job_class: JobClassId) -> &mut ClassFindings {
        let pass = &mut self.list[job_class as usize].pass;
        if !std::mem::replace(&mut pass.is_looked_at, true) {
            self.looked_at.push(job_class);
        }
        pass
    }

    /// The job class of a job in a partition.
    pub fn of(
        &mut self,
        job: &PendingJob,
        partition: usize,
        snapshot: &Snapshot,
        cluster: &Cluster,
        windows: &Windows,
    ) -> JobClassId {
        let context = ClassContext {
            snapshot,
            cluster,
            windows,
        };
        if !job.particulars.barred.is_empty() {
            return self.intern(context.key(job, partition), context);
        }
        if let Some((spec, job_class)) = &self.last
            && Arc::ptr_eq(spec, &job.spec)
        {
            return *job_class;
        }
        let address = Arc::as_ptr(&job.spec) as usize;
        let job_class = match self.by_spec.get(&address) {
            Some((_, job_class)) => *job_class,
            None => {
                let job_class = self.intern(context.key(job, partition), context);
                self.by_spec.insert(address, (job.spec.clone(), job_class));
                job_class
            }
        };
        self.last = Some((job.spec.clone(), job_class));
        job_class
    }

    fn intern(&mut self, key: ClassKey, context: ClassContext) -> JobClassId {
        if let Some(job_class) = self.by_key.get(&key) {
            return *job_class;
        }
        let job_class = self.new_class(&key, context);
        self.list.push(job_class);
        let id = self.list.len() as JobClassId - 1;
        self.by_key.insert(key, id);
        id
    }

    fn new_class(&mut self, key: &ClassKey, context: ClassContext) -> JobClass {
        let ClassContext {
            snapshot, windows, ..
        } = context;
        let spec = &key.spec;
        let policy = &snapshot.config.partitions[key.partition];
        let placement = policy
            .placement
            .unwrap_or(snapshot.config.scheduler.placement);
        let candidates = self.candidates_of(key, context);
        let refused = candidates.as_ref().err().cloned();
        let candidates =
            candidates.unwrap_or_else(|_| Arc::new(Candidates::none(snapshot.nodes.len())));
        let fill = |gpus: &GpuAlternative| {
            (placement == Placement::BestFit)
                .then(|| most_gpus(gpus, &candidates, context.cluster))
                .flatten()
        };
        let demands = Demand::dealt(&spec.request, policy, fill);
        let named = named(spec, snapshot, &candidates);
        // A job that takes only named nodes gets no reason about other nodes.
        let asked = spec.request.nodelist.as_ref().map_or(0, |list| list.len());
        let is_closed = asked > 0
            && named.len() == asked
            && demands.iter().all(|demand| demand.nodes.len() <= asked);
        let candidates = match is_closed {
            true => Arc::new(candidates.only(&named, context.cluster)),
            false => candidates,
        };
        let job_class = JobClass {
            partition: key.partition,
            spec: spec.clone(),
            claim: key.claim,
            barred: key.barred.clone(),
            behind: behind_others(&needs(&spec.request, &demands)),
            alternatives: demands
                .iter()
                .map(|demand| JobAlternative::new(demand, spec, &candidates, context.cluster))
                .collect(),
            named,
            // A job that a reservation draws takes its nodes first.
            preferred: preferred(spec, snapshot).or_else(|| windows.drawing(key.claim)),
            placement,
            never: None,
            few: None,
            pass: ClassFindings::default(),
            candidates,
        };
        let never = no_reservation(key)
            .or(refused)
            .or_else(|| share_request::refused(spec, policy))
            .or_else(|| never(&job_class, &demands, snapshot, context.cluster));
        JobClass { never, ..job_class }
    }

    /// The candidates of a class; classes with the same conditions on nodes share them.
    fn candidates_of(
        &mut self,
        key: &ClassKey,
        context: ClassContext,
    ) -> Result<Arc<Candidates>, Reason> {
        let request = &key.spec.request;
        let conditions = CandidateKey {
            partition: key.partition,
            constraint: request.constraint.clone(),
            exclude: request.exclude.clone(),
            own_reservation: key.claim.own(),
            barred: key.barred.iter().map(|one| one.node).collect(),
        };
        let found = self.candidates.entry(conditions);
        found.or_insert_with(|| candidates(key, context)).clone()
    }
}

/// Why a job that names a reservation never runs, where there is none of the name.
fn no_reservation(key: &ClassKey) -> Option<Reason> {
    let name = window::asked(&key.spec).filter(|_| key.claim.own().is_none())?;
    let text = format!("there is no reservation {name:?}");
    Some(Reason::new(ReasonCode::ReservationDeleted, text))
}

/// What a request needs, in words.
fn needs(request: &gmodel::Request, demands: &[Demand]) -> String {
    let mut needs = demands
        .first()
        .map_or(String::new(), gpolicy::feasibility::describe::describe);
    if let Some(switches) = request.switches {
        let plural = if switches.most == 1 { "" } else { "es" };
        needs.push_str(&format!(" below {} leaf switch{plural}", switches.most));
    }
    needs
}

/// Nodes of the partition that constraint, exclusion and reservation leave.
fn candidates(key: &ClassKey, context: ClassContext) -> Result<Arc<Candidates>, Reason> {
    let ClassContext {
        snapshot, cluster, ..
    } = context;
    let own = key.claim.own().map(|own| &context.windows.list[own]);
    let request = &key.spec.request;
    let constraint = request
        .constraint
        .as_deref()
        .map(Constraint::parse)
        .transpose();
    let constraint =
        constraint.map_err(|error| Reason::new(ReasonCode::BadConstraints, error.to_string()))?;
    let partition = &snapshot.config.partitions[key.partition];
    let mut found = Candidates::none(snapshot.nodes.len());
    found.up_by_class = vec![0; cluster.node_classes.list.len()];
    found.all_by_class = found.up_by_class.clone();
    for (at, node) in snapshot.nodes.iter().enumerate() {
        let allowed = partition.holds(&node.name, &node.features)
            && request
                .exclude
                .as_ref()
                .is_none_or(|list| !list.contains(&node.name))
            && constraint
                .as_ref()
                .is_none_or(|wanted| wanted.eval(&features(&node.features)))
            && own.is_none_or(|own| {
                own.nodes.is_clear() || own.reservation.flex || own.nodes.contains(at)
            });
        if allowed {
            let is_up =
                node.unavailable.is_none() && key.barred.iter().all(|one| one.node != node.id);
            found.all.insert(at);
            found.up.set(at, is_up);
            let node_class = cluster.nodes[at].node_class as usize;
            found.all_by_class[node_class] += 1;
            found.up_by_class[node_class] += u32::from(is_up);
        }
    }
    found.up_everywhere = found.up.is_full();
    found.few_others = (found.up.len() - found.up.count_ones(..) <= FEW_OTHERS)
        .then(|| found.up.zeroes().collect());
    Ok(Arc::new(found))
}

fn features(list: &[String]) -> BTreeSet<&str> {
    list.iter().map(String::as_str).collect()
}

fn preferred(spec: &JobSpec, snapshot: &Snapshot) -> Option<FixedBitSet> {
    // What cannot be read prefers nothing: the submission was refused, or the text is older than the grammar.
    let wanted = Constraint::parse(spec.request.prefer.as_deref()?).ok()?;
    let likes = |at: &usize| wanted.eval(&features(&snapshot.nodes[*at].features));
    let mut nodes = FixedBitSet::with_capacity(snapshot.nodes.len());
    nodes.extend((0..snapshot.nodes.len()).filter(likes));
    Some(nodes)
}

fn named(spec: &JobSpec, snapshot: &Snapshot, candidates: &Candidates) -> Vec<usize> {
    let Some(list) = &spec.request.nodelist else {
        return Vec::new();
    };
    list.iter()
        .filter_map(|name| {
            candidates
                .all
                .ones()
                .find(|at| snapshot.nodes[*at].name == name)
        })
        .collect()
}

/// The most GPUs of a kind on one candidate.
fn most_gpus(gpus: &GpuAlternative, candidates: &Candidates, cluster: &Cluster) -> Option<u32> {
    let of_class = |node_class: &NodeClass| {
        let wanted = |kind: &str| match &gpus.kind {
            GpuKind::Any => true,
            GpuKind::Type(name) => name.eq_ignore_ascii_case(kind),
        };
        let groups = node_class
            .groups
            .iter()
            .enumerate()
            .filter(|(_, group)| wanted(&group.gpu_type));
        groups
            .map(|(at, _)| u32::from(node_class.all.gpus[at]))
            .sum::<u32>()
    };
    let by_class: Vec<u32> = cluster.node_classes.list.iter().map(of_class).collect();
    candidates
        .all
        .ones()
        .map(|at| by_class[cluster.nodes[at].node_class as usize])
        .max()
        .filter(|most| *most > 0)
}
