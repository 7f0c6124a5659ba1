//! What the events of single GPUs change. A part of `apply`, and like it infallible, without clock or chance.

use super::{node_mut, raise_generation};
use crate::ctl::event::{Event, GpuNoteKind};
use crate::ctl::state::State;
use crate::ctl::{gpu_check, gpu_gone, gpu_history, gpu_order, mig, submit};

pub(super) fn apply(state: &mut State, event: &Event) {
    match event {
        Event::GpuOrdered {
            node,
            uuid,
            what,
            by,
            at,
        } => {
            gpu_history::count(state, event);
            gpu_order::apply_ordered(state, *node, uuid, what);
            mig::note(node_mut(state, *node), uuid, what, *at);
            gpu_check::apply_ordered(node_mut(state, *node), uuid, what, by);
            raise_generation(state, *node);
            state.watch(*node);
        }
        Event::GpuOrderEnded { node, done, .. } => {
            gpu_order::apply_ended(state, *node, done);
            raise_generation(state, *node);
            state.watch(*node);
        }
        Event::GpuNoted {
            node, uuid, kind, ..
        } => {
            gpu_history::count(state, event);
            gpu_gone::apply(state, *node, uuid, *kind);
            match kind {
                GpuNoteKind::Stopped => gpu_check::apply_stopped(node_mut(state, *node), uuid),
                // What was ordered for it is ordered no more.
                GpuNoteKind::Left | GpuNoteKind::Forgotten => {
                    raise_generation(state, *node);
                    submit::forget_what_fits(state);
                }
                _ => {}
            }
        }
        Event::GpuChecked {
            node,
            uuid,
            number,
            gave_way_to,
            report,
            at,
        } => {
            gpu_check::apply_checked(
                node_mut(state, *node),
                uuid,
                *number,
                gave_way_to.is_some(),
                report,
                *at,
            );
            // The next GPU in turn need not wait.
            state.next_check_look = *at;
            raise_generation(state, *node);
            state.watch(*node);
        }
        Event::GpuJudged {
            node,
            uuid,
            check,
            odd,
            ..
        } => {
            gpu_check::change(node_mut(state, *node), uuid, |checks| {
                checks.judge(check, odd)
            });
        }
        other => unreachable!("{other:?} is not of a GPU"),
    }
}
