//! How fast bytes move: within the GPU's memory, between it and pinned memory of the host, and to another GPU. Measured by the GPU's
//! own clock, the best of several, so that a busy host shows little; what is too slow is seen beside other GPUs.

use crate::finding::Finding;
use crate::{Size, Terms};
use anyhow::Result;
use gsys::cuda::{Context, CudaError};

/// The first is for the link to wake up.
const TRIES: usize = 6;
const UNIT: &str = "GB/s";

impl Size {
    fn copy_bytes(self) -> usize {
        match self {
            Size::Full => 256 << 20,
            Size::Small => 256 << 10,
        }
    }
}

/// Each way within the GPU and to the host, told as soon as it is known.
pub fn check(context: &Context, terms: &Terms, told: &mut impl FnMut(Finding)) -> Result<()> {
    let bytes = terms.size.copy_bytes();
    let (here, other) = (context.alloc(bytes)?, context.alloc(bytes)?);
    // What is copied is read and written.
    told(speed(
        "copy.device",
        terms,
        2 * bytes,
        best(context, || here.begin_copy(&other, bytes))?,
    ));
    let pinned = context.pin(bytes)?;
    // Behind a slot of fewer lanes a board is as slow as all its like.
    let class = crate::variable("GPUPOOL_GPU_LINK").unwrap_or_default();
    told(Finding {
        class: class.clone(),
        ..speed(
            "copy.to-gpu",
            terms,
            bytes,
            best(context, || pinned.begin_write(&here))?,
        )
    });
    told(Finding {
        class,
        ..speed(
            "copy.from-gpu",
            terms,
            bytes,
            best(context, || pinned.begin_read(&here))?,
        )
    });
    Ok(())
}

/// The way to another GPU. Compared with those over as many links.
pub fn way(context: &Context, peer: &Context, uuid: &str, terms: &Terms) -> Result<()> {
    let bytes = terms.size.copy_bytes();
    let direct = context.reach(peer)?;
    let (here, there) = (context.alloc(bytes)?, peer.alloc(bytes)?);
    let finding = speed(
        "copy.to-peer",
        terms,
        bytes,
        best(context, || here.begin_copy_to_peer(&there, bytes))?,
    );
    let class = crate::variable("GPUPOOL_PEER_LINK").unwrap_or_default();
    let text = if direct { "" } else { "through the host" };
    Finding {
        class,
        peer: uuid.to_owned(),
        text: text.into(),
        ..finding
    }
    .tell();
    Ok(())
}

fn speed(name: &str, terms: &Terms, moved: usize, millis: f64) -> Finding {
    let gb_s = moved as f64 / 1e6 / millis;
    Finding {
        value: Some((gb_s, UNIT)),
        ..Finding::new(name, terms.size)
    }
}

/// Milliseconds of the fastest.
fn best(context: &Context, begin: impl Fn() -> Result<(), CudaError>) -> Result<f64, CudaError> {
    let mut best = f64::INFINITY;
    for _ in 0..TRIES {
        best = best.min(context.time(&begin)?);
    }
    // No clock is that fine.
    Ok(best.max(1e-6))
}
