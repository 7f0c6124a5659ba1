//! Query strings: known keys only, each once; anything else is refused with "did you mean".
//!
//! Owns the reading of `?a=b&c=d` and its value forms; never what a key means.

use crate::http::error::ApiError;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use gmodel::suggest::did_you_mean;
use gmodel::time::parse_rfc3339;
use gmodel::{JobId, JobState, Timestamp};

/// The pairs of a query string, decoded.
pub(crate) struct QueryPairs(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for QueryPairs {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let read = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
        read.map(|Query(pairs)| Self(pairs))
            .map_err(|error| ApiError::invalid(format!("the query cannot be read: {error}")))
    }
}

impl QueryPairs {
    /// Refuses keys that are not known or come twice.
    ///
    /// # Errors
    /// Naming the first such key.
    pub(crate) fn only(self, known: &[&str]) -> Result<Self, ApiError> {
        for (position, (key, _)) in self.0.iter().enumerate() {
            if !known.contains(&key.as_str()) {
                let guess = did_you_mean(key, known.iter().copied());
                let text = format!(
                    "unknown key {key:?} in the query.{guess} Known: {}",
                    list(known)
                );
                return Err(ApiError::invalid(text));
            }
            if self.0[..position].iter().any(|(before, _)| before == key) {
                let text = format!("{key:?} is twice in the query. Join the values by commas");
                return Err(ApiError::invalid(text));
            }
        }
        Ok(self)
    }

    /// Takes out a flag that not every reader of the rest knows.
    pub(crate) fn take_flag(&mut self, key: &str) -> Result<bool, ApiError> {
        let flag = self.flag(key)?;
        if let Some(at) = self.0.iter().position(|(k, _)| k == key) {
            self.0.remove(at);
        }
        Ok(flag)
    }

    /// The same of a number.
    pub(crate) fn take_number(&mut self, key: &str) -> Result<Option<u32>, ApiError> {
        let number = self.number(key)?;
        self.0.retain(|(k, _)| k != key);
        Ok(number)
    }

    /// The value of a key; empty when it is not there.
    pub(crate) fn text(&self, key: &str) -> &str {
        self.0
            .iter()
            .find(|(k, _)| k == key)
            .map_or("", |(_, value)| value)
    }

    pub(crate) fn flag(&self, key: &str) -> Result<bool, ApiError> {
        match self.text(key) {
            "" | "false" | "0" => Ok(false),
            "true" | "1" => Ok(true),
            other => Err(ApiError::invalid(format!(
                "{key} = {other:?} is neither true nor false"
            ))),
        }
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<u32>, ApiError> {
        let text = self.text(key);
        if text.is_empty() {
            return Ok(None);
        }
        text.parse()
            .map(Some)
            .map_err(|_| ApiError::invalid(format!("{key} = {text:?} is no whole number")))
    }

    /// The number of a job.
    pub(crate) fn job(&self, key: &str) -> Result<Option<JobId>, ApiError> {
        let text = self.text(key);
        if text.is_empty() {
            return Ok(None);
        }
        // The database keeps them as signed numbers.
        let id = text
            .parse::<u64>()
            .ok()
            .filter(|id| i64::try_from(*id).is_ok());
        id.map(|id| Some(JobId(id)))
            .ok_or_else(|| ApiError::invalid(format!("{key} = {text:?} is no number of a job")))
    }

    pub(crate) fn instant(&self, key: &str) -> Result<Option<Timestamp>, ApiError> {
        let text = self.text(key);
        if text.is_empty() {
            return Ok(None);
        }
        let read = parse_rfc3339(text).map(Some);
        read.ok_or_else(|| {
            ApiError::invalid(format!(
                "{key} = {text:?} is no RFC 3339 time in UTC, as 2027-01-09T06:00:00Z"
            ))
        })
    }
}

/// Comma-separated words; none for an empty text.
pub(crate) fn words(text: &str) -> Vec<String> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// A state in its long or short form.
///
/// # Errors
/// With the nearest known state.
pub(crate) fn job_state(word: &str) -> Result<JobState, ApiError> {
    JobState::parse(word).ok_or_else(|| {
        let names = JobState::ALL.map(JobState::long);
        let guess = did_you_mean(word, names);
        ApiError::invalid(format!(
            "{word:?} is no state of a job.{guess} States: {}, or all",
            list(&names)
        ))
    })
}

pub(crate) fn list(words: &[&str]) -> String {
    words.join(", ")
}
