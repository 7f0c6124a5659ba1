//! A request to a route of Slurm's API: its version, path, query and who asks.

use super::error::SlurmError;
use crate::http::peer::Peer;
use axum::extract::Query as UriQuery;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use gcli::local_time;
use gmodel::{Instant, Timestamp};
use serde_json::{Value, json};

/// Those that slurmrestd of Slurm 24.05 to 26.05 answers.
pub(super) const VERSIONS: [&str; 5] = ["v0.0.41", "v0.0.42", "v0.0.43", "v0.0.44", "v0.0.45"];

const USER_HEADER: &str = "x-slurm-user-name";
const TOKEN_HEADER: &str = "x-slurm-user-token";

/// What slurmrestd asks of slurmctld, or of slurmdbd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Slurm,
    Slurmdb,
}

/// One request, without its body.
pub(super) struct RestQuestion {
    pub(super) family: Family,
    pub(super) version: String,
    pub(super) method: Method,
    /// What stands between the slashes behind the version.
    pub(super) path: Vec<String>,
    pub(super) query: Query,
    pub(super) peer: Peer,
    /// Method and path, for `meta`.
    pub(super) command: Vec<String>,
}

impl RestQuestion {
    /// # Errors
    /// A version that is not served, a name or a token that does not prove anything, an odd query.
    pub(super) fn of(
        family: Family,
        version: String,
        path: &str,
        head: &Parts,
    ) -> Result<Self, SlurmError> {
        if !VERSIONS.contains(&version.as_str()) {
            let known = VERSIONS.join(", ");
            let version: String = version.chars().take(40).collect();
            return Err(SlurmError::no_such_path(format!(
                "there is no version {version:?} here. Served are {known}"
            )));
        }
        let peer = head.extensions.get::<Peer>().cloned();
        let peer = peer.ok_or_else(|| {
            SlurmError::unauthorised("nobody vouches for who you are on this connection")
        })?;
        check_headers(&head.headers, &peer)?;
        let pairs = UriQuery::<Vec<(String, String)>>::try_from_uri(&head.uri);
        let UriQuery(pairs) = pairs.map_err(|error| {
            SlurmError::unreadable(format!("the query cannot be read: {error}")).of("query")
        })?;
        let path = path.split('/').filter(|part| !part.is_empty());
        Ok(Self {
            family,
            version,
            method: head.method.clone(),
            path: path.map(str::to_owned).collect(),
            query: Query {
                pairs,
                notes: Vec::new(),
            },
            peer,
            command: vec![head.method.to_string(), head.uri.path().to_owned()],
        })
    }
}

/// The kernel, or the machine that forwards the request, says who asks. A name may say the same; a token says nothing here.
fn check_headers(headers: &HeaderMap, peer: &Peer) -> Result<(), SlurmError> {
    let header = |name: &'static str| {
        let value = headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        value.filter(|value| !value.is_empty())
    };
    if header(TOKEN_HEADER).is_some() {
        return Err(SlurmError::unauthorised(
            "X-SLURM-USER-TOKEN: a token is not taken on this way. The controller takes one on its https address and its own socket",
        ));
    }
    match header(USER_HEADER) {
        Some(name) if name != peer.user => {
            let name: String = name.chars().take(40).collect();
            Err(SlurmError::unauthorised(format!(
                "X-SLURM-USER-NAME: {name:?} is not the user that asks, who is {:?}. Leave the header out, or connect as that user",
                peer.user
            )))
        }
        _ => Ok(()),
    }
}

/// The parameters of a query; each is taken once.
#[derive(Default)]
pub(super) struct Query {
    pub(super) pairs: Vec<(String, String)>,
    /// Warnings of the answer.
    pub(super) notes: Vec<String>,
}

impl Query {
    /// All values of a parameter, joined by commas.
    pub(super) fn take(&mut self, key: &str) -> String {
        let taken = self.pairs.extract_if(.., |(known, _)| known == key);
        let values: Vec<String> = taken.map(|(_, value)| value).collect();
        values.join(",")
    }

    /// # Errors
    /// Neither true nor false.
    pub(super) fn take_flag(&mut self, key: &str) -> Result<bool, SlurmError> {
        match self.take(key).to_ascii_lowercase().as_str() {
            "" | "false" | "0" | "no" => Ok(false),
            "true" | "1" | "yes" => Ok(true),
            other => Err(SlurmError::unreadable(format!(
                "{key}={other:?} is neither true nor false"
            ))
            .of(key)),
        }
    }

    /// Seconds since 1970, or a time as Slurm's commands read it.
    ///
    /// # Errors
    /// Neither.
    pub(super) fn take_time(&mut self, key: &str) -> Result<Option<Instant>, SlurmError> {
        let text = self.take(key);
        if text.is_empty() {
            return Ok(None);
        }
        if let Ok(secs) = text.parse::<u32>() {
            return Ok(Some(Instant(Timestamp::from_secs(secs.into()))));
        }
        let read = local_time::read(&text, crate::core_thread::now());
        read.map(|at| Some(Instant(at)))
            .map_err(|why| SlurmError::unreadable(format!("{key}={text:?}: {why}")).of(key))
    }

    /// # Errors
    /// Clusters are named, and `own` is not among them.
    pub(super) fn take_cluster(&mut self, own: &str) -> Result<(), SlurmError> {
        let clusters = self.take("cluster");
        let mut names = clusters
            .split(',')
            .filter(|name| !name.is_empty())
            .peekable();
        match names.peek().is_none() || names.any(|name| name == own) {
            true => Ok(()),
            false => {
                let clusters: String = clusters.chars().take(80).collect();
                let text = format!("cluster={clusters}: this is {own}, and it knows of no other");
                Err(SlurmError::unreadable(text).of("cluster"))
            }
        }
    }

    /// Refuses these, of which a part of an answer would be left out.
    ///
    /// # Errors
    /// Naming the first that is there.
    pub(super) fn refuse(&self, keys: &[&str]) -> Result<(), SlurmError> {
        let found = self.pairs.iter().find(|(key, _)| keys.contains(&&**key));
        match found {
            None => Ok(()),
            Some((key, _)) => {
                let text = format!(
                    "{key} chooses nothing here, and the answer would be too long. Leave it out and choose from the answer"
                );
                Err(SlurmError::not_done(text).of(key))
            }
        }
    }

    /// Every answer is whole: there is no state of before to compare with. Details are always there.
    pub(super) fn settle_whole(&mut self) -> Result<(), SlurmError> {
        self.take_time("update_time")?;
        self.take("flags");
        Ok(())
    }

    /// What is to be said besides, and of what nothing has taken: that is no parameter.
    pub(super) fn warnings(&self) -> Value {
        let unknown = self.pairs.iter().map(|(key, _)| {
            let key: String = key.chars().take(80).collect();
            format!("{key:?} in the query is unknown here and changes nothing")
        });
        let notes = self.notes.iter().cloned().chain(unknown);
        notes
            .map(|note| json!({"description": note, "source": "gpuctld"}))
            .collect()
    }
}
