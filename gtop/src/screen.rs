//! Draws what [`App`] holds. Only the lines that fit are looked at, so that a queue of any length costs the same.

use crate::app::{App, Page, Side};
use crate::jobs::JobLine;
use gmodel::JobState;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Clear, Paragraph, Row, Table};
use unicode_width::UnicodeWidthChar;

/// From this width on the pane stands beside the list, below that under it.
const WIDE: u16 = 140;

/// Keys and what each does.
pub(crate) const HELP: [&str; 13] = [
    "j k, arrows, PgUp PgDn, g G   choose a job",
    "1 2 3 4, Tab                  jobs, nodes, quotas, usage",
    "d                             details: why it waits, or its record",
    "o                             its output as it comes; again: its errors",
    "J K                           scroll the text",
    "w                             wrap long lines, or cut them",
    "/                             search in ids, names, users, accounts, nodes, states",
    "Esc                           end the search",
    "s                             running jobs, waiting jobs, all",
    "m                             all users' jobs, or yours",
    "c                             cancel the job, after a question",
    "?                             this",
    "q                             quit",
];

/// Draws all of the screen.
pub(crate) fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(header(app), head);
    match app.page {
        Page::Jobs => {
            let half = [Constraint::Percentage(50), Constraint::Percentage(50)];
            let is_wide = body.width >= WIDE;
            let [list, text] = match is_wide {
                true => Layout::horizontal(half).areas(body),
                false => Layout::vertical(half).areas(body),
            };
            let edge = if is_wide {
                Borders::LEFT
            } else {
                Borders::NONE
            };
            draw_jobs(frame, app, list);
            draw_pane(frame, app, text, edge);
        }
        _ => draw_pane(frame, app, body, Borders::NONE),
    }
    frame.render_widget(footer(app), foot);
    if app.shows_help {
        draw_help(frame);
    }
}

fn header(app: &App) -> Line<'static> {
    let mut spans = Vec::new();
    for page in Page::ALL {
        let style = match page == app.page {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        spans.push(Span::styled(format!(" {} ", page.title()), style));
    }
    let count = |state| app.jobs.iter().filter(|job| job.state == state).count();
    let (running, waiting) = (count(JobState::Running), count(JobState::Pending));
    let whose = if app.all { "all jobs" } else { "your jobs" };
    spans.push(Span::raw(format!(
        "  {whose}: {running} running, {waiting} waiting"
    )));
    Line::from(spans)
}

fn footer(app: &App) -> Line<'static> {
    if let Some(question) = &app.question {
        return Line::from(question.text.clone()).bold().yellow();
    }
    if app.is_searching {
        return Line::from(format!("/{}_", app.search));
    }
    if let Some(lost) = &app.lost {
        return Line::from(lost.clone()).red();
    }
    if !app.said.is_empty() {
        return Line::from(app.said.clone()).bold();
    }
    let mut filters = String::new();
    if !app.search.is_empty() {
        filters.push_str(&format!("/{}  ", app.search));
    }
    if let Some(state) = app.only {
        filters.push_str(&format!("{} only  ", state.long()));
    }
    Line::from(format!(
        "{filters}? help  q quit  / search  d details  o output  c cancel  m all or yours"
    ))
    .dim()
}

fn draw_jobs(frame: &mut Frame<'_>, app: &mut App, area: Rect) {
    app.height = usize::from(area.height.saturating_sub(2)).max(1);
    let first = first_line(app.selected, app.height, app.visible.len());
    let columns = Columns::of(app, area.width);
    let lines = app.visible.iter().skip(first).take(app.height);
    let rows = lines.enumerate().map(|(at, place)| {
        let row = columns.pick(cells(&app.jobs[*place]));
        match first + at == app.selected {
            true => row.add_modifier(Modifier::REVERSED),
            false => row,
        }
    });
    let title = match (app.visible.len(), app.is_loaded) {
        (_, false) => " asking the controller ".to_owned(),
        (0, true) => " no jobs ".to_owned(),
        (count, true) => format!(" {} of {count} ", app.selected + 1),
    };
    let table = Table::new(rows, columns.widths())
        .header(columns.pick(TITLES.map(Cell::from)).bold())
        .block(Block::new().borders(Borders::TOP).title(title));
    frame.render_widget(table, area);
}

