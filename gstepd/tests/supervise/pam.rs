//! PAM sessions around a run, with service files of the tests' own in /etc/pam.d, which are removed again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use gmodel::ExitCode;
use gmodel::run::EndCause;

use super::bench::{Bench, exists, wait_for};

struct Service {
    name: String,
    path: PathBuf,
}

impl Service {
    /// `None`, said aloud, without libpam or its modules.
    fn new(kind: &str, session: &str) -> Option<Service> {
        let test = std::thread::current()
            .name()
            .unwrap_or("this test")
            .to_owned();
        let dirs = [
            "/lib/x86_64-linux-gnu/security",
            "/usr/lib64/security",
            "/lib/aarch64-linux-gnu/security",
        ];
        if !dirs
            .iter()
            .any(|dir| Path::new(dir).join("pam_limits.so").exists())
        {
            println!("NOT RUN: {test} needs the PAM modules");
            return None;
        }
        let name = format!("gstepd-test-{kind}-{}", std::process::id());
        let path = Path::new("/etc/pam.d").join(&name);
        let lines =
            format!("account required pam_permit.so\nauth required pam_permit.so\n{session}\n");
        match fs::write(&path, lines) {
            Ok(()) => Some(Service { name, path }),
            Err(e) => {
                println!("NOT RUN: {test} needs to write {}: {e}", path.display());
                None
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[test]
fn a_session_is_open_around_the_job_and_its_settings_are_the_jobs_alone() {
    let script =
        "cat told; ulimit -Hn; ulimit -Sn; echo $SITE_SCRATCH; echo $PATH; echo $XDG_RUNTIME_DIR";
    let Some(mut bench) = Bench::isolated(script) else {
        return;
    };
    let (told, teller) = (bench.work.join("told"), bench.work.join("teller"));
    fs::write(
        &teller,
        format!(
            "#!/bin/sh\necho $PAM_TYPE $PAM_SERVICE $PAM_USER >> {}\n",
            told.display()
        ),
    )
    .unwrap();
    fs::set_permissions(&teller, fs::Permissions::from_mode(0o755)).unwrap();
    let (limits, variables) = (bench.work.join("limits.conf"), bench.work.join("variables"));
    fs::write(&limits, "* hard nofile 333\n* soft nofile 222\n").unwrap();
    fs::write(
        &variables,
        "SITE_SCRATCH=/scratch/x\nPATH=/site/bin\nXDG_RUNTIME_DIR=/run/user/here\n",
    )
    .unwrap();
    let session = format!(
        "session required pam_limits.so conf={}\nsession required pam_env.so conffile=/dev/null envfile={}\n\
         session required pam_exec.so {}",
        limits.display(),
        variables.display(),
        teller.display()
    );
    let Some(service) = Service::new("open", &session) else {
        return;
    };
    bench.setup.pam_service.clone_from(&service.name);
    bench.order.user.name = "nobody".into();
    bench
        .order
        .environment
        .push("XDG_RUNTIME_DIR=/run/user/login".into());
    let mut link = bench.start();
    let opened = format!("open_session {} nobody\n", service.name);
    assert_eq!(bench.file("told"), opened, "before the run is ready");
    let own = fs::read_to_string(format!("/proc/{}/limits", bench.gstepd_pid())).unwrap();
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .unwrap();
    assert_ne!(
        own.split_whitespace().next(),
        Some("222"),
        "the supervisor's own, as far as it may"
    );
    link.send(&gmodel::supervise::SupervisorCommand::Go);
    let end = link.end();
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::SUCCESS),
        "{}",
        end.text
    );
    assert_eq!(
        bench.file("out"),
        format!("{opened}333\n222\n/scratch/x\n/usr/bin:/bin\n/run/user/here\n")
    );
    drop(link);
    assert_eq!(bench.gstepd_exit(), Some(0));
    assert_eq!(
        bench.file("told"),
        format!("{opened}close_session {} nobody\n", service.name)
    );
}

#[test]
fn a_session_that_is_refused_is_the_nodes_error_and_names_the_service() {
    let Some(mut bench) = Bench::isolated("touch started") else {
        return;
    };
    let Some(service) = Service::new("refuse", "session required pam_deny.so") else {
        return;
    };
    bench.setup.pam_service.clone_from(&service.name);
    for (name, json) in [
        ("order", serde_json::to_vec(&bench.order)),
        ("setup", serde_json::to_vec(&bench.setup)),
    ] {
        fs::write(bench.run_dir().join(format!("{name}.json")), json.unwrap()).unwrap();
    }
    bench.spawn();
    assert_eq!(bench.gstepd_exit(), Some(1));
    let end = bench.record();
    assert_eq!(end.cause, EndCause::LaunchNode);
    let wanted = format!(
        "PAM service {:?}: PAM: opening the session of \"tester\": ",
        service.name
    );
    assert!(end.text.starts_with(&wanted), "{}", end.text);
    assert!(
        !exists(&bench.work.join("started")) && !exists(&bench.run_dir().join("ctl.sock")),
        "never ready"
    );
}

#[test]
fn a_run_that_is_stopped_before_it_starts_closes_its_session_too() {
    let Some(mut bench) = Bench::isolated("true") else {
        return;
    };
    let told = bench.work.join("told");
    fs::write(&told, "").unwrap();
    let teller = bench.work.join("teller");
    fs::write(
        &teller,
        format!("#!/bin/sh\necho $PAM_TYPE >> {}\n", told.display()),
    )
    .unwrap();
    fs::set_permissions(&teller, fs::Permissions::from_mode(0o755)).unwrap();
    let Some(service) = Service::new(
        "stop",
        &format!("session required pam_exec.so {}", teller.display()),
    ) else {
        return;
    };
    bench.setup.pam_service.clone_from(&service.name);
    let mut link = bench.start();
    link.stop(30);
    assert_eq!(link.end().cause, EndCause::Stopped);
    wait_for("the closing", || {
        bench
            .file("told")
            .ends_with("close_session\n")
            .then_some(())
    });
}
