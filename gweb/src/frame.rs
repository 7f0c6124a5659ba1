//! What is around every page: head, navigation, search, what the last form did, foot. And the pages that stand alone.

use crate::path;
use crate::text::VisibleText;
use maud::{DOCTYPE, Markup, html};

/// What a page is made with besides its content.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub cluster: &'a str,
    pub user: &'a str,
    /// Root or an operator: sees and may change all jobs.
    pub operator: bool,
    /// What each form has to say.
    pub form_word: &'a str,
    /// What the last form did, and whether it was done.
    pub said: Option<(bool, &'a str)>,
    /// The moment of the page on the controller's clock.
    pub now: &'a str,
    pub version: &'a str,
}

/// Where a page lies in the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Jobs,
    Pool,
    Accounts,
    Elsewhere,
}

/// A page for a browser without a session, or without a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    NoSession,
    LoggedIn,
    UsedLink,
    NoSuchPage,
    Text(&'a str),
}

const NAVIGATION: [(Place, &str, &str); 3] = [
    (Place::Jobs, "/", "Jobs"),
    (Place::Pool, "/pool", "Pool"),
    (Place::Accounts, "/accounts", "Accounts"),
];

impl Frame<'_> {
    /// A whole page around `content`.
    pub fn page(&self, title: &str, place: Place, content: &Markup) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                (head(title, self.cluster, None))
                body data-live {
                    a.skip href="#main" { "Skip to the content" }
                    (self.top(place))
                    @if let Some((ok, text)) = self.said {
                        div.said.not[!ok] role="status" { p { (VisibleText(text)) } }
                    }
                    main #main tabindex="-1" { (content) }
                    (self.foot())
                }
            }
        }
    }

    fn top(&self, place: Place) -> Markup {
        html! {
            header.top {
                div {
                    a.name href="/" { (VisibleText(self.cluster)) }
                    nav aria-label="Pages" {
                        ul {
                            @for (one, at, name) in NAVIGATION {
                                li { a href=(at) aria-current=[(one == place).then_some("page")] { (name) } }
                            }
                        }
                    }
                    form.search action="/search" role="search" {
                        label.unseen for="search" { "Find a job, a user or a node" }
                        input #search name="q" type="search" placeholder="Job, user or node" maxlength="100" autocomplete="off";
                    }
                    div.who {
                        span { (VisibleText(self.user)) @if self.operator { " (operator)" } }
                        form method="post" action="/logout" {
                            (form_word(self.form_word))
                            button { "Log out" }
                        }
                    }
                }
            }
        }
    }

    fn foot(&self) -> Markup {
        html! {
            footer {
                span #live { "As of " (self.now) " by the controller's clock" }
                span { "gpupool " (self.version) }
            }
        }
    }
}

/// What a form says that no other site can know.
pub(crate) fn form_word(word: &str) -> Markup {
    html! { input type="hidden" name="word" value=(word); }
}

/// `next`: the page that follows at once.
fn head(title: &str, cluster: &str, next: Option<&str>) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            @if let Some(next) = next { meta http-equiv="refresh" content={ "0;url=" (next) }; }
            title { (VisibleText(title)) " · " (VisibleText(cluster)) }
            link rel="icon" href=(path::ICON);
            link rel="stylesheet" href=(path::STYLE);
            script src=(path::SCRIPT) defer {}
        }
    }
}

/// What was not done, and why.
pub fn refusal(text: &str) -> Markup {
    html! {
        h1 { "Not done" }
        p.lead { (VisibleText(text)) }
        p { a href="/" { "To your jobs" } }
    }
}

/// A page that stands alone.
pub fn notice(cluster: &str, notice: Notice<'_>) -> Markup {
    let title = match notice {
        Notice::LoggedIn => "Logged in",
        Notice::NoSuchPage => "No such page",
        Notice::NoSession | Notice::UsedLink => "Log in",
        Notice::Text(_) => "Not done",
    };
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(title, cluster, (notice == Notice::LoggedIn).then_some("/")))
            body {
                main #main {
                    div.card.letter {
                        h1 { (title) }
                        p.lead { "Cluster " (VisibleText(cluster)) }
                        (words(notice))
                    }
                }
            }
        }
    }
}

fn words(notice: Notice<'_>) -> Markup {
    let how = html! {
        p { "On a machine of the cluster, or where your token is, ask for a link and open it here:" }
        pre { "gq web" }
    };
    match notice {
        Notice::NoSession => {
            html! { p { "No session of yours is known here: there was none, or it has ended." } (how) }
        }
        Notice::UsedLink => html! {
            p { "This link is good no more. Each is good once, and for five minutes." } (how)
        },
        Notice::LoggedIn => html! { p { a href="/" { "Go on to your jobs" } } },
        Notice::NoSuchPage => html! {
            p { "There is nothing at this address." }
            p { a href="/" { "To your jobs" } }
        },
        Notice::Text(text) => html! { p { (VisibleText(text)) } (how) },
    }
}
