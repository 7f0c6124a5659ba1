//! One pool in which everything stands beside each other: unlike nodes, slices and shares, switches, partitions that overlap, licences,
//! windows and GPUs that are reserved; and jobs that ask for any of it.

use super::kept::{end, enter};
use super::picture;
use super::promises::is_within_the_node;
use super::random_choices::{starts, what_is_told_is_so};
use super::world::give_back;
use crate::{Engine, PendingJob, Plan, SchedNode, Snapshot, WorkBudget, forecast, plan, why};
use gmodel::config::GpuSharing;
use gmodel::constraint::Constraint;
use gmodel::gpu_request::{GpuAmount, GpuKind};
use gmodel::policy::{
    Account, Budget, BudgetKind, GpuAmounts, Limits, Period, Qos, Reservation, ReservedPart,
};
use gmodel::{JobId, ReasonCode, Timestamp};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const POOL: &str = "order fifo
    partition all nodes=n[1-7] sharing=mps
    partition big nodes=n[1-2],n7 sharing=mps
    partition small nodes=n[3-6] sharing=mps
    switch s1 n[1-3]
    switch s2 n[4-7]
    licence matlab 4
    reservation demo gpus=3 user=alice secs=100000
    node n1 h100:8 64c feature=ib,big island=4
    node n2 h100:8 64c feature=ib
    node n3 h100:1 64c
    node n4 h100:4 32c 256G feature=roce mps
    node n5 l4:4 32c 256G feature=roce mps
    node n6 32c feature=cpu
    node n7 h100:4 64c feature=ib,roce
    ";
const GPUS: [&str; 22] = [
    "",
    "gpus=1",
    "gpus=2",
    "gpus=3",
    "gpus=4",
    "gpus=8",
    "gpn=1",
    "gpn=4",
    "gpn=8",
    "gpus=h100:2",
    "gpn=l4:2",
    "gpus=h100:8|l4:4",
    "gpus=h200:1|l4:2",
    "gpus=l4:8|h100:4",
    "gpus=0.5",
    "gpus=0.25",
    "gpus=h100:0.5",
    "gpus=1g.10gb:1",
    "gpus=1g.10gb:2",
    "gpus=3g.40gb:1",
    "gpus=h200:1",
    "gpus=9",
];
const MORE: [&str; 30] = [
    "",
    "",
    "",
    "",
    "",
    "",
    "cpus=8",
    "cpus=32",
    "cpus=40",
    "cpus=70",
    "mem=200",
    "mem=400",
    "mem=600",
    "constraint=ib",
    "constraint=roce",
    "constraint=ib&roce",
    "constraint=ib|cpu",
    "constraint=big&roce",
    "switches=1",
    "switches=1@100",
    "licences=matlab:1",
    "licences=matlab:3",
    "licences=matlab:5",
    "nvlink",
    "exclusive",
    "exclude=n[1-2]",
    "nodelist=n4",
    "gpu_mem=50000",
    "prefer=roce",
    "user=alice reservation=demo",
];
const LISTS: [&str; 5] = ["all", "all", "big", "small", "small,big"];
const NODES: [u32; 8] = [1, 1, 1, 1, 1, 2, 2, 3];
/// Slices are on this one.
const CUT: usize = 2;

/// The words of a job.
fn ask() -> impl Strategy<Value = String> {
    let parts = (
        0..NODES.len(),
        0..GPUS.len(),
        0..MORE.len(),
        0..MORE.len(),
        0..LISTS.len(),
        60u32..2000,
        0u32..8,
    );
    parts.prop_map(|(nodes, gpus, one, other, list, secs, tasks)| {
        let key = |words: &str| words.split('=').next().unwrap_or_default().to_owned();
        let other = if key(MORE[one]) == key(MORE[other]) {
            ""
        } else {
            MORE[other]
        };
        let array = if tasks > 5 {
            format!("array={tasks}")
        } else {
            String::new()
        };
        // Of several nodes each gives as much.
        let gpus = if NODES[nodes] > 1 {
            GPUS[gpus].replace("gpus", "gpn")
        } else {
            GPUS[gpus].to_owned()
        };
        format!(
            "job nodes={} {gpus} {} {other} partition={} time={secs} {array}",
            NODES[nodes], MORE[one], LISTS[list]
        )
    })
}

