//! `gnodes`: see the module `nodes`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcli::pages::run("gnodes", gq::nodes::page, gq::nodes::main)
}
