//! Tests of matrix products on tensor cores, with asynchronous copies to shared memory.

use crate::kit::{Arg, Bench, Format, close, numbers, single};
use crate::matrices::product;

const TEXT: &str = include_str!("../data/kernels/tensor.ptx");

/// A product of M × K by K × N elements.
struct Case {
    name: &'static str,
    input: Format,
    output: Format,
    sizes: [i32; 3],
    transposed: bool,
    grid: [u32; 3],
    threads: u32,
    tolerance: f64,
}

impl Case {
    /// Runs the kernel and compares its results with the product of the factors after rounding them with `rounded`.
    fn check(&self, rounded: impl Fn(f64) -> f64) {
        let mut bench = Bench::new(TEXT);
        let sizes = self.sizes.map(|size| usize::try_from(size).expect("a positive size"));
        let [m, n, k] = sizes;
        let (first, second) = (numbers(m * k, 1.0, self.input), numbers(n * k, 3.0, self.input));
        let (a, b) = (bench.put(&first, self.input), bench.put(&second, self.input));
        let c = bench.output(m * n, self.output);
        let args: Vec<Arg> =
            [a, b, c].map(Arg::Address).into_iter().chain(self.sizes.map(Arg::I32)).collect();
        bench.run(self.name, self.grid, [self.threads, 1, 1], 0, &args);
        let round = |values: &[f64]| values.iter().map(|value| rounded(*value)).collect::<Vec<f64>>();
        let truth = product(&round(&first), &round(&second), sizes, self.transposed);
        close(self.name, &bench.get(c, m * n, self.output), &truth, self.tolerance);
    }
}

#[test]
fn pipelined_product_of_halves_matches_the_reference() {
    // The second product has partial tiles in every direction, and its K is not a multiple of a stage's depth.
    for (sizes, grid) in [([64, 64, 64], [1, 1, 1]), ([83, 136, 120], [3, 2, 1])] {
        let (input, output) = (Format::F16, Format::F32);
        let case = Case {
            name: "gemm_f16",
            input,
            output,
            sizes,
            transposed: false,
            grid,
            threads: 128,
            tolerance: 2e-6,
        };
        case.check(|value| value);
    }
}

#[test]
fn product_of_bf16_matches_the_reference() {
    let case = Case {
        name: "linear_bf16",
        input: Format::Bf16,
        output: Format::Bf16,
        sizes: [37, 29, 72],
        transposed: true,
        grid: [4, 3, 1],
        threads: 32,
        tolerance: 4e-3,
    };
    case.check(|value| value);
}

/// Rounds to `tf32`, which has 10 fraction bits.
fn tf32(value: f64) -> f64 {
    let bits = single(value).to_bits();
    let down = f64::from(f32::from_bits(bits & !0x1fff));
    let up = f64::from(f32::from_bits((bits & !0x1fff) + 0x2000));
    if (value - down).abs() < (value - up).abs() { down } else { up }
}

#[test]
fn product_of_tf32_matches_the_reference() {
    let case = Case {
        name: "gemm_tf32",
        input: Format::F32,
        output: Format::F32,
        sizes: [21, 19, 35],
        transposed: false,
        grid: [3, 2, 1],
        threads: 32,
        tolerance: 2e-6,
    };
    case.check(tf32);
}

/// Bytes from -127 to 127 in a fixed order.
fn bytes(count: usize, scale: i64) -> Vec<i8> {
    (0..count)
        .map(|at| i64::try_from(at).expect("a small number") * scale % 255 - 127)
        .map(|value| i8::try_from(value).expect("a byte"))
        .collect()
}

#[test]
fn product_of_bytes_is_exact() {
    let mut bench = Bench::new(TEXT);
    let [m, n, k] = [27_usize, 13, 96];
    let (first, second) = (bytes(m * k, 37), bytes(n * k, 101));
    let raw = |values: &[i8]| values.iter().map(|value| value.cast_unsigned()).collect::<Vec<u8>>();
    let (x, w) = (bench.bytes(&raw(&first)), bench.bytes(&raw(&second)));
    let y = bench.output(m * n, Format::I32);
    let args: Vec<Arg> = [x, w, y].map(Arg::Address).into_iter().chain([27, 13, 96].map(Arg::I32)).collect();
    bench.run("linear_s8", [2, 2, 1], [32, 1, 1], 0, &args);
    let real = |values: &[i8]| values.iter().map(|value| f64::from(*value)).collect::<Vec<f64>>();
    let truth = product(&real(&first), &real(&second), [m, n, k], true);
    close("linear_s8", &bench.get(y, m * n, Format::I32), &truth, 0.0);
}
