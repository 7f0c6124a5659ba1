//! `grun`: see the module `step`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcli::pages::run("grun", gsub::step_args::page, gsub::watch::grun)
}
