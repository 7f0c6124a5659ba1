//! The close of a month: its lines are fixed. Months are closed in order and once.

use crate::ctl::command::{Actor, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::tx::Tx;
use gmodel::billing::ClosedMonth;
use gmodel::{BlobId, Month};

/// A bill as it was made for the close.
pub(super) struct Closing {
    pub month: Month,
    pub bill: BlobId,
    pub lines: u32,
    pub total_micro: i64,
    /// Corrections that it has.
    pub corrections: u32,
}

pub(super) fn close(tx: &mut Tx, actor: &Actor, closing: Closing) -> Result<Reply, Refusal> {
    check(tx, closing.month)?;
    let billing = &tx.state.billing;
    let corrections = billing.corrections.iter();
    let now = corrections.filter(|one| one.month == closing.month).count();
    if now != closing.corrections as usize {
        return Err(Refusal::conflict(format!(
            "{} was corrected while it was being closed. Close it again.",
            closing.month
        )));
    }
    tx.emit(Event::BillClosed {
        month: closing.month,
        closed: ClosedMonth {
            bill: closing.bill,
            lines: closing.lines,
            total_micro: closing.total_micro,
            at: tx.now,
            by: actor.user.clone(),
        },
    });
    Ok(Reply::Done)
}

fn check(tx: &Tx, month: Month) -> Result<(), Refusal> {
    let billing = &tx.state.billing;
    if let Some(closed) = billing.closed.get(&month) {
        return Err(Refusal::conflict(format!(
            "{month} was closed on {} by {}, and a closed month does not change. gadm bill correct adds a line to {}.",
            closed.at,
            closed.by,
            billing.open_month(month)
        )));
    }
    let zone = &tx.state.config.time_zone;
    let end = month.next().start(zone);
    if end > tx.now {
        return Err(Refusal::conflict(format!(
            "{month} is not over: it ends at {end}. Close it then."
        )));
    }
    let open = billing.open_month(month);
    if month != open {
        return Err(Refusal::conflict(format!(
            "months are closed in order, and {open} is next. gadm bill close {open}"
        )));
    }
    Ok(())
}
