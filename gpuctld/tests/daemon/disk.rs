//! A short disk refuses what is new; a full one ends the process and loses nothing that was acknowledged.

use crate::controller::{Site, job};
use serde_json::Value;
use std::path::PathBuf;

#[test]
fn below_min_free_commands_are_refused_reads_answered_and_a_reload_helps() {
    let site = Site::new();
    site.configure("min_free = \"1000T\"\nallow_root_jobs = true\n");
    let controller = site.start();
    let mut client = controller.client();
    let (status, body) = client.ask("POST", "/v1/jobs", &job("x")).unwrap();
    assert_eq!(status, 503, "{body}");
    let error = body["error"].as_str().unwrap();
    assert!(error.contains("min_free") && error.contains("/state has"), "{error}");
    assert_eq!(client.job_ids(), [0u64; 0]);
    site.configure("min_free = \"1M\"\nallow_root_jobs = true\n");
    client.post("/v1/reload", &Value::Null);
    client.submit(&job("x"));
}

#[test]
fn a_commit_that_fails_ends_the_process_and_loses_nothing_acknowledged() {
    let Some(small) = SmallDisk::mount("4m") else {
        println!("NOT RUN: a_commit_that_fails_ends_the_process (cannot mount a tmpfs here)");
        return;
    };
    let site = Site::in_dir(tempfile::tempdir_in(&small.path).unwrap());
    site.configure("min_free = 0\nallow_root_jobs = true\n");
    let mut controller = site.start();
    let mut client = controller.client();
    let mut body = job("x");
    let mut acknowledged = Vec::new();
    for round in 0.. {
        body["script"] = format!("#!/bin/sh\n# {round} {}\n", "x".repeat(60_000)).into();
        match client.try_submit(&body) {
            Ok(id) => acknowledged.push(id),
            Err(_) => break,
        }
        assert!(round < 1000, "4 MiB hold no thousand scripts of 60 kB");
    }
    assert_eq!(controller.wait(), 74, "{}", site.log());
    assert!(!acknowledged.is_empty());
    // Once there is room again everything acknowledged is there.
    small.resize("64m");
    let controller = site.start();
    let there = controller.client().job_ids();
    assert_eq!(there[..acknowledged.len()], acknowledged);
    assert!(there.len() <= acknowledged.len() + 1, "{there:?}");
    controller.client().submit(&job("y"));
    assert_eq!(controller.stop(), 0);
    drop(site);
}

/// A tmpfs of its own, unmounted when dropped.
struct SmallDisk {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let options = format!("size={size}");
        nix::mount::mount(
            Some("gpuctld-test"),
            &path,
            Some("tmpfs"),
            nix::mount::MsFlags::empty(),
            Some(options.as_str()),
        )
        .ok()?;
        Some(Self { path, _dir: dir })
    }

    fn resize(&self, size: &str) {
        let options = format!("size={size}");
        let flags = nix::mount::MsFlags::MS_REMOUNT;
        nix::mount::mount(None::<&str>, &self.path, None::<&str>, flags, Some(options.as_str())).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.path, nix::mount::MntFlags::MNT_DETACH);
    }
}
