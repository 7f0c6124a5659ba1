//! Pages as a browser asks for them: who is let in, what is shown of whose jobs, what forms do.

use super::pool::{Pool, local, via};
use crate::http::{Peer, WebDoor};
use axum::http::StatusCode;
use axum::response::Response;
use gmodel::node::Role;
use http_body_util::BodyExt;
use serde_json::{Value, json};

const WEB: &str = "[web]\nlisten = \"127.0.0.1:7118\"\n";
const HOST: (&str, &str) = ("host", "127.0.0.1:7118");
const ORIGIN: (&str, &str) = ("origin", "http://127.0.0.1:7118");

fn door(tls: bool) -> WebDoor {
    WebDoor {
        tls,
        from: [127, 0, 0, 1].into(),
        port: 7118,
    }
}

/// Users that each Linux knows: a session is compared with them.
fn daemon() -> Peer {
    local(1, "daemon")
}
fn bin() -> Peer {
    local(2, "bin")
}

/// One browser.
struct Browser<'p> {
    pool: &'p Pool,
    cookie: String,
}

impl<'p> Browser<'p> {
    async fn of(pool: &'p Pool, peer: &Peer) -> Self {
        let link = link(pool, peer).await;
        let (status, cookie, _) = take(pool, &link).await;
        assert_eq!(status, 200);
        Self {
            pool,
            cookie: cookie.unwrap(),
        }
    }

    async fn ask(
        &self,
        headers: &[(&str, &str)],
        method: &str,
        path: &str,
        form: &str,
    ) -> Response {
        let mut all = vec![HOST, ("cookie", self.cookie.as_str())];
        all.extend(headers);
        let door = door(false);
        self.pool.browse(door, &all, method, path, form).await
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        read(self.ask(&[], "GET", path, "").await).await
    }

    /// The word that this session's forms have.
    async fn word(&self) -> String {
        let (_, page) = self.get("/").await;
        let after = page.split("name=\"word\" value=\"").nth(1).unwrap();
        after.split('"').next().unwrap().to_owned()
    }

    /// Sends a form, and follows to the page that says what became of it.
    async fn send(&self, path: &str) -> String {
        let form = format!("word={}", self.word().await);
        let answer = self.ask(&[ORIGIN], "POST", path, &form).await;
        assert_eq!(answer.status(), 303);
        let to = answer.headers()["location"].to_str().unwrap().to_owned();
        self.get(&to).await.1
    }
}

async fn link(pool: &Pool, peer: &Peer) -> String {
    let made = pool.post(peer, "/v1/web-links", json!({})).await;
    let link = made["link"].as_str().unwrap();
    let path = link.strip_prefix("http://127.0.0.1:7118").unwrap();
    assert!(path.starts_with("/login/") && path.len() == "/login/".len() + 64);
    path.to_owned()
}

/// Status, cookie and page of a login.
async fn take(pool: &Pool, path: &str) -> (StatusCode, Option<String>, String) {
    let answer = pool.browse(door(false), &[HOST], "GET", path, "").await;
    let cookie = answer.headers().get("set-cookie").map(|text| {
        let text = text.to_str().unwrap();
        assert!(text.contains("; HttpOnly; SameSite=Strict"), "{text}");
        text.split(';').next().unwrap().to_owned()
    });
    let (status, page) = read(answer).await;
    (status, cookie, page)
}

async fn read(answer: Response) -> (StatusCode, String) {
    let status = answer.status();
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(text.to_vec()).unwrap())
}

