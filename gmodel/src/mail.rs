//! `--mail-type`: of which events of a job its user wants mail.

use crate::suggest::did_you_mean;
use std::collections::BTreeSet;

/// An event of `--mail-type`, in Slurm's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MailEvent {
    Begin,
    /// Every end, good or bad.
    End,
    /// An end that is neither COMPLETED nor CANCELLED.
    Fail,
    Requeue,
    /// Its dependency can never be met.
    InvalidDepend,
    TimeLimit50,
    TimeLimit80,
    TimeLimit90,
    TimeLimit,
    /// Mail for each task of an array, and not for the array.
    ArrayTasks,
}

/// Words in the order of sbatch(1). `STAGE_OUT` is of burst buffers, which there are none of.
const WORDS: [(&str, &[MailEvent]); 13] = {
    use MailEvent::*;
    [
        ("NONE", &[]),
        ("BEGIN", &[Begin]),
        ("END", &[End]),
        ("FAIL", &[Fail]),
        ("REQUEUE", &[Requeue]),
        ("ALL", &[Begin, End, Fail, Requeue, InvalidDepend]),
        ("INVALID_DEPEND", &[InvalidDepend]),
        ("STAGE_OUT", &[]),
        ("TIME_LIMIT", &[TimeLimit]),
        ("TIME_LIMIT_90", &[TimeLimit90]),
        ("TIME_LIMIT_80", &[TimeLimit80]),
        ("TIME_LIMIT_50", &[TimeLimit50]),
        ("ARRAY_TASKS", &[ArrayTasks]),
    ]
};

impl MailEvent {
    /// Percent of a job's time limit at which it is due.
    pub fn percent(self) -> Option<u32> {
        match self {
            Self::TimeLimit50 => Some(50),
            Self::TimeLimit80 => Some(80),
            Self::TimeLimit90 => Some(90),
            _ => None,
        }
    }
}

/// The events that a list of words names; `NONE` among them means none.
///
/// # Errors
/// A word that is no event.
pub fn mail_events(text: &str) -> Result<BTreeSet<MailEvent>, String> {
    let mut all = BTreeSet::new();
    let mut is_none = false;
    for word in text.split(',').map(str::trim) {
        let found = WORDS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(word));
        let Some((name, events)) = found else {
            let names = WORDS.map(|(name, _)| name);
            return Err(format!(
                "{word:?} is no event.{} Events are {}",
                did_you_mean(word, names),
                names.join(", ")
            ));
        };
        is_none |= *name == "NONE";
        all.extend(events.iter().copied());
    }
    Ok(if is_none { BTreeSet::new() } else { all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_slurm_has_them() {
        use MailEvent::*;
        assert_eq!(
            mail_events("end,FAIL").unwrap(),
            BTreeSet::from([End, Fail])
        );
        assert_eq!(
            mail_events("ALL").unwrap(),
            BTreeSet::from([Begin, End, Fail, Requeue, InvalidDepend])
        );
        assert_eq!(mail_events("NONE,END").unwrap(), BTreeSet::new());
        assert_eq!(
            mail_events("TIME_LIMIT_80,ARRAY_TASKS").unwrap(),
            BTreeSet::from([TimeLimit80, ArrayTasks])
        );
        let error = mail_events("END,FIAL").unwrap_err();
        assert!(
            error.contains("\"FIAL\" is no event. Did you mean \"FAIL\"?"),
            "{error}"
        );
    }
}
