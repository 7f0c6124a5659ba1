//! `gadm import slurm` on files that are none, and on a directory that has something in it. It asks no controller.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn import(dir: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gadm"));
    command
        .current_dir(dir)
        .env_clear()
        .args(["import", "slurm"]);
    command.args(words).output().unwrap()
}

fn refused(dir: &Path, words: &[&str], why: &str) {
    let said = import(dir, words);
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        said.status.code() == Some(1) && text.contains(why),
        "{words:?}: {text}"
    );
    assert!(!dir.join("out").exists(), "nothing was written");
}

#[test]
fn what_is_no_slurm_conf_is_refused_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| fs::write(dir.path().join(name), text).unwrap();
    write("good", b"NodeName=n1\nPartitionName=p Nodes=n1\n");
    write("binary", b"\x7fELF\0\0");
    write("long", "NodeName=n,".repeat(5 << 20).as_bytes());
    write("circle", b"include circle\n");
    write("outside", b"include ../../etc/passwd\n");
    write("broken", b"NodeName=n1 CPUs\nPartitionName=p Nodes=n[1-\n");
    write("sacct", b"JobID|User\n");
    for (file, why) in [
        ("binary", "it is no text"),
        ("long", "it has more than 4194304 bytes"),
        ("circle", "\"circle\" includes itself"),
        ("outside", "is not below ."),
        ("broken", "2 mistakes, and nothing was written"),
        ("/dev/zero", "it is no regular file"),
        ("gone", "No such file"),
    ] {
        refused(dir.path(), &["--conf", file, "--out", "out"], why);
    }
    let jobs = ["--conf", "good", "--jobs", "sacct", "--out", "out"];
    refused(dir.path(), &jobs, "the first line has no column account");
    let topology = ["--conf", "good", "--topology", "good", "--out", "out"];
    refused(dir.path(), &topology, "unknown key");
}

#[test]
fn the_report_is_json_and_a_directory_in_use_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("slurm.conf"),
        "KilWait=3\nNodeName=n1\nPartitionName=p Nodes=n1\n",
    )
    .unwrap();
    let words = ["--conf", "slurm.conf", "--out", "out", "--json"];
    let said = import(dir.path(), &words);
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(
        (&report["schema"], &report["findings"][0]["said"]),
        (&1.into(), &"KilWait=3".into())
    );
    let again = import(dir.path(), &words);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("it is not empty"));
}
