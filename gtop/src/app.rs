//! What gtop shows, and what keys and answers make of it. Pure: no clock, no terminal, no processes; what is to be done is returned.

use crate::jobs::JobLine;
use gmodel::JobState;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::VecDeque;

/// Most lines of a pane that are kept: the last of them.
pub(crate) const MAX_PANE_LINES: usize = 2000;

/// What is in the upper part of the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Page {
    #[default]
    Jobs,
    Nodes,
    Quotas,
    Usage,
}

impl Page {
    pub(crate) const ALL: [Self; 4] = [Self::Jobs, Self::Nodes, Self::Quotas, Self::Usage];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Jobs => "1 jobs",
            Self::Nodes => "2 nodes",
            Self::Quotas => "3 quotas",
            Self::Usage => "4 usage",
        }
    }
}

/// The text beside the list of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Side {
    #[default]
    Details,
    Output,
    Errors,
}

/// A command that fills a pane with its output; its words are the pane's title.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PaneCommand {
    pub words: Vec<String>,
    /// It goes on until it is ended, and its lines come one by one.
    pub follows: bool,
}

/// What the program has to do after an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Show the output of this command instead of the one before.
    Show(PaneCommand),
    /// Run a command that changes something, and tell what it says.
    Run(Vec<String>),
    /// Ask for the queue of all users, or of the own.
    Ask {
        all: bool,
    },
    Quit,
}

/// What happened.
#[derive(Debug)]
pub(crate) enum Event {
    Key(KeyEvent),
    Resized,
    Jobs(Vec<JobLine>),
    /// The controller did not answer.
    NoJobs(String),
    /// The whole output of the pane's command.
    Pane(u64, Vec<String>),
    /// A line of a command that follows.
    PaneLine(u64, String),
    /// What a command of `Act::Run` said.
    Said(String),
    Quit,
}

/// A question, with the command that a yes runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub text: String,
    words: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct App {
    pub page: Page,
    pub side: Side,
    pub all: bool,
    pub jobs: Vec<JobLine>,
    /// Places in `jobs` of the lines that the search and the states let through.
    pub visible: Vec<usize>,
    /// Place in `visible`.
    pub selected: usize,
    pub search: String,
    pub is_searching: bool,
    pub only: Option<JobState>,
    pub pane: VecDeque<String>,
    pub command: PaneCommand,
    /// Which of the commands so far fills the pane: answers of earlier ones are late.
    pub generation: u64,
    /// Lines above the end of the pane that follows, or below the beginning of another.
    pub scroll: usize,
    pub wraps: bool,
    pub said: String,
    pub lost: Option<String>,
    pub is_loaded: bool,
    pub question: Option<Question>,
    pub shows_help: bool,
    /// Rows of the list that fit on the screen, as last drawn.
    pub height: usize,
}

impl App {
    pub(crate) fn new(all: bool) -> Self {
        Self {
            all,
            wraps: true,
            ..Self::default()
        }
    }

    pub(crate) fn selected_job(&self) -> Option<&JobLine> {
        self.jobs.get(*self.visible.get(self.selected)?)
    }

    /// What follows from an event.
    pub(crate) fn on(&mut self, event: Event) -> Vec<Act> {
        match event {
            Event::Quit => vec![Act::Quit],
            Event::Resized => Vec::new(),
            Event::Key(key) => self.on_key(key),
            Event::Said(text) => {
                self.said = text;
                vec![Act::Ask { all: self.all }]
            }
            Event::NoJobs(why) => {
                self.lost = Some(why);
                Vec::new()
            }
            Event::Jobs(jobs) => {
                self.lost = None;
                self.is_loaded = true;
                self.take_jobs(jobs);
                self.refresh()
            }
            Event::Pane(generation, lines) => {
                if generation == self.generation {
                    self.pane = lines.into();
                    self.bound_pane();
                }
                Vec::new()
            }
            Event::PaneLine(generation, line) => {
                if generation == self.generation {
                    self.pane.push_back(line);
                    self.bound_pane();
                }
                Vec::new()
            }
        }
    }

    fn bound_pane(&mut self) {
        let surplus = self.pane.len().saturating_sub(MAX_PANE_LINES);
        self.pane.drain(..surplus);
        self.scroll = self.scroll.min(self.pane.len());
    }

    /// The selection stays on its job, wherever that stands now.
    fn take_jobs(&mut self, jobs: Vec<JobLine>) {
        let before = self.selected_job().map(|job| job.shown_id.clone());
        self.jobs = jobs;
        self.choose();
        let same = before.and_then(|id| {
            self.visible
                .iter()
                .position(|at| self.jobs[*at].shown_id == id)
        });
        self.selected = same.unwrap_or(self.selected.min(self.visible.len().saturating_sub(1)));
    }

    fn choose(&mut self) {
        let word = self.search.to_lowercase();
        let is_meant = |job: &JobLine| {
            self.only.is_none_or(|state| job.state == state) && (word.is_empty() || job.has(&word))
        };
        let places = self.jobs.iter().enumerate();
        self.visible = places
            .filter(|(_, job)| is_meant(job))
            .map(|(at, _)| at)
            .collect();
        self.selected = self.selected.min(self.visible.len().saturating_sub(1));
    }

