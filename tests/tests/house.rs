//! How the source is built, as numbers: sizes, import knots, names and words. Parses the workspace's files and builds nothing.
//! Line numbers come from `proc_macro2` with its feature `span-locations`.
//!
//! [`RULES`] holds the aim of each rule. [`NOT_YET`] lists the crates that miss it today, with a bound that only falls.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// Rule, the most that it allows in a crate, what it counts.
const RULES: &[(Rule, usize, &str)] = &[
    (Rule::Knot, 5, "modules that import each other in circles"),
    (
        Rule::ImplFiles,
        3,
        "files with `impl` blocks of one type (traits apart)",
    ),
    (Rule::Fields, 20, "fields of one struct"),
    (Rule::FileLines, 800, "lines of one file"),
    (Rule::LongFunctions, 0, "functions of more than 60 lines"),
    (
        Rule::TupleArguments,
        0,
        "arguments of functions that are tuples",
    ),
    (Rule::StopTypes, 0, "types named by a word of STOP_WORDS"),
    (Rule::TwiceTypes, 0, "type names that a crate has twice"),
    (
        Rule::PersonComments,
        9,
        "comment lines with a person pronoun, per mille",
    ),
];

/// A crate that misses a rule, with its bound. A crate that keeps the rule leaves the list.
const NOT_YET: &[(Rule, &str, usize)] = &[];

/// Functions that are one table or one long `match`, and structs with more fields that belong together, each with the reason.
const EXCUSED: &[(&str, &str, &str)] = &[
    ("gadm", "partition_table", "one record, a line for each key"),
    ("gcore", "apply", "one match over the events"),
    ("gcore", "bound_gpu", "one record, a bound for each field"),
    ("gcore", "state_seen", "a match with a line for each sign"),
    ("gcore", "submitted", "two records, a line for each field"),
    (
        "gcore",
        "take_repair_steps",
        "one match over the steps of a repair",
    ),
    ("gcore", "touched", "a match with a line for each event"),
    (
        "gcore",
        "wait_words",
        "a match with a sentence for each condition",
    ),
    ("gmodel", "RunSetup", "what gpud made ready, a field each"),
    (
        "gmodel",
        "StepOrder",
        "what a step starts with, a field each",
    ),
    ("gmodel", "ClusterConfig", "the tables of gpuctld.toml"),
    (
        "gmodel",
        "CommonSpec",
        "the options of a job that array tasks share",
    ),
    ("gmodel", "GpuReading", "what NVML reads of one GPU"),
    (
        "gmodel",
        "LaunchOrder",
        "a message: all that a node needs to start a run",
    ),
    ("gpuctld", "JobDocument", "the stored document of a job"),
    ("gpuctld", "add_event", "a match with a line for each event"),
    ("gpuctld", "changed_settings", "a table of the settings"),
    (
        "gpuctld",
        "event_sentence",
        "a match with a sentence for each event",
    ),
    ("gpuctld", "from_job", "one record, a line for each field"),
    ("gpuctld", "node_row", "one record, a line for each field"),
    (
        "gpuctld",
        "order_without_texts",
        "one record, a line for each field",
    ),
    ("gpuctld", "controller", "a table of the metric families"),
    ("gpuctld", "router", "a table of the routes"),
    ("gpuctld", "run_fields", "a table with a line for each key"),
    ("gpuctld", "with_spec", "one record, a line for each field"),
    ("gpud", "Config", "the keys of gpud.toml"),
    (
        "gpud",
        "read_keys",
        "the keys of gpud.toml, one after the other",
    ),
    (
        "gpud",
        "take_input",
        "one match over the inputs of gpud's loop",
    ),
    ("gq", "AccountingArgs", "the options of gacct"),
    ("gq", "NodeArgs", "the options of gnodes"),
    ("gq", "QueueArgs", "the options of gq"),
    ("gq", "value", "a match with a line for each column"),
    ("gsched", "apply", "one match over the edits of a request"),
    ("gsim", "happens", "one match over the simulated events"),
    ("gsim", "Measures", "the rows that gsim run prints"),
    (
        "gstepd",
        "Supervisor",
        "gstepd's loop owns each descriptor and process of one run",
    ),
    ("gsub", "StepArgs", "the options of grun"),
    (
        "gsys",
        "GpuFacts",
        "what discovery tells of one board, one record",
    ),
    ("gwire", "NodeRow", "a row of the API"),
    ("gwire", "PartitionRow", "a row of the API"),
    (
        "nvml-sim",
        "Gpu",
        "the state of a simulated board, one field for each answer of NVML",
    ),
    ("nvml-sim", "execute", "one match over the PTX instructions"),
    (
        "nvml-sim",
        "instruction",
        "one match over the names of PTX instructions",
    ),
    (
        "nvml-sim",
        "parse_fault",
        "one match over the words of faults",
    ),
    (
        "nvml-sim",
        "simulated_gpu",
        "one record with the fields of a board",
    ),
];

