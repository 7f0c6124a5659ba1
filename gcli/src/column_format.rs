//! Output formats as Slurm's users write them: `%.18i %T`, `jobid:8,name`, `state%20`.
//!
//! Owns the syntax and how a cell fills its width; which letters and names exist is each listing's affair.
//! Source: squeue(1), sinfo(1) and sacct(1).

use crate::printable::printable;
use std::fmt;
use unicode_width::UnicodeWidthStr;

/// Widest column that can be asked for.
pub const MAX_WIDTH: usize = 4096;
/// Width of a column of `-O` that gives none.
const LONG_FORMAT_WIDTH: usize = 20;

/// How a cell fills its column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// Columns of the terminal; None prints the text as it is.
    pub width: Option<usize>,
    pub right: bool,
    /// What ends a cell that is cut: `+` in sacct, nothing in squeue.
    pub cut_mark: &'static str,
}

/// A part of a format: literal text, or a column of the listing's own kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<F> {
    Text(String),
    Field(F, Spec),
}

/// A format that cannot be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatError(String);

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads `-o`: `%[.][width]letter` among literal text. `%%i` is `%i`, and `%all` every letter with `|` after it, as in squeue.
///
/// # Errors
/// A letter that `known` does not know, a width above [`MAX_WIDTH`], or a `%` at the end.
pub fn parse_letters<F>(
    text: &str,
    known: impl Fn(char) -> Option<F>,
) -> Result<Vec<Piece<F>>, FormatError> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('%') {
        if start > 0 {
            pieces.push(Piece::Text(rest[..start].to_owned()));
        }
        rest = rest[start..].trim_start_matches('%');
        if let Some(after) = rest.strip_prefix("all") {
            for field in ('a'..='z').chain('A'..='Z').filter_map(&known) {
                pieces.extend([
                    Piece::Field(field, Spec::default()),
                    Piece::Text("|".to_owned()),
                ]);
            }
            rest = after;
            continue;
        }
        let how = rest.strip_prefix('.').unwrap_or(rest);
        let right = how.len() < rest.len();
        let named = how.trim_start_matches(|c: char| c.is_ascii_digit());
        let digits = &how[..how.len() - named.len()];
        let letter = named.chars().next().ok_or_else(|| {
            FormatError(format!("format {text:?} ends in the middle of a column"))
        })?;
        let field = known(letter).ok_or_else(|| {
            FormatError(format!(
                "format {text:?}: there is no column %{letter}. --help lists them"
            ))
        })?;
        pieces.push(Piece::Field(
            field,
            Spec {
                width: width(digits, text)?,
                right,
                cut_mark: "",
            },
        ));
        rest = &named[letter.len_utf8()..];
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    Ok(pieces)
}

/// Reads `-O`: `name[:[.][width][suffix]],...`; columns without a colon are 20 wide.
///
/// # Errors
/// As [`parse_letters`].
pub fn parse_names<F>(
    text: &str,
    known: impl Fn(&str) -> Result<F, String>,
) -> Result<Vec<Piece<F>>, FormatError> {
    let mut pieces = Vec::new();
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let (name, how) = part
            .split_once(':')
            .map_or((part, None), |(name, how)| (name, Some(how)));
        let field = known(name.trim()).map_err(FormatError)?;
        let Some(how) = how else {
            pieces.push(Piece::Field(
                field,
                Spec {
                    width: Some(LONG_FORMAT_WIDTH),
                    ..Spec::default()
                },
            ));
            continue;
        };
        let (right, how) = how
            .strip_prefix('.')
            .map_or((false, how), |rest| (true, rest));
        let digits = &how[..how.len() - how.trim_start_matches(|c: char| c.is_ascii_digit()).len()];
        pieces.push(Piece::Field(
            field,
            Spec {
                width: width(digits, text)?,
                right,
                cut_mark: "",
            },
        ));
        let suffix = &how[digits.len()..];
        if !suffix.is_empty() {
            pieces.push(Piece::Text(suffix.to_owned()));
        }
    }
    if pieces.is_empty() {
        return Err(FormatError("the format names no column".to_owned()));
    }
    Ok(pieces)
}

/// Reads sacct's `-o`: `name[%[-]width],...`; a negative width is to the left. Columns without a width
/// get `default(field)`.
///
/// # Errors
/// As [`parse_letters`].
pub fn parse_percent_names<F>(
    text: &str,
    known: impl Fn(&str) -> Result<F, String>,
    default: impl Fn(&F) -> Spec,
) -> Result<Vec<(F, Spec)>, FormatError> {
    let mut columns = Vec::new();
    for part in text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (name, how) = part
            .split_once('%')
            .map_or((part, ""), |(name, how)| (name, how));
        let field = known(name).map_err(FormatError)?;
        let (left, digits) = how
            .strip_prefix('-')
            .map_or((false, how), |rest| (true, rest));
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(FormatError(format!(
                "width {how:?} of {name} is not a number"
            )));
        }
        let mut spec = default(&field);
        if let Some(width) = width(digits, text)? {
            spec = Spec {
                width: Some(width),
                right: !left,
                ..spec
            };
        }
        columns.push((field, spec));
    }
    if columns.is_empty() {
        return Err(FormatError("the format names no column".to_owned()));
    }
    Ok(columns)
}

fn width(digits: &str, text: &str) -> Result<Option<usize>, FormatError> {
    if digits.is_empty() || digits.bytes().all(|b| b == b'0') {
        return Ok(None);
    }
    match digits.parse::<usize>() {
        Ok(width) if width <= MAX_WIDTH => Ok(Some(width)),
        _ => Err(FormatError(format!(
            "format {text:?}: width {digits} is more than {MAX_WIDTH}"
        ))),
    }
}

