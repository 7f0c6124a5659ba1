//! `grun --output`, `--error`: files that the tasks' output goes to instead of grun's own stdout and stderr.
//!
//! Written here, where grun runs, since all output comes here anyway; never on the other nodes. Source: "filename pattern" in srun(1).

use gcli::Failure;
use gmodel::byte_text;
use gmodel::pattern::{self, PatternContext};
use gwire::api::{StepNodeRow, StepOfJob};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where a step's output goes, by rank and stream.
#[derive(Debug, Default)]
pub struct StepFiles {
    opened: OpenFiles,
    /// By rank, stdout before stderr: a place among the files, or none for grun's own.
    places: BTreeMap<(u32, bool), usize>,
}

/// The job around, for `%j`, `%x` and their like.
#[derive(Debug, Default)]
pub struct StepJob {
    pub id: u64,
    pub array: Option<(u64, u32)>,
    pub name: String,
    pub user: String,
}

impl StepJob {
    /// As the job's environment has it.
    pub fn from_env(job: &str, variable: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| variable(name)?.parse().ok();
        Self {
            id: job.parse().unwrap_or(0),
            array: number("SLURM_ARRAY_JOB_ID")
                .zip(variable("SLURM_ARRAY_TASK_ID").and_then(|index| index.parse().ok())),
            name: variable("SLURM_JOB_NAME").unwrap_or_default(),
            user: variable("SLURM_JOB_USER").unwrap_or_default(),
        }
    }
}

impl StepFiles {
    /// Makes the files of all tasks in one job, below `dir`, empty unless `append`. Without `error` stderr goes where stdout goes.
    /// `none` is /dev/null, `all` grun's own, and a number is grun's own for the task of that rank, /dev/null for the others.
    ///
    /// # Errors
    /// A pattern or a file that cannot be.
    pub fn add(
        &mut self,
        output: Option<&str>,
        error: Option<&str>,
        append: bool,
        dir: &Path,
        job: &StepJob,
        step: &StepOfJob,
    ) -> Result<(), Failure> {
        for (flag, pattern, stderr) in [
            ("--output", output, false),
            ("--error", error.or(output), true),
        ] {
            let Some(pattern) = pattern.filter(|pattern| *pattern != "all") else {
                continue;
            };
            let only: Option<u32> = pattern.parse().ok();
            let last = last_rank(step.rows);
            if let Some(rank) = only.filter(|rank| *rank > last) {
                return Err(Failure::usage(format_args!(
                    "{flag} {rank}: the last task of the step is {last}; for a file of that name give ./{rank}"
                )));
            }
            let pattern = if pattern == "none" || only.is_some() {
                "/dev/null"
            } else {
                pattern
            };
            for (at, node) in step.nodes.clone().zip(step.rows) {
                for rank in node.ranks.iter().filter(|rank| only != Some(**rank)) {
                    let context = PatternContext {
                        job_id: job.id,
                        array: job.array,
                        job_name: &job.name,
                        user_name: &job.user,
                        node_name: &node.name,
                        node_index: at,
                        step: Some(step.step),
                        task: *rank,
                    };
                    let name = pattern::expand(pattern, &context)
                        .map_err(|error| Failure::usage(format_args!("{flag}: {error}")))?;
                    let path = dir.join(os_string(&name));
                    let place = self.opened.place(&path, append).map_err(|error| {
                        Failure::new(format_args!("{flag} {}: {error}", path.display()))
                    })?;
                    self.places.insert((*rank, stderr), place);
                }
            }
        }
        Ok(())
    }

    /// Writes to the task's file, or to grun's own stdout or stderr.
    ///
    /// # Errors
    /// A full disk, a reader that went away.
    pub fn write(&mut self, rank: u32, stderr: bool, bytes: &[u8]) -> io::Result<()> {
        if let Some(place) = self.places.get(&(rank, stderr)) {
            return self.opened.files[*place].write_all(bytes);
        }
        if stderr {
            return io::stderr().write_all(bytes);
        }
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }
}

/// Files, each opened once.
#[derive(Debug, Default)]
struct OpenFiles {
    files: Vec<File>,
    by_path: BTreeMap<PathBuf, usize>,
    by_inode: BTreeMap<(u64, u64), usize>,
}

