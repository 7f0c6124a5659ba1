//! The rules of ARCHITECTURE.md that a build cannot check: crate arrows, licences, file sizes, where `unsafe` and SQL may stand.
//! Reads files and `cargo metadata`; starts no daemon, needs no root.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use gpupool_tests::source_tree::{
    has_word, list, members, metadata, root, sources, text, without_comment,
};
use spdx::{Expression, ParseMode};

/// What each crate may depend on inside the workspace.
const ARROWS: &[(&str, &[&str])] = &[
    ("gmodel", &[]),
    ("gconfig", &["gmodel"]),
    ("gpolicy", &["gmodel"]),
    ("gsched", &["gmodel", "gpolicy"]),
    ("gcore", &["gmodel", "gpolicy", "gsched"]),
    ("gsim", &["gmodel", "gconfig", "gpolicy", "gsched", "gcore"]),
    // Experiments, outside of the default build.
    (
        "gsim-lab",
        &["gmodel", "gpolicy", "gsched", "gcore", "gsim"],
    ),
    ("gimport", &["gmodel", "gconfig"]),
    ("gwire", &["gmodel"]),
    ("gsys", &["gmodel"]),
    ("nvml-sim", &["gmodel"]),
    // sshd loads it.
    ("pam-gpupool", &["gmodel"]),
    ("gcli", &["gmodel", "gwire"]),
    // Of the commands under Slurm's names, and of the controller's routes for clients of slurmrestd.
    ("gslurm-json", &["gmodel", "gwire"]),
    // The controller's pages as HTML.
    ("gweb", &["gmodel", "gwire"]),
    // The planner thread calls the scheduler itself.
    (
        "gpuctld",
        &[
            "gmodel",
            "gconfig",
            "gpolicy",
            "gsched",
            "gcore",
            "gimport",
            "gwire",
            "gcli",
            "gslurm-json",
            "gsub",
            "gweb",
        ],
    ),
    ("gpud", &["gmodel", "gcore", "gwire", "gsys"]),
    ("gstepd", &["gmodel", "gsys", "gwire"]),
    // gpud runs it; it never links what a daemon links.
    ("gcheck", &["gsys"]),
    ("gsub", &["gmodel", "gwire", "gcli"]),
    ("gq", &["gmodel", "gwire", "gcli", "gslurm-json"]),
    // It runs the other commands, and links none.
    ("gtop", &["gmodel", "gwire", "gcli"]),
    // `gadm sandbox` makes device files and removes cgroups.
    ("gadm", &["gmodel", "gimport", "gwire", "gcli", "gsys"]),
    // Slurm's commands, carried out by the code of ours.
    (
        "gslurm",
        &[
            "gmodel",
            "gimport",
            "gwire",
            "gcli",
            "gslurm-json",
            "gsub",
            "gq",
            "gadm",
        ],
    ),
    ("gpupool-tests", &["gmodel", "gwire"]),
    ("gpupool-bench", &["gmodel", "gwire"]),
];
/// What tests of a crate may use besides.
const DEV_ARROWS: &[(&str, &[&str])] = &[
    ("gsys", &["nvml-sim"]),
    ("nvml-sim", &["gsys", "gcore"]),
    ("gpud", &["nvml-sim"]),
    ("gcheck", &["nvml-sim"]),
    ("gpuctld", &["gsim"]),
    ("gcore", &["gsim"]),
    ("gsched", &["gsim"]),
    ("gpupool-tests", &["nvml-sim", "gsys", "gcli"]),
];
/// Crates named otherwise than their folder, since `tests` and `benches` are no names for a crate.
const FOLDERS: &[(&str, &str)] = &[("gpupool-tests", "tests"), ("gpupool-bench", "benches")];
/// No clock, no I/O, no hash order. gsim's command reads and prints, its library does not.
const PURE: &[&str] = &[
    "gmodel", "gconfig", "gpolicy", "gsched", "gcore", "gsim", "gimport", "gweb",
];
/// Crates from outside that pure crates may build on.
const PURE_MAY_USE: &[&str] = &[
    "serde",
    "serde_json",
    "thiserror",
    "strsim",
    "fixedbitset",
    // HTML as Rust.
    "maud",
    "anyhow",
    "clap",
    "toml",
    // Of chrono without its clock: calendars and zones.
    "chrono",
    "chrono-tz",
    "annotate-snippets",
    // They read traces from memory.
    "csv",
    "flate2",
    // Where memory comes from, of gsim's command.
    "mimalloc",
];
/// What would bring clock, I/O, threads or hash order into a pure crate.
const IMPURE_WORDS: &[&str] = &[
    "std::fs",
    "std::time",
    "std::net",
    "std::thread",
    "std::process",
    "std::env",
    "std::os",
    "std::sync::Mutex",
    "HashMap",
    "HashSet",
    "SystemTime",
    "tokio",
];
/// Linux and NVIDIA's libraries, their simulation, and a module that libpam calls: the last two are C's interfaces from the other side.
const UNSAFE_CRATES: &[&str] = &["gsys", "nvml-sim", "pam-gpupool"];

