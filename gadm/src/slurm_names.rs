//! `gadm slurm-names DIR`: links to `gslurm` by which programs that call Slurm find it.
//!
//! Makes missing links and mends links that lead elsewhere; never replaces a file that is no link.

use gcli::{Failure, Outcome, slurm_name};
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Where to.
#[derive(clap::Args)]
pub(crate) struct NamesArgs {
    /// Directory for the links, to be first in PATH; made if it is missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: &NamesArgs) -> Outcome {
    let own = std::env::current_exe()
        .map_err(|error| Failure::new(format_args!("cannot tell where gadm is: {error}")))?;
    let dir = std::path::absolute(&args.dir)
        .map_err(|error| Failure::new(format_args!("{}: {error}", args.dir.display())))?;
    link_all(&dir, own.parent().unwrap_or(Path::new("/")))?;
    writeln!(std::io::stdout(), "export PATH={}:$PATH", dir.display())?;
    Ok(0)
}

/// A link of each of Slurm's names to `gslurm` in the directory `programs`.
pub(crate) fn link_all(dir: &Path, programs: &Path) -> Result<(), Failure> {
    let cannot = |what: &Path, error: &std::io::Error| {
        Failure::new(format_args!("cannot make {}: {error}", what.display()))
    };
    let target = programs.join("gslurm");
    if !target.exists() {
        return Err(Failure::new(format_args!(
            "{} is not there, and all links lead to it. Install gpupool's commands in one directory",
            target.display()
        )));
    }
    fs::create_dir_all(dir).map_err(|error| cannot(dir, &error))?;
    for name in slurm_name::NAMES {
        let link = dir.join(name);
        match fs::read_link(&link) {
            Ok(known) if known == target => continue,
            Ok(_) => fs::remove_file(&link).map_err(|error| cannot(&link, &error))?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(_) => {
                return Err(Failure::new(format_args!(
                    "{} is a file of its own, perhaps Slurm's. Choose another directory",
                    link.display()
                )));
            }
        }
        symlink(&target, &link).map_err(|error| cannot(&link, &error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(dir: &Path) -> PathBuf {
        let programs = dir.join("bin");
        fs::create_dir(&programs).unwrap();
        fs::write(programs.join("gslurm"), "").unwrap();
        programs
    }

    #[test]
    fn all_names_lead_to_gslurm_and_old_links_are_mended() {
        let dir = tempfile::tempdir().unwrap();
        let (programs, links) = (programs(dir.path()), dir.path().join("a/links"));
        fs::create_dir_all(&links).unwrap();
        symlink("/old/gsub", links.join("sbatch")).unwrap();
        for _ in 0..2 {
            link_all(&links, &programs).unwrap();
        }
        for name in slurm_name::NAMES {
            assert_eq!(
                fs::read_link(links.join(name)).unwrap(),
                programs.join("gslurm")
            );
        }
    }

    #[test]
    fn a_real_slurm_is_left_alone_and_a_missing_program_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (programs, links) = (programs(dir.path()), dir.path().join("links"));
        fs::create_dir(&links).unwrap();
        fs::write(links.join("squeue"), "Slurm's").unwrap();
        assert!(
            link_all(&links, &programs)
                .unwrap_err()
                .text
                .contains("is a file of its own, perhaps Slurm's")
        );
        assert_eq!(fs::read_to_string(links.join("squeue")).unwrap(), "Slurm's");
        fs::remove_file(programs.join("gslurm")).unwrap();
        assert!(
            link_all(&dir.path().join("others"), &programs)
                .unwrap_err()
                .text
                .contains("bin/gslurm is not there, and all links lead to it")
        );
    }
}
