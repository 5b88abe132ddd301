//! Generates sets of float32 captures of one op, of any shape with at least two axes.
//!
//! Outputs are computed in float64, row by row while they are written. Only `linear` keeps its weight in memory.

use std::io::{self, Write};

use anyhow::{Result, ensure};
use clap::ValueEnum;

use crate::capture::{Argument, Capture, Values};
use crate::numbers::Numbers;
use crate::pickle::{Element, PickleValue};

const EPSILON: f64 = 1e-5;

/// The identifiers of the streams of random numbers.
const INPUT: u64 = 10;
const WEIGHT: u64 = 11;
const BIAS: u64 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Op {
    LayerNorm,
    Softmax,
    Relu,
    Linear,
}

#[derive(Clone, Debug)]
pub(crate) struct OpSet {
    op: Op,
    /// The shape of the input. The op works along its last axis.
    shape: Vec<u64>,
    /// The width of `linear`'s output.
    out_features: u64,
    seed: u64,
}

impl OpSet {
    /// Creates a set. `scale` multiplies the first axis.
    pub(crate) fn new(
        op: Op,
        shape: &[u64],
        out_features: Option<u64>,
        scale: f64,
        seed: u64,
    ) -> Result<Self> {
        ensure!(scale.is_finite() && scale > 0.0, "--scale {scale} is not a positive number");
        ensure!(
            shape.len() >= 2 && !shape.contains(&0),
            "--shape {shape:?} needs at least two axes, each at least 1 (rows first, then the width: --shape 64,1024)"
        );
        ensure!(
            op == Op::Linear || out_features.is_none(),
            "--out-features is for linear only (leave it out, or pass --name linear)"
        );
        let mut shape = shape.to_vec();
        shape[0] = ((shape[0] as f64 * scale).round() as u64).max(1);
        let width = shape[shape.len() - 1];
        let out_features = out_features.unwrap_or(width);
        // This is far more than measurements need. The limit keeps later products of sizes from overflowing.
        const MAX_ELEMENTS: u64 = 1 << 40;
        for (rows_and_width, what) in
            [(&shape[..], "input"), (&[width, out_features], "weight"), (&[shape[0], out_features], "output")]
        {
            let elements = rows_and_width.iter().try_fold(1_u64, |product, &size| product.checked_mul(size));
            ensure!(
                elements.is_some_and(|elements| elements > 0 && elements < MAX_ELEMENTS),
                "the {what} would have the shape {rows_and_width:?} (no axis can be 0, and 2^40 elements are too many)"
            );
        }
        Ok(Self { op, shape, out_features, seed })
    }

    pub(crate) fn capture(&self, entry: u32) -> Capture<'static> {
        let numbers = |kind| Numbers::new(self.seed, &[kind, u64::from(entry)]);
        let (input, weight, bias) = (numbers(INPUT), numbers(WEIGHT), numbers(BIAS));
        let width = self.shape[self.shape.len() - 1];
        let drawn_input = drawn(input, &self.shape);
        let rowwise = |function: RowFunction| self.rowwise(input, function);
        match self.op {
            Op::Relu => Capture {
                function_name: "torch.nn.functional.relu",
                arguments: vec![
                    Argument::tensor("input", drawn_input),
                    Argument::at_default("inplace", PickleValue::Bool(false)),
                ],
                output: rowwise(Box::new(|row| row.iter().map(|x| x.max(0.0)).collect())),
            },
            Op::Softmax => Capture {
                function_name: "torch.nn.functional.softmax",
                arguments: vec![
                    Argument::tensor("input", drawn_input),
                    Argument {
                        default: Some(PickleValue::None),
                        ..Argument::required("dim", PickleValue::Int(-1))
                    },
                    Argument::at_default("_stacklevel", PickleValue::Int(3)),
                    Argument::at_default("dtype", PickleValue::None),
                ],
                output: rowwise(Box::new(softmax)),
            },
            Op::LayerNorm => Capture {
                function_name: "torch.nn.functional.layer_norm",
                arguments: vec![
                    Argument::tensor("input", drawn_input),
                    Argument::required(
                        "normalized_shape",
                        PickleValue::Tuple(vec![PickleValue::Int(i64::try_from(width).unwrap_or(i64::MAX))]),
                    ),
                    Argument::optional_tensor("weight", drawn(weight, &[width])),
                    Argument::optional_tensor("bias", drawn(bias, &[width])),
                    Argument::at_default("eps", PickleValue::Float(EPSILON)),
                ],
                output: rowwise(Box::new(move |row| layer_norm(row, weight, bias))),
            },
            Op::Linear => {
                let out_features = self.out_features;
                let mut held: Option<Vec<f64>> = None;
                let function: RowFunction = Box::new(move |row| {
                    let held = held.get_or_insert_with(|| doubles(weight, 0, width * out_features));
                    linear(row, held, bias)
                });
                let mut output = rowwise(function);
                if let Some(last) = output.shape.last_mut() {
                    *last = out_features;
                }
                Capture {
                    function_name: "torch.nn.functional.linear",
                    arguments: vec![
                        Argument::tensor("input", drawn_input),
                        Argument::tensor("weight", drawn(weight, &[out_features, width])),
                        Argument::optional_tensor("bias", drawn(bias, &[out_features])),
                    ],
                    output,
                }
            }
        }
    }

    /// Returns an output each row of which is a function of the same row of the input.
    fn rowwise(&self, input: Numbers, mut function: RowFunction) -> Values<'static> {
        let width = self.shape[self.shape.len() - 1];
        let rows: u64 = self.shape[..self.shape.len() - 1].iter().product();
        Values {
            element: Element::F32,
            shape: self.shape.clone(),
            fill: Box::new(move |sink| {
                (0..rows).try_for_each(|row| write_f32(sink, &function(&doubles(input, row * width, width))))
            }),
        }
    }
}

