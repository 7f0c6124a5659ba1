//! Answers of the REST API as commands read them: a list of rows, or JSON that is passed on as it comes.

use crate::failure::{Failure, Outcome};
use crate::table::stdout;
use gwire::client::Client;
use serde::de::DeserializeOwned;
use std::io::{Read, Write};

/// All rows of a listing.
///
/// # Errors
/// The controller's refusal, or a row that cannot be read.
pub fn list<T: DeserializeOwned>(client: &mut Client, path: &str) -> Result<Vec<T>, Failure> {
    let mut rows = client.rows(path)?;
    let mut list = Vec::new();
    while let Some(text) = rows.next_row()? {
        list.push(serde_json::from_slice(text).map_err(|error| {
            Failure::new(format_args!("a row of {path} cannot be read: {error}"))
        })?);
    }
    Ok(list)
}

/// Prints an answer as one line of JSON, while it comes.
///
/// # Errors
/// The controller's refusal, or a reader that went away.
pub fn print_json(client: &mut Client, path: &str) -> Outcome {
    let mut out = stdout()?;
    copy_line(client.open(path)?, &mut out)?;
    out.flush()?;
    Ok(0)
}

/// The answer as one line, whether it ends with a line break or not.
fn copy_line(mut body: impl Read, out: &mut impl Write) -> Result<(), Failure> {
    let mut chunk = vec![0; 64 << 10];
    let mut last = b' ';
    loop {
        match body.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => {
                out.write_all(&chunk[..count])?;
                last = chunk[count - 1];
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    if last != b'\n' {
        out.write_all(b"\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_one_line_whether_the_answer_ends_so_or_not() {
        for answer in ["{}", "{}\n"] {
            let mut out = Vec::new();
            copy_line(answer.as_bytes(), &mut out).unwrap();
            assert_eq!(out, b"{}\n");
        }
    }
}
