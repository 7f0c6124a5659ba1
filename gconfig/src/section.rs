//! One table of a file being read: typed values by key, with the place of each for messages.
//!
//! Owns types, bounds and "did you mean"; never which keys there are.

use crate::error::{Errors, Local, Source};
use crate::name::{is_name, is_user};
use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime};
use gmodel::duration::TimeLimit;
use gmodel::gpu_amounts::milli_text;
use gmodel::hostlist::Hostlist;
use gmodel::policy::{ALL_GPUS, GpuAmounts};
use gmodel::size::{exact_size, parse_bytes};
use gmodel::suggest::closest;
use gmodel::{TimeZone, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Most GPUs that an amount may name, in thousandths.
const MAX_GPUS_MILLI: u64 = 1_000_000_000;

/// A table under a name of the administrator's choice.
pub struct NamedTable<'a> {
    pub name: &'a str,
    pub span: Range<usize>,
    pub table: &'a DeTable<'a>,
}

pub struct Section<'a> {
    pub source: &'a Source,
    table: &'a DeTable<'a>,
    /// `account.vision.`; nothing in a whole file.
    path: String,
}

impl<'a> Section<'a> {
    /// Reports every key that is not among the known ones.
    pub fn open(
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
                errors.add(
                    source,
                    key.span(),
                    format!("unknown key {word:?} in {what}"),
                    hint,
                );
            }
        }
        let path = what.strip_prefix('[').map_or(String::new(), |what| {
            format!("{}.", what.trim_matches(['[', ']']))
        });
        Self {
            source,
            table,
            path,
        }
    }

    /// A table below that was read already: none of its keys is reported again.
    pub(crate) fn below(&self, key: &str) -> Option<Self> {
        Some(Self {
            source: self.source,
            table: self.value(key)?.get_ref().as_table()?,
            path: format!("{}{key}.", self.path),
        })
    }

    /// The head of a table below: `[account.vision.group]`.
    pub(crate) fn head(&self, key: &str) -> String {
        format!("[{}{key}]", self.path)
    }

    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    pub fn is_number(&self, key: &str) -> bool {
        self.value(key)
            .is_some_and(|value| value.get_ref().is_integer() || value.get_ref().is_float())
    }

    /// Place of the value of a key; of the file's begin when it is not there.
    pub fn span(&self, key: &str) -> Range<usize> {
        self.value(key).map_or(0..0, Spanned::span)
    }

    fn value(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(key)
    }

    fn wrong_type(&self, value: &Spanned<DeValue>, key: &str, wanted: &str, errors: &mut Errors) {
        let found = value.get_ref().type_str();
        errors.add(
            self.source,
            value.span(),
            format!("{key} is of type {found}"),
            format!("write {wanted}"),
        );
    }

    pub fn text(&self, key: &str, errors: &mut Errors) -> Option<String> {
        let value = self.value(key)?;
        match value.get_ref().as_str() {
            Some(text) => Some(text.to_owned()),
            None => {
                self.wrong_type(value, key, "text in quotes", errors);
                None
            }
        }
    }

    pub fn boolean(&self, key: &str, errors: &mut Errors) -> Option<bool> {
        let value = self.value(key)?;
        let read = value.get_ref().as_bool();
        if read.is_none() {
            self.wrong_type(value, key, "true or false", errors);
        }
        read
    }

    /// True, false, or one of some words.
    pub fn boolean_or_word<T: Copy>(
        &self,
        key: &str,
        on: T,
        off: T,
        words: &[(&str, T)],
        errors: &mut Errors,
    ) -> Option<T> {
        let value = self.value(key)?.get_ref();
        match (value.as_bool(), value.as_str()) {
            (Some(value), _) => Some(if value { on } else { off }),
            (None, Some(_)) => self.word(key, words, errors),
            (None, None) => {
                let names: Vec<String> =
                    words.iter().map(|(word, _)| format!("{word:?}")).collect();
                self.wrong_type(
                    self.value(key)?,
                    key,
                    &format!("true, false or {}", names.join(", ")),
                    errors,
                );
                None
            }
        }
    }

    /// A whole number within bounds.
    pub fn number(
        &self,
        key: &str,
        bounds: RangeInclusive<u32>,
        errors: &mut Errors,
    ) -> Option<u32> {
        self.number_in(self.value(key)?, key, bounds, errors)
    }

    /// A list of whole numbers within bounds, one at least.
    pub fn numbers(
        &self,
        key: &str,
        bounds: RangeInclusive<u32>,
        most: usize,
        errors: &mut Errors,
    ) -> Option<Vec<u32>> {
        let value = self.value(key)?;
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(value, key, "a list as [0, 1]", errors);
            return None;
        };
        if array.is_empty() || array.len() > most {
            errors.add(
                self.source,
                value.span(),
                format!("{key} has {} numbers", array.len()),
                format!("1 to {most} are allowed"),
            );
            return None;
        }
        let read: Vec<_> = array
            .iter()
            .map(|item| self.number_in(item, key, bounds.clone(), errors))
            .collect();
        read.into_iter().collect()
    }

    fn number_in(
        &self,
        value: &Spanned<DeValue>,
        key: &str,
        bounds: RangeInclusive<u32>,
        errors: &mut Errors,
    ) -> Option<u32> {
        let Some(integer) = value.get_ref().as_integer() else {
            self.wrong_type(value, key, "a whole number without quotes", errors);
            return None;
        };
        let digits = integer.as_str().replace('_', "");
        let read = i128::from_str_radix(&digits, integer.radix())
            .ok()
            .and_then(|n| u32::try_from(n).ok());
        if let Some(number) = read.filter(|number| bounds.contains(number)) {
            return Some(number);
        }
        let hint = format!("{} to {} is allowed", bounds.start(), bounds.end());
        errors.add(
            self.source,
            value.span(),
            format!("{key} = {digits} is out of bounds"),
            hint,
        );
        None
    }

    /// A size: `"80G"`, or a bare number of MiB.
    pub fn size(&self, key: &str, errors: &mut Errors) -> Option<u64> {
        let value = self.value(key)?;
        let text = self.text_or_number(value, key, "a size as \"80G\"", errors)?;
        self.parsed(value, parse_bytes(&text), key, errors)
    }

    /// As [`Self::size`], within bounds.
    pub fn size_within(
        &self,
        key: &str,
        bounds: RangeInclusive<u64>,
        errors: &mut Errors,
    ) -> Option<u64> {
        let bytes = self.size(key, errors)?;
        if bounds.contains(&bytes) {
            return Some(bytes);
        }
        let (least, most) = (exact_size(*bounds.start()), exact_size(*bounds.end()));
        errors.add(
            self.source,
            self.span(key),
            format!("{key} = {} is out of bounds", exact_size(bytes)),
            format!("{least} to {most}"),
        );
        None
    }

    /// A time in Slurm's forms; `Some(None)` is no limit.
    pub fn limit(&self, key: &str, errors: &mut Errors) -> Option<Option<u32>> {
        let value = self.value(key)?;
        let text =
            self.text_or_number(value, key, "a time as \"1-12:00\" or 90 (minutes)", errors)?;
        let limit = self.parsed(value, TimeLimit::parse(&text), key, errors)?;
        Some(
            limit
                .secs()
                .map(|secs| u32::try_from(secs).unwrap_or(u32::MAX - 1)),
        )
    }

    /// A length of time in Slurm's forms, within bounds of seconds; 0 is none at all.
    pub fn secs(&self, key: &str, bounds: RangeInclusive<u32>, errors: &mut Errors) -> Option<u32> {
        let value = self.value(key)?;
        let text =
            self.text_or_number(value, key, "a time as \"30:00\" or 90 (minutes)", errors)?;
        let secs = match self
            .parsed(value, TimeLimit::parse(&text), key, errors)?
            .secs()
        {
            Some(secs) => u32::try_from(secs).unwrap_or(u32::MAX),
            None if text.trim() == "0" => 0,
            None => {
                errors.add(
                    self.source,
                    value.span(),
                    format!("{key} cannot be unlimited"),
                    "write a time",
                );
                return None;
            }
        };
        if bounds.contains(&secs) {
            return Some(secs);
        }
        let hint = format!("{} s to {} s is allowed", bounds.start(), bounds.end());
        errors.add(
            self.source,
            value.span(),
            format!("{key} is {secs} s, which is out of bounds"),
            hint,
        );
        None
    }

    /// A number with up to three decimals, in thousandths.
    pub fn milli(
        &self,
        key: &str,
        bounds: RangeInclusive<u64>,
        errors: &mut Errors,
    ) -> Option<u64> {
        self.milli_of(key, self.value(key)?, bounds, errors)
    }

    fn milli_of(
        &self,
        key: &str,
        value: &Spanned<DeValue>,
        bounds: RangeInclusive<u64>,
        errors: &mut Errors,
    ) -> Option<u64> {
        let text = self.number_text(key, value, errors)?;
        let Some(milli) = read_milli(&text) else {
            let hint = "write digits with at most three behind the point, as 16 or 0.125";
            errors.add(
                self.source,
                value.span(),
                format!("{key} = {text} is no such number"),
                hint,
            );
            return None;
        };
        if bounds.contains(&milli) {
            return Some(milli);
        }
        let hint = format!(
            "{} to {} is allowed",
            milli_text(*bounds.start()),
            milli_text(*bounds.end())
        );
        errors.add(
            self.source,
            value.span(),
            format!("{key} = {text} is out of bounds"),
            hint,
        );
        None
    }

    fn number_text(
        &self,
        key: &str,
        value: &Spanned<DeValue>,
        errors: &mut Errors,
    ) -> Option<String> {
        let inner = value.get_ref();
        match (inner.as_integer(), inner.as_float()) {
            (Some(integer), _) if integer.radix() == 10 => Some(integer.as_str().replace('_', "")),
            (_, Some(float)) => Some(float.as_str().replace('_', "")),
            _ => {
                self.wrong_type(value, key, "a number without quotes", errors);
                None
            }
        }
    }

    /// Money: a number with up to six decimals, in millionths; `most` in whole units.
    pub fn micro(&self, key: &str, most: u64, errors: &mut Errors) -> Option<u64> {
        let value = self.value(key)?;
        let text = self.number_text(key, value, errors)?;
        let micro = read_decimal(&text, 6).filter(|micro| *micro <= most * 1_000_000);
        if micro.is_none() {
            errors.add(
                self.source,
                value.span(),
                format!("{key} = {text} is no such number"),
                format!("0 to {most}, with at most six digits behind the point"),
            );
        }
        micro
    }

    /// GPUs: a number for all types together, or a table of numbers by type, in which `gpu` is all types.
    pub fn amounts(&self, key: &str, errors: &mut Errors) -> Option<GpuAmounts> {
        let value = self.value(key)?;
        let Some(table) = value.get_ref().as_table() else {
            if value.get_ref().as_integer().is_none() && value.get_ref().as_float().is_none() {
                self.wrong_type(value, key, "32, or { h100 = 16, gpu = 32 }", errors);
                return None;
            }
            let milli = self.milli_of(key, value, 0..=MAX_GPUS_MILLI, errors)?;
            return Some(GpuAmounts(BTreeMap::from([(ALL_GPUS.to_owned(), milli)])));
        };
        let mut amounts = BTreeMap::new();
        for (name, value) in table.iter() {
            let gpu_type = name.get_ref().to_ascii_lowercase();
            if !is_name(&gpu_type) {
                errors.add(
                    self.source,
                    name.span(),
                    format!("{:?} is no type of GPU", name.get_ref()),
                    "as h100, or gpu for all types",
                );
            } else if let Some(milli) = self.milli_of(key, value, 0..=MAX_GPUS_MILLI, errors)
                && amounts.insert(gpu_type, milli).is_some()
            {
                errors.add(
                    self.source,
                    name.span(),
                    format!("{:?} is there twice", name.get_ref()),
                    "letter case does not count",
                );
            }
        }
        Some(GpuAmounts(amounts))
    }

    /// A host list, written as one text or as a list of them.
    pub fn hosts(&self, key: &str, errors: &mut Errors) -> Option<Hostlist> {
        let text = self.texts(key, errors)?.join(",");
        match Hostlist::parse(&text) {
            Ok(hosts) => Some(hosts),
            Err(error) => {
                errors.add(
                    self.source,
                    self.span(key),
                    format!("{key}: {error}"),
                    "as \"node[01-16]\"",
                );
                None
            }
        }
    }

    /// The tables `[key.NAME]` in the order of the text, as pairs of name and value.
    pub fn named_tables(&self, key: &str, errors: &mut Errors) -> Vec<NamedTable<'a>> {
        let Some(table) = self.table_as(key, &format!("[{}{key}.NAME]", self.path), errors) else {
            return Vec::new();
        };
        let mut named = Vec::new();
        for (name, value) in table.iter() {
            match value.get_ref().as_table() {
                Some(table) => named.push(NamedTable {
                    name: name.get_ref(),
                    span: name.span(),
                    table,
                }),
                None => {
                    let name: &str = name.get_ref();
                    let text = format!("{key}.{name} is of type {}", value.get_ref().type_str());
                    errors.add(
                        self.source,
                        value.span(),
                        text,
                        format!("write a table [{}{key}.{name}]", self.path),
                    );
                }
            }
        }
        named.sort_by_key(|named| named.span.start);
        named
    }

    /// The tables of a list `[[key]]`, or of a list of inline tables.
    pub fn listed_tables(
        &self,
        key: &str,
        errors: &mut Errors,
    ) -> Vec<(&'a DeTable<'a>, Range<usize>)> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(
                value,
                key,
                &format!("tables [[{key}]], or a list of tables"),
                errors,
            );
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in array.iter() {
            match item.get_ref().as_table() {
                Some(table) => tables.push((table, item.span())),
                None => self.wrong_type(item, key, &format!("a table [[{key}]]"), errors),
            }
        }
        tables
    }

    /// A moment: TOML's date or date and time, or the same as text. Without an offset it is local time.
    pub fn moment(&self, key: &str, errors: &mut Errors) -> Option<Timestamp> {
        let value = self.value(key)?;
        let text = match (value.get_ref().as_datetime(), value.get_ref().as_str()) {
            (Some(datetime), _) => datetime.to_string(),
            (_, Some(text)) => text.to_owned(),
            _ => {
                self.wrong_type(value, key, "a time as 2026-12-01T06:00:00", errors);
                return None;
            }
        };
        let moment = read_moment(&text, errors.zone.as_deref(), errors.local);
        if moment.is_none() {
            let hint = "as 2026-12-01, 2026-12-01T06:00:00 or 2026-12-01T06:00:00Z";
            errors.add(
                self.source,
                value.span(),
                format!("{key} = {text:?} is no date or time"),
                hint,
            );
        }
        moment
    }

    /// A list of texts; one text alone is a list of one.
    pub fn texts(&self, key: &str, errors: &mut Errors) -> Option<Vec<String>> {
        Some(
            self.names(key, errors)?
                .into_iter()
                .map(|(text, _)| text)
                .collect(),
        )
    }

    /// A list of texts, each with its place.
    pub fn names(&self, key: &str, errors: &mut Errors) -> Option<Vec<(String, Range<usize>)>> {
        let value = self.value(key)?;
        if let Some(text) = value.get_ref().as_str() {
            self.must_name(text, key, value.span(), errors);
            return Some(vec![(text.to_owned(), value.span())]);
        }
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(value, key, "a list as [\"a\", \"b\"]", errors);
            return None;
        };
        let mut texts = Vec::new();
        for item in array.iter() {
            match item.get_ref().as_str() {
                Some(text) => {
                    if self.must_name(text, key, item.span(), errors) {
                        texts.push((text.to_owned(), item.span()));
                    }
                }
                None => self.wrong_type(item, key, "text in quotes", errors),
            }
        }
        Some(texts)
    }

    fn must_name(&self, text: &str, key: &str, span: Range<usize>, errors: &mut Errors) -> bool {
        if text.trim().is_empty() {
            errors.add(
                self.source,
                span,
                format!("{key} has an empty name"),
                "leave it out",
            );
            return false;
        }
        if text.contains(char::is_control) {
            errors.add(
                self.source,
                span,
                format!("{key} has the name {text:?}"),
                "names have letters that can be seen",
            );
            return false;
        }
        true
    }

    /// A type of GPU, in small letters.
    pub fn gpu_type(&self, key: &str, errors: &mut Errors) -> Option<String> {
        let text = self.text(key, errors)?.to_ascii_lowercase();
        if !is_name(&text) {
            errors.add(
                self.source,
                self.span(key),
                format!("{text:?} is no type of GPU"),
                "as h100",
            );
            return None;
        }
        Some(text)
    }

    /// An account of the system.
    pub fn user(&self, key: &str, errors: &mut Errors) -> Option<String> {
        let text = self.text(key, errors)?;
        self.must_be_user(&text, self.span(key), errors);
        Some(text)
    }

    /// Accounts of the system; none where the key is missing.
    pub fn user_names(&self, key: &str, errors: &mut Errors) -> BTreeSet<String> {
        let names = self.names(key, errors).unwrap_or_default();
        names
            .into_iter()
            .map(|(name, span)| {
                self.must_be_user(&name, span, errors);
                name
            })
            .collect()
    }

    fn must_be_user(&self, name: &str, span: Range<usize>, errors: &mut Errors) {
        if !is_user(name) {
            errors.add(
                self.source,
                span,
                format!("{name:?} is no name of a user"),
                "as the system knows it",
            );
        }
    }

    /// An absolute path; empty when `allow_empty`.
    pub fn path(&self, key: &str, allow_empty: bool, errors: &mut Errors) -> Option<PathBuf> {
        let text = self.text(key, errors)?;
        if text.contains('\0') {
            errors.add(
                self.source,
                self.span(key),
                format!("{key} = {text:?} is no path"),
                "no path has a NUL in it",
            );
            return None;
        }
        if text.starts_with('/') || text.is_empty() && allow_empty {
            return Some(PathBuf::from(text));
        }
        let message = format!("{key} = {text:?} is not an absolute path");
        errors.add(self.source, self.span(key), message, "begin it with /");
        None
    }

    /// One of some words, in any case.
    pub fn word<T: Copy>(&self, key: &str, words: &[(&str, T)], errors: &mut Errors) -> Option<T> {
        let text = self.text(key, errors)?;
        if let Some((_, value)) = words
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(&text))
        {
            return Some(*value);
        }
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let hint = match closest(&text, names.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("one of {}", names.join(", ")),
        };
        errors.add(
            self.source,
            self.span(key),
            format!("{key} = {text:?} is unknown"),
            hint,
        );
        None
    }

    /// A table under a key.
    pub fn table(&self, key: &str, errors: &mut Errors) -> Option<&'a DeTable<'a>> {
        self.table_as(key, &format!("[{}{key}]", self.path), errors)
    }

    fn table_as(&self, key: &str, written: &str, errors: &mut Errors) -> Option<&'a DeTable<'a>> {
        let value = self.value(key)?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.wrong_type(value, key, &format!("a table {written}"), errors);
        }
        table
    }

    fn text_or_number(
        &self,
        value: &Spanned<DeValue>,
        key: &str,
        wanted: &str,
        errors: &mut Errors,
    ) -> Option<String> {
        if let Some(text) = value.get_ref().as_str() {
            return Some(text.to_owned());
        }
        if let Some(integer) = value
            .get_ref()
            .as_integer()
            .filter(|integer| integer.radix() == 10)
        {
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

/// Thousandths of a decimal number that is not negative and has at most three digits behind its point.
fn read_milli(text: &str) -> Option<u64> {
    read_decimal(text, 3)
}

/// A number with up to so many decimals, in units of the last.
fn read_decimal(text: &str, places: usize) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty()
        || !digits(whole)
        || !digits(part)
        || part.trim_end_matches('0').len() > places
    {
        return None;
    }
    let part: u64 = format!("{:0<places$}", part.trim_end_matches('0'))
        .parse()
        .ok()?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(10u64.pow(places as u32))?
        .checked_add(part)
}

/// Without a zone of the site local times are the machine's, where there is one.
fn read_moment(text: &str, zone: Option<&TimeZone>, local: Local) -> Option<Timestamp> {
    let text = text.trim().replace(' ', "T");
    if let Ok(exact) = DateTime::parse_from_rfc3339(&text) {
        return Some(Timestamp(exact.timestamp_millis()));
    }
    let with_time = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M"];
    let civil = with_time
        .iter()
        .find_map(|form| NaiveDateTime::parse_from_str(&text, form).ok());
    let civil = civil.or_else(|| {
        Some(
            NaiveDate::parse_from_str(&text, "%Y-%m-%d")
                .ok()?
                .and_time(NaiveTime::MIN),
        )
    })?;
    let millis = civil.and_utc().timestamp_millis();
    zone.map_or_else(|| (local.0)(millis), |zone| Some(zone.at_local(millis)))
}
