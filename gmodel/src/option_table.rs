//! The one table of gsub's options: every option of sbatch with its status here, and gpupool's own. The parser, the man
//! page and the messages for missing options are built from it; no code here acts on an option.
//! Source: sbatch(1); a test compares the names with a copy of its list.

use crate::suggest;

use OptionStatus::{Done, Hint, Later, Never, SameAs};
use OptionValue::{None as Flag, Optional, Required};

/// One option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionSpec {
    /// Long name without dashes.
    pub name: &'static str,
    /// Short letter, if it has one.
    pub short: Option<char>,
    pub value: OptionValue,
    pub status: OptionStatus,
    /// Variable that sets it, below the command line and above the script's lines. Only those that sbatch reads: scripts use
    /// names like SBATCH_MEM for themselves.
    pub env: Option<&'static str>,
    /// One line for `--help` and the man page.
    pub help: &'static str,
    /// False for options that sbatch does not have.
    pub slurm: bool,
}

/// Whether an option takes a value; the word is the placeholder in help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionValue {
    /// A flag.
    None,
    /// Always with a value.
    Required(&'static str),
    /// With or without; a value must be written as `--name=value`.
    Optional(&'static str),
}

/// What gsub does about an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionStatus {
    /// Acted on.
    Done,
    /// Another name of a done option.
    SameAs(&'static str),
    /// Changes at most speed or placement, and nothing here: accepted with a line on stderr that says this, stored, shown by `gq JOB`.
    Hint(&'static str),
    /// From a script's line: accepted with a line on stderr, stored, shown by `gq JOB`. On the command line: refused.
    Later,
    /// Refused with this reason, which says what to do instead.
    Never(&'static str),
}

impl OptionSpec {
    /// The option of this long name.
    pub fn find(name: &str) -> Option<&'static Self> {
        OPTIONS.iter().find(|option| option.name == name)
    }

    /// The option of this letter.
    pub fn find_short(letter: char) -> Option<&'static Self> {
        OPTIONS.iter().find(|option| option.short == Some(letter))
    }

    /// The option of this long name, or of its beginning where that is enough to tell, as getopt_long reads it.
    ///
    /// # Errors
    /// The name is unknown, or the beginning of several names.
    pub fn find_abbreviated(name: &str) -> Result<&'static Self, String> {
        if let Some(option) = Self::find(name) {
            return Ok(option);
        }
        let begun: Vec<_> = OPTIONS
            .iter()
            .filter(|option| !name.is_empty() && option.name.starts_with(name))
            .collect();
        match begun[..] {
            [] => Err(unknown_option(name)),
            [option] => Ok(option),
            _ => {
                let names: Vec<_> = begun.iter().map(|option| option.flag()).collect();
                Err(format!(
                    "--{name} could be {}. Write it in full.",
                    names.join(", ")
                ))
            }
        }
    }

    /// As messages name it: `--time`.
    pub fn flag(&self) -> String {
        format!("--{}", self.name)
    }

    /// Why the option is refused on the command line, as the rest of a message; None if it is taken.
    pub fn refusal(&self) -> Option<String> {
        match self.status {
            OptionStatus::Done | OptionStatus::SameAs(_) | OptionStatus::Hint(_) => None,
            OptionStatus::Later => Some(format!(
                "--{} is not acted on yet. In a #SBATCH line it is stored with the job; on the command line leave it out",
                self.name
            )),
            OptionStatus::Never(reason) => {
                Some(format!("--{} has no meaning here: {reason}", self.name))
            }
        }
    }
}

/// The message for an unknown option, with the nearest one that is taken.
pub fn unknown_option(name: &str) -> String {
    let taken = OPTIONS
        .iter()
        .filter(|option| option.refusal().is_none())
        .map(|option| option.name);
    let nearest = suggest::closest(name, taken)
        .map(|near| format!(" Did you mean --{near}?"))
        .unwrap_or_default();
    let name: String = name.chars().take(60).collect();
    format!("unknown option --{name}.{nearest} gsub --help lists them all.")
}

