//! A task goes into its container and becomes the program. The first task makes the container, the other tasks wait.

use crate::container::ContainerError;
use crate::container::foreign::leave_variables;
use crate::container::gpus::set_variables;
use crate::container::news::{Teller, failure_words, inherited};
use crate::container::order::ContainerOrder;
use crate::container::program::{Program, ProgramFailure};
use crate::container::set_up::{self, LiveContainer, start_of};
use crate::container::store::StoredImage;
use gmodel::image_pull::{PullProgress, PullWord};
use nix::fcntl::{Flock, FlockArg};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// As `podman run` and `docker run` end when it was not the program that failed.
pub const NO_CONTAINER: u8 = 125;
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
const SAVE_PATIENCE: Duration = Duration::from_secs(3600);
/// Where programs are in an image that does not say.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Which GPUs there are is the job's to say: images for GPUs say `all`.
const OF_JOB: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"];
/// The image speaks a language of its own.
const NOT_TAKEN: [&str; 3] = ["LANG", "LANGUAGE", "LC_ALL"];

/// Never returns when the task has become the program.
pub fn run(order: &str, command: &[OsString]) -> ExitCode {
    let order: ContainerOrder = match serde_json::from_str(order) {
        Ok(order) => order,
        Err(e) => return failed(None, ContainerError::node(e)),
    };
    let mut teller = inherited(order.news).map(Teller::new);
    let entered = enter(&order, &mut teller);
    match entered {
        Err(e) => failed(teller, e),
        Ok(entrance) if order.spec.save.is_empty() => become_program(&order, &entrance, command),
        Ok(entrance) => stay_and_save(&order, &entrance, command),
    }
}

/// By the supervisor, or here.
fn failed(teller: Option<Teller<File>>, e: ContainerError) -> ExitCode {
    let words = failure_words(e.cause, &e.text);
    let (fault, text) = (e.cause, e.text);
    let told = teller.map(|mut teller| teller.say(&PullWord::Failed { fault, text }));
    if !told.is_some_and(|told| told.is_ok()) {
        eprintln!("gstepd: {words}");
    }
    ExitCode::from(NO_CONTAINER)
}

/// What is needed to go in, open before the container's first process may go.
struct Entrance {
    user: File,
    mounts: File,
    container: LiveContainer,
}

fn enter(
    order: &ContainerOrder,
    teller: &mut Option<Teller<File>>,
) -> Result<Entrance, ContainerError> {
    let dir = &order.dir;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(ContainerError::of_file("making", dir))?;
    let lock = lock(dir)?;
    let state = dir.join("state.json");
    let known = fs::read(&state).ok();
    let known = known.and_then(|text| serde_json::from_slice::<LiveContainer>(&text).ok());
    let mut live = match known {
        Some(live) if start_of(live.pid) == Some(live.pid_start) => live,
        // A container with a name has its files still.
        known => first(order, known.map(|gone| gone.image), teller)?,
    };
    let open = |name: &str| {
        let path = format!("/proc/{}/ns/{name}", live.pid);
        File::open(&path).map_err(|e| ContainerError::node(format_args!("{path}: {e}")))
    };
    let (user, mounts) = (open("user")?, open("mnt")?);
    live.joined += 1;
    // What is open keeps the namespaces: the first process is needed no more.
    if live.joined >= order.tasks && !order.has_name() && order.spec.save.is_empty() {
        let _ = kill(Pid::from_raw(live.pid), Signal::SIGKILL);
    }
    write_state(order, &live)?;
    drop(lock);
    Ok(Entrance {
        user,
        mounts,
        container: live,
    })
}

fn write_state(order: &ContainerOrder, live: &LiveContainer) -> Result<(), ContainerError> {
    let path = order.dir.join("state.json");
    let text = serde_json::to_vec(live).map_err(ContainerError::node)?;
    fs::write(&path, text).map_err(ContainerError::of_file("writing", &path))
}

fn lock(dir: &Path) -> Result<Flock<File>, ContainerError> {
    let path = dir.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path);
    Flock::lock(
        file.map_err(ContainerError::of_file("making", &path))?,
        FlockArg::LockExclusive,
    )
    .map_err(|(_, e)| ContainerError::node(format_args!("locking {}: {e}", path.display())))
}

