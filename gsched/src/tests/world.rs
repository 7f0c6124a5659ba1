//! For tests: nodes, accounts, QOS, runs and jobs as lines of text.
//!
//! `node n1 h100:8 mps cut=3g.40gb+1g.10gb` (one GPU more, cut), `account vision under=lab g=16 limit=32 lend=4 shares=2 cap=100/month`, `qos high preempts=low mode=off`,
//! `run 1 vision ann 4 on=n1 ago=3600 limit=7200 class=b leaving=9` (for that job, `toborrow`; or `leaving`), `job 9 nlp bob 8 nodes=2 qos=high`,
//! `part 10 nlp bob 4` (another component of it). Times are seconds before now.

use crate::ledger::Take;
use crate::snapshot::{PendingJob, RunningRun, SchedNode, Snapshot};
use gmodel::config::{ClusterConfig, Partition};
use gmodel::gpu_request::GpuRequest;
use gmodel::node::{GpuEntry, GpuInfo, MigSlice};
use gmodel::policy::{
    Account, AccountUser, Budget, BudgetKind, GpuAmounts, Limits, Period, PreemptMode, Qos,
};
use gmodel::run::NodeShare;
use gmodel::{
    CommonSpec, GpuSet, GpuSlot, JobId, JobSpec, NodeId, Reason, ReasonCode, RunClass, RunId,
    Timestamp,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// 2026-11-20T12:00:00Z.
pub const NOW: Timestamp = Timestamp::from_secs(1_795_176_000);

pub fn world(text: &str) -> Snapshot {
    let mut config = ClusterConfig {
        partitions: vec![Partition {
            name: "p".into(),
            ..Partition::default()
        }],
        ..ClusterConfig::default()
    };
    config.scheduler.backfill = crate::tests::RESERVING;
    let mut snapshot = Snapshot {
        now: NOW,
        ..Snapshot::default()
    };
    let mut policy = gmodel::Policy::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let named: BTreeMap<&str, &str> = words
            .iter()
            .map(|word| word.split_once('=').unwrap_or((word, "")))
            .collect();
        match words[0] {
            "node" => snapshot
                .nodes
                .push(node(snapshot.nodes.len() as u32 + 1, &words, &named)),
            "partition" => config.partitions.push(partition(words[1], &named)),
            "account" => {
                policy
                    .accounts
                    .insert(words[1].into(), account(words[1], &named));
            }
            "qos" => {
                policy.qos.insert(words[1].into(), qos(words[1], &named));
            }
            "licence" => {
                config
                    .scheduler
                    .licences
                    .insert(words[1].into(), words[2].parse().unwrap());
            }
            "run" => add_run(&mut snapshot, &words, &named),
            "job" => snapshot.pending.push(job(&words, &named)),
            "part" => {
                let first = snapshot.pending.last_mut().expect("a job before it");
                first.particulars.others.push(job(&words, &named));
            }
            other => panic!("unknown word {other:?}"),
        }
    }
    snapshot.running.sort_by_key(|run| run.run);
    snapshot.config = Arc::new(config);
    snapshot.policy = Arc::new(policy);
    snapshot
}

fn node(id: u32, words: &[&str], named: &BTreeMap<&str, &str>) -> SchedNode {
    let (name, (gpu_type, count)) = (words[1], words[2].split_once(':').unwrap());
    let count: u16 = count.parse().unwrap();
    let (mut gpus, mut free_gpu_milli) = (Vec::new(), Vec::new());
    let mut push = |info: GpuInfo| {
        let slot = GpuSlot(gpus.len() as u16);
        free_gpu_milli.push(if info.divided { 0 } else { 1000 });
        gpus.push(GpuEntry {
            slot,
            info,
            present: true,
            forgotten: false,
            refused: String::new(),
            checks: None,
        });
    };
    let whole = |index: u16| GpuInfo {
        uuid: format!("{name}-{index}"),
        index: u32::from(index),
        gpu_type: gpu_type.into(),
        memory_mib: 80_000,
        mps: named.contains_key("mps"),
        ..GpuInfo::default()
    };
    (0..count).for_each(|index| push(whole(index)));
    if let Some(cut) = named.get("cut") {
        let divided = GpuInfo {
            divided: true,
            ..whole(count)
        };
        push(divided.clone());
        for (at, profile) in cut.split('+').enumerate() {
            let (compute_slices, memory_gb) = profile.split_once("g.").unwrap();
            let memory_mib = memory_gb.trim_end_matches("gb").parse::<u64>().unwrap() << 10;
            let slice = MigSlice {
                gpu: divided.uuid.clone(),
                profile: profile.into(),
                placement: at as u8,
                compute_slices: compute_slices.parse().unwrap(),
                memory_slices: (memory_mib / 10_240) as u8,
            };
            push(GpuInfo {
                uuid: format!("MIG-{name}-{at}"),
                memory_mib,
                slice: Some(slice),
                divided: false,
                ..divided.clone()
            });
        }
    }
    SchedNode {
        id: NodeId(id),
        name: name.into(),
        unavailable: None,
        features: Vec::new(),
        nvlink_domain: String::new(),
        cpus: 64,
        mem_bytes: 512 << 30,
        gpus: Arc::new(gpus),
        free_cpus: 64,
        free_mem_bytes: 512 << 30,
        free_gpu_milli,
        runs: 0,
        exclusive: false,
        mig: Default::default(),
    }
}

