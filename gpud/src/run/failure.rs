//! Why a run cannot start on this node, and whether the user, the node or one thing on it is to blame.

use crate::clock::wall_clock;
use crate::own_limits::{self, Outcome};
use gmodel::run::{EndCause, LaunchFailureSubject, RunEnd};

/// Why a run cannot start here, and whether its user or the node is to blame.
#[derive(Debug)]
pub struct Failure {
    pub cause: EndCause,
    pub text: String,
    /// Of the node's, as far as it is less than all of it.
    pub about: LaunchFailureSubject,
}

impl Failure {
    pub fn node(error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        let about = if own_limits::is_shortage(&error) {
            LaunchFailureSubject::Shortage
        } else {
            LaunchFailureSubject::Node
        };
        Self {
            about,
            ..Self::node_text(format!("{error:#}"))
        }
    }
    pub fn node_text(text: String) -> Self {
        Self {
            cause: EndCause::LaunchNode,
            text,
            about: LaunchFailureSubject::Node,
        }
    }
    /// About one GPU or slice: jobs on others may start.
    pub fn gpu(uuid: &str, text: String) -> Self {
        Self {
            about: LaunchFailureSubject::Gpu {
                uuid: uuid.to_owned(),
            },
            ..Self::node_text(text)
        }
    }
    /// About what the job or its partition chose: jobs without it may start.
    pub fn choice(name: &str, text: String) -> Self {
        Self {
            about: LaunchFailureSubject::Choice {
                name: name.to_owned(),
            },
            ..Self::node_text(text)
        }
    }
    pub fn user_unknown(text: String) -> Self {
        Self {
            about: LaunchFailureSubject::User,
            ..Self::node_text(text)
        }
    }
    pub fn user(text: String) -> Self {
        Self {
            cause: EndCause::LaunchUser,
            ..Self::node_text(text)
        }
    }
    /// Of what this daemon itself has too few of: no error of the node, as long as it may pass.
    pub fn is_shortage(&self) -> bool {
        self.about == LaunchFailureSubject::Shortage
    }
    pub fn end(self) -> RunEnd {
        let about_user = self.about == LaunchFailureSubject::User;
        RunEnd {
            cause: self.cause,
            text: self.text,
            about_user,
            about: self.about,
            ended: Some(wall_clock()),
            ..RunEnd::default()
        }
    }
}

impl<T> Outcome for Result<T, Failure> {
    fn shortage(&self) -> Option<String> {
        self.as_ref()
            .err()
            .filter(|failure| failure.is_shortage())
            .map(|failure| failure.text.clone())
    }
}
