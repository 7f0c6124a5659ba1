//! The image of a job, brought in before the job starts: `gstepd --pull RUN_DIR` by root, which starts `gstepd --container-pull ORDER`
//! in the run's cgroup as the user. Its stdout tells gpud how far it is. Ends with its parent process.

use crate::batch::{binds, identity, split_variables};
use crate::container::news::Teller;
use crate::container::order::{ContainerOrder, batch_order, make_dirs};
use crate::container::set_up::{PULLED, image_of};
use crate::container::store::StoredImage;
use crate::environment;
use crate::job_processes::JobProcesses;
use crate::run_dir::wall_clock;
use anyhow::Context;
use gmodel::image_pull::{ContainerFault, PullProgress, PullWord};
use gmodel::launch_order::LaunchOrder;
use gmodel::supervise::RunSetup;
use gsys::launch::{LaunchSpec, Stdio, launch};
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

/// Returns when the user's process has ended: it has said all there is to say.
///
/// # Errors
/// It could not be started.
pub fn start(run_dir: &Path) -> anyhow::Result<()> {
    let read = |name: &str| fs::read(run_dir.join(name)).with_context(|| name.to_owned());
    let job: LaunchOrder = serde_json::from_slice(&read("order.json")?)?;
    let setup: RunSetup = serde_json::from_slice(&read("setup.json")?)?;
    let asked = job.container.as_deref().context("the job has no image")?;
    let order = batch_order(asked, &setup);
    order.spec.check().map_err(anyhow::Error::msg)?;
    make_dirs(&order).map_err(|e| anyhow::anyhow!(e.text))?;
    let words = ["gstepd", "--container-pull"].map(OsString::from);
    let text = OsString::from(serde_json::to_string(&order)?);
    let mut spec = LaunchSpec::new(words.into_iter().chain([text]).collect(), identity(&setup));
    spec.program = Some("/proc/self/exe".into());
    spec.env = split_variables(environment::batch(&job, &setup, wall_clock()));
    spec.confine_root = setup.restrict_root;
    spec.binds = binds(&setup);
    let join = JobProcesses::open(&setup)?.join_fds()?;
    spec.join = join.as_ref();
    let stdout = io::stdout();
    spec.stdout = Stdio::Fd(stdout.as_fd());
    let launched = launch(&spec)?;
    gsys::process::reap(launched.pid)?;
    Ok(())
}

/// The user's process.
pub fn pull(order: &str) -> ExitCode {
    // With the other one, which gpud ends.
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    let mut teller = Teller::new(io::stdout());
    let mut tell = |progress| teller.tell(progress).unwrap_or_else(|_| leave());
    let word = match bring_in(order, &mut tell) {
        Ok(image) => PullWord::Done { image: image.name },
        Err(word) => word,
    };
    teller.say(&word).unwrap_or_else(|_| leave());
    ExitCode::SUCCESS
}

fn bring_in(order: &str, progress: &mut dyn FnMut(PullProgress)) -> Result<StoredImage, PullWord> {
    let failed = |fault, text: String| PullWord::Failed { fault, text };
    let order: ContainerOrder =
        serde_json::from_str(order).map_err(|e| failed(ContainerFault::Node, e.to_string()))?;
    let image = image_of(&order, progress).map_err(|e| failed(e.cause, e.text))?;
    let place = order.dir.with_file_name(PULLED);
    let text = serde_json::to_vec(&(&order.spec.image, &image));
    let written = text
        .map_err(io::Error::from)
        .and_then(|text| fs::write(&place, text));
    written.map_err(|e| failed(ContainerFault::Node, format!("{}: {e}", place.display())))?;
    Ok(image)
}

/// Without a reader the pull has no purpose.
fn leave() {
    std::process::exit(1)
}
