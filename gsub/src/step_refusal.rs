//! Options of srun that grun does not have: why, and what to do instead. A script moved from srun is to learn it at once.

/// Options by their names, and what is said of them.
const REFUSED: [(&[&str], &str); 8] = [
    (
        &["oversubscribe", "s"],
        "tasks share the CPUs of their job unless --exact gives them their own. Leave it out",
    ),
    (
        &["gpus-per-socket", "cpus-per-gpu", "tres-per-task"],
        "a step counts its part by --cpus-per-task, --mem, and --gpus, --gpus-per-node or --gpus-per-task",
    ),
    (
        &[
            "hint",
            "threads-per-core",
            "cores-per-socket",
            "sockets-per-node",
            "ntasks-per-socket",
            "ntasks-per-core",
            "extra-node-info",
            "B",
        ],
        "how tasks lie on cores is said by --cpu-bind: cores gives each whole cores, threads each CPU alone",
    ),
    (
        &["container-id"],
        "a container is named by its job and step. Leave it out",
    ),
    (
        &["bcast", "task-prolog", "task-epilog", "prolog", "epilog"],
        "do it in the job's script, before or after grun",
    ),
    (
        &["immediate", "I", "signal", "deadline", "begin"],
        "a step begins at once and ends with its command, its --time or its job",
    ),
    (
        &["hold", "H", "dependency", "d", "array", "a"],
        "it is for the job: give it to gsub. grun starts tasks in the job around it",
    ),
    (
        &["het-group", "clusters", "M"],
        "grun starts tasks in the job around it, or that of --jobid",
    ),
];

/// What is said of a word of the command line, if it is one of those options: `--exclusive=user`, `-t`, `-t5`.
pub(crate) fn of_srun(word: &str) -> Option<String> {
    let name = match word.strip_prefix("--") {
        Some(long) => long.split('=').next().unwrap_or_default(),
        None => word.strip_prefix('-').and_then(|short| short.get(..1))?,
    };
    let (_, why) = REFUSED.iter().find(|(names, _)| names.contains(&name))?;
    let dashes = if name.len() == 1 { "-" } else { "--" };
    Some(format!("{dashes}{name} of srun is not offered: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_srun_are_refused_with_what_to_do_instead() {
        assert!(
            of_srun("--oversubscribe")
                .unwrap()
                .starts_with("--oversubscribe of srun is not offered: tasks share the CPUs")
        );
        assert!(
            of_srun("--cpus-per-gpu=4")
                .unwrap()
                .contains("--gpus-per-task")
        );
        assert!(of_srun("-I10").unwrap().starts_with("-I of srun"));
        assert_eq!(
            (of_srun("--nosuch"), of_srun("-l"), of_srun("hostname")),
            (None, None, None)
        );
    }

    #[test]
    fn what_grun_has_is_not_refused() {
        for arg in crate::step_args::command().get_arguments() {
            let names = arg
                .get_long()
                .map(str::to_owned)
                .into_iter()
                .chain(arg.get_short().map(String::from));
            for name in names {
                assert!(
                    REFUSED
                        .iter()
                        .all(|(names, _)| !names.contains(&name.as_str())),
                    "{name}"
                );
            }
        }
    }
}
