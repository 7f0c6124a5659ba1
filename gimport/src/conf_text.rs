//! The form of slurm.conf: lines of KEY=VALUE, comments, continued lines, quotes, Include.
//!
//! Owns the form and its bounds. What a key means is another module's affair.

use gconfig::error::{Errors, Source};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

/// The most bytes of one file.
pub const MOST_FILE_BYTES: usize = 4 << 20;
/// The most files that Include lines may bring.
const MOST_FILES: usize = 64;
/// The most bytes of one value: a host list.
const MOST_VALUE_BYTES: usize = 1 << 20;

/// Gives the text of a file, or why it cannot be read.
pub type ReadText<'r> = dyn Fn(&Path) -> Result<String, String> + 'r;

/// A place in one of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPlace {
    pub file: usize,
    pub span: Range<usize>,
}

/// `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfWord {
    pub key: String,
    /// Without its quotes.
    pub value: String,
    pub place: TextPlace,
}

impl ConfWord {
    pub fn is(&self, key: &str) -> bool {
        self.key.eq_ignore_ascii_case(key)
    }

    /// `KEY=VALUE`, no longer than a line of a report.
    pub fn shown(&self) -> String {
        let text = format!("{}={}", self.key, self.value);
        match text.char_indices().nth(60) {
            Some((at, _)) => format!("{}...", &text[..at]),
            None => text,
        }
    }
}

/// The words of a line and of the lines that go on with it.
pub type ConfLine = Vec<ConfWord>;

/// Files as they were read.
#[derive(Default)]
pub struct ConfText {
    pub sources: Vec<Source>,
    pub lines: Vec<ConfLine>,
    pub errors: Errors,
    /// `%c` of an Include line.
    cluster: String,
}

impl ConfText {
    /// A file with what it includes. What is wrong is in the errors.
    pub fn read(path: &Path, text: &str, read: &ReadText) -> Self {
        let mut all = Self::default();
        all.add(path, text, read, &mut Vec::new());
        all
    }

    /// Another file beside it.
    pub fn add_file(&mut self, path: &Path, text: &str, read: &ReadText) -> Vec<ConfLine> {
        let before = std::mem::take(&mut self.lines);
        self.add(path, text, read, &mut Vec::new());
        std::mem::replace(&mut self.lines, before)
    }

    /// A text of another form, for the places of its lines.
    pub fn add_source(&mut self, path: &Path, text: &str) -> usize {
        let source = Source::new(path, text, &mut self.errors);
        self.sources.push(source);
        self.sources.len() - 1
    }

    /// A line of a file, counted from 1.
    pub fn line_place(&self, file: usize, number: usize) -> TextPlace {
        let text = self.sources.get(file).map_or("", |source| &*source.text);
        let mut start = 0;
        for line in text.split_inclusive('\n').take(number.saturating_sub(1)) {
            start += line.len();
        }
        let length = text[start..].lines().next().map_or(0, str::len);
        TextPlace {
            file,
            span: start..start + length,
        }
    }

    /// `path:line`.
    pub fn shown(&self, place: &TextPlace) -> String {
        self.sources
            .get(place.file)
            .map_or_else(String::new, |source| source.place(place.span.start))
    }

    pub fn wrong(
        &mut self,
        place: &TextPlace,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        if let Some(source) = self.sources.get(place.file) {
            self.errors.add(source, place.span.clone(), message, hint);
        }
    }

    fn add(&mut self, path: &Path, text: &str, read: &ReadText, above: &mut Vec<PathBuf>) {
        if let Some(why) = no_text(text) {
            self.errors.unreadable(path, &why);
            return;
        }
        let file = self.sources.len();
        let source = Source::new(path, text, &mut self.errors);
        self.sources.push(source);
        above.push(path.to_owned());
        let clean = without_comments(text);
        let mut start = 0;
        for line in clean.split_inclusive('\n') {
            match included(line) {
                Some(range) => {
                    let place = TextPlace {
                        file,
                        span: start + range.start..start + range.end,
                    };
                    self.include(&text[place.span.clone()], &place, read, above);
                }
                None => self.add_line(line, file, start),
            }
            start += line.len();
        }
        above.pop();
    }

    fn add_line(&mut self, line: &str, file: usize, start: usize) {
        let mut words = Vec::new();
        let mut rest = Cursor { line, at: 0 };
        while let Some(word) = rest.word() {
            let span = start + word.span.start..start + word.span.end;
            let place = TextPlace { file, span };
            match word.read {
                Err((message, hint)) => self.wrong(&place, message, hint),
                Ok((key, value)) if value.len() > MOST_VALUE_BYTES => {
                    let bytes = value.len();
                    let message =
                        format!("{key} has {bytes} bytes, {MOST_VALUE_BYTES} are the most");
                    self.wrong(&place, message, "split the line");
                }
                Ok((key, value)) => {
                    if words.is_empty() && key.eq_ignore_ascii_case("ClusterName") {
                        self.cluster = value.to_ascii_lowercase();
                    }
                    words.push(ConfWord {
                        key: key.to_owned(),
                        value: value.replace("\\#", "#"),
                        place,
                    });
                }
            }
        }
        if !words.is_empty() {
            self.lines.push(words);
        }
    }

