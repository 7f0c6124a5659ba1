//! Nodes that a search picked: stretches of nodes that follow each other.

use fixedbitset::FixedBitSet;
use std::ops::Range;

/// Nodes by their place, each with the part of the way that it serves; those together that follow each other.
pub type PickedNodes = Vec<(Range<usize>, usize)>;

/// Each node by itself.
pub fn each(picked: &PickedNodes) -> impl Iterator<Item = (usize, usize)> + Clone + '_ {
    picked
        .iter()
        .flat_map(|(nodes, part)| nodes.clone().map(|at| (at, *part)))
}

/// How many they are.
pub fn count(picked: &PickedNodes) -> usize {
    picked.iter().map(|(nodes, _)| nodes.len()).sum()
}

/// Nodes in their order, those together that follow each other.
pub fn stretches(nodes: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    for at in nodes {
        match all.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => all.push(at..at + 1),
        }
    }
    all
}

/// The first `most` nodes of a set, those together that follow each other.
pub fn first_of(nodes: &FixedBitSet, most: usize) -> Vec<Range<usize>> {
    let bits = usize::BITS as usize;
    let mut all: Vec<Range<usize>> = Vec::new();
    let mut left = most;
    for (place, word) in nodes.as_slice().iter().enumerate() {
        let mut word = *word;
        let mut at = place * bits;
        while word != 0 && left > 0 {
            let skipped = word.trailing_zeros() as usize;
            let here = ((word >> skipped).trailing_ones() as usize).min(left);
            at += skipped;
            match all.last_mut() {
                Some(last) if last.end == at => last.end += here,
                _ => all.push(at..at + here),
            }
            (left, at) = (left - here, at + here);
            word = word.checked_shr((skipped + here) as u32).unwrap_or(0);
        }
    }
    all
}
