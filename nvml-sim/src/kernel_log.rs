//! What the driver would print to the kernel log: a file beside the state that stands for `/dev/kmsg`. Kept short.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::state::Gpu;

/// Stands for `/dev/kmsg`, inside a state directory.
pub const KERNEL_LOG_FILE: &str = "kmsg";

/// A log longer than this begins anew, as the kernel's ring would drop its oldest lines.
const MAX_BYTES: u64 = 4 << 20;
/// Lines of one storm that are written.
const MAX_LINES: u64 = 10_000;

/// Appends lines of an Xid of this GPU.
pub fn log_xid(dir: &Path, gpu: &Gpu, number: u64, times: u64) -> io::Result<()> {
    let path = dir.join(KERNEL_LOG_FILE);
    if fs::metadata(&path).is_ok_and(|data| data.len() > MAX_BYTES) {
        fs::write(&path, "")?;
    }
    // The kernel writes four digits of the domain, small letters and no function.
    let place = gpu.pci_bus_id.to_lowercase();
    let place = place
        .get(4..)
        .and_then(|place| place.split('.').next())
        .unwrap_or(&place);
    let text = match number {
        79 => "GPU has fallen off the bus.",
        48 => "DBE (double bit error) ECC Error",
        _ => "Ch 00000008",
    };
    let line =
        format!("NVRM: Xid (PCI:{place}): {number}, pid='<unknown>', name=<unknown>, {text}\n");
    let mut log = File::options().create(true).append(true).open(path)?;
    for _ in 0..times.min(MAX_LINES) {
        log.write_all(line.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::board;

    #[test]
    fn lines_are_as_the_driver_prints_them_and_a_storm_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let gpu = board("h100", 1, "n", 0).unwrap().gpus.remove(0);
        log_xid(dir.path(), &gpu, 79, 1).unwrap();
        let text = fs::read_to_string(dir.path().join(KERNEL_LOG_FILE)).unwrap();
        assert_eq!(
            text,
            "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        );
        log_xid(dir.path(), &gpu, 13, u64::MAX).unwrap();
        let text = fs::read_to_string(dir.path().join(KERNEL_LOG_FILE)).unwrap();
        assert_eq!(text.lines().count() as u64, 1 + MAX_LINES);
    }
}
