//! `gadm ssh-config`: the lines of ~/.ssh/config by which `ssh gpupool-17` reaches a job, and the keys that they name. Asks no controller.

use gcli::table::stdout;
use gcli::{Failure, Outcome, ssh_keys};
use nix::unistd::{User, geteuid};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the server is called in the file of known hosts: it has one key in all jobs of a user.
const ALIAS: &str = "gpupool-job";

/// Makes the keys where they are missing, and prints the lines.
///
/// # Errors
/// No home directory; no ssh-keygen; a file that cannot be written.
pub(crate) fn run() -> Outcome {
    let user = User::from_uid(geteuid()).map_err(Failure::new)?;
    let user = user.ok_or_else(|| Failure::new("this uid has no name here"))?;
    let home = std::env::var_os("HOME").map_or(user.dir, PathBuf::from);
    let dir = home.join(ssh_keys::DIRECTORY);
    let mut builder = DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(|e| cannot("make", &dir, &e))?;
    let [own, host] = ["id_ed25519", "host_ed25519"].map(|name| dir.join(name));
    for key in [&own, &host] {
        make_key(key)?;
    }
    let public = host.with_extension("pub");
    let text = fs::read_to_string(&public).map_err(|e| cannot("read", &public, &e))?;
    let known = dir.join("known_hosts");
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&known)
        .and_then(|mut file| write!(file, "{ALIAS} {text}"))
        .map_err(|e| cannot("write", &known, &e))?;
    let words = lines(&user.name, &own, &known, &proxy()?);
    stdout()?.write_all(words.as_bytes())?;
    Ok(0)
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format_args!("cannot {what} {}: {error}", path.display()))
}

/// A key that is there stays: other terminals may be using it.
fn make_key(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        return Ok(());
    }
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", ALIAS, "-f"])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    match made {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new(format_args!(
            "ssh-keygen -f {}: {status}",
            path.display()
        ))),
        Err(e) => Err(Failure::new(format_args!(
            "ssh-keygen: {e}. It comes with the OpenSSH client"
        ))),
    }
}

/// grun beside this program, with the configuration that holds here.
fn proxy() -> Result<String, Failure> {
    let own = std::env::current_exe().map_err(Failure::new)?;
    let grun = own.with_file_name("grun");
    let grun = shell_word(&grun.display().to_string());
    Ok(match std::env::var("GPUPOOL_CONFIG") {
        Ok(config) if !config.is_empty() => {
            format!("env GPUPOOL_CONFIG={} {grun}", shell_word(&config))
        }
        _ => grun,
    })
}

/// ssh gives the command to a shell, after its own `%`.
fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''").replace('%', "%%"))
}

fn lines(user: &str, key: &Path, known: &Path, proxy: &str) -> String {
    let quoted = |path: &Path| format!("\"{}\"", path.display().to_string().replace('%', "%%"));
    format!(
        "# gpupool: `ssh gpupool-17` is a shell in job 17, `ssh gpupool-17.node2` on its node node2.\n\
         Host gpupool-*\n\
         \x20   User {user}\n\
         \x20   ProxyCommand {proxy} --ssh %n\n\
         \x20   HostKeyAlias {ALIAS}\n\
         \x20   UserKnownHostsFile {}\n\
         \x20   StrictHostKeyChecking yes\n\
         \x20   UpdateHostKeys no\n\
         \x20   IdentityFile {}\n\
         \x20   IdentitiesOnly yes\n\
         \x20   PreferredAuthentications publickey\n",
        quoted(known),
        quoted(key)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_blanks_quotes_and_percents_stay_one_word() {
        assert_eq!(shell_word("/a b/it's 5%"), "'/a b/it'\\''s 5%%'");
        let text = lines("ada", Path::new("/h o/k"), Path::new("/h/5%"), "grun");
        assert!(text.contains("IdentityFile \"/h o/k\"\n"), "{text}");
        assert!(text.contains("UserKnownHostsFile \"/h/5%%\"\n"), "{text}");
    }
}
