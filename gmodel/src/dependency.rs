//! `--dependency`: which jobs must have begun or ended before one may start.
//!
//! Owns the grammar of sbatch(1): conditions joined by `,` (all of them) or `?` (any of them). Whether a condition is
//! met is for gcore, which knows the jobs.

use crate::ids::JobId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Longest text.
pub const MAX_TEXT_BYTES: usize = 4096;
/// Most jobs that one may depend on.
pub const MAX_CONDITIONS: usize = 256;
/// Most minutes of `after:JOB+MINUTES`: a year.
pub const MAX_DELAY_MINS: u32 = 525_600;

/// Conditions on other jobs. Written and stored as its text.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Dependency {
    /// `?`: one of the conditions is enough.
    pub any: bool,
    pub conditions: Vec<DependencyTerm>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DependencyTerm {
    /// No job of the same name and user that was submitted earlier is pending or running.
    Singleton,
    On {
        kind: DependencyKind,
        job: JobRef,
        delay_mins: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DependencyKind {
    /// It has begun (so many minutes ago), or was cancelled.
    After,
    /// It is over.
    AfterAny,
    /// It is over with exit code 0.
    AfterOk,
    /// It is over and failed.
    AfterNotOk,
    /// Task by task: each task waits for the other array's task of the same index to end well.
    AfterCorr,
}

/// A job as a user writes it: `17`, the array `98`, or its task `98_5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobRef {
    pub id: JobId,
    pub index: Option<u32>,
}

/// What is wrong with a dependency.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--dependency {text:?}: {why}")]
pub struct DependencyError {
    pub text: String,
    pub why: String,
}

const KINDS: [(&str, DependencyKind); 5] = [
    ("after", DependencyKind::After),
    ("afterany", DependencyKind::AfterAny),
    ("afterok", DependencyKind::AfterOk),
    ("afternotok", DependencyKind::AfterNotOk),
    ("aftercorr", DependencyKind::AfterCorr),
];
const FORMS: &str = "Write afterok:17:18, after:17+10, aftercorr:98, singleton; `,` between conditions for all of them, `?` for any";

impl Dependency {
    pub fn parse(text: &str) -> Result<Self, DependencyError> {
        let wrong = |why: String| DependencyError {
            text: text.chars().take(60).collect(),
            why,
        };
        let trimmed = text.trim();
        if trimmed.len() > MAX_TEXT_BYTES {
            return Err(wrong(format!(
                "it has {} bytes and {MAX_TEXT_BYTES} are the most",
                trimmed.len()
            )));
        }
        if trimmed.contains(',') && trimmed.contains('?') {
            return Err(wrong(
                "`,` and `?` cannot be mixed: all of the conditions, or any of them".into(),
            ));
        }
        let any = trimmed.contains('?');
        let mut conditions = Vec::new();
        for part in trimmed.split([',', '?']) {
            read_part(part.trim(), &mut conditions).map_err(wrong)?;
        }
        if conditions.len() > MAX_CONDITIONS {
            let count = conditions.len();
            return Err(wrong(format!(
                "it names {count} jobs and {MAX_CONDITIONS} are the most"
            )));
        }
        Ok(Self { any, conditions })
    }
}

fn read_part(part: &str, conditions: &mut Vec<DependencyTerm>) -> Result<(), String> {
    if part.eq_ignore_ascii_case("singleton") {
        conditions.push(DependencyTerm::Singleton);
        return Ok(());
    }
    if part.is_empty() {
        return Err(format!("a condition is empty. {FORMS}"));
    }
    let (word, jobs) = part.split_once(':').unwrap_or((part, ""));
    let Some((_, kind)) = KINDS
        .iter()
        .find(|(name, _)| word.eq_ignore_ascii_case(name))
    else {
        let hint = crate::suggest::did_you_mean(
            word,
            KINDS.iter().map(|(name, _)| *name).chain(["singleton"]),
        );
        return Err(match &*word.to_ascii_lowercase() {
            "singleton" => {
                format!("singleton names no job: it waits for all of the same name. {FORMS}")
            }
            "expand" | "afterburstbuffer" => format!("{word} is not offered here. {FORMS}"),
            _ => format!("{word:?} is no kind of dependency.{hint} {FORMS}"),
        });
    };
    if jobs.is_empty() {
        return Err(format!("{word} names no job. {FORMS}"));
    }
    for job in jobs.split(':') {
        let (job, delay_mins) = match job.split_once('+') {
            Some((job, mins)) if *kind == DependencyKind::After => {
                let mins = mins.parse().ok().filter(|mins| *mins <= MAX_DELAY_MINS);
                (
                    job,
                    mins.ok_or_else(|| {
                        format!("the minutes after + go from 0 to {MAX_DELAY_MINS}")
                    })?,
                )
            }
            Some(_) => return Err(format!("only after: takes +minutes, not {word}")),
            None => (job, 0),
        };
        let job = job
            .parse()
            .map_err(|()| format!("{job:?} is no job id. {FORMS}"))?;
        conditions.push(DependencyTerm::On {
            kind: *kind,
            job,
            delay_mins,
        });
    }
    Ok(())
}

impl FromStr for JobRef {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        fn number(text: &str) -> Result<&str, ()> {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            digits.then_some(text).ok_or(())
        }
        let (id, index) = match text.split_once('_') {
            Some((id, "*")) => (id, None),
            Some((id, index)) => (id, Some(number(index)?.parse().map_err(|_| ())?)),
            None => (text, None),
        };
        let id: u64 = number(id)?.parse().map_err(|_| ())?;
        if id == 0 {
            Err(())
        } else {
            Ok(Self {
                id: JobId(id),
                index,
            })
        }
    }
}

