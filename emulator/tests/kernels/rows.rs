//! Tests of kernels that work on rows.

use crate::kit::{Arg, Bench, FLOAT_FORMATS, Format, close, numbers, real, whole};

const TEXT: &str = include_str!("../data/kernels/rows.ptx");

fn softmax(row: &[f64]) -> Vec<f64> {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|v| (v - max).exp()).sum();
    row.iter().map(|v| (v - max).exp() / sum).collect()
}

#[test]
fn embedding_layer_norm_and_softmax_match_the_reference_in_three_formats() {
    let mut bench = Bench::new(TEXT);
    for (suffix, format, tolerance) in FLOAT_FORMATS {
        let (rows, d) = (6, 150);
        let values = numbers(rows * d, 3.0, format);
        let (gain, bias) = (numbers(d, 1.0, format), numbers(d, 0.5, format));
        let x = bench.put(&values, format);
        let indices = [4_usize, 0, 5, 5];
        let index = bench.put(&indices.map(real), Format::I64);
        let out = bench.output(4 * d, format);
        let args = [Arg::Address(index), Arg::Address(x), Arg::Address(out), Arg::I32(150)];
        bench.run(&format!("embedding_{suffix}"), [4, 1, 1], [64, 1, 1], 0, &args);
        let truth: Vec<f64> = indices.iter().flat_map(|i| values[i * d..(i + 1) * d].to_vec()).collect();
        close("embedding", &bench.get(out, 4 * d, format), &truth, 0.0);

        let (g, b, y) = (bench.put(&gain, format), bench.put(&bias, format), bench.output(rows * d, format));
        let args = [x, g, b, y].map(Arg::Address).into_iter().chain([Arg::I32(150), Arg::F32(1e-5)]);
        bench.run(&format!("layer_norm_{suffix}"), [6, 1, 1], [64, 1, 1], 0, &args.collect::<Vec<_>>());
        let truth: Vec<f64> = values
            .chunks(d)
            .flat_map(|row| {
                let mean = row.iter().sum::<f64>() / real(d);
                let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / real(d);
                let factor = 1.0 / (variance + 1e-5).sqrt();
                row.iter()
                    .zip(&gain)
                    .zip(&bias)
                    .map(move |((v, g), b)| (v - mean) * factor * g + b)
                    .collect::<Vec<_>>()
            })
            .collect();
        close("layer_norm", &bench.get(y, rows * d, format), &truth, tolerance);

        let args = [Arg::Address(x), Arg::Address(y), Arg::I32(150)];
        bench.run(&format!("softmax_{suffix}"), [6, 1, 1], [96, 1, 1], 600, &args);
        let truth: Vec<f64> = values.chunks(d).flat_map(softmax).collect();
        close("softmax", &bench.get(y, rows * d, format), &truth, tolerance);
    }
}

#[test]
fn variants_of_softmax_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    let (rows, d) = (9, 77);
    let values = numbers(rows * d, 6.0, Format::F32);
    let truth: Vec<f64> = values.chunks(d).flat_map(softmax).collect();
    let (x, y) = (bench.put(&values, Format::F32), bench.output(rows * d, Format::F32));
    for (name, grid) in [("softmax_online_f32", 1), ("softmax_warp_f32", 3)] {
        let args = [Arg::Address(x), Arg::Address(y), Arg::I32(9), Arg::I32(77)];
        bench.run(name, [grid, 1, 1], [128, 1, 1], 0, &args);
        close(name, &bench.get(y, rows * d, Format::F32), &truth, 2e-6);
    }
    let (x, y) = (bench.put(&values, Format::F64), bench.output(rows * d, Format::F64));
    bench.run("log_softmax_f64", [9, 1, 1], [32, 1, 1], 0, &[Arg::Address(x), Arg::Address(y), Arg::I32(77)]);
    let truth: Vec<f64> = truth.iter().map(|v| v.ln()).collect();
    close("log_softmax_f64", &bench.get(y, rows * d, Format::F64), &truth, 1e-13);
}

#[test]
fn reductions_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    let values = numbers(5000, 1.0, Format::F32);
    let sum: f64 = values.iter().sum();
    for (name, format, tolerance) in [("sum_f32", Format::F32, 1e-4), ("sum_f64", Format::F64, 1e-12)] {
        let (x, y) = (bench.put(&values, format), bench.put(&[0.0], format));
        let args = [Arg::Address(x), Arg::Address(y), Arg::I32(5000)];
        bench.run(name, [20, 1, 1], [256, 1, 1], 0, &args);
        close(name, &bench.get(y, 1, format), &[sum], tolerance);
    }
    let halves = numbers(600, 2.0, Format::F16);
    let dot = halves.iter().map(|v| v * v).sum();
    let (x, z) = (bench.put(&halves, Format::F16), bench.output(1, Format::F32));
    let args = [Arg::Address(x), Arg::Address(x), Arg::Address(z), Arg::I32(300)];
    bench.run("dot_f16", [1, 1, 1], [64, 1, 1], 0, &args);
    close("dot_f16", &bench.get(z, 1, Format::F32), &[dot], 1e-5);
    let (x, y) = (bench.put(&values, Format::F32), bench.output(50, Format::I32));
    bench.run("argmax_f32", [50, 1, 1], [64, 1, 1], 0, &[Arg::Address(x), Arg::Address(y), Arg::I32(100)]);
    let truth: Vec<f64> = values
        .chunks(100)
        .map(|row| real((0..100).reduce(|best, j| if row[j] > row[best] { j } else { best }).expect("a row")))
        .collect();
    close("argmax_f32", &bench.get(y, 50, Format::I32), &truth, 0.0);
}

#[test]
fn scans_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    let values = numbers(400, 1.0, Format::F32);
    let (x, y) = (bench.put(&values, Format::F32), bench.output(400, Format::F32));
    bench.run("scan_f32", [2, 1, 1], [256, 1, 1], 0, &[Arg::Address(x), Arg::Address(y), Arg::I32(200)]);
    let running = |part: &[f64]| {
        part.iter()
            .scan(0.0, |sum, v| {
                *sum += v;
                Some(*sum)
            })
            .collect::<Vec<f64>>()
    };
    let truth: Vec<f64> = values.chunks(200).flat_map(running).collect();
    close("scan_f32", &bench.get(y, 400, Format::F32), &truth, 1e-5);
    let whole: Vec<f64> =
        values.iter().map(|v| real(usize::try_from(whole(v * 50.0 + 50.0)).expect("positive"))).collect();
    let (x, y) = (bench.put(&whole[..384], Format::I32), bench.output(400, Format::I32));
    bench.run("scan_warp_i32", [3, 1, 1], [128, 1, 1], 0, &[Arg::Address(x), Arg::Address(y)]);
    let truth: Vec<f64> = whole[..384].chunks(32).flat_map(running).collect();
    close("scan_warp_i32", &bench.get(y, 384, Format::I32), &truth, 0.0);
    let x = bench.put(&whole, Format::I32);
    let sums = bench.put(&[-1.0; 4], Format::I32);
    let args = [Arg::Address(x), Arg::Address(y), Arg::Address(sums), Arg::I32(400)];
    bench.run("scan_chained_i32", [4, 1, 1], [128, 1, 1], 0, &args);
    close("scan_chained_i32", &bench.get(y, 400, Format::I32), &running(&whole), 0.0);
}
