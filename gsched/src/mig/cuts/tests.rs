//! Nodes as words, a queue, and the cuts that come of it.

use super::*;
use crate::plan::{Plan, WorkBudget};
use crate::snapshot::{CutRecord, NodeMig, SchedNode};
use gmodel::config::{ClusterConfig, Partition};
use gmodel::gpu_request::GpuRequest;
use gmodel::hostlist::Hostlist;
use gmodel::mig::MigBoard;
use gmodel::node::{GpuEntry, MigSlice};
use gmodel::policy::{Reservation, ReservedPart};
use gmodel::rare::Rare;
use gmodel::{GpuPart, GpuSlot, JobId, JobSpec, NodeId, Reason, Request, Timestamp};
use proptest::prelude::*;
use std::sync::Arc;

const NOW: Timestamp = Timestamp(1_000_000_000);

/// As an A100 of 80 GB tells them.
fn a100() -> MigBoard {
    let kind = |profile: &str, compute, memory, starts: &[u8], most| MigKind {
        profile: profile.into(),
        compute_slices: compute,
        memory_slices: memory,
        memory_mib: u64::from(memory) * 10_240,
        starts: starts.to_vec(),
        most,
    };
    let kinds = vec![
        kind("1g.10gb", 1, 1, &[0, 1, 2, 3, 4, 5, 6], 7),
        kind("1g.20gb", 1, 2, &[0, 2, 4, 6], 4),
        kind("2g.20gb", 2, 2, &[0, 2, 4], 3),
        kind("3g.40gb", 3, 4, &[0, 4], 2),
        kind("7g.80gb", 7, 8, &[0], 1),
    ];
    MigBoard {
        gpu_type: "a100".into(),
        memory_mib: 81_920,
        kinds,
    }
}

/// A node of GPUs written `-` (whole) or `2g.20gb,1g.10gb`, each slice or GPU that is held with a `!`.
fn node(id: u32, boards: &[&str]) -> SchedNode {
    let of = a100();
    let (mut gpus, mut free) = (Vec::new(), Vec::new());
    let mut push = |info: GpuInfo, held: bool| {
        let slot = GpuSlot(gpus.len() as u16);
        free.push(if held || info.divided { 0 } else { 1000 });
        gpus.push(
            serde_json::from_value::<GpuEntry>(
                serde_json::json!({"slot": slot, "info": info, "present": true}),
            )
            .unwrap(),
        );
    };
    for (index, cut) in boards.iter().enumerate() {
        let uuid = format!("GPU-{id}-{index}");
        let whole = GpuInfo {
            uuid: uuid.clone(),
            gpu_type: "a100".into(),
            index: index as u32,
            memory_mib: of.memory_mib,
            divided: !cut.starts_with('-'),
            ..GpuInfo::default()
        };
        push(whole.clone(), cut.ends_with('!'));
        for (at, word) in cut.split(',').enumerate().filter(|_| !cut.starts_with('-')) {
            let profile = word.trim_end_matches('!');
            let kind = of.kind(profile).unwrap();
            let slice = MigSlice {
                gpu: uuid.clone(),
                profile: profile.into(),
                placement: 0,
                compute_slices: kind.compute_slices,
                memory_slices: kind.memory_slices,
            };
            let info = GpuInfo {
                uuid: format!("MIG-{id}-{index}-{at}"),
                memory_mib: kind.memory_mib,
                slice: Some(slice),
                divided: false,
                ..whole.clone()
            };
            push(info, word.ends_with('!'));
        }
    }
    SchedNode {
        id: NodeId(id),
        name: format!("n{id}"),
        unavailable: None,
        features: Vec::new(),
        nvlink_domain: String::new(),
        cpus: 64,
        mem_bytes: 512 << 30,
        gpus: Arc::new(gpus),
        free_cpus: 64,
        free_mem_bytes: 512 << 30,
        free_gpu_milli: free,
        runs: 0,
        exclusive: false,
        mig: NodeMig {
            boards: Arc::new(vec![of]),
            ..NodeMig::default()
        },
    }
}

