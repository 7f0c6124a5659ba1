//! What readers of events cost those that submit: the same submissions with no reader and with a hundred, in turns.

use crate::pool::Pool;
use crate::{Bench, Row};
use anyhow::Context;
use gwire::api::SubmitRequest;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const READERS: usize = 100;
const JOBS: usize = 10_000;
const CLIENTS: usize = 40;
const TURNS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(60);

pub fn events(bench: &mut Bench) -> anyhow::Result<()> {
    let pool = bench.full_pool()?;
    let job = pool.job(256, 4);
    // What is made at the first submissions is not measured.
    pool.submit(CLIENTS, JOBS / 4, |_| job.clone())?;
    bench.row_once(|_| {
        let (mut without, mut with) = (Submissions::default(), Submissions::default());
        for _ in 0..TURNS {
            without.make(&pool, &job)?;
            let readers = Readers::open(&pool)?;
            with.make(&pool, &job)?;
            readers.close()?;
        }
        Ok(Row {
            what: "durable submissions with 100 readers of all events",
            slurm: "",
            ours: format!(
                "{:.0}/s; without {:.0}/s: {:.2} of that; gpuctld's CPU {:.0}; {:.0} us each",
                with.rate(),
                without.rate(),
                with.rate() / without.rate(),
                with.micros(),
                without.micros()
            ),
        })
    })
}

#[derive(Default)]
struct Submissions {
    time: Duration,
    cpu: Duration,
    jobs: usize,
}

impl Submissions {
    /// Makes some more, and measures them.
    fn make(&mut self, pool: &Pool, job: &SubmitRequest) -> anyhow::Result<()> {
        let start = (Instant::now(), pool.cpu_time()?.controller);
        pool.submit(CLIENTS, JOBS, |_| job.clone())?;
        self.time += start.0.elapsed();
        self.cpu += pool.cpu_time()?.controller - start.1;
        self.jobs += JOBS;
        Ok(())
    }
    fn rate(&self) -> f64 {
        self.jobs as f64 / self.time.as_secs_f64()
    }
    fn micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.jobs as f64
    }
}

/// Readers that count lines, each in a thread.
struct Readers {
    sockets: Vec<UnixStream>,
    lines: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    fn open(pool: &Pool) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(pool.dir.join("client.toml"))?;
        let socket = text.split('"').nth(1).context("no socket in client.toml")?;
        let mut readers = Self {
            sockets: Vec::new(),
            lines: Arc::default(),
            threads: Vec::new(),
        };
        for _ in 0..READERS {
            let mut stream = UnixStream::connect(socket)?;
            stream.write_all(b"GET /v1/events?follow=true&kinds=job_submitted HTTP/1.0\r\n\r\n")?;
            readers.sockets.push(stream.try_clone()?);
            let mut stream = BufReader::with_capacity(64 << 10, stream);
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                anyhow::ensure!(stream.read_line(&mut line)? > 0, "no answer to a reader");
            }
            // Its place: from here on it is told everything.
            stream.read_line(&mut line)?;
            let lines = readers.lines.clone();
            let count = move || {
                let mut piece = vec![0; 64 << 10];
                while let Ok(read @ 1..) = stream.read(&mut piece) {
                    let ends = piece[..read].iter().filter(|byte| **byte == b'\n').count();
                    lines.fetch_add(ends as u64, Relaxed);
                }
            };
            readers.threads.push(std::thread::spawn(count));
        }
        Ok(readers)
    }

    /// Once each has heard of each job.
    fn close(self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.lines.load(Relaxed) < (READERS * JOBS) as u64 {
            let heard = self.lines.load(Relaxed);
            anyhow::ensure!(Instant::now() < deadline, "only {heard} events were read");
            std::thread::sleep(Duration::from_millis(5));
        }
        for socket in &self.sockets {
            socket.shutdown(std::net::Shutdown::Both)?;
        }
        self.threads
            .into_iter()
            .for_each(|thread| thread.join().expect("a reader only counts"));
        Ok(())
    }
}
