//! `gacct efficiency`: what jobs made of what they held, one by one as seff prints it, as a table, or by groups. `gacct JOB`
//! shows the same below the job's record. Source: seff(1).

use crate::job_filter::own_name;
use crate::usage_report::{self, PeriodArgs, percent};
use gcli::answer::print_json;
use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Failure, Outcome};
use gmodel::duration::sacct_time;
use gmodel::job_key::JobText;
use gmodel::size::exact_size;
use gmodel::{Instant, Timestamp};
use gwire::api::{GpuUseRow, RunQuery, RunRow, RunRowKey};
use gwire::client::{Client, path_with_query};
use nix::unistd::Uid;
use std::fmt::Write as _;
use std::io::Write;

/// Options of `gacct efficiency`.
#[derive(clap::Args)]
pub(crate) struct EfficiencyArgs {
    /// These jobs, one by one: 17, 98_5
    #[arg(value_name = "JOB")]
    pub jobs: Vec<String>,
    /// A line for each job, or groups as of report: user, account, partition, gpu-type, tag, class, gpus, cpus
    #[arg(
        long,
        value_name = "LIST",
        default_value = "job",
        conflicts_with = "jobs"
    )]
    pub by: String,
    /// With --by job: jobs of all users
    #[arg(short, long)]
    pub allusers: bool,
    #[command(flatten)]
    pub period: PeriodArgs,
}

pub(crate) fn run(client: &mut Client, args: &EfficiencyArgs, now: Timestamp) -> Outcome {
    if !args.jobs.is_empty() {
        return records(client, &args.jobs, args.period.json, text);
    }
    match args.by.as_str() {
        "job" => listing(client, args, now),
        groups => usage_report::efficiency(client, groups, &args.period, now),
    }
}

/// The jobs named, each as `print` writes it.
pub(crate) fn records(
    client: &mut Client,
    jobs: &[String],
    json: bool,
    print: fn(&RunRow) -> String,
) -> Outcome {
    let path = path_with_query(
        "/v1/runs",
        &RunQuery {
            job: jobs.join(","),
            ..RunQuery::default()
        },
    );
    let mut out = stdout()?;
    if json {
        return print_json(client, &path);
    }
    let mut rows = client.rows(&path)?;
    let mut found = false;
    while let Some(row) = rows.next_row()? {
        let run: RunRow = serde_json::from_slice(row).map_err(Failure::new)?;
        if std::mem::replace(&mut found, true) {
            writeln!(out)?;
        }
        out.write_all(print(&run).as_bytes())?;
    }
    out.flush()?;
    if found {
        Ok(0)
    } else {
        Err(Failure::new(format_args!(
            "accounting has no job {}",
            jobs.join(",")
        )))
    }
}

fn listing(client: &mut Client, args: &EfficiencyArgs, now: Timestamp) -> Outcome {
    let (from, to) = args.period.bounds(now)?;
    let everybody = args.allusers || Uid::current().is_root();
    let user = if everybody {
        String::new()
    } else {
        own_name()?
    };
    let query = RunQuery {
        user,
        from: Some(Instant(from)),
        to: to.map(Instant),
        ..RunQuery::default()
    };
    let path = path_with_query("/v1/runs", &query);
    let mut out = stdout()?;
    if args.period.json {
        return print_json(client, &path);
    }
    const TITLES: [&str; 9] = [
        "JOBID", "USER", "STATE", "ELAPSED", "GPUS", "GPU_EFF", "GPU_IDLE", "CPU_EFF", "MEM_EFF",
    ];
    let mut rows = client.rows(&path)?;
    if args.period.parsable2 {
        if !args.period.noheader {
            writeln!(out, "{}", TITLES.join("|"))?;
        }
        while let Some(row) = rows.next_row()? {
            let run: RunRow = serde_json::from_slice(row).map_err(Failure::new)?;
            writeln!(
                out,
                "{}",
                cells(&run)
                    .map(|cell| printable(&cell).into_owned())
                    .join("|")
            )?;
        }
        out.flush()?;
        return Ok(0);
    }
    let columns = TITLES.iter().enumerate().map(|(at, title)| match at {
        0..3 => Column::text(title),
        _ => Column::number(title),
    });
    let mut table = TableWriter::new(
        out,
        columns.collect(),
        Screen::of_stdout(),
        !args.period.noheader,
    );
    while let Some(row) = rows.next_row()? {
        let run: RunRow = serde_json::from_slice(row).map_err(Failure::new)?;
        table.row(cells(&run).map(Into::into).into())?;
    }
    table.finish()?;
    Ok(0)
}

fn cells(run: &RunRow) -> [String; 9] {
    [
        run.shown_id.clone(),
        run.user.clone(),
        run.state.long().to_owned(),
        sacct_time(elapsed(run)),
        run.gpu_count.to_string(),
        percent(gpu_percent(run)).unwrap_or_default(),
        run.gpu_use
            .map(|used| sacct_time(used.idle_secs))
            .unwrap_or_default(),
        percent(run.cpu_percent).unwrap_or_default(),
        percent(run.mem_percent).unwrap_or_default(),
    ]
}

