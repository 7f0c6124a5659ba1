//! The output of a program that checks a GPU: JSON lines, one for each result, or the one document of `dcgmi diag -j`. Other lines
//! are passed over. Tolerant of unknown fields, strict about sizes; the controller judges a result.
//!
//! Source: the documents of DCGM 3 (`DCGM GPU Diagnostic`, tests by category) and 4 (`DCGM Diagnostic`, with a `test_summary`); they
//! are walked and not matched, since each release changed the shape.

use gmodel::gpu_check::{CheckResult, MAX_RESULTS, clipped};
use serde_json::Value;

/// No more of it is read.
pub const MAX_BYTES: usize = 256 << 10;

/// A number beyond this has no millionths.
const MOST: f64 = 9e12;
/// Deeper no document is walked.
const MAX_DEPTH: usize = 8;

/// The results, or why the output cannot be read.
pub fn read(output: &[u8]) -> Result<Vec<CheckResult>, String> {
    let text = String::from_utf8_lossy(output);
    let mut results = match document(&text) {
        Some(document) => of_dcgm(&document),
        None => text
            .lines()
            .filter_map(|line| serde_json::from_str(line.trim()).ok())
            .filter_map(|line| of_line(&line))
            .collect(),
    };
    results.retain(CheckResult::is_sound);
    if results.is_empty() {
        let first = text
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or("");
        let shown: String = first.chars().filter(|c| !c.is_control()).take(60).collect();
        return Err(if first.is_empty() {
            "it wrote nothing".into()
        } else {
            format!("it wrote no result; its first line is {shown:?}")
        });
    }
    results.truncate(MAX_RESULTS);
    Ok(results)
}

