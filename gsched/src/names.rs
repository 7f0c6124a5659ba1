//! Names as numbers, in the order in which they came: a pass looks each up for every job.
//!
//! A table of open places by FNV-1a (Fowler, Noll, Vo); nothing ever depends on the order of the places.

/// Numbers of names.
#[derive(Clone, Debug, Default)]
pub struct Names {
    names: Vec<Box<str>>,
    /// Number and one, or 0; a power of two, at most half full.
    places: Vec<u32>,
}

impl Names {
    pub fn number(&self, name: &str) -> Option<u32> {
        if self.places.is_empty() {
            return None;
        }
        let mask = self.places.len() - 1;
        let mut at = hash(name) & mask;
        loop {
            match self.places[at] {
                0 => return None,
                taken if &*self.names[taken as usize - 1] == name => return Some(taken - 1),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// The number of a name, which is the next one if it is new.
    pub fn number_or_new(&mut self, name: &str) -> u32 {
        if let Some(number) = self.number(name) {
            return number;
        }
        self.names.push(name.into());
        if self.names.len() * 2 > self.places.len() {
            self.places = vec![0; (self.names.len() * 4).next_power_of_two()];
            (0..self.names.len()).for_each(|number| self.put(number));
        } else {
            self.put(self.names.len() - 1);
        }
        self.names.len() as u32 - 1
    }

    fn put(&mut self, number: usize) {
        let mask = self.places.len() - 1;
        let mut at = hash(&self.names[number]) & mask;
        while self.places[at] != 0 {
            at = (at + 1) & mask;
        }
        self.places[at] = number as u32 + 1;
    }

    pub fn name(&self, number: u32) -> &str {
        &self.names[number as usize]
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }
}

fn hash(name: &str) -> usize {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
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
