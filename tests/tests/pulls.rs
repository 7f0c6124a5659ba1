//! Images from a registry: pulled once, seen while they come, and what a registry that fails means for jobs and nodes.

use gmodel::JobState;
use gpupool_tests::image::TestImage;
use gpupool_tests::pool::Pool;
use gpupool_tests::registry::{RegistryMood, TestRegistry};
use std::fs;
use std::path::PathBuf;

struct Site {
    pool: Pool,
    image: TestImage,
    registry: TestRegistry,
    home: PathBuf,
}

impl Site {
    fn up(lines: &str) -> Option<Self> {
        let pool = Pool::up(1, "none")?;
        let image = TestImage::new(&pool, "img")?;
        if !lines.is_empty() {
            pool.reconfigure("node1", lines);
        }
        let registry = TestRegistry::of(&image.layout);
        let home = registry.home(&pool);
        Some(Self {
            pool,
            image,
            registry,
            home,
        })
    }

    /// A job in an image of the registry.
    fn submit(&self, image: &str, line: &str) -> u64 {
        self.submit_with(&[&format!("--container-image={image}")], line)
    }

    fn submit_without_image(&self, line: &str) -> u64 {
        self.submit_with(&[], line)
    }

    /// Of accounting.
    fn recorded(&self, id: u64) -> String {
        let id = id.to_string();
        let said = self
            .pool
            .run_as_user("gacct", &["-n", "-X", "-P", "-o", "Image", "-j", &id]);
        said.out.trim().to_owned()
    }

    fn submit_with(&self, options: &[&str], line: &str) -> u64 {
        let said = self
            .pool
            .user_command("gsub")
            .env("HOME", &self.home)
            .args(["--mem=200M", "-o", "%j.out", "--wrap", line])
            .args(options)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        text.trim().parse().unwrap_or_else(|_| panic!("{said:?}"))
    }

    fn reason(&self, id: u64, words: &str) {
        self.pool
            .wait_until(words, || self.pool.job(id).reason_text.contains(words));
    }

    fn is_well(&self) {
        let node = self.pool.node("node1");
        assert!(
            node.drains.is_empty() && node.strikes.is_empty(),
            "{node:?}"
        );
    }

    /// Programs that pull or unpack for this pool.
    fn pulls(&self) -> Vec<String> {
        let spool = self.pool.dir.join("node1/spool/images");
        gpupool_tests::pool::processes_with(spool.to_str().unwrap())
    }
}

#[test]
fn ten_jobs_pull_their_image_once_and_it_is_seen_while_it_comes() {
    let Some(site) = Site::up("") else { return };
    let (pool, image) = (&site.pool, site.registry.image());
    site.registry.is(RegistryMood::Serves(250));
    let jobs: Vec<u64> = (0..10)
        .map(|_| site.submit(&image, "cat /etc/made-by"))
        .collect();
    pool.wait_until("a part of it is here", || {
        let pull = pool.job(jobs[0]).pull;
        pull.starts_with("pulling ") && pull.contains("% of ") && !pull.contains(" 0%")
    });
    let listed = pool.run_as_user("gq", &[]).out;
    assert!(
        listed.contains("(pulling ") && listed.contains(" on node1)"),
        "{listed}"
    );
    let one = pool.run_as_user("gq", &[&jobs[0].to_string()]).out;
    assert!(one.contains("Image=pulling "), "{one}");
    for id in &jobs {
        pool.wait_state(*id, JobState::Completed);
        assert_eq!(pool.file(&format!("{id}.out")), "umoci\n");
    }
    let sent = site.registry.blobs_sent();
    assert_eq!(sent, site.image.blobs(), "each blob is sent once");
    let named = format!(
        "127.0.0.1:{}/team/image@{}",
        site.registry.address.port(),
        site.image.digest()
    );
    assert_eq!(site.recorded(jobs[9]), named);
    let one = pool.run_as_user("gq", &[&jobs[9].to_string()]).out;
    assert!(one.contains(&format!("Image={named}")), "{one}");
    // It is here, whatever becomes of the registry's blobs, and by its digest, too.
    let again = site.submit(&named, "cat /etc/made-by");
    pool.wait_state(again, JobState::Completed);
    assert_eq!(site.registry.blobs_sent(), sent);
    assert_eq!(site.recorded(again), named);
    pool.wait_idle("node1");
}

