use super::*;

const MINUTE: i64 = 60;

fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(1_000_000 + secs)
}

/// Numbers that look like chance: the same each time.
fn chance(n: u64) -> i64 {
    (n.wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
        >> 33) as i64
}

/// Both plans say so.
fn plans(at: Timestamp) -> Plans {
    Plans {
        expected: at,
        at_limits: at,
    }
}

/// One job after the other: to wait `expected` seconds by both plans, and waiting that times `ratio` thousandths.
fn past(
    calibration: &mut Calibration,
    count: u64,
    expected: impl Fn(u64) -> i64,
    ratio: impl Fn(u64) -> i64,
) -> Vec<bool> {
    let mut right = Vec::new();
    for n in 0..count {
        let now = at(n as i64 * 200_000);
        let wait = expected(n) * ratio(n) / 1000;
        let interval = calibration.interval("p", 0, now, plans(now.plus_secs(expected(n))));
        let said = ToldStart {
            age: 0,
            at: now,
            plans: plans(now.plus_secs(expected(n))),
            interval,
        };
        calibration.say(vec![(JobId(n), "p".into(), said)]);
        calibration.over(JobId(n), now.plus_secs(wait), true);
        right.extend(
            interval.map(|interval| {
                (interval.earliest..=interval.latest).contains(&now.plus_secs(wait))
            }),
        );
    }
    right
}

fn part(right: &[bool]) -> usize {
    right.iter().filter(|right| **right).count() * 1000 / right.len()
}

#[test]
fn intervals_hold_nine_starts_in_ten_whatever_is_wrong_with_the_forecasts() {
    let expected = |n| 6000 + chance(n) % 6000;
    for ratio in [
        |n: u64| 200 + chance(n + 7) % 300,
        |n: u64| 900 + chance(n + 7) % 8000,
    ] {
        let right = part(&past(&mut Calibration::default(), 2000, expected, ratio));
        assert!((870..=930).contains(&right), "{right}");
    }
}

/// Of 400 jobs, of which the plans say so, the waits; and an interval that holds four in five.
fn of_past(
    age: u8,
    said: impl Fn(u64) -> (i64, i64),
    wait: impl Fn(u64) -> i64,
    now: (i64, i64),
) -> (i64, i64) {
    let mut calibration = Calibration::at_level(800);
    let plans = |(expected, at_limits): (i64, i64)| Plans {
        expected: at(expected),
        at_limits: at(at_limits),
    };
    for n in 0..400 {
        let begun = (n as i64 - 400) * 200_000;
        let (expected, at_limits) = said(n);
        let said = ToldStart {
            age,
            at: at(begun),
            plans: plans((begun + expected, begun + at_limits)),
            interval: None,
        };
        calibration.learn(&Outcome {
            job: JobId(n),
            partition: "p".into(),
            said,
            sampled: true,
            ended: at(begun + wait(n)),
            started: true,
        });
    }
    let told = calibration
        .interval("p", AGES_SECS[usize::from(age)], at(0), plans(now))
        .unwrap();
    (
        told.earliest.since_millis(at(0)) / 1000,
        told.latest.since_millis(at(0)) / 1000,
    )
}

/// The wait is from 0.4 to 0.6 of what the limits say, and has nothing to do with what runs of late say.
#[test]
fn the_plan_by_limits_is_what_waits_are_measured_by() {
    let at_limits = |n| 1000 + chance(n) % 50_000;
    let wait = |n| at_limits(n) * (400 + chance(n + 7) % 200) / 1000;
    let said = |n| (chance(n + 3) % 50_000, at_limits(n));
    let (low, high) = of_past(0, said, wait, (300, 20_000));
    assert!(
        low < high / 2 + 2_000 && (12_000..18_000).contains(&high),
        "{low} {high}"
    );
    let (_, sooner) = of_past(0, said, wait, (300, 4_000));
    assert!(sooner < high / 2, "{sooner} {high}");
}

