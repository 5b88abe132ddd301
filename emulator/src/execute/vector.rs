//! Executes operations on all lanes of a warp in one loop, which the compiler vectorises.

use std::cmp::Ordering;

use super::{lanes, warp::Registers};
use crate::code::{Comparable, Compare, Narrow2, Wide2, WideShift};
use crate::lane::float::{extreme, flushed};
use crate::lane::soft::F32;

/// Writes the lanes of a mask to a row.
#[inline(always)]
pub fn write<T: Copy>(to: &mut [T; 32], mask: u32, value: impl Fn(usize) -> T) {
    if mask == u32::MAX {
        for (lane, slot) in to.iter_mut().enumerate() {
            *slot = value(lane);
        }
    } else {
        for (lane, slot) in to.iter_mut().enumerate() {
            let new = value(lane);
            *slot = if mask >> lane & 1 == 1 { new } else { *slot };
        }
    }
}

#[inline(always)]
fn narrow2(registers: &mut Registers, mask: u32, to: u32, a: u32, b: u32, f: impl Fn(u32, u32) -> u32) {
    let (x, y) = (registers.narrow[a as usize], registers.narrow[b as usize]);
    write(&mut registers.narrow[to as usize], mask, |lane| f(x[lane], y[lane]));
}

#[inline(always)]
fn wide2(registers: &mut Registers, mask: u32, to: u32, a: u32, b: u32, f: impl Fn(u64, u64) -> u64) {
    let (x, y) = (registers.wide[a as usize], registers.wide[b as usize]);
    write(&mut registers.wide[to as usize], mask, |lane| f(x[lane], y[lane]));
}

/// Returns the bits of a result, in which every NaN is replaced by the canonical NaN.
#[inline(always)]
fn canonical(value: f32) -> u32 {
    if value.is_nan() { 0x7fff_ffff } else { value.to_bits() }
}

#[inline(always)]
fn float2(registers: &mut Registers, mask: u32, rows: [u32; 3], f: impl Fn(f32, f32) -> f32) {
    let [to, a, b] = rows;
    narrow2(registers, mask, to, a, b, |x, y| canonical(f(f32::from_bits(x), f32::from_bits(y))));
}

#[inline(always)]
fn float2_flushed(registers: &mut Registers, mask: u32, rows: [u32; 3], f: impl Fn(f32, f32) -> f32) {
    let [to, a, b] = rows;
    narrow2(registers, mask, to, a, b, |x, y| {
        flushed(canonical(f(f32::from_bits(flushed(x)), f32::from_bits(flushed(y)))))
    });
}

#[inline(always)]
fn signed(value: u32) -> i32 {
    value.cast_signed()
}

#[inline(always)]
pub fn run_narrow(op: Narrow2, registers: &mut Registers, mask: u32, to: u32, a: u32, b: u32) {
    let r = registers;
    match op {
        Narrow2::Add => narrow2(r, mask, to, a, b, u32::wrapping_add),
        Narrow2::Sub => narrow2(r, mask, to, a, b, u32::wrapping_sub),
        Narrow2::Mul => narrow2(r, mask, to, a, b, u32::wrapping_mul),
        Narrow2::And => narrow2(r, mask, to, a, b, |x, y| x & y),
        Narrow2::Or => narrow2(r, mask, to, a, b, |x, y| x | y),
        Narrow2::Xor => narrow2(r, mask, to, a, b, |x, y| x ^ y),
        Narrow2::Shl => narrow2(r, mask, to, a, b, |x, y| if 31 < y { 0 } else { x << y }),
        Narrow2::ShrUnsigned => narrow2(r, mask, to, a, b, |x, y| if 31 < y { 0 } else { x >> y }),
        Narrow2::ShrSigned => narrow2(r, mask, to, a, b, |x, y| (signed(x) >> y.min(31)).cast_unsigned()),
        Narrow2::MinSigned => narrow2(r, mask, to, a, b, |x, y| signed(x).min(signed(y)).cast_unsigned()),
        Narrow2::MaxSigned => narrow2(r, mask, to, a, b, |x, y| signed(x).max(signed(y)).cast_unsigned()),
        Narrow2::MinUnsigned => narrow2(r, mask, to, a, b, u32::min),
        Narrow2::MaxUnsigned => narrow2(r, mask, to, a, b, u32::max),
        Narrow2::AddF32 => float2(r, mask, [to, a, b], |x, y| x + y),
        Narrow2::SubF32 => float2(r, mask, [to, a, b], |x, y| x - y),
        Narrow2::MulF32 => float2(r, mask, [to, a, b], |x, y| x * y),
        Narrow2::AddF32Ftz => float2_flushed(r, mask, [to, a, b], |x, y| x + y),
        Narrow2::SubF32Ftz => float2_flushed(r, mask, [to, a, b], |x, y| x - y),
        Narrow2::MulF32Ftz => float2_flushed(r, mask, [to, a, b], |x, y| x * y),
        Narrow2::MinF32 => narrow2(r, mask, to, a, b, |x, y| extreme32(false, x, y)),
        Narrow2::MaxF32 => narrow2(r, mask, to, a, b, |x, y| extreme32(true, x, y)),
    }
}

