//! A submission: checked against partition and nodes, defaults filled in, made a fact.
//!
//! What can never run is refused here with what would work; what must wait is queued.

use super::admission;
use super::command::{Actor, Refusal, Reply};
use super::deadline;
use super::dependency::{Asker, Dependent, Waits, cancel_hopeless, kills, never, resolve};
use super::event::Event;
use super::handle::Tx;
use super::limits;
use super::request_size;
use super::several_partitions;
use super::snapshot::sched_node;
use super::state::{ClientKey, Node, State};
use gmodel::config::{ClusterConfig, NodeSelection, Partition, PartitionState};
use gmodel::constraint::Constraint;
use gmodel::duration::squeue_time;
use gmodel::hostlist::MAX_HOSTS;
use gmodel::partition_list::names;
use gmodel::policy::Reservation;
use gmodel::{JobId, JobSpec, RefusalKind, Request, Timestamp, UserRef};
use gsched::SchedNode;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

/// Used when neither job nor partition says anything, seconds.
pub const DEFAULT_LIMIT_SECS: u32 = 86_400;
/// How the note begins that the limit was nobody's word.
pub(super) const NO_TIME: &str = "no --time given";
/// Requests known to fit; more than this are asked again.
const MAX_FEASIBLE: usize = 1024;
/// Bounds on the texts of a request, bytes.
const MAX_NAME_BYTES: usize = 255;
pub(super) const MAX_TEXT_BYTES: usize = 4096;
/// Nodes, tasks and CPUs a job may name.
const MAX_NODES: u32 = MAX_HOSTS as u32;
const MAX_TASKS: u32 = 1_000_000;
/// Numbers of nodes that are tried for tasks without one.
const MORE_NODES: usize = 64;

pub(super) fn handle(
    tx: &mut Tx,
    actor: &Actor,
    spec: JobSpec,
    client_key: Option<String>,
) -> Result<Reply, Refusal> {
    if let Some(id) = known_key(tx.state, actor, client_key.as_deref())? {
        return Ok(Reply::Submitted {
            id,
            notes: Vec::new(),
            repeated: true,
        });
    }
    let mut notes = Vec::new();
    let (spec, limit_secs) = complete(tx.state, actor, spec, &mut notes, tx.now)?;
    let asked = as_asked(&spec.request);
    // Of several partitions the widest decided: what is enough in each is not known.
    let one = |_: &&str| !(asked.nodes_any && spec.waits_in_several());
    for partition in names(&spec.partition).filter(one) {
        let shape = (partition.to_owned(), asked.clone());
        if !tx.state.feasible.contains_key(&shape) {
            if tx.state.feasible.len() >= MAX_FEASIBLE {
                tx.state.feasible = Arc::default();
            }
            Arc::make_mut(&mut tx.state.feasible).insert(shape, spec.request.nodes_min);
        }
    }
    let id = JobId(tx.state.next_job);
    let waits = open_dependency(tx, id, &spec, &mut notes)?;
    let who = if spec.array.is_some() {
        Dependent::Array(id)
    } else {
        Dependent::Job(id)
    };
    let spec = tx.state.late_specs.share(spec);
    let noted = spec.clone();
    tx.emit(Event::JobSubmitted {
        id,
        spec,
        limit_secs,
        at: tx.now,
        client_key,
    });
    limits::note_submission(tx.state, &noted, tx.now);
    if waits.is_some() {
        tx.emit(Event::WaitsChanged {
            who,
            waits,
            at: tx.now,
        });
        cancel_hopeless(tx, who);
    }
    Ok(Reply::Submitted {
        id,
        notes,
        repeated: false,
    })
}

