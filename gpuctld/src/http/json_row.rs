//! Rows of listings as JSON text: the columns that were asked for, written straight into a buffer.
//!
//! Owns how a choice of columns is read and written, with keys or bare; which columns there are is each listing's.

use crate::http::error::ApiError;
use crate::http::query::list;
use gmodel::suggest::did_you_mean;
use gmodel::{Instant, Timestamp};
use serde::Serialize;
use std::io::Write;

/// One key of a listing's rows. What `write` is given is the listing's affair.
pub(crate) struct Column<W> {
    pub(crate) key: &'static str,
    /// `,"key":`
    pub(crate) prefix: &'static str,
    pub(crate) write: W,
}

/// The columns asked for, in their order; all for none.
///
/// # Errors
/// Naming the first key that is no column.
pub(crate) fn chosen<W>(
    all: &'static [Column<W>],
    keys: &[String],
) -> Result<Vec<&'static Column<W>>, ApiError> {
    if keys.is_empty() {
        return Ok(all.iter().collect());
    }
    let find = |key: &String| {
        all.iter().find(|column| column.key == key).ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|column| column.key).collect();
            let guess = did_you_mean(key, names.iter().copied());
            ApiError::invalid(format!(
                "there is no column {key:?}.{guess} Columns: id, {}",
                list(&names)
            ))
        })
    };
    keys.iter().filter(|key| *key != "id").map(find).collect()
}

/// A buffer of JSON text. The writers answer whether there was a value.
#[derive(Default)]
pub(crate) struct JsonWriter {
    pub(crate) bytes: Vec<u8>,
}

impl JsonWriter {
    pub(crate) fn raw(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// A row of a listing: with keys as `{"id":17,"name":"train",...}`, bare as `[17,"train",...]` and null for what is not
    /// there.
    pub(crate) fn row<W>(
        &mut self,
        id: u64,
        columns: &[&Column<W>],
        bare: bool,
        put: impl Fn(&W, &mut Self) -> bool,
    ) {
        self.raw(if bare { "[" } else { "{\"id\":" });
        self.number(id);
        for column in columns {
            let before = self.bytes.len();
            self.raw(if bare { "," } else { column.prefix });
            if !put(&column.write, self) {
                self.bytes.truncate(before);
                self.raw(if bare { ",null" } else { "" });
            }
        }
        self.raw(if bare { "]" } else { "}" });
    }

    pub(crate) fn text(&mut self, text: &str) -> bool {
        // Without an early end the loop is done many bytes at a time.
        let odd = |b: u8| b < 0x20 || b == b'"' || b == b'\\';
        if text.bytes().fold(false, |found, b| found | odd(b)) {
            return self.value(text);
        }
        self.bytes.push(b'"');
        self.raw(text);
        self.bytes.push(b'"');
        true
    }

    pub(crate) fn text_unless_empty(&mut self, text: &str) -> bool {
        !text.is_empty() && self.text(text)
    }

    /// Digits by hand: most of a listing is numbers.
    pub(crate) fn number(&mut self, number: impl Into<i128>) -> bool {
        let number: i128 = number.into();
        if number < 0 {
            self.bytes.push(b'-');
        }
        let mut left = u64::try_from(number.unsigned_abs()).unwrap_or(u64::MAX);
        let mut digits = [0_u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        self.bytes.extend_from_slice(&digits[at..]);
        true
    }

    /// A word that needs no escapes.
    pub(crate) fn quoted(&mut self, word: impl std::fmt::Display) -> bool {
        write!(self.bytes, "\"{word}\"").expect("a Vec takes every write");
        true
    }

    pub(crate) fn instant(&mut self, at: Option<Timestamp>) -> bool {
        match at {
            Some(at) => self.quoted(at),
            None => self.value(&None::<Instant>),
        }
    }

    pub(crate) fn hostlist(&mut self, list: &Option<gmodel::hostlist::Hostlist>) -> bool {
        match list {
            Some(list) => self.value(list),
            None => self.text(""),
        }
    }

    pub(crate) fn some<T: Serialize>(&mut self, value: Option<T>) -> bool {
        value.is_some_and(|value| self.value(&value))
    }

    pub(crate) fn list_unless_empty<T: Serialize>(&mut self, list: &[T]) -> bool {
        !list.is_empty() && self.value(list)
    }

    pub(crate) fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> bool {
        serde_json::to_writer(&mut self.bytes, value)
            .expect("these values have no maps with odd keys");
        true
    }
}
