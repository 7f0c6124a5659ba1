//! Text of users on other users' terminals: a job's name must not move the cursor or forge a line.

use gmodel::byte_text::byte_of;
use std::borrow::Cow;

/// The text with control characters (escape, newline, and those that turn the direction of writing) as `?`.
pub fn printable(text: &str) -> Cow<'_, str> {
    let plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if plain || !text.chars().any(|c| is_unsafe(c) || byte_of(c).is_some()) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match byte_of(c) {
            // As shells write a byte that is no text.
            Some(byte) => shown.push_str(&format!("\\x{byte:02x}")),
            None => shown.push(if is_unsafe(c) { '?' } else { c }),
        }
    }
    Cow::Owned(shown)
}

fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nc\u{202e}d"), "a?[2Jb?c?d");
        assert!(matches!(printable("träin 1"), Cow::Borrowed(_)));
        assert_eq!(
            printable(&gmodel::byte_text::from_bytes(b"/home/j\xfcrgen")),
            "/home/j\\xfcrgen"
        );
    }
}
