//! Sites as files of Slurm, and what comes of them. What is written is read by gpupool's own readers within `import`.

use expect_test::expect;
use gimport::report::Fate;
use gimport::site::{ImportedSite, NamedText, SlurmFiles, import};
use proptest::prelude::*;
use std::path::Path;

fn text(path: &str, text: &str) -> NamedText {
    NamedText {
        path: path.into(),
        text: text.to_owned(),
    }
}

fn site(files: &SlurmFiles) -> ImportedSite {
    import(files, &|_: &Path| Err("no such file".to_owned())).unwrap_or_else(|all| {
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        panic!("{}", all.join("\n"))
    })
}

fn of_conf(conf: &str) -> ImportedSite {
    site(&SlurmFiles {
        conf: text("slurm.conf", conf),
        ..SlurmFiles::default()
    })
}

fn mistakes(files: &SlurmFiles) -> Vec<String> {
    let all = import(files, &|_: &Path| Err("no such file".to_owned())).expect_err("a mistake");
    all.iter()
        .map(|one| format!("{}:{}: {}", one.path.display(), one.line, one.message))
        .collect()
}

fn file<'s>(site: &'s ImportedSite, path: &str) -> &'s str {
    let found = site.files.iter().find(|file| file.path == path);
    &found.expect(path).text
}

fn said(site: &ImportedSite, fate: Fate) -> Vec<String> {
    let mine = site.report.findings.iter().filter(|one| one.fate == fate);
    mine.map(|one| format!("{} {}: {}", one.place, one.said, one.text))
        .collect()
}

const SITE: &str = r#"ClusterName=tux
SlurmctldHost=head1(10.0.0.1)
SlurmctldHost=head2
KillWait=45   # seconds
PriorityWeightFairshare=1000
PriorityDecayHalfLife=14-0
SchedulerParameters=bf_window=4320,kill_invalid_depend
PreemptType=preempt/qos
PreemptMode=REQUEUE
DefMemPerCPU=4000
SlurmdDebug=info
KilWait=3
GresTypes=gpu
NodeName=DEFAULT State=UNKNOWN
NodeName=gpu[01-16] CPUs=224 RealMemory=2000000 Gres=gpu:nvidia_h100_80gb_hbm3:8(S:0-1) Features=ib Weight=10
NodeName=old1 Sockets=2 CoresPerSocket=8 ThreadsPerCore=2 Gres=gpu:4
PartitionName=DEFAULT MaxTime=2-0
PartitionName=train Nodes=gpu[01-16] Default=YES DefaultTime=3-0 AllowQos=Normal,urgent \
   TRESBillingWeights="CPU=1.0,Mem=0.25G,GRES/gpu=100"
PartitionName=old Nodes=old1 QOS=part AllowGroups=staff MaxTime=UNLIMITED
PartitionName=none
"#;

