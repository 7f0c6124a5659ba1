//! The rooms of all nodes, each stored once however many nodes have it: the nodes of one run are mostly alike.
//!
//! A room that a node has never changes; who takes of it gets another. So what was found out about a room holds for all
//! its nodes, and a search looks at rooms where there were thousands of nodes (after hash-consing, Ershov 1958).

use crate::make::MakeId;
use crate::room::Room;
use gmodel::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// Number of a room; of those that passes made only until the next `begin`.
pub type RoomId = u32;

/// Rooms of a pass whose memory is kept for the next.
const MOST_SPARE: usize = 1 << 14;

/// All rooms that nodes have, and had in this pass.
#[derive(Debug, Default)]
pub struct Rooms {
    list: Vec<Entry>,
    /// Those up to here are rooms before the pass; the others were made in it.
    kept: usize,
    unused: Vec<RoomId>,
    /// Of the pass before: a pass makes thousands, and to ask for their memory took longer than to fill it.
    spare: Vec<Room>,
    by_print: BTreeMap<u64, RoomId>,
    /// When what is free in those that nodes have next changes by itself.
    next_change: BTreeSet<(Timestamp, RoomId)>,
}

#[derive(Debug)]
struct Entry {
    room: Room,
    make: MakeId,
    /// Nodes that have it before the pass; of a room that the pass made, how often it was given to a node.
    nodes: u32,
    print: u64,
}

impl Entry {
    fn next_change(&self) -> Option<Timestamp> {
        self.room.profile.steps().get(1).map(|step| step.at)
    }
}

impl Rooms {
    pub fn get(&self, id: RoomId) -> &Room {
        &self.list[id as usize].room
    }

    pub fn make(&self, id: RoomId) -> MakeId {
        self.list[id as usize].make
    }

    /// Forgets the rooms that the last pass made: no node has them any more.
    pub fn begin(&mut self) {
        let room_for = MOST_SPARE.saturating_sub(self.spare.len());
        self.spare.extend(self.list.drain(self.kept..).take(room_for).map(|entry| entry.room));
    }

    /// The room of one more node before the pass: one that is there already, or this one. Between `begin` and the pass.
    pub fn keep(&mut self, room: Room, make: MakeId) -> RoomId {
        let print = room.print(make);
        if let Some(id) = self.by_print.get(&print).copied() {
            let there = &mut self.list[id as usize];
            if there.make == make && there.room.is_as(&room) {
                there.nodes += 1;
                return id;
            }
        }
        let entry = Entry { room, make, nodes: 1, print };
        let id = match self.unused.pop() {
            Some(id) => {
                self.list[id as usize] = entry;
                id
            }
            None => {
                self.list.push(entry);
                self.list.len() as RoomId - 1
            }
        };
        self.kept = self.list.len();
        self.by_print.entry(print).or_insert(id);
        self.next_change.extend(self.list[id as usize].next_change().map(|at| (at, id)));
        id
    }

    /// One more node has a room before the pass.
    pub fn keep_again(&mut self, id: RoomId) -> RoomId {
        self.list[id as usize].nodes += 1;
        id
    }

    /// Rooms of before the pass in which more has become free by itself: they are to be worked out anew.
    pub fn due(&self, now: Timestamp) -> BTreeSet<RoomId> {
        self.next_change.range(..(now.plus_millis(1), 0)).map(|(_, id)| *id).collect()
    }

    /// A node has another room before the pass.
    pub fn leave(&mut self, id: RoomId) {
        let entry = &mut self.list[id as usize];
        entry.nodes -= 1;
        if entry.nodes == 0 {
            if self.by_print.get(&entry.print) == Some(&id) {
                self.by_print.remove(&entry.print);
            }
            entry.next_change().map(|at| self.next_change.remove(&(at, id)));
            self.unused.push(id);
        }
    }

    /// A room that a pass makes, like another so far: to be changed before any search sees it.
    pub fn add_like(&mut self, id: RoomId) -> (RoomId, &mut Room) {
        let (room, place) = (self.copy_of(id), self.list.len());
        self.list.push(Entry { room, make: self.make(id), nodes: 1, print: 0 });
        (place as RoomId, &mut self.list[place].room)
    }

    /// A room that a pass makes for so many nodes that have this one, by a change that changes nothing where it fails. A room
    /// of the pass that was never given to anybody else goes over with its memory: thousands of jobs may wait for one node,
    /// and each adds to its timeline.
    pub fn add_changed<T>(&mut self, id: RoomId, nodes: usize, change: impl FnOnce(&mut Room) -> Option<T>) -> Option<(RoomId, T)> {
        let goes_over = self.is_made(id) && self.list[id as usize].nodes as usize == nodes;
        let mut room = match goes_over {
            true => std::mem::take(&mut self.list[id as usize].room),
            false => self.copy_of(id),
        };
        let Some(found) = change(&mut room) else {
            match goes_over {
                true => self.list[id as usize].room = room,
                false => self.spare.push(room),
            }
            return None;
        };
        self.list.push(Entry { room, make: self.make(id), nodes: nodes as u32, print: 0 });
        Some((self.list.len() as RoomId - 1, found))
    }

    fn copy_of(&mut self, id: RoomId) -> Room {
        let mut room = self.spare.pop().unwrap_or_default();
        room.clone_from(self.get(id));
        room
    }

