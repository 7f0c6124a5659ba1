//! The client against a server that misbehaves in each way a restarting controller can.

use super::*;
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

static NEXT: AtomicU32 = AtomicU32::new(0);

fn socket_path() -> PathBuf {
    let at = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("gwire-client-{}-{at}.sock", std::process::id()))
}

/// Answers each connection with the next list of raw answers, one for each request; then hangs up.
fn serve(socket: &Path, connections: Vec<Vec<&'static str>>) -> JoinHandle<Vec<String>> {
    let listener = UnixListener::bind(socket).unwrap();
    let socket = socket.to_owned();
    std::thread::spawn(move || {
        let mut requests = Vec::new();
        for answers in connections {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in answers {
                requests.push(read_request(&mut stream));
                stream.write_all(answer.as_bytes()).unwrap();
            }
        }
        std::fs::remove_file(socket).unwrap();
        requests
    })
}

fn read_request(stream: &mut UnixStream) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    let head = String::from_utf8(text).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "))
        .map_or(0, |digits| digits.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    format!(
        "{} {}",
        head.lines().next().unwrap(),
        String::from_utf8(body).unwrap()
    )
}

fn client(socket: &Path) -> Client {
    Client::new(socket).wait_for(Duration::from_secs(5))
}

#[test]
fn one_connection_serves_several_requests_in_every_framing() {
    let socket = socket_path();
    let server = serve(
        &socket,
        vec![vec![
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\n4;x=y\r\n\":2}\r\n0\r\nT: x\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 51\r\n\r\n{\"schema\":1,\"code\":\"not_found\",\"error\":\"no job 17\"}",
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"a\":4}",
        ]],
    );
    let mut client = client(&socket);
    let a = |value: serde_json::Value| value["a"].as_i64().unwrap();
    assert_eq!(a(client.get("/1").unwrap()), 1);
    assert_eq!(a(client.post("/2", &"x").unwrap()), 2);
    let refused = client.get::<serde_json::Value>("/3").unwrap_err();
    assert_eq!(
        (refused.code(), refused.to_string().as_str()),
        ("not_found", "no job 17")
    );
    assert!(!refused.is_unreachable());
    assert_eq!(a(client.get("/4").unwrap()), 4);
    assert_eq!(
        server.join().unwrap(),
        [
            "GET /1 HTTP/1.1 ",
            "POST /2 HTTP/1.1 \"x\"",
            "GET /3 HTTP/1.1 ",
            "GET /4 HTTP/1.1 "
        ]
    );
}

#[test]
fn a_lost_answer_is_asked_for_again_only_where_that_is_safe() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    let socket = socket_path();
    let server = serve(&socket, vec![vec![""], vec![answer]]);
    client(&socket)
        .post_repeatable::<_, serde_json::Value>("/jobs", &1)
        .unwrap();
    assert_eq!(server.join().unwrap().len(), 2);

    let socket = socket_path();
    let server = serve(&socket, vec![vec![""]]);
    let lost = client(&socket)
        .post::<_, serde_json::Value>("/requeue", &1)
        .unwrap_err();
    assert!(
        matches!(lost, ClientError::Lost { .. }) && lost.is_unreachable(),
        "{lost}"
    );
    assert_eq!(server.join().unwrap().len(), 1);
}

#[test]
fn a_controller_that_comes_back_is_waited_for() {
    let socket = socket_path();
    // The socket of a controller that was killed: no process listens.
    drop(UnixListener::bind(&socket).unwrap());
    let announced = std::rc::Rc::new(std::cell::Cell::new(0));
    let counter = announced.clone();
    let mut client = client(&socket).on_wait(move |_| counter.set(counter.get() + 1));
    let path = socket.clone();
    let server = std::thread::spawn(move || {
        std::thread::sleep(ANNOUNCE_AFTER + 4 * RETRY_PAUSE);
        std::fs::remove_file(&path).unwrap();
        serve(
            &path,
            vec![vec!["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"]],
        )
        .join()
        .unwrap()
    });
    client.get::<serde_json::Value>("/").unwrap();
    assert_eq!(announced.get(), 1, "said once");
    server.join().unwrap();
}

#[test]
fn a_forwarder_without_a_controller_is_asked_again() {
    let socket = socket_path();
    let server = serve(
        &socket,
        vec![vec![
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 51\r\n\r\n{\"schema\":1,\"code\":\"unreachable\",\"error\":\"no link\"}",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        ]],
    );
    client(&socket).get::<serde_json::Value>("/").unwrap();
    assert_eq!(server.join().unwrap().len(), 2);
}

#[test]
fn a_missing_controller_is_unreachable_and_a_foreign_server_unreadable() {
    let nowhere = Client::new("/nonexistent/gpuctld.sock")
        .get::<serde_json::Value>("/")
        .unwrap_err();
    assert!(nowhere.is_unreachable());
    assert!(
        nowhere
            .to_string()
            .starts_with("no controller answers at /nonexistent/gpuctld.sock: No such file"),
        "{nowhere}"
    );

    let socket = socket_path();
    let server = serve(&socket, vec![vec!["SSH-2.0-OpenSSH_9\r\n\r\n"]]);
    let stranger = client(&socket).get::<serde_json::Value>("/").unwrap_err();
    assert!(
        matches!(stranger, ClientError::Unreadable { .. }),
        "{stranger}"
    );
    server.join().unwrap();
}

#[test]
fn queries_are_escaped() {
    let filters = serde_json::json!({"job": "98_[1-3]", "expand": true, "name": "a b&c"});
    let path = path_with_query("/v1/jobs", &filters);
    assert!(
        path.contains("job=98_%5B1-3%5D")
            && path.contains("expand=true")
            && path.contains("name=a%20b%26c"),
        "{path}"
    );
}
