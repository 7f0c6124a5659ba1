//! Jobs in tables: what runs, what waits and why, what is over. A long list is shown in parts.

use crate::text::{VisibleText, count, counted, decimal, duration, percent_encoded};
use gmodel::{JobState, Timestamp};
use gwire::api::{JobRow, StartRow};
use maud::{Markup, html};
use std::collections::BTreeMap;

/// Jobs that are shown in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Running,
    Waiting,
    Ended,
}

impl Group {
    pub const ALL: [Self; 3] = [Self::Running, Self::Waiting, Self::Ended];

    /// As it stands in an address.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Ended => "ended",
        }
    }

    /// # Errors
    /// Nothing is called so.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.name() == text)
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Waiting => "Waiting",
            Self::Ended => "Over",
        }
    }

    /// States as `GET /v1/jobs` takes them.
    pub fn states(self) -> String {
        let all = JobState::ALL.into_iter();
        let names = all
            .filter(|state| Self::of(*state) == self)
            .map(JobState::long);
        names.collect::<Vec<_>>().join(",")
    }

    /// The group of a state.
    pub const fn of(state: JobState) -> Self {
        match state {
            JobState::Pending => Self::Waiting,
            JobState::Running | JobState::Suspended | JobState::Completing => Self::Running,
            _ => Self::Ended,
        }
    }
}

/// Jobs with what narrows them.
pub struct JobsPage<'a> {
    /// Empty: of all users that may be seen.
    pub user: &'a str,
    pub me: &'a str,
    pub partition: &'a str,
    pub node: &'a str,
    pub account: &'a str,
    /// The one group that is shown, in parts; none: the beginnings of all.
    pub only: Option<Group>,
    pub sections: Vec<JobSection>,
    /// When waiting jobs start as expected, by their shown id.
    pub starts: BTreeMap<String, StartRow>,
    pub now: Timestamp,
    pub show_time: &'a dyn Fn(Timestamp) -> String,
}

/// A part of one group.
pub struct JobSection {
    pub group: Group,
    pub jobs: Vec<JobRow>,
    /// All that there are.
    pub total: u64,
    /// So many are before the first that is shown.
    pub offset: u64,
    /// As many as a page shows.
    pub limit: u64,
}

/// The page.
pub fn jobs_page(page: &JobsPage<'_>) -> Markup {
    let title = match page.user {
        "" => "Jobs".to_owned(),
        user if user == page.me => "Your jobs".to_owned(),
        user => format!("Jobs of {user}"),
    };
    html! {
        h1 { (VisibleText(&title)) }
        p.lead {
            @if page.user.is_empty() { "Of all users whose jobs you may see. " }
            @if !page.partition.is_empty() { "In partition " (VisibleText(page.partition)) ". " }
            @if !page.account.is_empty() { "Of account " (VisibleText(page.account)) ". " }
            @if !page.node.is_empty() { "On node " (VisibleText(page.node)) ". " }
            span.cmd { code { (VisibleText(&command(page, ""))) } }
        }
        (filter(page))
        @for section in &page.sections { (section_of(page, section)) }
    }
}

/// The command that lists the same.
fn command(page: &JobsPage<'_>, more: &str) -> String {
    let mut text = match page.user {
        "" => "gq".to_owned(),
        user if user == page.me => "gq --me".to_owned(),
        user => format!("gq -u {user}"),
    };
    for (option, value) in [
        (" -p ", page.partition),
        (" -w ", page.node),
        (" -A ", page.account),
    ] {
        if !value.is_empty() {
            text = format!("{text}{option}{value}");
        }
    }
    text + more
}

fn filter(page: &JobsPage<'_>) -> Markup {
    let chosen = |group: Option<Group>| page.only == group;
    html! {
        form.filter action="/jobs" role="search" aria-label="Narrow the list" {
            div {
                label for="user" { "User (none: all)" }
                input #user name="user" value=(VisibleText(page.user)) size="12" maxlength="64" autocomplete="off";
            }
            div {
                label for="show" { "State" }
                select #show name="show" {
                    option value="" selected[chosen(None)] { "all" }
                    @for group in Group::ALL {
                        option value=(group.name()) selected[chosen(Some(group))] { (group.title().to_lowercase()) }
                    }
                }
            }
            div {
                label for="partition" { "Partition" }
                input #partition name="partition" value=(VisibleText(page.partition)) size="12" maxlength="64" autocomplete="off";
            }
            div {
                label for="node" { "Node" }
                input #node name="node" value=(VisibleText(page.node)) size="12" maxlength="200" autocomplete="off";
            }
            @if !page.account.is_empty() { input type="hidden" name="account" value=(VisibleText(page.account)); }
            button { "Show" }
        }
    }
}