fn spec(request: Request) -> JobSpec {
    let mut spec = JobSpec {
        name: "j".into(),
        ..JobSpec::default()
    };
    spec.partition = "p".into();
    spec.request = request;
    spec
}

fn snapshot(nodes: Vec<SchedNode>, jobs: &[&str]) -> Snapshot {
    let partition = Partition {
        name: "p".into(),
        is_default: true,
        mig: MigCuts::Planned,
        ..Partition::default()
    };
    let mut config = ClusterConfig {
        partitions: vec![partition],
        ..ClusterConfig::default()
    };
    config.scheduler.backfill = crate::tests::RESERVING;
    let job = |(at, gpus): (usize, &&str)| {
        let request = Request {
            nodes_min: 1,
            nodes_max: 1,
            ntasks: 1,
            gpus: Some(GpuRequest::parse(gpus).unwrap()),
            ..Request::default()
        };
        PendingJob {
            id: JobId(at as u64 + 1),
            spec: Arc::new(spec(request)),
            submitted: NOW,
            eligible: NOW,
            nice: 0,
            limit_secs: Some(3600),
            reason: Reason::default(),
            particulars: Rare::default(),
        }
    };
    Snapshot {
        now: NOW,
        config: Arc::new(config),
        nodes,
        pending: jobs.iter().enumerate().map(job).collect(),
        ..Snapshot::default()
    }
}

fn plan(snapshot: &Snapshot) -> Plan {
    Engine::default().plan(snapshot, WorkBudget::default())
}

/// `1-0: 2g.20gb,2g.20gb` for each cut.
fn cuts(snapshot: &Snapshot) -> Vec<String> {
    let name = |cut: &Cut| {
        format!(
            "{}: {}",
            cut.uuid.trim_start_matches("GPU-"),
            cut.profiles.join(",")
        )
    };
    plan(snapshot).cuts.iter().map(name).collect()
}

#[test]
fn a_slice_is_given_out_like_a_gpu_and_charged_as_its_part() {
    let snapshot = snapshot(
        vec![node(1, &["3g.40gb,2g.20gb,1g.10gb!", "-"])],
        &["2g.20gb", "1", "1g.10gb:1", "1"],
    );
    let plan = plan(&snapshot);
    let starts: Vec<_> = plan
        .starts
        .iter()
        .map(|start| (start.job.0, start.allocation[0].gpus.0[0].clone()))
        .collect();
    let slots: Vec<_> = starts
        .iter()
        .map(|(job, grant)| (*job, grant.slot.0))
        .collect();
    assert_eq!(
        slots,
        [(1, 2), (2, 4)],
        "a slice for the first, the whole GPU for the second; the 1g is held, and a GPU that is cut is no GPU"
    );
    assert!(matches!(&starts[0].1.part, GpuPart::Mig { profile, .. } if profile == "2g.20gb"));
    assert_eq!(
        (starts[0].1.part.milli(), starts[0].1.part.of_slot_milli()),
        (285, 1000)
    );
}

#[test]
fn an_empty_gpu_is_cut_for_pending_jobs_and_filled_up() {
    assert_eq!(
        cuts(&snapshot(vec![node(1, &["-!", "-"])], &["3g.40gb"])),
        ["1-1: 3g.40gb,3g.40gb"]
    );
    let two = snapshot(vec![node(1, &["-"])], &["3g.40gb", "2g.20gb"]);
    assert_eq!(
        cuts(&two),
        ["1-0: 2g.20gb,2g.20gb,3g.40gb"],
        "both go on one"
    );
    let array = snapshot(vec![node(1, &["-", "-"])], &["1g.10gb:8"]);
    assert_eq!(cuts(&array).len(), 2, "eight need two GPUs");
}

