//! The pool: each node with its GPUs and the jobs that hold them, what is out of service and why, what the queue waits for.

use crate::jobs::{job_address, user_link};
use crate::text::{VisibleText, count, counted, decimal, percent_encoded};
use gwire::api::{DemandRow, GpuHealthRow, GpuRow, JobRow, NodeRow};
use maud::{Markup, html};
use std::collections::BTreeMap;

/// The pool, a part of its nodes at a time.
pub struct PoolPage<'a> {
    /// All that there are, in their order.
    pub nodes: &'a [NodeRow],
    /// By node and UUID: how each GPU stands.
    pub health: &'a BTreeMap<(String, String), GpuHealthRow>,
    /// Jobs that run and may be seen, by their shown id.
    pub jobs: &'a BTreeMap<String, JobRow>,
    pub demand: &'a [DemandRow],
    /// Only nodes with this in their names; empty: all.
    pub find: &'a str,
    /// So many nodes are before the first that is shown, and so many are shown.
    pub offset: usize,
    pub limit: usize,
}

/// Whether a job can have a GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GpuUse {
    Free,
    Held,
    Out,
}

/// The page.
pub fn pool_page(page: &PoolPage<'_>) -> Markup {
    let found: Vec<&NodeRow> = page
        .nodes
        .iter()
        .filter(|node| node.name.contains(page.find))
        .collect();
    let shown = found.iter().skip(page.offset).take(page.limit);
    html! {
        h1 { "Pool" }
        (summary(page))
        (waiting(page.demand))
        section aria-labelledby="nodes" {
            div.title {
                h2 #nodes { "Nodes " span.count { (count(found.len() as u64)) } }
                span.cmd { code { "gnodes" } " · " code { "gnodes --health" } }
            }
            form.filter action="/pool" role="search" aria-label="Find nodes" {
                div {
                    label for="find" { "Node, or a part of its name" }
                    input #find name="node" value=(VisibleText(page.find)) size="18" maxlength="64" autocomplete="off";
                }
                button { "Show" }
            }
            @if found.is_empty() { p.none { "There is no such node." } }
            div.nodes { @for node in shown { (node_card(page, node)) } }
            (parts(page, found.len()))
        }
    }
}

fn parts(page: &PoolPage<'_>, total: usize) -> Markup {
    let last = (page.offset + page.limit).min(total);
    let to = |offset: usize| format!("/pool?node={}&from={offset}", percent_encoded(page.find));
    html! {
        @if page.limit < total {
            nav.pages aria-label="Other nodes" {
                @if page.offset > 0 { a rel="prev" href=(to(page.offset.saturating_sub(page.limit))) { "← before" } }
                span.small { (count(page.offset as u64 + 1)) " to " (count(last as u64)) " of " (count(total as u64)) }
                @if last < total { a rel="next" href=(to(last)) { "after →" } }
            }
        }
    }
}