/// The window moves by half of its height where the selection leaves its middle: most steps repaint two lines.
fn first_line(selected: usize, height: usize, count: usize) -> usize {
    let half = (height / 2).max(1);
    let window = selected / half * half;
    let most = count.saturating_sub(height);
    window.saturating_sub(half / 2).min(most)
}

const TITLES: [&str; 8] = [
    "JOBID",
    "ST",
    "NAME",
    "USER",
    "ACCOUNT",
    "TIME",
    "GPUS",
    "NODES (REASON)",
];

/// Which columns there is room and need for, by their places in `TITLES`.
struct Columns(Vec<usize>);

impl Columns {
    fn of(app: &App, width: u16) -> Self {
        let is_shown = |at: &usize| match TITLES[*at] {
            "USER" => app.all,
            "ACCOUNT" => width >= 100,
            _ => true,
        };
        Self((0..TITLES.len()).filter(is_shown).collect())
    }

    fn widths(&self) -> Vec<Constraint> {
        let all = [
            Constraint::Length(12),
            Constraint::Length(2),
            Constraint::Fill(1),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(5),
            Constraint::Fill(1),
        ];
        self.0.iter().map(|at| all[*at]).collect()
    }

    fn pick<'c>(&self, cells: [Cell<'c>; 8]) -> Row<'c> {
        let cells = cells.into_iter().enumerate();
        let shown = cells.filter(|(at, _)| self.0.contains(at));
        Row::new(shown.map(|(_, cell)| cell))
    }
}

fn cells(job: &JobLine) -> [Cell<'_>; 8] {
    let colour = match job.state {
        JobState::Running => Color::Green,
        JobState::Pending => Color::Yellow,
        JobState::Completing => Color::Cyan,
        _ => Color::Reset,
    };
    [
        Cell::from(job.shown_id.as_str()),
        Cell::from(job.state.short()).fg(colour),
        Cell::from(job.name.as_str()),
        Cell::from(job.user.as_str()),
        Cell::from(job.account.as_str()),
        Cell::from(job.elapsed.as_str()),
        Cell::from(job.gpus.as_str()),
        Cell::from(job.place.as_str()),
    ]
}

fn draw_pane(frame: &mut Frame<'_>, app: &App, area: Rect, edge: Borders) {
    let block = Block::new().borders(Borders::TOP | edge);
    let inside = block.inner(area);
    let height = usize::from(inside.height);
    let title = match (app.command.words.is_empty(), app.side) {
        (true, Side::Output | Side::Errors) => " output ".to_owned(),
        (true, Side::Details) => " details ".to_owned(),
        (false, _) => format!(" $ {} ", app.command.words.join(" ")),
    };
    let width = match app.wraps {
        true => usize::from(inside.width),
        false => usize::MAX,
    };
    let count = app.pane.len();
    let rows: Vec<&str> = if app.command.follows {
        // From the end, since the last line is what is looked for.
        let shown = count.saturating_sub(app.scroll);
        let lines = app.pane.range(shown.saturating_sub(height)..shown);
        let rows: Vec<&str> = lines.flat_map(|line| cut(line, width)).collect();
        rows[rows.len().saturating_sub(height)..].to_vec()
    } else {
        let lines = app.pane.range(app.scroll.min(count.saturating_sub(1))..);
        lines
            .flat_map(|line| cut(line, width))
            .take(height)
            .collect()
    };
    let rows: Vec<Line<'_>> = rows.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(rows).block(block.title(title)), area);
}

/// The line in pieces of so many columns; of an empty line one.
fn cut(line: &str, width: usize) -> Vec<&str> {
    let (mut pieces, mut begin, mut used) = (Vec::new(), 0, 0);
    for (at, letter) in line.char_indices() {
        let columns = letter.width().unwrap_or_default();
        if used + columns > width && at > begin {
            pieces.push(&line[begin..at]);
            (begin, used) = (at, 0);
        }
        used += columns;
    }
    pieces.push(&line[begin..]);
    pieces
}

fn draw_help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let (width, height) = (area.width.min(86), area.height.min(HELP.len() as u16 + 2));
    let window = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    let lines: Vec<Line<'_>> = HELP.iter().map(|line| Line::from(*line)).collect();
    let block = Block::bordered().title(" keys ");
    frame.render_widget(Clear, window);
    frame.render_widget(Paragraph::new(lines).block(block), window);
}

#[cfg(test)]
mod tests;
