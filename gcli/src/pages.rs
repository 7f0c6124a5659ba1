//! Man pages and shell completions, from the same clap commands that read the command lines.
//!
//! Each program prints its own on a hidden option; `gadm man` and `gadm completions` collect them.

use crate::failure::{self, Failure};
use crate::table::stdout;
use clap::{Command, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;
use std::env::ArgsOs;
use std::io::Write;
use std::process::ExitCode;

/// The hidden option that prints a program's man page.
pub const PRINT_PAGE: &str = "--print-man-page";
/// The hidden option that prints the completions of a program for the shell named after it.
pub const PRINT_COMPLETION: &str = "--print-completions";

/// A command's page: what clap knows of it, and what it does not.
pub struct ManPage {
    pub command: Command,
    /// `1`, `8`.
    pub section: &'static str,
    /// What it exits with beside the codes that all commands have; may be empty.
    pub exit_status: &'static str,
    /// Pages of its kind: `gq(1)`.
    pub see_also: &'static str,
}

/// What holds for every command.
const EXIT_CODES: &str =
    "0 done, 1 refused or failed, 2 wrong usage, 3 the controller cannot be reached, 255 a bug.";
const ENVIRONMENT: &str = ".TP\n\\fBGPUPOOL_CONFIG\\fR\nThe file with its configuration.\n\
    .TP\n\\fBGPUPOOL_TOKEN_FILE\\fR\nThe file with the token, where the controller is asked over the network.\n\
    .TP\n\\fBNO_COLOR\\fR\nNo colours, whatever it is set to.\n";
const FILES: &str = ".TP\n\\fI~/.config/gpupool/gpupool.toml\\fR, \\fI/etc/gpupool/gpupool.toml\\fR\n\
    Its configuration where GPUPOOL_CONFIG names none, the first of these that is there: where the controller is, see gpupool.toml(5).\n";

impl ManPage {
    /// The page in roff. Subcommands are on the page of their command.
    ///
    /// # Errors
    /// The renderer's.
    pub fn text(mut self) -> Result<Vec<u8>, Failure> {
        self.command.build();
        let mut page = Vec::new();
        self.render(&mut page)?;
        Ok(page)
    }

    fn render(&self, out: &mut Vec<u8>) -> std::io::Result<()> {
        let version = env!("CARGO_PKG_VERSION");
        let man = Man::new(self.command.clone())
            .section(self.section)
            .source(format!("gpupool {version}"))
            .manual("gpupool")
            // The day of the build must not change the page.
            .date("");
        man.render_title(out)?;
        man.render_name_section(out)?;
        man.render_synopsis_section(out)?;
        man.render_description_section(out)?;
        man.render_options_section(out)?;
        render_subcommands(&self.command, self.command.get_name(), out)?;
        let behind = self
            .command
            .get_after_long_help()
            .or(self.command.get_after_help());
        render_behind_options(&behind.map(ToString::to_string).unwrap_or_default(), out)?;
        writeln!(out, ".SH \"EXIT STATUS\"\n{EXIT_CODES}")?;
        if !self.exit_status.is_empty() {
            writeln!(out, ".PP\n{}", escaped(self.exit_status))?;
        }
        write!(out, ".SH ENVIRONMENT\n{ENVIRONMENT}.SH FILES\n{FILES}")?;
        writeln!(out, ".SH \"SEE ALSO\"\n{}", escaped(self.see_also))
    }
}

/// The help's text behind the options. Its first paragraph are examples, what follows are notes. Indented lines stand as they are.
fn render_behind_options(text: &str, out: &mut Vec<u8>) -> std::io::Result<()> {
    for (at, paragraph) in text
        .split("\n\n")
        .filter(|paragraph| !paragraph.trim().is_empty())
        .enumerate()
    {
        match at {
            0 => writeln!(out, ".SH EXAMPLES")?,
            1 => writeln!(out, ".SH NOTES")?,
            _ => writeln!(out, ".PP")?,
        }
        let is_literal = |line: &&str| line.starts_with(' ');
        let mut lines = paragraph
            .lines()
            .filter(|line| *line != "Examples:")
            .peekable();
        while lines.peek().is_some() {
            std::iter::from_fn(|| lines.next_if(|line| !is_literal(line)))
                .try_for_each(|line| writeln!(out, "{}", escaped(line)))?;
            if lines.peek().is_some() {
                writeln!(out, ".nf")?;
                std::iter::from_fn(|| lines.next_if(is_literal))
                    .try_for_each(|line| writeln!(out, "{}", escaped(line)))?;
                writeln!(out, ".fi")?;
            }
        }
    }
    Ok(())
}

/// Text that roff leaves as it is: its own characters, and a line's first.
pub(crate) fn escaped(line: &str) -> String {
    let text = line
        .replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('\'', "\\(aq");
    if text.starts_with('.') {
        format!("\\&{text}")
    } else {
        text
    }
}

/// Each subcommand with its options, nested ones too, where its command is described.
fn render_subcommands(command: &Command, path: &str, out: &mut Vec<u8>) -> std::io::Result<()> {
    for sub in command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help" && !sub.is_hide_set())
    {
        let path = format!("{path} {}", sub.get_name());
        writeln!(out, ".SH \"{}\"", path.to_uppercase())?;
        if sub.get_subcommands().next().is_none() {
            let man = Man::new(sub.clone());
            let mut section = Vec::new();
            man.render_description_section(&mut section)?;
            man.render_options_section(&mut section)?;
            let text = String::from_utf8_lossy(&section)
                .replace(".SH DESCRIPTION\n", "")
                .replace(".SH OPTIONS\n", ".PP\n");
            let usage = sub.clone().render_usage().to_string();
            let usage = usage.trim_start_matches("Usage: ");
            writeln!(
                out,
                "\\fB{}\\fR\n.PP\n{text}",
                usage.replace('-', "\\-").replace('\n', "\n.br\n")
            )?;
        } else if let Some(about) = sub.get_about() {
            writeln!(out, "{about}")?;
        }
        render_subcommands(sub, &path, out)?;
    }
    Ok(())
}

/// Runs a program as [`failure::run`] does, or prints its man page or completions if its only words ask for that.
pub fn run<E: Into<ExitCode>>(
    program: &'static str,
    page: fn() -> ManPage,
    main: impl FnOnce(ArgsOs) -> Result<E, Failure>,
) -> ExitCode {
    failure::run(program, || {
        let words: Vec<_> = std::env::args_os().skip(1).collect();
        let words: Vec<_> = words.iter().map(|word| word.to_str()).collect();
        let text = match words[..] {
            [Some(PRINT_PAGE)] => page().text()?,
            [Some(PRINT_COMPLETION), Some(shell)] => {
                let shell = Shell::from_str(shell, false).map_err(Failure::usage)?;
                completion(&mut page().command, shell)
            }
            _ => return main(std::env::args_os()).map(Into::into),
        };
        let mut out = stdout()?;
        out.write_all(&text)?;
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    })
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
        Command::new("gx")
            .about("Does x")
            .after_help("Examples:\n  gx --fast 'x'\n\nColumns:\n  %x \\X")
            .arg(Arg::new("fast").long("fast").help("Be quick"))
            .subcommand(
                Command::new("node").about("Nodes").subcommand(
                    Command::new("drain")
                        .about("No new work")
                        .arg(Arg::new("reason").long("reason")),
                ),
            )
    }

    #[test]
    fn a_man_page_has_options_subcommands_and_examples() {
        let page = ManPage {
            command: sample(),
            section: "1",
            exit_status: "7 when x is missing.",
            see_also: "gy(1)",
        };
        let page = String::from_utf8(page.text().unwrap()).unwrap();
        for part in [".TH gx 1", "\\-\\-fast", "GX NODE DRAIN", "\\-\\-reason"] {
            assert!(page.contains(part), "{part} in {page}");
        }
        let end = &page[page.find(".SH EXAMPLES").expect("a section of examples")..];
        let expected = ".SH EXAMPLES\n.nf\n  gx \\-\\-fast \\(aqx\\(aq\n.fi\n.SH NOTES\nColumns:\n.nf\n  %x \\eX\n.fi\n\
            .SH \"EXIT STATUS\"\n0 done,";
        assert!(end.starts_with(expected), "{end}");
        for part in [
            "\n.PP\n7 when x is missing.\n",
            ".SH ENVIRONMENT",
            "GPUPOOL_CONFIG",
            ".SH FILES",
            ".SH \"SEE ALSO\"\ngy(1)",
        ] {
            assert!(end.contains(part), "{part} in {end}");
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
