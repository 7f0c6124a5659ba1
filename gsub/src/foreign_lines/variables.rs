//! Variables of PBS and LSF that a script names: none is set here.

/// Theirs, and the one that says the same here.
const TWINS: [(&str, &str); 14] = [
    ("LSB_JOBID", "SLURM_JOB_ID"),
    ("LSB_JOBINDEX", "SLURM_ARRAY_TASK_ID"),
    ("LSB_JOBNAME", "SLURM_JOB_NAME"),
    ("LSB_DJOB_NUMPROC", "SLURM_NTASKS"),
    ("LSB_QUEUE", "SLURM_JOB_PARTITION"),
    ("PBS_ARRAYID", "SLURM_ARRAY_TASK_ID"),
    ("PBS_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID"),
    ("PBS_JOBID", "SLURM_JOB_ID"),
    ("PBS_JOBNAME", "SLURM_JOB_NAME"),
    ("PBS_NP", "SLURM_NTASKS"),
    ("PBS_NUM_NODES", "SLURM_JOB_NUM_NODES"),
    ("PBS_O_HOST", "SLURM_SUBMIT_HOST"),
    ("PBS_O_WORKDIR", "SLURM_SUBMIT_DIR"),
    ("PBS_QUEUE", "SLURM_JOB_PARTITION"),
];

/// `$PBS_JOBID is not set here; $SLURM_JOB_ID is`, for each that the script names.
pub(super) fn notes(script: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut named: Vec<&str> = script
        .split('$')
        .skip(1)
        .map(|rest| rest.strip_prefix('{').unwrap_or(rest))
        .map(|rest| &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())])
        .collect();
    named.sort_unstable();
    named.dedup();
    let twin = |name: &str| TWINS.iter().find(|(theirs, _)| *theirs == name);
    let twins = named.into_iter().filter_map(twin);
    twins
        .map(|(theirs, ours)| format!("${theirs} is not set here; ${ours} is"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::notes;

    #[test]
    fn each_variable_is_named_once_with_its_twin() {
        let script =
            "cd $PBS_O_WORKDIR; echo ${PBS_JOBID%%.*} \"$PBS_O_WORKDIR\" $PBS_JOBID2 $HOME PBS_NP";
        assert_eq!(
            notes(script),
            [
                "$PBS_JOBID is not set here; $SLURM_JOB_ID is",
                "$PBS_O_WORKDIR is not set here; $SLURM_SUBMIT_DIR is",
            ]
        );
    }
}
