//! Readings of a device's clock, and graphs of launches.

/// A reading of the device's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(pub(crate) u64);

/// Launches that the device starts without the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GraphId(pub(crate) u64);
