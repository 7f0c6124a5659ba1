use super::*;
use gmodel::policy::PriceBook;
use gmodel::policy::price::{Charging, Price, PriceCondition, WeekHours};
use gmodel::time::parse_rfc3339;
use gmodel::{Month, TimeZone};
use proptest::prelude::*;

const HOUR: i64 = 3_600_000;

fn at(text: &str) -> Timestamp {
    parse_rfc3339(text).unwrap()
}

/// Central Europe in 2026: two hours ahead between the last Sundays of March and October, else one.
fn berlin() -> TimeZone {
    let (from, to) = (
        at("2026-03-29T01:00:00Z").secs(),
        at("2026-10-25T01:00:00Z").secs(),
    );
    let during = at("2025-12-01T00:00:00Z").secs()..at("2027-02-01T00:00:00Z").secs();
    TimeZone::new("Europe/Berlin", during, 86_400, move |secs| {
        if (from..to).contains(&secs) {
            7200
        } else {
            3600
        }
    })
}

fn price(from: &str, micro_per_hour: u64) -> Price {
    Price {
        from: at(from),
        micro_per_hour,
        ..Price::default()
    }
}

fn on(hours: &str, price: Price) -> Price {
    let hours = Some(WeekHours::parse(hours).unwrap());
    let when = PriceCondition {
        hours,
        ..price.when
    };
    Price { when, ..price }
}

fn book(prices: Vec<Price>) -> PriceBook {
    PriceBook {
        currency: "EUR".into(),
        prices: BTreeMap::from([("h100".to_owned(), prices)]),
        ..PriceBook::default()
    }
}

fn gpus(milli: u64) -> BilledKind {
    let held = HeldResource {
        kind: "h100".into(),
        part: String::new(),
        milli,
        pieces: milli / 1000,
    };
    BilledKind {
        account: "vision".into(),
        held: vec![held],
        ..BilledKind::default()
    }
}

fn run(from: &str, to: &str) -> BilledTime {
    let (start, end) = (at(from), at(to));
    BilledTime {
        start,
        end,
        millis: end.since_millis(start),
    }
}

/// Hours, rate and amount of each line.
fn billed(
    book: PriceBook,
    zone: &TimeZone,
    month: &str,
    runs: &[(BilledKind, BilledTime)],
) -> Vec<(i64, u64, i64)> {
    let (from, to) = Month::parse(month).unwrap().bounds(zone);
    let tariff = Tariff::new(book, zone, from, to);
    let lines = lines(&tariff, runs);
    let hours = |line: &BillLine| line.milli_ms / 1000 / HOUR;
    lines
        .iter()
        .map(|line| (hours(line), line.rate_micro, line.amount_micro))
        .collect()
}

fn lines(tariff: &Tariff, runs: &[(BilledKind, BilledTime)]) -> Vec<BillLine> {
    let mut bill = BillBook::new(tariff);
    for (kind, time) in runs {
        let kind = bill.kind(kind.clone());
        bill.add(kind, time);
    }
    bill.lines()
}

#[test]
fn a_run_is_cut_where_a_list_begins_and_where_the_month_ends() {
    let book = book(vec![
        price("2026-01-01T00:00:00Z", 2_000_000),
        price("2026-10-30T12:00:00Z", 3_000_000),
    ]);
    let runs = [(
        gpus(2000),
        run("2026-10-30T00:00:00Z", "2026-11-01T06:00:00Z"),
    )];
    let utc = TimeZone::default();
    assert_eq!(
        billed(book.clone(), &utc, "2026-10", &runs),
        [(24, 2_000_000, 48_000_000), (72, 3_000_000, 216_000_000)]
    );
    assert_eq!(
        billed(book, &utc, "2026-11", &runs),
        [(12, 3_000_000, 36_000_000)]
    );
}

#[test]
fn hours_follow_the_sites_clock_on_days_when_it_is_set() {
    let prices = vec![
        on("sun 02:00-03:00", price("2026-01-01T00:00:00Z", 5_000_000)),
        price("2026-01-01T00:00:00Z", 1_000_000),
    ];
    let whole = |month: &str| {
        let (start, end) = Month::parse(month).unwrap().bounds(&berlin());
        let time = BilledTime {
            start,
            end,
            millis: end.since_millis(start),
        };
        billed(
            book(prices.clone()),
            &berlin(),
            month,
            &[(gpus(1000), time)],
        )
    };
    // Four Sundays; on the last the hour comes twice, and the month has an hour more.
    assert_eq!(
        whole("2026-10"),
        [(740, 1_000_000, 740_000_000), (5, 5_000_000, 25_000_000)]
    );
    // Five Sundays; on the last the hour is skipped.
    assert_eq!(
        whole("2026-03"),
        [(739, 1_000_000, 739_000_000), (4, 5_000_000, 20_000_000)]
    );
}

