//! PAM sessions, with service files of the tests' own in /etc/pam.d, which are removed again.

use std::fs;
use std::path::{Path, PathBuf};

use gsys::pam::Session;

use crate::scratch::not_run;

struct Service {
    name: String,
    path: PathBuf,
}

impl Service {
    /// `None`, said loudly, without root, libpam or its modules.
    fn new(kind: &str, lines: &str) -> Option<Service> {
        let modules = [
            "/lib/x86_64-linux-gnu/security",
            "/usr/lib64/security",
            "/lib/aarch64-linux-gnu/security",
        ];
        if !gsys::user::is_root()
            || !modules
                .iter()
                .any(|dir| Path::new(dir).join("pam_env.so").exists())
        {
            return not_run("needs root and the PAM modules");
        }
        let name = format!("gpupool-test-{kind}-{}", std::process::id());
        let path = Path::new("/etc/pam.d").join(&name);
        match fs::write(&path, lines) {
            Ok(()) => Some(Service { name, path }),
            Err(e) => not_run(&format!("needs to write {}: {e}", path.display())),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[test]
fn a_session_brings_its_variables_and_closes() {
    let variables = std::env::temp_dir().join(format!("gsys-pam-env-{}", std::process::id()));
    let lines = format!(
        "account required pam_permit.so\nauth required pam_permit.so\n\
         session required pam_env.so envfile={} conffile=/dev/null\n",
        variables.display()
    );
    let Some(service) = Service::new("open", &lines) else {
        return;
    };
    fs::write(&variables, "SITE_SCRATCH=/scratch/with space\n").expect("write");
    let session = Session::open(&service.name, "root");
    fs::remove_file(&variables).expect("clean up");
    let session = session.expect("permitted").expect("libpam is here");
    assert_eq!(
        session.environment(),
        [("SITE_SCRATCH".into(), "/scratch/with space".into())]
    );
    session.close("root").expect("close");
}

#[test]
fn a_module_that_says_no_is_quoted() {
    let lines = "account required pam_permit.so\nauth required pam_permit.so\nsession required pam_deny.so\n";
    let Some(service) = Service::new("session", lines) else {
        return;
    };
    let refused = Session::open(&service.name, "root").expect_err("pam_deny");
    assert!(
        refused
            .to_string()
            .starts_with("PAM: opening the session of \"root\": "),
        "{refused}"
    );
    drop(service);
    let lines = "account required pam_deny.so\nauth required pam_permit.so\nsession required pam_permit.so\n";
    let Some(service) = Service::new("account", lines) else {
        return;
    };
    let refused = Session::open(&service.name, "root").expect_err("pam_deny");
    assert!(
        refused
            .to_string()
            .starts_with("PAM: asking about the account of \"root\": "),
        "{refused}"
    );
}
