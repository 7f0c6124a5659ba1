//! `gadm idle`: which jobs do not use their GPUs, and what the idle policies, or another one, make of it.

use gcli::local_time::{self, TimeFormat};
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Failure, Outcome};
use gmodel::Instant;
use gmodel::duration::{TimeLimit, squeue_time};
use gwire::api::{IdleQuery, IdleReportAnswer, IdleRunRow};
use gwire::client::{Client, path_with_query};
use std::io::Write;

/// What to see of idle GPUs.
#[derive(clap::Subcommand)]
pub(crate) enum IdleAct {
    /// Runs that are warned or ended now, or would have been in the last week, and the GPU-hours that come back by it: by the
    /// policies in force, or by one that is given here. Changes nothing
    Report(ReportArgs),
}

/// Which runs, and by which policy.
#[derive(clap::Args)]
pub(crate) struct ReportArgs {
    /// Runs that ended since (a week ago), as 2027-01-09 or now-30days
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Runs that ended until (now; only then also those that run)
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Of these users
    #[arg(long, short, value_name = "LIST")]
    user: Option<String>,
    /// Of these accounts
    #[arg(long, short = 'A', value_name = "LIST")]
    account: Option<String>,
    /// In these partitions
    #[arg(long, short, value_name = "LIST")]
    partition: Option<String>,
    /// Of these QOS
    #[arg(long, short, value_name = "LIST")]
    qos: Option<String>,
    /// As if runs were warned after so long
    #[arg(long, value_name = "TIME")]
    warn_after: Option<String>,
    /// As if they were ended after so long
    #[arg(long, value_name = "TIME")]
    act_after: Option<String>,
    /// As if so long after its start nothing counted
    #[arg(long, value_name = "TIME")]
    grace: Option<String>,
    /// As if so many of a run's GPUs had to be idle: 25, 50, 75 or 100
    #[arg(long, value_name = "PERCENT")]
    gpus_percent: Option<u32>,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(client: &mut Client, act: IdleAct) -> Outcome {
    let IdleAct::Report(args) = act;
    let path = path_with_query("/v1/idle", &query(&args)?);
    let mut out = stdout()?;
    if args.json {
        let answer: serde_json::Value = client.get(&path)?;
        writeln!(out, "{answer}")?;
        out.flush()?;
        return Ok(0);
    }
    let answer: IdleReportAnswer = client.get(&path)?;
    let columns = vec![
        Column::whole("JOB"),
        Column::whole("USER"),
        Column::whole("ACCOUNT"),
        Column::whole("PARTITION"),
        Column::number("GPUS"),
        Column::whole("START"),
        Column::whole("END"),
        Column::number("IDLE"),
        Column::number("WARNED"),
        Column::number("ENDED"),
        Column::number("GPUH_BACK"),
        Column::whole("ACTION"),
    ];
    let times = TimeFormat::from_env();
    let mut table = TableWriter::new(out, columns, Screen::of_stdout(), true);
    for run in &answer.runs {
        table.row(cells(run, &times).into_iter().map(Into::into).collect())?;
    }
    table.finish()?;
    writeln!(std::io::stderr(), "gadm: {}", summary(&answer))?;
    Ok(0)
}

fn cells(run: &IdleRunRow, times: &TimeFormat) -> Vec<String> {
    let at = |at: Option<Instant>, none: &str| {
        at.map_or_else(|| none.to_owned(), |at| times.print(at.0))
    };
    let after = |secs: u32| squeue_time(u64::from(secs));
    vec![
        run.job.clone(),
        run.user.clone(),
        run.account.clone(),
        run.partition.clone(),
        run.gpus.to_string(),
        at(run.start_time, "-"),
        at(run.end_time, "running"),
        after(run.idle_secs),
        after(run.warned_secs),
        run.ended_secs.map_or_else(|| "-".to_owned(), after),
        format!("{:.1}", run.gpu_hours_back),
        run.action.clone(),
    ]
}

fn summary(answer: &IdleReportAnswer) -> String {
    let by = match &answer.policy {
        None => "the policies in force".to_owned(),
        Some(policy) => format!(
            "warned after {} and ended after {} without use of {} % of the GPUs, the first {} not counted",
            squeue_time(u64::from(policy.warn_after_secs)),
            squeue_time(u64::from(policy.act_after_secs)),
            policy.gpus_percent,
            squeue_time(u64::from(policy.grace_secs)),
        ),
    };
    let plural = |count: u64| if count == 1 { "run" } else { "runs" };
    let (warned, ended) = (answer.warned, answer.ended);
    format!(
        "by {by}: {warned} {} warned, {ended} of them long enough idle to be ended, {:.1} GPU-hours after that",
        plural(warned),
        answer.gpu_hours_back
    )
}

fn query(args: &ReportArgs) -> Result<IdleQuery, Failure> {
    let now = local_time::now();
    let secs = |option: &str, text: &Option<String>| {
        let Some(text) = text else { return Ok(None) };
        let limit = TimeLimit::parse(text)
            .map_err(|why| Failure::usage(format_args!("--{option}: {why}")))?;
        let secs = if text.trim() == "0" {
            Some(0)
        } else {
            limit.secs().and_then(|secs| u32::try_from(secs).ok())
        };
        secs.map(Some).ok_or_else(|| {
            Failure::usage(format_args!(
                "--{option} {text}: it has to be a length of time, as 30:00"
            ))
        })
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Ok(IdleQuery {
        from: local_time::past_option("from", args.from.as_deref(), now)?,
        to: local_time::past_option("to", args.to.as_deref(), now)?,
        user: text(&args.user),
        account: text(&args.account),
        partition: text(&args.partition),
        qos: text(&args.qos),
        warn_after_secs: secs("warn-after", &args.warn_after)?,
        act_after_secs: secs("act-after", &args.act_after)?,
        grace_secs: secs("grace", &args.grace)?,
        gpus_percent: args.gpus_percent,
    })
}
