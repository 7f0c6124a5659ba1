//! `sreport`: usage by accounts and users, with the figures of `gacct report`.
//!
//! Only what accounting and the history of nodes hold is reported. Source: sreport(1), and what sreport 22.05.8 printed.

use crate::ruled_table::{self, Column, TableArgs};
use clap::{CommandFactory, FromArgMatches, Parser};
use gcli::local_time;
use gcli::table::stdout;
use gcli::{ClusterChoice, Failure, Outcome, command_line};
use gmodel::Timestamp;
use gmodel::policy::Account;
use gmodel::policy::account::tree;
use gwire::api::ReportRow;
use source::{AccountTree, Source, Span, among, names};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use tres::{RULE, Tres, TresChoice, Unit};

mod cluster_use;
mod job_sizes;
mod source;
mod tres;

const ELSEWHERE: &str = "Cluster, Account, Login, Proper, TresName and Used are; gacct report has more: energy, cost, how busy GPUs were";
const KNOWN: &str = "start=, end=, accounts=, users=, format=, tree, group and topcount=";
const NO_PERCENT: &str =
    "job sizes come with percentages anyway; units are seconds, minutes and hours";
const NO_RESERVATIONS: &str = "what reservations held in the past is not kept. gacct report says what was used, sreport cluster Utilization what was idle";

const EXAMPLES: &str = "\
Reports:
  cluster AccountUtilizationByUser [tree]
  cluster UserUtilizationByAccount
  cluster Utilization; how much was planned or in maintenance is not kept, and blank
  user TopUsage [topcount=10] [group]
  job SizesByAccount [grouping=50,250,500,1000 | individual] [flatview | acctasparent] [printjobcount] [partitions=NAMES]
each with start=TIME end=TIME (else yesterday), accounts=NAMES, users=NAMES, format=COLUMNS.

This is gpupool: gacct report --help has more, by partition, GPU type and tag too.";

#[derive(Parser)]
#[command(name = "sreport", version, about = "sreport's reports of use, by gadm", after_help = EXAMPLES)]
struct SreportArgs {
    #[command(flatten)]
    table: TableArgs,
    /// Seconds, minutes or hours; percent of what the cluster had, or both: secper, minper, hourper
    #[arg(short = 't', value_name = "UNIT", default_value = "minutes")]
    unit: String,
    /// What is counted: cpu, gres/gpu; SREPORT_TRES is as this
    #[arg(short = 'T', long, value_name = "LIST")]
    tres: Option<String>,
    /// All clusters, as is usual: there is one
    #[arg(short = 'a', long = "all_clusters")]
    all_clusters: bool,
    /// Only errors are said, as is usual
    #[arg(short = 'Q', long)]
    quiet: bool,
    #[command(flatten)]
    cluster: ClusterChoice,
    /// The report
    #[arg(value_name = "WORDS")]
    words: Vec<String>,
}

/// A line of a report.
struct UsageLine {
    cluster: String,
    account: String,
    login: String,
    tres: &'static str,
    used: String,
}

impl UsageLine {
    /// As the machine has it.
    fn proper_name(&self) -> String {
        let user = nix::unistd::User::from_name(&self.login).ok().flatten();
        let gecos = user
            .map(|user| user.gecos.to_string_lossy().into_owned())
            .unwrap_or_default();
        gecos.split(',').next().unwrap_or_default().to_owned()
    }
}

macro_rules! columns {
    ($account:expr) => {
        &[
            $account,
            Column::right("cluster", "Cluster", 9, |line| line.cluster.clone()),
            Column::right("login", "Login", 9, |line| line.login.clone()),
            Column::right("properuser", "Proper Name", 15, UsageLine::proper_name),
            Column::right("tresname", "TRES Name", 14, |line| line.tres.to_owned()),
            Column::right("used", "Used", 8, |line| line.used.clone()),
        ]
    };
}

const COLUMNS: &[Column<UsageLine>] =
    columns!(Column::right("accounts", "Account", 15, |line| line
        .account
        .clone()));
const IN_TREE: &[Column<UsageLine>] = columns!(Column {
    word: "accounts",
    title: "Account",
    width: 20,
    left: true,
    text: |line| line.account.clone()
});

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportKind {
    AccountsByUser,
    UsersByAccount,
    Top,
}

