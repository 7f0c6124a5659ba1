//! Host lists: `node[01-03,7],m1` to names and back, as Slurm writes them in every table and option.
//! Owns the grammar, its bounds and the order of names; never asks whether a node exists.
//! Source: the behaviour of `scontrol show hostnames` and `show hostlist`; the parser is gpupool's own.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Most names one host list may stand for: more than a cluster has nodes. `[1-1000000000]` is refused before a name is made.
pub const MAX_HOSTS: usize = 131_072;
/// Most bytes of a host list's text: `MAX_HOSTS` names of 7 letters with their commas.
pub const MAX_TEXT_BYTES: usize = 1 << 20;
/// Most bytes of one node's name.
pub const MAX_NAME_BYTES: usize = 255;
/// Most digits of one number in a range; such a number fits an u64 with room to spare.
const MAX_DIGITS: usize = 18;

/// A set of node names in the order in which they were first mentioned. Written and stored as
/// Slurm's compact text; repeats are dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hostlist {
    names: Vec<String>,
    /// Positions in `names`, by name: the index for `contains`.
    by_name: Vec<u32>,
}

impl Hostlist {
    /// Reads a host list of at most [`MAX_HOSTS`] names.
    pub fn parse(text: &str) -> Result<Self, HostlistError> {
        Ok(Self::from_distinct(expand(text, MAX_HOSTS)?))
    }

    /// How many different nodes are named.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// True for the list that names no node.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// True if the node is named; O(log n).
    pub fn contains(&self, name: &str) -> bool {
        self.by_name
            .binary_search_by(|&i| self.names[i as usize].as_str().cmp(name))
            .is_ok()
    }

    /// The names, in the order of their first mention.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    fn from_distinct(names: Vec<String>) -> Self {
        let mut order: Vec<u32> = (0..names.len() as u32).collect();
        // Stable: of equal names the first mention comes first and is the one kept.
        order.sort_by(|&a, &b| names[a as usize].cmp(&names[b as usize]));
        order.dedup_by(|later, first| names[*later as usize] == names[*first as usize]);
        let mut kept = vec![false; names.len()];
        for &i in &order {
            kept[i as usize] = true;
        }
        let names: Vec<String> = names
            .into_iter()
            .zip(kept)
            .filter_map(|(name, keep)| keep.then_some(name))
            .collect();
        let mut by_name: Vec<u32> = (0..names.len() as u32).collect();
        by_name.sort_by(|&a, &b| names[a as usize].cmp(&names[b as usize]));
        Self { names, by_name }
    }
}

impl fmt::Display for Hostlist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&compress(self.iter()))
    }
}

impl FromStr for Hostlist {
    type Err = HostlistError;
    fn from_str(text: &str) -> Result<Self, HostlistError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Hostlist {
    type Error = HostlistError;
    /// As [`Hostlist::parse`], and the empty text is the empty list, so that stored values come back.
    fn try_from(text: String) -> Result<Self, HostlistError> {
        if text.is_empty() {
            Ok(Self::default())
        } else {
            Self::parse(&text)
        }
    }
}

impl From<Hostlist> for String {
    fn from(list: Hostlist) -> String {
        list.to_string()
    }
}

/// What is wrong with a host list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HostlistError {
    #[error("the host list is empty. Name nodes, as in n1 or node[01-04,7]")]
    Empty,
    #[error("host list {text:?} has nothing between two commas. Leave the spare comma out")]
    EmptyItem { text: String },
    #[error(
        "the host list has {bytes} bytes and {MAX_TEXT_BYTES} are the most. Use ranges, as in node[01-04]"
    )]
    TextTooLong { bytes: usize },
    #[error("the host list names {hosts} nodes and {cap} are the most. Use a smaller range")]
    TooMany { hosts: u128, cap: usize },
    #[error(
        "host list item {item:?} has a bracket without its partner. Write ranges as in node[01-04,7]"
    )]
    Bracket { item: String },
    #[error(
        "host list item {item:?}: {range:?} is no range of numbers. Write ranges as in node[01-04,7]"
    )]
    Range { item: String, range: String },
    #[error("host list item {item:?}: the range {range:?} runs backwards. Write [{end}-{start}]")]
    Reversed {
        item: String,
        range: String,
        start: String,
        end: String,
    },
    #[error(
        "node name {name:?} has {bad:?} in it. Letters, digits, '.', '_' and '-' are allowed, a letter, digit or '_' first"
    )]
    BadCharacter { name: String, bad: char },
    #[error("the node name {name:?} is empty")]
    EmptyName { name: String },
    #[error("node name {name:?}... has {bytes} bytes and {MAX_NAME_BYTES} are the most")]
    NameTooLong { name: String, bytes: usize },
}

