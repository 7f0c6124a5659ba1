//! `gadm user`: associations, the users of an account with their limits.

use super::key_value::{self, Form, Key};
use super::listing::limits_text;
use super::{Listing, confirm, edit, print_json, records, rows};
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Failure, Outcome};
use gwire::api::{AccountRow, ChangeReply, PolicyEdit, UserRow};
use gwire::client::{Client, escape};

const KEYS: [Key; 19] = [
    ("account", "account", Form::Name),
    ("shares", "shares", Form::Count),
    ("fairshare", "shares", Form::Count),
    ("default", "default", Form::Flag),
    ("running_jobs", "running_jobs", Form::Count),
    ("maxjobs", "running_jobs", Form::Count),
    ("submitted_jobs", "submitted_jobs", Form::Count),
    ("maxsubmitjobs", "submitted_jobs", Form::Count),
    ("maxsubmit", "submitted_jobs", Form::Count),
    ("gpus", "gpus", Form::Gpus),
    ("maxgpus", "gpus", Form::Gpus),
    ("grptres", "gpus", Form::Gpus),
    ("cpus", "cpus", Form::Count),
    ("maxcpus", "cpus", Form::Count),
    ("nodes", "nodes", Form::Count),
    ("maxnodes", "nodes", Form::Count),
    ("running_gpu_hours", "running_gpu_hours", Form::Count),
    ("array_tasks", "array_tasks", Form::Count),
    ("submits_per_minute", "submits_per_minute", Form::Count),
];

/// What to do to users.
#[derive(clap::Subcommand)]
pub enum UserAct {
    /// Let a user use an account: gadm user add ada account=vision shares=2 default=yes
    Add(UserWords),
    /// Change a user in an account: gadm user set ada account=vision maxjobs=10
    #[command(visible_alias = "modify")]
    Set(UserWords),
    /// Take a user out of an account: gadm user del ada account=vision
    #[command(visible_alias = "delete")]
    Del {
        #[command(flatten)]
        words: UserWords,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// List users with their accounts
    List {
        #[command(flatten)]
        listing: Listing,
        /// Only this user
        #[arg(long, short, value_name = "USER")]
        user: Option<String>,
        /// Only this account
        #[arg(long, short = 'A', value_name = "NAME")]
        account: Option<String>,
    },
}

/// A user with an account and changes.
#[derive(clap::Args)]
pub struct UserWords {
    /// The user's name
    user: String,
    /// account=NAME, and what to set; VALUE none takes a bound away
    #[arg(required = true, value_name = "KEY=VALUE")]
    words: Vec<String>,
}

impl UserWords {
    pub fn of(user: String, words: Vec<String>) -> Self {
        Self { user, words }
    }
}

pub fn run(client: &mut Client, act: UserAct) -> Outcome {
    match act {
        UserAct::Add(words) => change(client, &words, true),
        UserAct::Set(words) => change(client, &words, false),
        UserAct::Del { words, yes } => {
            let (account, change) = account_of(&words)?;
            if !change.is_empty() {
                return Err(Failure::usage("gadm user del takes account=NAME alone"));
            }
            confirm(
                yes,
                &format!(
                    "take {} out of account {account} with all that is set for them there?",
                    words.user
                ),
            )?;
            let path = format!(
                "/v1/accounts/{}/users/{}/remove",
                escape(&account),
                escape(&words.user)
            );
            let done: ChangeReply = client.post(&path, &PolicyEdit::default())?;
            crate::controller::say_notes(&done);
            Ok(0)
        }
        UserAct::List {
            listing,
            user,
            account,
        } => list(client, listing.json, user.as_deref(), account.as_deref()),
    }
}

type UserChange = std::collections::BTreeMap<String, serde_json::Value>;

fn account_of(words: &UserWords) -> Result<(String, UserChange), Failure> {
    let mut change = key_value::read(&words.words, &KEYS, "users")?;
    match change
        .remove("account")
        .as_ref()
        .and_then(|account| account.as_str())
    {
        Some(account) => Ok((account.to_owned(), change)),
        None => Err(Failure::usage(format_args!(
            "which account? gadm user add {} account=NAME",
            words.user
        ))),
    }
}

fn change(client: &mut Client, words: &UserWords, create: bool) -> Outcome {
    let (account, change) = account_of(words)?;
    if change.is_empty() && !create {
        return Err(Failure::usage(format_args!(
            "what is to be changed? gadm user set {} account={account} maxjobs=10",
            words.user
        )));
    }
    edit(
        client,
        &format!(
            "/v1/accounts/{}/users/{}",
            escape(&account),
            escape(&words.user)
        ),
        create,
        change,
    )
}

/// A user in an account; without an association a coordinator that may not charge it.
struct AccountUser<'a> {
    name: String,
    account: &'a AccountRow,
    association: Option<&'a UserRow>,
}

fn list(client: &mut Client, json: bool, user: Option<&str>, account: Option<&str>) -> Outcome {
    let (answer, values) = records(client, "/v1/accounts", "accounts")?;
    let accounts: Vec<AccountRow> = rows(values)?;
    let mut entries = Vec::new();
    for row in accounts
        .iter()
        .filter(|row| account.is_none_or(|account| row.name == account))
    {
        for coordinator in row
            .coordinators
            .iter()
            .filter(|name| !row.users.contains_key(*name))
        {
            entries.push(AccountUser {
                name: coordinator.clone(),
                account: row,
                association: None,
            });
        }
        entries.extend(row.users.iter().map(|(name, entry)| AccountUser {
            name: name.clone(),
            account: row,
            association: Some(entry),
        }));
    }
    entries.retain(|entry| user.is_none_or(|user| entry.name == user));
    entries.sort_by(|a, b| (&a.name, &a.account.name).cmp(&(&b.name, &b.account.name)));
    if json {
        let one = |entry: &AccountUser| {
            let mut value = entry
                .association
                .and_then(|entry| serde_json::to_value(entry).ok())
                .unwrap_or_else(|| serde_json::json!({}));
            value["user"] = entry.name.as_str().into();
            value["account"] = entry.account.name.as_str().into();
            value["coordinator"] = entry.account.coordinators.contains(&entry.name).into();
            value
        };
        let users: Vec<_> = entries.iter().map(one).collect();
        return print_json(&serde_json::json!({"schema": answer["schema"], "users": users}));
    }
    print_table(&entries)
}

fn print_table(entries: &[AccountUser]) -> Outcome {
    let columns = vec![
        Column::whole("USER"),
        Column::whole("ACCOUNT"),
        Column::number("SHARES"),
        Column::whole("DEFAULT"),
        Column::whole("COORD"),
        Column::text("LIMITS"),
    ];
    let mut table = TableWriter::new(stdout()?, columns, Screen::of_stdout(), true);
    let yes = |flag: bool| if flag { "yes" } else { "" };
    for entry in entries {
        let association = entry.association;
        table.row(vec![
            entry.name.clone().into(),
            entry.account.name.clone().into(),
            association
                .map(|entry| entry.shares.to_string())
                .unwrap_or_default()
                .into(),
            yes(association.is_some_and(|entry| entry.default)).into(),
            yes(entry.account.coordinators.contains(&entry.name)).into(),
            association
                .map(|entry| limits_text(&entry.limits))
                .unwrap_or_default()
                .into(),
        ])?;
    }
    table.finish()?;
    Ok(0)
}
