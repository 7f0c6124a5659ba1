//! A token of a user: what people and programs show over the network, where no kernel says which uid asks. With it come scopes and caps.
//!
//! Owns the record, the scopes and the text that its holder keeps. The record has the hash of the secret; the secret is nowhere but in
//! that text.

use crate::ids::TokenId;
use crate::job::{JobSpec, UserRef};
use crate::partition_list;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// What the text of every token begins with, so that a search finds tokens that lie where they should not.
pub const PREFIX: &str = "gptok_";
/// Hexadecimal digits of the secret, and of the hash of an authority's certificate.
const HEX_DIGITS: usize = 64;
/// A GPU-second in the unit of [`UserToken::gpu_used`]: thousandths of a GPU times milliseconds.
pub const GPU_SECOND: u64 = 1_000_000;

/// What a token is good for. Each request needs one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Listings of jobs, nodes and partitions, and outputs of jobs.
    Read,
    /// Submission, and changes of jobs that wait: hold, release, requeue, update.
    Submit,
    /// Cancelling and signalling jobs.
    Cancel,
    /// Accounting, usage and policy.
    Report,
    /// `/metrics`.
    Metrics,
    /// What operators do; only in tokens of operators.
    Operate,
}

impl Scope {
    pub const ALL: [Self; 6] = [
        Self::Read,
        Self::Submit,
        Self::Cancel,
        Self::Report,
        Self::Metrics,
        Self::Operate,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Cancel => "cancel",
            Self::Report => "report",
            Self::Metrics => "metrics",
            Self::Operate => "operate",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|scope| scope.name() == text)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::name);
                let hint = crate::suggest::did_you_mean(text, names);
                format!(
                    "there is no scope {text:?}.{hint} There are: {}",
                    names.join(", ")
                )
            })
    }
}

/// Which token, and for what: all but its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserToken {
    pub id: TokenId,
    pub user: UserRef,
    /// SHA-256 of the secret, 64 hexadecimal digits.
    pub hash: String,
    pub scopes: BTreeSet<Scope>,
    /// Jobs of these accounts only; empty: of all.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub accounts: BTreeSet<String>,
    /// Jobs in these partitions only; empty: in all.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub partitions: BTreeSet<String>,
    pub expires: Timestamp,
    /// GPU-seconds that its jobs may use in all; `None`: no cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_secs: Option<u64>,
    /// Jobs in the queue and running, array tasks one by one.
    pub jobs: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    pub made: Timestamp,
    pub made_by: String,
    /// The controller's host knew the user when it was made: it ends with the user there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub known: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Revocation>,
    /// Begin of the day (UTC) in which it was last used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_on: Option<Timestamp>,
    /// Charged so far by ended runs of its jobs: thousandths of a GPU times milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gpu_used: u64,
}

/// By whom a token was taken back, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    pub at: Timestamp,
    pub by: String,
}

impl UserToken {
    /// Neither expired nor revoked.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.revoked.is_none() && now < self.expires
    }

    /// From when on it is of no use.
    pub fn ended(&self) -> Timestamp {
        self.revoked
            .as_ref()
            .map_or(self.expires, |revoked| revoked.at.min(self.expires))
    }

    /// Whether its lists of accounts and partitions have a job with this request.
    pub fn reaches(&self, spec: &JobSpec) -> bool {
        self.reaches_named(&spec.account, &spec.partition)
    }

    /// `partition`: a name, or several with commas between them, all of which have to be on its list.
    pub fn reaches_named(&self, account: &str, partition: &str) -> bool {
        (self.accounts.is_empty() || self.accounts.contains(account))
            && (self.partitions.is_empty()
                || partition_list::names(partition).all(|name| self.partitions.contains(name)))
    }

    /// `accounts nlp, vision and the partition main`, or nothing.
    pub fn confines(&self) -> Option<String> {
        let said = |what: &str, names: &BTreeSet<String>| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let plural = if names.len() == 1 { "" } else { "s" };
            (!names.is_empty()).then(|| format!("{what}{plural} {}", names.join(", ")))
        };
        let parts: Vec<String> = [
            said("account", &self.accounts),
            said("partition", &self.partitions),
        ]
        .into_iter()
        .flatten()
        .collect();
        (!parts.is_empty()).then(|| parts.join(" and "))
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What its holder keeps: `gptok_ID_SECRET`, and behind it the hash of the cluster's authority where that signs the controller's
/// certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenText {
    pub id: TokenId,
    pub secret: String,
    /// SHA-256 of the authority's certificate, 64 hexadecimal digits.
    pub authority: Option<String>,
}

