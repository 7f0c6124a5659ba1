//! The columns of partition and node listings: sinfo's letters and names. Source: sinfo(1).
//!
//! A cell is about a group of nodes of one partition; columns that tell nodes apart decide the groups,
//! the others add up.

use gcli::column_format::{FormatError, Piece, parse_letters, parse_names};
use gcli::local_time::TimeFormat;
use gmodel::duration::squeue_time;
use gmodel::hostlist;
use gmodel::suggest::did_you_mean;
use gslurm_json::value::node::{drainer, gres_text, gres_used, reason};
use gwire::api::{NodeRow, PartitionRow};
use nix::unistd::User;
use std::cmp::Ordering;

/// What a column shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeColumn {
    Partition,
    PartitionName,
    Available,
    TimeLimit,
    Nodes,
    ShortState,
    State,
    /// With all its flags.
    StateComplete,
    Nodelist,
    NodeHost,
    Cpus,
    CpusByState,
    Memory,
    MemoryAllocated,
    MemoryFree,
    Gres,
    GresUsed,
    Features,
    NodesByState,
    NodesBusyIdle,
    Reason,
    ReasonUser,
    ReasonUserAndUid,
    ReasonTime,
    Weight,
    CpuLoad,
    Sockets,
    PriorityTier,
    PriorityFactor,
    PreemptMode,
    DefaultTime,
    ActiveFeatures,
    Version,
    Placement,
    DefaultQos,
    NodeAddress,
    JobSize,
    Reservation,
    /// What no partition here narrows and no node tells, with sinfo's letter: its formats are used as they are.
    /// The groups that a partition is for.
    Groups,
    Fixed(char),
}

type NodeColumnEntry = (NodeColumn, char, &'static str, &'static str);

#[rustfmt::skip] // read as a table
const COLUMNS: &[NodeColumnEntry] = &[
    (NodeColumn::Partition,       'P', "partition",     "PARTITION"),
    (NodeColumn::PartitionName,   'R', "partitionname", "PARTITION"),
    (NodeColumn::Available,       'a', "available",     "AVAIL"),
    (NodeColumn::TimeLimit,       'l', "time",          "TIMELIMIT"),
    (NodeColumn::Nodes,           'D', "nodes",         "NODES"),
    (NodeColumn::ShortState,      't', "statecompact",  "STATE"),
    (NodeColumn::State,           'T', "statelong",     "STATE"),
    (NodeColumn::StateComplete,   ' ', "statecomplete", "STATECOMPLETE"),
    (NodeColumn::Nodelist,        'N', "nodelist",      "NODELIST"),
    (NodeColumn::NodeHost,        'n', "nodehost",      "HOSTNAMES"),
    (NodeColumn::Cpus,            'c', "cpus",          "CPUS"),
    (NodeColumn::CpusByState,     'C', "cpusstate",     "CPUS(A/I/O/T)"),
    (NodeColumn::Memory,          'm', "memory",        "MEMORY"),
    (NodeColumn::MemoryAllocated, ' ', "allocmem",      "ALLOCMEM"),
    (NodeColumn::MemoryFree,      'e', "freemem",       "FREE_MEM"),
    (NodeColumn::Gres,            'G', "gres",          "GRES"),
    (NodeColumn::GresUsed,        ' ', "gresused",      "GRES_USED"),
    (NodeColumn::Features,        'f', "features",      "AVAIL_FEATURES"),
    (NodeColumn::NodesByState,    'F', "nodeaiot",      "NODES(A/I/O/T)"),
    (NodeColumn::NodesBusyIdle,   'A', "nodeai",        "NODES(A/I)"),
    (NodeColumn::Reason,          'E', "reason",        "REASON"),
    (NodeColumn::ReasonUser,      'u', "user",          "USER"),
    (NodeColumn::ReasonUserAndUid, 'U', "userlong",     "USER"),
    (NodeColumn::ReasonTime,      'H', "timestamp",     "TIMESTAMP"),
    (NodeColumn::Weight,          'w', "weight",        "WEIGHT"),
    (NodeColumn::CpuLoad,         'O', "cpuload",       "CPU_LOAD"),
    (NodeColumn::Sockets,         'z', "sct",           "S:C:T"),
    (NodeColumn::PriorityTier,    'p', "prioritytier",  "PRIO_TIER"),
    (NodeColumn::PriorityFactor,  'I', "priorityjobfactor", "PRIO_JOB_FACTOR"),
    (NodeColumn::PreemptMode,     'M', "preemptmode",   "PREEMPT_MODE"),
    (NodeColumn::DefaultTime,     'L', "defaulttime",   "DEFAULTTIME"),
    (NodeColumn::ActiveFeatures,  'b', "features_act",  "ACTIVE_FEATURES"),
    (NodeColumn::Version,         'v', "version",       "VERSION"),
    (NodeColumn::Placement,       ' ', "placement",     "PLACEMENT"),
    (NodeColumn::DefaultQos,      ' ', "defaultqos",    "DEFAULT_QOS"),
    (NodeColumn::NodeAddress,     'o', "nodeaddr",      "NODE_ADDR"),
    (NodeColumn::JobSize,         's', "size",          "JOB_SIZE"),
    (NodeColumn::Fixed('B'),      'B', "maxcpuspernode", "MAX_CPUS_PER_NODE"),
    (NodeColumn::Fixed('d'),      'd', "disk",          "TMP_DISK"),
    (NodeColumn::Groups,          'g', "groups",        "GROUPS"),
    (NodeColumn::Fixed('h'),      'h', "oversubscribe", "OVERSUBSCRIBE"),
    (NodeColumn::Fixed('r'),      'r', "root",          "ROOT"),
    (NodeColumn::Fixed('S'),      'S', "allocnodes",    "ALLOCNODES"),
    (NodeColumn::Fixed('V'),      'V', "cluster",       "CLUSTER"),
    (NodeColumn::Fixed('k'),      ' ', "comment",       "COMMENT"),
    (NodeColumn::Fixed('x'),      ' ', "extra",         "EXTRA"),
    (NodeColumn::Reservation,     'i', "reservation",   "RESERVATION"),
    (NodeColumn::Fixed('X'),      'X', "sockets",       "SOCKETS"),
    (NodeColumn::Fixed('Y'),      'Y', "cores",         "CORES"),
    (NodeColumn::Fixed('Z'),      'Z', "threads",       "THREADS"),
];

