//! The head of a batch script: `#!`, then `#GSUB` and `#SBATCH` lines with options, up to the first command.
//! Owns what counts as a directive, how its words are cut, and which texts are no scripts; never knows the
//! options. Source: sbatch(1), and the messages of sbatch for scripts that cannot be.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Largest script.
pub const MAX_SCRIPT_BYTES: usize = 4 << 20;
/// Longest directive line.
pub const MAX_LINE_BYTES: usize = 16 * 1024;
/// Most directive lines of one script.
pub const MAX_DIRECTIVES: usize = 1024;
/// Most misplaced directives that are named.
const MAX_MISPLACED: usize = 8;

/// One line of options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectiveLine {
    /// From 1.
    pub line_no: u32,
    pub kind: DirectiveKind,
    /// The words as a shell would cut them, without a trailing `# comment`.
    pub words: Vec<String>,
}

/// The batch system that the line is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectiveKind {
    /// `#GSUB`
    Gsub,
    /// `#SBATCH`
    Sbatch,
}

impl DirectiveKind {
    /// The word that begins the line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Gsub => "#GSUB",
            Self::Sbatch => "#SBATCH",
        }
    }
}

/// Checks a script and reads the directives at its head, in order.
pub fn read_directives(script: &[u8]) -> Result<Vec<DirectiveLine>, ScriptError> {
    check_script(script)?;
    let next_is_directive =
        |line_no| head(script).any(|(at, line)| at == line_no + 1 && directive(line).is_some());
    let mut directives = Vec::new();
    for (line_no, line) in head(script) {
        let Some((kind, rest)) = directive(line) else {
            continue;
        };
        let refuse = |why| ScriptError::Directive {
            line_no,
            word: kind.word(),
            why,
        };
        if directives.len() == MAX_DIRECTIVES {
            return Err(refuse(LineError::TooMany));
        }
        if line.len() > MAX_LINE_BYTES {
            return Err(refuse(LineError::TooLong { bytes: line.len() }));
        }
        let rest = str::from_utf8(rest).map_err(|_| refuse(LineError::NotUtf8))?;
        let rest = without_continuation(rest, next_is_directive(line_no));
        let words = split_words(rest).map_err(refuse)?;
        directives.push(DirectiveLine {
            line_no,
            kind,
            words,
        });
    }
    Ok(directives)
}

/// Lines that look like directives and are none: indented, or behind the first command. At most eight; for a
/// warning, since their author believes that they count.
pub fn misplaced_directives(script: &[u8]) -> Vec<u32> {
    let head_lines = head(script).count() as u32;
    let looks_like = |line: &[u8]| directive(line.trim_ascii_start()).is_some();
    let misplaced = lines(script).filter(|&(line_no, line)| {
        let counts = line_no <= head_lines && directive(line).is_some();
        looks_like(line) && !counts
    });
    misplaced
        .map(|(line_no, _)| line_no)
        .take(MAX_MISPLACED)
        .collect()
}

/// What some editors put before UTF-8; the kernel takes it for the file's first bytes.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Checks that a text can be a batch script: size, no NUL byte, `#!` first, UNIX line ends.
pub fn check_script(script: &[u8]) -> Result<(), ScriptError> {
    if script.len() > MAX_SCRIPT_BYTES {
        return Err(ScriptError::TooLarge {
            bytes: script.len(),
        });
    }
    if script.is_empty() {
        return Err(ScriptError::Empty);
    }
    if let Some(at) = script.iter().position(|&b| b == 0) {
        return Err(ScriptError::Binary { at });
    }
    if script.iter().all(u8::is_ascii_whitespace) {
        return Err(ScriptError::Blank);
    }
    if script.starts_with(BYTE_ORDER_MARK) {
        return Err(ScriptError::ByteOrderMark);
    }
    if !script.starts_with(b"#!") {
        return Err(ScriptError::NoInterpreter);
    }
    match lines(script).find(|(_, line)| line.ends_with(b"\r")) {
        Some((line_no, _)) => Err(ScriptError::DosLineEnds { line_no }),
        None => Ok(()),
    }
}

/// A text that cannot be submitted as a batch script.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScriptError {
    #[error(
        "the batch script has {bytes} bytes and {MAX_SCRIPT_BYTES} (4 MiB) are the most. Keep data in files and let the script read them"
    )]
    TooLarge { bytes: usize },
    #[error("Batch script is empty. Write #!/bin/sh and the commands to run")]
    Empty,
    #[error("Batch script contains only whitespace. Write #!/bin/sh and the commands to run")]
    Blank,
    #[error(
        "the batch script has a NUL byte at offset {at}: it is a binary file. Run a program with gsub -- PROGRAM, or from a script that begins with #!/bin/sh"
    )]
    Binary { at: usize },
    #[error(
        "This does not look like a batch script. The first line must start with #! followed by the path to an interpreter. For instance: #!/bin/sh"
    )]
    NoInterpreter,
    #[error(
        "the batch script begins with a byte order mark (EF BB BF), before #!, and so no interpreter is found. Take it away: sed -i '1s/^\\xEF\\xBB\\xBF//' SCRIPT"
    )]
    ByteOrderMark,
    #[error(
        "Batch script contains DOS line breaks (\\r\\n), the first in line {line_no}, instead of expected UNIX line breaks (\\n). Convert it, for instance with: sed -i 's/\\r$//' SCRIPT"
    )]
    DosLineEnds { line_no: u32 },
    #[error("line {line_no}: {word}: {why}")]
    Directive {
        line_no: u32,
        word: &'static str,
        why: LineError,
    },
}

