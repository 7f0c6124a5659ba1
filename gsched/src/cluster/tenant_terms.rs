//! What all shares on one GPU have in common.

use crate::cluster::timeline::Need;
use gmodel::GpuPart;

/// What all shares on one GPU have in common: user and thousandths where MPS holds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TenantTerms(Option<(u32, u32)>);

impl TenantTerms {
    pub fn of_need(need: &Need) -> Self {
        Self(need.tenant.map(|uid| (uid, u32::from(need.milli))))
    }
    pub fn of_part(part: &GpuPart) -> Self {
        match part {
            GpuPart::Share {
                milli,
                tenant: Some(uid),
                ..
            } => Self(Some((*uid, *milli))),
            _ => Self(None),
        }
    }
}
