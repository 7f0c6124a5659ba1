//! What is sent to a webhook: events in its shape, and the signature over them. Pure.

use crate::config::WebhookTemplate;
use gcli::printable::printable;
use gwire::api::{EventRow, SCHEMA};
use ring::hmac;
use serde_json::{Value, json};

/// Events of one delivery, and lines of a chat's message.
pub const MOST_EVENTS: usize = 100;
pub const MOST_LINES: usize = 20;
/// Characters of a line of a chat.
const MAX_LINE_CHARS: usize = 400;

pub fn most(template: WebhookTemplate) -> usize {
    match template {
        WebhookTemplate::Json => MOST_EVENTS,
        WebhookTemplate::Slack | WebhookTemplate::Teams => MOST_LINES,
    }
}

pub fn body(template: WebhookTemplate, cluster: &str, name: &str, rows: &[&EventRow]) -> Vec<u8> {
    let value = match template {
        WebhookTemplate::Json => {
            json!({"schema": SCHEMA, "cluster": cluster, "webhook": name, "events": rows})
        }
        WebhookTemplate::Slack => {
            let lines: Vec<String> = rows.iter().map(|row| slack(&line(cluster, row))).collect();
            json!({"text": lines.join("\n")})
        }
        WebhookTemplate::Teams => teams(rows.iter().map(|row| line(cluster, row))),
    };
    value.to_string().into_bytes()
}

/// `[cluster] job 17 train (ada): job ended, FAILED 7:0`.
fn line(cluster: &str, row: &EventRow) -> String {
    let kind = row.kind.replace('_', " ");
    let message = row.message();
    let comma = if message.is_empty() { "" } else { ", " };
    let line = format!("[{cluster}] {}: {kind}{comma}{message}", row.subject());
    printable(&line).chars().take(MAX_LINE_CHARS).collect()
}

/// In Slack a name is no mention, link or format: these three characters begin them all.
fn slack(line: &str) -> String {
    let line = line.replace('&', "&amp;");
    line.replace('<', "&lt;").replace('>', "&gt;")
}

/// An adaptive card. A text run has no markup.
fn teams(lines: impl Iterator<Item = String>) -> Value {
    let blocks: Vec<Value> = lines
        .map(
            |line| json!({"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": line}]}),
        )
        .collect();
    let card = json!({"type": "AdaptiveCard", "version": "1.4", "body": blocks});
    json!({
        "type": "message",
        "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}],
    })
}

/// `v1=` and the HMAC-SHA256, in hex, of the timestamp, a dot and the body.
pub fn signature(secret: &[u8], timestamp: i64, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let mut context = hmac::Context::with_key(&key);
    context.update(format!("{timestamp}.").as_bytes());
    context.update(body);
    let tag = context.sign();
    let hex: String = tag
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("v1={hex}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gwire::api::EventJob;

    #[test]
    fn a_name_is_no_mention_and_no_markup_in_a_chat() {
        let row = EventRow {
            kind: "job_ended".to_owned(),
            job: EventJob {
                shown_id: "17".to_owned(),
                name: "<!channel> [x](http://evil)\nline".to_owned(),
                user: "ada".to_owned(),
                ..EventJob::default()
            },
            ..EventRow::default()
        };
        let text = body(WebhookTemplate::Slack, "main", "chat", &[&row]);
        let text: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(
            text["text"],
            "[main] job 17 &lt;!channel&gt; [x](http://evil)?line (ada): job ended"
        );
        let card = body(WebhookTemplate::Teams, "main", "chat", &[&row]);
        let card: Value = serde_json::from_slice(&card).unwrap();
        let run = &card["attachments"][0]["content"]["body"][0]["inlines"][0];
        assert_eq!(run["type"], "TextRun");
    }

    #[test]
    fn a_signature_is_that_of_the_document() {
        // python3: hmac.new(b"secret", b"1700000000.{}", "sha256").hexdigest()
        assert_eq!(
            signature(b"secret", 1_700_000_000, b"{}"),
            "v1=b8569b78799ff9e3cbff0fc2d63a33a2b57f3282abd07c37ae5e8e7d79a5f163"
        );
        assert_ne!(
            signature(b"secret", 1, b"{}"),
            signature(b"secret", 2, b"{}")
        );
    }
}
