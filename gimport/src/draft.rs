//! A file of TOML in the making: keys with the line of slurm.conf that each comes from.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// `key = value    # why`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftLine {
    pub value: String,
    pub why: String,
}

/// A table in the making; keys of the file itself are the one without a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftTable {
    lines: Vec<(String, DraftLine)>,
}

impl DraftTable {
    /// Sets a key, in place of what was said of it before.
    pub fn set(&mut self, key: &str, value: impl Into<String>, why: &str) {
        let line = DraftLine {
            value: value.into(),
            why: why.to_owned(),
        };
        match self.lines.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = line,
            None => self.lines.push((key.to_owned(), line)),
        }
    }

    pub fn remove(&mut self, key: &str) {
        self.lines.retain(|(known, _)| known != key);
    }

    pub fn has(&self, key: &str) -> bool {
        self.lines.iter().any(|(known, _)| known == key)
    }

    pub fn value(&self, key: &str) -> Option<&str> {
        let mut lines = self.lines.iter();
        lines
            .find(|(known, _)| known == key)
            .map(|(_, line)| line.value.as_str())
    }

    /// Another's lines, in place of its own.
    pub fn merge(&mut self, other: &Self) {
        let mut lines = other.lines.clone();
        self.lines.retain(|(key, _)| !other.has(key));
        lines.append(&mut self.lines);
        self.lines = lines;
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub fn write(&self, text: &mut String) {
        for (key, line) in &self.lines {
            let said = format!("{key} = {}", line.value);
            match line.why.is_empty() {
                true => text.push_str(&said),
                false => {
                    let _ = write!(text, "{said:<36} # {}", line.why);
                }
            }
            text.push('\n');
        }
    }
}

/// A file: keys of its own, then tables in the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftFile {
    pub own: DraftTable,
    tables: BTreeMap<String, DraftTable>,
}

impl DraftFile {
    /// Without tables.
    pub fn of(own: DraftTable) -> Self {
        Self {
            own,
            ..Self::default()
        }
    }

    /// The table of a name, as it stands in brackets.
    pub fn table(&mut self, name: &str) -> &mut DraftTable {
        self.tables.entry(name.to_owned()).or_default()
    }

    pub fn text(&self, head: &str) -> String {
        let mut text = String::new();
        for line in head.lines() {
            let _ = writeln!(text, "# {line}");
        }
        if !self.own.is_empty() {
            text.push('\n');
            self.own.write(&mut text);
        }
        for (name, table) in self.tables.iter().filter(|(_, table)| !table.is_empty()) {
            let _ = writeln!(text, "\n[{name}]");
            table.write(&mut text);
        }
        text
    }
}

/// As TOML.
pub fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

pub fn quoted_list<'t>(texts: impl IntoIterator<Item = &'t str>) -> String {
    let all: Vec<String> = texts.into_iter().map(quoted).collect();
    format!("[{}]", all.join(", "))
}

/// A part of a table's name.
pub fn bare(name: &str) -> String {
    let is_bare = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    match is_bare && !name.is_empty() {
        true => name.to_owned(),
        false => quoted(name),
    }
}
