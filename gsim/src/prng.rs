//! Chance from a seed: xoshiro256** (Blackman, Vigna 2018) seeded by splitmix64. The same seed gives
//! the same run on every machine.

/// A stream of numbers. Independent parts of a simulation take streams of their own, so that leaving
/// one event out does not change the chances of the others.
#[derive(Clone, Debug)]
pub struct Prng {
    words: [u64; 4],
}

impl Prng {
    /// A stream for one purpose of one seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut state = seed ^ stream.wrapping_mul(0xA24B_AED4_963E_E407);
        let mut next = || {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        };
        Self {
            words: [next(), next(), next(), next()],
        }
    }

    pub fn draw(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.words;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// From `low` to `high`, both included.
    pub fn range(&mut self, low: i64, high: i64) -> i64 {
        debug_assert!(low <= high);
        let span = high.abs_diff(low).saturating_add(1);
        low.saturating_add_unsigned(self.draw() % span)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound.max(1) as u64) as usize
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.draw().is_multiple_of(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_and_streams_differ() {
        let take = |seed, stream| {
            let mut prng = Prng::new(seed, stream);
            (0..4).map(|_| prng.draw()).collect::<Vec<_>>()
        };
        assert_eq!(take(7, 1), take(7, 1));
        assert_ne!(take(7, 1), take(7, 2));
        assert_ne!(take(7, 1), take(8, 1));
        let mut prng = Prng::new(1, 1);
        for _ in 0..1000 {
            assert!((-3..=5).contains(&prng.range(-3, 5)));
        }
    }
}
