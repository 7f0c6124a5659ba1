//! A request with one value at an extreme: each number and text in turn, and other shapes in its place.

use serde_json::{Value, json};

/// The paths to all values within one, itself included.
pub fn paths(value: &Value) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut add = |key: &str, inner: &Value| {
        all.extend(
            paths(inner)
                .into_iter()
                .map(|path| format!("/{}{path}", key.replace('~', "~0").replace('/', "~1"))),
        )
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, inner)| add(key, inner)),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .for_each(|(at, inner)| add(&at.to_string(), inner)),
        _ => {}
    }
    all
}

/// What is put in a value's place.
pub fn values() -> Vec<Value> {
    let mut all: Vec<Value> = vec![
        Value::Null,
        json!([]),
        json!({}),
        json!(true),
        json!([[[[[[[[]]]]]]]]),
        json!({"": {"": ""}}),
    ];
    all.extend(
        [
            0u64,
            1,
            255,
            256,
            65_535,
            65_536,
            1 << 31,
            u64::from(u32::MAX),
            1 << 32,
            1 << 53,
            (1 << 63) - 1,
            1 << 63,
            u64::MAX,
        ]
        .map(Value::from),
    );
    all.extend([-1i64, i64::from(i32::MIN), i64::MIN].map(Value::from));
    all.extend([0.5, 1e308, -1e-308].map(Value::from));
    all.extend(texts().into_iter().map(Value::from));
    all.push(Value::Array(vec![json!("x"); 100_000]));
    all.push(Value::Array(vec![json!({"a": 1}); 10_000]));
    all
}

/// Texts for bodies, paths and queries.
pub fn texts() -> Vec<String> {
    let mut all: Vec<String> = [
        "",
        " ",
        "0",
        "-1",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "1e400",
        "NaN",
        "\0",
        "\n",
        "\u{202e}",
        "..",
        "/etc/shadow",
        "../../../../etc/passwd",
        "%",
        "%n%s",
        "'; DROP TABLE jobs; --",
        "[",
        "n[0-65535]",
        "n[0-4294967295]",
        "node1,node1,node1",
        "0-999999",
        "0-18446744073709551615:1",
        "1_18446744073709551615",
        "1_[0-999999]",
        "*",
        "all",
        "UNLIMITED",
        "infinite",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "+262142-12-31T23:59:59Z",
        "afterok:18446744073709551615",
        "h100:4294967295",
        "0.000001",
        "((((((((((a&b",
        "8.8.8.8:53",
        "[::]:1",
        "root",
    ]
    .map(str::to_owned)
    .to_vec();
    all.extend([5000, 70_000, 1_100_000].map(|bytes| "x".repeat(bytes)));
    all.extend(["(", "a&", "afterok:1,", "n1,", "%j", "\u{1}"].map(|piece| piece.repeat(20_000)));
    all
}

/// A copy with another value at a path.
pub fn with(value: &Value, path: &str, new: Value) -> Value {
    let mut copy = value.clone();
    if let Some(place) = copy.pointer_mut(path) {
        *place = new;
    }
    copy
}
