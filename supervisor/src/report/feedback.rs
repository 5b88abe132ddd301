//! Writes feedback on a candidate for its author, who may be a person or a model. It has at most 2 KiB of text.
//!
//! The feedback says, with figures, what happened and where, what that usually means, and what to try. Details for
//! programs are in `summary.json`.

mod emulated;

use std::borrow::Cow;
use std::fmt::Write as _;

use opt_shared::outcome::{Body, EntryFailure, EntryProfile, Mismatch, Pattern, Report, RunnerEnd, Status};
use opt_shared::units::Bytes;

use super::figures::{counted, one_line, percent, printable, small, speedup, time};
use crate::record::Stage;

/// The largest size of the feedback on an attempt, in bytes.
pub const MAX_FEEDBACK: usize = 2 << 10;
/// The longest excerpt of the compiler's output, of standard error or of standard output, in bytes. The rest of the
/// feedback is left for our own findings.
const MAX_EXCERPT: usize = 1200;
/// The longest line, in bytes, unless a line with a list of `MAX_ARGUMENTS` bytes needs more. All lines then get this
/// larger limit.
const MAX_LINE: usize = 400;
/// The longest list of an entry's arguments, in bytes.
const MAX_ARGUMENTS: usize = 500;

/// Returns the feedback on an attempt for which there is a report.
pub fn feedback(stage: Stage, report: &Report) -> String {
    let head = &report.head;
    let mut facts = Facts {
        failures: &head.failures,
        end: head.end.as_ref(),
        peak: head.peak_owed,
        baseline_failed: report.baseline_failed(),
        ..Facts::new(stage, head.status, &head.detail)
    };
    match &report.body {
        Body::Build(built) => facts.log = &built.log_head,
        Body::Verify(verified) => {
            facts.entries = Some((verified.entries_passed, verified.entries_run));
            facts.emulated = emulated::hints(&verified.emulated_kernels);
        }
        Body::Profile(profiled) => {
            facts.timed = least_gain(&profiled.entries);
            let why = |it: &EntryProfile| Some((it.entry.clone(), it.unvaried_because.clone()?));
            facts.unvaried = unvaried(profiled.entries.iter().filter_map(why));
        }
        Body::Replay(_) => {}
    }
    compose(&facts)
}

/// Names the timed entry with the smallest gain, or the slowest one without a baseline, with its figures.
fn least_gain(entries: &[EntryProfile]) -> Option<String> {
    let entry = entries.iter().min_by(|one, other| gain(one).total_cmp(&gain(other)))?;
    let (which, pace) = entry.speedup.as_ref().map_or_else(
        || ("The slowest entry", time(entry.times.median_time_ms)),
        |ratio| {
            let pace = format!("{}, {}", speedup(ratio), time(entry.times.median_time_ms));
            ("The entry with the least gain", pace)
        },
    );
    Some(format!("{which} is {} ({pace}, noise {})", entry.entry, percent(entry.noise)))
}

/// Names the entries whose results a kernel could have stored from an earlier call, with the reason for the first of
/// them. `entries` contains the names and the reasons.
fn unvaried(mut entries: impl Iterator<Item = (String, String)>) -> Option<String> {
    let (first, why) = entries.next()?;
    let more = match entries.count() {
        0 => String::new(),
        more => format!(" and {}", counted(more as u64, "more entry", "more entries")),
    };
    Some(format!("A kernel could remember the results of {first}{more}: {}.", one_line(&why)))
}

/// Returns the feedback on an attempt without a report, because its worker died or the attempt was never made.
pub fn feedback_without_report(stage: Stage, status: Status, detail: &str) -> String {
    compose(&Facts::new(stage, status, detail))
}

/// Returns the speed-up. If there is none, returns a figure that is smaller the slower the entry is.
fn gain(entry: &EntryProfile) -> f64 {
    entry.speedup.map_or(-entry.times.median_time_ms, |ratio| ratio.value)
}

