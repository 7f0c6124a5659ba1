//! YAML as JSON has it, for specs of devices: all words are texts, and no alias makes more of a document than is written in it.

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError};
use serde_json::{Map, Value};

/// Deeper no spec is.
const MAX_DEPTH: usize = 16;

/// The first document; JSON is YAML, too.
///
/// # Errors
/// The place of what cannot be read; an alias, a key twice.
pub fn parse(text: &str) -> Result<Value, String> {
    let mut events = Parser::new_from_str(text);
    loop {
        match next(&mut events)? {
            Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
            Event::StreamEnd | Event::DocumentEnd => return Ok(Value::Null),
            event => return value(event, &mut events, 0),
        }
    }
}

type Read<'t> = Result<(Event<'t>, saphyr_parser::Span), ScanError>;

fn next<'t>(events: &mut impl Iterator<Item = Read<'t>>) -> Result<Event<'t>, String> {
    match events.next() {
        Some(Ok((event, _))) => Ok(event),
        Some(Err(e)) => Err(format!("line {}: {}", e.marker().line(), e.info())),
        None => Ok(Event::StreamEnd),
    }
}

fn value<'t>(
    event: Event<'t>,
    events: &mut impl Iterator<Item = Read<'t>>,
    depth: usize,
) -> Result<Value, String> {
    match event {
        _ if depth > MAX_DEPTH => Err(format!("more than {MAX_DEPTH} levels")),
        Event::Scalar(text, ScalarStyle::Plain, ..)
            if ["", "~", "null"].contains(&text.as_ref()) =>
        {
            Ok(Value::Null)
        }
        Event::Scalar(text, ..) => Ok(Value::String(text.into_owned())),
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match next(events)? {
                    Event::SequenceEnd => return Ok(Value::Array(items)),
                    event => items.push(value(event, events, depth + 1)?),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut map = Map::new();
            loop {
                let key = match next(events)? {
                    Event::MappingEnd => break,
                    Event::Scalar(text, ..) => text.into_owned(),
                    _ => return Err("a key is no word".to_owned()),
                };
                let event = next(events)?;
                let of_key = value(event, events, depth + 1)?;
                if map.insert(key.clone(), of_key).is_some() {
                    return Err(format!("{key} stands there twice"));
                }
            }
            // An empty value is as none.
            map.retain(|_, value| !value.is_null());
            Ok(Value::Object(map))
        }
        Event::Alias(_) => Err("it has aliases, which are not read".to_owned()),
        _ => Err("it ends too early".to_owned()),
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
        assert_eq!(parse("{\"a\": [1]}"), Ok(json!({"a": ["1"]})));
        assert_eq!(parse("a: [x, \"y\"]\n"), Ok(json!({"a": ["x", "y"]})));
    }

    #[test]
    fn what_is_not_understood_is_refused_and_nothing_grows() {
        for (text, why) in [
            ("a: 1\na: 2\n", "a stands there twice"),
            ("a: &x y\nb: *x\n", "aliases"),
            ("a: 1\n  b: 2\n", "line 2: "),
            ("a: [\n", "line "),
            ("? [a]\n: b\n", "a key is no word"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
        let deep = format!("a: {}", "[".repeat(200_000));
        assert!(parse(&deep).is_err());
        assert_eq!(parse(""), Ok(Value::Null));
        assert_eq!(parse("a:\nb: |\n  x\n  y\n"), Ok(json!({"b": "x\ny\n"})));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[-a:\"'#\\[\\] \n]{0,60}") {
            let _ = parse(&text);
        }
    }
}
