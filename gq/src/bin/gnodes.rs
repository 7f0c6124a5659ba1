//! `gnodes`: see the module `nodes`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcli::failure::run("gnodes", || gq::nodes::main(std::env::args_os()))
}
