//! Tests of matrix products, against a plain product of matrices and the layouts in the PTX reference.

use half::{bf16, f16};

use crate::kit::{Bench, REGISTERS, kernel};

/// Deterministic pseudo-random bits.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// A multiple of 1/8 between -4 and 4. Such numbers are exact in every floating-point format, and sums of their
    /// products are exact in `f32`.
    fn eighth(&mut self) -> f64 {
        f64::from(u32::try_from(self.below(65)).expect("a small number")) / 8.0 - 4.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Element {
    F16,
    Bf16,
    Tf32,
    F32,
    S8,
    U8,
    S32,
}

use Element::{Bf16, F16, F32, S8, S32, Tf32, U8};

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the numbers are small and whole, or exact"
)]
impl Element {
    fn bits(self) -> usize {
        match self {
            F16 | Bf16 => 16,
            S8 | U8 => 8,
            Tf32 | F32 | S32 => 32,
        }
    }

    fn random(self, random: &mut Random) -> f64 {
        match self {
            S8 => f64::from(random.below(256) as i32 - 128),
            U8 => f64::from(random.below(256) as u32),
            S32 => f64::from(random.below(1 << 20) as i32 - (1 << 19)),
            _ => random.eighth(),
        }
    }

    fn encode(self, value: f64) -> u32 {
        match self {
            F16 => f16::from_f32(value as f32).to_bits().into(),
            Bf16 => bf16::from_f32(value as f32).to_bits().into(),
            // The lowest 13 bits of a register are not part of its `tf32`.
            Tf32 => (value as f32).to_bits() | 0x1abc,
            F32 => (value as f32).to_bits(),
            S8 => u32::from((value as i8) as u8),
            U8 => (value as u8).into(),
            S32 => value as i32 as u32,
        }
    }

    fn decode(self, bits: u32) -> f64 {
        match self {
            F16 => f16::from_bits(bits as u16).to_f64(),
            F32 => f64::from(f32::from_bits(bits)),
            _ => f64::from(bits.cast_signed()),
        }
    }
}

/// The row and column of an element according to the PTX reference, given its lane and its number among the elements of
/// the lane.
type Layout = fn(usize, usize) -> (usize, usize);

/// An instruction: its name, its depth (K), the types of its factors and of its result, and the layouts of its factors.
type Shape = (&'static str, usize, [Element; 2], Element, Layout, Layout);

/// The layout of the result of every shape.
fn result(lane: usize, i: usize) -> (usize, usize) {
    (if i < 2 { lane / 4 } else { lane / 4 + 8 }, lane % 4 * 2 + i % 2)
}

fn a_tf32_4(lane: usize, i: usize) -> (usize, usize) {
    (if i == 0 { lane / 4 } else { lane / 4 + 8 }, lane % 4)
}

fn b_tf32_4(lane: usize, _: usize) -> (usize, usize) {
    (lane % 4, lane / 4)
}

fn a_tf32_8(lane: usize, i: usize) -> (usize, usize) {
    let row = if i == 0 || i == 2 { lane / 4 } else { lane / 4 + 8 };
    (row, if i < 2 { lane % 4 } else { lane % 4 + 4 })
}

fn b_tf32_8(lane: usize, i: usize) -> (usize, usize) {
    (if i == 0 { lane % 4 } else { lane % 4 + 4 }, lane / 4)
}

fn a_half_8(lane: usize, i: usize) -> (usize, usize) {
    (if i < 2 { lane / 4 } else { lane / 4 + 8 }, lane % 4 * 2 + (i & 1))
}

fn b_half_8(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 * 2 + i, lane / 4)
}

fn a_half_16(lane: usize, i: usize) -> (usize, usize) {
    let row = if i < 2 || (4..6).contains(&i) { lane / 4 } else { lane / 4 + 8 };
    let column = lane % 4 * 2 + (i & 1);
    (row, if i < 4 { column } else { column + 8 })
}

