//! What a container needs of the GPU driver beside the device files of its GPUs: the driver's other device files, as far as the run's
//! fence lets them be opened, and libraries that are not where drivers are. Reads names only.

use crate::config::Config;
use crate::gpu::mig::{self, GrantedGpu};
use crate::gpu::table::control_paths;
use gmodel::supervise::DriverFiles;
use std::path::Path;

/// Nothing for a run without GPUs.
pub fn of_run(config: &Config, gpus: &[GrantedGpu]) -> DriverFiles {
    if gpus.is_empty() {
        return DriverFiles::default();
    }
    let text = |path: &Path| path.display().to_string();
    let caps = gpus.iter().flat_map(|own| mig::cap_paths(config, own));
    let files = control_paths(&config.dev_dir).into_iter().chain(caps);
    let known = [
        ("libnvidia-ml.so.1", &config.nvml_lib),
        ("libcuda.so.1", &config.cuda_lib),
    ];
    let libraries = known
        .iter()
        .filter_map(|(name, path)| Some(((*name).to_owned(), text(path.as_deref()?))));
    DriverFiles {
        devices: files
            .map(|path| (text(&path), in_container(&config.dev_dir, &path)))
            .collect(),
        libraries: libraries.collect(),
        cdi_dirs: config.cdi_dirs.clone(),
    }
}

/// Below `/dev` as below the node's directory of device files.
pub fn in_container(dev_dir: &Path, path: &Path) -> String {
    let below = path.strip_prefix(dev_dir).unwrap_or(path);
    Path::new("/dev").join(below).display().to_string()
}
