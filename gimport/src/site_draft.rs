//! A site in the making, and how the decision on a word is filed in its report.

use crate::conf::SlurmConf;
use crate::conf_text::{ConfText, ConfWord, TextPlace};
use crate::draft::{DraftFile, DraftTable};
use crate::gres;
use crate::report::{Fate, ImportReport};
use gmodel::policy::{Policy, Qos};
use std::path::PathBuf;

/// A text and the file that it is of.
#[derive(Clone, Debug, Default)]
pub struct NamedText {
    pub path: PathBuf,
    pub text: String,
}

/// A file to write, below the directory of the import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedFile {
    pub path: String,
    pub text: String,
}

/// What becomes of a word.
pub(crate) enum Verdict {
    /// The line that it becomes.
    Becomes(String),
    Told(Fate, String),
    /// Its findings are in the report already.
    Reported,
    Wrong(String, String),
}

/// A site in the making.
pub(crate) struct SiteDraft {
    pub(crate) conf: SlurmConf,
    pub(crate) report: ImportReport,
    pub(crate) main: DraftFile,
    pub(crate) partitions: DraftFile,
    /// What the whole file says and each partition has.
    pub(crate) every_partition: DraftTable,
    /// gpud.toml of all nodes.
    pub(crate) every_node: DraftTable,
    pub(crate) node_files: Vec<ImportedFile>,
    /// QOS go into a file, accounts to the controller.
    pub(crate) policy: Policy,
    pub(crate) gres: gres::GresTypes,
}

impl SiteDraft {
    pub(crate) fn place(&self, place: &TextPlace) -> String {
        let text: &ConfText = &self.conf.text;
        text.shown(place)
    }

    /// `KillWait=30 (slurm.conf:12)`.
    pub(crate) fn why(&self, word: &ConfWord) -> String {
        format!("{} ({})", word.shown(), self.place(&word.place))
    }

    /// A QOS that a file names has to be in the files, too.
    pub(crate) fn know_qos(&mut self, name: &str) {
        self.policy
            .qos
            .entry(name.to_owned())
            .or_insert_with(|| Qos {
                name: name.to_owned(),
                ..Qos::default()
            });
    }

    pub(crate) fn file(&mut self, word: &ConfWord, verdict: Verdict) {
        let (fate, text) = match verdict {
            Verdict::Becomes(text) => (Fate::Understood, text),
            Verdict::Told(fate, text) => (fate, text),
            Verdict::Wrong(message, hint) => {
                return self.conf.text.wrong(&word.place, message, hint);
            }
            Verdict::Reported => return,
        };
        let place = self.place(&word.place);
        self.report.add(fate, place, word.shown(), text);
    }
}