/// A listing's format.
pub(crate) type NodeFormat = Vec<Piece<NodeColumn>>;

/// Reads `-o`.
pub(crate) fn read_letters(text: &str) -> Result<NodeFormat, FormatError> {
    parse_letters(text, |letter| {
        COLUMNS
            .iter()
            .find(|entry| entry.1 == letter && letter != ' ')
            .map(|entry| entry.0)
    })
}

/// Reads `-O`.
pub(crate) fn read_names(text: &str) -> Result<NodeFormat, FormatError> {
    let all = || {
        COLUMNS
            .iter()
            .map(|entry| entry.2)
            .collect::<Vec<_>>()
            .join(",")
    };
    let all = text.trim().eq_ignore_ascii_case("all").then(all);
    parse_names(all.as_deref().unwrap_or(text), |name| {
        let lower = name.to_ascii_lowercase();
        // sinfo knows a column by two names.
        let lower = match lower.as_str() {
            "cpusload" => "cpuload",
            "socketcorethread" => "sct",
            lower => lower,
        };
        if lower == "port" {
            return Err("column \"port\" is not known here: nodes call the controller, and listen on no port".to_owned());
        }
        let found = COLUMNS
            .iter()
            .find(|entry| entry.2 == lower)
            .map(|entry| entry.0);
        let hint = || did_you_mean(name, COLUMNS.iter().map(|entry| entry.2));
        found.ok_or_else(|| format!("there is no column {name:?}.{} --help lists them", hint()))
    })
}

/// Reads `-S`: letters with commas between, `-` for descending. `#P`, the partitions' own order, is how they come anyway.
pub(crate) fn read_sort(text: &str) -> Result<Vec<(NodeColumn, bool)>, String> {
    let key = |word: &str| {
        let (descending, letter) = match word.strip_prefix('-') {
            Some(letter) => (true, letter),
            None => (false, word.strip_prefix('+').unwrap_or(word)),
        };
        let mut letters = letter.chars();
        let found = letters
            .next()
            .filter(|letter| letters.as_str().is_empty() && *letter != ' ');
        let found = found.and_then(|letter| COLUMNS.iter().find(|entry| entry.1 == letter));
        found
            .map(|entry| (entry.0, descending))
            .ok_or_else(|| format!("{word:?} is no column's letter. Try P,-t,N; --help lists them"))
    };
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty() && *word != "#P")
        .map(key)
        .collect()
}

