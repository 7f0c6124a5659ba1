//! The images of one user on this node: pulled and unpacked once, by digest; further runs that need it wait meanwhile. Always as the user.
//!
//! ```text
//! DIR/rootfs/KEY/       an unpacked image, whole        DIR/rootfs/.new-KEY/   one being unpacked, or left by a kill
//! DIR/image/KEY.json    its record                      DIR/lock/KEY           held by the one that brings it in, with its progress
//! ```
//! A user's images are the user's own files: nothing here lets one user bring files into another's image.

use crate::container::ContainerError;
use crate::container::cache::ImageCache;
use crate::container::foreign::config_in;
use crate::container::image::{ImageConfig, LayoutImage, Manifest, digest, read_bounded};
use crate::container::program::{Program, ProgramFailure, bytes_below};
use crate::container::sif::squashfs_offset;
use gmodel::container::{ImageSource, RegistryImage};
use gmodel::image_pull::PullProgress;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// For a program that asks no registry.
const PATIENCE: Duration = Duration::from_secs(60);
/// Twice what a node needs in its spool to start jobs.
const MIN_FREE_BYTES: u64 = 128 << 20;
/// A look at another's pull.
const WAIT_EVERY: Duration = Duration::from_millis(200);
/// A large layer may be one file for long.
const UNPACK_PATIENCE: Duration = Duration::from_secs(1800);

/// An image that is here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredImage {
    /// Its files.
    pub lower: PathBuf,
    /// `docker.io/library/ubuntu@sha256:...`, as it was asked for here; without a digest its path.
    pub name: String,
    pub config: ImageConfig,
    /// As its files were when they were unpacked.
    #[serde(default)]
    pub bytes: u64,
}

pub fn place_of(dir: &Path, key: &str) -> PathBuf {
    dir.join("rootfs").join(key)
}

pub fn record_of(dir: &Path, key: &str) -> PathBuf {
    dir.join("image").join(format!("{key}.json"))
}

pub fn lock_path(dir: &Path, key: &str) -> PathBuf {
    dir.join("lock").join(key)
}

pub struct ImageStore<'a> {
    pub dir: &'a Path,
    /// Directory of the containers of the run that asks.
    pub run: &'a Path,
    /// What images of the user may take here; those in use stay whatever they take.
    pub cache_bytes: u64,
    /// A registry that sends nothing for so long does not answer.
    pub registry_patience: Duration,
    /// Told again and again during a pull.
    pub progress: &'a mut dyn FnMut(PullProgress),
}

