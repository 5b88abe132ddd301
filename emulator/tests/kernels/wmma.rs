//! Tests of kernels with `nvcuda::wmma`.

use opt_emulator::FaultKind;

use crate::kit::{Arg, Bench, Format, close, numbers};
use crate::matrices::product;

const TEXT: &str = include_str!("../data/kernels/wmma.ptx");
const SOURCE: &str = include_str!("../data/kernels/wmma.cu");

/// A product of M × K by K × N elements, given by the grid and the size of a tile.
struct Case {
    name: &'static str,
    input: Format,
    output: Format,
    sizes: [i32; 3],
    tile: [u32; 2],
    threads: u32,
}

impl Case {
    fn sizes(&self) -> [usize; 3] {
        self.sizes.map(|size| usize::try_from(size).expect("a positive size"))
    }

    /// Runs the kernel on two matrices and an output that holds `before`. Returns the output.
    fn run(&self, first: &[f64], second: &[f64], before: &[f64]) -> Vec<f64> {
        let mut bench = Bench::new(TEXT);
        let (a, b) = (bench.put(first, self.input), bench.put(second, self.input));
        let c = bench.put(before, self.output);
        let args: Vec<Arg> =
            [a, b, c].map(Arg::Address).into_iter().chain(self.sizes.map(Arg::I32)).collect();
        let blocks = |axis: usize| self.sizes[axis].cast_unsigned().div_ceil(self.tile[axis]);
        bench.run(self.name, [blocks(1), blocks(0), 1], [self.threads, 1, 1], 0, &args);
        bench.get(c, before.len(), self.output)
    }
}

#[test]
fn product_from_global_memory_matches_the_reference() {
    let (input, output) = (Format::F16, Format::F32);
    let case = Case { name: "gemm_plain", input, output, sizes: [48, 32, 80], tile: [16, 16], threads: 32 };
    let [m, n, k] = case.sizes();
    let (first, second) = (numbers(m * k, 1.0, input), numbers(k * n, 3.0, input));
    let found = case.run(&first, &second, &vec![7.0; m * n]);
    close(case.name, &found, &product(&first, &second, [m, n, k], false), 2e-6);
}

#[test]
fn product_in_tiles_with_an_epilogue_matches_the_reference() {
    // The second product has partial tiles in every direction.
    for sizes in [[64, 64, 64], [83, 90, 70]] {
        let (input, output) = (Format::F16, Format::F32);
        let case = Case { name: "linear_tiled", input, output, sizes, tile: [64, 64], threads: 128 };
        let [m, n, k] = case.sizes();
        let (first, second) = (numbers(m * k, 1.0, input), numbers(n * k, 3.0, input));
        let before = numbers(m * n, 2.0, output);
        let found = case.run(&first, &second, &before);
        let product = product(&first, &second, [m, n, k], true);
        let truth: Vec<f64> =
            product.iter().zip(&before).map(|(sum, before)| (0.5 * sum + before).max(0.0)).collect();
        close(case.name, &found, &truth, 4e-6);
    }
}

#[test]
fn products_of_other_shapes_and_types_match_the_reference() {
    use Format::{Bf16, F16, F32};
    for (name, input, output, tile, tolerance) in [
        ("by_columns_half", F16, F16, [16, 16], 2e-2),
        ("by_columns_tall_half", F16, F32, [32, 8], 2e-6),
        ("by_columns_wide_bf16", Bf16, F32, [8, 32], 2e-6),
        ("by_columns_tf32", F32, F32, [16, 16], 2e-6),
    ] {
        let case = Case { name, input, output, sizes: [64, 32, 48], tile, threads: 32 };
        let [m, n, k] = case.sizes();
        // Numbers of 8 bits are the same in `tf32`.
        let exact = if input == F32 { Bf16 } else { input };
        let (first, second) = (numbers(m * k, 1.0, exact), numbers(n * k, 3.0, exact));
        let found = case.run(&first, &second, &vec![7.0; m * n]);
        let product = product(&second, &first, [n, m, k], true);
        close(name, &found, &product, tolerance);
    }
}

#[test]
fn products_of_bytes_are_exact() {
    for (name, tile, signed) in
        [("by_columns_tall_s8", [32, 8], true), ("by_columns_wide_u8", [8, 32], false)]
    {
        let [m, n, k] = [64_usize, 32, 48];
        let mut bench = Bench::new(TEXT);
        let bytes = |count: usize, scale: usize| -> Vec<u8> {
            (0..count).map(|at| u8::try_from(at * scale % 256).expect("a byte")).collect()
        };
        let (first, second) = (bytes(m * k, 37), bytes(n * k, 101));
        let (a, b) = (bench.bytes(&first), bench.bytes(&second));
        let c = bench.output(m * n, Format::I32);
        let args: Vec<Arg> =
            [a, b, c].map(Arg::Address).into_iter().chain([64, 32, 48].map(Arg::I32)).collect();
        bench.run(name, [32 / tile[1], 64 / tile[0], 1], [32, 1, 1], 0, &args);
        let real = |bytes: &[u8]| -> Vec<f64> {
            let value = |byte: u8| if signed { f64::from(byte.cast_signed()) } else { f64::from(byte) };
            bytes.iter().map(|byte| value(*byte)).collect()
        };
        let truth = product(&real(&second), &real(&first), [n, m, k], true);
        close(name, &bench.get(c, m * n, Format::I32), &truth, 0.0);
    }
}

#[test]
fn load_of_another_warps_tile_without_a_barrier_is_a_race() {
    let mut bench = Bench::new(TEXT);
    let a = bench.put(&numbers(512, 1.0, Format::F16), Format::F16);
    let c = bench.output(512, Format::F16);
    let fault = bench.try_run(
        "loads_without_a_barrier",
        [1, 1, 1],
        [64, 1, 1],
        0,
        &[Arg::Address(a), Arg::Address(c)],
    );
    let fault = fault.expect_err("a race");
    let FaultKind::Race { other, .. } = &fault.kind else { panic!("{fault}") };
    let site = fault.site.as_ref().unwrap_or_else(|| panic!("{fault}"));
    let lines = [&other.site, site].map(|site| site.source.as_ref().map(|source| source.line as usize));
    let line = |word: &str| SOURCE.lines().position(|line| line.contains(word)).map(|index| index + 1);
    let (store, load) = (line("store_matrix_sync(&tile"), line("load_matrix_sync(sum, &tile"));
    assert!(lines == [store, load] || lines == [load, store], "{lines:?}: {fault}");
}
