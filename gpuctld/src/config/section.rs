//! One table of a file being read: typed values by key, with the place of each for messages.
//!
//! Owns types, bounds and "did you mean"; never which keys there are.

use super::error::{Errors, Source};
use gmodel::duration::TimeLimit;
use gmodel::size::parse_bytes;
use gmodel::suggest::closest;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub(super) struct Section<'a> {
    pub(super) source: &'a Source,
    table: &'a DeTable<'a>,
}

impl<'a> Section<'a> {
    /// Reports every key that is not among the known ones.
    pub(super) fn open(
        source: &'a Source,
        table: &'a DeTable<'a>,
        known: &[&str],
        what: &str,
        errors: &mut Errors,
    ) -> Self {
        for key in table.keys() {
            let word: &str = key.get_ref();
            if !known.contains(&word) {
                let hint = match closest(word, known.iter().copied()) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => format!("known keys: {}", known.join(", ")),
                };
                errors.add(source, key.span(), format!("unknown key {word:?} in {what}"), hint);
            }
        }
        Self { source, table }
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// Place of the value of a key; of the file's begin when it is not there.
    pub(super) fn span(&self, key: &str) -> Range<usize> {
        self.value(key).map_or(0..0, Spanned::span)
    }

    fn value(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(key)
    }

    fn wrong_type(&self, value: &Spanned<DeValue>, key: &str, wanted: &str, errors: &mut Errors) {
        let found = value.get_ref().type_str();
        errors.add(self.source, value.span(), format!("{key} is of type {found}"), format!("write {wanted}"));
    }

    pub(super) fn text(&self, key: &str, errors: &mut Errors) -> Option<String> {
        let value = self.value(key)?;
        match value.get_ref().as_str() {
            Some(text) => Some(text.to_owned()),
            None => {
                self.wrong_type(value, key, "text in quotes", errors);
                None
            }
        }
    }

    pub(super) fn boolean(&self, key: &str, errors: &mut Errors) -> Option<bool> {
        let value = self.value(key)?;
        let read = value.get_ref().as_bool();
        if read.is_none() {
            self.wrong_type(value, key, "true or false", errors);
        }
        read
    }

    /// A whole number within bounds.
    pub(super) fn number(&self, key: &str, bounds: RangeInclusive<u32>, errors: &mut Errors) -> Option<u32> {
        let value = self.value(key)?;
        let Some(integer) = value.get_ref().as_integer() else {
            self.wrong_type(value, key, "a whole number without quotes", errors);
            return None;
        };
        let digits = integer.as_str().replace('_', "");
        let read = i128::from_str_radix(&digits, integer.radix()).ok().and_then(|n| u32::try_from(n).ok());
        if let Some(number) = read.filter(|number| bounds.contains(number)) {
            return Some(number);
        }
        let hint = format!("{} to {} is allowed", bounds.start(), bounds.end());
        errors.add(self.source, value.span(), format!("{key} = {digits} is out of bounds"), hint);
        None
    }

    /// A size: `"80G"`, or a bare number of MiB.
    pub(super) fn size(&self, key: &str, errors: &mut Errors) -> Option<u64> {
        let value = self.value(key)?;
        let text = self.text_or_number(value, key, "a size as \"80G\"", errors)?;
        self.parsed(value, parse_bytes(&text), key, errors)
    }

    /// A time in Slurm's forms; `Some(None)` is no limit.
    pub(super) fn limit(&self, key: &str, errors: &mut Errors) -> Option<Option<u32>> {
        let value = self.value(key)?;
        let text = self.text_or_number(value, key, "a time as \"1-12:00\" or 90 (minutes)", errors)?;
        let limit = self.parsed(value, TimeLimit::parse(&text), key, errors)?;
        Some(limit.secs().map(|secs| u32::try_from(secs).unwrap_or(u32::MAX - 1)))
    }

    /// A list of texts; one text alone is a list of one.
    pub(super) fn texts(&self, key: &str, errors: &mut Errors) -> Option<Vec<String>> {
        let value = self.value(key)?;
        if let Some(text) = value.get_ref().as_str() {
            return Some(vec![text.to_owned()]);
        }
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(value, key, "a list as [\"a\", \"b\"]", errors);
            return None;
        };
        let mut texts = Vec::new();
        for item in array.iter() {
            match item.get_ref().as_str() {
                Some(text) if !text.is_empty() => texts.push(text.to_owned()),
                Some(_) => errors.add(self.source, item.span(), format!("{key} has an empty name"), "leave it out"),
                None => self.wrong_type(item, key, "text in quotes", errors),
            }
        }
        Some(texts)
    }

    /// An absolute path; empty when `allow_empty`.
    pub(super) fn path(&self, key: &str, allow_empty: bool, errors: &mut Errors) -> Option<PathBuf> {
        let text = self.text(key, errors)?;
        if text.starts_with('/') || text.is_empty() && allow_empty {
            return Some(PathBuf::from(text));
        }
        let message = format!("{key} = {text:?} is not an absolute path");
        errors.add(self.source, self.span(key), message, "begin it with /");
        None
    }

    /// One of some words, in any case.
    pub(super) fn word<T: Copy>(&self, key: &str, words: &[(&str, T)], errors: &mut Errors) -> Option<T> {
        let text = self.text(key, errors)?;
        if let Some((_, value)) = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(&text)) {
            return Some(*value);
        }
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let hint = match closest(&text, names.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("one of {}", names.join(", ")),
        };
        errors.add(self.source, self.span(key), format!("{key} = {text:?} is unknown"), hint);
        None
    }

    /// A table under a key.
    pub(super) fn table(&self, key: &str, errors: &mut Errors) -> Option<&'a DeTable<'a>> {
        let value = self.value(key)?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.wrong_type(value, key, &format!("a table [{key}]"), errors);
        }
        table
    }

    fn text_or_number(&self, value: &Spanned<DeValue>, key: &str, wanted: &str, errors: &mut Errors) -> Option<String> {
        if let Some(text) = value.get_ref().as_str() {
            return Some(text.to_owned());
        }
        if let Some(integer) = value.get_ref().as_integer().filter(|integer| integer.radix() == 10) {
            return Some(integer.as_str().replace('_', ""));
        }
        self.wrong_type(value, key, wanted, errors);
        None
    }

    fn parsed<T, E: std::fmt::Display>(
        &self,
        value: &Spanned<DeValue>,
        result: Result<T, E>,
        key: &str,
        errors: &mut Errors,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                errors.add(self.source, value.span(), format!("{key}: {error}"), "");
                None
            }
        }
    }
}
