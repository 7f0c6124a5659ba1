//! Pages of a few rows, as text. `UPDATE_EXPECT=1` writes them anew.

use crate::{
    Frame, Group, JobPage, JobSection, JobsPage, Notice, Place, WaitExplanation, job_page,
    jobs_page, notice,
};
use expect_test::{Expect, expect};
use gmodel::{Instant, JobState, ReasonCode, Timestamp};
use gwire::api::{GpuUseRow, JobRow, RunRow};
use maud::Markup;
use std::collections::BTreeMap;

const NOW: Timestamp = Timestamp::from_secs(1_795_165_527);
const HOSTILE: &str = "<script>alert('x')</script>\u{202e}\" onload=\"y";

fn show_time(at: Timestamp) -> String {
    format!("t{}", at.since_secs(NOW))
}

/// An element a line, so that a difference is read.
fn check(markup: &Markup, want: &Expect) {
    let text = markup.0.replace('>', ">\n").replace('<', "\n<");
    let lines = text.lines().filter(|line| !line.is_empty());
    want.assert_eq(&(lines.collect::<Vec<_>>().join("\n") + "\n"));
    assert!(!markup.0.contains("<script>") && !markup.0.contains(" onload=\""));
}

fn job(id: u64, state: JobState) -> JobRow {
    JobRow {
        id,
        shown_id: id.to_string(),
        name: HOSTILE.into(),
        user: "ada".into(),
        partition: "main".into(),
        state,
        nodes: 1,
        gpus: "h100:4".into(),
        gpu_count: 4.0,
        submit_time: Some(Instant(NOW.plus_secs(-90))),
        ..JobRow::default()
    }
}

fn waiting() -> JobRow {
    JobRow {
        reason: ReasonCode::Resources,
        reason_text: "needs 4 GPUs; room is expected by 2026-11-20T09:15:27Z".into(),
        position: Some(1234),
        ..job(17, JobState::Pending)
    }
}

