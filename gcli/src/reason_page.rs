//! gpupool-reasons(7): every pending reason with its meaning and what to do, from the table in `gmodel/src/reason.rs`.

use crate::failure::Failure;
use crate::pages::escaped;
use gmodel::ReasonCode;
use std::fmt::Write as _;
use std::path::Path;

const FILE: &str = "gpupool-reasons.7";
const HEAD: &str = ".TH GPUPOOL-REASONS 7 \"\" \"gpupool\" \"gpupool\"
.SH NAME
gpupool-reasons \\- why a job waits, or how it ended
.SH DESCRIPTION
A pending job has one reason.
.B gq
and
.B squeue
print its code,
.B \"gq --why JOB\"
prints everything that is in the job's way, with the numbers.
Jobs that are over keep the code of their end.
.SH REASONS
";
const TAIL: &str = ".SH \"SEE ALSO\"\ngq(1), gadm(8), gpuctld.toml(5), gpupool(7)\n";

/// Writes the page into a directory; returns the file's name.
///
/// # Errors
/// What stands against writing.
pub fn write(dir: &Path) -> Result<&'static str, Failure> {
    let path = dir.join(FILE);
    std::fs::write(&path, page())
        .map_err(|error| Failure::new(format_args!("cannot write {}: {error}", path.display())))?;
    Ok(FILE)
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    for code in ReasonCode::ALL {
        let _ = write!(
            page,
            ".TP\n.B {code}\n{}\n{}\n",
            escaped(code.meaning()),
            in_bold(code.advice())
        );
    }
    page + TAIL
}

/// Text with what stands between backticks in bold.
fn in_bold(text: &str) -> String {
    let fonts = ["\\fR", "\\fB"].iter().cycle().skip(1);
    let mut parts = text.split('`');
    let first = escaped(parts.next().unwrap_or_default());
    parts
        .zip(fonts)
        .fold(first, |line, (part, font)| line + font + &escaped(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_on_the_page_with_its_meaning_and_its_advice() {
        let page = page();
        for code in ReasonCode::ALL {
            let entry = format!("\n.B {code}\n{}\n", escaped(code.meaning()));
            assert!(page.contains(&entry), "{code}");
            let words = code.advice().split(' ').count();
            assert!(words >= 3 && code.advice().ends_with('.'), "{code}");
            assert_eq!(code.advice().matches('`').count() % 2, 0, "{code}");
        }
        assert!(page.contains("\\fBgq \\-\\-start\\fR") || page.contains("\\fBgq --start\\fR"));
    }
}
