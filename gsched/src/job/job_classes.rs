//! Job classes by request, worked out once for each and kept while policy and node classes stay.

use crate::cluster::node_class::NodeClass;
use crate::cluster::nodes::Cluster;
use crate::job::job_class::{Candidates, ClassFindings, JobAlternative, JobClass, JobClassId};
use crate::snapshot::{BarredNode, PendingJob, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::constraint::Constraint;
use gmodel::gpu_request::{GpuAlternative, GpuKind};
use gmodel::policy::Placement;
use gmodel::{JobSpec, NodeId, Reason, ReasonCode};
use gpolicy::feasibility::demand::Demand;
use gpolicy::reserved_nodes::{Claim, Windows};
use gpolicy::window;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All job classes seen, by number.
#[derive(Debug, Default)]
pub struct JobClasses {
    pub list: Vec<JobClass>,
    /// Those about which the pass under way found out anything.
    looked_at: Vec<JobClassId>,
    by_key: BTreeMap<ClassKey, JobClassId>,
    /// By the address of the request, which is kept so that no other gets that address.
    by_spec: BTreeMap<usize, (Arc<JobSpec>, JobClassId)>,
    last: Option<(Arc<JobSpec>, JobClassId)>,
    candidates: BTreeMap<CandidateKey, Result<Arc<Candidates>, Reason>>,
    /// Grows when all was forgotten: numbers of before mean nothing then.
    era: u64,
}

/// Up to so many nodes are taken out of what is known of all.
pub(crate) const FEW_OTHERS: usize = 64;

#[derive(Debug)]
pub(crate) struct ClassKey {
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
            gpolicy::feasibility::share_request::tenant(spec),
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

pub(crate) type CandidateKey = (
    usize,
    Option<String>,
    Option<gmodel::hostlist::Hostlist>,
    Option<usize>,
    Vec<NodeId>,
);

impl JobClasses {
    /// Forgets everything: nodes, configuration or policy are others.
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

    /// To note what the pass under way finds out.
    pub(crate) fn of_pass(&mut self, job_class: JobClassId) -> &mut ClassFindings {
        let pass = &mut self.list[job_class as usize].pass;
        if !std::mem::replace(&mut pass.is_looked_at, true) {
            self.looked_at.push(job_class);
        }
        pass
    }

    pub fn of(
        &mut self,
        job: &PendingJob,
        partition: usize,
        snapshot: &Snapshot,
        cluster: &Cluster,
        windows: &Windows,
    ) -> JobClassId {
        if !job.particulars.barred.is_empty() {
            return self.intern(
                &job.spec,
                partition,
                &job.particulars.barred,
                (snapshot, cluster, windows),
            );
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
                let job_class =
                    self.intern(&job.spec, partition, &[], (snapshot, cluster, windows));
                self.by_spec.insert(address, (job.spec.clone(), job_class));
                job_class
            }
        };
        self.last = Some((job.spec.clone(), job_class));
        job_class
    }

    fn intern(
        &mut self,
        spec: &Arc<JobSpec>,
        partition: usize,
        barred: &[BarredNode],
        (snapshot, cluster, windows): (&Snapshot, &Cluster, &Windows),
    ) -> JobClassId {
        let key = ClassKey {
            partition,
            spec: spec.clone(),
            claim: windows.claim(spec, &snapshot.policy),
            barred: barred.to_vec(),
        };
        if let Some(job_class) = self.by_key.get(&key) {
            return *job_class;
        }
        let job_class = self.work_out(spec, partition, barred, (snapshot, cluster, windows));
        self.list.push(job_class);
        let id = self.list.len() as JobClassId - 1;
        self.by_key.insert(key, id);
        id
    }

    /// Everything about a request that no queue changes.
    pub fn work_out(
        &mut self,
        spec: &Arc<JobSpec>,
        partition: usize,
        barred: &[BarredNode],
        (snapshot, cluster, windows): (&Snapshot, &Cluster, &Windows),
    ) -> JobClass {
        let request = &spec.request;
        let claim = windows.claim(spec, &snapshot.policy);
        let policy = &snapshot.config.partitions[partition];
        let placement = policy
            .placement
            .unwrap_or(snapshot.config.scheduler.placement);
        let not_now: Vec<NodeId> = barred.iter().map(|one| one.node).collect();
        let key = (
            partition,
            request.constraint.clone(),
            request.exclude.clone(),
            claim.own(),
            not_now,
        );
        let found = self.candidates.entry(key).or_insert_with(|| {
            candidates(
                spec,
                (partition, barred),
                (snapshot, cluster),
                claim.own().map(|own| &windows.list[own]),
            )
        });
        let (candidates, mut never) = match found.clone() {
            Ok(candidates) => (candidates, None),
            Err(reason) => (
                Arc::new(Candidates::none(snapshot.nodes.len())),
                Some(reason),
            ),
        };
        if window::asked(spec).is_some() && claim.own().is_none() {
            let text = format!(
                "there is no reservation {:?}",
                spec.reservation.as_deref().unwrap_or("")
            );
            never = Some(Reason::new(ReasonCode::ReservationDeleted, text));
        }
        let fill = |gpus: &GpuAlternative| {
            (placement == Placement::BestFit)
                .then(|| most_gpus(gpus, &candidates, cluster))
                .flatten()
        };
        let demands = Demand::dealt(request, policy, fill);
        never = never.or_else(|| gpolicy::feasibility::share_request::refused(spec, policy));
        let named = named(spec, snapshot, &candidates);
        // Where no node beside those that are named is needed, none is spoken of.
        let asked = request.nodelist.as_ref().map_or(0, |list| list.len());
        let closed = asked > 0
            && named.len() == asked
            && demands.iter().all(|demand| demand.nodes.len() <= asked);
        let candidates = if closed {
            Arc::new(candidates.only(&named, cluster))
        } else {
            candidates
        };
        let job_class = JobClass {
            partition,
            spec: spec.clone(),
            claim,
            barred: barred.to_vec(),
            behind: crate::job::reason::behind_others(&needs(request, &demands)),
            alternatives: demands
                .iter()
                .map(|demand| JobAlternative::new(demand, spec, &candidates, cluster))
                .collect(),
            named,
            // A job that a reservation draws leaves unreserved nodes to others.
            preferred: preferred(spec, snapshot).or_else(|| windows.drawing(claim)),
            placement,
            never: None,
            few: None,
            pass: ClassFindings::default(),
            candidates,
        };
        let never = never
            .or_else(|| crate::job::never_fits::never(&job_class, &demands, snapshot, cluster));
        JobClass { never, ..job_class }
    }
}

/// In words.
pub(crate) fn needs(request: &gmodel::Request, demands: &[Demand]) -> String {
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
pub(crate) fn candidates(
    spec: &JobSpec,
    (partition, barred): (usize, &[BarredNode]),
    (snapshot, cluster): (&Snapshot, &Cluster),
    own: Option<&gpolicy::reserved_nodes::ReservedNodes>,
) -> Result<Arc<Candidates>, Reason> {
    let request = &spec.request;
    let constraint = request
        .constraint
        .as_deref()
        .map(Constraint::parse)
        .transpose();
    let constraint =
        constraint.map_err(|error| Reason::new(ReasonCode::BadConstraints, error.to_string()))?;
    let partition = &snapshot.config.partitions[partition];
    let mut found = Candidates::none(snapshot.nodes.len());
    found.up_by_make = vec![0; cluster.makes.list.len()];
    found.all_by_make = found.up_by_make.clone();
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
            let is_up = node.unavailable.is_none() && barred.iter().all(|one| one.node != node.id);
            found.all.insert(at);
            found.up.set(at, is_up);
            let make = cluster.nodes[at].make as usize;
            found.all_by_make[make] += 1;
            found.up_by_make[make] += u32::from(is_up);
        }
    }
    found.up_everywhere = found.up.is_full();
    found.few_others = (found.up.len() - found.up.count_ones(..) <= FEW_OTHERS)
        .then(|| found.up.zeroes().collect());
    Ok(Arc::new(found))
}

