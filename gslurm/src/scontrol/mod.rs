//! `scontrol`: its words, carried out by the code of `gadm job`, `gadm node`, `gq JOB` and `gnodes`.
//!
//! Owns the reading of the words. A word without a counterpart is refused with the command to use instead. Source: scontrol(1).

use gadm::controller::{self, ReloadArgs};
use gadm::job::{self, JobAct};
use gadm::node::{self, NodeAct};

mod document;
mod interactive;
mod partition;
mod processes;
mod record;
mod reservation;
mod step_record;
mod topology;

use crate::json;
use clap::{CommandFactory, FromArgMatches, Parser};
use gcli::answer::list;
use gcli::local_time::{self, TimeFormat};
use gcli::printable::printable;
use gcli::slurm_words::Cause;
use gcli::table::stdout;
use gcli::{ClusterChoice, Failure, Outcome, command_line, slurm_name};
use gmodel::hostlist;
use gwire::api::{ClusterInfo, JobQuery};
use gwire::client::{Client, escape, path_with_query};
use std::ffi::OsString;
use std::io::Write;

const EXAMPLES: &str = "\
    Valid <COMMAND> values are:
     create <SPECIFICATIONS>  ReservationName=course StartTime=now Duration=60 Users=ada Nodes=node1
     delete <SPECIFICATIONS>  ReservationName=course
     help                     show this text
     hold <job_list>          keep jobs from starting; uhold lets their owner release them
     listpids [<job>[.<step>]] processes of jobs on this machine
     pidinfo <pid>            the job of a process of this machine, and its remaining time
     ping                     say whether the controller answers
     reconfigure              have the controller read its configuration again
     release <job_list>       let held jobs start
     requeue <job_list>       put running jobs back into the queue; requeuehold holds them there
     resume <job_list>        let suspended jobs go on
     show <ENTITY> [<ID>]     job, step, node, partition, reservation, license, config, topology,
                              hostnames [node[1-3]], hostlist node1,node2
     suspend <job_list>       stop running jobs; they keep their GPUs
     update <SPECIFICATIONS>  JobId=17 TimeLimit=4:00:00, JobName=train Nice=50 (one's own of that name),
                              NodeName=node1 State=DRAIN Reason=fan (DRAIN, RESUME, DOWN, FAIL),
                              NodeName=node1 AvailableFeatures=ib,fast ActiveFeatures=ib,
                              ReservationName=course Duration=120
     version                  display tool version number
     write batch_script <job_id> [<FILE>|-]

This is gpupool: gadm --help has more.";

#[derive(Parser)]
#[command(name = "scontrol", about = "scontrol's words, by gadm", after_help = EXAMPLES)]
struct ScontrolArgs {
    /// Each record on one line
    #[arg(short, long)]
    oneliner: bool,
    /// All there is, as is usual
    #[arg(short, long)]
    all: bool,
    /// Of jobs also what they hold of each node, and the highest exit code of their steps
    #[arg(short, long)]
    details: bool,
    /// What is shown as JSON, with Slurm's keys
    #[arg(long)]
    json: bool,
    /// Only errors are said, as is usual
    #[arg(short = 'Q', long)]
    quiet: bool,
    #[command(flatten)]
    cluster: ClusterChoice,
    /// What to do; without a word commands are read from stdin
    #[arg(value_name = "COMMAND")]
    words: Vec<String>,
}

/// `scontrol`.
pub(crate) fn main(words: Vec<OsString>) -> Outcome {
    let matches = command_line::parse_advising(ScontrolArgs::command(), words, &[])?;
    let args = ScontrolArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    match args.words.is_empty() {
        true => interactive::run(args),
        false => carry_out(&args),
    }
}

/// One command.
fn carry_out(args: &ScontrolArgs) -> Outcome {
    let Some((command, rest)) = args.words.split_first() else {
        return Ok(0);
    };
    judge(command, rest, args.json)?;
    if command.eq_ignore_ascii_case("listpids") {
        return processes::list(rest);
    }
    let mut client = gcli::connect("scontrol")?;
    args.cluster.check(&mut client)?;
    let jobs = || job_names(rest);
    let mut on_jobs = |act: JobAct| job::run(&mut client, act);
    match command.to_ascii_lowercase().as_str() {
        "show" => show(
            &mut client,
            rest,
            ShowForm {
                oneliner: args.oneliner,
                details: args.details,
                json: args.json,
            },
        ),
        word @ ("hold" | "uhold") => on_jobs(JobAct::Hold {
            jobs: jobs()?,
            reason: String::new(),
            for_owner: word == "uhold",
        }),
        "release" => on_jobs(JobAct::Release { jobs: jobs()? }),
        "requeue" => on_jobs(JobAct::Requeue {
            jobs: jobs()?,
            hold: false,
        }),
        "requeuehold" => on_jobs(JobAct::RequeueHold { jobs: jobs()? }),
        "suspend" => on_jobs(JobAct::Suspend { jobs: jobs()? }),
        "resume" => on_jobs(JobAct::Resume { jobs: jobs()? }),
        "update" => update(&mut client, rest),
        "pidinfo" => processes::info(&mut client, rest),
        "write" => write_script(&mut client, rest),
        "ping" if args.json => json::print_ping(&mut client),
        "ping" => ping(&mut client),
        "help" => {
            write!(
                std::io::stdout(),
                "{}",
                gcli::slurm_help::help(&ScontrolArgs::command(), "scontrol")
            )?;
            Ok(0)
        }
        "reconfigure" => controller::reload(&mut client, &ReloadArgs::default()),
        "version" => {
            writeln!(std::io::stdout(), "{}", slurm_name::VERSION)?;
            Ok(0)
        }
        "create" => reservation::create_one(&mut client, rest),
        "delete" => reservation::delete(&mut client, rest),
        _ => Err(Failure::usage(advice_instead(command))),
    }
}

/// What a command cannot have beside it.
fn judge(command: &str, rest: &[String], json: bool) -> Result<(), Failure> {
    let has_json = ["show", "ping"]
        .iter()
        .any(|known| command.eq_ignore_ascii_case(known));
    if json && !has_json {
        return Err(Failure::usage(format_args!(
            "--json is of what is shown, and {command} shows nothing"
        )));
    }
    if let (["ping" | "reconfigure" | "version"], Some(odd)) =
        ([command.to_ascii_lowercase().as_str()], rest.first())
    {
        return Err(Failure::usage(format_args!(
            "{command} takes no words, and {odd:?} is one"
        )));
    }
    Ok(())
}

/// What to do instead of a command that is not offered.
fn advice_instead(command: &str) -> String {
    match command.to_ascii_lowercase().as_str() {
        "reboot" | "cancel_reboot" | "power" => {
            "machines are not booted from here: node_reboot in gpud.toml names the site's program for sick GPUs".to_owned()
        }
        "top" => {
            "top is not offered here. An operator moves a job with gadm job update JOB Priority=NUMBER, its owner lets others go first with Nice=NUMBER".to_owned()
        }
        other => match NOT_DONE.iter().find(|(known, _)| *known == other) {
            Some((_, advice)) => format!("{command} is not done here: {advice}"),
            None => format!(
                "{command:?} of scontrol is not known here. scontrol --help lists what is; gadm --help has more"
            ),
        },
    }
}

/// What scontrol does and we do not under its name.
const NOT_DONE: [(&str, &str); 12] = [
    (
        "abort",
        "the service manager stops gpuctld: systemctl stop gpuctld; jobs run on",
    ),
    ("completing", "squeue -t completing lists jobs that end"),
    ("errnumstr", "errors are said in words, none has a number"),
    (
        "notify",
        "a job's terminal is its own; scancel --signal tells it something",
    ),
    (
        "schedloglevel",
        "gq --why JOB tells what the scheduler decides",
    ),
    (
        "setdebug",
        "the service's log has one measure; gadm diag says how gpuctld is doing",
    ),
    (
        "setdebugflags",
        "the service's log has one measure; gadm diag says how gpuctld is doing",
    ),
    (
        "shutdown",
        "the service manager stops gpuctld: systemctl stop gpuctld; jobs run on",
    ),
    (
        "takeover",
        "there is one controller; gadm backup and gpuctld restore move it",
    ),
    (
        "token",
        "who somebody is the kernel says; gadm token lets nodes join",
    ),
    (
        "wait_job",
        "a job starts when its nodes are ready; gsub --wait waits for its end",
    ),
    ("cluster", "there is one cluster; -M takes its name"),
];

/// What scontrol shows and we do not, each with where else to look.
const NOT_SHOWN: [(&str, &str); 6] = [
    (
        "assoc_mgr",
        "sacctmgr show assoc, gadm share and gadm quota show shares, use and bounds",
    ),
    ("burstbuffer", "there are no burst buffers"),
    ("dwstat", "there are no burst buffers"),
    (
        "federation",
        "there are no federations: each cluster has a queue of its own",
    ),
    (
        "frontend",
        "there are no front ends: each node has its gpud",
    ),
    (
        "slurmd",
        "gnodes NODE shows what a node says of itself; its gpud's log is the service's",
    ),
];

/// `17 18,19`, `JobId=17`.
fn job_names(words: &[String]) -> Result<job::Jobs, Failure> {
    let mut jobs = Vec::new();
    for word in words.iter().flat_map(|word| between_commas(word)) {
        match word.split_once('=') {
            None => jobs.push(word.to_owned()),
            Some((key, job)) if is_job_key(key) => jobs.push(job.to_owned()),
            Some((key, state)) if key.eq_ignore_ascii_case("state") => {
                return Err(Failure::usage(format_args!(
                    "State={state} marks no jobs here: requeuehold puts them back and holds them"
                )));
            }
            Some((key, _)) => {
                return Err(Failure::usage(format_args!(
                    "{key}= chooses no jobs here; name them: 17,18 or JobId=17"
                )));
            }
        }
    }
    match jobs.is_empty() {
        true => Err(Failure::usage("which jobs? Name them: 17,18")),
        false => Ok(job::Jobs::of(jobs)),
    }
}

/// The jobs of a list: commas in brackets part none, `17,98_[1,3]` is two.
fn between_commas(list: &str) -> impl Iterator<Item = &str> {
    let mut within = false;
    let words = list.split(move |sign| {
        within = sign == '[' || (within && sign != ']');
        sign == ',' && !within
    });
    words.filter(|word| !word.is_empty())
}

/// scontrol's names of what chooses jobs.
fn is_job_key(key: &str) -> bool {
    ["job", "jobid", "jobs"]
        .iter()
        .any(|known| key.eq_ignore_ascii_case(known))
}

/// What `show` can be asked for, as scontrol spells it; beginnings are enough.
const SHOWN: [&str; 12] = [
    "jobs",
    "nodes",
    "partitions",
    "hostnames",
    "hostlist",
    "hostlistsorted",
    "config",
    "reservations",
    "licenses",
    "steps",
    "daemons",
    "topology",
];

/// How records are shown.
#[derive(Clone, Copy)]
struct ShowForm {
    oneliner: bool,
    details: bool,
    json: bool,
}

/// What `show` was asked for.
struct ShowRequest<'w> {
    entity: &'w str,
    /// The entry of [`SHOWN`] that it names.
    found: Option<&'static str>,
    names: Vec<String>,
}

