//! `gnodes --diff`: where nodes differ from what gpuctld.toml says they should have, as a diff: `-` expected, `+` found.

use gcli::Outcome;
use gcli::answer::print_json;
use gcli::printable::printable;
use gcli::table::stdout;
use gwire::api::DifferenceRow;
use gwire::client::Client;
use serde::Deserialize;
use std::io::Write;

#[derive(Deserialize)]
struct DifferenceList {
    expected: u64,
    differences: Vec<DifferenceRow>,
}

/// Exit code 1 when there are differences, as diff(1).
pub(crate) fn print(client: &mut Client, json: bool) -> Outcome {
    let mut out = stdout()?;
    if json {
        return print_json(client, "/v1/differences");
    }
    let DifferenceList {
        expected,
        differences,
    } = client.get("/v1/differences")?;
    out.write_all(text(&differences).as_bytes())?;
    out.flush()?;
    let mut err = std::io::stderr();
    match (expected, differences.len()) {
        (0, _) => writeln!(
            err,
            "gnodes: gpuctld.toml says of no node what it should have; [expect.NAME] does"
        )?,
        (nodes, 0) => writeln!(
            err,
            "gnodes: all {nodes} nodes of which something is said are as expected"
        )?,
        _ => {}
    }
    Ok(u8::from(!differences.is_empty()))
}

fn text(rows: &[DifferenceRow]) -> String {
    let mut text = String::new();
    let mut node = "";
    for row in rows {
        if row.node != node {
            node = &row.node;
            text += &format!("{}\n", printable(node));
        }
        text += &format!(
            "- {} {}\n+ {} {}\n",
            row.what,
            printable(&row.expected),
            row.what,
            printable(&row.found)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_stand_below_their_node() {
        let row = |node: &str, what: &str, expected: &str, found: &str| DifferenceRow {
            node: node.into(),
            what: what.into(),
            expected: expected.into(),
            found: found.into(),
        };
        let rows = [
            row("n1", "gpus", "h100:8", "h100:7"),
            row("n1", "driver", "580", "570"),
            row("n2", "node", "connected", "never seen"),
        ];
        let expected = "n1\n- gpus h100:8\n+ gpus h100:7\n- driver 580\n+ driver 570\nn2\n- node connected\n+ node never seen\n";
        assert_eq!(text(&rows), expected);
    }
}