#[inline(always)]
fn extreme32(larger: bool, a: u32, b: u32) -> u32 {
    let (x, y) = (f32::from_bits(a), f32::from_bits(b));
    match x.partial_cmp(&y) {
        Some(Ordering::Less) => {
            if larger {
                b
            } else {
                a
            }
        }
        Some(Ordering::Greater) => {
            if larger {
                a
            } else {
                b
            }
        }
        // Either the bits are equal, or both are zeros and their signs decide.
        Some(Ordering::Equal) => {
            if larger {
                a & b
            } else {
                a | b
            }
        }
        None => extreme(larger, false, false, a.into(), b.into(), F32) as u32,
    }
}

#[inline(always)]
pub fn run_wide(op: Wide2, registers: &mut Registers, mask: u32, to: u32, a: u32, b: u32) {
    let r = registers;
    let float = |f: fn(f64, f64) -> f64| move |x, y| f(f64::from_bits(x), f64::from_bits(y)).to_bits();
    match op {
        Wide2::Add => wide2(r, mask, to, a, b, u64::wrapping_add),
        Wide2::Sub => wide2(r, mask, to, a, b, u64::wrapping_sub),
        Wide2::Mul => wide2(r, mask, to, a, b, u64::wrapping_mul),
        Wide2::And => wide2(r, mask, to, a, b, |x, y| x & y),
        Wide2::Or => wide2(r, mask, to, a, b, |x, y| x | y),
        Wide2::Xor => wide2(r, mask, to, a, b, |x, y| x ^ y),
        Wide2::AddF64 => wide2(r, mask, to, a, b, float(|x, y| x + y)),
        Wide2::SubF64 => wide2(r, mask, to, a, b, float(|x, y| x - y)),
        Wide2::MulF64 => wide2(r, mask, to, a, b, float(|x, y| x * y)),
    }
}

#[inline(always)]
pub fn shift_wide(op: WideShift, registers: &mut Registers, mask: u32, to: u32, a: u32, b: u32) {
    let (x, y) = (registers.wide[a as usize], registers.narrow[b as usize]);
    let row = &mut registers.wide[to as usize];
    match op {
        WideShift::Left => write(row, mask, |l| x[l].checked_shl(y[l]).unwrap_or(0)),
        WideShift::RightUnsigned => write(row, mask, |l| x[l].checked_shr(y[l]).unwrap_or(0)),
        WideShift::RightSigned => write(row, mask, |l| (x[l].cast_signed() >> y[l].min(63)).cast_unsigned()),
    }
}

#[inline(always)]
pub fn mad_narrow(registers: &mut Registers, mask: u32, [to, a, b, c]: [u32; 4]) {
    let [x, y, z] = [a, b, c].map(|row| registers.narrow[row as usize]);
    write(&mut registers.narrow[to as usize], mask, |l| x[l].wrapping_mul(y[l]).wrapping_add(z[l]));
}

#[inline(always)]
pub fn mad_wide(registers: &mut Registers, mask: u32, [to, a, b, c]: [u32; 4]) {
    let [x, y, z] = [a, b, c].map(|row| registers.wide[row as usize]);
    write(&mut registers.wide[to as usize], mask, |l| x[l].wrapping_mul(y[l]).wrapping_add(z[l]));
}

