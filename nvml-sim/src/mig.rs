//! MIG: which cuts a board allows, and what creating and destroying instances does to a GPU's state. Knows no C and no files.
//! Source: NVIDIA's MIG user guide (profiles, placements, the ids that `nvidia-smi mig` prints) and what those boards report;
//! memory sizes of H200 and B200 slices are close, not exact.

use crate::host_seed::mix;
use crate::state::{ComputeInstance, Gpu, GpuInstance, State};

/// A kind of GPU instance of one board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigProfile {
    /// As in requests: `1g.10gb`, `1g.10gb+me`.
    pub name: &'static str,
    /// As `nvidia-smi mig -lgip` numbers it.
    pub id: u32,
    /// `NVML_GPU_INSTANCE_PROFILE_*`.
    pub kind: u32,
    /// Compute slices, of 7.
    pub slices: u32,
    /// Memory slices, of 8.
    pub memory_slices: u32,
    /// Most of this kind on one GPU.
    pub max_count: u32,
    pub memory_mib: u64,
    pub multiprocessors: u32,
    pub copy_engines: u32,
    pub decoders: u32,
    pub jpeg_engines: u32,
    pub ofa_engines: u32,
}

/// Why the driver refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigRefusal {
    /// The board has no MIG, or its MIG mode is off.
    Off,
    /// No such profile, or not at that place.
    NoSuchProfile,
    /// Something else is where it would go.
    NoRoom,
    /// Processes or compute instances are in it.
    InUse,
    NoSuchInstance,
}

/// What became of a wish to switch MIG on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeChange {
    Done,
    /// Comes into force with the next reset: processes are on the GPU.
    Pending,
}

/// Every board has these seven kinds; name, memory and engines differ.
const KINDS: [(u32, u32, u32, u32, u32); 7] = [
    // id, kind, slices, memory slices, most
    (19, 0, 1, 1, 7),
    (20, 7, 1, 1, 1),
    (15, 9, 1, 2, 4),
    (14, 1, 2, 2, 3),
    (9, 2, 3, 4, 2),
    (5, 3, 4, 4, 1),
    (0, 4, 7, 8, 1),
];

