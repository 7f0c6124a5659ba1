//! `gq web`: a link that shows one's jobs in a browser, and the end of what it began.

use gcli::Outcome;
use gcli::local_time::TimeFormat;
use gcli::table::stdout;
use gwire::api::{WebLinkReply, WebLogoutReply};
use gwire::client::Client;
use serde_json::json;
use std::io::Write;

/// What to do about the page.
#[derive(clap::Args)]
pub(crate) struct WebAct {
    /// End all your sessions in browsers, and links that nobody took
    #[arg(long)]
    logout: bool,
}

/// The link alone goes to stdout.
pub(crate) fn run(client: &mut Client, act: &WebAct) -> Outcome {
    if act.logout {
        let reply: WebLogoutReply = client.post("/v1/web-sessions/end", &json!({}))?;
        let sessions = match reply.ended {
            1 => "1 session is over".to_owned(),
            many => format!("{many} sessions are over"),
        };
        eprintln!("gq: {sessions}");
        return Ok(0);
    }
    let reply: WebLinkReply = client.post("/v1/web-links", &json!({}))?;
    let mut out = stdout()?;
    writeln!(out, "{}", reply.link)?;
    out.flush()?;
    eprintln!(
        "gq: good once, until {}; the session lasts {} h. gq web --logout ends it",
        TimeFormat::from_env().print(reply.expires.0),
        reply.session_secs / 3600
    );
    Ok(0)
}
