//! What an administrator reads when a file is wrong, and that every sample is right.

mod node;
mod policy;

use super::settings::OnFailure;
use super::*;
use expect_test::{Expect, expect};
use gmodel::config::{NodeSelection, PartitionState, Privacy};
use gmodel::idle::{IdleAction, IdlePolicy};

/// Files by name, parted by lines `--- NAME`.
fn load(files: &str) -> Result<Config, Vec<ConfigError>> {
    let mut errors = Errors::default();
    let mut sources = Vec::new();
    for part in files.split("--- ").filter(|part| !part.trim().is_empty()) {
        let (name, text) = part.split_once('\n').unwrap();
        let part = match name {
            "gpuctld.toml" => FileKind::Main,
            "topology.toml" => FileKind::Topology,
            name if name.starts_with("policy.d/") => FileKind::Policy,
            _ => FileKind::Partitions,
        };
        sources.push((part, Source::new(Path::new(name), text, &mut errors)));
    }
    Config::read(&sources, errors)
}

fn check(files: &str, want: Expect) {
    let said: Vec<String> = load(files)
        .expect_err("the file was accepted")
        .iter()
        .map(ToString::to_string)
        .collect();
    want.assert_eq(&(said.join("\n\n") + "\n"));
}

#[test]
fn a_mistyped_key_has_a_caret_and_a_guess() {
    check(
        "--- gpuctld.toml\ncluster = \"c\"\n--- train.toml\n[partition.train]\nmax_tiem = \"1-0\"\n",
        expect![[r#"
            error: unknown key "max_tiem" in [partition.train]
             --> train.toml:2:1
              |
            2 | max_tiem = "1-0"
              | ^^^^^^^^ did you mean "max_time"?
        "#]],
    );
}

#[test]
fn a_mistyped_way_of_sharing_has_a_caret_and_a_guess() {
    check(
        "--- gpuctld.toml\ncluster = \"c\"\n--- train.toml\n[partition.train]\ngpu_sharing = \"mbs\"\n[partition.b]\ngpu_sharing = true\n\
         [partition.c]\nprivate_tmp = true\ngpu_sharing = \"mps\"\n[partition.d]\ngpu_scrub = true\ngpu_sharing = \"uncapped\"\n",
        expect![[r#"
            error: gpu_sharing = "mbs" is unknown
             --> train.toml:2:15
              |
            2 | gpu_sharing = "mbs"
              |               ^^^^^ did you mean "mps"?

            error: gpu_sharing is of type boolean
             --> train.toml:4:15
              |
            4 | gpu_sharing = true
              |               ^^^^ write text in quotes

            error: gpu_sharing = "mps" does not go with private_tmp: a job and its MPS server meet in the node's /dev/shm
             --> train.toml:7:15
              |
            7 | gpu_sharing = "mps"
              |               ^^^^^ share in a partition without private_tmp

            error: gpu_scrub does not go with gpu_sharing = "uncapped": others are on a GPU when a part of it ends
             --> train.toml:9:13
              |
            9 | gpu_scrub = true
              |             ^^^^ scrub in a partition that shares by "mps" or not at all
        "#]],
    );
}

#[test]
fn all_mistakes_of_all_files_come_at_once() {
    check(
        r#"--- gpuctld.toml
cluster = "two words"
lisen = "0.0.0.0:1"
listen = "localhost"
state_dir = "var/lib"
min_free = "lots"
node_timeout_secs = 0
lost_node = "reque"
allow_root_jobs = "yes"
operators = "ada"

[submit_hook]
program = "hook"
user = "root"
--- a.toml
default = true
[partition.train]
default = true
nodes = "gpu[01-"
state = "DRAINED"
max_time = "1:0:0:0"
prolog = "prolog.sh"
[partition.long]
default = true
features = ["a"]
nodes = "ALL"
max_time = 60
default_time = "2:00:00"
over_time = "UNLIMITED"
--- b.toml
[partition.train]
mem_per_gpu = 1.5
nodes = "node[1-1000000000]"
"#,
        expect![[r#"
            error: cluster = "two words" is not a name
             --> gpuctld.toml:1:11
              |
            1 | cluster = "two words"
              |           ^^^^^^^^^^^ use up to 64 letters, digits, '_', '-' and '.'

            error: unknown key "lisen" in gpuctld.toml
             --> gpuctld.toml:2:1
              |
            2 | lisen = "0.0.0.0:1"
              | ^^^^^ did you mean "listen"?

            error: listen = "localhost" is not ADDRESS:PORT
             --> gpuctld.toml:3:10
              |
            3 | listen = "localhost"
              |          ^^^^^^^^^^^ as "0.0.0.0:7117" or "[::]:7117"

            error: state_dir = "var/lib" is not an absolute path
             --> gpuctld.toml:4:13
              |
            4 | state_dir = "var/lib"
              |             ^^^^^^^^^ begin it with /

            error: min_free: size "lots" is not a whole number with K, M, G or T. Try 256 (MiB), 300M or 4G
             --> gpuctld.toml:5:12
              |
            5 | min_free = "lots"
              |            ^^^^^^

            error: node_timeout_secs = 0 is out of bounds
             --> gpuctld.toml:6:21
              |
            6 | node_timeout_secs = 0
              |                     ^ 1 to 86400 is allowed

            error: lost_node = "reque" is unknown
             --> gpuctld.toml:7:13
              |
            7 | lost_node = "reque"
              |             ^^^^^^^ did you mean "requeue"?

            error: allow_root_jobs is of type string
             --> gpuctld.toml:8:19
              |
            8 | allow_root_jobs = "yes"
              |                   ^^^^^ write true or false

            error: program = "hook" is not an absolute path
              --> gpuctld.toml:12:11
               |
            12 | program = "hook"
               |           ^^^^^^ begin it with /

            error: the submission hook may not run as root
              --> gpuctld.toml:13:8
               |
            13 | user = "root"
               |        ^^^^^^ give it an ordinary system user of its own

            error: "default" stands outside of a partition
             --> a.toml:1:1
              |
            1 | default = true
              | ^^^^^^^ put it under a line [partition.NAME]

            error: nodes: host list item "gpu[01-" has a bracket without its partner. Write ranges as in node[01-04,7]
             --> a.toml:4:9
              |
            4 | nodes = "gpu[01-"
              |         ^^^^^^^^^ as "node[01-16]" or "ALL"

            error: state = "DRAINED" is unknown
             --> a.toml:5:9
              |
            5 | state = "DRAINED"
              |         ^^^^^^^^^ did you mean "DRAIN"?

            error: max_time: time limit "1:0:0:0" is in none of the forms minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds or UNLIMITED. Try 90 (minutes) or 1:30:00
             --> a.toml:6:12
              |
            6 | max_time = "1:0:0:0"
              |            ^^^^^^^^^

            error: prolog = "prolog.sh" is not an absolute path
             --> a.toml:7:10
              |
            7 | prolog = "prolog.sh"
              |          ^^^^^^^^^^^ begin it with /

            error: partition "long" is a second default
             --> a.toml:9:11
              |
            9 | default = true
              |           ^^^^ partition "train" is the default; only one can be

            error: nodes and features are both there
              --> a.toml:10:12
               |
            10 | features = ["a"]
               |            ^^^^^ keep one of them

            error: default_time is 7200 s, more than max_time with 3600 s
              --> a.toml:13:16
               |
            13 | default_time = "2:00:00"
               |                ^^^^^^^^^ make it max_time or less

            error: over_time cannot be unlimited
              --> a.toml:14:13
               |
            14 | over_time = "UNLIMITED"
               |             ^^^^^^^^^^^ write a time

            error: partition "train" is there twice
             --> b.toml:1:12
              |
            1 | [partition.train]
              |            ^^^^^ first in a.toml:2

            error: mem_per_gpu is of type float
             --> b.toml:2:15
              |
            2 | mem_per_gpu = 1.5
              |               ^^^ write a size as "80G"

            error: nodes: the host list names 1000000000 nodes and 131072 are the most. Use a smaller range
             --> b.toml:3:9
              |
            3 | nodes = "node[1-1000000000]"
              |         ^^^^^^^^^^^^^^^^^^^^ as "node[01-16]" or "ALL"
        "#]],
    );
}

#[test]
fn broken_toml_is_shown_where_it_breaks() {
    check(
        "--- gpuctld.toml\ncluster = \nsocket = \"/run/x\nlisten = \"1.2.3.4:5\"\n",
        expect![[r#"
        error: string values must be quoted, expected literal string
         --> gpuctld.toml:1:11
          |
        1 | cluster = 
          |           ^

        error: invalid basic string, expected `"`
         --> gpuctld.toml:2:17
          |
        2 | socket = "/run/x
          |                 ^
    "#]],
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let errors = Config::load(Path::new("/nonexistent/gpuctld.toml")).unwrap_err();
    assert_eq!(
        errors[0].to_string(),
        "error: /nonexistent/gpuctld.toml: cannot be read: No such file or directory (os error 2)"
    );
}

#[test]
fn an_empty_file_gives_one_partition_of_all_nodes() {
    let config = load("--- gpuctld.toml\n").unwrap();
    assert_eq!(config.cluster.partitions.len(), 1);
    let main = config.cluster.default_partition().unwrap();
    assert_eq!(
        (main.name.as_str(), &main.nodes),
        ("main", &NodeSelection::All)
    );
    assert_eq!(config.min_free_bytes, 1 << 30);
    assert_eq!(config.cluster.privacy, Privacy::Open);
}

#[test]
fn slurm_words_and_times_are_read() {
    let config = load(
        "--- gpuctld.toml\nlisten = \"127.0.0.1:7000\"\n--- p.toml\n[partition.p]\nnodes = [\"a1\", \"b[1-2]\"]\nstate = \"drain\"\n\
         max_time = \"1-12:00\"\ndefault_time = 90\nover_time = \"5:00\"\nmem_per_cpu = \"4G\"\nmax_nodes = 0x10\n",
    )
    .unwrap();
    let p = config.cluster.partition("p").unwrap();
    assert_eq!(p.state, PartitionState::Drain);
    assert_eq!(
        (p.max_time_secs, p.default_time_secs, p.over_time_secs),
        (Some(129_600), Some(5_400), 300)
    );
    assert_eq!(
        (p.mem_per_cpu_bytes, p.max_nodes),
        (Some(4 << 30), Some(16))
    );
    assert!(p.holds("b2", &[]) && !p.holds("b3", &[]));
    assert_eq!(
        config.advertise, "127.0.0.1:7000",
        "a fixed address is what nodes dial"
    );
}

#[test]
fn what_needs_a_restart_is_said_and_kept() {
    let old = load("--- gpuctld.toml\nsocket = \"/run/a\"\nkill_grace_secs = 1\n").unwrap();
    let new = load(
        "--- gpuctld.toml\nsocket = \"/run/b\"\nkill_grace_secs = 2\nlisten = \"1.1.1.1:1\"\n",
    )
    .unwrap();
    assert_eq!(
        Config::restart_needed(&old, &new),
        ["socket", "listen", "advertise"]
    );
    assert_eq!(Config::restart_needed(&new, &new), Vec::<String>::new());
    let merged = Config::reloaded(&old, &new);
    assert_eq!(
        (merged.socket.to_str(), merged.cluster.kill_grace_secs),
        (Some("/run/a"), 2)
    );
}

#[test]
fn every_sample_is_read() {
    let etc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc");
    let config = Config::load(&etc.join("gpuctld.toml")).unwrap_or_else(|errors| {
        panic!(
            "{}",
            errors
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n")
        )
    });
    let names: Vec<_> = config
        .cluster
        .partitions
        .iter()
        .map(|p| p.name.as_str())
        .collect();
    assert_eq!(names, ["interactive", "service", "train", "long"]);
    assert_eq!(config.cluster.default_partition().unwrap().name, "train");
    assert_eq!(config.cluster.operators, ["ada", "grace"]);
    assert_eq!(config.cluster.policy.accounts["physics"].shares, 20);
    assert_eq!(config.cluster.scheduler.topology.switches.len(), 3);
}

#[test]
fn the_sample_says_the_defaults() {
    let etc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/gpuctld.toml");
    let text = std::fs::read_to_string(etc).unwrap();
    let sample = load(&format!("--- gpuctld.toml\n{text}")).unwrap();
    let mut default = load("--- gpuctld.toml\n").unwrap();
    default.advertise.clone_from(&sample.advertise);
    default
        .cluster
        .operators
        .clone_from(&sample.cluster.operators);
    // Its zone is the default one, and said: dates are read in it, and not in the machine's.
    default.has_time_zone = true;
    assert_eq!(sample, default);
}

#[test]
fn the_hook_of_the_sample_is_read_when_it_is_wanted() {
    let etc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/gpuctld.toml");
    let text = std::fs::read_to_string(etc).unwrap();
    let (before, hook) = text.split_once("#[submit_hook]").unwrap();
    let with_hook = format!(
        "--- gpuctld.toml\n{before}[submit_hook]{}",
        hook.replace("\n#", "\n")
    );
    let hook = load(&with_hook).unwrap().submit_hook.unwrap();
    assert_eq!((hook.timeout_ms, hook.on_failure), (200, OnFailure::Refuse));
}

#[test]
fn the_sites_time_zone_reads_dates_and_an_unknown_one_is_refused() {
    let config = load(
        "--- gpuctld.toml\ntime_zone = \"America/New_York\"\n\
         [[price]]\ngpu_type = \"h100\"\nfrom = 2026-07-01\nper_gpu_hour = 2\n\
         --- policy.d/a.toml\n[reservation.r]\nstart = 2026-12-01T06:00:00\nduration = 90\nnode_count = 2\nrepeat = \"daily\"\n",
    )
    .unwrap();
    assert_eq!(config.cluster.time_zone.name, "America/New_York");
    assert_eq!(
        config.cluster.scheduler.money.prices["h100"][0]
            .from
            .to_string(),
        "2026-07-01T04:00:00Z"
    );
    assert_eq!(
        config.cluster.policy.reservations["r"].start.to_string(),
        "2026-12-01T11:00:00Z"
    );
    check(
        "--- gpuctld.toml\ntime_zone = \"Europe/Berlon\"\n",
        expect![[r#"
            error: there is no time zone "Europe/Berlon"
             --> gpuctld.toml:1:13
              |
            1 | time_zone = "Europe/Berlon"
              |             ^^^^^^^^^^^^^^^ did you mean "Europe/Berlin"?
        "#]],
    );
}

#[test]
fn a_line_that_is_no_toml_is_told_once_and_no_record_is_meant_by_itself() {
    let told = |text: &str| {
        let errors = read_policy("p", text, &ClusterConfig::default()).unwrap_err();
        errors
            .iter()
            .map(|error| format!("{}: {} ({})\n", error.line, error.message, error.hint))
            .collect::<String>()
    };
    let once = told("[qos.high]\nusage_factor = 2.x\npriority = -1\n");
    assert_eq!(
        once.lines()
            .map(|line| line.split(':').next().unwrap())
            .collect::<Vec<_>>(),
        ["2", "3"],
        "{once}"
    );
    let guess = told("[qos.qp]\npreempt = [\"qq\"]\n[qos.high]\n");
    assert!(
        guess.contains("add [qos.qq]") && !guess.contains("did you mean"),
        "{guess}"
    );
    assert!(
        told("[qos.qp]\npreempt = [\"hihg\"]\n[qos.high]\n").contains("did you mean \"high\"?")
    );
}

#[test]
fn unknown_names_and_impossible_bounds_are_shown() {
    check(
        "--- gpuctld.toml\n[[price]]\ngpu_type = \"\"\nfrom = 2026-01-01\nper_gpu_hour = 1\n[mig.a]\nnodes = \"n1\"\ngpu_type = \"h 100\"\nlayout = []\n\
         [submit_hook]\nprogram = \"/h\"\nuser = \"\"\n[diagnostics]\nprogram = \"builtin\"\nuser = \"a\\u0000\"\n\
         [account.a]\nuser = 1\n[[account.a.budget]]\nkind = \"cap\"\ngpu_hours = 1\nperiod = \"day\"\ngpu_type = \"\"\n[account.b]\nuser.ada = 3\n\
         [qos.q.per_job]\ngpus = 4\nmin_gpus = { h100 = 8 }\n\
         [partition.p]\nallow_accounts = \"\"\nallow_users = [\"a b\"]\nfeatures = []\nmem_per_gpu = 0\n",
        expect![[r#"
            error: "" is no type of GPU
             --> gpuctld.toml:2:12
              |
            2 | gpu_type = ""
              |            ^^ as h100

            error: "h 100" is no type of GPU
             --> gpuctld.toml:7:12
              |
            7 | gpu_type = "h 100"
              |            ^^^^^^^ as h100

            error: "" is no name of a user
              --> gpuctld.toml:11:8
               |
            11 | user = ""
               |        ^^ as the system knows it

            error: "a\0" is no name of a user
              --> gpuctld.toml:14:8
               |
            14 | user = "a\u0000"
               |        ^^^^^^^^^ as the system knows it

            error: user is of type integer
              --> gpuctld.toml:16:8
               |
            16 | user = 1
               |        ^ write a table [account.a.user.NAME]

            error: "" is no type of GPU
              --> gpuctld.toml:21:12
               |
            21 | gpu_type = ""
               |            ^^ as h100

            error: user.ada is of type integer
              --> gpuctld.toml:23:12
               |
            23 | user.ada = 3
               |            ^ write a table [account.b.user.ada]

            error: min_gpus gpu is 8, more than gpus with 4: no job could be submitted
              --> gpuctld.toml:26:12
               |
            26 | min_gpus = { h100 = 8 }
               |            ^^^^^^^^^^^^ make it gpus or less

            error: allow_accounts has an empty name
              --> gpuctld.toml:28:18
               |
            28 | allow_accounts = ""
               |                  ^^ leave it out

            error: "a b" is no name of a user
              --> gpuctld.toml:29:16
               |
            29 | allow_users = ["a b"]
               |                ^^^^^ as the system knows it

            error: features is empty: that is true of every node
              --> gpuctld.toml:30:12
               |
            30 | features = []
               |            ^^ name some, or write nodes = "ALL"

            error: mem_per_gpu is 0: jobs would get no memory
              --> gpuctld.toml:31:15
               |
            31 | mem_per_gpu = 0
               |               ^ leave it out: jobs get their part of the node's
        "#]],
    );
}

/// In a thread of its own: what waits for a FIFO waits for ever.
#[test]
fn a_fifo_among_the_files_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let main = dir.path().join("gpuctld.toml");
    std::fs::write(&main, "cluster = \"c\"\n").unwrap();
    std::fs::create_dir(dir.path().join("partitions.d")).unwrap();
    nix::unistd::mkfifo(
        &dir.path().join("partitions.d/odd.toml"),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .unwrap();
    let (sender, loaded) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(Config::load(&main).map(|_| ())));
    let errors = loaded
        .recv_timeout(std::time::Duration::from_secs(20))
        .expect("it is not waited for")
        .unwrap_err();
    let text: String = errors.iter().map(ToString::to_string).collect();
    assert!(
        text.contains("odd.toml") && text.contains("it is no regular file"),
        "{text}"
    );
}

#[test]
fn a_mail_server_needs_addresses_and_a_password_needs_encryption() {
    let good = "--- gpuctld.toml\n[mail]\nsmtp = \"mail.example.org\"\ntls = \"starttls\"\nfrom = \"pool@example.org\"\ndomain = \"example.org\"\nuser = \"pool\"\npassword_file = \"/etc/gpupool/mail\"\n";
    let mail = load(good).unwrap().outgoing.mail.unwrap();
    assert_eq!(
        (&*mail.host, mail.port, mail.per_user_hour),
        ("mail.example.org", 587, 200)
    );
    check(
        "--- gpuctld.toml\n[mail]\nsmtp = \"mail:smtp\"\nfrom = \"pool\"\nuser = \"pool\"\npassword_file = \"/x\"\n",
        expect![[r#"
            error: [mail] has no domain
             --> gpuctld.toml:1:1
              |
            1 | [mail]
              | ^^^^^^ as "example.org": users without --mail-user get mail there

            error: smtp is "mail:smtp", which is no mail server
             --> gpuctld.toml:2:8
              |
            2 | smtp = "mail:smtp"
              |        ^^^^^^^^^^^ as "mail.example.org:25"

            error: from is "pool", which is no address
             --> gpuctld.toml:3:8
              |
            3 | from = "pool"
              |        ^^^^^^ as "gpupool@example.org"

            error: a password would cross the network in the clear
             --> gpuctld.toml:4:8
              |
            4 | user = "pool"
              |        ^^^^^^ say tls = "starttls" or "tls"
        "#]],
    );
}

#[test]
fn pages_without_tls_are_for_loopback_alone() {
    let listen = |text: &str| {
        let config = load(&format!(
            "--- gpuctld.toml\ncluster = \"c\"\n[web]\n{text}\n"
        ));
        config.unwrap().web.unwrap().listen.map(|at| at.to_string())
    };
    assert_eq!(listen(""), None);
    for good in ["127.0.0.1:7118", "127.8.0.1:1", "[::1]:7118"] {
        assert_eq!(listen(&format!("listen = {good:?}")).as_deref(), Some(good));
    }
    assert_eq!(
        load("--- gpuctld.toml\ncluster = \"c\"\n").unwrap().web,
        None
    );
    for (wrong, want) in [
        (
            "0.0.0.0:7118",
            expect![[r#"
                error: listen = "0.0.0.0:7118" would show pages to the network without TLS
                 --> gpuctld.toml:3:10
                  |
                3 | listen = "0.0.0.0:7118"
                  |          ^^^^^^^^^^^^^^ over the network they are on the TLS port: leave listen out here, or say a loopback address, as "127.0.0.1:7118"
            "#]],
        ),
        (
            "localhost",
            expect![[r#"
                error: listen = "localhost" is not ADDRESS:PORT
                 --> gpuctld.toml:3:10
                  |
                3 | listen = "localhost"
                  |          ^^^^^^^^^^^ as "127.0.0.1:7118"
            "#]],
        ),
        (
            "127.0.0.1:0",
            expect![[r#"
                error: listen = "127.0.0.1:0" is not ADDRESS:PORT
                 --> gpuctld.toml:3:10
                  |
                3 | listen = "127.0.0.1:0"
                  |          ^^^^^^^^^^^^^ as "127.0.0.1:7118"
            "#]],
        ),
    ] {
        check(
            &format!("--- gpuctld.toml\ncluster = \"c\"\n[web]\nlisten = {wrong:?}\n"),
            want,
        );
    }
}
