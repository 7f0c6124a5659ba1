//! Slurm's `topology.conf`, trees and blocks, as Slurm's administrators and NVIDIA's topograph write it.
//!
//! Reads it with every mistake at once, each with line and caret, and prints our `topology.toml`. Words of topology.conf(5).

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use gmodel::hostlist::{self, Hostlist};
use gmodel::policy::{NodeGroup, Switch, Topology};
use gmodel::suggest::did_you_mean;
use std::collections::BTreeMap;
use std::ops::Range;

const KEYS: [&str; 6] = [
    "SwitchName",
    "Nodes",
    "Switches",
    "LinkSpeed",
    "BlockName",
    "BlockSizes",
];

/// Something in the file that cannot be taken.
#[derive(Debug)]
struct Mistake {
    span: Range<usize>,
    message: String,
    hint: String,
}

/// One logical line: `KEY=VALUE` words with their places.
type Line<'a> = Vec<(Range<usize>, &'a str, &'a str)>;

/// What the file says; blocks are NVLink domains.
///
/// # Errors
/// All mistakes, as text with line and caret.
pub(crate) fn read(file: &str, text: &str) -> Result<Topology, String> {
    let mut reader = TopologyReader::default();
    for line in lines(text, &mut reader.mistakes) {
        reader.line(&line);
    }
    let topology = reader.finish(file, text)?;
    match topology == Topology::default() {
        true => Err(format!("{file} has no SwitchName= and no BlockName= line")),
        false => Ok(topology),
    }
}

/// As the file that gpuctld reads.
pub(crate) fn toml(topology: &Topology) -> String {
    let mut text = String::from("# Which nodes are near each other. See gpuctld.toml(5).\n");
    let list = |nodes: &Hostlist| hostlist::compress(nodes.iter());
    for switch in &topology.switches {
        text.push_str(&format!("\n[switch.{}]\n", key(&switch.name)));
        if let Some(nodes) = &switch.nodes {
            text.push_str(&format!("nodes = \"{}\"\n", list(nodes)));
        }
        if !switch.switches.is_empty() {
            let names: Vec<String> = switch
                .switches
                .iter()
                .map(|name| format!("\"{name}\""))
                .collect();
            text.push_str(&format!("switches = [{}]\n", names.join(", ")));
        }
    }
    for domain in &topology.nvlink_domains {
        text.push_str(&format!(
            "\n[nvlink_domain.{}]\nnodes = \"{}\"\n",
            key(&domain.name),
            list(&domain.nodes)
        ));
    }
    text
}

fn key(name: &str) -> String {
    let bare = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    if bare {
        name.to_owned()
    } else {
        format!("\"{name}\"")
    }
}

/// Words of each line; a backslash at a line's end goes on with the next.
fn lines<'a>(text: &'a str, mistakes: &mut Vec<Mistake>) -> Vec<Line<'a>> {
    let (mut all, mut line, mut start) = (Vec::new(), Vec::new(), 0);
    for physical in text.split_inclusive('\n') {
        let content = physical.split('#').next().unwrap_or_default().trim_end();
        let goes_on = content.ends_with('\\') && !physical.contains('#');
        for word in content.trim_end_matches('\\').split_whitespace() {
            let at = start + (word.as_ptr() as usize - physical.as_ptr() as usize);
            let span = at..at + word.len();
            match word.split_once('=') {
                Some((key, value)) if !value.is_empty() => line.push((span, key, value)),
                _ => mistakes.push(Mistake {
                    span,
                    message: format!("{word:?} is no KEY=VALUE"),
                    hint: "write it without blanks".into(),
                }),
            }
        }
        start += physical.len();
        if !goes_on && !line.is_empty() {
            all.push(std::mem::take(&mut line));
        }
    }
    all.extend((!line.is_empty()).then_some(line));
    all
}

/// A word and its place in the file.
#[derive(Clone, Copy)]
pub(crate) struct PlacedWord<'t> {
    pub(crate) span: &'t Range<usize>,
    pub(crate) text: &'t str,
}

/// Takes switches and blocks one by one, each with its place in a file.
#[derive(Default)]
pub(crate) struct TopologyReader {
    mistakes: Vec<Mistake>,
    topology: Topology,
    /// Of each switch: its name's place and that of what is below it.
    spans: Vec<(Range<usize>, Range<usize>)>,
    /// Where a node, a switch or a block already is, by what it is and its name.
    placed: BTreeMap<(&'static str, String), String>,
}

impl TopologyReader {
    /// All of it, or every mistake as text.
    pub(crate) fn finish(mut self, file: &str, text: &str) -> Result<Topology, String> {
        self.check_tree();
        self.mistakes.sort_by_key(|mistake| mistake.span.start);
        match self.mistakes.is_empty() {
            true => Ok(self.topology),
            false => Err(self
                .mistakes
                .iter()
                .map(|mistake| mistake.shown(file, text))
                .collect::<Vec<_>>()
                .join("\n\n")),
        }
    }

    pub(crate) fn wrong(&mut self, span: &Range<usize>, message: String, hint: impl Into<String>) {
        self.mistakes.push(Mistake {
            span: span.clone(),
            message,
            hint: hint.into(),
        });
    }

