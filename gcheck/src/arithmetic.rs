//! Whether a GPU computes right: long chains of integer, single and double precision arithmetic, the same in each block, with an end
//! that is known because the processor goes through the same chain. Owns what is computed; `gsys/src/cuda/checks.ptx` says the same
//! for the GPU. Every operation is exact or rounded as IEEE 754 says, so the end is one on all boards, of any kind.
//!
//! Source: cores that compute wrong now and then and without a word are found by long runs with known results: Hochschild et al.,
//! Cores that don't count (HotOS 2021); Dixit et al., Silent Data Corruptions at Scale (2021).

use crate::finding::Finding;
use crate::{Size, Terms};
use anyhow::Result;
use gsys::cuda::{CheckKernels, Context, CudaError, DeviceMemory};
use std::time::{Duration, Instant};

/// Of Knuth's linear congruential generator MMIX, and an odd number of L'Ecuyer's for the sum.
const A: u64 = 6_364_136_223_846_793_005;
const C: u64 = 1_442_695_040_888_963_407;
const B: u64 = 2_862_933_555_777_941_757;

/// What one kernel does in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chain {
    Int,
    Single,
    Double,
}

/// What a thread carries from round to round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lane {
    state: u64,
    sum: u64,
}

/// How long a chain is: launches short enough that a GPU is free within about 10 ms of the program's end.
#[derive(Clone, Copy, Debug)]
struct Length {
    blocks: usize,
    launches: u32,
    rounds: u32,
}

impl Chain {
    const ALL: [(Chain, &str); 3] = [
        (Chain::Int, "arith.int"),
        (Chain::Single, "arith.fp32"),
        (Chain::Double, "arith.fp64"),
    ];

    /// More blocks than any board runs at a time. Many boards are 64 times slower in double precision.
    fn length(self, size: Size) -> Length {
        let (launches, rounds) = match (size, self) {
            (Size::Small, _) => (3, 16),
            (Size::Full, Chain::Int) => (512, 2048),
            (Size::Full, Chain::Single) => (128, 2048),
            (Size::Full, Chain::Double) => (128, 256),
        };
        Length {
            blocks: if size == Size::Full { 4096 } else { 3 },
            launches,
            rounds,
        }
    }

    fn launch(
        self,
        kernels: &CheckKernels<'_>,
        values: &DeviceMemory<'_>,
        rounds: u32,
    ) -> Result<(), CudaError> {
        match self {
            Chain::Int => kernels.mix_int(values, rounds),
            Chain::Single => kernels.chain_f32(values, rounds),
            Chain::Double => kernels.chain_f64(values, rounds),
        }
    }

    /// One round.
    fn step(self, Lane { state, sum }: Lane) -> Lane {
        let mut state = state.wrapping_mul(A).wrapping_add(C);
        let result = match self {
            Chain::Int => {
                state ^= state >> 29;
                state ^= state << 17;
                (state >> 32) * (state & 0xffff_ffff)
            }
            Chain::Single => {
                let one_to_two =
                    |bits: u64| f32::from_bits(0x3f80_0000 | (bits as u32 & 0x7f_ffff));
                let (x, y) = (one_to_two(state >> 41), one_to_two(state >> 18));
                let z = x.mul_add(y, -1.5);
                let z = z.mul_add(y, x).mul_add(y, x).mul_add(y, x);
                z.to_bits().into()
            }
            Chain::Double => {
                let one_to_two =
                    |bits: u64| f64::from_bits(0x3ff0_0000_0000_0000 | (bits & 0xf_ffff_ffff_ffff));
                let (x, y) = (one_to_two(state >> 12), one_to_two(state));
                let z = x.mul_add(y, -1.5);
                z.mul_add(y, x).mul_add(y, x).mul_add(y, x).to_bits()
            }
        };
        Lane {
            state,
            sum: sum.wrapping_mul(B).wrapping_add(result),
        }
    }

    /// The lanes of a block after so many rounds, by the processor.
    fn reference(self, rounds: u64) -> Vec<Lane> {
        let end = |lane: Lane| (0..rounds).fold(lane, |lane, _| self.step(lane));
        first_lanes().into_iter().map(end).collect()
    }
}

/// Each other than its neighbours in about half of its bits.
fn first_lanes() -> Vec<Lane> {
    (1..=CheckKernels::LANES as u64)
        .map(|lane| Lane {
            state: lane.wrapping_mul(B) ^ (lane << 32),
            sum: 0,
        })
        .collect()
}

