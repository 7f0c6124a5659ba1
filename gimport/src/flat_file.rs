//! The flat file of `sacctmgr dump`: a title, a dash and a name, then specifications behind colons. Source: sacctmgr(1).
//!
//! Owns the file's form. What a specification means is its readers' affair.

/// The most bytes of a file: some 100,000 users.
pub const MOST_BYTES: u64 = 16 << 20;
/// The account on top of the tree, and the user that administers anyway.
pub const ROOT: &str = "root";

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlatTitle {
    Qos,
    Cluster,
    Parent,
    Account,
    User,
}

#[derive(Debug, PartialEq, Eq)]
pub struct FlatLine {
    pub number: usize,
    pub title: FlatTitle,
    pub name: String,
    /// `Key=value`, without the quotes.
    pub specs: Vec<String>,
}

/// Reads a file. What is in quotes is one word.
///
/// # Errors
/// The first line of another form.
pub fn read(text: &str) -> Result<Vec<FlatLine>, String> {
    let lines = text
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.trim()));
    let meant = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    meant
        .map(|(number, line)| {
            read_line(number, line).map_err(|why| format!("line {number}: {why}"))
        })
        .collect()
}

fn read_line(number: usize, line: &str) -> Result<FlatLine, String> {
    let (title, rest) = line
        .split_once(" - ")
        .ok_or("it has no title. Lines begin so: Account - vision:Description='...'")?;
    let title = match title.trim().to_ascii_lowercase().as_str() {
        "qos" => FlatTitle::Qos,
        "cluster" => FlatTitle::Cluster,
        "parent" => FlatTitle::Parent,
        "account" => FlatTitle::Account,
        "user" => FlatTitle::User,
        other => {
            return Err(format!(
                "{other:?} is none of QOS, Cluster, Parent, Account and User"
            ));
        }
    };
    let mut words = split(rest)?.into_iter();
    let name = words
        .next()
        .filter(|name| !name.is_empty())
        .ok_or("it names nothing")?;
    let specs = words.filter(|word| !word.is_empty()).collect();
    Ok(FlatLine {
        number,
        title,
        name,
        specs,
    })
}

/// Words between colons, without their quotes.
fn split(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for sign in text.chars() {
        match (quote, sign) {
            (None, ':') => words.push(std::mem::take(&mut word)),
            (None, '\'' | '"') => quote = Some(sign),
            (Some(open), _) if open == sign => quote = None,
            _ => word.push(sign),
        }
    }
    words.push(word);
    match quote {
        Some(open) => Err(format!("a {open} is open at its end")),
        None => Ok(words.iter().map(|word| word.trim().to_owned()).collect()),
    }
}

/// The value of a key among a line's specifications; letter case does not count.
impl FlatLine {
    pub fn value(&self, wanted: &str) -> Option<&str> {
        let pairs = self.specs.iter().filter_map(|spec| spec.split_once('='));
        let mut found = pairs.filter(|(key, _)| key.eq_ignore_ascii_case(wanted));
        found.next().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_title_a_name_and_specifications() {
        let read = |line: &str| read(line).map(|mut lines| lines.pop().unwrap());
        let line = read("Account - 'cs':Description='Computer: all of it':Fairshare=3:QOS=\"a,b\"")
            .unwrap();
        assert_eq!((line.title, line.name.as_str()), (FlatTitle::Account, "cs"));
        assert_eq!(
            line.specs,
            ["Description=Computer: all of it", "Fairshare=3", "QOS=a,b"]
        );
        assert_eq!(read("# of May\n\nuser - ada").unwrap().number, 3);
        for (text, why) in [
            ("Account cs", "line 1: it has no title"),
            ("Group - cs", "line 1: \"group\" is none of QOS"),
            ("User - ", "line 1: it has no title"),
            ("User - 'ada", "line 1: a ' is open at its end"),
            ("User - :Fairshare=1", "line 1: it names nothing"),
        ] {
            assert!(
                read(text).unwrap_err().starts_with(why),
                "{text}: {:?}",
                read(text)
            );
        }
    }
}
