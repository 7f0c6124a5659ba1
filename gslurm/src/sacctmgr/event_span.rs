//! The time that a listing of what happened is of, as `start=` and `end=` say it: the last month where they say nothing.

use gcli::Failure;
use gcli::local_time;
use gmodel::{Instant, Timestamp};
use gwire::client::path_with_query;
use serde::Serialize;

#[derive(Debug, Default)]
pub(super) struct EventSpan {
    pub start: Option<String>,
    pub end: Option<String>,
}

impl EventSpan {
    /// A path of the API with that time.
    ///
    /// # Errors
    /// A time that cannot be read.
    pub fn on(&self, path: &str) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct EventQuery {
            from: Instant,
            to: Instant,
        }
        let now = local_time::now();
        let read = |what: &str, text: &Option<String>, usual: Timestamp| match text {
            Some(text) => local_time::read_past(text, now)
                .map_err(|why| Failure::usage(format_args!("{what}={text}: {why}"))),
            None => Ok(usual),
        };
        let to = read("end", &self.end, now.plus_secs(1))?;
        let from = read("start", &self.start, to.plus_secs(-30 * 86_400))?;
        Ok(path_with_query(
            path,
            &EventQuery {
                from: Instant(from),
                to: Instant(to),
            },
        ))
    }
}
