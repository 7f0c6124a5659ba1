//! Files that the command reads and writes; each error names the file.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // The library does no I/O; its program may.

use gsim::gunzip::{gunzip, is_gzip};
use gsim::trace::MAX_TEXT_BYTES;
use std::path::Path;

/// A text file, unpacked if it is a gzip.
pub fn read_text(path: &Path) -> Result<String, String> {
    let named = |error: String| format!("{}: {error}", path.display());
    let data = std::fs::read(path).map_err(|error| named(error.to_string()))?;
    let data = if is_gzip(&data) {
        gunzip(&data, MAX_TEXT_BYTES).map_err(|error| named(error.to_string()))?
    } else {
        data
    };
    String::from_utf8(data).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|b| **b == b'\n')
            .count()
            + 1;
        named(format!("line {line} is no UTF-8 text"))
    })
}

pub fn write_text(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

pub fn make_dir(path: &Path) -> Result<(), String> {
    std::fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Mistakes with the name of the file before each line of them.
pub fn in_file(path: &Path, error: &impl ToString) -> String {
    let name = path.display();
    error
        .to_string()
        .lines()
        .map(|line| format!("{name}: {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Nanoseconds since the program began.
pub fn clock() -> impl FnMut() -> u64 {
    let begun = std::time::Instant::now();
    move || u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
