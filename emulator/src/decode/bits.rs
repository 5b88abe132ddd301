//! Decodes logical operations, shifts, and operations on bit fields.

use super::builder::Builder;
use super::operands::low;
use super::qualifiers::Qualifiers;
use crate::code::{FlagOp, Narrow2, Op, Slot, Wide2, WideShift};
use crate::fault::LoadError;
use crate::lane::integer::Permute;
use crate::lane::{Function, IntegerOp, Type};
use crate::ptx::syntax::{Number, Operand};

pub fn decode<'a>(
    builder: &mut Builder<'_, 'a>,
    opcode: &str,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    match opcode {
        "lop3" => return logic3(builder, qualifiers, operands),
        "prmt" => return permute(builder, qualifiers, operands),
        "dp4a" | "dp2a" => return dot(builder, opcode == "dp4a", qualifiers, operands),
        _ => {}
    }
    let ty = qualifiers.ty()?;
    if ty == Type::Pred {
        return flags(builder, opcode, qualifiers, operands);
    }
    let (op, types): (IntegerOp, &[Type]) = operation(opcode, ty, qualifiers)?;
    let [to, from @ ..] = operands else { return Err(qualifiers.wrong_operands()) };
    if from.len() != types.len() {
        return Err(qualifiers.wrong_operands());
    }
    let result_ty = match op {
        IntegerOp::CountOnes
        | IntegerOp::CountLeadingZeros
        | IntegerOp::FindHighest
        | IntegerOp::FindHighestAsShift => Type::U32,
        _ => ty,
    };
    let to = builder.result(to, result_ty)?;
    let slots = from
        .iter()
        .zip(types)
        .map(|(operand, wanted)| builder.value(operand, if *wanted == SAME { ty } else { *wanted }))
        .collect::<Result<Vec<_>, _>>()?;
    match fast(op, ty, to, &slots) {
        Some(op) => builder.emit(op),
        None => builder.emit_lane(Function::Integer(op, ty), to, slots),
    }
    Ok(())
}

/// A placeholder in lists of operand types. It stands for the instruction's own type.
const SAME: Type = Type::Pred;

fn operation(
    opcode: &str,
    ty: Type,
    qualifiers: &mut Qualifiers<'_>,
) -> Result<(IntegerOp, &'static [Type]), LoadError> {
    use IntegerOp as I;
    let untyped = ty.is_untyped() && ty.bits() != 8;
    let large = matches!(ty.bits(), 32 | 64);
    let wraps = |qualifiers: &mut Qualifiers<'_>| {
        qualifiers.one_of(&[("wrap", true), ("clamp", false)]).ok_or_else(|| qualifiers.unsupported())
    };
    Ok(match opcode {
        "and" if untyped => (I::And, &[SAME, SAME]),
        "or" if untyped => (I::Or, &[SAME, SAME]),
        "xor" if untyped => (I::Xor, &[SAME, SAME]),
        "not" if untyped => (I::Not, &[SAME]),
        "cnot" if untyped => (I::CNot, &[SAME]),
        "shl" if untyped => (I::Shl, &[SAME, Type::U32]),
        "shr" if ty.bits() != 8 && (untyped || ty.is_integer()) => (I::Shr, &[SAME, Type::U32]),
        "brev" if untyped && large => (I::Reverse, &[SAME]),
        "popc" if untyped && large => (I::CountOnes, &[SAME]),
        "clz" if untyped && large => (I::CountLeadingZeros, &[SAME]),
        "bfind" if ty.is_integer() && large => {
            (if qualifiers.take("shiftamt") { I::FindHighestAsShift } else { I::FindHighest }, &[SAME])
        }
        "bfe" if ty.is_integer() && large => (I::Extract, &[SAME, Type::U32, Type::U32]),
        "bfi" if untyped && large => (I::Insert, &[SAME, SAME, Type::U32, Type::U32]),
        "bmsk" if ty == Type::B32 => (I::MaskOfBits { wraps: wraps(qualifiers)? }, &[Type::U32, Type::U32]),
        "szext" if ty.is_integer() && ty.bits() == 32 => {
            (I::SignExtend { wraps: wraps(qualifiers)? }, &[SAME, Type::U32])
        }
        "shf" if ty == Type::B32 => {
            let left = qualifiers.one_of(&[("l", true), ("r", false)]);
            let op = match (left, wraps(qualifiers)?) {
                (Some(true), false) => I::FunnelLeftClamp,
                (Some(true), true) => I::FunnelLeftWrap,
                (Some(false), false) => I::FunnelRightClamp,
                (Some(false), true) => I::FunnelRightWrap,
                (None, _) => return Err(qualifiers.unsupported()),
            };
            (op, &[SAME, SAME, Type::U32])
        }
        _ => return Err(qualifiers.unsupported()),
    })
}

