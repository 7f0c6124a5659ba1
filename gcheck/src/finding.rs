//! One thing that was found, as the line that gpud reads (docs/gpu-checks.md). Never decides what it means.

use crate::Size;
use serde_json::{Map, Value};
use std::io::Write;

/// A checksum, a number, a verdict, or several of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub check: String,
    pub version: &'static str,
    /// Others are not compared with it: boards of one type may be built in unlike.
    pub class: String,
    /// The GPU at the other end, of a way between two.
    pub peer: String,
    pub checksum: Option<u64>,
    /// With its unit.
    pub value: Option<(f64, &'static str)>,
    pub pass: Option<bool>,
    pub text: String,
}

impl Finding {
    pub fn new(check: &str, size: Size) -> Self {
        Self {
            check: check.to_owned(),
            version: size.version(),
            class: String::new(),
            peer: String::new(),
            checksum: None,
            value: None,
            pass: None,
            text: String::new(),
        }
    }

    pub fn failed(check: &str, size: Size, text: String) -> Self {
        Self {
            pass: Some(false),
            text,
            ..Self::new(check, size)
        }
    }

    /// Writes it at once. Whether it is nothing wrong.
    pub fn tell(&self) -> bool {
        let mut out = std::io::stdout().lock();
        // A closed pipe ends the program elsewhere; the error is dropped here.
        let _ = writeln!(out, "{}", self.line()).and_then(|()| out.flush());
        self.pass != Some(false)
    }

    fn line(&self) -> String {
        let mut fields = Map::new();
        let mut put = |key: &str, value: Value| fields.insert(key.to_owned(), value);
        put("check", self.check.clone().into());
        put("version", self.version.into());
        if !self.class.is_empty() {
            put("class", self.class.clone().into());
        }
        if !self.peer.is_empty() {
            put("peer", self.peer.clone().into());
        }
        if let Some(sum) = self.checksum {
            put("checksum", format!("{sum:016x}").into());
        }
        if let Some((value, unit)) = self.value {
            put("value", ((value * 1000.0).round() / 1000.0).into());
            put("unit", unit.into());
        }
        if let Some(pass) = self.pass {
            put("pass", pass.into());
        }
        if !self.text.is_empty() {
            put("text", self.text.clone().into());
        }
        Value::Object(fields).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_was_found_and_nothing_else() {
        let sum = Finding {
            checksum: Some(0xab),
            pass: Some(true),
            ..Finding::new("arith.int", Size::Full)
        };
        assert_eq!(
            sum.line(),
            r#"{"check":"arith.int","checksum":"00000000000000ab","pass":true,"version":"1"}"#
        );
        let speed = Finding {
            class: "gen5x16".into(),
            value: Some((25.340_44, "GB/s")),
            ..Finding::new("copy.to-gpu", Size::Small)
        };
        assert_eq!(
            speed.line(),
            r#"{"check":"copy.to-gpu","class":"gen5x16","unit":"GB/s","value":25.34,"version":"1-small"}"#
        );
        assert_eq!(
            Finding::failed("memory", Size::Full, "a \"bit\"".into()).line(),
            r#"{"check":"memory","pass":false,"text":"a \"bit\"","version":"1"}"#
        );
    }
}
