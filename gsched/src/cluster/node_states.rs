//! Node states, each stored once however many nodes have it: the nodes of one run are mostly alike.
//!
//! A node state never changes; a node that gives something gets another. So what was found out about a node state holds for all
//! its nodes, and a search looks at node states where there were thousands of nodes (after hash-consing, Ershov 1958).

use crate::cluster::node_class::NodeClassId;
use crate::cluster::node_state::NodeState;
use gmodel::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// Number of a node state; of those that passes made only as long as it is kept.
pub type NodeStateId = u32;

/// Node states of a pass; their memory is kept for the next pass.
const MOST_SPARE: usize = 1 << 14;

/// All states that nodes have, and had in this pass.
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

/// A node state but for what is free in it.
#[derive(Debug)]
struct Facts {
    node_class: NodeClassId,
    /// Nodes that have it before the pass; of a node state that the pass made, how often it was given to a node.
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
    /// Of a node state that no node has yet.
    fn new(node_class: NodeClassId, cpus: u32) -> Self {
        Self {
            node_class,
            nodes: 0,
            have: 0,
            is_listed: false,
            print: 0,
            cpus,
            is_made: false,
        }
    }
}

/// When what is free in a node state next changes by itself.
fn next_change(state: &NodeState) -> Option<Timestamp> {
    state.profile.steps().get(1).map(|step| step.at)
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

    pub fn node_class(&self, id: NodeStateId) -> NodeClassId {
        self.facts[id as usize].node_class
    }

    /// Forgets the node states that the last pass made.
    pub fn begin(&mut self) {
        for id in std::mem::take(&mut self.made) {
            if self.spare.len() < MOST_SPARE {
                self.spare.push(std::mem::take(&mut self.list[id as usize]));
            }
            self.unused.push(id);
        }
        self.are_counted = false;
    }

    /// Counts anew how many nodes have each: stretches of nodes and their node states.
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

    /// So many more nodes have a node state.
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

    /// So many nodes that had one node state in this pass have another.
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
        states: &'r [NodeStateId],
    ) -> impl Iterator<Item = (NodeStateId, usize)> + 'r {
        states
            .iter()
            .map(|id| (*id, self.facts[*id as usize].have as usize))
            .filter(|(_, nodes)| *nodes > 0)
    }

    /// The node state of one more node before the pass: one that is there already, or this one. Between `begin` and the pass.
    pub fn keep(&mut self, state: NodeState, node_class: NodeClassId) -> NodeStateId {
        let print = state.print(node_class);
        if let Some(id) = self.by_print.get(&print).copied()
            && self.node_class(id) == node_class
            && self.get(id).is_as(&state)
        {
            return self.keep_again(id);
        }
        let cpus = state.profile.steps()[0].free.cpus;
        let id = self.add(
            state,
            Facts {
                nodes: 1,
                print,
                ..Facts::new(node_class, cpus)
            },
        );
        self.by_print.entry(print).or_insert(id);
        self.next_change
            .extend(next_change(self.get(id)).map(|at| (at, id)));
        id
    }

    /// One more node has a node state before the pass.
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

    /// A node has another node state before the pass.
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

    /// Gives a node state a number.
    fn add(&mut self, state: NodeState, facts: Facts) -> NodeStateId {
        match self.unused.pop() {
            Some(id) => {
                let before = &mut self.facts[id as usize];
                // Whether it is among those that nodes had goes by its number.
                *before = Facts {
                    have: before.have,
                    is_listed: before.is_listed,
                    ..facts
                };
                self.list[id as usize] = state;
                id
            }
            None => {
                self.list.push(state);
                self.facts.push(facts);
                self.list.len() as NodeStateId - 1
            }
        }
    }

    /// A node state that a pass makes, with at most so many CPUs free now.
    fn add_made(&mut self, state: NodeState, node_class: NodeClassId, cpus: u32) -> NodeStateId {
        let is_made = true;
        let made = self.add(
            state,
            Facts {
                is_made,
                ..Facts::new(node_class, cpus)
            },
        );
        self.made.push(made);
        made
    }

    /// A node state that a pass makes, like another so far: to be changed before any search sees it.
    pub fn add_like(&mut self, id: NodeStateId) -> NodeStateId {
        let state = self.copy_of(id);
        // A change may give something back.
        self.add_made(state, self.node_class(id), u32::MAX)
    }

    /// A node state that was added just now.
    pub fn get_mut(&mut self, id: NodeStateId) -> &mut NodeState {
        &mut self.list[id as usize]
    }

    /// A node state that a reservation makes for so many nodes that have this one and follow each other, by a change that gives nothing
    /// back, and changes nothing where it fails. A node state that no other node was given goes over with its memory:
    /// thousands of jobs may wait for one node, and each adds to its timeline.
    pub fn add_changed<T>(
        &mut self,
        id: NodeStateId,
        nodes: usize,
        change: impl FnOnce(&mut NodeState) -> Option<T>,
    ) -> Option<(NodeStateId, T)> {
        let before = &self.facts[id as usize];
        let goes_over = before.is_made && before.nodes as usize == nodes;
        let mut state = match goes_over {
            true => std::mem::take(&mut self.list[id as usize]),
            false => self.copy_of(id),
        };
        let Some(found) = change(&mut state) else {
            match goes_over {
                true => self.list[id as usize] = state,
                false => self.spare.push(state),
            }
            return None;
        };
        Some((
            self.add_made(state, self.node_class(id), self.cpus(id)),
            found,
        ))
    }

    fn copy_of(&mut self, id: NodeStateId) -> NodeState {
        let mut state = self.spare.pop().unwrap_or_default();
        state.clone_from(self.get(id));
        state
    }
}

