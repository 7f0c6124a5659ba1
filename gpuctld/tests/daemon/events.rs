//! Events as readers get them: through a controller that is killed, with a reader that reads nothing, and with questions that are none.

use crate::controller::{Controller, PATIENCE, Site, job, wait_until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// An open answer, as it comes.
pub struct Reader {
    stream: BufReader<UnixStream>,
    pub status: u16,
}

impl Reader {
    /// In the old form of HTTP: the answer ends with the connection.
    pub fn open(socket: &Path, query: &str, headers: &str) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET /v1/events{query} HTTP/1.0\r\n{headers}\r\n").unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).unwrap();
        }
        Self { stream, status }
    }

    /// The next line; None at the end.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.stream.read_line(&mut line).unwrap_or(0);
        (count > 0).then(|| line.trim_end().to_owned())
    }

    /// The next event of a followed answer, with its name in the stream.
    fn event(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        loop {
            let line = self.line()?;
            if let Some(kind) = line.strip_prefix("event: ") {
                kind.clone_into(&mut name);
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).unwrap()));
            }
        }
    }
}

/// An answer that is not followed: status, events and the cursor behind them.
fn page(controller: &Site, query: &str) -> (u16, Vec<Value>, Value) {
    let mut reader = Reader::open(&controller.socket(), query, "");
    let mut text = String::new();
    reader.stream.read_to_string(&mut text).unwrap();
    let mut rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let last = rows.pop().unwrap_or(Value::Null);
    (reader.status, rows, last)
}

fn texts(rows: &[Value], key: &str) -> Vec<String> {
    let texts = rows.iter().map(|row| row[key].as_str().unwrap_or_default());
    texts.map(str::to_owned).collect()
}

fn held(name: &str) -> Value {
    let mut job = job(name);
    job["spec"]["hold"] = json!(true);
    job
}

fn cancel(controller: &Controller, job: u64) {
    let jobs = json!({"jobs": [job.to_string()]});
    controller.client().post("/v1/jobs/cancel", &jobs);
}

#[test]
fn each_place_in_the_events_leads_to_exactly_what_follows() {
    let site = Site::new();
    let controller = site.start();
    let mut client = controller.client();
    let mut array = held("many");
    array["spec"]["array"] = json!("1-5");
    let array = client.submit(&array);
    let alone = client.submit(&held("alone"));
    client.post("/v1/jobs/release", &json!({"jobs": [alone.to_string()]}));
    cancel(&controller, alone);
    cancel(&controller, array);

    let (status, all, cursor) = page(&site, "?after=0");
    assert_eq!(status, 200);
    assert_eq!(cursor["kind"], "cursor");
    assert_eq!(cursor["more"], Value::Null, "{cursor}");
    let told = texts(&all, "kind").join(" ");
    assert!(
        told.ends_with(
            "job_submitted job_submitted job_released job_cancelled job_cancelled array_ended"
        ),
        "{told}"
    );
    let ended = all.last().unwrap();
    assert_eq!(ended["states"], json!({"CANCELLED": 5}));
    assert_eq!(ended["array_id"], array);
    let first = all.iter().find(|row| row["job_id"] == alone).unwrap();
    assert_eq!(
        (&first["name"], &first["user"], &first["shown_id"]),
        (&json!("alone"), &json!("root"), &json!(alone.to_string()))
    );
    assert_eq!(first["schema"], 1);

    let ids = texts(&all, "id");
    for (place, id) in ids.iter().enumerate() {
        let (_, rest, last) = page(&site, &format!("?after={id}"));
        assert_eq!(texts(&rest, "id"), ids[place + 1..], "after {id}");
        assert_eq!(last["id"], cursor["id"]);
    }
    // In pieces, by the place that each answer gives.
    let (mut after, mut pieces) = ("0".to_owned(), Vec::new());
    loop {
        let (_, some, last) = page(&site, &format!("?after={after}&limit=2&kinds=job,array"));
        assert!(some.len() <= 2);
        pieces.extend(texts(&some, "id"));
        last["id"].as_str().unwrap().clone_into(&mut after);
        if last["more"] != true {
            break;
        }
    }
    let of_jobs = all.iter().filter(|row| row["job_id"].is_u64());
    let of_jobs: Vec<Value> = of_jobs.cloned().collect();
    assert_eq!(pieces, texts(&of_jobs, "id"));

    let (_, of_one, _) = page(&site, &format!("?after=0&job={alone}"));
    assert_eq!(
        texts(&of_one, "kind"),
        ["job_submitted", "job_released", "job_cancelled"]
    );
    let (_, since, _) = page(&site, "?since=2020-01-01T00:00:00Z");
    assert_eq!(texts(&since, "id"), ids);
    let (_, none, _) = page(&site, "?since=2100-01-01T00:00:00Z");
    assert!(none.is_empty(), "{none:?}");
}

