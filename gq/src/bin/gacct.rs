//! `gacct`: see the module `accounting`.

fn main() {
    gcli::failure::run("gacct", || gq::accounting::main(std::env::args_os()))
}
