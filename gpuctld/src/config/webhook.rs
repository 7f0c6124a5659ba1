//! `[[webhook]]` of the main file: where events are sent, which, and in which shape.

use super::settings::{WebhookSettings, WebhookTemplate};
use crate::event_feed::kinds_of;
use axum::http::Uri;
use gconfig::error::Errors;
use gconfig::name::is_name;
use gconfig::section::Section;
use std::collections::BTreeSet;

const WEBHOOK_KEYS: [&str; 9] = [
    "name",
    "url",
    "kinds",
    "accounts",
    "secret_file",
    "template",
    "ca_file",
    "allow_http",
    "park_after_secs",
];
const TEMPLATES: [(&str, WebhookTemplate); 3] = [
    ("json", WebhookTemplate::Json),
    ("slack", WebhookTemplate::Slack),
    ("teams", WebhookTemplate::Teams),
];
/// Webhooks of one cluster.
const MOST: usize = 64;
const DAY_SECS: u32 = 86_400;

pub(super) fn webhooks(section: &Section, errors: &mut Errors) -> Vec<WebhookSettings> {
    let tables = section.listed_tables("webhook", errors);
    if tables.len() > MOST {
        let message = format!("{} webhooks; {MOST} is the most", tables.len());
        let advice = "let one receiver pass events on";
        errors.add(section.source, section.span("webhook"), message, advice);
    }
    let mut found: Vec<WebhookSettings> = Vec::new();
    for (table, span) in tables.into_iter().take(MOST) {
        let hook = Section::open(section.source, table, &WEBHOOK_KEYS, "[[webhook]]", errors);
        let at = |key: &str| match hook.has(key) {
            true => hook.span(key),
            false => span.clone(),
        };
        let name = text(&hook, "name");
        if !is_name(&name) {
            let message = format!("a webhook's name is {name:?}");
            let advice = "1 to 64 letters, digits, _ - .";
            errors.add(section.source, at("name"), message, advice);
        }
        if found.iter().any(|other| other.name == name) {
            let message = format!("two webhooks are called {name}");
            errors.add(
                section.source,
                at("name"),
                message,
                "name one of them otherwise",
            );
        }
        let uri = text(&hook, "url").parse::<Uri>().ok().filter(is_usable);
        if uri.is_none() {
            let advice = "as \"https://chat.example.org/hooks/1\"";
            errors.add(
                section.source,
                at("url"),
                "this webhook's url is none",
                advice,
            );
        }
        found.push(settings(&hook, name, uri.unwrap_or_default(), errors));
    }
    found
}

fn settings(hook: &Section, name: String, url: Uri, errors: &mut Errors) -> WebhookSettings {
    let kinds = hook.texts("kinds", errors).unwrap_or_default().join(",");
    let kinds = kinds_of(&kinds).unwrap_or_else(|word| {
        let message = format!("{word:?} is no kind of event");
        let advice = "kinds are listed in docs/events.md, as \"job_ended\" or \"node\"";
        errors.add(hook.source, hook.span("kinds"), message, advice);
        BTreeSet::new()
    });
    let accounts = hook.texts("accounts", errors).unwrap_or_default();
    WebhookSettings {
        name,
        url,
        kinds,
        accounts: accounts.into_iter().collect(),
        secret_file: hook.path("secret_file", false, errors),
        template: hook
            .word("template", &TEMPLATES, errors)
            .unwrap_or(WebhookTemplate::Json),
        ca_file: hook.path("ca_file", false, errors),
        allow_http: hook.boolean("allow_http", errors).unwrap_or(false),
        park_after_secs: hook
            .number("park_after_secs", 1..=30 * DAY_SECS, errors)
            .unwrap_or(DAY_SECS),
    }
}

/// A text whose type is told as a mistake where it is asked for.
fn text(hook: &Section, key: &str) -> String {
    hook.text(key, &mut Errors::default()).unwrap_or_default()
}

fn is_usable(uri: &Uri) -> bool {
    let has_user = uri.authority().is_some_and(|it| it.as_str().contains('@'));
    matches!(uri.scheme_str(), Some("https" | "http")) && uri.host().is_some() && !has_user
}
