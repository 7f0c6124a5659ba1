//! The controller's pages as HTML, made of the rows of `gwire::api`. Pure: no clock, no files, no questions.
//!
//! Owns how a page looks and reads, its style and its script. It works without the script. Texts of users are hostile: all are escaped, and
//! characters that are not seen or that turn the direction of writing are shown as what they are ([`text::VisibleText`]).

mod accounts;
mod frame;
mod job;
mod jobs;
mod pool;
#[cfg(test)]
mod tests;
mod text;

pub use accounts::{AccountStanding, AccountsPage, accounts_page};
pub use frame::{Frame, Notice, Place, notice, refusal};
pub use job::{JobPage, WaitExplanation, job_page, tasks_page};
pub use jobs::{Group, JobSection, JobsPage, jobs_page};
pub use maud::Markup;
pub use pool::{PoolPage, pool_page};
pub use text::percent_encoded;

/// Style, script and icon: whole files in the program, by hand.
pub const STYLE: &str = include_str!("page.css");
pub const SCRIPT: &str = include_str!("page.js");
pub const ICON: &str = include_str!("icon.svg");

/// Where the pages lie, as links name them.
pub mod path {
    pub const STYLE: &str = "/web/page.css";
    pub const SCRIPT: &str = "/web/page.js";
    pub const ICON: &str = "/web/icon.svg";
}
