//! The words behind `pam_gpupool.so` in a PAM line, by pam_slurm_adopt's names where it has them.

use std::path::PathBuf;

const SOCKET: &str = "/run/gpupool/gpud.sock";

/// What an administrator wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub socket: PathBuf,
    /// Tell the user nothing.
    pub quiet: bool,
    /// A user without a job here is left to the other modules.
    pub ignore_no_job: bool,
    /// A user with several jobs here is refused.
    pub refuse_several: bool,
}

impl Options {
    /// A word that is not known is an error: a line with a slip lets no user in by chance.
    pub fn read(words: &[String]) -> Result<Options, String> {
        let mut options = Options {
            socket: SOCKET.into(),
            quiet: false,
            ignore_no_job: false,
            refuse_several: false,
        };
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match (name, value) {
                ("quiet", "") => options.quiet = true,
                ("socket", path) if path.starts_with('/') => options.socket = path.into(),
                ("action_no_jobs", "deny") => options.ignore_no_job = false,
                ("action_no_jobs", "ignore") => options.ignore_no_job = true,
                ("action_unknown", "newest") => options.refuse_several = false,
                ("action_unknown", "deny") => options.refuse_several = true,
                _ => {
                    return Err(format!(
                        "option {word:?} is not known. There are quiet, socket=PATH, action_no_jobs=deny or ignore, and \
                         action_unknown=newest or deny (pam_gpupool(8))"
                    ));
                }
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::read(&words)
    }

    #[test]
    fn options_are_read_and_the_last_one_counts() {
        let none = read("").unwrap();
        assert_eq!(none.socket, PathBuf::from("/run/gpupool/gpud.sock"));
        assert!(!none.quiet && !none.ignore_no_job && !none.refuse_several);
        let all = "quiet socket=/x action_no_jobs=ignore action_unknown=newest action_unknown=deny";
        let all = read(all).unwrap();
        assert_eq!(all.socket, PathBuf::from("/x"));
        assert!(all.quiet && all.ignore_no_job && all.refuse_several);
    }

    #[test]
    fn a_slip_in_a_pam_line_is_an_error_that_names_it() {
        for slip in [
            "socket=gpud.sock",
            "socket",
            "action_no_jobs=allow",
            "action_unknown",
            "quiet=1",
            "nodeny",
        ] {
            let error = read(slip).unwrap_err();
            assert!(error.contains(slip), "{error}");
        }
    }
}
