//! The client's TOML: where the controller's socket is.
//!
//! `GPUPOOL_CONFIG` names the file, else `/etc/gpupool/gpupool.toml`; without that file the usual sockets are tried.

use crate::command_line::is_talking;
use crate::failure::{Failure, note, say_waiting};
use gmodel::suggest::did_you_mean;
use gwire::client::{Client, DEFAULT_WAIT_SECS};
use serde::Deserialize;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DEFAULT_FILE: &str = "/etc/gpupool/gpupool.toml";
const CONTROLLER_SOCKET: &str = "/run/gpupool/gpuctld.sock";
/// Of `gpud`, on nodes and login nodes: it forwards to the controller.
const NODE_SOCKET: &str = "/run/gpupool/gpud.sock";
const KEYS: [&str; 2] = ["socket", "wait_secs"];

/// What a command needs to know before it can ask anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Unix socket of gpuctld, or of a gpud that forwards.
    pub socket: PathBuf,
    /// Seconds to wait for a controller that does not answer.
    pub wait_secs: u64,
}

#[derive(Deserialize)]
struct File {
    socket: Option<PathBuf>,
    wait_secs: Option<u64>,
}

impl ClientConfig {
    /// Reads the file that holds here.
    ///
    /// # Errors
    /// A named file that is missing, and one that cannot be read or understood.
    pub fn load() -> Result<Self, Failure> {
        match std::env::var_os("GPUPOOL_CONFIG").filter(|path| !path.is_empty()) {
            Some(path) => Self::read(Path::new(&path))?.ok_or_else(|| {
                Failure::new(format_args!(
                    "GPUPOOL_CONFIG names {}, which does not exist",
                    Path::new(&path).display()
                ))
            }),
            None => Ok(Self::read(Path::new(DEFAULT_FILE))?.unwrap_or_else(Self::usual)),
        }
    }

    /// The usual sockets: the controller's own, else the node's.
    fn usual() -> Self {
        let own = Path::new(CONTROLLER_SOCKET);
        let socket = if !own.exists() && Path::new(NODE_SOCKET).exists() {
            Path::new(NODE_SOCKET)
        } else {
            own
        };
        Self {
            socket: socket.to_owned(),
            wait_secs: DEFAULT_WAIT_SECS,
        }
    }

    /// None if there is no such file.
    fn read(path: &Path) -> Result<Option<Self>, Failure> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text)
                .map(Some)
                .map_err(|why| Failure::new(format_args!("{}: {why}", path.display()))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::new(format_args!(
                "cannot read {}: {error}",
                path.display()
            ))),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let table: toml::Table =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        if let Some(unknown) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            let hint = did_you_mean(unknown, KEYS);
            return Err(format!(
                "unknown key {unknown:?}.{hint} Known are {}",
                KEYS.join(" and ")
            ));
        }
        let file: File =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        let usual = Self::usual();
        Ok(Self {
            socket: file.socket.unwrap_or(usual.socket),
            wait_secs: file.wait_secs.unwrap_or(usual.wait_secs),
        })
    }
}

/// A client as the configuration says, which tells `program`'s user when it has to wait.
///
/// # Errors
/// As [`ClientConfig::load`]; nothing is connected yet.
pub fn connect(program: &'static str) -> Result<Client, Failure> {
    let config = ClientConfig::load()?;
    let announce = move |socket: &Path| {
        let _ = say_waiting(
            program,
            format_args!("waiting for the controller at {}...", socket.display()),
        );
    };
    let client = Client::new(config.socket)
        .wait_for(Duration::from_secs(config.wait_secs))
        .on_wait(announce);
    if !is_talking() {
        return Ok(client);
    }
    let socket = client.socket().to_owned();
    Ok(client.on_request(move |method, path| {
        let _ = note(
            program,
            format_args!("{method} {path} of the controller at {}", socket.display()),
        );
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_refused_with_a_guess() {
        assert_eq!(
            ClientConfig::parse("sockt = \"/x\"").unwrap_err(),
            r#"unknown key "sockt". Did you mean "socket"? Known are socket and wait_secs"#
        );
    }

    #[test]
    fn wrong_values_show_line_and_caret() {
        let error = ClientConfig::parse("wait_secs = 3\nsocket = 17\n").unwrap_err();
        assert!(
            error.contains("line 2, column 10") && error.contains('^'),
            "{error}"
        );
    }

    #[test]
    fn a_named_socket_is_taken() {
        let config = ClientConfig::parse("socket = \"/run/x.sock\"\nwait_secs = 0").unwrap();
        assert_eq!(
            config,
            ClientConfig {
                socket: "/run/x.sock".into(),
                wait_secs: 0
            }
        );
    }

    #[test]
    fn a_missing_file_is_not_an_error_by_itself() {
        assert_eq!(
            ClientConfig::read(Path::new("/nonexistent/gpupool.toml")),
            Ok(None)
        );
    }
}
