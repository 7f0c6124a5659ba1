//! A correction: a signed line with a reason, on the bill of the next month that is not closed.

use crate::ctl::command::{Actor, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::tx::Tx;
use gmodel::Month;
use gmodel::billing::{Correction, MAX_CORRECTION_MICRO, MAX_CORRECTIONS, MAX_REASON_CHARS};
use gmodel::suggest::did_you_mean;

pub(super) fn correct(
    tx: &mut Tx,
    actor: &Actor,
    account: String,
    amount_micro: i64,
    reason: String,
) -> Result<Reply, Refusal> {
    check_account(tx, &account)?;
    if amount_micro == 0 || amount_micro.unsigned_abs() > MAX_CORRECTION_MICRO.unsigned_abs() {
        let most = MAX_CORRECTION_MICRO / 1_000_000;
        return Err(Refusal::invalid(format!(
            "a correction is above or below zero, and within {most}. -12.50 takes 12.50 off."
        )));
    }
    let chars = reason.chars().count();
    if reason.trim().is_empty() || chars > MAX_REASON_CHARS || reason.chars().any(char::is_control)
    {
        return Err(Refusal::invalid(format!(
            "a correction has a reason of 1 to {MAX_REASON_CHARS} characters in one line: it is on the bill."
        )));
    }
    let present = Month::of(&tx.state.config.time_zone, tx.now);
    let month = tx.state.billing.open_month(present);
    let corrections = tx.state.billing.corrections.iter();
    if corrections.filter(|one| one.month == month).count() >= MAX_CORRECTIONS {
        return Err(Refusal::limit(format!(
            "{month} has {MAX_CORRECTIONS} corrections, which is the most. Close it once it is over, or correct in sums."
        )));
    }
    let correction = Correction {
        month,
        account,
        amount_micro,
        reason,
        by: actor.user.clone(),
        at: tx.now,
    };
    tx.emit(Event::BillCorrected { correction });
    Ok(Reply::Done)
}

/// Accounts that are gone may have a bill.
fn check_account(tx: &Tx, name: &str) -> Result<(), Refusal> {
    let state = &tx.state;
    let accounts = &state.policy.accounts;
    if accounts.contains_key(name)
        || name == state.config.default_account
        || state.usage.knows_account(name)
    {
        return Ok(());
    }
    let hint = did_you_mean(name, accounts.keys().map(String::as_str));
    Err(Refusal::not_found(format!(
        "there is no account {name:?}, and none was charged under this name.{hint}"
    )))
}
