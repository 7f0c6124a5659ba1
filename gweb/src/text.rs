//! Texts and numbers for people: hostile names made visible, times, sizes.

use gmodel::byte_text::byte_of;
use maud::{Escaper, Markup, Render, html};
use std::fmt::Write;

/// A text of a user, escaped, with what would not be seen as `⟨U+202E⟩`.
#[derive(Clone, Copy, Debug)]
pub struct VisibleText<'a>(pub &'a str);

impl Render for VisibleText<'_> {
    fn render_to(&self, buffer: &mut String) {
        let mut escaped = Escaper::new(buffer);
        for c in self.0.chars() {
            let _ = match byte_of(c) {
                Some(byte) => write!(escaped, "\\x{byte:02x}"),
                None if is_unseen(c) => write!(escaped, "⟨U+{:04X}⟩", c as u32),
                None => escaped.write_char(c),
            };
        }
    }
}

/// Controls, marks that turn the direction of writing, and what has no width: two names must not look alike.
fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// `4 d 3 h`, `2 h 5 min`, `30 min`, `3 min 20 s`, `12 s`: the two largest units.
pub fn duration(secs: i64) -> String {
    let secs = secs.max(0);
    let units = [
        (secs / 86_400, "d"),
        (secs / 3600 % 24, "h"),
        (secs / 60 % 60, "min"),
        (secs % 60, "s"),
    ];
    let first = units
        .iter()
        .position(|(number, _)| *number > 0)
        .unwrap_or(3);
    let said = units
        .iter()
        .skip(first)
        .take(2)
        .filter(|(number, unit)| *number > 0 || (*unit, secs) == ("s", 0));
    let words: Vec<String> = said
        .map(|(number, unit)| format!("{number} {unit}"))
        .collect();
    words.join(" ")
}

/// `1,234`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A sentence in which commands stand between backquotes.
pub fn with_commands(text: &str) -> Markup {
    let parts = text.split('`').enumerate();
    html! {
        @for (at, part) in parts {
            @if at % 2 == 1 { code { (VisibleText(part)) } } @else { (VisibleText(part)) }
        }
    }
}

/// One word behind its number: `1 job`, `1,200 jobs`.
pub fn counted(number: u64, one: &str) -> String {
    let many = if number == 1 { "" } else { "s" };
    format!("{} {one}{many}", count(number))
}

/// `3`, `0.5`, `12.34`: at most two places.
pub fn decimal(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A value of a query or a part of a path.
pub fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(byte.into())
            }
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_escaped_and_what_is_not_seen_is_shown() {
        let html = |text: &str| VisibleText(text).render().into_string();
        assert_eq!(
            html("<script>alert(1)</script>"),
            "&lt;script&gt;alert(1)&lt;/script&gt;"
        );
        assert_eq!(html("a\" onload=x&b"), "a&quot; onload=x&amp;b");
        assert_eq!(html("a\u{202e}b\x1b[2J\n"), "a⟨U+202E⟩b⟨U+001B⟩[2J⟨U+000A⟩");
        assert_eq!(html("x\u{200b}y\u{feff}"), "x⟨U+200B⟩y⟨U+FEFF⟩");
        assert_eq!(html("träin 训练"), "träin 训练");
        let bytes = gmodel::byte_text::from_bytes(b"j\xfcrgen");
        assert_eq!(html(&bytes), "j\\xfcrgen");
    }

    #[test]
    fn numbers_are_short_and_whole() {
        let said = [0, 59, 200, 7500, 200_000].map(duration);
        assert_eq!([60, 7200, 86_405].map(duration), ["1 min", "2 h", "1 d"]);
        assert_eq!(said, ["0 s", "59 s", "3 min 20 s", "2 h 5 min", "2 d 7 h"]);
        assert_eq!(
            [0, 999, 1000, 50_000, 1_234_567].map(count).join(" "),
            "0 999 1,000 50,000 1,234,567"
        );
        assert_eq!(
            [0.0, 0.5, 3.0, 12.345].map(decimal).join(" "),
            "0 0.5 3 12.35"
        );
        assert_eq!(
            percent_encoded("a b&c=+ä/1_2"),
            "a%20b%26c%3D%2B%C3%A4%2F1_2"
        );
    }
}
