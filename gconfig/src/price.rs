//! `currency`, `[[price]]`, `[[charging]]`: what things cost, and from when on.
//!
//! Owns their keys and bounds, and that a list of prices that was used is not rewritten. What a run costs is gpolicy's affair.

use crate::error::Errors;
use crate::section::Section;
use gmodel::Timestamp;
use gmodel::policy::PriceBook;
use gmodel::policy::price::{
    CHARGING, CPU, Charging, MEMORY, Price, PriceCondition, Prices, WeekHours,
};
use std::collections::BTreeMap;
use std::ops::Range;

const PRICE_KEYS: [&str; 11] = [
    "gpu_type",
    "from",
    "per_gpu_hour",
    "per_slice_hour",
    "per_cpu_hour",
    "per_gib_hour",
    "mig",
    "share",
    "partition",
    "qos",
    "hours",
];
const RATES: [&str; 4] = [
    "per_gpu_hour",
    "per_slice_hour",
    "per_cpu_hour",
    "per_gib_hour",
];
const CHARGING_KEYS: [&str; 4] = ["from", "node_fault", "preempted", "requeued"];
/// Most for an hour of one thing.
const MAX_RATE: u64 = 1_000_000;
const MAX_PRICES: usize = 1_000;
const MAX_CURRENCY_CHARS: usize = 8;

/// Where each list begins in the file, by kind and date.
type ListSpans = BTreeMap<(String, Timestamp), Range<usize>>;

pub fn read(main: &Section, errors: &mut Errors) -> PriceBook {
    let mut spans = ListSpans::new();
    let book = PriceBook {
        currency: currency(main, errors),
        prices: prices(main, &mut spans, errors),
        charging: charging(main, &mut spans, errors),
    };
    check_used(main, &book, &spans, errors);
    book
}

fn currency(main: &Section, errors: &mut Errors) -> String {
    let text = main.text("currency", errors).unwrap_or_default();
    let is_odd = |c: char| c.is_control() || c.is_whitespace() || c == ',' || c == '"';
    if text.chars().count() > MAX_CURRENCY_CHARS || text.chars().any(is_odd) {
        errors.add(
            main.source,
            main.span("currency"),
            format!("currency = {text:?} is too long, or has odd characters"),
            "as \"EUR\"; 8 characters at most",
        );
        return String::new();
    }
    text
}

/// `[[price]]`: by kind, each list in the order of its dates, and within a date in the order of the file.
fn prices(main: &Section, spans: &mut ListSpans, errors: &mut Errors) -> Prices {
    let mut prices = Prices::new();
    let tables = main.listed_tables("price", errors);
    if let Some((_, span)) = tables.get(MAX_PRICES) {
        errors.add(
            main.source,
            span.clone(),
            format!("there are more than {MAX_PRICES} [[price]]"),
            "leave some out",
        );
    }
    for (table, span) in tables.into_iter().take(MAX_PRICES) {
        let section = Section::open(main.source, table, &PRICE_KEYS, "[[price]]", errors);
        let from = needed(&section, "[[price]]", "from", &span, errors)
            .then(|| section.moment("from", errors))
            .flatten();
        let Some((kind, rate, micro_per_hour)) = rate(&section, &span, errors) else {
            continue;
        };
        let when = condition(&section, &kind, rate, errors);
        let Some(from) = from else { continue };
        let list = prices.entry(kind.clone()).or_default();
        let price = Price {
            from,
            micro_per_hour,
            per_slice: rate == "per_slice_hour",
            when,
        };
        let same = |other: &&Price| other.from == from && other.when == price.when;
        if list
            .iter()
            .any(|other| other.from == from && other.when.is_none() && !price.when.is_none())
        {
            errors.add(
                main.source,
                span.clone(),
                format!("this price of {kind} never counts: one without conditions stands before it, and the first that holds counts"),
                "move it up: the particular before the general",
            );
        }
        if list.iter().any(|other| same(&other)) {
            errors.add(
                main.source,
                section.span("from"),
                format!("two prices of {kind} begin at the same time under the same conditions"),
                "keep one of them",
            );
        }
        spans.entry((kind, from)).or_insert(section.span("from"));
        list.push(price);
        list.sort_by_key(|price| price.from);
    }
    prices
}

