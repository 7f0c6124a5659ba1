//! Rows of a CSV file (RFC 4180) with their lines. A field with a line break is refused: its quotation mark is not closed.

use csv::{ReaderBuilder, StringRecord};

/// The rows that are not blank, each with its line, counted from 1.
pub fn rows(text: &str) -> impl Iterator<Item = (usize, Result<StringRecord, String>)> + '_ {
    // Spreadsheets put a byte order mark before the first column.
    let text = text.trim_start_matches('\u{feff}');
    let reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(text.as_bytes());
    let (mut counted, mut line) = (0, 1);
    reader.into_records().filter_map(move |row| {
        let row = match row {
            Ok(row) => row,
            Err(error) => return Some((line, Err(error.to_string()))),
        };
        // The reader's position is before the blank lines that it skips.
        let from = row.position().map_or(0, |at| at.byte() as usize);
        let blank = text.as_bytes()[from..]
            .iter()
            .take_while(|byte| matches!(byte, b'\r' | b'\n'))
            .count();
        let lines = &text.as_bytes()[counted..from + blank];
        line += lines.iter().filter(|byte| **byte == b'\n').count();
        counted = from + blank;
        if row.iter().all(|field| field.trim().is_empty()) && row.len() == 1 {
            return None;
        }
        let is_open = row.iter().any(|field| field.contains('\n'));
        let row = if is_open {
            Err("a quotation mark is not closed".to_owned())
        } else {
            Ok(row)
        };
        Some((line, row))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_their_fields_and_lines() {
        let text = "a,\"b,c\",\r\n\r\n  \n\"say \"\"x\"\"\",,\n\n\nlast,\"open\nmore\n";
        let read: Vec<(usize, Result<Vec<String>, String>)> = rows(text)
            .map(|(line, row)| (line, row.map(|row| row.iter().map(str::to_owned).collect())))
            .collect();
        let fields = |fields: [&str; 3]| Ok(fields.map(str::to_owned).to_vec());
        assert_eq!(
            read,
            [
                (1, fields(["a", "b,c", ""])),
                (4, fields(["say \"x\"", "", ""])),
                (7, Err("a quotation mark is not closed".to_owned())),
            ]
        );
    }
}