impl FromStr for Dependency {
    type Err = DependencyError;
    fn from_str(text: &str) -> Result<Self, DependencyError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Dependency {
    type Error = DependencyError;
    fn try_from(text: String) -> Result<Self, DependencyError> {
        Self::parse(&text)
    }
}

impl From<Dependency> for String {
    fn from(dependency: Dependency) -> String {
        dependency.to_string()
    }
}

impl fmt::Display for DependencyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = KINDS
            .iter()
            .find(|(_, kind)| kind == self)
            .map_or("", |(word, _)| word);
        f.write_str(word)
    }
}

impl fmt::Display for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}_{index}", self.id),
            None => write!(f, "{}", self.id),
        }
    }
}

impl fmt::Display for DependencyTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Singleton => f.write_str("singleton"),
            Self::On {
                kind,
                job,
                delay_mins: 0,
            } => write!(f, "{kind}:{job}"),
            Self::On {
                kind,
                job,
                delay_mins,
            } => write!(f, "{kind}:{job}+{delay_mins}"),
        }
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let between = if self.any { "?" } else { "," };
        for (at, condition) in self.conditions.iter().enumerate() {
            write!(f, "{}{condition}", if at == 0 { "" } else { between })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn check(text: &str, want: Expect) {
        want.assert_eq(&match Dependency::parse(text) {
            Ok(dependency) => dependency.to_string(),
            Err(error) => format!("error: {error}"),
        });
    }

    #[test]
    fn reads_and_prints_conditions() {
        check("afterok:17:18", expect!["afterok:17,afterok:18"]);
        check("after:17+10,singleton", expect!["after:17+10,singleton"]);
        check(
            "AFTERANY:98_5?afternotok:7",
            expect!["afterany:98_5?afternotok:7"],
        );
        check("aftercorr:98", expect!["aftercorr:98"]);
        check("afterok:98_*", expect!["afterok:98"]);
    }

    #[test]
    fn refuses_with_the_reason() {
        check(
            "afterok",
            expect![[
                r#"error: --dependency "afterok": afterok names no job. Write afterok:17:18, after:17+10, aftercorr:98, singleton; `,` between conditions for all of them, `?` for any"#
            ]],
        );
        check(
            "afterk:17",
            expect![
                "error: --dependency \"afterk:17\": \"afterk\" is no kind of dependency. Did you mean \"after\"? Write afterok:17:18, after:17+10, aftercorr:98, singleton; `,` between conditions for all of them, `?` for any"
            ],
        );
        check(
            "afterok:1,afterany:2?afterany:3",
            expect![
                "error: --dependency \"afterok:1,afterany:2?afterany:3\": `,` and `?` cannot be mixed: all of the conditions, or any of them"
            ],
        );
        check(
            "afterok:x",
            expect![[
                r#"error: --dependency "afterok:x": "x" is no job id. Write afterok:17:18, after:17+10, aftercorr:98, singleton; `,` between conditions for all of them, `?` for any"#
            ]],
        );
        check(
            "afterok:17+5",
            expect![
                "error: --dependency \"afterok:17+5\": only after: takes +minutes, not afterok"
            ],
        );
        check(
            "",
            expect![[
                r#"error: --dependency "": a condition is empty. Write afterok:17:18, after:17+10, aftercorr:98, singleton; `,` between conditions for all of them, `?` for any"#
            ]],
        );
        check(
            "singleton:17",
            expect![[
                r#"error: --dependency "singleton:17": singleton names no job: it waits for all of the same name. Write afterok:17:18, after:17+10, aftercorr:98, singleton; `,` between conditions for all of them, `?` for any"#
            ]],
        );
        assert!(Dependency::parse(&"afterok:1".repeat(1000)).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,30}|(after(ok|any|corr)?:[0-9_+*:]{1,8}[,?]?){1,3}") {
            if let Ok(dependency) = Dependency::parse(&text) {
                prop_assert_eq!(Dependency::parse(&dependency.to_string()), Ok(dependency));
            }
        }
    }
}
