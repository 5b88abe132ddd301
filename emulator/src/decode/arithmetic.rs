//! Decodes arithmetic on integers and floating-point numbers.

use super::builder::Builder;
use super::qualifiers::Qualifiers;
use crate::code::{CARRY, File, Narrow2, Op, Slot, Wide2};
use crate::fault::LoadError;
use crate::lane::float::FloatTest;
use crate::lane::soft::Rounding;
use crate::lane::{FloatFunction, FloatOp, Function, HalfFunction, HalfOp, IntegerOp, Type};
use crate::ptx::syntax::Operand;

pub fn decode<'a>(
    builder: &mut Builder<'_, 'a>,
    opcode: &str,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let ty = qualifiers.ty()?;
    match ty {
        Type::F32 | Type::F64 => float(builder, opcode, ty, qualifiers, operands),
        _ if ty.is_half() => half(builder, opcode, ty, qualifiers, operands),
        _ => integer(builder, opcode, ty, qualifiers, operands),
    }
}

fn integer<'a>(
    builder: &mut Builder<'_, 'a>,
    opcode: &str,
    ty: Type,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    use IntegerOp as I;
    let part = qualifiers.one_of(&[("lo", 'l'), ("hi", 'h'), ("wide", 'w')]);
    let carries_out = qualifiers.take("cc");
    let takes_carry = matches!(opcode, "addc" | "subc" | "madc");
    let saturates = qualifiers.take("sat");
    let relu = qualifiers.take("relu");
    if matches!(opcode, "copysign" | "testp" | "fma")
        || (saturates && ty != Type::S32)
        || (relu && ty != Type::S32)
    {
        return Err(qualifiers.unsupported());
    }
    if carries_out || takes_carry {
        return with_carry(builder, opcode, ty, part, (takes_carry, carries_out), qualifiers, operands);
    }
    let (op, count) = match (opcode, part) {
        ("add", None) if saturates => (I::AddSaturating, 2),
        ("sub", None) if saturates => (I::SubSaturating, 2),
        ("add", None) => (I::Add, 2),
        ("sub", None) => (I::Sub, 2),
        ("mul", Some('l')) => (I::MulLow, 2),
        ("mul", Some('h')) => (I::MulHigh, 2),
        ("mul", Some('w')) => (I::MulWide, 2),
        ("mad", Some('l')) => (I::MadLow, 3),
        ("mad", Some('h')) if saturates => (I::MadHighSaturating, 3),
        ("mad", Some('h')) => (I::MadHigh, 3),
        ("mad", Some('w')) => (I::MadWide, 3),
        ("mul24", Some('l')) => (I::Mul24Low, 2),
        ("mul24", Some('h')) => (I::Mul24High, 2),
        ("mad24", Some('l')) => (I::Mad24Low, 3),
        ("mad24", Some('h')) if !saturates => (I::Mad24High, 3),
        ("sad", None) => (I::SumOfDifferences, 3),
        ("div", None) => (I::Div, 2),
        ("rem", None) => (I::Rem, 2),
        ("abs", None) if ty.is_signed() => (I::Abs, 1),
        ("neg", None) if ty.is_signed() => (I::Neg, 1),
        ("min", None) if relu => (I::MinRelu, 2),
        ("max", None) if relu => (I::MaxRelu, 2),
        ("min", None) => (I::Min, 2),
        ("max", None) => (I::Max, 2),
        _ => return Err(qualifiers.unsupported()),
    };
    if !ty.is_integer() || ty.bits() == 8 {
        return Err(qualifiers.unsupported());
    }
    let [to, from @ ..] = operands else { return Err(qualifiers.wrong_operands()) };
    if from.len() != count {
        return Err(qualifiers.wrong_operands());
    }
    let is_wide = matches!(op, I::MulWide | I::MadWide);
    if is_wide && ty.bits() == 64 {
        return Err(qualifiers.unsupported());
    }
    let result_ty = if is_wide { doubled(ty) } else { ty };
    let to = builder.result(to, result_ty)?;
    let mut slots = builder.values(&from[..count.min(2)], ty)?;
    if let Some(addend) = from.get(2) {
        slots.push(builder.value(addend, result_ty)?);
    }
    match fast_integer(op, ty, to, &slots) {
        Some(op) => builder.emit(op),
        None => builder.emit_lane(Function::Integer(op, ty), to, slots),
    }
    Ok(())
}

fn doubled(ty: Type) -> Type {
    match (ty.bits(), ty.is_signed()) {
        (16, true) => Type::S32,
        (16, false) => Type::U32,
        (_, true) => Type::S64,
        (_, false) => Type::U64,
    }
}

