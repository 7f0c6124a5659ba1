//! The words of a story's line, and what they stand for: requests, nodes, policies, phases of runs.

use crate::ctl::*;
use gmodel::array_spec::ArraySpec;
use gmodel::config::{
    ClusterConfig, GpuSharing, LostNodePolicy, NodeSelection, Partition, PartitionState,
};
use gmodel::gpu_request::GpuRequest;
use gmodel::hostlist::Hostlist;
use gmodel::idle::{IdleAction, IdlePolicy};
use gmodel::job::{GpuScope, JobSpec, MemRequest};
use gmodel::job_key::{KEYS, KeyForm};
use gmodel::node::{GpuInfo, Inventory};
use gmodel::partition::MadePartition;
use gmodel::policy::{
    Account, AccountUser, Backfill, Budget, BudgetKind, GpuAmounts, JobLimits, Limits, Period,
    PreemptMode, Qos, Repeat, Reservation, ReservedPart,
};
use gmodel::request_change::RequestChange;
use gmodel::run::{EndCause, LaunchFailureSubject, RunEnd, RunPhase};
use gmodel::{ExitCode, Timestamp, TokenId, UserRef, UserToken};

/// A line: verb, plain words, and `key=value` words.
pub(super) struct Words<'a> {
    pub(super) verb: &'a str,
    pub(super) args: Vec<&'a str>,
    pub(super) options: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    pub(super) fn of(line: &'a str) -> Self {
        let mut words = line.split_whitespace();
        let verb = words.next().unwrap_or("");
        let (options, args): (Vec<_>, Vec<_>) = words.partition(|word| word.contains('='));
        Self {
            verb,
            args,
            options: options
                .iter()
                .filter_map(|word| word.split_once('='))
                .collect(),
        }
    }
    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        self.options
            .iter()
            .find(|(known, _)| *known == key)
            .map(|(_, value)| *value)
    }
    pub(super) fn has(&self, word: &str) -> bool {
        self.args.contains(&word)
    }
    pub(super) fn parse<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.get(key)
            .map(|text| text.parse().unwrap_or_else(|_| panic!("{key}={text}")))
    }
}

/// `8`, or `h100:4,gpu:6`: whole GPUs.
pub(super) fn amounts(text: &str) -> GpuAmounts {
    let each = text.split(',').map(|part| {
        let (kind, count) = part.split_once(':').unwrap_or(("gpu", part));
        (kind.to_owned(), count.parse::<u64>().unwrap() * 1000)
    });
    GpuAmounts(each.collect())
}

pub(super) fn names<T: FromIterator<String>>(text: Option<&str>) -> T {
    text.into_iter()
        .flat_map(|text| text.split(','))
        .map(str::to_owned)
        .collect()
}

/// `jobs= queue= gpus= tasks= minute=`, each with the prefix.
pub(super) fn limits(words: &Words, prefix: &str) -> Limits {
    let get = |key: &str| words.get(&format!("{prefix}{key}"));
    let number = |key: &str| get(key).map(|text| text.parse().unwrap());
    Limits {
        running_jobs: number("jobs"),
        submitted_jobs: number("queue"),
        gpus: get("gpus").map(amounts),
        array_tasks: number("tasks"),
        submits_per_minute: number("minute"),
        ..Limits::default()
    }
}

/// `budget=` and `cap=`: GPU-hours of a day.
fn budgets(words: &Words) -> Vec<Budget> {
    let kinds = [("budget", BudgetKind::Guaranteed), ("cap", BudgetKind::Cap)];
    let each = kinds.into_iter().filter_map(|(key, kind)| {
        Some(Budget {
            kind,
            gpu_hours: words.parse(key)?,
            period: Period::Day,
            gpu_type: None,
        })
    });
    each.collect()
}

