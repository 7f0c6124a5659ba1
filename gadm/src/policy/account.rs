//! `gadm account`: the groups that jobs are charged to, as a tree.

use super::key_value::{self, Form, Key};
use super::listing::gpus_text;
use super::{
    Listing, Name, NameAndWords, Removal, edit, print_json, print_record, records, remove, rows,
};
use gcli::Outcome;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gwire::api::AccountRow;
use gwire::client::{Client, escape};

/// Words of `gadm account add` and `set`; sacctmgr's spellings beside ours.
pub(super) const KEYS: [Key; 43] = [
    ("parent", "parent", Form::Name),
    ("description", "description", Form::Text),
    ("shares", "shares", Form::Count),
    ("fairshare", "shares", Form::Count),
    ("guaranteed", "guaranteed", Form::Gpus),
    ("limit", "limit", Form::Gpus),
    ("grptres", "limit", Form::Gpus),
    ("lend_limit", "lend_limit", Form::Gpus),
    ("lend", "lend_limit", Form::Gpus),
    ("allow_qos", "allow_qos", Form::Names),
    ("qos", "allow_qos", Form::Names),
    ("qoslevel", "allow_qos", Form::Names),
    ("default_qos", "default_qos", Form::Name),
    ("coordinators", "coordinators", Form::Names),
    ("users_only", "users_only", Form::Flag),
    ("closed", "closed", Form::Flag),
    ("group.running_jobs", "group.running_jobs", Form::Count),
    ("grpjobs", "group.running_jobs", Form::Count),
    ("group.submitted_jobs", "group.submitted_jobs", Form::Count),
    ("grpsubmitjobs", "group.submitted_jobs", Form::Count),
    ("grpsubmit", "group.submitted_jobs", Form::Count),
    ("group.gpus", "group.gpus", Form::Gpus),
    ("group.cpus", "group.cpus", Form::Count),
    ("grpcpus", "group.cpus", Form::Count),
    ("group.nodes", "group.nodes", Form::Count),
    ("grpnodes", "group.nodes", Form::Count),
    (
        "group.running_gpu_hours",
        "group.running_gpu_hours",
        Form::Count,
    ),
    ("group.array_tasks", "group.array_tasks", Form::Count),
    (
        "group.submits_per_minute",
        "group.submits_per_minute",
        Form::Count,
    ),
    (
        "per_user.running_jobs",
        "per_user.running_jobs",
        Form::Count,
    ),
    ("maxjobs", "per_user.running_jobs", Form::Count),
    (
        "per_user.submitted_jobs",
        "per_user.submitted_jobs",
        Form::Count,
    ),
    ("maxsubmitjobs", "per_user.submitted_jobs", Form::Count),
    ("maxsubmit", "per_user.submitted_jobs", Form::Count),
    ("per_user.gpus", "per_user.gpus", Form::Gpus),
    ("maxgpus", "per_user.gpus", Form::Gpus),
    ("per_user.cpus", "per_user.cpus", Form::Count),
    ("maxcpus", "per_user.cpus", Form::Count),
    ("per_user.nodes", "per_user.nodes", Form::Count),
    ("maxnodes", "per_user.nodes", Form::Count),
    (
        "per_user.running_gpu_hours",
        "per_user.running_gpu_hours",
        Form::Count,
    ),
    ("per_user.array_tasks", "per_user.array_tasks", Form::Count),
    (
        "per_user.submits_per_minute",
        "per_user.submits_per_minute",
        Form::Count,
    ),
];

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

pub fn run(client: &mut Client, act: AccountAct) -> Outcome {
    match act {
        AccountAct::Add(args) => {
            let change = key_value::read(&args.words, &KEYS, "accounts")?;
            edit(
                client,
                &format!("/v1/accounts/{}", escape(&args.name)),
                true,
                change,
            )
        }
        AccountAct::Set(args) => {
            super::must_change(&args.words, "gadm account set vision shares=20")?;
            let change = key_value::read(&args.words, &KEYS, "accounts")?;
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
    let accounts: Vec<AccountRow> = rows(values)?;
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

/// Each account below its parent, with its depth. An account without a listed parent is at the top.
pub fn tree(accounts: &[AccountRow]) -> Vec<(usize, &AccountRow)> {
    fn below<'a>(
        parent: Option<&str>,
        depth: usize,
        all: &'a [AccountRow],
        tree: &mut Vec<(usize, &'a AccountRow)>,
    ) {
        for account in all {
            let shown = account
                .parent
                .as_deref()
                .filter(|parent| all.iter().any(|other| other.name == *parent));
            if shown == parent && depth <= all.len() {
                tree.push((depth, account));
                below(Some(&account.name), depth + 1, all, tree);
            }
        }
    }
    let mut tree = Vec::new();
    below(None, 0, accounts, &mut tree);
    tree
}