/// The plan is four times as long as any before.
#[test]
fn a_longer_plan_makes_the_interval_longer_by_its_root() {
    let wait = |n| 2_000 + chance(n) % 400;
    let (low, high) = of_past(0, |_| (1_000, 10_000), wait, (1_000, 4 * 10_060 - 60));
    assert!(
        (4_060..4_400).contains(&low) && (4_500..4_870).contains(&high),
        "a later begin is much narrower: {low} {high}"
    );
}

/// Whatever the plans say of it.
#[test]
fn a_job_passed_over_for_hours_waits_as_long_as_similar_jobs_did() {
    let wait = |n| 30_000 + chance(n) % 10_000;
    let (low, high) = of_past(
        2,
        |n| (chance(n + 3) % 90_000, chance(n + 5) % 90_000),
        wait,
        (0, 0),
    );
    assert!(
        (29_999..33_000).contains(&low) && (37_000..40_010).contains(&high),
        "{low} {high}"
    );
    let (_, high) = of_past(
        1,
        |n| (chance(n + 3) % 90_000, chance(n + 5) % 90_000),
        wait,
        (0, 0),
    );
    assert!(
        high < 29_000,
        "of a younger one the plans say something: {high}"
    );
}

/// Few wait a day.
fn mostly_short(n: u64) -> i64 {
    600 + 86_400 * (chance(n + 9) % 1000).pow(3) / 1_000_000_000
}

#[test]
fn an_interval_begins_now_and_ends_where_its_level_says() {
    let (low, high) = of_past(0, |_| (600, 600), mostly_short, (600, 600));
    let mut waits: Vec<i64> = (0..400).map(mostly_short).collect();
    waits.sort_unstable();
    assert_eq!(low, 0);
    assert!(
        high > waits[316] && high < waits[330],
        "{high} {:?}",
        &waits[310..335]
    );
}

/// Half start within a minute: they change nothing for the others.
#[test]
fn jobs_that_start_at_once_do_not_hide_how_long_others_wait() {
    let (_, without) = of_past(0, |_| (600, 600), |n| mostly_short(n / 2), (600, 600));
    let (_, with) = of_past(
        0,
        |_| (600, 600),
        |n| {
            if n % 2 == 0 {
                chance(n) % 60
            } else {
                mostly_short(n / 2)
            }
        },
        (600, 600),
    );
    assert!((with - without).abs() < without / 20, "{with} {without}");
}

/// A hundred jobs that waited for 2,000 s at one time, or one after the other; the plan by limits is 9,000 s.
#[test]
fn what_is_known_of_one_jam_only_promises_nothing_before_the_plan_by_limits() {
    let told = |apart_secs: i64| {
        let mut calibration = Calibration::default();
        for n in 0..100 {
            let begun = at((n as i64 - 100) * apart_secs);
            let said = ToldStart {
                age: 0,
                at: begun,
                plans: plans(begun.plus_secs(9_000)),
                interval: None,
            };
            let ended = begun.plus_secs(2_000);
            calibration.learn(&Outcome {
                job: JobId(n),
                partition: "p".into(),
                said,
                sampled: true,
                ended,
                started: true,
            });
        }
        let latest = calibration
            .interval("p", 0, at(0), plans(at(9_000)))
            .unwrap()
            .latest;
        (
            apart(&calibration.by_partition["p"][0].past),
            latest.since_millis(at(0)) / 1000,
        )
    };
    assert_eq!((told(1).0, told(20).0, told(2_000).0), (1, 1, 100));
    assert_eq!((told(1).1, told(20).1), (9_001, 9_001));
    assert!((1_999..2_010).contains(&told(2_000).1), "{:?}", told(2_000));
}

#[test]
fn a_change_of_the_cluster_is_followed() {
    let right = past(
        &mut Calibration::default(),
        3000,
        |n| 6000 + chance(n) % 6000,
        |n| {
            if n < 1000 {
                500 + chance(n + 7) % 500
            } else {
                3000 + chance(n + 7) % 2000
            }
        },
    );
    assert!((850..=950).contains(&part(&right)), "{}", part(&right));
    assert!(part(&right[2000..]) >= 850, "{}", part(&right[2000..]));
}