/// Letters and names for `--help`.
pub(crate) fn help() -> String {
    let lines = COLUMNS.iter().map(|(_, letter, name, title)| {
        let letter = if *letter == ' ' {
            "  ".to_owned()
        } else {
            format!("%{letter}")
        };
        format!("  {letter}  {name:<14} {title}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Nodes of one partition that print alike.
pub(crate) struct Group<'a> {
    pub partition: &'a PartitionRow,
    pub nodes: Vec<&'a NodeRow>,
}

impl NodeColumn {
    pub(crate) fn title(self) -> &'static str {
        COLUMNS
            .iter()
            .find(|entry| entry.0 == self)
            .expect("every column is in the table")
            .3
    }

    /// Nodes that differ in this column are listed apart.
    pub(crate) fn tells_apart(self) -> bool {
        !matches!(
            self,
            Self::Partition
                | Self::PartitionName
                | Self::Available
                | Self::TimeLimit
                | Self::Nodes
                | Self::Nodelist
                | Self::CpusByState
                | Self::NodesByState
                | Self::NodesBusyIdle
                | Self::PriorityTier
                | Self::PriorityFactor
                | Self::PreemptMode
                | Self::DefaultTime
                | Self::Placement
                | Self::DefaultQos
                | Self::JobSize
                | Self::Fixed(_)
        )
    }

    /// Partitions that differ in this column are listed apart.
    pub(crate) fn is_partitions(self) -> bool {
        let of_nodes = matches!(
            self,
            Self::Nodes
                | Self::Nodelist
                | Self::CpusByState
                | Self::NodesByState
                | Self::NodesBusyIdle
                | Self::Fixed(_)
        );
        !self.tells_apart() && !of_nodes
    }

    /// What the column prints for a group.
    pub(crate) fn value(self, group: &Group<'_>, times: &TimeFormat) -> String {
        let partition = group.partition;
        match (self, group.nodes.first()) {
            (Self::Partition, _) => format!(
                "{}{}",
                partition.name,
                if partition.is_default { "*" } else { "" }
            ),
            (Self::PartitionName, _) => partition.name.clone(),
            (Self::Available, _) => partition.state.clone(),
            (Self::TimeLimit, _) => partition
                .max_time_secs
                .map_or("infinite".to_owned(), |secs| squeue_time(secs.into())),
            (Self::DefaultTime, _) => partition
                .default_time_secs
                .map_or("n/a".to_owned(), |secs| squeue_time(secs.into())),
            (Self::Nodes, _) => group.nodes.len().to_string(),
            (Self::JobSize, _) => match partition.max_nodes {
                None => "1-infinite".to_owned(),
                Some(1) => "1".to_owned(),
                Some(most) => format!("1-{most}"),
            },
            (Self::Groups, _) if partition.allow_groups.is_empty() => "all".to_owned(),
            (Self::Groups, _) => partition.allow_groups.join(","),
            (Self::Fixed(letter), _) => fixed(letter).to_owned(),
            (Self::PriorityTier, _) => partition.priority_tier.to_string(),
            (Self::PriorityFactor, _) => partition.priority_factor.to_string(),
            (Self::PreemptMode, _) => partition.preempt_mode.to_uppercase(),
            (Self::Placement, _) => partition.placement.clone(),
            (Self::DefaultQos, _) => partition
                .default_qos
                .clone()
                .unwrap_or_else(|| "(null)".to_owned()),
            (Self::Nodelist, _) => {
                let mut names: Vec<String> =
                    group.nodes.iter().map(|node| node.name.clone()).collect();
                hostlist::sort_names(&mut names);
                hostlist::compress(names)
            }
            (Self::CpusByState, _) => cpus_by_state(&group.nodes),
            (Self::NodesByState, _) => nodes_by_state(&group.nodes, true),
            (Self::NodesBusyIdle, _) => nodes_by_state(&group.nodes, false),
            (column, None) => column.of_no_node().to_owned(),
            (column, Some(node)) => column.of_node(node, times),
        }
    }

    /// What a column that tells nodes apart prints where there is none, as sinfo 22.05.8 does.
    fn of_no_node(self) -> &'static str {
        match self {
            Self::NodeHost | Self::NodeAddress | Self::Reservation => "",
            Self::Cpus | Self::Memory | Self::MemoryAllocated | Self::Weight => "0",
            Self::Gres | Self::GresUsed | Self::Features | Self::ActiveFeatures => "(null)",
            Self::Reason => "none",
            Self::ReasonUser | Self::ReasonUserAndUid | Self::ReasonTime => "Unknown",
            Self::Version | Self::CpuLoad | Self::Sockets | Self::MemoryFree => "N/A",
            _ => "n/a",
        }
    }

    /// Order of two groups by this column: states as listings have them, numbers by value, text by its bytes.
    pub(crate) fn compare(self, a: &Group<'_>, b: &Group<'_>, times: &TimeFormat) -> Ordering {
        if let (Self::State | Self::ShortState, Some(one), Some(other)) =
            (self, a.nodes.first(), b.nodes.first())
        {
            return state_rank(&one.state).cmp(&state_rank(&other.state));
        }
        let (a, b) = (self.value(a, times), self.value(b, times));
        match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            _ => a.cmp(&b),
        }
    }

    /// What a column that tells nodes apart prints for one.
    pub(crate) fn of_node(self, node: &NodeRow, times: &TimeFormat) -> String {
        let mib = |bytes: u64| (bytes >> 20).to_string();
        match self {
            Self::ShortState => short_state(&node.state),
            Self::State => long_state(&node.state),
            Self::StateComplete => node.state.to_lowercase(),
            Self::NodeHost => node.name.clone(),
            Self::NodeAddress => node.shown_address(),
            Self::Cpus => node.cpus.to_string(),
            Self::Memory => mib(node.mem_bytes),
            Self::MemoryAllocated => mib(node.mem_alloc_bytes),
            Self::Gres => gres_text(&node.gpu_summary),
            Self::GresUsed => gres_used(node),
            Self::Features => features(node.available_features.as_ref().unwrap_or(&node.features)),
            Self::ActiveFeatures => features(&node.features),
            Self::Reason => reason(node),
            Self::ReasonUser => drainer(node).unwrap_or("Unknown").to_owned(),
            Self::ReasonUserAndUid => {
                drainer(node).map_or("Unknown".to_owned(), |name| match User::from_name(name) {
                    Ok(Some(user)) => format!("{name}({})", user.uid),
                    _ => name.to_owned(),
                })
            }
            Self::ReasonTime => node
                .drains
                .first()
                .map_or("Unknown".to_owned(), |mark| times.print(mark.since.0)),
            Self::Version => node.version.clone(),
            Self::Reservation => node.reservations.join(","),
            Self::Weight => "1".to_owned(),
            // What the machine itself has free is not told; what is not given out is memory less allocmem.
            Self::CpuLoad | Self::Sockets | Self::MemoryFree => "N/A".to_owned(),
            Self::Fixed(letter) => fixed(letter).to_owned(),
            _ => String::new(),
        }
    }
}

