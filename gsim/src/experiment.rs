//! One trace under one policy on one cluster (or on one for each account): what `gsim run` and `gsim compare` do.

use crate::hardware::{ClusterSizing, Hardware};
use crate::measures::{Measures, Setting};
use crate::outcome::{Fate, JobOutcome, Outcome};
use crate::policy_file::PolicyFile;
use crate::trace::{Trace, TraceJob};
use crate::trace_run::{Runtime, run};
use gmodel::config::NodeSelection;
use gmodel::hostlist::compress;
use std::collections::{BTreeMap, BTreeSet};

/// Where the jobs run.
#[derive(Clone, Debug)]
pub enum ClusterChoice {
    Given(Hardware),
    /// Of each cluster, where each account has one of its own.
    Each(Hardware),
    Sized(ClusterSizing),
}

/// Results of a policy, with everything they were computed from.
pub struct Experiment<'a> {
    pub measures: Measures,
    pub parts: Vec<ClusterPart<'a>>,
}

/// One simulated cluster and its jobs.
pub struct ClusterPart<'a> {
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
        place: &ClusterChoice,
        policy: &PolicyFile,
        clock: &mut dyn FnMut() -> u64,
    ) -> Result<Self, String> {
        let mut parts = Vec::new();
        for (account, jobs) in by_cluster(trace, policy.per_account_clusters) {
            let hardware = match (place, &account) {
                (ClusterChoice::Sized(wish), _) => Hardware::sized(&jobs, wish)?,
                (ClusterChoice::Given(hardware), None) | (ClusterChoice::Each(hardware), _) => {
                    hardware.clone()
                }
                (ClusterChoice::Given(hardware), Some(account)) => of_account(hardware, account)?,
            };
            let outcome = run(
                &jobs,
                &hardware,
                &policy.config(&hardware),
                &policy.settings,
                clock,
            )?;
            parts.push(ClusterPart {
                account,
                hardware,
                jobs,
                outcome,
            });
        }
        let setting = Setting {
            policy: policy.name.clone(),
            cluster: describe(&parts),
            notes: notes(trace, policy, &parts),
        };
        let outcomes: Vec<_> = parts
            .iter()
            .map(|part| (&part.jobs[..], &part.outcome))
            .collect();
        let measures = Measures::of(setting, &outcomes);
        Ok(Self { measures, parts })
    }

    /// Every run of every job, as CSV in the order of the trace; a job that never ran has one row.
    pub fn starts_csv(&self) -> String {
        let mut rows: Vec<(&TraceJob, Vec<RunRow>)> = Vec::new();
        for part in &self.parts {
            rows.extend(
                part.jobs
                    .iter()
                    .zip(&part.outcome.jobs)
                    .map(|(job, out)| (*job, part.run_rows(job, out))),
            );
        }
        // Jobs of several clusters go back to the order of the file: they are parts of one slice.
        rows.sort_by_key(|(job, _)| std::ptr::from_ref(*job));
        let mut text = csv::Writer::from_writer(Vec::new());
        let all = rows.iter().flat_map(|(_, rows)| rows.iter());
        for row in std::iter::once(&RUN_COLUMNS.map(str::to_owned)).chain(all) {
            // Memory takes every write.
            let _ = text.write_record(row);
        }
        String::from_utf8(text.into_inner().unwrap_or_default()).unwrap_or_default()
    }
}

const RUN_COLUMNS: [&str; 8] = [
    "job_id",
    "submit_s",
    "start_s",
    "end_s",
    "nodes",
    "gpus",
    "state",
    "preemptions",
];
/// The fields of [`RUN_COLUMNS`].
type RunRow = [String; RUN_COLUMNS.len()];

