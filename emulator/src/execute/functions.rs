//! Executes functions of a single lane's values for which `Op` has no variant. The frequent ones are executed for all
//! lanes in one loop.

use super::lanes;
use super::vector::write;
use super::warp::Registers;
use crate::code::{File, LaneOp, Slot};
use crate::lane::float::flushed;
use crate::lane::soft::Rounding;
use crate::lane::{Conversion, FloatFunction, FloatOp, Function, IntegerOp, Type};

#[inline(always)]
pub fn run(op: &LaneOp, registers: &mut Registers, active: u32) {
    let is_done = match (&op.function, op.from.as_slice(), op.second) {
        (Function::Float(function), [a, b], None) => float2(function, registers, active, op.to, [*a, *b]),
        (Function::Integer(operation, ty), [a, b], None) => {
            integer2((*operation, *ty), registers, active, op.to, [*a, *b])
        }
        (Function::Float(function), [a], None) => float1(function, registers, active, op.to, *a),
        (Function::Convert(conversion), [a], None) => convert(conversion, registers, active, op.to, *a),
        _ => false,
    };
    if !is_done {
        one_by_one(op, registers, active);
    }
}

#[inline(never)]
fn one_by_one(op: &LaneOp, registers: &mut Registers, active: u32) {
    for lane in lanes(active) {
        let mut values = [0; 4];
        for (value, slot) in values.iter_mut().zip(&op.from) {
            *value = registers.get(*slot, lane);
        }
        let (first, second) = op.function.apply(values);
        registers.set(op.to, lane, first);
        if let Some(slot) = op.second {
            registers.set(slot, lane, second);
        }
    }
}

/// Whether a function computes with `f32`, rounds to nearest, and has no other modifier than flushing of subnormal
/// numbers.
fn is_plain(function: &FloatFunction) -> bool {
    let FloatFunction { op: _, wide, rounding, flush: _, saturate, propagates_nan, xor_sign } = *function;
    !wide && rounding == Rounding::NearestEven && !saturate && !propagates_nan && !xor_sign
}

/// Returns the bits of a result, in which every NaN is replaced by the canonical NaN.
#[inline(always)]
fn canonical(value: f32) -> u32 {
    if value.is_nan() { 0x7fff_ffff } else { value.to_bits() }
}

#[inline(always)]
fn map(
    registers: &mut Registers,
    active: u32,
    to: Slot,
    a: Slot,
    flush: bool,
    f: impl Fn(f32) -> f32,
) -> bool {
    let x = registers.narrow[a.row as usize];
    let row = &mut registers.narrow[to.row as usize];
    if flush {
        write(row, active, |lane| flushed(canonical(f(f32::from_bits(flushed(x[lane]))))));
    } else {
        write(row, active, |lane| canonical(f(f32::from_bits(x[lane]))));
    }
    true
}

#[inline(always)]
fn float1(function: &FloatFunction, registers: &mut Registers, active: u32, to: Slot, a: Slot) -> bool {
    if !is_plain(function) || to.file != File::Narrow {
        return false;
    }
    let flush = function.flush;
    match function.op {
        FloatOp::Neg => map(registers, active, to, a, flush, |x| -x),
        FloatOp::Abs => map(registers, active, to, a, flush, f32::abs),
        FloatOp::Reciprocal => map(registers, active, to, a, flush, |x| 1.0 / x),
        FloatOp::SquareRoot => map(registers, active, to, a, flush, f32::sqrt),
        FloatOp::ReciprocalSquareRoot => {
            map(registers, active, to, a, flush, |x| (1.0 / f64::from(x).sqrt()) as f32)
        }
        FloatOp::Exp2 => map(registers, active, to, a, flush, |x| f64::from(x).exp2() as f32),
        _ => false,
    }
}

#[inline(always)]
fn float2(
    function: &FloatFunction,
    registers: &mut Registers,
    active: u32,
    to: Slot,
    [a, b]: [Slot; 2],
) -> bool {
    if !is_plain(function) || to.file != File::Narrow || function.op != FloatOp::Div {
        return false;
    }
    let (x, y) = (registers.narrow[a.row as usize], registers.narrow[b.row as usize]);
    let row = &mut registers.narrow[to.row as usize];
    if function.flush {
        let quotient = |x, y| f32::from_bits(flushed(x)) / f32::from_bits(flushed(y));
        write(row, active, |lane| flushed(canonical(quotient(x[lane], y[lane]))));
    } else {
        write(row, active, |lane| canonical(f32::from_bits(x[lane]) / f32::from_bits(y[lane])));
    }
    true
}