/// `account vision parent=lab users=alice,bob guaranteed=8 ...`, `user vision alice default queue=4`,
/// `made debug nodes=n1 ...` and `made main set nodes=n1 ...` (partitions), `qos high gpus=4 ...`, `reservation r nodes=n1 at=60 for=600 ...`; `gone` removes.
pub(super) fn policy_change(words: &Words, config: &ClusterConfig, now: Timestamp) -> PolicyChange {
    let name = words.args[0].to_owned();
    match (words.verb, words.has("gone")) {
        ("account", true) => PolicyChange::AccountRemoved { name },
        ("account", false) => {
            let users: Vec<String> = names(words.get("users"));
            let account = Account {
                parent: words.get("parent").map(str::to_owned),
                users: users
                    .into_iter()
                    .map(|user| (user, AccountUser::default()))
                    .collect(),
                coordinators: names(words.get("coordinators")),
                guaranteed: words.get("guaranteed").map(amounts),
                limit: words.get("limit").map(amounts),
                lend_limit: words.get("lend").map(amounts),
                budgets: budgets(words),
                allow_qos: names(words.get("allow_qos")),
                default_qos: words.get("default_qos").map(str::to_owned),
                group: limits(words, ""),
                per_user: limits(words, "user_"),
                closed: words.has("closed"),
                name,
                ..Account::default()
            };
            PolicyChange::Account {
                account: Box::new(account),
            }
        }
        ("user", true) => PolicyChange::UserRemoved {
            account: name,
            user: words.args[1].into(),
        },
        ("user", false) => {
            let is_default = words.has("default");
            let entry = AccountUser {
                shares: 1,
                limits: limits(words, ""),
                is_default,
            };
            PolicyChange::User {
                account: name,
                user: words.args[1].into(),
                entry,
            }
        }
        ("made", true) => PolicyChange::PartitionRemoved { name },
        ("made", false) => PolicyChange::Partition {
            made: Box::new(MadePartition {
                partition: partition(words),
                file: words.has("set").then(|| {
                    let file = config.file_partition(words.args[0]);
                    Box::new(file.cloned().unwrap_or_default())
                }),
                by: "root".to_owned(),
            }),
        },
        ("qos", true) => PolicyChange::QosRemoved { name },
        ("qos", false) => {
            let qos = Qos {
                per_user: limits(words, "user_"),
                group: limits(words, ""),
                per_job: JobLimits {
                    time_secs: words.parse("max_time"),
                    gpus: words.get("max_gpus").map(amounts),
                    ..JobLimits::default()
                },
                preempt: names(words.get("preempt")),
                usage_factor_milli: words.parse("usage_factor").unwrap_or(1000),
                preempt_mode: words.has("suspend").then_some(PreemptMode::Suspend),
                headroom: words.get("headroom").map(amounts),
                outside_quota: words.has("outside_quota"),
                min_run_secs: words.parse("min_run").unwrap_or(0),
                idle: words.get("idle").map(|_| idle_policy(words)),
                name,
                ..Qos::default()
            };
            PolicyChange::Qos { qos: Box::new(qos) }
        }
        (_, true) => PolicyChange::ReservationRemoved {
            name,
            force: words.has("force"),
        },
        (_, false) => {
            let what = match (words.get("nodes"), words.parse("count"), words.get("gpus")) {
                (Some(list), ..) => ReservedPart::Nodes(Hostlist::parse(list).unwrap()),
                (_, Some(count), _) => ReservedPart::NodeCount(count),
                (_, _, Some(text)) => ReservedPart::Gpus(amounts(text)),
                _ => ReservedPart::AllNodes,
            };
            let reservation = Reservation {
                start: now.plus_secs(words.parse("at").unwrap_or(0)),
                duration_secs: words.parse("for").unwrap_or(600),
                repeat: [
                    ("hourly", Repeat::Hourly),
                    ("daily", Repeat::Daily),
                    ("weekday", Repeat::Weekday),
                    ("weekly", Repeat::Weekly),
                ]
                .into_iter()
                .find(|(word, _)| words.has(word))
                .map_or(Repeat::Once, |(_, repeat)| repeat),
                what,
                users: names(words.get("users")),
                accounts: names(words.get("accounts")),
                partition: words.get("partition").map(str::to_owned),
                features: words.get("features").unwrap_or_default().to_owned(),
                ignore_running: words.has("ignore_running"),
                maintenance: words.has("maintenance"),
                flex: words.has("flex"),
                magnetic: words.has("magnetic"),
                overlap: words.has("overlap"),
                purge_idle_secs: words.parse("purge"),
                static_nodes: words.has("static"),
                replace: words.has("replace"),
                replace_down: words.has("replace_down"),
                release_jobs: words.has("release_jobs"),
                skip_until: words.parse("skip").map(|secs| now.plus_secs(secs)),
                name,
                ..Reservation::default()
            };
            PolicyChange::Reservation {
                reservation: Box::new(reservation),
            }
        }
    }
}