impl ImageStore<'_> {
    /// The image, brought in if it is not here.
    ///
    /// # Errors
    /// With a sentence, and whether the user, the registry or the node is at fault.
    pub fn image(&mut self, source: &ImageSource) -> Result<StoredImage, ContainerError> {
        for below in ["rootfs", "image", "lock"] {
            let dir = self.dir.join(below);
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
            made.map_err(ContainerError::of_file("making", &dir))?;
        }
        match source {
            ImageSource::Layout { path, tag } => self.layout(Path::new(path), tag),
            ImageSource::Path(path) => self.path(path),
            ImageSource::Registry(image) => self.registry(image),
        }
    }

    fn path(&mut self, text: &str) -> Result<StoredImage, ContainerError> {
        let path = Path::new(text);
        let meta = match fs::metadata(path) {
            Ok(meta) => meta,
            // /srv/layout:tag
            Err(e) => match text.rsplit_once(':') {
                Some((dir, tag)) if Path::new(dir).join("oci-layout").is_file() => {
                    return self.layout(Path::new(dir), tag);
                }
                _ => return Err(ContainerError::user(format_args!("image {text}: {e}"))),
            },
        };
        if meta.is_dir() {
            if path.join("oci-layout").is_file() {
                return self.layout(path, "");
            }
            return Ok(StoredImage {
                lower: path.to_owned(),
                name: text.to_owned(),
                config: config_in(path),
                ..StoredImage::default()
            });
        }
        match path.extension().and_then(|end| end.to_str()) {
            Some("sif") => {
                let file = File::open(path).map_err(|e| e.to_string());
                let offset = file.and_then(|file| squashfs_offset(&file));
                let offset = offset.map_err(|why| {
                    ContainerError::user(format_args!(
                        "{text}: {why}. What Apptainer can read it can unpack: apptainer build --sandbox DIR {text}, then --container-image=DIR"
                    ))
                })?;
                self.squashfs(path, &meta, offset)
            }
            Some("sqsh" | "squashfs" | "sqfs" | "img") => self.squashfs(path, &meta, 0),
            _ => Err(ContainerError::user(format_args!(
                "{text} is no image: a directory, an OCI layout, or a file that ends in .sqsh or .sif"
            ))),
        }
    }

    fn squashfs(
        &mut self,
        path: &Path,
        meta: &fs::Metadata,
        offset: u64,
    ) -> Result<StoredImage, ContainerError> {
        // A file that is written anew is another image.
        let key = format!(
            "sqsh-{:x}-{:x}-{:x}-{:x}",
            meta.dev(),
            meta.ino(),
            meta.size(),
            meta.mtime_nsec() as i128 + i128::from(meta.mtime()) * 1_000_000_000
        );
        self.once(&key, |store, new| {
            let unpack = store
                .program("unsquashfs", &key)?
                .args(["-no-progress", "-no-xattrs", "-ignore-errors"])
                .args(["-offset", &offset.to_string(), "-dest"])
                .args([new.as_os_str(), path.as_os_str()]);
            let unpacked = unpack.run(UNPACK_PATIENCE, &mut || store.unpacked(new, &key));
            unpacked.map_err(|failure| of_unpacking(&path.display().to_string(), failure))?;
            Ok(StoredImage {
                name: path.display().to_string(),
                config: config_in(new),
                ..StoredImage::default()
            })
        })
    }

    fn layout(&mut self, layout: &Path, tag: &str) -> Result<StoredImage, ContainerError> {
        let image = LayoutImage::find(layout, tag)?;
        let key = image.digest.replace(':', "-");
        let found = self.once(&key, |store, new| store.unpack(&image, new, &key))?;
        Ok(StoredImage {
            name: format!("{}@{}", layout.display(), image.digest),
            ..found
        })
    }

    fn unpack(
        &mut self,
        image: &LayoutImage,
        new: &Path,
        key: &str,
    ) -> Result<StoredImage, ContainerError> {
        let Manifest::Image { config, .. } = image.manifest()? else {
            return Err(ContainerError::user(
                "the layout's image is an index of several. Copy the one of this machine: skopeo copy",
            ));
        };
        let config = image.config(&config)?;
        let name = format!("{}:{}", image.layout.display(), image.tag);
        let unpack = self
            .program("umoci", key)?
            .args(["raw", "unpack", "--rootless", "--image", &name])
            .args([new]);
        let unpacked = unpack.run(UNPACK_PATIENCE, &mut || self.unpacked(new, key));
        unpacked.map_err(|failure| of_unpacking(&name, failure))?;
        Ok(StoredImage {
            config,
            ..StoredImage::default()
        })
    }

    /// What a tag means may change: the registry is asked once for each container, and sends layers only of an image that is not here.
    fn registry(&mut self, image: &RegistryImage) -> Result<StoredImage, ContainerError> {
        let name = format!("docker://{image}");
        let raw = self.inspect(&name)?;
        let own = sha256_of(self, &raw)?;
        let key = own.replace(':', "-");
        let just_gone = |_: &mut Self, _: &Path| Err(ContainerError::node("it has just gone"));
        let named = |found| StoredImage {
            name: format!("{}/{}@{own}", image.host, image.name),
            ..found
        };
        if self.is_known(&key)
            && let Ok(found) = self.once(&key, just_gone)
        {
            return Ok(named(found));
        }
        let mut manifest = Manifest::parse(&raw)?;
        if let Manifest::Index(digest) = &manifest {
            let one = RegistryImage {
                version: format!("@{digest}"),
                ..image.clone()
            };
            manifest = Manifest::parse(&self.inspect(&format!("docker://{one}"))?)?;
        }
        let Manifest::Image { layer_bytes, .. } = manifest else {
            return Err(ContainerError::user("the image is an index of indexes"));
        };
        let exact = RegistryImage {
            version: format!("@{own}"),
            ..image.clone()
        };
        self.once(&key, |store, new| {
            let layout = store.dir.join(format!("rootfs/.new-{key}-layout"));
            let _ = fs::remove_dir_all(&layout);
            let pulled = store.pull(&exact, &layout, layer_bytes, &key);
            let unpacked = pulled
                .and_then(|()| store.unpack(&LayoutImage::find(&layout, "image")?, new, &key));
            let _ = fs::remove_dir_all(&layout);
            unpacked
        })
        .map(named)
    }

    fn pull(
        &mut self,
        image: &RegistryImage,
        layout: &Path,
        all_bytes: u64,
        key: &str,
    ) -> Result<(), ContainerError> {
        let copy = self.program("skopeo", key)?.args([
            "copy",
            "--quiet",
            "--retry-times=2",
            &format!("docker://{image}"),
            &format!("oci:{}:image", layout.display()),
        ]);
        let copied = copy.run(self.registry_patience, &mut || {
            let done_bytes = bytes_below(layout);
            let progress = PullProgress {
                done_bytes: done_bytes.min(all_bytes),
                all_bytes,
                unpacks: false,
            };
            self.tell(progress, key).map(|()| done_bytes)
        });
        copied
            .map(drop)
            .map_err(|failure| of_registry(&image.to_string(), failure))
    }

    fn unpacked(&mut self, new: &Path, key: &str) -> Result<u64, ContainerError> {
        let done_bytes = bytes_below(new);
        let progress = PullProgress {
            done_bytes,
            all_bytes: 0,
            unpacks: true,
        };
        self.tell(progress, key).map(|()| done_bytes)
    }

    /// Runs that wait for the same image read the progress in its lock. A disk that is nearly full ends the pull: the node's jobs need room.
    fn tell(&mut self, progress: PullProgress, key: &str) -> Result<(), ContainerError> {
        (self.progress)(progress);
        let lock = lock_path(self.dir, key);
        if let Ok(text) = serde_json::to_vec(&progress) {
            let _ = fs::write(&lock, text);
        }
        let stat = nix::sys::statvfs::statvfs(self.dir)
            .map_err(ContainerError::of_file("looking at", self.dir))?;
        let free = stat.blocks_available() * stat.fragment_size();
        (free >= MIN_FREE_BYTES).then_some(()).ok_or_else(|| {
            ContainerError::node(format_args!(
                "this node's disk for images is full: {} MiB are free, {} stay free",
                free >> 20,
                MIN_FREE_BYTES >> 20
            ))
        })
    }

    /// The manifest that a name stands for.
    fn inspect(&self, name: &str) -> Result<Vec<u8>, ContainerError> {
        let key = format!("inspect-{}", std::process::id());
        let inspect = self
            .program("skopeo", &key)?
            .args(["inspect", "--raw", name]);
        inspect
            .run(self.registry_patience, &mut || Ok(0))
            .map_err(|failure| of_registry(name.trim_start_matches("docker://"), failure))
    }

    fn program(&self, name: &'static str, key: &str) -> Result<Program, ContainerError> {
        Program::new(name, self.dir.join(format!("lock/{key}.words")))
    }

    fn is_known(&self, key: &str) -> bool {
        record_of(self.dir, key).is_file()
    }

    fn known(&self, key: &str) -> Option<StoredImage> {
        let record = record_of(self.dir, key);
        let mut image: StoredImage = serde_json::from_slice(&read_bounded(&record).ok()?).ok()?;
        image.lower = place_of(self.dir, key);
        // When it was last used decides what goes first.
        let _ =
            File::open(&record).and_then(|file| file.set_modified(std::time::SystemTime::now()));
        image.lower.is_dir().then_some(image)
    }

    /// Makes the files of an image in a directory that gets its name when it is whole. Further runs of this image wait meanwhile. From then on the
    /// run uses it.
    fn once(
        &mut self,
        key: &str,
        make: impl Fn(&mut Self, &Path) -> Result<StoredImage, ContainerError>,
    ) -> Result<StoredImage, ContainerError> {
        let cache = ImageCache {
            dir: self.dir,
            run: self.run,
        };
        let _lock = self.lock(key)?;
        let known = self.known(key);
        let is_new = known.is_none();
        let image = match known {
            Some(known) => known,
            None => {
                cache.keep(self.cache_bytes);
                let made = self.make_files(key, &make);
                match made {
                    Err(e) if is_full(&e.text) && cache.keep(0) > 0 => {
                        self.make_files(key, &make)?
                    }
                    made => made?,
                }
            }
        };
        cache.mark_used(key)?;
        if is_new {
            cache.keep(self.cache_bytes);
        }
        Ok(image)
    }

    fn make_files(
        &mut self,
        key: &str,
        make: impl Fn(&mut Self, &Path) -> Result<StoredImage, ContainerError>,
    ) -> Result<StoredImage, ContainerError> {
        let new = self.dir.join(format!("rootfs/.new-{key}"));
        let place = place_of(self.dir, key);
        for left in [&new, &place] {
            remove(left)?;
        }
        let made = make(self, &new).inspect_err(|_| drop(remove(&new)))?;
        let made = StoredImage {
            bytes: bytes_below(&new),
            ..made
        };
        fs::rename(&new, &place).map_err(ContainerError::of_file("making", &place))?;
        let record = record_of(self.dir, key);
        let text = serde_json::to_vec(&made).map_err(ContainerError::node)?;
        fs::write(&record, text).map_err(ContainerError::of_file("writing", &record))?;
        Ok(StoredImage {
            lower: place,
            ..made
        })
    }

    /// Held by the run that brings the image in; further runs wait for it, and say how far it is.
    fn lock(&mut self, key: &str) -> Result<Flock<File>, ContainerError> {
        let path = lock_path(self.dir, key);
        let open = || {
            let mut options = OpenOptions::new();
            let options = options.create(true).truncate(false).write(true);
            options.mode(0o600).open(&path)
        };
        let mut file = open().map_err(ContainerError::of_file("making", &path))?;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((again, nix::Error::EWOULDBLOCK)) => file = again,
                Err((_, e)) => return Err(ContainerError::of_file("locking", &path)(e)),
            }
            let told = read_bounded(&path).ok();
            let told = told.and_then(|text| serde_json::from_slice(&text).ok());
            (self.progress)(told.unwrap_or_default());
            std::thread::sleep(WAIT_EVERY);
        }
    }
}

