//! Tests of the counts of accesses and branches, with kernels whose counts are known.

use opt_emulator::{Config, Counts};

use crate::kit::{Bench, REGISTERS, kernel, line_of};

fn counts(text: &str, threads: u32) -> Counts {
    let mut bench = Bench::with(Config { memory: 64 << 20, counts: true, ..Config::default() }, text);
    let buffer = bench.buffer(&vec![1; 64 << 10]);
    let summary = bench.run(2, threads, &[buffer]).unwrap_or_else(|fault| panic!("{fault}\n{text}"));
    summary.counts.expect("they are enabled")
}

/// Each thread loads a word of global memory with this stride, in words.
fn strided(stride: u32) -> String {
    let body = format!(
        "mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd1, %r1, {};\nadd.u64 %rd2, %a, %rd1;\nld.global.u32 %r2, [%rd2];",
        4 * stride
    );
    kernel(1, REGISTERS, &body)
}

/// A warp writes a tile of 32 by 32 words in rows, and reads it in columns. Rows have `width` words.
fn transposed(width: u32) -> String {
    let declarations = format!("{REGISTERS} .shared .align 4 .b8 tile[{}];", 4 * 32 * width);
    let mut body = "mov.u32 %r1, %tid.x;\nmov.u32 %r2, tile;\nmad.lo.u32 %r3, %r1, 4, %r2;\n".to_owned();
    body += &format!("mad.lo.u32 %r4, %r1, {}, %r2;\n", 4 * width);
    (0..32).for_each(|row| body += &format!("st.shared.u32 [%r3+{}], %r1;\n", 4 * row * width));
    body += "bar.sync 0;\n";
    (0..32).for_each(|column| body += &format!("ld.shared.u32 %r5, [%r4+{}];\n", 4 * column));
    kernel(1, &declarations, &body)
}

#[test]
fn sectors_of_global_memory_grow_with_the_stride() {
    // Two blocks of two warps. A row is the stride, the sectors of a warp, and whether a line is named.
    for (stride, sectors, is_named) in [(1, 4, false), (2, 8, true), (8, 32, true), (32, 32, true)] {
        let text = strided(stride);
        let found = counts(&text, 64);
        assert_eq!(
            (found.global.accesses, found.global.parts, found.global.fewest),
            (4, 4 * sectors, 16),
            "stride {stride}"
        );
        let line = found.global.worst.as_ref().map(|(line, _)| *line);
        assert_eq!(line, is_named.then(|| line_of(&text, "ld.global")), "stride {stride}");
        assert_eq!((found.shared.accesses, found.divergent_branches), (0, 0));
    }
}

#[test]
fn padding_removes_the_bank_conflicts_of_a_transposition() {
    // Per block: 32 stores of rows without a conflict, and 32 loads of columns.
    for (width, passes_of_a_column) in [(32, 32), (33, 1), (34, 2)] {
        let text = transposed(width);
        let found = counts(&text, 32).shared;
        assert_eq!(
            (found.accesses, found.parts, found.fewest),
            (2 * 64, 2 * (32 + 32 * passes_of_a_column), 2 * 64),
            "rows of {width} words"
        );
        let line =
            found.worst.map(|(line, _)| text.lines().nth(line as usize - 1).expect("a line").to_owned());
        assert_eq!(line.is_some(), passes_of_a_column != 1, "{line:?}");
        assert!(line.is_none_or(|line| line.starts_with("ld.shared")), "rows of {width} words");
    }
}

#[test]
fn only_branches_that_divide_a_warp_are_divergent() {
    for (limit, divergent) in [(0, 0), (64, 0), (32, 0), (40, 2), (1, 2)] {
        let body = format!(
            "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, {limit};\n@%p1 bra skip;\nmov.u32 %r2, 1;\nskip:"
        );
        let found = counts(&kernel(1, REGISTERS, &body), 64);
        assert_eq!(found.divergent_branches, divergent, "{limit} of 64 threads branch");
    }
}

#[test]
fn nothing_is_counted_unless_counting_is_enabled() {
    let mut bench = Bench::new(&strided(1));
    let buffer = bench.buffer(&[1; 256]);
    assert_eq!(bench.run(1, 32, &[buffer]).expect("a launch").counts, None);
}
