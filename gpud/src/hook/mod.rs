//! Programs of the site that this node runs: prolog and epilog of a run, and programs that repair GPUs.

pub mod epilog;
pub mod program;
pub mod prolog;
pub mod site_program;