/// Alice is in `staff`, bob in `course`; of the others nothing is known.
pub(super) fn actor(name: &str) -> Actor {
    let uid = match name {
        "root" => 0,
        "alice" => 1001,
        "bob" => 1002,
        _ => 1003,
    };
    Actor {
        user: name.into(),
        uid,
        gid: uid,
        operator: uid == 0,
        via: None,
        groups: match name {
            "alice" => [("staff".into(), true), ("course".into(), false)].into(),
            "bob" => [("staff".into(), false), ("course".into(), true)].into(),
            _ => Default::default(),
        },
        token: None,
    }
}

/// `make-token 7 for=alice scope=read,submit hours=2 jobs=5 account=a partition=p days=30`.
pub(super) fn user_token(words: &Words, now: Timestamp) -> UserToken {
    let owner = actor(words.get("for").or(words.get("user")).unwrap_or("alice"));
    let scopes: Vec<String> = names(Some(words.get("scope").unwrap_or("read,submit")));
    UserToken {
        id: TokenId(words.args[0].parse().unwrap()),
        user: UserRef {
            name: owner.user,
            uid: owner.uid,
            gid: owner.gid,
        },
        hash: "00".repeat(32),
        scopes: scopes.iter().map(|scope| scope.parse().unwrap()).collect(),
        accounts: names(words.get("account")),
        partitions: names(words.get("partition")),
        expires: now.plus_secs(86_400 * words.parse::<i64>("days").unwrap_or(30)),
        gpu_secs: words.parse::<u64>("hours").map(|hours| hours * 3600),
        jobs: words.parse("jobs").unwrap_or(1000),
        note: String::new(),
        made: now,
        made_by: String::new(),
        known: true,
        revoked: None,
        used_on: None,
        gpu_used: 0,
    }
}

pub(super) fn target(word: &str) -> Option<Target> {
    match word.split_once('_') {
        Some((array, tasks)) if tasks.starts_with('[') => Some(Target::Tasks {
            array: array.parse().ok()?,
            indices: tasks.parse().ok()?,
        }),
        Some((array, index)) => Some(Target::Task {
            array: array.parse().ok()?,
            index: index.parse().ok()?,
        }),
        None => Some(Target::Job(word.parse().ok()?)),
    }
}

pub(super) fn bytes(text: &str) -> u64 {
    gmodel::size::parse_bytes(text).unwrap()
}

pub(super) fn set_config(config: &mut ClusterConfig, words: &Words) {
    if let Some(lost) = words.get("lost_node") {
        config.lost_node = if lost == "wait" {
            LostNodePolicy::Wait
        } else {
            LostNodePolicy::Requeue
        };
    }
    config.fence_program = words
        .get("fence")
        .map_or(config.fence_program, |word| word == "yes");
    config.kill_invalid_depend = words
        .get("kill")
        .map_or(config.kill_invalid_depend, |word| word == "yes");
    config.idle_program = words
        .get("idle_program")
        .map_or(config.idle_program, |word| word == "yes");
    config.max_array_tasks = words.parse("max_array").unwrap_or(config.max_array_tasks);
    if let Some(lists) = words.get("switches") {
        let switch = |list: &str| gmodel::policy::Switch {
            nodes: Hostlist::parse(list).ok(),
            ..Default::default()
        };
        config.scheduler.topology.switches = lists.split('/').map(switch).collect();
    }
    config.scheduler.backfill = match words.get("backfill") {
        Some("off") => Backfill::Off,
        Some("all") => Backfill::All,
        Some(first) => Backfill::First(first.parse().unwrap()),
        None => config.scheduler.backfill,
    };
    config
        .operators
        .extend(names::<Vec<_>>(words.get("operators")));
    config.min_job_age_secs = words.parse("age").unwrap_or(config.min_job_age_secs);
}