#[test]
fn partitions_nodes_and_settings_become_files_with_the_line_they_come_from() {
    let files = SlurmFiles {
        conf: text("slurm.conf", SITE),
        gres: Some(text(
            "gres.conf",
            "AutoDetect=nvml\nNodeName=old1 Name=gpu Type=tesla_v100 File=/dev/nvidia[0-3]\n",
        )),
        qos: Some(text(
            "qos.txt",
            "Name|Priority|Preempt|UsageFactor|Flags|GrpJobs|MaxTRESPU|MaxWall\nnormal|0||1.000000||||\nurgent|100|normal|2.5||||1-00:00:00\npart|0||1.0|DenyOnLimit|10|cpu=64,gres/gpu=2|\n",
        )),
        ..SlurmFiles::default()
    };
    let site = site(&files);
    expect![[r##"
        # From slurm.conf, by gadm import slurm. Behind each # is the line that a key comes from.
        # What is not here has its default: gpuctld.toml(5).

        cluster = "tux"                      # ClusterName=tux (slurm.conf:1)
        advertise = "head1:7117"             # SlurmctldHost=head1(10.0.0.1) (slurm.conf:2)
        kill_grace_secs = 45                 # KillWait=45 (slurm.conf:4)
        kill_invalid_depend = true           # kill_invalid_depend=yes (slurm.conf:7)

        [expect.gpu]
        nodes = "gpu[01-16]"                 # NodeName=gpu[01-16] (slurm.conf:15)
        gpus = { h100 = 8 }                  # Gres
        cpus = 224                           # CPUs
        memory = "2000000M"                  # RealMemory

        [expect.old]
        nodes = "old1"                       # NodeName=old1 (slurm.conf:16)
        gpus = { v100 = 4 }                  # Gres
        cpus = 32                            # CPUs

        [fair_share]
        half_life = "14-00:00:00"            # PriorityDecayHalfLife=14-0 (slurm.conf:6)
        cpu_weight = 0.01                    # TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=100 (slurm.conf:19)
        mem_gib_weight = 0.002               # TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=100 (slurm.conf:19)

        [priority]
        fair_share = 1000                    # PriorityWeightFairshare=1000 (slurm.conf:5)
        age = 0                              # slurm.conf has no such weight, which is 0 in Slurm
        qos = 0                              # slurm.conf has no such weight, which is 0 in Slurm
        partition = 0                        # slurm.conf has no such weight, which is 0 in Slurm
        size = 0                             # slurm.conf has no such weight, which is 0 in Slurm
    "##]]
    .assert_eq(file(&site, "gpuctld.toml"));
    expect![[r##"
        # From slurm.conf, by gadm import slurm. Behind each # is the line that a key comes from.

        [partition.old]
        nodes = "old1"                       # Nodes=old1 (slurm.conf:20)
        allow_groups = ["staff"]             # AllowGroups=staff (slurm.conf:20)
        max_time = "UNLIMITED"               # MaxTime=UNLIMITED (slurm.conf:20)
        preempt_mode = "requeue"             # PreemptMode=REQUEUE (slurm.conf:9)
        mem_per_cpu = "4000M"                # DefMemPerCPU=4000 (slurm.conf:10)

        [partition.old.group]
        running_jobs = 10                    # QOS=part (slurm.conf:20)

        [partition.old.per_user]
        cpus = 64                            # QOS=part (slurm.conf:20)
        gpus = { gpu = 2 }                   # QOS=part (slurm.conf:20)

        [partition.train]
        nodes = "gpu[01-16]"                 # Nodes=gpu[01-16] (slurm.conf:18)
        allow_qos = ["normal", "urgent"]     # AllowQos=Normal,urgent (slurm.conf:18)
        default = true                       # Default=YES (slurm.conf:18)
        default_time = "2-00:00:00"          # max_time: DefaultTime was longer
        max_time = "2-00:00:00"              # MaxTime=2-0 (slurm.conf:17)
        preempt_mode = "requeue"             # PreemptMode=REQUEUE (slurm.conf:9)
        mem_per_cpu = "4000M"                # DefMemPerCPU=4000 (slurm.conf:10)
    "##]]
    .assert_eq(file(&site, "partitions.d/slurm.toml"));
    expect![[r##"
        # QOS, which partitions and accounts name. Edit them here, then gadm reload.

        [qos.normal]

        [qos.part]

        [qos.part.group]
        running_jobs = 10

        [qos.part.per_user]
        gpus = 2
        cpus = 64

        [qos.urgent]
        priority = 100
        usage_factor = 2.5
        preempt = ["normal"]

        [qos.urgent.per_job]
        max_time = "24:00:00"
    "##]]
    .assert_eq(file(&site, "policy.d/qos.toml"));
    expect![[r##"
        # /etc/gpupool/gpud.toml of gpu[01-16]. What the machine has is found: gpud.toml(5).

        controller = "head1:7117"            # advertise of gpuctld.toml
        features = ["ib"]                    # Features
    "##]]
    .assert_eq(file(&site, "gpud/gpu.toml"));
    expect![[r#"
        qos.txt part: Flags=DenyOnLimit: no QOS has flags; gadm qos set --help and gpuctld.toml(5) tell its keys
        slurm.conf:3 SlurmctldHost=head2: one controller: jobs run on while it is away. gadm backup copies its database, gpuctld restore brings it back
        slurm.conf:21 PartitionName=none: it has no nodes and is left out; gadm partition add makes it when there are some
        slurm.conf:15 Weight=10: placement in gpuctld.toml says which node is taken: pack, spread, best-fit, first-fit"#]].assert_eq(&said(&site, Fate::Counterpart).join("\n"));
    expect![[r#"slurm.conf:12 KilWait=3: not a key of Slurm's that this release knows. Did you mean "killwait"?"#]].assert_eq(&said(&site, Fate::Unknown).join("\n"));
}

#[test]
fn a_licence_by_no_name_is_a_mistake_at_its_place() {
    let mistakes = mistakes(&SlurmFiles {
        conf: text("slurm.conf", "ClusterName=lab\nLicenses=n[1-4]\n"),
        ..SlurmFiles::default()
    });
    assert!(
        mistakes.len() == 1 && mistakes[0].starts_with("slurm.conf:2"),
        "{mistakes:?}"
    );
}

#[test]
fn accounts_are_a_tree_with_users_shares_and_limits() {
    let dump = "# To edit\nCluster - 'tux':Fairshare=1\nParent - 'root'\nUser - 'root':DefaultAccount='root':AdminLevel='Administrator'\n\
        Account - 'Physics':Description='all of it':Organization='uni':Fairshare=20:GrpTRES=cpu=1000,gres/gpu=64,mem=3T:QOS='+normal,+urgent':DefaultQOS='high'\n\
        Parent - 'physics'\nAccount - 'quantum':Fairshare=5:MaxWall=600:MaxJobs=-1\nUser - 'ada':DefaultAccount='physics':Coordinator='physics':Fairshare=3\n\
        Parent - 'quantum'\nUser - 'bob':DefaultAccount='quantum':Fairshare=parent\nUser - 'ada':Partition='gpu':DefaultAccount='physics'\n";
    let site = site(&SlurmFiles {
        conf: text(
            "slurm.conf",
            "AccountingStorageEnforce=associations\nNodeName=n1\nPartitionName=p Nodes=n1\n",
        ),
        associations: Some(text("dump.cfg", dump)),
        ..SlurmFiles::default()
    });
    expect![[r##"
        # Accounts and their users, for gadm policy import. gadm and sacctmgr change them afterwards.

        [account.default]
        description = "closed: users without an account may not submit"
        users_only = true

        [account.physics]
        description = "all of it"
        shares = 20
        allow_qos = ["normal", "urgent", "high"]
        default_qos = "high"
        coordinators = ["ada"]

        [account.physics.group]
        gpus = 64
        cpus = 1000

        [account.physics.user.ada]
        shares = 3
        default = true

        [account.quantum]
        parent = "physics"
        shares = 5

        [account.quantum.user.bob]
        default = true
    "##]].assert_eq(file(&site, "accounts.toml"));
    expect![[r#"
        # QOS, which partitions and accounts name. Edit them here, then gadm reload.

        [qos.high]

        [qos.normal]

        [qos.urgent]
    "#]]
    .assert_eq(file(&site, "policy.d/qos.toml"));
    expect![[r#"
        dump.cfg:5 Physics: GrpTRES=cpu=1000,gres/gpu=64,mem=3T: GPUs, CPUs and nodes are bounded; of memory and other resources there is no bound
        dump.cfg:7 quantum: MaxWall=600: a job's time is bounded by its QOS (modify qos NAME set MaxWall=) and its partition (max_time)
        dump.cfg:11 ada: Partition=: a partition says itself which jobs it takes: allow_accounts, allow_users and allow_qos in partitions.d
        dump.cfg:2 tux: Fairshare=1: limits of a cluster are those of its accounts and QOS
        dump.cfg:10 bob: Fairshare=parent: users of an account share it by their shares; Fairshare=parent has no counterpart"#]].assert_eq(&said(&site, Fate::Counterpart).join("\n"));
}

#[test]
fn sites_of_all_kinds_are_read_by_gpupools_own_readers() {
    for conf in [
        "",
        "NodeName=n[1-3]\nPartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n",
        "GresTypes=gpu,mps,shard\nJobContainerType=job_container/tmpfs\nNodeName=n1 Gres=gpu:a100:2,mps:200,shard:8\nPartitionName=p Nodes=n1\n",
        "NodeName=n1 Gres=gpu:1g.10gb:7\nPartitionName=a Nodes=n1 MaxTime=30 DefaultTime=60 LLN=YES Default=YES\nPartitionName=b Nodes=n1 Default=YES State=INACTIVE PriorityTier=99999999\n",
        "PreemptType=preempt/partition_prio\nPreemptMode=SUSPEND,GANG\nOverTimeLimit=UNLIMITED\nLicenses=a.b:3\nPrologFlags=X11\nNodeName=a,b[1-2],c-x[09-11]\nPartitionName=x.y Nodes=c-x10 DenyQos=low MaxNodes=UNLIMITED JobDefaults=DefCpuPerGPU=8,DefMemPerGPU=64000\n",
        "MinJobAge=9999999\nKillWait=0\nSlurmdTimeout=0\nMaxArraySize=4000001\nPriorityMaxAge=0-1\nPriorityDecayHalfLife=0\nNodeName=0\nPartitionName=p Nodes=0 DefMemPerCPU=0 TRESBillingWeights=GRES/gpu:a100=5,CPU=0.1\n",
    ] {
        assert!(!of_conf(conf).report.next.is_empty(), "{conf}");
    }
}

#[test]
fn what_contradicts_itself_is_shown_and_nothing_is_written() {
    let conf = |conf: &str| SlurmFiles {
        conf: text("slurm.conf", conf),
        ..SlurmFiles::default()
    };
    assert_eq!(
        mistakes(&conf(
            "KillWait=soon\nNodeName=a[1-3] CPUs=x\nNodeName=a2\nPartitionName=p Nodes=b1 MaxTime=never\nPartitionName=p/q Nodes=a1 State=LATER\nPartitionName=p Nodes=a1\n"
        )),
        [
            "slurm.conf:1: KillWait=soon is no number",
            "slurm.conf:2: CPUs=x is no number",
            "slurm.conf:3: node \"a2\" is there twice",
            "slurm.conf:4: there is no node \"b1\"",
            "slurm.conf:4: MaxTime=never is no time",
            "slurm.conf:5: \"p/q\" is no name of a partition",
            "slurm.conf:6: partition \"p\" is there twice",
        ]
    );
    let with = |associations: &str, qos: &str| SlurmFiles {
        conf: text("slurm.conf", "NodeName=n1\nPartitionName=p Nodes=n1\n"),
        associations: Some(text("dump.cfg", associations)),
        qos: Some(text("qos.txt", qos)),
        ..SlurmFiles::default()
    };
    let head = "Name|GrpJobs|GrpTRES\n";
    assert_eq!(
        mistakes(&with(
            "Account - 'a b'\nParent - 'x'\nUser - 'ada'\nAccount - 'c'\nParent - 'root'\nAccount - 'd':MaxJobs=many\n",
            &format!("{head}q|1\nr|x|\ns||gres\n")
        )),
        [
            "qos.txt:2: the line has 2 columns, the first line 3",
            "qos.txt:3: \"x\" is no number",
            "qos.txt:4: \"gres\" is no list of resources",
            "dump.cfg:1: \"a b\" is no name of an account here",
            "dump.cfg:3: the account \"x\" above it is not there",
            "dump.cfg:4: the account \"x\" above it is not there",
            "dump.cfg:6: \"many\" is no number",
        ]
    );
    assert_eq!(
        mistakes(&with("what", head)),
        [
            "dump.cfg:0: cannot be read: line 1: it has no title. Lines begin so: Account - vision:Description='...'"
        ]
    );
}

/// Lines of words that mean something, in any order, with any values.
fn lines(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    let value = prop_oneof![
        "[a-z0-9,:=.|'\\[\\]-]{0,12}",
        "[0-9]{1,22}",
        Just("gpu:a100:18446744073709551615".to_owned()),
        Just("CPU=999999999999,Mem=999999999999,GRES/gpu=0.001".to_owned()),
        Just("n[1-4]".to_owned()),
        ".{0,6}",
    ];
    let word =
        (proptest::sample::select(words), value).prop_map(|(key, value)| format!("{key}{value}"));
    let line = proptest::collection::vec(word, 1..5).prop_map(|words| words.join(" "));
    proptest::collection::vec(line, 0..8).prop_map(|lines| lines.join("\n"))
}

const CONF: &[&str] = &[
    "NodeName=",
    "PartitionName=",
    "Nodes=",
    "CPUs=",
    "Gres=",
    "Boards=",
    "Sockets=",
    "RealMemory=",
    "MaxTime=",
    "DefaultTime=",
    "TRESBillingWeights=",
    "Licenses=",
    "KillWait=",
    "ClusterName=",
    "SlurmctldHost=",
    "AllowQos=",
    "QOS=",
    "NodeSet=",
    "Feature=",
    "Include ",
    "GresTypes=",
    "DefMemPerCPU=",
    "PriorityMaxAge=",
    "OverTimeLimit=",
    "JobDefaults=",
    "#",
    "\\",
    "\"",
];
const DUMP: &[&str] = &[
    "Account - ",
    "User - ",
    "Parent - ",
    "QOS - ",
    "Cluster - ",
    ":Fairshare=",
    ":GrpTRES=cpu=",
    ":QOS=",
    ":MaxJobs=",
];

proptest! {
    /// Whatever the files say, the answer is a site that gpupool reads, or mistakes of those files; never a file of ours that is wrong.
    #[test]
    fn no_text_breaks_the_reader_and_none_makes_a_wrong_file(conf in lines(CONF), gres in lines(CONF), dump in lines(DUMP), qos in lines(&["Name|Priority|GrpTRES\n", "a|", "|", "normal|1|"]), sacct in lines(&["1|", "|", "JobID|User", "COMPLETED|"])) {
        let files = SlurmFiles {
            conf: text("slurm.conf", &conf),
            gres: Some(text("gres.conf", &gres)),
            associations: Some(text("dump.cfg", &dump)),
            qos: Some(text("qos.txt", &format!("Name|Priority|GrpTRES\n{qos}"))),
        };
        if let Err(all) = import(&files, &|_: &Path| Err("no such file".to_owned())) {
            let ours = all.iter().find(|one| one.path.extension().is_some_and(|end| end == "toml"));
            prop_assert!(ours.is_none(), "{}\n{conf}\n{dump}\n{qos}", ours.unwrap());
        }
        let reader = gimport::sacct::SacctReader::new("JobID|User|Account|State|Submit|Start|End|AllocTRES").unwrap();
        let _ = reader.line(&sacct, &gmodel::TimeZone::default());
    }
}
