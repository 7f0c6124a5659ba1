use super::*;
use crate::jobs::tests::line;

fn key(code: KeyCode) -> Event {
    Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn press(app: &mut App, keys: &str) -> Vec<Act> {
    let acts = keys
        .chars()
        .map(|letter| app.on(key(KeyCode::Char(letter))));
    acts.last().unwrap_or_default()
}

fn queue() -> App {
    let mut app = App::new(false);
    app.height = 10;
    let jobs = vec![
        line("1", JobState::Running),
        line("2", JobState::Pending),
        line("98_[7-9]", JobState::Pending),
    ];
    app.on(Event::Jobs(jobs));
    app
}

fn shown(acts: &[Act]) -> String {
    match acts {
        [Act::Show(command)] => command.words.join(" "),
        other => format!("{other:?}"),
    }
}

#[test]
fn each_choice_shows_what_a_command_says() {
    let mut app = queue();
    assert_eq!(app.command.words.join(" "), "gq 1");
    assert_eq!(shown(&press(&mut app, "j")), "gq --why 2");
    assert_eq!(shown(&press(&mut app, "j")), "gq --why 98_7");
    assert_eq!(press(&mut app, "j"), [], "the last one stays");
    assert_eq!(shown(&press(&mut app, "go")), "gq --follow 1 --tail 500");
    assert_eq!(
        shown(&press(&mut app, "o")),
        "gq --follow 1 --tail 500 --stderr"
    );
    assert_eq!(shown(&press(&mut app, "2")), "gnodes");
    assert_eq!(shown(&press(&mut app, "3")), "gadm quota list");
    assert_eq!(shown(&press(&mut app, "4")), "gacct report");
    assert_eq!(press(&mut app, "q"), [Act::Quit]);
}

#[test]
fn the_selection_stays_on_its_job() {
    let mut app = queue();
    press(&mut app, "j");
    let acts = app.on(Event::Jobs(vec![
        line("5", JobState::Running),
        line("6", JobState::Running),
        line("2", JobState::Running),
    ]));
    assert_eq!(app.selected_job().unwrap().shown_id, "2");
    assert_eq!(shown(&acts), "gq 2", "it runs now");
    app.on(Event::Jobs(vec![line("5", JobState::Running)]));
    assert_eq!(app.selected_job().unwrap().shown_id, "5");
    app.on(Event::Jobs(Vec::new()));
    assert_eq!(app.selected_job(), None);
    assert_eq!(press(&mut app, "jkGgc"), []);
}

#[test]
fn a_search_and_a_state_leave_some_jobs() {
    let mut app = queue();
    press(&mut app, "/98");
    assert_eq!(app.visible, [2]);
    app.on(key(KeyCode::Enter));
    assert_eq!(press(&mut app, "c"), []);
    assert!(
        app.question
            .as_ref()
            .unwrap()
            .text
            .contains("job 98_[7-9] (")
    );
    assert_eq!(
        press(&mut app, "y"),
        [Act::Run(vec!["gdel".to_owned(), "98_[7-9]".to_owned()])]
    );
    app.on(key(KeyCode::Esc));
    assert_eq!(app.visible.len(), 3);
    press(&mut app, "s");
    assert_eq!(app.visible, [0]);
    press(&mut app, "s");
    assert_eq!(app.visible, [1, 2]);
    press(&mut app, "s");
    assert_eq!(app.visible.len(), 3);
}

#[test]
fn nothing_is_cancelled_without_a_yes() {
    let mut app = queue();
    for other in ["n", "q", "c", "x"] {
        press(&mut app, "c");
        assert!(app.question.is_some());
        assert_eq!(press(&mut app, other), []);
        assert_eq!(app.question, None);
    }
}

#[test]
fn answers_of_earlier_commands_are_dropped_and_lines_are_bounded() {
    let mut app = queue();
    let old = app.generation;
    press(&mut app, "o");
    app.on(Event::Pane(old, vec!["late".to_owned()]));
    assert!(app.pane.is_empty());
    for number in 0..=MAX_PANE_LINES {
        app.on(Event::PaneLine(app.generation, number.to_string()));
    }
    assert_eq!(app.pane.len(), MAX_PANE_LINES);
    assert_eq!(app.pane[0], "1");
    press(&mut app, "KKK");
    assert_eq!(app.scroll, 3, "three lines above the end");
    assert_eq!(app.on(Event::Jobs(app.jobs.clone())), [], "it follows on");
}

#[test]
fn a_lost_controller_keeps_the_last_queue() {
    let mut app = queue();
    app.on(Event::NoJobs("no answer".to_owned()));
    assert_eq!(
        (app.jobs.len(), app.lost.as_deref()),
        (3, Some("no answer"))
    );
    app.on(Event::Jobs(vec![line("1", JobState::Running)]));
    assert_eq!(app.lost, None);
}
