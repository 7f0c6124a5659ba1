//! What is to be run: a script from a file, from stdin, from `--wrap`, or a command behind `--`.
//!
//! Files are opened by the user's own process. Owns the advice for what is no script; never reads options.

use gcli::slurm_words::Cause;
use gcli::{Failure, slurm_name};
use gmodel::byte_text;
use gmodel::directive::{MAX_SCRIPT_BYTES, ScriptError, check_script};
use gmodel::suggest::did_you_mean;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A script or a command, with what the job is called after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Text of the script; empty for a command.
    pub script: String,
    /// Arguments of the script, or the command with its own.
    pub argv: Vec<String>,
    /// What messages call the script: its path as given.
    pub shown: String,
    /// Absolute path of the script's file; empty without one.
    pub command: String,
    /// The job's name unless another is given.
    pub job_name: String,
}

impl Work {
    /// A script's file with its arguments.
    pub(crate) fn from_file(path: &str, argv: Vec<String>) -> Result<Self, Failure> {
        let bytes = read_file(Path::new(OsStr::from_bytes(&byte_text::to_bytes(path))))?;
        let script = text(bytes, path)?;
        let job_name = Path::new(path)
            .file_name()
            .map_or(path.to_owned(), |name| name.to_string_lossy().into_owned());
        let absolute = std::path::absolute(OsStr::from_bytes(&byte_text::to_bytes(path)));
        let command = absolute.map_or(path.to_owned(), |path| {
            byte_text::from_bytes(path.as_os_str().as_bytes())
        });
        Ok(Self {
            script,
            argv,
            shown: path.to_owned(),
            command,
            job_name,
        })
    }

    /// A script on stdin.
    pub(crate) fn from_stdin() -> Result<Self, Failure> {
        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            let _ = gcli::failure::note(
                "gsub",
                "reading the script from the terminal; end it with Ctrl-D (gsub --help for more)",
            );
        }
        let bytes = read_bounded(stdin.lock()).map_err(|error| {
            Failure::new(format_args!("cannot read the script from stdin: {error}"))
        })?;
        let script = text(bytes, "stdin")?;
        Ok(Self {
            script,
            shown: "stdin".to_owned(),
            job_name: slurm_name::of(std::env::args_os().next())
                .unwrap_or("gsub")
                .to_owned(),
            ..Self::default()
        })
    }

    /// `--wrap`.
    pub(crate) fn wrapped(command: &str) -> Self {
        let script = format!("#!/bin/sh\n# made by gsub --wrap\n\n{command}\n");
        Self {
            script,
            shown: "--wrap".to_owned(),
            job_name: "wrap".to_owned(),
            ..Self::default()
        }
    }

    /// A command with its arguments.
    pub(crate) fn from_command(argv: Vec<String>) -> Self {
        let name = argv.first().map(|word| {
            Path::new(word)
                .file_name()
                .map_or(word.clone(), |name| name.to_string_lossy().into_owned())
        });
        Self {
            argv,
            job_name: name.unwrap_or_default(),
            ..Self::default()
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    let shown = path.display();
    let file = File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::new(format_args!(
            "cannot open {shown}: there is no such file.{}",
            similar(path)
        )),
        _ => Failure::new(format_args!("cannot open {shown}: {error}")),
    });
    let file = file.map_err(|failure| {
        failure.because(Cause::Said(format!(
            "sbatch: error: Unable to open file {shown}"
        )))
    })?;
    let metadata = file
        .metadata()
        .map_err(|error| Failure::new(format_args!("cannot read {shown}: {error}")))?;
    if metadata.is_dir() {
        return Err(Failure::new(format_args!(
            "{shown} is a directory. Name the script in it"
        )));
    }
    if metadata.is_file() && metadata.len() > MAX_SCRIPT_BYTES as u64 {
        let bytes = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        return Err(Failure::new(format_args!(
            "{shown}: {}",
            ScriptError::TooLarge { bytes }
        )));
    }
    read_bounded(file).map_err(|error| Failure::new(format_args!("cannot read {shown}: {error}")))
}

/// Reads a byte more than a script may have, so that the check sees that it is too long.
fn read_bounded(source: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source
        .take(MAX_SCRIPT_BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn text(bytes: Vec<u8>, shown: &str) -> Result<String, Failure> {
    check_script(&bytes).map_err(|error| Failure::new(format_args!("{shown}: {error}")))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count() + 1;
        Failure::new(format_args!("{shown}: line {line} is not UTF-8. Convert it, for instance with: iconv -f latin1 -t utf8 SCRIPT"))
    })
}

/// ` Did you mean "train.sh"?` from the files beside it.
fn similar(path: &Path) -> String {
    let dir = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let Some(name) = path.file_name().map(|name| name.to_string_lossy()) else {
        return String::new();
    };
    let entries = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .take(1000);
    let names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    did_you_mean(&name, names.iter().map(String::as_str))
}
