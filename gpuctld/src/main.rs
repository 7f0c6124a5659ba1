mod config;
mod core_thread;
mod histogram;
mod http;
mod node_changes;
mod pki;
mod planner;
mod store;
mod trace_file;
fn main() {}
