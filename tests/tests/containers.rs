//! Containers of jobs and steps: real images, by crun, as the user.

use gpupool_tests::image::TestImage;
use gpupool_tests::pool::Pool;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

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
    // With the variables of the image that it was.
    let said = pool.run_as_user("grun", &[&again, "sh", "-c", "echo $WHO"]);
    assert_eq!(said.out, "image\n", "{said:?}");
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

/// Device files of a node: the name, and the numbers as mknod wants them.
fn gpu_devices(pool: &Pool) -> Vec<(String, String)> {
    use std::os::unix::fs::MetadataExt;
    let dir = pool.dir.join("node1/dev");
    let number = |minor: u32| {
        let name = format!("nvidia{minor}");
        let device = std::fs::metadata(dir.join(&name)).unwrap().rdev();
        let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
        (name, format!("c {major} {minor}"))
    };
    let gpus = pool.node("node1").gpus;
    gpus.iter().map(|gpu| number(gpu.minor)).collect()
}

/// Ways to another job's GPU, cgroups, processes and files, with the whole machine mounted at `/host` and its devices at `/dev-of-node`.
fn ways_to(pool: &Pool, job: u64, pid: i32, secret: &str) -> Vec<String> {
    let mut ways = Vec::new();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let of_cgroups = mounts.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        fields[2]
            .starts_with("cgroup")
            .then(|| fields[1].to_owned())
    });
    let run = format!("gpupool-{}/node1/run_{job}-1", pool.tag());
    for tree in of_cgroups {
        for dir in [run.clone(), format!("{run}/job")] {
            let dir = format!("/host{tree}/{dir}");
            let words = format!("[ -d {dir} ] && echo $$ > {dir}/cgroup.procs");
            ways.extend([words, format!("mkdir {dir}/own")]);
            ways.push(format!(
                "[ -e {dir}/cgroup.kill ] && echo 1 > {dir}/cgroup.kill"
            ));
        }
    }
    for (_, numbers) in gpu_devices(pool) {
        ways.push(format!("mknod /srv/gpu {numbers}"));
    }
    ways.extend([
        format!("kill -9 {pid}"),
        format!("cat /host/proc/{pid}/environ"),
        format!("ls /host/proc/{pid}/root/"),
        format!("ls /host/proc/{pid}/fd"),
        format!("cat /host{secret}"),
        format!("chmod 666 /host{secret}"),
        format!("echo x > /host{secret}"),
        "cat /host/etc/shadow".to_owned(),
        "touch /host/etc/own".to_owned(),
        "chroot /host su -c true".to_owned(),
        "chroot /host mount -t cgroup2 none /mnt".to_owned(),
        format!("chroot /host nsenter -t {pid} -m true"),
        "chroot /host nsenter -t 1 -m true".to_owned(),
        "chroot /host unshare -Urm mount -t cgroup2 none /mnt".to_owned(),
    ]);
    ways
}