impl ClusterPart<'_> {
    /// A row for each run of a job. `preemptions` counts those before the run's end, its own among them.
    fn run_rows(&self, job: &TraceJob, out: &JobOutcome) -> Vec<RunRow> {
        let mut rows = Vec::new();
        let mut row = |times: Option<(i64, i64, &[u32])>, state: &str, preemptions: u32| {
            let (start, end, nodes) = times
                .map_or_else(Default::default, |(start_ms, end_ms, nodes)| {
                    (secs(start_ms), secs(end_ms), self.names(nodes))
                });
            rows.push([
                job.id.to_string(),
                secs(out.submit_ms),
                start,
                end,
                nodes,
                (job.gpu_milli as f64 / 1000.0).to_string(),
                state.to_owned(),
                preemptions.to_string(),
            ]);
        };
        for (run, preemptions) in out.preempted.iter().zip(1..) {
            row(
                Some((run.start_ms, run.end_ms, &run.nodes)),
                "preempted",
                preemptions,
            );
        }
        let last = out
            .fate
            .ran()
            .then_some((out.last_start_ms, out.end_ms, &out.nodes[..]));
        let state = match out.fate {
            Fate::Finished => "finished",
            Fate::TimedOut => "timeout",
            Fate::Refused(_) => "refused",
            Fate::NeverStarted(_) => "pending",
            Fate::Skipped => "skipped",
            // Its last run is among those above.
            Fate::Cancelled => return rows,
        };
        row(last, state, out.preemptions);
        rows
    }

    /// A field of node names.
    fn names(&self, nodes: &[u32]) -> String {
        let prefix = self
            .account
            .as_ref()
            .map_or(String::new(), |account| format!("{account}/"));
        let names = nodes
            .iter()
            .map(|at| &*self.hardware.nodes[*at as usize].name);
        format!("{prefix}{}", compress(names))
    }
}

/// Seconds with as many decimals as they need.
fn secs(ms: i64) -> String {
    if ms % 1000 == 0 {
        (ms / 1000).to_string()
    } else {
        format!("{}.{:03}", ms / 1000, ms % 1000)
    }
}

fn by_cluster(trace: &Trace, per_account: bool) -> Vec<(Option<String>, Vec<&TraceJob>)> {
    if !per_account {
        return vec![(None, trace.jobs.iter().collect())];
    }
    let mut parts: BTreeMap<&str, Vec<&TraceJob>> = BTreeMap::new();
    for job in &trace.jobs {
        parts.entry(&job.account).or_default().push(job);
    }
    parts
        .into_iter()
        .map(|(account, jobs)| (Some(account.to_owned()), jobs))
        .collect()
}

/// The nodes of the partition with the account's name.
fn of_account(hardware: &Hardware, account: &str) -> Result<Hardware, String> {
    let Some(partition) = hardware
        .partitions
        .iter()
        .find(|partition| partition.name == account)
    else {
        let names: Vec<&str> = hardware
            .partitions
            .iter()
            .map(|partition| &*partition.name)
            .collect();
        return Err(format!(
            "per_account_clusters: the cluster has no partition {account:?} for the jobs of that account (it has {}). \
             Add [partition.{account}] with its nodes, or leave out --cluster: each account's is sized then.",
            names.join(", ")
        ));
    };
    let nodes = hardware
        .nodes
        .iter()
        .filter(|node| partition.holds(&node.name, &node.shape.features))
        .cloned();
    let mut own = partition.clone();
    own.is_default = true;
    own.nodes = NodeSelection::All;
    Ok(Hardware {
        nodes: nodes.collect(),
        partitions: vec![own],
        notes: hardware.notes.clone(),
    })
}

fn describe(parts: &[ClusterPart]) -> String {
    match parts {
        [one] => one.hardware.describe(),
        many => {
            let (nodes, gpus, cpus) = many.iter().fold((0, 0, 0), |(nodes, gpus, cpus), part| {
                (
                    nodes + part.hardware.nodes.len(),
                    gpus + part.hardware.gpus(),
                    cpus + part.hardware.cpus(),
                )
            });
            let list: Vec<String> = many
                .iter()
                .take(20)
                .map(|part| {
                    format!(
                        "{} {}",
                        part.account.as_deref().unwrap_or(""),
                        part.hardware.gpus()
                    )
                })
                .collect();
            format!(
                "{} clusters: {nodes} nodes, {gpus} GPUs, {cpus} CPUs (GPUs by account: {})",
                many.len(),
                list.join(", ")
            )
        }
    }
}

fn notes(trace: &Trace, policy: &PolicyFile, parts: &[ClusterPart]) -> Vec<String> {
    let mut notes: Vec<String> = parts
        .first()
        .map_or(Vec::new(), |part| part.hardware.notes.clone());
    if parts.iter().any(|part| {
        !part.hardware.names_types() && part.jobs.iter().any(|job| !job.gpu_types.is_empty())
    }) {
        notes.push(
            "the GPUs of the cluster are of no named type: gpu_type of the trace is taken as any"
                .into(),
        );
    }
    notes.extend(trace.notes.iter().cloned());
    notes.extend(
        trace
            .unlimited()
            .filter(|_| policy.settings.runtime == Runtime::Limit),
    );
    let all = parts
        .iter()
        .flat_map(|part| part.jobs.iter().zip(&part.outcome.jobs));
    let over = all
        .filter(|(job, out)| {
            out.limit_ms
                .zip(job.run_ms)
                .is_some_and(|(limit, run)| run > limit)
        })
        .count();
    if over > 0 {
        let what = if policy.settings.kill_at_limit {
            "are ended there"
        } else {
            "run as long as they did"
        };
        notes.push(format!(
            "{over} jobs ran longer than their limit, and {what} (kill_at_limit)"
        ));
    }
    if let [part] = parts {
        notes.extend(elsewhere_note(part));
    }
    notes
}