#[test]
fn nothing_is_cut_where_slices_are_free_or_no_job_waits() {
    assert_eq!(
        cuts(&snapshot(
            vec![node(1, &["3g.40gb,3g.40gb", "-"])],
            &["3g.40gb"]
        )),
        [""; 0],
        "it starts"
    );
    assert_eq!(cuts(&snapshot(vec![node(1, &["-", "-"])], &["1"])), [""; 0]);
    assert_eq!(
        cuts(&snapshot(vec![node(1, &["-!", "-!"])], &["1g.10gb"])),
        [""; 0],
        "busy ones are left alone"
    );
    assert_eq!(
        cuts(&snapshot(
            vec![node(1, &["3g.40gb!,3g.40gb"])],
            &["7g.80gb", "1"]
        )),
        [""; 0]
    );
    assert_eq!(
        cuts(&snapshot(vec![node(1, &["-"])], &["a30:1g.6gb"])),
        [""; 0],
        "no GPU is of that type"
    );
}

/// Runs that hold these slots of node 1 until so many seconds from now.
fn with_runs(mut snapshot: Snapshot, runs: &[(u16, i64)]) -> Snapshot {
    for (id, (slot, secs)) in (90..).zip(runs) {
        let gpu = &snapshot.nodes[0].gpus[usize::from(*slot)].info;
        let gpus = gmodel::GpuSet(vec![gmodel::GpuGrant {
            slot: GpuSlot(*slot),
            part: gpu.part(),
        }]);
        let share = gmodel::run::NodeShare {
            node: NodeId(1),
            cpus: 1,
            mem_bytes: 0,
            gpus,
            tasks: 1,
        };
        let run = gmodel::RunId::new(JobId(id), 1);
        snapshot.running.push(crate::RunningRun::new(
            run,
            Arc::new(spec(Request::default())),
            vec![share],
            Some(NOW.plus_secs(*secs)),
        ));
    }
    snapshot
}

/// `3[0]` for each start: the job and its slots.
fn starts(snapshot: &Snapshot) -> Vec<String> {
    let slots = |start: &crate::Start| {
        start.allocation[0]
            .gpus
            .slots()
            .map(|slot| slot.0.to_string())
            .collect::<Vec<_>>()
            .join(",")
    };
    plan(snapshot)
        .starts
        .iter()
        .map(|start| format!("{}[{}]", start.job.0, slots(start)))
        .collect()
}

#[test]
fn an_empty_gpu_is_kept_for_a_job_that_waits_for_its_cut() {
    let first = snapshot(vec![node(1, &["-", "-!"])], &["2g.20gb", "1"]);
    assert_eq!(
        (starts(&first), cuts(&first).len()),
        (vec![], 1),
        "the whole GPU is not given to who came later"
    );
    let later = snapshot(vec![node(1, &["-", "-!"])], &["1", "2g.20gb"]);
    assert_eq!(
        (starts(&later), cuts(&later)),
        (vec!["1[0]".to_owned()], vec![]),
        "who came first has it"
    );
    let one = snapshot(vec![node(1, &["-", "-"])], &["1g.10gb", "2g.20gb", "1"]);
    assert_eq!(
        (starts(&one), cuts(&one).len()),
        (vec!["3[1]".to_owned()], 1),
        "one GPU is enough for both slices"
    );
}

#[test]
fn nothing_more_starts_on_the_gpu_that_is_empty_first_while_a_job_before_waits_for_it_whole() {
    // Slots: 0 and 3 are GPUs, 1, 2 and 4, 5 their halves. The second GPU is empty sooner.
    let two = || vec![node(1, &["3g.40gb!,3g.40gb", "3g.40gb!,3g.40gb"])];
    let of = |jobs: &[&str]| with_runs(snapshot(two(), jobs), &[(1, 9000), (4, 600)]);
    assert_eq!(
        starts(&of(&["3g.40gb", "3g.40gb"])).len(),
        2,
        "both free halves are given out"
    );
    assert_eq!(
        starts(&of(&["1", "3g.40gb", "3g.40gb"])),
        ["2[2]"],
        "one is kept, of the GPU that is empty in 600 s"
    );
    assert_eq!(
        cuts(&of(&["1", "3g.40gb"])),
        [""; 0],
        "a busy GPU is left alone"
    );
    let late = with_runs(
        snapshot(two(), &["1", "3g.40gb", "3g.40gb"]),
        &[(1, 9000), (4, 3601)],
    );
    assert_eq!(
        starts(&late).len(),
        2,
        "it asks for an hour: no GPU is idle for it longer than that"
    );
}