const fn option(
    name: &'static str,
    value: OptionValue,
    status: OptionStatus,
    help: &'static str,
) -> OptionSpec {
    OptionSpec {
        name,
        short: None,
        value,
        status,
        env: None,
        help,
        slurm: true,
    }
}

impl OptionSpec {
    const fn short(self, letter: char) -> Self {
        Self {
            short: Some(letter),
            ..self
        }
    }

    const fn env(self, variable: &'static str) -> Self {
        Self {
            env: Some(variable),
            ..self
        }
    }

    const fn ours(self) -> Self {
        Self {
            slurm: false,
            ..self
        }
    }
}

const ONE_CLUSTER: &str = "a controller has one cluster. Set GPUPOOL_CONFIG to talk to another";
const OWN_CONTAINER_ID: &str = "a container is named by its job and step. Leave it out";
const NO_NEW_NAMESPACES: &str = "a container has the node's network, as all steps. Leave it out";
const NO_ENTRYPOINT_LOG: &str = "an entrypoint writes where its step writes. Leave it out";
const OWN_UID: &str = "a job belongs to the user whom the kernel names. Submit as that user, for instance with runuser -u NAME";

const BURST_BUFFER: &str = "there are no burst buffers; the script or a prolog copies data";
const CHOSEN_NODES: &str =
    "nodes are chosen by their CPUs, memory, GPUs and features, not by their sockets";
const NEAR_NODES: &str = "the topology keeps the nodes of a job close, as always";
const NO_FREQUENCY: &str = "no frequency is set for a job";
const ON_CORES: &str = "--cpu-bind of a step says how its tasks lie on cores";
const SYSTEM_CORES: &str = "which cores the system keeps is the administrator's setting";

