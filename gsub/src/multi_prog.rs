//! `grun --multi-prog FILE`: which task runs which program, one line for the ranks of each.
//!
//! Turns the file into a shell script in which every task finds its own line; starts nothing. Source: "MULTIPLE PROGRAM
//! CONFIGURATION" in srun(1).

use gcli::Failure;
use gmodel::directive::split_words;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Most ranks that a file names one by one; `*` stands for any number.
const MAX_RANKS: usize = 4096;

/// The command of a step in which `file` says what each task runs; `path` is the name of the file.
///
/// # Errors
/// A line that cannot be read, with its number.
pub(crate) fn command(path: &str, file: &str) -> Result<Vec<String>, Failure> {
    let mut script = String::from("case $SLURM_PROCID in\n");
    let mut named: BTreeSet<u32> = BTreeSet::new();
    let mut for_others = String::new();
    for (line_no, line) in (1..).zip(file.lines()) {
        let refuse = |why: &str| Failure::new(format_args!("{path}: line {line_no}: {why}"));
        let words = split_words(line).map_err(|error| refuse(&error.to_string()))?;
        let Some((ranks, program)) = words.split_first() else {
            continue;
        };
        if program.is_empty() {
            return Err(refuse(
                "a program must follow the ranks, as in: 0-3 ./worker %t",
            ));
        }
        if ranks == "*" {
            for_others = exec(program, "$SLURM_PROCID", "$SLURM_PROCID");
            continue;
        }
        let ranks = rank_list(ranks).ok_or_else(|| {
            refuse(&format!(
                "{ranks:?} names no ranks. Write 0, 0-3, 0,2,4-7 or *"
            ))
        })?;
        for (offset, rank) in ranks.into_iter().enumerate() {
            if !named.insert(rank) {
                return Err(refuse(&format!("rank {rank} has a line already")));
            }
            let _ = writeln!(
                script,
                "{rank}) {};;",
                exec(program, &rank.to_string(), &offset.to_string())
            );
        }
        if named.len() > MAX_RANKS {
            return Err(refuse(&format!(
                "it makes more than {MAX_RANKS} ranks named one by one. Use * and %t"
            )));
        }
    }
    if for_others.is_empty() {
        for_others = "echo \"grun: $1 has no line for task $SLURM_PROCID\" >&2; exit 1".into();
    }
    let _ = write!(script, "*) {for_others};;\nesac");
    Ok(["/bin/sh", "-c", &script, "sh", path]
        .map(str::to_owned)
        .to_vec())
}

/// `%t` is the task's rank, `%o` its place among the ranks of its line.
fn exec(program: &[String], rank: &str, offset: &str) -> String {
    let word = |word: &String| {
        format!(
            "'{}'",
            word.replace('\'', r"'\''")
                .replace("%t", &format!("'\"{rank}\"'"))
                .replace("%o", &format!("'\"{offset}\"'"))
        )
    };
    format!(
        "exec {}",
        program.iter().map(word).collect::<Vec<_>>().join(" ")
    )
}

/// `0,2,4-7`, in this order.
pub(crate) fn rank_list(text: &str) -> Option<Vec<u32>> {
    let mut ranks = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || (last - first) as usize > MAX_RANKS {
            return None;
        }
        ranks.extend(first..=last);
    }
    Some(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn run(file: &str, rank: u32) -> String {
        let words = command("mp.conf", file).unwrap();
        let output = Command::new(&words[0])
            .args(&words[1..])
            .env("SLURM_PROCID", rank.to_string())
            .output()
            .unwrap();
        [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8(bytes).unwrap())
            .concat()
    }

    #[test]
    fn each_task_runs_the_program_of_its_line() {
        let file = "# who does what\n0 echo server\n1-2,5  echo worker %t of %o 'it''s a b' # the rest\n\n* echo %t %o \"$HOME\"\n";
        assert_eq!(run(file, 0), "server\n");
        assert_eq!(run(file, 2), "worker 2 of 1 its a b\n");
        assert_eq!(run(file, 5), "worker 5 of 2 its a b\n");
        assert_eq!(
            run(file, 7),
            "7 7 $HOME\n",
            "nothing is expanded but %t and %o"
        );
    }

    #[test]
    fn a_task_without_a_line_says_so() {
        assert_eq!(run("0 true\n", 3), "grun: mp.conf has no line for task 3\n");
    }

    #[test]
    fn lines_that_cannot_be_are_named() {
        let refused = |file: &str| command("mp.conf", file).unwrap_err().text;
        assert_eq!(
            refused("\n0-3\n"),
            "mp.conf: line 2: a program must follow the ranks, as in: 0-3 ./worker %t"
        );
        assert_eq!(
            refused("a true\n"),
            "mp.conf: line 1: \"a\" names no ranks. Write 0, 0-3, 0,2,4-7 or *"
        );
        assert_eq!(
            refused("3-1 true\n"),
            "mp.conf: line 1: \"3-1\" names no ranks. Write 0, 0-3, 0,2,4-7 or *"
        );
        assert_eq!(
            refused("0-1 true\n1 true\n"),
            "mp.conf: line 2: rank 1 has a line already"
        );
        assert_eq!(
            refused("0 echo 'a\n"),
            "mp.conf: line 1: the quote ' is not closed. Close it on the same line"
        );
        assert!(refused("0-4294967295 true\n").contains("names no ranks"));
    }
}