#[test]
fn a_gpu_is_made_whole_for_a_job_that_waits_for_whole_gpus() {
    assert_eq!(
        cuts(&snapshot(vec![node(1, &["3g.40gb,3g.40gb", "-!"])], &["1"])),
        ["1-0: "]
    );
    let first = snapshot(vec![node(1, &["3g.40gb,3g.40gb"])], &["2g.20gb", "1"]);
    assert_eq!(
        cuts(&first),
        ["1-0: 2g.20gb,2g.20gb,2g.20gb,1g.10gb"],
        "who is first in the queue has it"
    );
}

#[test]
fn what_was_cut_a_short_while_ago_or_is_ordered_rests() {
    let mut rests = node(1, &["3g.40gb,3g.40gb"]);
    rests.mig.cuts.insert(
        "GPU-1-0".into(),
        CutRecord {
            at: NOW.plus_secs(-299),
            profiles: Vec::new(),
        },
    );
    assert_eq!(cuts(&snapshot(vec![rests.clone()], &["2g.20gb"])), [""; 0]);
    rests.mig.cuts.insert(
        "GPU-1-0".into(),
        CutRecord {
            at: NOW.plus_secs(-300),
            profiles: Vec::new(),
        },
    );
    assert_eq!(cuts(&snapshot(vec![rests.clone()], &["2g.20gb"])).len(), 1);
    rests.mig.ordered.insert("GPU-1-0".into());
    assert_eq!(cuts(&snapshot(vec![rests], &["2g.20gb"])), [""; 0]);
}

#[test]
fn a_job_waits_for_its_cut_and_no_second_gpu_is_cut_for_it() {
    let mut one = node(1, &["-", "-"]);
    one.mig.ordered.insert("GPU-1-0".into());
    one.mig
        .being_cut
        .insert("GPU-1-0".into(), vec!["3g.40gb".into(), "3g.40gb".into()]);
    one.free_gpu_milli[0] = 0;
    assert_eq!(cuts(&snapshot(vec![one.clone()], &["3g.40gb"])), [""; 0]);
    assert_eq!(
        cuts(&snapshot(vec![one.clone()], &["3g.40gb", "3g.40gb"])),
        [""; 0]
    );
    assert_eq!(
        cuts(&snapshot(
            vec![one.clone()],
            &["3g.40gb", "3g.40gb", "3g.40gb"]
        )),
        ["1-1: 3g.40gb,3g.40gb"],
        "the third has none there"
    );
    assert_eq!(
        cuts(&snapshot(vec![one.clone()], &["2g.20gb"])),
        ["1-1: 2g.20gb,2g.20gb,2g.20gb,1g.10gb"]
    );
    // A GPU made whole for a pending job; another order is no cut.
    let mut whole = node(1, &["3g.40gb,3g.40gb", "3g.40gb,3g.40gb"]);
    whole.mig.ordered.insert("GPU-1-0".into());
    let other = whole.clone();
    whole.mig.being_cut.insert("GPU-1-0".into(), Vec::new());
    assert_eq!(cuts(&snapshot(vec![whole], &["1"])), [""; 0]);
    assert_eq!(cuts(&snapshot(vec![other], &["1"])), ["1-1: "]);
}

#[test]
fn gpus_kept_for_a_job_before_are_not_cut_for_those_after_it() {
    let jobs = ["2", "3g.40gb"];
    let mut one = node(1, &["-", "-!"]);
    one.free_cpus = 60;
    // The first job waits for both GPUs: its planned start is at the end of the run on the second.
    let spec = Arc::new(spec(Request::default()));
    let share = gmodel::run::NodeShare {
        node: NodeId(1),
        cpus: 4,
        mem_bytes: 0,
        gpus: gmodel::GpuSet::whole([GpuSlot(1)]),
        tasks: 1,
    };
    let run = crate::RunningRun::new(
        gmodel::RunId::new(JobId(99), 1),
        spec,
        vec![share],
        Some(NOW.plus_secs(60)),
    );
    let kept = Snapshot {
        running: vec![run],
        ..snapshot(vec![one.clone()], &jobs)
    };
    assert_eq!(cuts(&kept), [""; 0]);
    let other = Snapshot {
        nodes: vec![one, node(2, &["-"])],
        ..kept
    };
    assert_eq!(cuts(&other), ["2-0: 3g.40gb,3g.40gb"]);
}