/// Words that name no thing of the field when a type is called by them alone.
const STOP_WORDS: &str = "
    About Above Again Ahead Alike Alive Alone Also Apart Around Asked At Away Bare Barred Before Beginning Begun Behind Below Beside Between Beyond
    Booked Born Both By CameFrom Cancelled Chosen Claimed Closed Common Connected Counted Done Due Either Elsewhere Ended Enough Exchanged
    Expected Falls Filled Fixed Foreseen Foretold Forked Found Freed Full Gathering Given Gone Granted Growing Had Happening He Held HeldBack Here How
    InTheWay InTurn Is It Kept Knows Known Lacking Later Launched Launching Learned Leaver Leaving Left LetGo Lifted Live Loaded Looked Lost Made Making Marked
    Means Meeting Met Moved Named Nearest Newest Next No Nobody Obeyed Of OfPass OfTypes Old Only Open Opened Ordered Other Others Out Over
    Overdrawn Owed Own Passed PassedOver Past Per Picked Placed Planned Posted Promised Published Put Queued Ran Reads Ready Reaped Received
    Recorded Refused Renewed Replayed Reserved Rest Running Said Seen Sent Several Shown Short Shut Some Spent Spoken Standing Stands Stopping Stored
    Submitted SubmitsTo Taken TakenThere Them Then There These Those Together Told TooFewBelow Touched Tried Under Unknown Unmet Unsound
    Used Usual Visible Wait Waiting Waits Want Wanted Weighted What When Where Who Whole Whom Whose Why Wish With Within Worse Worth
";
/// Words for persons. A comment has a job, a node, a run or a limit as its subject.
const PERSON_WORDS: &[&str] = &[
    "who",
    "whom",
    "whose",
    "whoever",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "someone",
    "anyone",
    "everyone",
    "he",
    "she",
    "his",
    "her",
    "him",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    Knot,
    ImplFiles,
    Fields,
    FileLines,
    LongFunctions,
    TupleArguments,
    StopTypes,
    TwiceTypes,
    PersonComments,
}

/// What a rule counts in a crate, and the places with the most of it.
#[derive(Default)]
struct Measure {
    count: usize,
    places: Vec<String>,
}

impl Measure {
    /// Of a rule that bounds the largest of a crate.
    fn largest(mut sizes: Vec<(usize, String)>, aim: usize) -> Measure {
        sizes.sort_by(|a, b| b.cmp(a));
        Measure {
            count: sizes.first().map_or(0, |(size, _)| *size),
            places: sizes
                .into_iter()
                .filter(|(size, _)| *size > aim)
                .map(|(size, place)| format!("{place}: {size}"))
                .collect(),
        }
    }

    /// Of a rule that bounds how many there are.
    fn number(places: Vec<String>) -> Measure {
        Measure {
            count: places.len(),
            places,
        }
    }
}