fn b_half_16(lane: usize, i: usize) -> (usize, usize) {
    let row = lane % 4 * 2 + (i & 1);
    (if i < 2 { row } else { row + 8 }, lane / 4)
}

fn a_byte_16(lane: usize, i: usize) -> (usize, usize) {
    (if i < 4 { lane / 4 } else { lane / 4 + 8 }, lane % 4 * 4 + (i & 3))
}

fn b_byte_16(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 * 4 + i, lane / 4)
}

fn a_byte_32(lane: usize, i: usize) -> (usize, usize) {
    let row = if i < 4 || (8..12).contains(&i) { lane / 4 } else { lane / 4 + 8 };
    let column = lane % 4 * 4 + (i & 3);
    (row, if i < 8 { column } else { column + 16 })
}

fn b_byte_32(lane: usize, i: usize) -> (usize, usize) {
    let row = lane % 4 * 4 + (i & 3);
    (if i < 4 { row } else { row + 16 }, lane / 4)
}

const SHAPES: [Shape; 15] = [
    ("m16n8k8.row.col.f32.f16.f16.f32", 8, [F16; 2], F32, a_half_8, b_half_8),
    ("m16n8k8.row.col.f16.f16.f16.f16", 8, [F16; 2], F16, a_half_8, b_half_8),
    ("m16n8k16.row.col.f32.f16.f16.f32", 16, [F16; 2], F32, a_half_16, b_half_16),
    ("m16n8k16.row.col.f16.f16.f16.f16", 16, [F16; 2], F16, a_half_16, b_half_16),
    ("m16n8k8.row.col.f32.bf16.bf16.f32", 8, [Bf16; 2], F32, a_half_8, b_half_8),
    ("m16n8k16.row.col.f32.bf16.bf16.f32", 16, [Bf16; 2], F32, a_half_16, b_half_16),
    ("m16n8k4.row.col.f32.tf32.tf32.f32", 4, [Tf32; 2], F32, a_tf32_4, b_tf32_4),
    ("m16n8k8.row.col.f32.tf32.tf32.f32", 8, [Tf32; 2], F32, a_tf32_8, b_tf32_8),
    ("m16n8k16.row.col.s32.s8.s8.s32", 16, [S8, S8], S32, a_byte_16, b_byte_16),
    ("m16n8k16.row.col.s32.u8.s8.s32", 16, [U8, S8], S32, a_byte_16, b_byte_16),
    ("m16n8k32.row.col.s32.s8.s8.s32", 32, [S8, S8], S32, a_byte_32, b_byte_32),
    ("m16n8k32.row.col.s32.u8.u8.s32", 32, [U8, U8], S32, a_byte_32, b_byte_32),
    ("m16n8k32.row.col.s32.s8.u8.s32", 32, [S8, U8], S32, a_byte_32, b_byte_32),
    ("m16n8k32.row.col.s32.u8.s8.s32", 32, [U8, S8], S32, a_byte_32, b_byte_32),
    ("m16n8k32.row.col.satfinite.s32.u8.u8.s32", 32, [U8, U8], S32, a_byte_32, b_byte_32),
];

/// Packs a matrix into the registers of all lanes, lane by lane.
fn pack(matrix: &[Vec<f64>], element: Element, count: usize, layout: Layout) -> Vec<u32> {
    let in_register = 32 / element.bits();
    (0..32)
        .flat_map(|lane| (0..count).map(move |register| (lane, register)))
        .map(|(lane, register)| {
            (0..in_register).fold(0, |word, part| {
                let (row, column) = layout(lane, register * in_register + part);
                word | element.encode(matrix[row][column]) << (element.bits() * part)
            })
        })
        .collect()
}

