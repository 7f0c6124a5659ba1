//! The client's TOML: where the controller's socket is, or its https address and the token for it.
//!
//! `GPUPOOL_CONFIG` names the file, else it is the user's own, else `/etc/gpupool/gpupool.toml`; without that file the usual sockets
//! are tried.

use crate::command_line::is_talking;
use crate::failure::{Failure, note, say_waiting};
use gmodel::suggest::did_you_mean;
use gmodel::user_token::TokenText;
use gwire::client::{
    Client, ControllerAddress, DEFAULT_WAIT_SECS, HttpsAddress, HttpsPlace, HttpsTrust,
};
use serde::Deserialize;
use std::fmt::Display;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DEFAULT_FILE: &str = "/etc/gpupool/gpupool.toml";
/// In a user's directory of configurations.
const OWN_FILE: &str = "gpupool/gpupool.toml";
const OWN_TOKEN: &str = "gpupool/token";
const CONTROLLER_SOCKET: &str = "/run/gpupool/gpuctld.sock";
/// Of `gpud`, on nodes and login nodes: it forwards to the controller.
const NODE_SOCKET: &str = "/run/gpupool/gpud.sock";
const KEYS: [&str; 5] = ["socket", "controller", "token_file", "ca_file", "wait_secs"];
/// Largest file that is read as a token, bytes.
const MAX_TOKEN_BYTES: u64 = 4096;

/// What a command needs to know before it can ask anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    pub place: ControllerPlace,
    /// Seconds to wait for a controller that does not answer.
    pub wait_secs: u64,
}

/// Where the controller is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerPlace {
    /// Unix socket of gpuctld, or of a gpud that forwards.
    Socket(PathBuf),
    Https {
        place: HttpsPlace,
        token_file: PathBuf,
        /// Certificates to trust where the token names no authority.
        ca_file: Option<PathBuf>,
    },
}

#[derive(Deserialize)]
struct File {
    socket: Option<PathBuf>,
    controller: Option<String>,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    wait_secs: Option<u64>,
}

impl ClientConfig {
    /// Reads the file that holds here.
    ///
    /// # Errors
    /// A named file that is missing, and one that cannot be read or understood.
    pub fn load() -> Result<Self, Failure> {
        if let Some(path) = variable("GPUPOOL_CONFIG") {
            return Self::read(&path)?.ok_or_else(|| {
                Failure::new(format_args!(
                    "GPUPOOL_CONFIG names {}, which does not exist",
                    path.display()
                ))
            });
        }
        let own = own_directory().map(|dir| Self::read(&dir.join(OWN_FILE)));
        if let Some(config) = own.transpose()?.flatten() {
            return Ok(config);
        }
        Ok(Self::read(Path::new(DEFAULT_FILE))?.unwrap_or_else(Self::usual))
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
            place: ControllerPlace::Socket(socket.to_owned()),
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
                KEYS.join(", ")
            ));
        }
        let file: File =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        let usual = Self::usual();
        Ok(Self {
            wait_secs: file.wait_secs.unwrap_or(usual.wait_secs),
            place: place(file)?.unwrap_or(usual.place),
        })
    }
}

/// Where the file says that the controller is.
fn place(file: File) -> Result<Option<ControllerPlace>, String> {
    let Some(controller) = file.controller else {
        let of_https = [("token_file", &file.token_file), ("ca_file", &file.ca_file)];
        if let Some((key, _)) = of_https.iter().find(|(_, path)| path.is_some()) {
            return Err(format!(
                "{key} is for a controller over the network: add controller = \"https://HOST:PORT\""
            ));
        }
        return Ok(file.socket.map(ControllerPlace::Socket));
    };
    if file.socket.is_some() {
        return Err(
            "socket and controller: a controller is asked in one way. Keep one of the two".into(),
        );
    }
    let usual_token = || own_directory().unwrap_or_default().join(OWN_TOKEN);
    Ok(Some(ControllerPlace::Https {
        place: HttpsPlace::parse(&controller).map_err(|why| format!("controller = {why}"))?,
        token_file: file.token_file.map_or_else(usual_token, in_home),
        ca_file: file.ca_file.map(in_home),
    }))
}

