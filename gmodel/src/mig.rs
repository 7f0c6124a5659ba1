//! MIG: what a GPU can be cut into, and whether several profiles go together on one GPU. Knows no driver: the kinds of a
//! board come from its node. Source: NVIDIA's MIG user guide (profiles, placements).

use crate::gpu_set::GpuPart;
use serde::{Deserialize, Serialize};

/// Memory slices of a GPU: an instance is charged by eighths.
pub const MEMORY_SLICES: u8 = 8;
/// Most instances of one cut.
pub const MAX_INSTANCES: usize = 16;

/// The kinds that boards of one type and size can be cut into.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MigBoard {
    #[serde(rename = "type")]
    pub gpu_type: String,
    /// Nominal memory of the whole board.
    pub memory_mib: u64,
    /// Smallest first.
    pub kinds: Vec<MigKind>,
}

/// A kind of GPU instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MigKind {
    /// `2g.20gb`.
    pub profile: String,
    /// Of 7.
    pub compute_slices: u8,
    /// Of 8.
    pub memory_slices: u8,
    pub memory_mib: u64,
    /// First memory slices where it may be.
    pub starts: Vec<u8>,
    /// Most of this kind on one GPU.
    pub most: u8,
}

/// Thousandths of a GPU that an instance of a profile is at least: by its compute slices. Its memory may make it more.
pub fn least_milli(profile: &str) -> u32 {
    // `1c.3g.40gb` has one compute slice of the three.
    let slices = profile
        .split('.')
        .find_map(|word| word.strip_suffix('g')?.parse::<u32>().ok());
    slices.unwrap_or(1).min(7) * 1000 / 7
}

/// The most of a GPU, in thousandths, that a slice of this profile can be: profiles of one GPU slice come with twice its memory too.
pub fn most_milli(profile: &str) -> u32 {
    let least = least_milli(profile);
    let slices = (least * 7).div_ceil(1000).max(2);
    least.max(slices.next_power_of_two() * 1000 / 8).min(1000)
}

impl MigKind {
    /// What a run that is given such an instance holds.
    pub fn part(&self) -> GpuPart {
        GpuPart::Mig {
            profile: self.profile.clone(),
            compute_slices: self.compute_slices,
            memory_slices: self.memory_slices,
        }
    }
}

impl MigBoard {
    pub fn kind(&self, profile: &str) -> Option<&MigKind> {
        self.kinds
            .iter()
            .find(|kind| kind.profile.eq_ignore_ascii_case(profile))
    }

