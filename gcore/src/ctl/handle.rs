//! The dispatcher: one input in, events out, or a refusal before the first event.

use crate::ctl::command::{Actor, Command, Input, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::job::{cancel, dependency, hold, requeue, submit, update};
use crate::ctl::run::{class, idle, parts, placement, suspend};
use crate::ctl::state::State;
use crate::ctl::tx::Tx;
use crate::ctl::{bill, gpu, node, policy, run, token, wake};
use gmodel::Timestamp;
use gmodel::config::ClusterConfig;
use std::sync::Arc;

/// Handles one input at `now`. On `Err` no event was emitted and the state is as before.
pub fn handle(
    state: &mut State,
    events: &mut Vec<Event>,
    input: Input,
    now: Timestamp,
) -> Result<Reply, Refusal> {
    let before = events.len();
    let mut tx = Tx {
        state,
        events,
        now,
        past: Vec::new(),
    };
    let reply = match input {
        Input::Command { actor, command } => handle_command(&mut tx, &actor, command),
        Input::Node { node, report } => {
            node::report::handle(&mut tx, node, report);
            Ok(Reply::Done)
        }
        Input::Plan { plan } => {
            placement::enter(&mut tx, plan);
            Ok(Reply::Done)
        }
        Input::Fenced {
            node,
            number,
            failure,
        } => {
            node::fencing::answered(&mut tx, node, number, failure);
            Ok(Reply::Done)
        }
        Input::IdleTold {
            run,
            number,
            failure,
        } => {
            idle::told(&mut tx, run, number, failure);
            Ok(Reply::Done)
        }
        Input::Wake => {
            wake::handle(&mut tx);
            Ok(Reply::Done)
        }
        Input::Configure { config } => Ok(configure(&mut tx, config, false)),
        Input::Reload { config } => Ok(configure(&mut tx, config, true)),
        Input::Started => {
            tx.emit(Event::ControllerStarted { at: now });
            Ok(Reply::Done)
        }
    };
    follow_up(&mut tx, before);
    assert!(
        reply.is_ok() || events.len() == before,
        "a refused input left events behind"
    );
    reply
}

fn configure(tx: &mut Tx, config: Arc<ClusterConfig>, is_reload: bool) -> Reply {
    tx.emit(Event::Configured { config, at: tx.now });
    if is_reload {
        policy::partition::follow_files(tx);
        node::features::follow_files(tx);
    }
    class::declassify(tx);
    Reply::Done
}

/// What follows from the events of an input for other components and for dependants.
fn follow_up(tx: &mut Tx, from: usize) {
    parts::follow(tx, from);
    let settled_from = tx.events.len();
    dependency::settle::settle(tx, from);
    parts::follow(tx, settled_from);
}

fn handle_command(tx: &mut Tx, actor: &Actor, command: Command) -> Result<Reply, Refusal> {
    match command {
        Command::Knowing { past, asked } => {
            if matches!(*asked, Command::Knowing { .. }) || past.len() > MAX_PAST {
                return Err(Refusal::invalid("a command knows too much of the past"));
            }
            tx.past = past;
            handle_command(tx, actor, *asked)
        }
        Command::Submit { spec, client_key } => submit::handle(tx, actor, *spec, client_key),
        Command::SubmitParts { specs, client_key } => {
            submit::handle_parts(tx, actor, specs, client_key)
        }
        Command::Cancel { targets, signal } => Ok(cancel::handle(tx, actor, &targets, signal)),
        Command::Hold {
            targets,
            reason,
            for_owner,
        } => hold::hold(tx, hold::Holder { actor, for_owner }, &targets, &reason),
        Command::Release { targets } => hold::release(tx, actor, &targets),
        Command::Requeue { targets, hold } => requeue::handle(tx, actor, &targets, hold),
        Command::Suspend { targets } => suspend::suspend(tx, actor, &targets),
        Command::Resume { targets } => suspend::resume(tx, actor, &targets),
        Command::Update { target, change } => update::handle(tx, actor, target, change),
        Command::StartStep { parts } => run::step::start(tx, actor, parts),
        Command::EndStep {
            target,
            step,
            exit,
            used,
        } => run::step::end(tx, actor, target, step, exit, used),
        Command::EndAllocation { target, end } => run::allocation::end(tx, actor, &target, end),
        Command::NodeDrain { .. }
        | Command::NodeDrainBy { .. }
        | Command::NodeFeatures { .. }
        | Command::NodeResume { .. }
        | Command::NodeDown { .. }
        | Command::NodeRemove { .. }
        | Command::NodeRevoke { .. }
        | Command::NodeRenew { .. } => node_command(tx, actor, command),
        Command::GpuOrder { node, uuid, what } => gpu::order::order(tx, actor, node, &uuid, what),
        Command::GpuForget { uuid } => gpu::missing::forget(tx, actor, &uuid),
        Command::MintToken { token } => node::join::mint(tx, actor, token),
        Command::Token { change } => token::change(tx, actor, change),
        Command::Bill { change } => bill::change(tx, actor, change),
        Command::Policy { change } => policy::edit::change(tx, actor, change),
        Command::Join { token_hash, name } => node::join::join(tx, &token_hash, &name),
        Command::Restore {
            incarnation,
            next_job,
        } => node::adoption::restore(tx, actor, incarnation, next_job),
    }
}

fn node_command(tx: &mut Tx, actor: &Actor, command: Command) -> Result<Reply, Refusal> {
    match command {
        Command::NodeDrain { node, reason } => node::drain::drain(tx, actor, node, &reason),
        Command::NodeDrainBy {
            node,
            reason,
            deadline,
        } => node::drain::drain_by(tx, actor, node, &reason, deadline),
        Command::NodeFeatures {
            node,
            available,
            active,
        } => node::features::set(tx, actor, node, available, active),
        Command::NodeResume { node } => node::drain::resume(tx, actor, node),
        Command::NodeDown {
            node,
            reason,
            fenced,
        } => node::admin::down(tx, actor, node, &reason, fenced),
        Command::NodeRemove { node } => node::admin::remove(tx, actor, node),
        Command::NodeRevoke { node } => node::join::revoke(tx, actor, node),
        Command::NodeRenew { node, epoch, from } => node::join::renew(tx, node, epoch, &from),
        other => unreachable!("{other:?} is not of a node"),
    }
}

/// Most forgotten jobs that a command may bring along: as many as one may depend on.
const MAX_PAST: usize = gmodel::dependency::MAX_CONDITIONS;
