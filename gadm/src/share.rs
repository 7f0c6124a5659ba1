//! `gadm share`: the fair tree as sshare(1) lists it, the arithmetic of a user's standing in words, and how it develops.

use gcli::local_time::TimeFormat;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Failure, Outcome};
use gmodel::duration::squeue_time;
use gwire::api::ShareRow;
use gwire::client::{Client, path_with_query};
use serde::Deserialize;
use std::fmt::Write as _;
use std::io::Write;

/// Options of `gadm share`.
#[derive(clap::Args)]
pub(crate) struct ShareArgs {
    /// Only these users, with the arithmetic of their standing in words
    #[arg(short, long, value_name = "USERS")]
    users: Option<String>,
    /// Yourself, as --users
    #[arg(short = 'U', long, conflicts_with = "users")]
    me: bool,
    /// Only these accounts
    #[arg(short = 'A', long, value_name = "ACCOUNTS")]
    accounts: Option<String>,
    /// Parts of all use and level fair share too
    #[arg(short, long)]
    long: bool,
    /// No header line
    #[arg(short = 'n', long)]
    noheader: bool,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize, Default)]
struct Query {
    #[serde(skip_serializing_if = "String::is_empty")]
    user: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    account: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    outlook: bool,
}

#[derive(Deserialize)]
struct ShareTree {
    half_life_secs: u64,
    shares: Vec<ShareRow>,
}

pub(crate) fn run(client: &mut Client, args: &ShareArgs) -> Outcome {
    let user = if args.me {
        own_name()?
    } else {
        args.users.clone().unwrap_or_default()
    };
    let query = Query {
        outlook: !user.is_empty(),
        user,
        account: args.accounts.clone().unwrap_or_default(),
    };
    let path = path_with_query("/v1/shares", &query);
    if args.json {
        let answer: serde_json::Value = client.get(&path)?;
        let mut out = stdout()?;
        writeln!(out, "{answer}")?;
        out.flush()?;
        return Ok(0);
    }
    let answer: ShareTree = client.get(&path)?;
    print_table(&answer.shares, args)?;
    if query.outlook {
        // The accounts above are part of the arithmetic, whatever was asked for.
        let all: ShareTree = client.get("/v1/shares")?;
        let times = TimeFormat::from_env();
        let mut out = stdout()?;
        for row in answer.shares.iter().filter(|row| row.user.is_some()) {
            out.write_all(
                format!(
                    "\n{}",
                    in_words(row, &all.shares, all.half_life_secs, &times)
                )
                .as_bytes(),
            )?;
        }
        out.flush()?;
        if !answer.shares.iter().any(|row| row.user.is_some()) {
            return Err(Failure::new(format_args!(
                "{} is in no account, has used nothing and has no job",
                query.user
            )));
        }
    }
    Ok(0)
}

fn own_name() -> Result<String, Failure> {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid())
        .ok()
        .flatten();
    user.map(|user| user.name)
        .ok_or_else(|| Failure::new("you have no name on this machine"))
}

fn print_table(rows: &[ShareRow], args: &ShareArgs) -> Outcome {
    let mut columns = vec![Column::whole("ACCOUNT"), Column::whole("USER")];
    let numbers: &[&str] = if args.long {
        &[
            "RAWSHARES",
            "NORMSHARES",
            "RAWUSAGE",
            "NORMUSAGE",
            "EFFECTVUSAGE",
            "FAIRSHARE",
            "LEVELFS",
        ]
    } else {
        &[
            "RAWSHARES",
            "NORMSHARES",
            "RAWUSAGE",
            "EFFECTVUSAGE",
            "FAIRSHARE",
        ]
    };
    columns.extend(numbers.iter().map(|title| Column::number(title)));
    let mut table = TableWriter::new(stdout()?, columns, Screen::of_stdout(), !args.noheader);
    for row in rows {
        let part = |part: f64| format!("{part:.6}");
        // As in sshare, the root has no shares of its own.
        let root = row.depth == 0;
        let mut cells = vec![
            format!("{}{}", " ".repeat(row.depth as usize), row.account).into(),
            row.user.clone().unwrap_or_default().into(),
            if root {
                "".into()
            } else {
                row.raw_shares.to_string().into()
            },
            part(row.norm_shares).into(),
            row.raw_usage.to_string().into(),
        ];
        if args.long {
            cells.push(part(row.norm_usage).into());
        }
        cells.push(part(row.effective_usage).into());
        cells.push(row.fair_share.map(part).unwrap_or_default().into());
        if args.long {
            cells.push(if root {
                "".into()
            } else {
                level(row.level_fs).into()
            });
        }
        table.row(cells)?;
    }
    table.finish()?;
    Ok(0)
}

fn level(level: Option<f64>) -> String {
    level.map_or_else(|| "inf".to_owned(), |level| format!("{level:.6}"))
}

/// The accounts above a line, nearest first, without the root. Lines come in the order of the tree.
fn line_above<'a>(row: &ShareRow, all: &'a [ShareRow]) -> Vec<&'a ShareRow> {
    let Some(at) = all
        .iter()
        .position(|other| other.account == row.account && other.user == row.user)
    else {
        return Vec::new();
    };
    let mut line = Vec::new();
    let mut depth = row.depth;
    for other in all[..at].iter().rev().filter(|other| other.user.is_none()) {
        if other.depth < depth && other.depth > 0 {
            depth = other.depth;
            line.push(other);
        }
    }
    line
}

