use super::*;
use crate::app::Event;
use crate::jobs::tests::line;
use expect_test::{Expect, expect};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

fn picture(app: &mut App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(usize::from(width));
    rows.map(|row| {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        format!("{}\n", line.trim_end())
    })
    .collect()
}

fn queue() -> App {
    let mut app = App::new(true);
    let state = |at| [JobState::Running, JobState::Pending][usize::from(at > 2)];
    let jobs = (1..=9).map(|at| line(&at.to_string(), state(at)));
    app.on(Event::Jobs(jobs.collect()));
    let text = ["JobId=1 JobName=train", "", &"x".repeat(90)];
    let lines = text.iter().map(|line| (*line).to_owned()).collect();
    app.on(Event::Pane(app.generation, lines));
    app
}

fn check(picture: &str, want: Expect) {
    want.assert_eq(picture);
}

#[test]
fn the_list_stands_over_the_text_or_beside_it() {
    check(
        &picture(&mut queue(), 80, 16),
        expect![[r#"
             1 jobs  2 nodes  3 quotas  4 usage   all jobs: 2 running, 7 waiting
             1 of 9 ────────────────────────────────────────────────────────────────────────
            JOBID        ST NAME               USER       TIME       GPUS  NODES (REASON)
            1            R  train-1            ann        1:00       4     node1
            2            R  train-2            ann        1:00       4     node1
            3            PD train-3            ann        1:00       4     (Resources)
            4            PD train-4            ann        1:00       4     (Resources)
            5            PD train-5            ann        1:00       4     (Resources)
             $ gq 1 ────────────────────────────────────────────────────────────────────────
            JobId=1 JobName=train

            xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
            xxxxxxxxxx


            ? help  q quit  / search  d details  o output  c cancel  m all or yours
        "#]],
    );
    check(
        &picture(&mut queue(), 140, 8),
        expect![[r#"
             1 jobs  2 nodes  3 quotas  4 usage   all jobs: 2 running, 7 waiting
             1 of 9 ──────────────────────────────────────────────────────────────┌ $ gq 1 ─────────────────────────────────────────────────────────────
            JOBID        ST NAME          USER       TIME       GPUS  NODES (REASO│JobId=1 JobName=train
            1            R  train-1       ann        1:00       4     node1       │
            2            R  train-2       ann        1:00       4     node1       │xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
            3            PD train-3       ann        1:00       4     (Resources) │xxxxxxxxxxxxxxxxxxxxx
            4            PD train-4       ann        1:00       4     (Resources) │
            ? help  q quit  / search  d details  o output  c cancel  m all or yours
        "#]],
    );
}

#[test]
fn a_window_of_any_size_is_drawn() {
    for (width, height) in [(1, 1), (5, 3), (20, 2), (139, 4), (200, 60)] {
        let mut app = queue();
        picture(&mut app, width, height);
        app.shows_help = true;
        picture(&mut app, width, height);
    }
}

#[test]
fn of_a_long_queue_the_lines_around_the_selection_are_shown() {
    let mut app = App::new(true);
    let jobs = (1..=100_000).map(|at| line(&at.to_string(), JobState::Pending));
    app.on(Event::Jobs(jobs.collect()));
    picture(&mut app, 80, 16);
    app.on(Event::Key(KeyEvent::from(KeyCode::Char('G'))));
    let last = picture(&mut app, 80, 16);
    assert!(last.contains("99999") && last.contains("100000 "), "{last}");
    for (selected, height, count) in [(0, 5, 3), (2, 5, 3), (50, 7, 100), (99, 7, 100), (0, 1, 1)] {
        let first = first_line(selected, height, count);
        assert!(
            first <= selected && selected < first + height,
            "{selected} {height} {count}"
        );
    }
}

#[test]
fn output_is_seen_from_its_end_however_its_lines_wrap() {
    let mut app = queue();
    app.on(Event::Key(KeyEvent::from(KeyCode::Char('o'))));
    for at in 0..20 {
        let line = format!("{at}{}", "-".repeat(100));
        app.on(Event::PaneLine(app.generation, line));
    }
    app.on(Event::PaneLine(app.generation, "the last".to_owned()));
    check(
        &picture(&mut app, 60, 14),
        expect![[r#"
             1 jobs  2 nodes  3 quotas  4 usage   all jobs: 2 running, 7
             1 of 9 ────────────────────────────────────────────────────
            JOBID        ST NAME     USER       TIME       GPUS  NODES (
            1            R  train-1  ann        1:00       4     node1
            2            R  train-2  ann        1:00       4     node1
            3            PD train-3  ann        1:00       4     (Resour
            4            PD train-4  ann        1:00       4     (Resour
             $ gq --follow 1 --tail 500 ────────────────────────────────
            18----------------------------------------------------------
            ------------------------------------------
            19----------------------------------------------------------
            ------------------------------------------
            the last
            ? help  q quit  / search  d details  o output  c cancel  m a
        "#]],
    );
}

#[test]
fn help_says_all_keys_and_a_question_stands_below() {
    let mut app = queue();
    app.on(Event::Key(KeyEvent::from(KeyCode::Char('c'))));
    let asked = picture(&mut app, 80, 6);
    assert!(asked.contains("Cancel job 1 (train-1)?"), "{asked}");
    app.on(Event::Key(KeyEvent::from(KeyCode::Esc)));
    app.on(Event::Key(KeyEvent::from(KeyCode::Char('?'))));
    let help = picture(&mut app, 100, 24);
    assert!(HELP.iter().all(|line| help.contains(line)), "{help}");
}

#[test]
fn lines_are_cut_by_their_width() {
    assert_eq!(cut("", 3), [""]);
    assert_eq!(cut("abcdefg", 3), ["abc", "def", "g"]);
    assert_eq!(cut("日本語", 3), ["日", "本", "語"]);
    assert_eq!(cut("日", 1), ["日"]);
}
