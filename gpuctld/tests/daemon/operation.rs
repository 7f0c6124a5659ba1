//! What an administrator meets: start, stop, reload, a second controller, the wrong database.

use crate::controller::{Site, job, wait_until};
use nix::sys::signal::Signal;
use std::os::unix::fs::PermissionsExt;

/// Exit status when the database cannot be used: systemd is told not to restart on it.
const EXIT_DATABASE: i32 = 74;

#[test]
fn a_clean_stop_leaves_one_file_and_no_socket() {
    let site = Site::new();
    let controller = site.start();
    let id = controller.client().submit(&job("x"));
    assert_eq!(controller.stop(), 0, "{}", site.log());
    assert!(!site.socket().exists());
    assert!(!site.database().with_extension("db-wal").exists());
    assert_eq!(site.start().client().job_ids(), [id]);
}

#[test]
fn the_state_is_for_the_controller_only_and_the_socket_for_everyone() {
    let site = Site::new();
    let _controller = site.start();
    let mode = |path: &str| {
        site.dir
            .path()
            .join(path)
            .metadata()
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(
        (mode("state"), mode("state/gpupool.db"), mode("state/pki")),
        (0o700, 0o600, 0o700)
    );
    assert_eq!(mode("api.sock"), 0o666);
}

#[test]
fn a_second_controller_on_the_same_state_is_refused() {
    let site = Site::new();
    let controller = site.start();
    let (status, said) = site.run_to_end(&["run"]);
    assert_eq!(status, EXIT_DATABASE, "{said}");
    assert!(said.contains("another gpuctld has"), "{said}");
    controller.client().submit(&job("the first goes on"));
}

#[test]
fn a_database_of_a_newer_release_is_refused_and_not_changed() {
    let site = Site::new();
    assert_eq!(site.start().stop(), 0);
    // A reader that is closed last leaves an empty log.
    let logged_bytes = || {
        site.database()
            .with_extension("db-wal")
            .metadata()
            .map_or(0, |log| log.len())
    };
    assert_eq!(logged_bytes(), 0, "a clean stop leaves all in the database");
    let mut bytes = std::fs::read(site.database()).unwrap();
    bytes[60..64].copy_from_slice(&999u32.to_be_bytes()); // user_version
    std::fs::write(site.database(), &bytes).unwrap();
    let (status, said) = site.run_to_end(&["run"]);
    assert_eq!(status, EXIT_DATABASE, "{said}");
    assert!(
        said.contains("has schema 999, from a newer release"),
        "{said}"
    );
    assert!(
        std::fs::read(site.database()).unwrap() == bytes,
        "the file was changed"
    );
    assert!(logged_bytes() == 0 && !site.socket().exists());
}

#[test]
fn what_was_made_of_partitions_is_there_after_a_restart_and_files_count_after_a_reload() {
    let site = Site::new();
    let controller = site.start();
    let make =
        serde_json::json!({"create": true, "change": {"nodes": "ALL", "max_time_secs": 600}});
    controller.client().post("/v1/partitions/debug", &make);
    let set = serde_json::json!({"change": {"max_time_secs": 900}});
    controller.client().post("/v1/partitions/main", &set);
    controller.kill();
    let controller = site.start();
    let one = controller.client().get("/v1/partitions/debug");
    assert_eq!(
        (
            &one["partitions"][0]["max_time_secs"],
            &one["partitions"][0]["made_by"].is_string()
        ),
        (&serde_json::json!(600), &true)
    );
    let main =
        |key: &str| controller.client().get("/v1/partitions/main")["partitions"][0][key].clone();
    assert_eq!(
        (main("max_time_secs"), main("set_keys")),
        (900.into(), serde_json::json!(["max_time"]))
    );
    let said = controller
        .client()
        .post("/v1/reload", &serde_json::json!({}));
    assert!(
        said["notes"][0]
            .as_str()
            .is_some_and(|note| note.contains("counts no more")),
        "{said}"
    );
    assert!(main("max_time_secs").is_null() && main("set_keys").is_null());
    assert_eq!(controller.stop(), 0);
}

#[test]
fn a_damaged_database_points_to_backup_and_restore_and_a_restore_helps() {
    let site = Site::new();
    let controller = site.start();
    let mut client = controller.client();
    let ids: Vec<u64> = (0..300).map(|_| client.submit(&job("x"))).collect();
    let backup = site.dir.path().join("backup.db");
    client.post("/v1/backup", &serde_json::json!({"path": backup}));
    let lost = client.submit(&job("after the backup"));
    assert_eq!(controller.stop(), 0);
    let mut bytes = std::fs::read(site.database()).unwrap();
    bytes[4096..].fill(0xee);
    std::fs::write(site.database(), bytes).unwrap();
    let (status, said) = site.run_to_end(&["run"]);
    assert_eq!(status, EXIT_DATABASE, "{said}");
    assert!(
        said.contains("is damaged") && said.contains("gpuctld restore --from"),
        "{said}"
    );
    let (status, said) = site.run_to_end(&["restore", "--from", backup.to_str().unwrap()]);
    assert_eq!(status, 0, "{said}");
    let controller = site.start();
    assert_eq!(controller.client().job_ids(), ids);
    let next = controller.client().submit(&job("x"));
    assert!(
        next > lost + 900_000,
        "id {next} may have been given out before"
    );
}

#[test]
fn a_cluster_is_made_once_and_by_its_word_only() {
    let site = Site::new();
    let (status, said) = site.run_to_end(&["run"]);
    assert!(
        status == EXIT_DATABASE
            && said.contains("there is no cluster in")
            && said.contains("gpuctld new"),
        "{status} {said}"
    );
    let (status, said) = site.run_to_end(&["new"]);
    assert!(
        status == 0 && said.contains("cluster test is made in"),
        "{status} {said}"
    );
    let (status, said) = site.run_to_end(&["new"]);
    assert!(
        status == 1 && said.contains("holds a cluster already"),
        "{status} {said}"
    );
    let id = site.start().client().submit(&job("x"));
    // What is left of it when its disk is not mounted, and when only its database went.
    let state = site.dir.path().join("state");
    let aside = site.dir.path().join("aside");
    std::fs::rename(&state, &aside).unwrap();
    std::fs::create_dir(&state).unwrap();
    let (status, said) = site.run_to_end(&["run"]);
    assert!(
        status == EXIT_DATABASE && said.contains("is the directory's disk mounted?"),
        "{status} {said}"
    );
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::rename(&aside, &state).unwrap();
    assert_eq!(site.start().client().job_ids(), [id]);
    std::fs::remove_file(site.database()).unwrap();
    for words in ["run", "new"] {
        let (status, said) = site.run_to_end(&[words]);
        assert!(
            status != 0
                && (said.contains("gone or empty") || said.contains("holds a cluster already")),
            "{status} {said}"
        );
    }
}

#[test]
fn a_database_without_its_log_or_from_before_is_refused_and_a_restore_gives_no_id_twice() {
    let site = Site::new();
    let controller = site.start();
    let first = controller.client().submit(&job("x"));
    assert_eq!(controller.stop(), 0);
    let copy = site.dir.path().join("copy.db");
    std::fs::copy(site.database(), &copy).unwrap();
    let controller = site.start();
    let last = controller.client().submit(&job("in the log only"));
    controller.kill();
    let log = site.database().with_extension("db-wal");
    let refused = |what: &str, words: &[&str]| {
        let (status, said) = site.run_to_end(&["run"]);
        assert_eq!(status, EXIT_DATABASE, "{what}: {said}");
        let restore = format!(
            "gpuctld restore --config {} --from FILE",
            site.config().display()
        );
        for words in words.iter().copied().chain([
            "is damaged",
            "behind what this controller has committed",
            &restore,
        ]) {
            assert!(said.contains(words), "{what}: {words:?} is not in {said}");
        }
    };
    let aside = site.dir.path().join("log");
    std::fs::rename(&log, &aside).unwrap();
    refused("no log", &["no log beside it"]);
    // The log comes back: all is there.
    std::fs::rename(&aside, &log).unwrap();
    let _ = std::fs::remove_file(site.database().with_extension("db-shm"));
    let controller = site.start();
    assert_eq!(controller.client().job_ids(), [first, last]);
    assert_eq!(controller.stop(), 0);
    std::fs::copy(&copy, site.database()).unwrap();
    refused("an older copy", &[]);
    refused("still", &[]);
    let (status, said) = site.run_to_end(&["restore", "--from", site.database().to_str().unwrap()]);
    assert_eq!(status, 0, "{said}");
    let controller = site.start();
    assert_eq!(controller.client().job_ids(), [first]);
    let next = controller.client().submit(&job("y"));
    assert!(
        next > last + 900_000,
        "id {next} may have been given out before"
    );
    // Killed and started again it is no older than itself.
    controller.kill();
    assert_eq!(site.start().client().job_ids(), [first, next]);
}

#[test]
fn a_page_that_is_not_what_was_written_is_called_damage_whenever_it_is_met() {
    let site = Site::new();
    let controller = site.start();
    let mut client = controller.client();
    for number in 0..60 {
        let id = client.submit(&job(&format!("x{number}")));
        if number < 20 {
            client.post(
                "/v1/jobs/cancel",
                &serde_json::json!({"jobs": [id.to_string()]}),
            );
        }
    }
    assert_eq!(controller.stop(), 0);
    let whole = std::fs::read(site.database()).unwrap();
    let page = usize::from(u16::from_be_bytes([whole[16], whole[17]]));
    // Pages of trees; the bytes of long values have nothing that could be wrong.
    let is_tree = |at: &usize| [2, 5, 10, 13].contains(&whole[*at * page]);
    let trees: Vec<usize> = (1..whole.len() / page).filter(is_tree).collect();
    assert!(trees.len() > 15, "{} pages", trees.len());
    for at in trees {
        let mut bytes = whole.clone();
        bytes[at * page..(at + 1) * page].fill(0);
        std::fs::write(site.database(), &bytes).unwrap();
        let log = std::fs::File::create(site.dir.path().join("log")).unwrap();
        let mut process = site.command(&["run"]).stderr(log).spawn().unwrap();
        wait_until(
            || {
                ["is damaged", "every page is sound"]
                    .iter()
                    .any(|words| site.log().contains(words))
            },
            || format!("a word about page {at}: {}", site.log()),
        );
        assert!(
            site.log().contains("is damaged") && site.log().contains("restore"),
            "page {at}: {}",
            site.log()
        );
        process.kill().unwrap();
        process.wait().unwrap();
        for end in ["db-wal", "db-shm"] {
            let _ = std::fs::remove_file(site.database().with_extension(end));
        }
        let _ = std::fs::remove_file(site.dir.path().join("state/high-water"));
    }
}

#[test]
fn sighup_reads_the_configuration_and_keeps_the_old_one_when_it_is_wrong() {
    let site = Site::new();
    let controller = site.start();
    let partitions = || {
        controller.client().get("/v1/partitions")["partitions"]
            .as_array()
            .unwrap()
            .len()
    };
    let good = std::fs::read_to_string(site.config()).unwrap();
    std::fs::write(
        site.config(),
        format!("{good}\n[partition.second]\nmax_tiem = \"1\"\n"),
    )
    .unwrap();
    controller.signal(Signal::SIGHUP);
    site.wait_for_log("did you mean");
    assert_eq!(partitions(), 1);
    std::fs::write(site.config(), format!("{good}\n[partition.second]\n")).unwrap();
    controller.signal(Signal::SIGHUP);
    wait_until(|| partitions() == 2, || "the second partition".into());
}

#[test]
fn a_wrong_configuration_starts_nothing() {
    let site = Site::new();
    site.configure("lost_node = \"forget\"\n");
    let (status, said) = site.run_to_end(&["run"]);
    assert_eq!(status, 1);
    assert!(said.contains("gpuctld.toml:6:"), "{said}");
    assert!(!site.database().exists());
    let (status, said) = site.run_to_end(&["check"]);
    assert_eq!((status, said.contains("lost_node")), (1, true), "{said}");
}

#[test]
fn a_right_configuration_is_counted_in_proper_words() {
    let site = Site::new();
    for (extra, words) in [
        ("", ": 1 partition, no mistakes\n"),
        ("[partition.second]\n", ": 2 partitions, no mistakes\n"),
    ] {
        site.configure(extra);
        let (status, said) = site.run_to_end(&["check"]);
        assert!(status == 0 && said.ends_with(words), "{status} {said}");
    }
}

#[test]
fn systemd_does_not_start_again_what_cannot_use_its_database() {
    let unit = include_str!("../../../packaging/systemd/gpupool-gpuctld.service");
    assert!(
        unit.lines()
            .any(|line| line == format!("RestartPreventExitStatus={EXIT_DATABASE}")),
        "{unit}"
    );
}

#[test]
fn systemd_is_told_when_recovery_is_complete() {
    let site = Site::new();
    assert_eq!(site.run_to_end(&["new"]).0, 0);
    let path = site.dir.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(crate::controller::PATIENCE))
        .unwrap();
    let mut process = site
        .command(&["run"])
        .env("NOTIFY_SOCKET", &path)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut text = [0; 256];
    let length = socket.recv(&mut text).unwrap();
    assert_eq!(&text[..length], b"READY=1\n");
    assert!(
        std::os::unix::net::UnixStream::connect(site.socket()).is_ok(),
        "ready, and does not answer"
    );
    process.kill().unwrap();
    process.wait().unwrap();
}
