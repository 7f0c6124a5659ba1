//! `gacct`: see the module `accounting`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcli::failure::run("gacct", || gq::accounting::main(std::env::args_os()))
}