#[test]
fn a_layout_of_the_configuration_is_made_on_empty_gpus() {
    let layout = |gpus| MigLayout {
        name: "halves".into(),
        nodes: Hostlist::parse("n1").unwrap(),
        gpu_type: None,
        gpus,
        layout: vec!["3g.40gb".into(), "3g.40gb".into()],
    };
    let of = |node: SchedNode, gpus| {
        let mut snapshot = snapshot(vec![node], &[]);
        Arc::make_mut(&mut snapshot.config).mig = vec![layout(gpus)];
        cuts(&snapshot)
    };
    assert_eq!(
        of(node(1, &["-", "-!", "7g.80gb", "3g.40gb,3g.40gb"]), None),
        ["1-0: 3g.40gb,3g.40gb", "1-2: 3g.40gb,3g.40gb"]
    );
    assert_eq!(of(node(1, &["-", "-"]), Some(1)), ["1-0: 3g.40gb,3g.40gb"]);
    assert_eq!(of(node(2, &["-"]), None), [""; 0]);
    let mut drained = node(1, &["-"]);
    drained.unavailable = Some("drained".into());
    assert_eq!(
        of(drained.clone(), None).len(),
        1,
        "a drained node is the quickest way to it"
    );
    drained.mig.cuts.insert(
        "GPU-1-0".into(),
        CutRecord {
            at: NOW.plus_secs(-600),
            profiles: layout(None).layout,
        },
    );
    assert_eq!(
        of(drained.clone(), None).len(),
        1,
        "it was cut so and is so no more, as after a boot"
    );
    let mut refused = drained.clone();
    Arc::make_mut(&mut refused.gpus)[0].refused = "in use".into();
    assert_eq!(
        of(refused, None),
        [""; 0],
        "what the node refused is not ordered again at once"
    );
    drained.mig.cuts.get_mut("GPU-1-0").unwrap().at = NOW.plus_secs(-10);
    assert_eq!(
        of(drained, None),
        [""; 0],
        "its node may not have said yet what became of it"
    );
}

#[test]
fn the_reason_of_a_job_that_waits_for_a_cut_is_resources() {
    let planned = snapshot(vec![node(1, &["-!"])], &["1g.10gb", "1g.5gb"]);
    let reasons: Vec<_> = plan(&planned)
        .reasons
        .into_iter()
        .map(|(job, reason)| format!("{} {}: {}", job.0, reason.code, reason.text))
        .collect();
    assert_eq!(
        reasons,
        [
            "1 Resources: needs 1 slice 1g.10gb and 1 CPU on one node; most is free on n1: 0 GPUs, 64 CPUs and 512G of memory",
            "2 PartitionConfig: needs 1 slice 1g.5gb and 1 CPU on one node; partition \"p\" has no such nodes",
        ]
    );
    let refused = |gpus: &str, mig| {
        let mut partition = planned.config.partitions[0].clone();
        partition.mig = mig;
        let request = Request {
            gpus: Some(GpuRequest::parse(gpus).unwrap()),
            ..planned.pending[0].spec.request.clone()
        };
        gpolicy::feasibility::impossible::impossible(
            &request,
            &partition,
            &[node(1, &["2g.20gb,1g.10gb", "-"])],
        )
    };
    assert_eq!(refused("3g.40gb", MigCuts::Planned), None);
    assert_eq!(refused("2g.20gb", MigCuts::Fixed), None);
    assert_eq!(
        refused("3g.40gb", MigCuts::Fixed).unwrap(),
        "1 3g.40gb on one node: partition \"p\" has none such (its slices are a100:1g.10gb; a100:2g.20gb). \
         Administrators could cut its GPUs into a100: 1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 7g.80gb."
    );
    assert!(
        refused("2g.20gb:2", MigCuts::Fixed)
            .unwrap()
            .contains("has 1. Ask for fewer")
    );
}

