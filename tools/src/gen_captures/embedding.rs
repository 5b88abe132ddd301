//! Generates the large embedding set: two bfloat16 tables, each saved whole in every other entry, as a model's run
//! would save them.
//!
//! The captures of the incident that led to this project had the same form (51 GiB, two tables ten times each). The
//! tables generated here are narrower, so that 20 entries take about 8 GB. Outputs are gathered rows, and therefore
//! exact.

use anyhow::{Result, ensure};
use opt_shared::units::Bytes;

use crate::capture::{Argument, Capture, Values};
use crate::numbers::Numbers;
use crate::pickle::{Element, PickleValue};

/// The widths of the two tables, which alternate in this order. They are multiples of four, because `numbers.rs`
/// generates four elements at a time.
const WIDTHS: [u64; 2] = [1352, 240];
/// The number of rows of each table if no total is given.
const DEFAULT_ROWS: u64 = 262_144;
const MIN_INDICES: u64 = 16;
const MAX_INDICES: u64 = 2048;

/// The identifiers of the streams of random numbers.
const TABLE: u64 = 0;
const INDICES: u64 = 1;
const LENGTHS: u64 = 2;

#[derive(Clone, Copy, Debug)]
pub(crate) struct EmbeddingSet {
    pub(crate) entries: u32,
    rows: u64,
    widths: [u64; 2],
    /// Whether small indices are more frequent, like common words. If false, all indices are equally likely.
    of_words: bool,
    seed: u64,
}

impl EmbeddingSet {
    /// Creates a set. If `total` is given, the number of rows is chosen so that the whole set has about this size.
    pub(crate) fn new(entries: u32, total: Option<Bytes>, seed: u64) -> Result<Self> {
        ensure!(entries > 0, "a set needs at least one entry (pass --entries 1 or more)");
        let widths: u64 = (0..entries).map(|entry| width(WIDTHS, entry)).sum();
        let rows = total.map_or(DEFAULT_ROWS, |total| total.get() / (widths * Element::Bf16.bytes()));
        ensure!(
            rows > 0,
            "{} is too small for {entries} entries with tables of one row (pass a larger --total or fewer --entries)",
            total.unwrap_or_default()
        );
        Ok(Self { entries, rows, widths: WIDTHS, of_words: false, seed })
    }

    /// Creates a set with indices like those of a tokenizer. An index is the rank of a word, and a word of rank r is
    /// about 1/r times as frequent as the first word.
    pub(crate) fn of_words(entries: u32, rows: u64, widths: [u64; 2], seed: u64) -> Self {
        Self { entries, rows, widths, of_words: true, seed }
    }

    pub(crate) fn capture(self, entry: u32) -> Capture<'static> {
        let width = width(self.widths, entry);
        let rows = self.rows;
        let table = Numbers::new(self.seed, &[TABLE, width]);
        let positions = Numbers::new(self.seed, &[INDICES, u64::from(entry)]);
        let span = (MAX_INDICES as f64 / MIN_INDICES as f64).ln();
        let length = Numbers::new(self.seed, &[LENGTHS]).fraction(u64::from(entry));
        let count = (MIN_INDICES as f64 * (length * span).exp()).round() as u64;
        let of_words = self.of_words;
        let index = move |position: u64| match of_words {
            true => ((rows as f64).powf(positions.fraction(position)) as u64).clamp(1, rows) - 1,
            false => positions.below(position, rows),
        };

        let indices = Values {
            element: Element::I64,
            shape: vec![1, count],
            fill: Box::new(move |sink| {
                (0..count).try_for_each(|position| sink.write_all(&index(position).to_le_bytes()))
            }),
        };
        let weight = Values {
            element: Element::Bf16,
            shape: vec![rows, width],
            fill: Box::new(move |sink| table.write_bf16(sink, 0, rows * width)),
        };
        let output = Values {
            element: Element::Bf16,
            shape: vec![1, count, width],
            fill: Box::new(move |sink| {
                (0..count).try_for_each(|position| table.write_bf16(sink, index(position) * width, width))
            }),
        };
        Capture {
            function_name: "torch.nn.functional.embedding",
            arguments: vec![
                Argument::tensor("input", indices),
                Argument::tensor("weight", weight),
                Argument::at_default("padding_idx", PickleValue::None),
                Argument::at_default("max_norm", PickleValue::None),
                Argument::at_default("norm_type", PickleValue::Float(2.0)),
                Argument::at_default("scale_grad_by_freq", PickleValue::Bool(false)),
                Argument::at_default("sparse", PickleValue::Bool(false)),
            ],
            output,
        }
    }
}

fn width(widths: [u64; 2], entry: u32) -> u64 {
    widths[entry as usize % widths.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_set_is_about_eight_gigabytes() {
        let set = EmbeddingSet::new(20, None, 0).unwrap();
        let total: Bytes = (0..20).map(|entry| set.capture(entry).estimate()).sum();
        assert!((8_300_000_000..8_500_000_000).contains(&total.get()), "{total}");
    }

    #[test]
    fn total_is_met_except_for_the_outputs_and_refused_if_too_small() {
        let asked = Bytes::mib(64);
        let set = EmbeddingSet::new(4, Some(asked), 1).unwrap();
        let total: Bytes = (0..4).map(|entry| set.capture(entry).estimate()).sum();
        assert!(total.get() > asked.get() * 99 / 100 && total < asked + Bytes::mib(16), "{total}");
        assert!(EmbeddingSet::new(20, Some(Bytes::kib(1)), 0).is_err());
    }
}