#[test]
fn nothing_is_said_before_enough_is_known() {
    let mut calibration = Calibration::default();
    past(&mut calibration, FEWEST as u64 - 1, |_| 600, |_| 1000);
    assert_eq!(calibration.interval("p", 0, at(0), plans(at(600))), None);
    past(&mut calibration, 1, |_| 600, |_| 1000);
    assert!(
        calibration
            .interval("p", 0, at(0), plans(at(600)))
            .is_some()
    );
    assert!(
        calibration
            .interval("new", 0, at(0), plans(at(600)))
            .is_some(),
        "what all partitions know"
    );
    assert_eq!(
        calibration.interval("p", 5 * 3600, at(0), plans(at(600))),
        None,
        "of this age nothing is known"
    );
}

/// Of 400 jobs each second one is cancelled, half way through its wait. Left out or taken for starts they would not
/// change the middle here; the ends of the interval must be those of the jobs that started.
#[test]
fn cancelled_jobs_do_not_bend_the_intervals() {
    let learn = |cancelled: bool| {
        let mut calibration = Calibration::at_level(800);
        for n in 0..400 {
            let wait = 600 + chance(n) % 1200;
            let begun = (n as i64 - 400) * 2_000;
            let said = ToldStart {
                age: 0,
                at: at(begun),
                plans: plans(at(begun + 900)),
                interval: None,
            };
            let outcome = |waited, started| Outcome {
                job: JobId(n),
                partition: "p".into(),
                said,
                sampled: true,
                ended: at(begun + waited),
                started,
            };
            let gone = cancelled && n % 2 == 1;
            // A longer wait is a longer risk of a cancellation.
            calibration.learn(&if gone {
                outcome(
                    wait.min(chance(n + 99) % 1800),
                    wait <= chance(n + 99) % 1800,
                )
            } else {
                outcome(wait, true)
            });
        }
        calibration.interval("p", 0, at(0), plans(at(900))).unwrap()
    };
    let (plain, with_cancelled) = (learn(false), learn(true));
    let off = |a: Timestamp, b: Timestamp| a.since_millis(b).abs() / 1000;
    assert!(
        off(plain.earliest, with_cancelled.earliest) < 2 * MINUTE,
        "{plain:?} {with_cancelled:?}"
    );
    assert!(
        off(plain.latest, with_cancelled.latest) < 2 * MINUTE,
        "{plain:?} {with_cancelled:?}"
    );
}

#[test]
fn pending_jobs_count_before_their_start() {
    for age in [0, 2] {
        let mut calibration = Calibration::default();
        let said = |at: Timestamp| ToldStart {
            age,
            at,
            plans: plans(at.plus_secs(600)),
            interval: None,
        };
        for n in 0..60 {
            let begun = at(n as i64 * 1000);
            let ended = begun.plus_secs(600 + chance(n) % 400);
            calibration.learn(&Outcome {
                job: JobId(n),
                partition: "p".into(),
                said: said(begun),
                sampled: true,
                ended,
                started: true,
            });
        }
        let now = at(10_000_000);
        let told = |calibration: &Calibration| {
            calibration
                .interval(
                    "p",
                    AGES_SECS[usize::from(age)],
                    now,
                    plans(now.plus_secs(600)),
                )
                .unwrap()
        };
        let before = told(&calibration);
        for n in 0..40 {
            calibration.say(vec![(
                JobId(1000 + n),
                "p".into(),
                said(now.plus_secs((n as i64 - 60) * SAMPLED_WITHIN_SECS)),
            )]);
        }
        let after = told(&calibration);
        assert!(
            after.latest > before.latest.plus_secs(4900),
            "{before:?} {after:?}"
        );
    }
}