/// Lines below the same account.
fn siblings<'a>(row: &'a ShareRow, all: &'a [ShareRow]) -> Vec<&'a ShareRow> {
    let above = line_above(row, all)
        .first()
        .map_or("root", |up| up.account.as_str());
    let is_below = |other: &&ShareRow| {
        other.depth == row.depth
            && line_above(other, all)
                .first()
                .map_or("root", |up| up.account.as_str())
                == above
    };
    all.iter().filter(is_below).collect()
}

fn in_words(row: &ShareRow, all: &[ShareRow], half_life_secs: u64, times: &TimeFormat) -> String {
    let user = row.user.as_deref().unwrap_or_default();
    let mut text = format!("{user} in {}:\n", row.account);
    let mut add = |who: &str, row: &ShareRow| {
        let siblings = siblings(row, all);
        let (shares, usage) = (
            siblings.iter().map(|one| one.raw_shares).sum::<u32>(),
            siblings.iter().map(|one| one.raw_usage).sum::<u64>(),
        );
        let _ = writeln!(
            text,
            "  {who}: {} of {shares} shares ({:.6}); {} ({:.6}); level fair share {:.6} / {:.6} = {}",
            row.raw_shares,
            row.norm_shares,
            part_of(row.raw_usage, usage),
            row.effective_usage,
            row.norm_shares,
            row.effective_usage,
            level(row.level_fs)
        );
    };
    for above in line_above(row, all).iter().rev() {
        add(&above.account, above);
    }
    add(user, row);
    let users = all.iter().filter(|one| one.user.is_some()).count();
    let rank = row.rank.unwrap_or_default();
    let _ = writeln!(
        text,
        "  accounts are ranked by level fair share, level by level, then their users: {user} has rank {rank}, {users} is the best; fair share {rank} / {users} = {:.6}",
        row.fair_share.unwrap_or_default()
    );
    let later: Vec<String> = row
        .outlook
        .iter()
        .filter_map(|later| {
            Some(format!(
                "{:.6} at {}",
                later.fair_share,
                times.print(later.at?.0)
            ))
        })
        .collect();
    if !later.is_empty() {
        let half_life = squeue_time(half_life_secs);
        let _ = writeln!(
            text,
            "  if {user} runs nothing and the others go on as of late: {} (usage halves in {half_life})",
            later.join(", ")
        );
    }
    text
}

/// `12.5 of 40.0 GPU-hours`; in seconds while hours would say nothing of the part.
fn part_of(gpu_secs: u64, all: u64) -> String {
    const IN_SECONDS: u64 = 10 * 3600;
    if all < IN_SECONDS {
        return format!("{gpu_secs} of {all} GPU-seconds");
    }
    let hours = |secs: u64| secs as f64 / 3600.0;
    format!("{:.1} of {:.1} GPU-hours", hours(gpu_secs), hours(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::{Instant, Timestamp};
    use gwire::api::OutlookRow;

    #[test]
    fn a_standing_is_told_from_the_top_to_the_user() {
        let row =
            |depth: u32, account: &str, user: Option<&str>, shares: u32, usage: u64| ShareRow {
                depth,
                account: account.into(),
                user: user.map(str::to_owned),
                raw_shares: shares,
                raw_usage: usage,
                norm_shares: 0.5,
                effective_usage: 0.25,
                level_fs: Some(2.0),
                rank: user.map(|_| 1),
                fair_share: user.map(|_| 0.5),
                ..ShareRow::default()
            };
        let all = [
            row(0, "root", None, 1, 36_060),
            row(1, "nlp", None, 1, 3_660),
            row(1, "top", None, 3, 32_400),
            row(2, "vision", None, 2, 32_400),
            row(3, "vision", Some("ada"), 1, 18_000),
            row(3, "vision", Some("eve"), 3, 14_400),
        ];
        let later = OutlookRow {
            at: Some(Instant(Timestamp::from_secs(1_795_165_527))),
            fair_share: 0.75,
            ..OutlookRow::default()
        };
        let ada = ShareRow {
            outlook: vec![later],
            ..all[4].clone()
        };
        let text = in_words(&ada, &all, 604_800, &TimeFormat::Standard);
        let text = text.split_once(" at ").unwrap().0;
        expect_test::expect![[r#"
            ada in vision:
              top: 3 of 4 shares (0.500000); 9.0 of 10.0 GPU-hours (0.250000); level fair share 0.500000 / 0.250000 = 2.000000
              vision: 2 of 2 shares (0.500000); 32400 of 32400 GPU-seconds (0.250000); level fair share 0.500000 / 0.250000 = 2.000000
              ada: 1 of 4 shares (0.500000); 18000 of 32400 GPU-seconds (0.250000); level fair share 0.500000 / 0.250000 = 2.000000
              accounts are ranked by level fair share, level by level, then their users: ada has rank 1, 2 is the best; fair share 1 / 2 = 0.500000
              if ada runs nothing and the others go on as of late: 0.750000"#]]
        .assert_eq(text);
    }
}
