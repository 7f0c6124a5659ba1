//! A site of Slurm moves in: its files become gpupool's, a controller runs with them, jobs go to its partitions, and past jobs are known.

use gmodel::JobState::Completed;
use gpupool_tests::pool::Pool;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;

const CONF: &str = "ClusterName=tux\nSlurmctldHost=head\nKillWait=7\nPriorityWeightFairshare=5000\nSelectType=select/cons_tres\n\
    NodeName=node1 CPUs=8 Gres=gpu:nvidia_h100_80gb_hbm3:4 Features=ib\n\
    PartitionName=DEFAULT MaxTime=2:00:00 Nodes=node1\nPartitionName=train Default=YES QOS=part\n\
    PartitionName=debug AllowQos=normal,urgent MaxTime=30 AllowAccounts=Vision\n";
const QOS: &str =
    "Name|Priority|GrpTRES|MaxWall\nnormal|0||\nurgent|100||0:20:00\npart|0|gres/gpu=4|\n";
const SACCT: &str = "JobIDRaw|JobName|User|UID|GID|Account|Partition|QOS|State|ExitCode|Submit|Start|End|AllocTRES|NodeList\n\
    17|old|ada|1000|1000|vision|train|normal|COMPLETED|0:0|1780000000|1780000100|1780003700|cpu=8,gres/gpu:h100=2,mem=8G,node=1|old1\n\
    17.batch|batch|||||||COMPLETED|0:0|1780000000|1780000100|1780003700|cpu=8|old1\n\
    18|never|ada|1000|1000|vision|train|normal|CANCELLED by 0|0:0|1780000000|Unknown|1780000200||None assigned\n\
    19|now|ada|1000|1000|vision|train|normal|RUNNING|0:0|1780000000|1780000100|Unknown|cpu=1|old1\n\
    20|a|b\n";

/// What was imported, with the sandbox's places instead of the site's.
fn take_over(pool: &Pool, out: &Path) {
    let config = pool.config("gpuctld");
    let sandbox = fs::read_to_string(&config).unwrap();
    let imported = fs::read_to_string(out.join("gpuctld.toml")).unwrap();
    let is_places =
        |line: &&str| !line.starts_with("cluster =") && !line.starts_with("advertise =");
    // The sandbox's own tables are the file's end.
    let (keys, tables) = sandbox.split_at(sandbox.find("\n[").unwrap_or(sandbox.len()));
    let said: Vec<&str> = keys
        .lines()
        .chain(imported.lines().filter(is_places))
        .chain(tables.lines())
        .collect();
    fs::write(&config, said.join("\n")).unwrap();
    for dir in ["partitions.d", "policy.d"] {
        let to = config.with_file_name(dir);
        let _ = fs::remove_dir_all(&to);
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(out.join(dir)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

#[test]
fn a_site_of_slurm_runs_on_with_its_partitions_accounts_and_past_jobs() {
    let Some(pool) = Pool::up(1, "h100:4") else {
        return;
    };
    let dump = format!(
        "Cluster - 'tux'\nParent - 'root'\nAccount - 'Vision':Fairshare=7:GrpTRES=gres/gpu=3\nParent - 'vision'\nUser - '{}':DefaultAccount='vision':Fairshare=2\n",
        pool.person().name
    );
    for (name, text) in [
        ("slurm.conf", CONF),
        ("qos.txt", QOS),
        ("sacct.txt", SACCT),
        ("dump.cfg", &dump),
    ] {
        pool.write(name, text);
    }
    let words = [
        "import",
        "slurm",
        "--conf",
        "slurm.conf",
        "--qos",
        "qos.txt",
        "--associations",
        "dump.cfg",
        "--jobs",
        "sacct.txt",
        "--out",
        "site",
    ];
    let said = pool.run("gadm", &words);
    assert!(
        said.code == 0 && said.out.contains("2 jobs of 1 users; 1 steps and 1 jobs"),
        "{said:?}"
    );
    pool.run("gadm", &words).fails_with(1, "it is not empty");
    let out = pool.work.join("site");
    let main = out.join("gpuctld.toml");
    let checked = pool.run("gpuctld", &["check", "--config", main.to_str().unwrap()]);
    assert!(
        checked.out.contains("2 partitions, no mistakes"),
        "{checked:?}"
    );

    let config = pool.config("gpuctld");
    let bring = || {
        pool.run(
            "gpuctld",
            &[
                "import-jobs",
                "--from",
                "sacct.txt",
                "--config",
                config.to_str().unwrap(),
            ],
        )
    };
    bring().fails_with(1, "another gpuctld has");
    pool.kill("gpuctld");
    take_over(&pool, &out);
    let said = bring();
    assert!(
        said.out
            .contains("2 jobs are brought; the first of this cluster's own will be 1000019"),
        "{said:?}"
    );
    assert!(said.out.contains("line 6: it has 3 columns"), "{said:?}");
    assert!(bring().out.contains("2 were there already"));
    pool.start("gpuctld");
    let said = pool.run("gadm", &["policy", "import", "site/accounts.toml", "--yes"]);
    assert_eq!(said.code, 0, "{said:?}");

    let mut sbatch = pool.user_command("gslurm");
    let said = gpupool_tests::pool::say(sbatch.arg0("sbatch").args([
        "--parsable",
        "-p",
        "debug",
        "-q",
        "urgent",
        "--gres=gpu:1",
        "--wrap",
        "true",
    ]));
    let id = said.id();
    assert!(id >= 1_000_019, "{id}");
    let job = pool.wait_state(id, Completed);
    assert_eq!(
        (job.partition.as_str(), job.account.as_str()),
        ("debug", "vision")
    );
    pool.run_as_user("gsub", &["-p", "debug", "-t", "40", "--wrap", "true"])
        .fails_with(1, "30");
    pool.run("gsub", &["-p", "gone", "--wrap", "true"])
        .fails_with(1, "no partition");
    let differs = pool.run("gnodes", &["--diff"]);
    assert!(!differs.out.contains("gpus"), "{differs:?}");

    let listed = pool.run(
        "gacct",
        &["-j", "17", "-o", "jobid,user,state,account,nodelist"],
    );
    assert!(
        listed.out.contains("ada")
            && listed.out.contains("COMPLETED")
            && listed.out.contains("old1"),
        "{listed:?}"
    );
    let report = || {
        pool.run(
            "gacct",
            &[
                "report",
                "--by",
                "account,user",
                "--from",
                "2026-05-28",
                "--to",
                "2026-05-30",
            ],
        )
        .out
    };
    pool.wait_until("the sums are made", || report().contains("2.0"));
    let share = pool.run("gadm", &["share"]).out;
    assert!(share.contains("vision") && share.contains("ada"), "{share}");
    pool.check();
}