#[test]
fn each_crate_keeps_the_rules_of_the_house() {
    let crates = read_crates();
    assert!(crates.len() > 15, "the crates were found");
    let mut wrong = String::new();
    for (name, files) in &crates {
        for (rule, aim, counts) in RULES {
            let measure = measure(*rule, *aim, files);
            let bound = NOT_YET
                .iter()
                .find(|(r, krate, _)| r == rule && krate == name)
                .map(|(_, _, bound)| *bound);
            if bound.is_some() && measure.count <= *aim {
                let _ = writeln!(wrong, "{name} keeps {rule:?} now: take it off NOT_YET");
            }
            if measure.count > bound.unwrap_or(*aim) {
                let _ = writeln!(
                    wrong,
                    "{name}: {rule:?} {} is over {} ({counts})",
                    measure.count,
                    bound.unwrap_or(*aim)
                );
                for place in measure.places.iter().take(40) {
                    let _ = writeln!(wrong, "    {place}");
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_list_of_excuses_names_what_is_there() {
    let crates = read_crates();
    for (krate, name, why) in EXCUSED {
        let items = || crates[*krate].iter().map(|file| &file.items);
        let is_there = items().any(|items| {
            let mut sized = items.functions.iter().chain(&items.structs);
            sized.any(|item| item.name == *name)
        });
        assert!(is_there, "{krate}: {name} is excused and not there");
        assert!(why.len() > 10, "{name} has no reason");
    }
}

fn measure(rule: Rule, aim: usize, files: &[SourceFile]) -> Measure {
    let product = || files.iter().filter(|file| !file.is_test);
    match rule {
        Rule::Knot => knots(files, aim),
        Rule::ImplFiles => {
            let mut holders: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            for file in product() {
                for name in &file.items.inherent_impls {
                    holders.entry(name).or_default().insert(&file.path);
                }
            }
            let sizes = holders
                .into_iter()
                .map(|(name, files)| (files.len(), format!("impl {name}")));
            Measure::largest(sizes.collect(), aim)
        }
        Rule::Fields => {
            let structs =
                product().flat_map(|file| file.items.structs.iter().map(move |s| (file, s)));
            let counted = structs.filter(|(file, s)| !is_excused(&file.path, &s.name));
            Measure::largest(
                counted.map(|(_, s)| (s.size, s.name.clone())).collect(),
                aim,
            )
        }
        Rule::FileLines => {
            let sizes = files
                .iter()
                .map(|f| (f.text.lines().count(), f.path.clone()));
            Measure::largest(sizes.collect(), aim)
        }
        Rule::LongFunctions => {
            let functions =
                product().flat_map(|file| file.items.functions.iter().map(move |f| (file, f)));
            let long =
                functions.filter(|(file, f)| f.size > 60 && !is_excused(&file.path, &f.name));
            Measure::number(
                long.map(|(file, f)| format!("{}: {} ({})", file.path, f.name, f.size))
                    .collect(),
            )
        }
        Rule::TupleArguments => {
            let functions =
                product().flat_map(|file| file.items.functions.iter().map(move |f| (file, f)));
            let hidden = functions.filter(|(_, f)| f.tuple_arguments > 0);
            Measure::number(
                hidden
                    .map(|(file, f)| format!("{}: {}", file.path, f.name))
                    .collect(),
            )
        }
        Rule::StopTypes => {
            let stop: BTreeSet<&str> = STOP_WORDS.split_whitespace().collect();
            let types =
                product().flat_map(|file| file.items.types.iter().map(move |name| (file, name)));
            let stopped = types.filter(|(_, name)| stop.contains(name.as_str()));
            Measure::number(
                stopped
                    .map(|(file, name)| format!("{}: {name}", file.path))
                    .collect(),
            )
        }
        Rule::TwiceTypes => {
            let mut seen: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for file in product() {
                for name in &file.items.types {
                    seen.entry(name).or_default().push(&file.path);
                }
            }
            let twice = seen.into_iter().filter(|(_, files)| files.len() > 1);
            Measure::number(
                twice
                    .map(|(name, files)| format!("{name}: {}", files.join(", ")))
                    .collect(),
            )
        }
        Rule::PersonComments => person_comments(files),
    }
}

/// `path` is that of the file, whose first folder is the crate's.
fn is_excused(path: &str, name: &str) -> bool {
    EXCUSED
        .iter()
        .any(|(krate, excused, _)| *excused == name && path.split('/').next() == Some(krate))
}

fn person_comments(files: &[SourceFile]) -> Measure {
    let mut comments = 0_usize;
    let mut places = Vec::new();
    for file in files {
        for (at, line) in file.text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                continue;
            };
            comments += 1;
            let words = comment.split(|c: char| !c.is_ascii_alphabetic());
            if words
                .map(str::to_ascii_lowercase)
                .any(|word| PERSON_WORDS.contains(&word.as_str()))
            {
                places.push(format!("{}:{}: {}", file.path, at + 1, line.trim()));
            }
        }
    }
    Measure {
        count: places.len() * 1000 / comments.max(1),
        places,
    }
}

// ---- import knots ------------------------------------------------------------------------------------------------------

/// The largest sets of modules of a crate that reach each other by their imports. A `pub use` hands a name on and is no import.
fn knots(files: &[SourceFile], aim: usize) -> Measure {
    let modules: BTreeMap<&[String], &SourceFile> = files
        .iter()
        .filter(|file| !file.is_test)
        .filter_map(|file| Some((file.module.as_deref()?, file)))
        .collect();
    let edges: BTreeMap<&[String], BTreeSet<&[String]>> = modules
        .iter()
        .map(|(module, file)| (*module, imports(module, file, &modules)))
        .collect();
    let mut sizes = Vec::new();
    let mut placed: BTreeSet<&[String]> = BTreeSet::new();
    let reached: BTreeMap<&[String], BTreeSet<&[String]>> = edges
        .keys()
        .map(|module| (*module, reachable(module, &edges)))
        .collect();
    for module in modules.keys() {
        if placed.contains(module) {
            continue;
        }
        let knot: BTreeSet<&[String]> = reached[module]
            .iter()
            .filter(|other| reached[*other].contains(module))
            .copied()
            .collect();
        if knot.len() > 1 {
            let names: Vec<String> = knot.iter().map(|module| module.join("::")).collect();
            sizes.push((knot.len(), names.join(" ")));
        }
        placed.extend(knot);
        placed.insert(module);
    }
    Measure::largest(sizes, aim)
}

fn reachable<'a>(
    from: &'a [String],
    edges: &BTreeMap<&'a [String], BTreeSet<&'a [String]>>,
) -> BTreeSet<&'a [String]> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for next in edges.get(module).into_iter().flatten() {
            if found.insert(*next) {
                open.push(next);
            }
        }
    }
    found
}

