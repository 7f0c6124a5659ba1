//! The experiments as commands: files in, text, SVG and JSON out, exit codes.

use std::path::PathBuf;
use std::process::{Command, Output};

const TRACE: &str = "job_id,account,submit_s,run_s,gpus\na,x,0,100,2\nb,y,10,50,2\nc,x,20,10,1\n";

/// A directory that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("gsim-lab-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }
    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gsim-lab"))
        .args(args)
        .output()
        .unwrap()
}

fn error_of(args: &[&str], code: i32) -> String {
    let done = lab(args);
    let error = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(code), "{error}");
    error
}

fn json_of(args: &[&str]) -> serde_json::Value {
    let done = lab(args);
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    serde_json::from_str(
        String::from_utf8(done.stdout)
            .unwrap()
            .lines()
            .last()
            .unwrap(),
    )
    .unwrap()
}

#[test]
fn the_limit_of_jobs_without_one_is_said() {
    let scratch = Scratch::new("limits");
    let trace = scratch.file("t.csv", TRACE);
    for command in ["forecast", "reclaim"] {
        let args = [
            command,
            "--trace",
            &trace,
            "--no-limit",
            "truth",
            "--nodes",
            "8",
        ];
        let said = String::from_utf8(lab(&args).stdout).unwrap();
        assert!(said.contains("which no real one knows"), "{said}");
    }
}

#[test]
fn an_option_that_would_change_nothing_is_refused() {
    let scratch = Scratch::new("options");
    let (trace, nodes) = (
        scratch.file("t.csv", TRACE),
        scratch.file("n.csv", "node,gpus\nn1,2\n"),
    );
    for wrong in [
        &["reclaim", "--trace", &trace, "--cluster", &nodes][..],
        &["reclaim", "--trace", &trace, "--gpus-per-node", "4"],
        &["forecast", "--trace", &trace, "--per-account-clusters"],
        &["forecast", "--trace", &trace, "--out", "x"],
    ] {
        let error = error_of(wrong, 2);
        assert!(error.contains("unexpected argument"), "{wrong:?}: {error}");
    }
}

#[test]
fn plots_are_written_for_each_policy() {
    let scratch = Scratch::new("plots");
    let trace = scratch.file("t.csv", TRACE);
    let out = scratch.path("plots");
    let done = lab(&[
        "plots", "--trace", &trace, "--nodes", "1", "--policy", "fifo", "--out", &out,
    ]);
    assert!(done.status.success(), "{done:?}");
    for plot in ["use-fifo.svg", "queue-fifo.svg", "waits-by-size.svg"] {
        assert!(
            std::fs::read_to_string(scratch.0.join("plots").join(plot))
                .unwrap()
                .ends_with("</svg>\n")
        );
    }
}

#[test]
fn pods_fill_nodes() {
    let scratch = Scratch::new("frag");
    let pods = scratch.file("p.csv", "submit_s,run_s,gpus,cpus\n0,,0.5,1\n0,,1,1\n");
    let nodes = scratch.file(
        "n.csv",
        "node,cpus,mem_mb,gpus,gpu_type\na,96,1024,4,X\nb,96,1024,4,X\n",
    );
    let document = json_of(&[
        "frag",
        "--trace",
        &pods,
        "--cluster",
        &nodes,
        "--seeds",
        "2",
        "--until",
        "100",
        "--json",
    ]);
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    assert!(
        results
            .iter()
            .all(|one| one["allocated"].as_f64().unwrap() > 0.9),
        "{document}"
    );
    assert!(
        error_of(
            &[
                "frag",
                "--trace",
                &pods,
                "--cluster",
                &nodes,
                "--placement",
                "pakc"
            ],
            1
        )
        .contains("Did you mean \"pack\"?")
    );
}
