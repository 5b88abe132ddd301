//! The kernels to check, with their PTX, launches, inputs and right results.
//!
//! The PTX of the digest kernel is the worker's own. All other PTX belongs to the demo plan and was compiled from the
//! sources in `configs/cuda`. `make_ptx.py --check` in that folder checks that PTX and sources agree.

use opt_worker::trial::{DIGEST, TrialArgument, TrialBuffer, TrialLaunch};

use crate::host::{self, Matrix, Numbers};
use crate::steps::Step;
use TrialArgument::{Buffer, F32, I32, I64, Null};

pub(crate) const BAD: &str = include_str!("../../../configs/cuda/ptx/bad.ptx");
pub(crate) const RELU: &str = include_str!("../../../configs/cuda/ptx/relu.ptx");
pub(crate) const MATMUL: &str = include_str!("../../../configs/cuda/ptx/matmul.ptx");
const EMBEDDING: &str = include_str!("../../../configs/cuda/ptx/embedding.ptx");
const LINEAR: &str = include_str!("../../../configs/cuda/ptx/linear.ptx");
const LAYER_NORM: &str = include_str!("../../../configs/cuda/ptx/layer_norm.ptx");
const SOFTMAX: &str = include_str!("../../../configs/cuda/ptx/softmax.ptx");
const GELU: &str = include_str!("../../../configs/cuda/ptx/gelu.ptx");
const RELU_F16: &str = include_str!("../../../configs/cuda/ptx/relu_f16.ptx");

const EPS: f32 = 1e-5;

/// The right contents of an output buffer.
#[derive(Clone, Debug)]
pub(crate) enum Expected {
    /// 32-bit floats, which the output may miss by the tolerance.
    Floats(Vec<f64>),
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) image: &'static [u8],
    pub(crate) buffers: Vec<TrialBuffer>,
    pub(crate) launches: Vec<TrialLaunch>,
    /// The index of the output buffer.
    pub(crate) output: usize,
    pub(crate) expected: Expected,
}

pub(crate) fn of(step: Step) -> Vec<Case> {
    match step {
        Step::Embedding => embedding(),
        Step::Linear => [linear(true), linear(false)].concat(),
        Step::LayerNorm => [layer_norm(true), layer_norm(false)].concat(),
        Step::Softmax => softmax(),
        Step::Gelu => gelu(),
        Step::Relu => relu(),
        Step::ReluF16 => relu_f16(),
        Step::Matmul => [matmul(false), matmul(true)].concat(),
        Step::Digest => digest(),
        _ => Vec::new(),
    }
}

/// Turns a count into a 64-bit parameter of a kernel. All counts here are small enough.
fn long(count: usize) -> TrialArgument {
    I64(i64::try_from(count).unwrap_or(i64::MAX))
}

fn int(count: usize) -> TrialArgument {
    I32(i32::try_from(count).unwrap_or(i32::MAX))
}

fn blocks(count: usize, each: usize) -> [u32; 3] {
    [u32::try_from(count.div_ceil(each)).unwrap_or(u32::MAX), 1, 1]
}

fn launch(
    symbol: &'static str,
    grid: [u32; 3],
    block: u32,
    arguments: impl Into<Vec<TrialArgument>>,
) -> TrialLaunch {
    TrialLaunch { symbol, grid, block: [block, 1, 1], shared_bytes: 0, arguments: arguments.into() }
}

pub(crate) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn input(values: &[f32]) -> TrialBuffer {
    TrialBuffer::Input(bytes_of(values))
}

fn floats(count: usize) -> TrialBuffer {
    TrialBuffer::Output(count * size_of::<f32>())
}

/// Several kernels with the same inputs and output.
struct Family {
    name: String,
    image: &'static str,
    buffers: Vec<TrialBuffer>,
    output: usize,
    expected: Expected,
}

impl Family {
    fn case(&self, kernel: &str, launches: Vec<TrialLaunch>) -> Case {
        Case {
            name: self.name.replace("KERNEL", kernel),
            image: self.image.as_bytes(),
            buffers: self.buffers.clone(),
            launches,
            output: self.output,
            expected: self.expected.clone(),
        }
    }
}