#[tokio::test]
async fn a_link_logs_one_browser_in_and_without_one_there_is_nothing() {
    let pool = Pool::new(WEB);
    let path = link(&pool, &daemon()).await;
    // What only looks takes no link.
    for (method, header) in [("HEAD", HOST), ("GET", ("sec-purpose", "prefetch"))] {
        let headers = [HOST, header];
        let answer = pool.browse(door(false), &headers, method, &path, "").await;
        assert_eq!(answer.status(), 405, "{method}");
    }
    let (status, cookie, page) = take(&pool, &path).await;
    assert_eq!(status, 200, "{page}");
    assert!(page.contains("http-equiv=\"refresh\""), "{page}");
    let (status, again, page) = take(&pool, &path).await;
    assert_eq!((status.as_u16(), again), (403, None));
    assert!(page.contains("good once") && page.contains("gq web"));
    let browser = Browser {
        pool: &pool,
        cookie: cookie.unwrap(),
    };
    let (status, page) = browser.get("/").await;
    assert!(status == 200 && page.contains("Your jobs") && page.contains("daemon"));
    for cookie in ["", "gpupool-7118=", "gpupool-7118=00", "other=1"] {
        let guest = Browser {
            pool: &pool,
            cookie: cookie.to_owned(),
        };
        for path in ["/", "/jobs", "/job/1", "/search?q=1", "/nothing"] {
            let (status, page) = guest.get(path).await;
            assert!([401, 404].contains(&status.as_u16()), "{path}");
            assert!(
                page.contains("gq web") && !page.contains("daemon"),
                "{page}"
            );
        }
    }
    // The API takes no cookie, whichever way.
    let headers = [HOST, ("cookie", browser.cookie.as_str())];
    let (status, _) = pool
        .ask_over_network("127.0.0.1", &headers, "GET", "/v1/jobs", Value::Null)
        .await;
    assert_eq!(status, 403);
    assert_eq!(browser.get("/v1/jobs").await.0, 404);
}

#[tokio::test]
async fn a_session_ends_by_its_button_and_by_its_user() {
    let pool = Pool::new(WEB);
    let browser = Browser::of(&pool, &daemon()).await;
    let form = format!("word={}", browser.word().await);
    let answer = browser.ask(&[ORIGIN], "POST", "/logout", &form).await;
    let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.starts_with("gpupool-7118=; ") && cookie.contains("Max-Age=0"));
    assert_eq!(browser.get("/").await.0, 401);
    let (one, other) = (
        Browser::of(&pool, &daemon()).await,
        Browser::of(&pool, &bin()).await,
    );
    let ended = pool
        .post(&daemon(), "/v1/web-sessions/end", json!({}))
        .await;
    assert_eq!(ended["ended"], 1);
    assert_eq!(one.get("/").await.0, 401);
    assert_eq!(other.get("/").await.0, 200);
}

#[tokio::test]
async fn a_session_is_its_user_and_sees_and_does_no_more() {
    let pool = Pool::new(&format!("privacy = \"own\"\n{WEB}"));
    let own = pool.submit(&daemon(), json!({"name": "mine"})).await;
    let other = pool.submit(&bin(), json!({"name": "others"})).await;
    let browser = Browser::of(&pool, &daemon()).await;
    let (_, page) = browser.get("/jobs?user=").await;
    assert!(page.contains("mine") && !page.contains("others"), "{page}");
    let (status, page) = browser.get(&format!("/job/{other}")).await;
    assert!(status == 404 && !page.contains("others"), "{page}");
    let said = browser.send(&format!("/job/{other}/cancel")).await;
    assert!(said.contains("said not"), "{said}");
    let state = pool.get(&bin(), &format!("/v1/jobs/{other}")).await;
    assert_eq!(state["jobs"][0]["state"], "PENDING");
    let said = browser.send(&format!("/job/{own}/hold")).await;
    assert!(said.contains(&format!("Job {own} is held")), "{said}");
    assert!(said.contains("held by user:daemon"), "{said}");
    let said = browser.send(&format!("/job/{own}/release")).await;
    assert!(said.contains("is released"), "{said}");
    let said = browser.send(&format!("/job/{own}/cancel")).await;
    assert!(said.contains("is cancelled"), "{said}");
    // Said once.
    assert!(!browser.get("/").await.1.contains("is cancelled"));
    let state = pool.get(&daemon(), &format!("/v1/jobs/{own}")).await;
    assert_eq!(state["jobs"][0]["state"], "CANCELLED");
}

