//! The lines that a command of Slurm's says first when it is refused or reaches no controller: programs look for them.
//!
//! Owns two tables: from the kind of a refusal to Slurm's sentence, and from a command to the words it puts around one. Our own
//! sentence, with its numbers, follows on the next line. Source: the commands of Slurm 22.05 to 25.05, as they print.

use gmodel::RefusalKind;

/// No controller answers.
const UNREACHABLE: &str = "Unable to contact slurm controller (connect failure)";
/// The same of the commands that ask Slurm's accounting database.
const DATABASE: &str = "Problem talking to the database: Connection refused";

const NODE_NAME: &str = "Invalid node name specified";

/// What kept a command from its end, as far as Slurm's commands have words of their own for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// A sentence of ours alone.
    #[default]
    Ours,
    /// No controller could be asked.
    Unreachable,
    /// The controller refused it; the subject is the name of what it is about, or empty.
    Refused { about: RefusalKind, subject: String },
    /// What Slurm's command says, as a whole line.
    Said(String),
}

/// Slurm's sentence for a kind of refusal.
pub fn sentence(about: RefusalKind) -> Option<&'static str> {
    use RefusalKind as K;
    Some(match about {
        K::Job => "Invalid job id specified",
        K::JobOver => "Job/step already completing or completed",
        K::JobRuns => "Job is no longer pending execution",
        K::JobPending => "Job is pending execution",
        K::Partition => "Invalid partition name specified",
        K::NoPartition => "No partition specified or system default partition",
        K::PartitionInUse => "Partition is in use",
        K::PartitionClosed => "Required partition not available (inactive or drain)",
        K::PartitionAccess => "User's group not permitted to use this partition",
        K::NodeConfiguration => "Requested node configuration is not available",
        K::NodeCount => "Node count specification invalid",
        K::TooManyNodes => "More processors requested than permitted",
        K::TaskCount => "Task count specification invalid",
        K::NodeName => NODE_NAME,
        K::Feature => "Invalid feature specification",
        K::TimeLimit => "Requested time limit is invalid (missing or exceeds some limit)",
        K::TimeMin => "Invalid time-min specification (exceeds job's time or other limits)",
        K::Account => "Invalid account or account/partition combination specified",
        K::Qos => "Invalid qos specification",
        K::PolicyLimit => {
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
        }
        K::QueueFull => "MaxJobCount limit reached",
        K::Licence => "Invalid license specification",
        K::Reservation => "Requested reservation is invalid",
        K::ReservationAccess => "Access denied to requested reservation",
        K::ReservationBusy => "Requested reservation is in use",
        K::ReservationOverlap => "Requested reservation overlaps with another reservation",
        K::ReservationExists => "Duplicate reservation name",
        K::NodesBusy => "Requested nodes are busy",
        K::NodeState => "Invalid node state specified",
        K::Time => "Invalid time specified",
        K::NotSupported => "Requested operation not supported on this system",
        K::Dependency => "Job dependency problem",
        K::Array => "Invalid job array specification",
        K::Gpus => "Invalid generic resource (gres) specification",
        K::Access => "Access/permission denied",
        K::Other => return None,
    })
}

/// What Slurm's command of this name says before our sentence; `words` are its command line, the program first.
pub(crate) fn first_lines(name: &str, words: &[String], cause: &Cause) -> Vec<String> {
    match cause {
        Cause::Ours => Vec::new(),
        Cause::Said(line) => vec![line.clone()],
        Cause::Unreachable => framed(name, words, "", UNREACHABLE),
        Cause::Refused { about, subject } => {
            let Some(sentence) = sentence(*about) else {
                return Vec::new();
            };
            let mut lines = Vec::new();
            // The controller's own word comes before the command's.
            match about {
                _ if subject.is_empty() || !["salloc", "sbatch", "srun"].contains(&name) => {}
                RefusalKind::Partition => lines.push(format!(
                    "{name}: error: invalid partition specified: {subject}"
                )),
                RefusalKind::PolicyLimit => lines.push(format!("{name}: error: {subject}")),
                _ => {}
            }
            lines.extend(framed(name, words, subject, sentence));
            lines
        }
    }
}

/// What it says of one of several jobs.
pub(crate) fn of_job(name: &str, job: &str, about: RefusalKind) -> Option<String> {
    let sentence = sentence(about)?;
    match name {
        "scancel" => Some(format!(
            "scancel: error: Kill job error on job id {job}: {sentence}"
        )),
        "scontrol" => Some(format!("{sentence} for job {job}")),
        _ => None,
    }
}

