//! `sshare`: the fair tree in sshare's columns, with the figures of `gadm share`.
//!
//! Source: sshare(1), and what sshare 22.05.8 printed.

use crate::json;
use crate::ruled_table::{self, Column, TableArgs};
use clap::{CommandFactory, FromArgMatches, Parser};
use gadm::policy::account;
use gcli::answer::list;
use gcli::table::stdout;
use gcli::{ClusterChoice, Failure, Outcome, command_line};
use gmodel::policy::Account;
use gwire::api::{ClusterInfo, ShareRow};
use gwire::client::{Client, path_with_query};
use nix::unistd::{Uid, User};
use std::ffi::OsString;
use std::io::Write;

const ELSEWHERE: &str = "--helpformat names those there are; gadm share shows shares and use, gadm quota limits and budgets";

const ADVICE: &command_line::Advice =
    &[(&["-m", "--partition"], "nobody's shares are by partition")];

#[derive(Parser)]
#[command(
    name = "sshare",
    version,
    about = "sshare's listing, by gadm",
    disable_help_flag = true,
    after_help = "Without -a and -u the users are you alone. This is gpupool: gadm share --help has more."
)]
struct SshareArgs {
    /// Of all users
    #[arg(short, long)]
    all: bool,
    /// Only these accounts and their users
    #[arg(short = 'A', long, value_name = "NAMES", alias = "account")]
    accounts: Vec<String>,
    /// Of these users
    #[arg(short = 'u', long, value_name = "NAMES", alias = "uid", alias = "user")]
    users: Vec<String>,
    /// Lines of users only, not of accounts
    #[arg(short = 'U', long = "Users")]
    only_users: bool,
    /// Parts of all use and level fair share too
    #[arg(short, long)]
    long: bool,
    #[command(flatten)]
    table: TableArgs,
    /// No header line
    #[arg(short = 'h', hide = true)]
    headless: bool,
    /// Columns, with widths: Account%20,User
    #[arg(short = 'o', long, value_name = "COLUMNS")]
    format: Option<String>,
    /// The columns there are
    #[arg(short = 'e', long)]
    helpformat: bool,
    #[command(flatten)]
    cluster: ClusterChoice,
    /// All as JSON, with Slurm's keys
    #[arg(long)]
    json: bool,
    /// Show this help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// A line of the tree as it is printed.
pub(crate) struct ShareLine {
    /// Indented by the accounts above it that are printed too.
    account: String,
    cluster: String,
    pub share: ShareRow,
    /// Where it has used nothing yet and is not in the tree, there are no figures.
    unused: bool,
}

impl ShareLine {
    /// A figure, where there is one.
    fn figure(&self, text: impl FnOnce(&ShareRow) -> String) -> String {
        if self.unused {
            String::new()
        } else {
            text(&self.share)
        }
    }
}

fn part(part: f64) -> String {
    format!("{part:.6}")
}

const COLUMNS: &[Column<ShareLine>] = &[
    Column {
        word: "account",
        title: "Account",
        width: 20,
        left: true,
        text: |line| line.account.clone(),
    },
    Column::right("cluster", "Cluster", 10, |line| line.cluster.clone()),
    // The root has all of it.
    Column::right("effectvusage", "EffectvUsage", 13, |line| {
        line.figure(|share| {
            part(if share.depth == 0 {
                1.0
            } else {
                share.effective_usage
            })
        })
    }),
    Column::right("fairshare", "FairShare", 10, |line| {
        line.share.fair_share.map(part).unwrap_or_default()
    }),
    // The root has no siblings.
    Column::right("levelfs", "LevelFS", 10, |line| {
        line.figure(|share| match (share.depth, share.level_fs) {
            (0, _) => String::new(),
            (_, level) => level.map_or_else(|| "inf".to_owned(), part),
        })
    }),
    Column::right("normshares", "NormShares", 11, |line| {
        line.figure(|share| part(share.norm_shares))
    }),
    Column::right("normusage", "NormUsage", 11, |line| {
        line.figure(|share| {
            if share.depth == 0 {
                String::new()
            } else {
                part(share.norm_usage)
            }
        })
    }),
    Column::blank("partition", "Partition", 12),
    Column::right("rawshares", "RawShares", 10, |line| {
        if line.share.depth == 0 {
            String::new()
        } else {
            line.share.raw_shares.to_string()
        }
    }),
    Column::right("rawusage", "RawUsage", 11, |line| {
        line.figure(|share| share.raw_usage.to_string())
    }),
    Column::right("user", "User", 10, |line| {
        line.share.user.clone().unwrap_or_default()
    }),
];

const USUAL: &str = "Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare";
const LONG: &str =
    "Account,User,RawShares,NormShares,RawUsage,NormUsage,EffectvUsage,FairShare,LevelFS";

/// `sshare`.
pub(crate) fn main(words: Vec<OsString>) -> Outcome {
    let matches = command_line::parse_advising(SshareArgs::command(), words, ADVICE)?;
    let args = SshareArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    let mut out = stdout()?;
    if args.helpformat {
        for titles in COLUMNS.chunks(4) {
            writeln!(
                out,
                "{}",
                titles
                    .iter()
                    .map(|column| format!("{:<18}", column.title))
                    .collect::<String>()
            )?;
        }
        out.flush()?;
        return Ok(0);
    }
    let format = args
        .format
        .as_deref()
        .unwrap_or(if args.long { LONG } else { USUAL });
    let columns = ruled_table::choose(format, COLUMNS, ELSEWHERE)?;
    let mut client = gcli::connect("sshare")?;
    args.cluster.check(&mut client)?;
    let lines = lines(&mut client, &args)?;
    if args.json {
        return json::print_shares(&mut client, lines);
    }
    ruled_table::print(
        &mut out,
        &columns,
        &lines,
        TableArgs {
            no_header: args.table.no_header || args.headless,
            ..args.table
        },
    )?;
    out.flush()?;
    Ok(0)
}

fn names(lists: &[String]) -> Vec<String> {
    lists
        .iter()
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Names of users; numbers are looked up.
fn users(args: &SshareArgs) -> Result<Vec<String>, Failure> {
    let name_of = |uid: Uid| User::from_uid(uid).ok().flatten().map(|user| user.name);
    let name = |word: String| match word.parse() {
        Ok(uid) => name_of(Uid::from_raw(uid)).ok_or_else(|| {
            Failure::new(format_args!(
                "there is no user with the number {word} on this machine"
            ))
        }),
        Err(_) => Ok(word),
    };
    if args.users.is_empty() {
        return Ok(name_of(Uid::current()).into_iter().collect());
    }
    names(&args.users).into_iter().map(name).collect()
}

#[derive(serde::Serialize)]
struct ShareQuery {
    #[serde(skip_serializing_if = "String::is_empty")]
    account: String,
}

fn lines(client: &mut Client, args: &SshareArgs) -> Result<Vec<ShareLine>, Failure> {
    let (users, accounts) = (users(args)?, names(&args.accounts));
    let path = path_with_query(
        "/v1/shares",
        &ShareQuery {
            account: accounts.join(","),
        },
    );
    let shares = list::<ShareRow>(client, &path)?;
    let cluster = client.get::<ClusterInfo>("/v1/cluster")?.name;
    let mut lines = Vec::new();
    // The accounts above the present line that are printed, by their depths.
    let mut above: Vec<u32> = Vec::new();
    for share in shares {
        above.retain(|depth| *depth < share.depth);
        let indent = if args.only_users { 0 } else { above.len() };
        if share.user.is_none() {
            above.push(share.depth);
        }
        let meant = match &share.user {
            Some(user) => args.all || users.contains(user),
            None => !args.only_users,
        };
        if meant {
            lines.push(ShareLine {
                account: format!("{}{}", " ".repeat(indent), share.account),
                cluster: cluster.clone(),
                share,
                unused: false,
            });
        }
    }
    if args.only_users && !args.all {
        let open = open_accounts(client, &accounts)?;
        add_unused(&mut lines, &open, &users, &cluster);
    }
    Ok(lines)
}

/// Accounts without users of their own: all users may charge them.
fn open_accounts(client: &mut Client, wanted: &[String]) -> Result<Vec<String>, Failure> {
    let accounts = account::read_all(client)?;
    let is_open = |account: &&Account| {
        !account.closed
            && !account.users_only
            && account.users.is_empty()
            && (wanted.is_empty() || wanted.contains(&account.name))
    };
    Ok(accounts
        .iter()
        .filter(is_open)
        .map(|account| account.name.clone())
        .collect())
}

/// Programs look here for the accounts that a user may charge. Open accounts count too, charged or not.
fn add_unused(lines: &mut Vec<ShareLine>, open: &[String], users: &[String], cluster: &str) {
    for account in open {
        for user in users {
            if lines.iter().any(|line| {
                line.share.account == *account && line.share.user.as_ref() == Some(user)
            }) {
                continue;
            }
            let share = ShareRow {
                depth: 1,
                account: account.clone(),
                user: Some(user.clone()),
                raw_shares: 1,
                ..ShareRow::default()
            };
            lines.push(ShareLine {
                account: account.clone(),
                cluster: cluster.to_owned(),
                share,
                unused: true,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        SshareArgs::command().debug_assert();
    }
}
