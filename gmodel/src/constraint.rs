//! `--constraint`: a condition over a node's features, as in `a100&ib` or `(h100|a100)&nvlink`.
//! Owns reading, printing and deciding it for one node; never looks at nodes. `[rack1|rack2]`, all nodes alike in one of them, is
//! as many conditions, of which the scheduler takes one; `ib*2` is refused with the reason. Source: sbatch(1).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest text of a constraint.
pub const MAX_TEXT_BYTES: usize = 1024;
/// Most parts of brackets.
pub const MAX_ALTERNATIVES: usize = 8;
/// Deepest nesting of parentheses.
pub const MAX_DEPTH: usize = 32;

/// A condition over features. Written and stored as its text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Constraint {
    /// The node has this feature.
    Feature(String),
    /// All of them hold; at least two.
    All(Vec<Constraint>),
    /// One of them holds; at least two.
    Any(Vec<Constraint>),
}

impl Constraint {
    /// Reads an expression of features, `&`, `|` and parentheses.
    pub fn parse(text: &str) -> Result<Self, ConstraintError> {
        let wrong = |why| ConstraintError {
            text: text.chars().take(60).collect(),
            why,
        };
        if text.len() > MAX_TEXT_BYTES {
            return Err(wrong(ConstraintErrorKind::TooLong { bytes: text.len() }));
        }
        if text.trim().is_empty() {
            return Err(wrong(ConstraintErrorKind::Empty));
        }
        let mut reader = ConstraintParser { rest: text.trim() };
        let constraint = reader.expression(0).map_err(wrong)?;
        match reader.rest.chars().next() {
            None => Ok(constraint),
            Some(')') => Err(wrong(ConstraintErrorKind::Parenthesis)),
            Some(c) => Err(wrong(ConstraintErrorKind::at(c))),
        }
    }

    /// What a job's constraint may mean for all of its nodes: one condition, or with `[rack1|rack2]&ib` one for each part of the
    /// brackets, in their order.
    ///
    /// # Errors
    /// As [`Self::parse`]; brackets that stand beside `|`, within others, or without a choice.
    pub fn alternatives(text: &str) -> Result<Vec<Self>, ConstraintError> {
        let wrong = |why| ConstraintError {
            text: text.chars().take(60).collect(),
            why,
        };
        if !Self::has_brackets(text) {
            return Self::parse(text).map(|one| vec![one]);
        }
        let in_brackets = text
            .split_once('[')
            .and_then(|(before, rest)| Some((before, rest.split_once(']')?)));
        let Some((before, (inner, after))) = in_brackets else {
            return Err(wrong(ConstraintErrorKind::Bracket));
        };
        let (before, after) = (before.trim(), after.trim());
        let joined = |sign: Option<char>| sign.is_none_or(|sign| "&,".contains(sign));
        if [before, inner, after]
            .iter()
            .any(|part| part.contains(['[', ']']))
            || !joined(before.chars().last())
            || !joined(after.chars().next())
        {
            return Err(wrong(ConstraintErrorKind::Bracket));
        }
        let beside = [
            before.strip_suffix(['&', ',']),
            after.strip_prefix(['&', ',']),
        ];
        let beside: Vec<&str> = beside.into_iter().flatten().collect();
        if beside.iter().any(|part| at_top(part, '|').len() > 1) {
            return Err(wrong(ConstraintErrorKind::Mixed));
        }
        let choices = at_top(inner, '|');
        if !(2..=MAX_ALTERNATIVES).contains(&choices.len()) {
            return Err(wrong(if inner.contains('*') {
                ConstraintErrorKind::NodeCount
            } else {
                ConstraintErrorKind::Bracket
            }));
        }
        let whole = |choice: &&str| {
            let all: Vec<String> = std::iter::once(choice)
                .chain(&beside)
                .map(|part| format!("({part})"))
                .collect();
            Self::parse(&all.join("&")).map_err(|error| wrong(error.why))
        };
        choices.iter().map(whole).collect()
    }

    /// Whether all nodes are to be alike in one of several features.
    pub fn has_brackets(text: &str) -> bool {
        text.contains(['[', ']'])
    }

