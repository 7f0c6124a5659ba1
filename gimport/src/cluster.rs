//! Settings of the whole cluster: which key of slurm.conf is which of gpuctld.toml, of each partition, of each node's gpud.toml.

use crate::advice::{self, advice_for};
use crate::conf::items;
use crate::conf_text::ConfWord;
use crate::draft::{bare, quoted};
use crate::report::Fate;
use crate::site_draft::{SiteDraft, Verdict};
use crate::tres;
use gmodel::duration::TimeLimit;
use gmodel::gpu_amounts::milli_text;
use gmodel::policy::Account;
use gmodel::suggest::did_you_mean;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

type Decision = fn(&mut SiteDraft, &ConfWord) -> Verdict;

/// Keys with a decision, in small letters.
const DECISIONS: [(&str, Decision); 53] = [
    ("accountingstorageenforce", enforce),
    ("clustername", name),
    ("controladdr", controller),
    ("controlmachine", controller),
    ("defcpupergpu", |draft, word| {
        of_partitions(draft, word, "cpus_per_gpu")
    }),
    ("defmempercpu", |draft, word| {
        of_partitions(draft, word, "mem_per_cpu")
    }),
    ("defmempergpu", |draft, word| {
        of_partitions(draft, word, "mem_per_gpu")
    }),
    ("disablerootjobs", |draft, word| {
        let allows = word.value.eq_ignore_ascii_case("no");
        own(draft, word, "allow_root_jobs", allows.to_string())
    }),
    ("epilog", |draft, word| program(draft, word, "epilog")),
    ("fairsharedampeningfactor", |_, _| {
        told("shares decide alone; gadm share prints the arithmetic")
    }),
    ("firstjobid", |_, _| {
        told("gpuctld import-jobs begins above the jobs it brings; --first-id says where")
    }),
    ("grestypes", gres_types),
    ("jobcontainertype", |draft, word| {
        match word.value.contains("tmpfs") {
            true => every_partition(draft, word, "private_tmp", "true"),
            false => {
                meaningless("jobs have namespaces only where private_tmp or a container says so")
            }
        }
    }),
    ("jobdefaults", job_defaults),
    ("jobrequeue", |draft, word| {
        let value = if word.value == "0" { "false" } else { "true" };
        every_partition(draft, word, "requeue", value)
    }),
    ("killwait", |draft, word| {
        count(draft, word, "kill_grace_secs", 0..=3600)
    }),
    ("launchparameters", |draft, word| {
        listed(
            draft,
            word,
            &[("use_interactive_step", |draft, word| {
                every_partition(draft, word, "interactive_step", "true")
            })],
            &[],
        )
    }),
    ("licenses", licences),
    ("maxarraysize", |draft, word| {
        count(draft, word, "max_array_tasks", 1..=1_000_000)
    }),
    ("maxjobcount", |draft, word| {
        count(draft, word, "max_pending_jobs", 1..=10_000_000)
    }),
    ("minjobage", |draft, word| {
        count(draft, word, "min_job_age_secs", 0..=86_400)
    }),
    ("mpidefault", mpi),
    ("mpiparams", |_, _| {
        meaningless("each step has a port of its own, MASTER_PORT")
    }),
    ("overtimelimit", |draft, word| {
        of_partitions(draft, word, "over_time")
    }),
    ("preemptmode", |draft, word| {
        let mode = preempt_mode(&word.value);
        match mode {
            Some(mode) => every_partition(draft, word, "preempt_mode", &quoted(mode)),
            None => {
                told("a QOS says which QOS it may preempt; GANG and WITHIN have no meaning here")
            }
        }
    }),
    ("preempttype", preempt_type),
    ("prioritydecayhalflife", half_life),
    ("priorityfavorsmall", |draft, word| {
        let small = word.value.eq_ignore_ascii_case("yes");
        of_table(draft, word, "priority", "favor_small", small.to_string())
    }),
    ("priorityflags", priority_flags),
    ("prioritymaxage", |draft, word| match secs(&word.value) {
        Some(Some(secs)) => of_table(
            draft,
            word,
            "priority",
            "max_age",
            quoted(&time(secs.clamp(60, 31_622_400))),
        ),
        _ => no_time(word),
    }),
    ("prioritytype", |draft, word| {
        match word.value.ends_with("basic") {
            true => of_table(draft, word, "scheduler", "order", quoted("fifo")),
            false => of_table(draft, word, "scheduler", "order", quoted("multifactor")),
        }
    }),
    ("priorityweightage", |draft, word| {
        weight(draft, word, "age")
    }),
    ("priorityweightfairshare", |draft, word| {
        weight(draft, word, "fair_share")
    }),
    ("priorityweightjobsize", |draft, word| {
        weight(draft, word, "size")
    }),
    ("priorityweightpartition", |draft, word| {
        weight(draft, word, "partition")
    }),
    ("priorityweightqos", |draft, word| {
        weight(draft, word, "qos")
    }),
    ("privatedata", privacy),
    ("prolog", |draft, word| program(draft, word, "prolog")),
    ("schedulerparameters", |draft, word| {
        let mapped: &[(&'static str, Decision)] = &[
            ("kill_invalid_depend", |draft, word| {
                own(draft, word, "kill_invalid_depend", "true".into())
            }),
            ("bf_max_job_test", |_, _| {
                understood("the planner looks at the whole queue")
            }),
        ];
        listed(draft, word, mapped, advice::SCHEDULER_PARAMETERS)
    }),
    ("schedulertype", |draft, word| {
        match word.value.ends_with("builtin") {
            true => of_table(draft, word, "scheduler", "backfill", quoted("off")),
            false => of_table(draft, word, "scheduler", "backfill", "1".into()),
        }
    }),
    ("selecttype", |_, word| {
        match word.value.ends_with("linear") {
            true => told(
                "jobs share nodes unless they say --exclusive; a submit_hook may set it for all",
            ),
            false => understood("CPUs, memory and GPUs are counted one by one"),
        }
    }),
    ("selecttypeparameters", select_parameters),
    ("slurmctldhost", controller),
    ("slurmdtimeout", |draft, word| match word.value.as_str() {
        "0" => own(draft, word, "lost_node", quoted("wait")),
        _ => count(draft, word, "node_timeout_secs", 1..=86_400),
    }),
    ("taskepilogtimeout", |_, _| {
        told("a prolog and an epilog may take 60 seconds")
    }),
    ("topologyplugin", topology),
    ("usepam", |draft, word| match word.value.as_str() {
        "1" => every_node(draft, word, "pam_service", quoted("slurm")),
        _ => understood("without pam_service there is no session"),
    }),
    // Settings of nodes that lie in slurm.conf.
    ("taskplugin", |draft, word| {
        let binds = word.value.contains("affinity") || word.value.contains("cgroup");
        match binds {
            true => every_node(draft, word, "cpu_binding", quoted("cpuset")),
            false => understood("cgroups weigh the CPUs of runs"),
        }
    }),
    ("proctracktype", |_, _| {
        understood("a cgroup holds each run")
    }),
    ("rebootprogram", |draft, word| {
        node_program(draft, word, "node_reboot")
    }),
    ("slurmdspooldir", |_, _| {
        meaningless("spool_dir in gpud.toml: /var/spool/gpupool")
    }),
    ("statesavelocation", |_, _| {
        meaningless("state_dir in gpuctld.toml: /var/lib/gpupool")
    }),
    ("gpufreqdef", |_, _| {
        told("the clocks of GPUs are left as the administrator set them")
    }),
];

pub(crate) fn decide(draft: &mut SiteDraft) {
    for word in draft.conf.settings.clone() {
        let verdict = decide_word(draft, &word, &DECISIONS, advice::SETTINGS);
        draft.file(&word, verdict);
    }
    unsaid_weights(draft);
    for word in draft.conf.other.clone() {
        let text = match word.is("downnodes") {
            true => "gadm node drain NODE --reason ..., once it has joined",
            false => "there are no front ends: jobs start on their nodes",
        };
        draft.file(&word, Verdict::Told(Fate::Counterpart, text.to_owned()));
    }
}

/// Slurm's weights are 0 where a file says nothing of them, gpupool's are not.
fn unsaid_weights(draft: &mut SiteDraft) {
    let table = draft.main.table("priority");
    let weights = ["age", "fair_share", "qos", "partition", "size"];
    if weights.iter().any(|key| table.has(key)) {
        for key in weights
            .into_iter()
            .filter(|key| !table.has(key))
            .collect::<Vec<_>>()
        {
            table.set(
                key,
                "0",
                "slurm.conf has no such weight, which is 0 in Slurm",
            );
        }
    }
}

/// By a decision, a piece of advice, or a guess at what was meant.
pub(crate) fn decide_word(
    draft: &mut SiteDraft,
    word: &ConfWord,
    decisions: &[(&'static str, Decision)],
    table: &'static [advice::Advice],
) -> Verdict {
    if let Some((_, decision)) = decisions.iter().find(|(key, _)| word.is(key)) {
        return decision(draft, word);
    }
    match advice_for(table, &word.key) {
        Some(advice) => Verdict::Told(advice.fate, advice.text.to_owned()),
        None => {
            let known = decisions
                .iter()
                .map(|(key, _)| *key)
                .chain(advice::keys_of(table));
            let near = did_you_mean(&word.key, known);
            Verdict::Told(
                Fate::Unknown,
                format!("not a key of Slurm's that this release knows.{near}"),
            )
        }
    }
}

// ---- kinds of decisions ------------------------------------------------------------------------------------------------

fn told(text: &str) -> Verdict {
    Verdict::Told(Fate::Counterpart, text.to_owned())
}

fn understood(text: &str) -> Verdict {
    Verdict::Told(Fate::Understood, text.to_owned())
}

fn meaningless(text: &str) -> Verdict {
    Verdict::Told(Fate::Meaningless, text.to_owned())
}

fn no_time(word: &ConfWord) -> Verdict {
    let message = format!("{} is no time", word.shown());
    Verdict::Wrong(message, "as 30, 1:30:00 or 7-0".into())
}

fn own(draft: &mut SiteDraft, word: &ConfWord, key: &str, value: String) -> Verdict {
    let why = draft.why(word);
    draft.main.own.set(key, &value, &why);
    Verdict::Becomes(format!("{key} = {value}"))
}

fn of_table(
    draft: &mut SiteDraft,
    word: &ConfWord,
    table: &str,
    key: &str,
    value: String,
) -> Verdict {
    let why = draft.why(word);
    draft.main.table(table).set(key, &value, &why);
    Verdict::Becomes(format!("[{table}] {key} = {value}"))
}

fn every_partition(draft: &mut SiteDraft, word: &ConfWord, key: &str, value: &str) -> Verdict {
    let why = draft.why(word);
    draft.every_partition.set(key, value, &why);
    Verdict::Becomes(format!("{key} = {value} of each partition"))
}

fn every_node(draft: &mut SiteDraft, word: &ConfWord, key: &str, value: String) -> Verdict {
    let why = draft.why(word);
    draft.every_node.set(key, &value, &why);
    Verdict::Becomes(format!("{key} = {value} in gpud.toml"))
}

/// A number within bounds: Slurm's own may be wider.
fn bounded(word: &ConfWord, bounds: &RangeInclusive<u64>) -> Result<u64, Verdict> {
    match word.value.parse::<u64>() {
        Ok(number) => Ok(number.clamp(*bounds.start(), *bounds.end())),
        Err(_) => {
            let message = format!("{} is no number", word.shown());
            Err(Verdict::Wrong(
                message,
                format!("{} to {}", bounds.start(), bounds.end()),
            ))
        }
    }
}

fn count(
    draft: &mut SiteDraft,
    word: &ConfWord,
    key: &str,
    bounds: RangeInclusive<u64>,
) -> Verdict {
    match bounded(word, &bounds) {
        Ok(number) => own(draft, word, key, number.to_string()),
        Err(wrong) => wrong,
    }
}

fn weight(draft: &mut SiteDraft, word: &ConfWord, key: &str) -> Verdict {
    match bounded(word, &(0..=1_000_000_000)) {
        Ok(number) => of_table(draft, word, "priority", key, number.to_string()),
        Err(wrong) => wrong,
    }
}

/// A key that the line of a partition may say, too.
fn of_partitions(draft: &mut SiteDraft, word: &ConfWord, key: &'static str) -> Verdict {
    match value_of(key, word) {
        Ok(Some(value)) => every_partition(draft, word, key, &value),
        Ok(None) => understood("as without it"),
        Err(verdict) => verdict,
    }
}

/// Values of keys that a partition and the whole file have in common, as TOML; `None`: the default.
pub(crate) fn value_of(key: &str, word: &ConfWord) -> Result<Option<String>, Verdict> {
    let text = word.value.trim();
    match key {
        "mem_per_cpu" | "mem_per_gpu" => match gmodel::size::parse_bytes(text) {
            Ok(0) => Ok(None),
            Ok(bytes) => Ok(Some(quoted(&gmodel::size::exact_size(bytes)))),
            Err(_) if text.eq_ignore_ascii_case("unlimited") => Ok(None),
            Err(error) => Err(Verdict::Wrong(error.to_string(), "in MiB".into())),
        },
        "cpus_per_gpu" => bounded(word, &(1..=65_536)).map(|count| Some(count.to_string())),
        _ => match secs(text) {
            Some(Some(secs)) => Ok(Some(quoted(&time(secs)))),
            Some(None) if text == "0" => Ok(None),
            Some(None) => Err(told(
                "a run ends by its limit at some time: over_time = \"1-0\" comes near to it",
            )),
            None => Err(no_time(word)),
        },
    }
}

/// Each word of a list, with its own finding.
fn listed(
    draft: &mut SiteDraft,
    word: &ConfWord,
    mapped: &[(&'static str, Decision)],
    table: &'static [advice::Advice],
) -> Verdict {
    for item in items(&word.value) {
        let (key, value) = item.split_once('=').unwrap_or((item, "yes"));
        let one = ConfWord {
            key: key.to_owned(),
            value: value.to_owned(),
            place: word.place.clone(),
        };
        let verdict = match table.is_empty() && !mapped.iter().any(|(key, _)| one.is(key)) {
            true => meaningless("it is about parts of Slurm's that are not here"),
            false => decide_word(draft, &one, mapped, table),
        };
        draft.file(
            &ConfWord {
                key: format!("{}={key}", word.key),
                ..one
            },
            verdict,
        );
    }
    Verdict::Reported
}

/// Seconds; `Some(None)` is no limit.
pub(crate) fn secs(text: &str) -> Option<Option<u64>> {
    TimeLimit::parse(text).ok().map(TimeLimit::secs)
}

pub(crate) fn time(secs: u64) -> String {
    gmodel::duration::squeue_time(secs)
}

// ---- single keys -------------------------------------------------------------------------------------------------------

fn name(draft: &mut SiteDraft, word: &ConfWord) -> Verdict {
    match gconfig::name::is_name(&word.value) {
        true => own(draft, word, "cluster", quoted(&word.value)),
        false => Verdict::Wrong(
            format!("{:?} is no name of a cluster", word.value),
            "letters, digits, '_', '-' and '.'".into(),
        ),
    }
}

fn controller(draft: &mut SiteDraft, word: &ConfWord) -> Verdict {
    if word.is("controladdr") {
        return meaningless("nodes dial what advertise names");
    }
    let host = word.value.split(['(', ',']).next().unwrap_or_default();
    if draft.main.own.has("advertise") {
        return told(
            "one controller: jobs run on while it is away. gadm backup copies its database, gpuctld restore brings it back",
        );
    }
    let verdict = own(draft, word, "advertise", quoted(&format!("{host}:7117")));
    draft.every_node.set(
        "controller",
        quoted(&format!("{host}:7117")),
        "advertise of gpuctld.toml",
    );
    verdict
}

fn enforce(draft: &mut SiteDraft, word: &ConfWord) -> Verdict {
    if draft.policy.accounts.is_empty() {
        return told(
            "limits always hold. An account without users is open to all: give --associations",
        );
    }
    let needs = |flag: &str| word.value.to_ascii_lowercase().contains(flag);
    if [
        "associations",
        "limits",
        "qos",
        "safe",
        "all",
        "wckeys",
        "1",
    ]
    .into_iter()
    .any(needs)
    {
        // Jobs that name no account are charged to it, of users that have none.
        draft
            .policy
            .accounts
            .entry("default".into())
            .or_insert_with(|| Account {
                name: "default".into(),
                description: "closed: users without an account may not submit".into(),
                users_only: true,
                ..Account::default()
            });
    }
    understood(
        "limits always hold, accounts are their users' alone, and the account default is open to none",
    )
}

fn gres_types(draft: &mut SiteDraft, word: &ConfWord) -> Verdict {
    for kind in items(&word.value) {
        let verdict = match kind.to_ascii_lowercase().as_str() {
            "gpu" => understood("nodes find their GPUs by NVML"),
            "mps" => every_partition(draft, word, "gpu_sharing", &quoted("mps")),
            "shard" => match draft.every_partition.has("gpu_sharing") {
                true => understood("gpu_sharing is mps already"),
                false => every_partition(draft, word, "gpu_sharing", &quoted("uncapped")),
            },
            _ => told(
                "a licence counts things of the whole cluster, a feature marks nodes that have them",
            ),
        };
        let one = ConfWord {
            value: kind.to_owned(),
            ..word.clone()
        };
        draft.file(&one, verdict);
    }
    Verdict::Reported
}

fn job_defaults(draft: &mut SiteDraft, word: &ConfWord) -> Verdict {
    listed(
        draft,
        word,
        &[
            ("defcpupergpu", |draft, word| {
                of_partitions(draft, word, "cpus_per_gpu")
            }),
            ("defmempergpu", |draft, word| {
                of_partitions(draft, word, "mem_per_gpu")
            }),
        ],
        &[],
    )
}

fn licences(draft: &mut SiteDraft, word: &ConfWord) -> Verdict {
    let why = draft.why(word);
    let mut names = BTreeSet::new();
    for item in items(&word.value) {
        let (name, count) = item.split_once([':', '*', '=']).unwrap_or((item, "1"));
        let is_name = gmodel::licence::parse(name).is_ok_and(|read| read.contains_key(name));
        let Some(count) = count.parse::<u32>().ok().filter(|_| is_name) else {
            return Verdict::Wrong(format!("{item:?} is no licence"), "as matlab:20".into());
        };
        draft
            .main
            .table("licences")
            .set(&bare(name), count.to_string(), &why);
        names.insert(name.to_owned());
    }
    Verdict::Becomes(format!(
        "[licences] {}",
        names.into_iter().collect::<Vec<_>>().join(", ")
    ))
}

fn mpi(draft: &mut SiteDraft, word: &ConfWord) -> Verdict {
    let value = word.value.to_ascii_lowercase();
    match value.as_str() {
        "none" | "pmi2" | "pmix" => own(draft, word, "mpi_default", quoted(&value)),
        _ if value.starts_with("pmix") => own(draft, word, "mpi_default", quoted("pmix")),
        _ => told("mpi_default is none, pmi2 or pmix"),
    }
}

/// The first word of a mode that is one here.
pub(crate) fn preempt_mode(text: &str) -> Option<&'static str> {
    let word = |word: &str| match word.to_ascii_lowercase().as_str() {
        "off" => Some("off"),
        "requeue" => Some("requeue"),
        "cancel" => Some("cancel"),
        "suspend" => Some("suspend"),
        _ => None,
    };
    text.split(',').find_map(word)
}

fn preempt_type(draft: &mut SiteDraft, word: &ConfWord) -> Verdict {
    match word.value.rsplit('/').next().unwrap_or_default() {
        "none" => every_partition(draft, word, "preempt_mode", &quoted("off")),
        "qos" => understood("preempt of a QOS names those that it may preempt"),
        _ => told(
            "tiers order the queue and end no run: make a QOS for each partition with default_qos, and name in preempt what it may end",
        ),
    }
}

fn half_life(draft: &mut SiteDraft, word: &ConfWord) -> Verdict {
    match secs(&word.value) {
        Some(Some(secs)) => of_table(
            draft,
            word,
            "fair_share",
            "half_life",
            quoted(&time(secs.clamp(60, 316_224_000))),
        ),
        Some(None) => of_table(draft, word, "fair_share", "half_life", quoted("3650-0")),
        None => no_time(word),
    }
}

fn priority_flags(draft: &mut SiteDraft, word: &ConfWord) -> Verdict {
    for flag in items(&word.value) {
        let verdict = match flag.to_ascii_uppercase().as_str() {
            "FAIR_TREE" => understood("fair share is a tree"),
            "DEPTH_OBLIVIOUS" | "NO_FAIR_TREE" => told("fair share is a tree here"),
            "ACCRUE_ALWAYS" | "SMALL_RELATIVE_TO_TIME" | "CALCULATE_RUNNING" | "INCR_ONLY" => told(
                "age counts from when a job could run; gsub --nice and gadm job update change a priority",
            ),
            "MAX_TRES" | "MAX_TRES_GRES" | "NO_NORMAL_ALL" | "NO_NORMAL_ASSOC"
            | "NO_NORMAL_PART" | "NO_NORMAL_QOS" | "NO_NORMAL_TRES" => {
                told("each factor is from 0 to 1, times its weight")
            }
            _ => Verdict::Told(Fate::Unknown, "not a flag that this release knows".into()),
        };
        draft.file(
            &ConfWord {
                value: flag.to_owned(),
                ..word.clone()
            },
            verdict,
        );
    }
    Verdict::Reported
}

fn privacy(draft: &mut SiteDraft, word: &ConfWord) -> Verdict {
    let hides_jobs = items(&word.value)
        .any(|item| ["jobs", "usage", "all"].contains(&item.to_ascii_lowercase().as_str()));
    match hides_jobs {
        true => own(draft, word, "privacy", quoted("own")),
        false => understood("nodes, partitions and accounts are in each listing"),
    }
}

/// A program of root's on each node: one file, not a pattern.
fn program(draft: &mut SiteDraft, word: &ConfWord, key: &str) -> Verdict {
    match is_path(&word.value) {
        true => every_partition(draft, word, key, &quoted(&word.value)),
        false => told(
            "one program by its whole path, which may call others: prolog and epilog of a partition",
        ),
    }
}

fn node_program(draft: &mut SiteDraft, word: &ConfWord, key: &str) -> Verdict {
    match is_path(&word.value) {
        true => every_node(draft, word, key, quoted(&word.value)),
        false => told("node_reboot in gpud.toml names a program by its whole path"),
    }
}

fn is_path(text: &str) -> bool {
    text.starts_with('/')
        && !text.contains(['*', '?', '[', '%'])
        && !text.contains(char::is_whitespace)
}

fn select_parameters(draft: &mut SiteDraft, word: &ConfWord) -> Verdict {
    for flag in items(&word.value) {
        let one = ConfWord {
            value: flag.to_owned(),
            ..word.clone()
        };
        let verdict = match flag.to_ascii_uppercase().as_str() {
            "CR_LLN" => of_table(draft, &one, "scheduler", "placement", quoted("spread")),
            "CR_PACK_NODES" => of_table(draft, &one, "scheduler", "placement", quoted("pack")),
            "CR_CPU" | "CR_CPU_MEMORY" | "CR_CORE" | "CR_CORE_MEMORY" | "CR_SOCKET"
            | "CR_SOCKET_MEMORY" => understood("CPUs and memory are counted"),
            "CR_MEMORY"
            | "CR_ONE_TASK_PER_CORE"
            | "CR_CORE_DEFAULT_DIST_BLOCK"
            | "ENFORCE_BINDING_GRES"
            | "MULTIPLE_SHARING_GRES_PJ"
            | "ONE_TASK_PER_SHARING_GRES"
            | "LL_SHARED_GRES"
            | "OTHER_CONS_TRES"
            | "NHC_NO_STEPS" => meaningless(
                "CPUs near the GPUs and whole cores are taken first (cpu_binding in gpud.toml)",
            ),
            _ => Verdict::Told(Fate::Unknown, "not a word that this release knows".into()),
        };
        draft.file(&one, verdict);
    }
    Verdict::Reported
}

fn topology(_: &mut SiteDraft, word: &ConfWord) -> Verdict {
    match word.value.rsplit('/').next().unwrap_or_default() {
        "tree" | "block" => {
            understood("topology.toml, from topology.conf: --topology, or gadm topology import")
        }
        "default" | "flat" | "none" => understood("all nodes count as equally near"),
        _ => told("trees of switches and NVLink domains are what topology.toml has"),
    }
}

// ---- what usage weighs -------------------------------------------------------------------------------------------------

/// Weights of the first partition that has some; fair share has one scale for all.
pub(crate) fn charge(draft: &mut SiteDraft) {
    let mut first: Option<ConfWord> = None;
    for at in 0..draft.conf.partitions.len() {
        let Some(word) = draft.conf.partitions[at]
            .keys
            .get("tresbillingweights")
            .cloned()
        else {
            continue;
        };
        let verdict = match &first {
            Some(before) if before.value == word.value => continue,
            Some(_) => told(
                "[fair_share] has one scale for all partitions; [[price]] says what a GPU-hour costs",
            ),
            None => {
                first = Some(word.clone());
                weigh(draft, &word)
            }
        };
        draft.file(&word, verdict);
    }
}

/// `CPU=1.0,Mem=0.25G,GRES/gpu=10`: in GPUs of weight 1.
fn weigh(draft: &mut SiteDraft, word: &ConfWord) -> Verdict {
    let Some(weights) = tres::weights(&word.value) else {
        return Verdict::Wrong(
            format!("{} is no list of weights", word.shown()),
            "as CPU=1.0,Mem=0.25G,GRES/gpu=10".into(),
        );
    };
    let gpu = weights
        .gpu_milli
        .or(weights.by_type_milli.values().max().copied())
        .filter(|milli| *milli > 0);
    let Some(gpu) = gpu else {
        return told(
            "usage is counted in GPUs; without a weight of gres/gpu the weights are those of [fair_share]",
        );
    };
    let part = |milli: u64| milli_text((milli.saturating_mul(1000) / gpu).min(1_000_000));
    let cpu = of_table(
        draft,
        word,
        "fair_share",
        "cpu_weight",
        part(weights.cpu_milli),
    );
    let mem = of_table(
        draft,
        word,
        "fair_share",
        "mem_gib_weight",
        part(weights.mem_gib_milli),
    );
    let types: BTreeMap<&str, String> = weights
        .by_type_milli
        .iter()
        .map(|(kind, milli)| (kind.as_str(), part(*milli)))
        .collect();
    if !types.is_empty() {
        let all: Vec<String> = types
            .iter()
            .map(|(kind, part)| format!("{} = {part}", bare(kind)))
            .collect();
        of_table(
            draft,
            word,
            "fair_share",
            "gpu_weights",
            format!("{{ {} }}", all.join(", ")),
        );
    }
    match (cpu, mem) {
        (Verdict::Becomes(cpu), Verdict::Becomes(mem)) => {
            Verdict::Becomes(format!("{cpu}, {mem}, in GPUs of weight 1"))
        }
        _ => Verdict::Reported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_one_fate() {
        let mut seen = BTreeSet::new();
        let twice: Vec<&str> = DECISIONS
            .iter()
            .map(|(key, _)| *key)
            .chain(advice::keys_of(advice::SETTINGS))
            .filter(|key| !seen.insert(*key))
            .collect();
        assert_eq!(twice, [""; 0]);
        assert!(seen.iter().all(|key| key.to_ascii_lowercase() == **key));
    }
}
