//! How each webhook stands: written by `webhook`, read by operators' questions, which may also ask it to go on.

use gwire::api::WebhookRow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// A webhook that is at work.
#[derive(Debug)]
pub struct WebhookState {
    pub row: Mutex<WebhookRow>,
    /// Counts requests to go on; true: without what waited.
    pub resumed: watch::Sender<(u64, bool)>,
}

/// All of them, by name. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct WebhookStates(Arc<Mutex<BTreeMap<String, Arc<WebhookState>>>>);

impl WebhookStates {
    /// A new state in the place of an earlier one.
    pub fn begin(&self, row: WebhookRow) -> Arc<WebhookState> {
        let name = row.name.clone();
        let state = Arc::new(WebhookState {
            row: Mutex::new(row),
            resumed: watch::Sender::new((0, false)),
        });
        self.all().insert(name, state.clone());
        state
    }

    pub fn end(&self, name: &str) {
        self.all().remove(name);
    }

    pub fn of(&self, name: &str) -> Option<Arc<WebhookState>> {
        self.all().get(name).cloned()
    }

    pub fn rows(&self) -> Vec<WebhookRow> {
        self.all().values().map(|state| state.row()).collect()
    }

    fn all(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<WebhookState>>> {
        self.0.lock().expect("no panic while held")
    }
}

impl WebhookState {
    pub fn row(&self) -> WebhookRow {
        self.row.lock().expect("no panic while held").clone()
    }

    pub fn change(&self, change: impl FnOnce(&mut WebhookRow)) {
        change(&mut self.row.lock().expect("no panic while held"));
    }
}
