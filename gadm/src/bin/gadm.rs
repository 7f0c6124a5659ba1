//! `gadm`: see the module `admin`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcli::pages::run("gadm", gadm::admin::page, gadm::admin::main)
}
