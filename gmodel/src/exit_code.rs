//! How a run ended: exit code and signal, printed `code:signal` as sacct does.
//! Owns the translation to a shell's exit code; never waits for a process.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What a process left: its exit code, or the signal that ended it. `0:0` is success.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ExitCode {
    /// Exit code, 0 to 255; 0 when a signal ended it.
    pub code: u8,
    /// Signal number, 0 when it ended by itself.
    pub signal: u8,
}

impl ExitCode {
    /// `0:0`.
    pub const SUCCESS: Self = Self { code: 0, signal: 0 };

    /// Ended by itself with this code.
    pub const fn exited(code: u8) -> Self {
        Self { code, signal: 0 }
    }

    /// Ended by this signal.
    pub const fn killed(signal: u8) -> Self {
        Self { code: 0, signal }
    }

    /// True for `0:0`.
    pub const fn is_success(self) -> bool {
        self.code == 0 && self.signal == 0
    }

    /// What a shell's `$?` shows and `--wait` exits with: the code, or 128 + signal.
    pub const fn shell_code(self) -> u8 {
        if self.signal == 0 {
            self.code
        } else {
            128u8.saturating_add(self.signal)
        }
    }
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.code, self.signal)
    }
}

/// A text that is no `code:signal`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("exit code {text:?} is not code:signal with numbers up to 255. Write 3:0 or 0:9")]
pub struct ExitCodeError {
    text: String,
}

impl FromStr for ExitCode {
    type Err = ExitCodeError;
    fn from_str(text: &str) -> Result<Self, ExitCodeError> {
        let number = |digits: &str| {
            if digits.starts_with('+') {
                None
            } else {
                digits.parse::<u8>().ok()
            }
        };
        text.split_once(':')
            .and_then(|(code, signal)| {
                Some(Self {
                    code: number(code)?,
                    signal: number(signal)?,
                })
            })
            .ok_or_else(|| ExitCodeError {
                text: text.chars().take(40).collect(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prints_as_sacct_does() {
        assert_eq!(ExitCode::exited(3).to_string(), "3:0");
        assert_eq!(ExitCode::killed(9).to_string(), "0:9");
        assert_eq!(ExitCode::SUCCESS.to_string(), "0:0");
    }

    #[test]
    fn a_shell_sees_the_code_or_128_and_the_signal() {
        assert_eq!(ExitCode::exited(5).shell_code(), 5);
        assert_eq!(ExitCode::killed(9).shell_code(), 137);
        assert!(ExitCode::SUCCESS.is_success() && !ExitCode::killed(15).is_success());
    }

    #[test]
    fn a_bad_text_is_refused() {
        assert_eq!(
            "3".parse::<ExitCode>().unwrap_err().to_string(),
            r#"exit code "3" is not code:signal with numbers up to 255. Write 3:0 or 0:9"#
        );
        assert!("256:0".parse::<ExitCode>().is_err() && "+3:0".parse::<ExitCode>().is_err());
    }

    proptest! {
        #[test]
        fn printed_codes_read_back(code: u8, signal: u8) {
            let exit = ExitCode { code, signal };
            prop_assert_eq!(exit.to_string().parse::<ExitCode>(), Ok(exit));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,20}") {
            let _ = text.parse::<ExitCode>();
        }
    }
}
