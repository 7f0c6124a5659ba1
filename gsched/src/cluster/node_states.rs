//! The rooms of all nodes, each stored once however many nodes have it: the nodes of one run are mostly alike.
//!
//! A node state never changes; a node that gives something gets another. So what was found out about a room holds for all
//! its nodes, and a search looks at rooms where there were thousands of nodes (after hash-consing, Ershov 1958).

use crate::cluster::node_class::NodeClassId;
use crate::cluster::node_state::NodeState;
use gmodel::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// Number of a room; of those that passes made only as long as it is kept.
pub type NodeStateId = u32;

/// Node states of a pass; their memory is kept for the next pass.
const MOST_SPARE: usize = 1 << 14;

/// All rooms that nodes have, and had in this pass.
#[derive(Debug, Default)]
pub struct NodeStates {
    list: Vec<NodeState>,
    /// Of each; by themselves, since they are asked for more often than what is free in it.
    facts: Vec<Facts>,
    unused: Vec<NodeStateId>,
    /// Made in this pass.
    made: Vec<NodeStateId>,
    /// Of the pass before: a pass makes thousands, and to ask for their memory took longer than to fill it.
    spare: Vec<NodeState>,
    by_print: BTreeMap<u64, NodeStateId>,
    /// Those that any node had in this pass.
    in_use: Vec<NodeStateId>,
    /// Those of them in which a CPU is free now: on a busy cluster few.
    open: Vec<NodeStateId>,
    are_counted: bool,
    /// When what is free in those that nodes have next changes by itself.
    next_change: BTreeSet<(Timestamp, NodeStateId)>,
}

/// A room but for what is free in it.
#[derive(Debug)]
struct Facts {
    make: NodeClassId,
    /// Nodes that have it before the pass; of a room that the pass made, how often it was given to a node.
    nodes: u32,
    /// Nodes that have it in the pass, and whether it is among those that any had; where they are counted.
    have: u32,
    is_listed: bool,
    print: u64,
    /// CPUs that are free now at most.
    cpus: u32,
    /// By the pass.
    is_made: bool,
}

impl Facts {
    /// Of a room that no node has yet.
    fn new(make: NodeClassId, cpus: u32) -> Self {
        Self {
            make,
            nodes: 0,
            have: 0,
            is_listed: false,
            print: 0,
            cpus,
            is_made: false,
        }
    }
}

/// When what is free in a room next changes by itself.
fn next_change(room: &NodeState) -> Option<Timestamp> {
    room.profile.steps().get(1).map(|step| step.at)
}

impl NodeStates {
    pub fn get(&self, id: NodeStateId) -> &NodeState {
        &self.list[id as usize]
    }

    fn facts_of(&mut self, id: NodeStateId) -> &mut Facts {
        &mut self.facts[id as usize]
    }

    /// CPUs that are free in it now at most.
    pub fn cpus(&self, id: NodeStateId) -> u32 {
        self.facts[id as usize].cpus
    }

    pub fn make(&self, id: NodeStateId) -> NodeClassId {
        self.facts[id as usize].make
    }

    /// Forgets the rooms that the last pass made.
    pub fn begin(&mut self) {
        for id in std::mem::take(&mut self.made) {
            if self.spare.len() < MOST_SPARE {
                self.spare.push(std::mem::take(&mut self.list[id as usize]));
            }
            self.unused.push(id);
        }
        self.are_counted = false;
    }

    /// Counts anew how many nodes have each: stretches of nodes and their rooms.
    pub fn count(&mut self, stretches: impl Iterator<Item = (NodeStateId, usize)>) {
        for id in self.in_use.drain(..) {
            let facts = &mut self.facts[id as usize];
            (facts.have, facts.is_listed) = (0, false);
        }
        self.open.clear();
        stretches.for_each(|(id, nodes)| self.come(id, nodes));
        self.are_counted = true;
    }

    pub fn are_counted(&self) -> bool {
        self.are_counted
    }

    /// So many more nodes have a room.
    fn come(&mut self, id: NodeStateId, nodes: usize) {
        let facts = &mut self.facts[id as usize];
        facts.have += nodes as u32;
        if !std::mem::replace(&mut facts.is_listed, true) {
            self.in_use.push(id);
            if facts.cpus > 0 {
                self.open.push(id);
            }
        }
    }