#[test]
fn the_first_price_whose_conditions_hold_counts() {
    let when = |change: fn(&mut PriceCondition)| {
        let mut price = price("2026-01-01T00:00:00Z", 1_000_000);
        change(&mut price.when);
        price
    };
    let mut slice = when(|when| when.mig = Some("1g.10gb".into()));
    (slice.per_slice, slice.micro_per_hour) = (true, 500_000);
    let mut share = when(|when| when.share = true);
    share.micro_per_hour = 4_000_000;
    let mut night = when(|when| when.partition = Some("night".into()));
    night.micro_per_hour = 700_000;
    let mut urgent = when(|when| when.qos = Some("urgent".into()));
    urgent.micro_per_hour = 9_000_000;
    let book = book(vec![
        slice,
        share,
        night,
        urgent,
        price("2026-01-01T00:00:00Z", 2_000_000),
    ]);
    let amount = |part: &str, milli, pieces, partition: &str, qos: &str| {
        let mut kind = gpus(milli);
        kind.held[0].part = part.into();
        kind.held[0].pieces = pieces;
        (kind.partition, kind.qos) = (partition.into(), qos.into());
        let time = run("2026-10-01T00:00:00Z", "2026-10-01T10:00:00Z");
        billed(
            book.clone(),
            &TimeZone::default(),
            "2026-10",
            &[(kind, time)],
        )[0]
        .2
    };
    assert_eq!(amount("", 1000, 1, "main", "normal"), 20_000_000);
    assert_eq!(
        amount("1g.10gb", 284, 2, "night", "urgent"),
        10_000_000,
        "two slices"
    );
    assert_eq!(amount("share", 500, 1, "main", "normal"), 20_000_000);
    assert_eq!(
        amount("", 1000, 1, "night", "urgent"),
        7_000_000,
        "the first one"
    );
    assert_eq!(amount("", 1000, 1, "main", "urgent"), 90_000_000);
    assert_eq!(
        amount("2g.20gb", 285, 1, "main", "normal"),
        5_700_000,
        "as its part of a GPU"
    );
}

#[test]
fn a_fault_of_the_node_is_free_and_rules_have_a_date() {
    let mut book = book(vec![price("2026-01-01T00:00:00Z", 1_000_000)]);
    let lost = BilledKind {
        ending: Ending::NodeFault,
        ..gpus(1000)
    };
    let time = run("2026-10-01T00:00:00Z", "2026-10-01T10:00:00Z");
    let amounts = |book: &PriceBook| {
        let runs = [(lost.clone(), time)];
        let lines = billed(book.clone(), &TimeZone::default(), "2026-10", &runs);
        lines.iter().map(|line| line.2).collect::<Vec<_>>()
    };
    assert_eq!(amounts(&book), [0], "the line is there, and says it");
    book.charging = vec![Charging {
        from: at("2026-10-01T04:00:00Z"),
        node_fault: 50,
        ..Charging::default()
    }];
    assert_eq!(amounts(&book), [0, 3_000_000]);
}

#[test]
fn without_a_price_gpus_are_named_and_cpus_are_not() {
    let mut kind = gpus(1000);
    kind.held.push(HeldResource {
        kind: CPU.into(),
        part: String::new(),
        milli: 8000,
        pieces: 8,
    });
    let runs = [(kind, run("2026-10-01T00:00:00Z", "2026-10-01T10:00:00Z"))];
    let (from, to) = Month::parse("2026-10")
        .unwrap()
        .bounds(&TimeZone::default());
    let tariff = Tariff::new(PriceBook::default(), &TimeZone::default(), from, to);
    let lines = lines(&tariff, &runs);
    assert_eq!(lines.len(), 1);
    assert_eq!(
        (
            lines[0].resource.as_str(),
            lines[0].list,
            lines[0].amount_micro
        ),
        ("h100", None, 0)
    );
}

#[test]
fn amounts_are_rounded_once_and_stay_in_bounds() {
    // A third of a millionth, half a millionth, and the same below zero.
    let micro = |milli_ms, rate| amount_micro(milli_ms, rate, 100);
    assert_eq!(micro(1_200_000_000, 1), 0);
    assert_eq!(micro(1_800_000_000, 1), 1);
    assert_eq!(micro(-1_800_000_000, 1), -1);
    assert_eq!(micro(i128::MAX, u64::MAX), i64::MAX);
    assert_eq!(micro(i128::MIN, u64::MAX), i64::MIN);
    // A million GPUs for a hundred years at the highest rate.
    let century = 1_000_000_000 * 100 * 366 * 24 * i128::from(HOUR);
    assert_eq!(micro(century, 1_000_000_000_000), i64::MAX);
    let mut bill_time = run("2026-10-01T00:00:00Z", "2026-10-02T00:00:00Z");
    bill_time.millis = i64::MAX;
    let mut kind = gpus(u64::MAX);
    kind.held[0].pieces = u64::MAX;
    let lines = billed(
        book(vec![price("2026-01-01T00:00:00Z", u64::MAX)]),
        &TimeZone::default(),
        "2026-10",
        &[(kind, bill_time)],
    );
    assert_eq!(lines[0].2, i64::MAX);
}