/// Makes the container. What cannot be had is not tried again by each task of the step.
fn first(
    order: &ContainerOrder,
    kept: Option<StoredImage>,
    teller: &mut Option<Teller<File>>,
) -> Result<LiveContainer, ContainerError> {
    let failed = order.dir.join("failed");
    if let Ok(text) = fs::read_to_string(&failed)
        && !order.has_name()
    {
        return Err(ContainerError::user(text));
    }
    let mut tell = |progress: PullProgress| {
        if let Some(teller) = teller {
            let _ = teller.tell(progress);
        }
    };
    let made =
        set_up::make(order, kept, &mut tell).inspect_err(|e| drop(fs::write(&failed, &e.text)))?;
    if let Some(teller) = teller {
        let image = made.image.name.clone();
        let _ = teller.say(&PullWord::Done { image });
    }
    Ok(made)
}

fn go_in(entrance: &Entrance, order: &ContainerOrder) -> io::Result<()> {
    setns(&entrance.user, CloneFlags::CLONE_NEWUSER)?;
    setns(&entrance.mounts, CloneFlags::CLONE_NEWNS)?;
    nix::sys::prctl::set_no_new_privs()?;
    let config = &entrance.container.image.config;
    let place = [&order.spec.work_dir, &config.work_dir]
        .into_iter()
        .find(|dir| !dir.is_empty());
    let place = place.map_or("/", String::as_str);
    std::env::set_current_dir(place).map_err(|e| {
        io::Error::new(
            e.kind(),
            format!("the directory {place} in the container: {e}"),
        )
    })
}

/// What the program finds: the image's values, where the job's are not to be kept.
fn variables(
    own: impl Iterator<Item = (OsString, OsString)>,
    image: &[String],
    kept: &[String],
) -> BTreeMap<OsString, OsString> {
    let is_kept = |name: &OsStr| {
        let of_job = OF_JOB.into_iter();
        of_job
            .chain(kept.iter().map(String::as_str))
            .any(|kept| name == kept)
    };
    let mut all: BTreeMap<OsString, OsString> = own
        .filter(|(name, _)| {
            is_kept(name) || name != "PATH" && !NOT_TAKEN.iter().any(|gone| name == gone)
        })
        .collect();
    for (name, value) in image.iter().filter_map(|line| line.split_once('=')) {
        if !(is_kept(name.as_ref()) && all.contains_key(OsStr::new(name))) {
            all.insert(name.into(), value.into());
        }
    }
    all.entry("PATH".into())
        .or_insert_with(|| USUAL_PATH.into());
    all
}

fn program_of(order: &ContainerOrder, entrance: &Entrance, command: &[OsString]) -> Command {
    let config = &entrance.container.image.config;
    let entrypoint = config
        .entrypoint
        .iter()
        .filter(|_| order.spec.entrypoint == Some(true));
    let mut words = entrypoint
        .map(OsString::from)
        .chain(command.iter().cloned());
    let mut program = Command::new(words.next().unwrap_or_default());
    let mut all = variables(std::env::vars_os(), &config.env, &order.spec.env);
    set_variables(&mut all, &entrance.container.gpu_env);
    program.args(words).env_clear().envs(all);
    program
}

fn become_program(order: &ContainerOrder, entrance: &Entrance, command: &[OsString]) -> ExitCode {
    if let Err(e) = go_in(entrance, order) {
        eprintln!("gstepd: container: {e}");
        return ExitCode::from(NO_CONTAINER);
    }
    let mut program = program_of(order, entrance, command);
    let e = program.exec();
    eprintln!(
        "gstepd: container: {}: {e}",
        String::from_utf8_lossy(program.get_program().as_bytes())
    );
    ExitCode::from(if e.kind() == io::ErrorKind::NotFound {
        NOT_FOUND
    } else {
        NOT_EXECUTABLE
    })
}