#[tokio::test]
async fn forms_of_other_sites_and_other_names_of_this_machine_are_refused() {
    let pool = Pool::new(WEB);
    let job = pool.submit(&daemon(), json!({})).await;
    let browser = Browser::of(&pool, &daemon()).await;
    let other = Browser::of(&pool, &daemon()).await;
    let (word, others) = (browser.word().await, other.word().await);
    let path = format!("/job/{job}/cancel");
    let good = format!("word={word}");
    let evil = ("origin", "http://evil.example");
    for (headers, form) in [
        (&[][..], good.as_str()),
        (&[evil][..], good.as_str()),
        (&[("origin", "null")][..], good.as_str()),
        (&[("origin", "https://127.0.0.1:7118")][..], good.as_str()),
        (&[ORIGIN][..], "word="),
        (&[ORIGIN][..], "word=00"),
        (&[ORIGIN][..], ""),
        (&[ORIGIN][..], &format!("word={others}")),
    ] {
        let answer = browser.ask(headers, "POST", &path, form).await;
        let status = answer.status().as_u16();
        assert!([403, 422].contains(&status), "{headers:?} {form}: {status}");
    }
    let answer = browser.ask(&[], "GET", &path, "").await;
    assert_eq!(answer.status(), 405, "a link changes nothing");
    let state = pool.get(&daemon(), &format!("/v1/jobs/{job}")).await;
    assert_eq!(state["jobs"][0]["state"], "PENDING");
    // A name of another site that points to this machine.
    let cookie = ("cookie", browser.cookie.as_str());
    for host in ["evil.example:7118", "127.0.0.1.evil.example", ""] {
        let headers = [("host", host), cookie];
        let answer = pool.browse(door(false), &headers, "GET", "/", "").await;
        assert_eq!(answer.status(), 403, "{host}");
    }
    for host in ["localhost:9000", "[::1]:7118"] {
        let headers = [("host", host), cookie];
        let answer = pool.browse(door(false), &headers, "GET", "/", "").await;
        assert_eq!(answer.status(), 200, "{host}");
    }
    // Too much of a form.
    let large = format!("{good}&x={}", "y".repeat(64 << 10));
    let answer = browser.ask(&[ORIGIN], "POST", &path, &large).await;
    assert_eq!(answer.status(), 413);
}

#[tokio::test]
async fn every_answer_keeps_other_sites_out_and_hostile_names_are_text() {
    let pool = Pool::new(WEB);
    let name = "<script>alert(1)</script>\u{202e}\"'";
    let spec = json!({"name": name, "comment": "<img src=x onerror=alert(1)>"});
    let job = pool.submit(&daemon(), spec).await;
    let browser = Browser::of(&pool, &daemon()).await;
    let narrowed = "/jobs?user=%22%3E%3Cscript%3E&partition=%3Cb%3E&from=-1&show=x";
    for path in [
        "/",
        &format!("/job/{job}"),
        narrowed,
        "/job/%3Cscript%3E",
        "/nothing",
        "/login/%3Cscript%3E",
        "/web/page.css",
    ] {
        let answer = browser.ask(&[], "GET", path, "").await;
        let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; "), "{path}");
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"));
        let cache = header("cache-control");
        assert_eq!(cache == "no-store", !path.ends_with("css"), "{cache}");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("x-frame-options"), "DENY");
        let (_, page) = read(answer).await;
        let scripts = page.matches("<script").count();
        let own = page.matches("<script src=\"/web/page.js\" defer>").count();
        assert_eq!(scripts, own, "{path}: {page}");
        for bad in ["<img", "\u{202e}", "<b>", "style=\""] {
            assert!(!page.contains(bad), "{path} has {bad}: {page}");
        }
    }
    let (_, page) = browser.get("/").await;
    let shown = "&lt;script&gt;alert(1)&lt;/script&gt;⟨U+202E⟩&quot;";
    assert!(page.contains(shown), "{page}");
}

