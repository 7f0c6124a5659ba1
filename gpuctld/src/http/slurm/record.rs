//! Accounts and QOS that are made, changed and removed.

use super::error::SlurmError;
use super::request::{Parts, RestRequest};
use gwire::api::{AccountRow, PolicyEdit, QosRow};
use gwire::client::escape;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// `POST accounts/` with `{"accounts": [...]}`.
pub(super) async fn put_accounts(asked: &RestRequest) -> Result<Parts, SlurmError> {
    let known: Vec<AccountRow> = asked.v1.list("/v1/accounts", "accounts").await?;
    let known: Vec<String> = known.into_iter().map(|row| row.account.name).collect();
    put(
        asked,
        "accounts",
        &["description"],
        &["organization"],
        &known,
    )
    .await
}

/// `POST qos/` with `{"qos": [...]}`.
pub(super) async fn put_qos(asked: &RestRequest) -> Result<Parts, SlurmError> {
    let known: Vec<QosRow> = asked.v1.list("/v1/qos", "qos").await?;
    let known: Vec<String> = known.into_iter().map(|row| row.qos.name).collect();
    put(asked, "qos", &["description", "priority"], &["id"], &known).await
}

/// Makes or changes each record of the body. `keys` are taken, `said` may be there and say nothing, and all others are refused.
async fn put(
    asked: &RestRequest,
    kind: &'static str,
    keys: &[&str],
    said: &[&str],
    known: &[String],
) -> Result<Parts, SlurmError> {
    let body = asked.json()?;
    let rows = body[kind].as_array().ok_or_else(|| {
        SlurmError::unreadable(format!("the body has to have a list under {kind:?}")).of("body")
    })?;
    let mut edits = Vec::new();
    for row in rows {
        edits.push(edit(row, kind, keys, said, known)?);
    }
    for (name, edit) in edits {
        let path = format!("/v1/{kind}/{}", escape(&name));
        let _: Value = asked.v1.post(&path, &edit).await?;
    }
    Ok(Parts::new())
}

fn edit(
    row: &Value,
    kind: &str,
    keys: &[&str],
    said: &[&str],
    known: &[String],
) -> Result<(String, PolicyEdit), SlurmError> {
    let name = row["name"].as_str().filter(|name| !name.is_empty());
    let name = name
        .ok_or_else(|| SlurmError::unreadable("a record has no name").of(kind))?
        .to_owned();
    let mut change = BTreeMap::new();
    for (key, value) in row.as_object().into_iter().flatten() {
        let value = match value {
            Value::Object(number) if number.contains_key("set") => match number["set"] {
                Value::Bool(true) => number["number"].clone(),
                _ => Value::Null,
            },
            other => other.clone(),
        };
        let is_empty =
            value.is_null() || value == json!([]) || value == json!("") || value == json!({});
        match key.as_str() {
            "name" => {}
            key if keys.contains(&key) && !value.is_null() => {
                change.insert(key.to_owned(), value);
            }
            key if said.contains(&key) || is_empty => {}
            key => {
                let key: String = key.chars().take(80).collect();
                let text = format!(
                    "{key:?} is not set so; {} are. sacctmgr and gadm set the others",
                    keys.join(", ")
                );
                return Err(SlurmError::not_done(text).of(key));
            }
        }
    }
    let create = !known.contains(&name);
    Ok((name, PolicyEdit { create, change }))
}

/// `DELETE account/{account_name}` and `qos/{qos}`.
pub(super) async fn remove(
    asked: &RestRequest,
    kind: &'static str,
    name: &str,
) -> Result<Parts, SlurmError> {
    let path = format!("/v1/{kind}/{}/remove", escape(name));
    let _: Value = asked.v1.post(&path, &PolicyEdit::default()).await?;
    let key = if kind == "accounts" {
        "removed_accounts"
    } else {
        "removed_qos"
    };
    Ok(vec![(key, json!([name]))])
}