    /// The pane's command for what is selected now.
    fn wanted(&self) -> PaneCommand {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let once = |command: &[&str]| PaneCommand {
            words: words(command),
            follows: false,
        };
        match (self.page, self.selected_job()) {
            (Page::Nodes, _) => once(&["gnodes"]),
            (Page::Quotas, _) => once(&["gadm", "quota", "list"]),
            (Page::Usage, _) => once(&["gacct", "report"]),
            (Page::Jobs, None) => PaneCommand::default(),
            (Page::Jobs, Some(job)) => {
                let id = &*job.asked_id();
                let follow = |stream: &[&str]| PaneCommand {
                    words: words(&[&["gq", "--follow", id, "--tail", "500"], stream].concat()),
                    follows: true,
                };
                match self.side {
                    Side::Details if job.state == JobState::Pending => once(&["gq", "--why", id]),
                    Side::Details => once(&["gq", id]),
                    Side::Output => follow(&[]),
                    Side::Errors => follow(&["--stderr"]),
                }
            }
        }
    }

    /// Shows what is wanted, where it is not shown already or may have changed.
    fn refresh(&mut self) -> Vec<Act> {
        let wanted = self.wanted();
        let is_other = wanted != self.command;
        if !is_other && wanted.follows {
            return Vec::new();
        }
        if is_other {
            self.pane.clear();
            self.scroll = 0;
            self.command = wanted.clone();
        }
        self.generation += 1;
        vec![Act::Show(wanted)]
    }

    fn on_key(&mut self, key: KeyEvent) -> Vec<Act> {
        self.said.clear();
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return vec![Act::Quit];
        }
        if let Some(question) = self.question.take() {
            return match key.code {
                KeyCode::Char('y' | 'Y') => vec![Act::Run(question.words)],
                _ => Vec::new(),
            };
        }
        if std::mem::take(&mut self.shows_help) {
            return Vec::new();
        }
        if self.is_searching {
            return self.on_search_key(key.code);
        }
        match key.code {
            KeyCode::Char('q') => return vec![Act::Quit],
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Char('/') if self.page == Page::Jobs => self.is_searching = true,
            KeyCode::Char('w') => self.wraps = !self.wraps,
            KeyCode::Char('c') | KeyCode::Delete => self.ask_cancel(),
            KeyCode::Char('m') => {
                self.all = !self.all;
                return vec![Act::Ask { all: self.all }];
            }
            KeyCode::Esc => {
                self.search.clear();
                self.choose();
                return self.refresh();
            }
            KeyCode::Char('J') => self.scroll_by(1),
            KeyCode::Char('K') => self.scroll_by(-1),
            code => return self.on_move(code),
        }
        Vec::new()
    }

    fn on_search_key(&mut self, code: KeyCode) -> Vec<Act> {
        match code {
            KeyCode::Enter => self.is_searching = false,
            KeyCode::Esc => {
                self.is_searching = false;
                self.search.clear();
            }
            KeyCode::Backspace => {
                self.search.pop();
            }
            KeyCode::Char(letter) if self.search.len() < 64 => self.search.push(letter),
            _ => {}
        }
        self.choose();
        self.refresh()
    }

    /// Keys that change what is looked at.
    fn on_move(&mut self, code: KeyCode) -> Vec<Act> {
        let last = self.visible.len().saturating_sub(1);
        let screen = self.height.max(1);
        match code {
            KeyCode::Char('1') => self.page = Page::Jobs,
            KeyCode::Char('2') => self.page = Page::Nodes,
            KeyCode::Char('3') => self.page = Page::Quotas,
            KeyCode::Char('4') => self.page = Page::Usage,
            KeyCode::Tab => {
                let at = Page::ALL.iter().position(|page| *page == self.page);
                self.page = Page::ALL[(at.unwrap_or_default() + 1) % Page::ALL.len()];
            }
            KeyCode::Char('d') => self.side = Side::Details,
            KeyCode::Char('o') => {
                self.side = match self.side {
                    Side::Output => Side::Errors,
                    _ => Side::Output,
                }
            }
            KeyCode::Char('s') => {
                self.only = match self.only {
                    None => Some(JobState::Running),
                    Some(JobState::Running) => Some(JobState::Pending),
                    _ => None,
                };
                self.choose();
            }
            // Beside the list of jobs there is nothing to select.
            _ if self.page != Page::Jobs => {
                match code {
                    KeyCode::Down | KeyCode::Char('j') => self.scroll_by(1),
                    KeyCode::Up | KeyCode::Char('k') => self.scroll_by(-1),
                    KeyCode::PageDown => self.scroll_by(screen as isize),
                    KeyCode::PageUp => self.scroll_by(-(screen as isize)),
                    _ => {}
                }
                return Vec::new();
            }
            KeyCode::Down | KeyCode::Char('j') => self.selected = (self.selected + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::PageDown => self.selected = (self.selected + screen).min(last),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(screen),
            KeyCode::Home | KeyCode::Char('g') => self.selected = 0,
            KeyCode::End | KeyCode::Char('G') => self.selected = last,
            _ => return Vec::new(),
        }
        match self.wanted() == self.command {
            true => Vec::new(),
            false => self.refresh(),
        }
    }

    /// Downwards; a pane that follows is scrolled up from its end.
    fn scroll_by(&mut self, lines: isize) {
        let lines = if self.command.follows { -lines } else { lines };
        let most = self.pane.len().saturating_sub(1);
        self.scroll = self.scroll.saturating_add_signed(lines).min(most);
    }

    fn ask_cancel(&mut self) {
        let Some(job) = self.selected_job().filter(|_| self.page == Page::Jobs) else {
            return;
        };
        let id = job.cancelled_id();
        self.question = Some(Question {
            text: format!("Cancel job {id} ({})? y, or any other key", job.name),
            words: vec!["gdel".to_owned(), id],
        });
    }
}

#[cfg(test)]
mod tests;
