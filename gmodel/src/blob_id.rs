//! The name of a stored text: its SHA-256, 64 lower-case hexadecimal digits on the wire and in documents.
//!
//! Never computes one. Each job has two, so they are kept as bytes.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

const SHA_BYTES: usize = 32;
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// SHA-256 of a script or an environment; by default of none, written as an empty text.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(Option<[u8; SHA_BYTES]>);

impl BlobId {
    pub const fn of_sha(sha: [u8; SHA_BYTES]) -> Self {
        Self(Some(sha))
    }
    /// The digest; `None` when nothing is named.
    pub const fn sha(&self) -> Option<[u8; SHA_BYTES]> {
        self.0
    }
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::default());
        }
        let digits = text.as_bytes();
        if digits.len() != 2 * SHA_BYTES {
            return None;
        }
        let digit = |c: u8| char::from(c).to_digit(16).map(|value| value as u8);
        let mut sha = [0; SHA_BYTES];
        for (byte, pair) in sha.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(Some(sha)))
    }
}

/// The digits, without a place for them on the heap.
fn digits(sha: [u8; SHA_BYTES]) -> [u8; 2 * SHA_BYTES] {
    let mut text = [0; 2 * SHA_BYTES];
    for (pair, byte) in text.chunks_exact_mut(2).zip(sha) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    text
}

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(sha) = self.0 else { return Ok(()) };
        f.pad(std::str::from_utf8(&digits(sha)).expect("digits are text"))
    }
}

impl fmt::Debug for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Serialize for BlobId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            None => s.serialize_str(""),
            Some(sha) => {
                s.serialize_str(std::str::from_utf8(&digits(sha)).expect("digits are text"))
            }
        }
    }
}

impl<'de> Deserialize<'de> for BlobId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(d)?;
        Self::parse(&text).ok_or_else(|| {
            let shown: String = text.chars().take(80).collect();
            serde::de::Error::custom(format_args!(
                "{shown:?} is not a SHA-256 of 64 hexadecimal digits"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_back_as_written_and_none_is_an_empty_text() {
        let id = BlobId::of_sha(std::array::from_fn(|at| at as u8 * 7));
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json.len(), 66);
        assert_eq!(json, format!("\"{id}\""));
        assert_eq!(serde_json::from_str::<BlobId>(&json).unwrap(), id);
        assert_eq!(serde_json::to_string(&BlobId::default()).unwrap(), "\"\"");
        assert_eq!(
            serde_json::from_str::<BlobId>("\"\"").unwrap(),
            BlobId::default()
        );
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        for bad in [
            "x",
            &"g".repeat(64),
            &"0".repeat(63),
            &"0".repeat(66),
            &"ä".repeat(32),
        ] {
            assert_eq!(BlobId::parse(bad), None, "{bad}");
            assert!(serde_json::from_value::<BlobId>((*bad).into()).is_err());
        }
    }
}
