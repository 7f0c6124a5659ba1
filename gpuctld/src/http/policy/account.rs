//! Accounts and their users over the API: listed, edited, removed.

use crate::config::{Config, RecordKind};
use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::existence::exists;
use crate::http::permission::{Caller, Visibility};
use crate::http::policy::edit::{
    EditAnswer, EditBody, check_presence, may_coordinate, may_edit, send, send_noting,
};
use crate::http::policy::row::{self, HeldGpus, account_row, held_by_account};
use crate::http::policy::{check, record};
use crate::http::query::QueryPairs;
use axum::Json;
use axum::extract::{Path, State as Shared};
use gcore::ctl::{PolicyChange, State};
use gmodel::policy::Account;
use gwire::api::{AccountRow, ChangeReply, SCHEMA};
use serde_json::{Value, json};

pub(crate) async fn accounts(
    caller: Caller,
    shared: Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<Value>, ApiError> {
    pairs.only(&[])?;
    list_accounts(caller, shared, None).await
}

pub(crate) async fn account(
    caller: Caller,
    shared: Shared<ApiContext>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    list_accounts(caller, shared, Some(name)).await
}

async fn list_accounts(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    only: Option<String>,
) -> Result<Json<Value>, ApiError> {
    let state = site.core.view().await;
    if let Some(name) = &only {
        check::account_exists(&state, name)?;
    }
    let (config, held) = (site.app.config(), held_by_account(&state));
    let chosen = state
        .policy
        .accounts
        .values()
        .filter(|account| only.as_ref().is_none_or(|name| *name == account.name));
    let sight = Visibility::of(&caller, &state);
    let seen = chosen.filter(|account| sees_account(&state, &caller, &sight, account));
    let rows: Vec<AccountRow> = seen
        .map(|account| shown_account(&state, &caller, account, held.get(&account.name), &config))
        .collect();
    let has_budgets = rows.iter().any(|row| !row.account.budgets.is_empty());
    let mut answer = json!({"schema": SCHEMA, "accounts": rows});
    if has_budgets {
        let ledger = gsched::ledger::Ledger::new(&gcore::ctl::snapshot(&state, now()));
        for (told, row) in answer["accounts"]
            .as_array_mut()
            .into_iter()
            .flatten()
            .zip(&rows)
        {
            row::tell_use(told, &row.account.name, &ledger);
        }
    }
    Ok(Json(answer))
}

/// Under `privacy`, users see accounts that they are in or have jobs in, and those above them.
fn sees_account(state: &State, caller: &Caller, sight: &Visibility, account: &Account) -> bool {
    let user = &caller.actor.user;
    let is_in = |account: &Account| {
        account.users.contains_key(user) || sight.accounts().contains(&account.name)
    };
    sight.sees_all()
        || state.policy.coordinates(user, &account.name)
        || state.policy.accounts.values().any(|other| {
            is_in(other)
                && state
                    .policy
                    .lineage(&other.name)
                    .iter()
                    .any(|up| up.name == account.name)
        })
}

/// Other users of an account are visible where its jobs are.
fn shown_account(
    state: &State,
    caller: &Caller,
    account: &Account,
    held: Option<&HeldGpus>,
    config: &Config,
) -> AccountRow {
    let mut row = account_row(account, held, config);
    let sight = Visibility::of(caller, state);
    let user = &caller.actor.user;
    if !sight.sees_named("", &account.name) && !state.policy.coordinates(user, &account.name) {
        row.account.users.retain(|name, _| name == user);
    }
    row
}

pub(crate) async fn edit_account(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(name): Path<String>,
    body: EditBody,
) -> EditAnswer {
    let Json(edit) = body?;
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    let parent = edit
        .change
        .get("parent")
        .and_then(Value::as_str)
        .unwrap_or(&name);
    may_coordinate(&caller, &state, if edit.create { parent } else { &name })?;
    may_edit(&site, &caller, RecordKind::Account, &name)?;
    let old = state.policy.accounts.get(&name);
    if !edit.create {
        check::account_exists(&state, &name)?;
    }
    check_presence("account", &name, edit.create, state.policy.accounts.keys())?;
    let account = record::account(&name, old, &edit)?;
    check::account(&state, &account)?;
    let mut notes = check::unheard_of(&state, old, &account);
    if notes.is_empty() {
        notes.extend(check::beyond_the_pool(&state, old, &account));
    }
    send_noting(
        &site,
        caller,
        PolicyChange::Account {
            account: Box::new(account),
        },
        notes,
    )
    .await
}

pub(crate) async fn remove_account(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(name): Path<String>,
    _: EditBody,
) -> EditAnswer {
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    may_coordinate(&caller, &state, &name)?;
    may_edit(&site, &caller, RecordKind::Account, &name)?;
    check::account_exists(&state, &name)?;
    check::nothing_is_below(&state, &name)?;
    send(&site, caller, PolicyChange::AccountRemoved { name }).await
}

pub(crate) async fn edit_user(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path((name, user)): Path<(String, String)>,
    body: EditBody,
) -> EditAnswer {
    let Json(edit) = body?;
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    // Users may choose their default account themselves: the core knows what of an edit is only that.
    if user != caller.actor.user {
        may_coordinate(&caller, &state, &name)?;
    }
    check::account_exists(&state, &name)?;
    may_edit(&site, &caller, RecordKind::Account, &name)?;
    let old = state
        .policy
        .accounts
        .get(&name)
        .and_then(|account| account.users.get(&user));
    match (edit.create, old) {
        (true, Some(_)) => {
            let text = format!(
                "user {user} is in account {name}. Change them with gadm user set {user} account={name} ..."
            );
            return Err(ApiError::conflict(text));
        }
        (false, None) => {
            return Err(ApiError::not_found(format!(
                "user {user:?} is not in account {name}"
            )));
        }
        _ => {}
    }
    record::user_name(&user)?;
    let entry = record::user_entry(old, &edit)?;
    let notes = check::unheard_of(&state, old, &entry);
    send_noting(
        &site,
        caller,
        PolicyChange::User {
            account: name,
            user,
            entry,
        },
        notes,
    )
    .await
}

pub(crate) async fn remove_user(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path((name, user)): Path<(String, String)>,
    _: EditBody,
) -> EditAnswer {
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    may_coordinate(&caller, &state, &name)?;
    check::account_exists(&state, &name)?;
    may_edit(&site, &caller, RecordKind::Account, &name)?;
    exists(
        &format!("user in account {name}"),
        &user,
        state.policy.accounts[&name].users.keys(),
    )?;
    let last = state.policy.accounts[&name].users.len() == 1;
    let answer = send(
        &site,
        caller,
        PolicyChange::UserRemoved {
            account: name.clone(),
            user: user.clone(),
        },
    )
    .await?;
    let note = format!(
        "{user} was the last user of account {name}: none but its coordinators may use it now. gadm account set {name} users_only=no opens it to everybody"
    );
    Ok(if last {
        Json(ChangeReply {
            schema: SCHEMA,
            notes: vec![note],
        })
    } else {
        answer
    })
}
