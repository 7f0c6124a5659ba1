//! Where a user's keys for ssh into jobs lie: `gadm ssh-config` makes them, `grun --ssh` gives them to the sshd in the job.

/// Below the home directory.
pub const DIRECTORY: &str = ".gpupool/ssh";
