//! The device file of a run's IMEX channel: found, or made for the run's user as long as the run is here.
//!
//! The controller chooses the number; the fence denies the file to other runs. After NVIDIA's IMEX guide.

use crate::site::Site;
use anyhow::{Context, Result};
use gmodel::RunId;
use gmodel::launch_order::LaunchOrder;
use gsys::device_fence::{DeviceNumber, char_major};
use gsys::device_node::{char_device, make_char_device, remove_char_device};
use gsys::user::User;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// The driver's name in /proc/devices, and of the directory in /dev.
const DRIVER: &str = "nvidia-caps-imex-channels";

/// A channel on this node.
#[derive(Debug)]
pub struct Channel {
    number: u32,
    pub device: DeviceNumber,
    path: PathBuf,
    /// The administrator's, or the driver's: it was there.
    stands: bool,
}

/// The channel of an order; `None` where it has none, or the driver here offers none.
pub fn find(site: &Site, order: &LaunchOrder) -> Result<Option<Channel>> {
    let Some(number) = order.imex_channel.filter(|_| !order.gpus.is_empty()) else {
        return Ok(None);
    };
    let path = site
        .config
        .dev_dir
        .join(DRIVER)
        .join(format!("channel{number}"));
    if let Ok(Some(device)) = char_device(&path) {
        return Ok(Some(Channel {
            number,
            device,
            path,
            stands: true,
        }));
    }
    let device = match char_device(&path.with_file_name("channel0")) {
        Ok(Some(first)) => Some(DeviceNumber {
            major: first.major,
            minor: first.minor + number,
        }),
        _ => char_major(DRIVER)?.map(|major| DeviceNumber {
            major,
            minor: number,
        }),
    };
    Ok(device.map(|device| Channel {
        number,
        device,
        path,
        stands: false,
    }))
}

impl Channel {
    /// What the job sees of it.
    pub fn variables(&self) -> [String; 2] {
        ["NVIDIA_IMEX_CHANNELS", "GSUB_IMEX_CHANNEL"].map(|name| format!("{name}={}", self.number))
    }

    /// Its file, and where a container has it.
    pub fn place(&self) -> (String, String) {
        let name = self.path.file_name().unwrap_or_default();
        let inside = Path::new("/dev").join(DRIVER).join(name);
        (
            self.path.display().to_string(),
            inside.display().to_string(),
        )
    }

    /// The file that goes with the run; empty for one that stands.
    pub fn made(&self) -> String {
        if self.stands {
            String::new()
        } else {
            self.path.display().to_string()
        }
    }

    /// Makes the file where there is none, for the run's user alone; what to log of it.
    pub fn make(&self, user: &User) -> Result<String> {
        if !self.stands {
            let make = || {
                fs::create_dir_all(self.path.parent().unwrap_or(Path::new("/")))?;
                remove_char_device(&self.path)?;
                make_char_device(&self.path, self.device)?;
                fs::set_permissions(&self.path, fs::Permissions::from_mode(0o600))?;
                chown(&self.path, Some(user.uid), Some(user.gid))
            };
            make().with_context(|| format!("making {}", self.path.display()))?;
        }
        Ok(format!("IMEX channel {}", self.number))
    }
}

/// Takes away what was made for a run.
pub fn remove(site: &Site, run: RunId) -> Result<()> {
    match site.spool.setup(run) {
        Ok(Some(setup)) if !setup.imex_device.is_empty() => {
            remove_char_device(Path::new(&setup.imex_device))
                .with_context(|| format!("removing {}", setup.imex_device))
        }
        _ => Ok(()),
    }
}
