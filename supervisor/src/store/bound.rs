//! Limits the length of texts in the store, because most texts come from untrusted programs (compilers, candidates).
//! All lengths are in bytes.

use std::borrow::Cow;

use opt_shared::outcome::{Body, EntryFailure, Report, RunnerEnd};

/// The length limit of a name or path, which is the same as Linux's `PATH_MAX`. If the name of a job or candidate is
/// longer, it is refused instead of cut, because these names must stay distinct.
pub(super) const MAX_NAME: usize = 4096;
/// The length limit of a one-line detail.
pub(super) const MAX_DETAIL: usize = 4 << 10;
/// The length limit of feedback.
pub(super) const MAX_FEEDBACK: usize = 2 << 10;
/// The length limit of an excerpt of a compiler's output, and of the end of a runner's output.
pub(super) const MAX_LOG: usize = 64 << 10;
/// The length limit of the numbers of one policy row, as JSON.
pub(super) const MAX_NUMBERS: usize = 16 << 10;
/// The length limit of a value in the table `meta`. It is enough for a resolved plan with thousands of candidates that
/// have their own settings.
pub(super) const MAX_META: usize = 64 << 20;
/// The length limit of a report whose texts have been cut. It is enough for a hundred thousand timed entries. A worker
/// that sends more is broken.
pub(super) const MAX_REPORT: usize = 128 << 20;
/// The maximum number of failing entries that are kept for each attempt.
const MAX_FAILURES: usize = 16;
/// The maximum number of arguments that are kept for each failing entry, and the length limit of each argument.
const MAX_ARGUMENTS: usize = 256;
const MAX_ARGUMENT: usize = 512;
/// The maximum number of arguments that are kept of a compiler's command.
const MAX_COMMAND: usize = 1024;

const CUT: &str = " […]";

/// Returns the text. If the text is too long, returns its beginning, with a mark that it was cut.
pub(super) fn clip(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit {
        return Cow::Borrowed(text);
    }
    let head = text.floor_char_boundary(limit.saturating_sub(CUT.len()));
    Cow::Owned(format!("{}{CUT}", &text[..head]))
}

fn clip_in_place(text: &mut String, limit: usize) {
    if let Cow::Owned(shorter) = clip(text, limit) {
        *text = shorter;
    }
}

/// Cuts the parts of a report that may be long to their limits: texts, failing entries and their arguments, and the
/// compiler's command. Status, figures and timed entries stay complete.
pub(super) fn clip_report(report: &mut Report) {
    clip_in_place(&mut report.head.detail, MAX_DETAIL);
    clip_failures(&mut report.head.failures);
    clip_end(report.head.end.as_mut());
    if let Body::Build(built) = &mut report.body {
        clip_in_place(&mut built.log_head, MAX_LOG);
        built.command.truncate(MAX_COMMAND);
        for part in &mut built.command {
            clip_in_place(part, MAX_NAME);
        }
        if let Some(compiler) = &mut built.compiler {
            clip_in_place(compiler, MAX_DETAIL);
        }
    }
}

fn clip_failures(failures: &mut Vec<EntryFailure>) {
    failures.truncate(MAX_FAILURES);
    for failure in failures {
        clip_in_place(&mut failure.detail, MAX_DETAIL);
        failure.args.truncate(MAX_ARGUMENTS);
        for argument in &mut failure.args {
            clip_in_place(argument, MAX_ARGUMENT);
        }
        if let Some(mismatch) = &mut failure.mismatch {
            clip_in_place(&mut mismatch.expected, MAX_ARGUMENT);
            clip_in_place(&mut mismatch.actual, MAX_ARGUMENT);
        }
    }
}

fn clip_end(end: Option<&mut RunnerEnd>) {
    if let Some(end) = end {
        clip_in_place(&mut end.stderr_tail, MAX_LOG);
        clip_in_place(&mut end.stdout_tail, MAX_LOG);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn clipped_text_keeps_its_beginning_and_stays_within_the_limit(text in "\\PC{0,80}", limit in 8usize..64) {
            let clipped = clip(&text, limit);
            prop_assert!(clipped.len() <= limit);
            if text.len() <= limit {
                prop_assert_eq!(clipped, text.as_str());
            } else {
                prop_assert!(clipped.ends_with(CUT));
                prop_assert!(text.starts_with(clipped.trim_end_matches(CUT)));
            }
        }
    }
}
