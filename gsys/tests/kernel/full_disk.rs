//! A disk that is full when a job ends: the record of the exit was given its room before, and not a single fsync was needed
//! for that, neither on tmpfs nor on a file system with delayed allocation.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use gsys::durable_file::{ReservedFile, write_atomic};
use gsys::mount::{mount_tmpfs, unmount};

use crate::scratch::{Scratch, not_run, until};

const DISK_BYTES: u64 = 1 << 20;
const EXT4_BYTES: u64 = 8 << 20;
const RECORD_BYTES: u64 = 16 * 1024;

#[test]
fn a_full_disk_still_takes_a_reserved_record() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let disk = scratch.dir.join("disk");
    fs::create_dir(&disk).expect("mkdir");
    mount_tmpfs(&disk, DISK_BYTES).expect("mount");
    let outcome = std::panic::catch_unwind(|| fill_and_commit(&disk));
    unmount(&disk).expect("unmount");
    unmount(&disk).expect("what is not mounted is no error");
    assert!(
        fs::read_dir(&disk).expect("list").next().is_none(),
        "the disk is gone"
    );
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_full_ext4_still_takes_a_reserved_record() {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let (image, disk) = (scratch.dir.join("image"), scratch.dir.join("disk"));
    fs::create_dir(&disk).expect("mkdir");
    let file = fs::File::create(&image).expect("create");
    file.set_len(EXT4_BYTES).expect("length");
    let ran = |program: &str, args: &[&str]| {
        let command = Command::new(program).args(args).output();
        command.is_ok_and(|output| output.status.success())
    };
    let [image, mount_point] = [&image, &disk].map(|path| path.to_str().expect("text"));
    // No blocks kept for root: full is full.
    let made = ran("mkfs.ext4", &["-q", "-F", "-m", "0", image])
        && ran("mount", &["-o", "loop", image, mount_point]);
    if !made {
        return not_run("needs mkfs.ext4 and loop devices").unwrap_or_default();
    }
    let outcome = std::panic::catch_unwind(|| fill_and_commit(&disk));
    // A child that another test is forking may hold our files until it execs.
    until("the disk is unmounted", || ran("umount", &[mount_point]));
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

fn fill_and_commit(disk: &Path) {
    let path = disk.join("exit.json");
    let reserved = ReservedFile::reserve(&path, RECORD_BYTES).expect("reserve");
    let record = vec![b'x'; RECORD_BYTES as usize];
    // Filled and written out at once: were the room only promised, the filler would have it now.
    let full = fill(&disk.join("filler")).expect_err("the disk ends");
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    let refused = write_atomic(&disk.join("other.json"), &record).expect_err("no room");
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
    assert!(!disk.join("other.json").exists() && !disk.join("other.json.new").exists());
    reserved.commit(&record).expect("the room is there");
    assert_eq!(fs::read(&path).expect("read"), record);
    assert!(
        ReservedFile::reserve(&disk.join("next"), RECORD_BYTES).is_err(),
        "and there is no more"
    );
}

/// Writes to the last byte there is, in pieces that shrink.
fn fill(path: &Path) -> std::io::Result<()> {
    use std::io::Write;
    let mut file = fs::File::create(path)?;
    let mut last = Ok(());
    for piece in [64 * 1024, 4096, 1024, 1] {
        let bytes = vec![0x5a; piece];
        for _ in 0..EXT4_BYTES {
            last = file.write_all(&bytes).and_then(|()| file.sync_data());
            if last.is_err() {
                break;
            }
        }
    }
    last
}