/// An image may hold directories that its owner cannot write to.
fn remove(path: &Path) -> Result<(), ContainerError> {
    gsys::removal::remove_tree(path).map_err(ContainerError::of_file("removing", path))
}

/// The digest of a manifest, as the registry has it.
fn sha256_of(store: &ImageStore<'_>, raw: &[u8]) -> Result<String, ContainerError> {
    let file = store
        .dir
        .join(format!("lock/manifest-{}", std::process::id()));
    fs::write(&file, raw).map_err(ContainerError::of_file("writing", &file))?;
    let words = store.program("skopeo", &format!("digest-{}", std::process::id()))?;
    let told = words
        .args(["manifest-digest".as_ref(), file.as_os_str()])
        .run(PATIENCE, &mut || Ok(0));
    let _ = fs::remove_file(&file);
    let told = told.map_err(|failure| of_registry("its manifest", failure))?;
    digest(String::from_utf8_lossy(&told).trim()).map(str::to_owned)
}

fn is_full(words: &str) -> bool {
    words.contains("disk for images is full")
        || words.contains("no space left")
        || words.contains("No space left")
        || words.contains("disk quota exceeded")
}

fn of_unpacking(name: &str, failure: ProgramFailure) -> ContainerError {
    match failure {
        ProgramFailure::Refused(e) => e,
        ProgramFailure::Stalled(patience) => ContainerError::node(format_args!(
            "unpacking {name}: nothing had moved for {} s",
            patience.as_secs()
        )),
        ProgramFailure::Ended { words } if is_full(&words) => ContainerError::node(format_args!(
            "unpacking {name}: this node's disk for images is full"
        )),
        ProgramFailure::Ended { words } => {
            ContainerError::user(format_args!("unpacking {name}: {words}"))
        }
    }
}

/// Words by which a registry says that asking again does not help.
const FINAL_WORDS: [&str; 8] = [
    "manifest unknown",
    "name unknown",
    "unauthorized",
    "denied",
    "invalid reference",
    "authentication required",
    "not found",
    "name invalid",
];

fn of_registry(name: &str, failure: ProgramFailure) -> ContainerError {
    match failure {
        ProgramFailure::Refused(e) => e,
        ProgramFailure::Stalled(patience) => ContainerError::registry(format_args!(
            "pulling {name}: the registry sent nothing for {} s",
            patience.as_secs()
        )),
        ProgramFailure::Ended { words } if is_full(&words) => ContainerError::node(format_args!(
            "pulling {name}: this node's disk for images is full"
        )),
        ProgramFailure::Ended { words } => {
            let lower = words.to_lowercase();
            match FINAL_WORDS.iter().any(|word| lower.contains(word)) {
                true => ContainerError::user(format_args!("pulling {name}: {words}")),
                false => ContainerError::registry(format_args!("pulling {name}: {words}")),
            }
        }
    }
}
