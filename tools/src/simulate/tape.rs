//! A tape of choices, one byte each. After its end, every byte is 0, which always chooses the case without a failure.

use std::time::Duration;

use opt_shared::units::Bytes;

pub(crate) struct Tape {
    bytes: Vec<u8>,
    at: usize,
}

impl Tape {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), at: 0 }
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    /// Returns one of the choices. After the end of the tape, this is always the first one.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// Returns true for one in eight values of the next byte, but always false after the end of the tape.
    pub(crate) fn seldom(&mut self) -> bool {
        self.byte() % 8 == 7
    }

    /// Returns a time from 1 to 256 milliseconds.
    pub(crate) fn soon(&mut self) -> Duration {
        Duration::from_millis(1 + u64::from(self.byte()))
    }

    /// Returns an amount from 0 to `most` MiB.
    pub(crate) fn mib(&mut self, most: u64) -> Bytes {
        Bytes::mib(u64::from(self.byte()) * most / 255)
    }
}
