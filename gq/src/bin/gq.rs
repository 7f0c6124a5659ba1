//! `gq`: see the module `queue`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcli::failure::run("gq", || gq::queue::main(std::env::args_os()))
}
