//! The period of a question: `from` and `to` of a query.

use crate::http::error::ApiError;
use gmodel::Timestamp;

/// # Errors
/// It ends before it begins.
pub(crate) fn in_order(from: Option<Timestamp>, to: Option<Timestamp>) -> Result<(), ApiError> {
    match (from, to) {
        (Some(from), Some(to)) if from >= to => Err(ApiError::invalid(format!(
            "from = {from} is not before to = {to}"
        ))),
        _ => Ok(()),
    }
}

/// First instant of a moment's month, UTC.
pub(crate) fn month_of(at: Timestamp) -> Timestamp {
    let (year, month, _) = gmodel::time::civil_from_days(at.secs().div_euclid(86_400));
    Timestamp::from_secs(gmodel::time::days_from_civil(year, month, 1) * 86_400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_begins_on_its_first_day() {
        let at = gmodel::time::parse_rfc3339("2026-11-20T09:05:27Z").unwrap();
        assert_eq!(month_of(at).to_string(), "2026-11-01T00:00:00Z");
    }
}