fn needed(
    section: &Section,
    head: &str,
    key: &str,
    span: &Range<usize>,
    errors: &mut Errors,
) -> bool {
    if !section.has(key) {
        errors.add(
            section.source,
            span.clone(),
            format!("{head} has no {key}"),
            match key {
                "from" => "from is the date from which on it counts, as 2026-12-01",
                _ => "gpu_type, from and per_gpu_hour are needed, or from and per_cpu_hour or per_gib_hour",
            },
        );
    }
    section.has(key)
}

/// What is priced, by which key, and how much.
fn rate(
    section: &Section,
    span: &Range<usize>,
    errors: &mut Errors,
) -> Option<(String, &'static str, u64)> {
    let given: Vec<&str> = RATES.into_iter().filter(|key| section.has(key)).collect();
    let key = match given[..] {
        [] => {
            needed(section, "[[price]]", "per_gpu_hour", span, errors);
            return None;
        }
        [key] => key,
        [_, second, ..] => {
            errors.add(
                section.source,
                section.span(second),
                format!("{} and {second} are two prices", given[0]),
                "write one [[price]] for each",
            );
            return None;
        }
    };
    let of_gpus = matches!(key, "per_gpu_hour" | "per_slice_hour");
    if !of_gpus && section.has("gpu_type") {
        errors.add(
            section.source,
            section.span("gpu_type"),
            format!("{key} is not of a GPU type"),
            "leave gpu_type out",
        );
    }
    let kind = match key {
        "per_cpu_hour" => Some(CPU.to_owned()),
        "per_gib_hour" => Some(MEMORY.to_owned()),
        _ if needed(section, "[[price]]", "gpu_type", span, errors) => {
            section.gpu_type("gpu_type", errors)
        }
        _ => None,
    };
    let kind = kind?;
    if of_gpus && [CPU, MEMORY, CHARGING].contains(&kind.as_str()) {
        errors.add(
            section.source,
            section.span("gpu_type"),
            format!("{kind:?} is no GPU type here"),
            "for CPUs and memory use per_cpu_hour and per_gib_hour",
        );
        return None;
    }
    let micro = section.micro(key, MAX_RATE, errors)?;
    Some((kind, key, micro))
}

fn condition(section: &Section, kind: &str, rate: &str, errors: &mut Errors) -> PriceCondition {
    let mut refuse = |key: &str, text: String, hint: &str| {
        errors.add(section.source, section.span(key), text, hint)
    };
    if rate == "per_slice_hour" && !section.has("mig") {
        refuse(
            rate,
            "per_slice_hour is without a MIG profile".into(),
            "add mig = \"1g.10gb\", or use per_gpu_hour",
        );
    }
    if section.has("mig") && section.has("share") {
        refuse(
            "share",
            "a MIG slice is no share of a GPU".into(),
            "write one [[price]] for each",
        );
    }
    for key in ["mig", "share"] {
        if section.has(key) && [CPU, MEMORY].contains(&kind) {
            refuse(key, format!("{key} is of GPUs"), "leave it out");
        }
    }
    PriceCondition {
        mig: section.text("mig", errors),
        share: section.boolean("share", errors).unwrap_or(false),
        partition: section.text("partition", errors),
        qos: section.text("qos", errors),
        hours: hours(section, errors),
    }
}

fn hours(section: &Section, errors: &mut Errors) -> Option<WeekHours> {
    let text = section.text("hours", errors)?;
    let hours = WeekHours::parse(&text);
    if hours.is_none() {
        errors.add(
            section.source,
            section.span("hours"),
            format!("hours = {text:?} are no hours of the week"),
            "as \"mon-fri 08:00-18:00\" or \"sat,sun 00:00-24:00\"; hours over midnight are two prices",
        );
    }
    hours
}