/// What of a submission's dependency is not met. One that can never be met is no mistake, as the other may have failed a moment
/// ago: the job is cancelled where that is wanted, as if it had been there when the other ended.
fn open_dependency(
    tx: &Tx,
    id: JobId,
    spec: &JobSpec,
    notes: &mut Vec<String>,
) -> Result<Option<Box<Waits>>, Refusal> {
    let Some(dependency) = &spec.dependency else {
        return Ok(None);
    };
    let asker = Asker {
        id,
        spec,
        task: None,
    };
    let waits = resolve(tx.state, &tx.past, tx.now, dependency, asker)?;
    if let Some(why) = waits.as_deref().and_then(never) {
        let so = if kills(tx.state, spec) {
            "it is cancelled"
        } else {
            "it never starts"
        };
        notes.push(format!("--dependency {dependency}: {why}, so {so}"));
    }
    Ok(waits)
}

/// A submission with its defaults, checked as far as it can be without making it.
pub fn complete(
    state: &State,
    actor: &Actor,
    mut spec: JobSpec,
    notes: &mut Vec<String>,
    now: Timestamp,
) -> Result<(JobSpec, Option<u32>), Refusal> {
    let config = &state.config;
    spec.user = UserRef {
        name: actor.user.clone(),
        uid: actor.uid,
        gid: actor.gid,
    };
    // Slurm's other word for a hold, which is everybody's.
    spec.hold |= spec.priority.take_if(|priority| *priority == 0).is_some();
    check_user(config, actor)?;
    check_texts(&spec)?;
    request_size::check(state, &spec)?;
    check_numbers(state, &spec)?;
    spread(&mut spec.request);
    if spec.partition.is_empty() {
        let default = config
            .default_partition()
            .ok_or_else(|| no_default(config))?;
        spec.partition = default.name.clone();
    }
    if spec.waits_in_several() {
        return several_partitions::complete(state, actor, spec, notes, now);
    }
    let limit_secs = complete_in(state, actor, &mut spec, notes, now)?;
    Ok((spec, limit_secs))
}

/// What is the one partition's to say: account, QOS, limits, nodes. The time limit.
pub(super) fn complete_in(
    state: &State,
    actor: &Actor,
    spec: &mut JobSpec,
    notes: &mut Vec<String>,
    now: Timestamp,
) -> Result<Option<u32>, Refusal> {
    let partition = partition_or_refusal(&state.config, &spec.partition)?;
    widen(state, partition, &mut spec.request)?;
    admission::admit(state, actor, spec, partition, notes)?;
    check_admission(state, partition, actor, spec)?;
    super::gpu_share::check_request(&state.config, partition, &spec.request)?;
    let limit_secs = time_limit(spec, partition, qos_limit_secs(state, spec), notes)?;
    note_window(state, spec, limit_secs, notes);
    limits::check_request(state, spec, partition, limit_secs, now)?;
    limits::check_queue(state, spec, partition, now)?;
    deadline::check(spec, limit_secs, now)?;
    check_nodes(state, partition, spec, notes)?;
    Ok(limit_secs)
}

fn known_key(state: &State, actor: &Actor, key: Option<&str>) -> Result<Option<JobId>, Refusal> {
    let Some(key) = key else { return Ok(None) };
    if key.is_empty() || key.len() > 128 {
        return Err(Refusal::invalid("a client key has 1 to 128 characters"));
    }
    let key = ClientKey {
        uid: actor.uid,
        key: key.into(),
    };
    Ok(state.client_keys.get(&key).copied())
}

fn check_user(config: &ClusterConfig, actor: &Actor) -> Result<(), Refusal> {
    if actor.uid == 0 && !config.allow_root_jobs {
        return Err(Refusal::denied(
            "jobs of root are not accepted here: submit as an ordinary user. (`allow_root_jobs = true` in gpuctld.toml changes that.)",
        ));
    }
    Ok(())
}

