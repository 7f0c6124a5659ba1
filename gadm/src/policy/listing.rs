//! Records as people read them: GPUs by type in a word, limits in a word, a record as lines of keys.

use gcli::printable::printable;
use gmodel::policy::{AccountUser, Budget, GpuAmounts, Limits};
use gmodel::record::{Record, table_text};
use gwire::api::Gpus;
use gwire::record_json;
use serde_json::Value;

/// `h100:16,gpu:32`; `-` for none.
pub(super) fn gpus_text(gpus: Option<&GpuAmounts>) -> String {
    gpus.map_or_else(|| "-".to_owned(), GpuAmounts::text)
}

/// Held GPUs of all types.
pub(super) fn held_text(gpus: &Gpus) -> String {
    gpus.get("gpu").copied().unwrap_or(0.0).to_string()
}

/// `guaranteed:10000/month`.
pub(super) fn budget_text(budget: &Budget) -> String {
    let of_type = budget
        .gpu_type
        .as_ref()
        .map(|gpu_type| format!("{gpu_type}:"))
        .unwrap_or_default();
    format!(
        "{}:{of_type}{}/{}",
        budget.kind.word(),
        budget.gpu_hours,
        budget.period.word()
    )
}

/// `running_jobs=5,gpus=h100:8`; empty for no bounds.
pub(super) fn limits_text(limits: &Limits) -> String {
    table_text(&limits.table())
}

/// A record, a line for each key that says something.
pub(super) fn record_text(value: &Value) -> String {
    let mut text = String::new();
    for (key, value) in value.as_object().into_iter().flatten() {
        let shown = match value {
            Value::Null => continue,
            Value::Bool(false) => continue,
            Value::Bool(true) => "yes".to_owned(),
            Value::String(text) if text.is_empty() => continue,
            Value::Array(list) if list.is_empty() => continue,
            Value::Object(table) if table.is_empty() => continue,
            other => word(key, other),
        };
        text.push_str(&format!("{key}={}\n", printable(&shown)));
    }
    text
}

fn word(key: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) if key == "budgets" => {
            let read = |value: &Value| {
                let budget = value.as_object().map(|one| record_json::read(one).0);
                budget
                    .map(|budget| budget_text(&budget))
                    .unwrap_or_default()
            };
            list.iter().map(read).collect::<Vec<_>>().join(",")
        }
        Value::Array(list) => list
            .iter()
            .map(|value| word("", value))
            .collect::<Vec<_>>()
            .join(","),
        Value::Object(table) if key == "users" => table
            .iter()
            .map(|(name, user)| user_word(name, user))
            .collect::<Vec<_>>()
            .join(" "),
        Value::Object(table) => {
            let mut parts = table.iter().map(|(key, value)| match value {
                Value::Object(_) => format!("{key}={}", word("", value)),
                value => format!("{key}:{}", word("", value)),
            });
            let parts: Vec<String> = parts.by_ref().collect();
            parts.join(",")
        }
        Value::Number(number) => number
            .as_f64()
            .map_or_else(|| number.to_string(), |number| number.to_string()),
        other => other.to_string(),
    }
}

/// `ada`, `eve(shares=3,running_jobs=2)`.
fn user_word(name: &str, user: &Value) -> String {
    let read = user.as_object().map(|user| record_json::read(user).0);
    let row: AccountUser = read.unwrap_or_default();
    let mut parts: Vec<String> = Vec::new();
    if row.shares != 1 {
        parts.push(format!("shares={}", row.shares));
    }
    if row.is_default {
        parts.push("default".to_owned());
    }
    parts.extend(Some(limits_text(&row.limits)).filter(|text| !text.is_empty()));
    if parts.is_empty() {
        name.to_owned()
    } else {
        format!("{name}({})", parts.join(","))
    }
}