pub(crate) fn features(list: &[String]) -> BTreeSet<&str> {
    list.iter().map(String::as_str).collect()
}

pub(crate) fn preferred(spec: &JobSpec, snapshot: &Snapshot) -> Option<FixedBitSet> {
    // What cannot be read prefers nothing: the submission was refused, or the text is older than the grammar.
    let wanted = Constraint::parse(spec.request.prefer.as_deref()?).ok()?;
    let likes = |at: &usize| wanted.eval(&features(&snapshot.nodes[*at].features));
    let mut nodes = FixedBitSet::with_capacity(snapshot.nodes.len());
    nodes.extend((0..snapshot.nodes.len()).filter(likes));
    Some(nodes)
}

pub(crate) fn named(spec: &JobSpec, snapshot: &Snapshot, candidates: &Candidates) -> Vec<usize> {
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
pub(crate) fn most_gpus(
    gpus: &GpuAlternative,
    candidates: &Candidates,
    cluster: &Cluster,
) -> Option<u32> {
    let of_make = |make: &NodeClass| {
        let wanted = |kind: &str| match &gpus.kind {
            GpuKind::Any => true,
            GpuKind::Type(name) => name.eq_ignore_ascii_case(kind),
        };
        let groups = make
            .groups
            .iter()
            .enumerate()
            .filter(|(_, group)| wanted(&group.gpu_type));
        groups
            .map(|(at, _)| u32::from(make.all.gpus[at]))
            .sum::<u32>()
    };
    let by_make: Vec<u32> = cluster.makes.list.iter().map(of_make).collect();
    candidates
        .all
        .ones()
        .map(|at| by_make[cluster.nodes[at].make as usize])
        .max()
        .filter(|most| *most > 0)
}
