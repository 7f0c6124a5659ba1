//! Tables for people: fitted to the terminal, never wrapped, coloured only there.
//!
//! Up to [`FITTED_ROWS`] rows are laid out by comfy-table; a longer listing takes its widths from these and
//! streams on, so that a queue of any length costs the memory of a short one.

use crate::column_format::{Spec, columns_of};
use crate::printable::printable;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Color, ColumnConstraint, ContentArrangement, Row, Table, Width};
use nix::fcntl::{FcntlArg, fcntl};
use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;

/// Rows that are looked at before widths are fixed.
pub const FITTED_ROWS: usize = 2_000;
/// Between columns.
const BLANK: &str = " ";
const GAP: usize = BLANK.len();
const CUT_MARK: &str = "…";

/// Where the table goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Screen {
    /// Columns of the terminal; None when the output is no terminal: then nothing is cut.
    pub width: Option<u16>,
    pub colour: bool,
}

impl Screen {
    /// What stdout is. `COLUMNS` overrides the width, `NO_COLOR` turns colour off.
    pub fn of_stdout() -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let terminal = io::stdout().is_terminal();
        let columns = std::env::var("COLUMNS")
            .ok()
            .and_then(|text| text.parse().ok())
            .filter(|&width| width >= 20);
        Self {
            width: columns.or_else(|| terminal.then(|| Table::new().width()).flatten()),
            colour: terminal && !set("NO_COLOR"),
        }
    }
}

/// Room in a pipe: with the usual 64 KiB writer and reader of a long listing take turns.
const PIPE_BYTES: i32 = 256 << 10;

/// Stdout with a large buffer. The standard handle writes at every newline.
pub fn stdout() -> io::Result<BufWriter<std::fs::File>> {
    let handle = io::stdout().as_fd().try_clone_to_owned()?;
    // Refused where the user's pipes have used their memory: then it stays as it is.
    if fcntl(&handle, FcntlArg::F_GETPIPE_SZ).is_ok_and(|bytes| bytes < PIPE_BYTES) {
        let _ = fcntl(&handle, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
    }
    Ok(BufWriter::with_capacity(128 << 10, handle.into()))
}

/// One column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub title: &'static str,
    pub right: bool,
    /// Never narrower than its content: ids and numbers mean something else when cut.
    pub whole: bool,
}

impl Column {
    /// Text, to the left; cut where the terminal is narrow.
    pub const fn text(title: &'static str) -> Self {
        Self {
            title,
            right: false,
            whole: false,
        }
    }
    /// A number or time, to the right, never cut.
    pub const fn number(title: &'static str) -> Self {
        Self {
            title,
            right: true,
            whole: true,
        }
    }
    /// Text that is never cut.
    pub const fn whole(title: &'static str) -> Self {
        Self {
            title,
            right: false,
            whole: true,
        }
    }
}

/// What a cell says about the state of things.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tint {
    #[default]
    Plain,
    Good,
    Waiting,
    Bad,
}

/// The text of a cell.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    tint: Tint,
}

