//! An ordered map in chunks behind `Arc`: a clone shares everything, a change copies one chunk.
//!
//! The controller publishes a view after each commit; with this it costs what changed, not what exists.

use gmodel::{JobId, NodeId, RunId};
use std::sync::Arc;

/// Keys fall into chunks of this many consecutive ids.
const CHUNK_IDS: u64 = 64;

/// A key with a number that groups neighbours into chunks.
pub trait ChunkKey: Ord + Copy {
    fn number(self) -> u64;
}
impl ChunkKey for JobId {
    fn number(self) -> u64 {
        self.0
    }
}
impl ChunkKey for NodeId {
    fn number(self) -> u64 {
        u64::from(self.0)
    }
}
impl ChunkKey for RunId {
    fn number(self) -> u64 {
        self.job.0
    }
}

/// Sorted map with cheap clones.
#[derive(Clone, Debug)]
pub struct ChunkMap<K, V> {
    /// In the order of their numbers; none is empty.
    chunks: Vec<(u64, Arc<Chunk<K, V>>)>,
    len: usize,
    /// Changes so far. Chunks and entries bear the number of their last one.
    changes: u64,
    /// A map's identity, shared by its clones.
    origin: Arc<()>,
}

/// Neighbours in the order of their keys. Each value is behind its own `Arc`: a change copies the value and
/// the list, not the neighbours.
#[derive(Debug)]
struct Chunk<K, V> {
    entries: Vec<Entry<K, V>>,
    changed: u64,
    /// When an entry last came or went.
    reshaped: u64,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    changed: u64,
    value: Arc<V>,
}

/// A reader's position in a map's history. Holds keys and no value, so a later change copies nothing for it.
#[derive(Debug)]
pub struct MapCursor<K> {
    origin: Option<Arc<()>>,
    changes: u64,
    chunks: Vec<(u64, Vec<K>)>,
}

impl<K: Copy, V> Clone for Entry<K, V> {
    fn clone(&self) -> Self {
        Self {
            key: self.key,
            changed: self.changed,
            value: self.value.clone(),
        }
    }
}

impl<K: Copy, V> Clone for Chunk<K, V> {
    fn clone(&self) -> Self {
        Self {
            entries: self.entries.clone(),
            ..*self
        }
    }
}

impl<K, V> Default for Chunk<K, V> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            changed: 0,
            reshaped: 0,
        }
    }
}

impl<K> Default for MapCursor<K> {
    fn default() -> Self {
        Self {
            origin: None,
            changes: 0,
            chunks: Vec::new(),
        }
    }
}

impl<K, V> Default for ChunkMap<K, V> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            len: 0,
            changes: 0,
            origin: Arc::default(),
        }
    }
}

