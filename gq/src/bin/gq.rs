//! `gq`: see the module `queue`.

fn main() {
    gcli::failure::run("gq", || gq::queue::main(std::env::args_os()))
}
