//! `grun`: see the module `step`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcli::failure::run("grun", || gsub::step::main(std::env::args_os()))
}
