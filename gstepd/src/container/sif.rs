//! The squashfs within a `.sif` of Apptainer or Singularity. The file is hostile until it is bounded.
//! Source: the Singularity Image Format, version 1: a header, then descriptors of parts, numbers little-endian and without gaps.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const MAGIC_AT: usize = 32;
const MAGIC: &[u8] = b"SIF_MAGIC\0";
const HEADER_BYTES: usize = 128;
/// In the header: number of descriptors, and where they begin.
const TOTAL_AT: usize = 88;
const DESCRIPTORS_AT: usize = 96;
const DESCRIPTOR_BYTES: usize = 585;
/// Apptainer makes 48.
const MAX_DESCRIPTORS: u64 = 1024;
const PARTITION: u32 = 0x4004;
/// In a descriptor: type, used, where its bytes are, how many, and for partitions the file system and the role.
const USED_AT: usize = 4;
const OFFSET_AT: usize = 17;
const SIZE_AT: usize = 25;
const EXTRA_AT: usize = 201;
const SQUASHFS: u32 = 1;
const ENCRYPTED_SQUASHFS: u32 = 5;
const PRIMARY_SYSTEM: u32 = 2;

/// Where its root file system begins, byte.
///
/// # Errors
/// A sentence: it is no such file, or its file system is another one.
pub fn squashfs_offset(file: &File) -> Result<u64, String> {
    let told = |e: io::Error| match e.kind() {
        io::ErrorKind::UnexpectedEof => "it is no SIF file".to_owned(),
        _ => e.to_string(),
    };
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0).map_err(told)?;
    if !header[MAGIC_AT..].starts_with(MAGIC) {
        return Err("it is no SIF file".to_owned());
    }
    let all_bytes = file.metadata().map_err(told)?.len();
    let total = long_at(&header, TOTAL_AT).min(MAX_DESCRIPTORS);
    let first = long_at(&header, DESCRIPTORS_AT);
    for at in 0..total {
        let mut part = [0; DESCRIPTOR_BYTES];
        let place = first.saturating_add(at * DESCRIPTOR_BYTES as u64);
        file.read_exact_at(&mut part, place).map_err(told)?;
        let is_root = part[USED_AT] == 1
            && word_at(&part, 0) == PARTITION
            && word_at(&part, EXTRA_AT + 4) == PRIMARY_SYSTEM;
        if !is_root {
            continue;
        }
        let (offset, bytes) = (long_at(&part, OFFSET_AT), long_at(&part, SIZE_AT));
        return match word_at(&part, EXTRA_AT) {
            SQUASHFS
                if offset
                    .checked_add(bytes)
                    .is_some_and(|end| end <= all_bytes) =>
            {
                Ok(offset)
            }
            SQUASHFS => Err("it is cut off".to_owned()),
            ENCRYPTED_SQUASHFS => Err("it is encrypted".to_owned()),
            other => Err(format!("its file system (kind {other}) is no squashfs")),
        };
    }
    Err("it has no root file system".to_owned())
}

fn word_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

fn long_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// With one descriptor that is not used, and one of these kinds.
    fn sif(file_system: u32, role: u32, size: u64) -> Vec<u8> {
        let mut all = vec![0; HEADER_BYTES];
        all[MAGIC_AT..MAGIC_AT + MAGIC.len()].copy_from_slice(MAGIC);
        all[TOTAL_AT] = 2;
        all[DESCRIPTORS_AT] = HEADER_BYTES as u8;
        all.extend([0; DESCRIPTOR_BYTES]);
        let mut part = [0; DESCRIPTOR_BYTES];
        part[..4].copy_from_slice(&PARTITION.to_le_bytes());
        part[USED_AT] = 1;
        part[OFFSET_AT..OFFSET_AT + 8].copy_from_slice(&4096_u64.to_le_bytes());
        part[SIZE_AT..SIZE_AT + 8].copy_from_slice(&size.to_le_bytes());
        part[EXTRA_AT..EXTRA_AT + 4].copy_from_slice(&file_system.to_le_bytes());
        part[EXTRA_AT + 4..EXTRA_AT + 8].copy_from_slice(&role.to_le_bytes());
        all.extend(part);
        all.resize(4096 + 100, 0);
        all
    }

    fn read(bytes: &[u8]) -> Result<u64, String> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        squashfs_offset(&file)
    }

    #[test]
    fn the_root_file_system_is_found_and_what_is_none_is_told() {
        assert_eq!(read(&sif(SQUASHFS, PRIMARY_SYSTEM, 100)), Ok(4096));
        for (bytes, why) in [
            (sif(SQUASHFS, PRIMARY_SYSTEM, 101), "cut off"),
            (sif(SQUASHFS, PRIMARY_SYSTEM, u64::MAX), "cut off"),
            (sif(SQUASHFS, 3, 100), "no root file system"),
            (sif(ENCRYPTED_SQUASHFS, PRIMARY_SYSTEM, 100), "encrypted"),
            (sif(2, PRIMARY_SYSTEM, 100), "no squashfs"),
            (vec![0; 5000], "no SIF file"),
            (Vec::new(), "no SIF file"),
            (
                sif(SQUASHFS, PRIMARY_SYSTEM, 100)[..700].to_vec(),
                "no SIF file",
            ),
        ] {
            assert!(read(&bytes).unwrap_err().contains(why), "{why}");
        }
    }
}
