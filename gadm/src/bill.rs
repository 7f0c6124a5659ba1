//! `gadm bill`: the close of a month, and corrections. `gacct bill` shows bills.

use crate::controller::say_notes;
use gcli::Outcome;
use gmodel::Month;
use gmodel::policy::money_micro;
use gwire::api::{BillClose, BillCorrection, ChangeReply};
use gwire::client::Client;

/// What becomes of bills.
#[derive(clap::Subcommand)]
pub(crate) enum BillAct {
    /// Fix the bill of a month that is over: it never changes again
    Close {
        /// As 2026-10; months are closed in order
        #[arg(value_name = "MONTH", value_parser = month)]
        month: Month,
    },
    /// Add a signed line to the bill of the next month that is not closed
    Correct {
        /// The account that is charged, or gets something back
        #[arg(long, value_name = "ACCOUNT")]
        account: String,
        /// In the site's currency: -12.50 takes 12.50 off
        #[arg(long, value_name = "AMOUNT", allow_hyphen_values = true, value_parser = amount)]
        amount: i64,
        /// Why; it is on the bill
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

fn month(text: &str) -> Result<Month, String> {
    Month::parse(text).ok_or_else(|| "a month is written as 2026-10".to_owned())
}

fn amount(text: &str) -> Result<i64, String> {
    money_micro(text)
        .ok_or_else(|| "an amount is written as 12.50 or -12.50, to a millionth".to_owned())
}

pub(crate) fn run(client: &mut Client, act: BillAct) -> Outcome {
    let done: ChangeReply = match act {
        BillAct::Close { month } => client.post("/v1/bill/close", &BillClose { month })?,
        BillAct::Correct {
            account,
            amount,
            reason,
        } => {
            let asked = BillCorrection {
                account,
                amount_micro: amount,
                reason,
            };
            client.post("/v1/bill/correct", &asked)?
        }
    };
    say_notes(&done);
    Ok(0)
}
