//! One edit of the accounts, QOS and reservations that the database keeps.

use gmodel::Policy;
use gmodel::partition::MadePartition;
use gmodel::policy::{Account, AccountUser, Qos, Reservation};
use serde::{Deserialize, Serialize};

/// One edit of the accounts, QOS and reservations that the database keeps. Whole records, so the same edit
/// twice is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum PolicyChange {
    /// Made, or replaced.
    Account {
        account: Box<Account>,
    },
    /// Only an account that was never charged; others are closed.
    AccountRemoved {
        name: String,
    },
    User {
        account: String,
        user: String,
        entry: AccountUser,
    },
    UserRemoved {
        account: String,
        user: String,
    },
    Qos {
        qos: Box<Qos>,
    },
    QosRemoved {
        name: String,
    },
    Reservation {
        reservation: Box<Reservation>,
    },
    ReservationRemoved {
        name: String,
        /// Remove it though jobs run in it: they run on.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Made, or some keys set of one that a file has.
    Partition {
        made: Box<MadePartition>,
    },
    /// Removed; or what was set of a file's is as the file has it.
    PartitionRemoved {
        name: String,
    },
    /// Everything but the partitions replaced, as `gadm policy import` does.
    All {
        policy: Box<Policy>,
    },
}
