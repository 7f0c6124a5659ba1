//! Names under which the controller itself holds, drains, orders and ends.

/// Owner of automatic holds and drains.
pub(crate) const SYSTEM: &str = "system";

/// Owner of the hold of a job that fits its token's cap no more.
pub(crate) const TOKEN: &str = "token";

/// User name of orders by GPU checks. No user can have it.
pub(crate) const CHECKS: &str = "the checks";

/// The `by` of runs that the idle policy ended.
pub const IDLE_POLICY: &str = "idle policy";

/// Owner of the drain of a node that boots.
pub(crate) const REPAIR: &str = "repair";