/// Name, memory in MiB, multiprocessors, copy engines, decoders, JPEG and OFA engines, in the order of [`KINDS`].
type Row = (&'static str, u64, u32, u32, u32, u32, u32);

const A100_40: [Row; 7] = [
    ("1g.5gb", 4_864, 14, 1, 0, 0, 0),
    ("1g.5gb+me", 4_864, 14, 1, 1, 1, 1),
    ("1g.10gb", 9_856, 14, 1, 1, 0, 0),
    ("2g.10gb", 9_856, 28, 2, 1, 0, 0),
    ("3g.20gb", 19_968, 42, 3, 2, 0, 0),
    ("4g.20gb", 19_968, 56, 4, 2, 0, 0),
    ("7g.40gb", 40_192, 98, 7, 5, 1, 1),
];

const A100_80: [Row; 7] = [
    ("1g.10gb", 9_728, 14, 1, 0, 0, 0),
    ("1g.10gb+me", 9_728, 14, 1, 1, 1, 1),
    ("1g.20gb", 19_968, 14, 1, 1, 0, 0),
    ("2g.20gb", 19_968, 28, 2, 1, 0, 0),
    ("3g.40gb", 40_192, 42, 3, 2, 0, 0),
    ("4g.40gb", 40_192, 56, 4, 2, 0, 0),
    ("7g.80gb", 80_640, 98, 7, 5, 1, 1),
];

const H100_80: [Row; 7] = [
    ("1g.10gb", 9_984, 16, 1, 1, 1, 0),
    ("1g.10gb+me", 9_984, 16, 1, 1, 1, 1),
    ("1g.20gb", 20_096, 26, 1, 1, 1, 0),
    ("2g.20gb", 20_096, 32, 2, 2, 2, 0),
    ("3g.40gb", 40_448, 60, 3, 3, 3, 0),
    ("4g.40gb", 40_448, 64, 4, 4, 4, 0),
    ("7g.80gb", 81_152, 132, 8, 7, 7, 1),
];

const H200: [Row; 7] = [
    ("1g.18gb", 16_384, 16, 1, 1, 1, 0),
    ("1g.18gb+me", 16_384, 16, 1, 1, 1, 1),
    ("1g.35gb", 33_280, 26, 1, 1, 1, 0),
    ("2g.35gb", 33_280, 32, 2, 2, 2, 0),
    ("3g.71gb", 71_424, 60, 3, 3, 3, 0),
    ("4g.71gb", 71_424, 64, 4, 4, 4, 0),
    ("7g.141gb", 143_104, 132, 8, 7, 7, 1),
];

const B200: [Row; 7] = [
    ("1g.23gb", 22_528, 18, 2, 1, 1, 0),
    ("1g.23gb+me", 22_528, 18, 2, 1, 1, 1),
    ("1g.45gb", 45_056, 18, 2, 1, 1, 0),
    ("2g.45gb", 45_056, 36, 3, 1, 1, 0),
    ("3g.90gb", 90_624, 54, 6, 1, 1, 0),
    ("4g.90gb", 90_624, 72, 8, 1, 1, 0),
    ("7g.180gb", 182_272, 148, 16, 1, 1, 1),
];

/// Compute instances come in these numbers of slices; the position is `NVML_COMPUTE_INSTANCE_PROFILE_*`.
const COMPUTE_SLICES: [u32; 5] = [1, 2, 3, 4, 7];

/// The kinds a GPU can be cut into, smallest first; none where the board has no MIG.
pub fn mig_profiles(gpu: &Gpu) -> Vec<MigProfile> {
    let rows = match gpu.profile.as_str() {
        "a100-40" => &A100_40,
        "a100-80" => &A100_80,
        "h100" => &H100_80,
        "h200" => &H200,
        "b200" => &B200,
        _ => return Vec::new(),
    };
    let joined = KINDS.iter().zip(rows);
    joined
        .map(
            |(&(id, kind, slices, memory_slices, max_count), &row)| MigProfile {
                name: row.0,
                id,
                kind,
                slices,
                memory_slices,
                max_count,
                memory_mib: row.1,
                multiprocessors: row.2,
                copy_engines: row.3,
                decoders: row.4,
                jpeg_engines: row.5,
                ofa_engines: row.6,
            },
        )
        .collect()
}

impl MigProfile {
    /// First memory slices where it may begin.
    pub fn starts(&self) -> &'static [u32] {
        match (self.slices, self.memory_slices) {
            (1, 1) => &[0, 1, 2, 3, 4, 5, 6],
            (1, _) => &[0, 2, 4, 6],
            (2, _) => &[0, 2, 4],
            (3, _) => &[0, 4],
            _ => &[0],
        }
    }

    /// The same places in the order in which the driver takes them: the half that a large instance needs goes last.
    fn starts_as_taken(&self) -> &'static [u32] {
        match (self.slices, self.memory_slices) {
            (1, 1) => &[6, 4, 5, 0, 1, 2, 3],
            (1, _) => &[6, 4, 0, 2],
            (2, _) => &[4, 0, 2],
            (3, _) => &[4, 0],
            _ => &[0],
        }
    }

    /// Compute instance profile ids that fit inside, with their slices.
    pub fn compute_profiles(&self) -> Vec<(u32, u32)> {
        let fits = |slices: u32| slices <= self.slices && (slices != 3 || self.slices != 4);
        let numbered = (0..).zip(COMPUTE_SLICES);
        numbered.filter(|&(_, slices)| fits(slices)).collect()
    }

    /// First compute slices where a compute instance of so many slices may begin.
    pub fn compute_starts(&self, slices: u32) -> Vec<u32> {
        let step = if slices == 3 { 4 } else { slices };
        (0..self.slices)
            .step_by(step as usize)
            .filter(|start| start + slices <= self.slices)
            .collect()
    }
}

/// The kind with this `nvidia-smi` number.
pub fn mig_profile(gpu: &Gpu, profile_id: u32) -> Result<MigProfile, MigRefusal> {
    let mut profiles = mig_profiles(gpu).into_iter();
    profiles
        .find(|profile| profile.id == profile_id)
        .ok_or(MigRefusal::NoSuchProfile)
}