impl<'w> ShowRequest<'w> {
    fn of(words: &'w [String]) -> Result<Self, Failure> {
        let (entity, names) = words.split_first().ok_or_else(|| {
            Failure::usage("show what? job, node, partition, hostnames, hostlist, config")
        })?;
        // `show job=17`, as some write it.
        let (entity, value) = entity
            .split_once('=')
            .map_or((entity.as_str(), None), |(entity, value)| {
                (entity, Some(value.to_owned()))
            });
        let lower = match entity.to_ascii_lowercase() {
            key if is_job_key(&key) => "jobs".to_owned(),
            // `show reservationname X`, as `update` has it.
            key => match key.strip_suffix("name") {
                Some(record @ ("node" | "partition" | "reservation")) => record.to_owned(),
                _ => key.replace("licence", "license"),
            },
        };
        let found = SHOWN
            .iter()
            .find(|known| **known == lower)
            .or_else(|| SHOWN.iter().find(|known| known.starts_with(&lower)));
        Ok(Self {
            entity,
            found: found.copied(),
            names: value.into_iter().chain(names.iter().cloned()).collect(),
        })
    }

    fn jobs(&self) -> Vec<String> {
        let names = self.names.iter().flat_map(|names| between_commas(names));
        names.map(str::to_owned).collect()
    }

