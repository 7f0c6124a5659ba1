//! Directories of forgotten runs, kept for the next runs: making and removing files costs more than writing, above all on a file
//! system without journal, which looks through all inodes that were freed lately for each new file. Nothing of the earlier run can be
//! read in a spare directory, which is no run before it has its new name. A restart removes all spare directories.

use crate::spool::file::remove_dir;
use gmodel::RunId;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// More than run at once on a node with eight GPUs.
const MOST: usize = 16;
/// What is left of each file: the brace that begins it, or an empty line of a log. An empty file would lose its block, and
/// ext4 would write the next content out at once, as if it replaced this one.
const LEFT_BYTES: u64 = 1;
/// Files that each run has, and the names under which the next writer finds these: all but the log are written aside and renamed.
const KEPT: [(&str, &str); 6] = [
    ("order.json", "order.new"),
    ("setup.json", "setup.new"),
    ("fence.json", "fence.new"),
    ("gpu-use.json", "gpu-use.new"),
    ("exit.json", "exit.json.room"),
    (LOG, LOG),
];
const LOG: &str = "log";

/// Those of one spool.
#[derive(Debug, Default)]
pub struct SpareDirs {
    kept: Mutex<Vec<PathBuf>>,
}

impl SpareDirs {
    /// An empty directory, as far as a reader can see, if there is one.
    pub fn take(&self) -> Option<PathBuf> {
        self.kept.lock().expect("no holder panics").pop()
    }

    /// Takes the directory of a run that is no run any more: renamed first, since a half-emptied one would look like another
    /// state of the run. One that is gone already is fine.
    pub fn retire(&self, run_dir: &Path, run: RunId) -> io::Result<()> {
        let dir = run_dir.with_file_name(format!(".gone-{run}"));
        match fs::rename(run_dir, &dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed?,
        }
        let mut kept = self.kept.lock().expect("no holder panics");
        if kept.len() < MOST && empty(&dir).is_ok() {
            kept.push(dir);
            return Ok(());
        }
        drop(kept);
        remove_dir(&dir).map_err(io::Error::other)
    }
}

fn empty(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let aside = KEPT
            .iter()
            .find(|(name, _)| entry.file_name() == *name)
            .map(|(_, aside)| dir.join(aside));
        match aside {
            Some(aside) => {
                // Scripts and variables of a user must not outlive the run.
                let file = OpenOptions::new().write(true).open(&path)?;
                if aside == path {
                    file.write_all_at(b"\n", 0)?;
                }
                file.set_len(LEFT_BYTES)?;
                if aside != path {
                    fs::rename(&path, aside)?;
                }
            }
            None if entry.file_type()?.is_dir() => gsys::removal::remove_tree(&path)?,
            None => fs::remove_file(&path)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let dir =
                std::env::temp_dir().join(format!("gpud-spares-{}-{name}", std::process::id()));
            fs::create_dir(&dir).unwrap();
            Self(dir)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_spare_directory_has_nothing_of_its_run_and_is_used_once() {
        let root = Scratch::new("empty");
        let spares = SpareDirs::default();
        let run: RunId = "17-1".parse().unwrap();
        let dir = root.0.join("17-1");
        fs::create_dir_all(dir.join("nested/deep")).unwrap();
        for name in [
            "order.json",
            "exit.json",
            "mark.json",
            "log",
            "nested/deep/file",
        ] {
            fs::write(dir.join(name), "{secret}").unwrap();
        }
        fs::hard_link(dir.join("order.json"), dir.join("ready")).unwrap();
        spares.retire(&dir, run).unwrap();
        spares.retire(&dir, run).unwrap();
        assert!(!dir.exists());
        let spare = spares.take().unwrap();
        let mut left: Vec<_> = fs::read_dir(&spare)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["exit.json.room", "log", "order.new"]);
        let text = |name: &str| fs::read_to_string(spare.join(name)).unwrap();
        assert_eq!(
            ["exit.json.room", "log", "order.new"].map(text),
            ["{", "\n", "{"]
        );
        assert_eq!(spares.take(), None);
    }

    #[test]
    fn so_many_are_kept_and_no_more() {
        let root = Scratch::new("most");
        let spares = SpareDirs::default();
        for number in 1..=20 {
            let dir = root.0.join(format!("{number}-1"));
            fs::create_dir(&dir).unwrap();
            spares
                .retire(&dir, format!("{number}-1").parse().unwrap())
                .unwrap();
        }
        assert_eq!(fs::read_dir(&root.0).unwrap().count(), MOST);
    }
}
