//! SIGKILL straight after acknowledged submissions: all there, no id twice, no answer from half a state.

use crate::controller::{Client, Site, job};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const CLIENTS: usize = 8;
const ACKNOWLEDGED: usize = 500;

#[test]
fn kill_after_500_acknowledged_submissions_loses_none_and_gives_no_id_twice() {
    let site = Site::new();
    let mut acknowledged = BTreeSet::new();
    for round in 0..3 {
        let controller = site.start();
        let mut ids = submit_until_killed(controller, round);
        let count = ids.len();
        assert!(count >= ACKNOWLEDGED, "{count} acknowledged");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "an id was given twice");
        for id in ids {
            assert!(
                acknowledged.insert(id),
                "id {id} was given before the crash too"
            );
        }
        let controller = site.start();
        let there: BTreeSet<u64> = controller.client().job_ids().into_iter().collect();
        let lost: Vec<_> = acknowledged.difference(&there).collect();
        assert!(
            lost.is_empty(),
            "round {round}: {} of {} lost",
            lost.len(),
            acknowledged.len()
        );
        let next = controller.client().submit(&job("after"));
        assert!(
            there.iter().all(|id| *id < next),
            "id {next} is not above all others"
        );
        acknowledged.insert(next);
        controller.kill();
    }
}

/// Submits from several clients and kills the controller in the middle of it.
fn submit_until_killed(controller: crate::controller::Controller, round: usize) -> Vec<u64> {
    let so_far = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let mut client = controller.client();
                let so_far = &so_far;
                scope.spawn(move || {
                    let mut ids = Vec::new();
                    // Ends when the connection does: with the controller.
                    while let Ok(id) = client.try_submit(&job(&format!("r{round}c{number}"))) {
                        ids.push(id);
                        so_far.fetch_add(1, Ordering::Relaxed);
                    }
                    ids
                })
            })
            .collect();
        while so_far.load(Ordering::Relaxed) < ACKNOWLEDGED {
            assert!(
                !clients.iter().all(|client| client.is_finished()),
                "all clients ended early"
            );
            std::thread::sleep(Duration::from_micros(200));
        }
        controller.kill();
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    })
}

#[test]
fn an_array_survives_a_kill_as_one_record() {
    let site = Site::new();
    let controller = site.start();
    let mut body = job("many");
    body["spec"]["array"] = json!("0-9999%4");
    let first = controller.client().submit(&body);
    controller.kill();
    let controller = site.start();
    let next = controller.client().submit(&job("one"));
    assert_eq!(next, first + 10_000);
    let shown = controller.client().get(&format!("/v1/jobs/{first}_77"));
    assert_eq!(shown["jobs"][0]["name"], "many", "{shown}");
}

#[test]
fn a_submission_asked_again_after_a_crash_makes_no_second_job() {
    let site = Site::new();
    let controller = site.start();
    let mut body = job("once");
    body["client_key"] = json!("a key of the client");
    let id = controller.client().submit(&body);
    controller.kill();
    let controller = site.start();
    let (_, answer) = controller.client().ask("POST", "/v1/jobs", &body).unwrap();
    assert_eq!(
        (answer["id"].as_u64(), answer["repeated"].as_bool()),
        (Some(id), Some(true)),
        "{answer}"
    );
    assert_eq!(controller.client().job_ids(), [id]);
}

#[test]
fn the_first_answer_after_a_crash_is_complete() {
    let site = Site::new();
    let controller = site.start();
    let mut client = controller.client();
    let ids: Vec<u64> = (0..50).map(|_| client.submit(&job("x"))).collect();
    drop(client);
    controller.kill();
    // The socket's file is still there; a connection now is refused until recovery is complete.
    let mut process = site
        .command(&["run"])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let answer = loop {
        if let Ok(stream) = std::os::unix::net::UnixStream::connect(site.socket()) {
            drop(stream);
            break Client::new(&site.socket()).job_ids();
        }
        std::thread::yield_now();
    };
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(answer, ids);
}
