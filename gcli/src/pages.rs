//! Man pages and shell completions, from the same clap commands that read the command lines.

use crate::failure::Failure;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use std::io::Write;
use std::path::Path;

/// Writes `NAME.1` (`section` otherwise) for the command into a directory; returns the file's name.
/// Subcommands are on the page of their command.
///
/// # Errors
/// What stands against writing.
pub fn write_man_page(command: &Command, section: &str, dir: &Path) -> Result<String, Failure> {
    let file = format!("{}.{section}", command.get_name());
    let mut page = Vec::new();
    render(command.clone(), section, &mut page).map_err(Failure::from)?;
    let path = dir.join(&file);
    std::fs::write(&path, page).map_err(|error| Failure::new(format_args!("cannot write {}: {error}", path.display())))?;
    Ok(file)
}

fn render(mut command: Command, section: &str, out: &mut Vec<u8>) -> std::io::Result<()> {
    command.build();
    let version = env!("CARGO_PKG_VERSION");
    let man = Man::new(command.clone())
        .section(section)
        .source(format!("gpupool {version}"))
        .manual("gpupool")
        // The day of the build must not change the page.
        .date("");
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    render_subcommands(&command, command.get_name(), out)?;
    man.render_extra_section(out)
}

/// Each subcommand with its options, nested ones too, where its command is described.
fn render_subcommands(command: &Command, path: &str, out: &mut Vec<u8>) -> std::io::Result<()> {
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help" && !sub.is_hide_set()) {
        let path = format!("{path} {}", sub.get_name());
        writeln!(out, ".SH \"{}\"", path.to_uppercase())?;
        if sub.get_subcommands().next().is_none() {
            let man = Man::new(sub.clone());
            let mut section = Vec::new();
            man.render_description_section(&mut section)?;
            man.render_options_section(&mut section)?;
            let text = String::from_utf8_lossy(&section).replace(".SH DESCRIPTION\n", "").replace(".SH OPTIONS\n", ".PP\n");
            let usage = sub.clone().render_usage().to_string();
            let usage = usage.trim_start_matches("Usage: ");
            writeln!(out, "\\fB{}\\fR\n.PP\n{text}", usage.replace('-', "\\-").replace('\n', "\n.br\n"))?;
        } else if let Some(about) = sub.get_about() {
            writeln!(out, "{about}")?;
        }
        render_subcommands(sub, &path, out)?;
    }
    Ok(())
}

/// The completion script of a command for a shell.
pub fn completion(command: &mut Command, shell: Shell) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, command, name, &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    fn sample() -> Command {
        Command::new("gx").about("Does x").after_help("Examples:\n  gx --fast").arg(Arg::new("fast").long("fast").help("Be quick")).subcommand(
            Command::new("node").about("Nodes").subcommand(Command::new("drain").about("No new work").arg(Arg::new("reason").long("reason"))),
        )
    }

    #[test]
    fn a_man_page_has_options_subcommands_and_examples() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(write_man_page(&sample(), "1", dir.path()).unwrap(), "gx.1");
        let page = std::fs::read_to_string(dir.path().join("gx.1")).unwrap();
        for part in [".TH gx 1", "\\-\\-fast", "GX NODE DRAIN", "\\-\\-reason", "Examples"] {
            assert!(page.contains(part), "{part} in {page}");
        }
    }

    #[test]
    fn completions_know_the_options() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(completion(&mut sample(), shell)).unwrap();
            assert!(script.contains("fast"), "{shell}");
        }
    }
}