/// `windows`: with a maintenance that comes.
fn pool(jobs: &[String], backfill: &str, windows: bool) -> Snapshot {
    let patch = if windows {
        "reservation patch nodes=n2 from=900 secs=600 maint\n"
    } else {
        ""
    };
    let mut snapshot = picture(&format!(
        "{POOL}backfill {backfill}\n{patch}{}",
        jobs.join("\n")
    ));
    let cut = crate::tests::world::world(
        "node n1 h100:0\nnode n2 h100:0\nnode n3 h100:1 cut=3g.40gb+1g.10gb+1g.10gb",
    )
    .nodes
    .remove(CUT);
    snapshot.nodes[CUT] = SchedNode {
        features: snapshot.nodes[CUT].features.clone(),
        ..cut
    };
    assert!(
        snapshot
            .config
            .partitions
            .iter()
            .all(|one| one.gpu_sharing == GpuSharing::Mps)
    );
    snapshot
}

fn only(snapshot: &Snapshot, job: JobId) -> Snapshot {
    let mut alone = snapshot.clone();
    alone.pending.retain(|one| one.id == job);
    alone
}

fn ids(snapshot: &Snapshot) -> BTreeSet<JobId> {
    snapshot.pending.iter().map(|job| job.id).collect()
}

/// Whether a part of a job would have room on an idle node, counted by hand.
fn has_room(job: &PendingJob, node: &SchedNode, kind: &GpuKind, amount: &GpuAmount) -> bool {
    let request = &job.spec.request;
    let features: BTreeSet<&str> = node.features.iter().map(String::as_str).collect();
    // Where it takes more than it names, others may be with them.
    let is_named = request
        .nodelist
        .as_ref()
        .is_none_or(|list| list.len() < request.nodes_min as usize || list.contains(&node.name));
    let is_excluded = request
        .exclude
        .as_ref()
        .is_some_and(|list| list.contains(&node.name));
    let constraint = request
        .constraint
        .as_deref()
        .is_none_or(|text| Constraint::parse(text).unwrap().eval(&features));
    let mem = match request.mem {
        gmodel::job::MemRequest::PerNode(bytes) => bytes,
        _ => unreachable!("these jobs ask for bytes of a node"),
    };
    let tasks = request.ntasks.div_ceil(request.nodes_min);
    let cpus = request.cpus_per_task.unwrap_or(1) * tasks;
    let is_of = |info: &gmodel::node::GpuInfo| {
        let part = match amount {
            GpuAmount::Share { milli } => u64::from(*milli),
            _ => 1000,
        };
        let enough = request
            .gpu_mem_mib
            .is_none_or(|least| info.memory_mib * part / 1000 >= least);
        let kind = match kind {
            GpuKind::Any => true,
            GpuKind::Type(name) => info.gpu_type == *name,
        };
        !info.divided && kind && enough
    };
    let gpus = match amount {
        GpuAmount::Whole(0) => true,
        GpuAmount::Whole(count) => {
            let count = if request.gpu_scope == gmodel::job::GpuScope::Job {
                count.div_ceil(request.nodes_min)
            } else {
                *count
            };
            let whole: Vec<_> = node
                .gpus
                .iter()
                .filter(|gpu| gpu.info.slice.is_none() && is_of(&gpu.info))
                .collect();
            let island = |at: u32| {
                whole
                    .iter()
                    .filter(|gpu| gpu.info.nvlink_island == Some(at))
                    .count()
            };
            let joined =
                !request.nvlink || count < 2 || (0..4).any(|at| island(at) >= count as usize);
            whole.len() >= count as usize && joined
        }
        // No two slices are joined.
        GpuAmount::Mig { count, .. } if request.nvlink && *count > 1 => false,
        GpuAmount::Mig { profile, count } => {
            let slices = node.gpus.iter().filter(|gpu| {
                is_of(&gpu.info)
                    && gpu
                        .info
                        .slice
                        .as_ref()
                        .is_some_and(|slice| slice.profile == *profile)
            });
            slices.count() >= *count as usize
        }
        GpuAmount::Share { .. } => node
            .gpus
            .iter()
            .any(|gpu| gpu.info.slice.is_none() && gpu.info.mps && is_of(&gpu.info)),
    };
    is_named && !is_excluded && constraint && node.cpus >= cpus && node.mem_bytes >= mem && gpus
}

