//! Generates deterministic random numbers by index: any element of a tensor can be computed without the elements before
//! it.
//!
//! A gathered row can therefore be written without its table in memory. The generator is SplitMix64 over a counter. It
//! is cheap, gives the same numbers on every machine, and is random enough for weights.

use std::io::{self, Write};

/// The number of elements of a bfloat16 table in one word.
const BF16_PER_WORD: u64 = 4;
/// The number of words that are generated at a time and then written.
const CHUNK_WORDS: u64 = 32 * 1024;

/// One stream of random numbers, identified by a seed and further parts. Different identities give different streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    key: u64,
}

impl Numbers {
    /// Returns the stream that the seed and `parts` identify. The parts are the kind of tensor, then the entry or
    /// table.
    pub(crate) fn new(seed: u64, parts: &[u64]) -> Self {
        Self { key: parts.iter().fold(mix(seed), |key, &part| mix(key ^ mix(part.wrapping_add(1)))) }
    }

    pub(crate) fn word(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Returns a number in 0..limit, almost uniformly (limits are far below 2^32). Returns 0 if the limit is 0.
    pub(crate) fn below(self, index: u64, limit: u64) -> u64 {
        ((u128::from(self.word(index)) * u128::from(limit)) >> 64) as u64
    }

    /// Returns a number in 0..1.
    pub(crate) fn fraction(self, index: u64) -> f64 {
        (self.word(index) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a random number with mean 0 and variance 1 and roughly a normal distribution. It is the sum of four
    /// uniform 16-bit numbers, shifted and scaled.
    pub(crate) fn f32(self, index: u64) -> f32 {
        const MEAN: f64 = 2.0 * 65_535.0;
        const DEVIATION: f64 = 37_837.0; // 2 * 65536 / sqrt(12)
        let word = self.word(index);
        let sum: u64 = (0..4).map(|quarter| (word >> (16 * quarter)) & 0xffff).sum();
        ((sum as f64 - MEAN) / DEVIATION) as f32
    }

    /// Returns four bfloat16 numbers of a table: random sign and mantissa, magnitude from 2^-7 to 2, never NaN.
    fn bf16_word(self, index: u64) -> u64 {
        // Each element has a random sign, an exponent of 120 to 127 (01111, then three random bits), and a random
        // mantissa.
        (self.word(index) & 0x83ff_83ff_83ff_83ff) + 0x3c00_3c00_3c00_3c00
    }

    /// Writes `count` bfloat16 numbers, beginning with number `first`. Both must be multiples of four, like the width
    /// of a table.
    pub(crate) fn write_bf16(self, sink: &mut dyn Write, first: u64, count: u64) -> io::Result<()> {
        debug_assert!(first.is_multiple_of(BF16_PER_WORD) && count.is_multiple_of(BF16_PER_WORD));
        let (mut index, end) = (first / BF16_PER_WORD, (first + count) / BF16_PER_WORD);
        let mut buffer = Vec::new();
        while index < end {
            let chunk_end = end.min(index + CHUNK_WORDS);
            buffer.clear();
            buffer.extend((index..chunk_end).flat_map(|word| self.bf16_word(word).to_le_bytes()));
            sink.write_all(&buffer)?;
            index = chunk_end;
        }
        Ok(())
    }
}

/// SplitMix64's finalizer.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;
    use opt_shared::units::to_index;

    #[test]
    fn single_rows_equal_the_rows_of_the_table() {
        let numbers = Numbers::new(7, &[1]);
        let (rows, width) = (300, 1352);
        let mut table = Vec::new();
        numbers.write_bf16(&mut table, 0, rows * width).unwrap();
        assert_eq!(table.len() as u64, rows * width * 2);
        for row in [0, 17, 299] {
            let mut row_bytes = Vec::new();
            numbers.write_bf16(&mut row_bytes, row * width, width).unwrap();
            assert_eq!(row_bytes, table[to_index(row * width * 2)..][..to_index(width * 2)], "row {row}");
        }
    }

    #[test]
    fn table_elements_are_small_finite_numbers_of_both_signs() {
        let mut bytes = Vec::new();
        Numbers::new(0, &[0]).write_bf16(&mut bytes, 0, 4096).unwrap();
        let values: Vec<f32> =
            bytes.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect();
        assert!(values.iter().all(|value| (0.0078..2.0).contains(&value.abs())));
        assert!(values.iter().any(|&value| value < 0.0) && values.iter().any(|&value| value > 1.0));
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let numbers = Numbers::new(3, &[2, 5]);
        let values: Vec<f64> = (0..20_000).map(|index| f64::from(numbers.f32(index))).collect();
        let mean = values.iter().sum::<f64>() / 20_000.0;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }

    #[test]
    fn each_part_of_the_identity_changes_the_stream() {
        let words: Vec<u64> = [(0, vec![0]), (1, vec![0]), (0, vec![1]), (0, vec![0, 0]), (0, vec![0, 1])]
            .iter()
            .map(|(seed, parts)| Numbers::new(*seed, parts).word(0))
            .collect();
        let distinct: std::collections::BTreeSet<_> = words.iter().collect();
        assert_eq!(distinct.len(), words.len());
    }
}
