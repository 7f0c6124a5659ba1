//! `seff`: a job's use of its CPUs and memory, on seff's lines. Source: seff 2.1, as it prints.
//!
//! Owns the lines; the figures are those of accounting. What GPUs did follows below, as in `gacct efficiency`.

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use gcli::printable::printable;
use gcli::table::stdout;
use gcli::{Failure, Outcome, command_line};
use gmodel::JobState;
use gmodel::duration::sacct_time;
use gq::efficiency::gpu_lines;
use gslurm_json::value::job::group_of;
use gwire::api::{ClusterInfo, RunQuery, RunRow};
use gwire::client::path_with_query;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write;

/// What seff exits with where it has no such job.
const NOT_FOUND: u8 = 2;

#[derive(Parser)]
#[command(
    name = "seff",
    about = "What a job made of what it held, as seff prints it",
    disable_help_flag = true,
    disable_version_flag = true,
    after_help = "This is gpupool: gacct efficiency lists many jobs, gacct JOB shows one in full."
)]
struct SeffArgs {
    /// The job: 17, or a task of an array: 98_5
    #[arg(value_name = "JOB")]
    job: String,
    /// Print the version
    #[arg(short, action = ArgAction::Version)]
    version: Option<bool>,
    /// Show this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// `seff`.
pub(crate) fn main(words: Vec<OsString>) -> Outcome {
    let matches = command_line::parse_advising(
        SeffArgs::command(),
        words,
        &[(
            &["-d", "-f"],
            "gacct --json -j JOB prints all that is known",
        )],
    )?;
    let args = SeffArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    let mut client = gcli::connect("seff")?;
    let cluster = client.get::<ClusterInfo>("/v1/cluster")?.name;
    let mut rows = client.rows(&path_with_query(
        "/v1/runs",
        &RunQuery {
            job: args.job.clone(),
            ..RunQuery::default()
        },
    ))?;
    let Some(row) = rows.next_row()? else {
        writeln!(std::io::stderr(), "Job not found.")?;
        return Ok(NOT_FOUND);
    };
    let run: RunRow = serde_json::from_slice(row).map_err(Failure::new)?;
    let mut out = stdout()?;
    out.write_all(text(&run, &cluster, &group_of(&run.user, true)).as_bytes())?;
    out.flush()?;
    Ok(0)
}

fn text(run: &RunRow, cluster: &str, group: &str) -> String {
    let mut sheet = Sheet::default();
    sheet.identity(run, cluster, group);
    if run.state == JobState::Pending {
        sheet
            .0
            .push_str("Efficiency not available for jobs in the PENDING state.\n");
        return sheet.0;
    }
    sheet.efficiency(run);
    if run.state == JobState::Running {
        sheet.0.push_str("WARNING: Efficiency statistics can only be obtained after the job has ended: a node reports what was used at the end.\n");
    }
    sheet.0
}

/// The lines printed of one job.
#[derive(Default)]
struct Sheet(String);

impl Sheet {
    fn line(&mut self, key: &str, value: impl AsRef<str>) {
        let _ = writeln!(self.0, "{key}: {}", printable(value.as_ref())); // to a String: cannot fail
    }

    fn identity(&mut self, run: &RunRow, cluster: &str, group: &str) {
        self.line("Job ID", run.id.to_string());
        if run.array_id.is_some() {
            self.line("Array Job ID", &run.shown_id);
        }
        self.line("Cluster", cluster);
        self.line("User/Group", format!("{}/{group}", run.user));
        let state = run.state.long();
        if matches!(run.state, JobState::Pending | JobState::Running) {
            self.line("State", state);
        } else {
            // Of a signal seff knows nothing: its code is 0.
            let exit = run.exit_code.code;
            self.line("State", format!("{state} (exit code {exit})"));
        }
        let (cpus, nodes) = (run.cpus.max(1), run.nodes.max(1));
        if cpus == 1 {
            self.line("Cores", cpus.to_string());
        } else {
            self.line("Nodes", nodes.to_string());
            self.line("Cores per node", (cpus / nodes).to_string());
        }
    }