#[inline(always)]
fn product(is_signed: bool, x: u32, y: u32) -> u64 {
    if is_signed {
        (i64::from(signed(x)) * i64::from(signed(y))).cast_unsigned()
    } else {
        u64::from(x) * u64::from(y)
    }
}

#[inline(always)]
pub fn mul_widen(is_signed: bool, registers: &mut Registers, mask: u32, [to, a, b]: [u32; 3]) {
    let [x, y] = [a, b].map(|row| registers.narrow[row as usize]);
    let row = &mut registers.wide[to as usize];
    if is_signed {
        write(row, mask, |l| product(true, x[l], y[l]));
    } else {
        write(row, mask, |l| product(false, x[l], y[l]));
    }
}

#[inline(always)]
pub fn mad_widen(is_signed: bool, registers: &mut Registers, mask: u32, [to, a, b, c]: [u32; 4]) {
    let [x, y] = [a, b].map(|row| registers.narrow[row as usize]);
    let z = registers.wide[c as usize];
    write(&mut registers.wide[to as usize], mask, |l| product(is_signed, x[l], y[l]).wrapping_add(z[l]));
}

#[inline(always)]
pub fn widen(is_signed: bool, registers: &mut Registers, mask: u32, to: u32, from: u32) {
    let x = registers.narrow[from as usize];
    let row = &mut registers.wide[to as usize];
    if is_signed {
        write(row, mask, |l| i64::from(signed(x[l])).cast_unsigned());
    } else {
        write(row, mask, |l| u64::from(x[l]));
    }
}

#[inline(always)]
pub fn truncate(registers: &mut Registers, mask: u32, to: u32, from: u32) {
    let x = registers.wide[from as usize];
    write(&mut registers.narrow[to as usize], mask, |l| x[l] as u32);
}

#[inline(always)]
pub fn move_narrow(registers: &mut Registers, mask: u32, to: u32, from: u32) {
    let x = registers.narrow[from as usize];
    write(&mut registers.narrow[to as usize], mask, |l| x[l]);
}

#[inline(always)]
pub fn move_wide(registers: &mut Registers, mask: u32, to: u32, from: u32) {
    let x = registers.wide[from as usize];
    write(&mut registers.wide[to as usize], mask, |l| x[l]);
}

/// Computes a × b + c, rounded once. `FUSED` says whether the host has an instruction for this.
#[inline(always)]
pub fn fma_f32<const FUSED: bool>(
    flush: bool,
    registers: &mut Registers,
    mask: u32,
    [to, a, b, c]: [u32; 4],
) {
    if !FUSED {
        return fma_f32_in_f64(flush, registers, mask, [to, a, b, c]);
    }
    let [x, y, z] = [a, b, c].map(|row| registers.narrow[row as usize]);
    let row = &mut registers.narrow[to as usize];
    let fused = |x, y, z| canonical(f32::from_bits(x).mul_add(f32::from_bits(y), f32::from_bits(z)));
    if flush {
        write(row, mask, |l| flushed(fused(flushed(x[l]), flushed(y[l]), flushed(z[l]))));
    } else {
        write(row, mask, |l| fused(x[l], y[l], z[l]));
    }
}

/// Computes a × b + c in `f64`, in which the product is exact. The sum is rounded to `f64` and then to `f32`. If
/// rounding twice could make a difference, the result is computed again and rounded only once. This is the case if the
/// `f64` is half-way between two `f32` numbers, or is not zero and has less than twice the magnitude of the smallest
/// normal `f32`.
fn fma_f32_in_f64(flush: bool, registers: &mut Registers, mask: u32, [to, a, b, c]: [u32; 4]) {
    let [mut x, mut y, mut z] = [a, b, c].map(|row| registers.narrow[row as usize]);
    if flush {
        for row in [&mut x, &mut y, &mut z] {
            *row = row.map(flushed);
        }
    }
    let mut result = [0_u32; 32];
    let mut doubtful = [0_u32; 32];
    for lane in 0..32 {
        let sum = f64::from(f32::from_bits(x[lane])) * f64::from(f32::from_bits(y[lane]))
            + f64::from(f32::from_bits(z[lane]));
        result[lane] = canonical(sum as f32);
        let half_way = u64::from(sum.to_bits() & 0x1fff_ffff == 0x1000_0000);
        let small = u64::from(sum.abs() < f64::from(f32::MIN_POSITIVE) * 2.0) & u64::from(sum != 0.0);
        doubtful[lane] = (half_way | small) as u32;
    }
    if doubtful.iter().fold(0, |any, lane| any | lane) != 0 {
        for lane in (0..32).filter(|lane| doubtful[*lane] != 0) {
            let sum = f32::from_bits(x[lane]).mul_add(f32::from_bits(y[lane]), f32::from_bits(z[lane]));
            result[lane] = canonical(sum);
        }
    }
    if flush {
        result = result.map(flushed);
    }
    write(&mut registers.narrow[to as usize], mask, |lane| result[lane]);
}