/// The modules whose names a file uses.
fn imports<'a>(
    module: &[String],
    file: &SourceFile,
    modules: &BTreeMap<&'a [String], &SourceFile>,
) -> BTreeSet<&'a [String]> {
    let mut edges = BTreeSet::new();
    let mut imported: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for path in &file.items.uses {
        if let Some(full) = absolute(path, module, &imported, modules) {
            edges.extend(module_of(&full, modules));
            if let Some(last) = path.last() {
                imported.insert(last, full);
            }
        }
    }
    for path in &file.items.paths {
        if let Some(full) = absolute(path, module, &imported, modules) {
            edges.extend(module_of(&full, modules));
        }
    }
    edges.retain(|target| *target != module && !target.is_empty());
    edges
}

/// A path from the root of its crate, if it is one of this crate.
fn absolute(
    path: &[String],
    module: &[String],
    imported: &BTreeMap<&str, Vec<String>>,
    modules: &BTreeMap<&[String], &SourceFile>,
) -> Option<Vec<String>> {
    let (first, rest) = path.split_first()?;
    let base: Vec<String> = match first.as_str() {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => {
            let more = rest.iter().take_while(|word| *word == "super").count();
            let up = module.len().checked_sub(more + 1)?;
            return Some([&module[..up], &rest[more..]].concat());
        }
        name => match imported.get(name) {
            Some(full) => full.clone(),
            None => {
                let child = [module, &[name.to_owned()]].concat();
                modules.contains_key(child.as_slice()).then_some(child)?
            }
        },
    };
    Some([&base, rest].concat())
}

/// The module that holds what a path names.
fn module_of<'a>(
    path: &[String],
    modules: &BTreeMap<&'a [String], &SourceFile>,
) -> Option<&'a [String]> {
    (0..=path.len()).rev().find_map(|end| {
        modules
            .get_key_value(&path[..end])
            .map(|(module, _)| *module)
    })
}

// ---- reading the source ------------------------------------------------------------------------------------------------

struct SourceFile {
    path: String,
    text: String,
    /// Names from the root of its crate; `None` for a program beside it and for a test.
    module: Option<Vec<String>>,
    is_test: bool,
    items: Items,
}

struct Sized {
    name: String,
    /// Lines of a function, fields of a struct.
    size: usize,
    tuple_arguments: usize,
}

/// What is in a file, its tests left out.
#[derive(Default)]
struct Items {
    functions: Vec<Sized>,
    structs: Vec<Sized>,
    types: Vec<String>,
    inherent_impls: Vec<String>,
    uses: Vec<Vec<String>>,
    paths: Vec<Vec<String>>,
}

