//! `gadm quota`: what accounts are guaranteed, may hold and lend, beside what they hold now.

use super::account::tree;
use super::key_value::{self, Form, Key};
use super::listing::{budget_text, gpus_text, held_text};
use super::{Listing, Name, NameAndWords, edit, print_json, records, rows};
use gcli::local_time::TimeFormat;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Failure, Outcome};
use gmodel::suggest::did_you_mean;
use gwire::api::{AccountRow, BudgetRow, Gpus};
use gwire::client::{Client, escape};
use std::io::Write;

const KEYS: [Key; 4] = [
    ("guaranteed", "guaranteed", Form::Gpus),
    ("limit", "limit", Form::Gpus),
    ("lend", "lend_limit", Form::Gpus),
    ("lend_limit", "lend_limit", Form::Gpus),
];

/// What to do to quotas.
#[derive(clap::Subcommand)]
pub enum QuotaAct {
    /// Set: gadm quota set vision guaranteed=h100:16,gpu:32 limit=64 lend=8 budget=guaranteed:10000/month
    ///
    /// budget=cap:h100:500/week bounds GPU-hours of a type; budget=cap:none/week takes that budget away, budget=none all.
    Set(NameAndWords),
    /// List quotas, and what is held
    List(Listing),
    /// One account's quota in words
    Show(Name),
}

pub fn run(client: &mut Client, act: QuotaAct) -> Outcome {
    match act {
        QuotaAct::Set(args) => set(client, &args),
        QuotaAct::List(listing) => list(client, listing.json),
        QuotaAct::Show(name) => show(client, &name),
    }
}

fn set(client: &mut Client, args: &NameAndWords) -> Outcome {
    super::must_change(
        &args.words,
        "gadm quota set vision guaranteed=h100:16,gpu:32 limit=64",
    )?;
    let path = format!("/v1/accounts/{}", escape(&args.name));
    let (budgets, others): (Vec<&String>, Vec<&String>) = args.words.iter().partition(|word| {
        word.split_once('=')
            .is_some_and(|(key, _)| key.eq_ignore_ascii_case("budget"))
    });
    let others: Vec<String> = others.into_iter().cloned().collect();
    let mut change = key_value::read(&others, &KEYS, "quotas")?;
    if !budgets.is_empty() {
        let (_, values) = records(client, &path, "accounts")?;
        let mut have = rows::<AccountRow>(values)?
            .into_iter()
            .next()
            .map(|account| account.budgets)
            .unwrap_or_default();
        for word in budgets {
            put_budget(
                &mut have,
                word.split_once('=').map_or("", |(_, value)| value),
            )?;
        }
        change.insert(
            "budgets".to_owned(),
            serde_json::to_value(have).map_err(Failure::new)?,
        );
    }
    edit(client, &path, false, change)
}

/// `KIND:[TYPE:]HOURS/PERIOD`; hours `none` take the budget away, the word `none` all.
fn put_budget(budgets: &mut Vec<BudgetRow>, text: &str) -> Result<(), Failure> {
    if text.is_empty() || text.eq_ignore_ascii_case("none") {
        budgets.clear();
        return Ok(());
    }
    let wrong = |why: String| {
        Failure::usage(format_args!(
            "budget={text}: {why} Write guaranteed:10000/month, or cap:h100:500/week"
        ))
    };
    let (amount, period) = text
        .split_once('/')
        .ok_or_else(|| wrong("there is no period.".to_owned()))?;
    let (kind, amount) = amount
        .split_once(':')
        .ok_or_else(|| wrong("there is no kind.".to_owned()))?;
    for (what, word, known) in [
        ("kind", kind, &["guaranteed", "cap"][..]),
        (
            "period",
            period,
            &["day", "week", "month", "quarter", "year"][..],
        ),
    ] {
        if !known.contains(&word) {
            let guess = did_you_mean(word, known.iter().copied());
            return Err(wrong(format!("{word:?} is no {what}.{guess}")));
        }
    }
    let (gpu_type, hours) = match amount.rsplit_once(':') {
        Some((gpu_type, hours)) => (
            Some(gpu_type.to_ascii_lowercase()).filter(|gpu_type| gpu_type != "gpu"),
            hours,
        ),
        None => (None, amount),
    };
    budgets.retain(|budget| {
        (&*budget.kind, &*budget.period, &budget.gpu_type) != (kind, period, &gpu_type)
    });
    if !hours.eq_ignore_ascii_case("none") {
        let gpu_hours = hours
            .parse()
            .map_err(|_| wrong(format!("{hours:?} is no whole number of GPU-hours.")))?;
        budgets.push(BudgetRow {
            kind: kind.to_owned(),
            gpu_hours,
            period: period.to_owned(),
            gpu_type,
            ..BudgetRow::default()
        });
    }
    Ok(())
}