    /// True if a node with these features will do.
    pub fn eval(&self, features: &BTreeSet<&str>) -> bool {
        match self {
            Self::Feature(name) => features.contains(name.as_str()),
            Self::All(parts) => parts.iter().all(|part| part.eval(features)),
            Self::Any(parts) => parts.iter().any(|part| part.eval(features)),
        }
    }

    /// The features named, each once: to refuse one that no node has.
    pub fn features(&self) -> BTreeSet<&str> {
        match self {
            Self::Feature(name) => BTreeSet::from([name.as_str()]),
            Self::All(parts) | Self::Any(parts) => parts.iter().flat_map(Self::features).collect(),
        }
    }
}

impl FromStr for Constraint {
    type Err = ConstraintError;
    fn from_str(text: &str) -> Result<Self, ConstraintError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Constraint {
    type Error = ConstraintError;
    fn try_from(text: String) -> Result<Self, ConstraintError> {
        Self::parse(&text)
    }
}

impl From<Constraint> for String {
    fn from(constraint: Constraint) -> String {
        constraint.to_string()
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parts, operator) = match self {
            Self::Feature(name) => return f.write_str(name),
            Self::All(parts) => (parts, "&"),
            Self::Any(parts) => (parts, "|"),
        };
        for (i, part) in parts.iter().enumerate() {
            if i > 0 {
                f.write_str(operator)?;
            }
            match part {
                Self::Feature(name) => f.write_str(name)?,
                group => write!(f, "({group})")?,
            }
        }
        Ok(())
    }
}

/// A constraint that cannot be read: which, and why.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("constraint {text:?}: {why}")]
pub struct ConstraintError {
    pub text: String,
    pub why: ConstraintErrorKind,
}

/// What stands against a constraint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConstraintErrorKind {
    #[error("it is empty. Name a feature, as in a100&ib")]
    Empty,
    #[error("a feature is missing beside & or |. Try a100&ib or a100|h100")]
    MissingFeature,
    #[error("a parenthesis has no partner. Try (a100|h100)&ib")]
    Parenthesis,
    #[error("a | followed by & can be read in two ways. Write (a|b)&c or a|(b&c)")]
    Mixed,
    #[error(
        "[...] says in which of 2 to {MAX_ALTERNATIVES} features all nodes are alike, once and beside & only, as in [rack1|rack2]&ib"
    )]
    Bracket,
    #[error(
        "*count (a number of nodes with a feature) is not known here; all nodes of a job meet the whole constraint. Leave the count out"
    )]
    NodeCount,
    #[error(
        "{bad:?} cannot be part of a feature's name. Features join with & and |, as in a100&ib"
    )]
    BadCharacter { bad: char },
    #[error("its parentheses are nested deeper than {MAX_DEPTH}. Use a flatter one")]
    TooDeep,
    #[error("it has {bytes} bytes and {MAX_TEXT_BYTES} are the most. Use a shorter one")]
    TooLong { bytes: usize },
}

impl ConstraintErrorKind {
    fn at(bad: char) -> Self {
        match bad {
            '[' | ']' => Self::Bracket,
            '*' => Self::NodeCount,
            '&' | '|' | ',' => Self::MissingFeature,
            '(' | ')' => Self::Parenthesis,
            bad => Self::BadCharacter { bad },
        }
    }
}

/// The parts of a text between signs that stand in no parentheses.
fn at_top(text: &str, sign: char) -> Vec<&str> {
    let mut depth = 0_i32;
    let parts = text.split(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == sign && depth == 0
    });
    parts.collect()
}

struct ConstraintParser<'a> {
    rest: &'a str,
}

