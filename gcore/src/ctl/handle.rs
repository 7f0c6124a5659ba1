//! Decides: one input in, events out, or a refusal before the first event.

use super::apply::apply;
use super::command::{Actor, Command, Input, Refusal, Reply};
use super::dependency::{self, PastJob};
use super::event::Event;
use super::state::State;
use super::{
    adopt, cancel, gpu_gone, gpu_order, hold, idle, join, lost_node, node_admin, node_report,
    placement, policy, preempt, requeue, step, submit, suspend, update, wake,
};
use gmodel::Timestamp;

/// The state and the events of one input. Events are applied as they are emitted, so that what comes
/// later in the same input sees them.
pub(super) struct Tx<'a> {
    pub state: &'a mut State,
    pub events: &'a mut Vec<Event>,
    pub now: Timestamp,
    /// Of the jobs that a command names and that are no longer in memory.
    pub past: Vec<PastJob>,
}

impl Tx<'_> {
    pub fn emit(&mut self, event: Event) {
        apply(self.state, &event);
        self.events.push(event);
    }
}

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
            node_report::handle(&mut tx, node, report);
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
            lost_node::answered(&mut tx, node, number, failure);
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
        Input::Configure { config } => {
            tx.emit(Event::Configured { config, at: now });
            preempt::declassify(&mut tx);
            Ok(Reply::Done)
        }
        Input::Started => {
            tx.emit(Event::ControllerStarted { at: now });
            Ok(Reply::Done)
        }
    };
    dependency::settle(&mut tx, before);
    assert!(
        reply.is_ok() || events.len() == before,
        "a refused input left events behind"
    );
    reply
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
        Command::StartStep { target, ask } => step::start(tx, actor, target, ask),
        Command::EndStep {
            target,
            step,
            exit,
            used,
        } => step::end(tx, actor, target, step, exit, used),
        Command::NodeDrain { node, reason } => node_admin::drain(tx, actor, node, &reason),
        Command::NodeDrainBy {
            node,
            reason,
            deadline,
        } => {
            node_admin::drain(tx, actor, node, &reason)?;
            tx.emit(Event::NodeDrainDue {
                node,
                due: deadline,
            });
            Ok(Reply::Done)
        }
        Command::NodeResume { node } => node_admin::resume(tx, actor, node),
        Command::NodeDown {
            node,
            reason,
            fenced,
        } => node_admin::down(tx, actor, node, &reason, fenced),
        Command::NodeRemove { node } => node_admin::remove(tx, actor, node),
        Command::NodeRevoke { node } => join::revoke(tx, actor, node),
        Command::NodeRenew { node, epoch, from } => join::renew(tx, node, epoch, &from),
        Command::GpuOrder { node, uuid, what } => gpu_order::order(tx, actor, node, &uuid, what),
        Command::GpuForget { uuid } => gpu_gone::forget(tx, actor, &uuid),
        Command::MintToken { token } => join::mint(tx, actor, token),
        Command::Policy { change } => policy::change(tx, actor, change),
        Command::Join { token_hash, name } => join::join(tx, &token_hash, &name),
        Command::Restore {
            incarnation,
            next_job,
        } => adopt::restore(tx, actor, incarnation, next_job),
    }
}

/// Jobs of the past that a command may bring along: as many as one may depend on.
const MAX_PAST: usize = gmodel::dependency::MAX_CONDITIONS;

/// Ids skipped after a restore, so that none given out since the backup is given again.
pub const RESTORE_GAP: u64 = 1_000_000;

pub(super) fn operator_only(actor: &Actor, what: &str) -> Result<(), Refusal> {
    if actor.operator {
        return Ok(());
    }
    let text = format!(
        "{what} is for operators; you are {}. On the controller's host root is one, and the \
         users listed as `operators` in gpuctld.toml.",
        actor.user
    );
    Err(Refusal::denied(text))
}