    fn refusal(&self) -> Failure {
        let entity = self.entity;
        let lower = entity.to_ascii_lowercase();
        Failure::usage(
            match NOT_SHOWN
                .iter()
                .find(|(known, _)| known.starts_with(&lower))
            {
                Some((_, advice)) => format!("{entity:?} is not shown here: {advice}"),
                None => format!(
                    "show {entity:?} is not known here. Known are {}",
                    SHOWN.join(", ")
                ),
            },
        )
    }
}

fn show(client: &mut Client, words: &[String], form: ShowForm) -> Outcome {
    let request = ShowRequest::of(words)?;
    let names = &request.names;
    if form.json {
        return document::print(client, &request);
    }
    let records = match request.found {
        Some("jobs") => record::jobs(client, &request.jobs(), form.details)?,
        Some("nodes") => record::nodes(client, names)?,
        Some("partitions") => record::partitions(client, &split(names))?,
        Some("hostnames") => return gq::nodes::main(as_gnodes("--hostnames", names)),
        Some("hostlist") => return gq::nodes::main(as_gnodes("--hostlist", names)),
        Some("hostlistsorted") => {
            let mut names =
                hostlist::expand(&names.join(","), hostlist::MAX_HOSTS).map_err(Failure::new)?;
            hostlist::sort_names(&mut names);
            writeln!(std::io::stdout(), "{}", hostlist::compress(names))?;
            return Ok(0);
        }
        Some("daemons") => return daemons(client),
        Some("topology") => return topology::show(client, names),
        Some("config") => return config(client),
        Some("reservations") => record::reservations(client, &split(names))?,
        Some("licenses") => record::licences(client, &split(names))?,
        Some("steps") => step_record::steps(client, &split(names))?,
        _ => return Err(request.refusal()),
    };
    let mut out = stdout()?;
    match request.found {
        Some(what @ ("jobs" | "reservations" | "licenses" | "steps")) if records.is_empty() => {
            writeln!(out, "No {what} in the system")?
        }
        _ => {}
    }
    for record in &records {
        if form.oneliner {
            let fields = record.split('\n').map(str::trim);
            let fields: Vec<&str> = fields.filter(|field| !field.is_empty()).collect();
            writeln!(out, "{}", fields.join(" "))?;
        } else {
            out.write_all(record.as_bytes())?;
        }
    }
    out.flush()?;
    Ok(0)
}