#[inline(always)]
pub fn fma_f64<const FUSED: bool>(registers: &mut Registers, mask: u32, [to, a, b, c]: [u32; 4]) {
    let [x, y, z] = [a, b, c].map(|row| registers.wide[row as usize].map(f64::from_bits));
    let row = &mut registers.wide[to as usize];
    if FUSED {
        return write(row, mask, |lane| x[lane].mul_add(y[lane], z[lane]).to_bits());
    }
    for lane in lanes(mask) {
        row[lane] = x[lane].mul_add(y[lane], z[lane]).to_bits();
    }
}

#[inline(always)]
pub fn select_narrow(registers: &mut Registers, mask: u32, to: u32, yes: u32, no: u32, flag: u32) {
    let (x, y) = (registers.narrow[yes as usize], registers.narrow[no as usize]);
    let flags = registers.flags[flag as usize];
    write(&mut registers.narrow[to as usize], mask, |l| if flags >> l & 1 == 1 { x[l] } else { y[l] });
}

#[inline(always)]
pub fn select_wide(registers: &mut Registers, mask: u32, to: u32, yes: u32, no: u32, flag: u32) {
    let (x, y) = (registers.wide[yes as usize], registers.wide[no as usize]);
    let flags = registers.flags[flag as usize];
    write(&mut registers.wide[to as usize], mask, |l| if flags >> l & 1 == 1 { x[l] } else { y[l] });
}

#[inline(always)]
fn flags(holds: impl Fn(usize) -> bool) -> u32 {
    let mut found = 0;
    for lane in 0..32 {
        found |= u32::from(holds(lane)) << lane;
    }
    found
}

/// Compares all lanes. Each plain comparison except inequality has a separate loop.
#[inline(always)]
fn ordered<T: PartialOrd + Copy>(compare: Compare, x: &[T; 32], y: &[T; 32]) -> u32 {
    match compare {
        Compare::Eq => flags(|l| x[l] == y[l]),
        Compare::Lt => flags(|l| x[l] < y[l]),
        Compare::Le => flags(|l| x[l] <= y[l]),
        Compare::Gt => flags(|l| x[l] > y[l]),
        Compare::Ge => flags(|l| x[l] >= y[l]),
        other => flags(|l| other.holds(x[l].partial_cmp(&y[l]))),
    }
}

#[inline(always)]
pub fn compare(compare: Compare, kind: Comparable, registers: &mut Registers, mask: u32, rows: [u32; 3]) {
    let [to, a, b] = rows.map(|row| row as usize);
    let found = match kind {
        Comparable::Unsigned32 => ordered(compare, &registers.narrow[a], &registers.narrow[b]),
        Comparable::Signed32 => {
            ordered(compare, &registers.narrow[a].map(signed), &registers.narrow[b].map(signed))
        }
        Comparable::Float32 => ordered(
            compare,
            &registers.narrow[a].map(f32::from_bits),
            &registers.narrow[b].map(f32::from_bits),
        ),
        Comparable::Unsigned64 => ordered(compare, &registers.wide[a], &registers.wide[b]),
        Comparable::Signed64 => ordered(
            compare,
            &registers.wide[a].map(u64::cast_signed),
            &registers.wide[b].map(u64::cast_signed),
        ),
    };
    registers.set_flags(to as u32, mask, found);
}
