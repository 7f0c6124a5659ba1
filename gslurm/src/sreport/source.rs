//! What sreport's reports share: the time that one is of, and what the controller is asked for.

use gadm::policy::account;
use gcli::answer::list;
use gcli::local_time::{self, TimeFormat};
use gcli::{ClusterChoice, Failure};
use gmodel::policy::Account;
use gmodel::{Instant, Timestamp};
use gwire::api::{ClusterInfo, ReportRow, UtilizationRow};
use gwire::client::{Client, path_with_query};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The time that a report is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub start: Timestamp,
    pub end: Timestamp,
}

impl Span {
    /// From the words behind a report's name; without any yesterday. `other` takes a word that is not about the time and says whether
    /// it knows it; `known` are all words of the report.
    ///
    /// # Errors
    /// A word that chooses nothing, a time that cannot be read, nothing between start and end, or what `other` says.
    pub fn read(
        words: &[String],
        now: Timestamp,
        known: &str,
        mut other: impl FnMut(&str, &str) -> Result<bool, Failure>,
    ) -> Result<Self, Failure> {
        let midnight = local_time::midnight(now);
        // A day ago may have been another day's hour: the midnight before it is meant.
        let mut span = Self {
            start: local_time::midnight(midnight.plus_secs(-1)),
            end: midnight,
        };
        let mut has_end = false;
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let time = |what: &str| {
                local_time::read_past(value, now)
                    .map_err(|why| Failure::usage(format_args!("{what}={value}: {why}")))
            };
            match key.to_ascii_lowercase().as_str() {
                "start" => span.start = time("start")?,
                "end" => (span.end, has_end) = (time("end")?.min(now), true),
                "where" | "all_clusters" => {}
                key if other(key, value)? => {}
                _ => {
                    return Err(Failure::usage(format_args!(
                        "{word:?} chooses nothing here. Known are {known}"
                    )));
                }
            }
        }
        if span.start < span.end {
            return Ok(span);
        }
        let times = TimeFormat::from_env();
        let (start, end) = (times.print(span.start), times.print(span.end));
        Err(Failure::usage(match has_end || span.start >= now {
            true => {
                format!("start ({start}) is not before end ({end}): there is nothing between them")
            }
            false => format!(
                "start ({start}) is not before the last midnight ({end}), with which a report ends unless end= says otherwise. Try end=now"
            ),
        }))
    }

    pub fn secs(self) -> i64 {
        self.end.secs() - self.start.secs()
    }
}

/// As in Slurm with the last second that is in it: `2026-11-20T00:00:00 - 2026-11-20T23:59:59`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = TimeFormat::from_env();
        write!(
            f,
            "{} - {}",
            times.print(self.start),
            times.print(self.end.plus_secs(-1))
        )
    }
}

/// The controller that is asked.
pub(super) struct Source {
    client: Client,
    /// The cluster's name.
    pub cluster: String,
}

/// What became of what nodes had.
#[derive(Deserialize)]
pub(super) struct Utilization {
    /// Of the time before nothing is known.
    pub known_from: Instant,
    pub rows: Vec<UtilizationRow>,
}

impl Source {
    /// # Errors
    /// There is no controller, or it is another cluster's.
    pub fn open(choice: &ClusterChoice) -> Result<Self, Failure> {
        let mut client = gcli::connect("sreport")?;
        choice.check(&mut client)?;
        let cluster = client.get::<ClusterInfo>("/v1/cluster")?.name;
        Ok(Self { client, cluster })
    }

    /// What was used, grouped by columns such as `account,user`.
    pub fn used(&mut self, by: &'static str, span: Span) -> Result<Vec<ReportRow>, Failure> {
        list(&mut self.client, &Self::path("/v1/report", Some(by), span))
    }

    pub fn utilization(&mut self, span: Span) -> Result<Utilization, Failure> {
        Ok(self
            .client
            .get(&Self::path("/v1/utilization", None, span))?)
    }

    pub fn accounts(&mut self) -> Result<Vec<Account>, Failure> {
        account::read_all(&mut self.client)
    }

    fn path(path: &str, by: Option<&'static str>, span: Span) -> String {
        #[derive(Serialize)]
        struct SpanQuery {
            #[serde(skip_serializing_if = "Option::is_none")]
            by: Option<&'static str>,
            from: Instant,
            to: Instant,
        }
        path_with_query(
            path,
            &SpanQuery {
                by,
                from: Instant(span.start),
                to: Instant(span.end),
            },
        )
    }
}

/// Names from `a,b`.
pub(super) fn names(value: &str) -> impl Iterator<Item = String> {
    value
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
}

/// Whether a name is in a list, or there is no list.
pub(super) fn among(list: &[String], name: &str) -> bool {
    list.is_empty() || list.iter().any(|one| one == name)
}

/// The account above each.
pub(super) struct AccountTree<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> AccountTree<'a> {
    pub fn of(known: &'a [Account]) -> Self {
        Self(
            known
                .iter()
                .filter_map(|account| Some((account.name.as_str(), account.parent.as_deref()?)))
                .collect(),
        )
    }

    /// An account and all above it, the nearest first.
    pub fn line(&self, account: &'a str) -> Vec<&'a str> {
        let mut seen = BTreeSet::new();
        std::iter::successors(Some(account), |at| self.0.get(at).copied())
            .take_while(|at| seen.insert(*at))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_times_it_is_yesterday_and_an_end_that_is_missing_is_named() {
        let now = Timestamp::from_secs(1_795_277_177);
        let read = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            Span::read(&words, now, "start= and end=", |_, _| Ok(false))
                .map_err(|failure| failure.text)
        };
        let span = read(&[]).unwrap();
        assert_eq!(span.end, local_time::midnight(now));
        assert!((82_800..=90_000).contains(&span.secs()), "{span:?}");
        assert_eq!(read(&["start=today", "end=now"]).unwrap().end, now);
        assert!(
            read(&["start=today"])
                .unwrap_err()
                .contains("is not before the last midnight")
        );
        for words in [&["start=2026-11-21", "end=2026-11-20"][..], &["start=now"]] {
            assert!(
                read(words)
                    .unwrap_err()
                    .contains("there is nothing between them"),
                "{words:?}"
            );
        }
        assert_eq!(
            read(&["nodes=n1"]).unwrap_err(),
            "\"nodes=n1\" chooses nothing here. Known are start= and end="
        );
    }
}
