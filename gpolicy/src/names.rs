//! Names as numbers, in the order in which they came: a pass looks each up for every job.
//!
//! A table of open places by FNV-1a (Fowler, Noll, Vo) over words of eight bytes; nothing ever depends on the order of the places.

/// Numbers of things that the caller keeps, found by a hash of what they are.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Number and one, or 0; a power of two, at most half full.
    places: Vec<u32>,
    taken: usize,
}

impl Places {
    pub fn find(&self, hash: usize, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let mask = self.places.len().checked_sub(1)?;
        let mut at = hash & mask;
        loop {
            match self.places[at] as usize {
                0 => return None,
                taken if is_it(taken - 1) => return Some(taken - 1),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// Adds one that is not there. `hash_of` knows the hash of each number, the new one's too.
    pub fn add(&mut self, number: usize, hash_of: impl Fn(usize) -> usize) {
        self.taken += 1;
        if self.taken * 2 > self.places.len() {
            let old = std::mem::replace(
                &mut self.places,
                vec![0; (self.taken * 4).next_power_of_two()],
            );
            old.into_iter()
                .filter(|place| *place != 0)
                .for_each(|place| self.put(place as usize - 1, &hash_of));
        }
        self.put(number, &hash_of);
    }

    fn put(&mut self, number: usize, hash_of: &impl Fn(usize) -> usize) {
        let mask = self.places.len() - 1;
        let mut at = hash_of(number) & mask;
        while self.places[at] != 0 {
            at = (at + 1) & mask;
        }
        self.places[at] = number as u32 + 1;
    }
}

/// Numbers of names.
#[derive(Clone, Debug, Default)]
pub struct Names {
    names: Vec<Box<str>>,
    places: Places,
}

impl Names {
    pub fn number(&self, name: &str) -> Option<u32> {
        self.places
            .find(hash(&[name]), |number| &*self.names[number] == name)
            .map(|number| number as u32)
    }

    /// The number of a name, which is the next one if it is new.
    pub fn number_or_new(&mut self, name: &str) -> u32 {
        if let Some(number) = self.number(name) {
            return number;
        }
        let number = self.names.len();
        self.names.push(name.into());
        self.places
            .add(number, |number| hash(&[&self.names[number]]));
        number as u32
    }

    pub fn name(&self, number: u32) -> &str {
        &self.names[number as usize]
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }
}

/// Of one name, or of several that together name a thing.
pub fn hash(names: &[&str]) -> usize {
    let step = |hash: u64, word: u64| {
        (hash ^ word)
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(23)
    };
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for name in names {
        let (words, rest) = name.as_bytes().as_chunks::<8>();
        hash = words
            .iter()
            .fold(hash, |hash, word| step(hash, u64::from_le_bytes(*word)));
        let rest = rest
            .iter()
            .fold(0, |word, byte| word << 8 | u64::from(*byte));
        hash = step(hash, rest << 8 | name.len() as u64 & 0xff);
    }
    (hash ^ (hash >> 32)) as usize
}

impl<'a> FromIterator<&'a str> for Names {
    fn from_iter<I: IntoIterator<Item = &'a str>>(all: I) -> Self {
        let mut names = Self::default();
        for name in all {
            names.number_or_new(name);
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_given_once_in_order(words in prop::collection::vec("[ab]{0,4}", 0..200)) {
            let names: Names = words.iter().map(String::as_str).collect();
            let mut seen: Vec<&str> = Vec::new();
            for word in &words {
                if !seen.contains(&&**word) {
                    seen.push(word);
                }
            }
            prop_assert_eq!(names.len(), seen.len());
            for (number, word) in (0..).zip(seen) {
                prop_assert_eq!(names.number(word), Some(number));
                prop_assert_eq!(names.name(number), word);
            }
            prop_assert_eq!(names.number("c"), None);
        }
    }
}
