//! The daemon's part of the main file, `gpuctld.toml`: where the controller lives, and programs of the site.
//!
//! What the core decides by is [`gconfig`]'s.

use super::settings::{
    Config, HttpsSettings, MailSettings, MailTls, OnFailure, OutgoingSettings, SiteProgram,
    SubmitHook, WebSettings,
};
use super::webhook::webhooks;
use crate::site_program::check_ownership;
use gconfig::cluster::{self, KEYS};
use gconfig::error::{Errors, Source};
use gconfig::section::Section;
use rustls::pki_types::DnsName;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use toml::de::DeTable;

/// Port of the controller when `listen` does not say.
pub(super) const DEFAULT_PORT: u16 = 7117;
/// A unix socket's path ends here (unix(7)).
const MAX_SOCKET_PATH_BYTES: usize = 107;

const HTTPS_KEYS: [&str; 3] = ["names", "cert", "key"];
const WEB_KEYS: [&str; 1] = ["listen"];
const MAIL_KEYS: [&str; 8] = [
    "smtp",
    "tls",
    "user",
    "password_file",
    "from",
    "domain",
    "only_domains",
    "per_user_hour",
];
const HOOK_KEYS: [&str; 4] = ["program", "user", "timeout_ms", "on_failure"];

/// Reads the main file. What is wrong or missing has its default, so that reading goes on.
pub(super) fn read(source: &Source, table: &DeTable<'_>, errors: &mut Errors) -> Config {
    let section = Section::open(source, table, &KEYS, "gpuctld.toml", errors);
    let listen = listen(&section, errors);
    Config {
        cluster: cluster::read(&section, errors),
        state_dir: section
            .path("state_dir", false, errors)
            .unwrap_or_else(|| "/var/lib/gpupool".into()),
        socket: socket(&section, errors),
        listen,
        advertise: advertise(&section, listen, errors),
        https: https(&section, errors),
        web: web(&section, errors),
        outgoing: OutgoingSettings {
            mail: mail(&section, errors),
            webhooks: webhooks(&section, errors),
        },
        min_free_bytes: section.size("min_free", errors).unwrap_or(1 << 30),
        node_cert_days: section
            .number("node_cert_days", 1..=3650, errors)
            .unwrap_or(90),
        keep_scripts_days: section
            .number("keep_scripts_days", 0..=3650, errors)
            .unwrap_or(30),
        // Above the longest min_job_age_secs: what is in memory is in the database.
        keep_jobs_days: section
            .number("keep_jobs_days", 2..=36_500, errors)
            .unwrap_or(365),
        keep_output_days: section
            .number("keep_output_days", 1..=3650, errors)
            .unwrap_or(14),
        keep_output_bytes: section.size("keep_output_max", errors).unwrap_or(20 << 30),
        submit_hook: hook(&section, errors),
        fence: site_program(&section, "fence_program", "fence_timeout_secs", errors),
        idle: site_program(&section, "idle_program", "idle_timeout_secs", errors),
        trace: section.boolean("trace", errors).unwrap_or(false),
        has_time_zone: section.has("time_zone"),
        places: std::collections::BTreeMap::new(),
    }
}

fn socket(section: &Section, errors: &mut Errors) -> PathBuf {
    let default = || PathBuf::from("/run/gpupool/gpuctld.sock");
    let Some(path) = section.path("socket", false, errors) else {
        return default();
    };
    let bytes = path.as_os_str().as_bytes().len();
    if bytes <= MAX_SOCKET_PATH_BYTES {
        return path;
    }
    let message =
        format!("socket has a path of {bytes} bytes; Linux takes {MAX_SOCKET_PATH_BYTES}");
    errors.add(
        section.source,
        section.span("socket"),
        message,
        "use a shorter one, as under /run/gpupool",
    );
    default()
}

fn listen(section: &Section, errors: &mut Errors) -> SocketAddr {
    let default = SocketAddr::from(([0, 0, 0, 0], DEFAULT_PORT));
    let Some(text) = section.text("listen", errors) else {
        return default;
    };
    text.parse().unwrap_or_else(|_| {
        let message = format!("listen = {text:?} is not ADDRESS:PORT");
        errors.add(
            section.source,
            section.span("listen"),
            message,
            "as \"0.0.0.0:7117\" or \"[::]:7117\"",
        );
        default
    })
}

