//! Names in requests that must be there: what is not gets a guess.
//!
//! Owns the text of the refusal; which names there are is the caller's.

use crate::http::error::ApiError;
use gcore::ctl::NORMAL_QOS;
use gmodel::RefusalKind;
use gmodel::suggest::did_you_mean;

/// # Errors
/// There is none of that name; with the nearest that there is.
pub(crate) fn exists<'a>(
    what: &str,
    name: &str,
    mut names: impl Iterator<Item = &'a String> + Clone,
) -> Result<(), ApiError> {
    let all = names.clone();
    if names.any(|known| known == name) {
        return Ok(());
    }
    Err(not_there(what, name, all.map(String::as_str)))
}

/// The refusal of a name that is not there.
pub(crate) fn not_there<'a>(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'a str>,
) -> ApiError {
    let made = match what {
        "qos" if name == NORMAL_QOS => {
            " Jobs that name none have it without a record; gadm qos add normal makes one."
                .to_owned()
        }
        _ => did_you_mean(name, known),
    };
    let about = match what {
        "reservation" => RefusalKind::Reservation,
        "partition" => RefusalKind::Partition,
        "account" => RefusalKind::Account,
        "node" => RefusalKind::NodeName,
        "qos" => RefusalKind::Qos,
        _ => RefusalKind::Other,
    };
    ApiError::not_found(format!("there is no {what} {name:?}.{made}")).about(about, name)
}
