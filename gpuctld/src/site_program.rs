//! Programs of the site that gpuctld runs: whose they must be. What each is for is its caller's affair.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Only root or gpuctld's own user may be able to change what runs: the file, and what stands in its directory.
///
/// # Errors
/// The sentence that says what is wrong with it.
pub fn check_ownership(program: &Path) -> Result<(), String> {
    let unreadable = |error: std::io::Error| format!("it cannot be read: {error}");
    let real = std::fs::canonicalize(program).map_err(unreadable)?;
    let dir = real.parent().unwrap_or(Path::new("/"));
    let me = nix::unistd::geteuid().as_raw();
    for (what, path) in [("it".to_owned(), real.as_path()), (format!("its directory {}", dir.display()), dir)] {
        let meta = std::fs::metadata(path).map_err(unreadable)?;
        let mode = meta.mode() & 0o7777;
        if meta.uid() != 0 && meta.uid() != me {
            return Err(format!("{what} belongs to uid {}; it has to belong to root", meta.uid()));
        }
        // In a sticky directory others cannot replace what is root's.
        let sticky = meta.is_dir() && mode & 0o1000 != 0;
        if mode & 0o022 != 0 && !sticky {
            return Err(format!("others can write to {what} (mode {mode:o}); chmod go-w"));
        }
        if meta.is_file() && mode & 0o111 == 0 {
            return Err(format!("it is not executable (mode {mode:o}); chmod +x"));
        }
    }
    Ok(())
}
