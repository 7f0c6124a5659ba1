//! `gadm man` and `gadm completions`: for all commands, from what reads their command lines.

use clap::Command;
use clap_complete::Shell;
use gcli::pages::{completion, write_man_page};
use gcli::table::stdout;
use gcli::{Failure, Outcome};
use std::io::Write;
use std::path::PathBuf;

/// Options of `gadm man`.
#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// Directory for the pages; made if it is missing
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Options of `gadm completions`.
#[derive(clap::Args)]
pub(crate) struct CompletionArgs {
    /// bash, zsh, fish, elvish or powershell
    #[arg(value_name = "SHELL")]
    shell: Shell,
    /// Only those of this command
    #[arg(long, value_name = "NAME")]
    command: Option<String>,
}

/// The commands of users, each with its manual section.
fn user_commands() -> Vec<Command> {
    vec![
        gsub::submit::command(),
        gsub::step::command(),
        gq::queue::command(),
        gq::cancel::command(),
        gq::nodes::command(),
        gq::accounting::command(),
    ]
}

pub(crate) fn man(args: &ManArgs, gadm: &Command) -> Outcome {
    std::fs::create_dir_all(&args.dir).map_err(|error| Failure::new(format_args!("cannot make {}: {error}", args.dir.display())))?;
    let mut out = stdout()?;
    let pages = user_commands().into_iter().map(|command| (command, "1")).chain([(gadm.clone(), "8")]);
    for (command, section) in pages {
        writeln!(out, "{}", write_man_page(&command, section, &args.dir)?)?;
    }
    out.flush()?;
    Ok(0)
}

pub(crate) fn completions(args: &CompletionArgs, gadm: Command) -> Outcome {
    let mut commands = user_commands();
    commands.push(gadm);
    if let Some(name) = &args.command {
        commands.retain(|command| command.get_name() == name);
        if commands.is_empty() {
            return Err(Failure::usage(format_args!("--command: there is no command {name:?}")));
        }
    }
    let mut out = stdout()?;
    for mut command in commands {
        out.write_all(&completion(&mut command, args.shell))?;
    }
    out.flush()?;
    Ok(0)
}
