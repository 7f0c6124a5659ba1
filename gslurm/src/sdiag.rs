//! `sdiag`: the controller's counters, on the lines where readers of sdiag look for them.
//!
//! Only what is known is printed: there are no agents, no database daemon and no second pass for backfill here. `gadm diag`
//! says more. Source: sdiag(1), and what sdiag 22.05.8 printed.

use crate::json;
use clap::{CommandFactory, FromArgMatches, Parser};
use gcli::local_time::{self, banner};
use gcli::table::stdout;
use gcli::{ClusterChoice, Failure, Outcome, command_line};
use gmodel::Timestamp;
use gslurm_json::controller::{CommandTimes, Diagnosis};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write;

const ADVICE: &command_line::Advice = &[(
    &["-r", "--reset"],
    "the counters run since the controller's start; /metrics has them for a monitor, which takes differences",
)];

#[derive(Parser)]
#[command(
    name = "sdiag",
    version,
    about = "What the controller counts, on sdiag's lines",
    after_help = "This is gpupool: gadm diag says more, /metrics has histograms."
)]
struct SdiagArgs {
    /// All there is, as is usual
    #[arg(short, long)]
    all: bool,
    /// Requests by name; without it by their number
    #[arg(short = 'i', long, conflicts_with_all = ["sort_by_time", "sort_by_time2"])]
    sort_by_id: bool,
    /// Requests by the time of all of a kind together
    #[arg(short = 't', long, conflicts_with = "sort_by_time2")]
    sort_by_time: bool,
    /// Requests by their mean time
    #[arg(short = 'T', long)]
    sort_by_time2: bool,
    /// All as JSON, with Slurm's keys
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterChoice,
}

/// `sdiag`.
pub(crate) fn main(words: Vec<OsString>) -> Outcome {
    let matches = command_line::parse_advising(SdiagArgs::command(), words, ADVICE)?;
    let args = SdiagArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    let mut client = gcli::connect("sdiag")?;
    args.cluster.check(&mut client)?;
    let diagnosis: Diagnosis = client.get("/v1/diag")?;
    if args.json {
        return json::print_diagnosis(&mut client, &diagnosis);
    }
    let mut out = stdout()?;
    out.write_all(text(&diagnosis, &args).as_bytes())?;
    out.flush()?;
    Ok(0)
}

fn text(diagnosis: &Diagnosis, args: &SdiagArgs) -> String {
    const STARS: &str = "*******************************************************";
    let now = diagnosis.time.map_or_else(local_time::now, |at| at.0);
    let moment = |at: Timestamp| format!("{} ({})", banner(at), at.secs());
    let jobs = |state: &str| diagnosis.jobs.get(state).copied().unwrap_or_default();
    let mut text = format!(
        "{STARS}\nsdiag output at {}\nData since      {}\n{STARS}\n",
        moment(now),
        moment(now.plus_secs(-diagnosis.uptime_secs))
    );
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    line(format!("Jobs started:   {}\n", diagnosis.starts));
    line(format!("Job states ts:  {}", moment(now)));
    line(format!("Jobs pending:   {}", jobs("PENDING")));
    line(format!("Jobs running:   {}\n", jobs("RUNNING")));
    let pass = diagnosis.times.get("pass").copied().unwrap_or_default();
    line("Main schedule statistics (microseconds):".to_owned());
    line(format!("\tMax cycle:    {}", pass.max_us));
    line(format!("\tTotal cycles: {}", pass.count));
    if pass.count > 0 {
        line(format!("\tMean cycle:   {}", pass.mean_us));
    }
    line("\nRemote Procedure Call statistics by message type".to_owned());
    let mut requests: Vec<(&String, &CommandTimes)> = diagnosis
        .requests
        .iter()
        .filter(|(_, times)| times.count > 0)
        .collect();
    // By name they come; what is equal stays so.
    match (args.sort_by_id, args.sort_by_time, args.sort_by_time2) {
        (true, ..) => {}
        (_, true, _) => requests.sort_by_key(|(_, times)| std::cmp::Reverse(times.total())),
        (_, _, true) => requests.sort_by_key(|(_, times)| std::cmp::Reverse(times.mean_us)),
        _ => requests.sort_by_key(|(_, times)| std::cmp::Reverse(times.count)),
    }
    for (route, times) in requests {
        let _ = writeln!(
            text,
            "\t{route:<40}count:{:<6} ave_time:{:<6} total_time:{}",
            times.count,
            times.mean_us,
            times.total()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        SdiagArgs::command().debug_assert();
    }

    #[test]
    fn what_is_counted_stands_where_sdiag_has_it_and_nothing_else_does() {
        let times = |count: u64, mean_us: u64| serde_json::json!({"count": count, "mean_us": mean_us, "p50_us": 1, "p99_us": 1, "max_us": 900});
        let diagnosis = serde_json::json!({"time": "2026-11-21T16:06:17Z", "uptime_secs": 60, "jobs": {"PENDING": 7, "RUNNING": 2}, "starts": 11,
            "times": {"pass": times(4, 42), "commit": times(9, 1)},
            "requests": {"GET /v1/jobs": times(3, 100), "POST /v1/jobs": times(50, 10), "GET /v1/diag": times(1, 400), "GET /v1/qos": times(0, 0)}});
        let diagnosis: Diagnosis = serde_json::from_value(diagnosis).unwrap();
        let of = |words: &[&str]| {
            text(
                &diagnosis,
                &SdiagArgs::parse_from([&["sdiag"], words].concat()),
            )
        };
        let usual = of(&[]);
        let (head, rest) = usual.split_once("\nJobs started:").unwrap();
        assert!(
            head.contains(&format!(
                "(1795277177)\nData since      {} (1795277117)\n",
                banner(Timestamp::from_secs(1_795_277_117))
            )),
            "{head}"
        );
        let rest: Vec<&str> = rest
            .lines()
            .filter(|line| !line.starts_with("Job states ts:"))
            .collect();
        assert_eq!(
            rest,
            [
                "   11",
                "",
                "Jobs pending:   7",
                "Jobs running:   2",
                "",
                "Main schedule statistics (microseconds):",
                "\tMax cycle:    900",
                "\tTotal cycles: 4",
                "\tMean cycle:   42",
                "",
                "Remote Procedure Call statistics by message type",
                "\tPOST /v1/jobs                           count:50     ave_time:10     total_time:500",
                "\tGET /v1/jobs                            count:3      ave_time:100    total_time:300",
                "\tGET /v1/diag                            count:1      ave_time:400    total_time:400",
            ]
        );
        let order = |words: &[&str]| {
            of(words)
                .lines()
                .filter_map(|line| {
                    line.strip_prefix('\t')?
                        .split("  ")
                        .next()?
                        .split_once("/v1/")
                })
                .map(|(verb, path)| format!("{verb}{path}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(order(&["-i"]), ["GET diag", "GET jobs", "POST jobs"]);
        assert_eq!(order(&["-t"]), ["POST jobs", "GET diag", "GET jobs"]);
        assert_eq!(order(&["-T"]), ["GET diag", "GET jobs", "POST jobs"]);
    }
}
