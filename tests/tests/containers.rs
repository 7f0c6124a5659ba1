//! Containers of jobs and steps: real images, by crun, as the user.

use gpupool_tests::image::TestImage;
use gpupool_tests::pool::Pool;

#[test]
fn a_step_and_a_script_run_in_an_image_as_their_user() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let Some(image) = TestImage::new(&pool, "img") else {
        return;
    };
    let option = format!("--container-image={}", image.text());
    let line = "cat /etc/made-by; id -u; echo $WHO; pwd; hostname; ls /dev/nvidia*; exit 7";
    let said = pool.run_as_user("grun", &["--gpus=1", &option, "sh", "-c", line]);
    assert_eq!(said.code, 7, "{said:?}");
    let lines: Vec<&str> = said.out.lines().collect();
    let uid = pool.person().uid.to_string();
    assert_eq!(&lines[..4], ["umoci", &uid, "image", "/srv"], "{said:?}");
    // The script of a job, by a directive.
    let script =
        format!("#!/bin/sh\n#SBATCH {option}\nid -un > $0.out 2>&1; cat /etc/made-by; exit 3\n");
    let path = pool.write("script.sh", script);
    let id = pool
        .run_as_user("gsub", &["-o", "out", path.to_str().unwrap()])
        .id();
    let row = pool.wait_state(id, gmodel::JobState::Failed);
    assert_eq!(pool.file("out").trim(), "umoci", "{row:?}");
    // What its program is killed by, and a program that is not there.
    let said = pool.run_as_user("grun", &[&option, "nonsense"]);
    said.fails_with(127, "nonsense");
    pool.wait_idle("node1");
}

#[test]
fn the_tasks_of_a_step_share_a_container_and_options_do_what_they_say() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let Some(image) = TestImage::new(&pool, "img") else {
        return;
    };
    let option = format!("--container-image=oci:{}", image.tag("base"));
    let grun = |words: &[&str]| {
        let said = pool.run_as_user("grun", &[&[option.as_str()], words].concat());
        assert_eq!(said.code, 0, "{words:?}: {said:?}");
        said.out
    };
    // What one task writes another reads; the next step finds the image as it was.
    let meet = "touch /srv/$SLURM_PROCID; until [ -e /srv/0 ] && [ -e /srv/1 ] && [ -e /srv/2 ]; do :; done; kill -0 1; echo met";
    assert_eq!(grun(&["-n3", "-O", "sh", "-c", meet]), "met\nmet\nmet\n");
    assert_eq!(grun(&["ls", "/srv"]), "");
    // Mounts, a directory, variables, the entrypoint, root, what cannot be written.
    let here = pool.write("data", "of the node\n");
    let mount = format!(
        "--container-mounts={}:/in/data:ro,tmpfs:/fresh",
        here.display()
    );
    let line = "cat /in/data; ls /fresh; echo x 2>/dev/null >/in/data || echo no";
    assert_eq!(grun(&[&mount, "sh", "-c", line]), "of the node\nno\n");
    assert_eq!(grun(&["--container-workdir=/tmp", "pwd"]), "/tmp\n");
    let kept = pool
        .user_command("grun")
        .env("WHO", "job")
        .args([&option, "--container-env=WHO", "sh", "-c", "echo $WHO"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&kept.stdout), "job\n", "{kept:?}");
    image.configure(&[
        "--config.entrypoint=/bin/echo",
        "--config.entrypoint=entered",
    ]);
    assert_eq!(grun(&["--container-entrypoint", "x"]), "entered x\n");
    assert_eq!(grun(&["echo", "x"]), "x\n");
    assert_eq!(grun(&["--container-remap-root", "id", "-u"]), "0\n");
    let line = "echo x 2>/dev/null >/srv/x || echo no";
    assert_eq!(grun(&["--container-readonly", "sh", "-c", line]), "no\n");
    let own = pool.user_command("grun");
    let own = own.get_program().to_str().unwrap();
    // Kept by name within the job, and written out.
    let saved = pool.work.join("saved.sqsh");
    let save = format!("--container-save={}", saved.display());
    grun(&[&save, "sh", "-c", "echo changed > /srv/x"]);
    let again = format!("--container-image={}", saved.display());
    let said = pool.run_as_user("grun", &[&again, "cat", "/srv/x", "/etc/made-by"]);
    assert_eq!(said.out, "changed\numoci\n", "{said:?}");
    let script = format!(
        "#!/bin/sh\n{own} {option} --container-name=mine sh -c 'echo kept > /srv/y'\n{own} --container-name=mine cat /srv/y\n{own} --container-name=other true\n"
    );
    let path = pool.write("names.sh", script);
    let id = pool
        .run_as_user("gsub", &["-o", "names.out", path.to_str().unwrap()])
        .id();
    pool.wait_state(id, gmodel::JobState::Failed);
    let said = pool.file("names.out");
    assert!(
        said.starts_with("kept\n") && said.contains("no container \"other\""),
        "{said}"
    );
    // A bundle that was made elsewhere.
    let bundle = pool.work.join("bundle");
    image.unpack(&bundle);
    let said = pool.run_as_user(
        "grun",
        &[
            &format!("--container={}", bundle.display()),
            "cat",
            "/etc/made-by",
        ],
    );
    assert_eq!(said.out, "umoci\n", "{said:?}");
    // What cannot be is said before anything starts.
    pool.run_as_user("grun", &["--container-workdir=/tmp", "true"])
        .fails_with(2, "Add --container-image");
    pool.run_as_user("grun", &["--container-image=podman://x", "true"])
        .fails_with(2, "not known here");
    let said = pool.run_as_user("grun", &["--container-image=/nowhere", "true"]);
    said.fails_with(1, "/nowhere: No such file");
    pool.wait_idle("node1");
}

