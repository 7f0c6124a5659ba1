//! `gdel`: see the module `cancel`.

fn main() {
    gcli::failure::run("gdel", || gq::cancel::main(std::env::args_os()))
}
