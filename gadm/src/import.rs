//! `gadm import slurm`: the files of a site of Slurm as gpupool's own, in a new directory, with a report.
//!
//! Reads and writes files; what becomes of each line is gimport's affair. Asks no controller.

use crate::{topology_conf, topology_yaml};
use gcli::table::stdout;
use gcli::{Failure, Outcome};
use gimport::conf_text::MOST_FILE_BYTES;
use gimport::flat_file::MOST_BYTES;
use gimport::report::{Fate, ImportReport};
use gimport::sacct::{MOST_LINE_BYTES, PastLine, SacctReader};
use gimport::site::{self, ImportedFile, NamedText, SlurmFiles};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// The most mistakes that are printed: a template of a file has hundreds.
const MOST_SHOWN: usize = 20;

/// From which batch system.
#[derive(clap::Subcommand)]
pub(crate) enum ImportAct {
    /// Read slurm.conf and what goes with it; write gpuctld.toml, partitions, QOS and accounts
    ///
    /// Changes nothing but the new directory, and needs neither Slurm nor a controller. Prints what it understood of each line,
    /// what has no counterpart and what to use, and what to do next. docs/from-slurm.md is the plan of a weekend.
    Slurm(SlurmArgs),
}

/// Options of `gadm import slurm`.
#[derive(clap::Args)]
pub(crate) struct SlurmArgs {
    /// slurm.conf; files that it includes are read from its directory and below
    #[arg(long, value_name = "FILE")]
    conf: PathBuf,
    /// gres.conf: the types of GPUs
    #[arg(long, value_name = "FILE")]
    gres: Option<PathBuf>,
    /// topology.conf or topology.yaml
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// What sacctmgr dump wrote: accounts and users
    #[arg(long, value_name = "FILE")]
    associations: Option<PathBuf>,
    /// What sacctmgr -P show qos printed
    #[arg(long, value_name = "FILE")]
    qos: Option<PathBuf>,
    /// What sacct -a -P -o ALL printed: checks it for gpuctld import-jobs
    #[arg(long, value_name = "FILE")]
    jobs: Option<PathBuf>,
    /// Directory for the files; made, and there already it must be empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The report as one line of JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(act: &ImportAct) -> Outcome {
    let ImportAct::Slurm(args) = act;
    let optional =
        |path: &Option<PathBuf>, most| path.as_ref().map(|path| named(path, most)).transpose();
    let files = SlurmFiles {
        conf: named(&args.conf, MOST_FILE_BYTES as u64)?,
        gres: optional(&args.gres, MOST_FILE_BYTES as u64)?,
        associations: optional(&args.associations, MOST_BYTES)?,
        qos: optional(&args.qos, MOST_BYTES)?,
    };
    let read = |path: &Path| read_text(path, MOST_FILE_BYTES as u64);
    let mut site = site::import(&files, &read).map_err(|mistakes| {
        let shown: Vec<String> = mistakes
            .iter()
            .take(MOST_SHOWN)
            .map(ToString::to_string)
            .collect();
        let count = mistakes.len();
        let plural = if count == 1 { "" } else { "s" };
        Failure::new(format_args!(
            "{count} mistake{plural}, and nothing was written\n\n{}",
            shown.join("\n\n")
        ))
    })?;
    if let Some(path) = &args.topology {
        site.files.push(topology(path, &mut site.report)?);
    }
    if let Some(path) = &args.jobs {
        jobs(path, &mut site.report)?;
    }
    let report = site.report.to_string();
    site.files.push(ImportedFile {
        path: "report.txt".to_owned(),
        text: report.clone(),
    });
    write_all(&args.out, &site.files)?;
    let mut out = stdout()?;
    match args.json {
        true => writeln!(out, "{}", as_json(&args.out, &site.files, &site.report))?,
        false => {
            out.write_all(report.as_bytes())?;
            writeln!(
                out,
                "\nWritten to {}: {}",
                args.out.display(),
                names(&site.files)
            )?;
        }
    }
    out.flush()?;
    Ok(0)
}

fn names(files: &[ImportedFile]) -> String {
    let all: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    all.join(", ")
}

fn named(path: &Path, most: u64) -> Result<NamedText, Failure> {
    let text = read_text(path, most)
        .map_err(|why| Failure::new(format_args!("cannot read {}: {why}", path.display())))?;
    Ok(NamedText {
        path: path.to_owned(),
        text,
    })
}