/// `busy/idle/out/total`.
fn cpus_by_state(nodes: &[&NodeRow]) -> String {
    let sum = |cpus: &dyn Fn(&NodeRow) -> u32| nodes.iter().map(|node| cpus(node)).sum::<u32>();
    let idle = |node: &NodeRow| node.cpus.saturating_sub(node.cpus_alloc);
    let out = |node: &NodeRow| if is_out(node) { idle(node) } else { 0 };
    let (busy, out, total) = (
        sum(&|node| node.cpus_alloc),
        sum(&out),
        sum(&|node| node.cpus),
    );
    format!("{busy}/{}/{out}/{total}", total.saturating_sub(busy + out))
}

/// `busy/idle`; in full `busy/idle/out/total`.
fn nodes_by_state(nodes: &[&NodeRow], in_full: bool) -> String {
    let busy = nodes.iter().filter(|node| is_busy(node)).count();
    let out = nodes
        .iter()
        .filter(|node| !is_busy(node) && is_out(node))
        .count();
    let total = nodes.len();
    let idle = total - busy - out;
    if in_full {
        format!("{busy}/{idle}/{out}/{total}")
    } else {
        format!("{busy}/{idle}")
    }
}

fn features(list: &[String]) -> String {
    match list {
        [] => "(null)".to_owned(),
        list => list.join(","),
    }
}

