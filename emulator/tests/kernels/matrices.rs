//! Tests of matrix products, transposition and convolution.

use crate::kit::{Arg, Bench, FLOAT_FORMATS, Format, close, numbers};

const TEXT: &str = include_str!("../data/kernels/matrices.ptx");

/// The product of M × K by K × N. The second matrix may be given transposed.
pub fn product(a: &[f64], b: &[f64], [m, n, k]: [usize; 3], transposed: bool) -> Vec<f64> {
    let second = |i: usize, q: usize| if transposed { b[q * k + i] } else { b[i * n + q] };
    (0..m * n).map(|at| (0..k).map(|i| a[at / n * k + i] * second(i, at % n)).sum()).collect()
}

#[test]
fn matrix_products_match_the_reference_in_three_formats() {
    let mut bench = Bench::new(TEXT);
    let (m, n, k) = (37, 41, 50);
    for (suffix, format, tolerance) in FLOAT_FORMATS {
        let tolerance = tolerance * 2.0;
        let (first, second) = (numbers(m * k, 1.0, format), numbers(n * k, 1.0, format));
        let (a, b, c) = (bench.put(&first, format), bench.put(&second, format), bench.output(m * n, format));
        let sizes = || [Arg::I32(37), Arg::I32(41), Arg::I32(50)];
        for name in ["matmul", "matmul_tiled"] {
            let args: Vec<Arg> = [a, b, c].map(Arg::Address).into_iter().chain(sizes()).collect();
            bench.run(&format!("{name}_{suffix}"), [3, 3, 1], [16, 16, 1], 0, &args);
            let truth = product(&first, &second, [m, n, k], false);
            close(name, &bench.get(c, m * n, format), &truth, tolerance);
        }
        let bias = numbers(n, 1.0, format);
        let d = bench.put(&bias, format);
        let args: Vec<Arg> = [a, b, d, c].map(Arg::Address).into_iter().chain(sizes()).collect();
        bench.run(&format!("linear_{suffix}"), [2, 37, 1], [32, 1, 1], 0, &args);
        let truth: Vec<f64> = product(&first, &second, [m, n, k], true)
            .iter()
            .enumerate()
            .map(|(at, sum)| sum + bias[at % n])
            .collect();
        close("linear", &bench.get(c, m * n, format), &truth, tolerance);
    }
}

#[test]
fn matrix_products_of_f64_and_in_blocks_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    let (m, n, k) = (37, 41, 50);
    for (name, format, grid, tolerance) in
        [("matmul_f64", Format::F64, [3, 3, 1], 1e-13), ("matmul_blocked_f32", Format::F32, [2, 2, 1], 5e-6)]
    {
        let (first, second) = (numbers(m * k, 1.0, format), numbers(n * k, 1.0, format));
        let (a, b, c) = (bench.put(&first, format), bench.put(&second, format), bench.output(m * n, format));
        let sizes = [Arg::I32(37), Arg::I32(41), Arg::I32(50)];
        let args: Vec<Arg> = [a, b, c].map(Arg::Address).into_iter().chain(sizes).collect();
        bench.run(name, grid, [16, 16, 1], 0, &args);
        close(name, &bench.get(c, m * n, format), &product(&first, &second, [m, n, k], false), tolerance);
    }
}

#[test]
fn transposition_and_convolution_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    let (m, n) = (45, 70);
    let values = numbers(m * n, 5.0, Format::F32);
    let (x, y) = (bench.put(&values, Format::F32), bench.output(m * n, Format::F32));
    let args = [Arg::Address(x), Arg::Address(y), Arg::I32(45), Arg::I32(70)];
    bench.run("transpose_f32", [3, 2, 1], [32, 8, 1], 0, &args);
    let truth: Vec<f64> = (0..m * n).map(|at| values[at % m * n + at / m]).collect();
    close("transpose_f32", &bench.get(y, m * n, Format::F32), &truth, 0.0);
    let count = 300;
    let args = [Arg::Address(x), Arg::Address(y), Arg::I32(300)];
    bench.run("convolution_f32", [3, 1, 1], [128, 1, 1], 0, &args);
    let filter = [0.0625, 0.25, 0.375, 0.25, 0.0625];
    let truth: Vec<f64> = (0..count)
        .map(|i| {
            (0..5).filter(|k| (2..count + 2).contains(&(i + k))).map(|k| filter[k] * values[i + k - 2]).sum()
        })
        .collect();
    close("convolution_f32", &bench.get(y, count, Format::F32), &truth, 1e-6);
}
