//! One trace under one policy on one cluster (or on one for each account): what `gsim run` and `gsim compare` do.

use crate::csv;
use crate::hardware::{Hardware, Wish};
use crate::measures::{Measures, Setting};
use crate::policy_file::PolicyFile;
use crate::trace::{Trace, TraceJob};
use crate::trace_run::{Fate, Outcome, Runtime, run};
use gmodel::config::NodeSelection;
use gmodel::hostlist::compress;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Where the jobs run.
#[derive(Clone, Debug)]
pub enum Place {
    Given(Hardware),
    /// Of each cluster, where each account has one of its own.
    Each(Hardware),
    Sized(Wish),
}

/// Results of a policy, with everything they were computed from.
pub struct Experiment<'a> {
    pub measures: Measures,
    pub parts: Vec<Part<'a>>,
}

/// One simulated cluster and its jobs.
pub struct Part<'a> {
    /// The account, where each has a cluster of its own.
    pub account: Option<String>,
    pub hardware: Hardware,
    pub jobs: Vec<&'a TraceJob>,
    pub outcome: Outcome,
}

impl<'a> Experiment<'a> {
    /// Runs the trace. `clock` gives nanoseconds, for the times of passes.
    ///
    /// # Errors
    /// An account without a cluster of its own, or a broken invariant of core or scheduler.
    pub fn run(
        trace: &'a Trace,
        place: &Place,
        policy: &PolicyFile,
        clock: &mut dyn FnMut() -> u64,
    ) -> Result<Self, String> {
        let mut parts = Vec::new();
        for (account, jobs) in by_cluster(trace, policy.per_account_clusters) {
            let hardware = match (place, &account) {
                (Place::Sized(wish), _) => Hardware::sized(&jobs, wish),
                (Place::Given(hardware), None) | (Place::Each(hardware), _) => hardware.clone(),
                (Place::Given(hardware), Some(account)) => of_account(hardware, account)?,
            };
            let outcome = run(&jobs, &hardware, &policy.config(&hardware), &policy.settings, clock)?;
            parts.push(Part { account, hardware, jobs, outcome });
        }
        let setting = Setting {
            policy: policy.name.clone(),
            cluster: describe(&parts),
            notes: notes(trace, policy, &parts),
        };
        let outcomes: Vec<_> = parts.iter().map(|part| (&part.jobs[..], &part.outcome)).collect();
        let measures = Measures::of(setting, &outcomes);
        Ok(Self { measures, parts })
    }

    /// Every job with its start, as CSV in the order of the trace. Of a job that was preempted the last run.
    pub fn starts_csv(&self) -> String {
        let mut rows: Vec<(&TraceJob, String)> = Vec::new();
        for part in &self.parts {
            for (job, out) in part.jobs.iter().zip(&part.outcome.jobs) {
                let (start, end, nodes) = if out.fate.ran() {
                    let prefix = part.account.as_ref().map_or(String::new(), |account| format!("{account}/"));
                    let names = out.nodes.iter().map(|at| &*part.hardware.nodes[*at as usize].name);
                    let nodes = csv::written(&format!("{prefix}{}", compress(names))).into_owned();
                    (secs(out.last_start_ms), secs(out.end_ms), nodes)
                } else {
                    Default::default()
                };
                let fate = match out.fate {
                    Fate::Finished => "finished",
                    Fate::TimedOut => "timeout",
                    Fate::Refused(_) => "refused",
                    Fate::NeverStarted(_) => "pending",
                    Fate::Cancelled => "preempted",
                    Fate::Skipped => "skipped",
                };
                let mut row = String::new();
                let gpus = job.gpu_milli as f64 / 1000.0;
                let _ = write!(
                    row,
                    "{},{},{start},{end},{nodes},{gpus},{fate},{}",
                    csv::written(&job.id),
                    secs(out.submit_ms),
                    out.preemptions
                );
                rows.push((job, row));
            }
        }
        // Jobs of several clusters go back to the order of the file: they are parts of one slice.
        rows.sort_by_key(|(job, _)| std::ptr::from_ref(*job));
        let mut text = String::from("job_id,submit_s,start_s,end_s,nodes,gpus,state,preemptions\n");
        for (_, row) in rows {
            text.push_str(&row);
            text.push('\n');
        }
        text
    }
}

/// Seconds with as many decimals as they need.
fn secs(ms: i64) -> String {
    if ms % 1000 == 0 { (ms / 1000).to_string() } else { format!("{}.{:03}", ms / 1000, ms % 1000) }
}

