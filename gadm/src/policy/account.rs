//! `gadm account`: the groups that jobs are charged to, as a tree.

use super::key_value::{self, words_of};
use super::listing::gpus_text;
use super::{
    Listing, Name, NameAndWords, Removal, edit, print_json, print_record, records, remove, rows,
};
use gcli::Outcome;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gmodel::policy::Account;
use gmodel::policy::account::tree;
use gwire::api::AccountRow;
use gwire::client::{Client, escape};

/// What to do to accounts.
#[derive(clap::Subcommand)]
pub enum AccountAct {
    /// Make an account: gadm account add vision parent=research shares=10 guaranteed=h100:16,gpu:32 limit=64
    Add(NameAndWords),
    /// Change an account
    #[command(visible_alias = "modify")]
    Set(NameAndWords),
    /// Remove accounts that no job was charged to; others are closed with closed=yes
    #[command(visible_alias = "delete")]
    Del(Removal),
    /// List accounts as a tree
    List(Listing),
    /// One account with all that is set for it
    Show(Name),
}

/// Whether these words can be set; the controller is not asked.
///
/// # Errors
/// A key that does not exist, a value that cannot be read.
pub fn check(words: &[String]) -> Result<(), gcli::Failure> {
    key_value::read(words, &words_of::<Account>(), "accounts").map(drop)
}

pub fn run(client: &mut Client, act: AccountAct) -> Outcome {
    match act {
        AccountAct::Add(args) => {
            let change = key_value::read(&args.words, &words_of::<Account>(), "accounts")?;
            edit(
                client,
                &format!("/v1/accounts/{}", escape(&args.name)),
                true,
                change,
            )
        }
        AccountAct::Set(args) => {
            super::must_change(&args.words, "gadm account set vision shares=20")?;
            let change = key_value::read(&args.words, &words_of::<Account>(), "accounts")?;
            edit(
                client,
                &format!("/v1/accounts/{}", escape(&args.name)),
                false,
                change,
            )
        }
        AccountAct::Del(removal) => remove(client, "accounts", "account", &removal),
        AccountAct::List(listing) => list(client, listing.json),
        AccountAct::Show(name) => {
            let (answer, rows) = records(
                client,
                &format!("/v1/accounts/{}", escape(&name.name)),
                "accounts",
            )?;
            if name.json {
                print_json(&answer)
            } else {
                rows.first().map_or(Ok(0), print_record)
            }
        }
    }
}

fn list(client: &mut Client, json: bool) -> Outcome {
    let (answer, values) = records(client, "/v1/accounts", "accounts")?;
    if json {
        return print_json(&answer);
    }
    let rows = rows::<AccountRow>(values)?.into_iter();
    let accounts: Vec<Account> = rows.map(|row| row.account).collect();
    let columns = vec![
        Column::whole("ACCOUNT"),
        Column::number("SHARES"),
        Column::whole("GUARANTEED"),
        Column::whole("LIMIT"),
        Column::number("USERS"),
        Column::text("COORDINATORS"),
        Column::text("DESCRIPTION"),
    ];
    let mut table = TableWriter::new(stdout()?, columns, Screen::of_stdout(), true);
    for (depth, account) in tree(&accounts) {
        let closed = if account.closed { " (closed)" } else { "" };
        table.row(vec![
            format!("{}{}{closed}", "  ".repeat(depth), account.name).into(),
            account.shares.to_string().into(),
            gpus_text(account.guaranteed.as_ref()).into(),
            gpus_text(account.limit.as_ref()).into(),
            if account.users.is_empty() && !account.users_only {
                "all".into()
            } else {
                account.users.len().to_string().into()
            },
            account
                .coordinators
                .iter()
                .cloned()
                .collect::<Vec<_>>()
                .join(",")
                .into(),
            account.description.clone().into(),
        ])?;
    }
    table.finish()?;
    Ok(0)
}

/// All accounts.
///
/// # Errors
/// The controller does not answer.
pub fn read_all(client: &mut Client) -> Result<Vec<Account>, gcli::Failure> {
    let rows = gcli::answer::list::<AccountRow>(client, "/v1/accounts")?;
    Ok(rows.into_iter().map(|row| row.account).collect())
}
