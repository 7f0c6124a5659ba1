//! Documents name what is there: make targets, options, configuration keys, JSON keys, paths. Reads files and `cargo metadata`;
//! starts no daemon, needs no root.

use gmodel::partition::Partition;
use gmodel::policy::{Account, Qos, Reservation};
use gmodel::record::{Key, Record};
use gwire::api::EventKind;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use gpupool_tests::source_tree::{files_below, has_word, members, metadata, root, sources, text};

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
                // `gsub --mark` is no submission, and `--interactive` makes an allocation.
                let is_other = ["mark", "interactive"].contains(&name.as_str());
                if !word.starts_with("--") || name.is_empty() || is_other {
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
        ("gconfig/src/scheduling.rs", "gpuctld.toml.5"),
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

/// The keys of a record with those of the tables in it.
fn keys_of<R: Record>() -> Vec<&'static Key> {
    let with_those_below = |key: &'static Key| [vec![key], key.below()].concat();
    R::keys().into_iter().flat_map(with_those_below).collect()
}

#[test]
fn every_key_of_a_policy_record_is_in_the_man_pages_and_has_help() {
    let (toml, json) = (man_page("gpuctld.toml.5"), man_page("gpupool-json.5"));
    let of_files = [
        keys_of::<Account>(),
        keys_of::<Qos>(),
        keys_of::<Reservation>(),
    ]
    .concat();
    let of_partitions = keys_of::<Partition>();
    for key in of_files.iter().chain(&of_partitions) {
        assert!(
            !key.is_in_files() || has_word(&toml, key.name),
            "man/gpuctld.toml.5 does not mention {}",
            key.name
        );
        assert!(key.help.trim().len() > 3, "{} has no help", key.name);
    }
    assert!(
        json.contains("Keys are those of\n.Xr gpuctld.toml 5"),
        "a key that is called the same in both is told there"
    );
    for key in &of_files {
        let is_said = key.json == key.name && key.is_in_files() || has_word(&json, key.json);
        assert!(is_said, "man/gpupool-json.5 does not mention {}", key.json);
    }
}

/// The strings of `const KEYS: [&str; N] = [...]` and of others with names that end so.
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
        "SubmitReply",
        "ErrorBody",
        "AccountRow",
        "BudgetUse",
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
        "TraceRow",
    ] {
        let body = api
            .split_once(&format!("pub struct {shape} {{"))
            .or_else(|| api.split_once(&format!("pub struct {shape}<")))
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
fn every_kind_and_key_of_an_event_is_in_its_document() {
    let page = fs::read_to_string(root().join("docs/events.md")).expect("docs/events.md");
    let rows: Vec<String> = EventKind::ALL
        .iter()
        .map(|kind| format!("| `{}` | {} |", kind.name(), kind.meaning()))
        .collect();
    let (_, table) = page
        .split_once("| kind | says |\n|---|---|\n")
        .expect("a table of kinds");
    let told: Vec<&str> = table
        .lines()
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert_eq!(
        told, rows,
        "the table of docs/events.md is that of gwire/src/api/events.rs"
    );
    let (_, keys) = page.split_once("| key | is |").expect("a table of keys");
    let keys = keys.split("\n\n").next().unwrap_or_default();
    let api = fs::read_to_string(root().join("gwire/src/api/events.rs")).expect("the API");
    let (_, row) = api.split_once("pub struct EventRow {").expect("the row");
    let (row, _) = row.split_once("pub struct EventQuery").expect("the query");
    let fields = row
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'));
    let missing: Vec<&str> = fields
        .map(|(name, _)| name)
        .filter(|name| !["schema", "job", "attempt"].contains(name))
        .filter(|name| !keys.contains(&format!("`{name}`")))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/events.md does not mention {missing:?}"
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

/// A page without the escapes of roff.
fn man_page(name: &str) -> String {
    let page = fs::read_to_string(root().join("man").join(name))
        .unwrap_or_else(|error| panic!("man/{name}: {error}"));
    page.replace("\\-", "-")
        .replace("\\&", "")
        .replace("\\_", "_")
}
