//! The rules of a fence: allowed and denied character devices. Also the rules of a run from the node's GPU device nodes. Knows no GPU
//! library: the caller gives the minors (NVML's `minor_number`, not the index).

use std::collections::BTreeSet;
use std::path::Path;

use super::fence::FenceError;
use crate::cgroup::read_proc;

/// One character device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

/// One character device, or all of a major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceRule {
    pub major: u32,
    pub minor: Option<u32>,
}

/// The fence of one run. Looked at in this order: `allow` wins, then `deny`, then the default. What is denied can be
/// neither opened nor made with mknod; what is allowed is still subject to file permissions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceRules {
    pub allow: Vec<DeviceRule>,
    pub deny: Vec<DeviceRule>,
    /// Deny what no rule names, block devices included (`devices.default = "deny"`).
    pub default_deny: bool,
}

/// A GPU of the node and the device nodes that lead to it and to no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuNode {
    /// Such as /dev/nvidia3: major 195, NVML's minor number.
    pub device: DeviceNumber,
    /// DRI nodes of the same card (/dev/dri/card1, /dev/dri/renderD128).
    pub render: Vec<DeviceNumber>,
}

/// Everything on a node that leads to a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDevices {
    pub gpus: Vec<GpuNode>,
    /// Needed by any run that holds a GPU and by no other: nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-modeset, kfd.
    pub control: Vec<DeviceNumber>,
    /// Majors of which a run sees only what it is given by number: nvidia-caps, nvidia-caps-imex-channels.
    pub capability_majors: Vec<u32>,
}

impl NodeDevices {
    /// The fence of a run that owns the GPUs at these device numbers, and of `nvidia-caps` and IMEX channels those in
    /// `caps`. A run that owns no GPU is given no control node either. `deny_extra` is the site's list; it never takes a
    /// run's own GPU away.
    pub fn rules_for_run(
        &self,
        owned: &[DeviceNumber],
        caps: &[DeviceNumber],
        deny_extra: &[DeviceRule],
        default_deny: bool,
    ) -> FenceRules {
        let (own, foreign): (Vec<&GpuNode>, Vec<&GpuNode>) =
            self.gpus.iter().partition(|g| owned.contains(&g.device));
        // Whole majors are denied, so that a GPU which appears after the start is foreign too.
        let majors = self.gpus.iter().map(|g| g.device.major);
        let majors: BTreeSet<u32> = majors
            .chain(self.control_majors())
            .chain(self.capability_majors.iter().copied())
            .collect();
        let mut deny: Vec<DeviceRule> = majors
            .into_iter()
            .map(|major| DeviceRule { major, minor: None })
            .collect();
        deny.extend(self.shared_major_control().map(DeviceRule::from));
        deny.extend(
            foreign
                .iter()
                .flat_map(|g| &g.render)
                .copied()
                .map(DeviceRule::from),
        );
        deny.extend(deny_extra);

        let mut allow: Vec<DeviceRule> = owned.iter().copied().map(DeviceRule::from).collect();
        if !owned.is_empty() {
            allow.extend(
                own.iter()
                    .flat_map(|g| &g.render)
                    .copied()
                    .map(DeviceRule::from),
            );
            allow.extend(self.control.iter().copied().map(DeviceRule::from));
            allow.extend(caps.iter().copied().map(DeviceRule::from));
        }
        if default_deny {
            allow.extend(ORDINARY_DEVICES);
        }
        FenceRules {
            allow,
            deny,
            default_deny,
        }
    }

    /// Finds the majors of the control and capability nodes that this machine's drivers have registered; `gpus` come
    /// from the caller. A driver that is not loaded has no nodes to deny.
    pub fn detect(gpus: Vec<GpuNode>) -> Result<NodeDevices, FenceError> {
        let registered = read_proc_devices()?;
        let mut devices = NodeDevices {
            gpus,
            ..NodeDevices::default()
        };
        if devices
            .gpus
            .iter()
            .any(|gpu| gpu.device.major == NVIDIA_MAJOR)
        {
            // nvidia-modeset and nvidiactl: fixed numbers, under driver names that have changed over the years.
            let major = NVIDIA_MAJOR;
            devices
                .control
                .extend([254, 255].map(|minor| DeviceNumber { major, minor }));
        }
        for (name, minors) in [("nvidia-uvm", &[0, 1][..]), ("kfd", &[0])] {
            if let Some(major) = major_in(&registered, name) {
                let numbers = minors.iter().map(|minor| DeviceNumber {
                    major,
                    minor: *minor,
                });
                devices.control.extend(numbers);
            }
        }
        for name in [
            "nvidia-caps",
            "nvidia-caps-imex-channels",
            "nvidia-nvswitch",
        ] {
            devices
                .capability_majors
                .extend(major_in(&registered, name));
        }
        Ok(devices)
    }

    fn control_majors(&self) -> impl Iterator<Item = u32> {
        self.control
            .iter()
            .map(|d| d.major)
            .filter(|major| !SHARED_MAJORS.contains(major))
    }

    fn shared_major_control(&self) -> impl Iterator<Item = DeviceNumber> {
        self.control
            .iter()
            .copied()
            .filter(|d| SHARED_MAJORS.contains(&d.major))
    }
}

/// The major of /dev/nvidia0 and its like, assigned in Documentation/admin-guide/devices.txt.
const NVIDIA_MAJOR: u32 = 195;

/// Majors that unrelated drivers share (misc, DRI): of these only named minors are ever denied.
const SHARED_MAJORS: [u32; 2] = [10, 226];

