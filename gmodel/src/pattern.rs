//! Names of output files: `gsub-%j.out`, `%x/%A_%4a.out`. Owns the replacement of `%` sequences; never opens a
//! file and never decides in which directory it lies. Source: "filename pattern" in sbatch(1), and what real
//! Slurm wrote (`q-%j-%J-%N-%n-%s-%t-%u-%x-%%-%4j.out` gave `q-183-183-n1-0-batch-0-root-a b-%-0183.out`).

use thiserror::Error;

/// Output file of a job, when none was named.
pub const DEFAULT_OUTPUT: &str = "gsub-%j.out";
/// Output file of an array's task, when none was named.
pub const DEFAULT_ARRAY_OUTPUT: &str = "gsub-%A_%a.out";
/// Longest pattern, and longest name that comes of one: Linux's PATH_MAX without its closing byte.
pub const MAX_PATH_BYTES: usize = 4095;
/// Widest zero padding, as in Slurm.
const MAX_WIDTH: usize = 10;

/// What the sequences of a pattern stand for.
#[derive(Clone, Copy, Debug)]
pub struct PatternContext<'a> {
    /// `%j`: the job's own id (of an array's task, that of the task).
    pub job_id: u64,
    /// `%A` and `%a`: the array's id and the task's index. Outside an array they are the job's id and 0.
    pub array: Option<(u64, u32)>,
    /// `%x`.
    pub job_name: &'a str,
    /// `%u`.
    pub user_name: &'a str,
    /// `%N`: the node's name, of which the part before the first dot is used.
    pub node_name: &'a str,
    /// `%n`: the node's place in the allocation, from 0.
    pub node_index: u32,
    /// `%s`: the step; None is the batch script itself.
    pub step: Option<u32>,
    /// `%t`: the task's rank, from 0.
    pub task: u32,
}

/// The file name for a pattern. Zero padding (`%4j`) holds for numbers only. A sequence that is not known
/// stays as it is. A backslash in the pattern turns all replacement off, and goes. Job and user names are kept
/// from leading elsewhere: their `/` and control characters become `_`, and a name `.` or `..` becomes `_`.
pub fn expand(pattern: &str, context: &PatternContext<'_>) -> Result<String, PatternError> {
    check(pattern)?;
    if pattern.contains('\\') {
        return Ok(pattern.replace('\\', ""));
    }
    let mut name = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    while let Some(percent) = rest.find('%') {
        name.push_str(&rest[..percent]);
        let sequence = &rest[percent + 1..];
        let letter_at = sequence
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(sequence.len());
        let width = sequence[..letter_at]
            .parse::<usize>()
            .unwrap_or(if letter_at == 0 { 0 } else { MAX_WIDTH });
        let letter = sequence[letter_at..].chars().next();
        match letter.and_then(|letter| context.value(letter)) {
            Some(PatternValue::Number(number)) => {
                name.push_str(&format!("{number:0width$}", width = width.min(MAX_WIDTH)))
            }
            Some(PatternValue::Text(text)) => name.push_str(&text),
            None => {
                name.push('%');
                rest = sequence;
                continue;
            }
        }
        rest = &sequence[letter_at + 1..];
    }
    name.push_str(rest);
    if name.len() > MAX_PATH_BYTES {
        return Err(PatternError::TooLong { bytes: name.len() });
    }
    Ok(name)
}

/// Checks a pattern when it is submitted: not empty, not too long, no NUL byte.
pub fn check(pattern: &str) -> Result<(), PatternError> {
    match pattern {
        "" => Err(PatternError::Empty),
        _ if pattern.len() > MAX_PATH_BYTES => Err(PatternError::TooLong {
            bytes: pattern.len(),
        }),
        _ if pattern.contains('\0') => Err(PatternError::Nul),
        _ => Ok(()),
    }
}

/// What is wrong with a file name pattern.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PatternError {
    #[error("the file name is empty. Name a file, as in gsub-%j.out, or /dev/null")]
    Empty,
    #[error("the file name has {bytes} bytes and {MAX_PATH_BYTES} are the most. Use a shorter one")]
    TooLong { bytes: usize },
    #[error("the file name has a NUL byte in it. Leave it out")]
    Nul,
}

enum PatternValue {
    Number(u64),
    Text(String),
}

