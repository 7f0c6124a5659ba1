//! Steps reached over the controller: how fast their bytes go, how soon a keystroke comes back, and what shells that are open cost.

use crate::pool::Pool;
use crate::{Bench, Row, busy_with_passes, millis};
use anyhow::{Context, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Carried to measure a rate.
const CARRIED_BYTES: u64 = 2 << 30;
/// Pending jobs while keys are typed.
const PENDING: usize = 10_000;
const KEYS: usize = 2000;
/// Opened by each of two users; one may have 512 streams.
const SHELLS: usize = 500;
const NOBODY: u32 = 65534;
const IDLE: Duration = Duration::from_secs(20);

pub fn streams(bench: &mut Bench) -> anyhow::Result<()> {
    let pool = bench.pool(1, "h100:8")?;
    let first = sleeper(&pool, 0)?;
    let second = sleeper(&pool, NOBODY)?;
    bench.row(|_| {
        let mut grun = grun(
            &pool,
            0,
            &first,
            &["head", "-c", &CARRIED_BYTES.to_string(), "/dev/zero"],
        );
        let mut child = grun.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let start = Instant::now();
        let mut stdout = child.stdout.take().context("no stdout")?;
        let mut piece = vec![0; 256 << 10];
        let mut carried = 0;
        loop {
            match stdout.read(&mut piece)? {
                0 => break,
                count => carried += count as u64,
            }
        }
        let time = start.elapsed();
        if !child.wait()?.success() || carried != CARRIED_BYTES {
            bail!("the step wrote {CARRIED_BYTES} bytes, and {carried} came");
        }
        Ok(Row {
            what: "output of one step over the controller",
            slurm: "",
            ours: format!("{:.0} MB/s", carried as f64 / 1e6 / time.as_secs_f64()),
        })
    })?;
    echoes(bench, &pool, &first)?;
    shells(bench, &pool, [&first, &second])
}

/// Keys typed to `cat`: by itself, as a step, and as a step while passes run.
fn echoes(bench: &Bench, pool: &Pool, job: &str) -> anyhow::Result<()> {
    let row = |what, shell: &mut Shell| {
        let mut times = Vec::with_capacity(KEYS);
        for _ in 0..KEYS {
            let start = Instant::now();
            shell.type_key()?;
            times.push(start.elapsed());
        }
        times.sort();
        let (median, last) = (times[KEYS / 2], times[KEYS * 99 / 100]);
        anyhow::Ok(Row {
            what,
            slurm: "",
            ours: format!("{}, {}", millis(median), millis(last)),
        })
    };
    let mut floor = Shell::open(&mut Command::new("cat"))?;
    bench.row(|_| row("a key's echo from cat by a pipe: median, 99th", &mut floor))?;
    let mut shell = Shell::open(&mut grun(pool, 0, job, &["cat"]))?;
    bench.row(|_| row("from cat as a step, over the controller", &mut shell))?;
    for _ in 0..8 {
        sleeper(pool, 0)?;
    }
    let waiting = pool.job(0, 10);
    pool.submit(8, PENDING, |_| waiting.clone())?;
    busy_with_passes(pool, &waiting, || {
        bench.row(|_| row("the same while passes run, 10,000 pending", &mut shell))
    })?;
    pool.run("gdel", &["-t", "PENDING", "-u", "root"]).map(drop)
}

/// What idle shells in two jobs cost the controller.
fn shells(bench: &Bench, pool: &Pool, [first, second]: [&str; 2]) -> anyhow::Result<()> {
    bench.row_once(|_| {
        let before = pool.memory()?;
        let mut open = Vec::with_capacity(2 * SHELLS);
        let start = Instant::now();
        for _ in 0..SHELLS {
            open.push(Shell::open(&mut grun(pool, 0, first, &["cat"]))?);
            open.push(Shell::open(&mut grun(pool, NOBODY, second, &["cat"]))?);
        }
        for shell in &mut open {
            shell.type_key()?;
        }
        let opened = start.elapsed();
        let grown = pool.memory()?.saturating_sub(before);
        let (cpu, start) = (pool.cpu_time()?.controller, Instant::now());
        std::thread::sleep(IDLE);
        let used = pool.cpu_time()?.controller - cpu;
        let percent = 100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64();
        Ok(Row {
            what: "1,000 open shells: gpuctld's memory and CPU",
            slurm: "",
            ours: format!(
                "{} MiB, {percent:.1}% of one core; opened in {:.1} s",
                grown >> 20,
                opened.as_secs_f64()
            ),
        })
    })
}

/// A job with one GPU that lasts; its id.
fn sleeper(pool: &Pool, uid: u32) -> anyhow::Result<String> {
    let args = [
        "--parsable",
        "-o",
        "/dev/null",
        "--gpus",
        "1",
        "-t",
        "1-0",
        "--wrap",
        "sleep 86400",
    ];
    let output = pool.command("gsub").args(args).uid(uid).gid(uid).output()?;
    if !output.status.success() {
        bail!("gsub: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn grun(pool: &Pool, uid: u32, job: &str, program: &[&str]) -> Command {
    let mut command = pool.command("grun");
    command
        .args(["--jobid", job])
        .args(program)
        .uid(uid)
        .gid(uid);
    command
}

/// A program that says each line again.
struct Shell {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Shell {
    fn open(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().context("no stdout")?;
        let mut shell = Self {
            stdin: child.stdin.take(),
            stdout: BufReader::new(stdout),
            child,
        };
        shell.type_key()?;
        Ok(shell)
    }

    fn type_key(&mut self) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("no stdin")?;
        stdin.write_all(b"k\n")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        match line.as_str() {
            "k\n" => Ok(()),
            _ => bail!("typed k, and {line:?} came back"),
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}