/// What is wrong with one directive line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LineError {
    #[error("the quote {quote} is not closed. Close it on the same line")]
    OpenQuote { quote: char },
    #[error(
        "it ends in a backslash, and a directive cannot go on in the next line. Begin another line of the same kind"
    )]
    LastBackslash,
    #[error("it is not UTF-8. Write it in UTF-8; the rest of the script may be in any encoding")]
    NotUtf8,
    #[error("it has {bytes} bytes and {MAX_LINE_BYTES} are the most. Divide it into several lines")]
    TooLong { bytes: usize },
    #[error(
        "it is one directive more than {MAX_DIRECTIVES}, the most there can be. Put several options in a line"
    )]
    TooMany,
}

/// Cuts options into words as a shell does: blanks separate, `'...'` and `"..."` join, a backslash takes the next
/// character as it is, and `#` at the beginning of a word starts a comment. Nothing is expanded.
pub fn split_words(text: &str) -> Result<Vec<String>, LineError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_ascii_whitespace() => words.extend(word.take()),
            '#' if word.is_none() => break,
            '\'' => loop {
                let word = word.get_or_insert_default();
                match chars.next() {
                    Some('\'') => break,
                    Some(c) => word.push(c),
                    None => return Err(LineError::OpenQuote { quote: '\'' }),
                }
            },
            '"' => loop {
                let word = word.get_or_insert_default();
                match chars.next() {
                    Some('"') => break,
                    // Between double quotes a backslash is itself, except before the four characters it protects.
                    Some('\\') => word.push(
                        chars
                            .next_if(|next| "\"\\$`".contains(*next))
                            .unwrap_or('\\'),
                    ),
                    Some(c) => word.push(c),
                    None => return Err(LineError::OpenQuote { quote: '"' }),
                }
            },
            '\\' => word
                .get_or_insert_default()
                .push(chars.next().ok_or(LineError::LastBackslash)?),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// A backslash at the end says no more than that options go on, where another directive follows: sbatch takes it so.
fn without_continuation(rest: &str, next_is_directive: bool) -> &str {
    match rest.trim_end().strip_suffix('\\') {
        Some(before) if next_is_directive && before.ends_with(char::is_whitespace) => before,
        _ => rest,
    }
}

/// The lines with their numbers, without their line ends.
fn lines(script: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    script
        .split(|&b| b == b'\n')
        .enumerate()
        .map(|(i, line)| (i as u32 + 1, line))
}

/// The lines up to the first that is neither blank nor a comment.
fn head(script: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    lines(script).take_while(|(_, line)| {
        let line = line.trim_ascii_start();
        line.is_empty() || line.starts_with(b"#")
    })
}