/// A text of a regular file; bytes that are no UTF-8, as in old comments, stand as a sign for themselves.
fn read_text(path: &Path, most: u64) -> Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    if !file
        .metadata()
        .map_err(|error| error.to_string())?
        .is_file()
    {
        return Err("it is no regular file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most {
        return Err(format!("it has more than {most} bytes"));
    }
    if bytes.contains(&0) {
        return Err("it is no text".to_owned());
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn topology(path: &Path, report: &mut ImportReport) -> Result<ImportedFile, Failure> {
    let name = path.display().to_string();
    let text = named(path, MOST_FILE_BYTES as u64)?.text;
    let read = match topology_yaml::is_one(&name, &text) {
        true => topology_yaml::read(&name, &text, None).map(|taken| taken.topology),
        false => topology_conf::read(&name, &text),
    };
    let topology = read.map_err(Failure::new)?;
    let said = format!(
        "{} switches, {} blocks",
        topology.switches.len(),
        topology.nvlink_domains.len()
    );
    report.add(Fate::Understood, name, said, "topology.toml");
    Ok(ImportedFile {
        path: "topology.toml".to_owned(),
        text: topology_conf::toml(&topology),
    })
}

/// Reads all lines once, so that what is wrong is known before a controller stands still for them.
fn jobs(path: &Path, report: &mut ImportReport) -> Result<(), Failure> {
    let failure = |why: String| Failure::new(format_args!("cannot read {}: {why}", path.display()));
    let file = File::open(path).map_err(|error| failure(error.to_string()))?;
    let mut lines = BoundedLines::of(BufReader::new(file));
    let head = lines
        .next_line()
        .map_err(|error| failure(error.to_string()))?;
    let reader = SacctReader::new(head.unwrap_or_default()).map_err(failure)?;
    let (mut over, mut steps, mut unfinished, mut broken) = (0_u64, 0_u64, 0_u64, Vec::new());
    let mut users = BTreeSet::new();
    let zone = gmodel::TimeZone::default();
    let mut number = 1;
    while let Some(line) = lines
        .next_line()
        .map_err(|error| failure(error.to_string()))?
    {
        number += 1;
        match reader.line(line, &zone) {
            Ok(PastLine::Job(job)) => {
                over += 1;
                users.insert(job.owner.user);
            }
            Ok(PastLine::Step) => steps += 1,
            Ok(PastLine::Unfinished) => unfinished += 1,
            Err(why) if broken.len() < 1000 => broken.push(format!("line {number}: {why}")),
            Err(_) => {}
        }
    }
    let name = path.display().to_string();
    let said = format!(
        "{over} jobs of {} users; {steps} steps and {unfinished} jobs that are not over are left out",
        users.len()
    );
    report.add(
        Fate::Understood,
        name.clone(),
        said,
        format!("gpuctld import-jobs --from {name}, before gpuctld runs"),
    );
    for one in broken {
        report.add(Fate::Unknown, name.clone(), one, "the line is left out");
    }
    Ok(())
}

/// Lines of a long file, one at a time.
struct BoundedLines<R> {
    from: R,
    line: Vec<u8>,
    text: String,
}

impl<R: BufRead> BoundedLines<R> {
    fn of(from: R) -> Self {
        Self {
            from,
            line: Vec::new(),
            text: String::new(),
        }
    }

    /// What of a line is beyond the bound is its own line, which is refused for its columns.
    fn next_line(&mut self) -> std::io::Result<Option<&str>> {
        self.line.clear();
        let most = MOST_LINE_BYTES as u64 + 2;
        let read = self
            .from
            .by_ref()
            .take(most)
            .read_until(b'\n', &mut self.line)?;
        self.text = String::from_utf8_lossy(&self.line).into_owned();
        Ok((read > 0).then_some(self.text.as_str()))
    }
}

/// All of it, or nothing: into a directory that is new or empty.
fn write_all(out: &Path, files: &[ImportedFile]) -> Result<(), Failure> {
    let failure = |path: &Path, why: &dyn std::fmt::Display| {
        Failure::new(format_args!("cannot write {}: {why}", path.display()))
    };
    std::fs::create_dir_all(out).map_err(|error| failure(out, &error))?;
    let mut entries = std::fs::read_dir(out).map_err(|error| failure(out, &error))?;
    if entries.next().is_some() {
        return Err(failure(
            out,
            &"it is not empty. Name a directory that is new",
        ));
    }
    for file in files {
        let path = out.join(&file.path);
        let dir = path.parent().unwrap_or(out);
        std::fs::create_dir_all(dir).map_err(|error| failure(dir, &error))?;
        std::fs::write(&path, &file.text).map_err(|error| failure(&path, &error))?;
    }
    Ok(())
}

fn as_json(out: &Path, files: &[ImportedFile], report: &ImportReport) -> serde_json::Value {
    let finding = |one: &gimport::report::Finding| json!({"fate": one.fate.word(), "place": one.place, "said": one.said, "text": one.text});
    let findings: Vec<_> = report.findings.iter().map(finding).collect();
    let files: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    json!({"schema": 1, "directory": out, "files": files, "findings": findings, "next": report.next})
}
