//! Keeps a few file descriptors in reserve, so that runners can be watched even when this process may open no more
//! files.

use std::fs::File;

/// The number of descriptors in reserve. Even with a limit of 64 open files, enough others remain.
const SIZE: usize = 8;
/// The most descriptors that watching one runner takes.
const PORTION: usize = 4;

#[derive(Default)]
pub(super) struct KeptDescriptors {
    files: Vec<File>,
}

impl KeptDescriptors {
    /// Closes as many of the descriptors as are needed to watch one runner.
    pub(super) fn release(&mut self) {
        self.files.truncate(self.files.len().saturating_sub(PORTION));
    }

    /// Opens descriptors until the reserve is complete again, or no more can be opened.
    pub(super) fn refill(&mut self) {
        while self.files.len() < SIZE {
            let Ok(file) = File::open("/dev/null") else { return };
            self.files.push(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_portion_is_released_at_a_time_and_can_be_opened_again() {
        let mut kept = KeptDescriptors::default();
        kept.release();
        for expected in [SIZE, SIZE - PORTION, SIZE - 2 * PORTION, 0] {
            if expected == SIZE {
                kept.refill();
            } else {
                kept.release();
            }
            assert_eq!(kept.files.len(), expected);
        }
    }
}
