//! `make bench`: the promises of the README measured in one run, each beside its floors and beside what
//! Slurm 22.05.8 did on a machine of the same kind.
//!
//! Numbers are as of this minute on this machine: read the multiples and the CPU time, not the clock.

mod events;
mod floor;
mod history;
mod pool;
mod steps;
mod streams;
mod tokens;

use floor::{Floor, median};
use gwire::api::SubmitRequest;
use pool::Pool;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often a row is repeated when the floors moved under it.
const REPEATS: usize = 2;

/// Runs of `gq` for one row.
const GQ_RUNS: usize = 5;

/// One measured line.
struct Row {
    what: &'static str,
    slurm: &'static str,
    ours: String,
}

fn main() -> anyhow::Result<()> {
    let only: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = only
        .iter()
        .find(|word| SCENARIOS.iter().all(|(name, _)| name != word))
    {
        let names: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
        anyhow::bail!(
            "there is no scenario {unknown:?}; there are {}",
            names.join(", ")
        );
    }
    let base = tempfile::Builder::new().prefix("gpupool-bench").tempdir()?;
    std::fs::set_permissions(
        base.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )?;
    println!(
        "{:<58} {:>24} {:<44} {:>8} {:>8} {:>5}",
        "measure", "Slurm 22.05.8", "here", "spawn", "fsync", "load"
    );
    for (name, scenario) in SCENARIOS {
        if only.is_empty() || only.iter().any(|only| only == name) {
            scenario(&mut Bench {
                base: base.path(),
                count: 0,
            })?;
        }
    }
    Ok(())
}

type Scenario = fn(&mut Bench) -> anyhow::Result<()>;
const SCENARIOS: &[(&str, Scenario)] = &[
    ("latency", latency),
    ("queue", queue),
    ("own", own_jobs),
    ("submit", submissions),
    ("nodes", nodes),
    ("steps", steps::steps),
    ("accounting", accounting),
    ("hollow", hollow_nodes),
    ("history", history::history),
    ("streams", streams::streams),
    ("tokens", tokens::tokens),
    ("events", events::events),
];

struct Bench<'a> {
    base: &'a Path,
    count: u32,
}

impl Bench<'_> {
    fn pool(&mut self, nodes: u32, gpus: &str) -> anyhow::Result<Pool> {
        self.count += 1;
        Pool::up(
            &self.base.join(format!("pool{}", self.count)),
            nodes,
            0,
            gpus,
        )
    }

    /// One node with all GPUs held by running jobs.
    fn full_pool(&mut self) -> anyhow::Result<Pool> {
        let pool = self.pool(1, "h100:8")?;
        for _ in 0..8 {
            pool.run(
                "gsub",
                &[
                    "-o",
                    "/dev/null",
                    "--gpus",
                    "1",
                    "-t",
                    "1-0",
                    "--wrap",
                    "sleep 86400",
                ],
            )?;
        }
        Ok(pool)
    }

    /// Measures between two readings of the floors; again when they moved, and marked `*` if they
    /// moved each time.
    fn row(&self, measure: impl FnMut(&Floor) -> anyhow::Result<Row>) -> anyhow::Result<()> {
        self.row_repeated(REPEATS, measure)
    }

    /// What can be done only once, since there is nothing left to do it with.
    fn row_once(&self, measure: impl FnMut(&Floor) -> anyhow::Result<Row>) -> anyhow::Result<()> {
        self.row_repeated(0, measure)
    }

    fn row_repeated(
        &self,
        repeats: usize,
        mut measure: impl FnMut(&Floor) -> anyhow::Result<Row>,
    ) -> anyhow::Result<()> {
        let mut mark = '*';
        let mut last = None;
        for _ in 0..=repeats {
            let before = Floor::measure(self.base)?;
            let row = measure(&before)?;
            let calm = !before.moved(&Floor::measure(self.base)?);
            last = Some((before, row));
            if calm {
                mark = ' ';
                break;
            }
        }
        let (floor, row) = last.expect("measured at least once");
        println!(
            "{:<58} {:>24} {:<44} {:>8} {:>8} {:>5.1}{mark}",
            row.what,
            row.slurm,
            row.ours,
            millis(floor.spawn),
            millis(floor.fsync),
            floor.load
        );
        Ok(())
    }
}