/// Whether an idle pool could run a job, by trying all sets of nodes.
fn could_run(snapshot: &Snapshot, job: &PendingJob) -> bool {
    let request = &job.spec.request;
    let partition = snapshot.config.partition(&job.spec.partition).unwrap();
    let licences = job
        .spec
        .licences
        .iter()
        .all(|(name, count)| snapshot.config.scheduler.licences[name] >= *count);
    let switches = &snapshot.config.scheduler.topology.switches;
    let none = [gmodel::gpu_request::GpuAlternative {
        kind: GpuKind::Any,
        amount: GpuAmount::Whole(0),
    }];
    let alternatives = request
        .gpus
        .as_ref()
        .map_or(&none[..], |ask| &ask.alternatives);
    licences
        && alternatives.iter().any(|alternative| {
            let fits = |node: &&SchedNode| {
                partition.holds(&node.name, &node.features)
                    && has_room(job, node, &alternative.kind, &alternative.amount)
            };
            let fitting: Vec<&SchedNode> = snapshot.nodes.iter().filter(fits).collect();
            let most = |names: &dyn Fn(&str) -> bool| {
                fitting.iter().filter(|node| names(&node.name)).count()
            };
            let needs = request.nodes_min as usize;
            let named = request.nodelist.as_ref().map_or(0, |list| list.len());
            let are_named_there = request
                .nodelist
                .as_ref()
                .is_none_or(|list| most(&|name| list.contains(name)) == named.min(needs));
            are_named_there
                && match &request.switches {
                    // A job that waits a limited time for near nodes takes other nodes then.
                    Some(one) if one.wait_secs.is_none() => switches.iter().any(|switch| {
                        most(&|name| switch.nodes.as_ref().unwrap().contains(name)) >= needs
                    }),
                    _ => fitting.len() >= needs,
                }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    /// Nor does one start that could not run.
    #[test]
    fn a_feasible_job_is_never_left_pending_on_an_idle_cluster(jobs in prop::collection::vec(ask(), 1..8)) {
        let mut snapshot = pool(&jobs, "100", false);
        // What is set apart is not idle.
        Arc::make_mut(&mut snapshot.policy).reservations.clear();
        snapshot.pending.retain(|job| job.spec.reservation.is_none());
        for id in ids(&snapshot) {
            let alone = only(&snapshot, id);
            if alone.pending.iter().any(|job| job.spec.request.switches.is_some_and(|one| one.wait_secs.is_some())) {
                continue;
            }
            let told = plan(&alone, WorkBudget::default());
            let could = alone.pending.iter().any(|job| could_run(&alone, job));
            let reasons: Vec<_> = told.reasons.iter().chain(&told.array_reasons).collect();
            prop_assert!(could != told.starts.is_empty(), "{:?}: {:?} {:?}", alone.pending[0].spec.request, told.starts, reasons);
        }
    }

    /// Later jobs of the queue change neither the starts nor the planned starts of earlier ones.
    #[test]
    fn backfill_never_delays_a_reserved_start(
        jobs in prop::collection::vec(ask(), 3..14), runs in prop::collection::vec(any::<prop::sample::Index>(), 0..3), cut in any::<prop::sample::Index>(),
        windows in any::<bool>(), backfill in prop::sample::select(vec!["easy", "4", "all"]),
    ) {
        let mut snapshot = pool(&jobs, backfill, windows);
        Arc::make_mut(&mut snapshot.config).scheduler.placement = gmodel::policy::Placement::BestFit;
        // Some of them run already.
        for which in runs {
            let all: Vec<JobId> = ids(&snapshot).into_iter().collect();
            if all.len() > 2 {
                let alone = only(&snapshot, all[which.index(all.len())]);
                enter(&mut snapshot, &plan(&alone, WorkBudget::default()));
            }
        }
        is_within_the_node(&snapshot);
        let all: Vec<JobId> = ids(&snapshot).into_iter().collect();
        prop_assume!(!all.is_empty());
        let first: BTreeSet<JobId> = all[..=cut.index(all.len())].iter().copied().collect();
        let mut alone = snapshot.clone();
        alone.pending.retain(|job| first.contains(&job.id));
        let starts = |snapshot: &Snapshot| {
            let last = JobId(first.last().unwrap().0 + 9);
            plan(snapshot, WorkBudget::default()).starts.into_iter().filter(|start| start.job <= last).collect::<Vec<_>>()
        };
        prop_assert_eq!(starts(&snapshot), starts(&alone));
        let promises = |snapshot: &Snapshot| {
            forecast(snapshot, &first).into_iter().map(|one| (one.job, one.start, one.nodes)).collect::<BTreeSet<_>>()
        };
        prop_assert_eq!(promises(&snapshot), promises(&alone));
    }

    /// As runs end and others come, in full passes and quick ones.
    #[test]
    fn the_first_in_line_is_never_expected_later_than_before(
        jobs in prop::collection::vec(ask(), 4..16), steps in prop::collection::vec((any::<prop::sample::Index>(), 1i64..400, any::<bool>()), 1..10),
        windows in any::<bool>(), backfill in prop::sample::select(vec!["easy", "4", "all"]),
    ) {
        let mut snapshot = pool(&jobs, backfill, windows);
        let mut engine = Engine::default();
        let told = engine.plan(&snapshot, WorkBudget::default());
        enter(&mut snapshot, &told);
        let mut promised: Option<(JobId, Timestamp)> = None;
        for (which, secs, quick) in steps {
            snapshot.now = snapshot.now.plus_secs(secs);
            let mut over = Vec::new();
            while let Some(at) = snapshot.running.iter().position(|run| run.ends_by.is_some_and(|by| by <= snapshot.now)) {
                over.push(end(&mut snapshot, at));
            }
            let early = (!snapshot.running.is_empty()).then(|| which.index(snapshot.running.len()));
            let changes = early.map(|at| end(&mut snapshot, at));
            let quickly = changes.filter(|_| quick && over.is_empty()).and_then(|changes| engine.after(&snapshot, &changes, WorkBudget::default()));
            let told: Plan = quickly.unwrap_or_else(|| engine.plan(&snapshot, WorkBudget::default()));
            enter(&mut snapshot, &told);
            is_within_the_node(&snapshot);
            let Some(head) = snapshot.pending.iter().find(|job| may_start_ever(&snapshot, job)) else { break };
            if head.particulars.positions.is_some() {
                promised = None;
                continue;
            }
            let head = head.id;
            let expected = forecast(&snapshot, &BTreeSet::from([head])).into_iter().find_map(|one| one.start);
            if let (Some((job, before)), Some(now)) = (promised, expected)
                && job == head
            {
                prop_assert!(now <= before.max(snapshot.now.plus_secs(1)), "job {} from {} to {}", job, before, now);
            }
            promised = expected.map(|at| (head, at));
        }
    }

    #[test]
    fn what_is_proposed_starts_a_job_of_any_kind(
        jobs in prop::collection::vec(ask(), 2..10), held in any::<u8>(), windows in any::<bool>(), backfill in prop::sample::select(vec!["easy", "4", "all"]),
    ) {
        let mut snapshot = pool(&jobs, backfill, windows);
        snapshot.pending.iter_mut().filter(|job| held & 0x12 & (1 << (job.id.0 / 10 % 8)) != 0).for_each(|job| job.particulars.held_by = Some("user:bob".into()));
        for id in ids(&snapshot) {
            let told = what_is_told_is_so(&snapshot, id)?;
            // Not one of several obstacles alone.
            let has = |code: ReasonCode| told.blockers.iter().any(|one| one.code == code);
            // For this job only: the others are where they were.
            let lift = |code: ReasonCode| {
                let mut changed = snapshot.clone();
                changed.pending.iter_mut().filter(|job| job.id == id).for_each(|job| match code {
                    ReasonCode::Licenses => Arc::make_mut(&mut job.spec).licences.clear(),
                    _ => job.particulars.held_by = None,
                });
                changed
            };
            if has(ReasonCode::JobHeldUser) {
                prop_assert_eq!(starts(&lift(ReasonCode::JobHeldUser), id), told.blockers.len() == 1, "job {}: {:?}", id, told);
            }
            if has(ReasonCode::Licenses) && told.blockers.len() == 1 {
                prop_assert!(starts(&lift(ReasonCode::Licenses), id), "job {}: {:?}", id, told);
            }
        }
    }
}

/// Takes one thing out of a job's way.
type Lift<'a> = &'a dyn Fn(&mut PendingJob);

/// Things that a policy may keep from the jobs of a pool, one a bit.
const KEPT: u32 = 8;

/// With idle GPUs that are kept, limits and caps of accounts, a reservation that draws its users' jobs, and arrays with caps.
fn guarded(mut snapshot: Snapshot, which: u32, amount: u64) -> Snapshot {
    let has = |bit: u32| which & (1 << bit) != 0;
    let config = Arc::make_mut(&mut snapshot.config);
    let one = |name: &str| {
        config
            .partitions
            .iter()
            .position(|one| one.name == name)
            .unwrap()
    };
    let (big, small) = (one("big"), one("small"));
    config.partitions[big].headroom = has(0).then(|| GpuAmounts::all(amount));
    config.partitions[small].headroom = has(1).then(|| GpuAmounts::all(amount % 4));
    let policy = Arc::make_mut(&mut snapshot.policy);
    let headroom = has(2).then(|| {
        GpuAmounts(BTreeMap::from([(
            if amount.is_multiple_of(2) {
                "gpu"
            } else {
                "h100"
            }
            .to_owned(),
            amount * 1000,
        )]))
    });
    let spared = (!has(2)).then(|| GpuAmounts::all(0));
    policy.qos.insert(
        "spared".into(),
        Qos {
            name: "spared".into(),
            headroom: spared,
            ..Qos::default()
        },
    );
    policy.qos.insert(
        "urgent".into(),
        Qos {
            name: "urgent".into(),
            headroom,
            ..Qos::default()
        },
    );
    let cap = Budget {
        kind: BudgetKind::Cap,
        gpu_hours: amount / 3,
        period: Period::Day,
        gpu_type: None,
    };
    let group = Limits {
        gpus: has(4).then(|| GpuAmounts::all(amount)),
        ..Limits::default()
    };
    let account = Account {
        name: "a".into(),
        group,
        budgets: has(3).then_some(cap).into_iter().collect(),
        ..Account::default()
    };
    policy.accounts.insert("a".into(), account);
    if has(5) {
        let what = ReservedPart::Nodes(gmodel::hostlist::Hostlist::parse("n5,n7").unwrap());
        let users = BTreeSet::from(["alice".to_owned()]);
        let draws = Reservation {
            name: "draws".into(),
            start: snapshot.now,
            duration_secs: 1500,
            what,
            users,
            magnetic: true,
            ..Reservation::default()
        };
        policy.reservations.insert("draws".into(), draws);
    }
    for (at, job) in snapshot.pending.iter_mut().enumerate() {
        let id = job.id.0 / 10;
        if has(6) && job.particulars.positions.is_some() {
            job.particulars.room = Some((id % 3) as u32);
        }
        let spec = Arc::make_mut(&mut job.spec);
        spec.account = if at % 4 == 0 { "free" } else { "a" }.into();
        spec.qos = if has(7) && id % 3 == 0 { "urgent" } else { "" }.into();
        if id % 5 == 0 {
            spec.user.name = "alice".into();
        }
    }
    // Of a job of several partitions all have one owner.
    let first: BTreeMap<JobId, _> = snapshot
        .pending
        .iter()
        .rev()
        .map(|job| (job.id, job.spec.account.clone()))
        .collect();
    snapshot.pending.iter_mut().for_each(|job| {
        Arc::make_mut(&mut job.spec)
            .account
            .clone_from(&first[&job.id])
    });
    snapshot
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn what_is_told_beside_all_that_is_kept_is_so(
        jobs in prop::collection::vec(ask(), 2..10), first in 0..KEPT, second in 0..KEPT, third in 0..KEPT + 8, amount in 1u64..24,
        runs in prop::collection::vec(any::<prop::sample::Index>(), 0..3), windows in any::<bool>(), held in any::<u8>(),
        backfill in prop::sample::select(vec!["easy", "4", "all"]),
    ) {
        let mut snapshot = pool(&jobs, backfill, windows);
        for which in runs {
            let all: Vec<JobId> = ids(&snapshot).into_iter().collect();
            if all.len() > 2 {
                let alone = only(&snapshot, all[which.index(all.len())]);
                enter(&mut snapshot, &plan(&alone, WorkBudget::default()));
            }
        }
        let which = [first, second, third].into_iter().filter(|bit| *bit < KEPT).fold(0, |all, bit| all | 1 << bit);
        let mut snapshot = guarded(snapshot, which, amount);
        snapshot.pending.iter_mut().filter(|job| held & 0x12 & (1 << (job.id.0 / 10 % 8)) != 0).for_each(|job| job.particulars.held_by = Some("user:bob".into()));
        for id in ids(&snapshot) {
            let told = what_is_told_is_so(&snapshot, id)?;
            let limits = [ReasonCode::AssocGrpGRES, ReasonCode::AssocGrpBilling];
            // For this job alone: the others are where they were.
            let lifted = |lift: &dyn Fn(&mut PendingJob)| {
                let mut changed = snapshot.clone();
                changed.pending.iter_mut().filter(|job| job.id == id).for_each(lift);
                starts(&changed, id)
            };
            let free = |job: &mut PendingJob| Arc::make_mut(&mut job.spec).account = "free".into();
            // What other QOS keep is kept from this one, too.
            let urgent = |job: &mut PendingJob| Arc::make_mut(&mut job.spec).qos = if which & 4 == 0 { "spared" } else { "urgent" }.into();
            let uncapped = |job: &mut PendingJob| job.particulars.room = None;
            let unheld = |job: &mut PendingJob| job.particulars.held_by = None;
            let codes: [(&[ReasonCode], Lift); 4] = [
                (&limits, &free),
                (&[ReasonCode::Headroom], &urgent),
                (&[ReasonCode::JobArrayTaskLimit], &uncapped),
                (&[ReasonCode::JobHeldUser], &unheld),
            ];
            // One alternative without blockers is enough.
            let each: Vec<&Vec<crate::Blocker>> = std::iter::once(&told.blockers).chain(told.alternatives.iter().map(|one| &one.blockers)).collect();
            for (codes, lift) in codes {
                if each.iter().any(|blockers| blockers.iter().any(|one| codes.contains(&one.code))) {
                    let is_all = each.iter().any(|blockers| blockers.iter().all(|one| codes.contains(&one.code)));
                    prop_assert_eq!(lifted(&lift), is_all, "job {} without {:?}: {:?}", id, codes, told);
                }
            }
        }
    }
}

/// What the array behind is promised of its reservation is not set apart for it besides.
#[test]
fn a_job_forecast_for_now_starts_behind_an_array_of_a_gpu_reservation() {
    let jobs = [
        "job nodes=2 gpn=1 switches=1 partition=small,big time=206 array=6",
        "job nodes=2 gpn=0.5 user=alice reservation=demo constraint=roce partition=small time=69 array=6",
        "job nodes=1 gpus=1 nodelist=n4 partition=all time=70",
    ];
    let snapshot = pool(&jobs.map(str::to_owned), "all", false);
    let told = plan(&snapshot, WorkBudget::default());
    let starts = |id: u64| told.starts.iter().any(|start| start.job == JobId(id));
    assert!(why(&snapshot, JobId(30)).unwrap().starts_now && starts(30));
    assert!(!starts(23), "it waits for what the first three of it take");
}

/// Whether it could start if the pool were idle, and no maintenance came.
fn may_start_ever(snapshot: &Snapshot, job: &PendingJob) -> bool {
    let mut idle = only(snapshot, job.id);
    Arc::make_mut(&mut idle.policy).reservations.remove("patch");
    for run in std::mem::take(&mut idle.running) {
        give_back(&mut idle.nodes, &run);
    }
    !plan(&idle, WorkBudget::default()).starts.is_empty()
}
