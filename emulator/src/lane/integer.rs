//! Computes arithmetic on integers, and bit operations.

use super::{Results, Type, mask};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntegerOp {
    Add,
    /// Adds, and clamps the result to the range of `i32`.
    AddSaturating,
    Sub,
    SubSaturating,
    MulLow,
    MulHigh,
    MulWide,
    MadLow,
    MadHigh,
    MadHighSaturating,
    MadWide,
    Mul24Low,
    Mul24High,
    Mad24Low,
    Mad24High,
    /// Adds with carry. In this and the next three operations, the last operand is the carry in, and the second result
    /// is the carry out.
    AddCarry,
    SubCarry,
    MadLowCarry,
    MadHighCarry,
    /// Adds the absolute difference of the first two operands to the third.
    SumOfDifferences,
    Div,
    Rem,
    Abs,
    Neg,
    Min,
    MinRelu,
    Max,
    MaxRelu,
    And,
    Or,
    Xor,
    Not,
    /// 1 if all bits are zero, otherwise 0.
    CNot,
    Shl,
    Shr,
    FunnelLeftClamp,
    FunnelLeftWrap,
    FunnelRightClamp,
    FunnelRightWrap,
    CountOnes,
    CountLeadingZeros,
    /// The position of the highest set bit, or of the highest clear bit of a negative number; 32 ones if there is none.
    FindHighest,
    /// Like `FindHighest`, but the result is the distance of that bit from the highest bit of the type.
    FindHighestAsShift,
    Reverse,
    Extract,
    Insert,
    /// A mask of consecutive ones. The operands are the lowest position and the number of ones. If `wraps`, both are
    /// taken modulo 32; otherwise, values above 32 are treated as 32.
    MaskOfBits {
        wraps: bool,
    },
    /// Sign-extends a number whose size in bits is the second operand. If `wraps`, the size is taken modulo 32;
    /// otherwise, a size above 32 is treated as 32.
    SignExtend {
        wraps: bool,
    },
    Permute(Permute),
    /// A logical function of three inputs, given by its truth table.
    Logic3(u8),
    /// Adds four products of bytes to the third operand. The flags say for each operand whether its bytes are signed.
    Dot4 {
        first: bool,
        second: bool,
    },
    /// Adds two products to the third operand: of the halves of the first operand and the lower two bytes of the second
    /// (its upper two if `high`).
    Dot2 {
        first: bool,
        second: bool,
        high: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permute {
    Default,
    Forward4,
    Backward4,
    Replicate8,
    EdgeLeft,
    EdgeRight,
    Replicate16,
}

pub fn apply(op: IntegerOp, ty: Type, [a, b, c, d]: [u64; 4]) -> Results {
    use IntegerOp as Op;
    let bits = ty.bits();
    let (x, y) = (ty.number(a), ty.number(b));
    let value = match op {
        Op::Add => a.wrapping_add(b),
        Op::Sub => a.wrapping_sub(b),
        Op::AddSaturating => saturated(i128::from(a as u32 as i32) + i128::from(b as u32 as i32)),
        Op::SubSaturating => saturated(i128::from(a as u32 as i32) - i128::from(b as u32 as i32)),
        Op::MulLow => a.wrapping_mul(b),
        Op::MulHigh => high(x, y, bits),
        Op::MulWide => x.wrapping_mul(y) as u64,
        Op::MadLow => a.wrapping_mul(b).wrapping_add(c),
        Op::MadHigh => high(x, y, bits).wrapping_add(c),
        Op::MadHighSaturating => {
            saturated(i128::from(high(x, y, bits) as u32 as i32) + i128::from(c as u32 as i32))
        }
        Op::MadWide => (x.wrapping_mul(y) as u64).wrapping_add(c),
        Op::Mul24Low => product24(ty, a, b) as u64,
        Op::Mul24High => (product24(ty, a, b) >> 16) as u64,
        Op::Mad24Low => (product24(ty, a, b) as u64).wrapping_add(c),
        Op::Mad24High => ((product24(ty, a, b) >> 16) as u64).wrapping_add(c),
        Op::AddCarry => {
            return carried(
                u128::from(ty.truncate(a)) + u128::from(ty.truncate(b)) + u128::from(c & 1),
                bits,
            );
        }
        Op::SubCarry => {
            // In a subtraction, the carry flag contains the borrow.
            let (first, second) =
                (u128::from(ty.truncate(a)), u128::from(ty.truncate(b)) + u128::from(c & 1));
            return (first.wrapping_sub(second) as u64, u64::from(first < second));
        }
        Op::MadLowCarry => {
            let low = ty.truncate(a.wrapping_mul(b));
            return carried(u128::from(low) + u128::from(ty.truncate(c)) + u128::from(d & 1), bits);
        }
        Op::MadHighCarry => {
            let high = ty.truncate(high(x, y, bits));
            return carried(u128::from(high) + u128::from(ty.truncate(c)) + u128::from(d & 1), bits);
        }
        Op::SumOfDifferences => c.wrapping_add(x.abs_diff(y) as u64),
        Op::Div => divided(ty, x, y),
        Op::Rem => remainder(ty, x, y),
        Op::Abs => ty.signed(a).wrapping_abs() as u64,
        Op::Neg => a.wrapping_neg(),
        Op::Min => {
            if y < x {
                b
            } else {
                a
            }
        }
        Op::Max => {
            if x < y {
                b
            } else {
                a
            }
        }
        Op::MinRelu => x.min(y).max(0) as u64,
        Op::MaxRelu => x.max(y).max(0) as u64,
        Op::And => a & b,
        Op::Or => a | b,
        Op::Xor => a ^ b,
        Op::Not => !a,
        Op::CNot => u64::from(ty.truncate(a) == 0),
        Op::Shl => {
            let shift = b & 0xffff_ffff;
            if u64::from(bits) <= shift { 0 } else { a << shift }
        }
        Op::Shr => shifted_right(ty, a, b),
        Op::FunnelLeftClamp | Op::FunnelLeftWrap | Op::FunnelRightClamp | Op::FunnelRightWrap => {
            funnel(op, a, b, c)
        }
        Op::CountOnes => u64::from(ty.truncate(a).count_ones()),
        Op::CountLeadingZeros => u64::from(ty.truncate(a).leading_zeros() - (64 - bits)),
        Op::FindHighest | Op::FindHighestAsShift => find_highest(ty, a, op == Op::FindHighestAsShift),
        Op::Reverse => ty.truncate(a).reverse_bits() >> (64 - bits),
        Op::Extract => extracted(ty, a, b, c),
        Op::Insert => inserted(ty, a, b, c, d),
        Op::MaskOfBits { wraps } => mask_of_bits(a, b, wraps),
        Op::SignExtend { wraps } => sign_extended(ty, a, b, wraps),
        Op::Permute(mode) => u64::from(permuted(mode, a as u32, b as u32, c as u32)),
        Op::Logic3(table) => u64::from(logic3(table, a as u32, b as u32, c as u32)),
        Op::Dot4 { first, second } => {
            let sum = (0..4).map(|index| part(a, index, 8, first) * part(b, index, 8, second)).sum::<i64>();
            (sum as u64).wrapping_add(c)
        }
        Op::Dot2 { first, second, high } => {
            let from = if high { 2 } else { 0 };
            let sum =
                (0..2).map(|index| part(a, index, 16, first) * part(b, from + index, 8, second)).sum::<i64>();
            (sum as u64).wrapping_add(c)
        }
    };
    (value, 0)
}

fn saturated(sum: i128) -> u64 {
    sum.clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as u64
}

fn high(x: i128, y: i128, bits: u32) -> u64 {
    // A product of two u64 values can set the sign bit of an i128, so non-negative products are shifted as u128.
    let product = x.wrapping_mul(y);
    if x < 0 || y < 0 { (product >> bits) as u64 } else { ((product as u128) >> bits) as u64 }
}

fn product24(ty: Type, a: u64, b: u64) -> i64 {
    let low = |value: u64| {
        if ty.is_signed() { i64::from(((value as u32) << 8) as i32 >> 8) } else { (value & 0xff_ffff) as i64 }
    };
    low(a).wrapping_mul(low(b))
}

fn carried(sum: u128, bits: u32) -> Results {
    (sum as u64, u64::from(sum >> bits != 0))
}

/// Divides two numbers. As on the hardware, all bits of the result are set if the divisor is zero.
fn divided(ty: Type, x: i128, y: i128) -> u64 {
    if y == 0 { ty.truncate(u64::MAX) } else { (x / y) as u64 }
}

fn remainder(ty: Type, x: i128, y: i128) -> u64 {
    if y == 0 { ty.truncate(x as u64) } else { (x % y) as u64 }
}

fn shifted_right(ty: Type, a: u64, b: u64) -> u64 {
    let shift = (b & 0xffff_ffff).min(u64::from(ty.bits()));
    if ty.is_signed() {
        (ty.signed(a) >> shift.min(63)) as u64
    } else if shift == 64 {
        0
    } else {
        ty.truncate(a) >> shift
    }
}

fn funnel(op: IntegerOp, a: u64, b: u64, c: u64) -> u64 {
    let both = (b & 0xffff_ffff) << 32 | a & 0xffff_ffff;
    let count = c & 0xffff_ffff;
    let clamped = count.min(32);
    match op {
        IntegerOp::FunnelLeftClamp => (both << clamped) >> 32,
        IntegerOp::FunnelLeftWrap => (both << (count & 31)) >> 32,
        IntegerOp::FunnelRightClamp => both >> clamped,
        _ => both >> (count & 31),
    }
}

fn find_highest(ty: Type, a: u64, as_shift: bool) -> u64 {
    let value = if ty.signed(a) < 0 && ty.is_signed() { ty.truncate(!a) } else { ty.truncate(a) };
    if value == 0 {
        return 0xffff_ffff;
    }
    let highest = 63 - value.leading_zeros();
    u64::from(if as_shift { ty.bits() - 1 - highest } else { highest })
}

fn extracted(ty: Type, a: u64, b: u64, c: u64) -> u64 {
    let bits = u64::from(ty.bits());
    let (from, length) = (b & 0xff, c & 0xff);
    let last = bits - 1;
    let sign_at = (from + length).saturating_sub(1).min(last);
    let negative = ty.is_signed() && length != 0 && a >> sign_at & 1 == 1;
    let field = if bits <= from { 0 } else { ty.truncate(a) >> from };
    // Bits of the field beyond the type's width are copies of the sign bit.
    let there = length.min(bits.saturating_sub(from));
    let kept = if 64 <= there { field } else { field & ((1 << there) - 1) };
    let above = if 64 <= there { 0 } else { u64::MAX << there };
    if negative { kept | above } else { kept }
}

/// Inserts the low `d` bits of `a` into `b` at bit `c`.
fn inserted(ty: Type, a: u64, b: u64, c: u64, d: u64) -> u64 {
    let bits = u64::from(ty.bits());
    let (from, length) = (c & 0xff, (d & 0xff).min(bits));
    if bits <= from || length == 0 {
        return b;
    }
    let field = if 64 <= length { u64::MAX } else { (1 << length) - 1 };
    b & !(field << from) | (a & field) << from
}

fn mask_of_bits(a: u64, b: u64, wraps: bool) -> u64 {
    let limited = |value: u64| if wraps { value & 31 } else { (value & 0xffff_ffff).min(32) };
    let (from, length) = (limited(a), limited(b));
    mask(((1 << length) - 1) << from, 32)
}

fn sign_extended(ty: Type, a: u64, b: u64, wraps: bool) -> u64 {
    let count = if wraps { b & 31 } else { (b & 0xffff_ffff).min(32) } as u32;
    if count == 0 {
        return 0;
    }
    let low = mask(a, count);
    let negative = ty.is_signed() && low >> (count - 1) & 1 == 1;
    if negative && count < 32 { low | u64::MAX << count } else { low }
}

fn permuted(mode: Permute, a: u32, b: u32, c: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let byte = |index: u32| (bytes >> (8 * (index & 7)) & 0xff) as u32;
    let all = |picked: [u32; 4]| picked.iter().rev().fold(0, |all, byte| all << 8 | byte);
    if mode == Permute::Default {
        return all(std::array::from_fn(|index| {
            let selector = c >> (4 * index);
            let picked = byte(selector);
            match selector & 8 {
                0 => picked,
                _ if picked & 0x80 != 0 => 0xff,
                _ => 0,
            }
        }));
    }
    let at = c & 3;
    all(std::array::from_fn(|index| {
        let index = index as u32;
        byte(match mode {
            Permute::Forward4 => at + index,
            Permute::Backward4 => at.wrapping_sub(index) & 7,
            Permute::Replicate8 => at,
            Permute::EdgeLeft => index.max(at),
            Permute::EdgeRight => index.min(at),
            Permute::Replicate16 | Permute::Default => (at & 1) * 2 + (index & 1),
        })
    }))
}

pub fn logic3(table: u8, a: u32, b: u32, c: u32) -> u32 {
    (0..8)
        .filter(|entry| table >> entry & 1 == 1)
        .map(|entry| {
            let side = |bit: u8, value: u32| if entry & bit != 0 { value } else { !value };
            side(4, a) & side(2, b) & side(1, c)
        })
        .fold(0, |all, term| all | term)
}

fn part(value: u64, index: u32, bits: u32, signed: bool) -> i64 {
    let unused = 64 - bits;
    let raised = value >> (bits * index) << unused;
    if signed { (raised as i64) >> unused } else { (raised >> unused) as i64 }
}