/// `{"check": "pcie", "version": "1", "value": 25.3, "unit": "GB/s"}`, or with `checksum`, `pass`, `text`, and `peer` of a way between two GPUs.
fn of_line(line: &Value) -> Option<CheckResult> {
    let text = |key: &str| {
        line.get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    Some(CheckResult {
        check: line.get("check")?.as_str()?.to_owned(),
        version: text("version"),
        class: text("class"),
        peer: text("peer"),
        sum: text("checksum"),
        value_micro: line
            .get("value")
            .and_then(Value::as_f64)
            .filter(|value| value.abs() < MOST / 1e6)
            .map(|value| (value * 1e6).round() as i64),
        unit: text("unit"),
        passed: line.get("pass").and_then(Value::as_bool),
        text: clipped(&text("text")),
    })
}

/// The document of dcgmi, which writes warnings before it.
fn document(text: &str) -> Option<Value> {
    let begin = text.find('{').filter(|_| text.contains("\"tests\""))?;
    let mut documents = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
    documents
        .next()?
        .ok()
        .filter(|document| document.get("check").is_none())
}

fn of_dcgm(document: &Value) -> Vec<CheckResult> {
    let mut found = Vec::new();
    walk(document, 0, &mut found);
    found
}

/// Every list of tests, wherever it stands.
fn walk(value: &Value, depth: usize, found: &mut Vec<CheckResult>) {
    if depth > MAX_DEPTH || found.len() >= MAX_RESULTS {
        return;
    }
    match value {
        Value::Array(all) => all.iter().for_each(|one| walk(one, depth + 1, found)),
        Value::Object(fields) => match fields.get("tests").and_then(Value::as_array) {
            Some(tests) => found.extend(tests.iter().filter_map(of_test)),
            None => fields.values().for_each(|one| walk(one, depth + 1, found)),
        },
        _ => {}
    }
}

/// A test failed if any part of it did. What was skipped, or is not understood, says nothing.
fn of_test(test: &Value) -> Option<CheckResult> {
    let name = test
        .get("name")?
        .as_str()?
        .to_ascii_lowercase()
        .replace(' ', "_");
    let parts = test
        .get("results")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let told = parts.iter().chain(test.get("test_summary"));
    let words: Vec<(String, String)> = told
        .filter_map(|part| {
            Some((
                part.get("status")?.as_str()?.to_ascii_lowercase(),
                said(part),
            ))
        })
        .collect();
    let failed = words.iter().find(|(status, _)| status.starts_with("fail"));
    let passed = words.iter().any(|(status, _)| status.starts_with("pass"));
    if failed.is_none() && !passed {
        return None;
    }
    let text = failed.map_or_else(String::new, |(_, words)| words.clone());
    Some(CheckResult {
        check: format!("dcgm.{name}"),
        passed: Some(failed.is_none()),
        text: clipped(&text),
        ..CheckResult::default()
    })
}

/// The first warning or remark of a part, which is a text, a list, or a list of objects with a text.
fn said(part: &Value) -> String {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(fields) => fields
            .get("warning")
            .and_then(Value::as_str)
            .map(str::to_owned),
        _ => None,
    };
    let first = |value: &Value| {
        value
            .as_array()
            .map_or_else(|| text(value), |all| all.iter().find_map(text))
    };
    ["warnings", "warning", "info"]
        .iter()
        .find_map(|key| first(part.get(key)?))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(output: &str) -> Vec<String> {
        read(output.as_bytes())
            .unwrap()
            .iter()
            .map(|result| format!("{} {}", result.check, result.words()))
            .collect()
    }

    #[test]
    fn lines_of_json_are_results_and_other_lines_are_talk() {
        let output = "begins\n{\"check\":\"arith\",\"version\":\"2\",\"checksum\":\"77ab\"}\n  {\"check\":\"pcie\",\"value\":25.34,\"unit\":\"GB/s\",\"new\":[1]}\n\
                      {\"check\":\"memory\",\"pass\":false,\"text\":\"bit 3 at 0x10\"}\n{\"check\":\"odd\"}\n{broken\n";
        assert_eq!(
            shown(output),
            [
                "arith 77ab",
                "pcie 25.34 GB/s",
                "memory failed, bit 3 at 0x10"
            ]
        );
    }

    #[test]
    fn unreadable_output_is_reported_with_its_first_line() {
        assert_eq!(read(b"").unwrap_err(), "it wrote nothing");
        assert_eq!(
            read(b"\n\nSegmentation fault\n").unwrap_err(),
            "it wrote no result; its first line is \"Segmentation fault\""
        );
        assert!(
            read(&[0xff; 4096])
                .unwrap_err()
                .starts_with("it wrote no result")
        );
        assert!(read("{\"check\":\"x\",\"value\":1e300}".as_bytes()).is_err());
        assert_eq!(
            read("{\"check\":\"x\",\"pass\":true}\n".repeat(1000).as_bytes())
                .unwrap()
                .len(),
            MAX_RESULTS
        );
    }

    #[test]
    fn documents_of_dcgm_3_and_4_are_read_and_what_was_skipped_says_nothing() {
        let three = r#"WARNING: something
            {"DCGM GPU Diagnostic": {"version": "3.3.5", "test_categories": [
                {"category": "Deployment", "tests": [{"name": "Denylist", "results": [{"gpu_ids": "0", "status": "Pass"}]}, null]},
                {"category": "Hardware", "tests": [
                    {"name": "GPU Memory", "results": [{"gpu_ids": "0", "status": "Fail", "warnings": ["found a bad row"]}]},
                    {"name": "Diagnostic", "results": [{"gpu_ids": "0", "status": "Skip"}]}]}]}}"#;
        assert_eq!(
            shown(three),
            [
                "dcgm.denylist passed",
                "dcgm.gpu_memory failed, found a bad row"
            ]
        );
        let four = r#"{"DCGM Diagnostic": {"test_categories": [{"category": "Integration", "tests": [
            {"name": "pcie", "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Fail", "warnings": [{"warning": "too slow", "error_id": 1}]}],
             "test_summary": {"status": "Fail"}}, {"name": "software", "test_summary": {"status": "Pass"}}]}]}}"#;
        assert_eq!(
            shown(four),
            ["dcgm.pcie failed, too slow", "dcgm.software passed"]
        );
        assert!(
            read(br#"{"DCGM Diagnostic": {"tests": "none", "runtime_error": "no GPU"}}"#).is_err()
        );
        let deep = "[".repeat(5000) + "{\"tests\"";
        assert!(read(deep.as_bytes()).is_err());
    }
}
