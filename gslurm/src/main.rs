//! `gslurm`: Slurm's commands. It is called through links of their names, which `gadm slurm-names` makes.
//!
//! Owns what is Slurm's own: words, columns, JSON. The work is done by the code of gsub, gq and gadm.

use gcli::pages::{ManPage, PRINT_PAGE};
use gcli::table::stdout;
use gcli::{Failure, Outcome, slurm_name};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

mod json;
mod ruled_table;
mod sacctmgr;
mod scontrol;
mod sdiag;
mod seff;
mod sinfo;
mod sprio;
mod squeue;
mod sreport;
mod sshare;

/// What each of `slurm_name::NAMES` runs. sbatch, srun, scancel and sstat differ from the commands of gpupool in a few words
/// only, which these know themselves.
const COMMANDS: [(&str, fn(Vec<OsString>) -> Outcome); 17] = [
    ("sacct", |words| {
        gq::accounting::sacct(words, json::print_runs)
    }),
    ("sacctmgr", sacctmgr::main),
    ("salloc", gsub::salloc::main),
    ("sattach", gsub::watch::main),
    ("sbatch", gsub::submit::main),
    ("sbcast", gsub::sbcast::main),
    ("scancel", gq::cancel::main),
    ("scontrol", scontrol::main),
    ("sdiag", sdiag::main),
    ("seff", seff::main),
    ("sinfo", sinfo::main),
    ("sprio", sprio::main),
    ("squeue", squeue::main),
    ("sreport", sreport::main),
    ("srun", gsub::watch::grun),
    ("sshare", sshare::main),
    ("sstat", gq::accounting::sstat),
];

fn main() -> ExitCode {
    gcli::failure::run("gslurm", || run(std::env::args_os().collect()))
}

/// Commands with options of their own, which have pages of their own.
const PAGES: [(&str, fn() -> ManPage); 3] = [
    ("salloc", gsub::salloc::page),
    ("sattach", gsub::watch::page),
    ("sbcast", gsub::sbcast::page),
];

fn run(words: Vec<OsString>) -> Outcome {
    let name = slurm_name::of(words.first());
    if let (None, [_, option, asked]) = (name, &words[..])
        && option == PRINT_PAGE
        && let Some((_, page)) = PAGES.iter().find(|(name, _)| asked == name)
    {
        stdout()?.write_all(&page().text()?)?;
        return Ok(0);
    }
    let words = help_words(name, words);
    let command = COMMANDS.iter().find(|(known, _)| Some(*known) == name);
    match command {
        // Behind the options of these four stands a user's command.
        Some((name, main)) if !["salloc", "sbatch", "sbcast", "srun"].contains(name) => {
            main(json_words(words)?)
        }
        Some((_, main)) => main(words),
        None => Err(Failure::usage(
            "this program stands behind links of Slurm's names: eval $(gadm slurm-names DIR) makes them",
        )),
    }
}

/// Commands made of words take `help` as one.
fn help_words(name: Option<&str>, mut words: Vec<OsString>) -> Vec<OsString> {
    let made_of_words =
        name.is_some_and(|name| ["sacctmgr", "scontrol", "sreport"].contains(&name));
    let first = words
        .iter_mut()
        .skip(1)
        .find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    if let Some(word) = first.filter(|word| made_of_words && word.eq_ignore_ascii_case("help")) {
        *word = "--help".into();
    }
    words
}

/// What `--json=` and `--yaml=` may name: the shape printed is that of v0.0.43, which differs from the others in few keys.
const DATA_PARSERS: [&str; 5] = ["v0.0.40", "v0.0.41", "v0.0.42", "v0.0.43", "v0.0.44"];

/// `--json=v0.0.43` and `--yaml` as `--json`, the one option that commands know; `json` keeps what was meant.
fn json_words(words: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    let is_yaml = |word: &OsString| word.to_string_lossy().split('=').next() == Some("--yaml");
    let mut options = words.iter().take_while(|word| *word != "--");
    json::remember(&words, options.any(is_yaml));
    let mut is_option = true;
    let read = |word: OsString| {
        is_option &= word != "--";
        let Some(text) = word.to_str().filter(|_| is_option) else {
            return Ok(word);
        };
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        if !["--json", "--yaml"].contains(&name) {
            return Ok(word);
        }
        match value.split('+').next().unwrap_or_default() {
            "" => {}
            known if DATA_PARSERS.contains(&known) => {}
            other => {
                return Err(Failure::usage(format_args!(
                    "{name}={other}: no such data_parser. Known are {}",
                    DATA_PARSERS.join(", ")
                )));
            }
        }
        Ok("--json".into())
    };
    words.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_asked_for_by_version_and_as_yaml() {
        let read = |text: &str| {
            json_words(text.split(' ').map(OsString::from).collect()).map(|words| {
                let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
                words.join(" ")
            })
        };
        assert_eq!(
            read("squeue --json=v0.0.42 --me").unwrap(),
            "squeue --json --me"
        );
        assert_eq!(
            read("sacct --yaml=v0.0.41+complex").unwrap(),
            "sacct --json"
        );
        assert_eq!(read("squeue -- --yaml").unwrap(), "squeue -- --yaml");
        assert!(
            read("sinfo --json=list")
                .unwrap_err()
                .text
                .contains("Known are v0.0.40")
        );
    }

    #[test]
    fn help_may_be_asked_for_by_a_word() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let read = |name, text| help_words(Some(name), words(text));
        assert_eq!(
            read("scontrol", "scontrol -o Help"),
            words("scontrol -o --help")
        );
        assert_eq!(
            read("scontrol", "scontrol show help"),
            words("scontrol show help")
        );
        assert_eq!(read("squeue", "squeue help"), words("squeue help"));
    }

    #[test]
    fn every_name_has_its_command() {
        assert_eq!(COMMANDS.map(|(name, _)| name), slurm_name::NAMES);
    }
}
