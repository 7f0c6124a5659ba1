//! A disk that is full when a job ends: the record of the exit was given its room before.

use std::fs;
use std::io::ErrorKind;

use gsys::durable_file::{ReservedFile, write_atomic};
use gsys::mount::{mount_tmpfs, unmount};

use crate::scratch::Scratch;

const DISK_BYTES: u64 = 1 << 20;

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

fn fill_and_commit(disk: &std::path::Path) {
    let path = disk.join("exit.json");
    let reserved = ReservedFile::reserve(&path, 16 * 1024).expect("reserve");
    let record = vec![b'x'; 16 * 1024];
    let full = fs::write(disk.join("filler"), vec![0; 2 * DISK_BYTES as usize])
        .expect_err("the disk ends");
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    let refused = write_atomic(&disk.join("other.json"), &record).expect_err("no room");
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
    assert!(!disk.join("other.json").exists() && !disk.join("other.json.new").exists());
    reserved.commit(&record).expect("the room is there");
    assert_eq!(fs::read(&path).expect("read"), record);
    assert!(
        ReservedFile::reserve(&disk.join("next"), 16 * 1024).is_err(),
        "and there is no more"
    );
}
