//! `gsub`: see the module `submit`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcli::failure::run("gsub", || gsub::submit::main(std::env::args_os()))
}
