//! Tests of elementwise kernels.

use crate::kit::{Arg, Bench, FLOAT_FORMATS, Format, close, numbers, real};

const TEXT: &str = include_str!("../data/kernels/elementwise.ptx");

/// The error function, computed from its series.
pub fn erf(x: f64) -> f64 {
    if 4.0 < x.abs() {
        return 1.0_f64.copysign(x);
    }
    let mut term = x;
    let mut sum = x;
    for n in 1..200 {
        let n = real(n);
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// Runs a kernel on 1000 numbers, and compares each result with `truth`.
fn check_each(name: &str, format: Format, scale: f64, tolerance: f64, truth: impl Fn(f64) -> f64) {
    let mut bench = Bench::new(TEXT);
    let count = 1000;
    let values = numbers(count, scale, format);
    let x = bench.put(&values, format);
    let y = bench.output(count, format);
    let args = [Arg::Address(x), Arg::Address(y), Arg::I64(1000)];
    bench.run(name, [3, 1, 1], [96, 1, 1], 0, &args);
    let wanted: Vec<f64> = values.iter().map(|value| truth(*value)).collect();
    close(name, &bench.get(y, count, format), &wanted, tolerance);
}

#[test]
fn activations_match_the_reference_in_three_formats() {
    for (suffix, format, tolerance) in FLOAT_FORMATS {
        check_each(&format!("relu_{suffix}"), format, 4.0, 0.0, |v| v.max(0.0));
        check_each(&format!("gelu_{suffix}"), format, 4.0, tolerance, |v| {
            0.5 * v * (1.0 + erf(v * std::f64::consts::FRAC_1_SQRT_2))
        });
        check_each(&format!("gelu_tanh_{suffix}"), format, 4.0, tolerance, |v| {
            0.5 * v * (1.0 + (0.797_884_56 * (v + 0.044_715 * v * v * v)).tanh())
        });
    }
}

#[test]
fn functions_of_f32_match_the_reference() {
    let one = |name: &str, truth: &dyn Fn(f64) -> f64| check_each(name, Format::F32, 5.0, 4e-6, truth);
    one("silu_f32", &|v| v / (1.0 + (-v).exp()));
    one("sigmoid_f32", &|v| 1.0 / (1.0 + (-v).exp()));
    one("softplus_f32", &|v| v.exp().ln_1p());
    one("trigonometry_f32", &|v| v.sin() + 2.0 * (v * 0.5).cos() + v.atan2(2.0));
    one("roots_f32", &|v| v.abs().sqrt() + 1.0 / (v * v + 1.0).sqrt() + v.cbrt());
    one("powers_f32", &|v| (v.abs() + 0.5).powf(1.7) + v.exp2() + (v.abs() + 1.0).log10());
    check_each("rounded_f32", Format::F32, 9.0, 0.0, |v| {
        v.floor() + 10.0 * v.ceil() + 100.0 * v.trunc() + 1000.0 * v.round_ties_even() + 10000.0 * v.round()
    });
    // Large angles take the slow path of the range reduction.
    check_each("trigonometry_f32", Format::F32, 1e6, 4e-6, |v| {
        v.sin() + 2.0 * (v * 0.5).cos() + v.atan2(2.0)
    });
}

#[test]
fn functions_of_f64_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    let values = numbers(200, 8.0, Format::F64);
    let (x, y) = (bench.put(&values, Format::F64), bench.output(200, Format::F64));
    let args = [Arg::Address(x), Arg::Address(y), Arg::I32(200)];
    bench.run("functions_f64", [2, 1, 1], [128, 1, 1], 0, &args);
    let truth: Vec<f64> = values
        .iter()
        .map(|v| {
            v.sin()
                + (v * 1e6).cos()
                + v.exp() / 3.0
                + (v.abs() + 1.0).ln()
                + (v.abs() + 0.5).powf(1.5)
                + v.abs().sqrt()
        })
        .collect();
    close("functions_f64", &bench.get(y, 200, Format::F64), &truth, 1e-13);
}

#[test]
fn vectors_of_four_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    let values = numbers(400, 2.0, Format::F32);
    let (x, y) = (bench.put(&values, Format::F32), bench.output(400, Format::F32));
    let args = [Arg::Address(x), Arg::Address(y), Arg::I64(100)];
    bench.run("relu_vec4_f32", [1, 1, 1], [128, 1, 1], 0, &args);
    let truth: Vec<f64> = values.iter().map(|v| v.max(0.0)).collect();
    close("relu_vec4_f32", &bench.get(y, 400, Format::F32), &truth, 0.0);
}

