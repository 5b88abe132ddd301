//! Tests of histograms, sorting, compaction, locks, calls and printing.

use crate::kit::{Arg, Bench, Format, close, numbers, real};

const TEXT: &str = include_str!("../data/kernels/algorithms.ptx");

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().expect("four bytes"))).collect()
}

fn longs(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("eight bytes"))).collect()
}

#[test]
fn histogram_sort_and_compaction_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    let values: Vec<f64> = (0..3000).map(|i| real(i * i % 1013)).collect();
    let (x, h) = (bench.put(&values, Format::I32), bench.put(&[0.0; 17], Format::I32));
    let args = [Arg::Address(x), Arg::Address(h), Arg::I32(3000), Arg::I32(17)];
    bench.run("histogram_i32", [5, 1, 1], [128, 1, 1], 68, &args);
    let mut truth = [0.0; 17];
    (0..3000_usize).for_each(|i| truth[i * i % 1013 % 17] += 1.0);
    close("histogram_i32", &bench.get(h, 17, Format::I32), &truth, 0.0);

    let values = numbers(200, 10.0, Format::F32);
    let (x, y) = (bench.put(&values, Format::F32), bench.output(200, Format::F32));
    bench.run(
        "bitonic_sort_f32",
        [1, 1, 1],
        [256, 1, 1],
        1024,
        &[Arg::Address(x), Arg::Address(y), Arg::I32(200)],
    );
    let mut truth = values;
    truth.sort_by(f64::total_cmp);
    close("bitonic_sort_f32", &bench.get(y, 200, Format::F32), &truth, 0.0);

    let values: Vec<f64> = (0..200).map(|i| real(i * 7 % 11) - 5.0).collect();
    let (x, y, c) =
        (bench.put(&values, Format::I32), bench.output(200, Format::I32), bench.output(1, Format::I32));
    let args = [Arg::Address(x), Arg::Address(y), Arg::Address(c), Arg::I32(200)];
    bench.run("compact_i32", [1, 1, 1], [224, 1, 1], 0, &args);
    let truth: Vec<f64> = values.into_iter().filter(|v| *v > 0.0).collect();
    assert_eq!(bench.get(c, 1, Format::I32), [real(truth.len())]);
    close("compact_i32", &bench.get(y, truth.len(), Format::I32), &truth, 0.0);
}

/// Lanes of one warp that wait for the same lock get it one after another, without a deadlock.
#[test]
fn lanes_of_a_warp_take_a_lock_in_turn() {
    let mut bench = Bench::new(TEXT);
    let (lock, value) = (bench.put(&[0.0], Format::I32), bench.put(&[0.0], Format::I32));
    bench.run("locked_i32", [2, 1, 1], [64, 1, 1], 0, &[Arg::Address(lock), Arg::Address(value)]);
    assert_eq!(bench.get(value, 1, Format::I32), [128.0]);
}

#[test]
fn atomic_operations_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    let mut start: Vec<u8> = Vec::new();
    for word in [u32::MAX, 0, u32::MAX, 0, 0, 0, 0, 0x8000_0000, 0, 0, 0, 0] {
        start.extend(word.to_le_bytes());
    }
    let y = bench.bytes(&start);
    bench.run("atomics_u32", [2, 1, 1], [50, 1, 1], 0, &[Arg::Address(y)]);
    let bytes = bench.raw(y, 48);
    let found = words(&bytes);
    let xor = (0..100_u32).fold(0, |all, t| all ^ t);
    // Counts down from 0, wrapping to 6: 100 steps modulo 7.
    assert_eq!(found[..8], [5, 99, 0, 0xffff, xor, 0, 5, 0]);
    let found = longs(&bytes[32..]);
    assert_eq!(found[0], 100 * 0x1_0000_0001);
    assert_eq!(found[1].cast_signed(), -99);
}

#[test]
fn calls_switches_and_local_arrays_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    let values = numbers(100, 2.0, Format::F32);
    let kinds: Vec<f64> = (0..100).map(|i| real(i % 8)).collect();
    let (k, x, y) =
        (bench.put(&kinds, Format::I32), bench.put(&values, Format::F32), bench.output(100, Format::F32));
    let args = [Arg::Address(k), Arg::Address(x), Arg::Address(y), Arg::I32(100)];
    bench.run("calls_f32", [1, 1, 1], [128, 1, 1], 0, &args);
    let truth: Vec<f64> = values
        .iter()
        .enumerate()
        .map(|(i, v)| {
            let kind = i % 8;
            let mut c = [0.0; 8];
            (0..8).for_each(|j| c[(j * 3 + kind) & 7] = real(j + 1));
            let polynomial = |n: usize, x: f64| c[..n].iter().rev().fold(0.0, |s, c| s * x + c);
            match kind {
                0 => polynomial(4, *v),
                1 => -v,
                2 => v * v,
                3 => polynomial(8, -v),
                4 => v + 7.0,
                5 => 1.0 / v,
                6 => v - 3.0,
                _ => 42.0,
            }
        })
        .collect();
    close("calls_f32", &bench.get(y, 100, Format::F32), &truth, 1e-6);
}