fn check_texts(spec: &JobSpec) -> Result<(), Refusal> {
    let launch = &spec.launch;
    let named = [
        ("job name", &spec.name, MAX_NAME_BYTES),
        ("partition", &spec.partition, MAX_NAME_BYTES),
        ("account", &spec.account, MAX_NAME_BYTES),
        ("QOS", &spec.qos, MAX_NAME_BYTES),
        ("comment", &spec.comment, MAX_TEXT_BYTES),
        ("working directory", &launch.work_dir, MAX_TEXT_BYTES),
        ("output pattern", &launch.stdout, MAX_TEXT_BYTES),
        ("error pattern", &launch.stderr, MAX_TEXT_BYTES),
        ("input pattern", &launch.stdin, MAX_TEXT_BYTES),
        ("command", &launch.command, MAX_TEXT_BYTES),
        ("submit host", &launch.submit_host, MAX_NAME_BYTES),
    ];
    for (what, text, most) in named {
        if text.len() > most {
            return Err(Refusal::invalid(format!(
                "the {what} has {} bytes; {most} are allowed",
                text.len()
            )));
        }
        if text.contains(['\0', '\n']) {
            return Err(Refusal::invalid(format!(
                "the {what} holds a line break or NUL byte"
            )));
        }
    }
    if !launch.work_dir.starts_with('/') {
        let text = format!(
            "the working directory {:?} is not an absolute path",
            launch.work_dir
        );
        return Err(Refusal::invalid(text));
    }
    if spec.tags.len() > 32 || spec.tags.iter().any(|tag| tag.is_empty() || tag.len() > 64) {
        return Err(Refusal::invalid(
            "a job may have 32 tags of 1 to 64 characters",
        ));
    }
    Ok(())
}

pub(super) fn check_counts(request: &gmodel::Request) -> Result<(), Refusal> {
    let per_node = request.ntasks_per_node.unwrap_or(1);
    if request.nodes_min == 0 || request.nodes_max < request.nodes_min {
        let (least, most) = (request.nodes_min, request.nodes_max);
        return Err(Refusal::invalid(format!(
            "--nodes {least}-{most}: ask for at least one, smaller first"
        ))
        .about(RefusalKind::NodeCount));
    }
    if request.nodes_max > MAX_NODES || request.ntasks > MAX_TASKS || per_node > MAX_TASKS {
        return Err(Refusal::invalid(format!(
            "a job may have {MAX_NODES} nodes and {MAX_TASKS} tasks at most"
        ))
        .about(if request.nodes_max > MAX_NODES {
            RefusalKind::NodeCount
        } else {
            RefusalKind::TaskCount
        }));
    }
    if request.ntasks == 0 || request.cpus_per_task == Some(0) || per_node == 0 {
        return Err(
            Refusal::invalid("tasks and CPUs are counted from 1").about(RefusalKind::TaskCount)
        );
    }
    Ok(())
}

fn check_numbers(state: &State, spec: &JobSpec) -> Result<(), Refusal> {
    check_counts(&spec.request)?;
    let config = &state.config;
    if let Some(array) = &spec.array
        && array.len() > config.max_array_tasks
    {
        return Err(Refusal::limit(format!(
            "the array has {} tasks; this cluster allows {}. Split it.",
            array.len(),
            config.max_array_tasks
        ))
        .about(RefusalKind::Array));
    }
    let records = state.jobs.len() + state.arrays.len();
    if records >= config.max_pending_jobs as usize {
        return Err(Refusal::limit(format!(
            "{records} jobs are in the queue, as many as this cluster allows. Try later, or \
             submit an array, which counts once."
        ))
        .about(RefusalKind::QueueFull));
    }
    Ok(())
}

/// `--ntasks 8 --ntasks-per-node 4` needs two nodes, whether they were asked for or not (sbatch(1)).
pub(super) fn spread(request: &mut gmodel::Request) {
    if let Some(per_node) = request.ntasks_per_node.filter(|_| request.ntasks > 1) {
        request.nodes_min = request.nodes_min.max(request.ntasks.div_ceil(per_node));
        request.nodes_max = request.nodes_max.max(request.nodes_min);
    }
}

/// Before a number of nodes was chosen for it.
fn as_asked(request: &Request) -> Request {
    let (nodes_min, nodes_max) = if request.nodes_any {
        (1, 1)
    } else {
        (request.nodes_min, request.nodes_max)
    };
    Request {
        nodes_min,
        nodes_max,
        ..request.clone()
    }
}

