//! One job: why it waits or how it fares, what may be done to it, what it asked for, its runs and what they made of their GPUs.

use crate::frame::form_word;
use crate::jobs::{gpus, in_words, job_address, state, time, time_used, user_link};
use crate::text::{VisibleText, count, decimal, duration, with_commands};
use gmodel::size::exact_size;
use gmodel::{Instant, JobState, Timestamp};
use gwire::api::{GpuUseRow, JobRow, RunRow};
use maud::{Markup, html};

/// One job with what is known of it.
pub struct JobPage<'a> {
    pub job: &'a JobRow,
    pub why: Option<WaitExplanation<'a>>,
    /// Its runs, the newest first.
    pub runs: &'a [RunRow],
    /// Its owner, or an operator, looks.
    pub may_change: bool,
    pub form_word: &'a str,
    pub show_time: &'a dyn Fn(Timestamp) -> String,
}

/// Why it waits.
#[derive(Clone, Copy, Debug)]
pub enum WaitExplanation<'a> {
    /// As `gq --why` prints it.
    Text(&'a str),
    /// It could not be worked out.
    Refused(&'a str),
}

/// The page of one job.
pub fn job_page(page: &JobPage<'_>) -> Markup {
    let job = page.job;
    html! {
        h1 { "Job " (VisibleText(&job.shown_id)) " " (state(job.state)) }
        p.lead {
            (VisibleText(&job.name)) " · " (user_link(&job.user))
            @if !job.account.is_empty() { " · account " (VisibleText(&job.account)) }
            " · partition " (VisibleText(&job.partition)) " "
            span.cmd { code { "gq " (VisibleText(&job.shown_id)) } }
        }
        @if page.may_change && !job.state.is_final() { (acts(page)) }
        @match page.why {
            Some(why) => { (why_section(job, why)) }
            None => { (standing(page)) }
        }
        (facts(page))
        (runs(page))
    }
}

/// An array, or a job of unlike parts: a line for each of its rows.
pub fn tasks_page(id: &str, jobs: &[JobRow], shown: usize) -> Markup {
    let name = jobs.first().map_or("", |job| &job.name);
    html! {
        h1 { "Job " (VisibleText(id)) }
        p.lead { (VisibleText(name)) " " span.cmd { code { "gq " (VisibleText(id)) } } }
        @if jobs.len() > shown {
            p.small { "The first " (count(shown as u64)) " of " (count(jobs.len() as u64)) " rows." }
        }
        div.card.wide {
            table.cards {
                thead { tr { @for head in ["Job", "State", "GPUs", "Nodes", "Time"] { th scope="col" { (head) } } } }
                tbody {
                    @for job in jobs.iter().take(shown) {
                        tr {
                            th scope="row" data-label="Job" { a href=(row_address(job)) { (VisibleText(&job.shown_id)) } }
                            td data-label="State" { (state(job.state)) }
                            td.nowrap data-label="GPUs" { (gpus(job)) }
                            td.name data-label="Nodes" { (VisibleText(&job.nodelist)) }
                            td.nowrap data-label="Time" { (duration(job.elapsed_secs)) }
                        }
                    }
                }
            }
        }
    }
}

/// Waiting tasks of an array are named by their array's id.
fn row_address(job: &JobRow) -> String {
    job_address(&job.shown_id)
}

fn acts(page: &JobPage<'_>) -> Markup {
    let job = page.job;
    let is_pending = job.state == JobState::Pending;
    html! {
        section aria-label="What you can do" {
            div.acts {
                @if is_pending && job.holds.is_empty() { (act(page, "hold", "Hold", "gadm job hold")) }
                @if is_pending && !job.holds.is_empty() { (act(page, "release", "Release", "gadm job release")) }
                @if job.state == JobState::Running && job.requeue && !job.allocation {
                    (confirmed(page, "requeue", "Requeue…", "End this run and queue the job again"))
                }
                @if job.state != JobState::Completing {
                    (confirmed(page, "cancel", "Cancel…", &format!("Cancel job {}", job.shown_id)))
                }
            }
        }
    }
}

fn act(page: &JobPage<'_>, act: &str, words: &str, command: &str) -> Markup {
    html! {
        form method="post" action={ (job_address(&page.job.shown_id)) "/" (act) } {
            (form_word(page.form_word))
            button title={ (command) " " (VisibleText(&page.job.shown_id)) } { (words) }
        }
    }
}

/// Asked twice, without a script.
fn confirmed(page: &JobPage<'_>, act: &str, words: &str, sure: &str) -> Markup {
    html! {
        details {
            summary { (words) }
            form method="post" action={ (job_address(&page.job.shown_id)) "/" (act) } {
                (form_word(page.form_word))
                button.danger { (VisibleText(sure)) }
            }
        }
    }
}

fn why_section(job: &JobRow, why: WaitExplanation<'_>) -> Markup {
    html! {
        section aria-labelledby="why" {
            div.title {
                h2 #why { "Why it waits" }
                span.cmd { code { "gq --why " (VisibleText(&job.shown_id)) } }
            }
            div.card.pad {
                @match why {
                    WaitExplanation::Text(text) => {
                        p { (with_commands(job.reason.meaning())) }
                        // Its first line says the job and the reason.
                        ul.why-lines { @for line in text.lines().skip(1) { li { (VisibleText(line.trim())) } } }
                        p.small { (with_commands(job.reason.advice())) }
                    }
                    WaitExplanation::Refused(text) => { p { (VisibleText(text)) } }
                }
            }
        }
    }
}

/// How it runs, or how it ended.
fn standing(page: &JobPage<'_>) -> Markup {
    let job = page.job;
    html! {
        section aria-label="How it stands" {
            div.card.pad {
                @if job.state.is_final() {
                    p {
                        "Ended " @if let Some(at) = job.end_time { (page.time(Some(at))) " " }
                        "with exit code " (job.exit_code.to_string()) " after " (duration(job.elapsed_secs)) "."
                    }
                    @if !job.end_text.is_empty() { p { (VisibleText(&in_words(&job.end_text, page.show_time))) } }
                } @else {
                    div { (time_used(job)) }
                    p { "On " (VisibleText(&job.nodelist)) @if let Some(at) = job.start_time { " since " (page.time(Some(at))) } "." }
                    @if !job.pull.is_empty() { p { (VisibleText(&job.pull)) } }
                    @if let Some(idle) = &job.idle { p { (VisibleText(idle)) } }
                    @if let Some(other) = &job.preempted_for { p { "It gives way to job " (VisibleText(other)) "." } }
                }
                @if !job.stdout.is_empty() {
                    p.cmd { "Output: " code { "gq --follow " (VisibleText(&job.shown_id)) } }
                }
            }
        }
    }
}

impl JobPage<'_> {
    fn time(&self, at: Option<Instant>) -> Markup {
        html! { @if let Some(at) = at { (time(at.0, self.show_time)) } }
    }
}

