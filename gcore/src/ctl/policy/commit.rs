//! An edit of the policy becomes a fact, with what follows from it for jobs and runs.

use crate::ctl::event::{Event, PolicyChange};
use crate::ctl::reservation;
use crate::ctl::run::class::declassify;
use crate::ctl::tx::Tx;

/// Emits the change, with what follows from it.
pub(crate) fn make(tx: &mut Tx, change: PolicyChange, by: String) {
    let releasing = reservation::release::releasing(tx.state);
    tx.emit(Event::PolicyChanged {
        change,
        by: by.clone(),
        at: tx.now,
    });
    reservation::release::release(tx, &releasing, &by);
    declassify(tx);
    reservation::release::note_deleted(tx);
}