/// Where one more of this kind would find room now.
pub fn free_starts(gpu: &Gpu, profile: &MigProfile) -> Vec<u32> {
    let same = gpu
        .mig_instances
        .iter()
        .filter(|instance| instance.profile_id == profile.id);
    if same.count() >= profile.max_count as usize {
        return Vec::new();
    }
    let overlaps = |start: u32| {
        let mut others = gpu.mig_instances.iter();
        others.any(|other| {
            start < other.start + other.size && other.start < start + profile.memory_slices
        })
    };
    let starts = profile.starts_as_taken().iter().copied();
    starts.filter(|&start| !overlaps(start)).collect()
}

/// How many more of this kind could be made, one after the other.
pub fn remaining(gpu: &Gpu, profile: &MigProfile) -> u32 {
    let mut trial = gpu.clone();
    let mut count = 0;
    while create_gpu_instance(&mut trial, profile.id, None).is_ok() {
        count += 1;
    }
    count
}

/// Makes a GPU instance, at `start` or where the driver likes it best, and returns its id.
pub fn create_gpu_instance(
    gpu: &mut Gpu,
    profile_id: u32,
    start: Option<u32>,
) -> Result<u32, MigRefusal> {
    require_mig(gpu)?;
    let profile = mig_profile(gpu, profile_id)?;
    if start.is_some_and(|start| !profile.starts().contains(&start)) {
        return Err(MigRefusal::NoSuchProfile);
    }
    let free = free_starts(gpu, &profile);
    let start = match start {
        Some(start) => free.into_iter().find(|&free| free == start),
        None => free.first().copied(),
    };
    let start = start.ok_or(MigRefusal::NoRoom)?;
    let id = instance_id(start, profile.memory_slices);
    gpu.mig_instances.push(GpuInstance {
        id,
        profile_id,
        start,
        size: profile.memory_slices,
        compute: Vec::new(),
    });
    gpu.mig_instances.sort_by_key(|instance| instance.id);
    Ok(id)
}

/// Removes a GPU instance without compute instances and processes.
pub fn destroy_gpu_instance(gpu: &mut Gpu, id: u32) -> Result<(), MigRefusal> {
    let position = position_of(gpu, id)?;
    let busy = gpu
        .processes
        .iter()
        .any(|process| process.instance.is_some_and(|at| at[0] == id));
    if busy || !gpu.mig_instances[position].compute.is_empty() {
        return Err(MigRefusal::InUse);
    }
    gpu.mig_instances.remove(position);
    Ok(())
}

/// Makes a compute instance in a GPU instance and returns its id.
pub fn create_compute_instance(
    gpu: &mut Gpu,
    instance_id: u32,
    compute_profile_id: u32,
    start: Option<u32>,
) -> Result<u32, MigRefusal> {
    require_mig(gpu)?;
    let position = position_of(gpu, instance_id)?;
    let profile = mig_profile(gpu, gpu.mig_instances[position].profile_id)?;
    let size = compute_slices(&profile, compute_profile_id)?;
    let uuid_seed = gpu.uuid.clone();
    let instance = &mut gpu.mig_instances[position];
    let starts = profile.compute_starts(size);
    if start.is_some_and(|start| !starts.contains(&start)) {
        return Err(MigRefusal::NoSuchProfile);
    }
    let wanted = starts
        .into_iter()
        .filter(|&at| start.is_none_or(|start| start == at));
    let start = wanted
        .into_iter()
        .find(|&at| compute_is_free(instance, at, size))
        .ok_or(MigRefusal::NoRoom)?;
    let mut ids = 0..;
    let id = ids
        .find(|id| instance.compute.iter().all(|other| other.id != *id))
        .ok_or(MigRefusal::NoRoom)?;
    instance.compute.push(ComputeInstance {
        id,
        profile_id: compute_profile_id,
        start,
        size,
        uuid: mig_uuid(&uuid_seed, instance, id),
    });
    instance.compute.sort_by_key(|compute| compute.id);
    Ok(id)
}

/// How many more compute instances of this kind fit into a GPU instance.
pub fn remaining_compute(gpu: &Gpu, instance_id: u32, compute_profile_id: u32) -> u32 {
    let mut trial = gpu.clone();
    let mut count = 0;
    while create_compute_instance(&mut trial, instance_id, compute_profile_id, None).is_ok() {
        count += 1;
    }
    count
}