fn embedding() -> Vec<Case> {
    let (entries, width, rows) = (97, 35, 61);
    let mut numbers = Numbers::new(1);
    let weight = numbers.floats(entries * width);
    let indices: Vec<usize> = (0..rows).map(|_| numbers.below(97) as usize).collect();
    let found: Vec<f32> = indices.iter().flat_map(|at| &weight[at * width..][..width]).copied().collect();
    let indices = indices.iter().flat_map(|at| (*at as u64).to_le_bytes()).collect();
    let family = Family {
        name: format!("embedding/KERNEL, {rows} rows of {entries} x {width}"),
        image: EMBEDDING,
        buffers: vec![TrialBuffer::Input(indices), input(&weight), floats(rows * width)],
        output: 2,
        expected: Expected::Bytes(bytes_of(&found)),
    };
    let count = rows * width;
    let of = |last| [Buffer(0), Buffer(1), Buffer(2), int(width), last];
    vec![
        family.case("naive", vec![launch("naive", blocks(count, 256), 256, of(long(count)))]),
        family.case("fast", vec![launch("fast", blocks(rows, 4), 128, of(long(rows)))]),
    ]
}

fn linear(has_bias: bool) -> Vec<Case> {
    let (rows, inner, features) = (19, 67, 45);
    let mut numbers = Numbers::new(2);
    let (x, w, b) =
        (numbers.floats(rows * inner), numbers.floats(features * inner), numbers.floats(features));
    let matrix = |values| Matrix { values, width: inner };
    let expected = host::linear(matrix(&x), matrix(&w), has_bias.then_some(&b));
    let count = rows * features;
    let family = Family {
        name: format!(
            "linear/KERNEL, {rows} x {inner} to {features}, {}",
            if has_bias { "bias" } else { "no bias" }
        ),
        image: LINEAR,
        buffers: vec![input(&x), input(&w), input(&b), floats(count)],
        output: 3,
        expected: Expected::Floats(expected),
    };
    let bias = if has_bias { Buffer(2) } else { Null };
    let arguments =
        [Buffer(0), Buffer(1), bias, Buffer(3), long(count), int(features), int(inner), long(inner), I64(1)];
    vec![
        family.case("naive", vec![launch("naive", blocks(count, 128), 128, arguments)]),
        family.case("fast", vec![launch("fast", blocks(count, 4), 128, arguments)]),
    ]
}

fn layer_norm(is_affine: bool) -> Vec<Case> {
    let (rows, width) = (37, 133);
    let mut numbers = Numbers::new(3);
    let (x, w, b) = (numbers.floats(rows * width), numbers.floats(width), numbers.floats(width));
    let matrix = Matrix { values: &x, width };
    let expected = host::layer_norm(matrix, is_affine.then_some(&w[..]), is_affine.then_some(&b[..]), EPS);
    let weights = if is_affine { "weight and bias" } else { "neither weight nor bias" };
    let family = Family {
        name: format!("layer_norm/KERNEL, {rows} x {width}, {weights}"),
        image: LAYER_NORM,
        buffers: vec![input(&x), input(&w), input(&b), floats(rows * width)],
        output: 3,
        expected: Expected::Floats(expected),
    };
    let of = |number| if is_affine { Buffer(number) } else { Null };
    let (w, b, out, eps) = (of(1), of(2), Buffer(3), F32(EPS));
    let naive = [Buffer(0), w, b, out, long(rows), int(width), eps];
    let fast = [Buffer(0), w, b, out, int(width), eps];
    vec![
        family.case("naive", vec![launch("naive", blocks(rows, 64), 64, naive)]),
        family.case("fast", vec![launch("fast", blocks(rows, 1), 64, fast)]),
    ]
}

fn softmax() -> Vec<Case> {
    let (rows, width) = (41, 117);
    let x = Numbers::new(4).floats(rows * width);
    let count = rows * width;
    let family = Family {
        name: format!("softmax/KERNEL, {rows} x {width}"),
        image: SOFTMAX,
        buffers: vec![input(&x), floats(count), TrialBuffer::Output(rows * 8)],
        output: 1,
        expected: Expected::Floats(host::softmax(Matrix { values: &x, width })),
    };
    let each = [Buffer(0), Buffer(1), long(rows), int(width)];
    let sums = launch("sums", blocks(rows, 1), 32, [Buffer(0), Buffer(2), int(width)]);
    let sums = TrialLaunch { shared_bytes: 32 * 4, ..sums };
    let all = [Buffer(0), Buffer(2), Buffer(1), int(width), long(count)];
    vec![
        family.case("naive", vec![launch("naive", blocks(rows, 32), 32, each)]),
        family.case("fast", vec![launch("fast", blocks(rows, 4), 128, each)]),
        family.case("two_launches", vec![sums, launch("scale", blocks(count, 256), 256, all)]),
    ]
}

