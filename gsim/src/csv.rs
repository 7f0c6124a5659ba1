//! One line of CSV as its fields (RFC 4180, without line breaks inside of fields).

use std::borrow::Cow;

/// The fields of a line. Quotation marks around a field are taken off, doubled ones inside are one.
pub fn fields(line: &str) -> Result<Vec<Cow<'_, str>>, String> {
    let line = line.strip_suffix('\r').unwrap_or(line);
    if !line.contains('"') {
        return Ok(line.split(',').map(Cow::Borrowed).collect());
    }
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        let Some(quoted) = rest.strip_prefix('"') else {
            match rest.split_once(',') {
                Some((field, more)) => {
                    fields.push(Cow::Borrowed(field));
                    rest = more;
                    continue;
                }
                None => {
                    fields.push(Cow::Borrowed(rest));
                    return Ok(fields);
                }
            }
        };
        let (field, after) = until_quote(quoted).ok_or("a quotation mark is not closed")?;
        fields.push(Cow::Owned(field));
        match after.strip_prefix(',') {
            Some(more) => rest = more,
            None if after.is_empty() => return Ok(fields),
            None => return Err("text behind a closed quotation mark".into()),
        }
    }
}

fn until_quote(text: &str) -> Option<(String, &str)> {
    let mut field = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('"')?;
        field.push_str(part);
        match after.strip_prefix('"') {
            Some(more) => {
                field.push('"');
                rest = more;
            }
            None => return Some((field, after)),
        }
    }
}

/// A field as it is written: in quotation marks where it needs them.
pub fn written(field: &str) -> Cow<'_, str> {
    if field.contains([',', '"', '\n', '\r']) {
        Cow::Owned(format!("\"{}\"", field.replace('"', "\"\"")))
    } else {
        Cow::Borrowed(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_back_as_written() {
        for list in [
            vec!["a", "", "b"],
            vec!["a,b", "say \"x\"", ""],
            vec![""],
            vec!["\"", ",", "z"],
        ] {
            let line: Vec<_> = list.iter().map(|field| written(field)).collect();
            assert_eq!(fields(&line.join(",")).unwrap(), list);
        }
        assert_eq!(fields("a,b\r").unwrap(), ["a", "b"]);
        assert!(fields("\"a").is_err() && fields("\"a\"b,c").is_err());
    }
}