#[test]
fn an_image_that_only_a_step_names_is_seen_while_it_comes_and_is_on_record() {
    let Some(site) = Site::up("registry_timeout_secs = 2") else {
        return;
    };
    let (pool, image) = (&site.pool, site.registry.image());
    site.registry.is(RegistryMood::Serves(250));
    let grun = pool.user_command("grun");
    let grun = grun.get_program().to_str().unwrap();
    let line = |more: &str| format!("{grun} --container-image={image} {more} cat /etc/made-by");
    let id = site.submit_without_image(&line("-n2 -O"));
    pool.wait_state(id, JobState::Completed);
    let said = pool.file(&format!("{id}.out"));
    let pulled = format!("grun: pulling {image} ");
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with(&pulled))
        .collect();
    assert!(lines.len() > 2 && lines.len() < 15, "{said}");
    let is_whole = |line: &&str| line.contains("% of ") && line.ends_with(" on node1");
    assert!(lines.iter().any(is_whole), "{said}");
    assert!(said.ends_with("umoci\numoci\n"), "{said}");
    let named = format!(
        "127.0.0.1:{}/team/image@{}",
        site.registry.address.port(),
        site.image.digest()
    );
    assert_eq!(site.recorded(id), named);
    // What is here already is no news.
    let id = site.submit_without_image(&line(""));
    pool.wait_state(id, JobState::Completed);
    assert_eq!(pool.file(&format!("{id}.out")), "umoci\n");
    // Why there is none is said once a task, wherever the tasks' own output goes.
    let other = image.replace(":base", ":other");
    let line = format!("{grun} -e /dev/null --container-image={other} true");
    let id = site.submit_without_image(&line);
    pool.wait_state(id, JobState::Failed);
    let said = pool.file(&format!("{id}.out"));
    assert!(
        said.starts_with("grun: error: node1: task 0: container: pulling ")
            && said.contains("manifest unknown"),
        "{said}"
    );
    assert_eq!(site.recorded(id), "");
    site.registry.is(RegistryMood::Hangs);
    let id = site.submit_without_image(&line);
    pool.wait_state(id, JobState::Failed);
    let said = pool.file(&format!("{id}.out"));
    assert!(
        said.contains("the registry sent nothing for 2 s (the job is not to blame"),
        "{said}"
    );
    // Outside of a job the image is the job's, and its grun waits for it.
    site.registry.is(RegistryMood::Serves(250));
    site.image.configure(&["--config.env=OTHER=yes"]);
    let mut grun = pool.user_command("grun");
    let option = format!("--container-image={image}");
    let said = grun
        .env("HOME", &site.home)
        .args([&option, "true"])
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        said.status.success() && words.contains(&pulled) && words.contains(" on node1"),
        "{words}"
    );
    pool.wait_idle("node1");
}

#[test]
fn a_registry_that_fails_fails_no_node_and_no_job_but_for_a_name_or_a_right() {
    let Some(site) = Site::up("registry_timeout_secs = 2") else {
        return;
    };
    let (pool, image) = (&site.pool, site.registry.image());
    site.registry.is(RegistryMood::Refuses);
    let id = site.submit(&image, "true");
    let row = pool.wait_state(id, JobState::Failed);
    assert!(row.end_text.contains("unauthorized"), "{row:?}");
    site.registry.is(RegistryMood::Serves(4096));
    let id = site.submit(&image.replace(":base", ":other"), "true");
    let row = pool.wait_state(id, JobState::Failed);
    assert!(row.end_text.contains("manifest unknown"), "{row:?}");
    site.registry.is(RegistryMood::IsDown);
    let down = site.submit(&image, "true");
    site.reason(down, "503");
    site.registry.is(RegistryMood::Hangs);
    let hangs = site.submit(&image, "true");
    site.reason(hangs, "the registry sent nothing for 2 s");
    site.is_well();
    site.registry.is(RegistryMood::Serves(4096));
    for id in [down, hangs] {
        assert!(pool.wait_state(id, JobState::Completed).attempts > 1);
    }
    pool.wait_idle("node1");
}

