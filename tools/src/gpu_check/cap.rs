//! Tests whether the cap of a lease holds, by allocating buffers with the worker's own code until it refuses one.

use anyhow::{Error, Result};
use opt_shared::units::Bytes;
use opt_worker::trial::TrialDevice;

use crate::Arguments;
use crate::nvml::Watched;
use crate::row::{Judgement, Row, mib};

const CAP: Bytes = Bytes::gib(2);
const CAP_OF_TWIN: Bytes = Bytes::mib(64);
/// The size of a buffer. The cap is not a multiple of it, so that a part of the refused buffer would still have fitted.
const PIECE: Bytes = Bytes::mib(150);
const PIECE_OF_TWIN: Bytes = Bytes::mib(6);
/// The tolerance for the driver's own structures and for other processes.
const SLACK: Bytes = Bytes::mib(64);

pub(crate) fn rows(arguments: &Arguments) -> Result<Vec<Row>> {
    let device = TrialDevice::card(arguments.device).map_err(Error::msg)?;
    let (cap, piece) = if arguments.dry_run { (CAP_OF_TWIN, PIECE_OF_TWIN) } else { (CAP, PIECE) };
    let watched = Watched::open(&device);
    let used = || -> Option<u64> {
        let totals = watched.as_ref().ok()?.read().ok()?.totals?;
        Some(totals.used.get())
    };
    let used_before = used();
    let trial = device.fill_under_cap(cap, piece, used)?;
    let [before, full, after] = trial.free;
    let taken = before.saturating_sub(full);
    let cap_row = Row::new(
        format!("a lease capped at {}, buffers of {}", mib(cap.get()), mib(piece.get())),
        Judgement::of(trial.placed <= cap && cap < trial.placed + piece && taken <= cap + SLACK),
        format!("{} placed, then refused", mib(trial.placed.get())),
        format!("free memory fell by {}; {}", mib(taken.get()), trial.refused),
    );
    let back = before.saturating_sub(after);
    let released = Row::new(
        "the lease's memory is free after its end",
        Judgement::of(back <= SLACK),
        if back <= SLACK { "yes" } else { "no" },
        format!("{} less free than before", mib(back.get())),
    );
    let seen = match (used_before, trial.observed) {
        (Some(before), Some(full)) if !arguments.dry_run => {
            let grown = full.saturating_sub(before);
            let judgement = Judgement::of(grown <= (cap + SLACK).get());
            Row::new(
                "the same, according to NVML",
                judgement,
                format!("use rose by {}", mib(grown)),
                "of the whole card",
            )
        }
        (Some(before), Some(full)) => {
            let figures = format!(
                "{} used before, {} with the lease full; the twin's figures come from a script",
                mib(before),
                mib(full)
            );
            Row::new("the same, according to NVML", Judgement::Skipped, "-", figures)
        }
        _ => {
            let why =
                watched.err().map_or("NVML has no totals for this card".to_owned(), |it| format!("{it:#}"));
            Row::new("the same, according to NVML", Judgement::Skipped, "-", why)
        }
    };
    Ok(vec![cap_row, released, seen])
}
