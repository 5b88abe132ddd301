//! The numbers by which this backend refers to readings of a device's clock and to graphs of launches.

/// A reading of the device's clock, by its number since `Driver::clear_stamps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(pub(crate) u64);

/// A graph: launches that the device starts one after another without the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GraphId(pub(crate) u64);
