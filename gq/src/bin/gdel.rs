//! `gdel`: see the module `cancel`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcli::failure::run("gdel", || gq::cancel::main(std::env::args_os()))
}