/// What a search found out about node states.
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
    pub fn get(&self, state: NodeStateId) -> Option<T> {
        self.found
            .get(state as usize)
            .filter(|(search, _)| *search == self.search)
            .and_then(|(_, found)| *found)
    }

    pub fn set(&mut self, state: NodeStateId, found: T) {
        if self.found.len() <= state as usize {
            self.found
                .resize(state as usize + 1, (self.search.wrapping_sub(1), None));
        }
        self.found[state as usize] = (self.search, Some(found));
    }

    #[inline]
    pub fn get_or(&mut self, state: NodeStateId, find: impl FnOnce() -> T) -> T {
        if let Some(found) = self.get(state) {
            return found;
        }
        let found = find();
        self.set(state, found);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::timeline::{Amount, Profile};
    use gmodel::Timestamp;

    fn state(free: u32, since: i64) -> NodeState {
        let free = Amount {
            cpus: free,
            ..Amount::default()
        };
        let mut state = NodeState::default();
        state.profile = Profile::new(Timestamp::from_secs(since), free, &[], &free);
        state
    }

    #[test]
    fn nodes_that_are_alike_have_one_room_whenever_it_was_worked_out() {
        let mut states = NodeStates::default();
        let first = states.keep(state(8, 0), 0);
        assert_eq!(states.keep(state(8, 100), 0), first);
        assert_ne!(states.keep(state(7, 0), 0), first, "less is free");
        assert_ne!(states.keep(state(8, 0), 1), first, "another make");
        states.leave(first);
        assert_eq!(states.keep(state(8, 0), 0), first, "one node has it still");
        states.leave(first);
        states.leave(first);
        assert_eq!(
            states.keep(state(9, 0), 0),
            first,
            "its place is given away"
        );
        assert_eq!(
            states.get(first).profile.free_at(Timestamp::default()).cpus,
            9
        );
    }

    #[test]
    fn what_a_pass_made_is_gone_with_it() {
        let mut states = NodeStates::default();
        let kept = states.keep(state(8, 0), 0);
        states.begin();
        let made = states.add_like(kept);
        states.get_mut(made).profile.take(
            Timestamp::from_secs(0),
            Timestamp::from_secs(9),
            &Amount {
                cpus: 3,
                ..Amount::default()
            },
        );
        assert_eq!(
            states
                .get(made)
                .profile
                .free_at(Timestamp::from_secs(0))
                .cpus,
            5
        );
        assert_eq!(
            states
                .get(kept)
                .profile
                .free_at(Timestamp::from_secs(0))
                .cpus,
            8
        );
        states.begin();
        let again = states.add_like(kept);
        assert_eq!(
            (
                again,
                states
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
        let mut states = NodeStates::default();
        let (one, other) = (states.keep(state(8, 0), 0), states.keep(state(7, 0), 0));
        states.begin();
        assert!(!states.are_counted());
        states.count([(one, 3), (other, 2), (one, 1)].into_iter());
        let made = states.add_like(one);
        states.change(one, made, 4);
        states.change(made, other, 1);
        assert_eq!(states.in_use().collect::<Vec<_>>(), [(other, 3), (made, 3)]);
        states.change(other, one, 3);
        assert_eq!(
            states.in_use().collect::<Vec<_>>(),
            [(one, 3), (made, 3)],
            "each stands in it once"
        );
        states.begin();
        assert!(!states.are_counted());
        states.count([(other, 6)].into_iter());
        assert_eq!(states.in_use().collect::<Vec<_>>(), [(other, 6)]);
    }

    #[test]
    fn a_room_that_only_one_node_was_given_is_changed_and_not_copied() {
        let taken = |from: i64| {
            move |state: &mut NodeState| {
                state.profile.take(
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
        let mut states = NodeStates::default();
        let kept = states.keep(state(8, 0), 0);
        states.begin();
        let add = |states: &mut NodeStates, id: NodeStateId, at: i64| {
            let (made, ()) = states.add_changed(id, 1, taken(at)).unwrap();
            states.change(id, made, 1);
            made
        };
        let mut last = add(&mut states, kept, 0);
        let jobs = 1_000;
        for at in 1..jobs {
            last = add(&mut states, last, at);
        }
        let steps: usize = states
            .list
            .iter()
            .map(|state| state.profile.steps().len())
            .sum();
        assert!(
            steps < 4 * jobs as usize,
            "{steps} steps for a timeline of {jobs} jobs"
        );
        assert_eq!(
            states
                .get(kept)
                .profile
                .free_at(Timestamp::from_secs(0))
                .cpus,
            8,
            "what it was before the pass stays"
        );
        assert_eq!(states.add_changed(last, 1, |_| None::<()>), None);
        assert_eq!(
            states
                .get(last)
                .profile
                .free_at(Timestamp::from_secs(50))
                .cpus,
            7,
            "and so does what could not be changed"
        );
        states.change(kept, last, 1);
        add(&mut states, last, 50);
        assert_eq!(
            states
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