/// `16` or `h100:8,a100:4`.
pub fn amounts(text: &str) -> GpuAmounts {
    let one = |part: &str| match part.split_once(':') {
        Some((name, count)) => (name.to_owned(), count.parse::<u64>().unwrap() * 1000),
        None => ("gpu".to_owned(), part.parse::<u64>().unwrap() * 1000),
    };
    GpuAmounts(text.split(',').map(one).collect())
}

fn limits(prefix: &str, named: &BTreeMap<&str, &str>) -> Limits {
    let word = |name: &str| named.get(&*format!("{prefix}{name}")).copied();
    Limits {
        running_jobs: word("jobs").map(|n| n.parse().unwrap()),
        gpus: word("gpus").map(amounts),
        cpus: word("cpus").map(|n| n.parse().unwrap()),
        nodes: word("nodes").map(|n| n.parse().unwrap()),
        running_gpu_hours: word("hours").map(|n| n.parse().unwrap()),
        ..Limits::default()
    }
}

fn partition(name: &str, named: &BTreeMap<&str, &str>) -> Partition {
    Partition {
        name: name.into(),
        nodes: named.get("nodes").map_or_else(Default::default, |list| {
            gmodel::config::NodeSelection::Names(gmodel::hostlist::Hostlist::parse(list).unwrap())
        }),
        priority_tier: named.get("tier").map_or(1, |n| n.parse().unwrap()),
        headroom: named.get("headroom").map(|text| amounts(text)),
        preempt_mode: named
            .get("mode")
            .map_or(PreemptMode::Requeue, |word| mode(word)),
        ..Partition::default()
    }
}

fn mode(word: &str) -> PreemptMode {
    serde_json::from_value(serde_json::Value::String(word.into())).unwrap()
}

fn account(name: &str, named: &BTreeMap<&str, &str>) -> Account {
    let budget = |kind, text: &str| {
        let (hours, period) = text.split_once('/').unwrap();
        let period: Period =
            serde_json::from_value(serde_json::Value::String(period.into())).unwrap();
        Budget {
            kind,
            gpu_hours: hours.parse().unwrap(),
            period,
            gpu_type: None,
        }
    };
    let caps = named.get("cap").map(|text| budget(BudgetKind::Cap, text));
    let budgets = named
        .get("budget")
        .map(|text| budget(BudgetKind::Guaranteed, text));
    let user = |name: &&str| {
        (
            (*name).to_owned(),
            AccountUser {
                limits: limits("own", named),
                ..AccountUser::default()
            },
        )
    };
    Account {
        name: name.into(),
        parent: named.get("under").map(|up| (*up).into()),
        shares: named.get("shares").map_or(1, |n| n.parse().unwrap()),
        guaranteed: named.get("g").map(|text| amounts(text)),
        limit: named.get("limit").map(|text| amounts(text)),
        lend_limit: named.get("lend").map(|text| amounts(text)),
        budgets: caps.into_iter().chain(budgets).collect(),
        group: limits("grp", named),
        per_user: limits("user", named),
        users: named.get("user").iter().map(|name| user(name)).collect(),
        ..Account::default()
    }
}

fn qos(name: &str, named: &BTreeMap<&str, &str>) -> Qos {
    Qos {
        name: name.into(),
        priority: named.get("priority").map_or(0, |n| n.parse().unwrap()),
        preempt: named
            .get("preempts")
            .iter()
            .flat_map(|list| list.split(','))
            .map(str::to_owned)
            .collect(),
        preempt_mode: named.get("mode").map(|word| mode(word)),
        min_run_secs: named.get("min").map_or(0, |n| n.parse().unwrap()),
        group: limits("grp", named),
        per_user: limits("user", named),
        per_account: limits("account", named),
        headroom: named.get("headroom").map(|text| amounts(text)),
        outside_quota: named.contains_key("outside"),
        ..Qos::default()
    }
}

fn spec(words: &[&str], named: &BTreeMap<&str, &str>) -> JobSpec {
    let mut spec = JobSpec::from(CommonSpec {
        account: words[2].into(),
        partition: "p".into(),
        ..CommonSpec::default()
    });
    spec.user.name = words[3].into();
    spec.qos = named.get("qos").copied().unwrap_or_default().into();
    spec.partition = named.get("partition").copied().unwrap_or("p").into();
    spec.request.gpus = Some(GpuRequest::parse(words[4]).unwrap());
    let nodes = named.get("nodes").map_or(1, |n| n.parse().unwrap());
    (
        spec.request.nodes_min,
        spec.request.nodes_max,
        spec.request.ntasks,
    ) = (nodes, nodes, nodes);
    spec.requeue = named.contains_key("norequeue").then_some(false);
    spec.borrow = match (named.contains_key("borrow"), named.contains_key("noborrow")) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    if let Some(cpus) = named.get("cpus") {
        spec.request.cpus_per_task = Some(cpus.parse().unwrap());
    }
    if let Some((name, count)) = named.get("licence").and_then(|text| text.split_once(':')) {
        spec.licences.insert(name.into(), count.parse().unwrap());
    }
    spec
}