/// The names a host list stands for, in its order, repeats kept (as `scontrol show hostnames`).
/// Refuses before it allocates when the list stands for more than `cap` names.
pub fn expand(text: &str, cap: usize) -> Result<Vec<String>, HostlistError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(HostlistError::TextTooLong { bytes: text.len() });
    }
    if text.trim().is_empty() {
        return Err(HostlistError::Empty);
    }
    let mut items = Vec::new();
    let mut hosts: u128 = 0;
    for raw in split_items(text) {
        let raw = raw.trim();
        if raw.is_empty() {
            return Err(HostlistError::EmptyItem {
                text: shorten(text),
            });
        }
        let item = NamePattern::parse(raw)?;
        hosts = hosts.saturating_add(item.len());
        items.push(item);
    }
    if hosts > cap as u128 {
        return Err(HostlistError::TooMany { hosts, cap });
    }
    let mut names = Vec::with_capacity(hosts as usize);
    for item in &items {
        item.expand_into(String::new(), 0, &mut names)?;
    }
    Ok(names)
}

/// The compact text of these names, as `scontrol show hostlist`: the order stays, neighbours that differ
/// only in their last number share a bracket, and nothing is dropped. `n1,m1,n2` stays as it is; sort
/// first (see [`sort_names`]) for the shortest text.
pub fn compress<I, S>(names: I) -> String
where
    I: IntoIterator<Item = S>,
    S: AsRef<str>,
{
    let mut text = String::new();
    let mut group = NameGroup::default();
    for name in names {
        let name = name.as_ref();
        let (prefix, digits) = split_number(name);
        if !group.take(prefix, digits) {
            group.write(&mut text);
            group = NameGroup::start(prefix, digits);
        }
    }
    group.write(&mut text);
    text
}

/// Sorts names by their numbers: `n2` before `n10`, equal numbers by width.
pub fn sort_names(names: &mut [String]) {
    names.sort_by(|a, b| natural_order(a, b));
}

/// The order of [`sort_names`].
pub fn natural_order(a: &str, b: &str) -> std::cmp::Ordering {
    sort_key(a).cmp(&sort_key(b)).then_with(|| a.cmp(b))
}

fn sort_key(name: &str) -> (&str, Option<u64>, usize) {
    let (prefix, digits) = split_number(name);
    (prefix, digits.parse().ok(), digits.len())
}

/// Checks one node name: 1 to 255 of letters, digits, `.`, `_`, `-`, beginning with a letter, digit or `_`.
pub fn check_name(name: &str) -> Result<(), HostlistError> {
    if name.is_empty() {
        return Err(HostlistError::EmptyName {
            name: String::new(),
        });
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(HostlistError::NameTooLong {
            name: shorten(name),
            bytes: name.len(),
        });
    }
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let bad = name
        .chars()
        .enumerate()
        .find(|&(i, c)| !inner(c) || (i == 0 && matches!(c, '.' | '-')));
    match bad {
        Some((_, bad)) => Err(HostlistError::BadCharacter {
            name: shorten(name),
            bad,
        }),
        None => Ok(()),
    }
}

/// One comma-separated part: literal text and brackets in turn.
struct NamePattern<'a> {
    parts: Vec<NamePart<'a>>,
}

enum NamePart<'a> {
    Text(&'a str),
    Numbers(Vec<NumberRange>),
}

/// `start-end`, printed with at least `width` digits.
struct NumberRange {
    start: u64,
    end: u64,
    width: usize,
}

impl<'a> NamePattern<'a> {
    fn parse(item: &'a str) -> Result<Self, HostlistError> {
        let bracket_error = || HostlistError::Bracket {
            item: shorten(item),
        };
        let mut parts = Vec::new();
        let mut rest = item;
        while let Some(open) = rest.find('[') {
            let close = open + rest[open..].find(']').ok_or_else(bracket_error)?;
            let literal = &rest[..open];
            if literal.contains(']') {
                return Err(bracket_error());
            }
            if !literal.is_empty() {
                parts.push(NamePart::Text(literal));
            }
            let ranges = rest[open + 1..close]
                .split(',')
                .map(|range| NumberRange::parse(item, range.trim()));
            parts.push(NamePart::Numbers(ranges.collect::<Result<_, _>>()?));
            rest = &rest[close + 1..];
        }
        if rest.contains(']') {
            return Err(bracket_error());
        }
        if !rest.is_empty() {
            parts.push(NamePart::Text(rest));
        }
        // A bracket gives at least one digit, so the rest of the name can be checked before it is expanded.
        let sample: String = parts
            .iter()
            .map(|part| match part {
                NamePart::Text(text) => text,
                NamePart::Numbers(_) => "0",
            })
            .collect();
        check_name(&sample)?;
        Ok(Self { parts })
    }