#[test]
fn root_in_a_container_is_no_root_outside() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let Some(image) = TestImage::new(&pool, "img") else {
        return;
    };
    let option = format!("--container-image={}", image.text());
    let secret = pool.write("secret", "of root\n");
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let foreign = std::fs::read_dir("/dev")
        .unwrap()
        .flatten()
        .find(|entry| entry.file_name() == "vda");
    let disk = foreign.map_or("/dev/loop-control".to_owned(), |entry| {
        entry.path().display().to_string()
    });
    let tries = [
        "mknod /srv/disk b 254 0",
        "mknod /srv/null c 1 3",
        &format!("mount {disk} /srv"),
        "mount -o remount,rw /sys",
        &format!("cat {}", secret.display()),
        "cat /proc/1/environ",
        "chown 12345 /srv",
        "echo 1 > /sys/fs/cgroup/memory/gpupool/memory.limit_in_bytes",
        "mkdir /sys/fs/cgroup/own",
        "kill -0 1",
        "echo 1 > /proc/sys/kernel/sysrq",
        "head -c1 /proc/kcore",
        "echo x > /etc/hostname",
        &format!("ls {}/gpuctld/state", pool.dir.display()),
    ];
    let line =
        |words: &str| format!("if {words} 2>/dev/null >/dev/null; then echo 'done: {words}'; fi");
    let script: Vec<String> = tries.iter().map(|words| line(words)).collect();
    for remap in ["--no-container-remap-root", "--container-remap-root"] {
        let words = ["--gpus=1", &option, remap, "sh", "-c", &script.join("\n")];
        let said = pool.run_as_user("grun", &words);
        assert_eq!((said.code, said.out.as_str()), (0, ""), "{remap}: {said:?}");
        // What may be done is told in the same way.
        let words = [&option, remap, "sh", "-c", &line("touch /srv/own")];
        assert_eq!(
            pool.run_as_user("grun", &words).out,
            "done: touch /srv/own\n"
        );
    }
    // A file that is set-uid root in the image is its user's here, and gives no root rights.
    let said = pool.run_as_user("grun", &[&option, "su"]);
    assert_eq!(said.out.trim(), pool.person().uid.to_string(), "{said:?}");
    pool.wait_idle("node1");
}

#[test]
fn an_image_with_paths_upwards_and_set_uid_files_stays_in_its_directory() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let Some(image) = TestImage::new(&pool, "img") else {
        return;
    };
    // A file far above, a link out of the image and a file through it, a device.
    let layer = "mkdir -p deep/er && cd deep/er && echo evil > ../../evil && ln -s /tmp link
        tar -cPf ../../layer.tar ../../evil link && rm link && mkdir link && echo evil > link/evil-by-link
        tar -rPf ../../layer.tar link/evil-by-link";
    let made = pool.run_shell(layer);
    assert_eq!(made.code, 0, "{made:?}");
    image.add_layer(&pool.work.join("layer.tar"));
    let option = format!("--container-image={}", image.text());
    let line =
        "cat /evil /etc/made-by; cat /tmp/evil-by-link 2>/dev/null; ls -ld /bin/su | head -c10";
    let said = pool.run_as_user("grun", &[&option, "sh", "-c", line]);
    let _ = std::fs::remove_file(pool.work.join("evil"));
    assert!(
        !std::path::Path::new("/tmp/evil-by-link").exists()
            && !std::path::Path::new("/evil").exists()
    );
    let images = pool.dir.join("node1/spool/images");
    let strays = pool.run_shell(&format!(
        "find {} -maxdepth 3 -name 'evil*'",
        images.display()
    ));
    assert_eq!(strays.out, "", "{said:?}");
    // Ten thousand layers are refused before one is read.
    image.repeat_layers(10_000);
    let said = pool.run_as_user("grun", &[&option, "true"]);
    said.fails_with(1, "10000 layers");
    pool.wait_idle("node1");
}
