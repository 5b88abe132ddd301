//! Composes the row of the policy log which says how a verification read its inputs.

use opt_shared::ids::CandidateId;
use opt_shared::outcome::{Body, Report};
use opt_shared::units::Bytes;

use crate::core::event::PolicyRow;

/// Returns the row. Returns `None` if the report comes from another stage, or if there was no choice of how to read
/// because the inputs were small or in the cache.
pub(crate) fn policy_row(candidate: CandidateId, report: &Report) -> Option<PolicyRow> {
    let Body::Verify(verified) = &report.body else { return None };
    let reads = verified.reads;
    let reason = match (reads.page_by_page, reads.left_to_kernel, reads.turned) {
        (0, 0, _) => return None,
        (0, ..) => "left to Linux, which does not report what is in the cache",
        (_, _, 0) => "page by page, because no input was read as a whole",
        _ => "page by page at first, then ahead for inputs that were read as a whole",
    };
    let mut numbers = vec![
        ("candidate", u64::from(candidate.0)),
        ("page_by_page", u64::from(reads.page_by_page)),
        ("turned", u64::from(reads.turned)),
        ("left_to_kernel", u64::from(reads.left_to_kernel)),
        ("turned_after_bytes", reads.turned_after_bytes.get()),
        ("touched_bytes", reads.touched_bytes.get()),
        ("ahead_bytes", reads.ahead_bytes.get()),
    ];
    let cached = [
        ("cached_before_bytes", reads.cached_before_bytes),
        ("cached_after_bytes", reads.cached_after_bytes),
    ];
    numbers.extend(cached.into_iter().filter_map(|(name, bytes)| Some((name, bytes.map(Bytes::get)?))));
    Some(PolicyRow { decision: "read_ahead", reason: reason.to_owned(), numbers })
}