#[test]
fn root_in_a_container_reaches_no_gpu_cgroup_process_or_file_of_another_job() {
    let Some(pool) = Pool::up(1, "h100:3") else {
        return;
    };
    let Some(image) = TestImage::new(&pool, "img") else {
        return;
    };
    let script = "umask 077; echo secret > secret; echo $$ > pid; exec sleep 1000";
    let job = pool.gsub(&["--gpus", "1", "--wrap", script]);
    let pid: i32 = pool.wait_file("pid").trim().parse().unwrap();
    let secret = pool.work.join("secret").display().to_string();
    let ways: Vec<String> = ways_to(&pool, job, pid, &secret)
        .iter()
        .map(|words| format!("if ( {words} ) >/dev/null 2>&1; then echo 'done: {words}'; fi"))
        .collect();
    let option = format!("--container-image={}", image.text());
    let mounts = format!(
        "--container-mounts=/:/host,{}/node1/dev:/dev-of-node",
        pool.dir.display()
    );
    let step = |remap: &str, line: &str| {
        let words = ["--gpus=1", &option, remap, &mounts, "sh", "-c", line];
        let said = pool.run_as_user("grun", &words);
        assert_eq!(said.code, 0, "{remap}: {said:?}");
        said.out
    };
    let devices = gpu_devices(&pool);
    let look = "for d in /dev-of-node/nvidia[0-9]; do echo \"${d#/dev-of-node/} $( ( : < $d ) 2>&1 )\"; done; ls /dev";
    for remap in ["--no-container-remap-root", "--container-remap-root"] {
        // The mount gives every device file; the fence denies all but the job's own. There is no driver behind that one.
        let seen = step(remap, look);
        let said = |words: &str| {
            let opened = |name: &&String| {
                seen.lines()
                    .any(|line| line.starts_with(&format!("{name} ")) && line.ends_with(words))
            };
            devices.iter().map(|(name, _)| name).filter(opened).count()
        };
        assert_eq!(said("No such device or address"), 1, "{remap}: {seen}");
        assert_eq!(said("Operation not permitted"), 2, "{remap}: {seen}");
        let bare = |line: &&str| {
            line.strip_prefix("nvidia")
                .is_some_and(|n| n.parse::<u32>().is_ok())
        };
        assert_eq!(
            seen.lines().filter(bare).count(),
            1,
            "its own alone: {seen}"
        );
        assert_eq!(step(remap, &ways.join("\n")), "", "{remap}");
        // What may be done is told in the same way, of a process and a file of the user's own.
        let may = "sleep 100 & if ( kill -9 $! ) >/dev/null 2>&1; then echo done; fi; cat /host/etc/passwd >/dev/null && echo done";
        assert_eq!(step(remap, may), "done\ndone\n", "{remap}");
    }
    assert!(gpupool_tests::pool::is_alive(pid), "the other job goes on");
    assert_eq!(pool.job(job).state, gmodel::JobState::Running);
    assert_eq!(pool.file("secret"), "secret\n");
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

#[test]
fn squashfs_files_of_enroot_and_apptainer_bring_their_variables() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let Some(image) = TestImage::new(&pool, "img") else {
        return;
    };
    let bundle = pool.work.join("bundle");
    image.unpack(&bundle);
    let root = bundle.join("rootfs");
    let put = |name: &str, text: &str| {
        fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        fs::write(root.join(name), text).unwrap();
    };
    put(
        ".singularity.d/env/10-docker2singularity.sh",
        "#!/bin/sh\nexport PATH=\"/bin\"\nexport WHO=\"${WHO:-\"apptainer\"}\"\n",
    );
    put(
        ".singularity.d/runscript",
        "#!/bin/sh\necho run by its script\nexec \"$@\"\n",
    );
    let line = "echo $WHO; cat /etc/made-by; pwd";
    let sif = pool.work.join("image.sif");
    TestImage::pack(&root, &sif);
    let option = format!("--container-image={}", sif.display());
    let words = [&option, "--container-entrypoint", "sh", "-c", line];
    let said = pool.run_as_user("grun", &words);
    assert_eq!(
        said.out, "run by its script\napptainer\numoci\n/\n",
        "{said:?}"
    );
    put("etc/environment", "WHO=enroot\nPATH=/bin\n");
    put(
        "etc/rc",
        "mkdir -p \"/srv\" 2> /dev/null\ncd \"/srv\" && unset OLDPWD || exit 1\necho run by rc\nexec \"$@\"\n",
    );
    fs::remove_dir_all(root.join(".singularity.d")).unwrap();
    let sqsh = pool.work.join("image.sqsh");
    TestImage::pack(&root, &sqsh);
    let option = format!("--container-image={}", sqsh.display());
    let said = pool.run_as_user("grun", &[&option, "sh", "-c", line]);
    assert_eq!(said.out, "enroot\numoci\n/srv\n", "{said:?}");
    let words = [&option, "--container-entrypoint", "sh", "-c", line];
    let said = pool.run_as_user("grun", &words);
    assert_eq!(said.out, "run by rc\nenroot\numoci\n/srv\n", "{said:?}");
    // What is no such file is said, and what would do.
    fs::write(&sif, "x").unwrap();
    let option = format!("--container-image={}", sif.display());
    let said = pool.run_as_user("grun", &[&option, "true"]);
    said.fails_with(
        1,
        "it is no SIF file. What Apptainer can read it can unpack: apptainer build",
    );
    pool.wait_idle("node1");
}