fn list(client: &mut Client, json: bool) -> Outcome {
    let (answer, values) = records(client, "/v1/accounts", "accounts")?;
    if json {
        return print_json(&answer);
    }
    let accounts: Vec<AccountRow> = rows(values)?;
    let columns = vec![
        Column::whole("ACCOUNT"),
        Column::whole("GUARANTEED"),
        Column::number("HELD"),
        Column::number("BORROWED"),
        Column::whole("LIMIT"),
        Column::whole("LEND"),
        Column::text("BUDGETS"),
    ];
    let mut table = TableWriter::new(stdout()?, columns, Screen::of_stdout(), true);
    for (depth, account) in tree(&accounts) {
        table.row(vec![
            format!("{}{}", "  ".repeat(depth), account.name).into(),
            gpus_text(account.guaranteed.as_ref()).into(),
            held_text(&account.guaranteed_held).into(),
            held_text(&account.borrowed_held).into(),
            gpus_text(account.limit.as_ref()).into(),
            gpus_text(account.lend_limit.as_ref()).into(),
            account
                .budgets
                .iter()
                .map(budget_text)
                .collect::<Vec<_>>()
                .join(",")
                .into(),
        ])?;
    }
    table.finish()?;
    Ok(0)
}

fn show(client: &mut Client, name: &Name) -> Outcome {
    let (answer, values) = records(
        client,
        &format!("/v1/accounts/{}", escape(&name.name)),
        "accounts",
    )?;
    if name.json {
        return print_json(&answer);
    }
    let mut out = stdout()?;
    for account in rows::<AccountRow>(values)? {
        out.write_all(in_words(&account).as_bytes())?;
    }
    out.flush()?;
    Ok(0)
}

fn in_words(account: &AccountRow) -> String {
    let mut text = format!("account {}", account.name);
    if let Some(parent) = &account.parent {
        text.push_str(&format!(", below {parent}"));
    }
    text.push('\n');
    let held = |gpus: &Gpus, key: &str| gpus.get(key).copied().unwrap_or(0.0);
    match &account.guaranteed {
        None => text.push_str(
            "guaranteed: nothing of its own; its runs count against the accounts above it\n",
        ),
        Some(guaranteed) => {
            for (gpu_type, count) in guaranteed {
                let held = held(&account.guaranteed_held, gpu_type);
                text.push_str(&format!(
                    "guaranteed: {count} {}, {held} held, {} free to claim\n",
                    word(gpu_type),
                    to_milli((count - held).max(0.0))
                ));
            }
        }
    }
    let borrowed = held(&account.borrowed_held, "gpu");
    text.push_str(&format!(
        "borrowed: {borrowed} GPUs, which go back when their owners want them\n"
    ));
    let outside = held(&account.outside_held, "gpu");
    if outside > 0.0 {
        text.push_str(&format!(
            "outside of quotas: {outside} GPUs, by QOS that say outside_quota\n"
        ));
    }
    for (gpu_type, most) in account.limit.iter().flatten() {
        let parts = [
            &account.guaranteed_held,
            &account.borrowed_held,
            &account.outside_held,
        ];
        let all: f64 = to_milli(parts.into_iter().map(|part| held(part, gpu_type)).sum());
        text.push_str(&format!("limit: {all} of {most} {} held\n", word(gpu_type)));
    }
    for (gpu_type, most) in account.lend_limit.iter().flatten() {
        let what = if *most == 1.0 && gpu_type == "gpu" {
            "GPU"
        } else {
            word(gpu_type)
        };
        text.push_str(&format!("lends: at most {most} {what} at once\n"));
    }
    text + &budgets_in_words(account)
}

