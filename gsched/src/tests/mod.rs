//! The scheduler on clusters written as text: which jobs start where, and the pending reasons of the rest. Properties of random
//! clusters.

mod backfill;
mod choices;
mod gangs;
mod guarantees;
mod headroom;
mod kept;
mod limited;
mod mishaps;
mod pool;
mod pools;
mod promises;
mod quick_passes;
mod random_choices;
mod reservations;
mod reserved;
mod rounds;
mod sharing;
mod terms;
mod textbook;
mod typed;
mod why;
mod why_changes;
mod why_obstacles;
mod windows;
mod wired;
pub(crate) mod world;

use crate::{PendingJob, Plan, RunningRun, SchedNode, Snapshot, WorkBudget, plan};
use expect_test::{Expect, expect};
use gmodel::array_spec::RangeSet;
use gmodel::config::{ClusterConfig, NodeSelection, Partition};
use gmodel::gpu_request::GpuRequest;
use gmodel::hostlist::Hostlist;
use gmodel::job::{GpuScope, MemRequest, Switches};
use gmodel::node::{GpuEntry, GpuInfo};
use gmodel::policy::{Backfill, Rails, Repeat, Reservation, ReservedPart, Switch};
use gmodel::run::NodeShare;
use gmodel::{
    CommonSpec, GpuGrant, GpuSet, GpuSlot, JobId, JobSpec, NodeId, Request, RunId, Timestamp,
};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

const NOW: Timestamp = Timestamp::from_secs(1000);
/// Of tests that do not say it: with reservations for many a pass promises what a forecast tells, and more of it is asked.
pub const RESERVING: Backfill = Backfill::First(100);

/// One reservation as by default, or [`RESERVING`].
fn some_reservations() -> impl proptest::strategy::Strategy<Value = Backfill> {
    proptest::sample::select(vec![Backfill::EASY, RESERVING])
}

/// `node n1 h100:8 64c 512G feature=ib down`, `running 1 n1 gpus=0-3 cpus=4 left=60`,
/// `job gpus=h100:4 nodes=2 time=60 ...`, `partition a nodes=n1 tier=2`.
fn picture(text: &str) -> Snapshot {
    let mut config = ClusterConfig::default();
    config.scheduler.backfill = RESERVING;
    let mut snapshot = Snapshot {
        now: NOW,
        ..Snapshot::default()
    };
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        match verb {
            "partition" => config.partitions.push(partition(&words)),
            "node" => {
                let id = NodeId(snapshot.nodes.len() as u32 + 1);
                snapshot.nodes.push(node(id, &words));
            }
            "running" => run(&mut snapshot, &words),
            "backfill" => config.scheduler.backfill = backfill(rest),
            "placement" => {
                config.scheduler.placement = serde_json::from_str(&format!("{rest:?}")).unwrap()
            }
            "order" => config.scheduler.order = serde_json::from_str(&format!("{rest:?}")).unwrap(),
            "licence" => {
                config
                    .scheduler
                    .licences
                    .insert(words[0].into(), words[1].parse().unwrap());
            }
            "switch" => {
                let nodes = Some(Hostlist::parse(words[1]).unwrap());
                config.scheduler.topology.switches.push(Switch {
                    name: words[0].into(),
                    nodes,
                    ..Switch::default()
                });
            }
            "rails" => {
                let of_gpu = get(&words, "of")
                    .unwrap()
                    .split(',')
                    .map(|rail| rail.parse().unwrap())
                    .collect();
                config.scheduler.topology.rails.push(Rails {
                    name: "pod".into(),
                    nodes: Hostlist::parse(words[0]).unwrap(),
                    of_gpu,
                });
            }
            "reservation" => {
                let one = reservation(&words);
                Arc::make_mut(&mut snapshot.policy)
                    .reservations
                    .insert(one.name.clone(), one);
            }
            "job" => {
                let id = JobId(10 + snapshot.pending.last().map_or(0, |last| last.id.0));
                snapshot.pending.extend(job(id, &words).in_each_partition());
            }
            // Another component of the job before it.
            "part" => {
                let first = snapshot.pending.last_mut().expect("a job before it");
                let others = &mut first.particulars.others;
                let id = JobId(first.id.0 + 1 + others.len() as u64);
                others.push(job(id, &words));
            }
            _ => panic!("{line}"),
        }
    }
    if config.partitions.is_empty() {
        config.partitions.push(Partition {
            name: "main".into(),
            is_default: true,
            ..Partition::default()
        });
    }
    snapshot.config = Arc::new(config);
    snapshot
}

