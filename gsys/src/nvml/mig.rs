//! MIG as the driver tells it: what a GPU can be cut into, how it is cut, and the capability minors that open each part.
//! Reads only; `change` cuts. Source: NVIDIA's MIG user guide and NVML API reference.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::ptr::null_mut;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError as Answer;
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_PROFILE_COUNT,
    NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1 as ONE_SLICE_WITH_ENGINES,
    NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1 as TWO_SLICES_WITH_ENGINES,
    NVML_GPU_INSTANCE_PROFILE_COUNT, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t,
};

use super::answer::{check, if_offered, struct_version};
use super::facts::{MigDevice, MigInstance, MigLayout, MigProfile, nominal_memory_mib};
use super::usage::memory;

/// Which minors of nvidia-caps open what, from `/proc/driver/nvidia-caps/mig-minors`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapMinors(BTreeMap<String, u32>);

impl CapMinors {
    /// Where the driver tells it.
    pub const PATH: &str = "/proc/driver/nvidia-caps/mig-minors";

    /// Reads the table; a driver without MIG has none, which is an empty one.
    pub fn read(path: &Path) -> CapMinors {
        CapMinors::parse(&fs::read_to_string(path).unwrap_or_default())
    }

    fn parse(text: &str) -> CapMinors {
        let row = |line: &str| {
            let (name, minor) = line.split_once(' ')?;
            Some((name.to_owned(), minor.trim().parse().ok()?))
        };
        CapMinors(text.lines().filter_map(row).collect())
    }

    /// Minors of `/dev/nvidia-caps/nvidia-capN` that a process in this compute instance has to open: of the GPU instance and of
    /// the compute instance. `gpu_minor` is the N of `/dev/nvidiaN`.
    pub fn of_device(
        &self,
        gpu_minor: u32,
        gpu_instance_id: u32,
        compute_instance_id: u32,
    ) -> Option<[u32; 2]> {
        let instance = format!("gpu{gpu_minor}/gi{gpu_instance_id}");
        let minor = |name: String| self.0.get(&name).copied();
        Some([
            minor(format!("{instance}/access"))?,
            minor(format!("{instance}/ci{compute_instance_id}/access"))?,
        ])
    }

    /// Minors of all GPU instances there can be and of the first compute instance in each.
    pub fn of_whole_instances(&self) -> impl Iterator<Item = u32> + '_ {
        let whole = |name: &&String| !name.contains("/ci") || name.contains("/ci0/");
        self.0
            .iter()
            .filter(move |(name, _)| whole(name))
            .map(|(_, minor)| *minor)
    }

    /// Minors that let a process change the layout and watch all instances: for administrators only.
    pub fn administrative(&self) -> impl Iterator<Item = u32> + '_ {
        ["config", "monitor"]
            .into_iter()
            .filter_map(|name| self.0.get(name).copied())
    }
}

/// The layout now; `profiles` are those read before, which never change. `None` where the board has no MIG.
pub fn read_layout(
    device: &Device<'_>,
    profiles: &[MigProfile],
) -> Result<Option<MigLayout>, Answer> {
    let Some(mode) = if_offered(device.mig_mode())? else {
        return Ok(None);
    };
    let enabled = mode.current != 0;
    let mut layout = MigLayout {
        enabled,
        pending: (mode.pending != mode.current).then_some(mode.pending != 0),
        profiles: profiles.to_vec(),
        instances: Vec::new(),
    };
    if enabled {
        for profile in profiles {
            for handle in instance_handles(device, profile)? {
                // One that was destroyed between the two calls is simply not there.
                if let Some(info) = if_offered(instance_info(device, handle))? {
                    layout.instances.push(instance(profile, &info));
                }
            }
        }
        add_devices(device, &mut layout.instances)?;
    }
    layout
        .instances
        .sort_by_key(|instance| (instance.start, instance.id));
    Ok(Some(layout))
}

