//! What names of records and of users may be made of.

/// The hint beside a name that is none.
pub(crate) const NAMES: &str = "use up to 64 letters, digits, '_', '-' and '.'";

/// A name of letters, digits, `_`, `-` and `.`, at most 64 of them.
pub fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

/// What a system may call a user: no blanks, no separators of lists.
pub fn is_user(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && !name.contains(|c: char| c.is_whitespace() || c.is_control() || ",:/=".contains(c))
}