impl ConstraintParser<'_> {
    /// Reads `term`s joined by `&` (or Slurm's `,`), and those joined by `|`. Slurm goes from left to right, most languages let `&`
    /// bind first: an expression that these two rules read differently is refused.
    fn expression(&mut self, depth: usize) -> Result<Constraint, ConstraintErrorKind> {
        if depth > MAX_DEPTH {
            return Err(ConstraintErrorKind::TooDeep);
        }
        let (mut any, mut all) = (Vec::new(), vec![self.term(depth)?]);
        loop {
            if self.take('&') || self.take(',') {
                if !any.is_empty() {
                    return Err(ConstraintErrorKind::Mixed);
                }
                all.push(self.term(depth)?);
            } else if self.take('|') {
                any.push(all_of(std::mem::take(&mut all)));
                all.push(self.term(depth)?);
            } else {
                any.push(all_of(all));
                return Ok(any_of(any));
            }
        }
    }

    fn term(&mut self, depth: usize) -> Result<Constraint, ConstraintErrorKind> {
        if self.take('(') {
            let inner = self.expression(depth + 1)?;
            return match self.rest.chars().next() {
                Some(')') if self.take(')') => Ok(inner),
                None => Err(ConstraintErrorKind::Parenthesis),
                Some(c) => Err(ConstraintErrorKind::at(c)),
            };
        }
        let end = self
            .rest
            .find(|c| !is_feature_char(c))
            .unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        if name.is_empty() {
            return Err(rest.chars().next().map_or(
                ConstraintErrorKind::MissingFeature,
                |c| match c {
                    ')' => ConstraintErrorKind::MissingFeature,
                    c => ConstraintErrorKind::at(c),
                },
            ));
        }
        self.rest = rest.trim_start();
        Ok(Constraint::Feature(name.to_owned()))
    }

    fn take(&mut self, wanted: char) -> bool {
        let taken = self.rest.strip_prefix(wanted);
        self.rest = taken.map_or(self.rest, str::trim_start);
        taken.is_some()
    }
}

/// One part stands for itself; conjunctions inside are lifted, so that a printed constraint reads back as itself.
fn all_of(parts: Vec<Constraint>) -> Constraint {
    let lifted = parts.into_iter().flat_map(|part| match part {
        Constraint::All(inner) => inner,
        part => vec![part],
    });
    alone_or(lifted.collect(), Constraint::All)
}

/// As [`all_of`], for alternatives.
fn any_of(parts: Vec<Constraint>) -> Constraint {
    let lifted = parts.into_iter().flat_map(|part| match part {
        Constraint::Any(inner) => inner,
        part => vec![part],
    });
    alone_or(lifted.collect(), Constraint::Any)
}

fn alone_or(mut parts: Vec<Constraint>, join: fn(Vec<Constraint>) -> Constraint) -> Constraint {
    if parts.len() == 1 {
        parts.remove(0)
    } else {
        join(parts)
    }
}

/// Whether a constraint can name it.
pub fn is_feature(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_feature_char)
}