#[test]
fn a_gpu_asked_for_by_memory_may_be_a_slice_where_the_partition_says_so() {
    let mut asked = snapshot(vec![node(1, &["2g.20gb,3g.40gb", "-"])], &["1"]);
    let spec = Arc::make_mut(&mut asked.pending[0].spec);
    spec.request.gpu_mem_mib = Some(18 << 10);
    let slot = |snapshot: &Snapshot| plan(snapshot).starts[0].allocation[0].gpus.0[0].slot.0;
    assert_eq!(slot(&asked), 3, "the whole GPU");
    Arc::make_mut(&mut asked.config).partitions[0].slices_for_memory = true;
    assert_eq!(slot(&asked), 1, "the smallest that has 18 GiB");
    // Also on another node than the one that is first with a whole GPU.
    asked.nodes = vec![node(1, &["-!", "-"]), node(2, &["3g.40gb,2g.20gb", "-"])];
    let share = plan(&asked).starts[0].allocation[0].clone();
    assert_eq!((share.node, share.gpus.0[0].slot.0), (NodeId(2), 2));
}

proptest! {
    /// Whatever waits and whatever is held: what is cut is empty, of the node, and goes together.
    #[test]
    fn a_busy_gpu_is_never_cut(
        boards in prop::collection::vec(prop::sample::select(vec!["-", "-!", "3g.40gb,3g.40gb!", "3g.40gb,2g.20gb", "7g.80gb!", "1g.10gb!,1g.10gb,2g.20gb", "2g.20gb"]), 1..6),
        jobs in prop::collection::vec(prop::sample::select(vec!["1", "2", "1g.10gb", "1g.10gb:4", "2g.20gb", "3g.40gb:2", "7g.80gb", "a100:1g.20gb"]), 0..8),
    ) {
        let snapshot = snapshot(vec![node(1, &boards)], &jobs);
        let plan = plan(&snapshot);
        let taken: BTreeSet<u16> = plan.starts.iter().flat_map(|start| start.allocation[0].gpus.slots().map(|slot| slot.0)).collect();
        let mut seen = BTreeSet::new();
        for cut in &plan.cuts {
            prop_assert!(seen.insert(cut.uuid.clone()), "one order for a GPU");
            let of_board: Vec<_> = snapshot.nodes[0].gpus.iter().filter(|gpu| gpu.info.board() == cut.uuid && !gpu.info.divided).collect();
            for gpu in of_board {
                prop_assert!(snapshot.nodes[0].free_gpu_milli[usize::from(gpu.slot.0)] == 1000 && !taken.contains(&gpu.slot.0));
            }
            prop_assert!(gmodel::mig::arrange(&a100().kinds, &cut.profiles).is_ok());
        }
    }
}

#[test]
fn a_job_that_waits_for_a_cut_is_told_from_when_gpus_are_cut() {
    let told = |nodes: Vec<SchedNode>, jobs: &[&str]| {
        let snapshot = snapshot(nodes, jobs);
        let why = crate::why(&snapshot, JobId(jobs.len() as u64)).unwrap();
        let cuts = crate::plan(&snapshot, WorkBudget::default()).cuts.len();
        (
            why.blockers
                .iter()
                .map(|blocker| (blocker.code.to_string(), blocker.cut_from))
                .collect::<Vec<_>>(),
            cuts,
        )
    };
    let resources = |from| vec![("Resources".to_owned(), from)];
    assert_eq!(
        told(vec![node(1, &["-"])], &["1g.10gb"]),
        (resources(Some(NOW)), 1)
    );
    assert_eq!(
        told(vec![node(1, &["3g.40gb,3g.40gb"])], &["1"]),
        (resources(Some(NOW)), 1),
        "it is made whole"
    );
    assert_eq!(
        told(vec![node(1, &["-"])], &["1g.10gb", "3g.40gb"]),
        (resources(Some(NOW)), 1),
        "beside the one before it"
    );
    assert_eq!(
        told(vec![node(1, &["-"])], &["7g.80gb", "3g.40gb"]),
        (resources(None), 1),
        "nothing is left of it"
    );
    assert_eq!(
        told(vec![node(1, &["-!"])], &["1g.10gb"]),
        (resources(None), 0),
        "it is not known when that ends"
    );
    assert_eq!(
        told(vec![node(1, &["1g.10gb,1g.10gb"])], &["1g.10gb"]),
        (Vec::new(), 0),
        "it starts at once"
    );
}