/// `HOST:PORT` for nodes: as written, or the listening address, or this host's name.
fn advertise(section: &Section, listen: SocketAddr, errors: &mut Errors) -> String {
    let Some(text) = section.text("advertise", errors) else {
        if !listen.ip().is_unspecified() {
            return listen.to_string();
        }
        let host = nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok());
        return format!(
            "{}:{}",
            host.unwrap_or_else(|| "localhost".into()),
            listen.port()
        );
    };
    let valid = text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && !host.contains(char::is_whitespace)
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if !valid {
        let message = format!("advertise = {text:?} is not HOST:PORT");
        errors.add(
            section.source,
            section.span("advertise"),
            message,
            "as \"gpuctl.example.org:7117\"",
        );
    }
    text
}

/// A program that cannot be called would be noticed when it is needed, and then too late.
fn site_program(
    section: &Section,
    key: &str,
    timeout_key: &str,
    errors: &mut Errors,
) -> Option<SiteProgram> {
    let timeout_secs = section.number(timeout_key, 1..=3_600, errors).unwrap_or(60);
    let program = section.path(key, false, errors)?;
    if let Err(why) = check_ownership(&program) {
        let message = format!("{key} = {program:?} cannot be used: {why}");
        errors.add(
            section.source,
            section.span(key),
            message,
            "it has to be a program that only root can change",
        );
    }
    Some(SiteProgram {
        program,
        timeout_secs,
    })
}

fn https(section: &Section, errors: &mut Errors) -> Option<HttpsSettings> {
    let table = section.table("https", errors)?;
    let https = Section::open(section.source, table, &HTTPS_KEYS, "[https]", errors);
    for key in HTTPS_KEYS {
        if !https.has(key) {
            let message = format!("[https] has no {key}");
            let advice = "it takes the names of the site's certificate, cert and key";
            errors.add(section.source, section.span("https"), message, advice);
        }
    }
    let mut path = |key| https.path(key, false, errors).unwrap_or_else(|| "/".into());
    let (cert, key) = (path("cert"), path("key"));
    let names = https.texts("names", errors).unwrap_or_default();
    let is_name = |name: &&String| DnsName::try_from(name.as_str()).is_ok();
    if let Some(name) = names.iter().find(|name| !is_name(name)) {
        let message = format!("{name:?} is not a host's name");
        errors.add(
            section.source,
            https.span("names"),
            message,
            "as [\"gpu.example.org\"]",
        );
    }
    Some(HttpsSettings { names, cert, key })
}

fn web(section: &Section, errors: &mut Errors) -> Option<WebSettings> {
    let table = section.table("web", errors)?;
    let web = Section::open(section.source, table, &WEB_KEYS, "[web]", errors);
    let Some(text) = web.text("listen", errors) else {
        return Some(WebSettings { listen: None });
    };
    let address = text.parse::<SocketAddr>();
    let (message, advice) = match address {
        Ok(address) if address.ip().is_loopback() && address.port() != 0 => {
            return Some(WebSettings {
                listen: Some(address),
            });
        }
        Ok(address) if !address.ip().is_loopback() => (
            format!("listen = {text:?} would show pages to the network without TLS"),
            "over the network they are on the TLS port: leave listen out here, or say a loopback address, as \"127.0.0.1:7118\"",
        ),
        _ => (
            format!("listen = {text:?} is not ADDRESS:PORT"),
            "as \"127.0.0.1:7118\"",
        ),
    };
    errors.add(section.source, web.span("listen"), message, advice);
    None
}

