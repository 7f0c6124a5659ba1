//! One input under way: the state, the events so far, and the time.

use crate::ctl::apply::apply;
use crate::ctl::command::{Actor, Refusal};
use crate::ctl::event::Event;
use crate::ctl::state::{Array, ForgottenJob, Job, Node, Run, State};
use gmodel::{JobId, NodeId, RunId, Timestamp};

/// The state and the events of one input. Events are applied as they are emitted, so that later parts of the
/// input see them.
pub(crate) struct Tx<'a> {
    pub state: &'a mut State,
    pub events: &'a mut Vec<Event>,
    pub now: Timestamp,
    /// Forgotten jobs that the command names, as the store knows them.
    pub past: Vec<ForgottenJob>,
}

impl Tx<'_> {
    pub fn emit(&mut self, event: Event) {
        apply(self.state, &event);
        self.events.push(event);
    }

    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.state.job(id)
    }

    pub fn array(&self, id: JobId) -> Option<&Array> {
        self.state.array(id)
    }

    pub fn run(&self, id: RunId) -> Option<&Run> {
        self.state.run(id)
    }

    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.state.node(id)
    }
}

pub(crate) fn operator_only(actor: &Actor, what: &str) -> Result<(), Refusal> {
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
