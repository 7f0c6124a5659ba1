//! The command as people run it: files in, text and JSON out, exit codes.

#![allow(clippy::disallowed_methods)] // Files are what is tested; the crate's rule is for its library.

use std::path::PathBuf;
use std::process::{Command, Output};

const TRACE: &str = "job_id,account,submit_s,run_s,gpus\na,x,0,100,2\nb,y,10,50,2\nc,x,20,10,1\n";

/// A directory that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("gsim-{name}-{}", std::process::id()));
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

fn gsim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gsim"))
        .args(args)
        .output()
        .unwrap()
}

fn error_of(args: &[&str], code: i32) -> String {
    let done = gsim(args);
    let error = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(code), "{error}");
    error
}

fn json_of(args: &[&str]) -> serde_json::Value {
    let done = gsim(args);
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
fn a_run_prints_a_document_and_writes_starts() {
    let scratch = Scratch::new("run");
    let (trace, starts) = (scratch.file("t.csv", TRACE), scratch.path("s.csv"));
    let nodes = scratch.file(
        "n.csv",
        "node,cpus,mem_mb,gpus,gpu_type\nn1,8,1024,2,H100\n",
    );
    let args = [
        "run",
        "--trace",
        &trace,
        "--cluster",
        &nodes,
        "--policy",
        "fifo",
        "--starts",
        &starts,
        "--json",
    ];
    let document = json_of(&args);
    assert_eq!(
        (&document["schema"], &document["command"]),
        (&1.into(), &"run".into())
    );
    let result = &document["results"][0];
    assert_eq!(
        (&result["finished"], &result["makespan_secs"]),
        (&3.into(), &160.0.into())
    );
    assert_eq!(result["wait_secs"]["max"], 130.0);
    let written = std::fs::read_to_string(&starts).unwrap();
    assert!(
        written.ends_with("c,20,150,160,n1,1,finished,0\n"),
        "{written}"
    );
}

#[test]
fn policies_stand_side_by_side() {
    let scratch = Scratch::new("compare");
    let trace = scratch.file("t.csv", TRACE);
    let site = scratch.file(
        "site.toml",
        "[scheduler]\norder = \"sjf\"\nbackfill = \"off\"\n",
    );
    let starts = scratch.path("starts");
    let args = [
        "compare",
        "--trace",
        &trace,
        "--nodes",
        "1",
        "--gpus-per-node",
        "2",
        "--policy",
        "fifo",
        "--policy",
        &site,
        "--starts",
        &starts,
        "--no-limit",
        "truth",
        "--json",
    ];
    let document = json_of(&args);
    let names: Vec<_> = document["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["policy"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["fifo", "site"]);
    // The shortest job passes where the shortest goes first.
    let last = |name: &str| {
        std::fs::read_to_string(scratch.0.join("starts").join(name))
            .unwrap()
            .lines()
            .last()
            .unwrap()
            .to_owned()
    };
    assert!(last("fifo.csv").starts_with("c,20,150,") && last("site.csv").starts_with("c,20,100,"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let scratch = Scratch::new("pipe");
    let (trace, starts) = (scratch.file("t.csv", TRACE), scratch.path("s.csv"));
    for args in [
        &["run", "--trace", &trace, "--starts", &starts][..],
        &["compare", "--trace", &trace, "--policy", "fifo", "--json"],
        &["bench", "--list"],
        &["replay-seed", "1"],
    ] {
        // The reading end is closed before the command begins.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_gsim"));
        let done = command.args(args).stdout(writer).output().unwrap();
        assert_eq!(
            (done.status.code(), String::from_utf8(done.stderr).unwrap()),
            (Some(0), String::new()),
            "{args:?}"
        );
    }
    assert!(
        std::fs::read_to_string(&starts)
            .unwrap()
            .starts_with("job_id,"),
        "files are written all the same"
    );
}

#[test]
fn results_that_cannot_be_written_are_an_error() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_gsim"))
        .args(["bench", "--list"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert!(
        String::from_utf8(done.stderr)
            .unwrap()
            .starts_with("gsim: standard output: No space left")
    );
}

#[test]
fn the_limit_of_jobs_without_one_is_said() {
    let scratch = Scratch::new("limits");
    let trace = scratch.file("t.csv", TRACE);
    let note = |more: &[&str]| {
        let args = [&["run", "--trace", &trace, "--nodes", "1", "--json"], more].concat();
        json_of(&args)["results"][0]["notes"][0]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        note(&[]),
        "3 jobs name no time limit: the controller gives each its partition's, or 1-00:00:00 (--no-limit)"
    );
    assert_eq!(
        note(&["--no-limit", "90"]),
        "3 jobs name no time limit: each asks for 1:30 (--no-limit)"
    );
    assert!(note(&["--no-limit", "truth"]).ends_with("which no real one knows (--no-limit truth)"));
    assert!(
        error_of(&["run", "--trace", &trace, "--no-limit", "lies"], 2)
            .contains("seconds, or the word truth")
    );
}

#[test]
fn what_cannot_be_used_is_named_with_its_place() {
    let scratch = Scratch::new("wrong");
    let trace = scratch.file("t.csv", TRACE);
    let bad = scratch.file("bad.csv", "submit_s,run_s\n1,soon\n");
    assert_eq!(
        error_of(&["run", "--trace", &bad], 1),
        format!("gsim: {bad}: line 2: run_s is \"soon\", which is no number\n")
    );
    let missing = scratch.path("none.csv");
    assert!(error_of(&["run", "--trace", &missing], 1).contains("none.csv: No such file"));
    let policy = scratch.file("p.toml", "[scheduler]\nodrer = \"fifo\"\n");
    let error = error_of(&["run", "--trace", &trace, "--policy", &policy], 1);
    assert!(
        error.contains("unknown key \"odrer\" in [scheduler]")
            && error.contains("p.toml:2:1")
            && error.contains("did you mean \"order\"?"),
        "{error}"
    );
    assert!(
        error_of(&["run", "--trace", &trace, "--policy", "lifo"], 1)
            .contains("Without a file there are: default, fifo")
    );
    assert!(
        error_of(&["run", "--trace", &trace, "--load", "90"], 1)
            .contains("--load 90: 0.01 to 10 is allowed")
    );
    assert!(error_of(&["bench", "pass-k2"], 1).contains("Did you mean \"pass-k1\"?"));
    assert!(error_of(&["replay", &trace], 1).contains("line 1: no JSON"));
    error_of(&["run"], 2);
    error_of(&["compare", "--trace", &trace], 2);
}

#[test]
fn an_option_that_would_change_nothing_is_refused() {
    let scratch = Scratch::new("options");
    let (trace, nodes) = (
        scratch.file("t.csv", TRACE),
        scratch.file("n.csv", "node,gpus\nn1,2\n"),
    );
    for wrong in [
        &["run", "--trace", &trace, "--nodes", "2", "--load", "0.5"][..],
        &[
            "run",
            "--trace",
            &trace,
            "--cluster",
            &nodes,
            "--load",
            "0.5",
        ],
    ] {
        let error = error_of(wrong, 2);
        assert!(
            error.contains("unexpected argument") || error.contains("cannot be used with"),
            "{wrong:?}: {error}"
        );
    }
}
