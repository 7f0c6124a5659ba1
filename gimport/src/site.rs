//! From what a site of Slurm says to gpupool's files and a report: the decisions, one module for each kind of line.
//!
//! Owns the order of things and the list of files. What is written is read again by gconfig, and none of it is given out where
//! that finds a mistake.

use crate::conf::SlurmConf;
use crate::conf_text::ReadText;
use crate::draft::{DraftFile, DraftTable};
use crate::report::ImportReport;
use crate::site_draft::SiteDraft;
pub use crate::site_draft::{ImportedFile, NamedText};
use crate::{association, cluster, gres, node, partition, qos_table};
use gconfig::error::{ConfigError, Errors, Source};
use gconfig::partition::Partitions;
use gconfig::policy::Records;
use gconfig::policy_text::policy_text;
use gconfig::section::Section;
use gmodel::policy::Policy;
use std::path::Path;

/// What an administrator has.
#[derive(Clone, Debug, Default)]
pub struct SlurmFiles {
    pub conf: NamedText,
    pub gres: Option<NamedText>,
    /// `sacctmgr dump`.
    pub associations: Option<NamedText>,
    /// `sacctmgr -P show qos`.
    pub qos: Option<NamedText>,
}

/// What comes of it.
#[derive(Debug)]
pub struct ImportedSite {
    pub files: Vec<ImportedFile>,
    pub report: ImportReport,
}

/// Reads all and decides all. `read` gives the text of a file that an Include line names.
///
/// # Errors
/// Every mistake of the files with its place.
pub fn import(files: &SlurmFiles, read: &ReadText) -> Result<ImportedSite, Vec<ConfigError>> {
    let conf = SlurmConf::read(&files.conf.path, &files.conf.text, read);
    let mut draft = SiteDraft {
        conf,
        report: ImportReport::default(),
        main: DraftFile::default(),
        partitions: DraftFile::default(),
        every_partition: DraftTable::default(),
        every_node: DraftTable::default(),
        node_files: Vec::new(),
        policy: Policy::default(),
        gres: gres::GresTypes::default(),
    };
    if let Some(file) = &files.qos {
        qos_table::read(&mut draft, file);
    }
    if let Some(file) = &files.associations {
        association::read(&mut draft, file);
    }
    cluster::decide(&mut draft);
    if let Some(file) = &files.gres {
        gres::decide(&mut draft, file, read);
    }
    partition::decide(&mut draft);
    cluster::charge(&mut draft);
    node::decide(&mut draft);
    next_steps(&mut draft, files);
    if !draft.conf.text.errors.is_empty() {
        return Err(draft.conf.text.errors.into_sorted());
    }
    let files = written(&mut draft);
    check(&files)?;
    Ok(ImportedSite {
        files,
        report: draft.report,
    })
}

fn written(draft: &mut SiteDraft) -> Vec<ImportedFile> {
    let file = |path: &str, text: String| ImportedFile {
        path: path.to_owned(),
        text,
    };
    let from =
        "From slurm.conf, by gadm import slurm. Behind each # is the line that a key comes from.";
    let mut all = vec![
        file(
            "gpuctld.toml",
            draft.main.text(&format!(
                "{from}\nWhat is not here has its default: gpuctld.toml(5)."
            )),
        ),
        file("partitions.d/slurm.toml", draft.partitions.text(from)),
    ];
    let accounts = Policy {
        accounts: std::mem::take(&mut draft.policy.accounts),
        ..Policy::default()
    };
    let head = |text: &str, policy: &Policy| format!("# {text}\n\n{}", policy_text(policy));
    if !draft.policy.qos.is_empty() {
        let text = "QOS, which partitions and accounts name. Edit them here, then gadm reload.";
        all.push(file("policy.d/qos.toml", head(text, &draft.policy)));
    }
    if !accounts.accounts.is_empty() {
        let text = "Accounts and their users, for gadm policy import. gadm and sacctmgr change them afterwards.";
        all.push(file("accounts.toml", head(text, &accounts)));
    }
    all.append(&mut draft.node_files);
    all
}

fn next_steps(draft: &mut SiteDraft, files: &SlurmFiles) {
    let next = &mut draft.report.next;
    next.push(
        "read the files; put gpuctld.toml, partitions.d and policy.d into /etc/gpupool".to_owned(),
    );
    next.push("gpuctld check, gpuctld new, systemctl enable --now gpupool-gpuctld".to_owned());
    if files.associations.is_some() {
        next.push("gadm policy import accounts.toml".to_owned());
    } else {
        next.push("for accounts: sacctmgr dump CLUSTER file=dump.cfg, sacctmgr -P show qos > qos.txt, then --associations dump.cfg --qos qos.txt".to_owned());
    }
    next.push("gadm token node --name NODE for each node, gpud join there, with its file of gpud/ as gpud.toml; then gnodes --diff".to_owned());
    next.push("docs/from-slurm.md has the weekend, and the way back".to_owned());
}

/// What was written is what gpupool reads.
fn check(files: &[ImportedFile]) -> Result<(), Vec<ConfigError>> {
    let mut errors = Errors::default();
    let source = |file: &ImportedFile, errors: &mut Errors| {
        Source::new(Path::new(&file.path), &file.text, errors)
    };
    let (mut partitions, mut records) = (Partitions::default(), Records::default());
    let sources: Vec<Source> = files.iter().map(|file| source(file, &mut errors)).collect();
    for (file, source) in files.iter().zip(&sources) {
        let table = source.parse(&mut errors);
        match file.path.split('/').next() {
            Some("gpuctld.toml") => {
                let section = Section::open(
                    source,
                    &table,
                    &gconfig::cluster::KEYS,
                    "the file",
                    &mut errors,
                );
                gconfig::cluster::read(&section, &mut errors);
            }
            Some("partitions.d") => partitions.read(source, &table, &mut records, &mut errors),
            Some("policy.d" | "accounts.toml") => records.read(source, &table, &mut errors),
            _ => {}
        }
    }
    let partitions = partitions.finish().list;
    gconfig::policy_check::check(
        &records,
        &partitions,
        &Policy::default(),
        "default",
        &mut errors,
    );
    match errors.is_empty() {
        true => Ok(()),
        false => Err(errors.into_sorted()),
    }
}