pub(super) fn set_partition(config: &mut ClusterConfig, words: &Words) {
    let name = words.args[0];
    config.partitions.retain(|known| known.name != name);
    for known in &mut config.partitions {
        known.is_default &= !words.has("default");
    }
    config.partitions.push(partition(words));
}

fn partition(words: &Words) -> Partition {
    Partition {
        name: words.args[0].into(),
        is_default: words.has("default"),
        nodes: words.get("nodes").map_or(NodeSelection::All, |list| {
            NodeSelection::Names(Hostlist::parse(list).unwrap())
        }),
        state: match words.get("state") {
            Some("down") => PartitionState::Down,
            Some("drain") => PartitionState::Drain,
            _ => PartitionState::Up,
        },
        max_time_secs: words.parse("max_time"),
        over_time_secs: words.parse("over_time").unwrap_or(0),
        default_time_secs: words.parse("default_time"),
        allow_accounts: names(words.get("accounts")),
        allow_users: words.get("users").map_or(Vec::new(), |list| {
            list.split(',').map(str::to_owned).collect()
        }),
        allow_groups: names(words.get("groups")),
        requeue: words.get("requeue") != Some("no"),
        priority_tier: words.parse("tier").unwrap_or(1),
        headroom: words.get("headroom").map(amounts),
        group: limits(words, ""),
        preempt_mode: if words.get("preempt") == Some("off") {
            PreemptMode::Off
        } else {
            PreemptMode::Requeue
        },
        gpu_sharing: match words.get("sharing") {
            Some("mps") => GpuSharing::Mps,
            Some("uncapped") => GpuSharing::Uncapped,
            _ => GpuSharing::Off,
        },
        idle: words.get("idle").map(|_| idle_policy(words)),
        ..Partition::default()
    }
}

/// `idle=requeue warn=100 act=300 grace=50 percent=100`
fn idle_policy(words: &Words) -> IdlePolicy {
    let word = words.get("idle").unwrap_or("off");
    let action = IdleAction::of_word(word).unwrap();
    let number = |key: &str, usual: u32| words.parse(key).unwrap_or(usual);
    IdlePolicy {
        action,
        warn_after_secs: number("warn", 100),
        act_after_secs: number("act", 300),
        grace_secs: number("grace", 50),
        gpus_percent: number("percent", 100),
        max_requeues: number("requeues", 2),
    }
}

pub(super) fn inventory(name: &str, words: &Words) -> Inventory {
    let mut inventory = Inventory {
        cpus: 64,
        mem_bytes: bytes("512G"),
        ..Inventory::default()
    };
    for word in &words.args[1..] {
        if let Some(cpus) = word.strip_suffix('c') {
            inventory.cpus = cpus.parse().unwrap();
        } else if let Some((gpu_type, count)) = word.split_once(':') {
            let count: u32 = count.parse().unwrap();
            inventory.gpus = (0..count)
                .map(|index| GpuInfo {
                    uuid: format!("GPU-{name}-{index}"),
                    gpu_type: gpu_type.into(),
                    index,
                    minor: index,
                    memory_mib: 81_920,
                    mps: words.has("mps"),
                    ..GpuInfo::default()
                })
                .collect();
        } else if word.ends_with('G') {
            inventory.mem_bytes = bytes(word);
        }
    }
    // One GPU more, cut into so many slices: `cut=7`.
    if let Some(slices) = words.parse::<u8>("cut") {
        let divided = GpuInfo {
            uuid: format!("GPU-{name}-cut"),
            gpu_type: "h100".into(),
            index: 90,
            minor: 90,
            divided: true,
            ..GpuInfo::default()
        };
        let slice = |at: u8| {
            let slice = gmodel::node::MigSlice {
                gpu: divided.uuid.clone(),
                profile: "1g.10gb".into(),
                placement: at,
                compute_slices: 1,
                memory_slices: 1,
            };
            GpuInfo {
                uuid: format!("MIG-{name}-{at}"),
                memory_mib: 10_240,
                slice: Some(slice),
                divided: false,
                ..divided.clone()
            }
        };
        inventory
            .gpus
            .extend(std::iter::once(divided.clone()).chain((0..slices).map(slice)));
    }
    inventory.nvlink_domain = words.get("domain").unwrap_or_default().into();
    if let Some(features) = words.get("feature") {
        inventory.features = features.split(',').map(str::to_owned).collect();
    }
    inventory
}