fn backfill(text: &str) -> Backfill {
    match text {
        "off" => Backfill::Off,
        "easy" => Backfill::EASY,
        "all" => Backfill::All,
        count => Backfill::First(count.parse().unwrap()),
    }
}

/// `reservation r nodes=n1 from=100 secs=50 user=alice daily flex maint magnetic overlap`; without nodes all, `gpus=4`, `gpus=h100:2,gpu:3` so many.
fn reservation(words: &[&str]) -> Reservation {
    Reservation {
        name: words[0].into(),
        start: NOW.plus_secs(number(words, "from").unwrap_or(0)),
        duration_secs: number(words, "secs").unwrap(),
        repeat: if words.contains(&"daily") {
            Repeat::Daily
        } else {
            Repeat::Once
        },
        what: match (get(words, "nodes"), get(words, "gpus")) {
            (Some(list), _) => ReservedPart::Nodes(Hostlist::parse(list).unwrap()),
            (None, Some(amounts)) => ReservedPart::Gpus(crate::tests::world::amounts(amounts)),
            (None, None) => ReservedPart::AllNodes,
        },
        users: get(words, "user").map(str::to_owned).into_iter().collect(),
        maintenance: words.contains(&"maint"),
        flex: words.contains(&"flex"),
        magnetic: words.contains(&"magnetic"),
        overlap: words.contains(&"overlap"),
        ..Reservation::default()
    }
}

fn get<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    words
        .iter()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn number<T: std::str::FromStr>(words: &[&str], key: &str) -> Option<T> {
    get(words, key).map(|text| text.parse().unwrap_or_else(|_| panic!("{key}={text}")))
}

fn partition(words: &[&str]) -> Partition {
    Partition {
        name: words[0].into(),
        nodes: get(words, "nodes").map_or(NodeSelection::All, |l| {
            NodeSelection::Names(Hostlist::parse(l).unwrap())
        }),
        priority_tier: number(words, "tier").unwrap_or(1),
        max_time_secs: number(words, "max_time"),
        allow_accounts: get(words, "accounts")
            .into_iter()
            .flat_map(|list| list.split(','))
            .map(str::to_owned)
            .collect(),
        allow_users: get(words, "users")
            .into_iter()
            .flat_map(|list| list.split(','))
            .map(str::to_owned)
            .collect(),
        allow_qos: get(words, "qos")
            .into_iter()
            .flat_map(|list| list.split(','))
            .map(str::to_owned)
            .collect(),
        state: if words.contains(&"down") {
            gmodel::config::PartitionState::Down
        } else {
            Default::default()
        },
        cpus_per_gpu: number(words, "cpus_per_gpu"),
        gpu_sharing: get(words, "sharing").map_or_else(Default::default, |word| {
            serde_json::from_str(&format!("{word:?}")).unwrap()
        }),
        ..Partition::default()
    }
}