/// Says how many GPUs CUDA counts.
const SEEN: &str = "#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *cuda = dlopen(\"libcuda.so.1\", RTLD_NOW);
    if (!cuda) { puts(dlerror()); return 3; }
    int (*init)(unsigned) = dlsym(cuda, \"cuInit\");
    int (*count)(int *) = dlsym(cuda, \"cuDeviceGetCount\");
    int many = 0, code = init(0);
    if (!code) code = count(&many);
    printf(\"%d GPUs, code %d\\n\", many, code);
    return 0;
}
";

/// The simulated driver, and what a program needs that finds it: mounts for a container that has no C library.
fn driver(pool: &Pool) -> (PathBuf, String) {
    let source = pool.write("seen.c", SEEN);
    let built = format!(
        "cc -o {0}/seen {1} -ldl",
        pool.work.display(),
        source.display()
    );
    assert_eq!(pool.run_shell(&built).code, 0, "{built}");
    // Its state says which GPUs there are, and `dev` beside it which may be opened.
    let sim = pool.work.join("sim");
    fs::create_dir(&sim).unwrap();
    fs::copy(
        pool.dir.join("node1/nvml/state.json"),
        sim.join("state.json"),
    )
    .unwrap();
    std::os::unix::fs::symlink("/dev", sim.join("dev")).unwrap();
    assert_eq!(
        pool.run_shell(&format!("chmod -R a+rX {}", sim.display()))
            .code,
        0
    );
    let loader = [
        "/lib/x86_64-linux-gnu",
        "/lib64",
        "/lib/aarch64-linux-gnu",
        "/lib/ld-linux-aarch64.so.1",
    ];
    let loader = loader
        .into_iter()
        .filter(|path| std::path::Path::new(path).exists());
    let mounts: Vec<String> = loader.map(|path| format!("{path}:{path}:ro")).collect();
    let mounts = format!("{},{}/seen:/seen", mounts.join(","), pool.work.display());
    (sim, format!("--container-mounts={mounts}"))
}

#[test]
fn cuda_in_a_container_counts_the_jobs_gpus_by_known_libraries_or_by_the_nodes_spec() {
    let Some(pool) = Pool::up(1, "h100:3") else {
        return;
    };
    let Some(image) = TestImage::new(&pool, "img") else {
        return;
    };
    image.configure(&["--config.env=NVIDIA_VISIBLE_DEVICES=all"]);
    let option = format!("--container-image={}", image.text());
    let (sim, mounts) = driver(&pool);
    let count = "env -u CUDA_VISIBLE_DEVICES /seen; ls /dev | grep -c '^nvidia[0-9]'; echo $NVIDIA_VISIBLE_DEVICES | grep -c GPU-";
    let grun = |more: &[&str], line: &str| {
        let words = [more, &[&option, "sh", "-c", line]].concat();
        let said = pool.user_command("grun").args(words).output().unwrap();
        (
            String::from_utf8_lossy(&said.stdout).into_owned(),
            String::from_utf8_lossy(&said.stderr).into_owned(),
        )
    };
    let with_sim = format!("{mounts},{}:/sim", sim.display());
    let line = format!("export NVML_SIM_STATE=/sim; {count}; echo $LD_LIBRARY_PATH");
    let found = "/usr/local/nvidia/lib64\n";
    let (out, err) = grun(&["--gpus=2", &with_sim], &line);
    assert_eq!(out, format!("2 GPUs, code 0\n2\n1\n{found}"), "{err}");
    let (out, err) = grun(&["--gpus=1", &with_sim], &line);
    assert_eq!(out, format!("1 GPUs, code 0\n1\n1\n{found}"), "{err}");
    let (out, _) = grun(
        &[],
        "ls /dev /usr/local/nvidia 2>/dev/null | grep -c nvidia",
    );
    assert_eq!(out, "0\n");
    // By the spec of the node.
    let cdi = pool.work.join("cdi");
    let hook = "#!/bin/sh\nbundle=$(sed -n 's/.*\"bundle\" *: *\"\\([^\"]*\\)\".*/\\1/p')\necho hooked > $bundle/merged/srv/hooked\n";
    fs::create_dir(&cdi).unwrap();
    let path = cdi.join("hook");
    fs::write(&path, hook).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let spec = cdi.join("nvidia.yaml");
    fs::write(&spec, cdi_spec(&pool, &sim, &path)).unwrap();
    pool.reconfigure("node1", &format!("cdi_dirs = [\"{}\"]", cdi.display()));
    let line = format!(
        "{count}; cat /srv/hooked; echo $LD_LIBRARY_PATH; ls /usr/local/nvidia 2>/dev/null"
    );
    let (out, err) = grun(&["--gpus=2", &mounts], &line);
    assert_eq!(out, "2 GPUs, code 0\n2\n1\nhooked\n/opt/driver\n", "{err}");
    // A spec of another driver, and one that is not root's alone.
    fs::rename(&sim, sim.with_extension("gone")).unwrap();
    let (_, err) = grun(&["--gpus=1", &mounts], "true");
    assert!(
        err.contains("sim: No such file")
            && err.contains("`nvidia-ctk cdi generate` writes it anew"),
        "{err}"
    );
    fs::set_permissions(&spec, fs::Permissions::from_mode(0o666)).unwrap();
    let (_, err) = grun(&["--gpus=1", &mounts], "true");
    assert!(err.contains("that only root can write"), "{err}");
    // Without GPUs it is not looked at.
    let (out, err) = grun(&[], "cat /etc/made-by");
    assert_eq!(out, "umoci\n", "{err}");
    pool.wait_idle("node1");
}

/// As `nvidia-ctk cdi generate` writes it, for the simulated driver.
fn cdi_spec(pool: &Pool, sim: &std::path::Path, hook: &std::path::Path) -> String {
    let node = pool.dir.join("node1");
    let dev = node.join("dev").display().to_string();
    let mut cards: Vec<String> = fs::read_dir(&dev)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|name| name.trim_start_matches("nvidia").parse::<u32>().is_ok())
        .collect();
    cards.sort();
    let device = |(at, card): (usize, &String)| {
        format!(
            "- name: \"{at}\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/{card}\n      hostPath: {dev}/{card}\n"
        )
    };
    let devices: String = cards.iter().enumerate().map(device).collect();
    let library = node.join("nvml/libnvidia_ml_sim.so");
    format!(
        "---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
{devices}containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  - NVML_SIM_STATE=/sim
  - LD_LIBRARY_PATH=/opt/driver
  deviceNodes:
  - path: /dev/nvidiactl
    hostPath: {dev}/nvidiactl
  - path: /dev/nvidia-uvm
    hostPath: {dev}/nvidia-uvm
  mounts:
  - hostPath: {library}
    containerPath: /opt/driver/libcuda.so.1
    options: [ro, nosuid, nodev, bind]
  - hostPath: {sim}
    containerPath: /sim
    options:
    - ro
    - nosuid
    - nodev
    - rbind
    - rprivate
  hooks:
  - hookName: createContainer
    path: {hook}
    args:
    - hook
",
        library = library.display(),
        sim = sim.display(),
        hook = hook.display(),
    )
}
