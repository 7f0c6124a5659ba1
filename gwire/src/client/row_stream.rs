//! The rows of a listing, one at a time, while the rest is still on its way.
//!
//! Finds where each object of `{"schema":1,"jobs":[{...},{...}]}` ends; parsing it is the reader's affair,
//! so that text can be borrowed from the row. Memory stays at one row and one read.

use super::{Body, ClientError, ControllerAddress};
use std::io::{self, ErrorKind, Read};
use std::ops::Range;

/// Longest row that is taken.
const MAX_ROW_BYTES: usize = 16 << 20;
const READ_BYTES: usize = 64 << 10;

/// Bytes that begin or end something in JSON.
const MEANS: [bool; 256] = {
    let mut means = [false; 256];
    let signs = b"\"\\{}[]";
    let mut at = 0;
    while at < signs.len() {
        means[signs[at] as usize] = true;
        at += 1;
    }
    means
};

/// Rows of an answer, in its order.
pub struct RowStream<'a> {
    source: Box<dyn Read + 'a>,
    address: ControllerAddress,
    text: ListText,
}

impl<'a> RowStream<'a> {
    pub(super) fn new(body: Body<'a>, address: ControllerAddress) -> Self {
        Self::from_reader(body, address)
    }

    fn from_reader(source: impl Read + 'a, address: ControllerAddress) -> Self {
        Self {
            source: Box::new(source),
            address,
            text: ListText::default(),
        }
    }

    /// The text of the next row, or None behind the last.
    ///
    /// # Errors
    /// [`ClientError::Lost`] when the answer ends in the middle, [`ClientError::Unreadable`] when it is no listing.
    pub fn next_row(&mut self) -> Result<Option<&[u8]>, ClientError> {
        loop {
            if let Some(row) = self.text.find_row() {
                return Ok(Some(&self.text.buffer[row]));
            }
            if !self.read_more()? {
                return Ok(None);
            }
        }
    }

    /// False at the end of a complete answer.
    fn read_more(&mut self) -> Result<bool, ClientError> {
        self.text.forget();
        if self.text.buffer.len() > MAX_ROW_BYTES {
            return Err(self.unreadable("a row is longer than 16 MiB"));
        }
        let buffer = &mut self.text.buffer;
        let kept = buffer.len();
        buffer.resize(kept + READ_BYTES, 0);
        let count = loop {
            match self.source.read(&mut buffer[kept..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    return Err(self.unreadable(&error.to_string()));
                }
                Err(source) => return Err(ClientError::Lost { source }),
                Ok(count) => break count,
            }
        };
        buffer.truncate(kept + count);
        match (count, self.text.is_whole()) {
            (0, true) => Ok(false),
            (0, false) => Err(ClientError::Lost {
                source: io::Error::new(ErrorKind::UnexpectedEof, "the listing ended in the middle"),
            }),
            _ => Ok(true),
        }
    }

    fn unreadable(&self, why: &str) -> ClientError {
        ClientError::Unreadable {
            address: self.address.clone(),
            why: why.to_owned(),
        }
    }
}

/// The text of a listing as far as it has come.
#[derive(Default)]
pub struct ListText {
    buffer: Vec<u8>,
    scan: Scan,
    /// Position of the first byte that has not been looked at.
    scanned: usize,
    /// Start of the row that has begun, or of what may be forgotten.
    row_start: usize,
}

impl ListText {
    /// More of it.
    pub fn push(&mut self, bytes: &[u8]) {
        self.forget();
        self.buffer.extend_from_slice(bytes);
    }

    /// The text of the next row that has come as a whole.
    pub fn next_row(&mut self) -> Option<&[u8]> {
        let row = self.find_row()?;
        Some(&self.buffer[row])
    }

    /// All of the listing has come.
    pub fn is_whole(&self) -> bool {
        self.scan.ended
    }

    fn find_row(&mut self) -> Option<Range<usize>> {
        // Most bytes mean nothing to the scan; only a byte behind a backslash must be seen whatever it is.
        while let Some(byte) = self.next_byte() {
            match self.scan.step(byte) {
                None => {}
                Some(ScanEvent::RowStart) => self.row_start = self.scanned - 1,
                Some(ScanEvent::RowEnd) => {
                    let row = self.row_start..self.scanned;
                    self.row_start = self.scanned;
                    return Some(row);
                }
            }
        }
        None
    }