/// The address of the same list, of one group from a row on.
fn address(page: &JobsPage<'_>, group: Group, offset: u64) -> String {
    let mut text = format!(
        "/jobs?user={}&show={}",
        percent_encoded(page.user),
        group.name()
    );
    for (key, value) in [
        ("partition", page.partition),
        ("node", page.node),
        ("account", page.account),
    ] {
        if !value.is_empty() {
            text = format!("{text}&{key}={}", percent_encoded(value));
        }
    }
    if offset > 0 {
        text = format!("{text}&from={offset}");
    }
    text
}

fn section_of(page: &JobsPage<'_>, section: &JobSection) -> Markup {
    let group = section.group;
    let id = format!("title-{}", group.name());
    let states = match group {
        Group::Running => " -t R,S,CG",
        Group::Waiting => " -t PD",
        Group::Ended => " -t all",
    };
    html! {
        section aria-labelledby=(id) {
            div.title {
                h2 id=(id) { (group.title()) " " span.count { (count(section.total)) } }
                span.cmd { code { (VisibleText(&command(page, states))) } }
            }
            @if section.jobs.is_empty() {
                p.none { (nothing(group)) }
            } @else {
                div.card.wide { (table(page, section)) }
                (parts(page, section))
            }
        }
    }
}

const fn nothing(group: Group) -> &'static str {
    match group {
        Group::Running => "Nothing runs.",
        Group::Waiting => "Nothing waits.",
        Group::Ended => "Nothing that is over is in memory any more; gacct lists what was.",
    }
}

/// Which part of a long list is shown, and the ways to the others.
fn parts(page: &JobsPage<'_>, section: &JobSection) -> Markup {
    let (first, shown) = (section.offset + 1, section.jobs.len() as u64);
    let last = section.offset + shown;
    let before = section.offset.saturating_sub(section.limit);
    html! {
        @if shown < section.total {
            nav.pages aria-label={ (section.group.title()) ", other parts" } {
                @if page.only.is_some() {
                    @if section.offset > 0 { a rel="prev" href=(address(page, section.group, before)) { "← before" } }
                    span.small { (count(first)) " to " (count(last)) " of " (count(section.total)) }
                    @if last < section.total { a rel="next" href=(address(page, section.group, last)) { "after →" } }
                } @else {
                    a href=(address(page, section.group, 0)) { "All " (counted(section.total, "job")) " →" }
                }
            }
        }
    }
}

fn table(page: &JobsPage<'_>, section: &JobSection) -> Markup {
    let with_user = page.user.is_empty();
    let heads: &[&str] = match section.group {
        Group::Running => &["Partition", "GPUs", "Time", "Nodes"],
        Group::Waiting => &["Partition", "GPUs", "Waits", "Why", "Start"],
        Group::Ended => &["Partition", "GPUs", "State", "Ended", "Took"],
    };
    html! {
        table.cards {
            thead {
                tr {
                    th scope="col" { "Job" }
                    th scope="col" { "Name" }
                    @if with_user { th scope="col" { "User" } }
                    @for head in heads { th scope="col" { (head) } }
                }
            }
            tbody {
                @for job in &section.jobs {
                    tr {
                        th scope="row" data-label="Job" { a href=(job_address(&job.shown_id)) { (VisibleText(&job.shown_id)) } }
                        td.name data-label="Name" { (VisibleText(&job.name)) }
                        @if with_user { td data-label="User" { (user_link(&job.user)) } }
                        td data-label="Partition" { (VisibleText(&job.partition)) }
                        td.nowrap data-label="GPUs" { (gpus(job)) }
                        @match section.group {
                            Group::Running => { (running(job)) }
                            Group::Waiting => { (waiting(page, job)) }
                            Group::Ended => { (ended(page, job)) }
                        }
                    }
                }
            }
        }
    }
}

fn running(job: &JobRow) -> Markup {
    html! {
        td.nowrap data-label="Time" { (time_used(job)) }
        td.name data-label="Nodes" {
            (VisibleText(&job.nodelist))
            @if job.state != JobState::Running { " " (state(job.state)) }
            @if let Some(idle) = &job.idle { span.small.block { (VisibleText(idle)) } }
            @if !job.pull.is_empty() { span.small.block { (VisibleText(&job.pull)) } }
        }
    }
}