/// CPU time of the commands that were run so far.
fn children_cpu() -> anyhow::Result<Duration> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN)?;
    let time = |at: nix::sys::time::TimeVal| {
        Duration::new(
            at.tv_sec().unsigned_abs(),
            at.tv_usec().unsigned_abs() as u32 * 1000,
        )
    };
    Ok(time(usage.user_time()) + time(usage.system_time()))
}

fn millis(time: Duration) -> String {
    format!("{:.2}ms", time.as_secs_f64() * 1e3)
}

fn per_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// How many floors of `spawns` and `fsyncs` a time is.
fn floors(time: Duration, floor: &Floor, spawns: f64, fsyncs: f64) -> f64 {
    let base = floor.spawn.as_secs_f64() * spawns + floor.fsync.as_secs_f64() * fsyncs;
    time.as_secs_f64() / base
}

/// From submission to the first line, and whole jobs end to end.
fn latency(bench: &mut Bench) -> anyhow::Result<()> {
    let pool = bench.pool(1, "h100:8")?;
    let fifo = pool.dir.join("started");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o666))?;
    let script = pool.dir.join("first.sh");
    std::fs::write(&script, format!("#!/bin/sh\necho > {}\n", fifo.display()))?;
    let script = script.to_string_lossy().into_owned();
    bench.row(|floor| {
        let time = median(20, || {
            pool.run("gsub", &["-o", "/dev/null", "--gpus", "1", &script])?;
            // Nothing, where the script before has written and not closed yet: then this one's line is to come.
            while File::open(&fifo)?.read(&mut [0u8; 1])? == 0 {}
            Ok(())
        })?;
        Ok(Row {
            what: "submit to the script's first line, idle node",
            slurm: "550 ms (tuned)",
            ours: format!(
                "{}, {:.1} x (4 spawns + 3 fsyncs)",
                millis(time),
                floors(time, floor, 4.0, 3.0)
            ),
        })
    })?;
    pool.drain(Duration::from_secs(60))?;
    end_to_end(
        bench,
        &pool,
        "/bin/true jobs end to end, one node of 8 GPUs",
        "3.4 to 12/s",
        400,
    )
}

fn end_to_end(
    bench: &Bench,
    pool: &Pool,
    what: &'static str,
    slurm: &'static str,
    count: usize,
) -> anyhow::Result<()> {
    let job = pool.job(0, 10);
    bench.row(|_| {
        let cpu = pool.cpu_time()?;
        let start = Instant::now();
        pool.submit(8, count, |_| job.clone())?;
        pool.drain(Duration::from_secs(300))?;
        let time = start.elapsed();
        let used = pool.cpu_time()?;
        let each =
            |before: Duration, after: Duration| (after - before).as_secs_f64() * 1e3 / count as f64;
        let (controller, nodes) = (
            each(cpu.controller, used.controller),
            each(cpu.nodes, used.nodes),
        );
        Ok(Row {
            what,
            slurm,
            ours: format!(
                "{:.0}/s; CPU a job {controller:.2} ms gpuctld, {nodes:.2} ms gpud",
                per_second(count, time)
            ),
        })
    })
}

/// A long queue: submitting to it, listing it, cancelling from it, coming back with it.
fn queue(bench: &mut Bench) -> anyhow::Result<()> {
    let pool = bench.full_pool()?;
    bench.row(|floor| {
        let start = Instant::now();
        for _ in 0..100 {
            pool.run(
                "gsub",
                &["-o", "/dev/null", "--gpus", "1", "--wrap", "true"],
            )?;
        }
        let time = start.elapsed() / 100;
        Ok(Row {
            what: "sequential submit commands",
            slurm: "126 to 202/s, not durable",
            ours: format!(
                "{:.0}/s, {:.1} x (2 spawns + 2 fsyncs)",
                per_second(1, time),
                floors(time, floor, 2.0, 2.0)
            ),
        })
    })?;
    for (tasks, slurm) in [("0-9999", "9 ms"), ("0-999999", "")] {
        bench.row(|_| {
            let time = median(5, || {
                let args = [
                    "-o",
                    "/dev/null",
                    "--gpus",
                    "1",
                    "-a",
                    tasks,
                    "--wrap",
                    "true",
                ];
                pool.run("gsub", &args).map(drop)
            })?;
            let what = if tasks == "0-9999" {
                "one array of 10,000 tasks"
            } else {
                "one array of 1,000,000 tasks"
            };
            Ok(Row {
                what,
                slurm,
                ours: millis(time),
            })
        })?;
    }
    pool.run("gdel", &["-u", "root", "-t", "PENDING"])?;
    let job = pool.job(2048, 60);
    long_queue(bench, &pool, |_| job.clone())
}