#[tokio::test]
async fn only_a_user_asks_for_a_link_and_where_there_is_a_page() {
    let pool = Pool::new("");
    let refused = pool
        .refused(&daemon(), "POST", "/v1/web-links", json!({}))
        .await;
    assert!(refused.contains("[web] in gpuctld.toml"), "{refused}");
    let pool = Pool::new(&format!("{WEB}[partition.main]\nsubmit_from_jobs = true\n"));
    let node = pool.node("n1", Role::Compute, 1).await;
    let job = pool.submit(&daemon(), json!({})).await;
    pool.pass().await;
    pool.running(node, job).await;
    let from_job = via(node, Role::Compute, 1, "daemon");
    let refused = pool
        .refused(&from_job, "POST", "/v1/web-links", json!({}))
        .await;
    assert!(refused.contains("a job makes no link"), "{refused}");
    // Through a login node the browser is elsewhere.
    let login = pool.node("login1", Role::Login, 0).await;
    let from_login = via(login, Role::Login, 1, "daemon");
    let made = pool.post(&from_login, "/v1/web-links", json!({})).await;
    let link = made["link"].as_str().unwrap();
    assert!(link.starts_with("https://127.0.0.1:7000/login/"), "{link}");
    let path = link.strip_prefix("https://127.0.0.1:7000").unwrap();
    let host = ("host", "gpu.example.org");
    let answer = pool.browse(door(true), &[host], "GET", path, "").await;
    let cookie = answer.headers()["set-cookie"].to_str().unwrap();
    assert!(cookie.starts_with("__Host-gpupool=") && cookie.ends_with("; Secure"));
}

#[tokio::test]
async fn a_session_of_a_token_has_its_scopes_and_ends_with_it() {
    let pool = Pool::new(WEB);
    let ask = json!({"scopes": ["read"], "ttl_secs": 3600});
    let made = pool.post(&daemon(), "/v1/user-tokens", ask).await;
    let token = format!("Bearer {}", made["token"].as_str().unwrap());
    let headers = [("authorization", token.as_str())];
    let (status, made_link) = pool
        .ask_over_network("10.0.0.9", &headers, "POST", "/v1/web-links", json!({}))
        .await;
    assert_eq!(status, 200, "{made_link}");
    let link = made_link["link"].as_str().unwrap();
    let path = link.strip_prefix("https://127.0.0.1:7000").unwrap();
    let (_, cookie, _) = take(&pool, path).await;
    let browser = Browser {
        pool: &pool,
        cookie: cookie.unwrap(),
    };
    let job = pool.submit(&daemon(), json!({})).await;
    let (status, _) = browser.get(&format!("/job/{job}")).await;
    assert_eq!(status, 200);
    let said = browser.send(&format!("/job/{job}/cancel")).await;
    assert!(said.contains("has not the scope cancel"), "{said}");
    let revoke = format!("/v1/user-tokens/{}/revoke", made["id"].as_str().unwrap());
    pool.post(&daemon(), &revoke, json!({})).await;
    assert_eq!(browser.get("/").await.0, 401);
}

