//! What the controller's log says of GPUs: which went out of service, and loudly when the breaker stops what is automatic.

use gcore::ctl::event::GpuNoteKind;
use gcore::ctl::{Event, State};

/// Lines for the events of a batch; for after its commit.
pub(super) fn lines(state: &State, events: &[Event]) -> Vec<(tracing::Level, String)> {
    let line = |event: &Event| {
        if let Event::GpuJudged {
            node,
            uuid,
            check,
            odd,
            ..
        } = event
        {
            let name = state
                .nodes
                .get(*node)
                .map_or("?", |node| node.name.as_str());
            return Some((
                tracing::Level::WARN,
                format!("GPU {uuid} of {name}: check {check}: {odd}"),
            ));
        }
        let Event::GpuNoted {
            node,
            uuid,
            kind,
            text,
            ..
        } = event
        else {
            return None;
        };
        let level = match kind {
            GpuNoteKind::Stopped => tracing::Level::ERROR,
            GpuNoteKind::Sick | GpuNoteKind::ToBeReplaced | GpuNoteKind::Moved => {
                tracing::Level::WARN
            }
            GpuNoteKind::Well | GpuNoteKind::Left | GpuNoteKind::Forgotten => tracing::Level::INFO,
            _ => return None,
        };
        let name = state
            .nodes
            .get(*node)
            .map_or("?", |node| node.name.as_str());
        Some((
            level,
            format!("GPU {uuid} of {name}: {}: {text}", kind.word()),
        ))
    };
    events.iter().filter_map(line).collect()
}

/// Says them.
pub(super) fn say(lines: Vec<(tracing::Level, String)>) {
    for (level, text) in lines {
        match level {
            tracing::Level::ERROR => tracing::error!("{text}"),
            tracing::Level::WARN => tracing::warn!("{text}"),
            _ => tracing::info!("{text}"),
        }
    }
}