    fn include(
        &mut self,
        name: &str,
        place: &TextPlace,
        read: &ReadText,
        above: &mut Vec<PathBuf>,
    ) {
        let root = above[0].parent().unwrap_or(Path::new("")).to_owned();
        let path = root.join(name.replace("%c", &self.cluster));
        let stays =
            path.starts_with(&root) && !path.components().any(|part| part == Component::ParentDir);
        if !stays {
            let dir = if root.as_os_str().is_empty() {
                Path::new(".")
            } else {
                &root
            };
            let message = format!("{name:?} is not below {}", dir.display());
            return self.wrong(place, message, "copy it beside slurm.conf and include that");
        }
        if above.contains(&path) {
            return self.wrong(
                place,
                format!("{name:?} includes itself"),
                "break the circle",
            );
        }
        if self.sources.len() >= MOST_FILES {
            return self.wrong(
                place,
                format!("more than {MOST_FILES} files are included"),
                "join some",
            );
        }
        match read(&path) {
            Ok(text) => self.add(&path, &text, read, above),
            Err(why) => self.wrong(
                place,
                format!("{} cannot be read: {why}", path.display()),
                "copy it too, or remove the line",
            ),
        }
    }
}

fn no_text(text: &str) -> Option<String> {
    if text.len() > MOST_FILE_BYTES {
        return Some(format!(
            "it has {} bytes, {MOST_FILE_BYTES} are the most",
            text.len()
        ));
    }
    text.contains('\0').then(|| "it is no text".to_owned())
}

/// The text of the same length in which comments, and line ends that a backslash takes away, are blanks.
fn without_comments(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches(['\n', '\r']);
        let mut escaped = false;
        let mut end = content.len();
        for (at, sign) in content.char_indices() {
            if sign == '#' && !escaped {
                end = at;
                break;
            }
            escaped = sign == '\\' && !escaped;
        }
        let goes_on = end == content.len() && content.ends_with('\\') && line.len() > content.len();
        let kept = if goes_on { end - 1 } else { end };
        clean.push_str(&content[..kept]);
        clean.extend(std::iter::repeat_n(' ', content.len() - kept));
        let tail = line[content.len()..].chars();
        clean.extend(tail.map(|sign| if sign == '\n' && !goes_on { '\n' } else { ' ' }));
    }
    clean
}

/// The place of the path on an Include line.
fn included(line: &str) -> Option<Range<usize>> {
    let begin = line.trim_start();
    let word = begin.split_whitespace().next()?;
    let path = begin[word.len()..].trim();
    let is_one = word.eq_ignore_ascii_case("include") && !path.is_empty() && !path.starts_with('=');
    let start = path.as_ptr() as usize - line.as_ptr() as usize;
    is_one.then_some(start..start + path.len())
}

type WordMistake = (String, &'static str);

/// A word of a line, or what is wrong with it.
struct ReadWord<'l> {
    span: Range<usize>,
    read: Result<(&'l str, &'l str), WordMistake>,
}

struct Cursor<'l> {
    line: &'l str,
    at: usize,
}