    /// The next byte that the scan must see, or None when all that has come is looked at.
    fn next_byte(&mut self) -> Option<u8> {
        let rest = &self.buffer[self.scanned..];
        let skip = if self.scan.escaped {
            0
        } else {
            rest.iter()
                .position(|&byte| MEANS[usize::from(byte)])
                .unwrap_or(rest.len())
        };
        let byte = rest.get(skip).copied();
        self.scanned += skip + usize::from(byte.is_some());
        byte
    }

    /// Drops the rows that were found.
    fn forget(&mut self) {
        if !self.scan.in_row() {
            self.row_start = self.scanned;
        }
        self.buffer.drain(..self.row_start);
        self.scanned -= self.row_start;
        self.row_start = 0;
    }
}

/// Where in the JSON text the scan is.
#[derive(Default)]
struct Scan {
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// Inside the list of rows: the first array directly under the top object.
    in_list: bool,
    ended: bool,
}

enum ScanEvent {
    RowStart,
    RowEnd,
}

impl Scan {
    fn in_row(&self) -> bool {
        self.in_list && self.depth > 2
    }

    fn step(&mut self, byte: u8) -> Option<ScanEvent> {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return None;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => {
                self.depth += 1;
                match self.depth {
                    2 => self.in_list = byte == b'[',
                    3 if self.in_list => return Some(ScanEvent::RowStart),
                    _ => {}
                }
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                match self.depth {
                    2 if self.in_list => return Some(ScanEvent::RowEnd),
                    1 => self.in_list = false,
                    0 => self.ended = true,
                    _ => {}
                }
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // Each byte of a trickle costs a read of full size.
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_bytes_are_rows_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = rows_of(&bytes[..]);
        }

        #[test]
        fn any_json_is_cut_alike_however_it_arrives(text in "[{}\\[\\]\"\\\\,:a1 ]{0,60}") {
            let (at_once, in_bytes) = (rows_of(text.as_bytes()), rows_of(Trickle(text.as_bytes())));
            prop_assert_eq!(at_once.ok(), in_bytes.ok());
        }
    }

    /// Gives one byte a read, so that every boundary is met.
    struct Trickle<'a>(&'a [u8]);
    impl Read for Trickle<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let Some((first, rest)) = self.0.split_first() else {
                return Ok(0);
            };
            out[0] = *first;
            self.0 = rest;
            Ok(1)
        }
    }

    fn rows_of(source: impl Read) -> Result<Vec<String>, ClientError> {
        let mut stream = RowStream::from_reader(source, ControllerAddress::Socket("/s".into()));
        let mut rows = Vec::new();
        while let Some(row) = stream.next_row()? {
            rows.push(String::from_utf8_lossy(row).into_owned());
        }
        Ok(rows)
    }

    #[test]
    fn rows_are_cut_where_they_end() {
        let text = br#"{"schema":1,"meta":{"a":[1]},"jobs":[{"id":1,"name":"a}]\"{"}, {"id":2,"tags":["x",{"y":[]}]}],"z":[]}"#;
        let want = [
            r#"{"id":1,"name":"a}]\"{"}"#,
            r#"{"id":2,"tags":["x",{"y":[]}]}"#,
        ];
        assert_eq!(rows_of(&text[..]).unwrap(), want);
        assert_eq!(rows_of(Trickle(text)).unwrap(), want);
        let lists = br#"{"schema":1,"jobs":[[1,"a]"],[2,[3]]]}"#;
        assert_eq!(rows_of(&lists[..]).unwrap(), [r#"[1,"a]"]"#, "[2,[3]]"]);
    }

    #[test]
    fn an_empty_listing_has_no_rows() {
        assert!(
            rows_of(&br#"{"schema":1,"jobs":[]}"#[..])
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn a_listing_cut_short_is_an_error_not_a_short_listing() {
        let text = br#"{"schema":1,"jobs":[{"id":1},{"id":2"#;
        for length in 0..text.len() {
            assert!(
                matches!(rows_of(&text[..length]), Err(ClientError::Lost { .. })),
                "{length}"
            );
        }
    }
}
