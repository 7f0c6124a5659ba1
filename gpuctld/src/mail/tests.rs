//! Which letters are wanted, where they go, and when a limit is near.

use super::letter::exit_words;
use super::*;
use crate::config::MailTls;
use gmodel::{ExitCode, JobState};

fn settings() -> MailSettings {
    MailSettings {
        host: "localhost".into(),
        port: 25,
        tls: MailTls::Nothing,
        login: None,
        from: "pool@example.org".into(),
        domain: "example.org".into(),
        only_domains: vec!["example.org".into(), "example.com".into()],
        per_user_hour: 10,
    }
}

fn to(mail_user: Option<&str>) -> Vec<String> {
    let mut spec = JobSpec::default();
    spec.user.name = "ada".into();
    spec.launch.mail_user = mail_user.map(str::to_owned);
    addresses(&spec, &settings())
}

#[test]
fn letters_go_to_addresses_of_the_sites_domains_only() {
    assert_eq!(to(None), ["ada@example.org"]);
    assert_eq!(
        to(Some(
            "grace, lise@Example.COM,eve@evil.test, ,no address,a@b@c"
        )),
        ["grace@example.org", "lise@Example.COM"]
    );
    assert_eq!(
        to(Some("x@example.org\r\nRCPT TO:<y@example.org>")),
        [""; 0]
    );
    assert_eq!(to(Some(&"a,".repeat(1000))).len(), MAX_ADDRESSES);
}

#[test]
fn end_is_every_end_and_fail_the_bad_ones() {
    let ended = |state, requeued| Occasion::Ended {
        state,
        requeued,
        text: String::new(),
    };
    let is_wanted =
        |occasion: &Occasion, words: &str| occasion.is_wanted(&mail_events(words).unwrap());
    for (state, words, wanted) in [
        (JobState::Completed, "END", true),
        (JobState::Completed, "FAIL", false),
        (JobState::Failed, "END", true),
        (JobState::Failed, "FAIL", true),
        (JobState::Cancelled, "FAIL", false),
        (JobState::Timeout, "TIME_LIMIT", true),
        (JobState::Failed, "TIME_LIMIT", false),
        (JobState::Failed, "NONE", false),
        (JobState::Deadline, "FAIL", true),
    ] {
        assert_eq!(
            is_wanted(&ended(state, false), words),
            wanted,
            "{state:?} {words}"
        );
    }
    assert!(is_wanted(&ended(JobState::Preempted, true), "REQUEUE"));
    assert!(!is_wanted(&ended(JobState::Preempted, true), "END,FAIL"));
    let states = |state: &str| Occasion::ArrayEnded(BTreeMap::from([(state.to_owned(), 3)]));
    assert!(is_wanted(&states("FAILED"), "FAIL") && !is_wanted(&states("COMPLETED"), "FAIL"));
}

#[test]
fn a_limit_is_near_by_the_time_that_a_job_ran() {
    let started = Timestamp(1_000_000);
    assert_eq!(moment_of(80, started, 100, 0), Timestamp(1_080_000));
    assert_eq!(moment_of(50, started, 100, 7_000), Timestamp(1_057_000));
}

#[test]
fn an_exit_is_told_in_words() {
    let words = |code, signal| exit_words(ExitCode { code, signal });
    assert_eq!(words(0, 0), "");
    assert_eq!(words(7, 0), ", exit code 7");
    assert_eq!(words(0, 9), ", signal 9");
}

#[test]
fn a_job_that_its_deadline_ended_while_it_waited_has_ended_badly() {
    let event = Event::JobCancelled {
        job: gmodel::JobId(7),
        by: "system".into(),
        text: "it cannot end by its deadline".into(),
        reason: gmodel::ReasonCode::DeadLine,
        at: Timestamp(0),
    };
    let (_, occasion) = occasion_of(&event).unwrap();
    assert!(matches!(
        occasion,
        Some(Occasion::Ended {
            state: JobState::Deadline,
            requeued: false,
            ..
        })
    ));
}
