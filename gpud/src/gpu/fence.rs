//! The device rules of a run's fence: the device files of its GPUs and slices, and the control devices that each run with a
//! GPU needs. Attaches nothing.

use crate::gpu::mig::{self, GrantedGpu};
use crate::run::failure::Failure;
use crate::site::Site;
use gsys::device_fence::{DeviceNumber, DeviceRule, FenceRules, NodeDevices};
use gsys::nvml::device_node;

/// The rules for these GPUs and slices, as the node's GPUs are now.
pub fn fence_rules(site: &Site, own: &[GrantedGpu]) -> Result<FenceRules, Failure> {
    let here = site.gpus.current();
    let mut devices =
        NodeDevices::detect(here.nodes.values().cloned().collect()).map_err(Failure::node)?;
    devices.control.extend(
        here.control
            .iter()
            .filter(|control| !devices.control.contains(control))
            .copied()
            .collect::<Vec<_>>(),
    );
    let device = |own: &GrantedGpu| {
        let gpu = &own.gpu;
        let path = device_node(&site.config.dev_dir, gpu);
        let found = here.nodes.get(&gpu.uuid).map(|node| node.device);
        found.ok_or_else(|| {
            Failure::gpu(
                &gpu.uuid,
                format!(
                    "GPU {}: its device file {} is missing",
                    gpu.uuid,
                    path.display()
                ),
            )
        })
    };
    let mut owned: Vec<DeviceNumber> = own.iter().map(device).collect::<Result<_, _>>()?;
    owned.sort_unstable();
    owned.dedup();
    let caps = own
        .iter()
        .map(|own| mig::caps(&site.config, own))
        .collect::<anyhow::Result<Vec<_>>>()
        .map_err(Failure::node)?
        .concat();
    // A slice leads to its part of the GPU by its capabilities alone; the render nodes lead to all of it.
    let divided: Vec<DeviceNumber> = own
        .iter()
        .filter(|own| own.slice.is_some())
        .map(device)
        .collect::<Result<_, _>>()?;
    let mut deny = site.config.devices.deny_extra.clone();
    for gpu in devices
        .gpus
        .iter_mut()
        .filter(|gpu| divided.contains(&gpu.device))
    {
        deny.extend(gpu.render.drain(..).map(DeviceRule::from));
    }
    Ok(devices.rules_for_run(&owned, &caps, &deny, site.config.devices.default_deny))
}
