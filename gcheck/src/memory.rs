//! Tests whether a GPU's memory keeps what is written: patterns over nearly all free memory, read and inverted in turn, as memory tests
//! of processors do. Also scrubs memory with zeros between tenants. Never touches memory of other processes.
//!
//! Source: moving inversions as memtest86 has them (de Goor, Testing Semiconductor Memories, 1991); an address pattern finds words
//! that answer at a wrong address.

use crate::finding::Finding;
use crate::{Size, Terms};
use anyhow::{Result, ensure};
use gsys::cuda::{CheckKernels, Context, CudaError, DeviceMemory, Pattern, SweepReport};
use std::time::Instant;

/// First each word other than all others, then all alike: ends, neighbours in either place, and one that is none of these.
const PATTERNS: [Pattern; 5] = [
    Pattern {
        step: 0x9e37_79b9_7f4a_7c15,
        offset: 0x0123_4567_89ab_cdef,
    },
    Pattern { step: 0, offset: 0 },
    Pattern {
        step: 0,
        offset: 0x5555_5555_5555_5555,
    },
    Pattern {
        step: 0,
        offset: 0x3333_3333_cccc_cccc,
    },
    Pattern {
        step: 0,
        offset: 0xd1b5_4a32_d192_ed03,
    },
];
const ZEROS: Pattern = Pattern { step: 0, offset: 0 };
const INVERTED: u64 = u64::MAX;

/// Part of the memory, with its report on the GPU.
struct Chunk<'a> {
    memory: DeviceMemory<'a>,
    report: DeviceMemory<'a>,
}

/// How memory is taken.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// What one kernel goes through, and the smallest piece that is still worth it.
    piece_bytes: usize,
    least_bytes: usize,
    /// Left to others.
    spare_bytes: u64,
    most_bytes: u64,
}

/// An empty GPU has at least so much free memory, in hundredths; with less another process is on it.
const FREE_PERCENT: u64 = 90;

impl Size {
    /// Nearly all, so that others still can do something meanwhile.
    fn to_check(self) -> Share {
        match self {
            Size::Full => Share {
                piece_bytes: 1 << 30,
                least_bytes: 16 << 20,
                spare_bytes: 256 << 20,
                most_bytes: u64::MAX,
            },
            Size::Small => Share {
                piece_bytes: 32 << 10,
                least_bytes: 32 << 10,
                spare_bytes: 0,
                most_bytes: 64 << 10,
            },
        }
    }

    /// All, down to the pieces that a driver gives.
    fn to_scrub(self) -> Share {
        match self {
            Size::Full => Share {
                least_bytes: 2 << 20,
                spare_bytes: 0,
                ..self.to_check()
            },
            Size::Small => self.to_check(),
        }
    }
}

pub fn check(context: &Context, terms: &Terms) -> Result<Finding> {
    let kernels = CheckKernels::compile(context)?;
    let chunks = take(context, terms.size.to_check())?;
    let mut done = 0;
    for pattern in PATTERNS {
        if done > 0 && Instant::now() >= terms.deadline {
            break;
        }
        let whole = go_through(context, &kernels, &chunks, pattern, terms)?;
        if let Some(text) = wrong(&chunks, pattern)? {
            return Ok(Finding::failed("memory", terms.size, text));
        }
        if !whole {
            break;
        }
        done += 1;
    }
    ensure!(
        done > 0,
        "{} of memory are not gone through once in the time there is",
        gib(&chunks)
    );
    let patterns = if done == PATTERNS.len() {
        format!("{done}")
    } else {
        format!("{done} of {}, then the time was over", PATTERNS.len())
    };
    Ok(Finding {
        pass: Some(true),
        text: format!("{}, patterns: {patterns}", gib(&chunks)),
        ..Finding::new("memory", terms.size)
    })
}