fn by_cluster(trace: &Trace, per_account: bool) -> Vec<(Option<String>, Vec<&TraceJob>)> {
    if !per_account {
        return vec![(None, trace.jobs.iter().collect())];
    }
    let mut parts: BTreeMap<&str, Vec<&TraceJob>> = BTreeMap::new();
    for job in &trace.jobs {
        parts.entry(&job.account).or_default().push(job);
    }
    parts.into_iter().map(|(account, jobs)| (Some(account.to_owned()), jobs)).collect()
}

/// The nodes of the partition with the account's name.
fn of_account(hardware: &Hardware, account: &str) -> Result<Hardware, String> {
    let Some(partition) = hardware.partitions.iter().find(|partition| partition.name == account) else {
        let names: Vec<&str> = hardware.partitions.iter().map(|partition| &*partition.name).collect();
        return Err(format!(
            "per_account_clusters: the cluster has no partition {account:?} for the jobs of that account (it has {}). \
             Add [partition.{account}] with its nodes, or leave out --cluster: each account's is sized then.",
            names.join(", ")
        ));
    };
    let nodes = hardware.nodes.iter().filter(|node| partition.holds(&node.name, &node.shape.features)).cloned();
    let mut own = partition.clone();
    own.is_default = true;
    own.nodes = NodeSelection::All;
    Ok(Hardware { nodes: nodes.collect(), partitions: vec![own], notes: hardware.notes.clone() })
}

fn describe(parts: &[Part]) -> String {
    match parts {
        [one] => one.hardware.describe(),
        many => {
            let (nodes, gpus, cpus) = many.iter().fold((0, 0, 0), |(nodes, gpus, cpus), part| {
                (nodes + part.hardware.nodes.len(), gpus + part.hardware.gpus(), cpus + part.hardware.cpus())
            });
            let list: Vec<String> = many
                .iter()
                .take(20)
                .map(|part| format!("{} {}", part.account.as_deref().unwrap_or(""), part.hardware.gpus()))
                .collect();
            format!("{} clusters: {nodes} nodes, {gpus} GPUs, {cpus} CPUs (GPUs by account: {})", many.len(), list.join(", "))
        }
    }
}