/// Removes a compute instance without processes.
pub fn destroy_compute_instance(
    gpu: &mut Gpu,
    instance_id: u32,
    id: u32,
) -> Result<(), MigRefusal> {
    let position = position_of(gpu, instance_id)?;
    let place = [instance_id, id];
    if gpu
        .processes
        .iter()
        .any(|process| process.instance == Some(place))
    {
        return Err(MigRefusal::InUse);
    }
    let compute = &mut gpu.mig_instances[position].compute;
    let before = compute.len();
    compute.retain(|other| other.id != id);
    if compute.len() == before {
        return Err(MigRefusal::NoSuchInstance);
    }
    Ok(())
}

/// Switches MIG on or off. Instances do not survive either way; a GPU that is in use changes with its next reset.
pub fn set_mode(gpu: &mut Gpu, on: bool) -> Result<ModeChange, MigRefusal> {
    if !gpu.mig_capable {
        return Err(MigRefusal::Off);
    }
    if gpu.mig_enabled == on {
        gpu.mig_pending = None;
        return Ok(ModeChange::Done);
    }
    gpu.mig_pending = Some(on);
    if !gpu.processes.is_empty() {
        return Ok(ModeChange::Pending);
    }
    activate_pending_mode(gpu);
    Ok(ModeChange::Done)
}

/// What a reset does to MIG.
pub fn activate_pending_mode(gpu: &mut Gpu) {
    if let Some(on) = gpu.mig_pending.take() {
        gpu.mig_enabled = on;
        gpu.mig_instances.clear();
    }
}

