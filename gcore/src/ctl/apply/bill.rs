//! What the events of bills change.

use crate::ctl::event::Event;
use crate::ctl::state::State;
use std::sync::Arc;

pub(crate) fn apply(state: &mut State, event: &Event) {
    let billing = Arc::make_mut(&mut state.billing);
    match event {
        Event::BillClosed { month, closed } => {
            billing.closed.insert(*month, closed.clone());
            // They are lines of the stored bill.
            billing.corrections.retain(|one| one.month != *month);
        }
        Event::BillCorrected { correction } => billing.corrections.push(correction.clone()),
        Event::PricesUsed { prices, .. } => billing.used.add(prices),
        _ => {}
    }
}
