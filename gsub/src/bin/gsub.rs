//! `gsub`: see the module `submit`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcli::pages::run("gsub", gsub::submit::page, gsub::submit::main)
}
