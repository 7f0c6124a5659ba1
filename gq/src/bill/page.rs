//! A bill as a page to print: one file, no script, nothing from elsewhere.

use super::{hours, note, rate, status, titles};
use gcli::printable::printable;
use gmodel::policy::money_text;
use gwire::api::Bill;
use std::fmt::Write;

const STYLE: &str = "body{font:11pt/1.4 sans-serif;margin:2cm;color:#111}h1{font-size:16pt;margin:0}p{margin:.3em 0 1em}\
table{border-collapse:collapse;width:100%}th,td{padding:.25em .6em;text-align:left;border-bottom:1px solid #ccc;vertical-align:top}\
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}tfoot td{font-weight:bold;border-top:2px solid #111}\
thead{display:table-header-group}tr{break-inside:avoid}@page{margin:2cm}@media print{body{margin:0}}";

pub(super) fn page(bill: &Bill) -> String {
    let (cluster, currency) = (escaped(&bill.cluster), escaped(&bill.currency));
    let title = format!("Bill of {cluster} for {}", bill.month);
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head>\n<body>\
         <h1>{title}</h1>\n<p>{}",
        escaped(&status(bill))
    );
    if let (Some(from), Some(to)) = (bill.from, bill.to) {
        let _ = write!(text, "<br>From {} up to {}", from.0, to.0);
    }
    text.push_str("</p>\n<table><thead><tr>");
    for title in titles(bill) {
        let _ = write!(text, "<th>{}</th>", escaped(title));
    }
    let _ = writeln!(
        text,
        "<th>RESOURCE</th><th class=n>HOURS</th><th class=n>RATE</th><th class=n>AMOUNT {currency}</th><th>NOTE</th></tr></thead><tbody>"
    );
    for row in &bill.rows {
        text.push_str("<tr>");
        for cell in row.group.iter().chain([&row.resource]) {
            let _ = write!(text, "<td>{}</td>", escaped(cell));
        }
        let held = match row.resource.as_str() {
            "" => String::new(),
            _ => hours(row.milli_ms),
        };
        let _ = writeln!(
            text,
            "<td class=n>{held}</td><td class=n>{}</td><td class=n>{}</td><td>{}</td></tr>",
            rate(row),
            money_text(row.amount_micro, 2),
            escaped(&note(row))
        );
    }
    let _ = writeln!(
        text,
        "</tbody><tfoot><tr><td colspan={}>TOTAL</td><td class=n>{}</td><td></td></tr></tfoot></table>\n\
         <p>Amounts are exact to a millionth; each line was rounded once, halves away from zero.</p></body></html>",
        bill.by.len() + 3,
        money_text(bill.total_micro, 2)
    );
    text
}

/// Names and reasons are others' words.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_words_are_no_markup() {
        let bill = Bill {
            by: vec!["tag:project".into()],
            rows: vec![gwire::api::BillRow {
                group: vec!["<script>alert(1)</script>".into()],
                reason: "\"><img src=x>".into(),
                ..Default::default()
            }],
            ..Bill::default()
        };
        let page = page(&bill);
        assert!(
            !page.contains("<script") && !page.contains("<img"),
            "{page}"
        );
        assert!(page.contains("&lt;script&gt;alert(1)"));
    }
}
