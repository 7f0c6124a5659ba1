//! Tokens of users, as `gq token` and `gadm token` make, list and revoke them.

use crate::answer::print_json;
use crate::failure::{Failure, Outcome};
use crate::local_time::TimeFormat;
use crate::table::{Column, Screen, TableWriter, stdout};
use gmodel::{Scope, TokenId};
use gwire::api::{ChangeReply, TokenState, UserTokenReply, UserTokenRequest, UserTokenRow};
use gwire::client::{Client, path_with_query};
use serde::Serialize;
use std::io::Write;

/// A token that is to be made.
#[derive(clap::Args)]
pub struct NewToken {
    /// What it is good for: read, submit, cancel, report, metrics; and operate, for operators
    #[arg(long, value_name = "SCOPES", value_delimiter = ',', required = true)]
    scope: Vec<Scope>,
    /// When it ends: 30d, 12h, 2w
    #[arg(long, value_name = "TIME", value_parser = ttl_secs)]
    expires: u64,
    /// GPU-hours that its jobs may use in all
    #[arg(long, value_name = "HOURS", value_parser = gpu_secs)]
    gpu_hours: Option<u64>,
    /// Jobs that it may have in the queue and running, array tasks one by one; 1000 otherwise
    #[arg(long, value_name = "JOBS")]
    jobs: Option<u32>,
    /// Only for jobs of these accounts
    #[arg(long, value_name = "ACCOUNTS", value_delimiter = ',')]
    account: Vec<String>,
    /// Only for jobs in these partitions
    #[arg(long, value_name = "PARTITIONS", value_delimiter = ',')]
    partition: Vec<String>,
    /// What it is for
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    note: String,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

/// Which tokens are listed.
#[derive(clap::Args)]
pub struct TokenListing {
    /// Those that ended too, for a month
    #[arg(long)]
    all: bool,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

/// Which token is revoked.
#[derive(clap::Args)]
pub struct TokenRevocation {
    /// Its id, as it is listed
    #[arg(value_name = "ID")]
    id: TokenId,
}

/// Tokens of this user, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenOwner {
    Myself,
    Everyone,
}

/// `30d`, `12h`, `45m`, `2w`.
fn ttl_secs(text: &str) -> Result<u64, String> {
    let unit = |letter| match letter {
        'm' => Some(60),
        'h' => Some(3600),
        'd' => Some(86_400),
        'w' => Some(7 * 86_400),
        _ => None,
    };
    let read = || {
        let (at, letter) = text.char_indices().last()?;
        let count: u64 = text[..at].parse().ok()?;
        count.checked_mul(unit(letter)?).filter(|secs| *secs > 0)
    };
    read().ok_or_else(|| {
        "a token ends: 30d is thirty days, 12h twelve hours, 2w two weeks".to_owned()
    })
}

/// `200`, `0.5`.
fn gpu_secs(text: &str) -> Result<u64, String> {
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let read = || {
        let whole: u64 = whole.parse().ok().filter(|_| digits(whole))?;
        let part = Some(part).filter(|part| digits(part) && part.len() <= 6)?;
        let millionths: u64 = format!("{part:0<6}").parse().ok()?;
        whole
            .checked_mul(3600)?
            .checked_add(millionths * 3600 / 1_000_000)
    };
    read().ok_or_else(|| "GPU-hours are a number, as 200 or 0.5".to_owned())
}

/// Makes a token and prints it, once. `user`: for another user than the one who asks.
///
/// # Errors
/// The controller's refusal.
pub fn make(
    client: &mut Client,
    program: &'static str,
    user: Option<String>,
    token: NewToken,
) -> Outcome {
    let json = token.json;
    let wanted = UserTokenRequest {
        user,
        scopes: token.scope,
        accounts: token.account,
        partitions: token.partition,
        ttl_secs: token.expires,
        gpu_secs: token.gpu_hours,
        jobs: token.jobs,
        note: token.note,
    };
    // Asked twice it would be two tokens.
    let made: UserTokenReply = client.post("/v1/user-tokens", &wanted)?;
    let mut out = stdout()?;
    if json {
        serde_json::to_writer(&mut out, &made).map_err(Failure::new)?;
        writeln!(out)?;
        out.flush()?;
        return Ok(0);
    }
    writeln!(out, "{}", made.token)?;
    out.flush()?;
    let until = TimeFormat::from_env().print(made.expires.0);
    writeln!(
        std::io::stderr(),
        "{program}: token {} of {}, until {until}. It is told this once. Keep it in ~/.config/gpupool/token, mode 0600, on the other machine; in \
         ~/.config/gpupool/gpupool.toml there: controller = \"{}\"",
        made.id,
        made.user,
        made.controller
    )?;
    Ok(0)
}

#[derive(Serialize)]
struct TokenQuery {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    all: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    everyone: bool,
}

/// Lists tokens: never what proves them.
///
/// # Errors
/// The controller's refusal.
pub fn list(client: &mut Client, owner: TokenOwner, listing: &TokenListing) -> Outcome {
    let query = TokenQuery {
        all: listing.all,
        everyone: owner == TokenOwner::Everyone,
    };
    let path = path_with_query("/v1/user-tokens", &query);
    if listing.json {
        return print_json(client, &path);
    }
    let rows = crate::answer::list::<UserTokenRow>(client, &path)?;
    let columns = vec![
        Column::whole("ID"),
        Column::text("USER"),
        Column::text("STATE"),
        Column::text("SCOPES"),
        Column::text("EXPIRES"),
        Column::whole("GPU_HOURS"),
        Column::whole("JOBS"),
        Column::text("ONLY"),
        Column::text("USED"),
        Column::text("NOTE"),
    ];
    let mut table = TableWriter::new(stdout()?, columns, Screen::of_stdout(), true);
    let times = TimeFormat::from_env();
    for row in rows {
        let used = row.used_on.map(|day| day.0.to_string());
        table.row(vec![
            row.id.to_string().into(),
            row.user.clone().into(),
            state_text(row.state).into(),
            joined(row.scopes.iter().map(|scope| scope.name())).into(),
            times.print(row.expires.0).into(),
            hours_text(&row).into(),
            format!("{}/{}", row.jobs_now, row.jobs).into(),
            joined(
                row.accounts
                    .iter()
                    .chain(&row.partitions)
                    .map(String::as_str),
            )
            .into(),
            // The day alone: more is not kept.
            used.map_or("never".into(), |day| {
                day.chars().take(10).collect::<String>()
            })
            .into(),
            row.note.into(),
        ])?;
    }
    table.finish()?;
    Ok(0)
}

/// `3.5+4/200`: used, promised to jobs by their limits, and the cap.
fn hours_text(row: &UserTokenRow) -> String {
    let hours = |secs: u64| {
        let text = format!("{}.{:02}", secs / 3600, secs % 3600 / 36);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let cap = row.gpu_secs.map_or("none".to_owned(), hours);
    let (used, promised) = (hours(row.gpu_secs_used), hours(row.gpu_secs_promised));
    format!("{used}+{promised}/{cap}")
}

fn state_text(state: TokenState) -> &'static str {
    match state {
        TokenState::Live => "live",
        TokenState::Expired => "expired",
        TokenState::Revoked => "revoked",
    }
}

fn joined<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.collect::<Vec<_>>().join(",")
}

/// Takes a token back: from then on nothing is done with it.
///
/// # Errors
/// The controller's refusal.
pub fn revoke(client: &mut Client, revocation: &TokenRevocation) -> Outcome {
    let path = format!("/v1/user-tokens/{}/revoke", revocation.id);
    let _: ChangeReply = client.post_repeatable(&path, &serde_json::json!({}))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_an_end_in_days_and_a_cap_in_hours() {
        assert_eq!(ttl_secs("30d"), Ok(30 * 86_400));
        assert_eq!(ttl_secs("45m"), Ok(2700));
        for bad in [
            "",
            "d",
            "30",
            "0d",
            "-1d",
            "1.5d",
            "30x",
            "99999999999999999999d",
            "1ü",
        ] {
            assert!(ttl_secs(bad).is_err(), "{bad:?}");
        }
        assert_eq!(gpu_secs("200"), Ok(720_000));
        assert_eq!(gpu_secs("0.5"), Ok(1800));
        assert_eq!(gpu_secs("0"), Ok(0));
        for bad in ["", "-1", "+1", "1e3", "0x1", "1.2.3", "."] {
            assert!(gpu_secs(bad).is_err(), "{bad:?}");
        }
    }
}