/// All options, sorted by name.
#[rustfmt::skip] // one option, one line: it is read as a table
pub const OPTIONS: &[OptionSpec] = &[
    option("account", Required("NAME"), Done, "Account that is charged").short('A').env("SBATCH_ACCOUNT"),
    option("acctg-freq", Required("INTERVAL"), Hint("usage is read from the job's cgroup, without samples"), "Sampling interval of accounting").env("SBATCH_ACCTG_FREQ"),
    option("array", Required("INDICES"), Done, "Job array: 0-99:2%10 is every second index to 99, ten at once").short('a').env("SBATCH_ARRAY_INX"),
    option("batch", Required("FEATURES"), Later, "Features that the node of the batch script must have").env("SBATCH_BATCH"),
    option("bb", Required("SPEC"), Hint(BURST_BUFFER), "Burst buffer"),
    option("bbf", Required("FILE"), Hint(BURST_BUFFER), "Burst buffer, from a file"),
    option("begin", Required("TIME"), Done, "Start no earlier: now+1hour, 16:00, tomorrow, 2027-01-09T06:00").short('b'),
    option("borrow", Flag, Done, "Start also on GPUs lent by others, though it may not be requeued").ours(),
    option("chdir", Required("DIR"), Done, "Working directory of the job").short('D'),
    option("checkpoint", Required("SIG[@TIME]"), Done, "How it is told to write a checkpoint before it must go: USR1@120, ./save.sh@5:00").env("GSUB_CHECKPOINT").ours(),
    option("cluster-constraint", Required("LIST"), Never(ONE_CLUSTER), "Features of clusters"),
    option("clusters", Required("NAMES"), Done, "The cluster: there is this one, by its name or as all").short('M').env("SBATCH_CLUSTERS"),
    option("comment", Required("TEXT"), Done, "Remark that listings show"),
    option("consolidate-segments", Flag, Hint(NEAR_NODES), "Put segments of nodes close together"),
    option("constraint", Required("FEATURES"), Done, "Features a node must have: a100&ib, (a100|h100)&ib; [r1|r2]: all have the same").short('C').env("SBATCH_CONSTRAINT"),
    option("container", Required("PATH"), Done, "OCI bundle to run the job in").env("SBATCH_CONTAINER"),
    option("container-entrypoint", Flag, Done, "Call the image's entrypoint with the command").ours(),
    option("container-entrypoint-log", Flag, Never(NO_ENTRYPOINT_LOG), "Show what the entrypoint writes").ours(),
    option("container-env", Required("NAMES"), Done, "Variables that keep the job's value where the image has one, too").ours(),
    option("container-id", Required("ID"), Never(OWN_CONTAINER_ID), "Name of the OCI container").env("SBATCH_CONTAINER_ID"),
    option("container-image", Required("IMAGE"), Done, "Run in this image: HOST#NAME:TAG, docker://HOST/NAME:TAG, or a path").ours(),
    option("container-mount-home", Flag, Done, "The container sees the home directory").ours(),
    option("container-mounts", Required("LIST"), Done, "What the container sees of the node: SRC:DST[:ro],SRC:DST").ours(),
    option("container-name", Required("NAME"), Done, "Keep the container's files until the job ends, for later steps of this name").ours(),
    option("container-readonly", Flag, Done, "The container's files cannot be changed").ours(),
    option("container-remap-root", Flag, Done, "The user is called root in the container, with no more rights than before").ours(),
    option("container-save", Required("FILE"), Done, "Write the container's files to a squashfs when the step ends").ours(),
    option("container-unshare", Required("NAMES"), Never(NO_NEW_NAMESPACES), "Namespaces of the container's own").ours(),
    option("container-workdir", Required("DIR"), Done, "Directory in the container to start in").ours(),
    option("container-writable", Flag, Done, "The container's files can be changed, as without this word").ours(),
    option("contiguous", Flag, Hint(NEAR_NODES), "Nodes next to each other only"),
    option("core-spec", Required("COUNT"), Hint(SYSTEM_CORES), "Cores that the system keeps").short('S').env("SBATCH_CORE_SPEC"),
    option("cores-per-socket", Required("COUNT"), Hint(CHOSEN_NODES), "Nodes whose sockets have so many cores"),
    option("cpu-freq", Required("SPEC"), Hint(NO_FREQUENCY), "Frequency of the CPUs"),
    option("cpus-per-gpu", Required("COUNT"), Done, "CPUs for each GPU").env("SBATCH_CPUS_PER_GPU"),
    option("cpus-per-task", Required("COUNT"), Done, "CPUs for each task").short('c'),
    option("deadline", Required("TIME"), Done, "Drop the job if it cannot end by then"),
    option("delay-boot", Required("MINUTES"), Hint("nodes are not started for a job"), "Wait for running nodes before others are started").env("SBATCH_DELAY_BOOT"),
    option("dependency", Required("LIST"), Done, "Start after other jobs: afterok:17:18, singleton").short('d'),
    option("distribution", Required("SPEC"), Done, "How tasks are laid over nodes").short('m').env("SBATCH_DISTRIBUTION"),
    option("dry-run", Flag, Done, "Say where and when the job would start, and submit nothing").ours(),
    option("error", Required("FILE"), Done, "File for stderr; without it stderr goes where stdout goes").short('e').env("SBATCH_ERROR"),
    option("exclude", Required("NODES"), Done, "Nodes not to run on: node[01-03,7]").short('x'),
    option("exclusive", Optional("WHO"), Done, "Whole nodes, shared with no other job").env("SBATCH_EXCLUSIVE"),
    option("export", Required("LIST"), Done, "Environment of the job: ALL, NIL, NONE (a login's), or A,B=VALUE and a login's").env("SBATCH_EXPORT"),
    option("export-file", Required("FILE"), Later, "Environment the job gets, from a file"),
    option("extra", Required("TEXT"), Hint("gq shows the text, and no hook reads it"), "Text for the site's submission hook"),
    option("extra-node-info", Required("SPEC"), Hint(CHOSEN_NODES), "Nodes with so many sockets, cores and threads").short('B'),
    option("get-user-env", Optional("TIMEOUT"), Done, "A login's environment on the node besides, read within 30 s, or so many: 60L").env("SBATCH_GET_USER_ENV"),
    option("gid", Required("GROUP"), Never(OWN_UID), "Group the job runs as"),
    option("gpu-bind", Required("SPEC"), Done, "GPUs of each task: none, closest, single:N, per_task:N, map_gpu:0,1, mask_gpu:3").env("SBATCH_GPU_BIND"),
    option("gpu-freq", Required("SPEC"), Hint(NO_FREQUENCY), "Frequency of the GPUs").env("SBATCH_GPU_FREQ"),
    option("gpu-mem", Required("SIZE"), Done, "Any GPU that has this much memory: 40G; of a part of one, the part").env("GSUB_GPU_MEM").ours(),
    option("gpus", Required("GPUS"), Done, "GPUs of the job: 4, h100:4, 'h100:4|a100:8', 2g.20gb:1").short('G').env("SBATCH_GPUS"),
    option("gpus-per-node", Required("GPUS"), Done, "GPUs on each node, as --gpus").env("SBATCH_GPUS_PER_NODE"),
    option("gpus-per-socket", Required("GPUS"), Later, "GPUs on each socket"),
    option("gpus-per-task", Required("GPUS"), Done, "GPUs for each task, as --gpus").env("SBATCH_GPUS_PER_TASK"),
    option("gres", Required("LIST"), Done, "GPUs on each node: gpu, gpu:4, gpu:h100:4").env("SBATCH_GRES"),
    option("gres-flags", Required("LIST"), Hint("each node chooses CPUs near the GPUs as far as there are some"), "Whether CPUs must be near the GPUs").env("SBATCH_GRES_FLAGS"),
    option("help", Flag, Done, "Show the options").short('h'),
    option("hint", Required("KIND"), Hint(ON_CORES), "Lay tasks over cores for this kind of work").env("SBATCH_HINT"),
    option("hold", Flag, Done, "Submit, and start only after gadm job release").short('H'),
    option("ignore-pbs", Flag, Done, "Read no #PBS and #BSUB lines").env("SBATCH_IGNORE_PBS"),
    option("input", Required("FILE"), Done, "File for stdin; without it /dev/null").short('i').env("SBATCH_INPUT"),
    option("job-name", Required("NAME"), Done, "Name of the job; without it that of the script").short('J').env("SBATCH_JOB_NAME"),
    option("json", Flag, Done, "Print the id, or what --dry-run says, as one line of JSON").ours(),
    option("kill-on-invalid-dep", Required("YES|NO"), Done, "Cancel a job whose dependency can never be met"),
    option("licenses", Required("LIST"), Done, "Licences the job holds").short('L'),
    option("mail-type", Required("LIST"), Done, "Of which events mail goes: BEGIN, END, FAIL, ALL, NONE, and sbatch's others"),
    option("mail-user", Required("ADDRESS"), Done, "To whom mail goes: names or addresses, a,b; the user otherwise"),
    option("mcs-label", Required("LABEL"), Hint("there are no security labels; the site's privacy setting says what is seen"), "Security label"),
    option("mem", Required("SIZE"), Done, "Memory on each node: 300M, 4G, a bare number is MiB, 0 is all of it").env("SBATCH_MEM_PER_NODE"),
    option("mem-bind", Required("SPEC"), Hint("memory is not bound to NUMA nodes"), "Bind memory to the tasks' NUMA nodes").env("SBATCH_MEM_BIND"),
    option("mem-per-cpu", Required("SIZE"), Done, "Memory for each CPU").env("SBATCH_MEM_PER_CPU"),
    option("mem-per-gpu", Required("SIZE"), Done, "Memory for each GPU").env("SBATCH_MEM_PER_GPU"),
    option("mem-update", Required("SPEC"), Later, "Change the memory of the running job"),
    option("mincpus", Required("COUNT"), Done, "CPUs on each node, at least"),
    option("network", Required("SPEC"), Hint("no switch is configured for a job"), "Settings of the interconnect").env("SBATCH_NETWORK"),
    option("nice", Optional("NUMBER"), Done, "Lower the job's priority by this much, 100 without a number"),
    option("no-borrow", Flag, Done, "Wait for GPUs that the account is guaranteed, and start on no others").ours(),
    option("no-container-entrypoint", Flag, Done, "Do not call the image's entrypoint, as without this word").ours(),
    option("no-container-mount-home", Flag, Done, "The container does not see the home directory, as without this word").ours(),
    option("no-container-remap-root", Flag, Done, "The user keeps its name in the container, as without this word").ours(),
    option("no-kill", Optional("off"), Done, "Go on when a node of the job fails").short('k').env("SBATCH_NO_KILL"),
    option("no-requeue", Flag, Done, "Never start the job a second time").env("SBATCH_NO_REQUEUE"),
    option("nodefile", Required("FILE"), Done, "Nodes to run on, from a file").short('F'),
    option("nodelist", Required("NODES"), Done, "Nodes the job must have: node[01-03,7]").short('w'),
    option("nodes", Required("MIN[-MAX]"), Done, "Number of nodes").short('N'),
    option("ntasks", Required("COUNT"), Done, "Number of tasks; without --nodes on as few nodes as have room for them").short('n'),
    option("ntasks-per-core", Required("COUNT"), Hint(ON_CORES), "Tasks on each core, at most"),
    option("ntasks-per-gpu", Required("COUNT"), Done, "Tasks for each GPU: --ntasks then says how many GPUs, or the GPUs how many tasks"),
    option("ntasks-per-node", Required("COUNT"), Done, "Tasks on each node"),
    option("ntasks-per-socket", Required("COUNT"), Hint(ON_CORES), "Tasks on each socket, at most"),
    option("nvlink", Optional("off"), Done, "GPUs that NVLink joins: of a node in one island, of several in one domain").ours(),
    option("oom-kill-step", Optional("0|1"), Later, "End all of a step when one of its tasks runs out of memory"),
    option("open-mode", Required("append|truncate"), Done, "How output files are opened").env("SBATCH_OPEN_MODE"),
    option("output", Required("FILE"), Done, "File for stdout: %j id, %A_%a array and index, %x name, %u user, %N node").short('o').env("SBATCH_OUTPUT"),
    option("overcommit", Flag, Done, "CPUs for one task on each node, however many run there").short('O').env("SBATCH_OVERCOMMIT"),
    option("oversubscribe", Flag, Hint("CPUs of a job are its own"), "Let other jobs use the same CPUs").short('s'),
    option("parsable", Flag, Done, "Print the job id alone, as gsub always does"),
    option("partition", Required("NAME"), Done, "Partition; of several, a,b, the job starts in the first that can").short('p').env("SBATCH_PARTITION"),
    option("power", Required("SPEC"), Hint("power is not managed for a job"), "Power management of older releases of Slurm").ours(),
    option("prefer", Required("FEATURES"), Done, "Features to have if they can be had"),
    option("priority", Required("NUMBER"), Done, "Set the job's priority (operators)"),
    option("profile", Required("LIST"), Hint("the use of resources over time is not recorded"), "Record the job's use of resources over time").env("SBATCH_PROFILE"),
    option("propagate", Optional("LIST"), Done, "Resource limits that go with the job"),
    option("qos", Required("NAME"), Done, "Quality of service").short('q').env("SBATCH_QOS"),
    option("quiet", Flag, Done, "Print no notes, only errors").short('Q'),
    option("reboot", Flag, Hint("a machine is not restarted for a job"), "Restart the nodes before the job"),
    option("rendezvous", Required("HOW"), Done, "Variables of ranks beside SLURM_*: torch (as without it), jax or none").env("GSUB_RENDEZVOUS").ours(),
    option("requeue", Optional("MODE"), Done, "Start the job again after a node failed, with the same id").env("SBATCH_REQUEUE"),
    option("reservation", Required("NAME"), Done, "Run inside a reservation").env("SBATCH_RESERVATION"),
    option("resources", Required("SPEC"), Later, "Further resources, in the form of Slurm 26.11"),
    option("resv-ports", Optional("COUNT"), Later, "Reserve ports on the nodes"),
    option("runtime", Required("SPEC"), Later, "As in Slurm 26.11"),
    option("segment", Required("COUNT"), Hint(NEAR_NODES), "Nodes in blocks of this many that lie close together").env("SBATCH_SEGMENT_SIZE"),
    option("signal", Required("[B:]SIG[@SECS]"), Done, "Warn the job before its time limit: B:USR1@120").env("SBATCH_SIGNAL"),
    option("sockets-per-node", Required("COUNT"), Hint(CHOSEN_NODES), "Nodes with so many sockets"),
    option("spread-job", Flag, Hint("nodes are chosen so that other jobs find room, too"), "Over as many nodes as possible").env("SBATCH_SPREAD_JOB"),
    option("spread-segments", Flag, Hint(NEAR_NODES), "Put segments of nodes apart"),
    option("stepmgr", Flag, Hint("the job's own supervisor manages its steps, as always"), "Manage steps on the node"),
    option("switches", Required("COUNT[@TIME]"), Done, "Nodes under this many leaf switches at most; after the time under any").env("SBATCH_REQ_SWITCH"),
    option("tag", Required("WORD"), Done, "Word for reports, as in gacct report --by tag; may be given several times").env("GSUB_TAG").ours(),
    option("tasks-per-node", Required("COUNT"), SameAs("ntasks-per-node"), "As --ntasks-per-node").ours(),
    option("test-only", Flag, SameAs("dry-run"), "As --dry-run"),
    option("thread-spec", Required("COUNT"), Hint(SYSTEM_CORES), "Threads that the system keeps").env("SBATCH_THREAD_SPEC"),
    option("threads-per-core", Required("COUNT"), Hint(CHOSEN_NODES), "Nodes whose cores have so many threads").env("SBATCH_THREADS_PER_CORE"),
    option("time", Required("TIME"), Done, "Time limit: 90 (minutes), 1:30:00, 2-12 (days-hours), UNLIMITED").short('t').env("SBATCH_TIMELIMIT"),
    option("time-min", Required("TIME"), Done, "Least time limit the job will do with"),
    option("tmp", Required("SIZE"), Later, "Room that a node's /tmp must have"),
    option("tres-bind", Required("SPEC"), Done, "The same as gres/gpu:SPEC, with map:LIST and mask:LIST").env("SBATCH_TRES_BIND"),
    option("tres-per-task", Required("LIST"), Done, "Resources for each task").env("SBATCH_TRES_PER_TASK"),
    option("uid", Required("USER"), Never(OWN_UID), "User the job belongs to"),
    option("usage", Flag, SameAs("help"), "As --help"),
    option("use-min-nodes", Flag, Done, "Of a range of nodes the least").env("SBATCH_USE_MIN_NODES"),
    option("verbose", Flag, Done, "Say on stderr where each option was taken from").short('v').env("SBATCH_DEBUG"),
    option("version", Flag, Done, "Show the version").short('V'),
    option("visible-devices", Required("index|uuid"), Done, "What CUDA_VISIBLE_DEVICES says: 0,1,... or UUIDs; of MIG slices always UUIDs").env("GSUB_VISIBLE_DEVICES").ours(),
    option("wait", Flag, Done, "Wait for the job's end and exit with its code").short('W').env("SBATCH_WAIT"),
    option("wait-all-nodes", Required("0|1"), Done, "1: begin when all nodes are ready, as always").env("SBATCH_WAIT_ALL_NODES"),
    option("wckey", Required("KEY"), SameAs("tag"), "As --tag").env("SBATCH_WCKEY"),
    option("wrap", Required("COMMAND"), Done, "Run this shell command instead of a script"),
    option("x11", Optional("WHERE"), Hint("X11 is not forwarded; ssh -X gpupool-JOB does it where gadm ssh-config was read"), "Forward X11").ours(),
];

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use std::collections::{BTreeMap, BTreeSet};

    /// The long names of sbatch, from the copied list; a line may hold several forms, and some repeat others.
    fn sbatch_names() -> BTreeSet<&'static str> {
        let list = include_str!("../tests/data/sbatch-options.txt");
        list.lines()
            .filter(|line| !line.starts_with('#'))
            .flat_map(|line| {
                line.split([' ', ','])
                    .filter_map(|word| word.strip_prefix("--"))
            })
            .collect()
    }

    #[test]
    fn every_option_of_sbatch_is_in_the_table_once() {
        let mut seen = BTreeMap::new();
        for option in OPTIONS.iter().filter(|option| option.slurm) {
            *seen.entry(option.name).or_insert(0) += 1;
        }
        let missing: Vec<_> = sbatch_names()
            .into_iter()
            .filter(|name| !seen.contains_key(name))
            .collect();
        let invented: Vec<_> = seen
            .keys()
            .filter(|name| !sbatch_names().contains(*name))
            .collect();
        let twice: Vec<_> = seen.iter().filter(|&(_, &count)| count > 1).collect();
        assert!(
            missing.is_empty() && invented.is_empty() && twice.is_empty(),
            "{missing:?} {invented:?} {twice:?}"
        );
        assert!(
            OPTIONS
                .iter()
                .filter(|option| !option.slurm)
                .all(|option| !sbatch_names().contains(option.name))
        );
        assert!(sbatch_names().len() > 100, "the list was read");
    }

    #[test]
    fn letters_are_those_of_sbatch() {
        let list = include_str!("../tests/data/sbatch-options.txt");
        let pairs = list
            .lines()
            .filter_map(|line| line.strip_prefix('-')?.split_once(", --"));
        let want: BTreeMap<char, &str> = pairs
            .filter_map(|(letter, rest)| {
                Some((letter.chars().next()?, rest.split([' ', ',']).next()?))
            })
            .filter(|(letter, _)| *letter != '-')
            .collect();
        let ours: BTreeMap<char, &str> = OPTIONS
            .iter()
            .filter_map(|option| Some((option.short?, option.name)))
            .collect();
        assert_eq!(ours, want);
        assert!(want.len() > 25);
        let letters = OPTIONS
            .iter()
            .filter(|option| option.short.is_some())
            .count();
        assert_eq!(letters, ours.len(), "no letter twice");
    }

    #[test]
    fn options_with_a_value_are_those_of_sbatch() {
        let list = include_str!("../tests/data/sbatch-options.txt");
        let with_value: BTreeSet<&str> = list
            .lines()
            .filter_map(|line| line.strip_suffix(" <value>")?.rsplit_once("--"))
            .map(|(_, name)| name)
            .collect();
        for option in OPTIONS.iter().filter(|option| option.slurm) {
            // --get-user-env takes a value that the list leaves out.
            let takes = option.value != OptionValue::None && option.name != "get-user-env";
            assert_eq!(takes, with_value.contains(option.name), "{}", option.name);
        }
    }

    #[test]
    fn the_table_is_sorted_and_its_texts_are_short() {
        assert!(OPTIONS.is_sorted_by(|a, b| a.name < b.name));
        for option in OPTIONS {
            assert!(
                option.help.len() <= 80 && !option.help.ends_with('.') && !option.help.is_empty(),
                "{}",
                option.name
            );
            if let OptionStatus::SameAs(other) = option.status {
                assert_eq!(
                    OptionSpec::find(other).map(|other| other.status),
                    Some(OptionStatus::Done)
                );
            }
        }
        let variables: BTreeSet<_> = OPTIONS.iter().filter_map(|option| option.env).collect();
        assert_eq!(
            variables.len(),
            OPTIONS.iter().filter(|option| option.env.is_some()).count(),
            "no variable twice"
        );
    }

    /// The input variables of sbatch(1), Slurm 25.05, without those of options that are gone.
    const SBATCH_VARIABLES: &str = "ACCOUNT ACCTG_FREQ ARRAY_INX BATCH CLUSTERS CONSTRAINT CONTAINER CONTAINER_ID \
        CORE_SPEC CPUS_PER_GPU DEBUG DELAY_BOOT DISTRIBUTION ERROR EXCLUSIVE EXPORT GET_USER_ENV GPU_BIND GPU_FREQ GPUS \
        GPUS_PER_NODE GPUS_PER_TASK GRES GRES_FLAGS HINT IGNORE_PBS INPUT JOB_NAME MEM_BIND MEM_PER_CPU MEM_PER_GPU \
        MEM_PER_NODE NETWORK NO_KILL NO_REQUEUE OPEN_MODE OUTPUT OVERCOMMIT PARTITION PROFILE QOS REQ_SWITCH REQUEUE \
        RESERVATION SEGMENT_SIZE SIGNAL SPREAD_JOB THREAD_SPEC THREADS_PER_CORE TIMELIMIT TRES_BIND TRES_PER_TASK \
        USE_MIN_NODES WAIT WAIT_ALL_NODES WCKEY";

    #[test]
    fn variables_are_those_that_sbatch_reads() {
        let want: BTreeSet<_> = SBATCH_VARIABLES.split_ascii_whitespace().collect();
        let slurm = OPTIONS
            .iter()
            .filter(|option| option.slurm)
            .filter_map(|option| option.env);
        let ours: BTreeSet<_> = slurm
            .filter_map(|variable| variable.strip_prefix("SBATCH_"))
            .collect();
        assert_eq!(ours, want);
    }

    #[test]
    fn what_is_done_is_written_down_here() {
        let done: Vec<_> = OPTIONS
            .iter()
            .filter(|o| o.status == OptionStatus::Done)
            .map(|o| o.name)
            .collect();
        expect!["account array begin borrow chdir checkpoint clusters comment constraint container container-entrypoint container-env container-image container-mount-home container-mounts container-name container-readonly container-remap-root container-save container-workdir container-writable cpus-per-gpu cpus-per-task deadline dependency distribution dry-run error exclude exclusive export get-user-env gpu-bind gpu-mem gpus gpus-per-node gpus-per-task gres help hold ignore-pbs input job-name json kill-on-invalid-dep licenses mail-type mail-user mem mem-per-cpu mem-per-gpu mincpus nice no-borrow no-container-entrypoint no-container-mount-home no-container-remap-root no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-gpu ntasks-per-node nvlink open-mode output overcommit parsable partition prefer priority propagate qos quiet rendezvous requeue reservation signal switches tag time time-min tres-bind tres-per-task use-min-nodes verbose version visible-devices wait wait-all-nodes wrap"].assert_eq(&done.join(" "));
    }

    #[test]
    fn refused_options_say_what_to_do() {
        let refusal = |name| {
            OptionSpec::find(name)
                .and_then(OptionSpec::refusal)
                .unwrap_or_default()
        };
        expect!["--uid has no meaning here: a job belongs to the user whom the kernel names. Submit as that user, for instance with runuser -u NAME"].assert_eq(&refusal("uid"));
        expect![""].assert_eq(&refusal("mincpus"));
        assert_eq!(refusal("contiguous"), "");
        assert_eq!(refusal("time"), "");
        expect!["unknown option --partiton. Did you mean --partition? gsub --help lists them all."]
            .assert_eq(&unknown_option("partiton"));
        expect!["unknown option --nosuchflag. gsub --help lists them all."]
            .assert_eq(&unknown_option("nosuchflag"));
        assert_eq!(
            OptionSpec::find_short('t').map(OptionSpec::flag),
            Some("--time".to_owned())
        );
    }
}
