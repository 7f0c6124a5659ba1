//! `exit.json`: how the run ended, written once, durable before the end is reported. The room for it is taken before the run
//! starts, so that a full disk cannot lose it.

use std::io;
use std::path::Path;

use gmodel::run::RunEnd;
use gsys::durable_file::{ReservedFile, write_atomic};

const PATH: &str = "exit.json";
const ROOM_BYTES: u64 = 8 << 10;
/// Text for people, cut so that even escaped as JSON it fits the room with everything else.
const MAX_TEXT_BYTES: usize = 1000;

/// Room for the record, taken.
pub struct Record {
    reserved: Option<ReservedFile>,
}

impl Record {
    /// Takes the room in the current directory.
    pub fn reserve() -> io::Result<Record> {
        ReservedFile::reserve(Path::new(PATH), ROOM_BYTES).map(|file| Record {
            reserved: Some(file),
        })
    }

    /// A record for a run that never got as far as having room: it is written if there is any.
    pub fn without_room() -> Record {
        Record { reserved: None }
    }

    /// Writes the end. When this returns Ok it survives a power cut.
    pub fn write(&mut self, end: &RunEnd) -> io::Result<()> {
        let bytes = serde_json::to_vec(end).map_err(io::Error::other)?;
        match self.reserved.take() {
            Some(reserved) => reserved
                .commit(&bytes)
                .or_else(|_| write_atomic(Path::new(PATH), &bytes)),
            None => write_atomic(Path::new(PATH), &bytes),
        }
    }
}

/// `text`, cut at a character.
pub fn shorten(text: &str) -> String {
    let cut = (0..=MAX_TEXT_BYTES.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    text[..cut].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_text_fits_the_room() {
        let end = RunEnd {
            text: shorten(&"\u{1}".repeat(5000)),
            ..RunEnd::default()
        };
        assert_eq!(end.text.len(), MAX_TEXT_BYTES);
        assert!(serde_json::to_vec(&end).unwrap().len() as u64 <= ROOM_BYTES);
        assert_eq!(shorten(&"ä".repeat(600)).len(), 1000);
        assert_eq!(shorten("short"), "short");
    }
}