/// The same with jobs that have nothing in common but their user's surroundings.
fn own_jobs(bench: &mut Bench) -> anyhow::Result<()> {
    let pool = bench.full_pool()?;
    println!("every job another (name, 2 KiB of script, key), 60 variables of 50 people:");
    long_queue(bench, &pool, |number| pool.own_job(number, 2048, 60))
}

fn long_queue(
    bench: &Bench,
    pool: &Pool,
    job: impl Fn(usize) -> SubmitRequest + Sync,
) -> anyhow::Result<()> {
    listings(bench, pool, job)?;
    bench.row_once(|_| {
        let start = Instant::now();
        pool.run("gdel", &["-t", "PENDING", "-u", "root"])?;
        let time = start.elapsed();
        Ok(Row {
            what: "cancel 100,000 pending jobs at once",
            slurm: "8 s (10,000)",
            ours: format!("{:.2} s", time.as_secs_f64()),
        })
    })
}

fn listings(
    bench: &Bench,
    pool: &Pool,
    job: impl Fn(usize) -> SubmitRequest + Sync,
) -> anyhow::Result<()> {
    let mut pending = 0;
    for (target, slurm) in [
        (0, "9 ms"),
        (10_000, "125 ms"),
        (50_000, "490 to 680 ms"),
        (100_000, "1130 ms"),
    ] {
        if target > pending {
            submit_many(bench, pool, pending, target - pending, &job)?;
            pending = target;
        }
        bench.row(|_| {
            let before = pool.cpu_time()?.controller;
            let mut own_cpu = Duration::MAX;
            let time = median(GQ_RUNS, || {
                let before = children_cpu()?;
                pool.run("gq", &[])?;
                own_cpu = own_cpu.min(children_cpu()? - before);
                Ok(())
            })?;
            let controller = (pool.cpu_time()?.controller - before) / GQ_RUNS as u32;
            let what = match target {
                0 => "gq with 0 pending",
                10_000 => "gq with 10,000 pending",
                50_000 => "gq with 50,000 pending",
                _ => "gq with 100,000 pending",
            };
            let ours = format!(
                "{}; CPU {} gpuctld, {} gq",
                millis(time),
                millis(controller),
                millis(own_cpu)
            );
            Ok(Row { what, slurm, ours })
        })?;
        if target == 50_000 {
            single_jobs(bench, pool)?;
        }
    }
    restart(bench, pool)
}

fn submit_many(
    bench: &Bench,
    pool: &Pool,
    queued: usize,
    count: usize,
    job: impl Fn(usize) -> SubmitRequest + Sync,
) -> anyhow::Result<()> {
    let cpu = pool.cpu_time()?;
    let start = Instant::now();
    pool.submit(64, count, job)?;
    let time = start.elapsed();
    let used = pool.cpu_time()?.controller - cpu.controller;
    let each = used.as_secs_f64() * 1e6 / count as f64;
    let floor = Floor::measure(bench.base)?;
    println!(
        "{:<58} {:>24} {:<44} {:>8} {:>8} {:>5.1}",
        format!("64 clients, a durable job a request, {queued} queued"),
        "80 to 127/s",
        format!(
            "{:.0}/s; {each:.0} us of gpuctld's CPU a job",
            per_second(count, time)
        ),
        millis(floor.spawn),
        millis(floor.fsync),
        floor.load
    );
    Ok(())
}

/// Submissions alone, alike and then all different.
fn submissions(bench: &mut Bench) -> anyhow::Result<()> {
    const JOBS: usize = 20_000;
    for alike in [true, false] {
        let pool = bench.full_pool()?;
        println!(
            "{}:",
            if alike {
                "all jobs alike"
            } else {
                "every job another"
            }
        );
        let job = pool.job(2048, 60);
        submit_many(bench, &pool, 0, JOBS, |number| {
            if alike {
                job.clone()
            } else {
                pool.own_job(number, 2048, 60)
            }
        })?;
    }
    Ok(())
}

