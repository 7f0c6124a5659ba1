//! Tables as sacctmgr, sshare and sreport print them: titles above rules, right-bound columns of fixed widths, or all parted by `|`.
//!
//! Owns how a format (`account%20,user`) chooses columns and how rows are laid out; each listing has its own columns.

use gcli::Failure;
use gcli::column_format::{Spec, parse_percent_names};
use gcli::printable::printable;
use std::io::{self, Write};

/// How it is laid out.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(crate) struct TableArgs {
    /// No header line
    #[arg(short = 'n', long, visible_alias = "noheader")]
    pub no_header: bool,
    /// Columns ended by |
    #[arg(short = 'p', long)]
    pub parsable: bool,
    /// Columns parted by |
    #[arg(short = 'P', long)]
    pub parsable2: bool,
}

/// A column of rows `R`.
pub(crate) struct Column<R> {
    /// What a format calls it, in small letters.
    pub word: &'static str,
    pub title: &'static str,
    /// Characters.
    pub width: usize,
    pub left: bool,
    pub text: fn(&R) -> String,
}

impl<R> Column<R> {
    pub(crate) const fn right(
        word: &'static str,
        title: &'static str,
        width: usize,
        text: fn(&R) -> String,
    ) -> Self {
        Self {
            word,
            title,
            width,
            left: false,
            text,
        }
    }

    /// Of what Slurm can hold and gpupool cannot: as where it is not set.
    pub(crate) const fn blank(word: &'static str, title: &'static str, width: usize) -> Self {
        Self::right(word, title, width, |_| String::new())
    }
}