#[test]
fn a_list_shows_what_runs_and_why_the_others_wait() {
    let running = JobRow {
        elapsed_secs: 1800,
        time_limit_secs: Some(3600),
        nodelist: "n1".into(),
        ..job(16, JobState::Running)
    };
    let section = |group, jobs, total| JobSection {
        group,
        jobs,
        total,
        offset: 0,
        limit: 25,
    };
    let page = JobsPage {
        user: "ada",
        me: "ada",
        partition: "",
        node: "",
        account: "",
        only: None,
        sections: vec![
            section(Group::Running, vec![running], 1),
            section(Group::Waiting, vec![waiting()], 50_000),
            section(Group::Ended, Vec::new(), 0),
        ],
        starts: BTreeMap::new(),
        now: NOW,
        show_time: &show_time,
    };
    check(
        &jobs_page(&page),
        &expect![[r#"
        <h1>
        Your jobs
        </h1>
        <p class="lead">
        <span class="cmd">
        <code>
        gq --me
        </code>
        </span>
        </p>
        <form class="filter" action="/jobs" role="search" aria-label="Narrow the list">
        <div>
        <label for="user">
        User (none: all)
        </label>
        <input id="user" name="user" value="ada" size="12" maxlength="64" autocomplete="off">
        </div>
        <div>
        <label for="show">
        State
        </label>
        <select id="show" name="show">
        <option value="" selected>
        all
        </option>
        <option value="running">
        running
        </option>
        <option value="waiting">
        waiting
        </option>
        <option value="ended">
        over
        </option>
        </select>
        </div>
        <div>
        <label for="partition">
        Partition
        </label>
        <input id="partition" name="partition" value="" size="12" maxlength="64" autocomplete="off">
        </div>
        <div>
        <label for="node">
        Node
        </label>
        <input id="node" name="node" value="" size="12" maxlength="200" autocomplete="off">
        </div>
        <button>
        Show
        </button>
        </form>
        <section aria-labelledby="title-running">
        <div class="title">
        <h2 id="title-running">
        Running 
        <span class="count">
        1
        </span>
        </h2>
        <span class="cmd">
        <code>
        gq --me -t R,S,CG
        </code>
        </span>
        </div>
        <div class="card wide">
        <table class="cards">
        <thead>
        <tr>
        <th scope="col">
        Job
        </th>
        <th scope="col">
        Name
        </th>
        <th scope="col">
        Partition
        </th>
        <th scope="col">
        GPUs
        </th>
        <th scope="col">
        Time
        </th>
        <th scope="col">
        Nodes
        </th>
        </tr>
        </thead>
        <tbody>
        <tr>
        <th scope="row" data-label="Job">
        <a href="/job/16">
        16
        </a>
        </th>
        <td class="name" data-label="Name">
        &lt;script&gt;alert('x')&lt;/script&gt;⟨U+202E⟩&quot; onload=&quot;y
        </td>
        <td data-label="Partition">
        main
        </td>
        <td class="nowrap" data-label="GPUs">
        h100:4
        </td>
        <td class="nowrap" data-label="Time">
        30 min
        <span class="small">
         of 1 h
        </span>
        <progress max="3600" value="1800">
        30 min
        </progress>
        </td>
        <td class="name" data-label="Nodes">
        n1
        </td>
        </tr>
        </tbody>
        </table>
        </div>
        </section>
        <section aria-labelledby="title-waiting">
        <div class="title">
        <h2 id="title-waiting">
        Waiting 
        <span class="count">
        50,000
        </span>
        </h2>
        <span class="cmd">
        <code>
        gq --me -t PD
        </code>
        </span>
        </div>
        <div class="card wide">
        <table class="cards">
        <thead>
        <tr>
        <th scope="col">
        Job
        </th>
        <th scope="col">
        Name
        </th>
        <th scope="col">
        Partition
        </th>
        <th scope="col">
        GPUs
        </th>
        <th scope="col">
        Waits
        </th>
        <th scope="col">
        Why
        </th>
        <th scope="col">
        Start
        </th>
        </tr>
        </thead>
        <tbody>
        <tr>
        <th scope="row" data-label="Job">
        <a href="/job/17">
        17
        </a>
        </th>
        <td class="name" data-label="Name">
        &lt;script&gt;alert('x')&lt;/script&gt;⟨U+202E⟩&quot; onload=&quot;y
        </td>
        <td data-label="Partition">
        main
        </td>
        <td class="nowrap" data-label="GPUs">
        h100:4
        </td>
        <td class="nowrap" data-label="Waits">
        1 min 30 s
        </td>
        <td class="why" data-label="Why">
        needs 4 GPUs; room is expected by t600 
        <a class="small" href="/job/17">
        (Resources)
        </a>
        </td>
        <td class="nowrap" data-label="Start">
        <span class="small block">
        place 1,234
        </span>
        </td>
        </tr>
        </tbody>
        </table>
        </div>
        <nav class="pages" aria-label="Waiting, other parts">
        <a href="/jobs?user=ada&amp;show=waiting">
        All 50,000 jobs →
        </a>
        </nav>
        </section>
        <section aria-labelledby="title-ended">
        <div class="title">
        <h2 id="title-ended">
        Over 
        <span class="count">
        0
        </span>
        </h2>
        <span class="cmd">
        <code>
        gq --me -t all
        </code>
        </span>
        </div>
        <p class="none">
        Nothing that is over is in memory any more; gacct lists what was.
        </p>
        </section>
    "#]],
    );
}

#[test]
fn a_job_that_waits_has_its_reasons_and_its_buttons() {
    let told = "job 17: PENDING (Resources)\n  Resources: <b>needs</b> 4 GPUs\n  1 job of partition main is ahead\n";
    let job = waiting();
    let page = JobPage {
        job: &job,
        why: Some(WaitExplanation::Text(told)),
        runs: &[],
        may_change: true,
        form_word: "w0rd",
        show_time: &show_time,
    };
    check(
        &job_page(&page),
        &expect![[r#"
        <h1>
        Job 17 
        <span class="state wait">
        pending
        </span>
        </h1>
        <p class="lead">
        &lt;script&gt;alert('x')&lt;/script&gt;⟨U+202E⟩&quot; onload=&quot;y · 
        <a href="/jobs?user=ada">
        ada
        </a>
         · partition main 
        <span class="cmd">
        <code>
        gq 17
        </code>
        </span>
        </p>
        <section aria-label="What you can do">
        <div class="acts">
        <form method="post" action="/job/17/hold">
        <input type="hidden" name="word" value="w0rd">
        <button title="gadm job hold 17">
        Hold
        </button>
        </form>
        <details>
        <summary>
        Cancel…
        </summary>
        <form method="post" action="/job/17/cancel">
        <input type="hidden" name="word" value="w0rd">
        <button class="danger">
        Cancel job 17
        </button>
        </form>
        </details>
        </div>
        </section>
        <section aria-labelledby="why">
        <div class="title">
        <h2 id="why">
        Why it waits
        </h2>
        <span class="cmd">
        <code>
        gq --why 17
        </code>
        </span>
        </div>
        <div class="card pad">
        <p>
        The nodes that fit this job are busy, and it is the next of its partition to get them.
        </p>
        <ul class="why-lines">
        <li>
        Resources: &lt;b&gt;needs&lt;/b&gt; 4 GPUs
        </li>
        <li>
        1 job of partition main is ahead
        </li>
        </ul>
        <p class="small">
        Wait; 
        <code>
        gq --start
        </code>
         gives an expected start. 
        <code>
        gq --why
        </code>
         lists the runs that hold what it needs and smaller requests that would start sooner.
        </p>
        </div>
        </section>
        <section aria-labelledby="facts">
        <div class="title">
        <h2 id="facts">
        What it asked for
        </h2>
        </div>
        <div class="card pad">
        <dl class="facts">
        <div>
        <dt>
        GPUs
        </dt>
        <dd>
        h100:4
        </dd>
        </div>
        <div>
        <dt>
        Nodes
        </dt>
        <dd>
        1
        </dd>
        </div>
        <div>
        <dt>
        CPUs
        </dt>
        <dd>
        0
        </dd>
        </div>
        <div>
        <dt>
        Memory in all
        </dt>
        <dd>
        0
        </dd>
        </div>
        <div>
        <dt>
        Time limit
        </dt>
        <dd>
        none
        </dd>
        </div>
        <div>
        <dt>
        Submitted
        </dt>
        <dd>
        <time datetime="2026-11-20T09:03:57Z">
        t0
        </time>
        </dd>
        </div>
        </dl>
        </div>
        </section>
    "#]],
    );
    let of_others = JobPage {
        may_change: false,
        ..page
    };
    assert!(!job_page(&of_others).0.contains("<form"));
}

#[test]
fn a_job_that_is_over_has_its_runs_and_no_buttons() {
    let job = JobRow {
        end_text: HOSTILE.into(),
        elapsed_secs: 61,
        end_time: Some(Instant(NOW)),
        ..job(17, JobState::Failed)
    };
    let run = RunRow {
        attempt: 1,
        state: JobState::Failed,
        start_time: Some(Instant(NOW.plus_secs(-61))),
        elapsed_secs: 61,
        nodelist: HOSTILE.into(),
        cpu_percent: Some(12.4),
        gpu_use: Some(GpuUseRow {
            busy_percent: Some(91.2),
            idle_secs: 5,
            memory_peak_bytes: 3 << 30,
            temperature_peak_c: 64,
            ..GpuUseRow::default()
        }),
        ..RunRow::default()
    };
    let page = JobPage {
        job: &job,
        why: None,
        runs: &[run],
        may_change: true,
        form_word: "w0rd",
        show_time: &show_time,
    };
    check(
        &job_page(&page),
        &expect![[r#"
        <h1>
        Job 17 
        <span class="state bad">
        failed
        </span>
        </h1>
        <p class="lead">
        &lt;script&gt;alert('x')&lt;/script&gt;⟨U+202E⟩&quot; onload=&quot;y · 
        <a href="/jobs?user=ada">
        ada
        </a>
         · partition main 
        <span class="cmd">
        <code>
        gq 17
        </code>
        </span>
        </p>
        <section aria-label="How it stands">
        <div class="card pad">
        <p>
        Ended 
        <time datetime="2026-11-20T09:05:27Z">
        t0
        </time>
         with exit code 0:0 after 1 min 1 s.
        </p>
        <p>
        &lt;script&gt;alert('x')&lt;/script&gt;⟨U+202E⟩&quot; onload=&quot;y
        </p>
        </div>
        </section>
        <section aria-labelledby="facts">
        <div class="title">
        <h2 id="facts">
        What it asked for
        </h2>
        </div>
        <div class="card pad">
        <dl class="facts">
        <div>
        <dt>
        GPUs
        </dt>
        <dd>
        h100:4
        </dd>
        </div>
        <div>
        <dt>
        Nodes
        </dt>
        <dd>
        1
        </dd>
        </div>
        <div>
        <dt>
        CPUs
        </dt>
        <dd>
        0
        </dd>
        </div>
        <div>
        <dt>
        Memory in all
        </dt>
        <dd>
        0
        </dd>
        </div>
        <div>
        <dt>
        Time limit
        </dt>
        <dd>
        none
        </dd>
        </div>
        <div>
        <dt>
        Submitted
        </dt>
        <dd>
        <time datetime="2026-11-20T09:03:57Z">
        t0
        </time>
        </dd>
        </div>
        </dl>
        </div>
        </section>
        <section aria-labelledby="runs">
        <div class="title">
        <h2 id="runs">
        Its runs
        </h2>
        <span class="cmd">
        <code>
        gacct -j 17 --duplicates
        </code>
        </span>
        </div>
        <div class="card wide">
        <table class="cards">
        <thead>
        <tr>
        <th scope="col">
        Run
        </th>
        <th scope="col">
        State
        </th>
        <th scope="col">
        Started
        </th>
        <th scope="col">
        Took
        </th>
        <th scope="col">
        Nodes
        </th>
        <th scope="col">
        CPU used
        </th>
        <th scope="col">
        Memory used
        </th>
        <th scope="col">
        GPU use
        </th>
        </tr>
        </thead>
        <tbody>
        <tr>
        <th scope="row" data-label="Run">
        1
        </th>
        <td data-label="State">
        <span class="state bad">
        failed
        </span>
        </td>
        <td class="nowrap" data-label="Started">
        <time datetime="2026-11-20T09:04:26Z">
        t0
        </time>
        </td>
        <td class="nowrap" data-label="Took">
        1 min 1 s
        </td>
        <td class="name" data-label="Nodes">
        &lt;script&gt;alert('x')&lt;/script&gt;⟨U+202E⟩&quot; onload=&quot;y
        </td>
        <td data-label="CPU used">
        12 %
        </td>
        <td data-label="Memory used">
        </td>
        <td data-label="GPU use">
        91 % busy
        <span class="small block">
        idle 5 s · at most 3G · 64 °C
        </span>
        </td>
        </tr>
        </tbody>
        </table>
        </div>
        </section>
    "#]],
    );
}

#[test]
fn a_frame_and_a_page_alone_name_hostile_clusters_and_users() {
    let frame = Frame {
        cluster: HOSTILE,
        user: HOSTILE,
        operator: false,
        form_word: "w0rd",
        said: Some((false, HOSTILE)),
        now: "t0",
        version: "1",
    };
    let content = crate::refusal(HOSTILE);
    let page = frame.page(HOSTILE, Place::Jobs, &content).0;
    let alone = notice(HOSTILE, Notice::Text(HOSTILE)).0;
    for html in [page, alone] {
        assert_eq!(html.matches("<script").count(), 1, "{html}");
        assert!(!html.contains(" onload=\"") && !html.contains('\u{202e}'));
    }
    let logged_in = notice("c", Notice::LoggedIn).0;
    let head = logged_in.split("</head>").next().unwrap();
    assert!(head.contains("content=\"0;url=/\""), "{head}");
}
