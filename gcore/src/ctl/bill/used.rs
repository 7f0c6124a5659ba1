//! Which lists of prices runs were charged by: those are kept as they are.

use crate::ctl::event::Event;
use crate::ctl::tx::Tx;
use gmodel::billing::UsedPrices;
use gmodel::policy::price::{CPU, MEMORY, Price, PriceBook};
use gmodel::{RunId, Timestamp};
use std::collections::BTreeSet;

/// Notes the prices in force while a run held what it had; it is over now.
pub(crate) fn note_used(tx: &mut Tx, id: RunId, from: Timestamp, to: Timestamp) {
    let files = &tx.state.config.scheduler.money;
    if files.prices.is_empty() && files.charging.is_empty() {
        return;
    }
    let billing = &tx.state.billing;
    let book = billing.prices(files);
    let used = of_run(&book, &kinds(tx, id), from, to);
    let new = billing.used.lacks(used);
    if !new.is_empty() {
        tx.emit(Event::PricesUsed {
            prices: Box::new(new),
            at: tx.now,
        });
    }
}

fn kinds(tx: &Tx, id: RunId) -> BTreeSet<String> {
    let mut kinds = BTreeSet::from([CPU.to_owned(), MEMORY.to_owned()]);
    let allocation = tx.run(id).map(|run| &run.allocation);
    for share in allocation.into_iter().flatten() {
        let Some(node) = tx.node(share.node) else {
            continue;
        };
        for slot in share.gpus.slots() {
            let gpu = node.gpus.get(usize::from(slot.0));
            kinds.extend(gpu.map(|gpu| gpu.info.gpu_type.clone()));
        }
    }
    kinds
}

fn of_run(
    book: &PriceBook,
    kinds: &BTreeSet<String>,
    from: Timestamp,
    to: Timestamp,
) -> UsedPrices {
    let mut used = UsedPrices::default();
    for kind in kinds {
        let prices = book.prices.get(kind).map_or(&[][..], Vec::as_slice);
        let first = prices.iter().rev().find(|price| price.from <= from);
        let first = first.map_or(from, |price| price.from);
        let lists = used.lists.entry(kind.clone()).or_default();
        for price in prices
            .iter()
            .filter(|price| (first..=to).contains(&price.from))
        {
            let list: &mut Vec<Price> = lists.entry(price.from).or_default();
            list.push(price.clone());
        }
    }
    used.lists.retain(|_, lists| !lists.is_empty());
    let first = book.charging.iter().rev().find(|rules| rules.from <= from);
    let first = first.map_or(from, |rules| rules.from);
    let rules = book.charging.iter();
    let rules = rules.filter(|rules| (first..=to).contains(&rules.from));
    used.charging
        .extend(rules.map(|rules| (rules.from, rules.clone())));
    used
}