    /// The names of its kinds, for messages.
    pub fn profiles(&self) -> String {
        self.kinds
            .iter()
            .map(|kind| kind.profile.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// First memory slices of these profiles, in their order, so that none overlap; or why there are none.
pub fn arrange(kinds: &[MigKind], profiles: &[String]) -> Result<Vec<u8>, String> {
    let find = |profile: &String| {
        kinds
            .iter()
            .find(|kind| kind.profile.eq_ignore_ascii_case(profile))
    };
    let mut wanted = Vec::with_capacity(profiles.len());
    for profile in profiles {
        let Some(kind) = find(profile) else {
            let known: Vec<&str> = kinds.iter().map(|kind| kind.profile.as_str()).collect();
            return Err(match known.is_empty() {
                true => "the GPU cannot be cut by MIG".into(),
                false => format!(
                    "the GPU has no MIG profile {profile}; there are {}",
                    known.join(", ")
                ),
            });
        };
        wanted.push(kind);
    }
    fits(&wanted).ok_or_else(|| format!("{} do not go together on one GPU", profiles.join(", ")))
}

/// As [`arrange`], of kinds of one board.
pub fn fits(wanted: &[&MigKind]) -> Option<Vec<u8>> {
    if wanted.len() > MAX_INSTANCES {
        return None;
    }
    let count = |kind: &MigKind| {
        wanted
            .iter()
            .filter(|other| other.profile == kind.profile)
            .count()
    };
    let compute: u32 = wanted
        .iter()
        .map(|kind| u32::from(kind.compute_slices))
        .sum();
    if compute > 7
        || wanted
            .iter()
            .any(|kind| count(kind) > usize::from(kind.most))
    {
        return None;
    }
    // The least free to move first: a half has two places, an eighth seven.
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|at| {
        (
            wanted[*at].starts.len(),
            std::cmp::Reverse(wanted[*at].memory_slices),
            *at,
        )
    });
    let mut starts = vec![0; wanted.len()];
    place(wanted, &order, 0, &mut starts).then_some(starts)
}

fn place(wanted: &[&MigKind], order: &[usize], taken: u16, starts: &mut [u8]) -> bool {
    let Some((&at, rest)) = order.split_first() else {
        return true;
    };
    let kind = wanted[at];
    kind.starts.iter().any(|&start| {
        let bits = ((1u32 << kind.memory_slices) - 1) << start;
        let bits = bits as u16;
        if taken & bits != 0 {
            return false;
        }
        starts[at] = start;
        place(wanted, rest, taken | bits, starts)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As an A100 of 80 GB tells them.
    pub(crate) fn a100() -> MigBoard {
        let kind = |profile: &str, compute, memory, starts: &[u8], most| MigKind {
            profile: profile.into(),
            compute_slices: compute,
            memory_slices: memory,
            memory_mib: u64::from(memory) * 9_984,
            starts: starts.to_vec(),
            most,
        };
        let kinds = vec![
            kind("1g.10gb", 1, 1, &[0, 1, 2, 3, 4, 5, 6], 7),
            kind("1g.10gb+me", 1, 1, &[0, 1, 2, 3, 4, 5, 6], 1),
            kind("1g.20gb", 1, 2, &[0, 2, 4, 6], 4),
            kind("2g.20gb", 2, 2, &[0, 2, 4], 3),
            kind("3g.40gb", 3, 4, &[0, 4], 2),
            kind("4g.40gb", 4, 4, &[0], 1),
            kind("7g.80gb", 7, 8, &[0], 1),
        ];
        MigBoard {
            gpu_type: "a100".into(),
            memory_mib: 81_920,
            kinds,
        }
    }

    fn starts(profiles: &[&str]) -> Result<Vec<u8>, String> {
        arrange(
            &a100().kinds,
            &profiles
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn profiles_are_placed_whatever_their_order() {
        assert_eq!(starts(&["3g.40gb", "3g.40gb"]), Ok(vec![0, 4]));
        assert_eq!(
            starts(&["1g.10gb", "2g.20gb", "4g.40gb"]),
            Ok(vec![6, 4, 0])
        );
        assert_eq!(
            starts(&["1g.10gb", "1g.10gb", "1g.10gb", "3g.40gb"]).unwrap()[3],
            0,
            "the half with seven places is left"
        );
        assert_eq!(starts(&["1g.10gb"; 7]), Ok(vec![0, 1, 2, 3, 4, 5, 6]));
        assert_eq!(starts(&[]), Ok(vec![]));
    }

    #[test]
    fn no_slice_is_more_of_a_gpu_than_its_profile_says_at_most() {
        for kind in &a100().kinds {
            let milli = kind.part().milli();
            let (least, most) = (least_milli(&kind.profile), most_milli(&kind.profile));
            assert!((least..=most).contains(&milli), "{}: {milli}", kind.profile);
        }
        assert_eq!(most_milli("1g.20gb"), 250);
        assert_eq!(most_milli("7g.80gb"), 1000);
    }

    #[test]
    fn what_does_not_go_together_is_said() {
        assert_eq!(
            starts(&["4g.40gb", "4g.40gb"]).unwrap_err(),
            "4g.40gb, 4g.40gb do not go together on one GPU"
        );
        assert!(starts(&["7g.80gb", "1g.10gb"]).is_err());
        assert!(starts(&["1g.10gb"; 8]).is_err());
        assert!(starts(&["1g.10gb+me", "1g.10gb+me"]).is_err());
        let unknown = starts(&["5g.50gb"]).unwrap_err();
        assert!(
            unknown
                .starts_with("the GPU has no MIG profile 5g.50gb; there are 1g.10gb, 1g.10gb+me"),
            "{unknown}"
        );
        assert_eq!(
            arrange(&[], &["1g.5gb".into()]).unwrap_err(),
            "the GPU cannot be cut by MIG"
        );
    }

    proptest! {
        #[test]
        fn no_two_instances_of_an_arrangement_overlap(picks in prop::collection::vec(0usize..7, 0..8)) {
            let board = a100();
            let wanted: Vec<&MigKind> = picks.iter().map(|at| &board.kinds[*at]).collect();
            if let Some(starts) = fits(&wanted) {
                let mut slices = [false; 8];
                for (kind, start) in wanted.iter().zip(starts) {
                    prop_assert!(kind.starts.contains(&start));
                    for slice in start..start + kind.memory_slices {
                        prop_assert!(!std::mem::replace(&mut slices[usize::from(slice)], true));
                    }
                }
            }
        }
    }
}