fn fast(op: IntegerOp, ty: Type, to: Slot, from: &[Slot]) -> Option<Op> {
    use IntegerOp as I;
    let row = |index: usize| from.get(index).map_or(0, |slot| slot.row);
    let (a, b) = (row(0), row(1));
    // Rows are zero-extended, so these operations work for 16 bits as well.
    let bitwise = match op {
        I::And => Some((Narrow2::And, Wide2::And)),
        I::Or => Some((Narrow2::Or, Wide2::Or)),
        I::Xor => Some((Narrow2::Xor, Wide2::Xor)),
        _ => None,
    };
    if let Some((narrow, wide)) = bitwise {
        return Some(if ty.bits() == 64 {
            Op::Wide2(wide, to.row, a, b)
        } else {
            Op::Narrow2(narrow, to.row, a, b)
        });
    }
    match (op, ty.bits()) {
        (I::Shl, 32) => Some(Op::Narrow2(Narrow2::Shl, to.row, a, b)),
        (I::Shr, 32) if ty.is_signed() => Some(Op::Narrow2(Narrow2::ShrSigned, to.row, a, b)),
        (I::Shr, 32) => Some(Op::Narrow2(Narrow2::ShrUnsigned, to.row, a, b)),
        (I::Shl, 64) => Some(Op::WideShift(WideShift::Left, to.row, a, b)),
        (I::Shr, 64) if ty.is_signed() => Some(Op::WideShift(WideShift::RightSigned, to.row, a, b)),
        (I::Shr, 64) => Some(Op::WideShift(WideShift::RightUnsigned, to.row, a, b)),
        _ => None,
    }
}

fn flags<'a>(
    builder: &mut Builder<'_, 'a>,
    opcode: &str,
    qualifiers: &Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let op = match opcode {
        "and" => FlagOp::And,
        "or" => FlagOp::Or,
        "xor" => FlagOp::Xor,
        "not" => {
            let [to, from] = operands else { return Err(qualifiers.wrong_operands()) };
            let to = builder.result(to, Type::Pred)?.row;
            let from = builder.plain_flag(from)?;
            builder.emit(Op::FlagNot { to, from });
            return Ok(());
        }
        _ => return Err(qualifiers.unsupported()),
    };
    let [to, a, b] = operands else { return Err(qualifiers.wrong_operands()) };
    let to = builder.result(to, Type::Pred)?.row;
    let (a, b) = (builder.plain_flag(a)?, builder.plain_flag(b)?);
    builder.emit(Op::Flags(op, to, a, b));
    Ok(())
}

/// Returns the operand's value, if the operand is a literal integer of at most `max`.
fn literal(operand: Option<&Operand<'_>>, max: u64) -> Option<u32> {
    match operand {
        Some(Operand::Number(Number::Integer(value))) if *value <= max => Some(low(*value)),
        _ => None,
    }
}

fn logic3<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let ty = qualifiers.ty()?;
    let table = literal(operands.last(), 255).and_then(|table| u8::try_from(table).ok());
    let ([to, a, b, c, _], Some(table), Type::B32) = (operands, table, ty) else {
        return Err(qualifiers.unsupported());
    };
    let to = builder.result(to, ty)?;
    let slots = vec![builder.value(a, ty)?, builder.value(b, ty)?, builder.value(c, ty)?];
    builder.emit_lane(Function::Integer(IntegerOp::Logic3(table), ty), to, slots);
    Ok(())
}

fn permute<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let mode = qualifiers.one_of(&[
        ("f4e", Permute::Forward4),
        ("b4e", Permute::Backward4),
        ("rc8", Permute::Replicate8),
        ("ecl", Permute::EdgeLeft),
        ("ecr", Permute::EdgeRight),
        ("rc16", Permute::Replicate16),
    ]);
    // In `prmt.b32.f4e`, the type precedes the mode, so it is the last qualifier after the mode has been taken.
    let ty = qualifiers.ty()?;
    let ([to, a, b, c], Type::B32) = (operands, ty) else { return Err(qualifiers.wrong_operands()) };
    let to = builder.result(to, ty)?;
    let slots = vec![builder.value(a, ty)?, builder.value(b, ty)?, builder.value(c, ty)?];
    let op = IntegerOp::Permute(mode.unwrap_or(Permute::Default));
    builder.emit_lane(Function::Integer(op, ty), to, slots);
    Ok(())
}

fn dot<'a>(
    builder: &mut Builder<'_, 'a>,
    of_four: bool,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let (second, first) = (qualifiers.ty()?, qualifiers.ty()?);
    let half = qualifiers.one_of(&[("lo", false), ("hi", true)]);
    let is_32 = |ty| matches!(ty, Type::U32 | Type::S32);
    if !is_32(first) || !is_32(second) || half.is_some() == of_four {
        return Err(qualifiers.unsupported());
    }
    let [to, a, b, c] = operands else { return Err(qualifiers.wrong_operands()) };
    let to = builder.result(to, Type::B32)?;
    let slots = [a, b, c].iter().map(|o| builder.value(o, Type::B32)).collect::<Result<Vec<_>, _>>()?;
    let (first, second) = (first.is_signed(), second.is_signed());
    let op = match half {
        None => IntegerOp::Dot4 { first, second },
        Some(high) => IntegerOp::Dot2 { first, second, high },
    };
    builder.emit_lane(Function::Integer(op, Type::U32), to, slots);
    Ok(())
}