fn waiting(page: &JobsPage<'_>, job: &JobRow) -> Markup {
    let since = job.eligible_time.or(job.submit_time);
    let waits = since.map(|since| page.now.since_secs(since.0));
    let start = page.starts.get(&job.shown_id);
    let expected = start.and_then(|start| start.expected.or(start.at_limits));
    html! {
        td.nowrap data-label="Waits" {
            @match waits {
                Some(secs) if secs >= 0 => { (duration(secs)) }
                _ => { @if let Some(from) = job.eligible_time { "from " (page.time(from.0)) } }
            }
        }
        td.why data-label="Why" { (reason(page, job)) }
        td.nowrap data-label="Start" {
            @if let Some(at) = expected { (page.time(at.0)) }
            @if let Some(place) = job.position { span.small.block { "place " (count(place.into())) } }
        }
    }
}

fn ended(page: &JobsPage<'_>, job: &JobRow) -> Markup {
    let exit = job.exit_code.to_string();
    html! {
        td data-label="State" {
            (state(job.state))
            @if exit != "0:0" { span.small.block { "exit " (exit) } }
        }
        td.nowrap data-label="Ended" { @if let Some(at) = job.end_time { (page.time(at.0)) } }
        td.nowrap data-label="Took" { (duration(job.elapsed_secs)) }
    }
}

impl JobsPage<'_> {
    fn time(&self, at: Timestamp) -> Markup {
        time(at, self.show_time)
    }
}

/// The reason of a listing with its numbers, and with its meaning where it has none.
fn reason(page: &JobsPage<'_>, job: &JobRow) -> Markup {
    let text = match job.reason_text.is_empty() {
        true => job.reason.meaning().to_owned(),
        false => in_words(&job.reason_text, page.show_time),
    };
    html! {
        (VisibleText(&text))
        " " a.small href=(job_address(&job.shown_id)) { "(" (job.reason) ")" }
    }
}

/// A sentence with its RFC 3339 instants as people have them.
pub(crate) fn in_words(text: &str, show_time: &dyn Fn(Timestamp) -> String) -> String {
    let mut told = String::with_capacity(text.len());
    for word in text.split_inclusive(' ') {
        let end = word.find('Z').map_or(0, |at| at + 1);
        match gmodel::time::parse_rfc3339(&word[..end]) {
            Some(at) => {
                told.push_str(&show_time(at));
                told.push_str(&word[end..]);
            }
            None => told.push_str(word),
        }
    }
    told
}

/// How long it has run, of how long it may.
pub(crate) fn time_used(job: &JobRow) -> Markup {
    html! {
        (duration(job.elapsed_secs))
        @match job.time_limit_secs {
            Some(limit) => {
                span.small { " of " (duration(limit.into())) }
                progress max=(limit) value=(job.elapsed_secs.clamp(0, limit.into())) { (duration(job.elapsed_secs)) }
            }
            None => { span.small { " without limit" } }
        }
    }
}

pub(crate) fn gpus(job: &JobRow) -> Markup {
    html! {
        @if job.gpus.is_empty() { span.small { "none" } } @else {
            (VisibleText(&job.gpus))
            @if job.nodes > 1 && job.gpu_count > 0.0 {
                span.small { " · " (decimal(job.gpu_count)) " in all" }
            }
        }
    }
}

pub(crate) fn user_link(user: &str) -> Markup {
    html! { a href={ "/jobs?user=" (percent_encoded(user)) } { (VisibleText(user)) } }
}

pub(crate) fn job_address(shown_id: &str) -> String {
    format!("/job/{}", percent_encoded(shown_id))
}

/// A moment, with its exact form for programs.
pub(crate) fn time(at: Timestamp, show_time: &dyn Fn(Timestamp) -> String) -> Markup {
    html! { time datetime=(at.to_string()) { (show_time(at)) } }
}

/// A state with its colour; the word says it too.
pub(crate) fn state(state: JobState) -> Markup {
    let class = match state {
        JobState::Pending | JobState::Suspended => "wait",
        JobState::Running | JobState::Completing => "busy",
        JobState::Completed => "good",
        JobState::Failed
        | JobState::Timeout
        | JobState::NodeFail
        | JobState::OutOfMemory
        | JobState::Deadline => "bad",
        _ => "calm",
    };
    html! { span class={ "state " (class) } { (state.long().to_lowercase().replace('_', " ")) } }
}
