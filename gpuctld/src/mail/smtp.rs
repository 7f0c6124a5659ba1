//! The conversation with the site's mail server, by lettre. Blocking.

use super::letter::Letter;
use crate::config::{MailSettings, MailTls};
use lettre::message::{Mailbox, header::ContentType};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Tls, TlsParameters};
use lettre::{Address, Message, SmtpTransport, Transport};
use std::time::Duration;

/// For each step of the conversation.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a letter did not go.
#[derive(Debug, PartialEq, Eq)]
pub enum NotSent {
    /// The server cannot be used now: all letters wait.
    Later(String),
    /// The server can be used, and wants this letter later (a full mailbox, greylisting).
    AskedToWait(String),
    /// The server will never take it.
    Never(String),
}

/// Hands a letter to the server.
///
/// # Errors
/// As [`NotSent`].
pub fn send(settings: &MailSettings, letter: &Letter) -> Result<(), NotSent> {
    let message = message(settings, letter).map_err(NotSent::Never)?;
    let server = server(settings).map_err(NotSent::Later)?;
    let Err(error) = server.send(&message) else {
        return Ok(());
    };
    // A refusal may be of the letter, or of us: only where the server takes us is it the letter's.
    let is_answer = error.is_permanent() || error.is_transient();
    if is_answer && server.test_connection().is_ok_and(|taken| taken) {
        return Err(match error.is_permanent() {
            true => NotSent::Never(error.to_string()),
            false => NotSent::AskedToWait(error.to_string()),
        });
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    Err(NotSent::Later(text))
}

fn server(settings: &MailSettings) -> Result<SmtpTransport, String> {
    let parameters =
        || TlsParameters::new(settings.host.clone()).map_err(|error| error.to_string());
    let tls = match settings.tls {
        MailTls::Nothing => Tls::None,
        MailTls::Starttls => Tls::Required(parameters()?),
        MailTls::All => Tls::Wrapper(parameters()?),
    };
    let mut server = SmtpTransport::builder_dangerous(&settings.host)
        .port(settings.port)
        .tls(tls)
        .timeout(Some(PATIENCE));
    if let Some((user, file)) = &settings.login {
        let password = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let password = password.trim_end().to_owned();
        server = server.credentials(Credentials::new(user.clone(), password));
    }
    Ok(server.build())
}

fn message(settings: &MailSettings, letter: &Letter) -> Result<Message, String> {
    let from: Address = settings
        .from
        .parse()
        .map_err(|error| format!("{}: {error}", settings.from))?;
    let mut message = Message::builder()
        .from(Mailbox::new(Some("gpupool".to_owned()), from))
        .subject(letter.subject.clone())
        .header(ContentType::TEXT_PLAIN);
    for to in &letter.to {
        let address: Address = to.parse().map_err(|error| format!("{to}: {error}"))?;
        message = message.to(Mailbox::new(None, address));
    }
    message
        .body(letter.body.clone())
        .map_err(|error| error.to_string())
}
