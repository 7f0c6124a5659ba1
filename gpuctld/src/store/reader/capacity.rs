//! What the cluster had of CPUs and GPUs over a time, and how much of that was down or drained: from the events of its nodes.
//!
//! Events are kept for a year. A node's state before its oldest event follows from that event (a resume means a drain before it);
//! without events it was as it is now. Before the oldest event of all nothing is known.

use super::stored::ReadResult;
use gcore::ctl::Node;
use gmodel::node::{HoldMark, Inventory, Link, Role};
use gmodel::{NodeId, Timestamp};
use rusqlite::{Connection, OptionalExtension};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// CPUs and GPUs, in this order.
pub type CpuGpuSums = [u128; 2];

/// Milliseconds of CPUs and of whole GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// From here on it is known, which may be after the time that is asked for: what was before is not counted.
    pub from: Timestamp,
    pub all: CpuGpuSums,
    /// Of nodes that did not answer, took no work or were drained.
    pub down: CpuGpuSums,
}

/// A node as the controller has it now.
#[derive(Clone, Debug)]
pub struct NodeNow {
    pub id: NodeId,
    pub role: Role,
    /// CPUs and whole GPUs.
    pub both: CpuGpuSums,
    /// It says that it can take no work.
    pub unfit: bool,
    pub link: Link,
    pub drained: bool,
}

/// The events that change what a node gives.
#[derive(Debug, Deserialize)]
#[expect(clippy::enum_variant_names, reason = "as the events are named")]
#[serde(tag = "event", rename_all = "snake_case")]
enum CapacityEvent {
    NodeJoined { role: Role },
    NodeHello {},
    NodeInventory { inventory: Inventory },
    NodeLinkChanged { link: Link },
    NodeDrained { mark: HoldMark },
    NodeResumed { owner: Option<String> },
    NodeRemoved {},
}

/// Owner of drains of which only the end is known.
const UNKNOWN: &str = "?";

/// What a node gives at a time.
#[derive(Debug, Default)]
struct NodeCapacity {
    joined: bool,
    both: CpuGpuSums,
    up: bool,
    unfit: bool,
    drains: BTreeSet<String>,
}

impl NodeCapacity {
    /// Before the first of its changes.
    fn before(changes: &[(Timestamp, CapacityEvent)], now: Option<&NodeNow>) -> Self {
        if let Some((_, CapacityEvent::NodeJoined { .. })) = changes.first() {
            return Self::default();
        }
        let mut standing = Self {
            joined: true,
            ..Self::default()
        };
        let inventory = changes.iter().find_map(|(_, change)| match change {
            CapacityEvent::NodeInventory { inventory } => Some(inventory),
            _ => None,
        });
        match (inventory, now) {
            (Some(inventory), _) => standing.take(inventory),
            (None, Some(now)) => (standing.both, standing.unfit) = (now.both, now.unfit),
            (None, None) => {}
        }
        let link = changes.iter().find_map(|(_, change)| match change {
            CapacityEvent::NodeLinkChanged { link } => Some(!is_up(*link)),
            // It was there before, or it would not have been kept from joining anew.
            CapacityEvent::NodeHello {} => Some(true),
            _ => None,
        });
        standing.up = link.unwrap_or_else(|| now.is_none_or(|now| is_up(now.link)));
        let mut seen = BTreeSet::new();
        let mut of_drains = changes
            .iter()
            .filter_map(|(_, change)| match change {
                CapacityEvent::NodeDrained { mark } => Some((mark.owner.clone(), false)),
                CapacityEvent::NodeResumed { owner } => {
                    Some((owner.clone().unwrap_or_else(|| UNKNOWN.to_owned()), true))
                }
                _ => None,
            })
            .peekable();
        if of_drains.peek().is_none() && now.is_some_and(|now| now.drained) {
            standing.drains.insert(UNKNOWN.to_owned());
        }
        for (owner, resumed) in of_drains {
            // A resume by all owners tells of an earlier drain only where no drain is on record.
            if seen.insert(owner.clone()) && resumed && (owner != UNKNOWN || seen.len() == 1) {
                standing.drains.insert(owner);
            }
        }
        standing
    }