/// Tasks without a word about nodes get as few nodes as have room for them, dealt evenly: `--ntasks 64` where a node has 16 CPUs.
fn widen(state: &State, partition: &Partition, request: &mut Request) -> Result<(), Refusal> {
    if !request.nodes_any {
        return Ok(());
    }
    *request = as_asked(request);
    if let Some(nodes) = state
        .feasible
        .get(&(partition.name.clone(), request.clone()))
    {
        (request.nodes_min, request.nodes_max) = (*nodes, *nodes);
        return Ok(());
    }
    if members(state, partition).all(|node| node.link == gmodel::node::Link::Never) {
        return Ok(());
    }
    // What else is wrong with it is said when it is checked.
    let Ok(nodes) = allowed_nodes(request, partition, member_nodes(state, partition)) else {
        return Ok(());
    };
    let cpus = request
        .ntasks
        .saturating_mul(request.cpus_per_task.unwrap_or(1));
    let largest = nodes.iter().map(|node| node.cpus).max().unwrap_or(0).max(1);
    let most = (nodes.len() as u32).min(request.ntasks);
    let possible = |ntasks: u32, count: u32| {
        let wider = Request {
            ntasks,
            nodes_min: count,
            nodes_max: count,
            ..request.clone()
        };
        gsched::impossible(&wider, partition, &nodes).is_none()
    };
    // Where nodes are unlike it may take a few more than their largest would.
    let least = cpus.div_ceil(largest).max(1);
    match (least..=most)
        .take(MORE_NODES)
        .find(|count| possible(request.ntasks, *count))
    {
        Some(count) => (request.nodes_min, request.nodes_max) = (count, count),
        // It is the number of tasks that stands against it, and not what one of them needs.
        None if request.ntasks > 1 && most > 1 && possible(1, 1) => {
            return Err(Refusal::invalid(format!(
                "--ntasks {}: the {} nodes of partition {:?} have no room for so many tasks, dealt evenly. Ask for fewer.",
                request.ntasks,
                nodes.len(),
                partition.name
            ))
            .about(RefusalKind::NodeConfiguration));
        }
        None => {}
    }
    Ok(())
}

fn no_default(config: &ClusterConfig) -> Refusal {
    let names: Vec<_> = config.partitions.iter().map(|p| p.name.as_str()).collect();
    let text = if names.is_empty() {
        "no partition is configured".into()
    } else {
        format!(
            "no default partition is set; name one with -p: {}",
            names.join(", ")
        )
    };
    Refusal::invalid(text).about(RefusalKind::NoPartition)
}

pub(super) fn partition_or_refusal<'a>(
    config: &'a ClusterConfig,
    name: &str,
) -> Result<&'a Partition, Refusal> {
    config.partition(name).ok_or_else(|| {
        let names: Vec<_> = config.partitions.iter().map(|p| p.name.as_str()).collect();
        let hint = gmodel::suggest::did_you_mean(name, names.iter().copied());
        let text = format!(
            "no partition {name:?}.{hint} There are: {}.",
            names.join(", ")
        );
        Refusal::invalid(text)
            .about(RefusalKind::Partition)
            .naming(name)
    })
}

pub(super) fn takes_submissions(partition: &Partition) -> Result<(), Refusal> {
    match partition.state {
        PartitionState::Drain | PartitionState::Inactive => {
            let text = format!("partition {:?} takes no submissions now.", partition.name);
            Err(Refusal::unavailable(text).about(RefusalKind::PartitionClosed))
        }
        _ => Ok(()),
    }
}

fn check_admission(
    state: &State,
    partition: &Partition,
    actor: &Actor,
    spec: &JobSpec,
) -> Result<(), Refusal> {
    takes_submissions(partition)?;
    may_use(state, partition, &actor.user, &spec.account)?;
    if spec.nice < 0 && !actor.operator {
        let text = "only operators may use a negative --nice.";
        return Err(Refusal::denied(text));
    }
    check_private_tmp(partition, spec)?;
    check_size(partition, &spec.request)
}