/// GPUs by type: all, held, out of service.
fn summary(page: &PoolPage<'_>) -> Markup {
    let mut types: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    for node in page.nodes {
        for gpu in node.gpus.iter().filter(|gpu| !gpu.divided) {
            let counts = types.entry(&gpu.gpu_type).or_default();
            counts[0] += 1;
            match gpu_use(page, node, gpu) {
                GpuUse::Held => counts[1] += 1,
                GpuUse::Out => counts[2] += 1,
                GpuUse::Free => {}
            }
        }
    }
    html! {
        @if types.is_empty() { p.lead { "No node has a GPU." } } @else {
            div.card.wide.gap {
                table {
                    thead { tr { th scope="col" { "GPUs" } @for head in ["All", "Held", "Free", "Out of service"] { th.number scope="col" { (head) } } } }
                    tbody {
                        @for (gpu_type, [all, held, out]) in types {
                            tr {
                                th scope="row" { (VisibleText(gpu_type)) }
                                td.number { (count(all)) }
                                td.number { (count(held)) }
                                td.number { (count(all - held - out)) }
                                td.number { (count(out)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What the queue waits for, the most first.
fn waiting(demand: &[DemandRow]) -> Markup {
    let mut reasons: BTreeMap<_, (u64, f64)> = BTreeMap::new();
    for row in demand {
        let sum = reasons.entry(row.reason.to_string()).or_insert((0, 0.0));
        *sum = (sum.0 + row.jobs, sum.1 + row.gpus);
    }
    let meaning = |name: &str| {
        let row = demand.iter().find(|row| row.reason.to_string() == name);
        row.map_or("", |row| row.reason.meaning())
    };
    let mut sorted: Vec<_> = reasons.into_iter().collect();
    sorted.sort_by_key(|(_, (jobs, _))| std::cmp::Reverse(*jobs));
    html! {
        section aria-labelledby="queue" {
            div.title { h2 #queue { "What waits, and why" } span.cmd { code { "gq -t PD" } } }
            @if sorted.is_empty() { p.none { "Nothing waits." } } @else {
                div.card.wide {
                    table {
                        thead { tr { th scope="col" { "Reason" } th.number scope="col" { "Jobs" } th.number scope="col" { "GPUs" } } }
                        tbody {
                            @for (reason, (jobs, gpus)) in &sorted {
                                tr {
                                    td { (crate::text::with_commands(meaning(reason))) " " span.small { "(" (reason) ")" } }
                                    td.number { (count(*jobs)) }
                                    td.number { (decimal(*gpus)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn node_card(page: &PoolPage<'_>, node: &NodeRow) -> Markup {
    let class = match node.state.as_str() {
        _ if is_closed(node) => "bad",
        state if state.starts_with("IDLE") => "good",
        _ => "busy",
    };
    let state = node.state.to_lowercase();
    html! {
        article.card.pad aria-label={ "Node " (VisibleText(&node.name)) } {
            div.title {
                h3 { a href={ "/jobs?node=" (percent_encoded(&node.name)) } { (VisibleText(&node.name)) } }
                span class={ "state " (class) } { (VisibleText(&state)) }
                span.small {
                    (count(node.cpus_alloc.into())) " of " (counted(node.cpus.into(), "CPU"))
                }
            }
            @for drain in &node.drains {
                p.small.warn { "Drained by " (VisibleText(&drain.owner)) ": " (VisibleText(&drain.reason)) }
            }
            @for text in [&node.unfit, &node.lost] { @if !text.is_empty() { p.small.warn { (VisibleText(text)) } } }
            @for gpu in &node.gpus {
                @if let Some(why) = fault(page, node, gpu) { p.small.warn { "GPU " (gpu.slot) ": " (VisibleText(why)) } }
            }
            @if !node.gpus.is_empty() {
                ul.gpus { @for gpu in node.gpus.iter().filter(|gpu| !gpu.divided) { (gpu_cell(page, node, gpu)) } }
            }
        }
    }
}

fn health<'p>(page: &'p PoolPage<'_>, node: &NodeRow, gpu: &GpuRow) -> Option<&'p GpuHealthRow> {
    page.health.get(&(node.name.clone(), gpu.uuid.clone()))
}

/// Why no job gets it.
fn fault<'p>(page: &'p PoolPage<'_>, node: &NodeRow, gpu: &'p GpuRow) -> Option<&'p str> {
    let told = health(page, node, gpu).map(|row| row.reason.as_str());
    told.into_iter()
        .chain([gpu.fault.as_str()])
        .find(|why| !why.is_empty())
}

/// Whether a node takes no work.
fn is_closed(node: &NodeRow) -> bool {
    ["DOWN", "DRAIN", "FAIL", "UNKNOWN"]
        .iter()
        .any(|word| node.state.contains(word))
}

fn gpu_use(page: &PoolPage<'_>, node: &NodeRow, gpu: &GpuRow) -> GpuUse {
    let is_sound =
        health(page, node, gpu).is_none_or(|row| ["ok", "noted", ""].contains(&row.state.as_str()));
    let is_good = gpu.present && gpu.fault.is_empty() && is_sound && !is_closed(node);
    match (gpu.jobs.is_empty(), is_good) {
        (false, _) => GpuUse::Held,
        (true, true) => GpuUse::Free,
        (true, false) => GpuUse::Out,
    }
}

fn gpu_cell(page: &PoolPage<'_>, node: &NodeRow, gpu: &GpuRow) -> Markup {
    let (class, word) = match gpu_use(page, node, gpu) {
        GpuUse::Free => ("free", "free"),
        GpuUse::Held => ("held", ""),
        GpuUse::Out => ("out", "out of service"),
    };
    let stands = health(page, node, gpu).filter(|row| !["ok", ""].contains(&row.state.as_str()));
    html! {
        li class=(class) {
            span.small { (gpu.slot) " " (VisibleText(&gpu.gpu_type)) }
            @for job in &gpu.jobs {
                @match page.jobs.get(job) {
                    Some(row) => {
                        span { a href=(job_address(job)) { (VisibleText(job)) } " " (user_link(&row.user)) }
                        @if !row.account.is_empty() { span.small { (VisibleText(&row.account)) } }
                    }
                    None => { span { (VisibleText(job)) } }
                }
            }
            @if gpu.jobs.is_empty() { span { (word) } }
            @if let Some(row) = stands { span.small.warn { (VisibleText(&row.state)) } }
        }
    }
}