impl Cell {
    /// A text with what it says.
    pub fn tinted(text: impl Into<Self>, tint: Tint) -> Self {
        Self {
            tint,
            ..text.into()
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        let text = match printable(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(text) => text,
        };
        Self {
            text,
            tint: Tint::Plain,
        }
    }
}

impl From<Cow<'_, str>> for Cell {
    fn from(text: Cow<'_, str>) -> Self {
        Self::from(text.into_owned())
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

/// A table under way. Call [`TableWriter::finish`].
pub struct TableWriter<W: Write> {
    out: W,
    columns: Vec<Column>,
    screen: Screen,
    header: bool,
    fitted: Vec<Vec<Cell>>,
    /// Set once there are too many rows to fit them all.
    widths: Option<Vec<usize>>,
    /// The line under way, kept for its room.
    line: String,
}

impl<W: Write> TableWriter<W> {
    pub fn new(out: W, columns: Vec<Column>, screen: Screen, header: bool) -> Self {
        Self {
            out,
            columns,
            screen,
            header,
            fitted: Vec::new(),
            widths: None,
            line: String::new(),
        }
    }

    /// Adds a row of as many cells as there are columns.
    ///
    /// # Errors
    /// Of writing.
    pub fn row(&mut self, cells: Vec<Cell>) -> io::Result<()> {
        debug_assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        if self.widths.is_some() {
            return self.stream_row(cells.iter().map(|cell| Cow::Borrowed(cell.text.as_str())));
        }
        self.fitted.push(cells);
        if self.fitted.len() > FITTED_ROWS {
            self.start_stream()
        } else {
            Ok(())
        }
    }

    /// Adds a row of borrowed texts: a long table copies them straight into the output.
    ///
    /// # Errors
    /// Of writing.
    pub fn row_of<'t>(
        &mut self,
        cells: impl Iterator<Item = (Cow<'t, str>, Tint)>,
    ) -> io::Result<()> {
        if self.widths.is_some() {
            return self.stream_row(cells.map(|(text, _)| text));
        }
        self.row(cells.map(|(text, tint)| Cell::tinted(text, tint)).collect())
    }

    /// Writes what is left and gives the output back.
    ///
    /// # Errors
    /// Of writing.
    pub fn finish(mut self) -> io::Result<W> {
        if self.widths.is_none() {
            self.write_fitted()?;
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn write_fitted(&mut self) -> io::Result<()> {
        let mut table = Table::new();
        table
            .load_style(NOTHING)
            .force_no_tty()
            .set_truncation_indicator(CUT_MARK);
        if self.screen.colour {
            table.enforce_styling();
        }
        if let Some(width) = self.screen.width {
            // The blank behind the last column is not printed.
            table
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_width(width.saturating_add(GAP as u16));
        }
        if self.header {
            let titles = self
                .columns
                .iter()
                .map(|column| comfy_table::Cell::new(column.title));
            let mut row = Row::from(titles.collect::<Vec<_>>());
            row.max_height(1);
            table.set_header(row);
        }
        for cells in std::mem::take(&mut self.fitted) {
            let cells: Vec<_> = cells
                .into_iter()
                .map(|cell| styled(cell, self.screen.colour))
                .collect();
            let mut row = Row::from(cells);
            row.max_height(1);
            table.add_row(row);
        }
        for (column, layout) in self.columns.iter().zip(table.column_iter_mut()) {
            layout.set_padding((0, GAP as u16));
            layout.set_cell_alignment(if column.right {
                CellAlignment::Right
            } else {
                CellAlignment::Left
            });
            layout.set_constraint(if column.whole {
                ColumnConstraint::ContentWidth
            } else {
                ColumnConstraint::LowerBoundary(Width::Fixed(column.title.len().min(4) as u16))
            });
        }
        if table.row_count() == 0 && !self.header {
            return Ok(());
        }
        for line in table.lines() {
            writeln!(self.out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn start_stream(&mut self) -> io::Result<()> {
        let mut widths: Vec<usize> = self
            .columns
            .iter()
            .map(|column| columns_of(column.title))
            .collect();
        for row in &self.fitted {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(columns_of(&cell.text));
            }
        }
        if let Some(screen) = self.screen.width {
            shrink(&mut widths, &self.columns, usize::from(screen));
        }
        self.widths = Some(widths);
        if self.header {
            let titles: Vec<&'static str> =
                self.columns.iter().map(|column| column.title).collect();
            self.stream_row(titles.into_iter().map(Cow::Borrowed))?;
        }
        for row in std::mem::take(&mut self.fitted) {
            self.stream_row(row.iter().map(|cell| Cow::Borrowed(cell.text.as_str())))?;
        }
        Ok(())
    }

    fn stream_row<'t>(&mut self, texts: impl Iterator<Item = Cow<'t, str>>) -> io::Result<()> {
        let widths = self.widths.as_ref().expect("set when streaming began");
        let line = &mut self.line;
        line.clear();
        for (at, ((text, column), &width)) in texts.zip(&self.columns).zip(widths).enumerate() {
            if at > 0 {
                line.push_str(BLANK);
            }
            let cut = self.screen.width.is_some() && !column.whole;
            let width = if cut {
                width
            } else {
                width.max(columns_of(&text))
            };
            Spec {
                width: Some(width),
                right: column.right,
                cut_mark: CUT_MARK,
            }
            .fill(&text, line);
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        self.out.write_all(line.as_bytes())
    }
}

fn styled(cell: Cell, colour: bool) -> comfy_table::Cell {
    let plain = comfy_table::Cell::new_owned(cell.text);
    match cell.tint {
        Tint::Good if colour => plain.fg(Color::Green),
        Tint::Waiting if colour => plain.fg(Color::Yellow),
        Tint::Bad if colour => plain.fg(Color::Red),
        _ => plain,
    }
}

/// Takes from the widest column that may be cut until the line fits.
fn shrink(widths: &mut [usize], columns: &[Column], screen: usize) {
    let gaps = GAP * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > screen {
        let widest = (0..widths.len())
            .filter(|&at| !columns[at].whole && widths[at] > 4)
            .max_by_key(|&at| widths[at]);
        match widest {
            Some(at) => widths[at] -= 1,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use unicode_width::UnicodeWidthStr;

    const COLUMNS: [Column; 3] = [
        Column::number("JOBID"),
        Column::text("NAME"),
        Column::text("NODELIST(REASON)"),
    ];

    fn print(rows: usize, screen: Screen, name: &str) -> String {
        let mut table = TableWriter::new(Vec::new(), COLUMNS.to_vec(), screen, true);
        for id in 1..=rows {
            table
                .row(vec![
                    id.to_string().into(),
                    name.into(),
                    Cell::tinted("(Resources)", Tint::Waiting),
                ])
                .unwrap();
        }
        String::from_utf8(table.finish().unwrap()).unwrap()
    }

    #[test]
    fn a_short_table_is_as_wide_as_its_content() {
        expect![[r#"
            JOBID NAME  NODELIST(REASON)
                1 train (Resources)
                2 train (Resources)
        "#]]
        .assert_eq(&print(2, Screen::default(), "train"));
    }

    #[test]
    fn a_narrow_terminal_cuts_names_and_never_wraps() {
        let screen = Screen {
            width: Some(40),
            colour: false,
        };
        expect![[r#"
            JOBID NAME              NODELIST(REASON)
                1 a name of words…  (Resources)
        "#]]
        .assert_eq(&print(1, screen, "a name of words that is too long"));
        let long = print(FITTED_ROWS + 1, screen, "a name of words that is too long");
        expect!["    1 a name of words … (Resources)"].assert_eq(long.lines().nth(1).unwrap());
        for text in [print(3, screen, &"x".repeat(100)), long] {
            assert!(text.lines().all(|line| line.width() <= 40), "{text}");
        }
    }

    #[test]
    fn a_long_table_streams_with_the_same_columns_and_loses_nothing_in_a_pipe() {
        let text = print(FITTED_ROWS + 5, Screen::default(), "train");
        assert_eq!(text.lines().count(), FITTED_ROWS + 6);
        assert_eq!(text.lines().next().unwrap(), "JOBID NAME  NODELIST(REASON)");
        assert_eq!(text.lines().last().unwrap(), " 2005 train (Resources)");
    }

    #[test]
    fn colour_is_asked_for_not_assumed() {
        assert!(!print(1, Screen::default(), "x").contains('\x1b'));
        assert!(
            print(
                1,
                Screen {
                    width: None,
                    colour: true
                },
                "x"
            )
            .contains('\x1b')
        );
    }

    #[test]
    fn no_rows_and_no_header_print_nothing() {
        let table = TableWriter::new(Vec::new(), COLUMNS.to_vec(), Screen::default(), false);
        assert!(table.finish().unwrap().is_empty());
    }
}