/// The facts from which feedback is written.
struct Facts<'a> {
    stage: Stage,
    status: Status,
    detail: &'a str,
    log: &'a str,
    failures: &'a [EntryFailure],
    end: Option<&'a RunnerEnd>,
    peak: Option<Bytes>,
    /// The number of entries that passed, and the number of entries that were run.
    entries: Option<(u32, u32)>,
    /// The beginning of a sentence about the entry with the smallest gain.
    timed: Option<String>,
    /// A sentence about entries whose inputs did not vary.
    unvaried: Option<String>,
    baseline_failed: bool,
    /// Hints about work that a faster kernel could avoid, from the counts of the emulated device.
    emulated: Vec<String>,
}

impl<'a> Facts<'a> {
    fn new(stage: Stage, status: Status, detail: &'a str) -> Self {
        Self {
            stage,
            status,
            detail,
            log: "",
            failures: &[],
            end: None,
            peak: None,
            entries: None,
            timed: None,
            unvaried: None,
            baseline_failed: false,
            emulated: Vec::new(),
        }
    }
}

fn compose(facts: &Facts<'_>) -> String {
    let mut text = Text::default();
    text.line(&format!("{} in {}: {}", facts.status, facts.stage, sentence(facts)));
    if facts.baseline_failed {
        text.line("The baseline failed while it was timed beside the candidate, so there is nothing to change in the candidate.");
        return text.0;
    }
    let by_new_inputs = matches!(
        facts.status,
        Status::Nondeterministic
            | Status::OutOfBounds
            | Status::RuntimeError
            | Status::Crashed
            | Status::Timeout
    );
    let is_timed = matches!(facts.stage, Stage::Screen | Stage::Profile | Stage::Confirm);
    if is_timed && by_new_inputs {
        text.line("Timed calls can have new input values. If the kernel relies on a relation between inputs, or inside one, which the recorded values have and new ones need not have, name these inputs in `[job] constant`.");
    }
    match facts.status {
        Status::Passed => passed(facts, &mut text),
        Status::CompileError | Status::CompileTimeout => compilation(facts, &mut text),
        Status::LoadError => loading(facts, &mut text),
        Status::RuntimeError | Status::Unsupported => returned(facts, &mut text),
        Status::Crashed => crashed(facts, &mut text),
        Status::Timeout => timed_out(facts, &mut text),
        Status::HostMemoryLimit | Status::DeviceMemoryLimit | Status::LimitExceeded => {
            limited(facts, &mut text)
        }
        Status::IncorrectShape | Status::IncorrectDtype => write_shape_mismatch(facts, &mut text),
        Status::IncorrectNumerical | Status::UnwrittenOutput | Status::Nondeterministic => {
            wrong_values(facts, &mut text);
        }
        Status::OutOfBounds | Status::InputMutated => forbidden_write(facts, &mut text),
        Status::TooFast | Status::TimingMismatch | Status::DeferredWork => refused_time(facts, &mut text),
        Status::CaptureError | Status::DoesNotFit | Status::Skipped | Status::InfraError => {
            not_the_candidate(facts, &mut text);
        }
    }
    text.0
}

/// Returns the reported detail. If there is none, returns the detail of the first failing entry, or else a sentence
/// that fits the status.
fn sentence(facts: &Facts<'_>) -> String {
    let reported = one_line(facts.detail.trim());
    if !reported.is_empty() {
        return reported;
    }
    match facts.failures.first() {
        Some(failure) => format!("{}: {}", failure.entry, one_line(&failure.detail)),
        None if facts.status == Status::Passed => "no fault was found".to_owned(),
        None => "nothing more is known".to_owned(),
    }
}

fn passed(facts: &Facts<'_>, text: &mut Text) {
    text.line("There is nothing to correct.");
    if let Some((passed, run)) = facts.entries {
        text.line(&format!("{passed} of {run} entries match."));
    }
    if let Some(worst) = &facts.timed {
        text.line(&format!("{worst}: start there to get faster."));
    }
    facts.unvaried.iter().for_each(|sentence| text.line(sentence));
    facts.emulated.iter().for_each(|hint| text.line(&one_line(hint)));
}