fn facts(page: &JobPage<'_>) -> Markup {
    let job = page.job;
    let mut facts: Vec<(&str, Markup)> = vec![
        ("GPUs", gpus(job)),
        ("Nodes", html! { (count(job.nodes.into())) }),
        ("CPUs", html! { (count(job.cpus.into())) }),
        ("Memory in all", html! { (exact_size(job.mem_total_bytes)) }),
        (
            "Time limit",
            html! { (job.time_limit_secs.map_or("none".to_owned(), |secs| duration(secs.into()))) },
        ),
        ("Submitted", page.time(job.submit_time)),
    ];
    let more = [
        ("Held", job.gpus_held.join(", ")),
        ("QOS", job.qos.clone()),
        ("Stands on", job.class.clone().unwrap_or_default()),
        ("Depends on", job.dependency.clone()),
        ("Constraint", job.constraint.clone()),
        ("Licences", job.licences.clone()),
        ("Reservation", job.reservation.clone().unwrap_or_default()),
        ("Image", job.image.clone()),
        ("Directory", job.work_dir.clone()),
        ("Command", job.command.clone()),
        ("Output", job.stdout.clone()),
        ("Comment", job.comment.clone()),
        ("What befell its GPUs", job.gpu_events.join("; ")),
    ];
    let said = more.iter().filter(|(_, text)| !text.is_empty());
    facts.extend(said.map(|(name, text)| (*name, html! { (VisibleText(text)) })));
    html! {
        section aria-labelledby="facts" {
            div.title { h2 #facts { "What it asked for" } }
            div.card.pad {
                dl.facts { @for (name, value) in &facts { div { dt { (name) } dd { (value) } } } }
            }
        }
    }
}

fn runs(page: &JobPage<'_>) -> Markup {
    let with_use = page.runs.iter().any(|run| run.gpu_use.is_some());
    html! {
        @if !page.runs.is_empty() {
            section aria-labelledby="runs" {
                div.title {
                    h2 #runs { "Its runs" }
                    span.cmd { code { "gacct -j " (VisibleText(&page.job.shown_id)) " --duplicates" } }
                }
                div.card.wide {
                    table.cards {
                        thead {
                            tr {
                                @for head in ["Run", "State", "Started", "Took", "Nodes", "CPU used", "Memory used"] { th scope="col" { (head) } }
                                @if with_use { th scope="col" { "GPU use" } }
                            }
                        }
                        tbody { @for run in page.runs { (run_row(page, run, with_use)) } }
                    }
                }
            }
        }
    }
}

fn run_row(page: &JobPage<'_>, run: &RunRow, with_use: bool) -> Markup {
    let percent = |part: Option<f64>| part.map(|part| format!("{part:.0} %")).unwrap_or_default();
    html! {
        tr {
            th scope="row" data-label="Run" { (run.attempt) }
            td data-label="State" {
                (state(run.state))
                @if !run.end_text.is_empty() { span.small.block { (VisibleText(&in_words(&run.end_text, page.show_time))) } }
            }
            td.nowrap data-label="Started" { (page.time(run.start_time)) }
            td.nowrap data-label="Took" { (duration(run.elapsed_secs)) }
            td.name data-label="Nodes" { (VisibleText(&run.nodelist)) }
            td data-label="CPU used" { (percent(run.cpu_percent)) }
            td data-label="Memory used" { (percent(run.mem_percent)) }
            @if with_use { td data-label="GPU use" { @if let Some(used) = &run.gpu_use { (gpu_use(used)) } } }
        }
    }
}

fn gpu_use(used: &GpuUseRow) -> Markup {
    html! {
        @if let Some(busy) = used.busy_percent { (format!("{busy:.0} %")) " busy" }
        span.small.block {
            "idle " (duration(i64::try_from(used.idle_secs).unwrap_or(i64::MAX)))
            " · at most " (exact_size(used.memory_peak_bytes))
            @if used.temperature_peak_c > 0 { " · " (used.temperature_peak_c) " °C" }
            @if used.energy_joules > 0 { " · " (decimal(used.energy_joules as f64 / 3.6e6)) " kWh" }
        }
    }
}
