//! A short disk refuses what is new; a full one takes the reserve, and without one ends the process; nothing acknowledged is lost.

use crate::controller::{Controller, Site, job, wait_until};
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
    assert!(
        error.contains("min_free") && error.contains("/state has"),
        "{error}"
    );
    assert_eq!(client.job_ids(), [0u64; 0]);
    site.configure("min_free = \"1M\"\nallow_root_jobs = true\n");
    client.post("/v1/reload", &Value::Null);
    client.submit(&job("x"));
}

/// Submits scripts of 60 kB until one is refused; the ids, and why.
fn fill_with_jobs(controller: &Controller) -> (Vec<u64>, String) {
    let mut client = controller.client();
    let mut body = job("x");
    let mut acknowledged = Vec::new();
    for round in 0..2000 {
        body["script"] = format!("#!/bin/sh\n# {round} {}\n", "x".repeat(60_000)).into();
        match client.try_submit(&body) {
            Ok(id) => acknowledged.push(id),
            Err(why) => return (acknowledged, why),
        }
    }
    panic!("2000 scripts of 60 kB fit");
}

#[test]
fn a_full_disk_takes_the_reserve_refuses_commands_and_comes_back_by_itself() {
    for is_killed in [false, true] {
        let Some(small) = SmallDisk::mount("64m") else {
            println!(
                "NOT RUN: a_full_disk_takes_the_reserve_refuses_commands_and_comes_back_by_itself (cannot mount a tmpfs here)"
            );
            return;
        };
        let site = Site::in_dir(tempfile::tempdir_in(&small.path).unwrap());
        let reserve = site.dir.path().join("state/reserve");
        let mut controller = site.start();
        assert!(reserve.exists());
        // Jobs take the last bytes between two looks at the disk, or others do.
        let (acknowledged, why) = fill_with_jobs(&controller);
        assert!(
            why.contains("503") && why.contains("MiB free and gpuctld"),
            "{why}"
        );
        let filler = small.path.join("filler");
        let mut others = std::fs::File::create(&filler).unwrap();
        while reserve.exists() && std::io::Write::write_all(&mut others, &[1; 4096]).is_ok() {}
        // What is no command is written into the given-up reserve.
        let mut client = controller.client();
        let given_up = || {
            client.post("/v1/reload", &Value::Null);
            !reserve.exists()
        };
        wait_until(given_up, || {
            format!("the reserve to be given up: {}", site.log())
        });
        let refused = controller.client().try_submit(&job("y")).unwrap_err();
        assert!(refused.contains("a reserve of 32 MiB"), "{refused}");
        // Also by a controller that starts so.
        if is_killed {
            controller.kill();
            controller = site.start();
            let refused = controller.client().try_submit(&job("y")).unwrap_err();
            assert!(refused.contains("a reserve of 32 MiB"), "{refused}");
        }
        // Room again: commands are taken, without a start.
        std::fs::remove_file(&filler).unwrap();
        small.resize("256m");
        controller.client().submit(&job("z"));
        let there = controller.client().job_ids();
        assert!(reserve.exists() && acknowledged.iter().all(|id| there.contains(id)));
        assert_eq!(controller.stop(), 0, "{}", site.log());
    }
}

#[test]
fn a_commit_that_fails_ends_the_process_and_loses_nothing_acknowledged() {
    let Some(small) = SmallDisk::mount("48m") else {
        println!("NOT RUN: a_commit_that_fails_ends_the_process (cannot mount a tmpfs here)");
        return;
    };
    let site = Site::in_dir(tempfile::tempdir_in(&small.path).unwrap());
    site.configure("min_free = 0\nallow_root_jobs = true\n");
    let mut controller = site.start();
    let (acknowledged, _) = fill_with_jobs(&controller);
    assert!(!acknowledged.is_empty());
    // The reserve is filled too, by others; what is no command meets the end of the disk.
    let mut filler = std::fs::File::create(small.path.join("filler")).unwrap();
    while std::io::Write::write_all(&mut filler, &[1; 4096]).is_ok() {}
    let mut client = controller.client();
    for _ in 0..20_000 {
        if client.ask("POST", "/v1/reload", &Value::Null).is_err() {
            break;
        }
    }
    assert_eq!(controller.wait(), 74, "{}", site.log());
    // Once there is room again everything acknowledged is there.
    small.resize("128m");
    let controller = site.start();
    let there = controller.client().job_ids();
    assert_eq!(there[..acknowledged.len()], acknowledged);
    assert!(there.len() <= acknowledged.len() + 1, "{there:?}");
    wait_until(
        || controller.client().try_submit(&job("y")).is_ok(),
        || "a command to be taken".into(),
    );
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
        nix::mount::mount(
            None::<&str>,
            &self.path,
            None::<&str>,
            flags,
            Some(options.as_str()),
        )
        .unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.path, nix::mount::MntFlags::MNT_DETACH);
    }
}
