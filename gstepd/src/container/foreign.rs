//! What programs find in an image whose files say it themselves: those of enroot (`/etc/environment`, `/etc/rc`) and those of Apptainer
//! and Singularity (`/.singularity.d`). Text of the image, hostile until it is bounded.
//! Source: enroot's import(1) and conf/; the environment files that Apptainer writes for images of Docker.

use crate::container::image::ImageConfig;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

const MAX_BYTES: u64 = 256 << 10;
const MAX_VARIABLES: usize = 1024;
/// What enroot makes of the image's start.
const RC: &str = "etc/rc";
const ENVIRONMENT: &str = "etc/environment";
/// In the order in which they count; names of Apptainer's files for an image of Docker have changed.
const APPTAINER: [&str; 2] = [
    ".singularity.d/env/10-docker2singularity.sh",
    ".singularity.d/env/90-environment.sh",
];
const RUNSCRIPT: &str = ".singularity.d/runscript";

/// Of the files below `root`; nothing where they say nothing.
pub fn config_in(root: &Path) -> ImageConfig {
    let mut config = ImageConfig::default();
    let mut variable = |name: &str, value: &str| {
        let is_name = !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && !name.starts_with(|c: char| c.is_ascii_digit());
        if is_name && config.env.len() < MAX_VARIABLES {
            config.env.push(format!("{name}={value}"));
        }
    };
    if let Some(text) = read(root, ENVIRONMENT) {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for (name, value) in lines.filter_map(|line| line.split_once('=')) {
            variable(name.trim(), unquoted(value.trim()));
        }
    }
    for text in APPTAINER.iter().filter_map(|file| read(root, file)) {
        for (name, value) in text.lines().filter_map(exported) {
            variable(&name, &value);
        }
    }
    if let Some(text) = read(root, RC) {
        config.entrypoint = ["/bin/sh", "/etc/rc"].map(str::to_owned).to_vec();
        let place = text.lines().find_map(|line| line.strip_prefix("cd \""));
        let place = place.and_then(|rest| Some(rest.split_once('"')?.0));
        config.work_dir = place.unwrap_or_default().to_owned();
    } else if read(root, RUNSCRIPT).is_some() {
        let words = ["/bin/sh".to_owned(), format!("/{RUNSCRIPT}")];
        config.entrypoint = words.to_vec();
    }
    config
}

/// Leaves the variables of an image in its files, as enroot does, for a copy of these files that has nothing else of the image. Those
/// that its files name already stay as they are.
///
/// # Errors
/// The file cannot be written.
pub fn leave_variables(root: impl AsFd, env: &[String]) -> io::Result<()> {
    let known = read_at(&root, ENVIRONMENT).unwrap_or_default();
    let name = |line: &str| line.split('=').next().unwrap_or_default().to_owned();
    let has: BTreeSet<String> = known.lines().map(name).collect();
    let more = env
        .iter()
        .filter(|line| !line.contains('\n') && !has.contains(&name(line)));
    let text: String = more.flat_map(|line| [line, "\n"]).collect();
    if text.is_empty() {
        return Ok(());
    }
    let newline = if known.is_empty() || known.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    let file = rustix::fs::openat2(root, ENVIRONMENT, flags, mode, ResolveFlags::IN_ROOT)?;
    File::from(file).write_all(format!("{newline}{text}").as_bytes())
}

/// `export PATH="/bin"`, `export A="${A:-"b"}"`; none that a shell would have to work out.
fn exported(line: &str) -> Option<(String, String)> {
    let (name, value) = line.trim().strip_prefix("export ")?.split_once('=')?;
    let mut value = unquoted(value);
    if let Some(inner) = value.strip_prefix("${") {
        let (of, inner) = inner.strip_suffix('}')?.split_once(":-")?;
        if of != name {
            return None;
        }
        value = unquoted(inner);
    }
    let is_plain = !value.contains(['$', '`', '\\', '"']);
    is_plain.then(|| (name.to_owned(), value.to_owned()))
}

fn unquoted(text: &str) -> &str {
    let within = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    within('"').or_else(|| within('\'')).unwrap_or(text)
}

/// Links of the image stay within it.
fn read(root: &Path, name: &str) -> Option<String> {
    read_at(&File::open(root).ok()?, name)
}

fn read_at(dir: impl AsFd, name: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::openat2(dir, name, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
    let file = File::from(file);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn images_of_enroot_and_of_apptainer_say_what_their_programs_find() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(config_in(dir.path()), ImageConfig::default());
        put(
            ".singularity.d/env/10-docker2singularity.sh",
            "#!/bin/sh\nexport PATH=\"/opt/bin:/bin\"\nexport A=\"${A:-\"b c\"}\"\nexport B=\"${X:-y}\"\nexport C=\"$(id)\"\n",
        );
        put(".singularity.d/runscript", "#!/bin/sh\n");
        let config = config_in(dir.path());
        assert_eq!(config.env, ["PATH=/opt/bin:/bin", "A=b c"]);
        assert_eq!(config.entrypoint, ["/bin/sh", "/.singularity.d/runscript"]);
        put(
            "etc/environment",
            "# x\nPATH=\"/usr/bin\"\nWHO=of enroot\n1=x\n",
        );
        put(
            "etc/rc",
            "mkdir -p \"/work\" 2> /dev/null\ncd \"/work\" && unset OLDPWD || exit 1\n",
        );
        let config = config_in(dir.path());
        assert_eq!(config.env[..2], ["PATH=/usr/bin", "WHO=of enroot"]);
        assert_eq!(
            (config.work_dir.as_str(), config.entrypoint[1].as_str()),
            ("/work", "/etc/rc")
        );
    }

    #[test]
    fn a_link_out_of_the_image_leads_nowhere() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(dir.path().join("etc")).unwrap();
        let secret = outside.path().join("environment");
        fs::write(&secret, "A=secret\n").unwrap();
        std::os::unix::fs::symlink(&secret, dir.path().join("etc/environment")).unwrap();
        assert_eq!(config_in(dir.path()), ImageConfig::default());
    }
}