/// What `submit` takes: `user= gpus= gpn= nodes= ntasks= cpus= mem= time= array= begin= ...`
pub(super) fn spec(words: &Words, now: Timestamp) -> JobSpec {
    let mut spec = JobSpec {
        name: "job".into(),
        ..JobSpec::default()
    };
    spec.launch.work_dir = "/home".into();
    spec.partition = words.get("partition").unwrap_or("").into();
    spec.time_limit_secs = words.parse("time");
    spec.array = words
        .get("array")
        .map(|text| ArraySpec::parse(text).unwrap());
    spec.begin = words.parse::<i64>("begin").map(|secs| now.plus_secs(secs));
    spec.hold = words.has("held");
    spec.allocation = words.has("allocation");
    spec.no_kill = words.has("no_kill");
    spec.requeue = words.get("requeue").map(|word| word == "yes");
    spec.nice = words.parse("nice").unwrap_or(0);
    spec.name = words.get("name").unwrap_or("job").into();
    spec.dependency = words.get("dep").map(|text| text.parse().unwrap());
    spec.kill_on_invalid_dep = words.get("kill").map(|word| word == "yes");
    spec.deadline = words
        .parse::<i64>("deadline")
        .map(|secs| now.plus_secs(secs));
    spec.time_min_secs = words.parse("time_min");
    spec.account = words.get("account").unwrap_or("").into();
    spec.qos = words.get("qos").unwrap_or("").into();
    spec.reservation = words.get("reservation").map(str::to_owned);
    spec.licences = words.get("licences").map_or_else(Default::default, |text| {
        gmodel::licence::parse(text).unwrap()
    });
    spec.checkpoint = words.get("checkpoint").map(|text| text.parse().unwrap());
    spec.priority = words.parse("priority");
    spec.borrow = words.get("borrow").map(|word| word == "yes");
    let request = &mut spec.request;
    request.nodes_min = words.parse("nodes").unwrap_or(1);
    request.nodes_max = request.nodes_min;
    request.ntasks = words.parse("ntasks").unwrap_or(1);
    request.ntasks_per_node = words.parse("each");
    request.nodes_any = words.has("any");
    request.cpus_per_task = words.parse("cpus");
    request.mem = words
        .get("mem")
        .map_or(MemRequest::Default, |text| MemRequest::PerNode(bytes(text)));
    let gpus = words
        .get("gpus")
        .or_else(|| words.get("gpn"))
        .or_else(|| words.get("gpt"));
    request.gpus = gpus.map(|text| GpuRequest::parse(text).unwrap());
    if words.get("gpn").is_some() {
        request.gpu_scope = GpuScope::Node;
    }
    if words.get("gpt").is_some() {
        request.gpu_scope = GpuScope::Task;
    }
    request.exclusive = words.has("exclusive");
    request.nodelist = words
        .get("nodelist")
        .map(|text| Hostlist::parse(text).unwrap());
    request.exclude = words
        .get("exclude")
        .map(|text| Hostlist::parse(text).unwrap());
    request.constraint = words.get("constraint").map(str::to_owned);
    request.switches = words.get("switches").map(|text| {
        let (most, wait) = text
            .split_once('@')
            .map_or((text, None), |(most, wait)| (most, wait.parse().ok()));
        gmodel::job::Switches {
            most: most.parse().unwrap(),
            wait_secs: wait,
        }
    });
    spec
}

