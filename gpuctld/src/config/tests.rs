//! What an administrator reads when a file is wrong, and that every sample is right.

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
            "gpuctld.toml" => Part::Main,
            "topology.toml" => Part::Topology,
            name if name.starts_with("policy.d/") => Part::Policy,
            _ => Part::Partitions,
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
               |             ^^^^^^^^^^^ write a time, or set max_time = "UNLIMITED"

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
fn mistakes_in_policy_have_carets_where_another_record_is_named() {
    check(
        r#"--- gpuctld.toml
[partition.train]
allow_qos = ["norml"]
default_qos = "urgent"
[scheduler]
backfill = "esay"
placement = "packed"
[priority]
age = -1
max_age = "UNLIMITED"
[fair_share]
gpu_weights = 2
cpu_weight = 0.0001
[preempt]
default_checkpoint = "KILL@10"
[licences]
"two words" = 1
matlab = "many"
[[price]]
gpu_type = "h100"
per_gpu_hour = 2
--- policy.d/a.toml
[account.root]
[account.research]
guaranteed = { h100 = 16 }
limit = { H100 = 8 }
[account.vision]
parent = "reserch"
default_qos = "fast"
[[account.vision.budget]]
kind = "caps"
gpu_hours = 10
[account.a]
parent = "b"
[account.b]
parent = "a"
[acount.x]
[qos.normal]
preempt = ["normal"]
usage_factor = "2"
[reservation.r]
start = "tomorrow"
nodes = "n1"
gpus = 4
partition = "trian"
accounts = ["-vison"]
users = ["ada", "-bob"]
repeat = "weekends"
features = "a100"
"#,
        expect![[r#"
            error: there is no qos "norml" in the files
             --> gpuctld.toml:2:14
              |
            2 | allow_qos = ["norml"]
              |              ^^^^^^^ did you mean "normal"?

            error: default_qos = "urgent" is not in allow_qos
             --> gpuctld.toml:3:15
              |
            3 | default_qos = "urgent"
              |               ^^^^^^^^ allowed are norml

            error: backfill = "esay" is unknown
             --> gpuctld.toml:5:12
              |
            5 | backfill = "esay"
              |            ^^^^^^ did you mean "easy"?

            error: placement = "packed" is unknown
             --> gpuctld.toml:6:13
              |
            6 | placement = "packed"
              |             ^^^^^^^^ did you mean "pack"?

            error: age = -1 is out of bounds
             --> gpuctld.toml:8:7
              |
            8 | age = -1
              |       ^^ 0 to 1000000000 is allowed

            error: max_age cannot be unlimited
             --> gpuctld.toml:9:11
              |
            9 | max_age = "UNLIMITED"
              |           ^^^^^^^^^^^ write a time

            error: gpu_weights is a single number
              --> gpuctld.toml:11:15
               |
            11 | gpu_weights = 2
               |               ^ by type, as { h100 = 1.0, a100 = 0.5 }

            error: cpu_weight = 0.0001 is no such number
              --> gpuctld.toml:12:14
               |
            12 | cpu_weight = 0.0001
               |              ^^^^^^ write digits with at most three behind the point, as 16 or 0.125

            error: default_checkpoint = "KILL@10": KILL and STOP cannot be answered
              --> gpuctld.toml:14:22
               |
            14 | default_checkpoint = "KILL@10"
               |                      ^^^^^^^^^ as "USR1@120" or "/path/save.sh@120"

            error: "two words" is no name of a licence
              --> gpuctld.toml:16:1
               |
            16 | "two words" = 1
               | ^^^^^^^^^^^ use letters, digits and _-.@/

            error: matlab is of type string
              --> gpuctld.toml:17:10
               |
            17 | matlab = "many"
               |          ^^^^^^ write a whole number without quotes

            error: [[price]] has no from
              --> gpuctld.toml:18:1
               |
            18 | [[price]]
               | ^^^^^^^^^ gpu_type, from and per_gpu_hour are needed

            error: the account root is there by itself
             --> policy.d/a.toml:1:10
              |
            1 | [account.root]
              |          ^^^^ accounts without a parent are directly below it

            error: guaranteed h100 is 16, more than the limit 8
             --> policy.d/a.toml:3:14
              |
            3 | guaranteed = { h100 = 16 }
              |              ^^^^^^^^^^^^^ make it the limit or less

            error: there is no account "reserch" in the files
             --> policy.d/a.toml:6:10
              |
            6 | parent = "reserch"
              |          ^^^^^^^^^ did you mean "research"?

            error: there is no qos "fast" in the files
             --> policy.d/a.toml:7:15
              |
            7 | default_qos = "fast"
              |               ^^^^^^ add [qos.fast]; what only gadm made cannot be named in files

            error: [[account.vision.budget]] has no period
             --> policy.d/a.toml:8:1
              |
            8 | [[account.vision.budget]]
              | ^^^^^^^^^^^^^^^^^^^^^^^^^ kind, gpu_hours and period are needed

            error: kind = "caps" is unknown
             --> policy.d/a.toml:9:8
              |
            9 | kind = "caps"
              |        ^^^^^^ did you mean "cap"?

            error: account "a" is below itself
              --> policy.d/a.toml:12:10
               |
            12 | parent = "b"
               |          ^^^ break the circle of parents

            error: "acount" stands outside of a record
              --> policy.d/a.toml:15:2
               |
            15 | [acount.x]
               |  ^^^^^^ did you mean [account.NAME]?

            error: qos "normal" preempts itself
              --> policy.d/a.toml:17:11
               |
            17 | preempt = ["normal"]
               |           ^^^^^^^^^^ leave it out

            error: usage_factor is of type string
              --> policy.d/a.toml:18:16
               |
            18 | usage_factor = "2"
               |                ^^^ write a number without quotes

            error: [reservation.r] has no duration
              --> policy.d/a.toml:19:14
               |
            19 | [reservation.r]
               |              ^ start and duration are needed

            error: start = "tomorrow" is no date or time
              --> policy.d/a.toml:20:9
               |
            20 | start = "tomorrow"
               |         ^^^^^^^^^^ as 2026-12-01, 2026-12-01T06:00:00 or 2026-12-01T06:00:00Z

            error: nodes, node_count and gpus name what is reserved in different ways
              --> policy.d/a.toml:22:8
               |
            22 | gpus = 4
               |        ^ keep one of them

            error: there is no partition "trian" in the files
              --> policy.d/a.toml:23:13
               |
            23 | partition = "trian"
               |             ^^^^^^^ did you mean "train"?

            error: there is no account "vison" in the files
              --> policy.d/a.toml:24:13
               |
            24 | accounts = ["-vison"]
               |             ^^^^^^^^ did you mean "vision"?

            error: users names some and bars others
              --> policy.d/a.toml:25:9
               |
            25 | users = ["ada", "-bob"]
               |         ^^^^^^^^^^^^^^^ names alone, or names with a minus alone

            error: repeat = "weekends" is unknown
              --> policy.d/a.toml:26:10
               |
            26 | repeat = "weekends"
               |          ^^^^^^^^^^ did you mean "weekend"?

            error: features choose among nodes where their number is reserved
              --> policy.d/a.toml:27:12
               |
            27 | features = "a100"
               |            ^^^^^^ keep it beside node_count
        "#]],
    );
}

#[test]
fn guarantees_fit_into_the_limits_above_them() {
    check(
        "--- gpuctld.toml\n--- policy.d/a.toml\n[account.top]\nlimit = { h100 = 4 }\n\
         [account.mid]\nparent = \"top\"\n[account.x]\nparent = \"mid\"\nguaranteed = { h100 = 8 }\n[account.y]\nparent = \"mid\"\nguaranteed = { h100 = 4 }\n",
        expect![[r#"
            error: account "x" is guaranteed 8 h100, and "top" above it may hold 4
             --> policy.d/a.toml:7:14
              |
            7 | guaranteed = { h100 = 8 }
              |              ^^^^^^^^^^^^ guarantee it 4 or less, or raise the limit of "top"
        "#]],
    );
}

#[test]
fn guarantees_of_children_fit_into_the_parents() {
    check(
        "--- gpuctld.toml\n--- policy.d/a.toml\n[account.top]\nguaranteed = { h100 = 16, gpu = 32 }\n\
         [account.x]\nparent = \"top\"\nguaranteed = { h100 = 12 }\n[account.y]\nparent = \"top\"\nguaranteed = { h100 = 6, gpu = 8 }\n",
        expect![[r#"
            error: the accounts below "top" are guaranteed 18 h100 together (x 12, y 6) and it has 16
             --> policy.d/a.toml:2:14
              |
            2 | guaranteed = { h100 = 16, gpu = 32 }
              |              ^^^^^^^^^^^^^^^^^^^^^^^ guarantee "top" 18 or more, or those below it less
        "#]],
    );
}

#[test]
fn a_topology_is_a_forest() {
    check(
        "--- gpuctld.toml\n--- topology.toml\n[switch.l1]\nnodes = \"n[1-4]\"\n[switch.l2]\nnodes = \"n[4-5]\"\n[switch.l3]\n\
         [switch.s]\nswitches = [\"l1\", \"l2\", \"lx\"]\n[switch.t]\nswitches = \"u\"\n[switch.u]\nswitches = [\"t\", \"l1\"]\n",
        expect![[r#"
            error: node "n4" hangs on "l1" and on "l2"
             --> topology.toml:4:9
              |
            4 | nodes = "n[4-5]"
              |         ^^^^^^^^ a node hangs on one switch

            error: switch "l3" has neither nodes nor switches
             --> topology.toml:5:9
              |
            5 | [switch.l3]
              |         ^^ name what hangs below it

            error: there is no switch "lx"
             --> topology.toml:7:12
              |
            7 | switches = ["l1", "l2", "lx"]
              |            ^^^^^^^^^^^^^^^^^^ did you mean "l1"?

            error: switch "t" hangs below itself
             --> topology.toml:9:12
              |
            9 | switches = "u"
              |            ^^^ break the circle

            error: switch "l1" hangs below "s" and below "u"
              --> topology.toml:11:12
               |
            11 | switches = ["t", "l1"]
               |            ^^^^^^^^^^^ a switch hangs below one other
        "#]],
    );
}

#[test]
fn racks_and_nvlink_domains_are_of_nodes_that_are_in_one_each() {
    let config = load("--- gpuctld.toml\n--- topology.toml\n[rack.r1]\nnodes = \"n[1-4]\"\n[nvlink_domain.d1]\nnodes = [\"n1\", \"n2\"]\n").unwrap();
    let topology = &config.cluster.scheduler.topology;
    assert_eq!(
        (
            topology.racks[0].nodes.len(),
            topology.nvlink_domain("n2"),
            topology.nvlink_domain("n3")
        ),
        (4, Some("d1"), None)
    );
    check(
        "--- gpuctld.toml\n--- topology.toml\n[nvlink_domain.d1]\nnodes = \"n[1-4]\"\n[nvlink_domain.d2]\nnodes = \"n[4-5]\"\n[rack.r]\n[rack.s]\nnode = \"n1\"\n",
        expect![[r#"
            error: node "n4" is in nvlink_domain "d1" and in "d2"
             --> topology.toml:4:9
              |
            4 | nodes = "n[4-5]"
              |         ^^^^^^^^ a node is in one [nvlink_domain.NAME]

            error: rack "r" has no nodes
             --> topology.toml:5:7
              |
            5 | [rack.r]
              |       ^ name its nodes

            error: rack "s" has no nodes
             --> topology.toml:6:7
              |
            6 | [rack.s]
              |       ^ name its nodes

            error: unknown key "node" in [rack.s]
             --> topology.toml:7:1
              |
            7 | node = "n1"
              | ^^^^ did you mean "nodes"?
        "#]],
    );
}

#[test]
fn rails_say_of_each_gpu_which_it_is_on() {
    let config = load("--- gpuctld.toml\n--- topology.toml\n[rails.a]\nnodes = \"n[1-4]\"\ncount = 8\n[rails.b]\nnodes = \"m1\"\nof_gpu = [1, 0]\n").unwrap();
    let topology = &config.cluster.scheduler.topology;
    let rail = |node: &str, index| topology.rails(node).and_then(|rails| rails.of(index));
    assert_eq!(
        (rail("n4", 7), rail("n4", 8), rail("m1", 0), rail("x", 0)),
        (Some(7), None, Some(1), None)
    );
    check(
        "--- gpuctld.toml\n--- topology.toml\n[rails.a]\nnodes = \"n[1-4]\"\n[rails.b]\nnodes = \"n[4-5]\"\ncount = 8\nof_gpu = [1]\n[rails.c]\nnodes = \"m1\"\nof_gpu = [0, -1, \"x\"]\n\
         [rails.d]\nnodes = \"n1\"\ncount = 100\n[rails.e]\nnodes = \"m2\"\nof_gpu = []\n",
        expect![[r#"
            error: rails "a" do not say which GPU is on which
             --> topology.toml:2:9
              |
            2 | nodes = "n[1-4]"
              |         ^^^^^^^^ say count = 8 where GPU k is on rail k, or of_gpu = [0, 0, 1, 1] where not

            error: node "n4" is in rails "a" and in "b"
             --> topology.toml:4:9
              |
            4 | nodes = "n[4-5]"
              |         ^^^^^^^^ a node is in one [rails.NAME]

            error: rails "b" say count and of_gpu
             --> topology.toml:5:9
              |
            5 | count = 8
              |         ^ say count = 8 where GPU k is on rail k, or of_gpu = [0, 0, 1, 1] where not

            error: of_gpu = -1 is out of bounds
             --> topology.toml:9:14
              |
            9 | of_gpu = [0, -1, "x"]
              |              ^^ 0 to 63 is allowed

            error: of_gpu is of type string
             --> topology.toml:9:18
              |
            9 | of_gpu = [0, -1, "x"]
              |                  ^^^ write a whole number without quotes

            error: node "n1" is in rails "a" and in "d"
              --> topology.toml:11:9
               |
            11 | nodes = "n1"
               |         ^^^^ a node is in one [rails.NAME]

            error: count = 100 is out of bounds
              --> topology.toml:12:9
               |
            12 | count = 100
               |         ^^^ 1 to 64 is allowed

            error: of_gpu has 0 numbers
              --> topology.toml:15:10
               |
            15 | of_gpu = []
               |          ^^ 1 to 64 are allowed
        "#]],
    );
}

#[test]
fn policy_is_read_as_it_is_written() {
    let config = load(
        "--- gpuctld.toml\n[scheduler]\nbackfill = 7\norder = \"fifo\"\n[fair_share]\ngpu_weights = { H100 = 1.5 }\n\
         [[price]]\ngpu_type = \"h100\"\nfrom = 2026-06-01T00:00:00Z\nper_gpu_hour = 2.125\n\
         [[price]]\ngpu_type = \"H100\"\nfrom = \"2026-01-01T00:00:00Z\"\nper_gpu_hour = 3\n\
         --- policy.d/a.toml\n[account.a]\nguaranteed = 2.5\nusers = [\"bob\"]\n[account.a.user.eve]\nshares = 3\ngpus = { h100 = 1 }\n\
         [reservation.r]\nstart = 2026-12-01T06:00:00+01:00\nduration = 90\nnode_count = 2\n",
    )
    .unwrap();
    let scheduler = &config.cluster.scheduler;
    assert_eq!(
        (scheduler.order, scheduler.backfill),
        (
            gmodel::policy::JobOrder::Fifo,
            gmodel::policy::Backfill::First(7)
        )
    );
    assert_eq!(scheduler.fair_share.gpu_weights_milli["h100"], 1500);
    let prices: Vec<u64> = scheduler.prices["h100"]
        .iter()
        .map(|price| price.per_gpu_hour_milli)
        .collect();
    assert_eq!(prices, [3000, 2125], "in the order of their dates");
    let account = &config.cluster.policy.accounts["a"];
    assert_eq!(account.guaranteed.as_ref().unwrap().total(), Some(2500));
    assert_eq!(
        (account.users["bob"].shares, account.users["eve"].shares),
        (1, 3)
    );
    let reservation = &config.cluster.policy.reservations["r"];
    assert_eq!(
        (reservation.start.to_string(), reservation.duration_secs),
        ("2026-12-01T05:00:00Z".into(), 5400)
    );
    assert_eq!(
        config.places[&(RecordKind::Account, "a".to_owned())],
        "policy.d/a.toml:1"
    );
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
        config.cluster.scheduler.prices["h100"][0].from.to_string(),
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
fn what_becomes_of_a_reservation_by_itself_is_not_for_files() {
    let (start, duration) = ("2026-12-01T06:00:00Z", "node_count = 1");
    let text = format!(
        "[reservation.r]\nstart = {start}\nduration = 60\n{duration}\npurge_idle = 5\nrelease_jobs = true\nmagnetic = true\n"
    );
    let errors = load(&format!("--- policy.d/a.toml\n{text}")).unwrap_err();
    assert_eq!(
        errors
            .iter()
            .filter(|error| error.message.contains("is of no use in a file"))
            .count(),
        2,
        "{errors:?}"
    );
    let read = read_policy("p", &text, &ClusterConfig::default()).unwrap();
    let one = &read.reservations["r"];
    assert_eq!(
        (one.purge_idle_secs, one.release_jobs, one.magnetic),
        (Some(300), true, true)
    );
    let again = read_policy("p", &policy_text(&read), &ClusterConfig::default()).unwrap();
    assert_eq!(again.reservations["r"].purge_idle_secs, Some(300));
    let gpus = text.replace(duration, "gpus = 2");
    assert!(
        read_policy("p", &gpus, &ClusterConfig::default()).unwrap_err()[0]
            .message
            .contains("cannot be magnetic")
    );
    assert!(
        read_policy(
            "p",
            &text.replace("= 5\n", "= \"0:30\"\n"),
            &ClusterConfig::default()
        )
        .is_err(),
        "half a minute"
    );
}

#[test]
fn reservations_may_be_for_the_default_account_which_nobody_wrote() {
    let text = |account: &str| {
        format!(
            "[reservation.r]\nstart = 2026-12-01T06:00:00Z\nduration = 60\nnode_count = 1\naccounts = [\"{account}\"]\n"
        )
    };
    assert!(read_policy("export", &text("default"), &ClusterConfig::default()).is_ok());
    let main = "default_account = \"everybody\"\n";
    assert!(
        load(&format!(
            "--- gpuctld.toml\n{main}--- policy.d/a.toml\n{}",
            text("everybody")
        ))
        .is_ok()
    );
    let errors = load(&format!(
        "--- gpuctld.toml\n{main}--- policy.d/a.toml\n{}",
        text("default")
    ))
    .unwrap_err();
    assert!(
        errors[0]
            .message
            .contains("there is no account \"default\""),
        "{errors:?}"
    );
    let parent = "[account.lab]\nparent = \"default\"\n";
    assert!(
        read_policy("p", parent, &ClusterConfig::default()).is_err(),
        "it has no record that could stand above"
    );
}

#[test]
fn an_exported_policy_reads_back_the_same() {
    let etc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc");
    let config = Config::load(&etc.join("gpuctld.toml")).unwrap();
    let mut policy = config.cluster.policy.clone();
    let odd = policy.accounts.get_mut("chemistry").unwrap();
    odd.description = "a \"quoted\" \\ text\nof two lines".into();
    odd.lend_limit = Some(gmodel::policy::GpuAmounts(
        [("1g.10gb".to_owned(), 500), ("gpu".to_owned(), 1000)].into(),
    ));
    policy.reservations.get_mut("course").unwrap().start.0 += 7;
    let text = policy_text(&policy);
    let read = read_policy(
        "export",
        &text,
        &ClusterConfig {
            policy: Policy::default(),
            ..config.cluster.clone()
        },
    );
    let mut read = read.unwrap_or_else(|errors| panic!("{}\n{text}", errors[0]));
    for (name, reservation) in &mut read.reservations {
        reservation
            .created_by
            .clone_from(&policy.reservations[name].created_by);
    }
    assert_eq!(read, policy);
}

#[test]
fn a_fence_program_that_cannot_be_used_is_shown_with_its_place() {
    let errors = |files: &str| {
        let errors = load(files).unwrap_err();
        errors
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    };
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("fence");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    let mode = |mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let text = format!("--- gpuctld.toml\nfence_program = {program:?}\nfence_timeout_secs = 7\n");
    mode(0o755);
    let config = load(&text).unwrap();
    assert_eq!(
        config.fence,
        Some(crate::config::SiteProgram {
            program: program.clone(),
            timeout_secs: 7
        })
    );
    assert!(
        config.cluster.fence_program && !load("--- gpuctld.toml\n").unwrap().cluster.fence_program
    );
    for (bits, why) in [(0o777, "others can write"), (0o644, "it is not executable")] {
        mode(bits);
        let errors = errors(&text);
        assert!(
            errors.contains(why)
                && errors.contains("1 | fence_program = ")
                && errors.contains("^^^"),
            "{errors}"
        );
    }
    let errors = errors("--- gpuctld.toml\nfence_program = \"fence\"\nfence_timeout_secs = 0\n");
    assert!(
        errors.contains("is not an absolute path") && errors.contains("1 to 3600 is allowed"),
        "{errors}"
    );
}

#[test]
fn an_idle_policy_is_read_with_its_times_and_what_does_not_fit_is_shown() {
    let config = load(
        "--- gpuctld.toml\n[partition.main]\n[partition.main.idle]\naction = \"requeue\"\nwarn_after = \"20:00\"\nact_after = 60\ngrace = \"0:30\"\ngpus_percent = 50\nmax_requeues = 5\n\
         [qos.notebook.idle]\naction = \"off\"\n",
    );
    let config = config.unwrap();
    let idle = IdlePolicy {
        action: IdleAction::Requeue,
        warn_after_secs: 1200,
        act_after_secs: 3600,
        grace_secs: 30,
        gpus_percent: 50,
        max_requeues: 5,
    };
    assert_eq!(config.cluster.partitions[0].idle, Some(idle));
    let text = crate::config::policy_text(&config.cluster.policy);
    assert!(
        text.contains("[qos.notebook.idle]\naction = \"off\"\n"),
        "{text}"
    );
    assert_eq!(
        load(&format!("--- gpuctld.toml\n{text}"))
            .unwrap()
            .cluster
            .policy
            .qos["notebook"]
            .idle,
        Some(IdlePolicy::default())
    );
    check(
        "--- gpuctld.toml\n[partition.main.idle]\nwarn_after = \"1:00:00\"\nact_after = 60\n[partition.big.idle]\naction = \"kill\"\ngpus_percent = 30\n[qos.a]\nidle = 3\n",
        expect![[r#"
            error: [partition.main.idle] has no action
             --> gpuctld.toml:1:1
              |
            1 | [partition.main.idle]
              | ^^^^^^^^^^^^^^^^^^^^^ write action = "report" to see first what it would do, or "off"

            error: act_after is 3600 s, and the warning comes after 3600 s
             --> gpuctld.toml:3:13
              |
            3 | act_after = 60
              |             ^^ make it more than warn_after, so that there is time to do something about it

            error: action = "kill" is unknown
             --> gpuctld.toml:5:10
              |
            5 | action = "kill"
              |          ^^^^^^ one of off, report, warn, requeue, cancel

            error: gpus_percent = 30 is not followed
             --> gpuctld.toml:6:16
              |
            6 | gpus_percent = 30
              |                ^^ 25, 50, 75 or 100

            error: idle is of type integer
             --> gpuctld.toml:8:8
              |
            8 | idle = 3
              |        ^ write a table [qos.a.idle]
        "#]],
    );
}

#[test]
fn what_nodes_should_have_is_said_with_nodes_and_known_keys() {
    check(
        "--- gpuctld.toml\n[expect.\"a b\"]\ngpus = { h100 = 8 }\n[expect.dgx]\nnodes = \"n[1-4]\"\ngpu = 8\nmemory = \"lots\"\n",
        expect![[r#"
            error: [expect.a b] has no valid name
             --> gpuctld.toml:1:9
              |
            1 | [expect."a b"]
              |         ^^^^^ use up to 64 letters, digits, '_', '-' and '.'

            error: unknown key "gpu" in [expect.dgx]
             --> gpuctld.toml:5:1
              |
            5 | gpu = 8
              | ^^^ did you mean "gpus"?

            error: memory: size "lots" is not a whole number with K, M, G or T. Try 256 (MiB), 300M or 4G
             --> gpuctld.toml:6:10
              |
            6 | memory = "lots"
              |          ^^^^^^
        "#]],
    );
}

#[test]
fn checks_in_idle_gaps_have_a_program_and_bounds() {
    let config = load("--- gpuctld.toml\n[diagnostics]\nprogram = \"/usr/libexec/check\"\nidle_after = \"0:30\"\nevery = \"12:00:00\"\nthreshold = 7.5\nfloor_percent = 2.5\n").unwrap();
    let terms = config.cluster.diagnostics.unwrap();
    assert_eq!(
        (terms.program.program.as_str(), terms.program.timeout_secs),
        ("/usr/libexec/check", 600)
    );
    assert_eq!(
        (
            terms.idle_after_secs,
            terms.every_secs,
            terms.threshold_milli,
            terms.floor_milli
        ),
        (30, 43_200, 7500, 25)
    );
    assert_eq!((terms.at_once, terms.min_fleet), (None, 5));
    assert_eq!(
        load("--- gpuctld.toml\n").unwrap().cluster.diagnostics,
        None
    );
    let builtin = load("--- gpuctld.toml\n[diagnostics]\nprogram = \"builtin\"\n").unwrap();
    assert_eq!(
        builtin.cluster.diagnostics.unwrap().program.program,
        "builtin"
    );
    check(
        "--- gpuctld.toml\n[diagnostics]\nprogram = \"built-in\"\n",
        expect![[r#"
            error: program = "built-in" is neither "builtin" nor an absolute path
             --> gpuctld.toml:2:11
              |
            2 | program = "built-in"
              |           ^^^^^^^^^^ begin it with /
        "#]],
    );
    check(
        "--- gpuctld.toml\n[diagnostics]\nprogam = \"x\"\nmin_fleet = 2\nchecks = [\"a b\"]\n",
        expect![[r#"
            error: [diagnostics] has no program
             --> gpuctld.toml:1:1
              |
            1 | [diagnostics]
              | ^^^^^^^^^^^^^ it is what checks one GPU: "builtin", or a path on the nodes

            error: unknown key "progam" in [diagnostics]
             --> gpuctld.toml:2:1
              |
            2 | progam = "x"
              | ^^^^^^ did you mean "program"?

            error: min_fleet = 2 is out of bounds
             --> gpuctld.toml:3:13
              |
            3 | min_fleet = 2
              |             ^ 3 to 100000 is allowed

            error: "a b" is no name of a check
             --> gpuctld.toml:4:11
              |
            4 | checks = ["a b"]
              |           ^^^^^ use up to 64 letters, digits, '_', '-' and '.'
        "#]],
    );
}

#[test]
fn names_that_name_nothing_and_bounds_that_nobody_can_keep_are_shown() {
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