/// Has another process become the program; the last task that ends writes the container's files out.
fn stay_and_save(order: &ContainerOrder, entrance: &Entrance, command: &[OsString]) -> ExitCode {
    // Signals go to all processes of a task; a child of this one begins with none blocked.
    let _ = SigSet::all().thread_block();
    let mut program = Command::new("/proc/self/exe");
    let text = serde_json::to_string(&ContainerOrder {
        // The container is here, and this process keeps what is to be saved.
        tasks: u32::MAX,
        news: None,
        spec: gmodel::container::ContainerSpec {
            save: String::new(),
            ..order.spec.clone()
        },
        ..order.clone()
    });
    let status = program
        .args(["--container", &text.unwrap_or_default(), "--"])
        .args(command)
        .status();
    let code = match status {
        Ok(status) => status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(128 + status.signal().unwrap_or(0) as u8),
        Err(_) => NO_CONTAINER,
    };
    match save(order, entrance) {
        Ok(()) => ExitCode::from(code),
        Err(e) => {
            eprintln!("gstepd: container: {}", e.text);
            ExitCode::from(if code == 0 { NO_CONTAINER } else { code })
        }
    }
}

/// Only the last task of the container here saves it.
fn save(order: &ContainerOrder, entrance: &Entrance) -> Result<(), ContainerError> {
    let _lock = lock(&order.dir)?;
    let text = fs::read(order.dir.join("state.json")).map_err(ContainerError::node)?;
    let mut live: LiveContainer = serde_json::from_slice(&text).map_err(ContainerError::node)?;
    live.ended += 1;
    write_state(order, &live)?;
    if live.ended < order.tasks {
        return Ok(());
    }
    let part = format!("{}.part-{}", order.spec.save, std::process::id());
    // Handed down open: the program itself has no rights over the container's first process.
    let root = rustix::fs::open(
        format!("/proc/{}/root", live.pid),
        OFlags::PATH | OFlags::DIRECTORY,
        Mode::empty(),
    )
    .map_err(ContainerError::node)?;
    // A read-only container has no room for them, and is saved all the same.
    let _ = leave_variables(&root, &live.image.config.env);
    setns(&entrance.user, CloneFlags::CLONE_NEWUSER).map_err(ContainerError::node)?;
    let pack = Program::new("mksquashfs", order.dir.join("words"))?
        .args([
            format!("/proc/self/fd/{}/.", root.as_raw_fd()),
            part.clone(),
        ])
        .args([
            "-noappend",
            "-no-progress",
            "-all-root",
            "-one-file-system",
            "-exit-on-error",
            "-quiet",
        ]);
    let packed = pack.run(SAVE_PATIENCE, &mut || {
        Ok(fs::metadata(&part).map_or(0, |meta| meta.len()))
    });
    let done = match packed {
        Ok(_) => fs::rename(&part, &order.spec.save).map_err(|e| e.to_string()),
        Err(ProgramFailure::Refused(e)) => Err(e.text),
        Err(ProgramFailure::Ended { words }) => Err(words),
        Err(ProgramFailure::Stalled(_)) => Err("mksquashfs stands still".to_owned()),
    };
    done.map_err(|why| {
        let _ = fs::remove_file(&part);
        ContainerError::user(format_args!("--container-save {}: {why}", order.spec.save))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_the_last_word_unless_a_variable_is_to_be_kept() {
        let own = [
            ("PATH", "/host"),
            ("LANG", "de"),
            ("A", "job"),
            ("B", "job"),
            ("GSUB_JOB_ID", "17"),
        ];
        let own = || {
            own.iter()
                .map(|(name, value)| (OsString::from(name), OsString::from(value)))
        };
        let image = [
            "PATH=/image".to_owned(),
            "A=image".to_owned(),
            "B=image".to_owned(),
            "nonsense".to_owned(),
        ];
        let all = variables(own(), &image, &["B".to_owned(), "LANG".to_owned()]);
        let value = |name: &str| all.get(OsStr::new(name)).and_then(|value| value.to_str());
        assert_eq!(value("PATH"), Some("/image"));
        assert_eq!((value("A"), value("B")), (Some("image"), Some("job")));
        assert_eq!(
            (value("LANG"), value("GSUB_JOB_ID")),
            (Some("de"), Some("17"))
        );
        let bare = variables(own(), &[], &[]);
        assert_eq!(bare.get(OsStr::new("PATH")).unwrap(), USUAL_PATH);
        assert!(!bare.contains_key(OsStr::new("LANG")));
    }
}