#[test]
fn a_follower_misses_nothing_through_a_controller_that_is_killed() {
    let site = Site::new();
    let controller = site.start();
    let sse = "Accept: text/event-stream\r\n";
    let mut reader = Reader::open(&site.socket(), "?kinds=job_submitted", sse);
    // It is there when it is given its place.
    assert_eq!(reader.line().as_deref(), Some(": nothing new"));
    let place = reader.line().unwrap();
    let mut last = place.strip_prefix("id: ").unwrap().to_owned();
    let mut heard = Vec::new();
    for name in ["a", "b"] {
        controller.client().submit(&held(name));
        let (kind, row) = reader.event().unwrap();
        assert_eq!(kind, "job_submitted");
        last = row["id"].as_str().unwrap().to_owned();
        heard.push(row["name"].as_str().unwrap().to_owned());
    }
    controller.client().submit(&held("c"));
    controller.kill();
    while let Some((_, row)) = reader.event() {
        last = row["id"].as_str().unwrap().to_owned();
        heard.push(row["name"].as_str().unwrap().to_owned());
    }
    let controller = site.start();
    controller.client().submit(&held("d"));
    let headers = format!("{sse}Last-Event-ID: {last}\r\n");
    // The query of the first time is repeated, and the header counts.
    let mut reader = Reader::open(&site.socket(), "?kinds=job_submitted&after=0", &headers);
    while heard.len() < 4 {
        let (_, row) = reader.event().unwrap();
        heard.push(row["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(heard, ["a", "b", "c", "d"]);
    // A controller that stops ends the answer; it does not wait for the reader.
    assert_eq!(controller.stop(), 0);
    assert!(reader.event().is_none());
}

#[test]
fn a_reader_that_reads_nothing_holds_up_neither_others_nor_the_queue() {
    let site = Site::new();
    let controller = site.start();
    let _silent = Reader::open(&site.socket(), "?after=0&follow=true", "");
    let mut other = Reader::open(&site.socket(), "?follow=true&kinds=job_submitted", "");
    let place = other.line().unwrap();
    assert!(place.contains("\"cursor\""), "{place}");
    // More than what the socket and the pieces under way take.
    let mut client = controller.client();
    let long = "x".repeat(200);
    for number in 0..4_000 {
        client.submit(&held(&format!("{number}{long}")));
    }
    for number in 0..4_000 {
        let row: Value = serde_json::from_str(&other.line().unwrap()).unwrap();
        let name = row["name"].as_str().unwrap();
        assert_eq!(name, format!("{number}{long}"));
    }
    let begun = std::time::Instant::now();
    client.submit(&held("after"));
    assert!(begun.elapsed().as_secs() < 5);
}

#[test]
fn a_question_that_is_none_and_a_place_that_is_not_there_are_told_so() {
    let site = Site::new();
    let controller = site.start();
    let ask = |query: &str| {
        let path = format!("/v1/events{query}");
        let (status, answer) = controller.client().ask("GET", &path, &Value::Null).unwrap();
        let said = answer["error"].as_str().unwrap_or_default().to_owned();
        (status, said, answer)
    };
    for (query, status, says) in [
        ("?after=99999", 410, "there is no event 99999 yet"),
        ("?after=9-1", 410, "before a backup was restored"),
        ("?after=-1", 400, "is no place in the events"),
        ("?after=1-2-3", 400, "is no place in the events"),
        ("?after=99999999999999999999999", 400, "is no place"),
        (
            "?after=1&since=2026-01-01T00:00:00Z",
            400,
            "both say where to begin",
        ),
        ("?kinds=job_endet", 400, "Did you mean \"job_ended\""),
        ("?limit=0", 400, "1 to 10000"),
        ("?limit=10001", 400, "1 to 10000"),
        ("?job=98_[1-3]", 400, "one job, one array or one task"),
        ("?job=';--", 400, "names no job"),
        ("?follow=perhaps", 400, "neither true nor false"),
        ("?folow=true", 400, "unknown key"),
        ("?after=1&after=2", 400, "twice"),
    ] {
        let (got, said, _) = ask(query);
        assert_eq!(got, status, "{query}: {said}");
        assert!(said.contains(says), "{query}: {said}");
    }
    for name in ["a", "b", "c"] {
        controller.client().submit(&held(name));
    }
    drop(controller);
    // As retention leaves it.
    let database = rusqlite::Connection::open(site.database()).unwrap();
    let newest: u64 = database
        .query_row("SELECT seq FROM meta", [], |row| row.get(0))
        .unwrap();
    let gone = newest - 2;
    database
        .execute("DELETE FROM events WHERE seq <= ?1", [gone])
        .unwrap();
    drop(database);
    let controller = site.start();
    let (_, kept, _) = page(&site, "?after=0&kinds=job");
    assert_eq!(texts(&kept, "name"), ["b", "c"]);
    let path = format!("/v1/events?after={}", gone - 1);
    let (status, answer) = controller.client().ask("GET", &path, &Value::Null).unwrap();
    assert_eq!((status, &answer["code"]), (410, &json!("gone")), "{answer}");
    assert_eq!(answer["subject"], format!("1-{gone}"));
    let (status, rest, _) = page(&site, &format!("?after=1-{gone}&kinds=job"));
    assert_eq!((status, texts(&rest, "name").len()), (200, 2));

    // A user has so many readers and no more, and those that are gone are free again.
    let open = || Reader::open(&site.socket(), "?follow=true", "");
    let readers: Vec<Reader> = (0..16).map(|_| open()).collect();
    assert!(readers.iter().all(|reader| reader.status == 200));
    drop(readers);
    wait_until(|| open().status == 200, || "a reader".to_owned());
}