/// Returns the variant of `Op` that computes this operation in a vectorised loop; `None` if there is no such variant.
fn fast_integer(op: IntegerOp, ty: Type, to: Slot, from: &[Slot]) -> Option<Op> {
    use IntegerOp as I;
    let signed = ty.is_signed();
    let row = |index: usize| from.get(index).map_or(0, |slot| slot.row);
    let (a, b, c) = (row(0), row(1), row(2));
    match (op, ty.bits()) {
        (I::MulWide, 32) => return Some(Op::MulWiden { signed, rows: [to.row, a, b] }),
        (I::MadWide, 32) => return Some(Op::MadWiden { signed, rows: [to.row, a, b, c] }),
        (I::MadLow, 32) => return Some(Op::MadNarrow(to.row, a, b, c)),
        (I::MadLow, 64) => return Some(Op::MadWide(to.row, a, b, c)),
        _ => {}
    }
    if ty.bits() == 32 {
        let fast = match op {
            I::Add => Narrow2::Add,
            I::Sub => Narrow2::Sub,
            I::MulLow => Narrow2::Mul,
            I::Min if signed => Narrow2::MinSigned,
            I::Max if signed => Narrow2::MaxSigned,
            I::Min => Narrow2::MinUnsigned,
            I::Max => Narrow2::MaxUnsigned,
            _ => return None,
        };
        return Some(Op::Narrow2(fast, to.row, a, b));
    }
    if ty.bits() == 64 {
        let fast = match op {
            I::Add => Wide2::Add,
            I::Sub => Wide2::Sub,
            I::MulLow => Wide2::Mul,
            _ => return None,
        };
        return Some(Op::Wide2(fast, to.row, a, b));
    }
    None
}

fn with_carry<'a>(
    builder: &mut Builder<'_, 'a>,
    opcode: &str,
    ty: Type,
    part: Option<char>,
    (takes, gives): (bool, bool),
    qualifiers: &Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let (op, count) = match (opcode, part) {
        ("add" | "addc", None) => (IntegerOp::AddCarry, 2),
        ("sub" | "subc", None) => (IntegerOp::SubCarry, 2),
        ("mad" | "madc", Some('l')) => (IntegerOp::MadLowCarry, 3),
        ("mad" | "madc", Some('h')) => (IntegerOp::MadHighCarry, 3),
        _ => return Err(qualifiers.unsupported()),
    };
    let [to, from @ ..] = operands else { return Err(qualifiers.wrong_operands()) };
    if from.len() != count || !matches!(ty.bits(), 32 | 64) {
        return Err(qualifiers.wrong_operands());
    }
    let to = builder.result(to, ty)?;
    let mut slots = builder.values(from, ty)?;
    let carry = Slot { file: File::Flag, row: CARRY, bits: 1 };
    slots.push(if takes { carry } else { builder.constant(0, Type::U32) });
    builder.emit_lane_with(Function::Integer(op, ty), to, gives.then_some(carry), slots);
    Ok(())
}

fn float<'a>(
    builder: &mut Builder<'_, 'a>,
    opcode: &str,
    ty: Type,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    use FloatOp as F;
    let rounding = qualifiers.rounding();
    let approximate = qualifiers.take("approx");
    let full = qualifiers.take("full");
    let is_f32 = ty == Type::F32;
    let (op, count) = match opcode {
        "add" => (F::Add, 2),
        "sub" => (F::Sub, 2),
        "mul" => (F::Mul, 2),
        "fma" | "mad" => (F::Fma, 3),
        "div" if approximate => (F::DivApproximate, 2),
        "div" => (F::Div, 2),
        "rcp" if approximate && !is_f32 => (F::ReciprocalHigh, 1),
        "rsqrt" if approximate && !is_f32 && qualifiers.has("ftz") => (F::ReciprocalSquareRootHigh, 1),
        "rcp" => (F::Reciprocal, 1),
        "sqrt" => (F::SquareRoot, 1),
        "rsqrt" if approximate => (F::ReciprocalSquareRoot, 1),
        "sin" if approximate && is_f32 => (F::Sine, 1),
        "cos" if approximate && is_f32 => (F::Cosine, 1),
        "lg2" if approximate && is_f32 => (F::Log2, 1),
        "ex2" if approximate && is_f32 => (F::Exp2, 1),
        "tanh" if approximate && is_f32 => (F::Tanh, 1),
        "neg" => (F::Neg, 1),
        "abs" => (F::Abs, 1),
        "min" => (F::Min, 2),
        "max" => (F::Max, 2),
        "copysign" => (F::CopySign, 2),
        "testp" => {
            let test = qualifiers.one_of(&[
                ("finite", FloatTest::Finite),
                ("infinite", FloatTest::Infinite),
                ("number", FloatTest::Number),
                ("notanumber", FloatTest::NotANumber),
                ("normal", FloatTest::Normal),
                ("subnormal", FloatTest::Subnormal),
            ]);
            (F::Test(test.ok_or_else(|| qualifiers.unsupported())?), 1)
        }
        _ => return Err(qualifiers.unsupported()),
    };
    let takes_rounding =
        matches!(op, F::Add | F::Sub | F::Mul | F::Fma | F::Div | F::Reciprocal | F::SquareRoot);
    let contradicts = (rounding.is_some() && (!takes_rounding || approximate)) || (full && op != F::Div);
    if contradicts {
        return Err(qualifiers.unsupported());
    }
    let flush = qualifiers.take("ftz");
    let mut function = FloatFunction {
        rounding: rounding.unwrap_or(Rounding::NearestEven),
        flush: flush && is_f32,
        saturate: qualifiers.take("sat"),
        propagates_nan: qualifiers.take("NaN"),
        xor_sign: qualifiers.take("xorsign") && qualifiers.take("abs"),
        ..FloatFunction::new(op, ty)
    };
    let is_extreme = matches!(op, F::Min | F::Max);
    if (function.propagates_nan || function.xor_sign) && !is_extreme {
        return Err(qualifiers.unsupported());
    }
    // `copysign` and `testp` do not flush subnormal numbers.
    if matches!(op, F::CopySign | F::Test(_)) {
        function.flush = false;
    }
    let [to, from @ ..] = operands else { return Err(qualifiers.wrong_operands()) };
    // A third operand of `min` and `max` is refused, because only newer devices support it.
    if from.len() != count {
        return Err(if is_extreme { qualifiers.unsupported() } else { qualifiers.wrong_operands() });
    }
    let result_ty = if matches!(op, F::Test(_)) { Type::Pred } else { ty };
    let to = builder.result(to, result_ty)?;
    let slots = builder.values(from, ty)?;
    match fast_float(&function, to, &slots) {
        Some(op) => builder.emit(op),
        None => builder.emit_lane(Function::Float(function), to, slots),
    }
    Ok(())
}