/// What was asked for.
#[derive(Debug)]
struct UsageRequest {
    kind: ReportKind,
    span: Span,
    accounts: Vec<String>,
    users: Vec<String>,
    format: Option<String>,
    /// Accounts indented below their parents.
    tree: bool,
    /// A user's accounts in one line.
    group: bool,
    top: usize,
}

/// `sreport`.
pub(crate) fn main(words: Vec<OsString>) -> Outcome {
    let matches = command_line::parse_advising(SreportArgs::command(), words, &[])?;
    let args = SreportArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    let named = args
        .tres
        .clone()
        .or_else(|| std::env::var("SREPORT_TRES").ok())
        .filter(|list| !list.is_empty());
    let tres = TresChoice::of(named.as_deref())?;
    if let Some(words) = cluster_use::words(&args.words) {
        let asked = cluster_use::UtilizationRequest::of(words, local_time::now())?;
        return cluster_use::print(
            &asked,
            &args.cluster,
            Unit::of(&args.unit)?,
            &tres,
            args.table,
        );
    }
    let unit = Unit::of(&args.unit)?;
    if let Some(words) = job_sizes::words(&args.words) {
        let time = unit.time.filter(|_| !unit.is_percent);
        let unit =
            time.ok_or_else(|| Failure::usage(format_args!("-t {}: {NO_PERCENT}", args.unit)))?;
        let sizes = job_sizes::SizesRequest::of(words, local_time::now())?;
        return job_sizes::print(&sizes, &args.cluster, unit, &tres, args.table);
    }
    let asked = UsageRequest::of(&args.words, local_time::now())?;
    print_usage(&asked, &args, unit, &tres)
}

fn print_usage(asked: &UsageRequest, args: &SreportArgs, unit: Unit, tres: &TresChoice) -> Outcome {
    let usual = match (asked.kind, tres.is_named) {
        (ReportKind::AccountsByUser, false) => "Cluster,Accounts,Login,Proper,Used",
        (ReportKind::AccountsByUser, true) => "Cluster,Accounts,Login,Proper,TresName,Used",
        (_, false) => "Cluster,Login,Proper,Accounts,Used",
        (_, true) => "Cluster,Login,Proper,Accounts,TresName,Used",
    };
    let columns = ruled_table::choose(
        asked.format.as_deref().unwrap_or(usual),
        if asked.tree { IN_TREE } else { COLUMNS },
        ELSEWHERE,
    )?;
    let mut source = Source::open(&args.cluster)?;
    let used = lines(&mut source, asked, &tres.list)?;
    let had = if unit.is_percent {
        source.utilization(asked.span)?.rows
    } else {
        Vec::new()
    };
    let whole = |tres: &Tres| {
        had.iter()
            .find(|row| row.tres == tres.name())
            .map_or(0.0, |row| row.hours)
    };
    let mut lines = Vec::new();
    for (account, login, row) in used {
        lines.extend(tres.list.iter().map(|tres| UsageLine {
            cluster: source.cluster.clone(),
            account: account.clone(),
            login: login.clone(),
            tres: tres.name(),
            used: unit.text(tres.hours(&row), whole(tres)),
        }));
    }
    let mut out = stdout()?;
    if !args.table.no_header {
        let counted = if tres.is_named { "TRES" } else { "CPU" };
        writeln!(
            out,
            "{RULE}\n{}\nUsage reported in {}\n{RULE}",
            asked.title(),
            unit.title(counted)
        )?;
    }
    ruled_table::print(&mut out, &columns, &lines, args.table)?;
    out.flush()?;
    Ok(0)
}

