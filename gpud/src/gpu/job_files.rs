//! Which job is on which GPU, as files that exporters read: of dcgm-exporter (`dcgm_job_dir`) and of jobstats (`jobstats_dir`).
//!
//! The files follow from the runs in the spool, so writing them again is harmless: at each start and end of a run with GPUs, and at
//! each look at the GPUs. Both forms are those of the exporters' documentation. Reads nothing of what is in a file.

use crate::config::Config;
use crate::gpu::table::Gpus;
use crate::site::Site;
use crate::spool::file::{make_dir, remove_file, write_aside};
use gmodel::JobId;
use gsys::nvml::GpuFacts;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A job with a GPU or slice of this node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Holder {
    job: JobId,
    uid: u32,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    /// A file `3` for GPU 3, `3.5` for its GPU instance 5; a line for each job on it.
    Dcgm,
    /// A file `3`, or a slice's UUID; job and uid in one line.
    Jobstats,
}

/// The directories that the configuration names, and what lies in them.
#[derive(Debug)]
pub struct JobFiles {
    dirs: Vec<JobDir>,
}

#[derive(Debug)]
struct JobDir {
    form: Form,
    dir: PathBuf,
    /// As last written, by name; `None`: files of before a restart may lie there.
    written: Mutex<Option<BTreeMap<String, String>>>,
    /// The last try failed, and the log says so.
    failed: AtomicBool,
}

impl JobFiles {
    pub fn new(config: &Config) -> Self {
        let dir = |form, dir: &Option<PathBuf>| dir.clone().map(|dir| JobDir::new(form, dir));
        let dirs = [
            dir(Form::Dcgm, &config.dcgm_job_dir),
            dir(Form::Jobstats, &config.jobstats_dir),
        ];
        Self {
            dirs: dirs.into_iter().flatten().collect(),
        }
    }

    /// Has the files say what the spool says. Blocking; a directory that cannot be written is named in the log, and no job waits for it.
    pub fn follow(&self, site: &Site) {
        if self.dirs.is_empty() {
            return;
        }
        let (gpus, held) = (site.gpus.current(), holders(site));
        for dir in &self.dirs {
            let followed = dir.follow(&gpus, &held);
            let failed_before = dir.failed.swap(followed.is_err(), Relaxed);
            let shown = dir.dir.display();
            match followed {
                Err(e) if !failed_before => {
                    tracing::warn!("which job has which GPU is not told in {shown}: {e:#}");
                }
                Ok(()) if failed_before => {
                    tracing::info!("which job has which GPU is told in {shown} again");
                }
                _ => {}
            }
        }
    }
}

/// By UUID.
fn holders(site: &Site) -> BTreeMap<String, BTreeSet<Holder>> {
    let mut all: BTreeMap<String, BTreeSet<Holder>> = BTreeMap::new();
    for run in site.spool.live() {
        let (Ok(order), Ok(Some(setup))) = (site.spool.order(run), site.spool.setup(run)) else {
            continue;
        };
        let holder = Holder {
            job: run.job,
            uid: order.user.uid,
        };
        for gpu in &setup.gpus {
            all.entry(gpu.uuid.clone())
                .or_default()
                .insert(holder.clone());
        }
    }
    all
}

impl JobDir {
    fn new(form: Form, dir: PathBuf) -> Self {
        Self {
            form,
            dir,
            written: Mutex::default(),
            failed: AtomicBool::default(),
        }
    }

    fn follow(&self, gpus: &Gpus, held: &BTreeMap<String, BTreeSet<Holder>>) -> anyhow::Result<()> {
        let mut files: BTreeMap<String, String> = BTreeMap::new();
        for (uuid, holders) in held {
            if let Some(name) = name_of(self.form, &gpus.facts, uuid) {
                files.insert(name, self.form.text(holders));
            }
        }
        let mut written = self.written.lock().expect("no holder panics");
        if written.as_ref() == Some(&files) {
            return Ok(());
        }
        make_dir(&self.dir, 0o755)?;
        // Root writes there: a link of another user would lead it elsewhere.
        if std::fs::metadata(&self.dir)?.mode() & 0o022 != 0 {
            anyhow::bail!("others than its owner may write to it: chmod go-w");
        }
        let before = match written.take() {
            Some(before) => before.into_keys().collect(),
            None => self.left_there()?,
        };
        for name in before.iter().filter(|name| !files.contains_key(*name)) {
            remove_file(&self.dir.join(name))?;
        }
        for (name, text) in &files {
            write_aside(&self.dir.join(name), text.as_bytes())?;
        }
        *written = Some(files);
        Ok(())
    }

    /// Names in the directory that this module gives.
    fn left_there(&self) -> anyhow::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for entry in std::fs::read_dir(&self.dir)? {
            if let Some(name) = entry?.file_name().to_str().filter(|name| is_ours(name)) {
                names.insert(name.to_owned());
            }
        }
        Ok(names)
    }
}

