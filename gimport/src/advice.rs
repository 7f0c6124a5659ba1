//! Keys of Slurm's files that write no line of gpupool's: what does their work here, or why nothing has to.
//!
//! Owns these tables alone; keys that become something have a function in `cluster`, `partition` and `node`.

use crate::report::Fate;

/// Keys with one fate and one text; small letters.
pub struct Advice {
    pub fate: Fate,
    pub text: &'static str,
    pub keys: &'static [&'static str],
}

const fn always(text: &'static str, keys: &'static [&'static str]) -> Advice {
    Advice {
        fate: Fate::Understood,
        text,
        keys,
    }
}

const fn instead(text: &'static str, keys: &'static [&'static str]) -> Advice {
    Advice {
        fate: Fate::Counterpart,
        text,
        keys,
    }
}

const fn nothing(text: &'static str, keys: &'static [&'static str]) -> Advice {
    Advice {
        fate: Fate::Meaningless,
        text,
        keys,
    }
}

/// Of slurm.conf itself.
pub const SETTINGS: &[Advice] = &[
    always(
        "cgroups hold each run, and a device fence its GPUs; there is nothing to choose",
        &[
            "taskpluginparam",
            "jobacctgathertype",
            "jobacctgatherparams",
            "jobacctgatherfrequency",
        ],
    ),
    always(
        "gpuctld keeps accounting itself, in its database: gacct, gacct report",
        &[
            "accountingstoragetype",
            "accountingstoragehost",
            "accountingstorageport",
            "accountingstorageparameters",
            "jobcomptype",
            "jobcomphost",
            "jobcomploc",
            "jobcompparams",
            "jobcomppass",
            "jobcompport",
            "jobcompuser",
            "jobcomppassscript",
        ],
    ),
    always(
        "CPUs, memory, nodes and GPUs of each type are always counted",
        &["accountingstoragetres"],
    ),
    always(
        "scripts and environments are kept for keep_scripts_days",
        &["accountingstoreflags", "accountingstorejobcomment"],
    ),
    always(
        "a job that no partition can run is refused when it is submitted",
        &["enforcepartlimits"],
    ),
    always(
        "a node that reports again takes work again; a drained one waits for gadm node resume",
        &["returntoservice"],
    ),
    always(
        "a job is requeued elsewhere after the error of a node, and the node is drained after three",
        &["requeueexit", "requeueexithold", "maxbatchrequeue"],
    ),
    always(
        "nodes report what they have; gnodes --diff shows where that differs from [expect]",
        &["slurmdparameters"],
    ),
    instead(
        "one controller: jobs run on while it is away. gadm backup copies its database, gpuctld restore brings it back",
        &[
            "slurmctldprimaryonprog",
            "slurmctldprimaryoffprog",
            "backupcontroller",
            "backupaddr",
            "slurmctldtimeout",
            "accountingstoragebackuphost",
        ],
    ),
    instead(
        "[submit_hook] names a program that checks and changes submissions",
        &[
            "jobsubmitplugins",
            "clifilterplugins",
            "prioritysitefactorplugin",
            "prioritysitefactorparameters",
        ],
    ),
    instead(
        "epilog of a partition runs on the nodes; a program of the controller follows the jobs by the REST API",
        &["prologslurmctld", "epilogslurmctld"],
    ),
    instead(
        "environment in gpud.toml sets variables of all jobs; a prolog prepares the node",
        &["taskprolog", "taskepilog", "srunprolog", "srunepilog"],
    ),
    instead(
        "a prolog and an epilog may take 60 seconds",
        &["prologepilogtimeout", "batchstarttimeout"],
    ),
    instead(
        "GPU health is built in (docs/gpu-health.md); a timer may run the program and call gadm node drain",
        &[
            "healthcheckprogram",
            "healthcheckinterval",
            "healthchecknodestate",
        ],
    ),
    instead(
        "node_reboot in gpud.toml names a program that boots the machine",
        &[],
    ),
    instead(
        "nodes stay on: gpupool powers none on or off",
        &[
            "suspendprogram",
            "resumeprogram",
            "suspendtime",
            "suspendtimeout",
            "resumetimeout",
            "suspendrate",
            "resumerate",
            "suspendexcnodes",
            "suspendexcparts",
            "suspendexcstates",
            "resumefailprogram",
            "powerparameters",
            "powerplugin",
            "powersaveinterval",
            "powersavemininterval",
        ],
    ),
    instead(
        "budgets of accounts count by calendar: gadm quota set ACCOUNT budget=cap:10000/month",
        &["priorityusageresetperiod"],
    ),
    instead(
        "the weights are age, fair_share, qos, partition, size and site; fair share already goes by accounts",
        &[
            "priorityweightassoc",
            "priorityweighttres",
            "priorityparameters",
        ],
    ),
    instead(
        "limits of an account, a user and a QOS hold them: gadm quota set, gadm qos set",
        &[
            "maxmempercpu",
            "maxmempernode",
            "maxtaskspernode",
            "maxstepcount",
            "jobacctgatheroom",
        ],
    ),
    instead(
        "mem_per_cpu or mem_per_gpu of a partition; without them a job gets its part of the node's memory",
        &["defmempernode"],
    ),
    instead(
        "min_run of a QOS; [preempt] min_run holds for the second run of a job",
        &["preemptexempttime", "preemptparameters"],
    ),
    instead(
        "GPU time is shared by quotas and preemption, not by taking turns; gadm job suspend stops a job",
        &["schedulertimeslice"],
    ),
    instead(
        "a step that hangs drains its node with the reason; fence_program powers it off",
        &["unkillablestepprogram", "unkillablesteptimeout"],
    ),
    instead(
        "no federations: each controller has its own queue; -M asks another",
        &["federationparameters", "dependencyparameters"],
    ),
    instead("grun --kill-on-bad-exit for each step", &["killonbadexit"]),
    instead(
        "[mail] in gpuctld.toml: mail goes by SMTP; domain is there too",
        &["mailprog", "maildomain"],
    ),
    instead(
        "ssh -X gpupool-17, after gadm ssh-config",
        &["x11parameters"],
    ),
    instead(
        "gsub --container-image by crun; nodes need skopeo and umoci (gpupool(7))",
        &["containerparameters", "ociconf"],
    ),
    instead(
        "the limits of users on a node are those of pam_service in gpud.toml, or of its systemd unit",
        &[
            "propagateresourcelimits",
            "propagateresourcelimitsexcept",
            "propagateprioprocess",
        ],
    ),
    instead(
        "features of nodes are those of gpud.toml and of their hardware",
        &[
            "nodefeaturesplugins",
            "nodefeaturesparameters",
            "knlparameters",
            "helpersparameters",
        ],
    ),
    instead(
        "tags of jobs: gsub --tag, gacct report --by tag",
        &["trackwckey"],
    ),
    instead(
        "gpu_scrub and the marks of --checkpoint are what there is; no images of processes are taken",
        &["checkpointtype", "jobcheckpointdir"],
    ),
    nothing(
        "gpuctld runs as root and gpud as root; users are those of the kernel",
        &[
            "slurmuser",
            "slurmduser",
            "authtype",
            "authinfo",
            "authalttypes",
            "authaltparameters",
            "credtype",
            "cryptotype",
            "jobcredentialprivatekey",
            "jobcredentialpubliccertificate",
            "allowspecresourcesusage",
            "hashplugin",
            "accountingstoragepass",
            "accountingstorageuser",
            "accountingstorageexternalhost",
            "accountingstorageloc",
        ],
    ),
    nothing(
        "gpupool has places of its own: state_dir and, in gpud.toml, spool_dir",
        &[
            "slurmctldpidfile",
            "slurmdpidfile",
            "tmpfs",
            "plugindir",
            "plugstackconfig",
            "bcastexclude",
            "bcastparameters",
        ],
    ),
    nothing(
        "the log goes to the journal: GPUCTLD_LOG and GPUD_LOG say how much",
        &[
            "slurmctlddebug",
            "slurmctldlogfile",
            "slurmddebug",
            "slurmdlogfile",
            "slurmschedlogfile",
            "slurmschedloglevel",
            "slurmctldsyslogdebug",
            "slurmdsyslogdebug",
            "debugflags",
            "logtimeformat",
            "syslogdebug",
        ],
    ),
    nothing(
        "nodes dial the controller at one port (listen), with TLS; nothing dials a node",
        &[
            "slurmctldport",
            "slurmdport",
            "srunportrange",
            "commparameters",
            "communicationparameters",
            "messagetimeout",
            "tcptimeout",
            "treewidth",
            "routeplugin",
            "gethosttimeout",
            "eiotimeout",
            "messageaggregationparams",
            "tlstype",
            "tlsparameters",
            "tlsplugin",
            "slurmctldaddr",
            "launchtype",
            "switchtype",
            "switchparameters",
            "certmgrtype",
            "certmgrparameters",
            "certgentype",
            "certgenparameters",
            "urlparserplugin",
            "urlparsertype",
        ],
    ),
    nothing(
        "the planner looks at the whole queue after each change, within a budget of its own",
        &[
            "prioritycalcperiod",
            "schedulerport",
            "schedulerrootfilter",
            "fastschedule",
            "completewait",
            "epilogmsgtime",
            "keepalivetime",
            "sallocdefaultcommand",
            "slurmctldplugstack",
            "maxdbdmsgs",
            "cachegroups",
            "groupupdateforce",
            "groupupdatetime",
            "getenvtimeout",
            "inactivelimit",
            "resvoverrun",
            "resvepilog",
            "resvprolog",
            "waittime",
            "vsizefactor",
            "jobfileappend",
            "mcsplugin",
            "mcsparameters",
            "sbcastparameters",
            "burstbuffertype",
            "burstbufferparameters",
            "dataparserparameters",
            "serializertype",
            "extsensorstype",
            "extsensorsfreq",
            "corespecplugin",
            "prepplugins",
            "prepparameters",
            "scronparameters",
            "namespacetype",
            "namespaceplugin",
            "httpparsertype",
            "metricstype",
            "cpufreqdef",
            "cpufreqgovernors",
            "defaultstoragehost",
            "defaultstorageloc",
            "defaultstoragepass",
            "defaultstorageport",
            "defaultstoragetype",
            "defaultstorageuser",
            "interactivestepoptions",
            "maxnodecount",
            "topologyparam",
            "nodefeaturesplugin",
            "reconfigflags",
            "slurmctldparameters",
            "prologflags",
        ],
    ),
    nothing(
        "energy, network and file system use are not gathered; GPU power and NVLink use are, by NVML",
        &[
            "acctgatherenergytype",
            "acctgathernodefreq",
            "acctgatherprofiletype",
            "acctgatherinterconnecttype",
            "acctgatherinfinibandtype",
            "acctgatherfilesystemtype",
        ],
    ),
];

/// Of a PartitionName line.
pub const PARTITION_KEYS: &[Advice] = &[
    always(
        "a job that asks for no whole nodes shares them",
        &["shared"],
    ),
    instead(
        "users submit where gpupool's commands reach the controller; submit_from_jobs is about jobs on compute nodes",
        &["allocnodes"],
    ),
    instead(
        "a job names several partitions itself: --partition a,b",
        &["alternate"],
    ),
    instead(
        "gsub --checkpoint says how long a job needs before it goes",
        &["gracetime"],
    ),
    instead(
        "partitions are in each listing; allow_accounts, allow_groups and allow_users say which jobs they take",
        &["hidden"],
    ),
    instead(
        "allow_users = [\"root\"] and allow_root_jobs in gpuctld.toml",
        &["rootonly"],
    ),
    instead(
        "allow_root_jobs in gpuctld.toml holds for all partitions",
        &["disablerootjobs"],
    ),
    instead(
        "per_job of a QOS bounds a job's CPUs; cpus_per_gpu says what a GPU brings",
        &[
            "maxcpuspernode",
            "maxcpuspersocket",
            "maxmempercpu",
            "maxmempernode",
        ],
    ),
    instead(
        "mem_per_cpu or mem_per_gpu; without them a job gets its part of the node's memory",
        &["defmempernode"],
    ),
    instead(
        "jobs of one user at a time on a node: --exclusive=user, which a submit_hook may set",
        &["exclusiveuser", "exclusivetopo"],
    ),
    instead(
        "a reservation, and a submit_hook that asks for it",
        &["reqresv"],
    ),
    instead(
        "nodes stay on: gpupool powers none on or off",
        &[
            "suspendtime",
            "suspendtimeout",
            "resumetimeout",
            "powerdownonidle",
        ],
    ),
    instead(
        "there is one topology.toml for all partitions",
        &["topology"],
    ),
    nothing(
        "CPUs and memory are counted, as under cons_tres",
        &["selecttypeparameters", "cpubind", "maxtaskspernode"],
    ),
];

/// Of a NodeName line.
pub const NODE_KEYS: &[Advice] = &[
    instead(
        "placement in gpuctld.toml says which node is taken: pack, spread, best-fit, first-fit",
        &["weight"],
    ),
    instead(
        "cpus and mem_bytes in gpud.toml declare less than the machine has",
        &[
            "corespeccount",
            "cpuspeclist",
            "memspeclimit",
            "specreservation",
            "restrictedcoreserpergpu",
            "restrictedcorespergpu",
        ],
    ),
    nothing(
        "nodes dial the controller; their addresses are not configured",
        &["nodeaddr", "nodehostname", "bcastaddr", "port"],
    ),
    nothing(
        "what the machine has is found by its daemon",
        &[
            "tmpdisk",
            "procs",
            "cpubind",
            "extra",
            "instanceid",
            "instancetype",
            "topology",
            "certtoken",
        ],
    ),
];

/// Of a SchedulerParameters list.
pub const SCHEDULER_PARAMETERS: &[Advice] = &[
    instead(
        "limits of accounts, users and QOS (running_jobs, submitted_jobs, submits_per_minute)",
        &[
            "bf_max_job_user",
            "bf_max_job_part",
            "bf_max_job_assoc",
            "bf_max_job_user_part",
            "max_submit_line_size",
            "partition_job_depth",
            "assoc_limit_stop",
        ],
    ),
    instead(
        "gadm job update sets a priority, for operators",
        &["enable_user_top"],
    ),
    instead(
        "a checkpointable job may be moved: consolidate in [scheduler]",
        &[
            "reduce_completing_frag",
            "preempt_strict_order",
            "preempt_reorder_count",
            "preempt_youngest_first",
            "preempt_youngest_order",
            "preempt_send_user_signal",
        ],
    ),
    instead(
        "placement in [scheduler]",
        &[
            "pack_serial_at_end",
            "bf_busy_nodes",
            "spec_cores_first",
            "nohold_on_prolog_fail",
        ],
    ),
    instead(
        "gsub --nodes, --exclusive and --switches say where a job goes",
        &["max_switch_wait", "topo_optional", "time_min_as_soft_limit"],
    ),
    nothing(
        "the planner looks at the whole queue after each change, within a budget of its own",
        &[
            "batch_sched_delay",
            "bb_array_stage_cnt",
            "bf_allow_magnetic_slot",
            "bf_continue",
            "bf_hetjob_immediate",
            "bf_hetjob_prio",
            "bf_interval",
            "bf_job_part_count_reserve",
            "bf_licenses",
            "bf_max_job_array_resv",
            "bf_max_job_start",
            "bf_max_job_test",
            "bf_max_time",
            "bf_min_age_reserve",
            "bf_min_prio_reserve",
            "bf_node_space_size",
            "bf_one_resv_per_job",
            "bf_resolution",
            "bf_running_job_reserve",
            "bf_topopt_enable",
            "bf_topopt_iterations",
            "bf_window",
            "bf_window_linear",
            "bf_yield_interval",
            "bf_yield_rpc_cnt",
            "bf_yield_sleep",
            "build_queue_timeout",
            "default_queue_depth",
            "defer",
            "defer_batch",
            "delay_boot",
            "disable_job_shrink",
            "disable_hetjob_steps",
            "enable_hetjob_steps",
            "enable_job_state_cache",
            "extra_constraints",
            "allow_zero_lic",
            "ignore_constraint_validation",
            "ignore_numa",
            "ignore_prefer_validation",
            "inventory_interval",
            "max_array_tasks",
            "max_depend_depth",
            "max_rpc_cnt",
            "max_sched_time",
            "max_script_size",
            "no_backup_scheduling",
            "no_env_cache",
            "requeue_setup_env_fail",
            "reserve_last_core",
            "salloc_wait_nodes",
            "sbatch_wait_nodes",
            "sched_interval",
            "sched_max_job_start",
            "sched_min_interval",
            "step_retry_count",
            "step_retry_time",
            "whole_hetjob",
            "whole_pack",
        ],
    ),
];

/// What a table says of a key.
pub fn advice_for(table: &'static [Advice], key: &str) -> Option<&'static Advice> {
    table
        .iter()
        .find(|one| one.keys.iter().any(|known| known.eq_ignore_ascii_case(key)))
}

/// All keys of a table.
pub fn keys_of(table: &'static [Advice]) -> impl Iterator<Item = &'static str> {
    table.iter().flat_map(|one| one.keys.iter().copied())
}