impl<K: ChunkKey, V: Clone> ChunkMap<K, V> {
    pub fn len(&self) -> usize {
        self.len
    }
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    pub fn get(&self, key: K) -> Option<&V> {
        let (_, chunk) = &self.chunks[self.chunk_of(key).ok()?];
        let at = chunk.place(key).ok()?;
        Some(&chunk.entries[at].value)
    }
    pub fn contains(&self, key: K) -> bool {
        self.get(key).is_some()
    }
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let chunk = self.chunk_of(key).ok()?;
        let (_, chunk) = &mut self.chunks[chunk];
        let at = chunk.place(key).ok()?;
        self.changes += 1;
        let chunk = Arc::make_mut(chunk);
        let entry = &mut chunk.entries[at];
        (chunk.changed, entry.changed) = (self.changes, self.changes);
        Some(Arc::make_mut(&mut entry.value))
    }
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let chunk = match self.chunk_of(key) {
            Ok(chunk) => chunk,
            Err(chunk) => {
                self.chunks
                    .insert(chunk, (key.number() / CHUNK_IDS, Arc::default()));
                chunk
            }
        };
        self.changes += 1;
        let chunk = Arc::make_mut(&mut self.chunks[chunk].1);
        chunk.changed = self.changes;
        let entry = Entry {
            key,
            changed: self.changes,
            value: Arc::new(value),
        };
        match chunk.place(key) {
            Ok(at) => Some(Arc::unwrap_or_clone(
                std::mem::replace(&mut chunk.entries[at], entry).value,
            )),
            Err(at) => {
                chunk.entries.insert(at, entry);
                chunk.reshaped = self.changes;
                self.len += 1;
                None
            }
        }
    }
    pub fn remove(&mut self, key: K) -> Option<V> {
        let number = self.chunk_of(key).ok()?;
        let at = self.chunks[number].1.place(key).ok()?;
        self.changes += 1;
        let chunk = Arc::make_mut(&mut self.chunks[number].1);
        (chunk.changed, chunk.reshaped) = (self.changes, self.changes);
        let old = chunk.entries.remove(at);
        if chunk.entries.is_empty() {
            self.chunks.remove(number);
        }
        self.len -= 1;
        Some(Arc::unwrap_or_clone(old.value))
    }
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> + '_ {
        self.chunks.iter().flat_map(|(_, chunk)| chunk.iter())
    }
    pub fn values(&self) -> impl Iterator<Item = &V> + '_ {
        self.iter().map(|(_, v)| v)
    }
    pub fn keys(&self) -> impl Iterator<Item = K> + '_ {
        self.iter().map(|(k, _)| k)
    }
    /// Reports each key that came, changed or went since `seen`, with the value there now, and advances
    /// `seen`. `seen` must be of this map, earlier, or of none. Cost: the number of chunks, and the entries of
    /// changed chunks.
    pub fn each_change<'a>(
        &'a self,
        seen: &mut MapCursor<K>,
        mut tell: impl FnMut(K, Option<&'a V>),
    ) {
        let same = seen
            .origin
            .as_ref()
            .is_some_and(|origin| Arc::ptr_eq(origin, &self.origin));
        // `seen` is of another map: everything counts as changed.
        let since = if same { seen.changes } else { 0 };
        if same && since == self.changes {
            return;
        }
        let mut before = std::mem::replace(&mut seen.chunks, Vec::with_capacity(self.chunks.len()))
            .into_iter()
            .peekable();
        for (number, chunk) in &self.chunks {
            while let Some((_, gone)) = before.next_if(|(at, _)| at < number) {
                gone.into_iter().for_each(|key| tell(key, None));
            }
            let keys = before
                .next_if(|(at, _)| at == number)
                .map_or(Vec::new(), |(_, keys)| keys);
            let keys = if same && chunk.changed <= since {
                keys
            } else {
                chunk.tell_changes(since, keys, &mut tell)
            };
            seen.chunks.push((*number, keys));
        }
        before
            .flat_map(|(_, gone)| gone)
            .for_each(|key| tell(key, None));
        (seen.origin, seen.changes) = (Some(self.origin.clone()), self.changes);
    }
    /// Entries with keys in the half-open range of numbers.
    pub fn range(&self, from: u64, to: u64) -> impl DoubleEndedIterator<Item = (K, &V)> + '_ {
        let first = self
            .chunks
            .partition_point(|(at, _)| *at < from / CHUNK_IDS);
        let chunks = self.chunks[first..].partition_point(|(at, _)| at * CHUNK_IDS < to);
        self.chunks[first..first + chunks]
            .iter()
            .flat_map(|(_, chunk)| chunk.iter())
            .filter(move |(k, _)| (from..to).contains(&k.number()))
    }

    /// The place of the key's chunk, or where it belongs.
    fn chunk_of(&self, key: K) -> Result<usize, usize> {
        let number = key.number() / CHUNK_IDS;
        let Some((first, _)) = self.chunks.first() else {
            return Err(0);
        };
        // Mostly no chunk is missing; if some are, the place is before the guess.
        let Some(near) = number.checked_sub(*first) else {
            return Err(0);
        };
        let near = usize::try_from(near).unwrap_or(usize::MAX);
        match self.chunks.get(near) {
            Some((is, _)) if *is == number => Ok(near),
            _ => {
                let end = near.min(self.chunks.len());
                self.chunks[..end].binary_search_by_key(&number, |(at, _)| *at)
            }
        }
    }
}