/// A sentence as the command says it. Of jobs `subject` names the one it is about; else those of the command line are meant.
fn framed(name: &str, words: &[String], subject: &str, sentence: &str) -> Vec<String> {
    let has = |options: &[&str]| {
        words
            .iter()
            .skip(1)
            .any(|word| options.contains(&word.as_str()))
    };
    let line = match name {
        "sbatch" if has(&["--test-only"]) => format!("allocation failure: {sentence}"),
        "sbatch" => format!("sbatch: error: Batch job submission failed: {sentence}"),
        "salloc" => format!("salloc: error: Job submit/allocate failed: {sentence}"),
        "srun" => match std::env::var("SLURM_JOB_ID") {
            Ok(job) if sentence == UNREACHABLE => {
                format!("srun: error: Unable to confirm allocation for job {job}: {sentence}")
            }
            Ok(job) => format!("srun: error: Unable to create step for job {job}: {sentence}"),
            Err(_) => format!("srun: error: Unable to allocate resources: {sentence}"),
        },
        "squeue" if has(&["-s", "--steps"]) => format!("slurm_get_job_steps error: {sentence}"),
        "squeue" if sentence == NODE_NAME && !subject.is_empty() => {
            format!("squeue: error: Invalid node name {subject}")
        }
        "squeue" => format!("slurm_load_jobs error: {sentence}"),
        "sprio" => format!("Couldn't get priority factors from controller: {sentence}"),
        "sinfo" if has(&["-T", "--reservation"]) => format!("slurm_load_reservations: {sentence}"),
        "sinfo" => format!("slurm_load_partitions: {sentence}"),
        "sshare" => format!("Couldn't get shares from controller: {sentence}"),
        "sdiag" => format!("slurm_get_statistics: {sentence}"),
        "sstat" => format!("sstat: error: couldn't get steps: {sentence}"),
        "sacct" | "sacctmgr" | "seff" if sentence == UNREACHABLE => {
            format!("{name}: error: {DATABASE}")
        }
        "sreport" if sentence == UNREACHABLE => {
            "sreport: fatal: Problem connecting to the database: Connection refused".to_owned()
        }
        "scancel" => {
            let jobs = named_jobs(words, subject);
            return match jobs.is_empty() {
                true => vec![format!("slurm_load_jobs error: {sentence}")],
                false => jobs
                    .iter()
                    .map(|job| {
                        format!("scancel: error: Kill job error on job id {job}: {sentence}")
                    })
                    .collect(),
            };
        }
        "scontrol" => return by_scontrol(words, subject, sentence),
        _ => return Vec::new(),
    };
    vec![line]
}

/// Its words depend on what it was told to do.
fn by_scontrol(words: &[String], subject: &str, sentence: &str) -> Vec<String> {
    let mut words_only = words.iter().skip(1).filter(|word| !word.starts_with('-'));
    let command = words_only
        .next()
        .map(|word| word.to_ascii_lowercase())
        .unwrap_or_default();
    let second = words_only
        .next()
        .map(|word| word.to_ascii_lowercase())
        .unwrap_or_default();
    let entity = second.split('=').next().unwrap_or_default();
    let is = |known: &str| !entity.is_empty() && known.starts_with(entity);
    let is_of_partition =
        entity.starts_with("part") && !words.iter().any(|word| is_named(word, "res"));
    let what = match command.as_str() {
        "show" if entity.starts_with("job") || is("jobs") => "slurm_load_jobs error",
        "show" if is("nodes") => "slurm_load_node error",
        "show" if is("partitions") => "slurm_load_partitions error",
        "show" if is("reservations") => "slurm_load_reservations error",
        "show" if is("licenses") || is("licences") => "slurm_load_license error",
        "show" if is("config") => "slurm_load_ctl_conf error",
        "reconfigure" => "slurm_reconfigure error",
        "write" => "job script retrieval failed",
        "create" if is_of_partition => "Error creating the partition",
        "create" => "Error creating the reservation",
        "update"
            if entity.starts_with("node")
                || entity.starts_with("res")
                || entity.starts_with("part") =>
        {
            "slurm_update error"
        }
        "delete" => {
            let what = if entity.starts_with("part") {
                "partition"
            } else {
                "reservation"
            };
            return vec![format!("delete_{what} {second}: {sentence}")];
        }
        "hold" | "uhold" | "release" | "requeue" | "requeuehold" | "suspend" | "resume"
        | "update" => {
            let jobs = named_jobs(words, subject);
            return match jobs.is_empty() {
                true => vec![format!("slurm_update error: {sentence}")],
                false => jobs
                    .iter()
                    .map(|job| format!("{sentence} for job {job}"))
                    .collect(),
            };
        }
        _ => return Vec::new(),
    };
    vec![format!("{what}: {sentence}")]
}