/// How many nodes the partition gives to one job.
pub(super) fn check_size(partition: &Partition, request: &gmodel::Request) -> Result<(), Refusal> {
    match partition.max_nodes {
        Some(most) if request.nodes_min > most => {
            let text = format!(
                "--nodes {}: partition {:?} allows {most} a job.",
                request.nodes_min, partition.name
            );
            Err(Refusal::invalid(text).about(RefusalKind::NodeCount))
        }
        _ => Ok(()),
    }
}

/// Whether the partition is open to a user and an account.
pub(super) fn may_use(
    state: &State,
    partition: &Partition,
    user: &str,
    account: &str,
) -> Result<(), Refusal> {
    let name = &partition.name;
    let denied = |text, about| Err(Refusal::denied(text).about(about));
    if !partition.takes_account(&state.policy, account) {
        let allowed = partition.allow_accounts.join(", ");
        let text = format!(
            "partition {name:?} is for the accounts {allowed}; this job is charged to {account}. Choose with -A."
        );
        return denied(text, RefusalKind::Account);
    }
    if !partition.is_open_to_user(user) {
        return denied(
            format!("partition {name:?} is not open to {user}."),
            RefusalKind::PartitionAccess,
        );
    }
    Ok(())
}

/// Where each job has a /tmp of its own, nothing of the shared one is seen by it.
fn check_private_tmp(partition: &Partition, spec: &JobSpec) -> Result<(), Refusal> {
    let launch = &spec.launch;
    let paths = [
        ("working directory", &launch.work_dir),
        ("output file", &launch.stdout),
        ("error file", &launch.stderr),
        ("input file", &launch.stdin),
    ];
    let below = |path: &str, dir: &str| {
        path.strip_prefix(dir)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let hidden = |path: &str| {
        ["/tmp", "/dev/shm"]
            .into_iter()
            .find(|dir| below(path, dir))
    };
    if !partition.private_tmp {
        return Ok(());
    }
    match paths
        .iter()
        .find_map(|(what, path)| Some((what, path, hidden(path)?)))
    {
        Some((what, path, dir)) => Err(Refusal::invalid(format!(
            "the {what} {path} lies under {dir}, and jobs of partition {:?} have a {dir} of their \
             own that is gone with them. Submit from another directory.",
            partition.name
        ))),
        None => Ok(()),
    }
}

/// The longest a job of its QOS may ask for.
fn qos_limit_secs(state: &State, spec: &JobSpec) -> Option<u32> {
    state.policy.qos.get(&spec.qos)?.per_job.time_secs
}

fn time_limit(
    spec: &JobSpec,
    partition: &Partition,
    qos_most: Option<u32>,
    notes: &mut Vec<String>,
) -> Result<Option<u32>, Refusal> {
    let most = partition.max_time_secs;
    let shown = |secs: u32| squeue_time(u64::from(secs));
    match spec.time_limit_secs {
        Some(u32::MAX) if most.is_none() => Ok(None),
        Some(asked) => match most {
            Some(most) if asked > most => {
                let asked = if asked == u32::MAX {
                    "UNLIMITED".into()
                } else {
                    shown(asked)
                };
                Err(Refusal::invalid(format!(
                    "--time {asked}: partition {:?} allows at most {}.",
                    partition.name,
                    shown(most)
                ))
                .about(RefusalKind::TimeLimit))
            }
            _ => Ok(Some(asked)),
        },
        None => {
            let chosen = partition.default_time_secs.or(most);
            if chosen.is_none() {
                notes.push(format!(
                    "{NO_TIME} and partition {:?} has no default: the limit is {}",
                    partition.name,
                    shown(DEFAULT_LIMIT_SECS)
                ));
            }
            let chosen = chosen.unwrap_or(DEFAULT_LIMIT_SECS);
            Ok(Some(qos_most.map_or(chosen, |most| most.min(chosen))))
        }
    }
}

/// A word on the limit of a job that names a reservation and no time, or as much as a window of it or more: it ends with the window.
fn note_window(state: &State, spec: &JobSpec, limit_secs: Option<u32>, notes: &mut Vec<String>) {
    let reservation = spec
        .reservation
        .as_deref()
        .and_then(|name| state.policy.reservations.get(name));
    let is_cut = |one: &&Reservation| {
        !one.flex
            && spec
                .time_limit_secs
                .is_none_or(|asked| asked >= one.duration_secs)
    };
    let Some(reservation) = reservation.filter(is_cut) else {
        return;
    };
    // Of the time limit one word is said.
    notes.retain(|note| !note.starts_with(NO_TIME));
    let why = if spec.time_limit_secs.is_none() {
        "without --time"
    } else {
        "with so long a --time"
    };
    let at_most = squeue_time(u64::from(
        limit_secs.map_or(reservation.duration_secs, |limit| {
            limit.min(reservation.duration_secs)
        }),
    ));
    notes.push(format!(
        "--reservation {}: {why} the job gets what is left of it when it starts, {at_most} at most",
        reservation.name
    ));
}

/// Refuses what no set of the partition's nodes could ever run, running or not.
pub(super) fn check_nodes(
    state: &State,
    partition: &Partition,
    spec: &JobSpec,
    notes: &mut Vec<String>,
) -> Result<(), Refusal> {
    let request = &spec.request;
    // What a node has is known from its first hello on.
    if members(state, partition).all(|node| node.link == gmodel::node::Link::Never) {
        notes.push(format!(
            "no node of partition {:?} has reported yet: the job waits",
            partition.name
        ));
        return Ok(());
    }
    notes.extend(
        request
            .exclude
            .as_ref()
            .and_then(|list| stranger(state, list)),
    );
    super::reserved_nodes::check(state, partition, spec, || member_nodes(state, partition))?;
    if state
        .feasible
        .contains_key(&(spec.partition.clone(), as_asked(request)))
    {
        return Ok(());
    }
    if fits_members(state, partition, request) {
        return Ok(());
    }
    let Some(text) = request
        .constraint
        .as_deref()
        .filter(|text| Constraint::has_brackets(text))
    else {
        return could_run(state, partition, request);
    };
    // Of several alternatives one is enough.
    let mut first = None;
    for one in Constraint::alternatives(text)
        .map_err(|error| Refusal::invalid(error.to_string()).about(RefusalKind::Feature))?
    {
        let request = Request {
            constraint: Some(one.to_string()),
            ..request.clone()
        };
        match could_run(state, partition, &request) {
            Ok(()) => return Ok(()),
            Err(refusal) => first = first.or(Some(refusal)),
        }
    }
    let why = first.map_or(String::new(), |refusal| refusal.text);
    Err(Refusal::invalid(format!(
        "--constraint {text}: no part of the brackets would do for all of its nodes. {why}"
    ))
    .about(RefusalKind::NodeConfiguration))
}

/// Whether the nodes that a request leaves could run it if they did nothing else.
fn could_run(state: &State, partition: &Partition, request: &Request) -> Result<(), Refusal> {
    let allowed = allowed_nodes(request, partition, member_nodes(state, partition))?;
    let asked = request
        .nodes_min
        .max(request.nodelist.as_ref().map_or(0, |l| l.len() as u32));
    if asked as usize > allowed.len() {
        let by_tasks = request
            .ntasks_per_node
            .filter(|each| request.ntasks > 1 && request.ntasks.div_ceil(*each) == asked);
        let why = by_tasks.map(|each| {
            format!(
                ", as many as --ntasks {} at --ntasks-per-node {each} take",
                request.ntasks
            )
        });
        return Err(Refusal::invalid(format!(
            "--nodes {asked}{}: partition {:?} has {} such nodes.",
            why.unwrap_or_default(),
            partition.name,
            allowed.len()
        ))
        .about(RefusalKind::NodeConfiguration));
    }
    if let Some(text) = gsched::impossible(request, partition, &allowed) {
        return Err(Refusal::invalid(text).about(RefusalKind::NodeConfiguration));
    }
    enough_below_switches(state, partition, request, &allowed)
}

/// Refuses a job that would wait for ever for so few switches.
fn enough_below_switches(
    state: &State,
    partition: &Partition,
    request: &Request,
    allowed: &[SchedNode],
) -> Result<(), Refusal> {
    let (Some(switches), topology) = (request.switches, &state.config.scheduler.topology) else {
        return Ok(());
    };
    let nodes: Vec<&SchedNode> = allowed.iter().collect();
    let Some(few) = gsched::cluster::network::too_few_below(topology, request, partition, &nodes)
    else {
        return Ok(());
    };
    let asked = switches.most;
    let which = if asked == 1 {
        "any leaf switch".to_owned()
    } else {
        format!("any {asked} leaf switches together")
    };
    let advice = few.switches.map_or("Say".to_owned(), |enough| {
        format!("Try --switches {enough}, or say")
    });
    Err(Refusal::invalid(format!(
        "--switches {asked}: below {which} partition {:?} has {} such nodes at most, and {} are needed. {advice} how long to wait for it: \
         --switches {asked}@30:00.",
        partition.name, few.most, few.needed
    ))
    .about(RefusalKind::NodeConfiguration))
}

/// Whether the nodes as they are remembered have room for a request that asks for none by name. What they lack is said of the
/// nodes as they are: a memo refuses nothing.
fn fits_members(state: &State, partition: &Partition, request: &Request) -> bool {
    let names_some = request.nodelist.is_some()
        || request.exclude.is_some()
        || request.constraint.is_some()
        || request.switches.is_some();
    let all = || {
        Arc::new(
            state
                .config
                .partitions
                .iter()
                .map(|one| (one.name.clone(), member_nodes(state, one)))
                .collect(),
        )
    };
    let known = (!names_some)
        .then(|| state.members.get_or_init(all).get(&partition.name))
        .flatten();
    known.is_some_and(|nodes| {
        request.nodes_min as usize <= nodes.len()
            && gsched::impossible(request, partition, nodes).is_none()
    })
}

/// Nodes are others, or in other partitions.
pub(super) fn forget_what_fits(state: &mut State) {
    state.feasible = Arc::default();
    state.members = OnceLock::new();
}

fn members<'a>(state: &'a State, partition: &'a Partition) -> impl Iterator<Item = &'a Node> {
    let nodes = state
        .nodes
        .values()
        .filter(|node| node.role == gmodel::node::Role::Compute);
    nodes.filter(|node| partition.holds(&node.name, &node.inventory.features))
}

fn member_nodes(state: &State, partition: &Partition) -> Vec<SchedNode> {
    members(state, partition)
        .map(|node| sched_node(state, node, Timestamp(i64::MAX)))
        .collect()
}

/// A note on a name that no node has: scripts outlive nodes, and a slip of the pen excludes nothing.
fn stranger(state: &State, exclude: &gmodel::hostlist::Hostlist) -> Option<String> {
    let name = exclude
        .iter()
        .find(|name| state.nodes.values().all(|node| node.name != *name))?;
    let hint =
        gmodel::suggest::did_you_mean(name, state.nodes.values().map(|node| node.name.as_str()));
    Some(format!("--exclude: there is no node {name:?}.{hint}"))
}

/// Those of a partition that the request does not rule out by name or feature.
pub(super) fn allowed_nodes(
    request: &Request,
    partition: &Partition,
    nodes: Vec<SchedNode>,
) -> Result<Vec<SchedNode>, Refusal> {
    for name in request.nodelist.iter().flat_map(|list| list.iter()) {
        if !nodes.iter().any(|node| node.name == name) {
            if matches!(&partition.nodes, NodeSelection::Names(names) if names.contains(name)) {
                return Err(Refusal::invalid(format!(
                    "--nodelist: {name} belongs to partition {:?} by name, and no such machine has joined yet: an operator makes a token for it with \
                     `gadm token node --name {name}`.",
                    partition.name
                )));
            }
            let names = nodes.iter().map(|node| node.name.as_str());
            let hint = gmodel::suggest::did_you_mean(name, names);
            return Err(Refusal::invalid(format!(
                "--nodelist: {name:?} is not a node of partition {:?}.{hint}",
                partition.name
            ))
            .about(RefusalKind::NodeName));
        }
        if request
            .exclude
            .as_ref()
            .is_some_and(|exclude| exclude.contains(name))
        {
            return Err(Refusal::invalid(format!(
                "--nodelist and --exclude both name {name}. Take it out of one of them."
            ))
            .about(RefusalKind::NodeName));
        }
    }
    let mut allowed = nodes;
    if let Some(text) = &request.constraint {
        let wanted = Constraint::alternatives(text)
            .map_err(|e| Refusal::invalid(e.to_string()).about(RefusalKind::Feature))?;
        let known: BTreeSet<&str> = allowed
            .iter()
            .flat_map(|n| n.features.iter().map(String::as_str))
            .collect();
        let missing = wanted
            .iter()
            .flat_map(Constraint::features)
            .find(|f| !known.contains(f))
            .map(str::to_owned);
        let known: Vec<String> = known.into_iter().map(str::to_owned).collect();
        // Whether one of several alternatives has enough of them is asked of each by itself.
        allowed.retain(|n| {
            wanted
                .iter()
                .any(|one| one.eval(&n.features.iter().map(String::as_str).collect()))
        });
        if let Some(missing) = missing.filter(|_| allowed.is_empty()) {
            return Err(Refusal::invalid(format!(
                "--constraint {text}: no node of partition {:?} has the feature {missing:?} (there \
                 are: {}).",
                partition.name,
                if known.is_empty() {
                    "none".into()
                } else {
                    known.join(", ")
                }
            ))
            .about(RefusalKind::Feature));
        }
    }
    if let Some(exclude) = &request.exclude {
        allowed.retain(|node| !exclude.contains(&node.name));
    }
    if allowed.is_empty() {
        return Err(Refusal::invalid(format!(
            "no node of partition {:?} is left after --constraint, --exclude and --nodelist.",
            partition.name
        ))
        .about(RefusalKind::NodeConfiguration));
    }
    Ok(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_per_node_decide_how_many_nodes_it_takes() {
        let nodes = |ntasks, per_node, asked| {
            let mut request = gmodel::Request {
                ntasks,
                ntasks_per_node: per_node,
                nodes_min: asked,
                nodes_max: asked,
                ..gmodel::Request::default()
            };
            spread(&mut request);
            (request.nodes_min, request.nodes_max)
        };
        assert_eq!(nodes(8, Some(4), 1), (2, 2));
        assert_eq!(nodes(9, Some(4), 1), (3, 3));
        assert_eq!(nodes(8, Some(4), 4), (4, 4));
        assert_eq!(nodes(8, None, 1), (1, 1));
        assert_eq!(nodes(1, Some(4), 2), (2, 2));
    }

    #[test]
    fn with_a_private_tmp_nothing_of_the_job_may_lie_in_the_shared_one() {
        let partition = Partition {
            name: "p".into(),
            private_tmp: true,
            ..Partition::default()
        };
        let refused = |work_dir: &str, stdout: &str| {
            let mut spec = JobSpec::default();
            spec.launch.work_dir = work_dir.into();
            spec.launch.stdout = stdout.into();
            check_private_tmp(&partition, &spec)
                .err()
                .map(|refusal| refusal.text)
        };
        assert!(
            refused("/tmp", "")
                .unwrap()
                .starts_with("the working directory /tmp lies under /tmp")
        );
        assert!(
            refused("/home/a", "/dev/shm/x")
                .unwrap()
                .contains("output file /dev/shm/x")
        );
        assert_eq!(refused("/home/a", "/tmpfs/x"), None);
        let shared = Partition {
            private_tmp: false,
            ..partition.clone()
        };
        let mut spec = JobSpec::default();
        spec.launch.work_dir = "/tmp/w".into();
        assert!(check_private_tmp(&shared, &spec).is_ok());
    }
}
