//! `gnodes`: see the module `nodes`.

fn main() {
    gcli::failure::run("gnodes", || gq::nodes::main(std::env::args_os()))
}