/// The same for all partitions and nodes.
fn fixed(letter: char) -> &'static str {
    match letter {
        'B' => "UNLIMITED",
        'd' => "0",
        'S' => "all",
        'h' => "NO",
        'r' => "no",
        'k' | 'x' => "(null)",
        _ => "N/A",
    }
}

fn base(state: &str) -> &str {
    state.split('+').next().unwrap_or_default()
}

fn is_busy(node: &NodeRow) -> bool {
    matches!(base(&node.state), "MIXED" | "ALLOCATED")
}

/// Takes no new work: down, never seen, drained.
fn is_out(node: &NodeRow) -> bool {
    !matches!(base(&node.state), "IDLE" | "MIXED" | "ALLOCATED") || node.state.contains("+DRAIN")
}

/// sinfo's word for a state such as `MIXED+DRAIN`: `draining`; `$` behind it for a node in maintenance, `*` for one that does not answer.
pub(crate) fn long_state(state: &str) -> String {
    let has = |flag: &str| state.split('+').skip(1).any(|known| known == flag);
    let (drained, maintenance) = (has("DRAIN"), has("MAINTENANCE"));
    let word = match base(state) {
        "IDLE" if drained => "drained",
        "MIXED" | "ALLOCATED" if drained => "draining",
        "IDLE" if maintenance => "maint",
        "IDLE" if has("RESERVED") => "reserved",
        "IDLE" => "idle",
        "MIXED" => "mixed",
        "ALLOCATED" => "allocated",
        "DOWN" => "down",
        _ => "unknown",
    };
    let mark = match (maintenance && word != "maint", has("NOT_RESPONDING")) {
        (true, _) => "$",
        (false, true) => "*",
        (false, false) => "",
    };
    format!("{word}{mark}")
}

/// The word alone.
fn unmarked(state: &str) -> &str {
    state.trim_end_matches(['*', '$'])
}

/// The same, short: `drng`.
pub(crate) fn short_state(state: &str) -> String {
    let long = long_state(state);
    let short = [
        ("drained", "drain"),
        ("draining", "drng"),
        ("mixed", "mix"),
        ("allocated", "alloc"),
        ("reserved", "resv"),
        ("unknown", "unk"),
    ];
    short
        .iter()
        .find(|(word, _)| unmarked(&long) == *word)
        .map_or(long.clone(), |(word, short)| long.replace(word, short))
}

/// Whether sinfo's `-t` means a node by a word.
pub(crate) fn is_in_state(state: &str, word: &str) -> bool {
    let has = |flag: &str| state.split('+').skip(1).any(|known| known == flag);
    let (base, drained) = (base(state), has("DRAIN"));
    match word {
        "all" => true,
        "alloc" | "allocated" => matches!(base, "MIXED" | "ALLOCATED"),
        "idle" => base == "IDLE" && !drained,
        "mix" | "mixed" => base == "MIXED" && !drained,
        "drain" => drained,
        "resv" | "reserved" => has("RESERVED"),
        "maint" => has("MAINTENANCE"),
        _ => word == unmarked(&long_state(state)) || word == unmarked(&short_state(state)),
    }
}

/// What sinfo -t means by idle and mixed: what jobs make of the node, drained or not.
pub(crate) fn is_based_on(state: &str, word: &str) -> bool {
    let word = if word == "mix" { "mixed" } else { word };
    matches!(word, "idle" | "mixed") && base(state).eq_ignore_ascii_case(word)
}