/// Every chain to its end, each told as soon as it is known.
pub fn check(context: &Context, terms: &Terms, told: &mut impl FnMut(Finding)) -> Result<()> {
    let kernels = CheckKernels::compile(context)?;
    for (chain, name) in Chain::ALL {
        let length = chain.length(terms.size);
        // The processor goes through it meanwhile.
        let reference = std::thread::spawn(move || {
            chain.reference(u64::from(length.launches) * u64::from(length.rounds))
        });
        let values = begin(context, length.blocks)?;
        for _ in 0..length.launches {
            chain.launch(&kernels, &values, length.rounds)?;
            context.finish()?;
        }
        let found = lanes_of(&values.read(0, values.bytes())?);
        let expected = reference
            .join()
            .map_err(|_| anyhow::anyhow!("the processor did not come to the end of {name}"))?;
        told(compare(name, terms.size, &found, &expected));
    }
    Ok(())
}

/// Integer arithmetic without a pause, for so long.
pub fn load(context: &Context, size: Size, time: Duration) -> Result<()> {
    let kernels = CheckKernels::compile(context)?;
    let length = Chain::Int.length(size);
    let values = begin(context, length.blocks)?;
    println!("{}", serde_json::json!({"load": "begun"}));
    let end = Instant::now() + time;
    while Instant::now() < end {
        Chain::Int.launch(&kernels, &values, length.rounds)?;
        context.finish()?;
    }
    Ok(())
}

fn begin(context: &Context, blocks: usize) -> Result<DeviceMemory<'_>, CudaError> {
    let block: Vec<u8> = first_lanes()
        .iter()
        .flat_map(|lane| [lane.state.to_ne_bytes(), lane.sum.to_ne_bytes()].concat())
        .collect();
    let values = context.alloc(blocks * block.len())?;
    values.write(0, &block.repeat(blocks))?;
    Ok(values)
}

fn lanes_of(bytes: &[u8]) -> Vec<Lane> {
    let word = |bytes: &[u8]| u64::from_ne_bytes(std::array::from_fn(|at| bytes[at]));
    bytes
        .chunks_exact(CheckKernels::VALUE_BYTES)
        .map(|value| Lane {
            state: word(&value[..8]),
            sum: word(&value[8..]),
        })
        .collect()
}

fn compare(name: &str, size: Size, found: &[Lane], expected: &[Lane]) -> Finding {
    let right = |at: usize| &expected[at % expected.len()];
    let wrong: Vec<usize> = (0..found.len())
        .filter(|at| found[*at] != *right(*at))
        .collect();
    let text = wrong.first().map_or_else(String::new, |first| {
        let (block, lane) = (first / expected.len(), first % expected.len());
        let (is, should) = (found[*first], right(*first));
        let count = wrong.len();
        format!("{count} of {} threads are wrong, the first is thread {lane} of block {block}: {:016x} {:016x} instead of {:016x} {:016x}",
            found.len(), is.state, is.sum, should.state, should.sum)
    });
    let checksum = found.iter().fold(0_u64, |sum, lane| {
        sum.wrapping_mul(B)
            .wrapping_add(lane.state)
            .wrapping_mul(B)
            .wrapping_add(lane.sum)
    });
    Finding {
        checksum: Some(checksum),
        pass: Some(wrong.is_empty()),
        text,
        ..Finding::new(name, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_never_covers_up_a_wrong_bit() {
        for (chain, name) in Chain::ALL {
            let lane = first_lanes()[7];
            for (state, sum) in [(1, 0), (1 << 63, 0), (0, 1), (0, 1 << 40)] {
                let mut right = lane;
                let mut wrong = Lane {
                    state: lane.state ^ state,
                    sum: lane.sum ^ sum,
                };
                for round in 0..20_000 {
                    (right, wrong) = (chain.step(right), chain.step(wrong));
                    assert_ne!(right, wrong, "{name}, round {round}");
                }
            }
        }
    }

    #[test]
    fn the_operands_of_floating_point_are_ordinary_numbers() {
        for chain in [Chain::Single, Chain::Double] {
            let lanes = chain.reference(1000);
            assert!(
                lanes
                    .iter()
                    .zip(lanes.iter().skip(1))
                    .all(|(one, next)| one.sum != next.sum)
            );
        }
    }

    #[test]
    fn one_wrong_thread_is_named_with_what_it_found() {
        let expected = Chain::Int.reference(10);
        let mut found = [expected.clone(), expected.clone()].concat();
        let sound = compare("arith.int", Size::Small, &found, &expected);
        assert_eq!((sound.pass, sound.text.as_str()), (Some(true), ""));
        found[256 + 3].sum ^= 8;
        let wrong = compare("arith.int", Size::Small, &found, &expected);
        assert_eq!(wrong.pass, Some(false));
        assert!(
            wrong
                .text
                .starts_with("1 of 512 threads are wrong, the first is thread 3 of block 1: "),
            "{}",
            wrong.text
        );
        assert_ne!(wrong.checksum, sound.checksum);
        assert!(wrong.text.len() < 300);
    }
}