/// How many jobs name a partition that the cluster does not have.
fn elsewhere_note(part: &ClusterPart) -> Option<String> {
    let known: BTreeSet<&str> = part
        .hardware
        .partitions
        .iter()
        .map(|partition| &*partition.name)
        .collect();
    let mut elsewhere: BTreeMap<&str, usize> = BTreeMap::new();
    for job in &part.jobs {
        if !job.partition.is_empty() && !known.contains(&*job.partition) {
            *elsewhere.entry(&job.partition).or_default() += 1;
        }
    }
    let names: Vec<&str> = elsewhere.keys().copied().take(8).collect();
    let count: usize = elsewhere.values().sum();
    (count > 0).then(|| {
        format!(
            "{count} jobs of partitions that the cluster does not have ({}) go to its default",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::NodeShape;
    use crate::trace::NoLimit;

    const TRACE: &str = "job_id,account,submit_s,run_s,gpus\na,x,0,100,2\nb,y,10.5,50,2\nc,x,20,10,1\nd,x,30,,1\ne,x,40,5,9\n";

    fn uniform(count: u32, gpus: u32) -> ClusterChoice {
        let shape = NodeShape {
            gpus,
            cpus: 8,
            mem_bytes: 1 << 30,
            ..NodeShape::default()
        };
        ClusterChoice::Given(Hardware::uniform(count, &shape))
    }

    fn starts(place: &ClusterChoice, policy: &str) -> Result<String, String> {
        let trace = Trace::parse(TRACE).unwrap();
        let policy = PolicyFile::parse("test", policy)?;
        Experiment::run(&trace, place, &policy, &mut || 0).map(|done| done.starts_csv())
    }

    #[test]
    fn starts_are_listed_in_the_order_of_the_trace() {
        let expected = "job_id,submit_s,start_s,end_s,nodes,gpus,state,preemptions\n\
                        a,0,0,100,n1,2,finished,0\nb,10.500,100,150,n1,2,finished,0\nc,20,150,160,n1,1,finished,0\n\
                        d,30,,,,1,skipped,0\ne,40,,,,9,refused,0\n";
        assert_eq!(
            starts(&uniform(1, 2), "order = \"fifo\"\nbackfill = \"off\"\n").unwrap(),
            expected
        );
    }

    #[test]
    fn what_neither_trace_nor_nodes_say_stands_in_nobodys_way() {
        let trace = Trace::parse(
            "job_id,submit_s,run_s,gpus,cpus,mem_mb\na,0,100,6,,\nb,0,100,2,64,4000\nc,0,100,8,,\n",
        )
        .unwrap();
        let place = ClusterChoice::Given(Hardware::from_csv("node,gpus\nn1,4\nn2,4\n").unwrap());
        let done = Experiment::run(
            &trace,
            &place,
            &PolicyFile::named("fifo").unwrap(),
            &mut || 0,
        )
        .unwrap();
        // More GPUs than a node has and no word of nodes: a whole node, and the rest on another.
        let expected = "job_id,submit_s,start_s,end_s,nodes,gpus,state,preemptions\n\
                        a,0,0,100,n[1-2],6,finished,0\nb,0,0,100,n2,2,finished,0\nc,0,100,200,n[1-2],8,finished,0\n";
        assert_eq!(done.starts_csv(), expected);
        assert!(
            done.measures
                .notes
                .iter()
                .any(|note| note.starts_with("2 nodes without cpus")),
            "{:?}",
            done.measures.notes
        );
        // An explicit one node is kept.
        let trace = Trace::parse("job_id,submit_s,run_s,gpus,nodes\na,0,100,6,1\n").unwrap();
        let done = Experiment::run(
            &trace,
            &place,
            &PolicyFile::named("fifo").unwrap(),
            &mut || 0,
        )
        .unwrap();
        assert_eq!(done.measures.refused, 1);
    }

    #[test]
    fn where_the_cluster_names_no_types_those_of_the_trace_are_taken_as_any() {
        let trace = Trace::parse(
            "job_id,submit_s,run_s,gpus,gpu_type\na,0,100,2,h100\nb,0,100,2,a100|h100\n",
        )
        .unwrap();
        let policy = PolicyFile::named("default").unwrap();
        let done = |place: &ClusterChoice| {
            let done = Experiment::run(&trace, place, &policy, &mut || 0).unwrap();
            (
                done.measures.finished,
                done.measures.refused,
                done.measures
                    .notes
                    .iter()
                    .any(|note| note.contains("taken as any")),
            )
        };
        assert_eq!(
            done(&ClusterChoice::Sized(ClusterSizing::of(&trace))),
            (2, 0, true)
        );
        assert_eq!(done(&uniform(1, 4)), (2, 0, true));
        let shape = NodeShape {
            gpus: 4,
            gpu_type: "a100".into(),
            cpus: 8,
            mem_bytes: 1 << 30,
            ..NodeShape::default()
        };
        assert_eq!(
            done(&ClusterChoice::Given(Hardware::uniform(1, &shape))),
            (1, 1, false),
            "there is no h100"
        );
    }

    #[test]
    fn accounts_on_clusters_of_their_own_do_not_wait_for_each_other() {
        let trace = Trace::parse(TRACE).unwrap();
        let sized = ClusterChoice::Sized(ClusterSizing {
            gpus_per_node: Some(2),
            ..ClusterSizing::of(&trace)
        });
        let text = starts(&sized, "per_account_clusters = true").unwrap();
        assert!(
            text.contains("\nb,10.500,10.500,60.500,y/g1,2,finished,0\n"),
            "{text}"
        );
        let ClusterChoice::Given(two) = uniform(1, 2) else {
            unreachable!()
        };
        let text = starts(&ClusterChoice::Each(two), "per_account_clusters = true").unwrap();
        assert!(
            text.contains("\nb,10.500,10.500,60.500,y/n1,2,finished,0\nc,20,100,110,x/n1,1,"),
            "each has one node of two: {text}"
        );
        let error = starts(&uniform(1, 2), "per_account_clusters = true").unwrap_err();
        assert!(
            error.contains("no partition \"x\" for the jobs of that account (it has main)"),
            "{error}"
        );
    }

    /// One account holds both GPUs beyond its guarantee until the other asks for what is its own.
    #[test]
    fn a_preempted_job_goes_on_from_its_last_mark() {
        let trace =
            Trace::parse("job_id,account,submit_s,run_s,gpus\na,x,0,10000,2\nb,y,4000,1000,2\n")
                .unwrap();
        let run = |marks: &str| {
            let policy = format!("{marks}\n[account.x]\n[account.y]\nguaranteed = 2\n");
            let policy = PolicyFile::parse("test", &policy).unwrap();
            let done = Experiment::run(&trace, &uniform(1, 2), &policy, &mut || 0).unwrap();
            (
                done.measures.preemptions,
                done.measures.gpu_hours_lost,
                done.parts[0].outcome.jobs[0].end_ms / 1000,
            )
        };
        // All of 4,000 s on two GPUs is done again, or what came after the mark at 3,600 s, or nothing.
        assert_eq!(run(""), (1, 2.2222, 15_000));
        assert_eq!(run("marks_every = \"1:00:00\""), (1, 0.2222, 11_400));
        assert_eq!(
            run("[preempt]\ndefault_checkpoint = \"USR1@60\""),
            (1, 0.0, 11_000)
        );
        // Both of its runs are listed.
        let policy =
            PolicyFile::parse("test", "[account.x]\n[account.y]\nguaranteed = 2\n").unwrap();
        let starts = Experiment::run(&trace, &uniform(1, 2), &policy, &mut || 0)
            .unwrap()
            .starts_csv();
        let rows = "a,0,0,4000,n1,2,preempted,1\na,0,5000,15000,n1,2,finished,1\nb,4000,4000,5000,n1,2,finished,0\n";
        assert!(starts.ends_with(rows), "{starts}");
    }

    /// A job of three hours runs where it is known to be over before the head's turn; the controller's limit of a day says otherwise.
    #[test]
    fn of_a_job_without_a_limit_the_scheduler_knows_what_a_controller_would() {
        let text = "job_id,submit_s,run_s,time_limit_s,gpus\na,0,20000,20000,1\nb,10,100,100,2\nc,20,10800,,1\n";
        let starts = |by: Option<NoLimit>, limits: &str| -> Vec<i64> {
            let mut trace = Trace::parse(text).unwrap();
            by.into_iter().for_each(|by| trace.limit(by));
            let cluster = format!(
                "[[node]]\nnames = \"n1\"\ngpus = 2\ncpus = 8\n[partition.p]\nnodes = \"n1\"\ndefault = true\n{limits}"
            );
            let place = ClusterChoice::Given(
                Hardware::from_toml("c", &cluster, &NodeShape::default()).unwrap(),
            );
            let done = Experiment::run(
                &trace,
                &place,
                &PolicyFile::named("default").unwrap(),
                &mut || 0,
            )
            .unwrap();
            done.parts[0]
                .outcome
                .jobs
                .iter()
                .map(|job| job.start_ms / 1000)
                .collect()
        };
        let (passes, waits) = (vec![0, 20_000, 20], vec![0, 20_000, 20_100]);
        assert_eq!(starts(Some(NoLimit::Truth), ""), passes);
        assert_eq!(
            starts(None, ""),
            waits,
            "a day where the partition says nothing"
        );
        assert_eq!(starts(None, "default_time = \"4:00:00\"\n"), passes);
        assert_eq!(
            starts(None, "max_time = \"6:00:00\"\ndefault_time = \"4:00:00\"\n"),
            passes
        );
        assert_eq!(starts(Some(NoLimit::Secs(14_400)), ""), passes);
        assert_eq!(starts(Some(NoLimit::Secs(30_000)), ""), waits);
    }

    #[test]
    fn at_the_limit_that_the_controller_gave_it_a_run_is_ended_as_at_its_own() {
        let trace = Trace::parse("job_id,submit_s,run_s,gpus\na,0,90000,1\n").unwrap();
        let run = |policy: &str| {
            let done = Experiment::run(
                &trace,
                &uniform(1, 1),
                &PolicyFile::parse("x", policy).unwrap(),
                &mut || 0,
            )
            .unwrap();
            (
                done.measures.timed_out,
                done.measures.makespan_secs,
                done.measures
                    .notes
                    .concat()
                    .contains("1 jobs ran longer than their limit"),
            )
        };
        assert_eq!(run(""), (0, 90_000.0, true));
        assert_eq!(run("kill_at_limit = true"), (1, 86_400.0, true));
    }

    /// Every night at ten in Berlin the cluster is reserved for another account.
    #[test]
    fn with_a_date_windows_and_periods_are_those_of_the_sites_clock() {
        let trace = Trace::parse("job_id,account,submit_s,run_s,time_limit_s,gpus\na,x,0,3600,7200,1\nb,x,100,3600,3600,1\nc,x,200,60,60,1\n").unwrap();
        let site = "time_zone = \"Europe/Berlin\"\n[reservation.night]\nnodes = \"ALL\"\nstart = 2026-01-05T22:00:00\nduration = \"8:00:00\"\nrepeat = \"daily\"\n";
        let starts = |policy: &str| -> Vec<i64> {
            let policy = PolicyFile::parse("x", policy).unwrap();
            let done = Experiment::run(&trace, &uniform(1, 1), &policy, &mut || 0).unwrap();
            done.parts[0]
                .outcome
                .jobs
                .iter()
                .map(|job| job.start_ms / 1000)
                .collect()
        };
        let begin = |at: &str| format!("{site}[simulation]\nbegin = \"{at}\"\n");
        // At 20:30 there is no room for two hours before ten, but for one; the long one has to wait for six in the morning.
        assert_eq!(
            starts(&begin("2026-01-06T20:30:00")),
            [9 * 3600 + 1800, 100, 3700]
        );
        assert_eq!(
            starts(&begin("2026-01-06T12:00:00")),
            [0, 3600, 7200],
            "by day nothing is kept"
        );
        assert_eq!(
            starts(site),
            [0, 3600, 7200],
            "without a date there is no night"
        );
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
        assert_eq!(
            (m.jobs, m.finished, m.refused, m.skipped, m.never_started),
            (5, 3, 1, 1, 0)
        );
        assert_eq!(
            (m.makespan_secs, m.wait_secs.max, m.wait_secs.median),
            (160.0, 130.0, 89.5)
        );
        assert_eq!((m.gpu_use, m.accounts), (Some(0.9688), 2));
        assert_eq!(m.refusals.len(), 1);
        let again = Experiment::run(&trace, &uniform(1, 2), &policy, &mut || 0).unwrap();
        assert_eq!(again.measures.hash, m.hash);
    }
}