/// What any program needs under `devices.default = "deny"`: null, zero, full, random, urandom, the
/// controlling terminal, ptmx and the pts majors. Site devices (InfiniBand, FUSE) are the site's to allow.
const ORDINARY_DEVICES: [DeviceRule; 9] = [
    DeviceRule {
        major: 1,
        minor: Some(3),
    },
    DeviceRule {
        major: 1,
        minor: Some(5),
    },
    DeviceRule {
        major: 1,
        minor: Some(7),
    },
    DeviceRule {
        major: 1,
        minor: Some(8),
    },
    DeviceRule {
        major: 1,
        minor: Some(9),
    },
    DeviceRule {
        major: 5,
        minor: Some(0),
    },
    DeviceRule {
        major: 5,
        minor: Some(2),
    },
    DeviceRule {
        major: 136,
        minor: None,
    },
    DeviceRule {
        major: 137,
        minor: None,
    },
];

impl FenceRules {
    /// What the fence answers for a character device; the program and the v1 lists say the same.
    pub fn permits(&self, device: DeviceNumber) -> bool {
        let names = |rule: &DeviceRule| {
            rule.major == device.major && rule.minor.is_none_or(|m| m == device.minor)
        };
        match () {
            _ if self.allow.iter().any(names) => true,
            _ if self.deny.iter().any(names) => false,
            _ => !self.default_deny,
        }
    }
}

impl From<DeviceNumber> for DeviceRule {
    fn from(device: DeviceNumber) -> DeviceRule {
        DeviceRule {
            major: device.major,
            minor: Some(device.minor),
        }
    }
}

/// The major that a character driver has registered in /proc/devices under exactly this name.
pub fn char_major(name: &str) -> Result<Option<u32>, FenceError> {
    Ok(major_in(&read_proc_devices()?, name))
}

fn read_proc_devices() -> Result<String, FenceError> {
    let path = Path::new("/proc/devices");
    read_proc(path).map_err(|e| FenceError::at("reading", path, e))
}

fn major_in(proc_devices: &str, name: &str) -> Option<u32> {
    char_majors(proc_devices)
        .find(|(_, driver)| *driver == name)
        .map(|(major, _)| major)
}

/// The character section of /proc/devices, which the block section follows.
pub(crate) fn char_majors(proc_devices: &str) -> impl Iterator<Item = (u32, &str)> {
    let lines = proc_devices
        .lines()
        .skip_while(|l| !l.starts_with("Character"))
        .take_while(|l| !l.starts_with("Block"));
    lines.filter_map(|line| {
        let (major, name) = line.trim().split_once(' ')?;
        Some((major.parse().ok()?, name.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(major: u32, minor: u32) -> DeviceNumber {
        DeviceNumber { major, minor }
    }

    fn node_of_four() -> NodeDevices {
        let gpu = |i: u32| GpuNode {
            device: device(195, i),
            render: vec![device(226, i), device(226, 128 + i)],
        };
        NodeDevices {
            gpus: (0..4).map(gpu).collect(),
            control: vec![
                device(195, 255),
                device(508, 0),
                device(508, 1),
                device(10, 99),
            ],
            capability_majors: vec![510],
        }
    }

    #[test]
    fn a_run_sees_its_gpus_and_no_other() {
        let rules = node_of_four().rules_for_run(&[device(195, 2)], &[device(510, 7)], &[], false);
        let permits = |major, minor| rules.permits(device(major, minor));
        assert!(
            permits(195, 2) && permits(226, 130) && permits(226, 2),
            "its own"
        );
        assert!(
            permits(195, 255) && permits(508, 0) && permits(10, 99),
            "control nodes"
        );
        assert!(permits(510, 7) && !permits(510, 8), "only its capability");
        assert!(
            !permits(195, 0) && !permits(195, 77),
            "foreign, and one that is not there yet"
        );
        assert!(
            !permits(226, 128) && !permits(226, 0),
            "foreign render nodes"
        );
        assert!(
            permits(226, 200) && permits(10, 229) && permits(231, 64),
            "no GPU: left to file permissions"
        );
    }

    #[test]
    fn a_run_without_gpus_gets_no_control_node() {
        let rules = node_of_four().rules_for_run(&[], &[device(510, 7)], &[], false);
        for denied in [
            device(195, 0),
            device(195, 255),
            device(508, 0),
            device(10, 99),
            device(510, 7),
            device(226, 1),
        ] {
            assert!(!rules.permits(denied), "{denied:?}");
        }
        assert!(
            rules.permits(device(10, 229)),
            "misc is shared: only the named minor is denied"
        );
    }

    #[test]
    fn site_rules_add_to_the_fence_but_never_take_an_own_gpu() {
        let extra = [
            DeviceRule {
                major: 231,
                minor: None,
            },
            DeviceRule {
                major: 195,
                minor: Some(2),
            },
        ];
        let rules = node_of_four().rules_for_run(&[device(195, 2)], &[], &extra, false);
        assert!(!rules.permits(device(231, 5)));
        assert!(rules.permits(device(195, 2)));
    }

    #[test]
    fn default_deny_leaves_terminals_and_null() {
        let rules = node_of_four().rules_for_run(&[device(195, 1)], &[], &[], true);
        assert!(
            rules.permits(device(1, 3))
                && rules.permits(device(136, 4))
                && rules.permits(device(195, 1))
        );
        assert!(!rules.permits(device(10, 229)) && !rules.permits(device(1, 1)));
    }

    #[test]
    fn block_majors_are_not_character_majors() {
        let text = "Character devices:\n  1 mem\n195 nvidia\n510 nvidia-caps\n\nBlock devices:\n  7 loop\n";
        let majors: Vec<_> = char_majors(text).collect();
        assert_eq!(majors, [(1, "mem"), (195, "nvidia"), (510, "nvidia-caps")]);
    }
}