/// A column with its width.
pub(crate) type ChosenColumn<R> = (&'static Column<R>, Spec);

/// Reads `account%20,user%-8`; beginnings of words are enough while they are clear.
///
/// # Errors
/// A word that is no column or begins several, with `elsewhere` behind it.
pub(crate) fn choose<R>(
    format: &str,
    known: &'static [Column<R>],
    elsewhere: &str,
) -> Result<Vec<ChosenColumn<R>>, Failure> {
    let find = |name: &str| {
        let lower = name.to_ascii_lowercase();
        if let Some(found) = known.iter().find(|column| column.word == lower) {
            return Ok(found);
        }
        let mut begun = known
            .iter()
            .filter(|column| !lower.is_empty() && column.word.starts_with(&lower));
        let first = begun
            .next()
            .ok_or_else(|| format!("there is no column {name:?} here: {elsewhere}"))?;
        match begun.find(|other| other.title != first.title) {
            None => Ok(first),
            Some(other) => Err(format!(
                "{name:?} may be {} or {}: write more of it",
                first.word, other.word
            )),
        }
    };
    parse_percent_names(format, find, |column| Spec {
        width: Some(column.width),
        right: !column.left,
        cut_mark: "+",
    })
    .map_err(Failure::usage)
}

/// Prints the rows under their titles.
///
/// # Errors
/// Of writing.
pub(crate) fn print<R>(
    out: &mut impl Write,
    columns: &[ChosenColumn<R>],
    rows: &[R],
    args: TableArgs,
) -> io::Result<()> {
    let titles = columns
        .iter()
        .map(|(column, spec)| (column.title.to_owned(), spec.clone()));
    print_header(out, titles.collect(), args)?;
    for row in rows {
        let cells = columns
            .iter()
            .map(|(column, spec)| ((column.text)(row), spec.clone()));
        writeln!(out, "{}", line(cells, args))?;
    }
    Ok(())
}

/// The same of columns that are known only when the rows are: titles with their widths, texts bound to the right.
///
/// # Errors
/// Of writing.
pub(crate) fn print_texts(
    out: &mut impl Write,
    titles: &[(String, usize)],
    rows: &[Vec<String>],
    args: TableArgs,
) -> io::Result<()> {
    let spec = |width: &usize| Spec {
        width: Some(*width),
        right: true,
        cut_mark: "+",
    };
    let header = titles
        .iter()
        .map(|(title, width)| (title.clone(), spec(width)));
    print_header(out, header.collect(), args)?;
    for row in rows {
        let cells = row
            .iter()
            .zip(titles)
            .map(|(text, (_, width))| (text.clone(), spec(width)));
        writeln!(out, "{}", line(cells, args))?;
    }
    Ok(())
}

/// Titles are cut without a mark.
fn print_header(
    out: &mut impl Write,
    mut titles: Vec<(String, Spec)>,
    args: TableArgs,
) -> io::Result<()> {
    if args.no_header {
        return Ok(());
    }
    for (_, spec) in &mut titles {
        spec.cut_mark = "";
    }
    writeln!(out, "{}", line(titles.iter().cloned(), args))?;
    if !args.parsable && !args.parsable2 {
        let rules = titles
            .iter()
            .map(|(_, spec)| format!("{} ", "-".repeat(spec.width.unwrap_or_default())));
        writeln!(out, "{}", rules.collect::<String>())?;
    }
    Ok(())
}

fn line(cells: impl Iterator<Item = (String, Spec)>, args: TableArgs) -> String {
    let mut line = String::new();
    let mut cells = cells.peekable();
    while let Some((text, spec)) = cells.next() {
        if !args.parsable && !args.parsable2 {
            spec.fill(&text, &mut line);
            line.push(' ');
            continue;
        }
        line.push_str(&printable(&text));
        if cells.peek().is_some() || !args.parsable2 {
            line.push('|');
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column<(&str, u32)>] = &[
        Column {
            word: "account",
            title: "Account",
            width: 10,
            left: true,
            text: |row| row.0.to_owned(),
        },
        Column::right("rawshares", "RawShares", 10, |row| row.1.to_string()),
        Column::right("rawusage", "RawUsage", 11, |_| "7".to_owned()),
        Column::blank("partition", "Partition", 12),
    ];

    fn printed(format: &str, args: TableArgs) -> String {
        let columns = match choose(format, COLUMNS, "look elsewhere") {
            Ok(columns) => columns,
            Err(failure) => return failure.text,
        };
        let mut out = Vec::new();
        print(
            &mut out,
            &columns,
            &[("vision", 4), ("a-long-account", 12)],
            args,
        )
        .unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_stand_as_in_slurm() {
        let usual = TableArgs::default();
        assert_eq!(
            printed("Account,RawS", usual),
            "Account     RawShares \n---------- ---------- \nvision              4 \na-long-ac+         12 \n"
        );
        assert_eq!(
            printed(
                "account%4,partition%-3",
                TableArgs {
                    no_header: true,
                    ..usual
                }
            ),
            "vis+     \na-l+     \n",
            "to the right, and blank"
        );
        assert_eq!(
            printed("account%4", usual).lines().next(),
            Some("Acco "),
            "a title is cut without a mark"
        );
        assert_eq!(
            printed(
                "account,part,rawu",
                TableArgs {
                    parsable: true,
                    ..usual
                }
            ),
            "Account|Partition|RawUsage|\nvision||7|\na-long-account||7|\n"
        );
        assert_eq!(
            printed(
                "account,part",
                TableArgs {
                    parsable2: true,
                    no_header: true,
                    ..usual
                }
            ),
            "vision|\na-long-account|\n"
        );
    }

    #[test]
    fn a_column_that_is_not_there_or_not_clear_is_refused() {
        assert_eq!(
            printed("nosuch", TableArgs::default()),
            "there is no column \"nosuch\" here: look elsewhere"
        );
        assert_eq!(
            printed("raw", TableArgs::default()),
            "\"raw\" may be rawshares or rawusage: write more of it"
        );
        assert_eq!(
            printed("account%x", TableArgs::default()),
            "width \"x\" of account is not a number"
        );
    }
}