    /// So many more nodes get a room in the pass.
    pub fn give(&mut self, id: RoomId, nodes: usize) {
        if self.is_made(id) {
            self.list[id as usize].nodes += nodes as u32;
        }
    }

    fn is_made(&self, id: RoomId) -> bool {
        id as usize >= self.kept
    }
}

/// What a search found out about rooms.
#[derive(Debug)]
pub struct ByRoom<T> {
    found: Vec<(u32, Option<T>)>,
    search: u32,
}

impl<T> Default for ByRoom<T> {
    fn default() -> Self {
        Self { found: Vec::new(), search: 0 }
    }
}

impl<T: Copy> ByRoom<T> {
    /// Nothing is known any more.
    pub fn begin(&mut self) {
        self.search = self.search.wrapping_add(1);
        if self.search == 0 {
            self.found.clear();
        }
    }

    #[inline]
    pub fn get(&self, room: RoomId) -> Option<T> {
        self.found.get(room as usize).filter(|(search, _)| *search == self.search).and_then(|(_, found)| *found)
    }

    pub fn set(&mut self, room: RoomId, found: T) {
        if self.found.len() <= room as usize {
            self.found.resize(room as usize + 1, (self.search.wrapping_sub(1), None));
        }
        self.found[room as usize] = (self.search, Some(found));
    }

    #[inline]
    pub fn get_or(&mut self, room: RoomId, find: impl FnOnce() -> T) -> T {
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
    use crate::timeline::{Amount, Profile};
    use gmodel::Timestamp;

    fn room(free: u32, since: i64) -> Room {
        let free = Amount { cpus: free, ..Amount::default() };
        let mut room = Room::default();
        room.profile = Profile::new(Timestamp::from_secs(since), free, &[], &free);
        room
    }

    #[test]
    fn nodes_that_are_alike_have_one_room_whenever_it_was_worked_out() {
        let mut rooms = Rooms::default();
        let first = rooms.keep(room(8, 0), 0);
        assert_eq!(rooms.keep(room(8, 100), 0), first);
        assert_ne!(rooms.keep(room(7, 0), 0), first, "less is free");
        assert_ne!(rooms.keep(room(8, 0), 1), first, "another make");
        rooms.leave(first);
        assert_eq!(rooms.keep(room(8, 0), 0), first, "one node has it still");
        rooms.leave(first);
        rooms.leave(first);
        assert_eq!(rooms.keep(room(9, 0), 0), first, "its place is given away");
        assert_eq!(rooms.get(first).profile.free_at(Timestamp::default()).cpus, 9);
    }

    #[test]
    fn what_a_pass_made_is_gone_with_it() {
        let mut rooms = Rooms::default();
        let kept = rooms.keep(room(8, 0), 0);
        let (made, room) = rooms.add_like(kept);
        room.profile.take(Timestamp::from_secs(0), Timestamp::from_secs(9), &Amount { cpus: 3, ..Amount::default() });
        assert_eq!(rooms.get(made).profile.free_at(Timestamp::from_secs(0)).cpus, 5);
        assert_eq!(rooms.get(kept).profile.free_at(Timestamp::from_secs(0)).cpus, 8);
        rooms.begin();
        let (again, room) = rooms.add_like(kept);
        assert_eq!((again, room.profile.free_at(Timestamp::from_secs(0)).cpus), (made, 8));
    }

    #[test]
    fn a_room_that_only_one_node_was_given_is_changed_and_not_copied() {
        let taken = |from: i64| move |room: &mut Room| {
            room.profile.take(Timestamp::from_secs(from), Timestamp::from_secs(from + 1), &Amount { cpus: 1, ..Amount::default() });
            Some(())
        };
        let mut rooms = Rooms::default();
        let kept = rooms.keep(room(8, 0), 0);
        let (mut last, ()) = rooms.add_changed(kept, 1, taken(0)).unwrap();
        for at in 1..100 {
            last = rooms.add_changed(last, 1, taken(at)).unwrap().0;
        }
        let steps = |rooms: &Rooms| rooms.list.iter().map(|entry| entry.room.profile.steps().len()).sum::<usize>();
        assert!(steps(&rooms) < 300, "{} steps for a timeline of a hundred jobs", steps(&rooms));
        assert_eq!(rooms.get(kept).profile.free_at(Timestamp::from_secs(0)).cpus, 8, "what it was before the pass stays");
        assert_eq!(rooms.add_changed(last, 1, |_| None::<()>), None);
        assert_eq!(rooms.get(last).profile.free_at(Timestamp::from_secs(50)).cpus, 7, "and so does what could not be changed");
        rooms.give(last, 1);
        rooms.add_changed(last, 1, taken(50)).unwrap();
        assert_eq!(rooms.get(last).profile.free_at(Timestamp::from_secs(50)).cpus, 7, "another node was given it too");
    }

    #[test]
    fn what_a_search_found_is_unknown_to_the_next() {
        let mut found: ByRoom<u32> = ByRoom::default();
        assert_eq!(found.get(3), None);
        assert_eq!(found.get_or(3, || 7), 7);
        assert_eq!(found.get_or(3, || 8), 7);
        assert_eq!(found.get(2), None);
        found.begin();
        assert_eq!(found.get(3), None);
    }
}
