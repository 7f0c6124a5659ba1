//! `gsub`: see the module `submit`.

fn main() {
    gcli::failure::run("gsub", || gsub::submit::main(std::env::args_os()))
}
