//! What reservations take of rooms, and what they took of the same rooms in the pass before: that is not worked out again.

use super::Cluster;
use crate::cluster::node_class::NodeClassId;
use crate::cluster::node_state::Hold;
use crate::cluster::node_states::{NodeStateId, NodeStateMark};
use crate::cluster::picked::PickedNodes;
use crate::cluster::timeline::Need;
use gmodel::Timestamp;
use std::ops::Range;

/// What a reservation took of one room, for a part of its request, and the room that it made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    part: usize,
    of: NodeStateMark,
    made: NodeStateMark,
    hold: Hold,
    /// Of so many nodes.
    nodes: usize,
}

/// Where what is taken of a room stands: among what was in the pass before, or among what is in this one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Before(u32),
    Now(u32),
}

/// What is held, each with the nodes that follow each other and hold the same.
pub(crate) type Holds = Vec<(Hold, Range<usize>)>;

impl Cluster {
    /// Takes what a job needs of the nodes picked for a time to come; `None` when it is not there. Nodes that were alike
    /// and give the same are alike again. Those that follow each other and have the same hold come together.
    /// `before`: what the same reservation made of rooms in the pass before.
    pub(crate) fn hold<'n>(
        &mut self,
        picked: &PickedNodes,
        need: impl Fn(usize, NodeClassId) -> Option<&'n Need>,
        (from, to): (Timestamp, Timestamp),
        before: &[Taken],
    ) -> Option<(Holds, Vec<Taken>)> {
        let mut holds: Holds = Vec::with_capacity(picked.len());
        let mut all: Vec<Taken> = Vec::with_capacity(before.len());
        let (mut part, mut last_place, mut is_there) = (None, usize::MAX, true);
        'all: for (nodes, of) in picked {
            if part.replace(*of) != Some(*of) {
                self.taken.begin();
                for (place, known) in before
                    .iter()
                    .enumerate()
                    .filter(|(_, known)| known.part == *of && self.rooms.has(known.of))
                {
                    self.taken.set(known.of.id, Place::Before(place as u32));
                }
            }
            let mut at = nodes.start;
            while at < nodes.end {
                let stretch = at..self.end_of_stretch(at).min(nodes.end);
                let room = self.room_of[at];
                let place = match self.taken.get(room) {
                    Some(Place::Now(place)) => place as usize,
                    known => {
                        let known = if let Some(Place::Before(place)) = known {
                            Some(&before[place as usize])
                        } else {
                            None
                        };
                        let Some(taken) = self.take(
                            *of,
                            room,
                            stretch.len(),
                            known,
                            need(*of, self.nodes[at].make),
                            (from, to),
                        ) else {
                            is_there = false;
                            break 'all;
                        };
                        self.taken.set(room, Place::Now(all.len() as u32));
                        all.push(taken);
                        all.len() - 1
                    }
                };
                at = stretch.end;
                all[place].nodes += stretch.len();
                self.place_room(stretch.clone(), all[place].made.id);
                match holds.last_mut() {
                    Some((same, last))
                        if last.end == stretch.start
                            && (last_place == place || *same == all[place].hold) =>
                    {
                        last.end = stretch.end
                    }
                    _ => holds.push((all[place].hold, stretch)),
                }
                last_place = place;
            }
        }
        for taken in &all {
            self.rooms.change(taken.of.id, taken.made.id, taken.nodes);
        }
        is_there.then_some((holds, all))
    }

    /// What is needed of one room that so many nodes that follow each other have, as it was taken in the pass before where that is
    /// known; `None` when it is not there.
    fn take(
        &mut self,
        part: usize,
        room: NodeStateId,
        nodes: usize,
        before: Option<&Taken>,
        need: Option<&Need>,
        (from, to): (Timestamp, Timestamp),
    ) -> Option<Taken> {
        let need = need?;
        if let Some(before) = before
            && self.rooms.find_again(before.made)
        {
            debug_assert!(self.is_what_is_left(before, need, from, to));
            return Some(Taken {
                nodes: 0,
                ..before.clone()
            });
        }
        let of = self.rooms.mark(room);
        let (made, hold) = self
            .rooms
            .add_changed(room, nodes, |room| room.hold(need, from, to))?;
        Some(Taken {
            part,
            of,
            made: self.rooms.mark(made),
            hold,
            nodes: 0,
        })
    }

    /// Whether a room is what a reservation leaves of another.
    fn is_what_is_left(&self, taken: &Taken, need: &Need, from: Timestamp, to: Timestamp) -> bool {
        let mut room = self.rooms.get(taken.of.id).clone();
        room.hold(need, from, to) == Some(taken.hold) && room.is_as(self.rooms.get(taken.made.id))
    }
}
