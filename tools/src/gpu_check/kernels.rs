//! Runs kernels on the device and on the emulated device, and compares both with the right results and with each other.

use std::time::Duration;

use anyhow::{Error, Result};
use opt_worker::trial::{TrialDevice, TrialEnd};

use crate::Arguments;
use crate::cases::{self, Case, Expected};
use crate::row::{Judgement, Row};
use crate::steps::Step;

/// The time limit for one kernel. On a card, each kernel takes milliseconds.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);
/// The relative and absolute tolerance. The sums are short, and the approximate exponential of `softmax/fast` is the
/// least exact operation.
const TOLERANCE: f64 = 1e-4;

pub(crate) struct Answer {
    pub(crate) is_right: bool,
    pub(crate) text: String,
    output: Option<Vec<u8>>,
}

/// Runs the kernels of a step. Sends each row as soon as it is complete, so the list that it returns is empty.
pub(crate) fn rows(step: Step, arguments: &Arguments) -> Result<Vec<Row>> {
    let device = TrialDevice::card(arguments.device).map_err(Error::msg)?;
    let emulated = TrialDevice::emulated();
    let mut rows = Vec::new();
    for case in cases::of(step) {
        let limit = arguments.limit(LIMIT);
        let (one, other) = (answer(&case, &device, limit), answer(&case, &emulated, limit));
        let comparison = compared(&one, &other);
        let judgement = Judgement::of(one.is_right && other.is_right);
        let row = Row::new(&case.name, judgement, &one.text, comparison).emulated(&other.text);
        // Send the row at once, because a fault in a later kernel may end the process.
        row.send()?;
        rows.push(row);
    }
    anyhow::ensure!(!rows.is_empty(), "the step has no kernels");
    Ok(Vec::new())
}

/// Runs a case on a device, and compares its output with the right one.
pub(crate) fn answer(case: &Case, device: &TrialDevice, limit: Duration) -> Answer {
    let wrong = |text: String| Answer { is_right: false, text, output: None };
    match device.run(case.image, &case.buffers, &case.launches, limit) {
        TrialEnd::Fault(fault) => wrong(fault.to_string()),
        TrialEnd::Endless => wrong(format!("not complete after {} s", limit.as_secs())),
        TrialEnd::Over { stores_beyond: Some(buffer), .. } => {
            wrong(format!("stored past the end of buffer {buffer}"))
        }
        TrialEnd::Over { mut buffers, stores_beyond: None } => {
            let output = buffers.swap_remove(case.output);
            let (is_right, text) = judged(&output, &case.expected);
            Answer { is_right, text, output: Some(output) }
        }
    }
}

fn judged(output: &[u8], expected: &Expected) -> (bool, String) {
    let (found, expected) = match expected {
        Expected::Bytes(expected) if output == expected => return (true, "correct, bit for bit".to_owned()),
        Expected::Bytes(_) => return (false, "WRONG: other bytes".to_owned()),
        Expected::Floats(expected) => (floats(output), expected),
    };
    // A NaN counts as an infinite error.
    let mut worst = 0.0_f64;
    let mut wrong = 0;
    for (found, expected) in found.iter().zip(expected) {
        let error = (f64::from(*found) - expected).abs();
        let is_close = error <= TOLERANCE * (1.0 + expected.abs());
        wrong += usize::from(!is_close);
        worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
    }
    if wrong == 0 && found.len() == expected.len() {
        (true, format!("correct, error up to {worst:.1e}"))
    } else {
        (false, format!("WRONG: {wrong} of {} values, error up to {worst:.1e}", expected.len()))
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let values = bytes.chunks_exact(size_of::<f32>());
    values.filter_map(|word| word.try_into().ok().map(f32::from_le_bytes)).collect()
}

fn compared(one: &Answer, other: &Answer) -> String {
    let (Some(one), Some(other)) = (&one.output, &other.output) else { return String::new() };
    if one == other {
        return "the same bits on both".to_owned();
    }
    let (one, other) = (floats(one), floats(other));
    let differ = one.iter().zip(&other).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let worst = one.iter().zip(&other).map(|(a, b)| (a - b).abs()).fold(0.0_f32, f32::max);
    format!("{differ} of {} values differ between the two, by up to {worst:.1e}", one.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [Step; 9] = [
        Step::Embedding,
        Step::Linear,
        Step::LayerNorm,
        Step::Softmax,
        Step::Gelu,
        Step::Relu,
        Step::ReluF16,
        Step::Matmul,
        Step::Digest,
    ];

    #[test]
    fn every_kernel_is_right_on_the_emulated_device() {
        let device = TrialDevice::emulated();
        for case in STEPS.into_iter().flat_map(cases::of) {
            let answer = answer(&case, &device, Duration::from_secs(600));
            assert!(answer.is_right, "{}: {}", case.name, answer.text);
        }
    }

    #[test]
    fn wrong_missing_and_nan_values_are_noticed() {
        let expected = Expected::Floats(vec![1.0, 2.0]);
        let judged = |values: &[f32]| super::judged(&cases::bytes_of(values), &expected).0;
        assert!(judged(&[1.0, 2.0001]));
        assert!(!judged(&[1.0, 2.001]));
        assert!(!judged(&[f32::NAN, 2.0]));
        assert!(!judged(&[1.0]));
    }
}