/// The kind and the rest of a directive line. A blank or the first option must follow the word: `#SBATCHES` is a comment.
fn directive(line: &[u8]) -> Option<(DirectiveKind, &[u8])> {
    [DirectiveKind::Gsub, DirectiveKind::Sbatch]
        .into_iter()
        .find_map(|kind| {
            let rest = line.strip_prefix(kind.word().as_bytes())?;
            let ends = rest
                .first()
                .is_none_or(|&b| b.is_ascii_whitespace() || b == b'-');
            ends.then_some((kind, rest))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn check(script: &str, want: Expect) {
        want.assert_eq(&match read_directives(script.as_bytes()) {
            Ok(lines) => lines
                .iter()
                .map(|line| format!("{} {:?} {:?}\n", line.line_no, line.kind, line.words))
                .collect::<String>(),
            Err(error) => format!("error: {error}"),
        });
    }

    #[test]
    fn directives_are_read_up_to_the_first_command() {
        check(
            "#!/bin/bash\n#SBATCH -p main --gpus=h100:4\n\n# a remark\n   \n#GSUB --tag vision # why\n##SBATCH -n9\n #SBATCH -n8\n#SBATCHES\n#SBATCH-t 5\n#SBATCH\nhostname\n#SBATCH --time 1\n",
            expect![[r#"
                2 Sbatch ["-p", "main", "--gpus=h100:4"]
                6 Gsub ["--tag", "vision"]
                10 Sbatch ["-t", "5"]
                11 Sbatch []
            "#]],
        );
    }

    #[test]
    fn words_are_cut_as_a_shell_cuts_them() {
        check(
            "#!/bin/sh\n#SBATCH --comment='a b' -J \"it's \\\"x\\\" \\n\" c\\ d''e '' --x=#1 #off\n",
            expect![[r#"
                2 Sbatch ["--comment=a b", "-J", "it's \"x\" \\n", "c de", "", "--x=#1"]
            "#]],
        );
    }

    #[test]
    fn a_backslash_before_another_directive_says_nothing() {
        check(
            "#!/bin/sh\n#SBATCH -J x \\\n#SBATCH --time=5 \\\n#SBATCH -n 5\n",
            expect![[r#"
                2 Sbatch ["-J", "x"]
                3 Sbatch ["--time=5"]
                4 Sbatch ["-n", "5"]
            "#]],
        );
    }

    #[test]
    fn bad_lines_are_named() {
        check(
            "#!/bin/sh\n\n#SBATCH --comment='a b\n",
            expect!["error: line 3: #SBATCH: the quote ' is not closed. Close it on the same line"],
        );
        check(
            "#!/bin/sh\n#GSUB -J \"x\n",
            expect![[
                r#"error: line 2: #GSUB: the quote " is not closed. Close it on the same line"#
            ]],
        );
        check(
            "#!/bin/sh\n#GSUB -J x \\\n#  -n 5\n",
            expect![
                "error: line 2: #GSUB: it ends in a backslash, and a directive cannot go on in the next line. Begin another line of the same kind"
            ],
        );
        check(
            "#!/bin/sh\n#SBATCH -J x \\\n#SBATCH -n 5 \\\n\n#SBATCH -N 2\n",
            expect![
                "error: line 3: #SBATCH: it ends in a backslash, and a directive cannot go on in the next line. Begin another line of the same kind"
            ],
        );
        let latin1 = read_directives(b"#!/bin/sh\n# \xe9\n#SBATCH -J \xe9\n");
        assert_eq!(
            latin1.unwrap_err(),
            ScriptError::Directive {
                line_no: 3,
                word: "#SBATCH",
                why: LineError::NotUtf8
            }
        );
        assert!(
            read_directives(b"#!/bin/sh\n# \xe9\n").is_ok(),
            "comments and commands may be in any encoding"
        );
        check(
            &format!("#!/bin/sh\n#SBATCH {}\n", "x".repeat(20_000)),
            expect![
                "error: line 2: #SBATCH: it has 20008 bytes and 16384 are the most. Divide it into several lines"
            ],
        );
        check(
            &format!("#!/bin/sh\n{}", "#SBATCH -H\n".repeat(2000)),
            expect![
                "error: line 1026: #SBATCH: it is one directive more than 1024, the most there can be. Put several options in a line"
            ],
        );
    }

    #[test]
    fn texts_that_are_no_scripts_are_refused_as_sbatch_refuses_them() {
        check(
            "echo hi\n",
            expect![
                "error: This does not look like a batch script. The first line must start with #! followed by the path to an interpreter. For instance: #!/bin/sh"
            ],
        );
        check(
            "",
            expect!["error: Batch script is empty. Write #!/bin/sh and the commands to run"],
        );
        check(
            " \n\t\n",
            expect![
                "error: Batch script contains only whitespace. Write #!/bin/sh and the commands to run"
            ],
        );
        check(
            "#!/bin/sh\n#SBATCH -n1\r\nhostname\r\n",
            expect![
                r"error: Batch script contains DOS line breaks (\r\n), the first in line 2, instead of expected UNIX line breaks (\n). Convert it, for instance with: sed -i 's/\r$//' SCRIPT"
            ],
        );
        check(
            "\x7fELF\0\0",
            expect![
                "error: the batch script has a NUL byte at offset 4: it is a binary file. Run a program with gsub -- PROGRAM, or from a script that begins with #!/bin/sh"
            ],
        );
        let large = check_script(&vec![b'#'; 20 << 20]).unwrap_err().to_string();
        expect!["the batch script has 20971520 bytes and 4194304 (4 MiB) are the most. Keep data in files and let the script read them"].assert_eq(&large);
    }

    #[test]
    fn misplaced_directives_are_found() {
        let script = b"#!/bin/sh\n#SBATCH -n1\n  #SBATCH -n2\nhostname\n#GSUB -n3\n# SBATCH\n";
        assert_eq!(misplaced_directives(script), [3, 5]);
        assert_eq!(
            misplaced_directives(&b"x\n#SBATCH\n".repeat(50)).len(),
            MAX_MISPLACED
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (read_directives(&bytes), misplaced_directives(&bytes));
        }

        #[test]
        fn any_text_behind_a_directive_is_read_or_refused(text in "\\PC{0,60}|[ab'\"\\\\ #\n\t-]{0,30}") {
            let _ = read_directives(format!("#!/bin/sh\n#SBATCH {text}\n").as_bytes());
        }

        #[test]
        fn quoted_words_come_back(words in prop::collection::vec("[^']{0,12}", 0..6)) {
            let line: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
            prop_assert_eq!(split_words(&line.join(" ")), Ok(words));
        }
    }
}