impl OpenFiles {
    /// The place of a path's file in `files`. By another name the same file, as with -o out -e ./out, is written through one
    /// place, or each would overwrite the other.
    fn place(&mut self, path: &Path, append: bool) -> io::Result<usize> {
        if let Some(place) = self.by_path.get(path) {
            return Ok(*place);
        }
        let file = File::options()
            .write(true)
            .create(true)
            .append(append)
            .truncate(!append)
            .open(path)?;
        let data = file.metadata()?;
        let inode = (data.dev(), data.ino());
        let place = *self.by_inode.entry(inode).or_insert(self.files.len());
        if place == self.files.len() {
            self.files.push(file);
        }
        self.by_path.insert(path.to_owned(), place);
        Ok(place)
    }
}

/// The highest rank on these nodes of a step.
pub(crate) fn last_rank(nodes: &[StepNodeRow]) -> u32 {
    let ranks = nodes.iter().flat_map(|node| &node.ranks);
    ranks.max().copied().unwrap_or(0)
}

/// What a word of the command line names in the system.
pub(crate) fn os_string(text: &str) -> OsString {
    OsString::from_vec(byte_text::to_bytes(text).into_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use gwire::api::StepReply;

    /// The files of a step in one job.
    pub(crate) fn open(
        output: Option<&str>,
        error: Option<&str>,
        append: bool,
        dir: &Path,
        job: &StepJob,
        step: &StepReply,
    ) -> Result<StepFiles, Failure> {
        let mut files = StepFiles::default();
        let part = step.parts("17").next().unwrap();
        files.add(output, error, append, dir, job, &part)?;
        Ok(files)
    }

    fn step() -> StepReply {
        let node = |name: &str, ranks: &[u32]| StepNodeRow {
            name: name.into(),
            ranks: ranks.to_vec(),
        };
        StepReply {
            schema: 1,
            step: 4,
            nodes: vec![node("n1", &[0, 1]), node("n2", &[2])],
            ..StepReply::default()
        }
    }

    fn files(dir: &Path) -> Vec<String> {
        let mut all: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| {
                format!(
                    "{}={}",
                    path.file_name().unwrap().to_string_lossy(),
                    std::fs::read_to_string(&path).unwrap()
                )
            })
            .collect();
        all.sort();
        all
    }

    fn written(output: Option<&str>, error: Option<&str>) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let job = StepJob {
            id: 17,
            array: None,
            name: "train".into(),
            user: "ada".into(),
        };
        let mut files_of_step = open(output, error, false, dir.path(), &job, &step()).unwrap();
        for (rank, text) in [(0, "a"), (1, "b"), (2, "c")] {
            files_of_step.write(rank, false, text.as_bytes()).unwrap();
        }
        files_of_step.write(0, true, b"e").unwrap();
        files(dir.path())
    }

    #[test]
    fn tasks_share_a_file_or_have_their_own_as_the_pattern_says() {
        assert_eq!(written(Some("%x-%j.out"), None), ["train-17.out=abce"]);
        assert_eq!(written(Some("r%t"), None), ["r0=ae", "r1=b", "r2=c"]);
        assert_eq!(
            written(Some("%N.%s"), Some("err")),
            ["err=e", "n1.4=ab", "n2.4=c"]
        );
        assert_eq!(written(Some("none"), None), [""; 0]);
    }

    #[test]
    fn a_number_means_the_output_of_that_task_alone() {
        assert_eq!(
            written(Some("1"), Some("err")),
            ["err=e"],
            "that task's stdout is grun's, no file is named 1"
        );
        assert_eq!(written(Some("./1"), None), ["1=abce"]);
        let failure = open(
            Some("3"),
            None,
            false,
            Path::new("/"),
            &StepJob::default(),
            &step(),
        )
        .unwrap_err();
        assert_eq!(
            failure.text,
            "--output 3: the last task of the step is 2; for a file of that name give ./3"
        );
    }

    #[test]
    fn what_is_there_is_replaced_or_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        for (append, want) in [(false, "log=a"), (true, "log=aa"), (false, "log=a")] {
            let mut to = open(
                Some("log"),
                None,
                append,
                dir.path(),
                &StepJob::default(),
                &step(),
            )
            .unwrap();
            to.write(0, false, b"a").unwrap();
            assert_eq!(files(dir.path()), [want]);
        }
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named() {
        let failure = open(
            Some("missing/x"),
            None,
            false,
            Path::new("/proc"),
            &StepJob::default(),
            &step(),
        )
        .unwrap_err();
        assert!(
            failure
                .text
                .starts_with("--output /proc/missing/x: No such file"),
            "{}",
            failure.text
        );
    }
}
