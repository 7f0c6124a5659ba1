//! `grun --ssh gpupool-17`, which ssh calls as its ProxyCommand: stdin and stdout are a connection to an sshd that runs as the job's
//! user in a step of the job. The keys are those that `gadm ssh-config` made.

use crate::helper_step::{HelperPlace, HelperStep};
use gcli::{Failure, Outcome};
use gmodel::supervise::{SshKeys, StepHelper};
use nix::sys::signal::SigSet;
use std::io::Read;
use std::path::PathBuf;

/// What ssh calls a job: `gpupool-17`, `gpupool-17_3`, `gpupool-17.node2`.
pub(crate) fn place(host: &str) -> Result<HelperPlace, Failure> {
    let wrong = || {
        Failure::usage(format_args!(
            "--ssh {host}: a job is gpupool-17 there, a task of an array gpupool-17_3, and its second node gpupool-17.node2"
        ))
    };
    let name = host.strip_prefix("gpupool-").ok_or_else(wrong)?;
    let (job, node) = match name.split_once('.') {
        Some((job, node)) => (job, Some(node.to_owned())),
        None => (name, None),
    };
    let numbers = job.split('_').all(|part| part.parse::<u64>().is_ok());
    if !numbers || job.split('_').count() > 2 || node.as_deref() == Some("") {
        return Err(wrong());
    }
    Ok(HelperPlace {
        job: job.to_owned(),
        node,
    })
}

/// One connection of ssh.
///
/// # Errors
/// There are no keys; as [`HelperStep`].
pub(crate) fn connect(host: &str, signals: SigSet) -> Outcome {
    let place = place(host)?;
    let keys = SshKeys {
        host_key: read("host_ed25519")?,
        authorized_key: read("id_ed25519.pub")?,
    };
    let mut first = serde_json::to_vec(&keys).map_err(Failure::new)?;
    first.push(b'\n');
    let step = HelperStep::start(place, StepHelper::Sshd, "ssh", &signals)?;
    let input = std::io::Cursor::new(first).chain(std::io::stdin());
    step.carry(signals, input, std::io::stdout())
}

fn read(name: &str) -> Result<String, Failure> {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let path = PathBuf::from(home)
        .join(gcli::ssh_keys::DIRECTORY)
        .join(name);
    std::fs::read_to_string(&path).map_err(|e| {
        Failure::new(format_args!(
            "{}: {e}. `gadm ssh-config` makes it",
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_names_a_job_and_may_name_its_node() {
        let read = |host| {
            let place = place(host).ok()?;
            Some((place.job, place.node.unwrap_or_default()))
        };
        let some = |job: &str, node: &str| Some((job.to_owned(), node.to_owned()));
        assert_eq!(read("gpupool-17"), some("17", ""));
        assert_eq!(read("gpupool-17_3.n2"), some("17_3", "n2"));
        for wrong in [
            "17",
            "gpupool-",
            "gpupool-x",
            "gpupool-17.",
            "gpupool-1_2_3",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
