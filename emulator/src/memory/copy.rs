//! Copies bytes within global memory. Copies of bytes that were never written are also marked as never written.

use super::Heap;
use crate::fault::Fault;

/// The number of bytes that are copied at a time.
const PIECE: u64 = 4096;

impl Heap {
    /// Copies bytes within the device, including the marks of bytes that were never written. The ranges may overlap.
    pub fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), Fault> {
        if bytes == 0 {
            return Ok(());
        }
        let (source, source_offset) = self.containing(from, bytes)?;
        let (target, target_offset) = self.changeable(to, bytes)?;
        let pieces = bytes.div_ceil(PIECE);
        for number in 0..pieces {
            // The pieces are copied in such an order that each has been copied before it is overwritten.
            let at = PIECE * if from < to { pieces - 1 - number } else { number };
            let length = PIECE.min(bytes - at);
            let piece = &mut [0; PIECE as usize][..length as usize];
            let (from, to) = (source_offset + at, target_offset + at);
            source.read(from, piece);
            let written: Vec<bool> = match source.tracks_writes() {
                true => (0..length).map(|byte| source.is_written(from + byte, 1)).collect(),
                false => Vec::new(),
            };
            target.write(to, piece);
            for (byte, _) in (0..).zip(written).filter(|(_, written)| !written) {
                target.forget(to + byte, 1);
            }
        }
        Ok(())
    }
}