impl PatternContext<'_> {
    fn value(&self, letter: char) -> Option<PatternValue> {
        let (array_id, index) = self.array.unwrap_or((self.job_id, 0));
        let text = |text: String| Some(PatternValue::Text(text));
        match letter {
            'j' => Some(PatternValue::Number(self.job_id)),
            'J' => match self.step {
                None => Some(PatternValue::Number(self.job_id)),
                Some(step) => text(format!("{}.{step}", self.job_id)),
            },
            'A' => Some(PatternValue::Number(array_id)),
            'a' => Some(PatternValue::Number(u64::from(index))),
            'b' => Some(PatternValue::Number(u64::from(index % 10))),
            'n' => Some(PatternValue::Number(u64::from(self.node_index))),
            't' => Some(PatternValue::Number(u64::from(self.task))),
            's' => match self.step {
                None => text("batch".to_owned()),
                Some(step) => Some(PatternValue::Number(u64::from(step))),
            },
            'N' => text(path_safe(
                self.node_name.split('.').next().unwrap_or_default(),
            )),
            'u' => text(path_safe(self.user_name)),
            'x' => text(path_safe(self.job_name)),
            '%' => text("%".to_owned()),
            _ => None,
        }
    }
}

/// A name as one component of a path.
fn path_safe(name: &str) -> String {
    match name {
        "." | ".." => "_".to_owned(),
        name => name
            .chars()
            .map(|c| if c == '/' || c.is_control() { '_' } else { c })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BATCH: PatternContext<'_> = PatternContext {
        job_id: 183,
        array: None,
        job_name: "a b",
        user_name: "root",
        node_name: "n1.cluster.example",
        node_index: 0,
        step: None,
        task: 0,
    };

    fn name(pattern: &str) -> String {
        expand(pattern, &BATCH).unwrap()
    }

    #[test]
    fn expands_as_slurm_does() {
        assert_eq!(
            name("q-%j-%J-%N-%n-%s-%t-%u-%x-%%-%4j.out"),
            "q-183-183-n1-0-batch-0-root-a b-%-0183.out"
        );
        assert_eq!(name(DEFAULT_OUTPUT), "gsub-183.out");
    }

    #[test]
    fn array_tasks_have_their_own_files() {
        let task = PatternContext {
            job_id: 104,
            array: Some((98, 27)),
            ..BATCH
        };
        assert_eq!(
            expand(DEFAULT_ARRAY_OUTPUT, &task).unwrap(),
            "gsub-98_27.out"
        );
        assert_eq!(expand("%j-%A-%4a-%b", &task).unwrap(), "104-98-0027-7");
        assert_eq!(name("%A_%a"), "183_0", "outside an array");
    }

    #[test]
    fn steps_have_numbers() {
        let step = PatternContext {
            step: Some(2),
            task: 5,
            node_index: 1,
            ..BATCH
        };
        assert_eq!(expand("%J/%3s/%t@%n", &step).unwrap(), "183.2/002/5@1");
    }

    #[test]
    fn padding_is_for_numbers_and_bounded() {
        assert_eq!(name("%10j %99j %4x %4%"), "0000000183 0000000183 a b %");
        assert_eq!(name("%99999999999999999999j"), "0000000183");
    }

    #[test]
    fn unknown_sequences_and_a_last_percent_stay() {
        assert_eq!(name("%q %3q 100% %é %4"), "%q %3q 100% %é %4");
        assert_eq!(name("%"), "%");
    }

    #[test]
    fn a_backslash_turns_replacement_off() {
        assert_eq!(name("out\\%j"), "out%j");
    }

    #[test]
    fn a_job_name_leads_nowhere_else() {
        let evil = PatternContext {
            job_name: "../../etc/x\n",
            user_name: "..",
            ..BATCH
        };
        assert_eq!(expand("%x.out", &evil).unwrap(), ".._.._etc_x_.out");
        assert_eq!(expand("%u/out", &evil).unwrap(), "_/out");
    }

    #[test]
    fn impossible_patterns_are_refused() {
        assert_eq!(expand("", &BATCH), Err(PatternError::Empty));
        assert_eq!(expand("a\0b", &BATCH), Err(PatternError::Nul));
        assert_eq!(
            expand(&"x".repeat(5000), &BATCH),
            Err(PatternError::TooLong { bytes: 5000 })
        );
        assert!(matches!(
            expand(&"%10j".repeat(1000), &BATCH),
            Err(PatternError::TooLong { bytes: 10_000 })
        ));
    }

    proptest! {
        #[test]
        fn any_pattern_expands_or_is_refused(pattern in "\\PC{0,30}|[%0-9jJAaxuNnst\\\\/]{0,30}", job_name in "\\PC{0,20}") {
            let _ = expand(&pattern, &PatternContext { job_name: &job_name, ..BATCH });
        }

        #[test]
        fn names_never_add_a_directory(job_name in ".{0,20}") {
            let name = expand("%x", &PatternContext { job_name: &job_name, ..BATCH }).unwrap();
            prop_assert!(!name.contains('/') && name != "..");
        }
    }
}