fn compilation(facts: &Facts<'_>, text: &mut Text) {
    if facts.status == Status::CompileTimeout {
        text.line(
            "The compiler was stopped. Less template recursion, fewer unrolled loops or a lower -O level may help.",
        );
    } else {
        text.line("Fix the first error; the others often follow from it.");
    }
    text.first_part("compiler", facts.log);
}

fn loading(facts: &Facts<'_>, text: &mut Text) {
    text.line(
        "The candidate was built but could not be loaded. Usual causes are an undefined symbol, a missing library or \
         module, and code that runs during loading (a constructor of a global object, the body of a module) and fails.",
    );
    ending(facts, text);
}

fn returned(facts: &Facts<'_>, text: &mut Text) {
    let detail = facts.failures.first().map_or(facts.detail, |failure| &failure.detail);
    if facts.status == Status::Unsupported && detail.contains("device does not") {
        text.line("The device lacks a feature that this kernel uses. The kernel may pass on another device.");
    } else if facts.status == Status::Unsupported {
        text.line("The function returned -2 (in Python, NotImplemented), so it does not support this entry. A candidate that does not support every entry is ranked only with `partial = true`.");
    } else {
        // The detail is a traceback, or the runner's own message about a value.
        text.line(if detail.contains(".py:") || detail.contains("it returned") {
            "Return the outputs as plain tensors on the CPU, or write to the output tensors if the function gets them. Do not let an exception escape."
        } else {
            "The function must return 0 and write its results into the output tensors, which are its last arguments. (A function built with tvm-ffi may return them instead, if it does not take them.)"
        });
    }
    entry(facts, text);
    ending(facts, text);
}

fn crashed(facts: &Facts<'_>, text: &mut Text) {
    entry(facts, text);
    let signal = facts.end.and_then(|end| end.signal.as_deref());
    text.line(match signal {
        Some("SIGSEGV" | "SIGBUS") => {
            "The candidate accessed memory that is not mapped, or wrote to read-only memory: check every index against \
             the shapes above, null data of zero-size tensors, and strides of inputs that are not contiguous."
        }
        Some("SIGABRT") => "The code aborted. The cause may be an assertion, an exception that escaped, or a damaged heap.",
        Some("SIGFPE") => "An integer was divided by zero, or the smallest integer by -1.",
        Some("SIGILL") => {
            "The candidate executed a trap, or an instruction that this CPU does not have. Check -march and \
             unreachable code."
        }
        Some("SIGSYS") => "The candidate made a system call that candidates may not make.",
        _ => "The process ended during a call or between calls, or the kernel failed on the device. A candidate must return from its calls.",
    });
    ending(facts, text);
}

fn timed_out(facts: &Facts<'_>, text: &mut Text) {
    entry(facts, text);
    text.line(if facts.detail.contains("after SIGSTOP") {
        "The process could not be stopped after the call: do not leave a thread in a system call that only SIGKILL interrupts."
    } else {
        "The call, or loading, did not end in time: look for an endless loop, a deadlock between threads, or far more work than the shapes need."
    });
    ending(facts, text);
}

fn limited(facts: &Facts<'_>, text: &mut Text) {
    entry(facts, text);
    let is_about_memory = facts.status != Status::LimitExceeded;
    if let Some(peak) = facts.peak.filter(|&peak| is_about_memory && peak != Bytes::ZERO) {
        text.line(&format!("The highest owed memory was {peak}."));
    }
    text.line(match facts.status {
        Status::LimitExceeded => "Leave out code and data that the kernel does not need: the artifact may have at most `build.max_artifact`.",
        Status::HostMemoryLimit if facts.stage == Stage::Build => {
            "The compiler needed more memory than `build.memory` allows. Less template recursion, fewer unrolled \
             loops or a lower -O level may help."
        }
        Status::DeviceMemoryLimit => "Use less device memory: reuse workspace, or work in tiles.",
        _ => "Use less memory beyond the outputs: do not copy whole inputs, work in tiles, and free what a call allocates. `limits.memory` is the limit.",
    });
    ending(facts, text);
}

