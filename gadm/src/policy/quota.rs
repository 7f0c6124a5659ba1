//! `gadm quota`: what accounts are guaranteed, may hold and lend, beside what they hold now.

use super::key_value::{self, words_of};
use super::listing::{budget_text, gpus_text, held_text};
use super::{Listing, Name, NameAndWords, edit, print_json, records, rows};
use gcli::local_time::TimeFormat;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Failure, Outcome};
use gmodel::policy::account::tree;
use gmodel::policy::{Account, Budget, BudgetKind, Period};
use gmodel::suggest::did_you_mean;
use gwire::api::{AccountRow, BudgetUse, Gpus};
use gwire::client::{Client, escape};
use gwire::record_json::{self, gpus_json};
use serde_json::Value;
use std::io::Write;

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
    let of_quotas = ["guaranteed", "limit", "lend_limit"];
    let mut keys = words_of::<Account>();
    keys.retain(|word| of_quotas.contains(&&*word.api));
    let mut change = key_value::read(&others, &keys, "quotas")?;
    if !budgets.is_empty() {
        let (_, values) = records(client, &path, "accounts")?;
        let mut have = rows::<AccountRow>(values)?
            .into_iter()
            .next()
            .map(|row| row.account.budgets)
            .unwrap_or_default();
        for word in budgets {
            put_budget(
                &mut have,
                word.split_once('=').map_or("", |(_, value)| value),
            )?;
        }
        let have = have.iter().map(record_json::write).map(Value::Object);
        change.insert("budgets".to_owned(), have.collect());
    }
    edit(client, &path, false, change)
}