/// The files of each crate, by the crate's folder.
fn read_crates() -> BTreeMap<String, Vec<SourceFile>> {
    let root = root();
    let mut crates = BTreeMap::new();
    for folder in fs::read_dir(&root).expect("the workspace").flatten() {
        let name = folder.file_name().to_string_lossy().into_owned();
        if name.starts_with("target") || !folder.path().join("Cargo.toml").exists() {
            continue;
        }
        let mut paths = Vec::new();
        rust_files(&folder.path(), &mut paths);
        paths.sort();
        crates.insert(
            name,
            paths.iter().map(|path| read_file(&root, path)).collect(),
        );
    }
    crates
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn read_file(root: &Path, path: &Path) -> SourceFile {
    let shown = path
        .strip_prefix(root)
        .expect("below the root")
        .display()
        .to_string();
    let text = fs::read_to_string(path).expect("a source file");
    let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{shown}: {error}"));
    let parts: Vec<&str> = shown.trim_end_matches(".rs").split('/').collect();
    let is_test = parts[0] == "tests"
        || parts[1..].contains(&"tests")
        || parts
            .last()
            .is_some_and(|stem| stem.ends_with("_tests") || *stem == "test")
        || file.attrs.iter().any(is_for_tests);
    let mut items = Items::default();
    if !is_test {
        items.visit_file(&file);
    }
    let module = (parts[1] == "src" && parts[2] != "bin").then(|| {
        let names = parts[2..]
            .iter()
            .filter(|name| !matches!(**name, "mod" | "lib" | "main"));
        names.map(|name| (*name).to_owned()).collect()
    });
    SourceFile {
        path: shown,
        text,
        module,
        is_test,
        items,
    }
}

fn is_for_tests(attribute: &syn::Attribute) -> bool {
    match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let words = list.tokens.to_string();
            words == "test" || words.contains("(test") || words.contains("\"fake\"")
        }
        meta => meta
            .path()
            .segments
            .last()
            .is_some_and(|segment| segment.ident == "test"),
    }
}

fn item_attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

impl Items {
    fn function(&mut self, signature: &syn::Signature, end: usize) {
        let start = signature.fn_token.span.start().line;
        let hidden = signature.inputs.iter().filter(|input| match input {
            syn::FnArg::Typed(argument) => is_tuple(&argument.ty),
            syn::FnArg::Receiver(_) => false,
        });
        self.functions.push(Sized {
            name: signature.ident.to_string(),
            size: end + 1 - start,
            tuple_arguments: hidden.count(),
        });
    }

    fn use_tree(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.use_tree(&path.tree, &with(&path.ident)),
            syn::UseTree::Name(name) if name.ident == "self" => self.uses.push(before.to_vec()),
            syn::UseTree::Name(name) => self.uses.push(with(&name.ident)),
            syn::UseTree::Rename(rename) => self.uses.push(with(&rename.ident)),
            syn::UseTree::Glob(_) => self.uses.push(before.to_vec()),
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.use_tree(tree, before);
                }
            }
        }
    }
}

fn is_tuple(ty: &syn::Type) -> bool {
    match ty {
        syn::Type::Reference(reference) => is_tuple(&reference.elem),
        syn::Type::Tuple(tuple) => tuple.elems.len() > 1,
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Items {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if item_attributes(item).iter().any(is_for_tests) {
            return;
        }
        match item {
            syn::Item::Enum(item) => self.types.push(item.ident.to_string()),
            syn::Item::Trait(item) => self.types.push(item.ident.to_string()),
            syn::Item::Type(item) => self.types.push(item.ident.to_string()),
            syn::Item::Struct(item) => {
                self.types.push(item.ident.to_string());
                self.structs.push(Sized {
                    name: item.ident.to_string(),
                    size: item.fields.len(),
                    tuple_arguments: 0,
                });
            }
            syn::Item::Fn(item) => {
                self.function(&item.sig, item.block.brace_token.span.close().end().line)
            }
            syn::Item::Impl(item) if item.trait_.is_none() => {
                if let syn::Type::Path(path) = &*item.self_ty {
                    self.inherent_impls
                        .extend(path.path.segments.last().map(|s| s.ident.to_string()));
                }
            }
            syn::Item::Use(item) if matches!(item.vis, syn::Visibility::Inherited) => {
                self.use_tree(&item.tree, &[]);
            }
            _ => {}
        }
        if !matches!(item, syn::Item::Use(_)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !item.attrs.iter().any(is_for_tests) {
            self.function(&item.sig, item.block.brace_token.span.close().end().line);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.paths.push(
                path.segments
                    .iter()
                    .map(|segment| segment.ident.to_string())
                    .collect(),
            );
        }
        visit::visit_path(self, path);
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace")
        .to_path_buf()
}