fn request_keys() -> impl Iterator<Item = &'static str> {
    let parts = KEYS.iter().filter(|key| key.form == KeyForm::RequestPart);
    parts.map(|key| key.key)
}

/// What `update` takes of the request: the names of the API.
pub(super) fn request_change(words: &Words) -> RequestChange {
    let mut change = RequestChange::default();
    for (key, text) in words
        .options
        .iter()
        .filter(|(key, _)| request_keys().any(|part| part == *key))
    {
        change
            .set(key, if *text == "none" { "" } else { text })
            .unwrap();
    }
    change
}

/// `exits` with a code, `clean`, or the name of a cause, which ends and cleans at once.
pub(super) fn phase(verb: &str, arg: &str, now: Timestamp) -> RunPhase {
    let exit = ExitCode::exited(arg.parse().unwrap_or(0));
    let caused = |cause| {
        let text = arg.replace('_', " ");
        RunPhase::Clean(
            RunEnd {
                cause,
                text,
                ended: Some(now),
                ..RunEnd::default()
            }
            .into(),
        )
    };
    match verb {
        "accepted" => RunPhase::Accepted,
        "ready" => RunPhase::Ready,
        "running" => RunPhase::Running { started: now },
        "exits" => RunPhase::Ended(
            RunEnd {
                exit,
                ended: Some(now),
                ..RunEnd::default()
            }
            .into(),
        ),
        "clean" => RunPhase::Clean(
            RunEnd {
                exit,
                ended: Some(now),
                ..RunEnd::default()
            }
            .into(),
        ),
        // Over before it was told to run.
        "ran" => RunPhase::Clean(
            RunEnd {
                exit,
                started: Some(now),
                ended: Some(now),
                ..RunEnd::default()
            }
            .into(),
        ),
        "stopped" => caused(EndCause::Stopped),
        "timed_out" => caused(EndCause::TimeLimit),
        "stops" => RunPhase::Ended(
            RunEnd {
                cause: EndCause::Stopped,
                exit: ExitCode::killed(15),
                ..RunEnd::default()
            }
            .into(),
        ),
        // After a mark, which it had been asked for.
        "answers" => RunPhase::Ended(
            RunEnd {
                cause: EndCause::Stopped,
                answered: true,
                ..RunEnd::default()
            }
            .into(),
        ),
        "user_unknown" => RunPhase::Clean(
            RunEnd {
                cause: EndCause::LaunchNode,
                text: "no such user".into(),
                about_user: true,
                ..RunEnd::default()
            }
            .into(),
        ),
        "gpu_at_fault" => {
            let about = LaunchFailureSubject::Gpu { uuid: arg.into() };
            RunPhase::Clean(
                RunEnd {
                    cause: EndCause::LaunchNode,
                    text: format!("{arg} is sick"),
                    about,
                    ..RunEnd::default()
                }
                .into(),
            )
        }
        "choice_refused" => {
            let about = LaunchFailureSubject::Choice { name: arg.into() };
            RunPhase::Clean(
                RunEnd {
                    cause: EndCause::LaunchNode,
                    text: format!("no {arg} here"),
                    about,
                    ..RunEnd::default()
                }
                .into(),
            )
        }
        "short" => {
            let text = "too many open files".into();
            RunPhase::Clean(
                RunEnd {
                    cause: EndCause::LaunchNode,
                    text,
                    about: LaunchFailureSubject::Shortage,
                    ..RunEnd::default()
                }
                .into(),
            )
        }
        cause => caused(serde_json::from_value(serde_json::Value::String(cause.into())).unwrap()),
    }
}
