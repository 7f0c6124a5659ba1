use super::*;
use gmodel::run::NodeShare;
use gmodel::{GpuSet, GpuSlot};
use proptest::prelude::*;

const WEEK: u32 = 7 * 86_400;
const T0: Timestamp = Timestamp::from_secs(1_795_176_000);

fn one_gpu() -> Rate {
    Rate {
        weighted_micro: 1_000_000,
        gpus: BTreeMap::from([("h100".to_owned(), 1000)]),
    }
}

#[test]
fn weights_are_the_powers_of_two_between_one_and_two() {
    assert_eq!(WEIGHTS[0], 1 << 30);
    assert_eq!(WEIGHTS[STEPS], 1 << 31);
    // The square root of two.
    assert_eq!(WEIGHTS[500], 1_518_500_250);
    for (step, pair) in WEIGHTS.windows(2).enumerate() {
        assert!(pair[0] < pair[1], "step {step}");
        let product = u128::from(WEIGHTS[step]) * u128::from(WEIGHTS[STEPS - step]);
        assert!(
            product.abs_diff(1 << 61) < 1 << 32,
            "weights of {step} and what is left multiply to two"
        );
    }
}

#[test]
fn half_is_left_after_a_half_life_and_a_quarter_after_two() {
    let mut used = Decayed::default();
    let end = T0.plus_secs(3600);
    used.charge(8_000_000, T0, end, WEEK);
    let now = used.at(end, WEEK);
    // 8 GPUs for an hour, in thousandths times seconds; less what the hour itself forgets.
    assert!((28_720_000..=28_760_000).contains(&now), "{now}");
    for (halvings, part) in [(1, 2), (2, 4), (5, 32)] {
        let later = used.at(end.plus_secs(halvings * i64::from(WEEK)), WEEK);
        assert!(later.abs_diff(now / part) <= 1, "{later} after {halvings}");
    }
    assert_eq!(used.at(end.plus_secs(70 * i64::from(WEEK)), WEEK), 0);
}

#[test]
fn nothing_is_forgotten_without_a_half_life() {
    let mut used = Decayed::default();
    used.charge(1_000_000, T0, T0.plus_secs(10), 0);
    assert_eq!(used.at(T0.plus_secs(10), 0), 10_000);
    assert_eq!(used.at(T0.plus_secs(1_000_000_000), 0), 10_000);
}

#[test]
fn use_below_a_second_counts() {
    let mut used = Decayed::default();
    for _ in 0..1000 {
        used.charge(1_000_000, T0, T0.plus_millis(1), 0);
    }
    assert_eq!(used.at(T0, 0), 1000);
}

#[test]
fn another_half_life_goes_on_from_what_is_left() {
    let mut used = Decayed::default();
    used.charge(1_000_000, T0, T0.plus_secs(86_400), WEEK);
    let day = 86_400;
    let later = T0.plus_secs(20 * day);
    let before = used.at(later, WEEK);
    let read = used.at(later, 86_400);
    assert!(read < before, "a day forgets faster than a week");
    // Charging nothing to speak of carries it over; a reader sees the same before and after.
    used.charge(1, later, later.plus_millis(1), 86_400);
    let carried = used.at(later, 86_400);
    assert!(carried.abs_diff(read) <= 1, "{carried} and {read}");
    let much_later = later.plus_secs(day);
    assert!(used.at(much_later, 86_400).abs_diff(carried / 2) <= carried / 500);
}

#[test]
fn rates_weigh_types_cpus_and_memory_and_the_qos() {
    let share = |node: u32, gpus: u16| NodeShare {
        node: NodeId(node),
        cpus: 10,
        mem_bytes: 100 << 30,
        gpus: GpuSet::whole((0..gpus).map(GpuSlot)),
        tasks: 1,
    };
    let config = FairShare {
        gpu_weights_milli: BTreeMap::from([("h100".to_owned(), 3000)]),
        cpu_weight_milli: 10,
        mem_gib_weight_milli: 1,
        ..FairShare::default()
    };
    let type_of = |node: NodeId, _| Some(if node.0 == 1 { "H100" } else { "a100" });
    let rate = Rate::of(&[share(1, 2), share(2, 1)], type_of, &config, 500);
    // (2 * 3 + 1) GPUs + 20 CPUs of a hundredth + 200 GiB of a thousandth, half of it.
    assert_eq!(rate.weighted_micro, (7_000_000 + 200_000 + 200_000) / 2);
    assert_eq!(
        rate.gpus,
        BTreeMap::from([("a100".to_owned(), 1000), ("h100".to_owned(), 2000)])
    );
}