fn node(id: NodeId, words: &[&str]) -> SchedNode {
    let mut gpus = Vec::new();
    let (mut cpus, mut mem_bytes) = (64, 512 << 30);
    for word in &words[1..] {
        if let Some(text) = word.strip_suffix('c') {
            cpus = text.parse().unwrap();
        } else if let Some(text) = word.strip_suffix('G') {
            mem_bytes = text.parse::<u64>().unwrap() << 30;
        } else if let Some((gpu_type, count)) = word.split_once(':') {
            for _ in 0..count.parse::<u32>().unwrap() {
                let slot = GpuSlot(gpus.len() as u16);
                let info = GpuInfo {
                    uuid: format!("{}-{}", words[0], slot.0),
                    index: u32::from(slot.0),
                    gpu_type: gpu_type.into(),
                    memory_mib: if gpu_type == "h100" { 81_920 } else { 40_960 },
                    mps: words.contains(&"mps"),
                    ..GpuInfo::default()
                };
                let island_size = number::<u32>(words, "island");
                let nvlink_island = island_size.map(|size| u32::from(slot.0) / size);
                let info = GpuInfo {
                    nvlink_island,
                    ..info
                };
                gpus.push(GpuEntry {
                    slot,
                    info,
                    present: true,
                    forgotten: false,
                    refused: String::new(),
                    checks: None,
                });
            }
        }
    }
    // One a100 more that is cut: `cut=3g.40gb+1g.10gb`.
    for (at, profile) in get(words, "cut")
        .into_iter()
        .flat_map(|cut| cut.split('+').enumerate())
    {
        let slice = gmodel::node::MigSlice {
            gpu: format!("{}-cut", words[0]),
            profile: profile.into(),
            placement: at as u8,
            compute_slices: profile[..1].parse().unwrap(),
            memory_slices: 1,
        };
        let info = GpuInfo {
            uuid: format!("MIG-{}-{at}", words[0]),
            gpu_type: "a100".into(),
            slice: Some(slice),
            ..GpuInfo::default()
        };
        gpus.push(GpuEntry {
            slot: GpuSlot(gpus.len() as u16),
            info,
            present: true,
            forgotten: false,
            refused: String::new(),
            checks: None,
        });
    }
    SchedNode {
        id,
        name: words[0].into(),
        unavailable: words.contains(&"down").then(|| "down".into()),
        features: get(words, "feature")
            .map_or(Vec::new(), |f| f.split(',').map(str::to_owned).collect()),
        nvlink_domain: get(words, "domain").unwrap_or_default().into(),
        cpus,
        mem_bytes,
        free_gpu_milli: vec![1000; gpus.len()],
        gpus: Arc::new(gpus),
        free_cpus: cpus,
        free_mem_bytes: mem_bytes,
        runs: 0,
        exclusive: false,
        mig: Default::default(),
    }
}

fn run(snapshot: &mut Snapshot, words: &[&str]) {
    let slots: RangeSet = get(words, "gpus").map_or(RangeSet::new(), |text| text.parse().unwrap());
    let node = snapshot
        .nodes
        .iter_mut()
        .find(|node| node.name == words[1])
        .unwrap();
    let share = NodeShare {
        node: node.id,
        cpus: number(words, "cpus").unwrap_or(1),
        mem_bytes: 1 << 30,
        gpus: GpuSet::whole(slots.iter().map(|slot| GpuSlot(slot as u16))),
        tasks: 1,
    };
    node.take(&share);
    let run = RunId::new(JobId(words[0].parse().unwrap()), 1);
    let ends_by = number::<i64>(words, "left").map(|secs| NOW.plus_secs(secs));
    snapshot
        .running
        .push(RunningRun::new(run, Arc::default(), vec![share], ends_by));
}

