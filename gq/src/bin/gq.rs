//! `gq`: see the module `queue`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcli::pages::run("gq", gq::queue::page, gq::queue::main)
}
