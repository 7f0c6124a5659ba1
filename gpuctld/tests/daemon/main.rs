//! The real gpuctld on a directory of its own: killed, full, misconfigured, and spoken to by real and forged nodes.

mod bill;
mod controller;
mod crash;
mod disk;
mod events;
mod lies;
mod link;
mod lying_node;
mod mail;
mod node;
mod operation;
mod outputs;
mod random_kills;
mod retention;
mod trust;
mod waiting_runs;
mod webhooks;