fn budgets_in_words(account: &AccountRow) -> String {
    let mut text = String::new();
    for budget in &account.budgets {
        let what = if budget.kind == "cap" {
            "nothing starts beyond"
        } else {
            "runs are borrowed beyond"
        };
        let of_type = budget
            .gpu_type
            .as_ref()
            .map(|gpu_type| format!(" of {gpu_type}"))
            .unwrap_or_default();
        text.push_str(&format!(
            "budget: {what} {} GPU-hours{of_type} a {}",
            budget.gpu_hours, budget.period
        ));
        text.push_str(&budget_use(budget));
        text.push('\n');
    }
    text
}

/// `: 12.5 used, 87.5 left, of which running jobs may use 40 by their time limits; the next begins 2026-12-01T00:00`.
fn budget_use(budget: &BudgetRow) -> String {
    let Some(used) = budget.used_gpu_hours else {
        return String::new();
    };
    let left = (budget.gpu_hours as f64 - used).max(0.0);
    let promised = budget.promised_gpu_hours.unwrap_or(0.0);
    let mut text = format!(": {} used, {} left", rounded(used), rounded(left));
    if promised > 0.0 {
        text.push_str(&format!(
            ", of which running jobs may use {} by their time limits",
            rounded(promised)
        ));
    }
    if let Some(resets) = budget.resets {
        text.push_str(&format!(
            "; the next begins {}",
            TimeFormat::from_env().print(resets.0)
        ));
    }
    text
}

fn rounded(hours: f64) -> f64 {
    (hours * 10.0).round() / 10.0
}

/// GPUs are counted in thousandths.
fn to_milli(gpus: f64) -> f64 {
    (gpus * 1000.0).round() / 1000.0
}

fn word(gpu_type: &str) -> &str {
    if gpu_type == "gpu" { "GPUs" } else { gpu_type }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_says_what_is_used_left_and_promised() {
        let budget = BudgetRow {
            gpu_hours: 100,
            used_gpu_hours: Some(12.46),
            promised_gpu_hours: Some(3.0),
            ..BudgetRow::default()
        };
        assert_eq!(
            budget_use(&budget),
            ": 12.5 used, 87.5 left, of which running jobs may use 3 by their time limits"
        );
        let over = BudgetRow {
            gpu_hours: 1,
            used_gpu_hours: Some(2.0),
            ..BudgetRow::default()
        };
        assert_eq!(budget_use(&over), ": 2 used, 0 left");
        assert_eq!(
            budget_use(&BudgetRow::default()),
            "",
            "an older controller says nothing of it"
        );
    }

    #[test]
    fn parts_of_gpus_are_told_in_thousandths() {
        let gpus = |gpus: f64| Gpus::from([("h100".to_owned(), gpus)]);
        let account = AccountRow {
            name: "x".into(),
            guaranteed: Some(gpus(1.235)),
            guaranteed_held: gpus(1.0),
            ..AccountRow::default()
        };
        assert!(
            in_words(&account).contains("guaranteed: 1.235 h100, 1 held, 0.235 free to claim\n"),
            "{}",
            in_words(&account)
        );
    }

    #[test]
    fn budgets_are_put_replaced_and_taken_away() {
        let mut budgets = Vec::new();
        let mut put = |text: &str| {
            let done = put_budget(&mut budgets, text).map_err(|failure| failure.text);
            done.map(|()| {
                budgets
                    .iter()
                    .map(budget_text)
                    .collect::<Vec<_>>()
                    .join(" ")
            })
        };
        assert_eq!(
            put("guaranteed:10000/month").unwrap(),
            "guaranteed:10000/month"
        );
        assert_eq!(
            put("cap:H100:500/week").unwrap(),
            "guaranteed:10000/month cap:h100:500/week"
        );
        assert_eq!(
            put("guaranteed:20/month").unwrap(),
            "cap:h100:500/week guaranteed:20/month"
        );
        assert_eq!(put("cap:h100:none/week").unwrap(), "guaranteed:20/month");
        assert_eq!(put("none").unwrap(), "");
        assert_eq!(
            put("cap:5/moth").unwrap_err(),
            r#"budget=cap:5/moth: "moth" is no period. Did you mean "month"? Write guaranteed:10000/month, or cap:h100:500/week"#
        );
    }
}