/// The kinds a GPU can be cut into, smallest first; none where the board has no MIG.
pub fn read_profiles(device: &Device<'_>) -> Result<Vec<MigProfile>, Answer> {
    let mut profiles = Vec::new();
    let mut has_no_names = false;
    for kind in 0..NVML_GPU_INSTANCE_PROFILE_COUNT {
        let Some(told) = profile_of_kind(device, kind)? else {
            continue;
        };
        let places = placements(device, told.id)?;
        let name = profile_name(&told.name);
        has_no_names |= name.is_empty();
        profiles.push(MigProfile {
            // Without a name, what it ends with: the rest is known when all are.
            name: if name.is_empty() {
                more_engines(kind).to_owned()
            } else {
                name
            },
            id: told.id,
            compute_slices: told.sliceCount,
            memory_slices: places.first().map_or(0, |place| place.size),
            memory_mib: told.memorySizeMB,
            starts: places.iter().map(|place| place.start).collect(),
            max_count: told.instanceCount,
        });
    }
    if has_no_names {
        let board = memory(device)?.map_or(0, |memory| nominal_memory_mib(memory.total_bytes));
        give_names(&mut profiles, board);
    }
    profiles.sort_by_key(|profile| {
        (
            profile.compute_slices,
            profile.memory_slices,
            profile.name.len(),
        )
    });
    Ok(profiles)
}

/// What the driver tells of one kind. Those before R510 tell no name.
fn profile_of_kind(
    device: &Device<'_>,
    kind: u32,
) -> Result<Option<nvmlGpuInstanceProfileInfo_v2_t>, Answer> {
    let lib = device.nvml().lib();
    // SAFETY: all zero is a value of this structure of numbers and letters.
    let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
    if let Ok(ask) = &lib.nvmlDeviceGetGpuInstanceProfileInfoV {
        info.version = struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2);
        // SAFETY: the handle is of the library the function comes from; the version tells the size of the structure.
        match check(unsafe { ask(device.handle(), kind, &mut info) }) {
            Err(Answer::FunctionNotFound) => {}
            told => return Ok(if_offered(told)?.map(|()| info)),
        }
    }
    let Ok(ask) = &lib.nvmlDeviceGetGpuInstanceProfileInfo else {
        return Ok(None);
    };
    // SAFETY: as above; this structure is of numbers only and has one version.
    let (code, told) = unsafe {
        let mut told: nvmlGpuInstanceProfileInfo_t = std::mem::zeroed();
        (ask(device.handle(), kind, &mut told), told)
    };
    info.id = told.id;
    info.sliceCount = told.sliceCount;
    info.instanceCount = told.instanceCount;
    info.memorySizeMB = told.memorySizeMB;
    Ok(if_offered(check(code))?.map(|()| info))
}

/// What a kind's name ends with, where it has the media engines.
fn more_engines(kind: u32) -> &'static str {
    match kind {
        ONE_SLICE_WITH_ENGINES | TWO_SLICES_WITH_ENGINES => "+me",
        _ => "",
    }
}

/// Names as newer drivers tell them: the compute slices, and the part of the board's memory.
fn give_names(profiles: &mut [MigProfile], board_mib: u64) {
    let whole = profiles
        .iter()
        .map(|profile| profile.memory_slices)
        .max()
        .unwrap_or(0)
        .max(1);
    for profile in profiles {
        let mib = board_mib * u64::from(profile.memory_slices) / u64::from(whole);
        let gigabytes = (mib + 512) / 1024;
        profile.name = format!("{}g.{gigabytes}gb{}", profile.compute_slices, profile.name);
    }
}

/// `MIG 1g.10gb+me` without the first word. Some drivers write attributes with dots.
fn profile_name(name: &[std::ffi::c_char]) -> String {
    let bytes = name.iter().take_while(|&&letter| letter != 0);
    let text: String = bytes.map(|&letter| char::from(letter as u8)).collect();
    text.trim_start_matches("MIG ").to_lowercase()
}

