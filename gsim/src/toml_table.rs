//! A TOML table being read: typed values by key; every mistake with its line, all at once, and unknown keys with "did
//! you mean". Which keys there are follows from what is asked for.

use gmodel::duration::TimeLimit;
use gmodel::hostlist::Hostlist;
use gmodel::policy::{ALL_GPUS, GpuAmounts};
use gmodel::size::parse_bytes;
use gmodel::suggest::did_you_mean;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One table of a text.
pub struct Reader<'a> {
    text: &'a str,
    table: Option<&'a DeTable<'a>>,
    /// As it is written: `[scheduler]`; empty for the top.
    path: String,
    asked: RefCell<BTreeSet<String>>,
    mistakes: Rc<RefCell<Vec<(usize, String)>>>,
}

/// Parses a text and lets `read` take what it knows from its top table.
///
/// # Errors
/// Every mistake, a line each.
pub fn read<T>(text: &str, read: impl FnOnce(&Reader) -> T) -> Result<T, String> {
    let parsed = DeTable::parse(text).map_err(|error| error.to_string())?;
    let mistakes = Rc::new(RefCell::new(Vec::new()));
    let top = Reader {
        text,
        table: Some(parsed.get_ref()),
        path: String::new(),
        asked: RefCell::default(),
        mistakes: mistakes.clone(),
    };
    let value = read(&top);
    drop(top); // what it was not asked for is unknown
    let mut mistakes = mistakes.take();
    if mistakes.is_empty() {
        return Ok(value);
    }
    mistakes.sort();
    mistakes.dedup();
    Err(mistakes.into_iter().map(|(line, text)| format!("line {line}: {text}")).collect::<Vec<_>>().join("\n"))
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let asked = self.asked.take();
        for key in self.table.iter().flat_map(|table| table.keys()) {
            if !asked.contains::<str>(key.get_ref()) {
                let hint = did_you_mean(key.get_ref(), asked.iter().map(String::as_str));
                let of = if self.path.is_empty() { String::new() } else { format!(" in {}", self.path) };
                self.note(key.span().start, format!("unknown key {:?}{of}.{hint}", key.get_ref()));
            }
        }
    }
}

impl<'a> Reader<'a> {
    fn note(&self, at: usize, text: String) {
        let line = self.text[..at.min(self.text.len())].matches('\n').count() + 1;
        self.mistakes.borrow_mut().push((line, text));
    }

    fn value(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.borrow_mut().insert(key.to_owned());
        self.table?.get(key)
    }

    /// A mistake at the value of a key (or in the table, when it is not there).
    pub fn fail(&self, key: &str, text: impl Into<String>) {
        let at = self.value(key).or_else(|| self.table?.values().next()).map_or(0, |value| value.span().start);
        self.note(at, text.into());
    }

    fn of_type(&self, key: &str, wanted: &str) {
        let found = self.value(key).map_or("missing", |value| value.get_ref().type_str());
        self.fail(key, format!("{key} is of type {found}; write {wanted}"));
    }