/// Cuts a GPU anew: MIG on, then these profiles in this order, each with one compute instance that fills it. All or nothing.
pub fn cut(gpu: &mut Gpu, profile_names: &[String]) -> Result<(), String> {
    let known = mig_profiles(gpu);
    let mut trial = gpu.clone();
    trial.mig_instances.clear();
    if !gpu.processes.is_empty() {
        return Err(format!(
            "{} processes are on it; a busy GPU is not cut",
            gpu.processes.len()
        ));
    }
    set_mode(&mut trial, true).map_err(|_| format!("a {} has no MIG", gpu.profile))?;
    for name in profile_names {
        let names = || {
            known
                .iter()
                .map(|profile| profile.name)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let profile = known
            .iter()
            .find(|profile| profile.name == name)
            .ok_or_else(|| {
                format!(
                    "a {} has no MIG profile {name}; there are {}",
                    gpu.profile,
                    names()
                )
            })?;
        let id = create_gpu_instance(&mut trial, profile.id, None).map_err(|_| {
            format!(
                "no room left for {name} after {} instances",
                trial.mig_instances.len()
            )
        })?;
        let whole = profile
            .compute_profiles()
            .last()
            .map_or(0, |&(compute_id, _)| compute_id);
        create_compute_instance(&mut trial, id, whole, None)
            .map_err(|refusal| format!("{name}: {refusal:?}"))?;
    }
    *gpu = trial;
    Ok(())
}

/// As the driver names the MIG device: `1g.10gb`, or `1c.3g.40gb` where it has not all of its GPU instance.
pub fn mig_device_name(profile: &MigProfile, compute: &ComputeInstance) -> String {
    if compute.size == profile.slices {
        profile.name.to_owned()
    } else {
        format!("{}c.{}", compute.size, profile.name)
    }
}

/// GPU instances that the capability files have room for, and compute instances in each.
const CAP_GPU_INSTANCES: u32 = 15;
const CAP_COMPUTE_INSTANCES: u32 = 8;

/// The text of `/proc/driver/nvidia-caps/mig-minors`: which minor of nvidia-caps opens which instance. `gpuN` is the GPU's minor.
pub fn mig_minors(state: &State) -> String {
    let mut text = String::from("config 1\nmonitor 2\n");
    let capable = state
        .gpus
        .iter()
        .filter(|gpu| gpu.mig_capable && !gpu.faults.missing);
    for gpu in capable {
        for instance in 0..CAP_GPU_INSTANCES {
            let minor = gpu_instance_cap_minor(gpu.minor, instance);
            text += &format!("gpu{}/gi{instance}/access {minor}\n", gpu.minor);
            for compute in 0..CAP_COMPUTE_INSTANCES {
                let minor = minor + 1 + compute;
                text += &format!("gpu{}/gi{instance}/ci{compute}/access {minor}\n", gpu.minor);
            }
        }
    }
    text
}

fn gpu_instance_cap_minor(gpu_minor: u32, instance: u32) -> u32 {
    3 + (gpu_minor * CAP_GPU_INSTANCES + instance) * (1 + CAP_COMPUTE_INSTANCES)
}

fn require_mig(gpu: &Gpu) -> Result<(), MigRefusal> {
    if gpu.mig_enabled {
        Ok(())
    } else {
        Err(MigRefusal::Off)
    }
}

fn position_of(gpu: &Gpu, instance_id: u32) -> Result<usize, MigRefusal> {
    let mut instances = gpu.mig_instances.iter();
    instances
        .position(|instance| instance.id == instance_id)
        .ok_or(MigRefusal::NoSuchInstance)
}

/// Numbered as a binary tree over the memory slices, as the driver does: 0 the whole, 1 and 2 the halves, 7 to 13 single slices.
fn instance_id(start: u32, memory_slices: u32) -> u32 {
    match memory_slices {
        8 => 0,
        4 => 1 + start / 4,
        2 => 3 + start / 2,
        _ => 7 + start,
    }
}

fn compute_slices(profile: &MigProfile, compute_profile_id: u32) -> Result<u32, MigRefusal> {
    let mut offered = profile.compute_profiles().into_iter();
    offered
        .find(|&(id, _)| id == compute_profile_id)
        .map(|(_, slices)| slices)
        .ok_or(MigRefusal::NoSuchProfile)
}

fn compute_is_free(instance: &GpuInstance, start: u32, size: u32) -> bool {
    let mut others = instance.compute.iter();
    others.all(|other| start >= other.start + other.size || other.start >= start + size)
}

/// The same for the same place of the same GPU, cut after cut, as the driver's version 5 UUIDs are.
fn mig_uuid(gpu_uuid: &str, instance: &GpuInstance, compute_id: u32) -> String {
    let place = u64::from(instance.id * CAP_COMPUTE_INSTANCES + compute_id);
    let (high, low) = (mix(gpu_uuid, place, 4), mix(gpu_uuid, place, 5));
    format!(
        "MIG-{:08x}-{:04x}-5{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xFFFF,
        high & 0xFFF,
        0x8000 | (low >> 48) & 0x3FFF,
        low & 0xFFFF_FFFF_FFFF
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::board;
    use crate::state::Process;

    fn cut_gpu(board_key: &str, names: &[&str]) -> Result<Gpu, String> {
        let mut gpu = board(board_key, 1, "n", 0).unwrap().gpus.remove(0);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        cut(&mut gpu, &names).map(|()| gpu)
    }

    fn places(gpu: &Gpu) -> Vec<(u32, u32, u32)> {
        gpu.mig_instances
            .iter()
            .map(|instance| (instance.id, instance.start, instance.size))
            .collect()
    }

    #[test]
    fn instances_get_the_ids_and_places_that_the_guide_prints() {
        // MIG user guide: `nvidia-smi mig -cgi 19,14,5` gives GPU instances 13, 5 and 1.
        let gpu = cut_gpu("a100-40", &["1g.5gb", "2g.10gb", "4g.20gb"]).unwrap();
        assert_eq!(places(&gpu), [(1, 0, 4), (5, 4, 2), (13, 6, 1)]);
        // `-cgi 9,3g.20gb` gives 2, then 1.
        let gpu = cut_gpu("a100-40", &["3g.20gb", "3g.20gb"]).unwrap();
        assert_eq!(places(&gpu), [(1, 0, 4), (2, 4, 4)]);
    }

    #[test]
    fn every_board_holds_as_many_of_a_kind_as_its_profile_says() {
        for key in ["a100-40", "a100-80", "h100", "h200", "b200"] {
            let gpu = cut_gpu(key, &[]).unwrap();
            for profile in mig_profiles(&gpu) {
                assert_eq!(
                    remaining(&gpu, &profile),
                    profile.max_count,
                    "{key} {}",
                    profile.name
                );
                assert!(profile.memory_mib << 20 < gpu.memory_total_bytes);
                let mut as_taken = profile.starts_as_taken().to_vec();
                as_taken.sort();
                assert_eq!(as_taken, profile.starts());
            }
        }
        assert!(cut_gpu("l4", &[]).unwrap_err().contains("no MIG"));
    }

    #[test]
    fn no_two_instances_overlap_whatever_is_asked_for() {
        let mut dice = 0x9E37_79B9_7F4A_7C15u64;
        let mut roll = |sides: usize| {
            dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1);
            (dice >> 33) as usize % sides
        };
        let mut gpu = cut_gpu("h100", &[]).unwrap();
        for _ in 0..2000 {
            let profiles = mig_profiles(&gpu);
            let profile = profiles[roll(profiles.len())];
            let start = (roll(3) == 0).then(|| roll(8) as u32);
            if roll(3) == 0 && !gpu.mig_instances.is_empty() {
                let id = gpu.mig_instances[roll(gpu.mig_instances.len())].id;
                destroy_gpu_instance(&mut gpu, id).unwrap();
            } else if let Ok(id) = create_gpu_instance(&mut gpu, profile.id, start) {
                let made = gpu.mig_instances.iter().find(|instance| instance.id == id);
                assert!(profile.starts().contains(&made.unwrap().start));
            }
            let mut taken = [0; 8];
            for instance in &gpu.mig_instances {
                (instance.start..instance.start + instance.size)
                    .for_each(|slice| taken[slice as usize] += 1);
            }
            assert!(taken.iter().all(|&count| count <= 1), "{taken:?}");
            let slices: u32 = gpu
                .mig_instances
                .iter()
                .map(|instance| mig_profile(&gpu, instance.profile_id).unwrap().slices)
                .sum();
            assert!(slices <= 7);
        }
    }

    #[test]
    fn compute_instances_share_a_gpu_instance_without_overlap() {
        let mut gpu = cut_gpu("h100", &["4g.40gb"]).unwrap();
        destroy_compute_instance(&mut gpu, 1, 0).unwrap();
        assert_eq!(
            create_compute_instance(&mut gpu, 1, 2, None),
            Err(MigRefusal::NoSuchProfile),
            "no 3c in 4g"
        );
        assert_eq!(remaining_compute(&gpu, 1, 1), 2);
        create_compute_instance(&mut gpu, 1, 1, None).unwrap();
        create_compute_instance(&mut gpu, 1, 0, Some(3)).unwrap();
        assert_eq!(remaining_compute(&gpu, 1, 0), 1);
        assert_eq!(
            create_compute_instance(&mut gpu, 1, 1, None),
            Err(MigRefusal::NoRoom)
        );
        let profile = mig_profile(&gpu, 5).unwrap();
        let names: Vec<String> = gpu.mig_instances[0]
            .compute
            .iter()
            .map(|compute| mig_device_name(&profile, compute))
            .collect();
        assert_eq!(names, ["2c.4g.40gb", "1c.4g.40gb"]);
    }

    #[test]
    fn what_is_in_use_is_not_destroyed() {
        let mut gpu = cut_gpu("h100", &["3g.40gb", "3g.40gb"]).unwrap();
        assert_eq!(destroy_gpu_instance(&mut gpu, 1), Err(MigRefusal::InUse));
        gpu.processes.push(Process {
            pid: 9,
            memory_bytes: 1,
            instance: Some([1, 0]),
            ..Default::default()
        });
        assert_eq!(
            destroy_compute_instance(&mut gpu, 1, 0),
            Err(MigRefusal::InUse)
        );
        assert_eq!(set_mode(&mut gpu, false), Ok(ModeChange::Pending));
        assert!(gpu.mig_enabled && gpu.mig_instances.len() == 2);
        gpu.processes.clear();
        assert_eq!(set_mode(&mut gpu, false), Ok(ModeChange::Done));
        assert!(!gpu.mig_enabled && gpu.mig_instances.is_empty());
        assert_eq!(
            create_gpu_instance(&mut gpu, 19, None),
            Err(MigRefusal::Off)
        );
    }

    #[test]
    fn capability_minors_are_those_of_the_driver() {
        // As /proc/driver/nvidia-caps/mig-minors has them: 9 for each GPU instance, 135 for each GPU.
        let state = board("h100", 2, "n", 0).unwrap();
        let text = mig_minors(&state);
        for line in [
            "config 1",
            "monitor 2",
            "gpu0/gi0/access 3",
            "gpu0/gi0/ci0/access 4",
            "gpu0/gi1/access 12",
            "gpu0/gi14/ci7/access 137",
            "gpu1/gi0/access 138",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}");
        }
    }
}
