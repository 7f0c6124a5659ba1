//! `gadm` called as `sacctmgr` or `sshare`: the listings that programs ask of them, who may charge which account.
//!
//! It lists only: accounts, users and QOS are made with `gadm account`, `user` and `qos`. Source: sacctmgr(1), sshare(1).

use clap::{CommandFactory, FromArgMatches, Parser};
use gcli::column_format::{Spec, parse_percent_names};
use gcli::table::stdout;
use gcli::{Failure, Outcome, cluster_choice, command_line};
use gwire::api::{AccountRow, ClusterInfo};
use gwire::client::Client;
use serde::Deserialize;
use std::ffi::OsString;
use std::io::Write;

const ELSEWHERE: &str = "gadm account, user, qos and quota make and change what there is; gadm share shows shares and use";

#[derive(Parser)]
#[command(name = "sacctmgr", about = "What programs ask of sacctmgr and sshare, by gadm", disable_help_flag = true)]
struct Args {
    /// No header line
    #[arg(short = 'n', long, visible_alias = "noheader", visible_short_alias = 'h')]
    no_header: bool,
    /// Columns ended by |
    #[arg(short = 'p', long)]
    parsable: bool,
    /// Columns parted by |
    #[arg(short = 'P', long)]
    parsable2: bool,
    /// Users with their accounts
    #[arg(short = 's', long)]
    associations: bool,
    /// Ask nothing, as is usual
    #[arg(short = 'i', long)]
    immediate: bool,
    /// Lines of users, not of accounts (sshare)
    #[arg(short = 'U', long = "Users")]
    users: bool,
    /// Of these users (sshare)
    #[arg(short = 'u', long, value_name = "NAMES")]
    user: Option<String>,
    /// Columns, with widths: Account%20,User
    #[arg(short = 'o', long, value_name = "COLUMNS")]
    format: Option<String>,
    /// list user|account|assoc|cluster [NAMES] [user=NAMES] [account=NAMES] [format=COLUMNS]
    #[arg(value_name = "WORDS")]
    words: Vec<String>,
    /// Show this help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// A user who may charge an account, or the account itself: then without a user.
#[derive(Clone, Debug, Default)]
struct Association {
    account: String,
    description: String,
    user: String,
    default_account: String,
    shares: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Account,
    Cluster,
    DefaultAccount,
    Description,
    Shares,
    User,
}

const COLUMNS: [(&str, Column, usize); 8] = [
    ("account", Column::Account, 20),
    ("cluster", Column::Cluster, 10),
    ("defaultaccount", Column::DefaultAccount, 10),
    ("description", Column::Description, 20),
    ("fairshare", Column::Shares, 9),
    ("rawshares", Column::Shares, 10),
    ("share", Column::Shares, 9),
    ("user", Column::User, 10),
];

impl Column {
    fn title(self) -> &'static str {
        match self {
            Self::Account => "Account",
            Self::Cluster => "Cluster",
            Self::DefaultAccount => "Def Acct",
            Self::Description => "Descr",
            Self::Shares => "Share",
            Self::User => "User",
        }
    }

    fn text<'r>(self, row: &'r Association, cluster: &'r str) -> std::borrow::Cow<'r, str> {
        match self {
            Self::Account => row.account.as_str().into(),
            Self::Cluster => cluster.into(),
            Self::DefaultAccount => row.default_account.as_str().into(),
            Self::Description => row.description.as_str().into(),
            Self::Shares => row.shares.to_string().into(),
            Self::User => row.user.as_str().into(),
        }
    }
}

/// `gadm` under one of these names.
///
/// # Errors
/// What stood in the way, with the exit code.
pub(crate) fn main(name: &str, words: Vec<OsString>) -> Outcome {
    let matches = command_line::parse_advising(Args::command(), words, &[])?;
    let args = Args::from_arg_matches(&matches).map_err(Failure::usage)?;
    let mut client = gcli::connect("gadm")?;
    let asked = if name == "sshare" { of_sshare(&args)? } else { of_sacctmgr(&args)? };
    cluster_choice::check(&asked.clusters, &mut client)?;
    print(&mut client, &args, &asked)
}