    fn take(&mut self, inventory: &Inventory) {
        let gpus = inventory
            .gpus
            .iter()
            .filter(|gpu| gpu.slice.is_none())
            .count();
        (self.both, self.unfit) = (
            [u128::from(inventory.cpus), gpus as u128],
            !inventory.unfit.is_empty(),
        );
    }

    fn change(&mut self, change: &CapacityEvent) {
        match change {
            CapacityEvent::NodeJoined { .. } => {
                *self = Self {
                    joined: true,
                    ..Self::default()
                }
            }
            CapacityEvent::NodeHello {} => self.up = true,
            CapacityEvent::NodeInventory { inventory } => self.take(inventory),
            CapacityEvent::NodeLinkChanged { link } => self.up = is_up(*link),
            CapacityEvent::NodeDrained { mark } => {
                self.drains.insert(mark.owner.clone());
            }
            CapacityEvent::NodeResumed { owner: Some(owner) } => {
                self.drains.remove(owner);
            }
            CapacityEvent::NodeResumed { owner: None } => self.drains.clear(),
            CapacityEvent::NodeRemoved {} => *self = Self::default(),
        }
    }

    fn add_to(&self, sum: &mut Capacity, millis: i64) {
        let millis = u128::from(millis.max(0).unsigned_abs());
        let is_down = !self.up || self.unfit || !self.drains.is_empty();
        for (at, count) in self.both.iter().enumerate().filter(|_| self.joined) {
            sum.all[at] += count * millis;
            sum.down[at] += if is_down { count * millis } else { 0 };
        }
    }
}

/// A node that fell silent a moment ago goes on with its runs.
fn is_up(link: Link) -> bool {
    matches!(link, Link::Up | Link::Silent)
}

/// `from` before `to`; `to` not after now.
pub fn capacity(
    db: &Connection,
    from: Timestamp,
    to: Timestamp,
    nodes: &[NodeNow],
) -> ReadResult<Capacity> {
    let oldest = db
        .query_row("SELECT at FROM events ORDER BY seq LIMIT 1", [], |row| {
            row.get(0)
        })
        .optional()?;
    let mut sum = Capacity {
        from: from.max(Timestamp(oldest.unwrap_or(to.0))),
        ..Capacity::default()
    };
    if sum.from >= to {
        return Ok(sum);
    }
    let mut changes: BTreeMap<NodeId, Vec<(Timestamp, CapacityEvent)>> =
        nodes.iter().map(|node| (node.id, Vec::new())).collect();
    // Those after the end say what went before, too.
    let mut statement = db.prepare_cached(
        "SELECT node, at, doc FROM events WHERE node IS NOT NULL AND job IS NULL AND kind IN ('node_joined', 'node_hello',
             'node_inventory', 'node_link_changed', 'node_drained', 'node_resumed', 'node_removed') ORDER BY node, seq",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let change = super::stored::read(&super::stored::bytes(row, 2)?)?;
        changes
            .entry(NodeId(row.get(0)?))
            .or_default()
            .push((Timestamp(row.get(1)?), change));
    }
    for (id, changes) in &changes {
        let now = nodes.iter().find(|node| node.id == *id);
        let role = changes.iter().find_map(|(_, change)| {
            if let CapacityEvent::NodeJoined { role } = change {
                Some(*role)
            } else {
                None
            }
        });
        if role
            .or(now.map(|now| now.role))
            .is_some_and(|role| role != Role::Compute)
        {
            continue;
        }
        sum.add(changes, now, to);
    }
    Ok(sum)
}

impl From<&Node> for NodeNow {
    fn from(node: &Node) -> Self {
        let gpus = node
            .gpus
            .iter()
            .filter(|gpu| gpu.present && gpu.info.slice.is_none())
            .count();
        Self {
            id: node.id,
            role: node.role,
            both: [u128::from(node.inventory.cpus), gpus as u128],
            unfit: !node.inventory.unfit.is_empty(),
            link: node.link,
            drained: !node.drains.is_empty(),
        }
    }
}