fn some_price() -> impl Strategy<Value = Price> {
    let hours = prop::option::of(prop::sample::select(vec![
        "mon-fri 08:00-18:00",
        "sat,sun 00:00-24:00",
        "sun 02:00-03:00",
        "mon-sun 01:30-02:30",
    ]));
    (-40i64..80, 0..5_000_000u64, hours).prop_map(|(days, rate, hours)| {
        let from = at("2026-10-01T00:00:00Z").plus_millis(days * 24 * HOUR + 1_234_567);
        let plain = Price {
            from,
            micro_per_hour: rate,
            ..Price::default()
        };
        hours.map_or(plain.clone(), |hours| on(hours, plain))
    })
}

fn some_run() -> impl Strategy<Value = (BilledKind, BilledTime)> {
    let length = prop_oneof![0..10_000i64, 0..90 * HOUR, 0..60 * 24 * HOUR];
    (0..61 * 24 * HOUR, length, 0..8u64, 0..3usize).prop_map(|(start, length, count, ending)| {
        let start = at("2026-09-15T00:00:00Z").plus_millis(start);
        let end = start.plus_millis(length);
        let kind = BilledKind {
            ending: [Ending::Own, Ending::NodeFault, Ending::Preempted][ending],
            ..gpus(count * 1000 + 125)
        };
        // Some of it was suspended.
        (
            kind,
            BilledTime {
                start,
                end,
                millis: length - length / 3,
            },
        )
    })
}

proptest! {
    /// Over whatever prices and boundaries: what lines have adds up to what the runs did, to the millisecond, and a month after the
    /// other to all of it.
    #[test]
    fn lines_add_up_to_runs(prices in prop::collection::vec(some_price(), 0..7), runs in prop::collection::vec(some_run(), 1..12)) {
        let mut prices = prices;
        prices.sort_by_key(|price| price.from);
        let zone = berlin();
        let mut all = 0i128;
        for month in ["2026-09", "2026-10", "2026-11", "2026-12", "2027-01"] {
            let (from, to) = Month::parse(month).unwrap().bounds(&zone);
            let tariff = Tariff::new(book(prices.clone()), &zone, from, to);
            let lines = lines(&tariff, &runs);
            let sum: i128 = lines.iter().map(|line| i128::from(line.milli_ms)).sum();
            let parts = runs.iter().map(|(kind, time)| i128::from(kind.held[0].milli) * i128::from(time.part(from, to)));
            prop_assert_eq!(sum, parts.sum::<i128>(), "{}", month);
            for line in &lines {
                prop_assert_eq!(line.amount_micro, amount_micro(line.milli_ms.into(), line.rate_micro, line.percent));
            }
            all += sum;
        }
        let whole: i128 = runs.iter().map(|(kind, time)| i128::from(kind.held[0].milli) * i128::from(time.millis)).sum();
        prop_assert_eq!(all, whole);
    }

    /// The price of each millisecond is the one that a look at the lists at that moment gives.
    #[test]
    fn each_moment_has_the_price_of_its_list(prices in prop::collection::vec(some_price(), 1..7), moment in 0..31 * 24 * HOUR) {
        let mut prices = prices;
        prices.sort_by_key(|price| price.from);
        let zone = TimeZone::default();
        let start = at("2026-10-01T00:00:00Z").plus_millis(moment);
        let (from, to) = Month::parse("2026-10").unwrap().bounds(&zone);
        let tariff = Tariff::new(book(prices.clone()), &zone, from, to);
        let time = BilledTime { start, end: start.plus_millis(1), millis: 1 };
        let rate = lines(&tariff, &[(gpus(1000), time)])[0].list.map(|_| lines(&tariff, &[(gpus(1000), time)])[0].rate_micro);
        let (day, minute) = (start.0.div_euclid(24 * HOUR), (start.0.rem_euclid(24 * HOUR) / 60_000) as u16);
        let holds = |price: &&Price| price.when.hours.is_none_or(|hours| {
            hours.is_on((day + 3).rem_euclid(7) as u8) && (hours.from..hours.to).contains(&minute)
        });
        let last = prices.iter().filter(|price| price.from <= start).map(|price| price.from).max();
        let expected = prices.iter().filter(|price| Some(price.from) == last).find(holds).map(|price| price.micro_per_hour);
        prop_assert_eq!(rate, expected);
    }
}