/// The wrapper's own call (0.13) never tells any.
fn placements(
    device: &Device<'_>,
    profile_id: u32,
) -> Result<Vec<nvmlGpuInstancePlacement_t>, Answer> {
    let lib = device.nvml().lib();
    let Ok(ask) = &lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2 else {
        return older_placements(device, profile_id);
    };
    let mut count = 0;
    // SAFETY: the handle is of the library the function comes from; a null array asks for the count.
    let code = unsafe { ask(device.handle(), profile_id, null_mut(), &mut count) };
    match check(code) {
        Err(Answer::FunctionNotFound) => return older_placements(device, profile_id),
        told => {
            if if_offered(told)?.is_none() {
                return Ok(Vec::new());
            }
        }
    }
    let mut places = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; count as usize];
    // SAFETY: as above, with an array of the length that is told.
    let code = unsafe { ask(device.handle(), profile_id, places.as_mut_ptr(), &mut count) };
    check(code)?;
    places.truncate(count as usize);
    Ok(places)
}

/// Drivers before R470 do not tell how many there will be: there is room for more than any board has memory slices.
fn older_placements(
    device: &Device<'_>,
    profile_id: u32,
) -> Result<Vec<nvmlGpuInstancePlacement_t>, Answer> {
    let Ok(ask) = &device
        .nvml()
        .lib()
        .nvmlDeviceGetGpuInstancePossiblePlacements
    else {
        return Ok(Vec::new());
    };
    let mut places = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; 64];
    let mut count = 64;
    // SAFETY: the handle is of the library the function comes from, and there are at most eight places on any board.
    let code = unsafe { ask(device.handle(), profile_id, places.as_mut_ptr(), &mut count) };
    places.truncate(if_offered(check(code))?.map_or(0, |()| count as usize));
    Ok(places)
}

fn instance_handles(
    device: &Device<'_>,
    profile: &MigProfile,
) -> Result<Vec<nvmlGpuInstance_t>, Answer> {
    let Ok(ask) = &device.nvml().lib().nvmlDeviceGetGpuInstances else {
        return Ok(Vec::new());
    };
    let mut count = profile.max_count;
    let mut handles = vec![null_mut(); profile.max_count as usize];
    // SAFETY: the handle is of the library the function comes from, and by NVML's contract the array has room for as many
    // instances as the profile allows.
    let code = unsafe {
        ask(
            device.handle(),
            profile.id,
            handles.as_mut_ptr(),
            &mut count,
        )
    };
    if if_offered(check(code))?.is_none() {
        return Ok(Vec::new());
    }
    handles.truncate(count as usize);
    Ok(handles)
}

pub fn instance_info(
    device: &Device<'_>,
    instance: nvmlGpuInstance_t,
) -> Result<nvmlGpuInstanceInfo_t, Answer> {
    let Ok(ask) = &device.nvml().lib().nvmlGpuInstanceGetInfo else {
        return Err(Answer::FunctionNotFound);
    };
    // SAFETY: all zero is a value of this structure of numbers and a pointer; the instance's handle is of this library.
    let (code, info) = unsafe {
        let mut info = std::mem::zeroed();
        (ask(instance, &mut info), info)
    };
    check(code).map(|()| info)
}

fn instance(profile: &MigProfile, info: &nvmlGpuInstanceInfo_t) -> MigInstance {
    MigInstance {
        id: info.id,
        profile_id: info.profileId,
        profile: profile.name.clone(),
        start: info.placement.start,
        memory_slices: info.placement.size,
        compute_slices: profile.compute_slices,
        memory_mib: profile.memory_mib,
        devices: Vec::new(),
    }
}

/// Each MIG device into its GPU instance.
fn add_devices(device: &Device<'_>, instances: &mut [MigInstance]) -> Result<(), Answer> {
    let most = if_offered(device.mig_device_count())?.unwrap_or(0);
    for index in 0..most {
        let Some(part) = if_offered(device.mig_device_by_index(index))? else {
            continue;
        };
        let told = part_ids(&part).and_then(|ids| Ok((ids, part.uuid()?, part.attributes()?)));
        let Some(([instance_id, compute_id], uuid, attributes)) = if_offered(told)? else {
            continue;
        };
        let mut instances = instances.iter_mut();
        if let Some(instance) = instances.find(|instance| instance.id == instance_id) {
            instance.devices.push(MigDevice {
                uuid,
                compute_instance_id: compute_id,
                compute_slices: attributes.compute_instance_slice_count,
            });
        }
    }
    for instance in instances {
        instance
            .devices
            .sort_by_key(|device| device.compute_instance_id);
    }
    Ok(())
}