    fn efficiency(&mut self, run: &RunRow) {
        let elapsed = run.elapsed_secs.max(0).cast_unsigned();
        let used = run.cpu_time_secs.max(0.0).round();
        let walltime = elapsed * u64::from(run.cpus.max(1));
        self.line("CPU Utilized", sacct_time(used as u64));
        let share = percent(used, walltime as f64);
        let walltime = sacct_time(walltime);
        self.line(
            "CPU Efficiency",
            format!("{share:.2}% of {walltime} core-walltime"),
        );
        self.line("Job Wall-clock time", sacct_time(elapsed));
        let (peak, held) = (run.peak_memory_bytes, run.mem_bytes);
        self.line("Memory Utilized", seff_size(peak));
        let share = percent(peak as f64, held as f64);
        let per_node = seff_size(held / u64::from(run.nodes.max(1)));
        let held = seff_size(held);
        self.line(
            "Memory Efficiency",
            format!("{share:.2}% of {held} ({per_node}/node)"),
        );
        if let Some(used) = &run.gpu_use {
            let busy = used.busy_percent.map_or("unknown".to_owned(), |busy| {
                format!("{busy:.2}% of {} GPUs", run.gpu_count)
            });
            self.line("GPU Efficiency", busy);
            gpu_lines(used, &mut |key, value| self.line(key, value));
        }
    }
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 {
        part / whole * 100.0
    } else {
        0.0
    }
}

/// `1.50 GB`, of binary units; nothing is `0.00 MB`, and what is less than a kilobyte is one.
fn seff_size(bytes: u64) -> String {
    let mut size = bytes as f64 / 1024.0;
    let mut units = ["KB", "MB", "GB", "TB", "PB", "EB"].into_iter().peekable();
    let mut unit = units.next().unwrap_or("KB");
    if bytes == 0 {
        return "0.00 MB".to_owned();
    }
    while size >= 1024.0 && units.peek().is_some() {
        size /= 1024.0;
        unit = units.next().unwrap_or(unit);
    }
    format!("{size:.2} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::ExitCode;

    #[test]
    fn a_job_is_told_on_seffs_lines() {
        let run = RunRow {
            id: 98,
            shown_id: "98".into(),
            user: "ada".into(),
            state: JobState::Failed,
            exit_code: ExitCode::exited(3),
            cpus: 8,
            nodes: 2,
            elapsed_secs: 100,
            cpu_time_secs: 400.4,
            peak_memory_bytes: 3 << 29,
            mem_bytes: 16 << 30,
            ..RunRow::default()
        };
        let told = text(&run, "c1", "staff");
        assert_eq!(
            told,
            "Job ID: 98\nCluster: c1\nUser/Group: ada/staff\nState: FAILED (exit code 3)\nNodes: 2\nCores per node: 4\n\
             CPU Utilized: 00:06:40\nCPU Efficiency: 50.00% of 00:13:20 core-walltime\nJob Wall-clock time: 00:01:40\n\
             Memory Utilized: 1.50 GB\nMemory Efficiency: 9.38% of 16.00 GB (8.00 GB/node)\n"
        );
        let waits = RunRow {
            state: JobState::Pending,
            array_id: Some(98),
            shown_id: "98_4".into(),
            cpus: 1,
            ..run
        };
        let told = text(&waits, "c1", "staff");
        assert!(
            told.contains("Array Job ID: 98_4\n") && told.contains("State: PENDING\nCores: 1\n"),
            "{told}"
        );
        assert!(
            told.ends_with("Efficiency not available for jobs in the PENDING state.\n"),
            "{told}"
        );
    }

    #[test]
    fn sizes_are_those_of_seff() {
        assert_eq!(
            [0, 500, 1 << 20, 1536 << 20].map(seff_size),
            ["0.00 MB", "0.49 KB", "1.00 MB", "1.50 GB"]
        );
    }
}
