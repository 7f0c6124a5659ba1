//! As much of YAML as specs of devices are written in (`nvidia-ctk cdi generate`): block mappings and lists, plain and quoted words. All
//! words are texts. What it does not know it refuses: anchors, tags, several documents, texts over several lines.

use serde_json::{Map, Value};

const MAX_DEPTH: usize = 16;

/// JSON is read, too.
///
/// # Errors
/// The first line that is not understood.
pub fn parse(text: &str) -> Result<Value, String> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|e| e.to_string());
    }
    let mut lines: Vec<Line> = Vec::new();
    for (at, raw) in text.lines().enumerate() {
        let words = raw.trim();
        if words.is_empty() || words.starts_with('#') || words == "---" && lines.is_empty() {
            continue;
        }
        let indent = raw.len() - raw.trim_start_matches(' ').len();
        lines.push(Line {
            number: at + 1,
            indent,
            words: words.to_owned(),
        });
    }
    let mut reader = Reader { lines, at: 0 };
    let Some(first) = reader.lines.first().map(|line| line.indent) else {
        return Ok(Value::Null);
    };
    let value = reader.block(first, 0)?;
    match reader.lines.get(reader.at) {
        None => Ok(value),
        Some(line) => Err(line.odd()),
    }
}

struct Line {
    number: usize,
    indent: usize,
    words: String,
}

impl Line {
    fn odd(&self) -> String {
        format!(
            "line {}: {:.80?} is not understood",
            self.number, self.words
        )
    }

    fn item(&self) -> Option<&str> {
        match self.words.as_str() {
            "-" => Some(""),
            words => words.strip_prefix("- "),
        }
    }
}

struct Reader {
    lines: Vec<Line>,
    at: usize,
}

impl Reader {
    fn block(&mut self, indent: usize, depth: usize) -> Result<Value, String> {
        let line = &self.lines[self.at];
        match () {
            () if depth > MAX_DEPTH => Err(line.odd()),
            () if line.item().is_some() => self.list(indent, depth),
            () => self.mapping(indent, depth),
        }
    }

    fn list(&mut self, indent: usize, depth: usize) -> Result<Value, String> {
        let mut items = Vec::new();
        while let Some(line) = self
            .lines
            .get_mut(self.at)
            .filter(|line| line.indent == indent)
        {
            let Some(item) = line.item().map(str::trim_start) else {
                break;
            };
            if item.is_empty() {
                self.at += 1;
                items.push(self.below(indent, false, depth)?);
            } else if split_key(item).is_some() {
                // A mapping that begins behind the dash.
                let inner = indent + line.words.len() - item.len();
                (line.words, line.indent) = (item.to_owned(), inner);
                items.push(self.block(inner, depth + 1)?);
            } else {
                items.push(scalar(item).ok_or_else(|| line.odd())?);
                self.at += 1;
            }
        }
        Ok(Value::Array(items))
    }

    fn mapping(&mut self, indent: usize, depth: usize) -> Result<Value, String> {
        let mut map = Map::new();
        while let Some(line) = self.lines.get(self.at).filter(|line| line.indent == indent) {
            if line.item().is_some() {
                break;
            }
            let (key, rest) = split_key(&line.words).ok_or_else(|| line.odd())?;
            let (key, rest) = (key.to_owned(), rest.to_owned());
            let value = if rest.is_empty() {
                self.at += 1;
                self.below(indent, true, depth)?
            } else {
                let value = scalar(&rest).ok_or_else(|| line.odd())?;
                self.at += 1;
                value
            };
            if value.is_null() {
                continue;
            }
            if map.insert(key, value).is_some() {
                return Err(self.lines[self.at - 1].odd());
            }
        }
        Ok(Value::Object(map))
    }

    /// What stands deeper than `indent`; the list of a key may stand as deep as the key.
    fn below(&mut self, indent: usize, of_key: bool, depth: usize) -> Result<Value, String> {
        let next = self.lines.get(self.at);
        let next = next.filter(|line| {
            line.indent > indent || of_key && line.indent == indent && line.item().is_some()
        });
        match next.map(|line| line.indent) {
            Some(inner) => self.block(inner, depth + 1),
            None => Ok(Value::Null),
        }
    }
}