    /// So many nodes that had one room in this pass have another.
    pub fn change(&mut self, from: NodeStateId, to: NodeStateId, nodes: usize) {
        let facts = self.facts_of(to);
        facts.nodes += if facts.is_made { nodes as u32 } else { 0 };
        if self.are_counted {
            self.facts_of(from).have -= nodes as u32;
            self.come(to, nodes);
        }
    }

    /// All that nodes have in this pass, with how many have each; counted before.
    pub fn in_use(&self) -> impl Iterator<Item = (NodeStateId, usize)> {
        self.had(&self.in_use)
    }

    /// Those of them in which so many CPUs may be free now.
    pub fn with_cpus(&self, least: u32) -> impl Iterator<Item = (NodeStateId, usize)> {
        let some = self.had(if least == 0 { &self.in_use } else { &self.open });
        some.filter(move |(id, _)| least <= 1 || self.cpus(*id) >= least)
    }

    fn had<'r>(
        &'r self,
        rooms: &'r [NodeStateId],
    ) -> impl Iterator<Item = (NodeStateId, usize)> + 'r {
        rooms
            .iter()
            .map(|id| (*id, self.facts[*id as usize].have as usize))
            .filter(|(_, nodes)| *nodes > 0)
    }

    /// The room of one more node before the pass: one that is there already, or this one. Between `begin` and the pass.
    pub fn keep(&mut self, room: NodeState, make: NodeClassId) -> NodeStateId {
        let print = room.print(make);
        if let Some(id) = self.by_print.get(&print).copied()
            && self.make(id) == make
            && self.get(id).is_as(&room)
        {
            return self.keep_again(id);
        }
        let cpus = room.profile.steps()[0].free.cpus;
        let id = self.add(
            room,
            Facts {
                nodes: 1,
                print,
                ..Facts::new(make, cpus)
            },
        );
        self.by_print.entry(print).or_insert(id);
        self.next_change
            .extend(next_change(self.get(id)).map(|at| (at, id)));
        id
    }

    /// One more node has a room before the pass.
    pub fn keep_again(&mut self, id: NodeStateId) -> NodeStateId {
        self.facts_of(id).nodes += 1;
        id
    }

    /// Rooms of before the pass in which more has become free by itself: they are to be worked out anew.
    pub fn due(&self, now: Timestamp) -> BTreeSet<NodeStateId> {
        self.next_change
            .range(..(now.plus_millis(1), 0))
            .map(|(_, id)| *id)
            .collect()
    }

    /// A node has another room before the pass.
    pub fn leave(&mut self, id: NodeStateId) {
        let facts = &mut self.facts[id as usize];
        facts.nodes -= 1;
        if facts.nodes == 0 {
            if self.by_print.get(&facts.print) == Some(&id) {
                self.by_print.remove(&facts.print);
            }
            next_change(self.get(id)).map(|at| self.next_change.remove(&(at, id)));
            self.unused.push(id);
        }
    }

    /// Gives a room a number.
    fn add(&mut self, room: NodeState, facts: Facts) -> NodeStateId {
        match self.unused.pop() {
            Some(id) => {
                let before = &mut self.facts[id as usize];
                // Whether it is among those that nodes had goes by its number.
                *before = Facts {
                    have: before.have,
                    is_listed: before.is_listed,
                    ..facts
                };
                self.list[id as usize] = room;
                id
            }
            None => {
                self.list.push(room);
                self.facts.push(facts);
                self.list.len() as NodeStateId - 1
            }
        }
    }

    /// A room that a pass makes, with at most so many CPUs free now.
    fn add_made(&mut self, room: NodeState, make: NodeClassId, cpus: u32) -> NodeStateId {
        let is_made = true;
        let made = self.add(
            room,
            Facts {
                is_made,
                ..Facts::new(make, cpus)
            },
        );
        self.made.push(made);
        made
    }

    /// A room that a pass makes, like another so far: to be changed before any search sees it.
    pub fn add_like(&mut self, id: NodeStateId) -> NodeStateId {
        let room = self.copy_of(id);
        // A change may give something back.
        self.add_made(room, self.make(id), u32::MAX)
    }

    /// A room that was added just now.
    pub fn get_mut(&mut self, id: NodeStateId) -> &mut NodeState {
        &mut self.list[id as usize]
    }

    /// A room that a reservation makes for so many nodes that have this one and follow each other, by a change that gives nothing
    /// back, and changes nothing where it fails. A room that no other node was given goes over with its memory:
    /// thousands of jobs may wait for one node, and each adds to its timeline.
    pub fn add_changed<T>(
        &mut self,
        id: NodeStateId,
        nodes: usize,
        change: impl FnOnce(&mut NodeState) -> Option<T>,
    ) -> Option<(NodeStateId, T)> {
        let before = &self.facts[id as usize];
        let goes_over = before.is_made && before.nodes as usize == nodes;
        let mut room = match goes_over {
            true => std::mem::take(&mut self.list[id as usize]),
            false => self.copy_of(id),
        };
        let Some(found) = change(&mut room) else {
            match goes_over {
                true => self.list[id as usize] = room,
                false => self.spare.push(room),
            }
            return None;
        };
        Some((self.add_made(room, self.make(id), self.cpus(id)), found))
    }

    fn copy_of(&mut self, id: NodeStateId) -> NodeState {
        let mut room = self.spare.pop().unwrap_or_default();
        room.clone_from(self.get(id));
        room
    }
}