fn split(names: &[String]) -> Vec<String> {
    names
        .iter()
        .flat_map(|names| names.split(','))
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

fn as_gnodes(option: &str, names: &[String]) -> Vec<OsString> {
    let value = (!names.is_empty()).then(|| names.join(",").into());
    ["gnodes", option]
        .into_iter()
        .map(OsString::from)
        .chain(value)
        .collect()
}

/// Keys that programs look for; plugins are those of which Slurm does what is done here.
fn config(client: &mut Client) -> Outcome {
    let cluster: ClusterInfo = client.get("/v1/cluster")?;
    let lines = [
        (
            "AccountingStorageType",
            "accounting_storage/slurmdbd".to_owned(),
        ),
        ("ClusterName", cluster.name),
        ("GPUPOOL_VERSION", cluster.version),
        ("GresTypes", "gpu".to_owned()),
        ("JobAcctGatherType", "jobacct_gather/cgroup".to_owned()),
        // As Slurm has it, one more than the highest index.
        (
            "MaxArraySize",
            (u64::from(cluster.max_array_tasks) + 1).to_string(),
        ),
        ("MinJobAge", format!("{} sec", cluster.min_job_age_secs)),
        ("PriorityType", "priority/multifactor".to_owned()),
        ("ProctrackType", "proctrack/cgroup".to_owned()),
        ("SchedulerType", "sched/backfill".to_owned()),
        ("SelectType", "select/cons_tres".to_owned()),
        ("SelectTypeParameters", "CR_CPU_Memory".to_owned()),
        ("SlurmctldHost[0]", cluster.host.clone()),
        (
            "SLURM_VERSION",
            slurm_name::VERSION
                .split(' ')
                .nth(1)
                .unwrap_or_default()
                .to_owned(),
        ),
    ];
    let mut out = stdout()?;
    writeln!(
        out,
        "Configuration data as of {}",
        TimeFormat::from_env().print(local_time::now())
    )?;
    for (key, value) in lines {
        writeln!(out, "{key:<23} = {value}")?;
    }
    writeln!(
        out,
        "\nSlurmctld(primary) at {} is UP",
        printable(&cluster.host)
    )?;
    out.flush()?;
    Ok(0)
}

/// The daemons that run on this machine, by the names of Slurm's that they stand for.
fn daemons(client: &mut Client) -> Outcome {
    let cluster: ClusterInfo = client.get("/v1/cluster")?;
    let here = nix::unistd::gethostname()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let is_node = all_nodes(client)?.contains(&here);
    let names = [("slurmctld", cluster.host == here), ("slurmd", is_node)];
    let names: Vec<&str> = names.iter().filter(|one| one.1).map(|one| one.0).collect();
    writeln!(std::io::stdout(), "{}", names.join(" "))?;
    Ok(0)
}

fn ping(client: &mut Client) -> Outcome {
    let cluster: ClusterInfo = client.get("/v1/cluster")?;
    writeln!(
        std::io::stdout(),
        "Slurmctld(primary) at {} is UP",
        printable(&cluster.host)
    )?;
    Ok(0)
}

/// `write batch_script 17 [FILE]`: without a file `slurm-17.sh`, `-` is stdout.
fn write_script(client: &mut Client, words: &[String]) -> Outcome {
    let ("batch_script", [job, rest @ ..]) = (
        words.first().map_or("", String::as_str),
        words.get(1..).unwrap_or_default(),
    ) else {
        return Err(Failure::usage("write what? write batch_script 17 [FILE|-]"));
    };
    let script = client.get_text(&format!("/v1/jobs/{}/script", escape(job)))?;
    match rest.first().map(String::as_str) {
        Some("-") => stdout()?.write_all(script.as_bytes())?,
        file => {
            let file = file.map_or_else(|| format!("slurm-{job}.sh"), str::to_owned);
            std::fs::write(&file, script)
                .map_err(|error| Failure::new(format_args!("cannot write {file}: {error}")))?;
            writeln!(
                std::io::stdout(),
                "batch script for job {job} written to {file}"
            )?;
        }
    }
    Ok(0)
}

/// A word's value, if it is of that key.
fn value_of<'w>(word: &'w str, wanted: &[&str]) -> Option<&'w str> {
    let (key, value) = word.split_once('=')?;
    wanted
        .iter()
        .any(|wanted| key.eq_ignore_ascii_case(wanted))
        .then_some(value)
}