#[test]
fn parameters_by_value_and_variables_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    let values = numbers(32, 2.0, Format::F32);
    let (x, y) = (bench.put(&values, Format::F32), bench.output(32, Format::F32));
    let mut settings = Vec::new();
    settings.extend(1.5_f32.to_le_bytes());
    settings.extend((-4_i32).to_le_bytes());
    settings.extend(0.25_f64.to_le_bytes());
    for value in [1_i16, 2, 3, -4, 5, 6, 0, 0] {
        settings.extend(value.to_le_bytes());
    }
    bench.run(
        "by_value_f32",
        [1, 1, 1],
        [32, 1, 1],
        0,
        &[Arg::Address(x), Arg::Address(y), Arg::Bytes(settings[..32].to_vec())],
    );
    let table = [1.0, 2.0, 3.0, -4.0, 5.0, 6.0];
    let truth: Vec<f64> =
        values.iter().enumerate().map(|(i, v)| v * 1.5 - 4.0 + 0.25 + table[i % 6]).collect();
    close("by_value_f32", &bench.get(y, 32, Format::F32), &truth, 1e-6);
    bench.run("globals_i32", [1, 1, 1], [1, 1, 1], 0, &[Arg::Address(y)]);
    assert_eq!(bench.get(y, 2, Format::I32), [4.0, 9.0]);
}

#[test]
fn printf_formats_integers_floats_and_strings() {
    let mut bench = Bench::new(TEXT);
    let summary = bench.run("prints", [1, 1, 1], [32, 1, 1], 0, &[Arg::I32(7), Arg::F32(2.5)]);
    let lines = "thread 0 of 7:  0.00 done -5000000000%\nthread 1 of 7:  2.50 done -5000000000%\n";
    assert_eq!(summary.printed, lines);
}

#[test]
fn warp_functions_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    let y = bench.output(7 * 32, Format::I32);
    bench.run("warp_functions", [1, 1, 1], [32, 1, 1], 0, &[Arg::Address(y)]);
    let found = words(&bench.raw(y, 4 * 7 * 32));
    for (t, found) in (0..32_u32).zip(found.chunks_exact(7)) {
        let down = if t % 8 + 3 < 8 { t + 3 } else { t };
        let up = if t % 16 < 2 { t } else { t - 2 };
        let same = (0..32).filter(|u| u % 5 == t % 5).fold(0, |mask, u| mask | 1_u32 << u);
        let votes = 3 + if t < 10 { 8 } else { 0 };
        assert_eq!(found, [(t + 5) % 32 * 3, down, up, same, 496, 31, votes], "lane {t}");
    }
}

#[test]
fn named_barriers_and_their_reductions_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    let y = bench.output(67, Format::I32);
    bench.run("named_barriers", [1, 1, 1], [128, 1, 1], 0, &[Arg::Address(y)]);
    let found = words(&bench.raw(y, 4 * 67));
    let truth: Vec<u32> = (0..64).map(|i| (63 - i) * (63 - i)).chain([64, 1, 0]).collect();
    assert_eq!(found, truth);
}

#[test]
fn carries_match_the_reference() {
    let mut bench = Bench::new(TEXT);
    let pairs = [(u128::MAX - 5, 7_u128), (1 << 64, u128::MAX / 3), (12345, 1 << 100)];
    for (a, b) in pairs {
        let bytes: Vec<u8> = [a, b].iter().flat_map(|v| v.to_le_bytes()).collect();
        let (x, y) = (bench.bytes(&bytes), bench.output(6, Format::I64));
        bench.run("wide_i128", [1, 1, 1], [1, 1, 1], 0, &[Arg::Address(x), Arg::Address(y)]);
        let found = bench.raw(y, 48);
        let truth: Vec<u8> = [a.wrapping_add(b), a.wrapping_sub(b), a.wrapping_mul(b)]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        assert_eq!(found, truth, "{a} and {b}");
    }
}