/// Order of states in a listing: trouble first, then what is in maintenance, then the rest.
pub(crate) fn state_rank(state: &str) -> (bool, usize) {
    const ORDER: [&str; 9] = [
        "unknown",
        "down",
        "maint",
        "drained",
        "draining",
        "mixed",
        "allocated",
        "reserved",
        "idle",
    ];
    let long = long_state(state);
    let place = ORDER
        .iter()
        .position(|word| unmarked(&long) == *word)
        .unwrap_or(ORDER.len());
    (place > 2 && !long.ends_with('$'), place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn states_are_printed_in_the_words_of_sinfo() {
        let words = |state| format!("{} {}", long_state(state), short_state(state));
        assert_eq!(words("IDLE"), "idle idle");
        assert_eq!(words("IDLE+DRAIN"), "drained drain");
        assert_eq!(words("MIXED+DRAIN"), "draining drng");
        assert_eq!(words("ALLOCATED+NOT_RESPONDING"), "allocated* alloc*");
        assert_eq!(words("DOWN"), "down down");
        assert_eq!(words("SOMETHING_NEW"), "unknown unk");
        assert_eq!(words("IDLE+RESERVED"), "reserved resv");
        assert_eq!(words("IDLE+MAINTENANCE+RESERVED"), "maint maint");
        assert_eq!(words("MIXED+RESERVED"), "mixed mix");
        assert_eq!(words("MIXED+MAINTENANCE+RESERVED"), "mixed$ mix$");
        assert_eq!(words("MIXED+DRAIN+MAINTENANCE+RESERVED"), "draining$ drng$");
        assert_eq!(
            words("IDLE+MAINTENANCE+NOT_RESPONDING+RESERVED"),
            "maint* maint*"
        );
        assert_eq!(words("IDLE+NOT_RESPONDING+RESERVED"), "reserved* resv*");
    }

    #[test]
    fn states_are_chosen_by_the_words_of_sinfo() {
        let chosen = |word: &str| {
            let all = [
                "IDLE",
                "IDLE+RESERVED",
                "IDLE+MAINTENANCE+RESERVED",
                "MIXED+RESERVED",
                "ALLOCATED",
                "MIXED+DRAIN",
                "IDLE+DRAIN",
                "DOWN",
            ];
            all.into_iter()
                .filter(|state| is_in_state(state, word))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            chosen("resv"),
            "IDLE+RESERVED IDLE+MAINTENANCE+RESERVED MIXED+RESERVED"
        );
        assert_eq!(chosen("maint"), "IDLE+MAINTENANCE+RESERVED");
        assert_eq!(
            chosen("idle"),
            "IDLE IDLE+RESERVED IDLE+MAINTENANCE+RESERVED"
        );
        assert_eq!(chosen("alloc"), "MIXED+RESERVED ALLOCATED MIXED+DRAIN");
        assert_eq!(chosen("mix"), "MIXED+RESERVED");
        assert_eq!(
            (chosen("drain").as_str(), chosen("drng").as_str()),
            ("MIXED+DRAIN IDLE+DRAIN", "MIXED+DRAIN")
        );
        assert_eq!(
            (chosen("down").as_str(), chosen("foo").as_str()),
            ("DOWN", "")
        );
    }

    #[test]
    fn states_are_listed_with_trouble_and_maintenance_first() {
        let mut all = [
            "IDLE",
            "IDLE+RESERVED",
            "ALLOCATED",
            "MIXED+MAINTENANCE+RESERVED",
            "IDLE+MAINTENANCE+RESERVED",
            "IDLE+DRAIN",
            "DOWN",
        ];
        all.sort_by_key(|state| state_rank(state));
        let words: Vec<String> = all.iter().map(|state| short_state(state)).collect();
        assert_eq!(words.join(" "), "down maint mix$ drain alloc resv idle");
    }

    #[test]
    fn sort_letters_are_read_with_their_direction() {
        use NodeColumn::{Nodelist, Partition, ShortState};
        assert_eq!(
            read_sort("#P,-t,N").unwrap(),
            [(ShortState, true), (Nodelist, false)]
        );
        assert_eq!(read_sort("+P").unwrap(), [(Partition, false)]);
        assert!(
            read_sort("P,xx")
                .unwrap_err()
                .contains("\"xx\" is no column's letter")
        );
    }

    proptest! {
        #[test]
        fn any_format_is_read_or_refused(text in "\\PC{0,40}|(%[.]?[0-9]{0,3}[a-zA-Z%]){0,8}") {
            let _ = (read_letters(&text), read_names(&text));
        }
    }
}
