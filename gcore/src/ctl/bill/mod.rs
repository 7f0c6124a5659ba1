//! Bills: the close of a month, corrections, and which prices were used.
//!
//! What runs cost is `gpolicy::bill`'s; the lines of a closed month are stored beside the state, under the name that its event has.

mod close;
mod correct;
mod used;

pub(crate) use used::note_used;

use crate::ctl::command::{Actor, BillChange, Refusal, Reply};
use crate::ctl::tx::{Tx, operator_only};

pub(crate) fn change(tx: &mut Tx, actor: &Actor, change: BillChange) -> Result<Reply, Refusal> {
    match change {
        BillChange::Close {
            month,
            bill,
            lines,
            total_micro,
            corrections,
        } => {
            operator_only(actor, "closing a month")?;
            let closing = close::Closing {
                month,
                bill,
                lines,
                total_micro,
                corrections,
            };
            close::close(tx, actor, closing)
        }
        BillChange::Correct {
            account,
            amount_micro,
            reason,
        } => {
            operator_only(actor, "a correction of a bill")?;
            correct::correct(tx, actor, account, amount_micro, reason)
        }
    }
}