fn is_feature_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '=' | ':' | '+' | '/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn check(text: &str, want: Expect) {
        want.assert_eq(&match Constraint::parse(text) {
            Ok(constraint) => constraint.to_string(),
            Err(error) => format!("error: {error}"),
        });
    }

    fn fits(text: &str, features: &[&str]) -> bool {
        Constraint::parse(text)
            .unwrap()
            .eval(&features.iter().copied().collect())
    }

    #[test]
    fn reads_and_prints_conditions() {
        check("a100", expect!["a100"]);
        check(" a100 & ib ", expect!["a100&ib"]);
        check("a100|h100|v100", expect!["a100|h100|v100"]);
        check("(a100|h100)&ib", expect!["(a100|h100)&ib"]);
        check("a100&ib|h100", expect!["(a100&ib)|h100"]);
        check("((a100))", expect!["a100"]);
        check("a100,ib", expect!["a100&ib"]);
        check("(a|b),c", expect!["(a|b)&c"]);
        check("(a&b)&(c&(d|e))", expect!["a&b&c&(d|e)"]);
    }

    #[test]
    fn decides_for_a_node() {
        assert!(fits("a100&ib", &["a100", "ib"]) && !fits("a100&ib", &["a100"]));
        assert!(fits("a100|h100", &["h100"]) && !fits("a100|h100", &["ib"]));
        assert!(fits("(a100|h100)&ib", &["h100", "ib"]) && !fits("(a100|h100)&ib", &["h100"]));
        assert!(fits("a100&ib|h100", &["h100"]));
        let constraint = Constraint::parse("(b|a)&b").unwrap();
        assert_eq!(
            constraint.features().into_iter().collect::<Vec<_>>(),
            ["a", "b"]
        );
    }

    #[test]
    fn refuses_with_the_reason() {
        check(
            "a100,",
            expect![[
                r#"error: constraint "a100,": a feature is missing beside & or |. Try a100&ib or a100|h100"#
            ]],
        );
        check(
            "",
            expect![[r#"error: constraint "": it is empty. Name a feature, as in a100&ib"#]],
        );
        check(
            "a&",
            expect![[
                r#"error: constraint "a&": a feature is missing beside & or |. Try a100&ib or a100|h100"#
            ]],
        );
        check(
            "|a",
            expect![[
                r#"error: constraint "|a": a feature is missing beside & or |. Try a100&ib or a100|h100"#
            ]],
        );
        check(
            "(a|b",
            expect![[
                r#"error: constraint "(a|b": a parenthesis has no partner. Try (a100|h100)&ib"#
            ]],
        );
        check(
            "a)",
            expect![[
                r#"error: constraint "a)": a parenthesis has no partner. Try (a100|h100)&ib"#
            ]],
        );
        check(
            "a|b&c",
            expect![[
                r#"error: constraint "a|b&c": a | followed by & can be read in two ways. Write (a|b)&c or a|(b&c)"#
            ]],
        );
        check(
            "[rack1|rack2]",
            expect![[
                r#"error: constraint "[rack1|rack2]": [...] says in which of 2 to 8 features all nodes are alike, once and beside & only, as in [rack1|rack2]&ib"#
            ]],
        );
        check(
            "ib*2&a",
            expect![[
                r#"error: constraint "ib*2&a": *count (a number of nodes with a feature) is not known here; all nodes of a job meet the whole constraint. Leave the count out"#
            ]],
        );
        check("a,b", expect!["a&b"]);
        check(
            &"(".repeat(100),
            expect![[
                r#"error: constraint "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((": its parentheses are nested deeper than 32. Use a flatter one"#
            ]],
        );
        assert!(Constraint::parse(&"a".repeat(MAX_TEXT_BYTES + 1)).is_err());
    }

    #[test]
    fn brackets_are_a_condition_for_each_of_their_parts() {
        let read = |text: &str| match Constraint::alternatives(text) {
            Ok(all) => all
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(" or "),
            Err(error) => error.to_string(),
        };
        assert_eq!(read("a|b"), "a|b");
        assert_eq!(read("[rack1|rack2|rack3]"), "rack1 or rack2 or rack3");
        assert_eq!(
            read("ib&[rack1|(a&b)],(x|y)"),
            "rack1&ib&(x|y) or a&b&ib&(x|y)"
        );
        for odd in [
            "[a]",
            "[a|b",
            "a|b]",
            "[a|[b|c]]",
            "[a|b]&[c|d]",
            "x|[a|b]",
            "[a|b]c",
            "[]",
        ] {
            assert!(
                read(odd).contains("[...] says in which"),
                "{odd}: {}",
                read(odd)
            );
        }
        assert!(
            read("x|y&[a|b]").contains("two ways"),
            "{}",
            read("x|y&[a|b]")
        );
        assert!(
            read("[a*2&b*1]").contains("*count") && read("[a*2|b*1]").contains("*count"),
            "{}",
            read("[a*2|b*1]")
        );
        for odd in ["[a||b]", "[a|b]&", "&[a|b]", "[a|b]&&c"] {
            assert!(
                read(odd).contains("is missing") || read(odd).contains("is empty"),
                "{odd}: {}",
                read(odd)
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,30}|[ab()&|*\\[\\], ]{0,20}") {
            let _ = Constraint::alternatives(&text);
            if let Ok(constraint) = Constraint::parse(&text) {
                prop_assert_eq!(Constraint::parse(&constraint.to_string()), Ok(constraint.clone()));
                let json = serde_json::to_string(&constraint).unwrap();
                prop_assert_eq!(serde_json::from_str::<Constraint>(&json).unwrap(), constraint);
            }
        }
    }
}
