//! Files that the programs read and write; each error names the file.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // The library does no I/O; its programs may.

use gsim::inputs::TraceArgs;
use gsim::trace::Trace;
use std::path::Path;

/// The bytes of a file, for [`gsim::inputs`].
pub fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| error.to_string())
}

/// Reads a trace, and notes the columns that are passed over.
pub fn read_trace(args: &TraceArgs) -> Result<Trace, String> {
    let trace = args.read(read_file)?;
    if !trace.passed_over.is_empty() {
        note!(
            "gsim: {}: columns passed over: {}",
            args.path().display(),
            trace.passed_over.join(", ")
        );
    }
    Ok(trace)
}

pub fn write_text(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

pub fn make_dir(path: &Path) -> Result<(), String> {
    std::fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Nanoseconds since the program began.
pub fn clock() -> impl FnMut() -> u64 {
    let begun = std::time::Instant::now();
    move || u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
