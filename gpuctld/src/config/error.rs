//! A mistake in a configuration file, with its place: file, line, column, caret.
//!
//! Owns the texts of files and how a mistake is printed; never what is a mistake.

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::de::DeTable;

/// Largest configuration file that is read, bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

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
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display().to_string();
        if self.line == 0 {
            return write!(f, "error: {path}: {}", self.message);
        }
        let mark = AnnotationKind::Primary.span(self.span.clone()).label(self.hint.as_str());
        let snippet = Snippet::source(&*self.text).path(path).annotation(mark);
        let group = Level::ERROR.primary_title(self.message.as_str()).element(snippet);
        f.write_str(&Renderer::plain().render(&[group]))
    }
}

impl std::error::Error for ConfigError {}

/// The text of one file.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) text: Arc<str>,
    file: usize,
}

impl Source {
    pub(super) fn new(path: &Path, text: &str, errors: &mut Errors) -> Self {
        errors.files += 1;
        Self { path: path.to_owned(), text: text.into(), file: errors.files }
    }

    pub(super) fn read(path: &Path, errors: &mut Errors) -> Option<Self> {
        let text = std::fs::metadata(path).and_then(|metadata| match metadata.len() {
            0..=MAX_FILE_BYTES => std::fs::read_to_string(path),
            bytes => Err(std::io::Error::other(format!("{bytes} bytes; at most {MAX_FILE_BYTES} are read"))),
        });
        match text {
            Ok(text) => Some(Self::new(path, &text, errors)),
            Err(error) => {
                errors.unreadable(path, &error);
                None
            }
        }
    }

    /// `path:line` of a byte of the text.
    pub(super) fn place(&self, at: usize) -> String {
        let line = self.text[..at.min(self.text.len())].matches('\n').count() + 1;
        format!("{}:{line}", self.path.display())
    }

    /// The file as a table in which every key and value knows its place. Broken lines are reported and left out.
    pub(super) fn parse(&self, errors: &mut Errors) -> DeTable<'_> {
        let (table, broken) = DeTable::parse_recoverable(&self.text);
        for error in broken {
            let span = error.span().unwrap_or(0..0);
            errors.add(self, span, error.message().replace('\n', "; "), "");
        }
        table.into_inner()
    }
}

/// All mistakes found so far.
#[derive(Debug, Default)]
pub(super) struct Errors {
    list: Vec<ConfigError>,
    files: usize,
    /// What dates without a zone are read in, from the main file on; `None`: the machine's.
    pub(super) zone: Option<Arc<gmodel::TimeZone>>,
}

impl Errors {
    pub(super) fn add(
        &mut self,
        source: &Source,
        span: Range<usize>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let start = span.start.min(source.text.len());
        // What follows from a mistake at the same place is not a second mistake.
        if self.list.iter().any(|error| error.file == source.file && error.span.start == start) {
            return;
        }
        let before = &source.text[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        self.list.push(ConfigError {
            path: source.path.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: message.into(),
            hint: hint.into(),
            text: source.text.clone(),
            span: start..span.end.clamp(start, source.text.len()),
            file: source.file,
        });
    }

    pub(super) fn unreadable(&mut self, path: &Path, error: &std::io::Error) {
        self.list.push(ConfigError {
            path: path.to_owned(),
            line: 0,
            column: 0,
            message: format!("cannot be read: {error}"),
            hint: String::new(),
            text: "".into(),
            span: 0..0,
            file: 0,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn into_sorted(mut self) -> Vec<ConfigError> {
        self.list.sort_by_key(|error| (error.file, error.span.start));
        self.list
    }
}
