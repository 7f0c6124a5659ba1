//! MIG slices of this node: entries of the inventory, the device files that lead to each slice, its use, and the runs that hold it.
//! Changes no GPU; `mig_cut` does.

use crate::config::Config;
use crate::spool::Spool;
use anyhow::{Context, Result};
use gmodel::RunId;
use gmodel::mig::{MigBoard, MigKind};
use gmodel::node::{GpuInfo, MigSlice};
use gmodel::supervise::RunGpu;
use gsys::device_fence::{DeviceNumber, char_major};
use gsys::device_node::char_device;
use gsys::nvml::{CapMinors, GpuFacts, GpuUse, MigDevice, MigInstance, MigProfile};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A GPU, or a slice of one, that a run is given.
#[derive(Clone, Debug)]
pub struct GrantedGpu {
    /// `GPU-...` or `MIG-...`.
    pub uuid: String,
    pub gpu: GpuFacts,
    /// Ids of the GPU instance and of the compute instance.
    pub slice: Option<(u32, u32)>,
    /// Of the slice; empty for a whole GPU.
    pub profile: String,
}

impl GrantedGpu {
    /// As gpud finds it again when the run ends.
    pub fn setup(&self, device: String) -> RunGpu {
        let gpu = self
            .slice
            .map_or_else(String::new, |_| self.gpu.uuid.clone());
        RunGpu {
            uuid: self.uuid.clone(),
            index: self.gpu.index,
            device,
            gpu,
            ..RunGpu::default()
        }
    }
}

/// The GPU or slice of this UUID.
pub fn find(facts: &[GpuFacts], uuid: &str) -> Option<GrantedGpu> {
    facts.iter().find_map(|gpu| {
        if gpu.uuid == uuid {
            return Some(GrantedGpu {
                uuid: uuid.to_owned(),
                gpu: gpu.clone(),
                slice: None,
                profile: String::new(),
            });
        }
        let (instance, device) = offered(gpu).find(|(_, device)| device.uuid == uuid)?;
        let slice = Some((instance.id, device.compute_instance_id));
        Some(GrantedGpu {
            uuid: uuid.to_owned(),
            gpu: gpu.clone(),
            slice,
            profile: instance.profile.clone(),
        })
    })
}

/// The GPU that this is, or that it is a slice of.
pub fn board<'a>(facts: &'a [GpuFacts], uuid: &str) -> Option<&'a str> {
    let is_it =
        |gpu: &&GpuFacts| gpu.uuid == uuid || offered(gpu).any(|(_, device)| device.uuid == uuid);
    facts.iter().find(is_it).map(|gpu| gpu.uuid.as_str())
}

/// Slices that jobs can get: instances with one device that fills the instance. Others are unfinished, or an administrator's own.
fn offered(gpu: &GpuFacts) -> impl Iterator<Item = (&MigInstance, &MigDevice)> {
    let instances = gpu
        .mig
        .iter()
        .filter(|_| gpu.mig_enabled)
        .flat_map(|layout| &layout.instances);
    instances.filter_map(|instance| match &instance.devices[..] {
        [device] if device.compute_slices == instance.compute_slices => Some((instance, device)),
        _ => None,
    })
}

/// A GPU's slices as entries of the inventory. A fault of the GPU is a fault of each slice.
pub fn slices(gpu: &GpuFacts, whole: &GpuInfo) -> Vec<GpuInfo> {
    let entry = |(instance, device): (&MigInstance, &MigDevice)| GpuInfo {
        uuid: device.uuid.clone(),
        memory_mib: nominal_mib(&instance.profile, instance.memory_mib),
        nvlink_island: None,
        divided: false,
        // How a GPU stands is said once.
        notes: Vec::new(),
        wants: String::new(),
        standing: None,
        slice: Some(MigSlice {
            gpu: gpu.uuid.clone(),
            profile: instance.profile.clone(),
            placement: instance.start as u8,
            compute_slices: instance.compute_slices as u8,
            memory_slices: instance.memory_slices as u8,
        }),
        ..whole.clone()
    };
    offered(gpu).map(entry).collect()
}

/// What the GPUs of this node can be cut into, each kind of board once.
pub fn boards(facts: &[GpuFacts]) -> Vec<MigBoard> {
    let mut boards: Vec<MigBoard> = Vec::new();
    for gpu in facts {
        let Some(layout) = &gpu.mig else { continue };
        // Without the profiles' placements, for which some drivers want more rights, nothing can be cut.
        let kinds: Vec<MigKind> = layout
            .profiles
            .iter()
            .filter(|profile| !profile.starts.is_empty())
            .map(kind)
            .collect();
        if !kinds.is_empty()
            && !boards.iter().any(|board| {
                board.gpu_type == gpu.gpu_type && board.memory_mib == gpu.nominal_memory_mib
            })
        {
            boards.push(MigBoard {
                gpu_type: gpu.gpu_type.clone(),
                memory_mib: gpu.nominal_memory_mib,
                kinds,
            });
        }
    }
    boards
}

pub fn kind(profile: &MigProfile) -> MigKind {
    MigKind {
        profile: profile.name.clone(),
        compute_slices: profile.compute_slices as u8,
        memory_slices: profile.memory_slices as u8,
        memory_mib: nominal_mib(&profile.name, profile.memory_mib),
        starts: profile.starts.iter().map(|start| *start as u8).collect(),
        most: profile.max_count as u8,
    }
}