/// Licences we may ship beside Apache-2.0.
const LICENCES: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unlicense",
    "BSL-1.0",
    "0BSD",
    "CC0-1.0",
    "Unicode-3.0",
    "MIT-0",
    "CDLA-Permissive-2.0",
];
/// With the reason, which the failure prints.
const BANNED: &[(&str, &str)] = &[
    ("bincode", "no longer maintained"),
    (
        "postcard",
        "a new field breaks it, and both ends of our wire are of different releases",
    ),
    (
        "tonic",
        "slower to build and to answer than HTTP/1.1 with JSON",
    ),
    ("aws-lc-rs", "rustls uses ring here"),
    ("aws-lc-sys", "rustls uses ring here"),
    ("openssl", "rustls does TLS here"),
    ("openssl-sys", "rustls does TLS here"),
    ("native-tls", "rustls does TLS here"),
    ("turmoil", "does not reach a hundred nodes; gsim does"),
    (
        "pam-client",
        "does not build; gsys::pam opens libpam itself",
    ),
    (
        "serde_toml",
        "an empty placeholder; the crate is called toml",
    ),
];

// ---- arrows and crates -------------------------------------------------------------------------------------------------

#[test]
fn crates_depend_only_along_the_arrows() {
    let metadata = metadata();
    let mut wrong = String::new();
    for package in members(&metadata) {
        let name = text(&package["name"]);
        let Some(normal) = row(ARROWS, name) else {
            let _ = writeln!(
                wrong,
                "{name} is not in ARROWS of this test nor in ARCHITECTURE.md"
            );
            continue;
        };
        let dev = row(DEV_ARROWS, name).unwrap_or_default();
        for dependency in list(&package["dependencies"])
            .iter()
            .filter(|dependency| !dependency["path"].is_null())
        {
            let target = text(&dependency["name"]);
            let is_dev = dependency["kind"] == "dev";
            if !(normal.contains(&target) || is_dev && dev.contains(&target)) {
                let _ = writeln!(wrong, "{name} may not depend on {target}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_dependency_is_used() {
    // Built for the library that tests open by its path, not for its Rust names.
    let opened_by_path =
        |krate: &str, dependency: &str| dependency == "nvml-sim" && krate != "nvml-sim";
    let sources = sources();
    let mut wrong = String::new();
    for package in members(&metadata()) {
        let krate = text(&package["name"]);
        for dependency in list(&package["dependencies"])
            .iter()
            .map(|dependency| text(&dependency["name"]))
        {
            let word = dependency.replace('-', "_");
            let is_named = sources
                .iter()
                .any(|file| file.krate == krate && has_word(&file.text, &word));
            if !is_named && !opened_by_path(krate, dependency) {
                let _ = writeln!(wrong, "{krate}/Cargo.toml: {dependency} is used nowhere");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn each_crate_is_a_folder_of_its_name_and_takes_the_workspaces_lints() {
    let mut wrong = String::new();
    for package in members(&metadata()) {
        let name = text(&package["name"]);
        let manifest = Path::new(text(&package["manifest_path"]));
        let folder = manifest
            .parent()
            .and_then(Path::file_name)
            .unwrap_or_default();
        let wanted = FOLDERS
            .iter()
            .find(|(krate, _)| *krate == name)
            .map_or(name, |(_, folder)| folder);
        if folder != wanted {
            let _ = writeln!(wrong, "{name} lies in {}", folder.display());
        }
        let manifest = fs::read_to_string(manifest).expect("a manifest");
        if !UNSAFE_CRATES.contains(&name) && !manifest.contains("[lints]\nworkspace = true") {
            let _ = writeln!(wrong, "{name} does not take the workspace's lints");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn pure_crates_know_no_clock_no_files_and_no_hash_order() {
    let metadata = metadata();
    let mut wrong = String::new();
    for package in members(&metadata).filter(|package| PURE.contains(&text(&package["name"]))) {
        let name = text(&package["name"]);
        let clippy = fs::read_to_string(root().join(name).join("clippy.toml")).unwrap_or_default();
        for banned in ["HashMap", "Instant", "SystemTime", "std::fs"] {
            if !clippy.contains(banned) {
                let _ = writeln!(wrong, "{name}/clippy.toml does not ban {banned}");
            }
        }
        let outside = list(&package["dependencies"])
            .iter()
            .filter(|dependency| dependency["path"].is_null());
        for dependency in outside.filter(|dependency| dependency["kind"].is_null()) {
            if !PURE_MAY_USE.contains(&text(&dependency["name"])) {
                let _ = writeln!(
                    wrong,
                    "{name} is pure and may not use {}",
                    dependency["name"]
                );
            }
        }
    }
    for file in sources()
        .iter()
        .filter(|file| PURE.contains(&file.krate.as_str()) && !file.is_program())
    {
        for (number, line) in file.code() {
            for word in IMPURE_WORDS.iter().filter(|word| has_word(line, word)) {
                let _ = writeln!(wrong, "{}:{number} uses {word}", file.path);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

// ---- source files ------------------------------------------------------------------------------------------------------

#[test]
fn source_files_say_what_they_own() {
    let mut wrong = String::new();
    for file in sources().iter().filter(|file| file.is_shipped()) {
        if !file.text.starts_with("//!") {
            let _ = writeln!(wrong, "{} does not begin with //!", file.path);
        }
        let stem = Path::new(&file.path).file_stem().unwrap_or_default();
        if ["utils", "util", "helpers", "common", "manager", "misc"]
            .iter()
            .any(|word| stem == *word)
        {
            let _ = writeln!(wrong, "{} is named after nothing of the field", file.path);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn unsafe_stands_in_three_crates_and_says_why_it_is_sound() {
    let opening = [
        "unsafe {",
        "unsafe impl",
        "unsafe extern",
        "unsafe fn",
        "unsafe_code",
    ];
    let mut wrong = String::new();
    for file in sources() {
        let lines: Vec<&str> = file.text.lines().collect();
        let opens = |line: &str| {
            opening
                .iter()
                .any(|word| without_comment(line).contains(word))
        };
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| opens(line)) {
            if !UNSAFE_CRATES.contains(&file.krate.as_str()) && file.path != "tests/tests/tidy.rs" {
                let _ = writeln!(
                    wrong,
                    "{}:{}: unsafe belongs in gsys, nvml-sim or pam-gpupool",
                    file.path,
                    at + 1
                );
            }
            let block = without_comment(line).contains("unsafe {")
                || without_comment(line).contains("unsafe impl");
            if file.is_shipped()
                && UNSAFE_CRATES.contains(&file.krate.as_str())
                && block
                && !explained(&lines, at)
            {
                let _ = writeln!(wrong, "{}:{}: no SAFETY: line above", file.path, at + 1);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// A `SAFETY:` in the comment that ends at this line or stands right above its statement.
fn explained(lines: &[&str], at: usize) -> bool {
    lines[at.saturating_sub(8)..=at]
        .iter()
        .any(|line| line.contains("SAFETY:"))
}

#[test]
fn sql_stands_in_the_store_only() {
    let words = [
        "SELECT ",
        "INSERT INTO",
        "INSERT OR ",
        "DELETE FROM",
        "CREATE TABLE",
        "PRAGMA ",
        "UPDATE runs",
        "UPDATE jobs",
    ];
    let mut wrong = String::new();
    // The bench writes two million rows as no command could.
    let may = ["gpuctld/src/store/", "benches/src/history.rs"];
    for file in sources()
        .iter()
        .filter(|file| file.is_shipped() && !may.iter().any(|path| file.path.starts_with(path)))
    {
        for (number, line) in file.code() {
            if has_word(line, "rusqlite") || words.iter().any(|word| line.contains(word)) {
                let _ = writeln!(wrong, "{}:{number}: {}", file.path, line.trim());
            }
        }
    }
    assert!(wrong.is_empty(), "SQL outside gpuctld/src/store:\n{wrong}");
}

#[test]
fn nothing_is_left_unfinished_and_no_test_is_switched_off() {
    // Cut in two, so that this file does not find itself.
    let words = [
        ["#[ign", "ore"],
        ["todo", "!("],
        ["unimplemented", "!("],
        ["FIX", "ME"],
        ["TO", "DO:"],
        ["XX", "X "],
    ]
    .map(|[a, b]| format!("{a}{b}"));
    let mut wrong = String::new();
    for file in sources() {
        for (at, line) in file.text.lines().enumerate() {
            for word in words.iter().filter(|word| line.contains(word.as_str())) {
                let _ = writeln!(wrong, "{}:{}: {word}", file.path, at + 1);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

// ---- what others wrote -------------------------------------------------------------------------------------------------

#[test]
fn every_licence_is_one_we_may_ship_and_no_crate_is_banned() {
    let metadata = metadata();
    let used: BTreeSet<&str> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| text(&node["id"]))
        .collect();
    assert!(used.len() > 50, "the graph was read");
    let mut wrong = String::new();
    for package in list(&metadata["packages"])
        .iter()
        .filter(|package| used.contains(text(&package["id"])))
    {
        let name = text(&package["name"]);
        if let Some((_, why)) = BANNED.iter().find(|(banned, _)| *banned == name) {
            let _ = writeln!(wrong, "{name} is banned: {why}");
        }
        let licence = package["license"].as_str().unwrap_or("none named");
        if !is_allowed(licence) {
            let _ = writeln!(wrong, "{name}: licence {licence:?}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn licence_expressions_are_understood() {
    for good in [
        "MIT",
        "MIT OR GPL-3.0",
        "MIT/Apache-2.0",
        "(MIT OR GPL-2.0) AND ISC",
        "Apache-2.0 WITH LLVM-exception OR X",
    ] {
        assert!(is_allowed(good), "{good}");
    }
    for bad in [
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(GPL-2.0 OR AGPL-3.0) AND MIT",
        "",
        "MIT OR",
    ] {
        assert!(!is_allowed(bad), "{bad}");
    }
}

/// Whether an SPDX expression leaves the choice of an allowed licence.
fn is_allowed(expression: &str) -> bool {
    let as_cargo_has_it = ParseMode {
        allow_slash_as_or_operator: true,
        allow_deprecated: true,
        allow_unknown: true,
        ..ParseMode::STRICT
    };
    Expression::parse_mode(expression, as_cargo_has_it)
        .is_ok_and(|read| read.evaluate(|licence| LICENCES.contains(&licence.to_string().as_str())))
}

fn row(table: &[(&str, &'static [&'static str])], name: &str) -> Option<&'static [&'static str]> {
    table
        .iter()
        .find(|(key, _)| *key == name)
        .map(|(_, values)| *values)
}