#[test]
fn a_pull_ends_with_its_job_and_goes_on_after_its_daemon() {
    let Some(site) = Site::up("") else { return };
    let (pool, image) = (&site.pool, site.registry.image());
    site.registry.is(RegistryMood::Serves(20));
    let id = site.submit(&image, "true");
    let is_pulling = |id: u64| pool.job(id).pull.contains("% of ");
    pool.wait_until("it is pulled", || is_pulling(id));
    pool.run_as_user("gdel", &[&id.to_string()]);
    pool.wait_state(id, JobState::Cancelled);
    pool.wait_idle("node1");
    assert_eq!(site.pulls(), Vec::<String>::new());
    let id = site.submit(&image, "cat /etc/made-by");
    pool.wait_until("it is pulled", || is_pulling(id));
    pool.kill("node1");
    pool.wait_until("no one pulls", || site.pulls().is_empty());
    site.registry.is(RegistryMood::Serves(4096));
    pool.start("node1");
    pool.wait_state(id, JobState::Completed);
    assert_eq!(pool.file(&format!("{id}.out")), "umoci\n");
    pool.wait_idle("node1");
}

#[test]
fn images_beyond_the_limit_go_but_for_those_in_use_and_a_full_disk_is_no_reason_to_drain() {
    let Some(site) = Site::up("image_cache_bytes = 1") else {
        return;
    };
    let (pool, image) = (&site.pool, site.registry.image());
    let uid = pool.person().uid;
    let images = pool.dir.join(format!("node1/spool/images/{uid}"));
    let kept = || fs::read_dir(images.join("rootfs")).map_or(0, Iterator::count);
    let first = site.submit(
        &image,
        "cat /etc/made-by; until [ -e /tmp/go-on ]; do sleep 0.1; done; cat /etc/made-by",
    );
    pool.wait_state(first, JobState::Running);
    pool.wait_until("it is in its image", || {
        fs::read(pool.work.join(format!("{first}.out"))).is_ok_and(|out| !out.is_empty())
    });
    site.image.configure(&["--config.env=OTHER=yes"]);
    let second = site.submit(&image, "echo $OTHER");
    pool.wait_state(second, JobState::Completed);
    assert_eq!(kept(), 2);
    pool.run_as_user("gdel", &[&first.to_string()]);
    pool.wait_state(first, JobState::Cancelled);
    pool.wait_idle("node1");
    site.image.configure(&["--config.env=OTHER=third"]);
    let third = site.submit(&image, "echo $OTHER");
    pool.wait_state(third, JobState::Completed);
    assert_eq!(
        (kept(), pool.file(&format!("{third}.out"))),
        (1, "third\n".into())
    );
    // A disk with less room than has to stay.
    pool.wait_idle("node1");
    let mount = format!(
        "mount -t tmpfs -o size=100m,mode=700,uid={uid} tmpfs {}",
        images.display()
    );
    assert_eq!(pool.run_shell(&mount).code, 0);
    let full = site.submit(&image, "echo $OTHER");
    pool.wait_until("its disk is full", || {
        pool.job(full)
            .reason_text
            .contains("disk for images is full")
    });
    assert!(pool.node("node1").drains.is_empty());
    pool.run_as_user("gdel", &[&full.to_string()]);
    pool.wait_idle("node1");
    assert_eq!(
        pool.run_shell(&format!("umount {}", images.display())).code,
        0
    );
}