/// The size in the profile's name, as with whole GPUs, unless the driver keeps more than a tenth of it for itself.
fn nominal_mib(profile: &str, told_mib: u64) -> u64 {
    let named = profile
        .split(['.', '+', '-'])
        .find_map(|word| word.strip_suffix("gb")?.parse::<u64>().ok());
    named
        .map(|gib| gib << 10)
        .filter(|named| told_mib * 10 >= named * 9)
        .unwrap_or(told_mib)
}

/// Capability files that a process in a slice opens besides the GPU's: of its GPU instance and its compute instance. The fence denies
/// both to all other runs.
pub fn caps(config: &Config, own: &GrantedGpu) -> Result<Vec<DeviceNumber>> {
    let minors = cap_minors(config, own)?.into_iter();
    minors
        .map(|minor| cap_device(&config.dev_dir, minor))
        .collect()
}

/// The paths of these files.
pub fn cap_paths(config: &Config, own: &GrantedGpu) -> Vec<PathBuf> {
    let minors = cap_minors(config, own).unwrap_or_default().into_iter();
    minors
        .map(|minor| cap_path(&config.dev_dir, minor))
        .collect()
}

fn cap_path(dev_dir: &Path, minor: u32) -> PathBuf {
    dev_dir.join(format!("nvidia-caps/nvidia-cap{minor}"))
}

fn cap_minors(config: &Config, own: &GrantedGpu) -> Result<Vec<u32>> {
    let Some((instance, compute)) = own.slice else {
        return Ok(Vec::new());
    };
    let table = minors_path(config.nvml_lib.as_deref());
    let minors = CapMinors::read(&table).of_device(own.gpu.minor, instance, compute);
    let minors = minors.with_context(|| {
        format!(
            "{} does not name GPU instance {instance} of gpu{}",
            table.display(),
            own.gpu.minor
        )
    })?;
    Ok(minors.into_iter().collect())
}

/// The driver makes the file when it is first asked for, so it may not be there yet.
fn cap_device(dev_dir: &Path, minor: u32) -> Result<DeviceNumber> {
    let path = cap_path(dev_dir, minor);
    if let Ok(Some(device)) = char_device(&path) {
        return Ok(device);
    }
    let major = char_major("nvidia-caps")?;
    Ok(DeviceNumber {
        major: major.with_context(|| format!("{} is missing", path.display()))?,
        minor,
    })
}

/// Beside a library that is not the driver's own, for simulated GPUs; else where the driver tells.
fn minors_path(library: Option<&Path>) -> PathBuf {
    let beside = library
        .and_then(Path::parent)
        .map(|dir| dir.join("nvidia-caps/mig-minors"));
    beside
        .filter(|path| path.exists())
        .unwrap_or_else(|| CapMinors::PATH.into())
}

/// A sample of each slice beside those of the GPUs, under its own UUID: its own use, and its part of the GPU's energy.
pub fn with_slices(mut samples: Vec<GpuUse>, facts: &[GpuFacts]) -> Vec<GpuUse> {
    let mut slices = Vec::new();
    for gpu in facts.iter().filter(|gpu| gpu.mig_enabled) {
        let Some(sample) = samples
            .iter()
            .find(|sample| sample.uuid.as_ref() == Some(&gpu.uuid))
        else {
            continue;
        };
        for info in self::slices(gpu, &GpuInfo::default()) {
            let Some(own) = find(std::slice::from_ref(gpu), &info.uuid) else {
                continue;
            };
            let milli = u64::from(info.part().milli());
            let instance = own.slice.map(|(instance, _)| instance);
            let used = sample
                .instances
                .iter()
                .find(|one| Some(one.gpu_instance_id) == instance);
            slices.push(GpuUse {
                index: sample.index,
                uuid: Some(info.uuid),
                fault: sample.fault.clone(),
                sm_percent: used.and_then(|used| used.sm_percent),
                memory_percent: used.and_then(|used| used.memory_percent),
                temperature_c: sample.temperature_c,
                power_mw: sample
                    .power_mw
                    .map(|mw| (u64::from(mw) * milli / 1000) as u32),
                energy_mj: sample.energy_mj.map(|mj| mj / 1000 * milli),
                processes: sample
                    .processes
                    .iter()
                    .filter(|process| process.gpu_instance_id == instance)
                    .cloned()
                    .collect(),
                ..GpuUse::default()
            });
        }
    }
    samples.append(&mut slices);
    samples
}

/// Which live runs hold a GPU or something of it, by its own UUID and by its slices'.
pub fn holders(spool: &Spool) -> BTreeMap<String, BTreeSet<RunId>> {
    let mut held: BTreeMap<String, BTreeSet<RunId>> = BTreeMap::new();
    for run in spool.live() {
        let Ok(Some(setup)) = spool.setup(run) else {
            continue;
        };
        for gpu in &setup.gpus {
            for uuid in [&gpu.uuid, &gpu.gpu]
                .into_iter()
                .filter(|uuid| !uuid.is_empty())
            {
                held.entry(uuid.clone()).or_default().insert(run);
            }
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_has_the_size_in_its_name_unless_much_of_it_is_the_drivers() {
        assert_eq!(nominal_mib("1g.10gb", 9_728), 10_240);
        assert_eq!(nominal_mib("1g.10gb+me", 9_728), 10_240);
        assert_eq!(nominal_mib("1c.3g.40gb", 40_192), 40_960);
        assert_eq!(nominal_mib("1g.18gb", 16_384), 16_384);
        assert_eq!(nominal_mib("odd", 5), 5);
    }
}
