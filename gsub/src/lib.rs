//! `gsub`: from a command line, an environment and a script to one submission.
//!
//! And `grun` (`step`): tasks inside a running job, or in an allocation of its own (`allocation`); `salloc`: a command beside one;
//! `sattach` (`watch`): a step seen beside its client.
//!
//! The options are those of `gmodel::option_table`: parser, help and man page come from it.

mod allocation;
mod choice;
mod container_words;
mod defined_options;
mod environment;
pub mod for_another;
mod foreign_lines;
mod forwarded_port;
mod gpu_options;
mod helper_step;
mod launch_context;
mod mark;
mod multi_prog;
mod notes;
mod option_value;
mod option_words;
mod resource_limits;
mod resources;
pub mod salloc;
pub mod sbcast;
mod script;
mod sent_file;
mod signal_wait;
mod specification;
mod ssh_proxy;
pub mod step;
pub mod step_args;
mod step_components;
mod step_connection;
mod step_gathering;
mod step_input;
mod step_message;
mod step_mpi;
mod step_nodes;
mod step_output;
mod step_programs;
mod step_refusal;
mod step_stream;
mod step_told;
mod step_turn;
mod step_variables;
mod step_words;
mod submission;
pub mod submit;
mod target_job;
mod terminal;
mod tres_words;
pub mod watch;