/// The value of the first word with one of these keys.
fn first_value<'w>(words: &'w [String], keys: &[&str]) -> Option<&'w str> {
    words.iter().find_map(|word| value_of(word, keys))
}

/// Jobs as `gadm job update` has them, nodes by their state, reservations.
fn update(client: &mut Client, words: &[String]) -> Outcome {
    // Without a job it is the reservation itself that changes.
    if first_value(words, &reservation::NAMES).is_some()
        && jobs_first(words)
            .iter()
            .all(|word| word.contains('=') || word.eq_ignore_ascii_case("skip"))
    {
        return reservation::edit(client, words, false);
    }
    match first_value(words, &["nodename"]).or_else(|| first_value(words, &["node"])) {
        Some(nodes) => update_nodes(client, nodes, words),
        None => update_jobs(client, words),
    }
}

fn update_jobs(client: &mut Client, words: &[String]) -> Outcome {
    let mut changed = jobs_first(words);
    if changed.iter().all(|word| word.contains('=')) {
        // Without a job its name chooses, where it is not all that is said.
        let Some(name) = first_value(words, &["jobname"]).filter(|_| changed.len() > 1) else {
            if let Some(name) = partition::named(words) {
                return partition::update(client, name, words);
            }
            return Err(Failure::usage(
                "update what? update JobId=17 TimeLimit=4:00:00, update NodeName=node1 State=DRAIN Reason='fan'",
            ));
        };
        changed.retain(|word| value_of(word, &["jobname"]).is_none());
        changed.splice(..0, of_name(client, name)?);
    }
    let act = JobAct::Update {
        words: changed,
        time: None,
    };
    job::run(client, act)
}

