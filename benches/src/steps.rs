//! Steps inside one job: how many a second on one node, and how long a step of many tasks on many nodes takes.

use crate::pool::Pool;
use crate::{Bench, Row, millis, per_second};
use anyhow::Context;
use std::time::Duration;

const STEPS: usize = 1000;
/// Gruns that a script has at work at a time.
const AT_ONCE: usize = 8;
const NODES: u32 = 8;
const TASKS: u32 = 64;
/// Wide steps, of which the median counts.
const WIDE: usize = 15;

pub fn steps(bench: &mut Bench) -> anyhow::Result<()> {
    let pool = bench.pool(1, "none")?;
    for (what, at_once) in [
        ("1,000 steps of /bin/true in one job, one by one", 1),
        ("the same, 8 at a time", AT_ONCE),
    ] {
        bench.row(|_| {
            let loop_text =
                format!("seq {STEPS} | xargs -P {at_once} -I@ grun -n1 --overlap /bin/true");
            let times = timed(&pool, &["-n1"], &loop_text, 1)?;
            Ok(Row {
                what,
                slurm: "15 to 30/s",
                ours: format!("{:.0}/s", per_second(STEPS, times[0])),
            })
        })?;
    }
    drop(pool);
    let pool = bench.pool(NODES, "none")?;
    bench.row(|_| {
        let ask = format!("-N{NODES}");
        let step = format!("grun -n{TASKS} -O /bin/true");
        let mut times = timed(&pool, &[&ask], &step, WIDE)?;
        times.sort_unstable();
        Ok(Row {
            what: "a step of 64 tasks on 8 nodes of one machine, to its end",
            slurm: "",
            ours: millis(times[WIDE / 2]),
        })
    })
}

/// How long a line takes inside a job, each time.
fn timed(pool: &Pool, ask: &[&str], line: &str, times: usize) -> anyhow::Result<Vec<Duration>> {
    let file = pool.dir.join("times");
    let path = std::env::current_exe()?;
    let programs = path.parent().context("a program is in a directory")?;
    let script = format!(
        "export PATH={}:$PATH\nfor i in $(seq {times}); do a=$(date +%s%N); {line}; b=$(date +%s%N); echo $((b - a)); done > {}",
        programs.display(),
        file.display()
    );
    let mut words = vec!["--wait", "-o", "/dev/null", "-t", "30"];
    words.extend(ask);
    words.extend(["--wrap", &script]);
    pool.run("gsub", &words)?;
    let text = std::fs::read_to_string(&file)?;
    let nanos = text
        .lines()
        .map(|line| line.parse().map(Duration::from_nanos));
    let read: Vec<Duration> = nanos.collect::<Result<_, _>>()?;
    anyhow::ensure!(read.len() == times, "the job was cut short: {text:?}");
    Ok(read)
}