#[test]
fn gpus_are_cut_and_kept_only_on_nodes_with_the_features_that_a_job_asks_for() {
    let constrained = |first: &str, second: &str, more: &[&str]| {
        let mut snapshot = snapshot(
            vec![node(1, &[first]), node(2, &[second])],
            &[&["1g.10gb"], more].concat(),
        );
        snapshot.nodes[1].features = vec!["ib".into()];
        Arc::make_mut(&mut snapshot.pending[0].spec)
            .request
            .constraint = Some("ib".into());
        snapshot
    };
    let seven = ["1g.10gb"; 7].join(",");
    assert_eq!(cuts(&constrained("-", "-", &[])), [format!("2-0: {seven}")]);
    assert_eq!(
        cuts(&constrained("1g.10gb,1g.10gb", "-", &[])),
        [format!("2-0: {seven}")],
        "what is free elsewhere serves nobody"
    );
    assert_eq!(
        starts(&constrained("-", "-!", &["1"])),
        ["2[0]"],
        "a GPU that could not serve it is not kept for it"
    );
}

#[test]
fn gpus_are_cut_and_kept_only_where_reservations_leave_nodes_to_a_job_for_long_enough() {
    // The job asks for an hour: the first node is another's in half an hour.
    let reserved = |first: &str, second: &str, more: &[&str]| {
        let mut snapshot = snapshot(
            vec![node(1, &[first]), node(2, &[second])],
            &[&["1g.10gb"], more].concat(),
        );
        let one = Reservation {
            name: "soon".into(),
            start: NOW.plus_secs(1800),
            duration_secs: 7200,
            what: ReservedPart::Nodes(Hostlist::parse("n1").unwrap()),
            users: ["eve".to_owned()].into(),
            ..Reservation::default()
        };
        Arc::make_mut(&mut snapshot.policy)
            .reservations
            .insert(one.name.clone(), one);
        snapshot.pending[1..]
            .iter_mut()
            .for_each(|job| job.limit_secs = Some(600));
        snapshot
    };
    let seven = ["1g.10gb"; 7].join(",");
    assert_eq!(cuts(&reserved("-", "-", &[])), [format!("2-0: {seven}")]);
    assert_eq!(
        cuts(&reserved("1g.10gb,1g.10gb", "-", &[])),
        [format!("2-0: {seven}")],
        "what is free there serves nobody for so long"
    );
    assert_eq!(
        starts(&reserved("-", "-!", &["1"])),
        ["2[0]"],
        "a GPU that could not serve it is not kept for it"
    );
    // Of the reservation itself: on its node, while it lasts.
    let inside = |from: i64, first: &str| {
        let mut snapshot = reserved(first, "-", &[]);
        Arc::make_mut(&mut snapshot.policy)
            .reservations
            .get_mut("soon")
            .unwrap()
            .start = NOW.plus_secs(from);
        let spec = Arc::make_mut(&mut snapshot.pending[0].spec);
        (spec.reservation, spec.user.name) = (Some("soon".into()), "eve".into());
        cuts(&snapshot)
    };
    assert_eq!(
        inside(-7140, "-"),
        [format!("1-0: {seven}")],
        "a minute is left of it"
    );
    assert_eq!((inside(-7141, "-"), inside(60, "-")), (vec![], vec![]));
}
