//! Options of srun that grun does not have: why, and what to do instead. A script moved from srun is to learn it at once.

/// Options by their names, and what is said of them.
const REFUSED: [(&[&str], &str); 5] = [
    (
        &["gpus-per-socket"],
        "a step counts its part by --cpus-per-task, --mem, and --gpus, --gpus-per-node or --gpus-per-task",
    ),
    (
        &["container-id"],
        "a container is named by its job and step. Leave it out",
    ),
    (
        &["prolog", "epilog"],
        "do it in the job's script, before or after grun",
    ),
    (
        &["deadline", "begin"],
        "a step begins at once and ends with its command, its --time or its job",
    ),
    (
        &["hold", "H", "dependency", "d", "array", "a"],
        "it is for the job: give it to gsub. grun starts tasks in the job around it",
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
            of_srun("--prolog=/tmp/x")
                .unwrap()
                .starts_with("--prolog of srun is not offered: do it in the job's script")
        );
        assert!(of_srun("-d17").unwrap().starts_with("-d of srun"));
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
