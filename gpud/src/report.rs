//! What was said on one connection to the controller, so that only news is sent: whole phases, the fence, the inventory.
//!
//! A new connection begins with a hello that says everything; nothing is kept over its end.

use gcore::node::{NodeState, reports};
use gmodel::node::Inventory;
use gmodel::run::RunReport;
use gmodel::{Fence, RunId};
use gwire::node_protocol::{Hello, PROTOCOL, ToController};
use std::collections::BTreeMap;
use tokio::sync::mpsc;

/// One connection and what the controller heard on it.
pub struct Told {
    pub connection: u64,
    pub sender: mpsc::Sender<ToController>,
    /// How far each run was.
    reported: BTreeMap<RunId, u8>,
    obeyed: Fence,
    inventory: Inventory,
}

impl Told {
    /// Says hello. `None` when the connection is gone already.
    pub fn greet(
        connection: u64,
        sender: mpsc::Sender<ToController>,
        state: &NodeState,
        inventory: &Inventory,
    ) -> Option<Self> {
        let runs = reports(state);
        let reported = runs.iter().map(|report| (report.run, report.phase.rank())).collect();
        let hello = Hello {
            protocol: PROTOCOL,
            release: env!("CARGO_PKG_VERSION").into(),
            life: state.life.clone(),
            fence: state.fence,
            inventory: inventory.clone(),
            runs,
        };
        sender.try_send(ToController::Hello(hello)).ok()?;
        Some(Self { connection, sender, reported, obeyed: state.fence, inventory: inventory.clone() })
    }

    /// Sends what changed. False when the controller reads too slowly or is gone: let go, the next hello says everything.
    #[must_use]
    pub fn send_news(&mut self, state: &NodeState, inventory: &Inventory) -> bool {
        let mut frames = Vec::new();
        if self.obeyed != state.fence {
            self.obeyed = state.fence;
            frames.push(ToController::Obeyed { fence: state.fence });
        }
        let is_news = |report: &RunReport| self.reported.get(&report.run) != Some(&report.phase.rank());
        let runs: Vec<RunReport> = reports(state).into_iter().filter(is_news).collect();
        self.reported.retain(|run, _| state.runs.contains_key(run));
        if !runs.is_empty() {
            self.reported.extend(runs.iter().map(|report| (report.run, report.phase.rank())));
            frames.push(ToController::Runs { runs });
        }
        if self.inventory != *inventory {
            self.inventory = inventory.clone();
            frames.push(ToController::Inventory { inventory: inventory.clone() });
        }
        frames.into_iter().all(|frame| self.sender.try_send(frame).is_ok())
    }
}
