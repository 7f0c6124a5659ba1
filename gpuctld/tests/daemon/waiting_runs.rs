//! What waits as accounting lists it: jobs and untouched tasks of arrays, beside what is over.

use crate::controller::{Site, job};
use serde_json::{Value, json};

#[test]
fn what_waits_is_in_accounting_with_what_it_asked_for() {
    let site = Site::new();
    let controller = site.start();
    let mut client = controller.client();
    let one = client.submit(&asking(
        json!({"hold": true, "request": {"cpus_per_task": 4}}),
    ));
    let array = client.submit(&asking(json!({"hold": true, "array": "1-5", "request": {"cpus_per_task": 2, "mem": {"per_node": 1u64 << 30}}})));
    let gone = client.submit(&job("gone"));
    client.post(
        "/v1/jobs/cancel",
        &json!({"jobs": [gone.to_string(), format!("{array}_[2-3]")]}),
    );
    let mut lines = |query: &str| -> Vec<String> {
        let answer = client.get(&format!("/v1/runs{query}"));
        let line = |run: &Value| {
            let text = |key: &str| run[key].to_string().replace('"', "");
            let by = run
                .get("cancelled_by")
                .map(|by| format!(" by {by}"))
                .unwrap_or_default();
            format!(
                "{} {}{by} {}",
                text("shown_id"),
                text("state"),
                text("cpus")
            )
        };
        answer["runs"]
            .as_array()
            .unwrap()
            .iter()
            .map(line)
            .collect()
    };
    let waiting = [
        format!("{one} PENDING 4"),
        format!("{array}_[1,4-5] PENDING 2"),
    ];
    assert_eq!(lines("?state=PENDING"), waiting);
    assert_eq!(
        lines(&format!("?job={array}_5,{one}")),
        [waiting[0].clone(), format!("{array}_5 PENDING 2")]
    );
    assert_eq!(
        lines(&format!("?job={one}&attempts=true")),
        waiting[..1],
        "once among attempts too"
    );
    assert_eq!(lines("?state=RUNNING"), [""; 0]);
    assert_eq!(
        lines("?limit=1"),
        [format!("{gone} CANCELLED by \"root\" 0")]
    );
    assert_eq!(
        lines("").len(),
        4,
        "two that wait, cancelled tasks, a cancelled job"
    );
    assert_eq!(lines("?to=2020-01-01T00:00:00Z"), [""; 0]);
    assert_eq!(
        lines("?nodelist=node1"),
        [""; 0],
        "what waits is on no node"
    );

    let runs = client.get("/v1/runs?detail=true");
    for run in runs["runs"].as_array().unwrap() {
        let detail = &run["detail"];
        assert_eq!(
            (&detail["cluster"], &detail["uid"]),
            (&json!("test"), &json!(0)),
            "{run}"
        );
        assert!(detail["req_cpus"].as_u64() > Some(0), "{run}");
        assert_eq!(
            detail["eligible_time"].is_string(),
            run["name"] == "gone",
            "who is held never came to be eligible: {run}"
        );
    }
}

fn asking(spec: Value) -> Value {
    let mut body = job("x");
    body["spec"]
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    body
}