fn job(id: JobId, words: &[&str]) -> PendingJob {
    let per_node = get(words, "gpn");
    let request = Request {
        nodes_min: number(words, "nodes").unwrap_or(1),
        nodes_max: number(words, "most")
            .or(number(words, "nodes"))
            .unwrap_or(1),
        ntasks: number(words, "ntasks").unwrap_or(1),
        cpus_per_task: number(words, "cpus"),
        cpus_per_gpu: number(words, "cpg"),
        ntasks_per_node: number(words, "per_node"),
        mem: match get(words, "mem") {
            Some("usual") => MemRequest::Default,
            _ => MemRequest::PerNode(number::<u64>(words, "mem").unwrap_or(1) << 30),
        },
        gpus: get(words, "gpus")
            .or(per_node)
            .map(|text| GpuRequest::parse(text).unwrap()),
        gpu_scope: if per_node.is_some() {
            GpuScope::Node
        } else {
            GpuScope::Job
        },
        gpu_mem_mib: number(words, "gpu_mem"),
        exclusive: words.contains(&"exclusive"),
        nodelist: get(words, "nodelist").map(|text| Hostlist::parse(text).unwrap()),
        exclude: get(words, "exclude").map(|text| Hostlist::parse(text).unwrap()),
        constraint: get(words, "constraint").map(str::to_owned),
        nvlink: words.contains(&"nvlink"),
        prefer: get(words, "prefer").map(str::to_owned),
        switches: get(words, "switches").map(|text| {
            let (most, wait) = text
                .split_once('@')
                .map_or((text, None), |(most, wait)| (most, wait.parse().ok()));
            Switches {
                most: most.parse().unwrap(),
                wait_secs: wait,
            }
        }),
        ..Request::default()
    };
    let partition = get(words, "partition").unwrap_or("main").into();
    PendingJob {
        id,
        spec: Arc::new(JobSpec::from(CommonSpec {
            partition,
            request,
            user: gmodel::job::UserRef {
                name: get(words, "user").unwrap_or("bob").into(),
                uid: number(words, "uid").unwrap_or(1000),
                gid: 1000,
            },
            reservation: get(words, "reservation").map(str::to_owned),
            account: get(words, "account").unwrap_or_default().into(),
            qos: get(words, "qos").unwrap_or_default().into(),
            time_min_secs: number(words, "time_min"),
            licences: get(words, "licences")
                .map_or_else(BTreeMap::new, |text| gmodel::licence::parse(text).unwrap()),
            ..CommonSpec::default()
        })),
        submitted: Timestamp(id.0 as i64),
        eligible: NOW.plus_secs(number(words, "begin").unwrap_or(0)),
        nice: number(words, "nice").unwrap_or(0),
        limit_secs: number(words, "time"),
        reason: gmodel::Reason::default(),
        particulars: crate::Particulars {
            held_by: get(words, "held").map(Into::into),
            avoid: number::<u32>(words, "avoid")
                .map(NodeId)
                .into_iter()
                .collect(),
            positions: number::<u32>(words, "array").map(RangeSet::first_n),
            room: number(words, "room"),
            ..crate::Particulars::default()
        }
        .into(),
    }
}

fn story(snapshot: &Snapshot, plan: &Plan) -> String {
    let mut out = String::new();
    for start in &plan.starts {
        let partition = start
            .partition
            .as_ref()
            .map_or(String::new(), |name| format!(" in {name}"));
        write!(out, "{} starts{partition} on", start.job).unwrap();
        for share in &start.allocation {
            let name = &snapshot
                .nodes
                .iter()
                .find(|node| node.id == share.node)
                .unwrap()
                .name;
            let slot = |grant: &GpuGrant| match grant.part.milli() {
                1000 => grant.slot.0.to_string(),
                milli => format!("{}:{milli}", grant.slot.0),
            };
            let slots: Vec<String> = share.gpus.0.iter().map(slot).collect();
            write!(out, " {name}[{}]x{}", slots.join(","), share.cpus).unwrap();
        }
        start
            .limit_secs
            .iter()
            .for_each(|secs| write!(out, " for {secs} s").unwrap());
        out.push('\n');
    }
    for (id, reason) in &plan.reasons {
        writeln!(out, "{id} waits: {}: {}", reason.code, reason.text).unwrap();
    }
    for (id, reason) in &plan.array_reasons {
        writeln!(out, "{id}_* waits: {}: {}", reason.code, reason.text).unwrap();
    }
    if plan.cut_short {
        out.push_str("cut short\n");
    }
    out
}

fn check(text: &str, expect: Expect) {
    let snapshot = picture(text);
    expect.assert_eq(&story(&snapshot, &plan(&snapshot, WorkBudget::default())));
}

