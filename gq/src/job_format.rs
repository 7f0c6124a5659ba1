//! The formats of `gq -o` and `-O`: columns of the queue among literal text. Source: squeue(1).

use crate::job_column::{COLUMNS, INSTEAD, JobColumn, of_letter};
use gcli::column_format::{FormatError, Piece, parse_letters, parse_names};
use gmodel::suggest::did_you_mean;
use std::borrow::Cow;

/// How a listing of jobs or steps is printed.
pub(crate) enum ListingForm {
    Json,
    Table(&'static [JobColumn]),
    Format(JobFormat),
}

/// A queue's format: columns with widths among literal text.
pub(crate) type JobFormat = Vec<Piece<JobColumn>>;

/// Reads `-o`.
pub(crate) fn read_letters(text: &str) -> Result<JobFormat, FormatError> {
    parse_letters(text, of_letter)
}

/// Reads `-O`.
pub(crate) fn read_names(text: &str) -> Result<JobFormat, FormatError> {
    parse_names(text, |name| {
        let names = || COLUMNS.iter().map(|entry| entry.2);
        let lower = name.to_ascii_lowercase();
        // squeue knows a few columns by two names.
        let lower = match lower.as_str() {
            "user" => "username",
            "cpus-per-task" => "mincpus",
            "jobname" => "name",
            "tres" => "tres-alloc",
            "features" => "feature",
            "nodes" => "numnodes",
            "excnodes" => "exc_nodes",
            other => other,
        };
        if let Some((_, instead)) = INSTEAD.iter().find(|(known, _)| *known == lower) {
            return Err(format!("column {name:?} is not known here: {instead}"));
        }
        let found = COLUMNS
            .iter()
            .find(|entry| entry.2 == lower)
            .map(|entry| entry.0);
        found.ok_or_else(|| {
            format!(
                "there is no column {name:?}.{} --help lists them",
                did_you_mean(name, names())
            )
        })
    })
}

/// The columns of a format.
pub(crate) fn fields(pieces: &JobFormat) -> impl Iterator<Item = JobColumn> {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Field(column, _) => Some(*column),
        Piece::Text(_) => None,
    })
}

/// The line of a format, with its end.
pub(crate) fn fill<'t>(
    pieces: &JobFormat,
    line: &mut String,
    text: impl Fn(JobColumn) -> Cow<'t, str>,
) {
    for piece in pieces {
        match piece {
            Piece::Text(text) => line.push_str(text),
            Piece::Field(column, spec) => spec.fill(&text(*column), line),
        }
    }
    line.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_told_elsewhere_is_refused_with_where() {
        let refused = |name: &str| read_names(name).unwrap_err().to_string();
        assert_eq!(
            refused("jobid,DerivedEC"),
            r#"column "DerivedEC" is not known here: it is accounting's: gacct -j JOB -o derivedexitcode"#
        );
        for (name, _) in INSTEAD {
            assert!(
                COLUMNS.iter().all(|entry| entry.2 != name)
                    && refused(name).contains("is not known here: "),
                "{name}"
            );
        }
    }

    #[test]
    fn unknown_names_are_refused_with_a_guess() {
        assert_eq!(
            read_names("jobid,nodelst").unwrap_err().to_string(),
            r#"there is no column "nodelst". Did you mean "nodelist"? --help lists them"#
        );
    }

    proptest! {
        #[test]
        fn any_format_is_read_or_refused(text in "\\PC{0,40}|(%[.]?[0-9]{0,3}[a-zA-Z%]){0,8}|([a-z]{1,9}(:[.]?[0-9]{0,3})?,?){0,5}") {
            let _ = read_letters(&text);
            let _ = read_names(&text);
        }
    }
}
