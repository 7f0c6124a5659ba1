//! What stays of a user's images on a node: which are in use, which go when there is no room. Never takes one that a live run uses.
//!
//! ```text
//! DIR/use/KEY.17-1   run 17-1 uses the image KEY, as long as its directory of containers is there
//! ```
//! A use is marked, and an image removed, by the holder of the image's lock.

use crate::container::ContainerError;
use crate::container::store::{StoredImage, lock_path, place_of, record_of};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Files of an image that was not finished, or that goes, by the head of their directory's name.
const UNFINISHED: [&str; 2] = [".new-", ".gone-"];

/// The images of one user.
pub struct ImageCache<'a> {
    pub dir: &'a Path,
    /// Directory of the containers of the run that asks: `SPOOL/boxes/17-1`.
    pub run: &'a Path,
}

struct CachedImage {
    key: String,
    bytes: u64,
    used: SystemTime,
}

impl ImageCache<'_> {
    /// The run uses the image. To be called with the image's lock held.
    ///
    /// # Errors
    /// The mark cannot be made: the image may go at any time.
    pub fn mark_used(&self, key: &str) -> Result<(), ContainerError> {
        let run = self.run.file_name().unwrap_or_default().to_string_lossy();
        let dir = self.dir.join("use");
        let mark = dir.join(format!("{key}.{run}"));
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.and_then(|()| File::create(&mark))
            .map(drop)
            .map_err(ContainerError::of_file("making", &mark))
    }

    /// Removes images that no run uses, those that were used longest ago first, until the rest has `most_bytes`. Says how many went.
    pub fn keep(&self, most_bytes: u64) -> usize {
        self.sweep();
        let mut kept = self.kept();
        kept.sort_by_key(|image| image.used);
        let mut sum = kept
            .iter()
            .fold(0_u64, |sum, image| sum.saturating_add(image.bytes));
        let mut gone = 0;
        for image in kept {
            if sum <= most_bytes {
                break;
            }
            if self.remove(&image.key).is_ok_and(|is_gone| is_gone) {
                sum = sum.saturating_sub(image.bytes);
                gone += 1;
            }
        }
        gone
    }

    fn kept(&self) -> Vec<CachedImage> {
        let records = fs::read_dir(self.dir.join("image")).into_iter().flatten();
        let read = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let text = fs::read(entry.path()).ok()?;
            let image: StoredImage = serde_json::from_slice(&text).ok()?;
            Some(CachedImage {
                key: name.strip_suffix(".json")?.to_owned(),
                bytes: image.bytes,
                used: entry.metadata().ok()?.modified().ok()?,
            })
        };
        records.flatten().filter_map(read).collect()
    }

    /// False: a run uses it, or another process has it locked.
    fn remove(&self, key: &str) -> io::Result<bool> {
        let Some(_lock) = self.try_lock(key) else {
            return Ok(false);
        };
        if self.is_used(key) {
            return Ok(false);
        }
        let gone = self.dir.join("rootfs").join(format!(".gone-{key}"));
        gsys::removal::remove_tree(&gone)?;
        fs::rename(place_of(self.dir, key), &gone)?;
        fs::remove_file(record_of(self.dir, key))?;
        gsys::removal::remove_tree(&gone)?;
        Ok(true)
    }

    fn try_lock(&self, key: &str) -> Option<Flock<File>> {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(lock_path(self.dir, key))
            .ok()?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
    }

    /// Marks of runs that are gone go, too.
    fn is_used(&self, key: &str) -> bool {
        let boxes = self.run.parent().unwrap_or(self.run);
        let head = format!("{key}.");
        let mut is_used = false;
        for mark in fs::read_dir(self.dir.join("use"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = mark.file_name().to_string_lossy().into_owned();
            let Some(run) = name.strip_prefix(&head) else {
                continue;
            };
            if boxes.join(run).is_dir() {
                is_used = true;
            } else {
                let _ = fs::remove_file(mark.path());
            }
        }
        is_used
    }

    /// What killed processes left unfinished.
    fn sweep(&self) {
        let places = fs::read_dir(self.dir.join("rootfs")).into_iter().flatten();
        for place in places.flatten().map(|entry| entry.path()) {
            let Some(key) = unfinished_key(&place) else {
                continue;
            };
            if let Some(_lock) = self.try_lock(&key) {
                let _ = gsys::removal::remove_tree(&place);
            }
        }
    }
}

fn unfinished_key(place: &PathBuf) -> Option<String> {
    let name = place.file_name()?.to_str()?;
    let key = UNFINISHED.iter().find_map(|head| name.strip_prefix(head))?;
    Some(key.strip_suffix("-layout").unwrap_or(key).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(dir: &Path, key: &str, age_secs: u64) {
        for below in ["rootfs", "image", "lock"] {
            fs::create_dir_all(dir.join(below)).unwrap();
        }
        fs::create_dir_all(place_of(dir, key)).unwrap();
        let record = StoredImage {
            bytes: 100,
            ..StoredImage::default()
        };
        let path = record_of(dir, key);
        fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
        let used = SystemTime::now() - std::time::Duration::from_secs(age_secs);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(used)
            .unwrap();
    }

    #[test]
    fn the_oldest_images_go_and_none_that_a_live_run_uses_or_that_is_locked() {
        let temp = std::env::temp_dir().join(format!("gstepd-cache-{}", std::process::id()));
        let (dir, run, gone) = (
            temp.join("images"),
            temp.join("boxes/1-1"),
            temp.join("boxes/2-1"),
        );
        fs::create_dir_all(&run).unwrap();
        for (age, key) in ["new", "held", "old", "used", "oldest"].iter().enumerate() {
            image(&dir, key, age as u64 * 100);
        }
        fs::create_dir_all(dir.join("rootfs/.new-killed-layout")).unwrap();
        let cache = |run| ImageCache { dir: &dir, run };
        cache(&run).mark_used("used").unwrap();
        cache(&gone).mark_used("oldest").unwrap();
        let held = cache(&run).try_lock("held").unwrap();
        let here = |key: &str| place_of(&dir, key).is_dir() && record_of(&dir, key).is_file();
        assert_eq!(cache(&run).keep(500), 0);
        assert!(!dir.join("rootfs/.new-killed-layout").exists());
        assert_eq!(
            cache(&run).keep(399),
            2,
            "100 bytes each, and used ones stay"
        );
        assert!(!here("oldest") && !here("old") && here("used") && here("new"));
        assert_eq!(cache(&run).keep(0), 1);
        assert!(here("used") && here("held") && !here("new"));
        drop(held);
        fs::remove_dir_all(&run).unwrap();
        assert_eq!(cache(&gone).keep(0), 2);
        fs::remove_dir_all(&temp).unwrap();
    }
}