fn single_jobs(bench: &Bench, pool: &Pool) -> anyhow::Result<()> {
    bench.row(|_| {
        let time = median(3, || pool.run("gq", &["--json"]).map(drop))?;
        Ok(Row {
            what: "gq --json with 50,000 pending",
            slurm: "8.3 s",
            ours: millis(time),
        })
    })?;
    bench.row(|_| {
        let mut cpu = Duration::MAX;
        let time = median(GQ_RUNS, || {
            let before = children_cpu()?;
            pool.run_as("squeue", "gslurm", &["--json"])?;
            cpu = cpu.min(children_cpu()? - before);
            Ok(())
        })?;
        Ok(Row {
            what: "squeue --json of the same",
            slurm: "8.3 s",
            ours: format!("{}; CPU {} squeue", millis(time), millis(cpu)),
        })
    })?;
    bench.row(|_| {
        let time = median(10, || pool.run("gq", &["1"]).map(drop))?;
        Ok(Row {
            what: "gq JOB with 50,000 pending",
            slurm: "9 ms",
            ours: millis(time),
        })
    })?;
    bench.row(|_| {
        let mut times = Vec::new();
        for _ in 0..10 {
            let output = pool.run(
                "gsub",
                &["--gpus", "1", "-o", "/dev/null", "--wrap", "true"],
            )?;
            let id = String::from_utf8(output.stdout)?.trim().to_owned();
            let start = Instant::now();
            pool.run("gdel", &[&id])?;
            times.push(start.elapsed());
        }
        times.sort();
        Ok(Row {
            what: "gdel JOB with 50,000 pending",
            slurm: "8 ms",
            ours: millis(times[5]),
        })
    })
}

fn restart(bench: &Bench, pool: &Pool) -> anyhow::Result<()> {
    let dir = pool.dir.to_string_lossy().into_owned();
    let memory = pool.peak_memory()?;
    bench.row(|_| {
        pool.run("gadm", &["sandbox", "kill", "gpuctld", "--dir", &dir])?;
        let start = Instant::now();
        pool.run("gadm", &["sandbox", "start", "gpuctld", "--dir", &dir])?;
        let time = start.elapsed();
        Ok(Row {
            what: "restart to serving with 100,000 pending, after SIGKILL",
            slurm: "2.2 s",
            ours: format!("{:.2} s", time.as_secs_f64()),
        })
    })?;
    bench.row(|_| {
        let after = pool.peak_memory()?;
        let mib = |bytes: u64| bytes >> 20;
        Ok(Row {
            what: "gpuctld's peak memory, 100,000 jobs (2 KiB, 60 variables)",
            slurm: "509 MB, 349 restarted",
            ours: format!("{} MiB, {} MiB restarted", mib(memory), mib(after)),
        })
    })
}

/// Many node daemons at once.
fn nodes(bench: &mut Bench) -> anyhow::Result<()> {
    let pool = bench.pool(16, "h100:8")?;
    end_to_end(
        bench,
        &pool,
        "/bin/true jobs end to end, 16 real node daemons",
        "57 to 66/s",
        1600,
    )
}

/// What accounting takes to list ten thousand jobs that are over, and one of them.
fn accounting(bench: &mut Bench) -> anyhow::Result<()> {
    const ARRAYS: usize = 5;
    let pool = Pool::up(&bench.base.join("accounting"), 1, 63, "h100:8")?;
    for _ in 0..ARRAYS {
        pool.run(
            "gsub",
            &[
                "-Q",
                "-o",
                "/dev/null",
                "-t",
                "1",
                "-a",
                "0-1999",
                "--wrap",
                "true",
            ],
        )?;
    }
    pool.drain(Duration::from_secs(300))?;
    let listed = String::from_utf8(pool.run("gacct", &["-X", "-n"])?.stdout)?
        .lines()
        .count();
    anyhow::ensure!(listed == ARRAYS * 2000, "{listed} jobs are listed");
    for (what, slurm, args, runs) in [
        ("gacct -X of 10,000 finished jobs", "955 ms", &["-X"][..], 7),
        ("gacct -X --json of them", "", &["-X", "--json"], 3),
        ("gacct of one of them", "99 ms", &["-j", "17"], 20),
    ] {
        bench.row(|_| {
            let (controller, own) = (pool.cpu_time()?.controller, children_cpu()?);
            let time = median(runs, || pool.run("gacct", args).map(drop))?;
            let each = |cpu: Duration| millis(cpu / runs as u32);
            let (controller, own) = (
                each(pool.cpu_time()?.controller - controller),
                each(children_cpu()? - own),
            );
            Ok(Row {
                what,
                slurm,
                ours: format!("{}; CPU {controller} gpuctld, {own} gacct", millis(time)),
            })
        })?;
    }
    Ok(())
}

