//! Derives a verdict from an error of the driver: a status, and one line with the proof.

use std::fmt::Write as _;
use std::time::Duration;

use opt_shared::outcome::Status;

use super::buffers::{DeviceBuffer, describe_address};
use super::driver::code::{Cause, Code};
use super::driver::{DriverError, Site};
use crate::session::Verdict;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum During {
    /// Loading the candidate's module.
    Load,
    /// A launch of the candidate; numbers start at 1.
    Launch { number: usize, symbol: String },
    /// An operation of the worker, such as a copy or a check.
    Ours(&'static str),
}

impl During {
    fn text(&self) -> String {
        match self {
            Self::Load => "while the candidate was being loaded".to_owned(),
            Self::Launch { number, symbol } => format!("in launch {number} (`{symbol}`)"),
            Self::Ours(what) => format!("while {what}"),
        }
    }
}

/// Returns the verdict on an error of the driver. If the candidate cannot have caused the error, the host is to blame.
pub(super) fn of_error(error: &DriverError, during: &During, buffers: &[DeviceBuffer]) -> Verdict {
    let verdict = |status, detail| Verdict { status, detail };
    let what = during.text();
    let cause = error.code.cause();
    let launched = matches!(during, During::Launch { .. });
    match cause {
        Cause::Kernel if launched => of_kernel(error, &what, buffers),
        Cause::Time if launched => {
            verdict(Status::Timeout, format!("ended {what}{}: {}", at(error), error.code))
        }
        Cause::Request if launched => verdict(
            Status::RuntimeError,
            format!(
                "the device refused the request {what}: {}{} (check grid, block and shared_mem)",
                error.code,
                said(error)
            ),
        ),
        Cause::Image | Cause::Request if *during == During::Load => {
            verdict(Status::LoadError, format!("{}{}", error.code, said(error)))
        }
        Cause::Lacking if launched || *during == During::Load => verdict(
            Status::Unsupported,
            format!(
                "the device does not support a feature that the candidate uses, {what}{}: {}{}",
                at(error),
                error.code,
                said(error)
            ),
        ),
        Cause::Memory => verdict(
            Status::InfraError,
            format!(
                "the device had no memory left {what}, although the lease is below its cap: another process probably uses the memory ({error})"
            ),
        ),
        _ => verdict(Status::InfraError, format!("the device failed {what}: {error}")),
    }
}

pub(super) fn overdue(during: &During, limit: Duration) -> Verdict {
    Verdict { status: Status::Timeout, detail: format!("ended {}: not done after {limit:?}", during.text()) }
}

fn of_kernel(error: &DriverError, what: &str, buffers: &[DeviceBuffer]) -> Verdict {
    if let Some(site) = error.site.as_ref().filter(|site| site.is_race) {
        // A card would not have stopped at a race, so the error code explains nothing.
        let detail = format!("{}, {what}{}", site.text, at(error));
        return Verdict { status: Status::Nondeterministic, detail };
    }
    let address = error.site.as_ref().and_then(|site| site.address);
    let (place, is_near) = match address {
        Some(address) => describe_address(buffers, address),
        None => (String::new(), false),
    };
    let is_illegal = error.code == Code::ILLEGAL_ADDRESS;
    // All memory but global memory belongs to the kernel, so an illegal access there is beyond its bounds.
    let outside_global = error.site.as_ref().is_some_and(|site| site.outside_global);
    let is_out_of_bounds = is_illegal && (is_near || outside_global);
    let status = if is_out_of_bounds { Status::OutOfBounds } else { Status::Crashed };
    let mut detail = format!("{}{}, {what}{}", error.code, said(error), at(error));
    if !place.is_empty() {
        let _ = write!(detail, ": {place}");
    }
    if error.site.is_none() {
        detail.push_str(
            " (a card does not report the place: to find it, run the plan with `device = \"emulated\"`)",
        );
    }
    Verdict { status, detail }
}

/// The device's own message.
fn said(error: &DriverError) -> String {
    match error.site.as_ref().map(|site| site.text.as_str()) {
        Some(text) if !text.is_empty() => format!(", {text}"),
        _ => String::new(),
    }
}

fn at(error: &DriverError) -> String {
    let Some(Site { block, thread, ptx_line, source, .. }) = error.site.as_deref() else {
        return String::new();
    };
    let mut text = String::new();
    let triple = |[x, y, z]: [u32; 3]| format!("({x}, {y}, {z})");
    if let Some(block) = block {
        let _ = write!(text, ", block {}", triple(*block));
    }
    if let Some(thread) = thread {
        let _ = write!(text, ", thread {}", triple(*thread));
    }
    if let Some(line) = ptx_line {
        let _ = write!(text, ", PTX line {line}");
    }
    if let Some(source) = source {
        let _ = write!(text, ", {source}");
    }
    text
}

/// Returns the verdict on a constant whose contents have changed since it was loaded or since an earlier step used it.
/// Any kernel since then could have written to the constant, so no candidate is blamed.
pub(super) fn changed_in_pool(input: &str) -> Verdict {
    Verdict {
        status: Status::InfraError,
        detail: format!(
            "{input} has changed in the pool since it was loaded or last used: a kernel since then probably wrote outside its \
             buffers, or the device's memory is faulty"
        ),
    }
}