fn update_nodes(client: &mut Client, nodes: &str, words: &[String]) -> Outcome {
    let names = match nodes.eq_ignore_ascii_case("all") {
        true => all_nodes(client)?,
        false => vec![nodes.to_owned()],
    };
    let value = |key: &str| first_value(words, &[key]).unwrap_or_default();
    let reason = value("reason").to_owned();
    let mut keys = words
        .iter()
        .filter_map(|word| Some(word.split_once('=')?.0));
    let known = [
        "nodename",
        "node",
        "state",
        "reason",
        "availablefeatures",
        "activefeatures",
    ];
    if let Some(other) = keys.find(|key| !known.contains(&key.to_ascii_lowercase().as_str())) {
        return Err(Failure::usage(format_args!(
            "{other}= of a node cannot be changed: a node says itself what it has"
        )));
    }
    if let Some(act) = features_act(&names, words) {
        let done = node::run(client, act)?;
        if done != 0 || first_value(words, &["state"]).is_none() {
            return Ok(done);
        }
    }
    let nodes = node::NodeNames::of(names);
    let act = match node_state(value("state"))? {
        "DRAIN" | "DOWN" | "FAIL" if reason.trim().is_empty() => {
            return Err(Failure::usage(
                "a reason is needed, and users see it: Reason='fan broken'",
            )
            .because(Cause::Said(
                "You must specify a reason when DOWNING or DRAINING a node. Request denied"
                    .to_owned(),
            )));
        }
        // A node that is to fail is one that takes no more jobs.
        "DRAIN" | "FAIL" => NodeAct::Drain {
            nodes,
            reason,
            deadline: None,
        },
        "DOWN" => NodeAct::Down {
            nodes,
            reason,
            fenced: false,
        },
        _ => NodeAct::Resume { nodes },
    };
    node::run(client, act)
}

/// What a change says of features; `None`: nothing.
fn features_act(names: &[String], words: &[String]) -> Option<NodeAct> {
    let list = |key: &str| first_value(words, &[key]).map(str::to_owned);
    let (available, active) = (list("availablefeatures"), list("activefeatures"));
    (available.is_some() || active.is_some()).then(|| NodeAct::Features {
        nodes: node::NodeNames::of(names.to_vec()),
        available,
        active,
        reset: false,
    })
}