type RowFunction = Box<dyn FnMut(&[f64]) -> Vec<f64>>;

/// Returns a tensor of random numbers with roughly a normal distribution.
fn drawn(numbers: Numbers, shape: &[u64]) -> Values<'static> {
    let elements: u64 = shape.iter().product();
    Values {
        element: Element::F32,
        shape: shape.to_vec(),
        fill: Box::new(move |sink| {
            (0..elements).try_for_each(|index| sink.write_all(&numbers.f32(index).to_le_bytes()))
        }),
    }
}

fn doubles(numbers: Numbers, first: u64, count: u64) -> Vec<f64> {
    (first..first + count).map(|index| f64::from(numbers.f32(index))).collect()
}

fn write_f32(sink: &mut dyn Write, row: &[f64]) -> io::Result<()> {
    row.iter().try_for_each(|&value| sink.write_all(&(value as f32).to_le_bytes()))
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = row.iter().map(|x| (x - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

fn layer_norm(row: &[f64], weight: Numbers, bias: Numbers) -> Vec<f64> {
    let count = row.len() as f64;
    let mean = row.iter().sum::<f64>() / count;
    let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    let scale = 1.0 / (variance + EPSILON).sqrt();
    let value = |(index, x): (u64, &f64)| {
        (x - mean) * scale * f64::from(weight.f32(index)) + f64::from(bias.f32(index))
    };
    (0..).zip(row).map(value).collect()
}

/// Computes one row of the output of `linear`. `weight` is row-major, with one row per element of the result.
fn linear(row: &[f64], weight: &[f64], bias: Numbers) -> Vec<f64> {
    let value = |(index, weights): (u64, &[f64])| {
        row.iter().zip(weights).map(|(x, w)| x * w).sum::<f64>() + f64::from(bias.f32(index))
    };
    (0..).zip(weight.chunks_exact(row.len())).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(capture: Capture<'_>) -> Vec<f32> {
        let mut bytes = Vec::new();
        (capture.output.fill)(&mut bytes).unwrap();
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
    }

    #[test]
    fn rows_of_a_softmax_sum_to_one() {
        let set = OpSet::new(Op::Softmax, &[3, 5, 40], None, 1.0, 0).unwrap();
        let values = output(set.capture(0));
        assert_eq!(values.len(), 600);
        for row in values.chunks_exact(40) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        }
    }

    #[test]
    fn linear_output_has_the_scaled_rows_and_the_requested_width() {
        let set = OpSet::new(Op::Linear, &[6, 8], Some(3), 0.5, 0).unwrap();
        let capture = set.capture(1);
        assert_eq!(capture.output.shape, [3, 3]);
        assert_eq!(output(capture).len(), 9);
    }

    #[test]
    fn entries_differ_and_are_reproducible() {
        let set = OpSet::new(Op::Relu, &[4, 16], None, 1.0, 9).unwrap();
        assert_ne!(output(set.capture(0)), output(set.capture(1)));
        assert_eq!(output(set.capture(1)), output(set.capture(1)));
    }

    #[test]
    fn impossible_shapes_and_scales_are_refused() {
        for shape in [&[1024][..], &[0, 4], &[u64::MAX, 2], &[1 << 30, 1 << 30]] {
            assert!(OpSet::new(Op::Relu, shape, None, 1.0, 0).is_err(), "{shape:?}");
        }
        assert!(OpSet::new(Op::Linear, &[2, 2], Some(u64::MAX), 1.0, 0).is_err());
        assert!(OpSet::new(Op::Relu, &[2, 2], None, f64::NAN, 0).is_err());
    }
}
