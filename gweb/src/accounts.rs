//! Accounts: what each is guaranteed, holds, borrows and waits for, what it used this month, and its budgets.

use crate::jobs::time;
use crate::text::{VisibleText, count, counted, decimal, percent_encoded};
use gmodel::Timestamp;
use gmodel::policy::{Budget, BudgetKind, GpuAmounts};
use gwire::api::{AccountRow, BudgetUse, DemandRow, Gpus, ReportRow};
use gwire::record_json::gpus_json;
use maud::{Markup, html};

/// All accounts that the visitor may see.
pub struct AccountsPage<'a> {
    pub accounts: &'a [AccountStanding],
    pub demand: &'a [DemandRow],
    /// Use since the month began, by account.
    pub month: &'a [ReportRow],
    pub show_time: &'a dyn Fn(Timestamp) -> String,
}

/// An account with what is used of its budgets, in their order.
pub struct AccountStanding {
    pub row: AccountRow,
    pub budgets: Vec<BudgetUse>,
}

/// The page.
pub fn accounts_page(page: &AccountsPage<'_>) -> Markup {
    html! {
        h1 { "Accounts" }
        p.lead {
            "GPUs that each is guaranteed, holds and waits for, and its use since the month began. "
            span.cmd { code { "gadm quota list" } " · " code { "gacct report" } }
        }
        (use_of_month(page))
        section aria-labelledby="quotas" {
            div.title { h2 #quotas { "Guarantees and budgets" } }
            @if page.accounts.is_empty() {
                p.none { "No account has a record that you may see." }
            } @else {
                div.card.wide {
                    table.cards {
                        thead {
                            tr {
                                @for head in ["Account", "Guaranteed", "Held", "Borrowed", "Limit", "Lends at most", "Budgets"] {
                                    th scope="col" { (head) }
                                }
                            }
                        }
                        tbody { @for account in page.accounts { (quota_row(page, account)) } }
                    }
                }
            }
        }
    }
}

/// Each account that used something this month, or waits.
fn use_of_month(page: &AccountsPage<'_>) -> Markup {
    let used = page.month.iter().filter_map(|row| row.group.first());
    let mut names: Vec<&str> = used.map(String::as_str).collect();
    names.extend(page.demand.iter().map(|row| row.account.as_str()));
    names.sort_unstable();
    names.dedup();
    let with_cost = page.month.iter().any(|row| row.cost.is_some());
    html! {
        section aria-labelledby="month" {
            div.title {
                h2 #month { "This month" }
                span.cmd { code { "gacct report --by account" } }
            }
            @if names.is_empty() { p.none { "Nothing ran, and nothing waits." } } @else {
                div.card.wide {
                    table.cards {
                        thead {
                            tr {
                                th scope="col" { "Account" }
                                @for head in ["Jobs", "GPU-hours", "GPU use", "CPU-hours"] { th.number scope="col" { (head) } }
                                @if with_cost { th.number scope="col" { "Cost" } }
                                th.number scope="col" { "Jobs that wait" }
                                th.number scope="col" { "GPUs they ask for" }
                            }
                        }
                        tbody { @for name in names { (month_row(page, name, with_cost)) } }
                    }
                }
            }
        }
    }
}

fn month_row(page: &AccountsPage<'_>, name: &str, with_cost: bool) -> Markup {
    let used = page
        .month
        .iter()
        .find(|row| row.group.first().is_some_and(|group| group == name));
    let none = ReportRow::default();
    let used = used.unwrap_or(&none);
    let waits = page.demand.iter().filter(|row| row.account == name);
    let (jobs, gpus) = waits.fold((0, 0.0), |(jobs, gpus), row| {
        (jobs + row.jobs, gpus + row.gpus)
    });
    html! {
        tr {
            th scope="row" data-label="Account" { (VisibleText(name)) }
            td.number data-label="Jobs" { (count(used.jobs)) }
            td.number data-label="GPU-hours" { (format!("{:.1}", used.gpu_hours)) }
            td.number data-label="GPU use" { @if let Some(percent) = used.gpu_percent { (format!("{percent:.0} %")) } }
            td.number data-label="CPU-hours" { (format!("{:.1}", used.cpu_hours)) }
            @if with_cost { td.number data-label="Cost" { @if let Some(cost) = used.cost { (format!("{cost:.2}")) } } }
            td.number data-label="Jobs that wait" {
                @if jobs > 0 {
                    a href={ "/jobs?user=&show=waiting&account=" (percent_encoded(name)) } { (count(jobs)) }
                } @else { "0" }
            }
            td.number data-label="GPUs they ask for" { (decimal(gpus)) }
        }
    }
}

fn quota_row(page: &AccountsPage<'_>, shown: &AccountStanding) -> Markup {
    let (row, account) = (&shown.row, &shown.row.account);
    html! {
        tr {
            th scope="row" data-label="Account" {
                (VisibleText(&account.name))
                @if let Some(parent) = &account.parent { span.small.block { "below " (VisibleText(parent)) } }
            }
            td data-label="Guaranteed" { (amounts(account.guaranteed.as_ref())) }
            td data-label="Held" { (held(&row.guaranteed_held)) }
            td data-label="Borrowed" { (held(&row.borrowed_held)) }
            td data-label="Limit" { (amounts(account.limit.as_ref())) }
            td data-label="Lends at most" { (amounts(account.lend_limit.as_ref())) }
            td data-label="Budgets" {
                @for (at, budget) in account.budgets.iter().enumerate() { (budget_line(page, budget, shown.budgets.get(at))) }
            }
        }
    }
}

fn budget_line(page: &AccountsPage<'_>, budget: &Budget, used: Option<&BudgetUse>) -> Markup {
    let beyond = match budget.kind {
        BudgetKind::Cap => "nothing starts beyond",
        _ => "borrowed beyond",
    };
    let spent = used.and_then(|used| used.used_gpu_hours);
    html! {
        div {
            @if let Some(spent) = spent { (decimal(spent)) " of " }
            (counted(budget.gpu_hours, "GPU-hour")) " a " (budget.period.word())
            @if let Some(gpu_type) = &budget.gpu_type { " of " (VisibleText(gpu_type)) }
            @if let Some(spent) = spent { progress max=(budget.gpu_hours) value=(decimal(spent)) { (decimal(spent)) } }
            span.small.block {
                (beyond)
                @if let Some(promised) = used.and_then(|used| used.promised_gpu_hours).filter(|hours| *hours > 0.0) {
                    "; runs may use " (decimal(promised)) " more"
                }
                @if let Some(at) = used.and_then(|used| used.resets) { "; anew " (time(at.0, page.show_time)) }
            }
        }
    }
}

fn amounts(gpus: Option<&GpuAmounts>) -> Markup {
    match gpus {
        None => html! { span.small { "–" } },
        Some(gpus) => by_type(&gpus_json(gpus)),
    }
}

fn held(gpus: &Gpus) -> Markup {
    match gpus.is_empty() {
        true => html! { "0" },
        false => by_type(gpus),
    }
}

fn by_type(gpus: &Gpus) -> Markup {
    let all = if gpus.len() > 1 { " in all" } else { "" };
    let word = |name: &str| {
        if name == "gpu" {
            all.to_owned()
        } else {
            format!(" {name}")
        }
    };
    html! {
        @for (name, number) in gpus { div { (decimal(*number)) (VisibleText(&word(name))) } }
    }
}