/// PTX that multiplies the fragments in the buffer `%a` and writes the result's fragments to `%b`.
fn product_text(name: &str, counts: [usize; 3]) -> String {
    let first_register = [0, counts[0], counts[0] + counts[1]];
    let list = |prefix: &str, first: usize, count: usize| {
        let names: Vec<String> = (first..first + count).map(|i| format!("%{prefix}{i}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let all: usize = counts.iter().sum();
    let mut body = format!(
        "mov.u32 %r0, %tid.x; mul.wide.u32 %rd0, %r0, {}; add.s64 %rd0, %rd0, %a;\n\
         mul.wide.u32 %rd1, %r0, {}; add.s64 %rd1, %rd1, %b;\n",
        4 * all,
        4 * counts[2]
    );
    for i in 0..all {
        body.push_str(&format!("ld.global.b32 %x{i}, [%rd0+{}];\n", 4 * i));
    }
    body.push_str(&format!(
        "mma.sync.aligned.{name} {}, {}, {}, {};\n",
        list("y", 0, counts[2]),
        list("x", first_register[0], counts[0]),
        list("x", first_register[1], counts[1]),
        list("x", first_register[2], counts[2]),
    ));
    for i in 0..counts[2] {
        body.push_str(&format!("st.global.b32 [%rd1+{}], %y{i};\n", 4 * i));
    }
    kernel(2, &format!("{REGISTERS} .reg .b32 %x<16>; .reg .b32 %y<4>;"), &body)
}

/// Runs an instruction on fragments, and returns the result's fragments.
fn multiply(name: &str, fragments: [&[u32]; 3]) -> Vec<u32> {
    let counts = fragments.map(|words| words.len() / 32);
    let mut bench = Bench::new(&product_text(name, counts));
    let mut bytes = Vec::new();
    for lane in 0..32 {
        for (words, count) in fragments.iter().zip(counts) {
            bytes.extend(words[lane * count..][..count].iter().flat_map(|word| word.to_le_bytes()));
        }
    }
    let input = bench.buffer(&bytes);
    let output = bench.buffer(&vec![0xee; 128 * counts[2]]);
    bench.run(1, 32, &[input, output]).expect("a launch");
    let found = bench.bytes(output, 128 * counts[2]);
    found.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect()
}

fn matrix(rows: usize, columns: usize, mut value: impl FnMut() -> f64) -> Vec<Vec<f64>> {
    (0..rows).map(|_| (0..columns).map(|_| value()).collect()).collect()
}

#[test]
fn products_of_random_fragments_equal_a_plain_product() {
    let mut random = Random(7);
    for (name, depth, [first, second], sum, a_layout, b_layout) in SHAPES {
        let a = matrix(16, depth, || first.random(&mut random));
        let b = matrix(depth, 8, || second.random(&mut random));
        let c = matrix(16, 8, || sum.random(&mut random));
        let registers =
            |rows: usize, columns: usize, element: Element| rows * columns * element.bits() / 1024;
        let packed_c = pack(&c, sum, registers(16, 8, sum), result);
        let fragments = [
            pack(&a, first, registers(16, depth, first), a_layout),
            pack(&b, second, registers(depth, 8, second), b_layout),
        ];
        let found = multiply(name, [&fragments[0], &fragments[1], &packed_c]);
        let wanted = (0..16)
            .map(|row| {
                (0..8)
                    .map(|column| c[row][column] + (0..depth).map(|i| a[row][i] * b[i][column]).sum::<f64>())
                    .map(|exact| sum.decode(sum.encode(exact)))
                    .collect()
            })
            .collect::<Vec<Vec<f64>>>();
        assert_eq!(found, pack(&wanted, sum, packed_c.len() / 32, result), "{name}");
        assert!(wanted.iter().flatten().any(|value| *value != 0.0), "{name}");
    }
}

/// Runs an instruction whose operands have the same word in all their registers: `a`, `b` and `c`. Returns the word
/// that all registers of the result contain.
fn uniform(name: &str, [a, b, c]: [u32; 3], counts: [usize; 3]) -> u32 {
    let words = [a, b, c].iter().zip(counts).map(|(word, count)| vec![*word; 32 * count]).collect::<Vec<_>>();
    let found = multiply(name, [&words[0], &words[1], &words[2]]);
    assert!(found.iter().all(|word| *word == found[0]), "{name}: {found:x?}");
    found[0]
}

#[test]
fn products_at_the_limits_of_their_types_round_saturate_or_wrap() {
    let (one, nan, infinity) = (0x3c00_3c00, 0x7e00_7e00, 0x7c00_7c00);
    let name = "m16n8k16.row.col.f32.f16.f16.f32";
    let counts = [4, 2, 4];
    assert_eq!(uniform(name, [one, one, 0x3f80_0000], counts), 17_f32.to_bits());
    assert_eq!(uniform(name, [one, nan, 0], counts), 0x7fff_ffff);
    assert_eq!(uniform(name, [one, infinity, 0], counts), f32::INFINITY.to_bits());
    assert_eq!(uniform(name, [0, infinity, 0], counts), 0x7fff_ffff);
    // The smallest half, squared, is exact.
    assert_eq!(uniform(name, [0x0001_0001; 3], counts), {
        let product = 2_f32.powi(-48) * 16.0;
        (product + f32::from_bits(0x0001_0001)).to_bits()
    });
    let name = "m16n8k16.row.col.f16.f16.f16.f16";
    let counts = [4, 2, 2];
    assert_eq!(uniform(name, [one, one, one], counts), 0x4c40_4c40);
    assert_eq!(uniform(name, [one, 0x7bff_7bff, 0], counts), infinity);
    assert_eq!(uniform(name, [one, nan, 0], counts), 0x7fff_7fff);
    // Sums of integers wrap around or are limited.
    let counts = [4, 2, 4];
    let (min, max) = (i32::MIN.cast_unsigned(), i32::MAX.cast_unsigned());
    let minus_one = 0xffff_ffff;
    for (name, bytes, start, wanted) in [
        ("m16n8k32.row.col.s32.s8.s8.s32", [0x0101_0101, minus_one], min, min.wrapping_sub(32)),
        ("m16n8k32.row.col.satfinite.s32.s8.s8.s32", [0x0101_0101, minus_one], min, min),
        ("m16n8k32.row.col.s32.u8.u8.s32", [0x0101_0101, 0x0202_0202], max, max.wrapping_add(64)),
        ("m16n8k32.row.col.satfinite.s32.u8.u8.s32", [0x0101_0101, 0x0202_0202], max, max),
    ] {
        assert_eq!(uniform(name, [bytes[0], bytes[1], start], counts), wanted, "{name}");
    }
}

#[test]
fn conversion_to_tf32_rounds_ties_away_from_zero() {
    let values: [(u32, u32); 8] = [
        (0x3f80_0fff, 0x3f80_0000),
        (0x3f80_1000, 0x3f80_2000),
        (0xbf80_1000, 0xbf80_2000),
        (0x3f80_3000, 0x3f80_4000),
        (0x7f7f_ffff, 0x7f80_0000),
        (0xff80_0000, 0xff80_0000),
        (0x7f80_0001, 0x7fff_ffff),
        (0x0000_1000, 0x0000_2000),
    ];
    let body: String = (0..values.len())
        .map(|at| {
            let at = 4 * at;
            format!(
                "ld.global.f32 %f0, [%a+{at}]; cvt.rna.tf32.f32 %r0, %f0; st.global.b32 [%a+{at}], %r0;\n"
            )
        })
        .collect();
    let mut bench = Bench::new(&kernel(1, REGISTERS, &body));
    let bytes = |values: Vec<u32>| values.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let buffer = bench.buffer(&bytes(values.map(|(from, _)| from).to_vec()));
    bench.run(1, 1, &[buffer]).expect("a launch");
    assert_eq!(bench.bytes(buffer, 32), bytes(values.map(|(_, to)| to).to_vec()));
}
