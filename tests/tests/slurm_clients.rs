//! The calls that programs for Slurm make, against a pool with commands linked under Slurm's names: what submitit,
//! snakemake, parsl and the others read there must not change. `slurm_clients.txt` has the calls and what they print.

use gpupool_tests::pool::Pool;

const CALLS: &str = include_str!("slurm_clients.txt");

#[test]
fn programs_that_call_slurm_find_what_they_look_for() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    let links = pool.work.join("links");
    let said = pool.run("gadm", &["slurm-names", links.to_str().unwrap()]);
    assert_eq!(
        said.out,
        format!("export PATH={}:$PATH\n", links.display()),
        "{said:?}"
    );
    let path = format!("export PATH={}:$PATH TZ=UTC; ", links.display());
    let mut wrong = String::new();
    for call in calls() {
        match call {
            Call::Wait { job, state } => {
                pool.wait_until(&format!("{wrong}job {job} is {state}"), || {
                    pool.find_job(job)
                        .is_some_and(|found| found.state.long() == state)
                })
            }
            Call::Run { line, wanted } => {
                let said = pool.run_shell(&format!("{path}{line}"));
                let mut lines: Vec<String> = said
                    .out
                    .lines()
                    .map(|line| line.trim_end().to_owned())
                    .collect();
                lines.extend(said.err.lines().map(|line| format!("stderr: {line}")));
                lines.extend((said.code != 0).then(|| format!("exit: {}", said.code)));
                let fits = lines.len() == wanted.len()
                    && lines
                        .iter()
                        .zip(&wanted)
                        .all(|(line, wanted)| is_like(line, wanted));
                if !fits {
                    wrong.push_str(&format!(
                        "$ {line}\n{}\nwanted:\n{}\n",
                        lines.join("\n"),
                        wanted.join("\n")
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}{}", pool.logs());
    pool.check();
}

enum Call {
    /// `@ 5 RUNNING`
    Wait {
        job: &'static str,
        state: &'static str,
    },
    /// `$ squeue -h`, then what it prints: stdout, stderr marked, the exit code unless it is 0.
    Run {
        line: &'static str,
        wanted: Vec<&'static str>,
    },
}

fn calls() -> Vec<Call> {
    let mut calls = Vec::new();
    for text in CALLS
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        if let Some(line) = text.strip_prefix("$ ") {
            calls.push(Call::Run {
                line,
                wanted: Vec::new(),
            });
        } else if let Some((job, state)) = text
            .strip_prefix("@ ")
            .and_then(|wait| wait.split_once(' '))
        {
            calls.push(Call::Wait { job, state });
        } else if let Some(Call::Run { wanted, .. }) = calls.last_mut() {
            wanted.push(text);
        }
    }
    assert!(calls.len() > 60, "the table was read");
    calls
}

/// Whether a line is as wanted, where `*` is any text.
fn is_like(line: &str, wanted: &str) -> bool {
    let mut parts = wanted.trim_end().split('*');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn stars_stand_for_any_text() {
    assert!(
        is_like("main* up", "main* up")
            && is_like("9|5a1e|00:00.005|x", "9|5a1e|*|x")
            && is_like("", "")
    );
    assert!(
        !is_like("9|5a1e|y", "9|5a1e|*|x")
            && !is_like("ab", "a")
            && !is_like("ab", "b*")
            && !is_like("ab", "b")
    );
    assert!(is_like("a1b2c", "a*b*c") && !is_like("a1c", "a*b*c"));
}