impl UsageRequest {
    fn of(words: &[String], now: Timestamp) -> Result<Self, Failure> {
        let [about, report, words @ ..] = words else {
            return Err(Failure::usage(
                "which report? sreport cluster AccountUtilizationByUser, sreport user TopUsage; --help says more",
            ));
        };
        let kind = kind_of(about, report)?;
        let (mut accounts, mut users, mut format) = (Vec::new(), Vec::new(), None);
        let (mut tree, mut group, mut top) = (false, false, 10);
        let span = Span::read(words, now, KNOWN, |key, value| {
            match (key, kind) {
                ("format", _) => format = Some(value.to_owned()),
                ("accounts" | "account" | "acct", _) => accounts.extend(names(value)),
                ("users" | "user", _) => users.extend(names(value)),
                ("tree", ReportKind::AccountsByUser) => tree = true,
                ("group", ReportKind::Top) => group = true,
                ("topcount", ReportKind::Top) => {
                    top = value.parse().map_err(|_| {
                        Failure::usage(format_args!("{key}={value}: it is not a whole number"))
                    })?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Self {
            kind,
            span,
            accounts,
            users,
            format,
            tree,
            group,
            top,
        })
    }

    fn title(&self) -> String {
        let what = match self.kind {
            ReportKind::AccountsByUser => "Cluster/Account/User Utilization".to_owned(),
            ReportKind::UsersByAccount => "Cluster/User/Account Utilization".to_owned(),
            ReportKind::Top => format!("Top {} Users", self.top),
        };
        format!("{what} {} ({} secs)", self.span, self.span.secs())
    }
}

fn kind_of(about: &str, report: &str) -> Result<ReportKind, Failure> {
    let (about, lower) = (about.to_ascii_lowercase(), report.to_ascii_lowercase());
    let is = |kind: &str, name: &str| {
        !about.is_empty()
            && !lower.is_empty()
            && kind.starts_with(&about)
            && name.starts_with(&lower)
    };
    let refused = |why: &str| Err(Failure::usage(format_args!("{about} {report}: {why}")));
    if is("cluster", "accountutilizationbyuser") {
        Ok(ReportKind::AccountsByUser)
    } else if is("cluster", "userutilizationbyaccount") {
        Ok(ReportKind::UsersByAccount)
    } else if is("user", "topusage") {
        Ok(ReportKind::Top)
    } else if is("reservation", "utilization") {
        refused(NO_RESERVATIONS)
    } else if "job".starts_with(&about) && !about.is_empty() {
        refused(
            "sizes are summed up by accounts alone: sreport job SizesByAccount; gacct report --by user,gpus or --by tag,cpus has more",
        )
    } else if lower.contains("wckey") {
        refused("jobs have tags instead: gsub --tag, gacct report --by tag")
    } else {
        refused(
            "reports are cluster Utilization, cluster AccountUtilizationByUser, cluster UserUtilizationByAccount, user TopUsage and job SizesByAccount",
        )
    }
}

/// What one account or user used: the account with its indent, the user, the sums.
type AccountUsage = (String, String, ReportRow);

fn lines(
    source: &mut Source,
    asked: &UsageRequest,
    tres: &[Tres],
) -> Result<Vec<AccountUsage>, Failure> {
    let rows = source.used("account,user", asked.span)?;
    Ok(match asked.kind {
        ReportKind::AccountsByUser => accounts(asked, &rows, source.accounts()?),
        ReportKind::UsersByAccount | ReportKind::Top => users(asked, rows, tres),
    })
}

fn pair(row: &ReportRow) -> (&str, &str) {
    (
        row.group.first().map_or("", String::as_str),
        row.group.get(1).map_or("", String::as_str),
    )
}

fn is_meant(asked: &UsageRequest, account: &str, user: &str) -> bool {
    among(&asked.accounts, account) && among(&asked.users, user)
}

/// The usage of an account and all below it, or of all; `above` has the accounts above each row.
fn sum_below(rows: &[ReportRow], above: &[Vec<&str>], account: Option<&str>) -> Option<ReportRow> {
    let of = rows
        .iter()
        .zip(above)
        .filter(|(_, above)| account.is_none_or(|account| above.contains(&account)));
    of.fold(None, |sum: Option<ReportRow>, (row, _)| {
        let mut sum = sum.unwrap_or_default();
        sum.add(row);
        Some(sum)
    })
}

/// Each account with all below it, then its users. Where users are chosen they alone are listed.
fn accounts(
    asked: &UsageRequest,
    rows: &[ReportRow],
    mut known: Vec<Account>,
) -> Vec<AccountUsage> {
    let used: BTreeSet<&str> = rows.iter().map(|row| pair(row).0).collect();
    // Jobs were charged to accounts that are gone too.
    for name in used {
        if !known.iter().any(|account| account.name == name) {
            known.push(Account {
                name: name.to_owned(),
                ..Account::default()
            });
        }
    }
    let parents = AccountTree::of(&known);
    let above: Vec<Vec<&str>> = rows.iter().map(|row| parents.line(pair(row).0)).collect();
    let sum_of = |account: Option<&str>| sum_below(rows, &above, account);
    let indented = |name: &str, depth: usize| {
        format!(
            "{}{name}",
            if asked.tree {
                " ".repeat(depth)
            } else {
                String::new()
            }
        )
    };
    let mut lines = Vec::new();
    let lists_accounts = asked.users.is_empty();
    if let Some(sum) = sum_of(None).filter(|_| lists_accounts && asked.accounts.is_empty()) {
        lines.push(("root".to_owned(), String::new(), sum));
    }
    for (depth, account) in tree(&known) {
        if let Some(sum) = sum_of(Some(&account.name))
            .filter(|_| lists_accounts && is_meant(asked, &account.name, ""))
        {
            lines.push((indented(&account.name, depth + 1), String::new(), sum));
        }
        for row in rows.iter().filter(|row| {
            pair(row).0 == account.name && is_meant(asked, &account.name, pair(row).1)
        }) {
            lines.push((
                indented(&account.name, depth + 2),
                pair(row).1.to_owned(),
                row.clone(),
            ));
        }
    }
    lines
}

/// Users by what they used of the first that is counted, the most first.
fn users(asked: &UsageRequest, rows: Vec<ReportRow>, tres: &[Tres]) -> Vec<AccountUsage> {
    let mut lines: Vec<AccountUsage> = Vec::new();
    for row in rows {
        let (account, user) = pair(&row);
        if !is_meant(asked, account, user) {
            continue;
        }
        let (account, user) = (account.to_owned(), user.to_owned());
        match lines
            .iter_mut()
            .find(|(_, known, _)| asked.group && *known == user)
        {
            Some((accounts, _, sum)) => {
                accounts.push_str(&format!(",{account}"));
                sum.add(&row);
            }
            None => lines.push((account, user, row)),
        }
    }
    let hours = |line: &AccountUsage| tres.first().map_or(0.0, |tres| tres.hours(&line.2));
    lines.sort_by(|a, b| hours(b).total_cmp(&hours(a)));
    if asked.kind == ReportKind::Top {
        lines.truncate(asked.top);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        SreportArgs::command().debug_assert();
    }

    #[test]
    fn what_is_not_kept_is_refused_and_units_may_be_shortened() {
        assert!(
            kind_of("reservation", "utilization")
                .unwrap_err()
                .text
                .contains("held in the past is not kept")
        );
        assert!(
            kind_of("job", "sizesbywckey")
                .unwrap_err()
                .text
                .contains("by accounts alone")
        );
        assert!(
            kind_of("cluster", "WCKeyUtilizationByUser")
                .unwrap_err()
                .text
                .contains("jobs have tags instead")
        );
        assert_eq!(
            (
                kind_of("cluster", "AccountUtil").ok(),
                kind_of("user", "top").ok()
            ),
            (Some(ReportKind::AccountsByUser), Some(ReportKind::Top))
        );
        let text = |unit: &str| {
            Unit::of(unit)
                .map(|unit| format!("{}: {}", unit.title("CPU"), unit.text(1.5, 30.0)))
                .unwrap_or_else(|failure| failure.text)
        };
        assert_eq!(text("hour"), "CPU Hours: 2");
        assert_eq!(
            (text("SEC").as_str(), text("m").as_str()),
            ("CPU Seconds: 5400", "CPU Minutes: 90")
        );
        assert_eq!(
            (text("per").as_str(), text("Percent").as_str()),
            ("Percentage of Total: 5.00%", "Percentage of Total: 5.00%")
        );
        assert_eq!(text("MinPer"), "CPU Minutes/Percentage of Total: 90(5.00%)");
        assert_eq!(
            (text("secper").as_str(), text("hourper").as_str()),
            (
                "CPU Seconds/Percentage of Total: 5400(5.00%)",
                "CPU Hours/Percentage of Total: 2(5.00%)"
            )
        );
        assert!(text("days").contains("units are seconds") && text("").contains("units are"));
        assert_eq!(Unit::of("percent").unwrap().text(0.0, 0.0), "0.00%");
        assert!(
            TresChoice::of(Some("gres/gpu:h100"))
                .unwrap_err()
                .text
                .contains("gpu-type")
                && TresChoice::of(Some("mem")).is_err()
        );
    }
}