    fn len(&self) -> u128 {
        self.parts.iter().fold(1u128, |product, part| match part {
            NamePart::Text(_) => product,
            NamePart::Numbers(ranges) => {
                let hosts = ranges.iter().map(|r| u128::from(r.end - r.start) + 1).sum();
                product.saturating_mul(hosts)
            }
        })
    }

    fn expand_into(
        &self,
        stem: String,
        at: usize,
        names: &mut Vec<String>,
    ) -> Result<(), HostlistError> {
        let Some(part) = self.parts.get(at) else {
            check_name(&stem)?;
            names.push(stem);
            return Ok(());
        };
        match part {
            NamePart::Text(text) => self.expand_into(stem + text, at + 1, names),
            NamePart::Numbers(ranges) => {
                for range in ranges {
                    for number in range.start..=range.end {
                        let width = range.width;
                        self.expand_into(format!("{stem}{number:0width$}"), at + 1, names)?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl NumberRange {
    fn parse(item: &str, range: &str) -> Result<Self, HostlistError> {
        let range_error = || HostlistError::Range {
            item: shorten(item),
            range: shorten(range),
        };
        let number = |digits: &str| {
            let plain = !digits.is_empty()
                && digits.len() <= MAX_DIGITS
                && digits.bytes().all(|b| b.is_ascii_digit());
            if plain {
                digits.parse::<u64>().map_err(|_| range_error())
            } else {
                Err(range_error())
            }
        };
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (start, end) = (number(low)?, number(high)?);
        if start > end {
            return Err(HostlistError::Reversed {
                item: shorten(item),
                range: range.to_owned(),
                start: low.to_owned(),
                end: high.to_owned(),
            });
        }
        Ok(Self {
            start,
            end,
            width: low.len(),
        })
    }
}

/// Splits at commas outside brackets.
fn split_items(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    text.split(move |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

/// A name as its stem and the digits at its end ("" if there are none, or too many to count with).
fn split_number(name: &str) -> (&str, &str) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = &name[stem.len()..];
    if digits.len() > MAX_DIGITS {
        (name, "")
    } else {
        (stem, digits)
    }
}

/// Neighbouring names with one stem, as ranges of numbers, while `compress` walks over them.
#[derive(Default)]
struct NameGroup {
    stem: Option<String>,
    /// First digits, last number, how many names.
    ranges: Vec<(String, u64, u64)>,
}

impl NameGroup {
    fn start(stem: &str, digits: &str) -> Self {
        let ranges = digits
            .parse()
            .map(|number| vec![(digits.to_owned(), number, 1)])
            .unwrap_or_default();
        Self {
            stem: Some(stem.to_owned()),
            ranges,
        }
    }

    /// Takes a name with the same stem; false if it does not belong here.
    fn take(&mut self, stem: &str, digits: &str) -> bool {
        if self.stem.as_deref() != Some(stem) || self.ranges.is_empty() {
            return false;
        }
        let Ok(number) = digits.parse::<u64>() else {
            return false;
        };
        let (first, last, count) = self
            .ranges
            .last_mut()
            .expect("a group with digits has a range");
        let width = first.len();
        if number == *last + 1 && format!("{number:0width$}") == digits {
            (*last, *count) = (number, *count + 1);
        } else {
            self.ranges.push((digits.to_owned(), number, 1));
        }
        true
    }

    fn write(&self, text: &mut String) {
        let Some(stem) = &self.stem else { return };
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(stem);
        match self.ranges.as_slice() {
            [] => {}
            [(first, _, 1)] => text.push_str(first),
            ranges => {
                let parts: Vec<String> = ranges
                    .iter()
                    .map(|(first, last, count)| range_text(first, *last, *count))
                    .collect();
                text.push('[');
                text.push_str(&parts.join(","));
                text.push(']');
            }
        }
    }
}

fn range_text(first: &str, last: u64, count: u64) -> String {
    let width = first.len();
    if count == 1 {
        first.to_owned()
    } else {
        format!("{first}-{last:0width$}")
    }
}

/// At most 60 characters of a text, for messages.
fn shorten(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn expanded(text: &str) -> String {
        match expand(text, MAX_HOSTS) {
            Ok(names) => names.join(" "),
            Err(error) => format!("error: {error}"),
        }
    }

    fn check(text: &str, want: Expect) {
        want.assert_eq(&expanded(text));
    }

    #[test]
    fn expands_as_scontrol_show_hostnames() {
        check("n[01-03,7],m1", expect!["n01 n02 n03 n7 m1"]);
        check(
            "rack[1-2]n[1-4]",
            expect!["rack1n1 rack1n2 rack1n3 rack1n4 rack2n1 rack2n2 rack2n3 rack2n4"],
        );
        check("n[08-11]-ib", expect!["n08-ib n09-ib n10-ib n11-ib"]);
        check("n[99-101], None", expect!["n99 n100 n101 None"]);
        check("[1-3]", expect!["1 2 3"]);
    }

    #[test]
    fn compresses_as_scontrol_show_hostlist() {
        assert_eq!(compress(["n01", "n02", "n03", "m1"]), "n[01-03],m1");
        assert_eq!(compress(["node2", "n1"]), "node2,n1");
        assert_eq!(compress(["n01", "n02", "n03", "n7"]), "n[01-03,7]");
        assert_eq!(compress(["n9", "n10", "n12"]), "n[9-10,12]");
        assert_eq!(
            compress(["n1", "m1", "n2"]),
            "n1,m1,n2",
            "the order given is kept"
        );
        assert_eq!(
            compress(["rack1n1", "rack1n2", "rack2n1"]),
            "rack1n[1-2],rack2n1"
        );
        assert_eq!(compress(["login", "login"]), "login,login");
        assert_eq!(compress([] as [&str; 0]), "");
    }

    #[test]
    fn a_range_of_a_thousand_million_is_refused_at_once() {
        check(
            "node[1-1000000000]",
            expect![
                "error: the host list names 1000000000 nodes and 131072 are the most. Use a smaller range"
            ],
        );
        check(
            "a[0-999999999999999999]b[0-999999999999999999]c[0-999999999999999999]",
            expect![
                "error: the host list names 340282366920938463463374607431768211455 nodes and 131072 are the most. Use a smaller range"
            ],
        );
        assert_eq!(expand("n[1-131072]", MAX_HOSTS).unwrap().len(), MAX_HOSTS);
    }

    #[test]
    fn errors_say_what_stands_against_the_list() {
        check(
            "",
            expect!["error: the host list is empty. Name nodes, as in n1 or node[01-04,7]"],
        );
        check(
            "n1,,n2",
            expect![[
                r#"error: host list "n1,,n2" has nothing between two commas. Leave the spare comma out"#
            ]],
        );
        check(
            "n[1-",
            expect![[
                r#"error: host list item "n[1-" has a bracket without its partner. Write ranges as in node[01-04,7]"#
            ]],
        );
        check(
            "n1]",
            expect![[
                r#"error: host list item "n1]" has a bracket without its partner. Write ranges as in node[01-04,7]"#
            ]],
        );
        check(
            "n[a]",
            expect![[
                r#"error: host list item "n[a]": "a" is no range of numbers. Write ranges as in node[01-04,7]"#
            ]],
        );
        check(
            "n[7-3]",
            expect![[
                r#"error: host list item "n[7-3]": the range "7-3" runs backwards. Write [3-7]"#
            ]],
        );
        check(
            "n1;reboot",
            expect![[
                r#"error: node name "n1;reboot" has ';' in it. Letters, digits, '.', '_' and '-' are allowed, a letter, digit or '_' first"#
            ]],
        );
        check(
            "../etc",
            expect![[
                r#"error: node name "../etc" has '.' in it. Letters, digits, '.', '_' and '-' are allowed, a letter, digit or '_' first"#
            ]],
        );
    }

    #[test]
    fn a_hostlist_is_an_ordered_set() {
        let list: Hostlist = "n3,n[1-4],m1,n2".parse().unwrap();
        assert_eq!(
            list.iter().collect::<Vec<_>>(),
            ["n3", "n1", "n2", "n4", "m1"]
        );
        assert_eq!(list.len(), 5);
        assert!(list.contains("n4") && !list.contains("n5"));
        assert_eq!(serde_json::to_string(&list).unwrap(), r#""n[3,1-2,4],m1""#);
        assert_eq!(
            serde_json::from_str::<Hostlist>(r#""""#).unwrap(),
            Hostlist::default()
        );
        assert!(serde_json::from_str::<Hostlist>(r#""n[1-1000000000]""#).is_err());
    }

    #[test]
    fn names_sort_as_people_count() {
        let mut names: Vec<String> = ["n10", "n2", "m3", "n1", "n02"].map(String::from).to_vec();
        sort_names(&mut names);
        assert_eq!(names, ["m3", "n1", "n2", "n02", "n10"]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
            let _ = Hostlist::parse(&text);
        }

        #[test]
        fn near_misses_are_read_or_refused(text in "[n0-9,\\[\\]. -]{0,24}") {
            let _ = expand(&text, 1000);
        }

        #[test]
        fn compressed_names_expand_to_themselves(names in prop::collection::vec("[a-c]{0,2}[0-9]{1,3}|[ab][0-9]{19}|x[0-9]n", 1..40)) {
            let text = compress(&names);
            prop_assert_eq!(expand(&text, MAX_HOSTS).unwrap(), names);
        }
    }
}
