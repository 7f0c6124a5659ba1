//! What a token costs: its comparison at each request, and a command over https beside one over the socket.

use crate::floor::median;
use crate::pool::Pool;
use crate::{Bench, Row, millis};
use anyhow::Context;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Each token may ask so often at once.
const OF_TOKEN: usize = 400;
/// As many as one user may have, less those that are made beside.
const TOKENS: usize = 50;
const GQ_RUNS: usize = 21;

pub fn tokens(bench: &mut Bench) -> anyhow::Result<()> {
    let pool = bench.pool(1, "none")?;
    let tokens: Vec<String> = (0..=TOKENS)
        .map(|_| new_token(&pool))
        .collect::<anyhow::Result<_>>()?;
    let (last, tokens) = tokens.split_last().context("tokens were made")?;
    // Used once, so that its user is known and its day is noted.
    for token in tokens {
        ask(&pool, Some(token), 1)?;
    }
    bench.row_once(|_| {
        let without = timed(&pool, None, tokens.len())?;
        let start = (Instant::now(), pool.cpu_time()?.controller);
        for token in tokens {
            ask(&pool, Some(token), OF_TOKEN)?;
        }
        let with = (start.0.elapsed(), pool.cpu_time()?.controller - start.1);
        let each = |with: Duration, without: Duration| {
            (with.as_secs_f64() - without.as_secs_f64()) * 1e6 / (tokens.len() * OF_TOKEN) as f64
        };
        Ok(Row {
            what: "a request with a token, beyond one without",
            slurm: "",
            ours: format!(
                "{:.1} us, {:.1} us of CPU",
                each(with.0, without.0),
                each(with.1, without.1)
            ),
        })
    })?;
    over_https(bench, &pool, last)
}

/// A token that may read, of a user that each machine has.
fn new_token(pool: &Pool) -> anyhow::Result<String> {
    let words = [
        "token",
        "user",
        "daemon",
        "--scope",
        "read",
        "--expires",
        "1d",
    ];
    let made = pool.run("gadm", &words)?;
    Ok(String::from_utf8(made.stdout)?.trim().to_owned())
}

/// As many requests as tokens would make, by this user.
fn timed(pool: &Pool, token: Option<&str>, times: usize) -> anyhow::Result<(Duration, Duration)> {
    let start = (Instant::now(), pool.cpu_time()?.controller);
    for _ in 0..times {
        ask(pool, token, OF_TOKEN)?;
    }
    Ok((start.0.elapsed(), pool.cpu_time()?.controller - start.1))
}

/// Small questions on one connection of the socket.
fn ask(pool: &Pool, token: Option<&str>, count: usize) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(pool.dir.join("client.toml"))?;
    let socket = text.split('"').nth(1).context("no socket in client.toml")?;
    let mut stream = UnixStream::connect(socket)?;
    let bearer = token.map_or(String::new(), |token| {
        format!("Authorization: Bearer {token}\r\n")
    });
    let request = format!("GET /v1/cluster HTTP/1.1\r\nHost: x\r\n{bearer}\r\n");
    let mut piece = [0; 16 << 10];
    for _ in 0..count {
        stream.write_all(request.as_bytes())?;
        let read = stream.read(&mut piece)?;
        let answer = String::from_utf8_lossy(&piece[..read]);
        anyhow::ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    Ok(())
}

fn over_https(bench: &Bench, pool: &Pool, token: &str) -> anyhow::Result<()> {
    let record = std::fs::read_to_string(pool.dir.join("sandbox.json"))?;
    let record: serde_json::Value = serde_json::from_str(&record)?;
    let (config, file) = (pool.dir.join("https.toml"), pool.dir.join("token"));
    std::fs::write(&file, token)?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
    let text = format!(
        "controller = \"https://127.0.0.1:{}\"\ntoken_file = {file:?}\n",
        record["port"]
    );
    std::fs::write(&config, text)?;
    bench.row(|_| {
        let socket = median(GQ_RUNS, || pool.run("gq", &[]).map(drop))?;
        let https = median(GQ_RUNS, || {
            let mut command = pool.command("gq");
            let output = command.env("GPUPOOL_CONFIG", &config).output()?;
            anyhow::ensure!(output.status.success(), "{output:?}");
            Ok(())
        })?;
        Ok(Row {
            what: "gq over https; over the socket",
            slurm: "",
            ours: format!("{}; {}", millis(https), millis(socket)),
        })
    })
}
