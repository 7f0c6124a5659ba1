//! Programs of the site that mend GPUs, run as the daemon's user. (Prolog and epilog: `hook`.)
//!
//! Only a file that root alone can change is run, checked each time; the environment is fixed, the time bounded, and
//! everything it started is killed at its end.

use anyhow::{Context, Result, bail, ensure};
use gsys::cgroup::{CgroupRoot, Limits, RunCgroup};
use gsys::launch::BoundedProgram;
use gsys::process::Exit;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const TAIL_BYTES: u64 = 1024;
/// As the kernel follows.
const MOST_LINKS: u32 = 40;

/// One run of one program.
pub struct SiteProgram<'a> {
    /// `gpu_reset`, say.
    pub kind: &'static str,
    pub path: &'a Path,
    pub node_name: &'a str,
    /// `CUDA_VISIBLE_DEVICES`.
    pub gpu_uuid: &'a str,
    /// For its output.
    pub dir: &'a Path,
    /// Where its own cgroup is made; `None` without isolation.
    pub cgroups: Option<&'a CgroupRoot>,
    pub time_limit: Duration,
}

impl SiteProgram<'_> {
    /// Blocks until it ended well. The error is one sentence with the program's last words.
    pub fn run(&self) -> Result<()> {
        let program = check_ownership(self.path)
            .with_context(|| format!("{} {} was not run", self.kind, self.path.display()))?;
        let output = self.dir.join(format!("{}.out", self.kind));
        let name = format!("{}_", self.kind);
        let cgroup = self
            .cgroups
            .map(|root| RunCgroup::create(root, &name, &Limits::default()))
            .transpose()?;
        let bounded = BoundedProgram {
            argv: vec![program.into_os_string()],
            env: self.environment(),
            output: &output,
            cgroup: cgroup.as_ref(),
            time_limit: self.time_limit,
        };
        let outcome = bounded.run();
        if let Some(cgroup) = &cgroup {
            cgroup.kill()?;
            cgroup.wait_empty(Duration::from_secs(5))?;
            cgroup.remove()?;
        }
        let (kind, path, words) = (self.kind, self.path.display(), last_words(&output));
        let end = outcome.map_err(|e| anyhow::anyhow!("{kind}: {e}"))?;
        match end.exit {
            _ if end.timed_out => {
                let secs = self.time_limit.as_secs();
                bail!("{kind} {path} did not end within {secs} s and was killed{words}")
            }
            Exit::Code(0) => Ok(()),
            Exit::Code(code) => bail!("{kind} {path} ended with {code}{words}"),
            Exit::Signal(signal, _) => bail!("{kind} {path} was ended by signal {signal}{words}"),
        }
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        let lines = [
            ("PATH", crate::run::stand_by::PATH),
            ("CUDA_VISIBLE_DEVICES", self.gpu_uuid),
            ("GSUB_NODENAME", self.node_name),
            ("SLURM_NODENAME", self.node_name),
            ("SLURMD_NODENAME", self.node_name),
        ];
        lines
            .map(|(name, value)| (name.into(), value.into()))
            .into()
    }
}

/// The file, without links, if only root (or gpud's user, without root) can change it and each directory and link on its path.
/// A directory that others can write to is passed where it has the sticky bit: a file of root cannot be renamed there.
pub fn check_ownership(path: &Path) -> Result<PathBuf> {
    if !path.is_absolute() {
        bail!("its path is not absolute");
    }
    let own = nix::unistd::geteuid().as_raw();
    let mut to_walk: Vec<OsString> = path
        .components()
        .rev()
        .map(|part| part.as_os_str().to_owned())
        .collect();
    let (mut real, mut links) = (PathBuf::new(), 0);
    while let Some(part) = to_walk.pop() {
        if part == ".." {
            real.pop();
        }
        if part == ".." || part == "." {
            continue;
        }
        real.push(part);
        let meta = fs::symlink_metadata(&real).with_context(|| real.display().to_string())?;
        if meta.uid() != 0 && meta.uid() != own {
            bail!(
                "{} belongs to uid {}, it must be root's",
                real.display(),
                meta.uid()
            );
        }
        if meta.is_symlink() {
            links += 1;
            ensure!(
                links <= MOST_LINKS,
                "more than {MOST_LINKS} links lead to it"
            );
            let target = fs::read_link(&real)?;
            real.pop();
            to_walk.extend(
                target
                    .components()
                    .rev()
                    .map(|part| part.as_os_str().to_owned()),
            );
            continue;
        }
        let sticky_dir = meta.is_dir() && meta.mode() & 0o1000 != 0;
        if meta.mode() & 0o022 != 0 && !sticky_dir {
            bail!(
                "{} can be written by others (mode {:o}): chmod go-w it",
                real.display(),
                meta.mode() & 0o7777
            );
        }
    }
    Ok(real)
}

pub fn last_words(output: &Path) -> String {
    let mut tail = Vec::new();
    let read = File::open(output).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        file.take(TAIL_BYTES).read_to_end(&mut tail)
    });
    match read {
        Ok(count) if count > 0 => format!(
            ": {}",
            String::from_utf8_lossy(&tail).trim().replace('\n', " | ")
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn a_program_below_a_directory_that_others_can_change_is_refused() {
        if !gsys::user::is_root() {
            return println!("NOT RUN: without root no directory can be given away");
        }
        let top = std::env::temp_dir().join(format!("gpud-hooks-{}", std::process::id()));
        let program = top.join("a/b/hook");
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(&program, "").unwrap();
        let allow = |path: &Path, mode: u32| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap()
        };
        for path in [&program, &top, &top.join("a"), &top.join("a/b")] {
            allow(path, 0o755);
        }
        let link = top.join("link");
        symlink("a/../a/b", &link).unwrap();
        let said = |path: &Path| check_ownership(path).map_err(|e| format!("{e:#}"));
        assert_eq!(said(&link.join("hook")), Ok(program.clone()));
        // The grandparent is a user's.
        chown(top.join("a"), Some(12_345), None).unwrap();
        assert!(
            said(&program)
                .unwrap_err()
                .contains("/a belongs to uid 12345"),
            "{:?}",
            said(&program)
        );
        chown(top.join("a"), Some(0), None).unwrap();
        allow(&top.join("a"), 0o777);
        assert!(
            said(&program)
                .unwrap_err()
                .contains("/a can be written by others (mode 777)"),
            "{:?}",
            said(&program)
        );
        // As /tmp is.
        allow(&top.join("a"), 0o1777);
        assert_eq!(said(&program), Ok(program.clone()));
        // A link that its owner can point elsewhere.
        std::os::unix::fs::lchown(&link, Some(12_345), None).unwrap();
        assert!(
            said(&link.join("hook"))
                .unwrap_err()
                .contains("/link belongs to uid 12345")
        );
        symlink(top.join("loop"), top.join("loop")).unwrap();
        assert!(
            said(&top.join("loop"))
                .unwrap_err()
                .contains("more than 40 links")
        );
        assert!(
            said(Path::new("hook"))
                .unwrap_err()
                .contains("not absolute")
        );
        gsys::removal::remove_tree(&top).unwrap();
    }
}
