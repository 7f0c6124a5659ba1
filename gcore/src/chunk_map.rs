//! An ordered map in chunks behind `Arc`: a clone shares everything, a change copies one chunk.
//!
//! The controller publishes a view after each commit; with this it costs what changed, not what exists.

use gmodel::{JobId, NodeId, RunId};
use std::collections::BTreeMap;
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
    chunks: BTreeMap<u64, Arc<Chunk<K, V>>>,
    len: usize,
}

/// Neighbours in the order of their keys. Each value is shared by itself: a change copies it and the list, and not
/// its neighbours.
type Chunk<K, V> = Vec<(K, Arc<V>)>;

impl<K, V> Default for ChunkMap<K, V> {
    fn default() -> Self {
        Self { chunks: BTreeMap::new(), len: 0 }
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
        let chunk = self.chunks.get(&(key.number() / CHUNK_IDS))?;
        let at = place(chunk, key).ok()?;
        Some(&chunk[at].1)
    }
    pub fn contains(&self, key: K) -> bool {
        self.get(key).is_some()
    }
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let chunk = self.chunks.get_mut(&(key.number() / CHUNK_IDS))?;
        let at = place(chunk, key).ok()?;
        Some(Arc::make_mut(&mut Arc::make_mut(chunk)[at].1))
    }
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let chunk = Arc::make_mut(self.chunks.entry(key.number() / CHUNK_IDS).or_default());
        match place(chunk, key) {
            Ok(at) => Some(Arc::unwrap_or_clone(std::mem::replace(&mut chunk[at].1, Arc::new(value)))),
            Err(at) => {
                chunk.insert(at, (key, Arc::new(value)));
                self.len += 1;
                None
            }
        }
    }
    pub fn remove(&mut self, key: K) -> Option<V> {
        let number = key.number() / CHUNK_IDS;
        let chunk = self.chunks.get_mut(&number)?;
        let at = place(chunk, key).ok()?;
        let (_, old) = Arc::make_mut(chunk).remove(at);
        if chunk.is_empty() {
            self.chunks.remove(&number);
        }
        self.len -= 1;
        Some(Arc::unwrap_or_clone(old))
    }
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> + '_ {
        self.chunks.values().flat_map(|chunk| chunk.iter().map(|(k, v)| (*k, &**v)))
    }
    pub fn values(&self) -> impl Iterator<Item = &V> + '_ {
        self.iter().map(|(_, v)| v)
    }
    pub fn keys(&self) -> impl Iterator<Item = K> + '_ {
        self.iter().map(|(k, _)| k)
    }
    /// Tells what differs from an earlier state of the map: key, before, now. Costs the number of chunks, and the
    /// entries of those that are not shared.
    pub fn each_change<'a>(&'a self, before: &'a Self, mut tell: impl FnMut(K, Option<&'a V>, Option<&'a V>)) {
        let empty: &'a [(K, Arc<V>)] = &[];
        let mut old = before.chunks.iter().peekable();
        let mut new = self.chunks.iter().peekable();
        loop {
            let number = match (old.peek(), new.peek()) {
                (Some((a, _)), Some((b, _))) => *(*a).min(*b),
                (Some((a, _)), None) => **a,
                (None, Some((b, _))) => **b,
                (None, None) => return,
            };
            let was = old.next_if(|(at, _)| **at == number).map(|(_, chunk)| chunk);
            let is = new.next_if(|(at, _)| **at == number).map(|(_, chunk)| chunk);
            if was.zip(is).is_some_and(|(was, is)| Arc::ptr_eq(was, is)) {
                continue;
            }
            let mut was = was.map_or(empty, |chunk| &chunk[..]).iter().peekable();
            let mut is = is.map_or(empty, |chunk| &chunk[..]).iter().peekable();
            loop {
                let key = match (was.peek(), is.peek()) {
                    (Some((a, _)), Some((b, _))) => *a.min(b),
                    (Some((a, _)), None) => *a,
                    (None, Some((b, _))) => *b,
                    (None, None) => break,
                };
                let a = was.next_if(|(k, _)| *k == key).map(|(_, value)| value);
                let b = is.next_if(|(k, _)| *k == key).map(|(_, value)| value);
                if !a.zip(b).is_some_and(|(a, b)| Arc::ptr_eq(a, b)) {
                    tell(key, a.map(|value| &**value), b.map(|value| &**value));
                }
            }
        }
    }
    /// Entries whose key is in the half-open range of numbers.
    pub fn range(&self, from: u64, to: u64) -> impl DoubleEndedIterator<Item = (K, &V)> + '_ {
        let chunks = if from >= to { 0..0 } else { from / CHUNK_IDS..(to - 1) / CHUNK_IDS + 1 };
        self.chunks
            .range(chunks)
            .flat_map(|(_, chunk)| chunk.iter().map(|(k, v)| (*k, &**v)))
            .filter(move |(k, _)| (from..to).contains(&k.number()))
    }
}

/// Where a key is in a chunk, or belongs.
fn place<K: ChunkKey, V>(chunk: &Chunk<K, V>, key: K) -> Result<usize, usize> {
    // Ids are given out in order: mostly the next one goes to the end, and none is missing before one that is there.
    let (Some((first, _)), Some((last, _))) = (chunk.first(), chunk.last()) else { return Err(0) };
    if *last < key {
        return Err(chunk.len());
    }
    let near = key.number().saturating_sub(first.number()) as usize;
    match chunk.get(near) {
        Some((k, _)) if *k == key => Ok(near),
        _ => chunk.binary_search_by(|(k, _)| k.cmp(&key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            if let Some((ours_before, model_before)) = &before {
                let mut replayed = model_before.clone();
                ours.each_change(ours_before, |key, was, is| {
                    assert_eq!(was, model_before.get(&key));
                    assert_eq!(is, model.get(&key));
                    match is {
                        Some(value) => replayed.insert(key, *value),
                        None => replayed.remove(&key),
                    };
                });
                prop_assert_eq!(&replayed, &model, "a change was not told");
            }
            if let Some((ours, model)) = before {
                prop_assert!(ours.iter().eq(model.iter().map(|(k, v)| (*k, v))), "a clone changed");
            }
        }
    }
}
