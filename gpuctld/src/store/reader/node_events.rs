//! When nodes took no work: drains and silences of a time, from the events of nodes, which are kept for a year.
//!
//! Of a spell that began before the oldest event only its end is known, and it is left out.

use super::stored::ReadResult;
use gmodel::node::{HoldMark, Link};
use gmodel::{Instant, Timestamp};
use gwire::api::NodeEventRow;
use rusqlite::Connection;
use serde::Deserialize;

/// Spells of one answer: the newest ones.
const MOST: usize = 10_000;

#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum SpellEvent {
    #[serde(rename = "node_hello")]
    Hello {},
    #[serde(rename = "node_link_changed")]
    Link { link: Link },
    #[serde(rename = "node_drained")]
    Drained { mark: HoldMark },
    #[serde(rename = "node_resumed")]
    Resumed { owner: Option<String> },
    #[serde(rename = "node_removed")]
    Removed {},
}

/// Spells of all nodes that touch a time, by node and start.
pub fn spells(db: &Connection, from: Timestamp, to: Timestamp) -> ReadResult<Vec<NodeEventRow>> {
    let mut statement = db.prepare_cached(
        "SELECT e.node, coalesce(n.name, 'node number ' || e.node), e.at, e.doc FROM events e LEFT JOIN nodes n ON n.id = e.node
         WHERE e.node IS NOT NULL AND e.job IS NULL AND e.at < ?1
             AND e.kind IN ('node_hello', 'node_link_changed', 'node_drained', 'node_resumed', 'node_removed')
         ORDER BY e.node, e.seq",
    )?;
    let mut all = Vec::new();
    let mut of_node: Option<(u64, Spells)> = None;
    let mut rows = statement.query([to.0])?;
    while let Some(row) = rows.next()? {
        let node: u64 = row.get(0)?;
        if of_node.as_ref().is_none_or(|(known, _)| *known != node) {
            all.extend(
                of_node
                    .take()
                    .into_iter()
                    .flat_map(|(_, spells)| spells.all),
            );
            of_node = Some((
                node,
                Spells {
                    node: row.get(1)?,
                    all: Vec::new(),
                },
            ));
        }
        if let Some((_, spells)) = &mut of_node {
            spells.take(
                Timestamp(row.get(2)?),
                super::stored::read(&super::stored::bytes(row, 3)?)?,
            );
        }
    }
    all.extend(of_node.into_iter().flat_map(|(_, spells)| spells.all));
    all.retain(|spell: &NodeEventRow| spell.end.is_none_or(|end| end.0 > from));
    let before = all.len().saturating_sub(MOST);
    if before > 0 {
        all.sort_by_key(|spell| spell.start.map(|at| at.0));
        all.drain(..before);
        all.sort_by(|a, b| a.node.cmp(&b.node));
    }
    Ok(all)
}

struct Spells {
    node: String,
    all: Vec<NodeEventRow>,
}

impl Spells {
    fn take(&mut self, at: Timestamp, change: SpellEvent) {
        let open = |node: &str, state: &str, reason: &str, by: &str| NodeEventRow {
            node: node.to_owned(),
            state: state.to_owned(),
            start: Some(Instant(at)),
            end: None,
            reason: reason.to_owned(),
            by: by.to_owned(),
        };
        match change {
            SpellEvent::Drained { mark } => {
                self.all
                    .push(open(&self.node, "DRAIN", &mark.reason, &mark.owner))
            }
            SpellEvent::Resumed { owner } => self.close(at, |spell| {
                spell.state == "DRAIN" && owner.as_ref().is_none_or(|owner| *owner == spell.by)
            }),
            SpellEvent::Link { link: Link::Silent } => {
                self.all
                    .push(open(&self.node, "NO_RESPOND", "Not responding", "system"))
            }
            // What was silent is so still.
            SpellEvent::Link { link: Link::Down } => {
                self.close(at, |spell| spell.state == "NO_RESPOND");
                self.all
                    .push(open(&self.node, "DOWN", "Not responding", "system"));
            }
            SpellEvent::Link { .. } | SpellEvent::Hello {} => {
                self.close(at, |spell| spell.state != "DRAIN")
            }
            SpellEvent::Removed {} => self.close(at, |_| true),
        }
    }

    fn close(&mut self, at: Timestamp, is_over: impl Fn(&NodeEventRow) -> bool) {
        self.all
            .iter_mut()
            .filter(|spell| spell.end.is_none() && is_over(spell))
            .for_each(|spell| spell.end = Some(Instant(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(changes: impl IntoIterator<Item = (i64, SpellEvent)>) -> String {
        let mut spells = Spells {
            node: "n1".into(),
            all: Vec::new(),
        };
        changes
            .into_iter()
            .for_each(|(at, change)| spells.take(Timestamp(at), change));
        let time = |at: Option<Instant>| at.map_or("-".to_owned(), |at| at.0.0.to_string());
        let text = |spell: &NodeEventRow| {
            format!(
                "{} {}-{} {} by {}",
                spell.state,
                time(spell.start),
                time(spell.end),
                spell.reason,
                spell.by
            )
        };
        spells.all.iter().map(text).collect::<Vec<_>>().join("; ")
    }

    fn drained(owner: &str, reason: &str) -> SpellEvent {
        SpellEvent::Drained {
            mark: HoldMark {
                owner: owner.into(),
                reason: reason.into(),
                since: Timestamp(0),
            },
        }
    }

    #[test]
    fn a_drain_lasts_until_its_owner_or_all_are_lifted() {
        let changes = [
            (5, SpellEvent::Resumed { owner: None }),
            (10, drained("admin:root", "fan")),
            (20, drained("system", "strikes")),
            (
                30,
                SpellEvent::Resumed {
                    owner: Some("admin:root".into()),
                },
            ),
            (40, SpellEvent::Resumed { owner: None }),
            (50, drained("admin:root", "disk")),
        ];
        assert_eq!(
            told(changes),
            "DRAIN 10-30 fan by admin:root; DRAIN 20-40 strikes by system; DRAIN 50-- disk by admin:root"
        );
    }

    #[test]
    fn a_silence_becomes_a_down_and_ends_when_the_node_is_heard() {
        let link = |link| SpellEvent::Link { link };
        assert_eq!(
            told([(1, link(Link::Silent)), (4, link(Link::Up))]),
            "NO_RESPOND 1-4 Not responding by system"
        );
        let down = [
            (1, drained("admin:root", "fan")),
            (2, link(Link::Silent)),
            (3, link(Link::Down)),
            (9, SpellEvent::Hello {}),
        ];
        assert_eq!(
            told(down),
            "DRAIN 1-- fan by admin:root; NO_RESPOND 2-3 Not responding by system; DOWN 3-9 Not responding by system"
        );
        assert_eq!(
            told([
                (1, link(Link::Down)),
                (2, drained("a", "b")),
                (3, SpellEvent::Removed {})
            ]),
            "DOWN 1-3 Not responding by system; DRAIN 2-3 b by a"
        );
    }
}
