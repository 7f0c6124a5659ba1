//! Accounts, QOS and reservations in files: mistakes, and what is read of them.

use super::*;

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
               | ^^^^^^^^^ from is the date from which on it counts, as 2026-12-01

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
    let prices: Vec<u64> = scheduler.money.prices["h100"]
        .iter()
        .map(|price| price.micro_per_hour)
        .collect();
    assert_eq!(
        prices,
        [3_000_000, 2_125_000],
        "in the order of their dates"
    );
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
fn reservations_may_be_for_the_default_account_without_a_record() {
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
