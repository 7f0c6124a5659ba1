//! Signals: names and numbers on Linux x86-64, and `--signal [B:]SIG[@secs]`, the warning before a time limit.
//! Never sends one. Source: signal(7), and the option's form in sbatch(1).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Seconds before the limit at which the warning comes when `@secs` is left out, as in Slurm.
pub const DEFAULT_LEAD_SECS: u32 = 60;
/// Longest lead that is taken, as in Slurm.
pub const MAX_LEAD_SECS: u32 = 65_535;
/// Largest signal number: the last real-time signal.
pub const MAX_SIGNAL: u8 = 64;

/// Names without `SIG`, with their numbers on x86-64.
pub const SIGNALS: [(&str, u8); 31] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
];

/// A warning signal before the time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SigSpec {
    /// Signal number, 1 to [`MAX_SIGNAL`].
    pub signal: u8,
    /// `B:`: only the batch script's own process gets it, not its steps.
    pub batch_only: bool,
    /// So many seconds before the time limit.
    pub lead_secs: u32,
}

impl SigSpec {
    /// Reads `[B:]SIG[@secs]`; the signal by name (with or without `SIG`, either case) or number.
    pub fn parse(text: &str) -> Result<Self, SignalError> {
        let shortened = || text.chars().take(40).collect::<String>();
        let trimmed = text.trim();
        let (who, rest) = trimmed.split_once(':').unwrap_or(("", trimmed));
        let batch_only = match who {
            "" if rest.len() == trimmed.len() => false,
            "B" | "b" => true,
            _ if !who.is_empty() && who.bytes().all(|b| b"rRbB".contains(&b)) => {
                return Err(SignalError::Reservation { text: shortened() });
            }
            _ => return Err(SignalError::Form { text: shortened() }),
        };
        let (name, lead) = match rest.split_once('@') {
            Some((name, lead)) => (name, Some(lead)),
            None => (rest, None),
        };
        let signal = parse_signal(name)?;
        let lead_secs = match lead {
            None => DEFAULT_LEAD_SECS,
            Some(lead) => plain_number(lead)
                .filter(|&secs| secs <= MAX_LEAD_SECS)
                .ok_or_else(|| SignalError::Lead { text: shortened() })?,
        };
        Ok(Self {
            signal,
            batch_only,
            lead_secs,
        })
    }
}

impl FromStr for SigSpec {
    type Err = SignalError;
    fn from_str(text: &str) -> Result<Self, SignalError> {
        Self::parse(text)
    }
}

impl fmt::Display for SigSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.batch_only { "B:" } else { "" };
        write!(f, "{who}{}@{}", signal_word(self.signal), self.lead_secs)
    }
}

/// What is wrong with a signal.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SignalError {
    #[error("signal {text:?} is not [B:]SIGNAL[@seconds]. Try USR1@120 or B:TERM@60")]
    Form { text: String },
    #[error(
        "signal {text:?} asks for R:, which is about overlapping reservations and has no meaning here. Leave R out"
    )]
    Reservation { text: String },
    #[error(
        "signal {text:?}: the seconds before the limit go from 0 to {MAX_LEAD_SECS}. Try USR1@120"
    )]
    Lead { text: String },
    #[error(
        "signal {name:?} is not known.{hint} Try USR1, TERM, or a number from 1 to {MAX_SIGNAL}"
    )]
    Unknown { name: String, hint: String },
}

/// A signal's number from its name (`TERM`, `SIGTERM`, `sigterm`) or number.
pub fn parse_signal(text: &str) -> Result<u8, SignalError> {
    let text = text.trim();
    if let Some(number) =
        plain_number(text).filter(|number| (1..=u32::from(MAX_SIGNAL)).contains(number))
    {
        return Ok(number as u8);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    // Two signals have a second name in common use.
    let name = match name {
        "POLL" => "IO",
        "IOT" => "ABRT",
        name => name,
    };
    SIGNALS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|&(_, number)| number)
        .ok_or_else(|| SignalError::Unknown {
            name: text.chars().take(40).collect(),
            hint: crate::suggest::did_you_mean(name, SIGNALS.iter().map(|&(known, _)| known)),
        })
}

/// A signal's name without `SIG`; None for numbers without one (0, 32 to 255).
pub fn signal_name(signal: u8) -> Option<&'static str> {
    SIGNALS
        .iter()
        .find(|&&(_, number)| number == signal)
        .map(|&(name, _)| name)
}

/// A signal's name, or its number where it has none.
pub fn signal_word(signal: u8) -> String {
    signal_name(signal).map_or_else(|| signal.to_string(), str::to_owned)
}

fn plain_number(digits: &str) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn check(text: &str, want: Expect) {
        want.assert_eq(&match SigSpec::parse(text) {
            Ok(spec) => spec.to_string(),
            Err(error) => format!("error: {error}"),
        });
    }

    #[test]
    fn reads_the_forms_of_sbatch() {
        check("USR1", expect!["USR1@60"]);
        check("B:SIGUSR1@120", expect!["B:USR1@120"]);
        check("10@30", expect!["USR1@30"]);
        check("b:term@0", expect!["B:TERM@0"]);
        check("34@5", expect!["34@5"]);
    }

    #[test]
    fn refuses_with_the_reason() {
        check(
            "R:USR1@10",
            expect![[
                r#"error: signal "R:USR1@10" asks for R:, which is about overlapping reservations and has no meaning here. Leave R out"#
            ]],
        );
        check(
            "X:USR1",
            expect![[
                r#"error: signal "X:USR1" is not [B:]SIGNAL[@seconds]. Try USR1@120 or B:TERM@60"#
            ]],
        );
        check(
            ":USR1",
            expect![[
                r#"error: signal ":USR1" is not [B:]SIGNAL[@seconds]. Try USR1@120 or B:TERM@60"#
            ]],
        );
        check(
            "USR1@x",
            expect![[
                r#"error: signal "USR1@x": the seconds before the limit go from 0 to 65535. Try USR1@120"#
            ]],
        );
        check(
            "TREM@9",
            expect![[
                r#"error: signal "TREM" is not known. Did you mean "TERM"? Try USR1, TERM, or a number from 1 to 64"#
            ]],
        );
        check(
            "0",
            expect![[
                r#"error: signal "0" is not known. Try USR1, TERM, or a number from 1 to 64"#
            ]],
        );
    }

    #[test]
    fn names_and_numbers_are_those_of_linux() {
        assert_eq!(parse_signal("KILL"), Ok(9));
        assert_eq!(parse_signal("sigcont"), Ok(18));
        assert_eq!(parse_signal("64"), Ok(64));
        assert!(parse_signal("65").is_err());
        assert_eq!((signal_name(15), signal_name(40)), (Some("TERM"), None));
        let numbers: Vec<u8> = SIGNALS.iter().map(|&(_, number)| number).collect();
        assert_eq!(numbers, (1..=31).collect::<Vec<u8>>());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,20}|[BR]{0,2}:?[A-Z0-9]{0,6}@?[0-9]{0,6}") {
            if let Ok(spec) = SigSpec::parse(&text) {
                prop_assert_eq!(SigSpec::parse(&spec.to_string()), Ok(spec));
            }
        }
    }
}