/// What is to be listed.
struct Asked {
    kind: Kind,
    users: Vec<String>,
    accounts: Vec<String>,
    /// As `cluster=` names them.
    clusters: String,
    columns: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Users,
    Accounts,
    Associations,
    Cluster,
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// `sshare -U`: the associations of who asks, or of `-u`.
fn of_sshare(args: &Args) -> Result<Asked, Failure> {
    if let Some(word) = args.words.first() {
        return Err(Failure::usage(format_args!("{word:?} chooses nothing here. Known are -U, -u NAMES and -o COLUMNS; {ELSEWHERE}")));
    }
    let own = || nix::unistd::User::from_uid(nix::unistd::Uid::current()).ok().flatten().map(|user| user.name).into_iter().collect();
    let users = args.user.as_deref().map_or_else(own, list);
    let kind = if args.users { Kind::Users } else { Kind::Associations };
    Ok(Asked { kind, users, accounts: Vec::new(), clusters: String::new(), columns: args.format.clone().unwrap_or_else(|| "Account,User,RawShares".to_owned()) })
}

fn of_sacctmgr(args: &Args) -> Result<Asked, Failure> {
    if args.users || args.user.is_some() {
        return Err(Failure::usage("-U and -u are sshare's: here user=NAMES chooses"));
    }
    let [verb, entity, words @ ..] = &args.words[..] else { return Err(Failure::usage(format_args!("list what? user, account, assoc or cluster. {ELSEWHERE}"))) };
    if !["list", "show"].contains(&verb.to_ascii_lowercase().as_str()) {
        return Err(Failure::usage(format_args!("{verb:?} is not done here: {ELSEWHERE}")));
    }
    let (kind, usual) = match entity.to_ascii_lowercase().as_str() {
        "user" | "users" if args.associations => (Kind::Users, "User,DefaultAccount,Cluster,Account,Share"),
        "user" | "users" => (Kind::Users, "User,DefaultAccount"),
        "account" | "accounts" => (Kind::Accounts, "Account,Description"),
        "cluster" | "clusters" => (Kind::Cluster, "Cluster"),
        assoc if assoc.starts_with("assoc") => (Kind::Associations, "Cluster,Account,User,Share"),
        _ => return Err(Failure::usage(format_args!("{entity:?} is not listed here: {ELSEWHERE}"))),
    };
    let mut asked = Asked { kind, users: Vec::new(), accounts: Vec::new(), clusters: String::new(), columns: args.format.clone().unwrap_or_else(|| usual.to_owned()) };
    for word in words.iter().filter(|word| !["where", "withassoc"].contains(&word.to_ascii_lowercase().as_str())) {
        let (key, value) = word.split_once('=').map_or(("", word.as_str()), |(key, value)| (key, value));
        match (key.to_ascii_lowercase().as_str(), kind) {
            ("format", _) => asked.columns = value.to_owned(),
            ("user" | "users", _) | ("" | "name" | "names", Kind::Users) => asked.users.extend(list(value)),
            ("account" | "accounts", _) | ("" | "name" | "names", Kind::Accounts) => asked.accounts.extend(list(value)),
            ("cluster" | "clusters", _) => asked.clusters = value.to_owned(),
            _ => return Err(Failure::usage(format_args!("{word:?} chooses nothing here. Known are user=, account= and format="))),
        }
    }
    Ok(asked)
}

fn print(client: &mut Client, args: &Args, asked: &Asked) -> Outcome {
    #[derive(Deserialize)]
    struct Answer {
        accounts: Vec<AccountRow>,
    }
    let known = |name: &str| {
        let lower = name.to_ascii_lowercase();
        let lower = if lower == "defaultacct" { "defaultaccount" } else { &lower };
        // Beginnings are enough, as in sacctmgr.
        let found = COLUMNS.iter().find(|(known, ..)| *known == lower).or_else(|| COLUMNS.iter().find(|(known, ..)| known.starts_with(lower)));
        found.map(|(_, column, width)| (*column, *width)).ok_or_else(|| format!("there is no column {name:?} here: {ELSEWHERE}"))
    };
    let columns = parse_percent_names(&asked.columns, known, |(_, width)| Spec { width: Some(*width), right: true, cut_mark: "+" });
    let columns: Vec<(Column, Spec)> = columns.map_err(Failure::new)?.into_iter().map(|((column, _), spec)| (column, spec)).collect();
    let cluster = client.get::<ClusterInfo>("/v1/cluster")?.name;
    let rows = match asked.kind {
        Kind::Cluster => vec![Association::default()],
        _ => rows(&client.get::<Answer>("/v1/accounts")?.accounts, asked),
    };
    let parted = args.parsable || args.parsable2;
    let mut out = stdout()?;
    if !args.no_header {
        let titles: Vec<_> = columns.iter().map(|(column, _)| column.title().into()).collect();
        writeln!(out, "{}", line(&columns, &titles, args))?;
        if !parted {
            let rules: String = columns.iter().map(|(_, spec)| format!("{} ", "-".repeat(spec.width.unwrap_or(10)))).collect();
            writeln!(out, "{rules}")?;
        }
    }
    for row in &rows {
        let texts: Vec<_> = columns.iter().map(|(column, _)| column.text(row, &cluster)).collect();
        writeln!(out, "{}", line(&columns, &texts, args))?;
    }
    out.flush()?;
    Ok(0)
}

fn line(columns: &[(Column, Spec)], texts: &[std::borrow::Cow<'_, str>], args: &Args) -> String {
    if args.parsable || args.parsable2 {
        let text = texts.iter().map(|text| gcli::printable::printable(text)).collect::<Vec<_>>().join("|");
        return if args.parsable2 { text } else { format!("{text}|") };
    }
    let mut line = String::new();
    for ((_, spec), text) in columns.iter().zip(texts) {
        spec.fill(text, &mut line);
        line.push(' ');
    }
    line
}

/// Who may charge what. An account without users is open to everybody, and so to each user that is asked for.
fn rows(accounts: &[AccountRow], asked: &Asked) -> Vec<Association> {
    let mut rows = Vec::new();
    let meant = |account: &&AccountRow| !account.closed && (asked.accounts.is_empty() || asked.accounts.contains(&account.name));
    for account in accounts.iter().filter(meant) {
        let of = |user: &str, shares: u32| Association {
            account: account.name.clone(),
            description: account.description.clone(),
            user: user.to_owned(),
            default_account: default_of(accounts, user),
            shares,
        };
        if asked.kind == Kind::Accounts || asked.kind == Kind::Associations && asked.users.is_empty() {
            rows.push(of("", account.shares));
        }
        if asked.kind == Kind::Accounts {
            continue;
        }
        let wanted = |user: &str| asked.users.is_empty() || asked.users.iter().any(|one| one == user);
        rows.extend(account.users.iter().filter(|(user, _)| wanted(user)).map(|(user, row)| of(user, row.shares)));
        if account.users.is_empty() {
            rows.extend(asked.users.iter().map(|user| of(user, 1)));
        }
    }
    rows
}

fn default_of(accounts: &[AccountRow], user: &str) -> String {
    let own = accounts.iter().find(|account| account.users.get(user).is_some_and(|row| row.default));
    own.map(|account| account.name.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gwire::api::UserRow;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_user_may_charge_their_accounts_and_those_that_are_open_to_all() {
        let account = |name: &str, users: &[(&str, bool)]| AccountRow {
            name: name.to_owned(),
            users: users.iter().map(|(user, default)| ((*user).to_owned(), UserRow { default: *default, ..UserRow::default() })).collect(),
            ..AccountRow::default()
        };
        let closed = AccountRow { closed: true, ..account("old", &[]) };
        let accounts = [account("lab", &[("ada", true), ("bob", false)]), account("open", &[]), account("other", &[("bob", true)]), closed];
        let of = |kind: Kind, users: &[&str]| {
            let asked = Asked { kind, users: users.iter().map(|user| (*user).to_owned()).collect(), accounts: Vec::new(), clusters: String::new(), columns: String::new() };
            rows(&accounts, &asked).iter().map(|row| format!("{}/{}/{}", row.account, row.user, row.default_account)).collect::<Vec<_>>()
        };
        assert_eq!(of(Kind::Users, &["ada"]), ["lab/ada/lab", "open/ada/lab"]);
        assert_eq!(of(Kind::Users, &["eve"]), ["open/eve/"], "of no account but the open one");
        assert_eq!(of(Kind::Accounts, &[]), ["lab//", "open//", "other//"]);
        assert_eq!(of(Kind::Associations, &[]), ["lab//", "lab/ada/lab", "lab/bob/other", "open//", "other//", "other/bob/other"]);
    }
}
