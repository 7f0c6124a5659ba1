//! `gdel`: see the module `cancel`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcli::pages::run("gdel", gq::cancel::page, gq::cancel::main)
}