#[test]
fn periods_begin_as_the_calendar_has_them() {
    let at = |text: &str| gmodel::time::parse_rfc3339(text).unwrap();
    let bounds = |period, text: &str| {
        let (from, to) = period_bounds(&TimeZone::default(), period, at(text));
        format!("{} {}", &from.to_string()[..10], &to.to_string()[..10])
    };
    assert_eq!(
        bounds(Period::Day, "2026-11-20T23:59:59Z"),
        "2026-11-20 2026-11-21"
    );
    assert_eq!(
        bounds(Period::Week, "2026-11-20T12:00:00Z"),
        "2026-11-16 2026-11-23"
    );
    assert_eq!(
        bounds(Period::Week, "2026-11-22T23:00:00Z"),
        "2026-11-16 2026-11-23"
    );
    assert_eq!(
        bounds(Period::Month, "2024-02-29T00:00:00Z"),
        "2024-02-01 2024-03-01"
    );
    assert_eq!(
        bounds(Period::Month, "2026-12-31T00:00:00Z"),
        "2026-12-01 2027-01-01"
    );
    assert_eq!(
        bounds(Period::Quarter, "2026-11-20T00:00:00Z"),
        "2026-10-01 2027-01-01"
    );
    assert_eq!(
        bounds(Period::Year, "2026-01-01T00:00:00Z"),
        "2026-01-01 2027-01-01"
    );
}

#[test]
fn periods_begin_at_midnight_of_the_place() {
    // An hour ahead, two from 2026-03-29T01:00Z on.
    let at = |text: &str| gmodel::time::parse_rfc3339(text).unwrap();
    let change = at("2026-03-29T01:00:00Z").secs();
    let ahead = |at: i64| if at < change { 3600 } else { 7200 };
    let zone = TimeZone::new(
        "here",
        at("2026-01-01T00:00:00Z").secs()..at("2026-12-31T00:00:00Z").secs(),
        86_400,
        ahead,
    );
    let bounds = |period, text: &str| {
        let (from, to) = period_bounds(&zone, period, at(text));
        format!("{from} {to}")
    };
    assert_eq!(
        bounds(Period::Day, "2026-03-28T23:30:00Z"),
        "2026-03-28T23:00:00Z 2026-03-29T22:00:00Z",
        "a day of 23 hours"
    );
    assert_eq!(
        bounds(Period::Month, "2026-03-31T21:59:59Z"),
        "2026-02-28T23:00:00Z 2026-03-31T22:00:00Z"
    );
    assert_eq!(
        bounds(Period::Month, "2026-03-31T22:00:00Z"),
        "2026-03-31T22:00:00Z 2026-04-30T22:00:00Z"
    );
    let mut book = UsageBook::default();
    book.set_zone(Arc::new(zone));
    book.charge(
        "a",
        "ann",
        &one_gpu(),
        at("2026-03-28T22:00:00Z"),
        at("2026-03-29T23:00:00Z"),
        WEEK,
    );
    let hours = |text: &str| book.in_period("a", Period::Day, at(text), None) / 3_600_000_000;
    assert_eq!(
        hours("2026-03-28T12:00:00Z"),
        0,
        "only two periods are kept"
    );
    assert_eq!(
        (hours("2026-03-29T12:00:00Z"), hours("2026-03-29T22:30:00Z")),
        (23, 1)
    );
}

#[test]
fn a_charge_over_the_end_of_a_month_is_split_there() {
    let at = |text: &str| gmodel::time::parse_rfc3339(text).unwrap();
    let mut book = UsageBook::default();
    book.charge(
        "a",
        "ann",
        &one_gpu(),
        at("2026-10-31T22:00:00Z"),
        at("2026-11-01T03:00:00Z"),
        WEEK,
    );
    let november = at("2026-11-15T00:00:00Z");
    let hours = |of: u128| of / 3_600_000_000;
    assert_eq!(hours(book.in_period("a", Period::Month, november, None)), 3);
    assert_eq!(
        hours(book.in_period("a", Period::Month, at("2026-10-31T00:00:00Z"), Some("h100"))),
        2
    );
    assert_eq!(
        hours(book.in_period("a", Period::Quarter, november, Some("h100"))),
        5
    );
    assert_eq!(
        book.in_period("a", Period::Quarter, november, Some("a100")),
        0
    );
    assert_eq!(book.in_period("b", Period::Quarter, november, None), 0);
    assert!(book.knows_account("a") && !book.knows_account("b") && !book.knows_account(""));
}

#[test]
fn only_changed_rows_are_written() {
    let mut book = UsageBook::default();
    for user in ["ann", "bob"] {
        book.charge("a", user, &one_gpu(), T0, T0.plus_secs(1), WEEK);
    }
    let before = book.clone();
    assert_eq!(book.changed_since(&before).count(), 0);
    book.charge("a", "bob", &one_gpu(), T0, T0.plus_secs(1), WEEK);
    book.charge("b", "eve", &one_gpu(), T0, T0.plus_secs(1), WEEK);
    let changed: Vec<_> = book
        .changed_since(&before)
        .map(|(account, user, _)| format!("{account}/{user}"))
        .collect();
    assert_eq!(changed, ["a/", "a/bob", "b/", "b/eve"]);
}