    fn line(&mut self, line: &Line) {
        let mut words: BTreeMap<String, PlacedWord> = BTreeMap::new();
        for (span, key, value) in line {
            if !KEYS.iter().any(|known| known.eq_ignore_ascii_case(key)) {
                let guess = did_you_mean(key, KEYS);
                self.wrong(span, format!("unknown key {key:?}"), guess.trim());
            } else if words
                .insert(key.to_ascii_lowercase(), PlacedWord { span, text: value })
                .is_some()
            {
                self.wrong(
                    span,
                    format!("{key} stands twice in one line"),
                    "write a line for each",
                );
            }
        }
        let is_sound = line
            .iter()
            .all(|(_, key, _)| KEYS.iter().any(|known| known.eq_ignore_ascii_case(key)));
        match (
            words.get("switchname"),
            words.get("blockname"),
            words.get("blocksizes"),
        ) {
            (Some(name), None, None) => self.switch(
                *name,
                words.get("nodes").copied(),
                words.get("switches").copied(),
            ),
            (None, Some(name), None) => self.block(*name, words.get("nodes").copied()),
            // How large Slurm's segments may be; ours are blocks.
            (None, None, Some(_)) => {}
            (None, None, None) if is_sound => self.wrong(
                &line[0].0,
                "the line names no switch and no block".into(),
                "begin it with SwitchName= or BlockName=",
            ),
            (None, None, None) => {}
            _ => self.wrong(
                &line[0].0,
                "a line is of a switch, of a block or BlockSizes".into(),
                "write a line for each",
            ),
        }
    }

    pub(crate) fn switch(
        &mut self,
        PlacedWord {
            span: at,
            text: name,
        }: PlacedWord,
        nodes: Option<PlacedWord>,
        below: Option<PlacedWord>,
    ) {
        self.place(at, "switch", name, "the file");
        if nodes.is_none() && below.is_none() {
            self.wrong(
                at,
                format!("switch {name:?} has neither nodes nor switches below it"),
                "name what hangs below it",
            );
        }
        let nodes = nodes.and_then(|nodes| self.nodes(nodes, "node on a switch", name));
        let switches = below
            .and_then(|list| self.hosts(list.span, list.text))
            .map_or(Vec::new(), |list| list.iter().map(str::to_owned).collect());
        let below = below.map_or(at, |list| list.span);
        self.spans.push((at.clone(), below.clone()));
        self.topology.switches.push(Switch {
            name: name.to_owned(),
            nodes,
            switches,
        });
    }

    pub(crate) fn block(
        &mut self,
        PlacedWord {
            span: at,
            text: name,
        }: PlacedWord,
        nodes: Option<PlacedWord>,
    ) {
        self.place(at, "block", name, "the file");
        match nodes {
            None => self.wrong(at, format!("block {name:?} has no nodes"), "name its nodes"),
            Some(nodes) => {
                let nodes = self.nodes(nodes, "node of a block", name);
                self.topology
                    .nvlink_domains
                    .extend(nodes.map(|nodes| NodeGroup {
                        name: name.to_owned(),
                        nodes,
                    }));
            }
        }
    }

    fn hosts(&mut self, span: &Range<usize>, list: &str) -> Option<Hostlist> {
        Hostlist::parse(list)
            .map_err(|error| self.wrong(span, error.to_string(), "as \"node[01-16]\""))
            .ok()
    }

    fn nodes(
        &mut self,
        PlacedWord { span, text }: PlacedWord,
        kind: &'static str,
        of: &str,
    ) -> Option<Hostlist> {
        let nodes = self.hosts(span, text)?;
        nodes
            .iter()
            .for_each(|node| self.place(span, kind, node, of));
        Some(nodes)
    }

    /// Each thing has one place.
    fn place(&mut self, span: &Range<usize>, kind: &'static str, name: &str, place: &str) {
        if let Some(before) = self
            .placed
            .insert((kind, name.to_owned()), place.to_owned())
        {
            let message = match kind {
                "switch" | "block" => format!("{kind} {name:?} stands in the file twice"),
                _ => format!("node {name:?} is in {before:?} and in {place:?}"),
            };
            self.wrong(span, message, "it has one place");
        }
    }

