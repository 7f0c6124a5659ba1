//! The launch context of a submission: directories, files, signals, mail, the login environment.

use crate::choice::Choices;
use crate::container_words;
use crate::option_value::{filled, parsed};
use crate::option_words::GivenOption;
use crate::resource_limits;
use crate::script::Work;
use gcli::Failure;
use gmodel::job::{Launch, LaunchContext, OpenMode, SoftLimit, VisibleDevices};
use gmodel::signal::SigSpec;
use gmodel::{Timestamp, pattern};
use std::path::{Path, PathBuf};

/// What the submitting process is and where.
#[derive(Clone, Debug, Default)]
pub(crate) struct Submitter {
    pub work_dir: Option<String>,
    pub host: String,
    pub umask: u32,
    pub limits: Vec<SoftLimit>,
    pub now: Timestamp,
    /// Its directory and its variables are of no use where the job runs.
    pub outside: bool,
}

pub(crate) fn launch(
    choices: &mut Choices,
    work: &Work,
    submitter: &Submitter,
) -> Result<Launch, Failure> {
    let file = |choices: &mut Choices, name: &str| {
        let checked = |text: &str| match text {
            _ if text.eq_ignore_ascii_case("none") => Ok("/dev/null".to_owned()),
            _ => pattern::check(text).map(|()| text.to_owned()),
        };
        parsed(choices.take(name), checked).map(Option::unwrap_or_default)
    };
    let text = |given: Option<GivenOption>| given.map(|given| given.text().to_owned());
    let work_dir = work_dir(choices.take("chdir"), submitter)?;
    let submit_dir = submitter
        .work_dir
        .clone()
        .filter(|dir| *dir != work_dir)
        .unwrap_or_default();
    let container = container_words::chosen(choices, here(submitter))?;
    let around = LaunchContext {
        container,
        work_dir,
        submit_dir,
        submit_host: submitter.host.clone(),
        stdout: file(choices, "output")?,
        stderr: file(choices, "error")?,
        stdin: file(choices, "input")?,
        open_mode: parsed(choices.take("open-mode"), open_mode)?,
        visible_devices: parsed(choices.take("visible-devices"), visible_devices)?,
        umask: submitter.umask,
        rlimits: parsed(filled(choices.take("propagate")), |names| {
            resource_limits::named(&submitter.limits, names)
        })?
        .unwrap_or_else(|| submitter.limits.clone()),
        signal: parsed(choices.take("signal"), SigSpec::parse)?,
        mail_type: parsed(filled(choices.take("mail-type")), mail_type)?,
        mail_user: text(choices.take("mail-user")),
        ..LaunchContext::default()
    };
    Ok(Launch {
        argv: work.argv.clone(),
        command: work.command.clone(),
        ..around.into()
    })
}

fn here(submitter: &Submitter) -> &str {
    submitter.work_dir.as_deref().unwrap_or("/")
}

/// How long a login shell may take to show its environment, without a word and at most.
pub(crate) const LOGIN_ENV_SECS: u32 = 30;

/// `--get-user-env`, `=10`, `=10L`, `=L`: the seconds that reading may take.
pub(crate) fn login_env(given: Option<GivenOption>) -> Result<Option<u32>, Failure> {
    let Some(given) = given else { return Ok(None) };
    let text = given.text();
    if text.ends_with(['S', 's']) {
        return Err(given.fail(format_args!("{text:?}: an su without a login reads nothing of the user's. Write L, or leave the letter out")));
    }
    match text.strip_suffix(['L', 'l']).unwrap_or(text) {
        "" => Ok(Some(LOGIN_ENV_SECS)),
        secs => match secs.parse() {
            Ok(secs @ 1..=MAX_LOGIN_ENV_SECS) => Ok(Some(secs)),
            _ => Err(given.fail(format_args!(
                "{text:?} is not a number of seconds from 1 to {MAX_LOGIN_ENV_SECS}"
            ))),
        },
    }
}

const MAX_LOGIN_ENV_SECS: u32 = 600;

fn work_dir(chdir: Option<GivenOption>, submitter: &Submitter) -> Result<String, Failure> {
    let here = submitter.work_dir.as_deref();
    match (chdir, here) {
        (Some(given), _) if given.text().is_empty() => Err(given.fail("it names no directory")),
        (Some(given), _) if given.text().starts_with('/') => Ok(given.text().to_owned()),
        // `-D .` is where we are, not `/home/me/.`.
        (Some(given), Some(here)) => Ok(Path::new(here)
            .join(given.text())
            .components()
            .collect::<PathBuf>()
            .to_string_lossy()
            .into_owned()),
        (None, Some(here)) => Ok(here.to_owned()),
        (_, None) => Err(Failure::new(
            "the working directory no longer exists. Change to one that does, or use --chdir with an absolute path",
        )),
    }
}

/// The words of `--mail-type`, checked.
fn mail_type(text: &str) -> Result<String, String> {
    gmodel::mail::mail_events(text).map(|_| text.to_owned())
}

fn visible_devices(text: &str) -> Result<VisibleDevices, String> {
    let known = VisibleDevices::WORDS
        .iter()
        .find(|(word, _)| word.eq_ignore_ascii_case(text));
    known
        .map(|(_, visible)| *visible)
        .ok_or_else(|| format!("{text:?} is neither index nor uuid"))
}

fn open_mode(text: &str) -> Result<OpenMode, String> {
    match text.to_ascii_lowercase().as_str() {
        "append" | "a" => Ok(OpenMode::Append),
        "truncate" | "t" => Ok(OpenMode::Truncate),
        _ => Err(format!("{text:?} is neither append nor truncate")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_gone_is_refused() {
        let lost = work_dir(None, &Submitter::default()).unwrap_err();
        assert!(lost.text.contains("no longer exists"), "{}", lost.text);
    }
}