impl<'l> Cursor<'l> {
    fn blanks(&mut self) {
        let rest = &self.line[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    /// As far as a sign of some.
    fn until(&mut self, is_end: impl Fn(char) -> bool) -> &'l str {
        let rest = &self.line[self.at..];
        let taken = &rest[..rest.find(is_end).unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    fn word(&mut self) -> Option<ReadWord<'l>> {
        self.blanks();
        let start = self.at;
        let key = self.until(|sign| sign == '=' || sign.is_whitespace());
        let key_end = self.at;
        self.blanks();
        if !self.line[self.at..].starts_with('=') {
            if key.is_empty() {
                return None;
            }
            self.at = key_end;
            return Some(Self::no_word(
                start..key_end,
                format!("{key:?} is no KEY=VALUE"),
            ));
        }
        self.at += 1;
        self.blanks();
        let is_quoted = self.line[self.at..].starts_with('"');
        let value = match is_quoted {
            true => {
                self.at += 1;
                let value = self.until(|sign| sign == '"');
                if self.at == self.line.len() {
                    return Some(Self::no_word(
                        start..self.line.trim_end().len(),
                        "a quote is open at the end of the line".into(),
                    ));
                }
                self.at += 1;
                value
            }
            false => self.until(char::is_whitespace),
        };
        let span = start..self.at.min(self.line.trim_end().len()).max(start + 1);
        let is_key = |sign: char| sign.is_ascii_alphanumeric() || "_.-".contains(sign);
        let read = match (
            key.is_empty() || !key.chars().all(is_key),
            value.is_empty() && !is_quoted,
        ) {
            (true, _) => Err((format!("{key:?} is no key"), "write KEY=VALUE")),
            (_, true) => Err((
                format!("{key} has no value"),
                "write one, or remove the key",
            )),
            _ => Ok((key, value)),
        };
        Some(ReadWord { span, read })
    }

    fn no_word(span: Range<usize>, message: String) -> ReadWord<'l> {
        ReadWord {
            span,
            read: Err((message, "write KEY=VALUE")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> ConfText {
        let find = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found
                .map(|(_, text)| (*text).to_owned())
                .ok_or("no such file".to_owned())
        };
        ConfText::read(Path::new(files[0].0), files[0].1, &find)
    }

    fn mistakes(text: ConfText) -> String {
        let all = text.errors.into_sorted();
        all.iter().map(|one| format!("{one}\n")).collect()
    }

    fn words(text: &ConfText) -> Vec<String> {
        let line = |line: &ConfLine| {
            line.iter()
                .map(ConfWord::shown)
                .collect::<Vec<_>>()
                .join(" ")
        };
        text.lines.iter().map(line).collect()
    }

    #[test]
    fn lines_have_words_comments_quotes_and_go_on() {
        let conf = "# all of it\r\nClusterName = tux # ours\nNodeName=n[1-2] \\\n  CPUs=4 Reason=\"no disk\"\nEpilog=/a\\#b\n\n";
        let read = read(&[("slurm.conf", conf)]);
        assert!(read.errors.is_empty());
        assert_eq!(
            words(&read),
            [
                "ClusterName=tux",
                "NodeName=n[1-2] CPUs=4 Reason=no disk",
                "Epilog=/a#b"
            ]
        );
        assert_eq!(read.shown(&read.lines[1][1].place), "slurm.conf:4");
    }

    #[test]
    fn files_are_included_from_below_the_directory() {
        let main = "ClusterName=tux\ninclude nodes.conf\nInclude /etc/slurm/%c/parts\n";
        let read = read(&[
            ("/etc/slurm/slurm.conf", main),
            ("/etc/slurm/nodes.conf", "NodeName=n1\n"),
            ("/etc/slurm/tux/parts", "PartitionName=p\n"),
        ]);
        assert_eq!(
            words(&read),
            ["ClusterName=tux", "NodeName=n1", "PartitionName=p"]
        );
        assert_eq!(
            read.shown(&read.lines[1][0].place),
            "/etc/slurm/nodes.conf:1"
        );
    }

    #[test]
    fn what_is_broken_is_shown_with_its_place() {
        let conf = "KillWait\nMaxTime=\nReason=\"open\ninclude ../b\ninclude c\ninclude a\n=3\n";
        expect_test::expect![[r#"
            error: "KillWait" is no KEY=VALUE
             --> a:1:1
              |
            1 | KillWait
              | ^^^^^^^^ write KEY=VALUE
            error: MaxTime has no value
             --> a:2:1
              |
            2 | MaxTime=
              | ^^^^^^^^ write one, or remove the key
            error: a quote is open at the end of the line
             --> a:3:1
              |
            3 | Reason="open
              | ^^^^^^^^^^^^ write KEY=VALUE
            error: "../b" is not below .
             --> a:4:9
              |
            4 | include ../b
              |         ^^^^ copy it beside slurm.conf and include that
            error: c cannot be read: no such file
             --> a:5:9
              |
            5 | include c
              |         ^ copy it too, or remove the line
            error: "a" includes itself
             --> a:6:9
              |
            6 | include a
              |         ^ break the circle
            error: "" is no key
             --> a:7:1
              |
            7 | =3
              | ^^ write KEY=VALUE
        "#]]
        .assert_eq(&mistakes(read(&[("a", conf)])));
        let circle = [("a", "include b\n"), ("b", "include a\n")];
        assert!(mistakes(read(&circle)).contains("--> b:1:9"));
    }

    #[test]
    fn what_is_no_text_and_what_is_too_long_is_refused() {
        assert_eq!(
            mistakes(read(&[("a", "\u{7f}ELF\0\0")])),
            "error: a: cannot be read: it is no text\n"
        );
        let long = format!("NodeName={}\n", "n,".repeat(3 << 20));
        assert!(mistakes(read(&[("a", &long)])).contains("are the most"));
        let value = format!("NodeName={}\n", "n,".repeat(600_000));
        assert!(mistakes(read(&[("a", &value)])).contains("1048576 are the most"));
        assert!(read(&[("a", "# \u{fffd}\nKillWait=3\n")]).errors.is_empty());
    }
}
