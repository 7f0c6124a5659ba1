//! A value that clones share until one of them changes it. The jobs of a user share most of their request that way.
//! Two clones that share are equal without a comparison.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cmp::Ordering;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

/// A value behind an `Arc`, copied on write.
#[derive(Debug, Default)]
pub struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(value))
    }
    /// Whether both are the same value in memory.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    /// Names the value as long as a [`Shared::downgrade`] of it is kept.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
    /// Keeps the address from being given to another value, and nothing else.
    pub fn downgrade(&self) -> Weak<T> {
        Arc::downgrade(&self.0)
    }
}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other) || self.0 == other.0
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T: Ord> PartialOrd for Shared<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Ord> Ord for Shared<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.is_same(other) {
            Ordering::Equal
        } else {
            self.0.cmp(&other.0)
        }
    }
}

impl<T: Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        T::deserialize(d).map(Self::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_by_the_one_who_made_it_only() {
        let first = Shared::new("one".to_owned());
        let mut second = first.clone();
        assert!(first.is_same(&second) && first == second);
        second.push('!');
        assert_eq!((first.as_str(), second.as_str()), ("one", "one!"));
        assert!(!first.is_same(&second) && first < second);
        assert_eq!(
            second,
            Shared::new("one!".to_owned()),
            "equal without being the same"
        );
    }
}