impl<K: ChunkKey, V> Chunk<K, V> {
    /// The place of a key, or where it belongs.
    fn place(&self, key: K) -> Result<usize, usize> {
        // Ids count up: mostly the next one goes to the end, and none before it is missing.
        let (Some(first), Some(last)) = (self.entries.first(), self.entries.last()) else {
            return Err(0);
        };
        if last.key < key {
            return Err(self.entries.len());
        }
        let near = key.number().saturating_sub(first.key.number()) as usize;
        match self.entries.get(near) {
            Some(entry) if entry.key == key => Ok(near),
            _ => self.entries.binary_search_by(|entry| entry.key.cmp(&key)),
        }
    }
    fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> {
        self.entries.iter().map(|entry| (entry.key, &*entry.value))
    }
    /// The differences to an earlier list of keys, and the keys now.
    fn tell_changes<'a>(
        &'a self,
        since: u64,
        before: Vec<K>,
        tell: &mut impl FnMut(K, Option<&'a V>),
    ) -> Vec<K> {
        let changed = |entry: &&'a Entry<K, V>| entry.changed > since;
        if self.reshaped <= since {
            self.entries
                .iter()
                .filter(changed)
                .for_each(|entry| tell(entry.key, Some(&entry.value)));
            return before;
        }
        let mut before = before.into_iter().peekable();
        for entry in &self.entries {
            while let Some(gone) = before.next_if(|key| *key < entry.key) {
                tell(gone, None);
            }
            before.next_if_eq(&entry.key);
            if changed(&entry) {
                tell(entry.key, Some(&entry.value));
            }
        }
        before.for_each(|gone| tell(gone, None));
        self.entries.iter().map(|entry| entry.key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    proptest! {
        #[test]
        fn behaves_as_a_btree_map(ops in prop::collection::vec((any::<bool>(), 1u64..300, any::<u8>()), 0..400)) {
            let mut ours = ChunkMap::default();
            let mut model = BTreeMap::new();
            let mut before = None;
            for (insert, key, value) in ops {
                let key = JobId(key);
                if insert {
                    prop_assert_eq!(ours.insert(key, value), model.insert(key, value));
                } else {
                    prop_assert_eq!(ours.remove(key), model.remove(&key));
                }
                prop_assert_eq!(ours.len(), model.len());
                before.get_or_insert_with(|| (ours.clone(), model.clone()));
            }
            prop_assert!(ours.iter().eq(model.iter().map(|(k, v)| (*k, v))));
            let in_range: Vec<_> = ours.range(60, 130).map(|(k, _)| k.0).collect();
            let expected: Vec<_> = model.range(JobId(60)..JobId(130)).map(|(k, _)| k.0).collect();
            prop_assert_eq!(&in_range, &expected);
            let backwards: Vec<_> = ours.range(60, 130).rev().map(|(k, _)| k.0).collect();
            prop_assert!(backwards.iter().rev().eq(&expected));
            if let Some((ours, model)) = before {
                prop_assert!(ours.iter().eq(model.iter().map(|(k, v)| (*k, v))), "a clone changed");
            }
        }

        /// A copy that follows every reported change equals the map, also when it switches to another map.
        #[test]
        fn a_reader_of_changes_knows_the_map(
            ops in prop::collection::vec((0u8..4, 1u64..300, any::<u8>()), 0..400), tell_every in 1usize..40, other_at in 0usize..800
        ) {
            let mut ours = ChunkMap::default();
            let (mut seen, mut told, mut touched) = (MapCursor::default(), BTreeMap::new(), BTreeSet::new());
            for (number, (what, key, value)) in ops.into_iter().enumerate() {
                let key = JobId(key);
                match what {
                    0 => drop(ours.insert(key, value)),
                    1 => drop(ours.remove(key)),
                    _ => ours.get_mut(key).into_iter().for_each(|known| *known = value),
                }
                touched.insert(key);
                if number == other_at {
                    let mut other = ChunkMap::default();
                    ours.iter().filter(|(key, _)| key.0 % 3 > 0).for_each(|(key, value)| { other.insert(key, *value); });
                    touched.extend(ours.keys());
                    ours = other;
                }
                if number % tell_every == 0 {
                    let mut last = None;
                    ours.each_change(&mut seen, |key, is| {
                        assert!(touched.contains(&key) && last < Some(key), "{key} did not change, or is told out of order");
                        last = Some(key);
                        match is {
                            Some(value) => drop(told.insert(key, *value)),
                            None => drop(told.remove(&key)),
                        }
                    });
                    prop_assert!(ours.iter().eq(told.iter().map(|(k, v)| (*k, v))), "a change was not told");
                    touched.clear();
                }
            }
        }
    }
}