#[test]
fn the_level_follows_its_successes_within_bounds() {
    let shift_after = |sampled: bool, rows: &[(u64, i64)]| {
        let mut calibration = Calibration::default();
        let said = ToldStart {
            age: 0,
            at: at(0),
            plans: plans(at(600)),
            interval: Some(Interval {
                earliest: at(0),
                latest: at(700),
            }),
        };
        for (many, waited_secs) in rows {
            let outcome = Outcome {
                job: JobId(1),
                partition: "p".into(),
                said,
                sampled,
                ended: at(*waited_secs),
                started: true,
            };
            (0..*many).for_each(|_| calibration.learn(&outcome));
        }
        calibration.by_partition["p"][0].shift_ppm
    };
    for sampled in [true, false] {
        assert_eq!(
            (
                shift_after(sampled, &[(10, 600)]),
                shift_after(sampled, &[(10, 800)])
            ),
            (1_000, -9_000)
        );
    }
    assert_eq!(
        (
            shift_after(true, &[(5_000, 600)]),
            shift_after(true, &[(5_000, 800)])
        ),
        (400_000, -100_000)
    );
    assert_eq!(
        shift_after(true, &[(5_000, 100)]),
        0,
        "who starts at once says nothing of the others"
    );
}

#[test]
fn of_many_jobs_forecast_at_once_a_few_stand_for_all() {
    let mut calibration = Calibration::default();
    let said = ToldStart {
        age: 0,
        at: at(0),
        plans: plans(at(600)),
        interval: Some(Interval {
            earliest: at(0),
            latest: at(700),
        }),
    };
    calibration.say(
        (0..1000)
            .map(|n| (JobId(n), "p".to_owned(), said))
            .collect(),
    );
    for n in 0..1000 {
        calibration.over(JobId(n), at(600), true);
    }
    assert_eq!(calibration.by_partition["p"][0].past.len(), SAMPLED);
    let sampled = |from: i64, calibration: &mut Calibration| {
        let said = ToldStart {
            at: at(from),
            ..said
        };
        calibration
            .say(vec![(JobId(2000), "p".to_owned(), said)])
            .iter()
            .filter(|open| open.sampled)
            .count()
    };
    assert_eq!(
        (
            sampled(SAMPLED_WITHIN_SECS - 1, &mut calibration),
            sampled(SAMPLED_WITHIN_SECS, &mut calibration)
        ),
        (0, 1)
    );
    let record = calibration.record(Some("p"));
    assert_eq!(
        (record.intervals, record.right, record.median_width_secs),
        (1000, 1000, Some(700))
    );
    assert_eq!(calibration.record(Some("other")), Record::default());
}

#[test]
fn a_job_is_forecast_again_when_it_is_older_and_after_a_hold_not_learned_from() {
    let mut calibration = Calibration::default();
    assert_eq!(calibration.due(JobId(1), 0), Some(0));
    let said = |age| ToldStart {
        age,
        at: at(0),
        plans: plans(at(600)),
        interval: None,
    };
    calibration.say(vec![(JobId(1), "p".into(), said(0))]);
    assert_eq!(
        (
            calibration.due(JobId(1), 599),
            calibration.due(JobId(1), 600)
        ),
        (None, Some(1))
    );
    calibration.say(vec![(JobId(1), "p".into(), said(1))]);
    let mut again = calibration.clone();
    assert_eq!(calibration.over(JobId(1), at(900), true).len(), 2);
    again.forget(JobId(1));
    assert!(again.over(JobId(1), at(900), true).is_empty());
    assert_eq!(again.record(None), Record::default());
}

#[test]
fn outcomes_learned_again_after_a_restart_say_the_same() {
    let mut calibration = Calibration::default();
    let mut outcomes = Vec::new();
    for n in 0..300 {
        let now = at(n as i64 * 1000);
        let interval = calibration.interval("p", 0, now, plans(now.plus_secs(700)));
        calibration.say(vec![(
            JobId(n),
            "p".into(),
            ToldStart {
                age: 0,
                at: now,
                plans: plans(now.plus_secs(700)),
                interval,
            },
        )]);
        outcomes.extend(calibration.over(JobId(n), now.plus_secs(chance(n) % 2000), n % 5 > 0));
    }
    let mut again = Calibration::default();
    outcomes.iter().for_each(|outcome| again.learn(outcome));
    let now = at(1_000_000);
    assert_eq!(
        again.interval("p", 0, now, plans(now.plus_secs(700))),
        calibration.interval("p", 0, now, plans(now.plus_secs(700)))
    );
    assert_eq!(again.record(None), calibration.record(None));
}