/// `[[charging]]`, in the order of their dates.
fn charging(main: &Section, spans: &mut ListSpans, errors: &mut Errors) -> Vec<Charging> {
    let mut list: Vec<Charging> = Vec::new();
    for (table, span) in main.listed_tables("charging", errors) {
        let section = Section::open(main.source, table, &CHARGING_KEYS, "[[charging]]", errors);
        if !needed(&section, "[[charging]]", "from", &span, errors) {
            continue;
        }
        let default = Charging::default();
        let mut percent = |key, default| {
            let read = section.number(key, 0..=100, errors);
            read.and_then(|percent| u8::try_from(percent).ok())
                .unwrap_or(default)
        };
        let rules = Charging {
            node_fault: percent("node_fault", default.node_fault),
            preempted: percent("preempted", default.preempted),
            requeued: percent("requeued", default.requeued),
            ..default
        };
        let Some(from) = section.moment("from", errors) else {
            continue;
        };
        if list.iter().any(|other| other.from == from) {
            let text = "two [[charging]] begin at the same time";
            errors.add(main.source, section.span("from"), text, "keep one of them");
        }
        spans
            .entry((CHARGING.to_owned(), from))
            .or_insert(section.span("from"));
        list.push(Charging { from, ..rules });
    }
    list.sort_by_key(|rules| rules.from);
    list
}

/// What was used is as it was, and what is new begins after now.
fn check_used(main: &Section, book: &PriceBook, spans: &ListSpans, errors: &mut Errors) {
    let Some((used, now)) = errors.used_prices.clone() else {
        return;
    };
    let lists = used.lists.iter().flat_map(|(kind, lists)| {
        let lists = lists.iter();
        lists.map(move |(from, list)| (kind.as_str(), *from, list.as_slice()))
    });
    for (kind, from, list) in lists {
        let prices = book.prices.get(kind).map_or(&[][..], Vec::as_slice);
        let is: Vec<&Price> = prices.iter().filter(|price| price.from == from).collect();
        if !is.iter().copied().eq(list) {
            refuse_change(main, spans, kind, from, now, errors);
        }
    }
    for (from, rules) in &used.charging {
        if !book.charging.contains(rules) {
            refuse_change(main, spans, CHARGING, *from, now, errors);
        }
    }
    for ((kind, from), span) in spans {
        let known = used.lists.get(kind).is_some_and(|l| l.contains_key(from));
        let known = known || kind == CHARGING && used.charging.contains_key(from);
        if !known && *from <= now && used.latest(kind).is_some() {
            errors.add(
                main.source,
                span.clone(),
                format!(
                    "these prices of {kind} begin at {from}, and runs were charged by others since"
                ),
                format!(
                    "a list that is added begins later than now, as {}",
                    tomorrow(now)
                ),
            );
        }
    }
}

fn refuse_change(
    main: &Section,
    spans: &ListSpans,
    kind: &str,
    from: Timestamp,
    now: Timestamp,
    errors: &mut Errors,
) {
    let own = spans.get(&(kind.to_owned(), from));
    let near = spans.iter().find(|((other, _), _)| other == kind);
    let span = own.or(near.map(|(_, span)| span)).cloned().unwrap_or(0..0);
    let what = match (kind, own) {
        (CHARGING, Some(_)) => {
            format!("the charging rules from {from} were used and are not changed")
        }
        (_, Some(_)) => format!("the prices of {kind} from {from} were used and are not changed"),
        _ => format!("the prices of {kind} from {from} were used and are missing here"),
    };
    errors.add(
        main.source,
        span,
        what,
        format!(
            "write it as it was (gacct bill --prices), and add a new list with a later date, as from = {}",
            tomorrow(now)
        ),
    );
}

fn tomorrow(now: Timestamp) -> String {
    now.plus_secs(86_400).to_string()[..10].to_owned()
}
