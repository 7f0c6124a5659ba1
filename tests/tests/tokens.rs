//! A machine outside of the cluster with a token: jobs over https, its caps, and what ends it.

use gmodel::JobState::{Cancelled, Running};
use gpupool_tests::pool::{CommandOutput, Pool};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A machine that knows the controller's address and has a token.
struct Laptop<'a> {
    pool: &'a Pool,
    home: PathBuf,
}

impl<'a> Laptop<'a> {
    fn new(pool: &'a Pool, token: &str) -> Self {
        let home = pool.work.join("laptop");
        let laptop = Self { pool, home };
        fs::create_dir_all(laptop.config()).unwrap();
        let text = format!("controller = \"https://{}\"\n", pool.controller());
        fs::write(laptop.config().join("gpupool.toml"), text).unwrap();
        laptop.keep(token, 0o600);
        laptop
    }

    fn config(&self) -> PathBuf {
        self.home.join(".config/gpupool")
    }

    fn keep(&self, token: &str, mode: u32) {
        let path = self.config().join("token");
        fs::write(&path, token).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn run(&self, program: &str, args: &[&str]) -> CommandOutput {
        let mut command = self.pool.command(program);
        command
            .env_remove("GPUPOOL_CONFIG")
            .env("HOME", &self.home)
            .env("GREETING", "hello")
            .env("LAPTOP", "yes")
            .current_dir(&self.home);
        command.args(args);
        gpupool_tests::pool::say(&mut command)
    }

    /// A job with a GPU for so many minutes.
    fn submit(&self, minutes: &str) -> CommandOutput {
        let work = self.pool.work.to_string_lossy().into_owned();
        let script = "echo $GREETING from $USER $LAPTOP; exec sleep 600";
        let args = [
            "--gpus",
            "1",
            "-t",
            minutes,
            "--chdir",
            &work,
            "--export=GREETING",
            "--wrap",
            script,
        ];
        self.run("gsub", &args)
    }
}

/// Any file below with this text in it.
fn holds(dir: &Path, text: &str) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => holds(&entry.path(), text),
        Ok(kind) if kind.is_file() => fs::read(entry.path()).is_ok_and(|bytes| {
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        }),
        _ => false,
    })
}

#[test]
fn a_machine_with_a_token_submits_to_its_cap_through_crashes_until_it_is_revoked() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let user = pool.person().name.clone();
    let made = pool.run(
        "gadm",
        &[
            "token",
            "user",
            &user,
            "--scope",
            "read,submit,cancel",
            "--expires",
            "1d",
            "--gpu-hours",
            "1",
            "--jobs",
            "3",
            "--note",
            "ci",
        ],
    );
    assert_eq!(made.code, 0, "{made:?}");
    let token = made.out.trim();
    let parts: Vec<&str> = token.split('_').collect();
    let (id, secret, pin) = (parts[1], parts[2], parts[3]);
    assert!(
        made.err.contains(&format!("https://{}", pool.controller())),
        "{made:?}"
    );
    let laptop = Laptop::new(&pool, token);

    let first = laptop.submit("30").id();
    pool.wait_state(first, Running);
    let second = laptop.submit("30").id();
    laptop.submit("1").fails_with(
        1,
        &format!("token {id} has 1 GPU-hours: 0 are used, 1 promised"),
    );
    pool.wait_until("the output is there", || {
        let shown = laptop.run("gq", &["--output", &first.to_string()]);
        shown.out == format!("hello from {user}\n")
    });
    assert!(laptop.run("gq", &[]).out.contains(&user));
    laptop
        .run("grun", &["hostname"])
        .fails_with(1, "there is no connection to steps");
    laptop
        .run("gacct", &[])
        .fails_with(1, "has not the scope report");
    laptop
        .run("gadm", &["node", "drain", "node1", "--reason", "x"])
        .fails_with(1, "has not the scope operate");

    // The controller dies; what was given and used by then is not forgotten.
    pool.kill("gpuctld");
    pool.start("gpuctld");
    laptop.submit("1").fails_with(1, "this would be 0.02 more");
    assert_eq!(laptop.run("gdel", &[&second.to_string()]).code, 0);
    pool.wait_state(second, Cancelled);
    let third = laptop.submit("25").id();

    laptop.keep(token, 0o644);
    laptop.run("gq", &[]).fails_with(1, "chmod 0600");
    laptop.keep(&token.replace(pin, &"0".repeat(64)), 0o600);
    laptop
        .run("gq", &[])
        .fails_with(1, "is not your controller");
    laptop.keep(&token.replace(secret, &"0".repeat(64)), 0o600);
    laptop
        .run("gq", &[])
        .fails_with(1, "this token is not known here");
    laptop.keep(token, 0o600);
    assert_eq!(laptop.run("gq", &[]).code, 0);

    let revoked = pool.run_as_user("gq", &["token", "revoke", id]);
    assert_eq!(revoked.code, 0, "{revoked:?}");
    laptop
        .run("gq", &[])
        .fails_with(1, &format!("token {id} was revoked by {user}"));
    laptop.submit("1").fails_with(1, "was revoked");
    let listed = pool.run_as_user("gq", &["token", "list", "--all"]);
    assert!(
        listed.out.contains("revoked") && listed.out.contains("ci"),
        "{listed:?}"
    );
    // Its jobs are its user's, and go on.
    pool.wait_state(first, Running);
    pool.wait_state(third, Running);
    assert!(
        !holds(&pool.dir, secret),
        "the secret is in a file of a daemon"
    );
}
