//! Whether packaging/files sends every program, man page, unit and sample of this tree to a package. Builds none: `make packages-test`
//! does, and lives with them.

use gpupool_tests::source_tree::{files_below, list, members, metadata, root, text};
use std::fs;

/// Folders of which each file belongs to a package.
const FOLDERS: [&str; 7] = [
    "man",
    "docs",
    "etc",
    "packaging/systemd",
    "packaging/sysusers.d",
    "packaging/tmpfiles.d",
    "packaging/needrestart.d",
];
/// What packaging/build.sh makes of etc/, as comments.
const COMMENTED: [&str; 3] = ["gpuctld.toml", "gpud.toml", "gpupool.toml"];
const PACKAGES: [&str; 6] = ["controller", "node", "client", "slurm", "sandbox", "none"];

/// A line of packaging/files: the package, and the file or pattern that goes to it.
type Line<'a> = (&'a str, &'a str);

fn lines(table: &str) -> Vec<Line<'_>> {
    let rows = table
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let named = PACKAGES.contains(&words[0]);
        let whole = words.len() == if words[0] == "none" { 2 } else { 3 };
        assert!(named && whole, "packaging/files: {line:?}");
        (words[0], words[1])
    })
    .collect()
}

/// Whether a pattern, with one `*` within the last part at most, means a file.
fn means(pattern: &str, file: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == file,
        Some((before, behind)) => {
            let inner = file
                .strip_prefix(before)
                .and_then(|rest| rest.strip_suffix(behind));
            inner.is_some_and(|inner| !inner.contains('/'))
        }
    }
}

/// Each file with the number of lines that send it somewhere, if that is not one.
fn wrong(lines: &[Line], files: &[String]) -> Vec<(String, usize)> {
    let count = |file: &String| {
        let meant = lines.iter().filter(|(_, pattern)| means(pattern, file));
        (file.clone(), meant.count())
    };
    files
        .iter()
        .map(count)
        .filter(|(_, count)| *count != 1)
        .collect()
}

/// Programs and loadable libraries that a release build leaves in `target/`.
fn programs() -> Vec<String> {
    let metadata = metadata();
    let targets = members(&metadata).flat_map(|package| list(&package["targets"]));
    targets
        .filter_map(|target| {
            let name = text(&target["name"]);
            let is = |kind: &str| list(&target["kind"]).iter().any(|known| known == kind);
            match (is("bin"), is("cdylib")) {
                (true, _) => Some(format!("target/{name}")),
                (_, true) => Some(format!("target/lib{name}.so")),
                _ => None,
            }
        })
        .collect()
}

fn shipped_files() -> Vec<String> {
    let paths = FOLDERS
        .iter()
        .flat_map(|folder| files_below(&root().join(folder)).collect::<Vec<_>>());
    paths
        .map(|path| {
            let shown = path.strip_prefix(root()).expect("below the root");
            let shown = shown.display().to_string();
            match shown.strip_prefix("etc/") {
                Some(name) if COMMENTED.contains(&name) => format!("made/{shown}"),
                _ => shown,
            }
        })
        .collect()
}

#[test]
fn every_program_page_and_unit_goes_to_one_package() {
    let table = fs::read_to_string(root().join("packaging/files")).unwrap();
    let lines = lines(&table);
    let (programs, files) = (programs(), shipped_files());
    assert!(
        programs.len() > 15 && files.len() > 25,
        "they were found: {programs:?} {files:?}"
    );
    assert_eq!(
        wrong(&lines, &[programs.as_slice(), files.as_slice()].concat()),
        [],
        "files with the number of lines in packaging/files that send them to a package, or to none"
    );
    let stale: Vec<_> = lines
        .iter()
        .filter(|(_, pattern)| pattern.starts_with("target/"))
        .filter(|(_, pattern)| !programs.iter().any(|program| program == pattern))
        .collect();
    assert!(stale.is_empty(), "no build makes {stale:?}");
}

#[test]
fn the_changelog_tells_of_the_version_of_the_workspace() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let manifest = read("Cargo.toml");
    let version = manifest
        .split_once("[workspace.package]\nversion = \"")
        .and_then(|(_, rest)| rest.split_once('"'))
        .expect("the version is the first line of its table")
        .0;
    let newest = read("CHANGELOG.md");
    let newest = newest.lines().find_map(|line| line.strip_prefix("## "));
    let newest = newest.and_then(|line| line.split([',', ' ']).next());
    assert_eq!(newest, Some(version), "the newest part of CHANGELOG.md");
}

#[test]
fn a_forgotten_and_a_doubled_file_are_noticed() {
    let table = "# word\nnode target/gpud /usr/sbin\nclient etc/a/* /x\nclient etc/a/b /x\n";
    let files = ["target/gpud", "target/gnew", "etc/a/b", "etc/a/b/c"].map(str::to_owned);
    assert_eq!(
        wrong(&lines(table), &files),
        [
            ("target/gnew".to_owned(), 0),
            ("etc/a/b".to_owned(), 2),
            ("etc/a/b/c".to_owned(), 0)
        ]
    );
}