fn write_shape_mismatch(facts: &Facts<'_>, text: &mut Text) {
    entry(facts, text);
    text.line("The caller allocates the outputs with the recorded shape, dtype and strides. Write into them. A kernel that returns its outputs must return tensors of that form.");
    ending(facts, text);
}

fn wrong_values(facts: &Facts<'_>, text: &mut Text) {
    entry(facts, text);
    match facts.failures.iter().find_map(|failure| failure.mismatch.as_ref()) {
        Some(found) => mismatch(facts.status, found, text),
        None => text.line(match facts.status {
            Status::UnwrittenOutput => "Some elements of the output were never written.",
            Status::Nondeterministic => {
                "Calls with the same inputs gave different outputs, or the emulated device found a race."
            }
            _ => "The output differs from the recorded one.",
        }),
    }
    if facts.status == Status::Nondeterministic {
        text.line("Look for a race between threads, results kept from an earlier call, memory that is read before it is written, and sums whose order changes.");
    }
    if let Some((passed, run)) = facts.entries {
        text.line(&format!("{passed} of {run} entries that were run match."));
    }
    ending(facts, text);
}

fn mismatch(status: Status, found: &Mismatch, text: &mut Text) {
    text.line(&format!(
        "{} {}{:?} at {:?}: expected {}, got {} (absolute error {}, relative {}).",
        found.output,
        found.dtype,
        found.shape,
        found.index,
        one_line(&found.expected),
        one_line(&found.actual),
        small(found.absolute_error),
        small(found.relative_error)
    ));
    text.line(&format!(
        "{} of {} elements fail; relative L2 error {} (allowed {}); rtol {}, atol {}.",
        found.failed,
        found.elements,
        small(found.relative_l2),
        small(found.tolerance.rel_l2),
        small(found.tolerance.rtol),
        small(found.tolerance.atol)
    ));
    if (found.actual_nan, found.actual_inf) != (found.expected_nan, found.expected_inf) {
        text.line(&format!(
            "NaN: {} (expected {}); infinities: {} (expected {}).",
            found.actual_nan, found.expected_nan, found.actual_inf, found.expected_inf
        ));
    }
    if let (Some([expected_low, expected_high]), Some([low, high])) =
        (&found.expected_range, &found.actual_range)
    {
        text.line(&format!(
            "Range: {} to {}, expected {} to {}.",
            one_line(low),
            one_line(high),
            one_line(expected_low),
            one_line(expected_high)
        ));
    }
    if status != Status::Nondeterministic {
        text.line(&hint(found));
    }
}

/// Describes the usual cause of this pattern of bad elements.
fn hint(found: &Mismatch) -> String {
    match found.pattern {
        Pattern::All => {
            "Every element is wrong. Check the formula, a scale, the order of the arguments, or the dtype in which \
                         the sum is kept, rather than an index at the edge."
                .to_owned()
        }
        Pattern::Tail { from } => format!(
            "Everything before element {from} is right, and everything from there on is wrong: the remainder after the \
             last full tile or vector is not handled, or an index overflows."
        ),
        Pattern::FromRow { row } => format!(
            "The rows before row {row} are right, and all rows from there on are wrong: look at how rows are split \
             over threads or tiles, and at index types that overflow."
        ),
        Pattern::StillPoisoned => {
            "These elements still have the value with which the output was filled: they were never \
                                   written. The loop or the grid does not reach them."
                .to_owned()
        }
        Pattern::Scattered => {
            let first: Vec<String> =
                found.bad_indices.iter().take(4).map(|index| format!("{index:?}")).collect();
            format!(
                "The bad elements are scattered ({}). The cause may be rounding in a long sum, a race, or one branch of the formula.",
                first.join(", ")
            )
        }
    }
}

fn forbidden_write(facts: &Facts<'_>, text: &mut Text) {
    entry(facts, text);
    text.line(match facts.status {
        Status::InputMutated => "Inputs are read-only: work in the output or in your own memory.",
        _ => "Memory outside an output was written, or memory beside an input or output was accessed: check the last tile, every index, and the strides.",
    });
    ending(facts, text);
}

