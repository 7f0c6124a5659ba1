//! The workspace as files: its crates by `cargo metadata`, their sources, and words in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A Rust file of the workspace.
pub struct Source {
    /// From the root.
    pub path: String,
    pub krate: String,
    pub text: String,
}

impl Source {
    /// Part of a library or program, not of tests beside them.
    pub fn is_shipped(&self) -> bool {
        self.path.contains("/src/")
            && !self.path.ends_with("/tests.rs")
            && !self.path.contains("/tests/")
    }

    /// The command around a library.
    pub fn is_program(&self) -> bool {
        self.path.ends_with("/main.rs")
            || self.path.contains("/src/bin/")
            || !self.path.contains("/src/")
    }

    /// Lines with their numbers up to the tests at the end, without comments.
    pub fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let whole = self.path.ends_with("/tests.rs") || self.path.contains("/tests/");
        let lines: Vec<&str> = if whole {
            Vec::new()
        } else {
            self.text.lines().collect()
        };
        let tests = |at: usize| {
            lines[at].trim() == "#[cfg(test)]"
                && lines
                    .get(at + 1)
                    .is_some_and(|next| next.contains("mod ") && next.ends_with('{'))
        };
        let end = (0..lines.len())
            .find(|at| tests(*at))
            .unwrap_or(lines.len());
        lines
            .into_iter()
            .take(end)
            .enumerate()
            .map(|(at, line)| (at + 1, without_comment(line)))
    }
}

pub fn without_comment(line: &str) -> &str {
    // Good enough: a `//` in a string ends the line early, which hides nothing that is looked for.
    line.split_once("//").map_or(line, |(code, _)| code)
}

pub fn sources() -> Vec<Source> {
    let metadata = metadata();
    let mut sources = Vec::new();
    for package in members(&metadata) {
        let folder = Path::new(text(&package["manifest_path"]))
            .parent()
            .expect("a folder")
            .to_owned();
        for path in files_below(&folder)
            .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        {
            let shown = path
                .strip_prefix(root())
                .expect("below the root")
                .display()
                .to_string();
            sources.push(Source {
                path: shown,
                krate: text(&package["name"]).to_owned(),
                text: fs::read_to_string(&path).expect("UTF-8"),
            });
        }
    }
    assert!(sources.len() > 50, "the sources were found");
    sources
}

pub fn files_below(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path)
            } else {
                found.push(path)
            }
        }
    }
    found.sort();
    found.into_iter()
}

pub fn has_word(text: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(part_of_word) && !text[at + word.len()..].starts_with(part_of_word)
    })
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ has a parent")
}

/// `cargo metadata` for this machine's platform, so that nothing has to be fetched that was not built.
pub fn metadata() -> Value {
    let rustc = Command::new("rustc")
        .arg("-vV")
        .current_dir(root())
        .output()
        .expect("rustc runs");
    let rustc = String::from_utf8_lossy(&rustc.stdout).into_owned();
    let host = rustc
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .expect("rustc names its host");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--offline",
            "--filter-platform",
            host,
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

pub fn members(metadata: &Value) -> impl Iterator<Item = &Value> {
    let ids: Vec<&Value> = list(&metadata["workspace_members"]).iter().collect();
    list(&metadata["packages"])
        .iter()
        .filter(move |package| ids.contains(&&package["id"]))
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
