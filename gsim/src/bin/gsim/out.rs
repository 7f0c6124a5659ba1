//! What the command prints. A reader that has gone away (`gsim run | head`) is none of its errors.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stderr, stdout};

/// Prints a line of results.
macro_rules! say {
    ($($part:tt)*) => { $crate::out::result(format_args!($($part)*)) };
}

/// Prints a line about how it goes.
macro_rules! note {
    ($($part:tt)*) => { $crate::out::talk(format_args!($($part)*)) };
}

/// Ends the program where the results cannot be written.
pub fn result(text: Arguments) {
    if let Err(error) = writeln!(stdout().lock(), "{text}")
        && error.kind() != ErrorKind::BrokenPipe
    {
        note!("gsim: standard output: {error}");
        std::process::exit(1);
    }
}

pub fn talk(text: Arguments) {
    // Where this cannot be written, nothing else can be said.
    let _ = writeln!(stderr().lock(), "{text}");
}