fn refused_time(facts: &Facts<'_>, text: &mut Text) {
    entry(facts, text);
    text.line(match facts.status {
        Status::TooFast => "No machine moves this many bytes in this time: the work was skipped, or an earlier result was kept. Every call must do its work.",
        Status::DeferredWork => "The candidate worked while no call was running. Every call must do its own work and finish it, in all threads, before it returns. Threads that wait must sleep, not spin.",
        _ => "The times measured inside and outside of the call differ: do not change clocks, and do the work within the call.",
    });
    ending(facts, text);
}

fn not_the_candidate(facts: &Facts<'_>, text: &mut Text) {
    text.line(match facts.status {
        Status::CaptureError => "The capture could not be used, and there is nothing to change in the candidate.",
        Status::DoesNotFit => "A memory ceiling (see `check`) or `run.max_artifacts` is too small for this candidate, but there is nothing to change in the candidate.",
        Status::Skipped => "The candidate was skipped, so it has no verdict.",
        _ => "A worker or the host failed, not the candidate, so there is nothing to change in the candidate. `run --resume` tries again.",
    });
}

/// Writes the first failing entry and its arguments.
fn entry(facts: &Facts<'_>, text: &mut Text) {
    let Some(failure) = facts.failures.first() else { return };
    let arguments = one_line(&failure.args.join(", "));
    text.line(&format!("Entry {}({}).", failure.entry, head(&arguments, MAX_ARGUMENTS)));
    let detail = one_line(&failure.detail);
    if !detail.is_empty() && !sentence(facts).contains(&detail) {
        text.line(&detail);
    }
}

fn ending(facts: &Facts<'_>, text: &mut Text) {
    let Some(end) = facts.end else { return };
    match (&end.signal, end.exit_code) {
        (Some(signal), _) => text.line(&format!("The process was ended by {}.", one_line(signal))),
        (None, Some(code)) => text.line(&format!("The process ended with exit code {code}.")),
        (None, None) => {}
    }
    text.last_part("standard error", &end.stderr_tail);
    text.last_part("standard output", &end.stdout_tail);
}

/// A text whose size is limited. What does not fit is cut off.
#[derive(Default)]
struct Text(String);

impl Text {
    fn line(&mut self, line: &str) {
        let line = head(line, MAX_LINE.max(MAX_ARGUMENTS + 64));
        let line = head(&line, MAX_FEEDBACK.saturating_sub(self.0.len() + 1)).into_owned();
        if !line.is_empty() && self.0.len() + line.len() < MAX_FEEDBACK {
            // Writing to a string cannot fail.
            let _ = writeln!(self.0, "{line}");
        }
    }

    /// Adds the first part of a foreign text.
    fn first_part(&mut self, name: &str, foreign: &str) {
        self.part(name, foreign, head);
    }

    /// Adds the last part of a foreign text.
    fn last_part(&mut self, name: &str, foreign: &str) {
        self.part(name, foreign, tail);
    }

    fn part(&mut self, name: &str, foreign: &str, cut: for<'t> fn(&'t str, usize) -> Cow<'t, str>) {
        let foreign = printable(foreign);
        let foreign = foreign.trim_end();
        let title = format!("--- {name}:\n");
        let room = MAX_FEEDBACK.saturating_sub(self.0.len() + title.len() + 1).min(MAX_EXCERPT);
        if foreign.trim().is_empty() || room < "…".len() + 1 {
            return;
        }
        let _ = writeln!(self.0, "{title}{}", cut(foreign, room));
    }
}

/// Returns the beginning of the text, at most `limit` bytes.
fn head(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit {
        return text.into();
    }
    let cut = text.floor_char_boundary(limit.saturating_sub("…".len()));
    if limit < "…".len() { "".into() } else { format!("{}…", &text[..cut]).into() }
}

/// Returns the end of the text, at most `limit` bytes.
fn tail(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit {
        return text.into();
    }
    let Some(room) = limit.checked_sub("…".len()) else { return "".into() };
    let cut = text.ceil_char_boundary(text.len() - room);
    format!("…{}", &text[cut..]).into()
}

#[cfg(test)]
mod tests;