#[tokio::test]
async fn a_page_has_as_many_rows_of_a_long_queue_as_it_shows() {
    let pool = Pool::new(WEB);
    for at in 0..130 {
        pool.submit(
            &daemon(),
            json!({"name": format!("job-{at:03}"), "hold": true}),
        )
        .await;
    }
    let browser = Browser::of(&pool, &daemon()).await;
    let rows = |page: &str| page.matches("<th scope=\"row\"").count();
    let (_, page) = browser.get("/").await;
    assert_eq!(rows(&page), 25);
    assert!(page.contains("All 130 jobs"), "{page}");
    let (_, page) = browser.get("/jobs?user=daemon&show=waiting").await;
    assert_eq!(rows(&page), 100);
    let next = "/jobs?user=daemon&amp;show=waiting&amp;from=100";
    assert!(
        page.contains(next) && page.contains("1 to 100 of 130"),
        "{page}"
    );
    let (_, page) = browser.get(&next.replace("&amp;", "&")).await;
    assert_eq!(rows(&page), 30);
    assert!(page.contains("101 to 130 of 130"), "{page}");
    let (status, page) = browser.get("/jobs?show=waiting&from=99999").await;
    assert_eq!((status.as_u16(), rows(&page)), (200, 0));
}

#[tokio::test]
async fn the_pool_and_accounts_show_what_is_held_and_what_waits() {
    let pool = Pool::new(WEB);
    let node = pool.node("n1", Role::Compute, 4).await;
    pool.post(
        &local(0, "root"),
        "/v1/accounts/vision",
        json!({"create": true, "change": {"guaranteed": {"gpu": 4}, "description": "<b>"}}),
    )
    .await;
    let gpus = |count: u32| json!({"account": "vision", "request": {"gpus": count.to_string()}});
    let held = pool.submit(&daemon(), gpus(3)).await;
    pool.pass().await;
    pool.running(node, held).await;
    for _ in 0..2 {
        pool.submit(&daemon(), gpus(3)).await;
    }
    pool.pass().await;
    let demand = pool.get(&daemon(), "/v1/demand").await;
    let rows = demand["demand"].as_array().unwrap();
    let sum = |key: &str| {
        rows.iter()
            .map(|row| row[key].as_f64().unwrap())
            .sum::<f64>()
    };
    assert_eq!((sum("jobs"), sum("gpus")), (2.0, 6.0), "{demand}");
    let browser = Browser::of(&pool, &daemon()).await;
    let (status, page) = browser.get("/pool").await;
    assert_eq!(status, 200, "{page}");
    assert_eq!(page.matches("<li class=\"held\">").count(), 3, "{page}");
    assert_eq!(page.matches("<li class=\"free\">").count(), 1, "{page}");
    assert!(page.contains(&format!("/job/{held}")) && page.contains("Resources"));
    let (status, page) = browser.get("/accounts").await;
    assert!(status == 200 && page.contains("vision"), "{page}");
    assert!(
        page.contains("show=waiting&amp;account=vision\">2</a>"),
        "{page}"
    );
    let (_, page) = browser.get("/jobs?user=&show=waiting&account=vision").await;
    assert_eq!(page.matches("<th scope=\"row\"").count(), 2, "{page}");
    let (_, none) = browser.get("/jobs?user=&show=waiting&account=other").await;
    assert_eq!(none.matches("<th scope=\"row\"").count(), 0);
    // A job of others is held by a number alone, where it may not be seen.
    let pool = Pool::new(&format!("privacy = \"own\"\n{WEB}"));
    pool.submit(&bin(), json!({})).await;
    let demand = pool.get(&daemon(), "/v1/demand").await;
    assert_eq!(demand["demand"], json!([]));
}

#[tokio::test]
async fn a_search_finds_jobs_nodes_and_users() {
    let pool = Pool::new(WEB);
    pool.node("n1", Role::Compute, 1).await;
    let browser = Browser::of(&pool, &daemon()).await;
    for (text, to) in [
        ("17", "/job/17"),
        ("98_%5B1-3%5D", "/job/98_%5B1-3%5D"),
        ("n1", "/pool?node=n1"),
        ("anna", "/jobs?user=anna"),
        ("%20", "/"),
        ("%0D%0AX:1", "/jobs?user=X%3A1"),
    ] {
        let path = format!("/search?q={text}");
        let answer = browser.ask(&[], "GET", &path, "").await;
        assert_eq!(answer.headers()["location"], to, "{text}");
    }
}