/// `key: rest`, `key:`; a colon within a word is part of it.
fn split_key(words: &str) -> Option<(&str, &str)> {
    if let Some(quote) = words.chars().next().filter(|c| "\"'".contains(*c)) {
        let (key, rest) = words[1..].split_once(quote)?;
        return Some((key, rest.strip_prefix(':')?.trim()));
    }
    let (key, rest) = match words.split_once(": ") {
        Some(parts) => parts,
        None => (words.strip_suffix(':')?, ""),
    };
    (!key.contains(' ')).then_some((key, rest.trim()))
}

fn scalar(words: &str) -> Option<Value> {
    let text = |text: &str| Some(Value::String(text.to_owned()));
    match words.as_bytes() {
        [b'"', ..] | [b'[', b']'] | [b'{', b'}'] => serde_json::from_str(words).ok(),
        [b'\'', inner @ .., b'\''] => text(&std::str::from_utf8(inner).ok()?.replace("''", "'")),
        [b'[', inner @ .., b']'] => {
            let inner = std::str::from_utf8(inner).ok()?;
            let items = inner.split(',').map(|item| scalar(item.trim()));
            items.collect::<Option<Vec<_>>>().map(Value::Array)
        }
        [
            b'&' | b'*' | b'!' | b'|' | b'>' | b'[' | b'{' | b'%' | b'@' | b'`' | b'\'',
            ..,
        ]
        | [] => None,
        _ => match words.split(" #").next().unwrap_or_default().trim_end() {
            "~" | "null" => Some(Value::Null),
            plain => text(plain),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_spec_as_nvidia_ctk_writes_it_is_read() {
        let text = "---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    - --link
    - ../card1::/dev/dri/by-path/pci-0000:65:00.0-card
    hookName: createContainer
  additionalGids: []
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0  # the first
  name: \"0\"
-
  name: 'it''s'
kind: nvidia.com/gpu
";
        let value = parse(text).unwrap();
        let edits = &value["containerEdits"];
        assert_eq!(edits["deviceNodes"], json!([{"path": "/dev/nvidiactl"}]));
        assert_eq!(edits["env"], json!(["NVIDIA_VISIBLE_DEVICES=void"]));
        assert_eq!(
            edits["hooks"][0]["args"][2],
            "../card1::/dev/dri/by-path/pci-0000:65:00.0-card"
        );
        assert_eq!(edits["hooks"][0]["hookName"], "createContainer");
        let devices = &value["devices"];
        assert_eq!(devices[0]["name"], "0");
        let nodes = &devices[0]["containerEdits"]["deviceNodes"];
        assert_eq!(nodes[0]["path"], "/dev/nvidia0");
        assert_eq!(devices[1]["name"], "it's");
        assert_eq!(
            (&value["kind"], &value["cdiVersion"]),
            (&json!("nvidia.com/gpu"), &json!("0.5.0"))
        );
        assert_eq!(parse("{\"a\": [1]}"), Ok(json!({"a": [1]})));
        assert_eq!(parse("a: [x, \"y\"]\n"), Ok(json!({"a": ["x", "y"]})));
    }

    #[test]
    fn what_is_not_understood_is_named_by_its_line() {
        for (text, line) in [
            ("a: |\n  b\n", 1),
            ("a: 1\na: 2\n", 2),
            ("a: &x y\n", 1),
            ("a: 1\n  b: 2\n", 2),
            ("a\n", 1),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(
                refused.starts_with(&format!("line {line}: ")),
                "{text}: {refused}"
            );
        }
        let deep: String = (0..40)
            .map(|at| format!("{}a:\n", " ".repeat(at)))
            .collect();
        assert!(parse(&deep).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[-a:\"'#\\[\\] \n]{0,60}") {
            let _ = parse(&text);
        }
    }
}
