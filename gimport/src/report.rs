//! What was understood of a site's files and what was not, each with its place.

use std::fmt::{self, Write as _};

/// Among so many findings before it a new one is looked for.
const LOOKED_BACK: usize = 100;

/// What becomes of a line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It stands in the files that were written, or gpupool does so anyway.
    Understood,
    /// gpupool has another means, which the text names.
    Counterpart,
    /// It is about a part of Slurm that is not here.
    Meaningless,
    /// Slurm has no such key.
    Unknown,
}

impl Fate {
    pub const ALL: [Self; 4] = [
        Self::Understood,
        Self::Counterpart,
        Self::Meaningless,
        Self::Unknown,
    ];

    /// For programs.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Understood => "understood",
            Self::Counterpart => "no_counterpart",
            Self::Meaningless => "no_meaning",
            Self::Unknown => "unknown",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Understood => "Understood",
            Self::Counterpart => "No counterpart, and what to use",
            Self::Meaningless => "No meaning here",
            Self::Unknown => "Not a key of Slurm's",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub fate: Fate,
    /// `path:line`.
    pub place: String,
    /// What the file says.
    pub said: String,
    /// What it becomes, or what to use.
    pub text: String,
}

/// All of it, in the order of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    pub findings: Vec<Finding>,
    /// What to do next, a line each.
    pub next: Vec<String>,
}

impl ImportReport {
    pub fn add(&mut self, fate: Fate, place: String, said: String, text: impl Into<String>) {
        let one = Finding {
            fate,
            place,
            said,
            text: text.into(),
        };
        // A DEFAULT line is met once for each line that it gives to.
        if !self
            .findings
            .iter()
            .rev()
            .take(LOOKED_BACK)
            .any(|known| *known == one)
        {
            self.findings.push(one);
        }
    }

    pub fn count(&self, fate: Fate) -> usize {
        self.findings.iter().filter(|one| one.fate == fate).count()
    }
}

impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fate in Fate::ALL {
            let mine: Vec<&Finding> = self
                .findings
                .iter()
                .filter(|one| one.fate == fate)
                .collect();
            if mine.is_empty() {
                continue;
            }
            writeln!(f, "{} ({})", fate.title(), mine.len())?;
            for one in mine {
                let mut line = format!("  {}: {}", one.place, one.said);
                if !one.text.is_empty() {
                    let _ = write!(line, "\n      {}", one.text);
                }
                writeln!(f, "{line}")?;
            }
            f.write_char('\n')?;
        }
        writeln!(f, "Next")?;
        for (at, line) in self.next.iter().enumerate() {
            writeln!(f, "  {}. {line}", at + 1)?;
        }
        Ok(())
    }
}