/// `KIND:[TYPE:]HOURS/PERIOD`; hours `none` take the budget away, the word `none` all.
fn put_budget(budgets: &mut Vec<Budget>, text: &str) -> Result<(), Failure> {
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
    let unknown = |what: &str, word: &str, known: &'static [&'static str]| {
        let guess = did_you_mean(word, known.iter().copied());
        wrong(format!("{word:?} is no {what}.{guess}"))
    };
    let kind = BudgetKind::of_word(kind).ok_or_else(|| unknown("kind", kind, BudgetKind::WORDS))?;
    let period = Period::of_word(period).ok_or_else(|| unknown("period", period, Period::WORDS))?;
    let (gpu_type, hours) = match amount.rsplit_once(':') {
        Some((gpu_type, hours)) => (
            Some(gpu_type.to_ascii_lowercase()).filter(|gpu_type| gpu_type != "gpu"),
            hours,
        ),
        None => (None, amount),
    };
    budgets.retain(|budget| {
        (budget.kind, budget.period, &budget.gpu_type) != (kind, period, &gpu_type)
    });
    if !hours.eq_ignore_ascii_case("none") {
        let gpu_hours = hours
            .parse()
            .map_err(|_| wrong(format!("{hours:?} is no whole number of GPU-hours.")))?;
        budgets.push(Budget {
            kind,
            gpu_hours,
            period,
            gpu_type,
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
    let records: Vec<Account> = accounts.iter().map(|row| row.account.clone()).collect();
    for (depth, account) in tree(&records) {
        let row = accounts.iter().find(|row| row.account.name == account.name);
        let held = |held: fn(&AccountRow) -> &Gpus| row.map(|row| held_text(held(row)));
        table.row(vec![
            format!("{}{}", "  ".repeat(depth), account.name).into(),
            gpus_text(account.guaranteed.as_ref()).into(),
            held(|row| &row.guaranteed_held).unwrap_or_default().into(),
            held(|row| &row.borrowed_held).unwrap_or_default().into(),
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
    for value in values {
        let used: Vec<BudgetUse> =
            serde_json::from_value(value["budgets"].clone()).unwrap_or_default();
        for row in rows::<AccountRow>(vec![value])? {
            out.write_all(in_words(&row, &used).as_bytes())?;
        }
    }
    out.flush()?;
    Ok(0)
}

fn in_words(row: &AccountRow, used: &[BudgetUse]) -> String {
    let account = &row.account;
    let mut text = format!("account {}", account.name);
    if let Some(parent) = &account.parent {
        text.push_str(&format!(", below {parent}"));
    }
    text.push('\n');
    let held = |gpus: &Gpus, key: &str| gpus.get(key).copied().unwrap_or(0.0);
    match account.guaranteed.as_ref().map(gpus_json) {
        None => text.push_str(
            "guaranteed: nothing of its own; its runs count against the accounts above it\n",
        ),
        Some(guaranteed) => {
            for (gpu_type, count) in guaranteed {
                let held = held(&row.guaranteed_held, &gpu_type);
                text.push_str(&format!(
                    "guaranteed: {count} {}, {held} held, {} free to claim\n",
                    word(&gpu_type),
                    to_milli((count - held).max(0.0))
                ));
            }
        }
    }
    let borrowed = held(&row.borrowed_held, "gpu");
    text.push_str(&format!(
        "borrowed: {borrowed} GPUs, which go back when their owners want them\n"
    ));
    let outside = held(&row.outside_held, "gpu");
    if outside > 0.0 {
        text.push_str(&format!(
            "outside of quotas: {outside} GPUs, by QOS that say outside_quota\n"
        ));
    }
    for (gpu_type, most) in account.limit.iter().flat_map(gpus_json) {
        let parts = [&row.guaranteed_held, &row.borrowed_held, &row.outside_held];
        let all: f64 = to_milli(parts.into_iter().map(|part| held(part, &gpu_type)).sum());
        text.push_str(&format!(
            "limit: {all} of {most} {} held\n",
            word(&gpu_type)
        ));
    }
    for (gpu_type, most) in account.lend_limit.iter().flat_map(gpus_json) {
        let what = if most == 1.0 && gpu_type == "gpu" {
            "GPU"
        } else {
            word(&gpu_type)
        };
        text.push_str(&format!("lends: at most {most} {what} at once\n"));
    }
    text + &budgets_in_words(account, used)
}

fn budgets_in_words(account: &Account, used: &[BudgetUse]) -> String {
    let mut text = String::new();
    for (number, budget) in account.budgets.iter().enumerate() {
        let what = if budget.kind == BudgetKind::Cap {
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
            budget.gpu_hours,
            budget.period.word()
        ));
        let used = used.get(number).map(|used| budget_use(budget, used));
        text.push_str(&used.unwrap_or_default());
        text.push('\n');
    }
    text
}

/// `: 12.5 used, 87.5 left, of which running jobs may use 40 by their time limits; the next begins 2026-12-01T00:00`.
fn budget_use(budget: &Budget, told: &BudgetUse) -> String {
    let Some(used) = told.used_gpu_hours else {
        return String::new();
    };
    let left = (budget.gpu_hours as f64 - used).max(0.0);
    let promised = told.promised_gpu_hours.unwrap_or(0.0);
    let mut text = format!(": {} used, {} left", rounded(used), rounded(left));
    if promised > 0.0 {
        text.push_str(&format!(
            ", of which running jobs may use {} by their time limits",
            rounded(promised)
        ));
    }
    if let Some(resets) = told.resets {
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
    use gmodel::policy::GpuAmounts;
    use std::collections::BTreeMap;

    #[test]
    fn a_budget_says_what_is_used_left_and_promised() {
        let of = |gpu_hours, used: BudgetUse| {
            let budget = Budget {
                gpu_hours,
                ..Budget::default()
            };
            budget_use(&budget, &used)
        };
        let used = BudgetUse {
            used_gpu_hours: Some(12.46),
            promised_gpu_hours: Some(3.0),
            ..BudgetUse::default()
        };
        assert_eq!(
            of(100, used),
            ": 12.5 used, 87.5 left, of which running jobs may use 3 by their time limits"
        );
        let over = BudgetUse {
            used_gpu_hours: Some(2.0),
            ..BudgetUse::default()
        };
        assert_eq!(of(1, over), ": 2 used, 0 left");
        assert_eq!(
            of(1, BudgetUse::default()),
            "",
            "an older controller says nothing of it"
        );
    }

    #[test]
    fn parts_of_gpus_are_told_in_thousandths() {
        let account = AccountRow {
            account: Account {
                name: "x".into(),
                guaranteed: Some(GpuAmounts(BTreeMap::from([("h100".to_owned(), 1235)]))),
                ..Account::default()
            },
            guaranteed_held: Gpus::from([("h100".to_owned(), 1.0)]),
            ..AccountRow::default()
        };
        assert!(
            in_words(&account, &[])
                .contains("guaranteed: 1.235 h100, 1 held, 0.235 free to claim\n"),
            "{}",
            in_words(&account, &[])
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
