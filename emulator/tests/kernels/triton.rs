//! Tests of kernels that Triton compiled.

use crate::kit::{Arg, Bench, Format, close, numbers};

/// The pointers to scratch memory that Triton passes after a kernel's own arguments.
fn scratch() -> [Arg; 2] {
    [Arg::I64(0), Arg::I64(0)]
}

#[test]
fn triton_softmax_matches_the_reference() {
    let mut bench = Bench::new(include_str!("../data/triton/softmax.ptx"));
    let (rows, n) = (5, 1000);
    let values = numbers(rows * n, 4.0, Format::F32);
    let (x, y) = (bench.put(&values, Format::F32), bench.output(rows * n, Format::F32));
    let args: Vec<Arg> =
        [Arg::Address(x), Arg::Address(y), Arg::I32(1000)].into_iter().chain(scratch()).collect();
    bench.run("softmax", [5, 1, 1], [128, 1, 1], 16, &args);
    let truth: Vec<f64> = values
        .chunks(n)
        .flat_map(|row| {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|v| (v - max).exp()).sum();
            row.iter().map(move |v| (v - max).exp() / sum).collect::<Vec<_>>()
        })
        .collect();
    close("softmax", &bench.get(y, rows * n, Format::F32), &truth, 1e-6);
}

#[test]
fn triton_sum_of_halves_matches_the_reference() {
    let mut bench = Bench::new(include_str!("../data/triton/add16.ptx"));
    let n = 1500;
    let (first, second) = (numbers(n, 4.0, Format::F16), numbers(n, 900.0, Format::F16));
    let (x, y) = (bench.put(&first, Format::F16), bench.put(&second, Format::F16));
    let z = bench.output(n, Format::F16);
    let args: Vec<Arg> =
        [x, y, z].map(Arg::Address).into_iter().chain([Arg::I32(1500)]).chain(scratch()).collect();
    bench.run("add16", [2, 1, 1], [128, 1, 1], 0, &args);
    let truth: Vec<f64> = first.iter().zip(&second).map(|(x, y)| Format::F16.rounded(x + y)).collect();
    close("add16", &bench.get(z, n, Format::F16), &truth, 0.0);
}

#[test]
fn triton_relu_with_cache_policies_matches_the_reference() {
    let mut bench = Bench::new(include_str!("../data/triton/hinted_relu.ptx"));
    let n = 1500;
    let values = numbers(n, 4.0, Format::F32);
    let (x, y) = (bench.put(&values, Format::F32), bench.output(n, Format::F32));
    let args: Vec<Arg> =
        [x, y].map(Arg::Address).into_iter().chain([Arg::I32(1500)]).chain(scratch()).collect();
    bench.run("hinted_relu", [2, 1, 1], [128, 1, 1], 0, &args);
    let truth: Vec<f64> = values.iter().map(|value| value.max(0.0)).collect();
    close("hinted_relu", &bench.get(y, n, Format::F32), &truth, 0.0);
}
