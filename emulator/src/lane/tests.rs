//! Compares exact arithmetic with the host's arithmetic, and the rounding modes of exact arithmetic with each other.

use half::{bf16, f16};
use proptest::prelude::*;

use super::float::{FloatFunction, FloatOp};
use super::half::{HalfFunction, HalfOp};
use super::soft::{BF16, F16, F32, F64, Format, Rounding, unpack};
use super::{Conversion, Function, IntegerOp, Type};

const ARITHMETIC: [FloatOp; 7] = [
    FloatOp::Add,
    FloatOp::Sub,
    FloatOp::Mul,
    FloatOp::Fma,
    FloatOp::Div,
    FloatOp::Reciprocal,
    FloatOp::SquareRoot,
];

fn rounded(op: FloatOp, ty: Type, rounding: Rounding, values: [u64; 3]) -> u64 {
    let function = FloatFunction { rounding, ..FloatFunction::new(op, ty) };
    function.apply([values[0], values[1], values[2], 0])
}

/// Computes the same result as `rounded`, but in exact arithmetic.
fn exact(op: FloatOp, format: Format, rounding: Rounding, values: [u64; 3]) -> u64 {
    let [a, b, c] = values.map(|bits| unpack(bits, format));
    let result = match op {
        FloatOp::Add => a.plus(b, rounding),
        FloatOp::Sub => a.plus(b.negated(), rounding),
        FloatOp::Mul => a.times(b),
        FloatOp::Fma => a.times(b).plus(c, rounding),
        FloatOp::Div => a.divided_by(b),
        FloatOp::Reciprocal => super::soft::from_integer(1).divided_by(a),
        _ => a.square_root(),
    };
    result.round(format, rounding)
}

/// Generates numbers that are close to each other, so that they cancel in sums, subnormal and very small numbers, and
/// arbitrary bits.
fn bits32() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u32>().prop_map(u64::from),
        (0x3f00_0000_u32..0x4100_0000).prop_map(u64::from),
        (0_u32..0x0100_0000).prop_map(u64::from),
        (0xbf00_0000_u32..0xc100_0000).prop_map(u64::from),
    ]
}

fn bits64() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0x3fe0_0000_0000_0000_u64..0x4010_0000_0000_0000,
        0_u64..0x0020_0000_0000_0000,
        0xbfe0_0000_0000_0000_u64..0xc010_0000_0000_0000,
    ]
}

fn is_nan64(bits: u64) -> bool {
    f64::from_bits(bits).is_nan()
}

/// Maps numbers to integers in the same order.
fn order(bits: u64, sign: u64) -> i128 {
    let magnitude = i128::from(bits & (sign - 1));
    if bits & sign != 0 { -magnitude } else { magnitude }
}

/// Checks that the results of rounding down and up are equal or neighbours, and that the other modes give one of these
/// two results.
fn check_modes(op: FloatOp, ty: Type, values: [u64; 3]) -> Result<(), TestCaseError> {
    let sign = if ty == Type::F32 { 1 << 31 } else { 1 << 63 };
    let by = |rounding| rounded(op, ty, rounding, values);
    let nearest = by(Rounding::NearestEven);
    let nan = if ty == Type::F32 { nearest == F32.nan } else { is_nan64(nearest) };
    let (down, up, zero) = (by(Rounding::Down), by(Rounding::Up), by(Rounding::TowardsZero));
    if nan {
        let canonical = if ty == Type::F32 { F32.nan } else { F64.nan };
        prop_assert_eq!([down, up, zero], [canonical; 3]);
        return Ok(());
    }
    let distance = order(up, sign) - order(down, sign);
    prop_assert!((0..=1).contains(&distance), "{op:?} {values:x?}: {down:#x} {up:#x}");
    prop_assert!([order(down, sign), order(up, sign)].contains(&order(nearest, sign)));
    let smaller = if order(down, sign).abs() < order(up, sign).abs() { down } else { up };
    prop_assert_eq!(order(zero, sign), order(smaller, sign));
    Ok(())
}

