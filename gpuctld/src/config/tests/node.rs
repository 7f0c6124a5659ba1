//! What files say of nodes and the programs of the site: topology, rails, fence program, idle policy, expectations, checks.

use super::*;

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
        Some(crate::config::settings::SiteProgram {
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
