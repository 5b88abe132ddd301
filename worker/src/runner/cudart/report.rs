//! Collects the errors of the device during one call, and reports them as a text whose prefix names the status.

use opt_emulator::{Access, Fault, FaultKind, FaultSite, Memory};

pub(super) const UNSUPPORTED: &str = "opt.Unsupported: ";
const OUT_OF_BOUNDS: &str = "opt.OutOfBounds: ";
const INPUT_MUTATED: &str = "opt.InputMutated: ";
const TIMEOUT: &str = "opt.Timeout: ";
const NONDETERMINISTIC: &str = "opt.Nondeterministic: ";
const CRASHED: &str = "opt.Crashed: ";
const RAISED: &str = "opt.Raised: ";
/// An illegal access that is less than this many bytes away from a buffer counts as an access out of the buffer's
/// bounds. An access that is farther away counts as a crash.
const NEAR: u64 = 1 << 16;

/// The first error of each kind that occurred in a call.
#[derive(Default)]
pub(super) struct CallErrors {
    /// An error that makes the device unusable, or its results unknown.
    fatal: Option<String>,
    /// A request that the runtime refused. The candidate may have handled the error.
    refused: Option<String>,
}

impl CallErrors {
    pub(super) fn add_unsupported(&mut self, what: &str) {
        self.fatal.get_or_insert_with(|| format!("{UNSUPPORTED}{what}"));
    }

    pub(super) fn add_refusal(&mut self, what: String) {
        self.refused.get_or_insert(what);
    }

    /// Adds a fault of the device. `at` is a phrase such as ``in launch 3 (`k`)``. `name` returns the name of the input
    /// or output that contains an address.
    pub(super) fn add_fault(&mut self, fault: &Fault, at: &str, name: impl Fn(u64) -> Option<String>) {
        let site = fault.site.as_deref().map_or_else(String::new, describe_site);
        let text = format!("{}, {at}{site}", fault.kind);
        let prefix = match &fault.kind {
            FaultKind::Unsupported(_) => UNSUPPORTED,
            FaultKind::InvalidValue(_) | FaultKind::OutOfMemory { .. } | FaultKind::LaunchLimits(_) => {
                self.add_refusal(format!("the device refused the request {at}: {}", fault.kind));
                return;
            }
            FaultKind::IllegalAddress(access) if is_near(access) => OUT_OF_BOUNDS,
            // Inputs are the only memory that cannot be written but has a name. A write to constant memory or to a
            // parameter therefore counts as a crash.
            FaultKind::ReadOnly(access) if name(access.address).is_some() => INPUT_MUTATED,
            FaultKind::Race { .. } => NONDETERMINISTIC,
            FaultKind::Timeout(_) | FaultKind::Deadlock | FaultKind::WarpDivergence => TIMEOUT,
            _ => CRASHED,
        };
        let nearest = |access: &Access| access.nearest.map_or(access.address, |nearest| nearest.start);
        let buffer = access_of(&fault.kind).and_then(|access| name(nearest(access)));
        let buffer = buffer.map_or_else(String::new, |buffer| format!(": the buffer is {buffer}"));
        self.fatal.get_or_insert_with(|| format!("{prefix}{text}{buffer}"));
    }

    /// Returns the text of the error, if there was one. `with_refusals` is true if a refused request can explain how
    /// the call ended.
    pub(super) fn text(self, with_refusals: bool) -> Option<String> {
        let refused = self.refused.filter(|_| with_refusals).map(|text| format!("{RAISED}{text}"));
        self.fatal.or(refused)
    }
}

/// Describes the thread that caused a fault, and the line of code.
fn describe_site(site: &FaultSite) -> String {
    let FaultSite { block, thread, lane, line, .. } = site;
    let source = site
        .source
        .as_ref()
        .map_or_else(String::new, |source| format!(", {}:{}", source.name(), source.line));
    format!(", block {block:?}, thread {thread:?}, lane {lane}, PTX line {line}{source}")
}

fn access_of(kind: &FaultKind) -> Option<&Access> {
    match kind {
        FaultKind::IllegalAddress(access)
        | FaultKind::UseAfterFree(access)
        | FaultKind::Misaligned(access)
        | FaultKind::ReadOnly(access)
        | FaultKind::Uninitialised(access) => Some(access),
        _ => None,
    }
}

/// For an illegal access to global memory, returns true if it is near a buffer. For other kinds of memory, returns
/// true.
fn is_near(access: &Access) -> bool {
    let near = |distance: Option<i64>| distance.is_none_or(|distance| distance.unsigned_abs() < NEAR);
    access.memory != Memory::Global || access.nearest.is_some_and(|nearest| near(nearest.distance))
}