/// A state by three letters at least, as scontrol takes it.
fn node_state(word: &str) -> Result<&'static str, Failure> {
    const KNOWN: [&str; 6] = ["DRAIN", "DOWN", "FAIL", "RESUME", "UNDRAIN", "IDLE"];
    let asked = word.to_ascii_uppercase();
    let mut known = KNOWN.into_iter();
    let found = known.find(|state| *state == asked || asked.len() > 2 && state.starts_with(&asked));
    found.ok_or_else(|| {
        Failure::usage(format_args!(
            "State={word} is none that a node is put into. Known are {}. Those that take its jobs away need Reason=",
            KNOWN.join(", ")
        ))
        .because(Cause::Said(format!("Invalid input: State={word}")))
    })
}

fn all_nodes(client: &mut Client) -> Result<Vec<String>, Failure> {
    #[derive(serde::Deserialize)]
    struct Name {
        name: String,
    }
    let rows: Vec<Name> = list(client, "/v1/nodes")?;
    match rows.is_empty() {
        true => Err(Failure::new("the cluster has no node")),
        false => Ok(rows.into_iter().map(|row| row.name).collect()),
    }
}

/// The caller's jobs of a name that are not over, as scontrol takes them.
fn of_name(client: &mut Client, name: &str) -> Result<Vec<String>, Failure> {
    #[derive(serde::Deserialize)]
    struct JobName {
        shown_id: String,
    }
    let uid = nix::unistd::geteuid();
    let user = nix::unistd::User::from_uid(uid)
        .ok()
        .flatten()
        .map_or_else(|| uid.to_string(), |user| user.name);
    let query = JobQuery {
        name: name.to_owned(),
        user: user.clone(),
        columns: "shown_id".to_owned(),
        ..JobQuery::default()
    };
    let rows = list::<JobName>(client, &path_with_query("/v1/jobs", &query))?;
    match rows.is_empty() {
        true => Err(Failure::new(format_args!(
            "No jobs with name {name:?}: {user} has none in the queue"
        ))),
        false => Ok(rows.into_iter().map(|row| row.shown_id).collect()),
    }
}

/// `JobId=17,18`, `job=17` and `job 17` as the jobs' names, before the changes.
fn jobs_first(words: &[String]) -> Vec<String> {
    let (mut jobs, mut changes) = (Vec::new(), Vec::new());
    for word in words {
        match word.split_once('=') {
            Some((key, names)) if is_job_key(key) => {
                jobs.extend(between_commas(names).map(str::to_owned))
            }
            Some(_) => changes.push(word.clone()),
            None if is_job_key(word) => {}
            None => jobs.extend(between_commas(word).map(str::to_owned)),
        }
    }
    jobs.into_iter().chain(changes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_named_in_all_of_scontrols_ways() {
        let first = |text: &str| {
            jobs_first(&text.split(' ').map(str::to_owned).collect::<Vec<_>>()).join(" ")
        };
        assert_eq!(first("JobId=17 TimeLimit=5"), "17 TimeLimit=5");
        assert_eq!(first("TimeLimit+=5 job=17,98_5"), "17 98_5 TimeLimit+=5");
        assert_eq!(first("job 17 Comment=x"), "17 Comment=x");
        assert_eq!(first("TimeLimit=5"), "TimeLimit=5");
        assert_eq!(
            first("JobId=17,98_[1,3-5] 99_[2,4],18 Nice=1"),
            "17 98_[1,3-5] 99_[2,4] 18 Nice=1"
        );
        assert_eq!(
            between_commas("17,98_[1,3],99").collect::<Vec<_>>(),
            ["17", "98_[1,3]", "99"]
        );
        let named = |text: &str| job_names(&[text.to_owned()]).is_ok();
        assert!(named("17,18") && named("job=17") && named("JobId=17") && !named("name=x"));
    }

    #[test]
    fn the_command_line_is_sound() {
        ScontrolArgs::command().debug_assert();
    }
}