fn notes(trace: &Trace, policy: &PolicyFile, parts: &[Part]) -> Vec<String> {
    let mut notes: Vec<String> = parts.first().map_or(Vec::new(), |part| part.hardware.notes.clone());
    if parts.iter().any(|part| !part.hardware.names_types() && part.jobs.iter().any(|job| !job.gpu_types.is_empty())) {
        notes.push("the GPUs of the cluster are of no named type: gpu_type of the trace is taken as any".into());
    }
    let unlimited = trace.jobs.iter().filter(|job| job.limit_ms.is_none() && job.run_ms.is_some()).count();
    if policy.settings.runtime == Runtime::Limit && unlimited > 0 {
        notes.push(format!("{unlimited} jobs name no time limit: of these the scheduler is told how long they run"));
    }
    let over = |job: &&TraceJob| job.limit_ms.zip(job.run_ms).is_some_and(|(limit, run)| run > limit);
    let over = trace.jobs.iter().filter(over).count();
    if over > 0 {
        let what = if policy.settings.kill_at_limit { "are ended there" } else { "run as long as they did" };
        notes.push(format!("{over} jobs ran longer than their limit, and {what} (kill_at_limit)"));
    }
    let mut elsewhere: BTreeMap<&str, usize> = BTreeMap::new();
    if let [part] = parts {
        for job in part.jobs.iter().filter(|job| !job.partition.is_empty()) {
            if !part.hardware.partitions.iter().any(|partition| *partition.name == *job.partition) {
                *elsewhere.entry(&job.partition).or_default() += 1;
            }
        }
    }
    if !elsewhere.is_empty() {
        let names: Vec<&str> = elsewhere.keys().copied().take(8).collect();
        let count: usize = elsewhere.values().sum();
        notes.push(format!("{count} jobs of partitions that the cluster does not have ({}) go to its default", names.join(", ")));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::NodeShape;

    const TRACE: &str = "job_id,account,submit_s,run_s,gpus\na,x,0,100,2\nb,y,10.5,50,2\nc,x,20,10,1\nd,x,30,,1\ne,x,40,5,9\n";

    fn uniform(count: u32, gpus: u32) -> Place {
        let shape = NodeShape { gpus, cpus: 8, mem_bytes: 1 << 30, ..NodeShape::default() };
        Place::Given(Hardware::uniform(count, &shape))
    }

    fn starts(place: &Place, policy: &str) -> Result<String, String> {
        let trace = Trace::parse(TRACE).unwrap();
        let policy = PolicyFile::parse("test", policy)?;
        Experiment::run(&trace, place, &policy, &mut || 0).map(|done| done.starts_csv())
    }

    #[test]
    fn starts_are_listed_in_the_order_of_the_trace() {
        let expected = "job_id,submit_s,start_s,end_s,nodes,gpus,state,preemptions\n\
                        a,0,0,100,n1,2,finished,0\nb,10.500,100,150,n1,2,finished,0\nc,20,150,160,n1,1,finished,0\n\
                        d,30,,,,1,skipped,0\ne,40,,,,9,refused,0\n";
        assert_eq!(starts(&uniform(1, 2), "order = \"fifo\"\nbackfill = \"off\"\n").unwrap(), expected);
    }

    #[test]
    fn what_neither_trace_nor_nodes_say_stands_in_nobodys_way() {
        let trace = Trace::parse("job_id,submit_s,run_s,gpus,cpus,mem_mb\na,0,100,6,,\nb,0,100,2,64,4000\nc,0,100,8,,\n").unwrap();
        let place = Place::Given(Hardware::from_csv("node,gpus\nn1,4\nn2,4\n").unwrap());
        let done = Experiment::run(&trace, &place, &PolicyFile::named("fifo").unwrap(), &mut || 0).unwrap();
        // More GPUs than a node has and no word of nodes: a whole node, and the rest on another.
        let expected = "job_id,submit_s,start_s,end_s,nodes,gpus,state,preemptions\n\
                        a,0,0,100,n[1-2],6,finished,0\nb,0,0,100,n2,2,finished,0\nc,0,100,200,n[1-2],8,finished,0\n";
        assert_eq!(done.starts_csv(), expected);
        assert!(done.measures.notes.iter().any(|note| note.starts_with("2 nodes without cpus")), "{:?}", done.measures.notes);
        // Who says one node means it.
        let trace = Trace::parse("job_id,submit_s,run_s,gpus,nodes\na,0,100,6,1\n").unwrap();
        let done = Experiment::run(&trace, &place, &PolicyFile::named("fifo").unwrap(), &mut || 0).unwrap();
        assert_eq!(done.measures.refused, 1);
    }

    #[test]
    fn where_the_cluster_names_no_types_those_of_the_trace_are_taken_as_any() {
        let trace = Trace::parse("job_id,submit_s,run_s,gpus,gpu_type\na,0,100,2,h100\nb,0,100,2,a100|h100\n").unwrap();
        let policy = PolicyFile::named("default").unwrap();
        let done = |place: &Place| {
            let done = Experiment::run(&trace, place, &policy, &mut || 0).unwrap();
            (done.measures.finished, done.measures.refused, done.measures.notes.iter().any(|note| note.contains("taken as any")))
        };
        assert_eq!(done(&Place::Sized(Wish::of(&trace))), (2, 0, true));
        assert_eq!(done(&uniform(1, 4)), (2, 0, true));
        let shape = NodeShape { gpus: 4, gpu_type: "a100".into(), cpus: 8, mem_bytes: 1 << 30, ..NodeShape::default() };
        assert_eq!(done(&Place::Given(Hardware::uniform(1, &shape))), (1, 1, false), "there is no h100");
    }

    #[test]
    fn accounts_on_clusters_of_their_own_do_not_wait_for_each_other() {
        let trace = Trace::parse(TRACE).unwrap();
        let sized = Place::Sized(Wish { gpus_per_node: Some(2), ..Wish::of(&trace) });
        let text = starts(&sized, "per_account_clusters = true").unwrap();
        assert!(text.contains("\nb,10.500,10.500,60.500,y/g1,2,finished,0\n"), "{text}");
        let Place::Given(two) = uniform(1, 2) else { unreachable!() };
        let text = starts(&Place::Each(two), "per_account_clusters = true").unwrap();
        assert!(text.contains("\nb,10.500,10.500,60.500,y/n1,2,finished,0\nc,20,100,110,x/n1,1,"), "each has one node of two: {text}");
        let error = starts(&uniform(1, 2), "per_account_clusters = true").unwrap_err();
        assert!(error.contains("no partition \"x\" for the jobs of that account (it has main)"), "{error}");
    }

    /// One account holds both GPUs beyond its guarantee until the other asks for what is its own.
    #[test]
    fn a_preempted_job_goes_on_from_its_last_mark() {
        let trace = Trace::parse("job_id,account,submit_s,run_s,gpus\na,x,0,10000,2\nb,y,4000,1000,2\n").unwrap();
        let run = |marks: &str| {
            let policy = format!("{marks}\n[account.x]\n[account.y]\nguaranteed = 2\n");
            let policy = PolicyFile::parse("test", &policy).unwrap();
            let done = Experiment::run(&trace, &uniform(1, 2), &policy, &mut || 0).unwrap();
            (done.measures.preemptions, done.measures.gpu_hours_lost, done.parts[0].outcome.jobs[0].end_ms / 1000)
        };
        // All of 4,000 s on two GPUs is done again, or what came after the mark at 3,600 s, or nothing.
        assert_eq!(run(""), (1, 2.2222, 15_000));
        assert_eq!(run("marks_every = \"1:00:00\""), (1, 0.2222, 11_400));
        assert_eq!(run("[preempt]\ndefault_checkpoint = \"USR1@60\""), (1, 0.0, 11_000));
    }

    /// Every night at ten in Berlin the cluster is kept for somebody else.
    #[test]
    fn with_a_date_windows_and_periods_are_those_of_the_sites_clock() {
        let trace = Trace::parse("job_id,account,submit_s,run_s,time_limit_s,gpus\na,x,0,3600,7200,1\nb,x,100,3600,3600,1\nc,x,200,60,60,1\n").unwrap();
        let site = "time_zone = \"Europe/Berlin\"\n[reservation.night]\nnodes = \"ALL\"\nstart = 2026-01-05T22:00:00\nduration = \"8:00:00\"\nrepeat = \"daily\"\n";
        let starts = |policy: &str| -> Vec<i64> {
            let policy = PolicyFile::parse("x", policy).unwrap();
            let done = Experiment::run(&trace, &uniform(1, 1), &policy, &mut || 0).unwrap();
            done.parts[0].outcome.jobs.iter().map(|job| job.start_ms / 1000).collect()
        };
        let begin = |at: &str| format!("{site}[simulation]\nbegin = \"{at}\"\n");
        // At 20:30 there is no room for two hours before ten, but for one; the long one has to wait for six in the morning.
        assert_eq!(starts(&begin("2026-01-06T20:30:00")), [9 * 3600 + 1800, 100, 3700]);
        assert_eq!(starts(&begin("2026-01-06T12:00:00")), [0, 3600, 7200], "by day nothing is kept");
        assert_eq!(starts(site), [0, 3600, 7200], "without a date there is no night");
        // Two GPU-hours a month are enough for January's evening; of one, b waits for Berlin's first of February and c for March.
        let month = "time_zone = \"Europe/Berlin\"\n[account.x]\n[[account.x.budget]]\nkind = \"cap\"\ngpu_hours = 2\nperiod = \"month\"\n\
                     [simulation]\nbegin = \"2026-01-31T22:00:00\"\nruntime = \"actual\"\n";
        assert_eq!(starts(month), [0, 3600, 7200]);
        let early = month.replace("gpu_hours = 2", "gpu_hours = 1");
        assert_eq!(starts(&early), [0, 7200, 7200 + 28 * 86_400]);
    }

    #[test]
    fn the_measures_add_up() {
        let trace = Trace::parse(TRACE).unwrap();
        let policy = PolicyFile::parse("fifo", "order = \"fifo\"\nbackfill = \"off\"").unwrap();
        let done = Experiment::run(&trace, &uniform(1, 2), &policy, &mut || 0).unwrap();
        let m = &done.measures;
        assert_eq!((m.jobs, m.finished, m.refused, m.skipped, m.never_started), (5, 3, 1, 1, 0));
        assert_eq!((m.makespan_secs, m.wait_secs.max, m.wait_secs.median), (160.0, 130.0, 89.5));
        assert_eq!((m.gpu_use, m.accounts), (Some(0.9688), 2));
        assert_eq!(m.refusals.len(), 1);
        let again = Experiment::run(&trace, &uniform(1, 2), &policy, &mut || 0).unwrap();
        assert_eq!(again.measures.hash, m.hash);
    }
}
