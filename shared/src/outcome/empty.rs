//! Reports of what has not been done yet, or never will be. What they mean is `outcome`'s.

use super::{ReadReport, Status, VerifyReport};
use crate::units::Bytes;

impl VerifyReport {
    /// Before any entry was called, or instead.
    pub fn of_nothing(status: Status, detail: String) -> Self {
        Self {
            status,
            detail,
            entries_run: 0,
            entries_passed: 0,
            entries_unsupported: 0,
            unsupported: Vec::new(),
            max_absolute_error: 0.0,
            max_relative_error: 0.0,
            worst: None,
            failures: Vec::new(),
            bytes_validated: Bytes::ZERO,
            output_truncated: false,
            end: None,
            ms: 0.0,
            runner_peak_owed: Bytes::ZERO,
            reads: ReadReport::default(),
        }
    }
}