impl Capacity {
    /// A node's part, up to an instant.
    fn add(
        &mut self,
        changes: &[(Timestamp, CapacityEvent)],
        now: Option<&NodeNow>,
        to: Timestamp,
    ) {
        let mut standing = NodeCapacity::before(changes, now);
        let mut at = self.from;
        for (when, change) in changes {
            let when = (*when).clamp(at, to);
            standing.add_to(self, when.0 - at.0);
            at = when;
            standing.change(change);
        }
        standing.add_to(self, to.0 - at.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All CPUs and those that were down, times the time.
    fn of<const N: usize>(
        changes: [(i64, CapacityEvent); N],
        now: Option<&NodeNow>,
        from: i64,
        to: i64,
    ) -> (u128, u128) {
        let mut sum = Capacity {
            from: Timestamp(from),
            ..Capacity::default()
        };
        sum.add(
            &changes.map(|(at, change)| (Timestamp(at), change)),
            now,
            Timestamp(to),
        );
        (sum.all[0], sum.down[0])
    }

    fn cpus(cpus: u32) -> Inventory {
        Inventory {
            cpus,
            ..Inventory::default()
        }
    }

    fn drained(owner: &str) -> CapacityEvent {
        CapacityEvent::NodeDrained {
            mark: HoldMark {
                owner: owner.into(),
                reason: String::new(),
                since: Timestamp(0),
            },
        }
    }

    fn resumed(owner: Option<&str>) -> CapacityEvent {
        CapacityEvent::NodeResumed {
            owner: owner.map(str::to_owned),
        }
    }

    #[test]
    fn a_node_counts_from_its_inventory_to_its_removal() {
        let life = || {
            [
                (
                    10,
                    CapacityEvent::NodeJoined {
                        role: Role::Compute,
                    },
                ),
                (20, CapacityEvent::NodeHello {}),
                (20, CapacityEvent::NodeInventory { inventory: cpus(4) }),
                (30, drained("admin:root")),
                (35, drained("system")),
                (40, resumed(Some("admin:root"))),
                (50, resumed(None)),
                (60, CapacityEvent::NodeLinkChanged { link: Link::Silent }),
                (70, CapacityEvent::NodeLinkChanged { link: Link::Down }),
                (80, CapacityEvent::NodeHello {}),
                (
                    90,
                    CapacityEvent::NodeInventory {
                        inventory: Inventory {
                            unfit: "no fence".into(),
                            ..cpus(8)
                        },
                    },
                ),
                (100, CapacityEvent::NodeRemoved {}),
            ]
        };
        assert_eq!(
            of(life(), None, 0, 200),
            (70 * 4 + 10 * 8, 20 * 4 + 10 * 4 + 10 * 8)
        );
        assert_eq!(of(life(), None, 32, 38), (6 * 4, 6 * 4));
        assert_eq!(of(life(), None, 40, 65), (25 * 4, 10 * 4));
    }

    #[test]
    fn what_a_node_was_before_its_oldest_event_follows_from_it() {
        let now = NodeNow {
            id: NodeId(1),
            role: Role::Compute,
            both: [2, 0],
            unfit: false,
            link: Link::Up,
            drained: true,
        };
        assert_eq!(of([], Some(&now), 0, 10), (20, 20), "as it is now");
        let up = NodeNow {
            drained: false,
            ..now.clone()
        };
        assert_eq!(of([], Some(&up), 0, 10), (20, 0));
        assert_eq!(
            of([(4, resumed(Some("system")))], Some(&up), 0, 10),
            (20, 8)
        );
        assert_eq!(of([(4, resumed(None))], Some(&up), 0, 10), (20, 8));
        assert_eq!(
            of(
                [(4, drained("system")), (6, resumed(None))],
                Some(&up),
                0,
                10
            ),
            (20, 4)
        );
        assert_eq!(
            of(
                [
                    (4, CapacityEvent::NodeLinkChanged { link: Link::Down }),
                    (6, CapacityEvent::NodeHello {})
                ],
                Some(&up),
                0,
                10
            ),
            (20, 4)
        );
        let more = [
            (3, CapacityEvent::NodeInventory { inventory: cpus(4) }),
            (5, CapacityEvent::NodeInventory { inventory: cpus(2) }),
        ];
        assert_eq!(
            of(more, Some(&up), 0, 10),
            (30, 0),
            "what it had before is not told: the first that is"
        );
    }
}
