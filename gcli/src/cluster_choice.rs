//! `-M`, `--clusters`: Slurm's commands name clusters; here a configuration leads to one.
//!
//! Takes what is true (its own name, `all`) and refuses the rest before anything is asked or done.

use crate::failure::Failure;
use gwire::api::ClusterInfo;
use gwire::client::Client;

/// The option as each command has it.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ClusterChoice {
    /// The cluster: there is this one, by its name or as all
    #[arg(short = 'M', long, value_name = "NAMES", alias = "cluster")]
    clusters: Vec<String>,
}

impl ClusterChoice {
    /// # Errors
    /// As [`check`].
    pub fn check(&self, client: &mut Client) -> Result<(), Failure> {
        check(&self.clusters.join(","), client).map(|_| ())
    }
}

/// Times that are for the whole cluster are read in its time zone, where it has one of its own: as in the controller's files.
///
/// # Errors
/// No controller could be asked.
pub fn read_times_there(client: &mut Client) -> Result<(), Failure> {
    if let Some(zone) = client.get::<ClusterInfo>("/v1/cluster")?.time_zone {
        crate::local_time::read_in(zone);
    }
    Ok(())
}

/// The name of the cluster if one was named, and it is this one.
///
/// # Errors
/// Another cluster than this is named, or the controller does not say which it is.
pub fn check(names: &str, client: &mut Client) -> Result<Option<String>, Failure> {
    let mut named = names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("all"))
        .peekable();
    if named.peek().is_none() {
        return Ok(None);
    }
    let own = client.get::<ClusterInfo>("/v1/cluster")?.name;
    match named.find(|name| *name != own) {
        Some(other) => Err(Failure::new(format_args!(
            "--clusters {other}: this is cluster {own:?}, and its controller knows no other. GPUPOOL_CONFIG names another configuration"
        ))),
        None => Ok(Some(own)),
    }
}
