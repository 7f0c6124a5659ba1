//! A place in the events, as readers keep it: `INCARNATION-SEQ`, or `INCARNATION-SEQ.PART` where an event of ours is told as two.

use std::fmt;
use std::str::FromStr;

/// All up to here was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    pub seq: u64,
    /// Of the event with this number these parts were told, the first of them is 0; `u8::MAX`: all.
    pub part: u8,
}

impl Cursor {
    pub const fn whole(seq: u64) -> Self {
        Self { seq, part: u8::MAX }
    }

    /// Up to this number everything was told.
    pub fn done(self) -> u64 {
        match self.part {
            u8::MAX => self.seq,
            _ => self.seq.saturating_sub(1),
        }
    }

    /// As readers are given it.
    pub fn id(self, incarnation: u64) -> String {
        match self.part {
            u8::MAX => format!("{incarnation}-{}", self.seq),
            part => format!("{incarnation}-{}.{part}", self.seq),
        }
    }
}

/// What a reader gives back: an id, or a number alone, which is of the database as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenCursor {
    pub incarnation: Option<u64>,
    pub at: Cursor,
}

/// The text is none that was given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCursor;

impl fmt::Display for NoCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an id is as 1-40213 or 1-40213.0, and a number alone is good, too")
    }
}

impl FromStr for GivenCursor {
    type Err = NoCursor;
    fn from_str(text: &str) -> Result<Self, NoCursor> {
        let (incarnation, rest) = match text.split_once('-') {
            Some((incarnation, rest)) => (Some(number(incarnation)?), rest),
            None => (None, text),
        };
        let (seq, part) = match rest.split_once('.') {
            Some((seq, part)) => {
                let part = number(part)?;
                (seq, u8::try_from(part).map_err(|_| NoCursor)?)
            }
            None => (rest, u8::MAX),
        };
        let seq = number(seq)?;
        Ok(Self {
            incarnation,
            at: Cursor { seq, part },
        })
    }
}

/// Digits only; the database keeps them as signed numbers.
fn number(text: &str) -> Result<u64, NoCursor> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number: Option<i64> = text.parse().ok().filter(|_| digits);
    number.map(i64::cast_unsigned).ok_or(NoCursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_back_as_it_was_given() {
        for cursor in [Cursor::whole(40_213), Cursor { seq: 7, part: 0 }] {
            let read: GivenCursor = cursor.id(3).parse().unwrap();
            assert_eq!((read.incarnation, read.at), (Some(3), cursor));
        }
        let alone: GivenCursor = "12".parse().unwrap();
        assert_eq!((alone.incarnation, alone.at), (None, Cursor::whole(12)));
        for bad in [
            "",
            "-1",
            "1-",
            "1-2.",
            "1-2.300",
            "+5",
            "x",
            "9223372036854775808",
            "1-2-3",
            " 1",
        ] {
            assert_eq!(bad.parse::<GivenCursor>(), Err(NoCursor), "{bad:?}");
        }
    }

    #[test]
    fn an_event_that_is_half_told_is_not_done() {
        assert_eq!(Cursor { seq: 7, part: 0 }.done(), 6);
        assert_eq!(Cursor::whole(7).done(), 7);
        assert!(Cursor { seq: 7, part: 0 } < Cursor::whole(7));
    }
}