/// A thousand nodes that speak the real protocol and only pretend to run: what they cost the controller, and how soon what
/// one job leaves is with the next.
fn hollow_nodes(bench: &mut Bench) -> anyhow::Result<()> {
    const NODES: u32 = 1024;
    const IDLE: Duration = Duration::from_secs(20);
    let pool = Pool::up(&bench.base.join("hollow"), 1, NODES - 1, "h100:8")?;
    bench.row(|_| {
        let (cpu, start) = (pool.cpu_time()?.controller, Instant::now());
        std::thread::sleep(IDLE);
        let used = pool.cpu_time()?.controller - cpu;
        let percent = 100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64();
        Ok(Row {
            what: "1,024 nodes idle: gpuctld's CPU",
            slurm: "",
            ours: format!("{percent:.1}% of one core"),
        })
    })?;
    let job = |gpus: u32| {
        let mut job = pool.job(0, 10);
        job.spec.request.gpus = Some(gmodel::gpu_request::GpuRequest::whole(gpus));
        job.script = "#!/bin/sh\nsleep 86400\n".into();
        job
    };
    let (full, single) = (job(8), job(1));
    pool.submit(8, NODES as usize, |_| full.clone())?;
    let mut client = pool.client()?;
    let patience = Duration::from_secs(60);
    for id in 1..=u64::from(NODES) {
        pool.wait_state(&mut client, id, "RUNNING", patience)?;
    }
    let mut next = u64::from(NODES);
    pool.submit(8, 10_000, |_| single.clone())?;
    let mut freed = 1;
    bench.row(|_| {
        let time = median(5, || {
            (freed, next) = (freed + 1, next + 8);
            let asked = gwire::api::CancelRequest {
                jobs: vec![freed.to_string()],
                ..Default::default()
            };
            let _: serde_json::Value = client.post("/v1/jobs/cancel", &asked)?;
            pool.wait_state(&mut client, next, "RUNNING", patience)
        })?;
        let what = "eight GPUs freed to the next jobs running, 10,000 pending";
        Ok(Row {
            what,
            slurm: "next pass, up to 30 s",
            ours: format!("{} on 1,024 nodes", millis(time)),
        })
    })?;
    answers_under_passes(bench, &pool, &single)
}

/// What people wait for an answer while passes run.
fn answers_under_passes(bench: &Bench, pool: &Pool, job: &SubmitRequest) -> anyhow::Result<()> {
    const ANSWERS: usize = 300;
    let rows = [
        (
            "gsub while passes run, 10,000 pending: median, 99th",
            "gsub",
            vec!["-o", "/dev/null", "--gpus", "1", "--wrap", "true"],
        ),
        (
            "gq JOB while passes run, 10,000 pending: median, 99th",
            "gq",
            vec!["1"],
        ),
    ];
    busy_with_passes(pool, job, || {
        rows.into_iter().try_for_each(|(what, program, args)| {
            bench.row(|_| {
                let mut times = (0..ANSWERS)
                    .map(|_| {
                        let start = Instant::now();
                        pool.run(program, &args).map(|_| start.elapsed())
                    })
                    .collect::<anyhow::Result<Vec<Duration>>>()?;
                times.sort();
                let ours = format!(
                    "{}, {}",
                    millis(times[ANSWERS / 2]),
                    millis(times[ANSWERS * 99 / 100])
                );
                Ok(Row {
                    what,
                    slurm: if program == "gsub" { "up to 2 s" } else { "" },
                    ours,
                })
            })
        })
    })
}

/// Measures while the planner has passes over the whole queue to make, one after the other: each new job asks for one, and each
/// that is cancelled.
fn busy_with_passes(
    pool: &Pool,
    job: &SubmitRequest,
    measure: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| -> anyhow::Result<()> {
            let mut client = pool.client()?;
            while !over.load(Relaxed) {
                let made: gwire::api::SubmitReply = client.post("/v1/jobs", job)?;
                let asked = gwire::api::CancelRequest {
                    jobs: vec![made.id.to_string()],
                    ..Default::default()
                };
                let _: serde_json::Value = client.post("/v1/jobs/cancel", &asked)?;
            }
            Ok(())
        });
        let measured = measure();
        over.store(true, Relaxed);
        busy.join().expect("it does not panic")?;
        measured
    })
}