/// Whether a word's key begins so.
fn is_named(word: &str, beginning: &str) -> bool {
    word.to_ascii_lowercase().starts_with(beginning)
}

/// The job that is meant, else those that stand on the command line: `17`, `98_[1-3]`, `JobId=17`.
fn named_jobs(words: &[String], subject: &str) -> Vec<String> {
    if !subject.is_empty() {
        return vec![subject.to_owned()];
    }
    let lists = words
        .iter()
        .skip(1)
        .filter_map(|word| match word.split_once('=') {
            Some((key, list)) => key.to_ascii_lowercase().starts_with("job").then_some(list),
            None => Some(word.as_str()),
        });
    lists
        .filter(|list| list.starts_with(|sign: char| sign.is_ascii_digit()))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(line: &str, cause: &Cause) -> Vec<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        first_lines(&words[0], &words, cause)
    }

    #[test]
    fn each_command_says_in_its_own_words_that_no_controller_answers() {
        let said = |line: &str| lines(line, &Cause::Unreachable).join("\n");
        let sentence = "Unable to contact slurm controller (connect failure)";
        for (line, before) in [
            ("squeue -h -j 17", "slurm_load_jobs error: "),
            ("squeue -s", "slurm_get_job_steps error: "),
            (
                "sbatch x.sh",
                "sbatch: error: Batch job submission failed: ",
            ),
            ("sinfo -h", "slurm_load_partitions: "),
            (
                "scancel 17",
                "scancel: error: Kill job error on job id 17: ",
            ),
            ("scancel -u ada", "slurm_load_jobs error: "),
            ("sprio", "Couldn't get priority factors from controller: "),
            ("scontrol show job 17", "slurm_load_jobs error: "),
            ("scontrol -o show jobid=17", "slurm_load_jobs error: "),
            ("scontrol show node", "slurm_load_node error: "),
            (
                "scontrol -a show partition",
                "slurm_load_partitions error: ",
            ),
            ("scontrol show config", "slurm_load_ctl_conf error: "),
            (
                "scontrol update nodename=n1 state=drain",
                "slurm_update error: ",
            ),
            ("sdiag", "slurm_get_statistics: "),
        ] {
            assert_eq!(said(line), format!("{before}{sentence}"), "{line}");
        }
        assert_eq!(said("scontrol hold 17"), format!("{sentence} for job 17"));
        assert_eq!(
            said("scontrol update JobId=17 TimeLimit=5"),
            format!("{sentence} for job 17")
        );
        assert_eq!(
            said("sacct -j 17"),
            "sacct: error: Problem talking to the database: Connection refused"
        );
    }

    #[test]
    fn a_refusal_is_said_as_slurm_says_it() {
        let refused = |about, subject: &str| Cause::Refused {
            about,
            subject: subject.to_owned(),
        };
        assert_eq!(
            lines(
                "sbatch -p nosuch",
                &refused(RefusalKind::Partition, "nosuch")
            ),
            [
                "sbatch: error: invalid partition specified: nosuch",
                "sbatch: error: Batch job submission failed: Invalid partition name specified"
            ]
        );
        assert_eq!(
            lines(
                "sbatch x.sh",
                &refused(RefusalKind::PolicyLimit, "QOSMaxSubmitJobPerUserLimit")
            ),
            [
                "sbatch: error: QOSMaxSubmitJobPerUserLimit",
                "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
            ]
        );
        assert_eq!(
            lines("scontrol show job 99", &refused(RefusalKind::Job, "99")),
            ["slurm_load_jobs error: Invalid job id specified"]
        );
        assert_eq!(
            lines(
                "scontrol update JobId=99 Nice=1",
                &refused(RefusalKind::Job, "99")
            ),
            ["Invalid job id specified for job 99"]
        );
        assert!(lines("sbatch x.sh", &refused(RefusalKind::Other, "")).is_empty());
        assert_eq!(
            of_job("scontrol", "99", RefusalKind::Job).unwrap(),
            "Invalid job id specified for job 99"
        );
        assert_eq!(
            of_job("scancel", "98_5", RefusalKind::Access).unwrap(),
            "scancel: error: Kill job error on job id 98_5: Access/permission denied"
        );
    }
}
