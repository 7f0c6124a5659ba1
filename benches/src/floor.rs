//! What this machine does in this minute without us: one process spawn, one `fdatasync`.
//!
//! Times on a shared machine mean little alone; as multiples of these floors they can be compared.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Medians of the floors, and the load average beside them.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    pub spawn: Duration,
    pub fsync: Duration,
    pub load: f64,
}

impl Floor {
    /// Measures in a directory on the disk the database uses.
    pub fn measure(dir: &Path) -> anyhow::Result<Self> {
        let spawn = median(60, || {
            Command::new("/bin/true").status()?;
            Ok(())
        })?;
        let path = dir.join("floor");
        let mut file = File::create(&path)?;
        let fsync = median(40, || {
            file.write_all(&[0u8; 4096])?;
            file.sync_data()?;
            Ok(())
        })?;
        std::fs::remove_file(path)?;
        let load = std::fs::read_to_string("/proc/loadavg")?;
        let load = load
            .split(' ')
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0.0);
        Ok(Self { spawn, fsync, load })
    }

    /// Moved by more than 1.5 either way: a row measured between the two says little.
    pub fn moved(&self, later: &Self) -> bool {
        let far = |a: Duration, b: Duration| {
            let ratio = a.as_secs_f64() / b.as_secs_f64().max(1e-9);
            !(1.0 / 1.5..=1.5).contains(&ratio)
        };
        far(self.spawn, later.spawn) || far(self.fsync, later.fsync)
    }
}

/// Median time of `count` calls.
pub fn median(
    count: usize,
    mut act: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Duration> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        act()?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}