    /// Knows a key without reading it. Whether it is there.
    pub fn skip(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    fn child(&self, path: String, table: Option<&'a DeTable<'a>>) -> Self {
        Self { text: self.text, table, path, asked: RefCell::default(), mistakes: self.mistakes.clone() }
    }

    /// The table under a key; an empty one when it is not there.
    pub fn table(&self, key: &str) -> Self {
        let value = self.value(key);
        let table = value.and_then(|value| value.get_ref().as_table());
        if value.is_some() && table.is_none() {
            self.of_type(key, &format!("a table [{key}]"));
        }
        self.child(format!("[{key}]"), table)
    }

    /// The tables `[key.NAME]` in the order of the text.
    pub fn tables(&self, key: &str) -> Vec<(&'a str, Self)> {
        let Some(all) = self.table(key).close().table else { return Vec::new() };
        let mut named: Vec<_> = all.iter().collect();
        named.sort_by_key(|(name, _)| name.span().start);
        let mut tables = Vec::new();
        for (name, value) in named {
            let path = format!("[{key}.{}]", name.get_ref());
            match value.get_ref().as_table() {
                Some(table) => tables.push((&**name.get_ref(), self.child(path, Some(table)))),
                None => self.note(name.span().start, format!("{:?} is not a table; write {path}", name.get_ref())),
            }
        }
        tables
    }

    /// The tables `[[key]]`.
    pub fn list(&self, key: &str) -> Vec<Self> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            self.of_type(key, &format!("tables [[{key}]]"));
            return Vec::new();
        };
        let tables = array.iter().filter_map(|item| item.get_ref().as_table());
        tables.map(|table| self.child(format!("[[{key}]]"), Some(table))).collect()
    }

    /// Takes all keys for known: they are names, not words.
    fn close(self) -> Self {
        let keys = self.table.iter().flat_map(|table| table.keys()).map(|key| key.get_ref().to_string());
        self.asked.borrow_mut().extend(keys);
        self
    }

    /// GPUs by type, in thousandths: `{ h100 = 8, gpu = 12.5 }`, or a number for all types together.
    pub fn gpu_amounts(&self, key: &str) -> Option<GpuAmounts> {
        if self.value(key)?.get_ref().as_table().is_none() {
            return self.milli(key, 1_000_000).map(|milli| GpuAmounts([(ALL_GPUS.to_owned(), milli)].into()));
        }
        let table = self.table(key).close();
        let names = table.table?.keys().map(|name| name.get_ref().to_string());
        let amounts = names.filter_map(|name| Some((name.to_ascii_lowercase(), table.milli(&name, 1_000_000)?)));
        Some(GpuAmounts(amounts.collect()))
    }

    /// A number with decimals, in thousandths.
    pub fn milli(&self, key: &str, most: u32) -> Option<u64> {
        let value = self.value(key)?.get_ref();
        let float = value.as_float().and_then(|float| float.as_str().replace('_', "").parse::<f64>().ok());
        match self.as_integer(key).map(|number| number as f64).or(float) {
            Some(number) if (0.0..=f64::from(most)).contains(&number) => return Some((number * 1000.0).round() as u64),
            Some(number) => self.fail(key, format!("{key} = {number}: 0 to {most} is allowed")),
            None => self.of_type(key, "a number without quotes"),
        }
        None
    }

    pub fn text(&self, key: &str) -> Option<String> {
        let value = self.value(key)?.get_ref().as_str();
        if value.is_none() {
            self.of_type(key, "text in quotes");
        }
        value.map(str::to_owned)
    }

    pub fn boolean(&self, key: &str) -> Option<bool> {
        let value = self.value(key)?.get_ref().as_bool();
        if value.is_none() {
            self.of_type(key, "true or false");
        }
        value
    }

    /// The value, if it is a whole number.
    pub fn as_integer(&self, key: &str) -> Option<i64> {
        let integer = self.value(key)?.get_ref().as_integer()?;
        i64::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok()
    }

    /// A whole number within bounds.
    pub fn integer(&self, key: &str, least: i64, most: i64) -> Option<i64> {
        self.value(key)?;
        match self.as_integer(key) {
            Some(number) if (least..=most).contains(&number) => return Some(number),
            Some(number) => self.fail(key, format!("{key} = {number}: {least} to {most} is allowed")),
            None => self.of_type(key, "a whole number without quotes"),
        }
        None
    }

    pub fn number(&self, key: &str, most: u32) -> Option<u32> {
        self.integer(key, 0, i64::from(most)).map(|number| number as u32)
    }

    /// One of some words, in any case.
    pub fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(key)?;
        let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(&text));
        if found.is_none() {
            let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let hint = did_you_mean(&text, names.iter().copied());
            self.fail(key, format!("{key} = {text:?}: one of {} is allowed.{hint}", names.join(", ")));
        }
        found.map(|(_, value)| *value)
    }

    /// A list of texts; one text alone is a list of one.
    pub fn texts(&self, key: &str) -> Option<Vec<String>> {
        let value = self.value(key)?.get_ref();
        if let Some(text) = value.as_str() {
            return Some(vec![text.to_owned()]);
        }
        let texts = value.as_array().map(|array| array.iter().map(|item| item.get_ref().as_str().map(str::to_owned)));
        let texts: Option<Vec<String>> = texts.and_then(|mut texts| texts.by_ref().collect());
        if texts.is_none() {
            self.of_type(key, "a list as [\"a\", \"b\"]");
        }
        texts
    }

    pub fn hostlist(&self, key: &str) -> Option<Hostlist> {
        let text = self.texts(key)?.join(",");
        self.parsed(key, Hostlist::parse(&text))
    }

    /// A size as `"80G"`, or a bare number of MiB.
    pub fn size_bytes(&self, key: &str) -> Option<u64> {
        let text = self.text_or_number(key, "a size as \"80G\"")?;
        self.parsed(key, parse_bytes(&text))
    }

    /// A time in Slurm's forms, seconds; `Some(None)` is no limit.
    pub fn time_secs(&self, key: &str) -> Option<Option<u32>> {
        let text = self.text_or_number(key, "a time as \"1-12:00\" or 90 (minutes)")?;
        let limit = self.parsed(key, TimeLimit::parse(&text))?;
        Some(limit.secs().map(|secs| u32::try_from(secs).unwrap_or(u32::MAX - 1)))
    }

    fn text_or_number(&self, key: &str, wanted: &str) -> Option<String> {
        let value = self.value(key)?.get_ref();
        let text = value.as_str().map(str::to_owned).or_else(|| self.as_integer(key).map(|n| n.to_string()));
        if text.is_none() {
            self.of_type(key, wanted);
        }
        text
    }

    pub fn parsed<T, E: std::fmt::Display>(&self, key: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.fail(key, format!("{key}: {error}"))).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_named_with_its_line() {
        let text = "a = 1\nb = \"x\"\nacount = 3\n[t]\nc = \"maybe\"\nd = 900\n[p.one]\ne = true\n[p.two]\nsizes = \"9Q\"\n";
        let errors = read(text, |top| {
            top.text("a");
            top.integer("b", 0, 5);
            top.integer("account", 0, 5);
            let t = top.table("t");
            t.word("c", &[("yes", 1), ("no", 2)]);
            t.number("d", 100);
            for (name, table) in top.tables("p") {
                table.boolean("e");
                table.size_bytes("sizes");
                assert!(["one", "two"].contains(&name));
            }
        })
        .unwrap_err();
        let lines: Vec<&str> = errors.lines().collect();
        assert_eq!(lines[0], "line 1: a is of type integer; write text in quotes");
        assert_eq!(lines[1], "line 2: b is of type string; write a whole number without quotes");
        assert_eq!(lines[2], "line 3: unknown key \"acount\". Did you mean \"account\"?");
        assert_eq!(lines[3], "line 5: c = \"maybe\": one of yes, no is allowed.");
        assert_eq!(lines[4], "line 6: d = 900: 0 to 100 is allowed");
        assert!(lines[5].starts_with("line 10: sizes: "), "{errors}");
        assert_eq!(lines.len(), 6, "{errors}");
    }

    #[test]
    fn what_is_no_toml_says_where() {
        assert!(read("a = ", |_| ()).unwrap_err().contains("line 1"));
        let amounts = read("m = { H100 = 8, gpu = 9.5 }\nn = 3", |top| (top.gpu_amounts("m"), top.gpu_amounts("n")));
        let (m, n) = amounts.unwrap();
        assert_eq!((m.as_ref().unwrap().of("h100"), m.unwrap().total(), n.unwrap().total()), (Some(8000), Some(9500), Some(3000)));
    }
}
