//! `gacct`: see the module `accounting`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcli::pages::run("gacct", gq::accounting::page, gq::accounting::main)
}