#[test]
fn higher_tier_then_lower_nice_then_older_goes_first() {
    check(
        "partition main tier=1
         partition urgent tier=2
         node n1 h100:1
         job gpus=1
         job gpus=1 nice=-5
         job gpus=1 partition=urgent",
        expect![[r#"
            30 starts on n1[0]x1
            20 waits: Resources: needs 1 GPU, 1 CPU and 1G of memory on one node; most is free on n1: 0 GPUs, 63 CPUs and 511G of memory
            10 waits: Priority: needs 1 GPU, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
        "#]],
    );
}

#[test]
fn linked_gpus_come_from_one_island() {
    check(
        "partition main
         node n1 h100:8 island=4
         node n2 l4:4
         running 1 n1 gpus=0-1 left=60
         job gpus=4 nvlink
         job gpus=3 nvlink time=60
         job gpus=l4:1 nvlink
         job gpus=5 nvlink
         job gpus=5",
        expect![[r#"
            10 starts on n1[4,5,6,7]x1
            30 starts on n2[0]x1
            20 waits: Resources: needs 3 GPUs that NVLink joins, 1 CPU and 1G of memory on one node; most is free on n2: 4 GPUs, 64 CPUs and 512G of memory; room is expected by 1970-01-01T00:17:40Z
            50 waits: Priority: needs 5 GPUs, 1 CPU and 1G of memory on one node; jobs of higher priority wait for such resources too
            40 waits: PartitionConfig: needs 5 GPUs that NVLink joins, 1 CPU and 1G of memory on one node; partition "main" has no such nodes
        "#]],
    );
}

#[test]
fn gpus_come_from_the_node_that_is_fullest() {
    check(
        "node n1 h100:8
         node n2 h100:8
         node n3 h100:8
         running 1 n2 gpus=0-4 left=60
         running 2 n3 gpus=0-5 left=60
         job gpus=2
         job gpus=2
         job gpus=8",
        expect![[r#"
            10 starts on n3[6,7]x1
            20 starts on n2[5,6]x1
            30 starts on n1[0,1,2,3,4,5,6,7]x1
        "#]],
    );
}

#[test]
fn all_nodes_of_a_job_or_none() {
    check(
        "node n1 h100:8
         node n2 h100:8
         running 1 n2 gpus=0 left=60
         job nodes=2 gpn=8
         job nodes=2 gpn=7 time=100",
        expect![[r#"
            10 waits: Resources: needs 8 GPUs, 1 CPU and 1G of memory on each of 2 nodes; most is free on n1: 8 GPUs, 64 CPUs and 512G of memory; room is expected by 1970-01-01T00:17:40Z
            20 waits: Priority: nodes it needs are planned for job 10
        "#]],
    );
}

#[test]
fn gpus_of_a_job_are_spread_over_its_nodes() {
    check(
        "node n1 h100:8
         node n2 h100:8
         job nodes=2 gpus=7 ntasks=3 cpus=2",
        expect![[r#"
            10 starts on n1[0,1,2,3]x4 n2[0,1,2]x2
        "#]],
    );
}

#[test]
fn more_nodes_are_taken_where_there_are_some() {
    check(
        "node n1 h100:8
         node n2 h100:8
         node n3 h100:8
         job nodes=1 most=2 gpn=4
         job nodes=1 most=8 gpn=8",
        expect![[r#"
            10 starts on n1[0,1,2,3]x1 n2[0,1,2,3]x1
            20 starts on n3[0,1,2,3,4,5,6,7]x1
        "#]],
    );
}

#[test]
fn the_second_choice_of_gpu_is_taken_when_the_first_is_not_free() {
    check(
        "node n1 h100:4
         node n2 a100:8
         running 1 n1 gpus=0 left=60
         job gpus=h100:4|a100:8
         job gpus=h100:4|a100:8
         job gpus=h100:1|a100:1
         job gpus=1 gpu_mem=60000
         job gpus=a100:1 gpu_mem=60000",
        expect![[r#"
            10 starts on n2[0,1,2,3,4,5,6,7]x1
            20 waits: Resources: needs 4 h100, 1 CPU and 1G of memory on one node; most is free on n1: 3 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:17:40Z
            30 waits: Priority: nodes it needs are planned for job 20
            40 waits: Priority: nodes it needs are planned for job 20
            50 waits: PartitionConfig: needs 1 a100 with 58.6G, 1 CPU and 1G of memory on one node; partition "main" has no such nodes
        "#]],
    );
}

#[test]
fn an_exclusive_job_takes_an_empty_node_and_shares_it_with_no_job() {
    check(
        "node n1 h100:4
         node n2 h100:4
         running 1 n1 cpus=1 left=60
         job exclusive
         job gpus=1
         job exclusive time=10",
        expect![[r#"
            10 starts on n2[0,1,2,3]x64
            20 starts on n1[0]x1
            30 waits: Resources: needs 1 CPU and 1G of memory on one node with nothing else on it; most is free on n1: 3 GPUs, 62 CPUs and 510G of memory
        "#]],
    );
}

#[test]
fn a_limit_that_says_no_to_a_whole_large_node_lets_a_small_one_be_taken() {
    let starts = |nodes: &str, job: &str| {
        let mut snapshot = picture(&format!("placement spread\n{nodes}\njob exclusive {job}"));
        Arc::make_mut(&mut snapshot.config).partitions[0]
            .per_user
            .gpus = Some(gmodel::policy::GpuAmounts::all(3));
        let plan = plan(&snapshot, WorkBudget::default());
        plan.starts.first().map(|start| {
            start
                .allocation
                .iter()
                .map(|share| share.node.0)
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(starts("node n1 h100:4\nnode n2 h100:2", ""), Some(vec![2]));
    assert_eq!(
        starts("node n1 h100:2\nnode n2 h100:4", "gpn=2"),
        Some(vec![1])
    );
    assert_eq!(
        starts(
            "node n1 h100:4\nnode n2 h100:2\nrunning 1 n2 cpus=1 left=60",
            ""
        ),
        None,
        "it is not empty"
    );
    assert_eq!(starts("node n1 h100:4\nnode n2 h100:4", ""), None);
    assert_eq!(
        starts(
            "node n1 h100:4\nnode n2 h100:1\nnode n3 h100:8\nnode n4 h100:2",
            "nodes=2 gpn=1"
        ),
        Some(vec![2, 4])
    );
}

#[test]
fn named_nodes_are_taken_all_and_excluded_ones_never() {
    check(
        "node n1 h100:4
         node n2 h100:4 feature=ib
         node n3 h100:4
         job nodelist=n[1,3] gpn=1
         job exclude=n[1-2] gpus=1
         job constraint=ib gpus=1
         job nodelist=n2 constraint=!ib
         job nodelist=n9",
        expect![[r#"
            10 starts on n1[0]x1 n3[0]x1
            20 starts on n3[1]x1
            30 starts on n2[0]x1
            40 waits: BadConstraints: constraint "!ib": '!' cannot be part of a feature's name. Features join with & and |, as in a100&ib
            50 waits: BadConstraints: node "n9" is none that partition "main" can give it
        "#]],
    );
}

#[test]
fn cpus_and_memory_count_too() {
    check(
        "partition main cpus_per_gpu=8
         node n1 h100:4 32c 64G
         job gpus=2
         job cpus=20 time=50
         job cpus=10 mem=62
         job cpus=10 mem=60",
        expect![[r#"
            10 starts on n1[0,1]x16
            30 starts on n1[]x10
            20 waits: Resources: needs 20 CPUs and 1G of memory on one node; most is free on n1: 2 GPUs, 16 CPUs and 63G of memory
            40 waits: Priority: needs 10 CPUs and 60G of memory on one node; jobs of higher priority wait for such resources too
        "#]],
    );
}

#[test]
fn short_jobs_pass_a_waiting_one_where_they_do_not_delay_it() {
    check(
        "node n1 h100:8
         running 1 n1 gpus=0-3 left=600
         job gpus=8 time=1000
         job gpus=4 time=601
         job gpus=2 time=600
         job gpus=1",
        expect![[r#"
            30 starts on n1[4,5]x1
            10 waits: Resources: needs 8 GPUs, 1 CPU and 1G of memory on one node; most is free on n1: 4 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:26:40Z
            20 waits: Priority: nodes it needs are planned for job 10
            40 waits: Priority: nodes it needs are planned for job 10
        "#]],
    );
}

#[test]
fn a_reservation_is_kept_against_jobs_of_other_partitions_too() {
    check(
        "partition main
         partition small nodes=n1
         node n1 h100:4
         running 1 n1 gpus=0 left=100
         job gpus=4
         job gpus=1 partition=small time=1000
         job gpus=1 partition=small time=100",
        expect![[r#"
            30 starts on n1[1]x1
            10 waits: Resources: needs 4 GPUs, 1 CPU and 1G of memory on one node; most is free on n1: 3 GPUs, 63 CPUs and 511G of memory; room is expected by 1970-01-01T00:18:20Z
            20 waits: Priority: nodes it needs are planned for job 10
        "#]],
    );
}

#[test]
fn a_job_avoids_nodes_it_failed_on_while_others_fit() {
    check(
        "node n1 h100:1
         node n2 h100:1
         job gpus=1 avoid=1
         job gpus=1 avoid=2",
        expect![[r#"
            10 starts on n2[0]x1
            20 starts on n1[0]x1
        "#]],
    );
}

#[test]
fn arrays_start_as_many_tasks_as_fit_and_their_cap_allows() {
    check(
        "node n1 h100:4
         job gpus=1 array=3 room=2
         job gpus=1 array=5
         job gpus=1 room=0",
        expect![[r#"
            10 starts on n1[0]x1
            11 starts on n1[1]x1
            20 starts on n1[2]x1
            21 starts on n1[3]x1
            30 waits: JobArrayTaskLimit: as many tasks of the array run as it allows at once
            10_* waits: JobArrayTaskLimit: as many tasks of the array run as it allows at once
            20_* waits: Resources: needs 1 GPU, 1 CPU and 1G of memory on one node; most is free on n1: 0 GPUs, 60 CPUs and 508G of memory
        "#]],
    );
}

#[test]
fn a_job_that_cannot_run_at_all_is_told_why() {
    check(
        "partition main max_time=100
         node n1 h100:4
         node n2 h100:8 down
         job gpus=8
         job gpus=16
         job gpus=1 time=200
         job gpus=1 begin=60
         job gpus=1 held=user:alice
         job gpus=1 held=admin:root
         job gpus=1 held=system
         job gpus=1 partition=gone
         job gpus=1 constraint=ib",
        expect![[r#"
            10 waits: ReqNodeNotAvail: nodes it needs are not available (n2: down)
            20 waits: PartitionConfig: needs 16 GPUs, 1 CPU and 1G of memory on one node; partition "main" has no such nodes
            30 waits: PartitionTimeLimit: asks for 200 s, partition "main" allows 100 s
            40 waits: BeginTime: not before 1970-01-01T00:17:40Z
            50 waits: JobHeldUser: held by user:alice
            60 waits: JobHeldAdmin: held by admin:root
            70 waits: JobHoldMaxRequeue: held by system
            80 waits: PartitionConfig: partition "gone" is not in the configuration
            90 waits: BadConstraints: needs 1 GPU, 1 CPU and 1G of memory on one node; partition "main" has no such nodes
        "#]],
    );
}

#[test]
fn a_partition_starts_no_jobs_of_an_account_it_was_closed_to() {
    check(
        "partition main accounts=lab,club qos=normal,high users=bob,eve
         node n1 h100:8
         job gpus=1 account=lab qos=high
         job gpus=1 account=guest qos=high
         job gpus=1 account=lab qos=scavenger
         job gpus=1 account=lab qos=high user=ada",
        expect![[r#"
            10 starts on n1[0]x1
            20 waits: AccountNotAllowed: partition "main" is for the accounts lab, club now, not for guest
            30 waits: QOSNotAllowed: partition "main" is for the QOS normal, high now, not for scavenger
            40 waits: PartitionConfig: partition "main" is not open to ada now
        "#]],
    );
}

#[test]
fn a_pass_ends_with_its_budget_and_says_so() {
    let snapshot = picture("node n1 h100:8\njob gpus=1 array=8\njob gpus=1");
    let cut = plan(
        &snapshot,
        WorkBudget {
            node_probes: 1_000_000,
            starts: 3,
        },
    );
    expect![[r#"
        10 starts on n1[0]x1
        11 starts on n1[1]x1
        12 starts on n1[2]x1
        cut short
    "#]]
    .assert_eq(&story(&snapshot, &cut));
}
