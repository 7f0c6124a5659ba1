//! `gadm man` and `gadm completions`: for all commands, from what reads their command lines.

use clap::Command;
use clap_complete::Shell;
use gcli::pages::{ManPage, completion};
use gcli::table::stdout;
use gcli::{Failure, Outcome, reason_page};
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

/// The pages of all commands.
fn pages(gadm: Command) -> Vec<ManPage> {
    let page = |command, exit_status, see_also| ManPage {
        command,
        section: "1",
        exit_status,
        see_also,
    };
    vec![
        page(
            gsub::submit::command(),
            "With --wait: what the job exits with, 128 and the number of the signal that ended it, or 1 if it never ran.",
            "grun(1), gq(1), gdel(1), gacct(1), gpupool(7), gpupool-json(5)",
        ),
        page(
            gsub::step::command(),
            "Else the highest of its tasks: what each exits with, or 128 and the number of the signal that ended it.",
            "gsub(1), gq(1), gacct(1), gpupool(7)",
        ),
        page(
            gq::queue::command(),
            "",
            "gsub(1), gdel(1), gnodes(1), gacct(1), gpupool(7), gpupool-reasons(7), gpupool-json(5)",
        ),
        page(
            gq::cancel::command(),
            "1 also when one of several jobs was refused; the others are cancelled.",
            "gsub(1), gq(1), gpupool(7)",
        ),
        page(
            gq::nodes::command(),
            "",
            "gq(1), gadm(8), gpupool(7), gpupool-json(5)",
        ),
        page(
            gq::accounting::command(),
            "",
            "gq(1), gadm(8), gpupool(7), gpupool-json(5)",
        ),
        ManPage {
            command: gadm,
            section: "8",
            exit_status: "",
            see_also: "gq(1), gnodes(1), gacct(1), gpuctld.toml(5), gpud.toml(5), gpuctld(8), gpud(8), gpupool(7)",
        },
    ]
}

pub(crate) fn man(args: &ManArgs, gadm: Command) -> Outcome {
    std::fs::create_dir_all(&args.dir).map_err(|error| {
        Failure::new(format_args!("cannot make {}: {error}", args.dir.display()))
    })?;
    let mut out = stdout()?;
    for page in pages(gadm) {
        writeln!(out, "{}", page.write(&args.dir)?)?;
    }
    writeln!(out, "{}", reason_page::write(&args.dir)?)?;
    out.flush()?;
    Ok(0)
}

pub(crate) fn completions(args: &CompletionArgs, gadm: Command) -> Outcome {
    let mut commands: Vec<Command> = pages(gadm).into_iter().map(|page| page.command).collect();
    if let Some(name) = &args.command {
        commands.retain(|command| command.get_name() == name);
        if commands.is_empty() {
            return Err(Failure::usage(format_args!(
                "--command: there is no command {name:?}"
            )));
        }
    }
    let mut out = stdout()?;
    for mut command in commands {
        out.write_all(&completion(&mut command, args.shell))?;
    }
    out.flush()?;
    Ok(0)
}