    /// Each switch below one other that is there, none below itself.
    fn check_tree(&mut self) {
        let switches = self.topology.switches.clone();
        let mut above: BTreeMap<&str, &str> = BTreeMap::new();
        for (switch, (_, span)) in switches.iter().zip(self.spans.clone()) {
            for below in &switch.switches {
                if !switches.iter().any(|other| other.name == *below) {
                    let guess = did_you_mean(
                        below,
                        switches
                            .iter()
                            .map(|other| other.name.as_str())
                            .filter(|name| *name != switch.name),
                    );
                    self.wrong(&span, format!("there is no switch {below:?}"), guess.trim());
                } else if let Some(other) = above.insert(below, &switch.name) {
                    self.wrong(
                        &span,
                        format!(
                            "switch {below:?} hangs below {other:?} and below {:?}",
                            switch.name
                        ),
                        "it has one place",
                    );
                }
            }
        }
        for (switch, (at, _)) in switches.iter().zip(self.spans.clone()) {
            let up = |name: &&str| above.get(name).copied();
            let mut way = std::iter::successors(up(&&*switch.name), up).take(switches.len());
            if way.any(|name| name == switch.name) {
                self.wrong(
                    &at,
                    format!("switch {:?} hangs below itself", switch.name),
                    "break the circle",
                );
                return;
            }
        }
    }
}

impl Mistake {
    fn shown(&self, file: &str, text: &str) -> String {
        let mark = AnnotationKind::Primary
            .span(self.span.clone())
            .label(self.hint.as_str());
        let snippet = Snippet::source(text).path(file).annotation(mark);
        Renderer::plain().render(&[Level::ERROR
            .primary_title(self.message.as_str())
            .element(snippet)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_tree_becomes_ours() {
        let conf = "# two leaves\nSwitchName=leaf1 Nodes=gpu[01-08] LinkSpeed=100\nswitchname=leaf2 \\\n  Nodes=gpu[09-16]\nSwitchName=s.1 Switches=leaf[1-2] # top\n";
        expect![[r#"
            # Which nodes are near each other. See gpuctld.toml(5).

            [switch.leaf1]
            nodes = "gpu[01-08]"

            [switch.leaf2]
            nodes = "gpu[09-16]"

            [switch."s.1"]
            switches = ["leaf1", "leaf2"]
        "#]]
        .assert_eq(&toml(&read("topology.conf", conf).unwrap()));
    }

    #[test]
    fn topographs_blocks_are_nvlink_domains() {
        let conf = "# block001=nvl-1-1\nBlockName=block001 Nodes=node[101-118]\n# block002=nvl-2-2\nBlockName=block002 Nodes=node[201-218]\nBlockSizes=18,36\n";
        expect![[r#"
            # Which nodes are near each other. See gpuctld.toml(5).

            [nvlink_domain.block001]
            nodes = "node[101-118]"

            [nvlink_domain.block002]
            nodes = "node[201-218]"
        "#]]
        .assert_eq(&toml(&read("topology.conf", conf).unwrap()));
    }

    #[test]
    fn every_mistake_is_shown_with_its_place() {
        let conf = "SwitchNam=a Nodes=n1\nSwitchName=b\nSwitchName=c Nodes=n[1-2\nSwitchName=d Nodes=n3 Switches=e\nSwitchName=f Nodes=n3\n\
                    SwitchName=g Switches=h\nSwitchName=h Switches=g\nBlockName=x\nNodes=n5\nSwitchName=i Nodes = n6\n";
        expect![[r#"
            error: unknown key "SwitchNam"
             --> topology.conf:1:1
              |
            1 | SwitchNam=a Nodes=n1
              | ^^^^^^^^^^^ Did you mean "SwitchName"?

            error: switch "b" has neither nodes nor switches below it
             --> topology.conf:2:1
              |
            2 | SwitchName=b
              | ^^^^^^^^^^^^ name what hangs below it

            error: host list item "n[1-2" has a bracket without its partner. Write ranges as in node[01-04,7]
             --> topology.conf:3:14
              |
            3 | SwitchName=c Nodes=n[1-2
              |              ^^^^^^^^^^^ as "node[01-16]"

            error: there is no switch "e"
             --> topology.conf:4:23
              |
            4 | SwitchName=d Nodes=n3 Switches=e
              |                       ^^^^^^^^^^ Did you mean "b"?

            error: node "n3" is in "d" and in "f"
             --> topology.conf:5:14
              |
            5 | SwitchName=f Nodes=n3
              |              ^^^^^^^^ it has one place

            error: switch "g" hangs below itself
             --> topology.conf:6:1
              |
            6 | SwitchName=g Switches=h
              | ^^^^^^^^^^^^ break the circle

            error: block "x" has no nodes
             --> topology.conf:8:1
              |
            8 | BlockName=x
              | ^^^^^^^^^^^ name its nodes

            error: the line names no switch and no block
             --> topology.conf:9:1
              |
            9 | Nodes=n5
              | ^^^^^^^^ begin it with SwitchName= or BlockName=

            error: switch "i" has neither nodes nor switches below it
              --> topology.conf:10:1
               |
            10 | SwitchName=i Nodes = n6
               | ^^^^^^^^^^^^ name what hangs below it

            error: "Nodes" is no KEY=VALUE
              --> topology.conf:10:14
               |
            10 | SwitchName=i Nodes = n6
               |              ^^^^^ write it without blanks

            error: "=" is no KEY=VALUE
              --> topology.conf:10:20
               |
            10 | SwitchName=i Nodes = n6
               |                    ^ write it without blanks

            error: "n6" is no KEY=VALUE
              --> topology.conf:10:22
               |
            10 | SwitchName=i Nodes = n6
               |                      ^^ write it without blanks"#]]
        .assert_eq(&read("topology.conf", conf).unwrap_err());
        assert_eq!(
            read("t", "# nothing\n").unwrap_err(),
            "t has no SwitchName= and no BlockName= line"
        );
    }
}