/// What a search found out about rooms.
#[derive(Debug)]
pub struct ByNodeState<T> {
    found: Vec<(u32, Option<T>)>,
    search: u32,
}

impl<T> Default for ByNodeState<T> {
    fn default() -> Self {
        Self {
            found: Vec::new(),
            search: 0,
        }
    }
}

impl<T: Copy> ByNodeState<T> {
    /// Nothing is known any more.
    pub fn begin(&mut self) {
        self.search = self.search.wrapping_add(1);
        if self.search == 0 {
            self.found.clear();
        }
    }

    #[inline]
    pub fn get(&self, room: NodeStateId) -> Option<T> {
        self.found
            .get(room as usize)
            .filter(|(search, _)| *search == self.search)
            .and_then(|(_, found)| *found)
    }

    pub fn set(&mut self, room: NodeStateId, found: T) {
        if self.found.len() <= room as usize {
            self.found
                .resize(room as usize + 1, (self.search.wrapping_sub(1), None));
        }
        self.found[room as usize] = (self.search, Some(found));
    }

    #[inline]
    pub fn get_or(&mut self, room: NodeStateId, find: impl FnOnce() -> T) -> T {
        if let Some(found) = self.get(room) {
            return found;
        }
        let found = find();
        self.set(room, found);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::timeline::{Amount, Profile};
    use gmodel::Timestamp;

    fn room(free: u32, since: i64) -> NodeState {
        let free = Amount {
            cpus: free,
            ..Amount::default()
        };
        let mut room = NodeState::default();
        room.profile = Profile::new(Timestamp::from_secs(since), free, &[], &free);
        room
    }

    #[test]
    fn nodes_that_are_alike_have_one_room_whenever_it_was_worked_out() {
        let mut rooms = NodeStates::default();
        let first = rooms.keep(room(8, 0), 0);
        assert_eq!(rooms.keep(room(8, 100), 0), first);
        assert_ne!(rooms.keep(room(7, 0), 0), first, "less is free");
        assert_ne!(rooms.keep(room(8, 0), 1), first, "another make");
        rooms.leave(first);
        assert_eq!(rooms.keep(room(8, 0), 0), first, "one node has it still");
        rooms.leave(first);
        rooms.leave(first);
        assert_eq!(rooms.keep(room(9, 0), 0), first, "its place is given away");
        assert_eq!(
            rooms.get(first).profile.free_at(Timestamp::default()).cpus,
            9
        );
    }

    #[test]
    fn what_a_pass_made_is_gone_with_it() {
        let mut rooms = NodeStates::default();
        let kept = rooms.keep(room(8, 0), 0);
        rooms.begin();
        let made = rooms.add_like(kept);
        rooms.get_mut(made).profile.take(
            Timestamp::from_secs(0),
            Timestamp::from_secs(9),
            &Amount {
                cpus: 3,
                ..Amount::default()
            },
        );
        assert_eq!(
            rooms
                .get(made)
                .profile
                .free_at(Timestamp::from_secs(0))
                .cpus,
            5
        );
        assert_eq!(
            rooms
                .get(kept)
                .profile
                .free_at(Timestamp::from_secs(0))
                .cpus,
            8
        );
        rooms.begin();
        let again = rooms.add_like(kept);
        assert_eq!(
            (
                again,
                rooms
                    .get(again)
                    .profile
                    .free_at(Timestamp::from_secs(0))
                    .cpus
            ),
            (made, 8)
        );
    }

    #[test]
    fn nodes_are_counted_by_room() {
        let mut rooms = NodeStates::default();
        let (one, other) = (rooms.keep(room(8, 0), 0), rooms.keep(room(7, 0), 0));
        rooms.begin();
        assert!(!rooms.are_counted());
        rooms.count([(one, 3), (other, 2), (one, 1)].into_iter());
        let made = rooms.add_like(one);
        rooms.change(one, made, 4);
        rooms.change(made, other, 1);
        assert_eq!(rooms.in_use().collect::<Vec<_>>(), [(other, 3), (made, 3)]);
        rooms.change(other, one, 3);
        assert_eq!(
            rooms.in_use().collect::<Vec<_>>(),
            [(one, 3), (made, 3)],
            "each stands in it once"
        );
        rooms.begin();
        assert!(!rooms.are_counted());
        rooms.count([(other, 6)].into_iter());
        assert_eq!(rooms.in_use().collect::<Vec<_>>(), [(other, 6)]);
    }

    #[test]
    fn a_room_that_only_one_node_was_given_is_changed_and_not_copied() {
        let taken = |from: i64| {
            move |room: &mut NodeState| {
                room.profile.take(
                    Timestamp::from_secs(from),
                    Timestamp::from_secs(from + 1),
                    &Amount {
                        cpus: 1,
                        ..Amount::default()
                    },
                );
                Some(())
            }
        };
        let mut rooms = NodeStates::default();
        let kept = rooms.keep(room(8, 0), 0);
        rooms.begin();
        let add = |rooms: &mut NodeStates, id: NodeStateId, at: i64| {
            let (made, ()) = rooms.add_changed(id, 1, taken(at)).unwrap();
            rooms.change(id, made, 1);
            made
        };
        let mut last = add(&mut rooms, kept, 0);
        let jobs = 1_000;
        for at in 1..jobs {
            last = add(&mut rooms, last, at);
        }
        let steps: usize = rooms
            .list
            .iter()
            .map(|room| room.profile.steps().len())
            .sum();
        assert!(
            steps < 4 * jobs as usize,
            "{steps} steps for a timeline of {jobs} jobs"
        );
        assert_eq!(
            rooms
                .get(kept)
                .profile
                .free_at(Timestamp::from_secs(0))
                .cpus,
            8,
            "what it was before the pass stays"
        );
        assert_eq!(rooms.add_changed(last, 1, |_| None::<()>), None);
        assert_eq!(
            rooms
                .get(last)
                .profile
                .free_at(Timestamp::from_secs(50))
                .cpus,
            7,
            "and so does what could not be changed"
        );
        rooms.change(kept, last, 1);
        add(&mut rooms, last, 50);
        assert_eq!(
            rooms
                .get(last)
                .profile
                .free_at(Timestamp::from_secs(50))
                .cpus,
            7,
            "another node was given it too"
        );
    }

    #[test]
    fn what_a_search_found_is_unknown_to_the_next() {
        let mut found: ByNodeState<u32> = ByNodeState::default();
        assert_eq!(found.get(3), None);
        assert_eq!(found.get_or(3, || 7), 7);
        assert_eq!(found.get_or(3, || 8), 7);
        assert_eq!(found.get(2), None);
        found.begin();
        assert_eq!(found.get(3), None);
    }
}
