//! Bytes that need not be UTF-8, as text that JSON carries: environments, arguments and paths of the system are bytes.
//!
//! What is UTF-8 stands for itself. A byte that is none stands as one character of a private plane, U+10F780 for 0x80 to U+10F7FF
//! for 0xFF, and these characters themselves stand as their four bytes: so each sequence of bytes has one text, and a peer of an
//! older release that knows nothing of it passes it on as it is.

use std::borrow::Cow;

/// Of byte 0; only 0x80 and above are ever written so.
const BASE: u32 = 0x10_F700;

/// The text for some bytes.
pub fn from_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match byte_of(c) {
                None => text.push(c),
                Some(_) => c
                    .encode_utf8(&mut [0; 4])
                    .bytes()
                    .for_each(|byte| text.push(char_of(byte))),
            }
        }
        chunk
            .invalid()
            .iter()
            .for_each(|byte| text.push(char_of(*byte)));
    }
    text
}

/// The bytes that a text stands for.
pub fn to_bytes(text: &str) -> Cow<'_, [u8]> {
    if text.is_ascii() || !text.chars().any(|c| byte_of(c).is_some()) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(bytes)
}

/// The byte that a character stands for, where it is one of these.
pub fn byte_of(c: char) -> Option<u8> {
    u32::from(c)
        .checked_sub(BASE)
        .and_then(|byte| u8::try_from(byte).ok())
        .filter(|byte| *byte >= 0x80)
}

fn char_of(byte: u8) -> char {
    char::from_u32(BASE + u32::from(byte)).expect("the plane has no gaps there")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_stands_for_itself_and_other_bytes_for_characters_that_no_one_uses() {
        assert_eq!(from_bytes("/home/jürgen".as_bytes()), "/home/jürgen");
        assert_eq!(from_bytes(b"/home/j\xfcrgen"), "/home/j\u{10f7fc}rgen");
        assert_eq!(
            to_bytes("/home/j\u{10f7fc}rgen").as_ref(),
            b"/home/j\xfcrgen"
        );
        let own = "\u{10f7fc}";
        assert_ne!(
            from_bytes(own.as_bytes()),
            own,
            "else it would come back as one byte"
        );
        assert!(
            !own.contains(char::is_control),
            "what looks for control characters lets it pass"
        );
    }

    proptest! {
        #[test]
        fn every_sequence_of_bytes_comes_back(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0xF4), Just(0x8F), Just(0x9F), Just(0xBC)], 0..64)) {
            let text = from_bytes(&bytes);
            prop_assert_eq!(to_bytes(&text).into_owned(), bytes);
        }
        #[test]
        fn every_text_of_people_stands_for_itself(text in "\\PC{0,40}") {
            prop_assume!(text.chars().all(|c| byte_of(c).is_none()));
            prop_assert_eq!(from_bytes(text.as_bytes()), text);
        }
    }
}