/// GPU instance and compute instance of a MIG device.
fn part_ids(part: &Device<'_>) -> Result<[u32; 2], Answer> {
    let lib = part.nvml().lib();
    let (Ok(instance), Ok(compute)) = (
        &lib.nvmlDeviceGetGpuInstanceId,
        &lib.nvmlDeviceGetComputeInstanceId,
    ) else {
        return Err(Answer::FunctionNotFound);
    };
    let mut ids = [0; 2];
    // SAFETY: the handle is of the library the functions come from, and the pointers are to live integers of NVML's type.
    unsafe {
        check(instance(part.handle(), &mut ids[0]))?;
        check(compute(part.handle(), &mut ids[1]))?;
    }
    Ok(ids)
}

/// Compute instance profiles are numbered by their sizes; the one with so many slices.
pub fn compute_profile(slices: u32) -> Option<u32> {
    const SLICES: [u32; 7] = [1, 2, 3, 4, 7, 8, 6];
    let position = SLICES.iter().position(|&size| size == slices)?;
    u32::try_from(position)
        .ok()
        .filter(|&id| id < NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_minors_are_found_by_the_gpus_minor_and_the_instances_ids() {
        let text = "config 1\nmonitor 2\ngpu4/gi1/access 552\ngpu4/gi1/ci0/access 553\nnonsense\n";
        let minors = CapMinors::parse(text);
        assert_eq!(minors.of_device(4, 1, 0), Some([552, 553]));
        assert_eq!(minors.of_device(4, 1, 1), None);
        assert_eq!(minors.administrative().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(
            CapMinors::read(Path::new("/nonexistent")),
            CapMinors::default()
        );
    }

    #[test]
    fn profile_names_are_as_requests_write_them() {
        let letters = |text: &str| {
            text.bytes()
                .chain([0])
                .map(|byte| byte as std::ffi::c_char)
                .collect::<Vec<_>>()
        };
        assert_eq!(profile_name(&letters("MIG 1g.10gb+me")), "1g.10gb+me");
        assert_eq!(profile_name(&letters("7g.80gb")), "7g.80gb");
    }

    #[test]
    fn a_driver_that_tells_no_names_has_its_profiles_named_as_newer_ones_name_them() {
        let profile = |compute_slices, memory_slices, ending: &str| MigProfile {
            name: ending.to_owned(),
            id: 0,
            compute_slices,
            memory_slices,
            memory_mib: 0,
            starts: Vec::new(),
            max_count: 1,
        };
        let names = |board_mib: u64, kinds: &[(u32, u32, &str)]| {
            let mut profiles: Vec<MigProfile> = kinds
                .iter()
                .map(|kind| profile(kind.0, kind.1, kind.2))
                .collect();
            give_names(&mut profiles, board_mib);
            profiles
                .into_iter()
                .map(|profile| profile.name)
                .collect::<Vec<_>>()
                .join(" ")
        };
        let a100 = [
            (1, 1, ""),
            (1, 1, "+me"),
            (2, 2, ""),
            (3, 4, ""),
            (4, 4, ""),
            (7, 8, ""),
        ];
        assert_eq!(
            names(40 << 10, &a100),
            "1g.5gb 1g.5gb+me 2g.10gb 3g.20gb 4g.20gb 7g.40gb"
        );
        assert_eq!(
            names(80 << 10, &a100),
            "1g.10gb 1g.10gb+me 2g.20gb 3g.40gb 4g.40gb 7g.80gb"
        );
        assert_eq!(
            names(
                24 << 10,
                &[(1, 1, ""), (2, 2, ""), (2, 2, "+me"), (4, 4, "")]
            ),
            "1g.6gb 2g.12gb 2g.12gb+me 4g.24gb"
        );
    }
}