fn fast_float(function: &FloatFunction, to: Slot, from: &[Slot]) -> Option<Op> {
    let plain = function.rounding == Rounding::NearestEven
        && !function.saturate
        && !function.propagates_nan
        && !function.xor_sign;
    if !plain {
        return None;
    }
    let row = |index: usize| from.get(index).map_or(0, |slot| slot.row);
    let (a, b, c) = (row(0), row(1), row(2));
    if function.wide {
        let fast = match function.op {
            FloatOp::Add => Wide2::AddF64,
            FloatOp::Sub => Wide2::SubF64,
            FloatOp::Mul => Wide2::MulF64,
            FloatOp::Fma => return Some(Op::FmaF64(to.row, a, b, c)),
            _ => return None,
        };
        return Some(Op::Wide2(fast, to.row, a, b));
    }
    let fast = match (function.op, function.flush) {
        (FloatOp::Fma, flush) => return Some(Op::FmaF32 { flush, rows: [to.row, a, b, c] }),
        (FloatOp::Add, false) => Narrow2::AddF32,
        (FloatOp::Sub, false) => Narrow2::SubF32,
        (FloatOp::Mul, false) => Narrow2::MulF32,
        (FloatOp::Add, true) => Narrow2::AddF32Ftz,
        (FloatOp::Sub, true) => Narrow2::SubF32Ftz,
        (FloatOp::Mul, true) => Narrow2::MulF32Ftz,
        (FloatOp::Min, false) => Narrow2::MinF32,
        (FloatOp::Max, false) => Narrow2::MaxF32,
        _ => return None,
    };
    Some(Op::Narrow2(fast, to.row, a, b))
}

fn half<'a>(
    builder: &mut Builder<'_, 'a>,
    opcode: &str,
    ty: Type,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    use HalfOp as H;
    let approximate = qualifiers.take("approx");
    let rounding = qualifiers.rounding();
    let (op, count) = match opcode {
        "add" => (H::Add, 2),
        "sub" => (H::Sub, 2),
        "mul" => (H::Mul, 2),
        "fma" => (H::Fma, 3),
        "neg" => (H::Neg, 1),
        "abs" => (H::Abs, 1),
        "min" => (H::Min, 2),
        "max" => (H::Max, 2),
        "ex2" if approximate => (H::Exp2, 1),
        "tanh" if approximate => (H::Tanh, 1),
        _ => return Err(qualifiers.unsupported()),
    };
    if rounding.is_some_and(|rounding| rounding != Rounding::NearestEven) {
        return Err(qualifiers.unsupported());
    }
    let function = HalfFunction {
        flush: qualifiers.take("ftz"),
        saturate: qualifiers.take("sat"),
        relu: qualifiers.take("relu"),
        propagates_nan: qualifiers.take("NaN"),
        xor_sign: qualifiers.take("xorsign") && qualifiers.take("abs"),
        ..HalfFunction::new(op, ty)
    };
    if (function.propagates_nan || function.xor_sign) && !matches!(op, H::Min | H::Max) {
        return Err(qualifiers.unsupported());
    }
    let [to, from @ ..] = operands else { return Err(qualifiers.wrong_operands()) };
    if from.len() != count {
        return Err(qualifiers.wrong_operands());
    }
    let to = builder.result(to, ty)?;
    let slots = builder.values(from, ty)?;
    builder.emit_lane(Function::Half(function), to, slots);
    Ok(())
}
