//! `gadm user`: associations, the users of an account with their limits.

use super::key_value::{self, Form, Word, words_of};
use super::listing::limits_text;
use super::{Listing, confirm, edit, print_json, records, rows};
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Failure, Outcome};
use gmodel::policy::{Account, AccountUser};
use gwire::api::{AccountRow, ChangeReply, PolicyEdit};
use gwire::client::{Client, escape};
use gwire::record_json;

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

/// Whether these words can be set; the controller is not asked.
///
/// # Errors
/// A key that does not exist, a value that cannot be read.
pub fn check(words: &[String]) -> Result<(), gcli::Failure> {
    key_value::read(words, &words_of::<AccountUser>(), "users").map(drop)
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
    let account = Word::new("account", "account", Form::Name);
    let keys: Vec<Word> = [account]
        .into_iter()
        .chain(words_of::<AccountUser>())
        .collect();
    let mut change = key_value::read(&words.words, &keys, "users")?;
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
struct UserEntry<'a> {
    name: String,
    account: &'a Account,
    association: Option<&'a AccountUser>,
}

fn list(client: &mut Client, json: bool, user: Option<&str>, account: Option<&str>) -> Outcome {
    let (answer, values) = records(client, "/v1/accounts", "accounts")?;
    let accounts: Vec<Account> = rows::<AccountRow>(values)?
        .into_iter()
        .map(|row| row.account)
        .collect();
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
            entries.push(UserEntry {
                name: coordinator.clone(),
                account: row,
                association: None,
            });
        }
        entries.extend(row.users.iter().map(|(name, entry)| UserEntry {
            name: name.clone(),
            account: row,
            association: Some(entry),
        }));
    }
    entries.retain(|entry| user.is_none_or(|user| entry.name == user));
    entries.sort_by(|a, b| (&a.name, &a.account.name).cmp(&(&b.name, &b.account.name)));
    if json {
        let one = |entry: &UserEntry| {
            let mut value = entry.association.map_or_else(
                || serde_json::json!({}),
                |entry| record_json::write(entry).into(),
            );
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

fn print_table(entries: &[UserEntry]) -> Outcome {
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
            yes(association.is_some_and(|entry| entry.is_default)).into(),
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