#[inline(always)]
fn integer2(
    (op, ty): (IntegerOp, Type),
    registers: &mut Registers,
    active: u32,
    to: Slot,
    [a, b]: [Slot; 2],
) -> bool {
    if [to, a, b].iter().any(|slot| slot.file != File::Narrow) {
        return false;
    }
    let (x, y) = (registers.narrow[a.row as usize], registers.narrow[b.row as usize]);
    let row = &mut registers.narrow[to.row as usize];
    let signed = |value: u32| value.cast_signed();
    // As on the hardware, the quotient of a division by zero has all bits set, and the remainder is the dividend.
    match (op, ty) {
        (IntegerOp::Div, Type::U32) => write(row, active, |l| x[l].checked_div(y[l]).unwrap_or(u32::MAX)),
        (IntegerOp::Rem, Type::U32) => write(row, active, |l| x[l].checked_rem(y[l]).unwrap_or(x[l])),
        (IntegerOp::Div, Type::S32) => write(row, active, |l| match y[l] {
            0 => u32::MAX,
            by => signed(x[l]).wrapping_div(signed(by)).cast_unsigned(),
        }),
        (IntegerOp::Rem, Type::S32) => write(row, active, |l| match y[l] {
            0 => x[l],
            by => signed(x[l]).wrapping_rem(signed(by)).cast_unsigned(),
        }),
        (IntegerOp::MulHigh, Type::U32) => {
            write(row, active, |l| ((u64::from(x[l]) * u64::from(y[l])) >> 32) as u32);
        }
        (IntegerOp::MulHigh, Type::S32) => {
            write(row, active, |l| ((i64::from(signed(x[l])) * i64::from(signed(y[l]))) >> 32) as u32);
        }
        _ => return false,
    }
    true
}

#[expect(clippy::cast_precision_loss, reason = "the conversion rounds by definition")]
#[inline(always)]
fn convert(conversion: &Conversion, registers: &mut Registers, active: u32, to: Slot, a: Slot) -> bool {
    let Conversion { rounding, integral, flush, saturate, relu, .. } = *conversion;
    if integral || saturate || relu || to.file != File::Narrow || a.file != File::Narrow {
        return false;
    }
    let nearest = rounding == Rounding::NearestEven;
    let x = registers.narrow[a.row as usize];
    let row = &mut registers.narrow[to.row as usize];
    match (conversion.from, conversion.to) {
        (Type::S32, Type::F32) if nearest => {
            write(row, active, |lane| (x[lane].cast_signed() as f32).to_bits());
        }
        (Type::U32, Type::F32) if nearest => write(row, active, |lane| (x[lane] as f32).to_bits()),
        // All of these numbers are zero or normal, so only the bias of their exponent changes.
        (Type::F16, Type::F32) if x.iter().all(|half| !is_special(*half)) => {
            write(row, active, |lane| single(x[lane]));
        }
        (Type::Bf16, Type::F32) if !flush && x.iter().all(|half| half & 0x7f80 != 0x7f80) => {
            write(row, active, |lane| x[lane] << 16);
        }
        // Other numbers are excluded, because the smallest normal `f16` is 2^-14, and some numbers above 2^15 are
        // rounded to infinity.
        (Type::F32, Type::F16)
            if nearest
                && x.iter().all(|single| single << 1 == 0 || (113..142).contains(&(single >> 23 & 0xff))) =>
        {
            write(row, active, |lane| half(x[lane]));
        }
        (Type::F32, Type::Bf16)
            if nearest && !flush && x.iter().all(|single| single >> 23 & 0xff != 0xff) =>
        {
            write(row, active, |lane| (x[lane] + 0x7fff + (x[lane] >> 16 & 1)) >> 16);
        }
        _ => return false,
    }
    true
}

/// Whether an `f16` is subnormal, infinite or NaN.
#[inline(always)]
fn is_special(half: u32) -> bool {
    let exponent = half >> 10 & 31;
    (exponent == 31) | ((exponent == 0) & (half & 0x3ff != 0))
}

/// Converts an `f16` that is not special to `f32`.
#[inline(always)]
fn single(half: u32) -> u32 {
    let magnitude = if half & 0x7fff == 0 { 0 } else { ((half & 0x7fff) + (112 << 10)) << 13 };
    (half & 0x8000) << 16 | magnitude
}

/// Returns the `f16` nearest to an `f32` that is zero, or whose magnitude is at least 2^-14 and less than 2^15.
#[inline(always)]
fn half(single: u32) -> u32 {
    let rounded = (single & 0x7fff_ffff) + 0xfff + (single >> 13 & 1);
    let magnitude = if single << 1 == 0 { 0 } else { (rounded >> 13).wrapping_sub(112 << 10) };
    single >> 16 & 0x8000 | magnitude
}