impl Spec {
    /// Adds the text to the line, cut or padded to its width.
    pub fn fill(&self, text: &str, line: &mut String) {
        let text = printable(text);
        let Some(width) = self.width else {
            line.push_str(&text);
            return;
        };
        let has = columns_of(&text);
        if has > width {
            cut(&text, width, self.cut_mark, line);
            return;
        }
        let blanks = std::iter::repeat_n(' ', width - has);
        if self.right {
            line.extend(blanks);
            line.push_str(&text);
        } else {
            line.push_str(&text);
            line.extend(blanks);
        }
    }
}

/// Columns of the terminal that a text takes.
pub(crate) fn columns_of(text: &str) -> usize {
    if text.is_ascii() {
        text.len()
    } else {
        text.width()
    }
}

/// Adds as much of the text as fits `width` together with `mark`, and blanks where a wide character leaves one.
fn cut(text: &str, width: usize, mark: &str, line: &mut String) {
    let room = width.saturating_sub(mark.width());
    // What is joined may be wider than its characters are apart: 0 and the sign that makes it a picture.
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let kept = ends
        .take_while(|end| columns_of(&text[..*end]) <= room)
        .last()
        .unwrap_or(0);
    line.push_str(&text[..kept]);
    let mut used = columns_of(&text[..kept]);
    if mark.width() <= width {
        line.push_str(mark);
        used += mark.width();
    }
    line.extend(std::iter::repeat_n(' ', width - used));
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn letters(text: &str) -> Result<Vec<Piece<char>>, FormatError> {
        parse_letters(text, |c| "iTjR".contains(c).then_some(c))
    }

    fn check(format: &str, want: Expect) {
        let text = match letters(format) {
            Err(error) => format!("error: {error}"),
            Ok(pieces) => {
                let mut line = String::new();
                for piece in pieces {
                    match piece {
                        Piece::Text(text) => line.push_str(&text),
                        Piece::Field(field, spec) => {
                            spec.fill(if field == 'i' { "98_5" } else { "PENDING" }, &mut line)
                        }
                    }
                }
                line
            }
        };
        want.assert_eq(&text);
    }

    #[test]
    fn letters_fill_their_width_as_in_squeue() {
        check("%i %T", expect!["98_5 PENDING"]);
        check("%.8i|%8i|%.3T|%3T", expect!["    98_5|98_5    |PEN|PEN"]);
        check("%%i|%%T", expect!["98_5|PENDING"]);
        check("%all", expect!["98_5|PENDING|PENDING|PENDING|"]);
        check("\"%i\",x", expect![[r#""98_5",x"#]]);
        check(
            "%Y",
            expect![[r#"error: format "%Y": there is no column %Y. --help lists them"#]],
        );
        check(
            "%i %",
            expect![[r#"error: format "%i %" ends in the middle of a column"#]],
        );
        check(
            "%99999i",
            expect![[r#"error: format "%99999i": width 99999 is more than 4096"#]],
        );
    }

    #[test]
    fn names_take_widths_and_suffixes() {
        let known = |name: &str| {
            if name == "jobid" {
                Ok('i')
            } else {
                Err(format!("no column {name:?}"))
            }
        };
        let field = |width, right| {
            Piece::Field(
                'i',
                Spec {
                    width,
                    right,
                    cut_mark: "",
                },
            )
        };
        assert_eq!(
            parse_names("jobid", known).unwrap(),
            [field(Some(20), false)]
        );
        assert_eq!(
            parse_names("jobid:#,jobid:.8", known).unwrap(),
            [
                field(None, false),
                Piece::Text("#".into()),
                field(Some(8), true)
            ]
        );
        assert_eq!(
            parse_names("nosuch", known).unwrap_err().to_string(),
            r#"no column "nosuch""#
        );
        assert!(parse_names(",", known).is_err());
    }

    #[test]
    fn a_cut_cell_carries_its_mark() {
        let spec = Spec {
            width: Some(10),
            right: true,
            cut_mark: "+",
        };
        let mut line = String::new();
        spec.fill("CANCELLED by 0", &mut line);
        assert_eq!(line, "CANCELLED+");
        line.clear();
        Spec {
            width: Some(3),
            ..Spec::default()
        }
        .fill("日本", &mut line);
        assert_eq!(
            line, "日 ",
            "a wide character that does not fit leaves a blank"
        );
        line.clear();
        Spec {
            width: Some(2),
            ..Spec::default()
        }
        .fill("0\u{fe0f}a", &mut line);
        assert_eq!(line, "0\u{fe0f}", "joined, they are two wide");
    }

    proptest! {
        #[test]
        fn any_format_is_read_or_refused(text in "\\PC{0,30}|[%.0-9iTjR :,]{0,30}") {
            let _ = letters(&text);
            let _ = parse_names(&text, |_| Ok(()));
            let _ = parse_percent_names(&text, |_| Ok(()), |_| Spec::default());
        }

        #[test]
        fn a_cell_is_as_wide_as_asked(text in "\\PC{0,30}", width in 1usize..40, right: bool, plus: bool) {
            let spec = Spec { width: Some(width), right, cut_mark: if plus { "+" } else { "" } };
            let mut line = String::new();
            spec.fill(&text, &mut line);
            // Joined characters may be narrower together than apart, never wider.
            prop_assert!(line.width() <= width, "{:?}", line);
        }
    }
}