/// Mean use of its GPUs, percent.
fn gpu_percent(run: &RunRow) -> Option<f64> {
    run.gpu_use.and_then(|used| used.busy_percent)
}

fn elapsed(run: &RunRow) -> u64 {
    run.elapsed_secs.max(0).cast_unsigned()
}

/// As seff prints it, with what the GPUs did.
fn text(run: &RunRow) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        let _ = writeln!(text, "{key}: {}", printable(&value)); // to a String: cannot fail
    };
    line("Job ID", run.shown_id.clone());
    line("User", run.user.clone());
    line(
        "State",
        format!("{} (exit code {})", run.state.long(), run.exit_code),
    );
    line("Nodes", run.nodes.to_string());
    line("Cores", run.cpus.to_string());
    spent(run, &mut line);
    text
}

/// The lines about what was made of what was held.
fn spent(run: &RunRow, line: &mut impl FnMut(&str, String)) {
    let secs = elapsed(run);
    let of = |part: Option<f64>, whole: String| match part {
        Some(part) => format!("{part:.2}% of {whole}"),
        None => format!("unknown, of {whole}"),
    };
    line(
        "CPU Utilized",
        sacct_time(run.cpu_time_secs.max(0.0).round() as u64),
    );
    line(
        "CPU Efficiency",
        of(
            run.cpu_percent,
            format!("{} core-walltime", sacct_time(secs * u64::from(run.cpus))),
        ),
    );
    line("Job Wall-clock time", sacct_time(secs));
    line("Memory Utilized", rounded_size(run.peak_memory_bytes));
    line(
        "Memory Efficiency",
        of(run.mem_percent, exact_size(run.mem_bytes)),
    );
    if run.gpu_count == 0.0 {
        return;
    }
    line("GPUs", run.gpus.clone());
    let held = sacct_time((run.gpu_count * secs as f64) as u64);
    line(
        "GPU Efficiency",
        of(gpu_percent(run), format!("{held} GPU-walltime")),
    );
    if let Some(used) = &run.gpu_use {
        gpu_lines(used, line);
    }
}

/// What the GPUs of a job did.
pub fn gpu_lines(used: &GpuUseRow, line: &mut impl FnMut(&str, String)) {
    line("GPU Idle", sacct_time(used.idle_secs));
    line(
        "GPU Memory Utilized",
        format!(
            "{} at most on one GPU",
            rounded_size(used.memory_peak_bytes)
        ),
    );
    line(
        "GPU Power",
        format!(
            "{:.0} W and {} C at most",
            used.power_peak_watts, used.temperature_peak_c
        ),
    );
    line(
        "GPU Energy",
        format!(
            "{:.2} kWh ({} J)",
            used.energy_joules as f64 / 3.6e6,
            used.energy_joules
        ),
    );
    if used.slowed_secs > 0 {
        line("GPU Slowed Down", sacct_time(used.slowed_secs));
    }
}

/// `1.50 GB` as seff has it, of binary units.
fn rounded_size(bytes: u64) -> String {
    let mut size = bytes as f64;
    let mut units = ["B", "KB", "MB", "GB", "TB"].into_iter().peekable();
    let mut unit = units.next().unwrap_or("B");
    while size >= 1024.0 && units.peek().is_some() {
        size /= 1024.0;
        unit = units.next().unwrap_or(unit);
    }
    format!("{size:.2} {unit}")
}

/// One job in full: `gacct 17`.
pub(crate) fn record(run: &RunRow) -> String {
    let times = TimeFormat::from_env();
    let at =
        |instant: Option<Instant>| instant.map_or("Unknown".to_owned(), |at| times.print(at.0));
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(text, "{key}: {}", printable(&value));
        }
    };
    line("Job ID", run.shown_id.clone());
    line("Name", run.name.clone());
    line("User", run.user.clone());
    line("Account", run.account.clone());
    line("Partition", run.partition.clone());
    line("QOS", run.qos.clone());
    line(
        "State",
        format!("{} (exit code {})", run.state.long(), run.exit_code),
    );
    line("Reason", run.end_text.clone());
    line("Attempt", run.attempt.to_string());
    line("Submitted", at(run.submit_time));
    line("Started", at(run.start_time));
    line("Ended", at(run.end_time));
    line(
        "Nodes",
        if run.nodelist.is_empty() {
            run.nodes.to_string()
        } else {
            run.nodelist.clone()
        },
    );
    line("Cores", run.cpus.to_string());
    line("Class", run.class.clone().unwrap_or_default());
    line("Work Directory", run.work_dir.clone());
    for text in JobText::carried() {
        line(text.word, run.text(RunRowKey::of(text.key)).to_owned());
    }
    line("Tags", run.tags.join(","));
    spent(run, &mut line);
    line("Image", run.image.clone().unwrap_or_default());
    line("GPUs", run.gpu_uuids.join(","));
    line("GPU Events", run.gpu_events.join("; "));
    if run.lost_gpu_secs > 0 {
        line("GPU-time Lost", sacct_time(run.lost_gpu_secs));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_as_seff_does() {
        assert_eq!(rounded_size(0), "0.00 B");
        assert_eq!(rounded_size(1536 << 20), "1.50 GB");
        assert_eq!(rounded_size(5 << 50), "5120.00 TB");
    }
}