impl Form {
    fn text(self, holders: &BTreeSet<Holder>) -> String {
        match self {
            Self::Dcgm => holders
                .iter()
                .map(|held| format!("{}\n", held.job))
                .collect(),
            // Room for one job: of a GPU that is shared, the first.
            Self::Jobstats => holders
                .first()
                .map(|held| format!("{} {}\n", held.job, held.uid))
                .unwrap_or_default(),
        }
    }
}

fn is_ours(name: &str) -> bool {
    name.starts_with("MIG-")
        || name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// `None`: NVML shows no such GPU or slice now.
fn name_of(form: Form, gpus: &[GpuFacts], uuid: &str) -> Option<String> {
    if let Some(gpu) = gpus.iter().find(|gpu| gpu.uuid == uuid) {
        return Some(gpu.index.to_string());
    }
    gpus.iter().find_map(|gpu| {
        let instances = &gpu.mig.as_ref()?.instances;
        let instance = instances
            .iter()
            .find(|one| one.devices.iter().any(|device| device.uuid == uuid))?;
        Some(match form {
            Form::Dcgm => format!("{}.{}", gpu.index, instance.id),
            Form::Jobstats => uuid.to_owned(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(pairs: &[(&str, &[(u64, u32)])]) -> BTreeMap<String, BTreeSet<Holder>> {
        let holder = |(job, uid): &(u64, u32)| Holder {
            job: JobId(*job),
            uid: *uid,
        };
        pairs
            .iter()
            .map(|(uuid, holders)| ((*uuid).to_owned(), holders.iter().map(holder).collect()))
            .collect()
    }

    fn gpus() -> Gpus {
        let gpu = |index: u32, uuid: &str| GpuFacts {
            index,
            uuid: uuid.into(),
            ..GpuFacts::default()
        };
        Gpus {
            facts: vec![gpu(0, "GPU-a"), gpu(1, "GPU-b")],
            ..Gpus::default()
        }
    }

    fn dir(form: Form, at: &std::path::Path) -> JobDir {
        JobDir::new(form, at.to_owned())
    }

    fn listing(at: &std::path::Path) -> Vec<(String, String)> {
        let mut all: Vec<_> = std::fs::read_dir(at)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read_to_string(path).unwrap())
            })
            .collect();
        all.sort();
        all
    }

    #[test]
    fn files_come_and_go_with_jobs_and_those_of_before_a_restart_go_too() {
        let temporary = tempfile::tempdir().unwrap();
        let at = temporary.path().join("jobs");
        std::fs::create_dir(&at).unwrap();
        std::fs::write(at.join("7"), "99\n").unwrap();
        std::fs::write(at.join("README"), "of the site").unwrap();
        let dcgm = dir(Form::Dcgm, &at);
        dcgm.follow(&gpus(), &held(&[("GPU-b", &[(17, 1000), (9, 1001)])]))
            .unwrap();
        let readme = ("README".to_owned(), "of the site".to_owned());
        assert_eq!(
            listing(&at),
            [("1".into(), "9\n17\n".into()), readme.clone()]
        );
        dcgm.follow(&gpus(), &held(&[("GPU-a", &[(17, 1000)])]))
            .unwrap();
        assert_eq!(listing(&at), [("0".into(), "17\n".into()), readme.clone()]);
        dcgm.follow(&gpus(), &held(&[])).unwrap();
        assert_eq!(listing(&at), [readme]);
    }

    #[test]
    fn jobstats_reads_job_and_uid() {
        let temporary = tempfile::tempdir().unwrap();
        let jobstats = dir(Form::Jobstats, temporary.path());
        jobstats
            .follow(
                &gpus(),
                &held(&[("GPU-a", &[(17, 1000)]), ("GPU-gone", &[(18, 1000)])]),
            )
            .unwrap();
        assert_eq!(
            listing(temporary.path()),
            [("0".into(), "17 1000\n".into())]
        );
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error_and_is_tried_again() {
        let temporary = tempfile::tempdir().unwrap();
        let at = temporary.path().join("file");
        std::fs::write(&at, "").unwrap();
        let dcgm = dir(Form::Dcgm, &at);
        let one = held(&[("GPU-a", &[(17, 1000)])]);
        assert!(dcgm.follow(&gpus(), &one).is_err());
        std::fs::remove_file(&at).unwrap();
        dcgm.follow(&gpus(), &one).unwrap();
        assert_eq!(listing(&at), [("0".into(), "17\n".into())]);
    }

    #[test]
    fn a_directory_that_all_may_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let temporary = tempfile::tempdir().unwrap();
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(temporary.path(), open).unwrap();
        let dcgm = dir(Form::Dcgm, temporary.path());
        let error = dcgm.follow(&gpus(), &held(&[("GPU-a", &[(17, 1000)])]));
        assert!(error.unwrap_err().to_string().contains("chmod go-w"));
        assert_eq!(listing(temporary.path()), []);
    }
}
