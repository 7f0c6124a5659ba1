//! The rows of a bill: its lines, summed by groups.

use super::MonthBill;
use gmodel::Instant;
use gpolicy::bill::BillLine;
use gwire::api::BillRow;
use std::collections::BTreeMap;

/// Rows of the lines of users and accounts that are seen, in order. Sums of amounts that were rounded before: the total is the
/// same whatever the groups.
pub(super) fn rows(
    bill: &MonthBill,
    by: &[String],
    seen: impl Fn(&str, &str) -> bool,
) -> Vec<BillRow> {
    let mut rows = BTreeMap::<BillRow, BillRow>::new();
    let corrections = bill.corrections.iter().map(|one| BillLine {
        account: one.account.clone(),
        reason: one.reason.clone(),
        amount_micro: one.amount_micro,
        ..BillLine::default()
    });
    for line in bill.lines.iter().cloned().chain(corrections) {
        if !seen(&line.user, &line.account) {
            continue;
        }
        let empty = BillRow {
            group: by.iter().map(|word| group(&line, word)).collect(),
            resource: line.resource.clone(),
            list: line.list.map(Instant),
            rate_micro: line.rate_micro,
            per_slice: line.per_slice,
            percent: line.percent,
            ending: line.ending,
            open: line.open,
            reason: line.reason.clone(),
            ..BillRow::default()
        };
        let row = rows.entry(empty.clone()).or_insert(empty);
        row.milli_ms = row.milli_ms.saturating_add(line.milli_ms);
        row.rated_milli_ms = row.rated_milli_ms.saturating_add(line.rated_milli_ms);
        row.amount_micro = row.amount_micro.saturating_add(line.amount_micro);
    }
    rows.into_values().collect()
}

fn group(line: &BillLine, word: &str) -> String {
    match word {
        "account" => line.account.clone(),
        "user" => line.user.clone(),
        "partition" => line.partition.clone(),
        "qos" => line.qos.clone(),
        "gpu-type" => line
            .resource
            .split('/')
            .next()
            .unwrap_or_default()
            .to_owned(),
        "tags" => line.tags.join(","),
        tag => {
            let key = tag.strip_prefix("tag:").unwrap_or(tag);
            let mut values = line.tags.iter().filter_map(|tag| tag.split_once('='));
            values
                .find(|(name, _)| *name == key)
                .map_or(String::new(), |(_, value)| value.to_owned())
        }
    }
}
