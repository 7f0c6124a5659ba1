//! `gtop`: the queue, each job's reasons and output, nodes and quotas on a terminal, as they change.
//!
//! Owns the terminal and the threads that listen for keys, signals and the controller; what is shown is `app`'s affair.

mod app;
mod commands;
mod jobs;
mod screen;

use app::{Act, App, Event};
use clap::{Command, CommandFactory, FromArgMatches, Parser};
use commands::Pane;
use gcli::pages::ManPage;
use gcli::{Failure, Outcome, command_line};
use nix::sys::signal::{SigSet, Signal};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event as TerminalEvent, KeyEventKind};
use screen::HELP;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  gtop          your jobs; m shows all users', ? all keys
  gtop --all    all users' jobs";

#[derive(Parser)]
#[command(
    name = "gtop",
    version,
    about = "The queue and its jobs on a terminal, as they change"
)]
struct TopArgs {
    /// Jobs of all users
    #[arg(short, long)]
    all: bool,
    /// Seconds between two looks at the queue
    #[arg(short, long, value_name = "SECS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    interval: u32,
}

fn main() -> ExitCode {
    gcli::pages::run("gtop", page, run)
}

fn command() -> Command {
    let keys: String = HELP.iter().map(|line| format!("\n  {line}")).collect();
    TopArgs::command().after_help(format!(
        "{EXAMPLES}\n\nKeys:{keys}\nThe text beside the list is what a command prints, which is its title: gq --why 17, gq --follow 17."
    ))
}

fn page() -> ManPage {
    ManPage {
        command: command(),
        section: "1",
        exit_status: "",
        see_also: "gq(1), gnodes(1), gacct(1), gdel(1), gpupool(7)",
    }
}

fn run(words: impl IntoIterator<Item = OsString>) -> Outcome {
    let matches = command_line::parse(command(), words)?;
    let args = TopArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(Failure::new(
            "stdin and stdout must be a terminal. gq prints the queue, gq --iterate 2 again and again",
        ));
    }
    // Says what is wrong with the configuration before the screen is taken.
    gcli::connect("gtop")?;
    let user = nix::unistd::User::from_uid(nix::unistd::getuid());
    let user = user.ok().flatten().map(|user| user.name);
    let user = user.ok_or_else(|| {
        Failure::new("this user has no name here. gtop --all shows the jobs of all")
    });
    let user = if args.all {
        user.unwrap_or_default()
    } else {
        user?
    };
    let (sender, events) = channel();
    listen_for_signals(sender.clone())?;
    let asks = listen_to_the_controller(user, args.interval, args.all, sender.clone());
    // From here on keys are read one by one; `restore` undoes it, also where a bug ends the program.
    let mut terminal = ratatui::try_init()
        .map_err(|error| Failure::new(format_args!("cannot take over the terminal: {error}")))?;
    listen_for_keys(sender.clone());
    let shown = show(&mut terminal, App::new(args.all), &events, &sender, &asks);
    ratatui::restore();
    shown.map_err(|error| Failure::new(format_args!("cannot draw on the terminal: {error}")))?;
    Ok(0)
}

/// Draws after each event; of events that wait already all come first.
fn show(
    terminal: &mut DefaultTerminal,
    mut app: App,
    events: &Receiver<Event>,
    sender: &Sender<Event>,
    asks: &Sender<bool>,
) -> std::io::Result<()> {
    let mut pane = Pane::new(sender.clone());
    loop {
        terminal.draw(|frame| screen::draw(frame, &mut app))?;
        let Ok(first) = events.recv() else {
            return Ok(());
        };
        let mut wanted = None;
        for event in std::iter::once(first).chain(events.try_iter()) {
            for act in app.on(event) {
                match act {
                    Act::Quit => return Ok(()),
                    Act::Show(command) => wanted = Some(command),
                    Act::Run(words) => commands::run(words, sender.clone()),
                    Act::Ask { all } => {
                        let _ = asks.send(all);
                    }
                }
            }
        }
        if let Some(command) = wanted {
            pane.show(&command, app.generation);
        }
    }
}

fn listen_for_keys(sender: Sender<Event>) {
    std::thread::spawn(move || {
        loop {
            let sent = match event::read() {
                Ok(TerminalEvent::Key(key)) if key.kind != KeyEventKind::Release => {
                    sender.send(Event::Key(key))
                }
                Ok(TerminalEvent::Resize(..)) => sender.send(Event::Resized),
                Ok(_) => Ok(()),
                Err(_) => sender.send(Event::Quit),
            };
            if sent.is_err() {
                return;
            }
        }
    });
}

/// Signals that end a program end it here after the terminal is given back.
fn listen_for_signals(sender: Sender<Event>) -> Result<(), Failure> {
    let ends = [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT];
    let signals: SigSet = ends.into_iter().collect();
    signals
        .thread_block()
        .map_err(|error| Failure::new(format_args!("cannot block signals: {error}")))?;
    std::thread::spawn(move || {
        let _ = signals.wait();
        let _ = sender.send(Event::Quit);
    });
    Ok(())
}

/// Asks for the queue every so often, and at once when it is asked to.
fn listen_to_the_controller(
    user: String,
    interval: u32,
    mut all: bool,
    sender: Sender<Event>,
) -> Sender<bool> {
    let (asks, asked) = channel();
    std::thread::spawn(move || {
        loop {
            let answer = gcli::connect("gtop").and_then(|client| {
                // A pause of the controller is shown, not waited for.
                let mut client = client.wait_for(Duration::ZERO);
                jobs::read(&mut client, if all { "" } else { &user })
            });
            let event = answer.map_or_else(|failure| Event::NoJobs(failure.text), Event::Jobs);
            if sender.send(event).is_err() {
                return;
            }
            match asked.recv_timeout(Duration::from_secs(interval.into())) {
                Ok(wanted) => all = wanted,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    asks
}
