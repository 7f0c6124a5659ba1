//! `gadm man` and `gadm completions`: for all commands. Each program prints its own; this collects them.

use clap::ValueEnum;
use clap_complete::Shell;
use gcli::pages::{ManPage, PRINT_COMPLETION, PRINT_PAGE, completion};
use gcli::table::stdout;
use gcli::{Failure, Outcome, reason_page};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// The programs beside `gadm`. Their pages are in section 1.
const PROGRAMS: [&str; 7] = ["gsub", "grun", "gq", "gdel", "gnodes", "gacct", "gtop"];

/// Commands behind Slurm's names with options of their own.
const SLURM_PAGES: [&str; 3] = ["salloc", "sattach", "sbcast"];

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

/// What a program beside `gadm` prints.
fn printed_by(program: &str, words: &[&str]) -> Result<Vec<u8>, Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::new(format_args!("cannot tell where gadm is: {error}")))?;
    let path = own.with_file_name(program);
    let ran = Command::new(&path)
        .args(words)
        .output()
        .map_err(|error| Failure::new(format_args!("cannot run {}: {error}", path.display())))?;
    match ran.status.success() {
        true => Ok(ran.stdout),
        false => Err(Failure::new(format_args!(
            "{} {}: {}",
            path.display(),
            words.join(" "),
            String::from_utf8_lossy(&ran.stderr).trim_end()
        ))),
    }
}

pub(crate) fn man(args: &ManArgs, gadm: ManPage) -> Outcome {
    std::fs::create_dir_all(&args.dir).map_err(|error| {
        Failure::new(format_args!("cannot make {}: {error}", args.dir.display()))
    })?;
    let mut pages = Vec::new();
    for program in PROGRAMS {
        pages.push((format!("{program}.1"), printed_by(program, &[PRINT_PAGE])?));
    }
    for name in SLURM_PAGES {
        let page = printed_by("gslurm", &[PRINT_PAGE, name])?;
        pages.push((format!("{name}.1"), page));
    }
    pages.push(("gadm.8".to_owned(), gadm.text()?));
    let mut out = stdout()?;
    for (file, page) in pages {
        let path = args.dir.join(&file);
        std::fs::write(&path, page).map_err(|error| {
            Failure::new(format_args!("cannot write {}: {error}", path.display()))
        })?;
        writeln!(out, "{file}")?;
    }
    writeln!(out, "{}", reason_page::write(&args.dir)?)?;
    out.flush()?;
    Ok(0)
}

pub(crate) fn completions(args: &CompletionArgs, mut gadm: ManPage) -> Outcome {
    let shell = args.shell.to_possible_value();
    let shell = shell.as_ref().map_or("", |shell| shell.get_name());
    let is_meant = |name: &&str| args.command.as_deref().is_none_or(|wanted| wanted == *name);
    let mut scripts = Vec::new();
    for program in PROGRAMS.into_iter().filter(is_meant) {
        scripts.push(printed_by(program, &[PRINT_COMPLETION, shell])?);
    }
    if is_meant(&"gadm") {
        scripts.push(completion(&mut gadm.command, args.shell));
    }
    if let (Some(name), true) = (&args.command, scripts.is_empty()) {
        return Err(Failure::usage(format_args!(
            "--command: there is no command {name:?}"
        )));
    }
    let mut out = stdout()?;
    out.write_all(&scripts.concat())?;
    out.flush()?;
    Ok(0)
}