#[derive(Clone, Debug)]
struct Charge {
    user: usize,
    micro: u64,
    from: i64,
    length: i64,
    cuts: Vec<i64>,
}

const USERS: [&str; 3] = ["ann", "bob", "eve"];

fn charges() -> impl Strategy<Value = Vec<Charge>> {
    let charge = (
        0..3usize,
        0..100_000_000u64,
        0..4_000_000_000i64,
        0..2_000_000_000i64,
        prop::collection::vec(0..2_000_000_000i64, 0..4),
    );
    let charge = charge.prop_map(|(user, micro, from, length, cuts)| Charge {
        user,
        micro,
        from,
        length,
        cuts,
    });
    prop::collection::vec(charge, 1..12)
}

fn rate(charge: &Charge) -> Rate {
    Rate {
        weighted_micro: charge.micro,
        gpus: BTreeMap::from([("h100".to_owned(), charge.micro / 1000)]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Parts in any order, charged before or after others, through the store and back: the same book.
    #[test]
    fn use_does_not_depend_on_when_it_is_charged_or_in_how_many_parts(
        charges in charges(), half_life in prop::sample::select(vec![0u32, 60, 3600, 86_400, WEEK]), later in 0..3_000_000_000i64,
    ) {
        let mut whole = UsageBook::default();
        for charge in &charges {
            let (from, to) = (T0.plus_millis(charge.from), T0.plus_millis(charge.from + charge.length));
            whole.charge("a", USERS[charge.user], &rate(charge), from, to, half_life);
        }
        let mut parts = UsageBook::default();
        for charge in charges.iter().rev() {
            let mut cuts: Vec<i64> = charge.cuts.iter().map(|cut| *cut.min(&charge.length)).chain([0, charge.length]).collect();
            cuts.sort_unstable();
            for pair in cuts.windows(2).rev() {
                let (from, to) = (T0.plus_millis(charge.from + pair[0]), T0.plus_millis(charge.from + pair[1]));
                parts.charge("a", USERS[charge.user], &rate(charge), from, to, half_life);
                // A restart in between.
                let mut read = UsageBook::default();
                for (account, user, entry) in parts.rows() {
                    let json = serde_json::to_string(entry).unwrap();
                    read.insert(account, user, serde_json::from_str(&json).unwrap());
                }
                parts = read;
            }
        }
        let now = T0.plus_millis(6_000_000_000 + later);
        let of = |book: &UsageBook| book.users().map(|(_, user, used)| (user.to_owned(), used.at(now, half_life))).filter(|(_, used)| *used > 0).collect::<Vec<_>>();
        prop_assert_eq!(of(&whole), of(&parts));
        for period in [Period::Day, Period::Week, Period::Month, Period::Quarter, Period::Year] {
            prop_assert_eq!(whole.in_period("a", period, now, None), parts.in_period("a", period, now, None));
        }
    }

    /// Reading a run that goes on gives what the book gives when it has just ended.
    #[test]
    fn a_running_run_counts_as_if_it_ended_now(charges in charges(), length in 1..2_000_000_000i64) {
        let mut book = Decayed::default();
        for charge in &charges {
            book.charge(charge.micro, T0.plus_millis(charge.from), T0.plus_millis(charge.from + charge.length), WEEK);
        }
        let (started, now) = (T0.plus_millis(2_000_000_000), T0.plus_millis(2_000_000_000 + length));
        let (clock, mut running) = (Clock::new(now, WEEK), RunningUse::default());
        running.add(&clock, 5_000_000, started);
        running.add(&clock, 3_000_000, now.plus_millis(-length / 7));
        let read = book.with(&running, &clock);
        book.charge(5_000_000, started, now, WEEK);
        book.charge(3_000_000, now.plus_millis(-length / 7), now, WEEK);
        prop_assert_eq!(book.at(now, WEEK), read);
    }

    /// Against the real curve: exp2 in floating point, which only tests may use.
    #[test]
    fn decay_follows_the_curve(micro in 1_000_000..100_000_000u64, length in 1_000..1_000_000_000i64, later in 0..3_000_000_000i64) {
        let mut used = Decayed::default();
        used.charge(micro, T0, T0.plus_millis(length), WEEK);
        let now = T0.plus_millis(length + later);
        let half_life = f64::from(WEEK) * 1000.0;
        // The integral of 2^-(now - t) over the run.
        let area = |age: f64| half_life / std::f64::consts::LN_2 * (-age / half_life).exp2();
        let exact = (area(later as f64) - area((length + later) as f64)) * micro as f64 / 1e6;
        let ours = used.at(now, WEEK) as f64;
        prop_assert!((ours - exact).abs() <= exact * 0.002 + 2.0, "{} and {}", ours, exact);
    }
}