/// Returns the bits of the half (`f16`) that is nearest to a number; of two equally near halves, the one whose last bit
/// is zero. `f16::from_f64` cannot be used, because it rounds to `f32` first on some processors and drops bits on
/// others.
fn nearest_half(number: f64) -> u64 {
    if number.is_nan() {
        return F16.nan;
    }
    // Positive halves are in the order of their bits. Infinity stands for the number that would follow the largest
    // half.
    let infinity = f16::INFINITY.to_bits();
    let value = |bits: u16| if bits == infinity { 65536.0 } else { f16::from_bits(bits).to_f64() };
    let mut below = 0_u16;
    for bit in (0..15).rev() {
        let next = below | 1 << bit;
        if next <= infinity && value(next) <= number.abs() {
            below = next;
        }
    }
    let magnitude = if below == infinity {
        infinity
    } else {
        let middle = f64::midpoint(value(below), value(below + 1));
        let rounds_up = middle < number.abs() || middle == number.abs() && below % 2 == 1;
        below + u16::from(rounds_up)
    };
    u64::from(magnitude) | u64::from(number.is_sign_negative()) << 15
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn exact_arithmetic_equals_the_hosts_in_32_bits(a in bits32(), b in bits32(), c in bits32()) {
        for op in ARITHMETIC {
            let host = rounded(op, Type::F32, Rounding::NearestEven, [a, b, c]);
            prop_assert_eq!(exact(op, F32, Rounding::NearestEven, [a, b, c]), host, "{:?}", op);
        }
    }

    #[test]
    fn exact_arithmetic_equals_the_hosts_in_64_bits(a in bits64(), b in bits64(), c in bits64()) {
        for op in ARITHMETIC {
            let host = rounded(op, Type::F64, Rounding::NearestEven, [a, b, c]);
            let found = exact(op, F64, Rounding::NearestEven, [a, b, c]);
            prop_assert!(found == host || is_nan64(found) && is_nan64(host), "{:?}: {:#x} {:#x}", op, found, host);
        }
    }

    #[test]
    fn rounding_modes_enclose_the_exact_result(a in bits32(), b in bits32(), c in bits32(), d in bits64(), e in bits64()) {
        for op in ARITHMETIC {
            check_modes(op, Type::F32, [a, b, c])?;
            check_modes(op, Type::F64, [d, e, a << 32 | b])?;
        }
    }

    #[test]
    fn halves_round_the_exact_result_once(a in any::<u16>(), b in any::<u16>(), c in any::<u16>()) {
        let values = [a, b, c].map(u64::from);
        let [x, y, z] = [a, b, c].map(|bits| f16::from_bits(bits).to_f64());
        let apply = |op| HalfFunction::new(op, Type::F16).apply([values[0], values[1], values[2], 0]);
        // A sum or a product of two numbers is exact in `f64`, and so is a fused product and sum if the product is not
        // too small.
        let mut exact = vec![(HalfOp::Add, x + y), (HalfOp::Sub, x - y), (HalfOp::Mul, x * y)];
        if (x * y).abs() > 1e-4 || x * y == 0.0 || z == 0.0 {
            exact.push((HalfOp::Fma, x * y + z));
        }
        for (op, truth) in exact {
            prop_assert_eq!(apply(op), nearest_half(truth), "{:?} {:?}", op, [x, y, z]);
        }
    }

    #[test]
    fn halves_have_the_same_sums_and_products_in_f64_as_in_exact_arithmetic(values in prop::array::uniform3(any::<u16>()), near in any::<bool>()) {
        // Numbers of similar size have more interesting sums.
        let values = values.map(|value| u64::from(if near { value & 0x83ff | 0x3c00 } else { value }));
        for (ty, format) in [(Type::F16, F16), (Type::Bf16, BF16)] {
            let [x, y, z] = values.map(|bits| unpack(bits, format));
            for op in [HalfOp::Add, HalfOp::Sub, HalfOp::Mul, HalfOp::Fma] {
                let function = HalfFunction::new(op, ty);
                if let Some(found) = function.in_f64(values[0], values[1], values[2], format) {
                    let truth = function.exactly(x, y, z, format);
                    prop_assert_eq!(found, truth, "{:?} of {:x?} in {:?}", op, values, ty);
                }
            }
        }
    }

    #[test]
    fn operation_on_pairs_equals_two_operations_on_halves(a in any::<u32>(), b in any::<u32>(), c in any::<u32>()) {
        for op in [HalfOp::Add, HalfOp::Mul, HalfOp::Fma, HalfOp::Min, HalfOp::Neg] {
            for (pair, one) in [(Type::F16x2, Type::F16), (Type::Bf16x2, Type::Bf16)] {
                let whole = HalfFunction::new(op, pair).apply([a, b, c, 0].map(u64::from));
                let part = |shift: u32| {
                    HalfFunction::new(op, one).apply([a, b, c, 0].map(|value| u64::from(value >> shift & 0xffff)))
                };
                prop_assert_eq!(whole, part(0) | part(16) << 16);
            }
        }
    }

    #[test]
    fn conversions_equal_the_hosts(bits in bits64(), narrow in bits32(), whole in any::<i64>()) {
        let convert = |from, to, value: u64, rounding, integral| {
            let conversion = Conversion { to, from, rounding, integral, flush: false, saturate: false, relu: false };
            conversion.apply([value, 0, 0, 0])
        };
        let nearest = Rounding::NearestEven;
        let (wide, single) = (f64::from_bits(bits), f32::from_bits(narrow as u32));
        if !wide.is_nan() {
            prop_assert_eq!(convert(Type::F64, Type::F32, bits, nearest, false), u64::from((wide as f32).to_bits()));
            prop_assert_eq!(convert(Type::F64, Type::S64, bits, Rounding::TowardsZero, true), wide as i64 as u64);
            prop_assert_eq!(convert(Type::F64, Type::U32, bits, Rounding::TowardsZero, true), u64::from(wide as u32));
            prop_assert_eq!(convert(Type::F64, Type::F64, bits, Rounding::Down, true), wide.floor().to_bits());
        }
        if !single.is_nan() {
            prop_assert_eq!(convert(Type::F32, Type::F16, narrow, nearest, false), u64::from(f16::from_f32(single).to_bits()));
            prop_assert_eq!(convert(Type::F32, Type::Bf16, narrow, nearest, false), u64::from(bf16::from_f32(single).to_bits()));
            prop_assert_eq!(convert(Type::F32, Type::F64, narrow, nearest, false), f64::from(single).to_bits());
            prop_assert_eq!(convert(Type::F32, Type::S32, narrow, nearest, true) as u32, single.round_ties_even() as i32 as u32);
        }
        prop_assert_eq!(convert(Type::S64, Type::F64, whole as u64, nearest, false), (whole as f64).to_bits());
        prop_assert_eq!(convert(Type::U64, Type::F32, whole as u64, nearest, false), u64::from((whole as u64 as f32).to_bits()));
    }

    #[test]
    fn logic_of_three_inputs_follows_its_table(table in any::<u8>(), a in any::<u32>(), b in any::<u32>(), c in any::<u32>()) {
        let (found, _) = Function::Integer(IntegerOp::Logic3(table), Type::B32).apply([a, b, c, 0].map(u64::from));
        for bit in 0..32 {
            let entry = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | c >> bit & 1;
            prop_assert_eq!(found >> bit & 1, u64::from(table >> entry & 1));
        }
    }

    /// None of these operations panics, for any bits of its operands.
    #[test]
    fn integer_operations_accept_any_bits(values in any::<[u64; 4]>()) {
        use IntegerOp as I;
        let ops = [
            I::Add, I::AddSaturating, I::SubSaturating, I::MulHigh, I::MulWide, I::MadHigh, I::MadHighSaturating, I::MadWide,
            I::Mul24High, I::Mad24High, I::SubCarry, I::MadHighCarry, I::SumOfDifferences, I::Div, I::Rem, I::Abs, I::Shl,
            I::Shr, I::FunnelLeftClamp, I::FunnelRightWrap, I::FindHighest, I::FindHighestAsShift, I::Extract, I::Insert,
            I::CountLeadingZeros, I::Reverse, I::Dot4 { first: true, second: false }, I::Dot2 { first: true, second: true, high: true },
            I::MaskOfBits { wraps: true }, I::SignExtend { wraps: false },
        ];
        for ty in [Type::U16, Type::S16, Type::U32, Type::S32, Type::U64, Type::S64] {
            for op in ops {
                let (first, _) = Function::Integer(op, ty).apply(values.map(|value| ty.truncate(value)));
                // Repeating the operation gives the same result.
                prop_assert_eq!(Function::Integer(op, ty).apply(values.map(|value| ty.truncate(value))).0, first);
            }
        }
    }
}

/// If the exact result were rounded to `f32` first, it would be moved to the midpoint between two halves.
#[test]
fn fused_halves_do_not_round_through_f32() {
    let apply = HalfFunction::new(HalfOp::Fma, Type::F16);
    let values = [3328.0, 0.894_531_25, 5.960_464_477_539_063e-8];
    let bits = values.map(nearest_half);
    assert_eq!(bits.map(|bits| f16::from_bits(bits as u16).to_f64()), values);
    assert_eq!(apply.apply([bits[0], bits[1], bits[2], 0]), 27089);
}

#[test]
fn every_half_round_trips_through_exact_numbers() {
    for bits in 0..=u16::MAX {
        for (format, is_nan) in [(F16, f16::from_bits(bits).is_nan()), (BF16, bf16::from_bits(bits).is_nan())]
        {
            let wanted = if is_nan { format.nan } else { u64::from(bits) };
            for rounding in [Rounding::NearestEven, Rounding::TowardsZero, Rounding::Down, Rounding::Up] {
                assert_eq!(unpack(u64::from(bits), format).round(format, rounding), wanted);
            }
        }
    }
}
