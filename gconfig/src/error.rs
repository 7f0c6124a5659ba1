//! A mistake in a configuration file, with its place: file, line, column, caret.
//!
//! Owns the texts of files and how a mistake is printed; never what is a mistake.

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use gmodel::Timestamp;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::de::DeTable;

/// One mistake. `Display` shows the line with a caret under the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub path: PathBuf,
    /// From 1; 0 when the file could not be read at all.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    pub message: String,
    /// What would work; may be empty.
    pub hint: String,
    text: Arc<str>,
    span: Range<usize>,
    /// Position of the file among those read.
    file: usize,
    /// The line is no TOML.
    is_broken: bool,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display().to_string();
        if self.line == 0 {
            return write!(f, "error: {path}: {}", self.message);
        }
        let mark = AnnotationKind::Primary
            .span(self.span.clone())
            .label(self.hint.as_str());
        let snippet = Snippet::source(&*self.text).path(path).annotation(mark);
        let group = Level::ERROR
            .primary_title(self.message.as_str())
            .element(snippet);
        f.write_str(&Renderer::plain().render(&[group]))
    }
}

impl std::error::Error for ConfigError {}

/// The text of one file.
#[derive(Clone, Debug)]
pub struct Source {
    pub path: PathBuf,
    pub text: Arc<str>,
    file: usize,
}

impl Source {
    /// A file with its text.
    pub fn new(path: &Path, text: &str, errors: &mut Errors) -> Self {
        errors.files += 1;
        Self {
            path: path.to_owned(),
            text: text.into(),
            file: errors.files,
        }
    }

    /// `path:line` of a byte of the text.
    pub fn place(&self, at: usize) -> String {
        let line = self.text[..at.min(self.text.len())].matches('\n').count() + 1;
        format!("{}:{line}", self.path.display())
    }

    /// The file as a table in which every key and value knows its place. Broken lines are reported and left out.
    pub fn parse(&self, errors: &mut Errors) -> DeTable<'_> {
        let (table, broken) = DeTable::parse_recoverable(&self.text);
        for error in broken {
            let span = error.span().unwrap_or(0..0);
            errors.add(self, span, error.message().replace('\n', "; "), "");
            errors
                .list
                .iter_mut()
                .rev()
                .take(1)
                .for_each(|error| error.is_broken = true);
        }
        table.into_inner()
    }
}

/// All mistakes found so far.
#[derive(Debug, Default)]
pub struct Errors {
    list: Vec<ConfigError>,
    files: usize,
    /// What dates without a zone are read in, from the main file on; `None`: as `local` has them.
    pub zone: Option<Arc<gmodel::TimeZone>>,
    /// Prices that were used, which no file changes any more; and the present.
    pub used_prices: Option<(gmodel::billing::UsedPrices, Timestamp)>,
    /// Reads a date and time without a zone where no key names one; UTC by default.
    pub(crate) local: Local,
}

/// Of a local time given as if it were UTC's, in milliseconds since 1970: when that is.
#[derive(Clone, Copy)]
pub struct Local(pub(crate) fn(i64) -> Option<Timestamp>);

impl Default for Local {
    fn default() -> Self {
        Self(|millis| Some(Timestamp(millis)))
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Local")
    }
}

impl Errors {
    /// Where dates that name no zone are in another time than UTC's.
    pub fn with_local(local: fn(i64) -> Option<Timestamp>) -> Self {
        Self {
            local: Local(local),
            ..Self::default()
        }
    }

    /// A mistake at a place of a file.
    pub fn add(
        &mut self,
        source: &Source,
        span: Range<usize>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let start = span.start.min(source.text.len());
        let before = &source.text[..start];
        let line = before.matches('\n').count() + 1;
        // What follows from a mistake at the same place, or on a line that is no TOML, is not a second mistake.
        let follows = |error: &ConfigError| {
            error.span.start == start || error.is_broken && error.line == line
        };
        if self
            .list
            .iter()
            .any(|error| error.file == source.file && follows(error))
        {
            return;
        }
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        self.list.push(ConfigError {
            path: source.path.clone(),
            line,
            column: before[line_start..].chars().count() + 1,
            message: message.into(),
            hint: hint.into(),
            text: source.text.clone(),
            span: start..span.end.clamp(start, source.text.len()),
            file: source.file,
            is_broken: false,
        });
    }

    /// A file that could not be read at all.
    pub fn unreadable(&mut self, path: &Path, error: &dyn fmt::Display) {
        self.list.push(ConfigError {
            path: path.to_owned(),
            line: 0,
            column: 0,
            message: format!("cannot be read: {error}"),
            hint: String::new(),
            text: "".into(),
            span: 0..0,
            file: 0,
            is_broken: false,
        });
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// In the order of the files and of the text.
    pub fn into_sorted(mut self) -> Vec<ConfigError> {
        self.list
            .sort_by_key(|error| (error.file, error.span.start));
        self.list
    }
}