fn variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// Where a user's configurations are.
fn own_directory() -> Option<PathBuf> {
    let named = variable("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    named.or_else(|| variable("HOME").map(|home| home.join(".config")))
}

/// `~/x` in the user's home directory.
fn in_home(path: PathBuf) -> PathBuf {
    match (path.strip_prefix("~"), variable("HOME")) {
        (Ok(below), Some(home)) => home.join(below),
        _ => path,
    }
}

impl ControllerPlace {
    /// The address, with the token and what it says of the controller's certificate.
    ///
    /// # Errors
    /// The token's file, or the file of certificates, cannot be used.
    fn address(self) -> Result<ControllerAddress, Failure> {
        let (place, token_file, ca_file) = match self {
            Self::Socket(path) => return Ok(ControllerAddress::Socket(path)),
            Self::Https {
                place,
                token_file,
                ca_file,
            } => (place, token_file, ca_file),
        };
        let token_file = variable("GPUPOOL_TOKEN_FILE").map_or(token_file, in_home);
        let token = read_token(&token_file)?;
        let trust = match (&token.authority, &ca_file) {
            (Some(authority), _) => HttpsTrust::pinned(authority),
            (None, Some(path)) => HttpsTrust::of_file(path),
            (None, None) => HttpsTrust::of_machine(),
        };
        Ok(ControllerAddress::Https(HttpsAddress {
            place,
            token,
            trust: trust.map_err(Failure::new)?,
        }))
    }
}

/// The token in a file that only its owner may read. No message has its text.
fn read_token(path: &Path) -> Result<TokenText, Failure> {
    let wrong =
        |why: &dyn Display| Failure::new(format_args!("token file {}: {why}", path.display()));
    let file = std::fs::File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => wrong(
            &"it does not exist. `gq token new` on the cluster prints a token: put it there, mode 0600, or name its file by token_file or \
              GPUPOOL_TOKEN_FILE",
        ),
        _ => wrong(&error),
    })?;
    let mode = file.metadata().map_err(|error| wrong(&error))?.mode();
    if mode & 0o077 != 0 {
        return Err(wrong(&format_args!(
            "others than its owner have rights on it (mode {:04o}), and a token is as good as a password. chmod 0600 it, and make a new token \
             if others may have read it",
            mode & 0o7777,
        )));
    }
    let mut text = String::new();
    let read = file.take(MAX_TOKEN_BYTES).read_to_string(&mut text);
    read.map_err(|error| wrong(&error))?;
    text.trim().parse().map_err(|error| wrong(&error))
}

/// A client as the configuration says, which tells `program`'s user when it has to wait.
///
/// # Errors
/// As [`ClientConfig::load`], and the token's file; nothing is connected yet.
pub fn connect(program: &'static str) -> Result<Client, Failure> {
    let config = ClientConfig::load()?;
    let announce = move |address: &ControllerAddress| {
        let _ = say_waiting(
            program,
            format_args!("waiting for the controller at {address}..."),
        );
    };
    let client = Client::at(config.place.address()?)
        .wait_for(Duration::from_secs(config.wait_secs))
        .on_wait(announce);
    if !is_talking() {
        return Ok(client);
    }
    let address = client.address().to_string();
    Ok(client.on_request(move |method, path| {
        let _ = note(
            program,
            format_args!("{method} {path} of the controller at {address}"),
        );
    }))
}

/// As [`connect`], for commands that also connect with steps.
///
/// # Errors
/// As [`connect`]; and a controller over the network, which has no such connections.
pub fn connect_inside(program: &'static str) -> Result<Client, Failure> {
    let client = connect(program)?;
    client.socket()?;
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_refused_with_a_guess() {
        assert_eq!(
            ClientConfig::parse("sockt = \"/x\"").unwrap_err(),
            r#"unknown key "sockt". Did you mean "socket"? Known are socket, controller, token_file, ca_file, wait_secs"#
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
                place: ControllerPlace::Socket("/run/x.sock".into()),
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

    #[test]
    fn a_controller_over_the_network_has_an_address_and_files_and_no_socket() {
        let text = "controller = \"https://gpu.example.org:7117\"\ntoken_file = \"/k/token\"\nca_file = \"/k/ca.pem\"";
        let config = ClientConfig::parse(text).unwrap();
        assert_eq!(
            config.place,
            ControllerPlace::Https {
                place: HttpsPlace {
                    host: "gpu.example.org".into(),
                    port: 7117
                },
                token_file: "/k/token".into(),
                ca_file: Some("/k/ca.pem".into()),
            }
        );
        for bad in [
            "controller = \"gpu.example.org\"",
            "controller = \"https://gpu.example.org\"",
            "controller = \"https://a:1\"\nsocket = \"/s\"",
            "token_file = \"/k/token\"",
        ] {
            assert!(ClientConfig::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_token_is_read_from_a_file_of_its_owner_alone_and_never_shown() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("gcli-token-{}", std::process::id()));
        let secret = "ab".repeat(32);
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            read_token(&path).map_err(|failure| failure.text)
        };
        let good = format!("gptok_0000002a_{secret}\n");
        assert_eq!(write(&good, 0o600).unwrap().secret, secret);
        assert!(write(&good, 0o400).is_ok());
        for mode in [0o644, 0o640, 0o620, 0o601] {
            let text = write(&good, mode).unwrap_err();
            assert!(
                text.contains("chmod 0600") && !text.contains(&secret),
                "{text}"
            );
        }
        let text = write(&good.replace("_0000", "_000"), 0o600).unwrap_err();
        assert!(
            text.contains("this is no token") && !text.contains(&secret),
            "{text}"
        );
        std::fs::remove_file(&path).unwrap();
        assert!(read_token(&path).unwrap_err().text.contains("gq token new"));
    }
}