/// Writes zeros over all free memory; passed: the zeros were read back.
pub fn scrub(context: &Context, terms: &Terms) -> Result<Finding> {
    let kernels = CheckKernels::compile(context)?;
    let (free, total) = context.memory_info()?;
    ensure!(
        free >= total / 100 * FREE_PERCENT,
        "of {} MiB of its memory only {} are free: somebody is on it",
        total >> 20,
        free >> 20
    );
    let chunks = take(context, terms.size.to_scrub())?;
    let each = |begin: &dyn Fn(&Chunk<'_>) -> Result<(), CudaError>| {
        chunks
            .iter()
            .try_for_each(|chunk| begin(chunk).and_then(|()| context.finish()))
    };
    each(&|chunk| kernels.write(&chunk.memory, ZEROS))?;
    each(&|chunk| kernels.sweep(&chunk.memory, ZEROS, 0, 0, &chunk.report))?;
    let text = wrong(&chunks, ZEROS)?;
    let pass = Some(text.is_none());
    let text = text.unwrap_or_else(|| format!("{} of zeros", gib(&chunks)));
    Ok(Finding {
        pass,
        text,
        ..Finding::new("scrub", terms.size)
    })
}

/// A pattern, its inverse, and it again. False where the time was over before.
fn go_through(
    context: &Context,
    kernels: &CheckKernels<'_>,
    chunks: &[Chunk<'_>],
    pattern: Pattern,
    terms: &Terms,
) -> Result<bool, CudaError> {
    for chunk in chunks {
        kernels.write(&chunk.memory, pattern)?;
        context.finish()?;
    }
    // Each pass through all of it, so that what is read was not just written.
    for (seen, left) in [(0, INVERTED), (INVERTED, 0), (0, 0)] {
        for chunk in chunks {
            if Instant::now() >= terms.deadline {
                return Ok(false);
            }
            kernels.sweep(&chunk.memory, pattern, seen, left, &chunk.report)?;
            context.finish()?;
        }
    }
    Ok(true)
}

/// What is free, in pieces.
fn take(context: &Context, share: Share) -> Result<Vec<Chunk<'_>>> {
    let Share {
        piece_bytes: mut bytes,
        least_bytes: least,
        spare_bytes: spare,
        most_bytes: most,
    } = share;
    let mut chunks = Vec::new();
    let mut taken = 0;
    loop {
        let (free, _) = context.memory_info()?;
        let room = free.saturating_sub(spare).min(most - taken);
        while bytes as u64 > room && bytes > least {
            bytes /= 2;
        }
        if bytes as u64 > room {
            break;
        }
        match piece(context, bytes) {
            Ok(chunk) => chunks.push(chunk),
            // In pieces that are smaller there may be more.
            Err(e) if e.is_out_of_memory() && bytes > least => {
                bytes /= 2;
                continue;
            }
            Err(e) if e.is_out_of_memory() => break,
            Err(e) => return Err(e.into()),
        }
        taken += bytes as u64;
    }
    ensure!(!chunks.is_empty(), "no memory of the GPU is free");
    Ok(chunks)
}

fn piece(context: &Context, bytes: usize) -> Result<Chunk<'_>, CudaError> {
    let report = context.alloc(SweepReport::BYTES)?;
    report.write(0, &SweepReport::clean().to_bytes())?;
    Ok(Chunk {
        memory: context.alloc(bytes)?,
        report,
    })
}

/// What was not as it should be, in words.
fn wrong(chunks: &[Chunk<'_>], pattern: Pattern) -> Result<Option<String>, CudaError> {
    let (mut words, mut first, mut bits) = (0, None, 0);
    for chunk in chunks {
        let report = SweepReport::from_bytes(&chunk.report.read(0, SweepReport::BYTES)?);
        if report.wrong_words > 0 {
            first = first.or_else(|| Some(chunk.memory.address() + report.first.saturating_mul(8)));
            words += report.wrong_words;
            bits |= report.bits;
        }
    }
    let shown = if pattern.step == 0 {
        format!("{:016x}", pattern.offset)
    } else {
        "of addresses".into()
    };
    Ok(first.map(|first| format!("{words} times a word was wrong in {}, the first at {first:#x}: bits {bits:#x}, pattern {shown}", gib(chunks))))
}

fn gib(chunks: &[Chunk<'_>]) -> String {
    let bytes: usize = chunks.iter().map(|chunk| chunk.memory.bytes()).sum();
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}
