//! Parsers of option values that several parts of a submission share.

use crate::option_words::GivenOption;
use gcli::Failure;
use gmodel::duration::TimeLimit;
use std::fmt::Display;

/// An error that names its option itself, without the name: where the option was given says it.
pub(crate) fn unnamed<T, E: Display>(flag: &str, read: Result<T, E>) -> Result<T, String> {
    read.map_err(|error| {
        let text = error.to_string();
        text.strip_prefix(flag)
            .map(|rest| rest.trim_start().to_owned())
            .unwrap_or(text)
    })
}

/// The value of an option by its parser.
pub(crate) fn parsed<T, E: Display>(
    given: Option<GivenOption>,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, Failure> {
    given
        .map(|given| parse(given.text()).map_err(|error| given.fail(error)))
        .transpose()
}

/// Not given, if empty: scripts have it so, from a variable.
pub(crate) fn filled(given: Option<GivenOption>) -> Option<GivenOption> {
    given.filter(|given| !given.text().trim().is_empty())
}

pub(crate) fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "y" => Ok(true),
        "no" | "n" => Ok(false),
        _ => Err(format!("{text:?} is neither yes nor no")),
    }
}

pub(crate) fn count(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(0) => Err("0 is too few: ask for at least 1".to_owned()),
        Ok(count) if !text.starts_with('+') => Ok(count),
        _ => Err(format!("{text:?} is not a whole number")),
    }
}

pub(crate) fn limit_secs(limit: TimeLimit) -> u32 {
    limit
        .secs()
        .map_or(u32::MAX, |secs| u32::try_from(secs).unwrap_or(u32::MAX - 1))
}