fn ago(named: &BTreeMap<&str, &str>, name: &str) -> Option<Timestamp> {
    named
        .get(name)
        .map(|secs| NOW.plus_secs(-secs.parse::<i64>().unwrap()))
}

/// `run JOB ACCOUNT USER GPUS on=n1,n2 ...`: so many GPUs on each node.
fn add_run(snapshot: &mut Snapshot, words: &[&str], named: &BTreeMap<&str, &str>) {
    let spec = spec(words, named);
    let count: usize = words[4].rsplit(':').next().unwrap().parse().unwrap();
    let mut shares = Vec::new();
    for name in named.get("on").expect("a run is on a node").split(',') {
        let node = snapshot
            .nodes
            .iter_mut()
            .find(|node| node.name == name)
            .expect("node is known");
        let free = (0..node.gpus.len())
            .filter(|slot| node.free_gpu_milli[*slot] == 1000)
            .take(count);
        let gpus = GpuSet::whole(free.map(|slot| GpuSlot(slot as u16)));
        assert_eq!(gpus.len(), count, "{name} has {count} GPUs free");
        let cpus = named
            .get("cpus")
            .map_or(count.max(1) as u32, |cpus| cpus.parse().unwrap());
        let share = NodeShare {
            node: node.id,
            cpus,
            mem_bytes: 1 << 30,
            gpus,
            tasks: 1,
        };
        node.take(&share);
        shares.push(share);
    }
    let started = ago(named, "ago").unwrap_or(NOW);
    let limit = named
        .get("limit")
        .map(|secs| started.plus_secs(secs.parse().unwrap()));
    let id = RunId::new(JobId(words[1].parse().unwrap()), 1);
    let mut run = RunningRun::new(id, Arc::new(spec), shares, limit);
    (run.placed, run.started) = (started, Some(started));
    run.may_requeue = !named.contains_key("norequeue");
    run.marked = ago(named, "marked");
    run.preempted = named.contains_key("back").then_some(started);
    run.class = named.get("class").map(|class| match *class {
        "g" => RunClass::Guaranteed,
        _ => RunClass::Borrowed,
    });
    if let Some(job) = named.get("frozen") {
        let cpus: Vec<u32> = run
            .shares
            .iter_mut()
            .map(|share| std::mem::take(&mut share.cpus))
            .collect();
        for (share, cpus) in run.shares.iter().zip(&cpus) {
            snapshot
                .nodes
                .iter_mut()
                .find(|node| node.id == share.node)
                .expect("it is there")
                .free_cpus += cpus;
        }
        run.suspended = Some(crate::snapshot::Suspension {
            for_job: JobId(job.parse().unwrap()),
            cpus,
        });
    }
    if named.contains_key("leaving") {
        run.stops_by = Some(NOW.plus_secs(30));
        run.victim_of = named["leaving"].parse().ok().map(JobId);
        run.leaves_for_borrower = named.contains_key("toborrow");
    }
    snapshot.running.push(run);
}

fn job(words: &[&str], named: &BTreeMap<&str, &str>) -> PendingJob {
    let submitted = ago(named, "ago").unwrap_or(NOW);
    PendingJob {
        id: JobId(words[1].parse().unwrap()),
        spec: Arc::new(spec(words, named)),
        submitted,
        eligible: submitted,
        nice: named.get("nice").map_or(0, |n| n.parse().unwrap()),
        limit_secs: named.get("limit").map(|n| n.parse().unwrap()),
        reason: if named.contains_key("preempting") {
            Reason::new(ReasonCode::Preempting, "")
        } else {
            Reason::default()
        },
        particulars: crate::Particulars {
            held_by: named.contains_key("held").then(|| "user:ann".into()),
            nomination: named
                .contains_key("preempting")
                .then(crate::plan::Nomination::default),
            positions: named
                .get("tasks")
                .map(|n| gmodel::array_spec::RangeSet::first_n(n.parse().unwrap())),
            ..crate::Particulars::default()
        }
        .into(),
    }
}

/// What a job of so many GPUs of a type takes.
/// Gives back what a run holds of its nodes.
pub fn give_back(nodes: &mut [SchedNode], run: &RunningRun) {
    for share in &run.shares {
        let node = nodes.iter_mut().find(|node| node.id == share.node);
        node.unwrap().give(share);
    }
}

/// Ends a run.
pub fn end_run(snapshot: &mut Snapshot, id: RunId) -> RunningRun {
    let mut runs = snapshot.running.iter();
    let at = runs.position(|run| run.run == id).unwrap();
    let run = snapshot.running.remove(at);
    give_back(&mut snapshot.nodes, &run);
    run
}

pub fn take(gpu_type: &str, gpus: u64) -> Take {
    Take {
        gpus: BTreeMap::from([(gpu_type.to_owned(), gpus * 1000)]),
        cpus: gpus.max(1) as u32,
        nodes: 1,
    }
}