fn mail(section: &Section, errors: &mut Errors) -> Option<MailSettings> {
    let table = section.table("mail", errors)?;
    let mail = Section::open(section.source, table, &MAIL_KEYS, "[mail]", errors);
    let tls = mail.word("tls", &MAIL_TLS, errors);
    let tls = tls.unwrap_or(MailTls::Nothing);
    let smtp = mail.text("smtp", errors).unwrap_or_default();
    let (host, port) = mail_server(&smtp, tls);
    let from = mail.text("from", errors).unwrap_or_default();
    let domain = mail.text("domain", errors).unwrap_or_default();
    let is_domain = |text: &str| format!("a@{text}").parse::<lettre::Address>().is_ok();
    let mut add = |key: &str, message: String, advice: &str| {
        let message = match mail.has(key) {
            true => message,
            false => format!("[mail] has no {key}"),
        };
        let span = if mail.has(key) {
            mail.span(key)
        } else {
            section.span("mail")
        };
        errors.add(section.source, span, message, advice);
    };
    if host.is_empty() || port.is_none() {
        let message = format!("smtp is {smtp:?}, which is no mail server");
        add("smtp", message, "as \"mail.example.org:25\"");
    }
    if from.parse::<lettre::Address>().is_err() {
        let message = format!("from is {from:?}, which is no address");
        add("from", message, "as \"gpupool@example.org\"");
    }
    if !is_domain(&domain) {
        let message = format!("domain is {domain:?}, which is no domain");
        add(
            "domain",
            message,
            "as \"example.org\": users without --mail-user get mail there",
        );
    }
    let only_domains = mail.texts("only_domains", errors).unwrap_or_default();
    let login = mail_login(&mail, tls, errors);
    Some(MailSettings {
        host,
        port: port.unwrap_or_default(),
        tls,
        login,
        from,
        domain,
        only_domains,
        per_user_hour: mail
            .number("per_user_hour", 1..=1_000_000, errors)
            .map_or(200, |count| count as u32),
    })
}

/// Host and port; without one the usual of the encryption.
fn mail_server(smtp: &str, tls: MailTls) -> (String, Option<u16>) {
    let usual = match tls {
        MailTls::All => 465,
        MailTls::Starttls => 587,
        MailTls::Nothing => 25,
    };
    match smtp.rsplit_once(':') {
        Some((host, port)) => (host.to_owned(), port.parse().ok()),
        None => (smtp.to_owned(), Some(usual)),
    }
}

/// User and password file, with an encryption.
fn mail_login(mail: &Section, tls: MailTls, errors: &mut Errors) -> Option<(String, PathBuf)> {
    let login = match (
        mail.text("user", errors),
        mail.path("password_file", false, errors),
    ) {
        (Some(user), Some(file)) => Some((user, file)),
        (None, None) => None,
        (user, _) => {
            let key = if user.is_some() {
                "user"
            } else {
                "password_file"
            };
            let message = "user and password_file belong together".to_owned();
            errors.add(mail.source, mail.span(key), message, "say both or none");
            None
        }
    };
    if login.is_some() && tls == MailTls::Nothing {
        let message = "a password would cross the network in the clear".to_owned();
        let advice = "say tls = \"starttls\" or \"tls\"";
        errors.add(mail.source, mail.span("user"), message, advice);
    }
    login
}

const MAIL_TLS: [(&str, MailTls); 3] = [
    ("none", MailTls::Nothing),
    ("starttls", MailTls::Starttls),
    ("tls", MailTls::All),
];

fn hook(section: &Section, errors: &mut Errors) -> Option<SubmitHook> {
    let table = section.table("submit_hook", errors)?;
    let hook = Section::open(section.source, table, &HOOK_KEYS, "[submit_hook]", errors);
    for key in ["program", "user"] {
        if !hook.has(key) {
            errors.add(
                section.source,
                section.span("submit_hook"),
                format!("[submit_hook] has no {key}"),
                "",
            );
        }
    }
    let on_failure = [("refuse", OnFailure::Refuse), ("accept", OnFailure::Accept)];
    let user = hook.user("user", errors).unwrap_or_default();
    if user == "root" {
        let hint = "give it an ordinary system user of its own";
        errors.add(
            section.source,
            hook.span("user"),
            "the submission hook may not run as root",
            hint,
        );
    }
    Some(SubmitHook {
        program: hook
            .path("program", false, errors)
            .unwrap_or_else(|| Path::new("/").into()),
        user,
        timeout_ms: hook.number("timeout_ms", 1..=60_000, errors).unwrap_or(200),
        on_failure: hook
            .word("on_failure", &on_failure, errors)
            .unwrap_or(OnFailure::Refuse),
    })
}
