//! Accounts, users of accounts and QOS that are made, changed and removed.

use super::error::SlurmError;
use super::question::Query;
use super::request::{Parts, RestRequest};
use gwire::api::{AccountRow, ChangeReply, PolicyEdit, QosRow};
use gwire::client::escape;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// `POST accounts/` with `{"accounts": [...]}`.
pub(super) async fn put_accounts(asked: &RestRequest) -> Result<Parts, SlurmError> {
    let known: Vec<AccountRow> = asked.v1.list("/v1/accounts", "accounts").await?;
    let known: Vec<String> = known.into_iter().map(|row| row.account.name).collect();
    put(asked, "accounts", &ACCOUNT, &known).await
}

/// `POST qos/` with `{"qos": [...]}`.
pub(super) async fn put_qos(asked: &RestRequest) -> Result<Parts, SlurmError> {
    let known: Vec<QosRow> = asked.v1.list("/v1/qos", "qos").await?;
    let known: Vec<String> = known.into_iter().map(|row| row.qos.name).collect();
    put(asked, "qos", &QOS, &known).await
}

/// `POST associations/` with `{"associations": [...]}`: users of accounts.
pub(super) async fn put_associations(asked: &RestRequest) -> Result<Parts, SlurmError> {
    let known: Vec<AccountRow> = asked.v1.list("/v1/accounts", "accounts").await?;
    let body = asked.json()?;
    let mut edits = Vec::new();
    for row in rows_of(&body, "associations")? {
        let name = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let (account, user) = (name("account"), name("user"));
        if account.is_empty() || user.is_empty() {
            let text = "an association has an account and a user here; accounts/ makes accounts";
            return Err(SlurmError::unreadable(text).of("associations"));
        }
        let change = change(row, &ASSOCIATION)?;
        let of_account = known.iter().find(|row| row.account.name == account);
        let create = !of_account.is_some_and(|row| row.account.users.contains_key(&user));
        edits.push((user_path(&account, &user), PolicyEdit { create, change }));
    }
    carry_out(asked, &edits).await
}

/// `DELETE association/?account=&user=`, and `associations/`, which is the same here.
pub(super) async fn remove_association(
    asked: &RestRequest,
    query: &mut Query,
) -> Result<Parts, SlurmError> {
    let (account, user) = (query.take("account"), query.take("user"));
    query.take_cluster(&asked.cluster)?;
    if account.is_empty() || user.is_empty() || account.contains(',') || user.contains(',') {
        let text = "name one account and one user; account/NAME removes an account";
        return Err(SlurmError::unreadable(text).of("query"));
    }
    let path = format!("{}/remove", user_path(&account, &user));
    let reply: ChangeReply = asked.v1.post(&path, &PolicyEdit::default()).await?;
    query.notes.extend(reply.notes);
    let removed = json!([format!("A={account} U={user}")]);
    Ok(vec![("removed_associations", removed)])
}

fn user_path(account: &str, user: &str) -> String {
    format!("/v1/accounts/{}/users/{}", escape(account), escape(user))
}

/// Keys of a kind of records.
struct RecordKeys {
    /// Slurm's with ours.
    set: &'static [(&'static str, &'static str)],
    /// What says which record is meant, and what says nothing here.
    beside: &'static [&'static str],
}

const ACCOUNT: RecordKeys = RecordKeys {
    set: &[("description", "description")],
    beside: &["name", "organization"],
};
const QOS: RecordKeys = RecordKeys {
    set: &[("description", "description"), ("priority", "priority")],
    beside: &["name", "id"],
};
const ASSOCIATION: RecordKeys = RecordKeys {
    set: &[("is_default", "default"), ("shares_raw", "shares")],
    beside: &["account", "user", "cluster", "id"],
};

fn rows_of<'b>(body: &'b Value, kind: &str) -> Result<&'b Vec<Value>, SlurmError> {
    body[kind].as_array().ok_or_else(|| {
        SlurmError::unreadable(format!("the body has to have a list under {kind:?}")).of("body")
    })
}

/// Makes or changes each record of the body by its name.
async fn put(
    asked: &RestRequest,
    kind: &'static str,
    keys: &RecordKeys,
    known: &[String],
) -> Result<Parts, SlurmError> {
    let body = asked.json()?;
    let mut edits = Vec::new();
    for row in rows_of(&body, kind)? {
        let name = row["name"].as_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| SlurmError::unreadable("a record has no name").of(kind))?;
        let create = !known.iter().any(|known| known == name);
        let path = format!("/v1/{kind}/{}", escape(name));
        let change = change(row, keys)?;
        edits.push((path, PolicyEdit { create, change }));
    }
    carry_out(asked, &edits).await
}

/// One after the other: those before one that is refused are done.
async fn carry_out(
    asked: &RestRequest,
    edits: &[(String, PolicyEdit)],
) -> Result<Parts, SlurmError> {
    for (path, edit) in edits {
        let _: Value = asked.v1.post(path, edit).await?;
    }
    Ok(Parts::new())
}

/// What of a record is set. A value that says nothing may stand at any key.
fn change(row: &Value, keys: &RecordKeys) -> Result<BTreeMap<String, Value>, SlurmError> {
    let mut change = BTreeMap::new();
    for (key, value) in row.as_object().into_iter().flatten() {
        let value = match value {
            Value::Object(number) if number.contains_key("set") => match number["set"] {
                Value::Bool(true) => number["number"].clone(),
                _ => Value::Null,
            },
            other => other.clone(),
        };
        let ours = keys.set.iter().find(|(known, _)| known == key);
        match ours {
            Some(_) if value.is_null() => {}
            Some((_, ours)) => {
                change.insert((*ours).to_owned(), value);
            }
            None if keys.beside.contains(&key.as_str()) || says_nothing(&value) => {}
            None => {
                let known: Vec<&str> = keys.set.iter().map(|(known, _)| *known).collect();
                let key: String = key.chars().take(80).collect();
                let text = format!(
                    "{key:?} is not set so; {} are. sacctmgr and gadm set the others",
                    known.join(", ")
                );
                return Err(SlurmError::not_done(text).of(key));
            }
        }
    }
    Ok(change)
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) if fields.contains_key("set") => fields["set"] != json!(true),
        Value::Object(fields) => fields.values().all(says_nothing),
        Value::Bool(true) | Value::Number(_) => false,
    }
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
