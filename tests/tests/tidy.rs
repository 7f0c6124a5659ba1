//! The rules of ARCHITECTURE.md that a build cannot check: crate arrows, licences, file sizes, where `unsafe` and SQL may stand,
//! and that the documents name what is there. Reads files and `cargo metadata`; starts no daemon, needs no root.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use spdx::{Expression, ParseMode};

/// What each crate may depend on inside the workspace.
const ARROWS: &[(&str, &[&str])] = &[
    ("gmodel", &[]),
    ("gconfig", &["gmodel"]),
    ("gsched", &["gmodel"]),
    ("gcore", &["gmodel", "gsched"]),
    ("gsim", &["gmodel", "gconfig", "gsched", "gcore"]),
    // Experiments, outside of the default build.
    ("gsim-lab", &["gmodel", "gsched", "gcore", "gsim"]),
    ("gwire", &["gmodel"]),
    ("gsys", &["gmodel"]),
    ("nvml-sim", &["gmodel"]),
    ("gcli", &["gmodel", "gwire"]),
    // The planner thread calls the scheduler itself.
    (
        "gpuctld",
        &["gmodel", "gconfig", "gsched", "gcore", "gwire"],
    ),
    ("gpud", &["gmodel", "gcore", "gwire", "gsys"]),
    ("gstepd", &["gmodel", "gsys"]),
    // gpud runs it; it never links what a daemon links.
    ("gcheck", &["gsys"]),
    ("gsub", &["gmodel", "gwire", "gcli"]),
    ("gq", &["gmodel", "gwire", "gcli"]),
    // `gadm sandbox` makes device files and removes cgroups; `gadm man` writes the pages of all commands.
    ("gadm", &["gmodel", "gwire", "gcli", "gsys", "gq", "gsub"]),
    ("gpupool-tests", &["gmodel", "gwire"]),
    ("gpupool-bench", &["gmodel", "gwire"]),
];
/// What tests of a crate may use besides.
const DEV_ARROWS: &[(&str, &[&str])] = &[
    ("gsys", &["nvml-sim"]),
    ("nvml-sim", &["gsys"]),
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
const PURE: &[&str] = &["gmodel", "gconfig", "gsched", "gcore", "gsim"];
/// Crates from outside that pure crates may build on.
const PURE_MAY_USE: &[&str] = &[
    "serde",
    "serde_json",
    "thiserror",
    "strsim",
    "fixedbitset",
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
const UNSAFE_CRATES: &[&str] = &["gsys", "nvml-sim"];

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
/// With the reason, which a person who adds one of them reads in the failure.
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
fn unsafe_stands_in_two_crates_and_says_why_it_is_sound() {
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
                    "{}:{}: unsafe belongs in gsys or nvml-sim",
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

// ---- documents ---------------------------------------------------------------------------------------------------------

#[test]
fn make_targets_in_the_documents_exist() {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("a Makefile");
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name)
        .filter(|name| !name.contains(['\t', ' ', '=']))
        .collect();
    let mut wrong = String::new();
    for document in [
        "README.md",
        "CONTRIBUTING.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
    ] {
        let text = fs::read_to_string(root().join(document)).unwrap_or_default();
        assert!(!text.is_empty(), "{document} is there");
        for target in made(&text).filter(|target| !targets.contains(target.as_str())) {
            let _ = writeln!(wrong, "{document}: `make {target}` is not in the Makefile");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(targets.contains("test") && targets.contains("demo"));
}

/// Targets after the word `make` at the begin of a line or of a code span.
fn made(text: &str) -> impl Iterator<Item = String> {
    text.match_indices("make ").filter_map(|(at, word)| {
        let before = text[..at].chars().next_back();
        let target: String = text[at + word.len()..]
            .chars()
            .take_while(|c| c.is_ascii_lowercase() || *c == '-')
            .collect();
        (matches!(before, None | Some('\n' | '`' | ' ')) && in_code(text, at) && !target.is_empty())
            .then_some(target)
    })
}

/// Whether a place is inside a code span or a fenced block.
fn in_code(text: &str, at: usize) -> bool {
    let fenced = text[..at].matches("```").count() % 2 == 1;
    let line = text[..at].rsplit('\n').next().unwrap_or_default();
    fenced || line.matches('`').count() % 2 == 1
}

#[test]
fn options_of_gsub_in_documents_and_examples_are_acted_on() {
    use gmodel::option_table::{OptionSpec, OptionStatus};
    let mut wrong = String::new();
    let mut seen = 0;
    for path in ["README.md", "man/gpupool.7"]
        .map(PathBuf::from)
        .into_iter()
        .chain(files_below(&root().join("etc/examples")))
    {
        let path = root().join(path);
        let shown = path
            .strip_prefix(root())
            .unwrap_or(&path)
            .display()
            .to_string();
        let text = fs::read_to_string(&path)
            .unwrap_or_default()
            .replace("\\-", "-");
        for (at, line) in text.lines().enumerate() {
            let Some(words) = ["gsub ", "#GSUB ", "#SBATCH "]
                .iter()
                .find_map(|start| line.split_once(start))
            else {
                continue;
            };
            // Behind `--` are the words of the job's own command.
            for word in words
                .1
                .split_whitespace()
                .take_while(|word| !matches!(*word, "--" | "|" | "#" | "&&"))
            {
                let name: String = word
                    .trim_start_matches("--")
                    .chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || *c == '-')
                    .collect();
                // `gsub --mark` is no submission.
                if !word.starts_with("--") || name.is_empty() || name == "mark" {
                    continue;
                }
                seen += 1;
                let status = OptionSpec::find(&name).map(|option| option.status);
                if !matches!(status, Some(OptionStatus::Done | OptionStatus::SameAs(_))) {
                    let _ = writeln!(wrong, "{shown}:{}: --{name}", at + 1);
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "options that gsub does not act on:\n{wrong}"
    );
    assert!(seen > 10, "options were found");
}

#[test]
fn heads_of_the_examples_are_read_without_complaint() {
    let scripts: Vec<_> = files_below(&root().join("etc/examples"))
        .filter(|path| path.extension().is_some_and(|e| e == "sh"))
        .collect();
    assert!(scripts.len() >= 4, "{scripts:?}");
    for path in scripts {
        let script = fs::read(&path).expect("an example");
        let directives = gmodel::directive::read_directives(&script)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(
            !directives.is_empty(),
            "{} has no #GSUB line",
            path.display()
        );
        assert!(
            gmodel::directive::misplaced_directives(&script).is_empty(),
            "{}",
            path.display()
        );
    }
}

#[test]
fn every_configuration_key_is_in_its_man_page() {
    for (source, page) in [
        ("gconfig/src/cluster.rs", "gpuctld.toml.5"),
        ("gconfig/src/partition.rs", "gpuctld.toml.5"),
        ("gconfig/src/scheduling.rs", "gpuctld.toml.5"),
        ("gconfig/src/policy.rs", "gpuctld.toml.5"),
        ("gconfig/src/limits.rs", "gpuctld.toml.5"),
        ("gconfig/src/topology.rs", "gpuctld.toml.5"),
        ("gpud/src/config.rs", "gpud.toml.5"),
        ("gcli/src/client_config.rs", "gpupool.toml.5"),
    ] {
        let page_text = man_page(page);
        let keys = listed_keys(&fs::read_to_string(root().join(source)).expect("a source file"));
        assert!(!keys.is_empty(), "{source} lists its keys in KEYS");
        let missing: Vec<_> = keys
            .iter()
            .filter(|key| !has_word(&page_text, key))
            .collect();
        assert!(
            missing.is_empty(),
            "man/{page} does not mention {missing:?} of {source}"
        );
    }
}

/// The strings of `const KEYS: [&str; N] = [...]` and of others whose names end so.
fn listed_keys(source: &str) -> Vec<String> {
    let lists = source
        .split("KEYS: [&str; ")
        .skip(1)
        .filter_map(|rest| rest.split_once("= [")?.1.split_once(']'));
    lists
        .flat_map(|(list, _)| list.split('"').skip(1).step_by(2).map(str::to_owned))
        .collect()
}

#[test]
fn every_key_of_the_json_is_in_its_man_page() {
    let page = man_page("gpupool-json.5");
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("the API");
    let parts = [
        "api.rs",
        "api/nodes.rs",
        "api/policy.rs",
        "api/schedule.rs",
        "api/step.rs",
        "api/trace.rs",
    ];
    let api: String = parts
        .iter()
        .map(|part| read(&format!("gwire/src/{part}")))
        .collect();
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for shape in [
        "JobRow",
        "MarkRow",
        "CheckpointMarkRow",
        "NodeRow",
        "GpuRow",
        "PartitionRow",
        "RunRow",
        "RunDetail",
        "StepRow",
        "ReportRow",
        "UtilizationRow",
        "DryRun",
        "Submitted",
        "ErrorBody",
        "AccountRow",
        "BudgetRow",
        "UserRow",
        "LimitsRow",
        "JobLimitsRow",
        "QosRow",
        "ReservationRow",
        "LicenceRow",
        "PriorityRow",
        "PartitionPriorityRow",
        "FactorsRow",
        "ShareRow",
        "OutlookRow",
        "WhyRow",
        "BlockerRow",
        "NearestRow",
        "ChangeRow",
        "StartRow",
        "LastTaskRow",
        "TraceRow",
    ] {
        let body = api
            .split_once(&format!("pub struct {shape} {{"))
            .and_then(|(_, rest)| rest.split_once("\n}"))
            .expect(shape)
            .0;
        let fields = body
            .lines()
            .filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'))
            .map(|(name, _)| name);
        for field in fields.filter(|field| *field != "gpu_type" && !has_word(&page, field)) {
            missing.entry(shape).or_default().push(field);
        }
    }
    assert!(
        missing.is_empty(),
        "man/gpupool-json.5 does not mention {missing:?}"
    );
}

#[test]
fn each_crate_has_a_readme_and_source_files_that_documents_name_exist() {
    let sources = sources();
    let crates = members(&metadata())
        .map(|package| Path::new(text(&package["manifest_path"])).with_file_name("README.md"))
        .collect::<Vec<_>>();
    let mut wrong = String::new();
    let mut seen = 0;
    for document in crates.into_iter().chain([root().join("CONTRIBUTING.md")]) {
        let shown = document
            .strip_prefix(root())
            .unwrap_or(&document)
            .display()
            .to_string();
        let Ok(text) = fs::read_to_string(&document) else {
            let _ = writeln!(wrong, "{shown} itself");
            continue;
        };
        for span in text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|span| span.ends_with(".rs") && !span.contains(['*', ' ', '\n']))
        {
            seen += 1;
            if !sources
                .iter()
                .any(|file| file.path == span || file.path.ends_with(&format!("/{span}")))
            {
                let _ = writeln!(wrong, "{shown}: {span}");
            }
        }
    }
    assert!(wrong.is_empty(), "not there:\n{wrong}");
    assert!(seen > 100, "names were found");
}

#[test]
fn paths_in_the_code_map_exist() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let mut wrong = String::new();
    for span in map
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|span| !span.contains(char::is_whitespace))
    {
        let is_path = span.contains('/')
            && (span.ends_with(".rs") || span.ends_with('/') || span.ends_with(".sh"))
            && !span.starts_with('/');
        if is_path && !root().join(span.trim_start_matches("./")).exists() {
            let _ = writeln!(wrong, "{span}");
        }
    }
    assert!(
        wrong.is_empty(),
        "ARCHITECTURE.md names files that are not there:\n{wrong}"
    );
}

// ---- reading -----------------------------------------------------------------------------------------------------------

/// A Rust file of the workspace.
struct Source {
    /// From the root.
    path: String,
    krate: String,
    text: String,
}

impl Source {
    /// Part of a library or program, not of tests beside them.
    fn is_shipped(&self) -> bool {
        self.path.contains("/src/")
            && !self.path.ends_with("/tests.rs")
            && !self.path.contains("/tests/")
    }

    /// The command around a library.
    fn is_program(&self) -> bool {
        self.path.ends_with("/main.rs")
            || self.path.contains("/src/bin/")
            || !self.path.contains("/src/")
    }

    /// Lines with their numbers up to the tests at the end, without comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
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

fn without_comment(line: &str) -> &str {
    // Good enough: a `//` in a string ends the line early, which hides nothing that is looked for.
    line.split_once("//").map_or(line, |(code, _)| code)
}

fn sources() -> Vec<Source> {
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

fn files_below(folder: &Path) -> impl Iterator<Item = PathBuf> {
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

fn has_word(text: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(part_of_word) && !text[at + word.len()..].starts_with(part_of_word)
    })
}

/// A page without the escapes of roff.
fn man_page(name: &str) -> String {
    let page = fs::read_to_string(root().join("man").join(name))
        .unwrap_or_else(|error| panic!("man/{name}: {error}"));
    page.replace("\\-", "-")
        .replace("\\&", "")
        .replace("\\_", "_")
}

fn row(table: &[(&str, &'static [&'static str])], name: &str) -> Option<&'static [&'static str]> {
    table
        .iter()
        .find(|(key, _)| *key == name)
        .map(|(_, values)| *values)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ has a parent")
}

/// `cargo metadata` for this machine's platform, so that nothing has to be fetched that was not built.
fn metadata() -> Value {
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

fn members(metadata: &Value) -> impl Iterator<Item = &Value> {
    let ids: Vec<&Value> = list(&metadata["workspace_members"]).iter().collect();
    list(&metadata["packages"])
        .iter()
        .filter(move |package| ids.contains(&&package["id"]))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