impl TokenText {
    /// As it is given out. The only way to its secret as text.
    pub fn reveal(&self) -> String {
        let authority = self.authority.as_ref();
        let authority = authority.map_or(String::new(), |hash| format!("_{hash}"));
        format!("{PREFIX}{}_{}{authority}", self.id, self.secret)
    }
}

/// Without the secret: texts for people and logs may hold this.
impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}_...", self.id)
    }
}

/// A text that is no token. It is not repeated: it may be one but for a letter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is no token: it begins with {PREFIX}, and its id, its secret and the authority's hash follow with _ between them"
)]
pub struct BadToken;

impl FromStr for TokenText {
    type Err = BadToken;
    fn from_str(text: &str) -> Result<Self, BadToken> {
        let hex = |part: &str| {
            part.len() == HEX_DIGITS
                && part
                    .bytes()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let mut parts = text.strip_prefix(PREFIX).ok_or(BadToken)?.split('_');
        let id = parts.next().and_then(|part| part.parse().ok());
        let secret = parts.next().filter(|part| hex(part));
        let authority = parts.next();
        if authority.is_some_and(|part| !hex(part)) || parts.next().is_some() {
            return Err(BadToken);
        }
        Ok(Self {
            id: id.ok_or(BadToken)?,
            secret: secret.ok_or(BadToken)?.to_owned(),
            authority: authority.map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token() -> TokenText {
        TokenText {
            id: TokenId(0x1f),
            secret: "ab".repeat(32),
            authority: Some("0".repeat(64)),
        }
    }

    #[test]
    fn a_token_reads_as_it_was_given_out() {
        for authority in [None, Some("0".repeat(64))] {
            let token = TokenText {
                authority,
                ..token()
            };
            let text = token.reveal();
            assert!(text.starts_with("gptok_0000001f_abab"), "{text}");
            assert_eq!(text.parse::<TokenText>(), Ok(token));
        }
    }

    #[test]
    fn no_words_about_a_token_have_its_secret() {
        assert_eq!(format!("{:?}", token()), "gptok_0000001f_...");
        let damaged = token().reveal().replace("_abab", "_ABab");
        let error = damaged.parse::<TokenText>().unwrap_err().to_string();
        assert!(!error.contains("abab") && error.contains(PREFIX), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_token_or_refused(text in "(gptok_)?[0-9a-f_]{0,80}") {
            if let Ok(token) = text.parse::<TokenText>() {
                prop_assert_eq!(token.reveal().to_lowercase(), text);
            }
        }
    }

    #[test]
    fn a_list_of_partitions_is_reached_only_as_a_whole() {
        let mut token = UserToken {
            id: TokenId(1),
            user: UserRef::default(),
            hash: String::new(),
            scopes: BTreeSet::new(),
            accounts: BTreeSet::new(),
            partitions: ["main".to_owned()].into(),
            expires: Timestamp(0),
            gpu_secs: None,
            jobs: 1,
            note: String::new(),
            made: Timestamp(0),
            made_by: String::new(),
            known: false,
            revoked: None,
            used_on: None,
            gpu_used: 0,
        };
        assert!(token.reaches_named("any", "main"));
        assert!(!token.reaches_named("any", "main,other"));
        token.accounts.insert("nlp".into());
        assert!(!token.reaches_named("any", "main"));
        assert_eq!(token.confines().unwrap(), "account nlp and partition main");
    }

    #[test]
    fn scopes_are_read_by_their_names_and_others_get_a_guess() {
        for scope in Scope::ALL {
            assert_eq!(scope.name().parse(), Ok(scope));
        }
        let wrong = "sumbit".parse::<Scope>().unwrap_err();
        assert!(wrong.contains("Did you mean \"submit\"?"), "{wrong}");
    }
}