/// Operations on halves and on pairs of halves round once, so their results can be compared bit by bit.
#[test]
fn halves_match_the_reference_to_the_bit() {
    let mut bench = Bench::new(TEXT);
    for (name, format) in
        [("fma_half2", Format::F16), ("fma_bfloat162", Format::Bf16), ("mixed_half", Format::F16)]
    {
        let first = numbers(256, 3.0, format);
        let second: Vec<f64> = numbers(300, 40.0, format)[44..].to_vec();
        let (x, y, z) = (bench.put(&first, format), bench.put(&second, format), bench.output(256, format));
        let count = if name == "mixed_half" { 256 } else { 128 };
        let args = [Arg::Address(x), Arg::Address(y), Arg::Address(z), Arg::I32(count)];
        bench.run(name, [2, 1, 1], [128, 1, 1], 0, &args);
        let truth: Vec<f64> = first
            .iter()
            .zip(&second)
            .map(|(x, y)| match name {
                // For these numbers, the product of two halves and its sum with a third are exact in `f64`.
                "fma_half2" | "fma_bfloat162" => format.rounded(x * y + x),
                _ => {
                    let sum = format.rounded(x + y).max(0.0);
                    format.rounded(sum - x.min(*y))
                }
            })
            .collect();
        close(name, &bench.get(z, 256, format), &truth, 0.0);
    }
}

#[test]
fn integers_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    for divisor in [7_i64, -3, 1_000_003, i64::from(i32::MIN)] {
        let values: Vec<i64> = (0..64_i64).map(|i| (i - 30).wrapping_mul(0x0123_4567_89ab_cdef)).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let (x, y) = (bench.bytes(&bytes), bench.output(64, Format::I64));
        let args = [Arg::Address(x), Arg::Address(y), Arg::I64(divisor), Arg::I32(64)];
        bench.run("integers_i64", [1, 1, 1], [64, 1, 1], 0, &args);
        let found = bench.raw(y, 512);
        for (i, (value, found)) in values.iter().zip(found.chunks_exact(8)).enumerate() {
            let high =
                i64::try_from((i128::from(*value) * i128::from(divisor)) >> 64).expect("the upper half");
            let truth = (value / divisor)
                .wrapping_add((value % divisor).wrapping_mul(3))
                .wrapping_add(high)
                .wrapping_add(value >> i)
                .wrapping_add(i64::from(value.count_ones()) + i64::from(value.leading_zeros()));
            assert_eq!(
                i64::from_le_bytes(found.try_into().expect("eight bytes")),
                truth,
                "{value} and {divisor}"
            );
        }
        let divisor = i32::try_from(divisor).expect("a small divisor");
        let values: Vec<i32> = (0..64_i32).map(|i| (i - 30).wrapping_mul(0x0765_4321)).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let (x, y) = (bench.bytes(&bytes), bench.output(64, Format::I32));
        let args = [Arg::Address(x), Arg::Address(y), Arg::I32(divisor), Arg::I32(64)];
        bench.run("integers_i32", [1, 1, 1], [64, 1, 1], 0, &args);
        let found = bench.raw(y, 256);
        for (i, (value, found)) in values.iter().zip(found.chunks_exact(4)).enumerate() {
            let high = i32::try_from((i64::from(*value) * i64::from(divisor)) >> 32).expect("the upper half");
            let shift = u32::try_from(i).expect("small") & 31;
            let funnel =
                (u64::from(divisor.cast_unsigned()) << 32 | u64::from(value.cast_unsigned())) << shift >> 32;
            let dot: i32 = value
                .to_le_bytes()
                .iter()
                .zip(divisor.to_le_bytes())
                .map(|(a, b)| i32::from(a.cast_signed()) * i32::from(b.cast_signed()))
                .sum();
            let first = if *value == 0 { 0 } else { value.trailing_zeros().cast_signed() + 1 };
            let truth = value
                .wrapping_div(divisor)
                .wrapping_add(value.wrapping_rem(divisor).wrapping_mul(3))
                .wrapping_add(high)
                .wrapping_add(value.reverse_bits())
                .wrapping_add(first)
                .wrapping_add(dot + 7)
                .wrapping_add(u32::try_from(funnel & 0xffff_ffff).expect("32 bits").cast_signed());
            assert_eq!(
                i32::from_le_bytes(found.try_into().expect("four bytes")),
                truth,
                "{value} and {divisor}"
            );
        }
    }
}