fn gelu() -> Vec<Case> {
    let count = 4099;
    let x = Numbers::new(5).floats(count);
    let family = |of: fn(f32) -> f64| Family {
        name: format!("gelu/KERNEL, {count} values"),
        image: GELU,
        buffers: vec![input(&x), floats(count)],
        output: 1,
        expected: Expected::Floats(x.iter().map(|x| of(*x)).collect()),
    };
    let arguments = [Buffer(0), Buffer(1), long(count)];
    let each = |symbol| vec![launch(symbol, blocks(count, 256), 256, arguments)];
    vec![
        family(host::gelu).case("naive", each("naive")),
        family(host::gelu).case("fast", vec![launch("fast", blocks(count + 1, 256), 128, arguments)]),
        family(host::gelu_tanh).case("with_tanh", each("with_tanh")),
    ]
}

fn relu() -> Vec<Case> {
    let count = 4099;
    let x = Numbers::new(6).floats(count);
    let right: Vec<f32> = x.iter().map(|x| x.max(0.0)).collect();
    let family = Family {
        name: format!("relu/KERNEL, {count} values"),
        image: RELU,
        buffers: vec![input(&x), floats(count)],
        output: 1,
        expected: Expected::Bytes(bytes_of(&right)),
    };
    let arguments = [Buffer(0), Buffer(1), long(count)];
    vec![
        family.case("naive", vec![launch("naive", blocks(count, 256), 256, arguments)]),
        family.case("fast", vec![launch("fast", blocks(count, 512), 128, arguments)]),
    ]
}

fn relu_f16() -> Vec<Case> {
    let count = 4099;
    let x = Numbers::new(7).floats(count);
    let halves = |values: &mut dyn Iterator<Item = f32>| -> Vec<u8> {
        values.flat_map(|value| half::f16::from_f32(value).to_le_bytes()).collect()
    };
    let family = Family {
        name: format!("relu_f16/KERNEL, {count} values"),
        image: RELU_F16,
        buffers: vec![TrialBuffer::Input(halves(&mut x.iter().copied())), TrialBuffer::Output(count * 2)],
        output: 1,
        expected: Expected::Bytes(halves(&mut x.iter().map(|x| x.max(0.0)))),
    };
    let arguments = [Buffer(0), Buffer(1), long(count)];
    vec![family.case("packed", vec![launch("packed", blocks(count / 2 + 1, 64), 64, arguments)])]
}

fn matmul(is_transposed: bool) -> Vec<Case> {
    let (rows, inner, columns) = (65, 45, 51);
    let mut numbers = Numbers::new(8);
    let (a, b) = (numbers.floats(rows * inner), numbers.floats(inner * columns));
    let expected = host::matmul(Matrix { values: &a, width: inner }, Matrix { values: &b, width: columns });
    let (stored, b_row, b_column) = if is_transposed {
        let transposed: Vec<f32> =
            (0..columns).flat_map(|column| b.iter().skip(column).step_by(columns)).copied().collect();
        (transposed, 1, inner)
    } else {
        (b, columns, 1)
    };
    let family = Family {
        name: format!(
            "matmul/KERNEL, {rows} x {inner} x {columns}{}",
            if is_transposed { ", transposed" } else { "" }
        ),
        image: MATMUL,
        buffers: vec![input(&a), input(&stored), floats(rows * columns)],
        output: 2,
        expected: Expected::Floats(expected),
    };
    let grid = [blocks(columns, 16)[0], blocks(rows, 16)[0], 1];
    let arguments =
        [Buffer(0), Buffer(1), Buffer(2), int(rows), int(columns), int(inner), int(b_row), int(b_column)];
    ["naive", "fast"]
        .map(|symbol| {
            let tiled = TrialLaunch { block: [16, 16, 1], ..launch(symbol, grid, 16, arguments) };
            family.case(symbol, vec![tiled])
        })
        .into()
}

fn digest() -> Vec<Case> {
    const SEED: i64 = 12345;
    let values = Numbers::new(9).floats(20_002);
    let bytes = bytes_of(&values);
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| word.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)))
        .collect();
    let sum = host::digest(&words, SEED.unsigned_abs());
    vec![Case {
        name: format!("digest, {} words", words.len()),
        image: DIGEST.0,
        buffers: vec![TrialBuffer::Input(bytes), TrialBuffer::Zeros(8)],
        launches: vec![launch(
            DIGEST.1,
            blocks(words.len(), 256),
            256,
            [Buffer(0), long(words.len()), I64(SEED), Buffer(1)],
        )],
        output: 1,
        expected: Expected::Bytes(sum.to_le_bytes().to_vec()),
    }]
}
