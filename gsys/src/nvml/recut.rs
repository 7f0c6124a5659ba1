//! From the cut that a GPU has to the cut it should have, one step at a time: the next step follows from what stands, so that a
//! daemon killed between two steps goes on where it was. Never names a step that touches a busy instance. Decides no cut.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::change::Change;
use super::facts::{MigInstance, MigLayout, MigProfile};

/// How a GPU should be cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WantedCut {
    /// MIG off.
    Whole,
    /// These parts and no others, each with one device that fills it.
    Parts(Vec<WantedPart>),
}

/// One GPU instance of a cut.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WantedPart {
    /// `3g.40gb`.
    pub profile: String,
    /// Its first memory slice.
    pub start: u32,
}

/// Why there is no next step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecutError {
    #[error(
        "GPU instance {gpu_instance_id} ({profile}) is in use and not part of the wanted cut; it goes when its job has ended"
    )]
    Busy {
        gpu_instance_id: u32,
        profile: String,
    },
    #[error("the GPU has no MIG profile {profile}; there are {known}")]
    NoSuchProfile { profile: String, known: String },
    #[error("{profile} cannot begin at memory slice {start}; it can at {starts:?}")]
    NoSuchPlace {
        profile: String,
        start: u32,
        starts: Vec<u32>,
    },
    #[error("{one} at memory slice {one_start} and {other} at {other_start} overlap")]
    Overlap {
        one: String,
        one_start: u32,
        other: String,
        other_start: u32,
    },
}

/// The next step towards `wanted`; `None` when it stands. `busy` are ids of GPU instances that a run holds or a process is in.
pub fn next_step(
    layout: &MigLayout,
    wanted: &WantedCut,
    busy: &BTreeSet<u32>,
) -> Result<Option<Change>, RecutError> {
    let parts = match wanted {
        WantedCut::Whole => &[][..],
        WantedCut::Parts(parts) => parts,
    };
    let wanted_profiles = checked(layout, parts)?;
    // First away with what is not wanted, so that there is room for what is.
    for instance in &layout.instances {
        let is_wanted = parts
            .iter()
            .any(|part| part.profile == instance.profile && part.start == instance.start);
        let is_whole = matches!(&instance.devices[..], [device] if device.compute_slices == instance.compute_slices);
        if is_wanted && (is_whole || instance.devices.is_empty()) {
            continue;
        }
        if busy.contains(&instance.id) {
            // A wanted instance that an administrator has cut further stays as it is while it is used.
            if is_wanted {
                continue;
            }
            return Err(RecutError::Busy {
                gpu_instance_id: instance.id,
                profile: instance.profile.clone(),
            });
        }
        return Ok(Some(take_away(instance)));
    }
    if *wanted == WantedCut::Whole {
        return Ok(layout.enabled.then_some(Change::MigMode(false)));
    }
    if !layout.enabled {
        return Ok(Some(Change::MigMode(true)));
    }
    let unfinished = layout
        .instances
        .iter()
        .find(|instance| instance.devices.is_empty());
    if let Some(instance) = unfinished {
        return Ok(Some(Change::MakeDevice {
            gpu_instance_id: instance.id,
            compute_slices: instance.compute_slices,
        }));
    }
    let missing = parts.iter().zip(wanted_profiles).find(|(part, _)| {
        let mut instances = layout.instances.iter();
        !instances.any(|instance| instance.profile == part.profile && instance.start == part.start)
    });
    Ok(missing.map(|(part, profile)| Change::MakeInstance {
        profile_id: profile.id,
        start: Some(part.start),
    }))
}

/// One device or, when there is none left, the instance.
fn take_away(instance: &MigInstance) -> Change {
    match instance.devices.first() {
        Some(device) => Change::DestroyDevice {
            gpu_instance_id: instance.id,
            compute_instance_id: device.compute_instance_id,
        },
        None => Change::DestroyInstance {
            gpu_instance_id: instance.id,
        },
    }
}

/// The profile of each part, in its order, or why the cut is impossible on this GPU.
fn checked<'a>(
    layout: &'a MigLayout,
    parts: &[WantedPart],
) -> Result<Vec<&'a MigProfile>, RecutError> {
    let mut profiles = Vec::new();
    for part in parts {
        let profile = layout.profile(&part.profile).ok_or_else(|| {
            let known: Vec<&str> = layout
                .profiles
                .iter()
                .map(|profile| profile.name.as_str())
                .collect();
            RecutError::NoSuchProfile {
                profile: part.profile.clone(),
                known: known.join(", "),
            }
        })?;
        if !profile.starts.contains(&part.start) {
            return Err(RecutError::NoSuchPlace {
                profile: part.profile.clone(),
                start: part.start,
                starts: profile.starts.clone(),
            });
        }
        profiles.push(profile);
    }
    for (at, (one, one_profile)) in parts.iter().zip(&profiles).enumerate() {
        for (other, other_profile) in parts.iter().zip(&profiles).skip(at + 1) {
            let apart = one.start + one_profile.memory_slices <= other.start
                || other.start + other_profile.memory_slices <= one.start;
            if !apart {
                return Err(RecutError::Overlap {
                    one: one.profile.clone(),
                    one_start: one.start,
                    other: other.profile.clone(),
                    other_start: other.start,
                });
            }
        }
    }
    Ok(profiles)
}
