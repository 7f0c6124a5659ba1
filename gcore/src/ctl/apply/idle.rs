//! What reports of idle GPUs change, and the warnings that follow from them.

use crate::ctl::apply::index::index_idle_untold;
use crate::ctl::event::Event;
use crate::ctl::state::{IdleWarning, NodeIdleness, State};
use gmodel::idle::keep_spells;

pub(crate) fn apply(state: &mut State, event: &Event) {
    let seq = state.seq.0;
    let has_program = state.config.idle_program;
    let (Event::RunIdleSeen { run: id, .. }
    | Event::RunIdled { run: id, .. }
    | Event::RunIdleOver { run: id, .. }
    | Event::RunIdleWarned { run: id, .. }
    | Event::RunIdleNoted { run: id, .. }
    | Event::RunIdleTold { run: id, .. }) = event
    else {
        return;
    };
    if matches!(event, Event::RunIdleSeen { .. } | Event::RunIdled { .. }) {
        return sampled(state, event);
    }
    let run = state.runs.get_mut(*id).expect("an idle run is there");
    let idle = run.idle.get_or_insert_default();
    match event {
        Event::RunIdleOver {
            spells,
            ends_warning,
            ..
        } => {
            keep_spells(&mut idle.spells, spells);
            idle.warned.take_if(|_| *ends_warning);
        }
        Event::RunIdleWarned {
            idle_secs,
            from_secs,
            real,
            at,
            ..
        } => {
            let told = !(*real && has_program);
            let (at, idle_secs, from_secs, real) = (*at, *idle_secs, *from_secs, *real);
            idle.warned = Some(IdleWarning {
                at,
                idle_secs,
                from_secs,
                real,
                number: seq,
                told,
                noted: false,
            });
        }
        Event::RunIdleNoted { .. } => idle
            .warned
            .iter_mut()
            .for_each(|warned| warned.noted = true),
        _ => idle.warned.iter_mut().for_each(|warned| warned.told = true),
    }
    let is_untold = run.is_idle_untold();
    index_idle_untold(state, *id, is_untold);
}

/// The samples of a run's nodes, and its idleness over all of them.
fn sampled(state: &mut State, event: &Event) {
    match event {
        Event::RunIdleSeen {
            run,
            node,
            idle_secs,
            watched_secs,
            at,
        } => {
            let sample = NodeIdleness {
                at: *at,
                watched_secs: *watched_secs,
                idle_secs: idle_secs.clone(),
            };
            let mut known = state.memo.idle_seen.get(*run).cloned().unwrap_or_default();
            known.by_node.insert(*node, sample);
            state.memo.idle_seen.insert(*run, known);
        }
        Event::RunIdled {
            run,
            levels,
            watched_secs,
        } => {
            let known = state.memo.idle_seen.get_mut(*run).expect("it was sampled");
            (known.levels, known.watched_secs) = (*levels, *watched_secs);
        }
        _ => {}
    }
}
